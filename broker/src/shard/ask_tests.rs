//! Asks on simulated shards: order, room, deadlines, ends.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::join_all;
use storage::io::Runtime;

use super::ask::{Reply, Shards, seats};
use super::sim::SimShard;
use super::{AskError, Class, NEVER, Service, ShardId, ShardRuntime};

type Kept = Vec<(u32, Reply<u32>)>;

/// Remembers what it was asked; answers odd numbers at once, keeps even ones until `release`.
#[derive(Clone, Default)]
struct Desk {
    seen: Rc<RefCell<Vec<(ShardId, u32)>>>,
    kept: Rc<RefCell<Kept>>,
}

impl Desk {
    fn release(&self) {
        for (ask, reply) in self.kept.take() {
            reply.send(ask * 10);
        }
    }
}

impl Service for Desk {
    type Ask = u32;
    type Answer = u32;
    fn accept(&self, from: ShardId, ask: u32, reply: Reply<u32>) {
        self.seen.borrow_mut().push((from, ask));
        if ask % 2 == 1 {
            reply.send(ask * 10);
        } else {
            self.kept.borrow_mut().push((ask, reply));
        }
    }
}

fn desks(seed: u64, count: u16, in_flight: usize) -> Vec<(SimShard, Shards<SimShard, Desk>)> {
    let seats = seats::<SimShard, Desk>(count, Class::Client, in_flight);
    SimShard::process(seed, count)
        .into_iter()
        .zip(seats)
        .map(|(shard, seat)| {
            let shards = Shards::new(&shard, Desk::default(), seat);
            (shard, shards)
        })
        .collect()
}

const ONE: ShardId = ShardId::new(1);

#[test]
fn asks_arrive_in_order_and_answers_find_their_askers() {
    for seed in 0..50 {
        let all = desks(seed, 3, 4);
        let (zero, shards) = (all[0].0.clone(), all[0].1.clone());
        let answers = zero.world().clone().block_on(async move {
            let mut pending = Vec::new();
            for ask in 0..40u32 {
                let slot = shards.reserve(ONE, NEVER).await.unwrap();
                pending.push(slot.send(ask * 2 + 1));
            }
            join_all(pending).await
        });
        assert_eq!(answers, (0..40).map(|ask| Ok((ask * 2 + 1) * 10)).collect::<Vec<_>>());
        let seen = all[1].1.local().seen.borrow();
        assert_eq!(*seen, (0..40).map(|ask| (ShardId::CONTROL, ask * 2 + 1)).collect::<Vec<_>>());
    }
}

#[test]
fn the_local_path_accepts_before_send_returns() {
    let all = desks(1, 2, 1);
    let shards = &all[1].1;
    let slot = shards.try_reserve(ONE).unwrap().unwrap();
    let pending = slot.send(7);
    assert_eq!(*shards.local().seen.borrow(), [(ONE, 7)]);
    assert_eq!(all[1].0.world().block_on(pending), Ok(70));
}

#[test]
fn a_full_mailbox_is_busy_at_the_deadline_and_free_after_an_answer() {
    let all = desks(2, 2, 2);
    let world = all[0].0.world().clone();
    let shards = all[0].1.clone();
    let kept: Vec<_> = (0..2).map(|ask| shards.try_reserve(ONE).unwrap().unwrap().send(ask * 2)).collect();
    world.run_until_idle();
    assert!(shards.try_reserve(ONE).unwrap().is_none());
    let (inside, by) = (shards.clone(), all[0].0.now().plus_ms(5));
    assert_eq!(world.block_on(async move { inside.reserve(ONE, by).await.err() }), Some(AskError::Busy));
    assert!(all[0].0.now() >= by);
    // Waiting goes on in the order of the callers; the asker's leaving does not free the room, the answer does.
    drop(kept);
    assert!(shards.try_reserve(ONE).unwrap().is_none());
    all[1].1.local().release();
    world.run_until_idle();
    assert!(shards.try_reserve(ONE).unwrap().is_some());
}

#[test]
fn a_waiter_that_gives_up_loses_no_room() {
    let all = desks(3, 2, 1);
    let world = all[0].0.world().clone();
    let shards = all[0].1.clone();
    let first = shards.try_reserve(ONE).unwrap().unwrap();
    for _ in 0..3 {
        let (inside, by) = (shards.clone(), all[0].0.now().plus_ms(1));
        assert!(world.block_on(async move { inside.reserve(ONE, by).await.is_err() }));
    }
    drop(first);
    let second = shards.try_reserve(ONE).unwrap();
    assert!(second.is_some());
    assert!(shards.try_reserve(ONE).unwrap().is_none());
}

#[test]
fn a_late_answer_is_a_timeout_and_reaches_nobody_else() {
    let all = desks(4, 2, 4);
    let world = all[0].0.world().clone();
    let (shards, by) = (all[0].1.clone(), all[0].0.now().plus_ms(10));
    assert_eq!(world.block_on(async move { shards.ask(ONE, by, 2).await }), Err(AskError::Timeout));
    let next = all[0].1.try_reserve(ONE).unwrap().unwrap().send(4);
    world.run_until_idle();
    all[1].1.local().release();
    assert_eq!(world.block_on(next), Ok(40));
}

#[test]
fn a_dropped_reply_and_an_ended_shard_say_stopped() {
    let mut all = desks(5, 2, 4);
    let world = all[0].0.world().clone();
    let pending = all[0].1.try_reserve(ONE).unwrap().unwrap().send(2);
    world.run_until_idle();
    drop(all[1].1.local().kept.take());
    assert_eq!(world.block_on(pending), Err(AskError::Stopped));
    let local = all[0].1.try_reserve(ShardId::CONTROL).unwrap().unwrap().send(2);
    let kept = all[0].1.try_reserve(ONE).unwrap().unwrap().send(4);
    world.run_until_idle();
    let desk = all[1].1.local().clone();
    drop(all.pop());
    drop(desk.kept.take());
    assert_eq!(world.block_on(kept), Err(AskError::Stopped));
    world.run_until_idle();
    assert_eq!(all[0].1.try_reserve(ONE).err(), Some(AskError::Stopped));
    all[0].1.local().release();
    assert_eq!(world.block_on(local), Ok(20), "the own shard goes on");
}

/// V-83: every shard asks every other as fast as it can, with the smallest queues; all is answered.
#[test]
fn a_cycle_of_full_queues_does_not_deadlock() {
    for seed in 0..50 {
        let all = desks(seed, 4, 1);
        let world = all[0].0.world().clone();
        let tasks: Vec<_> = all
            .iter()
            .map(|(shard, shards)| {
                let (me, shards, count) = (shard.shard(), shards.clone(), shard.shard_count());
                async move {
                    let asks = (0..60u32).map(|n| {
                        let to = ShardId::new(u16::try_from(n).unwrap() % count);
                        let shards = &shards;
                        async move { shards.ask(to, NEVER, n * 2 + 1).await }
                    });
                    let answers = join_all(asks).await;
                    assert!(answers.iter().all(Result::is_ok), "{me:?}");
                }
            })
            .collect();
        world.block_on(async move {
            join_all(tasks).await;
        });
        for from in 0..4u16 {
            for (_, shards) in &all {
                let seen = shards.local().seen.borrow();
                let of: Vec<_> = seen.iter().filter(|(f, _)| f.get() == from).map(|(_, n)| *n).collect();
                assert!(of.is_sorted(), "each pair keeps its order");
            }
        }
    }
}

#[test]
fn dropping_the_last_clone_ends_the_receiver() {
    let all = desks(6, 2, 1);
    let world = all[0].0.world().clone();
    let seen = all[1].1.local().seen.clone();
    drop(all);
    world.run_until_idle();
    assert_eq!(Rc::strong_count(&seen), 1);
}

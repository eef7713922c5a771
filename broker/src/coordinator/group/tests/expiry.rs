//! The expiry of offsets (coordinators.md 3.7): O-05, O-06, O-07.

use super::*;

const RETENTION_MS: i64 = 7 * DAY_MS;

/// Keeps members alive over days.
fn pass_with_heartbeats(world: &mut World, ms: i64, members: &[(&MemberId, i32)]) {
    let end = world.ms + ms;
    while world.ms < end {
        for (id, generation) in members {
            world.heartbeat(who(id, *generation));
        }
        let session_ms = 1_799_999;
        world.pass(session_ms.min(end - world.ms));
    }
}

fn join_long() -> Join {
    Join { session_timeout_ms: 1_800_000, ..join("") }
}

fn settle_long(world: &mut World) -> MemberId {
    let id = world.join_now(join_long()).member;
    let waiter = world.ask_sync(&id, 1, &[(&id, "a")]);
    world.synced(waiter);
    id
}

#[test]
fn offsets_of_an_empty_group_age_from_the_day_it_became_empty_o_05() {
    let mut world = World::quick();
    let id = settle_long(&mut world);
    world.commit_now(who(&id, 1), &[("t", 0, 1)]);
    pass_with_heartbeats(&mut world, 6 * DAY_MS, &[(&id, 1)]);
    world.leave(&[(&id, None)]);
    let mut world = world.fail_over();
    world.pass(RETENTION_MS - 1);
    world.expire();
    assert_eq!(world.fetch("t", 0, true), (1, ErrorCode::None));
    world.pass(1);
    world.expire();
    assert_eq!(world.fetch_all(), []);
    assert_eq!(world.state(), GroupState::Dead, "and the group goes with them");
    assert_eq!(world.fail_over().machine.list(None).count(), 0);
}

#[test]
fn offsets_of_a_group_of_offsets_alone_age_from_their_commit() {
    let mut world = World::quick();
    world.commit_now(nobody(), &[("t", 0, 1)]);
    world.pass(DAY_MS);
    world.commit_now(nobody(), &[("t", 1, 1)]);
    world.pass(RETENTION_MS - DAY_MS);
    world.expire();
    assert_eq!(world.fetch_all(), [("t".into(), 1, 1)]);
}

#[test]
fn offsets_of_a_group_that_rebalances_never_expire_o_06() {
    let mut world = World::quick();
    world.commit_now(nobody(), &[("u", 0, 1)]);
    let id = settle_long(&mut world);
    world.pass(1_000);
    // The rebalance waits for somebody who is never heard of by the join phase, but lives.
    let patient = Join { rebalance_timeout_ms: i32::MAX, ..join_long() };
    world.ask_join(patient);
    for _ in 0..4 {
        pass_with_heartbeats(&mut world, 250_000, &[(&id, 1)]);
        world.ask_join(Join { rebalance_timeout_ms: i32::MAX, ..join_long() });
    }
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    world.machine.core.settings.offsets_retention_ms = 1;
    world.expire();
    assert_eq!(world.fetch("u", 0, true), (1, ErrorCode::None));
}

#[test]
fn offsets_of_topics_that_consumers_have_left_expire_and_those_they_read_do_not() {
    let mut world = World::quick();
    let id = settle_long(&mut world);
    world.commit_now(who(&id, 1), &[("t", 0, 1), ("u", 0, 1)]);
    pass_with_heartbeats(&mut world, RETENTION_MS, &[(&id, 1)]);
    world.expire();
    assert_eq!(world.fetch_all(), [("t".into(), 0, 1)]);
    assert_eq!(world.state(), GroupState::Stable);
}

#[test]
fn offsets_of_an_active_group_whose_subscriptions_cannot_be_read_are_kept() {
    for odd in [
        Join { protocols: vec![(Arc::from("range"), Bytes::from_static(b"??"))], ..join_long() },
        Join { protocol_type: Arc::from("connect"), ..join_long() },
    ] {
        let mut world = World::quick();
        let id = world.join_now(odd).member;
        let waiter = world.ask_sync(&id, 1, &[(&id, "a")]);
        world.synced(waiter);
        world.commit_now(who(&id, 1), &[("u", 0, 1)]);
        pass_with_heartbeats(&mut world, RETENTION_MS + 1, &[(&id, 1)]);
        world.expire();
        assert_eq!(world.fetch("u", 0, true), (1, ErrorCode::None));
    }
}

#[test]
fn an_offset_with_its_own_time_goes_by_that() {
    let mut world = World::quick();
    let with = |partition, retention_ms| OffsetToCommit { retention_ms, ..to_commit("t", partition, 1) };
    let offsets =
        vec![with(0, Some(1_000)), with(1, Some(30 * DAY_MS)), with(2, None), with(3, Some(i64::MAX))];
    world.ask(GroupRequest::OffsetCommit(OffsetCommit { offsets, ..commit(nobody(), &[]) }));
    let mut world = world.fail_over();
    world.pass(1_000);
    world.expire();
    let partitions = |world: &mut World| world.fetch_all().iter().map(|o| o.1).collect::<Vec<_>>();
    assert_eq!(partitions(&mut world), [1, 2, 3]);
    world.pass(RETENTION_MS);
    world.expire();
    assert_eq!(partitions(&mut world), [1, 3]);
    world.pass(30 * DAY_MS);
    world.expire();
    assert_eq!(partitions(&mut world), [3]);
}

#[test]
fn an_expiry_of_minus_one_in_the_log_is_none_o_07() {
    let mut world = World::quick();
    let key = b"\0\x01\0\x01g\0\x01t\0\0\0\0";
    let mut value = b"\0\x01\0\0\0\0\0\0\0\x2a\0\0".to_vec();
    value.extend(START_MS.to_be_bytes());
    value.extend((-1_i64).to_be_bytes());
    world.log.push((Bytes::from_static(key), Some(value.into())));
    let mut world = world.fail_over();
    world.expire();
    assert_eq!(world.fetch("t", 0, true), (42, ErrorCode::None));
    world.pass(RETENTION_MS);
    world.expire();
    assert_eq!(world.fetch_all(), []);
}

#[test]
fn an_offset_that_is_being_written_does_not_expire() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1), ("t", 1, 1)]);
    world.commit();
    world.pass(RETENTION_MS);
    world.ask_commit(nobody(), &[("t", 0, 2)]);
    world.expire();
    world.commit();
    assert_eq!(world.fetch_all(), [("t".into(), 0, 2)]);
    assert_eq!(world.fail_over().fetch_all(), [("t".into(), 0, 2)]);
}

#[test]
fn an_expiry_that_is_not_written_is_tried_again() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1)]);
    world.commit();
    world.pass(RETENTION_MS);
    world.expire();
    // Nothing is written twice while it is on its way.
    world.expire();
    assert_eq!(world.appends.len(), 1);
    world.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(world.fetch("t", 0, true), (1, ErrorCode::None));
    world.expire();
    world.commit();
    assert_eq!(world.machine.list(None).count(), 0);
}

#[test]
fn a_group_without_members_and_offsets_goes_at_the_next_look() {
    let mut world = World::quick();
    let id = world.settle_one();
    world.leave(&[(&id, None)]);
    assert_eq!(world.state(), GroupState::Empty);
    world.expire();
    assert_eq!(world.state(), GroupState::Dead);
    assert_eq!(world.machine.list(None).count(), 0);
    assert_eq!(world.fail_over().machine.list(None).count(), 0);
}

#[test]
fn a_group_whose_tombstone_is_not_written_stays() {
    let mut world = World::slow_log();
    let id = world.join_now(join("")).member;
    world.leave(&[(&id, None)]);
    world.commit();
    world.expire();
    assert_eq!(world.state(), GroupState::Dead);
    world.fail_one(ErrorCode::RequestTimedOut);
    assert_eq!(world.state(), GroupState::Empty);
    assert_eq!(world.join_now(join("")).generation, 3);
}

/// What no client asked for does not take the room of what clients ask for.
#[test]
fn a_look_at_many_groups_waits_for_the_log() {
    for event in [Event::Expire, deleted(&["t"])] {
        let mut world = World::slow_log();
        for number in 0..500 {
            let who = Identity { group: GroupId::from(format!("g{number}")), ..nobody() };
            world.ask_commit(who, &[("t", 0, 1)]);
            world.commit();
        }
        world.pass(RETENTION_MS);
        world.step(event);
        world.go_on();
        let mut batches = 0;
        while !world.appends.is_empty() {
            assert!(world.appends.len() <= 64, "{}", world.appends.len());
            batches += world.appends.len();
            world.commit();
            world.go_on();
        }
        assert_eq!(batches, 500);
        assert_eq!(world.machine.gauges(), super::super::Gauges::default());
        assert!(world.machine.core.jobs.is_empty());
    }
}

/// A shard has its turn in between: of many groups, and of one that has many offsets.
#[test]
fn a_look_at_many_offsets_is_taken_in_slices() {
    let mut world = World::quick();
    for number in 0..50 {
        let who = Identity { group: GroupId::from(format!("g{number:02}")), ..nobody() };
        let partitions = if number == 20 { 9_000 } else { 100 };
        let offsets: Vec<(&str, i32, i64)> = (0..partitions).map(|partition| ("t", partition, 1)).collect();
        world.commit_now(who, &offsets);
    }
    world.pass(RETENTION_MS);
    world.step(Event::Expire);
    let (mut slices, mut deletions) = (1, Vec::new());
    while world.continues > 0 {
        assert_eq!(world.continues, 1);
        world.continues = 0;
        let before = world.machine.gauges().offsets;
        world.step(Event::Continue);
        assert!(before - world.machine.gauges().offsets <= 2_000);
        slices += 1;
        // A group comes and goes where the look stands; its end is taken in slices, too.
        deletions.push(world.ask(GroupRequest::Delete(GroupId::from("g20"))));
    }
    for waiter in deletions {
        world.reply(waiter);
    }
    assert!(slices > 3, "{slices}");
    assert_eq!(world.machine.gauges(), super::super::Gauges::default());
    assert_eq!(world.machine.core.topics.len(), 0);
}

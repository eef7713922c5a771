use proptest::prelude::*;

use super::*;

const ME: BrokerId = BrokerId::new(1);
const LAG: u64 = 30_000_000_000;

fn id(id: i32) -> BrokerId {
    BrokerId::new(id)
}

fn at(ms: i64) -> MonoTime {
    MonoTime::new(0).plus_ms(ms)
}

fn offset(offset: i64) -> Offset {
    Offset::new(offset)
}

fn state(leader: i32, epoch: i32, version: i32, replicas: &[i32], isr: &[i32]) -> PartitionState {
    let ids = |list: &[i32]| list.iter().copied().map(BrokerId::new).collect();
    PartitionState {
        leader: id(leader),
        leader_epoch: LeaderEpoch::new(epoch),
        partition_epoch: PartitionEpoch::new(version),
        replicas: ids(replicas),
        isr: ids(isr),
    }
}

struct Replica {
    machine: ReplicaMachine,
    now: MonoTime,
}

impl Replica {
    fn new(log_end_offset: i64, high_watermark: i64, min_isr: usize) -> Self {
        let loaded = Loaded {
            log_start_offset: Offset::ZERO,
            log_end_offset: offset(log_end_offset),
            safe_offset: offset(log_end_offset),
            high_watermark: offset(high_watermark),
        };
        Self { machine: ReplicaMachine::new(ME, loaded, min_isr, LAG), now: at(0) }
    }

    fn leading(replicas: &[i32], isr: &[i32], min_isr: usize) -> Self {
        let mut replica = Self::new(0, 0, min_isr);
        replica.step(Event::Become(state(1, 0, 0, replicas, isr)));
        replica
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.machine.step(self.now, event, &mut out).unwrap();
        out
    }

    fn append(&mut self, end: i64) -> Vec<Action> {
        self.step(Event::Appended(offset(end)));
        self.step(Event::Safe(offset(end)))
    }

    fn fetch(&mut self, replica: i32, fetch_offset: i64, eligible: bool) -> Vec<Action> {
        self.step(Event::FollowerFetched(FollowerFetch {
            replica: id(replica),
            broker_epoch: BrokerEpoch::new(-1),
            fetch_offset: offset(fetch_offset),
            log_start_offset: Offset::ZERO,
            eligible,
        }))
    }

    fn answer(&mut self, answer: IsrAnswer) -> Vec<Action> {
        let leader_epoch = self.machine.leader_epoch();
        self.step(Event::IsrAnswered { leader_epoch, answer })
    }

    fn high_watermark(&self) -> i64 {
        self.machine.high_watermark().get()
    }
}

fn accepted(isr: &[i32], version: i32) -> IsrAnswer {
    IsrAnswer::Accepted {
        isr: isr.iter().copied().map(BrokerId::new).collect(),
        partition_epoch: PartitionEpoch::new(version),
    }
}

#[test]
fn the_only_replica_moves_the_high_watermark_with_what_is_written() {
    let mut replica = Replica::leading(&[1], &[1], 1);
    replica.step(Event::Appended(offset(5)));
    assert_eq!(replica.high_watermark(), 0, "not above what is safe (R-2)");
    assert_eq!(replica.step(Event::Safe(offset(5))), vec![Action::HighWatermark(offset(5))]);
}

#[test]
fn a_new_leader_of_one_replica_exposes_its_whole_log_at_once() {
    let mut replica = Replica::new(7, 3, 1);
    let out = replica.step(Event::Become(state(1, 4, 0, &[1], &[1])));
    let assign = Action::AssignEpoch { leader_epoch: LeaderEpoch::new(4), start: offset(7) };
    assert_eq!(out, vec![assign, Action::HighWatermark(offset(7))]);
}

#[test]
fn the_high_watermark_stands_below_min_isr() {
    // V-3
    let mut replica = Replica::leading(&[1, 2], &[1, 2], 2);
    replica.append(1);
    replica.fetch(2, 1, true);
    assert_eq!(replica.high_watermark(), 1);
    replica.step(Event::Become(state(1, 0, 1, &[1, 2], &[1])));
    replica.append(2);
    assert_eq!(replica.high_watermark(), 1);
    assert_eq!(replica.machine.committed_isr(), (1, 2));
}

#[test]
fn min_isr_above_the_replicas_counts_the_replicas() {
    // V-4
    let replica = Replica::leading(&[1, 2], &[1, 2], 3);
    assert_eq!(replica.machine.committed_isr(), (2, 2));
}

#[test]
fn a_caught_up_replica_outside_the_isr_holds_the_high_watermark_only_when_eligible() {
    // V-6
    let mut replica = Replica::leading(&[1, 2], &[1], 1);
    replica.step(Event::Appended(offset(1)));
    assert_eq!(replica.fetch(2, 1, false), vec![]);
    replica.step(Event::Safe(offset(1)));
    replica.step(Event::Appended(offset(2)));
    replica.fetch(2, 1, false);
    replica.step(Event::Safe(offset(2)));
    assert_eq!(replica.high_watermark(), 2, "a fenced replica is ignored");
    replica.fetch(2, 2, true);
    replica.append(3);
    assert_eq!(replica.high_watermark(), 2, "it is about to join");
}

#[test]
fn a_pending_expand_counts_until_it_is_refused() {
    // V-7
    let mut replica = Replica::leading(&[1, 3], &[1], 1);
    let out = replica.fetch(3, 0, true);
    assert!(matches!(out.first(), Some(Action::ProposeIsr { isr, .. }) if isr.len() == 2), "{out:?}");
    replica.append(1);
    assert_eq!(replica.high_watermark(), 0);
    assert_eq!(replica.machine.maximal_isr().0, 2);
    assert_eq!(replica.answer(IsrAnswer::Refused), vec![Action::HighWatermark(offset(1))]);
    assert_eq!(replica.machine.maximal_isr().0, 1);
}

#[test]
fn a_pending_shrink_holds_the_high_watermark_until_it_succeeds() {
    // V-8, V-23, V-58
    let mut replica = Replica::leading(&[1, 2], &[1, 2], 1);
    replica.append(1);
    replica.now = at(31_000);
    let out = replica.step(Event::Tick { lag_nanos_max: LAG });
    assert!(matches!(out.as_slice(), [Action::ProposeIsr { isr, .. }] if isr.len() == 1), "{out:?}");
    assert_eq!(replica.step(Event::Tick { lag_nanos_max: LAG }), vec![], "one proposal at a time");
    replica.append(2);
    assert_eq!(replica.high_watermark(), 0);
    assert_eq!(replica.answer(accepted(&[1], 1)), vec![Action::HighWatermark(offset(2))]);
    replica.now = at(90_000);
    assert_eq!(replica.step(Event::Tick { lag_nanos_max: LAG }), vec![], "the last member stays");
}

#[test]
fn an_outdated_shrink_keeps_the_old_isr_until_the_controller_speaks() {
    // V-9
    let mut replica = Replica::leading(&[1, 2], &[1, 2], 1);
    replica.append(1);
    replica.now = at(31_000);
    replica.step(Event::Tick { lag_nanos_max: LAG });
    replica.answer(IsrAnswer::Outdated);
    replica.append(2);
    assert_eq!(replica.high_watermark(), 0);
    replica.step(Event::Become(state(1, 0, 5, &[1, 2], &[1])));
    assert_eq!(replica.high_watermark(), 2);
}

#[test]
fn success_with_an_equal_version_clears_the_pending_change() {
    // V-10
    let mut replica = Replica::leading(&[1, 2], &[1], 1);
    replica.fetch(2, 0, true);
    replica.answer(accepted(&[1, 2], 0));
    assert_eq!(replica.machine.committed_isr().0, 2);
    assert_eq!(replica.machine.maximal_isr().0, 2);
}

#[test]
fn a_retriable_error_proposes_again() {
    // V-25
    let mut replica = Replica::leading(&[1, 2], &[1], 1);
    let first = replica.fetch(2, 0, true);
    assert_eq!(replica.answer(IsrAnswer::Retry), first);
}

#[test]
fn an_answer_after_the_leadership_is_gone_changes_nothing() {
    // V-24
    let mut replica = Replica::leading(&[1, 2], &[1], 1);
    replica.fetch(2, 0, true);
    assert_eq!(replica.step(Event::Become(state(2, 1, 3, &[1, 2], &[2]))), vec![Action::LostLeadership]);
    let answer = Event::IsrAnswered { leader_epoch: LeaderEpoch::new(0), answer: accepted(&[1, 2], 9) };
    assert_eq!(replica.step(answer), vec![]);
    assert_eq!(replica.machine.partition_epoch(), PartitionEpoch::new(3));
}

#[test]
fn a_follower_one_batch_behind_a_steady_producer_stays_caught_up() {
    // V-18
    let mut replica = Replica::leading(&[1, 2], &[1, 2], 1);
    for round in 1..=100 {
        replica.now = at(round * 1000);
        replica.append(round * 10);
        replica.fetch(2, (round - 1) * 10, true);
        assert_eq!(replica.step(Event::Tick { lag_nanos_max: LAG }), vec![]);
    }
}

#[test]
fn an_idle_topic_keeps_its_isr_until_a_record_arrives() {
    // V-17
    let mut replica = Replica::leading(&[1, 2], &[1, 2], 1);
    replica.append(1);
    replica.fetch(2, 1, true);
    replica.now = at(100_000);
    assert_eq!(replica.step(Event::Tick { lag_nanos_max: LAG }), vec![]);
    replica.append(2);
    assert_eq!(replica.step(Event::Tick { lag_nanos_max: LAG }).len(), 1);
}

#[test]
fn a_follower_below_the_start_of_the_leader_epoch_does_not_join() {
    // V-19
    let mut replica = Replica::new(10, 5, 1);
    replica.step(Event::Become(state(1, 3, 0, &[1, 2, 3], &[1, 3])));
    assert_eq!(replica.fetch(2, 7, true), vec![]);
    assert!(matches!(replica.fetch(2, 10, true).as_slice(), [Action::ProposeIsr { .. }]));
}

#[test]
fn a_fetch_of_an_earlier_incarnation_changes_nothing() {
    // V-21
    let mut replica = Replica::leading(&[1, 2], &[1, 2], 1);
    replica.append(1);
    let fetch = |broker_epoch, fetch_offset| {
        Event::FollowerFetched(FollowerFetch {
            replica: id(2),
            broker_epoch: BrokerEpoch::new(broker_epoch),
            fetch_offset: offset(fetch_offset),
            log_start_offset: Offset::ZERO,
            eligible: true,
        })
    };
    replica.step(fetch(8, 0));
    assert_eq!(replica.step(fetch(7, 1)), vec![]);
    assert_eq!(replica.step(fetch(8, 1)), vec![Action::HighWatermark(offset(1))]);
}

#[test]
fn a_new_leader_does_not_answer_latest_before_it_knows() {
    // V-13
    let mut replica = Replica::new(10, 5, 1);
    replica.step(Event::Become(state(1, 3, 0, &[1, 2], &[1, 2])));
    assert!(!replica.machine.high_watermark_is_of_this_epoch());
    replica.fetch(2, 10, true);
    assert!(replica.machine.high_watermark_is_of_this_epoch());
}

#[test]
fn epochs_are_judged_before_leadership() {
    let mut replica = Replica::new(0, 0, 1);
    replica.step(Event::Become(state(2, 4, 0, &[1, 2], &[2])));
    let check = |epoch| replica.machine.check_leader(LeaderEpoch::new(epoch));
    assert!(matches!(check(3), Err(PartitionError::FencedLeaderEpoch { .. })));
    assert!(matches!(check(5), Err(PartitionError::UnknownLeaderEpoch { .. })));
    assert!(matches!(check(4), Err(PartitionError::NotLeader { .. })));
    assert!(matches!(check(-1), Err(PartitionError::NotLeader { .. })));
}

#[test]
fn an_older_state_is_refused() {
    let mut replica = Replica::leading(&[1], &[1], 1);
    replica.step(Event::Become(state(1, 2, 7, &[1], &[1])));
    let mut out = Vec::new();
    let stale = Event::Become(state(1, 2, 6, &[1], &[1]));
    assert_eq!(replica.machine.step(at(0), stale, &mut out), Err(Stale { current: PartitionEpoch::new(7) }));
}

#[test]
fn deleted_records_lift_the_high_watermark_and_the_low_watermark_is_the_least() {
    let mut replica = Replica::leading(&[1, 2], &[1, 2], 1);
    replica.append(10);
    replica.fetch(2, 10, true);
    replica.step(Event::LogStart(offset(4)));
    assert_eq!(replica.machine.low_watermark(), offset(0), "the follower still has all");
    let mut restarted = Replica::new(0, 0, 1);
    assert_eq!(restarted.step(Event::LogStart(offset(9))), vec![Action::HighWatermark(offset(9))]);
}

proptest! {
    /// V-1, V-2: within an epoch the high watermark never falls, never passes the log end nor an in-sync replica.
    #[test]
    fn the_high_watermark_obeys_its_bounds(steps in proptest::collection::vec((0u8..4, 1i64..5, 0i64..20_000), 1..200)) {
        let mut replica = Replica::leading(&[1, 2, 3], &[1, 2], 1);
        let (mut end, mut safe, mut ends) = (0, 0, [0i64; 4]);
        let mut version = 0;
        for (kind, by, wait) in steps {
            replica.now = replica.now.plus_ms(wait);
            let before = replica.high_watermark();
            let out = match kind {
                0 => { end += by; replica.step(Event::Appended(offset(end))) }
                1 => { safe = (safe + by).min(end); replica.step(Event::Safe(offset(safe))) }
                2 => {
                    let who = if by % 2 == 0 { 2 } else { 3 };
                    ends[who] = (ends[who] + by).min(end);
                    replica.fetch(i32::try_from(who).unwrap(), ends[who], true)
                }
                _ => replica.step(Event::Tick { lag_nanos_max: LAG }),
            };
            for action in out {
                if let Action::ProposeIsr { isr, .. } = action {
                    version += 1;
                    let isr = isr.iter().map(|(id, _)| *id).collect();
                    let partition_epoch = PartitionEpoch::new(version);
                    replica.answer(IsrAnswer::Accepted { isr, partition_epoch });
                }
            }
            let after = replica.high_watermark();
            prop_assert!(after >= before && after <= safe && safe <= end);
            let newly = after > before;
            for member in replica.machine.state.isr.iter().filter(|id| **id != ME) {
                let known = ends[usize::try_from(member.get()).unwrap()];
                prop_assert!(!newly || after <= known, "{after} passes replica {member} at {known}");
            }
        }
    }
}

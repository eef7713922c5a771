use protocol::types::{LeaderEpoch, Offset, TopicId};

use super::*;

fn key(partition: i32) -> PartitionKey {
    PartitionKey { topic_id: TopicId::new([1; 16]), partition }
}

fn part(partition: i32) -> FetchPart {
    FetchPart {
        key: key(partition),
        fetch_offset: Offset::ZERO,
        max_bytes: 1000,
        current_leader_epoch: LeaderEpoch::NONE,
        last_fetched_epoch: LeaderEpoch::NONE,
        log_start_offset: Offset::NONE,
        quiet: None,
        discarded: 0,
    }
}

fn wait_key(id: u64) -> WaitKey {
    (ShardId::new(3), WaitId::new(id))
}

fn arm(
    delayed: &mut DelayedFetches,
    id: u64,
    min_bytes: u64,
    partitions: &[i32],
    is_shared: bool,
    until: u64,
) {
    let parts: Vec<_> = partitions.iter().copied().map(part).collect();
    let armed = Armed {
        isolation: Isolation::HighWatermark,
        reader: Reader::Consumer,
        bytes: vec![0; parts.len()],
        sum: 0,
        parts,
        min_bytes,
        is_shared,
        until: MonoTime::new(until),
    };
    delayed.arm(wait_key(id), armed);
}

fn moved(delayed: &mut DelayedFetches, partition: i32, bytes: u64, immediate: bool) -> Vec<(u64, u64, bool)> {
    let mut wakes = Vec::new();
    delayed.moved(
        key(partition),
        |_, _| ProbedPart { bytes, has_data: bytes > 0, immediate, quiet: false },
        &mut wakes,
    );
    wakes.iter().map(|(_, wake)| (wake.id.get(), wake.bytes, wake.immediate)).collect()
}

#[test]
fn bytes_of_all_partitions_end_a_wait_once() {
    let mut delayed = DelayedFetches::default();
    arm(&mut delayed, 1, 100, &[0, 1], false, 9);
    assert_eq!(moved(&mut delayed, 0, 60, false), vec![]);
    assert_eq!(moved(&mut delayed, 0, 60, false), vec![], "counted anew, not added");
    assert_eq!(moved(&mut delayed, 7, 999, false), vec![]);
    assert_eq!(moved(&mut delayed, 1, 40, false), vec![(1, 100, false)]);
    assert_eq!(moved(&mut delayed, 1, 80, false), vec![], "V-82: answered exactly once");
    assert!(delayed.is_empty() && !delayed.waits_for(key(0)));
}

#[test]
fn a_shared_wait_tells_every_growth() {
    let mut delayed = DelayedFetches::default();
    arm(&mut delayed, 1, 100, &[0], true, 9);
    assert_eq!(moved(&mut delayed, 0, 60, false), vec![(1, 60, false)]);
    assert_eq!(moved(&mut delayed, 0, 60, false), vec![]);
    assert_eq!(moved(&mut delayed, 0, 61, false), vec![(1, 61, false)]);
    assert_eq!(delayed.len(), 1);
}

#[test]
fn an_error_ends_a_wait_at_once() {
    let mut delayed = DelayedFetches::default();
    arm(&mut delayed, 1, 100, &[0, 1], false, 9);
    assert_eq!(moved(&mut delayed, 1, 0, true), vec![(1, 0, true)]);
    assert!(delayed.is_empty());
}

#[test]
fn several_waits_stand_on_one_partition_and_end_one_by_one() {
    let mut delayed = DelayedFetches::default();
    arm(&mut delayed, 1, 10, &[0], false, 9);
    arm(&mut delayed, 2, 50, &[0], false, 9);
    assert_eq!(moved(&mut delayed, 0, 20, false), vec![(1, 20, false)]);
    delayed.disarm(wait_key(2));
    delayed.disarm(wait_key(2));
    assert_eq!(moved(&mut delayed, 0, 60, false), vec![]);
}

#[test]
fn forgotten_waits_expire() {
    let mut delayed = DelayedFetches::default();
    arm(&mut delayed, 1, 10, &[0], false, 5);
    arm(&mut delayed, 2, 10, &[0], false, 9);
    delayed.expire(MonoTime::new(6));
    assert_eq!(delayed.len(), 1);
    assert!(delayed.waits_for(key(0)));
    arm(&mut delayed, 2, 10, &[1], false, 12);
    assert!(!delayed.waits_for(key(0)), "arming again replaces");
}

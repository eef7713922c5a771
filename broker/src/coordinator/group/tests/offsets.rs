//! OffsetCommit and OffsetFetch: G-18, O-01, O-04, O-11, F64, F65, F67, and O-03 but for rights.

use super::*;

#[test]
fn an_offset_is_told_when_its_record_is_in_the_log() {
    let mut world = World::slow_log();
    let waiter = world.ask_commit(nobody(), &[("t", 0, 10), ("t", 1, 11)]);
    assert!(world.is_waiting(waiter));
    assert_eq!(world.fetch("t", 0, false), (-1, ErrorCode::None));
    world.commit_one();
    assert_eq!(world.committed(waiter), [ErrorCode::None; 2]);
    assert_eq!(world.fetch("t", 0, false), (10, ErrorCode::None));
    assert_eq!(world.fetch_all(), [("t".into(), 0, 10), ("t".into(), 1, 11)]);
}

#[test]
fn an_offset_that_is_not_written_is_not_kept() {
    for (error, told) in [
        (ErrorCode::UnknownTopicOrPartition, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotEnoughReplicas, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotEnoughReplicasAfterAppend, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotLeaderOrFollower, ErrorCode::NotCoordinator),
        (ErrorCode::KafkaStorageError, ErrorCode::NotCoordinator),
        (ErrorCode::RequestTimedOut, ErrorCode::RequestTimedOut),
        (ErrorCode::MessageTooLarge, ErrorCode::InvalidCommitOffsetSize),
        (ErrorCode::RecordListTooLarge, ErrorCode::InvalidCommitOffsetSize),
        (ErrorCode::InvalidFetchSize, ErrorCode::InvalidCommitOffsetSize),
        (ErrorCode::InvalidRecord, ErrorCode::InvalidRecord),
    ] {
        let mut world = World::slow_log();
        let waiter = world.ask_commit(nobody(), &[("t", 0, 10)]);
        world.fail_one(error);
        assert_eq!(world.committed(waiter), [told], "{error}");
        assert_eq!(world.machine.list(None).count(), 0, "no group came of it");
    }
}

#[test]
fn a_commit_that_the_log_would_not_take_is_not_made() {
    let (metadata, group) = ("some metadata", "g");
    let offsets = |count: i32| -> Vec<_> {
        let offset = |partition| OffsetToCommit { metadata: metadata.into(), ..to_commit("t", partition, 7) };
        (0..count).map(offset).collect()
    };
    let commit = |offsets| OffsetCommit { offsets, ..commit(nobody(), &[]) };
    // As many bytes as a batch may have are reckoned for ten offsets, which take no less.
    let mut world = World::slow_log();
    world.batch_bytes_max = 10 * (34 + group.len() + "t".len() + metadata.len());
    let waiter = world.ask(GroupRequest::OffsetCommit(commit(offsets(11))));
    assert_eq!(world.committed(waiter), [ErrorCode::InvalidCommitOffsetSize; 11]);
    assert!(world.appends.is_empty());
    assert_eq!(world.machine.list(None).count(), 0, "no group came of it");
    let mut some = offsets(12);
    some[3].metadata = "x".repeat(4_097).into();
    some[5].metadata = "x".repeat(4_097).into();
    let waiter = world.ask(GroupRequest::OffsetCommit(commit(some)));
    let (_, records) = world.appends.back().unwrap();
    assert_eq!(records.len(), 10, "what is refused is not reckoned");
    let bytes = records.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |value| value.len()));
    assert!(bytes.sum::<usize>() >= world.batch_bytes_max);
    world.commit();
    let codes = world.committed(waiter);
    assert_eq!(codes.iter().filter(|code| **code == ErrorCode::None).count(), 10);
    assert_eq!(codes[3], ErrorCode::OffsetMetadataTooLarge);
    world.batch_bytes_max = 10;
    let mut some = offsets(2);
    some[1].metadata = "x".repeat(4_097).into();
    let waiter = world.ask(GroupRequest::OffsetCommit(commit(some)));
    let codes = [ErrorCode::InvalidCommitOffsetSize, ErrorCode::OffsetMetadataTooLarge];
    assert_eq!(world.committed(waiter), codes, "an error of its own is told first");
}

#[test]
fn a_commit_of_a_stale_value_does_not_come_back_when_a_later_one_fails() {
    let mut world = World::slow_log();
    for (offset, fails) in [(1, false), (2, true), (3, false), (4, true)] {
        world.ask_commit(nobody(), &[("t", 0, offset)]);
        if fails { world.fail_one(ErrorCode::NotEnoughReplicas) } else { world.commit() }
    }
    assert_eq!(world.fetch("t", 0, true), (3, ErrorCode::None));
}

#[test]
fn the_later_of_two_offsets_of_one_request_counts() {
    let mut world = World::quick();
    world.commit_now(nobody(), &[("t", 0, 10), ("t", 0, 11)]);
    assert_eq!(world.fetch("t", 0, true), (11, ErrorCode::None));
    assert_eq!(world.fail_over().fetch("t", 0, true), (11, ErrorCode::None));
}

#[test]
fn metadata_that_is_too_long_spares_its_siblings_o_04() {
    let mut world = World::quick();
    let with = |partition: i32, metadata: &str| OffsetToCommit {
        metadata: Arc::from(metadata),
        ..to_commit("t", partition, 7)
    };
    // Kafka counts UTF-16 units: 4,096 of them may be 12,288 bytes.
    let (long, longest, astral) = ("x".repeat(4_097), "€".repeat(4_096), "😀".repeat(2_049));
    let offsets = vec![with(0, &long), with(1, &longest), with(2, "m"), with(3, &astral)];
    let waiter = world.ask(GroupRequest::OffsetCommit(OffsetCommit { offsets, ..commit(nobody(), &[]) }));
    let too_large = ErrorCode::OffsetMetadataTooLarge;
    assert_eq!(world.committed(waiter), [too_large, ErrorCode::None, ErrorCode::None, too_large]);
    assert_eq!(world.fetch_all(), [("t".into(), 1, 7), ("t".into(), 2, 7)]);
    let offsets = vec![with(0, &long)];
    let waiter = world.ask(GroupRequest::OffsetCommit(OffsetCommit { offsets, ..commit(nobody(), &[]) }));
    assert_eq!(world.committed(waiter), [too_large]);
}

#[test]
fn what_is_committed_is_fetched_with_all_that_belongs_to_it() {
    let mut world = World::quick();
    let offset = OffsetToCommit { metadata: Arc::from("meta"), ..to_commit("t", 3, 42) };
    let commit = OffsetCommit { offsets: vec![offset], ..commit(nobody(), &[]) };
    world.ask(GroupRequest::OffsetCommit(commit));
    let mut world = world.fail_over();
    let topics = Some(vec![(TopicName::new("u"), vec![]), (TopicName::new("t"), vec![3, 4])]);
    let reply = world.fetch_full(OffsetFetch { group: group(), topics, from: None, require_stable: true });
    assert_eq!(reply.error, ErrorCode::None);
    let fetched = FetchedOffset {
        partition: 3,
        offset: Offset::new(42),
        leader_epoch: LeaderEpoch::new(5),
        metadata: Arc::from("meta"),
        error: ErrorCode::None,
    };
    let none = FetchedOffset {
        partition: 4,
        offset: Offset::NONE,
        leader_epoch: LeaderEpoch::NONE,
        metadata: Arc::default(),
        error: ErrorCode::None,
    };
    assert_eq!(reply.topics, [(TopicName::new("u"), vec![]), (TopicName::new("t"), vec![fetched, none])]);
}

#[test]
fn the_records_are_those_of_kafka_o_11() {
    let mut world = World::quick();
    let offset = |retention_ms, committed_at| OffsetToCommit {
        leader_epoch: LeaderEpoch::new(7),
        retention_ms,
        committed_at,
        ..to_commit("t", 3, 42)
    };
    let g1 = Identity { group: GroupId::from("g1"), ..nobody() };
    let at = TimestampMs::new(1_600_000_000_000);
    for one in [offset(None, None), offset(Some(1_000), Some(at))] {
        let commit = OffsetCommit { offsets: vec![one], ..commit(g1.clone(), &[]) };
        world.ask(GroupRequest::OffsetCommit(commit));
    }
    world.ask(GroupRequest::Delete(GroupId::from("g1")));
    let key = b"\x00\x01\x00\x02g1\x00\x01t\x00\x00\x00\x03";
    let plain = b"\x00\x03\0\0\0\0\0\0\0\x2a\0\0\0\x07\0\0\0\0\x01\x8b\xcf\xe5\x68\0";
    let mut expiring = b"\x00\x01\0\0\0\0\0\0\0\x2a\0\0".to_vec();
    expiring.extend(1_600_000_000_000_i64.to_be_bytes());
    expiring.extend((START_MS + 1_000).to_be_bytes());
    let log: Vec<(&[u8], Option<&[u8]>)> = world.log.iter().map(|(k, v)| (&k[..], v.as_deref())).collect();
    assert_eq!(log, [(&key[..], Some(&plain[..])), (&key[..], Some(&expiring[..])), (&key[..], None)]);
}

#[test]
fn an_offset_that_may_still_change_is_unstable_only_to_those_who_ask_o_01() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1)]);
    world.commit();
    world.ask_commit(nobody(), &[("t", 0, 2)]);
    assert_eq!(world.fetch("t", 0, false), (1, ErrorCode::None));
    assert_eq!(world.fetch("t", 0, true), (-1, ErrorCode::UnstableOffsetCommit));
    assert_eq!(world.fetch("t", 1, true), (-1, ErrorCode::None));
    world.commit();
    assert_eq!(world.fetch("t", 0, true), (2, ErrorCode::None));
}

#[test]
fn no_topics_means_every_offset_and_nothing_else_o_03_f65_f67() {
    let mut world = World::quick();
    assert_eq!(world.fetch_all(), []);
    world.commit_now(nobody(), &[("u", 0, 1), ("t", 1, 2), ("t", 0, 3)]);
    assert_eq!(world.fetch_all(), [("t".into(), 0, 3), ("t".into(), 1, 2), ("u".into(), 0, 1)]);
    assert_eq!(world.fetch("t", 2, false), (-1, ErrorCode::None));
    assert_eq!(world.fetch("unknown", 0, true), (-1, ErrorCode::None));
    world.settle_one();
    assert_eq!(world.fetch_all().len(), 3, "a rebalance takes nothing away");
}

#[test]
fn a_member_commits_while_joins_are_collected_but_not_before_it_is_assigned_g_18() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    let new = world.ask_join(join(""));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    assert_eq!(world.commit_now(who(&ids[0], generation), &[("t", 0, 1)]), [ErrorCode::None]);
    let waiters = [world.ask_join(join(&ids[0])), world.ask_join(join(&ids[1])), new];
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    let generation = world.joined(waiters[0]).generation;
    let codes = world.commit_now(who(&ids[0], generation), &[("t", 0, 2)]);
    assert_eq!(codes, [ErrorCode::RebalanceInProgress]);
    let codes = world.commit_now(who(&ids[0], generation - 1), &[("t", 0, 2)]);
    assert_eq!(codes, [ErrorCode::IllegalGeneration]);
    assert_eq!(world.fetch("t", 0, true), (1, ErrorCode::None));
}

#[test]
fn a_commit_shows_that_the_member_is_there() {
    let mut world = World::quick();
    let id = world.settle_one();
    for _ in 0..5 {
        world.pass(i64::from(SESSION_MS) - 1);
        assert_eq!(world.commit_now(who(&id, 1), &[("t", 0, 1)]), [ErrorCode::None]);
    }
}

#[test]
fn a_group_of_offsets_alone_is_listed_and_described_f64() {
    let mut world = World::quick();
    world.commit_now(nobody(), &[("t", 0, 1)]);
    let listed: Vec<_> = world.machine.list(None).collect();
    let expected = ListedGroup { group: group(), protocol_type: Arc::default(), state: GroupState::Empty };
    assert_eq!(listed, [expected]);
    let described = world.describe();
    assert_eq!((described.state, &*described.protocol_type), (GroupState::Empty, ""));
}

#[test]
fn a_group_is_described_in_full_only_when_it_is_stable() {
    let mut world = World::quick();
    let id = world.join_now(join("")).member;
    let described = world.describe();
    assert_eq!(described.state, GroupState::CompletingRebalance);
    assert_eq!((&*described.protocol_type, &*described.protocol), ("consumer", ""));
    assert_eq!((&described.members[0].member, described.members[0].metadata.len()), (&id, 0));
    let waiter = world.ask_sync(&id, 1, &[(&id, "all")]);
    world.synced(waiter);
    let described = world.describe();
    let member = &described.members[0];
    assert_eq!((described.state, &*described.protocol), (GroupState::Stable, "range"));
    assert_eq!((&member.metadata, &member.assignment[..]), (&subscription(&["t"]), &b"all"[..]));
    assert_eq!((&*member.client_id, &*member.client_host), ("c", "/127.0.0.1"));
    let listed: Vec<_> = world.machine.list(None).collect();
    assert_eq!((&*listed[0].protocol_type, listed[0].state), ("consumer", GroupState::Stable));
}

//! OffsetCommit, OffsetFetch and OffsetDelete (coordinators.md 2.9, 2.11, 2.12; O-04, O-08, and O-02 but for rights, which
//! nobody has yet), and version 0 of the first two, which keeps offsets in the metadata store.

use std::time::{Duration, Instant};

use bench_harness::client::Client;
use protocol::messages::*;

use super::harness::{
    COMMIT, FETCH, Identity, Join, LIMIT, SUBSCRIPTION, TOPIC, await_coordinators, code, commit, commit_by,
    committed, connect, fetched, joining, leave, none, on_each, stable, sync, to_commit, told,
};
use crate::support::Broker;

/// Versions that keep offsets in `__consumer_offsets`.
const IN_THE_LOG: std::ops::RangeInclusive<i16> = 1..=9;

#[test]
fn every_version_reads_what_every_version_commits() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        for writing in IN_THE_LOG {
            let group = format!("versions-{writing}");
            let epoch = if writing >= 6 { 0 } else { -1 };
            let partition =
                |partition_index, offset, metadata: Option<&'static str>| OffsetCommitRequestPartition {
                    partition_index,
                    committed_offset: offset,
                    committed_leader_epoch: epoch,
                    commit_timestamp: if writing == 1 { 1_900_000_000_000 } else { -1 },
                    committed_metadata: metadata.map(Into::into),
                };
            let request = OffsetCommitRequest {
                group_id: group.as_str().into(),
                retention_time_ms: if (2..=4).contains(&writing) { 3_600_000 } else { -1 },
                topics: vec![OffsetCommitRequestTopic {
                    name: TOPIC.into(),
                    partitions: vec![partition(0, 42, Some("kept")), partition(3, i64::MAX, None)],
                }],
                ..OffsetCommitRequest::default()
            };
            assert_eq!(committed(&mut client, writing, &request), [(0, 0), (3, 0)], "version {writing}");
            for reading in IN_THE_LOG {
                let epoch = if reading >= 5 { epoch } else { -1 };
                let kept = (0, 42, epoch, "kept".to_owned(), 0);
                let other = (3, i64::MAX, epoch, String::new(), 0);
                let asked = fetched(&mut client, reading, &group, Some(&[3, 1, 0]));
                assert_eq!(asked, (0, vec![other.clone(), none(1, 0), kept.clone()]), "version {reading}");
                if reading >= 2 {
                    let (error, mut all) = fetched(&mut client, reading, &group, None);
                    all.sort();
                    assert_eq!((error, all), (0, vec![kept, other]), "version {reading}");
                }
            }
        }
    });
}

#[test]
fn what_is_not_there_does_not_hinder_the_rest() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let unknown = code::UNKNOWN_TOPIC_OR_PARTITION;
        for version in 0..=9 {
            let group = format!("unknown-{version}");
            let request = OffsetCommitRequest {
                group_id: group.as_str().into(),
                topics: vec![
                    to_commit("absent", &[(0, 1, ""), (1, 1, "")]),
                    to_commit(TOPIC, &[(0, 7, ""), (4, 7, ""), (-1, 7, ""), (i32::MAX, 7, ""), (1, 8, "")]),
                    to_commit("not a name!", &[(0, 1, "")]),
                ],
                ..OffsetCommitRequest::default()
            };
            let codes: Vec<_> =
                committed(&mut client, version, &request).iter().map(|(_, code)| *code).collect();
            let wanted = [unknown, unknown, 0, unknown, unknown, unknown, 0, unknown];
            assert_eq!(codes, wanted, "version {version}");
            let (_, offsets) = fetched(&mut client, version, &group, Some(&[0, 1]));
            assert_eq!(offsets, [(0, 7, -1, String::new(), 0), (1, 8, -1, String::new(), 0)]);
        }
    });
}

#[test]
fn nothing_that_is_there_is_not_asked_of_the_coordinator() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let unknown = code::UNKNOWN_TOPIC_OR_PARTITION;
        // A generation without a member would be refused by the coordinator.
        let request = OffsetCommitRequest {
            group_id: "g".into(),
            generation_id_or_member_epoch: 5,
            topics: vec![to_commit("absent", &[(0, 1, "")]), to_commit(TOPIC, &[(9, 1, "")])],
            ..OffsetCommitRequest::default()
        };
        assert_eq!(committed(&mut client, COMMIT, &request), [(0, unknown), (9, unknown)]);
        let nothing = OffsetCommitRequest { topics: Vec::new(), ..request };
        assert_eq!(committed(&mut client, COMMIT, &nothing), []);
    });
}

#[test]
fn metadata_has_a_limit_in_characters() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let (longest, longer) = ("ü".repeat(4096), "x".repeat(4097));
        // What UTF-16 writes as two counts twice.
        let (pairs, more_pairs) = ("😀".repeat(2048), "😀".repeat(2048) + "x");
        for version in 0..=9 {
            let offsets: [(i32, i64, &str); 4] =
                [(0, 1, &longest), (1, 2, &longer), (2, 3, &pairs), (3, 4, &more_pairs)];
            let request = OffsetCommitRequest {
                group_id: "g".into(),
                topics: vec![to_commit(TOPIC, &offsets)],
                ..OffsetCommitRequest::default()
            };
            let large = code::OFFSET_METADATA_TOO_LARGE;
            assert_eq!(committed(&mut client, version, &request), [(0, 0), (1, large), (2, 0), (3, large)]);
        }
        let told = fetched(&mut client, FETCH, "g", Some(&[0, 1, 2, 3])).1;
        assert_eq!(told[0], (0, 1, -1, longest, 0));
        assert_eq!(told[1], none(1, 0));
        assert_eq!(told[2], (2, 3, -1, pairs, 0));
        assert_eq!(told[3], none(3, 0));
    });
}

#[test]
fn of_a_partition_that_is_named_twice_the_last_offset_counts() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        for version in 0..=9 {
            let request = OffsetCommitRequest {
                group_id: "g".into(),
                topics: vec![
                    to_commit(TOPIC, &[(0, 1, "a"), (1, 2, "b"), (0, 3, "c")]),
                    to_commit(TOPIC, &[(1, 4, "d")]),
                ],
                ..OffsetCommitRequest::default()
            };
            let codes = committed(&mut client, version, &request);
            assert_eq!(codes, [(0, 0), (1, 0), (0, 0), (1, 0)], "version {version}");
            let (_, offsets) = fetched(&mut client, version, "g", Some(&[1, 0, 1]));
            let found: Vec<_> = offsets.iter().map(|(partition, offset, ..)| (*partition, *offset)).collect();
            assert_eq!(found, [(1, 4), (0, 3)], "version {version}: each once");
        }
    });
}

/// The whole matrix of coordinators.md 2.6 for OffsetCommit that one member can show.
#[test]
fn who_commits_must_be_who_it_says() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let member = stable(&mut client, "g");
        let who = member.identity("g");
        let static_member = Join { instance: Some("mine"), ..joining("s", "") }.call(&mut client);
        let named = Identity { instance: Some("mine"), ..static_member.identity("s") };
        assert_eq!(sync(&mut client, named, &[]).0, 0);
        let nobody = Identity { group: "g", member: "", instance: None, generation: -1 };
        let unknown_group = Identity { group: "unknown", ..who };
        for (who, version, error) in [
            (who, COMMIT, 0),
            (who, 1, 0),
            (Identity { generation: who.generation + 1, ..who }, COMMIT, code::ILLEGAL_GENERATION),
            (Identity { member: "stranger", ..who }, COMMIT, code::UNKNOWN_MEMBER_ID),
            (nobody, COMMIT, code::UNKNOWN_MEMBER_ID),
            (unknown_group, 9, code::GROUP_ID_NOT_FOUND),
            (unknown_group, 8, code::ILLEGAL_GENERATION),
            (unknown_group, 1, code::ILLEGAL_GENERATION),
            (named, 9, 0),
            (Identity { member: "stranger", ..named }, 7, code::FENCED_INSTANCE_ID),
            (Identity { instance: Some("other"), ..named }, 7, code::UNKNOWN_MEMBER_ID),
            (Identity { group: "", ..nobody }, COMMIT, 0),
        ] {
            assert_eq!(commit_by(&mut client, version, who, 0, 1), error, "version {version}");
        }
        // In a rebalance the generation that goes on commits, the one that comes has to wait for its assignment.
        let again = joining("g", &member.member).call(&mut client);
        assert_eq!((again.error, again.generation), (0, 2));
        let rebalancing = commit_by(&mut client, COMMIT, again.identity("g"), 0, 1);
        assert_eq!(rebalancing, code::REBALANCE_IN_PROGRESS);
    });
}

#[test]
fn several_groups_are_answered_in_order_each_for_itself() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        for (group, offset) in [("a", 1), ("b", 2), ("", 3)] {
            assert_eq!(commit(&mut client, COMMIT, group, 0, offset), 0);
        }
        for version in [8, 9] {
            let named = |group: &'static str, partitions: Option<Vec<i32>>| OffsetFetchRequestGroup {
                group_id: group.into(),
                member_id: (version == 9).then(|| "whoever".into()),
                member_epoch: if version == 9 { 77 } else { -1 },
                topics: partitions.map(|partition_indexes| {
                    vec![OffsetFetchRequestTopic { name: TOPIC.into(), partition_indexes }]
                }),
            };
            let groups = vec![
                named("b", Some(vec![0, 1])),
                named("unknown", Some(vec![2])),
                named("a", None),
                named("unknown", None),
                named("", None),
                named("b", None),
            ];
            let request =
                OffsetFetchRequest { groups, require_stable: true, ..OffsetFetchRequest::default() };
            let reply = client.call(version, &request).expect("fetch offsets");
            let answer: OffsetFetchResponse<'_> = reply.message().expect("answer");
            let found = |offset| (0, offset, -1, String::new(), 0);
            let wanted = [
                ("b", vec![found(2), none(1, 0)]),
                ("unknown", vec![none(2, 0)]),
                ("a", vec![found(1)]),
                ("unknown", vec![]),
                ("", vec![found(3)]),
                ("b", vec![found(2)]),
            ];
            assert_eq!(answer.groups.len(), wanted.len());
            for (group, (name, offsets)) in answer.groups.iter().zip(wanted) {
                assert_eq!((&*group.group_id, group.error_code), (name, 0));
                assert_eq!(told(group.topics.elements()), offsets, "{name}");
            }
        }
    });
}

/// Before anybody has looked for a coordinator there is none; the oldest versions can only say it of each partition.
#[test]
fn an_error_of_the_group_stands_where_the_version_has_a_place() {
    for shards in [1, 2] {
        let broker = Broker::start(shards, &[]);
        let mut client = connect(&broker);
        client.create_topic(TOPIC, 4).expect("create");
        broker.await_served(TOPIC, 4);
        let (error, offsets) = fetched(&mut client, 1, "g", Some(&[2, 0]));
        let told: Vec<_> = offsets.iter().map(|told| told.4).collect();
        assert_eq!(error, 0);
        assert!(matches!(told.as_slice(), [15 | 16, 15 | 16]), "{told:?}");
        assert_eq!(offsets, [none(2, told[0]), none(0, told[1])]);
        for version in 2..=9 {
            let (error, offsets) = fetched(&mut client, version, "g", Some(&[0]));
            assert!(matches!((error, offsets.len()), (15 | 16, 0)), "version {version}: {error} {offsets:?}");
        }
        let committed = commit(&mut client, COMMIT, "g", 0, 1);
        assert!(matches!(committed, 15 | 16), "{committed}");
    }
}

/// OffsetDelete: the error of the group and of each partition.
fn delete(client: &mut Client, group: &str, topics: &[(&str, &[i32])]) -> (i16, Vec<(i32, i16)>) {
    let topic = |(name, partitions): &(&str, &[i32])| OffsetDeleteRequestTopic {
        name: (*name).to_owned().into(),
        partitions: partitions
            .iter()
            .map(|partition_index| OffsetDeleteRequestPartition { partition_index: *partition_index })
            .collect(),
    };
    let request = OffsetDeleteRequest { group_id: group.into(), topics: topics.iter().map(topic).collect() };
    let reply = client.call(0, &request).expect("delete offsets");
    let answer: OffsetDeleteResponse<'_> = reply.message().expect("answer");
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    (answer.error_code, partitions.map(|told| (told.partition_index, told.error_code)).collect())
}

#[test]
fn offsets_are_deleted_unless_they_are_in_use() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        client.create_topic("other", 1).expect("create");
        let unknown = code::UNKNOWN_TOPIC_OR_PARTITION;
        assert_eq!(delete(&mut client, "", &[(TOPIC, &[0])]), (code::INVALID_GROUP_ID, vec![]));
        assert_eq!(delete(&mut client, "none", &[(TOPIC, &[0])]), (code::GROUP_ID_NOT_FOUND, vec![]));
        assert_eq!(delete(&mut client, "none", &[("absent", &[0])]), (code::GROUP_ID_NOT_FOUND, vec![]));
        for partition in [0, 1] {
            assert_eq!(commit(&mut client, COMMIT, "simple", partition, 5), 0);
        }
        let mixed: &[(&str, &[i32])] = &[("absent", &[0]), (TOPIC, &[0, 9, 0, 3])];
        let told = vec![(0, unknown), (0, 0), (9, unknown), (0, 0), (3, 0)];
        assert_eq!(delete(&mut client, "simple", mixed), (0, told));
        assert_eq!(fetched(&mut client, FETCH, "simple", None).1, [(1, 5, -1, String::new(), 0)]);
        // A consumer subscribes to one topic; offsets of others can go.
        let member =
            Join { protocols: &[("range", SUBSCRIPTION)], ..joining("used", "") }.admitted(&mut client);
        assert_eq!(sync(&mut client, member.identity("used"), &[]).0, 0);
        assert_eq!(commit_by(&mut client, COMMIT, member.identity("used"), 0, 5), 0);
        let both: &[(&str, &[i32])] = &[(TOPIC, &[0]), ("other", &[0])];
        let subscribed = vec![(0, code::GROUP_SUBSCRIBED_TO_TOPIC), (0, 0)];
        assert_eq!(delete(&mut client, "used", both), (0, subscribed));
        assert_eq!(leave(&mut client, 3, "used", &[(&member.member, None)]), (0, vec![0]));
        assert_eq!(delete(&mut client, "used", both), (0, vec![(0, 0), (0, 0)]));
        // What others than consumers do with topics is not known.
        let worker = Join { protocol_type: "connect", ..joining("worker", "") }.admitted(&mut client);
        assert_eq!(worker.error, 0);
        assert_eq!(delete(&mut client, "worker", &[(TOPIC, &[0])]), (code::NON_EMPTY_GROUP, vec![]));
    });
}

#[test]
fn committed_offsets_outlive_the_process() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        for (i, group) in (0..50).map(|i| (i, format!("g-{i}"))) {
            assert_eq!(commit(&mut client, COMMIT, &group, 0, i), 0);
            assert_eq!(commit(&mut client, COMMIT, &group, 0, i + 1000), 0);
        }
        assert_eq!(commit(&mut client, 0, "old", 0, 4711), 0);
        broker.kill();
        broker.launch();
        await_coordinators(broker);
        let mut client = connect(broker);
        for (i, group) in (0..50).map(|i| (i, format!("g-{i}"))) {
            let (_, offsets) = fetched(&mut client, FETCH, &group, Some(&[0, 1]));
            assert_eq!(offsets, [(0, i + 1000, -1, String::new(), 0), none(1, 0)], "{group}");
        }
        assert_eq!(fetched(&mut client, 0, "old", Some(&[0])).1, [(0, 4711, -1, String::new(), 0)]);
    });
}

/// Makes a topic, if need be when the deletion of the one before is over.
fn make(client: &mut Client, name: &str) {
    const TOPIC_ALREADY_EXISTS: i16 = 36;
    let deadline = Instant::now() + LIMIT;
    loop {
        let topic = CreatableTopic {
            name: name.to_owned().into(),
            num_partitions: 4,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, validate_only: false };
        let reply = client.call(5, &request).expect("create");
        let answer: CreateTopicsResponse<'_> = reply.message().expect("answer");
        match answer.topics[0].error_code {
            0 => return,
            TOPIC_ALREADY_EXISTS => assert!(Instant::now() < deadline, "the deletion does not end"),
            other => panic!("{name}: {other}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn delete_topic(client: &mut Client, name: &str) {
    let request = DeleteTopicsRequest {
        topic_names: vec![name.to_owned().into()],
        timeout_ms: 30_000,
        ..DeleteTopicsRequest::default()
    };
    let reply = client.call(3, &request).expect("delete");
    let answer: DeleteTopicsResponse<'_> = reply.message().expect("answer");
    assert_eq!(answer.responses[0].error_code, 0);
}

/// A commit takes its time; its topic is deleted meanwhile, before or after the coordinator has taken it.
#[test]
fn a_topic_that_is_made_again_has_no_offset_that_was_committed_for_the_old_one() {
    const NAME: &str = "made-again";
    on_each(&[], |broker| {
        let (mut client, mut committer) = (connect(broker), connect(broker));
        for round in 0..6 {
            let group = format!("group-{round}");
            make(&mut client, NAME);
            let mentions: Vec<(i32, i64, &str)> =
                (0..20_000).map(|number| (number % 4, i64::from(number), "")).collect();
            let request = OffsetCommitRequest {
                group_id: group.as_str().into(),
                topics: vec![to_commit(NAME, &mentions)],
                ..OffsetCommitRequest::default()
            };
            let sent = committer.send(COMMIT, &request).expect("send a commit");
            std::thread::sleep(Duration::from_millis(2 * round));
            delete_topic(&mut client, NAME);
            let reply = committer.receive(COMMIT, sent).expect("answer to a commit");
            let answer: OffsetCommitResponse<'_> = reply.message().expect("answer");
            for told in &answer.topics[0].partitions {
                let allowed = [0, code::UNKNOWN_TOPIC_OR_PARTITION];
                assert!(allowed.contains(&told.error_code), "round {round}: {told:?}");
            }
            make(&mut client, NAME);
            assert_eq!(fetched(&mut client, FETCH, &group, None), (0, vec![]), "round {round}");
            delete_topic(&mut client, NAME);
        }
    });
}

/// Version 0 is Kafka's in ZooKeeper mode: a place of its own, without metadata, and no offset is an error.
#[test]
fn version_0_keeps_offsets_apart() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let unknown = code::UNKNOWN_TOPIC_OR_PARTITION;
        assert_eq!(commit(&mut client, COMMIT, "g", 0, 1), 0);
        assert_eq!(fetched(&mut client, 0, "g", Some(&[0])), (0, vec![none(0, unknown)]));
        let request = OffsetCommitRequest {
            group_id: "g".into(),
            topics: vec![to_commit(TOPIC, &[(0, 2, "not kept"), (1, -7, "")])],
            ..OffsetCommitRequest::default()
        };
        assert_eq!(committed(&mut client, 0, &request), [(0, 0), (1, 0)]);
        let found = |partition, offset| (partition, offset, -1, String::new(), 0);
        let offsets = vec![found(0, 2), found(1, -7), none(2, unknown), none(9, unknown)];
        assert_eq!(fetched(&mut client, 0, "g", Some(&[0, 1, 2, 9])), (0, offsets));
        assert_eq!(fetched(&mut client, 1, "g", Some(&[0, 1])).1, [found(0, 1), none(1, 0)]);
        // A group may stand in a path, or not.
        const UNKNOWN_SERVER_ERROR: i16 = -1;
        for group in ["", "..", "a//b", "a/../../brokers", "nul\0"] {
            assert_eq!(commit(&mut client, 0, group, 0, 1), UNKNOWN_SERVER_ERROR, "{group:?}");
            let told = fetched(&mut client, 0, group, Some(&[0])).1;
            assert_eq!(told, [none(0, UNKNOWN_SERVER_ERROR)], "{group:?}");
        }
        assert_eq!(commit(&mut client, 0, "a/b", 0, 3), 0);
        assert_eq!(fetched(&mut client, 0, "a/b", Some(&[0])).1, [found(0, 3)]);
    });
}

/// Some ten thousand mentions in one request are worked on once.
#[test]
fn requests_that_name_much_are_answered() {
    const GROUP: &str = "named much";
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let metadata = "€".repeat(4096);
        let request = OffsetCommitRequest {
            group_id: GROUP.into(),
            topics: vec![to_commit(TOPIC, &[(0, 1, &metadata)])],
            ..OffsetCommitRequest::default()
        };
        assert_eq!(committed(&mut client, COMMIT, &request), [(0, 0)]);
        let many: Vec<i32> = (0..100_000).map(|i| if i % 2 == 0 { 0 } else { 4 + i }).collect();
        for version in [1, FETCH] {
            let (error, offsets) = fetched(&mut client, version, GROUP, Some(&many));
            assert_eq!((error, offsets.len()), (0, 50_001));
            assert_eq!(offsets[0], (0, 1, -1, metadata.clone(), 0));
            assert_eq!(offsets[1], none(5, 0));
        }
        let of_all = || OffsetFetchRequestGroup {
            group_id: GROUP.into(),
            topics: None,
            ..OffsetFetchRequestGroup::default()
        };
        let groups = (0..20_000).map(|_| of_all()).collect();
        let request = OffsetFetchRequest { groups, ..OffsetFetchRequest::default() };
        let reply = client.call(FETCH, &request).expect("fetch offsets");
        let answer: OffsetFetchResponse<'_> = reply.message().expect("answer");
        assert_eq!(answer.groups.len(), 20_000);
        let told = answer.groups.iter().filter(|group| group.error_code == 0).count();
        // 64 MiB of repetitions, of twelve kilobytes each.
        assert!((4_000..6_000).contains(&told), "{told}");
        assert!(answer.groups[0].error_code == 0 && answer.groups[19_999].error_code == 42);
    });
}

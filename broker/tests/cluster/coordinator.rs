//! Where groups are coordinated, and that what they commit outlives the process: FindCoordinator (coordinators.md 2.14,
//! O-17), the creation of `__consumer_offsets`, deleted topics, restarts.

use broker::coordinator::ask::*;
use protocol::consumer_offsets::partition_of;
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;

use crate::harness::*;

type Found = (i16, i32, String, i32);

/// FindCoordinator of one key, before version 4.
fn find_one(broker: &Broker, version: i16, listener: &str, key: &str) -> Found {
    let request =
        FindCoordinatorRequest { key: key.to_owned().into(), key_type: 0, coordinator_keys: Vec::new() };
    let answer: FindCoordinatorResponse<'static> =
        read(version, broker.send_on(0, listener, version, &request));
    (answer.error_code, answer.node_id, answer.host.to_string(), answer.port)
}

fn find(broker: &Broker, version: i16, key_type: i8, keys: &[&str]) -> Vec<(String, Found)> {
    let coordinator_keys = keys.iter().map(|key| (*key).to_owned().into()).collect();
    let request = FindCoordinatorRequest { key: "".into(), key_type, coordinator_keys };
    let answer: FindCoordinatorResponse<'static> = broker.call(version, &request);
    let found =
        |c: &Coordinator<'static>| (c.key.to_string(), (c.error_code, c.node_id, c.host.to_string(), c.port));
    answer.coordinators.elements().iter().map(found).collect()
}

fn none() -> Found {
    (15, -1, String::new(), -1)
}

fn ask(broker: &Broker, shard: usize, group: &str, request: GroupRequest) -> GroupReply {
    let (client, group) = (broker.groups[shard].clone(), group.to_owned());
    broker.world.block_on(async move { client.ask(&group, request).await })
}

fn commit(broker: &Broker, group: &str, topic: &str, offset: i64) -> ErrorCode {
    let offset = OffsetToCommit {
        topic: TopicName::new(topic),
        topic_id: broker.image().topic(topic).unwrap().id,
        partition: 0,
        offset: Offset::new(offset),
        leader_epoch: LeaderEpoch::NONE,
        metadata: "".into(),
        committed_at: None,
        retention_ms: None,
    };
    let who = Identity { group: group.into(), member: "".into(), instance: None, generation: -1 };
    let request = OffsetCommit { who, knows_group_id_not_found: true, offsets: vec![offset] };
    match ask(broker, 0, group, GroupRequest::OffsetCommit(request)) {
        GroupReply::OffsetCommit(codes) => codes[0],
        other => panic!("{other:?}"),
    }
}

fn fetch(broker: &Broker, group: &str, topic: &str) -> i64 {
    let topics = Some(vec![(TopicName::new(topic), vec![0])]);
    let request = OffsetFetch { group: group.into(), topics, from: None, require_stable: false };
    match ask(broker, broker.groups.len() - 1, group, GroupRequest::OffsetFetch(request)) {
        GroupReply::OffsetFetch(reply) => {
            assert_eq!(reply.error, ErrorCode::None);
            reply.topics[0].1[0].offset.get()
        }
        other => panic!("{other:?}"),
    }
}

/// A broker whose clients have found their coordinators.
fn coordinating(shards: u16, disks: Disks) -> Broker {
    let broker = Broker::start(shards, disks, |_| {});
    find(&broker, 4, 0, &["g"]);
    broker.world.advance_ms(200);
    broker
}

#[test]
fn o_17_each_key_is_answered_for_itself_with_the_endpoint_of_its_listener() {
    for shards in [1, 2, 5] {
        let broker = Broker::start(shards, Disks::default(), |config| {
            config.topics.auto_create_topics_enable = false;
        });
        assert_eq!(find(&broker, 4, 0, &["b", "a"]), [("b".into(), none()), ("a".into(), none())]);
        broker.world.advance_ms(200);
        let topic = broker.image().topic(CONSUMER_OFFSETS).unwrap().clone();
        assert_eq!((topic.partitions.len(), topic.overrides["cleanup.policy"].as_str()), (50, "compact"));
        let here = || (0, 1, "plaintext.example".to_owned(), 9092);
        let names = ["b", "a", "b", ""];
        let expected: Vec<_> = names.iter().map(|name| (name.to_string(), here())).collect();
        for version in [4, 5, 6] {
            assert_eq!(find(&broker, version, 0, &names), expected);
            assert_eq!(find(&broker, version, 1, &["t"]), [("t".into(), none())], "no transactions yet");
        }
        for version in 0..4 {
            assert_eq!(find_one(&broker, version, "PLAINTEXT", "g"), here());
            let inside = (0, 1, "inside.example".to_owned(), 9093);
            assert_eq!(find_one(&broker, version, "INSIDE", "g"), inside);
            assert_eq!(find_one(&broker, version, "OTHER", "g"), none(), "no endpoint there");
        }
        assert!(find(&broker, 4, 0, &[]).is_empty());
        assert_eq!(broker.image().topics.len(), 1);
    }
}

#[test]
fn what_was_committed_survives_the_process_with_any_number_of_shards() {
    let mut disks = Disks::default();
    for (life, shards) in [2, 5, 1, 2].into_iter().enumerate() {
        let broker = coordinating(shards, disks);
        if life == 0 {
            assert_eq!(broker.create("t", 1).error_code, 0);
        }
        for number in 0..30 {
            let group = format!("group-{number}");
            let before = i64::try_from(life).unwrap() - 1;
            assert_eq!(fetch(&broker, &group, "t"), before, "life {life}");
            assert_eq!(commit(&broker, &group, "t", before + 1), ErrorCode::None);
        }
        disks = broker.kill();
    }
}

#[test]
fn offsets_of_a_deleted_topic_go_at_once_and_in_the_log_too() {
    for shards in [1, 3] {
        let broker = coordinating(shards, Disks::default());
        for name in ["t", "u"] {
            assert_eq!(broker.create(name, 1).error_code, 0);
        }
        for number in 0..10 {
            for topic in ["t", "u"] {
                assert_eq!(commit(&broker, &format!("group-{number}"), topic, 5), ErrorCode::None);
            }
        }
        let request =
            DeleteTopicsRequest { topic_names: vec!["t".into()], timeout_ms: 30_000, ..Default::default() };
        let answer: DeleteTopicsResponse<'static> = broker.call(1, &request);
        assert_eq!(answer.responses[0].error_code, 0);
        broker.world.advance_ms(500);
        let told = |broker: &Broker, topic: &str| {
            (0..10).map(|number| fetch(broker, &format!("group-{number}"), topic)).collect::<Vec<_>>()
        };
        assert_eq!((told(&broker, "t"), told(&broker, "u")), (vec![-1; 10], vec![5; 10]));
        let broker = coordinating(shards, broker.kill());
        assert_eq!((told(&broker, "t"), told(&broker, "u")), (vec![-1; 10], vec![5; 10]));
    }
}

#[test]
fn a_topic_that_is_made_again_at_once_has_no_offsets() {
    for shards in [1, 3] {
        let broker = coordinating(shards, Disks::default());
        assert_eq!(broker.create("t", 1).error_code, 0);
        let groups: Vec<String> = (0..10).map(|number| format!("group-{number}")).collect();
        for group in &groups {
            assert_eq!(commit(&broker, group, "t", 5), ErrorCode::None);
        }
        let request =
            DeleteTopicsRequest { topic_names: vec!["t".into()], timeout_ms: 30_000, ..Default::default() };
        let answer: DeleteTopicsResponse<'static> = broker.call(1, &request);
        assert_eq!(answer.responses[0].error_code, 0);
        let made = (0..100).any(|_| {
            let error_code = broker.create("t", 1).error_code;
            if error_code != 0 {
                broker.world.advance_ms(1);
            }
            error_code == 0
        });
        assert!(made);
        let told = |broker: &Broker| groups.iter().map(|group| fetch(broker, group, "t")).collect::<Vec<_>>();
        assert_eq!(told(&broker), [-1; 10]);
        assert_eq!(commit(&broker, &groups[0], "t", 6), ErrorCode::None);
        broker.world.advance_ms(500);
        let broker = coordinating(shards, broker.kill());
        assert_eq!(told(&broker), [6, -1, -1, -1, -1, -1, -1, -1, -1, -1]);
    }
}

#[test]
fn a_group_stays_in_its_partition_when_partitions_are_added() {
    let broker = coordinating(2, Disks::default());
    assert_eq!(broker.create("t", 1).error_code, 0);
    let group = "my-group";
    assert_eq!(commit(&broker, group, "t", 7), ErrorCode::None);
    let topics = vec![CreatePartitionsTopic { name: CONSUMER_OFFSETS.into(), count: 60, assignments: None }];
    let request = CreatePartitionsRequest { topics, timeout_ms: 10_000, validate_only: false };
    let answer: CreatePartitionsResponse<'static> = broker.call(3, &request);
    assert_eq!(answer.results[0].error_code, 0);
    broker.world.advance_ms(200);
    assert_ne!(partition_of(group, 50), partition_of(group, 60));
    assert_eq!(fetch(&broker, group, "t"), 7);
}

//! CreateTopics, CreatePartitions, DeleteTopics, InitProducerId.

use std::collections::{BTreeMap, BTreeSet};

use broker::handlers::patience::Patience;
use broker::shard::ShardId;
use broker::store::{MetadataStore, znodes};
use protocol::messages::*;
use protocol::types::*;
use storage::io::Runtime;

use crate::harness::*;

fn codes(broker: &Broker, topics: Vec<CreatableTopic<'static>>) -> Vec<i16> {
    let answer: CreateTopicsResponse<'static> = broker.call(5, &create_request(topics));
    answer.topics.iter().map(|topic| topic.error_code).collect()
}

#[test]
fn a_created_topic_is_led_on_every_shard_when_the_answer_comes() {
    for shards in [1, 2, 5] {
        let broker = Broker::new(shards);
        let created = broker.create("t", 20);
        assert_eq!((created.error_code, created.num_partitions, created.replication_factor), (0, 20, 1));
        assert!(!created.topic_id.is_zero());
        // F75: every shard's image shows leaders with owners, spread evenly.
        let mut load: BTreeMap<ShardId, usize> = BTreeMap::new();
        for cell in &broker.cells {
            let image = cell.current();
            let topic = image.topic("t").unwrap();
            assert_eq!((topic.partitions.len(), topic.id), (20, created.topic_id));
            assert!(
                topic.partitions.iter().all(|partition| partition.leader == ME && partition.owner.is_some())
            );
        }
        for partition in &broker.image().topic("t").unwrap().partitions {
            *load.entry(partition.owner.unwrap()).or_default() += 1;
        }
        assert_eq!(load.len(), usize::from(shards));
        assert!(load.values().max().unwrap() - load.values().min().unwrap() <= 1, "{load:?}");
    }
}

#[test]
fn statements_75_and_76_names_that_exist_or_collide() {
    let broker = Broker::new(2);
    broker.create("a_b", 1);
    let answer: CreateTopicsResponse<'static> = broker.call(5, &create_request(vec![topic("a_b", 1, 1)]));
    assert_eq!(answer.topics[0].error_code, 36);
    assert!(answer.topics[0].error_message.is_some());
    assert_eq!(
        (
            answer.topics[0].num_partitions,
            answer.topics[0].configs.as_ref().map(|configs| configs.elements().len())
        ),
        (-1, Some(0))
    );
    assert_eq!(codes(&broker, vec![topic("a.b", 1, 1)]), [17]);
    // Two of one request collide too.
    assert_eq!(codes(&broker, vec![topic("x.y", 1, 1), topic("x_y", 1, 1)]), [0, 17]);
}

#[test]
fn statement_77_minus_one_is_the_brokers_default() {
    // F70
    let broker = Broker::tuned(|config| config.topics.num_partitions = 3);
    let created = broker.create("t", -1);
    assert_eq!((created.error_code, created.num_partitions, created.replication_factor), (0, 3, 1));
    let configs = created.configs.unwrap();
    let is_told =
        |config: &CreatableTopicConfigs<'_>| config.name == "retention.ms" && config.value.is_some();
    assert!(configs.elements().iter().any(is_told));
    let mut wish = topic("u", -1, -1);
    wish.configs.push(CreatableTopicConfig { name: "retention.ms".into(), value: Some("5".into()) });
    let answer: CreateTopicsResponse<'static> = broker.call(7, &create_request(vec![wish]));
    let configs = answer.topics[0].configs.as_ref().unwrap();
    let retention = configs.elements().iter().find(|config| config.name == "retention.ms").unwrap();
    assert_eq!((retention.value.as_deref(), retention.config_source), (Some("5"), 1));
    assert_eq!(broker.image().topic("u").unwrap().overrides["retention.ms"], "5");
}

#[test]
fn statement_78_validation_creates_nothing() {
    let broker = Broker::new(2);
    let request = CreateTopicsRequest {
        validate_only: true,
        ..create_request(vec![topic("t", 2, 1), topic("u", 0, 1)])
    };
    let answer: CreateTopicsResponse<'static> = broker.call(7, &request);
    let got: Vec<_> = answer.topics.iter().map(|topic| (topic.error_code, topic.num_partitions)).collect();
    assert_eq!(got, [(0, 2), (37, -1)]);
    broker.world.run_until_idle();
    assert!(broker.image().topics.is_empty());
}

#[test]
fn statement_79_a_name_twice_is_refused_each_time() {
    let broker = Broker::new(2);
    assert_eq!(codes(&broker, vec![topic("t", 1, 1), topic("u", 1, 1), topic("t", 1, 1)]), [42, 0, 42]);
    assert!(broker.image().topic("t").is_none());
}

#[test]
fn the_first_fault_decides_in_the_order_of_zookeeper_mode() {
    let broker = Broker::new(1);
    broker.create("exists", 1);
    let with_config =
        |mut topic: CreatableTopic<'static>, name: &'static str, value: Option<&'static str>| {
            topic.configs.push(CreatableTopicConfig { name: name.into(), value: value.map(Into::into) });
            topic
        };
    let assigned = |name, partitions: &[(i32, &[i32])], count| {
        let assignments = partitions
            .iter()
            .map(|(index, ids)| CreatableReplicaAssignment {
                partition_index: *index,
                broker_ids: ids.to_vec(),
            })
            .collect();
        CreatableTopic { assignments, ..topic(name, count, -1) }
    };
    let cases = vec![
        (with_config(topic("exists", 0, 99), "x", None), 36),
        (with_config(topic("a b", 0, 99), "retention.ms", None), 40),
        (assigned("t", &[(0, &[1])], 1), 42),
        (topic("a b", 0, 99), 37),
        (topic("t", -2, 1), 37),
        // F68: the factor has its own code, also before the name.
        (topic("a b", 1, 99), 38),
        (topic("t", 1, 0), 38),
        (topic("a b", 1, 1), 17),
        (assigned("a b", &[(1, &[1])], -1), 17),
        (assigned("t", &[(1, &[1])], -1), 39),
        (assigned("t", &[(0, &[1, 1])], -1), 39),
        (assigned("t", &[(0, &[1]), (1, &[])], -1), 39),
        (with_config(topic("t", 1, 1), "no.such.key", Some("1")), 40),
        (with_config(topic("t", 1, 1), "retention.ms", Some("soon")), 40),
        (topic("__cluster_metadata", 1, 1), 42),
        // P-5: a claimed count does not allocate.
        (topic("t", i32::MAX, 1), 44),
    ];
    for (wish, code) in cases {
        let shown = format!("{} {}/{}", wish.name, wish.num_partitions, wish.replication_factor);
        assert_eq!(codes(&broker, vec![wish]), [code], "{shown}");
    }
    assert_eq!(broker.image().topics.len(), 1);
}

#[test]
fn a_timeout_of_zero_creates_and_says_that_it_did_not_wait() {
    let broker = Broker::new(2);
    let request = CreateTopicsRequest { timeout_ms: 0, ..create_request(vec![topic("t", 1, 1)]) };
    let answer: CreateTopicsResponse<'static> = broker.call(4, &request);
    assert_eq!(answer.topics[0].error_code, 7);
    broker.world.run_until_idle();
    assert!(broker.image().topic("t").is_some());
}

#[test]
fn a_topic_on_brokers_that_do_not_live_times_out_and_waits_for_them() {
    let broker = Broker::new(2);
    let assignment = CreatableReplicaAssignment { partition_index: 0, broker_ids: vec![7] };
    let wish = CreatableTopic { assignments: vec![assignment], ..topic("t", -1, -1) };
    let before = broker.world.wall_ms();
    assert_eq!(codes(&broker, vec![wish]), [7]);
    assert!(broker.world.wall_ms() - before >= 10_000);
    // It exists, so it cannot be created again.
    assert_eq!(codes(&broker, vec![topic("t", 1, 1)]), [36]);
}

/// Who has gone is not waited for on shard 0 either; what was asked for is done all the same.
#[test]
fn a_wait_for_leaders_ends_with_the_patience_of_its_client() {
    for shards in [1, 2] {
        let broker = Broker::new(shards);
        let patience = Patience::default();
        let assignment = CreatableReplicaAssignment { partition_index: 0, broker_ids: vec![7] };
        let wish = CreatableTopic { assignments: vec![assignment], ..topic("t", -1, -1) };
        let request =
            CreateTopicsRequest { timeout_ms: i32::MAX, ..create_request(vec![wish, topic("u", 1, 1)]) };
        let answer = broker.send_patiently(&patience, 7, &request);
        broker.world.advance_ms(60_000);
        assert!(answer.borrow().is_none());
        patience.end();
        broker.world.advance_ms(100);
        let answer: CreateTopicsResponse<'static> = read(7, answer.take().expect("an answer"));
        let got: Vec<_> = answer.topics.iter().map(|topic| topic.error_code).collect();
        assert_eq!(got, [7, 0]);
        // It exists, so it cannot be created again.
        assert_eq!(codes(&broker, vec![topic("t", 1, 1)]), [36]);
    }
}

fn named(name: String) -> CreatableTopic<'static> {
    CreatableTopic { name: name.into(), ..topic("", 1, 1) }
}

#[test]
fn thousands_of_names_are_checked_against_each_other() {
    let broker = Broker::new(2);
    broker.create("a_1", 1);
    let topics = (0..2_998).map(|number| named(format!("a.{number}"))).chain([named("a_2".into())]);
    let request = CreateTopicsRequest { validate_only: true, ..create_request(topics.collect()) };
    let answer: CreateTopicsResponse<'static> = broker.call(7, &request);
    let refused: Vec<_> = answer.topics.iter().filter(|topic| topic.error_code != 0).collect();
    let told: Vec<_> = refused.iter().map(|topic| (&*topic.name, topic.error_code)).collect();
    assert_eq!(told, [("a.1", 17), ("a_2", 17)]);
    assert!(refused[1].error_message.as_ref().unwrap().contains("a.2"));
}

/// More than are written at once: each is answered at its place.
#[test]
fn hundreds_of_topics_of_one_request_are_made_grown_and_deleted() {
    const COUNT: usize = 300;
    let broker = Broker::new(2);
    let topics: Vec<_> = (0..COUNT).map(|number| named(format!("t{number}"))).collect();
    assert_eq!(codes(&broker, topics), [0; COUNT]);
    assert!(broker.cells.iter().all(|cell| cell.current().topics.len() == COUNT));
    let grown = |number| CreatePartitionsTopic {
        name: format!("t{number}").into(),
        count: if number % 100 == 0 { 1 } else { 2 },
        assignments: None,
    };
    let topics = (0..=COUNT).map(grown).collect();
    let request = CreatePartitionsRequest { topics, timeout_ms: 10_000, validate_only: false };
    let answer: CreatePartitionsResponse<'static> = broker.call(3, &request);
    for (number, result) in answer.results.iter().enumerate() {
        let expected = if number == COUNT {
            3
        } else if number % 100 == 0 {
            37
        } else {
            0
        };
        assert_eq!((&*result.name, result.error_code), (&*format!("t{number}"), expected));
    }
    let names = (0..=COUNT).rev().map(|number| format!("t{number}").into()).collect();
    let request = DeleteTopicsRequest { topics: vec![], topic_names: names, timeout_ms: 10_000 };
    let answer: DeleteTopicsResponse<'static> = broker.call(5, &request);
    let got: Vec<_> = answer.responses.iter().map(|response| response.error_code).collect();
    assert_eq!((got[0], &got[1..]), (3, &[0; COUNT][..]));
    assert!(broker.cells.iter().all(|cell| cell.current().topics.is_empty()));
}

fn grow(broker: &Broker, name: &'static str, count: i32, assignments: Option<Vec<Vec<i32>>>) -> i16 {
    let assignments = assignments
        .map(|list| list.into_iter().map(|broker_ids| CreatePartitionsAssignment { broker_ids }).collect());
    let topics = vec![CreatePartitionsTopic { name: name.into(), count, assignments }];
    let request = CreatePartitionsRequest { topics, timeout_ms: 10_000, validate_only: false };
    let answer: CreatePartitionsResponse<'static> = broker.call(3, &request);
    answer.results[0].error_code
}

#[test]
fn statement_80_a_topic_grows_to_a_total_and_never_shrinks() {
    let broker = Broker::new(2);
    broker.create("t", 2);
    // F69
    assert_eq!(grow(&broker, "t", 5, None), 0);
    assert_eq!(broker.image().topic("t").unwrap().partitions.len(), 5);
    for (count, code) in [(5, 37), (4, 37), (0, 37), (-1, 37), (i32::MAX, 44)] {
        assert_eq!(grow(&broker, "t", count, None), code, "{count}");
    }
    assert_eq!(grow(&broker, "none", 5, None), 3);
    for wrong in [vec![], vec![vec![1], vec![1]], vec![vec![2]], vec![vec![1, 1]], vec![vec![]]] {
        assert_eq!(grow(&broker, "t", 6, Some(wrong.clone())), 39, "{wrong:?}");
    }
    assert_eq!(grow(&broker, "t", 6, Some(vec![vec![1]])), 0);
}

fn delete(broker: &Broker, version: i16, names: &[&'static str]) -> Vec<i16> {
    let topic_names = names.iter().map(|name| (*name).into()).collect();
    let named =
        |name: &&'static str| DeleteTopicState { name: Some((*name).into()), topic_id: TopicId::ZERO };
    let request = match version {
        6.. => DeleteTopicsRequest {
            topics: names.iter().map(named).collect(),
            topic_names: vec![],
            timeout_ms: 10_000,
        },
        _ => DeleteTopicsRequest { topics: vec![], topic_names, timeout_ms: 10_000 },
    };
    let answer: DeleteTopicsResponse<'static> = broker.call(version, &request);
    answer.responses.iter().map(|response| response.error_code).collect()
}

#[test]
fn statement_81_deletion_can_be_disabled() {
    let broker = Broker::tuned(|config| config.topics.delete_topic_enable = false);
    broker.create("t", 1);
    assert_eq!((delete(&broker, 2, &["t"]), delete(&broker, 3, &["t"])), (vec![42], vec![73]));
    let both = DeleteTopicState { name: Some("t".into()), topic_id: TopicId::new([5; 16]) };
    let request = DeleteTopicsRequest { topics: vec![both], topic_names: vec![], timeout_ms: 10_000 };
    let answer: DeleteTopicsResponse<'static> = broker.call(6, &request);
    assert_eq!(answer.responses[0].error_code, 73, "before how the topic is named");
    assert!(broker.image().topic("t").is_some());
}

#[test]
fn a_deleted_topic_is_gone_everywhere_and_its_name_is_free() {
    for shards in [1, 2, 5] {
        let broker = Broker::new(shards);
        let first = broker.create("t", 3);
        assert_eq!(
            delete(&broker, 5, &["t", "none", "t"]),
            [0, 3, 0],
            "a topic that is named twice is answered twice"
        );
        assert!(broker.cells.iter().all(|cell| cell.current().topic("t").is_none()));
        broker.world.run_until_idle();
        let second = broker.create("t", 1);
        assert_eq!(second.error_code, 0);
        assert_ne!(second.topic_id, first.topic_id);
        assert_eq!(broker.image().topic("t").unwrap().partitions.len(), 1);
    }
}

#[test]
fn deletion_by_id_tells_the_name_and_both_at_once_are_refused() {
    let broker = Broker::new(2);
    let created = broker.create("t", 1);
    let by = |name: Option<&'static str>, topic_id| DeleteTopicState { name: name.map(Into::into), topic_id };
    let request = |topics| DeleteTopicsRequest { topics, topic_names: vec![], timeout_ms: 10_000 };
    let both: DeleteTopicsResponse<'static> =
        broker.call(6, &request(vec![by(Some("t"), created.topic_id), by(Some("u"), TopicId::ZERO)]));
    assert!(both.responses.iter().all(|response| response.error_code == 42));
    let unknown = TopicId::new([5; 16]);
    let answer: DeleteTopicsResponse<'static> =
        broker.call(6, &request(vec![by(None, created.topic_id), by(None, unknown)]));
    let got: Vec<_> =
        answer.responses.iter().map(|r| (r.error_code, r.name.as_deref(), r.topic_id)).collect();
    assert_eq!(got, [(0, Some("t"), created.topic_id), (100, None, unknown)]);
}

/// Deleted once, answered as often as it is named, as in Kafka's list of results.
#[test]
fn a_topic_that_is_deleted_twice_in_one_request_is_answered_twice() {
    for version in 0..=6 {
        let broker = Broker::new(2);
        let created = broker.create("t", 1);
        let mut topics: Vec<_> = ["t", "none", "t", "none"]
            .into_iter()
            .map(|name| DeleteTopicState { name: Some(name.into()), topic_id: TopicId::ZERO })
            .collect();
        let mut expected = vec![0, 3, 0, 3];
        if version == 6 {
            topics.push(DeleteTopicState { name: None, topic_id: created.topic_id });
            expected.push(0);
        }
        let topic_names = ["t", "none", "t", "none"].map(Into::into).to_vec();
        let request = if version == 6 {
            DeleteTopicsRequest { topics, topic_names: vec![], timeout_ms: 10_000 }
        } else {
            DeleteTopicsRequest { topics: vec![], topic_names, timeout_ms: 10_000 }
        };
        let answer: DeleteTopicsResponse<'static> = broker.call(version, &request);
        let got: Vec<_> = answer.responses.iter().map(|response| response.error_code).collect();
        assert_eq!(got, expected, "version {version}");
        assert!(broker.image().topic("t").is_none());
    }
}

/// Refused, and answered once, as in Kafka's map of results.
#[test]
fn a_topic_that_is_to_grow_twice_in_one_request_is_refused_once() {
    for version in 0..=3 {
        let broker = Broker::new(2);
        broker.create("t", 1);
        broker.create("u", 1);
        let grow =
            |name: &'static str, count| CreatePartitionsTopic { name: name.into(), count, assignments: None };
        let topics = vec![grow("t", 2), grow("u", 2), grow("t", 3)];
        let request = CreatePartitionsRequest { topics, timeout_ms: 10_000, validate_only: false };
        let answer: CreatePartitionsResponse<'static> = broker.call(version, &request);
        let got: Vec<_> = answer.results.iter().map(|result| (&*result.name, result.error_code)).collect();
        assert_eq!(got, [("t", 42), ("u", 0)], "version {version}");
        assert_eq!(broker.image().topic("t").unwrap().partitions.len(), 1);
    }
}

#[test]
fn a_thousand_partitions_come_in_few_commits() {
    let broker = Broker::new(2);
    let before = broker.disks.tree.commits();
    assert_eq!(broker.create("big", 1000).error_code, 0);
    let commits = broker.disks.tree.commits() - before;
    assert!(commits <= 10, "{commits} commits");
    assert!(broker.image().version < 20, "{} images", broker.image().version);
}

#[test]
fn producer_ids_are_never_given_twice() {
    let mut seen = BTreeSet::new();
    let mut disks = Disks::default();
    for shards in [1, 2, 5] {
        let broker = Broker::start(shards, disks, |_| {});
        for round in 0..250 {
            let request = InitProducerIdRequest {
                transactional_id: None,
                transaction_timeout_ms: 0,
                producer_id: -1,
                producer_epoch: -1,
            };
            let shard = round % usize::from(shards);
            let answer: InitProducerIdResponse = read(4, broker.send_on(shard, "PLAINTEXT", 4, &request));
            assert_eq!((answer.error_code, answer.producer_epoch), (0, 0));
            assert!(seen.insert(answer.producer_id), "{} twice", answer.producer_id);
        }
        disks = broker.kill();
    }
    let tree = disks.tree.start(|| 0);
    let block = Broker::wait(tree.get(znodes::PRODUCER_ID_BLOCK, false)).unwrap().0.unwrap();
    let block = znodes::ProducerIdBlock::parse(Some(&block)).unwrap().unwrap();
    assert_eq!((block.start, block.broker), (2000, ME), "a block per life, not per shard");
}

#[test]
fn v81_no_answer_comes_before_the_slowest_shard_has_the_image() {
    for shards in [1, 2, 5] {
        let broker = Broker::new(shards);
        let mut version = broker.image().version;
        for (name, partitions) in [("a", 1), ("b", 7), ("c", 3)] {
            assert_eq!(broker.create(name, partitions).error_code, 0);
            // The answer is there and nothing else has run since.
            let versions: Vec<_> = broker.cells.iter().map(|cell| cell.current().version).collect();
            assert!(versions.iter().all(|found| *found == versions[0] && *found > version), "{versions:?}");
            version = versions[0];
            for cell in &broker.cells {
                let image = cell.current();
                let topic = image.topic(name).expect("every shard knows the topic");
                assert_eq!(topic.partitions.len(), usize::try_from(partitions).unwrap());
                assert!(topic.partitions.iter().all(|partition| partition.leader == ME));
            }
        }
    }
}

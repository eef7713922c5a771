//! Metadata, DescribeCluster, ApiVersions.

use protocol::api::ApiKey;
use protocol::messages::*;
use protocol::types::*;

use crate::harness::*;

#[test]
fn statement_1_api_versions_99_is_answered_in_version_0() {
    let broker = Broker::new(1);
    // Encoded as version 4; the body is not looked at.
    let junk = ApiVersionsRequest { client_software_name: "x".into(), client_software_version: "1".into() };
    let mut writer = protocol::codec::Writer::new();
    junk.encode(&mut writer, 4);
    let answer = broker.send_unknown_version(writer.into_bytes(), 99);
    let answer: ApiVersionsResponse<'static> = read(0, answer);
    assert_eq!((answer.error_code, answer.api_keys.len()), (35, 1));
    assert_eq!(answer.api_keys[0].api_key, ApiKey::ApiVersions.get());
}

#[test]
fn statement_43_empty_and_null_lists_mean_what_the_version_says() {
    let broker = Broker::new(2);
    broker.create("t", 1);
    assert_eq!(broker.metadata(1, Some(&[])).topics.len(), 0);
    assert_eq!(broker.metadata(1, None).topics.len(), 1);
    assert_eq!(broker.metadata(0, Some(&[])).topics.len(), 1);
}

#[test]
fn statement_44_without_permission_nothing_is_created() {
    let broker = Broker::new(2);
    let answer: MetadataResponse<'static> = broker.call(4, &metadata_request(Some(&["t"]), false));
    assert_eq!(answer.topics[0].error_code, 3);
    let off = Broker::tuned(|config| config.topics.auto_create_topics_enable = false);
    assert_eq!(off.metadata(4, Some(&["t"])).topics[0].error_code, 3);
    for broker in [broker, off] {
        assert!(broker.image().topics.is_empty());
    }
}

#[test]
fn statement_45_a_missing_topic_is_created_and_there_on_retry() {
    for (shards, version) in [(1, 0), (2, 4), (5, 13)] {
        let broker = Broker::new(shards);
        let first = broker.metadata(version, Some(&["t", "t"]));
        assert_eq!(first.topics.iter().map(|topic| topic.error_code).collect::<Vec<_>>(), [5]);
        broker.world.run_until_idle();
        let again = broker.metadata(version, Some(&["t"]));
        assert_eq!((again.topics[0].error_code, again.topics[0].partitions[0].leader_id), (0, 1));
    }
}

#[test]
fn the_topic_of_groups_is_made_by_asking_for_it_with_its_own_settings() {
    // protocol.md 3.2. That of transactions is not: nobody coordinates them yet.
    for version in [1, 4, 13] {
        let broker = Broker::new(2);
        let names = ["__consumer_offsets", "__transaction_state", "t"];
        for codes in [(5, 3), (0, 3)] {
            let answer = broker.metadata(version, Some(&names));
            let told = |name: &str| {
                let topic = answer.topics.iter().find(|topic| topic.name.as_deref() == Some(name)).unwrap();
                (topic.error_code, topic.is_internal)
            };
            assert_eq!(told(names[0]), (codes.0, true), "version {version}");
            assert_eq!(told(names[1]), (codes.1, true), "version {version}");
            assert!(!told("t").1);
            broker.world.run_until_idle();
        }
        let image = broker.image();
        assert_eq!(image.topics.len(), 2);
        let topic = image.topic(names[0]).unwrap();
        let overrides: Vec<_> = topic.overrides.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let expected =
            [("cleanup.policy", "compact"), ("compression.type", "producer"), ("segment.bytes", "104857600")];
        assert_eq!((topic.partitions.len(), overrides), (50, expected.to_vec()));
        assert!(topic.partitions.iter().all(|partition| partition.replicas == [ME]));
    }
    let broker = Broker::tuned(|config| config.topics.auto_create_topics_enable = false);
    assert_eq!(broker.metadata(13, Some(&["__consumer_offsets"])).topics[0].error_code, 3);
    assert_eq!(broker.create("__consumer_offsets", 3).error_code, 0, "an admin may");
    broker.world.run_until_idle();
    let topic = broker.metadata(13, Some(&["__consumer_offsets"])).topics.remove(0);
    assert_eq!((topic.error_code, topic.is_internal, topic.partitions.len()), (0, true, 3));
}

#[test]
fn statement_46_an_illegal_name_is_never_created() {
    let broker = Broker::new(2);
    for name in ["a b", "", "..", "ä"] {
        assert_eq!(broker.metadata(4, Some(&[name])).topics[0].error_code, 17, "{name:?}");
    }
    assert!(broker.image().topics.is_empty());
}

#[test]
fn statement_47_an_unknown_id_has_no_name() {
    let broker = Broker::new(2);
    let created = broker.create("t", 1);
    let ask =
        |id, name: Option<&'static str>| MetadataRequestTopic { topic_id: id, name: name.map(Into::into) };
    let request = |topics| MetadataRequest { topics: Some(topics), ..metadata_request(None, true) };
    let unknown = TopicId::new([3; 16]);
    // One id, and the names are ignored.
    let topics = vec![ask(unknown, None), ask(created.topic_id, None), ask(TopicId::ZERO, Some("other"))];
    let answer: MetadataResponse<'static> = broker.call(12, &request(topics));
    let mut seen: Vec<_> =
        answer.topics.iter().map(|topic| (topic.error_code, topic.name.as_deref(), topic.topic_id)).collect();
    seen.sort();
    assert_eq!(seen, [(0, Some("t"), created.topic_id), (100, None, unknown)]);
    assert!(broker.image().topic("other").is_none());
    // Versions 10 and 11 have the field and may not use it.
    let answer: MetadataResponse<'static> =
        broker.call(11, &request(vec![ask(unknown, Some("t")), ask(TopicId::ZERO, Some("u"))]));
    assert!(answer.topics.iter().all(|topic| topic.error_code == 42));
}

#[test]
fn statement_48_each_listener_shows_its_own_endpoint() {
    let broker = Broker::new(2);
    broker.create("t", 1);
    for (listener, host, port) in
        [("PLAINTEXT", "plaintext.example", 9092), ("INSIDE", "inside.example", 9093)]
    {
        let request = metadata_request(None, false);
        let answer: MetadataResponse<'static> = read(9, broker.send_on(1, listener, 9, &request));
        let brokers: Vec<_> =
            answer.brokers.iter().map(|b| (b.host.as_ref(), b.port, b.rack.as_deref())).collect();
        assert_eq!(brokers, [(host, port, Some("r1"))]);
        assert_eq!(answer.cluster_id.as_deref(), Some("pT3rW0o2Rf-8cV6eHq1b9Q"));
        assert_eq!(answer.controller_id, 1);
    }
    for (version, code) in [(0, 5), (5, 5), (6, 72), (12, 72)] {
        let request = metadata_request(Some(&["t"]), true);
        let answer: MetadataResponse<'static> =
            read(version, broker.send_on(0, "NOWHERE", version, &request));
        assert_eq!(answer.brokers.len(), 0);
        let partition = &answer.topics[0].partitions[0];
        assert_eq!((partition.error_code, partition.leader_id), (code, -1), "v{version}");
        let hidden = version == 0;
        assert_eq!(partition.replica_nodes.is_empty(), hidden, "v{version}");
    }
}

#[test]
fn statement_49_operations_are_told_only_when_asked_for() {
    let broker = Broker::new(1);
    broker.create("t", 1);
    let plain = broker.metadata(8, None);
    assert_eq!(plain.topics[0].topic_authorized_operations, i32::MIN);
    assert_eq!(plain.cluster_authorized_operations, i32::MIN);
    let request = MetadataRequest {
        include_cluster_authorized_operations: true,
        include_topic_authorized_operations: true,
        ..metadata_request(None, false)
    };
    let asked: MetadataResponse<'static> = broker.call(8, &request);
    assert_eq!(
        (asked.topics[0].topic_authorized_operations, asked.cluster_authorized_operations),
        (3576, 8096)
    );
}

#[test]
fn every_version_tells_the_same_partitions() {
    let broker = Broker::new(2);
    let created = broker.create("t", 3);
    for version in 0..=13 {
        let answer = broker.metadata(version, Some(&["t"]));
        let topic = &answer.topics[0];
        assert_eq!((topic.error_code, topic.name.as_deref(), topic.partitions.len()), (0, Some("t"), 3));
        assert_eq!(topic.topic_id, if version >= 10 { created.topic_id } else { TopicId::ZERO });
        for partition in &topic.partitions {
            assert_eq!((partition.error_code, partition.leader_id), (0, 1));
            assert_eq!(partition.leader_epoch, if version >= 7 { 0 } else { -1 });
            assert_eq!((&partition.replica_nodes, &partition.isr_nodes), (&vec![1], &vec![1]));
            assert!(partition.offline_replicas.is_empty());
        }
    }
}

#[test]
fn describe_cluster_answers_by_listener_and_endpoint_type() {
    let broker = Broker::new(2);
    let request = |endpoint_type| DescribeClusterRequest {
        include_cluster_authorized_operations: true,
        endpoint_type,
        include_fenced_brokers: false,
    };
    let answer: DescribeClusterResponse<'static> = broker.call(1, &request(1));
    assert_eq!((answer.error_code, answer.controller_id, answer.brokers.len()), (0, 1, 1));
    assert_eq!(
        (answer.brokers[0].host.as_ref(), answer.cluster_authorized_operations),
        ("plaintext.example", 8096)
    );
    let nowhere: DescribeClusterResponse<'static> = read(1, broker.send_on(0, "NOWHERE", 1, &request(1)));
    assert_eq!((nowhere.controller_id, nowhere.brokers.len()), (-1, 0));
    for (endpoint_type, code) in [(2, 114), (3, 115)] {
        let answer: DescribeClusterResponse<'static> = broker.call(1, &request(endpoint_type));
        assert_eq!(answer.error_code, code);
    }
}

//! Every served API at every version against a real process, with answers as rich as they get: topics with configs and
//! ids, idempotent producers, errors of each kind. The debug binary aborts when a handler fills a field that the version
//! cannot carry (C10). Then the same requests with their bodies damaged: no end of the process, other clients served.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process from outside"
)]

#[path = "versions/groups.rs"]
mod groups;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bench_harness::client::Client;
use protocol::api::{ApiKey, RequestHeader, SERVED, decode_response_header};
use protocol::codec::{Cursor, Writer};
use protocol::error::ErrorCode;
use protocol::messages::incremental_alter_configs as incremental;
use protocol::messages::offset_for_leader_epoch as epochs;
use protocol::messages::*;
use protocol::records::builder::BatchBuilder;
use protocol::types::{ProducerEpoch, ProducerId, TimestampMs, TopicId};
use support::Broker;

const LIMIT: Duration = Duration::from_secs(60);
const TOPIC: &str = "versions";
/// A join of an empty group is answered at once.
const NO_DELAY: &str = "group.initial.rebalance.delay.ms=0";

/// A request as bytes, and what its answer must be.
struct Case {
    key: ApiKey,
    version: i16,
    body: Vec<u8>,
    check: fn(&mut Cursor<'_>, i16),
}

fn case<'a, Q: Message<'a>>(request: &Q, version: i16, check: fn(&mut Cursor<'_>, i16)) -> Case {
    let mut writer = Writer::new();
    request.encode(&mut writer, version);
    Case { key: Q::KEY, version, body: writer.into_bytes().to_vec(), check }
}

/// Decodes an answer to its last byte.
fn whole<'a, A: Message<'a>>(cursor: &mut Cursor<'a>, version: i16) -> A {
    let answer = A::decode(cursor, version).expect("an answer of its version");
    assert_eq!(cursor.left(), 0, "bytes behind the answer of {} version {version}", A::KEY.name());
    answer
}

/// Names that exist, do not exist and may not exist.
const NAMES: [&str; 3] = [TOPIC, "absent", "not a name!"];

fn batch(producer: Option<(i64, i32)>) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    if let Some((id, sequence)) = producer {
        builder = builder.producer(ProducerId::new(id), ProducerEpoch::new(0), sequence);
    }
    for i in 0..3 {
        builder.push(TimestampMs::new(1_700_000_000_000 + i), Some(b"key"), Some(b"value"), &[]);
    }
    builder.build().expect("batch").to_vec()
}

fn of_produce(version: i16, batches: &[Vec<u8>]) -> Vec<Case> {
    let partition = |index: i32| PartitionProduceData {
        index,
        records: batches.get(usize::try_from(index).expect("small")).map(|bytes| Records::new(bytes)),
    };
    let topic = |name: &&'static str| TopicProduceData {
        name: (*name).into(),
        partition_data: (0..5).map(partition).collect(),
    };
    [-1, 1, 7]
        .into_iter()
        .map(|acks| {
            let request = ProduceRequest {
                transactional_id: None,
                acks,
                timeout_ms: 1000,
                topic_data: NAMES.iter().map(topic).collect(),
            };
            case(&request, version, |cursor, version| {
                let answer: ProduceResponse<'_> = whole(cursor, version);
                assert_eq!(answer.responses.len(), 3);
            })
        })
        .collect()
}

fn of_fetch(version: i16, id: TopicId) -> Vec<Case> {
    let wanted = |partition: i32, offset: i64| FetchPartition {
        partition,
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        current_leader_epoch: if version >= 9 && partition == 2 { 99 } else { -1 },
        last_fetched_epoch: if version >= 12 && partition == 0 { 0 } else { -1 },
        ..Default::default()
    };
    let mut topics = FetchTopics::default();
    for (name, id) in NAMES.iter().zip([id, TopicId::new([7; 16]), TopicId::ZERO]) {
        let offsets = [0, 1, 0, 1 << 40, -5].into_iter().zip(0..);
        topics.push(*name, id, offsets.map(|(offset, partition)| wanted(partition, offset)));
    }
    [(0, -1), (0, 0), (77, 5)]
        .into_iter()
        .filter(|(_, epoch)| version >= 7 || *epoch == -1)
        .map(|(session_id, session_epoch)| {
            let request = FetchRequest {
                max_wait_ms: 1,
                min_bytes: 1,
                max_bytes: 1 << 20,
                session_id,
                session_epoch,
                topics: topics.clone(),
                ..Default::default()
            };
            case(&request, version, |cursor, version| drop(whole::<FetchResponse<'_>>(cursor, version)))
        })
        .collect()
}

fn of_list_offsets(version: i16) -> Case {
    let partition = |(timestamp, partition_index): (i64, i32)| ListOffsetsPartition {
        partition_index,
        timestamp,
        current_leader_epoch: if version >= 4 && partition_index == 2 { 99 } else { -1 },
        max_num_offsets: if version == 0 { 5 } else { 1 },
    };
    let timestamps = [-1, -2, -3, -4, -5, -6, 0, 1_700_000_000_001, i64::MAX, i64::MIN];
    let request = ListOffsetsRequest {
        replica_id: -1,
        isolation_level: 0,
        topics: NAMES
            .iter()
            .map(|name| ListOffsetsTopic {
                name: (*name).into(),
                partitions: timestamps.iter().flat_map(|t| (0..5).map(|p| partition((*t, p)))).collect(),
            })
            .collect(),
    };
    case(&request, version, |cursor, version| drop(whole::<ListOffsetsResponse<'_>>(cursor, version)))
}

fn of_metadata(version: i16, id: TopicId) -> Vec<Case> {
    let named =
        |name: &&'static str| MetadataRequestTopic { topic_id: TopicId::ZERO, name: Some((*name).into()) };
    let mut asked: Vec<Option<Vec<MetadataRequestTopic<'_>>>> =
        vec![Some(NAMES.iter().map(named).collect()), if version == 0 { Some(Vec::new()) } else { None }];
    if version >= 12 {
        let by_id = |topic_id| MetadataRequestTopic { topic_id, name: None };
        asked.push(Some(vec![by_id(id), by_id(TopicId::new([9; 16]))]));
    }
    asked
        .into_iter()
        .map(|topics| {
            let request = MetadataRequest {
                topics,
                allow_auto_topic_creation: version < 4,
                include_cluster_authorized_operations: (8..=10).contains(&version),
                include_topic_authorized_operations: version >= 8,
            };
            case(&request, version, |cursor, version| {
                let answer: MetadataResponse<'_> = whole(cursor, version);
                assert_eq!(answer.brokers.len(), 1);
            })
        })
        .collect()
}

fn of_create_topics(version: i16) -> Case {
    let config = |name: &'static str, value: Option<&'static str>| CreatableTopicConfig {
        name: name.into(),
        value: value.map(Into::into),
    };
    let topic = |name: String, partitions: i32, replicas: i16, configs| CreatableTopic {
        name: name.into(),
        num_partitions: partitions,
        replication_factor: replicas,
        assignments: Vec::new(),
        configs,
    };
    let assigned = |name: String, broker: i32| CreatableTopic {
        assignments: vec![CreatableReplicaAssignment { partition_index: 0, broker_ids: vec![broker] }],
        ..topic(name, -1, -1, Vec::new())
    };
    let good = vec![config("retention.ms", Some("1000")), config("cleanup.policy", Some("compact,delete"))];
    let request = CreateTopicsRequest {
        topics: vec![
            topic(format!("created-{version}"), 2, 1, good),
            topic(TOPIC.to_owned(), 1, 1, Vec::new()),
            topic("not a name!".to_owned(), 1, 1, Vec::new()),
            topic("two-replicas".to_owned(), 1, 2, Vec::new()),
            topic("no-partitions".to_owned(), 0, 1, Vec::new()),
            topic("bad-config".to_owned(), 1, 1, vec![config("no.such.key", Some("x"))]),
            topic("bad-value".to_owned(), 1, 1, vec![config("retention.ms", Some("soon"))]),
            topic("null-value".to_owned(), 1, 1, vec![config("retention.ms", None)]),
            assigned(format!("assigned-{version}"), 1),
        ],
        timeout_ms: 10_000,
        validate_only: version == 1,
    };
    case(&request, version, |cursor, version| {
        let answer: CreateTopicsResponse<'_> = whole(cursor, version);
        assert_eq!(answer.topics.len(), 9);
        assert_eq!(answer.topics[0].error_code, 0, "{:?}", answer.topics[0]);
        assert_eq!(answer.topics[1].error_code, 36);
        assert!(answer.topics[2..7].iter().all(|topic| topic.error_code != 0), "{:?}", answer.topics);
    })
}

fn of_delete_topics(version: i16) -> Case {
    let names = [format!("created-{version}"), "absent".to_owned(), "not a name!".to_owned()];
    let request = DeleteTopicsRequest {
        topic_names: if version < 6 { names.iter().map(|name| name.into()).collect() } else { Vec::new() },
        topics: if version < 6 {
            Vec::new()
        } else {
            let by_id = [TopicId::ZERO, TopicId::new([3; 16])]
                .map(|topic_id| DeleteTopicState { name: None, topic_id });
            let by_name = names
                .iter()
                .map(|name| DeleteTopicState { name: Some(name.into()), topic_id: TopicId::ZERO });
            by_name.chain(by_id).collect()
        },
        timeout_ms: 10_000,
    };
    case(&request, version, |cursor, version| {
        let answer: DeleteTopicsResponse<'_> = whole(cursor, version);
        assert!(answer.responses.len() >= 3, "{answer:?}");
    })
}

fn of_create_partitions(version: i16) -> Case {
    let topic = |name: &'static str, count, broker: Option<i32>| CreatePartitionsTopic {
        name: name.into(),
        count,
        assignments: broker.map(|id| vec![CreatePartitionsAssignment { broker_ids: vec![id] }]),
    };
    let request = CreatePartitionsRequest {
        topics: vec![
            topic("absent", 5, None),
            topic("not a name!", 5, None),
            topic("growing", 2 + i32::from(version), None),
            topic(TOPIC, 1, None),
            topic("small", 2, Some(99)),
        ],
        timeout_ms: 10_000,
        validate_only: false,
    };
    case(&request, version, |cursor, version| {
        let answer: CreatePartitionsResponse<'_> = whole(cursor, version);
        assert_eq!(answer.results.len(), 5);
        assert_eq!(answer.results[2].error_code, 0, "{:?}", answer.results[2]);
        assert!(answer.results[0].error_code != 0 && answer.results[4].error_code != 0);
    })
}

fn of_records(version: i16) -> Case {
    let request = DeleteRecordsRequest {
        topics: NAMES
            .iter()
            .map(|name| DeleteRecordsTopic {
                name: (*name).into(),
                partitions: [0, -1, 1 << 40, -2, 1]
                    .into_iter()
                    .zip(0..)
                    .map(|(offset, partition_index)| DeleteRecordsPartition { partition_index, offset })
                    .collect(),
            })
            .collect(),
        timeout_ms: 1000,
    };
    case(&request, version, |cursor, version| drop(whole::<DeleteRecordsResponse<'_>>(cursor, version)))
}

fn of_epochs(version: i16) -> Case {
    let partition = |(partition, leader_epoch): (i32, i32)| epochs::OffsetForLeaderPartition {
        partition,
        current_leader_epoch: if version >= 2 && partition == 2 { 99 } else { -1 },
        leader_epoch,
    };
    let request = epochs::OffsetForLeaderEpochRequest {
        replica_id: if version >= 3 { -1 } else { -2 },
        topics: NAMES
            .iter()
            .map(|name| epochs::OffsetForLeaderTopic {
                topic: (*name).into(),
                partitions: [0, 1, -1, i32::MAX, i32::MIN]
                    .into_iter()
                    .zip(0..)
                    .map(|(e, p)| partition((p, e)))
                    .collect(),
            })
            .collect(),
    };
    case(&request, version, |cursor, version| {
        drop(whole::<epochs::OffsetForLeaderEpochResponse<'_>>(cursor, version));
    })
}

/// Type and name of resources that exist, do not exist and make no sense.
const RESOURCES: [(i8, &str); 8] =
    [(2, TOPIC), (2, "absent"), (2, "not a name!"), (4, "1"), (4, ""), (4, "99"), (8, "1"), (77, "x")];

fn of_configs(version: i16) -> Vec<Case> {
    let describe = |keys: Option<Vec<&'static str>>| DescribeConfigsRequest {
        resources: RESOURCES
            .iter()
            .map(|(resource_type, name)| DescribeConfigsResource {
                resource_type: *resource_type,
                resource_name: (*name).into(),
                configuration_keys: keys.clone().map(|keys| keys.into_iter().map(Into::into).collect()),
            })
            .collect(),
        include_synonyms: version >= 1,
        include_documentation: version >= 3,
    };
    [None, Some(vec![]), Some(vec!["retention.ms", "no.such.key"])]
        .into_iter()
        .map(|keys| {
            case(&describe(keys), version, |cursor, version| {
                let answer: DescribeConfigsResponse<'_> = whole(cursor, version);
                assert_eq!(answer.results.len(), RESOURCES.len());
            })
        })
        .collect()
}

fn of_alter_configs(version: i16) -> Vec<Case> {
    let values = [("retention.ms", Some("5000")), ("no.such.key", Some("x")), ("retention.ms", None)];
    values
        .into_iter()
        .map(|(name, value)| {
            let request = AlterConfigsRequest {
                resources: RESOURCES
                    .iter()
                    .map(|(resource_type, resource)| AlterConfigsResource {
                        resource_type: *resource_type,
                        resource_name: (*resource).into(),
                        configs: vec![AlterableConfig { name: name.into(), value: value.map(Into::into) }],
                    })
                    .collect(),
                validate_only: false,
            };
            case(&request, version, |cursor, version| {
                let answer: AlterConfigsResponse<'_> = whole(cursor, version);
                assert_eq!(answer.responses.len(), RESOURCES.len());
            })
        })
        .collect()
}

fn of_incremental_configs(version: i16) -> Vec<Case> {
    (-1..5)
        .map(|operation| {
            let request = IncrementalAlterConfigsRequest {
                resources: RESOURCES
                    .iter()
                    .map(|(resource_type, resource)| incremental::AlterConfigsResource {
                        resource_type: *resource_type,
                        resource_name: (*resource).into(),
                        configs: vec![incremental::AlterableConfig {
                            name: "cleanup.policy".into(),
                            config_operation: operation,
                            value: Some("compact".into()),
                        }],
                    })
                    .collect(),
                validate_only: false,
            };
            case(&request, version, |cursor, version| {
                let answer: IncrementalAlterConfigsResponse<'_> = whole(cursor, version);
                assert_eq!(answer.responses.len(), RESOURCES.len());
            })
        })
        .collect()
}

fn of_coordinators(version: i16) -> Vec<Case> {
    [0, 1, 2, 9]
        .into_iter()
        .filter(|kind| version >= 1 || *kind == 0)
        .map(|key_type| {
            let request = FindCoordinatorRequest {
                key: if version < 4 { "group".into() } else { "".into() },
                key_type,
                coordinator_keys: if version < 4 { Vec::new() } else { vec!["group".into(), "".into()] },
            };
            case(&request, version, |cursor, version| {
                drop(whole::<FindCoordinatorResponse<'_>>(cursor, version));
            })
        })
        .collect()
}

fn of_producer_ids(version: i16) -> Vec<Case> {
    let request =
        |transactional_id: Option<&'static str>, producer_id, producer_epoch| InitProducerIdRequest {
            transactional_id: transactional_id.map(Into::into),
            transaction_timeout_ms: 1000,
            producer_id,
            producer_epoch,
        };
    let mut requests = vec![request(None, -1, -1), request(Some("tx"), -1, -1), request(Some(""), -1, -1)];
    if version >= 3 {
        requests.extend([request(None, 5, 3), request(Some("tx"), 5, i16::MAX), request(None, -5, -7)]);
    }
    let check = |cursor: &mut Cursor<'_>, version| {
        let answer: InitProducerIdResponse = whole(cursor, version);
        assert_eq!(answer.throttle_time_ms, 0);
    };
    requests.iter().map(|request| case(request, version, check)).collect()
}

fn of_log_dirs(version: i16) -> Vec<Case> {
    let topic =
        |name: &&'static str| DescribableLogDirTopic { topic: (*name).into(), partitions: (-1..5).collect() };
    [None, Some(NAMES.iter().map(topic).collect()), Some(Vec::new())]
        .into_iter()
        .map(|topics| {
            case(&DescribeLogDirsRequest { topics }, version, |cursor, version| {
                let answer: DescribeLogDirsResponse<'_> = whole(cursor, version);
                assert_eq!(answer.results.len(), 1);
            })
        })
        .collect()
}

fn of_moves(version: i16) -> Vec<Case> {
    let topic =
        |name: &&'static str| AlterReplicaLogDirTopic { name: (*name).into(), partitions: (-1..5).collect() };
    let dir = |path: &'static str| AlterReplicaLogDir {
        path: path.into(),
        topics: NAMES.iter().map(topic).collect(),
    };
    [Vec::new(), vec![dir("/nowhere"), dir("")]]
        .into_iter()
        .map(|dirs| {
            case(&AlterReplicaLogDirsRequest { dirs }, version, |cursor, version| {
                let answer: AlterReplicaLogDirsResponse<'_> = whole(cursor, version);
                let codes =
                    answer.results.iter().flat_map(|topic| &topic.partitions).map(|one| one.error_code);
                assert!(codes.into_iter().all(|code| code == ErrorCode::LogDirNotFound.get()), "{answer:?}");
            })
        })
        .collect()
}

fn of_cluster(version: i16) -> Vec<Case> {
    [1, 2, 9]
        .into_iter()
        .filter(|kind| version >= 1 || *kind == 1)
        .map(|endpoint_type| {
            let request = DescribeClusterRequest {
                include_cluster_authorized_operations: true,
                endpoint_type,
                include_fenced_brokers: version >= 2,
            };
            case(&request, version, |cursor, version| {
                drop(whole::<DescribeClusterResponse<'_>>(cursor, version))
            })
        })
        .collect()
}

fn of_producers(version: i16) -> Case {
    let topic =
        |name: &&'static str| TopicRequest { name: (*name).into(), partition_indexes: (-1..5).collect() };
    case(
        &DescribeProducersRequest { topics: NAMES.iter().map(topic).collect() },
        version,
        |cursor, version| {
            let answer: DescribeProducersResponse<'_> = whole(cursor, version);
            let known = answer.topics.iter().flat_map(|topic| &topic.partitions);
            assert!(
                known.into_iter().any(|partition| !partition.active_producers.elements().is_empty()),
                "{answer:?}"
            );
        },
    )
}

fn of_api_versions(version: i16) -> Case {
    let name = if version >= 3 { "versions" } else { "" };
    let request =
        ApiVersionsRequest { client_software_name: name.into(), client_software_version: name.into() };
    case(&request, version, |cursor, version| {
        let answer: ApiVersionsResponse<'_> = whole(cursor, version);
        assert_eq!(answer.api_keys.len(), SERVED.len());
    })
}

fn cases(key: ApiKey, version: i16, id: TopicId, batches: &[Vec<u8>]) -> Vec<Case> {
    match key {
        ApiKey::Produce => of_produce(version, batches),
        ApiKey::Fetch => of_fetch(version, id),
        ApiKey::ListOffsets => vec![of_list_offsets(version)],
        ApiKey::Metadata => of_metadata(version, id),
        ApiKey::FindCoordinator => of_coordinators(version),
        ApiKey::ApiVersions => vec![of_api_versions(version)],
        ApiKey::CreateTopics => vec![of_create_topics(version)],
        ApiKey::DeleteTopics => vec![of_delete_topics(version)],
        ApiKey::DeleteRecords => vec![of_records(version)],
        ApiKey::InitProducerId => of_producer_ids(version),
        ApiKey::OffsetForLeaderEpoch => vec![of_epochs(version)],
        ApiKey::DescribeConfigs => of_configs(version),
        ApiKey::AlterConfigs => of_alter_configs(version),
        ApiKey::AlterReplicaLogDirs => of_moves(version),
        ApiKey::DescribeLogDirs => of_log_dirs(version),
        ApiKey::CreatePartitions => vec![of_create_partitions(version)],
        ApiKey::IncrementalAlterConfigs => of_incremental_configs(version),
        ApiKey::DescribeCluster => of_cluster(version),
        ApiKey::DescribeProducers => vec![of_producers(version)],
        other => groups::cases(other, version)
            .unwrap_or_else(|| panic!("{} is served and not asked here", other.name())),
    }
}

/// A frame of the request.
fn frame(case: &Case, body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    let client_id = Some("versions");
    RequestHeader { api_key: case.key, api_version: case.version, correlation_id: 7, client_id }
        .encode(&mut writer);
    let mut payload = writer.into_bytes().to_vec();
    payload.extend_from_slice(body);
    [&u32::try_from(payload.len()).expect("small").to_be_bytes()[..], &payload].concat()
}

fn connect(broker: &Broker) -> TcpStream {
    let stream = TcpStream::connect(broker.bootstrap()).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    stream.set_read_timeout(Some(LIMIT)).expect("timeout");
    stream
}

fn receive(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut answer = vec![0; usize::try_from(u32::from_be_bytes(size)).expect("size")];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// A topic with configs, records and a producer, others to change, and the id of the first.
fn prepare(broker: &Broker) -> TopicId {
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    let configs = vec![CreatableTopicConfig { name: "retention.ms".into(), value: Some("-1".into()) }];
    let rich = CreatableTopic {
        name: TOPIC.into(),
        num_partitions: 4,
        replication_factor: 1,
        assignments: Vec::new(),
        configs,
    };
    let request = CreateTopicsRequest { topics: vec![rich], timeout_ms: 20_000, validate_only: false };
    let reply = client.call(7, &request).expect("create");
    let answer: CreateTopicsResponse<'_> = reply.message().expect("answer");
    assert_eq!(answer.topics[0].error_code, 0, "{answer:?}");
    client.create_topic("growing", 1).expect("create");
    client.create_topic("small", 1).expect("create");
    let produced = client.produce(TOPIC, 0, -1, &batch(Some((4000, 0)))).expect("produce").expect("answer");
    assert_eq!(produced.error_code, 0);
    answer.topics[0].topic_id
}

/// Records of each kind: fine, of a producer that is out of order, damaged, none.
fn all_batches() -> Vec<Vec<u8>> {
    let mut damaged = batch(None);
    let end = damaged.len() - 1;
    damaged[end] ^= 1;
    let mut old = batch(None);
    old[16] = 1;
    vec![batch(None), batch(Some((4000, 99))), damaged, old]
}

fn every_version(shards: u16) {
    let mut broker = Broker::start(shards, &["broker.id=1", NO_DELAY]);
    let id = prepare(&broker);
    let batches = all_batches();
    let mut stream = connect(&broker);
    let mut answered = 0;
    for api in SERVED {
        for version in api.min..=api.max {
            for case in cases(api.key, version, id, &batches) {
                stream.write_all(&frame(&case, &case.body)).expect("send");
                let answer = receive(&mut stream);
                let name = api.key.name();
                let answer = answer
                    .unwrap_or_else(|error| panic!("{name} version {version}: {error}\n{}", broker.log()));
                let mut cursor = Cursor::new(&answer);
                let correlation_id = decode_response_header(api.key, version, &mut cursor).expect("header");
                assert_eq!(correlation_id, 7, "{name} version {version}");
                (case.check)(&mut cursor, version);
                answered += 1;
            }
        }
    }
    assert!(answered > 150, "{answered}");
    eprintln!("{answered} requests");
    assert!(broker.is_running(), "{}", broker.log());
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

#[test]
fn every_version_is_answered_in_its_own_form_on_one_shard() {
    every_version(1);
}

#[test]
fn every_version_is_answered_in_its_own_form_on_two_shards() {
    every_version(2);
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).expect("small")).expect("small")
    }
}

/// Values at which lengths, counts, offsets and timeouts break.
const BAD: [&[u8]; 8] = [
    &[0xff; 4],
    &[0x7f, 0xff, 0xff, 0xff],
    &[0x80, 0, 0, 0],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0; 4],
    &[0xff; 8],
    &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[1],
];

fn damage(random: &mut Random, body: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let at = random.below(body.len() + 1);
        let bad = BAD[random.below(BAD.len())];
        match random.below(6) {
            0 => body.truncate(at),
            1 => drop(body.splice(at..at, bad.iter().copied())),
            2 | 3 => {
                let end = (at + bad.len()).min(body.len());
                drop(body.splice(at..end, bad.iter().copied()));
            }
            4 => {
                let more = usize::from(random.next().to_be_bytes()[0]);
                body.extend((0..more).map(|_| random.next().to_be_bytes()[0]));
            }
            _ => {
                if let Some(byte) = body.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A client that asks as always, and is answered.
fn probe(broker: &Broker) {
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    let fetched = client.fetch(TOPIC, 0, 0, Duration::from_millis(1)).expect("fetch");
    assert!(fetched.error_code == 0 || fetched.error_code == 1, "{fetched:?}");
}

fn damaged_bodies(shards: u16, seed: u64) {
    let mut broker = Broker::start(shards, &["broker.id=1", "auto.create.topics.enable=false", NO_DELAY]);
    let id = prepare(&broker);
    let batches = all_batches();
    let all: Vec<Case> = SERVED
        .iter()
        .flat_map(|api| (api.min..=api.max).flat_map(|version| cases(api.key, version, id, &batches)))
        .collect();
    let (mut random, started) = (Random(seed), Instant::now());
    let budget = Duration::from_millis(from_environment("ODRADEK_HOSTILE_MS", 4000));
    let before = broker.resident_bytes();
    let mut stream = connect(&broker);
    let mut sent = 0_u64;
    let mut last = String::new();
    while started.elapsed() < budget {
        let case = &all[random.below(all.len())];
        let mut body = case.body.clone();
        damage(&mut random, &mut body);
        let bytes = frame(case, &body);
        // A long wait that was asked for is no fault.
        stream.set_read_timeout(Some(Duration::from_millis(250))).expect("timeout");
        if stream.write_all(&bytes).is_err() || receive(&mut stream).is_err() {
            assert!(broker.is_running(), "seed {seed}, request {sent}: {last}\n{}", broker.log());
            stream = connect(&broker);
        }
        last = format!("{} version {} {body:02x?}", case.key.name(), case.version);
        sent += 1;
        if sent.is_multiple_of(200) {
            probe(&broker);
        }
    }
    probe(&broker);
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < 256 << 20, "seed {seed}: memory grew by {grown}");
    assert!(broker.is_running(), "seed {seed}, request {sent}: {last}\n{}", broker.log());
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    eprintln!("{sent} requests");
}

#[test]
fn damaged_bodies_end_nothing_on_one_shard() {
    damaged_bodies(1, from_environment("ODRADEK_SEED", u64::from(std::process::id())));
}

#[test]
fn damaged_bodies_end_nothing_on_two_shards() {
    damaged_bodies(2, from_environment("ODRADEK_SEED", u64::from(std::process::id())));
}

//! Requests that name a partition twice. Kafka 3.9 reads most of them into maps: the last mention counts, and the answer
//! holds each partition once; where it walks a list, each mention is answered.

use broker::handlers::Answer;
use protocol::error::ErrorCode;
use protocol::messages::offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use protocol::messages::*;
use protocol::types::*;
use storage::io::Span;

use crate::harness::*;

/// One entry per mention: topic, partition, records.
/// A topic and what is said of its partitions.
type Mention<'a> = (&'static str, &'a [(i32, &'a [u8])]);

fn mentions(acks: i16, entries: &[Mention<'_>]) -> ProduceRequest<'static> {
    let topic_data = entries
        .iter()
        .map(|(name, partitions)| TopicProduceData {
            name: (*name).into(),
            partition_data: partitions
                .iter()
                .map(|(index, records)| PartitionProduceData {
                    index: *index,
                    records: Some(Records::new(records.to_vec().leak())),
                })
                .collect(),
        })
        .collect();
    ProduceRequest { transactional_id: None, acks, timeout_ms: 30_000, topic_data }
}

/// Topic, and index, error and base offset of each of its partitions.
type Told = Vec<(String, Vec<(i32, i16, i64)>)>;

fn told(answer: &ProduceResponse<'static>) -> Told {
    let part = |part: &PartitionProduceResponse<'static>| (part.index, part.error_code, part.base_offset);
    let topics = answer.responses.iter();
    topics
        .map(|topic| (topic.name.to_string(), topic.partition_responses.iter().map(part).collect()))
        .collect()
}

fn stored(client: &Client, topic: &str, partition: i32) -> Vec<Vec<u8>> {
    values(&client.fetch_one(topic, partition, 0))
}

#[test]
fn the_last_batch_of_a_partition_is_appended_in_every_version_of_produce() {
    for shards in SHARDS {
        for version in 3..=11 {
            for acks in [1, -1] {
                let broker = Broker::new(shards);
                broker.create("t", 2, &[]);
                broker.create("u", 1, &[]);
                let client = broker.client();
                let (a, b, c, d) = (batch(&[b"a"]), batch(&[b"b"]), batch(&[b"c"]), batch(&[b"d"]));
                let request = mentions(
                    acks,
                    &[("t", &[(1, &a), (0, &a), (1, &b)]), ("u", &[(0, &c)]), ("t", &[(0, &d)])],
                );
                let answer: ProduceResponse<'static> = client.call(version, &request);
                let expected =
                    vec![("t".to_owned(), vec![(1, 0, 0), (0, 0, 0)]), ("u".to_owned(), vec![(0, 0, 0)])];
                assert_eq!(told(&answer), expected, "version {version}");
                assert_eq!(stored(&client, "t", 0), [b"d"]);
                assert_eq!(stored(&client, "t", 1), [b"b"]);
                assert_eq!(stored(&client, "u", 0), [b"c"]);
            }
        }
    }
}

/// Kafka appends the last valid batch and answers with the fault of the last invalid one, in whichever order they come.
#[test]
fn a_refused_batch_of_a_partition_is_what_its_answer_tells() {
    for version in 3..=11 {
        for is_last in [false, true] {
            let broker = Broker::new(2);
            broker.create("t", 2, &[]);
            let client = broker.client();
            let (good, bad): (_, &[u8]) = (batch(&[b"good"]), b"not a batch at all");
            let entries: [(i32, &[u8]); 2] =
                if is_last { [(0, &good), (0, bad)] } else { [(0, bad), (0, &good)] };
            let answer: ProduceResponse<'static> = client.call(version, &mentions(-1, &[("t", &entries)]));
            let [(_, parts)] = told(&answer).try_into().unwrap();
            assert_eq!(parts.len(), 1);
            assert_ne!(parts[0].1, 0, "version {version}");
            assert_eq!((parts[0].0, parts[0].2), (0, -1));
            assert_eq!(stored(&client, "t", 0), [b"good"]);
        }
    }
}

#[test]
fn a_long_request_is_told_apart_as_a_short_one_is() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 3, &[]);
        let client = broker.client();
        let batches: Vec<_> = (0..500).map(|at: i32| batch(&[at.to_string().as_bytes()])).collect();
        let parts: Vec<(i32, &[u8])> = (0..).zip(&batches).map(|(at, batch)| (at % 5, &batch[..])).collect();
        let entries: Vec<_> = parts.chunks(50).map(|chunk| ("t", chunk)).collect();
        let answer: ProduceResponse<'static> = client.call(9, &mentions(-1, &entries));
        let unknown = ErrorCode::UnknownTopicOrPartition.get();
        let parts = vec![(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, unknown, -1), (4, unknown, -1)];
        assert_eq!(told(&answer), [("t".to_owned(), parts)]);
        for partition in 0..3 {
            assert_eq!(stored(&client, "t", partition), [(495 + partition).to_string().as_bytes()]);
        }
    }
}

/// More partitions than an owner takes in one message, more than once.
#[test]
fn hundreds_of_partitions_of_one_request_are_each_appended_once() {
    for shards in [1, 2] {
        let broker = Broker::new(shards);
        broker.create("t", 300, &[]);
        let client = broker.client();
        for round in 0..2 {
            let parts: Vec<_> = (0..300).map(|partition| ("t", partition, batch(&[b"x"]))).collect();
            let answered = client.produce(9, -1, parts);
            let got: Vec<_> =
                answered.iter().map(|part| (part.index, part.error_code, part.base_offset)).collect();
            let expected: Vec<_> = (0..300).map(|partition| (partition, 0, round)).collect();
            assert_eq!(got, expected);
        }
    }
}

/// Without and with a session; in the session the partition has one place too.
#[test]
fn a_fetch_serves_the_last_mention_in_the_place_of_the_first() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    for value in [b"a", b"b", b"c"] {
        client.produce_one("t", 0, batch(&[value]));
    }
    let topic_id = broker.topic("t").id;
    for version in 4..=17 {
        for session_epoch in [-1, 0] {
            let id = if version >= 13 { topic_id } else { TopicId::ZERO };
            let name = if version >= 13 { "" } else { "t" };
            let mut topics = FetchTopics::default();
            topics.push(name, id, [part(0, 0), part(1, 0), part(0, 2)]);
            let request = FetchRequest {
                min_bytes: 0,
                max_bytes: 50 << 20,
                session_epoch: if version >= 7 { session_epoch } else { -1 },
                topics,
                ..FetchRequest::default()
            };
            let answer: FetchResponse<'static> = client.call(version, &request);
            let parts: Vec<_> = answer.responses.iter().flat_map(|topic| &topic.partitions).collect();
            assert_eq!(
                parts.iter().map(|part| part.partition_index).collect::<Vec<_>>(),
                [0, 1],
                "v{version}"
            );
            assert_eq!(values(parts[0]), [b"c"], "v{version}");
            if answer.session_id == 0 {
                continue;
            }
            // The session goes on where its one place of the partition stands: nothing new.
            let mut topics = FetchTopics::default();
            topics.push(name, id, [part(0, 0), part(0, 3)]);
            let session_id = answer.session_id;
            let next = FetchRequest { session_id, session_epoch: 1, topics, ..request };
            let answer: FetchResponse<'static> = client.call(version, &next);
            assert!(answer.responses.is_empty(), "v{version}");
        }
    }
}

#[test]
fn list_offsets_refuses_both_mentions_but_in_version_0() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    let topic = |partitions| ListOffsetsTopic { name: "t".into(), partitions };
    for version in 0..=9 {
        let of_version_0 = ListOffsetsPartition { max_num_offsets: 1, ..ListOffsetsPartition::default() };
        let initial = if version == 0 { of_version_0 } else { ListOffsetsPartition::default() };
        let asked =
            |partition_index| ListOffsetsPartition { partition_index, timestamp: -1, ..initial.clone() };
        let topics = vec![topic(vec![asked(0), asked(1)]), topic(vec![asked(0)])];
        let request = ListOffsetsRequest { replica_id: -1, isolation_level: 0, topics };
        let answer: ListOffsetsResponse<'static> = client.call(version, &request);
        let got: Vec<_> = answer.topics.iter().flat_map(|topic| &topic.partitions).collect();
        let got: Vec<_> = got.iter().map(|part| (part.partition_index, part.error_code)).collect();
        let refused = if version == 0 { 0 } else { ErrorCode::InvalidRequest.get() };
        assert_eq!(got, [(0, refused), (1, 0), (0, refused)], "version {version}");
    }
}

#[test]
fn delete_records_takes_the_last_offset_and_answers_once() {
    for version in 0..=2 {
        let broker = Broker::new(2);
        broker.create("t", 2, &[]);
        let client = broker.client();
        for _ in 0..5 {
            client.produce_one("t", 0, batch(&[b"x"]));
        }
        let part = |partition_index, offset| DeleteRecordsPartition { partition_index, offset };
        let topic = |name: &'static str, partitions| DeleteRecordsTopic { name: name.into(), partitions };
        let topics = vec![
            topic("t", vec![part(0, 4), part(9, 0)]),
            topic("none", vec![part(0, 0), part(0, 1)]),
            topic("t", vec![part(1, 0), part(0, 2)]),
        ];
        let answer: DeleteRecordsResponse<'static> =
            client.call(version, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
        let part =
            |part: &DeleteRecordsPartitionResult| (part.partition_index, part.low_watermark, part.error_code);
        let got: Vec<(&str, Vec<_>)> = answer
            .topics
            .iter()
            .map(|topic| (&*topic.name, topic.partitions.iter().map(part).collect()))
            .collect();
        let expected = vec![("t", vec![(0, 2, 0), (9, -1, 3), (1, 0, 0)]), ("none", vec![(0, -1, 3)])];
        assert_eq!(got, expected, "version {version}");
    }
}

#[test]
fn leader_epochs_and_producers_are_told_for_each_mention() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    client.produce_one("t", 0, idempotent(7, 0, 0, 1));
    let partition = |partition| OffsetForLeaderPartition {
        partition,
        leader_epoch: 0,
        ..OffsetForLeaderPartition::default()
    };
    let topic = |partitions| OffsetForLeaderTopic { topic: "t".into(), partitions };
    for version in 0..=4 {
        let topics = vec![topic(vec![partition(0), partition(0)]), topic(vec![partition(0)])];
        let request = OffsetForLeaderEpochRequest { replica_id: -1, topics };
        let answer: OffsetForLeaderEpochResponse<'static> = client.call(version, &request);
        let ends: Vec<Vec<_>> = answer
            .topics
            .iter()
            .map(|topic| topic.partitions.iter().map(|part| (part.error_code, part.end_offset)).collect())
            .collect();
        assert_eq!(ends, [vec![(0, 1), (0, 1)], vec![(0, 1)]], "version {version}");
    }
    let topics = vec![TopicRequest { name: "t".into(), partition_indexes: vec![0, 0] }];
    let answer: DescribeProducersResponse<'static> = client.call(0, &DescribeProducersRequest { topics });
    let producers: Vec<_> =
        answer.topics[0].partitions.iter().map(|part| part.active_producers.elements().len()).collect();
    assert_eq!(producers, [1, 1]);
}

/// A small frame can name one partition a hundred thousand times: the answer tells its producers each time and holds them
/// once.
#[test]
fn the_producers_of_a_partition_that_is_named_often_are_gathered_once() {
    for shards in [1, 2] {
        let broker = Broker::new(shards);
        broker.create("t", 2, &[]);
        let client = broker.client();
        for producer in 0..100 {
            client.produce_one("t", 1, idempotent(producer, 0, 0, 1));
        }
        let topic =
            |name: &'static str, partition_indexes| TopicRequest { name: name.into(), partition_indexes };
        let topics = vec![topic("t", vec![1; 5000]), topic("none", vec![0; 3]), topic("t", vec![0, 1])];
        let answer = client.send(0, &DescribeProducersRequest { topics });
        let Answer::Reply(response) = &answer else { panic!("{answer:?}") };
        let large = response.spans.iter().filter_map(|span| match span {
            Span::Memory(bytes) if bytes.len() > 2000 => Some(bytes.as_ptr()),
            _ => None,
        });
        let large: Vec<_> = large.collect();
        assert_eq!(large.len(), 5001);
        assert!(large.iter().all(|at| *at == large[0]), "one piece of memory");
        let answer: DescribeProducersResponse<'static> = read(0, answer);
        let told = |topic: &TopicResponse<'static>| -> Vec<_> {
            let partitions = topic.partitions.iter();
            partitions.map(|part| (part.error_code, part.active_producers.elements().len())).collect()
        };
        let told: Vec<_> = answer.topics.iter().map(told).collect();
        let unknown = ErrorCode::UnknownTopicOrPartition.get();
        assert_eq!(told, [vec![(0, 100); 5000], vec![(unknown, 0); 3], vec![(0, 0), (0, 100)]]);
        // Beyond 64 MiB of repetitions a mention is refused.
        let topics = vec![topic("t", vec![1; 30_000]), topic("t", vec![0])];
        let answer: DescribeProducersResponse<'static> = client.call(0, &DescribeProducersRequest { topics });
        let parts = &answer.topics[0].partitions;
        let told = parts.iter().filter(|part| part.error_code == 0).count();
        assert!((10_000..20_000).contains(&told), "{told}");
        assert_eq!(parts[29_999].error_code, ErrorCode::InvalidRequest.get());
        assert!(parts[29_999].error_message.is_some());
        assert_eq!(answer.topics[1].partitions[0].error_code, 0);
    }
}

/// Version 0 makes an owner look at each segment: a question is asked once, and a partition has a bound of them.
#[test]
fn old_list_offsets_asks_each_question_once_and_few_of_a_partition() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    client.produce_one("t", 0, batch(&[b"x"]));
    let asked = |(partition_index, timestamp)| ListOffsetsPartition {
        partition_index,
        timestamp,
        max_num_offsets: 5,
        ..ListOffsetsPartition::default()
    };
    let mut partitions: Vec<_> = (0..40).map(|at| (0, at % 20)).collect();
    partitions.extend([(1, -1), (1, -3), (0, -1)]);
    let topics = vec![ListOffsetsTopic {
        name: "t".into(),
        partitions: partitions.iter().copied().map(asked).collect(),
    }];
    let request = ListOffsetsRequest { replica_id: -1, isolation_level: 0, topics };
    let answer: ListOffsetsResponse<'static> = client.call(0, &request);
    let told: Vec<_> = answer.topics[0].partitions.iter().map(|part| part.error_code).collect();
    let refused = ErrorCode::InvalidRequest.get();
    let expected: Vec<_> = (0..40).map(|at| if at % 20 < 16 { 0 } else { refused }).collect();
    assert_eq!(told[..40], expected);
    assert_eq!(told[40..], [0, ErrorCode::UnsupportedVersion.get(), refused]);
    assert_eq!(answer.topics[0].partitions[40].old_style_offsets.elements(), [0]);
}

//! The bytes of a request, and how a schedule goes over connections.

use super::*;
use crate::prepared::Prepared;
use protocol::messages::{PartitionProduceData, ProduceRequest, Records, TopicProduceData};

fn load() -> Load {
    Load {
        topic: "t".to_owned(),
        partitions: 4,
        connections: 2,
        in_flight: 5,
        batches_per_request: 1,
        acks: -1,
        shape: Shape { record_bytes: 100, keys: 0 },
        batch_records: 3,
        schedule: None,
        records_max: 100,
        until: u64::MAX,
        run: 1,
    }
}

fn connected(load: Load) -> Producer {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    Producer::new(load, Clock::start(), address, Duration::from_secs(5)).expect("connect")
}

#[test]
fn a_request_has_the_bytes_that_its_message_makes() {
    let prepared = |seed| Prepared::new(load().shape, 3, seed).expect("batch");
    let mut outgoing = Outgoing { batches: vec![prepared(1), prepared(2)], ..Outgoing::default() };
    let sent: Vec<Sent> = [3, 9].map(|partition| Sent { partition, first: 0, count: 3, made_at: 0 }).to_vec();
    encode(&load(), 77, &sent, &mut outgoing);
    let data = |(partition, batch): (i32, &'static [u8])| PartitionProduceData {
        index: partition,
        records: Some(Records::new(batch)),
    };
    let batches: Vec<&'static [u8]> =
        outgoing.batches.iter().map(|batch| -> &'static [u8] { batch.bytes().to_vec().leak() }).collect();
    let partition_data = [3, 9].into_iter().zip(batches.iter().copied()).map(data).collect();
    let topic_data = vec![TopicProduceData { name: "t".into(), partition_data }];
    let request = ProduceRequest { transactional_id: None, acks: -1, timeout_ms: 30_000, topic_data };
    let mut writer = Writer::new();
    let (api_key, client_id) = (ApiKey::Produce, Some("odradek-bench"));
    RequestHeader { api_key, api_version: PRODUCE_VERSION, correlation_id: 77, client_id }
        .encode(&mut writer);
    request.encode(&mut writer, PRODUCE_VERSION);
    let [first, second] = outgoing.cuts.as_slice() else { panic!("two cuts") };
    let head = &outgoing.head;
    let bytes = [&head[..*first], batches[0], &head[*first..*second], batches[1], &head[*second..]].concat();
    assert_eq!(bytes, writer.into_frame());
}

#[test]
fn each_partition_belongs_to_one_connection() {
    let mut producer = connected(load());
    let partitions = |producer: &mut Producer, lane| -> Vec<u64> {
        (0..4).flat_map(|_| producer.next_of(lane)).map(|batch| batch.partition).collect()
    };
    assert_eq!(partitions(&mut producer, 0), [0, 2, 0, 2]);
    assert_eq!(partitions(&mut producer, 1), [1, 3, 1, 3]);
    assert!(producer.acknowledged.ordered);
    let mut many = connected(Load { connections: 6, ..load() });
    assert_eq!(partitions(&mut many, 5), [1, 2, 3, 0]);
    assert!(!many.acknowledged.ordered, "a partition over several connections has no order");
}

#[test]
fn three_connections_reach_all_of_four_partitions() {
    let mut producer = connected(Load { connections: 3, records_max: 10_000, ..load() });
    let mut turns = |lane| -> Vec<u64> {
        (0..4).flat_map(|_| producer.next_of(lane)).map(|batch| batch.partition).collect()
    };
    assert_eq!([turns(0), turns(1), turns(2)], [[0, 3, 0, 3], [1, 1, 1, 1], [2, 2, 2, 2]]);
}

#[test]
fn a_run_ends_at_its_number_of_records() {
    let mut producer = connected(Load { records_max: 8, ..load() });
    let counts: Vec<u64> = (0..5).flat_map(|_| producer.next_of(0)).map(|batch| batch.count).collect();
    assert_eq!(counts, [3, 3, 2]);
}

#[test]
fn an_answer_to_something_else_or_with_an_error_ends_the_run() {
    let sent = [Sent { partition: 3, first: 0, count: 1, made_at: 0 }];
    let answer = |index, error_code| {
        let mut writer = Writer::new();
        protocol::api::response_header(ApiKey::Produce, PRODUCE_VERSION, 5, &mut writer);
        let part = protocol::messages::PartitionProduceResponse {
            index,
            error_code,
            base_offset: 42,
            ..Default::default()
        };
        let topic =
            protocol::messages::TopicProduceResponse { name: "t".into(), partition_responses: vec![part] };
        let response = ProduceResponse { responses: vec![topic], ..Default::default() };
        response.encode(&mut writer, PRODUCE_VERSION);
        writer.into_bytes()
    };
    assert_eq!(offsets_of(&answer(3, 0), 5, &sent).expect("offsets"), [42]);
    let error = |answer: &[u8], correlation_id| {
        offsets_of(answer, correlation_id, &sent).expect_err("an error").to_string()
    };
    assert!(error(&answer(3, 0), 6).contains("before request 6"));
    assert!(error(&answer(4, 0), 5).contains("partition 3"));
    assert!(error(&answer(3, 56), 5).contains("KAFKA_STORAGE_ERROR"));
    assert!(!error(&answer(3, 0)[..9], 5).is_empty());
}

//! Idempotent producers: protocol.md 5, statements 32 to 38; F29.

use protocol::error::ErrorCode;
use protocol::messages::*;

use crate::harness::*;

struct Producer {
    broker: Broker,
}

impl Producer {
    fn new(shards: u16) -> Self {
        let broker = Broker::new(shards);
        broker.create("t", 1, &[]);
        Self { broker }
    }

    fn send(&self, epoch: i16, sequence: i32, records: usize) -> (ErrorCode, i64) {
        let part = self.broker.client().produce_one("t", 0, idempotent(9, epoch, sequence, records));
        (ErrorCode::new(part.error_code).unwrap(), part.base_offset)
    }

    fn end(&self) -> i64 {
        self.broker.client().fetch_one("t", 0, 0).high_watermark
    }
}

#[test]
fn the_last_five_batches_are_known_again_in_any_order() {
    // 32, 33, F29
    for shards in SHARDS {
        let producer = Producer::new(shards);
        for round in 0..6 {
            assert_eq!(producer.send(0, round * 3, 3), (ErrorCode::None, i64::from(round) * 3));
        }
        for round in [5, 1, 3, 2, 4] {
            assert_eq!(producer.send(0, round * 3, 3), (ErrorCode::None, i64::from(round) * 3));
        }
        assert_eq!(producer.send(0, 0, 3), (ErrorCode::OutOfOrderSequenceNumber, -1));
        assert_eq!(producer.end(), 18);
    }
}

#[test]
fn a_duplicate_tells_the_time_of_the_stored_batch() {
    let producer = Producer::new(1);
    producer.send(0, 0, 1);
    let part = producer.broker.client().produce_one("t", 0, idempotent(9, 0, 0, 1));
    assert_eq!(part.log_append_time_ms, 1_700_000_000_000);
}

#[test]
fn gaps_and_overlaps_are_out_of_order() {
    // 34
    let producer = Producer::new(2);
    assert_eq!(producer.send(0, 0, 3), (ErrorCode::None, 0));
    assert_eq!(producer.send(0, 4, 1).0, ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(producer.send(0, 1, 4).0, ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(producer.send(0, 3, 1), (ErrorCode::None, 3));
}

#[test]
fn a_new_epoch_begins_at_zero_and_an_old_one_is_fenced() {
    // 35, 36
    let producer = Producer::new(2);
    producer.send(0, 0, 1);
    assert_eq!(producer.send(1, 3, 1).0, ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(producer.send(1, 0, 1), (ErrorCode::None, 1));
    assert_eq!(producer.send(0, 1, 1).0, ErrorCode::InvalidProducerEpoch);
}

#[test]
fn an_unknown_producer_begins_anywhere_and_sequences_wrap() {
    // 37, 38
    let producer = Producer::new(1);
    assert_eq!(producer.send(0, 100, 1), (ErrorCode::None, 0));
    let client = producer.broker.client();
    let send = |sequence| {
        let part = client.produce_one("t", 0, idempotent(10, 0, sequence, 2));
        (ErrorCode::new(part.error_code).unwrap(), part.base_offset)
    };
    assert_eq!(send(i32::MAX - 1), (ErrorCode::None, 1));
    assert_eq!(send(0), (ErrorCode::None, 3));
}

#[test]
fn describe_producers_tells_the_last_sequence() {
    let producer = Producer::new(2);
    producer.send(3, 0, 4);
    let client = producer.broker.client();
    let topics = vec![TopicRequest { name: "t".into(), partition_indexes: vec![0, 7] }];
    let answer: DescribeProducersResponse<'static> = client.call(0, &DescribeProducersRequest { topics });
    let [known, unknown] = answer.topics[0].partitions.as_slice() else { panic!("two partitions") };
    let state = &known.active_producers.elements()[0];
    assert_eq!((state.producer_id, state.producer_epoch, state.last_sequence), (9, 3, 3));
    assert_eq!((state.coordinator_epoch, state.current_txn_start_offset), (-1, -1));
    assert_eq!(unknown.error_code, ErrorCode::UnknownTopicOrPartition.get());
}

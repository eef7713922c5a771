//! ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeLogDirs: protocol.md 5, statements 70 to 74, 82; F44 to F46,
//! F51; V-50.

use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression};
use protocol::types::*;

use crate::harness::*;

fn list(client: &Client, version: i16, partition: i32, timestamp: i64) -> ListOffsetsPartitionResponse {
    let asked =
        ListOffsetsPartition { partition_index: partition, timestamp, ..ListOffsetsPartition::default() };
    list_all(client, version, vec![asked]).remove(0)
}

fn list_all(
    client: &Client,
    version: i16,
    partitions: Vec<ListOffsetsPartition>,
) -> Vec<ListOffsetsPartitionResponse> {
    let topics = vec![ListOffsetsTopic { name: "t".into(), partitions }];
    let request = ListOffsetsRequest { replica_id: -1, isolation_level: 0, topics };
    let mut answer: ListOffsetsResponse<'static> = client.call(version, &request);
    answer.topics.remove(0).partitions
}

fn found(response: &ListOffsetsPartitionResponse) -> (i16, i64, i64) {
    (response.error_code, response.offset, response.timestamp)
}

#[test]
fn latest_earliest_and_times_are_found() {
    // 70, F44, F45
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 2, &[]);
        let client = broker.client();
        for time in [2, 4, 6, 8] {
            client.produce_one("t", 1, batch_at(time, &[b"x"]));
        }
        for version in 1..=9 {
            assert_eq!(found(&list(&client, version, 1, -1)), (0, 4, -1));
            assert_eq!(found(&list(&client, version, 1, -2)), (0, 0, -1));
            assert_eq!(found(&list(&client, version, 1, 3)), (0, 1, 4));
            assert_eq!(found(&list(&client, version, 1, 9)), (0, -1, -1));
            assert_eq!(found(&list(&client, version, 0, 0)), (0, -1, -1));
        }
        assert_eq!(list(&client, 4, 1, -1).leader_epoch, 0);
        assert_eq!(list(&client, 4, 1, 3).leader_epoch, 0);
    }
}

#[test]
fn special_timestamps_have_their_first_version() {
    // 71
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    assert_eq!(found(&list(&client, 7, 0, -3)), (0, -1, -1));
    for time in [5, 9, 7, 9] {
        client.produce_one("t", 0, batch_at(time, &[b"x"]));
    }
    let unsupported = ErrorCode::UnsupportedVersion.get();
    for (timestamp, since) in [(-3, 7), (-4, 8), (-5, 9), (-6, 10), (-7, 10)] {
        for version in 1..=9 {
            let code = list(&client, version, 0, timestamp).error_code;
            assert_eq!(code, if version < since { unsupported } else { 0 }, "{timestamp} at {version}");
        }
    }
    let asked = ListOffsetsPartition { timestamp: -4, ..ListOffsetsPartition::default() };
    let topics = vec![ListOffsetsTopic { name: "unknown".into(), partitions: vec![asked] }];
    let request = ListOffsetsRequest { replica_id: -1, isolation_level: 0, topics };
    for (version, code) in [(7, unsupported), (8, ErrorCode::UnknownTopicOrPartition.get())] {
        let answer: ListOffsetsResponse<'static> = client.call(version, &request);
        assert_eq!(answer.topics[0].partitions[0].error_code, code, "the version is judged before the topic");
    }
    assert_eq!(found(&list(&client, 7, 0, -3)), (0, 1, 9));
    assert_eq!(found(&list(&client, 8, 0, -4)), (0, 0, -1));
    assert_eq!(found(&list(&client, 9, 0, -5)), (0, -1, -1));
}

#[test]
fn a_time_inside_a_compressed_batch_gives_that_record() {
    // 73, F46
    for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let broker = Broker::new(1);
        broker.create("t", 1, &[]);
        let client = broker.client();
        let mut builder = BatchBuilder::new().compression(Compression::default_level(codec));
        for time in [0, 100, 200, 300] {
            builder.push(TimestampMs::new(time), None, Some(b"v"), &[]);
        }
        client.produce_one("t", 0, builder.build().unwrap());
        assert_eq!(found(&list(&client, 5, 0, 150)), (0, 2, 200), "{codec:?}");
        assert_eq!(found(&list(&client, 7, 0, -3)), (0, 3, 300), "{codec:?}");
    }
}

#[test]
fn version_zero_lists_ends_and_segments() {
    let broker = Broker::new(1);
    broker.create("t", 1, &[("segment.bytes", "250")]);
    let client = broker.client();
    for _ in 0..3 {
        client.produce_one("t", 0, batch(&[&[1; 100]]));
    }
    let list = |timestamp, max_num_offsets| {
        let asked = ListOffsetsPartition { timestamp, max_num_offsets, ..ListOffsetsPartition::default() };
        list_all(&client, 0, vec![asked]).remove(0)
    };
    assert_eq!(list(-1, 1).old_style_offsets.elements(), [3]);
    assert_eq!(list(-1, 10).old_style_offsets.elements(), [3, 2, 1, 0]);
    assert_eq!(list(-2, 10).old_style_offsets.elements(), [0]);
    assert_eq!(list(5, 10).old_style_offsets.elements(), &[0i64; 0]);
    assert_eq!(list(-3, 10).error_code, ErrorCode::UnsupportedVersion.get());
    // Segments may begin below the log's start; nobody is sent there.
    delete(&client, "t", 1);
    assert_eq!(list(-1, 10).old_style_offsets.elements(), [3, 2, 1, 1]);
    delete(&client, "t", 2);
    assert_eq!(list(-2, 10).old_style_offsets.elements(), [2]);
    assert_eq!(list(-1, 10).old_style_offsets.elements()[0], 3);
    assert!(list(-1, 10).old_style_offsets.elements().iter().all(|offset| *offset >= 2));
}

#[test]
fn epochs_doubles_and_unknown_partitions_are_refused() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    broker.lead(&broker.topic("t"), 1, 3);
    let client = broker.client();
    let asked = |partition_index, current_leader_epoch| ListOffsetsPartition {
        partition_index,
        current_leader_epoch,
        timestamp: -1,
        ..ListOffsetsPartition::default()
    };
    let codes = |parts: Vec<ListOffsetsPartition>| {
        list_all(&client, 5, parts).iter().map(|part| part.error_code).collect::<Vec<_>>()
    };
    assert_eq!(codes(vec![asked(1, 2), asked(0, 4), asked(9, -1)]), [74, 75, 3]);
    assert_eq!(codes(vec![asked(1, -1), asked(0, -1), asked(1, -1)]), [42, 0, 42]);
}

#[test]
fn latest_is_never_above_what_can_be_read() {
    // F51
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    for _ in 0..20 {
        let outcome = client.accept(client.request(9, &produce_request(1, &[("t", 1, batch(&[b"a"]))])));
        let latest = list(&client, 5, 1, -1).offset;
        let data = client.fetch_one("t", 1, latest.max(1) - 1);
        assert_eq!(data.error_code, 0);
        assert!(latest == 0 || !values(&data).is_empty());
        client.finish(outcome);
    }
}

fn epoch_end(client: &Client, version: i16, leader_epoch: i32) -> (i16, i32, i64) {
    let partitions = vec![offset_for_leader_epoch::OffsetForLeaderPartition {
        partition: 0,
        current_leader_epoch: -1,
        leader_epoch,
    }];
    let topics = vec![offset_for_leader_epoch::OffsetForLeaderTopic { topic: "t".into(), partitions }];
    let request = OffsetForLeaderEpochRequest { topics, ..OffsetForLeaderEpochRequest::default() };
    let answer: OffsetForLeaderEpochResponse<'static> = client.call(version, &request);
    let end = &answer.topics[0].partitions[0];
    (end.error_code, end.leader_epoch, end.end_offset)
}

#[test]
fn leader_epochs_end_where_the_next_begins() {
    // 74, V-31
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    let topic = broker.topic("t");
    broker.lead(&topic, 0, 2);
    client.produce_one("t", 0, batch(&[b"a"]));
    client.produce_one("t", 0, batch(&[b"b"]));
    broker.lead(&topic, 0, 5);
    client.produce_one("t", 0, batch(&[b"c"]));
    broker.lead(&topic, 0, 7);
    assert_eq!(epoch_end(&client, 4, 2), (0, 2, 2));
    assert_eq!(epoch_end(&client, 4, 3), (0, 2, 2), "the floor, to the start of the next");
    assert_eq!(epoch_end(&client, 4, 5), (0, 5, 3));
    assert_eq!(epoch_end(&client, 4, 7), (0, 7, 3), "known although nothing was written in it");
    assert_eq!(epoch_end(&client, 4, 8), (0, -1, -1));
    assert_eq!(epoch_end(&client, 4, -1), (0, -1, -1));
    assert_eq!(epoch_end(&client, 0, 2), (0, -1, 2), "version 0 has no epoch");
}

fn delete(client: &Client, topic: &str, offset: i64) -> (i16, i64) {
    delete_within(client, topic, offset, 1000)
}

fn delete_within(client: &Client, topic: &str, offset: i64, timeout_ms: i32) -> (i16, i64) {
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset }];
    let topics = vec![DeleteRecordsTopic { name: topic.to_owned().into(), partitions }];
    let request = DeleteRecordsRequest { topics, timeout_ms };
    let answer: DeleteRecordsResponse<'static> = client.call(2, &request);
    let result = &answer.topics[0].partitions[0];
    (result.error_code, result.low_watermark)
}

#[test]
fn deleted_records_are_gone() {
    // 82, V-50
    let broker = Broker::new(2);
    broker.create("t", 1, &[]);
    broker.create("compacted", 1, &[("cleanup.policy", "compact")]);
    broker.create("__consumer_offsets", 1, &[]);
    let client = broker.client();
    for _ in 0..5 {
        client.produce_one("t", 0, batch(&[b"x"]));
    }
    assert_eq!(delete(&client, "t", 6), (ErrorCode::OffsetOutOfRange.get(), -1));
    assert_eq!(delete(&client, "t", -2), (ErrorCode::OffsetOutOfRange.get(), -1));
    assert_eq!(delete(&client, "t", 3), (0, 3));
    assert_eq!(delete(&client, "t", 1), (0, 3), "below the start is no change");
    assert_eq!(client.fetch_one("t", 0, 2).error_code, ErrorCode::OffsetOutOfRange.get());
    assert_eq!(client.fetch_one("t", 0, 3).log_start_offset, 3);
    assert_eq!(found(&list(&client, 5, 0, -2)), (0, 3, -1));
    assert_eq!(delete(&client, "t", -1), (0, 5));
    assert_eq!(client.produce_one("t", 0, batch(&[b"y"])).log_start_offset, 5);
    assert_eq!(delete(&client, "compacted", 0), (ErrorCode::PolicyViolation.get(), -1));
    assert_eq!(delete(&client, "__consumer_offsets", 0), (ErrorCode::InvalidTopicException.get(), -1));
    assert_eq!(delete(&client, "unknown", 0), (ErrorCode::UnknownTopicOrPartition.get(), -1));
}

#[test]
fn deleting_records_of_one_replica_waits_for_nobody() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 1, &[]);
        // On another shard than the partition, where there is one.
        let client = broker.client_on(usize::from(shards) - 1, "test");
        for _ in 0..3 {
            client.produce_one("t", 0, batch(&[b"x"]));
        }
        for (offset, timeout_ms) in [(1, 0), (2, 1), (3, -1)] {
            assert_eq!(delete_within(&client, "t", offset, timeout_ms), (0, offset), "{timeout_ms} ms");
        }
    }
}

#[test]
fn log_dirs_tell_sizes_of_all_shards() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 3, &[]);
        let client = broker.client();
        for partition in 0..3 {
            client.produce_one("t", partition, batch(&[b"x"]));
        }
        let size = i64::try_from(batch(&[b"x"]).len()).unwrap();
        for version in 0..=4 {
            let answer: DescribeLogDirsResponse<'static> =
                client.call(version, &DescribeLogDirsRequest { topics: None });
            let dir = &answer.results[0];
            assert_eq!((dir.error_code, &*dir.log_dir), (0, "/data"));
            let sizes: Vec<_> =
                dir.topics[0].partitions.iter().map(|p| (p.partition_index, p.partition_size)).collect();
            assert_eq!(sizes, [(0, size), (1, size), (2, size)]);
            assert_eq!(dir.total_bytes > 0, version == 4);
        }
        let topics = Some(vec![DescribableLogDirTopic { topic: "t".into(), partitions: vec![1] }]);
        let answer: DescribeLogDirsResponse<'static> = client.call(4, &DescribeLogDirsRequest { topics });
        assert_eq!(answer.results[0].topics[0].partitions.len(), 1);
        let none: DescribeLogDirsResponse<'static> =
            client.call(4, &DescribeLogDirsRequest { topics: Some(Vec::new()) });
        assert!(none.results[0].topics.is_empty() && none.results.len() == 1);
    }
}

//! Compacted topics as clients see them (storage.md 7.4, 7.5).

use std::path::Path;

use broker::metrics::names::Family;
use broker::metrics::snapshot::{ShardSnapshot, Value};
use broker::partition::lifecycle::Checkpoints;
use bytes::BytesMut;
use protocol::error::ErrorCode;
use protocol::records::builder::BatchBuilder;
use protocol::records::record::RecordIter;
use protocol::types::*;
use storage::io::sim::{Crash, Fault, OpKind};

use crate::harness::*;
use crate::restart::{checkpoint_task, open_dir};

const COMPACTED: &[(&str, &str)] =
    &[("cleanup.policy", "compact"), ("segment.bytes", "400"), ("min.cleanable.dirty.ratio", "0.1")];

fn keyed(pairs: &[(&str, Option<&str>)]) -> BytesMut {
    let mut builder = BatchBuilder::new();
    for (key, value) in pairs {
        let at = TimestampMs::new(1_700_000_000_000);
        builder.push(at, Some(key.as_bytes()), value.map(str::as_bytes), &[]);
    }
    builder.build().unwrap()
}

/// Offset, key and value of every record, as a consumer reads them.
fn consume(broker: &Broker, topic: &str, partition: i32) -> Vec<(i64, String, Option<String>)> {
    let client = broker.client();
    let (mut seen, mut next) = (Vec::new(), 0);
    loop {
        let data = client.fetch_one(topic, partition, next);
        assert_eq!(data.error_code, 0);
        if next >= data.high_watermark {
            return seen;
        }
        for view in batches(&data) {
            for record in RecordIter::new(view.payload()) {
                let record = record.unwrap();
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let offset = view.base_offset().get() + i64::from(record.offset_delta);
                seen.push((offset, text(record.key.unwrap()), record.value.map(text)));
            }
            next = view.next_offset().get();
        }
    }
}

fn overwrite(broker: &Broker, topic: &str, partition: i32, rounds: u32) {
    let client = broker.client();
    for round in 0..rounds {
        let value = format!("{round}-{}", "x".repeat(50));
        let batch = keyed(&[("a", Some(&value)), ("b", Some(&value))]);
        assert_eq!(client.produce_one(topic, partition, batch).error_code, 0);
    }
}

#[test]
fn consumers_of_a_compacted_topic_read_the_last_value_of_each_key() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 3, COMPACTED);
        broker.create("whole", 1, &[("segment.bytes", "400")]);
        for partition in 0..3 {
            overwrite(&broker, "t", partition, 20);
        }
        overwrite(&broker, "whole", 0, 20);
        // One log after the other, over all shards.
        broker.world().advance_ms(120_000);
        for partition in 0..3 {
            let seen = consume(&broker, "t", partition);
            assert!(seen.len() < 12, "{shards} shards, partition {partition}: {seen:?}");
            let value = format!("19-{}", "x".repeat(50));
            let last = [(38, "a".to_owned(), Some(value.clone())), (39, "b".to_owned(), Some(value))];
            assert_eq!(seen[seen.len() - 2..], last);
        }
        assert_eq!(consume(&broker, "whole", 0).len(), 40, "other topics are left alone");
    }
}

#[test]
fn a_record_without_a_key_is_refused_by_a_compacted_topic() {
    let broker = Broker::new(1);
    broker.create("t", 1, COMPACTED);
    let part = broker.client().produce_one("t", 0, idempotent(1, 0, 0, 1));
    assert_eq!(part.error_code, ErrorCode::InvalidRecord.get());
    assert_eq!(broker.client().produce_one("t", 0, keyed(&[("k", None)])).error_code, 0);
}

#[test]
fn how_far_a_log_was_compacted_is_in_the_checkpoint_and_a_start_begins_there() {
    let broker = Broker::start(3, 2, Start::default());
    let opened = open_dir(&broker);
    broker.create("t", 2, COMPACTED);
    let task = checkpoint_task(&broker, &opened);
    overwrite(&broker, "t", 1, 20);
    broker.world().advance_ms(60_000);
    let sample = broker.samples().into_iter().find(|sample| sample.partition.partition == 1).unwrap();
    let cleaned = sample.cleaner_offset.expect("it was compacted");
    let path = Path::new("/data/cleaner-offset-checkpoint");
    let text = String::from_utf8(broker.world().disk().content(path).unwrap()).unwrap();
    assert_eq!(text, format!("0\n1\nt 1 {cleaned}\n"));
    drop(task);
    broker.world().kill();
    let disk = broker.world().disk().crash(Crash::KeepAll);
    let cleaner_offsets = [(sample.partition.clone(), cleaned)].into();
    let checkpoints = Checkpoints { cleaner_offsets, ..Checkpoints::default() };
    let broker = Broker::start(4, 1, Start { disk, checkpoints, ..Start::default() });
    broker.create("t", 2, COMPACTED);
    let again = broker.samples().into_iter().find(|sample| sample.partition.partition == 1).unwrap();
    assert_eq!(again.cleaner_offset, Some(cleaned));
}

#[test]
fn a_topic_that_is_compacted_and_deleted_loses_old_segments_too() {
    let broker = Broker::new(1);
    let both = [("cleanup.policy", "compact,delete"), ("segment.bytes", "400"), ("retention.ms", "200000")];
    broker.create("t", 1, &both);
    overwrite(&broker, "t", 0, 20);
    broker.world().advance_ms(60_000);
    let seen = consume(&broker, "t", 0);
    assert!(seen.len() < 12, "{seen:?}");
    broker.world().advance_ms(600_000);
    let start = broker.client().fetch_one("t", 0, 40).log_start_offset;
    assert!(start > 30, "{start}");
}

#[test]
fn a_log_that_cannot_be_compacted_is_left_as_it_is_and_the_others_are_not() {
    let broker = Broker::start(3, 1, Start::default());
    broker.create("t", 2, COMPACTED);
    for partition in 0..2 {
        overwrite(&broker, "t", partition, 20);
    }
    broker.world().advance_ms(10_000);
    let path = Path::new("/data/t-0/00000000000000000000.log");
    let mut bytes = broker.world().disk().content(path).unwrap();
    bytes[100] ^= 1;
    broker.world().disk().put(path, &bytes).unwrap();
    broker.world().advance_ms(120_000);
    assert_eq!(broker.client().produce_one("t", 0, keyed(&[("a", Some("on"))])).error_code, 0);
    let of = |partition| {
        let mut samples = broker.samples().into_iter();
        samples.find(|sample| sample.partition.partition == partition).unwrap().cleaner_offset
    };
    assert_eq!(of(0), None);
    assert!(of(1).is_some());
    broker.world().advance_ms(120_000);
    assert_eq!(of(0), None, "not tried again");
    let told = told(&broker);
    let number = |family| match told.samples.iter().find(|sample| sample.family == family).unwrap().value {
        Value::Whole(number) => number,
        ref other => panic!("{other:?}"),
    };
    assert_eq!((number(Family::Uncleanable), number(Family::CleanerDead)), (1, 0));
    let (all, left) = (log_bytes(&broker, 0), number(Family::UncleanableBytes));
    assert!(left > all / 2 && left < all, "{left} of {all}");
    assert!((0..=15_000).contains(&number(Family::CleanerLastRun)));
}

fn cleaner_offset(broker: &Broker, partition: i32) -> Option<Offset> {
    let mut samples = broker.samples().into_iter();
    samples.find(|sample| sample.partition.partition == partition).unwrap().cleaner_offset
}

/// A number that a shard tells.
fn number(broker: &Broker, shard: usize, family: Family) -> i64 {
    match told_by(broker, shard).samples.iter().find(|sample| sample.family == family).unwrap().value {
        Value::Whole(number) => number,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_whose_rounds_fail_leaves_their_turn_to_the_others_and_is_tried_again() {
    let broker = Broker::start(3, 1, Start::default());
    broker.create("t", 3, COMPACTED);
    for partition in 0..3 {
        overwrite(&broker, "t", partition, 20);
    }
    let no_room = Fault {
        kind: OpKind::Open,
        path_contains: "t-0/00000000000000000000.log.cleaned",
        after: 0,
        times: u64::MAX,
        error: std::io::ErrorKind::StorageFull,
    };
    broker.world().disk().fail(no_room);
    // All are as dirty, and the first is looked at first.
    broker.world().advance_ms(60_000);
    let cleaned: Vec<_> = (0..3).map(|partition| cleaner_offset(&broker, partition).is_some()).collect();
    assert_eq!(cleaned, [false, true, true]);
    broker.world().disk().heal();
    broker.world().advance_ms(1_200_000);
    assert!(cleaner_offset(&broker, 0).is_some(), "there is room again");
}

#[test]
fn a_shard_that_waits_for_a_round_does_not_look_through_its_logs_meanwhile() {
    let broker = Broker::start(3, 2, Start::default());
    broker.create("t", 2, COMPACTED);
    for partition in 0..2 {
        overwrite(&broker, "t", partition, 20);
    }
    // What was written is durable, and so may be compacted.
    broker.world().advance_ms(5_000);
    // The first one's round takes minutes, and only one runs at a time.
    broker.world().disk().set_slow(Some(("t-0/", 20_000_000_000)));
    broker.world().advance_ms(40_000);
    overwrite(&broker, "t", 1, 20);
    broker.world().advance_ms(40_000);
    assert_eq!(cleaner_offset(&broker, 0), None, "its round still runs");
    let since_ms = number(&broker, 1, Family::CleanerLastRun);
    assert!(since_ms > 16_000, "looked at {since_ms} ms ago");
    broker.world().disk().set_slow(None);
    broker.world().advance_ms(120_000);
    assert!(cleaner_offset(&broker, 0).is_some() && cleaner_offset(&broker, 1) > Some(Offset::new(40)));
}

#[test]
fn the_last_round_and_what_is_overdue_are_told() {
    let broker = Broker::start(3, 1, Start::default());
    let lag = ("max.compaction.lag.ms", "1000");
    let never = ("min.cleanable.dirty.ratio", "1.0");
    broker.create("t", 1, &[("cleanup.policy", "compact"), ("segment.bytes", "400"), never, lag]);
    overwrite(&broker, "t", 0, 20);
    let told = |family| number(&broker, 0, family);
    assert_eq!((told(Family::CleanerRecopied), told(Family::CleanerDelay)), (0, 0), "nobody has looked yet");
    broker.world().advance_ms(20_000);
    // Of forty records two are left, and some headers.
    let recopied = told(Family::CleanerRecopied);
    assert!((1..60).contains(&recopied), "{recopied} of a hundred bytes");
    assert_eq!(told(Family::CleanerTime), 0);
    assert_eq!(told(Family::CleanerMapUsed), 0, "two keys of tens of thousands");
    let delay = told(Family::CleanerDelay);
    assert!((0..=20).contains(&delay), "{delay} s");
}

/// What shard 0 tells whoever scrapes.
fn told(broker: &Broker) -> ShardSnapshot {
    told_by(broker, 0)
}

fn told_by(broker: &Broker, shard: usize) -> ShardSnapshot {
    let service = broker.services[shard].clone();
    broker.run(async move {
        let mut told = ShardSnapshot::default();
        service.tell(&mut told).await;
        told
    })
}

fn log_bytes(broker: &Broker, partition: i32) -> i64 {
    let rows = told(broker).partitions;
    i64::try_from(rows.iter().find(|row| row.partition == partition).unwrap().size).unwrap()
}

#[test]
fn a_topic_that_is_deleted_or_compacted_no_more_ends_its_compaction() {
    let broker = Broker::new(1);
    broker.create("t", 1, COMPACTED);
    overwrite(&broker, "t", 0, 20);
    broker.set_config("t", &[("cleanup.policy", "delete"), ("segment.bytes", "400")]);
    broker.world().advance_ms(60_000);
    assert_eq!(consume(&broker, "t", 0).len(), 40);
    broker.set_config("t", COMPACTED);
    broker.delete("t");
    broker.world().advance_ms(60_000);
}

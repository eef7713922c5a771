//! Loads from bytes of every format: what counts, what is passed over, what ends the load.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use protocol::consumer_offsets::{OffsetValue, RecordKey};
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression, compress};
use protocol::records::crc::crc32;
use protocol::types::{MonoTime, ProducerEpoch, TimestampMs, TopicName};

use super::*;
use crate::coordinator::ask::{GroupReply, GroupRequest, OffsetFetch};
use crate::coordinator::group::GroupSettings;
use crate::coordinator::group::machine::{Effect, Event, Now, Room, Waiter};
use crate::shard::sim::SimShard;

fn key(partition: i32) -> Bytes {
    RecordKey::Offset { group: "g", topic: "t", partition }.encode()
}

fn value(offset: i64) -> Bytes {
    let value = OffsetValue {
        offset,
        leader_epoch: -1,
        metadata: "",
        commit_timestamp: 1_700_000_000_000,
        expire_timestamp: None,
    };
    value.encode()
}

fn at() -> TimestampMs {
    TimestampMs::new(1_700_000_000_000)
}

fn batch(base: i64, builder: BatchBuilder, records: &[(Bytes, Option<Bytes>)]) -> BytesMut {
    let mut builder = builder.base_offset(Offset::new(base));
    for (key, value) in records {
        builder.push(at(), Some(key), value.as_deref(), &[]);
    }
    builder.build().unwrap()
}

fn transactional(producer: i64) -> BatchBuilder {
    BatchBuilder::new().producer(ProducerId::new(producer), ProducerEpoch::new(0), 0).transactional()
}

fn marker(base: i64, producer: i64, commits: bool) -> BytesMut {
    let builder = BatchBuilder::new().producer(ProducerId::new(producer), ProducerEpoch::new(0), -1);
    let mut builder = builder.transactional().control().base_offset(Offset::new(base));
    builder.push(at(), Some(&[0, 0, 0, u8::from(commits)]), Some(&[0, 0, 0, 0, 0, 1]), &[]);
    builder.build().unwrap()
}

/// A message of magic 0 or 1.
fn message(magic: u8, offset: i64, attributes: u8, (key, value): (Option<&[u8]>, &[u8])) -> Vec<u8> {
    let mut body = vec![magic, attributes];
    if magic == 1 {
        body.extend(at().get().to_be_bytes());
    }
    let length = |bytes: &[u8]| i32::try_from(bytes.len()).unwrap().to_be_bytes();
    match key {
        Some(key) => {
            body.extend(length(key));
            body.extend(key);
        }
        None => body.extend((-1i32).to_be_bytes()),
    }
    body.extend(length(value));
    body.extend(value);
    let mut message = offset.to_be_bytes().to_vec();
    message.extend(i32::try_from(body.len() + 4).unwrap().to_be_bytes());
    message.extend(crc32(&body).to_be_bytes());
    message.extend(body);
    message
}

struct Outcome {
    groups: Groups,
    result: Result<(Offset, Loaded), LoadFault>,
}

/// Replays bytes from an offset on.
fn replayed(bytes: &[u8], from: i64) -> Outcome {
    let shard = SimShard::process(1, 1).remove(0);
    let world = shard.world().clone();
    let bytes = bytes.to_vec();
    world.block_on(async move {
        let mut groups = Groups::new(GroupSettings::default());
        let mut replay = Replay::new(&shard, &mut groups);
        let end = replay.batches(&bytes, Offset::new(from), &|| false).await;
        let result = end.map(|end| (end, replay.loaded));
        Outcome { groups, result }
    })
}

impl Outcome {
    /// Committed offsets of partitions 0 to 3; -1 is none.
    fn offsets(mut self) -> Vec<i64> {
        let topics = Some(vec![(TopicName::new("t"), vec![0, 1, 2, 3])]);
        let fetch = OffsetFetch { group: "g".into(), topics, from: None, require_stable: false };
        let (waiter, request) = (Waiter(0), GroupRequest::OffsetFetch(fetch));
        let now = Now { mono: MonoTime::new(1), wall: at(), random: 0, room: Room::UNBOUNDED };
        let mut out = Vec::new();
        let gone = BTreeSet::new();
        self.groups.step(now, Event::Request { waiter, request, gone }, &mut out);
        match out.remove(0) {
            Effect::Reply { reply: GroupReply::OffsetFetch(reply), .. } => {
                reply.topics[0].1.iter().map(|offset| offset.offset.get()).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_last_record_of_a_key_counts_in_every_codec() {
    for codec in Codec::ALL {
        let with = || BatchBuilder::new().compression(Compression::default_level(codec));
        let mut bytes = batch(0, with(), &[(key(0), Some(value(1))), (key(1), Some(value(2)))]);
        bytes.extend_from_slice(&batch(2, with(), &[(key(0), Some(value(3))), (key(1), None)]));
        let outcome = replayed(&bytes, 0);
        let (end, loaded) = outcome.result.as_ref().unwrap();
        assert_eq!((end.get(), loaded.records), (4, 4));
        assert_eq!(outcome.offsets(), [3, -1, -1, -1], "{codec:?}");
    }
}

#[test]
fn messages_of_older_formats_are_read() {
    for magic in [0, 1] {
        let mut bytes = message(magic, 4, 0, (Some(&key(0)), &value(7)));
        // Inner offsets are absolute in magic 0, and count from 0 in magic 1.
        let base = if magic == 0 { 5 } else { 0 };
        let mut inner = message(magic, base, 0, (Some(&key(1)), &value(8)));
        inner.extend(message(magic, base + 1, 0, (Some(&key(2)), &value(9))));
        let wrapped = compress(Compression::default_level(Codec::Gzip), &inner, Vec::new()).unwrap();
        bytes.extend(message(magic, 6, 1, (None, &wrapped)));
        bytes.extend_from_slice(&batch(7, BatchBuilder::new(), &[(key(0), Some(value(10)))]));
        let outcome = replayed(&bytes, 0);
        assert_eq!(outcome.result.as_ref().unwrap().0.get(), 8);
        assert_eq!(outcome.offsets(), [10, 8, 9, -1], "magic {magic}");
    }
}

#[test]
fn records_of_a_transaction_count_with_its_marker() {
    let mut bytes = batch(0, transactional(1), &[(key(0), Some(value(1)))]);
    bytes.extend_from_slice(&batch(1, transactional(2), &[(key(1), Some(value(2)))]));
    // A plain commit behind it wins, whatever comes first to count (O-14).
    bytes.extend_from_slice(&batch(2, transactional(1), &[(key(2), Some(value(3)))]));
    bytes.extend_from_slice(&batch(3, BatchBuilder::new(), &[(key(2), Some(value(4)))]));
    bytes.extend_from_slice(&marker(4, 1, true));
    bytes.extend_from_slice(&marker(5, 2, false));
    bytes.extend_from_slice(&batch(6, transactional(3), &[(key(3), Some(value(5)))]));
    assert_eq!(replayed(&bytes, 0).offsets(), [1, -1, 4, -1]);
}

#[test]
fn records_below_the_start_are_passed_over_and_a_cut_batch_is_left_for_later() {
    let first = batch(0, BatchBuilder::new(), &[(key(0), Some(value(1))), (key(1), Some(value(2)))]);
    let second = batch(2, BatchBuilder::new(), &[(key(2), Some(value(3)))]);
    let mut bytes = first.to_vec();
    bytes.extend(&second[..]);
    for cut in first.len()..bytes.len() {
        let outcome = replayed(&bytes[..cut], 1);
        let (end, loaded) = outcome.result.as_ref().unwrap();
        assert_eq!((end.get(), loaded.records), (2, 1));
        assert_eq!(outcome.offsets(), [-1, 2, -1, -1]);
    }
    for cut in 1..first.len() {
        let result = replayed(&bytes[..cut], 0).result;
        assert!(matches!(result, Err(LoadFault::NotABatch { .. })), "{result:?}");
    }
}

#[test]
fn unknown_keys_are_counted_and_everything_else_that_cannot_be_read_is_told() {
    let unknown = |version: u8| (Bytes::from(vec![0, version, 1]), Some(Bytes::new()));
    let bytes =
        batch(0, BatchBuilder::new(), &[unknown(3), unknown(3), unknown(9), (key(0), Some(value(1)))]);
    let outcome = replayed(&bytes, 0);
    let loaded = &outcome.result.as_ref().unwrap().1;
    assert_eq!(loaded.unknown.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>(), [(3, 2), (9, 1)]);
    assert_eq!(outcome.offsets(), [1, -1, -1, -1]);
    let value_of =
        |version: u8| batch(0, BatchBuilder::new(), &[(key(0), Some(Bytes::from(vec![0, version])))]);
    let result = replayed(&value_of(99), 0).result;
    assert!(matches!(result, Err(LoadFault::Record { .. })), "{result:?}");
    let mut damaged = bytes.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let result = replayed(&damaged, 0).result;
    assert!(matches!(result, Err(LoadFault::Checksum { .. })), "{result:?}");
    let mut builder = BatchBuilder::new();
    builder.push(at(), None, Some(b"v"), &[]);
    let result = replayed(&builder.build().unwrap(), 0).result;
    assert!(matches!(result, Err(LoadFault::NoKey { .. })), "{result:?}");
    for garbage in [&[0u8; 200][..], &[255; 200]] {
        let result = replayed(garbage, 0).result;
        assert!(matches!(result, Err(LoadFault::NotABatch { .. })), "{result:?}");
    }
}

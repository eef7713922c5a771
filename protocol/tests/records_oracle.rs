//! Batches against another implementation, `kafka-protocol`: the same bytes, and read alike.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "helpers of tests, outside #[test] functions"
)]

use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records as oracle;
use proptest::prelude::*;
use protocol::records::batch::BatchView;
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression, Decompressor};
use protocol::records::legacy::MessageView;
use protocol::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

#[derive(Clone, Debug)]
struct Sample {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    /// Without repeats: the other implementation keeps headers in a map.
    headers: Vec<(String, Option<Vec<u8>>)>,
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..80)
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let headers = proptest::collection::btree_map("[a-z]{0,9}", proptest::option::of(bytes()), 0..4);
    // Their deltas have 32 bits.
    let sample = (
        1_i64 << 40..(1 << 40) + (1 << 30),
        proptest::option::of(bytes()),
        proptest::option::of(bytes()),
        headers,
    )
        .prop_map(|(timestamp, key, value, headers)| Sample {
            timestamp,
            key,
            value,
            headers: headers.into_iter().collect(),
        });
    // The other implementation counts deltas from the smallest timestamp, we from the first: make them the same.
    proptest::collection::vec(sample, 1..20).prop_map(|mut samples| {
        let smallest = samples.iter().map(|sample| sample.timestamp).min().unwrap();
        samples[0].timestamp = smallest;
        samples
    })
}

fn theirs(samples: &[Sample], idempotent: bool, transactional: bool) -> Vec<oracle::Record> {
    let record = |(index, sample): (usize, &Sample)| {
        let index = i32::try_from(index).unwrap();
        oracle::Record {
            transactional,
            control: false,
            partition_leader_epoch: 4,
            producer_id: if idempotent { 77 } else { -1 },
            producer_epoch: if idempotent { 3 } else { -1 },
            timestamp_type: oracle::TimestampType::Creation,
            offset: 1_000 + i64::from(index),
            // Without a producer it counts on from -1 all the same, else each record gets a batch of its own.
            sequence: if idempotent { 10 } else { -1 } + index,
            timestamp: sample.timestamp,
            key: sample.key.clone().map(Bytes::from),
            value: sample.value.clone().map(Bytes::from),
            headers: sample
                .headers
                .iter()
                .map(|(key, value)| (StrBytes::from_string(key.clone()), value.clone().map(Bytes::from)))
                .collect(),
        }
    };
    samples.iter().enumerate().map(record).collect()
}

fn ours(samples: &[Sample], idempotent: bool, transactional: bool, codec: Codec) -> BytesMut {
    let mut builder = BatchBuilder::new()
        .base_offset(Offset::new(1_000))
        .partition_leader_epoch(LeaderEpoch::new(4))
        .compression(Compression::default_level(codec));
    if idempotent {
        builder = builder.producer(ProducerId::new(77), ProducerEpoch::new(3), 10);
    }
    if transactional {
        builder = builder.transactional();
    }
    for sample in samples {
        let headers: Vec<_> =
            sample.headers.iter().map(|(key, value)| (key.as_bytes(), value.as_deref())).collect();
        let timestamp = TimestampMs::new(sample.timestamp);
        builder.push(timestamp, sample.key.as_deref(), sample.value.as_deref(), &headers);
    }
    builder.build().unwrap()
}

proptest! {
    #[test]
    fn our_batches_are_theirs_byte_by_byte(
        samples in samples(), idempotent: bool, transactional: bool,
    ) {
        let transactional = transactional && idempotent;
        let mut expected = BytesMut::new();
        let options = oracle::RecordEncodeOptions { version: 2, compression: oracle::Compression::None };
        let records = theirs(&samples, idempotent, transactional);
        oracle::RecordBatchEncoder::encode(&mut expected, &records, &options).unwrap();
        let batch = ours(&samples, idempotent, transactional, Codec::None);
        prop_assert_eq!(&batch, &expected);
        prop_assert!(BatchView::parse(&batch).unwrap().crc_is_valid());
    }

    #[test]
    fn they_read_our_compressed_batches(
        mut samples in samples(), codec in prop::sample::select(Codec::ALL.to_vec()),
    ) {
        // Their reader of headers takes -2 for null, so null values are left to the comparison of bytes above.
        for (_, value) in samples.iter_mut().flat_map(|sample| &mut sample.headers) {
            value.get_or_insert_default();
        }
        let batch = ours(&samples, true, false, codec);
        let decompress = |packed: &mut Bytes, compression: oracle::Compression| {
            let codec = Codec::new(compression as i16).unwrap();
            let mut source = Decompressor::new(codec, packed.len())?;
            let mut plain = BytesMut::new();
            loop {
                let chunk = source.next_chunk(packed)?;
                if chunk.is_empty() {
                    return Ok(plain.freeze());
                }
                plain.extend_from_slice(chunk);
            }
        };
        let mut bytes = batch.freeze();
        let set = oracle::RecordBatchDecoder::decode_with_custom_compression(&mut bytes, Some(decompress)).unwrap();
        prop_assert_eq!(set.records, theirs(&samples, true, false));
    }

    #[test]
    fn their_old_messages_are_read(samples in samples(), version in 0..2_i8) {
        let mut bytes = BytesMut::new();
        let options = oracle::RecordEncodeOptions { version, compression: oracle::Compression::None };
        let mut records = theirs(&samples, false, false);
        records.iter_mut().for_each(|record| record.headers.clear());
        oracle::RecordBatchEncoder::encode(&mut bytes, &records, &options).unwrap();
        let mut rest = &bytes[..];
        for record in &records {
            let view = MessageView::parse(rest).unwrap();
            rest = &rest[view.size_in_bytes()..];
            prop_assert!(view.crc_is_valid());
            prop_assert_eq!(view.magic(), version);
            // They write offset 0, as producers may.
            prop_assert_eq!(view.last_offset(), Offset::ZERO);
            prop_assert_eq!(view.key().unwrap(), record.key.as_deref());
            prop_assert_eq!(view.value().unwrap(), record.value.as_deref());
            let timestamp = if version == 0 { -1 } else { record.timestamp };
            prop_assert_eq!(view.max_timestamp(), TimestampMs::new(timestamp));
        }
        prop_assert!(rest.is_empty());
    }
}

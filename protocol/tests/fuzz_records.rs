//! Record batches under fire: nothing that a client or a file can hold may panic, run on, or be accepted and not be what
//! it claims.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "helpers of tests, outside #[test] functions"
)]

#[path = "support/fuzz.rs"]
mod fuzz;

use bytes::BytesMut;
use fuzz::{Rng, mutate};
use protocol::records::batch::{BatchIter, BatchView, TimestampType};
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression, Decompressor};
use protocol::records::legacy::MessageView;
use protocol::records::reader::{self, Records};
use protocol::records::record::RecordIter;
use protocol::records::validate::{
    CompressionRule, KeyRule, Progress, Validation, ValidationRules, validate_produced,
};
use protocol::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};

const NOW: i64 = 1_700_000_000_000;

/// True once in `times`.
fn one_in(random: &mut Rng, times: usize) -> bool {
    random.below(times) == 0
}

fn byte(random: &mut Rng) -> u8 {
    random.next().to_le_bytes()[0]
}

fn pick<'a, T>(random: &mut Rng, items: &'a [T]) -> &'a T {
    &items[random.below(items.len())]
}

fn any_batch(random: &mut Rng) -> BytesMut {
    let codec = *pick(random, &Codec::ALL);
    let mut builder = BatchBuilder::new().compression(Compression::default_level(codec));
    if one_in(random, 3) {
        builder = builder.producer(ProducerId::new(7), ProducerEpoch::new(1), 5);
    }
    if one_in(random, 8) {
        builder = builder.timestamp_type(TimestampType::LogAppendTime);
    }
    for _ in 0..1 + random.below(12) {
        let timestamp = TimestampMs::new(NOW - i64::try_from(random.below(5_000)).unwrap());
        let key = one_in(random, 2).then(|| [byte(random)].repeat(random.below(20)));
        let size = if one_in(random, 20) { random.below(70_000) } else { random.below(60) };
        let value = (!one_in(random, 5)).then(|| [byte(random)].repeat(size));
        let header = [byte(random); 3];
        let headers = [(&header[..], None), (&header[..], Some(&header[..]))];
        let headers = if one_in(random, 3) { &headers[..] } else { &[] };
        builder.push(timestamp, key.as_deref(), value.as_deref(), headers);
    }
    builder.build().unwrap()
}

fn any_rules(random: &mut Rng) -> ValidationRules {
    let codec = *pick(random, &Codec::ALL);
    ValidationRules {
        request_version: *pick(random, &[3, 6, 7, 9, 12]),
        max_message_bytes: *pick(random, &[100, 1_000, 1_048_588]),
        timestamp_type: *pick(random, &[TimestampType::CreateTime, TimestampType::LogAppendTime]),
        timestamp_before_max_ms: *pick(random, &[0, 1_000, i64::MAX]),
        timestamp_after_max_ms: *pick(random, &[0, 1_000, i64::MAX]),
        keys: *pick(random, &[KeyRule::Optional, KeyRule::Required]),
        compression: if one_in(random, 2) {
            CompressionRule::Producer
        } else {
            CompressionRule::Recompress(Compression::default_level(codec))
        },
    }
}

/// Makes the CRC right, so that the checks behind it are reached.
fn reseal(bytes: &mut [u8]) {
    if bytes.len() >= 61 {
        let length = i32::try_from(bytes.len() - 12).unwrap();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        let crc = protocol::records::crc::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    }
}

/// Reads every record; whether all is as the header says.
fn read_all(view: &BatchView<'_>) -> bool {
    let Ok(mut records) = Records::of(view) else { return false };
    loop {
        match records.next_record() {
            Ok(Some(record)) => {
                assert_eq!(usize::try_from(record.headers.len()).unwrap(), record.headers.count())
            }
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

#[test]
fn what_is_accepted_is_whole_and_stays_acceptable() {
    fuzz::run(|random| {
        let mut sent = any_batch(random).to_vec();
        let damaged = !one_in(random, 4);
        if damaged {
            mutate(random, &mut sent);
        }
        if one_in(random, 2) {
            reseal(&mut sent);
        }
        let rules = any_rules(random);
        let at_once = validate_produced(BytesMut::from(&sent[..]), &rules, TimestampMs::new(NOW));
        // In steps of any size the verdict is the same.
        let budget = 1 + random.below(200_000);
        let in_steps = Validation::new(BytesMut::from(&sent[..]), &rules, TimestampMs::new(NOW)).and_then(
            |mut steps| {
                loop {
                    if let Progress::Done(verdict) = steps.step(budget) {
                        return verdict;
                    }
                }
            },
        );
        match (at_once, in_steps) {
            (Ok(accepted), Ok(same)) => {
                assert_eq!(accepted.batch, same.batch);
                assert!(accepted.batch.len() <= rules.max_message_bytes);
                let view = BatchView::parse(&accepted.batch).unwrap();
                assert_eq!(view.info(), accepted.info);
                assert!(view.crc_is_valid() && read_all(&view));
                // A client that claims LogAppendTime has its bit cleared while its timestamps stay, as in Kafka: they may
                // then lie outside the window that was checked on the claim.
                let sent = BatchView::parse(&sent).unwrap();
                let claimed = sent.attributes().timestamp_type() == TimestampType::LogAppendTime;
                if rules.timestamp_type == TimestampType::CreateTime && !claimed {
                    let compression = CompressionRule::Producer;
                    let producer = ValidationRules { compression, request_version: 9, ..rules };
                    let again = validate_produced(accepted.batch.clone(), &producer, TimestampMs::new(NOW));
                    assert_eq!(again.unwrap().batch, accepted.batch);
                }
            }
            (Err(error), Err(same)) => assert_eq!(error, same),
            (at_once, in_steps) => panic!("{at_once:?} at once, {in_steps:?} in steps"),
        }
    });
}

#[test]
fn readers_survive_any_batch() {
    fuzz::run(|random| {
        let mut bytes = any_batch(random).to_vec();
        bytes.extend_from_slice(&any_batch(random));
        mutate(random, &mut bytes);
        let mut walked = 0;
        let mut batches = BatchIter::new(&bytes);
        for view in batches.by_ref().flatten() {
            walked += view.size_in_bytes();
            let whole = read_all(&view);
            let time = TimestampMs::new(NOW - 2_000);
            let found = reader::first_record_at_or_after(&view, time, Offset::ZERO);
            let max = reader::max_timestamp_record(&view);
            assert!(!whole || (found.is_ok() && max.is_ok()));
            let _ = RecordIter::new(view.payload()).count();
        }
        assert_eq!(walked + batches.remainder().len(), bytes.len());
        for at in 0..bytes.len().min(40) {
            if let Ok(view) = MessageView::parse(&bytes[at..]) {
                let _ = (view.base_offset(), view.key(), view.crc_is_valid());
            }
        }
    });
}

#[test]
fn decompressors_survive_any_stream() {
    fuzz::run(|random| {
        let codec = *pick(random, &Codec::ALL);
        let size = if one_in(random, 10) { random.below(200_000) } else { random.below(500) };
        let plain = [byte(random)].repeat(size);
        let mut packed =
            protocol::records::compression::compress(Compression::default_level(codec), &plain, Vec::new())
                .unwrap();
        mutate(random, &mut packed);
        let max = 1 << 20;
        let mut source = Decompressor::with_max(codec, max).unwrap();
        let mut seen = 0;
        while let Ok(chunk) = source.next_chunk(&packed) {
            if chunk.is_empty() {
                break;
            }
            seen += u64::try_from(chunk.len()).unwrap();
            assert!(codec == Codec::None || seen <= max);
        }
    });
}

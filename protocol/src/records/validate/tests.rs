//! What a leader accepts, refuses and rewrites: each check in its order, with every codec.

use proptest::prelude::*;

use super::*;
use crate::error::ErrorCode;
use crate::records::batch::{set_base_offset, set_partition_leader_epoch};
use crate::records::builder::BatchBuilder;
use crate::records::compression::DecompressError;
use crate::records::reader::Records;
use crate::types::{LeaderEpoch, ProducerEpoch, ProducerId};

const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);

fn rules() -> ValidationRules {
    ValidationRules {
        request_version: 9,
        max_message_bytes: 1_048_588,
        timestamp_type: TimestampType::CreateTime,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: i64::MAX,
        keys: KeyRule::Optional,
        compression: CompressionRule::Producer,
    }
}

fn at(offset_ms: i64) -> TimestampMs {
    TimestampMs::new(NOW.get() + offset_ms)
}

/// Three records whose maximum is in the middle.
fn builder() -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    builder.push(at(0), Some(b"a"), Some(b"1"), &[(b"h", None)]);
    builder.push(at(50), Some(b"b"), Some(b""), &[]);
    builder.push(at(-20), Some(b""), None, &[(b"", Some(b"")), (b"", Some(b"x"))]);
    builder
}

fn batch(codec: Codec) -> BytesMut {
    builder().compression(Compression::default_level(codec)).build().unwrap()
}

/// Writes bytes over the header and makes the CRC right again.
fn patched(mut batch: BytesMut, at: usize, bytes: &[u8]) -> BytesMut {
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crate::records::crc::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

/// A batch of codec none around raw record bytes.
fn with_payload(payload: &[u8], count: i32) -> BytesMut {
    let mut bytes = BatchBuilder::new().last_offset_delta(count - 1).build().unwrap();
    bytes.extend_from_slice(payload);
    let length = i32::try_from(bytes.len() - 12).unwrap();
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    patched(bytes, 57, &count.to_be_bytes())
}

fn refusal(records: BytesMut, rules: &ValidationRules) -> ProduceError {
    validate_produced(records, rules, NOW).unwrap_err()
}

#[test]
fn an_acceptable_batch_stays_in_its_buffer_untouched() {
    for codec in Codec::ALL {
        let sent = batch(codec);
        let (place, copy) = (sent.as_ptr(), sent.to_vec());
        let accepted = validate_produced(sent, &rules(), NOW).unwrap();
        assert_eq!(accepted.batch, copy, "{codec:?}");
        assert_eq!(accepted.batch.as_ptr(), place, "no copy");
        assert!(!accepted.recompressed);
        assert_eq!(accepted.log_append_time, TimestampMs::NONE);
        assert_eq!(accepted.info, BatchView::parse(&copy).unwrap().info());
        assert_eq!((accepted.info.record_count, accepted.info.max_timestamp), (3, at(50)));
    }
}

#[test]
fn a_batch_split_off_a_frame_that_others_hold_is_not_copied_either() {
    let one = batch(Codec::Gzip);
    let mut frame = BytesMut::new();
    frame.extend_from_slice(&one);
    frame.extend_from_slice(&one);
    let second = frame.split_off(one.len());
    let place = second.as_ptr();
    let rules = ValidationRules { timestamp_type: TimestampType::LogAppendTime, ..rules() };
    let accepted = validate_produced(second, &rules, NOW).unwrap();
    assert_eq!(accepted.batch.as_ptr(), place);
    assert_eq!(frame, one);
}

#[test]
fn statement_21_old_magic_is_refused() {
    let mut sent = batch(Codec::None);
    sent[16] = 1;
    assert_eq!(refusal(sent.clone(), &rules()), ProduceError::OldMagic(1));
    sent[16] = 3;
    assert_eq!(refusal(sent.clone(), &rules()), ProduceError::BadMagic(3));
    sent[16] = 0xff;
    assert_eq!(refusal(sent, &rules()).code(), ErrorCode::CorruptMessage);
}

#[test]
fn statement_22_two_batches_are_refused_but_a_partial_second_is_cut_off() {
    let one = batch(Codec::None);
    let mut two = one.clone();
    two.extend_from_slice(&one);
    assert_eq!(refusal(two.clone(), &rules()), ProduceError::SeveralBatches);
    for cut in one.len()..two.len() {
        let accepted = validate_produced(BytesMut::from(&two[..cut]), &rules(), NOW).unwrap();
        assert_eq!(accepted.batch, one, "{cut}");
    }
    // Twelve zeros are a length below the smallest batch.
    let mut zeros = one.clone();
    zeros.extend_from_slice(&[0; 12]);
    assert_eq!(refusal(zeros, &rules()), ProduceError::BadLength(0));
}

#[test]
fn no_batch_or_part_of_one_is_refused() {
    let one = batch(Codec::None);
    for cut in 0..one.len() {
        let error = refusal(BytesMut::from(&one[..cut]), &rules());
        assert_eq!(error, ProduceError::NoBatch, "{cut}");
        assert_eq!(error.code(), ErrorCode::InvalidRecord);
    }
    let mut bad = one;
    for length in [0_i32, 13, 14, 48] {
        bad[8..12].copy_from_slice(&length.to_be_bytes());
        assert_eq!(refusal(bad.clone(), &rules()), ProduceError::BadLength(length));
    }
}

#[test]
fn statement_23_zstd_needs_version_7() {
    for (request_version, code) in [(3, Some(ErrorCode::UnsupportedCompressionType)), (6, None), (7, None)] {
        let verdict =
            validate_produced(batch(Codec::Zstd), &ValidationRules { request_version, ..rules() }, NOW);
        let accepted = request_version >= 7;
        assert_eq!(verdict.is_ok(), accepted);
        if let Some(code) = code {
            assert_eq!(verdict.unwrap_err().code(), code);
        }
    }
}

#[test]
fn codec_ids_that_name_no_codec_are_refused() {
    for id in 5..8_i16 {
        let sent = patched(batch(Codec::None), 21, &id.to_be_bytes());
        assert_eq!(refusal(sent, &rules()), ProduceError::UnknownCodec(id));
    }
}

#[test]
fn statement_24_no_flipped_bit_is_accepted() {
    for codec in Codec::ALL {
        let good = batch(codec);
        for bit in 0..good.len() * 8 {
            let mut sent = good.clone();
            sent[bit / 8] ^= 1 << (bit % 8);
            let verdict = validate_produced(sent, &rules(), NOW);
            match bit / 8 {
                // The leader epoch of a client is overwritten.
                12..=15 => assert!(verdict.is_ok()),
                0..=7 => assert!(matches!(verdict, Err(ProduceError::BaseOffset(_)))),
                17.. if !(21..23).contains(&(bit / 8)) => {
                    assert!(
                        matches!(verdict, Err(ProduceError::BadCrc { .. })),
                        "{codec:?} {bit}: {verdict:?}"
                    );
                }
                _ => assert!(verdict.is_err(), "{codec:?} {bit}"),
            }
        }
    }
}

#[test]
fn statement_25_leader_epoch_is_ignored_and_base_offset_is_not() {
    let mut sent = batch(Codec::None);
    set_partition_leader_epoch(&mut sent, LeaderEpoch::new(77));
    assert!(validate_produced(sent.clone(), &rules(), NOW).is_ok());
    set_base_offset(&mut sent, Offset::new(5));
    assert_eq!(refusal(sent, &rules()), ProduceError::BaseOffset(Offset::new(5)));
}

#[test]
fn statement_26_the_limit_itself_is_allowed_and_one_byte_more_is_not() {
    for codec in Codec::ALL {
        let sent = batch(codec);
        let limit = |max_message_bytes| ValidationRules { max_message_bytes, ..rules() };
        assert!(validate_produced(sent.clone(), &limit(sent.len()), NOW).is_ok());
        let error = refusal(sent.clone(), &limit(sent.len() - 1));
        assert_eq!(
            error,
            ProduceError::TooLarge { size_in_bytes: sent.len(), max_message_bytes: sent.len() - 1 }
        );
        assert_eq!(error.code(), ErrorCode::MessageTooLarge);
    }
}

#[test]
fn statement_27_count_and_last_offset_must_agree() {
    let sent = || batch(Codec::Lz4);
    let count = |count: i32| patched(sent(), 57, &count.to_be_bytes());
    let delta = |delta: i32| patched(sent(), 23, &delta.to_be_bytes());
    for bad in [count(0), count(-1), count(2), count(4), count(i32::MIN), delta(1), delta(i32::MAX)] {
        assert!(matches!(refusal(bad, &rules()), ProduceError::BadCount { .. }));
    }
    for bad in [delta(-1), delta(i32::MIN)] {
        assert!(matches!(refusal(bad, &rules()), ProduceError::BadOffsetRange { .. }));
    }
    for (last_offset_delta, count) in [(1, 2), (3, 4), (i32::MAX - 1, i32::MAX)] {
        for codec in Codec::ALL {
            let bad = patched(batch(codec), 23, &i32::to_be_bytes(last_offset_delta));
            let bad = patched(bad, 57, &i32::to_be_bytes(count));
            assert_eq!(refusal(bad, &rules()), ProduceError::WrongRecordCount { stated: count }, "{codec:?}");
        }
    }
}

#[test]
fn statement_28_control_batches_are_refused() {
    let sent = builder().control().build().unwrap();
    assert_eq!(refusal(sent, &rules()), ProduceError::ControlBatch);
}

#[test]
fn a_producer_id_needs_a_sequence() {
    let producer =
        |sequence| builder().producer(ProducerId::new(4), ProducerEpoch::new(0), sequence).build().unwrap();
    let producer_id = ProducerId::new(4);
    assert_eq!(refusal(producer(-1), &rules()), ProduceError::NoSequence { producer_id });
    let accepted = validate_produced(producer(i32::MAX - 1), &rules(), NOW).unwrap();
    assert_eq!((accepted.info.base_sequence, accepted.info.last_sequence), (i32::MAX - 1, 0));
}

#[test]
fn statement_29_a_compacted_topic_names_the_records_without_a_key() {
    let rules = ValidationRules { keys: KeyRule::Required, ..rules() };
    for codec in Codec::ALL {
        // An empty key is a key.
        assert!(validate_produced(batch(codec), &rules, NOW).is_ok());
        let mut builder = builder().compression(Compression::default_level(codec));
        builder.push(at(0), None, Some(b"v"), &[]).push(at(0), Some(b"k"), None, &[]).push(
            at(0),
            None,
            None,
            &[],
        );
        let error = refusal(builder.build().unwrap(), &rules);
        assert_eq!(error.code(), ErrorCode::InvalidRecord);
        let kind = RecordFaultKind::NoKey;
        assert_eq!(error.record_faults(), [RecordFault { index: 3, kind }, RecordFault { index: 5, kind }]);
    }
}

#[test]
fn statement_30_timestamps_outside_the_window_are_named() {
    let rules = ValidationRules { timestamp_before_max_ms: 1_000, timestamp_after_max_ms: 500, ..rules() };
    let times = [0, -1_000, -1_001, 500, 501].map(at);
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new().compression(Compression::default_level(codec));
        for time in times {
            builder.push(time, None, None, &[]);
        }
        // No timestamp is not checked; the extremes do not overflow.
        for time in [-1, i64::MIN, i64::MAX] {
            builder.push(TimestampMs::new(time), None, None, &[]);
        }
        let error = refusal(builder.build().unwrap(), &rules);
        assert_eq!(error.code(), ErrorCode::InvalidTimestamp);
        let named: Vec<i32> = error.record_faults().iter().map(|fault| fault.index).collect();
        assert_eq!(named, [2, 4, 6, 7], "{codec:?}");
        assert_eq!(error.record_faults()[0].kind, RecordFaultKind::TimestampOutOfRange(at(-1_001)));
    }
}

#[test]
fn one_bad_timestamp_among_missing_keys_decides_the_code() {
    let rules = ValidationRules { keys: KeyRule::Required, timestamp_after_max_ms: 10, ..rules() };
    let mut builder = BatchBuilder::new();
    builder.push(at(0), None, None, &[]).push(at(11), Some(b"k"), None, &[]).push(at(11), None, None, &[]);
    let error = refusal(builder.build().unwrap(), &rules);
    assert_eq!(error.code(), ErrorCode::InvalidTimestamp);
    // The key is looked at first.
    assert_eq!(error.record_faults()[2].kind, RecordFaultKind::NoKey);
}

#[test]
fn more_faults_than_are_kept_are_counted() {
    let mut builder = BatchBuilder::new();
    for _ in 0..5_000 {
        builder.push(at(0), None, None, &[]);
    }
    let rules = ValidationRules { keys: KeyRule::Required, ..rules() };
    let ProduceError::Records(faults) = refusal(builder.build().unwrap(), &rules) else { panic!() };
    assert_eq!((faults.count(), faults.as_slice().len()), (5_000, 1_000));
}

#[test]
fn statement_31_log_append_time_is_stamped_with_a_right_crc() {
    let rules = ValidationRules {
        timestamp_type: TimestampType::LogAppendTime,
        timestamp_before_max_ms: 0,
        timestamp_after_max_ms: 0,
        ..rules()
    };
    for codec in Codec::ALL {
        let accepted = validate_produced(batch(codec), &rules, NOW).unwrap();
        assert_eq!(accepted.log_append_time, NOW);
        let view = BatchView::parse(&accepted.batch).unwrap();
        assert!(view.crc_is_valid());
        assert_eq!(view.max_timestamp(), NOW);
        assert_eq!(view.base_timestamp(), at(0));
        assert_eq!(view.attributes().timestamp_type(), TimestampType::LogAppendTime);
        assert_eq!(view.attributes().codec(), Some(codec));
        assert_eq!(accepted.info, view.info());
    }
}

#[test]
fn a_wrong_maximum_timestamp_is_made_right() {
    for codec in Codec::ALL {
        let sent = builder().max_timestamp(at(999)).compression(Compression::default_level(codec)).build();
        let accepted = validate_produced(sent.unwrap(), &rules(), NOW).unwrap();
        assert_eq!(accepted.batch, batch(codec), "as if the client had sent the right one");
    }
}

#[test]
fn a_client_that_claims_log_append_time_is_refused_or_corrected() {
    let claimed =
        |max| builder().timestamp_type(TimestampType::LogAppendTime).max_timestamp(max).build().unwrap();
    // LogAppendTime topic: every record is refused.
    let append_time = ValidationRules { timestamp_type: TimestampType::LogAppendTime, ..rules() };
    let error = refusal(claimed(NOW), &append_time);
    assert_eq!(error.code(), ErrorCode::InvalidTimestamp);
    assert_eq!(error.record_faults().len(), 3);
    assert_eq!(error.record_faults()[0].kind, RecordFaultKind::ClaimedLogAppendTime);
    // CreateTime topic without a timestamp: refused.
    assert_eq!(refusal(claimed(TimestampMs::NONE), &rules()).code(), ErrorCode::InvalidTimestamp);
    // CreateTime topic: the window is that of the claimed time, the bit is cleared.
    let window = ValidationRules { timestamp_after_max_ms: 100, ..rules() };
    assert_eq!(refusal(claimed(at(101)), &window).record_faults().len(), 3);
    let accepted = validate_produced(claimed(at(99)), &window, NOW).unwrap();
    let view = BatchView::parse(&accepted.batch).unwrap();
    assert_eq!(view.attributes().timestamp_type(), TimestampType::CreateTime);
    assert_eq!(view.max_timestamp(), at(99));
    assert!(view.crc_is_valid());
}

#[test]
fn attribute_bits_without_a_meaning_stay_unless_the_header_is_rewritten() {
    let sent = builder().attributes(Attributes::new(0x0f80)).build().unwrap();
    let accepted = validate_produced(sent.clone(), &rules(), NOW).unwrap();
    assert_eq!(accepted.info.attributes.get(), 0x0f80);
    let rules = ValidationRules { timestamp_type: TimestampType::LogAppendTime, ..rules() };
    assert_eq!(validate_produced(sent, &rules, NOW).unwrap().info.attributes.get(), 0x08);
}

#[test]
fn malformed_records_are_refused_with_their_fault() {
    let good = [14, 0, 0, 0, 1, 1, 0, 0]; // length 7: one byte too many
    assert_eq!(refusal(with_payload(&good, 1), &rules()), ProduceError::Record(RecordError::BytesLeft(1)));
    assert_eq!(
        refusal(with_payload(&[12, 0, 0, 0, 1], 1), &rules()),
        ProduceError::Record(RecordError::Truncated)
    );
    let null_key = [16, 0, 0, 0, 1, 1, 2, 1, 1];
    assert_eq!(
        refusal(with_payload(&null_key, 1), &rules()),
        ProduceError::Record(RecordError::BadLength(-1))
    );
    let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(refusal(with_payload(&endless, 1), &rules()), ProduceError::Record(RecordError::BadVarint));
    let fine = [12, 0, 0, 0, 1, 1, 0];
    assert!(validate_produced(with_payload(&fine, 1), &rules(), NOW).is_ok());
    // A malformed record goes before a record that breaks a rule.
    let rules = ValidationRules { keys: KeyRule::Required, ..rules() };
    let both = [&fine[..], &[12, 0, 0, 2, 1, 1, 0, 0]].concat();
    assert_eq!(refusal(with_payload(&both, 2), &rules), ProduceError::Record(RecordError::Truncated));
}

#[test]
fn offset_deltas_that_are_not_the_places_are_refused() {
    for codec in Codec::ALL {
        let mut builder =
            BatchBuilder::new().compression(Compression::default_level(codec)).last_offset_delta(1);
        builder.push_at(0, at(0), None, None, &[]).push_at(2, at(0), None, None, &[]);
        let error = refusal(builder.build().unwrap(), &rules());
        assert_eq!(error, ProduceError::BadOffsetDelta { index: 1, offset_delta: 2 });
    }
}

#[test]
fn payloads_that_do_not_decompress_are_refused_with_87() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let id = codec.get().to_be_bytes();
        let error = refusal(patched(batch(Codec::None), 21, &id), &rules());
        assert!(matches!(error, ProduceError::Decompress(_)), "{codec:?} {error:?}");
        assert_eq!(error.code(), ErrorCode::InvalidRecord);
    }
}

#[test]
fn statement_92_linked_lz4_is_refused() {
    use lz4_flex::frame::{BlockMode, FrameEncoder, FrameInfo};
    let plain = batch(Codec::None);
    let info = FrameInfo::new().block_mode(BlockMode::Linked);
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    std::io::Write::write_all(&mut encoder, &plain[61..]).unwrap();
    let sent = patched(with_payload(&encoder.finish().unwrap(), 3), 21, &Codec::Lz4.get().to_be_bytes());
    assert_eq!(refusal(sent, &rules()), ProduceError::Decompress(DecompressError::LinkedBlocks));
}

#[test]
fn statement_91_raw_snappy_is_accepted_and_kept() {
    let plain = batch(Codec::None);
    let raw = snap::raw::Encoder::new().compress_vec(&plain[61..]).unwrap();
    let sent = patched(with_payload(&raw, 3), 21, &Codec::Snappy.get().to_be_bytes());
    let sent = patched(sent, 27, &plain[27..43]);
    let accepted = validate_produced(sent.clone(), &rules(), NOW).unwrap();
    assert_eq!(accepted.batch, sent);
}

/// Timestamp delta, offset delta, key, value, number of headers.
type Content = (i64, i32, Option<Vec<u8>>, Option<Vec<u8>>, i32);

/// All records of a batch, as their own values.
fn contents(batch: &[u8]) -> Vec<Content> {
    let view = BatchView::parse(batch).unwrap();
    let mut records = Records::of(&view).unwrap();
    let mut out = Vec::new();
    while let Some(record) = records.next_record().unwrap() {
        let (key, value) = (record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec));
        out.push((record.timestamp_delta, record.offset_delta, key, value, record.headers.len()));
    }
    out
}

#[test]
fn every_codec_is_recompressed_to_every_other() {
    for from in Codec::ALL {
        for to in Codec::ALL {
            let sent = builder()
                .producer(ProducerId::new(1), ProducerEpoch::new(2), 3)
                .transactional()
                .compression(Compression::default_level(from))
                .build()
                .unwrap();
            let compression = CompressionRule::Recompress(Compression::default_level(to));
            let accepted =
                validate_produced(sent.clone(), &ValidationRules { compression, ..rules() }, NOW).unwrap();
            assert_eq!(accepted.recompressed, from != to);
            let view = BatchView::parse(&accepted.batch).unwrap();
            assert!(view.crc_is_valid());
            assert_eq!(accepted.info, view.info());
            let mut expected = BatchView::parse(&sent).unwrap().info();
            expected.attributes = expected.attributes.with_codec(to);
            expected.size_in_bytes = accepted.batch.len();
            assert_eq!(accepted.info, expected, "{from:?} to {to:?}");
            assert_eq!(contents(&accepted.batch), contents(&sent));
            // And what we wrote is acceptable again.
            assert!(validate_produced(accepted.batch, &rules(), NOW).is_ok());
        }
    }
}

#[test]
fn a_recompressed_batch_above_the_limit_is_refused_after_its_records() {
    let mut builder = BatchBuilder::new().compression(Compression::default_level(Codec::Zstd));
    for _ in 0..3 {
        builder.push(at(0), None, Some(&[7; 100_000]), &[]);
    }
    let sent = builder.build().unwrap();
    let compression = CompressionRule::Recompress(Compression::None);
    let limited = ValidationRules { max_message_bytes: 10_000, compression, ..rules() };
    assert!(sent.len() < 10_000);
    let error = refusal(sent.clone(), &limited);
    assert!(matches!(error, ProduceError::TooLarge { size_in_bytes: 10_001.., max_message_bytes: 10_000 }));
    let both = ValidationRules { keys: KeyRule::Required, ..limited };
    assert_eq!(refusal(sent, &both).record_faults().len(), 3);
}

#[test]
fn steps_bound_the_work_and_change_nothing() {
    let mut builder = BatchBuilder::new().compression(Compression::default_level(Codec::Gzip));
    for i in 0..20_000 {
        builder.push(at(i), Some(b"key"), Some(&[b'v'; 90]), &[]);
    }
    let sent = builder.build().unwrap();
    let rules = ValidationRules { compression: CompressionRule::Recompress(Compression::Lz4), ..rules() };
    let at_once = validate_produced(sent.clone(), &rules, NOW).unwrap();
    let mut validation = Validation::new(sent, &rules, NOW).unwrap();
    let mut steps = 0;
    let in_steps = loop {
        steps += 1;
        match validation.step(100_000) {
            Progress::More => {}
            Progress::Done(verdict) => break verdict.unwrap(),
        }
    };
    // Two megabytes, in steps of at least 100,000 and at most 165,536 bytes.
    assert!((12..=23).contains(&steps), "{steps}");
    assert_eq!(in_steps.batch, at_once.batch);
}

#[test]
fn a_bomb_is_refused_without_being_held() {
    for codec in [Codec::Gzip, Codec::Zstd] {
        let mut compressor = Compressor::new(Compression::default_level(codec), Vec::new(), None).unwrap();
        // One record: a null key, a value of 200 MiB of zeros, no headers. Five bytes hold the value's length.
        let size = 200 << 20;
        let zeros = vec![0; 1 << 20];
        let mut head = Vec::new();
        for value in [4 + 5 + size + 1, 0, 0, 0, -1, size] {
            crate::records::varint::write_varint(&mut head, value);
        }
        compressor.write(&head).unwrap();
        for _ in 0..200 {
            compressor.write(&zeros).unwrap();
        }
        compressor.write(&[0]).unwrap();
        let sent = patched(with_payload(&compressor.finish().unwrap(), 1), 21, &codec.get().to_be_bytes());
        assert!(sent.len() < 300_000);
        let error = refusal(sent.clone(), &rules());
        assert_eq!(error, ProduceError::Decompress(DecompressError::TooLarge { max: 104_857_600 }));
        assert_eq!(error.code(), ErrorCode::InvalidRecord);
        // Each step does a bounded part of it.
        let mut validation = Validation::new(sent, &rules(), NOW).unwrap();
        let mut steps = 0;
        while matches!(validation.step(1 << 20), Progress::More) {
            steps += 1;
        }
        assert!((90..=101).contains(&steps), "{steps}");
    }
}

fn any_rules() -> impl Strategy<Value = ValidationRules> {
    let codec = prop::sample::select(Codec::ALL.to_vec());
    (any::<bool>(), any::<bool>(), proptest::option::of(codec), 0..2_000_i64).prop_map(
        |(append_time, keyed, codec, window)| ValidationRules {
            timestamp_type: if append_time {
                TimestampType::LogAppendTime
            } else {
                TimestampType::CreateTime
            },
            keys: if keyed { KeyRule::Required } else { KeyRule::Optional },
            timestamp_before_max_ms: window,
            compression: codec.map_or(CompressionRule::Producer, |codec| {
                CompressionRule::Recompress(Compression::default_level(codec))
            }),
            ..rules()
        },
    )
}

proptest! {
    #[test]
    fn the_verdict_is_that_of_the_rules(
        records in proptest::collection::vec((-1_000..1_000_i64, any::<bool>(), 0..300_usize), 1..40),
        codec in prop::sample::select(Codec::ALL.to_vec()),
        rules in any_rules(),
    ) {
        let mut builder = BatchBuilder::new().compression(Compression::default_level(codec));
        for (time, keyed, size) in &records {
            let value = vec![1; *size];
            builder.push(at(*time), keyed.then_some(&b"k"[..]), Some(&value), &[]);
        }
        let sent = builder.build().unwrap();
        let bad: Vec<i32> = records.iter().enumerate().filter(|(_, (time, keyed, _))| {
            let no_key = rules.keys == KeyRule::Required && !keyed;
            let late = rules.timestamp_type == TimestampType::CreateTime && -time > rules.timestamp_before_max_ms;
            no_key || late
        }).map(|(index, _)| i32::try_from(index).unwrap()).collect();
        match validate_produced(sent.clone(), &rules, NOW) {
            Ok(accepted) => {
                prop_assert!(bad.is_empty());
                let view = BatchView::parse(&accepted.batch).unwrap();
                prop_assert!(view.crc_is_valid());
                prop_assert_eq!(contents(&accepted.batch), contents(&sent));
                let newest = records.iter().map(|(time, ..)| *time).max().unwrap();
                let expected = if rules.timestamp_type == TimestampType::LogAppendTime { NOW } else { at(newest) };
                prop_assert_eq!(view.max_timestamp(), expected);
            }
            Err(error) => {
                let named: Vec<i32> = error.record_faults().iter().map(|fault| fault.index).collect();
                prop_assert_eq!(named, bad);
            }
        }
    }
}

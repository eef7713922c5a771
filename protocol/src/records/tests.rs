//! Batches and records, uncompressed: view, walk, patches, builder.

use bytes::BytesMut;
use proptest::prelude::*;

use super::batch::*;
use super::builder::BatchBuilder;
use super::compression::{Codec, Compression};
use super::reader::{ReadError, Records, first_record_at_or_after, max_timestamp_record};
use super::record::{RecordError, RecordIter};
use crate::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

fn ts(ms: i64) -> TimestampMs {
    TimestampMs::new(ms)
}

fn two_records() -> BytesMut {
    let mut builder = BatchBuilder::new()
        .base_offset(Offset::new(40))
        .partition_leader_epoch(LeaderEpoch::new(3))
        .producer(ProducerId::new(9), ProducerEpoch::new(2), i32::MAX)
        .transactional();
    builder.push(ts(1_000), Some(b"k"), Some(b"v1"), &[(b"h", Some(b"x")), (b"h", None)]);
    builder.push(ts(990), None, None, &[]);
    builder.build().unwrap()
}

#[test]
fn a_view_reads_every_header_field() {
    let batch = two_records();
    let view = BatchView::parse(&batch).unwrap();
    assert!(view.crc_is_valid());
    let info = view.info();
    assert_eq!(info.base_offset, Offset::new(40));
    assert_eq!(info.last_offset, Offset::new(41));
    assert_eq!(info.next_offset(), Offset::new(42));
    assert_eq!(info.partition_leader_epoch, LeaderEpoch::new(3));
    assert_eq!(info.base_timestamp, ts(1_000));
    assert_eq!(info.max_timestamp, ts(1_000));
    assert_eq!(info.producer_id, ProducerId::new(9));
    assert_eq!(info.producer_epoch, ProducerEpoch::new(2));
    assert_eq!((info.base_sequence, info.last_sequence), (i32::MAX, 0), "sequences wrap");
    assert_eq!(info.record_count, 2);
    assert_eq!(info.size_in_bytes, batch.len());
    assert!(info.attributes.is_transactional() && !info.attributes.is_control());
}

#[test]
fn a_header_is_read_without_the_records_behind_it() {
    let batch = two_records();
    let whole = BatchView::parse(&batch).unwrap().info();
    assert_eq!(BatchInfo::parse_header(&batch[..BATCH_HEADER_BYTES]), Ok(whole));
    let cut = BatchInfo::parse_header(&batch[..BATCH_HEADER_BYTES - 1]);
    assert_eq!(cut, Err(BatchError::Truncated { needed: BATCH_HEADER_BYTES, left: BATCH_HEADER_BYTES - 1 }));
    assert_eq!(BatchInfo::parse_header(&[0; BATCH_HEADER_BYTES]), Err(BatchError::BadLength(0)));
}

#[test]
fn records_are_walked_in_place_with_null_empty_and_repeated_headers_apart() {
    let mut builder = BatchBuilder::new();
    let headers: [(&[u8], Option<&[u8]>); 4] =
        [(b"a", Some(b"1")), (b"a", None), (b"a", Some(b"")), (b"", Some(b"x"))];
    builder.push(ts(5), Some(b""), Some(b""), &headers);
    builder.push(ts(3), None, None, &[]);
    let batch = builder.build().unwrap();
    let view = BatchView::parse(&batch).unwrap();
    let records: Vec<_> = RecordIter::new(view.payload()).map(Result::unwrap).collect();
    assert_eq!((records[0].key, records[0].value), (Some(&b""[..]), Some(&b""[..])));
    assert_eq!((records[1].key, records[1].value), (None, None));
    assert_eq!(records[0].headers.collect::<Vec<_>>(), headers);
    assert_eq!(records[1].headers.len(), 0);
    assert_eq!((records[1].timestamp_delta, records[1].offset_delta), (-2, 1));
}

#[test]
fn five_hundred_equal_headers_stay_in_order() {
    let mut builder = BatchBuilder::new();
    let values: Vec<String> = (0..500).map(|i| i.to_string()).collect();
    let headers: Vec<(&[u8], Option<&[u8]>)> =
        values.iter().map(|v| (&b"same"[..], Some(v.as_bytes()))).collect();
    builder.push(ts(0), None, Some(b"v"), &headers);
    let batch = builder.build().unwrap();
    let record = RecordIter::new(BatchView::parse(&batch).unwrap().payload()).next().unwrap().unwrap();
    assert_eq!(record.headers.len(), 500);
    assert_eq!(record.headers.collect::<Vec<_>>(), headers);
}

#[test]
fn offset_and_leader_epoch_are_outside_the_crc() {
    let mut batch = two_records();
    set_base_offset(&mut batch, Offset::new(i64::MAX / 2));
    set_partition_leader_epoch(&mut batch, LeaderEpoch::new(77));
    let view = BatchView::parse(&batch).unwrap();
    assert!(view.crc_is_valid());
    let info = BatchView::parse(&two_records()).unwrap().info();
    assert_eq!(view.info(), info.assigned(Offset::new(i64::MAX / 2), LeaderEpoch::new(77)));
}

#[test]
fn log_append_time_is_written_with_a_new_crc_and_only_if_it_changes() {
    let mut batch = two_records();
    let before = batch.clone();
    set_max_timestamp_and_type(&mut batch, ts(1_000), TimestampType::CreateTime);
    assert_eq!(batch, before);
    set_max_timestamp_and_type(&mut batch, ts(7_777), TimestampType::LogAppendTime);
    let view = BatchView::parse(&batch).unwrap();
    assert!(view.crc_is_valid());
    assert_ne!(view.crc(), BatchView::parse(&before).unwrap().crc());
    assert_eq!(view.max_timestamp(), ts(7_777));
    assert_eq!(view.base_timestamp(), ts(1_000));
    assert_eq!(view.attributes().timestamp_type(), TimestampType::LogAppendTime);
    assert!(view.attributes().is_transactional());
}

#[test]
fn a_rewrite_clears_attribute_bits_without_a_meaning() {
    let mut builder = BatchBuilder::new().attributes(Attributes::new(0x7f80));
    builder.push(ts(1), None, None, &[]);
    let mut batch = builder.build().unwrap();
    assert_eq!(BatchView::parse(&batch).unwrap().attributes().get(), 0x7f80);
    set_max_timestamp_and_type(&mut batch, ts(2), TimestampType::CreateTime);
    assert_eq!(BatchView::parse(&batch).unwrap().attributes().get(), 0);
}

#[test]
fn a_walk_reports_the_trailing_partial_batch() {
    let one = two_records();
    for cut in 0..one.len() {
        let mut bytes = one.to_vec();
        bytes.extend_from_slice(&one);
        bytes.extend_from_slice(&one[..cut]);
        let mut walk = BatchIter::new(&bytes);
        assert_eq!(walk.by_ref().map(|view| view.unwrap().size_in_bytes()).sum::<usize>(), 2 * one.len());
        assert_eq!(walk.remainder(), &one[..cut]);
    }
}

#[test]
fn zeros_other_formats_and_lying_lengths_end_the_walk() {
    let mut zeros = BatchIter::new(&[0; 64]);
    assert_eq!(zeros.next().unwrap().unwrap_err(), BatchError::BadLength(0));
    assert!(zeros.next().is_none());
    assert_eq!(zeros.remainder().len(), 64);

    let mut batch = two_records();
    batch[16] = 1;
    assert_eq!(BatchView::parse(&batch).unwrap_err(), BatchError::BadMagic(1));
    batch[16] = 2;
    for length in [i32::MIN, -1, 0, 13, 14, 48] {
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        assert_eq!(BatchView::parse(&batch).unwrap_err(), BatchError::BadLength(length));
    }
    batch[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
    let needed = usize::try_from(i32::MAX).unwrap() + 12;
    assert_eq!(BatchView::parse(&batch).unwrap_err(), BatchError::Truncated { needed, left: batch.len() });
    assert_eq!(Prefix::parse(&batch).unwrap().size_in_bytes, needed);
}

#[test]
fn no_flipped_bit_goes_unseen() {
    let batch = two_records();
    let view = BatchView::parse(&batch).unwrap().info();
    for bit in 0..batch.len() * 8 {
        let mut bad = batch.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let outside_crc = bit / 8 < 8 || (12..16).contains(&(bit / 8));
        match BatchView::parse(&bad) {
            Ok(view) if outside_crc => assert!(view.crc_is_valid()),
            Ok(bad) => assert!(!bad.crc_is_valid(), "bit {bit} of {view:?}"),
            Err(_) => assert!((8..12).contains(&(bit / 8)) || bit / 8 == 16),
        }
    }
}

#[test]
fn records_cut_at_any_byte_are_refused() {
    let batch = two_records();
    let payload = BatchView::parse(&batch).unwrap().payload();
    let whole = RecordIter::new(payload).next().map(|_| ()).is_some();
    assert!(whole);
    let mut walk = RecordIter::new(payload);
    walk.next();
    let first = payload.len() - walk.remainder().len();
    for cut in 1..payload.len() {
        let results: Vec<_> = RecordIter::new(&payload[..cut]).collect();
        let faults = results.iter().filter(|r| r.is_err()).count();
        assert_eq!(faults, usize::from(cut != first), "{cut}: {results:?}");
    }
}

#[test]
fn faulty_records_name_their_fault() {
    for (bytes, fault) in [
        (&[0][..], RecordError::Truncated),
        (&[1][..], RecordError::BadLength(-1)),
        (&[0xff, 0xff, 0xff, 0xff, 0x1f][..], RecordError::BadVarint),
        // Attributes, deltas, null key, null value, header count -1.
        (&[12, 0, 0, 0, 1, 1, 1][..], RecordError::BadLength(-1)),
        // A key of length -2.
        (&[12, 0, 0, 0, 3, 1, 0][..], RecordError::BadLength(-2)),
        // A header whose key is null.
        (&[16, 0, 0, 0, 1, 1, 2, 1, 1][..], RecordError::BadLength(-1)),
        // 2^30 headers in no bytes.
        (&[20, 0, 0, 0, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x08][..], RecordError::Truncated),
        // A byte after the last field.
        (&[14, 0, 0, 0, 1, 1, 0, 9][..], RecordError::BytesLeft(1)),
    ] {
        assert_eq!(RecordIter::new(bytes).next(), Some(Err(fault)), "{bytes:?}");
    }
}

type OwnedRecord = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>);

fn any_record() -> impl Strategy<Value = OwnedRecord> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..70);
    let headers = proptest::collection::vec((bytes(), proptest::option::of(bytes())), 0..4);
    (any::<i64>(), proptest::option::of(bytes()), proptest::option::of(bytes()), headers)
}

proptest! {
    #[test]
    fn what_is_built_is_read(records in proptest::collection::vec(any_record(), 0..20)) {
        let mut builder = BatchBuilder::new();
        for (timestamp, key, value, headers) in &records {
            let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], v.as_deref())).collect();
            builder.push(ts(*timestamp), key.as_deref(), value.as_deref(), &headers);
        }
        let size = builder.size_in_bytes();
        let batch = builder.build().unwrap();
        prop_assert_eq!(batch.len(), size);
        let view = BatchView::parse(&batch).unwrap();
        prop_assert!(view.crc_is_valid());
        let base = view.base_timestamp().get();
        let read: Vec<OwnedRecord> = RecordIter::new(view.payload()).map(|record| {
            let record = record.unwrap();
            let headers = record.headers.map(|(k, v)| (k.to_vec(), v.map(<[u8]>::to_vec))).collect();
            let timestamp = base.wrapping_add(record.timestamp_delta);
            (timestamp, record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec), headers)
        }).collect();
        prop_assert_eq!(read, records);
    }

    #[test]
    fn no_bytes_make_the_walk_panic_or_run_on(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let walked = RecordIter::new(&bytes).count();
        prop_assert!(walked <= bytes.len());
    }
}

/// One batch of times 0, 100, 200, 300 (fault F46).
fn times(codec: Codec) -> BytesMut {
    let compression = Compression::default_level(codec);
    let mut builder = BatchBuilder::new().base_offset(Offset::new(10)).compression(compression);
    for time in [0, 100, 300, 200] {
        builder.push(ts(time), None, Some(&[b'v'; 50]), &[]);
    }
    builder.build().unwrap()
}

#[test]
fn the_record_within_a_batch_is_found_by_time_in_every_codec() {
    for codec in Codec::ALL {
        let batch = times(codec);
        let view = BatchView::parse(&batch).unwrap();
        let find = |time, min| first_record_at_or_after(&view, ts(time), Offset::new(min)).unwrap();
        assert_eq!(find(150, 0), Some((Offset::new(12), ts(300))), "{codec:?}");
        assert_eq!(find(150, 13), Some((Offset::new(13), ts(200))));
        assert_eq!(find(0, 0), Some((Offset::new(10), ts(0))));
        assert_eq!(find(301, 0), None);
        assert_eq!(max_timestamp_record(&view).unwrap(), Some((Offset::new(12), ts(300))));
    }
}

#[test]
fn every_record_of_a_log_append_time_batch_has_the_time_of_the_append() {
    for codec in Codec::ALL {
        let mut batch = times(codec);
        set_max_timestamp_and_type(&mut batch, ts(900), TimestampType::LogAppendTime);
        let view = BatchView::parse(&batch).unwrap();
        let find = |time| first_record_at_or_after(&view, ts(time), Offset::ZERO).unwrap();
        assert_eq!(find(901), None);
        assert_eq!(find(400), Some((Offset::new(10), ts(900))));
        assert_eq!(max_timestamp_record(&view).unwrap(), Some((Offset::new(10), ts(900))));
    }
}

#[test]
fn a_batch_that_compaction_emptied_has_no_record() {
    let batch = BatchBuilder::new().last_offset_delta(4).max_timestamp(ts(7)).build().unwrap();
    let view = BatchView::parse(&batch).unwrap();
    assert_eq!(view.last_offset(), Offset::new(4));
    assert_eq!(max_timestamp_record(&view).unwrap(), None);
    assert_eq!(first_record_at_or_after(&view, ts(0), Offset::ZERO).unwrap(), None);
    assert_eq!(Records::of(&view).unwrap().next_record().unwrap(), None);
}

#[test]
fn whole_records_are_read_from_every_codec() {
    let big = vec![b'x'; 200_000];
    let headers: [(&[u8], Option<&[u8]>); 3] = [(b"a", Some(b"")), (b"a", None), (b"a", Some(b"1"))];
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new().compression(Compression::default_level(codec));
        builder.push(ts(1), Some(b"k"), Some(&big), &headers).push(ts(2), None, Some(b""), &[]);
        let batch = builder.build().unwrap();
        let view = BatchView::parse(&batch).unwrap();
        let mut records = Records::of(&view).unwrap();
        let first = records.next_record().unwrap().unwrap();
        assert_eq!((first.key, first.value), (Some(&b"k"[..]), Some(&big[..])), "{codec:?}");
        assert_eq!(first.headers.collect::<Vec<_>>(), headers);
        let second = records.next_record().unwrap().unwrap();
        assert_eq!((second.key, second.value, second.offset_delta), (None, Some(&b""[..]), 1));
        assert_eq!(records.next_record(), Ok(None));
    }
}

#[test]
fn a_count_that_lies_is_told_by_the_reader() {
    for codec in Codec::ALL {
        for count in [1_i32, 3, 5, i32::MAX] {
            let mut batch = times(codec);
            batch[57..61].copy_from_slice(&count.to_be_bytes());
            let view = BatchView::parse(&batch).unwrap();
            let mut records = Records::of(&view).unwrap();
            let error = loop {
                match records.next_record() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("{codec:?} {count}"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error, ReadError::Count { stated: count });
        }
    }
}

#[test]
fn a_record_count_below_zero_is_a_fault_and_no_overflow() {
    // Found by fuzz_records; it would have ended the broker at a lookup by time in a damaged segment.
    for count in [i32::MIN, -1, 0] {
        let mut builder = BatchBuilder::new();
        builder.push(ts(5), None, Some(b"v"), &[]);
        let mut bytes = builder.build().unwrap();
        bytes[57..61].copy_from_slice(&count.to_be_bytes());
        let view = BatchView::parse(&bytes).unwrap();
        let found = first_record_at_or_after(&view, ts(0), Offset::ZERO);
        assert_eq!(found, Err(ReadError::Count { stated: count }));
    }
}

#[test]
fn a_batch_that_is_made_part_by_part_holds_the_same() {
    for codec in Codec::ALL {
        let builder = || {
            let mut builder = BatchBuilder::new().compression(Compression::default_level(codec));
            for number in 0..500_i64 {
                builder.push(ts(number), Some(&number.to_be_bytes()), Some(&[b'v'; 100]), &[]);
            }
            builder
        };
        let mut making = builder().begin().unwrap();
        let mut parts = 1;
        while making.go_on(1_000).unwrap() {
            parts += 1;
        }
        assert_eq!(parts > 50, codec != Codec::None, "{codec:?}");
        let (parts, whole) = (making.finish().unwrap(), builder().build().unwrap());
        let read = |bytes: &[u8]| {
            let view = BatchView::parse(bytes).unwrap();
            assert!(view.crc_is_valid());
            let mut records = Records::of(&view).unwrap();
            let mut found = Vec::new();
            while let Some(record) = records.next_record().unwrap() {
                found.push((
                    record.offset_delta,
                    record.key.map(<[u8]>::to_vec),
                    record.value.map(<[u8]>::to_vec),
                ));
            }
            (view.info().max_timestamp, found)
        };
        assert_eq!(read(&parts), read(&whole), "{codec:?}");
        // What was begun and not gone on with is made at the end.
        let begun = builder().begin().unwrap().finish().unwrap();
        assert_eq!(begun, whole, "{codec:?}");
    }
}

use proptest::prelude::*;
use protocol::types::ProducerId;

use super::offset::OffsetPosition;
use super::txn::{AbortedTxn, TxnIndex};
use super::*;

const BASE: Offset = Offset::new(1000);

fn at(offset: i64) -> Offset {
    Offset::new(offset)
}

fn ms(timestamp: i64) -> TimestampMs {
    TimestampMs::new(timestamp)
}

fn offsets(entries: &[(i64, u64)]) -> OffsetIndex {
    let mut index = OffsetIndex::new(BASE, 1024);
    for (offset, position) in entries {
        index.append(at(*offset), *position).unwrap();
    }
    index
}

fn times(entries: &[(i64, i64)]) -> TimeIndex {
    let mut index = TimeIndex::new(BASE, 1024);
    for (timestamp, offset) in entries {
        assert_eq!(index.maybe_append(ms(*timestamp), at(*offset)), Ok(true));
    }
    index
}

fn aborted(producer: i64, first: i64, last: i64, stable: i64) -> AbortedTxn {
    AbortedTxn {
        producer_id: ProducerId::new(producer),
        first_offset: at(first),
        last_offset: at(last),
        last_stable_offset: at(stable),
    }
}

#[test]
fn an_offset_index_has_kafkas_bytes() {
    let index = offsets(&[(1007, 4200), (1000 + 0x0102_0304, 0x0a0b_0c0d)]);
    let golden = [0, 0, 0, 7, 0, 0, 0x10, 0x68, 1, 2, 3, 4, 10, 11, 12, 13];
    assert_eq!(index.to_bytes(), &golden[..]);
    assert_eq!(index.unwritten(), Some(IndexWrite { at: 0, bytes: Bytes::copy_from_slice(&golden) }));
    let parsed = OffsetIndex::parse(BASE, &golden, 1024).unwrap();
    assert_eq!(parsed.padding_bytes, 0);
    assert_eq!(parsed.index.unwritten(), None);
    assert!(parsed.index.entries().eq(index.entries()));
}

#[test]
fn a_time_index_has_kafkas_bytes() {
    let index = times(&[(0x0102_0304_0506_0708, 1007)]);
    let golden = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 7];
    assert_eq!(index.to_bytes(), &golden[..]);
    let parsed = TimeIndex::parse(BASE, &golden, 1024).unwrap();
    assert!(parsed.index.entries().eq(index.entries()));
    assert_eq!(parsed.index.unwritten(), None);
}

#[test]
fn a_transaction_index_has_kafkas_bytes() {
    let mut index = TxnIndex::new();
    index.append(aborted(0x0102_0304_0506_0708, 9, 1010, 1011)).unwrap();
    let golden = [
        0, 0, // version
        1, 2, 3, 4, 5, 6, 7, 8, // producer id
        0, 0, 0, 0, 0, 0, 0, 9, // first offset
        0, 0, 0, 0, 0, 0, 3, 0xf2, // last offset
        0, 0, 0, 0, 0, 0, 3, 0xf3, // last stable offset
    ];
    assert_eq!(index.to_bytes(), &golden[..]);
    let mut parsed = TxnIndex::parse(BASE, &golden).unwrap();
    assert_eq!(parsed.entries(), index.entries());
    parsed.append(aborted(1, 1, 1012, 1012)).unwrap();
    assert_eq!(parsed.unwritten().map(|write| (write.at, write.bytes.len())), Some((34, 34)));
}

#[test]
fn padding_of_a_killed_kafka_is_not_read_as_entries() {
    let mut content = offsets(&[(1007, 4200)]).to_bytes().to_vec();
    content.resize(10 << 20, 0);
    let parsed = OffsetIndex::parse(BASE, &content, 10 << 20).unwrap();
    assert_eq!((parsed.index.len(), parsed.padding_bytes), (1, (10 << 20) - 8));
    assert!(parsed.index.memory_bytes() <= 8);

    let mut content = times(&[(5, 1007)]).to_bytes().to_vec();
    content.resize(1200, 0);
    let parsed = TimeIndex::parse(BASE, &content, 1200).unwrap();
    assert_eq!((parsed.index.len(), parsed.padding_bytes), (1, 1188));
}

#[test]
fn an_index_of_zeros_knows_nothing() {
    let parsed = TimeIndex::parse(BASE, &[0; 12], 1024).unwrap();
    assert_eq!((parsed.index.last(), parsed.padding_bytes), (None, 12));
    let parsed = OffsetIndex::parse(BASE, &[0; 8], 1024).unwrap();
    assert_eq!((parsed.index.last(), parsed.padding_bytes), (None, 8));
    assert!(OffsetIndex::parse(BASE, &[], 1024).unwrap().index.is_empty());
}

#[test]
fn sizes_that_are_no_multiple_are_errors() {
    let partial = |bytes, entry_bytes| IndexError::PartialEntry { bytes, entry_bytes };
    assert_eq!(OffsetIndex::parse(BASE, &[1; 9], 64), Err(partial(9, 8)));
    assert_eq!(TimeIndex::parse(BASE, &[1; 13], 64), Err(partial(13, 12)));
    assert_eq!(TxnIndex::parse(BASE, &[0; 35]), Err(partial(35, 34)));
}

#[test]
fn entries_out_of_order_or_range_are_errors() {
    let offset = |raw: &[u32]| {
        let content: Vec<u8> = raw.iter().flat_map(|word| word.to_be_bytes()).collect();
        OffsetIndex::parse(BASE, &content, 64).map(|_| ())
    };
    assert_eq!(offset(&[7, 10, 7, 20]), Err(IndexError::OutOfOrder(1)));
    assert_eq!(offset(&[7, 10, 8, 10]), Err(IndexError::OutOfOrder(1)));
    assert_eq!(offset(&[0, 0, 8, 10]), Ok(()));
    assert_eq!(offset(&[7, 10, 0, 0, 8, 20]), Err(IndexError::OutOfOrder(1)));
    assert_eq!(offset(&[0x8000_0000, 10]), Err(IndexError::OutOfRange(0)));
    assert_eq!(offset(&[7, 0x8000_0000]), Err(IndexError::OutOfRange(0)));

    let time = |raw: &[(i64, u32)]| {
        let content: Vec<u8> = raw
            .iter()
            .flat_map(|(timestamp, relative)| {
                [&timestamp.to_be_bytes()[..], &relative.to_be_bytes()].concat()
            })
            .collect();
        TimeIndex::parse(BASE, &content, 64).map(|_| ())
    };
    assert_eq!(time(&[(5, 7), (6, 7)]), Ok(()));
    assert_eq!(time(&[(5, 7), (5, 8)]), Err(IndexError::OutOfOrder(1)));
    assert_eq!(time(&[(5, 7), (6, 6)]), Err(IndexError::OutOfOrder(1)));
    assert_eq!(time(&[(-1, 7)]), Err(IndexError::OutOfRange(0)));
    assert_eq!(time(&[(5, 0x8000_0000)]), Err(IndexError::OutOfRange(0)));

    let txn = |entries: &[AbortedTxn]| {
        let mut content = Vec::new();
        for entry in entries {
            let mut one = TxnIndex::new();
            one.append(*entry).unwrap();
            content.extend_from_slice(&one.to_bytes());
        }
        TxnIndex::parse(BASE, &content).map(|_| ())
    };
    assert_eq!(txn(&[aborted(1, 1, 1001, 1), aborted(1, 1, 1001, 1)]), Err(IndexError::OutOfOrder(1)));
    assert_eq!(txn(&[aborted(1, 1, 999, 1)]), Err(IndexError::OutOfRange(0)));
    let mut newer = [0; 34];
    newer[0] = 1;
    assert_eq!(TxnIndex::parse(BASE, &newer), Err(IndexError::UnknownVersion { entry: 0, version: 1 }));
}

#[test]
fn an_offset_is_found_by_the_greatest_entry_not_above_it() {
    let index = offsets(&[(1010, 100), (1020, 200)]);
    let found = |target| {
        let OffsetPosition { offset, position } = index.lookup(at(target));
        (offset.get(), position)
    };
    assert_eq!(found(5), (1000, 0));
    assert_eq!(found(1009), (1000, 0));
    assert_eq!(found(1010), (1010, 100));
    assert_eq!(found(1019), (1010, 100));
    assert_eq!(found(i64::MAX), (1020, 200));
    assert_eq!(index.first_at_position(100).map(|entry| entry.offset), Some(at(1010)));
    assert_eq!(index.first_at_position(101).map(|entry| entry.offset), Some(at(1020)));
    assert_eq!(index.first_at_position(201), None);
    let ceiling = |target| index.ceiling(at(target)).map(|entry| entry.position);
    assert_eq!([5, 1010, 1011, 1020].map(ceiling), [100, 100, 200, 200].map(Some));
    assert_eq!((ceiling(1021), ceiling(i64::MAX)), (None, None));
}

#[test]
fn a_timestamp_is_found_by_the_greatest_entry_not_above_it() {
    let index = times(&[(10, 1003), (20, 1009)]);
    assert_eq!(index.lookup(ms(9)), None);
    assert_eq!(index.lookup(ms(10)).map(|entry| entry.offset), Some(at(1003)));
    assert_eq!(index.lookup(ms(19)).map(|entry| entry.offset), Some(at(1003)));
    assert_eq!(index.lookup(ms(i64::MAX)).map(|entry| entry.offset), Some(at(1009)));
}

#[test]
fn a_time_index_is_full_one_slot_early_and_the_closing_entry_still_fits() {
    let mut index = TimeIndex::new(BASE, 3 * 12 + 11);
    assert_eq!(index.maybe_append(ms(1), at(1001)), Ok(true));
    assert!(!index.is_full());
    assert_eq!(index.maybe_append(ms(2), at(1002)), Ok(true));
    assert!(index.is_full());
    assert_eq!(index.maybe_append(ms(3), at(1003)), Err(IndexAppendError::Full));
    assert_eq!(index.append_closing(ms(3), at(1003)), Ok(true));
    assert_eq!(index.append_closing(ms(4), at(1004)), Err(IndexAppendError::Full));
}

#[test]
fn t15_the_smallest_index_size_is_always_full_for_time() {
    assert!(TimeIndex::new(BASE, 12).is_full());
    assert!(TimeIndex::new(BASE, 23).is_full());
    assert!(!TimeIndex::new(BASE, 24).is_full());
    assert!(!OffsetIndex::new(BASE, 12).is_full());
    assert!(OffsetIndex::new(BASE, 4).is_full());
}

#[test]
fn t15_offsets_end_at_two_to_the_31_minus_1_past_the_base() {
    let mut index = OffsetIndex::new(BASE, 1024);
    let limit = 1000 + i64::from(i32::MAX);
    assert_eq!(index.append(at(999), 10), Err(IndexAppendError::OutOfRange));
    assert_eq!(index.append(at(limit + 1), 10), Err(IndexAppendError::OutOfRange));
    assert_eq!(index.append(at(limit), 1 << 31), Err(IndexAppendError::OutOfRange));
    assert_eq!(index.append(at(limit), 10), Ok(()));
    let mut index = TimeIndex::new(BASE, 1024);
    assert_eq!(index.maybe_append(ms(1), at(limit + 1)), Err(IndexAppendError::OutOfRange));
    assert_eq!(index.maybe_append(ms(1), at(limit)), Ok(true));
}

#[test]
fn appends_that_do_not_grow_are_refused() {
    let mut index = offsets(&[(1010, 100)]);
    assert_eq!(index.append(at(1010), 200), Err(IndexAppendError::OutOfOrder));
    assert_eq!(index.append(at(1011), 100), Err(IndexAppendError::OutOfOrder));
    let mut index = times(&[(10, 1003)]);
    assert_eq!(index.maybe_append(ms(10), at(1009)), Ok(false));
    assert_eq!(index.maybe_append(ms(11), at(1002)), Err(IndexAppendError::OutOfOrder));
    assert_eq!(TimeIndex::new(BASE, 64).maybe_append(ms(-1), at(1002)), Ok(false));
}

#[test]
fn truncation_drops_entries_at_and_above_the_offset_and_rewinds_what_is_written() {
    let mut index = offsets(&[(1010, 100), (1020, 200), (1030, 300)]);
    index.mark_written(index.size_bytes());
    index.truncate_to(at(1020));
    assert_eq!((index.size_bytes(), index.unwritten()), (8, None));
    index.append(at(1021), 201).unwrap();
    assert_eq!(index.unwritten().map(|write| write.at), Some(8));

    let mut index = times(&[(1, 1010), (2, 1010), (3, 1011)]);
    index.truncate_to(at(1011));
    assert_eq!(index.last(), Some(MaxTimestamp { timestamp: ms(2), offset: at(1010) }));
    index.truncate_to(at(1010));
    assert!(index.is_empty());

    let mut index = TxnIndex::new();
    index.append(aborted(1, 1000, 1010, 1011)).unwrap();
    index.append(aborted(2, 1001, 1020, 1021)).unwrap();
    index.mark_written(68);
    index.truncate_to(at(1020));
    assert_eq!((index.entries().len(), index.size_bytes(), index.unwritten()), (1, 34, None));
    assert_eq!(index.append(aborted(2, 1001, 1010, 1021)), Err(IndexAppendError::OutOfOrder));
}

#[test]
fn aborted_transactions_are_collected_until_an_entry_proves_that_none_follows() {
    let mut index = TxnIndex::new();
    for txn in [aborted(1, 1000, 1010, 1005), aborted(2, 1005, 1020, 1015), aborted(3, 1015, 1030, 1031)] {
        index.append(txn).unwrap();
    }
    let collect = |from, upper| {
        let collected = index.collect(at(from), at(upper));
        let ids: Vec<_> = collected.transactions.iter().map(|txn| txn.producer_id.get()).collect();
        (ids, collected.is_complete)
    };
    assert_eq!(collect(1000, 1005), (vec![1], true));
    assert_eq!(collect(1000, 1006), (vec![1, 2], true));
    assert_eq!(collect(1011, 1016), (vec![2, 3], true));
    assert_eq!(collect(1021, 1032), (vec![3], false));
    assert_eq!(collect(1031, 1040), (vec![], false));
}

fn place(last_offset: i64, max_timestamp: i64, position: u64, bytes: u64) -> BatchPlace {
    BatchPlace {
        last_offset: at(last_offset),
        max_timestamp: ms(max_timestamp),
        position,
        bytes,
        is_empty: false,
    }
}

#[test]
fn s14_a_batch_is_indexed_once_more_than_the_interval_was_added_before_it() {
    let (mut rule, mut offsets, mut times) = (SparseRule::new(None), OffsetIndex::new(BASE, 64), times(&[]));
    rule.on_batch(place(1000, 5, 0, 4096), 4096, &mut offsets, &mut times);
    rule.on_batch(place(1001, 9, 4096, 1), 4096, &mut offsets, &mut times);
    assert!(offsets.is_empty());
    rule.on_batch(place(1004, 7, 4097, 10), 4096, &mut offsets, &mut times);
    assert_eq!(offsets.last(), Some(OffsetPosition { offset: at(1004), position: 4097 }));
    assert_eq!(times.last(), Some(MaxTimestamp { timestamp: ms(9), offset: at(1001) }));
    rule.on_batch(place(1005, 7, 4107, 10), 4096, &mut offsets, &mut times);
    assert_eq!(offsets.len(), 1);
}

#[test]
fn t15_an_interval_of_zero_indexes_every_batch_but_the_first_and_a_full_index_goes_without() {
    let (mut rule, mut offsets, mut times) =
        (SparseRule::new(None), OffsetIndex::new(BASE, 12), TimeIndex::new(BASE, 12));
    for number in 0..4 {
        rule.on_batch(
            place(1000 + number, number, number.unsigned_abs() * 70, 70),
            0,
            &mut offsets,
            &mut times,
        );
    }
    assert_eq!(offsets.last(), Some(OffsetPosition { offset: at(1001), position: 70 }));
    assert!(times.is_empty());
    rule.close(&mut times);
    assert_eq!(times.last(), Some(MaxTimestamp { timestamp: ms(3), offset: at(1003) }));
}

#[test]
fn s15_the_entry_names_the_earliest_batch_with_the_greatest_timestamp() {
    let (mut rule, mut offsets, mut times) = (SparseRule::new(None), OffsetIndex::new(BASE, 64), times(&[]));
    for (number, timestamp) in (0..).zip([5, 9, 9, 3]) {
        rule.on_batch(
            place(1000 + number, timestamp, 10 * number.unsigned_abs(), 10),
            1 << 20,
            &mut offsets,
            &mut times,
        );
    }
    rule.close(&mut times);
    assert_eq!(times.last(), Some(MaxTimestamp { timestamp: ms(9), offset: at(1001) }));
    rule.close(&mut times);
    assert_eq!(times.len(), 1);
}

#[test]
fn s15_an_emptied_batch_is_named_only_if_there_is_no_other() {
    let emptied = BatchPlace { is_empty: true, ..place(1000, 50, 0, 61) };
    let (mut rule, mut offsets, mut index) = (SparseRule::new(None), OffsetIndex::new(BASE, 64), times(&[]));
    rule.on_batch(emptied, 0, &mut offsets, &mut index);
    rule.on_batch(BatchPlace { last_offset: at(1001), position: 61, ..emptied }, 0, &mut offsets, &mut index);
    assert!(index.is_empty());
    assert_eq!(rule.max_timestamp(), Some(MaxTimestamp { timestamp: ms(50), offset: at(1000) }));
    let mut alone = index.clone();
    rule.close(&mut alone);
    assert_eq!(alone.last().map(|entry| entry.offset), Some(at(1000)));
    rule.on_batch(place(1002, 8, 122, 70), 0, &mut offsets, &mut index);
    rule.close(&mut index);
    assert_eq!(index.last(), Some(MaxTimestamp { timestamp: ms(8), offset: at(1002) }));
}

#[test]
fn a_segment_without_timestamps_has_no_time_entry() {
    let (mut rule, mut offsets, mut index) = (SparseRule::new(None), OffsetIndex::new(BASE, 64), times(&[]));
    rule.on_batch(place(1000, -1, 0, 61), 0, &mut offsets, &mut index);
    rule.on_batch(place(1001, -1, 61, 61), 0, &mut offsets, &mut index);
    rule.close(&mut index);
    assert_eq!((offsets.len(), index.len(), rule.max_timestamp()), (1, 0, None));
}

proptest! {
    #[test]
    fn lookups_equal_a_linear_search_and_files_survive_the_round_trip(
        steps in prop::collection::vec((1..50_i64, 1..500_u64, 0..100_i64), 0..80),
        interval in 0..1000_u64,
        cut in 1000..3000_i64,
    ) {
        let (mut rule, mut offsets, mut index) =
            (SparseRule::new(None), OffsetIndex::new(BASE, 1 << 12), TimeIndex::new(BASE, 1 << 12));
        let (mut offset, mut position, mut batches) = (999, 0, Vec::new());
        for (records, bytes, timestamp) in steps {
            offset += records;
            let batch = place(offset, timestamp, position, bytes);
            rule.on_batch(batch, interval, &mut offsets, &mut index);
            batches.push(batch);
            position += bytes;
        }
        rule.close(&mut index);
        // T-13: what dump-log checks of every entry.
        for entry in offsets.entries() {
            prop_assert!(batches.iter().any(|b| b.last_offset == entry.offset && b.position == entry.position));
        }
        for entry in index.entries() {
            let holder = batches.iter().find(|b| b.last_offset == entry.offset).unwrap();
            prop_assert_eq!(holder.max_timestamp, entry.timestamp);
            prop_assert!(batches.iter().all(|b| b.last_offset > entry.offset || b.max_timestamp <= entry.timestamp));
        }
        for target in (990..offset + 2).step_by(7) {
            let naive = offsets.entries().filter(|e| e.offset <= at(target)).last();
            prop_assert_eq!(offsets.lookup(at(target)), naive.unwrap_or(OffsetPosition { offset: BASE, position: 0 }));
            prop_assert_eq!(offsets.ceiling(at(target)), offsets.entries().find(|e| e.offset >= at(target)));
        }
        for target in -1..101 {
            prop_assert_eq!(index.lookup(ms(target)), index.entries().filter(|e| e.timestamp <= ms(target)).last());
        }
        let kept: Vec<_> = offsets.entries().filter(|e| e.offset < at(cut)).collect();
        offsets.truncate_to(at(cut));
        prop_assert!(offsets.entries().eq(kept));
        index.truncate_to(at(cut));
        let reread = OffsetIndex::parse(BASE, &offsets.to_bytes(), 1 << 12).unwrap();
        prop_assert!(reread.index.entries().eq(offsets.entries()));
        let reread = TimeIndex::parse(BASE, &index.to_bytes(), 1 << 12).unwrap();
        let lost = index.entries().len() - reread.index.len();
        prop_assert_eq!(lost * 12, reread.padding_bytes);
    }
}

//! Reads: bounds, limits, segments, lookups by time.

use protocol::records::compression::Compression;

use super::*;

fn small_segments() -> LogConfig {
    LogConfig { segment_bytes: 400, index_interval_bytes: 100, ..LogConfig::default() }
}

#[test]
fn a_read_begins_with_the_batch_that_holds_the_offset() {
    let (runtime, log) = fresh(LogConfig::default());
    for at in 0..4 {
        append(&runtime, &log, batch(3, 10, at));
    }
    settle(&runtime, &log);
    let read = try_read(&runtime, &log, 7, 1 << 20, true).unwrap();
    assert_eq!(read.base_offset, offset(6));
    assert_eq!(read_all(&runtime, &log, 7), [(6, 8, 3), (9, 11, 3)]);
}

#[test]
fn outside_the_log_is_an_error_and_at_its_end_is_empty() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(2, 10, 1));
    settle(&runtime, &log);
    assert_eq!(try_read(&runtime, &log, 2, 100, true).unwrap().bytes, 0);
    let beyond = try_read(&runtime, &log, 3, 100, true);
    assert!(matches!(beyond, Err(ReadError::OffsetOutOfRange { .. })), "{beyond:?}");
    run(&runtime, &log, |log| async move { log.advance_log_start(offset(1)).await }).unwrap();
    assert!(matches!(try_read(&runtime, &log, 0, 100, true), Err(ReadError::OffsetOutOfRange { .. })));
}

#[test]
fn nobody_reads_above_what_is_written_or_above_the_bound() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(2, 10, 1));
    let request =
        ReadRequest { from: offset(0), max_bytes: 999, upper_bound: offset(9), min_one_batch: true };
    // Still in the append buffer: the log end has moved, but nothing is handed out.
    let early = runtime.block_on({
        let log = log.clone();
        async move { log.read(request).await }
    });
    assert!(early.is_ok());
    append(&runtime, &log, batch(2, 10, 1));
    append(&runtime, &log, batch(2, 10, 1));
    settle(&runtime, &log);
    for (bound, batches) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (6, 3), (99, 3)] {
        let request = ReadRequest { upper_bound: offset(bound), ..request };
        let read = run(&runtime, &log, |log| async move { log.read(request).await }).unwrap();
        assert_eq!(BatchIter::new(&content(&read)).count(), batches, "bound {bound}");
    }
}

#[test]
fn the_limit_cuts_bytes_but_never_the_first_batch_when_one_is_due() {
    let (runtime, log) = fresh(LogConfig::default());
    let size = append_three(&runtime, &log);
    let whole = try_read(&runtime, &log, 0, 1, true).unwrap();
    assert_eq!((whole.bytes, whole.first_batch_incomplete), (size, false));
    let cut = try_read(&runtime, &log, 0, size + 7, true).unwrap();
    assert_eq!(cut.bytes, size + 7);
    let partial = try_read(&runtime, &log, 0, 10, false).unwrap();
    assert_eq!((partial.bytes, partial.first_batch_incomplete), (10, true));
}

fn append_three(runtime: &SimRuntime, log: &SimLog) -> usize {
    let one = batch(1, 50, 1);
    for _ in 0..3 {
        append(runtime, log, one.clone());
    }
    settle(runtime, log);
    one.len()
}

#[test]
fn a_read_never_spans_segments_and_finds_the_next_where_one_ends() {
    let (runtime, log) = fresh(small_segments());
    for at in 0..10 {
        append(&runtime, &log, batch(2, 50, at));
    }
    settle(&runtime, &log);
    assert!(log.segment_count() > 2);
    let bases: Vec<_> = log.all_segments().iter().map(|segment| segment.base_offset).collect();
    let read = try_read(&runtime, &log, 0, 1 << 20, true).unwrap();
    let all = content(&read);
    let last = BatchIter::new(&all).last().unwrap().unwrap();
    assert_eq!(last.next_offset(), bases[1]);
    assert_eq!(read_all(&runtime, &log, 0).len(), 10);
    assert_eq!(log.bytes_between(offset(0), offset(20)), BytesBetween::OlderSegment);
}

#[test]
fn bytes_between_counts_what_a_delayed_fetch_waits_for() {
    let (runtime, log) = fresh(LogConfig::default());
    let size = append_three(&runtime, &log);
    let size = u64::try_from(size).unwrap();
    assert_eq!(log.bytes_between(offset(0), offset(3)), BytesBetween::Bytes(3 * size));
    assert_eq!(log.bytes_between(offset(1), offset(2)), BytesBetween::Bytes(size));
    assert_eq!(log.bytes_between(offset(3), offset(3)), BytesBetween::Bytes(0));
}

/// A fetch reads no more of a part than it was told of: where the index has no entry, what is uncertain counts.
#[test]
fn bytes_between_is_never_less_than_a_read_hands_out() {
    let batches = |count: usize| u64::try_from(count * batch(3, 40, 0).len()).unwrap();
    // An entry for each batch but the first; for every third; none.
    for (interval, most_too_much) in [(0, batches(2)), (400, batches(5)), (1 << 20, batches(6))] {
        let config = LogConfig { index_interval_bytes: interval, ..LogConfig::default() };
        let runtime = machine();
        // No room for the newest batches: only the index tells.
        let log = open(&runtime, OpenOptions::new(config, TailBudget::new(0)));
        for at in 0..6 {
            append(&runtime, &log, batch(3, 40, at));
        }
        settle(&runtime, &log);
        for (from, bound) in (0..=18).flat_map(|from| (0..=20).map(move |bound| (from, bound))) {
            let request = ReadRequest {
                from: offset(from),
                max_bytes: 1 << 20,
                upper_bound: offset(bound),
                min_one_batch: false,
            };
            let read = run(&runtime, &log, |log| async move { log.read(request).await }).unwrap();
            let read = u64::try_from(read.bytes).unwrap();
            let BytesBetween::Bytes(told) = log.bytes_between(offset(from), offset(bound)) else {
                panic!("there is one segment");
            };
            assert!(told >= read, "{interval}: {told} of {read} bytes from {from} to {bound}");
            assert!(told <= read + most_too_much, "{interval}: {told} for {read} from {from} to {bound}");
        }
    }
}

fn at_or_after(runtime: &SimRuntime, log: &SimLog, time: i64) -> Option<(i64, i64)> {
    let end = log.log_end_offset();
    let found =
        run(runtime, log, |log| async move { log.offset_for_timestamp(TimestampMs::new(time), end).await });
    found.unwrap().map(|found| (found.offset.get(), found.timestamp.get()))
}

fn timed(codec: Compression, times: &[i64]) -> BytesMut {
    let mut builder = BatchBuilder::new();
    for time in times {
        builder.push(TimestampMs::new(*time), None, Some(b"v"), &[]);
    }
    builder.compression(codec).build().unwrap()
}

#[test]
fn f44_f46_a_lookup_by_time_finds_the_first_record_inside_batches_of_any_codec() {
    for codec in [Compression::None, Compression::Gzip { level: -1 }] {
        let (runtime, log) = fresh(small_segments());
        append(&runtime, &log, timed(codec, &[0, 100, 200, 300]));
        for times in [[400, 500], [450, 700], [600, 650]] {
            append(&runtime, &log, timed(codec, &times));
        }
        settle(&runtime, &log);
        assert_eq!(at_or_after(&runtime, &log, 150), Some((2, 200)));
        assert_eq!(at_or_after(&runtime, &log, 100), Some((1, 100)));
        assert_eq!(at_or_after(&runtime, &log, 460), Some((5, 500)));
        assert_eq!(at_or_after(&runtime, &log, 501), Some((7, 700)));
        assert_eq!(at_or_after(&runtime, &log, 701), None);
    }
}

#[test]
fn only_the_record_with_the_greatest_time_of_all_is_found() {
    let (runtime, log) = fresh(small_segments());
    for times in [[10, 20], [90, 30], [40, 50], [90, 60]] {
        append(&runtime, &log, timed(Compression::None, &times));
    }
    settle(&runtime, &log);
    for (bound, expected) in [(8, Some((2, 90))), (3, Some((2, 90))), (2, None), (0, None)] {
        let found =
            run(&runtime, &log, |log| async move { log.max_timestamp_offset(offset(bound)).await }).unwrap();
        assert_eq!(found.map(|found| (found.offset.get(), found.timestamp.get())), expected, "bound {bound}");
    }
    // A later segment with a greater one hides it from a bound in front of that.
    append(&runtime, &log, timed(Compression::None, &[95]));
    append(&runtime, &log, timed(Compression::None, &[1]));
    settle(&runtime, &log);
    assert!(log.segment_count() > 1, "the bound has to lie in another segment than the record");
    for (bound, expected) in [(10, Some(8)), (9, Some(8)), (8, None)] {
        let found =
            run(&runtime, &log, |log| async move { log.max_timestamp_offset(offset(bound)).await }).unwrap();
        assert_eq!(found.map(|found| found.offset.get()), expected, "bound {bound}");
    }
}

#[test]
fn damage_below_the_recovery_point_is_reported_not_hidden() {
    let (runtime, log) = fresh(small_segments());
    for at in 0..10 {
        append(&runtime, &log, batch(2, 50, at));
    }
    let log = reopen_clean(&runtime, log, small_segments());
    let name = file("00000000000000000000.log");
    let mut bytes = runtime.disk().content(&name).unwrap();
    bytes[8] = 0x7f;
    runtime.disk().put(&name, &bytes).unwrap();
    let read = try_read(&runtime, &log, 0, 100, true);
    assert_eq!(read.unwrap_err(), ReadError::Corrupt { base_offset: offset(0), position: 0 });
}

#[test]
fn a_copy_is_what_a_read_gives_and_nothing_only_at_the_end() {
    let (runtime, log) = fresh(small_segments());
    for at in 0..30 {
        append(&runtime, &log, batch(2, 10, at));
    }
    settle(&runtime, &log);
    assert!(log.segment_count() > 3);
    for max_bytes in [1, 150, 1 << 20] {
        let mut next = 0;
        loop {
            let request = ReadRequest {
                from: offset(next),
                max_bytes,
                upper_bound: log.log_end_offset(),
                min_one_batch: true,
            };
            let copied = run(&runtime, &log, |log| async move { log.copy(request).await }).unwrap();
            let Some(copied) = copied else { break };
            let read = try_read(&runtime, &log, next, max_bytes, true).unwrap();
            assert_eq!(copied, content(&read), "from {next}, {max_bytes} bytes");
            next = BatchIter::new(&copied).map(|view| view.unwrap().next_offset().get()).last().unwrap();
        }
        assert_eq!(offset(next), log.log_end_offset());
    }
    let beyond = ReadRequest { from: offset(61), max_bytes: 9, upper_bound: offset(99), min_one_batch: true };
    let beyond = run(&runtime, &log, |log| async move { log.copy(beyond).await });
    assert!(matches!(beyond, Err(ReadError::OffsetOutOfRange { .. })), "{beyond:?}");
}

#[test]
fn a_copy_of_a_file_that_has_lost_its_end_is_damage() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(2, 10, 0));
    settle(&runtime, &log);
    let path = file("00000000000000000000.log");
    let whole = runtime.disk().content(&path).unwrap();
    runtime.disk().put(&path, &whole[..whole.len() - 1]).unwrap();
    let request =
        ReadRequest { from: offset(0), max_bytes: 1 << 20, upper_bound: offset(2), min_one_batch: true };
    let copied = run(&runtime, &log, |log| async move { log.copy(request).await });
    assert!(matches!(copied, Err(ReadError::Corrupt { position: 0, .. })), "{copied:?}");
}

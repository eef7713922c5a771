//! Rounds of compaction on one log: producers, transactions, tombstones, old formats, groups, and what happens meanwhile.

use protocol::records::compression::Codec;
use protocol::records::reader::Records;

use super::*;
use crate::compaction::Cleanable;
use crate::config::CleanupPolicy;
use crate::io::sim::{Fault, OpKind};
use crate::names::SegmentFileKind;

pub(super) const LIMITS: CompactionLimits = CompactionLimits {
    map_bytes: 1 << 16,
    map_load_factor: 0.9,
    buffer_bytes: 512,
    bytes_per_second: f64::MAX,
    free_space_floor_bytes: 0,
};

/// Segments of one or two of the batches below.
pub(super) fn config() -> LogConfig {
    LogConfig {
        cleanup_policy: CleanupPolicy { delete: false, compact: true },
        segment_bytes: 400,
        index_interval_bytes: 100,
        segment_ms: i64::MAX,
        delete_retention_ms: 10_000,
        ..LogConfig::default()
    }
}

pub(super) type Pair<'a> = (&'a str, Option<&'a str>);

fn keyed(builder: BatchBuilder, pairs: &[Pair<'_>]) -> BytesMut {
    let mut builder = builder;
    for (key, value) in pairs {
        builder.push(NOW, Some(key.as_bytes()), value.map(str::as_bytes), &[]);
    }
    builder.build().expect("the batch fits")
}

pub(super) fn put(runtime: &SimRuntime, log: &SimLog, pairs: &[Pair<'_>]) -> Appended {
    append(runtime, log, keyed(BatchBuilder::new(), pairs))
}

/// Starts a segment, so that what was appended can be cleaned, and makes it durable.
pub(super) fn roll(runtime: &SimRuntime, log: &SimLog) {
    run(runtime, log, |log| async move {
        let structure = log.structure.enter().await;
        log.roll(log.log_end_offset(), &structure).await.unwrap();
        drop(structure);
        log.flush().await.unwrap();
    });
}

pub(super) fn cleanable(runtime: &SimRuntime, log: &SimLog) -> Cleanable {
    let now = TimestampMs::new(runtime.wall_ms());
    run(runtime, log, move |log| async move { log.cleanable(log.log_end_offset(), now).await }).unwrap()
}

pub(super) fn try_compact(runtime: &SimRuntime, log: &SimLog) -> Result<Compacted, CompactionError> {
    let what = cleanable(runtime, log);
    run(runtime, log, move |log| async move { log.compact(&what, &LIMITS).await })
}

pub(super) fn compact(runtime: &SimRuntime, log: &SimLog) -> Compacted {
    roll(runtime, log);
    let done = try_compact(runtime, log).expect("the round comes to its end");
    check_indexes(runtime, log);
    done
}

/// Offset, key and value of every record.
pub(super) fn records(runtime: &SimRuntime, log: &SimLog) -> Vec<(i64, String, Option<String>)> {
    let mut seen = Vec::new();
    let mut next = log.log_start_offset().get();
    loop {
        let read = try_read(runtime, log, next, 1 << 20, true).expect("the log is readable");
        if read.bytes == 0 {
            return seen;
        }
        let all = content(&read);
        for view in BatchIter::new(&all) {
            let view = view.expect("a batch");
            next = view.next_offset().get();
            let mut records = Records::of(&view).unwrap();
            while let Some(record) = records.next_record().unwrap() {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let offset = view.base_offset().get() + i64::from(record.offset_delta);
                if !view.attributes().is_control() {
                    seen.push((offset, text(record.key.unwrap()), record.value.map(text)));
                }
            }
        }
    }
}

pub(super) fn record(offset: i64, key: &str, value: Option<&str>) -> (i64, String, Option<String>) {
    (offset, key.to_owned(), value.map(str::to_owned))
}

pub(super) fn names(runtime: &SimRuntime) -> Vec<String> {
    let inside = runtime.clone();
    let listed =
        runtime.block_on(async move { inside.dir(crate::io::DirOp::List(DIR.into())).await }).unwrap();
    let crate::io::DirDone::Entries(entries) = listed else { panic!("a list") };
    entries.into_iter().map(|entry| entry.name).collect()
}

pub(super) fn left_overs(runtime: &SimRuntime) -> Vec<String> {
    let is_left = |name: &String| name.ends_with(".cleaned") || name.ends_with(".swap");
    names(runtime).into_iter().filter(is_left).collect()
}

#[test]
fn of_each_key_the_last_record_stays_at_its_offset_and_segments_become_fewer() {
    let (runtime, log) = fresh(config());
    for round in 0..6 {
        let value = format!("{round}-{}", "x".repeat(60));
        put(&runtime, &log, &[("a", Some(&value)), ("b", Some("1")), ("c", Some(&value))]);
    }
    put(&runtime, &log, &[("b", Some("2"))]);
    let before = log.segment_count();
    let done = compact(&runtime, &log);
    assert_eq!((done.records_read, done.records_kept), (19, 3));
    assert!(log.segment_count() > 3, "groups are formed by what segments were");
    put(&runtime, &log, &[("d", Some("1"))]);
    compact(&runtime, &log);
    assert_eq!((before, log.segment_count()), (6, 2), "one, and the active one");
    let last = format!("5-{}", "x".repeat(60));
    let expected = [
        record(15, "a", Some(&last)),
        record(17, "c", Some(&last)),
        record(18, "b", Some("2")),
        record(19, "d", Some("1")),
    ];
    assert_eq!(records(&runtime, &log), expected);
    assert_eq!((log.log_end_offset(), log.cleaner_offset()), (offset(20), Some(offset(20))));
    assert_eq!(left_overs(&runtime), Vec::<String>::new());
    let log = reopen_clean(&runtime, log, config());
    assert_eq!(records(&runtime, &log), expected);
    assert_eq!(log.log_end_offset(), offset(20));
}

#[test]
fn batches_of_every_codec_are_cleaned_and_keep_theirs() {
    let (runtime, log) = fresh(LogConfig { segment_bytes: 100_000, ..config() });
    for codec in Codec::ALL {
        let builder = || {
            BatchBuilder::new().compression(protocol::records::compression::Compression::default_level(codec))
        };
        append(&runtime, &log, keyed(builder(), &[("k", Some("old")), (codec.name(), Some("v"))]));
    }
    compact(&runtime, &log);
    let kept = records(&runtime, &log);
    let keys: Vec<_> = kept.iter().map(|(offset, key, _)| (*offset, key.as_str())).collect();
    assert_eq!(keys, [(1, "none"), (3, "gzip"), (5, "snappy"), (7, "lz4"), (8, "k"), (9, "zstd")]);
    let all = content(&try_read(&runtime, &log, 0, 1 << 20, true).unwrap());
    let codecs: Vec<_> =
        BatchIter::new(&all).map(|view| view.unwrap().attributes().codec().unwrap()).collect();
    assert_eq!(codecs, Codec::ALL);
}

/// F43.
#[test]
fn a_tombstone_stays_until_its_retention_has_passed_since_it_was_first_cleaned() {
    let (runtime, log) = fresh(config());
    put(&runtime, &log, &[("a", Some("1")), ("b", Some("1"))]);
    put(&runtime, &log, &[("a", None)]);
    compact(&runtime, &log);
    assert_eq!(records(&runtime, &log), [record(1, "b", Some("1")), record(2, "a", None)]);
    runtime.advance_ms(9_000);
    put(&runtime, &log, &[("c", Some("1"))]);
    compact(&runtime, &log);
    assert_eq!(records(&runtime, &log)[1], record(2, "a", None), "cleaned again before its time");
    runtime.advance_ms(2_000);
    put(&runtime, &log, &[("c", Some("2"))]);
    compact(&runtime, &log);
    assert_eq!(records(&runtime, &log), [record(1, "b", Some("1")), record(4, "c", Some("2"))]);
}

/// F32.
#[test]
fn a_producer_goes_on_with_its_sequence_after_its_last_record_was_compacted_away() {
    let (runtime, log) = fresh(config());
    let of =
        |id, sequence| BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(0), sequence);
    append(&runtime, &log, keyed(of(1, 0), &[("k", Some("1"))]));
    append(&runtime, &log, keyed(of(1, 1), &[("k", Some("2"))]));
    append(&runtime, &log, keyed(of(2, 0), &[("k", Some("3"))]));
    compact(&runtime, &log);
    assert_eq!(records(&runtime, &log), [record(2, "k", Some("3"))]);
    assert_eq!(read_all(&runtime, &log, 0), [(1, 1, 0), (2, 2, 1)], "the header of its last batch is left");
    // Without any snapshot, from what is left of the log.
    settle(&runtime, &log);
    for name in names(&runtime) {
        if name.ends_with(".snapshot") {
            let (inside, path) = (runtime.clone(), file(&name));
            runtime.block_on(async move { inside.dir(crate::io::DirOp::Unlink(path)).await }).unwrap();
        }
    }
    let (runtime, log) = crash_and_open(&runtime, crate::io::sim::Crash::KeepAll, options(config()));
    append(&runtime, &log, keyed(of(1, 2), &[("k", Some("4"))]));
    let again = try_append(&runtime, &log, keyed(of(1, 9), &[("k", Some("5"))]), CLIENT);
    assert!(matches!(again, Err(AppendError::Producer(_))), "its sequence is known: {again:?}");
}

fn transactional(id: i64, sequence: i32) -> BatchBuilder {
    BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(0), sequence).transactional()
}

fn marker(runtime: &SimRuntime, log: &SimLog, id: i64, is_commit: bool) {
    let mut builder = BatchBuilder::new()
        .producer(ProducerId::new(id), ProducerEpoch::new(0), -1)
        .transactional()
        .control();
    let kind = u8::from(is_commit);
    builder.push(NOW, Some(&[0, 0, 0, kind]), Some(&[0, 0, 0, 0, 0, 1]), &[]);
    let origin = AppendOrigin::Coordinator(Verification::NotRequired);
    try_append(runtime, log, builder.build().unwrap(), origin).expect("the log takes the marker");
}

fn aborted(runtime: &SimRuntime, log: &SimLog) -> Vec<(i64, i64)> {
    let found =
        run(
            runtime,
            log,
            |log| async move { log.aborted_transactions(Offset::ZERO, log.log_end_offset()).await },
        );
    found.unwrap().into_iter().map(|txn| (txn.first_offset.get(), txn.last_offset.get())).collect()
}

/// F42.
#[test]
fn data_of_an_aborted_transaction_goes_first_and_its_marker_a_retention_later() {
    let (runtime, log) = fresh(LogConfig { segment_bytes: 100_000, ..config() });
    put(&runtime, &log, &[("a", Some("plain"))]);
    append(&runtime, &log, keyed(transactional(1, 0), &[("a", Some("aborted"))]));
    marker(&runtime, &log, 1, false);
    append(&runtime, &log, keyed(transactional(1, 1), &[("b", Some("committed"))]));
    marker(&runtime, &log, 1, true);
    put(&runtime, &log, &[("z", Some("last"))]);
    compact(&runtime, &log);
    let expected =
        [record(0, "a", Some("plain")), record(3, "b", Some("committed")), record(5, "z", Some("last"))];
    assert_eq!(records(&runtime, &log), expected);
    assert_eq!(read_all(&runtime, &log, 0), [(0, 0, 1), (2, 2, 1), (3, 3, 1), (4, 4, 1), (5, 5, 1)]);
    assert_eq!(aborted(&runtime, &log), [(1, 2)], "its data was still in what was cleaned");
    for (wait_ms, markers) in [(0, [2, 4]), (11_000, [4, 4])] {
        runtime.advance_ms(wait_ms);
        put(&runtime, &log, &[("z", Some("again"))]);
        compact(&runtime, &log);
        let bases: Vec<_> = read_all(&runtime, &log, 0).iter().map(|(base, ..)| *base).collect();
        assert!(markers.iter().all(|marker| bases.contains(marker)), "{wait_ms}: {bases:?}");
        assert_eq!(bases.contains(&2), wait_ms == 0, "{bases:?}");
        assert_eq!(aborted(&runtime, &log), [], "nothing of it is left");
    }
}

#[test]
fn an_open_transaction_bounds_what_is_cleaned() {
    let (runtime, log) = fresh(config());
    put(&runtime, &log, &[("a", Some("1"))]);
    put(&runtime, &log, &[("a", Some("2"))]);
    roll(&runtime, &log);
    append(&runtime, &log, keyed(transactional(1, 0), &[("a", Some("open"))]));
    roll(&runtime, &log);
    let unstable = log.first_unstable_offset(log.log_end_offset()).unwrap();
    let what = run(&runtime, &log, move |log| async move { log.cleanable(unstable, NOW).await }).unwrap();
    assert_eq!(what.first_uncleanable, offset(2));
}

#[test]
fn what_is_not_durable_or_too_young_is_not_cleaned_and_what_is_old_is_overdue() {
    let lags = LogConfig { min_compaction_lag_ms: 1000, max_compaction_lag_ms: 5000, ..config() };
    let (runtime, log) = fresh(lags);
    put(&runtime, &log, &[("a", Some("1"))]);
    roll(&runtime, &log);
    assert_eq!(cleanable(&runtime, &log).cleanable_bytes, 0, "younger than the least lag");
    runtime.advance_ms(1500);
    let what = cleanable(&runtime, &log);
    assert!(what.cleanable_bytes > 0 && !what.is_overdue);
    log.recovery_point.set(Offset::ZERO);
    assert_eq!(cleanable(&runtime, &log).cleanable_bytes, 0, "a power cut could take it");
    log.recovery_point.set(log.log_end_offset());
    runtime.advance_ms(5000);
    assert!(cleanable(&runtime, &log).is_overdue);
}

#[test]
fn a_map_that_is_full_ends_the_round_there_and_the_next_one_goes_on() {
    let (runtime, log) = fresh(config());
    for key in 0..20 {
        put(&runtime, &log, &[(&format!("k{key}"), Some("1")), ("same", Some("1"))]);
    }
    roll(&runtime, &log);
    let limits = CompactionLimits { map_bytes: 24 * 8, map_load_factor: 1.0, ..LIMITS };
    let mut ends = Vec::new();
    for _ in 0..20 {
        let what = cleanable(&runtime, &log);
        if what.cleanable_bytes == 0 || what.first_dirty >= what.first_uncleanable {
            break;
        }
        let done = run(&runtime, &log, move |log| async move { log.compact(&what, &limits).await }).unwrap();
        ends.push(done.first_dirty.unwrap());
    }
    assert!(ends.len() > 2 && ends.is_sorted() && ends.last() == Some(&offset(40)), "{ends:?}");
    assert_eq!(records(&runtime, &log).len(), 21);
    let none = CompactionLimits { map_bytes: 23, ..LIMITS };
    put(&runtime, &log, &[("x", Some("1"))]);
    roll(&runtime, &log);
    let what = cleanable(&runtime, &log);
    let failed = run(&runtime, &log, move |log| async move { log.compact(&what, &none).await });
    assert_eq!(failed, Err(CompactionError::MapTooSmall));
}

/// A message of magic 1 with one key, as old brokers wrote it.
fn old_message(magic: i8, at: i64, key: &str, value: Option<&[u8]>, attributes: u8) -> Vec<u8> {
    let mut body = vec![magic.cast_unsigned(), attributes];
    if magic == 1 {
        body.extend_from_slice(&NOW.get().to_be_bytes());
    }
    for field in [if key.is_empty() { None } else { Some(key.as_bytes()) }, value] {
        body.extend_from_slice(&field.map_or(-1, |field| i32::try_from(field.len()).unwrap()).to_be_bytes());
        body.extend_from_slice(field.unwrap_or_default());
    }
    let mut out = at.to_be_bytes().to_vec();
    out.extend_from_slice(&i32::try_from(body.len() + 4).unwrap().to_be_bytes());
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &body);
    out.extend_from_slice(&u32::try_from(crc).unwrap().to_be_bytes());
    out.extend_from_slice(&body);
    out
}

#[test]
fn messages_of_the_old_formats_are_cleaned_one_by_one_also_in_a_wrapper() {
    for magic in [0, 1] {
        let runtime = machine();
        let inner: Vec<u8> = [("a", "1"), ("b", "1"), ("a", "2")]
            .iter()
            .zip(0..)
            .flat_map(|((key, value), at)| {
                let at = if magic == 0 { at + 1 } else { at };
                old_message(magic, at, key, Some(value.as_bytes()), 0)
            })
            .collect();
        let packed = protocol::records::compression::compress(
            protocol::records::compression::Compression::default_level(Codec::Gzip),
            &inner,
            Vec::new(),
        )
        .unwrap();
        let mut old = old_message(magic, 0, "c", Some(b"old"), 0);
        old.extend(old_message(magic, 3, "", Some(&packed), 1));
        old.extend(old_message(magic, 4, "c", Some(b"new"), 0));
        let inside = runtime.clone();
        runtime.block_on(async move { inside.dir(crate::io::DirOp::CreateAll(DIR.into())).await }).unwrap();
        runtime.disk().put(file("00000000000000000000.log"), &old).unwrap();
        let log = open(&runtime, options(config()));
        assert_eq!(log.log_end_offset(), offset(5));
        roll(&runtime, &log);
        let done = try_compact(&runtime, &log).unwrap();
        assert_eq!((done.records_read, done.records_kept), (5, 3), "magic {magic}");
        let bytes = runtime.disk().content(file("00000000000000000000.log")).unwrap();
        let mut left = old_message(magic, 2, "b", Some(b"1"), 0);
        left.extend(old_message(magic, 3, "a", Some(b"2"), 0));
        left.extend(old_message(magic, 4, "c", Some(b"new"), 0));
        assert_eq!(bytes, left, "magic {magic}");
    }
}

/// No checksum covers the base offset: believed, it would take every later record of the batch's keys.
#[test]
fn a_batch_beyond_the_end_of_its_segment_is_damage() {
    let (runtime, log) = fresh(config());
    for value in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        put(&runtime, &log, &[("a", Some(value)), ("b", Some(value))]);
    }
    roll(&runtime, &log);
    let second = log.all_segments()[1].clone();
    let mut bytes = runtime.disk().content(second.path(SegmentFileKind::Log)).unwrap();
    bytes[5] ^= 0x10;
    runtime.disk().put(second.path(SegmentFileKind::Log), &bytes).unwrap();
    let failed = try_compact(&runtime, &log);
    let is_found = matches!(failed, Err(CompactionError::Damaged { base_offset, damage: CompactionDamage::NoBatch, .. }) if base_offset == second.base_offset);
    assert!(is_found, "{failed:?}");
}

#[test]
fn damage_ends_the_round_says_where_and_leaves_the_log_as_it_was() {
    let (runtime, log) = fresh(config());
    for value in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        put(&runtime, &log, &[("a", Some(value)), ("b", Some(value))]);
    }
    roll(&runtime, &log);
    let second = log.all_segments()[1].clone();
    let mut bytes = runtime.disk().content(second.path(SegmentFileKind::Log)).unwrap();
    let at = bytes.len() - 3;
    bytes[at] ^= 1;
    runtime.disk().put(second.path(SegmentFileKind::Log), &bytes).unwrap();
    let before = names(&runtime);
    let failed = try_compact(&runtime, &log);
    assert!(
        matches!(failed, Err(CompactionError::Damaged { base_offset, damage: CompactionDamage::Checksum, .. }) if base_offset == second.base_offset),
        "{failed:?}"
    );
    assert_eq!((names(&runtime), log.state()), (before, LogState::Online));
}

#[test]
fn a_full_disk_ends_the_round_and_leaves_nothing_behind() {
    let (runtime, log) = fresh(LogConfig { segment_bytes: 100_000, ..config() });
    for value in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        put(&runtime, &log, &[("a", Some(value)), ("b", Some(value))]);
    }
    roll(&runtime, &log);
    let before = (names(&runtime), records(&runtime, &log));
    // The names of three files get their time, then they are renamed.
    let faults =
        [(OpKind::Open, 0), (OpKind::Open, 1), (OpKind::Write, 0), (OpKind::Names, 0), (OpKind::Names, 3)];
    for (kind, after) in faults.into_iter().chain([(OpKind::Names, 4), (OpKind::Names, 5)]) {
        let error = std::io::ErrorKind::StorageFull;
        runtime.disk().fail(Fault { path_contains: ".cleaned", after, error, ..Fault::once(kind) });
        assert_eq!(
            try_compact(&runtime, &log),
            Err(CompactionError::Log(LogError::Full)),
            "{kind:?} {after}"
        );
        assert_eq!((names(&runtime), records(&runtime, &log)), before, "{kind:?} {after}");
    }
    assert!(try_compact(&runtime, &log).is_ok());
}

#[test]
fn a_failing_disk_takes_the_log_offline() {
    let (runtime, log) = fresh(config());
    for value in ["1", "2", "3", "4"] {
        put(&runtime, &log, &[("a", Some(value)), ("b", Some(value))]);
    }
    roll(&runtime, &log);
    runtime.disk().fail(Fault { path_contains: ".swap", ..Fault::once(OpKind::Names) });
    assert!(matches!(try_compact(&runtime, &log), Err(CompactionError::Log(LogError::Offline { .. }))));
    assert!(matches!(log.state(), LogState::Offline { .. }));
}

/// Runs a round that stops to wait after each 64 KiB, and something else in one of its waits.
fn meanwhile<F: Future<Output = ()> + 'static>(
    config: LogConfig,
    what: impl FnOnce(SimLog) -> F + 'static,
) -> (SimRuntime, SimLog, Result<Compacted, CompactionError>) {
    meanwhile_in(LogConfig { segment_bytes: 40_000, ..config }, what)
}

fn meanwhile_in<F: Future<Output = ()> + 'static>(
    config: LogConfig,
    what: impl FnOnce(SimLog) -> F + 'static,
) -> (SimRuntime, SimLog, Result<Compacted, CompactionError>) {
    let (runtime, log) = fresh(config);
    let value = "x".repeat(10_000);
    for _ in 0..30 {
        put(&runtime, &log, &[("a", Some(&value)), ("b", Some(&value))]);
    }
    roll(&runtime, &log);
    let cleanable = cleanable(&runtime, &log);
    let limits = CompactionLimits { bytes_per_second: 100_000.0, ..LIMITS };
    let done = run(&runtime, &log, move |log| async move {
        let round = log.compact(&cleanable, &limits);
        let other = async {
            log.runtime.sleep_until(log.runtime.now().plus_ms(9_000)).await;
            what(log.clone()).await;
        };
        futures_util::join!(round, other).0
    });
    (runtime, log, done)
}

#[test]
fn appends_rolls_and_reads_go_on_during_a_round() {
    let (runtime, log, done) = meanwhile(config(), |log| async move {
        let value = "y".repeat(10_000);
        for _ in 0..10 {
            let bytes = keyed(BatchBuilder::new(), &[("a", Some(&value))]);
            let info = BatchView::parse(&bytes).unwrap().info();
            if log.must_prepare(&info, EPOCH, NOW) {
                log.prepare(&info, CLIENT, EPOCH, NOW).await.unwrap();
            }
            log.append(bytes, &info, CLIENT, EPOCH, NOW).unwrap();
            log.until_written(log.log_end_offset()).await.unwrap();
            let from = offset(20);
            let request =
                ReadRequest { from, max_bytes: 100, upper_bound: log.log_end_offset(), min_one_batch: true };
            assert!(log.read(request).await.unwrap().bytes > 0);
        }
    });
    assert_eq!(done.unwrap().first_dirty, Some(offset(60)));
    assert_eq!(log.log_end_offset(), offset(70));
    let kept: Vec<_> = records(&runtime, &log).into_iter().map(|(offset, ..)| offset).collect();
    assert_eq!(kept, [58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69]);
}

#[test]
fn a_round_stops_and_leaves_nothing_behind_when_the_log_is_closed_cut_emptied_or_compacted_no_more() {
    type Work = fn(SimLog) -> std::pin::Pin<Box<dyn Future<Output = ()>>>;
    let works: [(&str, Work); 4] = [
        ("close", |log| Box::pin(async move { log.close().await.unwrap() })),
        ("cut", |log| Box::pin(async move { log.truncate_to(offset(3)).await.unwrap() })),
        ("emptied", |log| Box::pin(async move { log.restart_at(offset(100)).await.unwrap() })),
        ("left", |log| {
            Box::pin(async move {
                let delete = CleanupPolicy { delete: true, compact: false };
                log.set_config(LogConfig { cleanup_policy: delete, ..config() });
            })
        }),
    ];
    for (name, work) in works {
        let (runtime, log, done) = meanwhile(config(), work);
        let expected = if name == "close" { LogError::Closed.into() } else { CompactionError::Stopped };
        assert!(done == Err(expected) || done == Err(CompactionError::Stopped), "{name}: {done:?}");
        assert_eq!(left_overs(&runtime), Vec::<String>::new(), "{name}");
        assert!(log.cleaner_offset().is_none(), "{name}");
    }
}

/// The segment that is being copied stays, and loses its end.
#[test]
fn what_is_cut_off_a_segment_while_it_is_copied_does_not_come_back() {
    for cut_to in [10, 30, 37] {
        let large = LogConfig { segment_bytes: 400_000, ..config() };
        let (runtime, log, done) = meanwhile_in(large, move |log| async move {
            assert_eq!(log.segment_count(), 3);
            log.truncate_to(offset(cut_to)).await.unwrap();
            let bytes = keyed(BatchBuilder::new(), &[("new", Some("1"))]);
            let info = BatchView::parse(&bytes).unwrap().info();
            if log.must_prepare(&info, EPOCH, NOW) {
                log.prepare(&info, CLIENT, EPOCH, NOW).await.unwrap();
            }
            log.append(bytes, &info, CLIENT, EPOCH, NOW).unwrap();
            log.until_written(log.log_end_offset()).await.unwrap();
        });
        assert_eq!(done, Err(CompactionError::Stopped), "{cut_to}");
        assert_eq!(left_overs(&runtime), Vec::<String>::new());
        let offsets: Vec<_> = records(&runtime, &log).into_iter().map(|(offset, ..)| offset).collect();
        let kept = cut_to - cut_to % 2;
        assert_eq!(offsets, (0..kept).chain([cut_to]).collect::<Vec<_>>());
        let log = reopen_clean(&runtime, log, config());
        assert_eq!(records(&runtime, &log).len(), offsets.len());
    }
}

/// Retention between the look and the round: the round has nothing to map, which is no want of room (a log without room is
/// set aside, and not retained either).
#[test]
fn a_round_whose_dirty_part_is_gone_is_stopped_and_not_for_want_of_room() {
    let (runtime, log) = fresh(config());
    for round in 0..4 {
        put(&runtime, &log, &[("a", Some("1")), ("b", Some("2"))]);
        roll(&runtime, &log);
        assert!(log.segment_count() > round);
    }
    let what = cleanable(&runtime, &log);
    let start = log.log_end_offset();
    run(&runtime, &log, move |log| async move {
        log.advance_log_start(start).await.unwrap();
        assert!(log.retain(NOW, start).await.unwrap().segments > 0);
    });
    let done = run(&runtime, &log, move |log| async move { log.compact(&what, &LIMITS).await });
    assert_eq!(done.map(|_| ()), Err(CompactionError::Stopped));
}

#[test]
fn segments_that_retention_takes_meanwhile_end_the_round() {
    let both = CleanupPolicy { delete: true, compact: true };
    let config = LogConfig { cleanup_policy: both, retention_bytes: 100_000, retention_ms: -1, ..config() };
    let (runtime, log, done) = meanwhile(config, |log| async move {
        let retained = log.retain(NOW, log.log_end_offset()).await.unwrap();
        assert!(retained.segments > 0);
    });
    assert_eq!(done, Err(CompactionError::Stopped));
    assert_eq!(left_overs(&runtime), Vec::<String>::new());
    let start = log.log_start_offset();
    assert!(start > Offset::ZERO);
    assert!(try_compact(&runtime, &log).is_ok(), "the next one begins with what is left");
    assert!(records(&runtime, &log).iter().all(|(at, ..)| *at >= start.get()));
}

#[test]
fn a_truncation_lowers_what_counts_as_compacted() {
    let (runtime, log) = fresh(config());
    for value in ["1", "2", "3", "4", "5", "6"] {
        put(&runtime, &log, &[(value, Some(value)), ("same", Some(value))]);
    }
    compact(&runtime, &log);
    assert_eq!(log.cleaner_offset(), Some(offset(12)));
    run(&runtime, &log, |log| async move { log.truncate_to(offset(7)).await }).unwrap();
    assert_eq!(log.cleaner_offset(), Some(log.active_base_offset()));
    run(&runtime, &log, |log| async move { log.restart_at(offset(2)).await }).unwrap();
    assert!(log.cleaner_offset() <= Some(offset(2)));
}

#[test]
fn lookups_find_records_and_segments_while_these_are_replaced_under_them() {
    let (runtime, log, done) = meanwhile(config(), |log| async move {
        // Names take long to change, so that there is much to be met in between.
        log.runtime.disk().set_slow(Some((".swap", 20_000_000)));
        for _ in 0..200 {
            let found = log.offset_for_timestamp(NOW, log.log_end_offset()).await.unwrap();
            assert!(found.is_some_and(|found| found.timestamp == NOW), "{found:?}");
            let times = log.segment_times().await.unwrap();
            assert!(times.len() >= 2 && times.is_sorted(), "{times:?}");
            log.runtime.sleep_until(log.runtime.now().plus_ms(17)).await;
        }
    });
    assert!(done.is_ok());
    assert_eq!((records(&runtime, &log).len(), log.state()), (2, LogState::Online));
}

//! What a start finds of a log that was compacted, or was being compacted (storage.md 7.6, 8.2), and what it believes.

use super::compaction::{
    LIMITS, cleanable, compact, config, left_overs, names, put, record, records, roll, try_compact,
};
use super::*;
use crate::config::CleanupPolicy;
use crate::io::sim::{Crash, Fault, OpKind};

/// Three segments of one key each, which the next one replaces, and the last records of all.
fn with_gaps() -> (SimRuntime, SimLog) {
    let (runtime, log) = fresh(config());
    for key in ["a", "b", "c"] {
        put(&runtime, &log, &[(key, Some("old")), (key, Some("kept"))]);
        put(&runtime, &log, &[("x", Some(key)), ("y", Some(key))]);
        roll(&runtime, &log);
    }
    put(&runtime, &log, &[("x", Some("last")), ("y", Some("last"))]);
    compact(&runtime, &log);
    (runtime, log)
}

fn left() -> Vec<(i64, String, Option<String>)> {
    let kept = [(1, "a"), (5, "b"), (9, "c")].map(|(offset, key)| record(offset, key, Some("kept")));
    let last = [(12, "x"), (13, "y")].map(|(offset, key)| record(offset, key, Some("last")));
    kept.into_iter().chain(last).collect()
}

/// A policy that does not compact.
fn delete() -> LogConfig {
    let cleanup_policy = CleanupPolicy { delete: true, compact: false };
    LogConfig { cleanup_policy, retention_ms: -1, ..config() }
}

#[test]
fn a_log_that_is_compacted_no_more_keeps_what_lies_behind_its_gaps() {
    for (vouched, compacted) in [(false, false), (true, false), (false, true), (true, true)] {
        let (runtime, log) = with_gaps();
        assert_eq!(records(&runtime, &log), left());
        assert!(log.segment_count() > 2);
        settle(&runtime, &log);
        // The checkpoints are from before all of it.
        let config = if compacted { config() } else { delete() };
        let options = OpenOptions { vouched, ..options(config) };
        let (runtime, log) = crash_and_open(&runtime, Crash::KeepAll, options);
        assert_eq!(records(&runtime, &log), left(), "{vouched} {compacted}");
        assert_eq!(log.log_end_offset(), offset(14));
        check_indexes(&runtime, &log);
    }
}

#[test]
fn a_gap_that_a_power_cut_has_left_ends_the_log() {
    let (runtime, log) = fresh(delete());
    for key in ["a", "b", "c", "d"] {
        put(&runtime, &log, &[(key, Some("1"))]);
        put(&runtime, &log, &[(key, Some("2"))]);
        roll(&runtime, &log);
    }
    let second = log.all_segments()[1].base_offset.get();
    let disk = runtime.disk().crash(Crash::KeepAll);
    // The last batch of the first segment was not durable yet, so that nobody had begun a snapshot behind it.
    let name = file("00000000000000000000.log");
    let mut bytes = disk.content(&name).unwrap();
    bytes.truncate(bytes.len() / 2);
    disk.put(&name, &bytes).unwrap();
    let after = SimRuntime::on(8, disk);
    let (inside, path) = (after.clone(), file(&format!("{second:020}.snapshot")));
    after.block_on(async move { inside.dir(crate::io::DirOp::Unlink(path)).await }).unwrap();
    let log = open(&after, options(delete()));
    assert_eq!((log.log_end_offset(), log.segment_count()), (offset(1), 1));
}

#[test]
fn a_start_that_believed_the_kernel_compacts_nothing_before_it_is_durable() {
    let (runtime, log) = fresh(config());
    for value in ["1", "2", "3", "4", "5", "6"] {
        put(&runtime, &log, &[("a", Some(value)), ("b", Some(value))]);
    }
    settle(&runtime, &log);
    // The process dies; what it has not synced stays so.
    let disk = runtime.disk().clone();
    runtime.kill();
    let after = SimRuntime::on(8, disk);
    let log = open(&after, OpenOptions { vouched: true, ..options(config()) });
    assert_eq!((log.log_end_offset(), log.recovery_point()), (offset(12), offset(0)));
    assert_eq!(cleanable(&after, &log).cleanable_bytes, 0, "a power cut could take the later records");
    roll(&after, &log);
    assert_eq!(log.recovery_point(), offset(12));
    assert!(try_compact(&after, &log).is_ok());
    let expected = [record(10, "a", Some("6")), record(11, "b", Some("6"))];
    assert_eq!(records(&after, &log), expected);
    let options = OpenOptions { recovery_point: offset(12), ..options(config()) };
    let (after, log) = crash_and_open(&after, Crash::DropUnsynced, options);
    assert_eq!(records(&after, &log), expected);
}

/// Each name in turn is the last one that was changed before the process died.
#[test]
fn t7_a_swap_that_was_cut_at_any_of_its_names_is_finished_or_never_was() {
    let mut states = std::collections::BTreeSet::new();
    for renamed in 0.. {
        let (runtime, log) = fresh(LogConfig { segment_bytes: 100_000, ..config() });
        for value in ["1", "2", "3"] {
            put(&runtime, &log, &[("a", Some(value)), ("b", Some(value))]);
            roll(&runtime, &log);
        }
        let before = records(&runtime, &log);
        runtime.disk().fail(Fault { after: renamed, times: u64::MAX, ..Fault::once(OpKind::Names) });
        let done = try_compact(&runtime, &log);
        runtime.disk().heal();
        if done.is_ok() {
            assert!(renamed > 20, "{renamed}");
            break;
        }
        let found = names(&runtime);
        let has = |state: &str| found.iter().any(|name| name.ends_with(state));
        states.insert([".cleaned", ".swap", ".deleted"].map(has));
        for vouched in [false, true] {
            let disk = runtime.disk().crash(Crash::KeepAll);
            let after = SimRuntime::on(9, disk);
            let log = open(&after, OpenOptions { vouched, recovery_point: offset(6), ..options(config()) });
            let seen = records(&after, &log);
            let expected = [record(4, "a", Some("3")), record(5, "b", Some("3"))];
            assert!(seen == before || seen == expected, "{renamed}: {seen:?}");
            // The new one counts from the moment that all its files have their second name.
            assert!(!has(".deleted") || seen == expected, "{renamed}: {found:?}");
            assert_eq!(left_overs(&after), Vec::<String>::new());
            assert!(!names(&after).iter().any(|name| name.ends_with(".deleted")));
            check_indexes(&after, &log);
        }
    }
    for state in [[true, false, false], [true, true, false], [false, true, false], [false, true, true]] {
        assert!(states.contains(&state), "cleaned, swap, deleted: {state:?} in {states:?}");
    }
}

#[test]
fn a_swap_that_a_start_finishes_keeps_the_snapshot_below_it() {
    let (runtime, log) = fresh(config());
    for sequence in 0..6 {
        append(&runtime, &log, keyed_of_producer(sequence));
    }
    roll(&runtime, &log);
    let bases: Vec<_> = log.all_segments().iter().map(|segment| segment.base_offset.get()).collect();
    let disk = runtime.disk();
    let (second, third) = (bases[1], bases[2]);
    let source = disk.content(file(&format!("{second:020}.log"))).unwrap();
    assert!(third > second);
    for (kind, content) in [("log", &source[..]), ("index", b""), ("timeindex", b"")] {
        disk.put(file(&format!("{second:020}.{kind}.swap")), content).unwrap();
    }
    let snapshot = format!("{second:020}.snapshot");
    assert!(names(&runtime).contains(&snapshot));
    let options = OpenOptions { vouched: true, recovery_point: log.recovery_point(), ..options(config()) };
    let (after, log) = crash_and_open(&runtime, Crash::KeepAll, options);
    assert!(names(&after).contains(&snapshot), "{:?}", names(&after));
    assert_eq!(log.log_end_offset(), offset(6));
    assert!(append(&after, &log, keyed_of_producer(5)).duplicate);
}

fn keyed_of_producer(sequence: i32) -> BytesMut {
    let mut builder = BatchBuilder::new().producer(ProducerId::new(4), ProducerEpoch::new(0), sequence);
    builder.push(NOW, Some(b"k"), Some(&[b'v'; 100]), &[]);
    builder.build().expect("the batch fits")
}

#[test]
fn output_that_cannot_be_removed_takes_the_log_offline() {
    let (runtime, log) = fresh(LogConfig { segment_bytes: 100_000, ..config() });
    for value in ["1", "2", "3"] {
        put(&runtime, &log, &[("a", Some(value)), ("b", Some(value))]);
    }
    roll(&runtime, &log);
    let before = records(&runtime, &log);
    let full = std::io::ErrorKind::StorageFull;
    runtime.disk().fail(Fault { path_contains: ".cleaned", error: full, ..Fault::once(OpKind::Write) });
    runtime.disk().fail(Fault { path_contains: ".log.cleaned", ..Fault::once(OpKind::Names) });
    let what = cleanable(&runtime, &log);
    let failed = run(&runtime, &log, move |log| async move { log.compact(&what, &LIMITS).await });
    assert!(matches!(failed, Err(CompactionError::Log(LogError::Offline { .. }))), "{failed:?}");
    let (after, log) = crash_and_open(&runtime, Crash::KeepAll, options(config()));
    assert_eq!((records(&after, &log), left_overs(&after)), (before, Vec::new()));
}

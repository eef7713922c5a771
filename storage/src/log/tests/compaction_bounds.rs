//! What a round of compaction takes and keeps from others: memory, descriptors, room, the disk, rolls; and which checkpoint it
//! believes.

use super::compaction::{
    LIMITS, cleanable, compact, config, left_overs, names, put, record, records, roll, try_compact,
};
use super::*;
use crate::io::sim::{Crash, Fault, OpKind};

/// A log of many segments of which nothing is in memory or open.
fn cold() -> (SimRuntime, SimLog) {
    let (runtime, log) = fresh(config());
    for number in 0..24 {
        put(&runtime, &log, &[("a", Some(&format!("{number}"))), ("b", Some(&"x".repeat(100)))]);
    }
    roll(&runtime, &log);
    let log = reopen_clean(&runtime, log, config());
    assert!(log.segment_count() > 8, "{}", log.segment_count());
    (runtime, log)
}

#[test]
fn a_round_keeps_no_index_in_memory_and_no_file_open_of_what_it_has_read() {
    let (runtime, log) = cold();
    let held = |log: &SimLog| {
        let is_held = |segment: &&Rc<crate::log::segment::Segment<SimRuntime>>| {
            segment.indexes.borrow().is_some() || segment.open_file().is_some()
        };
        log.all_segments().iter().filter(is_held).count()
    };
    let before = held(&log);
    // The keys are mapped and the groups are formed when the round finds no room.
    let error = std::io::ErrorKind::StorageFull;
    runtime.disk().fail(Fault { path_contains: ".cleaned", error, ..Fault::once(OpKind::Open) });
    assert_eq!(try_compact(&runtime, &log), Err(CompactionError::Log(LogError::Full)));
    assert!(held(&log) <= before + 1, "{} of {}, {before} before", held(&log), log.segment_count());
    assert!(try_compact(&runtime, &log).is_ok());
    assert_eq!(records(&runtime, &log).len(), 2);
}

#[test]
fn a_round_that_would_bring_the_free_space_below_the_floor_does_not_begin_a_segment() {
    let (runtime, log) = cold();
    let (used, before) = (runtime.disk().operation_count(), (names(&runtime), records(&runtime, &log)));
    assert!(used > 0);
    let floor = 10_000;
    let compact = |capacity| {
        let what = cleanable(&runtime, &log);
        runtime.disk().set_capacity_bytes(capacity);
        let limits = CompactionLimits { free_space_floor_bytes: floor, ..LIMITS };
        run(&runtime, &log, move |log| async move { log.compact(&what, &limits).await })
    };
    let failed = compact(Some(log.size_bytes() + floor));
    assert!(
        matches!(failed, Err(CompactionError::NoRoom { usable, needed }) if usable < needed),
        "{failed:?}"
    );
    assert_eq!((names(&runtime), records(&runtime, &log)), before);
    assert_eq!(log.state(), LogState::Online);
    assert!(compact(Some(1 << 20)).is_ok());
}

#[test]
fn the_output_of_a_round_is_synced_now_and_then() {
    let large = LogConfig { segment_bytes: 64 << 20, ..config() };
    let (runtime, log) = fresh(large);
    let value = "x".repeat(600_000);
    for key in 0..40 {
        put(&runtime, &log, &[(&format!("{key}"), Some(&value))]);
        settle(&runtime, &log);
    }
    roll(&runtime, &log);
    runtime.disk().record_operations();
    assert!(try_compact(&runtime, &log).is_ok());
    let is_sync = |operation: &crate::io::sim::Operation| {
        operation.kind == OpKind::SyncData && operation.path.to_string_lossy().ends_with(".log.cleaned")
    };
    let syncs = runtime.disk().operations().into_iter().filter(is_sync).count();
    assert!((3..=4).contains(&syncs), "{syncs} syncs of 24 MB");
}

/// A roll that waits holds the partition's appends.
#[test]
fn a_segment_is_begun_while_many_are_swapped_for_one() {
    let (runtime, log) = cold();
    log.set_config(LogConfig { segment_bytes: 1 << 20, ..config() });
    put(&runtime, &log, &[("c", Some("1"))]);
    settle(&runtime, &log);
    let (what, before) = (cleanable(&runtime, &log), log.segment_count());
    // The names of each time index take long to change: those of the sources, and of the new segment.
    runtime.disk().set_slow(Some((".timeindex", 50_000_000)));
    let (took_ms, swapped_ms) = run(&runtime, &log, move |log| async move {
        let began = log.runtime.now();
        let since_ms = |log: &SimLog, at| log.runtime.now().nanos_since(at) / 1_000_000;
        let round = async {
            assert!(log.compact(&what, &LIMITS).await.is_ok());
            since_ms(&log, began)
        };
        let roll = async {
            while log.segment_count() == before {
                log.runtime.turn().await;
            }
            let at = log.runtime.now();
            let structure = log.structure.enter().await;
            assert!(log.roll(log.log_end_offset(), &structure).await.unwrap());
            since_ms(&log, at)
        };
        futures_util::join!(roll, round)
    });
    assert!(swapped_ms > 400 && took_ms < 200, "{took_ms} ms beside a swap of {swapped_ms} ms");
    runtime.disk().set_slow(None);
    assert_eq!(left_overs(&runtime), Vec::<String>::new());
    let after = records(&runtime, &log);
    assert_eq!(after.len(), 3);
    let log = reopen_clean(&runtime, log, config());
    assert_eq!(records(&runtime, &log), after);
}

#[test]
fn only_producers_whose_last_batch_a_round_may_meet_are_known_to_it() {
    let (runtime, log) = fresh(config());
    for id in 0..10 {
        append(&runtime, &log, idempotent(id, 0, 0, 1));
    }
    let known = log.last_of_producers(offset(4));
    let ids: Vec<_> = known.keys().map(|id| id.get()).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

/// A checkpoint of another log of that name, or a damaged one.
#[test]
fn a_checkpoint_beyond_the_end_of_the_log_makes_nothing_clean_that_comes_later() {
    let (runtime, log) = fresh(config());
    put(&runtime, &log, &[("a", Some("1"))]);
    let first = OpenOptions { cleaner_offset: Some(offset(20)), ..options(config()) };
    settle(&runtime, &log);
    let (runtime, log) = crash_and_open(&runtime, Crash::KeepAll, first);
    assert_eq!(log.cleaner_offset(), Some(Offset::ZERO));
    for _ in 0..30 {
        put(&runtime, &log, &[("a", Some("2"))]);
    }
    compact(&runtime, &log);
    assert_eq!(records(&runtime, &log), [record(30, "a", Some("2"))]);
}

/// Output of which nothing is left has no transaction index, and must not get its source's.
#[test]
fn a_swap_of_nothing_that_a_start_finishes_leaves_nothing_of_its_source() {
    let (runtime, log) = fresh(config());
    for value in ["1", "2", "3", "4", "5", "6"] {
        put(&runtime, &log, &[("a", Some(value)), ("b", Some(value))]);
    }
    roll(&runtime, &log);
    let base = log.all_segments()[1].base_offset.get();
    let aborted = crate::index::txn::AbortedTxn {
        producer_id: ProducerId::new(7),
        first_offset: offset(base),
        last_offset: offset(base + 1),
        last_stable_offset: offset(base + 2),
    };
    let mut txns = crate::index::txn::TxnIndex::new();
    txns.append(aborted).unwrap();
    let disk = runtime.disk();
    disk.put(file(&format!("{base:020}.txnindex")), &txns.to_bytes()).unwrap();
    for kind in ["log", "index", "timeindex"] {
        disk.put(file(&format!("{base:020}.{kind}.swap")), b"").unwrap();
    }
    let options = OpenOptions { recovery_point: log.recovery_point(), ..options(config()) };
    let (after, log) = crash_and_open(&runtime, Crash::KeepAll, options);
    assert!(!names(&after).contains(&format!("{base:020}.txnindex")), "{:?}", names(&after));
    let end = log.log_end_offset();
    let found =
        run(&after, &log, move |log| async move { log.aborted_transactions(Offset::ZERO, end).await });
    assert_eq!(found.unwrap(), []);
    assert!(records(&after, &log).iter().all(|(at, ..)| *at < base || *at > base + 1));
}

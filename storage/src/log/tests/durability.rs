//! When an append is safe, by the durability mode, and what makes it so (storage.md 10.2, S-34).

use std::cell::RefCell;

use super::*;
use crate::config::Durability;
use crate::io::sim::{Crash, Fault, Latency, OpKind, Operation};

fn strict() -> LogConfig {
    LogConfig { durability: Durability::Strict, ..LogConfig::default() }
}

/// Where the log ends after a power cut now.
fn end_after_power_cut(runtime: &SimRuntime) -> Offset {
    let after = SimRuntime::on(8, runtime.disk().crash(Crash::DropUnsynced));
    open(&after, options(LogConfig::default())).log_end_offset()
}

#[test]
fn what_is_safe_is_what_the_mode_says() {
    for (durability, at_once) in [(Durability::Relaxed, 2), (Durability::Kafka, 0), (Durability::Strict, 0)] {
        let (runtime, log) = fresh(LogConfig { durability, ..LogConfig::default() });
        append(&runtime, &log, batch(2, 10, 1));
        assert_eq!(log.safe_offset(), offset(at_once), "{durability:?}");
        settle(&runtime, &log);
        runtime.run_until_idle();
        assert_eq!(log.safe_offset(), offset(2), "{durability:?}");
        let durable = if durability == Durability::Strict { 2 } else { 0 };
        assert_eq!((log.synced_offset(), end_after_power_cut(&runtime)), (offset(durable), offset(durable)));
    }
}

#[test]
fn a_commit_covers_all_segments_that_came_since_the_last_one_and_their_names() {
    let size = u32::try_from(batch(1, 100, 1).len()).unwrap();
    let (runtime, log) = fresh(LogConfig { segment_bytes: size, ..strict() });
    for at in 1..=6 {
        append(&runtime, &log, batch(1, 100, at));
        settle(&runtime, &log);
        assert!(end_after_power_cut(&runtime) >= log.safe_offset(), "{at}");
    }
    runtime.run_until_idle();
    assert_eq!((log.segment_count(), log.safe_offset()), (6, offset(6)));
    assert_eq!(end_after_power_cut(&runtime), offset(6));
}

#[test]
fn what_a_killed_process_has_written_is_synced_before_it_is_safe() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(3, 10, 1));
    settle(&runtime, &log);
    let killed = SimRuntime::on(9, runtime.disk().clone());
    runtime.kill();
    let log = open(&killed, OpenOptions { vouched: true, ..options(strict()) });
    assert_eq!((log.log_end_offset(), log.safe_offset()), (offset(3), offset(0)));
    killed.run_until_idle();
    assert_eq!((log.safe_offset(), end_after_power_cut(&killed)), (offset(3), offset(3)));
}

#[test]
fn a_commit_waits_for_more_appends_as_long_as_it_was_told() {
    let (runtime, log) = fresh(LogConfig { sync_delay_ms_max: 50, ..strict() });
    runtime.disk().record_operations();
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    runtime.advance_ms(40);
    append(&runtime, &log, batch(1, 10, 2));
    settle(&runtime, &log);
    assert_eq!(log.safe_offset(), offset(0));
    runtime.advance_ms(20);
    assert_eq!(log.safe_offset(), offset(2));
    let is_sync =
        |done: &Operation| done.kind == OpKind::SyncData && done.path.ends_with("00000000000000000000.log");
    let syncs = runtime.disk().operations().into_iter().filter(is_sync);
    assert_eq!(syncs.count(), 1);
}

#[test]
fn what_takes_the_place_of_what_was_cut_is_safe_only_with_its_own_sync() {
    let (runtime, log) = fresh(strict());
    for at in 1..=4 {
        append(&runtime, &log, batch(1, 10, at));
    }
    settle(&runtime, &log);
    runtime.run_until_idle();
    run(&runtime, &log, |log| async move { log.truncate_to(offset(2)).await }).unwrap();
    assert_eq!(log.safe_offset(), offset(2));
    append(&runtime, &log, batch(1, 10, 9));
    settle(&runtime, &log);
    assert!(end_after_power_cut(&runtime) >= log.safe_offset());
    runtime.run_until_idle();
    assert_eq!((log.safe_offset(), end_after_power_cut(&runtime)), (offset(3), offset(3)));
}

/// What a log has told to be durable, each with the disk as a power cut would leave it at that moment.
fn listen(runtime: &SimRuntime, log: &SimLog) -> Rc<RefCell<Vec<(Offset, SimDisk)>>> {
    let told: Rc<RefCell<Vec<(Offset, SimDisk)>>> = Rc::default();
    let (sink, disk) = (told.clone(), runtime.disk().clone());
    log.set_listener(move |event| {
        if let LogEvent::Durable(offset) = event {
            sink.borrow_mut().push((offset, disk.crash(Crash::DropUnsynced)));
        }
    });
    told
}

#[test]
fn what_is_told_to_be_durable_survives_a_power_cut_at_that_moment() {
    for seed in 0..12 {
        let runtime = SimRuntime::new(seed);
        let inside = runtime.clone();
        runtime.block_on(async move {
            inside.dir(crate::io::DirOp::CreateAll("/data".into())).await.unwrap();
            inside.dir(crate::io::DirOp::Sync("/".into())).await.unwrap();
        });
        let log = open(&runtime, options(LogConfig { segment_bytes: 900, ..strict() }));
        runtime.disk().set_write_now_percent(50);
        runtime.disk().set_latency(Latency { min_nanos: 0, max_nanos: 200_000 });
        runtime.disk().set_sync_latency(Latency { min_nanos: 0, max_nanos: 2_000_000 });
        let told = listen(&runtime, &log);
        for at in 1..=60 {
            append(&runtime, &log, batch(1, 40, at));
            runtime.advance_nanos(runtime.draw_below(400_000));
        }
        runtime.run_until_idle();
        let told = told.borrow();
        assert_eq!(told.last().map(|(offset, _)| *offset), Some(offset(60)), "seed {seed}");
        assert!(told.len() < 60 && log.segment_count() > 3, "many appends share a sync: {}", told.len());
        for (durable, disk) in told.iter() {
            let found = open(&SimRuntime::on(8, disk.clone()), options(LogConfig::default()));
            assert!(found.log_end_offset() >= *durable, "seed {seed}: {durable}");
        }
    }
}

#[test]
fn a_failed_commit_makes_nothing_safe_and_is_not_tried_again() {
    // The first sync of the directory is that of the epoch file.
    for (path_contains, kind, after) in [(".log", OpKind::SyncData, 0), ("t-0", OpKind::SyncDir, 1)] {
        let (runtime, log) = fresh(strict());
        let told = listen(&runtime, &log);
        runtime.disk().fail(Fault { path_contains, after, ..Fault::once(kind) });
        runtime.disk().record_operations();
        append(&runtime, &log, batch(1, 10, 1));
        settle(&runtime, &log);
        append(&runtime, &log, batch(1, 10, 2));
        runtime.run_until_idle();
        runtime.advance_ms(10_000);
        assert!(matches!(log.state(), LogState::Offline { .. }), "{kind:?}");
        assert_eq!((log.safe_offset(), told.borrow().len()), (offset(0), 0), "{kind:?}");
        let is_of_it =
            |done: &Operation| done.kind == kind && done.path.to_string_lossy().contains(path_contains);
        let syncs = runtime.disk().operations().into_iter().filter(is_of_it);
        assert_eq!(syncs.count() as u64, after + 1, "{kind:?}");
    }
}

#[test]
fn a_failed_flush_keeps_the_commit_beside_it_from_making_anything_safe() {
    let (runtime, log) = fresh(strict());
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    runtime.run_until_idle();
    runtime.disk().set_sync_latency(Latency { min_nanos: 1_000_000, max_nanos: 1_000_000 });
    let told = listen(&runtime, &log);
    // Both sync; whichever ends first fails. The kernel tells that once: the other one succeeds.
    let flushing = log.clone();
    runtime.disk().fail(Fault { path_contains: ".log", ..Fault::once(OpKind::SyncData) });
    append(&runtime, &log, batch(1, 10, 2));
    run(&runtime, &log, move |_| async move { flushing.flush().await }).unwrap_err();
    runtime.run_until_idle();
    assert_eq!((log.safe_offset(), told.borrow().len()), (offset(1), 0));
}

#[test]
fn a_shorter_flush_time_holds_from_the_moment_it_is_set() {
    let (runtime, log) = fresh(LogConfig { flush_ms: 3_600_000, ..LogConfig::default() });
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    runtime.advance_ms(1000);
    assert_eq!(end_after_power_cut(&runtime), offset(0));
    log.set_config(LogConfig { flush_ms: 500, ..LogConfig::default() });
    runtime.advance_ms(400);
    assert_eq!(log.recovery_point(), offset(0));
    runtime.advance_ms(200);
    assert_eq!((log.recovery_point(), end_after_power_cut(&runtime)), (offset(1), offset(1)));
    // And for what comes later, again.
    append(&runtime, &log, batch(1, 10, 2));
    settle(&runtime, &log);
    runtime.advance_ms(600);
    assert_eq!(log.recovery_point(), offset(2));
}

#[test]
fn a_flush_by_count_comes_with_the_record_that_makes_the_count_full() {
    let (runtime, log) = fresh(LogConfig { flush_messages: 3, ..LogConfig::default() });
    for at in 1..=7 {
        append(&runtime, &log, batch(1, 10, at));
        settle(&runtime, &log);
        assert_eq!(log.safe_offset(), offset(at), "no append waits for it");
        runtime.run_until_idle();
        assert_eq!(log.recovery_point(), offset(at / 3 * 3));
    }
}

#[test]
fn a_log_that_becomes_strict_makes_safe_what_it_has_written_before() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(3, 10, 1));
    settle(&runtime, &log);
    let told = listen(&runtime, &log);
    log.set_config(strict());
    assert_eq!(log.safe_offset(), offset(0));
    runtime.run_until_idle();
    assert_eq!((log.safe_offset(), told.borrow().len()), (offset(3), 1));
    log.set_config(LogConfig::default());
    append(&runtime, &log, batch(1, 10, 4));
    settle(&runtime, &log);
    assert_eq!((log.safe_offset(), log.synced_offset()), (offset(4), offset(3)));
}

#[test]
fn a_directory_that_was_left_without_a_durable_name_has_one_before_anything_in_it_is_safe() {
    let runtime = machine();
    let inside = runtime.clone();
    // Whoever created it died over it, or was refused.
    runtime.block_on(async move { inside.dir(crate::io::DirOp::CreateAll(DIR.into())).await }).unwrap();
    let topic_id = Some(protocol::types::TopicId::new([7; 16]));
    let log = open(&runtime, OpenOptions { topic_id, ..options(strict()) });
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    runtime.run_until_idle();
    assert_eq!((log.safe_offset(), end_after_power_cut(&runtime)), (offset(1), offset(1)));
}

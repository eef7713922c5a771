//! A failing disk (S-36, storage.md 8.4): what takes a log offline, and what is said of it.

use std::cell::RefCell;

use super::*;
use crate::io::sim::{Crash, Fault, OpKind};

/// As when the process has no descriptor left, or the kernel no memory: nothing is wrong with the disk.
fn exhausted(kind: OpKind, path_contains: &'static str) -> Fault {
    Fault { path_contains, error: io::ErrorKind::OutOfMemory, ..Fault::once(kind) }
}

#[test]
fn a_deleted_file_that_cannot_be_removed_takes_the_log_offline() {
    let config = LogConfig { segment_bytes: 400, file_delete_delay_ms: 1000, ..LogConfig::default() };
    let (runtime, log) = fresh(config);
    for sequence in 0..6 {
        append(&runtime, &log, idempotent(2, 0, sequence, 1));
        settle(&runtime, &log);
    }
    let events: Rc<RefCell<Vec<LogEvent>>> = Rc::default();
    let sink = events.clone();
    log.set_listener(move |event| {
        if !matches!(event, LogEvent::Synced { .. }) {
            sink.borrow_mut().push(event);
        }
    });
    run(&runtime, &log, |log| async move { log.advance_log_start(offset(5)).await }).unwrap();
    let retained = run(&runtime, &log, |log| async move { log.retain(NOW, offset(6)).await }).unwrap();
    assert!(retained.segments > 0);
    runtime.run_until_idle();
    runtime.disk().fail(Fault { path_contains: ".deleted", ..Fault::once(OpKind::Names) });
    runtime.advance_ms(1500);
    let during = "removal of a deleted file";
    assert_eq!(*events.borrow(), [LogEvent::Offline { during }]);
    assert_eq!(log.state(), LogState::Offline { during });
    let fault = log.fault().unwrap();
    assert!(fault.contains(".deleted: other error") && fault.starts_with(during), "{fault}");
}

#[test]
fn a_log_that_cannot_be_loaded_says_which_file_and_why() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, NOW.get()));
    settle(&runtime, &log);
    for (fault, said) in [
        (
            Fault { path_contains: ".log", ..Fault::once(OpKind::Read) },
            "load: read /data/t-0/00000000000000000000.log: ",
        ),
        (
            Fault { path_contains: ".log", ..Fault::once(OpKind::SyncData) },
            "load: sync /data/t-0/00000000000000000000.log: ",
        ),
        (
            Fault { path_contains: "partition.metadata", ..Fault::once(OpKind::Open) },
            "read of partition.metadata: open /data/t-0/partition.metadata: ",
        ),
    ] {
        let after = SimRuntime::on(8, runtime.disk().crash(Crash::KeepAll));
        after.disk().fail(fault);
        let Err(error) = try_open(&after, options(LogConfig::default())) else { panic!("{said}") };
        assert!(error.to_string().starts_with(said), "{error}");
        assert!(!error.heals());
    }
}

#[test]
fn a_sync_that_failed_for_want_of_room_is_not_tried_again_by_a_second_load() {
    // S-36: what the failed sync dropped would be taken for durable.
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, NOW.get()));
    settle(&runtime, &log);
    let after = SimRuntime::on(8, runtime.disk().crash(Crash::KeepAll));
    let error = io::ErrorKind::StorageFull;
    after.disk().fail(Fault { path_contains: ".log", error, ..Fault::once(OpKind::SyncData) });
    assert!(try_open(&after, options(LogConfig::default())).is_err_and(|error| !error.heals()));
}

#[test]
fn files_that_are_far_too_large_are_damaged_and_not_a_failing_disk() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, NOW.get()));
    settle(&runtime, &log);
    let after = SimRuntime::on(8, runtime.disk().crash(Crash::KeepAll));
    after.disk().put(file("leader-epoch-checkpoint"), &vec![b'9'; (1 << 26) + 1]).unwrap();
    let log = open(&after, options(LogConfig::default()));
    assert_eq!(log.latest_epoch(), Some(EPOCH), "read from the log");
    drop(log);
    after.disk().put(file("partition.metadata"), &[b'v'; 5000]).unwrap();
    let Err(error) = try_open(&after, options(LogConfig::default())) else { panic!("it is no id") };
    assert_eq!(error.to_string(), "partition.metadata: the file is too large to be one");
}

#[test]
fn a_roll_without_a_descriptor_is_refused_and_the_next_one_succeeds() {
    for part in ["2.index", "2.timeindex", "2.log"] {
        let (runtime, log) = fresh(LogConfig { segment_bytes: 400, ..LogConfig::default() });
        for at in 0..2 {
            append(&runtime, &log, batch(1, 100, at));
            settle(&runtime, &log);
        }
        runtime.disk().fail(exhausted(OpKind::Open, part));
        let refused = try_append(&runtime, &log, batch(1, 100, 2), CLIENT);
        assert_eq!(refused, Err(AppendError::Log(LogError::Exhausted)), "{part}");
        assert_eq!((log.state(), log.segment_count()), (LogState::Online, 1), "{part}");
        append(&runtime, &log, batch(1, 100, 2));
        assert_eq!(log.segment_count(), 2);
        check_indexes(&runtime, &log);
        assert_eq!(read_all(&runtime, &log, 0).len(), 3);
    }
}

#[test]
fn a_read_a_flush_and_a_load_without_a_descriptor_are_refused_and_the_next_ones_succeed() {
    let config = LogConfig { segment_bytes: 400, ..LogConfig::default() };
    let (runtime, log) = fresh(config.clone());
    for at in 0..3 {
        append(&runtime, &log, batch(1, 100, at));
    }
    let log = reopen_clean(&runtime, log, config.clone());
    runtime.disk().fail(exhausted(OpKind::Open, "0.log"));
    let refused = try_read(&runtime, &log, 0, 1000, true).err();
    assert_eq!(refused, Some(ReadError::Log(LogError::Exhausted)));
    assert_eq!(read_all(&runtime, &log, 0).len(), 3);
    append(&runtime, &log, batch(1, 100, 3));
    runtime.disk().fail(exhausted(OpKind::Open, ".snapshot"));
    let refused = run(&runtime, &log, |log| async move { log.flush().await });
    assert_eq!((refused, log.recovery_point()), (Err(LogError::Exhausted), offset(3)));
    run(&runtime, &log, |log| async move { log.flush().await }).unwrap();
    assert_eq!((log.state(), log.recovery_point()), (LogState::Online, offset(4)));
    for part in ["partition.metadata", "2.log", "leader-epoch-checkpoint"] {
        let after = SimRuntime::on(8, runtime.disk().crash(Crash::KeepAll));
        after.disk().fail(exhausted(OpKind::Open, part));
        let refused = try_open(&after, options(config.clone()));
        assert!(refused.is_err_and(|error| error.heals()), "{part}");
        assert_eq!(open(&after, options(config.clone())).log_end_offset(), offset(4));
    }
}

#[test]
fn a_write_without_memory_is_cut_back_to_its_end_and_appends_are_taken_again() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 100, 0));
    settle(&runtime, &log);
    runtime.disk().fail(exhausted(OpKind::Write, ".log"));
    // What is cut back needs files to be opened: it waits for that.
    runtime.disk().fail(Fault { times: 3, ..exhausted(OpKind::Open, ".timeindex") });
    append(&runtime, &log, batch(1, 100, 1));
    let waited = run(&runtime, &log, |log| async move { log.until_written(offset(2)).await });
    assert_eq!(waited, Err(LogError::Full));
    runtime.advance_ms(2000);
    assert_eq!((log.state(), log.log_end_offset()), (LogState::Full, offset(1)));
    append(&runtime, &log, batch(1, 100, 1));
    settle(&runtime, &log);
    assert_eq!(log.state(), LogState::Online);
    check_indexes(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 0).len(), 2);
}

#[test]
fn what_must_not_be_left_half_done_waits_for_a_descriptor() {
    let (runtime, log) = fresh(LogConfig { segment_bytes: 400, ..LogConfig::default() });
    for at in 0..6 {
        append(&runtime, &log, batch(1, 100, at));
    }
    settle(&runtime, &log);
    runtime.run_until_idle();
    let began = runtime.now();
    runtime.disk().fail(Fault { times: 3, ..exhausted(OpKind::Open, ".index") });
    run(&runtime, &log, |log| async move { log.truncate_to(offset(3)).await }).unwrap();
    assert!(runtime.now().nanos_since(began) >= 300_000_000, "it has waited");
    assert_eq!((log.state(), log.log_end_offset()), (LogState::Online, offset(3)));
    check_indexes(&runtime, &log);
    runtime.disk().fail(Fault { times: 2, ..exhausted(OpKind::Open, ".timeindex") });
    run(&runtime, &log, |log| async move { log.restart_at(offset(9)).await }).unwrap();
    append(&runtime, &log, batch(1, 100, 9));
    check_indexes(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 9).len(), 1);
}

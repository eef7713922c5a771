//! A failing disk (S-36, storage.md 8.4): what takes a log offline, and what is said of it.

use std::cell::RefCell;

use super::*;
use crate::io::sim::{Crash, Fault, OpKind};

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
        assert!(!error.is_full());
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
    assert!(try_open(&after, options(LogConfig::default())).is_err_and(|error| !error.is_full()));
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

//! A full disk (S-32, A-16): cut back to what is written, refuse appends, serve reads, go on when space returns.

use std::cell::RefCell;

use super::*;
use crate::io::sim::{Crash, Fault, OpKind};

/// A log with some batches on a disk that then takes no more; answers the bytes of one batch.
fn almost_full() -> (SimRuntime, SimLog, Rc<RefCell<Vec<LogEvent>>>) {
    let (runtime, log) = fresh(LogConfig { index_interval_bytes: 100, ..LogConfig::default() });
    for sequence in 0..4 {
        append(&runtime, &log, idempotent(2, 0, sequence, 1));
    }
    run(&runtime, &log, |log| async move { log.flush().await }).unwrap();
    let events: Rc<RefCell<Vec<LogEvent>>> = Rc::default();
    let sink = events.clone();
    log.set_listener(move |event| sink.borrow_mut().push(event));
    runtime.disk().set_capacity_bytes(Some(1));
    (runtime, log, events)
}

fn append_in_vain(runtime: &SimRuntime, log: &SimLog) {
    append(runtime, log, idempotent(2, 0, 4, 1));
    let waited = run(runtime, log, |log| async move { log.until_written(offset(5)).await });
    assert_eq!(waited, Err(LogError::Full));
}

#[test]
fn the_log_is_cut_back_and_waiters_get_an_error() {
    let (runtime, log, events) = almost_full();
    let before = runtime.disk().content(file("00000000000000000000.log")).unwrap();
    append_in_vain(&runtime, &log);
    runtime.run_until_idle();
    assert_eq!((log.log_end_offset(), log.written_offset()), (offset(4), offset(4)));
    assert_eq!(log.state(), LogState::Full);
    assert_eq!(*events.borrow(), [LogEvent::CutBack(offset(4))]);
    assert_eq!(runtime.disk().content(file("00000000000000000000.log")).unwrap(), before);
    assert_eq!(read_all(&runtime, &log, 0).len(), 4, "reads go on");
    assert_eq!(log.producers()[0].last_sequence, 3, "the producer forgets what was cut");
    let refused = try_append(&runtime, &log, idempotent(2, 0, 4, 1), CLIENT);
    assert_eq!(refused, Err(AppendError::Log(LogError::Full)));
}

#[test]
fn a_partial_write_leaves_no_trace() {
    let (runtime, log, _) = almost_full();
    let before = runtime.disk().content(file("00000000000000000000.log")).unwrap();
    let used: usize = [
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
        "00000000000000000004.snapshot",
    ]
    .iter()
    .filter_map(|name| runtime.disk().content(file(name)))
    .map(|content| content.len())
    .sum();
    runtime.disk().set_capacity_bytes(Some(u64::try_from(used + 20).unwrap()));
    append_in_vain(&runtime, &log);
    runtime.run_until_idle();
    assert_eq!(runtime.disk().content(file("00000000000000000000.log")).unwrap(), before);
}

#[test]
fn appends_are_taken_again_once_there_is_space_and_a_second_has_passed() {
    let (runtime, log, _) = almost_full();
    append_in_vain(&runtime, &log);
    runtime.run_until_idle();
    runtime.advance_ms(1500);
    let refused = try_append(&runtime, &log, idempotent(2, 0, 4, 1), CLIENT);
    assert_eq!(refused, Err(AppendError::Log(LogError::Full)), "there is still no space");
    runtime.disk().heal();
    assert!(
        try_append(&runtime, &log, idempotent(2, 0, 4, 1), CLIENT).is_err(),
        "the disk is not looked at all the time"
    );
    runtime.advance_ms(1500);
    let appended = append(&runtime, &log, idempotent(2, 0, 4, 1));
    assert_eq!((appended.first_offset, appended.duplicate), (offset(4), false));
    settle(&runtime, &log);
    assert_eq!(log.state(), LogState::Online);
    check_indexes(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 0).len(), 5);
}

#[test]
fn a_log_without_room_for_indexes_only_keeps_its_recovery_point() {
    let (runtime, log, _) = almost_full();
    runtime.disk().heal();
    for sequence in 4..9 {
        append(&runtime, &log, idempotent(2, 0, sequence, 1));
    }
    settle(&runtime, &log);
    runtime.disk().set_capacity_bytes(Some(1));
    let flushed = run(&runtime, &log, |log| async move { log.flush().await });
    assert_eq!(flushed, Err(LogError::Full));
    assert_eq!((log.recovery_point(), log.state()), (offset(4), LogState::Online));
    runtime.disk().heal();
    run(&runtime, &log, |log| async move { log.flush().await }).unwrap();
    assert_eq!(log.recovery_point(), offset(9));
}

#[test]
fn a_quota_is_a_full_disk() {
    // EDQUOT is no failure either.
    let (runtime, log, events) = almost_full();
    runtime.disk().heal();
    let error = io::ErrorKind::QuotaExceeded;
    runtime.disk().fail(Fault { error, ..Fault::once(OpKind::Write) });
    append_in_vain(&runtime, &log);
    runtime.run_until_idle();
    assert_eq!(*events.borrow(), [LogEvent::CutBack(offset(4))]);
    runtime.advance_ms(1500);
    append(&runtime, &log, idempotent(2, 0, 4, 1));
    settle(&runtime, &log);
}

/// Two segments with an epoch and a producer each, killed, and not one byte free: also without the index files.
fn killed_and_full(lost: &[&str]) -> (SimRuntime, OpenOptions) {
    let config = LogConfig { segment_bytes: 400, index_interval_bytes: 100, ..LogConfig::default() };
    let (runtime, log) = fresh(config.clone());
    for sequence in 0..6 {
        append(&runtime, &log, idempotent(2, 0, sequence, 1));
        settle(&runtime, &log);
    }
    assert!(log.segment_count() > 1);
    runtime.run_until_idle();
    let after = SimRuntime::on(8, runtime.disk().crash(Crash::KeepAll));
    runtime.kill();
    for name in lost {
        let (inside, path) = (after.clone(), file(name));
        after.block_on(async move { inside.dir(crate::io::DirOp::Unlink(path)).await }).unwrap();
    }
    after.disk().set_capacity_bytes(Some(0));
    (after, options(config))
}

#[test]
fn a_log_that_was_killed_opens_on_a_full_disk_and_is_written_when_there_is_room() {
    for lost in [&[][..], &["00000000000000000000.index", "leader-epoch-checkpoint"]] {
        let (runtime, options) = killed_and_full(lost);
        let log = open(&runtime, options.clone());
        assert_eq!(read_all(&runtime, &log, 0).len(), 6, "it is read at once");
        assert_eq!(log.producers()[0].last_sequence, 5);
        // Its tables stay in memory until they are in the files.
        for _ in 0..3 {
            run(&runtime, &log, |log| async move { log.retain(NOW, offset(6)).await }).unwrap();
        }
        runtime.disk().set_capacity_bytes(None);
        assert_eq!(append(&runtime, &log, idempotent(2, 0, 6, 1)).first_offset, offset(6));
        for _ in 0..3 {
            run(&runtime, &log, |log| async move { log.retain(NOW, offset(6)).await }).unwrap();
        }
        check_indexes(&runtime, &log);
        let log = reopen_clean(&runtime, log, options.config);
        assert_eq!(read_all(&runtime, &log, 0).len(), 7);
        check_indexes(&runtime, &log);
    }
}

#[test]
fn a_leader_epoch_without_room_is_in_the_file_before_its_first_record() {
    let (runtime, options) = killed_and_full(&[]);
    let log = open(&runtime, options);
    let before = runtime.disk().content(file("leader-epoch-checkpoint")).unwrap();
    let next = LeaderEpoch::new(EPOCH.get() + 1);
    run(&runtime, &log, move |log| async move { log.start_leader_epoch(next).await }).unwrap();
    assert_eq!(log.latest_epoch(), Some(next));
    assert_eq!(log.end_offset_for_epoch(EPOCH), Some((EPOCH, offset(6))));
    let info = BatchView::parse(&idempotent(2, 0, 6, 1)).unwrap().info();
    assert!(log.must_prepare(&info, next, NOW), "no record of an epoch that the file does not know (S-16)");
    let prepare = |log: SimLog| async move { log.prepare(&info, CLIENT, next, NOW).await };
    assert_eq!(run(&runtime, &log, prepare), Err(AppendError::Log(LogError::Full)));
    assert_eq!(runtime.disk().content(file("leader-epoch-checkpoint")).unwrap(), before);
    runtime.disk().set_capacity_bytes(None);
    run(&runtime, &log, prepare).unwrap();
    assert!(!log.must_prepare(&info, next, NOW));
    let text = String::from_utf8(runtime.disk().content(file("leader-epoch-checkpoint")).unwrap()).unwrap();
    assert!(text.ends_with("4 6\n"), "{text}");
}

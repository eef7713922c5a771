//! Truncation (storage.md 4.5): each row of its table.

use super::*;
use crate::io::sim::Crash;

fn truncate(runtime: &SimRuntime, log: &SimLog, to: i64) {
    run(runtime, log, move |log| async move { log.truncate_to(offset(to)).await }).unwrap();
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: 400, index_interval_bytes: 50, ..LogConfig::default() }
}

/// Nine records in batches of three, two batches in a segment at most.
fn nine() -> (SimRuntime, SimLog) {
    let (runtime, log) = fresh(config());
    for sequence in 0..3 {
        append(&runtime, &log, idempotent(2, 0, sequence * 3, 3));
    }
    settle(&runtime, &log);
    (runtime, log)
}

#[test]
fn at_or_above_the_end_nothing_happens_but_to_epochs() {
    let (runtime, log) = nine();
    let newer = LeaderEpoch::new(7);
    run(&runtime, &log, move |log| async move { log.start_leader_epoch(newer).await }).unwrap();
    truncate(&runtime, &log, 50);
    assert_eq!((log.log_end_offset(), log.latest_epoch()), (offset(9), Some(EPOCH)));
    assert_eq!(runtime.disk().content(file("leader-epoch-checkpoint")).unwrap(), b"0\n1\n3 0\n");
}

#[test]
fn a_batch_that_reaches_the_offset_goes_as_a_whole() {
    for (to, batches) in [(6, 2), (7, 2), (8, 2), (3, 1), (5, 1), (1, 0), (0, 0)] {
        let (runtime, log) = nine();
        truncate(&runtime, &log, to);
        assert_eq!((log.log_end_offset(), log.written_offset()), (offset(to), offset(to)));
        check_indexes(&runtime, &log);
        assert_eq!(read_all(&runtime, &log, 0).len(), batches, "to {to}");
        let next = append(&runtime, &log, batch(1, 5, 1));
        assert_eq!(next.first_offset, offset(to));
        settle(&runtime, &log);
        assert_eq!(read_all(&runtime, &log, 0).len(), batches + 1);
    }
}

#[test]
fn producers_forget_what_was_cut() {
    let (runtime, log) = nine();
    truncate(&runtime, &log, 3);
    assert!(append(&runtime, &log, idempotent(2, 0, 0, 3)).duplicate);
    assert!(!append(&runtime, &log, idempotent(2, 0, 3, 3)).duplicate);
}

#[test]
fn points_above_the_offset_come_down() {
    let (runtime, log) = nine();
    run(&runtime, &log, |log| async move { log.flush().await }).unwrap();
    run(&runtime, &log, |log| async move { log.advance_log_start(offset(5)).await }).unwrap();
    truncate(&runtime, &log, 4);
    assert_eq!((log.recovery_point(), log.log_start_offset()), (offset(4), offset(4)));
}

#[test]
fn below_the_first_base_and_on_request_the_log_begins_anew() {
    let (runtime, log) = nine();
    run(&runtime, &log, |log| async move { log.restart_at(offset(100)).await }).unwrap();
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (offset(100), offset(100)));
    assert_eq!((log.segment_count(), log.latest_epoch(), log.producers().len()), (1, None, 0));
    append(&runtime, &log, batch(2, 5, 1));
    truncate(&runtime, &log, 40);
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (offset(40), offset(40)));
    append(&runtime, &log, batch(2, 5, 1));
    settle(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 40), [(40, 41, 2)]);
    let log = reopen_clean(&runtime, log, config());
    assert_eq!(log.log_end_offset(), offset(42));
}

#[test]
fn s27_a_crash_after_a_truncation_does_not_bring_back_what_was_cut() {
    for mode in [Crash::KeepAll, Crash::DropUnsynced] {
        let (runtime, log) = nine();
        run(&runtime, &log, |log| async move { log.flush().await }).unwrap();
        truncate(&runtime, &log, 4);
        let mut options = options(config());
        options.recovery_point = log.recovery_point();
        let (after, log) = crash_and_open(&runtime, mode, options);
        assert_eq!(log.log_end_offset(), offset(3), "after a restart the end follows the last batch");
        assert_eq!(read_all(&after, &log, 0).len(), 1);
    }
}

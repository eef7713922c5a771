//! Transactions in the log: what holds the last stable offset back, the transaction index, and both after a crash.

use super::*;
use crate::io::sim::Crash;

fn data(id: i64, sequence: i32) -> BytesMut {
    let builder =
        BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(0), sequence).transactional();
    build(builder, 2, 20, NOW.get())
}

fn marker(id: i64, is_commit: bool) -> BytesMut {
    let mut builder = BatchBuilder::new()
        .producer(ProducerId::new(id), ProducerEpoch::new(0), -1)
        .transactional()
        .control();
    let key = [0, 0, 0, u8::from(is_commit)];
    builder.push(NOW, Some(&key), Some(&[0, 0, 0, 0, 0, 1]), &[]);
    builder.build().unwrap()
}

const COORDINATOR: AppendOrigin = AppendOrigin::Coordinator(Verification::NotRequired);

/// Producer 1: offsets 0 and 1, aborted at 4. Producer 2: offsets 2 and 3, committed at 5. Producer 3: open from 6.
fn history(config: LogConfig) -> (SimRuntime, SimLog) {
    let (runtime, log) = fresh(config);
    append(&runtime, &log, data(1, 0));
    append(&runtime, &log, data(2, 0));
    try_append(&runtime, &log, marker(1, false), COORDINATOR).unwrap();
    try_append(&runtime, &log, marker(2, true), COORDINATOR).unwrap();
    append(&runtime, &log, data(3, 0));
    settle(&runtime, &log);
    (runtime, log)
}

fn aborted(runtime: &SimRuntime, log: &SimLog, from: i64, upper: i64) -> Vec<(i64, i64, i64, i64)> {
    let (from, upper) = (offset(from), offset(upper));
    let found = run(runtime, log, move |log| async move { log.aborted_transactions(from, upper).await });
    let fields = |txn: crate::index::txn::AbortedTxn| {
        (txn.producer_id.get(), txn.first_offset.get(), txn.last_offset.get(), txn.last_stable_offset.get())
    };
    found.unwrap().into_iter().map(fields).collect()
}

fn check(runtime: &SimRuntime, log: &SimLog) {
    assert_eq!(aborted(runtime, log, 0, 8), [(1, 0, 4, 2)], "stable up to the other open transaction");
    assert_eq!(aborted(runtime, log, 4, 8).len(), 1, "the marker itself is within the range");
    assert_eq!(aborted(runtime, log, 5, 8).len(), 0);
    assert_eq!(log.first_unstable_offset(offset(6)), Some(offset(6)), "only the open one counts");
    let open: Vec<_> = log.producers().iter().map(|producer| producer.current_txn_start_offset).collect();
    assert_eq!(open, [None, None, Some(offset(6))]);
}

#[test]
fn the_last_stable_offset_waits_for_decision_and_replication() {
    let (runtime, log) = history(LogConfig::default());
    assert_eq!(log.first_unstable_offset(offset(4)), Some(offset(0)), "decided, but not replicated");
    check(&runtime, &log);
}

#[test]
fn transactions_survive_a_clean_stop_a_kill_and_rolls() {
    for segment_bytes in [1 << 20, 300] {
        let config = LogConfig { segment_bytes, ..LogConfig::default() };
        let (runtime, log) = history(config.clone());
        let (after, killed) = crash_and_open(&runtime, Crash::KeepAll, options(config.clone()));
        check(&after, &killed);
        let stopped = reopen_clean(&after, killed, config);
        check(&after, &stopped);
        drop(log);
    }
}

#[test]
fn a_truncation_takes_the_abort_back() {
    let (runtime, log) = history(LogConfig::default());
    run(&runtime, &log, |log| async move { log.truncate_to(offset(4)).await }).unwrap();
    assert_eq!(aborted(&runtime, &log, 0, 4).len(), 0);
    assert_eq!(log.first_unstable_offset(offset(4)), Some(offset(0)));
    try_append(&runtime, &log, marker(1, false), COORDINATOR).unwrap();
    assert_eq!(aborted(&runtime, &log, 0, 5), [(1, 0, 4, 2)]);
}

#[test]
fn a_marker_of_a_fenced_coordinator_is_refused() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, data(1, 0));
    try_append(&runtime, &log, marker(1, true), COORDINATOR).unwrap();
    let mut stale =
        BatchBuilder::new().producer(ProducerId::new(1), ProducerEpoch::new(0), -1).transactional().control();
    stale.push(NOW, Some(&[0, 0, 0, 1]), Some(&[0, 0, 0, 0, 0, 0]), &[]);
    let refused = try_append(&runtime, &log, stale.build().unwrap(), COORDINATOR);
    assert!(matches!(refused, Err(AppendError::Producer(_))), "{refused:?}");
    assert_eq!(log.log_end_offset(), offset(3));
}

//! Clean stop and start: what is on disk is what Kafka would leave (T-2 and T-14 at this level), and nothing is lost.

use super::*;
use crate::index::offset::OffsetIndex;
use crate::producer_state::ProducerStateManager;

#[test]
fn a_clean_stop_leaves_kafkas_files_and_a_clean_start_the_same_log() {
    let config = LogConfig { index_interval_bytes: 150, ..LogConfig::default() };
    let (runtime, log) = fresh(config.clone());
    for sequence in 0..4 {
        append(&runtime, &log, idempotent(5, 1, sequence * 3, 3));
    }
    let log = reopen_clean(&runtime, log, config);
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (offset(0), offset(12)));
    assert_eq!((log.recovery_point(), log.written_offset()), (offset(12), offset(12)));
    assert_eq!(log.latest_epoch(), Some(EPOCH));
    assert!(append(&runtime, &log, idempotent(5, 1, 9, 3)).duplicate, "the last batch is remembered");
    let next = append(&runtime, &log, idempotent(5, 1, 12, 3));
    assert_eq!((next.first_offset, next.duplicate), (offset(12), false));
    check_indexes(&runtime, &log);
}

#[test]
fn the_golden_bytes_of_a_small_directory() {
    let config = LogConfig { index_interval_bytes: 1, ..LogConfig::default() };
    let (runtime, log) = fresh(config);
    let (first, second, third) = (batch(1, 1, 100), batch(1, 1, 300), batch(1, 1, 200));
    let size = u32::try_from(first.len()).unwrap();
    for batch in [first, second, third] {
        append(&runtime, &log, batch);
    }
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let disk = runtime.disk();
    let offsets = disk.content(file("00000000000000000000.index")).unwrap();
    let expected: Vec<u8> = [1_u32, size, 2, 2 * size].iter().flat_map(|word| word.to_be_bytes()).collect();
    assert_eq!(offsets, expected, "the first batch of a segment is never indexed");
    let times = disk.content(file("00000000000000000000.timeindex")).unwrap();
    let expected = [&300_i64.to_be_bytes()[..], &1_u32.to_be_bytes()[..]].concat();
    assert_eq!(times, expected, "entry and closing entry are the same one");
    assert_eq!(disk.content(file("00000000000000000000.txnindex")), None);
    assert_eq!(disk.content(file("leader-epoch-checkpoint")).unwrap(), b"0\n1\n3 0\n");
    let snapshot = disk.content(file("00000000000000000003.snapshot")).unwrap();
    assert_eq!(snapshot.len(), 10, "a snapshot without producers");
    assert_eq!(disk.content(file("00000000000000000000.log")).unwrap().len(), 3 * size as usize);
}

#[test]
fn the_snapshot_at_the_end_of_a_stopped_log_lists_its_producers() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, idempotent(5, 1, 0, 3));
    append(&runtime, &log, idempotent(6, 0, 0, 1));
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let content = runtime.disk().content(file("00000000000000000004.snapshot")).unwrap();
    let mut loaded = ProducerStateManager::new(i64::MAX);
    loaded.load_snapshot(offset(4), &content, NOW).unwrap();
    let ids: Vec<_> = loaded.producers().map(|(id, state)| (id.get(), state.last_sequence())).collect();
    assert_eq!(ids, [(5, 2), (6, 0)]);
}

#[test]
fn s17_a_restart_without_appends_keeps_the_snapshot() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, idempotent(5, 1, 0, 3));
    let log = reopen_clean(&runtime, log, LogConfig::default());
    let log = reopen_clean(&runtime, log, LogConfig::default());
    assert!(runtime.disk().content(file("00000000000000000003.snapshot")).is_some());
    assert!(append(&runtime, &log, idempotent(5, 1, 0, 3)).duplicate);
}

#[test]
fn f83_stray_bytes_behind_a_cleanly_stopped_log_are_cut() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(2, 10, 1));
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let name = file("00000000000000000000.log");
    let whole = runtime.disk().content(&name).unwrap();
    let mut damaged = whole.clone();
    damaged.extend_from_slice(&[0x5a; 37]);
    runtime.disk().put(&name, &damaged).unwrap();
    let mut options = options(LogConfig::default());
    (options.clean, options.recovery_point) = (true, offset(2));
    let log = open(&runtime, options);
    assert_eq!(log.log_end_offset(), offset(2));
    assert_eq!(runtime.disk().content(&name).unwrap(), whole);
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 0), [(0, 1, 2), (2, 2, 1)]);
}

/// A log of two segments, `[0, 4)` and `[4, 6)`, whose file of the second one begins with a batch at `offset`.
fn second_segment_at(moved: i64) -> (SimRuntime, LogConfig) {
    let two_batches = u32::try_from(2 * batch(2, 10, 1).len()).unwrap();
    let config = LogConfig { segment_bytes: two_batches, ..LogConfig::default() };
    let (runtime, log) = fresh(config.clone());
    for at in 0..3 {
        append(&runtime, &log, batch(2, 10, at));
    }
    assert_eq!(log.segment_count(), 2);
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let name = file("00000000000000000004.log");
    let mut content = runtime.disk().content(&name).unwrap();
    content[..8].copy_from_slice(&moved.to_be_bytes());
    runtime.disk().put(&name, &content).unwrap();
    (runtime, config)
}

#[test]
fn a_batch_below_its_segment_is_cut_and_the_log_takes_appends_clean_or_not() {
    for (clean, recovery_point) in [(true, 6), (false, 0), (false, 5), (false, 6)] {
        for moved in [0, 1, 3] {
            let (runtime, config) = second_segment_at(moved);
            let mut options = options(config);
            (options.clean, options.recovery_point) = (clean, offset(recovery_point));
            let log = open(&runtime, options);
            assert_eq!(
                log.log_end_offset(),
                offset(4),
                "clean {clean}, from {recovery_point}, moved to {moved}"
            );
            append(&runtime, &log, batch(1, 10, 9));
            settle(&runtime, &log);
            assert_eq!(read_all(&runtime, &log, 0), [(0, 1, 2), (2, 3, 2), (4, 4, 1)]);
        }
    }
}

#[test]
fn the_log_start_offset_survives_and_makes_the_log_begin_anew_when_the_end_is_below_it() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(5, 10, 1));
    settle(&runtime, &log);
    run(&runtime, &log, |log| async move { log.advance_log_start(offset(3)).await }).unwrap();
    assert!(log.needs_log_start_checkpoint());
    let log = reopen_clean(&runtime, log, LogConfig::default());
    assert_eq!(log.log_start_offset(), offset(3));
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    drop(log);
    let mut beyond = options(LogConfig::default());
    (beyond.clean, beyond.log_start_offset) = (true, offset(9));
    let log = open(&runtime, beyond);
    assert_eq!(
        (log.log_start_offset(), log.log_end_offset(), log.segment_count()),
        (offset(9), offset(9), 1)
    );
}

#[test]
fn a_missing_index_is_rebuilt_and_a_zero_padded_one_is_cut() {
    let config = LogConfig { index_interval_bytes: 100, ..LogConfig::default() };
    let (runtime, log) = fresh(config.clone());
    for at in 0..6 {
        append(&runtime, &log, batch(1, 100, at));
    }
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let name = file("00000000000000000000.index");
    let good = runtime.disk().content(&name).unwrap();
    let mut padded = good.clone();
    padded.resize(10 << 20, 0);
    runtime.disk().put(&name, &padded).unwrap();
    let mut options = options(config);
    (options.clean, options.recovery_point) = (true, offset(6));
    let log = open(&runtime, options.clone());
    check_indexes(&runtime, &log);
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    assert_eq!(runtime.disk().content(&name).unwrap(), good);
    drop(log);
    let unlink = runtime.clone();
    let path = name.clone();
    runtime.block_on(async move { unlink.dir(crate::io::DirOp::Unlink(path)).await }).unwrap();
    let log = open(&runtime, options);
    assert_eq!(log.log_end_offset(), offset(6));
    check_indexes(&runtime, &log);
    let rebuilt = OffsetIndex::parse(offset(0), &runtime.disk().content(&name).unwrap(), 1 << 20).unwrap();
    assert_eq!(rebuilt.index.to_bytes(), good);
}

#[test]
fn s10_the_topic_id_is_written_once_and_never_replaced() {
    let id = TopicId::new([7; 16]);
    let runtime = machine();
    let with = |topic_id| OpenOptions { topic_id, ..options(LogConfig::default()) };
    let log = open(&runtime, with(Some(id)));
    assert_eq!(log.topic_id(), Some(id));
    let text = runtime.disk().content(file("partition.metadata")).unwrap();
    assert_eq!(text, format!("version: 0\ntopic_id: {id}").into_bytes());
    drop(log);
    let other = try_open(&runtime, with(Some(TopicId::new([8; 16]))));
    assert!(matches!(other, Err(LoadError::InconsistentTopicId { .. })));
    assert_eq!(open(&runtime, with(None)).topic_id(), Some(id));
}

#[test]
fn an_open_that_fails_says_so() {
    let runtime = machine();
    runtime.disk().fail(crate::io::sim::Fault {
        path_contains: ".log",
        ..crate::io::sim::Fault::once(crate::io::sim::OpKind::Open)
    });
    assert!(matches!(try_open(&runtime, options(LogConfig::default())), Err(LoadError::Io { .. })));
    assert_eq!(open(&runtime, options(LogConfig::default())).log_end_offset(), offset(0));
}

/// What a start does with a disk on which nothing was ever appended: the operations that change or sync something.
fn changes_of_a_start(clean: bool) -> Vec<crate::io::sim::Operation> {
    use crate::io::sim::{Crash, OpKind};
    let (runtime, log) = fresh(LogConfig::default());
    run(&runtime, &log, |log| async move { log.start_leader_epoch(EPOCH).await }).unwrap();
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let after = SimRuntime::on(8, runtime.disk().crash(Crash::KeepAll));
    runtime.kill();
    after.disk().record_operations();
    let mut options = options(LogConfig::default());
    options.clean = clean;
    let log = open(&after, options);
    run(&after, &log, |log| async move { log.start_leader_epoch(EPOCH).await }).unwrap();
    assert_eq!(log.latest_epoch(), Some(EPOCH));
    assert_eq!(append(&after, &log, batch(1, 10, 1)).first_offset, offset(0));
    let reads = [OpKind::Open, OpKind::Read];
    let changes: Vec<_> = after.disk().operations();
    let first_append = changes.iter().position(|o| o.kind == OpKind::Write).unwrap_or(changes.len());
    changes.into_iter().take(first_append).filter(|o| !reads.contains(&o.kind)).collect()
}

#[test]
fn the_start_of_a_log_without_records_writes_nothing() {
    // A broker has thousands of them, and each sync costs milliseconds.
    let is_change = |operation: &crate::io::sim::Operation| operation.kind != crate::io::sim::OpKind::Names;
    for clean in [true, false] {
        let changes = changes_of_a_start(clean);
        assert!(!changes.iter().any(is_change), "{clean}: {changes:?}");
    }
}

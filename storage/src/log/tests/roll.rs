//! When a segment ends (storage.md 4.3, T-12, T-15), and what lets old ones go (7.2, T-11).

use super::*;
use crate::io::sim::{Crash, OpKind};

fn bases(log: &SimLog) -> Vec<i64> {
    log.all_segments().iter().map(|segment| segment.base_offset.get()).collect()
}

/// Appends batches of one record with the given times and answers the bases.
fn bases_after(config: LogConfig, times: &[i64]) -> Vec<i64> {
    let (runtime, log) = fresh(config);
    for time in times {
        append(&runtime, &log, batch(1, 10, *time));
    }
    check_indexes(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 0).len(), times.len());
    bases(&log)
}

#[test]
fn a_segment_ends_before_a_batch_that_does_not_fit() {
    let size = u32::try_from(batch(1, 10, 1).len()).unwrap();
    for (bytes, expected) in
        [(3 * size, vec![0, 3]), (3 * size - 1, vec![0, 2, 4]), (size, vec![0, 1, 2, 3, 4])]
    {
        let config = LogConfig { segment_bytes: bytes, ..LogConfig::default() };
        assert_eq!(bases_after(config, &[1; 5]), expected, "{bytes} bytes");
    }
}

#[test]
fn a_segment_ends_by_the_age_of_its_data() {
    let config = LogConfig { segment_ms: 100, ..LogConfig::default() };
    assert_eq!(bases_after(config.clone(), &[1000, 1100, 1101, 1200, 1202]), [0, 2, 4]);
    assert_eq!(bases_after(config.clone(), &[1000, 1, 2, 3]), [0], "older data does not age a segment");
    let compacted = LogConfig {
        cleanup_policy: crate::config::CleanupPolicy { delete: false, compact: true },
        max_compaction_lag_ms: 10,
        ..config
    };
    assert_eq!(bases_after(compacted, &[1000, 1010, 1011]), [0, 2]);
}

#[test]
fn a_segment_without_timestamps_ends_by_the_wall_clock() {
    let config = LogConfig { segment_ms: 60_000, ..LogConfig::default() };
    let (runtime, log) = fresh(config);
    let undated = || build(BatchBuilder::new().max_timestamp(TimestampMs::NONE), 1, 10, -1);
    let append_at = |now: i64| {
        let batch = undated();
        let info = BatchView::parse(&batch).unwrap().info();
        let now = TimestampMs::new(now);
        run(&runtime, &log, move |log| async move {
            if log.must_prepare(&info, EPOCH, now) {
                log.prepare(&info, CLIENT, EPOCH, now).await.unwrap();
            }
            log.append(batch, &info, CLIENT, EPOCH, now).unwrap();
        });
    };
    append_at(NOW.get());
    append_at(NOW.get() + 59_000);
    assert_eq!(bases(&log), [0]);
    append_at(NOW.get() + 61_000);
    assert_eq!(bases(&log), [0, 2]);
}

#[test]
fn jitter_ends_segments_earlier_by_less_than_its_bound() {
    let config = LogConfig { segment_ms: 1000, segment_jitter_ms: 400, ..LogConfig::default() };
    let times: Vec<_> = (0..200).map(|at| 1_000_000 + at * 10).collect();
    let bases = bases_after(config, &times);
    let gaps: Vec<_> = bases.windows(2).map(|pair| (pair[1] - pair[0]) * 10).collect();
    assert!(!gaps.is_empty() && gaps.iter().all(|gap| (600..=1010).contains(gap)), "{gaps:?}");
}

#[test]
fn t15_tiny_indexes_roll_and_never_panic() {
    // 12 bytes: the time index is always full, every append rolls.
    let config = LogConfig { segment_index_bytes: 12, index_interval_bytes: 0, ..LogConfig::default() };
    assert_eq!(bases_after(config.clone(), &[1, 2, 3, 4]), [0, 1, 2, 3]);
    // 24 bytes: one entry and the closing one.
    let config = LogConfig { segment_index_bytes: 24, ..config };
    assert_eq!(bases_after(config.clone(), &[1, 2, 3, 4, 5]), [0, 2, 4]);
    for bytes in [0, 4, 8, 16] {
        bases_after(LogConfig { segment_index_bytes: bytes, ..config.clone() }, &[1, 2, 3]);
    }
}

#[test]
fn t15_a_segment_ends_where_offsets_no_longer_fit_31_bits() {
    let (runtime, log) = fresh(LogConfig::default());
    let top = i64::from(i32::MAX);
    for base in [0, top, top + 1] {
        let builder = BatchBuilder::new().base_offset(offset(base)).partition_leader_epoch(EPOCH);
        try_append(&runtime, &log, build(builder, 1, 5, 1), AppendOrigin::Replication).unwrap();
    }
    assert_eq!(bases(&log), [0, top + 1]);
    settle(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 1).len(), 2);
    let far = BatchBuilder::new().base_offset(offset(1 << 40)).partition_leader_epoch(EPOCH);
    try_append(&runtime, &log, build(far, 1, 5, 1), AppendOrigin::Replication).unwrap();
    assert_eq!(bases(&log), [0, top + 1, 1 << 40]);
    check_indexes(&runtime, &log);
    let log = reopen_clean(&runtime, log, LogConfig::default());
    assert_eq!(log.log_end_offset(), offset((1 << 40) + 1));
}

#[test]
fn a_roll_is_followed_by_a_flush_of_the_old_segment_and_the_recovery_point() {
    let config = LogConfig { segment_bytes: 120, index_interval_bytes: 0, ..LogConfig::default() };
    let (runtime, log) = fresh(config);
    append(&runtime, &log, idempotent(3, 0, 0, 2));
    append(&runtime, &log, idempotent(3, 0, 2, 2));
    runtime.run_until_idle();
    assert_eq!(bases(&log), [0, 2]);
    assert_eq!(log.recovery_point(), offset(2));
    let disk = runtime.disk();
    let times = disk.content(file("00000000000000000000.timeindex")).unwrap();
    let expected = [&(NOW.get() + 1).to_be_bytes()[..], &1_u32.to_be_bytes()[..]].concat();
    assert_eq!(times, expected, "the closing entry");
    assert!(disk.content(file("00000000000000000002.snapshot")).unwrap().len() > 10);
}

#[test]
fn a_roll_that_fails_leaves_the_log_as_it_was() {
    let config = LogConfig { segment_bytes: 200, ..LogConfig::default() };
    let (runtime, log) = fresh(config);
    append(&runtime, &log, batch(1, 100, 1));
    settle(&runtime, &log);
    runtime.disk().fail(crate::io::sim::Fault {
        path_contains: ".timeindex",
        error: std::io::ErrorKind::StorageFull,
        ..crate::io::sim::Fault::once(OpKind::Open)
    });
    let refused = try_append(&runtime, &log, batch(1, 100, 1), CLIENT);
    assert_eq!(refused, Err(AppendError::Log(LogError::Full)));
    assert_eq!((bases(&log), log.state()), (vec![0], LogState::Online));
    append(&runtime, &log, batch(1, 100, 1));
    assert_eq!(bases(&log), [0, 1]);
}

fn retain(runtime: &SimRuntime, log: &SimLog, now: i64, high_watermark: i64) -> usize {
    let now = TimestampMs::new(now);
    let retained = run(runtime, log, move |log| async move { log.retain(now, offset(high_watermark)).await });
    retained.unwrap().segments
}

/// Five segments of one batch each, with times 100, 200, ...
fn five_segments(config: LogConfig) -> (SimRuntime, SimLog, u64) {
    let one = batch(1, 100, 100);
    let size = u32::try_from(one.len()).unwrap();
    let (runtime, log) = fresh(LogConfig { segment_bytes: size, segment_ms: i64::MAX, ..config });
    for at in 1..=5 {
        append(&runtime, &log, batch(1, 100, at * 100));
    }
    settle(&runtime, &log);
    (runtime, log, u64::from(size))
}

#[test]
fn t11_retention_by_size_never_goes_below_the_limit() {
    for (keep, left) in [(0, 1), (1, 1), (2, 2), (4, 4), (5, 5), (9, 5)] {
        let config = LogConfig { retention_ms: -1, ..LogConfig::default() };
        let (runtime, log, size) = five_segments(config);
        let bytes = i64::try_from(size * keep).unwrap();
        log.set_config(LogConfig { retention_bytes: bytes, ..(*log.config()).clone() });
        retain(&runtime, &log, 0, 5);
        let expected = if keep == 0 { 1 } else { left };
        assert_eq!(log.segment_count(), expected, "keep {keep}");
        let start = if keep == 0 { 5 } else { 5 - i64::try_from(left).unwrap() };
        assert_eq!(log.log_start_offset(), offset(start), "keep {keep}");
    }
}

#[test]
fn t11_retention_by_time_goes_by_the_largest_timestamp_and_stops_at_the_first_that_stays() {
    let config = LogConfig { retention_ms: 1000, ..LogConfig::default() };
    for (now, start) in [(1100, 0), (1101, 1), (1300, 2), (1301, 3), (1501, 5)] {
        let (runtime, log, _) = five_segments(config.clone());
        retain(&runtime, &log, now, 5);
        assert_eq!(log.log_start_offset(), offset(start), "now {now}");
        assert_eq!(read_all(&runtime, &log, start).len(), usize::try_from(5 - start).unwrap());
    }
    let (runtime, log, _) = five_segments(LogConfig { retention_ms: -1, ..config });
    assert_eq!(retain(&runtime, &log, i64::MAX, 5), 0);
}

#[test]
fn t11_nothing_above_the_high_watermark_goes_and_a_log_that_loses_all_begins_anew() {
    let config = LogConfig { retention_ms: 1, ..LogConfig::default() };
    let (runtime, log, _) = five_segments(config);
    assert_eq!(retain(&runtime, &log, 9_999, 3), 3);
    assert_eq!(bases(&log), [3, 4]);
    assert_eq!(retain(&runtime, &log, 9_999, 5), 2);
    assert_eq!((bases(&log), log.log_start_offset()), (vec![5], offset(5)));
    assert_eq!(retain(&runtime, &log, 9_999, 5), 0, "the empty active segment stays");
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 5).len(), 1);
}

/// Segments of one batch of one record each, with these times (-1 is none).
fn segments_at(config: LogConfig, times: &[i64]) -> (SimRuntime, SimLog, i64) {
    let size = u32::try_from(batch(1, 100, 100).len()).unwrap();
    let (runtime, log) = fresh(LogConfig { segment_bytes: size, segment_ms: i64::MAX, ..config });
    for time in times {
        let builder = match *time {
            -1 => BatchBuilder::new().max_timestamp(TimestampMs::NONE),
            _ => BatchBuilder::new(),
        };
        append(&runtime, &log, build(builder, 1, 100, *time));
    }
    settle(&runtime, &log);
    assert_eq!(log.segment_count(), times.len());
    (runtime, log, i64::from(size))
}

#[test]
fn t11_records_of_the_future_stay_until_then_and_keep_what_is_behind_them() {
    let config = LogConfig { retention_ms: 1000, ..LogConfig::default() };
    let (runtime, log, size) = segments_at(config, &[100, 9000, 200, 300]);
    retain(&runtime, &log, 5000, 4);
    assert_eq!(bases(&log), [1, 2, 3]);
    retain(&runtime, &log, 10_000, 4);
    assert_eq!(bases(&log), [1, 2, 3], "its age is the limit, not more");
    log.set_config(LogConfig { retention_bytes: 2 * size, ..(*log.config()).clone() });
    retain(&runtime, &log, 5000, 3);
    assert_eq!(bases(&log), [3], "size does not ask for the time, and then what is old goes");
    let (runtime, log, _) =
        segments_at(LogConfig { retention_ms: 1000, ..LogConfig::default() }, &[100, i64::MAX, 200]);
    retain(&runtime, &log, i64::MAX, 3);
    assert_eq!(bases(&log), [1, 2]);
}

#[test]
fn t11_segments_without_timestamps_have_the_time_of_their_file() {
    let config = LogConfig { retention_ms: 1000, ..LogConfig::default() };
    let (runtime, log, _) = segments_at(config, &[-1, -1, 100]);
    let written = runtime.wall_ms();
    retain(&runtime, &log, written + 900, 3);
    assert_eq!(bases(&log), [0, 1, 2], "however old the record behind them is");
    retain(&runtime, &log, written + 2000, 2);
    assert_eq!(bases(&log), [2]);
}

#[test]
fn t11_a_segment_of_mixed_times_has_the_largest_of_them() {
    let config = LogConfig { retention_ms: 1000, ..LogConfig::default() };
    let (runtime, log) = fresh(config);
    for time in [5000, 100] {
        append(&runtime, &log, batch(1, 10, time));
    }
    append(&runtime, &log, build(BatchBuilder::new().max_timestamp(TimestampMs::NONE), 1, 10, -1));
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let log = open(&runtime, options(LogConfig { retention_ms: 1000, ..LogConfig::default() }));
    assert_eq!(retain(&runtime, &log, 6000, 3), 0, "also after a restart");
    assert_eq!(retain(&runtime, &log, 6001, 3), 1);
    assert_eq!(log.log_start_offset(), offset(3));
}

#[test]
fn t11_log_start_then_size_then_time_each_from_the_oldest_that_is_left() {
    // Segment 1 is young and keeps those behind it from time, until size takes it.
    let times = [100, 9000, 100, 100, 100];
    let after = |log_start: i64, keep: i64, high_watermark: i64| {
        let config = LogConfig { retention_ms: 1000, ..LogConfig::default() };
        let (runtime, log, size) = segments_at(config, &times);
        let bytes = if keep < 0 { -1 } else { keep * size };
        log.set_config(LogConfig { retention_bytes: bytes, ..(*log.config()).clone() });
        run(&runtime, &log, move |log| async move { log.advance_log_start(offset(log_start)).await })
            .unwrap();
        retain(&runtime, &log, 5000, high_watermark);
        bases(&log)
    };
    assert_eq!(after(0, -1, 5), [1, 2, 3, 4]);
    assert_eq!(after(1, -1, 5), [1, 2, 3, 4]);
    assert_eq!(after(2, -1, 5), [5], "the log start takes the young one");
    assert_eq!(after(0, 4, 5), [1, 2, 3, 4]);
    assert_eq!(after(0, 3, 5), [5]);
    assert_eq!(after(0, 3, 4), [4]);
    assert_eq!(after(0, 3, 1), [1, 2, 3, 4], "nothing above the high watermark");
    assert_eq!(after(3, 5, 4), [4]);
}

#[test]
fn segments_below_the_log_start_go_on_compacted_topics_too() {
    let policy = crate::config::CleanupPolicy { delete: false, compact: true };
    let config = LogConfig {
        cleanup_policy: policy,
        retention_ms: 1,
        max_compaction_lag_ms: i64::MAX,
        ..LogConfig::default()
    };
    let (runtime, log, _) = five_segments(config);
    assert_eq!(retain(&runtime, &log, 9_999, 5), 0);
    run(&runtime, &log, |log| async move { log.advance_log_start(offset(2)).await }).unwrap();
    assert_eq!(retain(&runtime, &log, 9_999, 5), 2);
    assert_eq!(bases(&log), [2, 3, 4]);
}

#[test]
fn deleted_files_wait_for_their_delay_and_readers_keep_them() {
    let config = LogConfig { retention_ms: 1000, file_delete_delay_ms: 5000, ..LogConfig::default() };
    let (runtime, log, _) = five_segments(config);
    let held = try_read(&runtime, &log, 0, 100, true).unwrap();
    retain(&runtime, &log, 1101, 5);
    let deleted = file("00000000000000000000.log.deleted");
    assert!(runtime.disk().content(&deleted).is_some());
    runtime.advance_ms(4000);
    assert!(runtime.disk().content(&deleted).is_some());
    runtime.advance_ms(2000);
    assert!(runtime.disk().content(&deleted).is_none());
    assert_eq!(content(&held).len(), held.bytes);
}

#[test]
fn epochs_and_snapshots_follow_the_log_start() {
    let (runtime, log, _) = five_segments(LogConfig { retention_ms: 1000, ..LogConfig::default() });
    runtime.run_until_idle();
    retain(&runtime, &log, 1301, 5);
    assert_eq!(log.epoch_for_offset(offset(2)), None);
    assert_eq!(log.epoch_for_offset(offset(3)), Some(EPOCH));
    let epoch_file = || runtime.disk().content(file("leader-epoch-checkpoint")).unwrap();
    assert_eq!(epoch_file(), b"0\n1\n3 0\n", "what lies below may come back");
    assert!(runtime.disk().content(file("00000000000000000002.snapshot")).is_none());
    assert!(runtime.disk().content(file("00000000000000000003.snapshot")).is_some());
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    assert_eq!(epoch_file(), b"0\n1\n3 3\n");
}

/// What is flushed is not read again by the next start (F85): the snapshot says where the producers were.
#[test]
fn a_segment_that_begins_where_a_flush_ended_keeps_the_snapshot_of_that_offset() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, idempotent(3, 0, 0, 2));
    run(&runtime, &log, |log| async move {
        log.flush().await.unwrap();
        let structure = log.structure.enter().await;
        assert!(log.roll(log.log_end_offset(), &structure).await.unwrap());
    });
    assert_eq!(bases(&log), [0, 2]);
    assert!(runtime.disk().content(file("00000000000000000002.snapshot")).is_some());
}

#[test]
fn a_log_start_stays_in_the_checkpoint_until_what_lay_below_it_is_gone_for_good() {
    let (runtime, log, _) = five_segments(LogConfig { retention_ms: -1, ..LogConfig::default() });
    runtime.run_until_idle();
    run(&runtime, &log, |log| async move { log.advance_log_start(offset(2)).await }).unwrap();
    assert_eq!(retain(&runtime, &log, 0, 5), 2);
    assert_eq!((bases(&log)[0], log.log_start_offset()), (2, offset(2)));
    assert!(log.needs_log_start_checkpoint(), "the names may come back");
    let found = OpenOptions {
        recovery_point: log.recovery_point(),
        log_start_offset: log.log_start_offset(),
        ..options((*log.config()).clone())
    };
    let disk = runtime.disk().crash(Crash::DropUnsynced);
    let log_after = open(&SimRuntime::on(8, disk), found.clone());
    assert_eq!((bases(&log_after)[0], log_after.log_start_offset()), (0, offset(2)), "as they do here");
    // Where only the process died nothing of it is durable yet.
    let killed = SimRuntime::on(9, runtime.disk().clone());
    runtime.kill();
    let log = open(&killed, OpenOptions { vouched: true, ..found.clone() });
    assert!(bases(&log)[0] == 2 && log.needs_log_start_checkpoint());
    append(&killed, &log, batch(1, 10, 1));
    run(&killed, &log, |log| async move { log.flush().await }).unwrap();
    assert!(!log.needs_log_start_checkpoint());
    let recovery_point = log.recovery_point();
    let without = OpenOptions { log_start_offset: Offset::ZERO, recovery_point, ..found };
    let (_, log) = crash_and_open(&killed, Crash::DropUnsynced, without);
    assert_eq!((bases(&log)[0], log.log_start_offset()), (2, offset(2)));
}

/// A flush waits for its turn, and a roll may go further meanwhile: its segments are beyond the target then.
#[test]
fn a_flush_that_comes_behind_a_longer_one_finds_its_work_done() {
    let (runtime, log) = fresh(LogConfig { segment_bytes: 100, ..LogConfig::default() });
    for time in 1..=5 {
        append(&runtime, &log, batch(1, 10, time));
    }
    assert!(bases(&log).len() > 2);
    run(&runtime, &log, async |log| {
        log.flush().await.unwrap();
        for target in 0..=5 {
            log.flush_below(Offset::new(target)).await.unwrap();
            assert_eq!(log.recovery_point(), Offset::new(5), "after a flush below {target}");
        }
    });
}

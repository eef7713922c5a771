//! Crashes and damaged tails (storage.md 8.2, 9.3; S-22, S-29, T-16).

use super::*;
use crate::io::sim::Crash;
use crate::io::{DirOp, Queue};

fn config() -> LogConfig {
    LogConfig { index_interval_bytes: 100, ..LogConfig::default() }
}

#[test]
fn a_killed_process_loses_nothing_that_was_written() {
    let (runtime, log) = fresh(config());
    for sequence in 0..10 {
        append(&runtime, &log, idempotent(4, 0, sequence, 1));
    }
    settle(&runtime, &log);
    let (after, log) = crash_and_open(&runtime, Crash::KeepAll, options(config()));
    assert_eq!((log.log_end_offset(), log.recovery_point()), (offset(10), offset(0)));
    assert_eq!(read_all(&after, &log, 0).len(), 10);
    assert!(append(&after, &log, idempotent(4, 0, 6, 1)).duplicate);
    assert_eq!(log.latest_epoch(), Some(EPOCH));
    check_indexes(&after, &log);
}

#[test]
fn a_power_cut_loses_only_what_was_not_flushed() {
    let (runtime, log) = fresh(config());
    for at in 0..4 {
        append(&runtime, &log, batch(1, 100, at));
    }
    run(&runtime, &log, |log| async move { log.flush().await }).unwrap();
    assert_eq!(log.recovery_point(), offset(4));
    for at in 4..8 {
        append(&runtime, &log, batch(1, 100, at));
    }
    settle(&runtime, &log);
    let mut options = options(config());
    options.recovery_point = log.recovery_point();
    let (after, log) = crash_and_open(&runtime, Crash::DropUnsynced, options);
    assert_eq!(log.log_end_offset(), offset(4));
    assert_eq!(read_all(&after, &log, 0).len(), 4);
}

#[test]
fn a17_recovery_reads_only_what_lies_behind_the_recovery_point() {
    let (runtime, log) = fresh(config());
    for at in 0..200 {
        append(&runtime, &log, batch(1, 1000, at));
    }
    run(&runtime, &log, |log| async move { log.flush().await }).unwrap();
    append(&runtime, &log, batch(1, 1000, 200));
    settle(&runtime, &log);
    let mut options = options(config());
    options.recovery_point = log.recovery_point();
    let disk = runtime.disk().crash(Crash::KeepAll);
    runtime.kill();
    let after = SimRuntime::on(8, disk);
    after.disk().record_operations();
    let log = open(&after, options);
    assert_eq!(log.log_end_offset(), offset(201));
    let of_log = |operation: &&crate::io::sim::Operation| {
        operation.kind == crate::io::sim::OpKind::Read && operation.path.ends_with("00000000000000000000.log")
    };
    let read: usize = after.disk().operations().iter().filter(of_log).map(|operation| operation.len).sum();
    assert!(read < 40_000, "read {read} bytes of a log of 200 KB");
    check_indexes(&after, &log);
}

/// A log of five batches of two records, and the bytes of each.
fn five_batches() -> (SimRuntime, SimLog, usize) {
    let (runtime, log) = fresh(config());
    let size = batch(2, 20, 0).len();
    for at in 0..5 {
        append(&runtime, &log, batch(2, 20, at));
    }
    (runtime, log, size)
}

/// A log of five batches whose last one is damaged by `damage`; answers where the log then ends and how many bytes are
/// left of the file.
fn end_after(damage: impl FnOnce(&mut Vec<u8>, usize)) -> (i64, usize, usize) {
    let (runtime, log, size) = five_batches();
    settle(&runtime, &log);
    let disk = runtime.disk().crash(Crash::KeepAll);
    let name = file("00000000000000000000.log");
    let mut bytes = disk.content(&name).unwrap();
    damage(&mut bytes, 4 * size);
    disk.put(&name, &bytes).unwrap();
    let after = SimRuntime::on(8, disk);
    let log = open(&after, options(config()));
    check_indexes(&after, &log);
    (log.log_end_offset().get(), after.disk().content(&name).unwrap().len(), size)
}

/// Five batches, and an offset index of one entry: offset 3, and a position that is not its batch's.
fn with_entry_at(position: impl FnOnce(usize, usize) -> usize, damaged: bool) -> SimRuntime {
    let (runtime, log, size) = five_batches();
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let disk = runtime.disk().crash(Crash::KeepAll);
    let name = file("00000000000000000000.log");
    let mut bytes = disk.content(&name).unwrap();
    let at = position(size, bytes.len());
    if damaged {
        bytes[3 * size - 1] ^= 1;
        disk.put(&name, &bytes).unwrap();
    }
    let entry = [3_u32, u32::try_from(at).unwrap()].map(u32::to_be_bytes).concat();
    disk.put(file("00000000000000000000.index"), &entry).unwrap();
    SimRuntime::on(8, disk)
}

#[test]
fn an_index_entry_that_leads_behind_its_batch_does_not_hide_what_lies_before_it() {
    // The entry leads to the batch of offset 4, which is damaged.
    let after = with_entry_at(|size, _| 2 * size, true);
    let mut options = options(config());
    options.recovery_point = offset(4);
    let log = open(&after, options);
    assert_eq!(log.log_end_offset(), offset(4));
    assert_eq!(read_all(&after, &log, 0).len(), 2);
    check_indexes(&after, &log);
}

#[test]
fn an_index_entry_that_leads_behind_its_batch_does_not_outlive_a_truncation() {
    let after = with_entry_at(|size, _| 2 * size, false);
    let mut options = options(config());
    (options.clean, options.recovery_point) = (true, offset(10));
    let log = open(&after, options);
    run(&after, &log, |log| async move { log.truncate_to(offset(4)).await }).unwrap();
    append(&after, &log, batch(2, 20, 9));
    settle(&after, &log);
    let first = read_all(&after, &log, 3).first().map(|batch| batch.0);
    assert_eq!(first, Some(2), "the batch that holds offset 3");
}

#[test]
fn an_index_entry_that_leads_to_the_end_of_the_file_does_not_empty_the_log() {
    for clean in [true, false] {
        let after = with_entry_at(|_, len| len, false);
        let mut options = options(config());
        (options.clean, options.recovery_point) = (clean, offset(10));
        let log = open(&after, options);
        assert_eq!(log.log_end_offset(), offset(10), "clean {clean}");
        assert_eq!(read_all(&after, &log, 0).len(), 5);
    }
}

#[test]
fn t16_zeros_garbage_and_half_batches_are_cut_off() {
    for zeros in [1, 16, 17, 61, 4096, 8192] {
        let (end, len, size) = end_after(|bytes, _| bytes.resize(bytes.len() + zeros, 0));
        assert_eq!((end, len), (10, 5 * size), "{zeros} zeros");
    }
    let (end, len, size) = end_after(|bytes, _| {
        bytes.resize(bytes.len() + 100, 0);
        bytes.extend_from_slice(b"garbage behind zeros");
    });
    assert_eq!((end, len), (10, 5 * size));
    for cut in [1, 12, 30, 61, 70] {
        let (end, len, size) = end_after(|bytes, last| bytes.truncate(last + cut));
        assert_eq!((end, len), (8, 4 * size), "cut after {cut} bytes");
    }
}

#[test]
fn t16_a_flipped_bit_in_any_byte_of_the_last_batch_is_found_but_in_the_epoch_and_offset_it_may_be_legal() {
    for at in 0..85 {
        let (end, len, size) = end_after(|bytes, last| bytes[last + at] ^= 0x40);
        let outside_crc = at < 8 || (12..16).contains(&at);
        assert!(at < size);
        if !outside_crc {
            assert_eq!((end, len), (8, 4 * size), "byte {at}");
        } else {
            assert!(end == 8 || len == 5 * size, "byte {at}");
        }
    }
}

#[test]
fn s22_offsets_and_epochs_that_go_back_end_the_log() {
    let (end, len, size) =
        end_after(|bytes, last| bytes[last..last + 8].copy_from_slice(&7_i64.to_be_bytes()));
    assert_eq!((end, len), (8, 4 * size));
    let (end, len, size) =
        end_after(|bytes, last| bytes[last + 12..last + 16].copy_from_slice(&2_i32.to_be_bytes()));
    assert_eq!((end, len), (8, 4 * size));
}

#[test]
fn an_epoch_that_the_file_lacks_is_found_in_the_log() {
    let (runtime, log) = fresh(config());
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    let disk = runtime.disk().crash(Crash::KeepAll);
    for damage in [&b"0\n0\n"[..], b"0\n9\nx"] {
        disk.put(file("leader-epoch-checkpoint"), damage).unwrap();
        let after = SimRuntime::on(8, disk.crash(Crash::KeepAll));
        let log = open(&after, options(config()));
        assert_eq!(log.latest_epoch(), Some(EPOCH));
        let text = after.disk().content(file("leader-epoch-checkpoint")).unwrap();
        assert_eq!(text, b"0\n1\n3 0\n");
    }
}

#[test]
fn a_cut_segment_takes_all_later_ones_with_it() {
    let config = LogConfig { segment_bytes: 400, ..config() };
    let (runtime, log) = fresh(config.clone());
    for at in 0..8 {
        append(&runtime, &log, batch(1, 100, at));
    }
    settle(&runtime, &log);
    let second = log.all_segments()[1].base_offset.get();
    let disk = runtime.disk().crash(Crash::KeepAll);
    let name = file(&format!("{second:020}.log"));
    let mut bytes = disk.content(&name).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    disk.put(&name, &bytes).unwrap();
    let after = SimRuntime::on(8, disk);
    let log = open(&after, options(config.clone()));
    assert_eq!(log.segment_count(), 2);
    assert_eq!(log.log_end_offset(), offset(second + 1));
    let log = reopen_clean(&after, log, config);
    assert_eq!(log.log_end_offset(), offset(second + 1), "opening twice gives the same log");
}

#[test]
fn files_of_unfinished_work_are_removed_or_completed() {
    let config = LogConfig { segment_bytes: 400, ..config() };
    let (runtime, log) = fresh(config.clone());
    for at in 0..6 {
        append(&runtime, &log, batch(1, 100, at));
    }
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let disk = runtime.disk();
    let bases: Vec<_> = [0, 1, 2].map(|at| at * 2).to_vec();
    let first = disk.content(file("00000000000000000000.log")).unwrap();
    // Output of a compaction that replaces the first two segments by the first, complete but not renamed.
    disk.put(file("00000000000000000000.log.swap"), &first).unwrap();
    disk.put(file("00000000000000000000.index.swap"), b"").unwrap();
    disk.put(file("00000000000000000000.timeindex.swap"), b"").unwrap();
    disk.put(file("00000000000000000099.log.cleaned"), b"half").unwrap();
    disk.put(file("00000000000000000077.log.deleted"), b"old").unwrap();
    assert_eq!(bases, [0, 2, 4]);
    let mut options = options(config);
    (options.clean, options.recovery_point) = (true, offset(6));
    let log = open(&runtime, options);
    assert_eq!(log.log_end_offset(), offset(6));
    let names = runtime.block_on({
        let runtime = runtime.clone();
        async move { swap::list(&runtime, Path::new(DIR)).await }
    });
    let names: Vec<_> = names.unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(names.iter().all(|name| !name.ends_with("swap") && !name.ends_with("cleaned")), "{names:?}");
    assert!(names.iter().all(|name| !name.ends_with("deleted")), "{names:?}");
    assert_eq!(read_all(&runtime, &log, 0).len(), 6);
}

#[test]
fn a_log_with_much_to_check_waits_until_it_may_go_on_or_is_given_up() {
    for is_given_up in [false, true] {
        let (runtime, log) = fresh(config());
        for at in 0..20 {
            append(&runtime, &log, batch(1, 200_000, at));
        }
        settle(&runtime, &log);
        let disk = runtime.disk().crash(Crash::KeepAll);
        runtime.kill();
        let after = SimRuntime::on(8, disk);
        let held = Rc::new(RefCell::new(None));
        let told = held.clone();
        let control = LoadControl::waiting_at(1 << 20, move |resume| {
            told.replace(Some(resume));
        });
        let opened = Rc::new(RefCell::new(None));
        let (inside, result) = (after.clone(), opened.clone());
        let options = OpenOptions { control: control.clone(), ..options(config()) };
        let _task = after.spawn(Queue::Background, async move {
            let log = Log::open(inside, Path::new(DIR), partition(), options).await;
            result.replace(Some(log));
        });
        after.advance_ms(1000);
        assert!(held.borrow().is_some() && opened.borrow().is_none(), "it waits");
        assert!(control.checked_bytes() > 1 << 20 && control.checked_bytes() < 3 << 20);
        if is_given_up {
            control.stop();
        }
        drop(held.take());
        after.advance_ms(1000);
        match opened.take().expect("it went on") {
            Ok(log) => assert!(!is_given_up && log.log_end_offset() == offset(20)),
            Err(error) => assert!(is_given_up && matches!(error, LoadError::Stopped), "{error}"),
        }
        // Nothing is lost either way.
        assert_eq!(open(&after, super::options(config())).log_end_offset(), offset(20));
    }
}

/// Options of a start after a kill on the same kernel.
fn vouched(config: LogConfig) -> OpenOptions {
    OpenOptions { vouched: true, ..options(config) }
}

/// The operations of a kind on names that contain `part`.
fn done(disk: &SimDisk, kind: crate::io::sim::OpKind, part: &str) -> usize {
    let of_kind = |operation: &&crate::io::sim::Operation| {
        operation.kind == kind && operation.path.to_string_lossy().contains(part)
    };
    disk.operations().iter().filter(of_kind).count()
}

#[test]
fn a_start_that_knows_that_only_the_process_died_syncs_nothing_and_the_next_flush_does() {
    use crate::io::sim::OpKind;

    let config = LogConfig { segment_bytes: 40_000, ..config() };
    let (runtime, log) = fresh(config.clone());
    for sequence in 0..60 {
        append(&runtime, &log, build_producer(4, sequence, 2000));
    }
    settle(&runtime, &log);
    let disk = runtime.disk().crash(Crash::KeepAll);
    runtime.kill();
    let after = SimRuntime::on(8, disk);
    after.disk().set_read_now_percent(70);
    after.disk().record_operations();
    let log = open(&after, vouched(config.clone()));
    assert_eq!((log.log_end_offset(), log.recovery_point()), (offset(60), offset(0)));
    assert!(log.segment_count() >= 3);
    for (kind, part) in [
        (OpKind::SyncData, ""),
        (OpKind::SyncDir, ""),
        (OpKind::Write, ".index"),
        (OpKind::Write, ".timeindex"),
        (OpKind::Write, ".snapshot"),
        (OpKind::Truncate, ""),
    ] {
        assert_eq!(done(after.disk(), kind, part), 0, "{kind:?} {part}");
    }
    // Retention finds indexes that no file holds, and lets them be.
    run(&after, &log, |log| async move { log.retain(NOW, offset(0)).await }).unwrap();
    run(&after, &log, |log| async move { log.retain(NOW, offset(0)).await }).unwrap();
    check_indexes(&after, &log);
    assert!(append(&after, &log, build_producer(4, 58, 2000)).duplicate, "the producer is known");
    run(&after, &log, |log| async move { log.flush().await }).unwrap();
    assert_eq!(log.recovery_point(), offset(60));
    let segments = log.segment_count();
    assert_eq!(done(after.disk(), OpKind::SyncData, ".log"), segments);
    assert!(done(after.disk(), OpKind::SyncData, ".snapshot") >= 1);
    // What the flush promised is there after a power cut, and nothing behind the recovery point has to be read.
    let options = OpenOptions { recovery_point: offset(60), ..options(config) };
    let (after, log) = crash_and_open(&after, Crash::DropUnsynced, options);
    assert_eq!(log.log_end_offset(), offset(60));
    assert_eq!(read_all(&after, &log, 0).len(), 60);
    assert!(append(&after, &log, build_producer(4, 59, 2000)).duplicate);
    check_indexes(&after, &log);
}

fn build_producer(id: i64, sequence: i32, value_bytes: usize) -> BytesMut {
    let builder = BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(0), sequence);
    build(builder, 1, value_bytes, NOW.get())
}

#[test]
fn a_failed_sync_after_a_start_without_syncs_takes_the_log_offline() {
    use crate::io::sim::{Fault, OpKind};

    let (runtime, log) = fresh(config());
    append(&runtime, &log, batch(1, 100, 0));
    settle(&runtime, &log);
    // The kernel could not bring it to the disk; who syncs first is told.
    let disk = runtime.disk().crash(Crash::KeepAll);
    runtime.kill();
    let after = SimRuntime::on(8, disk);
    after.disk().fail(Fault { path_contains: ".log", ..Fault::once(OpKind::SyncData) });
    let log = open(&after, vouched(config()));
    assert_eq!(log.state(), LogState::Online);
    let flushed = run(&after, &log, |log| async move { log.flush().await });
    assert!(flushed.is_err() && matches!(log.state(), LogState::Offline { .. }), "{flushed:?}");
    assert_eq!(log.recovery_point(), offset(0));
}

#[test]
fn a_short_last_write_is_cut_off_without_a_checksum() {
    for kept in [1, 11, 12, 16, 17, 40, 61, 80] {
        let (runtime, log, size) = five_batches();
        settle(&runtime, &log);
        let disk = runtime.disk().crash(Crash::KeepAll);
        let name = file("00000000000000000000.log");
        let mut bytes = disk.content(&name).unwrap();
        bytes.truncate(4 * size + kept);
        disk.put(&name, &bytes).unwrap();
        let after = SimRuntime::on(8, disk);
        after.disk().record_operations();
        let log = open(&after, vouched(config()));
        assert_eq!(log.log_end_offset(), offset(8), "{kept} bytes of the last batch");
        assert_eq!(done(after.disk(), crate::io::sim::OpKind::SyncData, ""), 0);
        append(&after, &log, batch(2, 20, 9));
        check_indexes(&after, &log);
        assert_eq!(read_all(&after, &log, 0).len(), 5);
    }
}

#[test]
fn what_no_kill_leaves_behind_is_checked_by_its_checksums_all_the_same() {
    // Zeros and garbage at the end, an offset or an epoch that goes back, and a segment that ends before the next begins.
    let damages: [fn(&mut Vec<u8>, usize); 4] = [
        |bytes, _| bytes.resize(bytes.len() + 100, 0),
        |bytes, last| bytes[last + 16] = 9,
        |bytes, last| bytes[last..last + 8].copy_from_slice(&7_i64.to_be_bytes()),
        |bytes, last| bytes[last + 12..last + 16].copy_from_slice(&2_i32.to_be_bytes()),
    ];
    for (at, damage) in damages.into_iter().enumerate() {
        let (runtime, log, size) = five_batches();
        settle(&runtime, &log);
        let disk = runtime.disk().crash(Crash::KeepAll);
        let name = file("00000000000000000000.log");
        let mut bytes = disk.content(&name).unwrap();
        damage(&mut bytes, 4 * size);
        // Found by its checksum, if somebody looks.
        bytes[3 * size - 1] ^= 1;
        disk.put(&name, &bytes).unwrap();
        let after = SimRuntime::on(8, disk);
        let log = open(&after, vouched(config()));
        assert_eq!(log.log_end_offset(), offset(4), "damage {at}");
        assert_eq!(log.latest_epoch(), Some(EPOCH));
        check_indexes(&after, &log);
    }
    let config = LogConfig { segment_bytes: 400, ..config() };
    let (runtime, log) = fresh(config.clone());
    for at in 0..8 {
        append(&runtime, &log, batch(1, 100, at));
    }
    settle(&runtime, &log);
    let second = log.all_segments()[1].base_offset.get();
    let disk = runtime.disk().crash(Crash::KeepAll);
    let name = file(&format!("{second:020}.log"));
    let mut bytes = disk.content(&name).unwrap();
    bytes.pop();
    disk.put(&name, &bytes).unwrap();
    let after = SimRuntime::on(8, disk);
    let log = open(&after, vouched(config));
    assert_eq!((log.segment_count(), log.log_end_offset()), (2, offset(second + 1)));
}

#[test]
fn large_batches_are_stepped_over_and_small_ones_read_ahead() {
    use crate::io::sim::OpKind;

    for (count, value_bytes, reads_max, bytes_max) in [(40, 64_000, 60, 60_000), (400, 10, 20, 60_000)] {
        let (runtime, log) = fresh(config());
        for at in 0..count {
            append(&runtime, &log, batch(1, value_bytes, at));
        }
        settle(&runtime, &log);
        let disk = runtime.disk().crash(Crash::KeepAll);
        runtime.kill();
        let after = SimRuntime::on(8, disk);
        after.disk().record_operations();
        let log = open(&after, vouched(config()));
        assert_eq!(log.log_end_offset(), offset(count));
        let operations = after.disk().operations();
        let of_log = operations.iter().filter(|operation| {
            operation.kind == OpKind::Read && operation.path.ends_with("00000000000000000000.log")
        });
        let lens: Vec<_> = of_log.map(|operation| operation.len).collect();
        assert!(lens.len() <= reads_max, "{} reads of {count} batches", lens.len());
        assert!(lens.iter().sum::<usize>() <= bytes_max, "{lens:?}");
    }
}

#[test]
fn indexes_that_were_being_built_anew_when_the_machine_died_are_not_trusted() {
    let config = LogConfig { index_interval_bytes: 100, ..LogConfig::default() };
    let (runtime, log) = fresh(config.clone());
    // The first has the greatest timestamp, of which only the time index tells.
    let greatest = TimestampMs::new(NOW.get() + 1000);
    append(&runtime, &log, batch(1, 60, greatest.get()));
    for at in 1..12 {
        append(&runtime, &log, batch(1, 60, NOW.get() + at));
    }
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    let stopped = OpenOptions { clean: true, recovery_point: log.recovery_point(), ..options(config) };
    let (index, times) = (file("00000000000000000000.index"), file("00000000000000000000.timeindex"));
    // As another broker leaves them that was killed: all zeros, or not there.
    for is_there in [true, false] {
        let disk = runtime.disk().crash(Crash::KeepAll);
        disk.put(&index, &[0; 400]).unwrap();
        disk.put(&times, &[0; 240]).unwrap();
        let before = SimRuntime::on(8, disk);
        if !is_there {
            let (inside, index) = (before.clone(), index.clone());
            before.block_on(async move { inside.dir(DirOp::Unlink(index)).await }).unwrap();
        }
        for operation in 1.. {
            let dying = SimRuntime::on(9, before.disk().crash(Crash::KeepAll));
            let last = dying.disk().operation_count() + operation;
            dying.disk().freeze_from(last);
            let (inside, found) = (dying.clone(), stopped.clone());
            let start = dying.spawn(Queue::Request, async move {
                let log = Log::open(inside.clone(), Path::new(DIR), partition(), found).await.unwrap();
                log.offset_for_timestamp(greatest, offset(12)).await.unwrap();
            });
            dying.run_until_idle();
            let has_ended = dying.disk().operation_count() < last;
            for mode in [Crash::KeepAll, Crash::DropUnsynced, Crash::Torn(operation)] {
                let after = SimRuntime::on(10, dying.disk().crash(mode));
                let log = open(&after, stopped.clone());
                let look = |log: SimLog| async move { log.offset_for_timestamp(greatest, offset(12)).await };
                let found = run(&after, &log, look).unwrap().map(|found| found.offset);
                assert_eq!(found, Some(offset(0)), "{mode:?} at operation {operation}");
                check_indexes(&after, &log);
            }
            drop(start);
            if has_ended {
                assert!(operation > 8, "{operation}");
                break;
            }
        }
    }
}

#[test]
fn producers_are_found_again_when_the_log_begins_above_the_start_that_is_known() {
    let config = LogConfig { segment_bytes: 400, ..LogConfig::default() };
    let (runtime, log) = fresh(config.clone());
    for sequence in 0..6 {
        append(&runtime, &log, idempotent(2, 0, sequence, 1));
        settle(&runtime, &log);
    }
    run(&runtime, &log, |log| async move { log.flush().await }).unwrap();
    let (recovery_point, start) = (log.recovery_point(), log.active_base_offset());
    assert!(start > offset(0) && recovery_point == offset(6));
    run(&runtime, &log, move |log| async move { log.advance_log_start(start).await }).unwrap();
    assert!(run(&runtime, &log, |log| async move { log.retain(NOW, offset(6)).await }).unwrap().segments > 0);
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    // The checkpoint of the log starts is older.
    let found = OpenOptions { recovery_point, ..options(config) };
    let mut machine = runtime;
    for start in 1..=3 {
        let (next, log) = crash_and_open(&machine, Crash::KeepAll, found.clone());
        let known: Vec<_> = log.producers().iter().map(|producer| producer.last_sequence).collect();
        assert_eq!(known, [5], "at start {start}");
        machine = next;
    }
}

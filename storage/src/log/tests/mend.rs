//! Indexes that lead astray, or are of no use: built anew once, whoever looks for something meanwhile.

use std::cell::Cell;

use super::*;
use crate::io::Queue;
use crate::io::sim::{Crash, Fault, OpKind, SimTask};

fn config() -> LogConfig {
    LogConfig { segment_bytes: 120_000, ..LogConfig::default() }
}

/// A log of two segments that was stopped and opened again, with the offset index of the first one changed; and the bytes of
/// that segment.
fn with_index(change: impl FnOnce(&mut [u8])) -> (SimRuntime, SimLog, usize) {
    let (runtime, log) = fresh(config());
    for at in 0..150 {
        append(&runtime, &log, batch(1, 1000, at));
    }
    run(&runtime, &log, |log| async move { log.close().await }).unwrap();
    assert_eq!(log.segment_count(), 2);
    let disk = runtime.disk().crash(Crash::KeepAll);
    let index = file("00000000000000000000.index");
    let mut content = disk.content(&index).unwrap();
    change(&mut content);
    disk.put(&index, &content).unwrap();
    let size = disk.content(file("00000000000000000000.log")).unwrap().len();
    let after = SimRuntime::on(8, disk);
    let log = open(&after, OpenOptions { clean: true, recovery_point: offset(150), ..options(config()) });
    after.disk().record_operations();
    (after, log, size)
}

/// The first entry tells of the second record of the segment, and leads behind it.
fn astray(index: &mut [u8]) {
    assert!(index[3] > 2, "{}", index[3]);
    index[3] = 1;
}

/// Reads in a task of its own; where the batch begins that was found.
fn reader(runtime: &SimRuntime, log: &SimLog, from: i64) -> (SimTask, Rc<Cell<Option<i64>>>) {
    let found = Rc::new(Cell::new(None));
    let (told, log) = (found.clone(), log.clone());
    let task = runtime.spawn(Queue::Request, async move {
        let upper_bound = log.log_end_offset();
        let request = ReadRequest { from: offset(from), max_bytes: 1, upper_bound, min_one_batch: true };
        told.set(Some(log.read(request).await.unwrap().base_offset.get()));
    });
    (task, found)
}

/// Waits until the index of the first segment has nothing left, as it is being built.
fn until_it_is_built(runtime: &SimRuntime, log: &SimLog) {
    let first = log.all_segments()[0].clone();
    for _ in 0..10_000 {
        if first.with(|all| all.offsets.is_empty()) == Some(true) {
            return;
        }
        runtime.advance_nanos(2000);
    }
    panic!("nobody found the entry");
}

/// Bytes that were read of the first segment.
fn bytes_read(runtime: &SimRuntime) -> usize {
    let operations = runtime.disk().operations();
    let of_first = operations
        .iter()
        .filter(|done| done.kind == OpKind::Read && done.path.ends_with("00000000000000000000.log"));
    of_first.map(|done| done.len).sum()
}

#[test]
fn readers_that_come_while_an_index_is_built_wait_for_it_and_read_no_segment_of_their_own() {
    let (runtime, log, size) = with_index(astray);
    let (_first, found) = reader(&runtime, &log, 2);
    until_it_is_built(&runtime, &log);
    let others: Vec<_> = [100, 101, 3].map(|from| reader(&runtime, &log, from)).into();
    runtime.advance_ms(1000);
    assert_eq!(found.get(), Some(2));
    let found: Vec<_> = others.iter().map(|(_, found)| found.get().unwrap()).collect();
    assert_eq!(found, [100, 101, 3]);
    let read = bytes_read(&runtime);
    assert!(read < size + size / 2, "{read} bytes of a segment of {size}");
    check_indexes(&runtime, &log);
}

#[test]
fn useless_index_files_are_built_anew_once_for_all_who_look() {
    let (runtime, log, size) = with_index(|index| index.fill(0));
    let readers: Vec<_> = [2, 100, 101, 3].map(|from| reader(&runtime, &log, from)).into();
    runtime.advance_ms(1000);
    let found: Vec<_> = readers.iter().map(|(_, found)| found.get().unwrap()).collect();
    assert_eq!(found, [2, 100, 101, 3]);
    let read = bytes_read(&runtime);
    assert!(read < size + size / 2, "{read} bytes of a segment of {size}");
    check_indexes(&runtime, &log);
}

#[test]
fn an_index_is_built_to_its_end_when_the_reader_that_wanted_it_goes_away() {
    let (runtime, log, _) = with_index(astray);
    let (task, found) = reader(&runtime, &log, 2);
    until_it_is_built(&runtime, &log);
    drop(task);
    runtime.advance_ms(1000);
    assert_eq!(found.get(), None);
    let entries = log.all_segments()[0].with(|all| all.offsets.entries().len());
    assert!(entries > Some(20), "{entries:?}");
    check_indexes(&runtime, &log);
}

#[test]
fn a_truncation_waits_for_an_index_that_is_built() {
    let (runtime, log, _) = with_index(astray);
    let (_task, found) = reader(&runtime, &log, 2);
    until_it_is_built(&runtime, &log);
    run(&runtime, &log, |log| async move { log.truncate_to(offset(50)).await }).unwrap();
    runtime.advance_ms(1000);
    assert_eq!(found.get(), Some(2));
    for at in 50..60 {
        append(&runtime, &log, batch(1, 1000, at));
    }
    check_indexes(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 0).len(), 60);
    assert_eq!(log.state(), LogState::Online);
}

#[test]
fn a_log_that_is_closed_while_an_index_is_built_answers_those_who_wait() {
    let (runtime, log, _) = with_index(astray);
    let answer = Rc::new(Cell::new(None));
    let (told, inside) = (answer.clone(), log.clone());
    let _task = runtime.spawn(Queue::Request, async move {
        let upper_bound = inside.log_end_offset();
        let request = ReadRequest { from: offset(2), max_bytes: 1, upper_bound, min_one_batch: true };
        told.set(Some(inside.read(request).await.err()));
    });
    until_it_is_built(&runtime, &log);
    run(&runtime, &log, |log| async move { log.abandon().await });
    runtime.advance_ms(1000);
    assert_eq!(answer.get(), Some(Some(ReadError::Log(LogError::Closed))));
}

#[test]
fn an_index_that_could_not_be_built_for_want_of_a_descriptor_is_built_for_the_next_who_looks() {
    let (runtime, log, _) = with_index(|index| index.fill(0));
    let error = io::ErrorKind::OutOfMemory;
    runtime.disk().fail(Fault { path_contains: "0.log", error, ..Fault::once(OpKind::Open) });
    let refused = try_read(&runtime, &log, 100, 1, true);
    assert_eq!(refused.err(), Some(ReadError::Log(LogError::Exhausted)));
    assert_eq!(log.state(), LogState::Online);
    assert_eq!(try_read(&runtime, &log, 100, 1, true).unwrap().base_offset, offset(100));
    check_indexes(&runtime, &log);
}

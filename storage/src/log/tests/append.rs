//! Appends: offsets, epochs, producers, gathering, what is refused.

use std::cell::RefCell;

use super::*;
use crate::io::WRITE_NOW_BYTES_MAX;
use crate::io::sim::OpKind;
use crate::log::BatchBuffer;

#[test]
fn offsets_and_epoch_are_patched_in_place_and_the_end_moves_at_once() {
    let (runtime, log) = fresh(LogConfig::default());
    let first = append(&runtime, &log, batch(3, 10, 100));
    assert_eq!((first.first_offset, first.last_offset, first.duplicate), (offset(0), offset(2), false));
    let second = append(&runtime, &log, batch(1, 10, 50));
    assert_eq!(second.first_offset, offset(3));
    assert_eq!(log.log_end_offset(), offset(4));
    settle(&runtime, &log);
    assert_eq!(log.written_offset(), offset(4));
    assert_eq!(read_all(&runtime, &log, 0), [(0, 2, 3), (3, 3, 1)]);
    let bytes = runtime.disk().content(file("00000000000000000000.log")).unwrap();
    assert_eq!(BatchView::parse(&bytes).unwrap().partition_leader_epoch(), EPOCH);
    assert_eq!(
        runtime.disk().content(file("leader-epoch-checkpoint")).unwrap(),
        b"0\n1\n3 0\n",
        "the epoch is durable before its first byte"
    );
}

/// Batches with values of these sizes, behind what is there, and then a wait until they are written.
fn append_in_one_turn(runtime: &SimRuntime, log: &SimLog, sizes: Vec<usize>) {
    run(runtime, log, move |log| async move {
        for size in sizes {
            let batch = batch(1, size, 1);
            let info = BatchView::parse(&batch).unwrap().info();
            log.append(batch, &info, CLIENT, EPOCH, NOW).unwrap();
        }
        log.until_written(log.log_end_offset()).await.unwrap();
    });
}

#[test]
fn appends_of_one_turn_are_one_write() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    runtime.disk().record_operations();
    append_in_one_turn(&runtime, &log, vec![10; 10]);
    let operations = runtime.disk().operations();
    let writes: Vec<_> = operations.iter().filter(|operation| operation.kind == OpKind::Write).collect();
    assert_eq!(writes.len(), 1, "{operations:?}");
    assert_eq!(read_all(&runtime, &log, 0).len(), 11);
}

/// No buffer grows with what a turn holds: growing by doubling copied a turn of many megabytes once more, and took three
/// times its memory.
#[test]
fn a_large_turn_is_written_in_pieces_of_bounded_size() {
    const PIECE: usize = WRITE_NOW_BYTES_MAX;
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    runtime.disk().record_operations();
    // One batch is larger than a piece.
    let sizes: Vec<usize> = (0..60).map(|at| if at == 30 { 2 * PIECE } else { 100_000 }).collect();
    let count = i64::try_from(sizes.len()).unwrap();
    append_in_one_turn(&runtime, &log, sizes);
    let operations = runtime.disk().operations();
    let writes: Vec<_> = operations.iter().filter(|operation| operation.kind == OpKind::Write).collect();
    let large: Vec<_> = writes.iter().filter(|write| write.len > PIECE).collect();
    assert_eq!(large.len(), 1, "the batch that is larger alone");
    assert!(large[0].len < 2 * PIECE + 1000);
    assert_eq!(writes.len(), 15 + 1 + 15, "two batches in a write");
    let ends: Vec<_> = writes.iter().map(|write| write.at + u64::try_from(write.len).unwrap()).collect();
    assert!(ends.iter().zip(&writes[1..]).all(|(end, next)| *end == next.at), "one after the other");
    let batches: Vec<_> = (0..=count).map(|at| (at, at, 1)).collect();
    assert_eq!(read_all(&runtime, &log, 0), batches);
}

/// The memory of the first batch that a read hands out.
fn read_memory(runtime: &SimRuntime, log: &SimLog, from: i64) -> *const u8 {
    let read = try_read(runtime, log, from, 1, true).expect("the log is readable");
    match read.spans.as_slice() {
        [Span::Memory(bytes)] => bytes.as_ptr(),
        spans => panic!("{spans:?}"),
    }
}

#[test]
fn a_large_batch_that_is_most_of_its_memory_stays_where_it_came() {
    let (runtime, log) = fresh(LogConfig::default());
    let own = |batch: BytesMut| BytesMut::from(&batch[..]);
    let (bytes, foreign) = (own(batch(1, 20_000, 1)), own(batch(1, 20_000, 1)));
    let (came, foreign_came) = (bytes.as_ptr(), foreign.as_ptr());
    append(&runtime, &log, bytes);
    settle(&runtime, &log);
    assert_eq!(read_memory(&runtime, &log, 0), came);
    // A small part of a frame: kept, it would keep all of it.
    let info = BatchView::parse(&foreign).unwrap().info();
    let memory = 2 * foreign.len();
    run(&runtime, &log, move |log| async move {
        log.append(BatchBuffer { bytes: foreign, memory }, &info, CLIENT, EPOCH, NOW).unwrap();
    });
    settle(&runtime, &log);
    assert_ne!(read_memory(&runtime, &log, 1), foreign_came);
    assert_eq!(read_all(&runtime, &log, 0), [(0, 0, 1), (1, 1, 1)]);
}

/// Its memory is more than the tail may hold, the batch alone is not.
#[test]
fn a_batch_whose_memory_the_tail_does_not_take_is_kept_as_a_copy() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    let bytes = batch(1, 900_000, 1);
    let (came, memory) = (bytes.as_ptr(), 1_200_000);
    let info = BatchView::parse(&bytes).unwrap().info();
    run(&runtime, &log, move |log| async move {
        log.append(BatchBuffer { bytes, memory }, &info, CLIENT, EPOCH, NOW).unwrap();
    });
    settle(&runtime, &log);
    assert_eq!(log.tail.covered_from(offset(0)), Some(0));
    assert_ne!(read_memory(&runtime, &log, 1), came);
}

/// Whether a write is made at once, short, or by the ring: pieces of one write lie in the file in their order.
#[test]
fn small_and_large_batches_of_one_turn_are_written_and_read_in_order() {
    for (write_now, short) in [(0, 0), (100, 0), (50, 50)] {
        let (runtime, log) = fresh(LogConfig::default());
        append(&runtime, &log, batch(1, 10, 1));
        settle(&runtime, &log);
        runtime.disk().set_write_now_percent(write_now);
        runtime.disk().set_short_write_percent(short);
        runtime.disk().record_operations();
        let sizes: Vec<_> = (0..40).map(|at| if at % 3 == 0 { 20_000 + at } else { 10 + at }).collect();
        let count = i64::try_from(sizes.len()).unwrap();
        append_in_one_turn(&runtime, &log, sizes);
        let operations = runtime.disk().operations();
        let writes = operations.iter().filter(|operation| operation.kind == OpKind::Write).count();
        assert!(short > 0 || writes == 2, "280,000 bytes are two writes: {operations:?}");
        let batches: Vec<_> = (0..=count).map(|at| (at, at, 1)).collect();
        assert_eq!(read_all(&runtime, &log, 0), batches, "from memory");
        log.tail.clear();
        assert_eq!(read_all(&runtime, &log, 0), batches, "from the file");
    }
}

#[test]
fn short_writes_are_continued_and_written_is_a_contiguous_prefix() {
    let (runtime, log) = fresh(LogConfig::default());
    let seen: Rc<RefCell<Vec<Offset>>> = Rc::default();
    let sink = seen.clone();
    log.set_listener(move |event| {
        let LogEvent::Written(offset) = event else { panic!("{event:?}") };
        sink.borrow_mut().push(offset);
    });
    runtime.disk().set_short_write_percent(90);
    for at in 0..20 {
        append(&runtime, &log, batch(2, 300, at));
    }
    settle(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 0).len(), 20);
    let seen = seen.borrow();
    assert!(seen.is_sorted() && seen.last() == Some(&offset(40)), "{seen:?}");
}

#[test]
fn an_append_with_a_new_epoch_has_to_be_prepared() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, 1));
    let next = batch(1, 10, 1);
    let info = BatchView::parse(&next).unwrap().info();
    let epoch = LeaderEpoch::new(4);
    assert!(log.must_prepare(&info, epoch, NOW));
    assert_eq!(log.append(next, &info, CLIENT, epoch, NOW), Err(AppendError::NotPrepared));
    assert!(!log.must_prepare(&info, EPOCH, NOW));
    run(&runtime, &log, |log| async move { log.start_leader_epoch(epoch).await }).unwrap();
    assert!(!log.must_prepare(&info, epoch, NOW), "the epoch of a new leader begins without a record");
    assert_eq!(log.end_offset_for_epoch(EPOCH), Some((EPOCH, offset(1))));
    assert_eq!(log.latest_epoch(), Some(epoch));
}

#[test]
fn a_batch_larger_than_a_segment_is_refused_but_for_replication() {
    let config = LogConfig { segment_bytes: 500, ..LogConfig::default() };
    let (runtime, log) = fresh(config);
    let large = batch(1, 600, 1);
    let refused = try_append(&runtime, &log, large.clone(), CLIENT);
    assert!(matches!(refused, Err(AppendError::RecordListTooLarge { limit: 500, .. })), "{refused:?}");
    let taken = try_append(&runtime, &log, large, AppendOrigin::Replication).unwrap();
    assert_eq!(taken.last_offset, offset(0));
}

#[test]
fn a_batch_that_is_too_large_begins_no_segment() {
    // storage.md 4.1: the size (step 11) is judged before the roll (step 12).
    let config = LogConfig { segment_bytes: 500, ..LogConfig::default() };
    let (runtime, log) = fresh(config);
    append(&runtime, &log, batch(1, 300, 1));
    let refused = try_append(&runtime, &log, batch(1, 600, 1), CLIENT);
    assert!(matches!(refused, Err(AppendError::RecordListTooLarge { limit: 500, .. })), "{refused:?}");
    assert_eq!(log.segment_count(), 1);
    append(&runtime, &log, batch(1, 300, 1));
    assert_eq!(log.segment_count(), 2);
}

#[test]
fn replicated_batches_keep_their_offsets_and_may_leave_gaps_but_not_go_back() {
    let (runtime, log) = fresh(LogConfig::default());
    for base in [0, 5, 100] {
        let builder = BatchBuilder::new().base_offset(offset(base)).partition_leader_epoch(EPOCH);
        let appended =
            try_append(&runtime, &log, build(builder, 2, 5, 1), AppendOrigin::Replication).unwrap();
        assert_eq!(appended.first_offset, offset(base));
    }
    let builder = BatchBuilder::new().base_offset(offset(50)).partition_leader_epoch(EPOCH);
    let refused = try_append(&runtime, &log, build(builder, 2, 5, 1), AppendOrigin::Replication);
    assert_eq!(refused, Err(AppendError::OutOfOrder { first: offset(50), expected: offset(102) }));
    settle(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 3), [(5, 6, 2), (100, 101, 2)]);
}

#[test]
fn a_duplicate_answers_the_offsets_of_the_original_and_writes_nothing() {
    let (runtime, log) = fresh(LogConfig::default());
    for sequence in 0..5 {
        append(&runtime, &log, idempotent(9, 0, sequence * 2, 2));
    }
    for sequence in [3, 0, 4, 1] {
        let again = append(&runtime, &log, idempotent(9, 0, sequence * 2, 2));
        assert!(again.duplicate);
        assert_eq!(again.first_offset, offset(i64::from(sequence) * 2));
    }
    assert_eq!(log.log_end_offset(), offset(10));
    let gap = try_append(&runtime, &log, idempotent(9, 0, 12, 2), CLIENT);
    assert!(matches!(gap, Err(AppendError::Producer(_))), "{gap:?}");
    assert_eq!(log.producers()[0].last_sequence, 9);
}

#[test]
fn a_failed_write_takes_the_log_offline_for_good() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    runtime.disk().fail(crate::io::sim::Fault::once(OpKind::Write));
    append(&runtime, &log, batch(1, 10, 1));
    let waited = run(&runtime, &log, |log| async move { log.until_written(offset(2)).await });
    assert_eq!(waited, Err(LogError::Offline { during: "write" }));
    assert_eq!(log.state(), LogState::Offline { during: "write" });
    let refused = try_append(&runtime, &log, batch(1, 10, 1), CLIENT);
    assert_eq!(refused, Err(AppendError::Log(LogError::Offline { during: "write" })));
    assert!(matches!(try_read(&runtime, &log, 0, 100, true), Err(ReadError::Log(_))));
}

#[test]
fn a_failed_sync_takes_the_log_offline() {
    let (runtime, log) = fresh(LogConfig::default());
    append(&runtime, &log, batch(1, 10, 1));
    settle(&runtime, &log);
    runtime.disk().fail(crate::io::sim::Fault::once(OpKind::SyncData));
    let flushed = run(&runtime, &log, |log| async move { log.flush().await });
    assert_eq!(flushed, Err(LogError::Offline { during: "sync of a segment" }));
    assert_eq!(log.recovery_point(), offset(0));
}

#[test]
fn an_idle_log_holds_no_append_buffer_beyond_the_shared_budget() {
    let runtime = machine();
    let budget = TailBudget::new(1000);
    let log = open(&runtime, OpenOptions::new(LogConfig::default(), budget.clone()));
    for at in 0..50 {
        append(&runtime, &log, batch(1, 100, at));
        settle(&runtime, &log);
        assert!(budget.used_bytes() <= 1000);
    }
    assert!(budget.used_bytes() > 0);
    assert_eq!(read_all(&runtime, &log, 0).len(), 50, "what the tail lost is read from the file");
    budget.evict_older(MonoTime::new(u64::MAX));
    assert_eq!(budget.used_bytes(), 0);
    assert_eq!(read_all(&runtime, &log, 0).len(), 50);
}

use std::collections::BTreeSet;

use proptest::prelude::*;
use protocol::records::batch::{Attributes, BatchView};
use protocol::records::builder::BatchBuilder;
use protocol::types::LeaderEpoch;

use super::*;

mod model;

const CLIENT: AppendOrigin = AppendOrigin::Client(Verification::NotRequired);
const COORDINATOR: AppendOrigin = AppendOrigin::Coordinator(Verification::NotRequired);
const DAY_MS: i64 = 86_400_000;

fn at(offset: i64) -> Offset {
    Offset::new(offset)
}

fn ms(timestamp: i64) -> TimestampMs {
    TimestampMs::new(timestamp)
}

fn id(producer: i64) -> ProducerId {
    ProducerId::new(producer)
}

/// A data batch of `records` records at an offset; timestamp 100.
fn batch(producer: i64, epoch: i16, sequence: i32, records: i32, offset: i64) -> BatchInfo {
    let last = (i64::from(sequence) + i64::from(records) - 1) % (1 << 31);
    BatchInfo {
        base_offset: at(offset),
        last_offset: at(offset + i64::from(records) - 1),
        partition_leader_epoch: LeaderEpoch::new(0),
        attributes: Attributes::new(0),
        base_timestamp: ms(100),
        max_timestamp: ms(100),
        producer_id: id(producer),
        producer_epoch: ProducerEpoch::new(epoch),
        base_sequence: sequence,
        last_sequence: if sequence < 0 { -1 } else { i32::try_from(last).unwrap() },
        record_count: records,
        size_in_bytes: 100,
    }
}

fn txn(producer: i64, epoch: i16, sequence: i32, records: i32, offset: i64) -> BatchInfo {
    let plain = batch(producer, epoch, sequence, records, offset);
    BatchInfo { attributes: plain.attributes.transactional(), ..plain }
}

fn control(producer: i64, epoch: i16, offset: i64) -> BatchInfo {
    let plain = batch(producer, epoch, -1, 1, offset);
    BatchInfo { attributes: plain.attributes.transactional().control(), ..plain }
}

fn marker(outcome: TxnOutcome, coordinator_epoch: i32) -> EndTxnMarker {
    EndTxnMarker { outcome, coordinator_epoch, timestamp: ms(200) }
}

fn duplicate(first: i64, last: i64) -> Result<Check, ProducerStateError> {
    Ok(Check::Duplicate { first_offset: at(first), last_offset: at(last), timestamp: ms(100) })
}

fn out_of_order(batch: &BatchInfo, fault: SequenceFault) -> Result<Check, ProducerStateError> {
    Err(ProducerStateError::OutOfOrderSequence {
        producer_id: batch.producer_id,
        producer_epoch: batch.producer_epoch,
        got: batch.base_sequence,
        fault,
    })
}

fn txn_fault(producer: i64, fault: TxnStateFault) -> Result<Check, ProducerStateError> {
    Err(ProducerStateError::InvalidTxnState { producer_id: id(producer), fault })
}

fn manager(batches: &[BatchInfo]) -> ProducerStateManager {
    let mut manager = ProducerStateManager::new(DAY_MS);
    for batch in batches {
        assert_eq!(manager.update(batch, None, ms(100)), None);
        manager.set_map_end_offset(batch.next_offset());
    }
    manager
}

/// Six batches of two records each, sequences and offsets 0 to 11.
fn six() -> ProducerStateManager {
    manager(&[0, 2, 4, 6, 8, 10].map(|at| batch(7, 0, at, 2, i64::from(at))))
}

fn end(
    manager: &mut ProducerStateManager,
    producer: i64,
    epoch: i16,
    offset: i64,
    outcome: TxnOutcome,
) -> Option<CompletedTxn> {
    let done = manager.update(&control(producer, epoch, offset), Some(&marker(outcome, 3)), ms(200));
    if let Some(txn) = &done {
        manager.complete(txn);
    }
    manager.set_map_end_offset(at(offset + 1));
    done
}

// ---- the idempotence table of protocol.md 3.3 -------------------------------------------------------------------

#[test]
fn statement_37_an_unknown_producer_may_begin_anywhere() {
    let manager = manager(&[]);
    assert_eq!(manager.check(&batch(7, 0, 100, 1, 0), None, CLIENT), Ok(Check::Append));
    assert_eq!(manager.check(&batch(7, 5, 3, 1, 0), None, CLIENT), Ok(Check::Append));
}

#[test]
fn statement_32_each_of_the_last_five_batches_is_recognised_when_sent_again() {
    let manager = six();
    for sequence in [2, 4, 6, 8, 10] {
        let again = batch(7, 0, sequence, 2, 0);
        assert_eq!(manager.check(&again, None, CLIENT), duplicate(sequence.into(), i64::from(sequence) + 1));
    }
}

#[test]
fn statement_33_the_sixth_oldest_batch_is_out_of_order() {
    let oldest = batch(7, 0, 0, 2, 0);
    assert_eq!(
        six().check(&oldest, None, CLIENT),
        out_of_order(&oldest, SequenceFault::NotNext { last: 11 })
    );
}

#[test]
fn statement_34_a_gap_is_out_of_order() {
    let gap = batch(7, 0, 13, 1, 0);
    assert_eq!(six().check(&gap, None, CLIENT), out_of_order(&gap, SequenceFault::NotNext { last: 11 }));
}

#[test]
fn an_overlap_with_other_bounds_is_out_of_order() {
    let overlap = batch(7, 0, 10, 3, 0);
    assert_eq!(
        six().check(&overlap, None, CLIENT),
        out_of_order(&overlap, SequenceFault::NotNext { last: 11 })
    );
}

#[test]
fn the_next_sequence_is_appended() {
    assert_eq!(six().check(&batch(7, 0, 12, 9, 0), None, CLIENT), Ok(Check::Append));
}

#[test]
fn statement_38_sequences_wrap_from_two_to_the_31_minus_1_to_zero() {
    let manager_at_end = manager(&[batch(7, 0, i32::MAX, 1, 0)]);
    assert_eq!(manager_at_end.check(&batch(7, 0, 0, 1, 1), None, CLIENT), Ok(Check::Append));
    let across = batch(7, 0, i32::MAX - 1, 4, 0);
    assert_eq!(across.last_sequence, 1);
    let manager = manager(&[across]);
    assert_eq!(manager.check(&batch(7, 0, 2, 1, 4), None, CLIENT), Ok(Check::Append));
    assert_eq!(manager.check(&across, None, CLIENT), duplicate(0, 3));
}

#[test]
fn statement_35_a_new_epoch_begins_at_zero() {
    let mut manager = six();
    let late = batch(7, 1, 3, 1, 12);
    let fault = SequenceFault::NewEpoch { current: ProducerEpoch::new(0) };
    assert_eq!(manager.check(&late, None, CLIENT), out_of_order(&late, fault));
    let first = batch(7, 1, 0, 1, 12);
    assert_eq!(manager.check(&first, None, CLIENT), Ok(Check::Append));
    manager.update(&first, None, ms(100));
    assert_eq!(manager.producer(id(7)).unwrap().batches().len(), 1);
    assert_eq!(manager.check(&batch(7, 1, 1, 1, 13), None, CLIENT), Ok(Check::Append));
}

#[test]
fn statement_36_an_older_epoch_is_refused() {
    let mut manager = six();
    manager.update(&batch(7, 1, 0, 1, 12), None, ms(100));
    let stale = Err(ProducerStateError::InvalidProducerEpoch {
        producer_id: id(7),
        got: ProducerEpoch::new(0),
        current: ProducerEpoch::new(1),
    });
    assert_eq!(manager.check(&batch(7, 0, 12, 1, 13), None, CLIENT), stale);
    assert_eq!(manager.check(&batch(7, 0, 10, 2, 13), None, CLIENT), stale);
}

#[test]
fn after_a_marker_alone_the_epoch_begins_at_zero() {
    let mut manager = manager(&[]);
    end(&mut manager, 7, 4, 0, TxnOutcome::Abort);
    let late = batch(7, 4, 1, 1, 1);
    assert_eq!(manager.check(&late, None, CLIENT), out_of_order(&late, SequenceFault::NotNext { last: -1 }));
    assert_eq!(manager.check(&batch(7, 4, 0, 1, 1), None, CLIENT), Ok(Check::Append));
}

#[test]
fn a_plain_batch_inside_an_open_transaction_is_refused() {
    let manager = manager(&[txn(7, 0, 0, 1, 0)]);
    let refused = txn_fault(7, TxnStateFault::PlainBatchInTxn);
    assert_eq!(manager.check(&batch(7, 0, 1, 1, 1), None, CLIENT), refused);
    assert_eq!(manager.check(&batch(7, 0, -1, 1, 1), None, COORDINATOR), refused);
    assert_eq!(manager.check(&batch(8, 0, 0, 1, 1), None, CLIENT), Ok(Check::Append));
}

#[test]
fn f29_five_batches_are_recognised_in_whatever_order_they_are_resent() {
    let manager = six();
    for order in [[2, 4, 6, 8, 10], [10, 8, 6, 4, 2], [6, 2, 10, 4, 8], [8, 10, 2, 6, 4]] {
        for sequence in order {
            let again = batch(7, 0, sequence, 2, 99);
            let original = duplicate(sequence.into(), i64::from(sequence) + 1);
            assert_eq!(manager.check(&again, None, CLIENT), original, "{order:?}");
        }
    }
}

#[test]
fn a_repeat_is_success_before_any_other_rule_is_looked_at() {
    let mut manager = manager(&[batch(7, 0, 0, 1, 0)]);
    manager.update(&txn(7, 0, 1, 1, 1), None, ms(100));
    assert_eq!(manager.check(&batch(7, 0, 0, 1, 9), None, CLIENT), duplicate(0, 0));
    let missing = AppendOrigin::Client(Verification::Missing);
    end(&mut manager, 7, 0, 2, TxnOutcome::Commit);
    assert_eq!(manager.check(&txn(7, 0, 1, 1, 9), None, missing), duplicate(1, 1));
}

#[test]
fn batches_without_a_producer_leave_no_trace() {
    let mut manager = manager(&[]);
    let plain = batch(-1, -1, -1, 3, 0);
    assert_eq!(manager.check(&plain, None, CLIENT), Ok(Check::Append));
    assert_eq!(manager.update(&plain, None, ms(1)), None);
    assert!(manager.is_empty());
}

// ---- the table of storage.md 6 ----------------------------------------------------------------------------------

#[test]
fn the_last_five_batches_are_kept() {
    let manager = six();
    let kept: Vec<_> = manager.producer(id(7)).unwrap().batches().iter().map(|b| b.first_sequence).collect();
    assert_eq!(kept, [2, 4, 6, 8, 10]);
}

#[test]
fn sequences_are_checked_for_clients_only() {
    let gap = batch(7, 0, 99, 1, 0);
    assert_eq!(six().check(&gap, None, COORDINATOR), Ok(Check::Append));
    assert_eq!(six().check(&gap, None, AppendOrigin::Replication), Ok(Check::Append));
    let again = batch(7, 0, 10, 2, 0);
    assert_eq!(six().check(&again, None, COORDINATOR), Ok(Check::Append));
}

#[test]
fn an_older_epoch_is_refused_for_coordinators_and_taken_from_replication() {
    let mut manager = manager(&[batch(7, 5, 0, 1, 0)]);
    let old = batch(7, 4, 0, 1, 1);
    assert!(matches!(
        manager.check(&old, None, COORDINATOR),
        Err(ProducerStateError::InvalidProducerEpoch { .. })
    ));
    assert_eq!(manager.check(&old, None, AppendOrigin::Replication), Ok(Check::Append));
    manager.update(&old, None, ms(100));
    assert_eq!(manager.producer(id(7)).unwrap().epoch(), ProducerEpoch::new(4));
}

#[test]
fn the_first_transactional_batch_opens_a_transaction() {
    let manager = manager(&[batch(7, 0, 0, 3, 0), txn(7, 0, 3, 2, 3), txn(7, 0, 5, 2, 5)]);
    assert_eq!(manager.producer(id(7)).unwrap().txn_first_offset(), Some(at(3)));
    assert_eq!(manager.first_unstable_offset(), Some(at(3)));
    assert!(manager.has_open_txn(id(7)));
}

#[test]
fn a_transactional_batch_needs_an_open_transaction_or_its_own_guard() {
    let mut manager = manager(&[]);
    let first = txn(7, 0, 0, 1, 0);
    let refused = txn_fault(7, TxnStateFault::NotVerified);
    for origin in [AppendOrigin::Client, AppendOrigin::Coordinator] {
        assert_eq!(manager.check(&first, None, origin(Verification::Missing)), refused);
    }
    let guard = manager.begin_verification(id(7), ProducerEpoch::new(0), 0, ms(0)).unwrap();
    let confirmed = AppendOrigin::Client(Verification::Confirmed(guard));
    assert_eq!(manager.check(&first, None, confirmed), Ok(Check::Append));
    manager.update(&first, None, ms(100));
    // Inside the transaction nothing is asked for any more.
    assert_eq!(manager.begin_verification(id(7), ProducerEpoch::new(0), 1, ms(0)), None);
    assert_eq!(
        manager.check(&txn(7, 0, 1, 1, 1), None, AppendOrigin::Client(Verification::Missing)),
        Ok(Check::Append)
    );
    // The guard was good once: after the marker a late confirmation opens nothing.
    end(&mut manager, 7, 0, 1, TxnOutcome::Abort);
    assert_eq!(manager.check(&txn(7, 0, 1, 1, 2), None, confirmed), refused);
    let next = manager.begin_verification(id(7), ProducerEpoch::new(0), 1, ms(0));
    assert_ne!(next, Some(guard));
}

#[test]
fn a_marker_takes_the_guard_of_a_verification_that_still_runs() {
    let mut manager = manager(&[]);
    let guard = manager.begin_verification(id(7), ProducerEpoch::new(0), 0, ms(0)).unwrap();
    end(&mut manager, 7, 0, 0, TxnOutcome::Abort);
    let confirmed = AppendOrigin::Client(Verification::Confirmed(guard));
    assert_eq!(manager.check(&txn(7, 0, 0, 1, 1), None, confirmed), txn_fault(7, TxnStateFault::NotVerified));
}

#[test]
fn while_a_verification_runs_no_sequence_above_the_lowest_is_taken() {
    let mut manager = manager(&[]);
    let epoch = ProducerEpoch::new;
    let guard = manager.begin_verification(id(7), epoch(0), 5, ms(0)).unwrap();
    assert_eq!(manager.begin_verification(id(7), epoch(0), 3, ms(0)), Some(guard));
    assert_eq!(manager.begin_verification(id(7), epoch(0), 9, ms(0)), Some(guard));
    let confirmed = AppendOrigin::Client(Verification::Confirmed(guard));
    let above = txn(7, 0, 4, 1, 0);
    let fault = SequenceFault::AboveVerifying { lowest: 3 };
    assert_eq!(manager.check(&above, None, confirmed), out_of_order(&above, fault));
    assert_eq!(manager.check(&txn(7, 0, 3, 1, 0), None, confirmed), Ok(Check::Append));
    // A higher epoch begins anew, a lower one changes nothing.
    manager.begin_verification(id(7), epoch(1), 8, ms(0));
    manager.begin_verification(id(7), epoch(0), 0, ms(0));
    assert_eq!(manager.check(&txn(7, 1, 8, 1, 0), None, confirmed), Ok(Check::Append));
}

#[test]
fn a_marker_must_not_have_an_older_epoch_or_coordinator_epoch() {
    let mut manager = manager(&[txn(7, 2, 0, 1, 0)]);
    end(&mut manager, 7, 2, 1, TxnOutcome::Commit);
    let check = |epoch, coordinator, origin| {
        manager.check(&control(7, epoch, 2), Some(&marker(TxnOutcome::Abort, coordinator)), origin)
    };
    assert!(matches!(check(1, 9, COORDINATOR), Err(ProducerStateError::InvalidProducerEpoch { .. })));
    assert_eq!(
        check(2, 2, COORDINATOR),
        Err(ProducerStateError::CoordinatorFenced { producer_id: id(7), got: 2, current: 3 })
    );
    assert_eq!(check(2, 3, COORDINATOR), Ok(Check::Append));
    assert_eq!(check(1, 2, AppendOrigin::Replication), Ok(Check::Append));
}

#[test]
fn a_marker_ends_a_transaction_only_if_there_was_data() {
    let mut manager = manager(&[txn(7, 0, 0, 4, 0)]);
    let done = end(&mut manager, 7, 0, 4, TxnOutcome::Commit).unwrap();
    let expected = CompletedTxn {
        producer_id: id(7),
        first_offset: at(0),
        last_offset: at(4),
        outcome: TxnOutcome::Commit,
    };
    assert_eq!(done, expected);
    assert_eq!(manager.aborted(&done), None);
    assert_eq!(end(&mut manager, 7, 0, 5, TxnOutcome::Abort), None);
    let state = manager.producer(id(7)).unwrap();
    assert_eq!((state.txn_first_offset(), state.coordinator_epoch()), (None, 3));
    assert_eq!((state.last_timestamp(), state.batches().len()), (ms(200), 1));
}

#[test]
fn a_marker_of_a_newer_epoch_forgets_the_batches() {
    let mut manager = manager(&[txn(7, 0, 0, 4, 0)]);
    end(&mut manager, 7, 1, 4, TxnOutcome::Abort);
    let state = manager.producer(id(7)).unwrap();
    assert_eq!((state.epoch(), state.batches().len()), (ProducerEpoch::new(1), 0));
}

#[test]
fn an_emptied_control_batch_changes_nothing() {
    let mut manager = manager(&[txn(7, 0, 0, 4, 0)]);
    let before = manager.producer(id(7)).cloned();
    assert_eq!(manager.update(&control(7, 9, 4), None, ms(1)), None);
    assert_eq!(manager.producer(id(7)).cloned(), before);
}

#[test]
fn the_first_unstable_offset_waits_for_the_marker_to_be_replicated() {
    let mut manager = manager(&[txn(7, 0, 0, 2, 10), txn(8, 0, 0, 2, 12)]);
    assert_eq!(manager.first_unstable_offset(), Some(at(10)));
    end(&mut manager, 7, 0, 14, TxnOutcome::Commit);
    assert_eq!(manager.first_undecided_offset(), Some(at(12)));
    manager.on_high_watermark(at(14));
    assert_eq!(manager.first_unstable_offset(), Some(at(10)));
    manager.on_high_watermark(at(15));
    assert_eq!(manager.first_unstable_offset(), Some(at(12)));
    end(&mut manager, 8, 0, 15, TxnOutcome::Abort);
    manager.on_high_watermark(at(16));
    assert_eq!(manager.first_unstable_offset(), None);
}

#[test]
fn the_index_entry_of_an_abort_names_the_last_stable_offset_without_it() {
    let mut manager = manager(&[txn(7, 0, 0, 2, 10), txn(8, 0, 0, 2, 12)]);
    let abort = marker(TxnOutcome::Abort, 0);
    let done = manager.update(&control(7, 0, 14), Some(&abort), ms(1)).unwrap();
    assert_eq!(manager.aborted(&done).unwrap().last_stable_offset, at(12));
    // Until the entry is written nothing moves.
    assert_eq!(manager.first_unstable_offset(), Some(at(10)));
    manager.complete(&done);
    let done = manager.update(&control(8, 0, 15), Some(&abort), ms(1)).unwrap();
    let entry = manager.aborted(&done).unwrap();
    assert_eq!((entry.first_offset, entry.last_offset, entry.last_stable_offset), (at(12), at(15), at(16)));
}

#[test]
fn producers_expire_by_the_time_of_their_append_unless_a_transaction_is_open() {
    let mut manager = ProducerStateManager::new(1000);
    manager.update(&batch(7, 0, 0, 1, 0), None, ms(50_000));
    manager.update(&txn(8, 0, 0, 1, 1), None, ms(10));
    manager.remove_expired(ms(50_999));
    assert_eq!(manager.producers().len(), 2);
    manager.remove_expired(ms(51_000));
    assert_eq!(manager.producers().map(|(id, _)| id.get()).collect::<Vec<_>>(), [8]);
    end(&mut manager, 8, 0, 2, TxnOutcome::Commit);
    manager.remove_expired(ms(51_000));
    assert_eq!(manager.producers().len(), 0);
}

#[test]
fn verifications_expire_too() {
    let mut manager = ProducerStateManager::new(1000);
    let guard = manager.begin_verification(id(7), ProducerEpoch::new(0), 0, ms(0)).unwrap();
    manager.remove_expired(ms(999));
    let confirmed = AppendOrigin::Client(Verification::Confirmed(guard));
    assert_eq!(manager.check(&txn(7, 0, 0, 1, 0), None, confirmed), Ok(Check::Append));
    manager.remove_expired(ms(1000));
    assert!(manager.check(&txn(7, 0, 0, 1, 0), None, confirmed).is_err());
}

#[test]
fn a_transaction_that_is_idle_beyond_every_timeout_is_late() {
    let manager = manager(&[txn(7, 0, 0, 1, 0)]);
    let limit = 100 + 900_000 + 300_000;
    assert!(!manager.has_late_txn(ms(limit), 900_000));
    assert!(manager.has_late_txn(ms(limit + 1), 900_000));
}

#[test]
fn a_snapshot_is_taken_only_above_the_last_one() {
    let mut manager = six();
    assert_eq!(manager.take_snapshot().map(|(offset, _)| offset), Some(at(12)));
    assert_eq!(manager.take_snapshot(), None);
    manager.set_map_end_offset(at(13));
    assert_eq!(manager.take_snapshot().map(|(offset, _)| offset), Some(at(13)));
}

#[test]
fn a_truncation_below_the_map_end_reloads_and_one_at_it_does_not() {
    let mut manager = six();
    let (offset, snapshot) = manager.take_snapshot().unwrap();
    manager.update(&batch(7, 0, 12, 1, 12), None, ms(100));
    manager.set_map_end_offset(at(13));
    assert!(!manager.must_reload(at(13)));
    assert!(manager.must_reload(at(12)));
    manager.begin_reload(at(0));
    assert!(manager.is_empty());
    manager.load_snapshot(offset, &snapshot, ms(100)).unwrap();
    assert_eq!((manager.map_end_offset(), manager.must_reload(at(12))), (at(12), false));
    assert_eq!(manager.producer(id(7)).unwrap().last_sequence(), 11);
}

#[test]
fn a_log_start_that_moves_keeps_producers_and_drops_completed_transactions_below_it() {
    let mut manager = manager(&[txn(7, 0, 0, 2, 10)]);
    end(&mut manager, 7, 0, 12, TxnOutcome::Commit);
    manager.on_log_start(at(12), None);
    assert_eq!(manager.first_unstable_offset(), Some(at(10)));
    manager.on_log_start(at(20), None);
    assert_eq!(manager.first_unstable_offset(), None);
    assert_eq!(manager.producers().len(), 1);
    assert_eq!((manager.map_end_offset(), manager.take_snapshot()), (at(20), None));
}

#[test]
fn a_restarted_log_knows_nobody() {
    let mut manager = six();
    manager.restart_at(at(40));
    assert!(manager.is_empty());
    assert_eq!(manager.map_end_offset(), at(40));
    assert_eq!(manager.take_snapshot().map(|(offset, _)| offset), Some(at(40)));
}

#[test]
fn snapshots_outside_the_log_and_strays_are_named_for_removal() {
    let all = |offsets: &[i64]| offsets.iter().copied().map(at).collect::<Vec<_>>();
    let mut found = Snapshots::new(all(&[0, 10, 20, 30]));
    assert_eq!(found.take_outside(at(0), at(20)), all(&[0, 30]));
    assert_eq!(found.newest(), Some(at(20)));
    assert_eq!(found.newest_at_or_below(at(19)), Some(at(10)));

    let bases = BTreeSet::from([at(10), at(20)]);
    let mut found = Snapshots::new(all(&[5, 10, 15, 20, 25, 27]));
    assert_eq!(found.take_stray(&bases), all(&[5, 15, 25]));
    let mut found = Snapshots::new(all(&[5, 10, 15]));
    assert_eq!(found.take_stray(&bases), all(&[5, 15]));
    let mut found = Snapshots::new(all(&[5, 6]));
    assert_eq!(found.take_stray(&BTreeSet::new()), all(&[5]));
    assert_eq!(found.take_below(at(6)), all(&[]));
    assert_eq!(found.take_all(), all(&[6]));
}

// ---- snapshot files ---------------------------------------------------------------------------------------------

/// Written by hand from storage.md 2.5; the CRC is that of the last 96 bytes.
fn golden() -> Vec<u8> {
    let mut bytes = vec![0, 1, 0, 0, 0, 0, 0, 0, 0, 2];
    // Producer 7, epoch 0, last sequence 11, last offset 11, delta 1, timestamp 100, no coordinator, no transaction.
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 1]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 100, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]);
    // Producer 8, epoch 2, nothing but a marker of coordinator 3 at time 200.
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 8, 0, 2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 3, 255, 255, 255, 255, 255, 255, 255, 255]);
    seal(&mut bytes);
    bytes
}

fn seal(bytes: &mut [u8]) {
    let crc = bitwise_crc32c(&bytes[6..]);
    bytes[2..6].copy_from_slice(&crc.to_be_bytes());
}

/// CRC-32C from its definition, so that the golden bytes do not lean on the code under test.
fn bitwise_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn t14_a_snapshot_has_kafkas_bytes() {
    assert_eq!(bitwise_crc32c(b"123456789"), 0xe306_9283);
    let mut manager = six();
    end(&mut manager, 8, 2, 12, TxnOutcome::Commit);
    let (offset, content) = manager.take_snapshot().unwrap();
    assert_eq!((offset, &content[..]), (at(13), &golden()[..]));
}

#[test]
fn t14_a_snapshot_of_kafka_is_understood() {
    let mut manager = ProducerStateManager::new(DAY_MS);
    manager.load_snapshot(at(13), &golden(), ms(100)).unwrap();
    assert_eq!(manager.check(&batch(7, 0, 10, 2, 0), None, CLIENT), duplicate(10, 11));
    assert_eq!(manager.check(&batch(7, 0, 12, 1, 0), None, CLIENT), Ok(Check::Append));
    let state = manager.producer(id(8)).unwrap();
    assert_eq!((state.coordinator_epoch(), state.last_sequence(), state.batches().len()), (3, -1, 0));
    assert_eq!(manager.take_snapshot(), None);
}

#[test]
fn an_open_transaction_survives_a_snapshot() {
    let mut manager = manager(&[txn(7, 1, i32::MAX, 3, 40)]);
    let (offset, content) = manager.take_snapshot().unwrap();
    let mut loaded = ProducerStateManager::new(1);
    loaded.load_snapshot(offset, &content, ms(i64::MAX)).unwrap();
    assert_eq!(loaded.first_unstable_offset(), Some(at(40)));
    assert_eq!(loaded.producer(id(7)).unwrap().batches(), manager.producer(id(7)).unwrap().batches());
    let done = end(&mut loaded, 7, 1, 43, TxnOutcome::Abort).unwrap();
    assert_eq!(done.first_offset, at(40));
}

#[test]
fn expired_producers_are_not_loaded() {
    let mut manager = ProducerStateManager::new(1000);
    manager.load_snapshot(at(13), &golden(), ms(1199)).unwrap();
    assert_eq!(manager.producers().map(|(id, _)| id.get()).collect::<Vec<_>>(), [8]);
}

#[test]
fn corrupt_snapshots_say_why_and_change_nothing() {
    let mut manager = six();
    let error = |content: &[u8], manager: &mut ProducerStateManager| {
        manager.load_snapshot(at(5), content, ms(0)).unwrap_err()
    };
    assert_eq!(error(&golden()[..9], &mut manager), SnapshotError::TooShort(9));
    let mut newer = golden();
    newer[1] = 2;
    assert_eq!(error(&newer, &mut manager), SnapshotError::UnknownVersion(2));
    for flipped in 2..golden().len() {
        let mut content = golden();
        content[flipped] ^= 1;
        assert!(matches!(error(&content, &mut manager), SnapshotError::BadCrc { .. }), "byte {flipped}");
    }
    // A shorter snapshot written over a longer one without cutting it.
    let mut tail = golden();
    tail.extend([0; 46]);
    assert!(matches!(error(&tail, &mut manager), SnapshotError::BadCrc { .. }));
    for claimed in [-1, 1, 3, i32::MAX] {
        let mut content = golden();
        content[6..10].copy_from_slice(&claimed.to_be_bytes());
        seal(&mut content);
        assert_eq!(error(&content, &mut manager), SnapshotError::WrongCount { claimed, bytes: 92 });
    }
    assert_eq!((manager.producers().len(), manager.map_end_offset()), (1, at(12)));
}

// ---- markers on disk --------------------------------------------------------------------------------------------

fn marker_batch(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut builder =
        BatchBuilder::new().producer(id(7), ProducerEpoch::new(1), -1).transactional().control();
    builder.push(ms(150), Some(key), Some(value), &[]);
    builder.build().unwrap().to_vec()
}

fn read(batch: &[u8]) -> Result<Option<EndTxnMarker>, MarkerError> {
    EndTxnMarker::read(&BatchView::parse(batch).unwrap())
}

#[test]
fn markers_of_kafka_are_understood() {
    let expected = |outcome| Ok(Some(EndTxnMarker { outcome, coordinator_epoch: 9, timestamp: ms(150) }));
    assert_eq!(read(&marker_batch(&[0, 0, 0, 0], &[0, 0, 0, 0, 0, 9])), expected(TxnOutcome::Abort));
    assert_eq!(read(&marker_batch(&[0, 0, 0, 1], &[0, 0, 0, 0, 0, 9])), expected(TxnOutcome::Commit));
    // A later version may add fields.
    assert_eq!(read(&marker_batch(&[0, 1, 0, 1, 5], &[0, 1, 0, 0, 0, 9, 5])), expected(TxnOutcome::Commit));
}

#[test]
fn other_control_batches_end_no_transaction() {
    for kind in 2..7 {
        assert_eq!(read(&marker_batch(&[0, 0, 0, kind], &[])), Ok(None));
    }
    let mut data = BatchBuilder::new();
    data.push(ms(1), None, None, &[]);
    assert_eq!(read(&data.build().unwrap()), Ok(None));
}

#[test]
fn malformed_markers_are_errors() {
    assert_eq!(read(&marker_batch(&[0, 0, 0], &[0, 0, 0, 0, 0, 9])), Err(MarkerError::TooShort));
    assert_eq!(read(&marker_batch(&[0, 0, 0, 0], &[0, 0, 0, 0, 0])), Err(MarkerError::TooShort));
    assert_eq!(read(&marker_batch(&[255, 255, 0, 0], &[0; 6])), Err(MarkerError::BadVersion(-1)));
    let mut compressed = marker_batch(&[0, 0, 0, 0], &[0; 6]);
    compressed[22] |= 1;
    assert_eq!(read(&compressed), Err(MarkerError::Compressed));
    let mut torn = marker_batch(&[0, 0, 0, 0], &[0; 6]);
    torn[61] = 0x7e;
    assert!(matches!(read(&torn), Err(MarkerError::Record(_))));
}

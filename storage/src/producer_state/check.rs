//! Whether a batch may be appended (protocol.md 3.3, idempotence table; coordinators.md 7.1, 7.2).

use protocol::records::batch::BatchInfo;
use protocol::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};

use super::{AppendOrigin, EndTxnMarker, ProducerState, ProducerStateManager, Verification};

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Append it.
    Append,
    /// It is one of the last batches, sent again: answer success with these, append nothing. The answer waits until
    /// the original is written.
    Duplicate {
        /// First offset of the original.
        first_offset: Offset,
        /// Last offset of the original.
        last_offset: Offset,
        /// Greatest timestamp of the original, answered as its append time.
        timestamp: TimestampMs,
    },
}

/// Why a sequence is out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceFault {
    /// It does not follow the last one of its epoch.
    NotNext {
        /// The last one, -1 if only a marker of the epoch is known.
        last: i32,
    },
    /// A new epoch begins at 0.
    NewEpoch {
        /// The epoch that is known.
        current: ProducerEpoch,
    },
    /// A lower one is still being verified.
    AboveVerifying {
        /// The lowest sequence that was seen since the verification began.
        lowest: i32,
    },
}

/// Why a batch does not fit the transaction state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnStateFault {
    /// It is transactional, its producer has no transaction open here, and the coordinator did not confirm one.
    NotVerified,
    /// It is not transactional, and its producer has a transaction open here.
    PlainBatchInTxn,
}

/// Why a batch is refused. The state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProducerStateError {
    /// OUT_OF_ORDER_SEQUENCE_NUMBER.
    #[error("sequence {got} of producer {producer_id} is out of order: {fault:?}")]
    OutOfOrderSequence {
        /// The producer.
        producer_id: ProducerId,
        /// Epoch of the batch.
        producer_epoch: ProducerEpoch,
        /// First sequence of the batch.
        got: i32,
        /// What is wrong with it.
        fault: SequenceFault,
    },
    /// INVALID_PRODUCER_EPOCH.
    #[error("epoch {got} of producer {producer_id} is behind {current}")]
    InvalidProducerEpoch {
        /// The producer.
        producer_id: ProducerId,
        /// Epoch of the batch.
        got: ProducerEpoch,
        /// The epoch that is known.
        current: ProducerEpoch,
    },
    /// INVALID_TXN_STATE.
    #[error("batch of producer {producer_id} does not fit its transaction: {fault:?}")]
    InvalidTxnState {
        /// The producer.
        producer_id: ProducerId,
        /// What does not fit.
        fault: TxnStateFault,
    },
    /// TRANSACTION_COORDINATOR_FENCED.
    #[error("coordinator epoch {got} for producer {producer_id} is behind {current}")]
    CoordinatorFenced {
        /// The producer.
        producer_id: ProducerId,
        /// Coordinator epoch of the marker.
        got: i32,
        /// The coordinator epoch that is known.
        current: i32,
    },
}

impl ProducerStateManager {
    /// Whether a batch may be appended. Offsets of the batch do not matter. `marker` as in [`Self::update`].
    ///
    /// # Errors
    /// Why it may not, by the first rule that it breaks.
    pub fn check(
        &self,
        batch: &BatchInfo,
        marker: Option<&EndTxnMarker>,
        origin: AppendOrigin,
    ) -> Result<Check, ProducerStateError> {
        // What the leader's log or our own holds was checked before. Refusing it here could only end replication.
        let (verification, check_sequence) = match origin {
            AppendOrigin::Client(verification) => (verification, true),
            AppendOrigin::Coordinator(verification) => (verification, false),
            AppendOrigin::Replication => return Ok(Check::Append),
        };
        if !batch.has_producer_id() {
            return Ok(Check::Append);
        }
        let known = self.producers.get(&batch.producer_id);
        if check_sequence && let Some(duplicate) = known.and_then(|state| state.duplicate_of(batch)) {
            return Ok(duplicate);
        }
        if batch.attributes.is_control() {
            return marker.map_or(Ok(Check::Append), |marker| check_marker(batch, marker, known));
        }
        let has_open_txn = known.is_some_and(|state| state.txn_first_offset.is_some());
        if batch.attributes.is_transactional() && !has_open_txn && !self.is_verified(batch, verification) {
            return Err(txn_state(batch, TxnStateFault::NotVerified));
        }
        check_epoch(batch, known)?;
        if check_sequence {
            self.check_sequence(batch, known)?;
        }
        if has_open_txn && !batch.attributes.is_transactional() {
            return Err(txn_state(batch, TxnStateFault::PlainBatchInTxn));
        }
        Ok(Check::Append)
    }

    fn is_verified(&self, batch: &BatchInfo, verification: Verification) -> bool {
        match verification {
            Verification::NotRequired => true,
            Verification::Missing => false,
            Verification::Confirmed(guard) => {
                self.verifications.get(&batch.producer_id).is_some_and(|state| state.guard == guard)
            }
        }
    }

    fn check_sequence(
        &self,
        batch: &BatchInfo,
        known: Option<&ProducerState>,
    ) -> Result<(), ProducerStateError> {
        let got = batch.base_sequence;
        let fault = |fault| ProducerStateError::OutOfOrderSequence {
            producer_id: batch.producer_id,
            producer_epoch: batch.producer_epoch,
            got,
            fault,
        };
        if let Some(state) = self.verifications.get(&batch.producer_id)
            && got > state.lowest_sequence
        {
            return Err(fault(SequenceFault::AboveVerifying { lowest: state.lowest_sequence }));
        }
        // Whoever is not known may go on where retention or expiry made us forget (KIP-360).
        let Some(state) = known.filter(|state| state.epoch != ProducerEpoch::NONE) else { return Ok(()) };
        if batch.producer_epoch != state.epoch {
            return if got == 0 {
                Ok(())
            } else {
                Err(fault(SequenceFault::NewEpoch { current: state.epoch }))
            };
        }
        let last = state.last_sequence();
        let follows = last.checked_add(1).unwrap_or(0) == got;
        if follows { Ok(()) } else { Err(fault(SequenceFault::NotNext { last })) }
    }
}

impl ProducerState {
    fn duplicate_of(&self, batch: &BatchInfo) -> Option<Check> {
        if batch.producer_epoch != self.epoch {
            return None;
        }
        let same = |kept: &&super::ProducedBatch| {
            kept.first_sequence == batch.base_sequence && kept.last_sequence == batch.last_sequence
        };
        let original = self.batches.iter().find(same)?;
        Some(Check::Duplicate {
            first_offset: original.first_offset,
            last_offset: original.last_offset,
            timestamp: original.timestamp,
        })
    }
}

fn check_epoch(batch: &BatchInfo, known: Option<&ProducerState>) -> Result<(), ProducerStateError> {
    let current = known.map_or(ProducerEpoch::NONE, |state| state.epoch);
    if batch.producer_epoch < current {
        let (producer_id, got) = (batch.producer_id, batch.producer_epoch);
        return Err(ProducerStateError::InvalidProducerEpoch { producer_id, got, current });
    }
    Ok(())
}

fn check_marker(
    batch: &BatchInfo,
    marker: &EndTxnMarker,
    known: Option<&ProducerState>,
) -> Result<Check, ProducerStateError> {
    check_epoch(batch, known)?;
    let current = known.map_or(-1, |state| state.coordinator_epoch);
    if marker.coordinator_epoch < current {
        let (producer_id, got) = (batch.producer_id, marker.coordinator_epoch);
        return Err(ProducerStateError::CoordinatorFenced { producer_id, got, current });
    }
    Ok(Check::Append)
}

const fn txn_state(batch: &BatchInfo, fault: TxnStateFault) -> ProducerStateError {
    ProducerStateError::InvalidTxnState { producer_id: batch.producer_id, fault }
}

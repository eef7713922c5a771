//! What a log knows of its idempotent and transactional producers (storage.md 6, protocol.md 3.3, coordinators.md 7):
//! which batch may be appended, which is a repeat, and which transactions hold the last stable offset back. Pure: no
//! files, no clock. Called by [`crate::log`], which reads and writes the snapshots and replays batches.
//!
//! An append is [`ProducerStateManager::check`], then [`ProducerStateManager::update`] with the assigned offsets, then
//! for a finished transaction the entry of the transaction index, then [`ProducerStateManager::complete`]. A reload is
//! [`ProducerStateManager::begin_reload`], [`ProducerStateManager::load_snapshot`] with the newest usable snapshot, and
//! `update` and `complete` for every batch from [`ProducerStateManager::map_end_offset`] on.

mod check;
mod marker;
mod snapshot;
mod snapshots;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::records::batch::BatchInfo;
use protocol::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};
use smallvec::SmallVec;

pub use self::check::{Check, ProducerStateError, SequenceFault, TxnStateFault};
pub use self::marker::{EndTxnMarker, MarkerError, TxnOutcome};
pub use self::snapshot::SnapshotError;
pub use self::snapshots::Snapshots;
use crate::index::txn::AbortedTxn;

/// Batches remembered per producer.
pub const BATCHES_KEPT: usize = 5;

/// How long after the longest transaction timeout an open transaction counts as late.
const LATE_TXN_SLACK_MS: i64 = 5 * 60 * 1000;

/// Who asks for an append, which says how much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOrigin {
    /// A produce request: everything is checked.
    Client(Verification),
    /// A coordinator on this broker: epochs and transactions are checked, sequences are not.
    Coordinator(Verification),
    /// The leader's log, or our own that is replayed: it was checked before, and is taken as it is.
    Replication,
}

/// What is known of a transactional batch outside an open transaction (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// `transaction.partition.verification.enable=false`, or a coordinator that cannot verify.
    NotRequired,
    /// Nobody asked the coordinator.
    Missing,
    /// The coordinator confirmed the transaction for this guard.
    Confirmed(VerificationGuard),
}

/// Stands for one verification of one producer; good for one append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VerificationGuard(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VerificationState {
    guard: VerificationGuard,
    lowest_sequence: i32,
    epoch: ProducerEpoch,
    since: TimestampMs,
}

/// One of the last batches of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducedBatch {
    /// Sequence of its first record; -1 if it had none.
    pub first_sequence: i32,
    /// Sequence of its last record; -1 if it had none.
    pub last_sequence: i32,
    /// Offset of its first record.
    pub first_offset: Offset,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// Its greatest timestamp.
    pub timestamp: TimestampMs,
}

/// What is known of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerState {
    epoch: ProducerEpoch,
    batches: SmallVec<[ProducedBatch; BATCHES_KEPT]>,
    coordinator_epoch: i32,
    last_timestamp: TimestampMs,
    seen: TimestampMs,
    txn_first_offset: Option<Offset>,
}

impl ProducerState {
    fn unknown() -> Self {
        Self {
            epoch: ProducerEpoch::NONE,
            batches: SmallVec::new(),
            coordinator_epoch: -1,
            last_timestamp: TimestampMs::NONE,
            seen: TimestampMs::NONE,
            txn_first_offset: None,
        }
    }

    /// The epoch of its last batch or marker.
    pub const fn epoch(&self) -> ProducerEpoch {
        self.epoch
    }

    /// Its last batches of that epoch, oldest first, at most [`BATCHES_KEPT`].
    pub fn batches(&self) -> &[ProducedBatch] {
        &self.batches
    }

    /// Sequence of its last record, -1 if none is known.
    pub fn last_sequence(&self) -> i32 {
        self.batches.last().map_or(-1, |batch| batch.last_sequence)
    }

    /// Epoch of the coordinator that ended its last transaction, -1 if none did.
    pub const fn coordinator_epoch(&self) -> i32 {
        self.coordinator_epoch
    }

    /// Greatest timestamp of its last batch, or that of a later marker.
    pub const fn last_timestamp(&self) -> TimestampMs {
        self.last_timestamp
    }

    /// First offset of its open transaction.
    pub const fn txn_first_offset(&self) -> Option<Offset> {
        self.txn_first_offset
    }

    fn set_epoch(&mut self, epoch: ProducerEpoch) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.batches.clear();
        }
    }

    fn is_expired(&self, now: TimestampMs, expiration_ms: i64) -> bool {
        self.txn_first_offset.is_none() && now.get().saturating_sub(self.seen.get()) >= expiration_ms
    }
}

/// A transaction that a marker ended. The last stable offset moves past it once it is
/// [completed](ProducerStateManager::complete) and its marker is below the high watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedTxn {
    /// Who wrote it.
    pub producer_id: ProducerId,
    /// Offset of its first record.
    pub first_offset: Offset,
    /// Offset of its marker.
    pub last_offset: Offset,
    /// How it ended.
    pub outcome: TxnOutcome,
}

/// An open transaction and when its producer last wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenTxn {
    /// Who writes it.
    pub producer_id: ProducerId,
    /// Offset of its first record.
    pub first_offset: Offset,
    /// Timestamp of its last batch.
    pub last_timestamp: TimestampMs,
}

/// The producers of one log. Ordered throughout, so that the same history gives the same snapshot bytes.
#[derive(Clone, Debug)]
pub struct ProducerStateManager {
    producers: BTreeMap<ProducerId, ProducerState>,
    verifications: BTreeMap<ProducerId, VerificationState>,
    next_guard: u64,
    /// Open transactions by first offset.
    open: BTreeMap<Offset, ProducerId>,
    /// Transactions whose marker may be at or above the high watermark: first offset to marker.
    unreplicated: BTreeMap<Offset, Offset>,
    map_end_offset: Offset,
    last_snapshot_offset: Offset,
    expiration_ms: i64,
}

impl ProducerStateManager {
    /// No producers, at offset 0. `expiration_ms` is `producer.id.expiration.ms`.
    pub const fn new(expiration_ms: i64) -> Self {
        Self {
            producers: BTreeMap::new(),
            verifications: BTreeMap::new(),
            next_guard: 0,
            open: BTreeMap::new(),
            unreplicated: BTreeMap::new(),
            map_end_offset: Offset::ZERO,
            last_snapshot_offset: Offset::ZERO,
            expiration_ms,
        }
    }

    /// Sets `producer.id.expiration.ms` anew.
    pub const fn set_expiration_ms(&mut self, expiration_ms: i64) {
        self.expiration_ms = expiration_ms;
    }

    /// What is known of each producer.
    pub fn producers(&self) -> impl ExactSizeIterator<Item = (ProducerId, &ProducerState)> + '_ {
        self.producers.iter().map(|(id, state)| (*id, state))
    }

    /// What is known of one producer.
    pub fn producer(&self, id: ProducerId) -> Option<&ProducerState> {
        self.producers.get(&id)
    }

    /// Whether nothing is known and nothing holds the last stable offset back.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty() && self.unreplicated.is_empty()
    }

    /// The offset up to which batches were taken in, exclusive.
    pub const fn map_end_offset(&self) -> Offset {
        self.map_end_offset
    }

    /// Notes that every batch below `offset` was taken in; also to be called for batches without a producer.
    pub const fn set_map_end_offset(&mut self, offset: Offset) {
        self.map_end_offset = offset;
    }

    /// Takes in a batch with its final offsets; answers the transaction that it ended. `marker` is what
    /// [`EndTxnMarker::read`] found in a control batch; a control batch without one (emptied by compaction, or of a
    /// kind that does not end transactions) changes nothing. `appended` is the wall clock; when the log is replayed,
    /// the batch's own timestamp.
    ///
    /// The caller has [checked](Self::check) the batch, unless it is replicated or replayed.
    pub fn update(
        &mut self,
        batch: &BatchInfo,
        marker: Option<&EndTxnMarker>,
        appended: TimestampMs,
    ) -> Option<CompletedTxn> {
        if !batch.has_producer_id() {
            return None;
        }
        if batch.attributes.is_transactional() {
            // One guard, one append: a confirmation that arrives after the marker must not open a transaction.
            self.verifications.remove(&batch.producer_id);
        }
        if !batch.attributes.is_control() {
            self.update_data(batch, appended);
            return None;
        }
        self.update_end(batch, marker?, appended)
    }

    fn update_data(&mut self, batch: &BatchInfo, appended: TimestampMs) {
        let state = self.producers.entry(batch.producer_id).or_insert_with(ProducerState::unknown);
        state.set_epoch(batch.producer_epoch);
        if state.batches.len() >= BATCHES_KEPT {
            state.batches.remove(0);
        }
        state.batches.push(ProducedBatch {
            first_sequence: batch.base_sequence,
            last_sequence: batch.last_sequence,
            first_offset: batch.base_offset,
            last_offset: batch.last_offset,
            timestamp: batch.max_timestamp,
        });
        state.last_timestamp = batch.max_timestamp;
        state.seen = appended;
        if state.txn_first_offset.is_none() && batch.attributes.is_transactional() {
            state.txn_first_offset = Some(batch.base_offset);
            self.open.insert(batch.base_offset, batch.producer_id);
        }
    }

    fn update_end(
        &mut self,
        batch: &BatchInfo,
        marker: &EndTxnMarker,
        appended: TimestampMs,
    ) -> Option<CompletedTxn> {
        let state = self.producers.entry(batch.producer_id).or_insert_with(ProducerState::unknown);
        state.set_epoch(batch.producer_epoch);
        state.coordinator_epoch = marker.coordinator_epoch;
        state.last_timestamp = marker.timestamp;
        state.seen = appended;
        // A transaction without data moves no last stable offset and needs no index entry.
        let first_offset = state.txn_first_offset.take()?;
        Some(CompletedTxn {
            producer_id: batch.producer_id,
            first_offset,
            last_offset: batch.base_offset,
            outcome: marker.outcome,
        })
    }

    /// The entry that the transaction index needs before an aborted transaction is completed; `None` if it was
    /// committed. Its last stable offset is what it would be with this transaction gone: the start of the earliest
    /// transaction that another producer has open, else what follows the marker.
    pub fn aborted(&self, txn: &CompletedTxn) -> Option<AbortedTxn> {
        if txn.outcome != TxnOutcome::Abort {
            return None;
        }
        let other = self.open.iter().find(|(_, producer)| **producer != txn.producer_id);
        Some(AbortedTxn {
            producer_id: txn.producer_id,
            first_offset: txn.first_offset,
            last_offset: txn.last_offset,
            last_stable_offset: other.map_or(txn.last_offset.plus(1), |(first, _)| *first),
        })
    }

    /// Lets go of a transaction that ended, after its index entry was added: from now on it holds the last stable
    /// offset back only until its marker is below the high watermark.
    pub fn complete(&mut self, txn: &CompletedTxn) {
        self.open.remove(&txn.first_offset);
        self.unreplicated.insert(txn.first_offset, txn.last_offset);
    }

    /// Forgets ended transactions whose marker is below the high watermark.
    pub fn on_high_watermark(&mut self, high_watermark: Offset) {
        self.unreplicated.retain(|_, marker| *marker >= high_watermark);
    }

    /// First offset of the earliest transaction that is open, or ended with a marker that is not known to be below
    /// the high watermark: the last stable offset if it is below the high watermark.
    pub fn first_unstable_offset(&self) -> Option<Offset> {
        let open = self.open.keys().next().copied();
        let unreplicated = self.unreplicated.keys().next().copied();
        open.into_iter().chain(unreplicated).min()
    }

    /// First offset of the earliest open transaction.
    pub fn first_undecided_offset(&self) -> Option<Offset> {
        self.open.keys().next().copied()
    }

    /// The open transactions in the order of their first offsets.
    pub fn open_txns(&self) -> impl Iterator<Item = OpenTxn> + '_ {
        self.open.iter().map(|(first_offset, producer_id)| OpenTxn {
            producer_id: *producer_id,
            first_offset: *first_offset,
            last_timestamp: self
                .producers
                .get(producer_id)
                .map_or(TimestampMs::NONE, |state| state.last_timestamp),
        })
    }

    /// Whether the producer of the oldest open transaction last wrote longer ago than any transaction may take, by five
    /// minutes: what `PartitionsWithLateTransactionsCount` counts.
    pub fn has_late_txn(&self, now: TimestampMs, transaction_max_timeout_ms: i64) -> bool {
        let limit = transaction_max_timeout_ms.saturating_add(LATE_TXN_SLACK_MS);
        self.open_txns().next().is_some_and(|txn| {
            let last = txn.last_timestamp.get();
            last > 0 && now.get().saturating_sub(last) > limit
        })
    }

    /// Forgets producers without an open transaction that were last seen `producer.id.expiration.ms` ago or earlier.
    ///
    /// A producer is seen when its batch is appended, not at the batch's timestamp as in Kafka, so that records older
    /// than the limit do not lose their producer at once; a snapshot knows timestamps only.
    pub fn remove_expired(&mut self, now: TimestampMs) {
        let expiration_ms = self.expiration_ms;
        self.producers.retain(|_, state| !state.is_expired(now, expiration_ms));
        self.verifications.retain(|_, state| now.get().saturating_sub(state.since.get()) < expiration_ms);
    }

    /// Notes that the log now starts at `log_start_offset`. Producers stay (KAFKA-7190); ended transactions below it
    /// no longer count.
    pub fn on_log_start(&mut self, log_start_offset: Offset, newest_snapshot: Option<Offset>) {
        self.unreplicated.retain(|_, marker| *marker >= log_start_offset);
        self.map_end_offset = self.map_end_offset.max(log_start_offset);
        self.last_snapshot_offset = newest_snapshot.unwrap_or(log_start_offset);
    }

    /// Whether a log that now ends at `log_end_offset` needs [`Self::begin_reload`].
    pub fn must_reload(&self, log_end_offset: Offset) -> bool {
        self.map_end_offset != log_end_offset
    }

    /// Forgets every producer and transaction and starts at `log_start_offset`, where the replay begins unless a
    /// snapshot is loaded next. Verifications stay: they belong to requests, not to the log.
    pub fn begin_reload(&mut self, log_start_offset: Offset) {
        self.producers.clear();
        self.open.clear();
        self.unreplicated.clear();
        self.map_end_offset = log_start_offset;
        self.last_snapshot_offset = log_start_offset;
    }

    /// Empties the state of a log that restarts at `offset`; its snapshots are gone.
    pub fn restart_at(&mut self, offset: Offset) {
        self.begin_reload(offset);
        self.last_snapshot_offset = Offset::ZERO;
    }

    /// Takes in the snapshot of `offset`, after [`Self::begin_reload`]; producers that have expired are left out.
    ///
    /// # Errors
    /// What makes the file corrupt; nothing was taken in. The caller removes it and tries the next older one.
    pub fn load_snapshot(
        &mut self,
        offset: Offset,
        content: &[u8],
        now: TimestampMs,
    ) -> Result<(), SnapshotError> {
        let entries = snapshot::parse(content)?;
        for (id, state) in entries {
            if !state.is_expired(now, self.expiration_ms) {
                self.producers.insert(id, state);
            }
        }
        let open = |(id, state): (&ProducerId, &ProducerState)| Some((state.txn_first_offset?, *id));
        self.open = self.producers.iter().filter_map(open).collect();
        self.map_end_offset = offset;
        self.last_snapshot_offset = offset;
        Ok(())
    }

    /// A snapshot of the state, for the file named after [`Self::map_end_offset`]; `None` if the last one was not
    /// taken below that.
    pub fn take_snapshot(&mut self) -> Option<(Offset, Bytes)> {
        if self.map_end_offset <= self.last_snapshot_offset {
            return None;
        }
        self.last_snapshot_offset = self.map_end_offset;
        Some((self.map_end_offset, snapshot::print(&self.producers)))
    }

    /// Begins to verify a transactional batch, or joins a verification that runs; `None` if the producer has a
    /// transaction open, which needs none. While it runs, sequences above the lowest one seen are refused, so that a
    /// batch that failed to verify is not overtaken by its successors.
    pub fn begin_verification(
        &mut self,
        id: ProducerId,
        epoch: ProducerEpoch,
        sequence: i32,
        now: TimestampMs,
    ) -> Option<VerificationGuard> {
        if self.has_open_txn(id) {
            return None;
        }
        let next = VerificationGuard(self.next_guard);
        let state = self.verifications.entry(id).or_insert(VerificationState {
            guard: next,
            lowest_sequence: sequence,
            epoch,
            since: now,
        });
        if state.guard == next {
            self.next_guard = self.next_guard.wrapping_add(1);
        }
        if epoch > state.epoch {
            state.epoch = epoch;
            state.lowest_sequence = sequence;
        } else if epoch == state.epoch {
            state.lowest_sequence = state.lowest_sequence.min(sequence);
        }
        Some(state.guard)
    }

    /// Whether the producer has a transaction open.
    pub fn has_open_txn(&self, id: ProducerId) -> bool {
        self.producers.get(&id).is_some_and(|state| state.txn_first_offset.is_some())
    }
}

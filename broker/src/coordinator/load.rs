//! Fills the machine of a partition from its log (coordinators.md 3.5): all records from the log's start to its end, in
//! their order, whatever their format and codec. Keys of unknown versions are passed over; what is damaged, or holds a
//! value that we cannot read, ends the load: the partition stays unavailable rather than serve a part of its groups.
//! Gives the shard its turn, and stops where the leadership has gone. Called by `service`.

use std::collections::BTreeMap;

use protocol::records::batch::{BatchError, BatchView, MAGIC_V2, Prefix};
use protocol::records::legacy::{LegacyError, MessageView, Unpacked};
use protocol::records::reader::{ReadError, Records};
use protocol::types::{Offset, ProducerId};
use storage::io::Runtime;
use storage::producer_state::{EndTxnMarker, MarkerError, TxnOutcome};

use super::group::{Groups, ReplayError, Replayed};
use crate::partition::ask::{PartitionError, PartitionKey};
use crate::partition::service::PartitionService;
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// No more is read at once, whatever the configuration allows: a copy of some 100 µs.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// Key versions that are told of each for itself; there are few.
const UNKNOWN_VERSIONS_MAX: usize = 64;

/// Why a partition was not loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadFault {
    /// The leadership has gone: nobody needs it.
    #[error("this broker does not lead the partition any more")]
    Stopped,
    /// The log cannot be read.
    #[error("{0}")]
    Partition(PartitionError),
    /// What lies there is no batch.
    #[error("no batch behind offset {after}: {error}")]
    NotABatch {
        /// Where the last good one ends.
        after: Offset,
        /// What is wrong.
        error: BatchError,
    },
    /// The checksum of a batch is wrong.
    #[error("the batch at offset {at} is damaged: its checksum is wrong")]
    Checksum {
        /// The batch.
        at: Offset,
    },
    /// Its records cannot be read.
    #[error("the batch at offset {at} is damaged: {error}")]
    Records {
        /// The batch.
        at: Offset,
        /// What is wrong.
        error: ReadError,
    },
    /// Its messages of an older format cannot be read.
    #[error("the message at offset {at} is damaged: {error}")]
    Legacy {
        /// The message, or the last of its wrapper.
        at: Offset,
        /// What is wrong.
        error: LegacyError,
    },
    /// A marker of a transaction cannot be read.
    #[error("the control batch at offset {at} is damaged: {error}")]
    Marker {
        /// The batch.
        at: Offset,
        /// What is wrong.
        error: MarkerError,
    },
    /// A record without a key.
    #[error("the record at offset {at} has no key")]
    NoKey {
        /// The record.
        at: Offset,
    },
    /// A record that says something that we cannot read.
    #[error("the record at offset {at}: {error}")]
    Record {
        /// The record.
        at: Offset,
        /// What is wrong.
        error: ReplayError,
    },
}

/// What was loaded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    /// Records that were read.
    pub(super) records: u64,
    /// Records passed over, by the version of their key.
    pub(super) unknown: BTreeMap<i16, u64>,
}

/// Reads the whole log of a partition, at most so many bytes at once, into a machine, until it `is_over`.
///
/// # Errors
/// See [`LoadFault`]; the machine is then good for nothing.
pub(super) async fn load<R: ShardRuntime>(
    runtime: &R,
    (partitions, key): (&PartitionService<R>, PartitionKey),
    buffer_bytes: usize,
    groups: &mut Groups,
    is_over: impl Fn() -> bool,
) -> Result<Loaded, LoadFault> {
    let mut replay = Replay::new(runtime, groups);
    let mut next = Offset::ZERO;
    loop {
        let read = partitions.read_here(key, next, buffer_bytes.min(PIECE_BYTES_MAX)).await;
        if is_over() {
            return Err(LoadFault::Stopped);
        }
        let read = read.map_err(|error| match error {
            PartitionError::NotHere | PartitionError::NotLeader { .. } => LoadFault::Stopped,
            error => LoadFault::Partition(error),
        })?;
        let Some(bytes) = read.bytes else { break };
        let end = replay.batches(&bytes, read.from, &is_over).await?;
        if end <= next {
            // Nothing that goes further: an end with a gap (T-24).
            break;
        }
        next = end;
    }
    Ok(replay.loaded)
}

/// Tells a machine what batches hold.
struct Replay<'a, R> {
    pace: Pace<'a, R>,
    groups: &'a mut Groups,
    loaded: Loaded,
    /// Nothing below is looked at.
    from: Offset,
}

impl<'a, R: Runtime> Replay<'a, R> {
    fn new(runtime: &'a R, groups: &'a mut Groups) -> Self {
        Self { pace: Pace::new(runtime), groups, loaded: Loaded::default(), from: Offset::ZERO }
    }

    /// Takes a record, which may be one of a producer's transaction.
    fn record(
        &mut self,
        at: Offset,
        (key, value): (Option<&[u8]>, Option<&[u8]>),
        transaction_of: Option<ProducerId>,
    ) -> Result<(), LoadFault> {
        if at < self.from {
            return Ok(());
        }
        self.loaded.records = self.loaded.records.saturating_add(1);
        let key = key.ok_or(LoadFault::NoKey { at })?;
        let replayed = match transaction_of {
            None => self.groups.replay(at, key, value),
            Some(producer) => self.groups.replay_transactional(producer, at, key, value),
        };
        match replayed.map_err(|error| LoadFault::Record { at, error })? {
            Replayed::Offset | Replayed::Group => {}
            Replayed::Skipped(version) => self.passed_over(version),
        }
        Ok(())
    }

    fn passed_over(&mut self, version: i16) {
        let unknown = &mut self.loaded.unknown;
        if unknown.len() < UNKNOWN_VERSIONS_MAX || unknown.contains_key(&version) {
            let count = unknown.entry(version).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// Reads the whole batches among bytes, from an offset on; where the last of them ends. The first one must be whole.
    async fn batches(
        &mut self,
        mut bytes: &[u8],
        from: Offset,
        is_over: &impl Fn() -> bool,
    ) -> Result<Offset, LoadFault> {
        self.from = from;
        let mut end = from;
        let not_a_batch = |after| move |error| LoadFault::NotABatch { after, error };
        while !bytes.is_empty() {
            let prefix = match Prefix::parse(bytes) {
                Ok(prefix) if prefix.size_in_bytes <= bytes.len() => prefix,
                // Cut where the piece ends; the first one is whole.
                Ok(_) | Err(BatchError::Truncated { .. }) if end > from => break,
                Ok(prefix) => {
                    let (needed, left) = (prefix.size_in_bytes, bytes.len());
                    return Err(not_a_batch(end)(BatchError::Truncated { needed, left }));
                }
                Err(error) => return Err(not_a_batch(end)(error)),
            };
            let (whole, rest) = bytes.split_at_checked(prefix.size_in_bytes).unwrap_or((bytes, &[]));
            bytes = rest;
            let next = if prefix.magic == MAGIC_V2 {
                let batch = BatchView::parse(whole).map_err(not_a_batch(end))?;
                self.batch(&batch).await?;
                batch.next_offset()
            } else {
                let message = MessageView::parse(whole).map_err(not_a_batch(end))?;
                self.message(&message).await?;
                message.last_offset().plus(1)
            };
            end = end.max(next);
            if is_over() {
                return Err(LoadFault::Stopped);
            }
        }
        Ok(end)
    }

    async fn batch(&mut self, batch: &BatchView<'_>) -> Result<(), LoadFault> {
        let at = batch.base_offset();
        if !batch.crc_is_valid() {
            return Err(LoadFault::Checksum { at });
        }
        self.pace.look().await;
        let (attributes, producer) = (batch.attributes(), batch.producer_id());
        if attributes.is_control() {
            let marker = EndTxnMarker::read(batch).map_err(|error| LoadFault::Marker { at, error })?;
            if let Some(marker) = marker {
                self.groups.replay_marker(producer, marker.outcome == TxnOutcome::Commit);
            }
            return Ok(());
        }
        let damaged = |error| LoadFault::Records { at, error };
        let transaction_of = attributes.is_transactional().then_some(producer);
        let mut records = Records::of(batch).map_err(damaged)?;
        while let Some(record) = records.next_record().map_err(damaged)? {
            let offset = at.plus(i64::from(record.offset_delta));
            self.record(offset, (record.key, record.value), transaction_of)?;
            self.pace.step().await;
        }
        Ok(())
    }

    /// A message of magic 0 or 1, or a wrapper of several: what Kafka wrote before 0.11.
    async fn message(&mut self, message: &MessageView<'_>) -> Result<(), LoadFault> {
        let at = message.last_offset();
        if !message.crc_is_valid() {
            return Err(LoadFault::Checksum { at });
        }
        self.pace.look().await;
        let damaged = |error| LoadFault::Legacy { at, error };
        if !message.is_compressed() {
            let record = (message.key().map_err(damaged)?, message.value().map_err(damaged)?);
            return self.record(at, record, None);
        }
        let unpacked = Unpacked::of(message).map_err(damaged)?;
        for inner in unpacked.messages() {
            let inner = inner.map_err(damaged)?;
            self.record(inner.offset, (inner.key, inner.value), None)?;
            self.pace.step().await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! What a coordinator writes: records to one batch, the batch to the partition's own log, and what became of it (an
//! [`ErrorCode`] of the log, which the machine maps to replies, coordinators.md 3.8). Appends leave in the order in which
//! they are made here; their outcomes are told in the same order, whichever the log knows first. Used by `service`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use protocol::error::ErrorCode;
use protocol::records::builder::{BatchBuilder, BuildError};
use protocol::records::compression::Compression;
use protocol::types::{Offset, TimestampMs};
use smallvec::smallvec;
use storage::log::{AppendError, LogError};

use super::group::machine::WriteId;
use crate::partition::ask::{
    Acks, AppendAsk, AppendPart, AppendRefusal, PartitionAnswer, PartitionAsk, PartitionError, PartitionKey,
};
use crate::partition::service::PartitionService;
use crate::shard::memory::Charge;
use crate::shard::{Pending, ShardRuntime, Shards};

/// Records with their tombstones, as the machine gives them.
pub(super) type Records = [(Bytes, Option<Bytes>)];

/// The newest version of Produce: every codec and format that we write is allowed.
const REQUEST_VERSION: i16 = 11;

/// Records of a batch that is to be compressed have so many bytes at most: compression is done at once, and takes some
/// milliseconds for as many.
const PLAIN_BYTES_MAX: usize = 8 << 20;

/// What a record takes beside its key and value at least; what it takes in fact the log looks at.
const RECORD_OVERHEAD_BYTES: usize = 7;

/// A batch whose fate is not told yet.
pub(super) struct Writing {
    /// Its name.
    pub(super) write: WriteId,
    /// What becomes of it.
    pub(super) outcome: Outcome,
    /// What it holds of the bound on writes.
    pub(super) room: Room,
}

/// What becomes of a batch.
pub(super) enum Outcome {
    /// The log will say.
    Asked(Pending<PartitionAnswer>),
    /// It was not given to the log.
    Refused(ErrorCode),
}

impl Outcome {
    /// Where the batch begins, once it is committed, or why it is not in the log or not acknowledged.
    pub(super) async fn known(self) -> Result<Offset, ErrorCode> {
        let answer = match self {
            Self::Asked(pending) => pending.await,
            Self::Refused(code) => return Err(code),
        };
        let outcome = match answer {
            Ok(PartitionAnswer::Appended(outcomes)) => outcomes.into_iter().next(),
            // The shard is ending.
            Ok(_) | Err(_) => None,
        };
        match outcome {
            Some(Ok(appended)) => Ok(appended.base_offset),
            Some(Err(failure)) => Err(code_of(&failure.error)),
            None => Err(ErrorCode::NotLeaderOrFollower),
        }
    }
}

/// How much is being written on a shard: batches, and bytes of them.
#[derive(Default)]
pub(super) struct InFlight {
    batches: Cell<usize>,
    bytes: Cell<usize>,
}

impl InFlight {
    /// Takes room for one batch.
    pub(super) fn take(self: &Rc<Self>, bytes: usize) -> Room {
        self.batches.set(self.batches.get().saturating_add(1));
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        Room { of: self.clone(), bytes }
    }

    /// Whether more is being written than that.
    pub(super) fn exceeds(&self, batches_max: usize, bytes_max: usize) -> bool {
        self.batches.get() >= batches_max || self.bytes.get() >= bytes_max
    }
}

/// One batch's part of what is being written; gives itself back.
pub(super) struct Room {
    of: Rc<InFlight>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.batches.set(self.of.batches.get().saturating_sub(1));
        self.of.bytes.set(self.of.bytes.get().saturating_sub(self.bytes));
    }
}

/// Writes batches of coordinators into partitions of the same shard.
pub(super) struct Writer<R: ShardRuntime> {
    partitions: Shards<R, PartitionService<R>>,
    compression: Compression,
    timeout_ms: i64,
    /// Of no client: what is charged with it counts nowhere.
    frame: Arc<Charge>,
    in_flight: Rc<InFlight>,
}

impl<R: ShardRuntime> Writer<R> {
    pub(super) fn new(
        partitions: Shards<R, PartitionService<R>>,
        compression: Compression,
        timeout_ms: i64,
    ) -> Self {
        let (frame, in_flight) = (Arc::new(Charge::none()), Rc::default());
        Self { partitions, compression, timeout_ms, frame, in_flight }
    }

    /// What is being written.
    pub(super) fn in_flight(&self) -> &Rc<InFlight> {
        &self.in_flight
    }

    /// Appends one batch of records: it stands in the partition's queue when this returns.
    pub(super) fn append(
        &self,
        runtime: &R,
        key: PartitionKey,
        write: WriteId,
        records: &Records,
    ) -> Writing {
        let outcome = match self.ask(runtime, key, records) {
            // The own shard always has room; the bound is on what is being written.
            Ok(ask) => match self.partitions.try_reserve(runtime.shard()) {
                Ok(Some(slot)) => Outcome::Asked(slot.send(PartitionAsk::Append(ask))),
                Ok(None) | Err(_) => Outcome::Refused(ErrorCode::NotLeaderOrFollower),
            },
            Err(code) => Outcome::Refused(code),
        };
        let room = self.in_flight.take(plain_bytes(records));
        Writing { write, outcome, room }
    }

    fn ask(&self, runtime: &R, key: PartitionKey, records: &Records) -> Result<AppendAsk, ErrorCode> {
        let limit = self.partitions.local().batch_bytes_max(key).ok_or(ErrorCode::NotLeaderOrFollower)?;
        let limit = if self.compression == Compression::None { limit } else { limit.max(PLAIN_BYTES_MAX) };
        if plain_bytes(records) > limit {
            return Err(ErrorCode::MessageTooLarge);
        }
        let now = TimestampMs::new(runtime.wall_ms());
        let batch = build(self.compression, now, records).map_err(|error| match error {
            BuildError::TooLarge => ErrorCode::MessageTooLarge,
            BuildError::Compress(_) => ErrorCode::UnknownServerError,
        })?;
        Ok(AppendAsk {
            request_version: REQUEST_VERSION,
            acks: Acks::Isr,
            deadline: runtime.now().plus_ms(self.timeout_ms),
            frame: self.frame.clone(),
            frame_memory: batch.len(),
            parts: smallvec![AppendPart { key, batch }],
        })
    }
}

fn plain_bytes(records: &Records) -> usize {
    let bytes = |(key, value): &(Bytes, Option<Bytes>)| {
        let value = value.as_ref().map_or(0, Bytes::len);
        key.len().saturating_add(value).saturating_add(RECORD_OVERHEAD_BYTES)
    };
    records.iter().map(bytes).fold(0, usize::saturating_add)
}

/// One batch of magic 2, created now.
fn build(compression: Compression, now: TimestampMs, records: &Records) -> Result<BytesMut, BuildError> {
    let mut builder = BatchBuilder::new().compression(compression);
    for (key, value) in records {
        builder.push(now, Some(key), value.as_deref(), &[]);
    }
    builder.build()
}

/// The log's own code for a batch that was not appended or not acknowledged. No `_` arm where a new error would have to
/// choose its reply.
fn code_of(refusal: &AppendRefusal) -> ErrorCode {
    match refusal {
        AppendRefusal::Partition(error) => match error {
            PartitionError::Offline => ErrorCode::KafkaStorageError,
            PartitionError::NotHere
            | PartitionError::Loading
            | PartitionError::NotLeader { .. }
            | PartitionError::FencedLeaderEpoch { .. }
            | PartitionError::UnknownLeaderEpoch { .. } => ErrorCode::NotLeaderOrFollower,
            PartitionError::OffsetOutOfRange { .. }
            | PartitionError::OffsetNotAvailable
            | PartitionError::NotAReplica(_) => ErrorCode::UnknownServerError,
        },
        AppendRefusal::Invalid(error) => error.code(),
        AppendRefusal::Append(error) => match error {
            AppendError::Log(LogError::Full | LogError::Offline { .. }) => ErrorCode::KafkaStorageError,
            AppendError::Log(LogError::Closed) => ErrorCode::NotLeaderOrFollower,
            AppendError::RecordListTooLarge { .. } => ErrorCode::RecordListTooLarge,
            AppendError::NotPrepared
            | AppendError::OutOfOrder { .. }
            | AppendError::Malformed
            | AppendError::Producer(_) => ErrorCode::UnknownServerError,
        },
        AppendRefusal::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
        AppendRefusal::NotEnoughReplicasAfterAppend { .. } => ErrorCode::NotEnoughReplicasAfterAppend,
        AppendRefusal::TimedOut => ErrorCode::RequestTimedOut,
    }
}

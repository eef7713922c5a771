//! What a coordinator writes: records to one batch, the batch to the partition's own log, and what became of it (an
//! [`ErrorCode`] of the log, which the machine maps to replies, coordinators.md 3.8). Appends leave in the order in which
//! they are made here, also where one has to be compressed in many parts first and holds up those behind it; their
//! outcomes are told in the same order, whichever the log knows first. Used by `active`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;
use protocol::error::ErrorCode;
use protocol::records::builder::{BatchBuilder, BuildError};
use protocol::records::compression::Compression;
use protocol::types::{Offset, TimestampMs};
use smallvec::smallvec;
use storage::log::{AppendError, LogError};

use super::group::machine::{Record, Value, WriteId};
use crate::partition::ask::{
    Acks, AppendAsk, AppendPart, AppendRefusal, PartitionAnswer, PartitionAsk, PartitionError, PartitionKey,
};
use crate::partition::service::PartitionService;
use crate::shard::memory::Charge;
use crate::shard::pace::Pace;
use crate::shard::{Pending, ShardRuntime, Shards};

/// The newest version of Produce: every codec and format that we write is allowed.
const REQUEST_VERSION: i16 = 11;

/// Records of a batch that is to be compressed have so many bytes at most.
const PLAIN_BYTES_MAX: usize = 8 << 20;

/// So many bytes are compressed in one go: it takes some 100 µs. A batch of more is compressed part by part.
const COMPRESSED_AT_ONCE_MAX: usize = 16 << 10;

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

/// A batch in the partition's queue, or why it was not given to it.
type Sent = Result<Pending<PartitionAnswer>, ErrorCode>;

/// What becomes of a batch.
pub(super) enum Outcome {
    /// The log will say.
    Sent(Sent),
    /// It is not given to the log yet.
    Late(oneshot::Receiver<Sent>),
}

impl Outcome {
    /// Where the batch begins, once it is committed, or why it is not in the log or not acknowledged.
    pub(super) async fn known(self) -> Result<Offset, ErrorCode> {
        // The shard is ending where nobody says what became of it.
        let ending = ErrorCode::NotLeaderOrFollower;
        let sent = match self {
            Self::Sent(sent) => sent,
            Self::Late(sent) => sent.await.unwrap_or(Err(ending)),
        };
        let outcome = match sent?.await {
            Ok(PartitionAnswer::Appended(outcomes)) => outcomes.into_iter().next(),
            Ok(_) | Err(_) => None,
        };
        match outcome {
            Some(Ok(appended)) => Ok(appended.base_offset),
            Some(Err(failure)) => Err(code_of(&failure.error)),
            None => Err(ending),
        }
    }
}

/// The batches of one partition on their way into its log.
pub(super) struct WriteQueue {
    /// All of them, to whoever tells of them in their order. Bounded with `InFlight`.
    told: mpsc::UnboundedSender<Writing>,
    /// Those that take long to be made, and those behind them.
    late: mpsc::UnboundedSender<Late>,
    state: Rc<LateState>,
}

#[derive(Default)]
struct LateState {
    /// Batches that take long, or stand behind one that does, and are not given to the log yet.
    waiting: Cell<usize>,
    /// The machine has ended: what is not given to the log must not come into it any more, as another machine may have
    /// read the log since.
    is_closed: Cell<bool>,
}

/// A batch to be made part by part.
struct Late {
    records: Vec<Record>,
    sent: oneshot::Sender<Sent>,
}

/// Where batches come that are to be made part by part, in their order.
pub(super) struct LateWrites {
    late: mpsc::UnboundedReceiver<Late>,
    state: Rc<LateState>,
}

impl WriteQueue {
    /// A queue without batches; where they are told of, and where those come that take long.
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Writing>, LateWrites) {
        let ((told, all), (late, some)) = (mpsc::unbounded(), mpsc::unbounded());
        let state = Rc::<LateState>::default();
        (Self { told, late, state: state.clone() }, all, LateWrites { late: some, state })
    }

    /// The machine has ended.
    pub(super) fn close(&self) {
        self.state.is_closed.set(true);
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

    /// Whether batches are compressed, and may take long therefore.
    pub(super) fn compresses(&self) -> bool {
        self.compression != Compression::None
    }

    /// Appends one batch of records. It stands in the partition's queue when this returns, unless it takes long to make it
    /// or comes behind one that does.
    pub(super) fn append(
        &self,
        runtime: &R,
        (key, queue): (PartitionKey, &WriteQueue),
        write: WriteId,
        records: Vec<Record>,
    ) {
        let bytes = plain_bytes(&records);
        let room = self.in_flight.take(bytes);
        let takes_long = self.compresses() && bytes > COMPRESSED_AT_ONCE_MAX;
        let outcome = if takes_long || queue.state.waiting.get() > 0 {
            let (sent, outcome) = oneshot::channel();
            queue.state.waiting.set(queue.state.waiting.get().saturating_add(1));
            // Its receiver ends with the machine, as that of the next one does.
            let _ = queue.late.unbounded_send(Late { records, sent });
            Outcome::Late(outcome)
        } else {
            Outcome::Sent(self.append_now(runtime, key, &records))
        };
        let _ = queue.told.unbounded_send(Writing { write, outcome, room });
    }

    fn append_now(&self, runtime: &R, key: PartitionKey, records: &[Record]) -> Sent {
        self.check(key, records)?;
        let (mut builder, now) = self.builder(runtime);
        for (key, value) in records {
            builder.push(now, Some(key), value.as_ref().map(Value::whole).as_deref(), &[]);
        }
        self.send(runtime, key, builder.build().map_err(build_code)?)
    }

    /// Makes batches that take long, and gives each to the log before the next, until the machine ends.
    pub(super) async fn append_late(self: Rc<Self>, runtime: R, key: PartitionKey, mut writes: LateWrites) {
        while let Some(Late { records, sent }) = writes.late.next().await {
            // What nobody waits for any more is not even made.
            let outcome = if writes.state.is_closed.get() {
                Err(ErrorCode::NotLeaderOrFollower)
            } else {
                self.append_in_parts(&runtime, key, records, &writes.state).await
            };
            writes.state.waiting.set(writes.state.waiting.get().saturating_sub(1));
            // Who tells of it ends with the machine.
            let _ = sent.send(outcome);
        }
    }

    async fn append_in_parts(
        &self,
        runtime: &R,
        key: PartitionKey,
        records: Vec<Record>,
        state: &LateState,
    ) -> Sent {
        self.check(key, &records)?;
        let mut pace = Pace::new(runtime);
        let (mut builder, now) = self.builder(runtime);
        for (key, value) in records {
            builder.push(now, Some(&key), value.as_ref().map(Value::whole).as_deref(), &[]);
            pace.step().await;
        }
        let mut making = builder.begin().map_err(build_code)?;
        while making.go_on(COMPRESSED_AT_ONCE_MAX).map_err(build_code)? {
            pace.look().await;
        }
        let batch = making.finish().map_err(build_code)?;
        if state.is_closed.get() {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        self.send(runtime, key, batch)
    }

    /// Bytes that the records of one batch may have; `None` where there is no such partition.
    pub(super) fn plain_bytes_max(&self, key: PartitionKey) -> Option<usize> {
        let limit = self.partitions.local().batch_bytes_max(key)?;
        Some(if self.compresses() { limit.max(PLAIN_BYTES_MAX) } else { limit })
    }

    /// Whether the log could take the records.
    fn check(&self, key: PartitionKey, records: &[Record]) -> Result<(), ErrorCode> {
        let limit = self.plain_bytes_max(key).ok_or(ErrorCode::NotLeaderOrFollower)?;
        if plain_bytes(records) > limit { Err(ErrorCode::MessageTooLarge) } else { Ok(()) }
    }

    /// A batch of magic 2 without records, and the time at which they are created.
    fn builder(&self, runtime: &R) -> (BatchBuilder, TimestampMs) {
        (BatchBuilder::new().compression(self.compression), TimestampMs::new(runtime.wall_ms()))
    }

    /// Gives a batch to the log. The own shard always has room; the bound is on what is being written.
    fn send(&self, runtime: &R, key: PartitionKey, batch: BytesMut) -> Sent {
        let ask = AppendAsk {
            request_version: REQUEST_VERSION,
            acks: Acks::Isr,
            deadline: runtime.now().plus_ms(self.timeout_ms),
            frame: self.frame.clone(),
            frame_memory: batch.len(),
            parts: smallvec![AppendPart { key, batch }],
        };
        match self.partitions.try_reserve(runtime.shard()) {
            Ok(Some(slot)) => Ok(slot.send(PartitionAsk::Append(ask))),
            Ok(None) | Err(_) => Err(ErrorCode::NotLeaderOrFollower),
        }
    }
}

fn plain_bytes(records: &[Record]) -> usize {
    let bytes = |(key, value): &Record| {
        let value = value.as_ref().map_or(0, Value::size);
        key.len().saturating_add(value).saturating_add(RECORD_OVERHEAD_BYTES)
    };
    records.iter().map(bytes).fold(0, usize::saturating_add)
}

fn build_code(error: BuildError) -> ErrorCode {
    match error {
        BuildError::TooLarge => ErrorCode::MessageTooLarge,
        BuildError::Compress(_) => ErrorCode::UnknownServerError,
    }
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
            AppendError::Log(LogError::Full | LogError::Exhausted | LogError::Offline { .. }) => {
                ErrorCode::KafkaStorageError
            }
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

//! What a partition's owner is asked, and what it answers: the messages of `PartitionService`. They own their
//! data and name partitions by topic id, so that a route by a stale image never reaches a topic that was deleted and
//! created again under the same name (V-80). Knows no wire format: handlers translate.

mod dirs;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use protocol::records::refusal::ProduceError;
use protocol::types::{
    BrokerEpoch, BrokerId, LeaderEpoch, MonoTime, Offset, PartitionEpoch, ProducerEpoch, ProducerId,
    TimestampMs, TopicId, TopicName, TopicPartition,
};
use smallvec::SmallVec;
use storage::io::Span;
use storage::log::AppendError;

use crate::config::topic::TopicConfig;
use crate::shard::memory::Charge;

pub use dirs::{DirFailure, LogSize, MoveAsk, MoveError, OutOfService};

/// One partition of one incarnation of a topic (Kafka's `TopicIdPartition`, without the name).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionKey {
    /// Id of the topic.
    pub topic_id: TopicId,
    /// Index of the partition.
    pub partition: i32,
}

/// A question to the shard that owns the partitions it names.
#[derive(Debug)]
pub enum PartitionAsk {
    /// Append record batches; answered by [`PartitionAnswer::Appended`].
    Append(AppendAsk),
    /// Look for data, wait for it or read it; answered by [`PartitionAnswer::Fetched`].
    Fetch(FetchAsk),
    /// Which armed waits have news; answered by [`PartitionAnswer::Woken`] once there is some. One per asking shard is
    /// outstanding, so that waking needs no room in any queue.
    Wakes,
    /// Find offsets; answered by [`PartitionAnswer::Offsets`].
    ListOffsets(Vec<OffsetAsk>),
    /// Find where leader epochs end; answered by [`PartitionAnswer::EpochEnds`].
    EpochEndOffsets(Vec<EpochEndAsk>),
    /// Raise log start offsets; answered by [`PartitionAnswer::RecordsDeleted`].
    DeleteRecords(DeleteRecordsAsk),
    /// List active producers; answered by [`PartitionAnswer::Producers`].
    DescribeProducers(Vec<PartitionKey>),
    /// Sizes of the logs on this shard; answered by [`PartitionAnswer::Logs`].
    DescribeLogs,
    /// Lead or follow; answered by [`PartitionAnswer::Became`], when logs are open and the roles taken. What comes
    /// after it does not wait for logs that were there before.
    Become(Vec<Become>),
    /// Stop serving, and delete if told so; answered by [`PartitionAnswer::Stopped`].
    Stop(Vec<StopPartition>),
    /// Move logs to other log dirs; answered by [`PartitionAnswer::Moved`] when the copying has begun, or was ended.
    Move(Vec<MoveAsk>),
    /// Where partitions are to be made that are not here; answered by [`PartitionAnswer::Done`].
    Wish(Vec<(TopicPartition, Arc<Path>)>),
    /// Take a topic's new configuration; answered by [`PartitionAnswer::Done`].
    SetConfig(SetConfig),
    /// Offsets for the checkpoint files; answered by [`PartitionAnswer::Samples`].
    Sample,
    /// Flush and close every log of the shard (storage.md 8.3); answered by [`PartitionAnswer::Closed`].
    Close,
    /// Which log dir has failed on this shard; answered by [`PartitionAnswer::DirFailed`] once one has. Only shard 0 asks,
    /// and has one ask outstanding per shard.
    DirFailure,
    /// A log dir has failed, maybe elsewhere: take its logs out of service; answered by [`PartitionAnswer::OutOfService`].
    DirOffline(DirFailure),
}

/// The answer to a [`PartitionAsk`]; lists stand in the order of what was asked.
#[derive(Debug)]
pub enum PartitionAnswer {
    /// To [`PartitionAsk::Append`].
    Appended(SmallVec<[Result<Appended, Box<AppendFailure>>; 1]>),
    /// To [`PartitionAsk::Fetch`].
    Fetched(Fetched),
    /// To [`PartitionAsk::Wakes`].
    Woken(Vec<Wake>),
    /// To [`PartitionAsk::ListOffsets`].
    Offsets(Vec<Result<FoundOffset, PartitionError>>),
    /// To [`PartitionAsk::EpochEndOffsets`].
    EpochEnds(Vec<Result<Option<EpochEnd>, PartitionError>>),
    /// To [`PartitionAsk::DeleteRecords`]: the low watermarks.
    RecordsDeleted(Vec<Result<Offset, DeleteRecordsError>>),
    /// To [`PartitionAsk::DescribeProducers`].
    Producers(Vec<Result<Vec<ActiveProducer>, PartitionError>>),
    /// To [`PartitionAsk::DescribeLogs`].
    Logs(Vec<LogSize>),
    /// To [`PartitionAsk::Become`].
    Became(Vec<Result<(), BecomeError>>),
    /// To [`PartitionAsk::Stop`].
    Stopped(Vec<Result<(), StopError>>),
    /// To [`PartitionAsk::Move`].
    Moved(Vec<Result<(), MoveError>>),
    /// To [`PartitionAsk::SetConfig`] and [`PartitionAsk::Wish`].
    Done,
    /// To [`PartitionAsk::Sample`].
    Samples(Vec<Sample>),
    /// To [`PartitionAsk::Close`].
    Closed(Closed),
    /// To [`PartitionAsk::DirOffline`]: the partitions of this shard that are in it.
    OutOfService(Vec<TopicPartition>),
    /// To [`PartitionAsk::DirFailure`].
    DirFailed(DirFailure),
}

/// When a produce is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Not at all; the outcome still decides whether the connection lives.
    None,
    /// When the leader has it.
    Leader,
    /// When every in-sync replica has it.
    Isr,
}

/// Batches for partitions of one owner, in the order of the request.
#[derive(Debug)]
pub struct AppendAsk {
    /// Version of the request: decides which codecs and formats are allowed.
    pub request_version: i16,
    /// When each part is answered.
    pub acks: Acks,
    /// When waiting for the high watermark ends.
    pub deadline: MonoTime,
    /// What is charged for the frame that all batches are cut from.
    pub frame: Arc<Charge>,
    /// Bytes of memory that the frame takes: all of it is there as long as one of the batches is.
    pub frame_memory: usize,
    /// The batches.
    pub parts: AppendParts,
}

/// The batches of an ask; mostly one.
pub type AppendParts = SmallVec<[AppendPart; 1]>;

/// One batch for one partition.
#[derive(Debug)]
pub struct AppendPart {
    /// Where it goes.
    pub key: PartitionKey,
    /// Exactly one batch, owned alone so that the owner patches it in place.
    pub batch: BytesMut,
}

/// A batch was appended, or had been before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// The broker's time on topics with LogAppendTime, the stored batch's maximum timestamp for a duplicate, else none.
    pub log_append_time: TimestampMs,
    /// Where the log starts.
    pub log_start_offset: Offset,
}

/// Why a batch was not appended, or not acknowledged.
#[derive(Debug)]
pub struct AppendFailure {
    /// Why.
    pub error: AppendRefusal,
    /// Where the log starts; `Offset::NONE` when there is no log to ask.
    pub log_start_offset: Offset,
    /// What was appended all the same: it waited for replicas that did not follow.
    pub appended: Option<Appended>,
}

/// Why a batch was not appended, or not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum AppendRefusal {
    /// The partition does not take appends here.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The batch breaks a rule of the format or the topic.
    #[error(transparent)]
    Invalid(#[from] ProduceError),
    /// The log refused it.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// Too few replicas are in sync; nothing was appended.
    #[error("{isr} replicas in sync, {min_isr} needed")]
    NotEnoughReplicas {
        /// Committed ISR.
        isr: usize,
        /// Effective minimum.
        min_isr: usize,
    },
    /// The batch was appended, but then too few replicas were in sync.
    #[error("appended, but only {isr} replicas are in sync, {min_isr} needed")]
    NotEnoughReplicasAfterAppend {
        /// Maximal ISR.
        isr: usize,
        /// Effective minimum.
        min_isr: usize,
    },
    /// The batch was appended, but the high watermark did not reach it in time.
    #[error("appended, but not replicated in time")]
    TimedOut,
}

/// Why a partition does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// This shard holds no such partition: it moved, was deleted, or is not told yet.
    #[error("partition is not here")]
    NotHere,
    /// Its log is being opened.
    #[error("log is being loaded")]
    Loading,
    /// This broker does not lead it.
    #[error("leader is broker {leader}")]
    NotLeader {
        /// Who leads, as far as known.
        leader: BrokerId,
        /// In which epoch.
        leader_epoch: LeaderEpoch,
    },
    /// The request's leader epoch is older than ours.
    #[error("leader epoch {asked} is behind {current}")]
    FencedLeaderEpoch {
        /// What the request said.
        asked: LeaderEpoch,
        /// Ours.
        current: LeaderEpoch,
    },
    /// The request's leader epoch is newer than ours.
    #[error("leader epoch {asked} is ahead of {current}")]
    UnknownLeaderEpoch {
        /// What the request said.
        asked: LeaderEpoch,
        /// Ours.
        current: LeaderEpoch,
    },
    /// The log failed, or its directory did.
    #[error("log is offline")]
    Offline,
    /// An offset below the log's start or above its end.
    #[error("offset {offset} is not within {start}..={end}")]
    OffsetOutOfRange {
        /// What was asked for.
        offset: Offset,
        /// Log start offset.
        start: Offset,
        /// The highest offset that may be asked for.
        end: Offset,
    },
    /// The high watermark has not reached the start of this leader's epoch (KIP-207).
    #[error("high watermark is behind the start of the leader epoch")]
    OffsetNotAvailable,
    /// The replica that asks is not one of the partition's.
    #[error("broker {0} is not a replica")]
    NotAReplica(BrokerId),
}

/// What a reader may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// A replica: up to the log end.
    LogEnd,
    /// A consumer with read_uncommitted: up to the high watermark.
    HighWatermark,
    /// A consumer with read_committed: up to the last stable offset.
    Committed,
}

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A consumer that must read from the leader.
    Consumer,
    /// A consumer (Fetch v11 and later) that may read from any replica.
    ConsumerOfAnyReplica,
    /// A follower.
    Replica {
        /// Its id.
        id: BrokerId,
        /// Its registration; -1 when its request does not tell.
        broker_epoch: BrokerEpoch,
        /// Whether metadata lets it join the ISR.
        eligible: bool,
    },
}

/// Names one wait of one session shard; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(u64);

impl WaitId {
    /// Wraps a number.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Partitions of one owner, in the order of the fetch, and what to do with them (replication.md 12.4).
#[derive(Debug)]
pub struct FetchAsk {
    /// What may be seen.
    pub isolation: Isolation,
    /// Who reads.
    pub reader: Reader,
    /// The partitions.
    pub parts: Vec<FetchPart>,
    /// What to do.
    pub step: FetchStep,
    /// Waits of the asking shard that are over. They ride along so that ending one needs no message of its own.
    pub disarm: SmallVec<[WaitId; 4]>,
}

/// What a fetch wants of one partition.
#[derive(Clone, Copy, Debug)]
pub struct FetchPart {
    /// The partition.
    pub key: PartitionKey,
    /// First record wanted.
    pub fetch_offset: Offset,
    /// Bytes to return at most, but for the first batch of the answer.
    pub max_bytes: u32,
    /// Leader epoch the reader knows; `LeaderEpoch::NONE` if it does not say.
    pub current_leader_epoch: LeaderEpoch,
    /// Epoch of the reader's last record; `LeaderEpoch::NONE` if it does not say.
    pub last_fetched_epoch: LeaderEpoch,
    /// The follower's log start offset; `Offset::NONE` for consumers.
    pub log_start_offset: Offset,
    /// What the owner said when it last had nothing to give: while it would say the same, it passes over the part.
    pub quiet: Option<Quiet>,
    /// Bytes that this fetch was given of the partition before, and does not hand out.
    pub discarded: u32,
}

/// A moment of a partition at which a reader had all that it may see and nothing was wrong. Only its owner can tell
/// whether anything has moved since; other readers, isolation levels and owners have moments of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiet(u64);

impl Quiet {
    /// Wraps a number.
    pub const fn new(moment: u64) -> Self {
        Self(moment)
    }
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What to do with the partitions of a [`FetchAsk`].
#[derive(Clone, Copy, Debug)]
pub enum FetchStep {
    /// These are all partitions of the fetch: read if anything calls for an answer at once, else wait.
    Whole {
        /// Bytes to return at most, but for the first batch.
        max_bytes: u32,
        /// The wait to arm when there is less than its `min_bytes`; `None` answers at once.
        wait: Option<Wait>,
    },
    /// Others have more partitions of this fetch: read if anything here calls for an answer at once, else wait. No batch
    /// exceeds a limit.
    Share {
        /// Bytes to return at most; where there are more, nothing is read.
        max_bytes: u32,
        /// The wait to arm when there is less than its `min_bytes`; `None` answers at once.
        wait: Option<Wait>,
        /// Whether the fetch waited: its arrival was noted before.
        again: bool,
    },
    /// The shares might break a limit of the fetch: report, and arm.
    Probe {
        /// The wait to arm; `None` only reports.
        wait: Option<Wait>,
    },
    /// Read what was granted; parts stand in session order.
    Read {
        /// Bytes to return at most, but for the first batch.
        max_bytes: u32,
        /// Whether the first part that has data gives its first batch whole whatever the grant.
        first_batch_whole: bool,
    },
}

/// A wait that owners arm.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Its name.
    pub id: WaitId,
    /// Bytes that end it.
    pub min_bytes: u64,
    /// After this time nobody waits any more, and the owner may forget it.
    pub until: MonoTime,
}

/// The outcome of a [`FetchAsk`].
#[derive(Debug)]
pub enum Fetched {
    /// Data or errors of parts, by their place in the ask and in its order; the others are as quiet as the asker knows.
    /// The fetch is over.
    Read(Vec<ReadPart>),
    /// What each part could give now.
    Probed(Vec<ProbedPart>),
    /// Too little; the wait is armed ([`FetchStep::Whole`]).
    Waiting,
    /// Too little; the wait is armed ([`FetchStep::Share`]).
    Armed(ArmedShare),
    /// More than the share; nothing was read ([`FetchStep::Share`]).
    TooMuch,
}

/// What an owner that waits has so far.
#[derive(Debug)]
pub struct ArmedShare {
    /// Bytes that its partitions could give together.
    pub bytes: u64,
    /// Whether the first of them that has data may exceed its limit, and so be enough alone.
    pub may_exceed: bool,
    /// What there is to tell of the parts without data, as in [`Fetched::Read`].
    pub empty: Vec<ReadPart>,
}

/// What a part gave, and its place in the ask.
pub type ReadPart = (usize, Result<FetchedData, PartitionError>);

/// Data of one partition, and its offsets as of the read (KAFKA-7104).
#[derive(Debug)]
pub struct FetchedData {
    /// The high watermark.
    pub high_watermark: Offset,
    /// The last stable offset.
    pub last_stable_offset: Offset,
    /// Where the log starts.
    pub log_start_offset: Offset,
    /// Record bytes by reference.
    pub spans: SmallVec<[Span; 2]>,
    /// Their length.
    pub bytes: u32,
    /// Whether there are records, of which not one batch fits the limits.
    pub held_back: bool,
    /// Aborted transactions that overlap the bytes; `None` unless read_committed.
    pub aborted: Option<Vec<AbortedTransaction>>,
    /// Where the reader's history leaves ours (KIP-595); the bytes are then empty.
    pub diverging: Option<EpochEnd>,
    /// The replica to read from instead (KIP-392); the bytes are then empty.
    pub preferred_read_replica: Option<BrokerId>,
    /// That the reader had all it may see: once it is told the offsets above, there is nothing new until something moves.
    pub quiet: Option<Quiet>,
}

/// What one partition could give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedPart {
    /// Bytes at hand, capped by the part's maximum.
    pub bytes: u64,
    /// Whether there is a batch, however little of it the maximum allows.
    pub has_data: bool,
    /// An error, a divergence, a truncation or an older segment: the fetch is answered at once.
    pub immediate: bool,
    /// Nothing has moved since the asker was told: there is nothing to read or to tell.
    pub quiet: bool,
}

impl ProbedPart {
    /// Nothing to read now.
    pub const NOTHING: Self = Self { bytes: 0, has_data: false, immediate: false, quiet: false };
    /// To be answered at once, without data.
    pub const AT_ONCE: Self = Self { immediate: true, ..Self::NOTHING };
    /// Passed over.
    pub const QUIET: Self = Self { quiet: true, ..Self::NOTHING };
}

/// The first part with data, if its first batch may exceed the part's maximum (KIP-74): only a read tells how large it is.
pub fn may_exceed<'a>(parts: impl Iterator<Item = &'a FetchPart>, probed: &[ProbedPart]) -> bool {
    let mut both = parts.zip(probed);
    both.find(|(_, probed)| probed.has_data)
        .is_some_and(|(part, probed)| probed.bytes >= u64::from(part.max_bytes))
}

/// Bytes that parts could give together.
pub fn sum(probed: &[ProbedPart]) -> u64 {
    probed.iter().map(|part| part.bytes).sum()
}

/// Whether a fetch is answered at once: there is enough, or something that does not wait.
pub fn calls_for_an_answer(probed: &[ProbedPart], min_bytes: u64) -> bool {
    probed.iter().any(|part| part.immediate) || sum(probed) >= min_bytes
}

/// Bytes that a read gave.
pub fn bytes_of(outcomes: &[ReadPart]) -> u64 {
    outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()).map(|data| u64::from(data.bytes)).sum()
}

/// News of an armed wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Which.
    pub id: WaitId,
    /// Bytes that the owner's partitions could give together.
    pub bytes: u64,
    /// Whether the fetch must be answered at once.
    pub immediate: bool,
}

/// An aborted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Its producer.
    pub producer_id: ProducerId,
    /// Its first offset.
    pub first_offset: Offset,
}

/// An offset to be found.
#[derive(Clone, Copy, Debug)]
pub struct OffsetAsk {
    /// The partition.
    pub key: PartitionKey,
    /// Leader epoch the client knows; `LeaderEpoch::NONE` if it does not say.
    pub current_leader_epoch: LeaderEpoch,
    /// Who asks: consumers see up to the high watermark or last stable offset, others up to the log end.
    pub isolation: Isolation,
    /// Whether a follower may answer (replica id -2).
    pub any_replica: bool,
    /// What to find.
    pub target: OffsetTarget,
}

/// Which offset to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetTarget {
    /// The end of what the asker may see.
    Latest,
    /// The start of the log.
    Earliest,
    /// The record with the largest timestamp (KIP-734).
    MaxTimestamp,
    /// The end of what was moved to remote storage; there is none.
    LatestTiered,
    /// The first record that is not older.
    At(TimestampMs),
    /// ListOffsets v0: ends and segment starts whose files are not newer, newest first.
    Segments {
        /// Modification time that entries must not exceed; -1 the newest, -2 the oldest.
        at: TimestampMs,
        /// How many at most.
        max: usize,
    },
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundOffset {
    /// One record, or none (`Offset::NONE`).
    One {
        /// Its offset.
        offset: Offset,
        /// Its timestamp; `TimestampMs::NONE` for latest and earliest.
        timestamp: TimestampMs,
        /// Leader epoch it was written in; `LeaderEpoch::NONE` when unknown.
        leader_epoch: LeaderEpoch,
    },
    /// To [`OffsetTarget::Segments`].
    Many(Vec<Offset>),
}

/// A leader epoch whose end is asked for.
#[derive(Clone, Copy, Debug)]
pub struct EpochEndAsk {
    /// The partition.
    pub key: PartitionKey,
    /// Leader epoch the asker knows; `LeaderEpoch::NONE` if it does not say.
    pub current_leader_epoch: LeaderEpoch,
    /// The epoch.
    pub leader_epoch: LeaderEpoch,
}

/// Where a leader epoch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The epoch: the largest known one that is not above the asked one.
    pub leader_epoch: LeaderEpoch,
    /// The first offset behind it.
    pub end_offset: Offset,
}

/// Log start offsets to be raised.
#[derive(Debug)]
pub struct DeleteRecordsAsk {
    /// When waiting for followers ends.
    pub deadline: MonoTime,
    /// Partition and new log start offset; `Offset::NONE` stands for the high watermark.
    pub parts: Vec<(PartitionKey, Offset)>,
}

/// Why records were not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteRecordsError {
    /// The partition does not answer.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The topic's cleanup policy has no `delete`.
    #[error("cleanup.policy does not contain delete")]
    Policy,
    /// Followers did not follow in time.
    #[error("not all replicas deleted in time")]
    TimedOut,
}

/// An active producer of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveProducer {
    /// Its id.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of its last record; -1 if it has none.
    pub last_sequence: i32,
    /// Timestamp of its last batch.
    pub last_timestamp: TimestampMs,
    /// Epoch of the coordinator of its last transaction; -1 if none.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction; `Offset::NONE` if none.
    pub current_txn_start_offset: Offset,
}

/// A partition's state as the controller wants it (replication.md 3).
#[derive(Clone, Debug)]
pub struct Become {
    /// The topic.
    pub topic: TopicName,
    /// Its id.
    pub topic_id: TopicId,
    /// Index of the partition.
    pub partition: i32,
    /// Who leads; this broker or another, or `BrokerId::NONE`.
    pub leader: BrokerId,
    /// Generation of the leadership.
    pub leader_epoch: LeaderEpoch,
    /// Version of leader and ISR; older ones are ignored.
    pub partition_epoch: PartitionEpoch,
    /// Assigned replicas.
    pub replicas: Vec<BrokerId>,
    /// In-sync replicas.
    pub isr: Vec<BrokerId>,
    /// Whether the replica may be created although a directory is offline.
    pub is_new: bool,
    /// The topic's configuration.
    pub config: Arc<TopicConfig>,
}

/// A topic's new configuration.
#[derive(Clone, Debug)]
pub struct SetConfig {
    /// The topic.
    pub topic_id: TopicId,
    /// Its configuration.
    pub config: Arc<TopicConfig>,
}

/// Why a role was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BecomeError {
    /// The state is older than the one we have.
    #[error("partition epoch {asked} is behind {current}")]
    StaleEpoch {
        /// What was asked.
        asked: PartitionEpoch,
        /// What we have.
        current: PartitionEpoch,
    },
    /// The log on disk belongs to another incarnation of the topic.
    #[error("log belongs to topic id {found}")]
    InconsistentTopicId {
        /// Id in `partition.metadata`.
        found: TopicId,
    },
    /// The log could not be opened or created, or its log dir has failed.
    #[error("log could not be opened")]
    Storage,
    /// The shard is closing.
    #[error("shard is closing")]
    Closing,
    /// The partition was stopped before its log was open.
    #[error("partition was stopped")]
    Stopped,
}

/// A partition to stop serving.
#[derive(Clone, Debug)]
pub struct StopPartition {
    /// The topic.
    pub topic: TopicName,
    /// Its id.
    pub topic_id: TopicId,
    /// Index of the partition.
    pub partition: i32,
    /// Leader epoch of the request; `None` stops whatever the epoch (KIP-570: -2 or none).
    pub leader_epoch: Option<LeaderEpoch>,
    /// Whether its directory goes too.
    pub delete: bool,
}

/// Why a partition was not stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// The request is older than the partition's state.
    #[error("leader epoch {asked} is behind {current}")]
    FencedLeaderEpoch {
        /// What was asked.
        asked: LeaderEpoch,
        /// What we have.
        current: LeaderEpoch,
    },
    /// Its directory could not be renamed, or its log dir has failed.
    #[error("directory could not be renamed")]
    Storage,
}

/// What checkpoint files record of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The partition.
    pub partition: TopicPartition,
    /// The log dir whose files record it.
    pub log_dir: Arc<Path>,
    /// Its high watermark.
    pub high_watermark: Offset,
    /// All below is flushed.
    pub recovery_point: Offset,
    /// Where the log starts, if its segments do not tell (storage.md 1.1).
    pub log_start_offset: Option<Offset>,
    /// All below is compacted; none if the log never was.
    pub cleaner_offset: Option<Offset>,
    /// The log is a copy that is to take the place of one in another dir.
    pub is_copy: bool,
}

/// How closing a shard's logs went.
#[derive(Debug)]
pub struct Closed {
    /// Log dirs of logs that were not flushed and closed without an error: they get no clean-shutdown marker.
    pub unclean: BTreeSet<Arc<Path>>,
    /// The last offsets for the checkpoints.
    pub samples: Vec<Sample>,
}

impl Closed {
    /// Whether every log was closed cleanly.
    pub fn is_clean(&self) -> bool {
        self.unclean.is_empty()
    }
}

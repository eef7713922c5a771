//! What the admin service is asked, and what it answers. Owns its data; knows no wire format.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_channel::oneshot;
use protocol::types::{BrokerId, MonoTime, Offset, TopicId, TopicName};

use super::configs::{AlterConfigsError, AlterTopic};
use crate::config::topic::TopicFault;
use crate::store::StoreError;

/// A wish.
#[derive(Debug)]
pub enum AdminAsk {
    /// Create topics; answered by [`AdminAnswer::Created`].
    CreateTopics(CreateTopics),
    /// Create missing topics that a Metadata request named; answered by [`AdminAnswer::AutoCreated`] once they are
    /// written, before they have leaders.
    AutoCreate(Vec<TopicName>),
    /// Delete topics; answered by [`AdminAnswer::Deleted`].
    DeleteTopics(DeleteTopics),
    /// Add partitions; answered by [`AdminAnswer::Grown`].
    CreatePartitions(CreatePartitions),
    /// Change the overrides of a topic; answered by [`AdminAnswer::Altered`].
    AlterTopic(AlterTopic),
    /// Hand out producer ids; answered by [`AdminAnswer::ProducerIds`].
    AllocateProducerIds,
    /// Keep offsets of a group as the oldest clients do; answered by [`AdminAnswer::OffsetsKept`].
    KeepOffsets {
        /// Where.
        nodes: OffsetNodes,
        /// One for each partition.
        offsets: Vec<Offset>,
    },
    /// Read such offsets; answered by [`AdminAnswer::OffsetsRead`].
    ReadOffsets(OffsetNodes),
    /// By how many partitions of an internal topic things are placed; answered by [`AdminAnswer::Counted`].
    CountPartitions(TopicName),
}

/// The answer to an [`AdminAsk`]; lists stand in the order of what was asked.
#[derive(Debug)]
pub enum AdminAnswer {
    /// To [`AdminAsk::CreateTopics`].
    Created(Vec<Result<CreatedTopic, CreateTopicError>>),
    /// To [`AdminAsk::AutoCreate`].
    AutoCreated(Vec<Result<(), CreateTopicError>>),
    /// To [`AdminAsk::DeleteTopics`].
    Deleted(Vec<Result<(), DeleteTopicError>>),
    /// To [`AdminAsk::CreatePartitions`].
    Grown(Vec<Result<(), CreatePartitionsError>>),
    /// To [`AdminAsk::AlterTopic`].
    Altered(Result<(), AlterConfigsError>),
    /// To [`AdminAsk::AllocateProducerIds`].
    ProducerIds(Result<ProducerIdRange, AllocateError>),
    /// To [`AdminAsk::KeepOffsets`].
    OffsetsKept(Vec<Result<(), OffsetNodeError>>),
    /// To [`AdminAsk::ReadOffsets`]; `None` where there is none.
    OffsetsRead(Vec<Result<Option<Offset>, OffsetNodeError>>),
    /// To [`AdminAsk::CountPartitions`]: its id and their number; `None` if there is no such topic, or its node is malformed.
    Counted(Result<Option<(TopicId, i32)>, StoreError>),
}

/// Offsets of a group in the metadata store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetNodes {
    /// Id of the group, which becomes a part of a path.
    pub group: Arc<str>,
    /// The partitions.
    pub partitions: Vec<(TopicName, i32)>,
}

/// Why an offset in the metadata store was not kept or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffsetNodeError {
    /// The id of the group cannot stand in a path.
    #[error("the group's id cannot stand in a path")]
    Path,
    /// What stands there is no number.
    #[error("the node's data is no offset")]
    Malformed,
    /// The metadata store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether to do it or only to check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Do it, and wait at most until then; `None` does not wait at all, which is answered as a timeout.
    Apply(Option<MonoTime>),
    /// Check only.
    Validate,
}

/// Resolves, with whatever, when the client waits no longer, on its shard: then nothing is waited for here either.
pub type Client = oneshot::Receiver<()>;

/// Topics to create.
#[derive(Debug)]
pub struct CreateTopics {
    /// The topics.
    pub topics: Vec<NewTopic>,
    /// Whether to do it.
    pub mode: Mode,
    /// For whom.
    pub client: Client,
}

/// A topic to create, as wished.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// Number of partitions; -1 is the broker's default.
    pub partitions: i32,
    /// Replicas of each; -1 is the broker's default.
    pub replication_factor: i16,
    /// Replicas by partition; empty leaves the choice to the broker.
    pub assignment: Vec<(i32, Vec<BrokerId>)>,
    /// Configs; a null value is a fault of the request.
    pub configs: Vec<(String, Option<String>)>,
}

/// A topic that was created, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedTopic {
    /// Its id; zero if it was only checked.
    pub id: TopicId,
    /// Number of partitions.
    pub partitions: i32,
    /// Replicas of each.
    pub replication_factor: i16,
    /// Its overrides.
    pub overrides: Arc<BTreeMap<String, String>>,
}

/// Why a topic was not created.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CreateTopicError {
    /// The request names it twice.
    #[error("Create topics request from client contains multiple entries for the following topics: {0}")]
    Duplicate(String),
    /// The name of KRaft's own log.
    #[error("Creation of internal topic {0} is prohibited.")]
    Reserved(String),
    /// There is such a topic.
    #[error("Topic '{0}' already exists.")]
    Exists(String),
    /// There was one, which is not gone yet.
    #[error("Topic '{0}' is marked for deletion.")]
    BeingDeleted(String),
    /// A config without a value.
    #[error("Null value not supported for topic configs: {0}")]
    NullConfig(String),
    /// An assignment together with counts.
    #[error(
        "Both numPartitions or replicationFactor and replicasAssignments were set. Both cannot be used at the same time."
    )]
    CountsAndAssignment,
    /// No partitions, or fewer.
    #[error("Number of partitions must be larger than 0, or -1 to use the default value.")]
    Partitions(i32),
    /// More partitions than one request may make.
    #[error("Excessively large number of partitions per request: {0}")]
    TooManyPartitions(usize),
    /// No replicas, or more than there are brokers.
    #[error("Replication factor: {wanted} larger than available brokers: {live}.")]
    ReplicationFactor {
        /// The wish.
        wanted: i16,
        /// Brokers that live.
        live: usize,
    },
    /// Kafka's rule for names.
    #[error(
        "Topic name is invalid: '{0}' must be 1 to 249 ASCII alphanumerics, '.', '_' or '-', and neither '.' nor '..'."
    )]
    IllegalName(String),
    /// Differs from an existing one only in `.` and `_`, which metrics cannot tell apart.
    #[error("Topic '{name}' collides with existing topics: {existing}")]
    Collides {
        /// The name.
        name: String,
        /// The topic that it collides with.
        existing: String,
    },
    /// Unequal, doubled or missing replicas or partitions.
    #[error("Unequal, duplicate or non-consecutive partitions or replicas in the assignment.")]
    Assignment,
    /// Some brokers have a rack, others not.
    #[error("Not all brokers have rack information for replica rack aware assignment.")]
    Racks,
    /// A config that topics do not take.
    #[error(transparent)]
    Config(#[from] TopicFault),
    /// The metadata store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The topic is created, but not all partitions have leaders yet.
    #[error("The request timed out.")]
    TimedOut,
}

/// A topic to delete, by name or id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicRef {
    /// By name.
    Name(TopicName),
    /// By id.
    Id(TopicId),
}

/// Topics to delete.
#[derive(Debug)]
pub struct DeleteTopics {
    /// The topics.
    pub topics: Vec<TopicRef>,
    /// Until when to wait; `None` does not wait at all, which is answered as a timeout.
    pub deadline: Option<MonoTime>,
    /// For whom.
    pub client: Client,
}

/// Why a topic was not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteTopicError {
    /// `delete.topic.enable=false`.
    #[error("Topic deletion is disabled.")]
    Disabled,
    /// No topic of this name.
    #[error("This server does not host this topic-partition.")]
    UnknownTopic,
    /// No topic of this id.
    #[error("This server does not host this topic ID.")]
    UnknownTopicId,
    /// The metadata store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The deletion is recorded, but not done yet.
    #[error("The request timed out.")]
    TimedOut,
}

/// Topics to grow.
#[derive(Debug)]
pub struct CreatePartitions {
    /// The topics.
    pub topics: Vec<GrowTopic>,
    /// Whether to do it.
    pub mode: Mode,
    /// For whom.
    pub client: Client,
}

/// A topic to grow, as wished.
#[derive(Clone, Debug)]
pub struct GrowTopic {
    /// Its name.
    pub name: String,
    /// Number of partitions it shall have.
    pub count: i32,
    /// Replicas of the new ones; `None` leaves the choice to the broker.
    pub assignment: Option<Vec<Vec<BrokerId>>>,
}

/// Why a topic did not grow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreatePartitionsError {
    /// The request names it twice.
    #[error("Duplicate topic in request.")]
    Duplicate,
    /// It is marked for deletion.
    #[error("The topic is queued for deletion.")]
    BeingDeleted,
    /// There is none.
    #[error("The topic '{0}' does not exist.")]
    Unknown(String),
    /// Its replicas are being moved.
    #[error("A partition reassignment is in progress for the topic '{0}'.")]
    Reassigning(String),
    /// Not more than it has.
    #[error("Topic currently has {current} partitions, which is not lower than the requested {count}.")]
    Count {
        /// What it has.
        current: usize,
        /// The wish.
        count: i32,
    },
    /// More partitions than one request may make.
    #[error("Excessively large number of partitions per request: {0}")]
    TooMany(i32),
    /// Another number of entries or replicas, doubled or unknown brokers.
    #[error("The assignment does not fit: number of entries or replicas, or duplicate or unknown brokers.")]
    Assignment,
    /// More replicas than live brokers.
    #[error("Replication factor: {wanted} larger than available brokers: {live}.")]
    ReplicationFactor {
        /// Replicas of partition 0.
        wanted: usize,
        /// Brokers that live.
        live: usize,
    },
    /// Some brokers have a rack, others not.
    #[error("Not all brokers have rack information for replica rack aware assignment.")]
    Racks,
    /// Its node is malformed.
    #[error("The metadata of the topic is malformed.")]
    Malformed,
    /// The metadata store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The partitions are created, but do not all have leaders yet.
    #[error("The request timed out.")]
    TimedOut,
}

/// Producer ids that nobody else ever gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIdRange {
    /// The first.
    pub start: i64,
    /// How many.
    pub count: i64,
}

/// Why no producer ids were handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// All have been used.
    #[error("producer ids are exhausted")]
    Exhausted,
    /// The node of the last block is malformed: guessing could hand out an id twice.
    #[error("node of the last block of producer ids is malformed")]
    Malformed,
    /// The metadata store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

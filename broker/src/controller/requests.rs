//! The controller's three requests to brokers as domain structs (controller.md 16), and their answers. The same structs
//! travel by function call to this broker and, translated by `handlers`, over the wire to others. Pure data.

use protocol::error::ErrorCode;
use protocol::types::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicId, TopicPartition,
};

use crate::store::znodes::BrokerEndpoint;

/// Who sends a request, and to which life of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The controller.
    pub controller: BrokerId,
    /// Its generation: receivers refuse older ones.
    pub controller_epoch: ControllerEpoch,
    /// Registration of the receiver that is meant (KIP-380).
    pub broker_epoch: BrokerEpoch,
}

/// A registered broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveBroker {
    /// Its id.
    pub id: BrokerId,
    /// Its registration.
    pub epoch: BrokerEpoch,
    /// Where it listens.
    pub endpoints: Vec<BrokerEndpoint>,
    /// Its rack.
    pub rack: Option<String>,
}

/// Leader and ISR of a partition, and who decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, or `BrokerId::NONE`.
    pub leader: BrokerId,
    /// Its generation.
    pub leader_epoch: LeaderEpoch,
    /// In-sync replicas, in order.
    pub isr: Vec<BrokerId>,
    /// Whether the leader was elected uncleanly and has not recovered.
    pub recovering: bool,
    /// The controller that decided.
    pub controller_epoch: ControllerEpoch,
    /// Version of leader and ISR: data version of the state znode.
    pub partition_epoch: PartitionEpoch,
}

/// Become leader or follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderAndIsr {
    /// Sender and receiver.
    pub header: Header,
    /// The partitions, all with a replica on the receiver.
    pub partitions: Vec<LeaderAndIsrPartition>,
    /// The leaders mentioned that are registered.
    pub live_leaders: Vec<LiveBroker>,
}

/// One partition of a [`LeaderAndIsr`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderAndIsrPartition {
    /// The partition.
    pub partition: TopicPartition,
    /// Id of its topic.
    pub topic_id: TopicId,
    /// Leader and ISR.
    pub leadership: Leadership,
    /// Assigned replicas.
    pub replicas: Vec<BrokerId>,
    /// Replicas that a reassignment adds.
    pub adding: Vec<BrokerId>,
    /// Replicas that a reassignment removes.
    pub removing: Vec<BrokerId>,
    /// Whether the replica is new, so that it may be created although a directory is offline.
    pub is_new: bool,
}

/// The cluster as clients shall see it. Incremental in partitions, complete in brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateMetadata {
    /// Sender and receiver.
    pub header: Header,
    /// All registered brokers.
    pub brokers: Vec<LiveBroker>,
    /// Changed partitions.
    pub partitions: Vec<MetadataPartition>,
}

/// One partition of an [`UpdateMetadata`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataPartition {
    /// The partition.
    pub partition: TopicPartition,
    /// Id of its topic.
    pub topic_id: TopicId,
    /// Leader and ISR; `None` when the partition is being deleted (leader -2 on the wire).
    pub leadership: Option<Leadership>,
    /// Assigned replicas.
    pub replicas: Vec<BrokerId>,
    /// Replicas on dead brokers or failed directories.
    pub offline: Vec<BrokerId>,
}

/// Stop serving replicas, and delete them if told so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopReplica {
    /// Sender and receiver.
    pub header: Header,
    /// The partitions.
    pub partitions: Vec<StopReplicaPartition>,
}

/// Which leader epochs a [`StopReplica`] stops (KIP-570).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopEpoch {
    /// Any: the topic is being deleted (-2 on the wire).
    Deleting,
    /// Any: the controller knows none (-1 on the wire).
    Unknown,
    /// This one and older.
    UpTo(LeaderEpoch),
}

/// One partition of a [`StopReplica`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopReplicaPartition {
    /// The partition.
    pub partition: TopicPartition,
    /// Id of its topic; zero if unknown (the wire does not carry it).
    pub topic_id: TopicId,
    /// Which epochs are stopped.
    pub leader_epoch: StopEpoch,
    /// Whether the log goes too.
    pub delete: bool,
}

/// A request of the controller to a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// Roles.
    LeaderAndIsr(LeaderAndIsr),
    /// What clients see.
    UpdateMetadata(UpdateMetadata),
    /// The end of replicas.
    StopReplica(StopReplica),
}

/// A broker's answer. Partitions are those of the request, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlReply {
    /// To [`LeaderAndIsr`].
    LeaderAndIsr {
        /// Of the whole request.
        error: ErrorCode,
        /// Of each partition; empty after an error of the whole.
        partitions: Vec<(TopicPartition, ErrorCode)>,
    },
    /// To [`UpdateMetadata`].
    UpdateMetadata {
        /// Of the whole request.
        error: ErrorCode,
    },
    /// To [`StopReplica`].
    StopReplica {
        /// Of the whole request.
        error: ErrorCode,
        /// Of each partition, with the delete flag of its request: only answers to deletions advance a deletion
        /// (KAFKA-9946). Complete also after an error of the whole.
        partitions: Vec<(TopicPartition, DeleteFlag, ErrorCode)>,
    },
}

/// Whether a stopped replica was to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteFlag {
    /// Its log stays.
    Keep,
    /// Its log goes.
    Delete,
}

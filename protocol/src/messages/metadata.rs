//! Metadata (3): brokers, topics, partitions and their leaders (protocol.md 3.2).

use crate::codec::Str;
use crate::types::TopicId;

message! {
    /// Asks for brokers and topics.
    pub struct MetadataRequest<'a>(Metadata) {
        /// The topics asked for; see [`MetadataRequest::is_all_topics`].
        0+ topics: Option<Vec<MetadataRequestTopic<'a>>>, null 1;
        /// Whether missing topics may be created.
        4+ allow_auto_topic_creation: bool = true;
        /// Whether to fill `cluster_authorized_operations`.
        8-10 include_cluster_authorized_operations: bool;
        /// Whether to fill `topic_authorized_operations`.
        8+ include_topic_authorized_operations: bool;
    }

    /// One topic asked for, by id (version 12 and later) or by name.
    pub struct MetadataRequestTopic<'a> {
        /// Id of the topic, zero when asked by name.
        10+ topic_id: TopicId, ignorable;
        /// Name of the topic, null when asked by id.
        0+ name: Option<Str<'a>>, null 10;
    }

    /// Answers [`MetadataRequest`].
    pub struct MetadataResponse<'a>(Metadata) {
        /// Delay put on the client, in milliseconds.
        3+ throttle_time_ms: i32, ignorable;
        /// The live brokers.
        0+ brokers: Vec<MetadataResponseBroker<'a>>;
        /// Id of the cluster.
        2+ cluster_id: Option<Str<'a>> = None, null 2, ignorable;
        /// Id of the controller; -1: none known.
        1+ controller_id: i32 = -1, ignorable;
        /// The topics.
        0+ topics: Vec<MetadataResponseTopic<'a>>;
        /// Bits of what the client may do with the cluster; the default: not asked.
        8-10 cluster_authorized_operations: i32 = i32::MIN;
        /// Top-level error (KIP-1102).
        13+ error_code: i16, ignorable;
    }

    /// One live broker.
    pub struct MetadataResponseBroker<'a> {
        /// Id of the broker.
        0+ node_id: i32;
        /// Host of the listener that the request came in on.
        0+ host: Str<'a>;
        /// Port of that listener.
        0+ port: i32;
        /// Rack of the broker.
        1+ rack: Option<Str<'a>> = None, null 1, ignorable;
    }

    /// One topic.
    pub struct MetadataResponseTopic<'a> {
        /// Error of the topic.
        0+ error_code: i16;
        /// Name of the topic; null when asked by an id that is not known.
        0+ name: Option<Str<'a>>, null 12;
        /// Id of the topic; zero when there is none.
        10+ topic_id: TopicId, ignorable;
        /// Whether the topic is Kafka's own.
        1+ is_internal: bool, ignorable;
        /// The partitions.
        0+ partitions: Vec<MetadataResponsePartition>;
        /// Bits of what the client may do with the topic; the default: not asked.
        8+ topic_authorized_operations: i32 = i32::MIN;
    }

    /// One partition.
    pub struct MetadataResponsePartition {
        /// Error of the partition.
        0+ error_code: i16;
        /// Index of the partition.
        0+ partition_index: i32;
        /// Id of the leader; -1: none.
        0+ leader_id: i32;
        /// Epoch of the leader; -1: not known.
        7+ leader_epoch: i32 = -1, ignorable;
        /// Brokers that hold the partition.
        0+ replica_nodes: Vec<i32>;
        /// Brokers that are in sync.
        0+ isr_nodes: Vec<i32>;
        /// Brokers whose replica is offline.
        5+ offline_replicas: Vec<i32>, ignorable;
    }
}

impl MetadataRequest<'_> {
    /// Whether all topics are asked for: null, or in version 0, which has no null, an empty list.
    pub fn is_all_topics(&self, version: i16) -> bool {
        self.topics.as_ref().is_none_or(|topics| version == 0 && topics.is_empty())
    }
}

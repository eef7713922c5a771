//! InitProducerId (22) and DescribeProducers (61): idempotent producers (KIP-98, KIP-664).

use crate::codec::{SharedList, Str};

message! {
    /// Asks for a producer id.
    pub struct InitProducerIdRequest<'a>(InitProducerId) {
        /// The transactional id; null: an idempotent producer without transactions.
        0+ transactional_id: Option<Str<'a>> = None;
        /// Milliseconds after which an idle transaction is aborted.
        0+ transaction_timeout_ms: i32;
        /// Id that the producer has; -1: none.
        3+ producer_id: i64 = -1;
        /// Epoch that the producer has; -1: none.
        3+ producer_epoch: i16 = -1;
    }

    /// Answers [`InitProducerIdRequest`].
    pub struct InitProducerIdResponse(InitProducerId) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32, ignorable;
        /// Top-level error.
        0+ error_code: i16;
        /// The id; -1 on error.
        0+ producer_id: i64 = -1;
        /// The epoch.
        0+ producer_epoch: i16;
    }

    /// Asks who produces to partitions.
    pub struct DescribeProducersRequest<'a>(DescribeProducers) {
        /// The topics.
        0+ topics: Vec<TopicRequest<'a>>;
    }

    /// One topic of a [`DescribeProducersRequest`].
    pub struct TopicRequest<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// Indexes of the partitions.
        0+ partition_indexes: Vec<i32>;
    }

    /// Answers [`DescribeProducersRequest`].
    pub struct DescribeProducersResponse<'a>(DescribeProducers) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32;
        /// The topics.
        0+ topics: Vec<TopicResponse<'a>>;
    }

    /// One topic of a [`DescribeProducersResponse`].
    pub struct TopicResponse<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<PartitionResponse<'a>>;
    }

    /// One partition of a [`DescribeProducersResponse`].
    pub struct PartitionResponse<'a> {
        /// Index of the partition.
        0+ partition_index: i32;
        /// Error of the partition.
        0+ error_code: i16;
        /// Text to the error.
        0+ error_message: Option<Str<'a>> = None;
        /// The producers.
        0+ active_producers: SharedList<ProducerState>;
    }

    /// One producer.
    pub struct ProducerState {
        /// Id of the producer.
        0+ producer_id: i64;
        /// Epoch of the producer; 32 bits here.
        0+ producer_epoch: i32;
        /// Sequence of its last record; -1: none.
        0+ last_sequence: i32 = -1;
        /// Milliseconds since 1970 of its last batch; -1: none.
        0+ last_timestamp: i64 = -1;
        /// Epoch of its transaction coordinator.
        0+ coordinator_epoch: i32;
        /// First offset of its open transaction; -1: none.
        0+ current_txn_start_offset: i64 = -1;
    }
}

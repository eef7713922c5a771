//! CreateTopics (19), DeleteTopics (20) and CreatePartitions (37).

use crate::codec::{SharedList, Str};
use crate::types::TopicId;

message! {
    /// Asks to create topics.
    pub struct CreateTopicsRequest<'a>(CreateTopics) {
        /// The topics.
        0+ topics: Vec<CreatableTopic<'a>>;
        /// Milliseconds to wait until the topics are there.
        0+ timeout_ms: i32 = 60_000;
        /// Whether only to check.
        1+ validate_only: bool;
    }

    /// One topic to create.
    pub struct CreatableTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// Number of partitions; -1: the broker's default, or what `assignments` say.
        0+ num_partitions: i32;
        /// Replicas of each partition; -1: the broker's default, or what `assignments` say.
        0+ replication_factor: i16;
        /// Brokers for each partition; empty: the broker chooses.
        0+ assignments: Vec<CreatableReplicaAssignment>;
        /// Configs to set.
        0+ configs: Vec<CreatableTopicConfig<'a>>;
    }

    /// The brokers of one partition.
    pub struct CreatableReplicaAssignment {
        /// Index of the partition.
        0+ partition_index: i32;
        /// The brokers, preferred leader first.
        0+ broker_ids: Vec<i32>;
    }

    /// One config to set.
    pub struct CreatableTopicConfig<'a> {
        /// Name of the config.
        0+ name: Str<'a>;
        /// Value of the config.
        0+ value: Option<Str<'a>>;
    }

    /// Answers [`CreateTopicsRequest`].
    pub struct CreateTopicsResponse<'a>(CreateTopics) {
        /// Delay put on the client, in milliseconds.
        2+ throttle_time_ms: i32, ignorable;
        /// The topics.
        0+ topics: Vec<CreatableTopicResult<'a>>;
    }

    /// What became of one topic.
    pub struct CreatableTopicResult<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// Id of the topic.
        7+ topic_id: TopicId, ignorable;
        /// Error of the topic.
        0+ error_code: i16;
        /// Text to the error.
        1+ error_message: Option<Str<'a>> = None, ignorable;
        /// Why the configs are not told.
        5+ topic_config_error_code: i16, tag 0, ignorable;
        /// Number of partitions.
        5+ num_partitions: i32 = -1, ignorable;
        /// Replicas of each partition.
        5+ replication_factor: i16 = -1, ignorable;
        /// Configs of the topic; null when they may not be told.
        5+ configs: Option<SharedList<CreatableTopicConfigs<'a>>>, ignorable;
    }

    /// One config of a created topic.
    pub struct CreatableTopicConfigs<'a> {
        /// Name of the config.
        5+ name: Str<'a>;
        /// Value of the config; null when it is secret.
        5+ value: Option<Str<'a>>;
        /// Whether clients cannot change it.
        5+ read_only: bool;
        /// Where the value comes from.
        5+ config_source: i8 = -1, ignorable;
        /// Whether the value is secret.
        5+ is_sensitive: bool;
    }

    /// Asks to delete topics.
    pub struct DeleteTopicsRequest<'a>(DeleteTopics) {
        /// The topics, by name or id.
        6+ topics: Vec<DeleteTopicState<'a>>;
        /// The topics by name.
        0-5 topic_names: Vec<Str<'a>>, ignorable;
        /// Milliseconds to wait until the topics are gone.
        0+ timeout_ms: i32;
    }

    /// One topic to delete.
    pub struct DeleteTopicState<'a> {
        /// Name of the topic, null when named by id.
        6+ name: Option<Str<'a>> = None;
        /// Id of the topic, zero when named by name.
        6+ topic_id: TopicId;
    }

    /// Answers [`DeleteTopicsRequest`].
    pub struct DeleteTopicsResponse<'a>(DeleteTopics) {
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// The topics.
        0+ responses: Vec<DeletableTopicResult<'a>>;
    }

    /// What became of one topic.
    pub struct DeletableTopicResult<'a> {
        /// Name of the topic.
        0+ name: Option<Str<'a>>, null 6;
        /// Id of the topic.
        6+ topic_id: TopicId, ignorable;
        /// Error of the topic.
        0+ error_code: i16;
        /// Text to the error.
        5+ error_message: Option<Str<'a>> = None, ignorable;
    }

    /// Asks for more partitions.
    pub struct CreatePartitionsRequest<'a>(CreatePartitions) {
        /// The topics.
        0+ topics: Vec<CreatePartitionsTopic<'a>>;
        /// Milliseconds to wait until the partitions are there.
        0+ timeout_ms: i32;
        /// Whether only to check.
        0+ validate_only: bool;
    }

    /// One topic to grow.
    pub struct CreatePartitionsTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// Number of partitions to reach.
        0+ count: i32;
        /// Brokers of the new partitions; null: the broker chooses.
        0+ assignments: Option<Vec<CreatePartitionsAssignment>>;
    }

    /// The brokers of one new partition.
    pub struct CreatePartitionsAssignment {
        /// The brokers, preferred leader first.
        0+ broker_ids: Vec<i32>;
    }

    /// Answers [`CreatePartitionsRequest`].
    pub struct CreatePartitionsResponse<'a>(CreatePartitions) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32;
        /// The topics.
        0+ results: Vec<CreatePartitionsTopicResult<'a>>;
    }

    /// What became of one topic.
    pub struct CreatePartitionsTopicResult<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// Error of the topic.
        0+ error_code: i16;
        /// Text to the error.
        0+ error_message: Option<Str<'a>> = None;
    }
}

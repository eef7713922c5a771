//! DescribeCluster (60, KIP-700), DescribeLogDirs (35) and AlterReplicaLogDirs (34, KIP-113).

use crate::codec::Str;

message! {
    /// Asks for the brokers.
    pub struct DescribeClusterRequest(DescribeCluster) {
        /// Whether to fill `cluster_authorized_operations`.
        0+ include_cluster_authorized_operations: bool;
        /// 1: brokers, 2: controllers.
        1+ endpoint_type: i8 = 1;
        /// Whether to tell fenced brokers too (KIP-1073).
        2+ include_fenced_brokers: bool;
    }

    /// Answers [`DescribeClusterRequest`].
    pub struct DescribeClusterResponse<'a>(DescribeCluster) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32;
        /// Top-level error.
        0+ error_code: i16;
        /// Text to the error.
        0+ error_message: Option<Str<'a>> = None;
        /// 1: brokers, 2: controllers.
        1+ endpoint_type: i8 = 1;
        /// Id of the cluster.
        0+ cluster_id: Str<'a>;
        /// Id of the controller; -1: none known.
        0+ controller_id: i32 = -1;
        /// The brokers.
        0+ brokers: Vec<DescribeClusterBroker<'a>>;
        /// Bits of what the client may do with the cluster; the default: not asked.
        0+ cluster_authorized_operations: i32 = i32::MIN;
    }

    /// One broker.
    pub struct DescribeClusterBroker<'a> {
        /// Id of the broker.
        0+ broker_id: i32;
        /// Host of the listener that the request came in on.
        0+ host: Str<'a>;
        /// Port of that listener.
        0+ port: i32;
        /// Rack of the broker.
        0+ rack: Option<Str<'a>> = None;
        /// Whether the broker is fenced.
        2+ is_fenced: bool;
    }

    /// Asks for replicas of this broker to be moved to other log directories.
    pub struct AlterReplicaLogDirsRequest<'a>(AlterReplicaLogDirs) {
        /// The directories, and what is to be in them.
        0+ dirs: Vec<AlterReplicaLogDir<'a>>;
    }

    /// One directory of an [`AlterReplicaLogDirsRequest`].
    pub struct AlterReplicaLogDir<'a> {
        /// Absolute path of the directory.
        0+ path: Str<'a>;
        /// The topics.
        0+ topics: Vec<AlterReplicaLogDirTopic<'a>>;
    }

    /// One topic of an [`AlterReplicaLogDir`].
    pub struct AlterReplicaLogDirTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// Indexes of the partitions.
        0+ partitions: Vec<i32>;
    }

    /// Answers [`AlterReplicaLogDirsRequest`].
    pub struct AlterReplicaLogDirsResponse<'a>(AlterReplicaLogDirs) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32;
        /// The topics.
        0+ results: Vec<AlterReplicaLogDirsTopicResult<'a>>;
    }

    /// What became of one topic.
    pub struct AlterReplicaLogDirsTopicResult<'a> {
        /// Name of the topic.
        0+ topic_name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<AlterReplicaLogDirsPartitionResult>;
    }

    /// What became of one partition.
    pub struct AlterReplicaLogDirsPartitionResult {
        /// Index of the partition.
        0+ partition_index: i32;
        /// Error of the partition.
        0+ error_code: i16;
    }

    /// Asks for sizes of partitions on disk.
    pub struct DescribeLogDirsRequest<'a>(DescribeLogDirs) {
        /// The topics; null: all.
        0+ topics: Option<Vec<DescribableLogDirTopic<'a>>>;
    }

    /// One topic of a [`DescribeLogDirsRequest`].
    pub struct DescribableLogDirTopic<'a> {
        /// Name of the topic.
        0+ topic: Str<'a>;
        /// Indexes of the partitions.
        0+ partitions: Vec<i32>;
    }

    /// Answers [`DescribeLogDirsRequest`].
    pub struct DescribeLogDirsResponse<'a>(DescribeLogDirs) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32;
        /// Top-level error.
        3+ error_code: i16, ignorable;
        /// The log directories.
        0+ results: Vec<DescribeLogDirsResult<'a>>;
    }

    /// One log directory.
    pub struct DescribeLogDirsResult<'a> {
        /// Error of the directory.
        0+ error_code: i16;
        /// Absolute path of the directory.
        0+ log_dir: Str<'a>;
        /// The topics in it.
        0+ topics: Vec<DescribeLogDirsTopic<'a>>;
        /// Bytes of its volume; -1: not known.
        4+ total_bytes: i64 = -1, ignorable;
        /// Bytes free in its volume; -1: not known.
        4+ usable_bytes: i64 = -1, ignorable;
    }

    /// One topic in a log directory.
    pub struct DescribeLogDirsTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<DescribeLogDirsPartition>;
    }

    /// One partition in a log directory.
    pub struct DescribeLogDirsPartition {
        /// Index of the partition.
        0+ partition_index: i32;
        /// Bytes of its segments.
        0+ partition_size: i64;
        /// Records by which it lags.
        0+ offset_lag: i64;
        /// Whether it is a copy that will replace the partition.
        0+ is_future_key: bool;
    }
}

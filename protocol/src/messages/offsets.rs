//! ListOffsets (2) and DeleteRecords (21): where a log starts, ends and stands at a time (protocol.md 3.5).

use crate::codec::{SharedList, Str};

message! {
    /// Asks for offsets by timestamp.
    pub struct ListOffsetsRequest<'a>(ListOffsets) {
        /// Id of the asking broker; -1: a consumer.
        0+ replica_id: i32;
        /// 0: read uncommitted, 1: read committed.
        2+ isolation_level: i8;
        /// The topics.
        0+ topics: Vec<ListOffsetsTopic<'a>>;
    }

    /// One topic of a [`ListOffsetsRequest`].
    pub struct ListOffsetsTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<ListOffsetsPartition>;
    }

    /// One partition of a [`ListOffsetsRequest`].
    pub struct ListOffsetsPartition {
        /// Index of the partition.
        0+ partition_index: i32;
        /// Leader epoch that the client knows; -1: do not check.
        4+ current_leader_epoch: i32 = -1, ignorable;
        /// Milliseconds since 1970, or one of the negative names of protocol.md 3.5.
        0+ timestamp: i64;
        /// How many offsets to answer with.
        0-0 max_num_offsets: i32 = 1;
    }

    /// Answers [`ListOffsetsRequest`].
    pub struct ListOffsetsResponse<'a>(ListOffsets) {
        /// Delay put on the client, in milliseconds.
        2+ throttle_time_ms: i32, ignorable;
        /// The topics.
        0+ topics: Vec<ListOffsetsTopicResponse<'a>>;
    }

    /// One topic of a [`ListOffsetsResponse`].
    pub struct ListOffsetsTopicResponse<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<ListOffsetsPartitionResponse>;
    }

    /// One partition of a [`ListOffsetsResponse`].
    pub struct ListOffsetsPartitionResponse {
        /// Index of the partition.
        0+ partition_index: i32;
        /// Error of the partition.
        0+ error_code: i16;
        /// Offsets, highest first.
        0-0 old_style_offsets: SharedList<i64>;
        /// Timestamp of the record found; -1: none.
        1+ timestamp: i64 = -1;
        /// Offset found; -1: none.
        1+ offset: i64 = -1;
        /// Leader epoch of the record found; -1: none.
        4+ leader_epoch: i32 = -1, ignorable;
    }

    /// Asks to move log start offsets up.
    pub struct DeleteRecordsRequest<'a>(DeleteRecords) {
        /// The topics.
        0+ topics: Vec<DeleteRecordsTopic<'a>>;
        /// Milliseconds to wait for the replicas.
        0+ timeout_ms: i32;
    }

    /// One topic of a [`DeleteRecordsRequest`].
    pub struct DeleteRecordsTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<DeleteRecordsPartition>;
    }

    /// One partition of a [`DeleteRecordsRequest`].
    pub struct DeleteRecordsPartition {
        /// Index of the partition.
        0+ partition_index: i32;
        /// First offset to keep; -1: the high watermark.
        0+ offset: i64;
    }

    /// Answers [`DeleteRecordsRequest`].
    pub struct DeleteRecordsResponse<'a>(DeleteRecords) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32, ignorable;
        /// The topics.
        0+ topics: Vec<DeleteRecordsTopicResult<'a>>;
    }

    /// One topic of a [`DeleteRecordsResponse`].
    pub struct DeleteRecordsTopicResult<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<DeleteRecordsPartitionResult>;
    }

    /// One partition of a [`DeleteRecordsResponse`].
    pub struct DeleteRecordsPartitionResult {
        /// Index of the partition.
        0+ partition_index: i32;
        /// The log start offset now; -1 on error.
        0+ low_watermark: i64;
        /// Error of the partition.
        0+ error_code: i16;
    }
}

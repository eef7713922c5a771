//! OffsetForLeaderEpoch (23): where a leader epoch ends (KIP-101, KIP-320).

use crate::codec::Str;

message! {
    /// Asks where leader epochs end.
    pub struct OffsetForLeaderEpochRequest<'a>(OffsetForLeaderEpoch) {
        /// Id of the asking broker; -1: a consumer, -2: not said.
        3+ replica_id: i32 = -2, ignorable;
        /// The topics.
        0+ topics: Vec<OffsetForLeaderTopic<'a>>;
    }

    /// One topic asked about.
    pub struct OffsetForLeaderTopic<'a> {
        /// Name of the topic.
        0+ topic: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<OffsetForLeaderPartition>;
    }

    /// One partition asked about.
    pub struct OffsetForLeaderPartition {
        /// Index of the partition.
        0+ partition: i32;
        /// Leader epoch that the client knows; -1: do not check.
        2+ current_leader_epoch: i32 = -1, ignorable;
        /// The epoch whose end is asked for.
        0+ leader_epoch: i32;
    }

    /// Answers [`OffsetForLeaderEpochRequest`].
    pub struct OffsetForLeaderEpochResponse<'a>(OffsetForLeaderEpoch) {
        /// Delay put on the client, in milliseconds.
        2+ throttle_time_ms: i32, ignorable;
        /// The topics.
        0+ topics: Vec<OffsetForLeaderTopicResult<'a>>;
    }

    /// One topic answered.
    pub struct OffsetForLeaderTopicResult<'a> {
        /// Name of the topic.
        0+ topic: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<EpochEndOffset>;
    }

    /// One partition answered.
    pub struct EpochEndOffset {
        /// Error of the partition.
        0+ error_code: i16;
        /// Index of the partition.
        0+ partition: i32;
        /// The largest epoch up to the one asked for; -1: none.
        1+ leader_epoch: i32 = -1, ignorable;
        /// First offset behind that epoch; -1: none.
        0+ end_offset: i64 = -1;
    }
}

//! OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47): what groups have read (coordinators.md 2.9, 2.11, 2.12).

use crate::codec::{SharedList, Str};

message! {
    /// Asks to keep offsets.
    pub struct OffsetCommitRequest<'a>(OffsetCommit) {
        /// The group.
        0+ group_id: Str<'a>;
        /// Generation that the member knows, or its epoch (KIP-848); -1: nobody's offsets.
        1+ generation_id_or_member_epoch: i32 = -1, ignorable;
        /// The member; empty for nobody's offsets.
        1+ member_id: Str<'a>, ignorable;
        /// Name that a static member gave itself (KIP-345).
        7+ group_instance_id: Option<Str<'a>> = None;
        /// Milliseconds after which the offsets expire; -1: the broker decides.
        2-4 retention_time_ms: i64 = -1, ignorable;
        /// The topics.
        0+ topics: Vec<OffsetCommitRequestTopic<'a>>;
    }

    /// One topic of an [`OffsetCommitRequest`].
    pub struct OffsetCommitRequestTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<OffsetCommitRequestPartition<'a>>;
    }

    /// One partition of an [`OffsetCommitRequest`].
    pub struct OffsetCommitRequestPartition<'a> {
        /// Index of the partition.
        0+ partition_index: i32;
        /// The next offset to read.
        0+ committed_offset: i64;
        /// Leader epoch of the last record read; -1: not known.
        6+ committed_leader_epoch: i32 = -1, ignorable;
        /// Milliseconds since 1970 of the commit; -1: the broker's clock.
        1-1 commit_timestamp: i64 = -1;
        /// What the client keeps beside the offset; null is the same as "".
        0+ committed_metadata: Option<Str<'a>>;
    }

    /// Answers [`OffsetCommitRequest`].
    pub struct OffsetCommitResponse<'a>(OffsetCommit) {
        /// Delay put on the client, in milliseconds.
        3+ throttle_time_ms: i32, ignorable;
        /// The topics.
        0+ topics: Vec<OffsetCommitResponseTopic<'a>>;
    }

    /// One topic of an [`OffsetCommitResponse`].
    pub struct OffsetCommitResponseTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<OffsetCommitResponsePartition>;
    }

    /// One partition of an [`OffsetCommitResponse`].
    pub struct OffsetCommitResponsePartition {
        /// Index of the partition.
        0+ partition_index: i32;
        /// Error of the partition.
        0+ error_code: i16;
    }

    /// Asks for offsets: those of one group up to version 7, of several from version 8 on (KIP-709).
    pub struct OffsetFetchRequest<'a>(OffsetFetch) {
        /// The group.
        0-7 group_id: Str<'a>;
        /// The topics; null: all that have an offset.
        0-7 topics: Option<Vec<OffsetFetchRequestTopic<'a>>>, null 2;
        /// The groups.
        8+ groups: Vec<OffsetFetchRequestGroup<'a>>;
        /// Whether an offset that a transaction may still change is refused (KIP-447).
        7+ require_stable: bool;
    }

    /// One topic of an [`OffsetFetchRequest`], whether it stands in a group or not: Kafka has two structs of the same
    /// fields.
    pub struct OffsetFetchRequestTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// Indexes of the partitions.
        0+ partition_indexes: Vec<i32>;
    }

    /// One group of an [`OffsetFetchRequest`].
    pub struct OffsetFetchRequestGroup<'a> {
        /// The group.
        8+ group_id: Str<'a>;
        /// The member, if it speaks the protocol of KIP-848.
        9+ member_id: Option<Str<'a>> = None, ignorable;
        /// The member's epoch, if it speaks the protocol of KIP-848; else -1.
        9+ member_epoch: i32 = -1, ignorable;
        /// The topics; null: all that have an offset.
        8+ topics: Option<Vec<OffsetFetchRequestTopic<'a>>>;
    }

    /// Answers [`OffsetFetchRequest`].
    pub struct OffsetFetchResponse<'a>(OffsetFetch) {
        /// Delay put on the client, in milliseconds.
        3+ throttle_time_ms: i32, ignorable;
        /// The topics.
        0-7 topics: Vec<OffsetFetchResponseTopic<'a>>;
        /// Error of the group. Versions 0 and 1 have none: each partition tells it.
        2-7 error_code: i16, ignorable;
        /// The groups, in the order of the request.
        8+ groups: Vec<OffsetFetchResponseGroup<'a>>;
    }

    /// One topic of an [`OffsetFetchResponse`], whether it stands in a group or not: Kafka has two structs of the same
    /// fields.
    pub struct OffsetFetchResponseTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: SharedList<OffsetFetchResponsePartition<'a>>;
    }

    /// One partition of an [`OffsetFetchResponse`].
    pub struct OffsetFetchResponsePartition<'a> {
        /// Index of the partition.
        0+ partition_index: i32;
        /// The next offset to read; -1: none is kept. The default is 0, as in Kafka's schema.
        0+ committed_offset: i64;
        /// Leader epoch of the last record read; -1: not known.
        5+ committed_leader_epoch: i32 = -1, ignorable;
        /// What the client keeps beside the offset.
        0+ metadata: Option<Str<'a>>;
        /// Error of the partition.
        0+ error_code: i16;
    }

    /// One group of an [`OffsetFetchResponse`].
    pub struct OffsetFetchResponseGroup<'a> {
        /// The group.
        8+ group_id: Str<'a>;
        /// The topics.
        8+ topics: SharedList<OffsetFetchResponseTopic<'a>>;
        /// Error of the group.
        8+ error_code: i16;
    }

    /// Asks to forget offsets (KIP-496).
    pub struct OffsetDeleteRequest<'a>(OffsetDelete) {
        /// The group.
        0+ group_id: Str<'a>;
        /// The topics.
        0+ topics: Vec<OffsetDeleteRequestTopic<'a>>;
    }

    /// One topic of an [`OffsetDeleteRequest`].
    pub struct OffsetDeleteRequestTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<OffsetDeleteRequestPartition>;
    }

    /// One partition of an [`OffsetDeleteRequest`].
    pub struct OffsetDeleteRequestPartition {
        /// Index of the partition.
        0+ partition_index: i32;
    }

    /// Answers [`OffsetDeleteRequest`].
    pub struct OffsetDeleteResponse<'a>(OffsetDelete) {
        /// Error of the group: there are then no topics.
        0+ error_code: i16;
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32, ignorable;
        /// The topics.
        0+ topics: Vec<OffsetDeleteResponseTopic<'a>>;
    }

    /// One topic of an [`OffsetDeleteResponse`].
    pub struct OffsetDeleteResponseTopic<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partitions: Vec<OffsetDeleteResponsePartition>;
    }

    /// One partition of an [`OffsetDeleteResponse`].
    pub struct OffsetDeleteResponsePartition {
        /// Index of the partition.
        0+ partition_index: i32;
        /// Error of the partition.
        0+ error_code: i16;
    }
}

//! Fetch (1): records on their way out. A request's partitions stand in one vector for all topics; a response is
//! written around records that stay where they are (C9).

use std::borrow::Cow;
use std::fmt;

use super::leaders::{LeaderIdAndEpoch, NodeEndpoint};
use crate::codec::{Cursor, Layout, Str, Wire, Writer};
use crate::error::DecodeError;
use crate::types::TopicId;

message! {
    /// Asks for records.
    pub struct FetchRequest<'a>(Fetch) {
        /// Id of the cluster, if the follower knows it.
        12+ cluster_id: Option<Str<'a>> = None, tag 0, ignorable;
        /// Id of the following broker; -1: a consumer. See [`FetchRequest::follower_id`].
        0-14 replica_id: i32 = -1;
        /// The following broker.
        15+ replica_state: ReplicaState, tag 1;
        /// Milliseconds to wait for `min_bytes`.
        0+ max_wait_ms: i32;
        /// Bytes that are worth an answer.
        0+ min_bytes: i32;
        /// Bytes of the whole answer; the first batch is sent even when it is larger (KIP-74).
        3+ max_bytes: i32 = i32::MAX, ignorable;
        /// 0: read uncommitted, 1: read committed.
        4+ isolation_level: i8, ignorable;
        /// The fetch session; 0: none (KIP-227).
        7+ session_id: i32, ignorable;
        /// Number of the request in its session; 0 opens one, -1 closes it.
        7+ session_epoch: i32 = -1, ignorable;
        /// The topics and partitions.
        0+ topics: FetchTopics<'a>;
        /// Partitions to take out of the session.
        7+ forgotten_topics_data: Vec<ForgottenTopic<'a>>;
        /// Rack of the consumer.
        11+ rack_id: Str<'a>, ignorable;
    }

    /// The broker that follows.
    pub struct ReplicaState {
        /// Id of the broker; -1: a consumer.
        0+ replica_id: i32 = -1;
        /// Epoch of the broker; -1: not known.
        0+ replica_epoch: i64 = -1;
    }

    /// One partition of a [`FetchRequest`].
    pub struct FetchPartition {
        /// Index of the partition.
        0+ partition: i32;
        /// Leader epoch that the client knows; -1: do not check.
        9+ current_leader_epoch: i32 = -1, ignorable;
        /// First offset wanted.
        0+ fetch_offset: i64;
        /// Leader epoch of the record before that; -1: none.
        12+ last_fetched_epoch: i32 = -1;
        /// First offset of the follower's log.
        5+ log_start_offset: i64 = -1, ignorable;
        /// Bytes of this partition.
        0+ partition_max_bytes: i32;
        /// Log directory of the follower (KIP-853).
        17+ replica_directory_id: TopicId, tag 0, ignorable;
    }

    /// Partitions of one topic to take out of the session.
    pub struct ForgottenTopic<'a> {
        /// Name of the topic.
        7-12 topic: Str<'a>, ignorable;
        /// Id of the topic.
        13+ topic_id: TopicId, ignorable;
        /// Indexes of the partitions.
        7+ partitions: Vec<i32>;
    }

    /// Answers [`FetchRequest`].
    pub struct FetchResponse<'a>(Fetch) {
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// Top-level error.
        7+ error_code: i16, ignorable;
        /// The fetch session; 0: none.
        7+ session_id: i32;
        /// The topics.
        0+ responses: Vec<FetchableTopicResponse<'a>>;
        /// Where the leaders listen that `current_leader` names (KIP-951).
        16+ node_endpoints: Vec<NodeEndpoint<'a>>, tag 0, ignorable;
    }

    /// One topic of a [`FetchResponse`].
    pub struct FetchableTopicResponse<'a> {
        /// Name of the topic.
        0-12 topic: Str<'a>, ignorable;
        /// Id of the topic.
        13+ topic_id: TopicId, ignorable;
        /// The partitions.
        0+ partitions: Vec<PartitionData<'a>>;
    }

    /// One partition of a [`FetchResponse`].
    pub struct PartitionData<'a> {
        /// Index of the partition.
        0+ partition_index: i32;
        /// Error of the partition.
        0+ error_code: i16;
        /// First offset that is not committed; -1 on error.
        0+ high_watermark: i64;
        /// First offset of an open transaction, or the high watermark; -1: not known.
        4+ last_stable_offset: i64 = -1, ignorable;
        /// First offset of the log; -1 on error.
        5+ log_start_offset: i64 = -1, ignorable;
        /// Where the follower's log leaves the leader's (KIP-595).
        12+ diverging_epoch: EpochEndOffset, tag 0;
        /// The leader, when it is another broker or epoch (KIP-951).
        12+ current_leader: LeaderIdAndEpoch, tag 1, ignorable;
        /// The snapshot to fetch; of KRaft's own topic only.
        12+ snapshot_id: SnapshotId, tag 2;
        /// Aborted transactions among the records; null for read uncommitted and on error.
        4+ aborted_transactions: Option<Vec<AbortedTransaction>> = None, ignorable;
        /// Broker from which to fetch instead; -1: none.
        11+ preferred_read_replica: i32 = -1;
        /// The batches.
        0+ records: FetchedRecords<'a>;
    }

    /// A leader epoch and where it ends.
    pub struct EpochEndOffset {
        /// The epoch; -1: none.
        0+ epoch: i32 = -1;
        /// First offset behind it; -1: none.
        0+ end_offset: i64 = -1;
    }

    /// Names a snapshot of KRaft.
    pub struct SnapshotId {
        /// First offset behind it; -1: none.
        0+ end_offset: i64 = -1;
        /// Its epoch; -1: none.
        0+ epoch: i32 = -1;
    }

    /// One aborted transaction.
    pub struct AbortedTransaction {
        /// Id of the producer.
        4+ producer_id: i64;
        /// First offset of the transaction.
        4+ first_offset: i64;
    }
}

impl FetchRequest<'_> {
    /// Id of the broker that follows, wherever the version has it; -1: a consumer.
    pub fn follower_id(&self, version: i16) -> i32 {
        if version < 15 { self.replica_id } else { self.replica_state.replica_id }
    }
}

/// The topics of a [`FetchRequest`]. All partitions share one vector: a consumer of many partitions costs two
/// allocations, however many topics it has.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FetchTopics<'a> {
    topics: Vec<FetchTopic<'a>>,
    partitions: Vec<FetchPartition>,
}

/// One topic of a [`FetchRequest`], without its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FetchTopic<'a> {
    topic: Str<'a>,
    topic_id: TopicId,
    partitions: usize,
}

impl<'a> FetchTopics<'a> {
    /// Appends a topic: by name up to version 12, by id from version 13 on.
    pub fn push(
        &mut self,
        topic: impl Into<Str<'a>>,
        topic_id: TopicId,
        partitions: impl IntoIterator<Item = FetchPartition>,
    ) {
        let before = self.partitions.len();
        self.partitions.extend(partitions);
        let partitions = self.partitions.len() - before;
        self.topics.push(FetchTopic { topic: topic.into(), topic_id, partitions });
    }

    /// Name, id and partitions of each topic, in the order of the request. The name is "" from version 13 on, the
    /// id zero up to version 12.
    pub fn iter(&self) -> impl Iterator<Item = (&str, TopicId, &[FetchPartition])> {
        let mut rest = self.partitions.as_slice();
        self.topics.iter().map(move |topic| {
            let (partitions, after) = rest.split_at_checked(topic.partitions).unwrap_or((rest, &[]));
            rest = after;
            (topic.topic.as_ref(), topic.topic_id, partitions)
        })
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.topics.len()
    }

    /// Whether there is no topic.
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Number of partitions of all topics.
    pub fn partition_count(&self) -> usize {
        self.partitions.len()
    }
}

impl fmt::Debug for FetchTopics<'_> {
    /// Each topic with its partitions, as if they were nested.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[derive(Debug)]
        #[expect(dead_code, reason = "they are printed")]
        struct FetchTopic<'a> {
            topic: &'a str,
            topic_id: TopicId,
            partitions: &'a [FetchPartition],
        }
        let nested =
            self.iter().map(|(topic, topic_id, partitions)| FetchTopic { topic, topic_id, partitions });
        f.debug_list().entries(nested).finish()
    }
}

/// First version that names topics by id.
const TOPIC_ID_FROM: i16 = 13;

/// Memory that a partition takes at most while the vector of all of them grows: the new room is up to twice as
/// large as needed, and the old one is freed only afterwards.
const PARTITION_MEMORY_BYTES: usize = 3 * size_of::<FetchPartition>();

impl<'a> Wire<'a> for FetchTopics<'a> {
    fn initial() -> Self {
        Self::default()
    }

    fn bytes_min(layout: Layout) -> usize {
        if layout.flexible { 1 } else { 4 }
    }

    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        let topics = cursor.length(layout.flexible)?.ok_or(DecodeError::BadLength(-1))?;
        cursor.room_for(topics, topic_bytes_min(layout), size_of::<FetchTopic>())?;
        let mut value = Self { topics: Vec::with_capacity(topics), partitions: Vec::new() };
        for _ in 0..topics {
            let (topic, topic_id) = if layout.version < TOPIC_ID_FROM {
                (Str::read(cursor, layout)?, TopicId::ZERO)
            } else {
                (Str::initial(), TopicId::read(cursor, layout)?)
            };
            let partitions = cursor.length(layout.flexible)?.ok_or(DecodeError::BadLength(-1))?;
            cursor.room_for(partitions, FetchPartition::bytes_min(layout), PARTITION_MEMORY_BYTES)?;
            value.partitions.reserve(partitions);
            for _ in 0..partitions {
                value.partitions.push(FetchPartition::read(cursor, layout)?);
            }
            if layout.flexible {
                cursor.tagged_fields(|_, _| Ok(false))?;
            }
            value.topics.push(FetchTopic { topic, topic_id, partitions });
        }
        Ok(value)
    }

    fn write(&self, writer: &mut Writer, layout: Layout) {
        writer.length(Some(self.topics.len()), layout.flexible);
        for (topic, topic_id, partitions) in self.iter() {
            if layout.version < TOPIC_ID_FROM {
                writer.nullable_string(Some(topic), layout.flexible);
            } else {
                topic_id.write(writer, layout);
            }
            writer.length(Some(partitions.len()), layout.flexible);
            for partition in partitions {
                partition.write(writer, layout);
            }
            if layout.flexible {
                writer.unsigned_varint(0);
            }
        }
    }
}

fn topic_bytes_min(layout: Layout) -> usize {
    let name = if layout.version < TOPIC_ID_FROM { Str::bytes_min(layout) } else { size_of::<TopicId>() };
    name + Vec::<FetchPartition>::bytes_min(layout) + usize::from(layout.flexible)
}

#[cfg(feature = "sample")]
impl crate::codec::Sample for FetchTopics<'_> {
    fn sample(sampler: &mut crate::codec::Sampler, layout: Layout) -> Self {
        let mut value = Self::default();
        let topics = Vec::<(Str, TopicId, Vec<FetchPartition>)>::sample(sampler, layout);
        for (topic, topic_id, partitions) in topics {
            if layout.version < TOPIC_ID_FROM {
                value.push(topic, TopicId::ZERO, partitions);
            } else {
                value.push("", topic_id, partitions);
            }
        }
        value
    }
}

/// Record batches in a Fetch response. On the wire they are never null: librdkafka fails on null (KAFKA-18646).
#[derive(Clone, Eq)]
pub enum FetchedRecords<'a> {
    /// So many bytes that the caller holds, possibly none: written as a foreign segment (see
    /// [`Writer::into_segments`]), in the order of the partitions.
    Held(usize),
    /// These bytes. What decoding yields; null is read as no bytes.
    Bytes(Cow<'a, [u8]>),
}

impl FetchedRecords<'_> {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Held(bytes) => *bytes,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for FetchedRecords<'_> {
    /// Their number of bytes; never their content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(bytes) => f.debug_tuple("Held").field(bytes).finish(),
            Self::Bytes(bytes) => f.debug_tuple("Bytes").field(&bytes.len()).finish(),
        }
    }
}

impl PartialEq for FetchedRecords<'_> {
    /// No records are no records, however they are said to be there.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(mine), Self::Bytes(theirs)) => mine == theirs,
            (Self::Held(mine), Self::Held(theirs)) => mine == theirs,
            (Self::Held(_), Self::Bytes(_)) | (Self::Bytes(_), Self::Held(_)) => {
                self.is_empty() && other.is_empty()
            }
        }
    }
}

impl<'a> Wire<'a> for FetchedRecords<'a> {
    fn initial() -> Self {
        Self::Held(0)
    }

    fn bytes_min(layout: Layout) -> usize {
        if layout.flexible { 1 } else { 4 }
    }

    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        let bytes = cursor.nullable_bytes(layout.flexible)?.unwrap_or_default();
        Ok(Self::Bytes(Cow::Borrowed(bytes)))
    }

    fn write(&self, writer: &mut Writer, layout: Layout) {
        writer.length(Some(self.len()), layout.flexible);
        match self {
            Self::Held(bytes) => writer.put_foreign(*bytes),
            Self::Bytes(bytes) => writer.put(bytes),
        }
    }
}

#[cfg(feature = "sample")]
impl crate::codec::Sample for FetchedRecords<'_> {
    fn sample(sampler: &mut crate::codec::Sampler, _: Layout) -> Self {
        Self::Bytes(Cow::Owned(sampler.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Segment;
    use crate::messages::Message;

    fn response(records: impl Fn(usize) -> FetchedRecords<'static>) -> FetchResponse<'static> {
        let partition = |partition_index, bytes| PartitionData {
            partition_index,
            high_watermark: 5,
            records: records(bytes),
            ..PartitionData::default()
        };
        let topic = |name: &'static str, partitions| FetchableTopicResponse {
            topic: name.into(),
            partitions,
            ..FetchableTopicResponse::default()
        };
        FetchResponse {
            session_id: 9,
            responses: vec![
                topic("a", vec![partition(0, 1000), partition(1, 0)]),
                topic("b", vec![partition(2, 70_000)]),
            ],
            ..FetchResponse::default()
        }
    }

    #[test]
    fn segments_around_held_records_are_the_bytes_of_the_whole_response() {
        for version in [7, 12] {
            let mut writer = Writer::new();
            response(|bytes| FetchedRecords::Bytes(vec![7; bytes].into())).encode(&mut writer, version);
            let whole = writer.into_bytes();
            let mut writer = Writer::new();
            response(FetchedRecords::Held).encode(&mut writer, version);
            let segments = writer.into_segments();
            assert_eq!(segments.bytes, whole.len());
            let mut sent = Vec::new();
            let mut foreign = Vec::new();
            for segment in segments.segments {
                match segment {
                    Segment::Bytes(bytes) => sent.extend_from_slice(&bytes),
                    Segment::Foreign(bytes) => {
                        foreign.push(bytes);
                        sent.resize(sent.len() + bytes, 7);
                    }
                }
            }
            assert_eq!(foreign, [1000, 70_000]);
            assert_eq!(sent, whole);
        }
    }

    #[test]
    fn records_are_never_null_on_the_wire() {
        let layout = Layout { version: 12, flexible: true };
        let mut writer = Writer::new();
        FetchedRecords::initial().write(&mut writer, layout);
        assert_eq!(&writer.into_bytes()[..], [1]);
        assert_eq!(FetchedRecords::read(&mut Cursor::new(&[0]), layout), Ok(FetchedRecords::Held(0)));
    }

    #[test]
    fn the_follower_stands_in_a_tag_from_version_15_on() {
        let mut request = FetchRequest { replica_id: 3, ..FetchRequest::default() };
        assert_eq!([request.follower_id(14), request.follower_id(15)], [3, -1]);
        request.replica_state.replica_id = 4;
        assert_eq!(request.follower_id(15), 4);
    }

    #[test]
    fn topics_keep_their_own_partitions() {
        let partition = |partition| FetchPartition { partition, ..FetchPartition::default() };
        let mut topics = FetchTopics::default();
        topics.push("a", TopicId::ZERO, [partition(1), partition(2)]);
        topics.push("b", TopicId::ZERO, []);
        topics.push("c", TopicId::ZERO, [partition(3)]);
        let seen: Vec<(&str, Vec<i32>)> = topics
            .iter()
            .map(|(name, _, partitions)| {
                (name, partitions.iter().map(|partition| partition.partition).collect())
            })
            .collect();
        assert_eq!(seen, [("a", vec![1, 2]), ("b", vec![]), ("c", vec![3])]);
        assert_eq!((topics.len(), topics.partition_count()), (3, 3));
    }
}

//! Produce (0): records on their way in. The records of a decoded request are slices of the frame that know where
//! they stand in it, so that the frame, once owned alone again, is cut into one piece per partition.

use std::fmt;
use std::ops::Range;

use bytes::{Buf, BytesMut};

use super::leaders::{LeaderIdAndEpoch, NodeEndpoint};
use crate::codec::{Cursor, Layout, Nullable, Str, Wire, Writer};
use crate::error::DecodeError;

message! {
    /// Asks to append records.
    pub struct ProduceRequest<'a>(Produce) {
        /// The transactional id; null: no transaction.
        3+ transactional_id: Option<Str<'a>> = None;
        /// 0: no answer, 1: the leader has it, -1: all in-sync replicas have it.
        0+ acks: i16;
        /// Milliseconds to wait for the replicas.
        0+ timeout_ms: i32;
        /// The topics.
        0+ topic_data: Vec<TopicProduceData<'a>>;
    }

    /// One topic of a [`ProduceRequest`].
    pub struct TopicProduceData<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partition_data: Vec<PartitionProduceData<'a>>;
    }

    /// One partition of a [`ProduceRequest`].
    pub struct PartitionProduceData<'a> {
        /// Index of the partition.
        0+ index: i32;
        /// The batches; null is treated like none.
        0+ records: Option<Records<'a>>;
    }

    /// Answers [`ProduceRequest`].
    pub struct ProduceResponse<'a>(Produce) {
        /// The topics.
        0+ responses: Vec<TopicProduceResponse<'a>>;
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// Where the leaders listen that `current_leader` names (KIP-951).
        10+ node_endpoints: Vec<NodeEndpoint<'a>>, tag 0, ignorable;
    }

    /// One topic of a [`ProduceResponse`].
    pub struct TopicProduceResponse<'a> {
        /// Name of the topic.
        0+ name: Str<'a>;
        /// The partitions.
        0+ partition_responses: Vec<PartitionProduceResponse<'a>>;
    }

    /// One partition of a [`ProduceResponse`].
    pub struct PartitionProduceResponse<'a> {
        /// Index of the partition.
        0+ index: i32;
        /// Error of the partition.
        0+ error_code: i16;
        /// Offset of the first record; -1 on error.
        0+ base_offset: i64;
        /// Milliseconds since 1970 that the broker gave the records; -1: they kept their own.
        2+ log_append_time_ms: i64 = -1, ignorable;
        /// First offset of the log; -1: not known.
        5+ log_start_offset: i64 = -1, ignorable;
        /// The records that are at fault (KIP-467).
        8+ record_errors: Vec<BatchIndexAndErrorMessage<'a>>, ignorable;
        /// Text to the error.
        8+ error_message: Option<Str<'a>> = None, ignorable;
        /// The leader, when it is another broker (KIP-951).
        10+ current_leader: LeaderIdAndEpoch, tag 0, ignorable;
    }

    /// One record that is at fault.
    pub struct BatchIndexAndErrorMessage<'a> {
        /// Index of the record in its batch.
        8+ batch_index: i32;
        /// What is wrong with it.
        8+ batch_index_error_message: Option<Str<'a>> = None;
    }
}

/// Record batches in a Produce request: bytes, and their place in the body that was decoded.
#[derive(Clone, Copy, Default, Eq)]
pub struct Records<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Records<'a> {
    /// Batches to be sent; their place is of no meaning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// The batches.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Where the batches stand in what the cursor was made from.
    pub fn range(&self) -> Range<usize> {
        self.position..self.position + self.bytes.len()
    }
}

impl fmt::Debug for Records<'_> {
    /// Their place and size; never their content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Records({:?})", self.range())
    }
}

impl PartialEq for Records<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<'a> Wire<'a> for Records<'a> {
    fn initial() -> Self {
        Self::default()
    }

    fn bytes_min(layout: Layout) -> usize {
        if layout.flexible { 1 } else { 4 }
    }

    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        Self::read_nullable(cursor, layout)?.ok_or(DecodeError::BadLength(-1))
    }

    fn write(&self, writer: &mut Writer, layout: Layout) {
        writer.nullable_bytes(Some(self.bytes), layout.flexible);
    }
}

impl<'a> Nullable<'a> for Records<'a> {
    fn read_nullable(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Option<Self>, DecodeError> {
        let bytes = cursor.nullable_bytes(layout.flexible)?;
        Ok(bytes.map(|bytes| Self { bytes, position: cursor.position() - bytes.len() }))
    }

    fn write_nullable(value: Option<&Self>, writer: &mut Writer, layout: Layout) {
        writer.nullable_bytes(value.map(|records| records.bytes), layout.flexible);
    }
}

#[cfg(feature = "sample")]
impl crate::codec::Sample for Records<'_> {
    fn sample(sampler: &mut crate::codec::Sampler, _: Layout) -> Self {
        Self::new(sampler.bytes().leak())
    }
}

/// Cuts the body of a Produce request into one piece per partition, without copying. The pieces are disjoint and can
/// be patched in place; the frame is freed with the last of them.
#[derive(Debug)]
pub struct RecordsSplitter {
    rest: BytesMut,
    position: usize,
}

impl RecordsSplitter {
    /// Splits `body`: what the cursor that decoded the request was made from.
    pub fn new(body: BytesMut) -> Self {
        Self { rest: body, position: 0 }
    }

    /// The bytes of `range`, which is a [`Records::range`]. Ranges come in the order of the request; some may be
    /// left out.
    ///
    /// # Panics
    /// When `range` begins before the end of an earlier one, or lies outside the body: neither comes of decoding.
    pub fn split(&mut self, range: Range<usize>) -> BytesMut {
        assert!(self.position <= range.start && range.start <= range.end, "ranges are split in order");
        self.rest.advance(range.start - self.position);
        self.position = range.end;
        self.rest.split_to(range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Message;

    fn request() -> ProduceRequest<'static> {
        let partition = |index, records: Option<&'static [u8]>| PartitionProduceData {
            index,
            records: records.map(Records::new),
        };
        let topic =
            |name: &'static str, partition_data| TopicProduceData { name: name.into(), partition_data };
        ProduceRequest {
            transactional_id: None,
            acks: -1,
            timeout_ms: 30_000,
            topic_data: vec![
                topic("a", vec![partition(0, Some(b"first")), partition(1, None)]),
                topic("b", vec![partition(7, Some(b"")), partition(9, Some(b"last"))]),
            ],
        }
    }

    #[test]
    fn the_records_of_each_partition_are_split_off_the_body() {
        for version in [3, 9] {
            let mut writer = Writer::new();
            request().encode(&mut writer, version);
            let body = writer.into_bytes();
            let memory = body.as_ptr_range();
            let decoded = ProduceRequest::decode(&mut Cursor::new(&body), version).unwrap();
            assert_eq!(decoded, request());
            let ranges: Vec<_> = decoded
                .topic_data
                .iter()
                .flat_map(|topic| &topic.partition_data)
                .filter_map(|partition| partition.records)
                .map(|records| records.range())
                .collect();
            let mut splitter = RecordsSplitter::new(body);
            let pieces: Vec<_> = ranges.into_iter().map(|range| splitter.split(range)).collect();
            assert_eq!(pieces, [&b"first"[..], b"", b"last"]);
            assert!(memory.contains(&pieces[0].as_ptr()) && memory.contains(&pieces[2].as_ptr()));
        }
    }

    #[test]
    #[should_panic(expected = "in order")]
    fn pieces_do_not_overlap() {
        let mut splitter = RecordsSplitter::new(BytesMut::from(&b"abcdef"[..]));
        splitter.split(2..4);
        splitter.split(3..5);
    }

    #[test]
    fn twelve_bytes_that_claim_four_billion_topics_are_refused() {
        let frame = [0, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(ProduceRequest::decode(&mut Cursor::new(&frame), 9).is_err());
    }
}

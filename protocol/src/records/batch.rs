//! A record batch of magic 2 as bytes (protocol.md 4.1, storage.md 2.1): a view that reads the header in place, a walk
//! over back-to-back batches, and the few fields a broker rewrites in place. Knows neither what a legal batch from a
//! client is ([`super::validate`]) nor how records are framed ([`super::record`]). Called by the log, the fetch path,
//! the validator and the builder.
//!
//! ```text
//! 0          8        12       16   17    21      23         27         35         43     51     53     57     61
//! base_offset|length  |leader  |mag.|crc  |attrib.|last      |base      |max       |prod. |prod. |base  |count |records
//! i64        |i32     |epoch   |i8  |u32  |i16    |offset    |timestamp |timestamp |id    |epoch |seq.  |i32   |...
//!            |         i32     |    |     |       |delta i32 |i64       |i64       |i64   |i16   |i32   |      |
//!                                          `------------------------- covered by the CRC ------------------------->
//! ```

use crate::records::compression::Codec;
use crate::records::crc;
use crate::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

/// Bytes of a magic-2 header, and the size of an empty batch.
pub const BATCH_HEADER_BYTES: usize = 61;
/// Bytes of offset and length, which the length field does not count; the same in every format.
pub const LOG_OVERHEAD_BYTES: usize = 12;
/// Bytes from which offset, size and magic of any format can be read.
pub const PREFIX_BYTES: usize = 17;
/// The record format we write.
pub const MAGIC_V2: i8 = 2;

/// The smallest length field Kafka's scanner accepts in any format (storage.md 2.1): a message of magic 0.
const LENGTH_MIN: i32 = 14;
const BASE_OFFSET: usize = 0;
const LENGTH: usize = 8;
const PARTITION_LEADER_EPOCH: usize = 12;
const MAGIC: usize = 16;
const CRC: usize = 17;
const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const BASE_TIMESTAMP: usize = 27;
const MAX_TIMESTAMP: usize = 35;
const PRODUCER_ID: usize = 43;
const PRODUCER_EPOCH: usize = 51;
const BASE_SEQUENCE: usize = 53;
const RECORD_COUNT: usize = 57;

/// Why bytes do not begin with a whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does. Not corruption at the end of a file or of a fetched buffer.
    #[error("the batch takes at least {needed} bytes, {left} are there")]
    Truncated {
        /// Bytes the batch takes at least.
        needed: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// The length field is below the smallest batch of its format; a run of zeros looks like this.
    #[error("length field {0} is below the smallest batch")]
    BadLength(i32),
    /// The batch is of another format than the one asked for.
    #[error("magic {0} is not the format expected here")]
    BadMagic(i8),
}

/// Which clock a batch's timestamps come from (KIP-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// Each record carries the time its producer gave it.
    CreateTime,
    /// Every record of the batch carries the batch's `max_timestamp`, the time the leader appended it.
    LogAppendTime,
}

/// The attribute bits of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes(i16);

impl Attributes {
    const CODEC_MASK: i16 = 0x07;
    const LOG_APPEND_TIME: i16 = 0x08;
    const TRANSACTIONAL: i16 = 0x10;
    const CONTROL: i16 = 0x20;
    const DELETE_HORIZON: i16 = 0x40;

    /// Wraps the bits as they are on the wire.
    pub const fn new(bits: i16) -> Self {
        Self(bits)
    }
    /// The bits as they are on the wire.
    pub const fn get(self) -> i16 {
        self.0
    }
    /// The codec id, 0 to 7; 5 to 7 name no codec.
    pub const fn codec_id(self) -> i16 {
        self.0 & Self::CODEC_MASK
    }
    /// The codec, `None` for the ids that name none.
    pub const fn codec(self) -> Option<Codec> {
        Codec::new(self.codec_id())
    }
    /// The timestamp type.
    pub const fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }
    /// Whether the records belong to a transaction.
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }
    /// Whether this is a control batch (a transaction marker).
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }
    /// Whether `base_timestamp` holds the delete horizon (KIP-534) instead of the first record's timestamp.
    pub const fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }
    /// Only the bits that have a meaning: what remains when a header is rewritten (protocol.md 4.1).
    #[must_use]
    pub const fn known(self) -> Self {
        Self(self.0 & 0x7f)
    }
    /// With another codec.
    #[must_use]
    pub const fn with_codec(self, codec: Codec) -> Self {
        Self((self.0 & !Self::CODEC_MASK) | codec.get())
    }
    /// With another timestamp type.
    #[must_use]
    pub const fn with_timestamp_type(self, timestamp_type: TimestampType) -> Self {
        match timestamp_type {
            TimestampType::CreateTime => Self(self.0 & !Self::LOG_APPEND_TIME),
            TimestampType::LogAppendTime => Self(self.0 | Self::LOG_APPEND_TIME),
        }
    }
    /// With the transactional bit set.
    #[must_use]
    pub const fn transactional(self) -> Self {
        Self(self.0 | Self::TRANSACTIONAL)
    }
    /// With the control bit set.
    #[must_use]
    pub const fn control(self) -> Self {
        Self(self.0 | Self::CONTROL)
    }
    /// With the delete-horizon bit set.
    #[must_use]
    pub const fn delete_horizon(self) -> Self {
        Self(self.0 | Self::DELETE_HORIZON)
    }
}

/// What every format has in its first 17 bytes: enough to choose a parser and to step over a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Base offset of a batch; offset of a message of magic 0 or 1 (the *last* inner one of a compressed wrapper).
    pub offset: Offset,
    /// Bytes of the whole batch, this prefix included.
    pub size_in_bytes: usize,
    /// Format of the batch; any value can stand here.
    pub magic: i8,
}

impl Prefix {
    /// Reads the prefix of a batch of any format; the rest of the batch need not be there.
    ///
    /// # Errors
    /// [`BatchError::BadLength`] for a length below 14 (corruption to Kafka's scanner, a run of zeros included),
    /// [`BatchError::Truncated`] below 17 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let truncated = BatchError::Truncated { needed: PREFIX_BYTES, left: bytes.len() };
        if bytes.len() < LOG_OVERHEAD_BYTES {
            return Err(truncated);
        }
        // Looked at as soon as it is there, as Kafka does: a bad length is corruption even where the prefix is cut off.
        let length = i32::from_be_bytes(take(bytes, LENGTH));
        match usize::try_from(length) {
            Ok(_) if length >= LENGTH_MIN && bytes.len() < PREFIX_BYTES => Err(truncated),
            Ok(after) if length >= LENGTH_MIN => Ok(Self {
                offset: Offset::new(i64::from_be_bytes(take(bytes, BASE_OFFSET))),
                size_in_bytes: after.saturating_add(LOG_OVERHEAD_BYTES),
                magic: i8::from_be_bytes(take(bytes, MAGIC)),
            }),
            _ => Err(BatchError::BadLength(length)),
        }
    }
}

/// One magic-2 batch, read in place. Only its size and magic are known to be right.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    /// Exactly the batch, at least a header.
    bytes: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// Views the batch that `bytes` begin with; more bytes may follow it.
    ///
    /// # Errors
    /// See [`BatchError`]. Neither the CRC nor any other field is looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let prefix = Prefix::parse(bytes)?;
        if prefix.magic != MAGIC_V2 {
            return Err(BatchError::BadMagic(prefix.magic));
        }
        if prefix.size_in_bytes < BATCH_HEADER_BYTES {
            return Err(BatchError::BadLength(i32::from_be_bytes(take(bytes, LENGTH))));
        }
        match bytes.get(..prefix.size_in_bytes) {
            Some(bytes) => Ok(Self { bytes }),
            None => Err(BatchError::Truncated { needed: prefix.size_in_bytes, left: bytes.len() }),
        }
    }

    /// The whole batch.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
    /// Size of the whole batch.
    pub const fn size_in_bytes(&self) -> usize {
        self.bytes.len()
    }
    /// What follows the header: records, or one compressed blob.
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(BATCH_HEADER_BYTES..).unwrap_or_default()
    }
    /// Offset of the record with delta 0, which compaction may have removed.
    pub fn base_offset(&self) -> Offset {
        Offset::new(i64::from_be_bytes(take(self.bytes, BASE_OFFSET)))
    }
    /// Offset of the last record that was produced; compaction keeps it.
    pub fn last_offset(&self) -> Offset {
        self.base_offset().plus(i64::from(self.last_offset_delta()))
    }
    /// The offset that follows the batch.
    pub fn next_offset(&self) -> Offset {
        self.last_offset().plus(1)
    }
    /// Epoch of the leader that appended the batch.
    pub fn partition_leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch::new(i32::from_be_bytes(take(self.bytes, PARTITION_LEADER_EPOCH)))
    }
    /// The CRC-32C the header states.
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(take(self.bytes, CRC))
    }
    /// Whether the stated CRC is that of the bytes. Reads the whole batch.
    pub fn crc_is_valid(&self) -> bool {
        self.crc() == covered_crc(self.bytes)
    }
    /// The attribute bits.
    pub fn attributes(&self) -> Attributes {
        Attributes::new(i16::from_be_bytes(take(self.bytes, ATTRIBUTES)))
    }
    /// `last_offset` less `base_offset`; anything can stand here in a batch from a client.
    pub fn last_offset_delta(&self) -> i32 {
        i32::from_be_bytes(take(self.bytes, LAST_OFFSET_DELTA))
    }
    /// Time that the records' deltas count from; the delete horizon if the attributes say so.
    pub fn base_timestamp(&self) -> TimestampMs {
        TimestampMs::new(i64::from_be_bytes(take(self.bytes, BASE_TIMESTAMP)))
    }
    /// The largest timestamp of the records, or the append time of all of them.
    pub fn max_timestamp(&self) -> TimestampMs {
        TimestampMs::new(i64::from_be_bytes(take(self.bytes, MAX_TIMESTAMP)))
    }
    /// Id of the idempotent producer, or none.
    pub fn producer_id(&self) -> ProducerId {
        ProducerId::new(i64::from_be_bytes(take(self.bytes, PRODUCER_ID)))
    }
    /// Epoch of the idempotent producer, or none.
    pub fn producer_epoch(&self) -> ProducerEpoch {
        ProducerEpoch::new(i16::from_be_bytes(take(self.bytes, PRODUCER_EPOCH)))
    }
    /// Sequence of the record with delta 0, or -1.
    pub fn base_sequence(&self) -> i32 {
        i32::from_be_bytes(take(self.bytes, BASE_SEQUENCE))
    }
    /// Sequence of the last record that was produced, or -1; wraps from `i32::MAX` to 0.
    pub fn last_sequence(&self) -> i32 {
        sequence_after(self.base_sequence(), self.last_offset_delta())
    }
    /// Number of records the header states; 0 in a batch that compaction emptied.
    pub fn record_count(&self) -> i32 {
        i32::from_be_bytes(take(self.bytes, RECORD_COUNT))
    }
    /// The header as an owned value.
    pub fn info(&self) -> BatchInfo {
        BatchInfo {
            base_offset: self.base_offset(),
            last_offset: self.last_offset(),
            partition_leader_epoch: self.partition_leader_epoch(),
            attributes: self.attributes(),
            base_timestamp: self.base_timestamp(),
            max_timestamp: self.max_timestamp(),
            producer_id: self.producer_id(),
            producer_epoch: self.producer_epoch(),
            base_sequence: self.base_sequence(),
            last_sequence: self.last_sequence(),
            record_count: self.record_count(),
            size_in_bytes: self.size_in_bytes(),
        }
    }
}

/// What the log needs to know of a batch, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInfo {
    /// See [`BatchView::base_offset`].
    pub base_offset: Offset,
    /// See [`BatchView::last_offset`].
    pub last_offset: Offset,
    /// See [`BatchView::partition_leader_epoch`].
    pub partition_leader_epoch: LeaderEpoch,
    /// See [`BatchView::attributes`].
    pub attributes: Attributes,
    /// See [`BatchView::base_timestamp`].
    pub base_timestamp: TimestampMs,
    /// See [`BatchView::max_timestamp`].
    pub max_timestamp: TimestampMs,
    /// See [`BatchView::producer_id`].
    pub producer_id: ProducerId,
    /// See [`BatchView::producer_epoch`].
    pub producer_epoch: ProducerEpoch,
    /// See [`BatchView::base_sequence`].
    pub base_sequence: i32,
    /// See [`BatchView::last_sequence`].
    pub last_sequence: i32,
    /// See [`BatchView::record_count`].
    pub record_count: i32,
    /// See [`BatchView::size_in_bytes`].
    pub size_in_bytes: usize,
}

impl BatchInfo {
    /// Reads the header that `bytes` begin with; the records behind it need not be there. For whoever looks for a batch
    /// in a file and steps over the others.
    ///
    /// # Errors
    /// See [`BatchError`]; [`BatchError::Truncated`] below 61 bytes.
    pub fn parse_header(bytes: &[u8]) -> Result<Self, BatchError> {
        let prefix = Prefix::parse(bytes)?;
        if prefix.magic != MAGIC_V2 {
            return Err(BatchError::BadMagic(prefix.magic));
        }
        if prefix.size_in_bytes < BATCH_HEADER_BYTES {
            return Err(BatchError::BadLength(i32::from_be_bytes(take(bytes, LENGTH))));
        }
        if bytes.len() < BATCH_HEADER_BYTES {
            return Err(BatchError::Truncated { needed: BATCH_HEADER_BYTES, left: bytes.len() });
        }
        Ok(Self { size_in_bytes: prefix.size_in_bytes, ..BatchView { bytes }.info() })
    }
    /// The info of the same batch after [`set_base_offset`] and [`set_partition_leader_epoch`].
    #[must_use]
    pub const fn assigned(mut self, base_offset: Offset, leader_epoch: LeaderEpoch) -> Self {
        self.last_offset = base_offset.plus(self.last_offset.since(self.base_offset));
        self.base_offset = base_offset;
        self.partition_leader_epoch = leader_epoch;
        self
    }
    /// The offset that follows the batch.
    pub const fn next_offset(&self) -> Offset {
        self.last_offset.plus(1)
    }
    /// Whether an idempotent producer sent the batch.
    pub const fn has_producer_id(&self) -> bool {
        self.producer_id.get() >= 0
    }
}

/// Walks back-to-back magic-2 batches. Ends at the first batch that is not whole: see [`BatchIter::remainder`].
/// A batch that is no magic-2 batch is answered once as an error, then the walk ends there.
#[derive(Clone, Debug)]
pub struct BatchIter<'a> {
    rest: &'a [u8],
    failed: bool,
}

impl<'a> BatchIter<'a> {
    /// Walks `bytes`, which begin with a batch.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, failed: false }
    }
    /// What was not walked yet; after the end: the trailing partial batch, or what begins with the faulty one.
    pub const fn remainder(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match BatchView::parse(self.rest) {
            Ok(view) => {
                self.rest = self.rest.get(view.size_in_bytes()..).unwrap_or_default();
                Some(Ok(view))
            }
            Err(BatchError::Truncated { .. }) => None,
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// Writes the base offset in place; outside the CRC.
///
/// # Panics
/// If `batch` is shorter than a header: the caller has parsed it before.
pub fn set_base_offset(batch: &mut [u8], base_offset: Offset) {
    put(batch, BASE_OFFSET, base_offset.get().to_be_bytes());
}

/// Writes the partition leader epoch in place; outside the CRC.
///
/// # Panics
/// If `batch` is shorter than a header: the caller has parsed it before.
pub fn set_partition_leader_epoch(batch: &mut [u8], leader_epoch: LeaderEpoch) {
    put(batch, PARTITION_LEADER_EPOCH, leader_epoch.get().to_be_bytes());
}

/// Writes maximum timestamp and timestamp type in place, clears the attribute bits that have no meaning, and writes the
/// new CRC, which costs a pass over the batch. Does nothing if neither value changes.
///
/// `batch` is exactly one batch, else the CRC covers too much.
///
/// # Panics
/// If `batch` is shorter than a header: the caller has parsed it before.
pub fn set_max_timestamp_and_type(
    batch: &mut [u8],
    max_timestamp: TimestampMs,
    timestamp_type: TimestampType,
) {
    let attributes = Attributes::new(i16::from_be_bytes(take(batch, ATTRIBUTES)));
    let before = i64::from_be_bytes(take(batch, MAX_TIMESTAMP));
    if before == max_timestamp.get() && attributes.timestamp_type() == timestamp_type {
        return;
    }
    let attributes = attributes.known().with_timestamp_type(timestamp_type);
    put(batch, ATTRIBUTES, attributes.get().to_be_bytes());
    put(batch, MAX_TIMESTAMP, max_timestamp.get().to_be_bytes());
    seal(batch);
}

/// A whole header, for those who make batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) base_offset: Offset,
    pub(super) partition_leader_epoch: LeaderEpoch,
    pub(super) attributes: Attributes,
    pub(super) last_offset_delta: i32,
    pub(super) base_timestamp: TimestampMs,
    pub(super) max_timestamp: TimestampMs,
    pub(super) producer_id: ProducerId,
    pub(super) producer_epoch: ProducerEpoch,
    pub(super) base_sequence: i32,
    pub(super) record_count: i32,
}

impl Header {
    /// The header of a batch that exists, to be written again over other records.
    pub(super) fn of(view: &BatchView<'_>) -> Self {
        Self {
            base_offset: view.base_offset(),
            partition_leader_epoch: view.partition_leader_epoch(),
            attributes: view.attributes(),
            last_offset_delta: view.last_offset_delta(),
            base_timestamp: view.base_timestamp(),
            max_timestamp: view.max_timestamp(),
            producer_id: view.producer_id(),
            producer_epoch: view.producer_epoch(),
            base_sequence: view.base_sequence(),
            record_count: view.record_count(),
        }
    }

    /// Writes the header over the first bytes of `batch`, whose records are in place, and the CRC.
    pub(super) fn write(&self, batch: &mut [u8], length: i32) {
        set_base_offset(batch, self.base_offset);
        put(batch, LENGTH, length.to_be_bytes());
        set_partition_leader_epoch(batch, self.partition_leader_epoch);
        put(batch, MAGIC, MAGIC_V2.to_be_bytes());
        put(batch, ATTRIBUTES, self.attributes.get().to_be_bytes());
        put(batch, LAST_OFFSET_DELTA, self.last_offset_delta.to_be_bytes());
        put(batch, BASE_TIMESTAMP, self.base_timestamp.get().to_be_bytes());
        put(batch, MAX_TIMESTAMP, self.max_timestamp.get().to_be_bytes());
        put(batch, PRODUCER_ID, self.producer_id.get().to_be_bytes());
        put(batch, PRODUCER_EPOCH, self.producer_epoch.get().to_be_bytes());
        put(batch, BASE_SEQUENCE, self.base_sequence.to_be_bytes());
        put(batch, RECORD_COUNT, self.record_count.to_be_bytes());
        seal(batch);
    }
}

/// The sequence `delta` records after `sequence`; -1 stays -1, and `i32::MAX` is followed by 0.
pub fn sequence_after(sequence: i32, delta: i32) -> i32 {
    if sequence < 0 { -1 } else { sequence.wrapping_add(delta) & i32::MAX }
}

/// Writes the CRC of a batch.
fn seal(batch: &mut [u8]) {
    let crc = covered_crc(batch);
    put(batch, CRC, crc.to_be_bytes());
}

fn covered_crc(batch: &[u8]) -> u32 {
    crc::crc32c(batch.get(ATTRIBUTES..).unwrap_or_default())
}

/// `N` bytes at a fixed position of a header. The zeros are never read: every caller has at least a header (or, for a
/// prefix, 17 bytes), and with constant positions the compiler drops the check.
#[inline]
pub(super) fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn put<const N: usize>(batch: &mut [u8], at: usize, value: [u8; N]) {
    assert!(batch.len() >= BATCH_HEADER_BYTES, "patched bytes are no parsed batch");
    if let Some(field) = batch.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value;
    }
}

//! Messages of magic 0 and 1, which old segments may still hold (protocol.md 4.4). Read by us: sizes, offsets, CRC,
//! timestamps, lookups by time, compressed wrappers included. Only compaction writes them, and clients may not send them.
//! Called by the log's scanner and lookups.
//!
//! ```text
//! 0       8     12     16    17          18                (18 or) 26
//! offset  |size |crc   |magic|attributes |timestamp, magic 1 |key length, key, value length, value
//! i64     |i32  |u32   |i8   |i8         |i64                |i32 ...
//!                       `-------------- covered by the CRC (IEEE) ------------------------------->
//! ```
//!
//! The value of a compressed message (a wrapper) is itself a run of messages. A wrapper carries the *last* of their
//! offsets; theirs are absolute in magic 0 and count from 0 in magic 1.

mod unpacked;

pub use unpacked::{InnerMessage, Unpacked};

use crate::records::batch::{Attributes, BatchError, BatchInfo, Prefix, TimestampType, take};
use crate::records::compression::{Codec, DecompressError, Decompressor, HeaderChecksum};
use crate::records::crc;
use crate::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

const SIZE: usize = 8;
const CRC: usize = 12;
const MAGIC: usize = 16;
const ATTRIBUTES: usize = 17;
const TIMESTAMP: usize = 18;
/// Smallest size field of each magic: two null fields.
const SIZE_MIN_V0: i32 = 14;
const SIZE_MIN_V1: i32 = 22;
/// What every message, inner ones included, has at least: offset, size, and the smallest size of magic 0.
const MESSAGE_BYTES_MIN: usize = 26;

/// Why a message could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LegacyError {
    /// A key or a value reaches beyond its message, or its length is below -1.
    #[error("a field reaches beyond its message")]
    BadField,
    /// A compressed message has no value.
    #[error("a compressed message has no value")]
    EmptyWrapper,
    /// The codec id names no codec of these formats.
    #[error("codec {0} is unknown in this format")]
    UnknownCodec(i16),
    /// The value does not decompress.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// A message within a wrapper is malformed or of another magic.
    #[error("inner message: {0}")]
    Inner(BatchError),
    /// A message within a wrapper is compressed itself.
    #[error("an inner message is compressed")]
    Nested,
}

/// One message of magic 0 or 1, or one wrapper, read in place. Only its size and magic are known to be right.
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'a> {
    /// Exactly the message.
    bytes: &'a [u8],
}

impl<'a> MessageView<'a> {
    /// Views the message that `bytes` begin with; more bytes may follow it.
    ///
    /// # Errors
    /// See [`BatchError`]; [`BatchError::BadMagic`] for magic 2 too. Neither CRC nor any other field is looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let prefix = Prefix::parse(bytes)?;
        let size = i32::from_be_bytes(take(bytes, SIZE));
        match prefix.magic {
            0 if size >= SIZE_MIN_V0 => {}
            1 if size >= SIZE_MIN_V1 => {}
            0 | 1 => return Err(BatchError::BadLength(size)),
            magic => return Err(BatchError::BadMagic(magic)),
        }
        match bytes.get(..prefix.size_in_bytes) {
            Some(bytes) => Ok(Self { bytes }),
            None => Err(BatchError::Truncated { needed: prefix.size_in_bytes, left: bytes.len() }),
        }
    }

    /// Size of the whole message.
    pub const fn size_in_bytes(&self) -> usize {
        self.bytes.len()
    }
    /// The format, 0 or 1.
    pub fn magic(&self) -> i8 {
        i8::from_be_bytes(take(self.bytes, MAGIC))
    }
    /// Offset of the message; of a wrapper, the offset of the last message in it.
    pub fn last_offset(&self) -> Offset {
        Offset::new(i64::from_be_bytes(take(self.bytes, 0)))
    }
    /// The CRC-32 the message states.
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(take(self.bytes, CRC))
    }
    /// Whether the stated CRC is that of the bytes.
    pub fn crc_is_valid(&self) -> bool {
        self.crc() == crc::crc32(self.bytes.get(MAGIC..).unwrap_or_default())
    }
    /// Codec and timestamp type, in the bits that magic 2 has them in; magic 0 has no timestamp type.
    pub fn attributes(&self) -> Attributes {
        let mask = if self.magic() == 0 { 0x07 } else { 0x0f };
        Attributes::new(i16::from(i8::from_be_bytes(take(self.bytes, ATTRIBUTES)) & mask))
    }
    /// Whether this is a wrapper.
    pub fn is_compressed(&self) -> bool {
        self.attributes().codec_id() != 0
    }
    /// Timestamp of the message, of a wrapper the largest in it or the append time of all; -1 in magic 0.
    pub fn max_timestamp(&self) -> TimestampMs {
        if self.magic() == 0 {
            return TimestampMs::NONE;
        }
        TimestampMs::new(i64::from_be_bytes(take(self.bytes, TIMESTAMP)))
    }
    /// The key.
    ///
    /// # Errors
    /// [`LegacyError::BadField`].
    pub fn key(&self) -> Result<Option<&'a [u8]>, LegacyError> {
        Ok(self.fields()?.0)
    }
    /// The value; of a wrapper, the compressed run of messages.
    ///
    /// # Errors
    /// [`LegacyError::BadField`].
    pub fn value(&self) -> Result<Option<&'a [u8]>, LegacyError> {
        Ok(self.fields()?.1)
    }
    /// What the log keeps of a batch. These formats have no producer and no leader epoch; the base offset of a wrapper is
    /// given as its last offset, because the true one takes decompression ([`MessageView::base_offset`]).
    pub fn info(&self) -> BatchInfo {
        BatchInfo {
            base_offset: self.last_offset(),
            last_offset: self.last_offset(),
            partition_leader_epoch: LeaderEpoch::NONE,
            attributes: self.attributes(),
            base_timestamp: self.max_timestamp(),
            max_timestamp: self.max_timestamp(),
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::NONE,
            base_sequence: -1,
            last_sequence: -1,
            record_count: 1,
            size_in_bytes: self.size_in_bytes(),
        }
    }

    /// Offset of the first message of a wrapper, or of the message itself.
    ///
    /// # Errors
    /// See [`LegacyError`].
    pub fn base_offset(&self) -> Result<Offset, LegacyError> {
        let first = self.find(|_, _| true)?;
        Ok(first.map_or(self.last_offset(), |(offset, _)| offset))
    }

    /// The first message at or after `min_offset` whose timestamp is at or after `timestamp`, with its timestamp.
    ///
    /// # Errors
    /// See [`LegacyError`].
    pub fn first_record_at_or_after(
        &self,
        timestamp: TimestampMs,
        min_offset: Offset,
    ) -> Result<Option<(Offset, TimestampMs)>, LegacyError> {
        self.find(|offset, at| at >= timestamp && offset >= min_offset)
    }

    fn fields(&self) -> Result<Fields<'a>, LegacyError> {
        let at = if self.magic() == 0 { TIMESTAMP } else { TIMESTAMP + 8 };
        let (key, rest) = read_field(self.bytes.get(at..).unwrap_or_default())?;
        let (value, _) = read_field(rest)?;
        Ok((key, value))
    }

    /// The first message that `wanted` accepts. Of a wrapper it holds one window in memory; of magic 1 it walks it twice,
    /// because the offsets count from the last one.
    fn find(
        &self,
        wanted: impl Fn(Offset, TimestampMs) -> bool,
    ) -> Result<Option<(Offset, TimestampMs)>, LegacyError> {
        if !self.is_compressed() {
            let (offset, at) = (self.last_offset(), self.max_timestamp());
            return Ok(wanted(offset, at).then_some((offset, at)));
        }
        let mut base = Offset::ZERO;
        if self.magic() == 1 {
            let mut last = None;
            self.walk(|inner| {
                last = Some(inner.offset);
                false
            })?;
            let last = last.ok_or(LegacyError::EmptyWrapper)?;
            base = base.plus(self.last_offset().since(last));
        }
        let append_time = self.attributes().timestamp_type() == TimestampType::LogAppendTime;
        let mut found = None;
        self.walk(|inner| {
            // Some versions of librdkafka left 0 in the wrapper: then the inner offsets are all there is.
            let offset = if base.get() > 0 { base.plus(inner.offset.get()) } else { inner.offset };
            let at = if append_time { self.max_timestamp() } else { inner.timestamp };
            let hit = wanted(offset, at);
            if hit {
                found = Some((offset, at));
            }
            hit
        })?;
        Ok(found)
    }

    /// Walks the messages of a wrapper until `visit` says to stop. A partial message at the end is passed over, as Java does.
    fn walk(&self, mut visit: impl FnMut(Inner) -> bool) -> Result<(), LegacyError> {
        let value = self.value()?.ok_or(LegacyError::EmptyWrapper)?;
        let mut source = self.source(value.len())?;
        let mut walk =
            InnerWalk { magic: self.magic(), head: [0; MESSAGE_BYTES_MIN], filled: 0, current: None };
        loop {
            let mut rest = source.next_chunk(value)?;
            if rest.is_empty() {
                return Ok(());
            }
            while !rest.is_empty() {
                let (inner, later) = walk.advance(rest)?;
                rest = later;
                if let Some(inner) = inner
                    && visit(inner)
                {
                    return Ok(());
                }
            }
        }
    }

    fn source(&self, compressed: usize) -> Result<Decompressor, LegacyError> {
        let attributes = self.attributes();
        match attributes.codec() {
            Some(Codec::Lz4) => {
                let checksum =
                    if self.magic() == 0 { HeaderChecksum::Ignored } else { HeaderChecksum::Standard };
                Ok(Decompressor::lz4_with(checksum, compressed))
            }
            Some(codec @ (Codec::Gzip | Codec::Snappy)) => Ok(Decompressor::new(codec, compressed)?),
            Some(Codec::None | Codec::Zstd) | None => Err(LegacyError::UnknownCodec(attributes.codec_id())),
        }
    }
}

/// Key and value.
type Fields<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// What a walk tells of a message within a wrapper.
#[derive(Clone, Copy)]
struct Inner {
    /// As it stands there: absolute or relative.
    offset: Offset,
    timestamp: TimestampMs,
}

/// Inner messages that arrive in pieces: their first bytes are kept, the others stepped over.
struct InnerWalk {
    magic: i8,
    head: [u8; MESSAGE_BYTES_MIN],
    filled: usize,
    /// The message whose head was read, and how many bytes of it are to come.
    current: Option<(Inner, usize)>,
}

impl InnerWalk {
    /// Goes on until a message or the piece ends; what follows.
    fn advance<'p>(&mut self, rest: &'p [u8]) -> Result<(Option<Inner>, &'p [u8]), LegacyError> {
        let mut rest = rest;
        if self.current.is_none() {
            let room = self.head.get_mut(self.filled..).unwrap_or_default();
            let (now, later) = rest.split_at_checked(room.len()).unwrap_or((rest, &[]));
            for (to, from) in room.iter_mut().zip(now) {
                *to = *from;
            }
            self.filled += now.len();
            rest = later;
            if self.filled < MESSAGE_BYTES_MIN {
                return Ok((None, rest));
            }
            self.filled = 0;
            let (inner, size) = self.read_head()?;
            self.current = Some((inner, size.saturating_sub(MESSAGE_BYTES_MIN)));
        }
        let Some((inner, skip)) = self.current else { return Ok((None, rest)) };
        match rest.get(skip..) {
            Some(later) => {
                self.current = None;
                Ok((Some(inner), later))
            }
            None => {
                self.current = Some((inner, skip - rest.len()));
                Ok((None, &[]))
            }
        }
    }

    /// Reads the first bytes of a message; its size too.
    fn read_head(&self) -> Result<(Inner, usize), LegacyError> {
        let prefix = Prefix::parse(&self.head).map_err(LegacyError::Inner)?;
        if prefix.magic != self.magic {
            return Err(LegacyError::Inner(BatchError::BadMagic(prefix.magic)));
        }
        let size = i32::from_be_bytes(take(&self.head, SIZE));
        if prefix.magic == 1 && size < SIZE_MIN_V1 {
            return Err(LegacyError::Inner(BatchError::BadLength(size)));
        }
        if i8::from_be_bytes(take(&self.head, ATTRIBUTES)) & 0x07 != 0 {
            return Err(LegacyError::Nested);
        }
        let timestamp = match prefix.magic {
            0 => TimestampMs::NONE,
            _ => TimestampMs::new(i64::from_be_bytes(take(&self.head, TIMESTAMP))),
        };
        Ok((Inner { offset: prefix.offset, timestamp }, prefix.size_in_bytes))
    }
}

fn read_field(bytes: &[u8]) -> Result<(Option<&[u8]>, &[u8]), LegacyError> {
    let (length, rest) = bytes.split_first_chunk().ok_or(LegacyError::BadField)?;
    let length = i32::from_be_bytes(*length);
    if length == -1 {
        return Ok((None, rest));
    }
    let length = usize::try_from(length).map_err(|_| LegacyError::BadField)?;
    let (field, rest) = rest.split_at_checked(length).ok_or(LegacyError::BadField)?;
    Ok((Some(field), rest))
}

#[cfg(test)]
mod tests;

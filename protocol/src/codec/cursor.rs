//! Reads a frame that it borrows. Owns the position and what the frame may still make us allocate; knows no message.

use std::collections::BTreeSet;

use super::writer::STRING_BYTES_MAX;
use crate::error::DecodeError;

/// Bytes of memory that decoding may allocate for each byte of the frame.
pub const ALLOCATION_PER_FRAME_BYTE: usize = 16;
/// Bytes of memory that decoding may allocate whatever the frame's size.
pub const ALLOCATION_BYTES_FREE: usize = 64 * 1024;

/// What a distinct tag costs while a section is read, rounded up from a B-tree's node.
const SEEN_TAG_BYTES: usize = 16;

/// A position in a frame. Every read either moves past a whole value or fails; after a failure the position has no
/// meaning and the connection is to be closed (C7).
#[derive(Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
    /// Bytes of the frame that lie behind `rest` while a tagged field is read.
    hidden: usize,
    frame_bytes: usize,
    allowance: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte of `frame`.
    pub fn new(frame: &'a [u8]) -> Self {
        let allowance =
            frame.len().saturating_mul(ALLOCATION_PER_FRAME_BYTE).saturating_add(ALLOCATION_BYTES_FREE);
        Self { rest: frame, hidden: 0, frame_bytes: frame.len(), allowance }
    }

    /// Starts at the first byte of `frame`; decoding may allocate no more than `bytes`, however long the frame is.
    pub fn bounded(frame: &'a [u8], bytes: usize) -> Self {
        let cursor = Self::new(frame);
        Self { allowance: cursor.allowance.min(bytes), ..cursor }
    }

    /// Bytes before the position.
    pub fn position(&self) -> usize {
        self.frame_bytes - self.hidden - self.rest.len()
    }

    /// Bytes from the position to the end of the frame, or of the tagged field that is being read.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// `Truncated` when there are fewer.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let Some((head, rest)) = self.rest.split_at_checked(count) else {
            return Err(DecodeError::Truncated { needed: count, left: self.rest.len() });
        };
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes, for values of fixed size.
    ///
    /// # Errors
    /// `Truncated` when there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((head, rest)) = self.rest.split_first_chunk() else {
            return Err(DecodeError::Truncated { needed: N, left: self.rest.len() });
        };
        self.rest = rest;
        Ok(*head)
    }

    /// A big-endian 16-bit integer.
    ///
    /// # Errors
    /// `Truncated`.
    pub fn i16(&mut self) -> Result<i16, DecodeError> {
        self.array().map(i16::from_be_bytes)
    }

    /// A big-endian 32-bit integer.
    ///
    /// # Errors
    /// `Truncated`.
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    /// A big-endian 64-bit integer.
    ///
    /// # Errors
    /// `Truncated`.
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    /// An unsigned integer in base 128, least significant digit first. Forms longer than needed are accepted as
    /// Java does, up to five bytes (C4).
    ///
    /// # Errors
    /// `Truncated`, `BadVarint` when it has more than 32 bits.
    pub fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            if shift == 28 && byte > 0x0f {
                return Err(DecodeError::BadVarint);
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    /// The length of a string: 16 bits, or compact in flexible versions. `None` is null (C3).
    ///
    /// # Errors
    /// `BadLength` below -1 or beyond what Kafka accepts; `Truncated`, `BadVarint`.
    fn string_length(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        let length = if flexible { self.compact_length()? } else { old_length(i32::from(self.i16()?))? };
        match length {
            Some(bytes) if bytes > STRING_BYTES_MAX => Err(bad_length(bytes)),
            length => Ok(length),
        }
    }

    /// The length of bytes or of an array: 32 bits, or compact in flexible versions. `None` is null (C3). The caller
    /// still has to compare it with what is left: [`Cursor::take`] and [`Cursor::room_for`] do.
    ///
    /// # Errors
    /// `BadLength` below -1 or above 2^31 - 1; `Truncated`, `BadVarint`.
    pub fn length(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        let length = if flexible { self.compact_length()? } else { old_length(self.i32()?)? };
        match length {
            Some(count) if i32::try_from(count).is_err() => Err(bad_length(count)),
            length => Ok(length),
        }
    }

    fn compact_length(&mut self) -> Result<Option<usize>, DecodeError> {
        match self.unsigned_varint()?.checked_sub(1) {
            None => Ok(None),
            Some(length) => {
                usize::try_from(length).map(Some).map_err(|_| DecodeError::BadLength(length.into()))
            }
        }
    }

    /// A string, or null.
    ///
    /// # Errors
    /// `BadUtf8` (C6), `BadLength`, `Truncated`, `BadVarint`.
    pub fn nullable_string(&mut self, flexible: bool) -> Result<Option<&'a str>, DecodeError> {
        let Some(length) = self.string_length(flexible)? else { return Ok(None) };
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map(Some).map_err(|_| DecodeError::BadUtf8)
    }

    /// Bytes, or null.
    ///
    /// # Errors
    /// `BadLength`, `Truncated`, `BadVarint`.
    pub fn nullable_bytes(&mut self, flexible: bool) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.length(flexible)? {
            None => Ok(None),
            Some(length) => self.take(length).map(Some),
        }
    }

    /// Allows a caller to allocate `count` elements of `memory_bytes` each that take at least `wire_bytes_min` each
    /// in the frame. All that one frame allocates stays within [`ALLOCATION_PER_FRAME_BYTE`] times its size and
    /// [`ALLOCATION_BYTES_FREE`], however small the elements are on the wire (C2, KAFKA-14063).
    ///
    /// # Errors
    /// `Truncated` when the frame is too short for `count` elements, `Oversized` when the memory would be too much.
    pub fn room_for(
        &mut self,
        count: usize,
        wire_bytes_min: usize,
        memory_bytes: usize,
    ) -> Result<(), DecodeError> {
        let needed = count.saturating_mul(wire_bytes_min);
        if needed > self.rest.len() {
            return Err(DecodeError::Truncated { needed, left: self.rest.len() });
        }
        let memory = count.saturating_mul(memory_bytes);
        match self.allowance.checked_sub(memory) {
            None => Err(DecodeError::Oversized { memory, allowed: self.allowance }),
            Some(allowance) => {
                self.allowance = allowance;
                Ok(())
            }
        }
    }

    /// A section of tagged fields (KIP-482). Calls `known` at the content of each; `known` says whether it read the
    /// field, else the field is skipped. Any order is accepted, a tag only once (C5).
    ///
    /// # Errors
    /// `RepeatedTag`, `BadTagSize` when a known field does not fill its size, `Truncated`, `BadVarint`, and what
    /// `known` returns.
    pub fn tagged_fields(
        &mut self,
        mut known: impl FnMut(&mut Self, u32) -> Result<bool, DecodeError>,
    ) -> Result<(), DecodeError> {
        let count = self.unsigned_varint()?;
        if count == 0 {
            return Ok(());
        }
        let mut seen = SeenTags::default();
        for _ in 0..count {
            let tag = self.unsigned_varint()?;
            let size = self.unsigned_varint()?;
            seen.note(self, tag)?;
            let size = usize::try_from(size).map_err(|_| DecodeError::BadTagSize(tag))?;
            let content = self.take(size)?;
            let after = std::mem::replace(&mut self.rest, content);
            self.hidden += after.len();
            let read = known(self, tag).map_err(|error| match error {
                DecodeError::Truncated { .. } => DecodeError::BadTagSize(tag),
                error => error,
            })?;
            if read && !self.rest.is_empty() {
                return Err(DecodeError::BadTagSize(tag));
            }
            self.rest = after;
            self.hidden -= after.len();
        }
        Ok(())
    }
}

/// The tags of one section so far. Kafka's own tags fit the word; any other goes to the tree, so that a section full
/// of unknown tags in the worst order costs neither quadratic time nor memory beyond the frame's allowance.
#[derive(Default)]
struct SeenTags {
    low: u64,
    high: BTreeSet<u32>,
}

impl SeenTags {
    fn note(&mut self, cursor: &mut Cursor<'_>, tag: u32) -> Result<(), DecodeError> {
        let new = if tag < u64::BITS {
            let bit = 1 << tag;
            let new = self.low & bit == 0;
            self.low |= bit;
            new
        } else {
            cursor.room_for(1, 0, SEEN_TAG_BYTES)?;
            self.high.insert(tag)
        };
        if new { Ok(()) } else { Err(DecodeError::RepeatedTag(tag)) }
    }
}

fn old_length(length: i32) -> Result<Option<usize>, DecodeError> {
    match length {
        -1 => Ok(None),
        _ => usize::try_from(length).map(Some).map_err(|_| DecodeError::BadLength(length.into())),
    }
}

fn bad_length(length: usize) -> DecodeError {
    DecodeError::BadLength(i64::try_from(length).unwrap_or(i64::MAX))
}

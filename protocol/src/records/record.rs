//! The records of a magic-2 batch, walked in place (protocol.md 4.2, C11). Keys, values and headers are slices of the
//! batch; headers keep order, repeats, and the difference between null and empty. Knows no header of a batch and no
//! codec: its input is plain record bytes. Called by the validator, by lookups and by readers of whole records.
//!
//! ```text
//! length varint | attributes i8 | timestamp_delta varlong | offset_delta varint
//!               | key length varint, key | value length varint, value
//!               | header count varint | (key length varint, key, value length varint, value) ...
//! ```

use crate::records::varint::{VarintError, read_varint, read_varlong};

/// Why bytes are not records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end inside a record, or a field reaches beyond the record's length.
    #[error("a field reaches beyond its record")]
    Truncated,
    /// A variable-length integer is longer than its type.
    #[error("malformed variable-length integer")]
    BadVarint,
    /// A length or a count is negative where it must not be, or below -1.
    #[error("length {0} is not allowed here")]
    BadLength(i32),
    /// The record's fields end before its length does.
    #[error("{0} bytes of the record belong to no field")]
    BytesLeft(usize),
}

impl From<VarintError> for RecordError {
    fn from(error: VarintError) -> Self {
        match error {
            VarintError::Truncated => Self::Truncated,
            VarintError::TooLong => Self::BadVarint,
        }
    }
}

/// One record, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Unused by Kafka.
    pub attributes: i8,
    /// Milliseconds after the batch's base timestamp; may be negative.
    pub timestamp_delta: i64,
    /// Records after the batch's base offset.
    pub offset_delta: i32,
    /// The key; null and empty differ.
    pub key: Option<&'a [u8]>,
    /// The value; null is a tombstone.
    pub value: Option<&'a [u8]>,
    /// The headers.
    pub headers: Headers<'a>,
}

/// The headers of a record, in order, repeats included. Iterates over (key, value).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<'a> {
    /// Exactly the headers; walked once already, so known to be well-formed.
    bytes: &'a [u8],
    count: i32,
}

impl Headers<'_> {
    /// Number of headers that were not walked yet.
    pub const fn len(&self) -> i32 {
        self.count
    }
    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a> Headers<'a> {
    /// The headers that were not walked yet, as they stand in the batch.
    pub(super) const fn raw(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.count <= 0 {
            return None;
        }
        // Well-formed since `Record::parse`; were it not, the walk would end here.
        let (key, rest) = read_key(self.bytes).ok()?;
        let (value, rest) = read_bytes(rest).ok()?;
        self.bytes = rest;
        self.count -= 1;
        Some((key, value))
    }
}

impl<'a> Record<'a> {
    /// Reads the record that `bytes` begin with; answers it with what follows.
    ///
    /// # Errors
    /// See [`RecordError`]. The record's fields must take exactly its length.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), RecordError> {
        let (length, rest) = read_varint(bytes)?;
        let length = usize::try_from(length).map_err(|_| RecordError::BadLength(length))?;
        let (body, after) = rest.split_at_checked(length).ok_or(RecordError::Truncated)?;
        Ok((Self::parse_body(body)?, after))
    }

    /// Reads what follows a record's length.
    pub(super) fn parse_body(body: &'a [u8]) -> Result<Self, RecordError> {
        let [attributes, rest @ ..] = body else { return Err(RecordError::Truncated) };
        let (timestamp_delta, rest) = read_varlong(rest)?;
        let (offset_delta, rest) = read_varint(rest)?;
        let (key, rest) = read_bytes(rest)?;
        let (value, rest) = read_bytes(rest)?;
        let (count, headers) = read_varint(rest)?;
        let mut rest = headers;
        // Each header takes at least two bytes, so that the loop is bounded by the bytes, not by the count.
        if count < 0 {
            return Err(RecordError::BadLength(count));
        }
        for _ in 0..count {
            (_, rest) = read_key(rest)?;
            (_, rest) = read_bytes(rest)?;
        }
        if !rest.is_empty() {
            return Err(RecordError::BytesLeft(rest.len()));
        }
        Ok(Self {
            attributes: attributes.cast_signed(),
            timestamp_delta,
            offset_delta,
            key,
            value,
            headers: Headers { bytes: headers, count },
        })
    }
}

/// Walks plain (decompressed) records; ends after the last whole one or after the first faulty one.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    rest: &'a [u8],
}

impl<'a> RecordIter<'a> {
    /// Walks `records`: the payload of an uncompressed batch.
    pub const fn new(records: &'a [u8]) -> Self {
        Self { rest: records }
    }
    /// What was not walked yet.
    pub const fn remainder(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match Record::parse(self.rest) {
            Ok((record, rest)) => {
                self.rest = rest;
                Some(Ok(record))
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

/// Bytes whose length may be -1, for null.
#[inline]
fn read_bytes(bytes: &[u8]) -> Result<(Option<&[u8]>, &[u8]), RecordError> {
    let (length, rest) = read_varint(bytes)?;
    if length == -1 {
        return Ok((None, rest));
    }
    let length = usize::try_from(length).map_err(|_| RecordError::BadLength(length))?;
    let (value, rest) = rest.split_at_checked(length).ok_or(RecordError::Truncated)?;
    Ok((Some(value), rest))
}

/// The key of a header: never null.
#[inline]
fn read_key(bytes: &[u8]) -> Result<(&[u8], &[u8]), RecordError> {
    match read_bytes(bytes)? {
        (Some(key), rest) => Ok((key, rest)),
        (None, _) => Err(RecordError::BadLength(-1)),
    }
}

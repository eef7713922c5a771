//! Reads the records of a batch whatever its codec: whole ones ([`Records`], one at a time), or only what a lookup by
//! time needs (F46). Knows no log. Called by readers of internal topics, by `ListOffsets`, by tests and by clients.

use crate::records::batch::{BatchView, TimestampType};
use crate::records::compression::{Codec, DecompressError, Decompressor};
use crate::records::record::{Record, RecordError};
use crate::records::scan::{RecordMeta, RecordScanner};
use crate::records::varint::{VarintError, read_varint};
use crate::types::{Offset, TimestampMs};

/// Why the records of a batch could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The codec id names no codec.
    #[error("codec {0} is not known")]
    UnknownCodec(i16),
    /// The payload does not decompress.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// The payload is not records.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The payload ends, or goes on, where the header says it does not.
    #[error("the header counts {stated} records, the payload holds another number")]
    Count {
        /// The count of the header.
        stated: i32,
    },
}

/// The records of one batch, one at a time. Of a compressed batch it holds one record and one window in memory.
#[derive(Debug)]
pub struct Records<'a> {
    payload: &'a [u8],
    source: Decompressor,
    compressed: bool,
    /// Decompressed, not yet handed on.
    pending: Vec<u8>,
    /// How much of `pending`, or of an uncompressed payload, was handed on.
    position: usize,
    left: i32,
    stated: i32,
}

impl<'a> Records<'a> {
    /// The records of `batch`.
    ///
    /// # Errors
    /// [`ReadError::UnknownCodec`]; [`ReadError::Decompress`] for a lack of memory.
    pub fn of(batch: &BatchView<'a>) -> Result<Self, ReadError> {
        let codec = codec_of(batch)?;
        let payload = batch.payload();
        Ok(Self {
            payload,
            source: Decompressor::new(codec, payload.len())?,
            compressed: codec != Codec::None,
            pending: Vec::new(),
            position: 0,
            left: batch.record_count(),
            stated: batch.record_count(),
        })
    }

    /// The next record; `None` after as many as the header counts.
    ///
    /// # Errors
    /// See [`ReadError`]; do not call again after one.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        if self.left <= 0 {
            return if self.is_at_end()? { Ok(None) } else { Err(ReadError::Count { stated: self.stated }) };
        }
        self.left -= 1;
        if !self.compressed {
            let rest = self.payload.get(self.position..).unwrap_or_default();
            if rest.is_empty() {
                return Err(ReadError::Count { stated: self.stated });
            }
            let (record, after) = Record::parse(rest)?;
            self.position = self.payload.len() - after.len();
            return Ok(Some(record));
        }
        while !self.has_whole_record()? {
            if !self.pull()? {
                let between = self.position == self.pending.len();
                let error = ReadError::Count { stated: self.stated };
                return Err(if between { error } else { RecordError::Truncated.into() });
            }
        }
        let rest = self.pending.get(self.position..).unwrap_or_default();
        let (record, after) = Record::parse(rest)?;
        self.position += rest.len() - after.len();
        Ok(Some(record))
    }

    fn is_at_end(&mut self) -> Result<bool, ReadError> {
        if !self.compressed {
            return Ok(self.position == self.payload.len());
        }
        Ok(self.position == self.pending.len() && !self.pull()?)
    }

    fn has_whole_record(&self) -> Result<bool, ReadError> {
        let rest = self.pending.get(self.position..).unwrap_or_default();
        match read_varint(rest) {
            Ok((length, rest)) => {
                let length = usize::try_from(length).map_err(|_| RecordError::BadLength(length))?;
                Ok(rest.len() >= length)
            }
            Err(VarintError::Truncated) => Ok(false),
            Err(error) => Err(ReadError::Record(error.into())),
        }
    }

    /// Decompresses one more piece; false at the end. `pending` grows by what is really there, never by a claim.
    fn pull(&mut self) -> Result<bool, ReadError> {
        self.pending.drain(..self.position);
        self.position = 0;
        let chunk = self.source.next_chunk(self.payload)?;
        self.pending.extend_from_slice(chunk);
        Ok(!chunk.is_empty())
    }
}

/// The first record of `batch` at or after `min_offset` whose timestamp is at or after `timestamp`, with its timestamp.
/// Every record of a LogAppendTime batch has the batch's `max_timestamp`.
///
/// # Errors
/// See [`ReadError`]; nothing is known of the records behind the fault.
pub fn first_record_at_or_after(
    batch: &BatchView<'_>,
    timestamp: TimestampMs,
    min_offset: Offset,
) -> Result<Option<(Offset, TimestampMs)>, ReadError> {
    find(batch, |offset, at| at >= timestamp && offset >= min_offset)
}

/// The first record of `batch` that has the batch's `max_timestamp` (KIP-734); `None` if none has, as in a batch that
/// compaction emptied.
///
/// # Errors
/// See [`ReadError`].
pub fn max_timestamp_record(batch: &BatchView<'_>) -> Result<Option<(Offset, TimestampMs)>, ReadError> {
    let max_timestamp = batch.max_timestamp();
    find(batch, |_, at| at == max_timestamp)
}

/// Ends a walk early.
enum Stop {
    Found(Offset, TimestampMs),
    Error(ReadError),
}

impl From<RecordError> for Stop {
    fn from(error: RecordError) -> Self {
        Self::Error(error.into())
    }
}

/// The first record that `wanted` accepts.
fn find(
    batch: &BatchView<'_>,
    wanted: impl Fn(Offset, TimestampMs) -> bool,
) -> Result<Option<(Offset, TimestampMs)>, ReadError> {
    let base_offset = batch.base_offset();
    let base_timestamp = batch.base_timestamp().get();
    let append_time = match batch.attributes().timestamp_type() {
        TimestampType::CreateTime => None,
        TimestampType::LogAppendTime => Some(batch.max_timestamp()),
    };
    let mut left = batch.record_count();
    let mut visit = |meta: RecordMeta| {
        // The count is as the file has it: it may be negative.
        if left <= 0 {
            return Err(Stop::Error(ReadError::Count { stated: batch.record_count() }));
        }
        left -= 1;
        let offset = base_offset.plus(i64::from(meta.offset_delta));
        let created = TimestampMs::new(base_timestamp.wrapping_add(meta.timestamp_delta));
        let at = append_time.unwrap_or(created);
        if wanted(offset, at) { Err(Stop::Found(offset, at)) } else { Ok(()) }
    };
    let mut source = Decompressor::new(codec_of(batch)?, batch.payload().len())?;
    let mut scanner = RecordScanner::new();
    loop {
        let chunk = source.next_chunk(batch.payload())?;
        if chunk.is_empty() {
            return if scanner.is_between_records() { Ok(None) } else { Err(RecordError::Truncated.into()) };
        }
        match scanner.feed(chunk, &mut visit) {
            Ok(()) => {}
            Err(Stop::Found(offset, at)) => return Ok(Some((offset, at))),
            Err(Stop::Error(error)) => return Err(error),
        }
    }
}

fn codec_of(batch: &BatchView<'_>) -> Result<Codec, ReadError> {
    let attributes = batch.attributes();
    attributes.codec().ok_or(ReadError::UnknownCodec(attributes.codec_id()))
}

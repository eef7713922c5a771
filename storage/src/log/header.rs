//! What the log reads of a batch without looking at its records, in any format that can lie on a disk. Pure.

use protocol::records::batch::{
    BATCH_HEADER_BYTES, BatchError, BatchInfo, LOG_OVERHEAD_BYTES, MAGIC_V2, PREFIX_BYTES, Prefix,
};
use protocol::types::{Offset, TimestampMs};

/// Why bytes do not begin with a batch that a log can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    /// They are no batch; `Truncated` means that more bytes would tell.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// No log has such offsets.
    #[error("offsets {0} to {1} are out of range")]
    Offsets(Offset, Offset),
    /// Its offsets are not above those before it, or not in its segment.
    #[error("offset {found} is below {expected}")]
    GoesBack {
        /// The offset.
        found: Offset,
        /// The least that it may be.
        expected: Offset,
    },
}

/// Bytes from which any header can be read.
pub(crate) const HEADER_BYTES: usize = BATCH_HEADER_BYTES;

/// A batch of magic 2, or a message (or compressed wrapper) of magic 0 or 1, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Where it begins in its file.
    pub(crate) position: u64,
    /// Its whole size.
    pub(crate) size: u64,
    /// Offset of its first record; for the old formats the last one, which is all that their header tells.
    pub(crate) base_offset: Offset,
    /// Offset of its last record.
    pub(crate) last_offset: Offset,
    /// Its greatest timestamp; none in magic 0.
    pub(crate) max_timestamp: TimestampMs,
    /// Everything else, of magic 2 only.
    pub(crate) info: Option<BatchInfo>,
}

impl Header {
    pub(crate) const fn end(&self) -> u64 {
        self.position.saturating_add(self.size)
    }

    /// Whether the batch can follow what ends below `expected`. An offset is all that no checksum covers.
    pub(crate) fn check_follows(&self, expected: Offset) -> Result<(), HeaderError> {
        // The old formats tell no first offset.
        let found = if self.info.is_some() { self.base_offset } else { self.last_offset };
        if found < expected || self.last_offset < expected {
            return Err(HeaderError::GoesBack { found: found.min(self.last_offset), expected });
        }
        Ok(())
    }

    /// Whether compaction removed all its records.
    pub(crate) fn is_empty(&self) -> bool {
        self.info.is_some_and(|info| info.record_count == 0)
    }

    pub(crate) const fn next_offset(&self) -> Offset {
        self.last_offset.plus(1)
    }
}

/// Position of the magic-1 timestamp; the smallest message of that format is 34 bytes.
const V1_TIMESTAMP: usize = 18;
const V1_BYTES_MIN: usize = 34;
/// The smallest message of magic 0, offset and length included.
const V0_BYTES_MIN: usize = 14 + LOG_OVERHEAD_BYTES;

/// Reads the header that `bytes` begin with; the records need not be there.
///
/// # Errors
/// What makes it no batch.
pub(crate) fn parse(bytes: &[u8], position: u64) -> Result<Header, HeaderError> {
    let prefix = Prefix::parse(bytes)?;
    let size = u64::try_from(prefix.size_in_bytes).unwrap_or(u64::MAX);
    if prefix.magic == MAGIC_V2 {
        let info = BatchInfo::parse_header(bytes)?;
        let (base_offset, last_offset) = (info.base_offset, info.last_offset);
        if base_offset.get() < 0 || last_offset < base_offset || last_offset.get() == i64::MAX {
            return Err(HeaderError::Offsets(base_offset, last_offset));
        }
        let max_timestamp = info.max_timestamp;
        return Ok(Header { position, size, base_offset, last_offset, max_timestamp, info: Some(info) });
    }
    parse_old(bytes, position, &prefix, size)
}

fn parse_old(bytes: &[u8], position: u64, prefix: &Prefix, size: u64) -> Result<Header, HeaderError> {
    let (bytes_min, max_timestamp) = match prefix.magic {
        0 => (V0_BYTES_MIN, TimestampMs::NONE),
        1 => {
            let raw = bytes.get(V1_TIMESTAMP..).and_then(|rest| rest.first_chunk::<8>());
            let truncated = BatchError::Truncated { needed: V1_BYTES_MIN, left: bytes.len() };
            (V1_BYTES_MIN, TimestampMs::new(i64::from_be_bytes(*raw.ok_or(truncated)?)))
        }
        other => return Err(BatchError::BadMagic(other).into()),
    };
    let offset = prefix.offset;
    if prefix.size_in_bytes < bytes_min {
        return Err(BatchError::BadLength(i32::try_from(prefix.size_in_bytes).unwrap_or(i32::MAX)).into());
    }
    if offset.get() < 0 || offset.get() == i64::MAX {
        return Err(HeaderError::Offsets(offset, offset));
    }
    Ok(Header { position, size, base_offset: offset, last_offset: offset, max_timestamp, info: None })
}

/// Whether bytes look like the zeros that `preallocate`, a power cut or a direct write leave behind (S-29).
pub(crate) fn is_zero_header(bytes: &[u8]) -> bool {
    bytes.iter().take(PREFIX_BYTES).all(|byte| *byte == 0)
}

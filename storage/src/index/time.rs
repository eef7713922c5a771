//! The time index: up to which offset no record is younger than a timestamp (storage.md 2.3).
//!
//! ```text
//! 0  8  timestamp T                strictly increasing
//! 8  4  offset - base offset       not decreasing
//! ```
//! Every record of the segment at or below the offset has a timestamp of at most T. The offset is the last one of the
//! earliest batch that holds T.

use bytes::{BufMut, Bytes, BytesMut};
use protocol::types::{Offset, TimestampMs};

use super::table::{self, Table, entries_of, without_padding};
use super::{IndexAppendError, IndexError, IndexWrite, MaxTimestamp, Parsed, relative};

/// Size of an entry.
pub const ENTRY_BYTES: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    timestamp: i64,
    relative: u32,
}

/// The time index of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeIndex {
    base: Offset,
    table: Table<Entry>,
    entries_max: usize,
}

impl TimeIndex {
    /// An empty index of at most `index_bytes_max` bytes (`segment.index.bytes`).
    pub const fn new(base: Offset, index_bytes_max: u32) -> Self {
        Self { base, table: Table::new(), entries_max: index_bytes_max as usize / ENTRY_BYTES }
    }

    /// Reads a file. An entry of zeros at the end counts as padding, also if it was meant as "timestamp 0": to know
    /// too little is harmless, while a greatest timestamp of 0 makes retention delete the segment (S-18).
    ///
    /// # Errors
    /// What makes the file unusable, so that the segment has to be recovered.
    pub fn parse(base: Offset, content: &[u8], index_bytes_max: u32) -> Result<Parsed<Self>, IndexError> {
        let (raw, padding_bytes) = without_padding(entries_of(content)?);
        let read = |number, last: Option<&Entry>, bytes: &[u8; ENTRY_BYTES]| {
            let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
            let entry = Entry {
                timestamp: i64::from_be_bytes([a, b, c, d, e, f, g, h]),
                relative: u32::from_be_bytes([i, j, k, l]),
            };
            let in_range = entry.timestamp >= 0
                && i32::try_from(entry.relative).is_ok()
                && base.get().checked_add(i64::from(entry.relative)).is_some();
            if !in_range {
                return Err(IndexError::OutOfRange(number));
            }
            if last.is_some_and(|last| entry.timestamp <= last.timestamp || entry.relative < last.relative) {
                return Err(IndexError::OutOfOrder(number));
            }
            Ok(entry)
        };
        let index = Self { table: Table::read(raw, read)?, ..Self::new(base, index_bytes_max) };
        Ok(Parsed { index, padding_bytes })
    }

    /// Number of entries.
    pub const fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether only the slot of the closing entry is left: one of the reasons to roll.
    pub const fn is_full(&self) -> bool {
        self.table.len().saturating_add(1) >= self.entries_max
    }

    /// Size of the file once everything is written.
    pub fn size_bytes(&self) -> u64 {
        self.table.size_bytes()
    }

    /// The last entry: the greatest timestamp as far as the index knows it.
    pub fn last(&self) -> Option<MaxTimestamp> {
        self.table.last().map(|entry| self.absolute(entry))
    }

    /// The entries in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = MaxTimestamp> + '_ {
        self.table.entries().iter().map(|entry| self.absolute(entry))
    }

    /// The greatest entry whose timestamp is not above `target`; `None` if all are above it, so that a search begins
    /// at the base offset.
    pub fn lookup(&self, target: TimestampMs) -> Option<MaxTimestamp> {
        self.table.last_where(|entry| entry.timestamp <= target.get()).map(|entry| self.absolute(entry))
    }

    /// Adds an entry if `timestamp` is above the last one; answers whether it did.
    ///
    /// # Errors
    /// Why there is no entry; the index is unchanged.
    pub fn maybe_append(&mut self, timestamp: TimestampMs, offset: Offset) -> Result<bool, IndexAppendError> {
        self.append_below(timestamp, offset, self.entries_max.saturating_sub(1))
    }

    /// Like [`Self::maybe_append`], but may use the slot that is kept for the closing entry.
    ///
    /// # Errors
    /// Why there is no entry; the index is unchanged.
    pub fn append_closing(
        &mut self,
        timestamp: TimestampMs,
        offset: Offset,
    ) -> Result<bool, IndexAppendError> {
        self.append_below(timestamp, offset, self.entries_max)
    }

    fn append_below(
        &mut self,
        timestamp: TimestampMs,
        offset: Offset,
        entries_max: usize,
    ) -> Result<bool, IndexAppendError> {
        let relative = relative(self.base, offset).ok_or(IndexAppendError::OutOfRange)?;
        let last = self.table.last().copied();
        if timestamp.get() <= last.map_or(TimestampMs::NONE.get(), |last| last.timestamp) {
            return Ok(false);
        }
        if last.is_some_and(|last| relative < last.relative) {
            return Err(IndexAppendError::OutOfOrder);
        }
        if self.table.len() >= entries_max {
            return Err(IndexAppendError::Full);
        }
        self.table.push(Entry { timestamp: timestamp.get(), relative });
        Ok(true)
    }

    /// Drops entries whose offset is at or above `offset`. The caller cuts the file to [`Self::size_bytes`].
    pub fn truncate_to(&mut self, offset: Offset) {
        let base = self.base;
        self.table.keep_while(|entry| base.plus(i64::from(entry.relative)) < offset);
    }

    /// Sets the capacity anew; applies to the next entry.
    pub const fn set_bytes_max(&mut self, index_bytes_max: u32) {
        self.entries_max = index_bytes_max as usize / ENTRY_BYTES;
    }

    /// Entries that are not in the file yet; `None` if there are none.
    pub fn unwritten(&self) -> Option<IndexWrite> {
        self.table.unwritten()
    }

    /// Notes that the file holds every entry below `size_bytes`.
    pub fn mark_written(&mut self, size_bytes: u64) {
        self.table.mark_written(size_bytes);
    }

    /// The whole file.
    pub fn to_bytes(&self) -> Bytes {
        self.table.to_bytes()
    }

    /// Bytes of memory that the entries take.
    pub const fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    fn absolute(&self, entry: &Entry) -> MaxTimestamp {
        let offset = self.base.plus(i64::from(entry.relative));
        MaxTimestamp { timestamp: TimestampMs::new(entry.timestamp), offset }
    }
}

impl table::Entry for Entry {
    const BYTES: usize = ENTRY_BYTES;

    fn put(&self, out: &mut BytesMut) {
        out.put_i64(self.timestamp);
        out.put_u32(self.relative);
    }
}

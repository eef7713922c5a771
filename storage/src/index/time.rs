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

use super::{IndexAppendError, IndexError, IndexWrite, MaxTimestamp, Parsed, position_of, relative};

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
    entries: Vec<Entry>,
    entries_max: usize,
    written: usize,
}

impl TimeIndex {
    /// An empty index of at most `index_bytes_max` bytes (`segment.index.bytes`).
    pub const fn new(base: Offset, index_bytes_max: u32) -> Self {
        Self { base, entries: Vec::new(), entries_max: index_bytes_max as usize / ENTRY_BYTES, written: 0 }
    }

    /// Reads a file. An entry of zeros at the end counts as padding, also if it was meant as "timestamp 0": to know
    /// too little is harmless, while a greatest timestamp of 0 makes retention delete the segment (S-18).
    ///
    /// # Errors
    /// What makes the file unusable, so that the segment has to be recovered.
    pub fn parse(base: Offset, content: &[u8], index_bytes_max: u32) -> Result<Parsed<Self>, IndexError> {
        let (raw, rest) = content.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(IndexError::PartialEntry { bytes: content.len(), entry_bytes: ENTRY_BYTES });
        }
        let used = raw.iter().rposition(|entry| *entry != [0; ENTRY_BYTES]).map_or(0, |last| last + 1);
        let mut index = Self::new(base, index_bytes_max);
        index.entries.reserve_exact(used);
        for (number, [a, b, c, d, e, f, g, h, i, j, k, l]) in raw.iter().take(used).enumerate() {
            let entry = Entry {
                timestamp: i64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
                relative: u32::from_be_bytes([*i, *j, *k, *l]),
            };
            let in_range = entry.timestamp >= 0
                && i32::try_from(entry.relative).is_ok()
                && base.get().checked_add(i64::from(entry.relative)).is_some();
            if !in_range {
                return Err(IndexError::OutOfRange(number));
            }
            let last = index.entries.last();
            if last.is_some_and(|last| entry.timestamp <= last.timestamp || entry.relative < last.relative) {
                return Err(IndexError::OutOfOrder(number));
            }
            index.entries.push(entry);
        }
        index.written = used;
        Ok(Parsed { index, padding_bytes: (raw.len() - used) * ENTRY_BYTES })
    }

    /// Number of entries.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether only the slot of the closing entry is left: one of the reasons to roll.
    pub const fn is_full(&self) -> bool {
        self.entries.len().saturating_add(1) >= self.entries_max
    }

    /// Size of the file once everything is written.
    pub fn size_bytes(&self) -> u64 {
        position_of(self.entries.len(), ENTRY_BYTES)
    }

    /// The last entry: the greatest timestamp as far as the index knows it.
    pub fn last(&self) -> Option<MaxTimestamp> {
        self.entries.last().map(|entry| self.absolute(entry))
    }

    /// The entries in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = MaxTimestamp> + '_ {
        self.entries.iter().map(|entry| self.absolute(entry))
    }

    /// The greatest entry whose timestamp is not above `target`; `None` if all are above it, so that a search begins
    /// at the base offset.
    pub fn lookup(&self, target: TimestampMs) -> Option<MaxTimestamp> {
        let above = self.entries.partition_point(|entry| entry.timestamp <= target.get());
        self.entries.get(above.checked_sub(1)?).map(|entry| self.absolute(entry))
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
        let last = self.entries.last().copied();
        if timestamp.get() <= last.map_or(TimestampMs::NONE.get(), |last| last.timestamp) {
            return Ok(false);
        }
        if last.is_some_and(|last| relative < last.relative) {
            return Err(IndexAppendError::OutOfOrder);
        }
        if self.entries.len() >= entries_max {
            return Err(IndexAppendError::Full);
        }
        self.entries.push(Entry { timestamp: timestamp.get(), relative });
        Ok(true)
    }

    /// Drops entries whose offset is at or above `offset`. The caller cuts the file to [`Self::size_bytes`].
    pub fn truncate_to(&mut self, offset: Offset) {
        let kept = self.entries.partition_point(|entry| self.absolute(entry).offset < offset);
        self.entries.truncate(kept);
        self.written = self.written.min(kept);
    }

    /// Sets the capacity anew; applies to the next entry.
    pub const fn set_bytes_max(&mut self, index_bytes_max: u32) {
        self.entries_max = index_bytes_max as usize / ENTRY_BYTES;
    }

    /// Entries that are not in the file yet; `None` if there are none.
    pub fn unwritten(&self) -> Option<IndexWrite> {
        let new = self.entries.get(self.written..).filter(|new| !new.is_empty())?;
        Some(IndexWrite { at: position_of(self.written, ENTRY_BYTES), bytes: encode(new) })
    }

    /// Notes that the file holds every entry below `size_bytes`.
    pub fn mark_written(&mut self, size_bytes: u64) {
        let entries = usize::try_from(size_bytes).unwrap_or(usize::MAX) / ENTRY_BYTES;
        self.written = entries.min(self.entries.len());
    }

    /// The whole file.
    pub fn to_bytes(&self) -> Bytes {
        encode(&self.entries)
    }

    /// Bytes of memory that the entries take.
    pub const fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    fn absolute(&self, entry: &Entry) -> MaxTimestamp {
        let offset = self.base.plus(i64::from(entry.relative));
        MaxTimestamp { timestamp: TimestampMs::new(entry.timestamp), offset }
    }
}

fn encode(entries: &[Entry]) -> Bytes {
    let mut out = BytesMut::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        out.put_i64(entry.timestamp);
        out.put_u32(entry.relative);
    }
    out.freeze()
}

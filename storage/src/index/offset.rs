//! The offset index: last offset of some batches and where those batches begin (storage.md 2.2).
//!
//! ```text
//! 0  4  offset - base offset       0 to 2^31-1
//! 4  4  position in the .log       strictly increasing, like the offset
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use protocol::types::Offset;

use super::table::{self, Table, entries_of, without_padding};
use super::{IndexAppendError, IndexError, IndexWrite, Parsed, relative};

/// Size of an entry.
pub const ENTRY_BYTES: usize = 8;

/// An entry with its offset made absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetPosition {
    /// Last offset of a batch.
    pub offset: Offset,
    /// Where that batch begins.
    pub position: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    relative: u32,
    position: u32,
}

/// The offset index of one segment, in memory as a whole (S-12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetIndex {
    base: Offset,
    table: Table<Entry>,
    entries_max: usize,
}

impl OffsetIndex {
    /// An empty index of at most `index_bytes_max` bytes (`segment.index.bytes`).
    pub const fn new(base: Offset, index_bytes_max: u32) -> Self {
        Self { base, table: Table::new(), entries_max: index_bytes_max as usize / ENTRY_BYTES }
    }

    /// Reads a file. It may hold more entries than `index_bytes_max` allows; then the index is full.
    ///
    /// # Errors
    /// What makes the file unusable, so that the segment has to be recovered.
    pub fn parse(base: Offset, content: &[u8], index_bytes_max: u32) -> Result<Parsed<Self>, IndexError> {
        // No entry is all zero: the first batch of a segment, the only one at position 0, is never indexed.
        let (raw, padding_bytes) = without_padding(entries_of(content)?);
        let read = |number, last: Option<&Entry>, bytes: &[u8; ENTRY_BYTES]| {
            let [a, b, c, d, e, f, g, h] = *bytes;
            let entry = Entry {
                relative: u32::from_be_bytes([a, b, c, d]),
                position: u32::from_be_bytes([e, f, g, h]),
            };
            let in_range = i32::try_from(entry.relative).is_ok()
                && i32::try_from(entry.position).is_ok()
                && base.get().checked_add(i64::from(entry.relative)).is_some();
            if !in_range {
                return Err(IndexError::OutOfRange(number));
            }
            if last.is_some_and(|last| entry.relative <= last.relative || entry.position <= last.position) {
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

    /// Whether no entry can be added: one of the reasons to roll.
    pub const fn is_full(&self) -> bool {
        self.table.len() >= self.entries_max
    }

    /// Size of the file once everything is written.
    pub fn size_bytes(&self) -> u64 {
        self.table.size_bytes()
    }

    /// The last entry.
    pub fn last(&self) -> Option<OffsetPosition> {
        self.table.last().map(|entry| self.absolute(entry))
    }

    /// The entries in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = OffsetPosition> + '_ {
        self.table.entries().iter().map(|entry| self.absolute(entry))
    }

    /// The greatest entry whose offset is not above `target`, else the start of the segment: where a scan for
    /// `target` begins.
    pub fn lookup(&self, target: Offset) -> OffsetPosition {
        let found = self.table.last_where(|entry| self.absolute(entry).offset <= target);
        found.map_or(OffsetPosition { offset: self.base, position: 0 }, |entry| self.absolute(entry))
    }

    /// The first entry whose offset is not below `target`: no batch that ends below `target` reaches its position.
    pub fn ceiling(&self, target: Offset) -> Option<OffsetPosition> {
        self.table
            .first_where_not(|entry| self.absolute(entry).offset < target)
            .map(|entry| self.absolute(entry))
    }

    /// The first entry at or behind a position: an offset that a read which ends there cannot have passed
    /// (storage.md 3, "aborted list").
    pub fn first_at_position(&self, position: u64) -> Option<OffsetPosition> {
        let found = self.table.first_where_not(|entry| u64::from(entry.position) < position);
        found.map(|entry| self.absolute(entry))
    }

    /// Adds the last offset of a batch and where it begins.
    ///
    /// # Errors
    /// Why there is no entry; the index is unchanged.
    pub fn append(&mut self, last_offset: Offset, position: u64) -> Result<(), IndexAppendError> {
        if self.is_full() {
            return Err(IndexAppendError::Full);
        }
        let relative = relative(self.base, last_offset).ok_or(IndexAppendError::OutOfRange)?;
        let position = i32::try_from(position).ok().and_then(|position| u32::try_from(position).ok());
        let position = position.ok_or(IndexAppendError::OutOfRange)?;
        let (last_relative, last_position) =
            self.table.last().map_or((None, 0), |last| (Some(last.relative), last.position));
        // Position 0 is where a lookup without an entry begins, and an entry there would look like padding.
        if last_relative.is_some_and(|last| relative <= last) || position <= last_position {
            return Err(IndexAppendError::OutOfOrder);
        }
        self.table.push(Entry { relative, position });
        Ok(())
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

    fn absolute(&self, entry: &Entry) -> OffsetPosition {
        OffsetPosition {
            offset: self.base.plus(i64::from(entry.relative)),
            position: u64::from(entry.position),
        }
    }
}

impl table::Entry for Entry {
    const BYTES: usize = ENTRY_BYTES;

    fn put(&self, out: &mut BytesMut) {
        out.put_u32(self.relative);
        out.put_u32(self.position);
    }
}

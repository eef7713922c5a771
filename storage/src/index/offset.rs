//! The offset index: last offset of some batches and where those batches begin (storage.md 2.2).
//!
//! ```text
//! 0  4  offset - base offset       0 to 2^31-1
//! 4  4  position in the .log       strictly increasing, like the offset
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use protocol::types::Offset;

use super::{IndexAppendError, IndexError, IndexWrite, Parsed, position_of, relative};

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
    entries: Vec<Entry>,
    entries_max: usize,
    written: usize,
}

impl OffsetIndex {
    /// An empty index of at most `index_bytes_max` bytes (`segment.index.bytes`).
    pub const fn new(base: Offset, index_bytes_max: u32) -> Self {
        Self { base, entries: Vec::new(), entries_max: index_bytes_max as usize / ENTRY_BYTES, written: 0 }
    }

    /// Reads a file. It may hold more entries than `index_bytes_max` allows; then the index is full.
    ///
    /// # Errors
    /// What makes the file unusable, so that the segment has to be recovered.
    pub fn parse(base: Offset, content: &[u8], index_bytes_max: u32) -> Result<Parsed<Self>, IndexError> {
        let (raw, rest) = content.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(IndexError::PartialEntry { bytes: content.len(), entry_bytes: ENTRY_BYTES });
        }
        // No entry is all zero: the first batch of a segment, the only one at position 0, is never indexed.
        let used = raw.iter().rposition(|entry| *entry != [0; ENTRY_BYTES]).map_or(0, |last| last + 1);
        let mut index = Self::new(base, index_bytes_max);
        index.entries.reserve_exact(used);
        for (number, [a, b, c, d, e, f, g, h]) in raw.iter().take(used).enumerate() {
            let entry = Entry {
                relative: u32::from_be_bytes([*a, *b, *c, *d]),
                position: u32::from_be_bytes([*e, *f, *g, *h]),
            };
            if i32::try_from(entry.relative).is_err() || i32::try_from(entry.position).is_err() {
                return Err(IndexError::OutOfRange(number));
            }
            if base.get().checked_add(i64::from(entry.relative)).is_none() {
                return Err(IndexError::OutOfRange(number));
            }
            let last = index.entries.last();
            if last.is_some_and(|last| entry.relative <= last.relative || entry.position <= last.position) {
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

    /// Whether no entry can be added: one of the reasons to roll.
    pub const fn is_full(&self) -> bool {
        self.entries.len() >= self.entries_max
    }

    /// Size of the file once everything is written.
    pub fn size_bytes(&self) -> u64 {
        position_of(self.entries.len(), ENTRY_BYTES)
    }

    /// The last entry.
    pub fn last(&self) -> Option<OffsetPosition> {
        self.entries.last().map(|entry| self.absolute(entry))
    }

    /// The entries in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = OffsetPosition> + '_ {
        self.entries.iter().map(|entry| self.absolute(entry))
    }

    /// The greatest entry whose offset is not above `target`, else the start of the segment: where a scan for
    /// `target` begins.
    pub fn lookup(&self, target: Offset) -> OffsetPosition {
        let above = self.entries.partition_point(|entry| self.absolute(entry).offset <= target);
        let found = above.checked_sub(1).and_then(|at| self.entries.get(at));
        found.map_or(OffsetPosition { offset: self.base, position: 0 }, |entry| self.absolute(entry))
    }

    /// The first entry at or behind a position: an offset that a read which ends there cannot have passed
    /// (storage.md 3, "aborted list").
    pub fn first_at_position(&self, position: u64) -> Option<OffsetPosition> {
        let before = self.entries.partition_point(|entry| u64::from(entry.position) < position);
        self.entries.get(before).map(|entry| self.absolute(entry))
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
            self.entries.last().map_or((None, 0), |last| (Some(last.relative), last.position));
        // Position 0 is where a lookup without an entry begins, and an entry there would look like padding.
        if last_relative.is_some_and(|last| relative <= last) || position <= last_position {
            return Err(IndexAppendError::OutOfOrder);
        }
        self.entries.push(Entry { relative, position });
        Ok(())
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

    fn absolute(&self, entry: &Entry) -> OffsetPosition {
        OffsetPosition {
            offset: self.base.plus(i64::from(entry.relative)),
            position: u64::from(entry.position),
        }
    }
}

fn encode(entries: &[Entry]) -> Bytes {
    let mut out = BytesMut::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        out.put_u32(entry.relative);
        out.put_u32(entry.position);
    }
    out.freeze()
}

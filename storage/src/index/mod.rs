//! The three indexes of a segment: entry codecs, compact tables in memory, and the rule that says which batches get
//! an entry (storage.md 2.2 to 2.4, 4.2). Pure; [`crate::log`] reads and writes the files.
//!
//! Reading order: [`offset`] and [`time`] (sparse, found by binary search), [`txn`] (aborted transactions), then
//! [`SparseRule`], through which every path that writes or rebuilds a segment feeds the first two. `table` is what
//! the three share.

pub mod offset;
mod table;
pub mod time;
pub mod txn;

use bytes::Bytes;
use protocol::types::{Offset, TimestampMs};

use self::offset::OffsetIndex;
use self::time::TimeIndex;

/// Why the content of an index file is not one: the segment has to be recovered. Entries count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The size is no multiple of the entry size.
    #[error("{bytes} bytes are no multiple of {entry_bytes}")]
    PartialEntry {
        /// Size of the file.
        bytes: usize,
        /// Size of an entry.
        entry_bytes: usize,
    },
    /// An entry is not above the one before it.
    #[error("entry {0} is not above its predecessor")]
    OutOfOrder(usize),
    /// An entry's offset, position or timestamp is none that a segment can hold.
    #[error("entry {0} is out of the range of its segment")]
    OutOfRange(usize),
    /// An entry has a version that this release does not know.
    #[error("entry {entry} has the unknown version {version}")]
    UnknownVersion {
        /// The entry.
        entry: usize,
        /// Its version.
        version: u8,
    },
}

/// Why an entry was not added. The index is unchanged; a sparse index does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexAppendError {
    /// The index has the number of entries that `segment.index.bytes` allows.
    #[error("the index is full")]
    Full,
    /// The entry is not above the last one.
    #[error("the entry is not above the last one")]
    OutOfOrder,
    /// The offset is more than 2^31-1 above the base offset or below it, or the position exceeds 2^31-1.
    #[error("the entry is out of the range of the segment")]
    OutOfRange,
}

/// A parsed index file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<I> {
    /// The index, all of it marked as written.
    pub index: I,
    /// Bytes of zeros behind the last entry. A Kafka that was killed leaves its active segment's indexes padded to
    /// their capacity; the file has to be cut before entries are added. A file below the recovery point that consists
    /// of zeros only tells that its content was lost (S-18).
    pub padding_bytes: usize,
}

/// Entries that are not in the file yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexWrite {
    /// Position in the file.
    pub at: u64,
    /// What to write there.
    pub bytes: Bytes,
}

/// `offset - base` where it fits an index entry: 0 to 2^31-1.
fn relative(base: Offset, offset: Offset) -> Option<u32> {
    let delta = offset.get().checked_sub(base.get())?;
    i32::try_from(delta).ok().and_then(|delta| u32::try_from(delta).ok())
}

/// What [`SparseRule`] needs to know of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlace {
    /// Offset of its last record, as the header says.
    pub last_offset: Offset,
    /// Its greatest timestamp, as the header says.
    pub max_timestamp: TimestampMs,
    /// Where it begins in the `.log`.
    pub position: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether compaction removed all its records.
    pub is_empty: bool,
}

/// A timestamp and the last offset of the earliest batch that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxTimestamp {
    /// The timestamp.
    pub timestamp: TimestampMs,
    /// Last offset of the batch.
    pub offset: Offset,
}

/// The sparse index rule of storage.md 4.2, per batch in every path (S-14): once more than `index.interval.bytes`
/// were added since the last entry, the next batch gets one in both indexes.
///
/// The byte counter is not persisted: a loaded or truncated segment starts with a new rule, so its next batch is not
/// indexed, like the first batch of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SparseRule {
    bytes_since_entry: u64,
    max: Option<MaxTimestamp>,
    max_of_emptied: Option<MaxTimestamp>,
}

impl SparseRule {
    /// The rule of a segment whose greatest timestamp so far is `max`; `None` for a segment without batches, or
    /// without timestamps.
    pub const fn new(max: Option<MaxTimestamp>) -> Self {
        Self { bytes_since_entry: 0, max, max_of_emptied: None }
    }

    /// The greatest timestamp so far, by batches that hold records if there are any (S-15). `None` while no batch has
    /// a timestamp.
    pub fn max_timestamp(&self) -> Option<MaxTimestamp> {
        self.max.or(self.max_of_emptied)
    }

    /// Notes a batch that was just added to the segment. A full index goes without an entry; the roll that it asks
    /// for is the caller's (storage.md 4.3).
    pub fn on_batch(
        &mut self,
        batch: BatchPlace,
        index_interval_bytes: u64,
        offsets: &mut OffsetIndex,
        times: &mut TimeIndex,
    ) {
        let slot = if batch.is_empty { &mut self.max_of_emptied } else { &mut self.max };
        let above = slot.map_or(TimestampMs::NONE, |max| max.timestamp);
        if batch.max_timestamp > above {
            *slot = Some(MaxTimestamp { timestamp: batch.max_timestamp, offset: batch.last_offset });
        }
        if self.bytes_since_entry > index_interval_bytes {
            let _ = offsets.append(batch.last_offset, batch.position);
            if let Some(max) = self.max {
                let _ = times.maybe_append(max.timestamp, max.offset);
            }
            self.bytes_since_entry = 0;
        }
        self.bytes_since_entry = self.bytes_since_entry.saturating_add(batch.bytes);
    }

    /// Adds the closing entry, in the slot that is kept free for it: at a roll, at close, after recovery. Without it
    /// a later load does not know the greatest timestamp (storage.md 4.4).
    pub fn close(&self, times: &mut TimeIndex) {
        if let Some(max) = self.max_timestamp() {
            let _ = times.append_closing(max.timestamp, max.offset);
        }
    }
}

#[cfg(test)]
mod tests;

//! What the three indexes share: entries of one size in memory, a prefix of which is in the file. Knows neither what an
//! entry means nor the file; [`super::offset`], [`super::time`] and [`super::txn`] stand on it.

use bytes::{Bytes, BytesMut};

use super::{IndexError, IndexWrite};

/// An entry as the file holds it.
pub trait Entry {
    /// Its size in the file.
    const BYTES: usize;

    /// Appends exactly [`Self::BYTES`].
    fn put(&self, out: &mut BytesMut);
}

/// Entries in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table<E> {
    entries: Vec<E>,
    /// The file holds the entries below.
    written: usize,
}

impl<E> Default for Table<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> Table<E> {
    /// No entry.
    pub const fn new() -> Self {
        Self { entries: Vec::new(), written: 0 }
    }

    /// All entries.
    pub fn entries(&self) -> &[E] {
        &self.entries
    }

    /// Their number.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The last one.
    pub fn last(&self) -> Option<&E> {
        self.entries.last()
    }

    /// The last entry for which `is_low` holds, if it holds for a prefix.
    pub fn last_where(&self, is_low: impl FnMut(&E) -> bool) -> Option<&E> {
        self.entries.partition_point(is_low).checked_sub(1).and_then(|at| self.entries.get(at))
    }

    /// The first entry for which `is_low` does not hold, if it holds for a prefix.
    pub fn first_where_not(&self, is_low: impl FnMut(&E) -> bool) -> Option<&E> {
        self.entries.get(self.entries.partition_point(is_low))
    }

    /// Adds an entry that is not in the file.
    pub fn push(&mut self, entry: E) {
        self.entries.push(entry);
    }

    /// Keeps the prefix for which `is_kept` holds. The caller cuts the file to [`Self::size_bytes`].
    pub fn keep_while(&mut self, is_kept: impl FnMut(&E) -> bool) {
        let kept = self.entries.partition_point(is_kept);
        self.entries.truncate(kept);
        self.written = self.written.min(kept);
    }

    /// Bytes of memory that the entries take.
    pub const fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<E>()
    }
}

impl<E: Entry> Table<E> {
    /// Entries of a file, all of them written, each built from its number, what is there before it, and its bytes.
    ///
    /// # Errors
    /// What `read` answers.
    pub fn read<const N: usize>(
        raw: &[[u8; N]],
        mut read: impl FnMut(usize, Option<&E>, &[u8; N]) -> Result<E, IndexError>,
    ) -> Result<Self, IndexError> {
        let mut entries = Vec::with_capacity(raw.len());
        for (number, bytes) in raw.iter().enumerate() {
            let entry = read(number, entries.last(), bytes)?;
            entries.push(entry);
        }
        Ok(Self { written: entries.len(), entries })
    }

    /// Size of the file once everything is written.
    pub fn size_bytes(&self) -> u64 {
        position_of::<E>(self.entries.len())
    }

    /// Entries that are not in the file yet; `None` if there are none.
    pub fn unwritten(&self) -> Option<IndexWrite> {
        let new = self.entries.get(self.written..).filter(|new| !new.is_empty())?;
        Some(IndexWrite { at: position_of::<E>(self.written), bytes: encode(new) })
    }

    /// Notes that the file holds every entry below `size_bytes`.
    pub fn mark_written(&mut self, size_bytes: u64) {
        let entries = usize::try_from(size_bytes).unwrap_or(usize::MAX) / E::BYTES;
        self.written = entries.min(self.entries.len());
    }

    /// The whole file.
    pub fn to_bytes(&self) -> Bytes {
        encode(&self.entries)
    }
}

/// The entries of a file.
///
/// # Errors
/// Its size is no multiple of theirs.
pub fn entries_of<const N: usize>(content: &[u8]) -> Result<&[[u8; N]], IndexError> {
    let (raw, rest) = content.as_chunks::<N>();
    if rest.is_empty() {
        Ok(raw)
    } else {
        Err(IndexError::PartialEntry { bytes: content.len(), entry_bytes: N })
    }
}

/// Parts the entries of a file from the zeros behind them, whose bytes are answered too.
pub fn without_padding<const N: usize>(raw: &[[u8; N]]) -> (&[[u8; N]], usize) {
    let used = raw.iter().rposition(|entry| *entry != [0; N]).map_or(0, |last| last + 1);
    let (entries, padding) = raw.split_at(used);
    (entries, padding.len() * N)
}

fn position_of<E: Entry>(entries: usize) -> u64 {
    u64::try_from(entries.saturating_mul(E::BYTES)).unwrap_or(u64::MAX)
}

fn encode<E: Entry>(entries: &[E]) -> Bytes {
    let mut out = BytesMut::with_capacity(entries.len() * E::BYTES);
    for entry in entries {
        entry.put(&mut out);
    }
    out.freeze()
}

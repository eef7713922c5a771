//! Which snapshot files a log has, and which of them have to go (storage.md 6). Pure; the caller removes the files.

use std::collections::BTreeSet;

use protocol::types::Offset;

/// The offsets of a log's snapshot files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshots {
    offsets: BTreeSet<Offset>,
}

impl Snapshots {
    /// The files that were found, or none.
    pub fn new(offsets: impl IntoIterator<Item = Offset>) -> Self {
        Self { offsets: offsets.into_iter().collect() }
    }

    /// Their offsets, ascending.
    pub fn offsets(&self) -> impl DoubleEndedIterator<Item = Offset> + '_ {
        self.offsets.iter().copied()
    }

    /// Whether there is one at an offset.
    pub fn contains(&self, offset: Offset) -> bool {
        self.offsets.contains(&offset)
    }

    /// The newest one: where a reload begins.
    pub fn newest(&self) -> Option<Offset> {
        self.offsets.last().copied()
    }

    /// The newest one at or below an offset: where the recovery of a segment begins.
    pub fn newest_at_or_below(&self, offset: Offset) -> Option<Offset> {
        self.offsets.range(..=offset).next_back().copied()
    }

    /// Notes a file that was written.
    pub fn insert(&mut self, offset: Offset) {
        self.offsets.insert(offset);
    }

    /// Notes that a file is gone; answers whether there was one.
    pub fn remove(&mut self, offset: Offset) -> bool {
        self.offsets.remove(&offset)
    }

    /// Takes out the snapshots that lie outside the log after a truncation: above its end, or at or below its start.
    #[must_use]
    pub fn take_outside(&mut self, log_start_offset: Offset, log_end_offset: Offset) -> Vec<Offset> {
        self.take(|offset| offset > log_end_offset || offset <= log_start_offset)
    }

    /// Takes out the snapshots below an offset: of segments that retention removed.
    #[must_use]
    pub fn take_below(&mut self, offset: Offset) -> Vec<Offset> {
        self.take(|snapshot| snapshot < offset)
    }

    /// Takes out, at load, the snapshots that belong to no segment, except the newest of them if it lies above the last
    /// segment's base: that one was taken at the end of the log by a clean stop.
    #[must_use]
    pub fn take_stray(&mut self, segment_bases: &BTreeSet<Offset>) -> Vec<Offset> {
        let last_base = segment_bases.last().copied();
        let newest = self.offsets.iter().rev().find(|offset| !segment_bases.contains(offset)).copied();
        let kept = newest.filter(|newest| last_base.is_none_or(|last| *newest > last));
        self.take(|offset| !segment_bases.contains(&offset) && Some(offset) != kept)
    }

    /// Takes out every snapshot: the log restarts.
    #[must_use]
    pub fn take_all(&mut self) -> Vec<Offset> {
        self.take(|_| true)
    }

    fn take(&mut self, doomed: impl Fn(Offset) -> bool) -> Vec<Offset> {
        let taken: Vec<_> = self.offsets().filter(|offset| doomed(*offset)).collect();
        for offset in &taken {
            self.offsets.remove(offset);
        }
        taken
    }
}

//! The leader epochs of one log: which epoch begins at which offset (storage.md 5, KIP-101). Pure; [`crate::log`]
//! writes [`LeaderEpochCache::to_text`] to `leader-epoch-checkpoint` when a call here says that the file is behind.
//!
//! The file may hold stale entries after a crash but must never miss one (S-16), so what adds an entry is written
//! before the data that it describes, and what removes one may be written later.

use protocol::types::{LeaderEpoch, Offset};

use crate::checkpoint::{self, CheckpointError};

/// One leader epoch of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochEntry {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// Offset of its first record.
    pub start_offset: Offset,
}

/// Leader epochs in ascending order, by epoch and by start offset alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderEpochCache {
    entries: Vec<EpochEntry>,
}

impl LeaderEpochCache {
    /// A cache without entries.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> &[EpochEntry] {
        &self.entries
    }

    /// The newest entry.
    pub fn latest(&self) -> Option<EpochEntry> {
        self.entries.last().copied()
    }

    /// The oldest entry.
    pub fn earliest(&self) -> Option<EpochEntry> {
        self.entries.first().copied()
    }

    /// The epoch in which `offset` was or would be written; `None` before the first entry.
    pub fn epoch_for_offset(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self.entries.partition_point(|entry| entry.start_offset <= offset);
        self.entries.get(after.checked_sub(1)?).map(|entry| entry.epoch)
    }

    /// Whether [`Self::assign`] would change anything, so that the file has to be written first.
    pub fn needs_assign(&self, epoch: LeaderEpoch, start_offset: Offset) -> bool {
        let legal = epoch.get() >= 0 && start_offset.get() >= 0;
        legal && self.latest().is_none_or(|last| last.epoch != epoch || start_offset < last.start_offset)
    }

    /// Notes that `epoch` begins at `start_offset`, and drops entries at the end that contradict it. Answers whether
    /// anything changed: then the file must be durable before the append is acknowledged. A negative epoch (messages
    /// of old formats carry none) or offset changes nothing.
    pub fn assign(&mut self, epoch: LeaderEpoch, start_offset: Offset) -> bool {
        if !self.needs_assign(epoch, start_offset) {
            return false;
        }
        while self.latest().is_some_and(|last| last.epoch >= epoch || last.start_offset >= start_offset) {
            self.entries.pop();
        }
        self.entries.push(EpochEntry { epoch, start_offset });
        true
    }

    /// Drops entries that begin at or above `end_offset`. Answers whether any was dropped; the file may follow later.
    pub fn truncate_from_end(&mut self, end_offset: Offset) -> bool {
        if end_offset.get() < 0 {
            return false;
        }
        let kept = self.entries.partition_point(|entry| entry.start_offset < end_offset);
        let changed = kept < self.entries.len();
        self.entries.truncate(kept);
        changed
    }

    /// Drops entries that begin at or below `start_offset`, except that the newest of them then begins there.
    /// Answers whether anything changed; the file may follow later.
    pub fn truncate_from_start(&mut self, start_offset: Offset) -> bool {
        let below = self.entries.partition_point(|entry| entry.start_offset <= start_offset);
        let Some(newest) = below.checked_sub(1) else { return false };
        let Some(entry) = self.entries.get_mut(newest) else { return false };
        let changed = newest > 0 || entry.start_offset != start_offset;
        entry.start_offset = start_offset;
        self.entries.drain(..newest);
        changed
    }

    /// What is left of the entries for a log that starts here.
    #[must_use]
    pub fn from_start(&self, start_offset: Offset) -> Self {
        let mut left = self.clone();
        left.truncate_from_start(start_offset);
        left
    }

    /// Drops everything; the file must follow now.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Where `epoch` ended, as OffsetForLeaderEpoch answers it: the greatest known epoch not above `epoch` (or
    /// `epoch` itself if all known ones are above) and the offset at which the next one begins. `None` if undefined:
    /// no epoch was asked for, or nothing above it is known.
    pub fn end_offset_for(&self, epoch: LeaderEpoch, log_end_offset: Offset) -> Option<EpochEntry> {
        if epoch == LeaderEpoch::NONE {
            return None;
        }
        if self.latest().is_some_and(|last| last.epoch == epoch) {
            return Some(EpochEntry { epoch, start_offset: log_end_offset });
        }
        let higher = self.entries.partition_point(|entry| entry.epoch <= epoch);
        let end = self.entries.get(higher)?.start_offset;
        let floor = higher.checked_sub(1).and_then(|at| self.entries.get(at));
        Some(EpochEntry { epoch: floor.map_or(epoch, |entry| entry.epoch), start_offset: end })
    }

    /// The content of `leader-epoch-checkpoint`.
    pub fn to_text(&self) -> String {
        checkpoint::print(self.entries.iter().map(|entry| format!("{} {}", entry.epoch, entry.start_offset)))
    }

    /// Reads the content of `leader-epoch-checkpoint`. Entries that contradict a later line give way to it.
    ///
    /// # Errors
    /// What is malformed, negative epochs and offsets included.
    pub fn parse(content: &[u8]) -> Result<Self, CheckpointError> {
        let mut cache = Self::new();
        checkpoint::parse(content, |[epoch, start_offset]| {
            let epoch: i32 = epoch.parse().ok().filter(|epoch| *epoch >= 0)?;
            let start_offset: i64 = start_offset.parse().ok().filter(|offset| *offset >= 0)?;
            cache.assign(LeaderEpoch::new(epoch), Offset::new(start_offset));
            Some(())
        })?;
        Ok(cache)
    }
}

#[cfg(test)]
mod tests;

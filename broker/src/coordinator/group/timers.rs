//! Timers of the groups of one partition, earliest first. Owns when each one fires; knows nothing of what it is for:
//! whoever armed one keeps its key, and takes it back before what it is for goes away. Called by the rest of `group`.

use std::collections::BTreeMap;

use protocol::types::MonoTime;

use crate::coordinator::ask::{GroupId, MemberId};

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// A member must have been heard of.
    Session { group: GroupId, member: MemberId },
    /// Somebody who was given an id must have joined with it (KIP-394).
    Pending { group: GroupId, member: MemberId },
    /// The join phase ends.
    Join { group: GroupId },
    /// Everybody must have synced (KAFKA-12890).
    Sync { group: GroupId },
}

impl Timer {
    /// Whose it is.
    pub(super) const fn group(&self) -> &GroupId {
        match self {
            Self::Session { group, .. }
            | Self::Pending { group, .. }
            | Self::Join { group }
            | Self::Sync { group } => group,
        }
    }
}

/// Names an armed timer. Timers of one time fire in the order in which they were armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerKey {
    at: MonoTime,
    sequence: u64,
}

impl TimerKey {
    /// When it fires.
    pub(super) const fn at(self) -> MonoTime {
        self.at
    }
}

/// All armed timers.
#[derive(Debug, Default)]
pub(super) struct Timers {
    armed: BTreeMap<TimerKey, Timer>,
    sequence: u64,
}

impl Timers {
    /// Arms a timer.
    pub(super) fn arm(&mut self, at: MonoTime, timer: Timer) -> TimerKey {
        self.sequence += 1;
        let key = TimerKey { at, sequence: self.sequence };
        self.armed.insert(key, timer);
        key
    }

    /// Takes a timer back.
    pub(super) fn cancel(&mut self, key: Option<TimerKey>) {
        if let Some(key) = key {
            let was_armed = self.armed.remove(&key);
            assert!(was_armed.is_some(), "a key is kept only while its timer is armed");
        }
    }

    /// When the first one fires.
    pub(super) fn next(&self) -> Option<MonoTime> {
        self.armed.first_key_value().map(|(key, _)| key.at)
    }

    /// The first one, if its time has come. Its key is void from now on.
    pub(super) fn pop_due(&mut self, now: MonoTime) -> Option<Timer> {
        let first = self.armed.first_entry()?;
        (first.key().at <= now).then(|| first.remove())
    }

    /// Drops some, for when whoever armed them is gone.
    pub(super) fn drop_some(&mut self, budget: &mut usize) {
        while *budget > 0 && self.armed.pop_first().is_some() {
            *budget -= 1;
        }
    }

    /// How many are armed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.armed.len()
    }
}

//! The free-space floor of a shard's log dir (S-32, `storage.free.space.floor.bytes`): below it produce is refused, before
//! the disk is full; reads, deletes, retention and replication go on. Appends, taken or refused, make the shard look at
//! the disk now and then, away from its thread, so that an idle shard never does. Knows no log; used by `append`.

use std::cell::Cell;
use std::path::Path;

use protocol::types::MonoTime;
use storage::io::{DirDone, DirOp, Runtime};

/// How old an answer of the disk may be when something is appended.
const AGE_NANOS_MAX: u64 = 1_000_000_000;

/// A part of the floor that is appended makes the shard look again, however new the answer is.
const PARTS: u64 = 8;

/// Whether there is room above the floor, as last seen.
#[derive(Debug)]
pub(super) struct FreeSpace {
    floor_bytes: u64,
    is_below: Cell<bool>,
    is_looking: Cell<bool>,
    looked: Cell<Option<MonoTime>>,
    appended_bytes: Cell<u64>,
}

impl FreeSpace {
    /// A floor of 0 is never reached, and nobody looks.
    pub(super) const fn new(floor_bytes: u64) -> Self {
        Self {
            floor_bytes,
            is_below: Cell::new(false),
            is_looking: Cell::new(false),
            looked: Cell::new(None),
            appended_bytes: Cell::new(0),
        }
    }

    /// Whether produce is refused.
    pub(super) const fn is_below(&self) -> bool {
        self.is_below.get()
    }

    /// Notes that so much is appended, or would be. Answers whether to look at the disk: then [`Self::looked`] follows.
    pub(super) fn note(&self, bytes: usize, now: MonoTime) -> bool {
        if self.floor_bytes == 0 {
            return false;
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let appended = self.appended_bytes.get().saturating_add(bytes);
        self.appended_bytes.set(appended);
        if self.is_looking.get() {
            return false;
        }
        let is_old = self.looked.get().is_none_or(|at| now.nanos_since(at) >= AGE_NANOS_MAX);
        // Nothing is appended below the floor: only time brings it back.
        let is_due = is_old || (!self.is_below.get() && appended >= self.floor_bytes / PARTS);
        if is_due {
            self.is_looking.set(true);
            self.appended_bytes.set(0);
        }
        is_due
    }

    /// Takes the disk's answer; `None` if it gave none. Answers whether produce is refused or taken from now on, if that
    /// has changed.
    pub(super) fn looked(&self, usable_bytes: Option<u64>, now: MonoTime) -> Option<bool> {
        self.is_looking.set(false);
        self.looked.set(Some(now));
        // Who cannot say how much is left does not refuse: the write will tell.
        let is_below = usable_bytes.is_some_and(|usable| usable < self.floor_bytes);
        (self.is_below.replace(is_below) != is_below).then_some(is_below)
    }

    /// Looks at the disk, as [`Self::note`] said.
    pub(super) async fn look<R: Runtime>(&self, runtime: &R, dir: &Path) {
        let usable = match runtime.dir(DirOp::Space(dir.to_owned())).await {
            Ok(DirDone::Space { usable, .. }) => Some(usable),
            // A failing disk is met by whoever reads or writes.
            _ => None,
        };
        let floor = self.floor_bytes;
        match self.looked(usable, runtime.now()) {
            Some(true) => tracing::warn!(
                dir = %dir.display(), usable, floor,
                "free space is below storage.free.space.floor.bytes: produce is refused"
            ),
            Some(false) => {
                tracing::info!(dir = %dir.display(), usable, floor, "there is free space again: produce is taken");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> MonoTime {
        MonoTime::new(1).plus_ms(ms)
    }

    #[test]
    fn the_disk_is_looked_at_by_time_or_by_bytes_and_by_one_at_a_time() {
        let space = FreeSpace::new(800);
        assert!(space.note(1, at(0)), "nothing is known yet");
        assert!(!space.note(5000, at(5000)), "somebody looks already");
        assert_eq!(space.looked(Some(800), at(5000)), None);
        assert!(space.note(1, at(5001)), "much was appended meanwhile");
        space.looked(Some(800), at(5002));
        assert!(!space.note(99, at(5003)));
        assert!(space.note(1, at(5004)), "an eighth of the floor");
        space.looked(Some(800), at(5005));
        assert!(!space.note(1, at(6004)));
        assert!(space.note(1, at(6005)), "a second");
    }

    #[test]
    fn below_the_floor_appends_are_refused_until_there_is_space() {
        let space = FreeSpace::new(800);
        assert!(space.note(1, at(0)) && !space.is_below());
        assert_eq!(space.looked(Some(799), at(1)), Some(true));
        assert!(space.is_below());
        assert!(!space.note(5000, at(2)), "what is refused takes no space");
        assert!(space.note(1, at(1001)));
        assert_eq!(space.looked(Some(10), at(1002)), None);
        assert!(space.note(1, at(2002)));
        assert_eq!(space.looked(Some(800), at(2003)), Some(false));
        assert!(!space.is_below());
        assert!(space.note(1, at(3003)));
        assert_eq!(space.looked(None, at(3004)), None, "unknown is not below");
    }

    #[test]
    fn without_a_floor_nobody_looks() {
        assert!(!FreeSpace::new(0).note(usize::MAX, at(99_999)));
    }
}

//! The free-space floor of a shard's log dir (S-32, `storage.free.space.floor.bytes`): below it produce is refused, before
//! the disk is full; reads, deletes, retention and replication go on. Appends, taken or refused, make the shard look at
//! the disk now and then, away from its thread, so that an idle shard never does. Between two looks what all shards append
//! is counted against the room that the last one found, so that nobody runs through the floor between two. What was appended
//! before a look and is not written yet is missed by both, and comes on top. Knows no log; used by `append`.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::types::MonoTime;
use storage::io::{DirDone, DirOp, Runtime};

/// How old an answer of the disk may be when something is appended: others write to it too.
const AGE_NANOS_MAX: u64 = 1_000_000_000;

/// Bytes that all shards have appended to a log dir, or would have. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Appended(Arc<AtomicU64>);

impl Appended {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts so many more; how many there are with them.
    fn add(&self, bytes: u64) -> u64 {
        self.0.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes)
    }
}

/// Whether there is room above the floor, as last seen.
#[derive(Debug)]
pub(super) struct FreeSpace {
    floor_bytes: u64,
    appended: Appended,
    is_below: Cell<bool>,
    is_looking: Cell<bool>,
    looked: Cell<Option<MonoTime>>,
    /// What was appended when the look began that is on its way, or was the last: it is in the disk's answer.
    began: Cell<u64>,
    /// What may be appended in all until somebody has looked again.
    limit: Cell<u64>,
    /// When so much is appended it is time to look.
    look_at: Cell<u64>,
    /// The largest batch since the last look for which there was no room.
    wanted: Cell<u64>,
}

impl FreeSpace {
    /// A floor of 0 is never reached, and nobody looks.
    pub(super) const fn new(floor_bytes: u64, appended: Appended) -> Self {
        Self {
            floor_bytes,
            appended,
            is_below: Cell::new(false),
            is_looking: Cell::new(false),
            looked: Cell::new(None),
            began: Cell::new(0),
            limit: Cell::new(u64::MAX),
            look_at: Cell::new(u64::MAX),
            wanted: Cell::new(0),
        }
    }

    /// Whether produce is refused: the disk is below the floor, or what was noted since the last look would bring it there.
    pub(super) fn is_below(&self) -> bool {
        self.is_below.get() || self.appended.get() > self.limit.get()
    }

    /// Notes that so much is appended, or would be. Answers whether to look at the disk: then [`Self::looked`] follows.
    pub(super) fn note(&self, bytes: usize, now: MonoTime) -> bool {
        if self.floor_bytes == 0 {
            return false;
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let appended = self.appended.add(bytes);
        if appended > self.limit.get() {
            self.wanted.set(self.wanted.get().max(bytes));
        }
        if self.is_looking.get() {
            return false;
        }
        let is_old = self.looked.get().is_none_or(|at| now.nanos_since(at) >= AGE_NANOS_MAX);
        // Nothing is appended below the floor: only time brings it back.
        let is_due = is_old || (!self.is_below.get() && appended >= self.look_at.get());
        if is_due {
            self.is_looking.set(true);
            self.began.set(appended.saturating_sub(bytes));
        }
        is_due
    }

    /// Takes the disk's answer; `None` if it gave none. Answers whether produce is refused or taken from now on, if that
    /// has changed.
    pub(super) fn looked(&self, usable_bytes: Option<u64>, now: MonoTime) -> Option<bool> {
        self.is_looking.set(false);
        self.looked.set(Some(now));
        // Who cannot say how much is left does not refuse: the write will tell.
        let room = usable_bytes.map_or(u64::MAX, |usable| usable.saturating_sub(self.floor_bytes));
        let began = self.began.get();
        self.limit.set(began.saturating_add(room));
        // Half way, so that who looks in time is not refused while the answer is on its way.
        self.look_at.set(began.saturating_add(room / 2));
        let needed = self.floor_bytes.saturating_add(self.wanted.replace(0));
        let is_below = usable_bytes.is_some_and(|usable| usable < needed);
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

    fn space(floor_bytes: u64) -> FreeSpace {
        FreeSpace::new(floor_bytes, Appended::default())
    }

    #[test]
    fn the_disk_is_looked_at_by_time_or_when_half_the_room_is_gone_and_by_one_at_a_time() {
        let space = space(800);
        assert!(space.note(1, at(0)), "nothing is known yet");
        assert!(!space.note(5000, at(5000)), "somebody looks already");
        assert_eq!(space.looked(Some(800 + 6000), at(5000)), None);
        assert!(space.note(1, at(5001)), "much was appended meanwhile");
        space.looked(Some(800 + 200), at(5002));
        assert!(!space.note(98, at(5003)));
        assert!(space.note(1, at(5004)), "half the room");
        space.looked(Some(1 << 40), at(5005));
        assert!(!space.note(1 << 30, at(6004)));
        assert!(space.note(1, at(6005)), "a second");
    }

    #[test]
    fn below_the_floor_appends_are_refused_until_there_is_space() {
        let space = space(800);
        assert!(space.note(1, at(0)) && !space.is_below());
        assert_eq!(space.looked(Some(799), at(1)), Some(true));
        assert!(space.is_below());
        assert!(!space.note(5000, at(2)), "what is refused takes no space");
        assert!(space.note(1, at(1001)));
        assert_eq!(space.looked(Some(10), at(1002)), None);
        assert!(space.note(1, at(2002)));
        assert_eq!(space.looked(Some(1800), at(2003)), Some(false));
        assert!(!space.is_below());
        assert!(space.note(1, at(3003)));
        assert_eq!(space.looked(None, at(3004)), None, "unknown is not below");
        assert!(!space.is_below());
    }

    /// Kafka's users set a floor to have that much left: however fast clients write between two looks.
    #[test]
    fn what_all_shards_append_between_two_looks_stays_above_the_floor() {
        let appended = Appended::default();
        let shards = [0, 1].map(|_| FreeSpace::new(800, appended.clone()));
        for shard in &shards {
            shard.note(0, at(0));
            assert_eq!(shard.looked(Some(800 + 1000), at(1)), None);
        }
        let mut free = 1800;
        let mut looks = 0;
        for round in 0..100usize {
            for shard in &shards {
                looks += u32::from(shard.note(70, at(2)));
                if !shard.is_below() {
                    free -= 70;
                }
            }
            assert!(free >= 800, "round {round}: {free}");
        }
        assert!(free < 800 + 70 && looks == 2, "{free} {looks}");
        // The disk agrees: there is no room for such a batch, and it is said once.
        for shard in &shards {
            assert_eq!(shard.looked(Some(free), at(3)), Some(true));
        }
        assert!(shards[0].note(1, at(1003)));
        assert_eq!(shards[0].looked(Some(5000), at(1004)), Some(false));
        assert!(!shards[0].note(70, at(1005)) && !shards[0].is_below());
    }

    #[test]
    fn without_a_floor_nobody_looks() {
        assert!(!space(0).note(usize::MAX, at(99_999)));
    }
}

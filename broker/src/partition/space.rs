//! The free-space floor of a shard's log dir (S-32, `storage.free.space.floor.bytes`): what would bring the disk below it is
//! refused, before the disk is full; reads, deletes, retention and replication go on. Appends, taken or refused, make the
//! shard look at the disk now and then, away from its thread, so that an idle shard never does. A batch takes its room when
//! it arrives: what all shards have taken and not written yet is no room, whatever the disk says, nor is what they take
//! until somebody looks again. A batch that finds none takes none from smaller ones. Knows no log; used by `append`.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::types::MonoTime;
use storage::io::{DirDone, DirOp, Runtime};

/// How old an answer of the disk may be when something is appended: others write to it too.
const AGE_NANOS_MAX: u64 = 1_000_000_000;

/// The same when something is refused by an answer that came while bytes were on their way: these may be counted twice.
const UNSURE_NANOS_MAX: u64 = 100_000_000;

/// What all shards append to a log dir. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Appended(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Bytes that have room, written or not.
    taken: AtomicU64,
    /// Those of them that are on their way to the disk.
    unwritten: AtomicU64,
}

impl Appended {
    fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::SeqCst)
    }

    /// What is on its way, and what the disk has for certain. In this order: what is taken in between counts as on its way.
    fn unwritten_and_settled(&self) -> (u64, u64) {
        let taken = self.taken();
        let unwritten = self.0.unwritten.load(Ordering::SeqCst);
        (unwritten, taken.saturating_sub(unwritten))
    }

    /// Takes room for so many bytes, if that makes no more than `limit` in all.
    fn take(&self, bytes: u64, limit: u64) -> Option<Room> {
        self.0.unwritten.fetch_add(bytes, Ordering::SeqCst);
        let room = Room { taken_from: Some((self.clone(), bytes)), is_used: false };
        let taken = self.0.taken.fetch_add(bytes, Ordering::SeqCst).saturating_add(bytes);
        // Given back by its drop.
        (taken <= limit).then_some(room)
    }
}

/// The room of one batch: on its way until this is dropped. Only then is it on the disk, if it was used, or free again.
#[derive(Debug)]
pub(super) struct Room {
    /// None without a floor.
    taken_from: Option<(Appended, u64)>,
    is_used: bool,
}

impl Room {
    /// The batch is appended, with so many bytes.
    pub(super) fn used(mut self, bytes: usize) -> Self {
        if let Some((appended, taken)) = &mut self.taken_from {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            // Compressed anew it has another size; the counts wrap around and come out right.
            let more = bytes.wrapping_sub(*taken);
            appended.0.unwritten.fetch_add(more, Ordering::SeqCst);
            appended.0.taken.fetch_add(more, Ordering::SeqCst);
            *taken = bytes;
        }
        self.is_used = true;
        self
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some((appended, bytes)) = &self.taken_from {
            if !self.is_used {
                appended.0.taken.fetch_sub(*bytes, Ordering::SeqCst);
            }
            appended.0.unwritten.fetch_sub(*bytes, Ordering::SeqCst);
        }
    }
}

/// Whether there is room above the floor, as last seen.
#[derive(Debug)]
pub(super) struct FreeSpace {
    floor_bytes: u64,
    appended: Appended,
    is_looking: Cell<bool>,
    looked: Cell<Option<MonoTime>>,
    /// What was on its way, and what the disk had for certain, when the last look began.
    began: Cell<(u64, u64)>,
    /// What may be taken in all until somebody has looked again.
    limit: Cell<u64>,
    /// When so much is taken it is time to look.
    look_at: Cell<u64>,
    /// The largest batch for which there was no room since there was room for such a one.
    wanted: Cell<u64>,
    /// The log was told that there is no room.
    is_short: Cell<bool>,
}

/// What a look at the disk has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// Batches are refused: there is no room for one of this size beside what is on its way.
    Short { wanted: u64, unwritten: u64 },
    /// There is room again.
    Enough,
}

impl FreeSpace {
    /// A floor of 0 is never reached, and nobody looks.
    pub(super) const fn new(floor_bytes: u64, appended: Appended) -> Self {
        Self {
            floor_bytes,
            appended,
            is_looking: Cell::new(false),
            looked: Cell::new(None),
            began: Cell::new((0, 0)),
            limit: Cell::new(u64::MAX),
            look_at: Cell::new(u64::MAX),
            wanted: Cell::new(0),
            is_short: Cell::new(false),
        }
    }

    /// Takes the room of a batch that has arrived; `None` when it is to be refused. Answers too whether to look at the disk:
    /// then [`Self::looked`] follows.
    pub(super) fn take(&self, bytes: usize, now: MonoTime) -> (Option<Room>, bool) {
        if self.floor_bytes == 0 {
            return (Some(Room { taken_from: None, is_used: false }), false);
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let before = self.appended.unwritten_and_settled();
        let room = self.appended.take(bytes, self.limit.get());
        if room.is_none() {
            self.wanted.set(self.wanted.get().max(bytes));
        }
        if self.is_looking.get() {
            return (room, false);
        }
        let is_unsure = room.is_none() && self.began.get().0 > 0;
        let age_max = if is_unsure { UNSURE_NANOS_MAX } else { AGE_NANOS_MAX };
        let is_old = self.looked.get().is_none_or(|at| now.nanos_since(at) >= age_max);
        // What is refused takes nothing: only time brings room for it.
        let is_due = is_old || (room.is_some() && self.appended.taken() >= self.look_at.get());
        if is_due {
            self.is_looking.set(true);
            self.began.set(before);
        }
        (room, is_due)
    }

    /// Takes the disk's answer; `None` if it gave none. Answers what is to be told of it.
    fn looked(&self, usable_bytes: Option<u64>, now: MonoTime) -> Option<News> {
        self.is_looking.set(false);
        self.looked.set(Some(now));
        // Who cannot say how much is left does not refuse: the write will tell.
        let room = usable_bytes.map_or(u64::MAX, |usable| usable.saturating_sub(self.floor_bytes));
        let (unwritten, settled) = self.began.get();
        self.limit.set(settled.saturating_add(room));
        // Half way, so that who looks in time is not refused while the answer is on its way.
        let left = room.saturating_sub(unwritten);
        self.look_at.set(settled.saturating_add(unwritten).saturating_add(left / 2));
        let wanted = self.wanted.get();
        let needed = self.floor_bytes.saturating_add(unwritten).saturating_add(wanted);
        let is_short = usable_bytes.is_some_and(|usable| usable < needed);
        if !is_short {
            self.wanted.set(0);
        }
        let has_changed = self.is_short.replace(is_short) != is_short;
        has_changed.then_some(if is_short { News::Short { wanted, unwritten } } else { News::Enough })
    }

    /// Looks at the disk, as [`Self::take`] said.
    pub(super) async fn look<R: Runtime>(&self, runtime: &R, dir: &Path) {
        let usable = match runtime.dir(DirOp::Space(dir.to_owned())).await {
            Ok(DirDone::Space { usable, .. }) => Some(usable),
            // A failing disk is met by whoever reads or writes.
            _ => None,
        };
        let floor = self.floor_bytes;
        match self.looked(usable, runtime.now()) {
            Some(News::Short { wanted, unwritten }) => tracing::warn!(
                dir = %dir.display(), usable, floor, unwritten, wanted,
                "produce is refused where it would bring the free space below storage.free.space.floor.bytes"
            ),
            Some(News::Enough) => {
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

    impl FreeSpace {
        /// Appends and writes a batch at once, if it has room: whether it has, and whether to look.
        fn append(&self, bytes: usize, now: MonoTime) -> (bool, bool) {
            let (room, look) = self.take(bytes, now);
            (room.map(|room| room.used(bytes)).is_some(), look)
        }
    }

    #[test]
    fn the_disk_is_looked_at_by_time_or_when_half_the_room_is_gone_and_by_one_at_a_time() {
        let space = space(800);
        assert_eq!(space.append(1, at(0)), (true, true), "nothing is known yet");
        assert_eq!(space.append(5000, at(5000)), (true, false), "somebody looks already");
        assert_eq!(space.looked(Some(800 + 6000), at(5000)), None);
        assert_eq!(space.append(1, at(5001)), (true, true), "much was appended meanwhile");
        space.looked(Some(800 + 200), at(5002));
        assert_eq!(space.append(98, at(5003)), (true, false));
        assert_eq!(space.append(1, at(5004)), (true, true), "half the room");
        space.looked(Some(1 << 40), at(5005));
        assert_eq!(space.append(1 << 30, at(6004)), (true, false));
        assert_eq!(space.append(1, at(6005)), (true, true), "a second");
    }

    #[test]
    fn below_the_floor_appends_are_refused_until_there_is_space() {
        let space = space(800);
        assert_eq!(space.append(1, at(0)), (true, true));
        assert_eq!(space.looked(Some(799), at(1)), Some(News::Short { wanted: 0, unwritten: 0 }));
        assert_eq!(space.append(5000, at(2)), (false, false), "what is refused takes no space");
        assert_eq!(space.append(1, at(1001)), (false, true));
        assert_eq!(space.looked(Some(10), at(1002)), None, "it is known");
        assert_eq!(space.append(1, at(2002)), (false, true));
        assert_eq!(space.looked(Some(1800), at(2003)), None, "not as much as is wanted");
        assert_eq!(space.append(900, at(2004)), (true, true), "and enough for this, the most of it");
        assert_eq!(space.looked(Some(800 + 5000), at(3004)), Some(News::Enough));
        assert_eq!(space.append(1, at(4004)), (true, true));
        assert_eq!(space.looked(None, at(4005)), None, "unknown is not below");
        assert!(space.append(1 << 40, at(4006)).0);
    }

    /// Kafka's users set a floor to have that much left: however fast clients write between two looks.
    #[test]
    fn what_all_shards_append_between_two_looks_stays_above_the_floor() {
        let appended = Appended::default();
        let shards = [0, 1].map(|_| FreeSpace::new(800, appended.clone()));
        for shard in &shards {
            shard.take(0, at(0));
            assert_eq!(shard.looked(Some(800 + 1000), at(1)), None);
        }
        let mut free = 1800;
        let mut looks = 0;
        for round in 0..100 {
            for shard in &shards {
                let (is_taken, look) = shard.append(70, at(2));
                looks += u32::from(look);
                free -= if is_taken { 70 } else { 0 };
            }
            assert!(free >= 800, "round {round}: {free}");
        }
        assert!(free < 800 + 70 && looks == 2, "{free} {looks}");
        // The disk agrees: there is no room for such a batch, and it is said once.
        for shard in &shards {
            assert_eq!(shard.looked(Some(free), at(3)), Some(News::Short { wanted: 70, unwritten: 0 }));
        }
        assert_eq!(
            shards[0].append(1, at(1003)),
            (false, true),
            "what came behind the look is not in its answer"
        );
        assert_eq!(shards[0].looked(Some(5000), at(1004)), Some(News::Enough));
        assert_eq!(shards[0].append(70, at(1005)), (true, false));
    }

    /// The disk does not know yet what is on its way to it: 11 MiB below the floor were seen.
    #[test]
    fn what_is_not_written_when_the_disk_is_looked_at_counts() {
        let appended = Appended::default();
        let shards = [0, 1].map(|_| FreeSpace::new(800, appended.clone()));
        let (mut on_disk, mut on_their_way) = (0_u64, Vec::new());
        let disk_bytes = 800 + 10_000;
        for step in 0..200 {
            let now = at(step * 10);
            for shard in &shards {
                let (room, look) = shard.take(90, now);
                on_their_way.extend(room.map(|room| room.used(100)));
                if look {
                    shard.looked(Some(disk_bytes - on_disk), now);
                }
            }
            // A slow disk: a batch in three steps.
            if step % 3 == 0 && !on_their_way.is_empty() {
                on_their_way.remove(0);
                on_disk += 100;
            }
        }
        let waiting = u64::try_from(on_their_way.len()).unwrap();
        assert!(waiting > 10, "{waiting}");
        // Each batch grew by ten bytes behind its admission.
        let all = on_disk + waiting * 100;
        assert!((9_700..=10_000 + 2 * 10).contains(&all), "{on_disk} and {waiting} on their way");
        on_their_way.clear();
        assert_eq!(appended.unwritten_and_settled(), (0, all));
    }

    #[test]
    fn a_large_batch_without_room_leaves_it_to_small_ones() {
        let space = space(800);
        space.append(0, at(0));
        space.looked(Some(800 + 100), at(0));
        assert_eq!(space.append(5000, at(1)), (false, false));
        assert_eq!(space.append(10, at(2)), (true, false));
        assert_eq!(space.append(5000, at(1000)), (false, true));
        assert_eq!(space.looked(Some(890), at(1001)), Some(News::Short { wanted: 5000, unwritten: 0 }));
        for ms in 1002..1006 {
            assert!(space.append(10, at(ms)).0);
            assert!(!space.append(200, at(ms)).0);
        }
        // A batch that is not appended in the end gives its room back.
        let (room, _) = space.take(50, at(1007));
        assert!(room.is_some() && !space.append(1, at(1008)).0);
        drop(room);
        assert!(space.append(50, at(1009)).0);
    }

    /// What is written while the disk is asked may be missing from its answer and on its way in our count.
    #[test]
    fn who_is_refused_by_an_unsure_answer_learns_soon_of_a_better_one() {
        let space = space(800);
        let (room, look) = space.take(100, at(0));
        assert!(look);
        space.looked(Some(800 + 1000), at(0));
        let (_, look) = space.take(0, at(1000));
        assert!(look);
        drop(room.map(|room| room.used(100)));
        space.looked(Some(800 + 100), at(1000));
        assert_eq!(space.append(50, at(1050)), (false, false));
        assert_eq!(space.append(50, at(1100)), (false, true));
        space.looked(Some(800 + 100), at(1101));
        assert!(space.append(50, at(1102)).0);
    }

    #[test]
    fn without_a_floor_nobody_looks() {
        let space = space(0);
        let (room, look) = space.take(usize::MAX, at(99_999));
        assert!(room.is_some() && !look);
    }
}

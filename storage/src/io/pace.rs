//! Decides whether a shard may write to the page cache with its own thread. That costs a fifth of a buffered write
//! on the ring, which ext4 hands to a kernel worker, but it stalls the shard as soon as the kernel throttles whoever
//! makes pages dirty. So: own thread while the kernel is far from throttling and writes have not been slow of late, else
//! the ring. Knows no file; called by `glommio`, which asks before each write and tells how long it took, and reads the
//! kernel's counters on another thread when told: those of a control group may take it milliseconds.

use protocol::types::MonoTime;

/// The kernel's counters are looked at once for so many bytes: some 40 µs of reading for some 20 ms of writing.
const BYTES_BETWEEN_LOOKS: u64 = 64 << 20;

/// More is not written on the strength of one look: where the next one does not come, the ring writes.
const BYTES_PER_LOOK_MAX: u64 = 2 * BYTES_BETWEEN_LOOKS;

/// And again after this, when writes go through the ring or are few.
const LOOK_MS: i64 = 500;

/// A write of at most [`super::WRITE_NOW_BYTES_MAX`] takes some 100 µs; one that took this long was throttled, or waited for the
/// file system's journal.
const SLOW_NANOS: u64 = 10_000_000;

/// Two slow writes within this are no chance (one may only have lost its core to another process): the ring is used for
/// as long.
const SLOW_MS: i64 = 500;

/// What the kernel says of pages that are not on the disk yet, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirtyPages {
    /// Dirty or under writeback.
    pub(super) now: u64,
    /// Writers are slowed down from half way between these two on.
    pub(super) background: u64,
    pub(super) throttled: u64,
}

impl DirtyPages {
    /// Reads them out of `/proc/vmstat`.
    pub(super) fn parse(vmstat: &str) -> Option<Self> {
        Some(Self {
            now: counter(vmstat, "nr_dirty")?.saturating_add(counter(vmstat, "nr_writeback")?),
            background: counter(vmstat, "nr_dirty_background_threshold")?,
            throttled: counter(vmstat, "nr_dirty_threshold")?,
        })
    }

    /// Whether there is a good distance to where the kernel begins to slow writers down.
    fn are_few(self) -> bool {
        let slowed_from = self.background.saturating_add(self.throttled) / 2;
        self.now < slowed_from / 4 * 3
    }
}

/// The number behind a name, a line each.
pub(super) fn counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(found, _)| *found == name)?.1.trim().parse().ok()
}

/// Dirty pages of the machine, and of the control group, where they are told.
pub(super) type Looked = [Option<DirtyPages>; 2];

/// How the next write is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the shard's own thread.
    Inline,
    /// Through the ring.
    Ring,
}

/// What has been seen of the writes of one shard.
#[derive(Debug)]
pub(super) struct Pace {
    /// Written since the counters said what they said last.
    bytes_since_look: u64,
    look_at: MonoTime,
    /// The counters are being read: how much had been written when that began.
    looking: Option<u64>,
    few_dirty: bool,
    /// A slow write before this is the second.
    suspect_until: MonoTime,
    slow_until: MonoTime,
}

impl Pace {
    pub(super) fn new() -> Self {
        let never = MonoTime::new(0);
        Self {
            bytes_since_look: 0,
            look_at: never,
            looking: None,
            few_dirty: true,
            suspect_until: never,
            slow_until: never,
        }
    }

    /// How to write now, and whether the kernel's counters are to be looked at: [`Pace::looked`] is then to be called with
    /// them. Until it is, what was seen last holds.
    pub(super) fn way(&mut self, now: MonoTime) -> (Way, bool) {
        let is_due = now >= self.look_at || self.bytes_since_look >= BYTES_BETWEEN_LOOKS;
        let look = is_due && self.looking.is_none();
        if look {
            self.looking = Some(self.bytes_since_look);
        }
        let is_blind = self.bytes_since_look >= BYTES_PER_LOOK_MAX;
        let way = if self.few_dirty && !is_blind && now >= self.slow_until { Way::Inline } else { Way::Ring };
        (way, look)
    }

    /// Takes the counters. Writers are slowed down by whichever are nearer to their limit.
    pub(super) fn looked(&mut self, now: MonoTime, looked: Looked) {
        let written_before = self.looking.take().unwrap_or(0);
        self.bytes_since_look = self.bytes_since_look.saturating_sub(written_before);
        self.look_at = now.plus_ms(LOOK_MS);
        // Without counters the time that writes take has to tell.
        self.few_dirty = looked.into_iter().flatten().all(DirtyPages::are_few);
    }

    /// Notes a write that was made.
    pub(super) fn wrote(&mut self, bytes: usize, began: MonoTime, ended: MonoTime) {
        self.bytes_since_look =
            self.bytes_since_look.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        if ended.nanos_since(began) > SLOW_NANOS {
            if began < self.suspect_until {
                self.slow_until = ended.plus_ms(SLOW_MS);
            }
            self.suspect_until = ended.plus_ms(SLOW_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: DirtyPages = DirtyPages { now: 100, background: 1000, throttled: 2000 };
    const MANY: DirtyPages = DirtyPages { now: 1200, ..FEW };

    fn at_ms(ms: i64) -> MonoTime {
        MonoTime::new(1).plus_ms(ms)
    }

    #[test]
    fn the_counters_are_found_among_the_others() {
        let vmstat = "nr_free_pages 7\nnr_dirty 10\nnr_writeback 5\nnr_writeback_temp 99\nnr_dirtied 88\n\
                      nr_dirty_threshold 300\nnr_dirty_background_threshold 200\npgpgin 1\n";
        let expected = DirtyPages { now: 15, background: 200, throttled: 300 };
        assert_eq!(DirtyPages::parse(vmstat), Some(expected));
        assert_eq!(DirtyPages::parse("nr_dirty 10\nnr_writeback x\n"), None);
    }

    /// The way at a time at which the counters, if they are wanted, are there at once.
    fn way(pace: &mut Pace, ms: i64, looked: Looked) -> Way {
        if pace.way(at_ms(ms)).1 {
            pace.looked(at_ms(ms), looked);
        }
        let (way, look) = pace.way(at_ms(ms));
        assert!(!look, "asked for what was just told");
        way
    }

    #[test]
    fn the_ring_writes_while_many_pages_are_dirty() {
        let mut pace = Pace::new();
        assert_eq!(way(&mut pace, 0, [Some(FEW), None]), Way::Inline);
        // Not looked at again for a while, or for some bytes.
        assert_eq!(way(&mut pace, 1, [Some(MANY), None]), Way::Inline);
        pace.wrote(64 << 20, at_ms(1), at_ms(2));
        assert_eq!(way(&mut pace, 2, [Some(MANY), None]), Way::Ring);
        assert_eq!(way(&mut pace, 400, [Some(FEW), None]), Way::Ring);
        assert_eq!(way(&mut pace, 600, [Some(FEW), None]), Way::Inline);
    }

    #[test]
    fn the_ring_writes_when_the_control_group_has_many_dirty_pages() {
        for (looked, expected) in [
            ([Some(FEW), Some(FEW)], Way::Inline),
            ([Some(FEW), Some(MANY)], Way::Ring),
            ([Some(MANY), Some(FEW)], Way::Ring),
            ([None, Some(MANY)], Way::Ring),
        ] {
            assert_eq!(way(&mut Pace::new(), 0, looked), expected, "{looked:?}");
        }
    }

    #[test]
    fn what_was_seen_last_holds_until_the_counters_are_read() {
        let mut pace = Pace::new();
        assert_eq!(pace.way(at_ms(0)), (Way::Inline, true));
        assert_eq!(pace.way(at_ms(900)), (Way::Inline, false), "they are being read");
        pace.looked(at_ms(900), [Some(MANY), None]);
        assert_eq!(pace.way(at_ms(1399)), (Way::Ring, false));
        assert_eq!(pace.way(at_ms(1400)), (Way::Ring, true));
        pace.looked(at_ms(1401), [Some(FEW), None]);
        assert_eq!(pace.way(at_ms(1401)), (Way::Inline, false));
    }

    #[test]
    fn much_is_not_written_on_the_strength_of_one_look() {
        let mut pace = Pace::new();
        assert_eq!(way(&mut pace, 0, [Some(FEW), None]), Way::Inline);
        pace.wrote(64 << 20, at_ms(1), at_ms(2));
        assert_eq!(pace.way(at_ms(2)), (Way::Inline, true));
        pace.wrote(48 << 20, at_ms(2), at_ms(3));
        assert_eq!(pace.way(at_ms(3)), (Way::Inline, false));
        pace.wrote(16 << 20, at_ms(3), at_ms(4));
        assert_eq!(pace.way(at_ms(4)), (Way::Ring, false), "no answer yet");
        // What was written since they were read counts towards the next look.
        pace.looked(at_ms(5), [Some(FEW), None]);
        assert_eq!(pace.way(at_ms(5)), (Way::Inline, true));
    }

    #[test]
    fn the_ring_writes_for_a_while_after_two_slow_writes() {
        let none = [None, None];
        let mut pace = Pace::new();
        pace.wrote(100, at_ms(0), at_ms(9));
        pace.wrote(100, at_ms(9), at_ms(30));
        assert_eq!(way(&mut pace, 30, none), Way::Inline);
        pace.wrote(100, at_ms(600), at_ms(620));
        assert_eq!(way(&mut pace, 620, none), Way::Inline);
        pace.wrote(100, at_ms(630), at_ms(650));
        assert_eq!(way(&mut pace, 650, none), Way::Ring);
        assert_eq!(way(&mut pace, 1149, none), Way::Ring);
        assert_eq!(way(&mut pace, 1150, none), Way::Inline);
    }
}

//! Which log is cleaned next, and how far (storage.md 7.4). Pure; the caller knows segments, watermarks and times.

use protocol::types::Offset;

/// Size of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBytes {
    /// Its base offset.
    pub base_offset: Offset,
    /// Bytes of its `.log`.
    pub bytes: u64,
}

/// What of a log is there to be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleanable {
    /// Everything below was cleaned before.
    pub first_dirty: Offset,
    /// Nothing at or above is cleaned now: base offset of a segment.
    pub first_uncleanable: Offset,
    /// Bytes of the segments that begin below `first_dirty`.
    pub clean_bytes: u64,
    /// Bytes of the segments from that with `first_dirty` to `first_uncleanable`.
    pub cleanable_bytes: u64,
    /// Some of it is older than `max.compaction.lag.ms`.
    pub is_overdue: bool,
    /// How much older, in milliseconds; 0 if none is.
    pub overdue_ms: i64,
}

impl Cleanable {
    /// Share of the log that is dirty, from 0 to 1; 0 for a log without anything.
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn ratio(&self) -> f64 {
        let total = self.clean_bytes.saturating_add(self.cleanable_bytes);
        if total == 0 { 0.0 } else { self.cleanable_bytes as f64 / total as f64 }
    }

    /// Whether the log is due: dirtier than `min.cleanable.dirty.ratio`, or dirty for longer than
    /// `max.compaction.lag.ms`.
    pub fn is_due(&self, min_ratio: f64) -> bool {
        self.cleanable_bytes > 0 && (self.is_overdue || self.ratio() > min_ratio)
    }
}

/// The dirtiest of the logs that are due, each with its `min.cleanable.dirty.ratio`; of equals the first.
pub fn filthiest<K>(logs: impl IntoIterator<Item = (K, Cleanable, f64)>) -> Option<(K, Cleanable)> {
    let due = logs.into_iter().filter(|(_, cleanable, min_ratio)| cleanable.is_due(*min_ratio));
    due.map(|(key, cleanable, _)| (key, cleanable))
        .reduce(|best, next| if next.1.ratio() > best.1.ratio() { next } else { best })
}

/// Where the dirty part begins, and whether the checkpoint had to be replaced: it is missing in a log that was never
/// cleaned, below the start after retention, above the end after damage.
pub(crate) fn first_dirty(checkpoint: Option<Offset>, log_start: Offset, log_end: Offset) -> (Offset, bool) {
    match checkpoint {
        None => (log_start, false),
        Some(offset) if offset < log_start || offset > log_end => (log_start, true),
        Some(offset) => (offset, false),
    }
}

/// Measures a log whose `segments` are in order, the last one active. `uncleanable` is the least of what bounds a cleaning: the
/// last stable offset, the active segment, the first segment that is too young. It is rounded down to a base offset.
pub(crate) fn measure(segments: &[SegmentBytes], first_dirty: Offset, uncleanable: Offset) -> Cleanable {
    let bases = || segments.iter().map(|segment| segment.base_offset);
    let floor = |offset: Offset| bases().rfind(|base| *base <= offset);
    let active = bases().next_back().unwrap_or(first_dirty);
    let uncleanable = uncleanable.max(first_dirty).min(active);
    let first_uncleanable = floor(uncleanable).unwrap_or(uncleanable);
    let first = floor(first_dirty).unwrap_or(first_dirty);
    let bytes_in = |from: Option<Offset>, to: Offset| {
        let within = |segment: &&SegmentBytes| {
            from.is_none_or(|from| segment.base_offset >= from) && segment.base_offset < to
        };
        segments.iter().filter(within).fold(0_u64, |sum, segment| sum.saturating_add(segment.bytes))
    };
    Cleanable {
        first_dirty,
        first_uncleanable,
        clean_bytes: bytes_in(None, first_dirty),
        cleanable_bytes: bytes_in(Some(first), first_uncleanable),
        is_overdue: false,
        overdue_ms: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(raw: i64) -> Offset {
        Offset::new(raw)
    }

    /// Segments of 100 bytes at 0, 10, 20, 30; the last is active.
    fn log() -> Vec<SegmentBytes> {
        [0, 10, 20, 30].map(|base| SegmentBytes { base_offset: at(base), bytes: 100 }).to_vec()
    }

    #[test]
    fn a_checkpoint_outside_the_log_gives_way_to_the_log_start() {
        assert_eq!(first_dirty(None, at(5), at(9)), (at(5), false));
        assert_eq!(first_dirty(Some(at(5)), at(5), at(9)), (at(5), false));
        assert_eq!(first_dirty(Some(at(9)), at(5), at(9)), (at(9), false));
        assert_eq!(first_dirty(Some(at(4)), at(5), at(9)), (at(5), true));
        assert_eq!(first_dirty(Some(at(10)), at(5), at(9)), (at(5), true));
    }

    #[test]
    fn the_bound_is_rounded_down_to_a_segment_and_never_reaches_into_the_active_one() {
        let bound = |dirty, uncleanable| measure(&log(), at(dirty), at(uncleanable)).first_uncleanable;
        assert_eq!(bound(0, 19), at(10));
        assert_eq!(bound(0, 20), at(20));
        assert_eq!(bound(0, 1000), at(30));
        assert_eq!(bound(20, 5), at(20), "not below what is clean");
    }

    #[test]
    fn clean_and_dirty_are_counted_by_whole_segments() {
        let fresh = measure(&log(), at(0), at(30));
        assert_eq!((fresh.clean_bytes, fresh.cleanable_bytes), (0, 300));
        assert_eq!(fresh.ratio(), 1.0);
        let half = measure(&log(), at(10), at(20));
        assert_eq!((half.clean_bytes, half.cleanable_bytes), (100, 100));
        assert_eq!(half.ratio(), 0.5);
        // The map of the round before was full inside a segment, which counts on both sides.
        let within = measure(&log(), at(15), at(30));
        assert_eq!((within.clean_bytes, within.cleanable_bytes), (200, 200));
        let nothing = measure(&log(), at(30), at(30));
        assert_eq!((nothing.clean_bytes, nothing.cleanable_bytes), (300, 0));
    }

    #[test]
    fn a_log_is_due_above_the_ratio_or_when_it_is_overdue_and_there_is_something() {
        let half = measure(&log(), at(10), at(20));
        assert!(!half.is_due(0.5) && half.is_due(0.49));
        assert!(Cleanable { is_overdue: true, ..half }.is_due(1.0));
        let nothing = Cleanable { is_overdue: true, ..measure(&log(), at(30), at(30)) };
        assert!(!nothing.is_due(0.0));
    }

    #[test]
    fn the_filthiest_of_those_that_are_due_is_picked() {
        let (half, all) = (measure(&log(), at(10), at(20)), measure(&log(), at(0), at(30)));
        let pick =
            |logs: &[(&'static str, Cleanable, f64)]| filthiest(logs.iter().copied()).map(|(key, _)| key);
        assert_eq!(pick(&[("a", half, 0.1), ("b", all, 0.1), ("c", all, 0.1)]), Some("b"));
        assert_eq!(pick(&[("a", half, 0.1), ("b", all, 1.0)]), Some("a"));
        assert_eq!(pick(&[("a", half, 0.9)]), None);
    }
}

//! Which neighbouring segments become one (storage.md 7.5): as many as fit one segment, its indexes and its range of
//! offsets. Pure.

use std::ops::Range;

use protocol::types::Offset;

/// What a segment adds to the one that it goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSizes {
    pub(crate) base_offset: Offset,
    pub(crate) log_bytes: u64,
    pub(crate) offset_index_bytes: u64,
    pub(crate) time_index_bytes: u64,
}

/// Groups of `segments`, which are in order and all below `first_uncleanable`. Every segment is in one; a segment that is
/// too large by itself is alone.
pub(crate) fn group(
    segments: &[SegmentSizes],
    segment_bytes_max: u64,
    index_bytes_max: u64,
    first_uncleanable: Offset,
) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut sums = (0_u64, 0_u64, 0_u64);
    let mut first = Offset::ZERO;
    for (at, segment) in segments.iter().enumerate() {
        let more = (
            sums.0.saturating_add(segment.log_bytes),
            sums.1.saturating_add(segment.offset_index_bytes),
            sums.2.saturating_add(segment.time_index_bytes),
        );
        // The next base offset bounds the last offset without a look into the file.
        let end = segments.get(at.saturating_add(1)).map_or(first_uncleanable, |next| next.base_offset);
        let is_near = segment.log_bytes == 0 || end.since(first) <= i64::from(i32::MAX).saturating_add(1);
        let fits = more.0 <= segment_bytes_max && more.1 <= index_bytes_max && more.2 <= index_bytes_max;
        match groups.last_mut() {
            Some(last) if fits && is_near => {
                last.end = at.saturating_add(1);
                sums = more;
            }
            _ => {
                groups.push(at..at.saturating_add(1));
                sums = (segment.log_bytes, segment.offset_index_bytes, segment.time_index_bytes);
                first = segment.base_offset;
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(base: i64, log: u64, offsets: u64, times: u64) -> SegmentSizes {
        SegmentSizes {
            base_offset: Offset::new(base),
            log_bytes: log,
            offset_index_bytes: offsets,
            time_index_bytes: times,
        }
    }

    /// Groups as first and end.
    fn pairs(all: &[SegmentSizes], log: u64, index: u64, first_uncleanable: Offset) -> Vec<(usize, usize)> {
        let groups = group(all, log, index, first_uncleanable);
        groups.into_iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn neighbours_share_a_segment_while_log_and_indexes_fit() {
        let all = [
            sizes(0, 40, 1, 1),
            sizes(10, 40, 1, 1),
            sizes(20, 21, 1, 1),
            sizes(30, 200, 1, 1),
            sizes(40, 1, 1, 1),
        ];
        assert_eq!(pairs(&all, 100, 100, Offset::new(50)), [(0, 2), (2, 3), (3, 4), (4, 5)]);
        assert_eq!(pairs(&all, 101, 100, Offset::new(50)), [(0, 3), (3, 4), (4, 5)]);
        let indexes = [sizes(0, 1, 60, 10), sizes(10, 1, 41, 10), sizes(20, 1, 1, 90), sizes(30, 1, 1, 11)];
        assert_eq!(pairs(&indexes, 100, 100, Offset::new(50)), [(0, 1), (1, 3), (3, 4)]);
        assert_eq!(pairs(&[], 100, 100, Offset::ZERO), []);
    }

    #[test]
    fn no_group_spans_more_offsets_than_an_index_entry_can_tell() {
        let far = i64::from(i32::MAX);
        let all = [sizes(0, 1, 0, 0), sizes(10, 1, 0, 0), sizes(20, 1, 0, 0)];
        assert_eq!(pairs(&all, 100, 100, Offset::new(far + 1)), [(0, 3)], "the last offset is 2^31-1 above");
        assert_eq!(pairs(&all, 100, 100, Offset::new(far + 2)), [(0, 2), (2, 3)]);
        let gap = [sizes(0, 1, 0, 0), sizes(10, 1, 0, 0), sizes(far + 50, 1, 0, 0)];
        assert_eq!(pairs(&gap, 100, 100, Offset::new(far + 60)), [(0, 1), (1, 2), (2, 3)]);
        let empty = [sizes(0, 1, 0, 0), sizes(10, 0, 0, 0), sizes(far + 50, 1, 0, 0)];
        assert_eq!(
            pairs(&empty, 100, 100, Offset::new(far + 60)),
            [(0, 2), (2, 3)],
            "an empty one has no offsets"
        );
    }
}

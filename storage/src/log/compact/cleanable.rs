//! How much of a log is there to be compacted (storage.md 7.4). The numbers are [`crate::compaction::choice`]'s; here they get
//! what lies in segments: times.

use std::rc::Rc;

use protocol::types::{Offset, TimestampMs};

use crate::compaction::Cleanable;
use crate::compaction::choice::{SegmentBytes, first_dirty, measure};
use crate::io::Runtime;
use crate::log::segment::Segment;
use crate::log::{Log, LogError};

impl<R: Runtime> Log<R> {
    /// What could be compacted now: nothing at or above `bound`, the last stable offset, nor what is not durable yet, nor
    /// what is younger than `min.compaction.lag.ms`.
    ///
    /// # Errors
    /// A failed log.
    pub async fn cleanable(&self, bound: Offset, now: TimestampMs) -> Result<Cleanable, LogError> {
        self.check_readable()?;
        let (start, end) = (self.log_start_offset.get(), self.log_end_offset.get());
        let (first, was_reset) = first_dirty(self.cleaner_offset.get(), start, end);
        if was_reset {
            self.cleaner_offset.set(Some(first));
        }
        let segments = self.all_segments();
        let sizes: Vec<_> = segments
            .iter()
            .map(|segment| SegmentBytes { base_offset: segment.base_offset, bytes: segment.size.get() })
            .collect();
        let from = segments.partition_point(|segment| segment.base_offset <= first).saturating_sub(1);
        let dirty = segments.get(from..segments.len().saturating_sub(1)).unwrap_or_default();
        let config = self.config();
        // A record goes because a later one of its key is there: that one must not fall to a power cut.
        let mut uncleanable = bound.min(self.recovery_point.get());
        if config.min_compaction_lag_ms > 0 {
            let young = now.get().saturating_sub(config.min_compaction_lag_ms);
            if let Some(first_young) = self.first_younger(dirty, young).await? {
                uncleanable = uncleanable.min(first_young);
            }
        }
        let mut overdue_ms = 0;
        if config.max_compaction_lag_ms < i64::MAX {
            let allowed = now.get().saturating_sub(config.max_compaction_lag_ms.max(0));
            let first = self.earliest(dirty).await?;
            overdue_ms = first.map_or(0, |first| allowed.saturating_sub(first).max(0));
        }
        self.check_readable()?;
        let is_overdue = overdue_ms > 0;
        Ok(Cleanable { is_overdue, overdue_ms, ..measure(&sizes, first, uncleanable) })
    }

    /// Base offset of the first segment with a record after `time`.
    async fn first_younger(
        &self,
        segments: &[Rc<Segment<R>>],
        time: i64,
    ) -> Result<Option<Offset>, LogError> {
        for segment in segments {
            let largest = match self.load_indexes(segment).await {
                Ok(()) => segment.largest_timestamp(&self.runtime).await,
                Err(error) => Err(error),
            };
            match largest {
                Ok(largest) if largest > time => return Ok(Some(segment.base_offset)),
                Ok(_) => {}
                Err(_) if segment.removed.get() => {}
                Err(error) => return Err(self.failed("look at a segment's time", &error)),
            }
        }
        Ok(None)
    }

    /// The earliest time that a segment begins with, where one has a time.
    async fn earliest(&self, segments: &[Rc<Segment<R>>]) -> Result<Option<i64>, LogError> {
        let mut earliest = None;
        for segment in segments {
            match segment.load_first_timestamp(&self.runtime).await {
                Ok(()) => {}
                Err(_) if segment.removed.get() => continue,
                Err(error) => return Err(self.failed("look at a segment's time", &error)),
            }
            let first = segment.first_timestamp.get().map(TimestampMs::get).filter(|first| *first > 0);
            earliest = earliest.into_iter().chain(first).min();
        }
        Ok(earliest)
    }
}

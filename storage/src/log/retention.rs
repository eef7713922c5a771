//! Letting go of old segments (storage.md 7.2) and moving the log start offset. Knows no schedule: the broker calls
//! [`Log::retain`].

use std::rc::Rc;

use protocol::types::{Offset, TimestampMs};

use super::gate::Inside;
use super::segment::Segment;
use super::{Log, LogError, unless_it_heals};
use crate::io::Runtime;

/// What a run of retention let go of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Segments that left the log.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl<R: Runtime> Log<R> {
    /// Removes segments below the log start offset, then by size, then by time, oldest first, only such as lie below the
    /// high watermark (KAFKA-5634, KAFKA-12177). The log start offset moves before readers lose the segment. Also drops
    /// indexes from memory that nobody has used since the last run. Dropping the future may leave files behind that the
    /// next start removes.
    ///
    /// # Errors
    /// A failure takes the log offline, except for a full disk.
    pub async fn retain(&self, now: TimestampMs, high_watermark: Offset) -> Result<Retained, LogError> {
        let _swapping = self.swapping.enter().await;
        let structure = self.structure.enter().await;
        self.check_readable()?;
        let mut total = Retained::default();
        let start = self.log_start_offset.get();
        let below_start = self.deletable(high_watermark, |_, next| next.is_some_and(|next| next <= start));
        self.let_go(below_start, &structure, &mut total).await?;
        let config = self.config();
        if config.cleanup_policy.delete {
            let by_size = self.deletable_by_size(config.retention_bytes, high_watermark);
            self.let_go(by_size, &structure, &mut total).await?;
            let by_time = self.deletable_by_time(config.retention_ms, now, high_watermark).await?;
            self.let_go(by_time, &structure, &mut total).await?;
        }
        self.cool_down().await?;
        Ok(total)
    }

    /// Drops the indexes of segments that nobody has used since the last call, where the files hold everything. What they
    /// lack is from a start on a full disk, and written now if there is room.
    async fn cool_down(&self) -> Result<(), LogError> {
        let recovery_point = self.recovery_point.get();
        for segment in self.all_segments() {
            let end = self.segment_after(segment.base_offset).map(|next| next.base_offset);
            if end.is_some_and(|end| end <= recovery_point) && segment.cool_down() {
                let _flushing = self.flushing.enter().await;
                let written = unless_it_heals(segment.flush_indexes(&self.runtime).await);
                written.map_err(|error| self.failed("flush of an index", &error))?;
            }
        }
        Ok(())
    }

    /// Raises the log start offset: DeleteRecords, or a follower that learns of its leader's. Segments go with the next
    /// [`Log::retain`]. An offset at or below the current one changes nothing; the caller keeps it at or below the high
    /// watermark.
    ///
    /// # Errors
    /// A log that is not readable.
    pub async fn advance_log_start(&self, offset: Offset) -> Result<(), LogError> {
        self.check_readable()?;
        if offset > self.log_start_offset.get() && offset <= self.log_end_offset.get() {
            self.raise_log_start(offset);
            let _structure = self.structure.enter().await;
            // An occasion for what flushes have dropped; the file may keep it when the disk is full (S-16).
            let _ = self.write_epochs_if_behind().await;
        }
        self.check_readable()
    }

    fn raise_log_start(&self, offset: Offset) {
        self.log_start_offset.set(offset);
        if self.recovery_point.get() < offset && offset <= self.written_offset.get() {
            self.recovery_point.set(offset);
        }
        let newest = self.snapshots.borrow().files.newest();
        self.producers.borrow_mut().on_log_start(offset, newest);
    }

    /// The oldest segments that may go and of which `doomed` says they should; it sees the next base offset.
    fn deletable(
        &self,
        high_watermark: Offset,
        mut doomed: impl FnMut(&Segment<R>, Option<Offset>) -> bool,
    ) -> Vec<Rc<Segment<R>>> {
        let segments = self.segments.borrow();
        let mut nexts = segments.keys().copied().skip(1);
        let mut found = Vec::new();
        for segment in segments.values() {
            let next = nexts.next();
            let upper = next.unwrap_or(self.log_end_offset.get());
            let is_last_and_empty = next.is_none() && segment.size.get() == 0;
            if upper > high_watermark || is_last_and_empty || !doomed(segment, next) {
                break;
            }
            found.push(segment.clone());
        }
        found
    }

    fn deletable_by_size(&self, retention_bytes: i64, high_watermark: Offset) -> Vec<Rc<Segment<R>>> {
        let Ok(limit) = u64::try_from(retention_bytes) else { return Vec::new() };
        let Some(mut excess) = self.size_bytes().checked_sub(limit) else { return Vec::new() };
        self.deletable(high_watermark, |segment, _| match excess.checked_sub(segment.size.get()) {
            Some(rest) => {
                excess = rest;
                true
            }
            None => false,
        })
    }

    async fn deletable_by_time(
        &self,
        retention_ms: i64,
        now: TimestampMs,
        high_watermark: Offset,
    ) -> Result<Vec<Rc<Segment<R>>>, LogError> {
        let mut found = Vec::new();
        if retention_ms < 0 {
            return Ok(found);
        }
        for segment in self.deletable(high_watermark, |_, _| true) {
            if let Err(error) = self.load_indexes(&segment).await {
                return Err(self.failed("read of an index", &error));
            }
            let largest = segment.largest_timestamp(&self.runtime).await;
            let largest = largest.map_err(|error| self.failed("look at a segment's time", &error))?;
            if now.get().saturating_sub(largest) <= retention_ms {
                break;
            }
            found.push(segment);
        }
        Ok(found)
    }

    async fn let_go(
        &self,
        mut doomed: Vec<Rc<Segment<R>>>,
        structure: &Inside<'_>,
        total: &mut Retained,
    ) -> Result<(), LogError> {
        if doomed.is_empty() {
            return Ok(());
        }
        if doomed.len() == self.segment_count() {
            match self.roll(self.log_end_offset.get(), structure).await {
                Ok(true) => {}
                // Something was appended meanwhile, or there is no room for new files: the active segment stays.
                Ok(false) | Err(LogError::Full | LogError::Exhausted) => drop(doomed.pop()),
                Err(error) => return Err(error),
            }
        }
        let Some(last) = doomed.last() else { return Ok(()) };
        let Some(survivor) = self.segment_after(last.base_offset) else { return Ok(()) };
        if survivor.base_offset > self.log_start_offset.get() {
            self.raise_log_start(survivor.base_offset);
        }
        self.removals_unsynced.set(true);
        for segment in &doomed {
            segment.removed.set(true);
            self.segments.borrow_mut().remove(&segment.base_offset);
            total.segments = total.segments.saturating_add(1);
            total.bytes = total.bytes.saturating_add(segment.size.get());
            tracing::info!(partition = %self.partition, base_offset = %segment.base_offset, "segment leaves the log");
        }
        for segment in &doomed {
            let removed = self.remove_files(segment).await;
            removed.map_err(|error| self.failed("removal of a segment", &error))?;
        }
        // A flush may have synced the directory between two of them.
        self.removals_unsynced.set(true);
        let stale = self.snapshots.borrow_mut().files.take_below(survivor.base_offset);
        let removed = self.remove_snapshots(stale).await;
        removed.map_err(|error| self.failed("removal of a snapshot", &error))?;
        match self.write_epochs_if_behind().await {
            // The file may keep the dropped epochs (S-16).
            Ok(()) | Err(LogError::Full | LogError::Exhausted) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

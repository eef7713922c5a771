//! Starting a new segment (storage.md 4.3). Knows when the caller may append, not why it appends.
//!
//! In order: everything of the old segment is written; the new files exist; then, without an await, the closing time
//! entry, the producers' snapshot, the switch; at last, in the background, the flush of everything below the new base and
//! with it the recovery point. A crash anywhere leaves the recovery point below the old segment's end, so that the old
//! segment is recovered and the empty new one is found or not.

use std::rc::Rc;

use protocol::types::Offset;

use super::gate::Inside;
use super::segment::Segment;
use super::{Log, LogError};
use crate::io::{DirOp, Queue, Runtime};
use crate::names::SegmentFileKind;

impl<R: Runtime> Log<R> {
    /// Starts a segment at `base_offset`, which is at or above the log end offset. Answers `false`, with nothing changed,
    /// if something was appended meanwhile.
    pub(super) async fn roll(&self, base_offset: Offset, _structure: &Inside<'_>) -> Result<bool, LogError> {
        let end = self.log_end_offset.get();
        self.until_written(end).await?;
        let old = self.active();
        if base_offset < end || (old.size.get() == 0 && old.base_offset == base_offset) {
            return Ok(false);
        }
        let config = self.config();
        let new = match Segment::create(&self.runtime, self.dir.clone(), base_offset, &config).await {
            Ok(new) => new,
            Err(error) => {
                self.remove_files_of(base_offset).await;
                return Err(self.failed("roll", &error));
            }
        };
        if self.log_end_offset.get() != end || self.check_changeable().is_err() {
            drop(new);
            self.remove_files_of(base_offset).await;
            self.check_changeable()?;
            return Ok(false);
        }
        old.with(|all| all.rule.close(&mut all.times));
        self.segments.borrow_mut().insert(base_offset, new);
        if base_offset > end {
            // A gap that a follower was told of; nothing lies between.
            self.log_end_offset.set(base_offset);
            self.written_offset.set(base_offset);
        }
        self.note_snapshot();
        self.flush_in_background(base_offset);
        Ok(true)
    }

    /// Undoes the creation of a segment that did not become part of the log.
    async fn remove_files_of(&self, base_offset: Offset) {
        let stale = Segment::found(&self.runtime, self.dir.clone(), base_offset, 0, &self.config());
        for kind in [SegmentFileKind::Log, SegmentFileKind::OffsetIndex, SegmentFileKind::TimeIndex] {
            // An empty segment above the log end is harmless: the next roll or the next load takes it over.
            let _ = self.runtime.dir(DirOp::Unlink(stale.path(kind))).await;
        }
    }

    /// Makes everything below `offset` durable without anybody waiting for it.
    pub(super) fn flush_in_background(&self, offset: Offset) {
        self.flush_wanted.set(self.flush_wanted.get().max(offset));
        if self.flush_running.replace(true) {
            return;
        }
        let Some(log) = self.me.upgrade() else { return };
        let task = self.runtime.spawn(Queue::Background, async move { log.flush_wanted().await });
        self.flush_task.replace(Some(task));
    }

    /// Makes `offset` the log end offset, with nothing in between: the log that this one copies has nothing there either.
    /// Nobody appends meanwhile. An offset at or below the log end offset changes nothing.
    ///
    /// # Errors
    /// A failure takes the log offline, except for a full disk.
    pub async fn skip_to(&self, offset: Offset) -> Result<(), LogError> {
        let structure = self.structure.enter().await;
        self.check_changeable()?;
        if offset > self.log_end_offset.get() {
            self.roll(offset, &structure).await?;
        }
        Ok(())
    }

    async fn flush_wanted(self: Rc<Self>) {
        loop {
            let wanted = self.flush_wanted.get().min(self.log_end_offset.get());
            if self.recovery_point.get() >= wanted || self.flush_below(wanted).await.is_err() {
                break;
            }
        }
        self.flush_running.set(false);
    }
}

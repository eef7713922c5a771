//! The swap of segments for the one that compaction made of them (storage.md 7.6). A crash at any step is met by
//! [`super::super::swap`] at the next load:
//!
//! ```text
//! 1  N.*.cleaned -> N.*.swap, names synced     before: the output is removed
//! 2  readers see the new segment               from here on: the swap is finished
//! 3  old files -> .deleted, ascending, synced
//! 4  N.*.swap -> N.*, names synced
//! ```
//! Truncation, retention, close and flushes wait meanwhile. Appends go on, and rolls too: they change nothing of what is
//! swapped. So do reads: one that holds an old segment finishes with it or begins again.

use std::io;
use std::rc::Rc;

use super::CompactionError;
use super::output::SWAPPED;
use crate::io::{DirOp, Runtime};
use crate::log::Log;
use crate::log::segment::Segment;
use crate::names::{SegmentFileKind, SegmentFileState};

impl<R: Runtime> Log<R> {
    /// Replaces `sources`, neighbours, by `new`, whose files are complete as `.cleaned`. Removes these if something else has
    /// happened to the sources.
    pub(super) async fn replace_segments(
        &self,
        sources: &[Rc<Segment<R>>],
        new: Rc<Segment<R>>,
    ) -> Result<(), CompactionError> {
        let _swapping = self.swapping.enter().await;
        let _flushing = self.flushing.enter().await;
        let base_offset = new.base_offset;
        if let Err(error) = self.check_sources(sources) {
            return Err(self.discard_output(base_offset, error).await);
        }
        let (cleaned, swap) = (SegmentFileState::Cleaned, SegmentFileState::Swap);
        if let Err(error) = self.rename_output(&new, cleaned, swap).await {
            let error = self.failed("swap of a compacted segment", &error).into();
            return Err(self.discard_output(base_offset, error).await);
        }
        let synced = self.sync_dir().await;
        synced.map_err(|error| self.broken("sync of the directory", &error))?;
        self.take_in(sources, &new);
        let swapped = self.finish_swap(sources, &new).await;
        swapped.map_err(|error| self.broken("swap of a compacted segment", &error).into())
    }

    /// Whether the sources are still what the log consists of.
    fn check_sources(&self, sources: &[Rc<Segment<R>>]) -> Result<(), CompactionError> {
        self.check_compacting()?;
        let segments = self.segments.borrow();
        let is_here = |source: &Rc<Segment<R>>| {
            !source.removed.get()
                && segments.get(&source.base_offset).is_some_and(|here| Rc::ptr_eq(here, source))
        };
        if sources.iter().all(is_here) { Ok(()) } else { Err(CompactionError::Stopped) }
    }

    async fn rename_output(
        &self,
        new: &Segment<R>,
        from: SegmentFileState,
        to: SegmentFileState,
    ) -> io::Result<()> {
        for kind in SWAPPED {
            if kind == SegmentFileKind::TxnIndex && !new.has_txns.get() {
                continue;
            }
            let from = self.output_path(new.base_offset, kind, from);
            let to = self.output_path(new.base_offset, kind, to);
            self.runtime.dir(DirOp::Rename { from, to }).await?;
        }
        Ok(())
    }

    /// What readers and the rest of the log see, in one turn.
    fn take_in(&self, sources: &[Rc<Segment<R>>], new: &Rc<Segment<R>>) {
        let mut segments = self.segments.borrow_mut();
        for source in sources {
            source.removed.set(true);
            segments.remove(&source.base_offset);
            self.tail.forget_up_to(source.base_offset);
        }
        segments.insert(new.base_offset, new.clone());
        self.replacements.set(self.replacements.get().wrapping_add(1));
    }

    async fn finish_swap(&self, sources: &[Rc<Segment<R>>], new: &Segment<R>) -> io::Result<()> {
        let delay_ms = self.config().file_delete_delay_ms;
        for source in sources {
            for kind in SWAPPED {
                self.remover.remove(&source.path(kind), delay_ms).await?;
            }
            // The state before the new segment is what it was.
            if source.base_offset != new.base_offset {
                self.remover.remove(&source.path(SegmentFileKind::Snapshot), delay_ms).await?;
                self.snapshots.borrow_mut().files.remove(source.base_offset);
            }
        }
        // Without this a power cut could leave an old segment beside the new one that holds its offsets too.
        self.sync_dir().await?;
        self.rename_output(new, SegmentFileState::Swap, SegmentFileState::Plain).await?;
        self.sync_dir().await
    }
}

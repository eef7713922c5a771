//! Durability: syncs, index files, snapshots, and the recovery point that follows them (storage.md 7.1, S-18). One flush
//! at a time; appends go on meanwhile. Knows no timer: the broker paces flushes.

use std::io;

use protocol::types::Offset;

use super::segment::Segment;
use super::{Log, LogError, LogEvent, Status};
use crate::config::Durability;
use crate::io::{DirOp, File, Runtime, is_exhausted};

impl<R: Runtime> Log<R> {
    /// Makes everything appended so far durable, and advances the recovery point to there, inside the active segment too
    /// a start after a crash then reads only what lies behind it. Dropping the future leaves the recovery point
    /// where it was.
    ///
    /// # Errors
    /// [`LogError::Full`] if index or snapshot did not fit, [`LogError::Exhausted`] if the system had nothing left for it; the
    /// log is unchanged. A failed sync takes the log offline.
    pub async fn flush(&self) -> Result<(), LogError> {
        let target = self.log_end_offset.get();
        if self.recovery_point.get() >= target {
            return self.check_readable();
        }
        self.note_snapshot();
        self.flush_below(target).await
    }

    /// Makes everything below `target` durable. `target` is the log end offset of some moment, or a base offset.
    pub(super) async fn flush_below(&self, target: Offset) -> Result<(), LogError> {
        let _flushing = self.flushing.enter().await;
        self.check_readable()?;
        self.until_written(target).await?;
        for segment in self.segments_to_flush(target) {
            self.flush_segment(&segment).await?;
        }
        if let Err(error) = self.write_snapshots(target).await {
            return Err(self.failed("write of a producer snapshot", &error));
        }
        // What leaves the log meanwhile waits for the next one.
        self.removals_unsynced.set(false);
        let (first, active) = (self.first_base_offset(), self.active().base_offset);
        if let Err(error) = self.runtime.dir(DirOp::Sync(self.dir.to_path_buf())).await {
            return Err(self.broken("sync of the directory", &error));
        }
        if let Some(first) = first {
            // No record below can come back, so that nobody will ask for its epoch. The file may keep it (S-16).
            let changed = self.epochs.borrow_mut().truncate_from_start(first);
            self.epochs_behind.set(self.epochs_behind.get() || changed);
        }
        self.check_readable()?;
        // The log may have been cut back meanwhile, never below what is written and so never below `target`.
        self.recovery_point.set(self.recovery_point.get().max(target));
        let durable = self.commits.borrow_mut().flushed(target, active);
        if let Some(durable) = durable.filter(|_| self.durability() == Durability::Strict) {
            self.tell(LogEvent::Durable(durable));
        }
        Ok(())
    }

    /// Segments that hold anything from the recovery point up to `target`, and an active one that begins there. None where
    /// another flush, which had its turn before, went further.
    fn segments_to_flush(&self, target: Offset) -> Vec<std::rc::Rc<Segment<R>>> {
        let recovery_point = self.recovery_point.get();
        if recovery_point > target {
            return Vec::new();
        }
        let segments = self.segments.borrow();
        let first = segments.range(..=recovery_point).next_back().map_or(recovery_point, |(base, _)| *base);
        segments.range(first..=target).map(|(_, segment)| segment.clone()).collect()
    }

    /// Log first, indexes after: an index never tells of bytes that could vanish.
    async fn flush_segment(&self, segment: &Segment<R>) -> Result<(), LogError> {
        let synced = match segment.file(&self.runtime).await {
            Ok(file) => self.timed(file.sync_data()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = synced {
            if segment.removed.get() && error.kind() == io::ErrorKind::NotFound {
                return Ok(());
            }
            // Without a descriptor it was not opened: that is no sync that failed.
            let is_open = !is_exhausted(&error);
            let during = "sync of a segment";
            return Err(if is_open { self.broken(during, &error) } else { self.failed(during, &error) });
        }
        if segment.removed.get() {
            return Ok(());
        }
        segment.flush_indexes(&self.runtime).await.map_err(|error| self.failed("flush of an index", &error))
    }

    /// Stops the log for a clean stop (storage.md 8.3): everything is durable, files are exactly Kafka's, a snapshot at
    /// the log end offset is there (S-17). The log takes nothing any more.
    ///
    /// # Errors
    /// What failed; the dir must then not be marked as cleanly stopped.
    pub async fn close(&self) -> Result<(), LogError> {
        self.end_compaction().await;
        let _swapping = self.swapping.enter().await;
        let _structure = self.structure.enter().await;
        self.until_idle().await;
        self.check_readable()?;
        let active = self.active();
        active.with(|all| all.rule.close(&mut all.times));
        self.note_snapshot();
        self.flush_below(self.log_end_offset.get()).await?;
        match self.write_epochs_if_behind().await {
            // The file may keep dropped epochs, and lack one of which there is no record (S-16).
            Ok(()) | Err(LogError::Full | LogError::Exhausted) => {}
            Err(error) => return Err(error),
        }
        // Whoever builds an index is ended with the log, and not half way through a file of it.
        let _flushing = self.flushing.enter().await;
        self.end();
        Ok(())
    }

    /// Ends the log without writing anything: its directory is about to be removed, or its dir has failed.
    pub async fn abandon(&self) {
        self.end_compaction().await;
        let _swapping = self.swapping.enter().await;
        let _structure = self.structure.enter().await;
        self.until_idle().await;
        self.end();
    }

    /// Lets a round of compaction that runs give up and put its files away; no other begins.
    async fn end_compaction(&self) {
        self.ending.set(true);
        let _compacting = self.compacting.enter().await;
    }

    fn end(&self) {
        if !matches!(self.status.get(), Status::Offline { .. }) {
            self.status.set(Status::Closed);
        }
        self.writer.abandon(LogError::Closed);
        self.tail.clear();
        self.listener.take();
        self.flush_timer.take();
        self.builds.stop_all();
        for segment in self.all_segments() {
            segment.forget();
        }
    }
}

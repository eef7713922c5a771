//! Cutting the end off a log, and starting it anew (storage.md 4.5). Files are really cut: bytes that only look cut could
//! line up as batches after a crash (S-27). Knows no leader and no divergence: the caller says where.

use std::io;
use std::rc::Rc;

use protocol::types::Offset;

use super::gate::Inside;
use super::segment::{Located, Segment};
use super::{Log, LogError};
use crate::io::{DirOp, File, Runtime};
use crate::names::SegmentFileKind;

impl<R: Runtime> Log<R> {
    /// Makes `offset` the log end offset: whatever is at or above it goes, and a batch that begins below it and reaches it
    /// goes too. The log start offset and the recovery point follow where they were above; the caller writes the dir's
    /// recovery points before it goes on. Nobody appends meanwhile. Dropping the future may leave the log half cut: then
    /// it must be opened again.
    ///
    /// # Errors
    /// A failure takes the log offline, except for a full disk.
    pub async fn truncate_to(&self, offset: Offset) -> Result<(), LogError> {
        let _swapping = self.swapping.enter().await;
        let structure = self.structure.enter().await;
        self.until_idle().await;
        self.check_readable()?;
        if offset >= self.log_end_offset.get() {
            self.drop_epochs_from(self.log_end_offset.get()).await;
            return Ok(());
        }
        let first = self.segments.borrow().first_key_value().map(|(base, _)| *base);
        if first.is_none_or(|first| offset < first) {
            return self.restart(offset, offset, &structure).await;
        }
        let (last, cut) = self.find_cut(offset).await.map_err(|error| self.failed("truncation", &error))?;
        {
            let _flushing = self.flushing.enter().await;
            self.cut_to(offset, &last, cut).await.map_err(|error| self.broken("truncation", &error))?;
        }
        // The last batch may end below `offset`. Once that is durable, recovery cannot take the gap for a loss.
        self.flush_below(offset).await
    }

    /// Empties the log and starts it at `offset`: nothing before it is known, no epoch, no producer.
    ///
    /// # Errors
    /// A failure takes the log offline, except for a full disk.
    pub async fn restart_at(&self, offset: Offset) -> Result<(), LogError> {
        let _swapping = self.swapping.enter().await;
        let structure = self.structure.enter().await;
        self.until_idle().await;
        self.check_readable()?;
        self.restart(offset, offset, &structure).await
    }

    /// The segment that will be the last one, and where it is to end. Nothing is changed, and nobody who writes index files is
    /// kept out: the index may have to be mended for it.
    async fn find_cut(&self, offset: Offset) -> io::Result<(Rc<Segment<R>>, u64)> {
        let last = self.segment_for(offset).unwrap_or_else(|| self.active());
        let cut = match self.locate_in(&last, offset, last.size.get()).await? {
            Located::Batch(found) => found.position,
            Located::None => last.size.get(),
            Located::Bad(position) => position,
        };
        Ok((last, cut))
    }

    async fn cut_to(&self, offset: Offset, last: &Rc<Segment<R>>, cut: u64) -> io::Result<()> {
        // Before anything is cut, so that nothing half is left without them.
        let file = self.to_its_end("truncation", async || {
            last.load_indexes(&self.runtime, &self.config()).await?;
            last.file(&self.runtime).await
        });
        let file = file.await?;
        // From here to the next await: what readers and the partition see.
        let gone = self.segments.borrow_mut().split_off(&last.base_offset.plus(1));
        for segment in gone.values() {
            segment.removed.set(true);
        }
        last.size.set(cut);
        last.written.set(cut);
        last.with(|all| all.truncate_to(offset));
        self.lower_ends(offset);
        self.commits.borrow_mut().cut(offset, last.base_offset);
        // What is now active was not compacted as such (KAFKA-3330).
        self.lower_cleaner_offset(last.base_offset);
        self.tail.clear();
        self.builds.stop(last.base_offset);
        let gone: Vec<_> = gone.into_values().collect();
        let cut_files = async || self.cut_files(&gone, last, &file, cut).await;
        self.to_its_end("truncation", cut_files).await?;
        self.drop_epochs_from(offset).await;
        self.to_its_end("truncation", async || self.truncate_producers(offset).await).await
    }

    async fn cut_files(
        &self,
        gone: &[Rc<Segment<R>>],
        last: &Segment<R>,
        file: &R::File,
        cut: u64,
    ) -> io::Result<()> {
        // Highest first, and durable before anything else: a power cut must neither bring one back nor leave a hole.
        for segment in gone.iter().rev() {
            self.remove_files(segment).await?;
        }
        if !gone.is_empty() {
            self.sync_dir().await?;
        }
        file.truncate(cut).await?;
        file.sync_data().await?;
        last.cut_index_files(&self.runtime).await?;
        last.scan_tail(&self.runtime, cut).await?;
        if cut > 0 {
            return last.load_first_timestamp(&self.runtime).await;
        }
        last.first_timestamp.set(None);
        last.created_ms.set(self.runtime.wall_ms());
        Ok(())
    }

    fn lower_ends(&self, offset: Offset) {
        self.log_end_offset.set(offset);
        self.written_offset.set(offset);
        for point in [&self.recovery_point, &self.log_start_offset, &self.flush_wanted] {
            point.set(point.get().min(offset));
        }
    }

    /// What compaction has read may be gone, and what it has written must not bring it back.
    fn lower_cleaner_offset(&self, offset: Offset) {
        self.was_cut.set(true);
        self.cleaner_offset.set(self.cleaner_offset.get().map(|cleaned| cleaned.min(offset)));
    }

    /// Drops epochs that begin at or above `offset`; the file may keep them until the next occasion (S-16).
    pub(super) async fn drop_epochs_from(&self, offset: Offset) {
        let changed = self.epochs.borrow_mut().truncate_from_end(offset);
        self.epochs_behind.set(self.epochs_behind.get() || changed);
        // A failure other than a full disk has taken the log offline; a full disk leaves the file behind, as it may be.
        let _ = self.write_epochs_if_behind().await;
    }

    async fn truncate_producers(&self, offset: Offset) -> io::Result<()> {
        self.drop_waiting_snapshots(offset);
        let outside = self.snapshots.borrow_mut().files.take_outside(self.log_start_offset.get(), offset);
        self.remove_snapshots(outside).await?;
        let must_reload = self.producers.borrow().must_reload(offset);
        if must_reload { self.rebuild_producers().await } else { Ok(()) }
    }

    /// Puts the files of a segment that left the log aside, its snapshot included.
    pub(super) async fn remove_files(&self, segment: &Segment<R>) -> io::Result<()> {
        let delay_ms = self.config().file_delete_delay_ms;
        for kind in SegmentFileKind::ALL {
            self.remover.remove(&segment.path(kind), delay_ms).await?;
        }
        self.snapshots.borrow_mut().files.remove(segment.base_offset);
        Ok(())
    }

    pub(super) async fn restart(
        &self,
        offset: Offset,
        log_start_offset: Offset,
        _structure: &Inside<'_>,
    ) -> Result<(), LogError> {
        let _flushing = self.flushing.enter().await;
        let restarted = self.to_its_end("restart", async || self.restart_files(offset).await).await;
        let segment = restarted.map_err(|error| self.broken("restart", &error))?;
        self.segments.replace([(offset, segment)].into());
        self.log_end_offset.set(offset);
        self.written_offset.set(offset);
        self.recovery_point.set(offset);
        self.flush_wanted.set(offset);
        self.commits.borrow_mut().restarted(offset);
        self.log_start_offset.set(log_start_offset);
        self.lower_cleaner_offset(offset);
        self.producers.borrow_mut().restart_at(offset);
        self.epochs.borrow_mut().clear();
        let text = self.epochs.borrow().to_text();
        self.write_epoch_file(text).await
    }

    async fn restart_files(&self, offset: Offset) -> io::Result<Rc<Segment<R>>> {
        let old = self.all_segments();
        for segment in &old {
            segment.removed.set(true);
        }
        self.tail.clear();
        for segment in old.iter().rev() {
            self.remove_files(segment).await?;
        }
        self.drop_waiting_snapshots(Offset::NONE);
        let snapshots = self.snapshots.borrow_mut().files.take_all();
        self.remove_snapshots(snapshots).await?;
        // One sync for what goes and what comes: a directory's names become durable in the order of their changes.
        let segment = Segment::create(&self.runtime, self.dir.clone(), offset, &self.config()).await?;
        self.sync_dir().await?;
        Ok(segment)
    }

    /// Not an async function: a simulation tells the callers apart.
    #[track_caller]
    pub(super) fn sync_dir(&self) -> impl Future<Output = io::Result<()>> {
        let synced = self.runtime.dir(DirOp::Sync(self.dir.to_path_buf()));
        async move { synced.await.map(|_| ()) }
    }
}

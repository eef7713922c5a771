//! The offset checkpoints of the log dirs (storage.md 1.5, replication.md 11): the entries of all shards are gathered on the
//! shard that owns the dirs, and written there by one task (S-8), only when they changed; what they said of a log that no
//! shard has opened yet they go on saying (V-64). Also the order of a clean stop (storage.md 8.3). Run by `control`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use protocol::types::{MonoTime, Offset, TopicPartition};
use storage::checkpoint::OffsetCheckpoint;
use storage::io::{Queue, Runtime};
use storage::log_dir::{
    CheckpointFile, CheckpointWriteError, CloseError, FoundKind, Loading, LogDir, OpenedLogDir,
};

use crate::partition::ask::{Closed, PartitionAnswer, PartitionAsk, Sample};
use crate::partition::lifecycle::Checkpoints;
use crate::partition::service::PartitionService;
use crate::shard::{NEVER, ShardId, ShardRuntime, Shards};

/// How often the files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointIntervals {
    /// `replica.high.watermark.checkpoint.interval.ms`.
    pub high_watermark_ms: i64,
    /// `log.flush.offset.checkpoint.interval.ms`.
    pub recovery_point_ms: i64,
    /// `log.flush.start.offset.checkpoint.interval.ms`.
    pub log_start_ms: i64,
}

/// What a log dir held when it was opened.
#[derive(Clone, Debug, Default)]
pub struct FoundInDir {
    /// Partitions in service, and those whose move into the dir was cut short.
    pub partitions: BTreeSet<TopicPartition>,
    /// The targets of these moves.
    pub futures: BTreeMap<TopicPartition, PathBuf>,
    /// What the files said of these: what they say of others is about logs that are gone, and would be wrong of a new one
    /// under the same name.
    pub checkpoints: Checkpoints,
}

impl FoundInDir {
    /// Looks at a log dir that was just opened.
    pub fn of<R: Runtime>(opened: &OpenedLogDir<R>) -> Self {
        let ours = opened.partitions.iter().filter(|found| found.kind != FoundKind::Stray);
        let partitions: BTreeSet<TopicPartition> = ours.map(|found| found.partition.clone()).collect();
        let futures = opened.partitions.iter().filter(|found| found.kind == FoundKind::Future);
        let futures = futures.map(|found| (found.partition.clone(), found.path.clone())).collect();
        let entries = |file| {
            let mut offsets = opened.checkpoint(file).offsets;
            offsets.retain(|partition, _| partitions.contains(partition));
            offsets
        };
        let checkpoints = Checkpoints {
            recovery_points: entries(CheckpointFile::RecoveryPoint),
            log_start_offsets: entries(CheckpointFile::LogStart),
            high_watermarks: entries(CheckpointFile::HighWatermark),
            cleaner_offsets: entries(CheckpointFile::Cleaner),
        };
        Self { partitions, futures, checkpoints }
    }

    fn forget(&mut self, partition: &TopicPartition) {
        if self.partitions.remove(partition) {
            self.checkpoints.recovery_points.remove(partition);
            self.checkpoints.log_start_offsets.remove(partition);
            self.checkpoints.high_watermarks.remove(partition);
            self.checkpoints.cleaner_offsets.remove(partition);
        }
    }

    fn entries(&self, file: CheckpointFile) -> BTreeMap<TopicPartition, Offset> {
        match file {
            CheckpointFile::HighWatermark => self.checkpoints.high_watermarks.clone(),
            CheckpointFile::RecoveryPoint => self.checkpoints.recovery_points.clone(),
            CheckpointFile::LogStart => self.checkpoints.log_start_offsets.clone(),
            CheckpointFile::Cleaner => self.checkpoints.cleaner_offsets.clone(),
        }
    }
}

/// Writes the checkpoints of the log dirs until it is dropped or stopped.
pub struct CheckpointTask<R: ShardRuntime> {
    writer: Rc<Writer<R>>,
    _task: R::Task,
    watching: RefCell<Vec<R::Task>>,
}

/// The files, for whoever deletes partitions. Cheap to clone.
pub struct CheckpointFiles<R: ShardRuntime> {
    writer: Rc<Writer<R>>,
}

impl<R: ShardRuntime> Clone for CheckpointFiles<R> {
    fn clone(&self) -> Self {
        Self { writer: self.writer.clone() }
    }
}

impl<R: ShardRuntime> CheckpointFiles<R> {
    /// Takes deleted partitions out of the files, but of that with the high watermarks, as Kafka does: after a crash they
    /// would be taken for those of a new topic of that name, which then lost what lies below the old log start.
    pub async fn forget(self, partitions: Vec<TopicPartition>) {
        let files = [CheckpointFile::RecoveryPoint, CheckpointFile::LogStart, CheckpointFile::Cleaner];
        for dir in &self.writer.dirs {
            for partition in &partitions {
                dir.unopened.borrow_mut().forget(partition);
            }
            for file in &files {
                // Also when it was written so already: that may be on its way.
                dir.written.borrow_mut().remove(file);
            }
        }
        self.writer.write(&files).await;
    }
}

struct Writer<R: ShardRuntime> {
    runtime: R,
    owners: Shards<R, PartitionService<R>>,
    dirs: Vec<Files<R>>,
}

/// The files of one log dir.
struct Files<R: ShardRuntime> {
    path: Arc<Path>,
    dir: Rc<LogDir<R>>,
    /// What each file says, as far as we wrote it.
    written: RefCell<BTreeMap<CheckpointFile, OffsetCheckpoint>>,
    /// Directories that no shard has opened since the start: of logs that wait for that or could not be opened, and of
    /// topics that metadata does not know (a directory of Kafka's, or lost metadata). To forget what the files said of them
    /// would bring deleted records back, or cost the next broker on this directory its high watermarks.
    unopened: RefCell<FoundInDir>,
}

impl<R: ShardRuntime> CheckpointTask<R> {
    /// Starts to write.
    pub fn start(
        runtime: &R,
        owners: Shards<R, PartitionService<R>>,
        dirs: Vec<(Rc<LogDir<R>>, FoundInDir)>,
        intervals: CheckpointIntervals,
    ) -> Self {
        let files = |(dir, found): (Rc<LogDir<R>>, FoundInDir)| Files {
            path: dir.path().into(),
            dir,
            written: RefCell::default(),
            unopened: RefCell::new(found),
        };
        let dirs = dirs.into_iter().map(files).collect();
        let writer = Rc::new(Writer { runtime: runtime.clone(), owners, dirs });
        let here = writer.clone();
        let task = runtime.spawn(Queue::Background, async move { here.run(intervals).await });
        Self { writer, _task: task, watching: RefCell::default() }
    }

    /// Calls back once every log that was there in a log dir at the start is open, or was deleted: then all of them are in
    /// order.
    pub fn when_all_are_open(&self, runtime: &R, dir: &Path, all_are: impl FnOnce() + 'static) {
        let (writer, dir) = (self.writer.clone(), dir.to_owned());
        let task = runtime.spawn(Queue::Background, async move {
            // Ever more rarely: a directory that metadata does not know is never opened.
            let mut pause_ms = LOOK_MS;
            while !writer.all_are_open(&dir).await {
                writer.runtime.sleep_until(writer.runtime.now().plus_ms(pause_ms)).await;
                pause_ms = pause_ms.saturating_mul(2).min(LOOK_MS_MAX);
            }
            all_are();
        });
        self.watching.borrow_mut().push(task);
    }

    /// For whoever deletes partitions.
    pub fn files(&self) -> CheckpointFiles<R> {
        CheckpointFiles { writer: self.writer.clone() }
    }

    /// Partitions whose directories were there at start and have not been opened.
    pub fn unopened(&self) -> BTreeSet<TopicPartition> {
        let mut all = BTreeSet::new();
        for dir in &self.writer.dirs {
            all.extend(dir.unopened.borrow().partitions.iter().cloned());
        }
        all
    }

    /// Stops the log dirs cleanly: high watermarks, all logs, recovery points, log starts, marker (storage.md 8.3). Nobody
    /// may append any more. A dir gets no marker if it was unclean at start and one of its logs was not opened since, for
    /// that one was not recovered (KAFKA-15375).
    pub async fn stop(self) -> Stopped {
        let Self { writer, _task, watching } = self;
        drop((_task, watching));
        writer.write(&[CheckpointFile::HighWatermark, CheckpointFile::Cleaner]).await;
        let (mut samples, mut unclean, mut is_whole) = (Vec::new(), BTreeSet::new(), true);
        for closed in writer.close_all().await {
            match closed {
                Some(closed) => {
                    unclean.extend(closed.unclean);
                    samples.extend(closed.samples);
                }
                None => is_whole = false,
            }
        }
        let mut dirs = Vec::new();
        for dir in &writer.dirs {
            if is_whole {
                // A log that has arrived where it moved to meanwhile is in another dir than before.
                for file in [CheckpointFile::HighWatermark, CheckpointFile::Cleaner] {
                    dir.write(file, &samples, writer.owners.local()).await;
                }
            }
            let is_clean = is_whole && !unclean.contains(&dir.path);
            dirs.push((dir.path.clone(), dir.stop(is_clean, &samples).await));
        }
        Stopped { dirs }
    }
}

/// What became of the log dirs at a stop.
#[derive(Debug)]
pub struct Stopped {
    /// Whether each has a mark of a clean stop; or what could not be written: the next start then recovers.
    pub dirs: Vec<(Arc<Path>, Result<bool, CloseError>)>,
}

impl Stopped {
    /// Whether all of them have a mark.
    pub fn are_marked(&self) -> bool {
        self.dirs.iter().all(|(_, stopped)| matches!(stopped, Ok(true)))
    }
}

impl<R: ShardRuntime> Files<R> {
    async fn stop(&self, is_clean: bool, samples: &[Sample]) -> Result<bool, CloseError> {
        let dir = self.path.display();
        if !is_clean {
            tracing::warn!(%dir, "a log was not closed cleanly: the next start recovers");
            return Ok(false);
        }
        let recovery_points = self.entries(CheckpointFile::RecoveryPoint, samples);
        let log_starts = self.entries(CheckpointFile::LogStart, samples);
        let left = self.unopened.borrow().partitions.clone();
        let loading = if left.is_empty() { Loading::Finished } else { Loading::Interrupted };
        let is_marked = self.dir.mark_clean(&recovery_points, &log_starts, loading).await?;
        if let Some(first) = left.first().filter(|_| !is_marked) {
            tracing::warn!(%dir, count = left.len(), %first, "logs were not opened since a crash: the next start recovers");
        }
        Ok(is_marked)
    }

    fn note_opened(&self, samples: &[Sample]) {
        let mut unopened = self.unopened.borrow_mut();
        for sample in samples {
            let name = &sample.partition;
            // One that was here and is elsewhere now was opened and has moved.
            let has_left = !sample.is_copy && !unopened.futures.contains_key(name);
            if sample.log_dir == self.path || has_left {
                unopened.forget(name);
            }
        }
    }

    /// What a file is to say.
    fn entries(&self, file: CheckpointFile, samples: &[Sample]) -> OffsetCheckpoint {
        self.note_opened(samples);
        let offset = |sample: &Sample| match file {
            CheckpointFile::HighWatermark => Some(sample.high_watermark),
            CheckpointFile::RecoveryPoint => Some(sample.recovery_point),
            CheckpointFile::LogStart => sample.log_start_offset,
            CheckpointFile::Cleaner => sample.cleaner_offset,
        };
        let mut offsets = self.unopened.borrow().entries(file);
        let here = samples.iter().filter(|sample| sample.log_dir == self.path);
        offsets.extend(here.filter_map(|sample| Some((sample.partition.clone(), offset(sample)?))));
        OffsetCheckpoint { offsets }
    }

    /// Brings a file up to date, if it changed; `false` if the dir has failed.
    async fn write(&self, file: CheckpointFile, samples: &[Sample], owner: &PartitionService<R>) -> bool {
        let entries = self.entries(file, samples);
        if self.written.borrow().get(&file) == Some(&entries) {
            return true;
        }
        // Noted before: of two writes that wait the later one stands, whichever is answered first.
        self.written.borrow_mut().insert(file, entries.clone());
        let Err(error) = self.dir.write_checkpoint(file, &entries).await else { return true };
        self.written.borrow_mut().remove(&file);
        match error {
            // Its dir has failed, which was said.
            CheckpointWriteError::Offline | CheckpointWriteError::Closed => false,
            CheckpointWriteError::Full(_) => {
                tracing::warn!(%error, "checkpoint was not written, it is tried again");
                true
            }
            CheckpointWriteError::Failed(_) => {
                tracing::error!(%error, "checkpoint was not written");
                owner.operation_failed(&self.path, &error);
                false
            }
        }
    }
}

/// When a start that recovers first looks again whether it is done; all shards and logs are asked.
const LOOK_MS: i64 = 1000;
const LOOK_MS_MAX: i64 = 16_000;

impl<R: ShardRuntime> Writer<R> {
    async fn all_are_open(&self, dir: &Path) -> bool {
        let Some(files) = self.dirs.iter().find(|files| *files.path == *dir) else { return true };
        if !files.unopened.borrow().partitions.is_empty() {
            let Some(samples) = self.samples().await else { return false };
            files.note_opened(&samples);
        }
        files.unopened.borrow().partitions.is_empty()
    }

    async fn run(self: Rc<Self>, intervals: CheckpointIntervals) {
        let every = [
            (CheckpointFile::HighWatermark, intervals.high_watermark_ms),
            (CheckpointFile::RecoveryPoint, intervals.recovery_point_ms),
            (CheckpointFile::LogStart, intervals.log_start_ms),
            // Changes when a log was compacted; to lose it costs a compaction.
            (CheckpointFile::Cleaner, intervals.high_watermark_ms),
        ];
        let start = self.runtime.now();
        let every = every.into_iter().filter(|(_, ms)| *ms > 0);
        let mut due: Vec<(MonoTime, CheckpointFile, i64)> =
            every.map(|(file, ms)| (start.plus_ms(ms), file, ms)).collect();
        if due.is_empty() {
            return;
        }
        loop {
            let next = due.iter().map(|(at, ..)| *at).min().unwrap_or(NEVER);
            self.runtime.sleep_until(next).await;
            let now = self.runtime.now();
            let mut files = Vec::new();
            for (at, file, ms) in &mut due {
                if *at <= now {
                    files.push(*file);
                    *at = now.plus_ms(*ms);
                }
            }
            self.write(&files).await;
        }
    }

    /// Brings files up to date, as far as they changed.
    async fn write(&self, files: &[CheckpointFile]) {
        let Some(samples) = self.samples().await else { return };
        for dir in &self.dirs {
            for file in files {
                if !dir.write(*file, &samples, self.owners.local()).await {
                    break;
                }
            }
        }
    }

    /// The entries of all shards; none if one of them does not answer, for half of the entries are worse than old ones.
    async fn samples(&self) -> Option<Vec<Sample>> {
        let asked = self.shards().map(|shard| self.owners.ask(shard, NEVER, PartitionAsk::Sample));
        let mut all = Vec::new();
        for answer in join_all(asked).await {
            match answer {
                Ok(PartitionAnswer::Samples(samples)) => all.extend(samples),
                Ok(_) | Err(_) => return None,
            }
        }
        Some(all)
    }

    async fn close_all(&self) -> Vec<Option<Closed>> {
        let asked = self.shards().map(|shard| self.owners.ask(shard, NEVER, PartitionAsk::Close));
        let closed = |answer| match answer {
            Ok(PartitionAnswer::Closed(closed)) => Some(closed),
            Ok(_) | Err(_) => None,
        };
        join_all(asked).await.into_iter().map(closed).collect()
    }

    fn shards(&self) -> impl Iterator<Item = ShardId> + use<R> {
        (0..self.runtime.shard_count()).map(ShardId::new)
    }
}

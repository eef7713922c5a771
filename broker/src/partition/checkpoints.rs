//! The offset checkpoints of a log dir (storage.md 1.5, replication.md 11): the entries of all shards are gathered on the
//! shard that owns the dir, and written there by one task (S-8), only when they changed. Also the order of a clean stop
//! (storage.md 8.3). Started after the first roles were taken, so that no file loses what is not loaded yet (V-64).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::join_all;
use protocol::types::{MonoTime, Offset, TopicPartition};
use storage::checkpoint::OffsetCheckpoint;
use storage::io::{Queue, Runtime};
use storage::log_dir::{
    CheckpointFile, CheckpointWriteError, CloseError, FoundKind, Loading, LogDir, OpenedLogDir,
};

use super::ask::{Closed, PartitionAnswer, PartitionAsk, Sample};
use super::lifecycle::Checkpoints;
use super::service::PartitionService;
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

impl Checkpoints {
    /// What the files of a log dir said when it was opened.
    pub fn of<R: Runtime>(opened: &OpenedLogDir<R>) -> Self {
        let entries = |file| opened.checkpoint(file).offsets;
        Self {
            recovery_points: entries(CheckpointFile::RecoveryPoint),
            log_start_offsets: entries(CheckpointFile::LogStart),
            high_watermarks: entries(CheckpointFile::HighWatermark),
        }
    }

    /// Those of the partitions that have a directory: what the files must go on saying of a log that nobody has opened.
    pub fn of_directories<R: Runtime>(opened: &OpenedLogDir<R>) -> Self {
        let current = opened.partitions.iter().filter(|found| found.kind == FoundKind::Current);
        let there: BTreeSet<&TopicPartition> = current.map(|found| &found.partition).collect();
        let mut all = Self::of(opened);
        for offsets in [&mut all.recovery_points, &mut all.log_start_offsets, &mut all.high_watermarks] {
            offsets.retain(|partition, _| there.contains(partition));
        }
        all
    }

    fn entries(&self, file: CheckpointFile) -> BTreeMap<TopicPartition, Offset> {
        match file {
            CheckpointFile::HighWatermark => self.high_watermarks.clone(),
            CheckpointFile::RecoveryPoint => self.recovery_points.clone(),
            CheckpointFile::LogStart => self.log_start_offsets.clone(),
            CheckpointFile::Cleaner => BTreeMap::new(),
        }
    }
}

/// Writes the checkpoints of one log dir until it is dropped or stopped.
pub struct CheckpointTask<R: ShardRuntime> {
    writer: Rc<Writer<R>>,
    _task: R::Task,
}

struct Writer<R: ShardRuntime> {
    runtime: R,
    owners: Shards<R, PartitionService<R>>,
    dir: Rc<LogDir<R>>,
    /// What each file says, as far as we wrote it.
    written: RefCell<BTreeMap<CheckpointFile, OffsetCheckpoint>>,
    /// What the files said at start of directories that no shard has opened since: of topics that metadata does not know
    /// (a directory of Kafka's, or lost metadata) and of logs that could not be opened. Forgetting it would bring deleted
    /// records back, or cost the next broker on this directory its high watermarks.
    unopened: RefCell<Checkpoints>,
}

impl<R: ShardRuntime> CheckpointTask<R> {
    /// Starts to write. `found` is what the files said at start of the directories that are there.
    pub fn start(
        runtime: &R,
        owners: Shards<R, PartitionService<R>>,
        (dir, found): (Rc<LogDir<R>>, Checkpoints),
        intervals: CheckpointIntervals,
    ) -> Self {
        let writer = Rc::new(Writer {
            runtime: runtime.clone(),
            owners,
            dir,
            written: RefCell::default(),
            unopened: RefCell::new(found),
        });
        let here = writer.clone();
        let task = runtime.spawn(Queue::Background, async move { here.run(intervals).await });
        Self { writer, _task: task }
    }

    /// Writes all files now: after a partition was deleted, say.
    pub async fn flush(&self) {
        self.writer.write(&CheckpointFile::ALL).await;
    }

    /// Stops the log dir cleanly: high watermarks, all logs, recovery points, log starts, marker (storage.md 8.3). Nobody
    /// may append any more. Answers whether the marker is there.
    ///
    /// # Errors
    /// What could not be written; the next start then recovers.
    pub async fn stop(self) -> Result<bool, CloseError> {
        let Self { writer, _task } = self;
        drop(_task);
        writer.write(&[CheckpointFile::HighWatermark]).await;
        let mut samples = Vec::new();
        let mut clean = true;
        for closed in writer.close_all().await {
            match closed {
                Some(closed) => {
                    clean &= closed.clean;
                    samples.extend(closed.samples);
                }
                None => clean = false,
            }
        }
        if !clean {
            tracing::warn!(dir = %writer.dir.path().display(), "a log was not closed cleanly: the next start recovers");
            return Ok(false);
        }
        let recovery_points = writer.entries(CheckpointFile::RecoveryPoint, &samples);
        let log_starts = writer.entries(CheckpointFile::LogStart, &samples);
        writer.dir.mark_clean(&recovery_points, &log_starts, Loading::Finished).await
    }
}

impl<R: ShardRuntime> Writer<R> {
    async fn run(self: Rc<Self>, intervals: CheckpointIntervals) {
        let every = [
            (CheckpointFile::HighWatermark, intervals.high_watermark_ms),
            (CheckpointFile::RecoveryPoint, intervals.recovery_point_ms),
            (CheckpointFile::LogStart, intervals.log_start_ms),
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
        for file in files {
            if *file == CheckpointFile::Cleaner {
                continue;
            }
            let entries = self.entries(*file, &samples);
            if self.written.borrow().get(file) == Some(&entries) {
                continue;
            }
            match self.dir.write_checkpoint(*file, &entries).await {
                Ok(()) => {
                    self.written.borrow_mut().insert(*file, entries);
                }
                // Its dir has failed, which was said.
                Err(CheckpointWriteError::Offline | CheckpointWriteError::Closed) => return,
                Err(error @ CheckpointWriteError::Full(_)) => {
                    tracing::warn!(%error, "checkpoint was not written, it is tried again");
                }
                Err(error @ CheckpointWriteError::Failed(_)) => {
                    tracing::error!(%error, "checkpoint was not written");
                    return self.owners.local().operation_failed(&error);
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

    /// What a file is to say.
    fn entries(&self, file: CheckpointFile, samples: &[Sample]) -> OffsetCheckpoint {
        let mut unopened = self.unopened.borrow_mut();
        for sample in samples {
            unopened.recovery_points.remove(&sample.partition);
            unopened.log_start_offsets.remove(&sample.partition);
            unopened.high_watermarks.remove(&sample.partition);
        }
        let offset = |sample: &Sample| match file {
            CheckpointFile::HighWatermark => Some(sample.high_watermark),
            CheckpointFile::RecoveryPoint => Some(sample.recovery_point),
            CheckpointFile::LogStart => sample.log_start_offset,
            CheckpointFile::Cleaner => None,
        };
        let mut offsets = unopened.entries(file);
        offsets.extend(samples.iter().filter_map(|sample| Some((sample.partition.clone(), offset(sample)?))));
        OffsetCheckpoint { offsets }
    }

    fn shards(&self) -> impl Iterator<Item = ShardId> + use<R> {
        (0..self.runtime.shard_count()).map(ShardId::new)
    }
}

//! Checkpoint files of the log dir: samples of all shards, gathered and written by shard 0 alone (S-8). The files are
//! advice that bounds the work of the next start; losing the newest one loses no record.

use std::rc::Rc;

use futures_util::future::join_all;
use storage::checkpoint::OffsetCheckpoint;
use storage::io::Queue;
use storage::log_dir::{CheckpointFile, Loading, LogDir};

use super::BootError;
use crate::config::broker::StorageConfig;
use crate::partition::ask::{PartitionAnswer, PartitionAsk, Sample};
use crate::partition::service::PartitionService;
use crate::shard::{NEVER, ShardId, ShardRuntime, Shards};

/// The owner of a dir's checkpoint files; lives on shard 0.
pub struct CheckpointWriter<R: ShardRuntime> {
    runtime: R,
    partitions: Shards<R, PartitionService<R>>,
    dir: Rc<LogDir<R>>,
}

impl<R: ShardRuntime> CheckpointWriter<R> {
    /// A writer for a dir.
    pub fn new(runtime: &R, partitions: Shards<R, PartitionService<R>>, dir: Rc<LogDir<R>>) -> Rc<Self> {
        Rc::new(Self { runtime: runtime.clone(), partitions, dir })
    }

    /// Starts to write each file at its interval, first after the first partitions are known (replication.md 11).
    pub fn start(self: &Rc<Self>, config: &StorageConfig) -> Vec<R::Task> {
        let intervals = [
            (CheckpointFile::HighWatermark, config.replica_high_watermark_checkpoint_interval_ms),
            (CheckpointFile::RecoveryPoint, config.log_flush_offset_checkpoint_interval_ms),
            (CheckpointFile::LogStart, config.log_flush_start_offset_checkpoint_interval_ms),
        ];
        intervals
            .into_iter()
            .filter(|(_, interval_ms)| *interval_ms > 0)
            .map(|(file, interval_ms)| {
                let writer = Rc::clone(self);
                self.runtime
                    .spawn(Queue::Background, async move { writer.write_every(file, interval_ms).await })
            })
            .collect()
    }

    async fn write_every(&self, file: CheckpointFile, interval_ms: i64) {
        let mut written = None;
        loop {
            self.runtime.sleep_until(self.runtime.now().plus_ms(interval_ms)).await;
            let Ok(samples) = self.samples().await else { return };
            let entries = entries(file, &samples);
            // An idle broker writes nothing.
            if written.as_ref() == Some(&entries) {
                continue;
            }
            match self.dir.write_checkpoint(file, &entries).await {
                Ok(()) => written = Some(entries),
                Err(error) => tracing::error!(file = file.name(), %error, "checkpoint not written"),
            }
        }
    }

    async fn samples(&self) -> Result<Vec<Sample>, BootError> {
        let mut all = Vec::new();
        for answer in self.ask_all(|| PartitionAsk::Sample).await {
            match answer? {
                PartitionAnswer::Samples(samples) => all.extend(samples),
                _ => return Err(BootError::ShardStopped),
            }
        }
        Ok(all)
    }

    async fn ask_all(&self, ask: impl Fn() -> PartitionAsk) -> Vec<Result<PartitionAnswer, BootError>> {
        let shards = (0..self.runtime.shard_count()).map(ShardId::new);
        let answers = shards.map(|to| self.partitions.ask(to, NEVER, ask()));
        join_all(answers)
            .await
            .into_iter()
            .map(|answer| answer.map_err(|_| BootError::ShardStopped))
            .collect()
    }

    /// Closes the logs of all shards, writes the last checkpoints and, when every log was closed without an error, the
    /// clean-shutdown marker (storage.md 8.3).
    pub async fn close(&self) {
        let mut samples = Vec::new();
        let mut clean = true;
        for answer in self.ask_all(|| PartitionAsk::Close).await {
            match answer {
                Ok(PartitionAnswer::Closed(closed)) => {
                    clean &= closed.clean;
                    samples.extend(closed.samples);
                }
                _ => clean = false,
            }
        }
        let high_watermarks = entries(CheckpointFile::HighWatermark, &samples);
        if let Err(error) = self.dir.write_checkpoint(CheckpointFile::HighWatermark, &high_watermarks).await {
            tracing::error!(%error, "high watermarks not written");
        }
        if !clean {
            tracing::warn!("not every log was closed: the next start recovers");
            return;
        }
        let recovery_points = entries(CheckpointFile::RecoveryPoint, &samples);
        let log_start_offsets = entries(CheckpointFile::LogStart, &samples);
        match self.dir.mark_clean(&recovery_points, &log_start_offsets, Loading::Finished).await {
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "clean stop not marked: the next start recovers"),
        }
    }
}

fn entries(file: CheckpointFile, samples: &[Sample]) -> OffsetCheckpoint {
    let offset = |sample: &Sample| match file {
        CheckpointFile::HighWatermark => Some(sample.high_watermark),
        CheckpointFile::RecoveryPoint => Some(sample.recovery_point),
        CheckpointFile::LogStart => sample.log_start_offset,
        CheckpointFile::Cleaner => None,
    };
    let offsets =
        samples.iter().filter_map(|sample| Some((sample.partition.clone(), offset(sample)?))).collect();
    OffsetCheckpoint { offsets }
}

//! Work of a shard's logs that can wait: retention, expiry of producers, flushes that let a start after a crash read
//! little. One task per kind, one log after the other, a turn between two.

use std::rc::Rc;

use protocol::types::{MonoTime, TimestampMs};
use storage::io::{Queue, Runtime};
use storage::log::LogError;

use super::ask::PartitionError;
use super::replica::Partition;
use super::service::PartitionService;

/// How long the newest batches stay in memory for tail readers when nothing pushes them out.
const TAIL_AGE_NANOS_MAX: u64 = 30_000_000_000;

/// How often they are looked through.
const TAIL_SWEEP_MS: i64 = 15_000;

/// After so much work the shard's sockets and timers have their turn.
const SLICE_NANOS: u64 = 50_000;

impl<R: Runtime> PartitionService<R> {
    /// Starts the tasks; they end with the service.
    pub(super) fn start_background(&self) {
        let settings = self.0.settings;
        self.every(settings.retention_check_interval_ms, async |partition| partition.retain().await);
        self.every(settings.producer_expiration_check_interval_ms, async |partition| {
            partition.log().expire_producers(TimestampMs::new(partition.hub.runtime.wall_ms()));
        });
        self.every(settings.flush_interval_ms, async |partition| partition.flush_if_behind().await);
        self.sweep_tails();
        for (dir, space) in self.0.hub.spaces() {
            let (dir, space, runtime) = (dir.clone(), space.clone(), self.runtime().clone());
            let (_, look) = space.take(0, runtime.now());
            if look {
                self.spawn(Queue::Background, async move { space.look(&runtime, &dir).await });
            }
        }
    }

    /// Lets old batches go, so that a shard whose partitions are idle holds nothing.
    fn sweep_tails(&self) {
        let inner = Rc::downgrade(&self.0);
        let (runtime, tail) = (self.runtime().clone(), self.tail_budget());
        self.0.hub.tasks.spawn(Queue::Background, async move {
            while inner.strong_count() > 0 {
                runtime.sleep_until(runtime.now().plus_ms(TAIL_SWEEP_MS)).await;
                tail.evict_older(MonoTime::new(runtime.now().get().saturating_sub(TAIL_AGE_NANOS_MAX)));
            }
        });
    }

    /// Does `work` on each partition, again and again.
    fn every(&self, interval_ms: i64, work: impl AsyncFn(Rc<Partition<R>>) + 'static) {
        if interval_ms <= 0 || interval_ms == i64::MAX {
            return;
        }
        let inner = Rc::downgrade(&self.0);
        let runtime = self.runtime().clone();
        self.0.hub.tasks.spawn(Queue::Background, async move {
            loop {
                runtime.sleep_until(runtime.now().plus_ms(interval_ms)).await;
                let Some(inner) = inner.upgrade() else { return };
                let partitions: Vec<_> = inner.partitions.borrow().values().cloned().collect();
                drop(inner);
                let mut since = runtime.now();
                for partition in partitions {
                    work(partition).await;
                    // A thousand idle partitions are done in a slice or two, not in a thousand trips.
                    if runtime.now().nanos_since(since) > SLICE_NANOS {
                        runtime.turn().await;
                        since = runtime.now();
                    }
                }
            }
        });
    }
}

impl<R: Runtime> Partition<R> {
    pub(super) async fn retain(self: Rc<Self>) {
        // Segments that go under a compaction would end it; what cannot be compacted is kept, as in Kafka.
        let is_kept = self.is_uncleanable() && self.is_compacted();
        if self.check_online().is_err() || self.is_cleaning() || self.is_moving() || is_kept {
            return;
        }
        let before = self.log().log_start_offset();
        let now = TimestampMs::new(self.hub.runtime.wall_ms());
        match self.log().retain(now, self.high_watermark()).await {
            Ok(retained) if retained.segments > 0 => {
                tracing::info!(partition = %self.name, segments = retained.segments, bytes = retained.bytes, "old segments deleted");
            }
            Ok(_) => {}
            // It was stopped while the files were looked at.
            Err(_) if self.check_online() == Err(PartitionError::NotHere) => return,
            Err(error) => tracing::error!(partition = %self.name, %error, "retention failed"),
        }
        if self.log().log_start_offset() != before {
            self.log_start_moved();
        }
    }

    async fn flush_if_behind(self: Rc<Self>) {
        if self.check_online().is_err() || self.log().recovery_point() >= self.log().log_end_offset() {
            return;
        }
        match self.log().flush().await {
            // The next flush finds room, or the one after.
            Ok(()) | Err(LogError::Full | LogError::Exhausted) => {}
            // It was moved meanwhile, or stopped.
            Err(LogError::Closed) => {}
            Err(error) => tracing::error!(partition = %self.name, %error, "flush failed"),
        }
    }
}

//! Compaction of a shard's logs (storage.md 7.4): one round at a time on the dirtiest log, and over all shards no more rounds
//! than `log.cleaner.threads`. A log that cannot be compacted is left alone from then on, one whose round has failed for a
//! while, so that the others have their turn; the broker goes on. Knows schedules; what a round does is the log's.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::types::{MonoTime, TimestampMs};
use storage::compaction::{Cleanable, filthiest};
use storage::io::{Queue, Runtime};
use storage::log::{Compacted, CompactionError, CompactionLimits};

use super::replica::Partition;
use super::service::{Inner, PartitionService};
use crate::metrics::names::Family;
use crate::metrics::snapshot::{ShardSnapshot, Value, whole};
use crate::shard::pace::Pace;

/// How soon a shard looks again whether a round may begin that waits for those of other shards.
const WAIT_MS: i64 = 100;

/// How long a log whose round has failed is left alone at least, and how often that is doubled while it goes on to fail.
const RETRY_MS_MIN: i64 = 1000;
const RETRY_DOUBLINGS_MAX: u32 = 6;

/// How logs are compacted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CleanerSettings {
    /// `log.cleaner.enable`.
    pub is_enabled: bool,
    /// `log.cleaner.threads`: rounds at once, over all shards.
    pub threads: usize,
    /// `log.cleaner.backoff.ms`: between two looks that find nothing to do.
    pub backoff_ms: i64,
    /// What one round may take.
    pub limits: CompactionLimits,
}

/// The rounds that run over all shards, and the shards that wait for one. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct CleanerRounds(Arc<Rounds>);

#[derive(Debug, Default)]
struct Rounds {
    running: AtomicUsize,
    waiting: AtomicUsize,
}

/// The right to run a round; dropping it ends that.
struct Running(Arc<Rounds>);

/// A shard that waits for the right; dropping it ends that.
struct Waiting(Arc<Rounds>);

impl CleanerRounds {
    fn enter(&self, threads: usize) -> Option<Running> {
        let more = |running: usize| (running < threads).then(|| running.saturating_add(1));
        let entered = self.0.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        entered.is_ok().then(|| Running(self.0.clone()))
    }

    fn wait(&self) -> Waiting {
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self.0.clone())
    }

    fn has_waiting(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the last look of a shard found, for metrics.
#[derive(Debug, Default)]
pub(super) struct CleanerState {
    /// When it was, or when there was first something to look at, and how dirty the dirtiest log was; none where there is
    /// nothing to look at.
    last: Cell<Option<(MonoTime, f64)>>,
    /// By how much the most overdue log was overdue then.
    overdue_ms: Cell<i64>,
    last_round: Cell<LastRound>,
    /// A task looks for something to do.
    runs: Cell<bool>,
}

/// What Kafka's metrics tell of the last round.
#[derive(Clone, Copy, Debug, Default)]
struct LastRound {
    map_used_percent: u32,
    recopied_percent: u64,
    took_secs: u64,
}

impl LastRound {
    fn of(done: &Compacted, took_ms: u64) -> Self {
        let recopied = done.bytes_written.saturating_mul(100) / done.bytes_read.max(1);
        Self {
            map_used_percent: done.map_used_percent,
            recopied_percent: recopied,
            took_secs: took_ms / 1000,
        }
    }
}

impl CleanerState {
    fn looked(&self, at: MonoTime, dirtiest_ratio: f64, overdue_ms: i64) {
        self.last.set(Some((at, dirtiest_ratio)));
        self.overdue_ms.set(overdue_ms);
    }

    /// Tells how dirty the dirtiest log was, how long ago that was seen, and whether nobody looks any more although
    /// somebody should.
    pub(super) fn tell(&self, now: MonoTime, is_wanted: bool, out: &mut ShardSnapshot) {
        let (at, ratio) = self.last.get().unwrap_or((now, 0.0));
        out.push(Family::CleanerMaxDirty, Vec::new(), Value::Real((ratio * 100.0).floor()));
        let since_ms = i64::try_from(now.nanos_since(at) / 1_000_000).unwrap_or(i64::MAX);
        out.push(Family::CleanerLastRun, Vec::new(), Value::Whole(since_ms));
        let LastRound { map_used_percent, recopied_percent, took_secs } = self.last_round.get();
        let mut tell = |family, number| out.push(family, Vec::new(), Value::Whole(number));
        tell(Family::CleanerMapUsed, i64::from(map_used_percent));
        tell(Family::CleanerRecopied, i64::try_from(recopied_percent).unwrap_or(i64::MAX));
        tell(Family::CleanerTime, i64::try_from(took_secs).unwrap_or(i64::MAX));
        tell(Family::CleanerDelay, self.overdue_ms.get() / 1000);
        out.whole(Family::CleanerDead, usize::from(is_wanted && !self.runs.get()));
    }
}

/// The task that looks for something to do; dropping it, however that comes, is seen.
struct Alive<R: Runtime>(Weak<Inner<R>>);

impl<R: Runtime> Drop for Alive<R> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.hub.cleaner.runs.set(false);
        }
    }
}

/// What a look for something to do came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// A round was run, or failed; there may be more to do.
    Done,
    /// There is nothing to do.
    Nothing,
    /// There is something to do, and as many rounds as may run do.
    Busy,
}

impl<R: Runtime> PartitionService<R> {
    /// Starts to compact, unless that runs. It ends with the service, and when no log here is compacted any more: a shard
    /// without such logs has nothing to wake for.
    pub(super) fn want_cleaner(&self) {
        let settings = self.0.settings.cleaner;
        if !settings.is_enabled || self.0.hub.cleaner.runs.replace(true) {
            return;
        }
        self.0.hub.cleaner.looked(self.runtime().now(), 0.0, 0);
        let inner = Rc::downgrade(&self.0);
        let (runtime, alive) = (self.runtime().clone(), Alive(inner.clone()));
        self.spawn(Queue::Background, async move {
            let _alive = alive;
            let mut place = None;
            let mut wait_ms = settings.backoff_ms;
            loop {
                runtime.sleep_until(runtime.now().plus_ms(wait_ms.max(1))).await;
                let Some(inner) = inner.upgrade() else { return };
                let service = Self(inner);
                if !service.has_compacted() {
                    service.0.hub.cleaner.last.set(None);
                    return;
                }
                let rounds = service.rounds();
                let look = service.clean_filthiest(&settings, place.take()).await;
                drop(service);
                wait_ms = match look {
                    // The others look within that time.
                    Look::Done if rounds.has_waiting() => WAIT_MS.saturating_mul(2),
                    Look::Done => 1,
                    Look::Nothing => settings.backoff_ms,
                    // The logs are looked at again when there is a place, and not while there is none.
                    Look::Busy => {
                        let _waiting = rounds.wait();
                        while place.is_none() {
                            runtime.sleep_until(runtime.now().plus_ms(WAIT_MS)).await;
                            place = rounds.enter(settings.threads);
                        }
                        1
                    }
                };
            }
        });
    }

    fn has_compacted(&self) -> bool {
        self.0.partitions.borrow().values().any(|partition| partition.is_compacted())
    }

    /// Tells of the compaction of this shard's logs.
    pub(super) async fn tell_cleaner(&self, out: &mut ShardSnapshot) {
        let table = self.0.lifecycle.table();
        let mut of_dirs: BTreeMap<_, (usize, u64)> = table.paths().map(|dir| (dir.clone(), (0, 0))).collect();
        let mut pace = Pace::new(self.runtime());
        for partition in self.all() {
            if partition.is_uncleanable() {
                let cleanable = partition.cleanable().await;
                let (count, bytes) = of_dirs.entry(partition.dir()).or_default();
                *count = count.saturating_add(1);
                *bytes = bytes.saturating_add(cleanable.map_or(0, |cleanable| cleanable.cleanable_bytes));
            }
            pace.look().await;
        }
        for (dir, (count, bytes)) in of_dirs {
            let dir: Arc<str> = dir.to_string_lossy().into();
            let labels = vec![("logDirectory", dir)];
            out.push(Family::Uncleanable, labels.clone(), whole(count));
            out.count(Family::UncleanableBytes, &labels, bytes);
        }
        let is_wanted = self.0.settings.cleaner.is_enabled && self.has_compacted();
        self.0.hub.cleaner.tell(self.runtime().now(), is_wanted, out);
    }

    /// Compacts the dirtiest log that is due, if one is; in the place of a round that was waited for, if one was.
    async fn clean_filthiest(&self, settings: &CleanerSettings, place: Option<Running>) -> Look {
        let mut logs = Vec::new();
        let (mut dirtiest, mut overdue_ms) = (0.0_f64, 0);
        let mut pace = Pace::new(self.runtime());
        for partition in self.all() {
            pace.look().await;
            if !partition.is_compacted() || partition.is_uncleanable() || partition.is_moving() {
                continue;
            }
            if let Some(cleanable) = partition.cleanable().await {
                dirtiest = dirtiest.max(cleanable.ratio());
                overdue_ms = overdue_ms.max(cleanable.overdue_ms);
                if self.runtime().now() >= partition.clean_again_at() {
                    let min_ratio = partition.config().log.min_cleanable_dirty_ratio;
                    logs.push((partition, cleanable, min_ratio));
                }
            }
        }
        self.0.hub.cleaner.looked(self.runtime().now(), dirtiest, overdue_ms);
        let Some((partition, cleanable)) = filthiest(logs) else { return Look::Nothing };
        let Some(running) = place.or_else(|| self.rounds().enter(settings.threads)) else {
            return Look::Busy;
        };
        // A move may have begun while others were looked at.
        let is_clean = !partition.is_moving() && partition.clean(&cleanable, &settings.limits).await;
        drop(running);
        partition.note_round(is_clean, settings.backoff_ms);
        // As in Kafka, whose cleaner also deletes what is old of compacted logs.
        partition.retain().await;
        Look::Done
    }
}

impl<R: Runtime> Partition<R> {
    pub(super) fn is_compacted(&self) -> bool {
        self.config().log.cleanup_policy.compact
    }

    /// What could be compacted; `None` if the log does not tell now.
    async fn cleanable(&self) -> Option<Cleanable> {
        if self.check_online().is_err() {
            return None;
        }
        let now = TimestampMs::new(self.hub.runtime.wall_ms());
        let high_watermark = self.high_watermark();
        let unstable = self.log().first_unstable_offset(high_watermark);
        let last_stable = unstable.map_or(high_watermark, |offset| offset.min(high_watermark));
        // A failure has taken the log offline, which says so.
        self.log().cleanable(last_stable, now).await.ok()
    }

    /// Notes how a round ended: one that did not come to its end is tried again ever later.
    fn note_round(&self, is_clean: bool, backoff_ms: i64) {
        let failures = if is_clean { 0 } else { self.failed_rounds().saturating_add(1) };
        let doublings = failures.saturating_sub(1).min(RETRY_DOUBLINGS_MAX);
        let wait_ms = backoff_ms.max(RETRY_MS_MIN).saturating_mul(1 << doublings);
        let now = self.hub.runtime.now();
        self.set_failed_rounds(failures, if is_clean { now } else { now.plus_ms(wait_ms) });
    }

    /// Runs a round; whether it came to its end. Retention leaves the log alone meanwhile.
    async fn clean(&self, cleanable: &Cleanable, limits: &CompactionLimits) -> bool {
        self.set_cleaning(true);
        let began = self.hub.runtime.now();
        let compacted = self.log().compact(cleanable, limits).await;
        self.set_cleaning(false);
        match compacted {
            Ok(done) => {
                let took_ms = self.hub.runtime.now().nanos_since(began) / 1_000_000;
                self.hub.cleaner.last_round.set(LastRound::of(&done, took_ms));
                tracing::info!(partition = %self.name, first_dirty_offset = %cleanable.first_dirty,
                    next_dirty_offset = ?done.first_dirty.map(protocol::types::Offset::get),
                    bytes_read = done.bytes_read, bytes_written = done.bytes_written,
                    records_read = done.records_read, records_kept = done.records_kept,
                    segments_read = done.segments_read, segments_written = done.segments_written,
                    took_ms, "log compacted");
                true
            }
            Err(CompactionError::Stopped) => {
                tracing::debug!(partition = %self.name, "compaction was stopped");
                false
            }
            Err(error @ (CompactionError::Log(_) | CompactionError::NoRoom { .. })) => {
                tracing::warn!(partition = %self.name, %error, "compaction ended early, and is tried again later");
                false
            }
            Err(error @ (CompactionError::Damaged { .. } | CompactionError::MapTooSmall)) => {
                tracing::error!(partition = %self.name, %error, "log cannot be compacted and is left as it is");
                self.set_uncleanable();
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_rounds_run_than_there_are_threads() {
        let rounds = CleanerRounds::default();
        let other_shard = rounds.clone();
        let first = rounds.enter(2);
        let second = other_shard.enter(2);
        assert!(first.is_some() && second.is_some());
        assert!(rounds.enter(2).is_none());
        drop(second);
        assert!(rounds.enter(2).is_some());
    }

    #[test]
    fn a_shard_at_whose_compacted_logs_nobody_looks_is_told_of() {
        let state = CleanerState::default();
        let dead = |is_wanted| {
            let mut out = ShardSnapshot::default();
            state.tell(MonoTime::new(5_000_000), is_wanted, &mut out);
            let told = out.samples.into_iter().find(|sample| sample.family == Family::CleanerDead);
            told.map(|sample| sample.value)
        };
        assert_eq!((dead(true), dead(false)), (Some(whole(1)), Some(whole(0))));
        state.runs.set(true);
        assert_eq!(dead(true), Some(whole(0)));
    }

    #[test]
    fn a_shard_that_waits_is_seen_by_the_others_until_it_has_its_round() {
        let rounds = CleanerRounds::default();
        let waiting = rounds.clone().wait();
        assert!(rounds.has_waiting());
        drop(waiting);
        assert!(!rounds.has_waiting());
    }
}

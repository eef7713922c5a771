//! One scrape: asks every shard, adds what they say, derives what only the whole can tell, and looks back a few minutes
//! for quantiles and rates. Lives on a thread of its own; a shard that does not answer in time fails the scrape, since a
//! sum without it would fall.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use futures_channel::mpsc::{Receiver, Sender, channel};

use super::names::Family;
use super::process;
use super::snapshot::{Labels, PartitionRow, Sample, ShardSnapshot, Value, whole};
use super::state::{LogDirState, Progress};
use super::text::{self, Values};

/// Scrapes that a shard may have before it. There is one scraper; a late answer of an earlier scrape is the rest.
const ASKS_MAX: usize = 4;

/// How long a shard may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far quantiles look back (security-admin.md 6 allows five minutes), if somebody scraped then: to the scrape before
/// it, and to the start where there is none that is a minute old.
const HORIZON: Duration = Duration::from_secs(300);

/// How often a scrape is kept to look back to.
const KEEP_EVERY: Duration = Duration::from_secs(60);

/// Rates look back at least so far, if there is a scrape that old.
const RATE_SPAN: Duration = Duration::from_secs(30);

/// Partitions that are told each for itself.
pub const PARTITIONS_MAX: usize = 10_000;

/// A shard is to say what it has counted.
#[derive(Debug)]
pub struct ScrapeAsk {
    /// Takes the answer, with the shard that gives it.
    pub reply: SyncSender<(u16, ShardSnapshot)>,
}

/// Where a shard finds what it is asked.
pub type ScrapeSeat = Receiver<ScrapeAsk>;

/// Why there is no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScrapeError {
    /// A shard starts, is busy beyond measure, or is stuck.
    #[error("shard {0} does not answer")]
    Silent(u16),
    /// A shard has ended.
    #[error("shard {0} has stopped")]
    Stopped(u16),
}

/// A scrape that is looked back to.
struct Kept {
    at: Instant,
    values: Values,
}

/// Asks the shards and writes the text.
pub struct Scraper {
    shards: Vec<Sender<ScrapeAsk>>,
    progress: Progress,
    log_dirs: Vec<LogDirState>,
    started: Instant,
    kept: VecDeque<Kept>,
}

impl Scraper {
    /// A scraper, and a seat for each shard.
    pub fn new(shards: u16, progress: Progress, log_dirs: Vec<LogDirState>) -> (Self, Vec<ScrapeSeat>) {
        let (senders, seats) = (0..shards).map(|_| channel(ASKS_MAX)).unzip();
        (Self { shards: senders, progress, log_dirs, started: now(), kept: VecDeque::new() }, seats)
    }

    /// The text, or why there is none.
    ///
    /// # Errors
    /// A shard that does not answer.
    pub fn scrape(&mut self) -> Result<String, ScrapeError> {
        let snapshots = self.ask()?;
        let at = now();
        let mut values = self.add_up(snapshots);
        self.rates(at, &mut values);
        while self.kept.get(1).is_some_and(|second| at.duration_since(second.at) >= HORIZON) {
            self.kept.pop_front();
        }
        let earlier = self.kept.front().filter(|kept| at.duration_since(kept.at) >= KEEP_EVERY);
        let text = text::write(&values, earlier.map(|kept| &kept.values));
        if self.kept.back().is_none_or(|last| at.duration_since(last.at) >= KEEP_EVERY) {
            values.retain(|(family, _), value| looks_back(*family, value));
            self.kept.push_back(Kept { at, values });
        }
        Ok(text)
    }

    fn ask(&mut self) -> Result<Vec<ShardSnapshot>, ScrapeError> {
        let (reply, answers) = sync_channel(self.shards.len());
        for (shard, sender) in (0..).zip(&mut self.shards) {
            sender.try_send(ScrapeAsk { reply: reply.clone() }).map_err(|error| {
                if error.is_full() { ScrapeError::Silent(shard) } else { ScrapeError::Stopped(shard) }
            })?;
        }
        drop(reply);
        let until = now() + PATIENCE;
        let mut missing: Vec<u16> = (0..).take(self.shards.len()).collect();
        let mut snapshots = Vec::with_capacity(missing.len());
        while let Some(&first) = missing.first() {
            match answers.recv_timeout(until.saturating_duration_since(now())) {
                Ok((shard, snapshot)) => {
                    missing.retain(|other| *other != shard);
                    snapshots.push(snapshot);
                }
                Err(RecvTimeoutError::Timeout) => return Err(ScrapeError::Silent(first)),
                Err(RecvTimeoutError::Disconnected) => return Err(ScrapeError::Stopped(first)),
            }
        }
        Ok(snapshots)
    }

    fn add_up(&self, snapshots: Vec<ShardSnapshot>) -> Values {
        let mut values = Values::new();
        let mut partitions = Vec::new();
        for snapshot in snapshots {
            snapshot.samples.into_iter().for_each(|sample| add(&mut values, sample));
            partitions.extend(snapshot.partitions);
        }
        partitions.sort_unstable_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        let mut own = ShardSnapshot::default();
        process::tell(&mut own);
        own.whole(Family::BrokerState, usize::from(self.progress.state()));
        tell_partitions(&partitions, &mut own);
        own.whole(Family::OfflineLogDirs, self.log_dirs.iter().filter(|dir| dir.is_offline()).count());
        for dir in &self.log_dirs {
            let of_dir = vec![("logDirectory", dir.path.clone())];
            own.push(Family::LogDirOffline, of_dir, whole(usize::from(dir.is_offline())));
        }
        own.samples.into_iter().for_each(|sample| add(&mut values, sample));
        values
    }

    /// What is told per second, or as a share of the time.
    fn rates(&self, at: Instant, values: &mut Values) {
        let earlier = self.kept.iter().rev().find(|kept| at.duration_since(kept.at) >= RATE_SPAN);
        let (since, before) = earlier.map_or((self.started, None), |kept| (kept.at, Some(&kept.values)));
        let seconds = at.duration_since(since).as_secs_f64().max(1e-3);
        let mut rates = Vec::new();
        let mut busy = 0.0;
        let mut blocked = BTreeMap::<Labels, f64>::new();
        for (key, value) in values.iter().filter(|(key, _)| is_rated(key.0)) {
            let grown = number(value) - before.and_then(|before| before.get(key)).map_or(0.0, number);
            match key.0 {
                Family::ShardCpu => busy += grown / seconds,
                Family::AcceptingBlocked => {
                    let of_listener = key.1.iter().filter(|(label, _)| *label == "listener");
                    *blocked.entry(of_listener.cloned().collect()).or_default() += grown / seconds;
                }
                _ => rates.push(((Family::ConnectionRate, key.1.clone()), Value::Real(grown / seconds))),
            }
        }
        values.extend(rates);
        #[allow(clippy::cast_precision_loss, reason = "at most 65,535")]
        let shards = self.shards.len().max(1) as f64;
        for (listener, share) in blocked {
            let share = Value::Real((share / shards).clamp(0.0, 1.0));
            values.insert((Family::AcceptorBlocked, listener), share);
        }
        let idle = (1.0 - busy / shards).clamp(0.0, 1.0);
        for family in
            [Family::NetworkIdle, Family::NetworkIdlePercent, Family::HandlerIdle, Family::HandlerIdlePercent]
        {
            values.insert((family, Labels::new()), Value::Real(idle));
        }
    }
}

fn is_rated(family: Family) -> bool {
    matches!(family, Family::ShardCpu | Family::ConnectionTotal | Family::AcceptingBlocked)
}

fn looks_back(family: Family, value: &Value) -> bool {
    is_rated(family) || matches!(value, Value::Times(_) | Value::Sizes(_))
}

fn number(value: &Value) -> f64 {
    match value {
        #[allow(clippy::cast_precision_loss, reason = "a difference of counts is small")]
        Value::Whole(number) => *number as f64,
        Value::Real(number) => *number,
        Value::Times(_) | Value::Sizes(_) => 0.0,
    }
}

fn add(values: &mut Values, sample: Sample) {
    let Sample { family, labels, value } = sample;
    let Some(sum) = values.get_mut(&(family, labels.clone())) else {
        values.insert((family, labels), value);
        return;
    };
    match (sum, value) {
        (Value::Whole(sum), Value::Whole(other)) if family.is_greatest() => *sum = other.max(*sum),
        (Value::Real(sum), Value::Real(other)) if family.is_greatest() => *sum = other.max(*sum),
        (Value::Whole(sum), Value::Whole(more)) => *sum = sum.wrapping_add(more),
        (Value::Real(sum), Value::Real(more)) => *sum += more,
        (Value::Times(sum), Value::Times(more)) | (Value::Sizes(sum), Value::Sizes(more)) => sum.add(&more),
        (sum, more) => debug_assert!(false, "{family:?} is {sum:?} here and {more:?} there"),
    }
}

/// Sums over partitions, and the series of each.
fn tell_partitions(rows: &[PartitionRow], out: &mut ShardSnapshot) {
    let led = || rows.iter().filter_map(|row| row.led);
    out.whole(Family::PartitionCount, rows.len());
    out.whole(Family::LeaderCount, led().count());
    out.whole(Family::UnderReplicatedPartitions, led().filter(|led| led.isr < led.replicas).count());
    out.whole(Family::UnderMinIsr, led().filter(|led| led.isr < led.min_isr).count());
    out.whole(Family::AtMinIsr, led().filter(|led| led.isr == led.min_isr).count());
    out.whole(Family::OfflineReplicas, rows.iter().filter(|row| row.is_offline).count());
    out.whole(Family::PartitionsNotTold, rows.len().saturating_sub(PARTITIONS_MAX));
    for row in rows.iter().take(PARTITIONS_MAX) {
        let labels: Labels =
            vec![("topic", Arc::from(row.topic.get())), ("partition", Arc::from(row.partition.to_string()))];
        let led = row.led;
        let flag = |flag: bool| whole(usize::from(flag));
        for (family, value) in [
            (Family::LogSize, Value::Whole(i64::try_from(row.size).unwrap_or(i64::MAX))),
            (Family::LogStartOffset, Value::Whole(row.log_start_offset)),
            (Family::LogEndOffset, Value::Whole(row.log_end_offset)),
            (Family::LogSegments, whole(row.segments)),
            (Family::PartitionUnderReplicated, flag(led.is_some_and(|led| led.isr < led.replicas))),
            (Family::PartitionUnderMinIsr, flag(led.is_some_and(|led| led.isr < led.min_isr))),
            (Family::PartitionIsr, whole(led.map_or(0, |led| led.isr))),
            (Family::PartitionReplicas, whole(led.map_or(0, |led| led.replicas))),
            (Family::PartitionStableLag, Value::Whole(row.last_stable_offset_lag)),
        ] {
            out.push(family, labels.clone(), value);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a thread of its own, which no runtime gives the time")]
fn now() -> Instant {
    Instant::now()
}

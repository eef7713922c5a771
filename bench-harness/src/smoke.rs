//! Smoke loads: produce a known content and read it back, each record verified. The measured loads come with the
//! benchmark; this proves that a broker works.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use protocol::types::TimestampMs;

use crate::client::Client;
use crate::content;

/// What to send.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// Broker to connect to.
    #[arg(long, default_value = "127.0.0.1:9092")]
    pub bootstrap: String,
    /// Topic; created if missing.
    #[arg(long, default_value = "odradek-bench")]
    pub topic: String,
    /// Partitions of the topic.
    #[arg(long, default_value_t = 16)]
    pub partitions: i32,
    /// Records of each partition.
    #[arg(long, default_value_t = 10_000)]
    pub records: u64,
    /// Bytes of a record's value.
    #[arg(long, default_value_t = 1024)]
    pub record_bytes: usize,
    /// Records of a batch.
    #[arg(long, default_value_t = 64)]
    pub batch_records: u32,
    /// 0, 1 or -1.
    #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
    pub acks: i16,
}

/// What a load did.
#[derive(Debug)]
pub struct Report {
    /// Records sent or read.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Microseconds of each request.
    pub request_us: Histogram<u64>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let milliseconds = self.elapsed.as_millis().max(1);
        let per_second = u128::from(self.records).saturating_mul(1000) / milliseconds;
        let megabytes = u128::from(self.bytes) / 1000 / milliseconds;
        let at = |quantile| self.request_us.value_at_quantile(quantile);
        write!(
            f,
            "{} records, {per_second} records/s, {megabytes} MB/s; requests in µs: p50 {} p99 {} p99.9 {} max {}",
            self.records,
            at(0.5),
            at(0.99),
            at(0.999),
            self.request_us.max()
        )
    }
}

fn connect(load: &Load) -> Result<Client> {
    Client::connect(&load.bootstrap, Duration::from_secs(30))
}

#[allow(clippy::disallowed_methods, reason = "a load generator measures real time")]
fn now() -> (Instant, TimestampMs) {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), TimestampMs::new(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
}

/// Sends the load, one request at a time.
///
/// # Errors
/// A broken connection or an error of the broker.
pub fn produce(load: &Load) -> Result<Report> {
    let mut client = connect(load)?;
    client.create_topic(&load.topic, load.partitions)?;
    let (started, _) = now();
    let mut report = Report { records: 0, bytes: 0, elapsed: Duration::ZERO, request_us: Histogram::new(3)? };
    let mut first = 0;
    while first < load.records {
        let count = u32::try_from(load.records - first).unwrap_or(u32::MAX).min(load.batch_records.max(1));
        for partition in 0..load.partitions {
            let (sent, timestamp) = now();
            let batch = content::batch(partition, first, count, load.record_bytes, timestamp)?;
            if let Some(answer) = client.produce(&load.topic, partition, load.acks, &batch)?
                && answer.error_code != 0
            {
                bail!("partition {partition} was answered with error {}", answer.error_code);
            }
            report.request_us.saturating_record(u64::try_from(now().0.duration_since(sent).as_micros())?);
            report.records += u64::from(count);
            report.bytes += u64::from(count) * u64::try_from(load.record_bytes)?;
        }
        first += u64::from(count);
    }
    report.elapsed = now().0.duration_since(started);
    Ok(report)
}

/// Reads the load back and verifies that each partition holds exactly its records, in order.
///
/// # Errors
/// A broken connection, an error of the broker, or a record that is lost, repeated, reordered or changed.
pub fn consume(load: &Load) -> Result<Report> {
    let mut client = connect(load)?;
    let (started, _) = now();
    let mut report = Report { records: 0, bytes: 0, elapsed: Duration::ZERO, request_us: Histogram::new(3)? };
    for partition in 0..load.partitions {
        let (mut offset, mut expected, mut idle) = (0, 0, 0);
        while expected < load.records {
            let (sent, _) = now();
            let fetched = client.fetch(&load.topic, partition, offset, Duration::from_secs(1))?;
            if fetched.error_code != 0 {
                bail!("partition {partition} was answered with error {}", fetched.error_code);
            }
            report.request_us.saturating_record(u64::try_from(now().0.duration_since(sent).as_micros())?);
            let mut wrong = None;
            let next = content::check(partition, offset, &fetched.records, |offset, number| {
                if number != expected && wrong.is_none() {
                    wrong = Some((offset, number));
                }
                expected += 1;
            })?;
            if let Some((offset, number)) = wrong {
                bail!("partition {partition}, offset {offset}: record {number} instead of the next");
            }
            idle = if next == offset { idle + 1 } else { 0 };
            if idle > 10 {
                bail!("partition {partition} ends at offset {offset}, record {expected}");
            }
            offset = next;
        }
        report.records += expected;
        report.bytes += expected * u64::try_from(load.record_bytes)?;
    }
    report.elapsed = now().0.duration_since(started);
    Ok(report)
}

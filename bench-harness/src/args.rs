//! The command line: what each subcommand takes, with defaults and checks. Knows no run; what is here appears in a report
//! as `inputs`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use serde::Serialize;

mod groups;

use crate::content::VALUE_BYTES_MIN;
use crate::measure::{float, ratio};
pub use groups::{GroupLoad, Groups};

/// An argument that cannot be, which clap could not tell: exit code 2, as for those that it can.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Returns with the sentence for an argument that cannot be.
macro_rules! refuse {
    ($($part:tt)*) => {
        return Err(anyhow::Error::new($crate::args::Refused(format!($($part)*))))
    };
}
pub(crate) use refuse;

/// Settings that say where a broker listens and what it keeps where: whoever starts one gives it its own place.
const PLACES: &[&str] = &[
    "advertised.listeners",
    "listeners",
    "log.dir",
    "log.dirs",
    "metadata.file",
    "metadata.log.dir",
    "zookeeper.connect",
];

/// A setting of a broker that is started here.
///
/// # Errors
/// No `KEY=VALUE`, one that a file of properties would read as something else, or a setting that would let the broker touch
/// what is not its own.
pub fn setting(text: &str) -> std::result::Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE is wanted")?;
    let key = key.trim();
    if PLACES.contains(&key) {
        return Err(format!("{key:?} is given by odradek-bench itself, which touches no place but its own"));
    }
    // In a file of properties `log.dirs:/x`, `log\u002edirs` and `log.dirs /x` are that key too.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if key.is_empty() || !key.bytes().all(is_plain) {
        return Err(format!("{key:?} is no key: letters, digits, dots, dashes and underscores"));
    }
    // A line end begins another setting, and a backslash may hide one.
    if value.contains('\\') || value.chars().any(char::is_control) {
        return Err(format!("{key} has a value with a backslash or a control character: {value:?}"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// The same, left as it was written.
fn written_setting(text: &str) -> std::result::Result<String, String> {
    setting(text).map(|(key, value)| format!("{key}={value}"))
}

/// Load and measurement for Kafka-compatible brokers; speaks the wire itself and verifies what it reads back.
#[derive(Debug, Parser)]
#[command(name = "odradek-bench", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Sends records on a schedule, or as fast as it goes.
    Produce(Produce),
    /// Reads and verifies records.
    Consume(Consume),
    /// Sends and reads in one process: latency from the scheduled time until a record was read.
    E2e(EndToEnd),
    /// Opens idle connections, and active ones beside them.
    Connections(Connections),
    /// Consumer groups: members that join and restart, commits of offsets, heartbeats.
    Groups(Groups),
    /// What this machine can do at all.
    Ceiling(Ceiling),
    /// Start of a process to its first acknowledged record.
    Startup(Startup),
    /// What a process uses that has nothing to do.
    Idle(Idle),
}

/// Seconds of a load for which nobody says how long it is.
pub const DURATION_DEFAULT: f64 = 10.0;

/// What every subcommand takes.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Output {
    /// Writes inputs, machine and figures to a file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Pins this process to one CPU.
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
}

/// The process that is measured.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Sampled {
    /// Process id of the broker: its CPU, memory and disk bytes are sampled.
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
    /// Does not count system calls with `perf`.
    #[arg(long)]
    pub no_perf: bool,
    /// This process and all that it starts are not others, either.
    #[arg(long, value_name = "PID")]
    pub family: Option<u32>,
    /// A run is void when other processes used more than this, in cores.
    #[arg(long, value_name = "CORES", default_value_t = 0.1, value_parser = not_negative)]
    pub other_cpu_max: f64,
}

/// The broker and the topic.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Target {
    /// The broker; it leads every partition.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    pub bootstrap: String,
    /// Longest time in seconds without any answer.
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = not_negative)]
    pub timeout: f64,
    /// The topic.
    #[arg(long, default_value = "odradek-bench")]
    pub topic: String,
    /// Writes the histograms to a file (HdrHistogram log, V2).
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
}

/// The topic that is created if missing.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Creation {
    /// Partitions of the topic.
    #[arg(long, default_value_t = 16)]
    pub partitions: i32,
    /// A config of the topic at its creation; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub topic_config: Vec<String>,
}

/// What is sent.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Load {
    /// Records per second, or `max`.
    #[arg(long, value_name = "N|max", default_value = "max", value_parser = rate)]
    pub rate: Rate,
    /// Bytes of a record's value.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = size)]
    pub record_bytes: u64,
    /// Bytes of a batch.
    #[arg(long, value_name = "N", default_value = "64Ki", value_parser = size)]
    pub batch_bytes: u64,
    /// How long the first record of a batch waits for others, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = not_negative)]
    pub linger_ms: f64,
    /// Connections of the producer.
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Requests without an answer on one connection.
    #[arg(long, default_value_t = 5)]
    pub in_flight: usize,
    /// -1, 0 or 1.
    #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
    pub acks: i16,
    /// Seconds of the run, warm-up included; 10 without --records.
    #[arg(long, value_name = "S", conflicts_with = "records", value_parser = not_negative)]
    pub duration: Option<f64>,
    /// Records of the run, warm-up included.
    #[arg(long, value_name = "N", value_parser = size)]
    pub records: Option<u64>,
    /// Seconds at the beginning that are not measured.
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = not_negative)]
    pub warmup: f64,
    /// Number of keys; 0: records have none.
    #[arg(long, value_name = "N", default_value = "0", value_parser = size)]
    pub keys: u64,
    /// Batches of one request.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batches_per_request: usize,
    /// Only `none`: prepared batches cannot be compressed ahead.
    #[arg(long, default_value = "none", value_parser = ["none"])]
    pub compression: String,
    /// How long before a due batch the generator stops sleeping, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 60)]
    pub spin_us: u64,
}

/// How is read: as Kafka's consumer does.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Fetch {
    /// Bytes of an answer.
    #[arg(long, value_name = "N", default_value = "50Mi", value_parser = size)]
    pub fetch_bytes: u64,
    /// Bytes of one partition in an answer.
    #[arg(long, value_name = "N", default_value = "1Mi", value_parser = size)]
    pub fetch_partition_bytes: u64,
    /// Bytes that are worth an answer.
    #[arg(long, value_name = "N", default_value = "1", value_parser = size)]
    pub fetch_min_bytes: u64,
    /// Longest time that the broker waits for them, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub fetch_wait_ms: i32,
}

/// `produce`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Produce {
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
    #[command(flatten)]
    #[serde(flatten)]
    pub sampled: Sampled,
    #[command(flatten)]
    #[serde(flatten)]
    pub target: Target,
    #[command(flatten)]
    #[serde(flatten)]
    pub creation: Creation,
    #[command(flatten)]
    #[serde(flatten)]
    pub load: Load,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// At the first record that is there.
    Beginning,
    /// Behind the last.
    End,
}

/// `consume`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Consume {
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
    #[command(flatten)]
    #[serde(flatten)]
    pub sampled: Sampled,
    #[command(flatten)]
    #[serde(flatten)]
    pub target: Target,
    #[command(flatten)]
    #[serde(flatten)]
    pub fetch: Fetch,
    /// Connections; partitions are dealt out among them.
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Where to begin.
    #[arg(long, value_enum, default_value = "beginning")]
    pub from: From,
    /// Seconds of the run; without it and --records: to the end of each partition as it was at the start.
    #[arg(long, value_name = "S", conflicts_with = "records", value_parser = not_negative)]
    pub duration: Option<f64>,
    /// Records of the run.
    #[arg(long, value_name = "N", value_parser = size)]
    pub records: Option<u64>,
    /// Seconds at the beginning that are not measured.
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = not_negative)]
    pub warmup: f64,
    /// The JSON of a produce or e2e run: its acknowledged records are there exactly once, in order.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["duration", "records", "any_content", "warmup"])]
    pub verify: Option<PathBuf>,
    /// Takes records of others: only the CRC of batches and the offsets are checked.
    #[arg(long)]
    pub any_content: bool,
}

/// `e2e`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct EndToEnd {
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
    #[command(flatten)]
    #[serde(flatten)]
    pub sampled: Sampled,
    #[command(flatten)]
    #[serde(flatten)]
    pub target: Target,
    #[command(flatten)]
    #[serde(flatten)]
    pub creation: Creation,
    #[command(flatten)]
    #[serde(flatten)]
    pub load: Load,
    #[command(flatten)]
    #[serde(flatten)]
    pub fetch: Fetch,
    /// Connections of the consumer; partitions are dealt out among them.
    #[arg(long, default_value_t = 1)]
    pub consumers: usize,
}

/// `connections`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Connections {
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
    #[command(flatten)]
    #[serde(flatten)]
    pub sampled: Sampled,
    #[command(flatten)]
    #[serde(flatten)]
    pub target: Target,
    #[command(flatten)]
    #[serde(flatten)]
    pub creation: Creation,
    /// Connections that do nothing after their first answer.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub idle: usize,
    /// Connections that send.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub active: usize,
    /// Requests of one record per second and active connection.
    #[arg(long, value_name = "R", default_value_t = 10)]
    pub active_rate: u64,
    /// Bytes of a record's value.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = size)]
    pub record_bytes: u64,
    /// Requests without an answer on one active connection.
    #[arg(long, default_value_t = 5)]
    pub in_flight: usize,
    /// -1, 0 or 1.
    #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
    pub acks: i16,
    /// Seconds that the active ones send, or that the idle ones are watched.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = not_negative)]
    pub duration: f64,
    /// Seconds at the beginning that are not measured.
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = not_negative)]
    pub warmup: f64,
    /// How long before a due batch the generator stops sleeping, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 60)]
    pub spin_us: u64,
}

/// `ceiling`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Ceiling {
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
    /// Where the files are written and removed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Bytes of each probe.
    #[arg(long, value_name = "N", default_value = "1G", value_parser = size)]
    pub bytes: u64,
    /// Bytes of one receive, send, append or checksum.
    #[arg(long, value_name = "N", default_value = "64Ki", value_parser = size)]
    pub chunk_bytes: u64,
    /// CPU of the other end of the loopback connection.
    #[arg(long, value_name = "N")]
    pub peer_cpu: Option<usize>,
}

/// `startup`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Startup {
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
    /// Where the broker listens; chosen when it is ours.
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "broker")]
    pub bootstrap: Option<String>,
    /// Our broker's binary; it gets a port and a directory of its own.
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    pub broker: Option<PathBuf>,
    /// An override for our broker; repeatable.
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "command", value_parser = written_setting)]
    pub broker_override: Vec<String>,
    /// Where our broker's directory is made and removed.
    #[arg(long, value_name = "DIR", default_value = "/tmp", conflicts_with = "command")]
    pub dir: PathBuf,
    /// Starts that are measured.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Partitions of the topic that one CreateTopics makes after the last start; 0: none.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub partitions: i32,
    /// Bytes that are written to them before the process is killed.
    #[arg(long, value_name = "N", default_value = "0", value_parser = size, requires = "kill")]
    pub fill_bytes: u64,
    /// Kills the process then (SIGKILL), measures until every partition acknowledges again, and reads all back.
    #[arg(long)]
    pub kill: bool,
    /// Seconds between the kill and the next start.
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = not_negative, requires = "kill")]
    pub down: f64,
    /// Reads all segments below a directory once, between the kill and the next start, so that the page cache has them.
    #[arg(long, value_name = "DIR", requires = "kill")]
    pub warm: Option<PathBuf>,
    /// Longest time in seconds that a start may take.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = not_negative)]
    pub timeout: f64,
    /// Any other broker.
    #[arg(last = true, required_unless_present = "broker")]
    pub command: Vec<String>,
}

/// `idle`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Idle {
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
    #[command(flatten)]
    #[serde(flatten)]
    pub sampled: Sampled,
    /// How long to watch.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = not_negative)]
    pub seconds: f64,
}

/// How fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Rate {
    /// On a schedule.
    PerSecond(u64),
    /// As fast as it goes.
    #[serde(serialize_with = "max")]
    Max,
}

fn max<S: serde::Serializer>(serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str("max")
}

fn rate(text: &str) -> std::result::Result<Rate, String> {
    if text == "max" {
        return Ok(Rate::Max);
    }
    match size(text) {
        Ok(rate @ 1..=1_000_000_000) => Ok(Rate::PerSecond(rate)),
        _ => Err("records per second from 1 to 1000000000, or max".to_owned()),
    }
}

/// A number, possibly with a unit.
fn size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..).unwrap_or_default() {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        unit => return Err(format!("the unit {unit} is none of k, M, G, Ki, Mi, Gi")),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "too large".to_owned())
}

/// A number that is not negative: neither infinite nor none at all, which every comparison would let pass.
pub fn not_negative(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("a number from 0 on".to_owned()),
    }
}

/// A number that is more than nothing.
pub fn positive(text: &str) -> std::result::Result<f64, String> {
    not_negative(text).ok().filter(|number| *number > 0.0).ok_or_else(|| "a number above 0".to_owned())
}

/// Seconds as a duration.
///
/// # Errors
/// A negative or absurd number.
pub fn duration(name: &str, seconds: f64) -> Result<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= Duration::from_secs(100 * 86400) => Ok(duration),
        _ => refuse!("--{name} is a number of seconds from 0 to 100 days"),
    }
}

impl Creation {
    /// The configs of the topic.
    ///
    /// # Errors
    /// One that is no `KEY=VALUE`.
    pub fn configs(&self) -> Result<Vec<(String, String)>> {
        let pair = |text: &String| match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => refuse!("--topic-config {text} is no KEY=VALUE"),
        };
        self.topic_config.iter().map(pair).collect()
    }

    /// Checks what clap cannot.
    ///
    /// # Errors
    /// The first argument that cannot be.
    pub fn check(&self) -> Result<()> {
        if !(1..=100_000).contains(&self.partitions) {
            refuse!("--partitions is a number from 1 to 100000");
        }
        self.configs().map(drop)
    }
}

impl Startup {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// The first argument that cannot be.
    pub fn check(&self) -> Result<()> {
        if self.runs == 0 || !(0..=100_000).contains(&self.partitions) {
            refuse!("--runs is at least 1, --partitions a number from 0 to 100000");
        }
        if self.kill && self.partitions == 0 {
            refuse!("--kill measures until every partition acknowledges: --partitions is at least 1");
        }
        duration("down", self.down)?;
        duration("timeout", self.timeout).map(drop)
    }
}

impl Consume {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// The first argument that cannot be.
    pub fn check(&self) -> Result<()> {
        if self.records == Some(0) {
            refuse!("--records is at least 1");
        }
        duration("warmup", self.warmup)?;
        if self.duration.is_some_and(|seconds| seconds <= self.warmup) {
            refuse!("--duration includes --warmup and must be longer");
        }
        duration("duration", self.duration.unwrap_or_default()).map(drop)
    }
}

impl Idle {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// No process, or no time to watch it.
    pub fn check(&self) -> Result<()> {
        if self.sampled.broker_pid.is_none() {
            refuse!("idle watches a process: --broker-pid PID");
        }
        if self.seconds <= 0.0 {
            refuse!("--seconds is more than 0");
        }
        duration("seconds", self.seconds).map(drop)
    }
}

impl Load {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// The first argument that cannot be.
    pub fn check(&self) -> Result<()> {
        let smallest = u64::try_from(VALUE_BYTES_MIN)?;
        if !(smallest..=64 << 20).contains(&self.record_bytes) {
            refuse!("--record-bytes is a number from {smallest} to 64Mi");
        }
        if self.batch_bytes > 256 << 20 {
            refuse!("--batch-bytes is at most 256Mi");
        }
        if !(1..=100_000).contains(&self.connections) || !(1..=1000).contains(&self.in_flight) {
            refuse!("--connections is a number from 1 to 100000, --in-flight from 1 to 1000");
        }
        if !(1..=10_000).contains(&self.batches_per_request) {
            refuse!("--batches-per-request is a number from 1 to 10000");
        }
        if !(-1..=1).contains(&self.acks) {
            refuse!("--acks is -1, 0 or 1");
        }
        if !(0.0..=3_600_000.0).contains(&self.linger_ms) {
            refuse!("--linger-ms is a number of milliseconds, at most an hour");
        }
        if self.records == Some(0) {
            refuse!("--records is at least 1");
        }
        duration("warmup", self.warmup)?;
        let seconds = match (self.records, self.rate) {
            (Some(records), Rate::PerSecond(rate)) => Some(ratio(float(records), float(rate))),
            (Some(_), Rate::Max) => None,
            (None, _) => Some(self.duration.unwrap_or(DURATION_DEFAULT)),
        };
        if let Some(seconds) = seconds.filter(|seconds| *seconds <= self.warmup) {
            refuse!(
                "the run takes {seconds} s (--duration or --records), which includes --warmup and must be longer"
            );
        }
        duration("duration", self.duration.unwrap_or_default()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn sizes_have_units_and_rates_have_a_maximum() {
        assert_eq!(size("64Ki"), Ok(65536));
        assert_eq!((size("10k"), size("1G"), size("7")), (Ok(10_000), Ok(1_000_000_000), Ok(7)));
        for wrong in ["", "k", "1.5G", "3X", "-1", "99999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!((rate("max"), rate("5k")), (Ok(Rate::Max), Ok(Rate::PerSecond(5000))));
        assert!(rate("0").is_err() && rate("fast").is_err());
    }

    fn produce(arguments: &[&str]) -> Result<Produce> {
        let all = ["odradek-bench", "produce"].iter().chain(arguments);
        match Arguments::try_parse_from(all)?.command {
            Command::Produce(produce) => {
                produce.creation.check()?;
                produce.load.check()?;
                Ok(produce)
            }
            other => bail!("{other:?}"),
        }
    }

    #[test]
    fn inputs_of_a_report_are_the_arguments() {
        let parsed = produce(&["--rate", "5k", "--topic", "t", "--duration", "2.5"]).expect("arguments");
        let inputs = serde_json::to_value(&parsed).expect("JSON");
        assert_eq!((&inputs["rate"], &inputs["topic"]), (&5000.into(), &"t".into()), "{inputs}");
        assert_eq!((&inputs["duration"], &inputs["batch_bytes"]), (&2.5.into(), &65536.into()), "{inputs}");
        let inputs = serde_json::to_value(produce(&[]).expect("defaults")).expect("JSON");
        assert_eq!(
            (&inputs["rate"], &inputs["records"]),
            (&"max".into(), &serde_json::Value::Null),
            "{inputs}"
        );
    }

    #[test]
    fn what_cannot_be_is_said_in_a_sentence() {
        for (arguments, part) in [
            (&["--record-bytes", "15"][..], "--record-bytes"),
            (&["--acks", "2"][..], "--acks"),
            (&["--partitions", "0"][..], "--partitions"),
            (&["--in-flight", "0"][..], "--in-flight"),
            (&["--duration", "5", "--warmup", "5"][..], "--warmup"),
            (&["--duration=-1"][..], "--duration"),
            (&["--warmup", "10"][..], "--warmup"),
            (&["--records", "0"][..], "--records"),
            (&["--records", "10k", "--rate", "5k", "--warmup", "2"][..], "--warmup"),
            (&["--topic-config", "x"][..], "KEY=VALUE"),
            (&["--compression", "zstd"][..], "--compression"),
            (&["--duration", "5", "--records", "5"][..], "--records"),
        ] {
            let error = produce(arguments).expect_err("refused");
            assert!(error.is::<Refused>() || error.is::<clap::Error>(), "{arguments:?} is exit code 2");
            let said = error.to_string();
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
    }

    #[test]
    fn a_run_without_a_measured_part_is_refused() {
        let checked = |words: &[&str]| match Arguments::try_parse_from([&["odradek-bench"], words].concat()) {
            Ok(Arguments { command: Command::Consume(consume) }) => consume.check(),
            Ok(Arguments { command: Command::Idle(idle) }) => idle.check(),
            other => bail!("{other:?}"),
        };
        for (words, part) in [
            (&["consume", "--duration", "2", "--warmup", "2"][..], "--warmup"),
            (&["consume", "--duration", "0"][..], "--duration"),
            (&["consume", "--records", "0"][..], "--records"),
            (&["idle", "--broker-pid", "1", "--seconds", "0"][..], "--seconds"),
            (&["idle"][..], "--broker-pid"),
        ] {
            let error = checked(words).expect_err("refused");
            assert!(error.is::<Refused>() && error.to_string().contains(part), "{words:?}: {error}");
        }
        for fine in [
            &["consume"][..],
            &["consume", "--warmup", "2"],
            &["consume", "--duration", "2", "--warmup", "1"],
            &["idle", "--broker-pid", "1", "--seconds", "0.1"],
        ] {
            assert!(checked(fine).is_ok(), "{fine:?}");
        }
    }

    #[test]
    fn no_number_is_taken_that_is_none_or_without_end_or_negative() {
        let lines: [(&str, &[&str], &[&str]); 6] = [
            ("produce", &[], &["--other-cpu-max", "--timeout", "--linger-ms", "--duration", "--warmup"]),
            ("consume", &[], &["--other-cpu-max", "--timeout", "--duration", "--warmup"]),
            ("e2e", &[], &["--other-cpu-max", "--timeout", "--linger-ms", "--duration", "--warmup"]),
            ("connections", &[], &["--other-cpu-max", "--timeout", "--duration", "--warmup"]),
            ("startup", &["--broker", "x", "--kill"], &["--timeout", "--down"]),
            ("idle", &[], &["--other-cpu-max", "--seconds"]),
        ];
        let groups: &[&str] = &["--other-cpu-max", "--timeout", "--duration", "--warmup", "--heartbeat-ms"];
        for (command, more, names) in lines.into_iter().chain([("groups", &["--load", "join"][..], groups)]) {
            for name in names {
                for wrong in ["NaN", "inf", "-1", "-inf", "-0.5", "x"] {
                    let value = format!("{name}={wrong}");
                    let words = [&["odradek-bench", command][..], more, &[value.as_str()]].concat();
                    assert!(Arguments::try_parse_from(words).is_err(), "{command} {value}");
                }
                let value = format!("{name}=1.5");
                let words = [&["odradek-bench", command][..], more, &[value.as_str()]].concat();
                assert!(Arguments::try_parse_from(words).is_ok(), "{command} {value}");
            }
        }
    }

    #[test]
    fn a_setting_that_a_file_of_properties_would_read_as_another_is_refused() {
        for wrong in [
            "a=b\nlog.dirs=/var/lib/kafka",
            "a=b\rlog.dirs=/var/lib/kafka",
            "a\nlog.dirs=/var/lib/kafka",
            "log.dirs:/var/lib/kafka=x",
            "log.dirs /var/lib/kafka=x",
            "log\\u002edirs=/var/lib/kafka",
            "a=\\",
            "a=b\0",
            "#a=b",
            "!a=b",
        ] {
            assert!(setting(wrong).is_err(), "{wrong:?}");
        }
        for fine in ["a.b-c_d=x y", "sasl.jaas.config=a \"b\"=c;", "k="] {
            assert!(setting(fine).is_ok(), "{fine:?}");
        }
    }

    #[test]
    fn a_broker_is_not_moved_to_a_place_of_somebody_else() {
        assert_eq!(setting("num.io.threads=2"), Ok(("num.io.threads".to_owned(), "2".to_owned())));
        for wrong in
            ["log.dirs=/var/lib/kafka", " listeners =PLAINTEXT://:9092", "zookeeper.connect=x", "x", "=1"]
        {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
        let startup = |more: &[&str]| {
            let words = ["odradek-bench", "startup", "--broker", "x"];
            Arguments::try_parse_from(words.iter().chain(more)).map(|parsed| match parsed.command {
                Command::Startup(startup) => startup.check().map_err(|error| error.to_string()),
                other => Err(format!("{other:?}")),
            })
        };
        assert!(startup(&["--broker-override", "cores=2"]).unwrap().is_ok());
        assert!(startup(&["--broker-override", "log.dir=/tmp"]).is_err());
        assert!(startup(&["--fill-bytes", "1G"]).is_err(), "nothing is filled unless it is killed");
        assert!(startup(&["--fill-bytes", "1G", "--kill"]).unwrap().is_ok());
        assert!(
            startup(&["--down", "1"]).is_err() && startup(&["--warm", "/tmp"]).is_err(),
            "nor is it down"
        );
        assert!(startup(&["--kill", "--down", "1", "--warm", "/tmp"]).unwrap().is_ok());
        assert!(startup(&["--kill", "--partitions", "0"]).unwrap().is_err());
        let other = ["odradek-bench", "startup", "--bootstrap", "x:1", "--dir", "/tmp", "--", "java"];
        assert!(Arguments::try_parse_from(other).is_err(), "--dir is our broker's");
        let other =
            ["odradek-bench", "startup", "--bootstrap", "x:1", "--broker-override", "cores=1", "--", "java"];
        assert!(Arguments::try_parse_from(other).is_err(), "and so is --broker-override");
    }
}

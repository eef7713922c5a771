//! The command lines of `compare` and `sweep`, and what follows from them before anything is started.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use super::servers::{Durability, Kind, Plan, durability};
use crate::args::{self, refuse};

/// A pair of settings.
type Setting = (String, String);

/// Settings that a series gives to each broker, beside its place: several run beside each other, each on its processor.
const GIVEN: &[&str] = &["admin.listener", "broker.id", "cores"];

fn parse_setting(text: &str) -> Result<Setting, String> {
    let (key, value) = args::setting(text)?;
    if GIVEN.contains(&key.as_str()) {
        return Err(format!("{key} is given by the series itself"));
    }
    Ok((key, value))
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScenarioName {
    /// 1 KiB records in 64 KiB batches over 16 partitions, acks=1, written and read once, as fast as it goes.
    Throughput,
    /// 100-byte records over 8 connections without linger, as fast as it goes.
    Small,
    /// End-to-end latency at fixed rates and at half of Kafka's highest.
    Latency,
    /// Requests that are acknowledged when the disk has them, and the latency of that against Kafka without.
    Durability,
    /// Latency of tail reads while a backlog that is not in memory is read at full speed.
    ColdReads,
    /// 1,000 partitions against 16, ours alone.
    Partitions,
    /// Two shards against one, ours alone.
    Shards,
    /// Memory of 10,000 connections that do nothing.
    Connections,
    /// Memory and CPU at rest, with 1,000 partitions that were written once.
    Idle,
    /// From the start of the process to the first acknowledged record.
    Startup,
    /// From a start after kill -9 until all of 1,000 partitions acknowledge, ours alone.
    Recovery,
}

/// What both commands need.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Our broker; a release build.
    #[arg(long, value_name = "PATH", default_value = "target/release/odradek")]
    pub odradek: PathBuf,
    /// The load generator: another build of this program; this one itself if unset.
    #[arg(long, value_name = "PATH")]
    pub generator: Option<PathBuf>,
    /// Where results go: NAME.json, NAME.md and NAME.svg.
    #[arg(long, value_name = "DIR", default_value = "bench-harness/results")]
    pub results: PathBuf,
    /// Where brokers keep their data meanwhile, in a directory of its own that is removed at the end.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub data: PathBuf,
    /// Lowest of a hundred ports that the servers take.
    #[arg(long, default_value_t = 24_600)]
    pub port: u16,
    /// Seconds of one measured run; 10 unless --quick.
    #[arg(long)]
    pub seconds: Option<u32>,
    /// A trial: 2 pairs, short windows, little memory touched. Its figures are worth nothing.
    #[arg(long)]
    pub quick: bool,
    /// Goes on when something else uses the processors, and says so in the result.
    #[arg(long)]
    pub allow_noise: bool,
    /// Seconds to wait for a quiet machine before the series begins.
    #[arg(long, default_value_t = 300)]
    pub quiet_wait: u32,
    /// GiB of memory to touch first; all that is available if unset.
    #[arg(long)]
    pub touch_gib: Option<f64>,
    /// A setting of our broker; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub odradek_override: Vec<Setting>,
}

impl Common {
    /// Seconds of a measured run.
    pub fn seconds(&self) -> u32 {
        self.seconds.unwrap_or(if self.quick { 3 } else { 10 }).max(1)
    }

    /// GiB to touch, `None` for all.
    pub fn touch_gib(&self) -> Option<f64> {
        self.touch_gib.or(self.quick.then_some(1.0))
    }

    /// Our broker with so many shards, from processor 0 on.
    pub fn odradek(&self, shards: u32) -> Plan {
        let kind = Kind::Odradek { binary: self.odradek.clone(), cores: (0..shards).collect() };
        Plan { kind, settings: self.odradek_override.clone() }
    }
}

/// Our broker and Apache Kafka side by side.
#[derive(Args, Clone, Debug)]
pub struct Compare {
    /// Scenarios, separated by commas; all if unset.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub scenario: Vec<ScenarioName>,
    /// Pairs of each contrast; the first is discarded. 6 unless --quick.
    #[arg(long)]
    pub pairs: Option<u32>,
    /// Directory of Kafka's jars; where bench-harness/kafka/fetch puts them if unset.
    #[arg(long, value_name = "DIR")]
    pub kafka_libs: Option<PathBuf>,
    /// Ours alone: no ratios to Kafka.
    #[arg(long)]
    pub without_kafka: bool,
    /// Heaps of Kafka in GiB; the one that does better in the discarded pair counts.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    pub heaps: Vec<u32>,
    /// Rates of the latency scenario in records per second, beside half of Kafka's highest.
    #[arg(long, value_delimiter = ',', default_value = "5000,50000")]
    pub rates: Vec<u32>,
    /// GiB of the backlog that is read cold.
    #[arg(long)]
    pub backlog_gib: Option<f64>,
    /// GiB that are there when the broker is killed.
    #[arg(long)]
    pub recovery_gib: Option<f64>,
    /// A setting of Kafka; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub kafka_override: Vec<Setting>,
    /// What both commands need.
    #[command(flatten)]
    pub common: Common,
}

impl Compare {
    /// Pairs, the discarded one among them.
    ///
    /// # Errors
    /// Too few to have one left.
    pub fn pairs(&self) -> Result<u32> {
        let pairs = self.pairs.unwrap_or(if self.common.quick { 2 } else { 6 });
        checked_pairs(pairs)
    }

    /// Scenarios in the order of the command line.
    pub fn scenarios(&self) -> Vec<ScenarioName> {
        if self.scenario.is_empty() { ScenarioName::value_variants().to_vec() } else { self.scenario.clone() }
    }

    /// GiB of the cold backlog.
    pub fn backlog_gib(&self) -> f64 {
        self.backlog_gib.unwrap_or(if self.common.quick { 1.0 } else { 12.0 })
    }

    /// GiB that are there when the broker is killed.
    pub fn recovery_gib(&self) -> f64 {
        self.recovery_gib.unwrap_or(if self.common.quick { 0.5 } else { 10.0 })
    }

    /// Where Kafka's jars are.
    ///
    /// # Errors
    /// Nobody says where the cache is.
    pub fn kafka_libs(&self) -> Result<PathBuf> {
        if let Some(libs) = &self.kafka_libs {
            return Ok(libs.clone());
        }
        let cache = std::env::var_os("ODRADEK_CACHE").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/odradek"));
        Ok(cache.or_else(home).context("neither --kafka-libs nor HOME is set")?.join("kafka-bench/libs"))
    }

    /// Kafka with each heap; none without Kafka.
    ///
    /// # Errors
    /// As [`Compare::kafka_libs`].
    pub fn kafkas(&self) -> Result<Vec<Plan>> {
        if self.without_kafka {
            return Ok(Vec::new());
        }
        let libs = self.kafka_libs()?;
        let of = |heap_gib: &u32| Plan {
            kind: Kind::Kafka { libs: libs.clone(), heap_gib: *heap_gib },
            settings: self.kafka_override.clone(),
        };
        if self.heaps.is_empty() {
            refuse!("--heaps is empty");
        }
        Ok(self.heaps.iter().map(of).collect())
    }

    /// What both sides promise by their settings.
    ///
    /// # Errors
    /// They promise different things; or something, where a scenario asks its topics for it.
    pub fn durability(&self) -> Result<Durability> {
        let ours = durability(&self.common.odradek_override)?;
        let theirs = durability(&self.kafka_override)?;
        let is_asked = [ours, theirs].iter().any(|promised| *promised != Durability::PageCache);
        if is_asked && self.scenarios().contains(&ScenarioName::Durability) {
            refuse!(
                "the scenario durability has its own fsync settings: leave them out, or choose other scenarios"
            );
        }
        if ours != theirs && !self.without_kafka {
            refuse!("the fsync settings of the two sides differ: ours promise {ours:?}, Kafka's {theirs:?}");
        }
        Ok(ours)
    }
}

/// Pairs, if enough are left without the first.
///
/// # Errors
/// Too few.
pub fn checked_pairs(pairs: u32) -> Result<u32> {
    if pairs < 2 {
        refuse!("--pairs {pairs}: the first is discarded, so at least 2 are needed");
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Refused;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        compare: Compare,
    }

    fn line(words: &[&str]) -> Compare {
        Line::parse_from([&["x"], words].concat()).compare
    }

    #[test]
    fn six_pairs_of_all_scenarios_are_the_default() {
        let compare = line(&[]);
        assert_eq!((compare.pairs().unwrap(), compare.common.seconds()), (6, 10));
        assert_eq!(compare.scenarios().len(), ScenarioName::value_variants().len());
        assert_eq!(
            compare.kafkas().unwrap().iter().map(|plan| plan.kind.name()).collect::<Vec<_>>(),
            ["kafka-1g", "kafka-4g"]
        );
        let quick = line(&["--quick", "--scenario", "small,cold-reads", "--without-kafka"]);
        assert_eq!((quick.pairs().unwrap(), quick.common.seconds()), (2, 3));
        assert_eq!(quick.scenarios(), [ScenarioName::Small, ScenarioName::ColdReads]);
        assert!(quick.kafkas().unwrap().is_empty());
        assert!(line(&["--pairs", "1"]).pairs().is_err());
    }

    #[test]
    fn a_series_gives_each_broker_its_place_and_its_processor() {
        for given in ["log.dirs=/x", "listeners=PLAINTEXT://:1", "cores=[1]", "broker.id=7"] {
            for side in ["--odradek-override", "--kafka-override"] {
                assert!(Line::try_parse_from(["x", side, given]).is_err(), "{side} {given}");
            }
        }
    }

    #[test]
    fn sides_that_promise_different_things_are_not_compared() {
        assert!(line(&[]).durability().is_ok());
        assert!(line(&["--pairs", "1"]).pairs().unwrap_err().is::<Refused>(), "exit code 2");
        let one_sided = line(&["--kafka-override", "log.flush.interval.messages=1"]);
        assert!(one_sided.durability().unwrap_err().to_string().contains("fsync settings"));
        let both = [
            "--kafka-override",
            "log.flush.interval.messages=1",
            "--odradek-override",
            "storage.durability.mode=strict",
        ];
        let others = ["--scenario", "throughput,latency"];
        assert_eq!(line(&[&both[..], &others].concat()).durability().unwrap(), Durability::Disk);
        // The one scenario whose sides differ says so itself, and nobody else does in its place.
        for settings in [&both[..], &both[..2], &both[2..]] {
            let asked = line(&[settings, &["--scenario", "durability"]].concat()).durability();
            assert!(asked.unwrap_err().to_string().contains("fsync settings"), "{settings:?}");
            assert!(line(settings).durability().is_err(), "{settings:?}: among all scenarios");
        }
        let alone = line(&["--scenario", "durability"]);
        assert_eq!(alone.durability().unwrap(), Durability::PageCache);
    }
}

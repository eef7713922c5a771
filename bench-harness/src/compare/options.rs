//! The command lines of `compare` and `sweep`, and what follows from them before anything is started.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use super::compaction::BESIDE_TIMES_MAX;
use super::servers::{Durability, Kind, Plan, durability};
use crate::args::{self, not_negative, positive, refuse};
use crate::measure::machine::no_room;

/// A pair of settings.
type Setting = (String, String);

/// Settings that a series gives to each broker, beside its place: several run beside each other, each on its processor.
const GIVEN: &[&str] = &["admin.listener", "broker.id", "cores"];

/// Settings of groups that both sides get where groups are measured. Nobody waits for more members before a first
/// rebalance: that time would be measured, and is a setting. The rest are Kafka's defaults, said so that they are the same.
pub const GROUP_SETTINGS: &[(&str, &str)] = &[
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "6000"),
    ("group.max.session.timeout.ms", "1800000"),
    ("offsets.topic.num.partitions", "50"),
    ("offsets.topic.replication.factor", "1"),
    ("offsets.topic.segment.bytes", "104857600"),
    ("offsets.topic.compression.codec", "0"),
    ("offsets.commit.required.acks", "-1"),
    ("offsets.commit.timeout.ms", "5000"),
    ("offsets.retention.minutes", "10080"),
    ("offsets.retention.check.interval.ms", "600000"),
];

/// Settings of the cleaner that both sides get where compaction is measured. Looks for something to clean come soon, and so does
/// the checkpoint that tells of it; the rest are Kafka's defaults, said so that they are the same.
pub const CLEANER_SETTINGS: &[(&str, &str)] = &[
    ("log.cleaner.threads", "1"),
    ("log.cleaner.dedupe.buffer.size", "134217728"),
    ("log.cleaner.io.buffer.size", "524288"),
    ("log.cleaner.io.buffer.load.factor", "0.9"),
    ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308"),
    ("log.cleaner.backoff.ms", "100"),
    ("replica.high.watermark.checkpoint.interval.ms", "1000"),
];

fn parse_setting(text: &str) -> Result<Setting, String> {
    let (key, value) = args::setting(text)?;
    if GIVEN.contains(&key.as_str()) {
        return Err(format!("{key} is given by the series itself"));
    }
    Ok((key, value))
}

/// The last port of which a hundred more follow.
const PORT_MAX: i64 = 65_535 - 100;

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
    /// Consumer groups: 100 members that join and restart, 10,000 commits a second, heartbeats of 1,000 groups of 10.
    Groups,
    /// From a start after kill -9 until all of 1,000 partitions acknowledge.
    Recovery,
    /// The same dirty log cleaned by either side, and appends to ours while it cleans.
    Compaction,
    /// Appends to ours while another of its log dirs takes 100 ms for each operation. Takes root.
    SlowDisk,
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
    #[arg(long, default_value_t = 24_600, value_parser = clap::value_parser!(u16).range(1024..=PORT_MAX))]
    pub port: u16,
    /// Seconds of one measured run; 10 unless --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86_400))]
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
    #[arg(long, value_parser = not_negative)]
    pub touch_gib: Option<f64>,
    /// A setting of our broker; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub odradek_override: Vec<Setting>,
}

impl Common {
    /// Seconds of a measured run.
    pub fn seconds(&self) -> u32 {
        self.seconds.unwrap_or(if self.quick { 3 } else { 10 })
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
    /// Scenarios, separated by commas; all but slow-disk if unset.
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
    #[arg(long, value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub heaps: Vec<u32>,
    /// Rates of the latency scenario in records per second, beside half of Kafka's highest.
    #[arg(long, value_delimiter = ',', default_value = "5000,50000", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub rates: Vec<u32>,
    /// GiB of the backlog that is read cold.
    #[arg(long, value_parser = positive)]
    pub backlog_gib: Option<f64>,
    /// GiB that are there when the broker is killed.
    #[arg(long, value_parser = positive)]
    pub recovery_gib: Option<f64>,
    /// GiB of the log that is cleaned; beside appends up to four times as much.
    #[arg(long, value_parser = not_negative)]
    pub compaction_gib: Option<f64>,
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

    /// Scenarios in the order of the command line; without any all that anybody may play.
    pub fn scenarios(&self) -> Vec<ScenarioName> {
        if !self.scenario.is_empty() {
            return self.scenario.clone();
        }
        let all = ScenarioName::value_variants().iter().copied();
        all.filter(|name| *name != ScenarioName::SlowDisk).collect()
    }

    /// GiB of the cold backlog.
    pub fn backlog_gib(&self) -> f64 {
        self.backlog_gib.unwrap_or(if self.common.quick { 1.0 } else { 24.0 })
    }

    /// GiB that are there when the broker is killed.
    pub fn recovery_gib(&self) -> f64 {
        self.recovery_gib.unwrap_or(if self.common.quick { 0.5 } else { 10.0 })
    }

    /// GiB of the log that is cleaned: 2 GB.
    pub fn compaction_gib(&self) -> f64 {
        self.compaction_gib.unwrap_or(if self.common.quick { 0.9 } else { 1.86 })
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

    /// Checks that the disk has room for the most that one scenario writes and keeps, where so many GiB are free.
    ///
    /// # Errors
    /// It has not.
    pub fn room(&self, free_gib: f64) -> Result<()> {
        let written = self.scenarios().into_iter().filter_map(|name| match name {
            ScenarioName::ColdReads => Some(("backlog", self.backlog_gib())),
            ScenarioName::Recovery => Some(("recovery", self.recovery_gib())),
            ScenarioName::Compaction => {
                Some(("compaction", f64::from(BESIDE_TIMES_MAX) * self.compaction_gib()))
            }
            _ => None,
        });
        for (name, gib) in written {
            if let Some(why) = no_room(gib, free_gib) {
                refuse!("--{name}-gib: {why} ({})", self.common.data.display());
            }
        }
        Ok(())
    }

    /// The same command line for what groups are measured with: the first of Kafka's heaps alone, because their state is
    /// small, and on both sides the same settings of groups and of the topic that keeps them.
    ///
    /// # Errors
    /// A setting of them that the two sides do not share.
    pub fn for_groups(&self) -> Result<Self> {
        self.alike("groups", &["group.", "offsets."], GROUP_SETTINGS)
    }

    /// The same for what compaction is measured with: a heap larger than Kafka's default has nothing to hold.
    ///
    /// # Errors
    /// A setting of the cleaner that the two sides do not share.
    pub fn for_cleaning(&self) -> Result<Self> {
        self.alike("the cleaner", &["log.cleaner.", "replica.high.watermark.checkpoint."], CLEANER_SETTINGS)
    }

    /// The same command line with one heap, and with settings that both sides get; one that has a prefix of them is given to
    /// both or to neither.
    fn alike(&self, what: &str, prefixes: &[&str], given: &[(&str, &str)]) -> Result<Self> {
        let of = |settings: &[Setting]| -> Vec<Setting> {
            let is = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix));
            let mut found: Vec<Setting> = settings.iter().filter(|(key, _)| is(key)).cloned().collect();
            found.sort();
            found
        };
        let (ours, theirs) = (of(&self.common.odradek_override), of(&self.kafka_override));
        if ours != theirs && !self.without_kafka {
            refuse!("the settings of {what} differ: ours are {ours:?}, Kafka's {theirs:?}");
        }
        let with = |more: &[Setting]| -> Vec<Setting> {
            let alike = given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            alike.chain(more.iter().cloned()).collect()
        };
        let mut compare = self.clone();
        compare.heaps.truncate(1);
        compare.common.odradek_override = with(&self.common.odradek_override);
        compare.kafka_override = with(&self.kafka_override);
        Ok(compare)
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
        assert_eq!(compare.scenarios().len(), ScenarioName::value_variants().len() - 1);
        assert!(!compare.scenarios().contains(&ScenarioName::SlowDisk), "it takes root");
        assert_eq!(line(&["--scenario", "slow-disk"]).scenarios(), [ScenarioName::SlowDisk]);
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
    fn no_heap_no_rate_no_time_and_no_port_are_no_series() {
        for wrong in [
            "--heaps=0",
            "--heaps=1,0",
            "--heaps=",
            "--rates=0",
            "--rates=5000,0",
            "--seconds=0",
            "--port=65500",
            "--port=80",
        ] {
            assert!(Line::try_parse_from(["x", wrong]).is_err(), "{wrong}");
        }
        let least = line(&["--heaps", "1", "--rates", "1", "--seconds", "1", "--port", "65435"]);
        assert_eq!(
            (least.heaps, least.rates, least.common.seconds(), least.common.port),
            (vec![1], vec![1], 1, 65_435)
        );
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

    #[test]
    fn a_disk_without_room_is_told_before_anything_is_started() {
        let room = |words: &[&str], free| line(words).room(free).map_err(|why| why.to_string());
        assert_eq!(room(&["--backlog-gib", "6", "--recovery-gib", "9"], 11.0), Ok(()));
        let why = room(&["--backlog-gib", "400"], 30.0).unwrap_err();
        assert!(why.contains("--backlog-gib: 400.0 GiB are to be written, and 30.0 GiB are free"), "{why}");
        assert!(room(&["--recovery-gib", "29"], 30.0).unwrap_err().contains("--recovery-gib"));
        let why = room(&["--scenario", "compaction", "--compaction-gib", "8"], 30.0).unwrap_err();
        assert!(why.contains("--compaction-gib: 32.0 GiB are to be written"), "{why}");
        let neither = ["--scenario", "small", "--backlog-gib", "400", "--recovery-gib", "400"];
        assert_eq!(room(&neither, 30.0), Ok(()));
        assert!(line(&["--backlog-gib", "1e300"]).room(30.0).unwrap_err().is::<Refused>(), "exit code 2");
        for name in ["--backlog-gib", "--recovery-gib", "--compaction-gib", "--touch-gib"] {
            for wrong in ["NaN", "inf", "-1"] {
                assert!(Line::try_parse_from(["x", &format!("{name}={wrong}")]).is_err(), "{name}={wrong}");
            }
        }
        for wrong in ["--backlog-gib=0", "--recovery-gib=0"] {
            assert!(Line::try_parse_from(["x", wrong]).is_err(), "{wrong}");
        }
        assert_eq!(line(&["--touch-gib", "0"]).common.touch_gib(), Some(0.0));
    }

    #[test]
    fn cleaners_have_the_same_settings_on_both_sides() {
        let alike = line(&[]).for_cleaning().unwrap();
        assert_eq!(
            (alike.heaps.as_slice(), &alike.kafka_override),
            (&[1][..], &alike.common.odradek_override)
        );
        assert_eq!(alike.kafka_override.len(), CLEANER_SETTINGS.len());
        let threads = "log.cleaner.threads=2";
        let one = line(&["--odradek-override", threads]).for_cleaning();
        assert!(one.unwrap_err().to_string().contains("the settings of the cleaner differ"));
        assert!(line(&["--odradek-override", threads, "--kafka-override", threads]).for_cleaning().is_ok());
        assert!(line(&["--odradek-override", "memory.bytes=1"]).for_cleaning().is_ok(), "what is ours alone");
    }

    #[test]
    fn groups_have_the_same_settings_on_both_sides_and_one_heap() {
        let alike = line(&["--kafka-override", "num.io.threads=2"]).for_groups().unwrap();
        assert_eq!(alike.heaps, [1]);
        for (key, value) in GROUP_SETTINGS {
            let given = ((*key).to_owned(), (*value).to_owned());
            assert!(alike.kafka_override.contains(&given) && alike.common.odradek_override.contains(&given));
        }
        assert_eq!(alike.kafka_override.last(), Some(&("num.io.threads".to_owned(), "2".to_owned())));
        let delay = "group.initial.rebalance.delay.ms=500";
        let one = line(&["--kafka-override", delay]).for_groups();
        assert!(one.unwrap_err().to_string().contains("the settings of groups differ"));
        let both = line(&["--kafka-override", delay, "--odradek-override", delay]).for_groups().unwrap();
        let plan = both.common.odradek(1).configuration(24_600, std::path::Path::new("/tmp/x"));
        let values: Vec<&str> = plan
            .iter()
            .filter(|(key, _)| key == "group.initial.rebalance.delay.ms")
            .map(|(_, value)| value.as_str())
            .collect();
        assert_eq!(values, ["500"], "what was asked for replaces what would be given");
    }
}

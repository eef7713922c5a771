//! What is done in each scenario, and what the issue asks of it. Knows loads and targets; how sides take turns is
//! `contrast`'s.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::awake::Awake;
use super::compaction;
use super::contrast::{Known, RECORDS, Sides, against_kafka, from_scratch, within};
use super::durable;
use super::figures::{Figures, Limit, Target};
use super::groups::groups;
use super::job::{self, Job, cost, latency, needed, void};
use super::memory;
use super::options::{Compare, ScenarioName};
use super::promise::Promises;
use super::recovery;
use super::report::{CONDITION, Contrast, LATE_BEFORE};
use super::servers::{BROKER_PROCESSOR, Broker, CLIENT_PROCESSOR, Plan, startable};
use super::slow_disk;
use super::stage::{Found, Home, settle};
use crate::measure::machine::GIB;

/// Half of Kafka's highest, as a condition of a figure.
pub const HALF: &str = "half of Kafka's highest";
/// Seconds at the beginning of each run that are not measured.
pub const LEAD_IN: f64 = 1.0;
/// Seconds of the run that counts system calls: counting makes them dearer, so it is a run of its own.
const COUNTED_SECONDS: f64 = 3.0;
/// Seconds of one window of a warm-up.
pub const WINDOW: f64 = 10.0;
/// Records per second of the tail beside which a backlog is read.
const TAIL_RATE: u32 = 20_000;
/// Records per second of the schedule of `sweep`: where a p99 of some milliseconds shows what a key does to it, and the
/// hundredth of it that the generator may be late is not the microseconds of any machine that is not idle.
const TUNING_RATE: u32 = 50_000;
/// Share of a backlog that may be in memory before it is read cold.
const RESIDENT_MAX: f64 = 0.01;
/// Connections that do nothing.
const IDLE_CONNECTIONS: u32 = 10_000;
/// Of the scenarios that have many partitions.
pub const MANY_PARTITIONS: u32 = 1000;
const FEW_PARTITIONS: u32 = 16;
/// The generator of a schedule does not sleep before a batch that is due within this: always, at the rates used. It has a
/// processor for itself.
pub const SPIN_US: u32 = 3000;
/// Where it shares its processor with another load it sleeps, and only a little shorter than to the next batch.
pub const SHARED_SPIN_US: u32 = 60;
/// Partitions of a tail whose client sleeps: a batch is due every 250 µs, so that there is time to sleep in.
const TAIL_PARTITIONS: u32 = 4;
/// How often a schedule that was not kept is tried again.
const LATE_MAX: usize = 5;
const KIB: f64 = 1024.0;

/// What a scenario is given.
#[derive(Debug)]
pub struct Scene<'a> {
    /// Where it plays.
    pub home: &'a Home,
    /// The command line.
    pub compare: &'a Compare,
    /// The floor of this machine in CPU-seconds per GB, if it was measured.
    pub floor: Option<f64>,
    /// Records per second that the faster Kafka reached so far at the load of `throughput` and `latency`, closed loop.
    pub kafka_highest: Cell<Option<f64>>,
}

/// Plays a scenario; what it found before it failed stays in `found`.
///
/// # Errors
/// A broker or a run fails.
pub fn play(scene: &Scene<'_>, name: ScenarioName, found: &mut Vec<Contrast>) -> Result<()> {
    let contrasts = match name {
        ScenarioName::ColdReads => return cold_reads(scene, found),
        ScenarioName::Durability => return durable::play(scene, found),
        ScenarioName::Compaction => return compaction::play(scene, found),
        ScenarioName::Throughput => throughput(scene),
        ScenarioName::Small => small(scene),
        ScenarioName::Latency => latencies(scene),
        ScenarioName::Partitions => partitions(scene),
        ScenarioName::Shards => shards(scene),
        ScenarioName::Connections => connections(scene),
        ScenarioName::Idle => idle(scene),
        ScenarioName::Startup => startup(scene),
        ScenarioName::Groups => groups(scene),
        ScenarioName::Recovery => recovery::play(scene),
        ScenarioName::SlowDisk => slow_disk::play(scene),
    };
    found.extend(contrasts?);
    Ok(())
}

/// A load as fast as it goes.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// `e2e`, or `produce` with a verifying reader afterwards.
    pub command: &'static str,
    /// Of its topic.
    pub partitions: u32,
    /// Bytes of a value.
    pub record_bytes: u32,
    /// A batch holds as many records as fit, at least one.
    pub batch_bytes: u32,
    /// Of the producer, and of the consumer if there is one.
    pub connections: u32,
}

/// The load of `throughput` and `latency`.
pub const LARGE: Shape = Shape {
    command: "e2e",
    partitions: FEW_PARTITIONS,
    record_bytes: 1024,
    batch_bytes: 65_536,
    connections: 4,
};
const SMALL: Shape = Shape {
    command: "produce",
    partitions: FEW_PARTITIONS,
    record_bytes: 100,
    batch_bytes: 1024,
    connections: 8,
};

impl Shape {
    /// The load, on a topic.
    pub fn job(&self, broker: &Broker, topic: &str, flags: &[&str]) -> Job {
        let job = Job::new(self.command, flags)
            .at(broker)
            .with("--topic", topic)
            .with("--partitions", self.partitions)
            .with("--record-bytes", self.record_bytes)
            .with("--batch-bytes", self.batch_bytes)
            .with("--connections", self.connections);
        if self.command == "e2e" { job.with("--consumers", self.connections) } else { job }
    }
}

/// Does something with a topic of its own, which is gone afterwards.
///
/// # Errors
/// What it does fails, or the topic cannot be deleted.
pub fn on_fresh_topic<T>(home: &Home, broker: &Broker, act: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let before = memory::blocks_below(&broker.logs());
    let topic = format!("run-{}", home.fresh());
    let done = act(&topic)?;
    job::delete_topic(broker, &topic)?;
    settle(home, broker, before)?;
    Ok(done)
}

/// As fast as it goes: speed and cost, and every record verified.
fn speed(home: &Home, broker: &Broker, shape: &Shape) -> Result<Found> {
    let seconds = LEAD_IN + f64::from(home.common.seconds());
    let report = on_fresh_topic(home, broker, |topic| {
        let job = shape.job(broker, topic, &["--no-perf"]).with("--warmup", LEAD_IN).lasting(seconds);
        // Both verify: one while it reads, the other afterwards.
        if shape.command == "e2e" { job.run(home) } else { job.run_and_verify(home, broker, topic) }
    })?;
    let mut found = Found::default();
    let figures = cost(&report);
    found.take(report, figures);
    Ok(found)
}

/// The same, and in a short run of its own the system calls.
fn full_speed(home: &Home, broker: &Broker, shape: &Shape) -> Result<Found> {
    let mut found = speed(home, broker, shape)?;
    let counted = on_fresh_topic(home, broker, |topic| {
        shape.job(broker, topic, &[]).with("--warmup", LEAD_IN).lasting(LEAD_IN + COUNTED_SECONDS).run(home)
    })?;
    let calls = job::number(&counted, "/broker/syscalls_per_1000_records");
    let figures = calls.map(|calls| ("syscalls_per_1000_records".to_owned(), calls));
    found.take(counted, figures.into_iter().collect());
    Ok(found)
}

/// One window of a warm-up.
///
/// # Errors
/// The run fails.
pub fn window(home: &Home, broker: &Broker, shape: &Shape) -> Result<f64> {
    let seconds = if home.common.quick { f64::from(home.common.seconds()) } else { WINDOW };
    let report = on_fresh_topic(home, broker, |topic| {
        shape.job(broker, topic, &["--no-perf"]).lasting(seconds).run(home)
    })?;
    needed(&report, "/produce/records_per_second")
}

/// What a figure has to keep.
pub fn target(figure: &str, limit: Limit) -> Target {
    Target { figure: figure.to_owned(), limit }
}

fn throughput(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let third = 1.0 / 3.0;
    let cost = scene.floor.map_or(Limit::RatioAtMost(third), |floor| Limit::RatioOrValue(third, 1.5 * floor));
    let sides = Sides {
        what: "1 KiB records in 64 KiB batches over 16 partitions, acks=1, 4 connections to write and 4 to read, \
               produced and consumed once, as fast as it goes."
            .to_owned(),
        targets: vec![
            target("cpu_s_per_gb", cost),
            target("cpu_user_s_per_gb", Limit::RatioAtMost(0.2)),
            target("mb_per_s", Limit::RatioAtLeast(1.0)),
        ],
        primary: "cpu_s_per_gb",
        kafka_highest: None,
        counts: RECORDS,
    };
    let mut warm = |home: &Home, broker: &Broker| window(home, broker, &LARGE);
    let mut act = |home: &Home, broker: &Broker, _: Known| full_speed(home, broker, &LARGE);
    let contrast =
        against_kafka(scene.home, scene.compare, (sides, Promises::Settings), Some(&mut warm), &mut act)?;
    scene.kafka_highest.set(contrast.kafka_highest());
    Ok(vec![contrast])
}

fn small(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let sides = Sides {
        what: "100-byte records in batches of at most 1 KiB over 16 partitions, acks=1, 8 connections, no linger, \
               produced as fast as it goes and read back afterwards."
            .to_owned(),
        targets: vec![target("cpu_s_per_mrec", Limit::RatioAtMost(1.0 / 3.0))],
        primary: "cpu_s_per_mrec",
        kafka_highest: None,
        counts: RECORDS,
    };
    let mut warm = |home: &Home, broker: &Broker| window(home, broker, &SMALL);
    let mut act = |home: &Home, broker: &Broker, _: Known| full_speed(home, broker, &SMALL);
    Ok(vec![against_kafka(
        scene.home,
        scene.compare,
        (sides, Promises::Settings),
        Some(&mut warm),
        &mut act,
    )?])
}

/// Records on a schedule, produced and consumed.
fn scheduled(home: &Home, broker: &Broker, topic: &str, rate: u32, spin_us: u32) -> Job {
    Job::new("e2e", &["--no-perf"])
        .at(broker)
        .with("--topic", topic)
        .with("--rate", rate)
        .with("--linger-ms", 1)
        .with("--spin-us", spin_us)
        .with("--connections", LARGE.connections)
        .with("--consumers", LARGE.connections)
        .with("--warmup", LEAD_IN)
        .lasting(LEAD_IN + f64::from(home.common.seconds()))
}

/// Runs on a schedule until the generator kept it, a few times at most; the report tells what was put aside. A host that takes
/// a processor for a millisecond makes a run void, and says nothing about the broker.
///
/// # Errors
/// A run fails.
pub fn on_time(home: &Home, condition: &str, run: &mut dyn FnMut() -> Result<Value>) -> Result<Value> {
    let mut late: Vec<String> = Vec::new();
    loop {
        let mut report = run()?;
        let faults = void(&report);
        if faults.is_empty() || late.len() >= LATE_MAX {
            if let Value::Object(fields) = &mut report {
                fields.insert(CONDITION.to_owned(), condition.into());
                fields.insert(LATE_BEFORE.to_owned(), late.into());
            }
            return Ok(report);
        }
        home.say(&format!("again: {}", faults.join("; ")));
        late.push(faults.join("; "));
    }
}

fn latencies(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let half = |figure: &str| target(&format!("{figure}@{HALF}"), Limit::RatioAtMost(0.5));
    let sides = Sides {
        what: "End to end, from the scheduled time until the record was read and verified: 1 KiB records over 16 \
               partitions, acks=1, linger 1 ms, 4 connections to write and 4 to read, at fixed rates and at half of \
               the most that any Kafka took in a closed loop. Processors are kept from halting."
            .to_owned(),
        targets: if scene.compare.without_kafka { Vec::new() } else { vec![half("p99_us"), half("p999_us")] },
        primary: if scene.compare.without_kafka { "p99_us" } else { "p99_us@half of Kafka's highest" },
        kafka_highest: scene.kafka_highest.get(),
        counts: RECORDS,
    };
    Ok(vec![on_schedule(scene, (sides, Promises::Settings))?])
}

/// Latencies at the rates of the command line and at half of Kafka's highest.
///
/// # Errors
/// A broker or a run fails.
pub fn on_schedule(scene: &Scene<'_>, sides: (Sides, Promises)) -> Result<Contrast> {
    let rates = &scene.compare.rates;
    let mut warm = |home: &Home, broker: &Broker| window(home, broker, &LARGE);
    let mut act = |home: &Home, broker: &Broker, known: Known| -> Result<Found> {
        let fixed = rates.iter().map(|rate| (format!("{rate}/s"), *rate));
        let half = known.kafka_max.map(half_of).transpose()?;
        let mut found = Found::default();
        let _awake = Awake::start(home, &[BROKER_PROCESSOR])?;
        for (condition, rate) in fixed.chain(half) {
            let report = on_time(home, &condition, &mut || {
                on_fresh_topic(home, broker, |topic| {
                    let job = scheduled(home, broker, topic, rate, SPIN_US);
                    known.promises.ask(job, broker).run(home)
                })
            })
            .with_context(|| format!("at {rate}/s"))?;
            let figures = latency(&report, &condition)?;
            found.take(report, figures);
        }
        Ok(found)
    };
    against_kafka(scene.home, scene.compare, sides, Some(&mut warm), &mut act)
}

/// Half of a rate, as a condition and as a whole number of records per second.
fn half_of(highest: f64) -> Result<(String, u32)> {
    let rate = highest / 2.0;
    ensure!(rate.is_finite() && rate >= 1.0, "no rate follows from a warm-up at {highest} records/s");
    Ok((HALF.to_owned(), format!("{rate:.0}").parse().context("the rate is too high")?))
}

/// The backlog of each broker, by process id, written and read back when it is first asked for.
#[derive(Debug, Default)]
struct Backlogs(BTreeMap<u32, String>);

impl Backlogs {
    fn of(&mut self, home: &Home, broker: &Broker, gib: f64) -> Result<String> {
        if let Some(topic) = self.0.get(&broker.id()) {
            return Ok(topic.clone());
        }
        let topic = format!("backlog-{}", home.fresh());
        home.say(&format!("writing a backlog of {gib} GiB"));
        let records = format!("{:.0}", gib * GIB / KIB);
        let shape = Shape { command: "produce", ..LARGE };
        let job = shape.job(broker, &topic, &["--no-perf"]).with("--records", records).within(gib * 60.0);
        job.run_and_verify(home, broker, &topic)?;
        self.0.insert(broker.id(), topic.clone());
        Ok(topic)
    }
}

/// The tail on a schedule, with or without somebody who reads the backlog from the disk.
fn tail(home: &Home, broker: &Broker, backlog: &str, gib: f64, with_reader: bool) -> Result<Found> {
    let resident = memory::evict(&memory::segments(&broker.logs(), backlog)?)?;
    ensure!(resident <= RESIDENT_MAX, "{:.1} % of the backlog stayed in memory", resident * 100.0);
    let seconds = LEAD_IN + f64::from(home.common.seconds());
    let _awake = Awake::start(home, &[BROKER_PROCESSOR, CLIENT_PROCESSOR])?;
    let reader =
        Job::new("consume", &["--no-perf"]).at(broker).with("--topic", backlog).with("--connections", 4);
    let reader = with_reader.then(|| reader.lasting(seconds + 1.0).beside().start(home)).transpose()?;
    let mut found = Found::default();
    let run = |topic: &str| {
        scheduled(home, broker, topic, TAIL_RATE, SHARED_SPIN_US)
            .with("--partitions", TAIL_PARTITIONS)
            .urgent()
            .run(home)
    };
    let report = on_fresh_topic(home, broker, run)?;
    let figures = latency(&report, &format!("{TAIL_RATE}/s"))?;
    found.take(report, figures);
    if let Some(reader) = reader {
        let report = reader.finish(home)?;
        if needed(&report, "/consume/bytes")? >= 0.98 * gib * GIB {
            found.void.push("the backlog was read to its end before the run was over".to_owned());
        }
        let speed = needed(&report, "/consume/megabytes_per_second")?;
        found.take(report, Figures::from([("reader_mb_per_s".to_owned(), speed)]));
    }
    Ok(found)
}

/// Ours against itself, then Kafka against itself: where Kafka's runs are all void, ours stand all the same.
fn cold_reads(scene: &Scene<'_>, found: &mut Vec<Contrast>) -> Result<()> {
    let gib = scene.compare.backlog_gib();
    let plans =
        std::iter::once(scene.compare.common.odradek(1)).chain(scene.compare.kafkas()?.into_iter().take(1));
    for plan in plans {
        let name = plan.kind.name();
        let p99 = format!("p99_us@{TAIL_RATE}/s");
        let is_ours = name == "odradek";
        let sides = Sides {
            what: format!(
                "{name}: the tail of 1 KiB records at {TAIL_RATE}/s over {TAIL_PARTITIONS} partitions, end to end, with and without a reader of a \
                 backlog of {gib} GiB at full speed, which is not in the page cache when it begins (verified). The \
                 reader has what the tail's client leaves of their one processor (SCHED_IDLE). Processors are kept from \
                 halting. Kafka with the first of its heaps only."
            ),
            targets: if is_ours { vec![target(&p99, Limit::RatioAtMost(1.2))] } else { Vec::new() },
            primary: "p99_us",
            kafka_highest: None,
            counts: RECORDS,
        };
        let backlogs = std::cell::RefCell::new(Backlogs::default());
        let run = |home: &Home, broker: &Broker, with_reader: bool| -> Result<Found> {
            let backlog = backlogs.borrow_mut().of(home, broker, gib)?;
            tail(home, broker, &backlog, gib, with_reader)
        };
        let mut with = |home: &Home, broker: &Broker, _: Known| run(home, broker, true);
        let mut without = |home: &Home, broker: &Broker, _: Known| run(home, broker, false);
        let (first, second) = (format!("{name} with cold reads"), format!("{name} without"));
        let pairs = scene.compare.pairs()?;
        found.push(within(
            scene.home,
            pairs,
            sides,
            (&first, &plan, &mut with),
            (&second, &plan, &mut without),
        )?);
    }
    Ok(())
}

fn partitions(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let sides = Sides {
        what: format!(
            "Ours: 1 KiB records in 64 KiB batches over {MANY_PARTITIONS} partitions against {FEW_PARTITIONS}, \
             produced and consumed once, as fast as it goes."
        ),
        targets: vec![target("mb_per_s", Limit::RatioAtLeast(0.8))],
        primary: "mb_per_s",
        kafka_highest: None,
        counts: RECORDS,
    };
    let plan = scene.compare.common.odradek(1);
    let run =
        |home: &Home, broker: &Broker, partitions| full_speed(home, broker, &Shape { partitions, ..LARGE });
    let mut many = |home: &Home, broker: &Broker, _: Known| run(home, broker, MANY_PARTITIONS);
    let mut few = |home: &Home, broker: &Broker, _: Known| run(home, broker, FEW_PARTITIONS);
    let (first, second) = ("1,000 partitions", "16 partitions");
    let pairs = scene.compare.pairs()?;
    Ok(vec![within(scene.home, pairs, sides, (first, &plan, &mut many), (second, &plan, &mut few))?])
}

fn shards(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let sides = Sides {
        what: "Ours: two shards on both processors, one of which the client uses too, against one shard; 1 KiB records \
               in 64 KiB batches over 16 partitions, produced and consumed once, as fast as it goes."
            .to_owned(),
        targets: vec![target("cpu_s_per_gb", Limit::RatioAtMost(1.15))],
        primary: "cpu_s_per_gb",
        kafka_highest: None,
        counts: RECORDS,
    };
    let (two, one) = (scene.compare.common.odradek(2), scene.compare.common.odradek(1));
    let mut first = |home: &Home, broker: &Broker, _: Known| full_speed(home, broker, &LARGE);
    let mut second = |home: &Home, broker: &Broker, _: Known| full_speed(home, broker, &LARGE);
    Ok(vec![within(
        scene.home,
        scene.compare.pairs()?,
        sides,
        ("two shards", &two, &mut first),
        ("one shard", &one, &mut second),
    )?])
}

fn connections(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let sides = Sides {
        what: format!("Memory while {IDLE_CONNECTIONS} connections are open that do nothing."),
        targets: vec![target("rss_mib", Limit::AtMost(100.0))],
        primary: "rss_mib",
        kafka_highest: None,
        counts: RECORDS,
    };
    let mut act = |home: &Home, broker: &Broker, _: Known| -> Result<Found> {
        let report = on_fresh_topic(home, broker, |topic| {
            let job = Job::new("connections", &["--no-perf"]).at(broker).with("--topic", topic);
            job.with("--idle", IDLE_CONNECTIONS).lasting(3.0).run(home)
        })?;
        let rss = needed(&report, "/connections/rss_bytes")? / KIB / KIB;
        let mut found = Found::default();
        found.take(report, Figures::from([("rss_mib".to_owned(), rss)]));
        Ok(found)
    };
    Ok(vec![against_kafka(scene.home, scene.compare, (sides, Promises::Settings), None, &mut act)?])
}

fn idle(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let sides = Sides {
        what: format!("At rest, with {MANY_PARTITIONS} partitions of which each was written once."),
        targets: vec![target("idle_cpu_percent", Limit::AtMost(0.1)), target("rss_mib", Limit::AtMost(50.0))],
        primary: "rss_mib",
        kafka_highest: None,
        counts: RECORDS,
    };
    let mut written = std::collections::BTreeSet::new();
    let mut act = |home: &Home, broker: &Broker, _: Known| -> Result<Found> {
        if written.insert(broker.id()) {
            // A batch of one byte holds one record, and batches go round the partitions.
            let once = Shape { command: "produce", partitions: MANY_PARTITIONS, batch_bytes: 1, ..LARGE };
            once.job(broker, "idle", &["--no-perf"]).with("--records", MANY_PARTITIONS).run(home)?;
        }
        home.interrupt.pause(std::time::Duration::from_secs(2))?;
        let seconds = if home.common.quick { 5 } else { 20 };
        let report =
            Job::new("idle", &["--no-perf"]).sampling(broker).with("--seconds", seconds).run(home)?;
        let percent = needed(&report, "/idle/cpu_share")? * 100.0;
        let rss = needed(&report, "/idle/rss_bytes")? / KIB / KIB;
        let mut found = Found::default();
        found.take(
            report,
            Figures::from([("idle_cpu_percent".to_owned(), percent), ("rss_mib".to_owned(), rss)]),
        );
        Ok(found)
    };
    Ok(vec![against_kafka(scene.home, scene.compare, (sides, Promises::Settings), None, &mut act)?])
}

/// Starts of a broker on an empty directory, by `startup` with the arguments that `job` gives for where it keeps its logs.
///
/// # Errors
/// A broker or the run fails.
pub fn started(home: &Home, plan: &Plan, seconds: f64, job: impl FnOnce(&Path) -> Job) -> Result<Value> {
    let number = home.fresh();
    let port = home.port(number)?;
    let data = home.path.join(format!("start-{number}"));
    let job = job(&data.join("logs"));
    let prepared = startable(plan, port, &data, &home.interrupt)?;
    let job = job.with("--bootstrap", format!("127.0.0.1:{port}")).on("0,1").within(seconds);
    let report = job.then(prepared.command).run(home)?;
    drop(prepared.zookeeper);
    home.remove(&data)?;
    Ok(report)
}

fn startup(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let sides = Sides {
        what: "From the start of the process on an empty directory to its first acknowledged record. Kafka with the \
               first of its heaps only."
            .to_owned(),
        targets: vec![target("ready_ms", Limit::AtMost(50.0))],
        primary: "ready_ms",
        kafka_highest: None,
        counts: RECORDS,
    };
    let run = |home: &Home, plan: &Plan| -> Result<Found> {
        let job = |_: &Path| Job::new("startup", &[]).with("--runs", 1).with("--partitions", 0);
        let report = started(home, plan, 300.0, job)?;
        let ready = needed(&report, "/startup/first_acknowledged_ms/median")?;
        let mut found = Found::default();
        found.take(report, Figures::from([("ready_ms".to_owned(), ready)]));
        Ok(found)
    };
    let ours = scene.compare.common.odradek(1);
    let mut first = |home: &Home| run(home, &ours);
    let theirs = scene.compare.kafkas()?.into_iter().next();
    let name = theirs.as_ref().map(|plan| plan.kind.name());
    let mut second = |home: &Home| run(home, theirs.as_ref().context("there is no Kafka")?);
    let act: &mut dyn FnMut(&Home) -> Result<Found> = &mut second;
    let second = name.as_deref().map(|name| (name, act));
    Ok(vec![from_scratch(scene.home, scene.compare.pairs()?, sides, ("odradek", &mut first), second)?])
}

/// What a user tunes for: speed and cost as fast as it goes, and latency at a tenth of it. A late schedule is repeated
/// alone, before the rest.
///
/// # Errors
/// A run fails.
pub fn tuning(home: &Home, broker: &Broker) -> Result<Found> {
    let condition = format!("{TUNING_RATE}/s");
    let awake = Awake::start(home, &[BROKER_PROCESSOR])?;
    let report = on_time(home, &condition, &mut || {
        let run = |topic: &str| scheduled(home, broker, topic, TUNING_RATE, SPIN_US).run(home);
        on_fresh_topic(home, broker, run)
    })?;
    drop(awake);
    let figures = latency(&report, &condition)?;
    let mut found = Found::default();
    found.take(report, figures);
    let fast = speed(home, broker, &LARGE)?;
    found.figures.extend(fast.figures);
    found.void.extend(fast.void);
    found.raw.extend(fast.raw);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_highest_rate_is_a_whole_number_of_records() {
        assert_eq!(half_of(246_913.0).unwrap(), (HALF.to_owned(), 123_456));
        assert!(half_of(0.2).is_err());
        assert!(half_of(f64::NAN).is_err());
    }
}

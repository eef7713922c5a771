//! Kafka 3.9 and ours on one directory and one ZooKeeper tree, in turns (issue 4, item 5): each starts on what the other
//! wrote, after a clean stop and after `kill -9`, serves every record as it was sent, and goes on with its producers, its
//! groups, its compaction, its retention, its topics. `interop.rs` takes it in by path.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::group_turns::GroupTurns;
use crate::load::{self, Load, Random};
use crate::on_zookeeper::{await_gone, metadata, on, read};
use crate::support::{self, Broker};
use crate::zookeeper::ZooKeeper;
use crate::{class_path, directory, expect};

/// Turns of both, unless `ODRADEK_KAFKA_ROUNDS` says how many: one for each way in which two can end.
const ROUNDS: u64 = 4;

const STOP_LIMIT: Duration = Duration::from_secs(120);

/// What both are told.
pub const SETTINGS: [&str; 11] = [
    "broker.id=7",
    "zookeeper.session.timeout.ms=4000",
    "auto.create.topics.enable=false",
    "log.cleaner.backoff.ms=50",
    "log.cleaner.dedupe.buffer.size=4194304",
    "log.retention.check.interval.ms=300",
    "log.flush.offset.checkpoint.interval.ms=1000",
    "replica.high.watermark.checkpoint.interval.ms=50",
    "offsets.topic.num.partitions=3",
    "offsets.topic.replication.factor=1",
    "group.initial.rebalance.delay.ms=0",
];

/// What Kafka alone is told: one broker, no wait for others, and retention soon, but after its cleaner is there: the two
/// fail one another when they start at once.
const KAFKAS: [&str; 3] = [
    "log.initial.task.delay.ms=3000",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
];

const LOG4J: &str = "log4j.rootLogger=WARN, out\n\
     log4j.appender.out=org.apache.log4j.ConsoleAppender\n\
     log4j.appender.out.layout=org.apache.log4j.PatternLayout\n\
     log4j.appender.out.layout.ConversionPattern=%p %c: %d{ABSOLUTE} %m%n\n\
     log4j.logger.kafka.log.LogManager=INFO\n\
     log4j.logger.kafka.log.LogLoader=INFO\n\
     log4j.logger.kafka.server.KafkaServer=INFO\n";

/// What Kafka says of its own doings, by parts of a line: its controller loses the broker that it is in at every stop; a
/// topic whose deletion was cut short has no leader; what waits for its deletion may be half gone, or never had the indexes.
const OWN_DOINGS: [&[&str]; 5] = [
    &["org.apache.kafka.clients.NetworkClient: "],
    &["kafka.controller.RequestSendThread: "],
    &["kafka.log.LogLoader: ", "Could not find offset index file", "-delete/"],
    &["state.change.logger: ", "for partition made-", "the new leader -1 is unavailable"],
    &[
        "org.apache.kafka.common.utils.Utils: ",
        "Failed atomic move of ",
        "-delete/",
        "retrying with a non-atomic move",
    ],
];

/// What it says of a log dir after a clean stop, and of a log elsewhere.
const SKIPPED: &str = "since clean shutdown file was found";
const RECOVERED: &str = "Recovering unflushed segment";

/// What it says of a batch that `kill -9` has cut off.
const CUT: [&str; 3] = ["kafka.log.LogLoader: ", "Corruption found in segment ", ", truncating to offset "];

/// What Kafka says of a gap of a producer, which each is tried with.
const GAP: [&str; 2] = ["Error processing append operation", "OutOfOrderSequenceException"];

/// Kafka's own broker, ended when dropped.
pub struct Kafka {
    child: Child,
    dir: TempDir,
}

impl Kafka {
    /// Starts it in the place of a broker of ours, which has ended.
    pub fn start(libs: &Path, broker: &Broker, connect: &str, log_dirs: &str) -> Result<Self, String> {
        let said = |error: std::io::Error| error.to_string();
        let dir = tempfile::Builder::new().prefix("kafka-").tempdir().map_err(said)?;
        let (settings, log4j) = (dir.path().join("server.properties"), dir.path().join("log4j.properties"));
        let own = [format!("listeners=PLAINTEXT://{}", broker.bootstrap()), format!("log.dirs={log_dirs}")];
        let lines = SETTINGS.iter().chain(&KAFKAS).copied().chain(own.iter().map(String::as_str));
        let text: String = lines.chain([connect]).flat_map(|line| [line, "\n"]).collect();
        std::fs::write(&settings, text).map_err(said)?;
        std::fs::write(&log4j, LOG4J).map_err(said)?;
        let log = File::create(dir.path().join("log")).map_err(said)?;
        let child = Command::new("java")
            .args([
                "-Xmx512m",
                "-XX:+UseSerialGC",
                &format!("-Dlog4j.configuration=file:{}", log4j.display()),
            ])
            .args(["-cp", &class_path(libs, None), "kafka.Kafka"])
            .arg(&settings)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(said)?)
            .stderr(log)
            .spawn()
            .map_err(said)?;
        Ok(Self { child, dir })
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// How it ends by itself.
    pub fn ended(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let ended = support::wait(&mut self.child, limit);
        ended.ok_or_else(|| format!("Kafka does not end:\n{}", self.log()))
    }

    pub fn is_alive(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(format!("Kafka has ended: {ended:?}\n{}", self.log())),
        }
    }

    /// Whether it has found anything odd; what was killed before it may have left batches that were cut off.
    pub fn complaint(&self, before: Ends) -> Result<(), String> {
        let log = self.log();
        let is_skipped = log.contains(SKIPPED);
        if before == Ends::Stopped && (!is_skipped || log.contains(RECOVERED)) {
            return Err(format!("Kafka recovers what was stopped cleanly:\n{log}"));
        }
        let nexts = log.lines().skip(1).chain([""]);
        let odd = log.lines().zip(nexts).find(|(line, next)| {
            let has = |parts: &[&str]| parts.iter().all(|part| line.contains(part));
            let is_of_a_gap = line.contains(GAP[0]) && next.contains(GAP[1]);
            let is_known = OWN_DOINGS.iter().any(|parts| has(parts)) || is_of_a_gap;
            let is_of_the_kill = before == Ends::Killed && has(&CUT);
            let complains = ["WARN ", "ERROR ", "FATAL "].iter().any(|level| line.starts_with(level));
            complains && !is_known && !is_of_the_kill
        });
        odd.map_or(Ok(()), |(line, _)| Err(format!("Kafka complains: {line}\nin\n{log}")))
    }

    pub fn stop(&mut self) -> Result<(), String> {
        let term = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status();
        if !term.is_ok_and(|sent| sent.success()) {
            return Err("Kafka cannot be told to stop".to_owned());
        }
        match support::wait(&mut self.child, STOP_LIMIT) {
            Some(_) => Ok(()),
            None => Err(format!("Kafka does not stop:\n{}", self.log())),
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    Stopped,
    Killed,
}

/// What both have been sent.
struct Work {
    load: Load,
    groups: GroupTurns,
}

/// What one broker is asked to do while it has the directory.
struct Turn<'a> {
    work: &'a mut Work,
    libs: &'a Path,
    at: String,
    log_dir: &'a Path,
    /// Of this turn, in the names of topics.
    number: u64,
}

impl Turn<'_> {
    /// Everything is there; more is written; what runs in the background has had its turn; and everything is there.
    fn take(&mut self, is_alive: &mut dyn FnMut() -> Result<(), String>) -> Result<(), String> {
        let Self { work: Work { load, groups }, libs, at, log_dir, number } = self;
        load.await_served(at, is_alive)?;
        load.verify(at)?;
        load.grow(at, 3)?;
        load.renew_producers();
        load.grow(at, 12)?;
        groups.take(libs, at, *number)?;
        load.await_compacted(log_dir)?;
        load.await_retention(at)?;
        load.verify(at)?;
        load::create(at, &format!("made-{number}"), 2, &[("retention.ms", "12345")])?;
        if let Some(before) = number.checked_sub(1) {
            load::delete(at, &format!("made-{before}"))?;
        }
        Ok(())
    }
}

/// Waits until the partitions of the topic that this turn has deleted are gone, or wait for their end: a deletion that is
/// cut short goes on with the next start, and leaves no checkpoint meanwhile.
fn await_deleted(log_dir: &Path, number: u64) -> Result<(), String> {
    let Some(before) = number.checked_sub(1) else { return Ok(()) };
    let deadline = Instant::now() + STOP_LIMIT;
    for partition in 0..2 {
        let dir = log_dir.join(format!("made-{before}-{partition}"));
        while dir.exists() {
            if Instant::now() > deadline {
                return Err(format!("{} is not deleted", dir.display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Nodes that nobody changes once they are there.
fn lasting(server: &ZooKeeper, root: &str, load: &Load) -> Result<Vec<String>, String> {
    let of_topics = load
        .topics()
        .flat_map(|topic| [format!("/brokers/topics/{topic}"), format!("/config/topics/{topic}")]);
    let others = ["/cluster/id", "/brokers/topics/__consumer_offsets", "/config/topics/__consumer_offsets"];
    let paths: Vec<String> = of_topics.chain(others.map(str::to_owned)).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    Ok(read(server, root, &paths)?.into_iter().map(|(data, _)| data).collect())
}

/// After a clean stop, Kafka's tools find nothing wrong with any file.
fn inspect(libs: &Path, load: &Load, log_dir: &Path) -> Result<(), String> {
    let compacted = [load.compacted(), vec!["__consumer_offsets"]].concat();
    directory::dump_log(libs, log_dir, &compacted)?;
    directory::checkpoints(libs, log_dir).map(drop)
}

fn our_turn(
    broker: &mut Broker,
    libs: &Path,
    work: &mut Work,
    number: u64,
    ends: Ends,
) -> Result<(), String> {
    let (at, log_dir) = (broker.bootstrap(), broker.log_dir());
    broker.launch();
    if number == 0 {
        work.load.create(&at)?;
    }
    Turn { work, libs, at: at.clone(), log_dir: &log_dir, number }.take(&mut || Ok(()))?;
    match ends {
        Ends::Stopped => {
            await_deleted(&log_dir, number)?;
            let status = broker.stop();
            if !status.success() {
                return Err(format!("the broker stopped with {status}"));
            }
            inspect(libs, &work.load, &log_dir)
        }
        Ends::Killed => {
            let _open = work.load.leave_in_doubt(&at)?;
            broker.kill();
            Ok(())
        }
    }
}

fn kafkas_turn(
    broker: &Broker,
    libs: &Path,
    connect: &str,
    work: &mut Work,
    number: u64,
    (before, ends): (Ends, Ends),
) -> Result<(), String> {
    let (at, log_dir) = (broker.bootstrap(), broker.log_dir());
    let mut kafka = Kafka::start(libs, broker, connect, &log_dir.display().to_string())?;
    let taken = Turn { work, libs, at: at.clone(), log_dir: &log_dir, number }.take(&mut || kafka.is_alive());
    taken.map_err(|why| format!("{why}\nKafka says:\n{}", kafka.log()))?;
    match ends {
        Ends::Stopped => {
            await_deleted(&log_dir, number)?;
            kafka.stop()?;
            kafka.complaint(before)?;
            inspect(libs, &work.load, &log_dir)
        }
        Ends::Killed => {
            let _open = work.load.leave_in_doubt(&at)?;
            kafka.kill();
            kafka.complaint(before)
        }
    }
}

/// Lets the next start compute every checksum; Kafka takes the lock file away when it stops.
fn doubt(broker: &Broker) {
    if broker.log_dir().join(".lock").exists() {
        broker.distrust();
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Ours, Kafka, ours, ...: nothing lost, nothing changed, no complaint. In the end what is in ZooKeeper goes into the
/// embedded store, as of a user who comes from Kafka, and everything is still there.
pub fn takes_turns(server: &ZooKeeper, libs: &Path) -> Result<String, String> {
    let (rounds, seed) =
        (from_environment("ODRADEK_KAFKA_ROUNDS", ROUNDS), from_environment("ODRADEK_SEED", 1));
    let (root, connect) = ("turns", on(server, "turns"));
    let mut work = Work { load: Load::new(seed), groups: GroupTurns::default() };
    let mut random = Random(seed);
    let settings: Vec<&str> = SETTINGS.into_iter().chain([connect.as_str()]).collect();
    let mut broker = Broker::prepared(2, &settings);
    let mut nodes = None;
    for round in 0..rounds {
        let either = |killed| if killed { Ends::Killed } else { Ends::Stopped };
        let (ours, kafkas) = (either(round % 2 == 1), either(round / 2 % 2 == 1));
        let about = |why| format!("round {round}, {ours:?} {kafkas:?}, ODRADEK_SEED={seed}: {why}");
        if round > 3 && random.below(2) == 0 {
            doubt(&broker);
        }
        let of_ours = our_turn(&mut broker, libs, &mut work, 2 * round, ours);
        of_ours.map_err(|why| about(format!("{why}\nour broker says:\n{}", broker.log())))?;
        await_gone(server, root, "/brokers/ids/7").map_err(about)?;
        kafkas_turn(&broker, libs, &connect, &mut work, 2 * round + 1, (ours, kafkas)).map_err(about)?;
        await_gone(server, root, "/brokers/ids/7").map_err(about)?;
        let found = lasting(server, root, &work.load).map_err(about)?;
        if *nodes.get_or_insert_with(|| found.clone()) != found {
            return Err(about(format!("the nodes were {nodes:?} and are {found:?}")));
        }
    }
    doubt(&broker);
    our_turn(&mut broker, libs, &mut work, 2 * rounds, Ends::Stopped)?;
    expect(&metadata("import", &broker, &[&connect])?, " topics carried")?;
    let settings: Vec<&str> = SETTINGS.into_iter().collect();
    let mut alone = broker.with(&settings);
    our_turn(&mut alone, libs, &mut work, 2 * rounds + 1, Ends::Stopped)?;
    let (records, offsets) = (work.load.records(), work.groups.offsets());
    Ok(format!("{rounds} rounds, {records} records, {offsets} committed offsets"))
}

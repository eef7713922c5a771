//! The brokers of a comparison as values: Odradek, and Apache Kafka with its ZooKeeper. Each has a directory of its own
//! on the same disk, is started pinned, is ready when it has created a topic, and is ended with its value. Knows what is
//! started and how, not what is asked of it.
#![allow(clippy::disallowed_methods, reason = "a harness writes configurations and asks the file system")]

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::child::{Interrupt, Process, Signal, Spec};
use super::host::{now, pause};
use crate::args::refuse;
use crate::client::Client;

/// The processor of every broker.
pub const BROKER_PROCESSOR: &str = "0";
/// The processor of the client, of ZooKeeper, and of the harness.
pub const CLIENT_PROCESSOR: &str = "1";

const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const READY_TOPIC: &str = "odradek-bench-ready";

/// What `kafka-run-class.sh` and `kafka-server-start.sh` of 3.9 give the Java machine, but for the heap and paths.
const KAFKA_JVM: &[&str] = &[
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    "-Dcom.sun.management.jmxremote",
    "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false",
    "-XX:ActiveProcessorCount=1",
];
/// Warnings only, to the standard output.
const LOG4J: &str = "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n\
    log4j.appender.out.layout=org.apache.log4j.PatternLayout\n\
    log4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n\n";
/// An hour: a session must outlive the time that a paused pair stands still.
const SESSION_MS: &str = "3600000";

/// What a broker promises when it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The page cache has it: Kafka's default.
    PageCache,
    /// The disk has it.
    Disk,
    /// Only the process has it.
    Memory,
}

/// Keys of `log.flush.` that write a checkpoint, and no record.
const FLUSHES_NO_RECORD: &[&str] =
    &["log.flush.offset.checkpoint.interval.ms", "log.flush.start.offset.checkpoint.interval.ms"];

/// What the settings of either side promise.
///
/// # Errors
/// Settings that promise something between, which no other side can be compared with, or two things at once.
pub fn durability(settings: &[(String, String)]) -> Result<Durability> {
    let mut found = None;
    for (key, value) in settings {
        let promised = match (key.as_str(), value.as_str()) {
            ("log.flush.interval.messages", "1") | ("storage.durability.mode", "strict") => Durability::Disk,
            ("storage.durability.mode", "relaxed") => Durability::Memory,
            ("storage.durability.mode", "kafka") => Durability::PageCache,
            (key, _) if FLUSHES_NO_RECORD.contains(&key) => continue,
            (key, value) if key.starts_with("log.flush.") || key.starts_with("flush.") => refuse!(
                "{key}={value} flushes now and then: compare with log.flush.interval.messages=1 or without"
            ),
            (key, value) if key.starts_with("storage.durability.") || key.starts_with("storage.sync.") => {
                refuse!("{key}={value} promises nothing that is known here")
            }
            _ => continue,
        };
        if found.is_some_and(|other| other != promised) {
            refuse!("{key}={value} contradicts another setting of the same side");
        }
        found = Some(promised);
    }
    Ok(found.unwrap_or(Durability::PageCache))
}

/// Which broker, and what is particular to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Ours.
    Odradek {
        /// Its binary.
        binary: PathBuf,
        /// The processors of its shards.
        cores: Vec<u32>,
    },
    /// Apache Kafka in ZooKeeper mode.
    Kafka {
        /// Directory of its jars.
        libs: PathBuf,
        /// Heap in GiB.
        heap_gib: u32,
    },
}

impl Kind {
    /// What tables call it.
    pub fn name(&self) -> String {
        match self {
            Self::Odradek { .. } => "odradek".to_owned(),
            Self::Kafka { heap_gib, .. } => format!("kafka-{heap_gib}g"),
        }
    }
}

/// A broker to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Which.
    pub kind: Kind,
    /// Settings beyond those that every comparison needs.
    pub settings: Vec<(String, String)>,
}

impl Plan {
    /// All settings, as they are in force.
    pub fn configuration(&self, port: u16, data: &Path) -> Vec<(String, String)> {
        let pair = |key: &str, value: String| (key.to_owned(), value);
        let mut all = vec![
            pair("broker.id", "0".to_owned()),
            pair("listeners", format!("PLAINTEXT://127.0.0.1:{port}")),
            pair("log.dirs", data.join("logs").display().to_string()),
            // A topic that was measured makes room for the next at once; by default its files stay a minute.
            pair("log.segment.delete.delay.ms", "1000".to_owned()),
        ];
        match &self.kind {
            Kind::Odradek { cores, .. } => {
                let list = cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                all.push(pair("cores", format!("[{list}]")));
                // Several brokers stand beside each other, and none may take a port that was not given to it.
                all.push(pair("admin.listener", "none".to_owned()));
            }
            Kind::Kafka { .. } => {
                all.push(pair("zookeeper.connect", format!("127.0.0.1:{}", zookeeper_port(port))));
                all.push(pair("zookeeper.session.timeout.ms", SESSION_MS.to_owned()));
                all.push(pair("offsets.topic.replication.factor", "1".to_owned()));
                all.push(pair("controlled.shutdown.enable", "false".to_owned()));
            }
        }
        for (key, value) in &self.settings {
            all.retain(|(known, _)| known != key);
            all.push((key.clone(), value.clone()));
        }
        all
    }

    /// The Java machine's flags; none for ours.
    pub fn jvm(&self) -> Vec<String> {
        match self.kind {
            Kind::Odradek { .. } => Vec::new(),
            Kind::Kafka { heap_gib, .. } => {
                let heap = [format!("-Xmx{heap_gib}G"), format!("-Xms{heap_gib}G")];
                heap.into_iter().chain(KAFKA_JVM.iter().map(|flag| (*flag).to_owned())).collect()
            }
        }
    }

    fn processors(&self) -> String {
        match &self.kind {
            Kind::Odradek { cores, .. } => cores.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            Kind::Kafka { .. } => BROKER_PROCESSOR.to_owned(),
        }
    }
}

fn zookeeper_port(broker: u16) -> u16 {
    broker.saturating_add(50)
}

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    plan: Plan,
    /// Before ZooKeeper, so that it is ended before it.
    process: Process,
    zookeeper: Option<Process>,
    port: u16,
    data: PathBuf,
}

impl Broker {
    /// Starts it on a directory, which may hold what it left there, and waits until it serves.
    ///
    /// # Errors
    /// Its port is taken, it ends by itself, or it is not ready in time.
    pub fn start(plan: Plan, port: u16, data: PathBuf, interrupt: &Interrupt) -> Result<Self> {
        std::fs::create_dir_all(&data)?;
        ensure_free(port)?;
        let zookeeper = match &plan.kind {
            Kind::Odradek { .. } => None,
            Kind::Kafka { libs, .. } => Some(start_zookeeper(libs, zookeeper_port(port), &data, interrupt)?),
        };
        let spec = Spec {
            name: plan.kind.name(),
            processors: plan.processors(),
            nice: 0,
            command: command(&plan, port, &data)?,
            log: data.join("broker.out"),
        };
        let process = Process::start(spec)?;
        let mut broker = Self { plan, process, zookeeper, port, data };
        broker.await_ready(interrupt)?;
        Ok(broker)
    }

    /// What tables call it.
    pub fn name(&self) -> String {
        self.plan.kind.name()
    }

    /// Where clients connect to.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The broker's process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where all that it writes is.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Where its partitions are.
    pub fn logs(&self) -> PathBuf {
        self.data.join("logs")
    }

    /// Stands still, so that another one has the processor to itself; ZooKeeper's clock of sessions stands still too.
    ///
    /// # Errors
    /// It has ended by itself.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::Stop)
    }

    /// Goes on, and waits until it answers again.
    ///
    /// # Errors
    /// It has ended by itself, or does not answer.
    pub fn resume(&mut self, interrupt: &Interrupt) -> Result<()> {
        self.signal(Signal::Continue)?;
        self.await_ready(interrupt)
    }

    /// Ends it cleanly.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn stop(self) -> Result<()> {
        self.process.stop(STOP_LIMIT)?;
        self.zookeeper.map_or(Ok(()), |zookeeper| zookeeper.stop(STOP_LIMIT))
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.signal(signal)?;
        self.zookeeper.as_mut().map_or(Ok(()), |zookeeper| zookeeper.signal(signal))
    }

    fn await_ready(&mut self, interrupt: &Interrupt) -> Result<()> {
        let until = now() + START_LIMIT;
        let name = self.name();
        loop {
            interrupt.check()?;
            if let Some(status) = self.process.ended()? {
                bail!("{name} ended by itself: {status}\n{}", self.process.log_end());
            }
            // Refused while it starts, and that is waited out.
            let ready = Client::connect(&self.bootstrap(), Duration::from_secs(10))
                .and_then(|mut client| client.create_topic(READY_TOPIC, 1));
            match ready {
                // Somebody else may have taken the port a moment before ours would.
                Ok(()) if self.process.ended()?.is_none() => return Ok(()),
                Ok(()) => {}
                Err(why) if now() > until => {
                    bail!("{name} is not ready after {START_LIMIT:?}: {why}\n{}", self.process.log_end())
                }
                Err(_) => pause(Duration::from_millis(5)),
            }
        }
    }
}

/// A broker that somebody else starts, several times if need be.
#[derive(Debug)]
pub struct Startable {
    /// The command line, with its pinning; it ends with whoever starts it.
    pub command: Vec<OsString>,
    /// What it needs meanwhile.
    pub zookeeper: Option<Process>,
}

/// Prepares a broker on an empty directory without starting it.
///
/// # Errors
/// Its port is taken, or ZooKeeper does not start.
pub fn startable(plan: &Plan, port: u16, data: &Path, interrupt: &Interrupt) -> Result<Startable> {
    std::fs::create_dir_all(data)?;
    ensure_free(port)?;
    let zookeeper = match &plan.kind {
        Kind::Odradek { .. } => None,
        Kind::Kafka { libs, .. } => Some(start_zookeeper(libs, zookeeper_port(port), data, interrupt)?),
    };
    let pinning = ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", &plan.processors()].map(OsString::from);
    let command = pinning.into_iter().chain(command(plan, port, data)?).collect();
    Ok(Startable { command, zookeeper })
}

/// Fails when somebody listens there: a comparison starts its own targets and touches no other.
fn ensure_free(port: u16) -> Result<()> {
    TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("port {port} is in use"))?;
    Ok(())
}

/// The command line of a broker; writes the files that it names.
fn command(plan: &Plan, port: u16, data: &Path) -> Result<Vec<OsString>> {
    let configuration = plan.configuration(port, data);
    match &plan.kind {
        Kind::Odradek { binary, .. } => {
            let mut command = vec![binary.into(), OsString::from("serve")];
            for (key, value) in configuration {
                command.extend([OsString::from("--override"), format!("{key}={value}").into()]);
            }
            Ok(command)
        }
        Kind::Kafka { libs, .. } => {
            let properties = data.join("server.properties");
            let text: String = configuration.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
            std::fs::write(&properties, text)?;
            let mut command = java(libs, data, plan.jvm())?;
            let gc = data.join("gc.log");
            command.insert(
                1,
                format!("-Xlog:gc*:file={}:time,tags:filecount=10,filesize=100M", gc.display()).into(),
            );
            command.extend(["kafka.Kafka".into(), properties.into()]);
            Ok(command)
        }
    }
}

/// A Java command line up to the class, with quiet logs.
fn java(libs: &Path, data: &Path, flags: Vec<String>) -> Result<Vec<OsString>> {
    let log4j = data.join("log4j.properties");
    std::fs::write(&log4j, LOG4J)?;
    let mut command = vec![OsString::from("java")];
    command.extend(flags.into_iter().map(OsString::from));
    command.push(format!("-Dkafka.logs.dir={}", data.display()).into());
    command.push(format!("-Dlog4j.configuration=file:{}", log4j.display()).into());
    command.extend(["-cp".into(), format!("{}/*", libs.display()).into()]);
    Ok(command)
}

/// Starts ZooKeeper beside the client, and waits until it says that it is well.
fn start_zookeeper(libs: &Path, port: u16, data: &Path, interrupt: &Interrupt) -> Result<Process> {
    ensure_free(port)?;
    let data = data.join("zookeeper");
    std::fs::create_dir_all(&data)?;
    let settings = data.join("zoo.cfg");
    let text = format!(
        "tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
         maxSessionTimeout={SESSION_MS}\nadmin.enableServer=false\n4lw.commands.whitelist=ruok\n",
        data.display()
    );
    std::fs::write(&settings, text)?;
    let mut command =
        java(libs, &data, vec!["-Xmx512M".to_owned(), "-XX:ActiveProcessorCount=1".to_owned()])?;
    command.extend(["org.apache.zookeeper.server.quorum.QuorumPeerMain".into(), settings.into()]);
    let log = data.join("zookeeper.out");
    let processors = CLIENT_PROCESSOR.to_owned();
    let mut process =
        Process::start(Spec { name: "zookeeper".to_owned(), processors, nice: 10, command, log })?;
    let until = now() + START_LIMIT;
    while !is_well(port) {
        interrupt.check()?;
        if let Some(status) = process.ended()? {
            bail!("ZooKeeper ended by itself: {status}\n{}", process.log_end());
        }
        ensure!(now() < until, "ZooKeeper is not ready after {START_LIMIT:?}:\n{}", process.log_end());
        pause(Duration::from_millis(20));
    }
    Ok(process)
}

/// Whether ZooKeeper answers the four-letter word.
fn is_well(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let limit = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"ruok")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        Ok(&answer == b"imok")
    };
    ask().unwrap_or(false)
}

/// The version in the name of Kafka's own jar, and that the jars for ZooKeeper mode are there.
///
/// # Errors
/// It is not there, or is one that knows no ZooKeeper.
pub fn kafka_version(libs: &Path) -> Result<String> {
    let hint = "run bench-harness/kafka/fetch";
    let entries = std::fs::read_dir(libs).with_context(|| format!("{}: {hint}", libs.display()))?;
    let names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let version = names
        .iter()
        .find_map(|name| name.strip_prefix("kafka_2.13-")?.strip_suffix(".jar"))
        .with_context(|| format!("{} holds no kafka_2.13 jar: {hint}", libs.display()))?;
    ensure!(version.starts_with("3."), "Kafka {version} knows no ZooKeeper mode: {hint}");
    ensure!(names.iter().any(|name| name.starts_with("zookeeper-3")), "no ZooKeeper jar: {hint}");
    Ok(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn equal_promises_are_recognised_under_their_different_names() {
        assert_eq!(durability(&settings(&[("num.io.threads", "1")])).unwrap(), Durability::PageCache);
        let kafka = durability(&settings(&[("log.flush.interval.messages", "1")])).unwrap();
        assert_eq!(kafka, durability(&settings(&[("storage.durability.mode", "strict")])).unwrap());
        let memory = durability(&settings(&[("storage.durability.mode", "relaxed")])).unwrap();
        assert_ne!(memory, Durability::PageCache);
        assert!(durability(&settings(&[("log.flush.interval.messages", "100")])).is_err());
        for key in ["interval.ms", "scheduler.interval.ms", "some.new.key"] {
            let wrong = settings(&[(&format!("log.flush.{key}"), "100")]);
            assert!(durability(&wrong).unwrap_err().is::<crate::args::Refused>(), "{key}");
        }
        let harmless = settings(&[("log.flush.offset.checkpoint.interval.ms", "5000")]);
        assert_eq!(durability(&harmless).unwrap(), Durability::PageCache);
        let both = [("storage.durability.mode", "strict"), ("storage.durability.mode", "kafka")];
        assert!(durability(&settings(&both)).is_err(), "which one counts is not ours to guess");
        assert!(durability(&settings(&[("storage.durability.mode", "x")])).is_err());
    }

    #[test]
    fn a_setting_replaces_the_one_that_a_comparison_would_give() {
        let kind = Kind::Odradek { binary: "x".into(), cores: vec![0, 1] };
        let plan = Plan { kind, settings: settings(&[("cores", "[1]"), ("spin.before.park.us", "20")]) };
        let found = plan.configuration(24_600, Path::new("/tmp/x"));
        assert_eq!(found.iter().filter(|(key, _)| key == "cores").count(), 1);
        assert!(found.contains(&("cores".to_owned(), "[1]".to_owned())));
        assert!(found.contains(&("log.dirs".to_owned(), "/tmp/x/logs".to_owned())));
    }

    #[test]
    fn kafka_gets_the_flags_of_its_own_scripts_and_one_processor() {
        let kind = Kind::Kafka { libs: "x".into(), heap_gib: 4 };
        assert_eq!(kind.name(), "kafka-4g");
        let flags = Plan { kind, settings: Vec::new() }.jvm();
        for flag in
            ["-Xmx4G", "-Xms4G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:ActiveProcessorCount=1"]
        {
            assert!(flags.iter().any(|found| found == flag), "{flag}");
        }
    }

    #[test]
    fn a_directory_without_kafka_says_how_to_get_it() {
        let directory = tempfile::tempdir().unwrap();
        let why = kafka_version(directory.path()).unwrap_err().to_string();
        assert!(why.contains("bench-harness/kafka/fetch"), "{why}");
        std::fs::write(directory.path().join("kafka_2.13-4.0.0.jar"), "").unwrap();
        assert!(kafka_version(directory.path()).unwrap_err().to_string().contains("no ZooKeeper mode"));
        std::fs::rename(
            directory.path().join("kafka_2.13-4.0.0.jar"),
            directory.path().join("kafka_2.13-3.9.1.jar"),
        )
        .unwrap();
        std::fs::write(directory.path().join("zookeeper-3.8.4.jar"), "").unwrap();
        assert_eq!(kafka_version(directory.path()).unwrap(), "3.9.1");
    }

    #[test]
    fn a_port_of_somebody_else_is_left_alone() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let why = ensure_free(taken.local_addr().unwrap().port()).unwrap_err().to_string();
        assert!(why.contains("in use"), "{why}");
    }
}

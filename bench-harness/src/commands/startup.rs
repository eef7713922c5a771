//! `startup`: starts a broker, and tells how long it takes until a record is acknowledged, how long many partitions take,
//! and how long it takes after `kill -9` until each of them acknowledges again, with all that it had acknowledged before.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::messages::{PartitionProduceData, ProduceRequest, ProduceResponse, Records, TopicProduceData};
use protocol::types::TimestampMs;
use serde_json::{Value, json};

use crate::args::{Startup, duration, refuse};
use crate::client::{Client, NotCreated, error_name, resolve};
use crate::clock::{Clock, saturated_nanos};
use crate::commands::kept::{Kept, fill};
use crate::commands::pause;
use crate::content;
use crate::interrupt::Interrupt;
use crate::measure::machine::{GIB, free_gib, no_room};
use crate::measure::process::Sample;
use crate::measure::rounded;
use crate::own::{Own, sweep};
use crate::producer::PRODUCE_VERSION;
use crate::report::Report;

/// Time between two attempts to reach a broker that starts, at least.
const ATTEMPT_PAUSE: Duration = Duration::from_micros(200);
/// The same as a share of the time that the start has taken.
const ATTEMPT_SHARE: u64 = 200;
/// How long a broker may take to stop before it is killed, if it may not take longer to start.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Unknown yet, no leader yet, led elsewhere as far as is known: they pass while a broker starts.
const NOT_YET: [i16; 3] = [3, 5, 6];
/// A Kafka that has just registered itself has not heard of itself yet: no broker for one replica.
const INVALID_REPLICATION_FACTOR: i16 = 38;
/// A topic is being created, and took longer than who asked would wait.
const REQUEST_TIMED_OUT: i16 = 7;
/// Topic with many partitions.
const MANY: &str = "odradek-bench-many";
/// What a start leaves behind when it is killed, by process id.
const HOME_PREFIX: &str = "odradek-bench-start-";

/// Runs it.
///
/// # Errors
/// One sentence, and what caused it.
pub fn run(arguments: &Startup) -> Result<Report> {
    arguments.check()?;
    let interrupt = Interrupt::install()?;
    prepare(arguments)?;
    let mut report = Report::new("startup", arguments, &Clock::start());
    let limit = duration("timeout", arguments.timeout)?;
    let mut runs = Vec::new();
    let (mut partitions, mut killed) = (Value::Null, Value::Null);
    for index in 0..arguments.runs {
        let place = Place::new(arguments, index)?;
        place.await_free(Duration::ZERO, &interrupt)?;
        let mut broker = Broker::start(&place, limit, &interrupt)?;
        runs.push(broker.first_acknowledged(&format!("odradek-bench-start-{}-{index}", std::process::id()))?);
        if index + 1 == arguments.runs && arguments.partitions > 0 {
            let (section, firsts) = broker.many(arguments.partitions)?;
            partitions = section;
            if arguments.kill {
                let (count, bytes) = (arguments.partitions, arguments.fill_bytes);
                let filled = fill(&place.bootstrap, MANY, count, bytes, limit)?;
                let kept = Kept { topic: MANY.to_owned(), firsts, filled };
                broker.kill()?;
                interrupt.pause(duration("down", arguments.down)?)?;
                let warmed = arguments.warm.as_deref().map(|directory| warm(directory, &interrupt));
                let warmed = warmed.transpose()?;
                place.await_free(limit, &interrupt)?;
                broker = Broker::start(&place, limit, &interrupt)?;
                let next = broker.every_partition(count)?;
                let took = broker.milliseconds();
                let verified = kept.prove(&place.bootstrap, &next, limit)?;
                killed = json!({"bytes": bytes, "every_partition_ms": took, "verified": verified, "warmed_bytes": warmed});
            }
        }
        // What answered may have been somebody else.
        broker.is_alive()?;
        broker.stop()?;
    }
    let mut sorted: Vec<f64> =
        runs.iter().filter_map(|run| run.get("first_acknowledged_ms")?.as_f64()).collect();
    sorted.sort_by(f64::total_cmp);
    let spread = json!({"min": sorted.first(), "median": sorted.get(sorted.len() / 2), "max": sorted.last()});
    let mut section = json!({"runs": runs, "first_acknowledged_ms": spread});
    if let Some(section) = section.as_object_mut() {
        let more = [("partitions", partitions), ("killed", killed)];
        section
            .extend(more.into_iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.to_owned(), v)));
    }
    report.add("startup", section);
    Ok(report)
}

/// Removes what starts that were killed left, and refuses to fill a disk that has no room.
fn prepare(arguments: &Startup) -> Result<()> {
    if arguments.broker.is_none() {
        return Ok(());
    }
    sweep(&arguments.dir, HOME_PREFIX)?;
    let gib = crate::measure::float(arguments.fill_bytes) / GIB;
    if arguments.fill_bytes > 0
        && let Some(why) = no_room(gib, free_gib(&arguments.dir)?)
    {
        refuse!("--fill-bytes: {why} ({})", arguments.dir.display());
    }
    Ok(())
}

/// Reads all segments below a directory, and returns their bytes. No index: those are mostly holes, which would take the page
/// cache of what is there.
#[allow(clippy::disallowed_methods, reason = "a harness reads the files of a broker that is gone")]
fn warm(directory: &Path, interrupt: &Interrupt) -> Result<u64> {
    let mut bytes = 0;
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        interrupt.check()?;
        for entry in std::fs::read_dir(&directory).with_context(|| format!("{}", directory.display()))? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "log") {
                let mut file = std::fs::File::open(&path).with_context(|| format!("{}", path.display()))?;
                bytes += std::io::copy(&mut file, &mut std::io::sink())?;
            }
        }
    }
    Ok(bytes)
}

/// Whether a topic was refused by a broker that is still starting.
fn knows_no_broker(error: &anyhow::Error) -> bool {
    error.downcast_ref::<NotCreated>().is_some_and(|refusal| refusal.code == INVALID_REPLICATION_FACTOR)
}

/// Whether a topic took longer to create than the broker waits for: Kafka on one processor, with many partitions.
fn is_under_way(error: &anyhow::Error) -> bool {
    error.downcast_ref::<NotCreated>().is_some_and(|refusal| refusal.code == REQUEST_TIMED_OUT)
}

/// Where a broker runs, and how it is started.
struct Place {
    bootstrap: String,
    words: Vec<String>,
    /// Made by us, goes with the place.
    _directory: Option<Own>,
}

impl Place {
    fn new(arguments: &Startup, index: usize) -> Result<Self> {
        let Some(path) = &arguments.broker else {
            let bootstrap = arguments.bootstrap.clone().context("--bootstrap is missing")?;
            return Ok(Self { bootstrap, words: arguments.command.clone(), _directory: None });
        };
        let bootstrap = match &arguments.bootstrap {
            Some(bootstrap) => bootstrap.clone(),
            None => TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string(),
        };
        let name = format!("{HOME_PREFIX}{}-{index}", std::process::id());
        let directory = Own::make(arguments.dir.join(name))?;
        let logs = directory.path().join("logs");
        let mut words = vec![path.display().to_string(), "serve".to_owned()];
        let own = [format!("listeners=PLAINTEXT://{bootstrap}"), format!("log.dirs={}", logs.display())];
        for text in own.iter().chain(&arguments.broker_override) {
            words.extend(["--override".to_owned(), text.clone()]);
        }
        Ok(Self { bootstrap, words, _directory: Some(directory) })
    }
}

impl Place {
    /// Waits until nobody listens where the broker will; a killed process may be there for a moment.
    fn await_free(&self, limit: Duration, interrupt: &Interrupt) -> Result<()> {
        let (address, clock) = (resolve(&self.bootstrap)?, Clock::start());
        while let Err(why) = TcpListener::bind(address) {
            interrupt.check()?;
            if clock.now() >= saturated_nanos(limit) {
                return Err(why).with_context(|| format!("{} is not free for the broker", self.bootstrap));
            }
            pause(ATTEMPT_PAUSE);
        }
        Ok(())
    }
}

/// A running broker; it ends with its owner.
struct Broker {
    child: Child,
    bootstrap: String,
    clock: Clock,
    limit: Duration,
    interrupt: Interrupt,
}

impl Broker {
    /// Starts the process. The clock shows 0 right before.
    fn start(place: &Place, limit: Duration, interrupt: &Interrupt) -> Result<Self> {
        let Some((program, arguments)) = place.words.split_first() else { bail!("no command to start") };
        let clock = Clock::start();
        let child = Command::new(Path::new(program))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{program} cannot be started"))?;
        let (bootstrap, interrupt) = (place.bootstrap.clone(), interrupt.clone());
        Ok(Self { child, bootstrap, clock, limit, interrupt })
    }

    fn milliseconds(&self) -> f64 {
        rounded(crate::measure::float(self.clock.now()) / 1e6, 2)
    }

    /// Fails when the process has ended.
    fn is_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the broker ended by itself ({status}); started alone it says why"),
            None => Ok(()),
        }
    }

    /// Says what to do after an attempt failed: again, or no more.
    fn again(&mut self, what: &str) -> Result<()> {
        self.is_alive()?;
        self.interrupt.check()?;
        if self.clock.now() > saturated_nanos(self.limit) {
            bail!("after {:?} the broker still did not {what}", self.limit);
        }
        // Who takes long is not asked all the time: its own processor is what it starts with.
        pause(ATTEMPT_PAUSE.max(Duration::from_nanos(self.clock.now() / ATTEMPT_SHARE)));
        Ok(())
    }

    fn connect(&mut self) -> Result<Client> {
        loop {
            match Client::connect(&self.bootstrap, self.limit) {
                Ok(client) => return Ok(client),
                Err(_) => self.again("listen")?,
            }
        }
    }

    /// Connects, creates a topic, and writes until a record is acknowledged.
    fn first_acknowledged(&mut self, topic: &str) -> Result<Value> {
        let mut ready_ms = None;
        let batch = content::batch(0, 0, 1, 100, TimestampMs::new(self.clock.unix_ms(self.clock.now())))?;
        let mut client = self.connect()?;
        loop {
            ready_ms = ready_ms.or(Some(self.milliseconds()));
            let answer = client.create_topic(topic, 1).and_then(|()| client.produce(topic, 0, 1, &batch));
            match answer.map(|answer| answer.map(|answer| answer.error_code)) {
                Ok(Some(0)) => break,
                Ok(Some(code)) if NOT_YET.contains(&code) => self.again("take a record")?,
                Ok(code) => bail!("the first record was answered with {}", error_name(code.unwrap_or(-1))),
                Err(error) if knows_no_broker(&error) => self.again("know itself")?,
                Err(error) => client = self.reconnect(error)?,
            }
        }
        let first_acknowledged_ms = self.milliseconds();
        let rss = Sample::take(self.child.id()).map(|sample| sample.rss_bytes);
        Ok(json!({"first_acknowledged_ms": first_acknowledged_ms, "ready_ms": ready_ms, "rss_bytes": rss}))
    }

    /// Connects anew after a connection broke: the listener of a killed process may outlive it for a moment, and take
    /// connections that nobody will serve.
    fn reconnect(&mut self, error: anyhow::Error) -> Result<Client> {
        if !error.root_cause().is::<std::io::Error>() {
            return Err(error);
        }
        self.again("keep a connection")?;
        self.connect()
    }

    /// Many partitions by one request, and a record in each: at which offset.
    fn many(&mut self, partitions: i32) -> Result<(Value, BTreeMap<i32, i64>)> {
        let mut client = self.connect()?;
        let from = self.milliseconds();
        match client.create_topic(MANY, partitions) {
            // It goes on with it, and every partition is waited for.
            Err(error) if is_under_way(&error) => {}
            made => made?,
        }
        let created = self.milliseconds();
        let firsts = self.every_partition(partitions)?;
        let written = self.milliseconds();
        let rss = Sample::take(self.child.id()).map(|sample| sample.rss_bytes);
        let section = json!({
            "partitions": partitions,
            "create_ms": rounded(created - from, 2),
            "first_records_ms": rounded(written - created, 2),
            "rss_bytes": rss,
        });
        Ok((section, firsts))
    }

    /// Writes a record to each partition until each has acknowledged one; returns their offsets.
    fn every_partition(&mut self, partitions: i32) -> Result<BTreeMap<i32, i64>> {
        let mut offsets = BTreeMap::new();
        let mut client = self.connect()?;
        let now = TimestampMs::new(self.clock.unix_ms(self.clock.now()));
        let mut left: Vec<(i32, Vec<u8>)> = (0..partitions)
            .map(|partition| Ok((partition, content::batch(partition, 0, 1, 100, now)?)))
            .collect::<Result<_>>()?;
        while !left.is_empty() {
            let data = left.iter().map(|(index, batch)| PartitionProduceData {
                index: *index,
                records: Some(Records::new(batch)),
            });
            let topic_data = vec![TopicProduceData { name: MANY.into(), partition_data: data.collect() }];
            let request = ProduceRequest { transactional_id: None, acks: 1, timeout_ms: 30_000, topic_data };
            let reply = match client.call(PRODUCE_VERSION, &request) {
                Ok(reply) => reply,
                Err(error) => {
                    client = self.reconnect(error)?;
                    continue;
                }
            };
            let response: ProduceResponse<'_> = reply.message()?;
            for part in response.responses.iter().flat_map(|topic| &topic.partition_responses) {
                match part.error_code {
                    0 => {
                        offsets.insert(part.index, part.base_offset);
                    }
                    code if NOT_YET.contains(&code) => {}
                    code => bail!("partition {} was answered with {}", part.index, error_name(code)),
                }
            }
            left.retain(|(partition, _)| !offsets.contains_key(partition));
            if !left.is_empty() {
                self.again("take a record for every partition")?;
            }
        }
        Ok(offsets)
    }

    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and SIGKILL for one that does not heed it.
    fn stop(mut self) -> Result<()> {
        use rustix::process::{Pid, Signal, kill_process};
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        // Kafka with many partitions takes longer than usual for both.
        let (from, limit) = (self.clock.now(), self.limit.max(STOP_LIMIT));
        while self.child.try_wait()?.is_none() {
            if self.clock.now() - from > saturated_nanos(limit) {
                bail!("the broker did not stop within {limit:?} of SIGTERM");
            }
            pause(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_where_somebody_listens_is_left_alone() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let bootstrap = taken.local_addr().expect("an address").to_string();
        let place = Place { bootstrap, words: Vec::new(), _directory: None };
        let why = place.await_free(Duration::ZERO, &Interrupt::default()).expect_err("taken").to_string();
        assert!(why.contains("is not free"), "{why}");
        drop(taken);
        place.await_free(Duration::from_secs(30), &Interrupt::default()).expect("free");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test makes files")]
    fn all_segments_below_a_directory_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = directory.path().join("t-0");
        std::fs::create_dir(&below).expect("a directory");
        std::fs::write(below.join("0.log"), [7; 1000]).expect("a file");
        std::fs::write(directory.path().join("1.log"), [7; 10]).expect("a file");
        std::fs::write(below.join("0.index"), [7; 500]).expect("a file");
        std::os::unix::fs::symlink("/", directory.path().join("elsewhere")).expect("a link");
        assert_eq!(warm(directory.path(), &Interrupt::default()).expect("read"), 1010);
        assert!(warm(&directory.path().join("nowhere"), &Interrupt::default()).is_err());
    }

    #[test]
    fn a_broker_that_has_ended_is_not_reported_on() {
        let words = vec!["true".to_owned()];
        let place = Place { bootstrap: "127.0.0.1:1".to_owned(), words, _directory: None };
        let mut broker =
            Broker::start(&place, Duration::from_secs(30), &Interrupt::default()).expect("started");
        broker.child.wait().expect("ended");
        assert!(broker.is_alive().expect_err("ended").to_string().contains("ended by itself"));
    }
}

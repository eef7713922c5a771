//! A directory that goes from Kafka to ours and back: who has it excludes the other (T-9), and a topic that was told on
//! Kafka to flush every batch is flushed for every batch by ours (T-19). `interop.rs` takes it in by path.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use bench_harness::client::{Client, End};
use bench_harness::content;
use protocol::types::TimestampMs;

use crate::kafka::{Ends, Kafka, SETTINGS};
use crate::on_zookeeper::{await_gone, on};
use crate::support::{Broker, free_port, metrics};
use crate::zookeeper::ZooKeeper;
use crate::{expect, load, tool};

/// Whatever is waited for comes long before, also on two slow cores.
const LIMIT: Duration = Duration::from_secs(120);

const ROOT: &str = "handover";

/// What must reach the disk before it is acknowledged, and what need not.
const TOPICS: [(&str, &[(&str, &str)]); 2] = [("strict", &[("flush.messages", "1")]), ("plain", &[])];

/// Batches that are sent one after the other.
const BATCHES: u64 = 20;

/// Sends batches, each when the one before is acknowledged.
fn send(at: &str, topic: &str, first: u64) -> Result<(), String> {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_err(|error| error.to_string())?.as_millis();
    let now = TimestampMs::new(i64::try_from(now).map_err(|error| error.to_string())?);
    let mut client = Client::connect(at, LIMIT).map_err(|error| error.to_string())?;
    for number in first..first + BATCHES {
        let batch = content::batch(0, number, 1, 500, now).map_err(|error| error.to_string())?;
        match load::produce(&mut client, topic, 0, &batch)? {
            (0, offset) if u64::try_from(offset) == Ok(number) => {}
            answer => return Err(format!("batch {number} of {topic} was answered with {answer:?}")),
        }
    }
    Ok(())
}

fn expect_end(at: &str, batches: u64) -> Result<(), String> {
    let mut client = Client::connect(at, LIMIT).map_err(|error| error.to_string())?;
    for (topic, _) in TOPICS {
        let found = client.offsets(topic, 1, End::End).map_err(|error| error.to_string())?;
        if found.as_deref() != Some(&[i64::try_from(batches).map_err(|error| error.to_string())?][..]) {
            return Err(format!("{topic} ends at {found:?}, not at {batches}"));
        }
    }
    Ok(())
}

/// Waits until Kafka makes a topic, or has it.
fn await_topics(kafka: &mut Kafka, at: &str) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    for (topic, configs) in TOPICS {
        while let Err(why) = load::create(at, topic, 1, configs) {
            kafka.is_alive()?;
            if Instant::now() > deadline {
                return Err(format!("Kafka does not serve: {why}\n{}", kafka.log()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// How many syncs of segments our broker has made.
fn syncs(admin: &str) -> Result<f64, String> {
    const NAME: &str = "kafka_log_logflushstats_logflushrateandtimems_count";
    let text = metrics(admin).map_err(|error| error.to_string())?;
    let counts = text.lines().filter(|line| line.starts_with(NAME));
    let counts: Vec<f64> =
        counts.filter_map(|line| line.rsplit_once(' ')).filter_map(|(_, count)| count.parse().ok()).collect();
    if counts.is_empty() { Err(format!("{NAME} is missing in:\n{text}")) } else { Ok(counts.iter().sum()) }
}

/// Ours does not start on a directory that Kafka has.
fn ours_is_excluded(broker: &Broker) -> Result<(), String> {
    let mut second = broker.command();
    // Else it is the port that is taken.
    second.args(["--override", &format!("listeners=PLAINTEXT://127.0.0.1:{}", free_port())]);
    let output = second.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(78) {
        return Err(format!("ours ended with {} where Kafka has the directory:\n{said}", output.status));
    }
    expect(&said, "is locked: another broker, ours or Kafka, uses this directory")
}

/// Nor Kafka on one that ours has.
fn kafka_is_excluded(libs: &Path, broker: &Broker, connect: &str, log_dir: &str) -> Result<(), String> {
    let mut kafka = Kafka::start(libs, broker, connect, log_dir)?;
    if kafka.ended(LIMIT)?.success() {
        return Err(format!("Kafka was not refused:\n{}", kafka.log()));
    }
    expect(&kafka.log(), "Failed to acquire lock on file .lock in")
}

pub fn lock_and_durability(server: &ZooKeeper, libs: &Path) -> Result<String, String> {
    let connect = on(server, ROOT);
    let admin = format!("127.0.0.1:{}", free_port());
    let listener = format!("admin.listener={admin}");
    let settings: Vec<&str> = SETTINGS.into_iter().chain([connect.as_str(), listener.as_str()]).collect();
    let mut broker = Broker::prepared(1, &settings);
    let (at, log_dir) = (broker.bootstrap(), broker.log_dir().display().to_string());

    let mut kafka = Kafka::start(libs, &broker, &connect, &log_dir)?;
    await_topics(&mut kafka, &at)?;
    ours_is_excluded(&broker)?;
    for (topic, _) in TOPICS {
        send(&at, topic, 0)?;
    }
    kafka.stop()?;
    // It has found nothing that could have been stopped cleanly.
    kafka.complaint(Ends::Killed)?;
    await_gone(server, ROOT, "/brokers/ids/7")?;

    broker.launch();
    for (topic, _) in TOPICS {
        broker.await_served(topic, 1);
    }
    kafka_is_excluded(libs, &broker, &connect, &log_dir)?;
    let mut made = Vec::new();
    for (topic, _) in TOPICS {
        let before = syncs(&admin)?;
        send(&at, topic, BATCHES)?;
        made.push(syncs(&admin)? - before);
    }
    // One for each batch where it was told so; elsewhere those of the background, if any.
    let least = f64::from(u32::try_from(BATCHES).unwrap_or(u32::MAX));
    if made.first().is_none_or(|strict| *strict < least) || made.last().is_none_or(|plain| *plain >= least) {
        return Err(format!("{BATCHES} batches of each topic were synced so many times: {made:?}"));
    }
    let status = broker.stop();
    if !status.success() {
        return Err(format!("the broker stopped with {status}\n{}", broker.log()));
    }
    await_gone(server, ROOT, "/brokers/ids/7")?;

    let mut kafka = Kafka::start(libs, &broker, &connect, &log_dir)?;
    await_topics(&mut kafka, &at)?;
    let topic =
        ["--bootstrap-server", &at, "--entity-type", "topics", "--entity-name", "strict", "--describe"];
    expect(&tool(libs, "kafka.admin.ConfigCommand", &topic)?, "flush.messages=1")?;
    for (topic, _) in TOPICS {
        send(&at, topic, 2 * BATCHES)?;
    }
    expect_end(&at, 3 * BATCHES)?;
    kafka.stop()?;
    kafka.complaint(Ends::Stopped)?;
    Ok(format!("{} syncs for {BATCHES} batches", made.first().copied().unwrap_or_default()))
}

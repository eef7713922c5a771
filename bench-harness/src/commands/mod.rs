//! The subcommands: from arguments to a report. What they share is here: the topic, the settings of a load, and the
//! sections of a report.

mod ceiling;
mod connections;
mod consume;
mod e2e;
mod groups;
mod idle;
pub mod kept;
mod produce;
mod startup;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::acknowledged::Acknowledged;
use crate::args::{Arguments, Command, Creation, DURATION_DEFAULT, Output, Rate, Target, duration};
use crate::client::{Client, End, resolve};
use crate::clock::{Clock, saturated_nanos, seconds};
use crate::consumer::Consumer;
use crate::engine::Limits;
use crate::measure::histogram::{self, Times};
use crate::measure::{float, machine, ratio, rounded};
use crate::plan::{Schedule, Spread};
use crate::prepared::{Prepared, Shape};
use crate::producer::{Load, Producer};
use crate::report::{self, Report};

/// Does what the command line says; the report is written where it was asked for.
///
/// # Errors
/// One sentence, and what caused it.
pub fn run(arguments: &Arguments) -> Result<Report> {
    let output = output_of(&arguments.command);
    if let Some(cpu) = output.cpu {
        machine::pin(cpu)?;
    }
    for path in output.json.iter().chain(histograms_of(&arguments.command)) {
        report::try_write(path)?;
    }
    let report = match &arguments.command {
        Command::Produce(arguments) => produce::run(arguments),
        Command::Consume(arguments) => consume::run(arguments),
        Command::E2e(arguments) => e2e::run(arguments),
        Command::Connections(arguments) => connections::run(arguments),
        Command::Groups(arguments) => groups::run(arguments),
        Command::Ceiling(arguments) => ceiling::run(arguments),
        Command::Startup(arguments) => startup::run(arguments),
        Command::Idle(arguments) => idle::run(arguments),
    }?;
    report.write(output)?;
    Ok(report)
}

fn output_of(command: &Command) -> &Output {
    match command {
        Command::Produce(arguments) => &arguments.output,
        Command::Consume(arguments) => &arguments.output,
        Command::E2e(arguments) => &arguments.output,
        Command::Connections(arguments) => &arguments.output,
        Command::Groups(arguments) => &arguments.output,
        Command::Ceiling(arguments) => &arguments.output,
        Command::Startup(arguments) => &arguments.output,
        Command::Idle(arguments) => &arguments.output,
    }
}

/// Where the histograms of a run go, if it has some and they were asked for.
fn histograms_of(command: &Command) -> Option<&PathBuf> {
    match command {
        Command::Produce(arguments) => arguments.target.hdr.as_ref(),
        Command::Consume(arguments) => arguments.target.hdr.as_ref(),
        Command::E2e(arguments) => arguments.target.hdr.as_ref(),
        Command::Connections(arguments) => arguments.target.hdr.as_ref(),
        Command::Groups(arguments) => arguments.target.hdr.as_ref(),
        Command::Ceiling(_) | Command::Startup(_) | Command::Idle(_) => None,
    }
}

/// A topic that can be written to and read from.
#[derive(Debug)]
pub struct Topic {
    /// Its broker.
    pub address: SocketAddr,
    /// The first offset of each partition.
    pub starts: Vec<i64>,
    /// The offset behind the last record of each partition.
    pub ends: Vec<i64>,
}

/// How long to wait before a broker is asked again that is not ready.
const READY_PAUSE: Duration = Duration::from_millis(10);

/// Creates the topic if that is wanted, and waits until each of its partitions can be used.
///
/// # Errors
/// No connection, an error of the broker, a topic of another size.
pub fn topic(target: &Target, creation: Option<&Creation>) -> Result<Topic> {
    let limit = duration("timeout", target.timeout)?;
    let mut client = Client::connect(&target.bootstrap, limit.max(Duration::from_millis(1)))?;
    if let Some(creation) = creation {
        client.create_topic_with(&target.topic, creation.partitions, &creation.configs()?)?;
    }
    let clock = Clock::start();
    let name = &target.topic;
    while clock.now() <= saturated_nanos(limit) {
        if let Some(count) = client.partitions(name)? {
            if let Some(creation) = creation.filter(|creation| creation.partitions != count) {
                bail!("topic {name} has {count} partitions, not {} (--partitions)", creation.partitions);
            }
            let starts = client.offsets(name, count, End::Start)?;
            if let Some((starts, ends)) = starts.zip(client.offsets(name, count, End::End)?) {
                return Ok(Topic { address: resolve(&target.bootstrap)?, starts, ends });
            }
        } else if creation.is_none() {
            bail!("the broker at {} has no topic {name}", target.bootstrap);
        }
        pause(READY_PAUSE);
    }
    bail!("topic {name} has partitions that this broker does not lead")
}

/// Sleeps; for the parts of a run that wait for a process, not for a schedule.
#[allow(clippy::disallowed_methods, reason = "a command line tool waits for a process")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// A number that names a run in its records.
pub fn new_run(clock: &Clock) -> u32 {
    let seed = clock.unix_ms(clock.now()).cast_unsigned() ^ (u64::from(std::process::id()) << 32);
    let [a, b, c, d, ..] = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// What a producer does, from the arguments of a load.
///
/// # Errors
/// Records that fit no batch of Kafka's format.
pub fn load(arguments: &crate::args::Load, topic: &str, partitions: i32, clock: &Clock) -> Result<Load> {
    let partitions = u64::from(partitions.unsigned_abs());
    // With fewer keys than partitions some partitions get nothing; with more, each partition has as many.
    let (spread, partitions, keys) = match arguments.keys {
        0 => (Spread::Sticky, partitions, 0),
        keys => (Spread::ByKey, partitions.min(keys), keys - keys % partitions.min(keys)),
    };
    let shape = Shape { record_bytes: usize::try_from(arguments.record_bytes)?, keys };
    let batch_records_max = batch_records(shape, arguments.batch_bytes)?;
    let run_ns = saturated_nanos(duration("duration", arguments.duration.unwrap_or(DURATION_DEFAULT))?);
    let records = |rate: u64| match arguments.records {
        Some(records) => records,
        None => {
            let records = u128::from(rate) * u128::from(run_ns) / 1_000_000_000;
            u64::try_from(records).unwrap_or(u64::MAX)
        }
    };
    let linger_ns = saturated_nanos(Duration::try_from_secs_f64(arguments.linger_ms / 1e3)?);
    let schedule = match arguments.rate {
        Rate::Max => None,
        Rate::PerSecond(rate) => {
            Some(Schedule { rate, records: records(rate), partitions, batch_records_max, linger_ns, spread })
        }
    };
    let until = if arguments.records.is_some() { u64::MAX } else { run_ns };
    Ok(Load {
        topic: topic.to_owned(),
        partitions,
        connections: arguments.connections,
        in_flight: arguments.in_flight,
        batches_per_request: arguments.batches_per_request,
        acks: arguments.acks,
        shape,
        batch_records: batch_records_max,
        schedule,
        records_max: arguments.records.unwrap_or(u64::MAX),
        until,
        run: new_run(clock),
    })
}

/// How many records fit into a batch; at least one.
fn batch_records(shape: Shape, batch_bytes: u64) -> Result<u64> {
    let bytes_of =
        |count| -> Result<u64> { Ok(u64::try_from(Prepared::new(shape, count, 0)?.bytes().len())?) };
    let (one, two) = (bytes_of(1)?, bytes_of(2)?);
    let mut count = 1 + batch_bytes.saturating_sub(one) / (two - one).max(1);
    // Offset deltas take more bytes further on.
    while count > 1 && bytes_of(count)? > batch_bytes {
        count -= (count / 200).max(1);
    }
    Ok(count.max(1))
}

/// When a load begins to be measured, and when it is given up.
///
/// # Errors
/// Numbers that are no durations.
pub fn limits(target: &Target, warmup: f64, spin_us: u64) -> Result<Limits> {
    Ok(Limits {
        warmup_ns: saturated_nanos(duration("warmup", warmup)?),
        until_ns: None,
        records: None,
        spin_ns: spin_us.saturating_mul(1000),
        silence_ns: saturated_nanos(duration("timeout", target.timeout)?),
    })
}

/// Records, bytes and speed of a part of a run.
fn amounts(records: u64, bytes: u64, window_seconds: f64) -> Value {
    json!({
        "records": records,
        "bytes": bytes,
        "seconds": rounded(window_seconds, 3),
        "records_per_second": rounded(ratio(float(records), window_seconds), 1),
        "megabytes_per_second": rounded(ratio(float(bytes) / 1e6, window_seconds), 2),
    })
}

fn extend(section: &mut Value, more: Value) {
    if let (Some(section), Value::Object(more)) = (section.as_object_mut(), more) {
        section.extend(more);
    }
}

/// Records and bytes that a producer's measured part had acknowledged.
pub fn produced(producer: &Producer) -> (u64, u64) {
    let records = producer.totals.records;
    (records, records.saturating_mul(producer.record_bytes()))
}

/// Section `produce`.
pub fn produce_section(producer: &Producer, window_seconds: f64) -> Value {
    let (records, bytes) = produced(producer);
    let Acknowledged { run, ordered, .. } = producer.acknowledged;
    let mut section = amounts(records, bytes, window_seconds);
    extend(
        &mut section,
        json!({
            "run": run,
            "ordered": ordered,
            "requests": producer.totals.requests,
            "latency_us": producer.latency.to_json(),
            "lateness_us": producer.lateness.to_json(),
            "acknowledged": producer.acknowledged.to_json(),
        }),
    );
    section
}

/// Section `consume`.
pub fn consume_section(consumer: &Consumer, window_seconds: f64) -> Value {
    let mut section = amounts(consumer.totals.records, consumer.totals.bytes, window_seconds);
    extend(&mut section, json!({"requests": consumer.totals.requests, "fetch_us": consumer.fetch.to_json()}));
    section
}

/// Writes the histograms where that was asked for.
///
/// # Errors
/// A file that cannot be written.
pub fn write_histograms(target: &Target, clock: &Clock, tagged: &[(&str, &Times)]) -> Result<()> {
    let Some(path) = &target.hdr else { return Ok(()) };
    let start = float(clock.unix_ms(0).cast_unsigned()) / 1e3;
    report::write(path, &histogram::log(start, seconds(clock.now()), tagged)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_as_many_records_as_fit() {
        let shape = |record_bytes| Shape { record_bytes, keys: 0 };
        for (record_bytes, batch_bytes) in
            [(1024, 65536), (100, 1000), (100, 65536), (16, 300_000), (1024, 100)]
        {
            let count = batch_records(shape(record_bytes), batch_bytes).expect("count");
            let bytes =
                |count| Prepared::new(shape(record_bytes), count, 0).expect("batch").bytes().len() as u64;
            assert!(count == 1 || bytes(count) <= batch_bytes, "{record_bytes} in {batch_bytes}: {count}");
            let wasted = batch_bytes.saturating_sub(bytes(count));
            assert!(
                wasted < batch_bytes / 50 + bytes(1),
                "{record_bytes} in {batch_bytes}: {count} leave {wasted}"
            );
        }
    }

    #[test]
    fn runs_have_different_names() {
        let clock = Clock::start();
        let first = new_run(&clock);
        pause(Duration::from_millis(2));
        assert_ne!(first, new_run(&clock));
    }
}

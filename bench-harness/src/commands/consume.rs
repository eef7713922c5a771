//! `consume`: reads and verifies records; with `--verify`, proves that a run is there exactly once.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::acknowledged::Acknowledged;
use crate::args::{Consume, Fetch, From, Refused, duration, refuse};
use crate::clock::{Clock, saturated_nanos};
use crate::commands::{Topic, consume_section, extend, limits, topic, write_histograms};
use crate::consumer::{Consumer, Reading};
use crate::engine::Engine;
use crate::measure;
use crate::measure::window::Watch;
use crate::report::Report;
use crate::verify::Tally;

/// Runs it.
///
/// # Errors
/// One sentence, and what caused it; a record that is lost, repeated, reordered or changed is one.
pub fn run(arguments: &Consume) -> Result<Report> {
    let Consume { target, sampled, .. } = arguments;
    arguments.check()?;
    let mut report = Report::new("consume", arguments, &Clock::start());
    let expected = arguments.verify.as_deref().map(acknowledged_of).transpose()?;
    let mut limits = limits(target, arguments.warmup, 0)?;
    limits.records = arguments.records;
    let run_ns = arguments.duration.map(|seconds| duration("duration", seconds)).transpose()?;
    limits.until_ns = run_ns.map(saturated_nanos);
    let watch = Watch::new(sampled.broker_pid, !sampled.no_perf)?.among(sampled.family);
    let topic = topic(target, None)?;
    let partitions = assignment(arguments, &topic, expected.as_ref())?;
    let reading = reading(&arguments.fetch, &target.topic, arguments.connections, partitions)?;
    let reading = Reading { any_content: arguments.any_content, ..reading };
    let clock = Clock::start();
    let mut engine = Engine::new(clock, limits, watch)?;
    let limit = duration("timeout", target.timeout)?;
    engine.consumer = Some(Consumer::new(reading, clock, topic.address, limit)?);
    engine.tally = expected.as_ref().map(|expected| Tally::new(expected.run, expected.ordered));
    let (engine, window) = engine.run()?;
    let Some(consumer) = &engine.consumer else { return Ok(report) };
    let mut section = consume_section(consumer, window.seconds);
    if let Some((tally, expected)) = engine.tally.as_ref().zip(expected.as_ref()) {
        extend(&mut section, serde_json::json!({"verified": tally.finish(expected)?.to_json()}));
    }
    report.add("consume", section);
    report.add_window(&window, consumer.totals.bytes, consumer.totals.records, sampled.other_cpu_max);
    if expected.is_some_and(|expected| expected.records() == 0) {
        report.void_because("the run had no record acknowledged: nothing is verified");
    }
    write_histograms(target, &clock, &[("fetch", &consumer.fetch)])?;
    Ok(report)
}

/// How a consumer reads, from its arguments.
///
/// # Errors
/// Numbers that no fetch can carry.
pub fn reading(
    arguments: &Fetch,
    topic: &str,
    connections: usize,
    partitions: Vec<(i32, i64, Option<i64>)>,
) -> Result<Reading> {
    let number = |name: &str, bytes: u64| {
        i32::try_from(bytes).map_err(|_| Refused(format!("--{name} is at most {}", i32::MAX)))
    };
    if !(1..=10_000).contains(&connections) {
        refuse!("the number of connections is from 1 to 10000");
    }
    if arguments.fetch_wait_ms < 0 {
        refuse!("--fetch-wait-ms is not negative");
    }
    Ok(Reading {
        topic: topic.to_owned(),
        connections: connections.min(partitions.len()).max(1),
        partitions,
        bytes_max: number("fetch-bytes", arguments.fetch_bytes)?,
        partition_bytes_max: number("fetch-partition-bytes", arguments.fetch_partition_bytes)?,
        bytes_min: number("fetch-min-bytes", arguments.fetch_min_bytes)?,
        wait_ms_max: arguments.fetch_wait_ms,
        any_content: false,
    })
}

/// What to read of each partition.
fn assignment(
    arguments: &Consume,
    topic: &Topic,
    expected: Option<&Acknowledged>,
) -> Result<Vec<(i32, i64, Option<i64>)>> {
    let tails = arguments.duration.is_some() || arguments.records.is_some();
    let mut partitions = Vec::new();
    for ((start, end), partition) in topic.starts.iter().zip(&topic.ends).zip(0..) {
        let from = match (expected.map(|expected| expected.partitions.get(&partition)), arguments.from) {
            // A record may be there twice anywhere.
            (Some(Some(_)), _) => *start,
            (Some(None), _) => continue,
            (None, From::Beginning) => *start,
            (None, From::End) => *end,
        };
        partitions.push((partition, from, (!tails).then_some(*end)));
    }
    let missing = expected.iter().flat_map(|expected| expected.partitions.keys());
    let count = i32::try_from(topic.starts.len())?;
    if let Some(partition) = missing.filter(|partition| !(0..count).contains(*partition)).min() {
        bail!("the run wrote to partition {partition}, and the topic has {count}");
    }
    Ok(partitions)
}

/// The acknowledged records of a report.
///
/// # Errors
/// A file that cannot be read or is no report of a run that produced.
fn acknowledged_of(path: &Path) -> Result<Acknowledged> {
    let name = path.display();
    let text = path.to_str().and_then(measure::read).with_context(|| format!("{name} cannot be read"))?;
    let report: Value = serde_json::from_str(&text).with_context(|| format!("{name} is no JSON"))?;
    Acknowledged::from_json(&report).with_context(|| format!("{name} is no report of a run that produced"))
}

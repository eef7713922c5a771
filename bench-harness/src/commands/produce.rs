//! `produce`: sends records, and tells how long each took to be acknowledged.

use anyhow::Result;

use crate::args::{Produce, duration};
use crate::clock::Clock;
use crate::commands::{limits, load, produce_section, produced, topic, write_histograms};
use crate::engine::Engine;
use crate::measure::window::Watch;
use crate::producer::Producer;
use crate::report::Report;

/// Runs it.
///
/// # Errors
/// One sentence, and what caused it.
pub fn run(arguments: &Produce) -> Result<Report> {
    let Produce { target, creation, sampled, .. } = arguments;
    creation.check()?;
    arguments.load.check()?;
    let mut report = Report::new("produce", arguments, &Clock::start());
    let limits = limits(target, arguments.load.warmup, arguments.load.spin_us)?;
    let watch = Watch::new(sampled.broker_pid, !sampled.no_perf)?.among(sampled.family);
    let topic = topic(target, Some(creation))?;
    let clock = Clock::start();
    let load = load(&arguments.load, &target.topic, creation.partitions, &clock)?;
    let mut engine = Engine::new(clock, limits, watch)?;
    engine.producer = Some(Producer::new(load, clock, topic.address, duration("timeout", target.timeout)?)?);
    let (engine, window) = engine.run()?;
    let Some(producer) = &engine.producer else { return Ok(report) };
    let (records, bytes) = produced(producer);
    report.add("produce", produce_section(producer, window.seconds));
    report.add_window(&window, bytes, records, sampled.other_cpu_max);
    report.judge_lateness(&producer.lateness, &producer.latency);
    write_histograms(target, &clock, &[("produce", &producer.latency), ("lateness", &producer.lateness)])?;
    Ok(report)
}

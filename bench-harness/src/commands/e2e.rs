//! `e2e`: sends and reads in one thread, so that one clock tells how long a record takes from its scheduled time until it
//! was read; every acknowledged record is verified on the way.

use anyhow::Result;
use serde_json::json;

use crate::args::{EndToEnd, duration, refuse};
use crate::clock::Clock;
use crate::commands::consume::reading;
use crate::commands::{
    consume_section, extend, limits, load, produce_section, produced, topic, write_histograms,
};
use crate::consumer::Consumer;
use crate::engine::Engine;
use crate::measure::window::Watch;
use crate::producer::Producer;
use crate::report::Report;
use crate::verify::Tally;

/// Runs it.
///
/// # Errors
/// One sentence, and what caused it; a record that is lost, repeated, reordered or changed is one.
pub fn run(arguments: &EndToEnd) -> Result<Report> {
    let EndToEnd { target, creation, sampled, .. } = arguments;
    creation.check()?;
    arguments.load.check()?;
    if arguments.load.acks == 0 {
        refuse!("e2e verifies what was acknowledged: --acks is 1 or -1");
    }
    let mut report = Report::new("e2e", arguments, &Clock::start());
    let limits = limits(target, arguments.load.warmup, arguments.load.spin_us)?;
    let watch = Watch::new(sampled.broker_pid, !sampled.no_perf)?.among(sampled.family);
    let topic = topic(target, Some(creation))?;
    let limit = duration("timeout", target.timeout)?;
    let partitions = topic.ends.iter().zip(0..).map(|(end, partition)| (partition, *end, None)).collect();
    let reading = reading(&arguments.fetch, &target.topic, arguments.consumers, partitions)?;
    let clock = Clock::start();
    let load = load(&arguments.load, &target.topic, creation.partitions, &clock)?;
    let mut engine = Engine::new(clock, limits, watch)?;
    let mut producer = Producer::new(load, clock, topic.address, limit)?;
    producer.remember();
    engine.tally = Some(Tally::new(producer.acknowledged.run, producer.acknowledged.ordered));
    engine.producer = Some(producer);
    engine.consumer = Some(Consumer::new(reading, clock, topic.address, limit)?);
    let (engine, window) = engine.run()?;
    let (Some(producer), Some(consumer), Some(tally)) = (&engine.producer, &engine.consumer, &engine.tally)
    else {
        return Ok(report);
    };
    let verified = tally.finish(&producer.acknowledged)?;
    let (records, bytes) = produced(producer);
    report.add("produce", produce_section(producer, window.seconds));
    let mut section = consume_section(consumer, window.seconds);
    extend(&mut section, json!({"verified": verified.to_json()}));
    report.add("consume", section);
    report.add("end_to_end_us", engine.end_to_end.to_json());
    report.add_window(&window, bytes, records, sampled.other_cpu_max);
    report.judge_lateness(&producer.lateness, &engine.end_to_end);
    let tagged = [
        ("produce", &producer.latency),
        ("fetch", &consumer.fetch),
        ("e2e", &engine.end_to_end),
        ("lateness", &producer.lateness),
    ];
    write_histograms(target, &clock, &tagged)?;
    Ok(report)
}

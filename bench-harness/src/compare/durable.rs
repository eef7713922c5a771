//! Scenario `durability`: requests that are acknowledged when the disk has them, on both sides; and the latency of ours in
//! that mode against Kafka's without it.

use anyhow::Result;

use super::contrast::{Known, RECORDS, Sides, against_kafka};
use super::figures::{Figures, Limit};
use super::job::needed;
use super::promise::Promises;
use super::report::Contrast;
use super::scenarios::{HALF, LARGE, Scene, Shape, on_fresh_topic, on_schedule, target, window};
use super::servers::Broker;
use super::stage::{Found, Home};

/// Partitions, and what figures call them.
const COUNTS: [(u32, &str); 3] = [(1, "1 partition"), (16, "16 partitions"), (1000, "1,000 partitions")];
/// Producers: with five requests in flight each there is always one that waits for the disk.
const CONNECTIONS: u32 = 64;
/// Seconds at the beginning of each run that are not measured: a thousand partitions begin meanwhile.
const LEAD_IN: f64 = 3.0;
/// How many times Kafka's requests ours has to acknowledge.
const TIMES: f64 = 5.0;

/// Plays it; what it found before it failed stays in `found`.
///
/// # Errors
/// A broker or a run fails.
pub fn play(scene: &Scene<'_>, found: &mut Vec<Contrast>) -> Result<()> {
    found.push(requests(scene)?);
    found.push(latency(scene)?);
    Ok(())
}

fn requests(scene: &Scene<'_>) -> Result<Contrast> {
    let figure = |condition: &str| format!("requests_per_s@{condition}");
    let targets = COUNTS.map(|(_, condition)| target(&figure(condition), Limit::RatioAtLeast(TIMES)));
    let sides = Sides {
        what: format!(
            "One record of 1 KiB in a request, {CONNECTIONS} connections with five requests in flight each, acks=1, as \
             fast as it goes over 1, 16 and 1,000 partitions; read back afterwards. Kafka is warmed without syncs."
        ),
        targets: if scene.compare.without_kafka { Vec::new() } else { targets.to_vec() },
        primary: "requests_per_s@16 partitions",
        kafka_highest: scene.kafka_highest.get(),
        counts: RECORDS,
    };
    let mut warm = |home: &Home, broker: &Broker| window(home, broker, &LARGE);
    let mut act = |home: &Home, broker: &Broker, known: Known| -> Result<Found> {
        let seconds = LEAD_IN + f64::from(home.common.seconds());
        let mut found = Found::default();
        for (partitions, condition) in COUNTS {
            // A batch of one byte holds one record.
            let shape =
                Shape { command: "produce", partitions, batch_bytes: 1, connections: CONNECTIONS, ..LARGE };
            let report = on_fresh_topic(home, broker, |topic| {
                let job = shape.job(broker, topic, &["--no-perf"]).with("--warmup", LEAD_IN).lasting(seconds);
                known.promises.ask(job, broker).run_and_verify(home, broker, topic)
            })?;
            let speed = needed(&report, "/produce/requests")? / needed(&report, "/produce/seconds")?;
            found.take(report, Figures::from([(figure(condition), speed)]));
        }
        Ok(found)
    };
    let contrast =
        against_kafka(scene.home, scene.compare, (sides, Promises::Disk), Some(&mut warm), &mut act)?;
    let highest = contrast.kafka_highest().into_iter().chain(scene.kafka_highest.get());
    scene.kafka_highest.set(highest.max_by(f64::total_cmp));
    Ok(contrast)
}

fn latency(scene: &Scene<'_>) -> Result<Contrast> {
    let half = |figure: &str| target(&format!("{figure}@{HALF}"), Limit::RatioAtMost(1.0));
    let sides = Sides {
        what: "End to end, from the scheduled time until the record was read and verified: 1 KiB records over 16 \
               partitions, acks=1, linger 1 ms, 4 connections to write and 4 to read, at fixed rates and at half of \
               the most that any Kafka took in a closed loop without syncs. Processors are kept from halting."
            .to_owned(),
        targets: if scene.compare.without_kafka { Vec::new() } else { vec![half("p99_us"), half("p999_us")] },
        primary: if scene.compare.without_kafka { "p99_us" } else { "p99_us@half of Kafka's highest" },
        kafka_highest: scene.kafka_highest.get(),
        counts: RECORDS,
    };
    on_schedule(scene, (sides, Promises::OursDisk))
}

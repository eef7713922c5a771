//! `connections`: what many connections cost that do nothing, and what those beside them feel.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use serde_json::{Value, json};

use crate::args::{Connections, duration, refuse};
use crate::client::{Client, error_name};
use crate::clock::{Clock, saturated_nanos, seconds};
use crate::commands::{limits, new_run, pause, produce_section, produced, topic, write_histograms};
use crate::engine::Engine;
use crate::measure::histogram::Times;
use crate::measure::process::Sample;
use crate::measure::rounded;
use crate::measure::window::{Watch, Window};
use crate::plan::{Schedule, Spread};
use crate::prepared::Shape;
use crate::producer::{Load, Producer};
use crate::report::Report;

/// Connections that are opened at the same time: fewer than the backlog of 50 that Kafka listens with, or the kernel makes
/// some of them try again after a second.
const GROUP: usize = 32;
/// Descriptors beside those of the connections.
const DESCRIPTORS_SPARE: u64 = 256;
/// Version of ApiVersions that has no body.
const API_VERSIONS_VERSION: i16 = 0;

/// Runs it.
///
/// # Errors
/// One sentence, and what caused it.
pub fn run(arguments: &Connections) -> Result<Report> {
    let Connections { target, creation, sampled, .. } = arguments;
    creation.check()?;
    check(arguments)?;
    let mut report = Report::new("connections", arguments, &Clock::start());
    allow_descriptors(arguments.idle.saturating_add(arguments.active))?;
    let watch = Watch::new(sampled.broker_pid, !sampled.no_perf)?.among(sampled.family);
    let rss = || sampled.broker_pid.and_then(Sample::take).map(|sample| sample.rss_bytes);
    let topic = topic(target, Some(creation))?;
    let limit = duration("timeout", target.timeout)?;
    let rss_before = rss();
    let clock = Clock::start();
    let mut connect = Times::new();
    let mut idle = open(arguments.idle, &target.bootstrap, limit, &clock, &mut connect)?;
    let accept_seconds = seconds(clock.now());
    let rss_idle = rss();
    let window = if arguments.active == 0 {
        watch_idle(watch, &clock, duration("duration", arguments.duration)?)
    } else {
        let mut engine = Engine::new(clock, limits(target, arguments.warmup, arguments.spin_us)?, watch)?;
        engine.producer = Some(Producer::new(load(arguments, &clock)?, clock, topic.address, limit)?);
        let (engine, window) = engine.run()?;
        if let Some(producer) = &engine.producer {
            let (records, bytes) = produced(producer);
            report.add("produce", produce_section(producer, window.seconds));
            report.add_window(&window, bytes, records, sampled.other_cpu_max);
            report.judge_lateness(&producer.lateness, &producer.latency);
            let tagged = [("produce", &producer.latency), ("lateness", &producer.lateness)];
            write_histograms(target, &clock, &tagged)?;
        }
        window
    };
    if arguments.active == 0 {
        report.add_window(&window, 0, 0, sampled.other_cpu_max);
    }
    let per_connection = |before: u64, after: u64| {
        after.saturating_sub(before).checked_div(u64::try_from(arguments.idle).unwrap_or(u64::MAX))
    };
    let section: Value = json!({
        "idle": arguments.idle,
        "active": arguments.active,
        "accept_seconds": rounded(accept_seconds, 3),
        "connect_us": connect.to_json(),
        "rss_before_bytes": rss_before,
        "rss_bytes": rss_idle,
        "rss_bytes_per_connection": rss_before.zip(rss_idle).and_then(|(before, after)| per_connection(before, after)),
    });
    report.add("connections", section);
    greet(&mut idle).context("an idle connection did not survive the run")?;
    Ok(report)
}

fn check(arguments: &Connections) -> Result<()> {
    if arguments.idle > 200_000 || arguments.active > 100_000 {
        refuse!("--idle is at most 200000, --active at most 100000");
    }
    if arguments.idle == 0 && arguments.active == 0 {
        refuse!("--idle or --active is at least 1");
    }
    if !(1..=1_000_000).contains(&arguments.active_rate) || !(1..=1000).contains(&arguments.in_flight) {
        refuse!("--active-rate is a number from 1 to 1000000, --in-flight from 1 to 1000");
    }
    if !(-1..=1).contains(&arguments.acks) {
        refuse!("--acks is -1, 0 or 1");
    }
    if !(16..=64 << 20).contains(&arguments.record_bytes) {
        refuse!("--record-bytes is a number from 16 to 64Mi");
    }
    if arguments.duration <= arguments.warmup {
        refuse!("--duration includes --warmup and must be longer");
    }
    duration("duration", arguments.duration).map(drop)
}

/// What the active connections send: a request of one record each, evenly spread over time and connections.
fn load(arguments: &Connections, clock: &Clock) -> Result<Load> {
    let rate = arguments.active_rate.saturating_mul(u64::try_from(arguments.active)?);
    let run_ns = saturated_nanos(duration("duration", arguments.duration)?);
    let records = u64::try_from(u128::from(rate) * u128::from(run_ns) / 1_000_000_000).unwrap_or(u64::MAX);
    let partitions = u64::from(arguments.creation.partitions.unsigned_abs());
    let schedule =
        Schedule { rate, records, partitions, batch_records_max: 1, linger_ns: 0, spread: Spread::Sticky };
    Ok(Load {
        topic: arguments.target.topic.clone(),
        partitions,
        connections: arguments.active,
        in_flight: arguments.in_flight,
        batches_per_request: 1,
        acks: arguments.acks,
        shape: Shape { record_bytes: usize::try_from(arguments.record_bytes)?, keys: 0 },
        batch_records: 1,
        schedule: Some(schedule),
        records_max: records,
        until: run_ns,
        run: new_run(clock),
    })
}

/// Opens connections, each with one answer, so that the broker holds what a connection needs.
fn open(
    count: usize,
    bootstrap: &str,
    limit: Duration,
    clock: &Clock,
    connect: &mut Times,
) -> Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(count);
    while clients.len() < count {
        let group = GROUP.min(count - clients.len());
        let mut opened = Vec::with_capacity(group);
        for _ in 0..group {
            let from = clock.now();
            let mut client = Client::connect(bootstrap, limit)
                .with_context(|| format!("connection {} failed", clients.len() + opened.len() + 1))?;
            let asked = client.send(API_VERSIONS_VERSION, &ApiVersionsRequest::default())?;
            opened.push((client, asked, from));
        }
        for (mut client, asked, from) in opened {
            answered(&mut client, asked)?;
            connect.record(clock.now().saturating_sub(from));
            clients.push(client);
        }
    }
    Ok(clients)
}

/// Asks each connection once more.
fn greet(clients: &mut [Client]) -> Result<()> {
    for group in clients.chunks_mut(GROUP) {
        let ask = |client: &mut Client| client.send(API_VERSIONS_VERSION, &ApiVersionsRequest::default());
        let asked = group.iter_mut().map(ask).collect::<Result<Vec<_>>>()?;
        group.iter_mut().zip(asked).try_for_each(|(client, asked)| answered(client, asked))?;
    }
    Ok(())
}

fn answered(client: &mut Client, asked: i32) -> Result<()> {
    let reply = client.receive(API_VERSIONS_VERSION, asked)?;
    let response: ApiVersionsResponse<'_> = reply.message()?;
    match response.error_code {
        0 => Ok(()),
        code => bail!("ApiVersions was answered with {}", error_name(code)),
    }
}

fn watch_idle(mut watch: Watch, clock: &Clock, length: Duration) -> Window {
    watch.begin(clock.now());
    pause(length);
    watch.end(clock.now())
}

/// Raises the limit of descriptors of this process, and above its hard limit where that is allowed.
///
/// # Errors
/// It is not allowed.
pub fn allow_descriptors(connections: usize) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = u64::try_from(connections)?.saturating_add(DESCRIPTORS_SPARE);
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = now.maximum.map(|maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
        .with_context(|| format!("this process may not open {wanted} descriptors (ulimit -n)"))
}

//! What consumer groups cost, against Kafka: in each run a group whose members are restarted one after the other, once as
//! dynamic and once as static members, then commits of offsets on a schedule, then heartbeats of many groups. Knows the
//! loads and what the issue asks; how sides take turns is `contrast`'s.

use anyhow::Result;
use serde_json::Value;

use super::contrast::{Known, Sides, against_kafka};
use super::figures::{Figures, Limit};
use super::job::{Job, needed};
use super::options::GROUP_SETTINGS;
use super::promise::Promises;
use super::report::Contrast;
use super::scenarios::{LEAD_IN, SPIN_US, Scene, WINDOW, on_fresh_topic, on_time, target};
use super::servers::Broker;
use super::stage::{Found, Home};

/// Partitions of the topic, members of the group that is restarted.
const PARTITIONS: u32 = 100;
const MEMBERS: u32 = 100;
/// Between two heartbeats of the members that are restarted, in milliseconds: by them they learn of a rebalance. With the
/// default of 3 s a run would take five minutes.
const RESTART_HEARTBEAT_MS: u32 = 100;
/// Between two heartbeats where those are measured: the default of Kafka's consumers.
const HEARTBEAT_SECONDS: f64 = 3.0;
/// How often each member beats in a measured run, at least.
const HEARTBEATS: f64 = 4.0;
const COMMITS_PER_SECOND: u32 = 10_000;
/// Longest time without an answer, and until groups are stable.
const PATIENCE_SECONDS: u32 = 60;

/// Conditions of the figures.
const DYNAMIC: &str = "dynamic restart";
const STATIC: &str = "static restart";
const COMMITTING: &str = "10,000 commits/s";
const BEATING: &str = "10,000 members";
const PRIMARY: &str = "cpu_s_per_mcommit@10,000 commits/s";

/// Plays the scenario.
///
/// # Errors
/// A broker or a run fails, or the two sides have other settings of groups.
pub fn groups(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let compare = scene.compare.for_groups()?;
    let third = Limit::RatioAtMost(1.0 / 3.0);
    let sides = Sides {
        what: format!(
            "Consumer groups, classic protocol, eager, range assignment. A group of {MEMBERS} over {PARTITIONS} partitions \
             joins, and each member is restarted when the group is stable again, heartbeats every \
             {RESTART_HEARTBEAT_MS} ms: partition-seconds without an owner, as dynamic and as static members. \
             {COMMITS_PER_SECOND} commits of one partition a second by the members of 100 groups over 10 connections, \
             each verified. 1,000 groups of 10 members, each with a connection and a heartbeat every \
             {HEARTBEAT_SECONDS} s. Kafka with the first of its heaps only."
        ),
        targets: vec![
            target(&format!("cpu_s_per_mcommit@{COMMITTING}"), third.clone()),
            target(&format!("cpu_percent@{BEATING}"), third),
        ],
        primary: PRIMARY,
        kafka_highest: None,
        counts: "commits and heartbeats",
    };
    let mut warm = |home: &Home, broker: &Broker| window(home, broker);
    let mut act = |home: &Home, broker: &Broker, _: Known| all_loads(home, broker);
    let mut contrast =
        against_kafka(scene.home, &compare, (sides, Promises::Settings), Some(&mut warm), &mut act)?;
    let alike: Vec<String> = GROUP_SETTINGS.iter().map(|(key, value)| format!("{key}={value}")).collect();
    contrast.notes.push(format!("both sides, unless both were told otherwise: {}", alike.join(", ")));
    Ok(vec![contrast])
}

fn load(broker: &Broker, topic: &str, name: &str) -> Job {
    let job = Job::new("groups", &["--no-perf"]).at(broker).with("--topic", topic).with("--load", name);
    job.with("--partitions", PARTITIONS).with("--timeout", PATIENCE_SECONDS).with("--spin-us", SPIN_US)
}

/// One window of a warm-up: commits and heartbeats as fast as they go, in halves. Forming the groups warms the joins.
fn window(home: &Home, broker: &Broker) -> Result<f64> {
    let window = if home.common.quick { f64::from(home.common.seconds()) } else { WINDOW };
    let seconds = window / 2.0;
    on_fresh_topic(home, broker, |topic| {
        let commits = load(broker, topic, "commit").with("--rate", "max").lasting(seconds).run(home)?;
        let beats = load(broker, topic, "heartbeat").with("--heartbeat-ms", 0).lasting(seconds).run(home)?;
        Ok(f64::midpoint(needed(&commits, "/groups/per_second")?, needed(&beats, "/groups/per_second")?))
    })
}

/// One run: all loads, one after the other. A load whose generator was late is repeated alone.
fn all_loads(home: &Home, broker: &Broker) -> Result<Found> {
    let mut found = Found::default();
    let seconds = f64::from(home.common.seconds());
    for (condition, flags) in [(DYNAMIC, &[][..]), (STATIC, &["--static-members"][..])] {
        let report = on_time(home, condition, &mut || {
            on_fresh_topic(home, broker, |topic| {
                let job = load(broker, topic, "join").with("--members", MEMBERS).flags(flags);
                job.with("--heartbeat-ms", RESTART_HEARTBEAT_MS).within(300.0).run(home)
            })
        })?;
        let figures = restarted(&report, condition)?;
        found.take(report, figures);
    }
    let report = on_time(home, COMMITTING, &mut || {
        on_fresh_topic(home, broker, |topic| {
            let job = load(broker, topic, "commit").with("--rate", COMMITS_PER_SECOND);
            job.with("--warmup", LEAD_IN).lasting(LEAD_IN + seconds).run(home)
        })
    })?;
    let cost = ("cpu_s_per_mcommit", needed(&report, "/broker/cpu_seconds_per_million_records")?);
    let figures = with_latency(&report, cost, COMMITTING)?;
    found.take(report, figures);
    let beating =
        if home.common.quick { HEARTBEAT_SECONDS } else { seconds.max(HEARTBEATS * HEARTBEAT_SECONDS) };
    let report = on_time(home, BEATING, &mut || {
        on_fresh_topic(home, broker, |topic| {
            let job = load(broker, topic, "heartbeat").with("--heartbeat-ms", HEARTBEAT_SECONDS * 1e3);
            job.with("--warmup", LEAD_IN).lasting(LEAD_IN + beating).run(home)
        })
    })?;
    let cost = ("cpu_percent", needed(&report, "/broker/cpu_share")? * 100.0);
    let figures = with_latency(&report, cost, BEATING)?;
    found.take(report, figures);
    Ok(found)
}

/// What a load on a schedule costs, and how long its requests take.
fn with_latency(report: &Value, cost: (&str, f64), condition: &str) -> Result<Figures> {
    let mut figures = Figures::from([(format!("{}@{condition}", cost.0), cost.1)]);
    for (name, figure) in [("p50", "p50_us"), ("p99", "p99_us"), ("p99_9", "p999_us")] {
        figures
            .insert(format!("{figure}@{condition}"), needed(report, &format!("/groups/latency_us/{name}"))?);
    }
    Ok(figures)
}

/// What a rolling restart costs.
fn restarted(report: &Value, condition: &str) -> Result<Figures> {
    let of = [
        ("stable_ms", "/groups/stable_ms"),
        ("paused_partition_s", "/groups/rolling_restart/paused_partition_seconds"),
        ("settle_us", "/groups/rolling_restart/settle_us/p50"),
    ];
    of.iter().map(|(figure, path)| Ok((format!("{figure}@{condition}"), needed(report, path)?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::compare::figures;

    #[test]
    fn what_the_loads_say_becomes_figures_that_tables_know() {
        let steady = json!({"groups": {"latency_us": {"p50": 1.0, "p99": 2.0, "p99_9": 3.0}}});
        let found = with_latency(&steady, ("cpu_percent", 4.0), BEATING).unwrap();
        assert_eq!(found.get(&format!("p99_us@{BEATING}")), Some(&2.0));
        assert_eq!(found.get(&format!("cpu_percent@{BEATING}")), Some(&4.0));
        let rolled = json!({"groups": {"stable_ms": 5.0, "rolling_restart": {
            "paused_partition_seconds": 6.0, "settle_us": {"p50": 7.0}}}});
        let restarted = restarted(&rolled, STATIC).unwrap();
        assert_eq!(restarted.get(&format!("paused_partition_s@{STATIC}")), Some(&6.0));
        for name in found.keys().chain(restarted.keys()) {
            assert!(figures::kind(name).is_some(), "{name} has no row");
        }
        assert_eq!(PRIMARY, format!("cpu_s_per_mcommit@{COMMITTING}"));
        assert!(with_latency(&json!({}), ("cpu_percent", 1.0), BEATING).is_err());
    }
}

//! Scenario `recovery`: from a start after `kill -9` until every partition acknowledges again, ours against Kafka on the same
//! load and with the same files in the page cache. Knows what the issue asks; `startup` fills, kills, measures and proves.

use std::cell::Cell;
use std::path::Path;

use anyhow::{Context, Result};

use super::contrast::{RECORDS, Sides, from_scratch};
use super::figures::{Figures, Limit};
use super::job::{Job, needed};
use super::report::Contrast;
use super::scenarios::{MANY_PARTITIONS, Scene, started, target};
use super::servers::Plan;
use super::stage::{Found, Home};
use crate::measure::machine::GIB;

/// Pairs at most, the discarded one among them: a run of Kafka takes three minutes.
const PAIRS_MAX: u32 = 5;
/// Share of the bytes in the first runs, which are discarded.
const REHEARSED: f64 = 0.1;
/// Seconds that a killed process is down, on both sides: by then ZooKeeper has given up the session of a killed Kafka, which
/// could not register itself before. That time is not measured.
const DOWN_SECONDS: u32 = 10;
/// Of that session: at most two ticks of two seconds more than this.
const SESSION_MS: u32 = 6000;
/// Longest time without an answer, and what a run may take in all.
const PATIENCE_SECONDS: u32 = 300;
const RUN_SECONDS: f64 = 1200.0;

/// What each side does between its start and its first acknowledgements.
const DONE: [&str; 3] = [
    "page cache: warm on both sides; every segment is read once between the kill and the start",
    "ours: where only the process died, which `.lock` proves by the running kernel and the mount, the kernel still has every file \
     as it was written: from the recovery point on the headers of batches are read, a batch that was not written to its end is \
     cut off, and no checksum is computed; a partition serves as soon as its own log is ready",
    "Kafka: from the recovery point of each log on every batch is read and its checksum computed, indexes and producers' state \
     are built anew, by one thread (num.recovery.threads.per.data.dir=1, its default); no partition serves before all are done",
];

/// Plays it.
///
/// # Errors
/// A broker or a run fails.
pub fn play(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    let gib = scene.compare.recovery_gib();
    let ours = scene.compare.common.odradek(1);
    let theirs = scene.compare.kafkas()?.into_iter().next().map(with_short_session);
    let mut targets = vec![target("recovered_ms", Limit::AtMost(2000.0))];
    if theirs.is_some() {
        targets.push(target("recovered_ms", Limit::RatioAtMost(1.0)));
    }
    let sides = Sides {
        what: format!(
            "From a start after kill -9, with {MANY_PARTITIONS} partitions and {gib} GiB of 1 KiB records in one segment each, \
             until every partition acknowledges again; then every record that was acknowledged before is read back. The process \
             is down for {DOWN_SECONDS} s. Kafka with the first of its heaps only."
        ),
        targets,
        primary: "recovered_ms",
        kafka_highest: None,
        counts: RECORDS,
    };
    let (first_ours, first_theirs) = (Cell::new(true), Cell::new(true));
    let mut first = |home: &Home| run(home, &ours, gib, &first_ours);
    let name = theirs.as_ref().map(|plan| plan.kind.name());
    let mut second =
        |home: &Home| run(home, theirs.as_ref().context("there is no Kafka")?, gib, &first_theirs);
    let act: &mut dyn FnMut(&Home) -> Result<Found> = &mut second;
    let second = name.as_deref().map(|name| (name, act));
    let pairs = scene.compare.pairs()?.min(PAIRS_MAX);
    let mut contrast = from_scratch(scene.home, pairs, sides, ("odradek", &mut first), second)?;
    contrast.notes.push(format!("the discarded pair had {:.1} GiB", gib * REHEARSED));
    contrast.notes.extend(DONE.map(str::to_owned));
    Ok(vec![contrast])
}

/// A Kafka that can be killed and started again: its session must not outlive it for an hour. Nobody makes it stand still here.
fn with_short_session(mut plan: Plan) -> Plan {
    plan.settings.push(("zookeeper.session.timeout.ms".to_owned(), SESSION_MS.to_string()));
    plan
}

/// One run; those before one has come to its end are rehearsals.
fn run(home: &Home, plan: &Plan, gib: f64, is_first: &Cell<bool>) -> Result<Found> {
    let gib = if is_first.get() { gib * REHEARSED } else { gib };
    let job = |logs: &Path| {
        Job::new("startup", &["--kill"])
            .with("--runs", 1)
            .with("--partitions", MANY_PARTITIONS)
            .with("--fill-bytes", format!("{:.0}", gib * GIB))
            .with("--down", DOWN_SECONDS)
            .with("--warm", logs.display())
            .with("--timeout", PATIENCE_SECONDS)
    };
    let report = started(home, plan, RUN_SECONDS, job)?;
    is_first.set(false);
    let took = needed(&report, "/startup/killed/every_partition_ms")?;
    let mut found = Found::default();
    found.take(report, Figures::from([("recovered_ms".to_owned(), took)]));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::servers::Kind;

    #[test]
    fn a_killed_kafka_is_forgotten_by_zookeeper_while_it_is_down() {
        let kind = Kind::Kafka { libs: "x".into(), heap_gib: 1 };
        let plan = with_short_session(Plan { kind, settings: Vec::new() });
        let found = plan.configuration(24_600, Path::new("/tmp/x"));
        let sessions: Vec<&str> = found
            .iter()
            .filter(|(key, _)| key == "zookeeper.session.timeout.ms")
            .map(|(_, value)| value.as_str())
            .collect();
        assert_eq!(sessions, ["6000"], "it replaces the one of pairs that stand still");
        // With two ticks of ZooKeeper.
        const { assert!(SESSION_MS + 2 * 2000 <= DOWN_SECONDS * 1000) };
    }
}

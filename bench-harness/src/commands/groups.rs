//! `groups`: what consumer groups cost a broker. Members of one group that join and are restarted one after the other,
//! commits of offsets on a schedule, heartbeats of many groups. Each proves afterwards what it claims: one owner for every
//! partition, every acknowledged offset, no heartbeat that was refused.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::args::{GroupLoad, Groups, Rate, duration};
use crate::client::{Client, resolve};
use crate::clock::{Clock, SECOND_NS, saturated_nanos, seconds};
use crate::commands::connections::allow_descriptors;
use crate::commands::{extend, new_run, topic, write_histograms};
use crate::groups::asked::{await_coordinators, dissolve, verify_assignment, verify_offsets};
use crate::groups::assignment::exactly_one_owner;
use crate::groups::fleet::{Fleet, Identity, Rolled, Shape};
use crate::groups::lines::Lines;
use crate::groups::load::{Beats, Commits};
use crate::groups::pace::Pace;
use crate::groups::steady::{Limits, Ran, Steady};
use crate::measure::histogram::Times;
use crate::measure::window::Watch;
use crate::measure::{float, ratio, rounded};
use crate::report::Report;

/// Time between two heartbeats of members whose groups are only to be there: while a group forms, they tell those who
/// are in it of those who come.
const FORMING_BEAT: Duration = Duration::from_millis(200);

/// Runs it.
///
/// # Errors
/// One sentence, and what caused it; any answer of the broker that a sound group does not get is one.
pub fn run(arguments: &Groups) -> Result<Report> {
    let arguments = arguments.clone().resolved()?;
    let mut report = Report::new("groups", &arguments, &Clock::start());
    let scene = Scene::prepare(&arguments)?;
    match arguments.load {
        GroupLoad::Join => scene.join(&mut report)?,
        GroupLoad::Commit => scene.commit(&mut report)?,
        GroupLoad::Heartbeat => scene.heartbeat(&mut report)?,
    }
    Ok(report)
}

/// A topic, and the names of groups whose coordinator is there.
struct Scene<'a> {
    arguments: &'a Groups,
    names: Vec<String>,
    members: usize,
    clock: Clock,
    limit: Duration,
}

impl<'a> Scene<'a> {
    fn prepare(arguments: &'a Groups) -> Result<Self> {
        let Groups { target, groups, members, .. } = arguments;
        let (groups, members) = groups.zip(*members).context("the arguments are not resolved")?;
        let limit = duration("timeout", target.timeout)?.max(Duration::from_millis(1));
        let connections = groups.saturating_mul(members).saturating_add(arguments.connections);
        // A restarted member may have its connection before that of its predecessor is gone.
        allow_descriptors(connections.saturating_add(1))?;
        topic(target, Some(&arguments.creation()))?;
        let clock = Clock::start();
        let run = new_run(&clock);
        let names: Vec<String> =
            (0..groups).map(|number| format!("odradek-bench-{run:08x}-{number}")).collect();
        let scene = Self { arguments, names, members, clock, limit };
        await_coordinators(&mut scene.client()?, &scene.names, limit)?;
        Ok(scene)
    }

    /// A connection to ask about the groups. None stays open beside those of the members: ten thousand are ten thousand.
    fn client(&self) -> Result<Client> {
        Client::connect(&self.arguments.target.bootstrap, self.limit)
    }

    fn watch(&self) -> Result<Watch> {
        let sampled = &self.arguments.sampled;
        Ok(Watch::new(sampled.broker_pid, !sampled.no_perf)?.among(sampled.family))
    }

    /// Connected members that have not joined.
    fn fleet(&self, heartbeat: Duration, beats_when_settled: bool) -> Result<Fleet> {
        let arguments = self.arguments;
        let shape = Shape {
            topic: arguments.target.topic.clone(),
            partitions: arguments.partitions,
            groups: self.names.clone(),
            members: self.members,
            is_static: arguments.static_members,
            session_timeout_ms: arguments.session_timeout_ms,
            rebalance_timeout_ms: arguments.rebalance_timeout_ms,
            heartbeat_ns: saturated_nanos(heartbeat),
            beats_when_settled,
        };
        let mut fleet = Fleet::new(shape, self.clock, resolve(&arguments.target.bootstrap)?, self.limit)?;
        fleet.recruit()?;
        Ok(fleet)
    }

    /// Groups that are stable, and how long that took.
    fn formed(&self) -> Result<(Lines, Vec<Identity>, u64)> {
        let mut fleet = self.fleet(FORMING_BEAT, false)?;
        let from = self.clock.now();
        fleet.join()?;
        let took = fleet.until_settled()?.saturating_sub(from);
        let (lines, members) = fleet.into_members()?;
        Ok((lines, members, took))
    }

    fn limits(&self, pace: Option<Pace>, in_flight: usize) -> Result<Limits> {
        let Groups { duration: length, warmup, spin_us, .. } = self.arguments;
        Ok(Limits {
            pace,
            until_ns: saturated_nanos(duration("duration", *length)?),
            warmup_ns: saturated_nanos(duration("warmup", *warmup)?),
            spin_ns: spin_us.saturating_mul(1000),
            silence_ns: saturated_nanos(self.limit),
            in_flight,
        })
    }

    /// What every load's section begins with.
    fn section(&self) -> Value {
        json!({
            "load": self.arguments.load,
            "groups": self.names.len(),
            "members": self.members,
            "static_members": self.arguments.static_members,
            "partitions": self.arguments.partitions,
        })
    }

    fn join(&self, report: &mut Report) -> Result<()> {
        let Groups { target, sampled, partitions, restarts, .. } = self.arguments;
        let mut fleet = self.fleet(self.arguments.heartbeat()?, true)?;
        let mut watch = self.watch()?;
        let from = self.clock.now();
        watch.begin(from);
        fleet.join()?;
        let stable_ns = fleet.until_settled().context("the members joined")?.saturating_sub(from);
        let rolled = fleet.roll(restarts.unwrap_or_default())?;
        let window = watch.end(self.clock.now());
        let owned: Vec<(&str, &[i32])> = fleet.owned().collect();
        exactly_one_owner(*partitions, owned.iter().copied()).context("after the last restart")?;
        let group = self.names.first().context("there is no group")?;
        let of = (target.topic.as_str(), *partitions);
        let owning = verify_assignment(&mut self.client()?, group, of, &owned)?;
        let lateness = std::mem::take(&mut fleet.lateness);
        let mut section = self.section();
        let more = json!({
            "heartbeat_ms": self.arguments.heartbeat_ms,
            "stable_ms": milliseconds(stable_ns),
            "rolling_restart": rolled_json(&rolled, *restarts),
            "lateness_us": lateness.to_json(),
            "verified": {"partitions": partitions, "members_with_partitions": owning},
        });
        extend(&mut section, more);
        report.add("groups", section);
        report.add_window(&window, 0, 0, sampled.other_cpu_max);
        // A member that learns late of a rebalance pauses its partitions longer, by nobody's fault but the generator's.
        report.judge_lateness(&lateness, &Times::new());
        let tagged = [("restart", &rolled.restart), ("settle", &rolled.settle), ("lateness", &lateness)];
        write_histograms(target, &self.clock, &tagged)?;
        let (_lines, members) = fleet.into_members()?;
        dissolve(&mut self.client()?, &self.names, &members, self.limit)
    }

    fn commit(&self, report: &mut Report) -> Result<()> {
        let Groups { target, sampled, connections, commit_partitions, .. } = self.arguments;
        let (lines, members, formed_ns) = self.formed()?;
        // Members are known by their ids, not by their connections.
        drop(lines);
        let mut lines = Lines::new(self.clock)?;
        let address = resolve(&target.bootstrap)?;
        for _ in 0..*connections {
            lines.open(address, self.limit)?;
        }
        let commits =
            Commits::new(&target.topic, *commit_partitions, &self.names, members.clone(), *connections);
        let limits = self.limits(None, self.arguments.in_flight)?;
        let pace = match self.arguments.rate {
            Rate::PerSecond(rate) => Some(Pace::lasting(rate, SECOND_NS, limits.until_ns)),
            Rate::Max => None,
        };
        let limits = Limits { pace, ..limits };
        let ran = Steady::new(self.clock, lines, commits, limits, self.watch()?)?.run()?;
        let acknowledged: Vec<(String, Option<i64>)> =
            ran.asking.acknowledged().map(|(name, offset)| (name.to_owned(), offset)).collect();
        let of = (target.topic.as_str(), *commit_partitions);
        let verified = verify_offsets(&mut self.client()?, of, &acknowledged)?;
        let more = json!({
            "formed_ms": milliseconds(formed_ns),
            "commit_partitions": commit_partitions,
            "verified": {"groups": acknowledged.len(), "offsets": verified},
        });
        self.tell(report, "commits", &ran, more)?;
        report.add_window(&ran.window, 0, ran.answered, sampled.other_cpu_max);
        report.judge_lateness(&ran.lateness, &ran.latency);
        dissolve(&mut self.client()?, &self.names, &members, self.limit)
    }

    fn heartbeat(&self, report: &mut Report) -> Result<()> {
        let (lines, members, formed_ns) = self.formed()?;
        let limits = self.limits(None, 1)?;
        let period_ns = saturated_nanos(self.arguments.heartbeat()?);
        let beating = u64::try_from(members.len())?;
        let pace = (period_ns > 0).then(|| Pace::lasting(beating, period_ns, limits.until_ns));
        let limits = Limits { pace, ..limits };
        let beats = Beats::new(&self.names, members);
        let ran = Steady::new(self.clock, lines, beats, limits, self.watch()?)?.run()?;
        let more = json!({"formed_ms": milliseconds(formed_ns), "heartbeat_ms": self.arguments.heartbeat_ms});
        self.tell(report, "heartbeats", &ran, more)?;
        report.add_window(&ran.window, 0, ran.answered, self.arguments.sampled.other_cpu_max);
        report.judge_lateness(&ran.lateness, &ran.latency);
        dissolve(&mut self.client()?, &self.names, ran.asking.members(), self.limit)
    }

    /// The section of a load that sends requests, and its histograms.
    fn tell<A>(&self, report: &mut Report, what: &str, ran: &Ran<A>, more: Value) -> Result<()> {
        let mut section = self.section();
        extend(&mut section, more);
        extend(
            &mut section,
            json!({
                what: ran.answered,
                "seconds": rounded(ran.window.seconds, 3),
                "per_second": rounded(ratio(float(ran.answered), ran.window.seconds), 1),
                "latency_us": ran.latency.to_json(),
                "lateness_us": ran.lateness.to_json(),
            }),
        );
        report.add("groups", section);
        let tagged = [(what, &ran.latency), ("lateness", &ran.lateness)];
        write_histograms(&self.arguments.target, &self.clock, &tagged)
    }
}

fn milliseconds(nanos: u64) -> f64 {
    rounded(seconds(nanos) * 1e3, 2)
}

fn rolled_json(rolled: &Rolled, restarts: Option<u64>) -> Value {
    let restarts = restarts.unwrap_or_default();
    let paused = seconds(rolled.paused_ns);
    json!({
        "restarts": restarts,
        "seconds": rounded(seconds(rolled.length_ns), 3),
        "generations": rolled.generations,
        "paused_partition_seconds": rounded(paused, 4),
        "paused_partition_seconds_per_restart": rounded(ratio(paused, float(restarts)), 5),
        "restart_us": rolled.restart.to_json(),
        "settle_us": rolled.settle.to_json(),
    })
}

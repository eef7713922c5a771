//! A whole series: the checks before it, its scenarios one after the other, and what it leaves. A scenario that fails
//! does not take the results of the others away.
#![allow(clippy::disallowed_methods, reason = "a harness writes its results")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use super::child::{self, Interrupt, NEEDED};
use super::host::{self, Machine};
use super::job::{Job, number};
use super::memory;
use super::options::{Common, Compare, ScenarioName};
use super::report::{BrokerRecord, FORMAT, Scenario, Series, markdown};
use super::scenarios::{Scene, play};
use super::servers::{CLIENT_PROCESSOR, Plan, kafka_version};
use super::stage::Home;
use super::svg;
use crate::measure::machine::free_gib;
use crate::own;

/// Digits of the broker's SHA-256 that a report shows.
const HASH_DIGITS: usize = 16;

/// Runs `compare`; returns the table, and the scenarios that have no result.
///
/// # Errors
/// The series cannot begin, or its results cannot be written.
pub fn compare(compare: &Compare) -> Result<(String, Vec<String>)> {
    compare.pairs()?;
    may_leave(&compare.common)?;
    let durability = compare.durability()?;
    if compare.scenarios().contains(&ScenarioName::Groups) {
        compare.for_groups()?;
    }
    if compare.scenarios().contains(&ScenarioName::Compaction) {
        compare.for_cleaning()?;
    }
    compare.room(free_gib(&compare.common.data)?)?;
    let mut versions = versions_of(&compare.common)?;
    let kafkas = compare.kafkas()?;
    if !kafkas.is_empty() {
        child::need(&["java"])?;
        versions.insert("kafka".to_owned(), kafka_version(&compare.kafka_libs()?)?);
    }
    let begun = begin(&compare.common)?;
    let home = &begun.home;
    let brokers =
        std::iter::once(compare.common.odradek(1)).chain(kafkas).map(|plan| record(home, plan)).collect();
    let mut series = Series {
        format: FORMAT,
        started: host::unix_seconds(),
        command: std::env::args().collect(),
        load_average: begun.load_average,
        noise_allowed: compare.common.allow_noise,
        durability,
        machine: Machine::ask(&home.path),
        versions,
        brokers,
        ceiling: Some(ceiling(home)?),
        scenarios: Vec::new(),
    };
    let floor =
        series.ceiling.as_ref().and_then(|report| number(report, "/ceiling/floor/cpu_seconds_per_gb"));
    let scene = Scene { home, compare, floor, kafka_highest: Cell::default() };
    for name in compare.scenarios() {
        series.scenarios.push(scenario(&scene, name)?);
    }
    let text = markdown(&series);
    leave(
        &compare.common,
        "compare",
        series.started,
        &serde_json::to_value(&series)?,
        &text,
        Some(&svg::chart(&series)),
    )?;
    let failed = series.scenarios.into_iter().filter(|scenario| scenario.failed.is_some());
    Ok((text, failed.map(|scenario| scenario.name).collect()))
}

/// The table of a series that was made before, judged by today's rules, from its raw data.
///
/// # Errors
/// There is no such file, or it holds no series.
pub fn table(raw: &Path) -> Result<String> {
    let text = std::fs::read_to_string(raw).with_context(|| format!("{}", raw.display()))?;
    let series: Series = serde_json::from_str(&text).with_context(|| format!("{}", raw.display()))?;
    Ok(markdown(&series))
}

/// One scenario; its failure is a result, an interruption is not.
fn scenario(scene: &Scene<'_>, name: ScenarioName) -> Result<Scenario> {
    let started = host::now();
    let shown = name.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    scene.home.say(&format!("== {shown}"));
    let mut contrasts = Vec::new();
    let played = play(scene, name, &mut contrasts);
    scene.home.interrupt.check()?;
    let failed = played.err().map(|why| format!("{why:#}"));
    if let Some(why) = &failed {
        scene.home.say(&format!("{shown} failed: {why}"));
    }
    Ok(Scenario { name: shown, seconds: started.elapsed().as_secs_f64(), contrasts, failed })
}

/// A series that may begin.
#[derive(Debug)]
pub struct Begun {
    /// Where it plays.
    pub home: Home,
    /// Load average before it.
    pub load_average: f64,
}

/// The versions of harness and broker.
///
/// # Errors
/// There is no such broker.
pub fn versions_of(common: &Common) -> Result<BTreeMap<String, String>> {
    let binary = common.odradek.display().to_string();
    ensure!(common.odradek.is_file(), "{binary} is not there: cargo build --release, or --odradek PATH");
    let said = host::said(&binary, &["--version"]);
    let version =
        said.strip_prefix("odradek ").with_context(|| format!("{binary} --version says {said:?}"))?;
    let named = [("odradek", version.to_owned()), ("binary", hash_of(&binary)?)];
    let mut versions: BTreeMap<_, _> = named.map(|(name, said)| (name.to_owned(), said)).into();
    let commit = host::said("git", &["rev-parse", "--short=12", "HEAD"]);
    let changed = host::said("git", &["status", "--porcelain", "--untracked-files=no"]);
    versions.extend(source(&commit, &changed).map(|source| ("source".to_owned(), source)));
    Ok(versions)
}

/// What tells a binary from any other.
fn hash_of(binary: &str) -> Result<String> {
    let said = host::said("sha256sum", &["--", binary]);
    let hash =
        said.split_ascii_whitespace().next().filter(|word| word.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let hash = hash.and_then(|hash| hash.get(..HASH_DIGITS));
    Ok(hash.with_context(|| format!("sha256sum of {binary} says {said:?}"))?.to_owned())
}

/// The commit of the tree that the series was started in, and whether the tree is something else; which binary ran is told
/// by its hash alone.
fn source(commit: &str, changed: &str) -> Option<String> {
    let is_commit = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_commit.then(|| if changed.is_empty() { commit.to_owned() } else { format!("{commit}-dirty") })
}

/// Pins the harness beside the client, waits for a quiet machine, and touches memory.
///
/// # Errors
/// A program is missing, the machine is not quiet, or its processors are not two at least.
pub fn begin(common: &Common) -> Result<Begun> {
    child::need(NEEDED)?;
    let processors = std::thread::available_parallelism()?.get();
    ensure!(processors >= 2, "broker and client need a processor each, and there is {processors}");
    let home = Home::new(common, Interrupt::install()?)?;
    let load_average = home.await_quiet()?;
    host::said("taskset", &["-cp", CLIENT_PROCESSOR, &std::process::id().to_string()]);
    home.say("touching memory");
    let touched = memory::touch(common.touch_gib(), &home.interrupt)?;
    home.say(&format!("{touched:.1} GiB touched"));
    Ok(Begun { home, load_average })
}

/// What this machine can do, in the same hour.
///
/// # Errors
/// The probe fails.
pub fn ceiling(home: &Home) -> Result<Value> {
    home.say("== ceiling");
    let mut job =
        Job::new("ceiling", &[]).with("--dir", home.path.display()).with("--cpu", 0).with("--peer-cpu", 1);
    if home.common.quick {
        job = job.with("--bytes", "256Mi");
    }
    job.on("0,1").within(300.0).run(home).context("ceiling")
}

/// A broker as it runs in this series.
pub fn record(home: &Home, plan: Plan) -> BrokerRecord {
    let configuration = plan.configuration(home.common.port, &home.path);
    BrokerRecord { configuration, jvm: plan.jvm(), plan }
}

/// Finds out whether results can be written where they are to go, before the series that finds them.
///
/// # Errors
/// They cannot.
pub fn may_leave(common: &Common) -> Result<()> {
    let results = &common.results;
    own::try_dir(results)
        .with_context(|| format!("no results can be written to {} (--results)", results.display()))
}

/// Writes the results: raw data, table, and chart if there is one.
///
/// # Errors
/// What the operating system says.
pub fn leave(
    common: &Common,
    command: &str,
    started: u64,
    raw: &Value,
    text: &str,
    chart: Option<&str>,
) -> Result<()> {
    std::fs::create_dir_all(&common.results)?;
    let place = |extension: &str| common.results.join(format!("{command}-{started}.{extension}"));
    let write = |path: &Path, content: &str| {
        std::fs::write(path, content).with_context(|| format!("{}", path.display()))
    };
    write(&place("json"), &serde_json::to_string_pretty(raw)?)?;
    write(&place("md"), text)?;
    chart.map_or(Ok(()), |chart| write(&place("svg"), chart))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn results_that_cannot_be_written_end_a_series_before_it_begins() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            compare: Compare,
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        let ended = |results: &Path| {
            let words =
                ["x", "--odradek", "/nowhere", "--results", results.to_str().unwrap(), "--without-kafka"];
            let scenario = ["--scenario", "small"];
            let line = <Line as clap::Parser>::parse_from(words.iter().chain(&scenario));
            super::compare(&line.compare).unwrap_err().to_string()
        };
        for blocked in [file.clone(), file.join("below"), PathBuf::from("/proc/odradek-bench")] {
            let said = ended(&blocked);
            assert!(said.contains("(--results)") && said.contains(blocked.to_str().unwrap()), "{said}");
        }
        let fine = directory.path().join("a/b");
        assert!(ended(&fine).contains("/nowhere"), "the next thing that is wrong");
        let left: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["file"], "nothing is made before there is something to write");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    }

    #[test]
    fn a_tree_that_was_changed_is_no_commit() {
        assert_eq!(source("0123456789ab", ""), Some("0123456789ab".to_owned()));
        assert_eq!(source("0123456789ab", " M README.md"), Some("0123456789ab-dirty".to_owned()));
        assert_eq!(source("fatal: not a git repository", ""), None);
    }

    #[test]
    fn the_binary_that_ran_is_told_by_its_hash() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("odradek");
        let hash = |content: &str| {
            std::fs::write(&path, content).unwrap();
            hash_of(&path.display().to_string()).unwrap()
        };
        assert_eq!(hash("abc"), "ba7816bf8f01cfea");
        assert_ne!(hash("abd"), hash("abc"));
        assert!(hash_of("/nowhere").is_err());
    }
}

//! Each sync left out, and each rename made before the write before it: the table of what then goes wrong, held against the
//! sources in a short run and found anew in a long one.
#![allow(clippy::disallowed_methods, reason = "reads and writes a file of the source tree")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use storage::io::sim::Crash;

use crate::images::{Failure, Plan, Sites, Tally, examine_in};
use crate::stage::Run;
use crate::{is_wanted, scripts, seeds, share, sources};

const TABLE: &str = include_str!("mutations.txt");

/// Mutations that no image can show, and why.
const HARMLESS: &[(&str, &str)] = &[
    (
        "rename .kafka_cleanshutdown, checkpoint.rs",
        "that it is there says all: what it vouches for was durable before; empty it is as Kafka 3.6 leaves it",
    ),
    ("rename .index, log/swap.rs", FINISHED),
    ("rename .log, log/swap.rs", FINISHED),
    ("rename .timeindex, log/swap.rs", FINISHED),
    ("rename .txnindex, log/swap.rs", FINISHED),
    (
        "rename meta.properties, checkpoint.rs",
        "without content it says nothing and is written anew; whoever knows it to be there has waited for its sync",
    ),
    (
        "sync dir of cleaner-offset-checkpoint, checkpoint.rs",
        "the one line of all checkpoints: the older file costs a compaction of what is compacted already",
    ),
    (
        "sync dir of recovery-point-offset-checkpoint, checkpoint.rs",
        "the one line of all checkpoints: every run writes that of the log starts right behind it, whose sync is of the same \
         directory",
    ),
];

/// A start that finishes a swap writes nothing of what it renames.
const FINISHED: &str = "no write comes before it: what it renames was durable before the process began";

/// Calls that no run reaches, or that pass on what others ask for: file, text, and why.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "checkpoint.rs",
        "let synced = runtime.dir(DirOp::Sync(parent.to_owned()));",
        "`sync_parent` itself: its callers are told apart",
    ),
    (
        "log/truncate.rs",
        "let synced = self.runtime.dir(DirOp::Sync(self.dir.to_path_buf()));",
        "`sync_dir` itself: its callers are told apart",
    ),
    (
        "log_dir/mod.rs",
        "self.do_dir(DirOp::Sync(self.path.clone())).await?;",
        "one sync for many that are created at once: each log that has no id yet has the name of its directory synced",
    ),
    (
        "compact/output.rs",
        "let synced = self.file.sync_data().await;",
        "each 8 MiB of a large segment, for the disk's sake: the sync at its end is what a swap waits for",
    ),
];

/// The first image that shows a mutation; what most often shows it is tried first.
fn catch(runs: &[Run], sites: &Sites, name: &str) -> Option<Failure> {
    let torn = |seeds: std::ops::Range<u64>| seeds.map(Crash::Torn).collect::<Vec<_>>();
    let scattered = (0..4).map(Crash::Scattered).collect();
    let tiers = [
        (vec![Crash::DropUnsynced, Crash::KeepAll], None),
        (torn(0..3), None),
        (scattered, None),
        (torn(3..9), Some(1)),
        ((4..24).map(Crash::Scattered).collect(), None),
        (torn(9..20), None),
    ];
    for (modes, write_back) in &tiers {
        for run in runs {
            let Some(order) = sites.mutate(run, name) else { continue };
            let twice_each = if run.name == "start" || run.name == "kill" { 1 } else { 16 };
            let from = order.iter().zip(0..).position(|(step, at)| *step != at).unwrap_or(0);
            let plan = Plan { modes, write_back: *write_back, twice_each, one_in: 1, from };
            if let Err(failure) = examine_in(run, &order, plan, &mut Tally::default()) {
                return Some(failure);
            }
        }
    }
    None
}

fn all_runs() -> Vec<Run> {
    let mut runs: Vec<Run> = scripts::ALL.iter().map(|play| play()).collect();
    let starts = scripts::starts(&runs, 40, 1);
    runs.extend(starts);
    runs
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line<'a> {
    run: &'a str,
    step: &'a str,
    crash: &'a str,
    what: &'a str,
}

fn table() -> BTreeMap<&'static str, Line<'static>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let line = |line: &'static str| {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let [name, run, step, crash, what] = columns[..] else { panic!("five columns: {line}") };
        (name, Line { run, step, crash, what })
    };
    lines.map(line).collect()
}

#[test]
fn each_sync_and_each_rename_is_in_the_table_of_mutations() {
    let sites = Sites::of(&all_runs().iter().collect::<Vec<_>>());
    let places = sites.places();
    for (file, line, text) in sources::calls() {
        let is_elsewhere = ELSEWHERE.iter().any(|(of, call, _)| *of == file && *call == text);
        let is_reached = places.contains(&(file.clone(), line));
        assert!(is_reached != is_elsewhere, "{file}:{line}: {text}: {is_reached}");
    }
    let told: BTreeSet<String> = table().keys().copied().map(str::to_owned).collect();
    let harmless: BTreeSet<String> = HARMLESS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(told.is_disjoint(&harmless));
    let (found, told) = (sites.names(), &told | &harmless);
    assert_eq!(found.difference(&told).collect::<Vec<_>>(), Vec::<&String>::new(), "not in the table");
    assert_eq!(
        told.difference(&found).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "no longer in the sources"
    );
}

#[test]
fn without_any_sync_and_with_any_rename_too_early_an_image_is_wrong() {
    if seeds().is_none() {
        // Each image of each run, for most of them several times: `scripts/soak` has the time.
        return;
    }
    let sites = Sites::of(&all_runs().iter().collect::<Vec<_>>());
    let names: Vec<String> = sites.names().into_iter().filter(|name| is_wanted(name)).collect();
    let found = share(names.len(), |at| {
        let failure = catch(&all_runs(), &sites, &names[at]);
        let line = failure.map(|Failure { run, step, mode, complaint }| {
            println!("{} | {run} | {step} | {mode:?} | {} | {}", names[at], complaint.what, complaint.detail);
            (run, step.to_string(), format!("{mode:?}"), complaint.what)
        });
        if line.is_none() {
            println!("{} is not caught", names[at]);
        }
        (names[at].clone(), line)
    });
    let found: BTreeMap<_, _> = found.into_iter().collect();
    if std::env::var("ODRADEK_CRASH_LIST").is_ok_and(|what| what == "write") {
        let mut text = TABLE.lines().filter(|line| line.starts_with('#')).collect::<Vec<_>>().join("\n");
        for (name, line) in &found {
            if let Some((run, step, crash, what)) = line {
                text.push_str(&format!("\n{name} | {run} | {step} | {crash} | {what}"));
            }
        }
        text.push('\n');
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash_images/mutations.txt");
        std::fs::write(path, text).unwrap();
    }
    let is_harmless = |name: &str| HARMLESS.iter().any(|(one, _)| *one == name);
    let missed: Vec<_> = found
        .iter()
        .filter(|(name, line)| line.is_none() && !is_harmless(name))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(missed, Vec::<&String>::new(), "no image shows these");
    let shown: Vec<_> = found.iter().filter(|(name, line)| line.is_some() && is_harmless(name)).collect();
    assert_eq!(shown, Vec::<(&String, &Option<_>)>::new(), "an image shows these");
}

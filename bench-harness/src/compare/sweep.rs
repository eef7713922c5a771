//! What each key of ours does: our broker with one key changed at a time against itself without, so that a user can tune
//! a configuration from one table. Knows which keys are worth a look; the runs are those of `scenarios`.

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::contrast::{Known, RECORDS, Sides, within};
use super::host::{self, Machine};
use super::options::{Common, checked_pairs};
use super::report::{Contrast, FORMAT, Row};
use super::scenarios::tuning;
use super::series::{begin, leave, may_leave, versions_of};
use super::servers::{Broker, Kind, Plan};
use super::stage::Home;
use crate::args::refuse;

/// THE table of keys, with the values that are tried against the default.
pub const KEYS: &[(&str, &[&str])] = &[
    ("cores", &["[0,1]"]),
    ("memory.bytes", &["268435456", "1073741824"]),
    ("spin.before.park.us", &["20", "50", "200"]),
    ("storage.cache.fraction", &["0.01", "0.2", "0.5"]),
    ("log.segment.bytes", &["67108864"]),
    ("log.index.interval.bytes", &["65536"]),
    ("log.index.size.max.bytes", &["1048576"]),
    ("log.flush.offset.checkpoint.interval.ms", &["5000"]),
    ("log.message.timestamp.type", &["LogAppendTime"]),
    ("queued.max.request.bytes", &["16777216"]),
];

/// Keys of ours that change where things are, what an acknowledgement promises or whom a bound meets, not how fast they are.
pub const NOT_SWEPT: &[&str] = &[
    "groups.memory.bytes",
    "metadata.file",
    "admin.listener",
    "storage.free.space.floor.bytes",
    "storage.durability.mode",
    "storage.sync.max.delay.ms",
];

/// The effect of each key of our broker.
#[derive(Args, Clone, Debug)]
pub struct Sweep {
    /// Keys to try, separated by commas; all if unset.
    #[arg(long, value_delimiter = ',')]
    pub key: Vec<String>,
    /// Pairs of each value against the default; the first is discarded. 3 unless --quick, and then 2.
    #[arg(long)]
    pub pairs: Option<u32>,
    /// What it shares with `compare`.
    #[command(flatten)]
    pub common: Common,
}

impl Sweep {
    fn pairs(&self) -> Result<u32> {
        checked_pairs(self.pairs.unwrap_or(if self.common.quick { 2 } else { 3 }))
    }
}

/// One key with one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Against the default.
    pub contrast: Option<Contrast>,
    /// Why there is no result.
    pub failed: Option<String>,
}

/// All that a sweep found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Swept {
    /// Layout of this file.
    pub format: u32,
    /// Seconds since the epoch.
    pub started: u64,
    /// The command line.
    pub command: Vec<String>,
    /// Load average before it began.
    pub load_average: f64,
    /// Whether noise was allowed.
    pub noise_allowed: bool,
    /// The machine.
    pub machine: Machine,
    /// Versions by name.
    pub versions: std::collections::BTreeMap<String, String>,
    /// What was tried.
    pub tried: Vec<Tried>,
}

/// What to try: the table, or the part of it that was asked for.
///
/// # Errors
/// A key that is not in the table.
fn chosen(keys: &[String]) -> Result<Vec<(&'static str, &'static str)>> {
    if let Some(key) = keys.iter().find(|key| KEYS.iter().all(|(known, _)| known != key)) {
        refuse!("{key} is not swept; these are: {}", listed());
    }
    let wanted = |key: &str| keys.is_empty() || keys.iter().any(|wanted| wanted == key);
    Ok(KEYS
        .iter()
        .filter(|(key, _)| wanted(key))
        .flat_map(|(key, values)| values.iter().map(|value| (*key, *value)))
        .collect())
}

fn listed() -> String {
    KEYS.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ")
}

/// Runs `sweep`; returns the table, and what has no result.
///
/// # Errors
/// It cannot begin, or its results cannot be written.
pub fn sweep(sweep: &Sweep) -> Result<(String, Vec<String>)> {
    let common = &sweep.common;
    let (pairs, chosen) = (sweep.pairs()?, chosen(&sweep.key)?);
    may_leave(common)?;
    let versions = versions_of(common)?;
    let begun = begin(common)?;
    let home = &begun.home;
    let mut swept = Swept {
        format: FORMAT,
        started: host::unix_seconds(),
        command: std::env::args().collect(),
        load_average: begun.load_average,
        noise_allowed: common.allow_noise,
        machine: Machine::ask(&home.path),
        versions,
        tried: Vec::new(),
    };
    for (key, value) in chosen {
        home.say(&format!("== {key}={value}"));
        let found = tried(home, pairs, key, value);
        home.interrupt.check()?;
        let (contrast, failed) = match found {
            Ok(contrast) => (Some(contrast), None),
            Err(why) => {
                home.say(&format!("{key}={value} failed: {why:#}"));
                (None, Some(format!("{why:#}")))
            }
        };
        swept.tried.push(Tried { key: key.to_owned(), value: value.to_owned(), contrast, failed });
    }
    let text = markdown(&swept);
    leave(common, "sweep", swept.started, &serde_json::to_value(&swept)?, &text, None)?;
    let failed = swept.tried.into_iter().filter(|tried| tried.failed.is_some());
    Ok((text, failed.map(|tried| format!("{}={}", tried.key, tried.value)).collect()))
}

fn tried(home: &Home, pairs: u32, key: &str, value: &str) -> Result<Contrast> {
    let plain = home.common.odradek(1);
    let changed = with_key(&plain, key, value);
    let sides = Sides {
        what: format!("{key}={value}"),
        targets: Vec::new(),
        primary: "mb_per_s",
        kafka_highest: None,
        counts: RECORDS,
    };
    let mut first = |home: &Home, broker: &Broker, _: Known| tuning(home, broker);
    let mut second = |home: &Home, broker: &Broker, _: Known| tuning(home, broker);
    within(home, pairs, sides, ("changed", &changed, &mut first), ("default", &plain, &mut second))
}

/// The plan with one key changed. Cores are no mere setting: the process is pinned to them.
fn with_key(plain: &Plan, key: &str, value: &str) -> Plan {
    let mut changed = plain.clone();
    match (&mut changed.kind, key) {
        (Kind::Odradek { cores, .. }, "cores") => {
            *cores =
                value.trim_matches(['[', ']']).split(',').filter_map(|number| number.parse().ok()).collect();
        }
        _ => changed.settings.push((key.to_owned(), value.to_owned())),
    }
    changed
}

/// One table: for each value the ratio to the default, and its own value.
fn markdown(swept: &Swept) -> String {
    let machine = &swept.machine;
    let mut text = format!(
        "# Sweep at {} (seconds since 1970)\n\n{} x {}, {}, {}. Load average before: {:.2}. Each key alone against the \
         default: median ratio (least to most) and the median itself.{}\n\n\
         | key | value | MB/s | CPU-s/GB | p99 µs | p99.9 µs |\n|---|---|---|---|---|---|\n",
        swept.started,
        machine.processors,
        machine.processor,
        machine.memory,
        machine.kernel,
        swept.load_average,
        if swept.noise_allowed { " **Noise was allowed: no figure here is a claim.**" } else { "" },
    );
    for tried in &swept.tried {
        let rows = tried.contrast.as_ref().map(Contrast::rows).unwrap_or_default();
        let cells = ["mb_per_s", "cpu_s_per_gb", "p99_us", "p999_us"].map(|figure| cell(&rows, figure));
        let _ = writeln!(text, "| {} | {} | {} |", tried.key, tried.value, cells.join(" | "));
    }
    for tried in swept.tried.iter().filter(|tried| tried.failed.is_some()) {
        let why = tried.failed.as_deref().unwrap_or_default();
        let _ = write!(text, "\nNo result of {}={}: {why}\n", tried.key, tried.value);
    }
    text
}

fn cell(rows: &[Row], figure: &str) -> String {
    let row = rows.iter().find(|row| row.figure.split('@').next() == Some(figure));
    let digits = super::figures::kind(figure).map_or(3, |kind| kind.digits);
    row.and_then(|row| row.comparison.as_ref()).map_or_else(
        || "-".to_owned(),
        |found| {
            let ratio = found.ratio;
            format!(
                "x{:.2} ({:.2} to {:.2}), {:.digits$}",
                ratio.median, ratio.min, ratio.max, found.first.median
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::report::tests::{contrast, series};

    #[test]
    #[allow(clippy::disallowed_methods, reason = "reads the table of keys")]
    fn every_working_key_of_the_runtime_section_is_swept_or_says_why_not() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../broker/src/config/keys/ours.rs");
        let text = std::fs::read_to_string(path).unwrap();
        let working: Vec<&str> = text
            .lines()
            .filter(|line| line.contains(" ours, works,"))
            .filter_map(|line| line.trim().strip_prefix('"')?.split('"').next())
            .collect();
        assert!(working.contains(&"cores") && working.len() >= 4, "{working:?}");
        for key in working {
            let known = KEYS.iter().any(|(swept, _)| *swept == key) || NOT_SWEPT.contains(&key);
            assert!(known, "{key} is neither swept nor excluded");
        }
    }

    #[test]
    fn a_key_that_is_not_in_the_table_is_refused_with_those_that_are() {
        assert_eq!(chosen(&["spin.before.park.us".to_owned()]).unwrap().len(), 3);
        assert!(chosen(&[]).unwrap().len() > KEYS.len());
        let why = chosen(&["spin".to_owned()]).unwrap_err().to_string();
        assert!(why.contains("spin is not swept") && why.contains("memory.bytes"), "{why}");
    }

    #[test]
    fn a_sweep_takes_no_option_that_it_does_not_follow() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            sweep: Sweep,
        }
        use clap::Parser;
        let line = |words: &[&str]| Line::try_parse_from([&["x"], words].concat()).map(|line| line.sweep);
        assert_eq!(line(&[]).unwrap().pairs().unwrap(), 3);
        assert_eq!(line(&["--pairs", "6"]).unwrap().pairs().unwrap(), 6);
        assert!(line(&["--pairs", "1"]).unwrap().pairs().is_err());
        for other in
            [["--heaps", "1"], ["--scenario", "small"], ["--rates", "5"], ["--kafka-override", "a=b"]]
        {
            assert!(line(&other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn one_key_is_changed_and_nothing_else() {
        let kind = Kind::Odradek { binary: "x".into(), cores: vec![0] };
        let plain = Plan { kind, settings: Vec::new() };
        let changed = with_key(&plain, "memory.bytes", "1");
        assert_eq!(changed.kind, plain.kind);
        assert_eq!(changed.settings, [("memory.bytes".to_owned(), "1".to_owned())]);
        let two = with_key(&plain, "cores", "[0,1]");
        assert_eq!(
            (two.kind, two.settings),
            (Kind::Odradek { binary: "x".into(), cores: vec![0, 1] }, Vec::new())
        );
    }

    #[test]
    fn the_table_has_a_line_for_each_value_and_names_failures() {
        let series = series();
        let tried = |key: &str, contrast, failed| Tried {
            key: key.to_owned(),
            value: "1".to_owned(),
            contrast,
            failed,
        };
        let swept = Swept {
            format: FORMAT,
            started: 1,
            command: Vec::new(),
            load_average: 0.1,
            noise_allowed: false,
            machine: series.machine,
            versions: series.versions,
            tried: vec![
                tried("memory.bytes", Some(contrast()), None),
                tried("cores", None, Some("it ended".to_owned())),
            ],
        };
        let text = markdown(&swept);
        assert!(
            text.contains(
                "| memory.bytes | 1 | - | x0.25 (0.23 to 0.30), 1.000 | x1.00 (0.90 to 1.20), 1000 | - |"
            ),
            "{text}"
        );
        assert!(
            text.contains("| cores | 1 | - | - | - | - |") && text.contains("No result of cores=1: it ended"),
            "{text}"
        );
    }
}

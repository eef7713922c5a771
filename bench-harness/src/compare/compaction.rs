//! Scenario `compaction`: the same dirty log cleaned by either side, watched from outside; and the latency of appends to ours
//! while it cleans another topic on the same shard. Knows what is measured and what the issue asks; what a dirty log is, is
//! `dirty`'s, and when it is clean, `clean`'s.
#![allow(clippy::disallowed_methods, reason = "a harness asks the kernel about a broker")]

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::awake::Awake;
use super::clean::{Cleaning, Look, Seen};
use super::contrast::{Known, RECORDS, Sides, against_kafka, within};
use super::dirty::{Dirty, PATIENCE, REPEATS, VALUE_BYTES, fingerprint, let_clean};
use super::figures::{Figures, Limit};
use super::job::{Job, latency, needed};
use super::memory;
use super::options::{CLEANER_SETTINGS, Compare};
use super::promise::Promises;
use super::report::Contrast;
use super::scenarios::{LEAD_IN, SPIN_US, Scene, on_fresh_topic, target};
use super::servers::{BROKER_PROCESSOR, Broker};
use super::stage::{Found, Home};
use crate::client::Client;
use crate::clock::{Clock, seconds};
use crate::measure::machine::GIB;
use crate::measure::others::{Foreign, Reading};
use crate::measure::process::Sample;
use crate::measure::{float, ratio, rounded};

/// Between two looks at the files: by as much an end may be told too late.
const LOOK: Duration = Duration::from_millis(20);
/// Seconds without a change after which a cleaner is said to stand still.
const STILL_SECONDS: f64 = 120.0;
/// Between writing a log and letting it be cleaned: what was rolled is flushed meanwhile, without which ours is not cleaned.
const REST: Duration = Duration::from_secs(1);
/// Records per second of the tail beside which is cleaned, and its partitions.
const TAIL_RATE: u32 = 20_000;
const TAIL_PARTITIONS: u32 = 4;
/// A dirty log that is cleaned beside a tail is at most so many times as large as that of the comparison.
pub const BESIDE_TIMES_MAX: u32 = 4;
/// Seconds that a tail takes beyond its measured ones, at most.
const TAIL_AROUND: f64 = 2.0;
/// Of the windows of a warm-up a log is a part.
const WINDOW_PART: i32 = 4;

/// Plays it; what it found before it failed stays in `found`.
///
/// # Errors
/// A broker or a run fails.
pub fn play(scene: &Scene<'_>, found: &mut Vec<Contrast>) -> Result<()> {
    let compare = scene.compare.for_cleaning()?;
    let dirty = Dirty::of_bytes(compare.compaction_gib() * GIB)?;
    let cleaned = speed(scene, &compare, dirty)?;
    let rows = cleaned.rows();
    let ours = rows.iter().find(|row| row.figure == "mb_per_s").map(|row| row.first.median);
    found.push(cleaned);
    found.push(appends(scene, &compare, dirty, ours.context("no speed was measured")?)?);
    Ok(())
}

fn speed(scene: &Scene<'_>, compare: &Compare, dirty: Dirty) -> Result<Contrast> {
    let window = Dirty::of_partitions(dirty.partitions / WINDOW_PART)?;
    let sides = Sides {
        what: format!(
            "A dirty log of {:.2} GB in {} partitions is cleaned: records of {VALUE_BYTES} bytes without a codec, {} keys in \
             each partition, drawn at random, each there {REPEATS} times in the mean; segments of 16 MiB, all in the page \
             cache, the same bytes each time (a fingerprint of all batches is compared). From the change of \
             `min.cleanable.dirty.ratio` that lets it begin until the last segment was replaced, once \
             `cleaner-offset-checkpoint` has reached every active segment; then all is read back: the last record of each \
             key at its offset, and nothing else. MB are those that there were to clean. Kafka with the first of its heaps \
             only, which holds its map of keys from its start on; ours takes it for a round.",
            float(dirty.bytes()) / 1e9,
            dirty.partitions,
            dirty.keys(),
        ),
        targets: vec![
            target("mb_per_s", Limit::RatioAtLeast(1.0)),
            target("cpu_s_per_gb", Limit::RatioAtMost(1.0)),
            target("rss_max_mib", Limit::RatioAtMost(1.0)),
        ],
        primary: "mb_per_s",
        kafka_highest: None,
        counts: "MB",
    };
    let (first_window, first) = (Cell::default(), Cell::default());
    let mut warm = |home: &Home, broker: &Broker| {
        let report =
            on_fresh_topic(home, broker, |topic| clean(home, broker, topic, &window, &first_window))?;
        needed(&report, "/compaction/megabytes_per_second")
    };
    let mut act = |home: &Home, broker: &Broker, _: Known| -> Result<Found> {
        let report = on_fresh_topic(home, broker, |topic| clean(home, broker, topic, &dirty, &first))?;
        let figures = figures_of(&report)?;
        let mut found = Found::default();
        found.take(report, figures);
        Ok(found)
    };
    let mut contrast =
        against_kafka(scene.home, compare, (sides, Promises::Settings), Some(&mut warm), &mut act)?;
    contrast.notes.push(alike());
    Ok(contrast)
}

fn alike() -> String {
    let settings: Vec<String> =
        CLEANER_SETTINGS.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("both sides, unless both were told otherwise: {}", settings.join(", "))
}

/// Writes a dirty log, which is on the disk and in the page cache then; fails if it is not the one that was written first.
fn write(
    home: &Home,
    broker: &Broker,
    topic: &str,
    dirty: &Dirty,
    first: &Cell<Option<u32>>,
) -> Result<Look> {
    dirty.write(&broker.bootstrap(), topic, &home.interrupt)?;
    memory::write_back(&broker.logs())?;
    let found = fingerprint(&broker.logs(), topic)?;
    if let Some(before) = first.replace(Some(found)) {
        ensure!(before == found, "{} wrote another log than the one before", broker.name());
    }
    home.interrupt.pause(REST)?;
    Look::take(&broker.logs(), topic)
}

/// Writes a log, has it cleaned, and proves what is left.
fn clean(
    home: &Home,
    broker: &Broker,
    topic: &str,
    dirty: &Dirty,
    first: &Cell<Option<u32>>,
) -> Result<Value> {
    let look = write(home, broker, topic, dirty, first)?;
    let active = look.active();
    let mut client = Client::connect(&broker.bootstrap(), PATIENCE)?;
    reset_peak(broker)?;
    let before = sample(broker)?;
    let others = Reading::take(&[])?;
    let clock = Clock::start();
    let_clean(&mut client, topic)?;
    let mut cleaning = Cleaning::new(look);
    let mut after = before;
    loop {
        home.interrupt.pause(LOOK)?;
        let at = seconds(clock.now());
        match cleaning.see(at, Look::take(&broker.logs(), topic)?) {
            Seen::Changed => after = sample(broker)?,
            Seen::Clean => break,
            Seen::Nothing if at - cleaning.changed_at() > STILL_SECONDS => {
                bail!("{} has cleaned nothing for {STILL_SECONDS} s", broker.name())
            }
            Seen::Nothing => {}
        }
    }
    let foreign = Reading::take(&[])?.since(&others);
    let peak = sample(broker)?.rss_peak_bytes;
    let left = Look::take(&broker.logs(), topic)?.cleanable_bytes();
    let records = dirty.prove(&broker.bootstrap(), topic, &active, &home.interrupt)?;
    let (took, bytes) = (cleaning.changed_at(), cleaning.dirty().cleanable_bytes());
    let spent = Spent { took, bytes, before, after: Sample { rss_peak_bytes: peak, ..after } };
    let mut report = spent.to_json(&foreign);
    if let Some(section) = report.pointer_mut("/compaction").and_then(Value::as_object_mut) {
        section.insert("left_bytes".to_owned(), left.into());
        section.insert("left_records".to_owned(), records.into());
        section.insert("fingerprint".to_owned(), first.get().into());
    }
    Ok(report)
}

fn sample(broker: &Broker) -> Result<Sample> {
    Sample::take(broker.id()).with_context(|| format!("{} has ended", broker.name()))
}

/// Makes the highest resident memory so far that of now.
fn reset_peak(broker: &Broker) -> Result<()> {
    const PEAK: &str = "5";
    let path = format!("/proc/{}/clear_refs", broker.id());
    std::fs::write(&path, PEAK).with_context(|| format!("{path} cannot be written"))
}

/// What a cleaning took.
#[derive(Clone, Copy, Debug)]
struct Spent {
    took: f64,
    bytes: u64,
    before: Sample,
    after: Sample,
}

impl Spent {
    fn to_json(self, foreign: &Foreign) -> Value {
        let Self { took, bytes, before, after } = self;
        let gb = float(bytes) / 1e9;
        let (user, system) =
            (after.user_seconds - before.user_seconds, after.system_seconds - before.system_seconds);
        let per_gb = |spent: f64| rounded(ratio(spent, gb), 4);
        json!({
            "command": "compaction",
            "void": [],
            "window": {
                "seconds": rounded(took, 3),
                "other_cpu_cores": rounded(foreign.load, 3),
                "kernel_cpu_cores": rounded(foreign.kernel, 3),
                "stolen_cpu_cores": rounded(foreign.steal, 3),
            },
            "compaction": {
                "bytes": bytes,
                "seconds": rounded(took, 3),
                "megabytes_per_second": rounded(ratio(gb * 1e3, took), 2),
            },
            "broker": {
                "cpu_seconds": rounded(user + system, 2),
                "cpu_seconds_per_gb": per_gb(user + system),
                "user_seconds_per_gb": per_gb(user),
                "system_seconds_per_gb": per_gb(system),
                "rss_before_bytes": before.rss_bytes,
                "rss_peak_bytes": after.rss_peak_bytes,
                "read_bytes": after.read_bytes.zip(before.read_bytes).map(|(to, from)| to.saturating_sub(from)),
                "write_bytes": after.write_bytes.zip(before.write_bytes).map(|(to, from)| to.saturating_sub(from)),
            },
        })
    }
}

/// What the report of a cleaning says.
fn figures_of(report: &Value) -> Result<Figures> {
    const MIB: f64 = 1_048_576.0;
    let of = [
        ("mb_per_s", "/compaction/megabytes_per_second", 1.0),
        ("cpu_s_per_gb", "/broker/cpu_seconds_per_gb", 1.0),
        ("cpu_user_s_per_gb", "/broker/user_seconds_per_gb", 1.0),
        ("cpu_system_s_per_gb", "/broker/system_seconds_per_gb", 1.0),
        ("rss_mib", "/broker/rss_before_bytes", MIB),
        ("rss_max_mib", "/broker/rss_peak_bytes", MIB),
    ];
    let found = of.iter().map(|(figure, path, unit)| {
        let value = needed(report, path)? / unit;
        Ok(((*figure).to_owned(), value))
    });
    let mut figures = found.collect::<Result<Figures>>()?;
    let rest = |name: &str| figures.get(name).copied().unwrap_or_default();
    let above = (rest("rss_max_mib") - rest("rss_mib")).max(0.0);
    figures.insert("rss_above_mib".to_owned(), above);
    Ok(figures)
}

/// How large a log has to be that is cleaned at this speed for as long as a tail of so many seconds takes, in partitions, and
/// how long the tail may be at most beside a log that is not too large.
fn beside(mb_per_s: f64, tail_seconds: u32, dirty: Dirty) -> Result<(Dirty, u32)> {
    const MARGIN: f64 = 1.1;
    let most = i32::try_from(BESIDE_TIMES_MAX)?.saturating_mul(dirty.partitions);
    let bytes = |tail: u32| mb_per_s * 1e6 * MARGIN * (f64::from(tail) + LEAD_IN + TAIL_AROUND);
    let mut tail = tail_seconds;
    loop {
        let wanted = Dirty::of_bytes(bytes(tail))?;
        if wanted.partitions <= most {
            return Ok((Dirty::of_partitions(wanted.partitions.max(dirty.partitions))?, tail));
        }
        tail = tail.saturating_sub(1);
        ensure!(tail > 0, "{most} partitions are clean before a tail is measured beside them");
    }
}

/// Appends to one topic while another one is cleaned on the same shard, and while it is there and is not.
fn appends(scene: &Scene<'_>, compare: &Compare, dirty: Dirty, mb_per_s: f64) -> Result<Contrast> {
    let (dirty, tail_seconds) = beside(mb_per_s, scene.home.common.seconds(), dirty)?;
    let sides = Sides {
        what: format!(
            "Ours: records of 1 KiB appended at {TAIL_RATE}/s over {TAIL_PARTITIONS} partitions for {tail_seconds} s, acks=1, \
             linger 1 ms, from the scheduled time until acknowledged, while the one shard cleans a log of {:.1} GB and while \
             that log lies there and is not cleaned. Processors are kept from halting.",
            float(dirty.bytes()) / 1e9
        ),
        targets: vec![target(&format!("p99_us@{TAIL_RATE}/s"), Limit::RatioAtMost(1.2))],
        primary: "p99_us",
        kafka_highest: None,
        counts: RECORDS,
    };
    let first = Cell::default();
    let run = |home: &Home, broker: &Broker, is_cleaned: bool| {
        on_fresh_topic(home, broker, |topic| {
            let look = write(home, broker, topic, &dirty, &first)?;
            tail(home, broker, (topic, &look), tail_seconds, is_cleaned)
        })
    };
    let mut with = |home: &Home, broker: &Broker, _: Known| run(home, broker, true);
    let mut without = |home: &Home, broker: &Broker, _: Known| run(home, broker, false);
    let plan = compare.common.odradek(1);
    let mut contrast = within(
        scene.home,
        compare.pairs()?,
        sides,
        ("odradek while it cleans", &plan, &mut with),
        ("odradek while it does not", &plan, &mut without),
    )?;
    contrast.notes.push(alike());
    Ok(contrast)
}

/// The tail, beside a log that is cleaned meanwhile or not.
fn tail(
    home: &Home,
    broker: &Broker,
    (dirty_topic, dirty): (&str, &Look),
    tail_seconds: u32,
    is_cleaned: bool,
) -> Result<Found> {
    let _awake = Awake::start(home, &[BROKER_PROCESSOR])?;
    if is_cleaned {
        let_clean(&mut Client::connect(&broker.bootstrap(), PATIENCE)?, dirty_topic)?;
    }
    let clock = Clock::start();
    let (report, later, took) = on_fresh_topic(home, broker, |topic| {
        let report = Job::new("produce", &["--no-perf"])
            .at(broker)
            .with("--topic", topic)
            .with("--partitions", TAIL_PARTITIONS)
            .with("--rate", TAIL_RATE)
            .with("--linger-ms", 1)
            .with("--spin-us", SPIN_US)
            .with("--connections", TAIL_PARTITIONS)
            .with("--warmup", LEAD_IN)
            .lasting(LEAD_IN + f64::from(tail_seconds))
            .run(home)?;
        // Before anything is cleaned up: what was done beside it.
        let took = seconds(clock.now());
        Ok((report, Look::take(&broker.logs(), dirty_topic)?, took))
    })?;
    let mut figures = latency(&report, &format!("{TAIL_RATE}/s"))?;
    let mut found = Found::default();
    let replaced = dirty.replaced_bytes(&later);
    found.void.extend(not_beside(is_cleaned, dirty.cleanable_bytes(), replaced));
    if is_cleaned {
        figures.insert("cleaner_mb_per_s".to_owned(), ratio(float(replaced) / 1e6, took));
    }
    found.take(report, figures);
    Ok(found)
}

/// Why a tail was not measured beside a cleaner, or not without one.
fn not_beside(is_cleaned: bool, bytes: u64, replaced: u64) -> Option<String> {
    match (is_cleaned, replaced) {
        (true, 0) => Some("nothing was cleaned beside the appends".to_owned()),
        (true, all) if all >= bytes => Some("the log was clean before the run was over".to_owned()),
        (false, 1..) => Some("the log was cleaned although nobody was to do it".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::figures;

    #[test]
    fn what_a_cleaning_took_becomes_figures_that_tables_know() {
        let before = Sample { user_seconds: 1.0, rss_bytes: 100 << 20, ..Sample::default() };
        let after = Sample {
            user_seconds: 4.0,
            system_seconds: 1.0,
            rss_peak_bytes: 130 << 20,
            read_bytes: Some(1),
            ..Sample::default()
        };
        let spent = Spent { took: 8.0, bytes: 2_000_000_000, before, after };
        let foreign = Foreign { load: 0.25, kernel: 0.5, steal: 0.0 };
        let report = spent.to_json(&foreign);
        let found = figures_of(&report).unwrap();
        for (name, value) in [
            ("mb_per_s", 250.0),
            ("cpu_s_per_gb", 2.0),
            ("cpu_user_s_per_gb", 1.5),
            ("cpu_system_s_per_gb", 0.5),
            ("rss_mib", 100.0),
            ("rss_max_mib", 130.0),
            ("rss_above_mib", 30.0),
        ] {
            assert_eq!(found.get(name), Some(&value), "{name}");
            assert!(figures::kind(name).is_some(), "{name} has no row");
        }
        assert_eq!(found.len(), 7);
        assert_eq!(report["window"]["other_cpu_cores"], 0.25);
        assert_eq!(
            report["broker"]["read_bytes"],
            Value::Null,
            "of what is not known there is no difference"
        );
        assert!(figures_of(&json!({})).is_err());
        assert!(figures::kind("cleaner_mb_per_s").is_some());
    }

    #[test]
    fn a_log_is_cleaned_for_longer_than_the_tail_beside_it_takes() {
        let dirty = Dirty::of_bytes(2e9).unwrap();
        let (slow, tail) = beside(50.0, 10, dirty).unwrap();
        assert_eq!((slow, tail), (dirty, 10));
        let (fast, tail) = beside(300.0, 10, dirty).unwrap();
        assert!(fast.partitions > dirty.partitions && tail == 10, "{fast:?}");
        assert!(float(fast.bytes()) > 300e6 * 13.0);
        let (most, tail) = beside(1000.0, 10, dirty).unwrap();
        assert!(most.partitions <= 80 && (1..10).contains(&tail), "{most:?} {tail}");
        assert!(float(most.bytes()) > 1e9 * (f64::from(tail) + 3.0));
        assert!(beside(10_000.0, 10, dirty).is_err());
    }

    #[test]
    fn a_cleaner_that_was_idle_or_done_makes_the_run_void() {
        assert_eq!(not_beside(true, 100, 50), None);
        assert!(not_beside(true, 100, 0).is_some_and(|why| why.contains("nothing was cleaned")));
        assert!(not_beside(true, 100, 100).is_some_and(|why| why.contains("before the run was over")));
        assert_eq!(not_beside(false, 100, 0), None);
        assert!(not_beside(false, 100, 1).is_some());
    }
}

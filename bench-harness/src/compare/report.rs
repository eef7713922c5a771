//! What a series found: the raw data, every pair of it, and the Markdown table made of them. Measures nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::contrast::RECORDS;
use super::figures::{self, Figures, Held, Limit, Target, hold};
use super::host::Machine;
use super::noise::Conditions;
use super::promise::Promises;
use super::servers::{Durability, Kind, Plan};
use super::stats::{self, Better, Comparison, Spread, Verdict, Warmth};

/// One measured run of one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What was found.
    pub figures: Figures,
    /// What else went on.
    pub conditions: Conditions,
    /// Why the run would be void, where noise was allowed.
    pub remarks: Vec<String>,
    /// How often the run was tried before: void ones are repeated.
    pub voided: Vec<String>,
    /// What the load generators said, as they said it.
    pub raw: Vec<Value>,
}

/// Two runs one after the other; only one where there is nobody to compare with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Of the first side.
    pub first: Run,
    /// Of the second side.
    pub second: Option<Run>,
}

/// The side that is Apache Kafka, with any heap.
pub const KAFKA: &str = "kafka";

/// Field of a generator's report: under which condition of a figure it ran, where there is one.
pub const CONDITION: &str = "condition";
/// Field of a generator's report: why it was run again before, each time.
pub const LATE_BEFORE: &str = "late_before";

impl Run {
    /// How often this run, or the part of it under a condition, was made and put aside before.
    fn put_aside(&self, condition: Option<&str>) -> usize {
        let of = |report: &Value| condition == report.get(CONDITION).and_then(Value::as_str);
        let late = self.raw.iter().filter(|report| of(report));
        let late = late.filter_map(|report| report.get(LATE_BEFORE)?.as_array()).map(Vec::len);
        self.voided.len() + late.sum::<usize>()
    }
}

/// How a side was warmed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// Which.
    pub side: String,
    /// What is counted per second in each window.
    pub windows: Vec<f64>,
    /// What that is.
    #[serde(default = "records")]
    pub counts: String,
}

/// What earlier results counted.
fn records() -> String {
    RECORDS.to_owned()
}

/// One side against another, pair by pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contrast {
    /// A sentence on what is done.
    pub what: String,
    /// The first side.
    pub first: String,
    /// The second side, if there is one.
    pub second: Option<String>,
    /// What the figures are held against.
    pub targets: Vec<Target>,
    /// How the sides were warmed.
    pub warm_ups: Vec<WarmUp>,
    /// What was decided on the way, such as the heap that counts.
    pub notes: Vec<String>,
    /// What an acknowledgement waited for, where the brokers' settings do not say it.
    #[serde(default)]
    pub promises: Promises,
    /// All pairs; the first is the discarded one.
    pub pairs: Vec<Pair>,
}

/// One figure of a contrast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub figure: String,
    /// The first side's.
    pub first: Spread,
    /// Against the second side, where it has the figure.
    pub comparison: Option<Comparison>,
    /// Runs of both sides that count, and how many were void and repeated before.
    pub runs: (usize, usize),
}

impl Contrast {
    /// Whether every Kafka that was warmed was warm at the end: else its rate was still moving, and no ratio to it counts, nor
    /// does the choice among its heaps.
    pub fn is_warm(&self) -> bool {
        let kafkas = self.warm_ups.iter().filter(|warmed| warmed.side.starts_with(KAFKA));
        kafkas.map(|warmed| Warmth::of(&warmed.windows)).all(|warmth| warmth != Warmth::Moving)
    }

    /// The highest closed-loop rate of any Kafka here in records per second, warm-up included.
    pub fn kafka_highest(&self) -> Option<f64> {
        let warmed = self.warm_ups.iter().filter(|warmed| warmed.side.starts_with(KAFKA));
        let is_kafka = |name: &String| name.starts_with(KAFKA);
        let second = self.second.as_ref().is_some_and(is_kafka);
        let runs = self.pairs.iter().filter_map(|pair| pair.second.as_ref()).filter(|_| second);
        let measured = runs.filter_map(|run| run.figures.get("records_per_s").copied());
        warmed.flat_map(|warmed| warmed.windows.iter().copied()).chain(measured).max_by(f64::total_cmp)
    }

    /// The figures that every measured run of the first side has.
    pub fn rows(&self) -> Vec<Row> {
        let measured = stats::measured(&self.pairs);
        let mut names: Vec<String> =
            measured.first().map(|pair| pair.first.figures.keys().cloned().collect()).unwrap_or_default();
        figures::sort(&mut names);
        names.into_iter().filter_map(|name| self.row(measured, name)).collect()
    }

    fn row(&self, measured: &[Pair], figure: String) -> Option<Row> {
        let of = |run: &Run| run.figures.get(&figure).copied();
        let first: Option<Vec<f64>> = measured.iter().map(|pair| of(&pair.first)).collect();
        let both: Option<Vec<(f64, f64)>> =
            self.pairs.iter().map(|pair| Some((of(&pair.first)?, of(pair.second.as_ref()?)?))).collect();
        let better = figures::kind(&figure).map_or(Better::Lower, |kind| kind.better);
        let mut comparison = both.and_then(|both| stats::compare(&both, better));
        if let Some(found) = comparison.as_mut().filter(|_| !self.is_warm()) {
            found.verdict = Verdict::NotWarm;
        }
        let condition = figure.split_once('@').map(|(_, condition)| condition);
        let runs = measured.iter().flat_map(|pair| std::iter::once(&pair.first).chain(&pair.second));
        let runs = runs.fold((0, 0), |(runs, aside), run| (runs + 1, aside + run.put_aside(condition)));
        Some(Row { first: Spread::of(first?)?, comparison, figure, runs })
    }

    /// The targets against what was found; one whose figure is missing is not met by silence, but listed without.
    pub fn held(&self) -> Vec<(Target, Option<Held>)> {
        let rows = self.rows();
        let against = |target: &Target| {
            let row = rows.iter().find(|row| row.figure == target.figure)?;
            let ratio = row.comparison.as_ref().filter(|_| self.is_warm()).map(|found| &found.ratio);
            hold(target, ratio, &row.first)
        };
        self.targets.iter().map(|target| (target.clone(), against(target))).collect()
    }
}

/// One scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: String,
    /// What it took.
    pub seconds: f64,
    /// What was compared.
    pub contrasts: Vec<Contrast>,
    /// Why there is no result.
    pub failed: Option<String>,
}

/// Everything that a series found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Layout of this file.
    pub format: u32,
    /// Seconds since the epoch.
    pub started: u64,
    /// The command line.
    pub command: Vec<String>,
    /// Load average before it began.
    pub load_average: f64,
    /// Whether noise was allowed, which makes the result worth nothing as a claim.
    pub noise_allowed: bool,
    /// What both sides promise.
    pub durability: Durability,
    /// The machine.
    pub machine: Machine,
    /// Versions by name.
    pub versions: BTreeMap<String, String>,
    /// The brokers, their settings and flags as they ran.
    pub brokers: Vec<BrokerRecord>,
    /// What `ceiling` said in the same hour.
    pub ceiling: Option<Value>,
    /// The scenarios.
    pub scenarios: Vec<Scenario>,
}

/// A broker as it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerRecord {
    /// What was asked for.
    pub plan: Plan,
    /// All settings.
    pub configuration: Vec<(String, String)>,
    /// Flags of the Java machine.
    pub jvm: Vec<String>,
}

/// The layout of [`Series`].
pub const FORMAT: u32 = 1;

/// The result as Markdown.
pub fn markdown(series: &Series) -> String {
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = write!(text, "# Comparison at {} (seconds since 1970)\n\n{}\n", series.started, heading(series));
    for scenario in &series.scenarios {
        let _ = write!(text, "\n## {} ({:.0} s)\n", scenario.name, scenario.seconds);
        if let Some(why) = &scenario.failed {
            let rest = if scenario.contrasts.is_empty() { "" } else { " of the rest" };
            let _ = write!(text, "\nNo result{rest}: {why}\n");
        }
        for contrast in &scenario.contrasts {
            let _ = write!(text, "\n{}", section(contrast));
        }
    }
    text
}

fn heading(series: &Series) -> String {
    let machine = &series.machine;
    let versions: Vec<String> =
        series.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let promise = match series.durability {
        Durability::PageCache => "acknowledged when the page cache has it (Kafka's default), both sides",
        Durability::Disk => "acknowledged when the disk has it, both sides",
        Durability::Memory => "acknowledged when memory has it, both sides",
    };
    let mut text = format!(
        "{} x {}, {}, {}, {}; {}. {}. Load average before: {:.2}. Broker on processor 0, client on processor 1.\n\
         Ratios are first to second side, pair by pair; the first pair is discarded; a claim needs all pairs on one side.",
        machine.processors,
        machine.processor,
        machine.memory,
        machine.kernel,
        machine.disk,
        versions.join(", "),
        promise,
        series.load_average
    );
    if series
        .scenarios
        .iter()
        .flat_map(|scenario| &scenario.contrasts)
        .any(|one| one.promises != Promises::Settings)
    {
        text.push_str(" Scenario durability says itself when a record is acknowledged.");
    }
    if !series.brokers.iter().any(|broker| matches!(broker.plan.kind, Kind::Kafka { .. })) {
        text.push_str("\n\n**There was no Kafka: Odradek alone. No figure here says anything about Kafka.**");
    }
    if series.noise_allowed {
        text.push_str("\n\n**Noise was allowed: no figure here is a claim.**");
    }
    text
}

fn section(contrast: &Contrast) -> String {
    let second = contrast.second.as_deref().unwrap_or("nobody");
    let mut text = format!("{}\n\n", contrast.what);
    if let Some(sentence) = contrast.promises.sentence() {
        let _ = writeln!(text, "- {sentence}");
    }
    for warm_up in &contrast.warm_ups {
        let windows: Vec<String> = warm_up.windows.iter().map(|rate| format!("{rate:.0}")).collect();
        let warmth = match Warmth::of(&warm_up.windows) {
            Warmth::Agrees => "the last three agree within 3 %",
            Warmth::Level => "level: the medians of the last seven and of the seven before agree within 3 %",
            Warmth::Moving => "neither three in a row nor seven and seven agree within 3 %: not warm",
        };
        let (side, windows, counts) = (&warm_up.side, windows.join(", "), &warm_up.counts);
        let _ = writeln!(text, "- {side} warmed: {windows} {counts}/s; {warmth}");
    }
    for note in &contrast.notes {
        let _ = writeln!(text, "- {note}");
    }
    let noisy = contrast.pairs.iter().flat_map(|pair| std::iter::once(&pair.first).chain(&pair.second));
    let (runs, remarked, voided) = noisy.fold((0, 0, 0), |(runs, remarked, voided), run| {
        (runs + 1, remarked + usize::from(!run.remarks.is_empty()), voided + run.voided.len())
    });
    let _ = writeln!(
        text,
        "- {} pairs, the first discarded; {remarked} of {runs} runs were noisy; {voided} void ones were repeated. \
         Column void: runs that count, and how often one was void before and repeated\n",
        contrast.pairs.len()
    );
    let _ = writeln!(
        text,
        "| figure | {} | {second} | ratio (min to max) | claim | void |\n|---|---|---|---|---|---|",
        contrast.first
    );
    for row in contrast.rows() {
        text.push_str(&table_row(contrast, &row));
    }
    for (target, held) in contrast.held() {
        let _ = write!(text, "\n- target: {}: {}", sentence(&target), verdict_on(contrast, held.as_ref()));
    }
    if !contrast.targets.is_empty() {
        text.push('\n');
    }
    text
}

fn table_row(contrast: &Contrast, row: &Row) -> String {
    let digits = figures::kind(&row.figure).map_or(3, |kind| kind.digits);
    let spread = |spread: &Spread| {
        format!("{:.digits$} ({:.digits$} to {:.digits$})", spread.median, spread.min, spread.max)
    };
    let label = figures::label(&row.figure);
    let first = spread(&row.first);
    row.comparison.as_ref().map_or_else(
        || format!("| {label} | {first} | | | | {} + {} |\n", row.runs.0, row.runs.1),
        |found| {
            let Spread { median, min, max } = found.ratio;
            let claim = match found.verdict {
                Verdict::FirstBetter => format!("{} better in all pairs", contrast.first),
                Verdict::SecondBetter => {
                    format!("{} better in all pairs", contrast.second.as_deref().unwrap_or_default())
                }
                Verdict::NoClaim => "none: pairs on both sides".to_owned(),
                Verdict::TooFew => "none: too few pairs".to_owned(),
                Verdict::NotWarm => "none: Kafka was not warm".to_owned(),
            };
            let second = spread(&found.second);
            let (runs, aside) = row.runs;
            format!(
                "| {label} | {first} | {second} | {median:.3} ({min:.3} to {max:.3}) | {claim} | {runs} + {aside} |\n"
            )
        },
    )
}

fn sentence(target: &Target) -> String {
    let label = figures::label(&target.figure);
    match target.limit {
        Limit::RatioAtMost(bound) => format!("{label} at most {bound:.3} times the other side's"),
        Limit::RatioAtLeast(bound) => format!("{label} at least {bound:.3} times the other side's"),
        Limit::AtMost(bound) => format!("{label} at most {bound}"),
        Limit::RatioOrValue(times, value) => {
            format!("{label} at most {times:.3} times the other side's, or at most {value:.3}")
        }
    }
}

fn verdict_on(contrast: &Contrast, held: Option<&Held>) -> String {
    held.map_or_else(
        || match (&contrast.second, contrast.is_warm()) {
            (_, false) => "**not measured**: Kafka was not warm".to_owned(),
            (None, _) => "**not measured**: there was nobody to compare with".to_owned(),
            _ => "**not measured**".to_owned(),
        },
        |held| {
            let word = if held.met { "met" } else { "**missed**" };
            format!("{word} ({:.3} against {:.3})", held.found, held.bound)
        },
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::compare::servers::Kind;

    fn run(values: &[(&str, f64)]) -> Run {
        let figures = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Run { figures, ..Default::default() }
    }

    pub fn contrast() -> Contrast {
        let pair = |ours: f64, theirs: f64| Pair {
            first: run(&[("cpu_s_per_gb", ours), ("p99_us@50 %", ours * 1000.0), ("rss_mib", 20.0)]),
            second: Some(run(&[("cpu_s_per_gb", theirs), ("p99_us@50 %", 1000.0)])),
        };
        let target = |figure: &str, limit| Target { figure: figure.to_owned(), limit };
        Contrast {
            what: "One thing is done.".to_owned(),
            first: "odradek".to_owned(),
            second: Some("kafka-1g".to_owned()),
            targets: vec![
                target("cpu_s_per_gb", Limit::RatioAtMost(1.0 / 3.0)),
                target("rss_mib", Limit::AtMost(10.0)),
                target("mb_per_s", Limit::RatioAtLeast(1.0)),
            ],
            warm_ups: vec![WarmUp {
                side: "kafka-1g".to_owned(),
                windows: vec![10.0, 20.0, 20.1, 20.2],
                counts: records(),
            }],
            notes: Vec::new(),
            promises: Promises::Settings,
            pairs: vec![pair(90.0, 1.0), pair(1.0, 4.0), pair(1.2, 4.0), pair(0.9, 4.0), pair(1.0, 4.0)],
        }
    }

    pub fn series() -> Series {
        let plan = Plan { kind: Kind::Odradek { binary: "o".into(), cores: vec![0] }, settings: Vec::new() };
        Series {
            format: FORMAT,
            started: 1_790_000_000,
            command: vec!["odradek-bench".to_owned(), "compare".to_owned()],
            load_average: 0.1,
            noise_allowed: false,
            durability: Durability::PageCache,
            machine: Machine {
                processor: "P".to_owned(),
                processors: 2,
                memory: "23.5 GiB".to_owned(),
                kernel: "Linux 6".to_owned(),
                disk: "ext4 on /dev/vda".to_owned(),
                java: "J".to_owned(),
            },
            versions: BTreeMap::from([("kafka".to_owned(), "3.9.2".to_owned())]),
            brokers: vec![BrokerRecord { configuration: Vec::new(), jvm: Vec::new(), plan }],
            ceiling: None,
            scenarios: vec![Scenario {
                name: "throughput".to_owned(),
                seconds: 12.0,
                contrasts: vec![contrast()],
                failed: None,
            }],
        }
    }

    #[test]
    fn the_table_says_figures_ratios_claims_and_targets() {
        let text = markdown(&series());
        assert!(text.contains("| broker CPU-s/GB | 1.000 (0.900 to 1.200) | 4.000 (4.000 to 4.000) | 0.250 (0.225 to 0.300) | odradek better in all pairs | 8 + 0 |"), "{text}");
        assert!(text.contains("| p99 µs at 50 % | 1000 (900 to 1200) | 1000 (1000 to 1000) | 1.000 (0.900 to 1.200) | none: pairs on both sides | 8 + 0 |"), "{text}");
        assert!(text.contains("| RSS, MiB | 20.0 (20.0 to 20.0) | | | | 8 + 0 |"), "{text}");
        assert!(text.contains("at most 0.333 times the other side's: met (0.250 against 0.333)"), "{text}");
        assert!(text.contains("RSS, MiB at most 10: **missed** (20.000 against 10.000)"), "{text}");
        assert!(text.contains("MB/s at least 1.000 times the other side's: **not measured**"), "{text}");
        assert!(
            text.contains("kafka-1g warmed: 10, 20, 20, 20 records/s; the last three agree within 3 %"),
            "{text}"
        );
        assert!(!text.contains("Noise was allowed"));
    }

    #[test]
    fn noise_and_failures_are_said() {
        let mut noisy = series();
        noisy.noise_allowed = true;
        noisy.scenarios[0].failed = Some("the broker ended by itself".to_owned());
        let text = markdown(&noisy);
        assert!(text.contains("**Noise was allowed: no figure here is a claim.**"));
        assert!(text.contains("No result of the rest: the broker ended by itself"));
        noisy.scenarios[0].contrasts.clear();
        assert!(markdown(&noisy).contains("No result: the broker ended by itself"));
    }

    #[test]
    fn without_another_side_there_are_values_and_no_ratios() {
        let mut alone = contrast();
        alone.second = None;
        for pair in &mut alone.pairs {
            pair.second = None;
        }
        let rows = alone.rows();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row.comparison.is_none()));
        let held = alone.held();
        assert_eq!(held[0].1, None, "a ratio to nobody");
        assert!(!held[1].1.as_ref().unwrap().met);
    }

    #[test]
    fn a_series_without_kafka_says_so_and_keeps_the_bounds_of_values() {
        let mut alone = series();
        let only = &mut alone.scenarios[0].contrasts[0];
        only.second = None;
        only.warm_ups.clear();
        only.pairs.iter_mut().for_each(|pair| pair.second = None);
        only.targets[0].limit = Limit::RatioOrValue(0.3, 1.5);
        let text = markdown(&alone);
        assert!(text.contains("There was no Kafka"), "{text}");
        assert!(text.contains("or at most 1.500: met (1.000 against 1.500)"), "{text}");
        assert!(text.contains("times the other side's: **not measured**: there was nobody"), "{text}");
        let kind = Kind::Kafka { libs: "x".into(), heap_gib: 1 };
        let plan = Plan { kind, settings: Vec::new() };
        alone.brokers.push(BrokerRecord { plan, configuration: Vec::new(), jvm: Vec::new() });
        assert!(!markdown(&alone).contains("There was no Kafka"));
    }

    #[test]
    fn sides_that_promise_different_things_are_told_as_such() {
        let mut told = series();
        assert!(!markdown(&told).contains("different things"));
        told.scenarios[0].contrasts[0].promises = Promises::OursDisk;
        let text = markdown(&told);
        assert!(
            text.contains("**the sides promise different things**: ours acknowledges when the disk"),
            "{text}"
        );
        assert!(text.contains("Scenario durability says itself"), "{text}");
    }

    #[test]
    fn nothing_is_claimed_against_a_kafka_that_was_not_warm() {
        let mut cold = contrast();
        cold.targets.push(Target { figure: "cpu_s_per_gb".to_owned(), limit: Limit::RatioOrValue(0.3, 0.5) });
        cold.warm_ups.push(WarmUp { side: "odradek".to_owned(), windows: vec![1.0], counts: records() });
        assert_eq!(cold.rows()[0].comparison.as_ref().unwrap().verdict, Verdict::FirstBetter);
        cold.warm_ups[0].windows.push(25.0);
        for row in cold.rows() {
            assert!(row.comparison.is_none_or(|found| found.verdict == Verdict::NotWarm), "{}", row.figure);
        }
        let held = cold.held();
        assert_eq!(held[0].1, None, "no ratio is held against anything");
        assert!(held[1].1.is_some(), "what needs no Kafka is");
        assert!(!held[3].1.as_ref().unwrap().met, "the ratio would have met it, the value does not");
        let mut told = series();
        told.scenarios[0].contrasts = vec![cold];
        let text = markdown(&told);
        assert!(text.contains("none: Kafka was not warm"), "{text}");
        assert!(
            text.contains("0.333 times the other side's: **not measured**: Kafka was not warm"),
            "{text}"
        );
    }

    #[test]
    fn the_highest_rate_of_kafka_is_that_of_any_window_or_measured_run() {
        let mut found = contrast();
        assert_eq!(found.kafka_highest(), Some(20.2));
        found.warm_ups.push(WarmUp { side: "odradek".to_owned(), windows: vec![99.0], counts: records() });
        found.warm_ups.push(WarmUp {
            side: "kafka-4g".to_owned(),
            windows: vec![30.0, 25.0],
            counts: records(),
        });
        assert_eq!(found.kafka_highest(), Some(30.0), "an earlier window counts as the last, ours do not");
        found.pairs[0].second = Some(run(&[("records_per_s", 40.0)]));
        assert_eq!(found.kafka_highest(), Some(40.0));
        found.second = Some("one shard".to_owned());
        assert_eq!(found.kafka_highest(), Some(30.0));
    }

    #[test]
    fn void_runs_are_told_beside_the_figure() {
        let mut found = contrast();
        found.pairs[1].first.voided = vec!["noise".to_owned()];
        let late = |condition: &str| serde_json::json!({CONDITION: condition, LATE_BEFORE: ["late", "late"]});
        found.pairs[2].second.as_mut().unwrap().raw = vec![late("50 %"), late("5000/s")];
        found.pairs[0].first.voided = vec!["the discarded pair's".to_owned(); 3];
        let runs: Vec<(String, (usize, usize))> =
            found.rows().into_iter().map(|row| (row.figure, row.runs)).collect();
        let expected = [("cpu_s_per_gb", (8, 1)), ("rss_mib", (8, 1)), ("p99_us@50 %", (8, 3))];
        for (figure, runs_of) in expected {
            assert!(runs.contains(&(figure.to_owned(), runs_of)), "{figure}: {runs:?}");
        }
    }

    #[test]
    fn the_raw_data_hold_every_pair_and_are_read_back() {
        let series = series();
        let text = serde_json::to_string(&series).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let pairs = &value["scenarios"][0]["contrasts"][0]["pairs"];
        assert_eq!(pairs.as_array().unwrap().len(), 5);
        assert_eq!(pairs[0]["first"]["figures"]["cpu_s_per_gb"], 90.0);
        assert_eq!(value["machine"]["kernel"], "Linux 6");
        assert_eq!(value["durability"], "page_cache");
        assert_eq!(serde_json::from_str::<Series>(&text).unwrap(), series);
    }
}

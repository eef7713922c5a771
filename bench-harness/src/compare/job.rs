//! One run of a load generator: this very program as a child on the client's processor, and what its JSON says as
//! figures. Knows the command line and the report of the other subcommands (bench-harness/README.md); which arguments a
//! scenario gives is `scenarios`'.
#![allow(clippy::disallowed_methods, reason = "a harness reads the reports of its children")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse};
use serde_json::Value;

use super::child::{Process, Spec};
use super::figures::Figures;
use super::servers::{Broker, CLIENT_PROCESSOR};
use super::stage::{Found, Home};
use crate::client::Client;
use crate::report::VOID;

/// What a child may take beyond the length of its run: connecting, creating topics, verifying, draining.
const BEYOND: Duration = Duration::from_secs(120);
/// What makes a load take only what another one on the same processor leaves, and give it back at once. The lowest
/// priority would not do: it has a share, in slices of milliseconds.
const BESIDE: [&str; 3] = ["chrt", "--idle", "0"];
/// What lets a load have the processor as soon as it wakes, whoever else runs there.
const URGENT: [&str; 3] = ["chrt", "--fifo", "1"];
const MIB: f64 = 1_048_576.0;

/// Figures of the section `broker`, by the name of the report.
const BROKER: &[(&str, &str, f64)] = &[
    ("cpu_seconds_per_gb", "cpu_s_per_gb", 1.0),
    ("user_seconds_per_gb", "cpu_user_s_per_gb", 1.0),
    ("system_seconds_per_gb", "cpu_system_s_per_gb", 1.0),
    ("cpu_seconds_per_million_records", "cpu_s_per_mrec", 1.0),
    ("rss_bytes", "rss_mib", MIB),
    ("rss_peak_bytes", "rss_max_mib", MIB),
];
/// Figures of a latency.
const LATENCY: &[(&str, &str)] =
    &[("p50", "p50_us"), ("p99", "p99_us"), ("p99_9", "p999_us"), ("p99_99", "p9999_us"), ("max", "max_us")];

/// A child to run.
#[derive(Clone, Debug)]
pub struct Job {
    arguments: Vec<OsString>,
    processors: String,
    turn: Turn,
    limit: Duration,
}

/// When a child has its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// By fair shares.
    Fair,
    /// When nobody else wants it.
    Beside,
    /// As soon as it wakes.
    Urgent,
}

impl Turn {
    /// What stands before the command.
    fn command(self) -> &'static [&'static str] {
        match self {
            Self::Fair => &[],
            Self::Beside => &BESIDE,
            Self::Urgent => &URGENT,
        }
    }
}

impl Job {
    /// A subcommand with its arguments.
    pub fn new(subcommand: &str, arguments: &[&str]) -> Self {
        let arguments = std::iter::once(&subcommand).chain(arguments).map(OsString::from).collect();
        Self { arguments, processors: CLIENT_PROCESSOR.to_owned(), turn: Turn::Fair, limit: BEYOND }
    }

    /// One more argument with a value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.arguments.extend([OsString::from(name), OsString::from(value.to_string())]);
        self
    }

    /// More words.
    #[must_use]
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.arguments.extend(flags.iter().map(OsString::from));
        self
    }

    /// Against this broker, which is sampled; the child tells what others used, the harness judges it.
    #[must_use]
    pub fn at(self, broker: &Broker) -> Self {
        self.with("--bootstrap", broker.bootstrap()).sampling(broker)
    }

    /// Samples this broker.
    #[must_use]
    pub fn sampling(self, broker: &Broker) -> Self {
        let job = self.with("--broker-pid", broker.id()).with("--family", std::process::id());
        job.with("--other-cpu-max", 1000)
    }

    /// For so many seconds.
    #[must_use]
    pub fn lasting(self, seconds: f64) -> Self {
        self.within(seconds).with("--duration", seconds)
    }

    /// May take so many seconds.
    #[must_use]
    pub fn within(mut self, seconds: f64) -> Self {
        self.limit = BEYOND + Duration::from_secs_f64(seconds.max(0.0));
        self
    }

    /// Last arguments, behind `--`.
    #[must_use]
    pub fn then(mut self, command: impl IntoIterator<Item = OsString>) -> Self {
        self.arguments.push("--".into());
        self.arguments.extend(command);
        self
    }

    /// Lets it use these processors.
    #[must_use]
    pub fn on(mut self, processors: &str) -> Self {
        processors.clone_into(&mut self.processors);
        self
    }

    /// Lets it have only what another job leaves.
    #[must_use]
    pub fn beside(mut self) -> Self {
        self.turn = Turn::Beside;
        self
    }

    /// Lets it have its processor as soon as it wakes. For loads that sleep: the kernel stops who takes more than 95 %.
    #[must_use]
    pub fn urgent(mut self) -> Self {
        self.turn = Turn::Urgent;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut self, home: &Home) -> Result<Running> {
        let number = home.fresh();
        let json = home.path.join(format!("job-{number}.json"));
        // Before whatever stands behind `--`.
        let at = self.arguments.iter().position(|word| word == "--").unwrap_or(self.arguments.len());
        self.arguments.splice(at..at, [OsString::from("--json"), json.clone().into()]);
        let name =
            self.arguments.first().map_or_else(String::new, |word| word.to_string_lossy().into_owned());
        let generator = home.common.generator.clone().map_or_else(std::env::current_exe, Ok)?;
        let mut command: Vec<OsString> = self.turn.command().iter().map(OsString::from).collect();
        command.push(generator.into_os_string());
        command.extend(self.arguments);
        let log = home.path.join(format!("job-{number}.out"));
        let process = Process::start(Spec { name, processors: self.processors, nice: 0, command, log })?;
        Ok(Running { process, json, limit: self.limit })
    }

    /// Runs it to its end, and then reads every record that it had acknowledged.
    ///
    /// # Errors
    /// It fails, or a record is lost, repeated or changed.
    pub fn run_and_verify(self, home: &Home, broker: &Broker, topic: &str) -> Result<Value> {
        let limit = self.limit;
        let (report, json) = self.start(home)?.finish_keeping(home)?;
        let mut reader = Self::new("consume", &["--no-perf"]).at(broker).with("--topic", topic);
        reader.limit = limit;
        let read = reader.with("--verify", json.display()).run(home)?;
        let faults = void(&read);
        anyhow::ensure!(faults.is_empty(), "the verification is void: {}", faults.join("; "));
        Ok(report)
    }

    /// Runs it to its end and returns its report.
    ///
    /// # Errors
    /// It fails.
    pub fn run(self, home: &Home) -> Result<Value> {
        self.start(home)?.finish(home)
    }
}

/// A running child; it ends with the value.
#[derive(Debug)]
pub struct Running {
    process: Process,
    json: PathBuf,
    limit: Duration,
}

impl Running {
    /// Waits for its end and returns its report.
    ///
    /// # Errors
    /// It fails, or takes too long.
    pub fn finish(self, home: &Home) -> Result<Value> {
        self.finish_keeping(home).map(|(report, _)| report)
    }

    /// The same, and where the report is until the series ends.
    fn finish_keeping(self, home: &Home) -> Result<(Value, PathBuf)> {
        self.process.finish(self.limit, &home.interrupt, &[i32::from(VOID)])?;
        Ok((read_report(&self.json)?, self.json))
    }
}

fn read_report(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("no report in {}", path.display()))?;
    serde_json::from_str(&text).context("the report is no JSON")
}

/// A number at a path of a report, such as `/broker/rss_bytes`.
pub fn number(report: &Value, path: &str) -> Option<f64> {
    report.pointer(path).and_then(Value::as_f64)
}

/// A number that must be there.
///
/// # Errors
/// It is not.
pub fn needed(report: &Value, path: &str) -> Result<f64> {
    number(report, path).with_context(|| format!("the report has no {path}"))
}

/// What a report says of the broker, and the speed of its section `produce` or `consume`.
pub fn cost(report: &Value) -> Figures {
    let mut figures = Figures::new();
    let speed = ["/produce", "/consume"].into_iter().find(|section| report.pointer(section).is_some());
    for (name, figure) in [("megabytes_per_second", "mb_per_s"), ("records_per_second", "records_per_s")] {
        let found = speed.and_then(|section| number(report, &format!("{section}/{name}")));
        figures.extend(found.map(|value| (figure.to_owned(), value)));
    }
    for (name, figure, unit) in BROKER {
        let found = number(report, &format!("/broker/{name}"));
        figures.extend(found.map(|value| ((*figure).to_owned(), value / unit)));
    }
    figures
}

/// What a report says of latency, under a condition: end to end where it has that, else until acknowledged.
///
/// # Errors
/// It says nothing.
pub fn latency(report: &Value, condition: &str) -> Result<Figures> {
    let section = ["/end_to_end_us", "/produce/latency_us"]
        .into_iter()
        .find(|section| report.pointer(section).is_some_and(Value::is_object))
        .context("the report has no latency")?;
    LATENCY
        .iter()
        .map(|(name, figure)| {
            Ok((format!("{figure}@{condition}"), needed(report, &format!("{section}/{name}"))?))
        })
        .collect()
}

/// Why the generator calls its run void.
pub fn void(report: &Value) -> Vec<String> {
    let reasons = report.get("void").and_then(Value::as_array);
    reasons.into_iter().flatten().map(|reason| reason.as_str().unwrap_or("void").to_owned()).collect()
}

impl Found {
    /// Takes a report in: its figures, its reasons to be void, and itself without the ranges that only a verifier reads.
    pub fn take(&mut self, mut report: Value, figures: Figures) {
        self.figures.extend(figures);
        self.void.extend(void(&report));
        if let Some(produce) = report.get_mut("produce").and_then(Value::as_object_mut) {
            produce.remove("acknowledged");
        }
        self.raw.push(report);
    }
}

/// Deletes a topic; its files go a second later.
///
/// # Errors
/// What the socket or the broker says.
pub fn delete_topic(broker: &Broker, topic: &str) -> Result<()> {
    const VERSION: i16 = 5;
    let mut client = Client::connect(&broker.bootstrap(), Duration::from_secs(60))?;
    let request =
        DeleteTopicsRequest { topic_names: vec![topic.into()], timeout_ms: 60_000, ..Default::default() };
    let reply = client.call(VERSION, &request)?;
    let response: DeleteTopicsResponse<'_> = reply.message()?;
    let code = response.responses.first().map(|deleted| deleted.error_code);
    anyhow::ensure!(code == Some(0), "deletion of {topic} was answered with {code:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Value {
        json!({
            "void": ["the generator was late"],
            "produce": {"records_per_second": 1000.0, "megabytes_per_second": 1.5, "acknowledged": [1, 2],
                        "latency_us": {"p50": 5.0, "p99": 6.0, "p99_9": 7.0, "p99_99": 8.0, "max": 9.0}},
            "consume": {"records_per_second": 900.0, "megabytes_per_second": 1.4},
            "end_to_end_us": {"p50": 1.0, "p99": 2.0, "p99_9": 3.0, "p99_99": 4.0, "max": 5.0},
            "broker": {"cpu_seconds_per_gb": 0.5, "rss_bytes": 1_048_576, "syscalls_per_1000_records": null},
        })
    }

    #[test]
    fn a_report_becomes_figures_under_our_names() {
        let figures = cost(&report());
        assert_eq!(figures.get("cpu_s_per_gb"), Some(&0.5));
        assert_eq!(figures.get("mb_per_s"), Some(&1.5), "what was produced, where both are there");
        assert_eq!(figures.get("rss_mib"), Some(&1.0));
        assert_eq!(figures.get("rss_max_mib"), None, "what a report does not say is no figure");
        assert_eq!(cost(&json!({"consume": {"megabytes_per_second": 2.0}})).get("mb_per_s"), Some(&2.0));
    }

    #[test]
    fn latency_is_end_to_end_where_it_was_measured() {
        let figures = latency(&report(), "5000/s").unwrap();
        assert_eq!(figures.get("p99_us@5000/s"), Some(&2.0));
        let produced = latency(&json!({"end_to_end_us": null, "produce": report()["produce"]}), "x").unwrap();
        assert_eq!(produced.get("p999_us@x"), Some(&7.0));
        assert!(latency(&json!({}), "x").is_err());
        assert!(latency(&json!({"end_to_end_us": {"p50": 1.0}}), "x").is_err());
    }

    #[test]
    fn a_void_run_says_so_and_ranges_of_records_are_not_kept() {
        let mut found = Found::default();
        found.take(report(), cost(&report()));
        assert_eq!(found.void, ["the generator was late"]);
        assert_eq!(found.raw[0]["produce"].get("acknowledged"), None);
        assert_eq!(found.raw[0]["produce"]["records_per_second"], 1000.0);
    }

    #[test]
    fn a_jobs_report_is_asked_for_before_the_command_that_it_starts() {
        let job = Job::new("startup", &[]).with("--runs", 1).then(["java".into(), "--json".into()]);
        let words: Vec<&str> = job.arguments.iter().filter_map(|word| word.to_str()).collect();
        assert_eq!(words, ["startup", "--runs", "1", "--", "java", "--json"]);
    }
}

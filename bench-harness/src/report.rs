//! What a run is reported as: one JSON object, the same as a table for people, and the reasons for which it is void.
//! Knows no load; the subcommands fill in their sections.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::Output;
use crate::clock::Clock;
use crate::measure::histogram::Times;
use crate::measure::machine;
use crate::measure::window::Window;
use crate::own;

/// Lateness as a share of the p99 latency above which a run was no open loop: its mean, and its own p99.
const LATENESS_MEAN_SHARE_MAX: f64 = 0.01;
const LATENESS_P99_SHARE_MAX: f64 = 0.25;
/// The same in nanoseconds, whatever the latency: beyond it no schedule was kept.
const LATENESS_MEAN_NS_MAX: f64 = 1e6;
const LATENESS_P99_NS_MAX: f64 = 1e7;

/// Exit code of a run that was made and is void.
pub const VOID: u8 = 3;

/// A report that is being written.
#[derive(Debug)]
pub struct Report {
    sections: Map<String, Value>,
    void: Vec<String>,
}

impl Report {
    /// The report of a run that begins now.
    pub fn new(command: &str, inputs: &impl Serialize, clock: &Clock) -> Self {
        let mut sections = Map::new();
        let mut add = |name: &str, value: Value| sections.insert(name.to_owned(), value);
        add("tool", json!("odradek-bench"));
        add("version", json!(env!("CARGO_PKG_VERSION")));
        add("format", json!(1));
        add("command", json!(command));
        add("started_unix_ms", json!(clock.unix_ms(0)));
        add("inputs", serde_json::to_value(inputs).unwrap_or(Value::Null));
        add("machine", machine::describe());
        Self { sections, void: Vec::new() }
    }

    /// Adds a section.
    pub fn add(&mut self, name: &str, value: Value) {
        self.sections.insert(name.to_owned(), value);
    }

    /// Adds what the measured part used, per bytes and records.
    pub fn add_window(&mut self, window: &Window, bytes: u64, records: u64, other_cpu_max: f64) {
        self.add("window", window.to_json());
        if let Some(broker) = window.broker_json(bytes, records) {
            self.add("broker", broker);
        }
        if let Some(generator) = window.generator_json(bytes, records) {
            self.add("generator", generator);
        }
        if window.seconds <= 0.0 {
            self.void_because("the run was over before its --warmup: nothing was measured");
        }
        let other = window.foreign.map(|foreign| foreign.load);
        if let Some(other) = other.filter(|other| *other > other_cpu_max) {
            self.void.push(format!("other processes used {other:.2} cores"));
        }
    }

    /// Voids a run for a reason that only its load knows.
    pub fn void_because(&mut self, reason: &str) {
        self.void.push(reason.to_owned());
    }

    /// Voids a run whose generator did not keep its schedule.
    pub fn judge_lateness(&mut self, lateness: &Times, latency: &Times) {
        self.void.extend(lateness_fault(lateness, latency));
    }

    /// The reasons for which the run is void.
    pub fn void(&self) -> &[String] {
        &self.void
    }

    /// The whole report.
    pub fn to_json(&self) -> Value {
        let mut all = self.sections.clone();
        all.insert("void".to_owned(), json!(self.void));
        Value::Object(all)
    }

    /// Writes the JSON where it was asked for.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, output: &Output) -> Result<()> {
        match &output.json {
            Some(path) => write(path, &format!("{:#}\n", self.to_json())),
            None => Ok(()),
        }
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (name, section) in &self.sections {
            if matches!(
                name.as_str(),
                "inputs" | "machine" | "tool" | "version" | "format" | "started_unix_ms"
            ) {
                continue;
            }
            row(&mut text, name, section);
        }
        for reason in &self.void {
            text.push_str(&format!("VOID: {reason}\n"));
        }
        text
    }
}

/// Lines of a section: an object of plain values is one line each, a histogram one line in all.
fn row(text: &mut String, name: &str, value: &Value) {
    match value {
        Value::Object(fields) if fields.contains_key("p99_9") => {
            let times: Vec<String> = fields
                .iter()
                .filter(|(key, _)| *key != "count")
                .map(|(key, value)| format!("{key} {value}"))
                .collect();
            text.push_str(&format!("{name:<48} {}\n", times.join("  ")));
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                row(text, &format!("{name}.{key}"), value);
            }
        }
        // The ranges of a run are for the verifier.
        Value::Array(_) if name.ends_with(".acknowledged") => {}
        Value::Null => {}
        value => text.push_str(&format!("{name:<48} {value}\n")),
    }
}

fn lateness_fault(lateness: &Times, latency: &Times) -> Option<String> {
    if lateness.count() == 0 {
        return None;
    }
    let (mean, p99) = (lateness.mean(), crate::measure::float(lateness.at(0.99)));
    if mean > LATENESS_MEAN_NS_MAX || p99 > LATENESS_P99_NS_MAX {
        let (mean, p99) = (mean / 1e6, p99 / 1e6);
        return Some(format!("the generator was late: {mean:.2} ms in the mean, {p99:.2} ms at p99"));
    }
    // Without acknowledgements there is no latency to compare with.
    if latency.count() == 0 {
        return None;
    }
    let whole = crate::measure::float(latency.at(0.99));
    let shares = (crate::measure::ratio(mean, whole), crate::measure::ratio(p99, whole));
    if shares.0 <= LATENESS_MEAN_SHARE_MAX && shares.1 <= LATENESS_P99_SHARE_MAX {
        return None;
    }
    Some(format!(
        "the generator was late: {:.1} µs in the mean, {:.1} µs at p99, against a p99 latency of {:.1} µs",
        mean / 1e3,
        p99 / 1e3,
        whole / 1e3
    ))
}

/// Finds out whether a file can be written before the run that is to fill it: one that is there stays as it is, and none is made.
///
/// # Errors
/// A file that cannot be written.
#[allow(clippy::disallowed_methods, reason = "a command line tool writes its report")]
pub fn try_write(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let tried = match std::fs::metadata(path) {
        // What is no plain file may do something when it is opened.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => std::fs::OpenOptions::new().write(true).open(path).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => own::try_file(parent),
        Err(error) => Err(error),
    };
    tried.with_context(|| format!("{} cannot be written", path.display()))
}

/// Writes a file in one go.
///
/// # Errors
/// A file that cannot be written.
#[allow(clippy::disallowed_methods, reason = "a command line tool writes its report")]
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(nanos: &[(u64, u64)]) -> Times {
        let mut times = Times::new();
        nanos.iter().for_each(|(nanos, count)| times.record_n(*nanos, *count));
        times
    }

    #[test]
    fn a_late_generator_voids_its_run() {
        let latency = times(&[(1_000_000, 100)]);
        assert_eq!(lateness_fault(&times(&[(9_000, 100)]), &latency), None);
        let late = lateness_fault(&times(&[(11_000, 100)]), &latency).expect("late in the mean");
        assert!(late.contains("11.0 µs in the mean") && late.contains("1000"), "{late}");
        assert!(lateness_fault(&times(&[(1, 970), (300_000, 30)]), &latency).is_some(), "late at p99");
        assert_eq!(lateness_fault(&times(&[(1, 999), (5_000_000, 1)]), &latency), None, "once");
        let slow = times(&[(1_000_000_000, 100)]);
        assert_eq!(lateness_fault(&times(&[(900_000, 100)]), &slow), None);
        assert!(lateness_fault(&times(&[(1_100_000, 100)]), &slow).is_some(), "a share of a second is late");
        assert!(lateness_fault(&times(&[(1, 970), (11_000_000, 30)]), &slow).is_some());
        assert_eq!(lateness_fault(&Times::new(), &latency), None, "a closed loop has no lateness");
        let none = Times::new();
        assert_eq!(lateness_fault(&times(&[(9_000, 100)]), &none), None);
        assert!(
            lateness_fault(&times(&[(2_000_000, 100)]), &none).is_some(),
            "without acknowledgements, too"
        );
    }

    #[test]
    fn a_report_has_its_fixed_sections_and_says_why_it_is_void() {
        let mut report = Report::new("produce", &json!({"rate": 5}), &Clock::start());
        report.judge_lateness(&times(&[(1_000_000, 1)]), &times(&[(1_000_000, 1)]));
        report.add(
            "produce",
            json!({"records": 7, "latency_us": times(&[(1000, 7)]).to_json(), "acknowledged": [1]}),
        );
        let all = report.to_json();
        for name in ["tool", "version", "format", "command", "started_unix_ms", "inputs", "machine", "void"] {
            assert!(!all[name].is_null(), "{name} is missing: {all}");
        }
        assert_eq!(all["void"].as_array().map(Vec::len), Some(1), "{all}");
        let table = report.table();
        assert!(table.contains("produce.records") && table.contains("VOID: the generator"), "{table}");
        assert!(table.contains("p99_9") && !table.contains("acknowledged"), "{table}");
    }
}

//! `idle`: what a process uses while nothing is asked of it.

use anyhow::{Context, Result};
use serde_json::json;

use crate::args::{Idle, duration};
use crate::clock::{Clock, seconds};
use crate::commands::pause;
use crate::measure::process::{Sample, pss_bytes};
use crate::measure::window::Watch;
use crate::measure::{float, ratio, rounded};
use crate::report::Report;

/// Runs it.
///
/// # Errors
/// No process to watch, or one that ends meanwhile.
pub fn run(arguments: &Idle) -> Result<Report> {
    arguments.check()?;
    let clock = Clock::start();
    let mut report = Report::new("idle", arguments, &clock);
    let pid = arguments.sampled.broker_pid.context("no process is named")?;
    let length = duration("seconds", arguments.seconds)?;
    let mut watch = Watch::new(Some(pid), !arguments.sampled.no_perf)?.among(arguments.sampled.family);
    let before = Sample::take(pid).with_context(|| format!("there is no process {pid}"))?;
    let from = clock.now();
    watch.begin(from);
    pause(length);
    let now = clock.now();
    let after = Sample::take(pid).with_context(|| format!("process {pid} ended while it was watched"))?;
    let window = watch.end(now);
    let (elapsed, used) = (seconds(now - from), after.cpu_seconds() - before.cpu_seconds());
    let switches = float(after.context_switches.saturating_sub(before.context_switches));
    report.add(
        "idle",
        json!({
            "seconds": rounded(elapsed, 3),
            "cpu_seconds": rounded(used, 2),
            "cpu_share": rounded(ratio(used, elapsed), 6),
            "context_switches_per_second": rounded(ratio(switches, elapsed), 2),
            "rss_bytes": after.rss_bytes,
            "rss_peak_bytes": after.rss_peak_bytes,
            "pss_bytes": pss_bytes(pid),
            "threads": after.threads,
        }),
    );
    report.add_window(&window, 0, 0, arguments.sampled.other_cpu_max);
    Ok(report)
}

//! The machine under a series, read from `/proc`: load, memory, what it is made of; and the clock of `compare` and
//! `sweep`. Judges nothing (`noise`).
#![allow(clippy::disallowed_methods, reason = "a harness measures real time and reads a real machine")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::measure::proc::{load_averages, number, processors};

/// Monotonic time.
pub fn now() -> Instant {
    Instant::now()
}

/// Seconds since the epoch.
pub fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |duration| duration.as_secs())
}

/// Waits.
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// The number of a line that counts KiB.
#[allow(clippy::cast_precision_loss, reason = "sizes of memories stay far below 2^53 KiB")]
fn kib_of(text: &str, name: &str) -> Option<f64> {
    number(text, name).map(|kib| kib as f64)
}

/// GiB of memory that could be used without swapping.
///
/// # Errors
/// `/proc/meminfo` is not as known.
pub fn available_gib() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    kib_of(&text, "MemAvailable:").map(|kib| kib / 1_048_576.0).context("/proc/meminfo has no MemAvailable")
}

/// The load average of the last minute.
///
/// # Errors
/// `/proc/loadavg` is not as known.
pub fn load_average() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let [minute, ..] = load_averages(&text).with_context(|| format!("/proc/loadavg says {text:?}"))?;
    Ok(minute)
}

/// What the machine is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors in all.
    pub processors: usize,
    /// Memory, as the kernel says.
    pub memory: String,
    /// The kernel.
    pub kernel: String,
    /// The file system that holds the data, and its device.
    pub disk: String,
    /// The Java machine.
    pub java: String,
}

impl Machine {
    /// Asks.
    pub fn ask(data: &Path) -> Self {
        let (processor, processors) =
            processors(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let gib = kib_of(&meminfo, "MemTotal:").map_or(0.0, |kib| kib / 1_048_576.0);
        let df = said("df", &["--output=fstype,source", &data.display().to_string()]);
        Self {
            processor: processor.unwrap_or_else(|| "unknown".to_owned()),
            processors,
            memory: format!("{gib:.1} GiB"),
            kernel: said("uname", &["-sr"]),
            disk: df
                .lines()
                .last()
                .unwrap_or_default()
                .split_ascii_whitespace()
                .collect::<Vec<_>>()
                .join(" on "),
            java: said("java", &["-version"]).lines().nth(1).unwrap_or("none").to_owned(),
        }
    }
}

/// What a short command says on both outputs; empty when it cannot be run.
pub fn said(program: &str, arguments: &[&str]) -> String {
    Command::new(program).args(arguments).output().map_or_else(
        |_| String::new(),
        |output| {
            let both = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&both).trim().to_owned()
        },
    )
}

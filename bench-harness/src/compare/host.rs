//! The machine under a measurement, read from `/proc`: processor time of processes and of all, load, memory, what it is
//! made of. The one place of `compare` and `sweep` that reads clocks and files of the system. Judges nothing (`noise`).
#![allow(clippy::disallowed_methods, reason = "a harness measures real time and reads a real machine")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::measure::proc::{Busy, Cpu, Stat, load_averages, number, processors};

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

/// Processor time of a living process.
///
/// # Errors
/// It is not there.
pub fn cpu_of(process: u32) -> Result<Cpu> {
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("process {process} is gone"))?;
    Ok(Stat::parse(&text).with_context(|| format!("{path} is not understood"))?.own)
}

/// Resident memory of a living process in MiB, now and at its highest.
///
/// # Errors
/// It is not there.
pub fn memory_of(process: u32) -> Result<(f64, f64)> {
    let path = format!("/proc/{process}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("process {process} is gone"))?;
    let mib =
        |name| kib_of(&text, name).map(|kib| kib / 1024.0).with_context(|| format!("{path} has no {name}"));
    Ok((mib("VmRSS:")?, mib("VmHWM:")?))
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

/// What all processors did, and who of it is us.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    at: Instant,
    busy: f64,
    steal: f64,
    kernel_threads: BTreeMap<u32, f64>,
    ours: BTreeMap<u32, f64>,
}

/// What happened between two readings, in processors (1.0 is one of them all the time).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Foreign {
    /// Used by processes that are none of ours.
    pub load: f64,
    /// Used by threads of the kernel, such as those that write back what we wrote.
    pub kernel: f64,
    /// Taken by the host.
    pub steal: f64,
}

impl Reading {
    /// Reads now. `ours` are processes that live through the whole interval; what this process starts and waits for is
    /// ours in any case.
    ///
    /// # Errors
    /// `/proc` is not as known.
    pub fn take(ours: &[u32]) -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let Busy { tasks, interrupts, steal } = Busy::parse(&text).context("/proc/stat is not understood")?;
        let busy = tasks + interrupts;
        let mut reading =
            Self { at: now(), busy, steal, kernel_threads: BTreeMap::new(), ours: BTreeMap::new() };
        for entry in std::fs::read_dir("/proc")? {
            let Some(process) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // One that ends while we look is none of either kind.
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok();
            let Some(stat) = stat.and_then(|text| Stat::parse(&text)) else { continue };
            if stat.kernel_thread {
                reading.kernel_threads.insert(process, stat.own.total());
            } else if process == std::process::id() {
                reading.ours.insert(process, stat.with_children);
            } else if ours.contains(&process) {
                reading.ours.insert(process, stat.own.total());
            }
        }
        Ok(reading)
    }

    /// What happened since an earlier reading of the same processes.
    pub fn since(&self, earlier: &Self) -> Foreign {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64().max(0.001);
        let grown = |later: &BTreeMap<u32, f64>, before: &BTreeMap<u32, f64>| {
            let each = later.iter().map(|(id, used)| (used - before.get(id).unwrap_or(used)).max(0.0));
            each.sum::<f64>() / seconds
        };
        let kernel = grown(&self.kernel_threads, &earlier.kernel_threads);
        let ours = grown(&self.ours, &earlier.ours);
        let busy = (self.busy - earlier.busy) / seconds;
        let steal = (self.steal - earlier.steal) / seconds;
        Foreign { load: (busy - ours - kernel).max(0.0), kernel, steal }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_load_is_what_neither_we_nor_the_kernel_used() {
        let at = now();
        let reading = |seconds: u64, busy, steal, kernel, ours| Reading {
            at: at + Duration::from_secs(seconds),
            busy,
            steal,
            kernel_threads: BTreeMap::from([(2, kernel)]),
            ours: BTreeMap::from([(77, ours)]),
        };
        let found = reading(8, 116.0, 2.0, 24.0, 38.0).since(&reading(0, 100.0, 0.0, 20.0, 30.0));
        assert_eq!(found, Foreign { load: 0.5, kernel: 0.5, steal: 0.25 });
        let less = reading(8, 101.0, 0.0, 20.0, 38.0).since(&reading(0, 100.0, 0.0, 20.0, 30.0));
        assert_eq!(less.load, 0.0, "rounding of ticks is not negative load");
    }

    #[test]
    fn a_running_process_has_time_and_memory() {
        let mut sum = 0_u64;
        let started = now();
        while cpu_of(std::process::id()).unwrap().total() == 0.0 && started.elapsed().as_secs() < 30 {
            sum = std::hint::black_box((0..1_000_000_u64).fold(sum, u64::wrapping_add));
        }
        assert!(cpu_of(std::process::id()).unwrap().total() > 0.0);
        let (resident, highest) = memory_of(std::process::id()).unwrap();
        assert!(resident > 0.0 && highest >= resident);
        let first = Reading::take(&[]).unwrap();
        assert!(Reading::take(&[]).unwrap().since(&first).load >= 0.0);
        assert!(cpu_of(u32::MAX).is_err());
    }
}

//! The machine under a measurement, read from `/proc`: processor time of processes and of all, load, memory, what it is
//! made of. The one place of `compare` and `sweep` that reads clocks and files of the system. Judges nothing (`noise`).
#![allow(clippy::disallowed_methods, reason = "a harness measures real time and reads a real machine")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Ticks of `/proc` in a second: `USER_HZ`, 100 on every Linux of the architectures that we run on.
const TICKS_PER_SECOND: f64 = 100.0;
/// `PF_KTHREAD` of `/proc/PID/stat`'s flags.
const KERNEL_THREAD: u64 = 0x0020_0000;

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

/// Processor time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

impl Cpu {
    /// Both.
    pub fn total(self) -> f64 {
        self.user + self.system
    }

    /// What was used since an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self { user: self.user - earlier.user, system: self.system - earlier.system }
    }
}

/// One line of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    kernel_thread: bool,
    own: Cpu,
    /// Own and that of children that have ended and were waited for.
    with_children: f64,
}

/// Reads the fields behind the name, which is in parentheses and may hold anything.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    // Numbers of proc_pid_stat(5), less the two fields before and the one-based count.
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
    let seconds = |number| field(number).map(ticks_to_seconds);
    let own = Cpu { user: seconds(14)?, system: seconds(15)? };
    let kernel_thread = field(9)? & KERNEL_THREAD != 0;
    Some(Stat { kernel_thread, own, with_children: own.total() + seconds(16)? + seconds(17)? })
}

#[allow(clippy::cast_precision_loss, reason = "ticks stay far below 2^53")]
fn ticks_to_seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

/// Processor time of a living process.
///
/// # Errors
/// It is not there.
pub fn cpu_of(process: u32) -> Result<Cpu> {
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("process {process} is gone"))?;
    Ok(parse_stat(&text).with_context(|| format!("{path} is not understood"))?.own)
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

/// The number of a line `Name:   123 kB`.
fn kib_of(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse().ok())
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
    let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    first.with_context(|| format!("/proc/loadavg says {text:?}"))
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
        let (busy, steal) = parse_busy(&text).context("/proc/stat is not understood")?;
        let mut reading =
            Self { at: now(), busy, steal, kernel_threads: BTreeMap::new(), ours: BTreeMap::new() };
        for entry in std::fs::read_dir("/proc")? {
            let Some(process) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // One that ends while we look is none of either kind.
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok();
            let Some(stat) = stat.and_then(|text| parse_stat(&text)) else { continue };
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

/// Seconds that all processors were busy, and stolen ones, from the first line of `/proc/stat`.
fn parse_busy(text: &str) -> Option<(f64, f64)> {
    let fields: Vec<u64> = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let &[user, nice, system, _idle, _wait, interrupts, soft, steal, ..] = fields.as_slice() else {
        return None;
    };
    Some((ticks_to_seconds(user + nice + system + interrupts + soft), ticks_to_seconds(steal)))
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
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let named = |key: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(key));
            line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned())
        };
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let gib = kib_of(&meminfo, "MemTotal:").map_or(0.0, |kib| kib / 1_048_576.0);
        let df = said("df", &["--output=fstype,source", &data.display().to_string()]);
        Self {
            processor: named("model name").unwrap_or_else(|| "unknown".to_owned()),
            processors: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
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
    fn a_process_line_is_read_behind_a_name_that_holds_parentheses() {
        let line = "42 (a) b) c) S 1 42 42 0 -1 4194304 100 0 0 0 150 50 25 75 20 0 1 0 1000 0 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat.own, Cpu { user: 1.5, system: 0.5 });
        assert_eq!(stat.with_children, 3.0);
        assert!(!stat.kernel_thread);
        let kernel = parse_stat("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 7 0 0 20 0 1 0 1 0 0").unwrap();
        assert!(kernel.kernel_thread);
        for damaged in ["", "42 (x", "42 (x) S 1", "42 (x) S 1 42 42 0 -1 y 100 0 0 0 150 50 25 75"] {
            assert_eq!(parse_stat(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn idle_and_waiting_processors_are_not_busy_and_stolen_time_is_apart() {
        let text = "cpu  100 200 300 100000 50000 10 20 70 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_busy(text), Some((6.3, 0.7)));
        assert_eq!(parse_busy("cpu0 1 2 3"), None);
        assert_eq!(parse_busy(""), None);
    }

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

//! The machine that a run was made on, and the CPU that it is pinned to.

use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use crate::measure::proc::{bytes, load_averages, processors};
use crate::measure::{float, read};

/// What names the machine in a report, with its load before the run.
pub fn describe() -> Value {
    let (cpu, cpus) = processors(&read("/proc/cpuinfo").unwrap_or_default());
    json!({
        "kernel": read("/proc/sys/kernel/osrelease").map(|kernel| kernel.trim().to_owned()),
        "cpu": cpu,
        "cpus": cpus,
        "memory_bytes": bytes(&read("/proc/meminfo").unwrap_or_default(), "MemTotal:"),
        "load_average_before": read("/proc/loadavg").and_then(|text| load_averages(&text)),
    })
}

/// Pins the calling thread, and whatever it starts, to one CPU.
///
/// # Errors
/// A CPU that is not there or not allowed.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let refused = || format!("CPU {cpu} is not one that this process may run on");
    if cpu >= CpuSet::MAX_CPU {
        anyhow::bail!(refused());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|_| anyhow::Error::msg(refused()))
}

/// GiB that stay free on a disk that is written to here.
const FREE_GIB_MIN: f64 = 2.0;
/// Bytes of one.
pub const GIB: f64 = 1_073_741_824.0;

/// GiB that a user may still write to the file system of a directory.
///
/// # Errors
/// There is no such directory.
pub fn free_gib(directory: &Path) -> anyhow::Result<f64> {
    let found = rustix::fs::statvfs(directory).with_context(|| format!("{}", directory.display()))?;
    Ok(float(found.f_bavail.saturating_mul(found.f_frsize)) / GIB)
}

/// Why so many GiB are not written where so many are free; `None` where they may be.
pub fn no_room(gib: f64, free: f64) -> Option<String> {
    let kept = FREE_GIB_MIN;
    let fits = gib + kept <= free;
    (!fits).then(|| {
        format!("{gib:.1} GiB are to be written, and {free:.1} GiB are free, of which {kept} stay free")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_not_filled_to_its_end() {
        assert_eq!(no_room(10.0, 12.0), None);
        let why = no_room(10.0, 11.9).expect("no room");
        assert_eq!(why, "10.0 GiB are to be written, and 11.9 GiB are free, of which 2 stay free");
        assert!(no_room(1e300, 1.0).is_some() && no_room(f64::NAN, 99.0).is_some());
        assert!(free_gib(Path::new("/")).is_ok() && free_gib(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn the_machine_has_a_kernel_and_processors() {
        let machine = describe();
        assert!(machine["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{machine}");
        assert!(machine["cpus"].as_u64().is_some_and(|cpus| cpus > 0), "{machine}");
        assert!(machine["load_average_before"].as_array().is_some_and(|load| load.len() == 3), "{machine}");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        assert!(pin(100_000).is_err());
    }
}

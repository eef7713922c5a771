//! The machine that a run was made on, and what of its CPU went elsewhere.

use serde_json::{Value, json};

use crate::measure::read;

/// Clock ticks of `/proc/stat` in a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// What names the machine in a report, with its load before the run.
pub fn describe() -> Value {
    let cpu_info = read("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu_info.lines().find_map(|line| line.strip_prefix("model name"));
    let memory = read("/proc/meminfo").unwrap_or_default();
    let kilobytes: Option<u64> = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|line| line.split_whitespace().next()?.parse().ok());
    json!({
        "kernel": read("/proc/sys/kernel/osrelease").map(|kernel| kernel.trim().to_owned()),
        "cpu": cpu.map(|cpu| cpu.trim_start_matches([' ', '\t', ':']).to_owned()),
        "cpus": cpu_info.lines().filter(|line| line.starts_with("processor")).count(),
        "memory_bytes": kilobytes.map(|kilobytes| kilobytes.saturating_mul(1024)),
        "load_average_before": load_average(),
    })
}

fn load_average() -> Option<Vec<f64>> {
    read("/proc/loadavg")?.split_whitespace().take(3).map(|number| number.parse().ok()).collect()
}

/// CPU time of all processes so far, in user mode and in the kernel: not interrupts, which no process asked for, and not
/// what the hypervisor took.
pub fn busy_seconds() -> Option<f64> {
    busy_of(&read("/proc/stat")?)
}

fn busy_of(stat: &str) -> Option<f64> {
    let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> =
        fields.split_whitespace().take(3).map(|number| number.parse().ok()).collect::<Option<_>>()?;
    Some(ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_user_nice_and_system() {
        assert_eq!(busy_of("cpu  100 50 25 9999 1 2 3 4\ncpu0 1 2 3"), Some(1.75));
        assert_eq!(busy_of("intr 5"), None);
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

//! The machine that a run was made on, and the CPU that it is pinned to.

use serde_json::{Value, json};

use crate::measure::proc::{bytes, load_averages, processors};
use crate::measure::read;

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

#[cfg(test)]
mod tests {
    use super::*;

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

//! One process as `/proc` tells it. Knows nothing of what the process does.

use crate::measure::proc::{Stat, bytes, number};
use crate::measure::read;

/// A process at one moment. What a kernel or its permissions do not tell is zero or `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// CPU time in user mode so far.
    pub user_seconds: f64,
    /// CPU time in the kernel so far.
    pub system_seconds: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Highest resident memory so far.
    pub rss_peak_bytes: u64,
    /// Bytes read from a disk so far.
    pub read_bytes: Option<u64>,
    /// Bytes written to a disk so far, or dirtied in the page cache.
    pub write_bytes: Option<u64>,
    /// Context switches of all its threads so far.
    pub context_switches: u64,
    /// Threads.
    pub threads: u64,
}

impl Sample {
    /// The process now; `None` if there is none of this number.
    pub fn take(pid: u32) -> Option<Self> {
        let stat = read(&format!("/proc/{pid}/stat"))?;
        let status = read(&format!("/proc/{pid}/status"))?;
        let io = read(&format!("/proc/{pid}/io"));
        let cpu = Stat::parse(&stat)?.own;
        Some(Self {
            user_seconds: cpu.user,
            system_seconds: cpu.system,
            rss_bytes: bytes(&status, "VmRSS:").unwrap_or(0),
            rss_peak_bytes: bytes(&status, "VmHWM:").unwrap_or(0),
            read_bytes: io.as_deref().and_then(|io| number(io, "read_bytes:")),
            write_bytes: io.as_deref().and_then(|io| number(io, "write_bytes:")),
            context_switches: context_switches(pid),
            threads: number(&status, "Threads:").unwrap_or(0),
        })
    }

    /// User and system time so far.
    pub fn cpu_seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds
    }
}

/// Proportional share of memory, which counts shared pages once.
pub fn pss_bytes(pid: u32) -> Option<u64> {
    let rollup = read(&format!("/proc/{pid}/smaps_rollup"))?;
    bytes(&rollup, "Pss:")
}

/// `/proc/PID/status` counts those of the first thread only.
#[allow(clippy::disallowed_methods, reason = "lists /proc; no shard waits here")]
fn context_switches(pid: u32) -> u64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let of_thread = |status: String| {
        let names = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
        names.iter().filter_map(|name| number(&status, name)).sum::<u64>()
    };
    let statuses = threads.flatten().filter_map(|thread| read(thread.path().join("status").to_str()?));
    statuses.map(of_thread).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_sampled_and_none_is_told_apart() {
        let sample = Sample::take(std::process::id()).expect("this process");
        assert!(sample.rss_bytes > 100_000 && sample.rss_peak_bytes >= sample.rss_bytes, "{sample:?}");
        assert!(sample.threads >= 1 && sample.context_switches > 0, "{sample:?}");
        assert!(pss_bytes(std::process::id()).is_some_and(|pss| pss > 0));
        assert_eq!(Sample::take(u32::MAX), None);
    }
}

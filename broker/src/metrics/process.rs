//! The process as the kernel sees it, from `/proc`. Read by the thread that scrapes, never by a shard.

use std::fs;
use std::time::Duration;

use super::names::Family;
use super::snapshot::{ShardSnapshot, Value, whole};

/// A clock tick of `/proc/self/stat` in milliseconds: the same on all machines that Linux runs on today.
const MS_PER_TICK: u64 = 10;

/// Tells CPU time, memory and descriptors; what the kernel does not tell is left out.
#[allow(clippy::disallowed_methods, reason = "a thread of its own, and files that no disk holds")]
pub fn tell(out: &mut ShardSnapshot) {
    let stat = fs::read_to_string("/proc/self/stat").ok();
    if let Some(ticks) = stat.as_deref().and_then(cpu_ticks) {
        out.push(
            Family::ProcessCpu,
            Vec::new(),
            Value::Real(Duration::from_millis(ticks.saturating_mul(MS_PER_TICK)).as_secs_f64()),
        );
    }
    let status = fs::read_to_string("/proc/self/status").ok();
    if let Some(kib) = status.as_deref().and_then(resident_kib) {
        out.push(Family::ProcessMemory, Vec::new(), Value::Whole(kib.saturating_mul(1024)));
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        out.push(Family::ProcessDescriptors, Vec::new(), whole(entries.count()));
    }
    let limits = fs::read_to_string("/proc/self/limits").ok();
    if let Some(descriptors) = limits.as_deref().and_then(descriptors_max) {
        out.push(Family::ProcessDescriptorsMax, Vec::new(), Value::Whole(descriptors));
    }
}

/// User and system time; the name of the program, in brackets, may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    user.checked_add(times.next()?.parse().ok()?)
}

/// The limit that holds now; none where there is none.
fn descriptors_max(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn resident_kib(status: &str) -> Option<i64> {
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 12 30 0 0 20 0 1 0 100 0 0";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(resident_kib("VmPeak:\t 9 kB\nVmRSS:\t    1234 kB\n"), Some(1234));
        let limits = "Max processes  7 8 processes\nMax open files            1024  4096  files\n";
        assert_eq!(descriptors_max(limits), Some(1024));
        assert_eq!(descriptors_max("Max open files   unlimited unlimited files"), None);
        let mut out = ShardSnapshot::default();
        tell(&mut out);
        assert_eq!(out.samples.len(), 4);
    }
}

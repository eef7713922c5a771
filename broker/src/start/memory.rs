//! How the memory of the machine is divided among shards and purposes.

use storage::io::cgroup::Group;

use crate::config::broker::BrokerConfig;

/// Where the machine does not tell.
const MACHINE_BYTES_DEFAULT: u64 = 4 << 30;

/// Part of a shard's memory for requests from their arrival until they are written.
const REQUESTS_DIVISOR: u64 = 8;

/// Part of the memory for fetch sessions.
const SESSIONS_DIVISOR: u64 = 16;

/// More than this of the newest batches is no gain: the page cache has them too, and serves them at the same price, while
/// buffers that are used again soon are in the processor's cache and in one heap of the allocator. What spills over into
/// more heaps is given back to the system and taken again: up to sixty page faults for a batch of 64 KiB over a thousand
/// partitions.
const TAIL_BYTES_MAX: u64 = 32 << 20;

/// What one shard may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMemory {
    /// Requests from their arrival until they are written. One frame of the largest size always fits beside it.
    pub requests_bytes: usize,
    /// The newest batches, for readers at the tail.
    pub tail_bytes: usize,
    /// Fetch sessions of all shards.
    pub all_sessions_bytes: usize,
}

impl ShardMemory {
    /// Divides the configured memory, or a quarter of the machine's.
    pub fn new(config: &BrokerConfig, shards: u16) -> Self {
        let total = config.runtime.memory_bytes.unwrap_or_else(|| machine_bytes() / 4);
        let shards = u64::from(shards.max(1));
        let per_shard = total / shards;
        let requests =
            config.network.queued_max_request_bytes.map_or(per_shard / REQUESTS_DIVISOR, |all| all / shards);
        let tail = tail_bytes(per_shard, config.runtime.cache_fraction);
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            requests_bytes: size(requests),
            tail_bytes: size(tail),
            all_sessions_bytes: size(total / SESSIONS_DIVISOR),
        }
    }
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share"
)]
fn tail_bytes(per_shard: u64, fraction: f64) -> u64 {
    ((per_shard as f64 * fraction) as u64).min(TAIL_BYTES_MAX)
}

/// Memory of the machine, or of the control group if that is less.
#[allow(clippy::disallowed_methods, reason = "read once, before the shards start")]
fn machine_bytes() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    let own = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|own| Group::of(&own));
    let group = own.and_then(|group| group.limit_bytes(|path| std::fs::read_to_string(path).ok()));
    machine.unwrap_or(MACHINE_BYTES_DEFAULT).min(group.unwrap_or(u64::MAX))
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_batches_get_their_share_but_no_more_than_is_reused_soon() {
        assert_eq!(tail_bytes(400 << 20, 0.05), 20 << 20);
        assert_eq!(tail_bytes(64 << 30, 0.05), 32 << 20);
    }

    #[test]
    fn the_total_is_read_from_meminfo() {
        assert_eq!(total_of("MemTotal:       24683484 kB\nMemFree: 1 kB\n"), Some(24_683_484 * 1024));
        assert_eq!(total_of("nothing"), None);
    }
}

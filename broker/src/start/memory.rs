//! How the memory of the machine is divided among shards and purposes.

use storage::io::cgroup::Group;

use crate::config::broker::BrokerConfig;

/// Where the machine does not tell.
const MACHINE_BYTES_DEFAULT: u64 = 4 << 30;

/// Part of a shard's memory for requests from their arrival until they are written.
const REQUESTS_DIVISOR: u64 = 8;

/// With less than this for each shard nobody is served in numbers, however small the requests are.
const SHARE_LEAST: u64 = 16 << 20;

/// The same of what `queued.max.request.bytes` gives each: a few small requests fit beside each other.
const REQUESTS_LEAST: u64 = 256 << 10;

/// Part of a shard's memory for groups. Requests, sessions and the newest records leave far more than that, and half of a
/// quarter of the machine is more than groups ever were seen to need: a million offsets of a hundred thousand groups take
/// less than 300 MiB.
const GROUPS_DIVISOR: u64 = 2;

/// The least that `groups.memory.bytes` may give each: some hundred members.
const GROUPS_LEAST: u64 = 1 << 20;

/// Part of the memory for fetch sessions.
const SESSIONS_DIVISOR: u64 = 16;

/// More than this of the newest batches is no gain: the page cache has them too, and serves them at the same price, while
/// buffers that are used again soon are in the processor's cache and in one heap of the allocator. What spills over into
/// more heaps is given back to the system and taken again: up to sixty page faults for a batch of 64 KiB over a thousand
/// partitions.
const TAIL_BYTES_MAX: u64 = 32 << 20;

/// Why a configured amount is not enough for so many shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key} is {total}, which leaves {share} bytes to each of {shards} shards: at least {least} are needed for each, which is \
     {needed} in all, or fewer cores"
)]
pub struct TooLittle {
    /// The key.
    pub key: &'static str,
    /// What it is.
    pub total: u64,
    /// Among how many it is divided.
    pub shards: u64,
    /// What each gets.
    pub share: u64,
    /// What each needs.
    pub least: u64,
    /// What all need.
    pub needed: u64,
}

/// What one shard may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMemory {
    /// Requests from their arrival until they are written. One frame of the largest size always fits beside it.
    pub requests_bytes: usize,
    /// The newest batches, for readers at the tail.
    pub tail_bytes: usize,
    /// Groups, with their members and offsets.
    pub groups_bytes: usize,
    /// Fetch sessions of all shards.
    pub all_sessions_bytes: usize,
}

impl ShardMemory {
    /// Divides the configured memory, or a quarter of the machine's; what nobody has asked for is enough on a small one, too.
    ///
    /// # Errors
    /// What was asked for is too little for so many shards.
    pub fn new(config: &BrokerConfig, shards: u16) -> Result<Self, TooLittle> {
        let shards = u64::from(shards.max(1));
        let at_least = |key, total: u64, least: u64| match total / shards {
            share if share < least => {
                let needed = least.saturating_mul(shards);
                Err(TooLittle { key, total, shards, share, least, needed })
            }
            share => Ok(share),
        };
        let unasked = || (machine_bytes() / 4).max(SHARE_LEAST.saturating_mul(shards));
        let total = config.runtime.memory_bytes.unwrap_or_else(unasked);
        let per_shard = at_least("memory.bytes", total, SHARE_LEAST)?;
        let requests = match config.network.queued_max_request_bytes {
            Some(all) => at_least("queued.max.request.bytes", all, REQUESTS_LEAST)?,
            None => per_shard / REQUESTS_DIVISOR,
        };
        let groups = match config.groups.memory_bytes {
            Some(all) => at_least("groups.memory.bytes", all, GROUPS_LEAST)?,
            None => per_shard / GROUPS_DIVISOR,
        };
        let tail = tail_bytes(per_shard, config.runtime.cache_fraction);
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Self {
            requests_bytes: size(requests),
            tail_bytes: size(tail),
            groups_bytes: size(groups),
            all_sessions_bytes: size(total / SESSIONS_DIVISOR),
        })
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
    use crate::config::broker::Surroundings;
    use crate::config::load::{MachineSecrets, load};
    use crate::config::parse::Sources;

    fn divided(overrides: &[&str], shards: u16) -> Result<ShardMemory, String> {
        let overrides = overrides.iter().map(|text| (*text).to_owned()).collect();
        let sources = Sources { overrides, ..Sources::default() };
        let config = load(&sources, &MachineSecrets, &Surroundings::find()).config.unwrap();
        ShardMemory::new(&config, shards).map_err(|error| error.to_string())
    }

    #[test]
    fn each_shard_gets_enough_or_the_start_is_refused() {
        let memory = ["memory.bytes=1073741824"];
        assert_eq!(divided(&memory, 64).unwrap().requests_bytes, 2 << 20);
        assert_eq!(
            divided(&memory, 65).unwrap_err(),
            "memory.bytes is 1073741824, which leaves 16519104 bytes to each of 65 shards: at least 16777216 are needed \
             for each, which is 1090519040 in all, or fewer cores"
        );
        assert!(divided(&["memory.bytes=0"], 1).unwrap_err().starts_with("memory.bytes is 0, "));
        let queued = ["socket.request.max.bytes=1000000", "queued.max.request.bytes=1048576"];
        assert_eq!(divided(&queued, 4).unwrap().requests_bytes, 256 << 10);
        assert!(divided(&queued, 5).unwrap_err().starts_with("queued.max.request.bytes is 1048576, "));
        assert_eq!(divided(&memory, 64).unwrap().groups_bytes, 8 << 20);
        let groups = ["groups.memory.bytes=4194304"];
        assert_eq!(divided(&groups, 4).unwrap().groups_bytes, 1 << 20);
        assert!(divided(&groups, 5).unwrap_err().starts_with("groups.memory.bytes is 4194304, "));
        // Nobody has asked for anything: also on the smallest machine.
        assert!(divided(&[], 4096).unwrap().requests_bytes >= 2 << 20);
    }

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

//! Whether every shard still runs: each one's ticker leaves the time of its last turn where any thread can read it. The
//! ticker of an idle shard runs every second, so that a silence of many is a shard that is stuck.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ShardId;

/// The shard gives no sign of life, and none is expected: it has not begun, or it has ended.
const UNEXPECTED: u64 = u64::MAX;

/// The last signs of life of all shards. Clones share them.
#[derive(Clone, Debug)]
pub struct Pulses {
    origin: Instant,
    /// Milliseconds since `origin`.
    beats: Arc<[AtomicU64]>,
}

impl Default for Pulses {
    /// Of no shard: nobody looks.
    fn default() -> Self {
        Self::new(0)
    }
}

impl Pulses {
    /// Of so many shards, none of which has begun: what comes before may take long.
    pub fn new(shards: u16) -> Self {
        Self { origin: now(), beats: (0..shards).map(|_| AtomicU64::new(UNEXPECTED)).collect() }
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(now().duration_since(self.origin).as_millis()).unwrap_or(UNEXPECTED - 1)
    }

    /// The shard runs.
    pub(super) fn beat(&self, shard: ShardId) {
        if let Some(beat) = self.beats.get(usize::from(shard.get())) {
            beat.store(self.elapsed(), Ordering::Relaxed);
        }
    }

    /// The shard has ended, as it should.
    pub(super) fn ended(&self, shard: ShardId) {
        if let Some(beat) = self.beats.get(usize::from(shard.get())) {
            beat.store(UNEXPECTED, Ordering::Relaxed);
        }
    }

    /// A shard that has given no sign for longer than this, and for how long.
    pub fn silent(&self, longer_than: Duration) -> Option<(ShardId, Duration)> {
        let elapsed = self.elapsed();
        let since = self
            .beats
            .iter()
            .map(|beat| Duration::from_millis(elapsed.saturating_sub(beat.load(Ordering::Relaxed))));
        (0..).map(ShardId::new).zip(since).find(|(_, since)| *since > longer_than)
    }
}

#[allow(clippy::disallowed_methods, reason = "read by threads that no runtime gives the time")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_without_a_beat_is_told_and_one_that_has_ended_is_not() {
        let mut pulses = Pulses::new(3);
        let moment = Duration::from_secs(5);
        pulses.origin -= Duration::from_secs(60);
        assert_eq!(pulses.silent(moment), None, "no shard has begun");
        pulses.beat(ShardId::new(2));
        pulses.origin -= Duration::from_secs(60);
        pulses.beat(ShardId::new(0));
        pulses.ended(ShardId::new(1));
        let (shard, since) = pulses.silent(moment).unwrap();
        assert_eq!(shard, ShardId::new(2));
        assert!(since >= Duration::from_secs(60));
        pulses.beat(ShardId::new(2));
        assert_eq!(pulses.silent(moment), None);
    }
}

//! What a log has to know of its topic's configuration: the storage keys, typed, under Kafka's names (storage.md 12.1).
//! Does not know where a value came from: the broker resolves overrides, synonyms and defaults, and hands over this.
//! What only validates records (`max.message.bytes`, timestamps, compression) is not here.

/// What becomes of old records (`cleanup.policy`). Both may hold, and so may neither: then everything is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CleanupPolicy {
    /// Old segments are deleted by time and size.
    pub delete: bool,
    /// Only the last record of each key is kept.
    pub compact: bool,
}

/// When an append is safe, so that it may be acknowledged (`storage.durability.mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// When our memory holds it: it is lost when the process dies.
    Relaxed,
    /// When the operating system has it: it is lost when the machine dies.
    Kafka,
    /// When the disk has it.
    Strict,
}

/// The effective storage configuration of one log. The values are within the ranges of storage.md 12.1: whoever builds
/// one has checked them.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// `cleanup.policy`.
    pub cleanup_policy: CleanupPolicy,
    /// `segment.bytes`: size in bytes at which a segment is full; at least 14.
    pub segment_bytes: u32,
    /// `segment.ms`: age in milliseconds at which a segment is rolled; at least 1.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: up to this much is subtracted from `segment_ms`, at random for each segment.
    pub segment_jitter_ms: i64,
    /// `segment.index.bytes`: capacity of each index file in bytes; at least 4.
    pub segment_index_bytes: u32,
    /// `index.interval.bytes`: bytes of records between two index entries.
    pub index_interval_bytes: u32,
    /// When an append is safe: strict where `flush.messages` is 1, else as the broker says.
    pub durability: Durability,
    /// `storage.sync.max.delay.ms`: milliseconds that a commit waits for more appends in strict mode.
    pub sync_delay_ms_max: i64,
    /// `flush.messages`: a flush is due after this many records, for which no append waits; `i64::MAX` is never.
    pub flush_messages: i64,
    /// `flush.ms`: a flush is due when the oldest record that is not durable has this age in milliseconds; `i64::MAX` is
    /// never.
    pub flush_ms: i64,
    /// `retention.ms`: age in milliseconds beyond which segments are deleted; negative is never.
    pub retention_ms: i64,
    /// `retention.bytes`: size in bytes of the log beyond which segments are deleted; negative is never.
    pub retention_bytes: i64,
    /// `file.delete.delay.ms`: milliseconds between the renaming of a deleted file and its removal.
    pub file_delete_delay_ms: i64,
    /// `delete.retention.ms`: milliseconds that a tombstone is kept after it was first cleaned.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`: a record younger than this is not compacted away.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`: a record older than this is due for compaction; at least 1.
    pub max_compaction_lag_ms: i64,
    /// `min.cleanable.dirty.ratio`: share of a log that must be dirty before it is cleaned, from 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    /// `preallocate`: a hint to allocate a whole segment at once.
    pub preallocate: bool,
}

impl Default for LogConfig {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            cleanup_policy: CleanupPolicy { delete: true, compact: false },
            segment_bytes: 1_073_741_824,
            segment_ms: 604_800_000,
            segment_jitter_ms: 0,
            segment_index_bytes: 10_485_760,
            index_interval_bytes: 4096,
            durability: Durability::Kafka,
            sync_delay_ms_max: 0,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            retention_ms: 604_800_000,
            retention_bytes: -1,
            file_delete_delay_ms: 60_000,
            delete_retention_ms: 86_400_000,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            min_cleanable_dirty_ratio: 0.5,
            preallocate: false,
        }
    }
}

impl LogConfig {
    /// Age in milliseconds at which a segment is rolled: on a compacted topic also bound by `max.compaction.lag.ms`, so
    /// that the cleaner gets at the data in time (storage.md 4.3).
    pub fn roll_ms(&self) -> i64 {
        if self.cleanup_policy.compact {
            self.segment_ms.min(self.max_compaction_lag_ms)
        } else {
            self.segment_ms
        }
    }

    /// Draws how many milliseconds before [`LogConfig::roll_ms`] one segment is rolled.
    pub fn draw_jitter(&self, random: u64) -> i64 {
        let bound = u64::try_from(self.segment_jitter_ms.min(self.segment_ms)).unwrap_or(0);
        random.checked_rem(bound).and_then(|jitter| i64::try_from(jitter).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compaction_lag_rolls_segments_of_compacted_topics_only() {
        let mut config = LogConfig { max_compaction_lag_ms: 10, ..LogConfig::default() };
        assert_eq!(config.roll_ms(), config.segment_ms);
        config.cleanup_policy = CleanupPolicy { delete: false, compact: true };
        assert_eq!(config.roll_ms(), 10);
    }

    #[test]
    fn jitter_stays_below_both_bounds() {
        let config = LogConfig { segment_jitter_ms: 100, segment_ms: 7, ..LogConfig::default() };
        assert_eq!(config.draw_jitter(20), 6);
        assert_eq!(LogConfig::default().draw_jitter(20), 0);
    }
}

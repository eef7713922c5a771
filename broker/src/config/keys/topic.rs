//! Topic keys, with the broker keys that stand in for them (storage.md 12.1).

use super::{Synonym, TopicKey, range_of, support_of};

const TIERED: &str = "tiered storage is not built";
const THROTTLE: &str = "replication is not throttled";
const HOUR: i64 = 3_600_000;
const MINUTE: i64 = 60_000;

/// Rows of the table of topic keys: `"name": Kind = default, range, [broker key * milliseconds], support, "sentence";`.
macro_rules! topic_keys {
    ($($name:literal: $kind:ident = $default:literal, $range:tt, [$($synonym:literal * $factor:expr),*], $support:tt, $doc:expr;)*) => {
        pub(super) const TOPIC: &[TopicKey] = &[$(
            TopicKey {
                name: $name,
                kind: super::Kind::$kind,
                default: $default,
                range: range_of!($range),
                synonyms: &[$(Synonym { name: $synonym, factor: $factor }),*],
                support: support_of!($support),
                doc: $doc,
            },
        )*];
    };
}

topic_keys! {
    "cleanup.policy": List = "delete", (subset_of "compact" "delete"), ["log.cleanup.policy" * 1], works,
        "What becomes of old records: delete, compact, or both.";
    "compression.gzip.level": Int = "-1", (1..=9 or -1), ["compression.gzip.level" * 1], works,
        "Level of gzip when the broker compresses, 1 to 9; -1 is the codec's default.";
    "compression.lz4.level": Int = "9", (1..=17), ["compression.lz4.level" * 1], (no_effect "lz4 has one level here"),
        "Level of lz4 when the broker compresses, 1 to 17.";
    "compression.type": String = "producer", (one_of "uncompressed" "zstd" "lz4" "snappy" "gzip" "producer"), ["compression.type" * 1], works,
        "Compression of stored batches; producer keeps what the producer chose.";
    "compression.zstd.level": Int = "3", (-131072..=22), ["compression.zstd.level" * 1], works,
        "Level of zstd when the broker compresses.";
    "delete.retention.ms": Long = "86400000", (>= 0), ["log.cleaner.delete.retention.ms" * 1], works,
        "Milliseconds that a deletion mark stays after compaction first met it.";
    "file.delete.delay.ms": Long = "60000", (>= 0), ["log.segment.delete.delay.ms" * 1], works,
        "Milliseconds between taking a file out of a log and removing it.";
    "flush.messages": Long = "9223372036854775807", (>= 1), ["log.flush.interval.messages" * 1], works,
        "Records after which a log is synced; 1 is before each acknowledgement.";
    "flush.ms": Long = "9223372036854775807", (>= 0), ["log.flush.interval.ms" * 1, "log.flush.scheduler.interval.ms" * 1], works,
        "Milliseconds after which a record is synced.";
    "follower.replication.throttled.replicas": List = "", throttled, [], (no_effect THROTTLE),
        "Replicas whose fetching is throttled, partition:broker separated by commas, or * for all.";
    "index.interval.bytes": Int = "4096", (>= 0), ["log.index.interval.bytes" * 1], works,
        "Bytes of records between two index entries.";
    "leader.replication.throttled.replicas": List = "", throttled, [], (no_effect THROTTLE),
        "Replicas whose leading is throttled, partition:broker separated by commas, or * for all.";
    "local.retention.bytes": Long = "-2", (>= -2), ["log.local.retention.bytes" * 1], (no_effect TIERED),
        "Bytes of segments copied to remote storage that stay here too; -2 is retention.bytes.";
    "local.retention.ms": Long = "-2", (>= -2), ["log.local.retention.ms" * 1], (no_effect TIERED),
        "Milliseconds that segments copied to remote storage stay here too; -2 is retention.ms.";
    "max.compaction.lag.ms": Long = "9223372036854775807", (>= 1), ["log.cleaner.max.compaction.lag.ms" * 1], works,
        "Milliseconds that a record stays out of compaction at most; rolls segments of compacted topics.";
    "max.message.bytes": Int = "1048588", (>= 0), ["message.max.bytes" * 1], works,
        "Largest batch of records in bytes, after compression.";
    "message.downconversion.enable": Boolean = "true", any, ["log.message.downconversion.enable" * 1], (no_effect "no fetch version served needs older formats"),
        "Whether batches are converted for clients that know only older formats.";
    "message.format.version": String = "3.0-IV1", release, ["log.message.format.version" * 1], (no_effect "batches of format 2 are all that is written"),
        "Release whose record format is written.";
    "message.timestamp.after.max.ms": Long = "9223372036854775807", (>= 0), ["log.message.timestamp.after.max.ms" * 1], works,
        "Milliseconds by which a timestamp may lie after the broker's clock.";
    "message.timestamp.before.max.ms": Long = "9223372036854775807", (>= 0), ["log.message.timestamp.before.max.ms" * 1], works,
        "Milliseconds by which a timestamp may lie before the broker's clock.";
    "message.timestamp.difference.max.ms": Long = "9223372036854775807", (>= 0), ["log.message.timestamp.difference.max.ms" * 1], works,
        "Milliseconds by which a timestamp may be off, when the two finer keys are at their defaults.";
    "message.timestamp.type": String = "CreateTime", (one_of "CreateTime" "LogAppendTime"), ["log.message.timestamp.type" * 1], works,
        "Whether a record keeps the producer's timestamp or gets the time of its append.";
    "min.cleanable.dirty.ratio": Double = "0.5", (0..=1), ["log.cleaner.min.cleanable.ratio" * 1], works,
        "Share of a log that must be dirty before it is compacted, from 0 to 1.";
    "min.compaction.lag.ms": Long = "0", (>= 0), ["log.cleaner.min.compaction.lag.ms" * 1], works,
        "Milliseconds that a record stays out of compaction at least.";
    "min.insync.replicas": Int = "1", (>= 1), ["min.insync.replicas" * 1], works,
        "In-sync replicas without which a produce with acks=all is refused.";
    "preallocate": Boolean = "false", any, ["log.preallocate" * 1], (no_effect "segments grow as they are written"),
        "Whether a new segment is allocated as a whole.";
    "remote.log.copy.disable": Boolean = "false", any, [], (refused TIERED),
        "Whether no more segments are copied to remote storage.";
    "remote.log.delete.on.disable": Boolean = "false", any, [], (refused TIERED),
        "Whether segments in remote storage are deleted when it is disabled.";
    "remote.storage.enable": Boolean = "false", any, [], (refused TIERED),
        "Whether old segments move to remote storage.";
    "retention.bytes": Long = "-1", any, ["log.retention.bytes" * 1], works,
        "Bytes of a partition beyond which its oldest segments are deleted; negative is never.";
    "retention.ms": Long = "604800000", (>= -1), ["log.retention.ms" * 1, "log.retention.minutes" * MINUTE, "log.retention.hours" * HOUR], works,
        "Milliseconds after which records are deleted; -1 is never.";
    "segment.bytes": Int = "1073741824", (>= 14), ["log.segment.bytes" * 1], works,
        "Bytes at which a segment is full.";
    "segment.index.bytes": Int = "10485760", (>= 4), ["log.index.size.max.bytes" * 1], works,
        "Capacity of an index file in bytes.";
    "segment.jitter.ms": Long = "0", (>= 0), ["log.roll.jitter.ms" * 1, "log.roll.jitter.hours" * HOUR], works,
        "Milliseconds by which a roll may come earlier, at random.";
    "segment.ms": Long = "604800000", (>= 1), ["log.roll.ms" * 1, "log.roll.hours" * HOUR], works,
        "Milliseconds after which a segment is rolled.";
    "unclean.leader.election.enable": Boolean = "false", any, ["unclean.leader.election.enable" * 1], works,
        "Whether a replica outside the in-sync set may lead when no other is alive.";
}

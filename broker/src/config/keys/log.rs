//! Keys of the `[log]` section. The topic keys that they stand in for are in `topic.rs`.

use super::broker_table;

const OWNERS: &str = "every shard recovers its own logs";

broker_table!(LOG, Log, {
    "log.dirs": String = null, any, fixed, works,
        "Directories that hold the logs, separated by commas. log.dir if unset.";
    "log.dir": String = "/tmp/kafka-logs", any, fixed, works,
        "Directories that hold the logs, when log.dirs is unset.";
    "num.recovery.threads.per.data.dir": Int = "1", (>= 1), cluster, (no_effect OWNERS),
        "Threads that load logs at start.";
    "log.dir.failure.timeout.ms": Long = "30000", (>= 1), fixed, (no_effect "the controller is told of a failed directory until it has heard"),
        "Milliseconds to tell the controller of a failed directory before the broker stops.";
    "log.segment.bytes": Int = "1073741824", (>= 14), cluster, works,
        "Bytes at which a segment is full.";
    "log.roll.ms": Long = null, any, cluster, works,
        "Milliseconds after which a segment is rolled; log.roll.hours if unset.";
    "log.roll.hours": Int = "168", (>= 1), fixed, works,
        "Hours after which a segment is rolled, when log.roll.ms is unset.";
    "log.roll.jitter.ms": Long = null, any, cluster, works,
        "Milliseconds by which a roll may come earlier, at random; log.roll.jitter.hours if unset.";
    "log.roll.jitter.hours": Int = "0", (>= 0), fixed, works,
        "Hours by which a roll may come earlier, when log.roll.jitter.ms is unset.";
    "log.index.size.max.bytes": Int = "10485760", (>= 4), cluster, works,
        "Capacity of an index file in bytes.";
    "log.index.interval.bytes": Int = "4096", (>= 0), cluster, works,
        "Bytes of records between two index entries.";
    "log.preallocate": Boolean = "false", any, cluster, (no_effect "segments grow as they are written"),
        "Whether a new segment is allocated as a whole.";
    "log.retention.ms": Long = null, any, cluster, works,
        "Milliseconds after which records are deleted, -1 is never; log.retention.minutes if unset.";
    "log.retention.minutes": Int = null, any, fixed, works,
        "Minutes after which records are deleted, when log.retention.ms is unset; log.retention.hours if unset.";
    "log.retention.hours": Int = "168", any, fixed, works,
        "Hours after which records are deleted, when the finer keys are unset.";
    "log.retention.bytes": Long = "-1", any, cluster, works,
        "Bytes of a partition beyond which its oldest segments are deleted; -1 is never.";
    "log.retention.check.interval.ms": Long = "300000", (>= 1), fixed, works,
        "Milliseconds between two looks for segments to delete.";
    "log.segment.delete.delay.ms": Long = "60000", (>= 0), cluster, works,
        "Milliseconds between taking a file out of a log and removing it.";
    "log.cleanup.policy": List = "delete", (subset_of "compact" "delete"), cluster, works,
        "What becomes of old records: delete, compact, or both.";
    "log.flush.interval.messages": Long = "9223372036854775807", (>= 1), cluster, works,
        "Records after which a log is synced; 1 is before each acknowledgement.";
    "log.flush.interval.ms": Long = null, any, cluster, works,
        "Milliseconds after which a record is synced; log.flush.scheduler.interval.ms if unset.";
    "log.flush.scheduler.interval.ms": Long = "9223372036854775807", any, fixed, works,
        "Milliseconds after which a record is synced, when log.flush.interval.ms is unset; each log has a timer of its own.";
    "log.flush.offset.checkpoint.interval.ms": Int = "60000", (>= 0), fixed, works,
        "Milliseconds between two writings of the recovery points.";
    "log.flush.start.offset.checkpoint.interval.ms": Int = "60000", (>= 0), fixed, works,
        "Milliseconds between two writings of the log start offsets.";
    "log.initial.task.delay.ms": Long = "30000", (>= 0), internal, (no_effect "background work on logs starts with them"),
        "Milliseconds before the first background work on logs.";
    "message.max.bytes": Int = "1048588", (>= 0), cluster, works,
        "Largest batch of records in bytes, after compression.";
    "compression.type": String = "producer", (one_of "uncompressed" "zstd" "lz4" "snappy" "gzip" "producer"), cluster, works,
        "Compression of stored batches; producer keeps what the producer chose.";
    "compression.gzip.level": Int = "-1", (1..=9 or -1), cluster, works,
        "Level of gzip when the broker compresses, 1 to 9; -1 is the codec's default.";
    "compression.lz4.level": Int = "9", (1..=17), cluster, (no_effect "lz4 has one level here"),
        "Level of lz4 when the broker compresses, 1 to 17.";
    "compression.zstd.level": Int = "3", (-131072..=22), cluster, works,
        "Level of zstd when the broker compresses.";
    "log.message.format.version": String = "3.0-IV1", release, fixed, (no_effect "batches of format 2 are all that is written"),
        "Release whose record format is written.";
    "log.message.timestamp.type": String = "CreateTime", (one_of "CreateTime" "LogAppendTime"), cluster, works,
        "Whether a record keeps the producer's timestamp or gets the time of its append.";
    "log.message.timestamp.difference.max.ms": Long = "9223372036854775807", (>= 0), cluster, works,
        "Milliseconds by which a timestamp may be off, when the two finer keys are at their defaults.";
    "log.message.timestamp.before.max.ms": Long = "9223372036854775807", (>= 0), cluster, works,
        "Milliseconds by which a timestamp may lie before the broker's clock.";
    "log.message.timestamp.after.max.ms": Long = "9223372036854775807", (>= 0), cluster, works,
        "Milliseconds by which a timestamp may lie after the broker's clock.";
    "log.message.downconversion.enable": Boolean = "true", any, cluster, (no_effect "no fetch version served needs older formats"),
        "Whether batches are converted for clients that know only older formats.";
    "log.local.retention.ms": Long = "-2", (>= -2), cluster, (no_effect "tiered storage is not built"),
        "Milliseconds that segments copied to remote storage stay here too.";
    "log.local.retention.bytes": Long = "-2", (>= -2), cluster, (no_effect "tiered storage is not built"),
        "Bytes of segments copied to remote storage that stay here too.";
});

broker_table!(CLEANER, Log, {
    "log.cleaner.enable": Boolean = "true", any, fixed, works,
        "Whether compaction runs.";
    "log.cleaner.threads": Int = "1", (>= 0), cluster, works,
        "Compactions that run at once.";
    "log.cleaner.dedupe.buffer.size": Long = "134217728", any, cluster, works,
        "Bytes of memory for the keys of all compactions.";
    "log.cleaner.io.buffer.size": Int = "524288", (>= 0), cluster, works,
        "Bytes of memory for reading and writing in all compactions.";
    "log.cleaner.io.buffer.load.factor": Double = "0.9", any, cluster, works,
        "How full the memory for keys may become, from 0 to 1.";
    "log.cleaner.io.max.bytes.per.second": Double = "1.7976931348623157E308", any, cluster, works,
        "Bytes per second that compaction reads and writes at most.";
    "log.cleaner.backoff.ms": Long = "15000", (>= 0), cluster, works,
        "Milliseconds between two looks for logs to compact.";
    "log.cleaner.min.cleanable.ratio": Double = "0.5", (0..=1), cluster, works,
        "Share of a log that must be dirty before it is compacted, from 0 to 1.";
    "log.cleaner.delete.retention.ms": Long = "86400000", (>= 0), cluster, works,
        "Milliseconds that a deletion mark stays after compaction first met it.";
    "log.cleaner.min.compaction.lag.ms": Long = "0", (>= 0), cluster, works,
        "Milliseconds that a record stays out of compaction at least.";
    "log.cleaner.max.compaction.lag.ms": Long = "9223372036854775807", (>= 1), cluster, works,
        "Milliseconds that a record stays out of compaction at most.";
});

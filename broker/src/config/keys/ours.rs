//! Keys of our own: the `[runtime]` section, static, never described to clients and never stored in cluster metadata.

use super::broker_table;

const DIRECT: &str = "direct I/O is not built yet";

broker_table!(OURS, Runtime, {
    "cores": String = "auto", any, ours, works,
        "Shards, one per core: auto takes every core the process may use, a number takes that many, a list such as [0,2] takes those.";
    "cores.pin": Boolean = "true", any, ours, (no_effect "shards are placed as cores says"),
        "Whether each shard stays on its core.";
    "memory.bytes": Long = "-1", (>= -1), ours, works,
        "Bytes of memory for requests in flight and caches, over all shards, at least 16777216 for each; -1 takes a quarter of the machine's.";
    "groups.memory.bytes": Long = "-1", (>= -1), ours, works,
        "Bytes that the groups of consumers may take, over all shards, at least 1048576 for each: members with their metadata and assignments, ids, offsets. Beyond it new members and groups are told to come again, and an eighth is left to those that are there; what is in the log is loaded all the same. -1 takes half of memory.bytes.";
    "spin.before.park.us": Int = "0", (0..=1000), ours, works,
        "Microseconds that an idle shard looks for work before it sleeps; 20 to 50 halves latency between shards for more CPU.";
    "admin.listener": String = "127.0.0.1:9644", any, ours, works,
        "Address and port of metrics and health over HTTP, without authentication; none is off. Unset, a port that is taken is only warned of.";
    "metadata.file": String = null, any, ours, works,
        "File of the embedded metadata store; odradek-metadata.redb in the log directory if unset.";
    "storage.durability.mode": String = "kafka", (one_of "kafka" "strict" "relaxed"), ours, works,
        "When a record counts as written: kafka when the page cache has it, strict when the disk has it, relaxed when memory has it.";
    "storage.io.mode": String = "buffered", (one_of "buffered" "direct"), ours, (refused DIRECT),
        "Whether writes go through the page cache.";
    "storage.append.chunk.bytes": Int = "65536", (4096..=1048576), ours, (no_effect DIRECT),
        "Bytes of one write in direct mode, a multiple of 4096.";
    "storage.prealloc.step.bytes": Int = "33554432", (>= 0), ours, (no_effect DIRECT),
        "Bytes by which a segment is allocated ahead in direct mode, a multiple of 1048576; 0 is off.";
    "storage.prealloc.extend.size": Boolean = "false", any, ours, (no_effect DIRECT),
        "Whether that allocation shows in the file's size.";
    "storage.tidy.idle.ms": Int = "500", (>= -1), ours, (no_effect DIRECT),
        "Milliseconds of rest after which a segment's tail is tidied in direct mode; 0 after each write, -1 only at the end.";
    "storage.sync.max.delay.ms": Int = "0", (0..=100), ours, works,
        "Milliseconds that a sync may wait for more appends in strict mode.";
    "storage.cache.fraction": Double = "0.05", any, ours, works,
        "Share of memory.bytes that keeps the newest records for readers, from 0.01 to 0.8; not more than 32 MiB of a shard.";
    "storage.free.space.floor.bytes": Long = "67108864", (>= 0), ours, works,
        "Bytes of free disk that produce leaves: what would take more is refused. Indexes, metadata and what is on its way to the disk come on top, and what others write is seen within a second. 0 refuses only when the disk is full.";
    "replication.max.fetch.connections": Int = "1024", (>= 1), ours, (no_effect "replication between brokers is not built yet"),
        "Connections that fetch from other brokers, in all.";
});

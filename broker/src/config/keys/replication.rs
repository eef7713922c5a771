//! Keys of the `[replication]` and `[quotas]` sections.

use super::broker_table;

const FETCHERS: &str = "replication between brokers is not built yet";
const NO_QUOTAS: &str = "quotas are not built yet";
const PURGATORY: &str = "waiting requests need no purge here";
const REBALANCE: &str = "a single broker has no leaders to balance";

broker_table!(REPLICATION, Replication, {
    "num.replica.fetchers": Int = "1", any, cluster, (no_effect FETCHERS),
        "Connections that fetch from each other broker.";
    "replica.fetch.max.bytes": Int = "1048576", (>= 0), fixed, (no_effect FETCHERS),
        "Bytes per partition that a replica asks for.";
    "replica.fetch.min.bytes": Int = "1", any, fixed, (no_effect FETCHERS),
        "Bytes that a replica waits for.";
    "replica.fetch.wait.max.ms": Int = "500", any, fixed, (no_effect FETCHERS),
        "Milliseconds that a replica waits for them.";
    "replica.fetch.response.max.bytes": Int = "10485760", (>= 0), fixed, (no_effect FETCHERS),
        "Bytes that a replica asks for in all.";
    "replica.fetch.backoff.ms": Int = "1000", (>= 0), fixed, (no_effect FETCHERS),
        "Milliseconds that a replica pauses after a failed fetch.";
    "replica.socket.timeout.ms": Int = "30000", any, fixed, (no_effect FETCHERS),
        "Milliseconds that a replica waits for an answer.";
    "replica.socket.receive.buffer.bytes": Int = "65536", any, fixed, (no_effect FETCHERS),
        "Receive buffer of a replica's sockets in bytes.";
    "replica.selector.class": String = null, any, fixed, (no_effect FETCHERS),
        "How consumers are sent to the nearest replica.";
    "num.replica.alter.log.dirs.threads": Int = null, any, fixed, (no_effect "each shard moves one log at a time"),
        "Threads that move replicas between directories.";
    "replica.lag.time.max.ms": Long = "30000", any, fixed, works,
        "Milliseconds after which a replica that has not caught up leaves the in-sync set.";
    "min.insync.replicas": Int = "1", (>= 1), cluster, works,
        "In-sync replicas without which a produce with acks=all is refused.";
    "unclean.leader.election.enable": Boolean = "false", any, cluster, works,
        "Whether a replica outside the in-sync set may lead when no other is alive.";
    "unclean.leader.election.interval.ms": Long = "300000", (>= 1), internal, (no_effect REBALANCE),
        "Milliseconds between two looks for partitions that need such an election.";
    "auto.leader.rebalance.enable": Boolean = "true", any, fixed, (no_effect REBALANCE),
        "Whether leadership returns to preferred replicas by itself.";
    "leader.imbalance.check.interval.seconds": Long = "300", (>= 1), fixed, (no_effect REBALANCE),
        "Seconds between two looks at the balance of leaders.";
    "leader.imbalance.per.broker.percentage": Int = "10", any, fixed, (no_effect REBALANCE),
        "Percentage of leaders away from their preferred broker that is borne.";
    "replica.high.watermark.checkpoint.interval.ms": Long = "5000", any, fixed, works,
        "Milliseconds between two writings of the high watermarks.";
    "controller.socket.timeout.ms": Int = "30000", any, fixed, (no_effect FETCHERS),
        "Milliseconds that the controller waits for an answer of a broker.";
    "fetch.purgatory.purge.interval.requests": Int = "1000", any, fixed, (no_effect PURGATORY),
        "Waiting fetches after which finished ones are purged.";
    "producer.purgatory.purge.interval.requests": Int = "1000", any, fixed, (no_effect PURGATORY),
        "Waiting produces after which finished ones are purged.";
    "delete.records.purgatory.purge.interval.requests": Int = "1", any, fixed, (no_effect PURGATORY),
        "Waiting record deletions after which finished ones are purged.";
});

broker_table!(QUOTAS, Quotas, {
    "quota.window.num": Int = "11", (>= 1), fixed, (refused NO_QUOTAS),
        "Samples by which the quotas of clients are measured.";
    "quota.window.size.seconds": Int = "1", (>= 1), fixed, (refused NO_QUOTAS),
        "Seconds of one such sample.";
    "controller.quota.window.num": Int = "11", (>= 1), fixed, (refused NO_QUOTAS),
        "Samples by which changes of topics are measured.";
    "controller.quota.window.size.seconds": Int = "1", (>= 1), fixed, (refused NO_QUOTAS),
        "Seconds of one such sample.";
    "replication.quota.window.num": Int = "11", (>= 1), fixed, (refused NO_QUOTAS),
        "Samples by which throttled replication is measured.";
    "replication.quota.window.size.seconds": Int = "1", (>= 1), fixed, (refused NO_QUOTAS),
        "Seconds of one such sample.";
    "alter.log.dirs.replication.quota.window.num": Int = "11", (>= 1), fixed, (refused NO_QUOTAS),
        "Samples by which moves between directories are measured.";
    "alter.log.dirs.replication.quota.window.size.seconds": Int = "1", (>= 1), fixed, (refused NO_QUOTAS),
        "Seconds of one such sample.";
    "leader.replication.throttled.rate": Long = "9223372036854775807", (>= 0), unlisted, (refused NO_QUOTAS),
        "Bytes per second that throttled leaders send.";
    "follower.replication.throttled.rate": Long = "9223372036854775807", (>= 0), unlisted, (refused NO_QUOTAS),
        "Bytes per second that throttled followers fetch.";
    "replica.alter.log.dirs.io.max.bytes.per.second": Long = "9223372036854775807", (>= 0), unlisted, (refused NO_QUOTAS),
        "Bytes per second that moves between directories copy.";
    "client.quota.callback.class": Class = null, any, fixed, (refused "classes cannot be loaded"),
        "Class that decides the quotas of clients.";
});

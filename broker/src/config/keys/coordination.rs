//! Keys of the `[group]` and `[transaction]` sections.

use super::broker_table;

const CONSUMER: &str = "the consumer group protocol is not built yet";
const OFFERED: &str = "the classic group protocol is offered, and no other yet";
const ONE_COORDINATOR: &str = "there is one coordinator";
const NO_LINGER: &str = "the records of a request are written at once";
const ONE_BROKER: &str = "the embedded metadata store has one broker and so one replica";
const SHARES: &str = "share groups are not built";
const TRANSACTIONS: &str = "transactions are not built yet";

broker_table!(GROUP, Group, {
    "group.min.session.timeout.ms": Int = "6000", any, fixed, works,
        "Shortest session of a group member in milliseconds.";
    "group.max.session.timeout.ms": Int = "1800000", any, fixed, works,
        "Longest session of a group member in milliseconds.";
    "group.initial.rebalance.delay.ms": Int = "3000", any, fixed, works,
        "Milliseconds that an empty group waits for more members before its first rebalance.";
    "group.max.size": Int = "2147483647", (>= 1), fixed, works,
        "Members of a group at most.";
    "group.coordinator.rebalance.protocols": List = "classic", (subset_of "consumer" "classic" "share" "unknown"), fixed, (no_effect OFFERED),
        "Group protocols that are offered.";
    "group.coordinator.threads": Int = "1", (>= 1), fixed, (no_effect "every shard coordinates its own groups"),
        "Threads that coordinate groups.";
    "group.coordinator.append.linger.ms": Int = "10", (>= 0), fixed, (no_effect NO_LINGER),
        "Milliseconds that the records of groups are gathered before they are written.";
    "group.coordinator.new.enable": Boolean = "false", any, internal, (no_effect ONE_COORDINATOR),
        "Whether Kafka's newer coordinator is used.";
    "group.consumer.session.timeout.ms": Int = "45000", (>= 1), fixed, (no_effect CONSUMER),
        "Session of a member of the consumer protocol in milliseconds.";
    "group.consumer.min.session.timeout.ms": Int = "45000", (>= 1), fixed, (no_effect CONSUMER),
        "Shortest such session in milliseconds.";
    "group.consumer.max.session.timeout.ms": Int = "60000", (>= 1), fixed, (no_effect CONSUMER),
        "Longest such session in milliseconds.";
    "group.consumer.heartbeat.interval.ms": Int = "5000", (>= 1), fixed, (no_effect CONSUMER),
        "Milliseconds between two heartbeats of such a member.";
    "group.consumer.min.heartbeat.interval.ms": Int = "5000", (>= 1), fixed, (no_effect CONSUMER),
        "Shortest such interval in milliseconds.";
    "group.consumer.max.heartbeat.interval.ms": Int = "15000", (>= 1), fixed, (no_effect CONSUMER),
        "Longest such interval in milliseconds.";
    "group.consumer.max.size": Int = "2147483647", (>= 1), fixed, (no_effect CONSUMER),
        "Members of such a group at most.";
    "group.consumer.assignors": List = "org.apache.kafka.coordinator.group.assignor.UniformAssignor,org.apache.kafka.coordinator.group.assignor.RangeAssignor", any, fixed, (no_effect CONSUMER),
        "Ways of dividing partitions that such a group may choose; the first is the default.";
    "group.consumer.migration.policy": String = "disabled", (one_of_any_case "disabled" "downgrade" "upgrade" "bidirectional"), internal, (no_effect CONSUMER),
        "Whether groups may change between the protocols while they run.";
    "offset.metadata.max.bytes": Int = "4096", any, fixed, works,
        "Longest text that may be committed with an offset.";
    "offsets.load.buffer.size": Int = "5242880", (>= 1), fixed, works,
        "Bytes that are read at once when groups are loaded.";
    "offsets.topic.replication.factor": Short = "3", (>= 1), fixed, (no_effect ONE_BROKER),
        "Replicas of the topic of committed offsets.";
    "offsets.topic.num.partitions": Int = "50", (>= 1), fixed, works,
        "Partitions of that topic.";
    "offsets.topic.segment.bytes": Int = "104857600", (>= 1), fixed, works,
        "Bytes of a segment of that topic.";
    "offsets.topic.compression.codec": Int = "0", (0..=4), fixed, works,
        "Number of the codec that compresses records of that topic.";
    "offsets.retention.minutes": Int = "10080", (>= 1), fixed, works,
        "Minutes that offsets of a dead group are kept.";
    "offsets.retention.check.interval.ms": Long = "600000", (>= 1), fixed, works,
        "Milliseconds between two looks for such offsets.";
    "offsets.commit.timeout.ms": Int = "5000", (>= 1), fixed, works,
        "Milliseconds within which a commit must be replicated.";
    "offsets.commit.required.acks": Short = "-1", (-1..=-1), fixed, works,
        "Acknowledgements that a commit needs; only -1, all, is possible.";
});

broker_table!(SHARE, Group, {
    "group.share.enable": Boolean = "false", any, internal, (no_effect SHARES),
        "Whether share groups are offered.";
    "group.share.delivery.count.limit": Int = "5", (2..=10), fixed, (no_effect SHARES),
        "Times that a record is handed to a share group at most.";
    "group.share.record.lock.duration.ms": Int = "30000", (1000..=60000), fixed, (no_effect SHARES),
        "Milliseconds that a member of a share group keeps a record to itself.";
    "group.share.min.record.lock.duration.ms": Int = "15000", (1000..=30000), fixed, (no_effect SHARES),
        "Shortest such time in milliseconds.";
    "group.share.max.record.lock.duration.ms": Int = "60000", (30000..=3600000), fixed, (no_effect SHARES),
        "Longest such time in milliseconds.";
    "group.share.partition.max.record.locks": Int = "200", (100..=10000), fixed, (no_effect SHARES),
        "Records of a partition that a share group may hold at once.";
    "group.share.session.timeout.ms": Int = "45000", (>= 1), fixed, (no_effect SHARES),
        "Session of a member of a share group in milliseconds.";
    "group.share.min.session.timeout.ms": Int = "45000", (>= 1), fixed, (no_effect SHARES),
        "Shortest such session in milliseconds.";
    "group.share.max.session.timeout.ms": Int = "60000", (>= 1), fixed, (no_effect SHARES),
        "Longest such session in milliseconds.";
    "group.share.heartbeat.interval.ms": Int = "5000", (>= 1), fixed, (no_effect SHARES),
        "Milliseconds between two heartbeats of such a member.";
    "group.share.min.heartbeat.interval.ms": Int = "5000", (>= 1), fixed, (no_effect SHARES),
        "Shortest such interval in milliseconds.";
    "group.share.max.heartbeat.interval.ms": Int = "15000", (>= 1), fixed, (no_effect SHARES),
        "Longest such interval in milliseconds.";
    "group.share.max.groups": Short = "10", (1..=100), fixed, (no_effect SHARES),
        "Share groups that there may be at most.";
    "group.share.max.size": Short = "200", (10..=1000), fixed, (no_effect SHARES),
        "Members of a share group at most.";
});

broker_table!(TRANSACTION, Transaction, {
    "transaction.state.log.num.partitions": Int = "50", (>= 1), fixed, (no_effect TRANSACTIONS),
        "Partitions of the topic of transactions.";
    "transaction.state.log.replication.factor": Short = "3", (>= 1), fixed, (no_effect TRANSACTIONS),
        "Replicas of that topic.";
    "transaction.state.log.min.isr": Int = "2", (>= 1), fixed, (no_effect TRANSACTIONS),
        "In-sync replicas that writing to that topic needs.";
    "transaction.state.log.segment.bytes": Int = "104857600", (>= 1), fixed, (no_effect TRANSACTIONS),
        "Bytes of a segment of that topic.";
    "transaction.state.log.load.buffer.size": Int = "5242880", (>= 1), fixed, (no_effect TRANSACTIONS),
        "Bytes that are read at once when transactions are loaded.";
    "transaction.max.timeout.ms": Int = "900000", (>= 1), fixed, (no_effect TRANSACTIONS),
        "Longest transaction in milliseconds.";
    "transactional.id.expiration.ms": Int = "604800000", (>= 1), fixed, (no_effect TRANSACTIONS),
        "Milliseconds that an unused transactional id is kept.";
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": Int = "10000", (>= 1), fixed, (no_effect TRANSACTIONS),
        "Milliseconds between two looks for transactions that take too long.";
    "transaction.remove.expired.transaction.cleanup.interval.ms": Int = "3600000", (>= 1), fixed, (no_effect TRANSACTIONS),
        "Milliseconds between two looks for unused transactional ids.";
    "transaction.partition.verification.enable": Boolean = "true", any, cluster, (no_effect TRANSACTIONS),
        "Whether a partition asks the coordinator before it takes a transaction's first records.";
    "producer.id.expiration.ms": Int = "86400000", (>= 1), cluster, works,
        "Milliseconds that a partition remembers a producer that writes nothing.";
    "producer.id.expiration.check.interval.ms": Int = "600000", (>= 1), internal, works,
        "Milliseconds between two looks for producers to forget.";
});

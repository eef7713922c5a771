//! Keys that lead elsewhere: metadata in ZooKeeper or KRaft, segments in remote storage. What is not built of them: the
//! switches refuse the start, what only tunes them is checked and kept.

use super::broker_table;

const RIGHTS: &str = "rights in ZooKeeper are not built yet";
const NO_TLS: &str = "TLS to ZooKeeper is not built yet";
const KRAFT: &str = "KRaft is not spoken; remove the key to run on the embedded store";
const NO_KRAFT: &str = "KRaft is not spoken";
const TIERED: &str = "tiered storage is not built";

broker_table!(ZOOKEEPER_KEYS, General, {
    "zookeeper.connect": String = null, any, fixed, works,
        "Hosts of the ZooKeeper ensemble that holds the metadata, host:port separated by commas, with an optional path; the embedded store holds it if unset.";
    "zookeeper.session.timeout.ms": Int = "18000", any, fixed, works,
        "Milliseconds after which ZooKeeper gives a silent broker up.";
    "zookeeper.connection.timeout.ms": Int = null, any, fixed, works,
        "Milliseconds to wait for ZooKeeper at start; the session timeout if unset.";
    "zookeeper.max.in.flight.requests": Int = "10", (>= 1), fixed, works,
        "Requests to ZooKeeper that may be unanswered at once.";
    "zookeeper.set.acl": Boolean = "false", any, fixed, (refused RIGHTS),
        "Whether only brokers may write the nodes in ZooKeeper.";
    "zookeeper.clientCnxnSocket": String = null, any, fixed, (no_effect NO_TLS),
        "Class of the session's socket in Kafka's client; any value that can encrypt is right.";
    "zookeeper.ssl.client.enable": Boolean = "false", any, fixed, (refused NO_TLS),
        "Whether the session to ZooKeeper is encrypted.";
    "zookeeper.ssl.keystore.location": String = null, any, fixed, (no_effect NO_TLS),
        "File of the key and certificates shown to ZooKeeper.";
    "zookeeper.ssl.keystore.password": Password = null, any, fixed, (no_effect NO_TLS),
        "Password of that file.";
    "zookeeper.ssl.keystore.type": String = null, any, fixed, (no_effect NO_TLS),
        "Format of that file; told by its name if unset.";
    "zookeeper.ssl.truststore.location": String = null, any, fixed, (no_effect NO_TLS),
        "File of the certificates by which ZooKeeper is trusted.";
    "zookeeper.ssl.truststore.password": Password = null, any, fixed, (no_effect NO_TLS),
        "Password of that file.";
    "zookeeper.ssl.truststore.type": String = null, any, fixed, (no_effect NO_TLS),
        "Format of that file; told by its name if unset.";
    "zookeeper.ssl.protocol": String = "TLSv1.2", any, fixed, (no_effect NO_TLS),
        "Version of TLS to ZooKeeper.";
    "zookeeper.ssl.enabled.protocols": List = null, any, fixed, (no_effect NO_TLS),
        "Versions of TLS to ZooKeeper that are allowed; zookeeper.ssl.protocol alone if unset.";
    "zookeeper.ssl.cipher.suites": List = null, any, fixed, (no_effect NO_TLS),
        "Ciphers to ZooKeeper that are allowed; the library's choice if unset.";
    "zookeeper.ssl.endpoint.identification.algorithm": String = "HTTPS", any, fixed, (no_effect NO_TLS),
        "How the host name of a ZooKeeper server is checked; empty is not at all.";
    "zookeeper.ssl.crl.enable": Boolean = "false", any, fixed, (no_effect NO_TLS),
        "Whether ZooKeeper's certificate is looked up in lists of revoked ones.";
    "zookeeper.ssl.ocsp.enable": Boolean = "false", any, fixed, (no_effect NO_TLS),
        "Whether the state of ZooKeeper's certificate is asked of its issuer.";
    "zookeeper.metadata.migration.enable": Boolean = "false", any, fixed, (refused KRAFT),
        "Whether metadata moves from ZooKeeper to KRaft.";
    "zookeeper.metadata.migration.min.batch.size": Int = "200", (>= 1), internal, (no_effect NO_KRAFT),
        "Records of one step of that move at least.";
});

broker_table!(KRAFT_KEYS, General, {
    "process.roles": List = "", (subset_of "broker" "controller"), fixed, (refused KRAFT),
        "Roles of the process in a KRaft cluster.";
    "node.id": Int = "-1", any, fixed, (refused "KRaft is not spoken; set broker.id instead"),
        "Id of the process in a KRaft cluster; that of the broker if unset.";
    "controller.quorum.voters": List = "", any, fixed, (refused KRAFT),
        "Voters of a KRaft quorum.";
    "controller.quorum.bootstrap.servers": List = "", any, fixed, (refused KRAFT),
        "Members of a KRaft quorum to ask first.";
    "controller.listener.names": String = null, any, fixed, (refused KRAFT),
        "Listeners of a KRaft controller.";
    "controller.quorum.append.linger.ms": Int = "25", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds that a KRaft leader gathers writes.";
    "controller.quorum.election.backoff.max.ms": Int = "1000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds before a KRaft election is tried again, at most.";
    "controller.quorum.election.timeout.ms": Int = "1000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds without a KRaft leader before an election.";
    "controller.quorum.fetch.timeout.ms": Int = "2000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds without a fetch before a KRaft leader is given up.";
    "controller.quorum.request.timeout.ms": Int = "2000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds to wait for an answer in a KRaft quorum.";
    "controller.quorum.retry.backoff.ms": Int = "20", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds before a request in a KRaft quorum is tried again.";
    "broker.heartbeat.interval.ms": Int = "2000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds between two heartbeats to a KRaft controller.";
    "broker.session.timeout.ms": Int = "9000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds after which a KRaft controller gives a silent broker up.";
    "initial.broker.registration.timeout.ms": Int = "60000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds that a broker tries to register with a KRaft controller.";
    "eligible.leader.replicas.enable": Boolean = "false", any, fixed, (no_effect NO_KRAFT),
        "Whether a KRaft controller remembers which replicas outside the in-sync set have all records.";
    "metadata.log.dir": String = null, any, fixed, (refused KRAFT),
        "Directory of a KRaft metadata log.";
    "metadata.log.max.record.bytes.between.snapshots": Long = "20971520", (>= 1), fixed, (no_effect NO_KRAFT),
        "Bytes of a KRaft metadata log between two snapshots.";
    "metadata.log.max.snapshot.interval.ms": Long = "3600000", (>= 0), fixed, (no_effect NO_KRAFT),
        "Milliseconds between two snapshots of KRaft metadata; 0 is no limit.";
    "metadata.log.segment.bytes": Int = "1073741824", (>= 12), fixed, (no_effect NO_KRAFT),
        "Bytes at which a segment of a KRaft metadata log is full.";
    "metadata.log.segment.min.bytes": Int = "8388608", (>= 12), internal, (no_effect NO_KRAFT),
        "Bytes that metadata.log.segment.bytes may not go below.";
    "metadata.log.segment.ms": Long = "604800000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds after which a segment of a KRaft metadata log is rolled.";
    "metadata.max.idle.interval.ms": Int = "500", (>= 0), fixed, (no_effect NO_KRAFT),
        "Milliseconds between two empty records of an idle KRaft controller; 0 is none.";
    "metadata.max.retention.bytes": Long = "104857600", any, fixed, (no_effect NO_KRAFT),
        "Bytes of a KRaft metadata log and its snapshots beyond which old ones are deleted.";
    "metadata.max.retention.ms": Long = "604800000", any, fixed, (no_effect NO_KRAFT),
        "Milliseconds after which a piece of a KRaft metadata log is deleted.";
});

broker_table!(REMOTE, Log, {
    "remote.log.storage.system.enable": Boolean = "false", any, fixed, (refused TIERED),
        "Whether old segments may move to remote storage.";
    "remote.log.storage.manager.class.name": String = null, any, fixed, (no_effect TIERED),
        "Class that stores segments remotely.";
    "remote.log.storage.manager.class.path": String = null, any, fixed, (no_effect TIERED),
        "Where that class is found.";
    "remote.log.storage.manager.impl.prefix": String = "rsm.config.", any, fixed, (no_effect TIERED),
        "Prefix of the keys that go to that class.";
    "remote.log.metadata.manager.class.name": String = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", any, fixed, (no_effect TIERED),
        "Class that knows which segments are stored remotely.";
    "remote.log.metadata.manager.class.path": String = null, any, fixed, (no_effect TIERED),
        "Where that class is found.";
    "remote.log.metadata.manager.impl.prefix": String = "rlmm.config.", any, fixed, (no_effect TIERED),
        "Prefix of the keys that go to that class.";
    "remote.log.metadata.manager.listener.name": String = null, any, fixed, (no_effect TIERED),
        "Listener that this class connects to.";
    "remote.log.metadata.custom.metadata.max.bytes": Int = "128", (>= 0), fixed, (no_effect TIERED),
        "Bytes that the store may remember with a segment.";
    "remote.log.index.file.cache.total.size.bytes": Long = "1073741824", (>= 1), cluster, (no_effect TIERED),
        "Bytes of indexes of remote segments that are kept here.";
    "remote.log.manager.thread.pool.size": Int = "10", (>= 1), fixed, (no_effect TIERED),
        "Threads that work on remote segments.";
    "remote.log.manager.copier.thread.pool.size": Int = "-1", (1..=2147483647 or -1), fixed, (no_effect TIERED),
        "Threads that copy segments; -1 is remote.log.manager.thread.pool.size.";
    "remote.log.manager.expiration.thread.pool.size": Int = "-1", (1..=2147483647 or -1), fixed, (no_effect TIERED),
        "Threads that delete remote segments; -1 is remote.log.manager.thread.pool.size.";
    "remote.log.manager.copy.max.bytes.per.second": Long = "9223372036854775807", (>= 1), cluster, (no_effect TIERED),
        "Bytes per second that are copied to remote storage at most.";
    "remote.log.manager.copy.quota.window.num": Int = "11", (>= 1), fixed, (no_effect TIERED),
        "Samples by which that rate is measured.";
    "remote.log.manager.copy.quota.window.size.seconds": Int = "1", (>= 1), fixed, (no_effect TIERED),
        "Seconds of one such sample.";
    "remote.log.manager.fetch.max.bytes.per.second": Long = "9223372036854775807", (>= 1), cluster, (no_effect TIERED),
        "Bytes per second that are read from remote storage at most.";
    "remote.log.manager.fetch.quota.window.num": Int = "11", (>= 1), fixed, (no_effect TIERED),
        "Samples by which that rate is measured.";
    "remote.log.manager.fetch.quota.window.size.seconds": Int = "1", (>= 1), fixed, (no_effect TIERED),
        "Seconds of one such sample.";
    "remote.log.manager.task.interval.ms": Long = "30000", (>= 1), fixed, (no_effect TIERED),
        "Milliseconds between two looks for segments to copy or delete.";
    "remote.log.manager.task.retry.backoff.ms": Long = "500", (>= 1), internal, (no_effect TIERED),
        "Milliseconds before such work is tried again, at first.";
    "remote.log.manager.task.retry.backoff.max.ms": Long = "30000", (>= 1), internal, (no_effect TIERED),
        "Milliseconds before such work is tried again, at most.";
    "remote.log.manager.task.retry.jitter": Double = "0.2", (0..=1), internal, (no_effect TIERED),
        "Share by which these pauses vary, from 0 to 0.5.";
    "remote.log.reader.threads": Int = "10", (>= 1), fixed, (no_effect TIERED),
        "Threads that read remote segments.";
    "remote.log.reader.max.pending.tasks": Int = "100", (>= 1), fixed, (no_effect TIERED),
        "Reads of remote segments that may wait.";
    "remote.fetch.max.wait.ms": Int = "500", (>= 1), cluster, (no_effect TIERED),
        "Milliseconds that a fetch waits for remote storage at most.";
});

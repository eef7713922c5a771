//! Keys of the `[general]` and `[metrics]` sections: identity, topics, shutdown.

use super::broker_table;

const PLUGINS: &str = "classes cannot be loaded";

broker_table!(GENERAL, General, {
    "broker.id": Int = "-1", any, fixed, works,
        "Id of this broker; -1 takes the one in meta.properties, or a new one above reserved.broker.max.id.";
    "broker.id.generation.enable": Boolean = "true", any, fixed, works,
        "Whether an id may be generated when broker.id is -1.";
    "reserved.broker.max.id": Int = "1000", (>= 0), fixed, works,
        "Highest id that broker.id may have while ids are generated; generated ids lie above.";
    "broker.rack": String = null, any, fixed, works,
        "Rack of this broker, told to clients and used to spread replicas.";
    "inter.broker.protocol.version": String = "3.9-IV0", release, fixed, (no_effect "the broker speaks as release 3.9 does"),
        "Release of Kafka whose dialect brokers use among themselves.";
    "num.partitions": Int = "1", (>= 1), fixed, works,
        "Partitions of a topic that is created without a number.";
    "default.replication.factor": Int = "1", any, fixed, works,
        "Replicas of a topic that is created without a number.";
    "auto.create.topics.enable": Boolean = "true", any, fixed, works,
        "Whether a topic is created when a client asks for it by name.";
    "delete.topic.enable": Boolean = "true", any, fixed, works,
        "Whether topics can be deleted.";
    "create.topic.policy.class.name": Class = null, any, fixed, (refused PLUGINS),
        "Class that judges new topics.";
    "alter.config.policy.class.name": Class = null, any, fixed, (refused PLUGINS),
        "Class that judges changes of configuration.";
    "controlled.shutdown.enable": Boolean = "true", any, fixed, (no_effect "a single broker has nobody to hand its leaders to"),
        "Whether leaders move away before the broker stops.";
    "controlled.shutdown.max.retries": Int = "3", any, fixed, (no_effect "a single broker has nobody to hand its leaders to"),
        "Times that moving leaders away is tried again.";
    "controlled.shutdown.retry.backoff.ms": Long = "5000", any, fixed, (no_effect "a single broker has nobody to hand its leaders to"),
        "Milliseconds between two such tries.";
    "server.max.startup.time.ms": Long = "9223372036854775807", (>= 0), internal, (no_effect "a start that fails says so; none is cut short"),
        "Milliseconds that a start may take.";
    "unstable.api.versions.enable": Boolean = "false", any, internal, (no_effect "unfinished versions are never offered"),
        "Whether versions of requests that are not final are offered.";
    "unstable.feature.versions.enable": Boolean = "false", any, internal, (no_effect "unfinished versions are never offered"),
        "Whether versions of features that are not final are offered.";
});

broker_table!(METRICS, Metrics, {
    "metrics.num.samples": Int = "2", (>= 1), fixed, (no_effect "rates look back one minute, quantiles five"),
        "Samples that a metric keeps.";
    "metrics.sample.window.ms": Long = "30000", (>= 1), fixed, (no_effect "rates look back one minute, quantiles five"),
        "Milliseconds of one sample of a metric.";
    "metrics.recording.level": String = "INFO", (one_of "INFO" "DEBUG" "TRACE"), fixed, (no_effect "all metrics are recorded"),
        "Which metrics are recorded.";
    "metric.reporters": List = "", any, cluster, (no_effect PLUGINS),
        "Classes that report metrics.";
    "auto.include.jmx.reporter": Boolean = "true", any, fixed, (no_effect "there is no Java machine"),
        "Whether metrics are reported over JMX.";
    "kafka.metrics.reporters": List = "", any, fixed, (no_effect PLUGINS),
        "Classes that report the older kind of metrics.";
    "kafka.metrics.polling.interval.secs": Int = "10", (>= 1), fixed, (no_effect PLUGINS),
        "Seconds between two polls of those classes.";
    "telemetry.max.bytes": Int = "1048576", (>= 1), fixed, (no_effect "telemetry of clients is not received"),
        "Largest telemetry payload of a client in bytes.";
});

//! The rules between keys, listeners and what clients are told.

use super::super::broker::Cores;
use super::super::listeners::SecurityProtocol;
use super::*;

struct NoSecrets;

impl Secrets for NoSecrets {
    fn file(&self, _: &str) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }
}

fn surroundings() -> Surroundings {
    Surroundings { local_host: "here".to_owned(), default_log_dir: PathBuf::from("/data/logs") }
}

fn loaded(overrides: &[&str]) -> Loaded {
    let overrides = overrides.iter().map(|text| (*text).to_owned()).collect();
    load(&Sources { overrides, ..Sources::default() }, &NoSecrets, &surroundings())
}

fn config(overrides: &[&str]) -> BrokerConfig {
    loaded(overrides).config.unwrap_or_else(|faults| panic!("{overrides:?}: {}", Sentence(&faults)))
}

fn faults(overrides: &[&str]) -> Vec<String> {
    loaded(overrides)
        .config
        .map(|_| Vec::new())
        .unwrap_or_else(|faults| faults.iter().map(Fault::to_string).collect())
}

fn advertised(overrides: &[&str]) -> Vec<String> {
    config(overrides).network.listeners.advertised.iter().map(ToString::to_string).collect()
}

#[test]
fn a_start_without_settings_works() {
    let config = config(&[]);
    assert_eq!(config.identity.broker_id, None);
    assert_eq!(config.storage.log_dirs, [PathBuf::from("/data/logs")]);
    assert_eq!(config.storage.metadata_file, PathBuf::from("/data/logs/odradek-metadata.redb"));
    assert_eq!(config.runtime.cores, Cores::Auto);
    assert_eq!(config.network.listeners.listeners.len(), 1);
    assert_eq!(config.network.listeners.listeners[0].host, None);
    assert_eq!(config.network.connections_max_idle_ms, Some(600_000));
    assert_eq!(config.topic_defaults.log, storage::config::LogConfig::default());
    assert_eq!(config.topic_defaults.max_message_bytes, 1_048_588);
    assert_eq!(config.topics.num_partitions, 1);
    assert_eq!(loaded(&[]).warnings, Vec::new());
}

#[test]
fn zookeeper_holds_the_metadata_if_it_is_named() {
    assert_eq!(config(&["zookeeper.session.timeout.ms=1"]).zookeeper, None);
    let zookeeper = |settings: &[&str]| config(settings).zookeeper.unwrap();
    let connect = "zookeeper.connect=a:1,b:2/kafka";
    let defaults = zookeeper(&[connect]);
    assert_eq!((defaults.connect.as_str(), defaults.max_in_flight_requests), ("a:1,b:2/kafka", 10));
    assert_eq!((defaults.session_timeout_ms, defaults.connection_timeout_ms), (18_000, 18_000));
    let session = "zookeeper.session.timeout.ms=6000";
    assert_eq!(zookeeper(&[connect, session]).connection_timeout_ms, 6000);
    assert_eq!(zookeeper(&[connect, "zookeeper.connection.timeout.ms=7"]).connection_timeout_ms, 7);
}

#[test]
fn clients_are_told_the_listeners_unless_others_are_advertised() {
    assert_eq!(advertised(&[]), ["PLAINTEXT://here:9092"]);
    assert_eq!(advertised(&["listeners=plaintext://[::1]:1"]), ["PLAINTEXT://[::1]:1"]);
    let two = "listeners=IN://10.0.0.1:1,OUT://0.0.0.0:2";
    let map = "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT";
    let told = "advertised.listeners=IN://10.0.0.1:1,OUT://example.org:2";
    let inter = "inter.broker.listener.name=in";
    assert_eq!(advertised(&[two, map, told, inter]), ["IN://10.0.0.1:1", "OUT://example.org:2"]);
    let listeners = config(&[two, map, told, inter, "listener.name.out.max.connections=9"]).network.listeners;
    assert_eq!(&*listeners.inter_broker, "IN");
    assert_eq!((listeners.listeners[1].host.clone(), listeners.listeners[1].max_connections), (None, 9));
    assert_eq!(listeners.listeners[1].protocol, SecurityProtocol::Plaintext);
}

/// S-01 and S-02 of security-admin.md.
#[test]
fn listeners_that_contradict_themselves_stop_the_start() {
    for (settings, fault) in [
        (
            &["listeners=PLAINTEXT://0.0.0.0:1"][..],
            "advertised.listeners cannot use the address 0.0.0.0, which nobody can connect to: set a routable address",
        ),
        (
            &["listeners=PLAINTEXT://[::]:1"],
            "advertised.listeners cannot use the address ::, which nobody can connect to: set a routable address",
        ),
        (
            &["advertised.listeners=OTHER://a:1,PLAINTEXT://a:1"],
            "advertised.listeners: OTHER is not among the listeners (PLAINTEXT)",
        ),
        (
            &["inter.broker.listener.name=PLAINTEXT", "security.inter.broker.protocol=PLAINTEXT"],
            "only one of inter.broker.listener.name and security.inter.broker.protocol may be set",
        ),
        (
            &["inter.broker.listener.name=x"],
            "the listener X that brokers use among themselves is not advertised (PLAINTEXT): set inter.broker.listener.name",
        ),
        (
            &["listeners=PLAINTEXT://:1,plaintext://:2"],
            "listeners: the listener name PLAINTEXT appears twice",
        ),
        (
            &[
                "listeners=PLAINTEXT://:1,X://:1",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,X:PLAINTEXT",
            ],
            "listeners: port 1 appears twice; only one IPv4 and one IPv6 address may share a port",
        ),
        (
            &["listeners=PLAINTEXT://:1,X://:2"],
            "no security protocol is defined for listener X: name it in listener.security.protocol.map",
        ),
        (
            &["listeners=PLAINTEXT://:1,SSL://:2"],
            "listener SSL uses SSL: TLS and SASL are not built yet, so the broker does not start rather than leave it open",
        ),
        (
            &["listener.security.protocol.map=PLAINTEXT:TLS,PLAINTEXT:PLAINTEXT"],
            "listener.security.protocol.map: `PLAINTEXT:TLS` is not of the form NAME:PROTOCOL with one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            &["listener.name.x.max.connections=1"],
            "listener.name.x.max.connections is for a listener that is not among the listeners (PLAINTEXT)",
        ),
    ] {
        assert_eq!(faults(settings), [fault], "{settings:?}");
    }
    for text in [
        "PLAINTEXT",
        "PLAINTEXT://9092",
        "PLAINTEXT://a:70000",
        "PLAINTEXT://::1:9092",
        "://a:1",
        "PLAINTEXT://a b:1",
        "PLAINTEXT://[]:1",
    ] {
        assert!(
            faults(&[&format!("listeners={text}")])[0].contains("is not of the form NAME://host:port"),
            "{text}"
        );
    }
}

/// As in Kafka. What a template leaves empty opens no interface.
#[test]
fn what_is_left_empty_is_not_the_default() {
    for (setting, fault) in [
        ("listeners=", "listeners names no listener: "),
        ("listeners=,", "listeners names no listener: "),
        ("listeners= ", "listeners names no listener: "),
        ("advertised.listeners=", "advertised.listeners names no listener: "),
        ("listener.security.protocol.map=", "no security protocol is defined for listener PLAINTEXT: "),
        ("log.dirs=", "log.dirs and log.dir name no directory"),
        ("log.dir=", "log.dirs and log.dir name no directory"),
        ("admin.listener=", "admin.listener must be host:port or none, not ``"),
    ] {
        let found = faults(&[setting]);
        assert!(found.len() == 1 && found[0].starts_with(fault), "{setting}: {found:?}");
    }
    // A host that is left out is every interface.
    assert_eq!(config(&["listeners=PLAINTEXT://:1"]).network.listeners.listeners[0].host, None);
}

/// KIP-797.
#[test]
fn an_ipv4_and_an_ipv6_listener_may_share_a_port() {
    let map = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT";
    assert_eq!(
        faults(&["listeners=A://127.0.0.1:1,B://[::1]:1", map, "inter.broker.listener.name=A"]),
        Vec::<String>::new()
    );
    assert_eq!(
        faults(&["listeners=A://127.0.0.1:0,B://127.0.0.1:0", map, "inter.broker.listener.name=A"]),
        Vec::<String>::new()
    );
    assert_eq!(
        faults(&["listeners=A://127.0.0.1:1,B://host:1", map, "inter.broker.listener.name=A"]).len(),
        1
    );
}

/// The start-up cross checks of security-admin.md 5.3.
#[test]
fn rules_between_keys_hold_at_start() {
    for (settings, fault) in [
        (&["log.roll.ms=0"][..], "log.roll.ms must be at least 1, not 0"),
        (&["log.retention.ms=0"], "log.retention.ms must be at least 1, or -1 for ever, not 0"),
        (&["log.retention.hours=0"], "log.retention.hours must be at least 1, or -1 for ever, not 0"),
        (
            &["replica.fetch.wait.max.ms=30001", "replica.lag.time.max.ms=40000"],
            "replica.fetch.wait.max.ms (30001) must not be above replica.socket.timeout.ms (30000)",
        ),
        (
            &["replica.lag.time.max.ms=499"],
            "replica.fetch.wait.max.ms (500) must not be above replica.lag.time.max.ms (499)",
        ),
        (
            &["log.cleaner.dedupe.buffer.size=1048576"],
            "log.cleaner.dedupe.buffer.size must be more than 1048576 for each of log.cleaner.threads, of which there must be one",
        ),
        (
            &["log.cleaner.threads=0"],
            "log.cleaner.dedupe.buffer.size must be more than 1048576 for each of log.cleaner.threads, of which there must be one",
        ),
        (&["log.cleaner.io.buffer.load.factor=0"], "log.cleaner.io.buffer.load.factor must be above 0"),
        (&["log.dirs=,"], "log.dirs and log.dir name no directory"),
        (&["log.dirs=/a, /b ,/a/"], "log.dirs names /a twice"),
        (
            &["broker.id=1001"],
            "broker.id 1001 must be -1 or from 0 to reserved.broker.max.id (1000): ids above it are generated",
        ),
        (
            &["broker.id.generation.enable=false"],
            "broker.id must be set when broker.id.generation.enable is false",
        ),
        (
            &["queued.max.request.bytes=1000"],
            "socket.request.max.bytes (104857600) must not be above queued.max.request.bytes (1000)",
        ),
        (
            &["max.connections.per.ip=0"],
            "max.connections.per.ip may be 0 only if max.connections.per.ip.overrides is set",
        ),
        (
            &["max.connections.per.ip.overrides=a:1,b"],
            "max.connections.per.ip.overrides: `b` is not of the form host:count",
        ),
        (
            &["connections.max.idle.ms=100"],
            "connection.failed.authentication.delay.ms (100) must not be above connections.max.idle.ms (100)",
        ),
        (
            &["group.consumer.session.timeout.ms=44999"],
            "group.consumer.min.session.timeout.ms (45000) must not be above group.consumer.session.timeout.ms (44999)",
        ),
        (
            &["log.cleaner.max.compaction.lag.ms=1", "log.cleaner.min.compaction.lag.ms=2"],
            "log.cleaner.min.compaction.lag.ms (2) must not be above log.cleaner.max.compaction.lag.ms (1)",
        ),
    ] {
        assert_eq!(faults(settings), [fault], "{settings:?}");
    }
    assert_eq!(faults(&["broker.id=1001", "broker.id.generation.enable=false"]), Vec::<String>::new());
    assert_eq!(faults(&["broker.id=7000", "reserved.broker.max.id=7000"]), Vec::<String>::new());
}

#[test]
fn rules_of_our_own_keys_hold_at_start() {
    for (setting, fault) in [
        ("storage.cache.fraction=0.9", "storage.cache.fraction must be from 0.01 to 0.8"),
        (
            "cores=none",
            "cores must be auto, a number from 1 to 65535, or a list of different cores such as [0,2]",
        ),
    ] {
        assert_eq!(faults(&[setting]), [fault], "{setting}");
    }
}

#[test]
fn every_fault_is_said_at_once() {
    assert_eq!(faults(&["nonsense=1", "log.roll.ms=0", "listeners=x", "broker.id=9999"]).len(), 4);
}

/// storage.md 12.1: ms before minutes before hours.
#[test]
fn the_finer_unit_wins() {
    let retention = |settings: &[&str]| config(settings).topic_defaults.log.retention_ms;
    assert_eq!(retention(&["log.retention.hours=2"]), 7_200_000);
    assert_eq!(retention(&["log.retention.hours=2", "log.retention.minutes=3"]), 180_000);
    assert_eq!(retention(&["log.retention.hours=2", "log.retention.minutes=3", "log.retention.ms=4"]), 4);
    assert_eq!(retention(&["log.retention.hours=-5"]), -1);
    assert_eq!(config(&["log.roll.hours=1"]).topic_defaults.log.segment_ms, 3_600_000);
    assert_eq!(config(&["log.roll.jitter.hours=1"]).topic_defaults.log.segment_jitter_ms, 3_600_000);
}

#[test]
fn limits_reach_the_network() {
    let network = config(&[
        "max.connections=5",
        "max.connections.per.ip=2",
        "max.connections.per.ip.overrides=127.0.0.1:9, host.example:3,[::1]:4",
        "connections.max.idle.ms=-1",
        "socket.send.buffer.bytes=-1",
        "queued.max.request.bytes=104857600",
    ])
    .network;
    assert_eq!((network.max_connections, network.max_connections_per_ip), (5, 2));
    let overrides: Vec<_> = network.max_connections_per_ip_overrides.into_iter().collect();
    assert_eq!(
        overrides,
        [("127.0.0.1".to_owned(), 9), ("::1".to_owned(), 4), ("host.example".to_owned(), 3)]
    );
    assert_eq!(network.connections_max_idle_ms, None);
    assert_eq!(network.socket_send_buffer_bytes, None);
    assert_eq!(network.queued_max_request_bytes, Some(104_857_600));
}

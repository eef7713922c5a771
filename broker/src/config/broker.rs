//! The typed configuration of a broker, in small structs: each subsystem receives its own, never the whole
//! (style 3.7). Made of checked settings once at start; nothing here changes while the broker runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::records::compression::Codec;
use protocol::types::BrokerId;

use super::checks::{self, CheckFault};
use super::listeners::{self, Listeners};
use super::settings::{Place, Settings};
use super::topic::TopicConfig;

/// Everything that is fixed at start.
#[derive(Clone, Debug, PartialEq)]
pub struct BrokerConfig {
    /// Who this broker is.
    pub identity: IdentityConfig,
    /// Sockets and limits.
    pub network: NetworkConfig,
    /// Cores and memory.
    pub runtime: RuntimeConfig,
    /// Metrics and health.
    pub admin: AdminConfig,
    /// Directories and what runs in the background over logs.
    pub storage: StorageConfig,
    /// Compaction.
    pub cleaner: CleanerConfig,
    /// Where the metadata is, if not in the embedded store.
    pub zookeeper: Option<ZookeeperConfig>,
    /// What topics are created with, and whether.
    pub topics: TopicsConfig,
    /// Consumer groups and their offsets.
    pub groups: GroupsConfig,
    /// What fetches may ask for.
    pub fetch: FetchConfig,
    /// Duties of a leader towards replicas.
    pub replication: ReplicationConfig,
    /// What a topic without overrides has.
    pub topic_defaults: TopicConfig,
    /// What was set, for `DescribeConfigs` and for topics that inherit.
    pub settings: Arc<Settings>,
}

/// Who this broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityConfig {
    /// `broker.id`, if set: must agree with `meta.properties` where that names one.
    pub broker_id: Option<BrokerId>,
    /// `reserved.broker.max.id`: an id that is generated is this plus the version that `/brokers/seqid` gets.
    pub reserved_broker_max_id: i32,
    /// `broker.rack`.
    pub rack: Option<Arc<str>>,
}

/// Sockets and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Where to listen and what clients are told.
    pub listeners: Listeners,
    /// `socket.request.max.bytes`.
    pub socket_request_max_bytes: u32,
    /// `socket.send.buffer.bytes`; `None` leaves it to the operating system.
    pub socket_send_buffer_bytes: Option<u32>,
    /// `socket.receive.buffer.bytes`; `None` leaves it to the operating system.
    pub socket_receive_buffer_bytes: Option<u32>,
    /// `socket.listen.backlog.size`.
    pub socket_listen_backlog_size: i32,
    /// `max.connections`, over all listeners and shards.
    pub max_connections: u32,
    /// `max.connections.per.ip`, over all listeners and shards.
    pub max_connections_per_ip: u32,
    /// `max.connections.per.ip.overrides`: limits by address or host name.
    pub max_connections_per_ip_overrides: BTreeMap<String, u32>,
    /// `connections.max.idle.ms`; `None` is never.
    pub connections_max_idle_ms: Option<i64>,
    /// `queued.max.request.bytes`, over all shards; `None` takes a share of the memory.
    pub queued_max_request_bytes: Option<u64>,
}

/// Which cores the shards run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// One shard on each core that the process may use.
    Auto,
    /// So many shards.
    Count(u16),
    /// One shard on each of these cores, in this order.
    List(Vec<u16>),
}

/// Cores and memory.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeConfig {
    /// `cores`.
    pub cores: Cores,
    /// `cores.pin`.
    pub pin: bool,
    /// `memory.bytes`, over all shards; `None` is a quarter of the machine's.
    pub memory_bytes: Option<u64>,
    /// `storage.cache.fraction` of the memory keeps the newest records for readers.
    pub cache_fraction: f64,
    /// `spin.before.park.us`.
    pub spin_before_park_us: u32,
}

/// Metrics and health over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// `admin.listener`: where; `None` is nowhere.
    pub listener: Option<AdminListener>,
}

/// Where metrics and health are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminListener {
    /// Host name or address.
    pub host: String,
    /// Port; 0 takes any free one.
    pub port: u16,
    /// Somebody asked for it: a port that is taken stops the start.
    pub is_wished: bool,
}

/// The ensemble that holds the metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZookeeperConfig {
    /// `zookeeper.connect`.
    pub connect: String,
    /// `zookeeper.session.timeout.ms`.
    pub session_timeout_ms: u32,
    /// `zookeeper.connection.timeout.ms`; the session's if unset.
    pub connection_timeout_ms: u32,
    /// `zookeeper.max.in.flight.requests`.
    pub max_in_flight_requests: u32,
}

/// Directories and what runs in the background over logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// `log.dirs` or `log.dir`; at least one, and none twice.
    pub log_dirs: Vec<PathBuf>,
    /// `metadata.file`: where the embedded metadata store lives.
    pub metadata_file: PathBuf,
    /// `log.retention.check.interval.ms`.
    pub log_retention_check_interval_ms: i64,
    /// `log.flush.offset.checkpoint.interval.ms`.
    pub log_flush_offset_checkpoint_interval_ms: i64,
    /// `log.flush.start.offset.checkpoint.interval.ms`.
    pub log_flush_start_offset_checkpoint_interval_ms: i64,
    /// `replica.high.watermark.checkpoint.interval.ms`.
    pub replica_high_watermark_checkpoint_interval_ms: i64,
    /// `log.initial.task.delay.ms`.
    pub log_initial_task_delay_ms: i64,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration_ms: i64,
    /// `producer.id.expiration.check.interval.ms`.
    pub producer_id_expiration_check_interval_ms: i64,
    /// `storage.free.space.floor.bytes`.
    pub free_space_floor_bytes: u64,
}

/// How logs are compacted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CleanerConfig {
    /// `log.cleaner.enable`.
    pub is_enabled: bool,
    /// `log.cleaner.threads`: compactions at once.
    pub threads: u32,
    /// `log.cleaner.backoff.ms`.
    pub backoff_ms: i64,
    /// `log.cleaner.dedupe.buffer.size`, for all compactions.
    pub dedupe_buffer_bytes: u64,
    /// `log.cleaner.io.buffer.load.factor`.
    pub load_factor: f64,
    /// `log.cleaner.io.buffer.size`, for all compactions.
    pub io_buffer_bytes: u32,
    /// `log.cleaner.io.max.bytes.per.second`.
    pub bytes_per_second_max: f64,
}

/// What topics are created with, and whether.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicsConfig {
    /// `num.partitions`.
    pub num_partitions: i32,
    /// `default.replication.factor`.
    pub default_replication_factor: i32,
    /// `auto.create.topics.enable`.
    pub auto_create_topics_enable: bool,
    /// `delete.topic.enable`.
    pub delete_topic_enable: bool,
    /// `max.request.partition.size.limit`.
    pub max_request_partition_size_limit: i32,
}

/// Consumer groups and their offsets (coordinators.md 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupsConfig {
    /// `group.min.session.timeout.ms`.
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`.
    pub members_max: i32,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max: i32,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval_ms: i64,
    /// `offsets.commit.timeout.ms`.
    pub offsets_commit_timeout_ms: i64,
    /// `offsets.load.buffer.size`.
    pub load_buffer_bytes: u32,
    /// `offsets.topic.num.partitions`.
    pub topic_partitions: i32,
    /// `offsets.topic.replication.factor`; 1 on the embedded metadata store, which has one broker.
    pub topic_replication_factor: i16,
    /// `offsets.topic.segment.bytes`.
    pub topic_segment_bytes: u32,
    /// `offsets.topic.compression.codec`.
    pub topic_codec: Codec,
    /// `groups.memory.bytes`, over all shards; `None` takes a share of the memory.
    pub memory_bytes: Option<u64>,
}

/// What fetches may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchConfig {
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: u32,
    /// `max.incremental.fetch.session.cache.slots`, over all shards.
    pub max_incremental_fetch_session_cache_slots: u32,
}

/// Duties of a leader towards replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationConfig {
    /// `replica.lag.time.max.ms`.
    pub replica_lag_time_max_ms: i64,
}

/// What the machine contributes; found out before anything is parsed, so that everything here is a pure function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Host name that clients are told where neither listeners nor advertised listeners name one.
    pub local_host: String,
    /// Log directory where neither `log.dirs` nor `log.dir` is set.
    pub default_log_dir: PathBuf,
}

impl BrokerConfig {
    /// Makes the typed configuration of settings whose texts were checked one by one, and checks them together.
    ///
    /// # Errors
    /// Every fault between keys.
    pub fn new(mut settings: Settings, surroundings: &Surroundings) -> Result<Self, Vec<CheckFault>> {
        if settings.set_value("log.dirs").is_none() && settings.set_value("log.dir").is_none() {
            settings.set("log.dirs", &surroundings.default_log_dir.to_string_lossy(), Place::Chosen);
        }
        let mut faults = Vec::new();
        checks::check(&settings, &mut faults);
        let mut listener_faults = Vec::new();
        let listeners = listeners::resolve(&settings, &surroundings.local_host, &mut listener_faults);
        faults.extend(listener_faults.into_iter().map(CheckFault::Listener));
        let cores = cores(&settings.text("cores").unwrap_or_default());
        faults.extend(cores.is_none().then_some(CheckFault::Cores));
        let log_dirs = log_dirs(&settings, &mut faults);
        match (listeners, cores) {
            (Some(listeners), Some(cores)) if faults.is_empty() => {
                Ok(Self::assemble(settings, listeners, cores, log_dirs))
            }
            _ => Err(faults),
        }
    }

    fn assemble(settings: Settings, listeners: Listeners, cores: Cores, log_dirs: Vec<PathBuf>) -> Self {
        Self {
            identity: identity(&settings),
            network: network(&settings, listeners),
            runtime: RuntimeConfig {
                cores,
                pin: settings.boolean("cores.pin"),
                memory_bytes: u64::try_from(settings.integer("memory.bytes")).ok(),
                cache_fraction: settings.double("storage.cache.fraction"),
                spin_before_park_us: settings.size("spin.before.park.us"),
            },
            admin: AdminConfig { listener: admin_listener(&settings).ok().flatten() },
            storage: storage(&settings, log_dirs),
            cleaner: cleaner(&settings),
            zookeeper: zookeeper(&settings),
            topics: TopicsConfig {
                num_partitions: settings.int("num.partitions"),
                default_replication_factor: settings.int("default.replication.factor"),
                auto_create_topics_enable: settings.boolean("auto.create.topics.enable"),
                delete_topic_enable: settings.boolean("delete.topic.enable"),
                max_request_partition_size_limit: settings.int("max.request.partition.size.limit"),
            },
            groups: groups(&settings),
            fetch: FetchConfig {
                fetch_max_bytes: settings.size("fetch.max.bytes"),
                max_incremental_fetch_session_cache_slots: settings
                    .size("max.incremental.fetch.session.cache.slots"),
            },
            replication: ReplicationConfig {
                replica_lag_time_max_ms: settings.integer("replica.lag.time.max.ms"),
            },
            topic_defaults: TopicConfig::of_settings(&settings),
            settings: Arc::new(settings),
        }
    }
}

/// The address of `admin.listener`; `None` for `none`.
///
/// # Errors
/// It names neither.
pub(super) fn admin_listener(settings: &Settings) -> Result<Option<AdminListener>, CheckFault> {
    let text = settings.written("admin.listener").unwrap_or_default();
    if text.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let bare = host.strip_prefix('[').map_or(Some(host), |rest| rest.strip_suffix(']'))?;
        let is_host = !bare.is_empty() && (bare == host) != bare.contains(':');
        is_host.then_some((bare, port.parse().ok()?))
    });
    let (host, port) = parts.ok_or(CheckFault::AdminListener { text: text.clone() })?;
    let is_wished = settings.set_value("admin.listener").is_some();
    Ok(Some(AdminListener { host: host.to_owned(), port, is_wished }))
}

fn identity(settings: &Settings) -> IdentityConfig {
    let id = settings.int("broker.id");
    IdentityConfig {
        broker_id: (id >= 0).then(|| BrokerId::new(id)),
        reserved_broker_max_id: settings.int("reserved.broker.max.id"),
        rack: settings.text("broker.rack").map(Arc::from),
    }
}

fn network(settings: &Settings, listeners: Listeners) -> NetworkConfig {
    let buffer = |name| u32::try_from(settings.integer(name)).ok();
    let overrides = settings.text("max.connections.per.ip.overrides").unwrap_or_default();
    NetworkConfig {
        listeners,
        socket_request_max_bytes: settings.size("socket.request.max.bytes"),
        socket_send_buffer_bytes: buffer("socket.send.buffer.bytes"),
        socket_receive_buffer_bytes: buffer("socket.receive.buffer.bytes"),
        socket_listen_backlog_size: settings.int("socket.listen.backlog.size"),
        max_connections: settings.size("max.connections"),
        max_connections_per_ip: settings.size("max.connections.per.ip"),
        max_connections_per_ip_overrides: checks::limits_by_host(&overrides).filter_map(Result::ok).collect(),
        connections_max_idle_ms: Some(settings.integer("connections.max.idle.ms")).filter(|ms| *ms >= 0),
        queued_max_request_bytes: u64::try_from(settings.integer("queued.max.request.bytes"))
            .ok()
            .filter(|b| *b > 0),
    }
}

fn zookeeper(settings: &Settings) -> Option<ZookeeperConfig> {
    let session_timeout_ms = settings.size("zookeeper.session.timeout.ms");
    let connection = settings.integer_or_null("zookeeper.connection.timeout.ms");
    Some(ZookeeperConfig {
        connect: settings.text("zookeeper.connect")?,
        session_timeout_ms,
        connection_timeout_ms: connection
            .map_or(session_timeout_ms, |ms| u32::try_from(ms).unwrap_or(u32::MAX)),
        max_in_flight_requests: settings.size("zookeeper.max.in.flight.requests"),
    })
}

fn storage(settings: &Settings, log_dirs: Vec<PathBuf>) -> StorageConfig {
    let in_first = || log_dirs.first().cloned().unwrap_or_default().join("odradek-metadata.redb");
    StorageConfig {
        metadata_file: settings.text("metadata.file").map_or_else(in_first, PathBuf::from),
        log_dirs,
        log_retention_check_interval_ms: settings.integer("log.retention.check.interval.ms"),
        log_flush_offset_checkpoint_interval_ms: settings.integer("log.flush.offset.checkpoint.interval.ms"),
        log_flush_start_offset_checkpoint_interval_ms: settings
            .integer("log.flush.start.offset.checkpoint.interval.ms"),
        replica_high_watermark_checkpoint_interval_ms: settings
            .integer("replica.high.watermark.checkpoint.interval.ms"),
        log_initial_task_delay_ms: settings.integer("log.initial.task.delay.ms"),
        producer_id_expiration_ms: settings.integer("producer.id.expiration.ms"),
        producer_id_expiration_check_interval_ms: settings
            .integer("producer.id.expiration.check.interval.ms"),
        free_space_floor_bytes: settings.integer("storage.free.space.floor.bytes").unsigned_abs(),
    }
}

fn groups(settings: &Settings) -> GroupsConfig {
    let codec = i16::try_from(settings.integer("offsets.topic.compression.codec")).ok().and_then(Codec::new);
    // The one metadata store that is built has one broker: Kafka's default of three could never be met.
    let is_embedded = settings.text("zookeeper.connect").is_none();
    let factor = if is_embedded { 1 } else { settings.integer("offsets.topic.replication.factor") };
    GroupsConfig {
        min_session_timeout_ms: settings.int("group.min.session.timeout.ms"),
        max_session_timeout_ms: settings.int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms: settings.int("group.initial.rebalance.delay.ms"),
        members_max: settings.int("group.max.size"),
        offset_metadata_max: settings.int("offset.metadata.max.bytes"),
        offsets_retention_ms: settings.integer("offsets.retention.minutes").saturating_mul(60_000),
        offsets_retention_check_interval_ms: settings.integer("offsets.retention.check.interval.ms"),
        offsets_commit_timeout_ms: settings.integer("offsets.commit.timeout.ms"),
        load_buffer_bytes: settings.size("offsets.load.buffer.size"),
        topic_partitions: settings.int("offsets.topic.num.partitions"),
        topic_replication_factor: i16::try_from(factor).unwrap_or(i16::MAX),
        topic_segment_bytes: settings.size("offsets.topic.segment.bytes"),
        // The range of the key lets no other number in.
        topic_codec: codec.unwrap_or(Codec::None),
        memory_bytes: u64::try_from(settings.integer("groups.memory.bytes")).ok(),
    }
}

fn cleaner(settings: &Settings) -> CleanerConfig {
    CleanerConfig {
        is_enabled: settings.boolean("log.cleaner.enable"),
        threads: settings.size("log.cleaner.threads"),
        backoff_ms: settings.integer("log.cleaner.backoff.ms"),
        dedupe_buffer_bytes: u64::try_from(settings.integer("log.cleaner.dedupe.buffer.size")).unwrap_or(0),
        load_factor: settings.double("log.cleaner.io.buffer.load.factor"),
        io_buffer_bytes: settings.size("log.cleaner.io.buffer.size"),
        bytes_per_second_max: settings.double("log.cleaner.io.max.bytes.per.second"),
    }
}

/// `log.dirs`, else `log.dir`: directories, separated by commas.
fn log_dirs(settings: &Settings, faults: &mut Vec<CheckFault>) -> Vec<PathBuf> {
    let text = settings.written("log.dirs").or_else(|| settings.written("log.dir")).unwrap_or_default();
    let mut dirs: Vec<PathBuf> = Vec::new();
    for dir in text.split(',').map(str::trim).filter(|dir| !dir.is_empty()) {
        // Without what does not matter: a slash at the end, two of them, `.`.
        let dir: PathBuf = Path::new(dir).components().collect();
        if dirs.contains(&dir) {
            faults.push(CheckFault::LogDirTwice { dir: dir.display().to_string() });
        } else {
            dirs.push(dir);
        }
    }
    if dirs.is_empty() {
        faults.push(CheckFault::NoLogDir);
    }
    dirs
}

/// `auto`, a number, or numbers in brackets or separated by commas.
fn cores(text: &str) -> Option<Cores> {
    let inner = text.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
    let list = match inner {
        Some(inner) => Some(inner?),
        None => text.contains(',').then_some(text),
    };
    match list {
        Some(list) => {
            let cores: Vec<u16> =
                list.split(',').map(|core| core.trim().parse().ok()).collect::<Option<_>>()?;
            let mut sorted = cores.clone();
            sorted.sort_unstable();
            sorted.dedup();
            (sorted.len() == cores.len()).then_some(Cores::List(cores))
        }
        None if text.eq_ignore_ascii_case("auto") => Some(Cores::Auto),
        None => text.parse().ok().filter(|count| *count > 0).map(Cores::Count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_listener_is_an_address_or_none() {
        let read = |text: &str| {
            let mut settings = Settings::default();
            settings.set("admin.listener", text, Place::Override);
            admin_listener(&settings)
        };
        let at = |host: &str, port, is_wished| Ok(Some(AdminListener { host: host.into(), port, is_wished }));
        assert_eq!(admin_listener(&Settings::default()), at("127.0.0.1", 9644, false));
        assert_eq!(read("0.0.0.0:80"), at("0.0.0.0", 80, true));
        assert_eq!(read("[::1]:0"), at("::1", 0, true));
        assert_eq!(read("none"), Ok(None));
        for bad in
            ["9644", ":9644", "localhost", "localhost:", "a:65536", "::1:9644", "[::1]", "[::1:9644", "[a]:1"]
        {
            assert_eq!(read(bad), Err(CheckFault::AdminListener { text: bad.into() }));
        }
    }

    #[test]
    fn cores_are_auto_or_a_count_or_a_list() {
        assert_eq!(cores("auto"), Some(Cores::Auto));
        assert_eq!(cores("3"), Some(Cores::Count(3)));
        assert_eq!(cores("[2]"), Some(Cores::List(vec![2])));
        assert_eq!(cores("0,2"), Some(Cores::List(vec![0, 2])));
        for bad in ["", "0", "-1", "two", "[]", "[1", "1,1", "0-3", "70000"] {
            assert_eq!(cores(bad), None, "{bad}");
        }
    }
}

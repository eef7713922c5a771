//! What runs on one shard: the services, the handlers, the connections. [`plan`] makes what the shards share or are given,
//! [`run`] is a shard's life; what only shard 0 does stands in `control`.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_channel::oneshot;
use storage::io::{Queue, Runtime};
use storage::log::{CompactionLimits, TailBudget};

use super::StartError;
use super::boot::{Boot, BootError};
use super::control::Control;
use super::dirs::Slot;
use super::memory::ShardMemory;
use super::metrics;
use crate::admin::service::{self as admin, AdminParts, AdminService};
use crate::config::broker::{BrokerConfig, CleanerConfig};
use crate::controller::gauges::ControllerView;
use crate::coordinator::client::GroupClient;
use crate::coordinator::service::GroupService;
use crate::coordinator::settings::GroupServiceSettings;
use crate::fetch_session::cache::SessionLimits;
use crate::handlers::dispatch::{HandlerSettings, Handlers, Wiring};
use crate::handlers::fetch::{FetchForward, FetchState};
use crate::handlers::find_coordinator;
use crate::handlers::init_producer_id::ProducerIds;
use crate::metadata::cell::ImageCell;
use crate::metadata::publish::{MetadataService, OnReplaced, Publisher};
use crate::metrics::ShardMetrics;
use crate::metrics::scrape::ScrapeSeat;
use crate::metrics::state::{BrokerState, Progress};
use crate::net::ConnectionSettings;
use crate::net::admission::{AddressTokens, Addresses, ConnectionCounters, ConnectionLimits};
use crate::net::connections::Connections;
use crate::net::listener::{Arrivals, Bound, Listener, listen};
use crate::partition::cleaner::{CleanerRounds, CleanerSettings};
use crate::partition::lifecycle::LogHomes;
use crate::partition::log_dirs::table::LogDirTable;
use crate::partition::service::{PartitionService, PartitionSettings};
use crate::shard::ask::{Seat, Shards, seats};
use crate::shard::glommio::GlommioShard;
use crate::shard::start::CONCURRENT_LOADS;
use crate::shard::stop::Stopping;
use crate::shard::{Class, ShardRuntime};
use crate::store::chosen::{ChosenStore, Opened};
use crate::store::znodes::BrokerEndpoint;

/// Asks from one shard to another that may be unanswered: appends that wait for replicas count.
const CLIENT_ASKS_MAX: usize = 4096;

/// The same for metadata, connections on the move and wishes to shard 0.
const CONTROL_ASKS_MAX: usize = 256;

/// How long a stop waits for requests in work.
const DRAIN_MS: i64 = 5000;

/// How often what lies behind the recovery point is flushed.
const FLUSH_INTERVAL_MS: i64 = 10_000;

/// Produce requests of one connection that are accepted and not answered.
const PIPELINE_MAX: usize = 64;

/// What all shards read.
#[derive(Clone)]
pub struct Plan {
    pub(super) config: Arc<BrokerConfig>,
    pub(super) endpoints: Arc<[BrokerEndpoint]>,
    /// The log dirs.
    pub(super) dirs: Arc<[Slot]>,
    pub(super) table: LogDirTable,
    listeners: Arc<[Listener]>,
    limits: Arc<ConnectionLimits>,
    counters: Arc<ConnectionCounters>,
    memory: ShardMemory,
    cleaner_rounds: CleanerRounds,
    pub(super) progress: Progress,
    /// Descriptors that the process may have.
    pub(super) descriptors: u64,
    /// When the process began to start.
    pub(super) began: Instant,
    /// Where it listens, for the log.
    pub(super) listening: Arc<str>,
}

/// What is made before the plan.
pub struct Shared {
    /// When the process began to start.
    pub(super) began: Instant,
    /// How far the broker is.
    pub(super) progress: Progress,
    /// For each shard where it is asked what it has counted.
    pub(super) scrapes: Vec<ScrapeSeat>,
    /// For shard 0.
    pub(super) metadata: Opened,
    /// The log dirs.
    pub(super) dirs: Vec<Slot>,
    /// The same as a table.
    pub(super) table: LogDirTable,
    /// How many shards there are.
    pub(super) shards: u16,
    /// What each of them may hold.
    pub(super) memory: ShardMemory,
    /// Descriptors that the process may have.
    pub(super) descriptors: u64,
}

/// What one shard is given.
pub struct Part {
    sockets: Vec<OwnedFd>,
    scrapes: ScrapeSeat,
    seats: Seats,
    role: Role,
}

/// A shard's places in the meshes.
struct Seats {
    partitions: Seat<GlommioShard, PartitionService<GlommioShard>>,
    groups: Seat<GlommioShard, GroupService<GlommioShard>>,
    forwards: Seat<GlommioShard, FetchForward<GlommioShard>>,
    metadata: Seat<GlommioShard, MetadataService>,
    admin: Seat<GlommioShard, AdminService>,
    tokens: Seat<GlommioShard, AddressTokens>,
    arrivals: Seat<GlommioShard, Arrivals<GlommioShard, Handlers<GlommioShard>>>,
}

impl Seats {
    fn all(shards: u16) -> impl Iterator<Item = Self> {
        let metadata = seats(shards, Class::Control, CONTROL_ASKS_MAX);
        let admin = seats(shards, Class::Control, CONTROL_ASKS_MAX);
        let tokens = seats(shards, Class::Control, CONTROL_ASKS_MAX);
        let arrivals = seats(shards, Class::Client, CONTROL_ASKS_MAX);
        let forwards = seats(shards, Class::Client, CLIENT_ASKS_MAX);
        let partitions = seats(shards, Class::Client, CLIENT_ASKS_MAX);
        let groups = seats(shards, Class::Client, CLIENT_ASKS_MAX);
        let control = metadata.into_iter().zip(admin).zip(tokens);
        let client = arrivals.into_iter().zip(forwards).zip(partitions.into_iter().zip(groups));
        control.zip(client).map(
            |(((metadata, admin), tokens), ((arrivals, forwards), (partitions, groups)))| Self {
                partitions,
                groups,
                forwards,
                metadata,
                admin,
                tokens,
                arrivals,
            },
        )
    }
}

/// Shard 0 boots and tells the others.
enum Role {
    Control { metadata: Opened, tell: Vec<oneshot::Sender<Go>> },
    Other { go: oneshot::Receiver<Go> },
}

/// What shard 0 tells another: what to start from, and later that clients may come.
pub struct Go {
    pub(super) boot: Boot,
    pub(super) serve: oneshot::Receiver<()>,
}

/// The addresses of the listeners.
///
/// # Errors
/// A host that does not resolve.
pub fn listeners(config: &BrokerConfig) -> Result<Vec<Listener>, StartError> {
    let backlog = config.network.socket_listen_backlog_size;
    let address = |listener: &crate::config::listeners::Listener| {
        let host = listener.host.clone().unwrap_or_else(|| "0.0.0.0".to_owned());
        let unresolved =
            |source| StartError::Host { listener: listener.name.to_string(), host: host.clone(), source };
        let mut found = (host.as_str(), listener.port).to_socket_addrs().map_err(unresolved)?;
        found.next().ok_or_else(|| unresolved(std::io::ErrorKind::NotFound.into()))
    };
    let listeners = config.network.listeners.listeners.iter();
    listeners
        .map(|listener| Ok(Listener { name: listener.name.clone(), address: address(listener)?, backlog }))
        .collect()
}

/// Makes what the shards share, and each one's part.
pub fn plan(config: BrokerConfig, listeners: &[Listener], bound: Bound, shared: Shared) -> (Plan, Vec<Part>) {
    let Shared { began, progress, scrapes, metadata, dirs, table, shards, memory, descriptors } = shared;
    let listening = listeners.iter().zip(&bound.addresses);
    let listening: Vec<_> =
        listening.map(|(listener, address)| format!("{}://{address}", listener.name)).collect();
    let plan = Plan {
        endpoints: endpoints(&config, listeners, &bound.addresses).into(),
        dirs: dirs.into(),
        table,
        listeners: listeners.into(),
        limits: Arc::new(limits(&config, descriptors)),
        counters: ConnectionCounters::new(shards, listeners.len()),
        memory,
        cleaner_rounds: CleanerRounds::default(),
        progress,
        descriptors,
        began,
        listening: listening.join(",").into(),
        config: Arc::new(config),
    };
    let mut tell = Vec::new();
    let mut others = Vec::new();
    for _ in 1..shards {
        let (sender, go) = oneshot::channel();
        tell.push(sender);
        others.push(Role::Other { go });
    }
    let roles = std::iter::once(Role::Control { metadata, tell }).chain(others);
    let parts = bound.sockets.into_iter().zip(scrapes).zip(roles).zip(Seats::all(shards));
    let part = |(((sockets, scrapes), role), seats)| Part { sockets, scrapes, seats, role };
    (plan, parts.map(part).collect())
}

/// What clients are told; a port of 0 becomes the one that was bound.
fn endpoints(config: &BrokerConfig, listeners: &[Listener], bound: &[SocketAddr]) -> Vec<BrokerEndpoint> {
    let configured = &config.network.listeners;
    let endpoint = |advertised: &crate::config::listeners::AdvertisedListener| {
        let index = listeners.iter().position(|listener| listener.name == advertised.name);
        let bound_port = index.and_then(|index| bound.get(index)).map_or(0, SocketAddr::port);
        let protocol = configured.listeners.iter().find(|listener| listener.name == advertised.name);
        BrokerEndpoint {
            listener: advertised.name.to_string(),
            host: advertised.host.to_string(),
            port: if advertised.port == 0 { bound_port } else { advertised.port },
            security_protocol: protocol.map_or("PLAINTEXT", |listener| listener.protocol.name()).to_owned(),
        }
    };
    configured.advertised.iter().map(endpoint).collect()
}

/// Files have the other half of the descriptors: a log that finds none for its next segment fails its log dir, and clients
/// must not be able to bring that about.
fn limits(config: &BrokerConfig, descriptors: u64) -> ConnectionLimits {
    let network = &config.network;
    let of_descriptors = u32::try_from(descriptors / 2).unwrap_or(u32::MAX);
    let mut per_ip_overrides: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (host, limit) in &network.max_connections_per_ip_overrides {
        match (host.as_str(), 0).to_socket_addrs() {
            Ok(addresses) => per_ip_overrides.extend(addresses.map(|address| (address.ip(), size(*limit)))),
            Err(error) => tracing::warn!(host, %error, "no address: its connection limit has no effect"),
        }
    }
    ConnectionLimits {
        connections_max: size(network.max_connections.min(of_descriptors)),
        of_descriptors: (of_descriptors < network.max_connections).then_some(descriptors),
        listener_connections_max: network
            .listeners
            .listeners
            .iter()
            .map(|l| size(l.max_connections))
            .collect(),
        per_ip_max: size(network.max_connections_per_ip),
        per_ip_overrides,
        protected_listener: protected_listener(&network.listeners),
    }
}

/// The listener between brokers, unless clients use it too.
fn protected_listener(configured: &crate::config::listeners::Listeners) -> Option<usize> {
    if configured.listeners.len() < 2 {
        return None;
    }
    configured.listeners.iter().position(|listener| listener.name == configured.inter_broker)
}

/// One shard from its start to its end.
///
/// # Errors
/// See [`BootError`].
pub async fn run(runtime: GlommioShard, plan: Plan, part: Part, stopping: Stopping) -> Result<(), BootError> {
    let Part { sockets, scrapes, seats, role } = part;
    let (boot, serve, control) = match role {
        Role::Control { metadata, tell } => {
            let (boot, control) = Control::boot(&runtime, &plan, metadata, tell).await?;
            (boot, None, Some(control))
        }
        Role::Other { go } => {
            let Go { boot, serve } = go.await.map_err(|_| BootError::NoBoot)?;
            (boot, Some(serve), None)
        }
    };
    let store = control.as_ref().map(|control| &control.store);
    let services = Rc::new(Services::new(&runtime, &plan, &boot, store, seats));
    plan.progress.reach(BrokerState::Recovery);
    let answering = metrics::answer(runtime.clone(), Rc::downgrade(&services), scrapes);
    let _answering = runtime.spawn(Queue::Background, answering);
    let running = match control {
        Some(control) => Some(control.start(&runtime, &plan, &services, &stopping).await?),
        None => None,
    };
    if let Some(serve) = serve {
        // Shard 0 says when the first partitions are there; it does not when it stops before.
        let _ = serve.await;
    }
    let listening = listen(&services.arrivals, sockets).map_err(BootError::Listen)?;
    plan.progress.listens();
    stopping.requested().await;
    plan.progress.reach(BrokerState::PendingShutdown);
    drop(listening);
    // Members wait for each other; nobody waits for them now.
    services.wiring.groups.local().stop();
    services.connections.drain(runtime.now().plus_ms(DRAIN_MS)).await;
    stopping.meet(&runtime).await;
    plan.progress.reach(BrokerState::ShuttingDown);
    if let Some(running) = running {
        running.stop().await;
    }
    stopping.meet(&runtime).await;
    Ok(())
}

/// What answers on one shard.
pub struct Services {
    pub(super) config: Rc<BrokerConfig>,
    pub(super) partitions: Shards<GlommioShard, PartitionService<GlommioShard>>,
    pub(super) publisher: Publisher<GlommioShard>,
    pub(super) connections: Rc<Connections<GlommioShard>>,
    pub(super) wiring: Rc<Wiring<GlommioShard>>,
    /// Connections that the broker may have.
    pub(super) connections_max: usize,
    /// Shard 0's, once it is there.
    pub(super) controller: OnceCell<ControllerView>,
    pub(super) arrivals: Shards<GlommioShard, Arrivals<GlommioShard, Handlers<GlommioShard>>>,
    _admin_task: Option<<GlommioShard as Runtime>::Task>,
}

impl Services {
    /// Takes the shard's seats. `store` is shard 0's.
    fn new(
        runtime: &GlommioShard,
        plan: &Plan,
        boot: &Boot,
        store: Option<&ChosenStore>,
        seats: Seats,
    ) -> Self {
        let config = Rc::new(plan.config.as_ref().clone());
        let homes = LogHomes {
            homes: boot.homes.clone(),
            table: plan.table.clone(),
            tail: TailBudget::new(plan.memory.tail_bytes),
            cleaner_rounds: plan.cleaner_rounds.clone(),
        };
        let cells = ShardMetrics::new(plan.progress.clone());
        let image = ImageCell::new(boot.image.clone());
        let service = PartitionService::new(runtime, partition_settings(&config, boot), homes, cells.clone());
        let partitions = Shards::new(runtime, service, seats.partitions);
        let (coordinators, told) = coordinators(runtime, plan, (image.clone(), &partitions));
        let images = Shards::new(runtime, MetadataService::telling(image.clone(), told), seats.metadata);
        let publisher = Publisher::new(runtime, images, image.clone());
        let (admin, admin_task) = match store {
            Some(store) => {
                let (store, publisher) = (store.clone(), publisher.clone());
                let parts = AdminParts { store, publisher, config: config.clone(), id: boot.broker_id };
                let (service, task) = admin::start(runtime, parts);
                (service, Some(task))
            }
            None => (AdminService::elsewhere(), None),
        };
        let forward = FetchForward::new(runtime);
        let forwards = Shards::new(runtime, forward.clone(), seats.forwards);
        let limits = SessionLimits {
            slots_max: size(config.fetch.max_incremental_fetch_session_cache_slots),
            bytes_max: plan.memory.all_sessions_bytes,
        };
        let admin = Shards::new(runtime, admin, seats.admin);
        let coordinators = Shards::new(runtime, coordinators, seats.groups);
        let count = find_coordinator::count_partitions(runtime, &admin);
        let groups = GroupClient::new(runtime, image.clone(), coordinators, count);
        let wiring = Rc::new(Wiring {
            runtime: runtime.clone(),
            image,
            partitions: partitions.clone(),
            admin,
            groups,
            producer_ids: ProducerIds::default(),
            config: config.clone(),
            settings: HandlerSettings {
                fetch_bytes_max: config.fetch.fetch_max_bytes,
                log_dirs: plan.table.clone(),
            },
            fetch: FetchState::new(runtime, limits, forwards),
            metrics: cells.clone(),
        });
        forward.attach(&wiring);
        let connections = Connections::new(runtime, connection_settings(plan), cells);
        let limits = Rc::new(plan.limits.as_ref().clone());
        let connections_max = limits.connections_max;
        let tokens = Shards::new(runtime, AddressTokens::new(limits.clone()), seats.tokens);
        let addresses = limits.counts_addresses().then(|| Addresses::new(runtime, tokens));
        let (handlers, counters) = (Handlers::new(wiring.clone()), plan.counters.clone());
        let arrivals = Arrivals::new(&connections, handlers, &plan.listeners, limits, counters, addresses);
        let arrivals = Shards::new(runtime, arrivals, seats.arrivals);
        let controller = OnceCell::new();
        Self {
            config,
            partitions,
            publisher,
            connections,
            connections_max,
            wiring,
            controller,
            arrivals,
            _admin_task: admin_task,
        }
    }
}

/// The coordinators of a shard, and how they are told of images.
fn coordinators<R: ShardRuntime>(
    runtime: &R,
    plan: &Plan,
    (image, partitions): (ImageCell, &Shards<R, PartitionService<R>>),
) -> (GroupService<R>, OnReplaced) {
    let settings = GroupServiceSettings::new(&plan.config.groups, plan.memory.groups_bytes);
    let service = GroupService::new(runtime, image, partitions.clone(), settings);
    let told = service.clone();
    (service, Rc::new(move |before, now| told.image_replaced(before, now)))
}

fn size(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn partition_settings(config: &BrokerConfig, boot: &Boot) -> PartitionSettings {
    let storage = &config.storage;
    PartitionSettings {
        broker_id: boot.broker_id,
        replica_lag_time_ms_max: config.replication.replica_lag_time_max_ms,
        retention_check_interval_ms: storage.log_retention_check_interval_ms,
        producer_expiration_check_interval_ms: storage.producer_id_expiration_check_interval_ms,
        producer_expiration_ms: storage.producer_id_expiration_ms,
        flush_interval_ms: FLUSH_INTERVAL_MS,
        file_delete_delay_ms: config.topic_defaults.log.file_delete_delay_ms,
        concurrent_loads_max: CONCURRENT_LOADS,
        free_space_floor_bytes: storage.free_space_floor_bytes,
        cleaner: cleaner_settings(&config.cleaner, storage.free_space_floor_bytes),
    }
}

/// What is said for all compactions is shared by as many as may run at once.
fn cleaner_settings(config: &CleanerConfig, free_space_floor_bytes: u64) -> CleanerSettings {
    let threads = size(config.threads).max(1);
    let map_bytes = usize::try_from(config.dedupe_buffer_bytes).unwrap_or(usize::MAX) / threads;
    CleanerSettings {
        is_enabled: config.is_enabled,
        threads,
        backoff_ms: config.backoff_ms,
        limits: CompactionLimits {
            // No offset map of Kafka is larger.
            map_bytes: map_bytes.min(i32::MAX.unsigned_abs() as usize),
            map_load_factor: config.load_factor,
            // One for reading, one for writing.
            buffer_bytes: size(config.io_buffer_bytes) / threads / 2,
            // One that runs alone leaves the others' part: what was said is never exceeded.
            bytes_per_second: config.bytes_per_second_max
                / f64::from(u32::try_from(threads).unwrap_or(u32::MAX)),
            free_space_floor_bytes,
        },
    }
}

fn connection_settings(plan: &Plan) -> ConnectionSettings {
    let network = &plan.config.network;
    ConnectionSettings {
        request_bytes_max: size(network.socket_request_max_bytes),
        idle_ms_max: network.connections_max_idle_ms.unwrap_or(i64::MAX),
        memory_bytes_max: plan.memory.requests_bytes,
        in_flight_max: PIPELINE_MAX,
    }
}

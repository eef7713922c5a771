//! From a configuration to a running broker and back: what is one per process is opened before the shards start, each
//! shard is then wired by [`shard`], and all stop in phases. Called by `main`; the only place that knows every module.

mod admin;
mod boot;
pub mod carry;
pub mod checkpoints;
mod control;
mod dirs;
mod glance;
mod made;
mod memory;
mod metrics;
mod shard;
pub mod trial;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use storage::lock::LockError;

use crate::config::broker::{BrokerConfig, Cores, ZookeeperConfig};
use crate::metrics::state::{BrokerState, Stage};
use crate::net::listener::{self, Bound, ListenError};
use crate::partition::log_dirs::table::LogDirTable;
use crate::shard::glommio::GlommioShard;
use crate::shard::start::{self as executors, StartOptions};
use crate::shard::stop::{SignalThread, Stopper};
use crate::store::chosen::Opened;
use crate::store::embedded::{self, EmbeddedFile};
use crate::store::zookeeper::{self, OnLoss, Options, ZookeeperLink};

use admin::Admin;
use dirs::Slot;
use made::Made;
use shard::Shared;
use trial::Machine;

pub use boot::BootError;
pub use glance::DirFault;
pub use memory::TooLittle;

/// Why the broker did not start, or how it failed. Each is a fault of the configuration or the environment: exit code 78,
/// and its text is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What the machine or its directories refuse, found before anything was made: the first says it.
    #[error("{}", .0.first().map(|fault| fault.error.to_string()).unwrap_or_default())]
    Refused(Vec<trial::Fault>),
    /// A log dir is in use, or cannot be.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Something is wrong with the log dirs.
    #[error(transparent)]
    Dirs(#[from] DirFault),
    /// The memory is not enough for so many shards.
    #[error(transparent)]
    Memory(#[from] TooLittle),
    /// The metadata store cannot be opened.
    #[error("{path}: {error}")]
    Metadata {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        error: embedded::OpenError,
    },
    /// ZooKeeper cannot be reached.
    #[error(transparent)]
    Zookeeper(#[from] zookeeper::OpenError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A listener's host has no address.
    #[error("{host} of listener {listener} has no address: {source}")]
    Host {
        /// The listener.
        listener: String,
        /// Its host.
        host: String,
        /// What the resolver says.
        source: io::Error,
    },
    /// Metrics and health cannot be served where they were asked for.
    #[error("admin.listener {host}:{port} cannot be listened on: {source}")]
    AdminListener {
        /// Its host.
        host: String,
        /// Its port.
        port: u16,
        /// What the operating system says.
        source: io::Error,
    },
    /// Metrics and health are to be served where clients are.
    #[error(
        "admin.listener ({admin}) has the port of listener {listener} ({address}): each needs one of its own"
    )]
    SamePort {
        /// The one.
        admin: SocketAddr,
        /// The listener.
        listener: String,
        /// Where it listens.
        address: SocketAddr,
    },
    /// There is no thread for metrics and health.
    #[error("metrics and health cannot be served: {0}")]
    AdminThread(io::Error),
    /// Signals cannot be handled.
    #[error("signals cannot be handled: {0}")]
    Signals(io::Error),
    /// The shards did not start, or one of them failed.
    #[error(transparent)]
    Shards(#[from] executors::StartError<BootError>),
}

/// Runs a broker until SIGINT or SIGTERM, which may come at any moment: `signals` has heard them from the first on. What
/// can be refused is refused before anything is made on disk; what is refused later leaves nothing behind.
///
/// # Errors
/// See [`StartError`].
pub fn run(config: BrokerConfig, signals: io::Result<SignalThread>) -> Result<(), StartError> {
    let began = now();
    let signals = signals.map_err(StartError::Signals)?;
    let machine = trial::look(&config, &mut Vec::new()).map_err(StartError::Refused)?;
    let shards = machine.layout.shards();
    tell(&config, shards);
    if machine.layout.shares_cores() {
        tracing::warn!(
            shards,
            "there are more shards than cores: each costs memory and latency, and none adds speed"
        );
    }
    let stopper = Stopper::new(shards);
    signals.stops(&stopper);
    let bound = listener::bind(&machine.listeners, shards)?;
    let table = dirs::table(&config);
    let admin = Admin::start(config.admin.listener.as_ref(), shards, &table)?;
    let (made, progress) = (Made::before(&config), admin.progress.clone());
    let slots = dirs::lock(&config, &table)?;
    let begun = Begun { began, machine, bound, admin, table, slots: slots.clone() };
    let ended = serve(config, begun, &stopper);
    if ended.is_err() && progress.state() == BrokerState::Starting as u8 {
        // The locks are still held: nobody else has begun here.
        made.undo();
    }
    drop((signals, slots));
    ended
}

/// What there is when the store is opened.
struct Begun {
    /// When the process began to start.
    began: Instant,
    machine: Machine,
    bound: Bound,
    admin: Admin,
    table: LogDirTable,
    slots: Vec<Slot>,
}

/// Serves until a stop is asked for.
fn serve(config: BrokerConfig, begun: Begun, stopper: &Stopper) -> Result<(), StartError> {
    let Begun { began, machine, bound, mut admin, table, slots } = begun;
    let stage = if config.zookeeper.is_some() { Stage::Zookeeper } else { Stage::Metadata };
    admin.progress.at(stage);
    let metadata = match open_metadata(&config, stopper) {
        Err(_) if stopper.is_requested() => return Ok(()),
        metadata => metadata?,
    };
    if stopper.is_requested() {
        return Ok(());
    }
    let spin = Duration::from_micros(u64::from(config.runtime.spin_before_park_us));
    let options = StartOptions { spin_before_park: spin, pulses: admin.pulses.clone() };
    let Machine { descriptors, layout, memory, listeners } = machine;
    let shared = Shared {
        began,
        progress: admin.progress.clone(),
        scrapes: std::mem::take(&mut admin.seats),
        metadata,
        dirs: slots,
        table,
        shards: layout.shards(),
        memory,
        descriptors,
    };
    let (plan, parts) = shard::plan(config, &listeners, bound, shared);
    executors::start(&options, &layout, stopper, parts, move |runtime: GlommioShard, part, stopping| {
        shard::run(runtime, plan.clone(), part, stopping)
    })?;
    tracing::info!("stopped");
    Ok(())
}

/// What this process is about to be, in one line; who it is is known when it is ready.
fn tell(config: &BrokerConfig, shards: u16) {
    let log_dirs: Vec<_> = config.storage.log_dirs.iter().map(|dir| dir.display().to_string()).collect();
    let metadata = match &config.zookeeper {
        Some(ensemble) => format!("ZooKeeper at {}", ensemble.connect),
        None => config.storage.metadata_file.display().to_string(),
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        shards,
        log_dirs = log_dirs.join(","),
        metadata,
        durability = format!("{:?}", config.topic_defaults.log.durability).to_lowercase(),
        "starting"
    );
}

#[allow(clippy::disallowed_methods, reason = "before there is a shard, and once when it is ready")]
fn now() -> Instant {
    Instant::now()
}

/// The store that the configuration chose; a stop that is asked for meanwhile ends the wait.
fn open_metadata(config: &BrokerConfig, stopper: &Stopper) -> Result<Opened, StartError> {
    let path = config.storage.metadata_file.clone();
    let Some(ensemble) = &config.zookeeper else {
        let file = EmbeddedFile::open(&path, metadata_is_damaged, metadata_has_failed)
            .map_err(|error| StartError::Metadata { path: path.clone(), error })?;
        return Ok(Opened::Embedded(file));
    };
    if path.exists() {
        tracing::warn!(
            file = %path.display(),
            "the metadata is in ZooKeeper: what this file of the embedded store holds is not looked at"
        );
    }
    let options = zookeeper_options(ensemble);
    Ok(Opened::Zookeeper(ZookeeperLink::open(options, || stopper.is_requested())?))
}

/// A session of a broker: what a lost connection leaves unanswered is sent again, as Kafka's brokers do.
fn zookeeper_options(config: &ZookeeperConfig) -> Options {
    let ms = |ms: u32| Duration::from_millis(ms.into());
    Options {
        connect: config.connect.clone(),
        session_timeout: ms(config.session_timeout_ms),
        connection_timeout: ms(config.connection_timeout_ms),
        in_flight_max: usize::try_from(config.max_in_flight_requests).unwrap_or(usize::MAX),
        on_loss: OnLoss::Resend,
    }
}

fn cores(config: &BrokerConfig) -> executors::Cores {
    match &config.runtime.cores {
        Cores::Auto => executors::Cores::Auto,
        Cores::Count(count) => executors::Cores::Count(*count),
        Cores::List(list) => executors::Cores::List(list.iter().copied().map(usize::from).collect()),
    }
}

/// The exit code when a log directory or the metadata store has failed and nothing is left to serve from: Kafka's.
pub const EXIT_STORAGE: i32 = 1;

/// Ends the process as a crash would (storage.md 8.4): after a failed write nothing more is written or answered.
#[allow(clippy::exit, reason = "a clean stop would write")]
fn halt(why: &dyn std::fmt::Display) -> ! {
    tracing::error!("{why}");
    std::process::exit(EXIT_STORAGE);
}

fn metadata_has_failed(file: &Path, why: &dyn std::error::Error) {
    halt(&format_args!(
        "{}: the metadata store cannot be written any more: {why}; ending at once, the next start recovers",
        file.display()
    ));
}

/// redb asserts on some damages, and a panic ends the process at once: the sentence and the exit code come first.
#[allow(clippy::exit, reason = "called while a panic is on its way to abort the process")]
fn metadata_is_damaged() {
    tracing::error!(
        "the metadata store is damaged: restore its file; to start without topics, move it and the directories of the partitions away"
    );
    std::process::exit(78);
}

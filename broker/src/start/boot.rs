//! What shard 0 does before anything is served: who we are, the log dirs, the registration in the metadata store. Its
//! result goes to every shard.

use std::sync::Arc;

use imbl::OrdMap;
use protocol::types::{BrokerEpoch, BrokerId};
use storage::io::Runtime;
use storage::lock::DirLock;
use storage::log_dir::{DirError, OpenError};
use storage::meta_properties::Identity;

use super::dirs::{Found, OpenedDir};
use super::shard::Plan;
use crate::controller::registration::{self, RegistrationError};
use crate::metadata::image::Image;
use crate::metrics::state::{Progress, Stage};
use crate::partition::lifecycle::LogHome;
use crate::partition::log_dirs::table::LogDirTable;
use crate::shard::ShardRuntime;
use crate::shard::start::descriptors_needed;
use crate::store::znodes::{self, BrokerNode};
use crate::store::{MetadataStore, StoreError};

/// How often a start looks whether its previous life has ended.
const PREVIOUS_LIFE_LOOK_MS: i64 = 100;

/// Why shard 0 could not boot, or a shard could not serve.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A log dir.
    #[error(transparent)]
    LogDir(#[from] OpenError),
    /// What a move has left cannot be put away.
    #[error(transparent)]
    Leftover(#[from] DirError),
    /// Log dirs of several brokers.
    #[error("{one} belongs to broker {known}, but {other} to broker {found}")]
    SeveralBrokers {
        /// One dir.
        one: String,
        /// Its broker.
        known: BrokerId,
        /// The other.
        other: String,
        /// Its broker.
        found: BrokerId,
    },
    /// One is a copy of the other.
    #[error("{one} and {other} have the same directory.id: one is a copy of the other")]
    SameDirectoryId {
        /// One dir.
        one: String,
        /// The other.
        other: String,
    },
    /// The metadata store.
    #[error("the metadata store failed: {0}")]
    Store(#[from] StoreError),
    /// The registration.
    #[error(transparent)]
    Registration(#[from] RegistrationError),
    /// The configured id is not the one that the directory belongs to.
    #[error("broker.id is {configured}, but {dir} belongs to broker {found}")]
    BrokerId {
        /// `broker.id`.
        configured: BrokerId,
        /// Id in `meta.properties`.
        found: BrokerId,
        /// The log dir.
        dir: String,
    },
    /// Nobody knows whose partitions these are: a new id would serve none of them.
    #[error(
        "{dir} holds partitions, but its meta.properties names no broker: set broker.id to the id they belong to"
    )]
    NoIdentity {
        /// The log dir.
        dir: String,
    },
    /// Each partition keeps a file open.
    #[error(
        "{dir} holds {partitions} partitions, which need {needed} descriptors at least with the shards; the limit on \
         open files (ulimit -n) is {limit}"
    )]
    Descriptors {
        /// The log dir.
        dir: String,
        /// How many partitions it holds.
        partitions: usize,
        /// What they and the shards need.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A listener cannot accept.
    #[error("listening failed: {0}")]
    Listen(std::io::Error),
    /// Shard 0 ended before it had booted.
    #[error("shard 0 did not boot")]
    NoBoot,
    /// A shard ended while others still needed it.
    #[error("a shard stopped early")]
    ShardStopped,
}

/// What every shard starts from.
#[derive(Clone)]
pub struct Boot {
    /// This broker.
    pub broker_id: BrokerId,
    /// The log dirs that are open.
    pub homes: Vec<LogHome>,
    /// The first image: nobody and nothing.
    pub image: Arc<Image>,
}

/// What only shard 0 keeps.
pub struct Booted<R: Runtime> {
    /// For every shard.
    pub boot: Boot,
    /// The log dirs that are open.
    pub dirs: Vec<OpenedDir<R>>,
    /// The registration of this broker, and its content.
    pub broker_epoch: BrokerEpoch,
    /// As it stands in the store.
    pub node: BrokerNode,
}

/// Opens the log dirs and registers the broker.
///
/// # Errors
/// See [`BootError`].
pub async fn boot<R: ShardRuntime, S: MetadataStore>(
    runtime: &R,
    store: &S,
    plan: &Plan,
    node: BrokerNode,
) -> Result<Booted<R>, BootError> {
    let (config, progress) = (&plan.config, &plan.progress);
    progress.at(Stage::LogDirs);
    registration::ensure_skeleton(store).await?;
    let found = Found::look(runtime, &plan.dirs, &plan.table, config).await?;
    let own = descriptors_needed(runtime.shard_count(), plan.endpoints.len());
    check_descriptors(found.partitions(), own, plan.descriptors, &plan.table)?;
    let claims = found.claims();
    // A directory that lost its metadata store keeps its cluster's id: Kafka would refuse it under another one.
    let proposed = claims.cluster_id().unwrap_or_else(|| random_cluster_id(runtime));
    let cluster_id = registration::cluster_id(store, &proposed).await?;
    let broker_id = match claims.identify(config.identity.broker_id)? {
        Some(id) => id,
        None => registration::generate_broker_id(store, config.identity.reserved_broker_max_id).await?,
    };
    let identity = Identity { broker_id: Some(broker_id), cluster_id: Some(cluster_id.clone()) };
    let delay_ms = config.topic_defaults.log.file_delete_delay_ms;
    let (dirs, homes) = found.open(runtime, &identity, delay_ms).await?;
    progress.at(Stage::Registering);
    let patience_ms = store.session().timeout_ms.saturating_mul(2);
    let broker_epoch = register(runtime, store, broker_id, &node, patience_ms, progress).await?;
    progress.at(Stage::Electing);
    let image = Image {
        version: 0,
        cluster_id: Arc::from(cluster_id),
        self_id: broker_id,
        controller: BrokerId::NONE,
        brokers: OrdMap::new(),
        topics: OrdMap::new(),
        names: OrdMap::new(),
    };
    let boot = Boot { broker_id, homes, image: Arc::new(image) };
    Ok(Booted { boot, dirs, broker_epoch, node })
}

/// Registers as soon as what is left of this broker's previous life is gone: a process that was killed leaves its session
/// behind, and the ensemble ends it when it has not heard from it for its time (zookeeper.md 6). Kafka's broker ends here;
/// a node with our own addresses, which nobody else could bind, is worth the wait.
async fn register<R: Runtime, S: MetadataStore>(
    runtime: &R,
    store: &S,
    id: BrokerId,
    node: &BrokerNode,
    patience_ms: i64,
    progress: &Progress,
) -> Result<BrokerEpoch, RegistrationError> {
    let path = znodes::broker(id);
    let limit = runtime.now().plus_ms(patience_ms);
    let mut is_told = false;
    loop {
        let refused = match registration::register(store, id, node, None).await {
            Err(refused @ RegistrationError::IdInUse(_)) if runtime.now() < limit => refused,
            registered => return registered,
        };
        match store.get(&path, false).await {
            Ok((data, _)) => {
                let left = BrokerNode::parse(&data.unwrap_or_default());
                if !left.is_ok_and(|left| left.endpoints() == node.endpoints()) {
                    return Err(refused);
                }
            }
            Err(StoreError::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
        if !is_told {
            tracing::info!(%id, "the session of this broker's previous life has not ended yet: waiting for it");
            progress.at(Stage::PreviousLife);
            is_told = true;
        }
        runtime.sleep_until(runtime.now().plus_ms(PREVIOUS_LIFE_LOOK_MS)).await;
    }
}

/// Lets the next start believe what the kernel holds of the logs.
pub(super) fn vouch(lock: &DirLock) {
    if let Err(error) = lock.vouch() {
        tracing::warn!(%error, "the lock file was not written: a start after kill -9 reads all that was not flushed");
    }
}

/// A log without a descriptor is a log that does not open: better not to start than to serve a part.
/// `own` is what the process needs besides.
pub(super) fn check_descriptors(
    partitions: usize,
    own: u64,
    limit: u64,
    table: &LogDirTable,
) -> Result<(), BootError> {
    let needed = own.saturating_add(u64::try_from(partitions).unwrap_or(u64::MAX));
    if needed <= limit {
        return Ok(());
    }
    let dirs: Vec<_> = table.paths().map(|dir| dir.display().to_string()).collect();
    let dir = dirs.join(" and ");
    Err(BootError::Descriptors { dir, partitions, needed, limit })
}

/// 16 random bytes as unpadded base64url, as Kafka makes them.
fn random_cluster_id<R: Runtime>(runtime: &R) -> String {
    let bits = (u128::from(runtime.random()) << 64) | u128::from(runtime.random());
    // Version and variant of a random UUID (RFC 9562): a reader may take the id for one.
    let uuid = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    protocol::types::TopicId::new(uuid.to_be_bytes()).to_string()
}

#[cfg(test)]
mod tests {
    use storage::io::sim::SimRuntime;

    use super::*;
    use crate::metrics::state::NotReady;
    use crate::store::sim::SimDisk;
    use crate::store::znodes::BrokerEndpoint;

    #[test]
    fn a_start_that_waits_for_its_previous_life_says_so_and_goes_on_when_that_has_ended() {
        let world = SimRuntime::new(1);
        let clock = world.clone();
        let previous = SimDisk::new().start(move || clock.wall_ms());
        let (id, endpoint) = (
            BrokerId::new(7),
            BrokerEndpoint {
                listener: "PLAINTEXT".to_owned(),
                host: "here".to_owned(),
                port: 9092,
                security_protocol: "PLAINTEXT".to_owned(),
            },
        );
        let node = BrokerNode::new(&[endpoint], None, 0);
        let (store, progress, runtime) = (previous.connect(), Progress::new(1), world.clone());
        let (before, after) = world.block_on(async move {
            registration::ensure_skeleton(&previous).await.unwrap();
            let before = registration::register(&previous, id, &node, None).await.unwrap();
            let ends = async {
                runtime.sleep_until(runtime.now().plus_ms(5000)).await;
                let waits = NotReady::Starting(Stage::PreviousLife);
                assert_eq!(progress.ready(), Err(waits));
                previous.expire().await.unwrap();
            };
            let registered = register(&runtime, &store, id, &node, 60_000, &progress);
            let (after, ()) = futures_util::join!(registered, ends);
            (before, after.unwrap())
        });
        assert!(after > before, "a life of its own: {after:?} {before:?}");
    }
}

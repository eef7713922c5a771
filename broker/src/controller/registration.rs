//! What a broker does in the store before it takes part: skeleton, cluster id, broker id, its registration
//! (zookeeper.md 2, 6). Called by the broker's start, and by the driver after a lost session.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use protocol::types::{BrokerEpoch, BrokerId};

use crate::store::znodes::{self, BrokerNode, PayloadError};
use crate::store::{CreateMode, Expected, MetadataStore, Op, OpDone, StoreError};

/// Why a broker cannot take part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// `/cluster/id` holds what nobody can read.
    #[error("/cluster/id: {0}")]
    ClusterId(PayloadError),
    /// Another live broker has this id, or its previous life has not expired.
    #[error("broker id {0} is registered already")]
    IdInUse(BrokerId),
    /// Another live broker advertises the same address.
    #[error("broker {other} advertises {host}:{port} too")]
    EndpointInUse {
        /// The other broker.
        other: BrokerId,
        /// Host that both advertise.
        host: String,
        /// Port that both advertise.
        port: u16,
    },
    /// `/brokers/seqid` is exhausted.
    #[error("no broker id is left")]
    NoIdLeft,
}

/// A path's parents and itself, from the top.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()]);
    ends.filter_map(|end| path.get(..end))
}

/// Makes persistent nodes, parents before children. Issued in order, awaited together: one commit of the embedded store
/// takes what is queued, where one each would be most of the time that a first start takes.
async fn ensure_all<'a, S: MetadataStore>(
    store: &S,
    paths: impl Iterator<Item = &'a str>,
) -> Result<(), StoreError> {
    let creations: Vec<_> = paths.map(|path| store.create(path, None, CreateMode::Persistent)).collect();
    for created in join_all(creations).await {
        match created {
            Ok(_) | Err(StoreError::NodeExists) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes the skeleton that every broker expects.
///
/// # Errors
/// Those of the session.
pub async fn ensure_skeleton<S: MetadataStore>(store: &S) -> Result<(), StoreError> {
    // One look at the last one saves the writes of a skeleton that is there.
    let last = znodes::SKELETON.last().copied().unwrap_or("/");
    if store.exists(last, false).await?.is_some() {
        return Ok(());
    }
    // Kafka takes an empty array there for a broken block, and hands out no producer id (zookeeper.md 11).
    let is_wanted = |path: &&str| store.tells_null() || *path != znodes::PRODUCER_ID_BLOCK;
    let all: Vec<&str> = znodes::SKELETON.into_iter().filter(is_wanted).flat_map(prefixes).collect();
    let mut seen = BTreeSet::new();
    ensure_all(store, all.into_iter().filter(|path| seen.insert(*path))).await
}

/// The cluster's id; a new cluster gets the one proposed.
///
/// # Errors
/// Those of the session, or a node that nobody can read.
pub async fn cluster_id<S: MetadataStore>(store: &S, proposed: &str) -> Result<String, RegistrationError> {
    let parent = store.create("/cluster", None, CreateMode::Persistent);
    let id = Some(znodes::print_cluster_id(proposed));
    let created = store.create(znodes::CLUSTER_ID, id, CreateMode::Persistent);
    match parent.await {
        Ok(_) | Err(StoreError::NodeExists) => {}
        Err(error) => return Err(error.into()),
    }
    match created.await {
        Ok(_) => Ok(proposed.to_owned()),
        Err(StoreError::NodeExists) => {
            let (data, _) = store.get(znodes::CLUSTER_ID, false).await?;
            znodes::parse_cluster_id(&data.unwrap_or_default()).map_err(RegistrationError::ClusterId)
        }
        Err(error) => Err(error.into()),
    }
}

/// A broker id that no broker ever had: the version of `/brokers/seqid` above `reserved.broker.max.id`.
///
/// # Errors
/// Those of the session.
pub async fn generate_broker_id<S: MetadataStore>(
    store: &S,
    reserved_max: i32,
) -> Result<BrokerId, RegistrationError> {
    let stat = store.set("/brokers/seqid", Some(bytes::Bytes::new()), Expected::Any).await?;
    stat.version.checked_add(reserved_max).map(BrokerId::new).ok_or(RegistrationError::NoIdLeft)
}

/// Registers the broker and answers its epoch. `previous_session` is the session of its previous registration: what is
/// left of it is replaced (ZOOKEEPER-2985).
///
/// # Errors
/// See [`RegistrationError`].
pub async fn register<S: MetadataStore>(
    store: &S,
    id: BrokerId,
    node: &BrokerNode,
    previous_session: Option<i64>,
) -> Result<BrokerEpoch, RegistrationError> {
    check_endpoints(store, id, node).await?;
    let path = znodes::broker(id);
    loop {
        let ops = vec![
            Op::Create { path: path.clone(), data: None, mode: CreateMode::Ephemeral },
            Op::set(path.clone(), node.print(), Expected::Version(0)),
        ];
        match store.multi(ops).await {
            Ok(done) => {
                if let Some(OpDone::Set(stat)) = done.last() {
                    return Ok(BrokerEpoch::new(stat.czxid));
                }
            }
            Err(error) if error.error() == StoreError::NodeExists => {}
            Err(error) => return Err(error.error().into()),
        }
        let Some(stat) = store.exists(&path, false).await? else { continue };
        if stat.ephemeral_owner == store.session().id {
            // The reply of our own registration was lost.
            return Ok(BrokerEpoch::new(stat.czxid));
        }
        if previous_session != Some(stat.ephemeral_owner) {
            return Err(RegistrationError::IdInUse(id));
        }
        match store.delete(&path, Expected::Any).await {
            Ok(()) | Err(StoreError::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kafka's brokers refuse to start when another one advertises the same address; so do we.
async fn check_endpoints<S: MetadataStore>(
    store: &S,
    id: BrokerId,
    node: &BrokerNode,
) -> Result<(), RegistrationError> {
    let mine = node.endpoints().unwrap_or_default();
    let (names, _) = store.children(znodes::BROKER_IDS, false).await?;
    for other in
        names.iter().filter_map(|name| name.parse().ok().map(BrokerId::new)).filter(|other| *other != id)
    {
        let Ok((Some(data), _)) = store.get(&znodes::broker(other), false).await else { continue };
        let theirs = BrokerNode::parse(&data).and_then(|node| node.endpoints()).unwrap_or_default();
        for endpoint in theirs {
            if mine.iter().any(|own| own.host == endpoint.host && own.port == endpoint.port) {
                return Err(RegistrationError::EndpointInUse {
                    other,
                    host: endpoint.host,
                    port: endpoint.port,
                });
            }
        }
    }
    Ok(())
}

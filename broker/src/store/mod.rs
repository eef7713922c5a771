//! The metadata store: a tree of znodes with versions, ephemerals, watches, multi and fenced writes (shared/spec/zookeeper.md 13).
//! Owns the contract ([`MetadataStore`]), its implementations (embedded, simulated, on ZooKeeper), and what Kafka keeps in
//! the tree ([`znodes`]). Knows neither controller nor requests; called by `controller`, `admin` and the broker's start.
//!
//! Two points where the contract is narrower than the sheet: the znode ACL is a function of the path and
//! `zookeeper.set.acl` (zookeeper.md 10), so it is the back end's business and no argument; and a failed `multi` reports
//! its first failing op, from which the codes of the others follow.

use std::future::Future;

use bytes::Bytes;

pub mod carry;
pub mod chosen;
pub mod embedded;
mod local;
pub mod sim;
mod tree;
pub mod znodes;
pub mod zookeeper;

#[cfg(test)]
mod tests;

/// What the store says about a node beside its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stat {
    /// Transaction that created it; unique and increasing in the whole tree.
    pub czxid: i64,
    /// Transaction that last set its data.
    pub mzxid: i64,
    /// When it was created, in milliseconds since 1970.
    pub ctime_ms: i64,
    /// When its data was last set, in milliseconds since 1970.
    pub mtime_ms: i64,
    /// Number of data changes since its creation.
    pub version: i32,
    /// Number of changes of its set of children.
    pub cversion: i32,
    /// Session it goes away with; 0 for a persistent node.
    pub ephemeral_owner: i64,
}

/// How long a node lives and how it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// Until it is deleted.
    Persistent,
    /// Until the session ends that created it.
    Ephemeral,
    /// Until it is deleted; the store appends ten digits that grow with each sibling.
    PersistentSequential,
}

/// Condition on the data version of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// None: the last writer wins.
    Any,
    /// The version must be this one.
    Version(i32),
}

/// One part of a [`MetadataStore::multi`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The node must exist and have this data version.
    Check {
        /// Path of the node.
        path: String,
        /// Its version.
        version: i32,
    },
    /// Creates a node.
    Create {
        /// Path of the node, or the prefix of a sequential one.
        path: String,
        /// Its data; `None` is null, which is not the same as empty.
        data: Option<Bytes>,
        /// How long it lives.
        mode: CreateMode,
    },
    /// Replaces the data of a node.
    Set {
        /// Path of the node.
        path: String,
        /// The new data.
        data: Option<Bytes>,
        /// Condition.
        expected: Expected,
    },
    /// Deletes a node without children.
    Delete {
        /// Path of the node.
        path: String,
        /// Condition.
        expected: Expected,
    },
}

impl Op {
    /// Creation of a persistent node.
    pub fn create(path: impl Into<String>, data: Option<Bytes>) -> Self {
        Self::Create { path: path.into(), data, mode: CreateMode::Persistent }
    }

    /// Replacement of a node's data.
    pub fn set(path: impl Into<String>, data: Bytes, expected: Expected) -> Self {
        Self::Set { path: path.into(), data: Some(data), expected }
    }

    /// Deletion of a node whatever its version.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::Delete { path: path.into(), expected: Expected::Any }
    }
}

/// What became of an [`Op`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpDone {
    /// The version was the expected one.
    Checked,
    /// The node was created.
    Created {
        /// Its path, with the number of a sequential node.
        path: String,
        /// Its stat.
        stat: Stat,
    },
    /// The data was set.
    Set(Stat),
    /// The node was deleted.
    Deleted,
}

impl OpDone {
    /// Path and stat of the node that an [`Op::Create`] made.
    ///
    /// # Errors
    /// It is what became of another operation.
    fn created(self) -> Result<(String, Stat), StoreError> {
        match self {
            Self::Created { path, stat } => Ok((path, stat)),
            Self::Checked | Self::Set(_) | Self::Deleted => Err(StoreError::BadPath),
        }
    }

    /// Stat of the node that an [`Op::Set`] changed.
    ///
    /// # Errors
    /// It is what became of another operation.
    fn set(self) -> Result<Stat, StoreError> {
        match self {
            Self::Set(stat) => Ok(stat),
            Self::Checked | Self::Created { .. } | Self::Deleted => Err(StoreError::BadPath),
        }
    }
}

/// Why a request to the store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The node, or the parent of one to be created, does not exist.
    #[error("no such node")]
    NoNode,
    /// The node exists already.
    #[error("node exists")]
    NodeExists,
    /// The data version is not the expected one.
    #[error("data version is another")]
    BadVersion,
    /// The node has children.
    #[error("node has children")]
    NotEmpty,
    /// Ephemeral nodes cannot have children.
    #[error("ephemeral nodes have no children")]
    NoChildrenForEphemerals,
    /// The path is not absolute or has an empty component.
    #[error("malformed path")]
    BadPath,
    /// Unknown outcome; only the caller can decide on a retry.
    #[error("connection to the metadata store was lost")]
    ConnectionLoss,
    /// The session in which the request was issued has ended.
    #[error("session has expired")]
    SessionExpired,
    /// The store does not let us: rights, quotas, a server that takes no writes. Nothing was changed.
    #[error("the metadata store has refused the request")]
    Refused,
    /// The request is larger than the store takes, or than a server takes unless it was told to: it is not sent again.
    /// Unknown outcome.
    #[error("the request is larger than the metadata store takes")]
    TooLarge,
    /// The store cannot write any more (the embedded one: a failed commit, never retried). Unknown outcome.
    #[error("metadata store cannot write any more")]
    Unwritable,
}

/// Why a `multi` changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MultiError {
    /// One op failed; the ones before it were undone, the ones behind it not tried.
    #[error("operation {index}: {error}")]
    Op {
        /// Position of the op.
        index: usize,
        /// Why it failed.
        error: StoreError,
    },
    /// The request as a whole failed.
    #[error(transparent)]
    Request(StoreError),
}

impl MultiError {
    /// The reason, wherever it stands.
    pub const fn error(self) -> StoreError {
        match self {
            Self::Op { error, .. } | Self::Request(error) => error,
        }
    }
}

/// Why a fenced write did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FencedError {
    /// Another controller was elected since.
    #[error("the controller has moved")]
    Moved,
    /// The write itself failed.
    #[error(transparent)]
    Store(StoreError),
}

/// What a watch or the session tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// A watched path came into being.
    NodeCreated(String),
    /// A watched node was deleted.
    NodeDeleted(String),
    /// The data of a watched node was set.
    DataChanged(String),
    /// The set of children of a watched node changed.
    ChildrenChanged(String),
    /// The session is up.
    Connected {
        /// Its id.
        id: i64,
        /// Grows with each session of this handle.
        local_epoch: u64,
    },
    /// Nothing was heard for two thirds of the session's timeout: stop acting.
    Suspended,
    /// The session is gone, its ephemerals and watches with it; `reopen` makes a new one.
    Expired {
        /// Which session of this handle.
        local_epoch: u64,
    },
}

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its id, as in [`Stat::ephemeral_owner`].
    pub id: i64,
    /// Grows with each session of this handle.
    pub local_epoch: u64,
    /// How long the store keeps it without hearing from us; 0 when it ends only with the process.
    pub timeout_ms: i64,
}

/// Data of a node and its stat.
pub type NodeData = (Option<Bytes>, Stat);

/// A tree of znodes. Requests take effect, and are answered, in the order of the *calls* (not of the awaits), so that
/// they can be pipelined. A clone shares session, watches and events; see [`MetadataStore::fork`].
///
/// Guarantees: a watch event stands in [`MetadataStore::next_event`] before any later read returns the changed data;
/// watches fire once; the data version grows by one with each set; what an answer shows is durable; a request is bound
/// to the session it was issued in. Dropping the future of a request does not take the request back.
pub trait MetadataStore: Clone + 'static {
    /// Whether a node without data is told apart from one whose data is empty.
    fn tells_null(&self) -> bool;
    /// Creates a node; answers its real path and stat.
    ///
    /// # Errors
    /// `NodeExists`, `NoNode` for a missing parent, `NoChildrenForEphemerals`.
    fn create(
        &self,
        path: &str,
        data: Option<Bytes>,
        mode: CreateMode,
    ) -> impl Future<Output = Result<(String, Stat), StoreError>> + use<Self> + 'static;
    /// Data and stat of a node; the watch covers data and deletion, and is set only if the node exists.
    ///
    /// # Errors
    /// `NoNode`.
    fn get(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<NodeData, StoreError>> + use<Self> + 'static;
    /// Stat of a node, or `None`; the watch covers creation, data and deletion.
    ///
    /// # Errors
    /// Those of the session.
    fn exists(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<Option<Stat>, StoreError>> + use<Self> + 'static;
    /// Names of the children, sorted, and the node's stat; the watch covers the set of children and deletion.
    ///
    /// # Errors
    /// `NoNode`.
    fn children(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<(Vec<String>, Stat), StoreError>> + use<Self> + 'static;
    /// Replaces the data of a node.
    ///
    /// # Errors
    /// `NoNode`, `BadVersion`.
    fn set(
        &self,
        path: &str,
        data: Option<Bytes>,
        expected: Expected,
    ) -> impl Future<Output = Result<Stat, StoreError>> + use<Self> + 'static;
    /// Deletes a node.
    ///
    /// # Errors
    /// `NoNode`, `BadVersion`, `NotEmpty`.
    fn delete(
        &self,
        path: &str,
        expected: Expected,
    ) -> impl Future<Output = Result<(), StoreError>> + use<Self> + 'static;
    /// Does all of the ops in one transaction, or none.
    ///
    /// # Errors
    /// The first op that fails.
    fn multi(
        &self,
        ops: Vec<Op>,
    ) -> impl Future<Output = Result<Vec<OpDone>, MultiError>> + use<Self> + 'static;
    /// For each op one transaction of its own that also checks the version of `/controller_epoch`; pipelined.
    fn fenced(
        &self,
        epoch_version: i32,
        ops: Vec<Op>,
    ) -> impl Future<Output = Vec<Result<OpDone, FencedError>>> + use<Self> + 'static;
    /// The next event of this handle's watches and session; `None` once the handle is closed. One caller at a time.
    fn next_event(&self) -> impl Future<Output = Option<StoreEvent>> + '_;
    /// The session, which may have expired.
    fn session(&self) -> Session;
    /// Another handle on the same session, with watches and events of its own.
    #[must_use]
    fn fork(&self) -> Self;
    /// Makes a new session after the old one has expired.
    ///
    /// # Errors
    /// When there is no store any more.
    fn reopen(&self) -> impl Future<Output = Result<Session, StoreError>> + use<Self> + 'static;
    /// Ends the session: its ephemerals are gone when this returns.
    ///
    /// # Errors
    /// When there is no store any more.
    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + use<Self> + 'static;
}

//! One request on one connection: how it is asked of the client library, and what its answers and errors mean to a store
//! (zookeeper.md 13, 15). Knows neither sessions nor who asks; called by `session`.

use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use zookeeper_client as zk;

use super::watches::{Kind, Seen};
use crate::store::{CreateMode, Expected, MultiError, NodeData, Op, OpDone, Stat, StoreError, znodes};

/// A request, as it may be asked again on another connection.
#[derive(Debug)]
pub(super) enum Ask {
    /// Data and stat.
    Get { path: String, watch: bool },
    /// Whether it exists.
    Exists { path: String, watch: bool },
    /// Names of the children.
    Children { path: String, watch: bool },
    /// One transaction.
    Ops(Vec<Op>),
    /// One op behind a check of the controller's epoch.
    Fenced { epoch_version: i32, op: Op },
    /// Reads that come behind it are not older than what the ensemble has agreed on.
    Sync,
    /// Sets a watch of an earlier connection again.
    Rearm { path: String, kind: Kind },
}

/// More than an op takes beside its path and data: the path that all are below, rights, lengths.
const OP_BYTES: usize = 256;

impl Ask {
    /// Not less than the bytes of a write as it is sent; reads are short.
    pub(super) fn bytes_max(&self) -> usize {
        let bytes_of = |op: &Op| match op {
            Op::Check { path, .. } | Op::Delete { path, .. } => OP_BYTES + path.len(),
            Op::Create { path, data, .. } | Op::Set { path, data, .. } => {
                OP_BYTES + path.len() + data.as_ref().map_or(0, Bytes::len)
            }
        };
        match self {
            Self::Ops(ops) => ops.iter().map(bytes_of).sum(),
            Self::Fenced { op, .. } => OP_BYTES + bytes_of(op),
            Self::Get { .. }
            | Self::Exists { .. }
            | Self::Children { .. }
            | Self::Sync
            | Self::Rearm { .. } => 0,
        }
    }
}

/// What an [`Ask`] gets, with the watch that it set.
#[derive(Debug)]
pub(super) enum Got {
    /// Data and stat.
    Data(NodeData, Option<Watched>),
    /// Whether it exists.
    Exists(Option<Stat>, Option<Watched>),
    /// Names of the children.
    Children((Vec<String>, Stat), Option<Watched>),
    /// What became of the ops.
    Done(Vec<OpDone>),
    /// The watch is set again.
    Rearmed(Option<Watched>),
    /// Nothing to tell.
    Synced,
}

/// A watch that was set, and the state in which it found its node.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) seen: Seen,
    pub(super) watcher: zk::OneshotWatcher,
}

/// Why an [`Ask`] got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The server has answered: the op at fault, and why.
    Refused(usize, StoreError),
    /// Whatever was sent on this connection has an unknown outcome.
    Connection,
    /// An answer that cannot be read; its outcome alone is unknown.
    Unreadable,
    /// More than a server takes, and its connection was lost: its outcome alone is unknown.
    TooLarge,
    /// The session that it is bound to is over.
    Expired,
}

impl Failed {
    /// The error of a request that was not answered on its connection.
    pub(super) const fn error(self) -> MultiError {
        match self {
            Self::Refused(index, error) => MultiError::Op { index, error },
            Self::Connection | Self::Unreadable => MultiError::Request(StoreError::ConnectionLoss),
            Self::TooLarge => MultiError::Request(StoreError::TooLarge),
            Self::Expired => MultiError::Request(StoreError::SessionExpired),
        }
    }
}

impl From<zk::Error> for Failed {
    fn from(error: zk::Error) -> Self {
        at(0, &error)
    }
}

fn at(index: usize, error: &zk::Error) -> Failed {
    let refused = match error {
        zk::Error::NoNode => StoreError::NoNode,
        zk::Error::NodeExists => StoreError::NodeExists,
        zk::Error::BadVersion => StoreError::BadVersion,
        zk::Error::NotEmpty => StoreError::NotEmpty,
        zk::Error::NoChildrenForEphemerals => StoreError::NoChildrenForEphemerals,
        zk::Error::BadArguments(_) => StoreError::BadPath,
        zk::Error::NoAuth
        | zk::Error::InvalidAcl
        | zk::Error::QuotaExceeded
        | zk::Error::Throttled
        | zk::Error::NotReadOnly
        | zk::Error::MarshallingError
        | zk::Error::Unimplemented => StoreError::Refused,
        zk::Error::UnmarshalError { .. } | zk::Error::UnexpectedErrorCode(_) => return Failed::Unreadable,
        // All others are the connection's, also "expired": only a new connection tells whether the session is over.
        _ => return Failed::Connection,
    };
    Failed::Refused(index, refused)
}

/// A request that was sent: by the first poll, so that the order of first polls is the order of the requests.
pub(super) type Sent = LocalBoxFuture<'static, Result<Got, Failed>>;

/// Asks on a connection.
pub(super) fn ask(client: &Rc<zk::Client>, ask: &Rc<Ask>) -> Sent {
    let (client, ask) = (Rc::clone(client), Rc::clone(ask));
    Box::pin(async move {
        match &*ask {
            Ask::Get { path, watch } => get(&client, path, *watch).await,
            Ask::Exists { path, watch } => exists(&client, path, *watch).await,
            Ask::Children { path, watch } => children(&client, path, *watch).await,
            Ask::Ops(ops) => match ops.as_slice() {
                [] => Ok(Got::Done(Vec::new())),
                [op] => single(&client, op).await.map(|done| Got::Done(vec![done])),
                ops => multi(&client, ops).await.map(Got::Done),
            },
            Ask::Fenced { epoch_version, op } => fenced(&client, *epoch_version, op).await,
            Ask::Sync => {
                client.sync("/").await?;
                Ok(Got::Synced)
            }
            Ask::Rearm { path, kind } => rearm(&client, path, *kind).await,
        }
    })
}

async fn get(client: &zk::Client, path: &str, watch: bool) -> Result<Got, Failed> {
    if !watch {
        let (data, stat) = client.get_data(path).await?;
        return Ok(Got::Data((data_of(data, &stat), stat_of(&stat)), None));
    }
    let (data, stat, watcher) = client.get_and_watch_data(path).await?;
    let watched = Watched { seen: Seen::At(stat.mzxid), watcher };
    Ok(Got::Data((data_of(data, &stat), stat_of(&stat)), Some(watched)))
}

async fn exists(client: &zk::Client, path: &str, watch: bool) -> Result<Got, Failed> {
    if !watch {
        let stat = client.check_stat(path).await?;
        return Ok(Got::Exists(stat.as_ref().map(stat_of), None));
    }
    let (stat, watcher) = client.check_and_watch_stat(path).await?;
    let seen = stat.as_ref().map_or(Seen::Absent, |stat| Seen::At(stat.mzxid));
    Ok(Got::Exists(stat.as_ref().map(stat_of), Some(Watched { seen, watcher })))
}

async fn children(client: &zk::Client, path: &str, watch: bool) -> Result<Got, Failed> {
    let (mut names, stat, watched) = if watch {
        let (names, stat, watcher) = client.get_and_watch_children(path).await?;
        (names, stat, Some(Watched { seen: Seen::At(stat.pzxid), watcher }))
    } else {
        let (names, stat) = client.get_children(path).await?;
        (names, stat, None)
    };
    names.sort_unstable();
    Ok(Got::Children((names, stat_of(&stat)), watched))
}

async fn rearm(client: &zk::Client, path: &str, kind: Kind) -> Result<Got, Failed> {
    let watched = match kind {
        Kind::Data => {
            let (stat, watcher) = client.check_and_watch_stat(path).await?;
            let seen = stat.as_ref().map_or(Seen::Absent, |stat| Seen::At(stat.mzxid));
            Some(Watched { seen, watcher })
        }
        Kind::Children => match client.get_and_watch_children(path).await {
            Ok((_, stat, watcher)) => Some(Watched { seen: Seen::At(stat.pzxid), watcher }),
            Err(zk::Error::NoNode) => None,
            Err(error) => return Err(error.into()),
        },
    };
    Ok(Got::Rearmed(watched))
}

/// An op as a request of its own: only so does a created node tell its stat on every server.
async fn single(client: &zk::Client, op: &Op) -> Result<OpDone, Failed> {
    match op {
        Op::Check { .. } => {
            let done = multi(client, std::slice::from_ref(op)).await?;
            done.into_iter().next().ok_or(Failed::Unreadable)
        }
        Op::Create { path, data, mode } => {
            let (stat, sequence) = client.create(path, bytes(data.as_ref()), &options(*mode)).await?;
            let path = match mode {
                CreateMode::PersistentSequential => format!("{path}{sequence}"),
                CreateMode::Persistent | CreateMode::Ephemeral => path.clone(),
            };
            Ok(OpDone::Created { path, stat: stat_of(&stat) })
        }
        Op::Set { path, data, expected } => {
            let stat = client.set_data(path, bytes(data.as_ref()), version(*expected)).await?;
            Ok(OpDone::Set(stat_of(&stat)))
        }
        Op::Delete { path, expected } => {
            client.delete(path, version(*expected)).await?;
            Ok(OpDone::Deleted)
        }
    }
}

async fn fenced(client: &zk::Client, epoch_version: i32, op: &Op) -> Result<Got, Failed> {
    let check = Op::Check { path: znodes::CONTROLLER_EPOCH.to_owned(), version: epoch_version };
    let done = multi(client, &[check, op.clone()]).await?;
    Ok(Got::Done(done.into_iter().skip(1).collect()))
}

async fn multi(client: &zk::Client, ops: &[Op]) -> Result<Vec<OpDone>, Failed> {
    let mut writer = client.new_multi_writer();
    for (index, op) in ops.iter().enumerate() {
        let added = match op {
            Op::Check { path, version } => writer.add_check_version(path, *version),
            Op::Create { path, data, mode } => writer.add_create(path, bytes(data.as_ref()), &options(*mode)),
            Op::Set { path, data, expected } => {
                writer.add_set_data(path, bytes(data.as_ref()), version(*expected))
            }
            Op::Delete { path, expected } => writer.add_delete(path, version(*expected)),
        };
        added.map_err(|error| at(index, &error))?;
    }
    let done = writer.commit().await.map_err(|error| match error {
        zk::MultiWriteError::RequestFailed { source } => at(0, &source),
        zk::MultiWriteError::OperationFailed { index, source } => at(index, &source),
    })?;
    if done.len() != ops.len() {
        return Err(Failed::Unreadable);
    }
    let of = |done| match done {
        zk::MultiWriteResult::Check => Ok(OpDone::Checked),
        zk::MultiWriteResult::Delete => Ok(OpDone::Deleted),
        zk::MultiWriteResult::Create { path, stat } => Ok(OpDone::Created { path, stat: stat_of(&stat) }),
        zk::MultiWriteResult::SetData { stat } => Ok(OpDone::Set(stat_of(&stat))),
        _ => Err(Failed::Unreadable),
    };
    done.into_iter().map(of).collect()
}

fn options(mode: CreateMode) -> zk::CreateOptions<'static> {
    let mode = match mode {
        CreateMode::Persistent => zk::CreateMode::Persistent,
        CreateMode::Ephemeral => zk::CreateMode::Ephemeral,
        CreateMode::PersistentSequential => zk::CreateMode::PersistentSequential,
    };
    mode.with_acls(zk::Acls::anyone_all())
}

fn version(expected: Expected) -> Option<i32> {
    match expected {
        Expected::Any => None,
        Expected::Version(version) => Some(version),
    }
}

/// The library sends no null: what has none is sent as empty.
fn bytes(data: Option<&Bytes>) -> &[u8] {
    data.map_or(&[], |data| data.as_ref())
}

/// The library tells null and empty not apart. A node that holds nothing and was never set is one that was made without
/// data, which is what null means to Kafka's readers (zookeeper.md 3); one that was set to nothing stays empty.
fn data_of(data: Vec<u8>, stat: &zk::Stat) -> Option<Bytes> {
    (!data.is_empty() || stat.version != 0).then(|| data.into())
}

fn stat_of(stat: &zk::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        ctime_ms: stat.ctime,
        mtime_ms: stat.mtime,
        version: stat.version,
        cversion: stat.cversion,
        ephemeral_owner: stat.ephemeral_owner,
    }
}

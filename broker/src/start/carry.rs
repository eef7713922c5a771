//! `odradek metadata export` and `import`: opens the embedded store and ZooKeeper as a broker's configuration names them,
//! and carries the metadata from one into the other. No broker may run meanwhile.

use std::io;
use std::path::PathBuf;

use storage::lock::{DirLock, LockError};

use super::{metadata_has_failed, metadata_is_damaged, zookeeper_options};
use crate::config::broker::BrokerConfig;
use crate::store::MetadataStore;
use crate::store::carry::{Carried, CarryError, block_on, carry};
use crate::store::embedded::{self, EmbeddedFile};
use crate::store::zookeeper::{self, ZookeeperLink};

/// Which way the metadata goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the embedded store into ZooKeeper.
    Export,
    /// From ZooKeeper into the embedded store.
    Import,
}

/// Why the metadata was not carried; each is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum CarryFault {
    /// Nobody said where ZooKeeper is.
    #[error("zookeeper.connect is not set: it names the ZooKeeper that the metadata is carried to or from")]
    NoZookeeper,
    /// A broker runs.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// There is no embedded store.
    #[error("{} is not there: there is no embedded metadata store to export", .0.display())]
    NoFile(PathBuf),
    /// The embedded store cannot be opened.
    #[error("{}: {error}", .path.display())]
    Metadata {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        error: embedded::OpenError,
    },
    /// ZooKeeper cannot be reached.
    #[error(transparent)]
    Zookeeper(#[from] zookeeper::OpenError),
    /// The target holds something.
    #[error("nothing was carried: {target} is not empty, {node} is there already")]
    NotEmpty {
        /// The target.
        target: String,
        /// What is in it.
        node: String,
    },
    /// The source, or the writing.
    #[error("the metadata of {source_name} was not carried into {target}: {error}")]
    Carry {
        /// The source.
        source_name: String,
        /// The target.
        target: String,
        /// Why not.
        error: CarryError,
    },
}

/// Carries the metadata.
///
/// # Errors
/// See [`CarryFault`].
pub fn carry_metadata(config: &BrokerConfig, direction: Direction) -> Result<Carried, CarryFault> {
    let ensemble = config.zookeeper.as_ref().ok_or(CarryFault::NoZookeeper)?;
    let path = config.storage.metadata_file.clone();
    let exists = path.try_exists().unwrap_or(true);
    if direction == Direction::Export && !exists {
        return Err(CarryFault::NoFile(path));
    }
    let lock = config.storage.log_dirs.first().map(|dir| DirLock::acquire(dir)).transpose()?;
    // Before the file, which is made where it is missing.
    let link = ZookeeperLink::open(zookeeper_options(ensemble), || false)?;
    let file = EmbeddedFile::open(&path, metadata_is_damaged, metadata_has_failed)
        .map_err(|error| CarryFault::Metadata { path: path.clone(), error })?;
    let embedded = file.start(wall_ms);
    let zookeeper = link.start();
    let names = (path.display().to_string(), format!("ZooKeeper at {}", ensemble.connect));
    let (carried, (source_name, target)) = match direction {
        Direction::Export => (block_on(carry(&embedded, &zookeeper)), names),
        Direction::Import => (block_on(carry(&zookeeper, &embedded)), (names.1, names.0)),
    };
    // Nothing is bound to the session: it ends by itself where it cannot be ended now.
    let _ = block_on(zookeeper.close());
    drop(embedded);
    if carried.is_err() && !exists {
        remove(&path);
    }
    drop(lock);
    carried.map_err(|error| match error {
        CarryError::NotEmpty(node) => CarryFault::NotEmpty { target, node },
        error => CarryFault::Carry { source_name, target, error },
    })
}

/// The file that was made for nothing; one that stays is empty, which harms nobody.
#[allow(clippy::disallowed_methods, reason = "there is no runtime: nothing is started")]
fn remove(path: &std::path::Path) {
    let removed: io::Result<()> = std::fs::remove_file(path);
    drop(removed);
}

#[allow(clippy::disallowed_methods, reason = "there is no runtime: nothing is started")]
fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

//! The log dirs before a start makes anything: whether they can be used, whose they are, and whether there is somebody who
//! knows the topics of what is in them. Changes nothing. Called by [`super::trial`]; the start looks again once it has the
//! locks.

use std::io;
use std::path::{Path, PathBuf};

use storage::lock::{DirLock, LockError, look_writable};
use storage::log_dir::{FoundKind, FoundLogDir, FoundPartition, OpenError, moves};
use storage::meta_properties::Identity;

use super::boot::{BootError, check_descriptors};
use super::dirs::{self, Claims, absolute, metadata_dir};
use crate::config::broker::BrokerConfig;

/// What is wrong with the log dirs; each is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum DirFault {
    /// One is in use, or cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// What is in them.
    #[error(transparent)]
    Content(#[from] BootError),
    /// The metadata store cannot be made where it is to be.
    #[error("{path}: {source}")]
    Metadata {
        /// Its file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// Nobody knows the topics of the partitions: a start would look like one on an empty directory.
    #[error(
        "{dir} holds partitions, but no metadata store that knows their topics ({file} is not there or empty): set \
         zookeeper.connect if they are of a Kafka whose metadata is in ZooKeeper, or bring that over with `odradek metadata \
         import`, or restore the file"
    )]
    NoMetadata {
        /// The log dir.
        dir: PathBuf,
        /// Where the store would be.
        file: PathBuf,
    },
}

/// What was found.
#[derive(Debug, Default)]
pub struct Glance {
    /// Another process uses these now.
    pub held: Vec<LockError>,
    /// What refuses a start.
    pub faults: Vec<DirFault>,
    /// Dirs that cannot be used, and without which a start goes on.
    pub left_out: Vec<DirFault>,
    found: Vec<(PathBuf, FoundLogDir)>,
}

impl Glance {
    /// Looks at all of them. `own` is what the process needs of the descriptors that it may have.
    pub fn at(config: &BrokerConfig, (own, limit): (u64, u64)) -> Self {
        let mut this = Self::default();
        let metadata = metadata_dir(config);
        let (mut usable, mut unusable) = (0, Vec::new());
        for dir in &config.storage.log_dirs {
            let path = absolute(dir);
            match this.take(&path) {
                Ok(()) => usable += 1,
                Err(fault) if metadata.as_deref() == Some(&*path) => this.faults.push(fault),
                Err(fault) => unusable.push(fault),
            }
        }
        if usable == 0 {
            this.faults.append(&mut unusable);
        }
        this.left_out = unusable;
        let is_apart =
            |dir: &PathBuf| !config.storage.log_dirs.iter().any(|log_dir| absolute(log_dir) == *dir);
        if let Some(dir) = metadata.filter(is_apart)
            && let Err(source) = look_writable(&dir)
        {
            this.faults.push(DirFault::Metadata { path: config.storage.metadata_file.clone(), source });
        }
        this.judge(config, (own, limit));
        this
    }

    /// Looks at one.
    ///
    /// # Errors
    /// It cannot be used. What is wrong in one that can be is noted.
    fn take(&mut self, path: &Path) -> Result<(), DirFault> {
        match DirLock::look(path) {
            Err(error @ LockError::Io { .. }) => return Err(error.into()),
            Err(error) => self.held.push(error),
            Ok(()) => {}
        }
        match FoundLogDir::glance(path) {
            Ok(found) => self.found.extend(found.map(|found| (path.to_owned(), found))),
            Err(error @ OpenError::Io { .. }) => return Err(BootError::from(error).into()),
            Err(error) => self.faults.push(BootError::from(error).into()),
        }
        Ok(())
    }

    /// What is wrong between them, and between them and the configuration.
    fn judge(&mut self, config: &BrokerConfig, (own, limit): (u64, u64)) {
        let found = std::mem::take(&mut self.found);
        let claims = Claims::new(found.iter().map(|(path, found)| (path.as_path(), found)));
        let partitions: Vec<FoundPartition> =
            found.iter().flat_map(|(_, found)| found.partitions.iter().cloned()).collect();
        let table = dirs::table(config);
        let judged = [
            told_apart(&partitions),
            whose(&claims, config),
            check_descriptors(partitions.len(), own, limit, &table),
        ];
        self.faults.extend(judged.into_iter().filter_map(Result::err).map(DirFault::from));
        let file = &config.storage.metadata_file;
        // An empty file would become a new store.
        let is_there = file
            .metadata()
            .map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |file| file.len() > 0);
        let is_known = config.zookeeper.is_some() || is_there;
        let holds = |found: &FoundLogDir| found.partitions.iter().any(|dir| dir.kind != FoundKind::Stray);
        let is_of_broker =
            |(_, found): &&(PathBuf, FoundLogDir)| found.meta_properties.is_some() && holds(found);
        if let Some((dir, _)) = found.iter().find(is_of_broker).filter(|_| !is_known) {
            self.faults.push(DirFault::NoMetadata { dir: dir.clone(), file: file.clone() });
        }
        self.found = found;
    }
}

/// Whether no partition is there twice, but for what a move has left.
fn told_apart(partitions: &[FoundPartition]) -> Result<(), BootError> {
    let replaced = moves::glance_at_replaced(partitions)?;
    dirs::check_twice(partitions, &replaced)
}

/// Whether all dirs are of one broker and cluster, and of the one that is configured.
fn whose(claims: &Claims<'_>, config: &BrokerConfig) -> Result<(), BootError> {
    let broker_id = claims.identify(config.identity.broker_id)?;
    claims.check(&Identity { broker_id, cluster_id: claims.cluster_id() })
}

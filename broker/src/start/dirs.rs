//! The log dirs of a start (storage.md 1.3, 8.1): locked before anything is opened, looked at all before one is changed,
//! then opened. One that cannot be used is out of service from the start if others can be, as in Kafka; what is wrong with
//! one that can be read refuses the start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use protocol::types::{BrokerId, TopicPartition};
use storage::io::{Runtime, heals};
use storage::lock::{DirLock, LockError};
use storage::log_dir::moves::{self, Replaced, SettleError};
use storage::log_dir::{FoundKind, FoundLogDir, FoundPartition, LogDir, OpenError, check_duplicates};
use storage::meta_properties::Identity;

use super::boot::{BootError, vouch};
use super::checkpoints::FoundInDir;
use crate::config::broker::BrokerConfig;
use crate::partition::lifecycle::LogHome;
use crate::partition::log_dirs::table::LogDirTable;

/// A log dir that the configuration names, absolute; without a lock it cannot be used.
#[derive(Clone, Debug)]
pub struct Slot {
    pub(super) path: Arc<Path>,
    pub(super) lock: Option<Arc<DirLock>>,
}

/// Locks the log dirs; makes those that are missing.
///
/// # Errors
/// One is in use; none can be used, or not the one that holds the metadata store, without which nothing goes.
pub fn lock(config: &BrokerConfig, table: &LogDirTable) -> Result<Vec<Slot>, LockError> {
    let metadata = metadata_dir(config);
    let (mut locked, mut refused) = (Vec::new(), None);
    for dir in &config.storage.log_dirs {
        let path: Arc<Path> = absolute(dir).into();
        let lock = match DirLock::acquire(&path) {
            Ok(lock) => Some(Arc::new(lock)),
            // A dir in use is not one that has failed.
            Err(error @ (LockError::Held { .. } | LockError::Unstable { .. })) => return Err(error),
            Err(error) if metadata.as_deref() == Some(&*path) => return Err(error),
            Err(error) => {
                refused = refused.or(Some(error));
                None
            }
        };
        locked.push(Slot { path, lock });
    }
    if locked.iter().all(|slot| slot.lock.is_none())
        && let Some(error) = refused
    {
        return Err(error);
    }
    for slot in locked.iter().filter(|slot| slot.lock.is_none()) {
        tracing::error!(dir = %slot.path.display(), "log directory cannot be used and is offline until a restart");
        table.set_offline(&slot.path);
    }
    Ok(locked)
}

pub(super) fn absolute(dir: &Path) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())
}

/// The directory of the embedded metadata store, if the metadata is there.
pub(super) fn metadata_dir(config: &BrokerConfig) -> Option<PathBuf> {
    let is_embedded = config.zookeeper.is_none();
    is_embedded.then(|| absolute(&config.storage.metadata_file).parent().map(Path::to_owned)).flatten()
}

/// The log dirs of a configuration, absolute.
pub fn table(config: &BrokerConfig) -> LogDirTable {
    LogDirTable::new(config.storage.log_dirs.iter().map(|dir| absolute(dir).into()))
}

/// What log dirs that were looked at say of whose they are.
#[derive(Debug)]
pub struct Claims<'a>(Vec<(&'a Path, &'a FoundLogDir)>);

impl<'a> Claims<'a> {
    /// Of these.
    pub fn new(dirs: impl Iterator<Item = (&'a Path, &'a FoundLogDir)>) -> Self {
        Self(dirs.collect())
    }

    /// The broker that they are of; `None` where they are nobody's.
    ///
    /// # Errors
    /// They are of several brokers or of another than this one, two have one id, or nobody knows whose the partitions are.
    pub fn identify(&self, configured: Option<BrokerId>) -> Result<Option<BrokerId>, BootError> {
        match (configured, self.broker_id()?) {
            (Some(configured), Some((found, dir))) if configured != found => {
                Err(BootError::BrokerId { configured, found, dir: dir.display().to_string() })
            }
            (Some(id), _) | (None, Some((id, _))) => Ok(Some(id)),
            // All directories in a log dir are partitions' (S-1).
            (None, None) => match self.with_partitions() {
                Some(dir) => Err(BootError::NoIdentity { dir: dir.display().to_string() }),
                None => Ok(None),
            },
        }
    }

    /// A dir that names a broker, which is that of all others that name one.
    fn broker_id(&self) -> Result<Option<(BrokerId, &Path)>, BootError> {
        let mut ids = BTreeMap::new();
        let mut first: Option<(BrokerId, &Path)> = None;
        for (path, found) in &self.0 {
            let Some(meta) = &found.meta_properties else { continue };
            if let Some(id) = meta.directory_id
                && let Some(other) = ids.insert(id, *path)
            {
                let (one, other) = (other.display().to_string(), path.display().to_string());
                return Err(BootError::SameDirectoryId { one, other });
            }
            let Some(id) = meta.broker_id else { continue };
            match first {
                None => first = Some((id, *path)),
                Some((known, one)) if known != id => {
                    let (one, other) = (one.display().to_string(), path.display().to_string());
                    return Err(BootError::SeveralBrokers { one, known, other, found: id });
                }
                Some(_) => {}
            }
        }
        Ok(first)
    }

    /// The cluster that they say they are of.
    pub fn cluster_id(&self) -> Option<String> {
        let mut metas = self.0.iter().filter_map(|(_, found)| found.meta_properties.as_ref());
        metas.find_map(|meta| meta.cluster_id.clone())
    }

    /// A dir with partitions.
    fn with_partitions(&self) -> Option<&Path> {
        let holds = |found: &FoundLogDir| !found.partitions.is_empty() || !found.doomed.is_empty();
        self.0.iter().find(|(_, found)| holds(found)).map(|(path, _)| *path)
    }

    /// Whether all are of this broker and cluster, as far as they say.
    ///
    /// # Errors
    /// One is not.
    pub fn check(&self, identity: &Identity) -> Result<(), BootError> {
        for (path, found) in &self.0 {
            if let Some(meta) = &found.meta_properties {
                let path = path.to_path_buf();
                meta.check(identity).map_err(|error| OpenError::Identity { path, error })?;
            }
        }
        Ok(())
    }
}

/// Whether no partition is there twice, but for directories that a move has replaced.
///
/// # Errors
/// The first that is.
pub fn check_twice(all: &[FoundPartition], replaced: &[Replaced]) -> Result<(), BootError> {
    let is_replaced = |dir: &&FoundPartition| replaced.iter().any(|gone| gone.path == dir.path);
    let twice = check_duplicates(all.iter().filter(|dir| !is_replaced(dir)));
    twice.map_err(|twice| BootError::LogDir(OpenError::Duplicate(twice)))
}

/// A log dir that was looked at.
pub struct Looked {
    path: Arc<Path>,
    lock: Arc<DirLock>,
    found: FoundLogDir,
}

/// A log dir that is open.
pub struct OpenedDir<R: Runtime> {
    /// The dir.
    pub dir: Rc<LogDir<R>>,
    /// What it held.
    pub found: FoundInDir,
    /// Its lock.
    pub lock: Arc<DirLock>,
}

/// What was found in all log dirs, before anything is changed.
pub struct Found {
    looked: Vec<Looked>,
    table: LogDirTable,
    metadata: Option<PathBuf>,
    replaced: Vec<Replaced>,
}

impl Found {
    /// Looks at all of them.
    ///
    /// # Errors
    /// See [`BootError`]: nothing was changed.
    pub async fn look<R: Runtime>(
        runtime: &R,
        slots: &[Slot],
        table: &LogDirTable,
        config: &BrokerConfig,
    ) -> Result<Self, BootError> {
        let (table, metadata) = (table.clone(), metadata_dir(config));
        let mut this = Self { looked: Vec::new(), table, metadata, replaced: Vec::new() };
        for Slot { path, lock } in slots {
            let Some(lock) = lock else { continue };
            match FoundLogDir::look(runtime, path).await {
                Ok(found) => this.looked.push(Looked { path: path.clone(), lock: lock.clone(), found }),
                Err(error) => this.go_without(path, lock, error)?,
            }
        }
        let all: Vec<FoundPartition> =
            this.looked.iter().flat_map(|looked| looked.found.partitions.iter().cloned()).collect();
        this.replaced = moves::find_replaced(runtime, &all).await?;
        check_twice(&all, &this.replaced)?;
        Ok(this)
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> usize {
        self.looked.iter().map(|looked| looked.found.partitions.len()).sum()
    }

    /// Whose they are.
    pub fn claims(&self) -> Claims<'_> {
        Claims::new(self.looked.iter().map(|looked| (&*looked.path, &looked.found)))
    }

    /// Opens them, in the name of this broker.
    ///
    /// # Errors
    /// See [`BootError`].
    pub async fn open<R: Runtime>(
        self,
        runtime: &R,
        identity: &Identity,
        removal_delay_ms: i64,
    ) -> Result<(Vec<OpenedDir<R>>, Vec<LogHome>), BootError> {
        self.claims().check(identity)?;
        let Self { looked, table, metadata, replaced } = self;
        let without = Self { looked: Vec::new(), table, metadata, replaced: Vec::new() };
        let mut opened = Vec::new();
        for Looked { path, lock, found } in looked {
            if found.is_clean {
                // Before the mark goes: after it, somebody has to say that the logs are in order.
                vouch(&lock);
            }
            match LogDir::open_found(runtime.clone(), found, identity, removal_delay_ms).await {
                Ok(dir) => opened.push((path, lock, dir)),
                Err(error) => without.go_without(&path, &lock, error)?,
            }
        }
        for (_, _, dir) in &mut opened {
            for gone in replaced.iter().filter(|gone| gone.path.starts_with(dir.dir.path())) {
                tracing::warn!(dir = %gone.path.display(), "the move of this partition to another log directory is finished");
                dir.dir.remove_dir(&gone.path, &gone.partition, removal_delay_ms).await?;
                dir.partitions.retain(|found| found.path != gone.path);
            }
        }
        let current: BTreeSet<TopicPartition> = opened
            .iter()
            .flat_map(|(.., dir)| &dir.partitions)
            .filter(|found| found.kind == FoundKind::Current)
            .map(|found| found.partition.clone())
            .collect();
        let (mut dirs, mut homes) = (Vec::new(), Vec::new());
        for (path, lock, mut dir) in opened {
            if !without.table.has_offline() {
                let is_alone = |found: &FoundPartition| {
                    found.kind == FoundKind::Future && !current.contains(&found.partition)
                };
                for alone in dir.partitions.iter().filter(|found| is_alone(found)) {
                    let kept = moves::set_copy_aside(runtime, &path, &alone.path, &alone.partition).await?;
                    tracing::warn!(?kept, partition = %alone.partition, "copy of a log that is not there set aside");
                }
                dir.partitions.retain(|found| !is_alone(found));
            }
            tell_of(&dir.malformed, &path, dir.dir.was_clean(), &lock);
            let found = FoundInDir::of(&dir);
            for _ in dir.partitions.iter().filter(|found| found.kind != FoundKind::Stray) {
                without.table.count(&path);
            }
            homes.push(LogHome {
                dir: path,
                clean: dir.dir.was_clean(),
                lock: Some(lock.clone()),
                checkpoints: Arc::new(found.checkpoints.clone()),
                futures: Arc::new(found.futures.clone()),
            });
            dirs.push(OpenedDir { dir: dir.dir, found, lock });
        }
        Ok((dirs, homes))
    }

    /// A dir that cannot be read or written is left out, if there is another one and it need not be there.
    fn go_without(&self, path: &Arc<Path>, lock: &DirLock, error: OpenError) -> Result<(), BootError> {
        let has_failed = matches!(&error, OpenError::Io { source, .. } if !heals(source));
        if !has_failed {
            return Err(error.into());
        }
        // The disk does not give what it should: nobody vouches for the logs on it any more.
        if let Err(error) = lock.disavow() {
            tracing::error!(%error, "the lock file cannot be emptied: remove it before the next start, which would not check the logs");
        }
        let others = self.table.live().filter(|dir| *dir != path).count();
        if others == 0 || self.metadata.as_deref() == Some(&**path) {
            return Err(error.into());
        }
        tracing::error!(dir = %path.display(), %error, "log directory is offline until a restart");
        self.table.set_offline(path);
        Ok(())
    }
}

fn tell_of(
    malformed: &[storage::log_dir::MalformedCheckpoint],
    path: &Path,
    was_clean: bool,
    lock: &DirLock,
) {
    if !was_clean && lock.is_vouched() {
        tracing::info!(dir = %path.display(),
            "the last process was killed, and the kernel holds what it wrote: checksums are not computed"
        );
    }
    for malformed in malformed {
        tracing::warn!(dir = %path.display(), file = malformed.file.name(), error = %malformed.error, "checkpoint taken as empty");
    }
}

impl From<SettleError> for BootError {
    fn from(error: SettleError) -> Self {
        match error {
            SettleError::Duplicate(twice) => Self::LogDir(OpenError::Duplicate(twice)),
            SettleError::Io { path, source } => Self::LogDir(OpenError::Io { path, source }),
        }
    }
}

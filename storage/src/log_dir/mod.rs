//! One entry of `log.dirs` (storage.md 1, 8.1, 8.3): opened in the order that makes a crash count as unclean, its
//! partition directories listed, created and removed, its checkpoints and the clean-shutdown marker written. Knows
//! neither what is in a log nor who leads it. Called at start and stop by the broker, and by whoever creates or deletes
//! replicas.
//!
//! The lock is the caller's: it holds a [`crate::lock::DirLock`] as long as a dir on real disks is served.

mod checkpoints;
pub mod moves;
mod open;
mod removal;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use protocol::types::{TopicName, TopicPartition};

use self::checkpoints::CheckpointWriter;
use self::removal::Removals;
use crate::checkpoint::{OffsetCheckpoint, replace_file};
use crate::io::{DirDone, DirOp, Runtime, heals};
use crate::meta_properties::MetaProperties;
use crate::names::{self, CLEAN_SHUTDOWN};

pub use self::checkpoints::CheckpointWriteError;
pub use self::open::{FoundLogDir, MalformedCheckpoint, OpenError, OpenedLogDir};

/// The offset checkpoints of a log dir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointFile {
    /// Below which offset a log is durable.
    RecoveryPoint,
    /// Where a log starts, where that is above its first segment's base.
    LogStart,
    /// High watermarks.
    HighWatermark,
    /// First dirty offsets of compacted logs.
    Cleaner,
}

impl CheckpointFile {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RecoveryPoint, Self::LogStart, Self::HighWatermark, Self::Cleaner];

    /// The file's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RecoveryPoint => "recovery-point-offset-checkpoint",
            Self::LogStart => "log-start-offset-checkpoint",
            Self::HighWatermark => "replication-offset-checkpoint",
            Self::Cleaner => "cleaner-offset-checkpoint",
        }
    }
}

/// What a found directory is for; those that wait for their removal are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FoundKind {
    /// A replica in service.
    Current,
    /// The target of a move between log dirs.
    Future,
    /// A replica that was found not to be ours: kept, never served.
    Stray,
}

/// A partition directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPartition {
    /// Whose it is.
    pub partition: TopicPartition,
    /// What it is for.
    pub kind: FoundKind,
    /// Where it is.
    pub path: PathBuf,
}

/// Two directories claim one partition; the operator has to delete one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{first} and {second} both hold {partition}: delete one of them")]
pub struct DuplicatePartition {
    /// The partition.
    pub partition: TopicPartition,
    /// One directory.
    pub first: PathBuf,
    /// The other.
    pub second: PathBuf,
}

/// Whether no partition was found twice, over all log dirs of a broker (storage.md 1.1). Strays do not count.
///
/// # Errors
/// The first pair.
pub fn check_duplicates<'a>(
    found: impl IntoIterator<Item = &'a FoundPartition>,
) -> Result<(), DuplicatePartition> {
    let mut seen: BTreeMap<(&TopicPartition, FoundKind), &Path> = BTreeMap::new();
    for dir in found {
        if dir.kind == FoundKind::Stray {
            continue;
        }
        if let Some(first) = seen.insert((&dir.partition, dir.kind), &dir.path) {
            return Err(DuplicatePartition {
                partition: dir.partition.clone(),
                first: first.to_owned(),
                second: dir.path.clone(),
            });
        }
    }
    Ok(())
}

/// Room on the file system of a log dir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of the file system.
    pub total_bytes: u64,
    /// Bytes that we may still use.
    pub usable_bytes: u64,
}

/// How far the logs of a dir got before the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// Every log was loaded.
    Finished,
    /// The stop came before that.
    Interrupted,
}

/// Why an operation on the names in a log dir failed. `StorageFull` aside, the caller takes the dir offline.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// The topic's name is none that a directory may have.
    #[error("{0:?} is not a legal topic name")]
    IllegalTopic(TopicName),
    /// What the operating system says.
    #[error("{path}: {source}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

/// Why a clean stop could not be written down; the dir then counts as uncleanly stopped.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// A checkpoint could not be written.
    #[error("{}: {source}", file.name())]
    Checkpoint {
        /// Which.
        file: CheckpointFile,
        /// Why.
        source: CheckpointWriteError,
    },
    /// The marker could not be written.
    #[error("clean-shutdown marker: {0}")]
    Marker(#[source] io::Error),
}

impl CloseError {
    /// Whether all that was missing is room, or what the system lacks for a while.
    pub fn heals(&self) -> bool {
        match self {
            Self::Checkpoint { source, .. } => matches!(source, CheckpointWriteError::Full(_)),
            Self::Marker(error) => heals(error),
        }
    }
}

/// Renames the directory of a replica in the log dir `home` so that it counts as deleted, durably. Answers where it is
/// until it is removed, after `file.delete.delay.ms` or at the next start; `None` if there was none. The caller has ended
/// the log and rewrites the checkpoints without it. For whoever does not own the dir: a replica's shard.
///
/// # Errors
/// What the operating system says; the directory has either name.
pub async fn rename_away<R: Runtime>(
    runtime: &R,
    home: &Path,
    from: &Path,
    partition: &TopicPartition,
) -> io::Result<Option<PathBuf>> {
    let to = home.join(names::delete_dir(partition, random(runtime)));
    Ok(rename(runtime, home, from, &to).await?.then_some(to))
}

/// Renames the directory of a replica in the log dir `home` that is of a topic which metadata does not know, or that
/// metadata gives to others, durably: it is kept and never served. Answers where it is now; `None` if there was none.
///
/// # Errors
/// What the operating system says; the directory has either name.
pub async fn set_aside<R: Runtime>(
    runtime: &R,
    home: &Path,
    partition: &TopicPartition,
) -> io::Result<Option<PathBuf>> {
    let from = home.join(names::partition_dir(partition));
    let to = home.join(names::stray_dir(partition, random(runtime)));
    Ok(rename(runtime, home, &from, &to).await?.then_some(to))
}

/// Renames something in `home`, durably; `false` if it is not there.
async fn rename<R: Runtime>(runtime: &R, home: &Path, from: &Path, to: &Path) -> io::Result<bool> {
    match runtime.dir(DirOp::Rename { from: from.to_owned(), to: to.to_owned() }).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        done => done?,
    };
    runtime.dir(DirOp::Sync(home.to_owned())).await.map(|_| true)
}

fn random<R: Runtime>(runtime: &R) -> u128 {
    (u128::from(runtime.random()) << 64) | u128::from(runtime.random())
}

/// An open log dir. Belongs to one shard; the others send their entries and wishes there (S-8).
pub struct LogDir<R: Runtime> {
    runtime: R,
    path: PathBuf,
    meta_properties: MetaProperties,
    was_clean: bool,
    checkpoints: BTreeMap<CheckpointFile, CheckpointWriter<R>>,
    removals: Removals<R>,
    is_offline: Cell<bool>,
}

impl<R: Runtime> LogDir<R> {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub const fn meta_properties(&self) -> &MetaProperties {
        &self.meta_properties
    }

    /// Whether the last stop was clean.
    pub const fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// Where the directory of a replica in service is.
    pub fn partition_path(&self, partition: &TopicPartition) -> PathBuf {
        self.path.join(names::partition_dir(partition))
    }

    /// Replaces a checkpoint by the entries of all shards. Writes of one file never overlap; of several that wait, the
    /// latest stands for all. Dropping the future does not stop the write.
    ///
    /// # Errors
    /// Why the file has its old content, or one of a later call.
    pub async fn write_checkpoint(
        &self,
        file: CheckpointFile,
        entries: &OffsetCheckpoint,
    ) -> Result<(), CheckpointWriteError> {
        match self.checkpoints.get(&file) {
            Some(_) if self.is_offline.get() => Err(CheckpointWriteError::Offline),
            Some(writer) => writer.write(Bytes::from(entries.to_text())).await,
            None => Ok(()),
        }
    }

    /// Writes the last checkpoints and then the clean-shutdown marker (S-7). The caller has flushed and closed every log
    /// of the dir without an error. Answers whether there is a marker: none if the dir has failed, or was unclean at start and was
    /// not loaded to its end (KAFKA-15375), as then some log was not recovered.
    ///
    /// # Errors
    /// What could not be written; there is no marker then.
    pub async fn mark_clean(
        &self,
        recovery_points: &OffsetCheckpoint,
        log_start_offsets: &OffsetCheckpoint,
        loading: Loading,
    ) -> Result<bool, CloseError> {
        if self.is_offline.get() {
            return Ok(false);
        }
        for (file, entries) in
            [(CheckpointFile::RecoveryPoint, recovery_points), (CheckpointFile::LogStart, log_start_offsets)]
        {
            let written = self.write_checkpoint(file, entries).await;
            written.map_err(|source| CloseError::Checkpoint { file, source })?;
        }
        if !self.was_clean && loading == Loading::Interrupted {
            return Ok(false);
        }
        let marker = crate::clean_shutdown::print(crate::clean_shutdown::NO_EPOCH);
        let path = self.path.join(CLEAN_SHUTDOWN);
        replace_file(&self.runtime, &path, Bytes::from(marker)).await.map_err(CloseError::Marker)?;
        Ok(true)
    }

    /// Takes the dir out of service: it has failed. Nothing is written in it any more, no checkpoint and no marker. Sticky.
    pub fn set_offline(&self) {
        self.is_offline.set(true);
    }

    /// Creates the directories of new replicas, durably and with one sync for all; existing ones are fine. Answers
    /// where they are, in the same order.
    ///
    /// # Errors
    /// Why not; some of them may exist then.
    pub async fn create_partitions(&self, partitions: &[TopicPartition]) -> Result<Vec<PathBuf>, DirError> {
        for partition in partitions {
            if !TopicName::is_legal(partition.topic.get()) {
                return Err(DirError::IllegalTopic(partition.topic.clone()));
            }
        }
        let mut paths = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let path = self.partition_path(partition);
            self.do_dir(DirOp::CreateAll(path.clone())).await?;
            paths.push(path);
        }
        if !paths.is_empty() {
            self.do_dir(DirOp::Sync(self.path.clone())).await?;
        }
        Ok(paths)
    }

    /// Renames the directory of a replica in service so that it counts as deleted, durably, and removes it after
    /// `file.delete.delay.ms`, or at the next start. Answers whether there was one. The caller rewrites the checkpoints
    /// without the partition.
    ///
    /// # Errors
    /// Why the directory is still there.
    pub async fn remove_partition(
        &self,
        partition: &TopicPartition,
        delay_ms: i64,
    ) -> Result<bool, DirError> {
        self.remove_dir(&self.partition_path(partition), partition, delay_ms).await
    }

    /// Like [`Self::remove_partition`], for a directory that was found under another name (`-future`, `-stray`).
    ///
    /// # Errors
    /// Why the directory is still there.
    pub async fn remove_dir(
        &self,
        path: &Path,
        partition: &TopicPartition,
        delay_ms: i64,
    ) -> Result<bool, DirError> {
        let renamed = rename_away(&self.runtime, &self.path, path, partition).await;
        match renamed.map_err(|source| self.failed(source))? {
            Some(doomed) => {
                self.removals.push(doomed, delay_ms);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Directories that wait for their removal.
    pub fn removals_pending(&self) -> usize {
        self.removals.len()
    }

    /// Room on the file system.
    ///
    /// # Errors
    /// What the operating system says.
    pub async fn space(&self) -> Result<Space, DirError> {
        match self.do_dir(DirOp::Space(self.path.clone())).await? {
            DirDone::Space { total, usable } => Ok(Space { total_bytes: total, usable_bytes: usable }),
            _ => Err(self.failed(io::ErrorKind::InvalidData.into())),
        }
    }

    async fn do_dir(&self, op: DirOp) -> Result<DirDone, DirError> {
        self.runtime.dir(op).await.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> DirError {
        DirError::Io { path: self.path.clone(), source }
    }

    fn new(runtime: R, path: PathBuf, meta_properties: MetaProperties, was_clean: bool) -> Rc<Self> {
        let writer =
            |file: CheckpointFile| (file, CheckpointWriter::new(runtime.clone(), path.join(file.name())));
        let checkpoints = CheckpointFile::ALL.into_iter().map(writer).collect();
        let removals = Removals::new(runtime.clone());
        let is_offline = Cell::new(false);
        Rc::new(Self { runtime, path, meta_properties, was_clean, checkpoints, removals, is_offline })
    }
}

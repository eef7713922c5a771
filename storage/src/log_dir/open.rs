//! Opening a log dir (storage.md 8.1), in the order that matters: whose is it, was the stop clean, forget that it was
//! (S-6), read the checkpoints, list the partitions.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use protocol::types::BrokerEpoch;

use super::{CheckpointFile, DuplicatePartition, FoundKind, FoundPartition, LogDir, check_duplicates};
use crate::checkpoint::{CheckpointError, OffsetCheckpoint, read_file, replace_file, sync_parent};
use crate::io::{DirDone, DirOp, Runtime};
use crate::meta_properties::{Identity, IdentityError, MetaProperties, MetaPropertiesError};
use crate::names::{
    CLEAN_SHUTDOWN, ForeignDir, META_PROPERTIES, PartitionDirKind, PartitionDirName, SKIPPED_DIRS,
};

const META_PROPERTIES_BYTES_MAX: u64 = 1 << 16;
const MARKER_BYTES_MAX: u64 = 1 << 16;
/// A million partitions of long names.
const CHECKPOINT_BYTES_MAX: u64 = 1 << 28;

/// Why a log dir cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory in it is not a partition's; Kafka would refuse to start on it too (S-1).
    #[error("{path} does not belong into a log dir: {why}")]
    ForeignDir {
        /// The directory.
        path: PathBuf,
        /// What is wrong with its name.
        why: ForeignDir,
    },
    /// A partition is there twice.
    #[error(transparent)]
    Duplicate(DuplicatePartition),
    /// Its `meta.properties` is malformed.
    #[error("{path}: {error}")]
    MetaProperties {
        /// The file.
        path: PathBuf,
        /// What is malformed.
        error: MetaPropertiesError,
    },
    /// It is not this broker's.
    #[error("{path}: {error}")]
    Identity {
        /// The dir.
        path: PathBuf,
        /// Whose it is.
        error: IdentityError,
    },
    /// It cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

/// A checkpoint that was taken as empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedCheckpoint {
    /// Which.
    pub file: CheckpointFile,
    /// What is malformed.
    pub error: CheckpointError,
}

/// A log dir that was just opened.
pub struct OpenedLogDir<R: Runtime> {
    /// The dir.
    pub dir: Rc<LogDir<R>>,
    /// Broker epoch in the clean-shutdown marker, if there was one.
    pub marker_epoch: Option<BrokerEpoch>,
    /// The checkpoints; a missing or malformed one is empty.
    pub checkpoints: BTreeMap<CheckpointFile, OffsetCheckpoint>,
    /// Checkpoints that were malformed: the caller says so loudly.
    pub malformed: Vec<MalformedCheckpoint>,
    /// The partitions, by name. Those that wait for their removal are queued for it.
    pub partitions: Vec<FoundPartition>,
}

impl<R: Runtime> OpenedLogDir<R> {
    /// The entries of a checkpoint.
    pub fn checkpoint(&self, file: CheckpointFile) -> OffsetCheckpoint {
        self.checkpoints.get(&file).cloned().unwrap_or_default()
    }
}

impl<R: Runtime> LogDir<R> {
    /// Opens a log dir, which is created if it is missing. From here until [`LogDir::mark_clean`] a stop counts as
    /// unclean. `removal_delay_ms` is `file.delete.delay.ms`, for directories whose removal was due before.
    ///
    /// # Errors
    /// Why the dir cannot be served. Nothing in it was changed then, except that it may have been created or its
    /// marker removed.
    pub async fn open(
        runtime: R,
        path: &Path,
        identity: &Identity,
        removal_delay_ms: i64,
    ) -> Result<OpenedLogDir<R>, OpenError> {
        let found = FoundLogDir::look(&runtime, path).await?;
        Self::open_found(runtime, found, identity, removal_delay_ms).await
    }

    /// The same for a dir that was looked at.
    ///
    /// # Errors
    /// See [`LogDir::open`].
    pub async fn open_found(
        runtime: R,
        found: FoundLogDir,
        identity: &Identity,
        removal_delay_ms: i64,
    ) -> Result<OpenedLogDir<R>, OpenError> {
        let FoundLogDir { path, meta_properties, partitions, doomed, is_clean: _ } = found;
        let meta = own(&runtime, &path, meta_properties, identity).await?;
        // The names are judged before the marker goes: what has to be refused is refused with nothing changed.
        check_duplicates(&partitions).map_err(OpenError::Duplicate)?;
        let marker = take_marker(&runtime, &path).await;
        let marker = marker.map_err(|source| OpenError::Io { path: path.join(CLEAN_SHUTDOWN), source })?;
        let (checkpoints, malformed) = read_checkpoints(&runtime, &path).await?;
        let dir = Self::new(runtime, path, meta, marker.is_some());
        for doomed in doomed {
            dir.removals.push(doomed, removal_delay_ms);
        }
        let marker_epoch = marker.as_deref().and_then(crate::clean_shutdown::parse);
        Ok(OpenedLogDir { dir, marker_epoch, checkpoints, malformed, partitions })
    }
}

/// A log dir that was looked at and is not open yet: a broker without a configured id finds out here who it is.
#[derive(Debug)]
pub struct FoundLogDir {
    path: PathBuf,
    /// Whose it is; `None` if nobody says so.
    pub meta_properties: Option<MetaProperties>,
    /// The partitions, by name.
    pub partitions: Vec<FoundPartition>,
    /// Directories of partitions that wait for their removal.
    pub doomed: Vec<PathBuf>,
    /// The mark of a clean stop is there; opening the dir removes it.
    pub is_clean: bool,
}

impl FoundLogDir {
    /// The same before there is a runtime, and without making anything: `None` of a dir that is missing.
    ///
    /// # Errors
    /// See [`FoundLogDir::look`].
    pub fn glance(path: &Path) -> Result<Option<Self>, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let entries = match glance_at_entries(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(failed)?,
        };
        let file = path.join(META_PROPERTIES);
        let content = glance_at_file(&file, META_PROPERTIES_BYTES_MAX)
            .map_err(|source| OpenError::Io { path: file.clone(), source })?;
        let meta_properties = content.map(|content| meta_properties_of(file, &content)).transpose()?;
        let Listed { partitions, doomed, is_clean } = sorted(path, entries)?;
        Ok(Some(Self { path: path.to_owned(), meta_properties, partitions, doomed, is_clean }))
    }

    /// Looks at a log dir, which is created if it is missing.
    ///
    /// # Errors
    /// Why the dir cannot be served. Nothing in it was changed.
    pub async fn look<R: Runtime>(runtime: &R, path: &Path) -> Result<Self, OpenError> {
        let created = create_durable(runtime, path).await;
        created.map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        let meta_properties = read_meta_properties(runtime, path).await?;
        let Listed { partitions, doomed, is_clean } = list(runtime, path).await?;
        Ok(Self { path: path.to_owned(), meta_properties, partitions, doomed, is_clean })
    }
}

/// Creates a directory and its missing parents, from the top down, and makes the name of each durable before there is anything
/// in it. The lowest one that is there may be of a process that died over it, unless it is a log dir that says whose it is.
async fn create_durable<R: Runtime>(runtime: &R, path: &Path) -> io::Result<()> {
    let (mut lowest, mut missing) = (None, Vec::new());
    for ancestor in path.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
        if exists(runtime, ancestor).await? {
            lowest = Some(ancestor);
            break;
        }
        missing.push(ancestor);
    }
    if missing.is_empty() && exists(runtime, &path.join(META_PROPERTIES)).await? {
        return Ok(());
    }
    let there = lowest.filter(|dir| dir.parent().is_some()).into_iter().map(|dir| (dir, true));
    for (dir, is_there) in there.chain(missing.into_iter().rev().map(|dir| (dir, false))) {
        if !is_there {
            runtime.dir(DirOp::CreateAll(dir.to_owned())).await?;
        }
        match sync_parent(runtime, dir).await {
            // Where we may not look we have created nothing.
            Err(error) if is_there && error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

async fn exists<R: Runtime>(runtime: &R, path: &Path) -> io::Result<bool> {
    match runtime.dir(DirOp::Stat(path.to_owned())).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads `meta.properties`; a missing one is `None`.
async fn read_meta_properties<R: Runtime>(
    runtime: &R,
    log_dir: &Path,
) -> Result<Option<MetaProperties>, OpenError> {
    let path = log_dir.join(META_PROPERTIES);
    let content = match read_file(runtime, &path, META_PROPERTIES_BYTES_MAX).await {
        Ok(Some(content)) => content,
        Ok(None) => return Ok(None),
        Err(source) => return Err(OpenError::Io { path, source }),
    };
    meta_properties_of(path, &content).map(Some)
}

fn meta_properties_of(path: PathBuf, content: &[u8]) -> Result<MetaProperties, OpenError> {
    MetaProperties::parse(content).map_err(|error| OpenError::MetaProperties { path, error })
}

/// The entries of a directory, as the runtime lists them.
#[allow(clippy::disallowed_methods, reason = "before there is a runtime")]
fn glance_at_entries(dir: &Path) -> io::Result<Vec<(String, bool)>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        match std::fs::metadata(entry.path()) {
            Ok(found) => entries.push((entry.file_name().to_string_lossy().into_owned(), found.is_dir())),
            // Unlinked between the two calls.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    entries.sort();
    Ok(entries)
}

/// The content of a small file; `None` if there is none.
#[allow(clippy::disallowed_methods, reason = "before there is a runtime")]
fn glance_at_file(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut content = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut content)?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Some(content))
}

/// Compares `meta.properties` with who we are, and writes what it lacks (S-3, S-4).
async fn own<R: Runtime>(
    runtime: &R,
    dir: &Path,
    found: Option<MetaProperties>,
    identity: &Identity,
) -> Result<MetaProperties, OpenError> {
    if let Some(meta) = &found {
        let foreign = |error| OpenError::Identity { path: dir.to_owned(), error };
        meta.check(identity).map_err(foreign)?;
    }
    let meta = found.clone().unwrap_or_else(|| MetaProperties::new(None, None)).completed(identity);
    if found.as_ref() != Some(&meta) {
        let path = dir.join(META_PROPERTIES);
        let written = replace_file(runtime, &path, Bytes::from(meta.to_text())).await;
        written.map_err(|source| OpenError::Io { path, source })?;
    }
    Ok(meta)
}

/// Reads the clean-shutdown marker and removes it, durably; `None` if the last stop was not clean. One that is too large
/// to be one is a marker all the same. With that the names of all partitions are durable that were found: whoever created
/// them may have died before he had seen to it, and what is acknowledged from now on lies in them (S-34).
async fn take_marker<R: Runtime>(runtime: &R, dir: &Path) -> io::Result<Option<Bytes>> {
    let path = dir.join(CLEAN_SHUTDOWN);
    let content = match read_file(runtime, &path, MARKER_BYTES_MAX).await {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Some(Bytes::new()),
        Err(error) => return Err(error),
    };
    if content.is_some() {
        runtime.dir(DirOp::Unlink(path)).await?;
    }
    runtime.dir(DirOp::Sync(dir.to_owned())).await?;
    Ok(content)
}

type Checkpoints = (BTreeMap<CheckpointFile, OffsetCheckpoint>, Vec<MalformedCheckpoint>);

/// A malformed checkpoint only makes us recover more than we had to, so it counts as empty; one that the disk does not
/// give us takes the dir offline (storage.md 8.1).
async fn read_checkpoints<R: Runtime>(runtime: &R, dir: &Path) -> Result<Checkpoints, OpenError> {
    let (mut checkpoints, mut malformed) = (BTreeMap::new(), Vec::new());
    for file in CheckpointFile::ALL {
        let path = dir.join(file.name());
        let content = match read_file(runtime, &path, CHECKPOINT_BYTES_MAX).await {
            Ok(content) => content.unwrap_or_default(),
            Err(source) => return Err(OpenError::Io { path, source }),
        };
        let entries = OffsetCheckpoint::parse(&content).unwrap_or_else(|error| {
            malformed.push(MalformedCheckpoint { file, error });
            OffsetCheckpoint::default()
        });
        checkpoints.insert(file, entries);
    }
    Ok((checkpoints, malformed))
}

struct Listed {
    partitions: Vec<FoundPartition>,
    doomed: Vec<PathBuf>,
    is_clean: bool,
}

async fn list<R: Runtime>(runtime: &R, dir: &Path) -> Result<Listed, OpenError> {
    let failed = |source| OpenError::Io { path: dir.to_owned(), source };
    let DirDone::Entries(entries) = runtime.dir(DirOp::List(dir.to_owned())).await.map_err(failed)? else {
        return Err(failed(io::ErrorKind::InvalidData.into()));
    };
    sorted(dir, entries.into_iter().map(|entry| (entry.name, entry.is_dir)))
}

/// What the names in a log dir mean, each with whether it is a directory's.
fn sorted(dir: &Path, entries: impl IntoIterator<Item = (String, bool)>) -> Result<Listed, OpenError> {
    let mut listed = Listed { partitions: Vec::new(), doomed: Vec::new(), is_clean: false };
    for (name, is_dir) in entries {
        listed.is_clean |= !is_dir && name == CLEAN_SHUTDOWN;
        if !is_dir || SKIPPED_DIRS.contains(&name.as_str()) {
            continue;
        }
        let path = dir.join(&name);
        let name = match PartitionDirName::parse(&name) {
            Ok(name) => name,
            Err(why) => return Err(OpenError::ForeignDir { path, why }),
        };
        let kind = match name.kind {
            PartitionDirKind::Delete => {
                listed.doomed.push(path);
                continue;
            }
            PartitionDirKind::Current => FoundKind::Current,
            PartitionDirKind::Future => FoundKind::Future,
            PartitionDirKind::Stray => FoundKind::Stray,
        };
        listed.partitions.push(FoundPartition { partition: name.partition, kind, path });
    }
    Ok(listed)
}

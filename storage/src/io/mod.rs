//! The seam between what decides and what touches the machine: clock, tasks, files and directories as a
//! generic parameter. Two implementations: [`glommio`] (real) and [`sim`] (deterministic, with torn writes, lost
//! syncs and full disks). `broker::shard::ShardRuntime` extends it with mailboxes and sockets.
//!
//! No future here needs `Send`: everything runs on the shard that created it.

pub mod cgroup;
pub mod glommio;
mod pace;
pub mod sim;

use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use protocol::types::MonoTime;

/// The most that [`File::write_now`] writes: about 100 µs.
pub const WRITE_NOW_BYTES_MAX: usize = 256 << 10;

/// Which task queue a task belongs to. Shares divide the CPU when several queues are runnable; latency is bounded by
/// short slices and [`Runtime::turn`], not by shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Connections, appends, fetches and what answers them.
    Request,
    /// Traffic between brokers and with the controller.
    Control,
    /// Retention, recovery, checkpoints: everything that can wait.
    Background,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// For reading; the file must exist.
    Read,
    /// For reading and writing; the file must exist and keeps its content.
    Existing,
    /// For reading and writing; created if missing, keeps its content.
    Create,
    /// For reading and writing; created if missing, emptied otherwise.
    CreateEmpty,
}

/// An operation on names rather than on an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirOp {
    /// Lists a directory, sorted by name.
    List(PathBuf),
    /// Creates a directory and its missing parents; existing is fine.
    CreateAll(PathBuf),
    /// Renames a file or directory, replacing a file that has the new name.
    Rename {
        /// The name it has.
        from: PathBuf,
        /// The name it gets.
        to: PathBuf,
    },
    /// Removes a file; a missing one is fine.
    Unlink(PathBuf),
    /// Removes a directory and everything in it; a missing one is fine.
    RemoveAll(PathBuf),
    /// Makes the names of a directory durable (fsync of the directory).
    Sync(PathBuf),
    /// Size and modification time of a file; `NotFound` if there is none.
    Stat(PathBuf),
    /// Sets the modification time of a file, in milliseconds since 1970.
    SetModified {
        /// The file.
        path: PathBuf,
        /// The time it gets.
        modified_ms: i64,
    },
    /// Total and usable bytes of the file system that holds the path.
    Space(PathBuf),
}

impl DirOp {
    /// What it is about; of a renaming, the name that is there now.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::List(path)
            | Self::CreateAll(path)
            | Self::Rename { from: path, .. }
            | Self::Unlink(path)
            | Self::RemoveAll(path)
            | Self::Sync(path)
            | Self::Stat(path)
            | Self::SetModified { path, .. }
            | Self::Space(path) => path,
        }
    }

    /// What it does, in one word.
    pub(crate) const fn verb(&self) -> &'static str {
        match self {
            Self::List(_) => "list",
            Self::CreateAll(_) => "create",
            Self::Rename { .. } => "rename",
            Self::Unlink(_) | Self::RemoveAll(_) => "remove",
            Self::Sync(_) => "sync",
            Self::Stat(_) | Self::SetModified { .. } => "look at",
            Self::Space(_) => "free space of",
        }
    }
}

/// Whether an error says that there is no room, on the file system (ENOSPC) or in our share of it (EDQUOT): what heals
/// when there is (S-32).
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether an error says that the process or the system had no descriptor (EMFILE, ENFILE) or no memory (ENOMEM, EAGAIN) for
/// it: nothing was done, nothing is wrong with the disk, and a moment later it may succeed.
pub fn is_exhausted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
}

/// Whether what failed may be tried again, as nothing is wrong with the disk: it is full, or the system had nothing left for
/// it. Everything else takes the log dir offline (S-36).
pub fn heals(error: &io::Error) -> bool {
    is_full(error) || is_exhausted(error)
}

/// How long whoever cannot go back waits before it asks the system again.
pub(crate) const EXHAUSTED_RETRY_MS: i64 = 100;

/// Says what the system had nothing left for. Many are refused while that lasts: one of them in ten seconds is told, for the
/// whole process.
pub(crate) fn tell_exhausted(now: MonoTime, during: &str, error: &io::Error) {
    static TOLD: Seldom = Seldom::new();
    if TOLD.is_due(now) {
        tracing::warn!(during, %error, "the system has no descriptor or memory for it: refused, until it has");
    }
}

/// Lets through one in ten seconds.
struct Seldom(AtomicU64);

impl Seldom {
    const NANOS: u64 = 10_000_000_000;

    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn is_due(&self, now: MonoTime) -> bool {
        let (now, last) = (now.get().max(1), self.0.load(Ordering::Relaxed));
        // Simulated clocks of one process may be apart.
        let is_due = last == 0 || now.abs_diff(last) >= Self::NANOS;
        is_due && self.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// What was done to which file when the operating system said no. Every error of a [`Runtime`] and its files is one, of
/// the kind that the operating system's error has.
#[derive(Debug, thiserror::Error)]
#[error("{verb} {}: {source}", path.display())]
struct Located {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn located(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |source| io::Error::new(kind_of(verb, &source), Located { verb, path: path.to_owned(), source })
}

/// The kind of an error, of which the library knows none that says that there is no descriptor: it counts as a want of
/// memory. A sync that was begun is never one: what it has dropped is lost, for whatever reason.
fn kind_of(verb: &str, error: &io::Error) -> io::ErrorKind {
    match (verb, error.raw_os_error(), error.kind()) {
        ("sync", _, io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock) => io::ErrorKind::Other,
        ("sync", _, kind) => kind,
        (_, Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN), _) => io::ErrorKind::OutOfMemory,
        (_, _, kind) => kind,
    }
}

/// One entry of a listed directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// Name without the directory; entries whose names are not UTF-8 are listed with replacement characters.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Size in bytes; 0 for directories.
    pub size: u64,
}

/// The answer to a [`DirOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirDone {
    /// To everything that only succeeds or fails.
    Done,
    /// To [`DirOp::List`].
    Entries(Vec<DirEntry>),
    /// To [`DirOp::Stat`].
    Stat {
        /// Size in bytes.
        size: u64,
        /// Modification time in milliseconds since 1970.
        modified_ms: i64,
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// To [`DirOp::Space`].
    Space {
        /// Bytes of the file system.
        total: u64,
        /// Bytes that we may still use.
        usable: u64,
    },
}

/// Clock, tasks and files of one shard. Cheap to clone.
pub trait Runtime: Clone + 'static {
    /// An open file.
    type File: File;
    /// A running task; dropping it cancels the task at its next await, so every task has an owner that stops it.
    type Task: 'static;

    /// The monotonic clock.
    fn now(&self) -> MonoTime;
    /// Wall clock in milliseconds since 1970.
    fn wall_ms(&self) -> i64;
    /// A random number; seeded in simulations.
    fn random(&self) -> u64;
    /// Starts a task on this shard.
    fn spawn(&self, queue: Queue, task: impl Future<Output = ()> + 'static) -> Self::Task;
    /// Waits until a time; a time in the past is ready after one turn at the latest.
    fn sleep_until(&self, at: MonoTime) -> impl Future<Output = ()> + 'static;
    /// Waits for the next trip through the reactor: the only way to yield (glommio.md b2). For whoever has more to do
    /// after a budget of 50 µs or more.
    fn turn(&self) -> impl Future<Output = ()> + 'static;
    /// Opens a file.
    ///
    /// # Errors
    /// What the operating system says.
    fn open(&self, path: &Path, how: Open) -> impl Future<Output = io::Result<Self::File>> + 'static;
    /// Does an operation on names, away from the shard's thread.
    ///
    /// # Errors
    /// What the operating system says.
    fn dir(&self, op: DirOp) -> impl Future<Output = io::Result<DirDone>> + 'static;
}

/// An open file. Clones share it; it is closed when the last clone and the last [`Span`] of it are gone. Whether an
/// operation whose future is dropped still happens is not known; its buffer stays with the kernel until it is over. Who
/// needs to know lets a task of its own do the operation.
pub trait File: Clone + 'static {
    /// Writes at a position; may write less than asked, as the operating system may. Writes of one caller to one file
    /// must not overlap in time.
    ///
    /// # Errors
    /// What the operating system says; [`heals`] tells apart what does.
    fn write_at(&self, bytes: Bytes, at: u64) -> impl Future<Output = io::Result<usize>> + 'static;
    /// Writes pieces one behind the other with the shard's own thread, without a wait: what was written, maybe less than
    /// asked. `None` when that is not to be done now, or they are more than [`WRITE_NOW_BYTES_MAX`] together: then
    /// [`File::write_at`] does it.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn write_now(&self, pieces: &[IoSlice<'_>], at: u64) -> Option<io::Result<usize>>;
    /// Reads with the shard's own thread what is in memory, without a wait: how many bytes, fewer than asked where the rest
    /// is not in memory, 0 at the end of the file. `None` when nothing is, or the system does not say, or so much is not
    /// to be copied at once: then [`File::read_at`] does it. Whoever reads much this way sees to it that others have their
    /// turn.
    ///
    /// # Errors
    /// As [`File::read_at`].
    fn read_now(&self, at: u64, into: &mut [u8]) -> Option<io::Result<usize>>;
    /// Reads up to `len` bytes at a position; fewer only at the end of the file.
    ///
    /// # Errors
    /// What the operating system says.
    fn read_at(&self, at: u64, len: usize) -> impl Future<Output = io::Result<BytesMut>> + 'static;
    /// Makes content and size durable (fdatasync), on threads of their own: never queues before or behind a write.
    ///
    /// # Errors
    /// What the operating system says. Never retried: the caller takes the log offline (S-36).
    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + 'static;
    /// Cuts or extends the file.
    ///
    /// # Errors
    /// What the operating system says.
    fn truncate(&self, len: u64) -> impl Future<Output = io::Result<()>> + 'static;
    /// The size in bytes.
    ///
    /// # Errors
    /// What the operating system says.
    fn size(&self) -> impl Future<Output = io::Result<u64>> + 'static;
    /// A reference to a range that was written, to be sent or read later, on any shard.
    fn span(&self, at: u64, len: u32) -> Span;
}

/// A range of bytes by reference: the only form in which data crosses shards.
#[derive(Clone, Debug)]
pub enum Span {
    /// In memory.
    Memory(Bytes),
    /// In a file; the descriptor stays open as long as the span lives, also when the file is unlinked.
    File {
        /// The open file.
        fd: Arc<OwnedFd>,
        /// Where the range starts.
        at: u64,
        /// Its length in bytes.
        len: u32,
    },
}

impl Span {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File { len, .. } => usize::try_from(*len).unwrap_or(usize::MAX),
        }
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_want_of_descriptors_or_memory_is_told_apart_from_a_failing_disk() {
        let path = Path::new("/d/t-0/f");
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN] {
            let error = || io::Error::from_raw_os_error(code);
            let opened = located("open", path)(error());
            assert!(is_exhausted(&opened) && heals(&opened) && !is_full(&opened), "{opened}");
            assert!(opened.to_string().starts_with("open /d/t-0/f: "), "{opened}");
            // What a sync has dropped is lost.
            assert!(!heals(&located("sync", path)(error())), "{code}");
        }
        for code in [libc::EIO, libc::EROFS, libc::ENOENT, libc::EACCES, libc::EINTR] {
            assert!(!heals(&located("open", path)(io::Error::from_raw_os_error(code))), "{code}");
        }
        for code in [libc::ENOSPC, libc::EDQUOT] {
            let error = located("write", path)(io::Error::from_raw_os_error(code));
            assert!(is_full(&error) && heals(&error) && !is_exhausted(&error), "{code}");
        }
    }

    #[test]
    fn of_many_refusals_one_in_ten_seconds_is_told() {
        let (told, start) = (Seldom::new(), MonoTime::new(5));
        assert!(told.is_due(start));
        assert!((1..10).all(|second| !told.is_due(start.plus_ms(second * 1000))));
        assert!(told.is_due(start.plus_ms(10_000)));
        assert!(!told.is_due(start.plus_ms(10_001)));
        assert!(told.is_due(start), "another clock");
    }
}

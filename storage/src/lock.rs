//! The lock that keeps a second broker, ours or Kafka, out of a log dir (storage.md 1.3, S-5). It uses the real file
//! system, not the `Runtime`: whoever runs on real disks takes it before [`crate::log_dir::LogDir::open`] and keeps it
//! as long as the dir is served; a simulation goes without.
//!
//! Kafka locks the whole of `.lock` with a POSIX record lock. An open-file-description lock conflicts with that, but
//! unlike it is not lost when some other descriptor of the file is closed. `flock` would exclude nobody. Kafka 3.8 and
//! later unlinks the file when it stops, so a lock may land on a file that has no name any more: then we start again.
//!
//! The content of the file says whether a start may believe what the kernel holds of the logs: see `voucher`.

mod voucher;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
#[allow(
    clippy::disallowed_types,
    reason = "what two shards do to one small file, in order; once in the life of a process"
)]
use std::sync::Mutex;

use self::voucher::Place;

use crate::io::is_full;
use crate::names::LOCK;

/// How often a lock may land on an unlinked file before we give up: each time some broker stopped in that very moment.
const ATTEMPTS: usize = 16;

/// Why a log dir could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("{path} is locked: another broker, ours or Kafka, uses this directory")]
    Held {
        /// The lock file.
        path: PathBuf,
    },
    /// The file was unlinked each time after it was locked.
    #[error("{path} keeps being replaced")]
    Unstable {
        /// The lock file.
        path: PathBuf,
    },
    /// The directory or the file could not be created or locked.
    #[error("{path}: {source}")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

/// An exclusive lock on a log dir, held until it is dropped. The file stays in place. Whoever holds it says in the file
/// whether all logs of the dir are in order, for the next start: all methods block for a moment, none waits for a sync.
#[derive(Debug)]
pub struct DirLock {
    file: File,
    place: Option<Place>,
    was_vouched: bool,
    #[allow(clippy::disallowed_types, reason = "see the import")]
    is_disavowed: Mutex<bool>,
}

impl DirLock {
    /// Locks a log dir without waiting; creates the directory and its parents if they are missing.
    ///
    /// # Errors
    /// Why not; nothing is locked then.
    pub fn acquire(log_dir: &Path) -> Result<Self, LockError> {
        let path = log_dir.join(LOCK);
        let failed = |source| LockError::Io { path: path.clone(), source };
        create_durable(log_dir).map_err(failed)?;
        for _ in 0..ATTEMPTS {
            let file = open(&path).map_err(failed)?;
            if !try_lock(&file).map_err(failed)? {
                return Err(LockError::Held { path });
            }
            if has_name(&file, &path).map_err(failed)? {
                return Ok(Self::locked(log_dir, file));
            }
        }
        Err(LockError::Unstable { path })
    }

    /// What [`DirLock::acquire`] would say now. Makes and changes nothing: of a directory that is missing it looks whether it
    /// could be made.
    ///
    /// # Errors
    /// As there.
    pub fn look(log_dir: &Path) -> Result<(), LockError> {
        let path = log_dir.join(LOCK);
        let failed = |source| LockError::Io { path: path.clone(), source };
        look_writable(log_dir).map_err(failed)?;
        let file = match open_existing(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(failed)?,
        };
        if is_free(&file).map_err(failed)? { Ok(()) } else { Err(LockError::Held { path }) }
    }

    fn locked(log_dir: &Path, file: File) -> Self {
        let place = Place::of(log_dir, &file);
        // What cannot be read vouches for nothing.
        let content = content(&file).unwrap_or_default();
        let is_good = |place: &Place| {
            place.is_vouched_by(&content) && place.is_all_of(log_dir).is_ok_and(|is_all| is_all)
        };
        let was_vouched = place.as_ref().is_some_and(is_good);
        Self { file, place, was_vouched, is_disavowed: <_>::default() }
    }

    /// Whether all logs of the dir were in order when it was locked, but for what the death of a process cuts short: this
    /// same kernel holds what was written, or has brought it to the disk.
    pub const fn is_vouched(&self) -> bool {
        self.was_vouched
    }

    /// Notes that all logs of the dir are in order, until [`DirLock::disavow`]; has no effect afterwards. Answers whether
    /// the next start will believe it: not on a kernel that cannot tell one mount from another.
    ///
    /// # Errors
    /// What the operating system says; the next start recovers then.
    pub fn vouch(&self) -> io::Result<bool> {
        let Some(place) = &self.place else { return Ok(false) };
        let is_disavowed = self.is_disavowed.lock().map_err(|_| io::ErrorKind::Other)?;
        if *is_disavowed {
            return Ok(false);
        }
        let text = place.text();
        let written = self.file.write_all_at(text.as_bytes(), 0);
        written.and_then(|()| self.file.set_len(u64::try_from(text.len()).unwrap_or(u64::MAX))).map(|()| true)
    }

    /// Takes that back for good: an operation in the dir has failed, or it was stopped cleanly and says so itself.
    ///
    /// # Errors
    /// Why the next start may still believe it: an operator has to remove the file.
    pub fn disavow(&self) -> io::Result<()> {
        let mut is_disavowed = self.is_disavowed.lock().map_err(|_| io::ErrorKind::Other)?;
        *is_disavowed = true;
        self.empty()
    }

    fn empty(&self) -> io::Result<()> {
        // A file that cannot be cut may still be written over.
        self.file.set_len(0).or_else(|error| self.file.write_all_at(b"-", 0).map_err(|_| error))
    }
}

/// Whether files can be made in a directory, or, if it is missing, in the nearest one above it that is there. Leaves
/// nothing behind. A full disk is no reason against it.
///
/// # Errors
/// Why not.
pub fn look_writable(dir: &Path) -> io::Result<()> {
    for ancestor in dir.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
        match std::fs::metadata(ancestor) {
            Ok(found) if found.is_dir() => return try_file(ancestor),
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            // Not so a link that leads nowhere: no directory can be made under its name.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && std::fs::symlink_metadata(ancestor).is_err() => {}
            Err(error) => return Err(error),
        }
    }
    try_file(Path::new("."))
}

/// Makes a file that never has a name; where the file system knows none, one that has it for a moment.
#[allow(clippy::disallowed_methods, reason = "the lock belongs to the process, not to a shard's runtime")]
fn try_file(dir: &Path) -> io::Result<()> {
    let nameless = std::fs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(dir);
    let made = match nameless.map(drop) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) =>
        {
            let path = dir.join(format!(".odradek-check-{}", std::process::id()));
            let named = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
            named.and_then(|_| std::fs::remove_file(&path))
        }
        made => made,
    };
    made.or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })
}

/// What a lock file holds, as far as it may be a voucher.
fn content(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; voucher::BYTES_MAX.saturating_add(1)];
    let mut filled = 0;
    while let Some(into) = bytes.get_mut(filled..).filter(|into| !into.is_empty()) {
        match file.read_at(into, u64::try_from(filled).unwrap_or(u64::MAX))? {
            0 => break,
            read => filled = filled.saturating_add(read),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Creates a directory and its missing parents, and makes the name of each that was missing durable, as whoever opens the
/// dir afterwards cannot tell any more that it was new.
fn create_durable(dir: &Path) -> io::Result<()> {
    let ancestors = dir.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty());
    let missing: Vec<_> = ancestors.take_while(|ancestor| !ancestor.exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(dir)?;
    for created in missing {
        let parent = created.parent().filter(|parent| !parent.as_os_str().is_empty());
        open_dir(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "the lock belongs to the process, not to a shard's runtime")]
fn open_dir(path: &Path) -> io::Result<File> {
    File::open(path)
}

#[allow(clippy::disallowed_methods, reason = "the lock belongs to the process, not to a shard's runtime")]
fn open(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

#[allow(clippy::disallowed_methods, reason = "the lock belongs to the process, not to a shard's runtime")]
fn open_existing(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new().read(true).write(true).open(path)
}

/// Whether `path` still names this very file.
fn has_name(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Locks the whole file; `false` if somebody else has.
fn try_lock(file: &File) -> io::Result<bool> {
    let range = whole_file();
    // SAFETY: the descriptor is open as long as `file` is borrowed, and `range` is a valid `flock` that the call only
    // reads.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    if done == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Whether [`try_lock`] would lock the file now.
fn is_free(file: &File) -> io::Result<bool> {
    let mut range = whole_file();
    // SAFETY: the descriptor is open as long as `file` is borrowed, and `range` is a valid `flock` that lives over the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    if done == 0 { Ok(range.l_type == NO_LOCK) } else { Err(io::Error::last_os_error()) }
}

/// An exclusive lock from 0 to the end, however far that moves.
const fn whole_file() -> libc::flock {
    libc::flock { l_type: WRITE_LOCK, l_whence: FROM_START, l_start: 0, l_len: 0, l_pid: 0 }
}

#[allow(clippy::cast_possible_truncation, reason = "a constant of value 1 in a field of 16 bits")]
const WRITE_LOCK: libc::c_short = libc::F_WRLCK as libc::c_short;
#[allow(clippy::cast_possible_truncation, reason = "a constant of value 2 in a field of 16 bits")]
const NO_LOCK: libc::c_short = libc::F_UNLCK as libc::c_short;
#[allow(clippy::cast_possible_truncation, reason = "a constant of value 0 in a field of 16 bits")]
const FROM_START: libc::c_short = libc::SEEK_SET as libc::c_short;

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// What Java's `FileChannel.tryLock` does, in another process: a POSIX record lock. With `hold` the child keeps it
    /// until the pipe is closed.
    struct PosixChild {
        pid: libc::pid_t,
        hold: Option<std::io::PipeWriter>,
        ready: std::io::PipeReader,
    }

    impl PosixChild {
        fn spawn(path: &Path) -> Self {
            let name = CString::new(path.as_os_str().as_bytes()).unwrap();
            let (hold_reader, hold) = std::io::pipe().unwrap();
            let (ready, ready_writer) = std::io::pipe().unwrap();
            // SAFETY: the child calls only async-signal-safe functions (open, fcntl, write, read, close, _exit) on
            // values that were prepared before the fork, and never returns.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                // SAFETY: see above; `name` ends in a zero byte, `range`, `answer` and `byte` outlive the calls.
                unsafe {
                    libc::close(hold.as_raw_fd());
                    let fd = libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o644);
                    let range = whole_file();
                    let locked = fd >= 0 && libc::fcntl(fd, libc::F_SETLK, &raw const range) == 0;
                    let answer = [u8::from(locked)];
                    libc::write(ready_writer.as_raw_fd(), answer.as_ptr().cast(), 1);
                    let mut byte = [0_u8];
                    libc::read(hold_reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
                    libc::_exit(0);
                }
            }
            Self { pid, hold: Some(hold), ready }
        }

        fn locked(&mut self) -> bool {
            let mut answer = [0];
            std::io::Read::read_exact(&mut self.ready, &mut answer).unwrap();
            answer == [1]
        }

        fn end(mut self) {
            self.hold = None;
            // SAFETY: the child is ours and not waited for yet; no status is asked for.
            let waited = unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
            assert_eq!(waited, self.pid);
        }
    }

    /// One test, because the steps must not run beside each other: a child of one inherits the descriptors of the
    /// others, and a lock is held until the last copy of its descriptor is closed.
    #[test]
    fn t9_the_lock_excludes_kafka_and_itself() {
        it_excludes_itself_within_a_process();
        it_excludes_kafka();
        kafka_excludes_it();
        a_look_says_what_would_happen_and_touches_nothing();
    }

    #[allow(clippy::disallowed_methods, reason = "a test on real files")]
    fn a_look_says_what_would_happen_and_touches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/dir");
        DirLock::look(&path).unwrap();
        assert!(!dir.path().join("missing").exists());
        let lock = DirLock::acquire(&path).unwrap();
        assert!(matches!(DirLock::look(&path), Err(LockError::Held { .. })));
        drop(lock);
        DirLock::look(&path).unwrap();
        let mut kafka = PosixChild::spawn(&path.join(LOCK));
        assert!(kafka.locked());
        assert!(matches!(DirLock::look(&path), Err(LockError::Held { .. })));
        kafka.end();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        open(&file).unwrap();
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &link).unwrap();
        for blocked in [file.join("below"), file, link.join("below"), link, PathBuf::from("/proc/odradek")] {
            let (looked, acquired) = (DirLock::look(&blocked), DirLock::acquire(&blocked));
            assert!(matches!(looked, Err(LockError::Io { .. })), "{}", blocked.display());
            assert!(matches!(acquired, Err(LockError::Io { .. })), "{}", blocked.display());
        }
        let left: Vec<_> =
            std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [LOCK]);
    }

    fn it_excludes_kafka() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        let mut kafka = PosixChild::spawn(&dir.path().join(LOCK));
        assert!(!kafka.locked());
        kafka.end();
        drop(lock);
        let mut kafka = PosixChild::spawn(&dir.path().join(LOCK));
        assert!(kafka.locked());
        kafka.end();
        assert!(dir.path().join(LOCK).exists());
    }

    fn kafka_excludes_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut kafka = PosixChild::spawn(&dir.path().join(LOCK));
        assert!(kafka.locked());
        assert!(matches!(DirLock::acquire(dir.path()), Err(LockError::Held { .. })));
        kafka.end();
        DirLock::acquire(dir.path()).unwrap();
    }

    fn it_excludes_itself_within_a_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/dir");
        let lock = DirLock::acquire(&path).unwrap();
        let refused = DirLock::acquire(&path).unwrap_err();
        assert!(refused.to_string().contains("another broker"), "{refused}");
        drop(lock);
        DirLock::acquire(&path).unwrap();
    }

    #[test]
    fn a_lock_on_an_unlinked_file_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK);
        let orphan = open(&path).unwrap();
        assert!(has_name(&orphan, &path).unwrap());
        // What Kafka 3.8 does when it stops, and then another broker starts.
        #[allow(clippy::disallowed_methods, reason = "a test on real files")]
        std::fs::remove_file(&path).unwrap();
        assert!(!has_name(&orphan, &path).unwrap());
        let _next = DirLock::acquire(dir.path()).unwrap();
        assert!(try_lock(&orphan).unwrap());
        assert!(!has_name(&orphan, &path).unwrap());
    }

    #[test]
    fn a_voucher_lasts_until_it_is_taken_back_and_counts_in_this_place_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK);
        let first = DirLock::acquire(dir.path()).unwrap();
        assert!(!first.is_vouched());
        if !first.vouch().unwrap() {
            // Before Linux 6.8: the file stays empty.
            assert_eq!(path.metadata().unwrap().len(), 0);
            return;
        }
        assert!(!first.is_vouched(), "it tells of the start");
        drop(first);
        let second = DirLock::acquire(dir.path()).unwrap();
        assert!(second.is_vouched() && second.vouch().unwrap());
        let text = content(&second.file).unwrap();
        drop(second);
        // In a copy of the directory it counts for nothing, nor with something behind it.
        let copy = tempfile::tempdir().unwrap();
        open(&copy.path().join(LOCK)).unwrap().write_all_at(&text, 0).unwrap();
        assert!(!DirLock::acquire(copy.path()).unwrap().is_vouched());
        open(&path).unwrap().write_all_at(b"\n", u64::try_from(text.len()).unwrap()).unwrap();
        let third = DirLock::acquire(dir.path()).unwrap();
        assert!(!third.is_vouched());
        assert!(third.vouch().unwrap(), "what lay behind it is cut off");
        third.disavow().unwrap();
        assert!(!third.vouch().unwrap(), "nobody vouches for a dir that has failed");
        assert_eq!(path.metadata().unwrap().len(), 0);
        drop(third);
        assert!(!DirLock::acquire(dir.path()).unwrap().is_vouched());
    }

    #[test]
    fn a_dir_that_cannot_be_created_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let blocked = dir.path().join("file");
        open(&blocked).unwrap();
        assert!(matches!(DirLock::acquire(&blocked), Err(LockError::Io { .. })));
    }
}

//! Whether a range of a file is in the page cache, so that `sendfile` does not block the shard on a disk. Called
//! by [`super::tcp`] only.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;

/// `cachestat(2)`, Linux 6.5; the number is the same on all architectures that came to it by the common table.
const SYS_CACHESTAT: libc::c_long = 451;

const PAGE_BYTES: u64 = 4096;

/// Set once the kernel said that it has no `cachestat`, or that we may not use it.
static NO_CACHESTAT: AtomicBool = AtomicBool::new(false);

#[repr(C)]
struct Range {
    off: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Statistics {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// What is known of a range.
pub(super) enum Residency {
    /// All of it is in memory.
    Resident,
    /// Some of it is on the disk only.
    Cold,
    /// The kernel does not say.
    Unknown,
}

/// Asks for a range that is not empty.
pub(super) fn residency(fd: &OwnedFd, at: u64, len: u64) -> Residency {
    if NO_CACHESTAT.load(Ordering::Relaxed) {
        return Residency::Unknown;
    }
    let range = Range { off: at, len };
    let mut statistics = Statistics::default();
    // SAFETY: the descriptor is open; both structures are those of the kernel's header and live over the call.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut statistics, 0u32) };
    if result != 0 {
        NO_CACHESTAT.store(true, Ordering::Relaxed);
        return Residency::Unknown;
    }
    let first = at / PAGE_BYTES;
    let last = at.saturating_add(len).saturating_sub(1) / PAGE_BYTES;
    let pages = last.saturating_sub(first).saturating_add(1);
    if statistics.cached < pages {
        return Residency::Cold;
    }
    // What is being read just now is counted as cached, and `sendfile` waits for it. It comes in reads of the disk, mostly
    // larger than what is asked for here: where both ends are there, all is.
    let end = at.saturating_add(len).saturating_sub(1);
    match (probe(fd, end), probe(fd, at)) {
        (Ok(()), Ok(())) => Residency::Resident,
        (Err(error), _) | (_, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Residency::Cold,
        // A file system of the network, or tmpfs before Linux 6.6: it does not say.
        _ => Residency::Unknown,
    }
}

/// Reads a byte, unless that needs a wait.
fn probe(fd: &OwnedFd, at: u64) -> io::Result<()> {
    let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut byte = [0u8; 1];
    let vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // SAFETY: the descriptor is open; the vector covers a byte of this function's own.
    match unsafe { libc::preadv2(fd.as_raw_fd(), &raw const vector, 1, at, libc::RWF_NOWAIT) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads what of a range is in memory now, from its start; never waits for a disk. Empty when its first page is not, or
/// when the file system cannot promise not to wait (tmpfs before Linux 6.6).
pub(super) fn read_resident(fd: &OwnedFd, at: u64, len: usize) -> io::Result<BytesMut> {
    let mut into = BytesMut::with_capacity(len);
    let spare = into.spare_capacity_mut();
    let vector = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len().min(len) };
    let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open; the vector covers memory that this function owns and that nothing else refers to.
    let read = unsafe { libc::preadv2(fd.as_raw_fd(), &raw const vector, 1, at, libc::RWF_NOWAIT) };
    match usize::try_from(read) {
        Ok(read) => {
            // SAFETY: the kernel has filled that many bytes from the start of the spare capacity.
            unsafe { into.set_len(read.min(len)) };
            Ok(into)
        }
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(BytesMut::new()),
            error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(BytesMut::new()),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_was_just_written_is_resident_and_what_was_dropped_is_cold() {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        let fd = OwnedFd::from(file.reopen().unwrap());
        if let Residency::Unknown = residency(&fd, 0, 1 << 20) {
            return;
        }
        assert!(matches!(residency(&fd, 0, 1 << 20), Residency::Resident));
        assert!(matches!(residency(&fd, 4095, 2), Residency::Resident));
        assert_eq!(read_resident(&fd, 5, 10).unwrap(), &[7u8; 10][..]);
        // To drop pages is advice: the kernel keeps those that somebody looks at just then.
        let is_dropped = (0..10_000).any(|_| {
            // SAFETY: the descriptor is open.
            unsafe { libc::posix_fadvise(fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            #[allow(clippy::disallowed_methods, reason = "a test's own thread")]
            std::thread::sleep(std::time::Duration::from_millis(2));
            matches!(residency(&fd, 0, 1 << 20), Residency::Cold)
        });
        assert!(is_dropped);
        assert!(read_resident(&fd, 0, 4096).unwrap().is_empty());
    }

    /// Pages that are on their way are counted as cached by the kernel; `sendfile` waits for them.
    #[test]
    fn what_is_called_resident_can_be_read_without_a_wait() {
        const LEN: usize = 8 << 20;
        const PIECE: usize = 64 << 10;
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; LEN]).unwrap();
        file.as_file().sync_all().unwrap();
        let fd = OwnedFd::from(file.reopen().unwrap());
        if let Residency::Unknown = residency(&fd, 0, PIECE as u64) {
            return;
        }
        let advise = |at: usize, len: usize, advice| {
            let (at, len) = (i64::try_from(at).unwrap(), i64::try_from(len).unwrap());
            // SAFETY: the descriptor is open.
            unsafe { libc::posix_fadvise(fd.as_raw_fd(), at, len, advice) }
        };
        for _ in 0..20 {
            advise(0, LEN, libc::POSIX_FADV_DONTNEED);
            for at in (0..LEN).step_by(128 << 10) {
                advise(at, 128 << 10, libc::POSIX_FADV_WILLNEED);
            }
            for at in (0..LEN).step_by(PIECE) {
                let comes = (0..10_000_000)
                    .any(|_| matches!(residency(&fd, at as u64, PIECE as u64), Residency::Resident));
                assert!(comes, "what was asked for does not come");
                let read = read_resident(&fd, at as u64, PIECE).unwrap();
                assert_eq!(read.len(), PIECE, "byte {at} and what follows was said to be there");
            }
        }
    }

    #[test]
    fn a_file_system_without_reads_that_do_not_wait_gives_nothing_and_no_error() {
        // tmpfs is such a one on many kernels; where it is missing there is nothing to show.
        let Ok(mut file) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
        file.write_all(&[7; 100]).unwrap();
        let read = read_resident(&OwnedFd::from(file.reopen().unwrap()), 0, 100).unwrap();
        assert!(read.is_empty() || read == [7u8; 100][..]);
    }
}

//! Whether a range of a file is in the page cache, so that `sendfile` does not block the shard on a disk, and how
//! closely that is looked at. Called by [`super::tcp`] only.
//!
//! The kernel counts pages that are just being read as cached, and `sendfile` waits for them. They are told apart by two
//! more system calls, which are spared while nobody here reads from a disk ([`FileSends`]).

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;
use protocol::types::MonoTime;

/// `cachestat(2)`, Linux 6.5; the number is the same on all architectures that came to it by the common table.
const SYS_CACHESTAT: libc::c_long = 451;

const PAGE_BYTES: u64 = 4096;

/// Pages may be on their way for so long after somebody here has read from a disk: what the kernel reads ahead, behind a
/// full queue. Each send that finds some begins it anew.
const ALERT_MS: i64 = 10_000;

/// A piece takes some 100 µs. One that took this long may have waited for a disk, though a core that was taken away looks
/// the same: so the next few are looked at closely, and if it was a disk they find more, which begins an alert.
const SLOW_NANOS: u64 = 1_000_000;
const LOOKS_AFTER_SLOW: u32 = 8;

/// What was found in memory is believed to be there for so long: pages that were just looked at are the last to go.
const BELIEVED_MS: i64 = 100;

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

/// How closely a range is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Whether its pages are in the cache, or on their way there.
    Counted,
    /// Whether they are there.
    Probed,
}

/// What a shard has seen of the pieces of files that it sent, and how closely it therefore looks at the next. Pages are on
/// their way only where somebody reads from a disk; while nobody in this process does, to count them is enough. Another
/// process that reads the same files is not seen: then a `sendfile` may wait once, for the pages of one piece, and closer
/// looks begin.
#[derive(Debug, Default)]
pub(super) struct FileSends {
    /// Closer looks that follow a slow send.
    looks_left: Cell<u32>,
    cold: Cell<u64>,
    slow: Cell<u64>,
}

impl FileSends {
    /// How closely to look now, when this process last read from a disk then.
    pub(super) fn look(&self, now: MonoTime, last_disk_read: Option<MonoTime>) -> Look {
        let looks_left = self.looks_left.get();
        self.looks_left.set(looks_left.saturating_sub(1));
        let is_near = last_disk_read.is_some_and(|last| now < last.plus_ms(ALERT_MS));
        if is_near || looks_left > 0 { Look::Probed } else { Look::Counted }
    }

    /// Whether a slow send has made it doubtful what was found in memory.
    pub(super) fn is_wary(&self) -> bool {
        self.looks_left.get() > 0
    }

    /// A piece was not in memory.
    pub(super) fn found_cold(&self) {
        self.cold.set(self.cold.get().saturating_add(1));
    }

    /// A piece was handed to the socket by `sendfile`.
    pub(super) fn sent(&self, began: MonoTime, ended: MonoTime) {
        if ended.nanos_since(began) > SLOW_NANOS {
            self.slow.set(self.slow.get().saturating_add(1));
            self.looks_left.set(LOOKS_AFTER_SLOW);
        }
    }

    /// Pieces that were not in memory.
    pub(super) fn cold(&self) -> u64 {
        self.cold.get()
    }

    /// Calls of `sendfile` that may have waited for a disk.
    pub(super) fn slow(&self) -> u64 {
        self.slow.get()
    }
}

/// A range that was found in memory, and until when that is believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    from: u64,
    end: u64,
    until: MonoTime,
}

impl Found {
    /// Nothing was found yet.
    pub(super) const NOTHING: Self = Self { from: 0, end: 0, until: MonoTime::new(0) };

    pub(super) fn new(at: u64, len: u64, now: MonoTime) -> Self {
        Self { from: at, end: at.saturating_add(len), until: now.plus_ms(BELIEVED_MS) }
    }

    /// Whether a range need not be looked at.
    pub(super) fn covers(&self, at: u64, len: u64, now: MonoTime) -> bool {
        self.from <= at && at.saturating_add(len) <= self.end && now < self.until
    }
}

/// Asks for a range that is not empty.
pub(super) fn residency(fd: &OwnedFd, at: u64, len: u64, look: Look) -> Residency {
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
    if look == Look::Counted {
        return Residency::Resident;
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

    fn at_ms(ms: i64) -> MonoTime {
        MonoTime::new(1).plus_ms(ms)
    }

    #[test]
    fn pages_are_looked_at_closely_while_this_process_reads_from_a_disk_and_a_while_after() {
        let sends = FileSends::default();
        assert_eq!(sends.look(at_ms(0), None), Look::Counted, "it never has");
        let last = at_ms(5);
        assert_eq!(sends.look(at_ms(4), Some(last)), Look::Probed, "another shard's clock is ahead");
        assert_eq!(sends.look(at_ms(5), Some(last)), Look::Probed);
        assert_eq!(sends.look(at_ms(10_004), Some(last)), Look::Probed);
        assert_eq!(sends.look(at_ms(10_005), Some(last)), Look::Counted);
    }

    #[test]
    fn a_piece_that_took_long_is_counted_and_the_next_few_are_looked_at_closely() {
        let sends = FileSends::default();
        sends.sent(at_ms(100), at_ms(101));
        assert_eq!((sends.slow(), sends.look(at_ms(101), None)), (0, Look::Counted));
        assert!(!sends.is_wary());
        sends.sent(at_ms(101), at_ms(103));
        assert_eq!((sends.slow(), sends.look(at_ms(103), None)), (1, Look::Probed));
        assert!(
            (1..LOOKS_AFTER_SLOW).all(|_| sends.is_wary() && sends.look(at_ms(103), None) == Look::Probed)
        );
        assert!(!sends.is_wary());
        assert_eq!(sends.look(at_ms(103), None), Look::Counted);
        sends.found_cold();
        assert_eq!((sends.cold(), sends.slow()), (1, 1));
    }

    #[test]
    fn what_was_found_in_memory_is_not_looked_at_again_for_a_moment() {
        assert!(!Found::NOTHING.covers(0, 1, at_ms(0)));
        let found = Found::new(100, 50, at_ms(0));
        for (at, len, is_covered) in [(100, 50, true), (149, 1, true), (99, 2, false), (149, 2, false)] {
            assert_eq!(found.covers(at, len, at_ms(99)), is_covered, "{len} at {at}");
        }
        assert!(!found.covers(100, 50, at_ms(100)));
    }

    #[test]
    fn what_was_just_written_is_resident_and_what_was_dropped_is_cold() {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        let fd = OwnedFd::from(file.reopen().unwrap());
        if let Residency::Unknown = residency(&fd, 0, 1 << 20, Look::Probed) {
            return;
        }
        assert!(matches!(residency(&fd, 0, 1 << 20, Look::Probed), Residency::Resident));
        assert!(matches!(residency(&fd, 0, 1 << 20, Look::Counted), Residency::Resident));
        assert!(matches!(residency(&fd, 4095, 2, Look::Probed), Residency::Resident));
        assert_eq!(read_resident(&fd, 5, 10).unwrap(), &[7u8; 10][..]);
        // To drop pages is advice: the kernel keeps those that somebody looks at just then.
        let is_dropped = (0..10_000).any(|_| {
            // SAFETY: the descriptor is open.
            unsafe { libc::posix_fadvise(fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            #[allow(clippy::disallowed_methods, reason = "a test's own thread")]
            std::thread::sleep(std::time::Duration::from_millis(2));
            matches!(residency(&fd, 0, 1 << 20, Look::Probed), Residency::Cold)
        });
        assert!(is_dropped);
        assert!(matches!(residency(&fd, 0, 1 << 20, Look::Counted), Residency::Cold));
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
        if let Residency::Unknown = residency(&fd, 0, PIECE as u64, Look::Probed) {
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
                let look = || residency(&fd, at as u64, PIECE as u64, Look::Probed);
                let comes = (0..10_000_000).any(|_| matches!(look(), Residency::Resident));
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

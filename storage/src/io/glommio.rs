//! The real implementation of [`Runtime`], on a glommio executor: buffered writes by its own thread or on its ring (see
//! `pace`), reads on the ring; what blocks on threads beside it (`workers`), apart for each log dir and kind of work: no
//! write ever queues behind a sync, and a slow disk holds up only what is on it. Called by
//! `broker::shard::glommio`, which extends it. Knows no sockets and no other shards.
//!
//! Files are opened here and not by glommio, so that a [`Span`] can keep the descriptor alive on another shard.

mod lanes;
mod workers;

use std::cell::{Cell, RefCell};
use std::fs;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use glommio::io::BufferedFile;
use glommio::timer::Timer;
use glommio::{GlommioError, Latency, Shares, TaskQueueHandle};
use protocol::types::MonoTime;

use self::workers::{Kind, Limits, Place, Placing, Workers};
use super::cgroup::Group;
use super::pace::{DirtyPages, Looked, Pace, Way};
use super::{
    DirDone, DirEntry, DirOp, EXHAUSTED_RETRY_MS, File, Open, Queue, Runtime, Span, WRITE_NOW_BYTES_MAX,
    is_exhausted, located, tell_exhausted,
};

/// The kernel takes so many pieces in one write (IOV_MAX).
const VECTORS_MAX: usize = 1024;

/// A timer this short is one trip through the reactor (glommio.md b2). It has passed when the reactor comes to look at it: where
/// nobody else has anything to do, one that has not is a sleep, which costs several times as much as the trip.
const TURN: Duration = Duration::from_nanos(300);

/// When a shard of this process last read from a disk, for all that it knew: began to, or was done with it. Nanoseconds of
/// our clock; 0 is never.
static LAST_DISK_READ: AtomicU64 = AtomicU64::new(0);

/// More is not copied at once by the shard's own thread: it takes about 30 µs.
const READ_NOW_BYTES_MAX: usize = 256 << 10;

/// Pages are asked for in such parts: a part takes some 100 µs of a processor, which the kernel takes from nobody in between.
const AHEAD_PART_BYTES: libc::off_t = 256 << 10;

/// After the last operation the kernel may still hold buffers of operations whose futures were dropped.
const DRAIN: Duration = Duration::from_millis(10);

/// Clock, tasks and files of the executor it was made on. Never leaves its thread.
#[derive(Clone)]
pub struct GlommioRuntime(Rc<Inner>);

struct Inner {
    request: TaskQueueHandle,
    control: TaskQueueHandle,
    background: TaskQueueHandle,
    workers: Rc<Workers>,
    in_flight: Cell<usize>,
    pace: RefCell<Pace>,
    group: Option<Arc<Group>>,
    /// Reads the kernel's counters for the pace.
    looking: RefCell<Option<glommio::Task<()>>>,
}

impl GlommioRuntime {
    /// Makes the runtime of the executor that polls the caller.
    pub fn new() -> Self {
        let executor = glommio::executor();
        // Latency classes do not bound latency (glommio.md 6): slices and turns do.
        let queue =
            |name, shares| executor.create_task_queue(Shares::Static(shares), Latency::NotImportant, name);
        Self(Rc::new(Inner {
            request: queue("request", 1000),
            control: queue("control", 1000),
            background: queue("background", 100),
            workers: Workers::new(Placing { unbind, give_way }, Limits::DEFAULT),
            in_flight: Cell::new(0),
            pace: RefCell::new(Pace::new()),
            group: text_of(Path::new("/proc/self/cgroup")).and_then(|own| Group::of(&own)).map(Arc::new),
            looking: RefCell::default(),
        }))
    }

    /// Waits until no operation is in flight. To be awaited before the executor's main future returns: the reactor
    /// frees the buffers of operations that the kernel still writes to (glommio.md 2).
    pub async fn drain(&self) {
        while self.0.in_flight.get() > 0 {
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
        glommio::timer::sleep(DRAIN).await;
    }

    /// Reads a range of a descriptor through the ring; for ranges of spans that are not in the page cache.
    ///
    /// # Errors
    /// What the operating system says.
    pub async fn read_span(&self, fd: &Arc<OwnedFd>, at: u64, len: usize) -> io::Result<BytesMut> {
        let file = buffered(fd);
        let _guard = self.begin();
        read_fully(&file, at, len).await
    }

    /// When any shard of this process last read what was not in memory, if one has: pages that come behind such a read may
    /// be on their way for a while. Reads that would not have had to wait may be among them.
    pub fn last_disk_read(&self) -> Option<MonoTime> {
        let nanos = LAST_DISK_READ.load(Ordering::Relaxed);
        (nanos > 0).then(|| MonoTime::new(nanos))
    }

    /// Has a range brought into the page cache, and what follows it up to `ahead` bytes from its start; waits until the
    /// range's last byte is there. To ask may wait for the disk's queue, so a thread beside the shard does it. The kernel
    /// may not take the advice: look before relying on it.
    ///
    /// # Errors
    /// What the operating system says.
    pub async fn read_ahead(&self, fd: &Arc<OwnedFd>, at: u64, len: u64, ahead: u64) -> io::Result<()> {
        let last = at.saturating_add(len).saturating_sub(1);
        let from = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        let wanted = libc::off_t::try_from(len.max(ahead)).map_err(|_| io::ErrorKind::InvalidInput)?;
        let asked = fd.clone();
        note_disk_read();
        let place = Place::Device(stat_of(fd.as_raw_fd())?.st_dev);
        self.blocking(place, Kind::Ahead, move || {
            let mut done = 0;
            while done < wanted {
                let part = AHEAD_PART_BYTES.min(wanted.saturating_sub(done));
                let at = from.saturating_add(done);
                // SAFETY: the descriptor is open: this closure holds it. It is advice: a failure is the same as none.
                let _ =
                    unsafe { libc::posix_fadvise(asked.as_raw_fd(), at, part, libc::POSIX_FADV_WILLNEED) };
                done = done.saturating_add(part);
            }
        })
        .await;
        self.read_span(fd, last, 1).await.map(drop)
    }

    /// Reads the kernel's counters for the pace, beside the shard: those of a control group are added up over all
    /// processors when they are read, which may take milliseconds.
    fn look(&self) {
        let runtime = self.clone();
        let task = self.spawn(Queue::Control, async move {
            let group = runtime.0.group.clone();
            let looked = runtime
                .blocking(Place::of_dir(Path::new("/proc")), Kind::Names, move || {
                    dirty_pages(group.as_deref())
                })
                .await;
            runtime.0.pace.borrow_mut().looked(runtime.now(), looked);
        });
        // The one before it is done: there is one look at a time.
        *self.0.looking.borrow_mut() = Some(task);
    }

    /// Opens a directory to sync it. Whoever asks for that has changed it and cannot go back: while there is no descriptor for
    /// it, it waits.
    async fn open_to_sync(&self, place: &Place, path: PathBuf) -> io::Result<(OwnedFd, PathBuf)> {
        loop {
            let to_open = path.clone();
            let open = move || open_file(&to_open, Open::Read);
            let opened = self.blocking(place.clone(), Kind::Names, open).await;
            match opened.map_err(located("open", &path)) {
                Ok(dir) => return Ok((dir, path)),
                Err(error) if is_exhausted(&error) => {
                    tell_exhausted(self.now(), "sync of a directory", &error);
                    self.sleep_until(self.now().plus_ms(EXHAUSTED_RETRY_MS)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn begin(&self) -> InFlight {
        self.0.in_flight.set(self.0.in_flight.get().saturating_add(1));
        InFlight(self.0.clone())
    }

    /// Runs something that blocks beside the shard. It must not panic: its caller would wait for ever.
    fn blocking<T: Send + 'static>(
        &self,
        place: Place,
        kind: Kind,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + 'static {
        let runtime = self.clone();
        async move {
            let _guard = runtime.begin();
            runtime.0.workers.run(place, kind, work).await
        }
    }
}

impl Default for GlommioRuntime {
    fn default() -> Self {
        Self::new()
    }
}

/// Counts one operation for [`GlommioRuntime::drain`].
struct InFlight(Rc<Inner>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get().saturating_sub(1));
    }
}

fn io_error(error: GlommioError<()>) -> io::Error {
    match error {
        GlommioError::IoError(error) | GlommioError::EnhancedIoError { source: error, .. } => error,
        other => io::Error::other(other.to_string()),
    }
}

/// Nanoseconds since the first call in this process: one clock for all shards.
fn monotonic_nanos() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    let now = clock(libc::CLOCK_MONOTONIC);
    let now = nanos_of(now.tv_sec).saturating_mul(NANOS_OF_A_SECOND).saturating_add(nanos_of(now.tv_nsec));
    now.saturating_sub(*START.get_or_init(|| now)).saturating_add(1)
}

fn wall_ms() -> i64 {
    let now = clock(libc::CLOCK_REALTIME);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

const NANOS_OF_A_SECOND: u64 = 1_000_000_000;

fn nanos_of(part: i64) -> u64 {
    u64::try_from(part).unwrap_or(0)
}

/// Asks one of the machine's clocks. A request does it some twenty times; by way of the standard library it takes a fifth longer
/// for the monotonic clock, and three quarters for the time of day.
fn clock(id: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is the kernel's structure and lives over the call, which fails for no clock that is there.
    unsafe { libc::clock_gettime(id, &raw mut now) };
    now
}

async fn sleep_until(at: MonoTime) {
    let wait = Duration::from_nanos(at.get().saturating_sub(monotonic_nanos()));
    if wait > TURN {
        glommio::timer::sleep(wait).await;
    } else {
        turn(TURN).await;
    }
}

/// A trip through the reactor, which does not wait for a timer as short as [`TURN`].
async fn turn(timer: Duration) {
    let mut waiting = None;
    poll_fn(|context| match &mut waiting {
        None => {
            waiting = Some(pending(context, || Timer::new(timer)));
            Poll::Pending
        }
        Some(timer) => Pin::new(timer).poll(context).map(drop),
    })
    .await;
}

/// Makes futures until one is not ready at once: it has left its waker. A timer may have passed before its first poll, if the
/// thread was held up in between, and would never reach the reactor.
fn pending<F: Future + Unpin>(context: &mut Context<'_>, mut make: impl FnMut() -> F) -> F {
    loop {
        let mut made = make();
        if Pin::new(&mut made).poll(context).is_pending() {
            return made;
        }
    }
}

impl Runtime for GlommioRuntime {
    type File = GlommioFile;
    type Task = glommio::Task<()>;

    fn now(&self) -> MonoTime {
        MonoTime::new(monotonic_nanos())
    }

    fn wall_ms(&self) -> i64 {
        wall_ms()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn spawn(&self, queue: Queue, task: impl Future<Output = ()> + 'static) -> glommio::Task<()> {
        let handle = match queue {
            Queue::Request => self.0.request,
            Queue::Control => self.0.control,
            Queue::Background => self.0.background,
        };
        match glommio::spawn_local_into(task, handle) {
            Ok(task) => task,
            // The queues were made on this executor and are never removed.
            Err(error) => unreachable!("task queue {queue:?}: {error}"),
        }
    }

    fn sleep_until(&self, at: MonoTime) -> impl Future<Output = ()> + 'static {
        sleep_until(at)
    }

    fn turn(&self) -> impl Future<Output = ()> + 'static {
        turn(TURN)
    }

    fn open(&self, path: &Path, how: Open) -> impl Future<Output = io::Result<GlommioFile>> + 'static {
        let (runtime, path) = (self.clone(), path.to_owned());
        async move {
            let place = Place::of_file(&path);
            let open = move || (open_file(&path, how), path);
            let (fd, path) = runtime.blocking(place, Kind::Names, open).await;
            let fd = Arc::new(fd.map_err(located("open", &path))?);
            let (path, buffered) = (path.into(), buffered(&fd));
            Ok(GlommioFile(Rc::new(Opened { runtime, path, fd: Some(fd), buffered, syncing: Cell::new(0) })))
        }
    }

    fn dir(&self, op: DirOp) -> impl Future<Output = io::Result<DirDone>> + 'static {
        let runtime = self.clone();
        async move {
            let place = place_of(&op);
            if let DirOp::Sync(path) = op {
                let (dir, path) = runtime.open_to_sync(&place, path).await?;
                // SAFETY: the descriptor is open: this closure holds it.
                let sync = move || ended(|| unsafe { libc::fsync(dir.as_raw_fd()) });
                let synced = runtime.blocking(place, Kind::Sync, sync).await;
                return synced.map(|()| DirDone::Done).map_err(located("sync", &path));
            }
            let kind = kind_of(&op);
            runtime.blocking(place, kind, move || operate(&op).map_err(located(op.verb(), op.path()))).await
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the Runtime that A-11 takes files from")]
fn open_file(path: &Path, how: Open) -> io::Result<OwnedFd> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    match how {
        Open::Read => options.write(false),
        Open::Existing => options.write(true),
        Open::Create => options.write(true).create(true).truncate(false),
        Open::CreateEmpty => options.write(true).create(true).truncate(true),
    };
    options.open(path).map(OwnedFd::from)
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<DirDone> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(DirDone::Done),
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the Runtime that A-11 takes files from")]
fn operate(op: &DirOp) -> io::Result<DirDone> {
    match op {
        DirOp::List(path) => list(path),
        DirOp::CreateAll(path) => fs::create_dir_all(path).map(|()| DirDone::Done),
        DirOp::Rename { from, to } => fs::rename(from, to).map(|()| DirDone::Done),
        DirOp::Unlink(path) => missing_is_fine(fs::remove_file(path)),
        DirOp::RemoveAll(path) => match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => missing_is_fine(fs::remove_dir_all(path)),
            Ok(_) => missing_is_fine(fs::remove_file(path)),
            Err(error) => missing_is_fine(Err(error)),
        },
        // Has a lane of its own.
        DirOp::Sync(path) => fs::File::open(path)?.sync_all().map(|()| DirDone::Done),
        DirOp::Stat(path) => {
            let found = fs::metadata(path)?;
            let modified_ms = match found.modified()?.duration_since(UNIX_EPOCH) {
                Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
                Err(_) => 0,
            };
            let size = if found.is_dir() { 0 } else { found.len() };
            Ok(DirDone::Stat { size, modified_ms, is_dir: found.is_dir() })
        }
        DirOp::SetModified { path, modified_ms } => {
            let at = UNIX_EPOCH + Duration::from_millis(u64::try_from(*modified_ms).unwrap_or(0));
            fs::File::open(path)?.set_modified(at).map(|()| DirDone::Done)
        }
        DirOp::Space(path) => space(path),
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the Runtime that A-11 takes files from")]
fn list(path: &Path) -> io::Result<DirDone> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match fs::metadata(entry.path()) {
            Ok(found) => {
                let is_dir = found.is_dir();
                entries.push(DirEntry { name, is_dir, size: if is_dir { 0 } else { found.len() } });
            }
            // Unlinked between the two calls.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    entries.sort();
    Ok(DirDone::Entries(entries))
}

fn space(path: &Path) -> io::Result<DirDone> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and `stat` is as large as the kernel's structure.
    if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let stat = unsafe { stat.assume_init() };
    let total = stat.f_blocks.saturating_mul(stat.f_frsize);
    let usable = stat.f_bavail.saturating_mul(stat.f_frsize);
    Ok(DirDone::Space { total, usable })
}

/// glommio's view of a descriptor that it must not close.
fn buffered(fd: &Arc<OwnedFd>) -> ManuallyDrop<BufferedFile> {
    // SAFETY: the descriptor is open. The view is never dropped, so that it never closes it; whoever holds the view
    // holds the descriptor as long. The view owns nothing else (no path, no scheduler).
    ManuallyDrop::new(unsafe { BufferedFile::from_raw_fd(fd.as_raw_fd()) })
}

/// Writes without waiting for the disk, as long as the kernel does not throttle.
fn write_now(fd: &OwnedFd, pieces: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
    let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // More than the kernel takes at once: the caller goes on with the rest.
    let pieces = pieces.get(..VECTORS_MAX).unwrap_or(pieces);
    let count = libc::c_int::try_from(pieces.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        // SAFETY: the descriptor is open, `IoSlice` is laid out as the kernel's vector, and the kernel only reads the
        // pieces, which live over the call.
        let written = unsafe { libc::pwritev(fd.as_raw_fd(), pieces.as_ptr().cast(), count, at) };
        match usize::try_from(written) {
            Ok(written) => return Ok(written),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Reads what is in memory; `None` where the kernel cannot do it without a wait.
fn read_now(fd: &OwnedFd, at: u64, into: &mut [u8]) -> Option<io::Result<usize>> {
    let at = libc::off_t::try_from(at).ok()?;
    let vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the descriptor is open, and the vector covers `into`, which nobody else refers to while the call runs.
    let read = unsafe { libc::preadv2(fd.as_raw_fd(), &raw const vector, 1, at, libc::RWF_NOWAIT) };
    if let Ok(read) = usize::try_from(read) {
        return Some(Ok(read));
    }
    let error = io::Error::last_os_error();
    let must_wait = [libc::EAGAIN, libc::EINTR, libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL];
    if error.raw_os_error().is_some_and(|code| must_wait.contains(&code)) { None } else { Some(Err(error)) }
}

/// What the kernel says in a file of its own; no disk is waited for.
#[allow(clippy::disallowed_methods, reason = "this is the Runtime that A-11 takes files from")]
fn text_of(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// What the kernel says of dirty pages.
fn dirty_pages(group: Option<&Group>) -> Looked {
    let Some(vmstat) = text_of(Path::new("/proc/vmstat")) else { return [None, None] };
    // SAFETY: asks for a constant of the machine.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page_bytes = u64::try_from(page_bytes).unwrap_or(4096);
    [DirtyPages::parse(&vmstat), group.and_then(|group| group.dirty_pages(&vmstat, page_bytes, text_of))]
}

fn note_disk_read() {
    LAST_DISK_READ.store(monotonic_nanos(), Ordering::Relaxed);
}

async fn read_fully(file: &BufferedFile, at: u64, len: usize) -> io::Result<BytesMut> {
    let mut into = BytesMut::new();
    note_disk_read();
    while into.len() < len {
        let done = u64::try_from(into.len()).unwrap_or(u64::MAX);
        let rest = len.saturating_sub(into.len());
        let part = file.read_at(at.saturating_add(done), rest).await.map_err(io_error)?;
        if part.is_empty() {
            break;
        }
        into.extend_from_slice(&part);
    }
    note_disk_read();
    Ok(into)
}

/// An open file.
#[derive(Clone)]
pub struct GlommioFile(Rc<Opened>);

struct Opened {
    runtime: GlommioRuntime,
    /// The name under which it was opened, for errors.
    path: Box<Path>,
    /// Always there until the drop.
    fd: Option<Arc<OwnedFd>>,
    buffered: ManuallyDrop<BufferedFile>,
    /// Syncs of this file that are under way.
    syncing: Cell<u32>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.runtime.0.workers.post(Place::of_file(&self.path), Kind::Close, move || drop(fd));
        }
    }
}

impl GlommioFile {
    fn failed(&self, verb: &'static str) -> impl FnOnce(io::Error) -> io::Error {
        located(verb, &self.0.path)
    }

    fn fd(&self) -> io::Result<Arc<OwnedFd>> {
        self.0.fd.clone().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl File for GlommioFile {
    fn write_at(&self, bytes: Bytes, at: u64) -> impl Future<Output = io::Result<usize>> + 'static {
        let file = self.clone();
        async move {
            let piece = bytes.get(..WRITE_NOW_BYTES_MAX).unwrap_or(&bytes);
            let Some(written) = file.write_now(&[IoSlice::new(piece)], at) else {
                let _guard = file.0.runtime.begin();
                // glommio takes a Vec away: a copy, unless these are the only bytes of their buffer.
                let written = file.0.buffered.write_at(Vec::from(bytes), at).await;
                return written.map_err(io_error).map_err(file.failed("write"));
            };
            let written = written?;
            if written < bytes.len() {
                // The caller goes on with the rest; the others of the shard have their turn before.
                file.0.runtime.turn().await;
            }
            Ok(written)
        }
    }

    fn write_now(&self, pieces: &[IoSlice<'_>], at: u64) -> Option<io::Result<usize>> {
        let runtime = &self.0.runtime;
        let pace = &runtime.0.pace;
        let fd = self.0.fd.as_deref()?;
        let began = runtime.now();
        let len = pieces.iter().map(|piece| piece.len()).fold(0usize, usize::saturating_add);
        // While the kernel looks for room for what it writes back, it holds a lock that an append needs.
        let must_wait = len > WRITE_NOW_BYTES_MAX || self.0.syncing.get() > 0;
        if must_wait {
            return None;
        }
        let (way, look) = pace.borrow_mut().way(began);
        if look {
            runtime.look();
        }
        if way == Way::Ring {
            return None;
        }
        let written = write_now(fd, pieces, at).map_err(self.failed("write"));
        if let Ok(written) = written {
            pace.borrow_mut().wrote(written, began, runtime.now());
        }
        Some(written)
    }

    fn read_now(&self, at: u64, into: &mut [u8]) -> Option<io::Result<usize>> {
        let fd = self.0.fd.as_deref()?;
        if into.len() > READ_NOW_BYTES_MAX {
            return None;
        }
        read_now(fd, at, into).map(|read| read.map_err(self.failed("read")))
    }

    fn read_at(&self, at: u64, len: usize) -> impl Future<Output = io::Result<BytesMut>> + 'static {
        let file = self.clone();
        async move {
            let _guard = file.0.runtime.begin();
            read_fully(&file.0.buffered, at, len).await.map_err(file.failed("read"))
        }
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.clone();
        async move {
            let fd = file.fd()?;
            let _syncing = Syncing::begin(&file);
            let sync = move || {
                let raw = fd.as_raw_fd();
                // SAFETY: the descriptor is open: this closure holds it.
                write_back_settled(raw).and_then(|()| ended(|| unsafe { libc::fdatasync(raw) }))
            };
            let synced = file.0.runtime.blocking(Place::of_file(&file.0.path), Kind::Sync, sync).await;
            synced.map_err(file.failed("sync"))
        }
    }

    fn truncate(&self, len: u64) -> impl Future<Output = io::Result<()>> + 'static {
        let file = self.clone();
        async move {
            let fd = file.fd()?;
            let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
            // SAFETY: the descriptor is open: this closure holds it.
            let cut = move || ended(|| unsafe { libc::ftruncate(fd.as_raw_fd(), len) });
            let cut = file.0.runtime.blocking(Place::of_file(&file.0.path), Kind::Names, cut).await;
            cut.map_err(file.failed("truncate"))
        }
    }

    fn size(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        let file = self.clone();
        async move {
            let fd = file.fd()?;
            let stat = stat_of(fd.as_raw_fd()).map_err(file.failed("look at"))?;
            u64::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
        }
    }

    fn span(&self, at: u64, len: u32) -> Span {
        match &self.0.fd {
            Some(fd) => Span::File { fd: fd.clone(), at, len },
            None => Span::Memory(Bytes::new()),
        }
    }
}

/// Counts a sync of a file until it is dropped. The thread may be at it for longer when nobody waits any more.
struct Syncing(GlommioFile);

impl Syncing {
    fn begin(file: &GlommioFile) -> Self {
        file.0.syncing.set(file.0.syncing.get().saturating_add(1));
        Self(file.clone())
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        let syncing = &self.0.0.syncing;
        syncing.set(syncing.get().saturating_sub(1));
    }
}

/// What a system call says that answers 0 when all is well. One that a signal has interrupted is made again, as those of the
/// standard library are.
fn ended(call: impl Fn() -> libc::c_int) -> io::Result<()> {
    loop {
        if call() == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

/// What the kernel knows of an open file: its inode is in memory, so that nobody waits.
fn stat_of(fd: RawFd) -> io::Result<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    let into = stat.as_mut_ptr();
    // SAFETY: the descriptor is open, and `stat` is as large as the kernel's structure.
    ended(|| unsafe { libc::fstat(fd, into) })?;
    // SAFETY: the call succeeded, so it has filled the structure.
    Ok(unsafe { stat.assume_init() })
}

/// Lets the calling thread run wherever the process may: a shard's thread, which starts it, stays on its core, and long
/// work beside it would take that core away.
fn unbind() {
    let mut set = std::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is as large as it is said to be, and zeroed; the first call fills it with the set of the process's first
    // thread, and the second only reads it. Where either fails the thread stays where it is.
    unsafe {
        if libc::sched_getaffinity(libc::getpid(), size, set.as_mut_ptr()) == 0 {
            libc::sched_setaffinity(0, size, set.as_ptr());
        }
    }
}

/// Makes the calling thread nicer than its shard: it gets a tenth of what the shard gets where both want the same core.
fn give_way() {
    const NICER: libc::c_int = 10;
    // SAFETY: no memory is involved; on Linux it is the calling thread that becomes nicer. A system that refuses leaves it as
    // it is.
    unsafe { libc::nice(NICER) };
}

/// On which disk an operation on names is done, as far as its path tells.
fn place_of(op: &DirOp) -> Place {
    match op {
        DirOp::List(path)
        | DirOp::CreateAll(path)
        | DirOp::RemoveAll(path)
        | DirOp::Sync(path)
        | DirOp::Space(path) => Place::of_dir(path),
        DirOp::Rename { from: path, .. }
        | DirOp::Unlink(path)
        | DirOp::Stat(path)
        | DirOp::SetModified { path, .. } => Place::of_entry(path),
    }
}

/// What takes long is kept apart: a log, or a segment that left its log.
fn kind_of(op: &DirOp) -> Kind {
    let is_large = match op {
        DirOp::RemoveAll(_) => true,
        DirOp::Unlink(path) => path.extension().is_some_and(|extension| extension == "deleted"),
        _ => false,
    };
    if is_large { Kind::Removal } else { Kind::Names }
}

/// The page cache's folios are at most so large, and lie at multiples of their size.
const FOLIO_BYTES_MAX: i64 = 2 << 20;

/// Writes back the pages of a file that appends do not touch any more, and waits for them, so that the sync that follows
/// has little left. A sync holds the lock of each folio until the disk's queue takes it; where that queue is full (the
/// kernel throttles writeback behind reads) an append to the last folio would wait, and with it the shard.
///
/// # Errors
/// A page could not be written: the kernel tells it once, here, and not again to the sync that follows.
fn write_back_settled(fd: RawFd) -> io::Result<()> {
    let stat = stat_of(fd)?;
    let settled = stat.st_size / FOLIO_BYTES_MAX * FOLIO_BYTES_MAX;
    if settled == 0 || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Ok(());
    }
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open.
    match ended(|| unsafe { libc::sync_file_range(fd, 0, settled, flags) }) {
        // The sync does it all.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests;

//! The deterministic implementation of [`Runtime`]: one thread, a virtual clock, a file system in memory, and
//! everything that can go wrong with it, from one seed. For tests of any crate; nothing in production calls it.
//!
//! ```
//! use storage::io::sim::SimRuntime;
//! use storage::io::{File, Open, Runtime};
//!
//! let runtime = SimRuntime::new(7);
//! let size = runtime.block_on({
//!     let runtime = runtime.clone();
//!     async move {
//!         let file = runtime.open("/a".as_ref(), Open::Create).await?;
//!         file.write_at(bytes::Bytes::from_static(b"abc"), 0).await?;
//!         file.size().await
//!     }
//! });
//! assert_eq!(size.unwrap(), 3);
//! ```

mod disk;
mod faults;
#[cfg(test)]
mod tests;
mod trace;
mod world;

use std::future::Future;
use std::io::{self, IoSlice};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use protocol::types::MonoTime;

pub use disk::Crash;
pub use faults::{Fault, Latency, OpKind, Operation};
pub use trace::{Replay, Step, StepKind, Trace};
pub use world::SimTask;

use super::{DirDone, DirOp, File, Open, Queue, Runtime, Span, WRITE_NOW_BYTES_MAX, located};
use disk::{Inode, Tree};
use faults::Faults;
use trace::{Asked, Recorder};
use world::World;

/// What the wall clock shows when a simulation starts: 2023-11-14 22:13:20 UTC.
const WALL_START_MS: i64 = 1_700_000_000_000;

/// What a simulated disk of no set capacity says it has.
const NOMINAL_CAPACITY_BYTES: u64 = 1 << 40;

/// A disk. Clones share it; it outlives the runtimes that use it.
#[derive(Clone, Default)]
pub struct SimDisk {
    tree: Rc<Tree>,
    faults: Rc<Faults>,
    recorder: Rc<Recorder>,
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// The disk as a crash at this moment leaves it; this disk is not changed. Operations under way have not happened.
    #[must_use]
    pub fn crash(&self, mode: Crash) -> Self {
        Self { tree: Rc::new(self.tree.crash(mode)), faults: Rc::default(), recorder: Rc::default() }
    }

    /// Starts to write down what changes the disk. Everything on it counts as durable, and no file is open.
    pub fn start_trace(&self) {
        self.recorder.start(self.crash(Crash::KeepAll));
    }

    /// How many steps were written down.
    pub fn trace_len(&self) -> usize {
        self.recorder.len()
    }

    /// The steps so far; `None` if they were never written down.
    pub fn trace(&self) -> Option<Trace> {
        self.recorder.trace()
    }

    /// A number that tells disks apart by their names and the contents of their files; equal ones have the same.
    pub fn fingerprint(&self) -> u64 {
        self.tree.fingerprint()
    }

    /// Plans an error.
    pub fn fail(&self, fault: Fault) {
        self.faults.plan(fault);
    }

    /// Takes back every planned error, the capacity and short writes.
    pub fn heal(&self) {
        self.faults.clear();
    }

    /// Lets writes fail with ENOSPC once all files together would hold more than this; `None` for no bound.
    pub fn set_capacity_bytes(&self, capacity: Option<u64>) {
        self.faults.capacity_bytes.set(capacity);
    }

    /// Of 100 writes so many write less than they were asked, but at least one byte.
    pub fn set_short_write_percent(&self, percent: u64) {
        self.faults.short_write_percent.set(percent);
    }

    /// Of 100 writes that may be made at once so many are, without a wait; at first none.
    pub fn set_write_now_percent(&self, percent: u64) {
        self.faults.write_now_percent.set(percent);
    }

    /// Of 100 reads that may be made at once so many are, as far as their bytes are in memory; at first none.
    pub fn set_read_now_percent(&self, percent: u64) {
        self.faults.read_now_percent.set(percent);
    }

    /// How long an operation takes, syncs aside.
    pub fn set_latency(&self, latency: Latency) {
        self.faults.latency.set(latency);
    }

    /// How long a sync takes.
    pub fn set_sync_latency(&self, latency: Latency) {
        self.faults.sync_latency.set(latency);
    }

    /// Makes each operation on paths that contain `part` take so much longer, from now on; `None` ends that.
    pub fn set_slow(&self, slow: Option<(&'static str, u64)>) {
        self.faults.slow.set(slow);
    }

    /// Lets the operation of this number and all later ones never happen and never end, as when the machine dies there.
    pub fn freeze_from(&self, number: u64) {
        self.faults.frozen_from.set(number);
    }

    /// How many operations took effect or failed.
    pub fn operation_count(&self) -> u64 {
        self.faults.count()
    }

    /// Starts to keep a record of each operation.
    pub fn record_operations(&self) {
        self.faults.start_recording();
    }

    /// The records so far, in the order in which operations took effect.
    pub fn operations(&self) -> Vec<Operation> {
        self.faults.records()
    }

    /// The whole content of a file, past every fault.
    pub fn content(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let inode = self.tree.open(path.as_ref(), Open::Read, 0).ok()?;
        Some(inode.read(0, usize::MAX))
    }

    /// Puts content into a file, past every fault, and makes it and its name durable; for damaged files.
    ///
    /// # Errors
    /// When the directory of the path does not exist.
    pub fn put(&self, path: impl AsRef<Path>, content: &[u8]) -> io::Result<()> {
        let path = path.as_ref();
        let inode = self.tree.open(path, Open::CreateEmpty, WALL_START_MS)?;
        inode.write(content, 0, WALL_START_MS);
        inode.sync();
        self.tree.operate(DirOp::Sync(path.parent().unwrap_or(Path::new("/")).to_owned()))?;
        Ok(())
    }

    fn used_bytes(&self) -> u64 {
        self.tree.used_bytes()
    }

    fn capacity_bytes(&self) -> u64 {
        self.faults.capacity_bytes.get().unwrap_or(NOMINAL_CAPACITY_BYTES)
    }
}

/// Clock, tasks and files of one simulated shard. Several share a world by [`SimRuntime::sibling`].
#[derive(Clone)]
pub struct SimRuntime {
    world: Rc<World>,
    disk: SimDisk,
    group: u64,
}

impl SimRuntime {
    /// A new world with one empty disk.
    pub fn new(seed: u64) -> Self {
        Self::on(seed, SimDisk::new())
    }

    /// A new world with this disk: a machine that starts again after a crash.
    pub fn on(seed: u64, disk: SimDisk) -> Self {
        let world = World::new(seed);
        let group = world.number();
        Self { world, disk, group }
    }

    /// Another process or shard in the same world: same clock and same scheduling, its own tasks, this disk.
    #[must_use]
    pub fn sibling(&self, disk: SimDisk) -> Self {
        Self { world: self.world.clone(), disk, group: self.world.number() }
    }

    /// The disk.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Runs the whole world until the future is done. Time passes only while nothing is ready.
    ///
    /// # Panics
    /// When every task waits and no timer is set.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(future)
    }

    /// Runs the whole world until no task is ready and no I/O is under way; tasks that sleep go on sleeping.
    pub fn run_until_idle(&self) {
        self.world.run_until_idle();
    }

    /// Runs the whole world for a time.
    pub fn advance_nanos(&self, nanos: u64) {
        self.world.advance(nanos);
    }

    /// Runs the whole world for a time.
    pub fn advance_ms(&self, ms: u64) {
        self.world.advance(ms.saturating_mul(1_000_000));
    }

    /// Drops all tasks that were spawned through this runtime and its clones, as the death of the process does.
    /// Operations that the disk has already begun still happen.
    pub fn kill(&self) {
        self.world.kill(self.group);
    }

    /// How many times tasks were polled: the measure of a loop that spins.
    pub fn polls(&self) -> u64 {
        self.world.polls()
    }

    /// Does something after a time, without a task; for simulated wires.
    pub fn after_nanos(&self, nanos: u64, action: impl FnOnce() + 'static) {
        self.world.run_at(self.world.now().saturating_add(nanos), Box::new(action));
    }

    /// A number below `bound` from the stream of faults and delays, which is not the one of [`Runtime::random`].
    pub fn draw_below(&self, bound: u64) -> u64 {
        self.world.faults.below(bound)
    }

    /// Does one operation after its latency. `action` gets the planned fault, if any, and passes it on.
    async fn operate<T: 'static>(
        self,
        kind: OpKind,
        path: PathBuf,
        at: u64,
        action: impl FnOnce(&SimDisk, i64, io::Result<()>) -> io::Result<(T, usize)> + 'static,
    ) -> io::Result<T> {
        let latency = match kind {
            OpKind::SyncData | OpKind::SyncDir => self.disk.faults.sync_latency.get(),
            _ => self.disk.faults.latency.get(),
        };
        let nanos = latency.draw(&self.world.faults).saturating_add(self.disk.faults.extra_nanos(&path));
        let world = self.world.clone();
        let result = world.perform(nanos, move || self.take_effect(kind, path, at, action)).await;
        match result {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }

    /// Does one operation at this moment; `None` when the machine is dead.
    fn take_effect<T>(
        &self,
        kind: OpKind,
        path: PathBuf,
        at: u64,
        action: impl FnOnce(&SimDisk, i64, io::Result<()>) -> io::Result<(T, usize)>,
    ) -> Option<io::Result<T>> {
        let faults = &self.disk.faults;
        let number = faults.next_number();
        if faults.is_frozen(number) {
            return None;
        }
        let planned = faults.check(kind, &path);
        let result = action(&self.disk, self.wall_ms(), planned);
        let result = result.map_err(located(kind.verb(), &path));
        faults.record(|| Operation {
            number,
            kind,
            path,
            at,
            len: result.as_ref().map_or(0, |(_, len)| *len),
            done: result.is_ok(),
        });
        Some(result.map(|(value, _)| value))
    }
}

impl Runtime for SimRuntime {
    type File = SimFile;
    type Task = SimTask;

    fn now(&self) -> MonoTime {
        world::mono(self.world.now())
    }

    fn wall_ms(&self) -> i64 {
        WALL_START_MS.saturating_add(i64::try_from(self.world.now() / 1_000_000).unwrap_or(i64::MAX))
    }

    fn random(&self) -> u64 {
        self.world.user.next()
    }

    fn spawn(&self, _queue: Queue, task: impl Future<Output = ()> + 'static) -> SimTask {
        self.world.spawn(self.group, Box::pin(task))
    }

    fn sleep_until(&self, at: MonoTime) -> impl Future<Output = ()> + 'static {
        self.world.sleep_until(at.get())
    }

    fn turn(&self) -> impl Future<Output = ()> + 'static {
        self.world.sleep_until(self.world.now().saturating_add(2_000))
    }

    #[track_caller]
    fn open(&self, path: &Path, how: Open) -> impl Future<Output = io::Result<SimFile>> + 'static {
        let site = Location::caller();
        let (runtime, path) = (self.clone(), path.to_owned());
        async move {
            let (for_file, file_path) = (runtime.clone(), path.clone());
            runtime
                .operate(OpKind::Open, path, 0, move |disk, wall_ms, planned| {
                    planned?;
                    let inode = disk.tree.open(&file_path, how, wall_ms)?;
                    let writable = how != Open::Read;
                    let handle = disk.recorder.opened(&file_path, how, Asked { site, wall_ms });
                    Ok((SimFile { runtime: for_file, inode, handle, path: file_path.into(), writable }, 0))
                })
                .await
        }
    }

    #[track_caller]
    fn dir(&self, op: DirOp) -> impl Future<Output = io::Result<DirDone>> + 'static {
        let site = Location::caller();
        let runtime = self.clone();
        async move {
            let kind = if matches!(op, DirOp::Sync(_)) { OpKind::SyncDir } else { OpKind::Names };
            runtime
                .operate(kind, op.path().to_owned(), 0, move |disk, wall_ms, planned| {
                    planned?;
                    let space = matches!(op, DirOp::Space(_));
                    let done = disk.tree.operate(op.clone())?;
                    disk.recorder.named(&op, Asked { site, wall_ms });
                    if space {
                        let total = disk.capacity_bytes();
                        let usable = total.saturating_sub(disk.used_bytes());
                        return Ok((DirDone::Space { total, usable }, 0));
                    }
                    Ok((done, 0))
                })
                .await
        }
    }
}

/// An open file of a [`SimDisk`].
#[derive(Clone)]
pub struct SimFile {
    runtime: SimRuntime,
    inode: Rc<Inode>,
    /// Its number in a trace.
    handle: u64,
    path: Rc<Path>,
    writable: bool,
}

impl SimFile {
    /// Writes what the disk takes.
    fn write(&self, bytes: &[u8], at: u64, asked: Asked) -> io::Result<(usize, usize)> {
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let at = position(at)?;
        let granted = writable_bytes(&self.runtime, self.inode.size(), at, bytes.len())?;
        let bytes = bytes.get(..granted).unwrap_or_default();
        self.inode.write(bytes, at, asked.wall_ms);
        self.recorder().written(&self.path, self.handle, at, bytes, asked);
        Ok((granted, granted))
    }

    fn recorder(&self) -> &Recorder {
        &self.runtime.disk.recorder
    }

    fn operate<T: 'static>(
        &self,
        kind: OpKind,
        at: u64,
        action: impl FnOnce(&SimFile, i64, io::Result<()>) -> io::Result<(T, usize)> + 'static,
    ) -> impl Future<Output = io::Result<T>> + 'static {
        let (runtime, file) = (self.runtime.clone(), self.clone());
        async move {
            let path = file.path.to_path_buf();
            runtime.operate(kind, path, at, move |_, wall_ms, planned| action(&file, wall_ms, planned)).await
        }
    }
}

fn position(at: u64) -> io::Result<usize> {
    usize::try_from(at).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// How much of a write a disk takes now.
fn writable_bytes(runtime: &SimRuntime, size: usize, at: usize, len: usize) -> io::Result<usize> {
    let faults = &runtime.disk.faults;
    let mut granted = len;
    if faults.capacity_bytes.get().is_some() {
        let free = runtime.disk.capacity_bytes().saturating_sub(runtime.disk.used_bytes());
        let free = usize::try_from(free).unwrap_or(usize::MAX);
        granted = granted.min(size.saturating_add(free).saturating_sub(at));
        if granted == 0 && len > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
    }
    let short = runtime.world.faults.below(100) < faults.short_write_percent.get();
    if short && granted > 1 {
        let below = u64::try_from(granted).unwrap_or(u64::MAX).saturating_sub(1);
        granted = usize::try_from(runtime.world.faults.below(below)).unwrap_or(0).saturating_add(1);
    }
    Ok(granted)
}

impl File for SimFile {
    #[track_caller]
    fn write_at(&self, bytes: Bytes, at: u64) -> impl Future<Output = io::Result<usize>> + 'static {
        let site = Location::caller();
        self.operate(OpKind::Write, at, move |file, wall_ms, planned| {
            planned?;
            file.write(&bytes, at, Asked { site, wall_ms })
        })
    }

    #[track_caller]
    fn write_now(&self, pieces: &[IoSlice<'_>], at: u64) -> Option<io::Result<usize>> {
        let joined;
        let bytes = match pieces {
            [piece] => &**piece,
            pieces => {
                joined = pieces.iter().map(|piece| &**piece).collect::<Vec<_>>().concat();
                &joined
            }
        };
        if bytes.len() > WRITE_NOW_BYTES_MAX {
            return None;
        }
        let percent = self.runtime.disk.faults.write_now_percent.get();
        // Without a draw for worlds that do not use it, which so stay what they are.
        if percent == 0 || self.runtime.world.faults.below(100) >= percent {
            return None;
        }
        let site = Location::caller();
        // Once the machine is dead, the operation to come never ends.
        self.runtime.take_effect(OpKind::Write, self.path.to_path_buf(), at, |_, wall_ms, planned| {
            planned?;
            self.write(bytes, at, Asked { site, wall_ms })
        })
    }

    fn read_now(&self, at: u64, into: &mut [u8]) -> Option<io::Result<usize>> {
        let (faults, len) = (&self.runtime.world.faults, u64::try_from(into.len()).unwrap_or(u64::MAX));
        let percent = self.runtime.disk.faults.read_now_percent.get();
        // Without a draw for worlds that do not use it, which so stay what they are.
        if len == 0 || percent == 0 || faults.below(100) >= percent {
            return None;
        }
        let resident = usize::try_from(faults.below(len)).unwrap_or(0).saturating_add(1);
        // Once the machine is dead, the operation to come never ends.
        self.runtime.take_effect(OpKind::Read, self.path.to_path_buf(), at, |_, _, planned| {
            planned?;
            let read = self.inode.read(position(at)?, resident);
            if let Some(into) = into.get_mut(..read.len()) {
                into.copy_from_slice(&read);
            }
            Ok((read.len(), read.len()))
        })
    }

    fn read_at(&self, at: u64, len: usize) -> impl Future<Output = io::Result<BytesMut>> + 'static {
        self.operate(OpKind::Read, at, move |file, _, planned| {
            planned?;
            let read = file.inode.read(position(at)?, len);
            let count = read.len();
            Ok((BytesMut::from(read.as_slice()), count))
        })
    }

    #[track_caller]
    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let site = Location::caller();
        let file = self.clone();
        async move {
            // What is written from here on is none of its business.
            let (syncing, began) = (file.inode.begin_sync(), file.recorder().len());
            file.operate(OpKind::SyncData, 0, move |file, wall_ms, planned| {
                match &planned {
                    Ok(()) => {
                        file.inode.end_sync(syncing);
                        let asked = Asked { site, wall_ms };
                        file.recorder().synced(&file.path, file.handle, began, asked);
                    }
                    Err(_) => file.inode.fail_sync(),
                }
                planned.map(|()| ((), 0))
            })
            .await
        }
    }

    #[track_caller]
    fn truncate(&self, len: u64) -> impl Future<Output = io::Result<()>> + 'static {
        let site = Location::caller();
        self.operate(OpKind::Truncate, len, move |file, wall_ms, planned| {
            planned?;
            let len = position(len)?;
            file.inode.truncate(len, wall_ms);
            file.recorder().truncated(&file.path, file.handle, len, Asked { site, wall_ms });
            Ok(((), 0))
        })
    }

    fn size(&self) -> impl Future<Output = io::Result<u64>> + 'static {
        self.operate(OpKind::Names, 0, |file, _, planned| {
            planned?;
            Ok((u64::try_from(file.inode.size()).unwrap_or(u64::MAX), 0))
        })
    }

    /// The bytes as they are now: a simulated file has no descriptor to refer to.
    fn span(&self, at: u64, len: u32) -> Span {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Span::Memory(self.inode.read(at, len).into())
    }
}

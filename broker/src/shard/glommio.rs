//! The real [`ShardRuntime`]: one glommio executor. Made by [`super::start`], one per thread; never leaves it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use protocol::types::MonoTime;
use storage::io::glommio::{GlommioFile, GlommioRuntime};
use storage::io::{DirDone, DirOp, Open, Queue, Runtime};

use super::channel::{self, ChannelMesh, ChannelSeat};
use super::resident::FileSends;
use super::tcp::{SCRATCH_BYTES, TcpAcceptor, TcpConn};
use super::{Class, ShardId, ShardRuntime};

/// One shard: its executor's runtime, its place among the shards. Cheap to clone.
#[derive(Clone)]
pub struct GlommioShard {
    runtime: GlommioRuntime,
    shard: ShardId,
    count: u16,
    /// Where small reads land before they are appended to their frames; one for all connections of the shard.
    scratch: Rc<RefCell<Vec<u8>>>,
    sends: Rc<FileSends>,
    late_wakes: Rc<Cell<u64>>,
    tasks: Rc<Cell<u64>>,
}

impl GlommioShard {
    /// Makes the shard of the executor that polls the caller.
    pub(super) fn new(shard: ShardId, count: u16) -> Self {
        Self {
            runtime: GlommioRuntime::new(),
            shard,
            count,
            scratch: Rc::new(RefCell::new(vec![0; SCRATCH_BYTES])),
            sends: Rc::default(),
            late_wakes: Rc::default(),
            tasks: Rc::default(),
        }
    }

    /// The runtime below.
    pub fn runtime(&self) -> &GlommioRuntime {
        &self.runtime
    }

    /// How often the ticker woke much later than it had asked for: the shard was busy without turns, the machine was
    /// overloaded, or glommio parked with work to do (glommio.md b1).
    pub fn late_wakes(&self) -> u64 {
        self.late_wakes.get()
    }

    /// How often a task was polled, as of the last tick.
    pub fn tasks(&self) -> u64 {
        self.tasks.get()
    }

    /// Pieces of files that were not in memory when they were to be sent.
    pub fn cold_pieces(&self) -> u64 {
        self.sends.cold()
    }

    /// Pieces of files whose sending took so long that a disk may have been waited for.
    pub fn slow_sends(&self) -> u64 {
        self.sends.slow()
    }

    pub(super) fn count_tasks(&self, more: u64) {
        self.tasks.set(self.tasks.get().saturating_add(more));
    }

    pub(super) fn count_late_wake(&self) {
        self.late_wakes.set(self.late_wakes.get().saturating_add(1));
    }
}

impl Runtime for GlommioShard {
    type File = GlommioFile;
    type Task = glommio::Task<()>;

    fn now(&self) -> MonoTime {
        self.runtime.now()
    }
    fn wall_ms(&self) -> i64 {
        self.runtime.wall_ms()
    }
    fn random(&self) -> u64 {
        self.runtime.random()
    }
    fn spawn(&self, queue: Queue, task: impl Future<Output = ()> + 'static) -> Self::Task {
        self.runtime.spawn(queue, task)
    }
    fn sleep_until(&self, at: MonoTime) -> impl Future<Output = ()> + 'static {
        self.runtime.sleep_until(at)
    }
    fn turn(&self) -> impl Future<Output = ()> + 'static {
        self.runtime.turn()
    }
    fn open(&self, path: &Path, how: Open) -> impl Future<Output = io::Result<GlommioFile>> + 'static {
        self.runtime.open(path, how)
    }
    fn dir(&self, op: DirOp) -> impl Future<Output = io::Result<DirDone>> + 'static {
        self.runtime.dir(op)
    }
}

impl ShardRuntime for GlommioShard {
    type Conn = TcpConn;
    type Acceptor = TcpAcceptor;
    type Seat<M: Send + 'static> = ChannelSeat<M>;
    type Mesh<M: Send + 'static> = ChannelMesh<M>;

    fn shard(&self) -> ShardId {
        self.shard
    }

    fn shard_count(&self) -> u16 {
        self.count
    }

    fn seats<M: Send + 'static>(shards: u16, _class: Class, capacity: usize) -> Vec<ChannelSeat<M>> {
        channel::seats(shards, capacity)
    }

    fn join<M: Send + 'static>(&self, seat: ChannelSeat<M>) -> ChannelMesh<M> {
        ChannelMesh::new(seat)
    }

    fn adopt(&self, socket: OwnedFd) -> io::Result<TcpConn> {
        TcpConn::new(socket, self.runtime.clone(), self.scratch.clone(), self.sends.clone())
    }

    fn listen(&self, socket: OwnedFd) -> io::Result<TcpAcceptor> {
        Ok(TcpAcceptor::new(socket))
    }
}

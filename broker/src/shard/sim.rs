//! Shards for tests: any number of them in one thread, on the virtual clock of [`SimRuntime`], with messages that take
//! a seeded time and connections in memory. Nothing in production calls it.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use protocol::types::MonoTime;
use smallvec::SmallVec;
use storage::io::sim::{SimDisk, SimFile, SimRuntime, SimTask};
use storage::io::{DirDone, DirOp, Open, Queue, Runtime, Span};

use super::channel::{self, ChannelMesh, ChannelSeat};
use super::{Acceptor, Class, Conn, Mesh, ShardId, ShardRuntime};

/// A message between shards takes at most this long.
const MESSAGE_NANOS_MAX: u64 = 100_000;

/// What the two ends of a connection buffer in each direction, as kernels do.
const PIPE_BYTES: usize = 64 << 10;

/// One shard of a simulated process.
#[derive(Clone)]
pub struct SimShard {
    runtime: SimRuntime,
    shard: ShardId,
    count: u16,
    messages: Rc<Cell<u64>>,
    sockets: Rc<Sockets>,
}

impl SimShard {
    /// The shards of one process with one disk, in a new world.
    pub fn process(seed: u64, shards: u16) -> Vec<Self> {
        Self::process_in(&SimRuntime::new(seed), SimDisk::new(), shards)
    }

    /// The shards of one more process in a world; for several brokers, and for one that starts again on its disk.
    pub fn process_in(world: &SimRuntime, disk: SimDisk, shards: u16) -> Vec<Self> {
        let (runtime, messages) = (world.sibling(disk), Rc::<Cell<u64>>::default());
        let sockets = Rc::<Sockets>::default();
        let shard = |index| Self {
            runtime: runtime.clone(),
            shard: ShardId::new(index),
            count: shards,
            messages: messages.clone(),
            sockets: sockets.clone(),
        };
        (0..shards).map(shard).collect()
    }

    /// Messages that the shards of this process have sent to each other.
    pub fn messages(&self) -> u64 {
        self.messages.get()
    }

    /// The broker's end and the client's end of a new connection, which the shards of this process can hand to each other.
    pub fn connect(&self, broker: SocketAddr, client: SocketAddr) -> (SimConn, SimConn) {
        SimConn::pair_of(&self.runtime, Some(&self.sockets), broker, client)
    }

    /// Connections that are on their way between shards: their descriptors are neither adopted nor closed. Those that were
    /// closed on the way have ended with the last descriptor, as in a kernel.
    pub fn on_the_way(&self) -> usize {
        self.sockets.settle()
    }

    /// The world: to run it, and to reach the disk.
    pub fn world(&self) -> &SimRuntime {
        &self.runtime
    }
}

impl Runtime for SimShard {
    type File = SimFile;
    type Task = SimTask;

    fn now(&self) -> MonoTime {
        self.runtime.now()
    }
    fn wall_ms(&self) -> i64 {
        self.runtime.wall_ms()
    }
    fn random(&self) -> u64 {
        self.runtime.random()
    }
    fn spawn(&self, queue: Queue, task: impl Future<Output = ()> + 'static) -> SimTask {
        self.runtime.spawn(queue, task)
    }
    fn sleep_until(&self, at: MonoTime) -> impl Future<Output = ()> + 'static {
        self.runtime.sleep_until(at)
    }
    fn turn(&self) -> impl Future<Output = ()> + 'static {
        self.runtime.turn()
    }
    fn open(&self, path: &Path, how: Open) -> impl Future<Output = io::Result<SimFile>> + 'static {
        self.runtime.open(path, how)
    }
    fn dir(&self, op: DirOp) -> impl Future<Output = io::Result<DirDone>> + 'static {
        self.runtime.dir(op)
    }
}

impl ShardRuntime for SimShard {
    type Conn = SimConn;
    type Acceptor = NoAcceptor;
    type Seat<M: Send + 'static> = ChannelSeat<M>;
    type Mesh<M: Send + 'static> = SimMesh<M>;

    fn shard(&self) -> ShardId {
        self.shard
    }

    fn shard_count(&self) -> u16 {
        self.count
    }

    fn seats<M: Send + 'static>(shards: u16, _class: Class, capacity: usize) -> Vec<ChannelSeat<M>> {
        channel::seats(shards, capacity)
    }

    fn join<M: Send + 'static>(&self, seat: ChannelSeat<M>) -> SimMesh<M> {
        let latest = (0..self.count).map(|_| Cell::new(0)).collect();
        let (mesh, messages) = (ChannelMesh::new(seat), self.messages.clone());
        SimMesh { mesh, runtime: self.runtime.clone(), latest, messages }
    }

    /// Of a connection that the other side has broken off, sometimes an error.
    fn adopt(&self, socket: OwnedFd) -> io::Result<SimConn> {
        let conn = self.sockets.adopt(socket)?;
        if conn.0.outbound.broken.get() && self.runtime.draw_below(2) == 0 {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(conn)
    }

    /// Simulated shards do not listen; their connections come from [`Self::connect`].
    fn listen(&self, _socket: OwnedFd) -> io::Result<NoAcceptor> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Connections of one process on their way between its shards. A descriptor travels for each, and the kernel tells here
/// when it is closed: a connection ends with its last descriptor, wherever that is.
#[derive(Default)]
struct Sockets {
    next: Cell<u64>,
    on_the_way: RefCell<Vec<Passing>>,
}

struct Passing {
    number: u64,
    /// The other end of the descriptor that travels, and says the number to whom it arrives at.
    kept: UnixStream,
    conn: SimConn,
}

impl Sockets {
    fn leave(&self, conn: SimConn) -> io::Result<OwnedFd> {
        let (mut kept, travels) = UnixStream::pair()?;
        kept.set_nonblocking(true)?;
        let number = self.next.replace(self.next.get().saturating_add(1));
        kept.write_all(&number.to_be_bytes())?;
        self.on_the_way.borrow_mut().push(Passing { number, kept, conn });
        Ok(travels.into())
    }

    fn adopt(&self, socket: OwnedFd) -> io::Result<SimConn> {
        let mut number = [0; 8];
        UnixStream::from(socket).read_exact(&mut number)?;
        let number = u64::from_be_bytes(number);
        let mut all = self.on_the_way.borrow_mut();
        let at = all.iter().position(|passing| passing.number == number);
        at.map(|at| all.swap_remove(at).conn).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn settle(&self) -> usize {
        let is_closed = |passing: &mut Passing| !matches!(passing.kept.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        let closed: Vec<_> = self.on_the_way.borrow_mut().extract_if(.., is_closed).collect();
        drop(closed);
        self.on_the_way.borrow().len()
    }
}

/// Simulated shards do not listen.
pub enum NoAcceptor {}

impl Acceptor for NoAcceptor {
    async fn accept(&self) -> io::Result<OwnedFd> {
        match *self {}
    }
}

/// A mesh whose messages take a seeded time, each queue in order.
pub struct SimMesh<M> {
    mesh: ChannelMesh<M>,
    runtime: SimRuntime,
    /// When the last message to each shard arrives.
    latest: Vec<Cell<u64>>,
    messages: Rc<Cell<u64>>,
}

impl<M: Send + 'static> Mesh<M> for SimMesh<M> {
    fn try_send(&self, to: ShardId, message: M) -> Result<(), M> {
        let Some(claimed) = self.mesh.claim(to) else { return Err(message) };
        self.messages.set(self.messages.get().saturating_add(1));
        let now = self.runtime.now().get();
        let mut due = now.saturating_add(self.runtime.draw_below(MESSAGE_NANOS_MAX));
        if let Some(latest) = self.latest.get(usize::from(to.get())) {
            due = due.max(latest.get());
            latest.set(due);
        }
        self.runtime.after_nanos(due.saturating_sub(now), move || {
            // A shard that ended meanwhile takes nothing; the message is gone, as it would be in its queue.
            drop(claimed.deliver(message));
        });
        Ok(())
    }

    fn queued(&self) -> usize {
        self.mesh.queued()
    }

    fn receive(&self) -> impl Future<Output = Option<(ShardId, M)>> + '_ {
        self.mesh.receive()
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    bytes: RefCell<BytesMut>,
    /// No more bytes come: the reader sees the end after the last one.
    ended: Cell<bool>,
    /// The reader has gone: writes fail.
    broken: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

fn wake(waker: &RefCell<Option<Waker>>) {
    let waker = waker.borrow_mut().take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Pipe {
    fn end(&self) {
        self.ended.set(true);
        wake(&self.reader);
        wake(&self.writer);
    }

    fn break_off(&self) {
        self.broken.set(true);
        self.end();
    }
}

/// One end of a connection in memory. The connection ends when the last clone of an end is dropped.
#[derive(Clone)]
pub struct SimConn(Rc<End>);

struct End {
    runtime: SimRuntime,
    inbound: Rc<Pipe>,
    outbound: Rc<Pipe>,
    peer: SocketAddr,
    /// Of the process, if its shards hand it to each other.
    sockets: Option<Rc<Sockets>>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.outbound.end();
        self.inbound.break_off();
    }
}

impl SimConn {
    /// The broker's end and the client's end of a new connection from `client`, which stays on its shard.
    pub fn pair(world: &SimRuntime, broker: SocketAddr, client: SocketAddr) -> (Self, Self) {
        Self::pair_of(world, None, broker, client)
    }

    fn pair_of(
        world: &SimRuntime,
        sockets: Option<&Rc<Sockets>>,
        broker: SocketAddr,
        client: SocketAddr,
    ) -> (Self, Self) {
        let (up, down) = (Rc::<Pipe>::default(), Rc::<Pipe>::default());
        let end = |inbound: &Rc<Pipe>, outbound: &Rc<Pipe>, peer, sockets| {
            Self(Rc::new(End {
                runtime: world.clone(),
                inbound: inbound.clone(),
                outbound: outbound.clone(),
                peer,
                sockets,
            }))
        };
        (end(&up, &down, client, sockets.cloned()), end(&down, &up, broker, None))
    }

    /// Ends the sending direction only: the other side reads to the end and may still answer.
    pub fn finish(&self) {
        self.0.outbound.end();
    }

    /// Whether the other side has closed or broken off the connection.
    pub fn is_closed(&self) -> bool {
        self.has_ended()
    }

    /// Bytes that the other side has sent and this one has not read.
    pub fn unread_bytes(&self) -> usize {
        self.0.inbound.bytes.borrow().len()
    }

    fn poll_read(&self, context: &Context<'_>, into: &mut BytesMut, limit: usize) -> Poll<io::Result<usize>> {
        let pipe = &self.0.inbound;
        let available = pipe.bytes.borrow().len();
        if available == 0 {
            if pipe.ended.get() {
                return Poll::Ready(Ok(0));
            }
            *pipe.reader.borrow_mut() = Some(context.waker().clone());
            return Poll::Pending;
        }
        // Sometimes all there is, sometimes a part, as networks cut it.
        let mut count = available.min(limit);
        if self.0.runtime.draw_below(2) == 0 {
            let part = self.0.runtime.draw_below(u64::try_from(count).unwrap_or(1)).saturating_add(1);
            count = count.min(usize::try_from(part).unwrap_or(count));
        }
        into.extend_from_slice(&pipe.bytes.borrow_mut().split_to(count));
        wake(&pipe.writer);
        Poll::Ready(Ok(count))
    }

    fn poll_write(&self, context: &Context<'_>, rest: &mut &[u8]) -> Poll<io::Result<()>> {
        let pipe = &self.0.outbound;
        if pipe.ended.get() || pipe.broken.get() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = PIPE_BYTES.saturating_sub(pipe.bytes.borrow().len()).min(rest.len());
        let (now, later) = rest.split_at(room);
        pipe.bytes.borrow_mut().extend_from_slice(now);
        *rest = later;
        if room > 0 {
            wake(&pipe.reader);
        }
        if rest.is_empty() {
            return Poll::Ready(Ok(()));
        }
        *pipe.writer.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Conn for SimConn {
    async fn read(&self, into: &mut BytesMut, limit: usize) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, into, limit)).await
    }

    async fn write(&self, spans: SmallVec<[Span; 4]>) -> io::Result<()> {
        for span in spans {
            let Span::Memory(bytes) = span else { return Err(io::ErrorKind::Unsupported.into()) };
            let mut rest = &bytes[..];
            poll_fn(|context| self.poll_write(context, &mut rest)).await?;
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.0.inbound.ended.get() || self.0.outbound.broken.get()
    }

    fn shutdown(&self) {
        self.0.outbound.end();
        self.0.inbound.break_off();
    }

    fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// None of one that stays on its shard.
    fn socket(&self) -> io::Result<OwnedFd> {
        self.0.sockets.as_ref().ok_or(io::ErrorKind::Unsupported)?.leave(self.clone())
    }
}

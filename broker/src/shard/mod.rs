//! Shards: one executor per core, and how they talk. This file is the seam: what a driver may ask of
//! the thread it runs on beyond `storage::io::Runtime`. Names nothing above it: a message type belongs to the module
//! that receives it. Two implementations: glommio, and a deterministic one for tests.
//!
//! Reading order: this file, [`ask`] (how to ask another shard), `permits` (so many at a time), [`channel`] (the queues under it), [`lines`] (news for
//! other shards), [`memory`], [`pace`] (long loops, A-5), [`glommio`], [`tcp`], [`start`] and [`stop`] (threads),
//! [`pulse`] (whether they run), [`sim`].

pub mod ask;
#[cfg(test)]
mod ask_tests;
pub mod channel;
pub mod glommio;
pub mod lines;
pub mod memory;
pub mod pace;
pub(crate) mod permits;
pub mod pulse;
mod resident;
pub mod sim;
pub mod start;
pub mod stop;
mod table;
pub mod tasks;
pub mod tcp;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use bytes::BytesMut;
use protocol::types::MonoTime;
use smallvec::SmallVec;
use storage::io::{Runtime, Span};

/// Index of a shard, from 0. Shard 0 also hosts what is one per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ShardId(u16);

impl ShardId {
    /// The shard that hosts the controller, the registration and everything that is one per process.
    pub const CONTROL: Self = Self(0);
    /// Names a shard.
    pub const fn new(index: u16) -> Self {
        Self(index)
    }
    /// Its index.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Priority of a mesh between shards: a higher class is never stuck behind a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Controller requests, metadata, start and stop.
    Control,
    /// Traffic of replicas.
    Replication,
    /// Requests of clients.
    Client,
    /// Checkpoints, metrics, retention.
    Background,
}

/// One shard's end of a full mesh of bounded FIFO queues, one per (from, to).
///
/// Nobody waits for room: [`Shards`] bounds what is in flight to each shard, and sizes the queues so that neither an ask
/// nor an answer ever finds one full.
pub trait Mesh<M: Send + 'static>: 'static {
    /// Queues a message, or gives it back when the queue to that shard is full.
    ///
    /// # Errors
    /// The message, when there is no room or the other shard has ended.
    fn try_send(&self, to: ShardId, message: M) -> Result<(), M>;
    /// Messages of other shards that were not received yet.
    fn queued(&self) -> usize;
    /// The next message of any shard; `None` when all others have ended.
    fn receive(&self) -> impl Future<Output = Option<(ShardId, M)>> + '_;
}

/// A connected byte stream. One task reads, one writes.
pub trait Conn: Clone + 'static {
    /// Appends what has arrived to `into`, at least one byte and at most `limit`; 0 at the end of the stream.
    ///
    /// # Errors
    /// What the socket says.
    fn read(&self, into: &mut BytesMut, limit: usize) -> impl Future<Output = io::Result<usize>>;
    /// Writes all spans in order. File spans go out by `sendfile` where the range is resident and through the
    /// ring where it is not; the shard never blocks on a disk.
    ///
    /// # Errors
    /// What the socket says; the stream is then useless.
    fn write(&self, spans: SmallVec<[Span; 4]>) -> impl Future<Output = io::Result<()>>;
    /// Whether the other side sends no more: it has closed the connection, or its half of it, or the connection has
    /// failed. What it sent before may be unread. Costs a system call.
    fn has_ended(&self) -> bool;
    /// Ends both directions; reads and writes in progress fail.
    fn shutdown(&self);
    /// Address of the other side.
    fn peer(&self) -> SocketAddr;
    /// Its socket, to be adopted by another shard; this one must neither read nor write any more.
    ///
    /// # Errors
    /// What the operating system says; the connection is as before.
    fn socket(&self) -> io::Result<OwnedFd>;
}

/// A listening socket.
pub trait Acceptor: 'static {
    /// The next connection. Dropping the future loses none.
    ///
    /// # Errors
    /// What the operating system says; the socket goes on listening.
    fn accept(&self) -> impl Future<Output = io::Result<OwnedFd>>;
}

/// What a driver needs of its shard beyond files and clock: other shards and sockets.
pub trait ShardRuntime: Runtime {
    /// A connected byte stream.
    type Conn: Conn;
    /// A listening socket.
    type Acceptor: Acceptor;
    /// A shard's place in a mesh before the shard has started; made for all shards at once, then sent to each.
    type Seat<M: Send + 'static>: Send + 'static;
    /// This shard's end of a mesh.
    type Mesh<M: Send + 'static>: Mesh<M>;

    /// Which shard this is.
    fn shard(&self) -> ShardId;
    /// How many shards there are.
    fn shard_count(&self) -> u16;
    /// Makes the seats of a mesh, one per shard, with queues of `capacity` messages.
    fn seats<M: Send + 'static>(shards: u16, class: Class, capacity: usize) -> Vec<Self::Seat<M>>;
    /// Takes this shard's seat.
    fn join<M: Send + 'static>(&self, seat: Self::Seat<M>) -> Self::Mesh<M>;
    /// Takes over a connected socket (A-19: sockets move between shards as descriptors).
    ///
    /// # Errors
    /// What the operating system says.
    fn adopt(&self, socket: OwnedFd) -> io::Result<Self::Conn>;
    /// Takes over a socket that is bound and listens.
    ///
    /// # Errors
    /// What the operating system says.
    fn listen(&self, socket: OwnedFd) -> io::Result<Self::Acceptor>;
}

/// Why an ask got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The mailbox had no room until the deadline; the ask was not sent.
    #[error("mailbox of the shard is full")]
    Busy,
    /// The answer did not come until the deadline; the work may have been done.
    #[error("no answer of the shard in time")]
    Timeout,
    /// The shard has ended.
    #[error("shard has stopped")]
    Stopped,
}

/// What a module answers to other shards and to its own: the asks belong to the module that receives them.
pub trait Service: Clone + 'static {
    /// A question; owns its data.
    type Ask: Send + 'static;
    /// Its answer; owns its data.
    type Answer: Send + 'static;
    /// Takes an ask, in the order of its arrival; the local path too, inside the caller's `Slot::send`: the caller holds
    /// no borrow then. Never waits: what waits is queued or spawned, and answers through `reply`. Dropping `reply`
    /// unanswered tells the asker `Stopped`.
    fn accept(&self, from: ShardId, ask: Self::Ask, reply: Reply<Self::Answer>);
}

pub use ask::{Letter, Pending, Reply, Seat, Shards, Slot, seats};

/// A deadline that never comes.
pub const NEVER: MonoTime = MonoTime::new(u64::MAX);

//! The metadata store on a ZooKeeper ensemble, through the client library `zookeeper-client`; its session lives on a
//! thread beside the shards, so that no shard waits for it and no other module knows the library. What is asked here goes
//! to that thread as a message; answers and events come back in its order. Called by the broker's start.
//!
//! Where the library falls short of the contract: it sends no null, so that a node made without data holds an empty array
//! and is read as null until it is first set (`wire::data_of`). Readers of Kafka's own tell them apart at one path only,
//! `/latest_producer_id_block` (zookeeper.md 11), which is therefore not made here before it has data.

mod connection;
mod requests;
mod session;
mod watches;
mod wire;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::mpsc as threads;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;

use self::requests::{Answer, Message};
use self::wire::Ask;
use super::{
    CreateMode, Expected, FencedError, MetadataStore, MultiError, NodeData, Op, OpDone, Session, Stat,
    StoreError, StoreEvent,
};

/// Who watches; 0 is nobody.
type HandleId = u64;

/// How often a start that waits for its first session looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// What becomes of requests whose connection is lost before they are answered: nobody knows whether they took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// They fail with [`StoreError::ConnectionLoss`].
    Fail,
    /// They are sent again on the next connection of the session, in their order and before any later one, as Kafka's
    /// brokers do (zookeeper.md 9): whoever asks can tell that its own write was there already. One that is larger than
    /// servers take fails with [`StoreError::TooLarge`].
    Resend,
}

/// How to reach an ensemble.
#[derive(Clone, Debug)]
pub struct Options {
    /// `zookeeper.connect`: hosts and ports separated by commas, with an optional path that all paths are below.
    pub connect: String,
    /// `zookeeper.session.timeout.ms`.
    pub session_timeout: Duration,
    /// `zookeeper.connection.timeout.ms`: how long the first session is waited for.
    pub connection_timeout: Duration,
    /// `zookeeper.max.in.flight.requests`.
    pub in_flight_max: usize,
    /// What a lost connection does to requests.
    pub on_loss: OnLoss,
}

impl Options {
    fn hosts(&self) -> u32 {
        u32::try_from(self.connect.split(',').count()).unwrap_or(u32::MAX)
    }

    /// The hosts alone, and the path that is to be made.
    fn root(&self) -> Option<(&str, &str)> {
        let at = self.connect.find('/')?;
        let (hosts, root) = self.connect.split_at_checked(at)?;
        (root.len() > 1).then_some((hosts, root))
    }
}

/// Why there is no session with an ensemble.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No server gave one.
    #[error("no session with ZooKeeper at {connect} within {limit_ms} ms")]
    Unreachable {
        /// `zookeeper.connect`.
        connect: String,
        /// `zookeeper.connection.timeout.ms`.
        limit_ms: u128,
    },
    /// The path of `zookeeper.connect` cannot be made.
    #[error("the path of zookeeper.connect {0} cannot be made in ZooKeeper")]
    Root(String),
    /// There is no thread for it.
    #[error("there is no thread for the session with ZooKeeper: {0}")]
    Thread(#[from] io::Error),
    /// The start was given up meanwhile.
    #[error("the session with ZooKeeper was not waited for")]
    GivenUp,
}

/// A session that is open, and its thread; becomes a store on the shard that will own it.
pub struct ZookeeperLink {
    messages: mpsc::UnboundedSender<Message>,
    session: Session,
    thread: JoinHandle<()>,
}

impl ZookeeperLink {
    /// Opens a session. Blocks, until `is_given_up` says that nobody waits for it: called before the shards start, so that
    /// the thread is not pinned to the core of one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: Options, is_given_up: impl Fn() -> bool) -> Result<Self, OpenError> {
        let (messages, queue) = mpsc::unbounded();
        let (opened, opening) = threads::channel();
        let thread = Builder::new()
            .name("zookeeper".to_owned())
            .spawn(move || session::run(options, queue, &opened))?;
        loop {
            match opening.recv_timeout(LOOK) {
                Ok(session) => return Ok(Self { messages, session: session?, thread }),
                Err(threads::RecvTimeoutError::Timeout) if !is_given_up() => {}
                Err(_) => return Err(OpenError::GivenUp),
            }
        }
    }

    /// Makes the store on this thread.
    pub fn start(self) -> ZookeeperStore {
        let Self { messages, session, thread } = self;
        let link = Link {
            messages: Some(messages),
            session: Rc::new(Cell::new(session)),
            next_handle: Cell::new(1),
            thread: Some(thread),
        };
        ZookeeperStore::open_handle(&Rc::new(link))
    }
}

/// The way to the thread, shared by all handles.
struct Link {
    /// One message per request: who asks bounds them (the controller has one call open, admin one per wish).
    messages: Option<mpsc::UnboundedSender<Message>>,
    session: Rc<Cell<Session>>,
    next_handle: Cell<HandleId>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    fn send(&self, message: Message) {
        if let Some(messages) = &self.messages {
            // The thread ends after the last handle only; dropping a message tells its sender.
            let _ = messages.unbounded_send(message);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            // Waits until the session is closed, for seconds at most; a panic there aborts the process anyway.
            let _ = thread.join();
        }
    }
}

struct Handle {
    link: Rc<Link>,
    id: HandleId,
    events: RefCell<mpsc::UnboundedReceiver<StoreEvent>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.link.send(Message::Forget(self.id));
    }
}

/// A handle on the session; see [`MetadataStore`].
#[derive(Clone)]
pub struct ZookeeperStore(Rc<Handle>);

/// An answer; a thread that has ended leaves the outcome unknown.
async fn answer<T>(waiting: oneshot::Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
    waiting.await.unwrap_or(Err(StoreError::ConnectionLoss))
}

impl ZookeeperStore {
    fn open_handle(link: &Rc<Link>) -> Self {
        let id = link.next_handle.replace(link.next_handle.get() + 1);
        let (sender, events) = mpsc::unbounded();
        let Session { id: session, local_epoch, .. } = link.session.get();
        // The receiver is at hand, so this cannot fail.
        let _ = sender.unbounded_send(StoreEvent::Connected { id: session, local_epoch });
        link.send(Message::Fork { handle: id, events: sender });
        Self(Rc::new(Handle { link: Rc::clone(link), id, events: RefCell::new(events) }))
    }

    fn ask<T>(&self, ask: Ask, answer: impl FnOnce(oneshot::Sender<T>) -> Answer) -> oneshot::Receiver<T> {
        let (sender, waiting) = oneshot::channel();
        let local_epoch = self.session().local_epoch;
        let (handle, answer) = (self.0.id, answer(sender));
        self.0.link.send(Message::Ask { local_epoch, handle, ask, answer });
        waiting
    }

    /// One op as a transaction of its own.
    fn single(&self, op: Op) -> impl Future<Output = Result<OpDone, StoreError>> + use<> + 'static {
        let request = self.multi(vec![op]);
        async move {
            match request.await {
                Ok(mut done) => done.pop().ok_or(StoreError::BadPath),
                Err(error) => Err(error.error()),
            }
        }
    }
}

impl MetadataStore for ZookeeperStore {
    fn tells_null(&self) -> bool {
        false
    }

    fn create(
        &self,
        path: &str,
        data: Option<Bytes>,
        mode: CreateMode,
    ) -> impl Future<Output = Result<(String, Stat), StoreError>> + use<> + 'static {
        let request = self.single(Op::Create { path: path.to_owned(), data, mode });
        async move { request.await?.created() }
    }

    fn get(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<NodeData, StoreError>> + use<> + 'static {
        answer(self.ask(Ask::Get { path: path.to_owned(), watch }, Answer::Data))
    }

    fn exists(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<Option<Stat>, StoreError>> + use<> + 'static {
        answer(self.ask(Ask::Exists { path: path.to_owned(), watch }, Answer::Exists))
    }

    fn children(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<(Vec<String>, Stat), StoreError>> + use<> + 'static {
        answer(self.ask(Ask::Children { path: path.to_owned(), watch }, Answer::Children))
    }

    fn set(
        &self,
        path: &str,
        data: Option<Bytes>,
        expected: Expected,
    ) -> impl Future<Output = Result<Stat, StoreError>> + use<> + 'static {
        let request = self.single(Op::Set { path: path.to_owned(), data, expected });
        async move { request.await?.set() }
    }

    fn delete(
        &self,
        path: &str,
        expected: Expected,
    ) -> impl Future<Output = Result<(), StoreError>> + use<> + 'static {
        let request = self.single(Op::Delete { path: path.to_owned(), expected });
        async move { request.await.map(drop) }
    }

    fn multi(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<OpDone>, MultiError>> + use<> + 'static {
        let waiting = self.ask(Ask::Ops(ops), Answer::Ops);
        async move { waiting.await.unwrap_or(Err(MultiError::Request(StoreError::ConnectionLoss))) }
    }

    fn fenced(
        &self,
        epoch_version: i32,
        ops: Vec<Op>,
    ) -> impl Future<Output = Vec<Result<OpDone, FencedError>>> + use<> + 'static {
        let (answer, waiting) = oneshot::channel();
        let (count, local_epoch) = (ops.len(), self.session().local_epoch);
        self.0.link.send(Message::Fenced { local_epoch, epoch_version, ops, answer });
        async move {
            let unknown = Err(FencedError::Store(StoreError::ConnectionLoss));
            waiting.await.unwrap_or_else(|_| vec![unknown; count])
        }
    }

    // One task reads a handle's events; nobody else touches the receiver while it waits.
    #[allow(clippy::await_holding_refcell_ref, reason = "the receiver has one reader by contract")]
    async fn next_event(&self) -> Option<StoreEvent> {
        self.0.events.borrow_mut().next().await
    }

    fn session(&self) -> Session {
        self.0.link.session.get()
    }

    fn fork(&self) -> Self {
        Self::open_handle(&self.0.link)
    }

    fn reopen(&self) -> impl Future<Output = Result<Session, StoreError>> + use<> + 'static {
        let (answer, waiting) = oneshot::channel();
        self.0.link.send(Message::Reopen(answer));
        let known = Rc::clone(&self.0.link.session);
        async move {
            let session = waiting.await.map_err(|_| StoreError::ConnectionLoss)?;
            known.set(session);
            Ok(session)
        }
    }

    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + use<> + 'static {
        let (closed, waiting) = oneshot::channel();
        self.0.link.send(Message::Close(closed));
        answer(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(connect: &str) -> Options {
        Options {
            connect: connect.to_owned(),
            session_timeout: Duration::from_secs(6),
            connection_timeout: Duration::from_millis(200),
            in_flight_max: 10,
            on_loss: OnLoss::Resend,
        }
    }

    #[test]
    fn the_path_behind_the_hosts_is_the_root_of_all_paths() {
        assert_eq!(options("a:1,b:2/kafka/x").root(), Some(("a:1,b:2", "/kafka/x")));
        assert_eq!(options("a:1,b:2/").root(), None);
        assert_eq!(options("a:1,b:2").root(), None);
        assert_eq!(options("a:1,b:2/kafka").hosts(), 2);
    }

    /// A port that was bound and let go: nobody listens there.
    fn unused_port() -> u16 {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn a_start_without_a_server_fails_in_the_time_that_was_set() {
        let connect = format!("127.0.0.1:{}", unused_port());
        let error = ZookeeperLink::open(options(&connect), || false).err().unwrap();
        assert_eq!(error.to_string(), format!("no session with ZooKeeper at {connect} within 200 ms"));
    }

    #[test]
    fn a_start_that_is_given_up_does_not_wait() {
        let options = Options { connection_timeout: Duration::from_secs(3600), ..options("127.0.0.1:1/x") };
        assert!(matches!(ZookeeperLink::open(options, || true), Err(OpenError::GivenUp)));
    }
}

//! One TCP connection to an ensemble, which is one client of the library: how it is made, what was sent on it and waits for
//! an answer, and which watches it follows. Decides nothing; called by `session`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_io::Timer;
use futures_util::FutureExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::FuturesUnordered;
use spawns_core::{Spawn, Task};
use zookeeper_client as zk;

use super::requests::Queued;
use super::watches::Change;
use super::wire::{self, Failed, Got};
use super::{OpenError, Options};

/// Between two attempts to connect.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// How long the end of a session is waited for.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Holds what the library spawns, so that it ends with its connection.
#[derive(Default)]
pub(super) struct Spawned(RefCell<Vec<Task>>);

impl Spawn for Spawned {
    fn spawn(&self, task: Task) {
        self.0.borrow_mut().push(task);
    }
}

/// What the library does for a connection.
pub(super) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A watch that waits to fire.
pub(super) type Firing = LocalBoxFuture<'static, Option<(String, Change)>>;

/// An answer that is not the oldest, or not there yet.
pub(super) enum Awaited {
    Here(Result<Got, Failed>),
    Coming(wire::Sent),
}

/// One TCP connection.
pub(super) struct Connection {
    /// Before `work`: a watch that is polled without it panics in the library.
    pub(super) firing: FuturesUnordered<Firing>,
    /// In their order; the oldest is waited for.
    pub(super) sent: VecDeque<(Queued, Awaited)>,
    pub(super) work: Work,
    pub(super) client: Rc<zk::Client>,
}

impl Connection {
    /// Sends a request.
    pub(super) fn send(&mut self, queued: Queued, context: &mut Context<'_>) {
        let mut sent = wire::ask(&self.client, &queued.ask);
        // The first poll sends it.
        let awaited = match sent.as_mut().poll(context) {
            Poll::Ready(got) => Awaited::Here(got),
            Poll::Pending => Awaited::Coming(sent),
        };
        self.sent.push_back((queued, awaited));
    }
}

/// The oldest answer, if it is there.
pub(super) fn oldest(
    sent: &mut VecDeque<(Queued, Awaited)>,
    context: &mut Context<'_>,
) -> Option<(Queued, Result<Got, Failed>)> {
    let (_, awaited) = sent.front_mut()?;
    if let Awaited::Coming(coming) = awaited {
        match coming.as_mut().poll(context) {
            Poll::Ready(got) => *awaited = Awaited::Here(got),
            Poll::Pending => return None,
        }
    }
    match sent.pop_front() {
        Some((queued, Awaited::Here(got))) => Some((queued, got)),
        Some((_, Awaited::Coming(_))) | None => None,
    }
}

/// What the library says of an attempt.
pub(super) type Attempt = LocalBoxFuture<'static, Result<Connection, zk::Error>>;
fn connector(options: &Options, resumed: Option<zk::SessionInfo>) -> zk::Connector {
    // A third of the session's time at most, so that a dead server leaves time for another one.
    let limit = options.session_timeout / options.hosts().clamp(3, 6);
    let connector = zk::Client::connector()
        .with_session_timeout(options.session_timeout)
        .with_connection_timeout(limit)
        .with_fail_eagerly();
    match resumed {
        Some(session) => connector.with_session(session),
        None => connector,
    }
}

/// Makes a connection: of a new session, or of one that goes on.
pub(super) async fn connect(
    options: &Options,
    spawned: &Spawned,
    resumed: Option<zk::SessionInfo>,
) -> Result<Connection, zk::Error> {
    let client = connector(options, resumed).connect(&options.connect).await?;
    Ok(Connection {
        firing: FuturesUnordered::new(),
        sent: VecDeque::new(),
        work: work(spawned),
        client: Rc::new(client),
    })
}

/// What the library has spawned since the last look.
fn work(spawned: &Spawned) -> Work {
    let tasks: Vec<_> = spawned.0.borrow_mut().drain(..).map(|task| Box::into_pin(task.future)).collect();
    Box::pin(futures_util::future::join_all(tasks).map(drop))
}

/// The first connection, within `connection_timeout`; before it the root of all paths is made.
pub(super) async fn first(options: &Rc<Options>, spawned: &Rc<Spawned>) -> Result<Connection, OpenError> {
    let attempts = async {
        loop {
            match root(options, spawned).await {
                Ok(()) => match connect(options, spawned, None).await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => tracing::debug!(%error, "no session with ZooKeeper yet"),
                },
                Err(error @ (zk::Error::NoAuth | zk::Error::BadArguments(_))) => return Err(error),
                Err(error) => tracing::debug!(%error, "no session with ZooKeeper yet"),
            }
            Timer::after(PAUSE).await;
        }
    };
    match select(pin!(attempts), Timer::after(options.connection_timeout)).await {
        Either::Left((Ok(connection), _)) => Ok(connection),
        Either::Left((Err(_), _)) => Err(OpenError::Root(options.connect.clone())),
        Either::Right(_) => Err(OpenError::Unreachable {
            connect: options.connect.clone(),
            limit_ms: options.connection_timeout.as_millis(),
        }),
    }
}

/// Makes the node that the paths are below, if one was configured, in a short session of its own (zookeeper.md 1).
async fn root(options: &Options, spawned: &Spawned) -> Result<(), zk::Error> {
    let Some((hosts, root)) = options.root() else { return Ok(()) };
    let client = connector(options, None).connect(hosts).await?;
    let mut work = work(spawned);
    let acls = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let made = match select(pin!(client.mkdir(root, &acls)), &mut work).await {
        Either::Left((made, _)) => made,
        Either::Right(_) => return Err(zk::Error::ConnectionLoss),
    };
    drop(client);
    // Without the client it says farewell.
    select(work, Timer::after(CLOSE_LIMIT)).await;
    made
}
/// Waits for a watch to fire.
pub(super) fn fire(watcher: zk::OneshotWatcher) -> Firing {
    Box::pin(async move {
        let event = watcher.changed().await;
        let change = match event.event_type {
            zk::EventType::NodeCreated => Change::Created,
            zk::EventType::NodeDeleted => Change::Deleted,
            zk::EventType::NodeDataChanged => Change::Data,
            zk::EventType::NodeChildrenChanged => Change::Children,
            // What becomes of the session is not learnt from its watches.
            zk::EventType::Session => return None,
        };
        Some((event.path, change))
    })
}

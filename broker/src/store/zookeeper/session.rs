//! The session with an ensemble, on a thread of its own: takes what the handles ask, in order, and answers in order; keeps
//! the session alive over connections, and says when it is over (zookeeper.md 9, 13, 15). Knows no handle's caller.
//!
//! A connection is one client of the library, used for one TCP connection: when that is lost its tasks are dropped here,
//! and the session goes on with a new client. So what goes on after a loss is decided here alone: the library would wait
//! ever longer between its attempts, and gives a session up by its own clock.
//!
//! Answers come in the order of the requests, so only the oldest is waited for; before one is handed on, every watch that
//! has fired is told. That is the guarantee that no read shows a change before its event stands ready.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::mem;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_io::Timer;
use futures_channel::{mpsc, oneshot};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use zookeeper_client as zk;

use super::connection::{
    Attempt, Awaited, CLOSE_LIMIT, Connection, Firing, PAUSE, Spawned, Work, connect, fire, first, oldest,
};
use super::requests::{Message, Queued};
use super::watches::{Key, Kind, Seen, Watches};
use super::wire::{Ask, Failed, Got, Watched};
use super::{HandleId, OnLoss, OpenError, Options};
use crate::store::{Session, StoreError, StoreEvent};

/// Bytes of a request that every server takes: `jute.maxbuffer`, unless it was set.
const SERVER_BYTES_MAX: usize = 0xf_ffff;

enum Phase {
    /// Requests go out.
    Up(Connection),
    /// The next connection is being made, to go on with this session, or with a new one.
    Down(Attempt, Option<zk::SessionInfo>),
    /// The server was told that the session ends.
    Closing { sent: VecDeque<(Queued, Awaited)>, work: Work, limit: Timer },
    /// There is no session.
    Over,
}

struct Keeper {
    options: Rc<Options>,
    spawned: Rc<Spawned>,
    messages: mpsc::UnboundedReceiver<Message>,
    /// Nobody can ask any more.
    is_left: bool,
    handles: BTreeMap<HandleId, mpsc::UnboundedSender<StoreEvent>>,
    watches: Watches,
    /// What was not sent yet, or not answered on its connection.
    waiting: VecDeque<Queued>,
    session: Session,
    phase: Phase,
    reopening: Vec<oneshot::Sender<Session>>,
    closing: Vec<oneshot::Sender<Result<(), StoreError>>>,
}

/// Runs on the thread: says once how the first connection came out, then serves until all handles are gone.
pub(super) fn run(
    options: Options,
    messages: mpsc::UnboundedReceiver<Message>,
    opened: &std::sync::mpsc::Sender<Result<Session, OpenError>>,
) {
    let (options, spawned) = (Rc::new(options), Rc::new(Spawned::default()));
    let scope = spawns_core::enter(&*spawned);
    async_io::block_on(async {
        match first(&options, &spawned).await {
            Ok(connection) => {
                let mut keeper = Keeper::new(options.clone(), spawned.clone(), messages, connection);
                // Who has given up leaves a session that expires by itself, without anything in it.
                if opened.send(Ok(keeper.session)).is_ok() {
                    poll_fn(|context| keeper.poll(context)).await;
                }
            }
            Err(error) => drop(opened.send(Err(error))),
        }
    });
    drop(scope);
}
impl Keeper {
    fn new(
        options: Rc<Options>,
        spawned: Rc<Spawned>,
        messages: mpsc::UnboundedReceiver<Message>,
        connection: Connection,
    ) -> Self {
        Self {
            options,
            spawned,
            messages,
            is_left: false,
            handles: BTreeMap::new(),
            watches: Watches::default(),
            waiting: VecDeque::new(),
            session: session_of(&connection.client, 1),
            phase: Phase::Up(connection),
            reopening: Vec::new(),
            closing: Vec::new(),
        }
    }

    /// Ready when nobody can ask any more and the session is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut has_moved = self.take_messages(context);
            has_moved |= match mem::replace(&mut self.phase, Phase::Over) {
                Phase::Up(connection) => self.poll_up(connection, context),
                Phase::Down(attempt, resumed) => self.poll_down(attempt, resumed, context),
                Phase::Closing { sent, work, limit } => self.poll_closing(sent, work, limit, context),
                Phase::Over if self.is_left => return Poll::Ready(()),
                Phase::Over => false,
            };
            if !has_moved {
                return Poll::Pending;
            }
        }
    }

    fn take_messages(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        while !self.is_left {
            match self.messages.poll_next_unpin(context) {
                Poll::Pending => break,
                Poll::Ready(Some(message)) => self.take(message),
                Poll::Ready(None) => {
                    self.is_left = true;
                    self.close();
                }
            }
            has_moved = true;
        }
        has_moved
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ask { local_epoch, handle, ask, answer } => {
                self.queue(local_epoch, Queued::of(handle, ask, answer));
            }
            Message::Fenced { local_epoch, epoch_version, ops, answer } => {
                for queued in Queued::fenced(epoch_version, ops, answer) {
                    self.queue(local_epoch, queued);
                }
            }
            Message::Fork { handle, events } => {
                self.handles.insert(handle, events);
            }
            Message::Forget(handle) => {
                self.handles.remove(&handle);
                self.watches.forget(handle);
            }
            Message::Reopen(answer) => {
                self.reopening.push(answer);
                match self.phase {
                    Phase::Over => {
                        self.session.local_epoch += 1;
                        self.phase = Phase::Down(self.attempt(None, Duration::ZERO), None);
                    }
                    Phase::Up(_) | Phase::Down(_, Some(_)) => self.answer_reopening(),
                    // Answered when it is through.
                    Phase::Down(_, None) | Phase::Closing { .. } => {}
                }
            }
            Message::Close(answer) => {
                self.closing.push(answer);
                self.close();
            }
        }
    }

    fn queue(&mut self, local_epoch: u64, queued: Queued) {
        let is_open = match self.phase {
            Phase::Up(_) | Phase::Down(..) => self.session.local_epoch == local_epoch,
            Phase::Closing { .. } | Phase::Over => false,
        };
        if is_open {
            self.waiting.push_back(queued);
        } else {
            queued.fail(Failed::Expired);
        }
    }

    fn attempt(&self, resumed: Option<zk::SessionInfo>, pause: Duration) -> Attempt {
        let (options, spawned) = (self.options.clone(), self.spawned.clone());
        Box::pin(async move {
            if !pause.is_zero() {
                Timer::after(pause).await;
            }
            connect(&options, &spawned, resumed).await
        })
    }

    fn poll_up(&mut self, mut connection: Connection, context: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        while connection.sent.len() < self.options.in_flight_max
            && let Some(queued) = self.waiting.pop_front()
        {
            connection.send(queued, context);
            has_moved = true;
        }
        let is_over = connection.work.as_mut().poll(context).is_ready();
        let mut is_lost = is_over;
        loop {
            if !is_over {
                has_moved |= self.tell_fired(&mut connection.firing, context);
            }
            let Some((queued, got)) = oldest(&mut connection.sent, context) else { break };
            if got.as_ref().is_err_and(|failed| *failed == Failed::Connection) {
                connection.sent.push_front((queued, Awaited::Here(got)));
                is_lost = true;
                break;
            }
            self.answer(queued, got, Some(&mut connection.firing));
            has_moved = true;
        }
        if is_lost || connection.client.state() != zk::SessionState::SyncConnected {
            self.lose(connection);
            return true;
        }
        self.phase = Phase::Up(connection);
        has_moved
    }

    /// Tells what has fired so far.
    fn tell_fired(&mut self, firing: &mut FuturesUnordered<Firing>, context: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        while let Poll::Ready(Some(fired)) = firing.poll_next_unpin(context) {
            has_moved = true;
            if let Some((path, change)) = fired {
                for handle in self.watches.fire(&path, change) {
                    self.tell(handle, change.event(path.clone()));
                }
            }
        }
        has_moved
    }

    fn tell(&self, handle: HandleId, event: StoreEvent) {
        if let Some(events) = self.handles.get(&handle) {
            // A handle whose receiver is gone wants no events.
            let _ = events.unbounded_send(event);
        }
    }

    fn tell_all(&self, event: &StoreEvent) {
        for handle in self.handles.keys() {
            self.tell(*handle, event.clone());
        }
    }

    fn answer(
        &mut self,
        queued: Queued,
        mut got: Result<Got, Failed>,
        firing: Option<&mut FuturesUnordered<Firing>>,
    ) {
        if let (Ok(got), Some(firing)) = (&mut got, firing) {
            self.follow(&queued, got, firing);
        }
        queued.answer(got);
    }

    /// Follows the watch that a request has set.
    fn follow(&mut self, queued: &Queued, got: &mut Got, firing: &mut FuturesUnordered<Firing>) {
        let watched = match (&*queued.ask, got) {
            (Ask::Get { path, .. }, Got::Data(_, watched))
            | (Ask::Exists { path, .. }, Got::Exists(_, watched)) => {
                watched.take().map(|watched| ((path.clone(), Kind::Data), watched))
            }
            (Ask::Children { path, .. }, Got::Children(_, watched)) => {
                watched.take().map(|watched| ((path.clone(), Kind::Children), watched))
            }
            (Ask::Rearm { path, kind }, Got::Rearmed(watched)) => {
                return self.rearmed(&(path.clone(), *kind), watched.take(), firing);
            }
            _ => None,
        };
        if let Some((key, Watched { seen, watcher })) = watched
            && self.watches.set(key, queued.handle, seen)
        {
            firing.push(fire(watcher));
        }
    }

    /// What changed at a node while there was no connection.
    fn rearmed(&mut self, key: &Key, watched: Option<Watched>, firing: &mut FuturesUnordered<Firing>) {
        let now = watched.as_ref().map_or(Seen::Absent, |watched| watched.seen);
        let (told, is_watched) = self.watches.compare(key, now);
        for (handle, change) in told {
            self.tell(handle, change.event(key.0.clone()));
        }
        if is_watched && let Some(watched) = watched {
            firing.push(fire(watched.watcher));
        }
    }

    /// The connection is gone; the session may live.
    fn lose(&mut self, connection: Connection) {
        let Connection { firing, sent, work, client } = connection;
        drop(firing);
        drop(work);
        tracing::warn!("the connection to ZooKeeper is lost");
        let resumed = client.session().clone();
        let lost = sent.into_iter().map(|(queued, _)| queued).filter(Queued::is_asked);
        self.waiting.retain(Queued::is_asked);
        match self.options.on_loss {
            OnLoss::Resend => {
                let is_taken = |queued: &Queued| queued.ask.bytes_max() <= SERVER_BYTES_MAX;
                let (mut again, large): (VecDeque<_>, VecDeque<_>) = lost.partition(is_taken);
                // A server cuts the connection that such a one comes on, and would again each time.
                large.into_iter().for_each(|queued| queued.fail(Failed::TooLarge));
                again.append(&mut self.waiting);
                self.waiting = again;
            }
            OnLoss::Fail => lost.for_each(|queued| queued.fail(Failed::Connection)),
        }
        self.tell_all(&StoreEvent::Suspended);
        self.phase = Phase::Down(self.attempt(Some(resumed.clone()), Duration::ZERO), Some(resumed));
    }

    fn poll_down(
        &mut self,
        mut attempt: Attempt,
        resumed: Option<zk::SessionInfo>,
        context: &mut Context<'_>,
    ) -> bool {
        match attempt.as_mut().poll(context) {
            Poll::Pending => {
                self.phase = Phase::Down(attempt, resumed);
                return false;
            }
            Poll::Ready(Ok(connection)) => self.connected(connection, resumed.is_some()),
            Poll::Ready(Err(zk::Error::SessionExpired)) if resumed.is_some() => self.expire(),
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "ZooKeeper cannot be reached");
                self.phase = Phase::Down(self.attempt(resumed.clone(), PAUSE), resumed);
            }
        }
        true
    }

    fn connected(&mut self, connection: Connection, resumes: bool) {
        let local_epoch = self.session.local_epoch;
        self.session = session_of(&connection.client, local_epoch);
        if resumes {
            // This server may lag behind the last one.
            let mut first = VecDeque::from([Queued::own(Ask::Sync)]);
            let keys = self.watches.keys().into_iter();
            first.extend(keys.map(|(path, kind)| Queued::own(Ask::Rearm { path, kind })));
            first.append(&mut self.waiting);
            self.waiting = first;
        }
        tracing::info!(session = self.session.id, resumes, "connected to ZooKeeper");
        self.phase = Phase::Up(connection);
        self.tell_all(&StoreEvent::Connected { id: self.session.id, local_epoch });
        self.answer_reopening();
    }

    fn answer_reopening(&mut self) {
        for answer in self.reopening.drain(..) {
            // Who has given up waiting is not there to be told.
            let _ = answer.send(self.session);
        }
    }

    /// The server has said so.
    fn expire(&mut self) {
        tracing::warn!(session = self.session.id, "the session with ZooKeeper has expired");
        self.over();
        self.tell_all(&StoreEvent::Expired { local_epoch: self.session.local_epoch });
    }

    fn over(&mut self) {
        self.phase = Phase::Over;
        self.watches.clear();
        self.waiting.drain(..).for_each(|queued| queued.fail(Failed::Expired));
    }

    /// Ends the session, if there is one that can be ended.
    fn close(&mut self) {
        match mem::replace(&mut self.phase, Phase::Over) {
            Phase::Up(Connection { firing, sent, work, client }) => {
                self.over();
                // The library says farewell when the last client is gone: behind everything that was sent.
                drop((client, firing));
                self.phase = Phase::Closing { sent, work, limit: Timer::after(CLOSE_LIMIT) };
            }
            Phase::Down(..) => {
                self.over();
                self.reopening.clear();
                self.answer_closing(Err(StoreError::ConnectionLoss));
            }
            Phase::Over => self.answer_closing(Ok(())),
            closing @ Phase::Closing { .. } => self.phase = closing,
        }
    }

    fn poll_closing(
        &mut self,
        mut sent: VecDeque<(Queued, Awaited)>,
        mut work: Work,
        mut limit: Timer,
        context: &mut Context<'_>,
    ) -> bool {
        let is_over = work.as_mut().poll(context).is_ready();
        while let Some((queued, got)) = oldest(&mut sent, context) {
            queued.answer(got);
        }
        if !is_over && limit.poll_unpin(context).is_pending() {
            self.phase = Phase::Closing { sent, work, limit };
            return false;
        }
        sent.into_iter().for_each(|(queued, _)| queued.fail(Failed::Connection));
        self.answer_closing(if is_over { Ok(()) } else { Err(StoreError::ConnectionLoss) });
        if !self.reopening.is_empty() {
            self.session.local_epoch += 1;
            self.phase = Phase::Down(self.attempt(None, Duration::ZERO), None);
        }
        true
    }

    fn answer_closing(&mut self, done: Result<(), StoreError>) {
        for answer in self.closing.drain(..) {
            // Who has given up waiting is not there to be told.
            let _ = answer.send(done);
        }
    }
}
fn session_of(client: &zk::Client, local_epoch: u64) -> Session {
    let timeout_ms = i64::try_from(client.session_timeout().as_millis()).unwrap_or(i64::MAX);
    Session { id: client.session_id().0, local_epoch, timeout_ms }
}

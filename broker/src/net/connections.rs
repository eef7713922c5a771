//! All connections of one shard: their tasks, the close of idle ones, the close of the slowest sender under memory
//! pressure, the end of waits for clients that have gone, and the drain at a stop. Knows no frames; `listener`
//! brings connections, `connection` serves them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};

use futures_util::future::select;
use protocol::types::MonoTime;
use storage::io::Queue;

use super::ConnectionSettings;
use super::admission::{AddressToken, Admission};
use super::connection::Connection;
use super::moves::{Unread, Ways};
use crate::handlers::patience::Patience;
use crate::handlers::{Account, ConnectionContext, RequestHandler};
use crate::metrics::ShardMetrics;
use crate::metrics::names::Family;
use crate::metrics::registry::ListenerCells;
use crate::metrics::snapshot::{ShardSnapshot, whole};
use crate::shard::memory::{Memory, Pressure, Size};
use crate::shard::pace::Pace;
use crate::shard::{Conn, ShardRuntime};

/// Idle connections are looked for not more often than this.
const SWEEP_MS_MIN: i64 = 50;

/// A client whose request has waited this long without a byte coming or going is looked after, and again after each such
/// time: above the 500 ms that consumers ask for, so that those who only poll cost nothing.
const PARKED_MS: i64 = 750;

/// Under pressure a frame that has taken this long may be closed as the slowest.
const PRESSURE_MS: i64 = 1000;

/// An answer that has not left after this long is not taken, if there is a reason to ask.
const UNTAKEN_MS: i64 = 1000;

/// At a stop, a request that has begun to arrive has so long to be here as a whole: what is on its way in the machine.
const WHOLE_MS: i64 = 100;

/// Under pressure a request that waits for what is not there waits no longer when its frame is as large as this.
const CUT_BYTES_MIN: usize = 64 << 10;

/// Number of the connection within a shard: the upper bits name the shard.
const SHARD_SHIFT: u32 = 48;

/// A frame of which part is here.
#[derive(Clone, Copy)]
pub(super) struct Partial {
    /// When its first byte came, later by the time in which we did not read.
    began: MonoTime,
    bytes: usize,
    size: Size,
}

/// What the shard knows of one connection while its task serves it.
pub(super) struct State<R: ShardRuntime> {
    pub(super) conn: R::Conn,
    listener: Arc<str>,
    /// When bytes last came or went.
    pub(super) activity: Cell<MonoTime>,
    /// Requests that are being handled or wait for their answers.
    pub(super) in_work: Cell<usize>,
    /// The handler waits with a request.
    pub(super) parked: Cell<bool>,
    /// How long it may wait for what is not there yet.
    pub(super) patience: Patience,
    /// An answer is being written.
    pub(super) writing: Cell<bool>,
    /// The frame that is coming in.
    pub(super) partial: Cell<Option<Partial>>,
    /// Since when it is we who do not read.
    waits_for_memory: Cell<Option<MonoTime>>,
    /// A write has failed: answers go nowhere.
    pub(super) output_failed: Cell<bool>,
    /// A request waits for those before it.
    pub(super) queued: Cell<bool>,
    /// Bytes that have arrived and are not handled yet: what a client that takes no answers keeps from others.
    pub(super) held: Cell<usize>,
    /// Closed by us: what has been received is not served any more.
    pub(super) closed: Cell<bool>,
}

impl<R: ShardRuntime> State<R> {
    /// Closes the connection; its task ends by itself.
    pub(super) fn close(&self, id: u64, reason: &'static str) {
        if !self.closed.replace(true) {
            tracing::debug!(connection = id, peer = %self.conn.peer(), reason, "closing connection");
        }
        self.patience.end();
        self.conn.shutdown();
    }

    /// Bytes have come: so many are here of a frame of this size.
    pub(super) fn on_arrival(&self, now: MonoTime, bytes: usize, size: Size) {
        let began = self.partial.get().map_or(now, |partial| partial.began);
        self.partial.set(Some(Partial { began, bytes, size }));
        self.held.set(bytes);
        self.activity.set(now);
    }

    /// Notes whether its next bytes wait for memory. Their sender is not slow for that.
    pub(super) fn wait_for_memory(&self, is_waiting: bool, now: impl FnOnce() -> MonoTime) {
        match self.waits_for_memory.get() {
            None if is_waiting => self.waits_for_memory.set(Some(now())),
            Some(since) if !is_waiting => {
                self.waits_for_memory.set(None);
                if let Some(mut partial) = self.partial.get() {
                    partial.began = partial.began.plus_nanos(now().nanos_since(since));
                    self.partial.set(Some(partial));
                }
            }
            _ => {}
        }
    }

    fn is_quiet(&self) -> bool {
        self.in_work.get() == 0 && self.partial.get().is_none()
    }

    /// When the connection is idle, if nothing happens until then; `None` while it is we who do not read. As in Kafka,
    /// only bytes count, and not that a request waits: its client may be gone without a word.
    fn idle_at(&self, idle_ms_max: i64) -> Option<MonoTime> {
        self.waits_for_memory.get().is_none().then(|| self.activity.get().plus_ms(idle_ms_max))
    }

    /// Whether an answer has waited for a while to be taken.
    fn takes_none(&self, now: MonoTime) -> bool {
        self.writing.get() && !self.closed.get() && now >= self.activity.get().plus_ms(UNTAKEN_MS)
    }

    /// When the client is to be looked after; `None` when no request waits that could end sooner.
    fn looked_after_at(&self) -> Option<MonoTime> {
        let is_parked = self.parked.get() && !self.patience.is_over();
        is_parked.then(|| self.activity.get().plus_ms(PARKED_MS))
    }
}

/// All connections of one shard.
pub struct Connections<R: ShardRuntime> {
    pub(super) runtime: R,
    pub(super) settings: ConnectionSettings,
    pub(super) memory: Rc<Memory>,
    pub(super) metrics: Rc<ShardMetrics>,
    states: RefCell<BTreeMap<u64, Rc<State<R>>>>,
    tasks: RefCell<BTreeMap<u64, R::Task>>,
    finished: RefCell<Vec<u64>>,
    next: Cell<u64>,
    stopping: Cell<bool>,
    /// How connections go on to other shards, while this one listens.
    ways: RefCell<Option<Weak<dyn Ways>>>,
    sweeper: RefCell<Option<R::Task>>,
    /// The sweeper will look after clients whose requests wait.
    looks_after: Cell<bool>,
    sweep_now: Cell<bool>,
    sweep_waker: Cell<Option<Waker>>,
}

impl<R: ShardRuntime> Connections<R> {
    /// No connections yet.
    pub fn new(runtime: &R, settings: ConnectionSettings, metrics: Rc<ShardMetrics>) -> Rc<Self> {
        let this = Rc::new(Self {
            runtime: runtime.clone(),
            settings,
            memory: Memory::new(settings.memory_bytes_max),
            metrics,
            states: RefCell::default(),
            tasks: RefCell::default(),
            finished: RefCell::default(),
            next: Cell::new(0),
            stopping: Cell::new(false),
            ways: RefCell::default(),
            sweeper: RefCell::default(),
            looks_after: Cell::new(false),
            sweep_now: Cell::new(false),
            sweep_waker: Cell::default(),
        });
        let sweeper = runtime.spawn(Queue::Background, sweep(Rc::downgrade(&this), runtime.clone()));
        *this.sweeper.borrow_mut() = Some(sweeper);
        this
    }

    /// Connections may go on to other shards from now on.
    pub(super) fn attach(&self, ways: Weak<dyn Ways>) {
        self.ways.replace(Some(ways));
    }

    /// How connections go on to other shards, if they still do.
    pub(super) fn ways(&self) -> Option<Rc<dyn Ways>> {
        self.ways.borrow().as_ref().filter(|_| !self.stopping.get()).and_then(Weak::upgrade)
    }

    /// Serves a new connection until it ends.
    pub fn serve<H: RequestHandler>(
        self: &Rc<Self>,
        conn: R::Conn,
        listener: &Arc<str>,
        handler: &H,
        admission: Option<(Admission, Option<AddressToken>)>,
    ) {
        self.go_on(conn, listener, handler, admission, None);
    }

    /// The same for one that may have been on another shard, with what that has read and not handled.
    pub(super) fn go_on<H: RequestHandler>(
        self: &Rc<Self>,
        conn: R::Conn,
        listener: &Arc<str>,
        handler: &H,
        admission: Option<(Admission, Option<AddressToken>)>,
        unread: Option<Unread>,
    ) {
        self.reap();
        if self.stopping.get() {
            conn.shutdown();
            return;
        }
        self.next.set(self.next.get().saturating_add(1));
        let id = (u64::from(self.runtime.shard().get()) << SHARD_SHIFT) | self.next.get();
        let (account, patience) = (Account::new(self.metrics.clone()), Patience::default());
        let state_patience = patience.clone();
        let context =
            ConnectionContext { listener: listener.clone(), peer: conn.peer(), id, account, patience };
        let cells = self.metrics.listener(listener);
        if unread.is_none() {
            cells.created.inc();
        }
        cells.arrived.inc();
        let state = Rc::new(State {
            conn,
            listener: listener.clone(),
            activity: Cell::new(self.runtime.now()),
            in_work: Cell::new(0),
            parked: Cell::new(false),
            patience: state_patience,
            writing: Cell::new(false),
            partial: Cell::new(None),
            waits_for_memory: Cell::new(None),
            output_failed: Cell::new(false),
            queued: Cell::new(false),
            held: Cell::new(0),
            closed: Cell::new(false),
        });
        self.states.borrow_mut().insert(id, state.clone());
        let connection = Connection::new(self, state, handler.clone(), context);
        let (weak, listener) = (Rc::downgrade(self), listener.clone());
        let task = self.runtime.spawn(Queue::Request, async move {
            let leave = Leave { connections: weak, id, cells };
            if let Some(moving) = connection.serve(unread).await
                && let Some(ways) = leave.connections.upgrade().and_then(|connections| connections.ways())
                && let Some(admission) = admission
            {
                ways.send(moving, &listener, admission).await;
            }
        });
        self.tasks.borrow_mut().insert(id, task);
        if self.count() == 1 {
            // With others before it there is a time at which to look, and this one is not idle earlier.
            self.sweep();
        }
    }

    /// Closes the connection that was used least recently, of any listener but this one; `false` when there is none.
    pub fn close_least_recent(&self, except: &str) -> bool {
        let states = self.states.borrow();
        let others = states.iter().filter(|(_, state)| *state.listener != *except && !state.closed.get());
        let least = others.min_by_key(|(id, state)| (state.activity.get(), **id)).map(|(id, _)| *id);
        drop(states);
        least.is_some_and(|id| self.end(id, "its place goes to another broker"))
    }

    /// Tells the requests and answers that wait, and the memory of requests.
    pub fn tell(&self, out: &mut ShardSnapshot) {
        let count =
            |is: fn(&State<R>) -> bool| self.states.borrow().values().filter(|state| is(state)).count();
        out.whole(Family::RequestQueueSize, count(|state| state.queued.get()));
        out.whole(Family::ResponseQueueSize, count(|state| state.writing.get()));
        let (used, max) = (self.memory.used(), self.settings.memory_bytes_max);
        out.whole(Family::MemoryUsed, used);
        out.whole(Family::MemoryAvailable, max.saturating_sub(used));
        let labels = vec![("shard", Arc::from(self.runtime.shard().get().to_string()))];
        out.push(Family::ShardMemoryUsed, labels.clone(), whole(used));
        out.push(Family::ShardMemoryLimit, labels, whole(max));
    }

    /// How many connections there are.
    pub fn count(&self) -> usize {
        self.states.borrow().len()
    }

    /// The budget for requests.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether connections end after the request that they are at.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Takes no more connections, closes those without a request at once and the others after it, which waits for nothing
    /// that is not there but its own acknowledgements, those that take no answers, those whose next request is not here as
    /// a whole after a moment, and those that are left at `by`.
    pub async fn drain(&self, by: MonoTime) {
        self.stopping.set(true);
        for (id, state) in &*self.states.borrow() {
            if state.is_quiet() {
                state.close(*id, "the broker stops");
            } else {
                state.patience.end();
            }
        }
        let mut look_at = self.runtime.now();
        let whole_by = look_at.plus_ms(WHOLE_MS);
        while self.count() > 0 && self.runtime.now() < by {
            if self.runtime.now() >= look_at {
                look_at = self.runtime.now().plus_ms(SWEEP_MS_MIN);
                self.close_untaken(whole_by);
            }
            self.runtime.sleep_until(self.runtime.now().plus_ms(1)).await;
        }
        let left: Vec<_> = self.states.borrow().iter().map(|(id, state)| (*id, state.clone())).collect();
        for (id, state) in left {
            state.close(id, "the broker stops; the request took too long");
        }
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
        self.reap();
    }

    /// At a stop, closes who has not taken an answer for a while: it gets no other one either. And who has begun a request
    /// that is not here as a whole by `whole_by`: nobody waits for the rest.
    fn close_untaken(&self, whole_by: MonoTime) {
        let now = self.runtime.now();
        let mut due = Vec::new();
        for (id, state) in &*self.states.borrow() {
            if state.takes_none(now) {
                due.push((*id, "the broker stops; its answers are not taken"));
            } else if now >= whole_by && state.in_work.get() == 0 {
                due.push((*id, "the broker stops; its request is not here as a whole"));
            }
        }
        for (id, reason) in due {
            self.end(id, reason);
        }
    }

    /// Lets the sweeper look at once: there is a first connection, or pressure.
    pub(super) fn sweep(&self) {
        self.sweep_now.set(true);
        if let Some(waker) = self.sweep_waker.take() {
            waker.wake();
        }
    }

    /// Has clients looked after whose requests wait, from now on and until there are none.
    pub(super) fn look_after_parked(&self) {
        if !self.looks_after.replace(true) {
            self.sweep();
        }
    }

    /// Closes a connection, and drops what its requests wait for: also what waits for weeks. `false` when it is gone. Not
    /// for a connection's own task.
    fn end(&self, id: u64, reason: &'static str) -> bool {
        let state = self.states.borrow().get(&id).cloned();
        let Some(state) = state else { return false };
        state.close(id, reason);
        let task = self.tasks.borrow_mut().remove(&id);
        drop(task);
        true
    }

    /// A task cannot drop its own handle.
    fn reap(&self) {
        let finished = self.finished.take();
        for id in finished {
            let task = self.tasks.borrow_mut().remove(&id);
            drop(task);
        }
    }

    /// Closes who is idle; returns when to look again, `NEVER` when there is nothing to look at.
    fn close_idle(&self) -> Option<MonoTime> {
        let now = self.runtime.now();
        let (mut earliest, mut idle) = (None, Vec::new());
        for (id, state) in &*self.states.borrow() {
            // One that we do not read from can be idle after a whole span from now at the earliest.
            let idle_ms_max = self.settings.idle_ms_max;
            let at = state.idle_at(idle_ms_max).unwrap_or_else(|| now.plus_ms(idle_ms_max));
            if at <= now {
                idle.push(*id);
            } else {
                earliest = sooner(earliest, Some(at));
            }
        }
        for id in idle {
            self.end(id, "idle");
        }
        earliest
    }

    /// Ends the waits of clients that have gone, or stopped to send: no wait is long enough to learn of it by itself. What
    /// they have sent is executed all the same. Returns when to look again.
    async fn end_waits_of_gone(&self) -> Option<MonoTime> {
        let now = self.runtime.now();
        let (mut next, mut silent) = (None, Vec::new());
        for (id, state) in &*self.states.borrow() {
            let Some(at) = state.looked_after_at() else { continue };
            if at <= now {
                silent.push((*id, state.clone()));
            }
            let again = if at <= now { now.plus_ms(PARKED_MS) } else { at };
            next = sooner(next, Some(again));
        }
        // Before the first await: whose request begins to wait meanwhile calls again, or is seen then.
        self.looks_after.set(next.is_some());
        let mut pace = Pace::new(&self.runtime);
        for (id, state) in silent {
            if !state.closed.get() && state.conn.has_ended() {
                tracing::debug!(connection = id, peer = %state.conn.peer(), "the client waits no longer");
                state.patience.end();
            }
            pace.step().await;
        }
        next
    }

    /// Whether it helps those who wait for memory when the connection gives back what it holds.
    fn is_in_the_way(&self, state: &State<R>, pressure: Pressure) -> bool {
        state.held.get() > 0 && pressure.is_of(self.memory.size_of(state.held.get()))
    }

    /// While others wait for memory, no large request keeps it only because it waits for what is not there.
    fn cut_waits(&self, pressure: Pressure) {
        for state in self.states.borrow().values() {
            let is_large = state.held.get() >= CUT_BYTES_MIN;
            if state.parked.get() && is_large && self.is_in_the_way(state, pressure) {
                state.patience.cut();
            }
        }
    }

    /// While others wait for memory, closes who keeps the most of it behind answers that it has not taken for a while; if
    /// there is none, the slowest of the frames that have taken a while to come.
    fn close_slowest(&self, pressure: Pressure) {
        let now = self.runtime.now();
        let states = self.states.borrow();
        let greatest = states
            .iter()
            .filter(|(_, state)| self.is_in_the_way(state, pressure) && state.takes_none(now))
            .max_by_key(|(id, state)| (state.held.get(), **id));
        if let Some((&id, _)) = greatest {
            drop(states);
            self.end(id, "answers not taken under memory pressure");
            return;
        }
        let slowest = states
            .iter()
            .filter(|(_, state)| state.waits_for_memory.get().is_none() && !state.closed.get())
            .filter_map(|(id, state)| {
                let Partial { began, bytes, .. } =
                    state.partial.get().filter(|partial| pressure.is_of(partial.size))?;
                let nanos = now.nanos_since(began);
                let is_slow = now >= began.plus_ms(PRESSURE_MS);
                let rate =
                    u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(1_000_000_000) / nanos.max(1);
                is_slow.then_some((rate, *id))
            })
            .min();
        drop(states);
        if let Some((_, id)) = slowest {
            self.end(id, "slowest frame under memory pressure");
        }
    }

    fn sweep_asked(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|context| {
            if self.sweep_now.replace(false) {
                return Poll::Ready(());
            }
            self.sweep_waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
    }
}

/// Takes a connection out of the lists however its task ends.
struct Leave<R: ShardRuntime> {
    connections: Weak<Connections<R>>,
    id: u64,
    cells: Rc<ListenerCells>,
}

impl<R: ShardRuntime> Drop for Leave<R> {
    fn drop(&mut self) {
        self.cells.left.inc();
        let Some(connections) = self.connections.upgrade() else { return };
        let state = connections.states.borrow_mut().remove(&self.id);
        drop(state);
        connections.finished.borrow_mut().push(self.id);
    }
}

fn sooner(a: Option<MonoTime>, b: Option<MonoTime>) -> Option<MonoTime> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (at, None) | (None, at) => at,
    }
}

async fn sweep<R: ShardRuntime>(connections: Weak<Connections<R>>, runtime: R) {
    loop {
        let Some(strong) = connections.upgrade() else { return };
        strong.reap();
        let mut due = strong.close_idle();
        due = sooner(due, strong.end_waits_of_gone().await);
        let soonest = runtime.now().plus_ms(SWEEP_MS_MIN);
        if let Some(pressure) = strong.memory.pressure() {
            strong.cut_waits(pressure);
            strong.close_slowest(pressure);
            due = Some(soonest);
        }
        match due {
            Some(due) => {
                let at = runtime.sleep_until(due.max(soonest));
                select(pin!(at), pin!(strong.sweep_asked())).await;
            }
            None => strong.sweep_asked().await,
        }
    }
}

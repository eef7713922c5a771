//! All connections of one shard: their tasks, the close of idle ones, the close of the slowest sender under memory
//! pressure, and the drain at a stop. Knows no frames; `listener` brings connections, `connection` serves them.

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
use crate::handlers::{Account, ConnectionContext, RequestHandler};
use crate::metrics::ShardMetrics;
use crate::metrics::names::Family;
use crate::metrics::registry::ListenerCells;
use crate::metrics::snapshot::{ShardSnapshot, whole};
use crate::shard::memory::Memory;
use crate::shard::{Conn, ShardRuntime};

/// Idle connections are looked for not more often than this.
const SWEEP_MS_MIN: i64 = 50;

/// Under pressure a frame that has taken this long may be closed as the slowest.
const PRESSURE_MS: i64 = 1000;

/// Number of the connection within a shard: the upper bits name the shard.
const SHARD_SHIFT: u32 = 48;

/// What the shard knows of one connection while its task serves it.
pub(super) struct State<R: ShardRuntime> {
    pub(super) conn: R::Conn,
    listener: Arc<str>,
    /// When bytes last came or went.
    pub(super) activity: Cell<MonoTime>,
    /// Requests that are being handled or wait for their answers: such a connection is not idle.
    pub(super) in_work: Cell<usize>,
    /// An answer is being written: the connection is idle after all when the client does not take it.
    pub(super) writing: Cell<bool>,
    /// When the frame that is coming in began, and how much of it is here.
    pub(super) partial: Cell<Option<(MonoTime, usize)>>,
    /// It is we who do not read.
    pub(super) waits_for_memory: Cell<bool>,
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
        self.conn.shutdown();
    }

    fn is_quiet(&self) -> bool {
        self.in_work.get() == 0 && self.partial.get().is_none()
    }

    /// When the connection is idle, if nothing happens until then; `None` while it is at work.
    fn idle_at(&self, idle_ms_max: i64) -> Option<MonoTime> {
        let at_work = self.waits_for_memory.get() || (self.in_work.get() > 0 && !self.writing.get());
        (!at_work).then(|| self.activity.get().plus_ms(idle_ms_max))
    }
}

/// All connections of one shard.
pub struct Connections<R: ShardRuntime> {
    pub(super) runtime: R,
    pub(super) settings: ConnectionSettings,
    pub(super) memory: Rc<Memory>,
    metrics: Rc<ShardMetrics>,
    states: RefCell<BTreeMap<u64, Rc<State<R>>>>,
    tasks: RefCell<BTreeMap<u64, R::Task>>,
    finished: RefCell<Vec<u64>>,
    next: Cell<u64>,
    stopping: Cell<bool>,
    sweeper: RefCell<Option<R::Task>>,
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
            sweeper: RefCell::default(),
            sweep_now: Cell::new(false),
            sweep_waker: Cell::default(),
        });
        let sweeper = runtime.spawn(Queue::Background, sweep(Rc::downgrade(&this), runtime.clone()));
        *this.sweeper.borrow_mut() = Some(sweeper);
        this
    }

    /// Serves a connection until it ends.
    pub fn serve<H: RequestHandler>(
        self: &Rc<Self>,
        conn: R::Conn,
        listener: &Arc<str>,
        handler: &H,
        admission: Option<(Admission, Option<AddressToken>)>,
    ) {
        self.reap();
        if self.stopping.get() {
            conn.shutdown();
            return;
        }
        self.next.set(self.next.get().saturating_add(1));
        let id = (u64::from(self.runtime.shard().get()) << SHARD_SHIFT) | self.next.get();
        let account = Account::new(self.metrics.clone());
        let context = ConnectionContext { listener: listener.clone(), peer: conn.peer(), id, account };
        let cells = self.metrics.listener(listener);
        cells.created.inc();
        let state = Rc::new(State {
            conn,
            listener: listener.clone(),
            activity: Cell::new(self.runtime.now()),
            in_work: Cell::new(0),
            writing: Cell::new(false),
            partial: Cell::new(None),
            waits_for_memory: Cell::new(false),
            output_failed: Cell::new(false),
            queued: Cell::new(false),
            held: Cell::new(0),
            closed: Cell::new(false),
        });
        self.states.borrow_mut().insert(id, state.clone());
        let connection = Connection::new(self, state, handler.clone(), context);
        let weak = Rc::downgrade(self);
        let task = self.runtime.spawn(Queue::Request, async move {
            let _leave = Leave { connections: weak, id, cells };
            let _admission = admission;
            connection.serve().await;
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
        let Some((id, state)) = others.min_by_key(|(id, state)| (state.activity.get(), **id)) else {
            return false;
        };
        state.close(*id, "its place goes to another broker");
        true
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

    /// Takes no more connections, closes those without a request at once and the others after it, and those that are
    /// left at `by` without their answers.
    pub async fn drain(&self, by: MonoTime) {
        self.stopping.set(true);
        for (id, state) in &*self.states.borrow() {
            if state.is_quiet() {
                state.close(*id, "the broker stops");
            }
        }
        while self.count() > 0 && self.runtime.now() < by {
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

    /// Lets the sweeper look at once: there is a first connection, or pressure.
    pub(super) fn sweep(&self) {
        self.sweep_now.set(true);
        if let Some(waker) = self.sweep_waker.take() {
            waker.wake();
        }
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
        let mut earliest: Option<MonoTime> = None;
        for (id, state) in &*self.states.borrow() {
            // One that is at work can be idle after a whole span from now at the earliest.
            let idle_ms_max = self.settings.idle_ms_max;
            let at = state.idle_at(idle_ms_max).unwrap_or_else(|| now.plus_ms(idle_ms_max));
            if at <= now {
                state.close(*id, "idle");
            } else {
                earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
            }
        }
        earliest
    }

    /// While others wait for memory, closes who keeps the most of it behind answers that it has not taken for a while; if
    /// there is none, the slowest of the frames that have taken a while to come.
    fn close_slowest(&self) {
        let now = self.runtime.now();
        let states = self.states.borrow();
        let takes_none = |state: &State<R>| {
            state.writing.get() && !state.closed.get() && now >= state.activity.get().plus_ms(PRESSURE_MS)
        };
        let greatest = states
            .iter()
            .filter(|(_, state)| state.held.get() > 0 && takes_none(state))
            .max_by_key(|(id, state)| (state.held.get(), **id));
        if let Some((id, state)) = greatest {
            state.close(*id, "answers not taken under memory pressure");
            return;
        }
        let slowest = states
            .iter()
            .filter(|(_, state)| !state.waits_for_memory.get() && !state.closed.get())
            .filter_map(|(id, state)| {
                let (began, bytes) = state.partial.get()?;
                let nanos = now.nanos_since(began);
                let is_slow = now >= began.plus_ms(PRESSURE_MS);
                let rate =
                    u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(1_000_000_000) / nanos.max(1);
                is_slow.then_some((rate, id, state))
            })
            .min_by_key(|(rate, id, _)| (*rate, **id));
        if let Some((_, id, state)) = slowest {
            state.close(*id, "slowest frame under memory pressure");
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
        self.cells.closed.inc();
        let Some(connections) = self.connections.upgrade() else { return };
        let state = connections.states.borrow_mut().remove(&self.id);
        drop(state);
        connections.finished.borrow_mut().push(self.id);
    }
}

async fn sweep<R: ShardRuntime>(connections: Weak<Connections<R>>, runtime: R) {
    loop {
        let Some(strong) = connections.upgrade() else { return };
        strong.reap();
        let mut due = strong.close_idle();
        let soonest = runtime.now().plus_ms(SWEEP_MS_MIN);
        if strong.memory.is_under_pressure() {
            strong.close_slowest();
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

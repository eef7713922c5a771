//! The deterministic executor: tasks, timers and a virtual clock in one thread. Which ready task runs next is drawn
//! from the seed, so that a seed is a bug report. Knows no files.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};

use futures_channel::oneshot;
use protocol::types::MonoTime;

/// A small generator whose sequence never changes with a library (splitmix64).
#[derive(Debug)]
pub(super) struct Random(Cell<u64>);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub(super) fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub(super) fn below(&self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }
}

struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    ready: mpsc::Sender<u64>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            // The receiver is gone only when the world is.
            let _ = self.ready.send(self.id);
        }
    }
}

type Body = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    group: u64,
    /// Taken while the task is being polled.
    body: Option<Body>,
    waker: Arc<TaskWaker>,
}

enum Event {
    Wake(Waker),
    /// Something the world does by itself: the end of an I/O operation, a message that arrives.
    Run(Box<dyn FnOnce()>),
}

/// Tasks, timers and clock. Shared by every runtime of one simulation.
pub(super) struct World {
    now: Cell<u64>,
    next: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, Slot>>,
    ready_sender: mpsc::Sender<u64>,
    ready_receiver: mpsc::Receiver<u64>,
    ready: RefCell<Vec<u64>>,
    events: RefCell<BTreeMap<(u64, u64), Event>>,
    /// How many `Event::Run` are due some time.
    running: Cell<usize>,
    polls: Cell<u64>,
    schedule: Random,
    /// What `Runtime::random` draws from.
    pub(super) user: Random,
    /// What faults and latencies draw from.
    pub(super) faults: Random,
}

impl World {
    pub(super) fn new(seed: u64) -> Rc<Self> {
        let (ready_sender, ready_receiver) = mpsc::channel();
        let root = Random::new(seed);
        Rc::new(Self {
            now: Cell::new(1),
            next: Cell::new(0),
            tasks: RefCell::default(),
            ready_sender,
            ready_receiver,
            ready: RefCell::default(),
            events: RefCell::default(),
            running: Cell::new(0),
            polls: Cell::new(0),
            schedule: Random::new(root.next()),
            user: Random::new(root.next()),
            faults: Random::new(root.next()),
        })
    }

    pub(super) fn now(&self) -> u64 {
        self.now.get()
    }

    pub(super) fn polls(&self) -> u64 {
        self.polls.get()
    }

    pub(super) fn number(&self) -> u64 {
        self.next.set(self.next.get().saturating_add(1));
        self.next.get()
    }

    pub(super) fn spawn(self: &Rc<Self>, group: u64, body: Body) -> SimTask {
        let id = self.number();
        let waker =
            Arc::new(TaskWaker { id, queued: AtomicBool::new(false), ready: self.ready_sender.clone() });
        waker.wake_by_ref();
        self.tasks.borrow_mut().insert(id, Slot { group, body: Some(body), waker });
        SimTask { id, world: Rc::downgrade(self) }
    }

    /// Drops every task of a group, as the death of a process does.
    pub(super) fn kill(&self, group: u64) {
        let mut dead = Vec::new();
        self.tasks.borrow_mut().retain(|_, slot| {
            if slot.group == group {
                dead.push(slot.body.take());
            }
            slot.group != group
        });
        // Dropped without a borrow held: a future that is dropped may drop tasks of its own.
        drop(dead);
    }

    pub(super) fn run_at(&self, at: u64, action: Box<dyn FnOnce()>) {
        self.running.set(self.running.get().saturating_add(1));
        self.events.borrow_mut().insert((at, self.number()), Event::Run(action));
    }

    pub(super) fn sleep_until(self: &Rc<Self>, at: u64) -> impl Future<Output = ()> + 'static {
        Sleep { world: self.clone(), at, key: None }
    }

    /// Does `action` after `nanos`, whether or not anybody still waits for it.
    pub(super) async fn perform<T: 'static>(
        self: Rc<Self>,
        nanos: u64,
        action: impl FnOnce() -> T + 'static,
    ) -> T {
        let (sender, receiver) = oneshot::channel();
        self.run_at(
            self.now().saturating_add(nanos),
            Box::new(move || {
                // Nobody may be waiting any more; the operation has happened all the same.
                let _ = sender.send(action());
            }),
        );
        match receiver.await {
            Ok(value) => value,
            // The world dropped the event: it is ending, and nobody goes on.
            Err(oneshot::Canceled) => std::future::pending().await,
        }
    }

    fn collect_ready(&self) {
        let mut ready = self.ready.borrow_mut();
        while let Ok(id) = self.ready_receiver.try_recv() {
            ready.push(id);
        }
    }

    /// Polls one ready task; `false` when none is ready.
    fn poll_one(&self) -> bool {
        self.collect_ready();
        let id = {
            let mut ready = self.ready.borrow_mut();
            if ready.is_empty() {
                return false;
            }
            let count = u64::try_from(ready.len()).unwrap_or(u64::MAX);
            let chosen = usize::try_from(self.schedule.below(count)).unwrap_or(0);
            ready.swap_remove(chosen)
        };
        let Some((mut body, waker)) = self
            .tasks
            .borrow_mut()
            .get_mut(&id)
            .and_then(|slot| slot.body.take().map(|body| (body, slot.waker.clone())))
        else {
            return true;
        };
        self.polls.set(self.polls.get().saturating_add(1));
        waker.queued.store(false, Ordering::Relaxed);
        let done = body.as_mut().poll(&mut Context::from_waker(&Waker::from(waker))).is_ready();
        if done {
            self.tasks.borrow_mut().remove(&id);
        } else if let Some(slot) = self.tasks.borrow_mut().get_mut(&id) {
            // Still there: not cancelled while it ran.
            slot.body = Some(body);
        }
        true
    }

    /// Does what is due next, not later than `limit`; `false` when nothing is.
    fn fire_next(&self, limit: u64) -> bool {
        let event = {
            let mut events = self.events.borrow_mut();
            match events.first_key_value() {
                Some((&(at, _), _)) if at <= limit => events.pop_first(),
                _ => None,
            }
        };
        let Some(((at, _), event)) = event else { return false };
        self.now.set(self.now.get().max(at));
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Run(action) => {
                self.running.set(self.running.get().saturating_sub(1));
                action();
            }
        }
        true
    }

    /// Runs until no task is ready and nothing the world does by itself is under way; sleeping tasks keep sleeping.
    pub(super) fn run_until_idle(&self) {
        loop {
            while self.poll_one() {}
            if self.running.get() == 0 || !self.fire_next(u64::MAX) {
                return;
            }
        }
    }

    pub(super) fn advance(&self, nanos: u64) {
        let until = self.now().saturating_add(nanos);
        loop {
            while self.poll_one() {}
            if !self.fire_next(until) {
                self.now.set(until);
                return;
            }
        }
    }

    /// Runs until the future is done.
    pub(super) fn block_on<T: 'static>(self: &Rc<Self>, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let into = result.clone();
        let task = self.spawn(
            0,
            Box::pin(async move {
                let value = future.await;
                *into.borrow_mut() = Some(value);
            }),
        );
        loop {
            if let Some(value) = result.borrow_mut().take() {
                drop(task);
                return value;
            }
            if !self.poll_one() {
                assert!(
                    self.fire_next(u64::MAX),
                    "the simulation is stuck: every task waits for another, and no timer is set"
                );
            }
        }
    }
}

struct Sleep {
    world: Rc<World>,
    at: u64,
    key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(key) = self.key.take() {
            self.world.events.borrow_mut().remove(&key);
            if self.world.now() >= self.at {
                return Poll::Ready(());
            }
        }
        // Also a time in the past takes one trip through the events: glommio is never faster.
        let key = (self.at.max(self.world.now()), self.world.number());
        self.world.events.borrow_mut().insert(key, Event::Wake(context.waker().clone()));
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let event = self.world.events.borrow_mut().remove(&key);
            drop(event);
        }
    }
}

/// A running task; dropping it ends the task.
pub struct SimTask {
    id: u64,
    world: Weak<World>,
}

impl Drop for SimTask {
    fn drop(&mut self) {
        let Some(world) = self.world.upgrade() else { return };
        let slot = world.tasks.borrow_mut().remove(&self.id);
        drop(slot);
    }
}

/// The virtual clock as the shared type.
pub(super) fn mono(nanos: u64) -> MonoTime {
    MonoTime::new(nanos)
}

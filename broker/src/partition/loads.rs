//! Logs that are there and not open yet: at a start each is served as soon as it is ready, whatever the others do.
//! So many are opened side by side; one that turns out to have much to check waits until those before it that have little
//! are served, and goes on beside a few others of its kind. A log that a client has asked for is opened next. What comes
//! for a partition meanwhile, a newer role, a stop, the end of the broker, finds it here. Called by `lifecycle`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use protocol::types::{MonoTime, TopicPartition};
use storage::io::{Queue, Runtime};
use storage::log::LoadControl;

use super::ask::{Become, BecomeError, PartitionKey, SetConfig};
use super::service::PartitionService;

/// More than so many bytes to check are much.
const LONG_BYTES: u64 = 8 << 20;

/// So many such logs are checked side by side: each holds a buffer, and they share a disk.
const LONG_LOADS_MAX: usize = 4;

/// How often logs that wait are looked after, should something else not do it: one of those before them may hang.
const TICK_MS: i64 = 1000;

/// Every how many of these looks a line tells how far the shard is.
const TICKS_PER_LINE: u32 = 5;

type Outcome = Result<(), BecomeError>;

/// What is to be told how the loading of one log ended.
pub(super) type Loaded = oneshot::Receiver<Outcome>;

/// Where a log stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Opening,
    /// There is much to check; nothing is done meanwhile.
    Paused,
    Checking,
}

/// A log that is being opened, or waits for that.
pub(super) struct Load {
    pub(super) key: PartitionKey,
    pub(super) name: TopicPartition,
    /// The newest role that it is to take.
    ask: RefCell<Become>,
    waiters: RefCell<Vec<oneshot::Sender<Outcome>>>,
    pub(super) control: LoadControl,
    /// The log dir that it is being opened in.
    home: RefCell<Option<Arc<Path>>>,
    /// The first try: another one, of a log that found no room, is no progress of the start.
    is_first: bool,
    stage: Cell<Stage>,
    /// A client asked for it in this stage.
    is_wanted: Cell<bool>,
    resume: Cell<Option<oneshot::Sender<()>>>,
}

impl Load {
    /// The newest role that it is to take.
    pub(super) fn ask(&self) -> Become {
        self.ask.borrow().clone()
    }

    /// Takes a newer role in the place of the one that it was to take.
    ///
    /// # Errors
    /// The role is older.
    pub(super) fn replace(&self, ask: Become) -> Result<Loaded, BecomeError> {
        let current = self.ask.borrow().partition_epoch;
        if ask.partition_epoch < current {
            return Err(BecomeError::StaleEpoch { asked: ask.partition_epoch, current });
        }
        self.ask.replace(ask);
        Ok(self.ended())
    }

    /// It is being opened in this log dir.
    pub(super) fn opens_in(&self, dir: &Arc<Path>) {
        self.home.replace(Some(dir.clone()));
    }

    fn ended(&self) -> Loaded {
        let (waiter, loaded) = oneshot::channel();
        self.waiters.borrow_mut().push(waiter);
        loaded
    }
}

/// The logs of a shard that are not open yet.
#[derive(Default)]
pub(super) struct Loads {
    all: RefCell<BTreeMap<PartitionKey, Rc<Load>>>,
    waiting: RefCell<VecDeque<Rc<Load>>>,
    /// Asked for by clients: before those that wait.
    wanted: RefCell<VecDeque<Rc<Load>>>,
    paused: RefCell<VecDeque<Rc<Load>>>,
    opening: Cell<usize>,
    checking: Cell<usize>,
    loaded: Cell<usize>,
    began: Cell<Option<MonoTime>>,
    is_watched: Cell<bool>,
}

impl Loads {
    /// The load of a partition.
    pub(super) fn get(&self, key: PartitionKey) -> Option<Rc<Load>> {
        self.all.borrow().get(&key).cloned()
    }

    /// Whether a partition of this name is to be opened.
    pub(super) fn holds(&self, name: &TopicPartition) -> bool {
        self.all.borrow().values().any(|load| load.name == *name)
    }

    /// A client asks for a partition: whether it is among those to come, which it then does sooner.
    pub(super) fn want(&self, key: PartitionKey) -> bool {
        let all = self.all.borrow();
        let Some(load) = all.get(&key) else { return false };
        if load.is_wanted.replace(true) {
            return true;
        }
        match load.stage.get() {
            Stage::Waiting => self.wanted.borrow_mut().push_back(load.clone()),
            Stage::Paused => {
                let mut paused = self.paused.borrow_mut();
                paused.retain(|other| !Rc::ptr_eq(other, load));
                paused.push_front(load.clone());
            }
            Stage::Opening | Stage::Checking => {}
        }
        true
    }

    /// A topic's new configuration.
    pub(super) fn set_config(&self, set: &SetConfig) {
        for load in self.all.borrow().values().filter(|load| load.key.topic_id == set.topic_id) {
            load.ask.borrow_mut().config = set.config.clone();
        }
    }

    /// The next one to open; those that were stopped meanwhile are not there any more.
    fn next(&self) -> Option<Rc<Load>> {
        loop {
            let wanted = self.wanted.borrow_mut().pop_front();
            let next = wanted.or_else(|| self.waiting.borrow_mut().pop_front())?;
            let is_there = self.all.borrow().get(&next.key).is_some_and(|there| Rc::ptr_eq(there, &next));
            if is_there && next.stage.get() == Stage::Waiting {
                return Some(next);
            }
        }
    }

    fn enter(&self, load: &Load, stage: Stage) {
        let count = |stage, by: fn(usize, usize) -> usize| {
            let of = match stage {
                Stage::Opening => &self.opening,
                Stage::Checking => &self.checking,
                Stage::Waiting | Stage::Paused => return,
            };
            of.set(by(of.get(), 1));
        };
        count(load.stage.replace(stage), usize::saturating_sub);
        count(stage, usize::saturating_add);
    }

    fn tell_progress(&self) {
        let all = self.all.borrow();
        let bytes = all.values().map(|load| load.control.checked_bytes()).sum::<u64>();
        let (left, loaded) = (all.len(), self.loaded.get());
        let first = all.values().next().map(|load| &load.name);
        tracing::info!(
            loaded,
            left,
            first = first.map(tracing::field::display),
            bytes,
            "logs are being loaded"
        );
    }

    /// A dir has failed: what is being opened there gives up soon, and what waits is refused in its turn.
    pub(super) fn give_up(&self, dir: &Path) {
        let is_there = |load: &&Rc<Load>| load.home.borrow().as_deref() == Some(dir);
        for load in self.all.borrow().values().filter(is_there) {
            load.control.stop();
            drop(load.resume.take());
        }
    }

    /// Answers whether it was there.
    fn end(&self, load: &Rc<Load>, outcome: Outcome) -> bool {
        self.enter(load, Stage::Waiting);
        let is_there = self.get(load.key).is_some_and(|there| Rc::ptr_eq(&there, load));
        if is_there {
            self.all.borrow_mut().remove(&load.key);
        }
        for waiter in load.waiters.take() {
            // Who gave up waiting is not there to be told.
            let _ = waiter.send(outcome);
        }
        is_there
    }
}

impl<R: Runtime> PartitionService<R> {
    fn loads(&self) -> &Loads {
        &self.0.lifecycle.loads
    }

    /// Opens the log of a partition when its turn comes; `ask` is the role that it then takes.
    pub(super) fn load(&self, key: PartitionKey, ask: Become) -> Loaded {
        let name = TopicPartition::new(ask.topic.clone(), ask.partition);
        let inner = Rc::downgrade(&self.0);
        let control = LoadControl::waiting_at(LONG_BYTES, move |resume| {
            if let Some(inner) = inner.upgrade() {
                Self(inner).pause(key, resume);
            }
        });
        let load = Rc::new(Load {
            key,
            name,
            ask: RefCell::new(ask),
            waiters: RefCell::default(),
            control,
            home: RefCell::default(),
            is_first: !self.0.lifecycle.is_unserved(key),
            stage: Cell::new(Stage::Waiting),
            is_wanted: Cell::new(false),
            resume: Cell::default(),
        });
        let loaded = load.ended();
        if load.is_first {
            self.0.hub.metrics.progress.to_load(1);
        }
        let loads = self.loads();
        loads.all.borrow_mut().insert(key, load.clone());
        loads.waiting.borrow_mut().push_back(load);
        if loads.began.get().is_none() {
            loads.began.set(Some(self.runtime().now()));
        }
        if !loads.is_watched.replace(true) {
            self.watch_loads();
        }
        self.start_loads();
        loaded
    }

    /// Gives a load up, and returns when nothing of it runs any more. A log that had come to its end is open then.
    pub(super) async fn stop_load(&self, load: &Rc<Load>) {
        load.control.stop();
        if load.stage.get() == Stage::Waiting {
            // It may have come to its end already.
            if self.loads().end(load, Err(BecomeError::Stopped)) && load.is_first {
                self.0.hub.metrics.progress.loaded(1);
            }
            return;
        }
        let ended = load.ended();
        drop(load.resume.take());
        // An end that nobody tells any more is one too.
        let _ = ended.await;
    }

    /// Gives up all loads; those that had come to their end are open.
    pub(super) async fn stop_loads(&self) {
        let all: Vec<_> = self.loads().all.borrow().values().cloned().collect();
        for load in &all {
            load.control.stop();
            if load.stage.get() == Stage::Waiting {
                self.loads().end(load, Err(BecomeError::Stopped));
            }
        }
        for load in all {
            self.stop_load(&load).await;
        }
    }

    /// Starts what there is room for.
    fn start_loads(&self) {
        let loads = self.loads();
        while loads.opening.get() < self.0.settings.concurrent_loads_max.max(1)
            && let Some(load) = loads.next()
        {
            loads.enter(&load, Stage::Opening);
            let service = self.clone();
            self.spawn(Queue::Background, async move { service.run_load(load).await });
        }
        if loads.opening.get() == 0 {
            self.resume_loads();
        }
    }

    async fn run_load(&self, load: Rc<Load>) {
        let outcome = self.open_load(&load).await;
        let bytes = load.control.checked_bytes();
        tracing::debug!(partition = %load.name, bytes, ?outcome, "log loaded");
        let loads = self.loads();
        loads.end(&load, outcome);
        if load.is_first {
            loads.loaded.set(loads.loaded.get().saturating_add(1));
            self.0.hub.metrics.progress.loaded(1);
        }
        if loads.all.borrow().is_empty() {
            let loaded = loads.loaded.take();
            let since = loads.began.take().unwrap_or_default();
            let ms = self.runtime().now().nanos_since(since) / 1_000_000;
            if loaded > 0 {
                tracing::info!(loaded, ms, "logs are loaded");
            }
        }
        self.start_loads();
    }

    /// There is much to check in a log: others go first.
    fn pause(&self, key: PartitionKey, resume: oneshot::Sender<()>) {
        let loads = self.loads();
        let Some(load) = loads.get(key) else { return };
        load.resume.set(Some(resume));
        loads.enter(&load, Stage::Paused);
        load.is_wanted.set(false);
        loads.paused.borrow_mut().push_back(load);
        self.start_loads();
    }

    fn resume_loads(&self) {
        let loads = self.loads();
        while loads.checking.get() < LONG_LOADS_MAX {
            let Some(load) = loads.paused.borrow_mut().pop_front() else { return };
            if load.stage.get() == Stage::Paused {
                loads.enter(&load, Stage::Checking);
                drop(load.resume.take());
            }
        }
    }

    /// Sees to it that nobody waits for one that hangs, and tells how far it is; ends when all are loaded.
    fn watch_loads(&self) {
        let (inner, runtime) = (Rc::downgrade(&self.0), self.runtime().clone());
        self.spawn(Queue::Background, async move {
            for tick in 1_u32.. {
                runtime.sleep_until(runtime.now().plus_ms(TICK_MS)).await;
                let Some(service) = inner.upgrade().map(Self) else { return };
                if service.loads().all.borrow().is_empty() {
                    service.loads().began.set(None);
                    service.loads().is_watched.set(false);
                    return;
                }
                service.resume_loads();
                if tick.is_multiple_of(TICKS_PER_LINE) {
                    service.loads().tell_progress();
                }
            }
        });
    }
}

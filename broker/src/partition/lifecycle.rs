//! What a shard holds: opening logs and taking roles, closing (storage.md 8); stopping and deleting are in `stops`, moves in
//! `moves`. Changes run one after the other, in the order they came, but for logs that are there already: those are opened
//! by `loads`, and a change goes on without them. Until its log is open a partition answers NOT_LEADER_OR_FOLLOWER, which
//! every client tries again; metadata names the leader that it will have.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use protocol::types::{LeaderEpoch, Offset, TopicPartition};
use storage::io::{Queue, Runtime};
use storage::log::{LoadControl, LoadError, Log, OpenOptions, TailBudget};
use storage::log_dir::moves as dirs;
use storage::partition_metadata::ReadTopicIdError;
use storage::{log_dir, names, partition_metadata};

use super::ask::{
    Become, BecomeError, Closed, MoveAsk, PartitionAnswer, PartitionError, PartitionKey, SetConfig,
    StopPartition,
};
use super::cleaner::CleanerRounds;
use super::homes::Choices;
use super::loads::{Load, Loaded, Loads};
use super::log_dirs::table::LogDirTable;
use super::machine::PartitionState;
use super::replica::Partition;
use super::service::PartitionService;
use crate::shard::Reply;

pub use super::homes::{Checkpoints, LogHome, LogHomes};

/// A change of what the shard holds.
pub(super) enum Change {
    /// Open logs and take roles.
    Become(Vec<Become>, Reply<PartitionAnswer>),
    /// Stop serving, delete.
    Stop(Vec<StopPartition>, Reply<PartitionAnswer>),
    /// Move logs to other log dirs.
    Move(Vec<MoveAsk>, Reply<PartitionAnswer>),
    /// Try again to open what found no room.
    Retry,
    /// Close everything.
    Close(Reply<PartitionAnswer>),
}

/// Changes that wait for their turn, and where logs are.
pub(super) struct Lifecycle {
    homes: LogHomes,
    pub(super) choices: Choices,
    changes: RefCell<VecDeque<Change>>,
    running: Cell<bool>,
    closing: Cell<bool>,
    pub(super) loads: Loads,
    /// Dirs of logs that could not be opened: they are not clean when they stop, for these were not recovered (KAFKA-15375).
    unloaded: RefCell<BTreeSet<Arc<Path>>>,
    /// Partitions that were loaded or deleted once, or began without a directory: what the checkpoint files said of them at
    /// start is out of date.
    pub(super) loaded: RefCell<BTreeSet<TopicPartition>>,
    /// Partitions of this shard whose log could not be opened: requests are told so. One that found no room keeps the role
    /// that it was given, and gets it when there is room (S-32).
    pub(super) unserved: RefCell<BTreeMap<PartitionKey, Option<Become>>>,
    retrying: Cell<bool>,
}

/// What becomes of a role.
enum Role {
    /// It was taken, or not.
    Done(Result<(), BecomeError>),
    /// It will be when the log is open.
    Later(Loaded),
}

/// A log that was not opened.
enum Unopened {
    /// For want of room, or of what else the system lacks for a while: it is tried again.
    Waits,
    /// For good.
    Refused(BecomeError),
}

impl From<BecomeError> for Unopened {
    fn from(error: BecomeError) -> Self {
        Self::Refused(error)
    }
}

/// How often a log that found no room is tried again.
const RETRY_MS: i64 = 1000;

impl Lifecycle {
    pub(super) fn new(homes: LogHomes) -> Self {
        Self {
            homes,
            choices: Choices::default(),
            changes: RefCell::default(),
            running: Cell::new(false),
            closing: Cell::new(false),
            loads: Loads::default(),
            unloaded: RefCell::default(),
            loaded: RefCell::default(),
            unserved: RefCell::default(),
            retrying: Cell::new(false),
        }
    }

    pub(super) fn cleaner_rounds(&self) -> CleanerRounds {
        self.homes.cleaner_rounds.clone()
    }

    pub(super) fn homes(&self) -> &LogHomes {
        &self.homes
    }

    /// All log dirs, as every shard sees them.
    pub(super) fn table(&self) -> &LogDirTable {
        &self.homes.table
    }

    /// A dir has failed: nobody vouches for its logs any more.
    ///
    /// # Errors
    /// Why the next start may still take them as they are.
    pub(super) fn disavow(&self, dir: &Path) -> io::Result<()> {
        let lock = self.homes.get(dir).and_then(|home| home.lock.as_ref());
        lock.map_or(Ok(()), |lock| lock.disavow())
    }

    /// A log was not opened, and so not recovered; where it is not known, it may be in any dir.
    pub(super) fn note_unloaded(&self, dir: Option<&Arc<Path>>) {
        let mut unloaded = self.unloaded.borrow_mut();
        match dir {
            Some(dir) => drop(unloaded.insert(dir.clone())),
            None => unloaded.extend(self.homes.homes.iter().map(|home| home.dir.clone())),
        }
    }

    pub(super) fn is_unserved(&self, key: PartitionKey) -> bool {
        self.unserved.borrow().contains_key(&key)
    }

    /// The role that a log takes when there is room for it.
    fn waiting(&self, key: PartitionKey) -> Option<Become> {
        self.unserved.borrow().get(&key).cloned().flatten()
    }

    /// The leader epoch of the role that a log is to take when it is open.
    pub(super) fn epoch_to_come(&self, key: PartitionKey) -> Option<LeaderEpoch> {
        let ask = self.loads.get(key).map(|load| load.ask()).or_else(|| self.waiting(key));
        ask.map(|ask| ask.leader_epoch)
    }

    /// Whether a partition of this name has a log that is not open yet.
    pub(super) fn is_to_come(&self, name: &TopicPartition) -> bool {
        let is_it = |ask: &Become| !ask.is_new && ask.topic == name.topic && ask.partition == name.partition;
        self.loads.holds(name) || self.unserved.borrow().values().flatten().any(is_it)
    }

    /// A topic's new configuration, for what is not open yet.
    pub(super) fn set_config(&self, set: &SetConfig) {
        self.loads.set_config(set);
        let mut unserved = self.unserved.borrow_mut();
        for ask in unserved.values_mut().flatten().filter(|ask| ask.topic_id == set.topic_id) {
            ask.config = set.config.clone();
        }
    }
}

impl<R: Runtime> PartitionService<R> {
    pub(super) fn tail_budget(&self) -> Rc<TailBudget> {
        self.0.lifecycle.homes.tail.clone()
    }

    /// Takes a change; it starts when those before it have ended.
    pub(super) fn change(&self, change: Change) {
        self.0.lifecycle.changes.borrow_mut().push_back(change);
        if self.0.lifecycle.running.replace(true) {
            return;
        }
        let service = self.clone();
        self.spawn(Queue::Control, async move { service.run_changes().await });
    }

    async fn run_changes(&self) {
        loop {
            let next = self.0.lifecycle.changes.borrow_mut().pop_front();
            let Some(change) = next else { break };
            match change {
                Change::Become(asks, reply) => {
                    let roles = self.become_all(asks).await;
                    if roles.iter().all(|role| matches!(role, Role::Done(_))) {
                        reply.send(PartitionAnswer::Became(outcomes(roles).await));
                        continue;
                    }
                    self.spawn(Queue::Control, async move {
                        reply.send(PartitionAnswer::Became(outcomes(roles).await));
                    });
                }
                Change::Stop(asks, reply) => reply.send(PartitionAnswer::Stopped(self.stop_all(asks).await)),
                Change::Move(asks, reply) => reply.send(PartitionAnswer::Moved(self.move_all(asks).await)),
                Change::Retry => self.retry().await,
                Change::Close(reply) => reply.send(PartitionAnswer::Closed(self.close_all().await)),
            }
        }
        self.0.lifecycle.running.set(false);
    }

    /// Takes the roles of what is open or new, and has the rest opened.
    async fn become_all(&self, asks: Vec<Become>) -> Vec<Role> {
        // One open at a time of each directory: a partition that is named twice is done again afterwards, in order.
        let mut seen = BTreeSet::new();
        let doubles = asks.iter().any(|ask| !seen.insert((ask.topic.clone(), ask.partition)));
        let width = if doubles { 1 } else { self.0.settings.concurrent_loads_max.max(1) };
        stream::iter(asks).map(|ask| self.become_one(ask)).buffered(width).collect().await
    }

    async fn become_one(&self, mut ask: Become) -> Role {
        let key = key_of(&ask);
        if let Some(partition) = self.held(key) {
            if partition.check_online() == Err(PartitionError::Offline) {
                return Role::Done(Err(BecomeError::Storage));
            }
            partition.set_config(ask.config.clone());
            return Role::Done(take_role(&partition, ask).await);
        }
        if let Some(load) = self.0.lifecycle.loads.get(key) {
            return load.replace(ask).map_or_else(|stale| Role::Done(Err(stale)), Role::Later);
        }
        if self.0.lifecycle.closing.get() {
            return Role::Done(Err(BecomeError::Closing));
        }
        if let Some(waiting) = self.0.lifecycle.waiting(key) {
            let (asked, current) = (ask.partition_epoch, waiting.partition_epoch);
            if asked < current {
                return Role::Done(Err(BecomeError::StaleEpoch { asked, current }));
            }
            // What there is of a log that waits was settled when it came.
            ask.is_new = waiting.is_new;
        }
        if !ask.is_new {
            return Role::Later(self.load(key, ask));
        }
        Role::Done(match self.create(key, &mut ask).await {
            Ok(partition) => take_role(&partition, ask).await,
            Err(why) => self.unopened(key, ask, why),
        })
    }

    /// Opens the log of a load, and takes the role that is the newest by then.
    pub(super) async fn open_load(&self, load: &Load) -> Result<(), BecomeError> {
        let ask = load.ask();
        let name = TopicPartition::new(ask.topic.clone(), ask.partition);
        let home = match self.home_for(&name, ask.is_new).await {
            Ok(home) => home,
            Err(error) => return self.unopened(load.key, load.ask(), error.into()),
        };
        load.opens_in(&home.dir);
        let partition = match self.open(load.key, &ask, home, load.control.clone()).await {
            Ok(partition) => partition,
            Err(why) => return self.unopened(load.key, load.ask(), why),
        };
        let newest = load.ask();
        if !Arc::ptr_eq(&newest.config, &ask.config) {
            partition.set_config(newest.config.clone());
        }
        let outcome = take_role(&partition, newest).await;
        partition.loaded();
        self.resume_move(&partition);
        outcome
    }

    /// What the controller is told of a log that is not open.
    fn unopened(&self, key: PartitionKey, ask: Become, why: Unopened) -> Result<(), BecomeError> {
        let error = match why {
            Unopened::Waits => {
                self.wait_for_room(key, ask);
                return Ok(());
            }
            Unopened::Refused(error) => error,
        };
        let mut unserved = self.0.lifecycle.unserved.borrow_mut();
        match error {
            BecomeError::Storage => drop(unserved.insert(key, None)),
            BecomeError::InconsistentTopicId { .. } => drop(unserved.remove(&key)),
            BecomeError::StaleEpoch { .. } | BecomeError::Closing | BecomeError::Stopped => {}
        }
        Err(error)
    }

    /// A replica whose log found no room takes its role later: to the controller it is there.
    fn wait_for_room(&self, key: PartitionKey, ask: Become) {
        self.0.lifecycle.unserved.borrow_mut().insert(key, Some(ask));
        if self.0.lifecycle.retrying.replace(true) {
            return;
        }
        let (inner, runtime) = (Rc::downgrade(&self.0), self.runtime().clone());
        self.spawn(Queue::Background, async move {
            runtime.sleep_until(runtime.now().plus_ms(RETRY_MS)).await;
            if let Some(inner) = inner.upgrade() {
                inner.lifecycle.retrying.set(false);
                Self(inner).change(Change::Retry);
            }
        });
    }

    async fn retry(&self) {
        if self.0.lifecycle.closing.get() {
            return;
        }
        let loads = &self.0.lifecycle.loads;
        let waiting = self.0.lifecycle.unserved.borrow().values().flatten().cloned().collect::<Vec<_>>();
        // One that is being tried already may have a newer role by now.
        let waiting = waiting.into_iter().filter(|ask| loads.get(key_of(ask)).is_none()).collect();
        let roles = self.become_all(waiting).await;
        self.spawn(Queue::Control, async move {
            for outcome in outcomes(roles).await {
                match outcome {
                    Ok(()) | Err(BecomeError::Stopped | BecomeError::Closing) => {}
                    Err(error) => {
                        tracing::error!(%error, "a partition that had waited for room, or for a descriptor, is not served");
                    }
                }
            }
        });
    }

    /// Opens the log of a partition that is new.
    async fn create(&self, key: PartitionKey, ask: &mut Become) -> Result<Rc<Partition<R>>, Unopened> {
        self.set_remnant_aside(key, ask).await?;
        let name = TopicPartition::new(ask.topic.clone(), ask.partition);
        let home = self.home_for(&name, true).await?;
        // What is there from now on is ours, also should it be opened a second time.
        ask.is_new = false;
        self.open(key, ask, home, LoadControl::default()).await
    }

    async fn open(
        &self,
        key: PartitionKey,
        ask: &Become,
        home: LogHome,
        control: LoadControl,
    ) -> Result<Rc<Partition<R>>, Unopened> {
        let lifecycle = &self.0.lifecycle;
        let has_failed = || self.0.hub.failures.is_failed(&home.dir);
        if has_failed() {
            return Err(BecomeError::Storage.into());
        }
        let name = TopicPartition::new(ask.topic.clone(), ask.partition);
        let dir = home.dir.join(names::partition_dir(&name));
        let first = !lifecycle.loaded.borrow().contains(&name);
        let at_start = |offsets: &BTreeMap<TopicPartition, Offset>| {
            if first { offsets.get(&name).copied() } else { None }.unwrap_or(Offset::ZERO)
        };
        let options = OpenOptions {
            topic_id: Some(key.topic_id),
            recovery_point: at_start(&home.checkpoints.recovery_points),
            log_start_offset: at_start(&home.checkpoints.log_start_offsets),
            cleaner_offset: home.checkpoints.cleaner_offsets.get(&name).copied().filter(|_| first),
            clean: home.clean && first,
            vouched: first && home.lock.as_ref().is_some_and(|lock| lock.is_vouched()),
            producer_id_expiration_ms: self.0.settings.producer_expiration_ms,
            control,
            ..OpenOptions::new(ask.config.log.clone(), lifecycle.homes.tail.clone())
        };
        let high_watermark = at_start(&home.checkpoints.high_watermarks);
        if first && lifecycle.homes.lacks_one() {
            // A crash may have left a finished copy of it in the dir that cannot be used. That one is marked as the one to be
            // served; from now on this one is, too, and once both can be looked at the start asks which it is to be.
            let marked = dirs::mark(self.runtime(), &dir).await;
            let error = |source| LoadError::Io { during: "marking of the directory", source };
            marked.map_err(|source| self.not_opened(key, &home.dir, &dir, &error(source)))?;
        }
        let opened = Log::open(self.runtime().clone(), &dir, name.clone(), options).await;
        if has_failed() {
            // Meanwhile, elsewhere in the dir: nothing is written in it any more, whatever came of this log.
            lifecycle.note_unloaded(Some(&home.dir));
            if let Ok(log) = opened {
                log.set_offline("operation in its log directory");
                log.abandon().await;
            }
            return Err(BecomeError::Storage.into());
        }
        let log = opened.map_err(|error| self.not_opened(key, &home.dir, &dir, &error))?;
        lifecycle.loaded.borrow_mut().insert(name.clone());
        lifecycle.choices.settled(&name);
        if lifecycle.unserved.borrow_mut().remove(&key).is_some() {
            tracing::info!(partition = %name, "log is open at last");
        }
        let partition =
            Partition::new(&self.0.hub, key, name, (home.dir, log, high_watermark), ask.config.clone());
        self.0.partitions.borrow_mut().insert(key, partition.clone());
        if partition.is_compacted() {
            self.want_cleaner();
        }
        Ok(partition)
    }

    /// One line per failed load: which file, which fault, and what happens next. A log that waits is told of once.
    fn not_opened(&self, key: PartitionKey, home: &Arc<Path>, dir: &Path, error: &LoadError) -> Unopened {
        let lifecycle = &self.0.lifecycle;
        let say = |next| tracing::error!(dir = %dir.display(), %error, next, "log could not be opened");
        match error {
            LoadError::Stopped => BecomeError::Stopped.into(),
            LoadError::InconsistentTopicId { found, .. } => {
                say("the partition is not served, the directory is kept");
                BecomeError::InconsistentTopicId { found: *found }.into()
            }
            LoadError::MalformedMetadata(_) => {
                say("the partition is not served until the file is repaired and the broker is started again");
                lifecycle.note_unloaded(Some(home));
                BecomeError::Storage.into()
            }
            LoadError::Io { .. } if error.heals() => {
                if !lifecycle.is_unserved(key) {
                    say("it is tried again every second until there is what it lacks");
                }
                Unopened::Waits
            }
            LoadError::Io { .. } => {
                say("the log directory goes offline");
                lifecycle.note_unloaded(Some(home));
                self.operation_failed(home, error);
                BecomeError::Storage.into()
            }
        }
    }

    /// A partition that is new has no directory yet: one of its name is of a topic that metadata does not know (its own
    /// was lost, or the directory is Kafka's). It is kept, under a name that nobody serves. What the checkpoint files said
    /// of the name is about that one, or about one that was deleted since.
    async fn set_remnant_aside(&self, key: PartitionKey, ask: &Become) -> Result<(), Unopened> {
        let runtime = self.runtime();
        let name = TopicPartition::new(ask.topic.clone(), ask.partition);
        let Some(home) = self.find_home(&name).await else {
            self.0.lifecycle.loaded.borrow_mut().insert(name);
            return Ok(());
        };
        let home = &home;
        let dir = &home.join(names::partition_dir(&name));
        let failed = |error| self.not_opened(key, home, dir, &error);
        match partition_metadata::read(runtime, dir).await {
            Ok(Some(found)) if found == key.topic_id => return Ok(()),
            Ok(_) => {}
            // What cannot be read may be ours.
            Err(ReadTopicIdError::Malformed(damage)) => {
                return Err(failed(LoadError::MalformedMetadata(damage)));
            }
            Err(ReadTopicIdError::Io(source)) => {
                return Err(failed(LoadError::Io { during: "read of partition.metadata", source }));
            }
        }
        let aside = log_dir::set_aside(runtime, home, &name).await;
        let aside =
            aside.map_err(|source| failed(LoadError::Io { during: "setting a directory aside", source }))?;
        if let Some(kept) = aside {
            self.0.lifecycle.table().uncount(home);
            tracing::warn!(partition = %name, kept = %kept.display(), "directory of an unknown topic set aside");
        }
        self.0.lifecycle.loaded.borrow_mut().insert(name);
        Ok(())
    }

    /// Flushes and closes every log, side by side (storage.md 8.3); those that are being opened are given up.
    pub async fn close_all(&self) -> Closed {
        self.0.lifecycle.closing.set(true);
        self.stop_loads().await;
        let mut unclean = self.end_moves().await;
        let width = self.0.settings.concurrent_loads_max.max(1);
        let partitions = self.all();
        let results: Vec<_> =
            stream::iter(&partitions).map(|partition| close_one(partition)).buffered(width).collect().await;
        unclean.extend(results.into_iter().flatten());
        if self.0.lifecycle.unserved.borrow().values().any(Option::is_some) {
            self.0.lifecycle.note_unloaded(None);
        }
        unclean.extend(self.0.lifecycle.unloaded.borrow().iter().cloned());
        let closed = Closed { unclean, samples: self.samples() };
        for partition in &partitions {
            partition.stop();
            partition.tell_stop(None);
        }
        self.0.partitions.borrow_mut().clear();
        self.0.hub.close();
        closed
    }
}

async fn outcomes(roles: Vec<Role>) -> Vec<Result<(), BecomeError>> {
    let mut outcomes = Vec::with_capacity(roles.len());
    for role in roles {
        outcomes.push(match role {
            Role::Done(outcome) => outcome,
            Role::Later(loaded) => loaded.await.unwrap_or(Err(BecomeError::Closing)),
        });
    }
    outcomes
}

/// Takes the controller's state over an open log.
async fn take_role<R: Runtime>(partition: &Rc<Partition<R>>, ask: Become) -> Result<(), BecomeError> {
    let state = PartitionState {
        leader: ask.leader,
        leader_epoch: ask.leader_epoch,
        partition_epoch: ask.partition_epoch,
        replicas: ask.replicas,
        isr: ask.isr,
    };
    let asked = state.partition_epoch;
    let led = partition
        .take_state(state)
        .map_err(|stale| BecomeError::StaleEpoch { asked, current: stale.current })?;
    if let Some(leader_epoch) = led {
        // Recorded even if nothing is ever written in it (V-31).
        let started = partition.ask_log(async |log| log.start_leader_epoch(leader_epoch).await).await;
        started.map_err(|error| {
            tracing::error!(partition = %partition.name, %error, "leader epoch was not recorded");
            BecomeError::Storage
        })?;
    }
    partition.tell_role();
    Ok(())
}

/// Closes a log; its dir, if it was not closed cleanly.
async fn close_one<R: Runtime>(partition: &Rc<Partition<R>>) -> Option<Arc<Path>> {
    if partition.check_online() == Err(PartitionError::Offline) {
        // Its dir has failed: nothing is written any more.
        return Some(partition.dir());
    }
    let closed = partition.log().close().await;
    closed.err().map(|error| {
        tracing::error!(partition = %partition.name, %error, "log was not closed cleanly");
        partition.dir()
    })
}

fn key_of(ask: &Become) -> PartitionKey {
    PartitionKey { topic_id: ask.topic_id, partition: ask.partition }
}

//! What a shard holds: opening logs and taking roles, stopping and deleting, closing (storage.md 8), and the background
//! work of the logs. Changes run one after the other, in the order they came; within one, logs are opened side by side.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use protocol::types::{MonoTime, Offset, TopicId, TopicPartition};
use storage::io::{DirOp, Queue, Runtime, is_full};
use storage::log::{LoadError, Log, OpenOptions, TailBudget};
use storage::partition_metadata::ReadTopicIdError;
use storage::{log_dir, names, partition_metadata};

use super::ask::{
    Become, BecomeError, Closed, PartitionAnswer, PartitionError, PartitionKey, StopError, StopPartition,
};
use super::machine::PartitionState;
use super::replica::Partition;
use super::service::PartitionService;
use crate::shard::Reply;

/// What the checkpoint files said at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoints {
    /// `recovery-point-offset-checkpoint`.
    pub recovery_points: BTreeMap<TopicPartition, Offset>,
    /// `log-start-offset-checkpoint`.
    pub log_start_offsets: BTreeMap<TopicPartition, Offset>,
    /// `replication-offset-checkpoint`.
    pub high_watermarks: BTreeMap<TopicPartition, Offset>,
}

/// Where the logs of a shard are; the directory is locked, and its clean-shutdown marker gone (S-6).
#[derive(Clone)]
pub struct LogHome {
    /// The log dir.
    pub dir: Arc<Path>,
    /// Whether the last stop was clean.
    pub clean: bool,
    /// What the checkpoint files said.
    pub checkpoints: Arc<Checkpoints>,
    /// Memory for the newest batches of the shard's logs.
    pub tail: Rc<TailBudget>,
}

/// A change of what the shard holds.
pub(super) enum Change {
    /// Open logs and take roles.
    Become(Vec<Become>, Reply<PartitionAnswer>),
    /// Stop serving, delete.
    Stop(Vec<StopPartition>, Reply<PartitionAnswer>),
    /// Try again to open what found no room.
    Retry,
    /// Close everything.
    Close(Reply<PartitionAnswer>),
}

/// Changes that wait for their turn, and where logs are.
pub(super) struct Lifecycle {
    home: LogHome,
    changes: RefCell<VecDeque<Change>>,
    running: Cell<bool>,
    closing: Cell<bool>,
    /// A log could not be opened: the dir is not clean when it stops, for that log was not recovered (KAFKA-15375).
    unloaded: Cell<bool>,
    /// Partitions that were loaded once: what the checkpoint files said of them at start is out of date.
    loaded: RefCell<BTreeSet<TopicPartition>>,
    /// Partitions of this shard whose log could not be opened: requests are told so. One that found no room keeps the role
    /// that it was given, and gets it when there is room (S-32).
    unserved: RefCell<BTreeMap<PartitionKey, Option<Become>>>,
    retrying: Cell<bool>,
}

/// A log that was not opened.
enum Unopened {
    /// For want of room: it is tried again.
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
    pub(super) fn new(home: LogHome) -> Self {
        Self {
            home,
            changes: RefCell::default(),
            running: Cell::new(false),
            closing: Cell::new(false),
            unloaded: Cell::new(false),
            loaded: RefCell::default(),
            unserved: RefCell::default(),
            retrying: Cell::new(false),
        }
    }

    pub(super) fn dir(&self) -> Arc<Path> {
        self.home.dir.clone()
    }

    pub(super) fn is_unserved(&self, key: PartitionKey) -> bool {
        self.unserved.borrow().contains_key(&key)
    }
}

impl<R: Runtime> PartitionService<R> {
    pub(super) fn tail_budget(&self) -> Rc<TailBudget> {
        self.0.lifecycle.home.tail.clone()
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
                    reply.send(PartitionAnswer::Became(self.become_all(asks).await))
                }
                Change::Stop(asks, reply) => reply.send(PartitionAnswer::Stopped(self.stop_all(asks).await)),
                Change::Retry => self.retry().await,
                Change::Close(reply) => reply.send(PartitionAnswer::Closed(self.close_all().await)),
            }
        }
        self.0.lifecycle.running.set(false);
    }

    /// Opens what is not open, and takes the roles.
    async fn become_all(&self, asks: Vec<Become>) -> Vec<Result<(), BecomeError>> {
        let missing = asks.iter().filter(|ask| !ask.is_new && self.partition(key_of(ask)).is_err());
        self.0.hub.metrics.progress.to_load(missing.count());
        // One open at a time of each directory: a partition that is named twice is done again afterwards, in order.
        let mut seen = BTreeSet::new();
        let doubles = asks.iter().any(|ask| !seen.insert((ask.topic.clone(), ask.partition)));
        let width = if doubles { 1 } else { self.0.settings.concurrent_loads_max.max(1) };
        stream::iter(asks).map(|ask| self.become_one(ask)).buffered(width).collect().await
    }

    async fn become_one(&self, mut ask: Become) -> Result<(), BecomeError> {
        let key = key_of(&ask);
        let partition = match self.partition(key) {
            Ok(partition) if partition.check_online() == Err(PartitionError::Offline) => {
                return Err(BecomeError::Storage);
            }
            Ok(partition) => {
                partition.set_config(ask.config.clone());
                partition
            }
            Err(_) => {
                let is_new = ask.is_new;
                let opened = self.open(key, &mut ask).await;
                if !is_new {
                    self.0.hub.metrics.progress.loaded(1);
                }
                match opened {
                    Ok(partition) => partition,
                    Err(Unopened::Waits) => {
                        self.wait_for_room(key, ask);
                        return Ok(());
                    }
                    Err(Unopened::Refused(error)) => {
                        if error == BecomeError::Storage {
                            self.0.lifecycle.unserved.borrow_mut().insert(key, None);
                        }
                        return Err(error);
                    }
                }
            }
        };
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
            partition.log.start_leader_epoch(leader_epoch).await.map_err(|error| {
                tracing::error!(partition = %partition.name, %error, "leader epoch was not recorded");
                BecomeError::Storage
            })?;
        }
        Ok(())
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
        let waiting: Vec<Become> =
            self.0.lifecycle.unserved.borrow().values().filter_map(Option::clone).collect();
        for result in self.become_all(waiting).await {
            if let Err(error) = result {
                tracing::error!(%error, "a partition that had waited for room is not served");
            }
        }
    }

    async fn open(&self, key: PartitionKey, ask: &mut Become) -> Result<Rc<Partition<R>>, Unopened> {
        if self.0.lifecycle.closing.get() {
            return Err(BecomeError::Closing.into());
        }
        if self.0.hub.failures.is_failed(&self.0.lifecycle.home.dir) {
            return Err(BecomeError::Storage.into());
        }
        let name = TopicPartition::new(ask.topic.clone(), ask.partition);
        let home = &self.0.lifecycle.home;
        let dir = home.dir.join(names::partition_dir(&name));
        let is_remnant = ask.is_new && self.set_remnant_aside(&dir, &name, key.topic_id).await?;
        // What is there from now on is ours, also should it be opened a second time.
        ask.is_new = false;
        let first = !is_remnant && !self.0.lifecycle.loaded.borrow().contains(&name);
        let at_start = |offsets: &BTreeMap<TopicPartition, Offset>| {
            if first { offsets.get(&name).copied() } else { None }.unwrap_or(Offset::ZERO)
        };
        let options = OpenOptions {
            topic_id: Some(key.topic_id),
            recovery_point: at_start(&home.checkpoints.recovery_points),
            log_start_offset: at_start(&home.checkpoints.log_start_offsets),
            clean: home.clean && first,
            producer_id_expiration_ms: self.0.settings.producer_expiration_ms,
            ..OpenOptions::new(ask.config.log.clone(), home.tail.clone())
        };
        let high_watermark = at_start(&home.checkpoints.high_watermarks);
        let opened = Log::open(self.runtime().clone(), &dir, name.clone(), options).await;
        let log = opened.map_err(|error| self.not_opened(key, &dir, &error))?;
        self.0.lifecycle.loaded.borrow_mut().insert(name.clone());
        if self.0.lifecycle.unserved.borrow_mut().remove(&key).is_some() {
            tracing::info!(partition = %name, "log is open at last");
        }
        let partition = Partition::new(&self.0.hub, key, name, (log, high_watermark), ask.config.clone());
        self.0.partitions.borrow_mut().insert(key, partition.clone());
        Ok(partition)
    }

    /// One line per failed load: which file, which fault, and what happens next. A log that waits is told of once.
    fn not_opened(&self, key: PartitionKey, dir: &Path, error: &LoadError) -> Unopened {
        let lifecycle = &self.0.lifecycle;
        let say = |next| tracing::error!(dir = %dir.display(), %error, next, "log could not be opened");
        match error {
            LoadError::InconsistentTopicId { found, .. } => {
                say("the partition is not served, the directory is kept");
                BecomeError::InconsistentTopicId { found: *found }.into()
            }
            LoadError::MalformedMetadata(_) => {
                say("the partition is not served until the file is repaired and the broker is started again");
                lifecycle.unloaded.set(true);
                BecomeError::Storage.into()
            }
            LoadError::Io { .. } if error.is_full() => {
                if !lifecycle.is_unserved(key) {
                    say("it is tried again every second until the disk has room");
                }
                Unopened::Waits
            }
            LoadError::Io { .. } => {
                say("the log directory goes offline");
                lifecycle.unloaded.set(true);
                self.operation_failed(error);
                BecomeError::Storage.into()
            }
        }
    }

    /// A partition that is new has no directory yet: one of its name is of a topic that metadata does not know (its own
    /// was lost, or the directory is Kafka's). It is kept, under a name that nobody serves. Answers whether there was one,
    /// for what the checkpoint files say is about that one.
    async fn set_remnant_aside(
        &self,
        dir: &Path,
        name: &TopicPartition,
        topic_id: TopicId,
    ) -> Result<bool, Unopened> {
        let runtime = self.runtime();
        let key = PartitionKey { topic_id, partition: name.partition };
        let failed = |error| self.not_opened(key, dir, &error);
        match runtime.dir(DirOp::Stat(dir.to_owned())).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            // What cannot be looked at now fails below, where it is said.
            _ => {}
        }
        match partition_metadata::read(runtime, dir).await {
            Ok(Some(found)) if found == topic_id => return Ok(false),
            Ok(_) => {}
            // What cannot be read may be ours.
            Err(ReadTopicIdError::Malformed(damage)) => {
                return Err(failed(LoadError::MalformedMetadata(damage)));
            }
            Err(ReadTopicIdError::Io(source)) => {
                return Err(failed(LoadError::Io { during: "read of partition.metadata", source }));
            }
        }
        let aside = log_dir::set_aside(runtime, &self.0.lifecycle.home.dir, name).await;
        let aside =
            aside.map_err(|source| failed(LoadError::Io { during: "setting a directory aside", source }))?;
        if let Some(kept) = aside {
            tracing::warn!(partition = %name, kept = %kept.display(), "directory of an unknown topic set aside");
        }
        Ok(true)
    }

    /// Stops partitions; directories of those that go are renamed before the answer, and removed later.
    async fn stop_all(&self, asks: Vec<StopPartition>) -> Vec<Result<(), StopError>> {
        let width = self.0.settings.concurrent_loads_max.max(1);
        stream::iter(asks).map(|ask| self.stop_one(ask)).buffered(width).collect().await
    }

    async fn stop_one(&self, ask: StopPartition) -> Result<(), StopError> {
        let key = PartitionKey { topic_id: ask.topic_id, partition: ask.partition };
        let name = TopicPartition::new(ask.topic, ask.partition);
        if self.0.hub.failures.is_failed(&self.0.lifecycle.home.dir) {
            return Err(StopError::Storage);
        }
        self.0.lifecycle.unserved.borrow_mut().remove(&key);
        if let Ok(partition) = self.partition(key) {
            let current = partition.leader_epoch();
            if let Some(asked) = ask.leader_epoch.filter(|asked| *asked < current) {
                return Err(StopError::FencedLeaderEpoch { asked, current });
            }
            self.0.partitions.borrow_mut().remove(&key);
            partition.stop();
            if ask.delete {
                partition.log.abandon().await;
            } else if let Err(error) = partition.log.close().await {
                tracing::error!(partition = %name, %error, "log was not closed cleanly");
            }
        }
        if !ask.delete {
            return Ok(());
        }
        // A directory of that name may be another incarnation's by now.
        if self.all().iter().any(|partition| partition.name == name) {
            return Ok(());
        }
        self.rename_away(&name).await
    }

    /// Renames a partition's directory, so that nobody takes it for a log any more, and removes it later.
    async fn rename_away(&self, name: &TopicPartition) -> Result<(), StopError> {
        let home = &self.0.lifecycle.home.dir;
        let from = home.join(names::partition_dir(name));
        match log_dir::rename_away(self.runtime(), home, &from, name).await {
            Ok(None) => Ok(()),
            Ok(Some(doomed)) => {
                let at = self.runtime().now().plus_ms(self.0.settings.file_delete_delay_ms);
                self.remove_later(name.clone(), doomed, at);
                Ok(())
            }
            // Even the longer name may find no room: what frees it goes at once.
            Err(error) if is_full(&error) => {
                tracing::warn!(partition = %name, %error, "deleted at once");
                let removed = self.runtime().dir(DirOp::RemoveAll(from)).await;
                removed.map(|_| ()).map_err(|error| self.not_deleted(name, &error))
            }
            Err(error) => Err(self.not_deleted(name, &error)),
        }
    }

    fn not_deleted(&self, name: &TopicPartition, error: &io::Error) -> StopError {
        tracing::error!(partition = %name, %error, "directory could not be deleted");
        if !is_full(error) {
            self.operation_failed(error);
        }
        StopError::Storage
    }

    fn remove_later(&self, name: TopicPartition, dir: PathBuf, at: MonoTime) {
        let (inner, runtime) = (Rc::downgrade(&self.0), self.runtime().clone());
        self.spawn(Queue::Background, async move {
            runtime.sleep_until(at).await;
            if let (Err(error), Some(inner)) = (runtime.dir(DirOp::RemoveAll(dir)).await, inner.upgrade()) {
                // The next start finds it by its name, and removes it.
                Self(inner).not_deleted(&name, &error);
            }
        });
    }

    /// Flushes and closes every log, side by side (storage.md 8.3).
    pub async fn close_all(&self) -> Closed {
        self.0.lifecycle.closing.set(true);
        let width = self.0.settings.concurrent_loads_max.max(1);
        let partitions = self.all();
        let results: Vec<bool> =
            stream::iter(&partitions).map(|partition| close_one(partition)).buffered(width).collect().await;
        let waits = self.0.lifecycle.unserved.borrow().values().any(Option::is_some);
        let unloaded = waits || self.0.lifecycle.unloaded.get();
        let clean = !unloaded && results.into_iter().all(|clean| clean);
        let closed = Closed { clean, samples: self.samples() };
        for partition in &partitions {
            partition.stop();
        }
        self.0.partitions.borrow_mut().clear();
        self.0.hub.close();
        closed
    }
}

async fn close_one<R: Runtime>(partition: &Rc<Partition<R>>) -> bool {
    if partition.check_online() == Err(PartitionError::Offline) {
        // Its dir has failed: nothing is written any more.
        return false;
    }
    match partition.log.close().await {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(partition = %partition.name, %error, "log was not closed cleanly");
            false
        }
    }
}

fn key_of(ask: &Become) -> PartitionKey {
    PartitionKey { topic_id: ask.topic_id, partition: ask.partition }
}

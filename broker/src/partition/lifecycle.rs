//! What a shard holds: opening logs and taking roles, stopping and deleting, closing (storage.md 8), and the background
//! work of the logs. Changes run one after the other, in the order they came; within one, logs are opened side by side.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use protocol::types::{MonoTime, Offset, TopicId, TopicPartition};
use storage::io::{DirOp, Queue, Runtime};
use storage::log::{LoadError, Log, OpenOptions, TailBudget};
use storage::{names, partition_metadata};

use super::ask::{Become, BecomeError, Closed, PartitionAnswer, PartitionKey, StopError, StopPartition};
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
    loaded: RefCell<std::collections::BTreeSet<TopicPartition>>,
}

impl Lifecycle {
    pub(super) fn new(home: LogHome) -> Self {
        Self {
            home,
            changes: RefCell::default(),
            running: Cell::new(false),
            closing: Cell::new(false),
            unloaded: Cell::new(false),
            loaded: RefCell::default(),
        }
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
        let mut seen = std::collections::BTreeSet::new();
        let doubles = asks.iter().any(|ask| !seen.insert((ask.topic.clone(), ask.partition)));
        let width = if doubles { 1 } else { self.0.settings.concurrent_loads_max.max(1) };
        stream::iter(asks).map(|ask| self.become_one(ask)).buffered(width).collect().await
    }

    async fn become_one(&self, ask: Become) -> Result<(), BecomeError> {
        let key = key_of(&ask);
        let partition = match self.partition(key) {
            Ok(partition) => {
                partition.set_config(ask.config.clone());
                partition
            }
            Err(_) => {
                let opened = self.open(key, &ask).await;
                if !ask.is_new {
                    self.0.hub.metrics.progress.loaded(1);
                }
                opened?
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

    async fn open(&self, key: PartitionKey, ask: &Become) -> Result<Rc<Partition<R>>, BecomeError> {
        if self.0.lifecycle.closing.get() {
            return Err(BecomeError::Closing);
        }
        let name = TopicPartition::new(ask.topic.clone(), ask.partition);
        let home = &self.0.lifecycle.home;
        let dir = home.dir.join(names::partition_dir(&name));
        let is_remnant = ask.is_new && self.set_remnant_aside(&dir, &name, key.topic_id).await?;
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
        let log = Log::open(self.runtime().clone(), &dir, name.clone(), options).await.map_err(|error| {
            tracing::error!(partition = %name, %error, "log could not be opened");
            match error {
                LoadError::InconsistentTopicId { found, .. } => BecomeError::InconsistentTopicId { found },
                LoadError::Io { .. } | LoadError::MalformedMetadata => {
                    self.0.lifecycle.unloaded.set(true);
                    BecomeError::Storage
                }
            }
        })?;
        self.0.lifecycle.loaded.borrow_mut().insert(name.clone());
        let partition = Partition::new(&self.0.hub, key, name, (log, high_watermark), ask.config.clone());
        self.0.partitions.borrow_mut().insert(key, partition.clone());
        Ok(partition)
    }

    /// A partition that is new has no directory yet: one of its name is of a topic that metadata does not know (its own
    /// was lost, or the directory is Kafka's). It is kept, under a name that nobody serves. Answers whether there was one,
    /// for what the checkpoint files say is about that one.
    async fn set_remnant_aside(
        &self,
        dir: &Path,
        name: &TopicPartition,
        topic_id: TopicId,
    ) -> Result<bool, BecomeError> {
        let runtime = self.runtime();
        match runtime.dir(DirOp::Stat(dir.to_owned())).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            // What cannot be looked at now fails below, where it is said.
            _ => {}
        }
        match partition_metadata::read(runtime, dir).await {
            Ok(Some(found)) if found == topic_id => return Ok(false),
            Ok(_) => {}
            Err(error) => {
                // What cannot be read may be ours.
                tracing::error!(partition = %name, %error, "topic id of a directory could not be read");
                self.0.lifecycle.unloaded.set(true);
                return Err(BecomeError::Storage);
            }
        }
        let random = (u128::from(runtime.random()) << 64) | u128::from(runtime.random());
        let home = self.0.lifecycle.home.dir.clone();
        let to = home.join(names::stray_dir(name, random));
        let renamed = match runtime.dir(DirOp::Rename { from: dir.to_owned(), to: to.clone() }).await {
            Ok(_) => runtime.dir(DirOp::Sync(home.to_path_buf())).await,
            Err(error) => Err(error),
        };
        match renamed {
            Ok(_) => {
                tracing::warn!(partition = %name, kept = %to.display(), "directory of an unknown topic set aside");
                Ok(true)
            }
            Err(error) => {
                tracing::error!(partition = %name, %error, "directory of an unknown topic could not be set aside");
                Err(BecomeError::Storage)
            }
        }
    }

    /// Stops partitions; directories of those that go are renamed before the answer, and removed later.
    async fn stop_all(&self, asks: Vec<StopPartition>) -> Vec<Result<(), StopError>> {
        let width = self.0.settings.concurrent_loads_max.max(1);
        stream::iter(asks).map(|ask| self.stop_one(ask)).buffered(width).collect().await
    }

    async fn stop_one(&self, ask: StopPartition) -> Result<(), StopError> {
        let key = PartitionKey { topic_id: ask.topic_id, partition: ask.partition };
        let name = TopicPartition::new(ask.topic, ask.partition);
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
        let runtime = self.runtime();
        let home = self.0.lifecycle.home.dir.clone();
        let from = home.join(names::partition_dir(name));
        if runtime.dir(DirOp::Stat(from.clone())).await.is_err() {
            return Ok(());
        }
        let random = (u128::from(runtime.random()) << 64) | u128::from(runtime.random());
        let to = home.join(names::delete_dir(name, random));
        let renamed = match runtime.dir(DirOp::Rename { from, to: to.clone() }).await {
            Ok(_) => runtime.dir(DirOp::Sync(home.to_path_buf())).await,
            Err(error) => Err(error),
        };
        if let Err(error) = renamed {
            tracing::error!(partition = %name, %error, "directory could not be renamed for deletion");
            return Err(StopError::Storage);
        }
        let at = runtime.now().plus_ms(self.0.settings.file_delete_delay_ms);
        let runtime = runtime.clone();
        self.spawn(Queue::Background, async move { remove_later(runtime, to, at).await });
        Ok(())
    }

    /// Flushes and closes every log, side by side (storage.md 8.3).
    pub async fn close_all(&self) -> Closed {
        self.0.lifecycle.closing.set(true);
        let width = self.0.settings.concurrent_loads_max.max(1);
        let partitions = self.all();
        let results: Vec<bool> =
            stream::iter(&partitions).map(|partition| close_one(partition)).buffered(width).collect().await;
        let clean = !self.0.lifecycle.unloaded.get() && results.into_iter().all(|clean| clean);
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
    match partition.log.close().await {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(partition = %partition.name, %error, "log was not closed cleanly");
            false
        }
    }
}

async fn remove_later<R: Runtime>(runtime: R, dir: PathBuf, at: MonoTime) {
    runtime.sleep_until(at).await;
    if let Err(error) = runtime.dir(DirOp::RemoveAll(dir.clone())).await {
        tracing::warn!(dir = %dir.display(), %error, "deleted partition was not removed; the next start tries again");
    }
}

fn key_of(ask: &Become) -> PartitionKey {
    PartitionKey { topic_id: ask.topic_id, partition: ask.partition }
}

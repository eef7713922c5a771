//! This broker as the controller's receiver (controller.md 17, replication.md 10.1): applies LeaderAndIsr, UpdateMetadata
//! and StopReplica one after another, places partitions on shards, asks their owners, and publishes the image to
//! all shards before it answers. Lives on shard 0; the controller's driver reaches it through [`LocalLink`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;
use futures_util::future::join_all;
use protocol::error::ErrorCode;
use protocol::types::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicName, TopicPartition,
};
use storage::io::Queue;

use super::errors;
use crate::config::broker::BrokerConfig;
use crate::config::topic::TopicConfig;
use crate::controller::driver::{BrokerLink, Replies};
use crate::controller::machine::Event;
use crate::controller::requests::{
    ControlReply, ControlRequest, DeleteFlag, Header, LeaderAndIsr, LeaderAndIsrPartition, LiveBroker,
    MetadataPartition, StopEpoch, StopReplica, StopReplicaPartition, UpdateMetadata,
};
use crate::metadata::delta::{ImageDelta, Overrides, TopicDelta};
use crate::metadata::image::{BrokerImage, Endpoint, PartitionImage};
use crate::metadata::publish::Publisher;
use crate::partition::ask::{
    Become, BecomeError, PartitionAnswer, PartitionAsk, SetConfig, StopError, StopPartition,
};
use crate::shard::{NEVER, Service, ShardId, ShardRuntime, Shards};
use crate::store::{MetadataStore, StoreError, znodes};

/// A service that owns partitions.
pub trait PartitionOwner: Service<Ask = PartitionAsk, Answer = PartitionAnswer> {}

impl<P: Service<Ask = PartitionAsk, Answer = PartitionAnswer>> PartitionOwner for P {}

/// A replica on this broker.
#[derive(Clone, Debug)]
struct Replica {
    topic_id: TopicId,
    owner: ShardId,
    leader_epoch: LeaderEpoch,
}

/// Everything but the queue.
struct Core<R: ShardRuntime, S, P: PartitionOwner> {
    store: S,
    owners: Shards<R, P>,
    publisher: Publisher<R>,
    config: Rc<BrokerConfig>,
    id: BrokerId,
    broker_epoch: Cell<BrokerEpoch>,
    controller_epoch: Cell<ControllerEpoch>,
    replicas: RefCell<BTreeMap<TopicPartition, Replica>>,
    /// How many replicas each shard owns.
    load: RefCell<Vec<usize>>,
    configs: RefCell<BTreeMap<TopicName, (TopicId, Overrides)>>,
}

/// A piece of work for this broker.
enum Work {
    Control { request: ControlRequest, replies: Replies },
    TopicConfig(TopicName),
    Barrier(oneshot::Sender<()>),
}

/// This broker, as a receiver of the controller's requests. Clones share it; it ends with the last one.
pub struct LocalBroker<R: ShardRuntime> {
    /// Bounded as [`BrokerLink`] says; a topic's changed config adds one entry for each change notification read.
    queue: mpsc::UnboundedSender<Work>,
    _worker: Rc<R::Task>,
}

impl<R: ShardRuntime> Clone for LocalBroker<R> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), _worker: Rc::clone(&self._worker) }
    }
}

/// What a [`LocalBroker`] works with.
pub struct LocalBrokerParts<R: ShardRuntime, S, P: PartitionOwner> {
    /// Topic configs are read from it.
    pub store: S,
    /// The partitions, by owner.
    pub owners: Shards<R, P>,
    /// Where images go.
    pub publisher: Publisher<R>,
    /// Broker defaults of topic configs.
    pub config: Rc<BrokerConfig>,
    /// This broker.
    pub id: BrokerId,
    /// Its registration.
    pub broker_epoch: BrokerEpoch,
}

impl<R: ShardRuntime> LocalBroker<R> {
    /// Starts to work on shard 0.
    pub fn start<S: MetadataStore, P: PartitionOwner>(runtime: &R, parts: LocalBrokerParts<R, S, P>) -> Self {
        let LocalBrokerParts { store, owners, publisher, config, id, broker_epoch } = parts;
        let core = Core {
            store,
            owners,
            publisher,
            config,
            id,
            broker_epoch: Cell::new(broker_epoch),
            controller_epoch: Cell::default(),
            replicas: RefCell::default(),
            load: RefCell::new(vec![0; usize::from(runtime.shard_count())]),
            configs: RefCell::default(),
        };
        let (queue, mut work) = mpsc::unbounded();
        let worker = runtime.spawn(Queue::Control, async move {
            while let Some(work) = work.next().await {
                core.work(work).await;
            }
        });
        Self { queue, _worker: Rc::new(worker) }
    }

    /// The way of a controller on this broker to this broker. Others are not reachable yet.
    pub fn link(&self, id: BrokerId) -> LocalLink<R> {
        LocalLink { broker: self.clone(), id }
    }

    /// Waits until everything that was asked so far is done and shown on every shard.
    pub async fn settled(&self) {
        let (done, waiting) = oneshot::channel();
        // The worker ends with the last clone, and this is one.
        let _ = self.queue.unbounded_send(Work::Barrier(done));
        let _ = waiting.await;
    }

    /// The overrides of a topic have changed in the store: read them anew, publish, and tell the partitions' owners.
    pub fn topic_config_changed(&self, topic: &TopicName) {
        // The worker ends with the last clone, and this is one.
        let _ = self.queue.unbounded_send(Work::TopicConfig(topic.clone()));
    }
}

/// A [`BrokerLink`] that reaches this broker by function call.
pub struct LocalLink<R: ShardRuntime> {
    broker: LocalBroker<R>,
    id: BrokerId,
}

impl<R: ShardRuntime> BrokerLink for LocalLink<R> {
    fn connect(&self, broker: &LiveBroker) {
        if broker.id != self.id {
            tracing::error!(broker = broker.id.get(), "other brokers cannot be reached yet");
        }
    }

    // What is queued for an old registration is refused by its broker epoch.
    fn disconnect(&self, _: BrokerId) {}

    fn send(&self, to: BrokerId, request: ControlRequest, replies: &Replies) {
        if to == self.id {
            // The worker ends with the last clone, and the link holds one.
            let _ = self.broker.queue.unbounded_send(Work::Control { request, replies: replies.clone() });
        }
    }
}

fn header(request: &ControlRequest) -> Header {
    match request {
        ControlRequest::LeaderAndIsr(request) => request.header,
        ControlRequest::UpdateMetadata(request) => request.header,
        ControlRequest::StopReplica(request) => request.header,
    }
}

/// A request that is refused as a whole.
fn refusal(request: ControlRequest, error: ErrorCode) -> ControlReply {
    match request {
        ControlRequest::LeaderAndIsr(_) => ControlReply::LeaderAndIsr { error, partitions: Vec::new() },
        ControlRequest::UpdateMetadata(_) => ControlReply::UpdateMetadata { error },
        ControlRequest::StopReplica(request) => {
            let partitions =
                request.partitions.into_iter().map(|part| (part.partition, flag(part.delete), error));
            ControlReply::StopReplica { error, partitions: partitions.collect() }
        }
    }
}

const fn flag(delete: bool) -> DeleteFlag {
    if delete { DeleteFlag::Delete } else { DeleteFlag::Keep }
}

impl<R: ShardRuntime, S: MetadataStore, P: PartitionOwner> Core<R, S, P> {
    async fn work(&self, work: Work) {
        match work {
            Work::TopicConfig(topic) => self.reload_config(&topic).await,
            Work::Barrier(done) => {
                // Who gave up waiting is not there to be told.
                let _ = done.send(());
            }
            Work::Control { request, replies } => {
                let broker_epoch = header(&request).broker_epoch;
                let reply = self.apply(request).await;
                // A controller that is gone wants no answers.
                let _ = replies.unbounded_send(Event::Replied { from: self.id, broker_epoch, reply });
            }
        }
    }

    /// Applies one request; the next one starts when this is done everywhere.
    async fn apply(&self, request: ControlRequest) -> ControlReply {
        let header = header(&request);
        let own = self.broker_epoch.get();
        if header.broker_epoch.get() >= 0 && header.broker_epoch < own {
            return refusal(request, ErrorCode::StaleBrokerEpoch);
        }
        if header.controller_epoch < self.controller_epoch.get() {
            return refusal(request, ErrorCode::StaleControllerEpoch);
        }
        self.broker_epoch.set(own.max(header.broker_epoch));
        self.controller_epoch.set(header.controller_epoch);
        match request {
            ControlRequest::LeaderAndIsr(request) => self.leader_and_isr(request).await,
            ControlRequest::UpdateMetadata(request) => self.update_metadata(request).await,
            ControlRequest::StopReplica(request) => self.stop_replica(request).await,
        }
    }

    async fn leader_and_isr(&self, request: LeaderAndIsr) -> ControlReply {
        let topics =
            request.partitions.iter().map(|part| (part.partition.topic.clone(), part.topic_id)).collect();
        let storage_errors = self.load_configs(topics).await;
        let mut answers: Vec<(TopicPartition, ErrorCode)> = Vec::with_capacity(request.partitions.len());
        let mut by_owner: BTreeMap<ShardId, Vec<(usize, Become)>> = BTreeMap::new();
        for part in request.partitions {
            let of = part.partition.clone();
            let error = if storage_errors.contains(&of.topic) {
                ErrorCode::KafkaStorageError
            } else {
                self.judge(&part)
            };
            answers.push((of, error));
            if error == ErrorCode::None
                && let Some((owner, role)) = self.place(part)
            {
                by_owner.entry(owner).or_default().push((answers.len() - 1, role));
            }
        }
        let asks = by_owner.into_iter().map(|(owner, roles)| self.take_roles(owner, roles));
        for (index, error) in join_all(asks).await.into_iter().flatten() {
            if let Some((of, answer)) = answers.get_mut(index) {
                *answer = error;
                if error != ErrorCode::None {
                    // A retry of the same epoch is taken, not refused as stale.
                    self.forget(of);
                }
            }
        }
        ControlReply::LeaderAndIsr { error: ErrorCode::None, partitions: answers }
    }

    /// Whether the role is newer than what this broker has.
    fn judge(&self, part: &LeaderAndIsrPartition) -> ErrorCode {
        match self.replicas.borrow().get(&part.partition) {
            Some(local) if local.topic_id != part.topic_id => ErrorCode::InconsistentTopicId,
            Some(local) if part.leadership.leader_epoch <= local.leader_epoch => {
                ErrorCode::StaleControllerEpoch
            }
            _ if !part.replicas.contains(&self.id) => ErrorCode::UnknownTopicOrPartition,
            _ => ErrorCode::None,
        }
    }

    /// Gives a replica its owner: the shard that owns the fewest; a hash of the partition breaks ties.
    fn place(&self, part: LeaderAndIsrPartition) -> Option<(ShardId, Become)> {
        let of = part.partition;
        let config = self.configs.borrow().get(&of.topic).map(|(_, config)| Arc::clone(&config.config))?;
        let mut replicas = self.replicas.borrow_mut();
        let owner = match replicas.get(&of) {
            Some(replica) => replica.owner,
            None => {
                let mut load = self.load.borrow_mut();
                let owner = least_loaded(&load, part.topic_id, of.partition);
                if let Some(count) = load.get_mut(usize::from(owner.get())) {
                    *count += 1;
                }
                owner
            }
        };
        let leader_epoch = part.leadership.leader_epoch;
        replicas.insert(of.clone(), Replica { topic_id: part.topic_id, owner, leader_epoch });
        let role = Become {
            topic: of.topic,
            topic_id: part.topic_id,
            partition: of.partition,
            leader: part.leadership.leader,
            leader_epoch,
            partition_epoch: part.leadership.partition_epoch,
            replicas: part.replicas,
            isr: part.leadership.isr,
            is_new: part.is_new,
            config,
        };
        Some((owner, role))
    }

    fn forget(&self, of: &TopicPartition) {
        if let Some(replica) = self.replicas.borrow_mut().remove(of)
            && let Some(count) = self.load.borrow_mut().get_mut(usize::from(replica.owner.get()))
        {
            *count = count.saturating_sub(1);
        }
    }

    /// One ask for all roles of one owner.
    async fn take_roles(&self, owner: ShardId, roles: Vec<(usize, Become)>) -> Vec<(usize, ErrorCode)> {
        let (indexes, roles): (Vec<usize>, Vec<Become>) = roles.into_iter().unzip();
        let answers = match self.owners.ask(owner, NEVER, PartitionAsk::Become(roles)).await {
            Ok(PartitionAnswer::Became(answers)) => answers,
            // The shard has ended: so does the broker.
            Ok(_) | Err(_) => vec![Err(BecomeError::Closing); indexes.len()],
        };
        indexes.into_iter().zip(answers.into_iter().map(errors::code_of)).collect()
    }

    /// Reads the configs of topics that are new here; answers those whose config cannot be read.
    async fn load_configs(&self, topics: BTreeSet<(TopicName, TopicId)>) -> BTreeSet<TopicName> {
        let new: Vec<(TopicName, TopicId)> = {
            let known = self.configs.borrow();
            let is_new =
                |(name, id): &(TopicName, TopicId)| known.get(name).is_none_or(|(known, _)| known != id);
            topics.into_iter().filter(is_new).collect()
        };
        let reads: Vec<_> =
            new.iter().map(|(name, _)| self.store.get(&znodes::topic_config(name.get()), false)).collect();
        let mut failed = BTreeSet::new();
        for ((name, id), found) in new.into_iter().zip(join_all(reads).await) {
            match self.overrides(&name, found.map(|(data, _)| data)) {
                Some(config) => {
                    self.configs.borrow_mut().insert(name, (id, config));
                }
                None => {
                    failed.insert(name);
                }
            }
        }
        failed
    }

    fn overrides(
        &self,
        topic: &TopicName,
        found: Result<Option<bytes::Bytes>, StoreError>,
    ) -> Option<Overrides> {
        let data = match found {
            Ok(data) => data,
            Err(StoreError::NoNode) => None,
            Err(error) => {
                tracing::error!(%topic, %error, "config of the topic cannot be read");
                return None;
            }
        };
        let overrides = match znodes::parse_config(data.as_deref()) {
            Ok(overrides) => overrides,
            Err(error) => {
                tracing::error!(%topic, %error, "config of the topic is malformed; broker defaults hold");
                BTreeMap::new()
            }
        };
        let config = Arc::new(TopicConfig::effective(&overrides, &self.config));
        Some(Overrides { overrides: Arc::new(overrides), config })
    }

    async fn reload_config(&self, topic: &TopicName) {
        let Some((id, _)) = self.configs.borrow().get(topic).cloned() else { return };
        let found = self.store.get(&znodes::topic_config(topic.get()), false).await;
        let Some(config) = self.overrides(topic, found.map(|(data, _)| data)) else { return };
        self.configs.borrow_mut().insert(topic.clone(), (id, config.clone()));
        let delta = TopicDelta::Config { name: topic.clone(), config: config.clone() };
        if self.publisher.publish(ImageDelta { topics: vec![delta], ..ImageDelta::default() }).await.is_err()
        {
            return;
        }
        let owners: BTreeSet<ShardId> = {
            let replicas = self.replicas.borrow();
            replicas.values().filter(|replica| replica.topic_id == id).map(|replica| replica.owner).collect()
        };
        let ask = |owner| {
            let ask = SetConfig { topic_id: id, config: Arc::clone(&config.config) };
            self.owners.ask(owner, NEVER, PartitionAsk::SetConfig(ask))
        };
        // A shard that has ended needs no config.
        let _ = join_all(owners.into_iter().map(ask)).await;
    }

    async fn update_metadata(&self, request: UpdateMetadata) -> ControlReply {
        let topics = request
            .partitions
            .iter()
            .filter(|part| part.leadership.is_some())
            .map(|part| (part.partition.topic.clone(), part.topic_id))
            .collect();
        self.load_configs(topics).await;
        let delta = ImageDelta {
            brokers: Some(request.brokers.into_iter().map(broker_image).collect()),
            controller: Some(request.header.controller),
            topics: self.topic_deltas(request.partitions),
        };
        let published = self.publisher.publish(delta).await;
        let error = if published.is_ok() { ErrorCode::None } else { ErrorCode::BrokerNotAvailable };
        ControlReply::UpdateMetadata { error }
    }

    /// Changes of partitions, grouped by topic in the order of the request.
    fn topic_deltas(&self, partitions: Vec<MetadataPartition>) -> Vec<TopicDelta> {
        let mut deltas: Vec<TopicDelta> = Vec::new();
        let mut gone: BTreeSet<TopicName> = BTreeSet::new();
        for part in partitions {
            let TopicPartition { topic, partition } = part.partition.clone();
            let Some(leadership) = part.leadership else {
                gone.insert(topic.clone());
                match deltas.last_mut() {
                    Some(TopicDelta::Gone { name, partitions }) if *name == topic => {
                        partitions.push(partition)
                    }
                    _ => deltas.push(TopicDelta::Gone { name: topic, partitions: vec![partition] }),
                }
                continue;
            };
            let state = PartitionImage {
                leader: leadership.leader,
                leader_epoch: leadership.leader_epoch,
                partition_epoch: leadership.partition_epoch,
                replicas: part.replicas,
                isr: leadership.isr,
                offline: part.offline,
                owner: self.replicas.borrow().get(&part.partition).map(|replica| replica.owner),
            };
            match deltas.last_mut() {
                Some(TopicDelta::Partitions { name, id, partitions, .. })
                    if *name == topic && *id == part.topic_id =>
                {
                    partitions.push((partition, state));
                }
                _ => {
                    let known = self.configs.borrow().get(&topic).map(|(_, config)| config.clone());
                    let config = known.unwrap_or_else(|| self.default_overrides());
                    let partitions = vec![(partition, state)];
                    deltas.push(TopicDelta::Partitions {
                        name: topic,
                        id: part.topic_id,
                        config,
                        partitions,
                    });
                }
            }
        }
        // Its overrides are read anew should the name come back.
        self.configs.borrow_mut().retain(|name, _| !gone.contains(name));
        deltas
    }

    fn default_overrides(&self) -> Overrides {
        Overrides { overrides: Arc::default(), config: Arc::new(self.config.topic_defaults.clone()) }
    }

    async fn stop_replica(&self, request: StopReplica) -> ControlReply {
        let mut answers = Vec::with_capacity(request.partitions.len());
        let mut by_owner: BTreeMap<ShardId, Vec<(usize, StopPartition)>> = BTreeMap::new();
        for part in request.partitions {
            let index = answers.len();
            answers.push((part.partition.clone(), flag(part.delete), ErrorCode::None));
            let (owner, stop) = self.stop_of(part);
            by_owner.entry(owner).or_default().push((index, stop));
        }
        let asks = by_owner.into_iter().map(|(owner, stops)| self.stop_partitions(owner, stops));
        for (index, error) in join_all(asks).await.into_iter().flatten() {
            if let Some((of, flag, answer)) = answers.get_mut(index) {
                *answer = error;
                if error == ErrorCode::None && *flag == DeleteFlag::Delete {
                    self.forget(of);
                }
            }
        }
        ControlReply::StopReplica { error: ErrorCode::None, partitions: answers }
    }

    /// The owner of a replica; one that nobody owns may still have a log, which any shard can delete.
    fn stop_of(&self, part: StopReplicaPartition) -> (ShardId, StopPartition) {
        let of = part.partition;
        let replicas = self.replicas.borrow();
        let known = replicas.get(&of);
        let topic_id = known.map_or(part.topic_id, |replica| replica.topic_id);
        let owner = known
            .map_or_else(|| least_loaded(&self.load.borrow(), topic_id, of.partition), |known| known.owner);
        let leader_epoch = match part.leader_epoch {
            StopEpoch::Deleting | StopEpoch::Unknown => None,
            StopEpoch::UpTo(epoch) => Some(epoch),
        };
        let stop = StopPartition {
            topic: of.topic,
            topic_id,
            partition: of.partition,
            leader_epoch,
            delete: part.delete,
        };
        (owner, stop)
    }

    async fn stop_partitions(
        &self,
        owner: ShardId,
        stops: Vec<(usize, StopPartition)>,
    ) -> Vec<(usize, ErrorCode)> {
        let (indexes, stops): (Vec<usize>, Vec<StopPartition>) = stops.into_iter().unzip();
        let answers = match self.owners.ask(owner, NEVER, PartitionAsk::Stop(stops)).await {
            Ok(PartitionAnswer::Stopped(answers)) => answers,
            // The shard has ended: so does the broker.
            Ok(_) | Err(_) => vec![Err(StopError::Storage); indexes.len()],
        };
        indexes.into_iter().zip(answers.into_iter().map(errors::code_of)).collect()
    }
}

fn broker_image(broker: LiveBroker) -> BrokerImage {
    let endpoint = |endpoint: crate::store::znodes::BrokerEndpoint| Endpoint {
        listener: endpoint.listener.into(),
        host: endpoint.host.into(),
        port: endpoint.port,
    };
    BrokerImage {
        id: broker.id,
        epoch: broker.epoch,
        rack: broker.rack.map(Into::into),
        endpoints: broker.endpoints.into_iter().map(endpoint).collect(),
    }
}

/// The shard with the fewest replicas; a hash of the partition breaks ties, so that the choice depends on nothing else.
fn least_loaded(load: &[usize], topic_id: TopicId, partition: i32) -> ShardId {
    let fewest = load.iter().min().copied().unwrap_or_default();
    let candidates: Vec<u16> =
        (0..).zip(load).filter(|(_, count)| **count == fewest).map(|(shard, _)| shard).collect();
    let bytes = topic_id.get().into_iter().chain(partition.to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let count = u64::try_from(candidates.len().max(1)).unwrap_or(1);
    let index = usize::try_from(hash % count).unwrap_or_default();
    ShardId::new(candidates.get(index).copied().unwrap_or_default())
}

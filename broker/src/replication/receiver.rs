//! This broker as the controller's receiver (controller.md 17, replication.md 10.1): applies LeaderAndIsr, UpdateMetadata
//! and StopReplica one after another, asks the owners of the replicas, and publishes the image to all shards before it
//! answers. Only the answer to a LeaderAndIsr waits for logs that are there to be opened; what comes behind it does not
//! . Which shard owns what is decided in [`super::owners`]. Lives on shard 0; the controller's driver reaches it
//! through [`LocalLink`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;
use futures_util::future::{LocalBoxFuture, join_all};
use protocol::error::ErrorCode;
use protocol::types::{BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicName, TopicPartition};
use storage::io::Queue;

use super::owners::Owners;
use super::topic_configs::TopicConfigs;
use crate::config::broker::BrokerConfig;
use crate::controller::driver::{BrokerLink, Replies};
use crate::controller::machine::Event;
use crate::controller::requests::{
    ControlReply, ControlRequest, DeleteFlag, Header, LeaderAndIsr, LeaderAndIsrPartition, LiveBroker,
    MetadataPartition, StopEpoch, StopReplica, StopReplicaPartition, UpdateMetadata,
};
use crate::metadata::delta::{ImageDelta, TopicDelta};
use crate::metadata::image::{BrokerImage, Endpoint, PartitionImage};
use crate::metadata::publish::Publisher;
use crate::partition::ask::{
    Become, BecomeError, PartitionAnswer, PartitionAsk, SetConfig, StopError, StopPartition,
};
use crate::shard::ask::Pending;
use crate::shard::tasks::TaskSet;
use crate::shard::{NEVER, Service, ShardId, ShardRuntime, Shards};
use crate::store::MetadataStore;

/// A service that owns partitions.
pub trait PartitionOwner: Service<Ask = PartitionAsk, Answer = PartitionAnswer> {}

impl<P: Service<Ask = PartitionAsk, Answer = PartitionAnswer>> PartitionOwner for P {}

/// Everything but the queue.
struct Core<R: ShardRuntime, S, P: PartitionOwner> {
    partitions: Shards<R, P>,
    publisher: Publisher<R>,
    id: BrokerId,
    broker_epoch: Cell<BrokerEpoch>,
    controller_epoch: Cell<ControllerEpoch>,
    on_deleted: OnDeleted,
    owners: RefCell<Owners>,
    configs: TopicConfigs<S>,
}

/// A piece of work for this broker.
enum Work {
    Control { request: ControlRequest, replies: Replies },
    TopicConfig(TopicName),
    OutOfService(Vec<TopicPartition>),
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

/// Called with partitions whose directories are gone; done when nothing on disk speaks of them any more.
pub type OnDeleted = Box<dyn Fn(Vec<TopicPartition>) -> LocalBoxFuture<'static, ()>>;

/// What a [`LocalBroker`] works with.
pub struct LocalBrokerParts<R: ShardRuntime, S, P: PartitionOwner> {
    /// Topic configs are read from it.
    pub store: S,
    /// The partitions, by owner.
    pub partitions: Shards<R, P>,
    /// Where images go.
    pub publisher: Publisher<R>,
    /// Broker defaults of topic configs.
    pub config: Rc<BrokerConfig>,
    /// This broker.
    pub id: BrokerId,
    /// Its registration.
    pub broker_epoch: BrokerEpoch,
    /// Who keeps checkpoints of the partitions.
    pub on_deleted: OnDeleted,
}

impl<R: ShardRuntime> LocalBroker<R> {
    /// Starts to work on shard 0.
    pub fn start<S: MetadataStore, P: PartitionOwner>(runtime: &R, parts: LocalBrokerParts<R, S, P>) -> Self {
        let LocalBrokerParts { store, partitions, publisher, config, id, broker_epoch, on_deleted } = parts;
        let core = Rc::new(Core {
            partitions,
            publisher,
            id,
            broker_epoch: Cell::new(broker_epoch),
            controller_epoch: Cell::default(),
            on_deleted,
            owners: RefCell::new(Owners::new(runtime.shard_count())),
            configs: TopicConfigs::new(store, config),
        });
        let (queue, mut work) = mpsc::unbounded();
        let answering = TaskSet::new(runtime.clone());
        let worker = runtime.spawn(Queue::Control, async move {
            while let Some(work) = work.next().await {
                if let Some(answer) = core.clone().work(work).await {
                    answering.spawn(Queue::Control, answer);
                }
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

    /// The logs of these partitions went out of service: the controller may ask for their roles again, and is told.
    pub fn out_of_service(&self, partitions: Vec<TopicPartition>) {
        // The worker ends with the last clone, and this is one.
        let _ = self.queue.unbounded_send(Work::OutOfService(partitions));
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

/// An answer to the controller that is there, or one that waits for logs to be opened.
enum Reply {
    Now(ControlReply),
    Later(LocalBoxFuture<'static, ControlReply>),
}

/// Roles of one owner that were asked for: their places in the answer, and the owner's answer.
type Asked = (Vec<usize>, Option<Pending<PartitionAnswer>>);

impl<R: ShardRuntime, S: MetadataStore, P: PartitionOwner> Core<R, S, P> {
    /// Does a piece of work; what is left of it is to be awaited beside the next one.
    async fn work(self: Rc<Self>, work: Work) -> Option<LocalBoxFuture<'static, ()>> {
        match work {
            Work::TopicConfig(topic) => self.reload_config(&topic).await,
            Work::OutOfService(partitions) => {
                let mut owners = self.owners.borrow_mut();
                partitions.iter().for_each(|of| owners.out_of_service(of));
            }
            Work::Barrier(done) => {
                // Who gave up waiting is not there to be told.
                let _ = done.send(());
            }
            Work::Control { request, replies } => {
                let (from, broker_epoch) = (self.id, header(&request).broker_epoch);
                // A controller that is gone wants no answers.
                let answer = move |reply| {
                    let _ = replies.unbounded_send(Event::Replied { from, broker_epoch, reply });
                };
                match self.apply(request).await {
                    Reply::Now(reply) => answer(reply),
                    Reply::Later(reply) => return Some(Box::pin(async move { answer(reply.await) })),
                }
            }
        }
        None
    }

    /// Applies one request; the next one starts when this is done everywhere, but for logs that are to be opened.
    async fn apply(self: Rc<Self>, request: ControlRequest) -> Reply {
        let header = header(&request);
        let own = self.broker_epoch.get();
        if header.broker_epoch.get() >= 0 && header.broker_epoch < own {
            return Reply::Now(refusal(request, ErrorCode::StaleBrokerEpoch));
        }
        if header.controller_epoch < self.controller_epoch.get() {
            return Reply::Now(refusal(request, ErrorCode::StaleControllerEpoch));
        }
        self.broker_epoch.set(own.max(header.broker_epoch));
        self.controller_epoch.set(header.controller_epoch);
        match request {
            ControlRequest::LeaderAndIsr(request) => self.leader_and_isr(request).await,
            ControlRequest::UpdateMetadata(request) => Reply::Now(self.update_metadata(request).await),
            ControlRequest::StopReplica(request) => Reply::Now(self.stop_replica(request).await),
        }
    }

    async fn leader_and_isr(self: Rc<Self>, request: LeaderAndIsr) -> Reply {
        let topics =
            request.partitions.iter().map(|part| (part.partition.topic.clone(), part.topic_id)).collect();
        let storage_errors = self.configs.load(topics).await;
        let mut answers = Answers::with_capacity(request.partitions.len());
        let mut prompt: BTreeMap<ShardId, Vec<(usize, Become)>> = BTreeMap::new();
        let mut loading: BTreeMap<ShardId, Vec<(usize, Become)>> = BTreeMap::new();
        for part in request.partitions {
            let (of, leader_epoch) = (part.partition.clone(), part.leadership.leader_epoch);
            let error = if storage_errors.contains(&of.topic) {
                ErrorCode::KafkaStorageError
            } else {
                self.owners.borrow().judge(self.id, &part)
            };
            let has_log = !part.is_new && self.owners.borrow().owner_of(&of).is_none();
            answers.push((of, leader_epoch, error));
            if error == ErrorCode::None
                && let Some((owner, role)) = self.place(part)
            {
                let roles = if has_log { &mut loading } else { &mut prompt };
                roles.entry(owner).or_default().push((answers.len() - 1, role));
            }
        }
        let loading = self.ask_roles(loading).await;
        let prompt = self.ask_roles(prompt).await;
        self.take_answers(prompt, &mut answers).await;
        if loading.is_empty() {
            return Reply::Now(roles_answer(answers));
        }
        Reply::Later(Box::pin(async move {
            self.take_answers(loading, &mut answers).await;
            roles_answer(answers)
        }))
    }

    /// One ask for the roles of each owner, which is *accepted* when this returns: what is asked next comes behind it.
    async fn ask_roles(&self, roles: BTreeMap<ShardId, Vec<(usize, Become)>>) -> Vec<Asked> {
        let mut asked = Vec::with_capacity(roles.len());
        for (owner, roles) in roles {
            let (indexes, roles): (Vec<usize>, Vec<Become>) = roles.into_iter().unzip();
            let slot = self.partitions.reserve(owner, NEVER).await;
            asked.push((indexes, slot.ok().map(|slot| slot.send(PartitionAsk::Become(roles)))));
        }
        asked
    }

    async fn take_answers(&self, asked: Vec<Asked>, answers: &mut Answers) {
        let answered = asked.into_iter().map(|(indexes, pending)| async move {
            let outcomes = match pending {
                Some(pending) => pending.await.ok(),
                None => None,
            };
            match outcomes {
                Some(PartitionAnswer::Became(outcomes)) => indexes.into_iter().zip(outcomes).collect(),
                // The shard has ended: so does the broker.
                _ => indexes.into_iter().map(|index| (index, Err(BecomeError::Closing))).collect::<Vec<_>>(),
            }
        });
        for (index, outcome) in join_all(answered).await.into_iter().flatten() {
            let Some((of, leader_epoch, answer)) = answers.get_mut(index) else { continue };
            *answer = become_code(outcome);
            if *answer != ErrorCode::None {
                self.owners.borrow_mut().not_taken(of, *leader_epoch, *answer);
            }
        }
    }

    /// A judged role as its owner takes it; `None` without a config, whose reading was answered for then.
    fn place(&self, part: LeaderAndIsrPartition) -> Option<(ShardId, Become)> {
        let config = self.configs.config_of(&part.partition.topic)?;
        let owner = self.owners.borrow_mut().place(&part);
        let role = Become {
            topic: part.partition.topic,
            topic_id: part.topic_id,
            partition: part.partition.partition,
            leader: part.leadership.leader,
            leader_epoch: part.leadership.leader_epoch,
            partition_epoch: part.leadership.partition_epoch,
            replicas: part.replicas,
            isr: part.leadership.isr,
            is_new: part.is_new,
            config,
        };
        Some((owner, role))
    }

    async fn reload_config(&self, topic: &TopicName) {
        let Some((id, config)) = self.configs.reload(topic).await else { return };
        let delta = TopicDelta::Config { name: topic.clone(), config: config.clone() };
        if self.publisher.publish(ImageDelta { topics: vec![delta], ..ImageDelta::default() }).await.is_err()
        {
            return;
        }
        let owners = self.owners.borrow().owners_of_topic(id);
        let ask = |owner| {
            let ask = SetConfig { topic_id: id, config: Arc::clone(&config.config) };
            self.partitions.ask(owner, NEVER, PartitionAsk::SetConfig(ask))
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
        self.configs.load(topics).await;
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
                owner: self.owners.borrow().owner_of(&part.partition),
            };
            match deltas.last_mut() {
                Some(TopicDelta::Partitions { name, id, partitions, .. })
                    if *name == topic && *id == part.topic_id =>
                {
                    partitions.push((partition, state));
                }
                _ => {
                    let config = self.configs.overrides_of(&topic);
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
        self.configs.forget(&gone);
        deltas
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
        let mut deleted = Vec::new();
        for (index, error) in join_all(asks).await.into_iter().flatten() {
            if let Some((of, flag, answer)) = answers.get_mut(index) {
                *answer = error;
                if error == ErrorCode::None && *flag == DeleteFlag::Delete {
                    self.owners.borrow_mut().forget(of);
                    deleted.push(of.clone());
                }
            }
        }
        if !deleted.is_empty() {
            (self.on_deleted)(deleted).await;
        }
        ControlReply::StopReplica { error: ErrorCode::None, partitions: answers }
    }

    fn stop_of(&self, part: StopReplicaPartition) -> (ShardId, StopPartition) {
        let (owner, topic_id) = self.owners.borrow().stopper_of(&part);
        let of = part.partition;
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
        let answers = match self.partitions.ask(owner, NEVER, PartitionAsk::Stop(stops)).await {
            Ok(PartitionAnswer::Stopped(answers)) => answers,
            // The shard has ended: so does the broker.
            Ok(_) | Err(_) => vec![Err(StopError::Storage); indexes.len()],
        };
        indexes.into_iter().zip(answers.into_iter().map(stop_code)).collect()
    }
}

/// The partitions of a LeaderAndIsr, the epochs they were asked for, and what becomes of them.
type Answers = Vec<(TopicPartition, LeaderEpoch, ErrorCode)>;

fn roles_answer(answers: Answers) -> ControlReply {
    let partitions = answers.into_iter().map(|(of, _, error)| (of, error)).collect();
    ControlReply::LeaderAndIsr { error: ErrorCode::None, partitions }
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

/// What the controller is told of a role.
fn become_code(outcome: Result<(), BecomeError>) -> ErrorCode {
    match outcome {
        // An older version of what we have is skipped, which is no error to the controller.
        Ok(()) | Err(BecomeError::StaleEpoch { .. } | BecomeError::Stopped) => ErrorCode::None,
        Err(BecomeError::InconsistentTopicId { .. }) => ErrorCode::InconsistentTopicId,
        Err(BecomeError::Storage) => ErrorCode::KafkaStorageError,
        Err(BecomeError::Closing) => ErrorCode::BrokerNotAvailable,
    }
}

/// What the controller is told of a replica that was to stop.
fn stop_code(outcome: Result<(), StopError>) -> ErrorCode {
    match outcome {
        Ok(()) => ErrorCode::None,
        Err(StopError::FencedLeaderEpoch { .. }) => ErrorCode::FencedLeaderEpoch,
        Err(StopError::Storage) => ErrorCode::KafkaStorageError,
    }
}

//! Creation, growth and deletion of topics: every check in the order of ZooKeeper mode (protocol.md 3.7,
//! security-admin.md 7), then the nodes that the controller reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use protocol::types::{BrokerId, MonoTime, TopicId, TopicName};

use super::ask::{
    CreatePartitions, CreatePartitionsError, CreateTopicError, CreateTopics, CreatedTopic, DeleteTopicError,
    DeleteTopics, GrowTopic, Mode, NewTopic, TopicRef,
};
use super::placement::{Candidate, PlacementError, Wish, place};
use super::service::Admin;
use crate::config::topic;
use crate::metadata::image::Image;
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;
use crate::store::znodes::{self, Assignment, TopicNode};
use crate::store::{CreateMode, Expected, MetadataStore, MultiError, Op, StoreError};

/// Partitions that one request creates at most, as in KRaft: a claimed count must not allocate (P-5).
pub const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;

/// A topic that passed all checks.
struct Plan {
    name: String,
    partitions: BTreeMap<i32, Assignment>,
    overrides: Arc<BTreeMap<String, String>>,
}

impl Plan {
    fn created(&self, id: TopicId) -> CreatedTopic {
        let first = self.partitions.values().next();
        CreatedTopic {
            id,
            partitions: i32::try_from(self.partitions.len()).unwrap_or(i32::MAX),
            replication_factor: first
                .map_or(0, |first| i16::try_from(first.replicas.len()).unwrap_or(i16::MAX)),
            overrides: Arc::clone(&self.overrides),
        }
    }
}

/// Names that a list holds more than once.
fn duplicates<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

fn candidates(image: &Image) -> Vec<Candidate> {
    let candidate = |broker: &crate::metadata::image::BrokerImage| Candidate {
        id: broker.id,
        rack: broker.rack.as_deref().map(str::to_owned),
    };
    image.brokers.values().map(|broker| candidate(broker)).collect()
}

impl<R: ShardRuntime, S: MetadataStore> Admin<R, S> {
    pub(super) async fn create_topics(
        &self,
        wish: CreateTopics,
    ) -> Vec<Result<CreatedTopic, CreateTopicError>> {
        let twice: BTreeSet<String> = duplicates(wish.topics.iter().map(|topic| topic.name.as_str()))
            .into_iter()
            .map(str::to_owned)
            .collect();
        let names: Vec<TopicName> = wish.topics.iter().map(|topic| TopicName::new(&topic.name)).collect();
        let mut room = PARTITIONS_PER_REQUEST_MAX;
        let mut created = Vec::with_capacity(names.len());
        // Checked one after another, so that two that collide do not both pass; written together.
        let mut writes = Vec::new();
        let mut planned = BTreeSet::new();
        let mut pace = Pace::new(&self.runtime);
        for topic in wish.topics {
            pace.look().await;
            let plan = if twice.contains(&topic.name) {
                Err(CreateTopicError::Duplicate(topic.name))
            } else {
                self.plan(topic, &planned, &mut room).await
            };
            match plan {
                Ok(plan) => {
                    planned.insert(plan.name.clone());
                    created.push(Ok(plan.created(TopicId::ZERO)));
                    if wish.mode != Mode::Validate {
                        writes.push((created.len() - 1, plan));
                    }
                }
                Err(error) => created.push(Err(error)),
            }
        }
        let Mode::Apply(deadline) = wish.mode else { return created };
        let indexes: Vec<usize> = writes.iter().map(|(index, _)| *index).collect();
        let written = join_all(writes.iter().map(|(_, plan)| self.write_topic(plan))).await;
        for (index, written) in indexes.into_iter().zip(written) {
            if let Some(answer) = created.get_mut(index) {
                *answer = written;
            }
        }
        self.await_leaders(&names, created, deadline).await
    }

    /// Waits until each created topic shows a leader for each partition.
    async fn await_leaders(
        &self,
        names: &[TopicName],
        mut created: Vec<Result<CreatedTopic, CreateTopicError>>,
        deadline: Option<MonoTime>,
    ) -> Vec<Result<CreatedTopic, CreateTopicError>> {
        let waits = names.iter().zip(&created).map(|(name, created)| async move {
            match (created, deadline) {
                (Err(_), _) => true,
                (Ok(_), None) => false,
                (Ok(topic), Some(deadline)) => {
                    self.await_partitions(name, topic.id, topic.partitions, deadline).await
                }
            }
        });
        let done = join_all(waits).await;
        for (answer, done) in created.iter_mut().zip(done) {
            if !done {
                *answer = Err(CreateTopicError::TimedOut);
            }
        }
        created
    }

    async fn await_partitions(&self, name: &TopicName, id: TopicId, count: i32, deadline: MonoTime) -> bool {
        let count = usize::try_from(count).unwrap_or_default();
        let shown = |image: &Image| {
            let topic = image.topic(name.get()).filter(|topic| topic.id == id)?;
            let led = topic.partitions.iter().filter(|partition| partition.leader != BrokerId::NONE).count();
            (led >= count).then_some(())
        };
        self.publisher.until(deadline, shown).await.is_some()
    }

    pub(super) async fn auto_create(&self, names: Vec<TopicName>) -> Vec<Result<(), CreateTopicError>> {
        let mut results = Vec::with_capacity(names.len());
        let mut room = PARTITIONS_PER_REQUEST_MAX;
        let mut pace = Pace::new(&self.runtime);
        for name in names {
            pace.look().await;
            let wish = NewTopic {
                name: name.get().to_owned(),
                partitions: -1,
                replication_factor: -1,
                assignment: Vec::new(),
                configs: Vec::new(),
            };
            // Written one after another: a later name may collide with an earlier one.
            let result = match self.plan(wish, &BTreeSet::new(), &mut room).await {
                Ok(plan) => self.write_topic(&plan).await.map(|_| ()),
                Err(error) => Err(error),
            };
            results.push(result);
        }
        results
    }

    /// All checks; the first that fails decides.
    async fn plan(
        &self,
        wish: NewTopic,
        planned: &BTreeSet<String>,
        room: &mut usize,
    ) -> Result<Plan, CreateTopicError> {
        let image = self.publisher.current();
        let NewTopic { name, partitions, replication_factor, assignment, configs } = wish;
        if name == "__cluster_metadata" {
            return Err(CreateTopicError::Reserved(name));
        }
        if image.topic(&name).is_some() {
            return Err(CreateTopicError::Exists(name));
        }
        let mut overrides = BTreeMap::new();
        for (key, value) in configs {
            match value {
                Some(value) => overrides.insert(key, value),
                None => return Err(CreateTopicError::NullConfig(key)),
            };
        }
        let partitions = self.assignment(&image, partitions, replication_factor, assignment, room);
        // Counts come before the name, a manual assignment behind it.
        let late = matches!(partitions, Err(CreateTopicError::Assignment));
        if !late && let Err(error) = partitions {
            return Err(error);
        }
        if !TopicName::is_legal(&name) {
            return Err(CreateTopicError::IllegalName(name));
        }
        self.check_name(&name, planned).await?;
        let partitions = partitions?;
        topic::validate(&overrides, &self.config)?;
        Ok(Plan { name, partitions, overrides: Arc::new(overrides) })
    }

    /// Against the topics in the store, which may be ahead of the image.
    async fn check_name(&self, name: &str, planned: &BTreeSet<String>) -> Result<(), CreateTopicError> {
        if self.store.exists(&znodes::delete_topic(name), false).await?.is_some() {
            return Err(CreateTopicError::BeingDeleted(name.to_owned()));
        }
        if self.store.exists(&znodes::topic(name), false).await?.is_some() {
            return Err(CreateTopicError::Exists(name.to_owned()));
        }
        // Only names with one of the two can collide.
        if name.contains(['.', '_']) {
            let plain = name.replace('.', "_");
            let (existing, _) = self.store.children(znodes::TOPICS, false).await?;
            let collides = |other: &&String| other.replace('.', "_") == plain;
            if let Some(existing) = existing.iter().chain(planned).find(collides) {
                return Err(CreateTopicError::Collides { name: name.to_owned(), existing: existing.clone() });
            }
        }
        Ok(())
    }

    fn assignment(
        &self,
        image: &Image,
        partitions: i32,
        replication_factor: i16,
        assignment: Vec<(i32, Vec<BrokerId>)>,
        room: &mut usize,
    ) -> Result<BTreeMap<i32, Assignment>, CreateTopicError> {
        if !assignment.is_empty() {
            if partitions != -1 || replication_factor != -1 {
                return Err(CreateTopicError::CountsAndAssignment);
            }
            take_room(room, assignment.len())?;
            return manual_assignment(assignment).ok_or(CreateTopicError::Assignment);
        }
        let defaults = &self.config.topics;
        let count = if partitions == -1 { defaults.num_partitions } else { partitions };
        let factor = match replication_factor {
            -1 => i16::try_from(defaults.default_replication_factor).unwrap_or(i16::MAX),
            factor => factor,
        };
        let count = usize::try_from(count).ok().filter(|count| *count > 0);
        let count = count.ok_or(CreateTopicError::Partitions(partitions))?;
        let live = image.brokers.len();
        let wanted = usize::try_from(factor).ok().filter(|wanted| (1..=live).contains(wanted));
        let wanted = wanted.ok_or(CreateTopicError::ReplicationFactor { wanted: factor, live })?;
        take_room(room, count)?;
        let wish = Wish {
            first_partition: 0,
            partitions: count,
            replication_factor: wanted,
            start: self.random_below(live),
            shift: self.random_below(live),
        };
        let placed = place(candidates(image), wish).map_err(|error| match error {
            PlacementError::Factor { live, .. } => {
                CreateTopicError::ReplicationFactor { wanted: factor, live }
            }
            PlacementError::Racks => CreateTopicError::Racks,
        })?;
        Ok((0..).zip(placed).map(|(index, replicas)| (index, Assignment::of(replicas))).collect())
    }

    fn random_below(&self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(1);
        usize::try_from(self.runtime.random() % bound).unwrap_or_default()
    }

    /// Config and topic in one transaction, so that no crash leaves one without the other.
    async fn write_topic(&self, plan: &Plan) -> Result<CreatedTopic, CreateTopicError> {
        let id = self.random_topic_id();
        let config = znodes::print_config(&plan.overrides);
        let config_path = znodes::topic_config(&plan.name);
        let topic = TopicNode::new(Some(id), &plan.partitions).print();
        loop {
            // A config that an old deletion left behind is replaced.
            let op = match self.store.exists(&config_path, false).await? {
                Some(_) => Op::set(config_path.clone(), config.clone(), Expected::Any),
                None => Op::create(config_path.clone(), Some(config.clone())),
            };
            let ops = vec![op, Op::create(znodes::topic(&plan.name), Some(topic.clone()))];
            match self.store.multi(ops).await {
                Ok(_) => return Ok(plan.created(id)),
                Err(MultiError::Op { index: 1, error: StoreError::NodeExists }) => {
                    return Err(CreateTopicError::Exists(plan.name.clone()));
                }
                Err(MultiError::Op { index: 0, error: StoreError::NodeExists | StoreError::NoNode }) => {}
                Err(error) => return Err(error.error().into()),
            }
        }
    }

    /// A random UUID (version 4), which is none of Kafka's reserved ids.
    fn random_topic_id(&self) -> TopicId {
        let bits = (u128::from(self.runtime.random()) << 64) | u128::from(self.runtime.random());
        let bits = bits & !(0xf << 76) & !(0x3 << 62);
        TopicId::new((bits | (0x4 << 76) | (0x2 << 62)).to_be_bytes())
    }

    pub(super) async fn delete_topics(&self, wish: DeleteTopics) -> Vec<Result<(), DeleteTopicError>> {
        let deletions = wish.topics.iter().map(|topic| self.delete_topic(topic, wish.deadline));
        join_all(deletions).await
    }

    async fn delete_topic(
        &self,
        topic: &TopicRef,
        deadline: Option<MonoTime>,
    ) -> Result<(), DeleteTopicError> {
        if !self.config.topics.delete_topic_enable {
            return Err(DeleteTopicError::Disabled);
        }
        let image = self.publisher.current();
        let found = match topic {
            TopicRef::Name(name) => image.topic(name.get()).ok_or(DeleteTopicError::UnknownTopic)?,
            TopicRef::Id(id) => image.topic_by_id(*id).ok_or(DeleteTopicError::UnknownTopicId)?,
        };
        match self.store.create(&znodes::delete_topic(found.name.get()), None, CreateMode::Persistent).await {
            Ok(_) | Err(StoreError::NodeExists) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(deadline) = deadline else { return Err(DeleteTopicError::TimedOut) };
        let gone = |image: &Image| image.topic_by_id(found.id).is_none().then_some(());
        self.publisher.until(deadline, gone).await.ok_or(DeleteTopicError::TimedOut)
    }

    pub(super) async fn create_partitions(
        &self,
        wish: CreatePartitions,
    ) -> Vec<Result<(), CreatePartitionsError>> {
        let twice: BTreeSet<String> = duplicates(wish.topics.iter().map(|topic| topic.name.as_str()))
            .into_iter()
            .map(str::to_owned)
            .collect();
        let grow = wish.topics.into_iter().map(|topic| {
            let is_twice = twice.contains(&topic.name);
            async move {
                if is_twice {
                    Err(CreatePartitionsError::Duplicate)
                } else {
                    self.grow(topic, wish.mode).await
                }
            }
        });
        join_all(grow).await
    }

    async fn grow(&self, wish: GrowTopic, mode: Mode) -> Result<(), CreatePartitionsError> {
        if self.store.exists(&znodes::delete_topic(&wish.name), false).await?.is_some() {
            return Err(CreatePartitionsError::BeingDeleted);
        }
        let path = znodes::topic(&wish.name);
        let id = loop {
            let (data, stat) = match self.store.get(&path, false).await {
                Ok(found) => found,
                Err(StoreError::NoNode | StoreError::BadPath) => {
                    return Err(CreatePartitionsError::Unknown(wish.name));
                }
                Err(error) => return Err(error.into()),
            };
            let node =
                TopicNode::parse(&data.unwrap_or_default()).map_err(|_| CreatePartitionsError::Malformed)?;
            let grown = self.grown(&wish, node.assignments())?;
            if mode == Mode::Validate {
                return Ok(());
            }
            let data = TopicNode::new(node.id(), &grown).print();
            // By version, so that two who grow a topic at once do not undo each other.
            match self.store.set(&path, Some(data), Expected::Version(stat.version)).await {
                Ok(_) => break node.id().unwrap_or_default(),
                Err(StoreError::BadVersion | StoreError::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let Mode::Apply(Some(deadline)) = mode else { return Err(CreatePartitionsError::TimedOut) };
        let shown = self.await_partitions(&TopicName::new(&wish.name), id, wish.count, deadline).await;
        if shown { Ok(()) } else { Err(CreatePartitionsError::TimedOut) }
    }

    fn grown(
        &self,
        wish: &GrowTopic,
        mut partitions: BTreeMap<i32, Assignment>,
    ) -> Result<BTreeMap<i32, Assignment>, CreatePartitionsError> {
        if partitions.values().any(Assignment::is_reassigning) {
            return Err(CreatePartitionsError::Reassigning(wish.name.clone()));
        }
        let current = partitions.len();
        let count = usize::try_from(wish.count).unwrap_or_default();
        let Some(added) = count.checked_sub(current).filter(|added| *added > 0) else {
            return Err(CreatePartitionsError::Count { current, count: wish.count });
        };
        if added > PARTITIONS_PER_REQUEST_MAX {
            return Err(CreatePartitionsError::TooMany(wish.count));
        }
        let image = self.publisher.current();
        let first = partitions.get(&0).ok_or(CreatePartitionsError::Malformed)?.replicas.clone();
        let placed = match &wish.assignment {
            Some(assignment) => {
                let fits = |replicas: &Vec<BrokerId>| {
                    let distinct: BTreeSet<&BrokerId> = replicas.iter().collect();
                    replicas.len() == first.len()
                        && distinct.len() == replicas.len()
                        && replicas.iter().all(|id| image.brokers.contains_key(id))
                };
                if assignment.len() != added || !assignment.iter().all(fits) {
                    return Err(CreatePartitionsError::Assignment);
                }
                assignment.clone()
            }
            None => {
                let brokers = candidates(&image);
                let start = first.first().and_then(|id| brokers.iter().position(|broker| broker.id >= *id));
                let start = start.unwrap_or_default();
                let replication_factor = first.len();
                let wish = Wish {
                    first_partition: current,
                    partitions: added,
                    replication_factor,
                    start,
                    shift: start,
                };
                place(brokers, wish).map_err(|error| match error {
                    PlacementError::Factor { wanted, live } => {
                        CreatePartitionsError::ReplicationFactor { wanted, live }
                    }
                    PlacementError::Racks => CreatePartitionsError::Racks,
                })?
            }
        };
        let first_new = i32::try_from(current).map_err(|_| CreatePartitionsError::Malformed)?;
        partitions.extend((first_new..).zip(placed.into_iter().map(Assignment::of)));
        Ok(partitions)
    }
}

/// Takes part of what a request may still create.
fn take_room(room: &mut usize, count: usize) -> Result<(), CreateTopicError> {
    *room = room.checked_sub(count).ok_or(CreateTopicError::TooManyPartitions(count))?;
    Ok(())
}

/// Partitions 0 to n - 1, each with the same number of distinct brokers; whether these live is not looked at.
fn manual_assignment(assignment: Vec<(i32, Vec<BrokerId>)>) -> Option<BTreeMap<i32, Assignment>> {
    let count = assignment.len();
    let factor = assignment.first()?.1.len();
    let mut partitions = BTreeMap::new();
    for (index, replicas) in assignment {
        let distinct: BTreeSet<&BrokerId> = replicas.iter().collect();
        if replicas.is_empty() || replicas.len() != factor || distinct.len() != factor {
            return None;
        }
        partitions.insert(index, Assignment::of(replicas));
    }
    let consecutive = partitions.keys().copied().eq((0..).take(partitions.len()));
    (partitions.len() == count && consecutive).then_some(partitions)
}

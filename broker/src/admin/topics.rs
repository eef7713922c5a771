//! Creation, growth and deletion of topics: every check in the order of ZooKeeper mode (protocol.md 3.7,
//! security-admin.md 7), then the nodes that the controller reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use protocol::types::{BrokerId, CONSUMER_OFFSETS, TopicId, TopicName};

use super::ask::{
    CreatePartitions, CreatePartitionsError, CreateTopicError, CreateTopics, CreatedTopic, DeleteTopicError,
    DeleteTopics, GrowTopic, Mode, NewTopic, TopicRef,
};
use super::names::Alike;
use super::placement::{Candidate, PlacementError, Wish, place};
use super::service::Admin;
use super::shown::Led;
use crate::config::topic;
use crate::metadata::image::Image;
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;
use crate::store::znodes::{self, Assignment, TopicNode};
use crate::store::{CreateMode, Expected, MetadataStore, MultiError, Op, StoreError};

/// Partitions that one request creates at most, as in KRaft: a claimed count must not allocate (P-5).
pub const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;

/// Topics of one request that are written at once: they share commits of the store, and take some 100 µs of a turn.
const WRITTEN_AT_ONCE: usize = 256;

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
async fn duplicates<'a, R: ShardRuntime>(
    names: impl Iterator<Item = &'a str>,
    pace: &mut Pace<'_, R>,
) -> BTreeSet<String> {
    let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for name in names {
        if !seen.insert(name) && !twice.contains(name) {
            twice.insert(name.to_owned());
        }
        pace.step().await;
    }
    twice
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
        let mut pace = Pace::new(&self.runtime);
        let twice = duplicates(wish.topics.iter().map(|topic| topic.name.as_str()), &mut pace).await;
        let mut room = PARTITIONS_PER_REQUEST_MAX;
        let mut created = Vec::with_capacity(wish.topics.len());
        // Checked one after another, so that two that collide do not both pass; written together.
        let mut writes = Vec::new();
        let mut alike = Alike::default();
        for topic in wish.topics {
            pace.look().await;
            let plan = if twice.contains(&topic.name) {
                Err(CreateTopicError::Duplicate(topic.name))
            } else {
                self.plan(topic, &mut alike, &mut room).await
            };
            match plan {
                Ok(plan) => {
                    alike.note(&plan.name);
                    created.push(Ok(plan.created(TopicId::ZERO)));
                    if wish.mode != Mode::Validate {
                        writes.push((created.len() - 1, plan));
                    }
                }
                Err(error) => created.push(Err(error)),
            }
        }
        let Mode::Apply(deadline) = wish.mode else { return created };
        let mut led = Vec::with_capacity(writes.len());
        for some in writes.chunks(WRITTEN_AT_ONCE) {
            let written = join_all(some.iter().map(|(_, plan)| self.write_topic(plan))).await;
            for ((place, plan), written) in some.iter().zip(written) {
                let (name, partitions) = (TopicName::new(&plan.name), plan.partitions.len());
                led.extend(written.as_ref().ok().map(|topic| Led {
                    place: *place,
                    name,
                    id: topic.id,
                    partitions,
                }));
                if let Some(answer) = created.get_mut(*place) {
                    *answer = written;
                }
            }
            pace.look().await;
        }
        let shown = self.until_shown(&led, (deadline, wish.client), Led::is_shown).await;
        for (Led { place, .. }, is_shown) in led.iter().zip(shown) {
            if !is_shown && let Some(answer) = created.get_mut(*place) {
                *answer = Err(CreateTopicError::TimedOut);
            }
            pace.step().await;
        }
        created
    }

    pub(super) async fn auto_create(&self, names: Vec<TopicName>) -> Vec<Result<(), CreateTopicError>> {
        let mut results = Vec::with_capacity(names.len());
        let mut room = PARTITIONS_PER_REQUEST_MAX;
        let mut alike = Alike::default();
        let mut pace = Pace::new(&self.runtime);
        for name in names {
            pace.look().await;
            let wish = self.wish_for(&name);
            // Written one after another: a later name may collide with an earlier one.
            let result = match self.plan(wish, &mut alike, &mut room).await {
                Ok(plan) => self.write_topic(&plan).await.map(|_| alike.note(&plan.name)),
                Err(error) => Err(error),
            };
            results.push(result);
        }
        results
    }

    /// What is made of a name alone. The topic of the group coordinators has settings of its own (coordinators.md 3.1).
    fn wish_for(&self, name: &TopicName) -> NewTopic {
        let mut wish = NewTopic {
            name: name.get().to_owned(),
            partitions: -1,
            replication_factor: -1,
            assignment: Vec::new(),
            configs: Vec::new(),
        };
        if name.get() == CONSUMER_OFFSETS {
            let groups = &self.config.groups;
            wish.partitions = groups.topic_partitions;
            wish.replication_factor = groups.topic_replication_factor;
            let segment_bytes = groups.topic_segment_bytes.to_string();
            wish.configs = [
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", segment_bytes.as_str()),
            ]
            .map(|(key, value)| (key.to_owned(), Some(value.to_owned())))
            .into();
        }
        wish
    }

    /// How many partitions a topic had when it was first counted: what is placed by that number stays where it is until
    /// the next start, as in Kafka.
    pub(super) async fn count_partitions(
        &self,
        topic: &TopicName,
    ) -> Result<Option<(TopicId, i32)>, StoreError> {
        let data = match self.store.get(&znodes::topic(topic.get()), false).await {
            Ok((data, _)) => data.unwrap_or_default(),
            Err(StoreError::NoNode | StoreError::BadPath) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Ok(node) = TopicNode::parse(&data) else { return Ok(None) };
        let id = node.id().unwrap_or_default();
        let Ok(count) = i32::try_from(node.assignments().len()) else { return Ok(None) };
        let mut counted = self.counted.borrow_mut();
        if let Some(first) = counted.get(topic).filter(|(of, _)| *of == id) {
            return Ok(Some(*first));
        }
        counted.insert(topic.clone(), (id, count));
        Ok(Some((id, count)))
    }

    /// All checks; the first that fails decides.
    async fn plan(
        &self,
        wish: NewTopic,
        alike: &mut Alike,
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
        self.check_name(&name, alike).await?;
        let partitions = partitions?;
        topic::validate(&overrides, &self.config)?;
        Ok(Plan { name, partitions, overrides: Arc::new(overrides) })
    }

    /// Against the topics in the store, which may be ahead of the image.
    async fn check_name(&self, name: &str, alike: &mut Alike) -> Result<(), CreateTopicError> {
        if self.store.exists(&znodes::delete_topic(name), false).await?.is_some() {
            return Err(CreateTopicError::BeingDeleted(name.to_owned()));
        }
        if self.store.exists(&znodes::topic(name), false).await?.is_some() {
            return Err(CreateTopicError::Exists(name.to_owned()));
        }
        if Alike::may_collide(name) && !alike.is_listed {
            let (existing, _) = self.store.children(znodes::TOPICS, false).await?;
            let mut pace = Pace::new(&self.runtime);
            for topic in existing {
                alike.note(&topic);
                pace.step().await;
            }
            alike.is_listed = true;
        }
        match alike.find(name) {
            Some(existing) => {
                let existing = existing.to_owned();
                Err(CreateTopicError::Collides { name: name.to_owned(), existing })
            }
            None => Ok(()),
        }
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
        let mut pace = Pace::new(&self.runtime);
        let (mut answers, mut marked) = (Vec::with_capacity(wish.topics.len()), Vec::new());
        for some in wish.topics.chunks(WRITTEN_AT_ONCE) {
            for outcome in join_all(some.iter().map(|topic| self.mark_deleted(topic))).await {
                marked.extend(outcome.ok().map(|id| (answers.len(), id)));
                answers.push(outcome.map(drop));
            }
            pace.look().await;
        }
        let is_gone = |(_, id): &(usize, TopicId), image: &Image| {
            // It may be so new that not every shard has seen it yet.
            image.topic_by_id(*id).is_none() && self.publisher.current().topic_by_id(*id).is_none()
        };
        let gone = self.until_shown(&marked, (wish.deadline, wish.client), is_gone).await;
        for ((place, _), is_gone) in marked.iter().zip(gone) {
            if !is_gone && let Some(answer) = answers.get_mut(*place) {
                *answer = Err(DeleteTopicError::TimedOut);
            }
            pace.step().await;
        }
        answers
    }

    /// Records a deletion for the controller.
    async fn mark_deleted(&self, topic: &TopicRef) -> Result<TopicId, DeleteTopicError> {
        if !self.config.topics.delete_topic_enable {
            return Err(DeleteTopicError::Disabled);
        }
        let image = self.publisher.current();
        let found = match topic {
            TopicRef::Name(name) => image.topic(name.get()).ok_or(DeleteTopicError::UnknownTopic)?,
            TopicRef::Id(id) => image.topic_by_id(*id).ok_or(DeleteTopicError::UnknownTopicId)?,
        };
        match self.store.create(&znodes::delete_topic(found.name.get()), None, CreateMode::Persistent).await {
            Ok(_) | Err(StoreError::NodeExists) => Ok(found.id),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn create_partitions(
        &self,
        wish: CreatePartitions,
    ) -> Vec<Result<(), CreatePartitionsError>> {
        let mut pace = Pace::new(&self.runtime);
        let twice = duplicates(wish.topics.iter().map(|topic| topic.name.as_str()), &mut pace).await;
        let (mut answers, mut led) = (Vec::with_capacity(wish.topics.len()), Vec::new());
        for some in wish.topics.chunks(WRITTEN_AT_ONCE) {
            let grown = join_all(some.iter().map(|topic| self.grow(topic, &twice, wish.mode))).await;
            for (topic, grown) in some.iter().zip(grown) {
                let (place, name) = (answers.len(), TopicName::new(&topic.name));
                let partitions = usize::try_from(topic.count).unwrap_or_default();
                led.extend(grown.as_ref().ok().map(|id| Led { place, name, id: *id, partitions }));
                answers.push(grown.map(drop));
            }
            pace.look().await;
        }
        let Mode::Apply(deadline) = wish.mode else { return answers };
        let shown = self.until_shown(&led, (deadline, wish.client), Led::is_shown).await;
        for (Led { place, .. }, is_shown) in led.iter().zip(shown) {
            if !is_shown && let Some(answer) = answers.get_mut(*place) {
                *answer = Err(CreatePartitionsError::TimedOut);
            }
            pace.step().await;
        }
        answers
    }

    /// Writes more partitions of a topic, and answers its id.
    async fn grow(
        &self,
        wish: &GrowTopic,
        twice: &BTreeSet<String>,
        mode: Mode,
    ) -> Result<TopicId, CreatePartitionsError> {
        if twice.contains(&wish.name) {
            return Err(CreatePartitionsError::Duplicate);
        }
        if wish.name == CONSUMER_OFFSETS {
            self.count_partitions(&TopicName::new(CONSUMER_OFFSETS)).await?;
        }
        if self.store.exists(&znodes::delete_topic(&wish.name), false).await?.is_some() {
            return Err(CreatePartitionsError::BeingDeleted);
        }
        let path = znodes::topic(&wish.name);
        loop {
            let (data, stat) = match self.store.get(&path, false).await {
                Ok(found) => found,
                Err(StoreError::NoNode | StoreError::BadPath) => {
                    return Err(CreatePartitionsError::Unknown(wish.name.clone()));
                }
                Err(error) => return Err(error.into()),
            };
            let node =
                TopicNode::parse(&data.unwrap_or_default()).map_err(|_| CreatePartitionsError::Malformed)?;
            let grown = self.grown(wish, node.assignments())?;
            let id = node.id().unwrap_or_default();
            if mode == Mode::Validate {
                return Ok(id);
            }
            let data = TopicNode::new(node.id(), &grown).print();
            // By version, so that two who grow a topic at once do not undo each other.
            match self.store.set(&path, Some(data), Expected::Version(stat.version)).await {
                Ok(_) => return Ok(id),
                Err(StoreError::BadVersion | StoreError::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
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

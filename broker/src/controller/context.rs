//! What the controller knows: brokers, topics, leadership, and the states of partitions and replicas (controller.md 3, 7,
//! 8). Memory only: rebuilt from the store at each failover. Pure; changed by the machine alone.

use std::collections::{BTreeMap, BTreeSet};

use protocol::types::{BrokerId, TopicId, TopicName, TopicPartition};

use super::requests::{Leadership, LiveBroker, MetadataPartition};
use crate::store::znodes::Assignment;

/// State of a partition; one that does not exist is not in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartitionPhase {
    /// It has an assignment, but never had a leader.
    New,
    /// It has a leader.
    Online,
    /// Its leader is gone.
    Offline,
    /// Its topic is being deleted.
    NonExistent,
}

/// State of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplicaPhase {
    New,
    Online,
    Offline,
    DeletionStarted,
    DeletionSuccessful,
    DeletionIneligible,
}

/// How far the deletion of a topic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    /// Nobody wants it deleted.
    None,
    /// Marked; its partitions are as they were.
    Queued,
    /// Its partitions do not exist any more for anybody.
    Started,
}

#[derive(Clone, Debug)]
pub(super) struct Partition {
    pub assignment: Assignment,
    pub leadership: Option<Leadership>,
    pub phase: PartitionPhase,
    pub replicas: BTreeMap<BrokerId, ReplicaPhase>,
}

#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub id: TopicId,
    pub partitions: BTreeMap<i32, Partition>,
    pub deletion: Deletion,
    /// Halted: a dead replica, a failed StopReplica or a reassignment.
    pub ineligible: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ControllerContext {
    pub brokers: BTreeMap<BrokerId, LiveBroker>,
    pub topics: BTreeMap<TopicName, Topic>,
    /// Replicas that a broker said are in failed directories.
    pub offline_dirs: BTreeMap<BrokerId, BTreeSet<TopicPartition>>,
}

impl Partition {
    pub fn new(assignment: Assignment) -> Self {
        let replicas = assignment.replicas.iter().map(|id| (*id, ReplicaPhase::New)).collect();
        Self { assignment, leadership: None, phase: PartitionPhase::New, replicas }
    }
}

impl Topic {
    pub fn new(id: TopicId) -> Self {
        Self { id, partitions: BTreeMap::new(), deletion: Deletion::None, ineligible: false }
    }

    /// Whether some replica is in a phase.
    pub fn any_replica(&self, phase: ReplicaPhase) -> bool {
        self.partitions.values().any(|partition| partition.replicas.values().any(|replica| *replica == phase))
    }

    /// Whether all replicas are in a phase.
    pub fn all_replicas(&self, phase: ReplicaPhase) -> bool {
        self.partitions.values().all(|partition| partition.replicas.values().all(|replica| *replica == phase))
    }
}

impl ControllerContext {
    pub fn partition(&self, of: &TopicPartition) -> Option<&Partition> {
        self.topics.get(&of.topic)?.partitions.get(&of.partition)
    }

    pub fn partition_mut(&mut self, of: &TopicPartition) -> Option<&mut Partition> {
        self.topics.get_mut(&of.topic)?.partitions.get_mut(&of.partition)
    }

    /// Whether the topic of a partition is marked for deletion.
    pub fn is_deleting(&self, topic: &TopicName) -> bool {
        self.topics.get(topic).is_some_and(|topic| topic.deletion != Deletion::None)
    }

    /// Whether a replica can serve: its broker is registered and its directory works.
    pub fn is_online(&self, broker: BrokerId, partition: &TopicPartition) -> bool {
        self.brokers.contains_key(&broker)
            && !self.offline_dirs.get(&broker).is_some_and(|offline| offline.contains(partition))
    }

    /// All partitions of topics that pass a test, in order.
    pub fn partitions_where(&self, keep: impl Fn(&Topic, &Partition) -> bool) -> Vec<TopicPartition> {
        let mut found = Vec::new();
        for (name, topic) in &self.topics {
            for (index, partition) in &topic.partitions {
                if keep(topic, partition) {
                    found.push(TopicPartition::new(name.clone(), *index));
                }
            }
        }
        found
    }

    /// All replicas on a broker, with their partition.
    pub fn replicas_on(&self, broker: BrokerId) -> Vec<(TopicPartition, BrokerId)> {
        self.partitions_where(|_, partition| partition.replicas.contains_key(&broker))
            .into_iter()
            .map(|partition| (partition, broker))
            .collect()
    }

    /// What clients shall know of a partition; `None` before it ever had a leader.
    pub fn metadata(&self, of: &TopicPartition) -> Option<MetadataPartition> {
        let topic = self.topics.get(&of.topic)?;
        let partition = topic.partitions.get(&of.partition)?;
        let leadership = match topic.deletion {
            Deletion::None | Deletion::Queued => Some(partition.leadership.clone()?),
            Deletion::Started => None,
        };
        let replicas = partition.assignment.replicas.clone();
        let offline = replicas.iter().copied().filter(|id| !self.is_online(*id, of)).collect();
        Some(MetadataPartition { partition: of.clone(), topic_id: topic.id, leadership, replicas, offline })
    }
}

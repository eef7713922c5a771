//! What this broker knows of the cluster, as one immutable value per version. Shard 0 builds image n + 1 and publishes
//! it; each shard answers its clients from its own pointer. Knows neither who decides (controller) nor who asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use protocol::types::{
    BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicName, TopicPartition,
};

use crate::config::topic::TopicConfig;
use crate::shard::ShardId;

/// An endpoint that clients are told to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name of the listener, such as `PLAINTEXT`.
    pub listener: Arc<str>,
    /// Advertised host.
    pub host: Arc<str>,
    /// Advertised port.
    pub port: u16,
}

/// A live broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerImage {
    /// Its id.
    pub id: BrokerId,
    /// Its registration.
    pub epoch: BrokerEpoch,
    /// Its rack, if it has one.
    pub rack: Option<Arc<str>>,
    /// Where it listens, by listener.
    pub endpoints: Vec<Endpoint>,
}

impl BrokerImage {
    /// The endpoint of a listener.
    pub fn endpoint(&self, listener: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| &*endpoint.listener == listener)
    }
}

/// State of one partition as the controller last told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionImage {
    /// The leader; `BrokerId::NONE` when there is none.
    pub leader: BrokerId,
    /// Generation of the leadership.
    pub leader_epoch: LeaderEpoch,
    /// Version of leader and ISR.
    pub partition_epoch: PartitionEpoch,
    /// Assigned replicas, preferred leader first.
    pub replicas: Vec<BrokerId>,
    /// In-sync replicas.
    pub isr: Vec<BrokerId>,
    /// Replicas on dead brokers or failed dirs.
    pub offline: Vec<BrokerId>,
    /// The shard of this broker that owns the local replica; `None` when this broker has none.
    pub owner: Option<ShardId>,
}

/// A topic.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicImage {
    /// Its name.
    pub name: TopicName,
    /// Its id.
    pub id: TopicId,
    /// Its partitions, by index.
    pub partitions: Vec<PartitionImage>,
    /// Overrides as stored, name to value (unknown keys are kept).
    pub overrides: Arc<BTreeMap<String, String>>,
    /// Effective configuration: overrides over broker defaults.
    pub config: Arc<TopicConfig>,
}

/// The cluster at one version.
#[derive(Clone, Debug)]
pub struct Image {
    /// Grows by one with each publication.
    pub version: u64,
    /// Id of the cluster, 22 characters.
    pub cluster_id: Arc<str>,
    /// The broker this image lives on.
    pub self_id: BrokerId,
    /// The active controller; `BrokerId::NONE` when unknown.
    pub controller: BrokerId,
    /// Live brokers.
    pub brokers: OrdMap<BrokerId, Arc<BrokerImage>>,
    /// Topics by name.
    pub topics: OrdMap<TopicName, Arc<TopicImage>>,
    /// Names by id.
    pub names: OrdMap<TopicId, TopicName>,
}

impl Image {
    /// A topic by name.
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicImage>> {
        self.topics.get(name)
    }

    /// A topic by id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicImage>> {
        self.names.get(&id).and_then(|name| self.topics.get(name))
    }

    /// A partition by topic name and index.
    pub fn partition(&self, topic: &str, partition: i32) -> Option<&PartitionImage> {
        let index = usize::try_from(partition).ok()?;
        self.topic(topic)?.partitions.get(index)
    }

    /// The shard that owns the local replica of a partition.
    pub fn owner(&self, partition: &TopicPartition) -> Option<ShardId> {
        self.partition(partition.topic.get(), partition.partition)?.owner
    }
}

//! From one image to the next: what shard 0 learnt since. Pure; unchanged topics are shared between the images.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use protocol::types::{BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicName};

use super::image::{BrokerImage, Image, PartitionImage, TopicImage};
use crate::config::topic::TopicConfig;

/// Overrides of a topic and what they make.
#[derive(Clone, Debug, PartialEq)]
pub struct Overrides {
    /// Name to value, as stored.
    pub overrides: Arc<BTreeMap<String, String>>,
    /// The effective configuration.
    pub config: Arc<TopicConfig>,
}

/// A change of one topic.
#[derive(Clone, Debug, PartialEq)]
pub enum TopicDelta {
    /// Partitions are new or have changed. A topic of another id replaces the one of the same name.
    Partitions {
        /// Name of the topic.
        name: TopicName,
        /// Its id.
        id: TopicId,
        /// Its configuration.
        config: Overrides,
        /// Index and state.
        partitions: Vec<(i32, PartitionImage)>,
    },
    /// Partitions are gone; with the last one the topic is.
    Gone {
        /// Name of the topic.
        name: TopicName,
        /// The partitions.
        partitions: Vec<i32>,
    },
    /// The configuration has changed.
    Config {
        /// Name of the topic.
        name: TopicName,
        /// The new configuration.
        config: Overrides,
    },
}

/// What changes between two images.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageDelta {
    /// All live brokers, if told.
    pub brokers: Option<Vec<BrokerImage>>,
    /// The controller, if told.
    pub controller: Option<BrokerId>,
    /// Changes of topics, in order.
    pub topics: Vec<TopicDelta>,
}

/// A partition that no one has told us of, below one that somebody has.
fn unknown() -> PartitionImage {
    PartitionImage {
        leader: BrokerId::NONE,
        leader_epoch: LeaderEpoch::NONE,
        partition_epoch: PartitionEpoch::new(-1),
        replicas: Vec::new(),
        isr: Vec::new(),
        offline: Vec::new(),
        owner: None,
    }
}

impl PartitionImage {
    /// Whether the controller has told of this partition: until its first leader is elected it has not.
    pub fn is_known(&self) -> bool {
        !self.replicas.is_empty()
    }
}

impl ImageDelta {
    /// The next image.
    pub fn apply(self, image: &Image) -> Image {
        let mut next = image.clone();
        next.version = image.version + 1;
        if let Some(brokers) = self.brokers {
            next.brokers =
                brokers.into_iter().map(|broker| (broker.id, Arc::new(broker))).collect::<OrdMap<_, _>>();
        }
        if let Some(controller) = self.controller {
            next.controller = controller;
        }
        for topic in self.topics {
            apply_topic(&mut next, topic);
        }
        next
    }
}

fn apply_topic(image: &mut Image, delta: TopicDelta) {
    match delta {
        TopicDelta::Partitions { name, id, config, partitions } => {
            let known = image.topics.get(&name).filter(|topic| topic.id == id);
            let mut topic = match known {
                Some(topic) => TopicImage::clone(topic),
                None => {
                    remove(image, &name);
                    let Overrides { overrides, config } = config;
                    TopicImage { name: name.clone(), id, partitions: Vec::new(), overrides, config }
                }
            };
            for (index, state) in partitions {
                let Ok(index) = usize::try_from(index) else { continue };
                if topic.partitions.len() <= index {
                    topic.partitions.resize_with(index + 1, unknown);
                }
                if let Some(partition) = topic.partitions.get_mut(index) {
                    *partition = state;
                }
            }
            image.names.insert(id, name.clone());
            image.topics.insert(name, Arc::new(topic));
        }
        TopicDelta::Gone { name, partitions } => {
            let Some(topic) = image.topics.get(&name) else { return };
            let mut topic = TopicImage::clone(topic);
            for index in partitions {
                let partition = usize::try_from(index).ok().and_then(|index| topic.partitions.get_mut(index));
                if let Some(partition) = partition {
                    *partition = unknown();
                }
            }
            if topic.partitions.iter().any(PartitionImage::is_known) {
                image.topics.insert(name, Arc::new(topic));
            } else {
                remove(image, &name);
            }
        }
        TopicDelta::Config { name, config } => {
            if let Some(topic) = image.topics.get(&name) {
                let Overrides { overrides, config } = config;
                let topic = TopicImage { overrides, config, ..TopicImage::clone(topic) };
                image.topics.insert(name, Arc::new(topic));
            }
        }
    }
}

fn remove(image: &mut Image, name: &TopicName) {
    if let Some(topic) = image.topics.remove(name) {
        image.names.remove(&topic.id);
    }
}

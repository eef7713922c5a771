//! Topic configs of the topics with replicas on this broker: read from the store, over the broker's defaults.
//! [`super::receiver`] reads them before a replica gets its role, and again when they have changed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use protocol::types::{TopicId, TopicName};

use crate::config::broker::BrokerConfig;
use crate::config::topic::TopicConfig;
use crate::metadata::delta::Overrides;
use crate::store::{MetadataStore, StoreError, znodes};

/// The configs that are known.
pub struct TopicConfigs<S> {
    store: S,
    broker: Rc<BrokerConfig>,
    known: RefCell<BTreeMap<TopicName, (TopicId, Overrides)>>,
}

impl<S: MetadataStore> TopicConfigs<S> {
    /// None yet.
    pub fn new(store: S, broker: Rc<BrokerConfig>) -> Self {
        Self { store, broker, known: RefCell::default() }
    }

    /// What is known of a topic; the broker's defaults otherwise.
    pub fn overrides_of(&self, topic: &TopicName) -> Overrides {
        let known = self.known.borrow().get(topic).map(|(_, config)| config.clone());
        known.unwrap_or_else(|| Overrides {
            overrides: Arc::default(),
            config: Arc::new(self.broker.topic_defaults.clone()),
        })
    }

    /// The effective config of a topic, if it was read.
    pub fn config_of(&self, topic: &TopicName) -> Option<Arc<TopicConfig>> {
        self.known.borrow().get(topic).map(|(_, config)| Arc::clone(&config.config))
    }

    /// Reads the configs of topics that are new here; answers those whose config cannot be read.
    pub async fn load(&self, topics: BTreeSet<(TopicName, TopicId)>) -> BTreeSet<TopicName> {
        let new: Vec<(TopicName, TopicId)> = {
            let known = self.known.borrow();
            let is_new =
                |(name, id): &(TopicName, TopicId)| known.get(name).is_none_or(|(known, _)| known != id);
            topics.into_iter().filter(is_new).collect()
        };
        let reads: Vec<_> =
            new.iter().map(|(name, _)| self.store.get(&znodes::topic_config(name.get()), false)).collect();
        let mut failed = BTreeSet::new();
        for ((name, id), found) in new.into_iter().zip(join_all(reads).await) {
            match self.parse(&name, found.map(|(data, _)| data)) {
                Some(config) => {
                    self.known.borrow_mut().insert(name, (id, config));
                }
                None => {
                    failed.insert(name);
                }
            }
        }
        failed
    }

    /// Reads the config of a known topic anew; `None` if it is not known or cannot be read.
    pub async fn reload(&self, topic: &TopicName) -> Option<(TopicId, Overrides)> {
        let (id, _) = self.known.borrow().get(topic).cloned()?;
        let found = self.store.get(&znodes::topic_config(topic.get()), false).await;
        let config = self.parse(topic, found.map(|(data, _)| data))?;
        self.known.borrow_mut().insert(topic.clone(), (id, config.clone()));
        Some((id, config))
    }

    /// Topics that are gone; their configs are read anew should the names come back.
    pub fn forget(&self, gone: &BTreeSet<TopicName>) {
        self.known.borrow_mut().retain(|name, _| !gone.contains(name));
    }

    fn parse(&self, topic: &TopicName, found: Result<Option<bytes::Bytes>, StoreError>) -> Option<Overrides> {
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
        let config = Arc::new(TopicConfig::effective(&overrides, &self.broker));
        Some(Overrides { overrides: Arc::new(overrides), config })
    }
}

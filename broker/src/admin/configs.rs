//! Changes of a topic's overrides: check the wish, write it into the metadata store, announce it (zookeeper.md 4.6, 8).
//! Runs on shard 0. Knows no wire format; whoever calls it publishes the new configuration to the shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::service::Admin;
use crate::config::broker::BrokerConfig;
use crate::config::dynamic::{self, Change, ChangeError};
use crate::config::topic::{self, TopicConfig, TopicFault};
use crate::metadata::image::Image;
use crate::shard::ShardRuntime;
use crate::store::{CreateMode, Expected, MetadataStore, Op, StoreError, znodes};

/// What to do with a topic's overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// These and no others (`AlterConfigs`).
    Replace(BTreeMap<String, String>),
    /// Single changes (`IncrementalAlterConfigs`).
    Change(Vec<Change>),
}

/// Whether a wish is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    Apply,
    /// It is only checked.
    Validate,
}

/// A wish for one topic: what other shards ask of shard 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterTopic {
    /// Name of the topic.
    pub topic: String,
    /// What to do with its overrides.
    pub alteration: Alteration,
    /// Whether to do it.
    pub mode: Mode,
}

/// What a topic has now, or would have.
#[derive(Clone, Debug, PartialEq)]
pub struct Altered {
    /// The overrides.
    pub overrides: Arc<BTreeMap<String, String>>,
    /// What they come to.
    pub config: Arc<TopicConfig>,
}

/// Why nothing was changed (after `Store`: why it is not known whether something was).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AlterConfigsError {
    /// No such topic: UNKNOWN_TOPIC_OR_PARTITION.
    #[error("The topic '{0}' does not exist.")]
    UnknownTopic(String),
    /// Changes that make no sense.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// Overrides that are not valid: INVALID_CONFIG.
    #[error(transparent)]
    Invalid(#[from] TopicFault),
    /// What the store has cannot be read: UNKNOWN_SERVER_ERROR.
    #[error("the stored configuration of topic '{0}' is malformed")]
    Malformed(String),
    /// Others changed the same topic all the time: UNKNOWN_SERVER_ERROR.
    #[error("the configuration of topic '{0}' is being changed by others")]
    Contended(String),
    /// The store: UNKNOWN_SERVER_ERROR.
    #[error("metadata store: {0}")]
    Store(#[from] StoreError),
}

/// Times that a write is tried again after another writer was faster.
const TRIES: usize = 10;

/// Milliseconds to wait for the shards to show a change that is already durable: whoever reads its own writes finds
/// them, and whoever is overtaken by another writer is not held up for long.
const SHOWN_MS: i64 = 1_000;

impl<R: ShardRuntime, S: MetadataStore> Admin<R, S> {
    /// Changes the overrides of a topic, and waits for the shards to show it. They learn of it by the announcement.
    pub(super) async fn alter_topic(&self, wish: &AlterTopic) -> Result<(), AlterConfigsError> {
        let altered = alter_topic(&self.store, &self.config, wish).await?;
        if wish.mode == Mode::Apply {
            let is_shown = |image: &Image| match image.topic(&wish.topic) {
                Some(topic) if topic.overrides != altered.overrides => None,
                _ => Some(()),
            };
            let deadline = self.runtime.now().plus_ms(SHOWN_MS);
            if self.publisher.until(deadline, is_shown).await.is_none() {
                tracing::debug!(topic = wish.topic, "a change of overrides is durable and not shown yet");
            }
        }
        Ok(())
    }
}

/// Changes the overrides of a topic. The answer comes after the durable write.
///
/// # Errors
/// See [`AlterConfigsError`].
pub async fn alter_topic<S: MetadataStore>(
    store: &S,
    broker: &BrokerConfig,
    wish: &AlterTopic,
) -> Result<Altered, AlterConfigsError> {
    let AlterTopic { topic, alteration, mode } = wish;
    for _ in 0..TRIES {
        let is_going = store.exists(&znodes::delete_topic(topic), false).await?.is_some();
        if is_going || store.exists(&znodes::topic(topic), false).await?.is_none() {
            return Err(AlterConfigsError::UnknownTopic(topic.to_owned()));
        }
        let path = znodes::topic_config(topic);
        let (stored, version) = match store.get(&path, false).await {
            Ok((data, stat)) => (data, Some(stat.version)),
            Err(StoreError::NoNode) => (None, None),
            Err(error) => return Err(error.into()),
        };
        let overrides = altered(topic, stored.as_ref(), alteration)?;
        topic::validate(&overrides, broker)?;
        if *mode == Mode::Apply && !write(store, &path, topic, &overrides, version).await? {
            continue;
        }
        let config = Arc::new(TopicConfig::effective(&overrides, broker));
        return Ok(Altered { overrides: Arc::new(overrides), config });
    }
    Err(AlterConfigsError::Contended(topic.to_owned()))
}

fn altered(
    topic: &str,
    stored: Option<&Bytes>,
    alteration: &Alteration,
) -> Result<BTreeMap<String, String>, AlterConfigsError> {
    match alteration {
        Alteration::Replace(overrides) => Ok(overrides.clone()),
        Alteration::Change(changes) => {
            let mut overrides = znodes::parse_config(stored.map(Bytes::as_ref))
                .map_err(|_| AlterConfigsError::Malformed(topic.to_owned()))?;
            dynamic::apply_to_topic(&mut overrides, changes)?;
            Ok(overrides)
        }
    }
}

/// Writes overrides and announcement in one transaction; `false` when another writer was faster.
async fn write<S: MetadataStore>(
    store: &S,
    path: &str,
    topic: &str,
    overrides: &BTreeMap<String, String>,
    version: Option<i32>,
) -> Result<bool, StoreError> {
    let data = znodes::print_config(overrides);
    let written = match version {
        Some(version) => Op::set(path, data, Expected::Version(version)),
        None => Op::create(path, Some(data)),
    };
    let announced = Op::Create {
        path: format!("{}/config_change_", znodes::CONFIG_CHANGES),
        data: Some(znodes::print_config_change(&format!("topics/{topic}"))),
        mode: CreateMode::PersistentSequential,
    };
    match store.multi(vec![written, announced]).await.map_err(|error| error.error()) {
        Ok(_) => Ok(true),
        Err(StoreError::BadVersion | StoreError::NodeExists | StoreError::NoNode) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;

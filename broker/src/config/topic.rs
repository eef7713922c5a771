//! Configuration of a topic: overrides over what the broker says over defaults, typed and checked. Knows no topic by
//! name and nothing of where overrides are stored.

use std::collections::BTreeMap;

use protocol::records::compression::Codec;
use storage::config::{CleanupPolicy, Durability, LogConfig};

use super::broker::BrokerConfig;
use super::keys::{self, BrokerKey, Support, TopicKey};
use super::settings::Settings;
use super::value::{self, Value, ValueFault};

/// Which compression stored batches have (`compression.type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicCompression {
    /// What the producer chose.
    Producer,
    /// This one; batches in another are recompressed.
    Codec {
        /// The codec.
        codec: Codec,
        /// Its level; `None` is the codec's default.
        level: Option<i32>,
    },
}

/// Whose time a record carries (`message.timestamp.type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// That of the append.
    LogAppendTime,
}

/// The effective configuration of a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// What its logs need to know.
    pub log: LogConfig,
    /// `max.message.bytes`: largest batch in bytes.
    pub max_message_bytes: u32,
    /// `compression.type` and its level.
    pub compression: TopicCompression,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`: milliseconds that a timestamp may lie before our clock; `i64::MAX` is any.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`: milliseconds that a timestamp may lie after our clock; `i64::MAX` is any.
    pub timestamp_after_max_ms: i64,
    /// `min.insync.replicas`.
    pub min_insync_replicas: i32,
    /// `unclean.leader.election.enable`.
    pub unclean_leader_election_enable: bool,
}

impl TopicConfig {
    /// What holds for a topic with these overrides. Unknown keys are kept by whoever stores them and ignored here; so is
    /// a text that is no value of its key, which the checks never let in.
    pub fn effective(overrides: &BTreeMap<String, String>, broker: &BrokerConfig) -> Self {
        Values { overrides, settings: &broker.settings }.typed()
    }

    /// The same for a broker that is still being made.
    pub(super) fn of_settings(settings: &Settings) -> Self {
        Values { overrides: &BTreeMap::new(), settings }.typed()
    }
}

/// Reads topic keys by precedence.
struct Values<'a> {
    overrides: &'a BTreeMap<String, String>,
    settings: &'a Settings,
}

impl Values<'_> {
    fn value(&self, name: &str) -> Option<Value> {
        let key = keys::topic_key(name);
        assert!(key.is_some(), "{name} is not in the table of topic keys");
        let key = key?;
        let own = self.overrides.get(name).and_then(|text| value::parse(key.kind, key.range, text).ok());
        own.or_else(|| inherited(key, &|broker_key| self.settings.value_of(broker_key)))
    }

    fn integer(&self, name: &str) -> i64 {
        match self.value(name) {
            Some(Value::Integer(value)) => value,
            _ => 0,
        }
    }

    fn size(&self, name: &str) -> u32 {
        u32::try_from(self.integer(name)).unwrap_or(0)
    }

    fn int(&self, name: &str) -> i32 {
        i32::try_from(self.integer(name)).unwrap_or(i32::MAX)
    }

    fn boolean(&self, name: &str) -> bool {
        self.value(name) == Some(Value::Boolean(true))
    }

    fn text(&self, name: &str) -> String {
        self.value(name).map(|value| value.to_string()).unwrap_or_default()
    }

    fn typed(&self) -> TopicConfig {
        TopicConfig {
            log: self.log(),
            max_message_bytes: self.size("max.message.bytes"),
            compression: self.compression(),
            timestamp_type: match self.text("message.timestamp.type").as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            timestamp_before_max_ms: self.timestamp_bound("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: self.timestamp_bound("message.timestamp.after.max.ms"),
            min_insync_replicas: self.int("min.insync.replicas"),
            unclean_leader_election_enable: self.boolean("unclean.leader.election.enable"),
        }
    }

    fn log(&self) -> LogConfig {
        let policy = match self.value("cleanup.policy") {
            Some(Value::List(items)) => items,
            _ => Vec::new(),
        };
        let has = |wanted: &str| policy.iter().any(|item| item == wanted);
        LogConfig {
            cleanup_policy: CleanupPolicy { delete: has("delete"), compact: has("compact") },
            segment_bytes: self.size("segment.bytes"),
            segment_ms: self.integer("segment.ms"),
            segment_jitter_ms: self.integer("segment.jitter.ms"),
            segment_index_bytes: self.size("segment.index.bytes"),
            index_interval_bytes: self.size("index.interval.bytes"),
            durability: self.durability(),
            sync_delay_ms_max: self.settings.integer("storage.sync.max.delay.ms"),
            flush_messages: self.integer("flush.messages"),
            flush_ms: self.integer("flush.ms"),
            retention_ms: self.integer("retention.ms"),
            retention_bytes: self.integer("retention.bytes"),
            file_delete_delay_ms: self.integer("file.delete.delay.ms"),
            delete_retention_ms: self.integer("delete.retention.ms"),
            min_compaction_lag_ms: self.integer("min.compaction.lag.ms"),
            max_compaction_lag_ms: self.integer("max.compaction.lag.ms"),
            min_cleanable_dirty_ratio: match self.value("min.cleanable.dirty.ratio") {
                Some(Value::Double(ratio)) => ratio,
                _ => 0.5,
            },
            preallocate: self.boolean("preallocate"),
        }
    }

    /// A topic that is to be synced after each record is, before it is acknowledged: that is what Kafka promises then.
    fn durability(&self) -> Durability {
        if self.integer("flush.messages") == 1 {
            return Durability::Strict;
        }
        match self.settings.text("storage.durability.mode").as_deref() {
            Some("strict") => Durability::Strict,
            Some("relaxed") => Durability::Relaxed,
            _ => Durability::Kafka,
        }
    }

    fn compression(&self) -> TopicCompression {
        let level = |name: &str| Some(self.int(name)).filter(|level| *level != -1);
        let (codec, level) = match self.text("compression.type").as_str() {
            "uncompressed" => (Codec::None, None),
            "gzip" => (Codec::Gzip, level("compression.gzip.level")),
            "snappy" => (Codec::Snappy, None),
            "lz4" => (Codec::Lz4, level("compression.lz4.level")),
            "zstd" => (Codec::Zstd, Some(self.int("compression.zstd.level"))),
            _ => return TopicCompression::Producer,
        };
        TopicCompression::Codec { codec, level }
    }

    /// A finer bound, else the older key for both (KIP-937): a finer bound at its default gives way.
    fn timestamp_bound(&self, name: &str) -> i64 {
        match self.integer(name) {
            i64::MAX => self.integer("message.timestamp.difference.max.ms"),
            bound => bound,
        }
    }
}

/// What a topic without an override has: the first broker key that is set, else the first with a default.
pub(super) fn inherited(key: &TopicKey, value_of: &dyn Fn(&BrokerKey) -> Option<Value>) -> Option<Value> {
    for synonym in key.synonyms {
        let broker_key = keys::broker_key(synonym.name)?;
        match value_of(broker_key) {
            Some(Value::Integer(value)) if synonym.factor != 1 => {
                let ms = value.saturating_mul(synonym.factor);
                return Some(Value::Integer(if key.name == "retention.ms" { ms.max(-1) } else { ms }));
            }
            Some(Value::Integer(value)) if key.name == "retention.ms" => {
                return Some(Value::Integer(value.max(-1)));
            }
            Some(value) => return Some(value),
            None => {}
        }
    }
    value::parse(key.kind, key.range, key.default).ok()
}

/// Why overrides are refused; the topic keeps what it had. All become INVALID_CONFIG.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TopicFault {
    /// A key that topics do not have.
    #[error("Unknown topic config name: {name}{}", .nearest.map(|n| format!(" (did you mean {n}?)")).unwrap_or_default())]
    Unknown {
        /// The key.
        name: String,
        /// The nearest that is known.
        nearest: Option<&'static str>,
    },
    /// A text that is no value of its key.
    #[error("Invalid value {text} for configuration {name}: {fault}")]
    Value {
        /// The key.
        name: &'static str,
        /// The text.
        text: String,
        /// What is wrong with it.
        fault: ValueFault,
    },
    /// A value that is not built.
    #[error("Invalid value {text} for configuration {name}: {why}")]
    NotBuilt {
        /// The key.
        name: &'static str,
        /// The text.
        text: String,
        /// Why it is refused.
        why: &'static str,
    },
    /// A lag that contradicts another.
    #[error("conflict topic config setting min.compaction.lag.ms ({min}) > max.compaction.lag.ms ({max})")]
    Lags {
        /// The lower bound.
        min: i64,
        /// The upper bound.
        max: i64,
    },
}

/// Checks overrides one by one and together with what they inherit.
///
/// # Errors
/// The first fault, in the order of the keys.
pub fn validate(overrides: &BTreeMap<String, String>, broker: &BrokerConfig) -> Result<(), TopicFault> {
    if let Some(name) = overrides.keys().find(|name| keys::topic_key(name).is_none()) {
        return Err(TopicFault::Unknown { name: name.clone(), nearest: keys::nearest_topic_key(name) });
    }
    for (name, text) in overrides {
        let Some(key) = keys::topic_key(name) else { continue };
        let value = value::parse(key.kind, key.range, text).map_err(|fault| TopicFault::Value {
            name: key.name,
            text: text.clone(),
            fault,
        })?;
        if let Support::Refused(why) = key.support
            && Some(value) != value::parse(key.kind, key.range, key.default).ok()
        {
            return Err(TopicFault::NotBuilt { name: key.name, text: text.clone(), why });
        }
    }
    let log = TopicConfig::effective(overrides, broker).log;
    let (min, max) = (log.min_compaction_lag_ms, log.max_compaction_lag_ms);
    if min > max { Err(TopicFault::Lags { min, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::broker::Surroundings;
    use super::super::settings::Place;
    use super::*;

    fn log(overrides: &[(&str, &str)], keys: &[(&str, &str)]) -> LogConfig {
        let mut settings = Settings::default();
        for (key, text) in keys {
            settings.set(key, text, Place::Override);
        }
        let surroundings = Surroundings { local_host: "here".to_owned(), default_log_dir: "/d".into() };
        let broker = BrokerConfig::new(settings, &surroundings).unwrap();
        let overrides: BTreeMap<_, _> =
            overrides.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        validate(&overrides, &broker).unwrap();
        TopicConfig::effective(&overrides, &broker).log
    }

    #[test]
    fn a_topic_is_strict_by_its_own_setting_or_by_the_brokers() {
        let mode = ("storage.durability.mode", "strict");
        let every = ("log.flush.interval.messages", "1");
        let one = ("flush.messages", "1");
        for (overrides, keys, expected) in [
            (vec![], vec![], Durability::Kafka),
            (vec![one], vec![], Durability::Strict),
            (vec![("flush.messages", "2")], vec![], Durability::Kafka),
            (vec![], vec![every], Durability::Strict),
            (vec![("flush.messages", "2")], vec![every], Durability::Kafka),
            (vec![], vec![mode], Durability::Strict),
            // The broker's promise is not undone by a topic that asks for syncs that nobody waits for.
            (vec![("flush.messages", "2")], vec![mode], Durability::Strict),
            (vec![], vec![("storage.durability.mode", "relaxed")], Durability::Relaxed),
            (vec![one], vec![("storage.durability.mode", "relaxed")], Durability::Strict),
        ] {
            assert_eq!(log(&overrides, &keys).durability, expected, "{overrides:?} {keys:?}");
        }
    }

    #[test]
    fn the_time_of_a_flush_is_the_topics_or_the_brokers_or_that_of_the_scheduler() {
        let scheduler = ("log.flush.scheduler.interval.ms", "7");
        let interval = ("log.flush.interval.ms", "5");
        assert_eq!(log(&[], &[]).flush_ms, i64::MAX);
        assert_eq!(log(&[], &[scheduler]).flush_ms, 7);
        assert_eq!(log(&[], &[scheduler, interval]).flush_ms, 5);
        assert_eq!(log(&[("flush.ms", "3")], &[scheduler, interval]).flush_ms, 3);
        assert_eq!(log(&[], &[("storage.sync.max.delay.ms", "2")]).sync_delay_ms_max, 2);
    }
}

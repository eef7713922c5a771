//! What `DescribeConfigs` tells: each key with its value, where it comes from, and every place that could set it, the
//! strongest first (protocol.md 3.8, KIP-226). Knows no wire format and no topic.

use std::collections::BTreeMap;

use super::keys::{self, BrokerKey, Dynamic, Kind, Origin, TopicKey};
use super::settings::Settings;
use super::topic;
use super::value::{self, Value};

/// Where a value comes from; the numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i8)]
pub enum Source {
    /// An override of the topic.
    Topic = 1,
    /// Set at run time for this broker.
    DynamicBroker = 2,
    /// Set at run time for all brokers.
    DynamicDefault = 3,
    /// The file, the environment or the command line.
    Static = 4,
    /// The table.
    Default = 5,
}

impl Source {
    /// The number on the wire.
    pub const fn code(self) -> i8 {
        self as i8
    }
}

/// One place that sets a key, perhaps under another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    /// The key there.
    pub name: String,
    /// The text there; `None` for a secret.
    pub value: Option<String>,
    /// The place.
    pub source: Source,
}

/// One key as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kafka's name.
    pub name: String,
    /// Its value; `None` for null and for a secret.
    pub value: Option<String>,
    /// Where the value comes from.
    pub source: Source,
    /// Every place that could set it, the strongest first.
    pub synonyms: Vec<Synonym>,
    /// Its type; `None` for a key that is not in the table.
    pub kind: Option<Kind>,
    /// Whether the value is hidden.
    pub is_sensitive: bool,
    /// Whether Kafka does not let it change at run time.
    pub is_read_only: bool,
    /// What it does.
    pub doc: Option<&'static str>,
}

/// Everything that sets broker keys, weakest last. The two dynamic layers are empty as long as broker keys cannot be
/// changed at run time.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// `/config/brokers/<id>`.
    pub dynamic_broker: &'a BTreeMap<String, String>,
    /// `/config/brokers/<default>`.
    pub dynamic_default: &'a BTreeMap<String, String>,
    /// What was set at start.
    pub settings: &'a Settings,
}

static NOTHING: BTreeMap<String, String> = BTreeMap::new();

/// Keys of which the first that is set counts.
const GROUPS: [&[&str]; 3] = [
    &["log.roll.ms", "log.roll.hours"],
    &["log.roll.jitter.ms", "log.roll.jitter.hours"],
    &["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
];

impl<'a> Layers<'a> {
    /// The layers of a broker without changes at run time.
    pub fn fixed(settings: &'a Settings) -> Self {
        Self { dynamic_broker: &NOTHING, dynamic_default: &NOTHING, settings }
    }

    /// Value of a broker key over all layers.
    fn value_of(&self, key: &BrokerKey) -> Option<Value> {
        let dynamic = self.dynamic_broker.get(key.name).or_else(|| self.dynamic_default.get(key.name));
        dynamic
            .map(String::as_str)
            .or_else(|| self.set_at_start(key.name))
            .and_then(|text| value::parse(key.kind, key.range, text).ok())
            .or_else(|| self.settings.value_of(key))
    }

    /// What a key was set to at start. Kafka takes the id of the broker for that of the node.
    fn set_at_start(&self, name: &str) -> Option<&'a str> {
        let other = if name == "node.id" { "broker.id" } else { name };
        self.settings.set_value(name).or_else(|| self.settings.set_value(other))
    }

    /// Every place that sets one of the names, without those that stand before the first of the principal name.
    fn synonyms(&self, principal: &str, names: &[&str], is_sensitive: bool) -> Vec<Synonym> {
        let default = |name: &str| keys::broker_key(name).and_then(|key| key.default);
        let mut all = Vec::new();
        let mut layer = |source, get: &dyn Fn(&str) -> Option<&'a str>| {
            for name in names {
                if let Some(text) = get(name) {
                    let value = (!is_sensitive).then(|| text.to_owned());
                    all.push(Synonym { name: (*name).to_owned(), value, source });
                }
            }
        };
        layer(Source::DynamicBroker, &|name| self.dynamic_broker.get(name).map(String::as_str));
        layer(Source::DynamicDefault, &|name| self.dynamic_default.get(name).map(String::as_str));
        layer(Source::Static, &|name| self.set_at_start(name));
        layer(Source::Default, &default);
        let start = all.iter().position(|synonym| synonym.name == principal).unwrap_or(all.len());
        all.split_off(start)
    }

    /// Every key of this broker that Kafka describes, in the order of the names.
    pub fn broker_entries(&self) -> Vec<Entry> {
        let described = keys::broker_keys().filter(|key| match key.origin {
            Origin::Kafka => true,
            Origin::KafkaInternal => self.settings.set_value(key.name).is_some(),
            Origin::KafkaUnlisted | Origin::Ours => false,
        });
        let mut entries: Vec<_> = described.map(|key| self.broker_entry(key.name, key)).collect();
        for (name, _) in self.settings.iter() {
            if keys::broker_key(name).is_some_and(|key| key.origin == Origin::KafkaUnlisted) {
                entries.push(unknown(name, Source::Static));
            } else if let Some(listener_key) = keys::listener_key(name) {
                entries.push(self.broker_entry(name, listener_key.key));
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    /// Every key that is set at run time for all brokers.
    pub fn default_broker_entries(&self) -> Vec<Entry> {
        let names = self.dynamic_default.keys();
        let entries = names.filter_map(|name| Some(self.broker_entry(name, keys::broker_key(name)?)));
        entries
            .map(|mut entry| {
                entry.synonyms.retain(|synonym| synonym.source == Source::DynamicDefault);
                entry.source = Source::DynamicDefault;
                entry.value = entry.synonyms.first().and_then(|synonym| synonym.value.clone());
                entry
            })
            .collect()
    }

    /// One broker key, under its own name or with a listener's prefix.
    fn broker_entry(&self, name: &str, key: &'static BrokerKey) -> Entry {
        let is_sensitive = key.kind == Kind::Password;
        let own;
        let names: &[&str] = if name != key.name {
            own = [name, key.name];
            &own
        } else if let Some(group) = GROUPS.into_iter().find(|group| group.contains(&name)) {
            group
        } else if name == "log.flush.interval.ms" {
            &["log.flush.interval.ms", "log.flush.scheduler.interval.ms"]
        } else {
            own = [name, name];
            own.get(..1).unwrap_or_default()
        };
        let synonyms = self.synonyms(name, names, is_sensitive);
        let value = if name == key.name {
            self.value_of(key)
        } else {
            self.settings.set_value(name).and_then(|text| value::parse(key.kind, key.range, text).ok())
        };
        Entry {
            name: name.to_owned(),
            value: value.filter(|_| !is_sensitive).map(|value| value.to_string()),
            source: synonyms.first().map_or(Source::Default, |synonym| synonym.source),
            synonyms,
            kind: Some(key.kind),
            is_sensitive,
            is_read_only: key.dynamic == Dynamic::Static,
            doc: Some(key.doc),
        }
    }

    /// Every key of a topic with these overrides, in the order of the names; unknown overrides are told as secrets.
    pub fn topic_entries(&self, overrides: &BTreeMap<String, String>) -> Vec<Entry> {
        let mut entries: Vec<_> = keys::topic_keys().map(|key| self.topic_entry(key, overrides)).collect();
        for name in overrides.keys().filter(|name| keys::topic_key(name).is_none()) {
            entries.push(unknown(name, Source::Topic));
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    fn topic_entry(&self, key: &'static TopicKey, overrides: &BTreeMap<String, String>) -> Entry {
        let own = overrides.get(key.name).and_then(|text| value::parse(key.kind, key.range, text).ok());
        let names: Vec<_> = key.synonyms.iter().map(|synonym| synonym.name).collect();
        let mut synonyms = names.first().map(|first| self.synonyms(first, &names, false)).unwrap_or_default();
        if let Some(value) = &own {
            let (name, value) = (key.name.to_owned(), Some(value.to_string()));
            synonyms.insert(0, Synonym { name, value, source: Source::Topic });
        }
        let value = own.or_else(|| topic::inherited(key, &|broker_key| self.value_of(broker_key)));
        Entry {
            name: key.name.to_owned(),
            value: value.map(|value| value.to_string()),
            source: synonyms.first().map_or(Source::Default, |synonym| synonym.source),
            synonyms,
            kind: Some(key.kind),
            is_sensitive: false,
            is_read_only: false,
            doc: Some(key.doc),
        }
    }
}

/// What was set and is not in the table that clients are told of: it may be a secret.
fn unknown(name: &str, source: Source) -> Entry {
    Entry {
        name: name.to_owned(),
        value: None,
        source,
        synonyms: vec![Synonym { name: name.to_owned(), value: None, source }],
        kind: None,
        is_sensitive: true,
        is_read_only: source == Source::Static,
        doc: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Place;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        for (name, text) in pairs {
            settings.set(name, text, Place::Override);
        }
        settings
    }

    fn find<'a>(entries: &'a [Entry], name: &str) -> &'a Entry {
        entries.iter().find(|entry| entry.name == name).unwrap()
    }

    fn chain(entry: &Entry) -> Vec<(&str, Option<&str>, i8)> {
        entry.synonyms.iter().map(|s| (s.name.as_str(), s.value.as_deref(), s.source.code())).collect()
    }

    /// Statement 84 of protocol.md 5.
    #[test]
    fn synonyms_are_override_then_dynamic_then_static_then_default() {
        let settings = settings(&[("log.segment.bytes", "300")]);
        let (broker, default) = (map(&[("log.segment.bytes", "100")]), map(&[("log.segment.bytes", "200")]));
        let layers = Layers { dynamic_broker: &broker, dynamic_default: &default, settings: &settings };
        let entries = layers.topic_entries(&map(&[("segment.bytes", "50")]));
        let entry = find(&entries, "segment.bytes");
        assert_eq!((entry.value.as_deref(), entry.source), (Some("50"), Source::Topic));
        assert_eq!(
            chain(entry),
            [
                ("segment.bytes", Some("50"), 1),
                ("log.segment.bytes", Some("100"), 2),
                ("log.segment.bytes", Some("200"), 3),
                ("log.segment.bytes", Some("300"), 4),
                ("log.segment.bytes", Some("1073741824"), 5),
            ]
        );
        let entries = layers.topic_entries(&BTreeMap::new());
        assert_eq!(
            find(&entries, "segment.bytes").value.as_deref(),
            Some("100"),
            "S-26: the broker's own layer wins"
        );
        let cluster = layers.default_broker_entries();
        assert_eq!(cluster.len(), 1);
        assert_eq!(chain(&cluster[0]), [("log.segment.bytes", Some("200"), 3)]);
        assert_eq!(cluster[0].value.as_deref(), Some("200"));
    }

    #[test]
    fn retention_goes_through_ms_minutes_and_hours() {
        let retention = |pairs: &[(&str, &str)]| {
            let settings = settings(pairs);
            find(&Layers::fixed(&settings).topic_entries(&BTreeMap::new()), "retention.ms").clone()
        };
        // Only the principal name starts the chain: with the hours alone there is none, and the source is the default.
        let hours = retention(&[("log.retention.hours", "2")]);
        assert_eq!(
            (hours.value.as_deref(), hours.source, chain(&hours)),
            (Some("7200000"), Source::Default, vec![])
        );
        let ms = retention(&[("log.retention.hours", "2"), ("log.retention.ms", "5")]);
        assert_eq!((ms.value.as_deref(), ms.source), (Some("5"), Source::Static));
        assert_eq!(
            chain(&ms),
            [
                ("log.retention.ms", Some("5"), 4),
                ("log.retention.hours", Some("2"), 4),
                ("log.retention.hours", Some("168"), 5),
            ]
        );
        let settings = settings(&[("log.retention.ms", "5")]);
        let hours = find(&Layers::fixed(&settings).broker_entries(), "log.retention.hours").clone();
        assert_eq!(chain(&hours), [("log.retention.hours", Some("168"), 5)]);
    }

    #[test]
    fn every_topic_key_is_told_with_kafkas_default() {
        let settings = Settings::default();
        let entries = Layers::fixed(&settings).topic_entries(&map(&[("custom.key", "x")]));
        assert_eq!(entries.len(), keys::topic_keys().count() + 1);
        for key in keys::topic_keys() {
            let entry = find(&entries, key.name);
            assert_eq!(entry.value.as_deref(), Some(key.default), "{}", key.name);
            assert_eq!(
                (entry.source, entry.is_read_only, entry.is_sensitive),
                (Source::Default, false, false)
            );
        }
        let custom = find(&entries, "custom.key");
        assert_eq!((custom.value.as_deref(), custom.is_sensitive, custom.kind), (None, true, None));
        assert!(entries.is_sorted_by(|a, b| a.name < b.name));
    }

    /// Statement 85 of protocol.md 5.
    #[test]
    fn a_password_is_null_and_sensitive_also_in_its_synonyms() {
        let settings = settings(&[("password.encoder.secret", "hunter2"), ("log.cleaner.threads", "2")]);
        let entries = Layers::fixed(&settings).broker_entries();
        let secret = find(&entries, "password.encoder.secret");
        assert_eq!(
            (secret.value.as_deref(), secret.is_sensitive, secret.source),
            (None, true, Source::Static)
        );
        assert_eq!(chain(secret), [("password.encoder.secret", None, 4)]);
        assert!(!format!("{entries:?}").contains("hunter2"));
        let threads = find(&entries, "log.cleaner.threads");
        assert_eq!((threads.value.as_deref(), threads.is_read_only), (Some("2"), false));
        assert!(find(&entries, "num.partitions").is_read_only);
        assert!(entries.iter().all(|entry| !entry.name.starts_with("storage.") && entry.name != "cores"));
    }

    #[test]
    fn what_kafka_keeps_to_itself_is_told_when_it_is_set() {
        let told = |pairs: &[(&str, &str)], name: &str| {
            let settings = settings(pairs);
            Layers::fixed(&settings).broker_entries().into_iter().find(|entry| entry.name == name)
        };
        for name in ["log.initial.task.delay.ms", "super.users", "allow.everyone.if.no.acl.found"] {
            assert_eq!(told(&[], name), None);
        }
        let delay = told(&[("log.initial.task.delay.ms", "7")], "log.initial.task.delay.ms").unwrap();
        assert_eq!(
            (delay.value.as_deref(), delay.source, delay.is_read_only),
            (Some("7"), Source::Static, true)
        );
        let users = told(&[("super.users", "User:a")], "super.users").unwrap();
        assert_eq!(chain(&users), [("super.users", None, 4)]);
        assert_eq!((users.kind, users.is_sensitive, users.is_read_only), (None, true, true));
        let node = told(&[("broker.id", "3")], "node.id").unwrap();
        assert_eq!(node.value.as_deref(), Some("3"));
        assert_eq!(chain(&node), [("node.id", Some("3"), 4), ("node.id", Some("-1"), 5)]);
    }

    #[test]
    fn a_listeners_own_key_has_the_plain_one_as_synonym() {
        let settings = settings(&[("listener.name.a.max.connections", "7")]);
        let entries = Layers::fixed(&settings).broker_entries();
        let entry = find(&entries, "listener.name.a.max.connections");
        assert_eq!(entry.value.as_deref(), Some("7"));
        assert_eq!(
            chain(entry),
            [("listener.name.a.max.connections", Some("7"), 4), ("max.connections", Some("2147483647"), 5),]
        );
    }
}

//! The table agrees with itself, and with Kafka's.

use std::collections::BTreeSet;

use super::*;
use crate::config::value;

#[test]
fn names_are_unique_and_map_back_from_underscores() {
    let names: Vec<_> = broker_keys().map(|key| key.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    assert!(names.iter().all(|name| !name.contains('_')));
    let topics: Vec<_> = topic_keys().map(|key| key.name).collect();
    assert!(topics.is_sorted());
    assert_eq!(topics.iter().collect::<BTreeSet<_>>().len(), topics.len());
}

#[test]
fn every_default_is_a_value_of_its_key_in_kafkas_spelling() {
    for key in broker_keys() {
        if let Some(default) = key.default {
            let value = value::parse(key.kind, key.range, default);
            assert_eq!(value.map(|v| v.to_string()).as_deref(), Ok(default), "{}", key.name);
        }
    }
    for key in topic_keys() {
        let value = value::parse(key.kind, key.range, key.default);
        assert_eq!(value.map(|v| v.to_string()).as_deref(), Ok(key.default), "{}", key.name);
    }
}

#[test]
fn every_key_says_what_it_does_in_a_sentence() {
    for (name, doc) in broker_keys().map(|k| (k.name, k.doc)).chain(topic_keys().map(|k| (k.name, k.doc))) {
        assert!(doc.len() > 15 && doc.ends_with('.') && !doc.contains("  "), "{name}: {doc}");
    }
    for key in broker_keys() {
        if let Support::NoEffect(why) | Support::Refused(why) = key.support {
            assert!(!why.is_empty() && !why.ends_with('.') && !why.contains("  "), "{}: {why}", key.name);
        }
    }
}

#[test]
fn synonyms_exist_and_agree_with_the_topic_key() {
    for key in topic_keys() {
        for synonym in key.synonyms {
            let broker = broker_key(synonym.name).unwrap();
            if synonym.factor == 1 {
                assert_eq!(broker.kind, key.kind, "{}", key.name);
            }
        }
        if let Some((last, unit)) = key.synonyms.last().map(|s| (broker_key(s.name).unwrap(), s.factor)) {
            let default = last.default.unwrap();
            let default =
                default.parse::<i64>().map_or_else(|_| default.to_owned(), |n| (n * unit).to_string());
            assert_eq!(default, key.default, "{}", key.name);
        }
    }
}

/// The rows of a table whose columns are divided by ` | `.
fn rows<const N: usize>(table: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    table.lines().map(|line| {
        let columns: Vec<_> = line.split(" | ").collect();
        columns.try_into().unwrap_or_else(|_| panic!("{line}"))
    })
}

/// A range as Kafka's validator calls it.
fn validator(range: Range) -> String {
    let list = |texts: &[&str]| format!("[{}]", texts.join(", "));
    match range {
        Range::Any => "-".to_owned(),
        Range::AtLeast(from) => format!("[{from},...]"),
        Range::Between(from, to) => format!("[{from},...,{to}]"),
        Range::BetweenOr(other, from, to) => format!("[{from},...,{to}] or {other}"),
        Range::OneOf(texts) | Range::SubsetOf(texts) => list(texts),
        Range::OneOfAnyCase(texts) => format!("(case insensitive) {}", list(texts).to_uppercase()),
        Range::ThrottledReplicas => "[partitionId]:[brokerId],[partitionId]:[brokerId],...".to_owned(),
        Range::Release => "release".to_owned(),
    }
}

/// Keys whose range is said otherwise in Kafka: the values that it allows are the same where no reason is given.
const RANGES_APART: [(&str, &str); 14] = [
    ("authorizer.class.name", "no text is null here"),
    ("controller.quorum.bootstrap.servers", "refused, and so is every text"),
    ("controller.quorum.voters", "refused, and so is every text"),
    ("metrics.recording.level", "Kafka looks it up at start and fails with another text"),
    ("offsets.commit.required.acks", "Kafka checks it against the number of replicas, at start"),
    ("offsets.topic.compression.codec", "Kafka looks it up at start and fails with another text"),
    ("remote.log.manager.copier.thread.pool.size", ""),
    ("remote.log.manager.expiration.thread.pool.size", ""),
    ("remote.log.manager.task.retry.jitter", "0.5 is no whole number; the key is internal and has no effect"),
    ("remote.log.metadata.manager.class.name", "an empty text has no effect here, as every other"),
    ("remote.log.metadata.manager.impl.prefix", "an empty text has no effect here, as every other"),
    ("remote.log.metadata.manager.listener.name", "an empty text has no effect here, as every other"),
    ("remote.log.storage.manager.class.name", "an empty text has no effect here, as every other"),
    ("remote.log.storage.manager.impl.prefix", "an empty text has no effect here, as every other"),
];

/// `kafka_broker.txt` holds what Kafka 3.9.1's `KafkaConfig` defines, as `broker/tests/clients/java/Configs.java` prints
/// it: name, type, default, how it changes at run time, whether it is internal, range.
#[test]
fn the_broker_keys_are_kafkas() {
    let ours: BTreeSet<_> = broker_keys()
        .filter(|key| matches!(key.origin, Origin::Kafka | Origin::KafkaInternal))
        .map(|key| key.name)
        .collect();
    let kafkas: BTreeSet<_> = rows::<6>(include_str!("kafka_broker.txt")).map(|[name, ..]| name).collect();
    assert_eq!(ours.difference(&kafkas).collect::<Vec<_>>(), Vec::<&&str>::new(), "no keys of Kafka's");
    assert_eq!(kafkas.difference(&ours).collect::<Vec<_>>(), Vec::<&&str>::new(), "missing");
    for [name, kind, default, dynamic, origin, range] in rows(include_str!("kafka_broker.txt")) {
        let key = broker_key(name).unwrap();
        assert_eq!(format!("{:?}", key.kind), kind, "{name}");
        assert_eq!(key.default.unwrap_or("null"), default, "{name}");
        assert_eq!(format!("{:?}", key.dynamic), dynamic, "{name}");
        assert_eq!(format!("{:?}", key.origin), origin, "{name}");
        if !RANGES_APART.iter().any(|(apart, _)| *apart == name) {
            assert_eq!(validator(key.range), range, "{name}");
        }
    }
}

/// `kafka_topic.txt` holds what Kafka 3.9.1's `LogConfig` defines: name, type, default, the broker keys that stand in
/// for it with the milliseconds of their unit, range.
#[test]
fn the_topic_keys_are_kafkas() {
    assert_eq!(rows::<5>(include_str!("kafka_topic.txt")).count(), topic_keys().count());
    for [name, kind, default, synonyms, range] in rows(include_str!("kafka_topic.txt")) {
        let key = topic_key(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(format!("{:?}", key.kind), kind, "{name}");
        assert_eq!(key.default, default, "{name}");
        let ours: Vec<_> = key.synonyms.iter().map(|s| format!("{}*{}", s.name, s.factor)).collect();
        assert_eq!(if ours.is_empty() { "-".to_owned() } else { ours.join(" ") }, synonyms, "{name}");
        assert_eq!(validator(key.range), range, "{name}");
    }
}

#[test]
fn a_listener_may_have_its_own_limits_and_protection_only() {
    assert_eq!(listener_key("listener.name.external.max.connections").unwrap().key.name, "max.connections");
    assert_eq!(listener_key("listener.name.a.ssl.keystore.location").unwrap().listener, "a");
    let by_mechanism = listener_key("listener.name.a.scram-sha-512.sasl.jaas.config").unwrap();
    assert_eq!(by_mechanism.key.name, "sasl.jaas.config");
    for bad in
        ["listener.name.a.broker.id", "listener.name.a", "listener.name..max.connections", "max.connections"]
    {
        assert!(listener_key(bad).is_none(), "{bad}");
    }
}

#[test]
fn an_unknown_name_finds_its_neighbour_if_it_has_one() {
    assert_eq!(nearest_broker_key("log.retention.hour"), Some("log.retention.hours"));
    assert_eq!(nearest_broker_key("lisetners"), Some("listeners"));
    assert_eq!(nearest_topic_key("retension.ms"), Some("retention.ms"));
    assert_eq!(nearest_broker_key("completely.unrelated.words"), None);
    assert_eq!(nearest_broker_key(""), None);
    assert_eq!(nearest_broker_key(&"x".repeat(100_000)), None);
}

#[test]
fn edit_distance_counts_single_changes() {
    for (left, right, distance) in
        [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2)]
    {
        assert_eq!(edit_distance(left.as_bytes(), right.as_bytes()), distance, "{left} {right}");
    }
}

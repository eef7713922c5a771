//! The table agrees with itself, and with the sheets.

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

/// The rows of a sheet: `name | kind | default | last column`.
fn rows(sheet: &'static str) -> impl Iterator<Item = [&'static str; 4]> {
    sheet.lines().map(|line| {
        let mut columns = line.split('|').map(str::trim);
        std::array::from_fn(|_| columns.next().unwrap())
    })
}

/// security-admin.md 5.3, storage.md 12.2 and 12.3, replication.md 13, coordinators.md 2.1, 4.2 and 6.1, copied into a
/// file of their own.
#[test]
fn every_broker_key_of_the_sheets_is_here_with_its_default() {
    assert!(rows(include_str!("sheet.txt")).count() >= 174);
    for [name, kind, default, dynamic] in rows(include_str!("sheet.txt")) {
        let key = broker_key(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(format!("{:?}", key.kind), kind, "{name}");
        assert_eq!(key.default.unwrap_or("null"), default, "{name}");
        assert_eq!(format!("{:?}", key.dynamic), dynamic, "{name}");
    }
}

/// storage.md 12.1: each topic key with its default and the first broker key that stands in for it.
#[test]
fn every_topic_key_of_the_sheet_is_here_with_its_default() {
    assert_eq!(rows(include_str!("sheet_topic.txt")).count(), topic_keys().count());
    for [name, kind, default, synonym] in rows(include_str!("sheet_topic.txt")) {
        let key = topic_key(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(format!("{:?}", key.kind), kind, "{name}");
        assert_eq!(key.default, default, "{name}");
        assert_eq!(key.synonyms.first().map_or("-", |first| first.name), synonym, "{name}");
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

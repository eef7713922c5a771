//! Alterations against a simulated store.

use std::future::Future;
use std::path::PathBuf;

use futures_util::FutureExt;

use super::*;
use crate::config::broker::Surroundings;
use crate::config::dynamic::Operation;
use crate::config::settings::Settings;
use crate::store::sim::{SimDisk, SimStore};

const NOW_MS: i64 = 1_700_000_000_000;

/// The simulated disk answers at once.
fn wait<F: Future>(future: F) -> F::Output {
    future.now_or_never().unwrap()
}

fn store() -> SimStore {
    let store = SimDisk::new().start(|| NOW_MS);
    let parents =
        ["/config", "/config/topics", "/config/changes", "/brokers", "/brokers/topics", "/brokers/topics/t"];
    for path in parents.into_iter().chain(["/admin", "/admin/delete_topics"]) {
        wait(store.create(path, None, CreateMode::Persistent)).unwrap();
    }
    store
}

fn broker() -> BrokerConfig {
    let surroundings = Surroundings { local_host: "here".to_owned(), default_log_dir: PathBuf::from("/d") };
    BrokerConfig::new(Settings::default(), &surroundings).unwrap()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn alter(
    store: &SimStore,
    topic: &str,
    alteration: Alteration,
    mode: Mode,
) -> Result<Altered, AlterConfigsError> {
    wait(alter_topic(store, &broker(), &AlterTopic { topic: topic.to_owned(), alteration, mode }))
}

fn set(name: &str, text: &str) -> Alteration {
    let change = Change { name: name.to_owned(), operation: Operation::Set, value: Some(text.to_owned()) };
    Alteration::Change(vec![change])
}

fn stored(store: &SimStore) -> Option<BTreeMap<String, String>> {
    let (data, _) = wait(store.get("/config/topics/t", false)).ok()?;
    Some(znodes::parse_config(data.as_deref()).unwrap())
}

fn announcements(store: &SimStore) -> Vec<String> {
    wait(store.children("/config/changes", false)).unwrap().0
}

#[test]
fn a_change_is_written_announced_and_effective() {
    let store = store();
    let altered = alter(&store, "t", set("retention.ms", "5"), Mode::Apply).unwrap();
    assert_eq!(*altered.overrides, map(&[("retention.ms", "5")]));
    assert_eq!(altered.config.log.retention_ms, 5);
    assert_eq!(stored(&store), Some(map(&[("retention.ms", "5")])));
    assert_eq!(announcements(&store), ["config_change_0000000000"]);
    let (data, _) = wait(store.get("/config/changes/config_change_0000000000", false)).unwrap();
    assert_eq!(data.unwrap(), r#"{"version":2,"entity_path":"topics/t"}"#);
    alter(&store, "t", set("segment.bytes", "1000"), Mode::Apply).unwrap();
    assert_eq!(stored(&store), Some(map(&[("retention.ms", "5"), ("segment.bytes", "1000")])));
}

/// Statement 88 of protocol.md 5; S-24 of security-admin.md.
#[test]
fn replacing_loses_what_is_not_named() {
    let store = store();
    alter(&store, "t", set("retention.ms", "5"), Mode::Apply).unwrap();
    alter(&store, "t", Alteration::Replace(map(&[("segment.bytes", "1000")])), Mode::Apply).unwrap();
    assert_eq!(stored(&store), Some(map(&[("segment.bytes", "1000")])));
    let altered = alter(&store, "t", Alteration::Replace(BTreeMap::new()), Mode::Apply).unwrap();
    assert_eq!(altered.config.log, storage::config::LogConfig::default());
    assert_eq!(stored(&store), Some(BTreeMap::new()));
}

#[test]
fn validating_only_changes_nothing() {
    let store = store();
    let altered = alter(&store, "t", set("retention.ms", "5"), Mode::Validate).unwrap();
    assert_eq!(altered.config.log.retention_ms, 5);
    assert_eq!(stored(&store), None);
    assert_eq!(announcements(&store), Vec::<String>::new());
}

#[test]
fn what_is_not_valid_changes_nothing_and_says_why() {
    let store = store();
    for (name, text, message) in [
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            "retention.ms",
            "abc",
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        ("retention.mss", "1", "Unknown topic config name: retention.mss (did you mean retention.ms?)"),
        (
            "cleanup.policy",
            "shred",
            "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("flush.messages", "0", "Invalid value 0 for configuration flush.messages: Value must be at least 1"),
        (
            "remote.storage.enable",
            "true",
            "Invalid value true for configuration remote.storage.enable: tiered storage is not built",
        ),
    ] {
        let error = alter(&store, "t", set(name, text), Mode::Apply).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert!(matches!(error, AlterConfigsError::Invalid(_)));
    }
    let lags = Alteration::Replace(map(&[("min.compaction.lag.ms", "3"), ("max.compaction.lag.ms", "2")]));
    let error = alter(&store, "t", lags, Mode::Apply).unwrap_err();
    assert_eq!(
        error.to_string(),
        "conflict topic config setting min.compaction.lag.ms (3) > max.compaction.lag.ms (2)"
    );
    let append =
        Change { name: "retention.ms".to_owned(), operation: Operation::Append, value: Some("1".to_owned()) };
    let error = alter(&store, "t", Alteration::Change(vec![append]), Mode::Apply).unwrap_err();
    assert!(matches!(error, AlterConfigsError::Change(ChangeError::NotList { .. })));
    assert_eq!(stored(&store), None);
    // What is refused at other values may be set to its default.
    alter(&store, "t", set("remote.storage.enable", "false"), Mode::Apply).unwrap();
}

#[test]
fn a_topic_that_is_missing_or_being_deleted_is_unknown() {
    let store = store();
    let unknown = |topic: &str| Err(AlterConfigsError::UnknownTopic(topic.to_owned()));
    assert_eq!(alter(&store, "u", set("retention.ms", "5"), Mode::Apply), unknown("u"));
    wait(store.create("/admin/delete_topics/t", None, CreateMode::Persistent)).unwrap();
    assert_eq!(alter(&store, "t", set("retention.ms", "5"), Mode::Apply), unknown("t"));
}

#[test]
fn malformed_overrides_are_not_built_upon_but_may_be_replaced() {
    let store = store();
    wait(store.create("/config/topics/t", Some(Bytes::from_static(b"{")), CreateMode::Persistent)).unwrap();
    let error = alter(&store, "t", set("retention.ms", "5"), Mode::Apply).unwrap_err();
    assert_eq!(error, AlterConfigsError::Malformed("t".to_owned()));
    alter(&store, "t", Alteration::Replace(map(&[("retention.ms", "5")])), Mode::Apply).unwrap();
    assert_eq!(stored(&store), Some(map(&[("retention.ms", "5")])));
}

#[test]
fn two_writers_lose_nothing_of_each_other() {
    let disk = SimDisk::new();
    let store = disk.start(|| NOW_MS);
    for path in
        ["/config", "/config/topics", "/config/changes", "/brokers", "/brokers/topics", "/brokers/topics/t"]
    {
        wait(store.create(path, None, CreateMode::Persistent)).unwrap();
    }
    let config = broker();
    let wish = |alteration| AlterTopic { topic: "t".to_owned(), alteration, mode: Mode::Apply };
    let (one, two) = (wish(set("retention.ms", "5")), wish(set("segment.bytes", "1000")));
    let both = async {
        futures_util::join!(alter_topic(&store, &config, &one), alter_topic(&store, &config, &two),)
    };
    let (first, second) = wait(both);
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(stored(&store), Some(map(&[("retention.ms", "5"), ("segment.bytes", "1000")])));
    assert_eq!(announcements(&store).len(), 2);
}

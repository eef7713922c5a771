//! Announcements of changed configs (zookeeper.md 8): watches the queue in the metadata store and has this broker read
//! anew what each names. One task on shard 0; knows neither who announced nor what changed.

use std::collections::BTreeSet;

use protocol::types::TopicName;

use crate::store::{Expected, MetadataStore, StoreError, StoreEvent, znodes};

/// Milliseconds that an announcement stays.
const ANNOUNCEMENT_MS: i64 = 15 * 60 * 1000;

/// Follows the queue until the store is closed. `topic_changed` is told each topic whose overrides may have changed, at
/// start those of every announcement that is still there. `store` is a handle of its own ([`MetadataStore::fork`]),
/// `wall_ms` the clock.
///
/// Dropping the future leaves nothing behind: a later one begins with all announcements again.
pub async fn follow<S: MetadataStore>(
    store: S,
    wall_ms: impl Fn() -> i64,
    topic_changed: impl Fn(&TopicName),
) {
    let mut applied = -1;
    loop {
        if let Err(error) = scan(&store, wall_ms(), &mut applied, &topic_changed).await {
            tracing::warn!(%error, "announcements of changed configs cannot be read; tried again when there are more");
        }
        loop {
            match store.next_event().await {
                Some(StoreEvent::ChildrenChanged(_) | StoreEvent::Connected { .. }) => break,
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// Applies every announcement above the mark, several of one topic once, and removes old ones.
async fn scan<S: MetadataStore>(
    store: &S,
    wall_ms: i64,
    applied: &mut i64,
    topic_changed: &impl Fn(&TopicName),
) -> Result<(), StoreError> {
    let (names, _) = store.children(znodes::CONFIG_CHANGES, true).await?;
    let mut topics = BTreeSet::new();
    for name in &names {
        let Some(number) = name.strip_prefix("config_change_").and_then(|digits| digits.parse::<i64>().ok())
        else {
            continue;
        };
        if number <= *applied {
            continue;
        }
        let path = format!("{}/{name}", znodes::CONFIG_CHANGES);
        let data = match store.get(&path, false).await {
            Ok((data, _)) => data,
            Err(StoreError::NoNode) => None,
            Err(error) => return Err(error),
        };
        *applied = number;
        // Other entities change nothing here yet; what cannot be read is skipped, as Kafka skips it.
        match znodes::parse_config_change(data.as_deref().unwrap_or_default()) {
            Ok(entity) => topics.extend(entity.strip_prefix("topics/").map(TopicName::new)),
            Err(error) => tracing::warn!(announcement = name, %error, "an announcement cannot be read"),
        }
    }
    for topic in &topics {
        topic_changed(topic);
    }
    purge(store, &names, wall_ms).await
}

/// Removes announcements older than 15 minutes. They are looked at from the oldest to the first that stays, so that the
/// work is that of the removals.
async fn purge<S: MetadataStore>(store: &S, names: &[String], wall_ms: i64) -> Result<(), StoreError> {
    for name in names {
        let path = format!("{}/{name}", znodes::CONFIG_CHANGES);
        let Some(stat) = store.exists(&path, false).await? else { continue };
        if wall_ms.saturating_sub(stat.ctime_ms) < ANNOUNCEMENT_MS {
            break;
        }
        match store.delete(&path, Expected::Any).await {
            Ok(()) | Err(StoreError::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::Future;
    use std::rc::Rc;

    use bytes::Bytes;
    use futures_util::FutureExt;

    use super::*;
    use crate::store::CreateMode;
    use crate::store::sim::{SimDisk, SimStore};

    const NOW_MS: i64 = 1_700_000_000_000;

    /// The simulated disk answers at once.
    fn wait<F: Future>(future: F) -> F::Output {
        future.now_or_never().unwrap()
    }

    fn store(clock: &Rc<Cell<i64>>) -> SimStore {
        let clock = clock.clone();
        let store = SimDisk::new().start(move || clock.get());
        for path in ["/config", "/config/changes"] {
            wait(store.create(path, None, CreateMode::Persistent)).unwrap();
        }
        store
    }

    fn announce(store: &SimStore, data: &[u8]) {
        let data = Some(Bytes::copy_from_slice(data));
        wait(store.create("/config/changes/config_change_", data, CreateMode::PersistentSequential)).unwrap();
    }

    #[test]
    fn each_announced_topic_is_told_once_a_scan_and_what_is_odd_is_skipped() {
        let clock = Rc::new(Cell::new(NOW_MS));
        let store = store(&clock);
        let told = RefCell::new(Vec::new());
        for topic in ["b", "a", "b"] {
            announce(&store, &znodes::print_config_change(&format!("topics/{topic}")));
        }
        announce(&store, b"not json");
        announce(&store, &znodes::print_config_change("brokers/1"));
        let follow = follow(store.fork(), || NOW_MS, |topic| told.borrow_mut().push(topic.to_string()));
        let mut follow = std::pin::pin!(follow);
        assert!(follow.as_mut().now_or_never().is_none(), "it waits for more");
        assert_eq!(told.take(), ["a", "b"]);
        announce(&store, &znodes::print_config_change("topics/c"));
        assert!(follow.as_mut().now_or_never().is_none());
        assert_eq!(told.take(), ["c"], "only what is new");
        announce(&store, &znodes::print_config_change("topics/a"));
        assert!(follow.as_mut().now_or_never().is_none());
        assert_eq!(told.take(), ["a"]);
    }

    /// Controller.md 18, 33.
    #[test]
    fn what_is_announced_during_a_scan_is_told_by_the_next() {
        let store = store(&Rc::new(Cell::new(NOW_MS)));
        let told = RefCell::new(Vec::new());
        announce(&store, &znodes::print_config_change("topics/0"));
        let follow = follow(
            store.fork(),
            || NOW_MS,
            |topic| {
                let number = told.borrow().len() + 1;
                told.borrow_mut().push(topic.to_string());
                if number < 5 {
                    announce(&store, &znodes::print_config_change(&format!("topics/{number}")));
                }
            },
        );
        assert!(follow.now_or_never().is_none());
        assert_eq!(told.take(), ["0", "1", "2", "3", "4"]);
    }

    #[test]
    fn announcements_older_than_fifteen_minutes_go() {
        let clock = Rc::new(Cell::new(NOW_MS));
        let store = store(&clock);
        for minutes in [0, 1, 10] {
            clock.set(NOW_MS + minutes * 60_000);
            announce(&store, &znodes::print_config_change("topics/t"));
        }
        let follow = follow(store.fork(), || NOW_MS + 16 * 60_000, |_| {});
        assert!(follow.now_or_never().is_none());
        let (names, _) = wait(store.children("/config/changes", false)).unwrap();
        assert_eq!(names, ["config_change_0000000002"]);
    }
}

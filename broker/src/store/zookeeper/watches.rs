//! Which handle watches what, and what it had seen when it began to: a watch outlives the connection on which the server
//! keeps it, so after each new connection what changed meanwhile is told from here (zookeeper.md 13 (c), 15). Pure.

use std::collections::BTreeMap;

use super::HandleId;
use crate::store::StoreEvent;

/// What a watch covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Creation, data and deletion.
    Data,
    /// The set of children, and deletion.
    Children,
}

/// One node, watched in one way.
pub(super) type Key = (String, Kind);

/// State of a node as a watcher knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// There was none.
    Absent,
    /// There was one, last changed in this transaction: its data, or its children, as the kind is.
    At(i64),
}

/// What the server tells of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It came into being.
    Created,
    /// It was deleted.
    Deleted,
    /// Its data was set.
    Data,
    /// Its set of children changed.
    Children,
}

impl Change {
    /// What is told to a handle.
    pub(super) fn event(self, path: String) -> StoreEvent {
        match self {
            Self::Created => StoreEvent::NodeCreated(path),
            Self::Deleted => StoreEvent::NodeDeleted(path),
            Self::Data => StoreEvent::DataChanged(path),
            Self::Children => StoreEvent::ChildrenChanged(path),
        }
    }

    const fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Created | Self::Data => &[Kind::Data],
            Self::Deleted => &[Kind::Data, Kind::Children],
            Self::Children => &[Kind::Children],
        }
    }
}

/// All watches of a session.
#[derive(Debug, Default)]
pub(super) struct Watches {
    set: BTreeMap<Key, BTreeMap<HandleId, Seen>>,
}

impl Watches {
    /// Notes a watch; whether nobody watched there in this way before, so that the server's watch has to be followed.
    pub(super) fn set(&mut self, key: Key, handle: HandleId, seen: Seen) -> bool {
        let watchers = self.set.entry(key).or_default();
        let is_first = watchers.is_empty();
        watchers.entry(handle).or_insert(seen);
        is_first
    }

    /// A watch fired: who is told, each once, though it watches data and children. Watches fire once.
    pub(super) fn fire(&mut self, path: &str, change: Change) -> Vec<HandleId> {
        let mut who = Vec::new();
        for kind in change.kinds() {
            who.extend(self.set.remove(&(path.to_owned(), *kind)).unwrap_or_default().into_keys());
        }
        who.sort_unstable();
        who.dedup();
        who
    }

    /// What has to be looked at on a new connection.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.set.keys().cloned().collect()
    }

    /// A node was looked at on a new connection: who is told what, and whether somebody still waits there.
    pub(super) fn compare(&mut self, key: &Key, now: Seen) -> (Vec<(HandleId, Change)>, bool) {
        let Some(watchers) = self.set.get_mut(key) else { return (Vec::new(), false) };
        let mut told = Vec::new();
        watchers.retain(|handle, seen| {
            let change = match (*seen, now) {
                (Seen::Absent, Seen::Absent) => None,
                (Seen::Absent, Seen::At(_)) => Some(Change::Created),
                (Seen::At(_), Seen::Absent) => Some(Change::Deleted),
                (Seen::At(before), Seen::At(now)) if before == now => None,
                (Seen::At(_), Seen::At(_)) if key.1 == Kind::Data => Some(Change::Data),
                (Seen::At(_), Seen::At(_)) => Some(Change::Children),
            };
            told.extend(change.map(|change| (*handle, change)));
            change.is_none()
        });
        let is_watched = !watchers.is_empty();
        if !is_watched {
            self.set.remove(key);
        }
        (told, is_watched)
    }

    /// A handle is gone.
    pub(super) fn forget(&mut self, handle: HandleId) {
        self.set.retain(|_, watchers| {
            watchers.remove(&handle);
            !watchers.is_empty()
        });
    }

    /// The session is gone.
    pub(super) fn clear(&mut self) {
        self.set.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(path: &str) -> Key {
        (path.to_owned(), Kind::Data)
    }

    fn children(path: &str) -> Key {
        (path.to_owned(), Kind::Children)
    }

    #[test]
    fn a_deletion_reaches_a_handle_once_though_it_watches_both() {
        let mut watches = Watches::default();
        assert!(watches.set(data("/a"), 1, Seen::At(5)));
        assert!(watches.set(children("/a"), 1, Seen::At(6)));
        assert!(!watches.set(children("/a"), 2, Seen::At(6)));
        assert_eq!(watches.fire("/a", Change::Deleted), [1, 2]);
        assert_eq!(watches.fire("/a", Change::Deleted), [0; 0]);
    }

    #[test]
    fn data_and_children_are_told_apart() {
        let mut watches = Watches::default();
        watches.set(data("/a"), 1, Seen::At(5));
        watches.set(children("/a"), 2, Seen::At(5));
        assert_eq!(watches.fire("/a", Change::Data), [1]);
        assert_eq!(watches.fire("/a", Change::Created), [0; 0]);
        assert_eq!(watches.fire("/a", Change::Children), [2]);
        assert_eq!(watches.keys(), []);
    }

    #[test]
    fn what_changed_without_a_connection_is_told_to_each_by_what_it_had_seen() {
        let mut watches = Watches::default();
        watches.set(data("/a"), 1, Seen::Absent);
        watches.set(data("/a"), 2, Seen::At(5));
        watches.set(data("/a"), 3, Seen::At(7));
        let (told, is_watched) = watches.compare(&data("/a"), Seen::At(7));
        assert_eq!((told, is_watched), (vec![(1, Change::Created), (2, Change::Data)], true));
        assert_eq!(watches.compare(&data("/a"), Seen::At(7)), (vec![], true));
        assert_eq!(watches.compare(&data("/a"), Seen::Absent), (vec![(3, Change::Deleted)], false));
        watches.set(children("/a"), 1, Seen::At(5));
        assert_eq!(watches.compare(&children("/a"), Seen::At(6)), (vec![(1, Change::Children)], false));
        assert_eq!(watches.compare(&children("/a"), Seen::At(6)), (vec![], false));
    }

    #[test]
    fn a_handle_that_is_gone_watches_nothing() {
        let mut watches = Watches::default();
        watches.set(data("/a"), 1, Seen::Absent);
        watches.set(data("/a"), 2, Seen::Absent);
        watches.set(children("/b"), 1, Seen::At(1));
        watches.forget(1);
        assert_eq!(watches.keys(), [data("/a")]);
        watches.clear();
        assert_eq!(watches.keys(), []);
    }
}

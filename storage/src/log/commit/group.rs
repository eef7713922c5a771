//! Group commit (S-34): up to where a log is durable, and what the next sync has to cover. One is under way at a time;
//! whatever was written before it began is released by it, and who came later waits for the next. Pure.

use protocol::types::Offset;

/// A sync to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Everything below is durable.
    pub(crate) from: Offset,
    /// Everything below will be.
    pub(crate) to: Offset,
    /// Whether the names of the directory have to be synced too: a segment is new.
    pub(crate) names: bool,
}

/// What of a log is durable.
#[derive(Clone, Debug)]
pub(crate) struct GroupCommit {
    synced: Offset,
    /// The segments up to the one that begins here have durable names.
    named: Option<Offset>,
    running: Option<Running>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    to: Offset,
    /// Where the newest segment began when the sync did.
    base: Offset,
    names: bool,
}

impl GroupCommit {
    /// A log of which everything below `synced` is durable, and nothing is known of its names.
    pub(crate) const fn new(synced: Offset) -> Self {
        Self { synced, named: None, running: None }
    }

    /// Everything below is durable.
    pub(crate) const fn synced(&self) -> Offset {
        self.synced
    }

    /// Begins a sync of what is written; `None` if there is nothing to sync, or one is under way.
    pub(crate) fn begin(&mut self, written: Offset, active_base: Offset) -> Option<Commit> {
        if self.running.is_some() || self.synced >= written {
            return None;
        }
        let names = self.named.is_none_or(|named| named < active_base);
        self.running = Some(Running { to: written, base: active_base, names });
        Some(Commit { from: self.synced, to: written, names })
    }

    /// The sync under way has succeeded; answers what is durable now if that is more than before.
    pub(crate) fn succeeded(&mut self) -> Option<Offset> {
        let Running { to, base, names } = self.running.take()?;
        if names {
            self.named = self.named.max(Some(base));
        }
        self.grow(to)
    }

    /// A flush has made everything below `to` durable, and the names of the segments up to `base`.
    pub(crate) fn flushed(&mut self, to: Offset, base: Offset) -> Option<Offset> {
        self.named = self.named.max(Some(base));
        self.grow(to)
    }

    /// The log was cut; its last segment begins at `base`. A sync under way covers no more than what was left: what comes
    /// in the place of the rest was not written when it began.
    pub(crate) fn cut(&mut self, to: Offset, base: Offset) {
        self.synced = self.synced.min(to);
        self.named = self.named.map(|named| named.min(base));
        if let Some(running) = &mut self.running {
            running.to = running.to.min(to);
            running.base = running.base.min(base);
        }
    }

    /// The log began anew at `at`, durably. What a sync under way covers is gone.
    pub(crate) fn restarted(&mut self, at: Offset) {
        (self.synced, self.named) = (at, Some(at));
        if let Some(running) = &mut self.running {
            (running.to, running.base) = (at, at);
        }
    }

    fn grow(&mut self, to: Offset) -> Option<Offset> {
        if to <= self.synced {
            return None;
        }
        self.synced = to;
        Some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(raw: i64) -> Offset {
        Offset::new(raw)
    }

    fn new() -> GroupCommit {
        let mut commits = GroupCommit::new(offset(0));
        commits.flushed(offset(0), offset(0));
        commits
    }

    #[test]
    fn one_sync_releases_all_that_was_written_before_it_and_nothing_that_came_later() {
        let mut commits = new();
        assert_eq!(commits.begin(offset(0), offset(0)), None);
        let first = commits.begin(offset(5), offset(0)).unwrap();
        assert_eq!((first.from, first.to, first.names), (offset(0), offset(5), false));
        assert_eq!(commits.begin(offset(9), offset(0)), None, "one at a time");
        assert_eq!((commits.synced(), commits.succeeded()), (offset(0), Some(offset(5))));
        let second = commits.begin(offset(9), offset(0)).unwrap();
        assert_eq!((second.from, second.to), (offset(5), offset(9)));
        assert_eq!(commits.flushed(offset(7), offset(0)), Some(offset(7)));
        assert_eq!(commits.succeeded(), Some(offset(9)));
        assert_eq!((commits.begin(offset(9), offset(0)), commits.succeeded()), (None, None));
    }

    #[test]
    fn the_names_of_a_new_segment_are_synced_once() {
        let mut commits = GroupCommit::new(offset(0));
        assert!(commits.begin(offset(1), offset(0)).unwrap().names, "nothing is known after a load");
        commits.succeeded();
        assert!(!commits.begin(offset(2), offset(0)).unwrap().names);
        // A roll comes while it runs: its names are none of this sync.
        commits.succeeded();
        assert!(commits.begin(offset(5), offset(4)).unwrap().names);
        commits.succeeded();
        assert!(!commits.begin(offset(6), offset(4)).unwrap().names);
        commits.cut(offset(3), offset(0));
        assert_eq!(commits.succeeded(), None, "what it covered is cut");
        assert_eq!(commits.synced(), offset(3));
        assert!(commits.begin(offset(5), offset(4)).unwrap().names, "the next segment is another one");
    }

    #[test]
    fn what_takes_the_place_of_what_was_cut_is_not_covered() {
        let mut commits = new();
        commits.begin(offset(8), offset(0));
        commits.cut(offset(3), offset(0));
        assert_eq!(commits.succeeded(), Some(offset(3)));
        commits.begin(offset(8), offset(0));
        commits.restarted(offset(20));
        assert_eq!((commits.succeeded(), commits.synced()), (None, offset(20)));
        assert_eq!(commits.begin(offset(21), offset(20)).map(|commit| commit.names), Some(false));
    }
}

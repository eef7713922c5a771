//! What becomes of a broker whose log dirs fail (storage.md 8.4). Pure: the shards report, this decides, [`super`] does.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::super::ask::DirFailure;

/// Why the process has to end at once. Nothing may be written or acknowledged any more, so there is no clean stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// No log dir is left.
    #[error(
        "{} was the last log directory in service and has failed: {}; ending at once, the next start recovers",
        .0.dir.display(),
        .0.cause
    )]
    LastDir(DirFailure),
    /// What the broker knows of the cluster cannot be written any more.
    #[error("{} holds the metadata store and has failed: {}; ending at once, the next start recovers", .0.dir.display(), .0.cause)]
    MetadataDir(DirFailure),
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// End the process; what follows is for a driver that cannot.
    Halt(Halt),
    /// Take the dir out of service on every shard, and write nothing in it any more.
    TakeOffline(DirFailure),
}

/// The log dirs of this broker.
#[derive(Clone, Debug)]
pub struct LogDirs {
    live: BTreeSet<Arc<Path>>,
    metadata: Option<Arc<Path>>,
}

impl LogDirs {
    /// All of them live. `metadata` is the one that holds the metadata store, if one does.
    pub fn new(dirs: impl IntoIterator<Item = Arc<Path>>, metadata: Option<Arc<Path>>) -> Self {
        Self { live: dirs.into_iter().collect(), metadata }
    }

    /// Takes a shard's report. A dir fails once, whoever reports it; it is not live again before a restart.
    pub fn failed(&mut self, failure: DirFailure, out: &mut Vec<Action>) {
        if !self.live.remove(&failure.dir) {
            return;
        }
        if self.live.is_empty() {
            out.push(Action::Halt(Halt::LastDir(failure.clone())));
        } else if self.metadata.as_ref() == Some(&failure.dir) {
            out.push(Action::Halt(Halt::MetadataDir(failure.clone())));
        }
        out.push(Action::TakeOffline(failure));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(dir: &str, cause: &str) -> DirFailure {
        DirFailure { dir: Path::new(dir).into(), cause: cause.into() }
    }

    fn failed(dirs: &mut LogDirs, failure: DirFailure) -> Vec<Action> {
        let mut out = Vec::new();
        dirs.failed(failure, &mut out);
        out
    }

    fn three(metadata: Option<&str>) -> LogDirs {
        LogDirs::new(
            ["/a", "/b", "/c"].map(|dir| Path::new(dir).into()),
            metadata.map(|dir| Path::new(dir).into()),
        )
    }

    #[test]
    fn a_dir_goes_offline_once_and_the_last_one_ends_the_process() {
        let mut dirs = three(None);
        let first = failure("/b", "write failed");
        assert_eq!(failed(&mut dirs, first.clone()), [Action::TakeOffline(first)]);
        assert_eq!(failed(&mut dirs, failure("/b", "and another shard saw it too")), []);
        assert_eq!(failed(&mut dirs, failure("/elsewhere", "no dir of ours")), []);
        assert_eq!(failed(&mut dirs, failure("/a", "read failed")).len(), 1);
        let last = failure("/c", "sync /c/t-0/00000000000000000000.log: Input/output error (os error 5)");
        let actions = failed(&mut dirs, last.clone());
        assert_eq!(actions, [Action::Halt(Halt::LastDir(last.clone())), Action::TakeOffline(last.clone())]);
        assert_eq!(
            Halt::LastDir(last).to_string(),
            "/c was the last log directory in service and has failed: sync /c/t-0/00000000000000000000.log: \
             Input/output error (os error 5); ending at once, the next start recovers"
        );
    }

    #[test]
    fn the_dir_of_the_metadata_store_ends_the_process_though_others_are_left() {
        let mut dirs = three(Some("/a"));
        let other = failure("/c", "read failed");
        assert_eq!(failed(&mut dirs, other.clone()), [Action::TakeOffline(other)]);
        let metadata = failure("/a", "read failed");
        let halted = Action::Halt(Halt::MetadataDir(metadata.clone()));
        assert_eq!(failed(&mut dirs, metadata.clone()), [halted, Action::TakeOffline(metadata)]);
    }
}

//! The log dirs of a broker as all its shards see them: which have failed, how many logs each has, what is appended there.
//! Immutable but for counters, which clones share. A new log goes where there are the fewest, as in Kafka.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::space::Appended;
use crate::metrics::state::LogDirState;

/// The log dirs, in the order of `log.dirs`.
#[derive(Clone, Debug)]
pub struct LogDirTable(Arc<[Row]>);

#[derive(Debug)]
struct Row {
    path: Arc<Path>,
    appended: Appended,
    logs: AtomicU64,
    state: LogDirState,
}

impl LogDirTable {
    /// All of them in service, without logs.
    pub fn new(paths: impl IntoIterator<Item = Arc<Path>>) -> Self {
        let row = |path: Arc<Path>| Row {
            state: LogDirState::new(path.to_string_lossy().into()),
            path,
            appended: Appended::default(),
            logs: AtomicU64::new(0),
        };
        Self(paths.into_iter().map(row).collect())
    }

    /// All of them, failed ones too.
    pub fn paths(&self) -> impl Iterator<Item = &Arc<Path>> {
        self.0.iter().map(|row| &row.path)
    }

    /// Those in service.
    pub fn live(&self) -> impl Iterator<Item = &Arc<Path>> {
        self.0.iter().filter(|row| !row.is_offline()).map(|row| &row.path)
    }

    /// Whether this is one of them.
    pub fn has(&self, dir: &Path) -> bool {
        self.row(dir).is_some()
    }

    /// Whether it has failed.
    pub fn is_offline(&self, dir: &Path) -> bool {
        self.row(dir).is_some_and(Row::is_offline)
    }

    /// Whether any of them has failed: what is not found may be there.
    pub fn has_offline(&self) -> bool {
        self.0.iter().any(Row::is_offline)
    }

    /// It has failed, until a restart.
    pub fn set_offline(&self, dir: &Path) {
        if let Some(row) = self.row(dir) {
            row.state.set_offline();
        }
    }

    /// Their states, for whoever tells of them.
    pub fn states(&self) -> Vec<LogDirState> {
        self.0.iter().map(|row| row.state.clone()).collect()
    }

    /// What all shards append there.
    pub fn appended(&self, dir: &Path) -> Appended {
        self.row(dir).map(|row| row.appended.clone()).unwrap_or_default()
    }

    /// Counts a log that is there, or is to be.
    pub fn count(&self, dir: &Path) {
        if let Some(row) = self.row(dir) {
            row.logs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Such a log is gone.
    pub fn uncount(&self, dir: &Path) {
        if let Some(row) = self.row(dir) {
            let fewer = |logs: u64| Some(logs.saturating_sub(1));
            // Always done: the function answers always.
            let _ = row.logs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
    }

    /// The dir for a new log, which counts there from now on: that with the fewest, of several the first; `None` if none is
    /// in service. Two shards that ask at once do not get the same one by the same count.
    pub fn choose(&self) -> Option<Arc<Path>> {
        loop {
            let live = self.0.iter().filter(|row| !row.is_offline());
            let (row, logs) =
                live.map(|row| (row, row.logs.load(Ordering::Relaxed))).min_by_key(|(_, logs)| *logs)?;
            let more = logs.saturating_add(1);
            if row.logs.compare_exchange(logs, more, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Some(row.path.clone());
            }
        }
    }

    fn row(&self, dir: &Path) -> Option<&Row> {
        self.0.iter().find(|row| *row.path == *dir)
    }
}

impl Row {
    fn is_offline(&self) -> bool {
        self.state.is_offline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> LogDirTable {
        LogDirTable::new(["/a", "/b", "/c"].map(|dir| Path::new(dir).into()))
    }

    fn choose(table: &LogDirTable, count: usize) -> Vec<String> {
        (0..count).map(|_| table.choose().unwrap().display().to_string()).collect()
    }

    #[test]
    fn a_new_log_goes_where_there_are_the_fewest_and_of_several_to_the_first() {
        let table = table();
        assert_eq!(choose(&table, 4), ["/a", "/b", "/c", "/a"]);
        table.count(Path::new("/b"));
        assert_eq!(choose(&table, 2), ["/c", "/a"]);
        table.uncount(Path::new("/b"));
        table.uncount(Path::new("/b"));
        table.uncount(Path::new("/b"));
        assert_eq!(choose(&table.clone(), 3), ["/b", "/b", "/b"], "clones share the counts");
        table.count(Path::new("/elsewhere"));
    }

    #[test]
    fn a_dir_that_has_failed_gets_no_log() {
        let table = table();
        table.set_offline(Path::new("/a"));
        assert!(
            table.has_offline() && table.is_offline(Path::new("/a")) && !table.is_offline(Path::new("/b"))
        );
        assert_eq!(choose(&table, 3), ["/b", "/c", "/b"]);
        assert_eq!(table.live().count(), 2);
        assert!(table.has(Path::new("/a")) && !table.has(Path::new("/d")));
        table.set_offline(Path::new("/b"));
        table.set_offline(Path::new("/c"));
        assert_eq!(table.choose(), None);
    }
}

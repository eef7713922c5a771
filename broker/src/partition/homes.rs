//! Where the logs of a shard are (storage.md 1.1, 8.4): the log dirs and what was found in them at start, in which of them a
//! partition is, and where a new one goes: where somebody wished it to be, else where there are the fewest. What is not
//! found while a dir is out of service may be there, and is only made anew if the controller calls it new. Used by
//! `lifecycle` and `moves`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use protocol::types::{Offset, TopicPartition};
use storage::io::{DirOp, Runtime};
use storage::lock::DirLock;
use storage::log::TailBudget;
use storage::names;

use super::ask::BecomeError;
use super::cleaner::CleanerRounds;
use super::log_dirs::table::LogDirTable;
use super::service::PartitionService;

/// Wishes for partitions that are not here that are remembered; older ones give way.
const WISHES_MAX: usize = 10_000;

/// What the checkpoint files said at start, of the partitions that had a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoints {
    /// `recovery-point-offset-checkpoint`.
    pub recovery_points: BTreeMap<TopicPartition, Offset>,
    /// `log-start-offset-checkpoint`.
    pub log_start_offsets: BTreeMap<TopicPartition, Offset>,
    /// `replication-offset-checkpoint`.
    pub high_watermarks: BTreeMap<TopicPartition, Offset>,
    /// `cleaner-offset-checkpoint`.
    pub cleaner_offsets: BTreeMap<TopicPartition, Offset>,
}

/// A log dir that was opened; it is locked, and its clean-shutdown marker gone (S-6).
#[derive(Clone)]
pub struct LogHome {
    /// The log dir.
    pub dir: Arc<Path>,
    /// Whether the last stop was clean.
    pub clean: bool,
    /// The lock of the dir, which says whether what the kernel holds may be believed; none in simulations.
    pub lock: Option<Arc<DirLock>>,
    /// What the checkpoint files said.
    pub checkpoints: Arc<Checkpoints>,
    /// Targets of moves into this dir that were cut short.
    pub futures: Arc<BTreeMap<TopicPartition, PathBuf>>,
}

/// Where the logs of a shard are.
#[derive(Clone)]
pub struct LogHomes {
    /// The log dirs that could be opened, in the order of `log.dirs`.
    pub homes: Vec<LogHome>,
    /// All log dirs.
    pub table: LogDirTable,
    /// Memory for the newest batches of the shard's logs.
    pub tail: Rc<TailBudget>,
    /// The compactions of all shards.
    pub cleaner_rounds: CleanerRounds,
}

impl LogHomes {
    /// A log dir that was opened.
    pub(super) fn get(&self, dir: &Path) -> Option<&LogHome> {
        self.homes.iter().find(|home| *home.dir == *dir)
    }

    /// Whether a log dir could not be opened at the start: nobody knows what is in it.
    pub(super) fn lacks_one(&self) -> bool {
        self.homes.len() < self.table.paths().count()
    }

    /// The only log dir that there is.
    fn only(&self) -> Option<&LogHome> {
        let mut paths = self.table.paths();
        match (paths.next(), paths.next()) {
            (Some(only), None) => self.get(only),
            _ => None,
        }
    }
}

/// What was decided and wished of partitions that are not open.
#[derive(Default)]
pub(super) struct Choices {
    /// The dir of a log that is to be made, until it is open.
    chosen: RefCell<BTreeMap<TopicPartition, Arc<Path>>>,
    /// Where a partition is to be made one day, as AlterReplicaLogDirs said.
    wished: RefCell<BTreeMap<TopicPartition, Arc<Path>>>,
}

impl Choices {
    /// Remembers where a partition that is not here is to be made.
    pub(super) fn wish(&self, name: TopicPartition, dir: Arc<Path>) {
        let mut wished = self.wished.borrow_mut();
        if wished.len() >= WISHES_MAX && !wished.contains_key(&name) {
            wished.pop_first();
        }
        wished.insert(name, dir);
    }

    /// A log is in this dir, whatever else has its name.
    pub(super) fn is_in(&self, name: TopicPartition, dir: Arc<Path>) {
        self.chosen.borrow_mut().insert(name, dir);
    }

    /// The log is open.
    pub(super) fn settled(&self, name: &TopicPartition) {
        self.chosen.borrow_mut().remove(name);
    }

    /// The log will not be made; the dir that was to have it.
    pub(super) fn give_up(&self, name: &TopicPartition) -> Option<Arc<Path>> {
        self.chosen.borrow_mut().remove(name)
    }
}

impl<R: Runtime> PartitionService<R> {
    /// The log dir in service that holds the directory of a partition.
    pub(super) async fn find_home(&self, name: &TopicPartition) -> Option<Arc<Path>> {
        for home in &self.0.lifecycle.homes().homes {
            if self.0.hub.failures.is_failed(&home.dir) {
                continue;
            }
            let path = home.dir.join(names::partition_dir(name));
            match self.runtime().dir(DirOp::Stat(path)).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // What cannot be looked at cannot be opened either, where it is said.
                Ok(_) | Err(_) => return Some(home.dir.clone()),
            }
        }
        None
    }

    /// Where the log of a partition is to be opened, or made.
    ///
    /// # Errors
    /// It may be in a dir that is out of service, or no dir is left.
    pub(super) async fn home_for(&self, name: &TopicPartition, is_new: bool) -> Result<LogHome, BecomeError> {
        let homes = self.0.lifecycle.homes();
        if let Some(only) = homes.only() {
            return Ok(only.clone());
        }
        let chosen = self.0.lifecycle.choices.chosen.borrow().get(name).cloned();
        let dir = match chosen {
            Some(dir) => Some(dir),
            None => match self.find_home(name).await {
                Some(dir) => Some(dir),
                None if homes.table.has_offline() && !is_new => None,
                None => self.choose(name),
            },
        };
        dir.and_then(|dir| homes.get(&dir).cloned()).ok_or(BecomeError::Storage)
    }

    fn choose(&self, name: &TopicPartition) -> Option<Arc<Path>> {
        let (table, choices) = (self.0.lifecycle.table(), &self.0.lifecycle.choices);
        let wished = choices.wished.borrow_mut().remove(name).filter(|dir| !table.is_offline(dir));
        let dir = match wished {
            Some(dir) => {
                table.count(&dir);
                dir
            }
            None => table.choose()?,
        };
        choices.chosen.borrow_mut().insert(name.clone(), dir.clone());
        Some(dir)
    }
}

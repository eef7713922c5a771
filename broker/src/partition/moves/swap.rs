//! The moment in which a copy takes the place of the log it was made of. Appends wait, and so does who reads. In order: the
//! copy is closed, everything of it durable; it gets the replica's name; the old log lets go of its files, and its directory
//! counts as deleted; the copy is opened under its new name. What a crash leaves at any point the next start brings to one
//! of both ends (`storage::log_dir::moves`).

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use storage::io::{DirOp, Runtime, heals, is_full};
use storage::log::{Log, LogError, OpenOptions};
use storage::log_dir::{self, moves as dirs};
use storage::names;

use super::Move;
use super::machine::Event;
use crate::partition::replica::Partition;
use crate::partition::service::PartitionService;

impl<R: Runtime> PartitionService<R> {
    /// Swaps; the copy has everything, and nobody appends.
    pub(super) async fn swap(&self, moving: &Rc<Move<R>>, copy: &Log<R>) -> Event {
        let partition = &moving.partition;
        let source = partition.log();
        if copy.log_end_offset() != source.log_end_offset() {
            // A full disk has cut it back meanwhile, or a client has deleted everything.
            return Event::Copied { bytes: 0, is_all: false };
        }
        match copy.close().await {
            Ok(()) => {}
            Err(LogError::Full | LogError::Exhausted) => return Event::NoRoom,
            Err(LogError::Offline { .. } | LogError::Closed) => return Event::Failed,
        }
        // While the copy was closed its log may have failed, or the topic was deleted.
        if let Some(end) = moving.stop.get() {
            return Event::Stop(end);
        }
        let promoted = dirs::promote(self.runtime(), &moving.to, &moving.path, &partition.name).await;
        let path = match promoted {
            Ok(path) => path,
            Err(error) => {
                self.not_promoted(moving, &source, &error).await;
                return Event::Failed;
            }
        };
        // From here on there is no way back.
        partition.begin_swap();
        source.abandon().await;
        let is_gone = self.retire(partition, source.dir()).await;
        let opened = self.open_moved(moving, &path, &source).await;
        let is_open = opened.is_some();
        partition.end_swap(opened.map(|log| (moving.to.clone(), log)));
        if is_open {
            self.settle(moving, &path, is_gone).await;
        } else {
            self.lose(partition, &moving.to);
        }
        Event::Swapped
    }

    /// The copy has one name or the other, and the log goes on without it: no start may take the copy for the log.
    async fn not_promoted(&self, moving: &Move<R>, source: &Log<R>, error: &io::Error) {
        let partition = &moving.partition;
        tracing::error!(partition = %partition.name, to = %moving.to.display(), %error, "log cannot be moved");
        let promoted = moving.to.join(names::partition_dir(&partition.name));
        let looked = self.runtime().dir(DirOp::Stat(promoted)).await;
        let has_old_name = looked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if heals(error) && has_old_name {
            return;
        }
        self.operation_failed(&moving.to, error);
        if let Err(error) = dirs::mark(self.runtime(), source.dir()).await {
            self.operation_failed(&partition.dir(), &error);
        }
    }

    /// Lets the directory of the old log count as deleted; whether it does.
    async fn retire(&self, partition: &Partition<R>, dir: &Path) -> bool {
        let (from, name) = (partition.dir(), &partition.name);
        let renamed = log_dir::rename_away(self.runtime(), &from, dir, name).await;
        let error = match renamed {
            Ok(doomed) => {
                self.0.lifecycle.table().uncount(&from);
                if let Some(doomed) = doomed {
                    self.remove_later(from, name.clone(), doomed);
                }
                return true;
            }
            // Even the longer name may find no room: what frees it goes at once.
            Err(error) if is_full(&error) => {
                match self.runtime().dir(DirOp::RemoveAll(dir.to_owned())).await {
                    Ok(_) => {
                        self.0.lifecycle.table().uncount(&from);
                        return true;
                    }
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        tracing::error!(partition = %name, %error, "directory of a log that was moved could not be deleted");
        if !heals(&error) {
            self.operation_failed(&from, &error);
        }
        false
    }

    async fn open_moved(&self, moving: &Move<R>, path: &Path, source: &Log<R>) -> Option<Rc<Log<R>>> {
        let partition = &moving.partition;
        let end = source.log_end_offset();
        let options = OpenOptions {
            topic_id: Some(partition.key.topic_id),
            recovery_point: end,
            log_start_offset: source.log_start_offset(),
            cleaner_offset: source.cleaner_offset(),
            clean: true,
            producer_id_expiration_ms: self.0.settings.producer_expiration_ms,
            ..OpenOptions::new(partition.config().log.clone(), self.tail_budget())
        };
        let to: &Arc<Path> = &moving.to;
        match Log::open(self.runtime().clone(), path, partition.name.clone(), options).await {
            Ok(_) if self.0.hub.failures.is_failed(to) => None,
            Ok(log) if log.log_end_offset() == end => Some(log),
            Ok(log) => {
                let found = log.log_end_offset();
                tracing::error!(partition = %partition.name, %found, %end, "log that was moved does not end where it did");
                log.abandon().await;
                None
            }
            Err(error) => {
                tracing::error!(partition = %partition.name, dir = %path.display(), %error, "log that was moved could not be opened");
                if !error.heals() {
                    self.operation_failed(to, &error);
                }
                None
            }
        }
    }

    /// The log is in its new place.
    async fn settle(&self, moving: &Move<R>, path: &Path, is_gone: bool) {
        let partition = &moving.partition;
        // What a client wished meanwhile, and the epoch that has no record yet.
        partition.log().set_config(partition.config().log.clone());
        if let Some(leader_epoch) = partition.leads_in()
            && let Err(error) = partition.log().start_leader_epoch(leader_epoch).await
        {
            tracing::error!(partition = %partition.name, %error, "leader epoch was not recorded");
        }
        if !is_gone {
            // The next start tells the two directories apart by the mark.
            return;
        }
        if let Err(error) = dirs::remove_mark(self.runtime(), path).await
            && !heals(&error)
        {
            self.operation_failed(&moving.to, &error);
        }
    }

    /// Neither of the two logs is open: clients are told so until a restart.
    fn lose(&self, partition: &Rc<Partition<R>>, to: &Arc<Path>) {
        self.0.moves.lost.borrow_mut().insert(partition.name.clone(), to.clone());
        self.0.partitions.borrow_mut().remove(&partition.key);
        self.0.lifecycle.unserved.borrow_mut().insert(partition.key, None);
        partition.stop();
        partition.tell_stop(None);
    }
}

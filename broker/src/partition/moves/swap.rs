//! The moment in which a copy takes the place of the log it was made of. Appends wait, and so does who reads. In order: the
//! copy is closed, everything of it durable; it gets the replica's name; it is opened under that name, and serves; the old log
//! lets go of its files, and its directory counts as deleted. What a crash leaves at any point the next start brings to one
//! of both ends (`storage::log_dir::moves`).
//!
//! The log stays open until the copy is. So a dir of the copy that fails on the way takes nothing with it: the log goes on
//! where it is, marked, so that no start takes the copy for it. A dir of the log that fails once the copy has its name takes
//! nothing with it either: the copy serves, and nothing is written in the failed dir any more; of the two directories the
//! next start knows the copy by its mark. If both fail the partition is out of service, which the controller is told when it
//! is known (`failure`). Where the system only lacks something, everything waits: for a second silently, then appends are
//! refused and readers go on with the log, until there is what was lacking.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use storage::io::{DirOp, Runtime, heals};
use storage::log::{Log, LogError, OpenOptions};
use storage::log_dir::moves as dirs;
use storage::names;

use super::copy::NotOpen;
use super::machine::{End, Event};
use super::{Move, ROOM_MS};
use crate::partition::append::HeldQueue;
use crate::partition::replica::Partition;
use crate::partition::service::PartitionService;

impl<R: Runtime> PartitionService<R> {
    /// Swaps; the copy has everything, and nobody appends while `held` holds.
    pub(super) async fn swap(&self, moving: &Rc<Move<R>>, held: &mut Option<HeldQueue>) -> Event {
        let partition = &moving.partition;
        let (source, from) = (partition.log(), partition.dir());
        let Some(copy) = moving.log() else { return Event::Failed };
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
        partition.begin_swap();
        if let Some(event) = self.promote(moving, &source, held).await {
            return event;
        }
        let log = match self.open_promoted(moving, &source, held).await {
            Ok(log) => log,
            Err(event) => return event,
        };
        partition.end_swap(Some((moving.to.clone(), log)));
        // Nobody waits for what is done with the old one.
        drop(held.take());
        moving.log.take();
        source.abandon().await;
        self.settle(moving, &from, source.dir()).await;
        Event::Swapped
    }

    /// Gives the copy the replica's name; what becomes of the move if that cannot be done.
    async fn promote(
        &self,
        moving: &Rc<Move<R>>,
        source: &Log<R>,
        held: &mut Option<HeldQueue>,
    ) -> Option<Event> {
        let partition = &moving.partition;
        let future = moving.path();
        let promoted = dirs::promote(self.runtime(), &moving.to, &future, &partition.name).await;
        let error = match promoted {
            Ok(path) => {
                moving.path.replace(path);
                if !self.0.hub.failures.is_failed(&moving.to) {
                    return None;
                }
                return Some(self.go_back(moving, source, held).await);
            }
            Err(error) => error,
        };
        tracing::error!(partition = %partition.name, to = %moving.to.display(), %error, "log cannot be moved");
        let name = moving.to.join(names::partition_dir(&partition.name));
        let found = self.runtime().dir(DirOp::Stat(name.clone())).await;
        match found {
            Ok(_) if heals(&error) => return self.settle_name(moving, name, source, held).await,
            Err(missing) if heals(&error) && missing.kind() == io::ErrorKind::NotFound => {
                // It has the name that it had, and is complete but for what comes now: later.
                moving.log.take();
                partition.end_swap(None);
                return Some(Event::NoRoom);
            }
            Ok(_) | Err(_) => {}
        }
        self.operation_failed(&moving.to, &error);
        Some(self.go_back(moving, source, held).await)
    }

    /// The copy has the name, which could not be made durable for want of something: until it is, nothing else is done.
    async fn settle_name(
        &self,
        moving: &Rc<Move<R>>,
        name: PathBuf,
        source: &Log<R>,
        held: &mut Option<HeldQueue>,
    ) -> Option<Event> {
        moving.path.replace(name);
        loop {
            if let Some(event) = self.lacking(moving, source, held).await {
                return Some(event);
            }
            match self.runtime().dir(DirOp::Sync(moving.to.to_path_buf())).await {
                Ok(_) if !self.0.hub.failures.is_failed(&moving.to) => return None,
                Err(error) if heals(&error) => {}
                Ok(_) => return Some(self.go_back(moving, source, held).await),
                Err(error) => {
                    self.operation_failed(&moving.to, &error);
                    return Some(self.go_back(moving, source, held).await);
                }
            }
        }
    }

    /// The broker stops while both directories have the name, and hold the same: the next start takes the one with the mark.
    fn leave_both(&self, moving: &Move<R>) -> Event {
        self.0.lifecycle.choices.is_in(moving.partition.name.clone(), moving.to.clone());
        Event::Stop(End::Keep)
    }

    /// Opens what has the replica's name now, with all that the log knows.
    ///
    /// # Errors
    /// What becomes of the move instead.
    async fn open_promoted(
        &self,
        moving: &Rc<Move<R>>,
        source: &Log<R>,
        held: &mut Option<HeldQueue>,
    ) -> Result<Rc<Log<R>>, Event> {
        let partition = &moving.partition;
        let failed = |dir: &Path| self.0.hub.failures.is_failed(dir);
        loop {
            match self.open_moved(moving, source).await {
                Ok(log)
                    if failed(&moving.to) || (partition.is_swap_held_up() && failed(&partition.dir())) =>
                {
                    log.abandon().await;
                }
                Ok(log) => return Ok(log),
                Err(NotOpen::Waits) => match self.lacking(moving, source, held).await {
                    None => continue,
                    Some(event) => return Err(event),
                },
                Err(NotOpen::Failed) => {}
            }
            return Err(self.go_back(moving, source, held).await);
        }
    }

    async fn open_moved(&self, moving: &Move<R>, source: &Log<R>) -> Result<Rc<Log<R>>, NotOpen> {
        let (partition, path) = (&moving.partition, moving.path());
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
        let opened = Log::open(self.runtime().clone(), &path, partition.name.clone(), options).await;
        let log = match opened {
            Ok(log) => log,
            Err(error) => {
                tracing::error!(partition = %partition.name, dir = %path.display(), %error, "log that was moved could not be opened");
                if error.heals() {
                    return Err(NotOpen::Waits);
                }
                self.operation_failed(&moving.to, &error);
                return Err(NotOpen::Failed);
            }
        };
        let found = log.log_end_offset();
        if found != end {
            tracing::error!(partition = %partition.name, %found, %end, "log that was moved does not end where it did");
            log.abandon().await;
            return Err(NotOpen::Failed);
        }
        // A client may have deleted records meanwhile.
        while log.log_start_offset() < source.log_start_offset() {
            if log.advance_log_start(source.log_start_offset()).await.is_err() {
                log.abandon().await;
                return Err(NotOpen::Waits);
            }
        }
        Ok(log)
    }

    /// Waits a while for what the system lacks, longer than clients should wait: they are refused, and readers go on with
    /// the log. The end that was asked for, if one was.
    async fn hold_up(&self, moving: &Move<R>, held: &mut Option<HeldQueue>) -> Option<End> {
        moving.partition.hold_up_swap();
        drop(held.take());
        match moving.stop.get() {
            None => moving.pause(ROOM_MS).await,
            Some(End::Keep) => {}
            // Nothing cuts this wait short any more.
            Some(_) => self.runtime().sleep_until(self.runtime().now().plus_ms(ROOM_MS)).await,
        }
        moving.stop.get()
    }

    /// The same while the copy has the name; what becomes of the move, or `None` to try again.
    async fn lacking(
        &self,
        moving: &Rc<Move<R>>,
        source: &Log<R>,
        held: &mut Option<HeldQueue>,
    ) -> Option<Event> {
        match self.hold_up(moving, held).await {
            None => None,
            Some(End::Keep) => Some(self.leave_both(moving)),
            Some(_) => Some(self.go_back(moving, source, held).await),
        }
    }

    /// The log goes on where it is: no start may take the copy for it, whichever name that has. What has the log's name is
    /// deleted by whoever ends the move, if its dir has not failed.
    async fn go_back(&self, moving: &Rc<Move<R>>, source: &Log<R>, held: &mut Option<HeldQueue>) -> Event {
        let (partition, from) = (&moving.partition, moving.partition.dir());
        while !self.0.hub.failures.is_failed(&from) {
            match dirs::mark(self.runtime(), source.dir()).await {
                Ok(()) => break,
                Err(error) if heals(&error) => match self.hold_up(moving, held).await {
                    None => {}
                    Some(End::Keep) => return self.leave_both(moving),
                    // Without the copy there is nothing to mistake for the log.
                    Some(_) => match self.retire(partition, &moving.to, &moving.path()).await {
                        Ok(()) => break,
                        Err(error) if heals(&error) => {}
                        Err(error) => self.operation_failed(&moving.to, &error),
                    },
                },
                Err(error) => self.operation_failed(&from, &error),
            }
        }
        partition.end_swap(None);
        Event::Failed
    }

    /// The log is in its new place: what it was before counts as deleted.
    async fn settle(&self, moving: &Move<R>, from: &Arc<Path>, replaced: &Path) {
        let partition = &moving.partition;
        // What a client wished meanwhile, and the epoch that has no record yet.
        partition.log().set_config(partition.config().log.clone());
        if let Some(leader_epoch) = partition.leads_in()
            && let Err(error) = partition.log().start_leader_epoch(leader_epoch).await
        {
            tracing::error!(partition = %partition.name, %error, "leader epoch was not recorded");
        }
        while let Err(error) = self.retire(partition, from, replaced).await {
            tracing::error!(partition = %partition.name, %error, "directory of a log that was moved could not be deleted");
            if !heals(&error) {
                self.operation_failed(from, &error);
            }
            if self.0.hub.failures.is_failed(from) || moving.stop.get().is_some() {
                // The next start tells the two directories apart by the mark.
                return;
            }
            moving.pause(ROOM_MS).await;
        }
        if let Err(error) = dirs::remove_mark(self.runtime(), &moving.path()).await
            && !heals(&error)
        {
            self.operation_failed(&moving.to, &error);
        }
    }

    /// Lets the directory of the old log count as deleted.
    async fn retire(&self, partition: &Partition<R>, from: &Arc<Path>, dir: &Path) -> io::Result<()> {
        if self.0.hub.failures.is_failed(from) {
            return Err(io::Error::other("its log directory has failed"));
        }
        if !self.let_go(from, dir, &partition.name).await? {
            // It was renamed before, which was not durable then.
            self.runtime().dir(DirOp::Sync(from.to_path_buf())).await?;
            self.0.lifecycle.table().uncount(from);
        }
        Ok(())
    }
}

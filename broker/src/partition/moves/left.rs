//! What a stop has left of moves: copies that are not open. The next start goes on with each as soon as its log is open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use protocol::types::{Offset, TopicPartition};
use storage::io::{Queue, Runtime};
use storage::log::{Log, LogError, OpenOptions};

use super::copy::NotOpen;
use super::machine::End;
use super::{Move, Moves, ROOM_MS};
use crate::partition::ask::{MoveError, Sample};
use crate::partition::lifecycle::LogHomes;
use crate::partition::replica::Partition;
use crate::partition::service::{PartitionService, sample};

/// A copy that is not open.
pub(super) struct Left {
    dir: Arc<Path>,
    path: PathBuf,
    recovery_point: Offset,
    log_start_offset: Offset,
    clean: bool,
    vouched: bool,
    /// What the checkpoint files say of it; nothing if they were not written since it was found.
    pub(super) sample: Option<Sample>,
}

impl<R: Runtime> Moves<R> {
    /// What is left of a move of this partition.
    fn take_left(&self, name: &TopicPartition) -> Option<Left> {
        self.left.borrow_mut().remove(name)
    }

    /// Takes in what was found at start.
    pub(in crate::partition) fn found(&self, homes: &LogHomes) {
        for home in &homes.homes {
            for (name, path) in home.futures.iter() {
                let at = |offsets: &BTreeMap<_, Offset>| offsets.get(name).copied().unwrap_or_default();
                let left = Left {
                    dir: home.dir.clone(),
                    path: path.clone(),
                    // Else it may be of the log that was in this dir before, or of a copy that was given up: the file is
                    // written from time to time, and a copy is made anew at any time.
                    recovery_point: if home.clean {
                        at(&home.checkpoints.recovery_points)
                    } else {
                        Offset::ZERO
                    },
                    log_start_offset: at(&home.checkpoints.log_start_offsets),
                    clean: home.clean,
                    vouched: home.lock.as_ref().is_some_and(|lock| lock.is_vouched()),
                    sample: None,
                };
                self.left.borrow_mut().insert(name.clone(), left);
            }
        }
    }
}

impl<R: Runtime> PartitionService<R> {
    /// Goes on with the move of a partition that is just open, if a stop has cut one short.
    pub(in crate::partition) fn resume_move(&self, partition: &Rc<Partition<R>>) {
        let Some(left) = self.0.moves.take_left(&partition.name) else { return };
        if self.0.hub.failures.is_failed(&left.dir) {
            return;
        }
        let moving = Move::new(partition, left.dir.clone(), left.path.clone());
        partition.set_moving(true);
        self.0.moves.all.borrow_mut().insert(partition.key, moving.clone());
        let service = self.clone();
        self.spawn(Queue::Background, async move { service.run_left(moving, left).await });
    }

    async fn run_left(self, moving: Rc<Move<R>>, left: Left) {
        let partition = &moving.partition;
        if self.is_missing(&left.path).await || partition.dir() == moving.to {
            return self.finish_move(&moving, End::Remove).await;
        }
        // A move that failed half way has left its mark in the log.
        if !self.forget_mark(partition).await || !self.open_left(&moving, &left).await {
            // It stays as it is; unless the last stop was clean it was not recovered.
            if !left.clean {
                self.0.moves.unclean.borrow_mut().insert(moving.to.clone());
            }
            self.0.moves.left.borrow_mut().insert(partition.name.clone(), left);
            return self.forget_move(&moving);
        }
        let Some(log) = moving.log() else { return };
        tracing::info!(partition = %partition.name, to = %moving.to.display(), at = %log.log_end_offset(),
            "log is being moved, as before the stop");
        if let Err(error) = log.cut_to_common(&partition.log(), partition.opened_end).await {
            tracing::error!(partition = %partition.name, %error, "copy cannot be used");
            return self.finish_move(&moving, End::Failed).await;
        }
        self.run_move(moving.clone()).await;
    }

    /// Opens what is left of a copy, and waits for that while the system lacks something; whether it is open.
    async fn open_left(&self, moving: &Rc<Move<R>>, left: &Left) -> bool {
        loop {
            let options = OpenOptions {
                recovery_point: left.recovery_point,
                log_start_offset: left.log_start_offset,
                clean: left.clean,
                vouched: left.vouched,
                control: moving.control.clone(),
                ..self.copy_options(moving)
            };
            match self.open_copy(moving, options).await {
                Ok(_) => return true,
                Err(NotOpen::Waits) if moving.stop.get().is_none() => moving.pause(ROOM_MS).await,
                Err(NotOpen::Waits | NotOpen::Failed) => return false,
            }
        }
    }

    /// Deletes what is left of a move of this partition.
    ///
    /// # Errors
    /// It could not be deleted.
    pub(in crate::partition) async fn delete_left(&self, name: &TopicPartition) -> Result<(), MoveError> {
        let Some(left) = self.0.moves.take_left(name) else { return Ok(()) };
        self.delete_dir(&left.dir, &left.path, name).await.map_err(|_| MoveError::Storage)
    }

    /// Closes a copy that the next start goes on with.
    pub(super) async fn close_copy(&self, moving: &Move<R>, copy: &Log<R>) {
        let partition = &moving.partition;
        // It may have been closed for a swap that did not come.
        let closed = match copy.close().await {
            Err(LogError::Closed) => Ok(()),
            closed => closed,
        };
        let clean = closed.is_ok();
        if let Err(error) = closed {
            tracing::error!(partition = %partition.name, %error, "copy was not closed cleanly");
            self.0.moves.unclean.borrow_mut().insert(moving.to.clone());
        }
        let high_watermark = partition.high_watermark().min(copy.log_end_offset());
        let sample = sample(partition.name.clone(), moving.to.clone(), high_watermark, copy);
        let sample = Sample { is_copy: true, ..sample };
        let left = Left {
            dir: moving.to.clone(),
            path: moving.path(),
            recovery_point: copy.recovery_point(),
            log_start_offset: copy.log_start_offset(),
            clean,
            vouched: false,
            sample: Some(sample),
        };
        self.0.moves.left.borrow_mut().insert(partition.name.clone(), left);
    }
}

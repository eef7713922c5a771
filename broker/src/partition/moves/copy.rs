//! One move on its way: opens the copy, takes its turn, and does what [`machine`](super::machine) says until it is over.

use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use protocol::types::TimestampMs;
use storage::io::Runtime;
use storage::log::{AppendError, CopyError, Log, LogError, LogEvent, OpenOptions, ReadError};

use super::machine::{Action, End, Event, MoveMachine, STEP_BYTES};
use super::{Move, ROOM_MS};
use crate::partition::append::HeldQueue;
use crate::partition::ask::DirFailure;
use crate::partition::service::PartitionService;
use crate::shard::permits::Permit;

/// How soon a move looks again whether a compaction that runs is over.
const COMPACTION_MS: i64 = 100;

/// Why a log is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotOpen {
    /// The system lacks something for a while.
    Waits,
    /// It cannot be.
    Failed,
}

impl<R: Runtime> PartitionService<R> {
    pub(super) fn copy_options(&self, moving: &Move<R>) -> OpenOptions {
        OpenOptions {
            topic_id: Some(moving.partition.key.topic_id),
            producer_id_expiration_ms: self.0.settings.producer_expiration_ms,
            // Nobody reads it.
            tail_bytes_max: 0,
            ..OpenOptions::new(moving.partition.config().log.clone(), self.tail_budget())
        }
    }

    /// Opens the copy.
    ///
    /// # Errors
    /// It is not open, which has been said.
    pub(super) async fn open_copy(
        &self,
        moving: &Rc<Move<R>>,
        options: OpenOptions,
    ) -> Result<Rc<Log<R>>, NotOpen> {
        let (name, path) = (&moving.partition.name, moving.path());
        let opened = Log::open(self.runtime().clone(), &path, name.clone(), options).await;
        match opened {
            Ok(log) => {
                self.listen_to_copy(moving, &log);
                moving.log.replace(Some(log.clone()));
                if self.0.hub.failures.is_failed(&moving.to) {
                    self.moves_fail(&moving.to);
                    return Err(NotOpen::Failed);
                }
                Ok(log)
            }
            Err(error) => {
                tracing::error!(partition = %name, dir = %path.display(), %error, "copy could not be opened");
                let is_disk = matches!(error, storage::log::LoadError::Io { .. });
                if is_disk && error.heals() {
                    return Err(NotOpen::Waits);
                }
                if is_disk {
                    self.operation_failed(&moving.to, &error);
                }
                Err(NotOpen::Failed)
            }
        }
    }

    fn listen_to_copy(&self, moving: &Rc<Move<R>>, log: &Rc<Log<R>>) {
        let (hub, dir, copy) = (self.0.hub.clone(), moving.to.clone(), Rc::downgrade(log));
        log.set_listener(move |event| match event {
            LogEvent::Written(_) | LogEvent::Durable(_) | LogEvent::CutBack(_) => {}
            LogEvent::Synced { nanos } => hub.metrics.log_flush.record_nanos(nanos),
            LogEvent::Offline { .. } => {
                if let Some(cause) = copy.upgrade().and_then(|log| log.fault()) {
                    hub.failures.report(&DirFailure { dir: dir.clone(), cause: (&*cause).into() });
                }
            }
        });
    }

    pub(super) async fn run_move(self, moving: Rc<Move<R>>) {
        let turn = self.turn(&moving).await;
        let end = match &turn {
            Some(_) => self.drive(&moving).await,
            None => moving.stop.get().unwrap_or(End::Failed),
        };
        self.finish_move(&moving, end).await;
        drop(turn);
    }

    /// Waits for the right to copy; `None` if the move is to end before.
    async fn turn(&self, moving: &Move<R>) -> Option<Permit> {
        match select(self.0.moves.copying.wait(), pin!(moving.stopped())).await {
            Either::Left((turn, _)) => turn.ok(),
            Either::Right(_) => None,
        }
    }

    /// Does what the machine says until it is over.
    async fn drive(&self, moving: &Rc<Move<R>>) -> End {
        let partition = &moving.partition;
        while partition.is_cleaning() && moving.stop.get().is_none() {
            moving.pause(COMPACTION_MS).await;
        }
        let (mut machine, mut action) = MoveMachine::begin();
        let mut held: Option<HeldQueue> = None;
        loop {
            if let Some(end) = moving.stop.get() {
                action = machine.step(Event::Stop(end), self.runtime().now());
            }
            let event = match action {
                Action::Copy { held: is_held } => {
                    if !is_held {
                        held = None;
                    }
                    self.copy_step(moving).await
                }
                Action::Flush => match moving.log() {
                    Some(copy) => flushed(copy.flush().await),
                    None => Event::Failed,
                },
                Action::Wait => {
                    held = None;
                    moving.pause(ROOM_MS).await;
                    Event::Waited
                }
                Action::Hold => {
                    held = partition.hold_appends().await;
                    let log = partition.log();
                    // A full disk has cut off what is not written.
                    let written = log.until_written(log.log_end_offset()).await;
                    match (&held, written) {
                        (Some(_), Ok(()) | Err(LogError::Full | LogError::Exhausted)) => Event::Held,
                        _ => Event::Failed,
                    }
                }
                Action::Swap => self.swap(moving, &mut held).await,
                Action::End(end) => {
                    drop(held);
                    return end;
                }
            };
            action = machine.step(event, self.runtime().now());
        }
    }

    async fn copy_step(&self, moving: &Rc<Move<R>>) -> Event {
        let copy = match self.copy_of(moving).await {
            Ok(copy) => copy,
            Err(NotOpen::Waits) => return Event::NoRoom,
            Err(NotOpen::Failed) => return Event::Failed,
        };
        let now = TimestampMs::new(self.runtime().wall_ms());
        let copied = copy.copy_from(&moving.partition.log(), STEP_BYTES, now).await;
        self.runtime().turn().await;
        match copied {
            Ok(copied) => Event::Copied { bytes: copied.bytes, is_all: copied.is_all },
            Err(
                CopyError::Target(AppendError::Log(LogError::Full | LogError::Exhausted))
                | CopyError::Source(ReadError::Log(LogError::Full | LogError::Exhausted)),
            ) => Event::NoRoom,
            Err(error) => {
                tracing::error!(partition = %moving.partition.name, to = %moving.to.display(), %error, "log cannot be moved");
                Event::Failed
            }
        }
    }

    /// The copy; one that was closed for a swap that had to wait is opened again.
    async fn copy_of(&self, moving: &Rc<Move<R>>) -> Result<Rc<Log<R>>, NotOpen> {
        if let Some(copy) = moving.log() {
            return Ok(copy);
        }
        let options = OpenOptions {
            log_start_offset: moving.partition.log().log_start_offset(),
            clean: true,
            control: moving.control.clone(),
            ..self.copy_options(moving)
        };
        self.open_copy(moving, options).await
    }
}

fn flushed(outcome: Result<(), LogError>) -> Event {
    match outcome {
        Ok(()) => Event::Flushed,
        Err(LogError::Full | LogError::Exhausted) => Event::NoRoom,
        Err(LogError::Offline { .. } | LogError::Closed) => Event::Failed,
    }
}

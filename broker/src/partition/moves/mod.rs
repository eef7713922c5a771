//! Moves of logs between the log dirs of a broker (KIP-113, storage.md 1.1). The copy is a log of its own under a `-future`
//! name, which takes the place of the one it copies when it has everything; one log of a shard is copied at a time, in
//! steps that let the shard have its turns. A stop of the broker keeps the copy, and the next start goes on. Meanwhile the
//! log is neither compacted nor cut by retention, as in Kafka. The decisions are [`machine`]'s, the swap is [`swap`]'s.

pub(super) mod machine;
mod swap;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::select;
use futures_util::stream::{self, StreamExt};
use protocol::types::{Offset, TimestampMs, TopicPartition};
use storage::io::{DirOp, Queue, Runtime};
use storage::log::{AppendError, CopyError, LoadControl, Log, LogError, LogEvent, OpenOptions, ReadError};
use storage::log_dir::moves as dirs;

use self::machine::{Action, End, Event, MoveMachine, STEP_BYTES};
use super::append::HeldQueue;
use super::ask::{DirFailure, LogSize, MoveAsk, MoveError, PartitionError, PartitionKey, Sample};
use super::lifecycle::LogHomes;
use super::replica::Partition;
use super::service::{PartitionService, sample};
use crate::config::topic::TopicConfig;

/// How long a move waits for room on the disk.
const ROOM_MS: i64 = 1000;

/// How soon it looks again whether a compaction that runs is over.
const COMPACTION_MS: i64 = 100;

/// The moves of a shard.
pub(super) struct Moves<R: Runtime> {
    all: RefCell<BTreeMap<PartitionKey, Rc<Move<R>>>>,
    /// Whether one copies, and those that wait for it.
    is_copying: Cell<bool>,
    waiting: RefCell<VecDeque<oneshot::Sender<()>>>,
    /// Copies that are not open: a stop has cut their moves short.
    left: RefCell<BTreeMap<TopicPartition, Left>>,
    /// Log dirs of copies that were not closed cleanly, or not recovered.
    unclean: RefCell<BTreeSet<Arc<Path>>>,
    /// Logs that could not be opened where they had come.
    lost: RefCell<BTreeMap<TopicPartition, Arc<Path>>>,
}

impl<R: Runtime> Default for Moves<R> {
    fn default() -> Self {
        Self {
            all: RefCell::default(),
            is_copying: Cell::default(),
            waiting: RefCell::default(),
            left: RefCell::default(),
            unclean: RefCell::default(),
            lost: RefCell::default(),
        }
    }
}

/// A copy that is not open.
struct Left {
    dir: Arc<Path>,
    path: PathBuf,
    recovery_point: Offset,
    log_start_offset: Offset,
    clean: bool,
    vouched: bool,
    /// What the checkpoint files say of it; nothing if they were not written since it was found.
    sample: Option<Sample>,
}

/// A log on its way to another log dir.
struct Move<R: Runtime> {
    partition: Rc<Partition<R>>,
    /// The log dir that it goes to.
    to: Arc<Path>,
    /// The copy's directory there.
    path: PathBuf,
    /// The copy, once it is open.
    log: RefCell<Option<Rc<Log<R>>>>,
    control: LoadControl,
    stop: Cell<Option<End>>,
    /// Who waits for the stop, and for the end.
    stopping: RefCell<Vec<oneshot::Sender<()>>>,
    ending: RefCell<Vec<oneshot::Sender<()>>>,
}

impl<R: Runtime> Move<R> {
    fn new(partition: &Rc<Partition<R>>, to: Arc<Path>, path: PathBuf) -> Rc<Self> {
        Rc::new(Self {
            partition: partition.clone(),
            to,
            path,
            log: RefCell::default(),
            control: LoadControl::default(),
            stop: Cell::default(),
            stopping: RefCell::default(),
            ending: RefCell::default(),
        })
    }

    fn log(&self) -> Option<Rc<Log<R>>> {
        self.log.borrow().clone()
    }

    /// Asks for its end; the first who asks says which.
    fn stop(&self, end: End) {
        if self.stop.get().is_none() {
            self.stop.set(Some(end));
        }
        self.control.stop();
        let waiting = self.stopping.take();
        drop(waiting);
    }

    /// Done when its end was asked for.
    async fn stopped(&self) {
        if self.stop.get().is_none() {
            let (waiter, stopped) = oneshot::channel();
            self.stopping.borrow_mut().push(waiter);
            // Dropped by `stop`.
            let _ = stopped.await;
        }
    }

    /// Waits, but not beyond the stop.
    async fn pause(&self, ms: i64) {
        let runtime = &self.partition.hub.runtime;
        let sleep = runtime.sleep_until(runtime.now().plus_ms(ms));
        select(pin!(sleep), pin!(self.stopped())).await;
    }
}

/// The right to copy; dropping it lets the next one copy.
struct Turn<R: Runtime>(PartitionService<R>);

impl<R: Runtime> Drop for Turn<R> {
    fn drop(&mut self) {
        let moves = &self.0.0.moves;
        loop {
            let next = moves.waiting.borrow_mut().pop_front();
            let Some(next) = next else { break };
            if next.send(()).is_ok() {
                return;
            }
        }
        moves.is_copying.set(false);
    }
}

impl<R: Runtime> Moves<R> {
    fn get(&self, key: PartitionKey) -> Option<Rc<Move<R>>> {
        self.all.borrow().get(&key).cloned()
    }

    fn all(&self) -> Vec<Rc<Move<R>>> {
        self.all.borrow().values().cloned().collect()
    }

    /// The log of a partition is open.
    pub(super) fn opened(&self, name: &TopicPartition) {
        self.lost.borrow_mut().remove(name);
    }

    /// The partitions whose logs are taking their place in a log dir, or could not be opened there.
    pub(super) fn bound_for(&self, dir: &Path) -> Vec<TopicPartition> {
        let is_bound = |moving: &Rc<Move<R>>| *moving.to == *dir && moving.partition.is_swapping();
        let bound = self.all().into_iter().filter(is_bound).map(|moving| moving.partition.name.clone());
        let lost = self.lost.borrow();
        bound.chain(lost.iter().filter(|(_, to)| ***to == *dir).map(|(name, _)| name.clone())).collect()
    }

    /// What is left of a move of this partition.
    fn take_left(&self, name: &TopicPartition) -> Option<Left> {
        self.left.borrow_mut().remove(name)
    }

    /// Takes in what was found at start.
    pub(super) fn found(&self, homes: &LogHomes) {
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

    /// The configuration of the topic has changed.
    pub(super) fn set_config(&self, key: PartitionKey, config: &TopicConfig) {
        if let Some(log) = self.get(key).and_then(|moving| moving.log()) {
            log.set_config(config.log.clone());
        }
    }
}

impl<R: Runtime> PartitionService<R> {
    /// Does what AlterReplicaLogDirs asks, in Kafka's order of checks.
    pub(super) async fn move_all(&self, asks: Vec<MoveAsk>) -> Vec<Result<(), MoveError>> {
        // Each makes a directory, and syncs it.
        let width = self.0.settings.concurrent_loads_max.max(1);
        stream::iter(asks).map(|ask| self.move_one(ask)).buffered(width).collect().await
    }

    async fn move_one(&self, ask: MoveAsk) -> Result<(), MoveError> {
        let MoveAsk { key, name, to } = ask;
        let table = self.0.lifecycle.table();
        let path = dirs::future_path(self.runtime(), &to, &name).ok_or(MoveError::NameTooLong)?;
        if table.is_offline(&to) || self.0.lifecycle.is_unserved(key) {
            return Err(MoveError::Storage);
        }
        let Some(partition) = self.held(key) else {
            self.0.lifecycle.choices.wish(name, to);
            return Err(MoveError::NotHere);
        };
        if partition.check_online() == Err(PartitionError::Offline) {
            return Err(MoveError::Storage);
        }
        if let Some(moving) = self.0.moves.get(key) {
            if moving.to == to {
                return Ok(());
            }
            self.end_move(key, End::Remove).await;
        }
        // It may have been there just before it was ended.
        if partition.dir() == to {
            return Ok(());
        }
        if table.has_offline() {
            // A copy could be there already.
            return Err(MoveError::Storage);
        }
        self.begin_move(&partition, to, path).await
    }

    async fn begin_move(
        &self,
        partition: &Rc<Partition<R>>,
        to: Arc<Path>,
        path: PathBuf,
    ) -> Result<(), MoveError> {
        self.delete_left(&partition.name).await?;
        if !self.forget_mark(partition).await {
            return Err(MoveError::Storage);
        }
        let source = partition.log();
        let moving = Move::new(partition, to, path);
        partition.set_moving(true);
        let options = OpenOptions {
            log_start_offset: source.log_start_offset(),
            control: moving.control.clone(),
            ..self.copy_options(&moving)
        };
        self.0.lifecycle.table().count(&moving.to);
        self.0.moves.all.borrow_mut().insert(partition.key, moving.clone());
        if !self.open_copy(&moving, options).await {
            self.finish_move(&moving, End::Remove).await;
            return Err(MoveError::Storage);
        }
        tracing::info!(partition = %partition.name, from = %partition.dir().display(), to = %moving.to.display(),
            "log is being moved");
        let service = self.clone();
        self.spawn(Queue::Background, async move { service.run_move(moving).await });
        Ok(())
    }

    /// Takes the mark of an earlier move out of a log that is to be moved; whether it is gone for good.
    async fn forget_mark(&self, partition: &Partition<R>) -> bool {
        let forgotten = dirs::forget_mark(self.runtime(), partition.log().dir()).await;
        let Err(error) = forgotten else { return true };
        tracing::error!(partition = %partition.name, %error, "log cannot be moved");
        if !storage::io::heals(&error) {
            self.operation_failed(&partition.dir(), &error);
        }
        false
    }

    /// Goes on with the move of a partition that is just open, if a stop has cut one short.
    pub(super) fn resume_move(&self, partition: &Rc<Partition<R>>) {
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
        let stat = self.runtime().dir(DirOp::Stat(left.path.clone())).await;
        let is_gone = stat.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if is_gone || partition.dir() == moving.to {
            return self.finish_move(&moving, End::Remove).await;
        }
        let options = OpenOptions {
            recovery_point: left.recovery_point,
            log_start_offset: left.log_start_offset,
            clean: left.clean,
            vouched: left.vouched,
            control: moving.control.clone(),
            ..self.copy_options(&moving)
        };
        // A move that failed half way has left its mark in the log.
        if !self.forget_mark(partition).await || !self.open_copy(&moving, options).await {
            // It stays as it is; unless the last stop was clean it was not recovered.
            if !left.clean {
                self.0.moves.unclean.borrow_mut().insert(moving.to.clone());
            }
            self.0.moves.left.borrow_mut().insert(partition.name.clone(), left);
            return self.finish_move(&moving, End::Failed).await;
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

    /// Deletes what is left of a move of this partition.
    ///
    /// # Errors
    /// It could not be deleted.
    pub(super) async fn delete_left(&self, name: &TopicPartition) -> Result<(), MoveError> {
        let Some(left) = self.0.moves.take_left(name) else { return Ok(()) };
        self.delete_dir(&left.dir, &left.path, name).await.map_err(|_| MoveError::Storage)
    }

    fn copy_options(&self, moving: &Move<R>) -> OpenOptions {
        OpenOptions {
            topic_id: Some(moving.partition.key.topic_id),
            producer_id_expiration_ms: self.0.settings.producer_expiration_ms,
            // Nobody reads it.
            tail_bytes_max: 0,
            ..OpenOptions::new(moving.partition.config().log.clone(), self.tail_budget())
        }
    }

    /// Opens the copy; whether it is open.
    async fn open_copy(&self, moving: &Rc<Move<R>>, options: OpenOptions) -> bool {
        let name = &moving.partition.name;
        let opened = Log::open(self.runtime().clone(), &moving.path, name.clone(), options).await;
        match opened {
            Ok(log) => {
                self.listen_to_copy(moving, &log);
                moving.log.replace(Some(log));
                if self.0.hub.failures.is_failed(&moving.to) {
                    self.moves_fail(&moving.to);
                    return false;
                }
                true
            }
            Err(error) => {
                tracing::error!(partition = %name, dir = %moving.path.display(), %error, "copy could not be opened");
                let is_disk = matches!(error, storage::log::LoadError::Io { .. });
                if is_disk && !error.heals() {
                    self.operation_failed(&moving.to, &error);
                }
                false
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

    async fn run_move(self, moving: Rc<Move<R>>) {
        let turn = self.turn(&moving).await;
        let end = match &turn {
            Some(_) => self.drive(&moving).await,
            None => moving.stop.get().unwrap_or(End::Failed),
        };
        self.finish_move(&moving, end).await;
        drop(turn);
    }

    /// Waits for the right to copy; `None` if the move is to end before.
    async fn turn(&self, moving: &Move<R>) -> Option<Turn<R>> {
        let moves = &self.0.moves;
        if moves.is_copying.replace(true) {
            let (waiter, next) = oneshot::channel();
            moves.waiting.borrow_mut().push_back(waiter);
            let next = async { next.await.is_ok().then(|| Turn(self.clone())) };
            match select(pin!(next), pin!(moving.stopped())).await {
                futures_util::future::Either::Left((turn, _)) => turn,
                // One that is given meanwhile finds nobody, and goes to the next.
                futures_util::future::Either::Right(_) => None,
            }
        } else {
            Some(Turn(self.clone()))
        }
    }

    /// Does what the machine says until it is over.
    async fn drive(&self, moving: &Rc<Move<R>>) -> End {
        let partition = &moving.partition;
        while partition.is_cleaning() && moving.stop.get().is_none() {
            moving.pause(COMPACTION_MS).await;
        }
        let Some(copy) = moving.log() else { return End::Failed };
        let (mut machine, mut action) = MoveMachine::begin();
        let mut held: Option<HeldQueue> = None;
        loop {
            if let Some(end) = moving.stop.get() {
                action = machine.step(Event::Stop(end));
            }
            let event = match action {
                Action::Copy { held: is_held } => {
                    if !is_held {
                        held = None;
                    }
                    self.copy_step(moving, &copy).await
                }
                Action::Flush => flushed(copy.flush().await),
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
                Action::Swap => self.swap(moving, &copy).await,
                Action::End(end) => {
                    drop(held);
                    return end;
                }
            };
            action = machine.step(event);
        }
    }

    async fn copy_step(&self, moving: &Move<R>, copy: &Log<R>) -> Event {
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

    /// Ends a move, and returns when nothing of it runs any more; it may have come to its end before.
    pub(super) async fn end_move(&self, key: PartitionKey, end: End) {
        let Some(moving) = self.0.moves.get(key) else { return };
        let (waiter, ended) = oneshot::channel();
        moving.ending.borrow_mut().push(waiter);
        moving.stop(end);
        // Dropped at the end.
        let _ = ended.await;
    }

    /// Ends all moves, which the next start goes on with; the log dirs of copies that were not closed cleanly.
    pub(super) async fn end_moves(&self) -> BTreeSet<Arc<Path>> {
        let all = self.0.moves.all();
        for moving in &all {
            moving.stop(End::Keep);
        }
        for moving in all {
            self.end_move(moving.partition.key, End::Keep).await;
        }
        self.0.moves.unclean.borrow().clone()
    }

    /// Puts away what a move leaves behind.
    async fn finish_move(&self, moving: &Rc<Move<R>>, end: End) {
        let partition = &moving.partition;
        let failed = |dir: &Path| self.0.hub.failures.is_failed(dir);
        let copy = moving.log.take();
        match end {
            End::Done if partition.check_online().is_ok() => {
                tracing::info!(partition = %partition.name, to = %moving.to.display(), "log is moved")
            }
            // The log that has come could not be opened, which has been said.
            End::Done => {}
            _ if failed(&moving.to) => {
                if let Some(copy) = copy {
                    copy.abandon().await;
                }
            }
            // Where the log itself is out of service the next start goes on.
            End::Keep | End::Failed if end == End::Keep || failed(&partition.dir()) => {
                if let Some(copy) = copy {
                    self.close_copy(moving, &copy).await;
                }
            }
            End::Failed if copy.is_none() => {}
            End::Keep | End::Remove | End::Failed => {
                if let Some(copy) = copy {
                    copy.abandon().await;
                }
                // What cannot be deleted has been said.
                let _ = self.delete_dir(&moving.to, &moving.path, &partition.name).await;
            }
        }
        self.0.moves.all.borrow_mut().remove(&partition.key);
        partition.set_moving(false);
        let waiting = moving.ending.take();
        drop(waiting);
    }

    async fn close_copy(&self, moving: &Move<R>, copy: &Log<R>) {
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
            path: moving.path.clone(),
            recovery_point: copy.recovery_point(),
            log_start_offset: copy.log_start_offset(),
            clean,
            vouched: false,
            sample: Some(sample),
        };
        self.0.moves.left.borrow_mut().insert(partition.name.clone(), left);
    }

    /// A log dir has failed: what moves from it or to it ends.
    pub(super) fn moves_fail(&self, dir: &Path) {
        for moving in self.0.moves.all() {
            if *moving.to == *dir {
                if let Some(copy) = moving.log() {
                    copy.set_offline("operation in its log directory");
                }
                moving.stop(End::Failed);
            } else if *moving.partition.dir() == *dir {
                moving.stop(End::Failed);
            }
        }
    }

    /// What DescribeLogDirs tells of copies.
    pub(super) fn future_sizes(&self) -> Vec<LogSize> {
        let size = |moving: Rc<Move<R>>| {
            let (copy, source) = (moving.log()?, moving.partition.log());
            Some(LogSize {
                partition: moving.partition.name.clone(),
                log_dir: moving.to.clone(),
                is_future: true,
                bytes: copy.size_bytes(),
                offset_lag: source.log_end_offset().since(copy.log_end_offset()),
            })
        };
        self.0.moves.all().into_iter().filter_map(size).collect()
    }

    /// What the checkpoint files say of copies.
    pub(super) fn future_samples(&self) -> Vec<Sample> {
        let open = |moving: Rc<Move<R>>| {
            let copy = moving.log()?;
            let high_watermark = moving.partition.high_watermark().min(copy.log_end_offset());
            let sample = sample(moving.partition.name.clone(), moving.to.clone(), high_watermark, &copy);
            Some(Sample { is_copy: true, ..sample })
        };
        let moves = &self.0.moves;
        let left = moves.left.borrow();
        let closed = left.values().filter_map(|left| left.sample.clone());
        moves.all().into_iter().filter_map(open).chain(closed).collect()
    }
}

fn flushed(outcome: Result<(), LogError>) -> Event {
    match outcome {
        Ok(()) => Event::Flushed,
        Err(LogError::Full | LogError::Exhausted) => Event::NoRoom,
        Err(LogError::Offline { .. } | LogError::Closed) => Event::Failed,
    }
}

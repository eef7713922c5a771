//! Moves of logs between the log dirs of a broker (KIP-113, storage.md 1.1). The copy is a log of its own under a `-future`
//! name, which takes the place of the one it copies when it has everything; one log of a shard is copied at a time, in
//! steps that let the shard have its turns. A stop of the broker keeps the copy, and the next start goes on. Meanwhile the
//! log is neither compacted nor cut by retention, as in Kafka. Here moves begin and end; [`copy`] drives one, by the
//! decisions of [`machine`], the swap is [`swap`]'s, and what a stop has left [`left`]'s.

mod copy;
mod left;
pub(super) mod machine;
mod swap;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::select;
use futures_util::stream::{self, StreamExt};
use protocol::types::TopicPartition;
use storage::io::{DirOp, Queue, Runtime};
use storage::log::{LoadControl, Log, OpenOptions};
use storage::log_dir::{FoundKind, FoundPartition, moves as dirs};
use storage::names;

use self::left::Left;
use self::machine::End;
use super::ask::{LogSize, MoveAsk, MoveError, PartitionError, PartitionKey, Sample};
use super::replica::Partition;
use super::service::{PartitionService, sample};
use crate::config::topic::TopicConfig;
use crate::shard::permits::Permits;

/// How long a move waits for room on the disk, or for what else the system lacks.
const ROOM_MS: i64 = 1000;

/// The moves of a shard.
pub(super) struct Moves<R: Runtime> {
    all: RefCell<BTreeMap<PartitionKey, Rc<Move<R>>>>,
    /// The right to copy: one log at a time.
    copying: Rc<Permits>,
    /// Copies that are not open: a stop has cut their moves short.
    left: RefCell<BTreeMap<TopicPartition, Left>>,
    /// Log dirs of copies that were not closed cleanly, or not recovered.
    unclean: RefCell<BTreeSet<Arc<Path>>>,
}

impl<R: Runtime> Default for Moves<R> {
    fn default() -> Self {
        Self {
            all: RefCell::default(),
            copying: Permits::new(1),
            left: RefCell::default(),
            unclean: RefCell::default(),
        }
    }
}

/// A log on its way to another log dir.
struct Move<R: Runtime> {
    partition: Rc<Partition<R>>,
    /// The log dir that it goes to.
    to: Arc<Path>,
    /// The copy's directory there: under its own name, then under that of the replica.
    path: RefCell<PathBuf>,
    /// The copy, while it is open.
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
            path: RefCell::new(path),
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

    fn path(&self) -> PathBuf {
        self.path.borrow().clone()
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

impl<R: Runtime> Moves<R> {
    fn get(&self, key: PartitionKey) -> Option<Rc<Move<R>>> {
        self.all.borrow().get(&key).cloned()
    }

    fn all(&self) -> Vec<Rc<Move<R>>> {
        self.all.borrow().values().cloned().collect()
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
        self.delete_replaced(partition).await?;
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
        let table = self.0.lifecycle.table();
        table.count(&moving.to);
        self.0.moves.all.borrow_mut().insert(partition.key, moving.clone());
        if self.open_copy(&moving, options).await.is_err() {
            if self.is_missing(&moving.path()).await {
                table.uncount(&moving.to);
            }
            self.finish_move(&moving, End::Remove).await;
            return Err(MoveError::Storage);
        }
        tracing::info!(partition = %partition.name, from = %partition.dir().display(), to = %moving.to.display(),
            "log is being moved");
        let service = self.clone();
        self.spawn(Queue::Background, async move { service.run_move(moving).await });
        Ok(())
    }

    /// Whether there is no such directory.
    async fn is_missing(&self, path: &Path) -> bool {
        let looked = self.runtime().dir(DirOp::Stat(path.to_owned())).await;
        looked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Lets go of what an earlier move has replaced and could not rename: it has the name of the log, which may go there.
    /// What has that name for another reason stays, and nothing moves.
    async fn delete_replaced(&self, partition: &Partition<R>) -> Result<(), MoveError> {
        let (here, name) = (partition.dir(), &partition.name);
        let found = |path: &Path| FoundPartition {
            partition: name.clone(),
            kind: FoundKind::Current,
            path: path.to_owned(),
        };
        let log = found(partition.log().dir());
        for home in self.0.lifecycle.table().live().filter(|dir| **dir != here) {
            let other = home.join(names::partition_dir(name));
            if self.is_missing(&other).await {
                continue;
            }
            let replaced = dirs::find_replaced(self.runtime(), &[log.clone(), found(&other)]).await;
            let why = match replaced {
                Ok(replaced) if replaced.iter().all(|one| one.path == other) => {
                    self.delete_dir(home, &other, name).await.map_err(|_| MoveError::Storage)?;
                    continue;
                }
                Ok(_) => format!("{} claims to be newer", other.display()),
                Err(error) => error.to_string(),
            };
            tracing::error!(partition = %name, %why, "log cannot be moved");
            return Err(MoveError::Storage);
        }
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
            End::Done => {
                tracing::info!(partition = %partition.name, to = %moving.to.display(), "log is moved")
            }
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
            End::Keep | End::Remove | End::Failed => {
                if let Some(copy) = copy {
                    copy.abandon().await;
                }
                // What cannot be deleted has been said.
                let _ = self.delete_dir(&moving.to, &moving.path(), &partition.name).await;
            }
        }
        self.forget_move(moving);
    }

    /// Nothing of a move runs any more.
    fn forget_move(&self, moving: &Move<R>) {
        self.0.moves.all.borrow_mut().remove(&moving.partition.key);
        moving.partition.set_moving(false);
        let waiting = moving.ending.take();
        drop(waiting);
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

    /// Partitions of which it is not known yet whether the log serves that is in this dir, or one that goes there or comes from
    /// there.
    pub(super) fn swapping_with(&self, dir: &Path) -> Vec<Rc<Partition<R>>> {
        let is_about = |moving: &Rc<Move<R>>| *moving.to == *dir || *moving.partition.dir() == *dir;
        let swapping = self.0.moves.all().into_iter().filter(|moving| moving.partition.is_swapping());
        swapping.filter(is_about).map(|moving| moving.partition.clone()).collect()
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

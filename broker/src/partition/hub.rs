//! What the partitions of one shard share: tasks, fetches that wait, the lines on which other shards are woken, and the
//! one timer of acks=all. Knows no partition but weakly. Created by `service`, used by `replica` and `append`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use protocol::types::{BrokerId, MonoTime};
use storage::io::{Queue, Runtime};

use super::ask::{PartitionAnswer, PartitionKey, Wake};
use super::cleaner::CleanerState;
use super::delayed::fetch::DelayedFetches;
use super::failure::Failures;
use super::machine::Action;
use super::replica::Partition;
use super::roles::Roles;
use super::space::{Appended, FreeSpace};
use crate::metrics::ShardMetrics;
use crate::shard::lines::Lines;
use crate::shard::tasks::TaskSet;
use crate::shard::{NEVER, ShardId};

/// Shared by the partitions of one shard.
pub(super) struct Hub<R: Runtime> {
    pub(super) runtime: R,
    pub(super) me: BrokerId,
    pub(super) lag_nanos_max: u64,
    pub(super) tasks: TaskSet<R>,
    pub(super) metrics: Rc<ShardMetrics>,
    pub(super) fetches: RefCell<DelayedFetches>,
    pub(super) failures: Failures,
    spaces: BTreeMap<Arc<Path>, Rc<FreeSpace>>,
    pub(super) cleaner: CleanerState,
    pub(super) roles: Roles,
    /// Empty between two steps of machines: the room for their actions.
    pub(super) actions: Cell<Vec<Action>>,
    /// Wakes of fetches; bounded by the waits that are armed.
    pub(super) lines: Lines<Wake, PartitionAnswer>,
    /// The last moment at which a partition moved.
    moment: Cell<u64>,
    /// Partitions with appends that wait for the high watermark.
    replicating: RefCell<BTreeMap<PartitionKey, Weak<Partition<R>>>>,
    /// When the timer of those appends fires; `NEVER` when it does not run.
    timer: Cell<MonoTime>,
    timer_task: RefCell<Option<R::Task>>,
}

impl<R: Runtime> Hub<R> {
    pub(super) fn new(
        runtime: R,
        (me, lag_nanos_max): (BrokerId, u64),
        spaces: BTreeMap<Arc<Path>, Rc<FreeSpace>>,
        metrics: Rc<ShardMetrics>,
    ) -> Rc<Self> {
        Rc::new(Self {
            metrics,
            tasks: TaskSet::new(runtime.clone()),
            runtime,
            me,
            lag_nanos_max,
            fetches: RefCell::default(),
            failures: Failures::default(),
            spaces,
            cleaner: CleanerState::default(),
            roles: Roles::default(),
            actions: Cell::default(),
            lines: Lines::new(PartitionAnswer::Woken),
            moment: Cell::default(),
            replicating: RefCell::default(),
            timer: Cell::new(NEVER),
            timer_task: RefCell::new(None),
        })
    }

    /// The room of a log dir.
    pub(super) fn space(&self, dir: &Path) -> Rc<FreeSpace> {
        // Without a dir of ours there is no floor.
        self.spaces.get(dir).cloned().unwrap_or_else(|| Rc::new(FreeSpace::new(0, Appended::default())))
    }

    /// The log dirs with their room.
    pub(super) fn spaces(&self) -> impl Iterator<Item = (&Arc<Path>, &Rc<FreeSpace>)> {
        self.spaces.iter()
    }

    /// A moment that was not there before.
    pub(super) fn next_moment(&self) -> u64 {
        let next = self.moment.get().saturating_add(1);
        self.moment.set(next);
        next
    }

    /// Tells shards what happened to their waits.
    pub(super) fn wake(&self, wakes: Vec<(ShardId, Wake)>) {
        for (to, wake) in wakes {
            self.lines.push(to, wake);
        }
        self.lines.flush();
    }

    /// Nobody will be answered any more.
    pub(super) fn close(&self) {
        self.lines.close();
        self.failures.close();
        self.timer_task.take();
    }

    /// A partition has an append that must reach the high watermark until `deadline`.
    pub(super) fn replicates(self: &Rc<Self>, partition: &Rc<Partition<R>>, deadline: MonoTime) {
        self.replicating.borrow_mut().insert(partition.key, Rc::downgrade(partition));
        if deadline >= self.timer.get() {
            return;
        }
        self.timer.set(deadline);
        let hub = Rc::downgrade(self);
        let sleep = self.runtime.sleep_until(deadline);
        let task = self.runtime.spawn(Queue::Request, async move {
            sleep.await;
            expire(hub).await;
        });
        self.timer_task.replace(Some(task));
    }

    /// No append of a partition waits for the high watermark any more.
    pub(super) fn replicated(&self, key: PartitionKey) {
        self.replicating.borrow_mut().remove(&key);
    }

    /// Lets deadlines pass; the next one.
    fn pass(&self) -> MonoTime {
        let now = self.runtime.now();
        let waiting: Vec<_> = self.replicating.borrow().values().filter_map(Weak::upgrade).collect();
        let next =
            waiting.iter().filter_map(|partition| partition.expire_appends(now)).min().unwrap_or(NEVER);
        self.timer.set(next);
        next
    }
}

/// The timer's task: runs from deadline to deadline, and ends when nothing waits.
async fn expire<R: Runtime>(hub: Weak<Hub<R>>) {
    loop {
        let Some(here) = hub.upgrade() else { return };
        let next = here.pass();
        if next == NEVER {
            return;
        }
        let sleep = here.runtime.sleep_until(next);
        drop(here);
        sleep.await;
    }
}

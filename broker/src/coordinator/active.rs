//! A machine at work: what it wants done is done in its order (replies, appends, timers, the rest of long work), and what
//! became of it is told it as events. One [`Active`] per loaded partition; `service` makes and ends it. Knows no leadership.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::{Rc, Weak};

use futures_channel::mpsc;
use futures_util::StreamExt;
use protocol::types::MonoTime;
use storage::io::Queue;

use super::ask::{GroupAnswer, GroupRequest, Ticket};
use super::group::Groups;
use super::group::machine::{Effect, Event, Waiter};
use super::service::Inner;
use super::write::{WriteQueue, Writing};
use crate::partition::ask::PartitionKey;
use crate::shard::pace::Pace;
use crate::shard::{NEVER, Reply, ShardId, ShardRuntime};

/// A commit of no more offsets is made without a look at how much the log takes.
const FEW_OFFSETS: usize = 100;

/// The groups of a loaded partition.
pub(super) struct Active {
    key: PartitionKey,
    pub(super) machine: RefCell<Groups>,
    /// What the shard has of its bytes.
    kept: Cell<usize>,
    /// Who waits for what was not replied within its step.
    waiters: RefCell<HashMap<Waiter, Asker>>,
    /// Batches on their way into the log.
    writes: WriteQueue,
    /// When its timer is armed for; `NEVER` when it is not.
    timer: Cell<MonoTime>,
    is_over: Cell<bool>,
}

/// A request whose reply may go back at once.
pub(super) struct Direct {
    pub(super) waiter: u64,
    pub(super) from: ShardId,
    pub(super) ticket: Option<Ticket>,
    pub(super) reply: Reply<GroupAnswer>,
}

/// Who waits.
enum Asker {
    /// Somebody on this shard, for the answer to his ask.
    Here(Reply<GroupAnswer>),
    /// Somebody on another shard, whose ask was answered already.
    There(ShardId, Ticket),
}

/// The timers of all partitions of a shard: one task sleeps until the first.
pub(super) struct Timers<R: ShardRuntime> {
    due: RefCell<BTreeSet<(MonoTime, i32)>>,
    /// Until when the task sleeps; `NEVER` when there is none.
    at: Cell<MonoTime>,
    /// The task is at work, and looks for what comes next itself.
    is_firing: Cell<bool>,
    task: RefCell<Option<R::Task>>,
    active: RefCell<HashMap<i32, Weak<Active>>>,
}

impl<R: ShardRuntime> Default for Timers<R> {
    fn default() -> Self {
        Self {
            due: RefCell::default(),
            at: Cell::new(NEVER),
            is_firing: Cell::new(false),
            task: RefCell::new(None),
            active: RefCell::default(),
        }
    }
}

impl<R: ShardRuntime> Timers<R> {
    /// Moves a partition's timer.
    fn set(&self, partition: i32, before: MonoTime, next: MonoTime) {
        let mut due = self.due.borrow_mut();
        if before != NEVER {
            due.remove(&(before, partition));
        }
        if next != NEVER {
            due.insert((next, partition));
        }
    }

    /// When the first one fires.
    fn first(&self) -> MonoTime {
        self.due.borrow().first().map_or(NEVER, |(at, _)| *at)
    }

    /// A partition whose time has come; its timer is not armed any more.
    fn pop_due(&self, now: MonoTime) -> Option<Weak<Active>> {
        let mut due = self.due.borrow_mut();
        let first = *due.first().filter(|(at, _)| *at <= now)?;
        due.remove(&first);
        Some(self.active.borrow().get(&first.1).cloned().unwrap_or_default())
    }
}

impl<R: ShardRuntime> Inner<R> {
    /// A machine that was filled begins to work.
    pub(super) fn activate(self: &Rc<Self>, key: PartitionKey, groups: Groups) -> Rc<Active> {
        let (writes, told, late) = WriteQueue::new();
        let active = Rc::new(Active {
            key,
            machine: RefCell::new(groups),
            kept: Cell::new(0),
            waiters: RefCell::default(),
            writes,
            timer: Cell::new(NEVER),
            is_over: Cell::new(false),
        });
        self.note_kept(&active);
        self.timers.active.borrow_mut().insert(key.partition, Rc::downgrade(&active));
        let (inner, of) = (Rc::downgrade(self), Rc::downgrade(&active));
        self.tasks.spawn(Queue::Request, tell_writes(self.runtime.clone(), (inner, of), told));
        if self.writer.compresses() {
            let late = self.writer.clone().append_late(self.runtime.clone(), key, late);
            self.tasks.spawn(Queue::Request, late);
        }
        active
    }

    /// Ends a machine, a part at a time: whoever waits is replied to, and its memory is given back. The first part is done
    /// when this returns, and from then on it takes no event.
    pub(super) fn unload(self: &Rc<Self>, active: Rc<Active>) {
        active.is_over.set(true);
        active.writes.close();
        self.counts.set(self.counts.get().and(active.machine.borrow().counts()));
        self.timers.set(active.key.partition, active.timer.replace(NEVER), NEVER);
        self.timers.active.borrow_mut().remove(&active.key.partition);
        if !self.unload_some(&active) {
            return;
        }
        let (inner, runtime) = (Rc::downgrade(self), self.runtime.clone());
        self.tasks.spawn(Queue::Request, async move {
            let mut pace = Pace::new(&runtime);
            while inner.upgrade().is_some_and(|inner| inner.unload_some(&active)) {
                pace.look().await;
            }
        });
    }

    /// A part of that; whether there is more.
    fn unload_some(self: &Rc<Self>, active: &Rc<Active>) -> bool {
        let mut out = self.effects.take();
        let has_more = active.machine.borrow_mut().unload(&mut out);
        self.note_kept(active);
        self.carry_out(active, out, &mut None);
        if has_more {
            return true;
        }
        let left = std::mem::take(&mut *active.waiters.borrow_mut());
        if !left.is_empty() {
            self.waiting.set(self.waiting.get().saturating_sub(left.len()));
            tracing::error!(requests = left.len(), "requests to groups were never replied to");
        }
        false
    }

    /// Hands a request to the machine. A reply that is not there when the step ends comes later.
    pub(super) fn ask(self: &Rc<Self>, active: &Rc<Active>, request: GroupRequest, direct: Direct) {
        let waiter = Waiter(direct.waiter);
        let gone = self.gone(&request);
        self.step(active, Event::Request { waiter, request, gone }, Some(direct));
    }

    /// One step of a machine, and what it wants done.
    pub(super) fn step(self: &Rc<Self>, active: &Rc<Active>, event: Event, mut direct: Option<Direct>) {
        if active.is_over.get() {
            return;
        }
        // Only a join can need an id.
        let random = match &event {
            Event::Request { request: GroupRequest::Join(_), .. } => {
                u128::from(self.runtime.random()) << 64 | u128::from(self.runtime.random())
            }
            _ => 0,
        };
        let (mut now, mut out) = (self.now(random), self.effects.take());
        // Where there is no such log, the append says so.
        if let Event::Request { request: GroupRequest::OffsetCommit(commit), .. } = &event
            && commit.offsets.len() > FEW_OFFSETS
        {
            now.room.batch = self.writer.plain_bytes_max(active.key).unwrap_or(usize::MAX);
        }
        active.machine.borrow_mut().step(now, event, &mut out);
        self.note_kept(active);
        self.carry_out(active, out, &mut direct);
        if let Some(Direct { waiter, from, ticket, reply }) = direct {
            self.waiting.set(self.waiting.get().saturating_add(1));
            let asker = match ticket {
                Some(ticket) => {
                    reply.send(GroupAnswer::Parked);
                    Asker::There(from, ticket)
                }
                None => Asker::Here(reply),
            };
            active.waiters.borrow_mut().insert(Waiter(waiter), asker);
        }
    }

    /// Brings up to date how much the groups of the shard take.
    fn note_kept(&self, active: &Active) {
        let bytes = active.machine.borrow().gauges().bytes;
        let others = self.kept.get().saturating_sub(active.kept.replace(bytes));
        self.kept.set(others.saturating_add(bytes));
    }

    /// Does what a machine wants done, in its order. No borrow is held: an append may come back by the log's events.
    pub(super) fn carry_out(
        self: &Rc<Self>,
        active: &Rc<Active>,
        mut effects: Vec<Effect>,
        direct: &mut Option<Direct>,
    ) {
        let mut has_late = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Reply { waiter, reply } => {
                    if let Some(direct) = direct.take_if(|direct| Waiter(direct.waiter) == waiter) {
                        direct.reply.send(GroupAnswer::Reply(reply));
                        continue;
                    }
                    let asker = active.waiters.borrow_mut().remove(&waiter);
                    let Some(asker) = asker else {
                        tracing::error!(waiter = waiter.0, "a reply to a request that does not wait");
                        continue;
                    };
                    self.waiting.set(self.waiting.get().saturating_sub(1));
                    match asker {
                        Asker::Here(asker) => asker.send(GroupAnswer::Reply(reply)),
                        Asker::There(to, ticket) => {
                            self.lines.push(to, (ticket, reply));
                            has_late = true;
                        }
                    }
                }
                Effect::Append { write, records } => {
                    let to = (active.key, &active.writes);
                    self.writer.append(&self.runtime, to, write, records);
                }
                Effect::Continue => self.go_on(active),
                Effect::Tell(news) => self.tell(&news),
            }
        }
        self.effects.set(effects);
        if has_late {
            self.lines.flush();
        }
        self.rearm(active);
    }

    /// More work of a machine, after the shard had its turn.
    fn go_on(self: &Rc<Self>, active: &Rc<Active>) {
        let (inner, active, turn) = (Rc::downgrade(self), Rc::downgrade(active), self.runtime.turn());
        self.tasks.spawn(Queue::Background, async move {
            turn.await;
            if let (Some(inner), Some(active)) = (inner.upgrade(), active.upgrade()) {
                inner.step(&active, Event::Continue, None);
            }
        });
    }

    /// Has the timer fire when the machine wants it to.
    fn rearm(self: &Rc<Self>, active: &Rc<Active>) {
        if active.is_over.get() {
            return;
        }
        let next = active.machine.borrow().next_timer().unwrap_or(NEVER);
        let before = active.timer.replace(next);
        if next == before {
            return;
        }
        let timers = &self.timers;
        timers.set(active.key.partition, before, next);
        if next >= timers.at.get() || timers.is_firing.get() {
            return;
        }
        timers.at.set(next);
        let sleep = self.runtime.sleep_until(next);
        let (inner, runtime) = (Rc::downgrade(self), self.runtime.clone());
        let task = self.runtime.spawn(Queue::Request, async move {
            sleep.await;
            fire(inner, runtime).await;
        });
        timers.task.replace(Some(task));
    }
}

/// The timers' task: runs from time to time, and ends when nothing is armed.
async fn fire<R: ShardRuntime>(inner: Weak<Inner<R>>, runtime: R) {
    loop {
        let Some(here) = inner.upgrade() else { return };
        here.timers.is_firing.set(true);
        let mut pace = Pace::new(&runtime);
        while let Some(active) = here.timers.pop_due(runtime.now()) {
            if let Some(active) = active.upgrade() {
                active.timer.set(NEVER);
                here.step(&active, Event::Timer, None);
            }
            pace.look().await;
        }
        here.timers.is_firing.set(false);
        let next = here.timers.first();
        here.timers.at.set(next);
        drop(here);
        if next == NEVER {
            return;
        }
        runtime.sleep_until(next).await;
    }
}

/// Tells a machine what became of its batches, in their order.
async fn tell_writes<R: ShardRuntime>(
    runtime: R,
    (inner, active): (Weak<Inner<R>>, Weak<Active>),
    mut writes: mpsc::UnboundedReceiver<Writing>,
) {
    let mut pace = Pace::new(&runtime);
    while let Some(Writing { write, outcome, room }) = pace.wait_for(writes.next()).await {
        let outcome = pace.wait_for(outcome.known()).await;
        drop(room);
        let (Some(inner), Some(active)) = (inner.upgrade(), active.upgrade()) else { return };
        inner.step(&active, Event::Written { write, outcome }, None);
        drop((inner, active));
        pace.look().await;
    }
}

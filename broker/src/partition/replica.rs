//! One local replica with its log: the driver of `machine`. Owns role, configuration, append queue and waiters of the
//! partition; `append` fills the queue, `read` answers reads. What happens to the log comes in as [`LogEvent`]s, in the
//! turn in which it happens. The log may be replaced by a copy in another log dir (`moves`): nobody else keeps it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use protocol::types::{LeaderEpoch, MonoTime, Offset, TopicPartition};
use storage::config::Durability;
use storage::log::{Log, LogEvent, LogState};

use super::append::AppendQueue;
use super::ask::{AppendRefusal, Appended, DirFailure, FetchPart, PartitionError, PartitionKey, Quiet};
use super::count::TakenBack;
use super::delayed::produce::DelayedProduces;
use super::gather::Ticket;
use super::hub::Hub;
use super::machine::{Action, Event, Loaded, PartitionState, ReplicaMachine, Stale};
use super::space::{FreeSpace, Room};
use crate::config::topic::TopicConfig;
use crate::metrics::registry::TopicMetrics;
use crate::shard::NEVER;
use crate::shard::memory::Charge;

/// Places for charges that a partition keeps while it has none: as many as come in a turn with small requests.
const UNWRITTEN_KEPT_MAX: usize = 4;

/// An append that is not acknowledged yet.
pub(super) struct Unacknowledged {
    pub(super) ticket: Ticket,
    pub(super) appended: Appended,
}

/// Where the records are.
struct Place<R: storage::io::Runtime> {
    dir: Arc<Path>,
    log: Rc<Log<R>>,
    space: Rc<FreeSpace>,
}

/// A log is being replaced by its copy.
#[derive(Default)]
struct Swap {
    /// Who waits for the end of that.
    waiters: Vec<oneshot::Sender<()>>,
    /// The system lacks what the copy needs for a while: readers go on with the log, and appends are refused.
    is_held_up: bool,
}

/// One local replica.
pub(super) struct Partition<R: storage::io::Runtime> {
    pub(super) key: PartitionKey,
    pub(super) name: TopicPartition,
    place: RefCell<Place<R>>,
    pub(super) hub: Rc<Hub<R>>,
    pub(super) machine: RefCell<ReplicaMachine>,
    pub(super) appends: AppendQueue,
    /// What the topic's traffic is counted in.
    pub(super) counts: TopicMetrics,
    pub(super) taken_back: TakenBack,
    config: RefCell<Arc<TopicConfig>>,
    /// What appended batches take of their clients' shards, and on the way to the disk, each up to the offset at
    /// which it is written. Apart from who waits for an answer: that may take longer, and must not keep others from being
    /// read.
    unwritten: RefCell<VecDeque<(Offset, Charge, Option<Room>)>>,
    until_safe: RefCell<DelayedProduces<Unacknowledged>>,
    until_replicated: RefCell<DelayedProduces<Unacknowledged>>,
    /// Stopped: requests that are still on their way find nobody here.
    gone: Cell<bool>,
    /// A compaction runs on the log.
    cleaning: Cell<bool>,
    /// The log is being copied to another log dir: compaction and retention leave it alone, as in Kafka.
    moving: Cell<bool>,
    /// The log is being replaced by its copy.
    swapping: RefCell<Option<Swap>>,
    /// Where the log ended when it was opened, before anything was appended.
    pub(super) opened_end: Offset,
    /// The log cannot be compacted, until it is opened again.
    uncleanable: Cell<bool>,
    /// Compactions that have failed one after the other, and when the next is tried.
    failed_rounds: Cell<(u32, MonoTime)>,
    /// When it last moved, as a number that no partition of this shard has had before.
    moment: Cell<u64>,
}

impl<R: storage::io::Runtime> Partition<R> {
    /// A replica over a log that was just opened; it has no role yet.
    pub(super) fn new(
        hub: &Rc<Hub<R>>,
        key: PartitionKey,
        name: TopicPartition,
        (dir, log, high_watermark): (Arc<Path>, Rc<Log<R>>, Offset),
        config: Arc<TopicConfig>,
    ) -> Rc<Self> {
        let loaded = Loaded {
            log_start_offset: log.log_start_offset(),
            log_end_offset: log.log_end_offset(),
            safe_offset: log.safe_offset(),
            high_watermark,
        };
        let machine = ReplicaMachine::new(hub.me, loaded, min_isr(&config), hub.lag_nanos_max);
        let counts = hub.metrics.topic(&name.topic);
        let (opened_end, space) = (log.log_end_offset(), hub.space(&dir));
        let partition = Rc::new(Self {
            counts,
            taken_back: TakenBack::default(),
            key,
            name,
            place: RefCell::new(Place { dir, log: log.clone(), space }),
            hub: hub.clone(),
            machine: RefCell::new(machine),
            appends: AppendQueue::default(),
            config: RefCell::new(config),
            unwritten: RefCell::default(),
            until_safe: RefCell::default(),
            until_replicated: RefCell::default(),
            gone: Cell::new(false),
            cleaning: Cell::new(false),
            moving: Cell::new(false),
            swapping: RefCell::new(None),
            opened_end,
            uncleanable: Cell::new(false),
            failed_rounds: Cell::new((0, MonoTime::new(0))),
            moment: Cell::new(hub.next_moment()),
        });
        partition.listen_to(&log);
        partition
    }

    fn listen_to(self: &Rc<Self>, log: &Log<R>) {
        let itself = Rc::downgrade(self);
        log.set_listener(move |event| {
            if let Some(partition) = itself.upgrade() {
                partition.log_event(event);
            }
        });
    }

    /// The log, as it is now.
    pub(super) fn log(&self) -> Rc<Log<R>> {
        self.place.borrow().log.clone()
    }

    /// The log dir that it is in.
    pub(super) fn dir(&self) -> Arc<Path> {
        self.place.borrow().dir.clone()
    }

    /// The room there.
    pub(super) fn space(&self) -> Rc<FreeSpace> {
        self.place.borrow().space.clone()
    }

    /// Whether the log is being copied to another log dir.
    pub(super) fn is_moving(&self) -> bool {
        self.moving.get()
    }

    pub(super) fn set_moving(&self, is_moving: bool) {
        self.moving.set(is_moving);
    }

    /// Another log is about to take the place of this one. Whoever reads waits meanwhile; nobody appends.
    pub(super) fn begin_swap(&self) {
        self.swapping.replace(Some(Swap::default()));
    }

    /// It takes longer than anybody should wait.
    pub(super) fn hold_up_swap(&self) {
        let waiting = self.swapping.borrow_mut().as_mut().map(|swap| {
            swap.is_held_up = true;
            std::mem::take(&mut swap.waiters)
        });
        drop(waiting);
    }

    /// Whether the log is being replaced, which takes so long that appends are refused.
    pub(super) fn is_swap_held_up(&self) -> bool {
        self.swapping.borrow().as_ref().is_some_and(|swap| swap.is_held_up)
    }

    /// Whether whoever reads waits for another log.
    pub(super) fn is_swapping(&self) -> bool {
        self.swapping.borrow().as_ref().is_some_and(|swap| !swap.is_held_up)
    }

    /// Goes on with a log of the same records in another dir, or with the one that was there.
    pub(super) fn end_swap(self: &Rc<Self>, taken: Option<(Arc<Path>, Rc<Log<R>>)>) {
        if let Some((dir, log)) = taken {
            self.listen_to(&log);
            let (space, end) = (self.hub.space(&dir), log.log_end_offset());
            self.place.replace(Place { dir, log, space });
            // All of it is on the disk: nobody waits for a sync of the log that is gone.
            self.became_safe(end);
        }
        let waiting = self.swapping.take();
        drop(waiting);
        self.moved();
    }

    /// Asks the log, and again if it was replaced meanwhile: then the answer may be that of one that was closed.
    pub(super) async fn ask_log<T>(&self, ask: impl AsyncFn(&Log<R>) -> T) -> T {
        loop {
            let log = self.log();
            let answer = ask(&log).await;
            self.swapped().await;
            if Rc::ptr_eq(&log, &self.log()) {
                return answer;
            }
        }
    }

    /// Waits until it is known which log serves.
    pub(super) async fn swapped(&self) {
        loop {
            let waiting = self.swapping.borrow_mut().as_mut().filter(|swap| !swap.is_held_up).map(|swap| {
                let (waiter, waiting) = oneshot::channel();
                swap.waiters.push(waiter);
                waiting
            });
            let Some(waiting) = waiting else { return };
            // Dropped when it is over.
            let _ = waiting.await;
        }
    }

    pub(super) fn config(&self) -> Arc<TopicConfig> {
        self.config.borrow().clone()
    }

    pub(super) fn is_cleaning(&self) -> bool {
        self.cleaning.get()
    }

    pub(super) fn set_cleaning(&self, is_cleaning: bool) {
        self.cleaning.set(is_cleaning);
    }

    pub(super) fn is_uncleanable(&self) -> bool {
        self.uncleanable.get()
    }

    pub(super) fn set_uncleanable(&self) {
        self.uncleanable.set(true);
    }

    pub(super) fn failed_rounds(&self) -> u32 {
        self.failed_rounds.get().0
    }

    pub(super) fn clean_again_at(&self) -> MonoTime {
        self.failed_rounds.get().1
    }

    pub(super) fn set_failed_rounds(&self, failed: u32, again_at: MonoTime) {
        self.failed_rounds.set((failed, again_at));
    }

    pub(super) fn high_watermark(&self) -> Offset {
        self.machine.borrow().high_watermark()
    }

    pub(super) fn leader_epoch(&self) -> LeaderEpoch {
        self.machine.borrow().leader_epoch()
    }

    /// The epoch in which this broker leads, if it does.
    pub(super) fn leads_in(&self) -> Option<LeaderEpoch> {
        let machine = self.machine.borrow();
        machine.is_leader().then(|| machine.leader_epoch())
    }

    /// Whether requests find the partition, its leader and its log here.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn check_leader(&self, asked: LeaderEpoch) -> Result<(), PartitionError> {
        self.check_online()?;
        self.machine.borrow().check_leader(asked)
    }

    /// Whether requests find the partition and its log here.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn check_online(&self) -> Result<(), PartitionError> {
        if self.gone.get() {
            Err(PartitionError::NotHere)
        } else if self.is_swapping() {
            // Whoever reads waits for the log to come.
            Ok(())
        } else {
            match self.log().state() {
                LogState::Online | LogState::Full => Ok(()),
                LogState::Offline { .. } => Err(PartitionError::Offline),
                LogState::Closed => Err(PartitionError::NotHere),
            }
        }
    }

    /// Takes the controller's state; the leader epoch that begins with it, if one does: the log has to record it.
    ///
    /// # Errors
    /// It is older than ours.
    pub(super) fn take_state(self: &Rc<Self>, state: PartitionState) -> Result<Option<LeaderEpoch>, Stale> {
        let before = self.leader_epoch();
        self.step(Event::Become(state))?;
        let now = self.leader_epoch();
        if now > before {
            // Fetches that wait in the epoch before are fenced at once, also under the same leader (V-36).
            self.moved();
        }
        Ok((now > before && self.machine.borrow().is_leader()).then_some(now))
    }

    /// Takes a configuration.
    pub(super) fn set_config(self: &Rc<Self>, config: Arc<TopicConfig>) {
        self.log().set_config(config.log.clone());
        self.config.replace(config.clone());
        self.apply(Event::MinIsr(min_isr(&config)));
        // What waits may be safe by the mode that holds now.
        self.became_safe(self.log().safe_offset());
    }

    /// Readers that came before the log was open find it now.
    pub(super) fn loaded(self: &Rc<Self>) {
        self.moved();
    }

    /// The log start moved, by DeleteRecords or retention.
    pub(super) fn log_start_moved(self: &Rc<Self>) {
        self.apply(Event::LogStart(self.log().log_start_offset()));
        self.moved();
    }

    /// Ends the replica's service: everybody who waits is answered.
    pub(super) fn stop(self: &Rc<Self>) {
        self.gone.set(true);
        self.refuse_waiters(PartitionError::NotHere);
        self.moved();
    }

    /// Keeps the charge of bytes that were just appended, and their room, until everything below `end` is written, or gone.
    pub(super) fn charge_until_written(&self, end: Offset, charge: Charge, room: Option<Room>) {
        self.unwritten.borrow_mut().push_back((end, charge, room));
    }

    /// Waits for the acknowledgement of an append: until the log is safe below `required`.
    pub(super) fn acknowledge_when_safe(&self, required: Offset, waiter: Unacknowledged) {
        if required <= self.log().safe_offset() {
            waiter.ticket.appended(waiter.appended);
        } else {
            self.until_safe.borrow_mut().wait(required, NEVER, waiter);
        }
    }

    /// The same for acks=all: until the high watermark is at `required`. The deadline is for followers: before the append is
    /// safe in the log itself nothing times out.
    pub(super) fn acknowledge_when_replicated(
        self: &Rc<Self>,
        required: Offset,
        deadline: MonoTime,
        waiter: Unacknowledged,
    ) {
        if required <= self.high_watermark() {
            self.replicated(waiter);
            return;
        }
        self.until_replicated.borrow_mut().wait(required, deadline, waiter);
        if required <= self.log().safe_offset() {
            self.hub.replicates(self, deadline);
        }
    }

    /// Lets the deadlines of acks=all pass; the next one, if any append still waits.
    pub(super) fn expire_appends(&self, now: MonoTime) -> Option<MonoTime> {
        let safe = self.log().safe_offset();
        loop {
            let expired = self.until_replicated.borrow_mut().pop_expired(now, safe);
            let Some(waiter) = expired else { break };
            waiter.ticket.unacknowledged(AppendRefusal::TimedOut, waiter.appended);
        }
        let next = self.until_replicated.borrow().deadline(safe);
        if next.is_none() {
            self.hub.replicated(self.key);
        }
        next
    }

    /// An event that cannot be refused.
    pub(super) fn apply(self: &Rc<Self>, event: Event) {
        let taken = self.step(event);
        assert!(taken.is_ok(), "only a state of the controller can be stale");
    }

    fn step(self: &Rc<Self>, event: Event) -> Result<(), Stale> {
        let mut actions = self.hub.actions.take();
        let taken = self.machine.borrow_mut().step(self.hub.runtime.now(), event, &mut actions);
        if taken.is_err() {
            actions.clear();
        }
        for action in actions.drain(..) {
            self.act(action);
        }
        self.hub.actions.set(actions);
        taken
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            // The log's files are not changed in a turn: `take_state` tells its caller.
            Action::AssignEpoch { .. } => {}
            Action::HighWatermark(offset) => {
                self.release_replicated(offset);
                self.moved();
            }
            Action::LostLeadership => {
                let error = self.machine.borrow().not_leader();
                self.fail_replicating(error);
                self.moved();
            }
            // One replica never has anybody to add or remove; the sender to the controller comes with the second.
            Action::ProposeIsr { leader_epoch, .. } => {
                tracing::debug!(partition = %self.name, %leader_epoch, "ISR change is not sent");
            }
        }
    }

    fn log_event(self: &Rc<Self>, event: LogEvent) {
        match event {
            LogEvent::Written(written) => {
                self.discharge(|end| end <= written);
                match self.log().durability() {
                    Durability::Kafka => self.became_safe(written),
                    // The high watermark was there before; only now it can be read.
                    Durability::Relaxed => self.moved(),
                    // With the commit that has begun.
                    Durability::Strict => {}
                }
            }
            LogEvent::Durable(durable) => self.became_safe(durable),
            LogEvent::CutBack(end) => {
                // All that was not written is gone.
                self.discharge(|_| true);
                self.apply(Event::Truncated { log_end_offset: end });
                let cut: Vec<_> = self.until_safe.borrow_mut().take_above(end).collect();
                let unreplicated: Vec<_> = self.until_replicated.borrow_mut().take_above(end).collect();
                refuse(cut.into_iter().chain(unreplicated), PartitionError::Offline);
                self.moved();
            }
            LogEvent::Synced { nanos } => self.hub.metrics.log_flush.record_nanos(nanos),
            LogEvent::Offline { .. } => {
                self.discharge(|_| true);
                self.refuse_waiters(PartitionError::Offline);
                self.moved();
                // Without a fault of its own it went offline because the dir has failed.
                if let Some(cause) = self.log().fault() {
                    self.hub.failures.report(&DirFailure { dir: self.dir(), cause: (&*cause).into() });
                }
            }
        }
    }

    /// The log is safe up to here, by the durability mode: who needed no more is acknowledged, and the high watermark may
    /// follow.
    pub(super) fn became_safe(self: &Rc<Self>, safe: Offset) {
        self.apply(Event::Safe(safe));
        loop {
            let next = self.until_safe.borrow_mut().pop_reached(safe);
            let Some(waiter) = next else { break };
            waiter.ticket.appended(waiter.appended);
        }
        // What the high watermark left waits for followers, from now on.
        let deadline = self.until_replicated.borrow().deadline(safe);
        if let Some(deadline) = deadline {
            self.hub.replicates(self, deadline);
        }
    }

    /// Appends that wait for the high watermark.
    pub(super) fn delayed_appends(&self) -> usize {
        self.until_replicated.borrow().len()
    }

    /// Gives back the oldest charges.
    fn discharge(&self, is_over: impl Fn(Offset) -> bool) {
        let mut unwritten = self.unwritten.borrow_mut();
        while unwritten.front().is_some_and(|(end, ..)| is_over(*end)) {
            unwritten.pop_front();
        }
        if unwritten.is_empty() && unwritten.capacity() > UNWRITTEN_KEPT_MAX {
            // An idle partition holds little memory for it.
            *unwritten = VecDeque::new();
        }
    }

    fn release_replicated(&self, high_watermark: Offset) {
        loop {
            let next = self.until_replicated.borrow_mut().pop_reached(high_watermark);
            let Some(waiter) = next else { break };
            self.replicated(waiter);
        }
        if self.until_replicated.borrow().is_empty() {
            self.hub.replicated(self.key);
        }
    }

    /// The high watermark reached an append: it counts if enough replicas hold it.
    fn replicated(&self, waiter: Unacknowledged) {
        let (isr, min_isr) = self.machine.borrow().maximal_isr();
        if isr >= min_isr {
            waiter.ticket.appended(waiter.appended);
        } else {
            let error = AppendRefusal::NotEnoughReplicasAfterAppend { isr, min_isr };
            waiter.ticket.unacknowledged(error, waiter.appended);
        }
    }

    fn fail_replicating(&self, error: PartitionError) {
        let waiters = self.until_replicated.borrow_mut().take_all();
        self.hub.replicated(self.key);
        for waiter in waiters {
            waiter.ticket.unacknowledged(error.into(), waiter.appended);
        }
    }

    fn refuse_waiters(&self, error: PartitionError) {
        let waiters = self.until_safe.borrow_mut().take_all();
        let replicating = self.until_replicated.borrow_mut().take_all();
        self.hub.replicated(self.key);
        refuse(waiters.chain(replicating), error);
    }

    /// The moment to compare with later.
    pub(super) fn moment(&self) -> Quiet {
        Quiet::new(self.moment.get())
    }

    /// Whether nothing that a reader could be told has moved since it was told all.
    pub(super) fn is_quiet(&self, part: &FetchPart) -> bool {
        part.quiet == Some(self.moment())
    }

    /// Something that fetches look at has moved.
    fn moved(self: &Rc<Self>) {
        self.moment.set(self.hub.next_moment());
        if !self.hub.fetches.borrow().waits_for(self.key) {
            return;
        }
        let mut wakes = Vec::new();
        self.hub.fetches.borrow_mut().moved(
            self.key,
            |armed, part| self.probe(armed.isolation, armed.reader, part),
            &mut wakes,
        );
        self.hub.wake(wakes);
    }
}

/// Tells appends that they did not happen, or are gone.
fn refuse(waiters: impl Iterator<Item = Unacknowledged>, error: PartitionError) {
    for waiter in waiters {
        let log_start_offset = waiter.appended.log_start_offset;
        waiter.ticket.refused(error.into(), log_start_offset);
    }
}

fn min_isr(config: &TopicConfig) -> usize {
    usize::try_from(config.min_insync_replicas).unwrap_or(1)
}

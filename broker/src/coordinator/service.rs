//! The coordinators of one shard: one machine for each partition of `__consumer_offsets` that this broker leads and
//! this shard owns. Follows the leadership of its partitions: loads on election, unloads on resignation (coordinators.md
//! 3.5, 3.6). What machines want done stands in `active`. Knows no wire format; `client` asks it for the handlers.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use protocol::error::ErrorCode;
use protocol::types::{CONSUMER_OFFSETS, LeaderEpoch, MonoTime, TimestampMs, TopicName};
use storage::io::Queue;

use super::active::{Active, Direct, Timers};
use super::ask::{GroupAnswer, GroupAsk, GroupReply, GroupRequest, Listed, Ticket};
use super::gauges::{Loads, Round};
use super::group::machine::{Effect, Event, Now};
use super::group::news::News;
use super::group::{Counts, Groups, refused, while_loading};
use super::load::{LoadFault, Loaded, load};
use super::report::Report;
use super::settings::GroupServiceSettings;
use super::write::Writer;
use crate::metadata::cell::ImageCell;
use crate::metadata::image::Image;
use crate::partition::ask::PartitionKey;
use crate::partition::roles::RoleChange;
use crate::partition::service::PartitionService;
use crate::shard::lines::Lines;
use crate::shard::pace::Pace;
use crate::shard::tasks::TaskSet;
use crate::shard::{Reply, Service, ShardId, ShardRuntime, Shards};

/// Groups of one partition that are listed in one go: some 100 µs.
const LISTED_A_STEP: usize = 1_000;

/// Loads that follow each other within this time are told in one line: at a start there are as many as partitions.
const ROUND_MS: i64 = 1_000;

/// The coordinators of one shard. Clones share them.
pub struct GroupService<R: ShardRuntime>(pub(super) Rc<Inner<R>>);

impl<R: ShardRuntime> Clone for GroupService<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// See [`GroupService`].
pub(super) struct Inner<R: ShardRuntime> {
    pub(super) runtime: R,
    pub(super) settings: GroupServiceSettings,
    /// The newest image of the shard; who fills it tells of each by `image_replaced`.
    image: ImageCell,
    partitions: Shards<R, PartitionService<R>>,
    pub(super) writer: Rc<Writer<R>>,
    /// Replies that come later than their requests; bounded by the requests that wait.
    pub(super) lines: Lines<(Ticket, GroupReply), GroupAnswer>,
    pub(super) tasks: TaskSet<R>,
    pub(super) timers: Timers<R>,
    /// Empty between two steps of machines: the room for their effects.
    pub(super) effects: Cell<Vec<Effect>>,
    /// Bytes that the groups take.
    pub(super) kept: Cell<usize>,
    pub(super) report: Report,
    /// Requests that wait for their replies.
    pub(super) waiting: Cell<usize>,
    next_waiter: Cell<u64>,
    slots: RefCell<BTreeMap<i32, Rc<Slot>>>,
    to_load: RefCell<VecDeque<Rc<Slot>>>,
    is_loading: Cell<bool>,
    is_stopped: Cell<bool>,
    pub(super) loads: Cell<Loads>,
    /// What machines did that are unloaded: counters do not fall with them.
    pub(super) counts: Cell<Counts>,
}

/// A partition that is led here.
struct Slot {
    key: PartitionKey,
    epoch: Cell<LeaderEpoch>,
    /// Unloaded: what still holds it lets it go.
    is_over: Cell<bool>,
    state: RefCell<State>,
}

/// How far a partition is.
enum State {
    /// Its log is being read, or waits for that. Topics that were deleted meanwhile may be in what was read before.
    Loading { deleted: BTreeSet<TopicName> },
    /// It is served.
    Active(Rc<Active>),
    /// It could not be loaded, or is unloaded.
    Unserved,
}

impl<R: ShardRuntime> Service for GroupService<R> {
    type Ask = GroupAsk;
    type Answer = GroupAnswer;

    fn accept(&self, from: ShardId, ask: GroupAsk, reply: Reply<GroupAnswer>) {
        match ask {
            GroupAsk::One { ticket, partition, request } => {
                self.request(partition, request, |waiter| Direct { waiter, from, ticket, reply });
            }
            GroupAsk::Late => self.0.lines.listen(from, reply),
            GroupAsk::List => {
                let service = self.clone();
                self.0.tasks.spawn(Queue::Request, async move {
                    reply.send(GroupAnswer::Listed(service.list().await));
                });
            }
        }
    }
}

impl<R: ShardRuntime> GroupService<R> {
    /// The coordinators of a shard, none yet: they come with the leadership of partitions of this shard's owner.
    pub fn new(
        runtime: &R,
        image: ImageCell,
        partitions: Shards<R, PartitionService<R>>,
        settings: GroupServiceSettings,
    ) -> Self {
        let writer = Writer::new(partitions.clone(), settings.compression, settings.commit_timeout_ms);
        let inner = Rc::new(Inner {
            runtime: runtime.clone(),
            image,
            partitions,
            writer: Rc::new(writer),
            lines: Lines::new(GroupAnswer::Late),
            tasks: TaskSet::new(runtime.clone()),
            timers: Timers::default(),
            effects: Cell::default(),
            kept: Cell::default(),
            report: Report::default(),
            waiting: Cell::default(),
            next_waiter: Cell::default(),
            slots: RefCell::default(),
            to_load: RefCell::default(),
            is_loading: Cell::new(false),
            is_stopped: Cell::new(false),
            loads: Cell::default(),
            counts: Cell::default(),
            settings,
        });
        let weak = Rc::downgrade(&inner);
        inner.partitions.local().on_role(CONSUMER_OFFSETS, move |key, change| {
            let Some(inner) = weak.upgrade() else { return };
            match change {
                RoleChange::Leads(epoch) => Self(inner).elected(key, epoch),
                RoleChange::Ended(epoch) => Self(inner).resigned(key, epoch),
            }
        });
        let service = Self(inner);
        service.start_expiry();
        service
    }

    /// Answers whoever waits, and takes no more requests.
    pub fn stop(&self) {
        self.0.is_stopped.set(true);
        let slots = std::mem::take(&mut *self.0.slots.borrow_mut());
        for slot in slots.values() {
            self.unload(slot);
        }
    }

    /// Requests that wait for their replies, also those whose client has gone.
    pub fn waiting(&self) -> usize {
        self.0.waiting.get().saturating_add(self.0.lines.waiting())
    }

    fn request(&self, partition: i32, request: GroupRequest, direct: impl FnOnce(u64) -> Direct) {
        let waiter = self.0.next_waiter.get().wrapping_add(1);
        self.0.next_waiter.set(waiter);
        let direct = direct(waiter);
        match self.find(partition, &request) {
            Ok(active) => self.0.ask(&active, request, direct),
            Err(refusal) => direct.reply.send(GroupAnswer::Reply(refusal)),
        }
    }

    /// Who decides about a partition; else what is replied, in the order of coordinators.md 1.3.
    fn find(&self, partition: i32, request: &GroupRequest) -> Result<Rc<Active>, GroupReply> {
        if self.0.is_stopped.get() {
            return Err(refused(request, ErrorCode::CoordinatorNotAvailable));
        }
        let slot = self.0.slots.borrow().get(&partition).cloned();
        let Some(slot) = slot else { return Err(refused(request, ErrorCode::NotCoordinator)) };
        match &*slot.state.borrow() {
            State::Loading { .. } => Err(while_loading(request)),
            State::Unserved => Err(refused(request, ErrorCode::NotCoordinator)),
            State::Active(_) if self.0.is_overloaded(request) => {
                Err(refused(request, ErrorCode::CoordinatorNotAvailable))
            }
            State::Active(active) => Ok(active.clone()),
        }
    }

    /// This broker leads a partition of this shard since `epoch`.
    pub fn elected(&self, key: PartitionKey, epoch: LeaderEpoch) {
        if self.0.is_stopped.get() {
            return;
        }
        let known = self.0.slots.borrow().get(&key.partition).cloned();
        if let Some(slot) = known {
            if slot.key == key {
                let before = slot.epoch.get();
                slot.epoch.set(epoch.max(before));
                // It is the same log, and what is kept of it holds; a load that failed is tried once more.
                if epoch <= before || !matches!(*slot.state.borrow(), State::Unserved) {
                    return;
                }
            }
            self.unload(&slot);
        }
        let slot = Rc::new(Slot {
            key,
            epoch: Cell::new(epoch),
            is_over: Cell::new(false),
            state: RefCell::new(State::Loading { deleted: BTreeSet::new() }),
        });
        self.0.slots.borrow_mut().insert(key.partition, slot.clone());
        self.0.to_load.borrow_mut().push_back(slot);
        if !self.0.is_loading.replace(true) {
            let service = self.clone();
            self.0.tasks.spawn(Queue::Control, async move { service.load_all().await });
        }
    }

    /// This broker does not lead a partition any more: another one does since `epoch`, or it is gone whatever the epoch.
    /// A resignation from an epoch before the one that is known comes too late (O-13).
    pub fn resigned(&self, key: PartitionKey, epoch: Option<LeaderEpoch>) {
        let known = self.0.slots.borrow().get(&key.partition).cloned();
        let Some(slot) = known.filter(|slot| slot.key == key) else { return };
        if epoch.is_some_and(|epoch| epoch < slot.epoch.get()) {
            return;
        }
        self.0.slots.borrow_mut().remove(&key.partition);
        self.unload(&slot);
        tracing::info!(partition = key.partition, "groups unloaded");
    }

    fn unload(&self, slot: &Rc<Slot>) {
        slot.is_over.set(true);
        let state = slot.state.replace(State::Unserved);
        if let State::Active(active) = state {
            self.0.unload(active);
        }
    }

    /// Loads what waits for it, one partition after the other.
    async fn load_all(&self) {
        loop {
            let next = self.0.to_load.borrow_mut().pop_front();
            let Some(slot) = next else { break };
            if !slot.is_over.get() {
                self.load(&slot).await;
            }
        }
        self.0.is_loading.set(false);
    }

    async fn load(&self, slot: &Rc<Slot>) {
        let (runtime, settings) = (&self.0.runtime, &self.0.settings);
        let began = runtime.now();
        let mut groups = Groups::new(settings.groups);
        let (of, buffer_bytes) = ((self.0.partitions.local(), slot.key), settings.load_buffer_bytes);
        let outcome = match load(runtime, of, buffer_bytes, &mut groups, || slot.is_over.get()).await {
            Ok(loaded) => self.begin_sessions(slot, &mut groups).await.map(|first| (loaded, first)),
            Err(error) => Err(error),
        };
        let partition = slot.key.partition;
        match outcome {
            Ok((loaded, first)) => {
                self.note_loaded(partition, began, &loaded);
                return self.activate(slot, groups, first);
            }
            // Its owner has said so, or is about to.
            Err(LoadFault::Stopped) => drop(slot.state.replace(State::Unserved)),
            Err(_) if slot.is_over.get() => {}
            Err(error) => {
                tracing::error!(
                    partition,
                    %error,
                    "a partition of __consumer_offsets could not be loaded: its groups are not served until it is \
                     repaired and the broker is started again"
                );
                slot.state.replace(State::Unserved);
            }
        }
        self.let_go(groups).await;
    }

    /// What the groups want done before the first request, once all records are told.
    async fn begin_sessions(&self, slot: &Slot, groups: &mut Groups) -> Result<Vec<Effect>, LoadFault> {
        let mut pace = Pace::new(&self.0.runtime);
        let (mut first, mut after) = (Vec::new(), None);
        loop {
            after = groups.loaded(self.0.now(0), after.as_ref(), &mut first);
            if slot.is_over.get() {
                return Err(LoadFault::Stopped);
            }
            if after.is_none() {
                return Ok(first);
            }
            pace.look().await;
        }
    }

    /// Gives back the memory of groups that are not served after all.
    async fn let_go(&self, mut groups: Groups) {
        let mut pace = Pace::new(&self.0.runtime);
        while groups.unload(&mut Vec::new()) {
            pace.look().await;
        }
    }

    fn note_loaded(&self, partition: i32, began: MonoTime, loaded: &Loaded) {
        let mut loads = self.0.loads.get();
        let begins_round = loads.note((began, self.0.runtime.now()), loaded.records);
        self.0.loads.set(loads);
        if begins_round {
            self.tell_round();
        }
        for (version, records) in &loaded.unknown {
            tracing::warn!(
                partition,
                version,
                records,
                "records of an unknown key version in __consumer_offsets: passed over"
            );
        }
    }

    /// Tells, when no more come, what this load and those behind it have brought.
    fn tell_round(&self) {
        let (weak, runtime) = (Rc::downgrade(&self.0), self.0.runtime.clone());
        self.0.tasks.spawn(Queue::Background, async move {
            loop {
                runtime.sleep_until(runtime.now().plus_ms(ROUND_MS)).await;
                let Some(inner) = weak.upgrade() else { return };
                if inner.is_loading.get() {
                    continue;
                }
                let mut loads = inner.loads.get();
                if let Some(Round { began, ended, partitions, records }) = loads.take_round() {
                    let milliseconds = ended.nanos_since(began) / 1_000_000;
                    tracing::info!(partitions, records, milliseconds, "groups loaded");
                }
                return inner.loads.set(loads);
            }
        });
    }

    fn activate(&self, slot: &Rc<Slot>, groups: Groups, first: Vec<Effect>) {
        let active = self.0.activate(slot.key, groups);
        let before = slot.state.replace(State::Active(active.clone()));
        self.0.carry_out(&active, first, &mut None);
        if let State::Loading { deleted } = before
            && !deleted.is_empty()
        {
            self.0.step(&active, Event::TopicsDeleted(Arc::new(deleted)), None);
        }
    }

    fn slots(&self) -> Vec<Rc<Slot>> {
        self.0.slots.borrow().values().cloned().collect()
    }

    pub(super) fn all_active(&self) -> Vec<Rc<Active>> {
        let active = |slot: &Rc<Slot>| match &*slot.state.borrow() {
            State::Active(active) => Some(active.clone()),
            State::Loading { .. } | State::Unserved => None,
        };
        self.0.slots.borrow().values().filter_map(active).collect()
    }

    /// Looks for expired offsets in all partitions, now and then. As in Kafka the first look comes with the start, before
    /// anything is loaded: what has expired meanwhile goes one interval later.
    fn start_expiry(&self) {
        let (weak, runtime) = (Rc::downgrade(&self.0), self.0.runtime.clone());
        let interval_ms = self.0.settings.expiry_interval_ms.max(1);
        self.0.tasks.spawn(Queue::Background, async move {
            loop {
                let Some(inner) = weak.upgrade() else { return };
                Self(inner).look_for_expired().await;
                runtime.sleep_until(runtime.now().plus_ms(interval_ms)).await;
            }
        });
    }

    async fn look_for_expired(&self) {
        let mut pace = Pace::new(&self.0.runtime);
        for active in self.all_active() {
            pace.look().await;
            self.0.step(&active, Event::Expire, None);
        }
    }

    /// The shard's image was just replaced: offsets of topics that are gone go too (coordinators.md 3.7). All machines learn
    /// of it before the next request: what they have taken until now is of the topics that are gone, and what they take from
    /// now on is not (see `Inner::gone`).
    pub fn image_replaced(&self, before: &Image, now: &Image) {
        if self.0.slots.borrow().is_empty() || before.names.ptr_eq(&now.names) {
            return;
        }
        let gone = before.names.diff(&now.names).filter_map(|change| match change {
            imbl::ordmap::DiffItem::Remove(_, name) => Some(name.clone()),
            imbl::ordmap::DiffItem::Add(..) | imbl::ordmap::DiffItem::Update { .. } => None,
        });
        let gone: Arc<BTreeSet<TopicName>> = Arc::new(gone.collect());
        if gone.is_empty() {
            return;
        }
        for slot in self.slots() {
            let active = match &mut *slot.state.borrow_mut() {
                State::Loading { deleted } => {
                    deleted.extend(gone.iter().cloned());
                    continue;
                }
                State::Active(active) => active.clone(),
                State::Unserved => continue,
            };
            self.0.step(&active, Event::TopicsDeleted(gone.clone()), None);
        }
    }

    /// All groups of this shard.
    async fn list(&self) -> Listed {
        let mut pace = Pace::new(&self.0.runtime);
        let all = self.all_active().iter().map(|active| active.machine.borrow().gauges().groups).sum();
        let mut listed = Listed { error: ErrorCode::None, groups: Vec::with_capacity(all) };
        if self.0.is_stopped.get() {
            listed.error = ErrorCode::CoordinatorNotAvailable;
        }
        for slot in self.slots() {
            pace.look().await;
            let active = match &*slot.state.borrow() {
                State::Loading { .. } => {
                    listed.error = ErrorCode::CoordinatorLoadInProgress;
                    continue;
                }
                State::Active(active) => active.clone(),
                State::Unserved => continue,
            };
            let (mut after, mut before) = (None, listed.groups.len());
            loop {
                {
                    let machine = active.machine.borrow();
                    listed.groups.extend(machine.list(after.as_ref()).take(LISTED_A_STEP));
                }
                if listed.groups.len() < before + LISTED_A_STEP {
                    break;
                }
                after = listed.groups.last().map(|group| group.group.clone());
                before = listed.groups.len();
                pace.look().await;
            }
        }
        listed
    }
}

impl<R: ShardRuntime> Inner<R> {
    /// Topics of a commit that are not there any more, or are others of the same name: the handler may have looked at an
    /// image that another one has replaced since, here or on its own shard.
    pub(super) fn gone(&self, request: &GroupRequest) -> BTreeSet<TopicName> {
        let mut gone = BTreeSet::new();
        let GroupRequest::OffsetCommit(commit) = request else { return gone };
        let image = self.image.current();
        let mut before = None;
        for offset in &commit.offsets {
            if before.replace(&offset.topic) == Some(&offset.topic) {
                continue;
            }
            if image.topic(offset.topic.get()).is_none_or(|topic| topic.id != offset.topic_id) {
                gone.insert(offset.topic.clone());
            }
        }
        gone
    }

    /// What a machine knows of the world.
    pub(super) fn now(&self, random: u128) -> Now {
        let wall = TimestampMs::new(self.runtime.wall_ms());
        let room = self.room();
        Now { mono: self.runtime.now(), wall, random, room }
    }

    /// Tells who runs the broker.
    pub(super) fn tell(&self, news: &News) {
        self.report.tell(self.runtime.now(), news, (self.kept.get(), self.settings.memory_bytes));
    }
}

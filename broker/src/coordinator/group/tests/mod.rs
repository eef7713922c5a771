//! Tests of the machine, statement by statement (coordinators.md 8), and its simulation. `World` is the driver: it keeps
//! the clock and the log, and lets batches succeed or fail.
#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod deletion;
mod expiry;
mod joins;
mod loading;
mod matrix;
mod memory;
mod news;
mod offsets;
mod simulation;
mod size;
mod statics;
mod syncs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use protocol::error::ErrorCode;
use protocol::types::{LeaderEpoch, MonoTime, Offset, TimestampMs, TopicId, TopicName};

use super::machine::{self, Effect, Event, Now, Room, Value, Waiter, WriteId};
use super::news::{Cause, Loss, News, What};
use super::{GroupSettings, Groups};
use crate::coordinator::ask::*;

/// A record as the log has it.
pub(super) type Record = (Bytes, Option<Bytes>);

/// Records as the log has them.
pub(super) fn whole(records: Vec<machine::Record>) -> Vec<Record> {
    records.into_iter().map(|(key, value)| (key, value.as_ref().map(Value::whole))).collect()
}

pub(super) const SESSION_MS: i32 = 10_000;
pub(super) const REBALANCE_MS: i32 = 60_000;
pub(super) const START_MS: i64 = 1_700_000_000_000;
pub(super) const DAY_MS: i64 = 86_400_000;

impl Groups {
    /// Compares what is counted with what is there.
    pub(super) fn check(&self) {
        let (mut timers, mut uses, mut gauges) = (0, 0, super::Gauges::default());
        for (id, group) in &self.groups {
            assert_eq!(*id, group.id);
            group.members.check();
            group.offsets.check();
            timers += group.members.pending().count();
            gauges.bytes += group.bytes();
            timers += usize::from(group.join_phase.is_some()) + usize::from(group.sync_timer.is_some());
            uses += group.offsets.uses();
            gauges.groups += 1;
            gauges.offsets += group.offsets.len();
            *gauges.of_mut(group.state) += 1;
            assert_eq!(group.join_phase.is_some(), group.state == GroupState::PreparingRebalance);
            match group.state {
                GroupState::Empty | GroupState::Dead => assert!(group.members.is_empty(), "{id}"),
                GroupState::CompletingRebalance | GroupState::Stable => {
                    assert!(!group.members.is_empty(), "{id}");
                }
                // All may go while somebody who was given an id is waited for, or the first delay lasts.
                GroupState::PreparingRebalance => {}
            }
            assert!(!group.is_void(), "{id} is kept for nothing");
            for (id, member) in group.members.iter() {
                timers += usize::from(member.timer.is_some());
                let waits = member.is_joining() || member.sync.is_some();
                assert!(member.timer.is_some() || waits || self.is_loading(), "nobody looks after {id}");
                assert!(member.sync.is_none() || group.state == GroupState::CompletingRebalance);
                assert!(!member.is_joining() || group.state != GroupState::CompletingRebalance);
            }
        }
        assert_eq!(self.core.timers.len(), timers);
        assert_eq!(self.core.topics.uses(), uses);
        assert_eq!(self.core.gauges, gauges);
    }

    /// Before `loaded` nobody has a timer.
    fn is_loading(&self) -> bool {
        self.core.timers.len() == 0
    }
}

/// The machine with its clock, its log and those who wait.
pub(super) struct World {
    pub(super) machine: Groups,
    pub(super) ms: i64,
    random: u128,
    next_waiter: u64,
    pub(super) replies: BTreeMap<Waiter, GroupReply>,
    pub(super) appends: VecDeque<(WriteId, Vec<Record>)>,
    pub(super) log: Vec<Record>,
    pub(super) continues: usize,
    /// Batches are committed at once.
    pub(super) is_fast: bool,
    /// Topics that are deleted when commits of them arrive.
    pub(super) gone: BTreeSet<TopicName>,
    /// Bytes that groups may take, by newcomers and by all.
    pub(super) bytes_max: (usize, usize),
    /// Bytes that one batch may have.
    pub(super) batch_bytes_max: usize,
    /// What is told to who runs the broker.
    pub(super) news: Vec<News>,
}

impl World {
    pub(super) fn new(settings: GroupSettings) -> Self {
        Self {
            machine: Groups::new(settings),
            ms: 0,
            random: 0,
            next_waiter: 0,
            replies: BTreeMap::new(),
            appends: VecDeque::new(),
            log: Vec::new(),
            continues: 0,
            is_fast: true,
            gone: BTreeSet::new(),
            bytes_max: (usize::MAX, usize::MAX),
            batch_bytes_max: usize::MAX,
            news: Vec::new(),
        }
    }

    /// Kafka's defaults, but no initial delay.
    pub(super) fn quick() -> Self {
        Self::new(GroupSettings { initial_rebalance_delay_ms: 0, ..GroupSettings::default() })
    }

    /// Kafka's defaults, but no initial delay, and batches wait to be committed.
    pub(super) fn slow_log() -> Self {
        Self { is_fast: false, ..Self::quick() }
    }

    pub(super) fn now(&mut self) -> Now {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        Now {
            mono: MonoTime::new(0).plus_ms(self.ms),
            wall: TimestampMs::new(START_MS + self.ms),
            random: self.random,
            room: Room { batch: self.batch_bytes_max, ..room(&self.machine, self.bytes_max) },
        }
    }

    pub(super) fn step(&mut self, event: Event) {
        let now = self.now();
        let mut out = Vec::new();
        self.machine.step(now, event, &mut out);
        self.take(out);
    }

    pub(super) fn take(&mut self, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Reply { waiter, reply } => {
                    let before = self.replies.insert(waiter, reply);
                    assert!(before.is_none(), "{waiter:?} is answered once");
                }
                Effect::Append { write, records } => self.appends.push_back((write, whole(records))),
                Effect::Continue => self.continues += 1,
                Effect::Tell(news) => self.news.push(news),
            }
        }
        self.machine.check();
        if self.is_fast {
            self.commit();
        }
    }

    /// All batches are committed.
    pub(super) fn commit(&mut self) {
        while self.commit_one() {}
    }

    /// The next batch is committed.
    pub(super) fn commit_one(&mut self) -> bool {
        let Some((write, records)) = self.appends.pop_front() else { return false };
        let outcome = Ok(Offset::new(self.log.len() as i64));
        self.log.extend(records);
        self.step(Event::Written { write, outcome });
        true
    }

    /// The next batch is not in the log.
    pub(super) fn fail_one(&mut self, error: ErrorCode) {
        let (write, _) = self.appends.pop_front().expect("a batch");
        self.step(Event::Written { write, outcome: Err(error) });
    }

    pub(super) fn ask(&mut self, request: GroupRequest) -> Waiter {
        self.next_waiter += 1;
        let waiter = Waiter(self.next_waiter);
        let gone = self.gone.clone();
        self.step(Event::Request { waiter, request, gone });
        waiter
    }

    pub(super) fn is_waiting(&self, waiter: Waiter) -> bool {
        !self.replies.contains_key(&waiter)
    }

    pub(super) fn reply(&mut self, waiter: Waiter) -> GroupReply {
        self.replies.remove(&waiter).expect("a reply")
    }

    /// Lets time pass, timer by timer.
    pub(super) fn pass(&mut self, ms: i64) {
        let end = self.ms + ms;
        loop {
            let due = self.machine.next_timer().map(|at| (at.get() / 1_000_000) as i64);
            match due.filter(|due| *due <= end) {
                Some(due) => {
                    self.ms = self.ms.max(due);
                    self.step(Event::Timer);
                }
                None => break,
            }
        }
        self.ms = end;
    }

    pub(super) fn expire(&mut self) {
        self.step(Event::Expire);
        self.go_on();
    }

    pub(super) fn go_on(&mut self) {
        while self.continues > 0 {
            self.continues -= 1;
            self.step(Event::Continue);
        }
    }

    /// Another coordinator that has read the log.
    pub(super) fn fail_over(self) -> Self {
        let settings = self.machine.core.settings;
        self.fail_over_to(settings)
    }

    pub(super) fn fail_over_to(self, settings: GroupSettings) -> Self {
        let mut world = Self { machine: Groups::new(settings), replies: BTreeMap::new(), ..self };
        world.appends.clear();
        for (offset, (key, value)) in world.log.iter().enumerate() {
            world.machine.replay(Offset::new(offset as i64), key, value.as_deref()).expect("a record");
        }
        world.loaded();
        world
    }

    /// All records are told: the machine begins.
    pub(super) fn loaded(&mut self) {
        let (mut out, mut after) = (Vec::new(), None);
        loop {
            let now = self.now();
            after = self.machine.loaded(now, after.as_ref(), &mut out);
            if after.is_none() {
                break;
            }
        }
        self.take(out);
    }

    /// The machine ends. Gives in how many parts.
    pub(super) fn unload(&mut self) -> usize {
        let mut parts = 1;
        let mut out = Vec::new();
        while self.machine.unload(&mut out) {
            parts += 1;
        }
        self.take(out);
        parts
    }

    // Requests, and what they are answered at once.

    pub(super) fn join_now(&mut self, join: Join) -> JoinReply {
        let waiter = self.ask(GroupRequest::Join(join));
        self.joined(waiter)
    }

    pub(super) fn joined(&mut self, waiter: Waiter) -> JoinReply {
        match self.reply(waiter) {
            GroupReply::Join(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn synced(&mut self, waiter: Waiter) -> SyncReply {
        match self.reply(waiter) {
            GroupReply::Sync(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn ask_join(&mut self, join: Join) -> Waiter {
        self.ask(GroupRequest::Join(join))
    }

    pub(super) fn ask_sync(
        &mut self,
        member: &MemberId,
        generation: i32,
        given: &[(&MemberId, &str)],
    ) -> Waiter {
        self.ask(GroupRequest::Sync(sync(member, generation, given)))
    }

    pub(super) fn heartbeat(&mut self, who: Identity) -> ErrorCode {
        let waiter = self.ask(GroupRequest::Heartbeat(Heartbeat { who }));
        self.done(waiter)
    }

    pub(super) fn done(&mut self, waiter: Waiter) -> ErrorCode {
        match self.reply(waiter) {
            GroupReply::Done(error) => error,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn leave(&mut self, members: &[(&str, Option<&str>)]) -> LeaveReply {
        let leaving = |(member, instance): &(&str, Option<&str>)| Leaving {
            member: MemberId::from(*member),
            instance: instance.map(InstanceId::from),
            reason: None,
        };
        let members = members.iter().map(leaving).collect();
        let waiter = self.ask(GroupRequest::Leave(Leave { group: group(), members }));
        match self.reply(waiter) {
            GroupReply::Leave(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn describe(&mut self) -> Description {
        let waiter = self.ask(GroupRequest::Describe(group()));
        match self.reply(waiter) {
            GroupReply::Describe(Ok(description)) => description,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn state(&mut self) -> GroupState {
        self.describe().state
    }

    pub(super) fn ask_commit(&mut self, who: Identity, offsets: &[(&str, i32, i64)]) -> Waiter {
        self.ask(GroupRequest::OffsetCommit(commit(who, offsets)))
    }

    pub(super) fn commit_now(&mut self, who: Identity, offsets: &[(&str, i32, i64)]) -> Vec<ErrorCode> {
        let waiter = self.ask_commit(who, offsets);
        self.committed(waiter)
    }

    pub(super) fn committed(&mut self, waiter: Waiter) -> Vec<ErrorCode> {
        match self.reply(waiter) {
            GroupReply::OffsetCommit(codes) => codes,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn fetch_full(&mut self, fetch: OffsetFetch) -> OffsetFetchReply {
        let waiter = self.ask(GroupRequest::OffsetFetch(fetch));
        match self.reply(waiter) {
            GroupReply::OffsetFetch(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// The offset of one partition, by name.
    pub(super) fn fetch(&mut self, topic: &str, partition: i32, require_stable: bool) -> (i64, ErrorCode) {
        let topics = Some(vec![(TopicName::new(topic), vec![partition])]);
        let reply = self.fetch_full(OffsetFetch { group: group(), topics, from: None, require_stable });
        let fetched = &reply.topics[0].1[0];
        (fetched.offset.get(), fetched.error)
    }

    /// All offsets.
    pub(super) fn fetch_all(&mut self) -> Vec<(String, i32, i64)> {
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let fetch = OffsetFetch { group: group(), topics: None, from, require_stable: false };
            let reply = self.fetch_full(fetch);
            for (topic, partitions) in reply.topics {
                all.extend(partitions.iter().map(|p| (topic.get().to_owned(), p.partition, p.offset.get())));
            }
            from = reply.next;
            if from.is_none() {
                break;
            }
        }
        all.sort();
        all
    }

    /// A stable group of one dynamic consumer; its id.
    pub(super) fn settle_one(&mut self) -> MemberId {
        let id = self.join_now(join("")).member;
        let waiter = self.ask_sync(&id, 1, &[(&id, "all")]);
        assert_eq!(self.synced(waiter).assignment, "all");
        id
    }

    /// A stable group of these, in their order: the first leads. Their ids, and the generation.
    pub(super) fn settle(&mut self, joins: Vec<Join>) -> (Vec<MemberId>, i32) {
        let waiters: Vec<Waiter> = joins.into_iter().map(|join| self.ask_join(join)).collect();
        let mut ids: Vec<MemberId> = Vec::new();
        // The first was alone in its generation, and comes again.
        let first = self.joined(waiters[0]).member;
        let again = self.ask_join(Join { member: first.clone(), ..self.last_join_of(&first) });
        ids.push(first);
        let replies: Vec<JoinReply> = waiters[1..].iter().map(|waiter| self.joined(*waiter)).collect();
        ids.extend(replies.iter().map(|reply| reply.member.clone()));
        let generation = self.joined(again).generation;
        let given: Vec<(MemberId, String)> = ids.iter().map(|id| (id.clone(), format!("of {id}"))).collect();
        let given: Vec<(&MemberId, &str)> = given.iter().map(|(id, part)| (id, part.as_str())).collect();
        for id in &ids {
            let waiter = self.ask_sync(id, generation, &given);
            self.commit();
            assert_eq!(self.synced(waiter).error, ErrorCode::None);
        }
        assert_eq!(self.state(), GroupState::Stable);
        (ids, generation)
    }

    fn last_join_of(&self, id: &MemberId) -> Join {
        let group = &self.machine.groups["g"];
        let member = group.members.get(id).expect("a member");
        let protocols = member
            .protocols()
            .names()
            .map(|name| (name.clone(), member.protocols().metadata(name).cloned().unwrap_or_default()));
        Join {
            instance: member.instance.clone(),
            protocols: protocols.collect(),
            client_id: member.client_id.clone(),
            ..join(id)
        }
    }
}

/// What is left to a machine of so many bytes.
pub(super) fn room(machine: &Groups, (newcomers, all): (usize, usize)) -> Room {
    let bytes = machine.gauges().bytes;
    Room { newcomers: newcomers.saturating_sub(bytes), known: all.saturating_sub(bytes), ..Room::UNBOUNDED }
}

pub(super) fn group() -> GroupId {
    GroupId::from("g")
}

/// A subscription of version 0.
pub(super) fn subscription(topics: &[&str]) -> Bytes {
    let mut bytes = vec![0, 0];
    bytes.extend((topics.len() as i32).to_be_bytes());
    for topic in topics {
        bytes.extend((topic.len() as i16).to_be_bytes());
        bytes.extend(topic.as_bytes());
    }
    bytes.extend((-1_i32).to_be_bytes());
    Bytes::from(bytes)
}

/// A consumer of version 3 of the API, which is admitted at once.
pub(super) fn join(member: &str) -> Join {
    Join {
        group: group(),
        member: MemberId::from(member),
        instance: None,
        client_id: Arc::from("c"),
        client_host: Arc::from("/127.0.0.1"),
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: REBALANCE_MS,
        protocol_type: Arc::from("consumer"),
        protocols: vec![(Arc::from("range"), subscription(&["t"]))],
        needs_known_member_id: false,
        knows_skip_assignment: true,
        reason: None,
    }
}

/// A static consumer.
pub(super) fn join_static(member: &str, instance: &str) -> Join {
    Join { instance: Some(InstanceId::from(instance)), needs_known_member_id: true, ..join(member) }
}

/// These protocols, with empty metadata.
pub(super) fn offers(join: Join, names: &[&str]) -> Join {
    Join { protocols: names.iter().map(|name| (Arc::from(*name), Bytes::new())).collect(), ..join }
}

pub(super) fn who(member: &str, generation: i32) -> Identity {
    Identity { group: group(), member: MemberId::from(member), instance: None, generation }
}

pub(super) fn who_static(member: &str, instance: &str, generation: i32) -> Identity {
    Identity { instance: Some(InstanceId::from(instance)), ..who(member, generation) }
}

pub(super) fn nobody() -> Identity {
    who("", -1)
}

pub(super) fn sync(member: &MemberId, generation: i32, given: &[(&MemberId, &str)]) -> Sync {
    let assignments =
        given.iter().map(|(id, part)| ((*id).clone(), Bytes::copy_from_slice(part.as_bytes()))).collect();
    Sync { who: who(member, generation), protocol_type: None, protocol: None, assignments }
}

pub(super) fn to_commit(topic: &str, partition: i32, offset: i64) -> OffsetToCommit {
    OffsetToCommit {
        topic: TopicName::new(topic),
        topic_id: TopicId::ZERO,
        partition,
        offset: Offset::new(offset),
        leader_epoch: LeaderEpoch::new(5),
        metadata: Arc::default(),
        committed_at: None,
        retention_ms: None,
    }
}

pub(super) fn names(names: &[&str]) -> BTreeSet<TopicName> {
    names.iter().map(|name| TopicName::new(name)).collect()
}

pub(super) fn deleted(topics: &[&str]) -> Event {
    Event::TopicsDeleted(Arc::new(names(topics)))
}

pub(super) fn commit(who: Identity, offsets: &[(&str, i32, i64)]) -> OffsetCommit {
    let offsets = offsets.iter().map(|(topic, partition, offset)| to_commit(topic, *partition, *offset));
    OffsetCommit { who, knows_group_id_not_found: false, offsets: offsets.collect() }
}

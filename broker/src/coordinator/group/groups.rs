//! The machine itself: events in, effects out. Finds the group that an event is for, and lets it answer; what it does is
//! in the files beside. The driver calls nothing else but `replay`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use protocol::error::ErrorCode;
use protocol::types::{MonoTime, Offset, ProducerId, TopicName};

use super::commits::nothing_fetched;
use super::core::{Core, Counts, Gauges, GroupSettings, Turn};
use super::machine::{Effect, Event, Now, Room, Waiter};
use super::refused::refused;
use super::state::Group;
use super::timers::Timer;
use crate::coordinator::ask::{
    GroupId, GroupReply, GroupRequest, GroupState, Join, ListedGroup, OffsetCommit,
};

/// Timers that are looked at in one step; more that are due wait for the next one.
const TIMERS_A_STEP: usize = 256;

/// Groups, members, offsets, records and timers that are let go in one step of an unload: some 100 µs.
const UNLOADED_A_STEP: usize = 1_000;

/// The groups of one partition of `__consumer_offsets`. Pure: the same events give the same effects.
#[derive(Debug)]
pub struct Groups {
    pub(super) groups: BTreeMap<GroupId, Box<Group>>,
    pub(super) core: Core,
    /// Whether an [`Effect::Continue`] is without its event yet.
    pub(super) is_asked_to_go_on: bool,
    /// The last record of the log that is known here.
    pub(super) last_record: Offset,
    /// Groups in which a producer's transaction has offsets.
    pub(super) open: BTreeMap<ProducerId, BTreeSet<GroupId>>,
}

impl Groups {
    /// A machine that has loaded nothing.
    pub fn new(settings: GroupSettings) -> Self {
        Self {
            groups: BTreeMap::new(),
            core: Core::new(settings),
            is_asked_to_go_on: false,
            last_record: Offset::NONE,
            open: BTreeMap::new(),
        }
    }

    /// Takes an event; adds to `out` what the driver has to do, in this order.
    pub fn step(&mut self, now: Now, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Request { waiter, request, gone } => self.request(now, (waiter, request, &gone), out),
            Event::Written { write, outcome } => self.written(now, write, outcome, out),
            Event::Timer => self.fire(now, out),
            Event::Expire => self.expire(now, out),
            Event::TopicsDeleted(names) => self.topics_deleted(&names, out),
            Event::Continue => self.go_on(now, out),
        }
    }

    /// When [`Event::Timer`] is due: at once, if that has passed.
    pub fn next_timer(&self) -> Option<MonoTime> {
        self.core.timers.next()
    }

    /// Ends all: nothing is known afterwards, and whoever waits learns that the coordinator is elsewhere (3.6). Does so a
    /// part at a time, as memory for a million offsets is not given back at once; whether there is more. From the first
    /// time on the machine takes no event.
    pub fn unload(&mut self, out: &mut Vec<Effect>) -> bool {
        let error = ErrorCode::NotCoordinator;
        // Only replies come of it: the time does not matter.
        let wall = protocol::types::TimestampMs::NONE;
        let now = Now { mono: MonoTime::new(0), wall, random: 0, room: Room::UNBOUNDED };
        let mut budget = UNLOADED_A_STEP;
        while budget > 0
            && let Some(mut first) = self.groups.first_entry()
        {
            let group = first.get_mut();
            budget = budget.saturating_sub(1 + group.members.len());
            let mut members = std::mem::take(&mut group.members);
            let mut turn = Turn { now, core: &mut self.core, out: &mut *out };
            for id in members.ids() {
                if let Some(waiter) = members.take_join(&id) {
                    turn.refuse_join(waiter, error, &id);
                }
                if let Some(waiter) = members.get_mut(&id).and_then(|member| member.sync.take()) {
                    turn.refuse_sync(waiter, error);
                }
            }
            if !group.offsets.drop_some(&mut budget) {
                first.remove();
            }
        }
        while budget > 0
            && let Some(queued) = self.core.writes.pop_front()
        {
            budget = budget.saturating_sub(1 + queued.records);
            let refusal = queued.write.refusal(error);
            out.extend(refusal.map(|(waiter, reply)| Effect::Reply { waiter, reply }));
        }
        while budget > 0
            && let Some(job) = self.core.jobs.pop_front()
        {
            budget -= 1;
            let refusal = job.refusal(error);
            out.extend(refusal.map(|(waiter, reply)| Effect::Reply { waiter, reply }));
        }
        self.core.timers.drop_some(&mut budget);
        self.core.topics.drop_some(&mut budget);
        if budget == 0 {
            return true;
        }
        *self = Self::new(self.core.settings);
        false
    }

    /// The groups behind one as ListGroups tells them, by id; without those that are being removed.
    pub fn list(&self, after: Option<&GroupId>) -> impl Iterator<Item = ListedGroup> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.groups.range::<GroupId, _>((from, Bound::Unbounded));
        behind.filter(|(_, group)| group.state != GroupState::Dead).map(|(_, group)| group.listed())
    }

    /// How many groups and offsets there are.
    pub fn gauges(&self) -> Gauges {
        self.core.gauges
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.core.counts
    }

    fn request(
        &mut self,
        now: Now,
        (waiter, request, gone): (Waiter, GroupRequest, &BTreeSet<TopicName>),
        out: &mut Vec<Effect>,
    ) {
        let id = Arc::clone(request.group());
        match &request {
            GroupRequest::Join(join) => self.make_room_for_join(now, join),
            GroupRequest::OffsetCommit(commit) => self.make_room_for_commit(now, commit),
            _ => {}
        }
        let mut turn = Turn { now, core: &mut self.core, out };
        if let GroupRequest::Join(join) = &request
            && !is_session_allowed(&turn.core.settings, join)
        {
            return turn.refuse_join(waiter, ErrorCode::InvalidSessionTimeout, &join.member);
        }
        let Some(group) = self.groups.get_mut(&id) else {
            return turn.reply(waiter, unknown_group(&request));
        };
        match request {
            GroupRequest::Join(join) => group.join(&mut turn, waiter, join),
            GroupRequest::Sync(sync) => group.sync(&mut turn, waiter, sync),
            GroupRequest::Heartbeat(heartbeat) => group.heartbeat(&mut turn, waiter, &heartbeat),
            GroupRequest::Leave(leave) => group.leave(&mut turn, waiter, &leave),
            GroupRequest::OffsetCommit(commit) => group.commit(&mut turn, waiter, &commit, gone),
            GroupRequest::OffsetFetch(fetch) => {
                let reply = group.fetch(turn.core, &fetch);
                turn.reply(waiter, GroupReply::OffsetFetch(reply));
            }
            GroupRequest::OffsetDelete(delete) => group.delete_offsets(&mut turn, waiter, &delete),
            GroupRequest::Describe(_) => {
                let is_dead = group.state == GroupState::Dead;
                let described = if is_dead { Group::described_as_dead() } else { group.described() };
                turn.reply(waiter, GroupReply::Describe(Ok(described)));
            }
            GroupRequest::Delete(_) => {
                group.delete(&mut turn, waiter);
                self.ask_to_go_on(out);
            }
        }
        self.settle(&id);
    }

    /// A group begins with the first who joins it. It is dropped again if that is refused.
    fn make_room_for_join(&mut self, now: Now, join: &Join) {
        if join.member.is_empty() && is_session_allowed(&self.core.settings, join) {
            self.ensure(&join.group, now);
        }
    }

    /// A group of offsets alone begins with the first commit of nobody.
    fn make_room_for_commit(&mut self, now: Now, commit: &OffsetCommit) {
        if commit.who.generation < 0 {
            self.ensure(&commit.who.group, now);
        }
    }

    fn ensure(&mut self, id: &GroupId, now: Now) {
        if !self.groups.contains_key(id) {
            let group = Group::new(&mut self.core, Arc::clone(id), now.wall);
            self.groups.insert(Arc::clone(id), Box::new(group));
        }
    }

    /// Something was done with a group: it is counted as large as it is now, and dropped if nobody needs it and the log does
    /// not know of it.
    pub(super) fn settle(&mut self, id: &str) {
        let Some(group) = self.groups.get_mut(id) else { return };
        if group.is_void() {
            return self.remove(id);
        }
        group.count(&mut self.core);
    }

    /// Forgets a group.
    pub(super) fn remove(&mut self, id: &str) {
        let Some(mut group) = self.groups.remove(id) else { return };
        for (_, timer) in group.members.pending() {
            self.core.timers.cancel(Some(*timer));
        }
        group.uncount(&mut self.core);
        self.core.gauges.offsets -= group.offsets.len();
        group.offsets.clear(&mut self.core.topics);
        self.core.gauges.groups -= 1;
        *self.core.gauges.of_mut(group.state) -= 1;
    }

    fn fire(&mut self, now: Now, out: &mut Vec<Effect>) {
        for _ in 0..TIMERS_A_STEP {
            let Some(timer) = self.core.timers.pop_due(now.mono) else { return };
            let id = Arc::clone(timer.group());
            let Some(group) = self.groups.get_mut(&id) else {
                unreachable!("the timers of a group go with it")
            };
            let mut turn = Turn { now, core: &mut self.core, out: &mut *out };
            match timer {
                Timer::Session { member, .. } => group.session_timed_out(&mut turn, &member),
                Timer::Pending { member, .. } => group.pending_timed_out(&mut turn, &member),
                Timer::Join { .. } => group.join_phase_timed_out(&mut turn),
                Timer::Sync { .. } => group.sync_timed_out(&mut turn),
            }
            self.settle(&id);
        }
    }
}

fn is_session_allowed(settings: &GroupSettings, join: &Join) -> bool {
    (settings.min_session_timeout_ms..=settings.max_session_timeout_ms).contains(&join.session_timeout_ms)
}

/// The reply where there is no such group (2.6, 2.11 to 2.13).
fn unknown_group(request: &GroupRequest) -> GroupReply {
    match request {
        GroupRequest::Join(_) | GroupRequest::Sync(_) | GroupRequest::Heartbeat(_) => {
            refused(request, ErrorCode::UnknownMemberId)
        }
        GroupRequest::Leave(leave) => GroupReply::Leave(crate::coordinator::ask::LeaveReply {
            error: ErrorCode::None,
            members: leave.members.iter().map(|_| ErrorCode::UnknownMemberId).collect(),
        }),
        GroupRequest::OffsetCommit(commit) if commit.knows_group_id_not_found => {
            refused(request, ErrorCode::GroupIdNotFound)
        }
        GroupRequest::OffsetCommit(_) => refused(request, ErrorCode::IllegalGeneration),
        GroupRequest::OffsetFetch(fetch) => GroupReply::OffsetFetch(nothing_fetched(fetch)),
        GroupRequest::Describe(_) => GroupReply::Describe(Ok(Group::described_as_dead())),
        GroupRequest::OffsetDelete(_) | GroupRequest::Delete(_) => {
            refused(request, ErrorCode::GroupIdNotFound)
        }
    }
}

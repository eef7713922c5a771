//! JoinGroup, case by case (coordinators.md 2.5): newcomers, members that come again, static members that come back under
//! a new id (KIP-345). What a join sets off is in `rebalance`.

use std::sync::Arc;

use protocol::codec::STRING_BYTES_MAX;
use protocol::error::ErrorCode;

use super::bytes::{Growth, MEMBER_BYTES};
use super::core::Turn;
use super::machine::Waiter;
use super::members::{Member, Profile, Protocols};
use super::news::{Cause, Loss, What};
use super::sessions::NEW_MEMBER_JOIN_TIMEOUT_MS;
use super::state::Group;
use super::timers::Timer;
use super::writes::Write;
use crate::coordinator::ask::{GroupReply, GroupState, InstanceId, Join, JoinReply, MemberId};

/// Bytes that an id has beyond the client's part: a hyphen and a UUID.
const ID_SUFFIX_BYTES: usize = 37;

/// A static member before it came back under another id, for the case that the log does not learn of it.
#[derive(Clone, Debug)]
pub(super) struct Replaced {
    /// Its own name.
    instance: InstanceId,
    /// Its id.
    id: MemberId,
    /// What its last join told.
    profile: Profile,
}

/// A static member that came back to a stable group; it is answered when the log has its new id.
#[derive(Debug)]
pub(super) struct Comeback {
    /// The JoinGroup.
    waiter: Waiter,
    /// Its new id.
    id: MemberId,
    generation: i32,
    knows_skip_assignment: bool,
    /// Who led before, by the id of then.
    leader_before: MemberId,
    /// What to go back to.
    before: Replaced,
}

impl Comeback {
    /// The static member's own name.
    pub(super) fn instance(&self) -> &InstanceId {
        &self.before.instance
    }

    /// An earlier comeback of the same member has failed: this one is all that is left of both.
    pub(super) fn goes_back_to(&mut self, earlier: &Self) {
        self.before = earlier.before.clone();
        self.leader_before = Arc::clone(&earlier.leader_before);
    }
}

impl Group {
    /// JoinGroup, after the checks that need no group.
    pub(super) fn join(&mut self, turn: &mut Turn<'_>, waiter: Waiter, join: Join) {
        if !self.has_room_for(turn, &join.member) {
            self.remove_pending(turn, &join.member);
            self.remove_member(turn, &join.member, Loss::GroupFull);
            self.end_join_phase_if_all_joined(turn);
            return turn.refuse_join(waiter, ErrorCode::GroupMaxSizeReached, &MemberId::default());
        }
        if self.state == GroupState::Dead {
            return turn.refuse_join(waiter, ErrorCode::CoordinatorNotAvailable, &join.member);
        }
        let profile = Profile {
            client_id: Arc::clone(&join.client_id),
            client_host: Arc::clone(&join.client_host),
            session_timeout_ms: join.session_timeout_ms,
            rebalance_timeout_ms: join.rebalance_timeout_ms,
            protocols: Protocols::new(&join.protocols),
        };
        if !self.supports(&join.protocol_type, &profile.protocols) {
            return turn.refuse_join(waiter, ErrorCode::InconsistentGroupProtocol, &join.member);
        }
        let growth = self.growth(&join, &profile);
        if !turn.has_room(&self.id, growth) {
            // It is not waited for until it finds room.
            self.remove_pending(turn, &join.member);
            turn.refuse_join(waiter, ErrorCode::CoordinatorNotAvailable, &join.member);
            return self.end_join_phase_if_all_joined(turn);
        }
        if join.member.is_empty() {
            self.join_without_id(turn, waiter, join, profile);
        } else {
            self.join_with_id(turn, waiter, join, profile);
        }
        self.end_join_phase_if_all_joined(turn);
    }

    /// Whether there is room for one more, or for this one. While joins are collected those who have come count, so that
    /// a limit that was lowered sheds the slowest.
    fn has_room_for(&self, turn: &Turn<'_>, id: &str) -> bool {
        let max = usize::try_from(turn.core.settings.max_size).unwrap_or(0);
        let member = self.members.get(id);
        match self.state {
            GroupState::Empty | GroupState::Dead => true,
            GroupState::PreparingRebalance => {
                member.is_some_and(Member::is_joining) || self.members.joins() < max
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                member.is_some() || self.members.len() < max
            }
        }
    }

    /// What a join adds to what is kept. Who gets an id only is told at once whether there is room for the rest.
    fn growth(&self, join: &Join, profile: &Profile) -> Growth {
        let of_instance = || join.instance.as_ref().and_then(|instance| self.members.of_instance(instance));
        let id = if join.member.is_empty() { of_instance() } else { Some(&join.member) };
        let known = id.and_then(|id| self.members.get_key_value(id));
        if let Some((_, member)) = known {
            return Growth::OfKnown(profile.bytes().saturating_sub(member.profile_bytes()));
        }
        if !join.member.is_empty() && !self.members.knows(&join.member) {
            // A stranger, who is told so whether there is room or not.
            return Growth::OfKnown(0);
        }
        let group = if self.is_new() { self.bytes() } else { 0 };
        let name = join.instance.as_ref().map_or(0, |instance| instance.len());
        let id = profile.client_id.len().max(name) + ID_SUFFIX_BYTES;
        Growth::OfNewcomer(group + MEMBER_BYTES + id + name + profile.bytes())
    }

    fn supports(&self, protocol_type: &str, protocols: &Protocols) -> bool {
        if self.state == GroupState::Empty {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type) && self.members.agree_on_one_of(protocols)
    }

    fn join_without_id(&mut self, turn: &mut Turn<'_>, waiter: Waiter, join: Join, profile: Profile) {
        let prefix = join.instance.as_ref().unwrap_or(&join.client_id);
        let id = self.new_member_id(prefix, turn.now.random);
        let known = join.instance.as_ref().and_then(|instance| self.members.of_instance(instance)).cloned();
        match (known, join.instance) {
            (Some(old), Some(instance)) => {
                let replaced = Replaced { instance, id: old, profile };
                self.come_back(turn, waiter, id, replaced, join.knows_skip_assignment);
            }
            (_, None) if join.needs_known_member_id => {
                let timer = Timer::Pending { group: Arc::clone(&self.id), member: Arc::clone(&id) };
                let timer = turn.arm(i64::from(join.session_timeout_ms), timer);
                self.members.add_pending(Arc::clone(&id), timer);
                turn.refuse_join(waiter, ErrorCode::MemberIdRequired, &id);
            }
            (_, instance) => {
                self.take_type(&join.protocol_type);
                let reason = join.reason;
                self.add_member(turn, waiter, (id, instance, reason), profile);
            }
        }
    }

    /// `<client id or own name>-<UUID>`; the name is cut where the whole would not fit in a record.
    fn new_member_id(&self, prefix: &str, random: u128) -> MemberId {
        let mut end = prefix.len().min(STRING_BYTES_MAX - ID_SUFFIX_BYTES);
        while !prefix.is_char_boundary(end) {
            end -= 1;
        }
        let prefix = prefix.get(..end).unwrap_or_default();
        let mut random = random;
        loop {
            let id = MemberId::from(format!("{prefix}-{}", uuid(random)));
            if !self.members.knows(&id) {
                return id;
            }
            // Whoever drives the machine has given one number twice; two members of one id would be worse.
            random = random.wrapping_add(1);
        }
    }

    /// The first member says of what type the group is.
    fn take_type(&mut self, protocol_type: &Arc<str>) {
        if self.members.is_empty() {
            self.protocol_type = Some(Arc::clone(protocol_type));
        }
    }

    fn add_member(
        &mut self,
        turn: &mut Turn<'_>,
        waiter: Waiter,
        (id, instance, reason): (MemberId, Option<InstanceId>, Option<Arc<str>>),
        profile: Profile,
    ) {
        let (client_id, client_host) = (Arc::clone(&profile.client_id), Arc::clone(&profile.client_host));
        let (member, of) = (Arc::clone(&id), instance.clone());
        turn.tell(&self.id, What::Joined { member, instance: of, client_id, client_host, reason });
        self.note_new_member();
        let mut member = Member::new(profile, instance);
        member.is_new = true;
        self.members.add(Arc::clone(&id), member);
        self.members.park_join(&id, waiter);
        self.expect(turn, &id, NEW_MEMBER_JOIN_TIMEOUT_MS);
        self.rebalance(turn, Cause::NewMember);
    }

    fn join_with_id(&mut self, turn: &mut Turn<'_>, waiter: Waiter, join: Join, profile: Profile) {
        let id = join.member;
        if join.instance.is_none() && self.remove_pending(turn, &id) {
            self.take_type(&join.protocol_type);
            return self.add_member(turn, waiter, (id, None, join.reason), profile);
        }
        if let Err(error) = self.check_member(&id, join.instance.as_deref()) {
            return turn.refuse_join(waiter, error, &id);
        }
        let is_leader = self.members.is_leader(&id);
        let is_same = self.members.get(&id).is_some_and(|member| *member.protocols() == profile.protocols);
        match self.state {
            GroupState::PreparingRebalance => self.park_join(turn, waiter, &id, profile),
            // The reply to its last join was lost, or it asks again for what has not changed.
            GroupState::CompletingRebalance if is_same => {
                let reply = self.joined(&id, is_leader);
                turn.reply(waiter, GroupReply::Join(reply));
            }
            GroupState::Stable if is_same && !is_leader => {
                let reply = self.joined(&id, false);
                turn.reply(waiter, GroupReply::Join(reply));
            }
            // A leader may have seen a change that its metadata does not show: of topics, of what is owned (KIP-429).
            GroupState::CompletingRebalance | GroupState::Stable => {
                self.park_join(turn, waiter, &id, profile);
                self.rebalance(turn, if is_same { Cause::LeaderRejoined } else { Cause::MemberChanged });
            }
            GroupState::Empty | GroupState::Dead => {
                turn.refuse_join(waiter, ErrorCode::UnknownMemberId, &id);
            }
        }
    }

    fn park_join(&mut self, turn: &mut Turn<'_>, waiter: Waiter, id: &MemberId, profile: Profile) {
        self.members.update(id, profile);
        if let Some(replaced) = self.members.park_join(id, waiter) {
            // The client asks again, so it has given up on its first request, which Kafka forgets without an answer.
            turn.refuse_join(replaced, ErrorCode::RebalanceInProgress, id);
        }
    }

    /// A static member comes back under a new id; `replaced` has its old id and its new profile.
    fn come_back(
        &mut self,
        turn: &mut Turn<'_>,
        waiter: Waiter,
        id: MemberId,
        replaced: Replaced,
        knows_skip_assignment: bool,
    ) {
        let Replaced { instance, id: old, profile } = replaced;
        self.fence(turn, &old);
        let Some(profile_before) = self.members.get(&old).map(Member::profile) else {
            unreachable!("the member of an own name is there")
        };
        let leader_before = self.members.leader.clone().unwrap_or_default();
        self.members.rename(&old, &id);
        let (member, before) = (Arc::clone(&id), Arc::clone(&old));
        turn.tell(&self.id, What::CameBack { instance: Arc::clone(&instance), member, before });
        self.park_join(turn, waiter, &id, profile);
        self.restart_session(turn, &id);
        match self.state {
            GroupState::Stable if self.members.elect_protocol() == self.protocol => {
                self.is_recorded = true;
                let records = vec![self.record(None)];
                let before = Replaced { instance, id: old, profile: profile_before };
                let generation = self.generation;
                let comeback =
                    Comeback { waiter, id, generation, knows_skip_assignment, leader_before, before };
                let write = Write::Comebacks { group: Arc::clone(&self.id), comebacks: vec![comeback] };
                turn.append(records, write);
            }
            // The leader may have the old id in its assignment by now: the new one would get nothing.
            GroupState::Stable | GroupState::CompletingRebalance => {
                self.rebalance(turn, Cause::StaticMemberBack);
            }
            GroupState::PreparingRebalance | GroupState::Empty | GroupState::Dead => {}
        }
    }

    /// What waits for the old id of a static member is of somebody else now.
    fn fence(&mut self, turn: &mut Turn<'_>, old: &MemberId) {
        if let Some(waiter) = self.members.take_join(old) {
            turn.refuse_join(waiter, ErrorCode::FencedInstanceId, old);
        }
        if let Some(waiter) = self.members.get_mut(old).and_then(|member| member.sync.take()) {
            turn.refuse_sync(waiter, ErrorCode::FencedInstanceId);
        }
    }

    /// The timer of a member that was renamed is for an id that nobody has.
    fn restart_session(&mut self, turn: &mut Turn<'_>, id: &MemberId) {
        if let Some(member) = self.members.get_mut(id) {
            turn.core.timers.cancel(member.timer.take());
        }
        if self.members.get(id).is_some_and(|member| member.is_new) {
            self.expect(turn, id, NEW_MEMBER_JOIN_TIMEOUT_MS);
        } else {
            self.hear_of(turn, id);
        }
    }

    /// The record of a comeback is in the log, or not.
    pub(super) fn comeback_written(
        &mut self,
        turn: &mut Turn<'_>,
        comeback: Comeback,
        outcome: Result<(), ErrorCode>,
    ) {
        let is_over = self.state != GroupState::Stable
            || self.generation != comeback.generation
            || !self.members.is_parked(&comeback.id, comeback.waiter);
        if is_over {
            // A rebalance has begun, whose end answers the join and is written; or the member has come back once more.
            return;
        }
        self.members.take_join(&comeback.id);
        let reply = match outcome {
            Ok(()) => {
                self.hear_of(turn, &comeback.id);
                let skips = comeback.knows_skip_assignment && self.members.is_leader(&comeback.id);
                let reply = self.joined(&comeback.id, skips);
                // Who does not know how to skip must not take itself for the leader: the group is stable, and an
                // assignment would reach nobody (KIP-814).
                let leader =
                    if comeback.knows_skip_assignment { reply.leader } else { comeback.leader_before };
                JoinReply { leader, skip_assignment: skips, ..reply }
            }
            Err(error) => {
                self.members.rename(&comeback.id, &comeback.before.id);
                self.members.update(&comeback.before.id, comeback.before.profile);
                let (member, before) = (Arc::clone(&comeback.before.id), comeback.id);
                turn.tell(&self.id, What::CameBack { instance: comeback.before.instance, member, before });
                self.restart_session(turn, &comeback.before.id);
                JoinReply::refused(error, MemberId::default())
            }
        };
        turn.reply(comeback.waiter, GroupReply::Join(reply));
    }
}

/// A random UUID of 128 random bits.
fn uuid(random: u128) -> String {
    // Version 4 in the four bits of the third part, variant 1 in the two bits of the fourth.
    let bits = (random & !((0xf << 76) | (0b11 << 62))) | (0x4 << 76) | (0b10 << 62);
    let hex = format!("{bits:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

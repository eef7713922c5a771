//! Who is heard of and who is gone: heartbeats, leaving, the ends of sessions (coordinators.md 2.4, 2.6, 2.8). A heartbeat
//! only moves a deadline; the timer looks again when it fires. Called by `step` and wherever a member shows itself.

use std::sync::Arc;

use protocol::error::ErrorCode;

use super::core::Turn;
use super::machine::Waiter;
use super::news::{Cause, Loss};
use super::state::Group;
use super::timers::Timer;
use crate::coordinator::ask::{GroupReply, GroupState, Heartbeat, Leave, LeaveReply, Leaving, MemberId};

/// Milliseconds after which a first join is given up, whatever the member's session: it cannot send heartbeats yet, and
/// whoever went away while it waits is never noticed (KAFKA-7610).
pub(super) const NEW_MEMBER_JOIN_TIMEOUT_MS: i64 = 300_000;

impl Group {
    /// A member shows that it is there: its session begins anew.
    pub(super) fn hear_of(&mut self, turn: &mut Turn<'_>, id: &MemberId) {
        let session_ms = self.members.get(id).map_or(0, |member| member.session_timeout_ms);
        self.expect(turn, id, i64::from(session_ms));
    }

    /// A member must be heard of within a time.
    pub(super) fn expect(&mut self, turn: &mut Turn<'_>, id: &MemberId, within_ms: i64) {
        let deadline = turn.in_ms(within_ms);
        let Some(member) = self.members.get_mut(id) else { return };
        member.deadline = deadline;
        if member.timer.is_some_and(|timer| timer.at() <= deadline) {
            return;
        }
        turn.core.timers.cancel(member.timer);
        let timer = Timer::Session { group: Arc::clone(&self.id), member: Arc::clone(id) };
        member.timer = Some(turn.core.timers.arm(deadline, timer));
    }

    /// The timer of a member's session has fired.
    pub(super) fn session_timed_out(&mut self, turn: &mut Turn<'_>, id: &MemberId) {
        let now = turn.now.mono;
        let Some(member) = self.members.get_mut(id) else { return };
        member.timer = None;
        if member.deadline > now {
            let timer = Timer::Session { group: Arc::clone(&self.id), member: Arc::clone(id) };
            member.timer = Some(turn.core.timers.arm(member.deadline, timer));
            return;
        }
        let waits = member.is_joining() || member.sync.is_some();
        if waits && !member.is_new {
            // It is the group that lets it wait. The reply begins its session anew.
            return;
        }
        self.lose_member(turn, id, Loss::Session);
    }

    /// Somebody who was given an id has not come back with it.
    pub(super) fn pending_timed_out(&mut self, turn: &mut Turn<'_>, id: &MemberId) {
        self.members.remove_pending(id);
        self.end_join_phase_if_all_joined(turn);
    }

    /// The time to sync is over: whoever has not is out (KAFKA-12890).
    pub(super) fn sync_timed_out(&mut self, turn: &mut Turn<'_>) {
        self.sync_timer = None;
        let owing = self.members.iter().filter(|(_, member)| member.owes_sync);
        let owing: Vec<MemberId> = owing.map(|(id, _)| Arc::clone(id)).collect();
        if owing.is_empty() {
            return;
        }
        for id in &owing {
            self.remove_member(turn, id, Loss::Sync);
        }
        self.rebalance(turn, Cause::NotSynced);
    }

    /// Takes a member out, and what follows from it.
    fn lose_member(&mut self, turn: &mut Turn<'_>, id: &MemberId, why: Loss) {
        self.remove_member(turn, id, why);
        match self.state {
            GroupState::Stable | GroupState::CompletingRebalance => self.rebalance(turn, Cause::MemberGone),
            GroupState::PreparingRebalance => self.end_join_phase_if_all_joined(turn),
            GroupState::Empty | GroupState::Dead => {}
        }
    }

    /// Heartbeat.
    pub(super) fn heartbeat(&mut self, turn: &mut Turn<'_>, waiter: Waiter, heartbeat: &Heartbeat) {
        let error = match self.check_identity(&heartbeat.who) {
            Err(error) => error,
            Ok(()) => {
                self.hear_of(turn, &heartbeat.who.member);
                match self.state {
                    GroupState::PreparingRebalance => ErrorCode::RebalanceInProgress,
                    GroupState::CompletingRebalance
                    | GroupState::Stable
                    | GroupState::Empty
                    | GroupState::Dead => ErrorCode::None,
                }
            }
        };
        turn.reply(waiter, GroupReply::Done(error));
    }

    /// LeaveGroup.
    pub(super) fn leave(&mut self, turn: &mut Turn<'_>, waiter: Waiter, leave: &Leave) {
        let reply = if self.state == GroupState::Dead {
            LeaveReply { error: ErrorCode::CoordinatorNotAvailable, members: Vec::new() }
        } else {
            let members = leave.members.iter().map(|leaving| self.let_go(turn, leaving)).collect();
            LeaveReply { error: ErrorCode::None, members }
        };
        turn.reply(waiter, GroupReply::Leave(reply));
    }

    fn let_go(&mut self, turn: &mut Turn<'_>, leaving: &Leaving) -> ErrorCode {
        let instance = leaving.instance.as_deref();
        if leaving.member.is_empty() {
            // An administrator knows the static member by its own name only.
            let Some(id) = instance.and_then(|instance| self.members.of_instance(instance)).cloned() else {
                return ErrorCode::UnknownMemberId;
            };
            self.lose_member(turn, &id, Loss::Left(leaving.reason.clone()));
            return ErrorCode::None;
        }
        if self.remove_pending(turn, &leaving.member) {
            self.end_join_phase_if_all_joined(turn);
            return ErrorCode::None;
        }
        match self.check_member(&leaving.member, instance) {
            Err(error) => error,
            Ok(()) => {
                self.lose_member(turn, &leaving.member, Loss::Left(leaving.reason.clone()));
                ErrorCode::None
            }
        }
    }
}

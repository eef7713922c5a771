//! A rebalance, from the first reason for it to the join replies: who is waited for and how long, who leads, which
//! protocol wins (coordinators.md 2.3, 2.5). Called by everything that changes the members.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use protocol::error::ErrorCode;

use super::core::Turn;
use super::news::{Cause, Loss, What};
use super::state::Group;
use super::timers::{Timer, TimerKey};
use super::writes::Write;
use crate::coordinator::ask::{GroupReply, GroupState, JoinReply, MemberId, SyncReply};

/// Milliseconds at least until static members that have not come are looked for again: a client may call its rebalance
/// timeout 0, and its shard would look for it without an end until its session is over.
const WAITED_AGAIN_MS_MIN: i64 = 1_000;

/// The part of a rebalance in which joins are collected.
#[derive(Debug)]
pub(super) struct JoinPhase {
    /// When it ends at the latest.
    timer: Option<TimerKey>,
    /// Set in the first phase of an empty group, which does not end early (KIP-134).
    delay: Option<Delay>,
    /// Whether somebody has come since the delay began; told only until the first generation.
    someone_came: bool,
}

#[derive(Clone, Copy, Debug)]
struct Delay {
    /// What is being waited.
    wait_ms: i64,
    /// What may be waited beyond it.
    left_ms: i64,
}

impl Group {
    /// Starts a rebalance unless one collects joins already.
    pub(super) fn rebalance(&mut self, turn: &mut Turn<'_>, why: Cause) {
        let delay = match self.state {
            // Without a walk over the members: each join of a storm comes here.
            GroupState::PreparingRebalance | GroupState::Dead => return,
            GroupState::CompletingRebalance => {
                self.end_syncs(turn, ErrorCode::RebalanceInProgress);
                None
            }
            GroupState::Stable => None,
            GroupState::Empty => {
                let wait_ms = i64::from(turn.core.settings.initial_rebalance_delay_ms).max(0);
                let timeout_ms = i64::from(self.members.rebalance_timeout_ms());
                Some(Delay { wait_ms, left_ms: (timeout_ms - wait_ms).max(0) })
            }
        };
        let (generation, members) = (self.generation, self.members.len());
        turn.tell(&self.id, What::Rebalances { generation, members, why });
        self.is_assigning = false;
        turn.core.timers.cancel(self.sync_timer.take());
        self.become_now(turn, GroupState::PreparingRebalance);
        let wait_ms = match delay {
            Some(delay) => delay.wait_ms,
            None => i64::from(self.members.rebalance_timeout_ms()),
        };
        let timer = turn.arm(wait_ms, Timer::Join { group: Arc::clone(&self.id) });
        self.join_phase = Some(JoinPhase { timer: Some(timer), delay, someone_came: false });
        match delay {
            Some(delay) if delay.wait_ms == 0 => self.end_join_phase(turn),
            Some(_) => {}
            None => self.end_join_phase_if_all_joined(turn),
        }
    }

    /// A new member has come: a first join phase may be prolonged for it.
    pub(super) fn note_new_member(&mut self) {
        let is_first = self.generation == 0;
        if let Some(phase) = &mut self.join_phase {
            phase.someone_came |= is_first;
        }
    }

    /// Ends the join phase if nobody is waited for; to be called whenever that may have become so.
    pub(super) fn end_join_phase_if_all_joined(&mut self, turn: &mut Turn<'_>) {
        let ends_early = self.join_phase.as_ref().is_some_and(|phase| phase.delay.is_none());
        if ends_early && self.members.have_all_joined() {
            self.end_join_phase(turn);
        }
    }

    /// The time of the join phase is over.
    pub(super) fn join_phase_timed_out(&mut self, turn: &mut Turn<'_>) {
        let configured_ms = i64::from(turn.core.settings.initial_rebalance_delay_ms).max(0);
        let Some(phase) = &mut self.join_phase else { return };
        phase.timer = None;
        if let Some(delay) = phase.delay
            && phase.someone_came
            && delay.left_ms > 0
        {
            let wait_ms = configured_ms.min(delay.left_ms);
            phase.someone_came = false;
            phase.delay = Some(Delay { wait_ms, left_ms: (delay.left_ms - delay.wait_ms).max(0) });
            phase.timer = Some(turn.arm(wait_ms, Timer::Join { group: Arc::clone(&self.id) }));
            return;
        }
        self.end_join_phase(turn);
    }

    /// Whoever has not come is out, but for static members; the others learn of the next generation.
    fn end_join_phase(&mut self, turn: &mut Turn<'_>) {
        let Some(phase) = self.join_phase.take() else { return };
        turn.core.timers.cancel(phase.timer);
        let missing =
            self.members.iter().filter(|(_, member)| !member.is_joining() && member.instance.is_none());
        let missing: Vec<MemberId> = missing.map(|(id, _)| Arc::clone(id)).collect();
        for id in missing {
            self.remove_member(turn, &id, Loss::Rebalance);
        }
        if !self.members.is_empty() && !self.members.elect_joined_leader() {
            // Only static members are left, and none came: they go by their sessions.
            let wait_ms = i64::from(self.members.rebalance_timeout_ms()).max(WAITED_AGAIN_MS_MIN);
            let timer = turn.arm(wait_ms, Timer::Join { group: Arc::clone(&self.id) });
            self.join_phase = Some(JoinPhase { timer: Some(timer), delay: None, someone_came: false });
            return;
        }
        // A generation is a positive number; a log may hold the largest one.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.protocol = self.members.elect_protocol();
        if self.members.is_empty() {
            self.become_now(turn, GroupState::Empty);
            self.is_recorded = true;
            turn.tell(&self.id, What::Empty { generation: self.generation });
            let records = vec![self.record(None)];
            turn.append(records, Write::Emptied);
        } else {
            self.become_now(turn, GroupState::CompletingRebalance);
            self.tell_generation(turn);
        }
    }

    /// Answers all joins and waits for the syncs.
    fn tell_generation(&mut self, turn: &mut Turn<'_>) {
        let ids = self.members.ids();
        turn.tell(
            &self.id,
            What::Began {
                generation: self.generation,
                protocol: self.protocol.clone(),
                members: ids.len(),
                leader: self.members.leader.clone().unwrap_or_default(),
            },
        );
        for id in &ids {
            let waiter = self.members.take_join(id);
            self.hear_of(turn, id);
            if let Some(member) = self.members.get_mut(id) {
                member.is_new = false;
                // Also a static member that did not come, as in Kafka: what it is given must not lie idle (KAFKA-12890).
                member.owes_sync = true;
            }
            if let Some(waiter) = waiter {
                let reply = self.joined(id, self.members.is_leader(id));
                turn.reply(waiter, GroupReply::Join(reply));
            }
        }
        let wait_ms = i64::from(self.members.rebalance_timeout_ms());
        self.sync_timer = Some(turn.arm(wait_ms, Timer::Sync { group: Arc::clone(&self.id) }));
    }

    /// The reply to a JoinGroup of this generation.
    pub(super) fn joined(&self, id: &MemberId, with_members: bool) -> JoinReply {
        let protocol = self.protocol.as_deref().unwrap_or("");
        JoinReply {
            error: ErrorCode::None,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.members.leader.clone().unwrap_or_default(),
            skip_assignment: false,
            member: Arc::clone(id),
            members: if with_members { self.members.for_leader(protocol) } else { Vec::new() },
        }
    }

    /// Answers all syncs with an error; nobody has an assignment of this generation.
    pub(super) fn end_syncs(&mut self, turn: &mut Turn<'_>, error: ErrorCode) {
        let ids = self.members.ids();
        self.members.set_assigned(0);
        for id in &ids {
            let Some(member) = self.members.get_mut(id) else { continue };
            member.assignment = Bytes::new();
            if let Some(waiter) = member.sync.take() {
                turn.refuse_sync(waiter, error);
                self.hear_of(turn, id);
            }
        }
    }

    /// The leader's assignment, for which it brought so many bytes, is in the log: everybody who waits gets its own.
    pub(super) fn assign(
        &mut self,
        turn: &mut Turn<'_>,
        (mut assignments, bytes): (BTreeMap<MemberId, Bytes>, usize),
    ) {
        let (generation, members) = (self.generation, self.members.len());
        turn.tell(&self.id, What::Stable { generation, members });
        self.members.set_assigned(bytes);
        self.become_now(turn, GroupState::Stable);
        turn.core.counts.rebalances += 1;
        self.is_assigning = false;
        let ids = self.members.ids();
        for id in &ids {
            let Some(member) = self.members.get_mut(id) else { continue };
            member.assignment = assignments.remove(id).unwrap_or_default();
            if let Some(waiter) = member.sync.take() {
                let reply = self.synced(id);
                turn.reply(waiter, GroupReply::Sync(reply));
                self.hear_of(turn, id);
            }
        }
    }

    /// The reply to a SyncGroup of a stable group.
    pub(super) fn synced(&self, id: &str) -> SyncReply {
        SyncReply {
            error: ErrorCode::None,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment: self.members.get(id).map(|member| member.assignment.clone()).unwrap_or_default(),
        }
    }
}

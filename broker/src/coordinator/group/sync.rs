//! SyncGroup: the leader brings the assignment, which is written before anybody gets it (coordinators.md 2.6, 2.7).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use protocol::error::ErrorCode;

use super::bytes::Growth;
use super::core::Turn;
use super::machine::Waiter;
use super::news::Cause;
use super::state::Group;
use super::writes::Write;
use crate::coordinator::ask::{GroupReply, GroupState, MemberId, Sync};

impl Group {
    /// SyncGroup.
    pub(super) fn sync(&mut self, turn: &mut Turn<'_>, waiter: Waiter, sync: Sync) {
        if let Err(error) = self.check_sync(&sync) {
            return turn.refuse_sync(waiter, error);
        }
        let id = Arc::clone(&sync.who.member);
        match self.state {
            GroupState::CompletingRebalance => self.park_sync(turn, waiter, sync),
            GroupState::Stable => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.owes_sync = false;
                }
                let reply = self.synced(&id);
                turn.reply(waiter, GroupReply::Sync(reply));
                self.hear_of(turn, &id);
            }
            GroupState::PreparingRebalance => turn.refuse_sync(waiter, ErrorCode::RebalanceInProgress),
            GroupState::Empty | GroupState::Dead => turn.refuse_sync(waiter, ErrorCode::UnknownMemberId),
        }
    }

    fn check_sync(&self, sync: &Sync) -> Result<(), ErrorCode> {
        self.check_identity(&sync.who)?;
        let differs = |said: &Option<Arc<str>>, is: &Option<Arc<str>>| said.is_some() && said != is;
        if differs(&sync.protocol_type, &self.protocol_type) || differs(&sync.protocol, &self.protocol) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn park_sync(&mut self, turn: &mut Turn<'_>, waiter: Waiter, sync: Sync) {
        let id = sync.who.member;
        let assigns = self.members.is_leader(&id) && !self.is_assigning;
        let bytes = sync.assignments.iter().map(|(_, assignment)| assignment.len()).sum::<usize>();
        let growth = Growth::OfKnown(bytes.saturating_sub(self.members.assigned()));
        if assigns && !turn.has_room(&self.id, growth) {
            return turn.refuse_sync(waiter, ErrorCode::CoordinatorNotAvailable);
        }
        let Some(member) = self.members.get_mut(&id) else { unreachable!("it was looked at") };
        member.owes_sync = false;
        if let Some(replaced) = member.sync.replace(waiter) {
            // The client asks again, so it has given up on its first request, which Kafka forgets without an answer.
            turn.refuse_sync(replaced, ErrorCode::RebalanceInProgress);
        }
        // Were the leader's repeated request written too, the log could end up with another assignment than the members.
        if !assigns {
            return;
        }
        self.is_assigning = true;
        self.is_recorded = true;
        let assignments = self.own_assignments(&sync.assignments);
        let records = vec![self.record(Some(&assignments))];
        let group = Arc::clone(&self.id);
        let generation = self.generation;
        turn.append(records, Write::Assignment { group, generation, assignments, bytes });
    }

    /// What the leader gives to those who are members.
    fn own_assignments(&self, given: &[(MemberId, Bytes)]) -> BTreeMap<MemberId, Bytes> {
        given
            .iter()
            .filter_map(|(id, assignment)| {
                let (id, _) = self.members.get_key_value(id)?;
                Some((Arc::clone(id), assignment.clone()))
            })
            .collect()
    }

    /// The assignment is written, or not. Of a generation that is over it does not matter.
    pub(super) fn assignment_written(
        &mut self,
        turn: &mut Turn<'_>,
        generation: i32,
        (assignments, bytes): (BTreeMap<MemberId, Bytes>, usize),
        outcome: Result<(), ErrorCode>,
    ) {
        if self.state != GroupState::CompletingRebalance || self.generation != generation {
            return;
        }
        match outcome {
            Ok(()) => self.assign(turn, (assignments, bytes)),
            Err(error) => {
                self.end_syncs(turn, error);
                self.rebalance(turn, Cause::NotWritten(error));
            }
        }
    }
}

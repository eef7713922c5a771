//! One group: its state and the rules that all requests share (coordinators.md 2.3, 2.4, 2.6). What a request or a timer
//! does with it is in the files named after them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use protocol::consumer_offsets::{GroupMember, GroupValue, RecordKey};
use protocol::consumer_protocol::subscribed_topics;
use protocol::error::ErrorCode;
use protocol::types::TimestampMs;

use super::bytes::GROUP_BYTES;
use super::core::{Core, Turn};
use super::machine::Record;
use super::members::{Member, Members};
use super::news::{Loss, What};
use super::offsets::Offsets;
use super::rebalance::JoinPhase;
use super::timers::TimerKey;
use crate::coordinator::ask::{
    DescribedMember, Description, GroupId, GroupState, Identity, ListedGroup, MemberId,
};

/// The type of the groups of consumers, whose metadata the broker can read.
pub(super) const CONSUMER: &str = "consumer";

/// Topics that the subscriptions of a group name at most, each as often as it is named: some tens of milliseconds.
const SUBSCRIBED_MAX: usize = 1 << 18;

/// One group.
#[derive(Debug)]
pub(super) struct Group {
    /// Its id.
    pub(super) id: GroupId,
    /// Where it stands. `Dead`: its removal is being written.
    pub(super) state: GroupState,
    /// Since when; `TimestampMs::NONE`: not known.
    pub(super) state_since: TimestampMs,
    /// The generation; 0 until the first rebalance ends.
    pub(super) generation: i32,
    /// `consumer`, ...; none for a group of offsets alone.
    pub(super) protocol_type: Option<Arc<str>>,
    /// The protocol chosen; none without members.
    pub(super) protocol: Option<Arc<str>>,
    /// Whether the log may have a record of the group, beside its offsets.
    pub(super) is_recorded: bool,
    /// Who takes part.
    pub(super) members: Members,
    /// The join phase, in PreparingRebalance.
    pub(super) join_phase: Option<JoinPhase>,
    /// When everybody must have synced.
    pub(super) sync_timer: Option<TimerKey>,
    /// Whether the assignment of this generation is being written.
    pub(super) is_assigning: bool,
    /// What it has committed.
    pub(super) offsets: Offsets,
    /// Why a batch of tombstones failed that is not the last of its request.
    pub(super) failed_part: Option<ErrorCode>,
    /// What the gauge has of its bytes.
    counted: usize,
}

// 100,000 groups with ten offsets each are to fit in 300 MiB.
const _: () = assert!(size_of::<Group>() <= 400);

impl Group {
    /// A group that nobody has joined.
    pub(super) fn new(core: &mut Core, id: GroupId, since: TimestampMs) -> Self {
        core.gauges.groups += 1;
        *core.gauges.of_mut(GroupState::Empty) += 1;
        Self {
            id,
            state: GroupState::Empty,
            state_since: since,
            generation: 0,
            protocol_type: None,
            protocol: None,
            is_recorded: false,
            members: Members::default(),
            join_phase: None,
            sync_timer: None,
            is_assigning: false,
            offsets: Offsets::default(),
            failed_part: None,
            counted: 0,
        }
    }

    /// Goes into another state, at a time.
    pub(super) fn enter(&mut self, core: &mut Core, state: GroupState, since: TimestampMs) {
        *core.gauges.of_mut(self.state) -= 1;
        *core.gauges.of_mut(state) += 1;
        self.state = state;
        self.state_since = since;
    }

    /// Goes into another state, now.
    pub(super) fn become_now(&mut self, turn: &mut Turn<'_>, state: GroupState) {
        let wall = turn.now.wall;
        self.enter(turn.core, state, wall);
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let protocol_type = self.protocol_type.as_ref().map_or(0, |name| name.len());
        GROUP_BYTES + self.id.len() + protocol_type + self.members.bytes() + self.offsets.bytes()
    }

    /// Brings the gauge of bytes up to date; to be called whenever the group may have become larger or smaller.
    pub(super) fn count(&mut self, core: &mut Core) {
        let bytes = self.bytes();
        core.gauges.bytes = core.gauges.bytes - self.counted + bytes;
        self.counted = bytes;
    }

    /// Takes it out of the gauge of bytes.
    pub(super) fn uncount(&mut self, core: &mut Core) {
        core.gauges.bytes -= std::mem::take(&mut self.counted);
    }

    /// Whether it was made in this step.
    pub(super) const fn is_new(&self) -> bool {
        self.counted == 0
    }

    /// Whether nobody and nothing needs the group any more.
    pub(super) fn is_idle(&self) -> bool {
        self.state == GroupState::Empty && !self.members.has_pending() && self.offsets.is_empty()
    }

    /// Whether it is idle and nothing in the log tells of it.
    pub(super) fn is_void(&self) -> bool {
        self.is_idle() && !self.is_recorded
    }

    /// Whether the member is who it says (2.6).
    pub(super) fn check_member(&self, member: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.members.of_instance(instance) {
                Some(current) if &**current != member => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
                None => return Err(ErrorCode::UnknownMemberId),
            }
        }
        self.members.get(member).map(|_| ()).ok_or(ErrorCode::UnknownMemberId)
    }

    /// Whether a member may ask as one of this generation (2.6).
    pub(super) fn check_identity(&self, who: &Identity) -> Result<(), ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.check_member(&who.member, who.instance.as_deref())?;
        if who.generation == self.generation { Ok(()) } else { Err(ErrorCode::IllegalGeneration) }
    }

    /// Takes a member out, with its timer; what waits for it learns that it is unknown. (Kafka forgets a SyncGroup that waits
    /// for it, and its client waits for the end of its own time.)
    pub(super) fn remove_member(&mut self, turn: &mut Turn<'_>, id: &MemberId, why: Loss) {
        if let Some(waiter) = self.members.take_join(id) {
            turn.refuse_join(waiter, ErrorCode::UnknownMemberId, &MemberId::default());
        }
        let Some(member) = self.members.remove(id) else { return };
        if let Some(waiter) = member.sync {
            turn.refuse_sync(waiter, ErrorCode::UnknownMemberId);
        }
        turn.core.timers.cancel(member.timer);
        turn.tell(&self.id, What::Gone { member: Arc::clone(id), why });
    }

    /// Forgets an id that was handed out. Whether it was.
    pub(super) fn remove_pending(&mut self, turn: &mut Turn<'_>, id: &str) -> bool {
        let timer = self.members.remove_pending(id);
        turn.core.timers.cancel(timer);
        timer.is_some()
    }

    /// The topics that members subscribe; `None` where that cannot be told, and any may be.
    pub(super) fn subscribed(&self) -> Option<BTreeSet<&str>> {
        if self.protocol_type.as_deref() != Some(CONSUMER) {
            return None;
        }
        let protocol = self.protocol.as_deref()?;
        let (mut topics, mut named) = (BTreeSet::new(), 0_usize);
        for (_, member) in self.members.iter() {
            let subscription = subscribed_topics(member.protocols().metadata(protocol)?)?;
            named = named.saturating_add(subscription.len());
            if named > SUBSCRIBED_MAX {
                return None;
            }
            topics.extend(subscription);
        }
        Some(topics)
    }

    /// The record of the group as it is, with its assignments or with those of `assignments`.
    pub(super) fn record(&self, assignments: Option<&BTreeMap<MemberId, Bytes>>) -> Record {
        let protocol = self.protocol.as_deref();
        let nothing = Bytes::new();
        let brought = |(id, member): (&MemberId, &'_ Member)| -> [Bytes; 2] {
            let subscription = protocol.and_then(|name| member.protocols().metadata(name));
            let assignment = match assignments {
                Some(assignments) => assignments.get(id),
                None => Some(&member.assignment),
            };
            [subscription, assignment].map(|bytes| bytes.unwrap_or(&nothing).clone())
        };
        let brought: Vec<[Bytes; 2]> = self.members.iter().map(brought).collect();
        let members = self.members.iter().map(|(id, member)| GroupMember {
            member_id: id,
            group_instance_id: member.instance.as_deref(),
            client_id: &member.client_id,
            client_host: &member.client_host,
            rebalance_timeout_ms: member.rebalance_timeout_ms,
            session_timeout_ms: member.session_timeout_ms,
            // See `brought`.
            subscription: &[],
            assignment: &[],
        });
        let value = GroupValue {
            protocol_type: self.protocol_type.as_deref().unwrap_or(""),
            generation: self.generation,
            protocol,
            leader: self.members.leader.as_deref(),
            current_state_timestamp: Some(self.state_since.get()).filter(|since| *since >= 0),
            members: members.collect(),
        };
        let pieces = value.encode_around(brought.iter().map(<[Bytes; 2]>::each_ref));
        (RecordKey::Group { group: &self.id }.encode(), Some(pieces.into()))
    }

    /// The tombstone of the group.
    pub(super) fn tombstone(&self) -> Record {
        (RecordKey::Group { group: &self.id }.encode(), None)
    }

    /// As ListGroups tells it.
    pub(super) fn listed(&self) -> ListedGroup {
        ListedGroup {
            group: Arc::clone(&self.id),
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            state: self.state,
        }
    }

    /// As DescribeGroups tells it: who has what only where that is settled (2.13).
    pub(super) fn described(&self) -> Description {
        let protocol = self.protocol.as_ref().filter(|_| self.state == GroupState::Stable);
        let described = |(id, member): (&MemberId, &Member)| {
            let settled = protocol.map(|name| {
                let metadata = member.protocols().metadata(name).cloned().unwrap_or_default();
                (metadata, member.assignment.clone())
            });
            let (metadata, assignment) = settled.unwrap_or_default();
            DescribedMember {
                member: Arc::clone(id),
                instance: member.instance.clone(),
                client_id: Arc::clone(&member.client_id),
                client_host: Arc::clone(&member.client_host),
                metadata,
                assignment,
            }
        };
        Description {
            state: self.state,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: protocol.cloned().unwrap_or_default(),
            members: self.members.iter().map(described).collect(),
        }
    }

    /// How a group is described that is not there, or no longer.
    pub(super) fn described_as_dead() -> Description {
        let none = || Arc::default();
        Description { state: GroupState::Dead, protocol_type: none(), protocol: none(), members: Vec::new() }
    }
}

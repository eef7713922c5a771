//! Loading: the records of the partition, in their order, before the first step (coordinators.md 3.5). The last record of
//! a key counts; what a transaction wrote waits for its marker.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use protocol::consumer_offsets::{GroupMember, GroupValue, OffsetValue, RecordKey, ValueError};
use protocol::error::DecodeError;
use protocol::types::{Offset, ProducerId, TimestampMs, TopicName};

use super::core::Turn;
use super::groups::Groups;
use super::machine::{Effect, Now};
use super::members::{Member, Members, Profile, Protocols};
use super::news::Cause;
use super::offsets::{Committed, Key};
use super::state::Group;
use crate::coordinator::ask::{GroupId, GroupState, InstanceId, MemberId};

/// Groups, and members of groups, whose sessions begin in one go: some 100 µs.
const SLICE: usize = 500;

/// What a record told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// An offset, or its tombstone.
    Offset,
    /// A group, or its tombstone.
    Group,
    /// Nothing that is known here, by its key version: a later Kafka wrote it (KIP-915).
    Skipped(i16),
}

/// Why the partition cannot be loaded. Serving the rest would tell clients that there are no offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The key is not one.
    #[error("key: {0}")]
    Key(DecodeError),
    /// The value is not one that is known.
    #[error("value: {0}")]
    Value(#[from] ValueError),
}

impl Groups {
    /// Takes a record of the log, outside transactions.
    ///
    /// # Errors
    /// The record cannot be read; the machine is not to be used.
    pub fn replay(
        &mut self,
        offset: Offset,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Replayed, ReplayError> {
        self.last_record = self.last_record.max(offset);
        match RecordKey::decode(key).map_err(ReplayError::Key)? {
            RecordKey::Offset { group, topic, partition } => {
                let value = value.map(OffsetValue::decode).transpose()?;
                self.replay_offset(offset, group, (topic, partition), value.as_ref());
                Ok(Replayed::Offset)
            }
            RecordKey::Group { group } => {
                match value.map(GroupValue::decode).transpose()? {
                    Some(value) => self.replay_group(group, &value),
                    None => self.replay_group_tombstone(group),
                }
                Ok(Replayed::Group)
            }
            RecordKey::Unknown(version) => Ok(Replayed::Skipped(version)),
        }
    }

    /// Takes a record of a transactional batch: it counts with the producer's marker.
    ///
    /// # Errors
    /// The record cannot be read; the machine is not to be used.
    pub fn replay_transactional(
        &mut self,
        producer: ProducerId,
        offset: Offset,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Replayed, ReplayError> {
        let RecordKey::Offset { group, topic, partition } =
            RecordKey::decode(key).map_err(ReplayError::Key)?
        else {
            // Only offsets are written in transactions; anything else is what it is outside of them.
            return self.replay(offset, key, value);
        };
        self.last_record = self.last_record.max(offset);
        let value = value.map(OffsetValue::decode).transpose()?;
        let id = self.group_of(group);
        let Some(of) = self.groups.get_mut(&id) else { unreachable!("it was made") };
        let topics = &mut self.core.topics;
        match (value, topics.find(topic)) {
            (Some(value), found) => {
                let topic = found.unwrap_or_else(|| topics.intern(&TopicName::new(topic)));
                let committed = Committed::read(offset, &value);
                of.offsets.put_in_transaction(topics, producer, Key { topic, partition }, committed);
                self.open.entry(producer).or_default().insert(Arc::clone(&id));
            }
            (None, Some(topic)) => {
                of.offsets.remove_from_transaction(topics, producer, Key { topic, partition });
            }
            (None, None) => {}
        }
        self.settle(&id);
        Ok(Replayed::Offset)
    }

    /// Takes a marker: what the producer's transaction wrote counts now, or never does. To be called in the order of the
    /// log, while loading and afterwards.
    pub fn replay_marker(&mut self, producer: ProducerId, committed: bool) {
        for id in self.open.remove(&producer).unwrap_or_default() {
            if let Some(group) = self.groups.get_mut(&id) {
                let before = group.offsets.len();
                group.offsets.end_transaction(&mut self.core.topics, producer, committed);
                self.core.gauges.offsets += group.offsets.len() - before;
            }
            self.settle(&id);
        }
    }

    /// All records are replayed: sessions begin, and groups that are too large rebalance, so that all can commit first.
    /// Does so for some groups at a time, those behind `after`. Gives the last of them if there are more; that is to be
    /// done before the first step, as somebody who joins meanwhile has more time than a session.
    pub fn loaded(&mut self, now: Now, after: Option<&GroupId>, out: &mut Vec<Effect>) -> Option<GroupId> {
        let max = usize::try_from(self.core.settings.max_size).unwrap_or(0);
        let (from, mut budget, mut last) = (after.map_or(Bound::Unbounded, Bound::Excluded), SLICE, None);
        for (id, group) in self.groups.range_mut::<GroupId, _>((from, Bound::Unbounded)) {
            if budget == 0 {
                return last;
            }
            budget = budget.saturating_sub(1 + group.members.len());
            if budget == 0 {
                last = Some(Arc::clone(id));
            }
            if group.members.is_empty() {
                continue;
            }
            let mut turn = Turn { now, core: &mut self.core, out: &mut *out };
            for id in group.members.ids() {
                group.hear_of(&mut turn, &id);
            }
            if group.members.len() > max {
                group.rebalance(&mut turn, Cause::TooLarge);
            }
            group.count(&mut self.core);
        }
        None
    }

    fn group_of(&mut self, id: &str) -> GroupId {
        if let Some((id, _)) = self.groups.get_key_value(id) {
            return Arc::clone(id);
        }
        let id = GroupId::from(id);
        let group = Group::new(&mut self.core, Arc::clone(&id), TimestampMs::NONE);
        self.groups.insert(Arc::clone(&id), Box::new(group));
        id
    }

    fn replay_offset(
        &mut self,
        offset: Offset,
        group: &str,
        (topic, partition): (&str, i32),
        value: Option<&OffsetValue<'_>>,
    ) {
        let topics = &mut self.core.topics;
        let found = topics.find(topic);
        let Some(value) = value else {
            let Some((topic, of)) = found.zip(self.groups.get_mut(group)) else { return };
            self.core.gauges.offsets -= of.offsets.len();
            of.offsets.remove(topics, Key { topic, partition }, offset);
            self.core.gauges.offsets += of.offsets.len();
            return self.settle(group);
        };
        // A million of these are to be loaded in three seconds: each looks once for its topic and once for its group.
        let topic = found.unwrap_or_else(|| topics.intern(&TopicName::new(topic)));
        let (key, committed) = (Key { topic, partition }, Committed::read(offset, value));
        let is_new = match self.groups.get_mut(group) {
            Some(of) => {
                let is_new = of.offsets.put(topics, key, committed);
                of.count(&mut self.core);
                is_new
            }
            None => {
                let id = GroupId::from(group);
                let mut of = Box::new(Group::new(&mut self.core, Arc::clone(&id), TimestampMs::NONE));
                let is_new = of.offsets.put(&mut self.core.topics, key, committed);
                of.count(&mut self.core);
                self.groups.insert(id, of);
                is_new
            }
        };
        self.core.gauges.offsets += usize::from(is_new);
    }

    fn replay_group(&mut self, group: &str, value: &GroupValue<'_>) {
        let id = self.group_of(group);
        let Some(of) = self.groups.get_mut(&id) else { unreachable!("it was made") };
        of.is_recorded = true;
        of.generation = value.generation;
        of.protocol_type = Some(value.protocol_type).filter(|name| !name.is_empty()).map(Arc::from);
        of.protocol = value.protocol.map(Arc::from);
        of.members = members(value);
        let state = if of.members.is_empty() { GroupState::Empty } else { GroupState::Stable };
        let since = value.current_state_timestamp.map_or(TimestampMs::NONE, TimestampMs::new);
        of.enter(&mut self.core, state, since);
        of.count(&mut self.core);
    }

    fn replay_group_tombstone(&mut self, group: &str) {
        let Some(of) = self.groups.get_mut(group) else { return };
        of.is_recorded = false;
        of.generation = 0;
        of.protocol_type = None;
        of.protocol = None;
        of.members = Members::default();
        of.enter(&mut self.core, GroupState::Empty, TimestampMs::NONE);
        self.settle(group);
    }
}

/// The members of a record; each can do what was chosen, as nothing else is written.
fn members(value: &GroupValue<'_>) -> Members {
    let mut members = Members::default();
    for member in &value.members {
        members.add(MemberId::from(member.member_id), loaded_member(value.protocol, member));
    }
    members.set_assigned(value.members.iter().map(|member| member.assignment.len()).sum());
    if let Some((leader, _)) = value.leader.and_then(|leader| members.get_key_value(leader)) {
        members.leader = Some(Arc::clone(leader));
    }
    members
}

fn loaded_member(protocol: Option<&str>, member: &GroupMember<'_>) -> Member {
    let name = Arc::from(protocol.unwrap_or(""));
    let profile = Profile {
        client_id: Arc::from(member.client_id),
        client_host: Arc::from(member.client_host),
        session_timeout_ms: member.session_timeout_ms,
        rebalance_timeout_ms: member.rebalance_timeout_ms,
        protocols: Protocols::new(&[(name, Bytes::copy_from_slice(member.subscription))]),
    };
    let mut loaded = Member::new(profile, member.group_instance_id.map(InstanceId::from));
    loaded.assignment = Bytes::copy_from_slice(member.assignment);
    loaded
}

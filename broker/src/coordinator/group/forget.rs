//! What takes offsets and groups away: OffsetDelete, DeleteGroups, and the tombstones that expiry and deleted topics call
//! for (coordinators.md 2.12, 3.4). An offset is gone when its tombstone is in the log; a group whose removal is being
//! written is Dead, and lives again if that fails.

use std::sync::Arc;

use protocol::error::ErrorCode;
use protocol::types::Offset;

use super::core::Turn;
use super::expiry::Job;
use super::groups::Groups;
use super::machine::{Effect, Now, Record, Waiter};
use super::news::What;
use super::offsets::Key;
use super::state::{CONSUMER, Group};
use super::writes::Write;
use crate::coordinator::ask::{GroupId, GroupReply, GroupState, MemberId, OffsetDelete};

/// Bytes of keys in a batch of tombstones: far below what a batch of the topic may have.
const BATCH_BYTES_MAX: usize = 128 * 1024;
/// Tombstones in a batch, as each has some bytes of its own.
const BATCH_RECORDS_MAX: usize = 4096;

/// A group of more offsets ends a slice at a time.
const ENDED_AT_ONCE_MAX: usize = 1_000;

/// Tombstones that are being written.
#[derive(Debug)]
pub(super) struct Forget {
    group: GroupId,
    keys: Vec<Key>,
    why: Why,
    then: Then,
}

/// Why offsets go; what is counted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// They are too old.
    Expired,
    /// OffsetDelete.
    Asked,
    /// Their topic was deleted: not counted, as in Kafka.
    TopicGone,
    /// Their group is deleted: not counted, as in Kafka.
    GroupGone,
}

/// What follows from a batch of tombstones.
#[derive(Debug)]
pub(super) enum Then {
    /// Nothing: nobody asked.
    Nothing,
    /// More batches of the same request.
    More,
    /// The reply to OffsetDelete.
    ReplyOffsets(Waiter, Vec<ErrorCode>),
    /// The group is gone: the reply to DeleteGroups.
    ReplyGroup(Waiter),
    /// The group is gone; nobody asked.
    Bury,
}

impl Forget {
    /// What to tell if the answer is an error.
    pub(super) fn refusal(&self, error: ErrorCode) -> Option<(Waiter, GroupReply)> {
        match self.then {
            Then::Nothing | Then::More | Then::Bury => None,
            Then::ReplyOffsets(waiter, _) => Some((waiter, GroupReply::OffsetDelete(Err(error)))),
            Then::ReplyGroup(waiter) => Some((waiter, GroupReply::Done(error))),
        }
    }
}

impl Group {
    /// OffsetDelete.
    pub(super) fn delete_offsets(&mut self, turn: &mut Turn<'_>, waiter: Waiter, request: &OffsetDelete) {
        let is_consumer = self.protocol_type.as_deref() == Some(CONSUMER);
        let error = match self.state {
            GroupState::Dead => Some(ErrorCode::GroupIdNotFound),
            GroupState::Empty => None,
            _ if is_consumer => None,
            _ => Some(ErrorCode::NonEmptyGroup),
        };
        if let Some(error) = error {
            return turn.reply(waiter, GroupReply::OffsetDelete(Err(error)));
        }
        let subscribed = self.subscribed();
        let is_empty = self.state == GroupState::Empty;
        let is_free = |topic: &str| is_empty || subscribed.as_ref().is_some_and(|all| !all.contains(topic));
        let mut codes = Vec::with_capacity(request.partitions.len());
        let mut keys = Vec::new();
        for (topic, partition) in &request.partitions {
            if !is_free(topic.get()) {
                codes.push(ErrorCode::GroupSubscribedToTopic);
                continue;
            }
            codes.push(ErrorCode::None);
            if let Some(topic) = turn.core.topics.find(topic.get()) {
                let key = Key { topic, partition: *partition };
                if self.offsets.get(key).is_some() || self.offsets.is_unstable(key) {
                    keys.push(key);
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return turn.reply(waiter, GroupReply::OffsetDelete(Ok(codes)));
        }
        self.forget(turn, (keys, Why::Asked), Then::ReplyOffsets(waiter, codes));
    }

    /// DeleteGroups.
    pub(super) fn delete(&mut self, turn: &mut Turn<'_>, waiter: Waiter) {
        let error = match self.state {
            GroupState::Dead => ErrorCode::GroupIdNotFound,
            GroupState::Empty if self.offsets.is_empty() && !self.is_recorded => {
                // It holds nothing but ids that were handed out, and goes as void.
                let pending: Vec<MemberId> = self.members.pending().map(|(id, _)| Arc::clone(id)).collect();
                for id in pending {
                    self.remove_pending(turn, &id);
                }
                ErrorCode::None
            }
            GroupState::Empty => return self.end(turn, Then::ReplyGroup(waiter)),
            _ => ErrorCode::NonEmptyGroup,
        };
        turn.reply(waiter, GroupReply::Done(error));
    }

    /// Removes an idle group for good.
    pub(super) fn bury_if_idle(&mut self, turn: &mut Turn<'_>) {
        if self.is_idle() && self.is_recorded {
            self.end(turn, Then::Bury);
        }
    }

    fn end(&mut self, turn: &mut Turn<'_>, then: Then) {
        let since = self.state_since;
        self.enter(turn.core, GroupState::Dead, since);
        let (keys, next) = self.offsets.keys_from(None, ENDED_AT_ONCE_MAX);
        match then {
            // There may be hundreds of thousands.
            Then::ReplyGroup(waiter) if next.is_some() => {
                turn.core.jobs.push_back(Job::removal(Arc::clone(&self.id), waiter));
            }
            then => self.forget(turn, (keys, Why::GroupGone), then),
        }
    }

    /// Goes on with the end of a group, with so many offsets from one on; where to go on after them.
    pub(super) fn end_some(
        &mut self,
        turn: &mut Turn<'_>,
        waiter: Waiter,
        from: Option<Key>,
        budget: &mut usize,
    ) -> Option<Key> {
        let (keys, next) = self.offsets.keys_from(from, *budget);
        *budget = budget.saturating_sub(keys.len());
        let then = if next.is_some() { Then::More } else { Then::ReplyGroup(waiter) };
        self.forget(turn, (keys, Why::GroupGone), then);
        next
    }

    /// Writes tombstones, in batches that the log takes. The last one has the group's, if the group goes.
    pub(super) fn forget(&mut self, turn: &mut Turn<'_>, (keys, why): (Vec<Key>, Why), last: Then) {
        let more = || if matches!(last, Then::Nothing) { Then::Nothing } else { Then::More };
        let mut records: Vec<Record> = Vec::new();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for key in keys {
            let topic = turn.core.topics.name(key.topic).clone();
            let record_key = self.offset_key(&topic, key);
            if bytes + record_key.len() > BATCH_BYTES_MAX || batch.len() == BATCH_RECORDS_MAX {
                self.append_tombstones(turn, &mut records, (&mut batch, why), more());
                bytes = 0;
            }
            bytes += record_key.len();
            self.offsets.begin(&mut turn.core.topics, key);
            records.push((record_key, None));
            batch.push(key);
        }
        if matches!(last, Then::ReplyGroup(_) | Then::Bury) && self.is_recorded {
            records.push(self.tombstone());
        }
        self.append_tombstones(turn, &mut records, (&mut batch, why), last);
    }

    fn append_tombstones(
        &self,
        turn: &mut Turn<'_>,
        records: &mut Vec<Record>,
        (batch, why): (&mut Vec<Key>, Why),
        then: Then,
    ) {
        let forget = Forget { group: Arc::clone(&self.id), keys: std::mem::take(batch), why, then };
        turn.append(std::mem::take(records), Write::Forget(forget));
    }
}

impl Groups {
    /// Tombstones are in the log, from an offset on, or not.
    pub(super) fn forget_written(
        &mut self,
        now: Now,
        forget: Forget,
        outcome: Result<Offset, ErrorCode>,
        out: &mut Vec<Effect>,
    ) {
        let Some(group) = self.groups.get_mut(&forget.group) else {
            unreachable!("a group stays while its tombstones are being written")
        };
        let mut turn = Turn { now, core: &mut self.core, out };
        let before = group.offsets.len();
        let mut record = outcome.ok();
        for key in forget.keys {
            if let Some(at) = record {
                group.offsets.remove(&mut turn.core.topics, key, at);
                record = Some(at.plus(1));
            }
            group.offsets.end(&mut turn.core.topics, key);
        }
        let gone = before - group.offsets.len();
        turn.core.gauges.offsets -= gone;
        turn.core.counts.add_gone(forget.why, gone);
        if forget.why == Why::TopicGone && outcome.is_err() {
            turn.core.note_refused_tombstones();
        }
        // Batches of one request to a group follow each other, but for those of others to other groups: the last one knows
        // whether an earlier one failed.
        let ends_group = matches!(forget.then, Then::ReplyGroup(_) | Then::Bury);
        let error = match forget.then {
            Then::More => {
                group.failed_part = group.failed_part.or(outcome.err());
                return self.settle(&forget.group);
            }
            Then::Nothing => outcome.err(),
            Then::ReplyOffsets(..) | Then::ReplyGroup(_) | Then::Bury => {
                group.failed_part.take().or(outcome.err())
            }
        };
        match forget.then {
            Then::ReplyOffsets(waiter, codes) => {
                let reply = error.map_or(Ok(codes), Err);
                turn.reply(waiter, GroupReply::OffsetDelete(reply));
            }
            Then::ReplyGroup(waiter) => {
                turn.reply(waiter, GroupReply::Done(error.unwrap_or(ErrorCode::None)));
            }
            Then::Nothing | Then::More | Then::Bury => {}
        }
        match error {
            None if ends_group => {
                turn.tell(&forget.group, What::Removed);
                return self.remove(&forget.group);
            }
            None => group.bury_if_idle(&mut turn),
            Some(_) if ends_group => {
                let since = group.state_since;
                group.enter(turn.core, GroupState::Empty, since);
            }
            Some(_) => {}
        }
        self.settle(&forget.group);
    }
}

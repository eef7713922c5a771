//! OffsetCommit and OffsetFetch of one group (coordinators.md 2.6, 2.9, 2.11). What is committed is read only once its
//! record is in the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::consumer_offsets::RecordKey;
use protocol::error::ErrorCode;
use protocol::types::{LeaderEpoch, Offset, TopicName};

use super::bytes::{EXTRA_BYTES, Growth, OFFSET_BYTES};
use super::core::{Core, Turn, count};
use super::machine::{Record, Waiter};
use super::offsets::{Committed, Key};
use super::state::Group;
use super::writes::Write;
use crate::coordinator::ask::{
    FetchedOffset, GroupId, GroupReply, GroupState, OffsetCommit, OffsetFetch, OffsetFetchReply,
    OffsetToCommit, Place,
};

/// Of all offsets of a group so many are told in one step, some 100 µs: a group may have hundreds of thousands. What is
/// committed between two steps is told as it is then, as it is for partitions that are asked for by name in parts.
const FETCHED_A_STEP: usize = 2_000;

/// What the record of an offset takes at least, beside its names and metadata.
const RECORD_BYTES_MIN: usize = 34;

/// Offsets that are being written.
#[derive(Debug)]
pub(super) struct Commit {
    group: GroupId,
    waiter: Waiter,
    offsets: Vec<(Key, Committed)>,
    /// Of each offset of the request; none where the batch decides.
    codes: Vec<Option<ErrorCode>>,
}

impl Commit {
    /// Whose they are.
    pub(super) const fn group(&self) -> &GroupId {
        &self.group
    }

    /// What to tell if they are not written.
    pub(super) fn refusal(&self, error: ErrorCode) -> (Waiter, GroupReply) {
        let codes = self.codes.iter().map(|code| code.unwrap_or(error)).collect();
        (self.waiter, GroupReply::OffsetCommit(codes))
    }

    /// They are in the log from an offset on, or not.
    pub(super) fn written(
        self,
        turn: &mut Turn<'_>,
        group: Option<&mut Group>,
        outcome: Result<Offset, ErrorCode>,
    ) {
        let (waiter, reply) = self.refusal(outcome.err().unwrap_or(ErrorCode::None));
        let Some(group) = group else { unreachable!("a group stays while its offsets are being written") };
        let topics = &mut turn.core.topics;
        let before = group.offsets.len();
        let mut record = outcome.ok();
        if record.is_some() {
            turn.core.counts.commits += count(self.offsets.len());
        }
        for (key, committed) in self.offsets {
            if let Some(at) = record {
                group.offsets.put(topics, key, committed.recorded(at));
                record = Some(at.plus(1));
            }
            group.offsets.end(topics, key);
        }
        turn.core.gauges.offsets += group.offsets.len() - before;
        turn.reply(waiter, reply);
    }
}

impl Group {
    /// OffsetCommit. Nothing is kept for topics that are `gone`: a new topic of the name would begin with it.
    pub(super) fn commit(
        &mut self,
        turn: &mut Turn<'_>,
        waiter: Waiter,
        request: &OffsetCommit,
        gone: &BTreeSet<TopicName>,
    ) {
        let unknown = |offset: &OffsetToCommit| {
            gone.contains(offset.topic.get()).then_some(ErrorCode::UnknownTopicOrPartition)
        };
        if let Err(error) = self.check_commit(turn, request) {
            let codes = request.offsets.iter().map(|offset| unknown(offset).unwrap_or(error)).collect();
            return turn.reply(waiter, GroupReply::OffsetCommit(codes));
        }
        let growth = self.growth_of_commit(turn, request);
        if !turn.has_room(&self.id, growth) {
            let refused = |offset| unknown(offset).unwrap_or(ErrorCode::CoordinatorNotAvailable);
            let codes = request.offsets.iter().map(refused).collect();
            return turn.reply(waiter, GroupReply::OffsetCommit(codes));
        }
        let max = usize::try_from(turn.core.settings.offset_metadata_max_bytes).unwrap_or(0);
        let is_too_long = |metadata: &str| metadata.len() > max && metadata.encode_utf16().count() > max;
        let own_code = |offset: &OffsetToCommit| {
            let too_long = || is_too_long(&offset.metadata).then_some(ErrorCode::OffsetMetadataTooLarge);
            unknown(offset).or_else(too_long)
        };
        let codes: Vec<_> = request.offsets.iter().map(own_code).collect();
        let taken = || request.offsets.iter().zip(&codes).filter(|(_, code)| code.is_none());
        // The log takes all or nothing: what it would not take is not made, as there may be hundreds of thousands.
        let bytes_min = taken().map(|(offset, _)| self.record_bytes_min(offset)).sum::<usize>();
        if bytes_min > turn.now.room.batch {
            let refused = |code: Option<ErrorCode>| code.unwrap_or(ErrorCode::InvalidCommitOffsetSize);
            let codes = codes.into_iter().map(refused).collect();
            return turn.reply(waiter, GroupReply::OffsetCommit(codes));
        }
        let mut offsets = Vec::with_capacity(request.offsets.len());
        let mut records: Vec<Record> = Vec::with_capacity(request.offsets.len());
        for (offset, _) in taken() {
            let committed = committed(turn, offset);
            let key = Key { topic: turn.core.topics.intern(&offset.topic), partition: offset.partition };
            self.offsets.begin(&mut turn.core.topics, key);
            records.push((self.offset_key(&offset.topic, key), Some(committed.value().encode().into())));
            offsets.push((key, committed));
        }
        let commit = Commit { group: Arc::clone(&self.id), waiter, offsets, codes };
        if records.is_empty() {
            let (waiter, reply) = commit.refusal(ErrorCode::None);
            return turn.reply(waiter, reply);
        }
        turn.append(records, Write::Commit(commit));
    }

    /// What the record of an offset takes at least.
    fn record_bytes_min(&self, offset: &OffsetToCommit) -> usize {
        RECORD_BYTES_MIN + self.id.len() + offset.topic.get().len() + offset.metadata.len()
    }

    /// What a commit adds to what is kept: nothing where it only moves offsets. Where there is plenty of room it is not
    /// looked at what is there.
    fn growth_of_commit(&self, turn: &Turn<'_>, request: &OffsetCommit) -> Growth {
        let bytes = |offset: &OffsetToCommit| OFFSET_BYTES + EXTRA_BYTES + offset.metadata.len();
        let at_most = request.offsets.iter().map(bytes).sum::<usize>();
        if self.is_new() {
            return Growth::OfNewcomer(self.bytes() + at_most);
        }
        if at_most <= turn.now.room.known {
            return Growth::OfKnown(at_most);
        }
        let more = |offset: &OffsetToCommit| {
            let topic = turn.core.topics.find(offset.topic.get());
            let key = topic.map(|topic| Key { topic, partition: offset.partition });
            let there = key.and_then(|key| self.offsets.get(key)).map_or(0, Committed::bytes);
            committed(turn, offset).bytes().saturating_sub(there)
        };
        Growth::OfKnown(request.offsets.iter().map(more).sum())
    }

    fn check_commit(&mut self, turn: &mut Turn<'_>, request: &OffsetCommit) -> Result<(), ErrorCode> {
        let who = &request.who;
        if self.state == GroupState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if who.generation < 0 && self.state == GroupState::Empty {
            return Ok(());
        }
        if who.generation < 0 && who.member.is_empty() && who.instance.is_none() {
            // Of a group that has members only they may commit.
            return Err(ErrorCode::UnknownMemberId);
        }
        self.check_identity(who)?;
        if self.state == GroupState::CompletingRebalance {
            return Err(ErrorCode::RebalanceInProgress);
        }
        self.hear_of(turn, &who.member);
        Ok(())
    }

    /// The key of an offset's record.
    pub(super) fn offset_key(&self, topic: &TopicName, key: Key) -> bytes::Bytes {
        RecordKey::Offset { group: &self.id, topic: topic.get(), partition: key.partition }.encode()
    }

    /// OffsetFetch.
    pub(super) fn fetch(&self, core: &Core, request: &OffsetFetch) -> OffsetFetchReply {
        let require_stable = request.require_stable;
        let asked = match &request.topics {
            Some(asked) => asked.iter().map(|(topic, partitions)| {
                let index = core.topics.find(topic.get());
                let fetched = partitions.iter().map(|partition| match index {
                    Some(topic) => self.fetched(core, Key { topic, partition: *partition }, require_stable),
                    None => not_there(*partition, ErrorCode::None),
                });
                (topic.clone(), fetched.collect())
            }),
            None => return self.fetch_some(core, request.from, require_stable),
        };
        OffsetFetchReply { error: ErrorCode::None, topics: asked.collect(), next: None }
    }

    /// Some of all that have an offset, from a place on.
    fn fetch_some(&self, core: &Core, from: Option<Place>, require_stable: bool) -> OffsetFetchReply {
        let mut all: Vec<(TopicName, Vec<FetchedOffset>)> = Vec::new();
        let (mut last, mut next) = (None, None);
        for (count, (key, committed)) in self.offsets.from(from.map(Key::of)).enumerate() {
            if count == FETCHED_A_STEP {
                next = Some(key.place());
                break;
            }
            if core.is_of_gone_topic(key.topic, committed) {
                continue;
            }
            let fetched = self.fetched(core, key, require_stable);
            match all.last_mut().filter(|_| last == Some(key.topic)) {
                Some((_, partitions)) => partitions.push(fetched),
                None => all.push((core.topics.name(key.topic).clone(), vec![fetched])),
            }
            last = Some(key.topic);
        }
        OffsetFetchReply { error: ErrorCode::None, topics: all, next }
    }

    fn fetched(&self, core: &Core, key: Key, require_stable: bool) -> FetchedOffset {
        if require_stable && self.offsets.is_unstable(key) {
            return not_there(key.partition, ErrorCode::UnstableOffsetCommit);
        }
        match self.offsets.get(key).filter(|committed| !core.is_of_gone_topic(key.topic, committed)) {
            Some(committed) => FetchedOffset {
                partition: key.partition,
                offset: committed.offset,
                leader_epoch: committed.leader_epoch,
                metadata: committed.metadata(),
                error: ErrorCode::None,
            },
            None => not_there(key.partition, ErrorCode::None),
        }
    }
}

fn committed(turn: &Turn<'_>, offset: &OffsetToCommit) -> Committed {
    let now = turn.now.wall;
    let expires_at =
        offset.retention_ms.map(|ms| protocol::types::TimestampMs::new(now.get().saturating_add(ms)));
    let at = offset.committed_at.unwrap_or(now);
    Committed::new(offset.offset, offset.leader_epoch, at, &offset.metadata, expires_at)
}

fn not_there(partition: i32, error: ErrorCode) -> FetchedOffset {
    FetchedOffset {
        partition,
        offset: Offset::NONE,
        leader_epoch: LeaderEpoch::NONE,
        metadata: Arc::default(),
        error,
    }
}

/// The reply to an OffsetFetch of a group that is not there.
pub(super) fn nothing_fetched(request: &OffsetFetch) -> OffsetFetchReply {
    let topics = request.topics.iter().flatten().map(|(topic, partitions)| {
        (topic.clone(), partitions.iter().map(|p| not_there(*p, ErrorCode::None)).collect())
    });
    OffsetFetchReply { error: ErrorCode::None, topics: topics.collect(), next: None }
}

//! What the groups of one partition share, and one step among it: `Turn` is the machine's hand towards the driver. Knows
//! no group. Called by the rest of `group`.

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::error::ErrorCode;
use protocol::types::MonoTime;

use super::bytes::Growth;
use super::expiry::Job;
use super::forget::Why;
use super::machine::{Effect, Now, Record, Waiter, WriteId};
use super::news::{News, What};
use super::timers::{Timer, TimerKey, Timers};
use super::topics::Topics;
use super::writes::Write;
use crate::coordinator::ask::{GroupId, GroupReply, GroupState, JoinReply, MemberId, SyncReply};

/// The configuration of the coordinator (coordinators.md 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// `group.min.session.timeout.ms`.
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`.
    pub max_size: i32,
    /// `offset.metadata.max.bytes`, which Kafka compares with UTF-16 units.
    pub offset_metadata_max_bytes: i32,
    /// `offsets.retention.minutes`, as milliseconds.
    pub offsets_retention_ms: i64,
}

impl Default for GroupSettings {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            min_session_timeout_ms: 6_000,
            max_session_timeout_ms: 1_800_000,
            initial_rebalance_delay_ms: 3_000,
            max_size: i32::MAX,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 10_080 * 60_000,
        }
    }
}

/// How many groups and offsets there are, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Groups.
    pub groups: usize,
    /// Committed offsets.
    pub offsets: usize,
    /// Groups without members.
    pub empty: usize,
    /// Groups that collect joins.
    pub preparing_rebalance: usize,
    /// Groups that wait for the leader's assignment.
    pub completing_rebalance: usize,
    /// Groups whose assignment is known.
    pub stable: usize,
    /// Groups that are being removed.
    pub dead: usize,
    /// Bytes that all of it takes, as `bytes` reckons.
    pub bytes: usize,
}

impl Gauges {
    /// The number of groups in a state.
    pub(super) const fn of_mut(&mut self, state: GroupState) -> &mut usize {
        match state {
            GroupState::Empty => &mut self.empty,
            GroupState::PreparingRebalance => &mut self.preparing_rebalance,
            GroupState::CompletingRebalance => &mut self.completing_rebalance,
            GroupState::Stable => &mut self.stable,
            GroupState::Dead => &mut self.dead,
        }
    }
}

/// What has happened since the machine was made, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Offsets that were committed. (In Kafka 3.9 a request counts once; its documentation, 2.x and 4.x say offsets.)
    pub commits: u64,
    /// Offsets that expired.
    pub expirations: u64,
    /// Offsets that were deleted by OffsetDelete.
    pub deletions: u64,
    /// Rebalances whose assignment is known to the members.
    pub rebalances: u64,
    /// Requests for which there was no room.
    pub refusals: u64,
}

impl Counts {
    /// What both say together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            commits: self.commits.saturating_add(other.commits),
            expirations: self.expirations.saturating_add(other.expirations),
            deletions: self.deletions.saturating_add(other.deletions),
            rebalances: self.rebalances.saturating_add(other.rebalances),
            refusals: self.refusals.saturating_add(other.refusals),
        }
    }

    /// Offsets are gone.
    pub(super) fn add_gone(&mut self, why: Why, offsets: usize) {
        match why {
            Why::Expired => self.expirations += count(offsets),
            Why::Asked => self.deletions += count(offsets),
            Why::TopicGone | Why::GroupGone => {}
        }
    }
}

/// A length as it is counted.
pub(super) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A batch that is being appended.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) id: WriteId,
    /// How many records it has.
    pub(super) records: usize,
    /// What follows from it.
    pub(super) write: Write,
}

/// What the groups share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) settings: GroupSettings,
    pub(super) timers: Timers,
    pub(super) topics: Topics,
    /// What is being appended, in the order of the log.
    pub(super) writes: VecDeque<Queued>,
    pub(super) next_write: u64,
    /// What goes over all groups.
    pub(super) jobs: VecDeque<Job>,
    pub(super) gauges: Gauges,
    pub(super) counts: Counts,
}

impl Core {
    pub(super) fn new(settings: GroupSettings) -> Self {
        Self {
            settings,
            timers: Timers::default(),
            topics: Topics::default(),
            writes: VecDeque::new(),
            next_write: 0,
            jobs: VecDeque::new(),
            gauges: Gauges::default(),
            counts: Counts::default(),
        }
    }
}

/// One step of the machine.
pub(super) struct Turn<'a> {
    pub(super) now: Now,
    pub(super) core: &'a mut Core,
    pub(super) out: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    /// Answers a request.
    pub(super) fn reply(&mut self, waiter: Waiter, reply: GroupReply) {
        self.out.push(Effect::Reply { waiter, reply });
    }

    /// Tells what happened to a group.
    pub(super) fn tell(&mut self, group: &GroupId, what: What) {
        self.out.push(Effect::Tell(News { group: Arc::clone(group), what }));
    }

    /// Whether groups may keep so much more. Where they may not, who asked is to be told COORDINATOR_NOT_AVAILABLE: clients
    /// come again with it and go on when there is room, and an application learns of it as of any coordinator that is
    /// overloaded. (GROUP_MAX_SIZE_REACHED would end it, for what is no fault of its group.)
    pub(super) fn has_room(&mut self, group: &GroupId, growth: Growth) -> bool {
        let has_room = match growth {
            Growth::OfNewcomer(bytes) => bytes <= self.now.room.newcomers,
            Growth::OfKnown(bytes) => bytes <= self.now.room.known,
        };
        if !has_room {
            self.core.counts.refusals += 1;
            self.tell(group, What::NoRoom);
        }
        has_room
    }

    /// Refuses a JoinGroup.
    pub(super) fn refuse_join(&mut self, waiter: Waiter, error: ErrorCode, member: &MemberId) {
        self.reply(waiter, GroupReply::Join(JoinReply::refused(error, Arc::clone(member))));
    }

    /// Refuses a SyncGroup.
    pub(super) fn refuse_sync(&mut self, waiter: Waiter, error: ErrorCode) {
        self.reply(waiter, GroupReply::Sync(SyncReply::refused(error)));
    }

    /// Appends a batch; `write` says what follows from it.
    pub(super) fn append(&mut self, records: Vec<Record>, write: Write) {
        let id = WriteId(self.core.next_write);
        self.core.next_write += 1;
        self.core.writes.push_back(Queued { id, records: records.len(), write });
        self.out.push(Effect::Append { write: id, records });
    }

    /// Arms a timer that fires in `ms` milliseconds.
    pub(super) fn arm(&mut self, ms: i64, timer: Timer) -> TimerKey {
        let at = self.now.mono.plus_ms(ms);
        self.core.timers.arm(at, timer)
    }

    /// The time in `ms` milliseconds.
    pub(super) fn in_ms(&self, ms: i64) -> MonoTime {
        self.now.mono.plus_ms(ms)
    }
}

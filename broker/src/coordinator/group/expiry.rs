//! What is done a slice at a time: what goes over all groups, which is the expiry of offsets (KIP-211, coordinators.md 3.7)
//! and the offsets of deleted topics, and the end of a group of many offsets. Called by `step` and `forget`.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use protocol::error::ErrorCode;
use protocol::types::{Offset, TimestampMs, TopicName};

use super::core::{Core, Turn};
use super::forget::{Then, Why};
use super::groups::Groups;
use super::machine::{Effect, Now, Waiter, WriteId};
use super::offsets::{Committed, Key};
use super::state::{CONSUMER, Group};
use super::topics::TopicIndex;
use crate::coordinator::ask::{GroupId, GroupReply, GroupState};

/// Offsets and groups that are looked at in one step.
const SLICE: usize = 2_000;

/// So many deleted topics are looked for in a group for the price of one more group.
const TOPICS_A_GROUP: usize = 8;

/// Batches that a job gives to the log before it waits for their end: what no client asked for must not take the room of
/// what clients ask for.
const BATCHES_A_SLICE: u64 = 64;

/// A removal waits for what is being written rather than add to more batches than that.
const WRITES_AHEAD_MAX: usize = 64;

/// Something that is done a slice at a time, mostly over all groups.
#[derive(Debug)]
pub(super) struct Job {
    what: What,
    waits: Waits,
    /// The last group that is done.
    after: Option<GroupId>,
    /// Where to go on in the next one, if that is this one.
    from: Option<(GroupId, Key)>,
}

#[derive(Debug)]
enum What {
    /// Offsets that are expired go.
    Expire,
    /// Offsets of topics that are gone go.
    Topics(GoneTopics),
    /// A group of many offsets goes, which is Dead until it is gone; somebody waits for that.
    Removal { group: GroupId, waiter: Waiter, from: Option<Key> },
}

/// What has to happen before a job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Nothing.
    Not,
    /// The batches before this one are told of.
    Writes(WriteId),
    /// Offsets are looked at the next time.
    Look,
}

/// Topics that were deleted. What was committed for them before is told to nobody any more, whether or not the log has
/// taken its tombstones yet: a new topic may have the name.
#[derive(Debug)]
struct GoneTopics {
    names: BTreeSet<TopicName>,
    /// The last record that may be of them; known once what was being written then is told of.
    horizon: Option<Offset>,
    left: Left,
}

/// What a pass over all groups did not get away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    #[default]
    Nothing,
    /// Offsets for which a record was in flight: they are gone, unless it does not come into the log.
    InFlight,
    /// Offsets whose tombstones the log has not taken, and will hardly take at once.
    Refused,
}

/// From when on the age of an offset counts.
enum Age {
    /// From then on, for all.
    Since(TimestampMs),
    /// From its commit on.
    OfCommit,
}

impl Job {
    const fn new(what: What, waits: Waits) -> Self {
        Self { what, waits, after: None, from: None }
    }

    /// Of a group that a request removes.
    pub(super) const fn removal(group: GroupId, waiter: Waiter) -> Self {
        Self::new(What::Removal { group, waiter, from: None }, Waits::Not)
    }

    /// Who waits for it, and what to tell if it does not come to its end.
    pub(super) fn refusal(&self, error: ErrorCode) -> Option<(Waiter, GroupReply)> {
        match self.what {
            What::Removal { waiter, .. } => Some((waiter, GroupReply::Done(error))),
            What::Expire | What::Topics(_) => None,
        }
    }

    fn can_run(&self) -> bool {
        self.waits == Waits::Not
    }

    /// What it waited for is written, up to a record. Whether there is more to do.
    fn goes_on(&mut self, last_record: Offset) -> bool {
        self.waits = Waits::Not;
        let What::Topics(gone) = &mut self.what else { return true };
        if self.after.is_some() {
            return true;
        }
        if gone.horizon.is_none() {
            gone.horizon = Some(last_record);
            return true;
        }
        match std::mem::take(&mut gone.left) {
            Left::Nothing => false,
            Left::InFlight => true,
            Left::Refused => {
                self.waits = Waits::Look;
                true
            }
        }
    }
}

impl Core {
    /// Whether an offset was committed for a topic that is gone.
    pub(super) fn is_of_gone_topic(&self, topic: TopicIndex, committed: &Committed) -> bool {
        self.jobs.iter().any(|job| match &job.what {
            // Until its horizon is known nothing is told that was written later.
            What::Topics(gone) => {
                gone.horizon.is_none_or(|horizon| committed.record <= horizon)
                    && gone.names.contains(self.topics.name(topic).get())
            }
            What::Expire | What::Removal { .. } => false,
        })
    }

    /// The tombstones of a topic's offsets are not in the log.
    pub(super) fn note_refused_tombstones(&mut self) {
        for job in &mut self.jobs {
            if let What::Topics(gone) = &mut job.what {
                gone.left = Left::Refused;
            }
        }
    }
}

impl Groups {
    /// Offsets are to be looked at. Asked again while that goes on, it is not begun anew.
    pub(super) fn expire(&mut self, now: Now, out: &mut Vec<Effect>) {
        let mut is_begun = false;
        for job in &mut self.core.jobs {
            is_begun |= matches!(job.what, What::Expire);
            if job.waits == Waits::Look {
                job.waits = Waits::Not;
            }
        }
        if !is_begun {
            self.core.jobs.push_back(Job::new(What::Expire, Waits::Not));
        }
        if !self.is_asked_to_go_on {
            self.run_jobs(now, out);
        }
    }

    /// Topics were deleted. The driver tells all machines of a shard at once: the work comes later.
    pub(super) fn topics_deleted(&mut self, names: &BTreeSet<TopicName>, out: &mut Vec<Effect>) {
        // What is being written holds its name, too.
        let names = names.iter().filter(|name| self.core.topics.find(name.get()).is_some());
        let names: BTreeSet<TopicName> = names.cloned().collect();
        if names.is_empty() {
            return;
        }
        let is_quiet = self.core.writes.is_empty();
        let waits = if is_quiet { Waits::Not } else { Waits::Writes(WriteId(self.core.next_write)) };
        let horizon = is_quiet.then_some(self.last_record);
        let gone = GoneTopics { names, horizon, left: Left::Nothing };
        self.core.jobs.push_back(Job::new(What::Topics(gone), waits));
        self.ask_to_go_on(out);
    }

    /// The driver was asked to go on, and does.
    pub(super) fn go_on(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.is_asked_to_go_on = false;
        self.run_jobs(now, out);
    }

    /// A batch is told of; jobs may have waited for it.
    pub(super) fn let_jobs_go_on(&mut self, out: &mut Vec<Effect>) {
        let next = self.core.writes.front().map(|queued| queued.id);
        let last_record = self.last_record;
        self.core.jobs.retain_mut(|job| match job.waits {
            Waits::Writes(before) if next.is_none_or(|next| next >= before) => job.goes_on(last_record),
            Waits::Writes(_) | Waits::Look | Waits::Not => true,
        });
        self.ask_to_go_on(out);
    }

    pub(super) fn ask_to_go_on(&mut self, out: &mut Vec<Effect>) {
        if self.core.jobs.iter().any(Job::can_run) && !self.is_asked_to_go_on {
            self.is_asked_to_go_on = true;
            out.push(Effect::Continue);
        }
    }

    /// A slice of the first job that can run.
    fn run_jobs(&mut self, now: Now, out: &mut Vec<Effect>) {
        let mut budget = SLICE;
        while budget > 0
            && let Some(place) = self.core.jobs.iter().position(Job::can_run)
            && let Some(mut job) = self.core.jobs.remove(place)
        {
            let is_through = self.run(now, &mut job, &mut budget, out);
            if !is_through || self.has_more(&mut job) {
                self.core.jobs.insert(place, job);
            }
        }
        self.ask_to_go_on(out);
    }

    /// A pass of a job is through. Whether there is more to do, once what is being written is told of.
    fn has_more(&self, job: &mut Job) -> bool {
        if matches!(job.what, What::Expire | What::Removal { .. }) {
            return false;
        }
        job.after = None;
        job.waits = Waits::Writes(WriteId(self.core.next_write));
        !self.core.writes.is_empty() || job.goes_on(self.last_record)
    }

    /// Goes on with a job; whether it is through.
    fn run(&mut self, now: Now, job: &mut Job, budget: &mut usize, out: &mut Vec<Effect>) -> bool {
        let topics = match &mut job.what {
            What::Removal { group, waiter, from } => {
                if self.core.writes.len() >= WRITES_AHEAD_MAX {
                    job.waits = Waits::Writes(WriteId(self.core.next_write));
                    return false;
                }
                let Some(group) = self.groups.get_mut(group) else {
                    unreachable!("a group stays until its end is written")
                };
                let mut turn = Turn { now, core: &mut self.core, out };
                *from = group.end_some(&mut turn, *waiter, *from, budget);
                return from.is_none();
            }
            What::Expire => Vec::new(),
            // They stay what they are during a slice: no record is told of in it.
            What::Topics(gone) => {
                gone.names.iter().filter_map(|name| self.core.topics.find(name.get())).collect()
            }
        };
        let batches_before = self.core.next_write;
        while *budget > 0 {
            if self.core.next_write - batches_before >= BATCHES_A_SLICE {
                job.waits = Waits::Writes(WriteId(self.core.next_write));
                return false;
            }
            let after = job.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let Some((id, group)) = self.groups.range_mut::<GroupId, _>((after, Bound::Unbounded)).next()
            else {
                return true;
            };
            let id = Arc::clone(id);
            let mut turn = Turn { now, core: &mut self.core, out: &mut *out };
            *budget = budget.saturating_sub(1 + topics.len() / TOPICS_A_GROUP);
            let (keys, why, next) = match &mut job.what {
                What::Expire => {
                    let from = job.from.take().filter(|(of, _)| *of == id).map(|(_, key)| key);
                    let (keys, next) = group.expired(&turn, from, budget);
                    (keys, Why::Expired, next)
                }
                What::Topics(gone) => (group.of_topics(&topics, gone), Why::TopicGone, None),
                What::Removal { .. } => unreachable!("it is of one group"),
            };
            *budget = budget.saturating_sub(keys.len());
            if !keys.is_empty() {
                group.forget(&mut turn, (keys, why), Then::Nothing);
            }
            if let Some(key) = next {
                job.from = Some((id, key));
            } else {
                group.bury_if_idle(&mut turn);
                self.settle(&id);
                job.after = Some(id);
            }
        }
        false
    }
}

impl Group {
    /// Expired offsets from a key on, and where to go on if the budget ends first.
    fn expired(&self, turn: &Turn<'_>, from: Option<Key>, budget: &mut usize) -> (Vec<Key>, Option<Key>) {
        let mut expired = Vec::new();
        let Some((age, kept)) = self.expiry_rule() else { return (expired, None) };
        let now = turn.now.wall.get();
        let retention_ms = turn.core.settings.offsets_retention_ms;
        let is_expired = |committed: &Committed| match (committed.expires_at(), &age) {
            (Some(at), _) => now >= at.get(),
            (None, Age::Since(since)) => now.saturating_sub(since.get()) >= retention_ms,
            (None, Age::OfCommit) => now.saturating_sub(committed.at.get()) >= retention_ms,
        };
        for (key, committed) in self.offsets.from(from) {
            if *budget == 0 {
                return (expired, Some(key));
            }
            *budget -= 1;
            let is_kept = || kept.contains(turn.core.topics.name(key.topic).get());
            if is_expired(committed) && !self.offsets.is_unstable(key) && !is_kept() {
                expired.push(key);
            }
        }
        (expired, None)
    }

    /// How offsets of the group age, and the topics whose offsets do not; `None`: none ages (KAFKA-13636).
    fn expiry_rule(&self) -> Option<(Age, BTreeSet<&str>)> {
        match (self.protocol_type.as_deref(), self.state) {
            (None, GroupState::Empty) => Some((Age::OfCommit, BTreeSet::new())),
            (Some(_), GroupState::Empty) => {
                let is_known = self.state_since.get() >= 0;
                let age = if is_known { Age::Since(self.state_since) } else { Age::OfCommit };
                Some((age, BTreeSet::new()))
            }
            (Some(CONSUMER), GroupState::Stable) => Some((Age::OfCommit, self.subscribed()?)),
            _ => None,
        }
    }

    /// Offsets that were committed for topics that are gone.
    fn of_topics(&self, topics: &[TopicIndex], gone: &mut GoneTopics) -> Vec<Key> {
        if self.state == GroupState::Dead {
            // All of it is in flight.
            gone.left = gone.left.max(Left::InFlight);
            return Vec::new();
        }
        let horizon = gone.horizon.unwrap_or(Offset::NONE);
        let mut all = Vec::new();
        for topic in topics {
            let (mut keys, are_some_left) = self.offsets.keys_until(*topic, horizon);
            if are_some_left {
                gone.left = gone.left.max(Left::InFlight);
            }
            all.append(&mut keys);
        }
        all
    }
}

//! What goes over all groups, a slice at a time: the expiry of offsets (KIP-211, coordinators.md 3.7) and the offsets of
//! deleted topics. Called by `step`.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use protocol::types::{Offset, TimestampMs, TopicName};

use super::core::Turn;
use super::forget::{Then, Why};
use super::groups::Groups;
use super::machine::{Effect, Now, WriteId};
use super::offsets::{Committed, Key};
use super::state::{CONSUMER, Group};
use super::topics::Topics;
use crate::coordinator::ask::{GroupId, GroupState};

/// Offsets and groups that are looked at in one step.
const SLICE: usize = 2_000;

/// Something that goes over all groups.
#[derive(Debug)]
pub(super) struct Job {
    what: What,
    /// The last group that is done.
    after: Option<GroupId>,
    /// Where to go on in the next one, if that is this one.
    from: Option<(GroupId, Key)>,
}

#[derive(Debug)]
enum What {
    /// Offsets that are expired go.
    Expire,
    /// Offsets of topics go that were committed before the topics were deleted: a new topic may have the name. It
    /// begins when what was being written then is written.
    Topics { topics: Vec<TopicName>, writes_before: WriteId, horizon: Option<Offset> },
}

/// From when on the age of an offset counts.
enum Age {
    /// From then on, for all.
    Since(TimestampMs),
    /// From its commit on.
    OfCommit,
}

impl Groups {
    /// Offsets are to be looked at. Asked again while that goes on, it is not begun anew.
    pub(super) fn expire(&mut self, now: Now, out: &mut Vec<Effect>) {
        if !self.jobs.iter().any(|job| matches!(job.what, What::Expire)) {
            self.jobs.push_back(Job { what: What::Expire, after: None, from: None });
            self.run_jobs_unless_asked(now, out);
        }
    }

    /// Topics were deleted.
    pub(super) fn topics_deleted(&mut self, now: Now, topics: Vec<TopicName>, out: &mut Vec<Effect>) {
        let writes_before = WriteId(self.core.next_write);
        let horizon = self.core.writes.is_empty().then_some(self.last_record);
        let what = What::Topics { topics, writes_before, horizon };
        self.jobs.push_back(Job { what, after: None, from: None });
        self.run_jobs_unless_asked(now, out);
    }

    /// The driver was asked to go on, and does.
    pub(super) fn go_on(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.is_asked_to_go_on = false;
        self.run_jobs(now, out);
    }

    fn run_jobs_unless_asked(&mut self, now: Now, out: &mut Vec<Effect>) {
        if !self.is_asked_to_go_on {
            self.run_jobs(now, out);
        }
    }

    /// A batch is written; jobs may have waited for it.
    pub(super) fn let_jobs_go_on(&mut self, out: &mut Vec<Effect>) {
        let next = self.core.writes.front().map(|queued| queued.id);
        let last_record = self.last_record;
        for job in &mut self.jobs {
            if let What::Topics { writes_before, horizon, .. } = &mut job.what
                && horizon.is_none()
                && next.is_none_or(|next| next >= *writes_before)
            {
                *horizon = Some(last_record);
            }
        }
        self.ask_to_go_on(out);
    }

    fn ask_to_go_on(&mut self, out: &mut Vec<Effect>) {
        let can =
            self.jobs.front().is_some_and(|job| !matches!(job.what, What::Topics { horizon: None, .. }));
        if can && !self.is_asked_to_go_on {
            self.is_asked_to_go_on = true;
            out.push(Effect::Continue);
        }
    }

    /// A slice of the first job.
    fn run_jobs(&mut self, now: Now, out: &mut Vec<Effect>) {
        let mut budget = SLICE;
        while budget > 0
            && let Some(mut job) = self.jobs.pop_front()
        {
            let is_done = match &job.what {
                What::Topics { horizon: None, .. } => false,
                _ => self.run(now, &mut job, &mut budget, out),
            };
            if !is_done {
                self.jobs.push_front(job);
                break;
            }
        }
        self.ask_to_go_on(out);
    }

    /// Goes on with a job; whether it is done.
    fn run(&mut self, now: Now, job: &mut Job, budget: &mut usize, out: &mut Vec<Effect>) -> bool {
        while *budget > 0 {
            let after = job.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let Some((id, group)) = self.groups.range_mut::<GroupId, _>((after, Bound::Unbounded)).next()
            else {
                return true;
            };
            let id = Arc::clone(id);
            let mut turn = Turn { now, core: &mut self.core, out: &mut *out };
            *budget = budget.saturating_sub(1);
            let (keys, why, next) = match &job.what {
                What::Expire => {
                    let from = job.from.take().filter(|(of, _)| *of == id).map(|(_, key)| key);
                    let (keys, next) = group.expired(&turn, from, budget);
                    (keys, Why::Expired, next)
                }
                What::Topics { topics, horizon, .. } => {
                    (group.of_topics(&turn.core.topics, topics, *horizon), Why::TopicGone, None)
                }
            };
            *budget = budget.saturating_sub(keys.len());
            if !keys.is_empty() {
                group.forget(&mut turn, (keys, why), Then::Nothing);
            }
            if let Some(key) = next {
                job.from = Some((id, key));
            } else {
                group.bury_if_idle(&mut turn);
                self.drop_if_void(&id);
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

    fn of_topics(&self, topics: &Topics, names: &[TopicName], horizon: Option<Offset>) -> Vec<Key> {
        if self.state == GroupState::Dead {
            return Vec::new();
        }
        let horizon = horizon.unwrap_or(Offset::NONE);
        let indexes = names.iter().filter_map(|name| topics.find(name.get()));
        indexes.flat_map(|topic| self.offsets.keys_until(topic, horizon)).collect()
    }
}

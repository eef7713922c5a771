//! The role of one local replica: leader or follower, ISR, high watermark. Pure: no clock, I/O, randomness or
//! logging. Owns the replica table of replication.md 1; knows no log (offsets come in as events) and no waiter. Its
//! driver is `replica.rs`.

use std::collections::{BTreeMap, BTreeSet};

use protocol::types::{BrokerEpoch, BrokerId, LeaderEpoch, MonoTime, Offset, PartitionEpoch};

use super::ask::PartitionError;

/// What the controller tells of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// Who leads.
    pub leader: BrokerId,
    /// Generation of the leadership.
    pub leader_epoch: LeaderEpoch,
    /// Version of leader and ISR.
    pub partition_epoch: PartitionEpoch,
    /// Assigned replicas.
    pub replicas: Vec<BrokerId>,
    /// In-sync replicas.
    pub isr: Vec<BrokerId>,
}

/// What happens to a replica.
#[derive(Clone, Debug)]
pub enum Event {
    /// The controller gave the partition a state.
    Become(PartitionState),
    /// The log end moved in memory.
    Appended(Offset),
    /// The log is safe up to here, by the durability mode: the leader's own term of the high watermark.
    Safe(Offset),
    /// The log start moved up.
    LogStart(Offset),
    /// The log was cut.
    Truncated {
        /// The new end.
        log_end_offset: Offset,
    },
    /// A follower fetched: all below its offset is safe there.
    FollowerFetched(FollowerFetch),
    /// The leader's high watermark, from a fetch response; the driver is a follower.
    LeaderHighWatermark(Offset),
    /// `min.insync.replicas` changed.
    MinIsr(usize),
    /// Half of `replica.lag.time.max.ms` has passed.
    Tick {
        /// `replica.lag.time.max.ms` in nanoseconds.
        lag_nanos_max: u64,
    },
    /// The controller answered a proposal.
    IsrAnswered {
        /// Leader epoch of the proposal.
        leader_epoch: LeaderEpoch,
        /// The answer.
        answer: IsrAnswer,
    },
}

/// A follower's fetch, as far as it concerns the leader's bookkeeping.
#[derive(Clone, Copy, Debug)]
pub struct FollowerFetch {
    /// Which replica.
    pub replica: BrokerId,
    /// Its registration; `BrokerEpoch::new(-1)` when the request does not tell.
    pub broker_epoch: BrokerEpoch,
    /// What it wants next: its log end offset.
    pub fetch_offset: Offset,
    /// Where its log starts.
    pub log_start_offset: Offset,
    /// Whether metadata lets it join the ISR (alive, not fenced, not shutting down).
    pub eligible: bool,
}

/// The controller's answer to an ISR proposal (replication.md 2.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsrAnswer {
    /// This is the ISR now.
    Accepted {
        /// The ISR.
        isr: Vec<BrokerId>,
        /// Its version.
        partition_epoch: PartitionEpoch,
    },
    /// A member may not join, or the controller did not try: back to what is committed.
    Refused,
    /// Our state is behind the controller's: keep the stricter view until its next word.
    Outdated,
    /// Anything else: propose again.
    Retry,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Record in the log that this leader epoch starts at its end.
    AssignEpoch {
        /// The epoch.
        leader_epoch: LeaderEpoch,
        /// Where it starts.
        start: Offset,
    },
    /// The high watermark is here now: wake who waits for it.
    HighWatermark(Offset),
    /// The replica leads no longer: fail appends that wait, let fetches read again.
    LostLeadership,
    /// Ask the controller for this ISR.
    ProposeIsr {
        /// Leader epoch of the proposal.
        leader_epoch: LeaderEpoch,
        /// Version it stands on.
        partition_epoch: PartitionEpoch,
        /// Members with their registrations as far as known.
        isr: Vec<(BrokerId, BrokerEpoch)>,
    },
}

/// Why the controller's state was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// What we have.
    pub current: PartitionEpoch,
}

/// What the leader knows of another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remote {
    broker_epoch: BrokerEpoch,
    log_end_offset: Offset,
    log_start_offset: Offset,
    last_fetch: Option<(MonoTime, Offset)>,
    caught_up: Option<MonoTime>,
    eligible: bool,
}

impl Remote {
    const UNKNOWN: Self = Self {
        broker_epoch: BrokerEpoch::new(-1),
        log_end_offset: Offset::NONE,
        log_start_offset: Offset::NONE,
        last_fetch: None,
        caught_up: None,
        eligible: false,
    };
}

/// A change of the ISR that the controller has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pending {
    Expand(BrokerId),
    Shrink(BTreeSet<BrokerId>),
}

#[derive(Clone, Debug)]
struct Leader {
    epoch_start: Offset,
    isr: BTreeSet<BrokerId>,
    pending: Option<Pending>,
    remotes: BTreeMap<BrokerId, Remote>,
}

#[derive(Clone, Debug)]
enum Role {
    Leader(Leader),
    Follower,
}

/// One local replica.
#[derive(Clone, Debug)]
pub struct ReplicaMachine {
    me: BrokerId,
    state: PartitionState,
    role: Role,
    min_isr: usize,
    log_start_offset: Offset,
    log_end_offset: Offset,
    safe_offset: Offset,
    high_watermark: Offset,
    lag_nanos_max: u64,
}

/// What a replica starts from: its log as it was loaded.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Where the log starts.
    pub log_start_offset: Offset,
    /// Where it ends.
    pub log_end_offset: Offset,
    /// Up to where it is safe, by the durability mode.
    pub safe_offset: Offset,
    /// The high watermark of the checkpoint; advice only (replication.md 11).
    pub high_watermark: Offset,
}

impl ReplicaMachine {
    /// A replica that has a log, but no role yet.
    pub fn new(me: BrokerId, loaded: Loaded, min_isr: usize, lag_nanos_max: u64) -> Self {
        let Loaded { log_start_offset, log_end_offset, safe_offset, high_watermark } = loaded;
        Self {
            me,
            state: PartitionState {
                leader: BrokerId::NONE,
                leader_epoch: LeaderEpoch::NONE,
                partition_epoch: PartitionEpoch::new(-1),
                replicas: Vec::new(),
                isr: Vec::new(),
            },
            role: Role::Follower,
            min_isr,
            log_start_offset,
            log_end_offset,
            safe_offset: safe_offset.min(log_end_offset),
            high_watermark: high_watermark.max(log_start_offset).min(log_end_offset),
            lag_nanos_max,
        }
    }

    /// Applies one event; appends to `out` what the driver must do, in order.
    ///
    /// # Errors
    /// [`Stale`] for a state that is older than ours; nothing changed then.
    pub fn step(&mut self, now: MonoTime, event: Event, out: &mut Vec<Action>) -> Result<(), Stale> {
        match event {
            Event::Become(state) => self.become_state(now, state, out)?,
            Event::Appended(end) => {
                assert!(end >= self.log_end_offset, "a log grows until it is truncated");
                self.log_end_offset = end;
            }
            Event::Safe(offset) => {
                self.safe_offset = offset.max(self.safe_offset).min(self.log_end_offset);
                self.advance(now, out);
            }
            Event::LogStart(offset) => self.log_start_moved(offset, out),
            Event::Truncated { log_end_offset } => self.truncated(log_end_offset),
            Event::FollowerFetched(fetch) => self.follower_fetched(now, fetch, out),
            Event::LeaderHighWatermark(offset) => self.leader_high_watermark(offset, out),
            Event::MinIsr(min_isr) => {
                self.min_isr = min_isr;
                self.advance(now, out);
            }
            Event::Tick { lag_nanos_max } => {
                self.lag_nanos_max = lag_nanos_max;
                self.shrink(now, out);
            }
            Event::IsrAnswered { leader_epoch, answer } => self.isr_answered(now, leader_epoch, answer, out),
        }
        assert!(self.high_watermark <= self.log_end_offset, "high watermark within the log");
        assert!(self.safe_offset <= self.log_end_offset, "what is safe is in the log");
        Ok(())
    }

    /// The high watermark.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Generation of the leadership.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.state.leader_epoch
    }

    /// Version of leader and ISR.
    pub fn partition_epoch(&self) -> PartitionEpoch {
        self.state.partition_epoch
    }

    /// Whether this replica leads.
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Whether the high watermark has reached the start of this leader's epoch (KIP-207).
    pub fn high_watermark_is_of_this_epoch(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => self.high_watermark >= leader.epoch_start,
            Role::Follower => true,
        }
    }

    /// Checks the epoch a request carries, then that this replica leads.
    ///
    /// # Errors
    /// What to answer: the epoch is judged before the leadership (protocol.md 3.4).
    pub fn check_leader(&self, asked: LeaderEpoch) -> Result<(), PartitionError> {
        self.check_epoch(asked)?;
        if self.is_leader() { Ok(()) } else { Err(self.not_leader()) }
    }

    /// Checks the epoch a request carries.
    ///
    /// # Errors
    /// An epoch that is not ours.
    pub fn check_epoch(&self, asked: LeaderEpoch) -> Result<(), PartitionError> {
        let current = self.state.leader_epoch;
        if asked == LeaderEpoch::NONE || asked == current {
            Ok(())
        } else if asked < current {
            Err(PartitionError::FencedLeaderEpoch { asked, current })
        } else {
            Err(PartitionError::UnknownLeaderEpoch { asked, current })
        }
    }

    /// The error that names the leader.
    pub fn not_leader(&self) -> PartitionError {
        PartitionError::NotLeader { leader: self.state.leader, leader_epoch: self.state.leader_epoch }
    }

    /// Checks that a follower is one of the replicas; `asked` is the epoch that its fetch carried (KAFKA-13837).
    ///
    /// # Errors
    /// It is not.
    pub fn check_replica(&self, replica: BrokerId, asked: LeaderEpoch) -> Result<(), PartitionError> {
        if replica != self.me && self.state.replicas.contains(&replica) {
            Ok(())
        } else if asked == LeaderEpoch::NONE {
            Err(self.not_leader())
        } else {
            Err(PartitionError::NotAReplica(replica))
        }
    }

    /// Replicas of the partition.
    pub fn replica_count(&self) -> usize {
        self.state.replicas.len()
    }

    /// Committed ISR and effective minimum: acks=all appends only while the first is not below the second.
    pub fn committed_isr(&self) -> (usize, usize) {
        let isr = match &self.role {
            Role::Leader(leader) => leader.isr.len(),
            Role::Follower => 0,
        };
        (isr, self.effective_min_isr())
    }

    /// Maximal ISR and effective minimum: what decides when an append that waited is reached by the high watermark.
    pub fn maximal_isr(&self) -> (usize, usize) {
        let isr = match &self.role {
            Role::Leader(leader) => {
                leader.isr.len() + usize::from(matches!(leader.pending, Some(Pending::Expand(_))))
            }
            Role::Follower => 0,
        };
        (isr, self.effective_min_isr())
    }

    /// The least log start offset of the live replicas: what DeleteRecords answers.
    pub fn low_watermark(&self) -> Offset {
        match &self.role {
            Role::Leader(leader) => leader
                .remotes
                .values()
                .filter(|remote| remote.eligible)
                .map(|remote| remote.log_start_offset)
                .fold(self.log_start_offset, Offset::min),
            Role::Follower => self.log_start_offset,
        }
    }

    /// `min.insync.replicas`, but never more than there are replicas (KAFKA-15583).
    fn effective_min_isr(&self) -> usize {
        self.min_isr.min(self.state.replicas.len())
    }

    fn become_state(
        &mut self,
        now: MonoTime,
        state: PartitionState,
        out: &mut Vec<Action>,
    ) -> Result<(), Stale> {
        if state.partition_epoch < self.state.partition_epoch || state.leader_epoch < self.state.leader_epoch
        {
            return Err(Stale { current: self.state.partition_epoch });
        }
        let new_epoch = state.leader_epoch > self.state.leader_epoch;
        let was_leader = self.is_leader();
        self.state = state;
        if self.state.leader == self.me {
            self.lead(now, new_epoch, out);
        } else {
            self.role = Role::Follower;
            if was_leader {
                out.push(Action::LostLeadership);
            }
        }
        Ok(())
    }

    fn lead(&mut self, now: MonoTime, new_epoch: bool, out: &mut Vec<Action>) {
        let isr: BTreeSet<_> = self.state.isr.iter().copied().collect();
        let others = self.state.replicas.iter().copied().filter(|id| *id != self.me);
        let (known, epoch_start) = match &self.role {
            Role::Leader(leader) => (leader.remotes.clone(), leader.epoch_start),
            Role::Follower => (BTreeMap::new(), self.log_end_offset),
        };
        let epoch_start = if new_epoch { self.log_end_offset } else { epoch_start };
        let mut remotes = BTreeMap::new();
        for id in others {
            let mut remote = known.get(&id).copied().unwrap_or(Remote::UNKNOWN);
            if new_epoch {
                remote.caught_up = isr.contains(&id).then_some(now);
                remote.last_fetch = None;
            }
            remotes.insert(id, remote);
        }
        self.role = Role::Leader(Leader { epoch_start, isr, pending: None, remotes });
        if new_epoch {
            out.push(Action::AssignEpoch { leader_epoch: self.state.leader_epoch, start: epoch_start });
        }
        self.advance(now, out);
    }

    /// The high watermark rule of replication.md 2.1.
    fn advance(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        let Role::Leader(leader) = &self.role else { return };
        if leader.isr.len() < self.effective_min_isr() {
            return;
        }
        let mut least = self.safe_offset;
        for (id, remote) in &leader.remotes {
            let in_isr = leader.isr.contains(id) || leader.pending == Some(Pending::Expand(*id));
            let joins_soon = remote.eligible && self.is_caught_up(remote, now);
            if in_isr || joins_soon {
                least = least.min(remote.log_end_offset);
            }
        }
        if least > self.high_watermark {
            self.high_watermark = least;
            out.push(Action::HighWatermark(least));
        }
    }

    fn is_caught_up(&self, remote: &Remote, now: MonoTime) -> bool {
        remote.log_end_offset == self.log_end_offset
            || remote.caught_up.is_some_and(|at| now.nanos_since(at) <= self.lag_nanos_max)
    }

    fn follower_fetched(&mut self, now: MonoTime, fetch: FollowerFetch, out: &mut Vec<Action>) {
        let leader_end = self.log_end_offset;
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(remote) = leader.remotes.get_mut(&fetch.replica) else { return };
        // A late fetch of an earlier incarnation says nothing about the current one (V-21).
        if fetch.broker_epoch.get() >= 0 && fetch.broker_epoch < remote.broker_epoch {
            return;
        }
        if fetch.fetch_offset >= leader_end {
            remote.caught_up = Some(now);
        } else if let Some((at, end)) = remote.last_fetch
            && fetch.fetch_offset >= end
        {
            remote.caught_up = Some(remote.caught_up.map_or(at, |caught_up| caught_up.max(at)));
        }
        remote.broker_epoch = fetch.broker_epoch;
        remote.log_end_offset = fetch.fetch_offset.min(leader_end);
        remote.log_start_offset = fetch.log_start_offset;
        remote.last_fetch = Some((now, leader_end));
        remote.eligible = fetch.eligible;
        self.expand(fetch.replica, out);
        self.advance(now, out);
    }

    fn expand(&mut self, replica: BrokerId, out: &mut Vec<Action>) {
        let high_watermark = self.high_watermark;
        let Role::Leader(leader) = &mut self.role else { return };
        let Some(remote) = leader.remotes.get(&replica) else { return };
        let joins = leader.pending.is_none()
            && !leader.isr.contains(&replica)
            && remote.eligible
            && remote.log_end_offset >= high_watermark
            && remote.log_end_offset >= leader.epoch_start;
        if joins {
            leader.pending = Some(Pending::Expand(replica));
            self.propose(out);
        }
    }

    fn shrink(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        let Role::Leader(leader) = &self.role else { return };
        if leader.pending.is_some() {
            return;
        }
        let behind: BTreeSet<BrokerId> = leader
            .isr
            .iter()
            .filter(|id| **id != self.me)
            .filter(|id| leader.remotes.get(id).is_none_or(|remote| !self.is_caught_up(remote, now)))
            .copied()
            .collect();
        if behind.is_empty() {
            return;
        }
        if let Role::Leader(leader) = &mut self.role {
            leader.pending = Some(Pending::Shrink(behind));
        }
        self.propose(out);
    }

    fn propose(&self, out: &mut Vec<Action>) {
        let Role::Leader(leader) = &self.role else { return };
        let mut isr = leader.isr.clone();
        match &leader.pending {
            Some(Pending::Expand(id)) => {
                isr.insert(*id);
            }
            Some(Pending::Shrink(behind)) => isr.retain(|id| !behind.contains(id)),
            None => return,
        }
        let unknown = BrokerEpoch::new(-1);
        let isr = isr
            .into_iter()
            .map(|id| (id, leader.remotes.get(&id).map_or(unknown, |remote| remote.broker_epoch)));
        out.push(Action::ProposeIsr {
            leader_epoch: self.state.leader_epoch,
            partition_epoch: self.state.partition_epoch,
            isr: isr.collect(),
        });
    }

    fn isr_answered(&mut self, now: MonoTime, epoch: LeaderEpoch, answer: IsrAnswer, out: &mut Vec<Action>) {
        let current = self.state.partition_epoch;
        let Role::Leader(leader) = &mut self.role else { return };
        if epoch != self.state.leader_epoch || leader.pending.is_none() {
            return;
        }
        match answer {
            IsrAnswer::Accepted { isr, partition_epoch } if partition_epoch >= current => {
                leader.isr = isr.iter().copied().collect();
                leader.pending = None;
                self.state.isr = isr;
                self.state.partition_epoch = partition_epoch;
            }
            IsrAnswer::Accepted { .. } | IsrAnswer::Outdated => return,
            IsrAnswer::Refused => {
                if let Some(Pending::Expand(id)) = leader.pending.take()
                    && let Some(remote) = leader.remotes.get_mut(&id)
                {
                    // The next trigger is its next fetch; until then it does not hold the high watermark.
                    remote.eligible = false;
                }
            }
            IsrAnswer::Retry => return self.propose(out),
        }
        self.advance(now, out);
    }

    fn log_start_moved(&mut self, offset: Offset, out: &mut Vec<Action>) {
        self.log_start_offset = offset.max(self.log_start_offset);
        self.log_end_offset = self.log_end_offset.max(self.log_start_offset);
        if self.high_watermark < self.log_start_offset {
            self.high_watermark = self.log_start_offset;
            out.push(Action::HighWatermark(self.high_watermark));
        }
    }

    fn truncated(&mut self, log_end_offset: Offset) {
        self.log_end_offset = log_end_offset.max(self.log_start_offset);
        self.safe_offset = self.safe_offset.min(self.log_end_offset);
        self.high_watermark = self.high_watermark.min(self.log_end_offset);
    }

    fn leader_high_watermark(&mut self, offset: Offset, out: &mut Vec<Action>) {
        if self.is_leader() {
            return;
        }
        let offset = offset.max(self.log_start_offset).min(self.log_end_offset);
        if offset != self.high_watermark {
            self.high_watermark = offset;
            out.push(Action::HighWatermark(offset));
        }
    }
}

#[cfg(test)]
mod tests;

//! Transitions of partitions and replicas: leaders for new and for leaderless partitions, roles for replicas, and what
//! happens when replicas go (controller.md 7 to 9). Part of the machine. Each works on a bounded chunk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::types::{BrokerId, LeaderEpoch, PartitionEpoch, TopicName, TopicPartition};

use super::context::{Deletion, PartitionPhase, ReplicaPhase};
use super::election::{self, Candidates, Unclean};
use super::failover::{leadership, next_epoch, parse_state, state, state_reads};
use super::machine::{Action, Controller, Found, Note, Read, Replica, Stage, Wait, data_of};
use super::requests::Leadership;
use crate::store::znodes::{self, PartitionState};
use crate::store::{Expected, FencedError, Op, OpDone, StoreError};

type FoundNode = Result<Found, StoreError>;
type Done = Result<OpDone, FencedError>;

impl Controller {
    /// New partitions, chunk by chunk: a leader first, then roles for the replicas, then out with it.
    pub(super) fn create_partitions(&mut self, mut partitions: VecDeque<TopicPartition>) {
        if partitions.is_empty() {
            return;
        }
        let chunk = self.take(&mut partitions);
        let mut replicas = VecDeque::new();
        for of in &chunk {
            if let Some(partition) = self.context.partition(of) {
                replicas.extend(partition.replicas.keys().map(|id| (of.clone(), *id)));
            }
        }
        self.then_all([
            Stage::PartitionsOnline(chunk.into()),
            Stage::ReplicasOnline(replicas),
            Stage::Flush,
            Stage::CreatePartitions(partitions),
        ]);
    }

    /// All partitions without a leader, but for those that are being deleted.
    pub(super) fn retry_offline(&mut self) {
        let partitions = self.context.partitions_where(|topic, partition| {
            topic.deletion == Deletion::None
                && matches!(partition.phase, PartitionPhase::New | PartitionPhase::Offline)
        });
        self.then_all([Stage::PartitionsOnline(partitions.into()), Stage::Flush]);
    }

    /// New partitions get their first leader, others an election.
    pub(super) fn partitions_online(
        &mut self,
        mut partitions: VecDeque<TopicPartition>,
        out: &mut Vec<Action>,
    ) {
        if partitions.is_empty() {
            return;
        }
        let chunk = self.take(&mut partitions);
        if !partitions.is_empty() {
            self.then_all([Stage::Flush, Stage::PartitionsOnline(partitions)]);
        }
        let (mut first, mut again) = (Vec::new(), Vec::new());
        for of in chunk {
            match self.context.partition(&of) {
                None => {}
                Some(_) if self.context.is_deleting(&of.topic) => {}
                Some(partition) if partition.leadership.is_none() => first.push(of),
                Some(_) => again.push(of),
            }
        }
        if first.is_empty() && !again.is_empty() {
            let reads = state_reads(&again);
            return self.ask(Wait::ElectionRead(again), reads, out);
        }
        if !again.is_empty() {
            self.then(Stage::PartitionsOnline(again.into()));
        }
        self.first_leaders(first, out);
    }

    fn first_leaders(&mut self, partitions: Vec<TopicPartition>, out: &mut Vec<Action>) {
        let (mut folders, mut parts, mut states) = (BTreeSet::new(), Vec::new(), Vec::new());
        let (mut led, mut leaderless) = (Vec::new(), Vec::new());
        for of in partitions {
            let Some(first) = self.first_leader(&of) else {
                leaderless.push(of);
                continue;
            };
            folders.insert(of.topic.clone());
            parts.push(Op::create(znodes::partition(of.topic.get(), of.partition), None));
            let path = znodes::partition_state(of.topic.get(), of.partition);
            states.push(Op::create(path, Some(state(&first).print())));
            led.push(of);
        }
        if !leaderless.is_empty() {
            out.push(Action::Note(Note::NoLeader(leaderless)));
        }
        if led.is_empty() {
            return;
        }
        let mut ops: Vec<Op> =
            folders.iter().map(|topic| Op::create(znodes::partitions(topic.get()), None)).collect();
        ops.append(&mut parts);
        // The answers of the states are the last ones.
        ops.append(&mut states);
        self.write_fenced(Wait::Created(led), ops, out);
    }

    fn first_leader(&self, of: &TopicPartition) -> Option<Leadership> {
        let partition = self.context.partition(of)?;
        let elected = election::initial(&partition.assignment.replicas, |id| self.context.is_online(id, of))?;
        Some(Leadership {
            leader: elected.leader,
            leader_epoch: LeaderEpoch::new(0),
            isr: elected.isr,
            recovering: false,
            controller_epoch: self.sender().epoch,
            partition_epoch: PartitionEpoch::new(0),
        })
    }

    pub(super) fn created(&mut self, partitions: Vec<TopicPartition>, done: &[Done], out: &mut Vec<Action>) {
        let states = done.get(done.len().saturating_sub(partitions.len())..).unwrap_or_default();
        let (mut existing, mut failed) = (VecDeque::new(), Vec::new());
        for (of, done) in partitions.into_iter().zip(states) {
            match (done, self.first_leader(&of)) {
                (Ok(_), Some(first)) => self.lead(&of, first, true),
                // A crash, or a lost reply, left a state behind: it counts, and an election makes it ours.
                (Err(FencedError::Store(StoreError::NodeExists)), _) => existing.push_back(of),
                _ => failed.push(of),
            }
        }
        if !failed.is_empty() {
            out.push(Action::Note(Note::NoLeader(failed)));
        }
        if !existing.is_empty() {
            self.then_all([Stage::LoadStates(existing.clone()), Stage::PartitionsOnline(existing)]);
        }
    }

    /// A leader is decided and written: brokers will hear of it.
    fn lead(&mut self, of: &TopicPartition, leadership: Leadership, is_new: bool) {
        let Some(partition) = self.context.partition_mut(of) else { return };
        partition.phase = PartitionPhase::Online;
        let recipients = if is_new { leadership.isr.clone() } else { partition.assignment.replicas.clone() };
        partition.leadership = Some(leadership);
        for to in recipients {
            if self.context.is_online(to, of) {
                self.batch.leader_and_isr(to, of, is_new);
            }
        }
    }

    pub(super) fn election_read(
        &mut self,
        partitions: Vec<TopicPartition>,
        found: Vec<FoundNode>,
        out: &mut Vec<Action>,
    ) {
        let mut states = Vec::new();
        let mut topics = BTreeSet::new();
        for (of, found) in partitions.into_iter().zip(found) {
            let Some((state, version)) = self.readable_state(&of, found, out) else { continue };
            let Some(partition) = self.context.partition(&of) else { continue };
            let candidates = Candidates { assignment: &partition.assignment.replicas, isr: &state.isr };
            if election::needs_unclean(candidates, |id| self.context.is_online(id, &of)) {
                topics.insert(of.topic.clone());
            }
            states.push((of, state, version));
        }
        if topics.is_empty() {
            return self.elect_leaders(states, &BTreeSet::new(), out);
        }
        let topics: Vec<TopicName> = topics.into_iter().collect();
        let read = |topic: &TopicName| Read::Get { path: znodes::topic_config(topic.get()), watch: false };
        let reads = topics.iter().map(read).collect();
        self.ask(Wait::ElectionConfigs { states, topics }, reads, out);
    }

    /// A state that this controller may replace; a missing or newer one fails the transition.
    fn readable_state(
        &self,
        of: &TopicPartition,
        found: FoundNode,
        out: &mut Vec<Action>,
    ) -> Option<(PartitionState, i32)> {
        let Some((state, version)) = data_of(found).as_ref().and_then(parse_state) else {
            let path = znodes::partition_state(of.topic.get(), of.partition);
            out.push(Action::Note(Note::Malformed(path)));
            return None;
        };
        if state.controller_epoch > self.sender().epoch {
            out.push(Action::Note(Note::NewerController(of.clone())));
            return None;
        }
        Some((state, version))
    }

    pub(super) fn election_configs(
        &mut self,
        states: Vec<(TopicPartition, PartitionState, i32)>,
        topics: &[TopicName],
        found: Vec<FoundNode>,
        out: &mut Vec<Action>,
    ) {
        let mut allowed = BTreeSet::new();
        for (topic, found) in topics.iter().zip(found) {
            let data = match found {
                Ok(Found::Data((data, _))) => data,
                // No node: no overrides. A config that cannot be read keeps the partition offline.
                Err(StoreError::NoNode) => None,
                _ => continue,
            };
            let Ok(config) = znodes::parse_config(data.as_deref()) else { continue };
            let is_allowed = match config.get("unclean.leader.election.enable") {
                Some(value) => value.trim().eq_ignore_ascii_case("true"),
                None => self.settings.unclean_leader_election_enable,
            };
            if is_allowed {
                allowed.insert(topic.clone());
            }
        }
        self.elect_leaders(states, &allowed, out);
    }

    fn elect_leaders(
        &mut self,
        states: Vec<(TopicPartition, PartitionState, i32)>,
        unclean_topics: &BTreeSet<TopicName>,
        out: &mut Vec<Action>,
    ) {
        let (mut ops, mut elected, mut leaderless) = (Vec::new(), Vec::new(), Vec::new());
        for (of, old, version) in states {
            let unclean =
                if unclean_topics.contains(&of.topic) { Unclean::Allowed } else { Unclean::Refused };
            let choice = self.context.partition(&of).and_then(|partition| {
                let candidates = Candidates { assignment: &partition.assignment.replicas, isr: &old.isr };
                election::offline(candidates, unclean, |id| self.context.is_online(id, &of))
            });
            let Some(choice) = choice else {
                // What is told to brokers is what stands in the store.
                if let Some(partition) = self.context.partition_mut(&of) {
                    partition.leadership = Some(leadership(old, version));
                }
                leaderless.push(of);
                continue;
            };
            if choice.unclean {
                out.push(Action::Note(Note::UncleanElection(of.clone())));
            }
            let new = PartitionState {
                leader: choice.leader,
                leader_epoch: next_epoch(old.leader_epoch),
                controller_epoch: self.sender().epoch,
                isr: choice.isr,
                recovering: old.recovering || choice.unclean,
            };
            let path = znodes::partition_state(of.topic.get(), of.partition);
            ops.push(Op::set(path, new.print(), Expected::Version(version)));
            elected.push((of, leadership(new, version)));
        }
        if !leaderless.is_empty() {
            out.push(Action::Note(Note::NoLeader(leaderless)));
        }
        if !ops.is_empty() {
            self.write_fenced(Wait::ElectionWritten(elected), ops, out);
        }
    }

    pub(super) fn election_written(
        &mut self,
        elected: Vec<(TopicPartition, Leadership)>,
        done: Vec<Done>,
        out: &mut Vec<Action>,
    ) {
        let (mut again, mut failed) = (VecDeque::new(), Vec::new());
        for ((of, mut leadership), done) in elected.into_iter().zip(done) {
            match done {
                Ok(OpDone::Set(stat)) => {
                    leadership.partition_epoch = PartitionEpoch::new(stat.version);
                    self.lead(&of, leadership, false);
                }
                Err(FencedError::Store(StoreError::BadVersion)) => again.push_back(of),
                _ => failed.push(of),
            }
        }
        if !failed.is_empty() {
            out.push(Action::Note(Note::NoLeader(failed)));
        }
        if !again.is_empty() {
            self.then(Stage::PartitionsOnline(again));
        }
    }

    pub(super) fn set_replica(&mut self, (of, id): &Replica, phase: ReplicaPhase) {
        if let Some(partition) = self.context.partition_mut(of) {
            partition.replicas.insert(*id, phase);
        }
    }

    fn replica(&self, (of, id): &Replica) -> Option<ReplicaPhase> {
        self.context.partition(of)?.replicas.get(id).copied()
    }

    /// Replicas that serve: a new one has its role already from the first leader's election.
    pub(super) fn replicas_online(&mut self, mut replicas: VecDeque<Replica>) {
        if replicas.is_empty() {
            return;
        }
        let chunk = self.take(&mut replicas);
        if !replicas.is_empty() {
            self.then_all([Stage::Flush, Stage::ReplicasOnline(replicas)]);
        }
        for replica in chunk {
            let has_leader =
                self.context.partition(&replica.0).is_some_and(|partition| partition.leadership.is_some());
            match self.replica(&replica) {
                Some(ReplicaPhase::New) => {}
                Some(ReplicaPhase::Online | ReplicaPhase::Offline | ReplicaPhase::DeletionIneligible) => {
                    if has_leader {
                        self.batch.leader_and_isr(replica.1, &replica.0, false);
                    }
                }
                Some(ReplicaPhase::DeletionStarted | ReplicaPhase::DeletionSuccessful) | None => continue,
            }
            self.set_replica(&replica, ReplicaPhase::Online);
        }
    }

    /// Replicas that stop: they are told, and leave the ISR.
    pub(super) fn replicas_offline(&mut self, mut replicas: VecDeque<Replica>, out: &mut Vec<Action>) {
        if replicas.is_empty() {
            return;
        }
        let chunk = self.take(&mut replicas);
        if !replicas.is_empty() {
            self.then_all([Stage::Flush, Stage::ReplicasOffline(replicas)]);
        }
        let mut in_sync = Vec::new();
        for replica in chunk {
            match self.replica(&replica) {
                Some(ReplicaPhase::DeletionStarted | ReplicaPhase::DeletionSuccessful) | None => continue,
                Some(_) => self.set_replica(&replica, ReplicaPhase::Offline),
            }
            self.batch.stop(replica.1, &replica.0, false);
            self.batch.metadata(&replica.0);
            let leadership =
                self.context.partition(&replica.0).and_then(|partition| partition.leadership.as_ref());
            if leadership.is_some_and(|leadership| leadership.isr.contains(&replica.1)) {
                in_sync.push(replica);
            }
        }
        if !in_sync.is_empty() {
            let partitions: Vec<TopicPartition> = in_sync.iter().map(|(of, _)| of.clone()).collect();
            let reads = state_reads(&partitions);
            self.ask(Wait::ShrinkRead(in_sync), reads, out);
        }
    }

    pub(super) fn shrink_read(
        &mut self,
        replicas: Vec<Replica>,
        found: Vec<FoundNode>,
        out: &mut Vec<Action>,
    ) {
        // Several replicas of one partition leave in one write.
        let mut partitions: BTreeMap<TopicPartition, (PartitionState, i32, Vec<BrokerId>)> = BTreeMap::new();
        for ((of, gone), found) in replicas.into_iter().zip(found) {
            let Some((state, version)) = self.readable_state(&of, found, out) else { continue };
            partitions.entry(of).or_insert((state, version, Vec::new())).2.push(gone);
        }
        let (mut ops, mut shrunk) = (Vec::new(), Vec::new());
        for (of, (old, version, gone)) in partitions {
            if !gone.iter().any(|id| old.isr.contains(id)) {
                if let Some(partition) = self.context.partition_mut(&of) {
                    partition.leadership = Some(leadership(old, version));
                }
                continue;
            }
            let (mut leader, mut isr) = (old.leader, old.isr);
            for id in &gone {
                (leader, isr) = election::without(leader, &isr, *id);
            }
            let new = PartitionState {
                leader,
                leader_epoch: next_epoch(old.leader_epoch),
                controller_epoch: self.sender().epoch,
                isr,
                recovering: old.recovering,
            };
            let path = znodes::partition_state(of.topic.get(), of.partition);
            ops.push(Op::set(path, new.print(), Expected::Version(version)));
            shrunk.push((of, leadership(new, version), gone));
        }
        if !ops.is_empty() {
            self.write_fenced(Wait::ShrinkWritten(shrunk), ops, out);
        }
    }

    pub(super) fn shrink_written(
        &mut self,
        shrunk: Vec<(TopicPartition, Leadership, Vec<BrokerId>)>,
        done: Vec<Done>,
        out: &mut Vec<Action>,
    ) {
        let (mut again, mut failed) = (VecDeque::new(), Vec::new());
        for ((of, mut leadership, gone), done) in shrunk.into_iter().zip(done) {
            match done {
                Ok(OpDone::Set(stat)) => leadership.partition_epoch = PartitionEpoch::new(stat.version),
                Err(FencedError::Store(StoreError::BadVersion)) => {
                    again.extend(gone.into_iter().map(|id| (of.clone(), id)));
                    continue;
                }
                _ => {
                    failed.push(of);
                    continue;
                }
            }
            let deleting = self.context.is_deleting(&of.topic);
            let Some(partition) = self.context.partition_mut(&of) else { continue };
            partition.leadership = Some(leadership);
            let others = partition.assignment.replicas.clone();
            for to in others.into_iter().filter(|id| !gone.contains(id) && !deleting) {
                self.batch.leader_and_isr(to, &of, false);
            }
        }
        if !failed.is_empty() {
            out.push(Action::Note(Note::NoLeader(failed)));
        }
        if !again.is_empty() {
            self.then(Stage::ReplicasOffline(again));
        }
    }
}

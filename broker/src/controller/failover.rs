//! Taking office: the controller reads the whole tree, then tells the brokers (controller.md 4). Part of the machine.

use std::collections::{BTreeMap, VecDeque};

use protocol::types::{BrokerId, LeaderEpoch, PartitionEpoch, TopicId, TopicName, TopicPartition};

use super::context::{Partition, PartitionPhase, ReplicaPhase, Topic};
use super::machine::{Action, Controller, Found, Note, Read, Stage, Wait, children_of, data_of};
use super::requests::{Leadership, LiveBroker};
use crate::store::znodes::{self, BrokerNode, FeatureNode, PartitionState, TopicNode};
use crate::store::{Expected, NodeData, Op, StoreError};

type FoundNode = Result<Found, StoreError>;

impl Controller {
    pub(super) fn read_feature(&mut self, out: &mut Vec<Action>) {
        self.ask(Wait::Feature, vec![Read::Get { path: znodes::FEATURE.to_owned(), watch: false }], out);
    }

    pub(super) fn feature_found(&mut self, found: Vec<FoundNode>, out: &mut Vec<Action>) {
        let op = match found.into_iter().next().and_then(data_of) {
            None => Op::create(znodes::FEATURE, Some(FeatureNode::enabled().print())),
            Some((data, _)) => match FeatureNode::parse(data.as_deref().unwrap_or_default()) {
                Ok(node) if node.reconciled() == node => return,
                Ok(node) => Op::set(znodes::FEATURE, node.reconciled().print(), Expected::Any),
                Err(_) => return out.push(Action::Note(Note::Malformed(znodes::FEATURE.to_owned()))),
            },
        };
        // Not epoch-checked, as in Kafka.
        self.write(Wait::FeatureWritten, vec![op], out);
    }

    pub(super) fn read_notifications(&mut self, out: &mut Vec<Action>) {
        let read = |path: &str, watch| Read::Children { path: path.to_owned(), watch };
        let reads = vec![read(znodes::LOG_DIR_EVENTS, true), read(znodes::ISR_CHANGES, false)];
        self.ask(Wait::Notifications, reads, out);
    }

    /// Hints from before are about states that are read anyway.
    pub(super) fn notifications_found(&mut self, found: Vec<FoundNode>, out: &mut Vec<Action>) {
        let mut ops = Vec::new();
        for (folder, found) in [znodes::LOG_DIR_EVENTS, znodes::ISR_CHANGES].into_iter().zip(found) {
            ops.extend(children_of(Some(found)).iter().map(|name| Op::delete(format!("{folder}/{name}"))));
        }
        if !ops.is_empty() {
            self.write_fenced(Wait::Cleared, ops, out);
        }
    }

    /// Reads the registrations, with a watch on each.
    pub(super) fn broker_names_found(
        &mut self,
        found: Vec<FoundNode>,
        failover: bool,
        out: &mut Vec<Action>,
    ) {
        let names: Vec<BrokerId> = children_of(found.into_iter().next())
            .iter()
            .filter_map(|name| name.parse().ok().map(BrokerId::new))
            .collect();
        let reads = names.iter().map(|id| Read::Get { path: znodes::broker(*id), watch: true }).collect();
        self.ask(Wait::Brokers { names, failover }, reads, out);
    }

    pub(super) fn brokers_found(
        &mut self,
        names: &[BrokerId],
        found: Vec<FoundNode>,
        failover: bool,
        out: &mut Vec<Action>,
    ) {
        let mut brokers = BTreeMap::new();
        for (id, found) in names.iter().zip(found) {
            if let Some(node) = data_of(found) {
                match live_broker(*id, &node) {
                    Some(broker) => {
                        brokers.insert(*id, broker);
                    }
                    None => out.push(Action::Note(Note::Malformed(znodes::broker(*id)))),
                }
            }
        }
        if failover {
            out.extend(brokers.values().cloned().map(Action::Connect));
            self.batch.announce(brokers.keys().copied());
            self.context.brokers = brokers;
        } else {
            self.brokers_changed(brokers, out);
        }
    }

    pub(super) fn read_topic_nodes(
        &mut self,
        mut names: VecDeque<TopicName>,
        failover: bool,
        out: &mut Vec<Action>,
    ) {
        if names.is_empty() {
            return;
        }
        let chunk = self.take(&mut names);
        if !names.is_empty() {
            self.then(if failover { Stage::LoadTopicNodes(names) } else { Stage::ReadNewTopics(names) });
        }
        let reads =
            chunk.iter().map(|name| Read::Get { path: znodes::topic(name.get()), watch: true }).collect();
        self.ask(Wait::TopicNodes { names: chunk, failover }, reads, out);
    }

    /// Topics that were not known: their partitions are read at a failover, and made otherwise.
    pub(super) fn topic_nodes_found(
        &mut self,
        names: Vec<TopicName>,
        found: Vec<FoundNode>,
        failover: bool,
        out: &mut Vec<Action>,
    ) {
        let mut ops = Vec::new();
        let mut partitions = VecDeque::new();
        for (name, found) in names.into_iter().zip(found) {
            let Some((data, _)) = data_of(found) else { continue };
            let Ok(node) = TopicNode::parse(data.as_deref().unwrap_or_default()) else {
                out.push(Action::Note(Note::Malformed(znodes::topic(name.get()))));
                continue;
            };
            let id = node.id().unwrap_or_else(|| self.fresh_topic_id(&name));
            let assignments = node.assignments();
            if node.id().is_none() {
                let data = TopicNode::new(Some(id), &assignments).print();
                ops.push(Op::set(znodes::topic(name.get()), data, Expected::Any));
            }
            let mut topic = Topic::new(id);
            for (index, assignment) in assignments {
                topic.ineligible |= assignment.is_reassigning();
                topic.partitions.insert(index, Partition::new(assignment));
                partitions.push_back(TopicPartition::new(name.clone(), index));
            }
            self.context.topics.insert(name, topic);
        }
        self.then(if failover { Stage::LoadStates(partitions) } else { Stage::CreatePartitions(partitions) });
        if !ops.is_empty() {
            self.write_fenced(Wait::Cleared, ops, out);
        }
    }

    /// A random id for a topic of an old release: version and variant bits of a random UUID are set, so that it is none
    /// of the reserved ids.
    fn fresh_topic_id(&self, name: &TopicName) -> TopicId {
        const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        const FNV_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        let hash = name
            .get()
            .bytes()
            .fold(FNV_BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(FNV_PRIME));
        let bits = (hash ^ self.now.random) & !(0xf << 76) & !(0x3 << 62);
        TopicId::new((bits | (0x4 << 76) | (0x2 << 62)).to_be_bytes())
    }

    pub(super) fn read_states(&mut self, mut partitions: VecDeque<TopicPartition>, out: &mut Vec<Action>) {
        if partitions.is_empty() {
            return;
        }
        let chunk = self.take(&mut partitions);
        if !partitions.is_empty() {
            self.then(Stage::LoadStates(partitions));
        }
        let reads = state_reads(&chunk);
        self.ask(Wait::States(chunk), reads, out);
    }

    pub(super) fn states_found(
        &mut self,
        partitions: Vec<TopicPartition>,
        found: Vec<FoundNode>,
        out: &mut Vec<Action>,
    ) {
        for (of, found) in partitions.into_iter().zip(found) {
            let Some(node) = data_of(found) else { continue };
            match parse_state(&node) {
                Some((state, version)) => {
                    if let Some(partition) = self.context.partition_mut(&of) {
                        partition.leadership = Some(leadership(state, version));
                    }
                }
                None => {
                    let path = znodes::partition_state(of.topic.get(), of.partition);
                    out.push(Action::Note(Note::Malformed(path)));
                }
            }
        }
    }

    /// Replicas on live brokers get their roles, the others leave the ISR.
    pub(super) fn start_replicas(&mut self) {
        let (mut online, mut offline) = (VecDeque::new(), VecDeque::new());
        for of in self.context.partitions_where(|_, _| true) {
            let Some(partition) = self.context.partition(&of) else { continue };
            for id in partition.replicas.keys() {
                let replica = (of.clone(), *id);
                if self.context.is_online(*id, &of) {
                    online.push_back(replica)
                } else {
                    offline.push_back(replica)
                }
            }
        }
        for (list, phase) in [(&online, ReplicaPhase::Online), (&offline, ReplicaPhase::DeletionIneligible)] {
            list.iter().for_each(|replica| self.set_replica(replica, phase));
        }
        // A topic with a replica that cannot be deleted now waits for it.
        for (of, _) in &offline {
            if let Some(topic) = self.context.topics.get_mut(&of.topic) {
                topic.ineligible = true;
            }
        }
        self.then_all([
            Stage::ReplicasOnline(online),
            Stage::Flush,
            Stage::ReplicasOffline(offline),
            Stage::Flush,
        ]);
    }

    pub(super) fn start_partitions(&mut self) {
        self.loaded = true;
        for of in self.context.partitions_where(|_, _| true) {
            let leader = self.context.partition(&of).and_then(|partition| partition.leadership.as_ref());
            let phase = match leader {
                None => PartitionPhase::New,
                Some(leadership) if self.context.is_online(leadership.leader, &of) => PartitionPhase::Online,
                Some(_) => PartitionPhase::Offline,
            };
            if let Some(partition) = self.context.partition_mut(&of) {
                partition.phase = phase;
            }
        }
        self.then(Stage::RetryOffline);
    }
}

/// A registration; `None` when nobody can read it.
pub(super) fn live_broker(id: BrokerId, (data, stat): &NodeData) -> Option<LiveBroker> {
    let node = BrokerNode::parse(data.as_deref()?).ok()?;
    let endpoints = node.endpoints().ok()?;
    Some(LiveBroker { id, epoch: protocol::types::BrokerEpoch::new(stat.czxid), endpoints, rack: node.rack })
}

/// Reads of state nodes, without watches.
pub(super) fn state_reads(partitions: &[TopicPartition]) -> Vec<Read> {
    partitions
        .iter()
        .map(|of| Read::Get { path: znodes::partition_state(of.topic.get(), of.partition), watch: false })
        .collect()
}

/// State and data version of a state node.
pub(super) fn parse_state((data, stat): &NodeData) -> Option<(PartitionState, i32)> {
    let state = PartitionState::parse(data.as_deref()?).ok()?;
    Some((state, stat.version))
}

/// What the context keeps of a state node.
pub(super) fn leadership(state: PartitionState, version: i32) -> Leadership {
    Leadership {
        leader: state.leader,
        leader_epoch: state.leader_epoch,
        isr: state.isr,
        recovering: state.recovering,
        controller_epoch: state.controller_epoch,
        partition_epoch: PartitionEpoch::new(version),
    }
}

/// What a state node keeps of a leadership.
pub(super) fn state(of: &Leadership) -> PartitionState {
    PartitionState {
        leader: of.leader,
        leader_epoch: of.leader_epoch,
        controller_epoch: of.controller_epoch,
        isr: of.isr.clone(),
        recovering: of.recovering,
    }
}

/// The next generation of a leadership.
pub(super) fn next_epoch(epoch: LeaderEpoch) -> LeaderEpoch {
    LeaderEpoch::new(epoch.get().wrapping_add(1))
}

//! Brokers that come, go, and come back under the same id (controller.md 6), and what they answer. Part of the machine.

use std::collections::{BTreeMap, VecDeque};

use protocol::error::ErrorCode;
use protocol::types::{BrokerEpoch, BrokerId, TopicPartition};

use super::batch::send_metadata;
use super::context::{PartitionPhase, ReplicaPhase};
use super::failover::live_broker;
use super::machine::{Action, Controller, Found, Note, Read, Replica, Stage, Wait, children_of, data_of};
use super::requests::{ControlReply, LiveBroker};
use crate::store::{Op, StoreError, znodes};

impl Controller {
    /// New, bounced and dead brokers, in Kafka's order.
    pub(super) fn brokers_changed(&mut self, read: BTreeMap<BrokerId, LiveBroker>, out: &mut Vec<Action>) {
        let (mut new, mut bounced) = (Vec::new(), Vec::new());
        let dead: Vec<BrokerId> =
            self.context.brokers.keys().copied().filter(|id| !read.contains_key(id)).collect();
        for broker in read.into_values() {
            match self.context.brokers.get(&broker.id) {
                None => new.push(broker),
                // Larger only: an older view never undoes a registration.
                Some(known) if broker.epoch > known.epoch => bounced.push(broker),
                Some(_) => {}
            }
        }
        let bounced_ids: Vec<BrokerId> = bounced.iter().map(|broker| broker.id).collect();
        out.extend(dead.iter().chain(&bounced_ids).map(|id| Action::Disconnect(*id)));
        out.extend(new.iter().chain(&bounced).cloned().map(Action::Connect));
        self.then_all([
            Stage::BrokersStarted(new),
            // Not live in between, so that others lead what it led.
            Stage::BrokersFailed(bounced_ids),
            Stage::BrokersStarted(bounced),
            Stage::BrokersFailed(dead),
        ]);
    }

    pub(super) fn brokers_started(&mut self, started: Vec<LiveBroker>, out: &mut Vec<Action>) {
        if started.is_empty() {
            return;
        }
        let ids: Vec<BrokerId> = started.iter().map(|broker| broker.id).collect();
        let mut replicas = VecDeque::new();
        for broker in started {
            self.context.offline_dirs.remove(&broker.id);
            replicas.extend(self.context.replicas_on(broker.id));
            self.context.brokers.insert(broker.id, broker);
        }
        for (of, _) in &replicas {
            if let Some(topic) = self.context.topics.get_mut(&of.topic) {
                topic.ineligible =
                    topic.partitions.values().any(|partition| partition.assignment.is_reassigning());
            }
        }
        let others: Vec<BrokerId> =
            self.context.brokers.keys().copied().filter(|id| !ids.contains(id)).collect();
        self.batch.announce(others);
        self.flush(out);
        let known = self.context.partitions_where(|_, partition| partition.leadership.is_some());
        self.then_all([
            Stage::TellAll { to: ids, partitions: known.into() },
            Stage::ReplicasOnline(replicas),
            Stage::Flush,
            Stage::RetryOffline,
            Stage::ResumeDeletions,
        ]);
    }

    pub(super) fn tell_all(
        &mut self,
        to: Vec<BrokerId>,
        mut partitions: VecDeque<TopicPartition>,
        out: &mut Vec<Action>,
    ) {
        let chunk = self.take(&mut partitions);
        let sender = self.sender();
        let known: Vec<_> = chunk.iter().filter_map(|of| self.context.metadata(of)).collect();
        for id in &to {
            send_metadata(&self.context, sender, *id, known.clone(), out);
        }
        if !partitions.is_empty() {
            self.then(Stage::TellAll { to, partitions });
        }
    }

    pub(super) fn brokers_failed(&mut self, ids: &[BrokerId]) {
        if ids.is_empty() {
            return;
        }
        let mut replicas = Vec::new();
        for id in ids {
            self.context.brokers.remove(id);
            self.context.offline_dirs.remove(id);
            replicas.extend(self.context.replicas_on(*id));
        }
        self.replicas_became_offline(replicas);
    }

    /// Elections for what they led, then they leave the ISR; a deletion that needs them halts.
    fn replicas_became_offline(&mut self, replicas: Vec<Replica>) {
        let (deleting, others): (Vec<Replica>, Vec<Replica>) =
            replicas.into_iter().partition(|(of, _)| self.context.is_deleting(&of.topic));
        for (of, _) in &others {
            let leader = self.context.partition(of).and_then(|partition| partition.leadership.as_ref());
            let is_leaderless =
                leader.is_some_and(|leadership| !self.context.is_online(leadership.leader, of));
            if is_leaderless && let Some(partition) = self.context.partition_mut(of) {
                partition.phase = PartitionPhase::Offline;
            }
        }
        for replica in &deleting {
            self.halt_deletion(replica);
        }
        // Heard only if no partition changes.
        self.batch.announce(self.context.brokers.keys().copied());
        self.then_all([Stage::RetryOffline, Stage::ReplicasOffline(others.into()), Stage::Flush]);
    }

    pub(super) fn halt_deletion(&mut self, replica: &Replica) {
        self.set_replica(replica, ReplicaPhase::DeletionIneligible);
        if let Some(topic) = self.context.topics.get_mut(&replica.0.topic) {
            topic.ineligible = true;
        }
    }

    pub(super) fn read_broker(&mut self, id: BrokerId, out: &mut Vec<Action>) {
        if self.context.brokers.contains_key(&id) {
            self.ask(Wait::OneBroker(id), vec![Read::Get { path: znodes::broker(id), watch: true }], out);
        }
    }

    /// New endpoints of a broker are told to all; a new registration comes as a change of the children.
    pub(super) fn broker_found(
        &mut self,
        id: BrokerId,
        found: Vec<Result<Found, StoreError>>,
        out: &mut Vec<Action>,
    ) {
        let Some(node) = found.into_iter().next().and_then(data_of) else { return };
        let Some(broker) = live_broker(id, &node) else {
            return out.push(Action::Note(Note::Malformed(znodes::broker(id))));
        };
        let Some(known) = self.context.brokers.get_mut(&id) else { return };
        if known.epoch == broker.epoch && known.endpoints != broker.endpoints {
            *known = broker;
            self.batch.announce(self.context.brokers.keys().copied());
            self.flush(out);
        }
    }

    /// Brokers that lost a log dir, by their announcements.
    pub(super) fn dir_event_names_found(
        &mut self,
        found: Vec<Result<Found, StoreError>>,
        out: &mut Vec<Action>,
    ) {
        let names = children_of(found.into_iter().next());
        if names.is_empty() {
            return;
        }
        let path = |name: &String| format!("{}/{name}", znodes::LOG_DIR_EVENTS);
        let reads = names.iter().map(|name| Read::Get { path: path(name), watch: false }).collect();
        self.ask(Wait::DirEvents(names), reads, out);
    }

    /// Announcements that were read go; one that cannot be read says nothing, as in Kafka.
    pub(super) fn dir_events_found(
        &mut self,
        names: &[String],
        found: Vec<Result<Found, StoreError>>,
        out: &mut Vec<Action>,
    ) {
        let (mut ids, mut ops) = (Vec::new(), Vec::new());
        for (name, found) in names.iter().zip(found) {
            let path = format!("{}/{name}", znodes::LOG_DIR_EVENTS);
            let Some((data, _)) = data_of(found) else { continue };
            match znodes::parse_log_dir_event(data.as_deref().unwrap_or_default()) {
                Ok(id) if !ids.contains(&id) => ids.push(id),
                Ok(_) => {}
                Err(_) => out.push(Action::Note(Note::Malformed(path.clone()))),
            }
            ops.push(Op::delete(path));
        }
        self.then(Stage::DirsFailed(ids));
        if !ops.is_empty() {
            self.write_fenced(Wait::Cleared, ops, out);
        }
    }

    /// Asks for the roles of all replicas on these brokers: those in failed dirs are refused, which tells which they are.
    pub(super) fn dirs_failed(&mut self, ids: &[BrokerId]) {
        let live = ids.iter().filter(|id| self.context.brokers.contains_key(id));
        let replicas: VecDeque<Replica> = live.flat_map(|id| self.context.replicas_on(*id)).collect();
        self.then_all([Stage::ReplicasOnline(replicas), Stage::Flush]);
    }

    pub(super) fn replied(
        &mut self,
        from: BrokerId,
        broker_epoch: BrokerEpoch,
        reply: ControlReply,
        out: &mut Vec<Action>,
    ) {
        // An answer of a previous life says nothing about this one.
        if self.context.brokers.get(&from).is_none_or(|broker| broker.epoch != broker_epoch) {
            return;
        }
        let refused = match &reply {
            ControlReply::UpdateMetadata { error } => *error != ErrorCode::None,
            ControlReply::LeaderAndIsr { error, partitions } => {
                *error != ErrorCode::None || partitions.iter().any(|(_, error)| *error != ErrorCode::None)
            }
            ControlReply::StopReplica { error, partitions } => {
                *error != ErrorCode::None || partitions.iter().any(|(_, _, error)| *error != ErrorCode::None)
            }
        };
        if refused {
            out.push(Action::Note(Note::Refused { from, reply: reply.clone() }));
        }
        match reply {
            ControlReply::UpdateMetadata { .. } => {}
            ControlReply::LeaderAndIsr { partitions, .. } => self.roles_taken(from, partitions),
            ControlReply::StopReplica { partitions, .. } => self.replicas_stopped(from, partitions),
        }
    }

    /// Storage errors tell which replicas are in failed directories. So does a directory of another incarnation of the
    /// topic: clients are told that the partition has no leader, and not to ask one that will never serve it.
    fn roles_taken(&mut self, from: BrokerId, partitions: Vec<(TopicPartition, ErrorCode)>) {
        let mut newly_offline = Vec::new();
        let offline = self.context.offline_dirs.entry(from).or_default();
        for (of, error) in partitions {
            match error {
                ErrorCode::None => {
                    offline.remove(&of);
                }
                ErrorCode::KafkaStorageError | ErrorCode::InconsistentTopicId
                    if offline.insert(of.clone()) =>
                {
                    newly_offline.push((of, from));
                }
                _ => {}
            }
        }
        if !newly_offline.is_empty() {
            self.replicas_became_offline(newly_offline);
        }
    }
}

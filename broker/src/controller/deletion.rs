//! Deletion of topics: marked in the store, driven from memory, resumed after a crash at any step (controller.md 12).
//! Part of the machine.

use std::collections::VecDeque;

use protocol::error::ErrorCode;
use protocol::types::{BrokerId, TopicName, TopicPartition};

use super::context::{Deletion, PartitionPhase, ReplicaPhase};
use super::machine::{Action, Controller, Found, Note, Read, Replica, Stage, Wait, children_of};
use super::requests::DeleteFlag;
use crate::store::{Op, StoreError, znodes};

impl Controller {
    pub(super) fn deletions_found(
        &mut self,
        found: Vec<Result<Found, StoreError>>,
        failover: bool,
        out: &mut Vec<Action>,
    ) {
        let marked = children_of(found.into_iter().next());
        let mut ops = Vec::new();
        for name in marked {
            let known = self.context.topics.get_mut(name.as_str());
            match known {
                _ if !self.settings.delete_topic_enable => ops.push(Op::delete(znodes::delete_topic(&name))),
                Some(topic) if topic.deletion == Deletion::None => topic.deletion = Deletion::Queued,
                Some(_) => {}
                // A crash between the topic's node and its config leaves the config behind.
                None => {
                    ops.push(Op::delete(znodes::topic_config(&name)));
                    ops.push(Op::delete(znodes::delete_topic(&name)));
                }
            }
        }
        if !failover {
            self.then(Stage::ResumeDeletions);
        }
        if !ops.is_empty() {
            self.write_fenced(Wait::Cleared, ops, out);
        }
    }

    /// Completes, retries or starts what can be; the stages check again, so calling it often is harmless.
    pub(super) fn resume_deletions(&mut self) {
        let (mut complete, mut retry, mut start) = (Vec::new(), VecDeque::new(), Vec::new());
        for (name, topic) in self.context.topics.iter().filter(|(_, topic)| topic.deletion != Deletion::None)
        {
            if topic.all_replicas(ReplicaPhase::DeletionSuccessful) {
                complete.push(Stage::CompleteDeletion(name.clone()));
                continue;
            }
            if topic.any_replica(ReplicaPhase::DeletionStarted) {
                continue;
            }
            for (index, partition) in &topic.partitions {
                let of = TopicPartition::new(name.clone(), *index);
                let ineligible = partition
                    .replicas
                    .iter()
                    .filter(|(_, phase)| **phase == ReplicaPhase::DeletionIneligible);
                retry.extend(ineligible.map(|(id, _)| (of.clone(), *id)));
            }
            if !topic.ineligible {
                start.push(Stage::StartDeletion(name.clone()));
            }
        }
        start.into_iter().rev().for_each(|stage| self.then(stage));
        if !retry.is_empty() {
            self.then_all([Stage::ReplicasOffline(retry), Stage::Flush]);
        }
        complete.into_iter().rev().for_each(|stage| self.then(stage));
    }

    /// Clients hear that the topic is gone, then its replicas stop, then they are deleted.
    pub(super) fn start_deletion(&mut self, name: &TopicName) {
        let Some(topic) = self.context.topics.get_mut(name) else { return };
        if topic.deletion == Deletion::None || topic.any_replica(ReplicaPhase::DeletionStarted) {
            return;
        }
        topic.deletion = Deletion::Started;
        let mut partitions = VecDeque::new();
        let mut replicas: Vec<Replica> = Vec::new();
        for (index, partition) in &mut topic.partitions {
            partition.phase = PartitionPhase::NonExistent;
            let of = TopicPartition::new(name.clone(), *index);
            let left =
                partition.replicas.iter().filter(|(_, phase)| **phase != ReplicaPhase::DeletionSuccessful);
            replicas.extend(left.map(|(id, _)| (of.clone(), *id)));
            partitions.push_back(of);
        }
        let (alive, dead): (Vec<Replica>, Vec<Replica>) =
            replicas.into_iter().partition(|(of, id)| self.context.is_online(*id, of));
        dead.iter().for_each(|replica| self.halt_deletion(replica));
        let alive: VecDeque<Replica> = alive.into();
        self.then_all([
            Stage::TellDeleted(partitions),
            Stage::ReplicasOffline(alive.clone()),
            Stage::Flush,
            Stage::DeleteReplicas(alive),
        ]);
    }

    pub(super) fn tell_deleted(&mut self, mut partitions: VecDeque<TopicPartition>) {
        let chunk = self.take(&mut partitions);
        chunk.iter().for_each(|of| self.batch.metadata(of));
        if !partitions.is_empty() {
            self.then(Stage::TellDeleted(partitions));
        }
        self.then(Stage::Flush);
    }

    pub(super) fn delete_replicas(&mut self, mut replicas: VecDeque<Replica>) {
        let chunk = self.take(&mut replicas);
        for replica in &chunk {
            self.set_replica(replica, ReplicaPhase::DeletionStarted);
            self.batch.stop(replica.1, &replica.0, true);
        }
        if !replicas.is_empty() {
            self.then(Stage::DeleteReplicas(replicas));
        }
        self.then(Stage::Flush);
    }

    /// Answers to deletions advance them; others never do (KAFKA-9946).
    pub(super) fn replicas_stopped(
        &mut self,
        from: BrokerId,
        partitions: Vec<(TopicPartition, DeleteFlag, ErrorCode)>,
    ) {
        let mut advanced = false;
        for (of, flag, error) in partitions {
            let started = self.context.partition(&of).and_then(|partition| partition.replicas.get(&from))
                == Some(&ReplicaPhase::DeletionStarted);
            if flag == DeleteFlag::Keep || !started {
                continue;
            }
            advanced = true;
            let replica = (of, from);
            if error == ErrorCode::None {
                self.set_replica(&replica, ReplicaPhase::DeletionSuccessful);
            } else {
                self.halt_deletion(&replica);
            }
        }
        if advanced {
            self.then(Stage::ResumeDeletions);
        }
    }

    pub(super) fn complete_deletion(&mut self, name: TopicName, out: &mut Vec<Action>) {
        // The folders as they are: a crash may have left some that no assignment names.
        let reads = vec![Read::Children { path: znodes::partitions(name.get()), watch: false }];
        self.ask(Wait::TopicChildren(name), reads, out);
    }

    pub(super) fn topic_children_found(&mut self, name: TopicName, found: Vec<Result<Found, StoreError>>) {
        let mut ops = VecDeque::new();
        let folder = znodes::partitions(name.get());
        for partition in children_of(found.into_iter().next()) {
            ops.push_back(Op::delete(format!("{folder}/{partition}/state")));
            ops.push_back(Op::delete(format!("{folder}/{partition}")));
        }
        ops.push_back(Op::delete(folder));
        ops.push_back(Op::delete(znodes::topic(name.get())));
        ops.push_back(Op::delete(znodes::topic_config(name.get())));
        ops.push_back(Op::delete(znodes::delete_topic(name.get())));
        self.then(Stage::DropNodes { topic: name, ops });
    }

    pub(super) fn drop_nodes(&mut self, topic: TopicName, mut ops: VecDeque<Op>, out: &mut Vec<Action>) {
        let chunk = self.take(&mut ops);
        self.then(if ops.is_empty() { Stage::Forget(topic) } else { Stage::DropNodes { topic, ops } });
        // Nodes that are gone already are fine: this may be the second attempt.
        self.write_fenced(Wait::Dropped, chunk, out);
    }

    pub(super) fn forget(&mut self, name: &TopicName, out: &mut Vec<Action>) {
        self.context.topics.remove(name);
        self.context.offline_dirs.values_mut().for_each(|offline| offline.retain(|of| of.topic != *name));
        out.push(Action::Note(Note::Deleted(name.clone())));
    }
}

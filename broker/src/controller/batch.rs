//! Requests to brokers that one piece of the controller's work collects, flushed in the order LeaderAndIsr,
//! UpdateMetadata, StopReplica (controller.md 16). Pure; what goes out is read from the context at the flush.

use std::collections::{BTreeMap, BTreeSet};

use protocol::types::{BrokerId, ControllerEpoch, TopicId, TopicPartition};

use super::context::{ControllerContext, Deletion};
use super::machine::Action;
use super::requests::{
    ControlRequest, Header, LeaderAndIsr, LeaderAndIsrPartition, MetadataPartition, StopEpoch, StopReplica,
    StopReplicaPartition, UpdateMetadata,
};

/// Who the controller is, in each request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub id: BrokerId,
    pub epoch: ControllerEpoch,
}

#[derive(Debug, Default)]
pub(super) struct RequestBatch {
    /// Receiver to partitions, with isNew.
    leader_and_isr: BTreeMap<BrokerId, BTreeMap<TopicPartition, bool>>,
    metadata: BTreeSet<TopicPartition>,
    /// Receivers of an UpdateMetadata even if no partition changed.
    announce: BTreeSet<BrokerId>,
    /// Receiver to partitions, with the delete flag.
    stop: BTreeMap<BrokerId, BTreeMap<TopicPartition, bool>>,
}

impl RequestBatch {
    /// A role for a replica; all brokers hear of it. `is_new` sticks.
    pub fn leader_and_isr(&mut self, to: BrokerId, partition: &TopicPartition, is_new: bool) {
        *self.leader_and_isr.entry(to).or_default().entry(partition.clone()).or_default() |= is_new;
        self.metadata(partition);
    }

    /// A change that all brokers hear of.
    pub fn metadata(&mut self, partition: &TopicPartition) {
        self.metadata.insert(partition.clone());
    }

    /// The list of brokers, for these.
    pub fn announce(&mut self, to: impl IntoIterator<Item = BrokerId>) {
        self.announce.extend(to);
    }

    /// The end of a replica; `delete` sticks.
    pub fn stop(&mut self, to: BrokerId, partition: &TopicPartition, delete: bool) {
        *self.stop.entry(to).or_default().entry(partition.clone()).or_default() |= delete;
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Sends everything to the brokers that are registered.
    pub fn flush(&mut self, context: &ControllerContext, sender: Sender, out: &mut Vec<Action>) {
        let batch = std::mem::take(self);
        for (to, partitions) in batch.leader_and_isr {
            let Some(header) = header(context, sender, to) else { continue };
            if let Some(request) = roles(context, header, &partitions) {
                out.push(Action::Send { to, request: ControlRequest::LeaderAndIsr(request) });
            }
        }
        let partitions: Vec<_> =
            batch.metadata.iter().filter_map(|partition| context.metadata(partition)).collect();
        let receivers: Vec<BrokerId> = if partitions.is_empty() {
            batch.announce.into_iter().collect()
        } else {
            context.brokers.keys().copied().collect()
        };
        for to in receivers {
            send_metadata(context, sender, to, partitions.clone(), out);
        }
        for (to, partitions) in batch.stop {
            let Some(header) = header(context, sender, to) else { continue };
            let partitions =
                partitions.iter().map(|(partition, delete)| stop(context, partition, *delete)).collect();
            out.push(Action::Send {
                to,
                request: ControlRequest::StopReplica(StopReplica { header, partitions }),
            });
        }
    }
}

/// Tells one broker of partitions, and of all brokers.
pub(super) fn send_metadata(
    context: &ControllerContext,
    sender: Sender,
    to: BrokerId,
    partitions: Vec<MetadataPartition>,
    out: &mut Vec<Action>,
) {
    if let Some(header) = header(context, sender, to) {
        let brokers = context.brokers.values().cloned().collect();
        let request = ControlRequest::UpdateMetadata(UpdateMetadata { header, brokers, partitions });
        out.push(Action::Send { to, request });
    }
}

fn header(context: &ControllerContext, sender: Sender, to: BrokerId) -> Option<Header> {
    let broker = context.brokers.get(&to)?;
    Some(Header { controller: sender.id, controller_epoch: sender.epoch, broker_epoch: broker.epoch })
}

fn roles(
    context: &ControllerContext,
    header: Header,
    partitions: &BTreeMap<TopicPartition, bool>,
) -> Option<LeaderAndIsr> {
    let mut leaders = BTreeSet::new();
    let mut found = Vec::with_capacity(partitions.len());
    for (of, is_new) in partitions {
        let Some(topic) = context.topics.get(&of.topic) else { continue };
        let Some(partition) = topic.partitions.get(&of.partition) else { continue };
        let Some(leadership) = partition.leadership.clone() else { continue };
        leaders.insert(leadership.leader);
        found.push(LeaderAndIsrPartition {
            partition: of.clone(),
            topic_id: topic.id,
            leadership,
            replicas: partition.assignment.replicas.clone(),
            adding: partition.assignment.adding.clone(),
            removing: partition.assignment.removing.clone(),
            is_new: *is_new,
        });
    }
    let live_leaders = leaders.iter().filter_map(|id| context.brokers.get(id).cloned()).collect();
    (!found.is_empty()).then_some(LeaderAndIsr { header, partitions: found, live_leaders })
}

fn stop(context: &ControllerContext, of: &TopicPartition, delete: bool) -> StopReplicaPartition {
    let topic = context.topics.get(&of.topic);
    let leadership = context.partition(of).and_then(|partition| partition.leadership.as_ref());
    let leader_epoch = match (topic.map(|topic| topic.deletion), leadership) {
        (Some(Deletion::Queued | Deletion::Started), _) => StopEpoch::Deleting,
        (_, Some(leadership)) => StopEpoch::UpTo(leadership.leader_epoch),
        (_, None) => StopEpoch::Unknown,
    };
    let topic_id = topic.map_or(TopicId::ZERO, |topic| topic.id);
    StopReplicaPartition { partition: of.clone(), topic_id, leader_epoch, delete }
}

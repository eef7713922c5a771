//! What the controller tells whoever scrapes (security-admin.md 6): counts over its context, made when they are asked
//! for. Zero while another broker is the controller, as in Kafka.

use std::cell::RefCell;
use std::rc::Rc;

use protocol::types::BrokerId;

use super::context::{ControllerContext, Deletion, Partition, ReplicaPhase, Topic};
use super::machine::Controller;
use crate::metrics::names::Family;
use crate::metrics::snapshot::ShardSnapshot;

/// A controller that another looks at; it may be in the middle of an event.
#[derive(Clone)]
pub struct ControllerView(Rc<RefCell<Controller>>);

impl ControllerView {
    pub(super) fn new(machine: Rc<RefCell<Controller>>) -> Self {
        Self(machine)
    }

    /// Whether this broker is the controller.
    pub fn is_active(&self) -> bool {
        self.0.borrow().term.is_some()
    }

    /// Tells the counts.
    pub fn tell(&self, out: &mut ShardSnapshot) {
        let machine = self.0.borrow();
        let counts = machine.term.map(|_| Counts::of(&machine.context)).unwrap_or_default();
        out.whole(Family::ActiveController, usize::from(machine.term.is_some()));
        out.whole(Family::OfflinePartitions, counts.offline);
        out.whole(Family::PreferredImbalance, counts.imbalance);
        out.whole(Family::GlobalTopics, counts.topics);
        out.whole(Family::GlobalPartitions, counts.partitions);
        out.whole(Family::ActiveBrokers, counts.brokers);
        out.whole(Family::FencedBrokers, 0);
        out.whole(Family::TopicsToDelete, counts.topics_to_delete);
        out.whole(Family::ReplicasToDelete, counts.replicas_to_delete);
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    topics: usize,
    partitions: usize,
    brokers: usize,
    offline: usize,
    imbalance: usize,
    topics_to_delete: usize,
    replicas_to_delete: usize,
}

impl Counts {
    fn of(context: &ControllerContext) -> Self {
        let mut counts =
            Self { topics: context.topics.len(), brokers: context.brokers.len(), ..Self::default() };
        for topic in context.topics.values() {
            counts.partitions += topic.partitions.len();
            if topic.deletion == Deletion::None {
                counts.offline += topic.partitions.values().filter(|one| !has_leader(context, one)).count();
                counts.imbalance += topic.partitions.values().filter(|one| !is_preferred(one)).count();
            } else {
                counts.topics_to_delete += 1;
                counts.replicas_to_delete += undeleted(topic);
            }
        }
        counts
    }
}

fn leader(partition: &Partition) -> Option<BrokerId> {
    partition.leadership.as_ref().map(|leadership| leadership.leader)
}

/// Whether clients find a leader.
fn has_leader(context: &ControllerContext, partition: &Partition) -> bool {
    leader(partition).is_some_and(|leader| context.brokers.contains_key(&leader))
}

/// Whether the first of the replicas leads.
fn is_preferred(partition: &Partition) -> bool {
    leader(partition).is_none_or(|leader| partition.assignment.replicas.first() == Some(&leader))
}

fn undeleted(topic: &Topic) -> usize {
    let replicas = topic.partitions.values().flat_map(|partition| partition.replicas.values());
    replicas.filter(|phase| **phase != ReplicaPhase::DeletionSuccessful).count()
}

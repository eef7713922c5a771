//! Topics that appear, grow and vanish in the store (controller.md 11). Part of the machine.

use std::collections::{BTreeSet, VecDeque};

use protocol::types::{TopicName, TopicPartition};

use super::context::{Deletion, Partition};
use super::machine::{Action, Controller, Found, Note, Read, Stage, Wait, children_of, data_of};
use crate::store::znodes::{self, TopicNode};
use crate::store::{Expected, Op, StoreError};

impl Controller {
    pub(super) fn topic_names_found(&mut self, found: Vec<Result<Found, StoreError>>, failover: bool) {
        let names: BTreeSet<TopicName> =
            children_of(found.into_iter().next()).iter().map(|name| TopicName::new(name)).collect();
        if failover {
            return self.then(Stage::LoadTopicNodes(names.into_iter().collect()));
        }
        self.context.topics.retain(|name, _| names.contains(name));
        let new: VecDeque<TopicName> =
            names.into_iter().filter(|name| !self.context.topics.contains_key(name)).collect();
        self.then(Stage::ReadNewTopics(new));
    }

    pub(super) fn read_topic(&mut self, topic: TopicName, out: &mut Vec<Action>) {
        if self.context.topics.contains_key(&topic) {
            let read = Read::Get { path: znodes::topic(topic.get()), watch: true };
            self.ask(Wait::OneTopic(topic), vec![read], out);
        }
    }

    /// Partitions that were not known are made; those of a topic that is being deleted are taken back.
    pub(super) fn topic_found(
        &mut self,
        name: TopicName,
        found: Vec<Result<Found, StoreError>>,
        out: &mut Vec<Action>,
    ) {
        let Some((data, _)) = found.into_iter().next().and_then(data_of) else { return };
        let Ok(node) = TopicNode::parse(data.as_deref().unwrap_or_default()) else {
            return out.push(Action::Note(Note::Malformed(znodes::topic(name.get()))));
        };
        let Some(topic) = self.context.topics.get_mut(&name) else { return };
        let mut assignments = node.assignments();
        let new: VecDeque<TopicPartition> = assignments
            .keys()
            .filter(|index| !topic.partitions.contains_key(index))
            .map(|index| TopicPartition::new(name.clone(), *index))
            .collect();
        if new.is_empty() {
            return;
        }
        if topic.deletion != Deletion::None {
            assignments.retain(|index, _| topic.partitions.contains_key(index));
            let data = TopicNode::new(Some(topic.id), &assignments).print();
            let restore = Op::set(znodes::topic(name.get()), data, Expected::Any);
            return self.write_fenced(Wait::Cleared, vec![restore], out);
        }
        for of in &new {
            if let Some(assignment) = assignments.remove(&of.partition) {
                topic.partitions.insert(of.partition, Partition::new(assignment));
            }
        }
        self.then(Stage::CreatePartitions(new));
    }
}

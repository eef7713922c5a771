//! The machine against a real tree: several controllers and brokers, driven by hand. Numbers name statements of
//! controller.md 18.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use protocol::error::ErrorCode;
use protocol::types::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TimestampMs, TopicId, TopicName, TopicPartition,
};

use super::machine::*;
use super::registration::{RegistrationError, cluster_id, ensure_skeleton, generate_broker_id, register};
use super::requests::*;
use crate::store::sim::{SimDisk, SimStore};
use crate::store::znodes::{self, Assignment, BrokerEndpoint, BrokerNode, PartitionState, TopicNode};
use crate::store::{CreateMode, Expected, MetadataStore, MultiError, Op, StoreError, StoreEvent};

/// The output of a future that must be ready; `None` when the process that would answer is dead.
fn ready<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn id(raw: i32) -> BrokerId {
    BrokerId::new(raw)
}

fn at(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(TopicName::new(topic), partition)
}

fn node_of(raw: i32) -> BrokerNode {
    let port = 9000 + u16::try_from(raw).unwrap();
    let (listener, host) = ("PLAINTEXT".to_owned(), "127.0.0.1".to_owned());
    let security_protocol = listener.clone();
    BrokerNode::new(&[BrokerEndpoint { listener, host, port, security_protocol }], None, 0)
}

/// A broker: its session, its controller, and what it was told.
struct Node {
    store: SimStore,
    machine: Controller,
    notes: Vec<Note>,
    /// Requests that its controller sent, in order.
    sent: Vec<(BrokerId, ControlRequest)>,
    /// Partitions that one step asked the store about, at most.
    widest: usize,
    continues: usize,
    dead: bool,
}

impl Node {
    fn start(store: &SimStore, raw: i32, tune: impl Fn(&mut Settings)) -> Self {
        let _ = ready(ensure_skeleton(store));
        let _ = ready(register(store, id(raw), &node_of(raw), None));
        let mut settings =
            Settings { id: id(raw), delete_topic_enable: true, unclean_leader_election_enable: false };
        tune(&mut settings);
        let machine = Controller::new(settings);
        let (notes, sent) = (Vec::new(), Vec::new());
        let mut node =
            Self { store: store.fork(), machine, notes, sent, widest: 0, continues: 0, dead: false };
        node.handle(Event::Startup);
        node
    }

    fn call(&self, call: StoreCall) -> Option<StoreReply> {
        Some(match call {
            StoreCall::Multi(ops) => StoreReply::Multi(ready(self.store.multi(ops))?),
            StoreCall::Fenced { epoch_version, ops } => {
                StoreReply::Fenced(ready(self.store.fenced(epoch_version, ops))?)
            }
            StoreCall::Read(reads) => {
                let read = |read| {
                    Some(match read {
                        Read::Get { path, watch } => ready(self.store.get(&path, watch))?.map(Found::Data),
                        Read::Exists { path, watch } => {
                            ready(self.store.exists(&path, watch))?.map(Found::Stat)
                        }
                        Read::Children { path, watch } => {
                            ready(self.store.children(&path, watch))?.map(|(names, _)| Found::Children(names))
                        }
                    })
                };
                StoreReply::Read(reads.into_iter().map(read).collect::<Option<_>>()?)
            }
        })
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.machine.step(Now { wall: TimestampMs::new(1), random: 0x1234_5678 }, event, &mut out);
        out
    }

    fn handle(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            for action in self.step(event) {
                match action {
                    Action::Store(call) => {
                        if let StoreCall::Read(reads) = &call {
                            self.widest = self.widest.max(reads.len());
                        }
                        match self.call(call) {
                            Some(reply) => next = Some(Event::StoreDone(reply)),
                            None => self.dead = true,
                        }
                    }
                    Action::Continue => {
                        self.continues += 1;
                        next = Some(Event::Continue);
                    }
                    Action::Send { to, request } => self.sent.push((to, request)),
                    Action::Note(note) => self.notes.push(note),
                    Action::Connect(_) | Action::Disconnect(_) => {}
                }
            }
        }
    }

    /// Watches that stand ready, as events.
    fn watches(&mut self) -> bool {
        let mut any = false;
        while !self.dead
            && let Some(Some(watch)) = ready(self.store.next_event())
        {
            if let Some(event) = Event::from_watch(&watch) {
                any = true;
                self.handle(event);
            }
        }
        any
    }

    /// Answers every request that was sent and not looked at, as healthy brokers do.
    fn answer(&mut self) -> Vec<(BrokerId, ControlRequest)> {
        let sent = std::mem::take(&mut self.sent);
        for (from, request) in &sent {
            let (broker_epoch, reply) = healthy_reply(request);
            self.handle(Event::Replied { from: *from, broker_epoch, reply });
        }
        sent
    }

    /// Lets everything come to rest; answers what was sent, in order.
    fn settle(&mut self) -> Vec<(BrokerId, ControlRequest)> {
        let mut all = Vec::new();
        loop {
            let watched = self.watches();
            let sent = if self.dead { Vec::new() } else { self.answer() };
            if !watched && sent.is_empty() {
                return all;
            }
            all.extend(sent);
        }
    }

    fn state(&self, topic: &str, partition: i32) -> Option<PartitionState> {
        let (data, _) = ready(self.store.get(&znodes::partition_state(topic, partition), false))?.ok()?;
        PartitionState::parse(&data?).ok()
    }
}

fn healthy_reply(request: &ControlRequest) -> (BrokerEpoch, ControlReply) {
    let error = ErrorCode::None;
    match request {
        ControlRequest::LeaderAndIsr(r) => {
            let partitions = r.partitions.iter().map(|p| (p.partition.clone(), error)).collect();
            (r.header.broker_epoch, ControlReply::LeaderAndIsr { error, partitions })
        }
        ControlRequest::UpdateMetadata(r) => (r.header.broker_epoch, ControlReply::UpdateMetadata { error }),
        ControlRequest::StopReplica(r) => {
            let flag = |delete| if delete { DeleteFlag::Delete } else { DeleteFlag::Keep };
            let partitions =
                r.partitions.iter().map(|p| (p.partition.clone(), flag(p.delete), error)).collect();
            (r.header.broker_epoch, ControlReply::StopReplica { error, partitions })
        }
    }
}

fn create_topic(store: &impl MetadataStore, name: &str, replicas: &[&[i32]]) {
    let partitions: BTreeMap<i32, Assignment> = (0..)
        .zip(replicas)
        .map(|(index, ids)| (index, Assignment::of(ids.iter().map(|raw| id(*raw)).collect())))
        .collect();
    let node = TopicNode::new(Some(TopicId::new([9; 16])), &partitions).print();
    let config = znodes::print_config(&BTreeMap::new());
    let ops = vec![
        Op::create(znodes::topic_config(name), Some(config)),
        Op::create(znodes::topic(name), Some(node)),
    ];
    if let Some(done) = ready(store.multi(ops)) {
        done.unwrap();
    }
}

fn delete_topic(store: &impl MetadataStore, name: &str) {
    let _ = ready(store.create(&znodes::delete_topic(name), None, CreateMode::Persistent));
}

fn exists(store: &impl MetadataStore, path: &str) -> bool {
    ready(store.exists(path, false)).unwrap().unwrap().is_some()
}

/// A request in one word per partition: what kind, to whom, and what it says.
fn brief(sent: &[(BrokerId, ControlRequest)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (to, request) in sent {
        match request {
            ControlRequest::LeaderAndIsr(r) => lines.extend(r.partitions.iter().map(|p| {
                let new = if p.is_new { " new" } else { "" };
                format!(
                    "{to} lead {} {}@{}{new}",
                    p.partition, p.leadership.leader, p.leadership.leader_epoch
                )
            })),
            ControlRequest::UpdateMetadata(r) if r.partitions.is_empty() => {
                lines.push(format!("{to} brokers"))
            }
            ControlRequest::UpdateMetadata(r) => {
                lines.extend(r.partitions.iter().map(|p| match &p.leadership {
                    Some(leadership) => format!("{to} show {} {}", p.partition, leadership.leader),
                    None => format!("{to} hide {}", p.partition),
                }))
            }
            ControlRequest::StopReplica(r) => lines.extend(
                r.partitions
                    .iter()
                    .map(|p| format!("{to} {} {}", if p.delete { "delete" } else { "stop" }, p.partition)),
            ),
        }
    }
    lines
}

fn one_broker(disk: &SimDisk) -> Node {
    let mut node = Node::start(&disk.start(|| 0), 1, |_| {});
    node.settle();
    node
}

#[test]
fn the_first_broker_becomes_controller_and_announces_itself() {
    let mut node = Node::start(&SimDisk::new().start(|| 0), 1, |_| {});
    assert_eq!(brief(&node.settle()), ["1 brokers"]);
    assert_eq!(node.notes, [Note::Elected(ControllerEpoch::new(1))]);
    assert!(exists(&node.store, znodes::FEATURE) && exists(&node.store, znodes::CONTROLLER));
    assert_eq!(node.machine.controller(), id(1));
}

#[test]
fn a_topic_gets_leaders_roles_and_metadata_in_that_order() {
    let mut node = one_broker(&SimDisk::new());
    create_topic(&node.store, "t", &[&[1], &[1]]);
    let sent = brief(&node.settle());
    assert_eq!(sent, ["1 lead t-0 1@0 new", "1 lead t-1 1@0 new", "1 show t-0 1", "1 show t-1 1"]);
    let state = node.state("t", 0).unwrap();
    assert_eq!((state.leader, state.leader_epoch.get(), state.controller_epoch.get()), (id(1), 0, 1));
    assert_eq!(state.isr, [id(1)]);
}

#[test]
fn a_thousand_partitions_are_made_in_bounded_steps() {
    let mut node = one_broker(&SimDisk::new());
    node.continues = 0;
    let replicas: Vec<&[i32]> = vec![&[1]; 1000];
    create_topic(&node.store, "big", &replicas);
    let sent = node.settle();
    assert!(node.continues >= 3, "{}", node.continues);
    let mut led = BTreeSet::new();
    for (_, request) in &sent {
        if let ControlRequest::LeaderAndIsr(request) = request {
            assert!(request.partitions.len() <= PARTITIONS_PER_STEP);
            for part in &request.partitions {
                assert!(led.insert(part.partition.clone()), "{} twice", part.partition);
            }
        }
    }
    assert_eq!(led.len(), 1000);
}

#[test]
fn a_restart_brings_back_roles_in_the_same_leader_epoch() {
    let disk = SimDisk::new();
    let mut node = one_broker(&disk);
    create_topic(&node.store, "t", &[&[1]]);
    node.settle();
    drop(node);
    let mut node = Node::start(&disk.start(|| 0), 1, |_| {});
    // Statement 10: the list of brokers comes before the first role.
    assert_eq!(brief(&node.settle()), ["1 brokers", "1 lead t-0 1@0", "1 show t-0 1"]);
    assert_eq!(node.notes, [Note::Elected(ControllerEpoch::new(2))]);
    assert!(node.widest <= PARTITIONS_PER_STEP);
}

#[test]
fn a_topic_grows_by_what_its_node_gains() {
    let mut node = one_broker(&SimDisk::new());
    create_topic(&node.store, "t", &[&[1]]);
    node.settle();
    let partitions = (0..3).map(|index| (index, Assignment::of(vec![id(1)]))).collect();
    let grown = TopicNode::new(Some(TopicId::new([9; 16])), &partitions).print();
    ready(node.store.set(&znodes::topic("t"), Some(grown), Expected::Any)).unwrap().unwrap();
    let sent = brief(&node.settle());
    assert_eq!(sent, ["1 lead t-1 1@0 new", "1 lead t-2 1@0 new", "1 show t-1 1", "1 show t-2 1"]);
}

#[test]
fn a_deletion_hides_stops_deletes_and_then_drops_the_nodes() {
    let mut node = one_broker(&SimDisk::new());
    create_topic(&node.store, "t", &[&[1]]);
    node.settle();
    delete_topic(&node.store, "t");
    node.watches();
    // Statement 22: the answer to the stop without delete comes first and must not advance anything.
    let sent = std::mem::take(&mut node.sent);
    assert_eq!(brief(&sent), ["1 hide t-0", "1 hide t-0", "1 stop t-0", "1 delete t-0"]);
    for (from, request) in &sent {
        assert!(exists(&node.store, &znodes::topic("t")));
        let (broker_epoch, reply) = healthy_reply(request);
        node.handle(Event::Replied { from: *from, broker_epoch, reply });
    }
    for path in [znodes::topic("t"), znodes::topic_config("t"), znodes::delete_topic("t")] {
        assert!(!exists(&node.store, &path), "{path}");
    }
    node.settle();
    // Statement 24: the next topic of this name is another one.
    create_topic(&node.store, "t", &[&[1]]);
    assert_eq!(brief(&node.settle()), ["1 lead t-0 1@0 new", "1 show t-0 1"]);
}

#[test]
fn a_failed_deletion_halts_until_the_broker_starts_again() {
    let mut node = one_broker(&SimDisk::new());
    create_topic(&node.store, "t", &[&[1]]);
    node.settle();
    delete_topic(&node.store, "t");
    node.watches();
    for (from, request) in std::mem::take(&mut node.sent) {
        let (broker_epoch, mut reply) = healthy_reply(&request);
        if let ControlReply::StopReplica { partitions, .. } = &mut reply {
            partitions.iter_mut().for_each(|part| part.2 = ErrorCode::KafkaStorageError);
        }
        node.handle(Event::Replied { from, broker_epoch, reply });
    }
    node.settle();
    assert!(exists(&node.store, &znodes::topic("t")) && exists(&node.store, &znodes::delete_topic("t")));
}

#[test]
fn statement_25_partitions_added_during_a_deletion_are_taken_back() {
    let mut node = one_broker(&SimDisk::new());
    create_topic(&node.store, "t", &[&[1]]);
    node.settle();
    delete_topic(&node.store, "t");
    node.watches();
    let partitions = (0..2).map(|index| (index, Assignment::of(vec![id(1)]))).collect();
    let grown = TopicNode::new(Some(TopicId::new([9; 16])), &partitions).print();
    ready(node.store.set(&znodes::topic("t"), Some(grown), Expected::Any)).unwrap().unwrap();
    node.watches();
    let (data, _) = ready(node.store.get(&znodes::topic("t"), false)).unwrap().unwrap();
    assert_eq!(TopicNode::parse(&data.unwrap()).unwrap().assignments().len(), 1);
    node.settle();
    assert!(!exists(&node.store, &znodes::topic("t")));
}

#[test]
fn marks_of_deletion_are_removed_where_deletion_is_disabled_or_the_topic_unknown() {
    let mut node =
        Node::start(&SimDisk::new().start(|| 0), 1, |settings| settings.delete_topic_enable = false);
    create_topic(&node.store, "t", &[&[1]]);
    node.settle();
    delete_topic(&node.store, "t");
    node.settle();
    assert!(exists(&node.store, &znodes::topic("t")) && !exists(&node.store, &znodes::delete_topic("t")));
    let mut node = one_broker(&SimDisk::new());
    delete_topic(&node.store, "never-was");
    node.settle();
    assert!(!exists(&node.store, &znodes::delete_topic("never-was")));
}

#[test]
fn a_node_that_nobody_can_read_does_not_stop_the_others() {
    let mut node = one_broker(&SimDisk::new());
    ready(node.store.create(&znodes::topic("bad"), None, CreateMode::Persistent)).unwrap().unwrap();
    create_topic(&node.store, "good", &[&[1]]);
    assert_eq!(brief(&node.settle()), ["1 lead good-0 1@0 new", "1 show good-0 1"]);
    assert!(node.notes.contains(&Note::Malformed(znodes::topic("bad"))));
}

#[test]
fn topics_of_old_releases_get_an_id() {
    let mut node = one_broker(&SimDisk::new());
    let old = Bytes::from_static(br#"{"version":1,"partitions":{"0":[1]}}"#);
    ready(node.store.create(&znodes::topic("old"), Some(old), CreateMode::Persistent)).unwrap().unwrap();
    node.settle();
    let (data, _) = ready(node.store.get(&znodes::topic("old"), false)).unwrap().unwrap();
    let stored = TopicNode::parse(&data.unwrap()).unwrap().id().unwrap();
    assert!(!stored.is_zero());
}

/// Zookeeper.md 14, 7.
#[test]
fn a_topic_node_of_java_keeps_its_maps_when_it_gets_an_id() {
    let mut node = one_broker(&SimDisk::new());
    let java = br#"{"removing_replicas":{"0":[3]},"partitions":{"0":[1,2,3]},"future":[1],"adding_replicas":{"0":[2]},"version":2}"#;
    let path = znodes::topic("java");
    ready(node.store.create(&path, Some(Bytes::from_static(java)), CreateMode::Persistent)).unwrap().unwrap();
    node.settle();
    let (data, _) = ready(node.store.get(&path, false)).unwrap().unwrap();
    let stored = TopicNode::parse(&data.unwrap()).unwrap();
    assert!(stored.id().is_some_and(|id| !id.is_zero()));
    let assignment = &stored.assignments()[&0];
    assert_eq!(assignment.replicas, [id(1), id(2), id(3)]);
    assert_eq!((&assignment.adding, &assignment.removing), (&vec![id(2)], &vec![id(3)]));
}

#[test]
fn statement_41_a_state_whose_reply_was_lost_is_adopted() {
    let mut node = one_broker(&SimDisk::new());
    let left = PartitionState {
        leader: id(1),
        leader_epoch: LeaderEpoch::new(0),
        controller_epoch: ControllerEpoch::new(1),
        isr: vec![id(1)],
        recovering: false,
    };
    create_topic(&node.store, "t", &[&[1]]);
    for path in [znodes::partitions("t"), znodes::partition("t", 0)] {
        ready(node.store.create(&path, None, CreateMode::Persistent)).unwrap().unwrap();
    }
    let path = znodes::partition_state("t", 0);
    ready(node.store.create(&path, Some(left.print()), CreateMode::Persistent)).unwrap().unwrap();
    assert_eq!(brief(&node.settle()), ["1 lead t-0 1@1", "1 show t-0 1"]);
}

#[test]
fn statement_40_an_election_whose_reply_was_lost_is_recognised() {
    let store = SimDisk::new().start(|| 0);
    ready(ensure_skeleton(&store)).unwrap().unwrap();
    let settings = Settings { id: id(1), delete_topic_enable: true, unclean_leader_election_enable: false };
    let mut node = Node { machine: Controller::new(settings), ..Node::start(&store, 2, |_| {}) };
    ready(store.delete(znodes::CONTROLLER, Expected::Any)).unwrap().unwrap();
    // Until the election's transaction, which is applied; its reply says that the node exists.
    let mut actions = node.step(Event::Startup);
    loop {
        let Some(Action::Store(call)) = actions.pop() else { panic!("no store call") };
        let is_election = matches!(&call, StoreCall::Multi(ops) if ops.len() == 2);
        let mut reply = node.call(call).unwrap();
        if is_election {
            reply = StoreReply::Multi(Err(MultiError::Op { index: 0, error: StoreError::NodeExists }));
            node.handle(Event::StoreDone(reply));
            break;
        }
        actions = node.step(Event::StoreDone(reply));
    }
    assert!(node.machine.is_active());
    assert!(node.notes.contains(&Note::Elected(ControllerEpoch::new(2))));
}

#[test]
fn statements_1_and_2_a_deposed_controller_changes_nothing_and_resigns() {
    let disk = SimDisk::new();
    let mut old = one_broker(&disk);
    create_topic(&old.store, "t", &[&[1]]);
    old.settle();
    // It is paused; its node goes, and another broker wins.
    ready(old.store.delete(znodes::CONTROLLER, Expected::Any)).unwrap().unwrap();
    let mut new = Node::start(&old.store.connect(), 2, |_| {});
    assert!(new.machine.is_active());
    new.settle();
    let before = old.state("t", 0);
    // It resumes with work that it had in its queue.
    create_topic(&new.store, "u", &[&[1]]);
    old.sent.clear();
    old.handle(Event::TopicChange);
    assert!(!old.machine.is_active());
    assert_eq!(old.notes.last(), Some(&Note::Resigned));
    assert!(old.sent.is_empty(), "{:?}", brief(&old.sent));
    assert_eq!((old.state("t", 0), old.state("u", 0)), (before, None));
    // Statement 12: watches of the old term lead to nothing.
    new.settle();
    old.watches();
    assert!(old.sent.is_empty());
    assert!(new.state("u", 0).is_some());
}

/// Brokers 1 to n, of which 1 is controller; the others only have a session.
fn cluster(n: i32) -> (Node, Vec<SimStore>) {
    let store = SimDisk::new().start(|| 0);
    let mut node = Node::start(&store, 1, |_| {});
    let others: Vec<SimStore> = (2..=n).map(|raw| join(&store, raw)).collect();
    node.settle();
    (node, others)
}

fn join(store: &SimStore, raw: i32) -> SimStore {
    let session = store.connect();
    ready(register(&session, id(raw), &node_of(raw), None)).unwrap().unwrap();
    session
}

#[test]
fn a_dead_leader_is_followed_by_the_next_in_sync_replica() {
    let (mut node, others) = cluster(3);
    create_topic(&node.store, "t", &[&[2, 3, 1]]);
    node.settle();
    ready(others[0].expire()).unwrap().unwrap();
    let sent = brief(&node.settle());
    assert!(
        sent.contains(&"3 lead t-0 3@1".to_owned()) && sent.contains(&"1 lead t-0 3@1".to_owned()),
        "{sent:?}"
    );
    assert!(sent.iter().all(|line| !line.starts_with("2 ")), "{sent:?}");
    let state = node.state("t", 0).unwrap();
    assert_eq!((state.leader, state.isr), (id(3), vec![id(3), id(1)]));
}

#[test]
fn statement_42_the_last_member_stays_in_the_isr_and_only_it_leads_again() {
    let (mut node, others) = cluster(3);
    create_topic(&node.store, "t", &[&[2, 3]]);
    node.settle();
    for session in &others {
        ready(session.expire()).unwrap().unwrap();
        node.settle();
    }
    let state = node.state("t", 0).unwrap();
    assert_eq!((state.leader, state.isr), (BrokerId::NONE, vec![id(3)]));
    let _back = join(&node.store, 2);
    node.settle();
    assert_eq!(node.state("t", 0).unwrap().leader, BrokerId::NONE);
    let _last = join(&node.store, 3);
    node.settle();
    assert_eq!(node.state("t", 0).unwrap().leader, id(3));
}

#[test]
fn statement_38_and_39_an_unclean_election_needs_permission_and_is_marked() {
    let (mut node, others) = cluster(3);
    create_topic(&node.store, "safe", &[&[2, 3]]);
    create_topic(&node.store, "risky", &[&[2, 3]]);
    let config = BTreeMap::from([("unclean.leader.election.enable".to_owned(), "true".to_owned())]);
    let path = znodes::topic_config("risky");
    ready(node.store.set(&path, Some(znodes::print_config(&config)), Expected::Any)).unwrap().unwrap();
    node.settle();
    ready(others[0].expire()).unwrap().unwrap();
    node.settle();
    ready(others[1].expire()).unwrap().unwrap();
    node.settle();
    let _back = join(&node.store, 2);
    node.settle();
    let risky = node.state("risky", 0).unwrap();
    assert_eq!((risky.leader, risky.isr, risky.recovering), (id(2), vec![id(2)], true));
    assert!(node.notes.contains(&Note::UncleanElection(at("risky", 0))));
    assert_eq!(node.state("safe", 0).unwrap().leader, BrokerId::NONE);
    // The other replica is there again, and still the recovering leader is alone in sync.
    let _third = join(&node.store, 3);
    node.settle();
    let risky = node.state("risky", 0).unwrap();
    assert_eq!((risky.leader, risky.isr, risky.recovering), (id(2), vec![id(2)], true));
}

#[test]
fn statement_24_a_topic_created_again_at_once_is_not_hit_by_what_was_meant_for_the_old_one() {
    let mut node = one_broker(&SimDisk::new());
    create_topic(&node.store, "t", &[&[1], &[1]]);
    node.settle();
    delete_topic(&node.store, "t");
    let mut answered = Vec::new();
    while exists(&node.store, &znodes::topic("t")) {
        node.watches();
        answered.extend(node.answer());
    }
    create_topic(&node.store, "t", &[&[1]]);
    // What the old one left on the way: watches that fired, and answers of the broker that come twice.
    node.handle(Event::PartitionsModified(TopicName::new("t")));
    node.handle(Event::TopicDeletion);
    for (from, request) in &answered {
        if let ControlRequest::StopReplica(_) = request {
            let (broker_epoch, reply) = healthy_reply(request);
            node.handle(Event::Replied { from: *from, broker_epoch, reply });
        }
    }
    assert!(answered.iter().any(|(_, request)| matches!(request, ControlRequest::StopReplica(_))));
    let sent = brief(&node.settle());
    assert_eq!(sent, ["1 lead t-0 1@0 new", "1 show t-0 1"], "nothing is stopped or hidden");
    assert!(exists(&node.store, &znodes::topic("t")) && node.state("t", 0).is_some());
    assert!(node.state("t", 1).is_none(), "the old one had a second partition");
}

#[test]
fn statement_45_a_topic_without_live_replicas_waits_for_the_first() {
    let (mut node, _others) = cluster(1);
    create_topic(&node.store, "t", &[&[7, 8]]);
    assert_eq!(brief(&node.settle()), Vec::<String>::new());
    assert!(node.state("t", 0).is_none() && node.notes.contains(&Note::NoLeader(vec![at("t", 0)])));
    let _eight = join(&node.store, 8);
    node.settle();
    let state = node.state("t", 0).unwrap();
    assert_eq!((state.leader, state.isr), (id(8), vec![id(8)]));
}

#[test]
fn statement_13_a_broker_that_joins_gets_everything_and_the_others_only_the_list() {
    let (mut node, _two) = cluster(2);
    create_topic(&node.store, "t", &[&[1], &[2]]);
    node.settle();
    let _three = join(&node.store, 3);
    let sent = brief(&node.settle());
    assert_eq!(sent, ["1 brokers", "2 brokers", "3 show t-0 1", "3 show t-1 2"]);
}

#[test]
fn statement_4_a_broker_that_bounces_is_handled_as_failure_then_start() {
    let (mut node, others) = cluster(2);
    create_topic(&node.store, "t", &[&[2, 1]]);
    node.settle();
    // Gone and back before the controller looks.
    ready(others[0].expire()).unwrap().unwrap();
    let back = join(&node.store, 2);
    let (_, stat) = ready(back.get(&znodes::broker(id(2)), false)).unwrap().unwrap();
    let sent = node.settle();
    let epochs: BTreeSet<i64> = sent
        .iter()
        .filter(|(to, _)| *to == id(2))
        .map(|(_, request)| match request {
            ControlRequest::LeaderAndIsr(r) => r.header.broker_epoch.get(),
            ControlRequest::UpdateMetadata(r) => r.header.broker_epoch.get(),
            ControlRequest::StopReplica(r) => r.header.broker_epoch.get(),
        })
        .collect();
    assert_eq!(epochs, BTreeSet::from([stat.czxid]), "nothing is meant for the previous life");
    let state = node.state("t", 0).unwrap();
    assert!(state.leader == id(1) && state.isr == [id(1)], "{state:?}");
    // An answer of the previous life changes nothing.
    let late = ControlReply::LeaderAndIsr {
        error: ErrorCode::None,
        partitions: vec![(at("t", 0), ErrorCode::KafkaStorageError)],
    };
    node.handle(Event::Replied { from: id(2), broker_epoch: BrokerEpoch::new(1), reply: late });
    assert!(node.sent.is_empty());
}

#[test]
fn statement_11_replicas_on_dead_brokers_leave_the_isr_at_the_failover() {
    let (mut node, others) = cluster(2);
    create_topic(&node.store, "t", &[&[1, 2]]);
    node.settle();
    ready(others[0].expire()).unwrap().unwrap();
    // The controller is gone too; another one takes over without having seen the death.
    ready(node.store.delete(znodes::CONTROLLER, Expected::Any)).unwrap().unwrap();
    let mut next = Node::start(&node.store.connect(), 3, |_| {});
    next.settle();
    assert_eq!(next.state("t", 0).unwrap().isr, [id(1)]);
}

#[test]
fn statement_23_a_deletion_waits_for_a_dead_broker() {
    let (mut node, others) = cluster(2);
    create_topic(&node.store, "t", &[&[1, 2]]);
    node.settle();
    ready(others[0].expire()).unwrap().unwrap();
    node.settle();
    delete_topic(&node.store, "t");
    node.settle();
    assert!(exists(&node.store, &znodes::topic("t")));
    let _back = join(&node.store, 2);
    node.settle();
    assert!(!exists(&node.store, &znodes::topic("t")) && !exists(&node.store, &znodes::delete_topic("t")));
}

#[test]
fn a_failed_directory_moves_the_leader() {
    let (mut node, _others) = cluster(2);
    create_topic(&node.store, "t", &[&[2, 1]]);
    node.watches();
    for (from, request) in std::mem::take(&mut node.sent) {
        let (broker_epoch, mut reply) = healthy_reply(&request);
        if let ControlReply::LeaderAndIsr { partitions, .. } = &mut reply
            && from == id(2)
        {
            partitions.iter_mut().for_each(|part| part.1 = ErrorCode::KafkaStorageError);
        }
        node.handle(Event::Replied { from, broker_epoch, reply });
    }
    node.settle();
    let state = node.state("t", 0).unwrap();
    assert_eq!((state.leader, state.isr), (id(1), vec![id(1)]));
}

#[test]
fn a_broker_that_lost_a_directory_is_asked_for_its_roles_again() {
    let (mut node, _others) = cluster(2);
    create_topic(&node.store, "t", &[&[2, 1]]);
    create_topic(&node.store, "u", &[&[2, 1]]);
    node.settle();
    assert_eq!(node.state("t", 0).unwrap().leader, id(2));
    let announce = |data: Bytes| {
        let mode = CreateMode::PersistentSequential;
        ready(node.store.create(znodes::LOG_DIR_EVENT, Some(data), mode)).unwrap().unwrap();
    };
    announce(znodes::print_log_dir_event(id(2)));
    // One that nobody can read says nothing, and one of a broker that is gone neither.
    announce("{}".into());
    announce(znodes::print_log_dir_event(id(9)));
    node.watches();
    for (from, request) in std::mem::take(&mut node.sent) {
        let (broker_epoch, mut reply) = healthy_reply(&request);
        if let ControlReply::LeaderAndIsr { partitions, .. } = &mut reply {
            assert_eq!((from, partitions.len()), (id(2), 2), "only that broker is asked");
            let lost = partitions.iter_mut().filter(|(of, _)| of.topic.get() == "t");
            lost.for_each(|part| part.1 = ErrorCode::KafkaStorageError);
        }
        node.handle(Event::Replied { from, broker_epoch, reply });
    }
    node.settle();
    assert_eq!(node.state("t", 0).unwrap().leader, id(1));
    assert_eq!(node.state("u", 0).unwrap().leader, id(2), "what is in the other dir stays");
    let (left, _) = ready(node.store.children(znodes::LOG_DIR_EVENTS, false)).unwrap().unwrap();
    assert_eq!(left, Vec::<String>::new());
}

/// Runs a scenario on one broker with a crash after each possible write, then restarts and lets it come to rest.
fn at_every_crash_point(
    prepare: impl Fn(&mut Node),
    scenario: impl Fn(&mut Node),
    check: impl Fn(&Node, u64),
) {
    for writes in 0.. {
        let disk = SimDisk::new();
        let mut node = one_broker(&disk);
        prepare(&mut node);
        node.settle();
        disk.crash_after(writes);
        scenario(&mut node);
        node.settle();
        let crashed = disk.has_crashed();
        drop(node);
        let mut node = Node::start(&disk.start(|| 0), 1, |_| {});
        node.settle();
        assert!(node.machine.is_active());
        check(&node, writes);
        if !crashed {
            assert!(writes > 0, "there was nothing to crash at");
            return;
        }
    }
}

#[test]
fn a_creation_is_completed_after_a_crash_at_any_write() {
    at_every_crash_point(
        |_| {},
        |node| create_topic(&node.store, "t", &[&[1], &[1], &[1]]),
        |node, writes| {
            let known = exists(&node.store, &znodes::topic("t"));
            assert_eq!(known, writes > 0, "the topic is written as one");
            assert_eq!(known, exists(&node.store, &znodes::topic_config("t")));
            for partition in 0..3 {
                let state = node.state("t", partition);
                assert_eq!(state.map(|state| state.leader), known.then_some(id(1)), "after {writes} writes");
            }
        },
    );
}

#[test]
fn a_deletion_is_completed_after_a_crash_at_any_write() {
    at_every_crash_point(
        |node| create_topic(&node.store, "t", &[&[1], &[1]]),
        |node| delete_topic(&node.store, "t"),
        |node, writes| {
            let marked = writes > 0;
            for path in [znodes::topic("t"), znodes::topic_config("t"), znodes::partitions("t")] {
                assert_eq!(exists(&node.store, &path), !marked, "{path} after {writes} writes");
            }
            assert!(!exists(&node.store, &znodes::delete_topic("t")));
        },
    );
}

#[test]
fn a_growth_is_completed_after_a_crash_at_any_write() {
    at_every_crash_point(
        |node| create_topic(&node.store, "t", &[&[1]]),
        |node| {
            let partitions = (0..2).map(|index| (index, Assignment::of(vec![id(1)]))).collect();
            let grown = TopicNode::new(Some(TopicId::new([9; 16])), &partitions).print();
            let _ = ready(node.store.set(&znodes::topic("t"), Some(grown), Expected::Any));
        },
        |node, writes| {
            assert_eq!(node.state("t", 1).is_some(), writes > 0, "after {writes} writes");
            assert!(node.state("t", 0).is_some());
        },
    );
}

/// Also zookeeper.md 14, 9: what is queued is dropped, then the new session, then the registration, then the election.
#[test]
fn a_lost_session_is_an_ordinary_state() {
    let mut node = one_broker(&SimDisk::new());
    create_topic(&node.store, "t", &[&[1]]);
    node.settle();
    ready(node.store.expire()).unwrap().unwrap();
    assert!(matches!(
        std::iter::from_fn(|| ready(node.store.next_event()).flatten()).last(),
        Some(StoreEvent::Expired { .. })
    ));
    node.handle(Event::Expire);
    assert!(!node.machine.is_active());
    // Work that was queued before is for nobody, and before the new session nothing can be asked.
    node.handle(Event::TopicChange);
    assert!(node.sent.is_empty());
    let early = ready(register(&node.store, id(1), &node_of(1), None)).unwrap();
    assert_eq!(early, Err(RegistrationError::Store(StoreError::SessionExpired)));
    ready(node.store.reopen()).unwrap().unwrap();
    let epoch = ready(register(&node.store, id(1), &node_of(1), None)).unwrap().unwrap();
    node.handle(Event::Reelect);
    let sent = node.settle();
    assert_eq!(brief(&sent), ["1 brokers", "1 lead t-0 1@0", "1 show t-0 1"]);
    assert!(matches!(&sent[0].1, ControlRequest::UpdateMetadata(r) if r.header.broker_epoch == epoch));
}

#[test]
fn a_registration_is_repeated_replaced_or_refused() {
    let store = SimDisk::new().start(|| 0);
    ready(ensure_skeleton(&store)).unwrap().unwrap();
    let epoch = ready(register(&store, id(1), &node_of(1), None)).unwrap().unwrap();
    let (_, stat) = ready(store.get(&znodes::broker(id(1)), false)).unwrap().unwrap();
    assert_eq!((stat.version, stat.czxid), (1, epoch.get()));
    // Twice in one session: the same epoch.
    assert_eq!(ready(register(&store, id(1), &node_of(1), None)).unwrap(), Ok(epoch));
    let other = store.connect();
    let foreign = ready(register(&other, id(1), &node_of(1), None)).unwrap();
    assert_eq!(foreign, Err(RegistrationError::IdInUse(id(1))));
    // What our own last session left behind is replaced.
    let previous = Some(store.session().id);
    let again = ready(register(&other, id(1), &node_of(1), previous)).unwrap().unwrap();
    assert!(again > epoch);
    // Another broker on the same address is refused.
    let twin = ready(register(&other, id(2), &node_of(1), None)).unwrap();
    assert!(matches!(twin, Err(RegistrationError::EndpointInUse { other, .. }) if other == id(1)));
}

#[test]
fn ids_of_cluster_and_brokers_are_given_once() {
    let disk = SimDisk::new();
    let store = disk.start(|| 0);
    ready(ensure_skeleton(&store)).unwrap().unwrap();
    assert_eq!(ready(cluster_id(&store, "first")).unwrap(), Ok("first".to_owned()));
    assert_eq!(ready(cluster_id(&store, "second")).unwrap(), Ok("first".to_owned()));
    assert_eq!(ready(generate_broker_id(&store, 1000)).unwrap(), Ok(id(1001)));
    drop(store);
    let store = disk.start(|| 0);
    ready(ensure_skeleton(&store)).unwrap().unwrap();
    assert_eq!(ready(cluster_id(&store, "third")).unwrap(), Ok("first".to_owned()));
    assert_eq!(ready(generate_broker_id(&store, 1000)).unwrap(), Ok(id(1002)));
    // Zookeeper.md 14, 11: of brokers that race each gets one of its own.
    let racing: Vec<_> = (0..5).map(|_| store.connect()).collect();
    disk.hold();
    let mut ids =
        pin!(futures_util::future::join_all(racing.iter().map(|one| generate_broker_id(one, 1000))));
    assert!(ready(ids.as_mut()).is_none(), "all are on their way");
    disk.release();
    let ids: BTreeSet<_> = ready(ids).unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(ids, (1003..1008).map(id).collect());
}

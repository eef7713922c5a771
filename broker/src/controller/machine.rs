//! The controller: a pure machine that handles one event at a time (controller.md 1 to 9, 11, 12). It asks for store calls
//! and requests to brokers as actions, and is told their outcome as events; no clock, no I/O, no randomness.
//!
//! An event becomes an agenda of [`Stage`]s. A stage changes the context, collects requests, puts further stages in
//! front of the agenda, or asks the store and leaves a [`Wait`] that says how its reply goes on. So an event is atomic
//! against others, and one step is bounded: after 256 partitions the machine asks for [`Event::Continue`].
//! The stages' work stands in `failover`, `membership`, `states`, `topics` and `deletion`.

use std::collections::VecDeque;

use protocol::types::{BrokerEpoch, BrokerId, ControllerEpoch, TimestampMs, TopicName, TopicPartition};

use super::batch::{RequestBatch, Sender};
use super::context::ControllerContext;
use super::requests::{ControlReply, ControlRequest, LiveBroker};
use crate::store::{
    Expected, FencedError, MultiError, NodeData, Op, OpDone, Stat, StoreError, StoreEvent, znodes,
};

/// Partitions that one step works on at most.
pub const PARTITIONS_PER_STEP: usize = 256;

/// What a step knows of the world.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The wall clock, for the timestamp in `/controller`.
    pub wall: TimestampMs,
    /// Random bits, fresh for each step: topic ids that are missing in old topic nodes are made of them.
    pub random: u128,
}

/// What never changes while the process lives.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This broker.
    pub id: BrokerId,
    /// `delete.topic.enable`: without it marks of deletion are removed.
    pub delete_topic_enable: bool,
    /// Broker default of `unclean.leader.election.enable`.
    pub unclean_leader_election_enable: bool,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The broker is registered for the first time: look for a controller, or become it.
    Startup,
    /// `/controller` was created or changed.
    ControllerChange,
    /// `/controller` was deleted, or the broker is registered in a new session.
    Reelect,
    /// The session is gone.
    Expire,
    /// Children of `/brokers/ids` changed.
    BrokerChange,
    /// Data of a broker's node changed.
    BrokerModified(BrokerId),
    /// Children of `/brokers/topics` changed.
    TopicChange,
    /// Data of a topic's node changed.
    PartitionsModified(TopicName),
    /// Children of `/admin/delete_topics` changed.
    TopicDeletion,
    /// Children of `/log_dir_event_notification` changed.
    LogDirFailure,
    /// A broker answered.
    Replied {
        /// Which broker.
        from: BrokerId,
        /// Registration that the request was meant for.
        broker_epoch: BrokerEpoch,
        /// Its answer.
        reply: ControlReply,
    },
    /// Answer to [`Action::Store`].
    StoreDone(StoreReply),
    /// Answer to [`Action::Continue`].
    Continue,
}

/// Something that the driver must do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ask the store; the answer comes as [`Event::StoreDone`] before any other event.
    Store(StoreCall),
    /// Open a queue to a broker.
    Connect(LiveBroker),
    /// Close the queue to a broker and drop what is in it.
    Disconnect(BrokerId),
    /// Send a request.
    Send {
        /// To which broker.
        to: BrokerId,
        /// The request.
        request: ControlRequest,
    },
    /// Let others run, then send [`Event::Continue`] before any other event.
    Continue,
    /// Something a log or a metric wants to know.
    Note(Note),
}

/// Changes of state and troubles that heal themselves or not.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// This broker is the controller now.
    Elected(ControllerEpoch),
    /// This broker is not the controller any more.
    Resigned,
    /// A node holds what nobody can read; what it describes is left alone.
    Malformed(String),
    /// Nobody can lead these partitions now.
    NoLeader(Vec<TopicPartition>),
    /// A replica that was not in sync leads.
    UncleanElection(TopicPartition),
    /// Another decided with a newer epoch.
    NewerController(TopicPartition),
    /// The store failed; the event that was being handled is lost.
    StoreFailed(StoreError),
    /// A topic is gone.
    Deleted(TopicName),
    /// A broker refused a request, or partitions of it.
    Refused {
        /// Which broker.
        from: BrokerId,
        /// What it said.
        reply: ControlReply,
    },
}

/// A read of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Data and stat.
    Get {
        /// Path.
        path: String,
        /// Whether to watch data and deletion.
        watch: bool,
    },
    /// Whether it exists.
    Exists {
        /// Path.
        path: String,
        /// Whether to watch creation, data and deletion.
        watch: bool,
    },
    /// Names of the children.
    Children {
        /// Path.
        path: String,
        /// Whether to watch the children.
        watch: bool,
    },
}

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// To [`Read::Get`].
    Data(NodeData),
    /// To [`Read::Exists`].
    Stat(Option<Stat>),
    /// To [`Read::Children`].
    Children(Vec<String>),
}

/// One or more requests to the store, pipelined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreCall {
    /// Reads, in order.
    Read(Vec<Read>),
    /// One transaction.
    Multi(Vec<Op>),
    /// One transaction per op, each fenced.
    Fenced {
        /// Data version of `/controller_epoch`.
        epoch_version: i32,
        /// The ops.
        ops: Vec<Op>,
    },
}

/// The outcome of a [`StoreCall`], of the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// To [`StoreCall::Read`].
    Read(Vec<Result<Found, StoreError>>),
    /// To [`StoreCall::Multi`].
    Multi(Result<Vec<OpDone>, MultiError>),
    /// To [`StoreCall::Fenced`].
    Fenced(Vec<Result<OpDone, FencedError>>),
}

/// A replica.
pub(super) type Replica = (TopicPartition, BrokerId);

/// A piece of work.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// Who is controller? Resign if it is not us any more; if nobody is and `elect`, become it.
    Look {
        elect: bool,
    },
    /// The failover's parts, in order.
    Feature,
    ClearNotifications,
    LoadBrokers,
    LoadTopics,
    LoadTopicNodes(VecDeque<TopicName>),
    LoadStates(VecDeque<TopicPartition>),
    LoadDeletions,
    StartReplicas,
    StartPartitions,
    /// Membership.
    ReadBrokers,
    ReadBroker(BrokerId),
    ReadDirEvents,
    DirsFailed(Vec<BrokerId>),
    BrokersStarted(Vec<LiveBroker>),
    BrokersFailed(Vec<BrokerId>),
    /// Everything clients may know, to these brokers only.
    TellAll {
        to: Vec<BrokerId>,
        partitions: VecDeque<TopicPartition>,
    },
    /// Topics.
    ReadTopics,
    ReadNewTopics(VecDeque<TopicName>),
    ReadTopic(TopicName),
    /// New partitions: leader, then roles, chunk by chunk, each flushed.
    CreatePartitions(VecDeque<TopicPartition>),
    /// Transitions.
    PartitionsOnline(VecDeque<TopicPartition>),
    RetryOffline,
    ReplicasOnline(VecDeque<Replica>),
    ReplicasOffline(VecDeque<Replica>),
    /// Deletion.
    ReadDeletions,
    ResumeDeletions,
    StartDeletion(TopicName),
    TellDeleted(VecDeque<TopicPartition>),
    DeleteReplicas(VecDeque<Replica>),
    CompleteDeletion(TopicName),
    DropNodes {
        topic: TopicName,
        ops: VecDeque<Op>,
    },
    Forget(TopicName),
    /// Requests out.
    Flush,
}

/// How a store reply goes on.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wait {
    Looked {
        elect: bool,
    },
    EpochMade,
    Elected {
        epoch: ControllerEpoch,
    },
    ElectionChecked {
        epoch: ControllerEpoch,
    },
    Feature,
    FeatureWritten,
    Notifications,
    /// A fenced write whose own errors do not matter.
    Cleared,
    BrokerNames,
    Brokers {
        names: Vec<BrokerId>,
        failover: bool,
    },
    ChangedBrokerNames,
    OneBroker(BrokerId),
    DirEventNames,
    DirEvents(Vec<String>),
    TopicNames {
        failover: bool,
    },
    TopicNodes {
        names: Vec<TopicName>,
        failover: bool,
    },
    OneTopic(TopicName),
    States(Vec<TopicPartition>),
    Deletions {
        failover: bool,
    },
    Created(Vec<TopicPartition>),
    ElectionRead(Vec<TopicPartition>),
    ElectionConfigs {
        states: Vec<(TopicPartition, znodes::PartitionState, i32)>,
        topics: Vec<TopicName>,
    },
    ElectionWritten(Vec<(TopicPartition, super::requests::Leadership)>),
    ShrinkRead(Vec<Replica>),
    ShrinkWritten(Vec<(TopicPartition, super::requests::Leadership, Vec<BrokerId>)>),
    TopicChildren(TopicName),
    Dropped,
}

/// The controller.
pub struct Controller {
    pub(super) settings: Settings,
    pub(super) now: Now,
    /// Generation and data version of `/controller_epoch`; `None` while another broker is controller.
    pub(super) term: Option<Term>,
    pub(super) context: ControllerContext,
    pub(super) batch: RequestBatch,
    agenda: VecDeque<Stage>,
    wait: Option<Wait>,
    continuing: bool,
    budget: usize,
    controller: BrokerId,
    /// Whether the failover is through.
    pub(super) loaded: bool,
}

/// What an election gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub epoch: ControllerEpoch,
    pub version: i32,
}

impl Event {
    /// The event behind a watch; `None` for what the controller does not follow.
    pub fn from_watch(event: &StoreEvent) -> Option<Self> {
        match event {
            StoreEvent::NodeCreated(path) | StoreEvent::DataChanged(path) if path == znodes::CONTROLLER => {
                Some(Self::ControllerChange)
            }
            StoreEvent::NodeDeleted(path) if path == znodes::CONTROLLER => Some(Self::Reelect),
            StoreEvent::ChildrenChanged(path) => match path.as_str() {
                znodes::BROKER_IDS => Some(Self::BrokerChange),
                znodes::TOPICS => Some(Self::TopicChange),
                znodes::DELETE_TOPICS => Some(Self::TopicDeletion),
                znodes::LOG_DIR_EVENTS => Some(Self::LogDirFailure),
                _ => None,
            },
            StoreEvent::DataChanged(path) => {
                if let Some(name) = path.strip_prefix(znodes::TOPICS).and_then(|rest| rest.strip_prefix('/'))
                {
                    return Some(Self::PartitionsModified(TopicName::new(name)));
                }
                let id = path.strip_prefix(znodes::BROKER_IDS)?.strip_prefix('/')?.parse().ok()?;
                Some(Self::BrokerModified(BrokerId::new(id)))
            }
            StoreEvent::NodeCreated(_)
            | StoreEvent::NodeDeleted(_)
            | StoreEvent::Connected { .. }
            | StoreEvent::Suspended
            | StoreEvent::Expired { .. } => None,
        }
    }
}

impl Controller {
    /// A controller that has not looked at the store yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Now { wall: TimestampMs::NONE, random: 0 },
            term: None,
            context: ControllerContext::default(),
            batch: RequestBatch::default(),
            agenda: VecDeque::new(),
            wait: None,
            continuing: false,
            budget: 0,
            controller: BrokerId::NONE,
            loaded: false,
        }
    }

    /// Whether this broker is the controller.
    pub fn is_active(&self) -> bool {
        self.term.is_some()
    }

    /// The controller, as far as known.
    pub fn controller(&self) -> BrokerId {
        self.controller
    }

    /// Whether the next event may be anything: no store call and no [`Action::Continue`] is open.
    pub fn is_idle(&self) -> bool {
        self.wait.is_none() && !self.continuing
    }

    /// Applies one event; appends to `out` what the driver must do, in order. While the machine is not idle only the
    /// event it asked for may come, or [`Event::Expire`].
    pub fn step(&mut self, now: Now, event: Event, out: &mut Vec<Action>) {
        self.now = now;
        self.budget = PARTITIONS_PER_STEP;
        match event {
            Event::StoreDone(reply) => {
                assert!(self.wait.is_some(), "a store reply that was not asked for");
                if let Some(wait) = self.wait.take() {
                    self.resume(wait, reply, out);
                }
            }
            Event::Continue => {
                assert!(self.continuing, "nothing to continue");
                self.continuing = false;
            }
            Event::Expire => self.expire(out),
            event => {
                assert!(self.is_idle(), "one event at a time");
                self.begin(event, out);
            }
        }
        while self.wait.is_none()
            && let Some(stage) = self.agenda.pop_front()
        {
            if self.budget == 0 {
                self.agenda.push_front(stage);
                self.continuing = true;
                out.push(Action::Continue);
                return;
            }
            self.run(stage, out);
        }
    }

    fn begin(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Startup | Event::Reelect => self.then(Stage::Look { elect: true }),
            Event::ControllerChange => self.then(Stage::Look { elect: false }),
            // Everything else is for the active controller only.
            _ if self.term.is_none() => {}
            Event::BrokerChange => self.then(Stage::ReadBrokers),
            Event::BrokerModified(id) => self.then(Stage::ReadBroker(id)),
            Event::TopicChange => self.then(Stage::ReadTopics),
            Event::PartitionsModified(topic) => self.then(Stage::ReadTopic(topic)),
            Event::TopicDeletion => self.then(Stage::ReadDeletions),
            Event::LogDirFailure => self.then(Stage::ReadDirEvents),
            Event::Replied { from, broker_epoch, reply } => self.replied(from, broker_epoch, reply, out),
            Event::StoreDone(_) | Event::Continue | Event::Expire => {}
        }
    }

    fn run(&mut self, stage: Stage, out: &mut Vec<Action>) {
        match stage {
            Stage::Look { elect } => self.look(elect, out),
            Stage::Feature => self.read_feature(out),
            Stage::ClearNotifications => self.read_notifications(out),
            Stage::LoadBrokers => self.ask(Wait::BrokerNames, children(znodes::BROKER_IDS), out),
            Stage::LoadTopics => self.ask(Wait::TopicNames { failover: true }, children(znodes::TOPICS), out),
            Stage::LoadTopicNodes(names) => self.read_topic_nodes(names, true, out),
            Stage::LoadStates(partitions) => self.read_states(partitions, out),
            Stage::LoadDeletions => {
                self.ask(Wait::Deletions { failover: true }, children(znodes::DELETE_TOPICS), out);
            }
            Stage::StartReplicas => self.start_replicas(),
            Stage::StartPartitions => self.start_partitions(),
            Stage::ReadBrokers => self.ask(Wait::ChangedBrokerNames, children(znodes::BROKER_IDS), out),
            Stage::ReadBroker(id) => self.read_broker(id, out),
            Stage::ReadDirEvents => self.ask(Wait::DirEventNames, children(znodes::LOG_DIR_EVENTS), out),
            Stage::DirsFailed(ids) => self.dirs_failed(&ids),
            Stage::BrokersStarted(brokers) => self.brokers_started(brokers, out),
            Stage::BrokersFailed(ids) => self.brokers_failed(&ids),
            Stage::TellAll { to, partitions } => self.tell_all(to, partitions, out),
            Stage::ReadTopics => {
                self.ask(Wait::TopicNames { failover: false }, children(znodes::TOPICS), out)
            }
            Stage::ReadNewTopics(names) => self.read_topic_nodes(names, false, out),
            Stage::ReadTopic(topic) => self.read_topic(topic, out),
            Stage::CreatePartitions(partitions) => self.create_partitions(partitions),
            Stage::PartitionsOnline(partitions) => self.partitions_online(partitions, out),
            Stage::RetryOffline => self.retry_offline(),
            Stage::ReplicasOnline(replicas) => self.replicas_online(replicas),
            Stage::ReplicasOffline(replicas) => self.replicas_offline(replicas, out),
            Stage::ReadDeletions => {
                self.ask(Wait::Deletions { failover: false }, children(znodes::DELETE_TOPICS), out);
            }
            Stage::ResumeDeletions => self.resume_deletions(),
            Stage::StartDeletion(topic) => self.start_deletion(&topic),
            Stage::TellDeleted(partitions) => self.tell_deleted(partitions),
            Stage::DeleteReplicas(replicas) => self.delete_replicas(replicas),
            Stage::CompleteDeletion(topic) => self.complete_deletion(topic, out),
            Stage::DropNodes { topic, ops } => self.drop_nodes(topic, ops, out),
            Stage::Forget(topic) => self.forget(&topic, out),
            Stage::Flush => self.flush(out),
        }
    }

    fn resume(&mut self, wait: Wait, reply: StoreReply, out: &mut Vec<Action>) {
        if let Some(error) = fatal_error(&reply) {
            return self.store_failed(error, out);
        }
        match (wait, reply) {
            (Wait::Looked { elect }, StoreReply::Read(found)) => self.looked(elect, found, out),
            (Wait::EpochMade, StoreReply::Multi(_)) => self.then(Stage::Look { elect: true }),
            (Wait::Elected { epoch }, StoreReply::Multi(done)) => self.elected(epoch, done, out),
            (Wait::ElectionChecked { epoch }, StoreReply::Read(found)) => {
                self.election_checked(epoch, &found, out)
            }
            (Wait::Feature, StoreReply::Read(found)) => self.feature_found(found, out),
            (Wait::Notifications, StoreReply::Read(found)) => self.notifications_found(found, out),
            (Wait::BrokerNames, StoreReply::Read(found)) => self.broker_names_found(found, true, out),
            (Wait::ChangedBrokerNames, StoreReply::Read(found)) => self.broker_names_found(found, false, out),
            (Wait::Brokers { names, failover }, StoreReply::Read(found)) => {
                self.brokers_found(&names, found, failover, out);
            }
            (Wait::OneBroker(id), StoreReply::Read(found)) => self.broker_found(id, found, out),
            (Wait::DirEventNames, StoreReply::Read(found)) => self.dir_event_names_found(found, out),
            (Wait::DirEvents(names), StoreReply::Read(found)) => self.dir_events_found(&names, found, out),
            (Wait::TopicNames { failover }, StoreReply::Read(found)) => {
                self.topic_names_found(found, failover)
            }
            (Wait::TopicNodes { names, failover }, StoreReply::Read(found)) => {
                self.topic_nodes_found(names, found, failover, out);
            }
            (Wait::OneTopic(topic), StoreReply::Read(found)) => self.topic_found(topic, found, out),
            (Wait::States(partitions), StoreReply::Read(found)) => self.states_found(partitions, found, out),
            (Wait::Deletions { failover }, StoreReply::Read(found)) => {
                self.deletions_found(found, failover, out)
            }
            (Wait::Created(partitions), StoreReply::Fenced(done)) => self.created(partitions, &done, out),
            (Wait::ElectionRead(partitions), StoreReply::Read(found)) => {
                self.election_read(partitions, found, out)
            }
            (Wait::ElectionConfigs { states, topics }, StoreReply::Read(found)) => {
                self.election_configs(states, &topics, found, out);
            }
            (Wait::ElectionWritten(elected), StoreReply::Fenced(done)) => {
                self.election_written(elected, done, out)
            }
            (Wait::ShrinkRead(replicas), StoreReply::Read(found)) => self.shrink_read(replicas, found, out),
            (Wait::ShrinkWritten(shrunk), StoreReply::Fenced(done)) => self.shrink_written(shrunk, done, out),
            (Wait::TopicChildren(topic), StoreReply::Read(found)) => self.topic_children_found(topic, found),
            (Wait::FeatureWritten, StoreReply::Multi(_))
            | (Wait::Cleared | Wait::Dropped, StoreReply::Fenced(_)) => {}
            (wait, reply) => panic!("a reply of another kind: {wait:?} {reply:?}"),
        }
    }

    /// Puts a stage in front of the agenda.
    pub(super) fn then(&mut self, stage: Stage) {
        self.agenda.push_front(stage);
    }

    /// Puts stages in front of the agenda, the first one first.
    pub(super) fn then_all<const N: usize>(&mut self, stages: [Stage; N]) {
        for stage in stages.into_iter().rev() {
            self.agenda.push_front(stage);
        }
    }

    /// Takes from a list what this step may still work on.
    pub(super) fn take<T>(&mut self, from: &mut VecDeque<T>) -> Vec<T> {
        let count = from.len().min(self.budget.max(1));
        self.budget = self.budget.saturating_sub(count);
        from.drain(..count).collect()
    }

    /// Asks for reads.
    pub(super) fn ask(&mut self, wait: Wait, reads: Vec<Read>, out: &mut Vec<Action>) {
        self.wait = Some(wait);
        out.push(Action::Store(StoreCall::Read(reads)));
    }

    /// Asks for one transaction.
    pub(super) fn write(&mut self, wait: Wait, ops: Vec<Op>, out: &mut Vec<Action>) {
        self.wait = Some(wait);
        out.push(Action::Store(StoreCall::Multi(ops)));
    }

    /// Asks for fenced writes.
    pub(super) fn write_fenced(&mut self, wait: Wait, ops: Vec<Op>, out: &mut Vec<Action>) {
        if let Some(term) = self.term {
            self.wait = Some(wait);
            out.push(Action::Store(StoreCall::Fenced { epoch_version: term.version, ops }));
        }
    }

    /// Who sends requests now.
    pub(super) fn sender(&self) -> Sender {
        let epoch = self.term.map_or(ControllerEpoch::new(0), |term| term.epoch);
        Sender { id: self.settings.id, epoch }
    }

    pub(super) fn flush(&mut self, out: &mut Vec<Action>) {
        let sender = self.sender();
        self.batch.flush(&self.context, sender, out);
    }

    fn look(&mut self, elect: bool, out: &mut Vec<Action>) {
        let reads = vec![
            Read::Exists { path: znodes::CONTROLLER.to_owned(), watch: true },
            Read::Get { path: znodes::CONTROLLER.to_owned(), watch: false },
            Read::Get { path: znodes::CONTROLLER_EPOCH.to_owned(), watch: false },
        ];
        self.ask(Wait::Looked { elect }, reads, out);
    }

    fn looked(&mut self, elect: bool, found: Vec<Result<Found, StoreError>>, out: &mut Vec<Action>) {
        let mut found = found.into_iter().skip(1);
        let controller = found.next().and_then(data_of);
        let epoch = found.next().and_then(data_of);
        self.controller = match &controller {
            None => BrokerId::NONE,
            Some((data, _)) => match znodes::parse_controller(data.as_deref().unwrap_or_default()) {
                Ok(id) => id,
                Err(_) => {
                    out.push(Action::Note(Note::Malformed(znodes::CONTROLLER.to_owned())));
                    BrokerId::NONE
                }
            },
        };
        if self.controller != self.settings.id {
            self.resign(out);
        }
        if controller.is_none() && elect {
            match epoch {
                None => {
                    let initial = znodes::print_controller_epoch(ControllerEpoch::new(0));
                    self.write(
                        Wait::EpochMade,
                        vec![Op::create(znodes::CONTROLLER_EPOCH, Some(initial))],
                        out,
                    );
                }
                Some((data, stat)) => self.elect(data.as_deref().unwrap_or_default(), stat.version, out),
            }
        }
    }

    fn elect(&mut self, epoch: &[u8], version: i32, out: &mut Vec<Action>) {
        let Ok(epoch) = znodes::parse_controller_epoch(epoch) else {
            return out.push(Action::Note(Note::Malformed(znodes::CONTROLLER_EPOCH.to_owned())));
        };
        let epoch = ControllerEpoch::new(epoch.get().wrapping_add(1));
        let data = Some(znodes::print_controller(self.settings.id, self.now.wall.get()));
        let mode = crate::store::CreateMode::Ephemeral;
        let expected = Expected::Version(version);
        let ops = vec![
            Op::Create { path: znodes::CONTROLLER.to_owned(), data, mode },
            Op::set(znodes::CONTROLLER_EPOCH, znodes::print_controller_epoch(epoch), expected),
        ];
        self.write(Wait::Elected { epoch }, ops, out);
    }

    fn elected(
        &mut self,
        epoch: ControllerEpoch,
        done: Result<Vec<OpDone>, MultiError>,
        out: &mut Vec<Action>,
    ) {
        match done.as_deref() {
            Ok([_, OpDone::Set(stat)]) => self.take_office(Term { epoch, version: stat.version }, out),
            // Somebody else won, or our own transaction was applied and its reply lost: the nodes tell.
            _ => {
                let get = |path: &str| Read::Get { path: path.to_owned(), watch: false };
                let reads = vec![get(znodes::CONTROLLER), get(znodes::CONTROLLER_EPOCH)];
                self.ask(Wait::ElectionChecked { epoch }, reads, out);
            }
        }
    }

    fn election_checked(
        &mut self,
        tried: ControllerEpoch,
        found: &[Result<Found, StoreError>],
        out: &mut Vec<Action>,
    ) {
        let [Ok(Found::Data((Some(controller), _))), Ok(Found::Data((Some(epoch), stat)))] = found else {
            return;
        };
        self.controller = znodes::parse_controller(controller).unwrap_or(BrokerId::NONE);
        if self.controller == self.settings.id && znodes::parse_controller_epoch(epoch) == Ok(tried) {
            self.take_office(Term { epoch: tried, version: stat.version }, out);
        }
    }

    fn take_office(&mut self, term: Term, out: &mut Vec<Action>) {
        self.term = Some(term);
        self.loaded = false;
        self.controller = self.settings.id;
        out.push(Action::Note(Note::Elected(term.epoch)));
        self.then_all([
            Stage::Feature,
            Stage::ClearNotifications,
            Stage::LoadBrokers,
            Stage::LoadTopics,
            Stage::LoadDeletions,
            Stage::Flush,
            Stage::StartReplicas,
            Stage::StartPartitions,
            Stage::ResumeDeletions,
        ]);
    }

    /// Forgets everything; the watch on `/controller` stays.
    fn resign(&mut self, out: &mut Vec<Action>) {
        if self.term.take().is_some() {
            out.extend(self.context.brokers.keys().map(|id| Action::Disconnect(*id)));
            out.push(Action::Note(Note::Resigned));
        }
        self.context = ControllerContext::default();
        self.batch.clear();
        self.agenda.clear();
    }

    fn expire(&mut self, out: &mut Vec<Action>) {
        self.controller = BrokerId::NONE;
        self.wait = None;
        self.continuing = false;
        self.resign(out);
    }

    /// The event that was handled is lost. After "moved" the nodes tell whether we are still controller; a failover that
    /// did not come through ends in resignation.
    fn store_failed(&mut self, error: FencedError, out: &mut Vec<Action>) {
        self.agenda.clear();
        self.batch.clear();
        match error {
            FencedError::Moved => self.then(Stage::Look { elect: true }),
            FencedError::Store(error) => {
                out.push(Action::Note(Note::StoreFailed(error)));
                if !self.loaded {
                    self.resign(out);
                }
            }
        }
    }
}

/// Reads the children of a node and watches them.
pub(super) fn children(path: &str) -> Vec<Read> {
    vec![Read::Children { path: path.to_owned(), watch: true }]
}

/// Data and stat of a node that was found.
pub(super) fn data_of(found: Result<Found, StoreError>) -> Option<NodeData> {
    match found {
        Ok(Found::Data(data)) => Some(data),
        Ok(Found::Stat(_) | Found::Children(_)) | Err(_) => None,
    }
}

/// Children of a node that was found.
pub(super) fn children_of(found: Option<Result<Found, StoreError>>) -> Vec<String> {
    match found {
        Some(Ok(Found::Children(names))) => names,
        _ => Vec::new(),
    }
}

/// An error that ends the event: the controller has moved, or the store does not answer for this node alone.
fn fatal_error(reply: &StoreReply) -> Option<FencedError> {
    let of = |error: StoreError| match error {
        StoreError::ConnectionLoss
        | StoreError::SessionExpired
        | StoreError::Refused
        | StoreError::TooLarge
        | StoreError::Unwritable => Some(FencedError::Store(error)),
        StoreError::NoNode
        | StoreError::NodeExists
        | StoreError::BadVersion
        | StoreError::NotEmpty
        | StoreError::NoChildrenForEphemerals
        | StoreError::BadPath => None,
    };
    match reply {
        StoreReply::Read(found) => found.iter().find_map(|found| of(found.as_ref().err().copied()?)),
        StoreReply::Multi(done) => of(done.as_ref().err()?.error()),
        StoreReply::Fenced(done) => done.iter().find_map(|done| match done {
            Err(FencedError::Moved) => Some(FencedError::Moved),
            Err(FencedError::Store(error)) => of(*error),
            Ok(_) => None,
        }),
    }
}

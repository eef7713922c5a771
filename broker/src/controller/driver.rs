//! Runs the controller's machine on shard 0: watches and answers in, store calls and requests out. Brokers are
//! reached through [`BrokerLink`], which `replication::receiver` implements for this broker.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use futures_channel::mpsc;
use futures_util::StreamExt;
use futures_util::future::{Either, join_all, select};
use protocol::types::{BrokerId, TimestampMs};
use storage::io::Runtime;

use super::gauges::ControllerView;
use super::machine::{Action, Controller, Event, Found, Note, Now, Read, Settings, StoreCall, StoreReply};
use super::registration::register;
use super::requests::{ControlRequest, LiveBroker};
use crate::metrics::ShardMetrics;
use crate::store::znodes::BrokerNode;
use crate::store::{MetadataStore, StoreError, StoreEvent};

/// Where answers of brokers go: [`Event::Replied`].
pub type Replies = mpsc::UnboundedSender<Event>;

/// The way to the brokers: one FIFO queue per broker, one request in flight, resent until delivered or disconnected.
/// A queue holds what the controller decided since; it is bounded by the number of partitions times the number of their
/// changes while a broker does not answer, as in Kafka.
pub trait BrokerLink: 'static {
    /// Opens the queue to a broker; one that is open is replaced.
    fn connect(&self, broker: &LiveBroker);
    /// Closes the queue and drops what is in it.
    fn disconnect(&self, broker: BrokerId);
    /// Queues a request; its answer goes to `replies`.
    fn send(&self, to: BrokerId, request: ControlRequest, replies: &Replies);
}

/// Runs the controller of one broker.
pub struct Driver<R, S, L> {
    runtime: R,
    store: S,
    link: L,
    node: BrokerNode,
    /// Borrowed within a step only; others look at it between two.
    machine: Rc<RefCell<Controller>>,
    metrics: Rc<ShardMetrics>,
    id: BrokerId,
    /// One entry per request that was sent.
    replies: Replies,
    replied: mpsc::UnboundedReceiver<Event>,
    session: i64,
}

impl<R: Runtime, S: MetadataStore, L: BrokerLink> Driver<R, S, L> {
    /// A driver for a broker that is registered already in the session of `store`, with `node`. The store's handle is
    /// its own: nobody else reads its events.
    pub fn new(runtime: &R, store: S, link: L, settings: Settings, node: BrokerNode) -> Self {
        let (replies, replied) = mpsc::unbounded();
        let session = store.session().id;
        let machine = Rc::new(RefCell::new(Controller::new(settings)));
        Self {
            runtime: runtime.clone(),
            store,
            link,
            node,
            machine,
            metrics: Rc::default(),
            id: settings.id,
            replies,
            replied,
            session,
        }
    }

    /// Counts in the cells of this shard.
    #[must_use]
    pub fn counting(self, metrics: &Rc<ShardMetrics>) -> Self {
        Self { metrics: metrics.clone(), ..self }
    }

    /// The controller, to be looked at.
    pub fn view(&self) -> ControllerView {
        ControllerView::new(self.machine.clone())
    }

    /// Looks for a controller and becomes it if there is none: returns when the failover is through and its requests
    /// are queued. Called once, before [`Driver::run`]; clients shall not come before the brokers have answered.
    pub async fn elect(&mut self) {
        self.handle(Event::Startup).await;
    }

    /// Runs until the store's handle is closed. Dropping the future stops the controller in the middle of an event: the
    /// next one resumes from the store.
    pub async fn run(mut self) {
        loop {
            let next = {
                let watch = pin!(self.store.next_event());
                match select(watch, self.replied.next()).await {
                    Either::Left((event, _)) => Either::Left(event),
                    Either::Right((event, _)) => Either::Right(event),
                }
            };
            match next {
                Either::Left(None) | Either::Right(None) => return,
                Either::Left(Some(StoreEvent::Expired { .. })) => self.session_lost().await,
                Either::Left(Some(watch)) => {
                    if let Some(event) = Event::from_watch(&watch) {
                        self.handle(event).await;
                    }
                }
                Either::Right(Some(event)) => self.handle(event).await,
            }
        }
    }

    /// One event to its end: store calls are answered, and slices continued, before any other event.
    async fn handle(&mut self, event: Event) {
        // What Kafka times as a leader election.
        let began = matches!(event, Event::BrokerChange).then(|| self.runtime.now());
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let mut out = Vec::new();
            self.machine.borrow_mut().step(self.now(), event, &mut out);
            for action in out {
                match action {
                    Action::Store(call) => next = Some(Event::StoreDone(self.call(call).await)),
                    Action::Continue => {
                        self.runtime.turn().await;
                        next = Some(Event::Continue);
                    }
                    Action::Connect(broker) => self.link.connect(&broker),
                    Action::Disconnect(broker) => self.link.disconnect(broker),
                    Action::Send { to, request } => self.link.send(to, request, &self.replies),
                    Action::Note(note) => {
                        if let Note::UncleanElection(_) = note {
                            self.metrics.unclean_elections.inc();
                        }
                        log(&note);
                    }
                }
            }
        }
        if let Some(began) = began {
            self.metrics.leader_elections.record_nanos(self.runtime.now().nanos_since(began));
        }
    }

    fn now(&self) -> Now {
        let random = (u128::from(self.runtime.random()) << 64) | u128::from(self.runtime.random());
        Now { wall: TimestampMs::new(self.runtime.wall_ms()), random }
    }

    async fn call(&self, call: StoreCall) -> StoreReply {
        match call {
            StoreCall::Multi(ops) => StoreReply::Multi(self.store.multi(ops).await),
            StoreCall::Fenced { epoch_version, ops } => {
                StoreReply::Fenced(self.store.fenced(epoch_version, ops).await)
            }
            StoreCall::Read(reads) => {
                // Issued in order, awaited together: the order of the calls is the order of the effects.
                let pending: Vec<_> = reads.into_iter().map(|read| self.read(read)).collect();
                StoreReply::Read(join_all(pending).await)
            }
        }
    }

    fn read(&self, read: Read) -> impl Future<Output = Result<Found, StoreError>> + use<R, S, L> {
        enum Issued<A, B, C> {
            Get(A),
            Exists(B),
            Children(C),
        }
        let issued = match read {
            Read::Get { path, watch } => Issued::Get(self.store.get(&path, watch)),
            Read::Exists { path, watch } => Issued::Exists(self.store.exists(&path, watch)),
            Read::Children { path, watch } => Issued::Children(self.store.children(&path, watch)),
        };
        async move {
            match issued {
                Issued::Get(get) => get.await.map(Found::Data),
                Issued::Exists(exists) => exists.await.map(Found::Stat),
                Issued::Children(children) => children.await.map(|(names, _)| Found::Children(names)),
            }
        }
    }

    /// An ordinary state: forget, register anew, elect.
    async fn session_lost(&mut self) {
        while self.replied.try_recv().is_ok() {
            // Answers of the old term say nothing to the next one.
        }
        self.handle(Event::Expire).await;
        if let Err(error) = self.store.reopen().await {
            tracing::error!(%error, "no new session with the metadata store");
            return;
        }
        match register(&self.store, self.id, &self.node, Some(self.session)).await {
            Ok(broker_epoch) => {
                self.session = self.store.session().id;
                tracing::info!(broker_epoch = broker_epoch.get(), "registered again after a lost session");
                self.handle(Event::Reelect).await;
            }
            Err(error) => tracing::error!(%error, "the broker could not register again"),
        }
    }
}

fn log(note: &Note) {
    match note {
        Note::Elected(epoch) => {
            tracing::info!(controller_epoch = epoch.get(), "this broker is the controller")
        }
        Note::Resigned => tracing::info!("this broker is not the controller any more"),
        Note::Malformed(path) => {
            tracing::error!(path, "nobody can read this node; what it describes is left alone")
        }
        Note::NoLeader(partitions) => tracing::warn!(?partitions, "partitions have no leader"),
        Note::UncleanElection(partition) => {
            tracing::warn!(%partition, "a replica that was not in sync leads; records may be lost");
        }
        Note::NewerController(partition) => tracing::warn!(%partition, "a newer controller decided already"),
        Note::StoreFailed(error) => tracing::error!(%error, "the metadata store failed the controller"),
        Note::Deleted(topic) => tracing::info!(%topic, "topic is deleted"),
        Note::Refused { from, reply } => {
            tracing::error!(broker = from.get(), ?reply, "a broker refused a request")
        }
    }
}

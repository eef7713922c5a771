//! One broker with everything but sockets, and a client of it.

use std::cell::{OnceCell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use broker::admin::service::{self, AdminParts, AdminService};
use broker::config::broker::{BrokerConfig, Surroundings};
use broker::config::settings::Settings;
use broker::controller::driver::Driver;
use broker::controller::machine;
use broker::controller::registration::{cluster_id, ensure_skeleton, register};
use broker::coordinator::client::GroupClient;
use broker::coordinator::service::GroupService;
use broker::handlers::dispatch::Handlers;
use broker::handlers::patience::Patience;
use broker::handlers::{Account, Answer, ConnectionContext, Outcome, Request, RequestHandler};
use broker::metadata::cell::ImageCell;
use broker::metadata::image::Image;
use broker::metadata::publish::{MetadataService, Publisher};
use broker::partition::service::PartitionService;
use broker::replication::config_changes;
use broker::replication::receiver::{LocalBroker, LocalBrokerParts};
use broker::shard::ask::seats;
use broker::shard::memory::Charge;
use broker::shard::sim::SimShard;
use broker::shard::{Class, Shards};
use broker::store::MetadataStore;
use broker::store::sim::{SimDisk as SimTree, SimStore};
use broker::store::znodes::{BrokerEndpoint, BrokerNode};
use bytes::BytesMut;
use imbl::OrdMap;
use protocol::api::ApiKey;
use protocol::codec::Writer;
use protocol::messages::*;
use protocol::types::*;
use storage::io::sim::{SimDisk, SimRuntime};
use storage::io::{Queue, Runtime};

use crate::wiring::{self, CORRELATION_ID, Parts, Places};
pub use crate::wiring::{ME, read};

/// What survives a process.
#[derive(Clone, Default)]
pub struct Disks {
    pub logs: SimDisk,
    pub tree: SimTree,
}

/// A running broker.
pub struct Broker {
    pub world: SimRuntime,
    pub cells: Vec<ImageCell>,
    pub disks: Disks,
    handlers: Vec<Handlers<SimShard>>,
    pub groups: Vec<GroupClient<SimShard>>,
    shards: Vec<SimShard>,
    forgotten: RefCell<Vec<<SimShard as Runtime>::Task>>,
    _receivers: Vec<Shards<SimShard, MetadataService>>,
    pub local: LocalBroker<SimShard>,
    _tasks: Vec<<SimShard as Runtime>::Task>,
}

fn node() -> BrokerNode {
    let endpoint = |listener: &str, port| BrokerEndpoint {
        listener: listener.to_owned(),
        host: format!("{}.example", listener.to_lowercase()),
        port,
        security_protocol: "PLAINTEXT".to_owned(),
    };
    BrokerNode::new(&[endpoint("PLAINTEXT", 9092), endpoint("INSIDE", 9093)], Some("r1"), 0)
}

fn first_image(id: &str) -> Image {
    Image {
        version: 0,
        cluster_id: id.into(),
        self_id: ME,
        controller: BrokerId::NONE,
        brokers: OrdMap::new(),
        topics: OrdMap::new(),
        names: OrdMap::new(),
    }
}

/// Registers the broker: the cluster's id and the broker's epoch.
fn boot(world: &SimRuntime, store: &SimStore) -> (String, BrokerEpoch) {
    let store = store.clone();
    world.block_on(async move {
        ensure_skeleton(&store).await.unwrap();
        let id = cluster_id(&store, "pT3rW0o2Rf-8cV6eHq1b9Q").await.unwrap();
        (id, register(&store, ME, &node(), None).await.unwrap())
    })
}

type ControlParts = LocalBrokerParts<SimShard, SimStore, PartitionService<SimShard>>;

/// Starts what only shard 0 runs: the controller and the follower of configuration changes.
fn control_on(
    shard: &SimShard,
    parts: ControlParts,
    config: &BrokerConfig,
    tasks: &mut Vec<<SimShard as Runtime>::Task>,
) -> LocalBroker<SimShard> {
    let store = parts.store.clone();
    let local = LocalBroker::start(shard, parts);
    let settings = machine::Settings {
        id: ME,
        delete_topic_enable: config.topics.delete_topic_enable,
        unclean_leader_election_enable: false,
    };
    let mut driver = Driver::new(shard, store.fork(), local.link(ME), settings, node());
    let waiting = local.clone();
    let driver = shard.world().block_on(async move {
        driver.elect().await;
        waiting.settled().await;
        driver
    });
    tasks.push(shard.spawn(Queue::Control, driver.run()));
    let (clock, told) = (shard.clone(), local.clone());
    let follow = config_changes::follow(
        store.fork(),
        move || clock.wall_ms(),
        move |topic| {
            told.topic_config_changed(topic);
        },
    );
    tasks.push(shard.spawn(Queue::Control, follow));
    local
}

impl Broker {
    pub fn new(shards: u16) -> Self {
        Self::start(shards, Disks::default(), |_| {})
    }

    pub fn tuned(tune: impl Fn(&mut BrokerConfig)) -> Self {
        Self::start(2, Disks::default(), tune)
    }

    pub fn start(count: u16, disks: Disks, tune: impl Fn(&mut BrokerConfig)) -> Self {
        let world = SimRuntime::new(u64::from(count));
        let shards = SimShard::process_in(&world, disks.logs.clone(), count);
        let around = Surroundings { local_host: "localhost".into(), default_log_dir: "/data".into() };
        let mut config = BrokerConfig::new(Settings::default(), &around).unwrap();
        tune(&mut config);
        let config = Rc::new(config);
        let clock = world.clone();
        let store = disks.tree.start(move || clock.wall_ms());
        let (id, broker_epoch) = boot(&world, &store);
        let cells: Vec<_> = shards.iter().map(|_| ImageCell::new(Arc::new(first_image(&id)))).collect();
        let places = Places::of(count).into_iter().zip(seats(count, Class::Control, 64));
        let (mut handlers, mut groups, mut receivers, mut tasks, mut control) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), None);
        for ((shard, cell), (places, image_seat)) in shards.iter().zip(&cells).zip(places) {
            // The coordinators come behind what tells them.
            let coordinators: Rc<OnceCell<GroupService<SimShard>>> = Rc::default();
            let told = coordinators.clone();
            let on_replaced = Rc::new(move |before: &Image, now: &Image| {
                if let Some(coordinators) = told.get() {
                    coordinators.image_replaced(before, now);
                }
            });
            let images = Shards::new(shard, MetadataService::telling(cell.clone(), on_replaced), image_seat);
            // Keeps receiving images on each shard.
            receivers.push(images.clone());
            let publisher = Publisher::new(shard, images, cell.clone());
            let admin = if control.is_none() {
                let (store, publisher, config) = (store.clone(), publisher.clone(), config.clone());
                let (admin, task) = service::start(shard, AdminParts { store, publisher, config, id: ME });
                tasks.push(task);
                admin
            } else {
                AdminService::elsewhere()
            };
            let parts = Parts {
                image: cell.clone(),
                homes: wiring::homes(vec![wiring::home(Path::new("/data"))], &wiring::table("/data")),
                admin,
                config: config.clone(),
                sessions_max: 1000,
                floor_bytes: 0,
                metrics: Rc::default(),
            };
            let (_, partitions, served, asked) = wiring::wire(shard, places, parts);
            assert!(coordinators.set(asked.local().clone()).is_ok());
            groups.push(asked);
            control.get_or_insert((publisher, partitions));
            handlers.push(served);
        }
        let (publisher, owners) = control.unwrap();
        let parts = LocalBrokerParts {
            store,
            partitions: owners,
            publisher,
            config: config.clone(),
            id: ME,
            broker_epoch,
            on_deleted: Box::new(|_| Box::pin(std::future::ready(()))),
        };
        let local = control_on(&shards[0], parts, &config, &mut tasks);
        Self {
            world,
            cells,
            disks,
            handlers,
            groups,
            shards,
            forgotten: RefCell::default(),
            _receivers: receivers,
            local,
            _tasks: tasks,
        }
    }

    /// Kills the process; what is left is what its disks hold.
    pub fn kill(self) -> Disks {
        self.world.kill();
        Disks { logs: self.disks.logs.crash(storage::io::sim::Crash::KeepAll), tree: self.disks.tree }
    }

    pub fn image(&self) -> Arc<Image> {
        self.cells[0].current()
    }

    fn request(
        &self,
        shard: usize,
        listener: &str,
        (api_key, api_version): (i16, i16),
        body: BytesMut,
    ) -> Request {
        let context = ConnectionContext {
            listener: listener.into(),
            peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 5000)),
            id: 1,
            account: Account::default(),
            patience: Patience::default(),
        };
        Request {
            api_key,
            api_version,
            correlation_id: CORRELATION_ID,
            client_id: "test".into(),
            memory: body.capacity(),
            body,
            charge: Charge::none(),
            received: self.shards[shard].now(),
            connection: Rc::new(context),
        }
    }

    fn handle(&self, shard: usize, request: Request) -> impl Future<Output = Answer> + use<> {
        let handlers = self.handlers[shard].clone();
        async move {
            match handlers.handle(request).await {
                Outcome::Done(answer) => answer,
                Outcome::Accepted(accepted) => accepted.await,
            }
        }
    }

    pub fn send_on<'a, M: Message<'a>>(
        &self,
        shard: usize,
        listener: &str,
        version: i16,
        message: &M,
    ) -> Answer {
        let mut writer = Writer::new();
        message.encode(&mut writer, version);
        let request = self.request(shard, listener, (M::KEY.get(), version), writer.into_bytes());
        self.world.block_on(self.handle(shard, request))
    }

    /// ApiVersions in a version that nobody knows.
    pub fn send_unknown_version(&self, body: BytesMut, version: i16) -> Answer {
        let request = self.request(0, "PLAINTEXT", (ApiKey::ApiVersions.get(), version), body);
        self.world.block_on(self.handle(0, request))
    }

    /// Sends a CreateTopics whose answer may never come.
    pub fn send_and_forget(&self, message: &CreateTopicsRequest<'_>) {
        let mut writer = Writer::new();
        message.encode(&mut writer, 7);
        let request = self.request(0, "PLAINTEXT", (ApiKey::CreateTopics.get(), 7), writer.into_bytes());
        let handled = self.handle(0, request);
        self.forgotten.borrow_mut().push(self.shards[0].spawn(Queue::Request, async move {
            drop(handled.await);
        }));
    }

    /// Sends a request of a client with this patience on the last shard; the answer, once it is there.
    pub fn send_patiently<'a, M: Message<'a>>(
        &self,
        patience: &Patience,
        version: i16,
        message: &M,
    ) -> Rc<RefCell<Option<Answer>>> {
        let mut writer = Writer::new();
        message.encode(&mut writer, version);
        let shard = self.shards.len() - 1;
        let mut request = self.request(shard, "PLAINTEXT", (M::KEY.get(), version), writer.into_bytes());
        let context = ConnectionContext { patience: patience.clone(), ..(*request.connection).clone() };
        request.connection = Rc::new(context);
        let handled = self.handle(shard, request);
        let answer = Rc::new(RefCell::new(None));
        let told = answer.clone();
        self.forgotten.borrow_mut().push(self.shards[shard].spawn(Queue::Request, async move {
            let answer = handled.await;
            told.replace(Some(answer));
        }));
        answer
    }

    /// Runs a future in a world of its own.
    pub fn wait<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
        SimRuntime::new(1).block_on(future)
    }

    /// Sends a request on the last shard, which is not the controller's unless there is only one.
    pub fn call<'a, M: Message<'a>, A: Message<'static>>(&self, version: i16, message: &M) -> A {
        read(version, self.send_on(self.shards.len() - 1, "PLAINTEXT", version, message))
    }

    pub fn create(&self, name: &'static str, partitions: i32) -> CreatableTopicResult<'static> {
        let answer: CreateTopicsResponse<'static> =
            self.call(7, &create_request(vec![topic(name, partitions, 1)]));
        answer.topics.into_iter().next().unwrap()
    }

    pub fn metadata(&self, version: i16, names: Option<&[&'static str]>) -> MetadataResponse<'static> {
        self.call(version, &metadata_request(names, true))
    }
}

pub fn topic(name: &'static str, num_partitions: i32, replication_factor: i16) -> CreatableTopic<'static> {
    let (assignments, configs) = (Vec::new(), Vec::new());
    CreatableTopic { name: name.into(), num_partitions, replication_factor, assignments, configs }
}

pub fn create_request(topics: Vec<CreatableTopic<'static>>) -> CreateTopicsRequest<'static> {
    CreateTopicsRequest { topics, timeout_ms: 10_000, validate_only: false }
}

pub fn metadata_request(names: Option<&[&'static str]>, create: bool) -> MetadataRequest<'static> {
    let named =
        |name: &&'static str| MetadataRequestTopic { topic_id: TopicId::ZERO, name: Some((*name).into()) };
    MetadataRequest {
        topics: names.map(|names| names.iter().map(named).collect()),
        allow_auto_topic_creation: create,
        include_cluster_authorized_operations: false,
        include_topic_authorized_operations: false,
    }
}

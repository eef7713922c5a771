//! The broker under test, and a client of it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use broker::admin::service::AdminService;
use broker::config::broker::{BrokerConfig, Surroundings};
use broker::config::settings::{Place, Settings};
use broker::config::topic::TopicConfig;
use broker::coordinator::client::GroupClient;
use broker::handlers::dispatch::{Accepted, Handlers};
use broker::handlers::patience::Patience;
use broker::handlers::{Account, Answer, ConnectionContext, Outcome, Request, RequestHandler};
use broker::metadata::cell::ImageCell;
use broker::metadata::image::{BrokerImage, Endpoint, Image, PartitionImage, TopicImage};
use broker::metrics::ShardMetrics;
use broker::metrics::names::Family;
use broker::metrics::snapshot::{ShardSnapshot, Value};
use broker::partition::ask::{
    Become, BecomeError, Closed, PartitionAnswer, PartitionAsk, Sample, SetConfig, StopPartition,
};
use broker::partition::cleaner::CleanerRounds;
use broker::partition::lifecycle::{Checkpoints, LogHome, LogHomes};
use broker::partition::log_dirs::table::LogDirTable;
use broker::partition::service::PartitionService;
use broker::shard::ask::Pending;
use broker::shard::memory::Charge;
use broker::shard::sim::SimShard;
use broker::shard::{NEVER, ShardId, Shards};
use bytes::BytesMut;
use imbl::OrdMap;
use protocol::codec::Writer;
use protocol::messages::fetch::FetchPartition;
use protocol::messages::*;
use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::builder::BatchBuilder;
use protocol::records::record::RecordIter;
use protocol::types::*;
use storage::io::Runtime;
use storage::io::sim::{SimDisk, SimRuntime};
use storage::lock::DirLock;
use storage::log::TailBudget;

use crate::wiring::{self, CORRELATION_ID, Parts, Places};
pub use crate::wiring::{ME, read};

pub const OTHER: BrokerId = BrokerId::new(2);

type Owners = Shards<SimShard, PartitionService<SimShard>>;

/// One broker.
pub struct Broker {
    pub shards: Vec<SimShard>,
    pub owners: Vec<Owners>,
    pub cells: Vec<ImageCell>,
    pub handlers: Vec<Handlers<SimShard>>,
    pub tails: Vec<Rc<TailBudget>>,
    pub services: Vec<PartitionService<SimShard>>,
    pub table: LogDirTable,
    pub groups: Vec<GroupClient<SimShard>>,
    pub metrics: Vec<Rc<ShardMetrics>>,
}

/// How a broker starts.
pub struct Start {
    pub disk: SimDisk,
    pub checkpoints: Checkpoints,
    pub clean: bool,
    pub lock: Option<Arc<DirLock>>,
    /// Targets of moves into `/data` that were cut short.
    pub futures: Arc<BTreeMap<TopicPartition, PathBuf>>,
    /// Log dirs beside `/data`.
    pub others: Vec<LogHome>,
    /// Log dirs that cannot be used.
    pub absent: Vec<Arc<Path>>,
    pub sessions_max: usize,
    pub floor_bytes: u64,
    pub settings: &'static [(&'static str, &'static str)],
}

impl Default for Start {
    fn default() -> Self {
        Self {
            disk: SimDisk::new(),
            checkpoints: Checkpoints::default(),
            clean: false,
            lock: None,
            futures: Arc::default(),
            others: Vec::new(),
            absent: Vec::new(),
            sessions_max: 1000,
            floor_bytes: 0,
            settings: &[],
        }
    }
}

pub fn broker_config() -> BrokerConfig {
    configured(&[])
}

/// The configuration with these keys.
pub fn configured(keys: &[(&str, &str)]) -> BrokerConfig {
    let surroundings = Surroundings { local_host: "localhost".to_owned(), default_log_dir: "/data".into() };
    let mut settings = Settings::default();
    for (key, text) in keys {
        settings.set(key, text, Place::Override);
    }
    BrokerConfig::new(settings, &surroundings).unwrap()
}

impl Broker {
    pub fn new(shards: u16) -> Self {
        Self::start(7, shards, Start::default())
    }

    pub fn start(seed: u64, count: u16, start: Start) -> Self {
        let world = SimRuntime::new(seed);
        let shards = SimShard::process_in(&world, start.disk, count);
        let cells: Vec<_> = shards.iter().map(|_| ImageCell::new(Arc::new(image()))).collect();
        let cleaner_rounds = CleanerRounds::default();
        let first = LogHome {
            clean: start.clean,
            lock: start.lock.clone(),
            checkpoints: Arc::new(start.checkpoints),
            futures: start.futures,
            ..wiring::home(Path::new("/data"))
        };
        let homes: Vec<_> = std::iter::once(first).chain(start.others).collect();
        let absent = start.absent.iter().cloned();
        let table = LogDirTable::new(homes.iter().map(|home| home.dir.clone()).chain(absent));
        start.absent.iter().for_each(|dir| table.set_offline(dir));
        let (mut owners, mut handlers) = (Vec::new(), Vec::new());
        let (mut tails, mut services, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        let mut metrics = Vec::<Rc<ShardMetrics>>::new();
        for ((shard, cell), places) in shards.iter().zip(&cells).zip(Places::of(count)) {
            let parts = Parts {
                image: cell.clone(),
                homes: LogHomes {
                    cleaner_rounds: cleaner_rounds.clone(),
                    ..wiring::homes(homes.clone(), &table)
                },
                admin: AdminService::elsewhere(),
                config: Rc::new(configured(start.settings)),
                sessions_max: start.sessions_max,
                floor_bytes: start.floor_bytes,
                metrics: Rc::default(),
            };
            metrics.push(parts.metrics.clone());
            tails.push(parts.homes.tail.clone());
            let (service, partitions, served, coordinators) = wiring::wire(shard, places, parts);
            groups.push(coordinators);
            services.push(service);
            owners.push(partitions);
            handlers.push(served);
        }
        Self { shards, owners, cells, handlers, tails, services, table, groups, metrics }
    }

    pub fn world(&self) -> &SimRuntime {
        self.shards[0].world()
    }

    pub fn now_ms(&self) -> i64 {
        self.world().wall_ms()
    }

    /// What all shards have counted under a name, over all topics.
    pub fn counted(&self, family: Family) -> i64 {
        let mut told = ShardSnapshot::default();
        self.metrics.iter().for_each(|metrics| metrics.tell(0, &mut told));
        let mut samples = told.samples.iter().filter(|sample| sample.family == family);
        samples
            .try_fold(0, |sum, sample| match sample.value {
                Value::Whole(count) if sample.labels.is_empty() => Some(sum + count),
                _ => None,
            })
            .unwrap()
    }

    /// Runs `future` in the world.
    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world().block_on(future)
    }

    /// Creates a topic led by this broker, its partitions on shards in turn.
    pub fn create(&self, name: &str, partitions: i32, overrides: &[(&str, &str)]) {
        self.create_as(name, TopicId::new(id_of(name)), partitions, overrides);
    }

    pub fn create_as(&self, name: &str, id: TopicId, partitions: i32, overrides: &[(&str, &str)]) {
        let topic = topic(name, id, (partitions, self.shards.len()), overrides);
        for partition in 0..partitions {
            self.lead(&topic, partition, 0);
        }
        self.publish(topic);
    }

    /// Makes this broker lead a partition in an epoch.
    pub fn lead(&self, topic: &TopicImage, partition: i32, leader_epoch: i32) {
        self.become_(topic, partition, leader_epoch, ME);
    }

    pub fn become_(&self, topic: &TopicImage, partition: i32, leader_epoch: i32, leader: BrokerId) {
        assert_eq!(self.try_become(topic, partition, leader_epoch, (leader, true)), Ok(()));
    }

    /// Gives a partition a role; also whether the controller calls it new.
    pub fn try_become(
        &self,
        topic: &TopicImage,
        partition: i32,
        leader_epoch: i32,
        (leader, is_new): (BrokerId, bool),
    ) -> Result<(), BecomeError> {
        let ask = Become {
            topic: topic.name.clone(),
            topic_id: topic.id,
            partition,
            leader,
            leader_epoch: LeaderEpoch::new(leader_epoch),
            partition_epoch: PartitionEpoch::new(leader_epoch),
            replicas: vec![leader],
            isr: vec![leader],
            is_new,
            config: topic.config.clone(),
        };
        let owner = topic.partitions[usize::try_from(partition).unwrap()].owner.unwrap();
        match self.ask(owner, PartitionAsk::Become(vec![ask])) {
            PartitionAnswer::Became(mut results) => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub fn publish(&self, topic: TopicImage) {
        for cell in &self.cells {
            let mut image = (*cell.current()).clone();
            image.version += 1;
            image.names.insert(topic.id, topic.name.clone());
            image.topics.insert(topic.name.clone(), Arc::new(topic.clone()));
            cell.replace(Arc::new(image));
        }
    }

    pub fn topic(&self, name: &str) -> TopicImage {
        (**self.cells[0].current().topic(name).unwrap()).clone()
    }

    /// Deletes a topic: from the metadata, then from the disk.
    pub fn delete(&self, name: &str) {
        let topic = self.topic(name);
        for cell in &self.cells {
            let mut image = (*cell.current()).clone();
            image.names.remove(&topic.id);
            image.topics.remove(&topic.name);
            cell.replace(Arc::new(image));
        }
        for (index, partition) in topic.partitions.iter().enumerate() {
            let stop = StopPartition {
                topic: topic.name.clone(),
                topic_id: topic.id,
                partition: i32::try_from(index).unwrap(),
                leader_epoch: None,
                delete: true,
            };
            match self.ask(partition.owner.unwrap(), PartitionAsk::Stop(vec![stop])) {
                PartitionAnswer::Stopped(results) => assert_eq!(results, vec![Ok(())]),
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn set_config(&self, name: &str, overrides: &[(&str, &str)]) {
        let mut changed = self.topic(name);
        changed.config = Arc::new(config(overrides));
        for shard in 0..self.shards.len() {
            let set = SetConfig { topic_id: changed.id, config: changed.config.clone() };
            self.ask(ShardId::new(u16::try_from(shard).unwrap()), PartitionAsk::SetConfig(set));
        }
        self.publish(changed);
    }

    pub fn ask(&self, owner: ShardId, ask: PartitionAsk) -> PartitionAnswer {
        let owners = self.owners[0].clone();
        self.run(async move { owners.ask(owner, NEVER, ask).await.unwrap() })
    }

    /// Asks without waiting for the answer.
    pub fn begin(&self, owner: ShardId, ask: PartitionAsk) -> Pending<PartitionAnswer> {
        let owners = self.owners[0].clone();
        self.run(async move { owners.reserve(owner, NEVER).await.unwrap() }).send(ask)
    }

    /// What all shards would write into the checkpoint files.
    pub fn samples(&self) -> Vec<Sample> {
        let shards = (0..self.shards.len()).map(|shard| ShardId::new(u16::try_from(shard).unwrap()));
        let sample = |shard| match self.ask(shard, PartitionAsk::Sample) {
            PartitionAnswer::Samples(samples) => samples,
            other => panic!("{other:?}"),
        };
        shards.flat_map(sample).collect()
    }

    /// Closes all logs, shard after shard.
    pub fn close(&self) -> Vec<Closed> {
        let shards = (0..self.shards.len()).map(|shard| ShardId::new(u16::try_from(shard).unwrap()));
        let close = |shard| match self.ask(shard, PartitionAsk::Close) {
            PartitionAnswer::Closed(closed) => closed,
            other => panic!("{other:?}"),
        };
        shards.map(close).collect()
    }

    /// A client on shard 0.
    pub fn client(&self) -> Client {
        self.client_on(0, "test")
    }

    pub fn client_on(&self, shard: usize, client_id: &str) -> Client {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 5000));
        let context = ConnectionContext {
            listener: "PLAINTEXT".into(),
            peer,
            id: 1,
            account: Account::default(),
            patience: Patience::default(),
        };
        Client {
            world: self.world().clone(),
            shard: self.shards[shard].clone(),
            handlers: self.handlers[shard].clone(),
            context: Rc::new(context),
            client_id: client_id.into(),
        }
    }
}

pub fn id_of(name: &str) -> [u8; 16] {
    let mut id = [9; 16];
    for (slot, byte) in id.iter_mut().zip(name.bytes()) {
        *slot = byte;
    }
    id
}

pub fn config(overrides: &[(&str, &str)]) -> TopicConfig {
    let overrides: BTreeMap<_, _> = overrides.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    TopicConfig::effective(&overrides, &broker_config())
}

pub fn topic(
    name: &str,
    id: TopicId,
    (partitions, shards): (i32, usize),
    overrides: &[(&str, &str)],
) -> TopicImage {
    let partition = |index: i32| PartitionImage {
        leader: ME,
        leader_epoch: LeaderEpoch::new(0),
        partition_epoch: PartitionEpoch::new(0),
        replicas: vec![ME],
        isr: vec![ME],
        offline: Vec::new(),
        owner: Some(ShardId::new(u16::try_from(usize::try_from(index).unwrap() % shards).unwrap())),
    };
    TopicImage {
        name: TopicName::new(name),
        id,
        partitions: (0..partitions).map(partition).collect(),
        overrides: Arc::default(),
        config: Arc::new(config(overrides)),
    }
}

pub fn image() -> Image {
    let broker = |id: BrokerId| {
        let port = 9000 + u16::try_from(id.get()).unwrap();
        let endpoint = Endpoint { listener: "PLAINTEXT".into(), host: "127.0.0.1".into(), port };
        let image = BrokerImage { id, epoch: BrokerEpoch::new(1), rack: None, endpoints: vec![endpoint] };
        (id, Arc::new(image))
    };
    Image {
        version: 0,
        cluster_id: "cluster".into(),
        self_id: ME,
        controller: ME,
        brokers: [broker(ME), broker(OTHER)].into_iter().collect(),
        topics: OrdMap::new(),
        names: OrdMap::new(),
    }
}

/// A client with one connection.
#[derive(Clone)]
pub struct Client {
    pub world: SimRuntime,
    shard: SimShard,
    handlers: Handlers<SimShard>,
    context: Rc<ConnectionContext>,
    client_id: Arc<str>,
}

impl Client {
    pub fn request<'a, M: Message<'a>>(&self, version: i16, message: &M) -> Request {
        let mut writer = Writer::new();
        message.encode(&mut writer, version);
        Request {
            api_key: M::KEY.get(),
            api_version: version,
            correlation_id: CORRELATION_ID,
            client_id: self.client_id.clone(),
            memory: writer.len(),
            body: writer.into_bytes(),
            charge: Charge::none(),
            received: self.shard.now(),
            connection: self.context.clone(),
        }
    }

    /// Hands a request in; done when it is accepted.
    pub fn accept(&self, request: Request) -> Outcome<Accepted> {
        let handlers = self.handlers.clone();
        self.world.block_on(async move { handlers.handle(request).await })
    }

    pub fn finish(&self, outcome: Outcome<Accepted>) -> Answer {
        match outcome {
            Outcome::Done(answer) => answer,
            Outcome::Accepted(accepted) => self.world.block_on(accepted),
        }
    }

    pub fn send<'a, M: Message<'a>>(&self, version: i16, message: &M) -> Answer {
        let outcome = self.accept(self.request(version, message));
        self.finish(outcome)
    }

    /// Sends a request and reads its answer.
    pub fn call<'a, M: Message<'a>, A: Message<'static>>(&self, version: i16, message: &M) -> A {
        read(version, self.send(version, message))
    }

    pub fn produce(&self, version: i16, acks: i16, parts: Vec<(&str, i32, BytesMut)>) -> Vec<Part> {
        let answer: ProduceResponse<'static> = self.call(version, &produce_request(acks, &parts));
        answer.responses.into_iter().flat_map(|topic| topic.partition_responses).collect()
    }

    pub fn produce_one(&self, topic: &str, partition: i32, batch: BytesMut) -> Part {
        self.produce(9, -1, vec![(topic, partition, batch)]).remove(0)
    }

    pub fn fetch(&self, version: i16, request: &FetchRequest<'_>) -> FetchResponse<'static> {
        self.call(version, request)
    }

    /// One partition, without session and without waiting.
    pub fn fetch_one(&self, topic: &str, partition: i32, offset: i64) -> PartitionData<'static> {
        let mut answer = self.fetch(11, &fetch_request(&[(topic, partition, offset)]));
        answer.responses.remove(0).partitions.remove(0)
    }
}

type Part = PartitionProduceResponse<'static>;

pub fn produce_request(acks: i16, parts: &[(&str, i32, BytesMut)]) -> ProduceRequest<'static> {
    let mut topic_data: Vec<TopicProduceData<'static>> = Vec::new();
    for (topic, index, batch) in parts {
        let records: &'static [u8] = batch.to_vec().leak();
        let data = PartitionProduceData { index: *index, records: Some(Records::new(records)) };
        match topic_data.iter_mut().find(|data| data.name == *topic) {
            Some(known) => known.partition_data.push(data),
            None => topic_data
                .push(TopicProduceData { name: topic.to_string().into(), partition_data: vec![data] }),
        }
    }
    ProduceRequest { transactional_id: None, acks, timeout_ms: 30_000, topic_data }
}

/// A fetch that does not wait and has no session.
pub fn fetch_request(parts: &[(&str, i32, i64)]) -> FetchRequest<'static> {
    let mut topics = FetchTopics::default();
    for (topic, partition, fetch_offset) in parts {
        topics.push(topic.to_string(), TopicId::ZERO, [part(*partition, *fetch_offset)]);
    }
    FetchRequest {
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_id: 0,
        session_epoch: -1,
        topics,
        ..FetchRequest::default()
    }
}

pub fn part(partition: i32, fetch_offset: i64) -> FetchPartition {
    FetchPartition { partition, fetch_offset, partition_max_bytes: 1 << 20, ..FetchPartition::default() }
}

/// A batch with these values, time-stamped `at`.
pub fn batch_at(at: i64, values: &[&[u8]]) -> BytesMut {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.push(TimestampMs::new(at), Some(b"key"), Some(value), &[]);
    }
    builder.build().unwrap()
}

pub fn batch(values: &[&[u8]]) -> BytesMut {
    batch_at(1_700_000_000_000, values)
}

pub fn idempotent(producer: i64, epoch: i16, sequence: i32, records: usize) -> BytesMut {
    let mut builder =
        BatchBuilder::new().producer(ProducerId::new(producer), ProducerEpoch::new(epoch), sequence);
    for _ in 0..records {
        builder.push(TimestampMs::new(1_700_000_000_000), None, Some(b"v"), &[]);
    }
    builder.build().unwrap()
}

/// The batches of fetched records.
pub fn batches(data: &PartitionData<'static>) -> Vec<BatchView<'static>> {
    let FetchedRecords::Bytes(bytes) = &data.records else { panic!("decoded records are bytes") };
    let bytes: &'static [u8] = bytes.to_vec().leak();
    BatchIter::new(bytes).map(Result::unwrap).collect()
}

pub fn values(data: &PartitionData<'static>) -> Vec<Vec<u8>> {
    let of = |view: BatchView<'static>| {
        let records = RecordIter::new(view.payload());
        records.map(|record| record.unwrap().value.unwrap().to_vec()).collect::<Vec<_>>()
    };
    batches(data).into_iter().flat_map(of).collect()
}

pub const SHARDS: [u16; 3] = [1, 2, 5];

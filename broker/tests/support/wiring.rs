//! The handlers of one shard over its partitions, wired as the broker's start does it but without sockets, and how to
//! read what they answer. Over any runtime: the suites on simulated shards and the one on real files share it.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use broker::admin::service::AdminService;
use broker::config::broker::BrokerConfig;
use broker::coordinator::client::{CountPartitions, GroupClient};
use broker::coordinator::service::GroupService;
use broker::coordinator::settings::GroupServiceSettings;
use broker::fetch_session::cache::SessionLimits;
use broker::handlers::Answer;
use broker::handlers::dispatch::{HandlerSettings, Handlers, Wiring};
use broker::handlers::fetch::{FetchForward, FetchState};
use broker::handlers::find_coordinator::count_partitions;
use broker::handlers::init_producer_id::ProducerIds;
use broker::metadata::cell::ImageCell;
use broker::metrics::ShardMetrics;
use broker::partition::cleaner::{CleanerRounds, CleanerSettings};
use broker::partition::lifecycle::{Checkpoints, LogHome, LogHomes};
use broker::partition::log_dirs::table::LogDirTable;
use broker::partition::service::{PartitionService, PartitionSettings};
use broker::shard::ask::{Seat, seats};
use broker::shard::{Class, ShardRuntime, Shards};
use protocol::api::decode_response_header;
use protocol::codec::Cursor;
use protocol::messages::Message;
use protocol::types::{BrokerId, CONSUMER_OFFSETS};
use storage::io::Span;
use storage::log::{CompactionLimits, TailBudget};

/// The broker under test.
pub const ME: BrokerId = BrokerId::new(1);

/// Correlation id of every request.
pub const CORRELATION_ID: i32 = 77;

/// Unanswered asks from one shard to another.
const IN_FLIGHT: usize = 64;

/// A shard's places in the meshes.
pub struct Places<R: ShardRuntime> {
    partitions: Seat<R, PartitionService<R>>,
    groups: Seat<R, GroupService<R>>,
    forwards: Seat<R, FetchForward<R>>,
    admin: Seat<R, AdminService>,
}

impl<R: ShardRuntime> Places<R> {
    /// One set per shard.
    pub fn of(shards: u16) -> Vec<Self> {
        let partitions = seats(shards, Class::Client, IN_FLIGHT).into_iter();
        let groups = seats(shards, Class::Client, IN_FLIGHT);
        let forwards = seats(shards, Class::Client, IN_FLIGHT);
        let admin = seats(shards, Class::Control, IN_FLIGHT);
        let sets = partitions.zip(groups).zip(forwards.into_iter().zip(admin));
        sets.map(|((partitions, groups), (forwards, admin))| Self { partitions, groups, forwards, admin })
            .collect()
    }
}

/// What a shard works with.
pub struct Parts {
    pub image: ImageCell,
    pub homes: LogHomes,
    pub admin: AdminService,
    pub config: Rc<BrokerConfig>,
    pub sessions_max: usize,
    /// `storage.free.space.floor.bytes`.
    pub floor_bytes: u64,
    pub metrics: Rc<ShardMetrics>,
}

/// The partitions of this shard, those of all by owner, the handlers over them, and the coordinators of groups.
pub type Wired<R> = (PartitionService<R>, Shards<R, PartitionService<R>>, Handlers<R>, GroupClient<R>);

pub fn wire<R: ShardRuntime>(runtime: &R, places: Places<R>, parts: Parts) -> Wired<R> {
    let Parts { image, homes, admin, config, sessions_max, floor_bytes, metrics } = parts;
    let log_dirs = homes.table.clone();
    let service = PartitionService::new(runtime, partition_settings(floor_bytes), homes, metrics.clone());
    let partitions = Shards::new(runtime, service.clone(), places.partitions);
    let forward = FetchForward::new(runtime);
    let forwards = Shards::new(runtime, forward.clone(), places.forwards);
    let admin = Shards::new(runtime, admin, places.admin);
    let groups_bytes = config.groups.memory_bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let settings = GroupServiceSettings::new(&config.groups, groups_bytes.unwrap_or(usize::MAX));
    let coordinators = GroupService::new(runtime, image.clone(), partitions.clone(), settings);
    let coordinators = Shards::new(runtime, coordinators, places.groups);
    let count = count(count_partitions(runtime, &admin), image.clone());
    let groups = GroupClient::new(runtime, image.clone(), coordinators, count);
    let wiring = Rc::new(Wiring {
        runtime: runtime.clone(),
        image,
        partitions: partitions.clone(),
        admin,
        groups: groups.clone(),
        producer_ids: ProducerIds::default(),
        config,
        settings: HandlerSettings { fetch_bytes_max: 57_671_680, log_dirs },
        fetch: FetchState::new(
            runtime,
            SessionLimits { slots_max: sessions_max, bytes_max: usize::MAX },
            forwards,
        ),
        metrics,
    });
    forward.attach(&wiring);
    (service, partitions, Handlers::new(wiring), groups)
}

thread_local! {
    /// How often the shards of this thread have asked for the number of partitions of `__consumer_offsets`.
    pub static COUNTED: Cell<usize> = const { Cell::new(0) };
    /// Whether they are told it.
    pub static IS_COUNTED: Cell<bool> = const { Cell::new(true) };
}

/// What the metadata store says; where there is none, what the image does.
fn count(asked: CountPartitions, image: ImageCell) -> CountPartitions {
    Rc::new(move || {
        COUNTED.set(COUNTED.get() + 1);
        let (asked, image) = (asked(), image.clone());
        Box::pin(async move {
            let shown = |image: &ImageCell| {
                let topic = image.current().topic(CONSUMER_OFFSETS)?.clone();
                Some((topic.id, i32::try_from(topic.partitions.len()).unwrap()))
            };
            let counted = asked.await.or_else(|| shown(&image));
            counted.filter(|_| IS_COUNTED.get())
        })
    })
}

/// A log dir that was not stopped cleanly.
pub fn home(dir: &Path) -> LogHome {
    LogHome {
        dir: dir.into(),
        clean: false,
        lock: None,
        checkpoints: Arc::new(Checkpoints::default()),
        futures: Arc::default(),
    }
}

/// Log dirs of one shard; the table is what all shards share.
pub fn homes(homes: Vec<LogHome>, table: &LogDirTable) -> LogHomes {
    LogHomes {
        homes,
        table: table.clone(),
        tail: TailBudget::new(64 << 20),
        cleaner_rounds: CleanerRounds::default(),
    }
}

/// One log dir.
#[allow(dead_code, reason = "the suites with a table of their own do not need it")]
pub fn table(dir: &str) -> LogDirTable {
    LogDirTable::new([Path::new(dir).into()])
}

fn partition_settings(free_space_floor_bytes: u64) -> PartitionSettings {
    PartitionSettings {
        broker_id: ME,
        replica_lag_time_ms_max: 30_000,
        retention_check_interval_ms: 300_000,
        producer_expiration_check_interval_ms: 600_000,
        producer_expiration_ms: 86_400_000,
        flush_interval_ms: 60_000,
        file_delete_delay_ms: 60_000,
        concurrent_loads_max: 4,
        free_space_floor_bytes,
        cleaner: CleanerSettings {
            is_enabled: true,
            threads: 1,
            backoff_ms: 15_000,
            limits: CompactionLimits {
                map_bytes: 1 << 20,
                map_load_factor: 0.9,
                buffer_bytes: 1 << 16,
                bytes_per_second: f64::MAX,
                free_space_floor_bytes,
            },
        },
    }
}

/// Reads an answer; its bytes live as long as the test.
pub fn read<A: Message<'static>>(version: i16, answer: Answer) -> A {
    let Answer::Reply(response) = answer else { panic!("no reply: {answer:?}") };
    let mut bytes = Vec::new();
    for span in response.spans {
        match span {
            Span::Memory(memory) => bytes.extend_from_slice(&memory),
            Span::File { .. } => panic!("simulated files are in memory"),
        }
    }
    let bytes: &'static [u8] = bytes.leak();
    let mut cursor = Cursor::new(bytes);
    assert_eq!(decode_response_header(A::KEY, version, &mut cursor).unwrap(), CORRELATION_ID);
    let message = A::decode(&mut cursor, version).unwrap();
    assert_eq!(cursor.left(), 0, "nothing behind the answer");
    message
}

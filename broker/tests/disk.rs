//! Requests over glommio and real files, on one shard and on two: the parts that simulations stand in for.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    dead_code,
    reason = "helpers of tests, outside #[test] functions; the harness has more than is used here"
)]

#[path = "requests/harness.rs"]
mod harness;
#[path = "support/wiring.rs"]
mod wiring;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use broker::admin::service::AdminService;
use broker::handlers::dispatch::Handlers;
use broker::handlers::patience::Patience;
use broker::handlers::{Account, Answer, ConnectionContext, Outcome, Request, RequestHandler, Response};
use broker::metadata::cell::ImageCell;
use broker::partition::ask::{Become, PartitionAnswer, PartitionAsk};
use broker::partition::lifecycle::LogHomes;
use broker::partition::service::PartitionService;
use broker::shard::ask::Shards;
use broker::shard::glommio::GlommioShard;
use broker::shard::memory::Charge;
use broker::shard::start::{Cores, Layout, StartOptions, prepare, start};
use broker::shard::stop::Stopper;
use broker::shard::{NEVER, ShardId, ShardRuntime};
use protocol::codec::Writer;
use protocol::messages::*;
use protocol::types::*;
use storage::io::{Runtime, Span};
use storage::log::TailBudget;

use wiring::{Parts, Places};

type Owners = Shards<GlommioShard, PartitionService<GlommioShard>>;

const PARTITIONS: i32 = 4;
const ROUNDS: i64 = 100;

/// What a shard builds, and what a client on it needs.
struct Shard {
    runtime: GlommioShard,
    owners: Owners,
    image: ImageCell,
    handlers: Handlers<GlommioShard>,
}

fn build(runtime: &GlommioShard, places: Places<GlommioShard>, dir: &Path) -> Shard {
    let image = ImageCell::new(Arc::new(harness::image()));
    let table = wiring::table(dir.to_str().unwrap());
    let parts = Parts {
        image: image.clone(),
        homes: LogHomes { tail: TailBudget::new(4 << 20), ..wiring::homes(vec![wiring::home(dir)], &table) },
        admin: AdminService::elsewhere(),
        config: Rc::new(harness::broker_config()),
        sessions_max: 1000,
        floor_bytes: 0,
        metrics: Rc::default(),
    };
    let (_, owners, handlers, _) = wiring::wire(runtime, places, parts);
    Shard { runtime: runtime.clone(), owners, image, handlers }
}

impl Shard {
    async fn create(&self) {
        let shards = usize::from(self.runtime.shard_count());
        let topic =
            harness::topic("t", TopicId::new([5; 16]), (PARTITIONS, shards), &[("segment.bytes", "100000")]);
        for partition in 0..PARTITIONS {
            let owner = topic.partitions[usize::try_from(partition).unwrap()].owner.unwrap();
            let ask = Become {
                topic: topic.name.clone(),
                topic_id: topic.id,
                partition,
                leader: harness::ME,
                leader_epoch: LeaderEpoch::new(0),
                partition_epoch: PartitionEpoch::new(0),
                replicas: vec![harness::ME],
                isr: vec![harness::ME],
                is_new: true,
                config: topic.config.clone(),
            };
            match self.owners.ask(owner, NEVER, PartitionAsk::Become(vec![ask])).await.unwrap() {
                PartitionAnswer::Became(results) => assert_eq!(results, vec![Ok(())]),
                other => panic!("{other:?}"),
            }
        }
        let mut image = (*self.image.current()).clone();
        image.topics.insert(topic.name.clone(), Arc::new(topic));
        self.image.replace(Arc::new(image));
    }

    fn request<'a, M: Message<'a>>(&self, version: i16, message: &M) -> Request {
        let mut writer = Writer::new();
        message.encode(&mut writer, version);
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 5000));
        Request {
            api_key: M::KEY.get(),
            api_version: version,
            correlation_id: wiring::CORRELATION_ID,
            client_id: "test".into(),
            body: writer.into_bytes(),
            charge: Charge::none(),
            memory: usize::MAX,
            received: self.runtime.now(),
            connection: Rc::new(ConnectionContext {
                listener: "PLAINTEXT".into(),
                peer,
                id: 1,
                account: Account::default(),
                patience: Patience::default(),
            }),
        }
    }

    /// Produces with five requests in flight, as clients do.
    async fn produce(&self) {
        let mut in_flight = VecDeque::new();
        for round in 0..ROUNDS {
            let value = vec![u8::try_from(round).unwrap(); 5000];
            let parts: Vec<_> =
                (0..PARTITIONS).map(|partition| ("t", partition, harness::batch(&[&value]))).collect();
            let request = self.request(9, &harness::produce_request(-1, &parts));
            match self.handlers.handle(request).await {
                Outcome::Accepted(accepted) => in_flight.push_back((round, accepted)),
                Outcome::Done(answer) => panic!("{answer:?}"),
            }
            while in_flight.len() > 4 || (round == ROUNDS - 1 && !in_flight.is_empty()) {
                let (round, accepted) = in_flight.pop_front().unwrap();
                let answer: ProduceResponse<'static> = harness::read(9, in_memory(accepted.await));
                for part in &answer.responses[0].partition_responses {
                    assert_eq!((part.error_code, part.base_offset), (0, round));
                }
            }
        }
    }

    async fn consume(&self) {
        let mut offsets = vec![0i64; usize::try_from(PARTITIONS).unwrap()];
        while offsets.iter().any(|offset| *offset < ROUNDS) {
            let asked: Vec<_> = (0..PARTITIONS).zip(&offsets).map(|(p, offset)| ("t", p, *offset)).collect();
            let request = self.request(11, &harness::fetch_request(&asked));
            let Outcome::Done(answer) = self.handlers.handle(request).await else { panic!("fetch is done") };
            let answer: FetchResponse<'static> = harness::read(11, in_memory(answer));
            for data in answer.responses.iter().flat_map(|topic| &topic.partitions) {
                let offset = &mut offsets[usize::try_from(data.partition_index).unwrap()];
                assert_eq!((data.error_code, data.high_watermark), (0, ROUNDS));
                for value in harness::values(data) {
                    assert_eq!(value, vec![u8::try_from(*offset).unwrap(); 5000]);
                    *offset += 1;
                }
            }
        }
    }
}

/// The same answer with its file ranges read, as the socket would send them.
fn in_memory(answer: Answer) -> Answer {
    let Answer::Reply(response) = answer else { panic!("{answer:?}") };
    let read = |span| match span {
        Span::Memory(bytes) => Span::Memory(bytes),
        Span::File { fd, at, len } => {
            let mut bytes = vec![0; usize::try_from(len).unwrap()];
            std::fs::File::from(fd.try_clone().unwrap()).read_exact_at(&mut bytes, at).unwrap();
            Span::Memory(bytes.into())
        }
    };
    Answer::Reply(Response { spans: response.spans.into_iter().map(read).collect() })
}

/// One life of a broker on `dir`.
fn live(shards: u16, dir: PathBuf, produces: bool) {
    prepare::<String>().unwrap();
    let layout = Layout::new::<String>(&Cores::Count(shards)).unwrap();
    let stopper = Stopper::new(layout.shards());
    start(
        &StartOptions::default(),
        &layout,
        &stopper,
        Places::of(shards),
        move |runtime: GlommioShard, places, stopping| {
            let dir = dir.clone();
            async move {
                let shard = build(&runtime, places, &dir);
                if runtime.shard() == ShardId::CONTROL {
                    shard.create().await;
                    if produces {
                        shard.produce().await;
                    }
                    shard.consume().await;
                    for index in 0..runtime.shard_count() {
                        match shard.owners.ask(ShardId::new(index), NEVER, PartitionAsk::Close).await.unwrap()
                        {
                            PartitionAnswer::Closed(closed) => assert!(closed.is_clean()),
                            other => panic!("{other:?}"),
                        }
                    }
                }
                stopping.meet(&runtime).await;
                Ok::<(), String>(())
            }
        },
    )
    .unwrap();
}

#[test]
fn what_is_produced_on_two_shards_is_consumed_on_one_after_a_restart() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    live(2, dir.path().to_owned(), true);
    live(1, dir.path().to_owned(), false);
}

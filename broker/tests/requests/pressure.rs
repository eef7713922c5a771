//! Back-pressure: what clients send is charged to their shard until the log has written it. Real handlers and
//! partitions behind real connections, over a simulated disk that is slow.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use broker::net::ConnectionSettings;
use broker::net::connections::Connections;
use broker::partition::ask::{Become, PartitionAnswer, PartitionAsk};
use broker::shard::sim::{SimConn, SimShard};
use broker::shard::{Conn, ShardId};
use bytes::{Bytes, BytesMut};
use protocol::api::RequestHeader;
use protocol::codec::Writer;
use protocol::messages::*;
use protocol::types::*;
use smallvec::smallvec;
use storage::io::sim::{Latency, SimTask};
use storage::io::{Queue, Runtime, Span};

use crate::harness::*;

/// A shard's connections.
fn connections(broker: &Broker, memory_bytes_max: usize) -> Vec<Rc<Connections<SimShard>>> {
    let settings = ConnectionSettings { memory_bytes_max, ..ConnectionSettings::default() };
    broker.shards.iter().map(|shard| Connections::new(shard, settings, Rc::default())).collect()
}

/// A connection to a shard: the broker's end, to look at, and the client's.
fn connect(broker: &Broker, shard: usize, to: &Rc<Connections<SimShard>>) -> (SimConn, SimConn) {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let (server, client) = SimConn::pair(broker.world(), address(9092), address(50_000));
    to.serve(server.clone(), &Arc::from("PLAINTEXT"), &broker.handlers[shard], None);
    (server, client)
}

fn frame<'a, M: Message<'a>>(version: i16, message: &M) -> Bytes {
    let mut writer = Writer::new();
    let header = RequestHeader {
        api_key: M::KEY,
        api_version: version,
        correlation_id: 1,
        client_id: Some("pressure"),
    };
    header.encode(&mut writer);
    message.encode(&mut writer, version);
    let body = writer.into_bytes();
    let mut framed = BytesMut::from(&u32::try_from(body.len()).unwrap().to_be_bytes()[..]);
    framed.extend_from_slice(&body);
    framed.freeze()
}

fn produce_frame(acks: i16, partition: i32, value: &[u8]) -> Bytes {
    frame(9, &produce_request(acks, &[("t", partition, batch(&[value]))]))
}

/// A task that reads and forgets.
fn drain(broker: &Broker, client: &SimConn) -> SimTask {
    let client = client.clone();
    broker.world().spawn(Queue::Request, async move {
        let mut buffer = BytesMut::new();
        while client.read(&mut buffer, 1 << 16).await.is_ok_and(|count| count > 0) {
            buffer.clear();
        }
    })
}

/// Requests that wait for followers hold nothing that others need: their batches are written.
#[test]
fn parked_requests_do_not_keep_others_from_being_read() {
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let topic = broker.topic("t");
    // A follower that never fetches.
    let ask = Become {
        topic: topic.name.clone(),
        topic_id: topic.id,
        partition: 0,
        leader: ME,
        leader_epoch: LeaderEpoch::new(1),
        partition_epoch: PartitionEpoch::new(1),
        replicas: vec![ME, OTHER],
        isr: vec![ME, OTHER],
        is_new: false,
        config: topic.config.clone(),
    };
    assert!(matches!(
        broker.ask(ShardId::CONTROL, PartitionAsk::Become(vec![ask])),
        PartitionAnswer::Became(results) if results == [Ok(())]
    ));
    let here = connections(&broker, 64 << 10).remove(0);
    let (_, parked) = connect(&broker, 0, &here);
    let frames: Vec<u8> = (0..8).flat_map(|_| produce_frame(-1, 0, &[7; 20_000]).to_vec()).collect();
    let sender = parked.clone();
    let _task = broker.world().spawn(Queue::Request, async move {
        sender.write(smallvec![Span::Memory(Bytes::from(frames))]).await.unwrap();
    });
    broker.world().advance_ms(1_000);
    assert_eq!(parked.unread_bytes(), 0, "the produces wait for the follower");
    let (_, other) = connect(&broker, 0, &here);
    let sender = other.clone();
    broker.run(async move {
        sender.write(smallvec![Span::Memory(frame(9, &MetadataRequest::default()))]).await.unwrap();
    });
    broker.world().advance_ms(100);
    assert!(other.unread_bytes() > 0, "another client is served");
    assert_eq!(here.memory().used(), 0, "everything is written");
}

/// A producer at full speed.
struct Producer {
    shard: usize,
    server: SimConn,
    sent: Rc<Cell<usize>>,
    _tasks: [SimTask; 2],
}

impl Producer {
    /// Sends to the partitions in turn until `stop` is set.
    fn start(
        broker: &Broker,
        (shard, to): (usize, &Rc<Connections<SimShard>>),
        acks: i16,
        stop: &Rc<Cell<bool>>,
    ) -> Self {
        let (server, client) = connect(broker, shard, to);
        let frames: Vec<_> = (0..4).map(|partition| produce_frame(acks, partition, &[7; VALUE])).collect();
        let reader = drain(broker, &client);
        let (sent, stop) = (Rc::new(Cell::new(0)), stop.clone());
        let count = sent.clone();
        let writer = broker.world().spawn(Queue::Request, async move {
            for frame in frames.iter().cycle() {
                if stop.get() || client.write(smallvec![Span::Memory(frame.clone())]).await.is_err() {
                    return;
                }
                count.set(count.get() + frame.len());
            }
        });
        Self { shard, server, sent, _tasks: [reader, writer] }
    }

    /// What the broker has taken of the bytes of whole frames.
    fn taken(&self) -> usize {
        self.sent.get().saturating_sub(self.server.unread_bytes())
    }
}

const VALUE: usize = 20_000;

/// A disk of 100 ms per write, producers without and with acknowledgements, owners on two shards: what clients have
/// sent and the disk has not got stays within the budgets, and each client gets its share.
#[test]
fn a_slow_disk_slows_the_producers_and_not_the_memory() {
    const BUDGET: usize = 256 << 10;
    const SHARDS: usize = 2;
    let broker = Broker::new(2);
    broker.create("t", 4, &[]);
    // The first append writes an epoch: not what is measured here.
    for partition in 0..4 {
        broker.client().produce_one("t", partition, batch(&[b"first"]));
    }
    let nanos = 100_000_000;
    broker.world().disk().set_latency(Latency { min_nanos: nanos, max_nanos: nanos });
    let here = connections(&broker, BUDGET);
    let stop = Rc::new(Cell::new(false));
    let producers: Vec<_> = (0..12)
        .map(|index| {
            let acks = if index % 4 < 2 { 0 } else { 1 };
            Producer::start(&broker, (index % SHARDS, &here[index % SHARDS]), acks, &stop)
        })
        .collect();
    let frame_bytes = produce_frame(0, 0, &[7; VALUE]).len();
    let batch_bytes = batch(&[&[7; VALUE]]).len();
    let on_disk = || -> usize {
        let files = (0..4).map(|partition| format!("/data/t-{partition}/00000000000000000000.log"));
        files.map(|path| broker.world().disk().content(path).unwrap().len()).sum()
    };
    let before = on_disk();
    let held = RefCell::new(Vec::new());
    // Long enough for the shares of clients to even out: who reads next is drawn by lot.
    for step in 0..6_000 {
        broker.world().advance_ms(1);
        for connections in &here {
            let used = connections.memory().used();
            // The budget, the read that filled it, and a frame that may always finish.
            assert!(used <= BUDGET + 3 * frame_bytes, "{used} bytes at {step} ms");
            held.borrow_mut().push(used);
        }
        if step % 50 == 49 {
            // By another count: what went in and has not come out.
            let taken: usize = producers.iter().map(Producer::taken).sum();
            let written = (on_disk() - before) / batch_bytes * frame_bytes;
            let inside = taken.saturating_sub(written);
            // A frame that is being sent counts for its client only when all of it is in the pipe.
            assert!(inside <= SHARDS * (BUDGET + 3 * frame_bytes), "{inside} bytes at {step} ms");
        }
    }
    // These frames are large for such a budget: a quarter of it is not for them.
    assert!(held.borrow().iter().any(|used| *used >= BUDGET / 4 * 3), "the budget is used up");
    for shard in 0..SHARDS {
        let taken: Vec<_> =
            producers.iter().filter(|producer| producer.shard == shard).map(Producer::taken).collect();
        let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
        assert!(*least > 10 * frame_bytes && most < &(2 * least), "{taken:?}");
    }
    stop.set(true);
    broker.world().disk().set_latency(Latency { min_nanos: 10_000, max_nanos: 20_000 });
    broker.world().advance_ms(2_000);
    assert!(here.iter().all(|connections| connections.memory().used() == 0));
}

/// A disk that fails lets go of what it will not write.
#[test]
fn what_is_refused_or_lost_is_not_charged() {
    for kind in [std::io::ErrorKind::StorageFull, std::io::ErrorKind::Other] {
        let broker = Broker::new(2);
        broker.create("t", 4, &[]);
        for partition in 0..4 {
            broker.client().produce_one("t", partition, batch(&[b"first"]));
        }
        let here = connections(&broker, 256 << 10);
        let fault = storage::io::sim::Fault {
            kind: storage::io::sim::OpKind::Write,
            path_contains: ".log",
            after: 5,
            times: u64::MAX,
            error: kind,
        };
        broker.world().disk().fail(fault);
        let stop = Rc::new(Cell::new(false));
        let producers: Vec<_> =
            (0..4).map(|shard| Producer::start(&broker, (shard % 2, &here[shard % 2]), 1, &stop)).collect();
        // A broker that refuses takes as much as a client can send.
        broker.world().advance_ms(5);
        stop.set(true);
        broker.world().advance_ms(500);
        assert!(producers.iter().all(|producer| producer.taken() > 0));
        assert!(here.iter().all(|connections| connections.memory().used() == 0), "{kind}");
    }
}

//! The two hot paths without a kernel, for counting instructions: real connections, handlers, partitions and logs on one
//! simulated shard, whose sockets and files are memory. Everything comes from one seed, so that callgrind counts the same
//! each time (`scripts/instructions`). Frames are made before and answers are counted by [`measured`], which is what
//! callgrind is told to count.
//!
//! `hot_paths produce-large | produce-small | fetch`
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, reason = "a bench may panic")]
#![allow(clippy::print_stdout, reason = "says how many records were moved")]

#[path = "../tests/requests/harness.rs"]
#[allow(dead_code, reason = "the suite of requests uses all of it")]
mod harness;
#[path = "../tests/support/wiring.rs"]
mod wiring;

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use broker::net::ConnectionSettings;
use broker::net::connections::Connections;
use broker::shard::Conn;
use broker::shard::sim::SimConn;
use bytes::{Buf, Bytes, BytesMut};
use harness::Broker;
use protocol::api::RequestHeader;
use protocol::codec::Writer;
use protocol::messages::{FetchRequest, FetchTopics, Message};
use protocol::records::builder::BatchBuilder;
use protocol::types::{TimestampMs, TopicId};
use smallvec::smallvec;
use storage::io::Span;

const TOPIC: &str = "hot";
const PARTITIONS: i32 = 16;

/// One measured load.
struct Load {
    /// Records of a batch, and bytes of each.
    batch: (usize, usize),
    /// Requests on the wire before the first answer is taken.
    in_flight: usize,
    requests: usize,
    /// Read back instead of written.
    reads: bool,
}

fn load(name: &str) -> Load {
    match name {
        "produce-large" => Load { batch: (63, 1024), in_flight: 5, requests: 800, reads: false },
        "produce-small" => Load { batch: (1, 100), in_flight: 5, requests: 4000, reads: false },
        "fetch" => Load { batch: (63, 1024), in_flight: 1, requests: 480, reads: true },
        other => panic!("no load is called {other:?}"),
    }
}

fn frame<'a, M: Message<'a>>(version: i16, message: &M) -> Bytes {
    let mut writer = Writer::new();
    let header =
        RequestHeader { api_key: M::KEY, api_version: version, correlation_id: 1, client_id: Some("bench") };
    header.encode(&mut writer);
    message.encode(&mut writer, version);
    writer.into_frame().freeze()
}

fn batch((records, bytes): (usize, usize)) -> BytesMut {
    let value: Vec<u8> = (0..bytes).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        builder.push(TimestampMs::new(1_700_000_000_000), None, Some(&value), &[]);
    }
    builder.build().unwrap()
}

fn produces(load: &Load) -> Vec<Bytes> {
    let batch = batch(load.batch);
    let one = |partition| frame(9, &harness::produce_request(1, &[(TOPIC, partition, batch.clone())]));
    (0..PARTITIONS).map(one).collect()
}

/// A fetch of all partitions, each from the batch with this number on, and of one batch of each.
fn fetch(load: &Load, number: usize, batch_bytes: usize) -> Bytes {
    let offset = i64::try_from(number * load.batch.0).unwrap();
    let mut topics = FetchTopics::default();
    let mut parts: Vec<_> = (0..PARTITIONS).map(|partition| harness::part(partition, offset)).collect();
    for part in &mut parts {
        part.partition_max_bytes = i32::try_from(batch_bytes).unwrap();
    }
    topics.push(TOPIC.to_owned(), TopicId::ZERO, parts);
    let request = FetchRequest {
        min_bytes: 1,
        max_wait_ms: 500,
        max_bytes: 50 << 20,
        session_epoch: -1,
        topics,
        ..FetchRequest::default()
    };
    frame(11, &request)
}

/// Sends the frames and takes their answers; the bytes of these.
#[inline(never)]
fn exchange(broker: &Broker, client: &SimConn, frames: Vec<Bytes>, in_flight: usize) -> usize {
    let client = client.clone();
    broker.run(async move {
        let mut buffer = BytesMut::new();
        let (mut sent, mut answered, mut bytes) = (0, 0, 0);
        while answered < frames.len() {
            while sent < frames.len() && sent - answered < in_flight {
                client.write(smallvec![Span::Memory(frames[sent].clone())]).await.unwrap();
                sent += 1;
            }
            while answered < sent {
                let size = buffer.first_chunk::<4>().map(|size| u32::from_be_bytes(*size));
                let whole = size.map(|size| usize::try_from(size).unwrap() + 4);
                match whole.filter(|whole| *whole <= buffer.len()) {
                    Some(whole) => {
                        buffer.advance(whole);
                        answered += 1;
                        bytes += whole;
                    }
                    None => assert!(client.read(&mut buffer, 4 << 20).await.unwrap() > 0, "closed"),
                }
            }
        }
        bytes
    })
}

/// The exchange whose instructions callgrind counts: it knows this function by its name.
#[inline(never)]
fn measured(broker: &Broker, client: &SimConn, frames: Vec<Bytes>, in_flight: usize) -> usize {
    std::hint::black_box(exchange(broker, client, frames, in_flight))
}

fn main() {
    // `cargo bench` adds its own argument.
    let name = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let load = load(name.as_deref().unwrap_or("produce-large"));
    let broker = Broker::new(1);
    broker.create(TOPIC, PARTITIONS, &[]);
    // As on a real disk that is not throttled.
    broker.world().disk().set_write_now_percent(100);
    let settings = ConnectionSettings { in_flight_max: load.in_flight, ..ConnectionSettings::default() };
    let connections = Connections::new(&broker.shards[0], settings, Rc::default());
    let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (server, client) = SimConn::pair(broker.world(), address(9092), address(50_000));
    connections.serve(server, &Arc::from("PLAINTEXT"), &broker.handlers[0], None);

    let produces = produces(&load);
    let rounds = load.requests / produces.len();
    let writes: Vec<_> = produces.iter().cycle().take(load.requests).cloned().collect();
    let partitions = produces.len();
    let (bytes, batches) = if load.reads {
        exchange(&broker, &client, writes, 5);
        let batch_bytes = batch(load.batch).len();
        let reads = (0..rounds).map(|number| fetch(&load, number, batch_bytes)).collect();
        (measured(&broker, &client, reads, load.in_flight), rounds * partitions)
    } else {
        (measured(&broker, &client, writes, load.in_flight), load.requests)
    };
    let records = batches * load.batch.0;
    if load.reads {
        assert!(bytes > records * load.batch.1, "everything was read");
    }
    println!("records {records}");
}

//! Fetches that wait for weeks, of clients that have gone: real handlers and partitions behind real connections, with
//! partitions and fetch sessions on the shard of the connection and on others.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use broker::metrics::names::Family;
use broker::metrics::snapshot::{Sample, ShardSnapshot, Value};
use broker::net::ConnectionSettings;
use broker::net::connections::Connections;
use broker::shard::Conn;
use broker::shard::sim::{SimConn, SimShard};
use bytes::{Buf, Bytes, BytesMut};
use protocol::api::RequestHeader;
use protocol::codec::Writer;
use protocol::messages::*;
use smallvec::smallvec;
use storage::io::{Queue, Runtime, Span};

use crate::harness::*;

const PARTITIONS: i32 = 6;

/// A broker with connections on all shards.
struct Parked {
    broker: Broker,
    connections: Vec<Rc<Connections<SimShard>>>,
}

impl Parked {
    fn new(shards: u16) -> Self {
        let broker = Broker::new(shards);
        broker.create("t", PARTITIONS, &[]);
        let connections = broker
            .shards
            .iter()
            .map(|shard| Connections::new(shard, ConnectionSettings::default(), Rc::default()))
            .collect();
        Self { broker, connections }
    }

    fn connect(&self, shard: usize) -> SimConn {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (server, client) = SimConn::pair(self.broker.world(), address(9092), address(50_000));
        let handlers = &self.broker.handlers[shard];
        self.connections[shard].serve(server, &Arc::from("PLAINTEXT"), handlers, None);
        client
    }

    fn send(&self, client: &SimConn, request: &FetchRequest<'_>) {
        let mut writer = Writer::new();
        let header = RequestHeader {
            api_key: FetchRequest::KEY,
            api_version: VERSION,
            correlation_id: 1,
            client_id: Some("parked"),
        };
        header.encode(&mut writer);
        request.encode(&mut writer, VERSION);
        let (client, frame) = (client.clone(), writer.into_frame());
        self.broker.run(async move {
            client.write(smallvec![Span::Memory(Bytes::from(frame))]).await.unwrap();
        });
    }

    /// A fetch that waits for weeks from each shard: for partitions of all shards, for one of another shard, and one whose
    /// session is on the first shard.
    fn park(&self) -> Vec<SimConn> {
        let all: Vec<_> = (0..PARTITIONS).map(|partition| ("t", partition, 0)).collect();
        let shards = self.broker.shards.len();
        let mut clients = Vec::new();
        for home in 0..shards {
            let other = i32::try_from((home + 1) % shards).unwrap();
            let opened = self
                .broker
                .client()
                .fetch(VERSION, &FetchRequest { session_epoch: 0, ..fetch_request(&all) });
            assert!(opened.session_id > 0);
            for mut request in [
                fetch_request(&all),
                fetch_request(&[("t", other, 0)]),
                FetchRequest { session_id: opened.session_id, session_epoch: 1, ..fetch_request(&[]) },
            ] {
                request.max_wait_ms = i32::MAX;
                let client = self.connect(home);
                self.send(&client, &request);
                clients.push(client);
            }
        }
        self.broker.world().advance_ms(60_000);
        assert!(clients.iter().all(|client| client.unread_bytes() == 0 && !client.is_closed()));
        assert!(self.armed() >= clients.len());
        clients
    }

    /// Waits that the owners of partitions hold.
    fn armed(&self) -> usize {
        let services = self.broker.services.clone();
        self.broker.run(async move {
            let mut armed = 0;
            for service in services {
                let mut told = ShardSnapshot::default();
                service.tell(&mut told).await;
                let is_delayed = |sample: &&Sample| sample.family == Family::DelayedOperations;
                for sample in told.samples.iter().filter(is_delayed) {
                    let Value::Whole(count) = sample.value else { panic!("{:?}", sample.value) };
                    armed += usize::try_from(count).unwrap();
                }
            }
            armed
        })
    }

    fn count(&self) -> usize {
        self.connections.iter().map(|connections| connections.count()).sum()
    }
}

const VERSION: i16 = 11;

fn error_of(client: &SimConn, broker: &Broker) -> i16 {
    let client = client.clone();
    broker.run(async move {
        let mut answer = BytesMut::new();
        while answer.len() < 14 {
            assert!(client.read(&mut answer, 1 << 16).await.unwrap() > 0, "closed without an answer");
        }
        // Size, correlation id and throttle time come before.
        answer.advance(12);
        answer.get_i16()
    })
}

#[test]
fn a_parked_fetch_ends_with_its_client_on_all_shards() {
    for shards in SHARDS {
        let parked = Parked::new(shards);
        let clients = parked.park();
        drop(clients);
        parked.broker.world().advance_ms(3_000);
        assert_eq!((parked.count(), parked.armed()), (0, 0), "{shards} shards");
    }
}

#[test]
fn a_client_that_only_stops_to_send_is_answered_from_all_shards() {
    for shards in SHARDS {
        let parked = Parked::new(shards);
        let clients = parked.park();
        for client in &clients {
            client.finish();
        }
        let before = parked.broker.now_ms();
        for client in &clients {
            assert_eq!(error_of(client, &parked.broker), 0, "{shards} shards");
        }
        assert!(parked.broker.now_ms() < before + 3_000);
        parked.broker.world().advance_ms(1_000);
        assert_eq!((parked.count(), parked.armed()), (0, 0), "{shards} shards");
    }
}

#[test]
fn a_stop_answers_parked_fetches_of_all_shards_at_once() {
    for shards in SHARDS {
        let parked = Parked::new(shards);
        let clients = parked.park();
        let world = parked.broker.world();
        let drains: Vec<_> = parked
            .connections
            .iter()
            .map(|connections| {
                let (connections, by) = (connections.clone(), world.now().plus_ms(5_000));
                world.spawn(Queue::Control, async move { connections.drain(by).await })
            })
            .collect();
        world.advance_ms(100);
        assert_eq!((parked.count(), parked.armed()), (0, 0), "{shards} shards");
        for client in &clients {
            assert_eq!(error_of(client, &parked.broker), 0, "{shards} shards");
            assert!(client.is_closed());
        }
        drop(drains);
    }
}

/// A connection that is closed as idle takes its wait on another shard with it.
#[test]
fn an_idle_close_ends_the_waits_of_all_shards() {
    for shards in SHARDS {
        let parked = Parked::new(shards);
        let clients = parked.park();
        let idle_ms_max = ConnectionSettings::default().idle_ms_max;
        parked.broker.world().advance_ms(idle_ms_max.unsigned_abs());
        assert!(clients.iter().all(SimConn::is_closed));
        assert_eq!(parked.count(), 0, "{shards} shards");
        // What an owner keeps goes with the next fetch from that shard.
        for home in 0..usize::from(shards) {
            let all: Vec<_> = (0..PARTITIONS).map(|partition| ("t", partition, 0)).collect();
            parked.broker.client_on(home, "c").fetch(VERSION, &fetch_request(&all));
        }
        assert_eq!(parked.armed(), 0, "{shards} shards");
    }
}

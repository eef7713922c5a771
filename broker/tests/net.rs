//! Listeners on real sockets and real shards: where connections go, who may connect, and what a stop does.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests, outside #[test] functions"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use broker::handlers::{Answer, Outcome, Request, RequestHandler, Response};
use broker::net::ConnectionSettings;
use broker::net::admission::{AddressTokens, Addresses, ConnectionCounters, ConnectionLimits};
use broker::net::connections::Connections;
use broker::net::listener::{Arrivals, ListenError, Listener, bind, listen};
use broker::shard::ask::{Seat, Shards, seats};
use broker::shard::glommio::GlommioShard;
use broker::shard::start::{Cores, Layout, StartOptions, prepare, start};
use broker::shard::stop::Stopper;
use broker::shard::{Class, ShardId, ShardRuntime};
use bytes::Bytes;
use smallvec::smallvec;
use storage::io::{Runtime, Span};

/// Answers with the shard that served the connection.
#[derive(Clone)]
struct Where(GlommioShard);

impl RequestHandler for Where {
    type Accepted = std::future::Ready<Answer>;

    async fn handle(&self, request: Request) -> Outcome<Self::Accepted> {
        let mut bytes = request.correlation_id.to_be_bytes().to_vec();
        bytes.push(u8::try_from(self.0.shard().get()).unwrap());
        Outcome::Done(Answer::Reply(Response { spans: smallvec![Span::Memory(Bytes::from(bytes))] }))
    }

    /// The first byte of a body names the shard.
    fn home(&self, _api_key: i16, _api_version: i16, body: &[u8]) -> Option<ShardId> {
        body.first().map(|shard| ShardId::new(u16::from(*shard)))
    }
}

type Arriving = Arrivals<GlommioShard, Where>;

struct Part {
    sockets: Vec<OwnedFd>,
    arrivals: Seat<GlommioShard, Arriving>,
    tokens: Seat<GlommioShard, AddressTokens>,
}

fn loopback(port: u16) -> Vec<Listener> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    vec![Listener { name: Arc::from("PLAINTEXT"), address, backlog: 1024 }]
}

/// Runs a broker of two shards and one listener while `client` works, then stops it.
fn with_broker(
    limits: ConnectionLimits,
    client: impl FnOnce(SocketAddr, &ConnectionCounters) + Send + 'static,
) {
    with_listeners(loopback(0), limits, |addresses, counters| client(addresses[0], counters));
}

fn with_listeners(
    listeners: Vec<Listener>,
    limits: ConnectionLimits,
    client: impl FnOnce(&[SocketAddr], &ConnectionCounters) + Send + 'static,
) {
    prepare::<String>().unwrap();
    let layout = Layout::new::<String>(&Cores::Count(2)).unwrap();
    let shards = layout.shards();
    let bound = bind(&listeners, shards).unwrap();
    let counters = ConnectionCounters::new(shards, listeners.len());
    let parts: Vec<Part> = bound
        .sockets
        .into_iter()
        .zip(seats(shards, Class::Client, 64))
        .zip(seats(shards, Class::Control, 64))
        .map(|((sockets, arrivals), tokens)| Part { sockets, arrivals, tokens })
        .collect();
    let stopper = Stopper::new(shards);
    let ender = stopper.clone();
    let addresses = bound.addresses;
    let counts = counters.clone();
    let client = std::thread::spawn(move || {
        struct Ender(Stopper);
        impl Drop for Ender {
            fn drop(&mut self) {
                self.0.request();
            }
        }
        let _ender = Ender(ender);
        client(&addresses, &counts);
    });
    start(
        &StartOptions::default(),
        &layout,
        &stopper,
        parts,
        move |shard: GlommioShard, part: Part, stopping| {
            let (limits, counters, listeners) = (limits.clone(), counters.clone(), listeners.clone());
            async move {
                let limits = Rc::new(limits);
                let connections = Connections::new(&shard, ConnectionSettings::default(), Rc::default());
                let tokens = Shards::new(&shard, AddressTokens::new(limits.clone()), part.tokens);
                let addresses = limits.counts_addresses().then(|| Addresses::new(&shard, tokens.clone()));
                let handler = Where(shard.clone());
                let arrivals = Arrivals::new(&connections, handler, &listeners, limits, counters, addresses);
                let all = Shards::new(&shard, arrivals, part.arrivals);
                let listening = listen(&all, part.sockets).map_err(|error| error.to_string())?;
                stopping.requested().await;
                drop(listening);
                connections.drain(shard.now().plus_ms(1000)).await;
                stopping.meet(&shard).await;
                Ok::<(), String>(())
            }
        },
    )
    .unwrap();
    client.join().unwrap();
}

/// How long an answer may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Asks for the shard of a connection; `None` when it is closed.
fn shard_of(stream: &mut TcpStream) -> Option<u8> {
    let api_versions = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 9, 0xff, 0xff];
    stream.write_all(&api_versions).ok()?;
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).ok()?;
    assert_eq!(answer[..8], [0, 0, 0, 5, 0, 0, 0, 9]);
    Some(answer[8])
}

///
#[test]
fn connections_go_to_the_shard_with_the_fewest() {
    with_broker(ConnectionLimits::unlimited(1), |address, counters| {
        let mut streams: Vec<_> = (0..10).map(|_| connect(address)).collect();
        let shards: Vec<_> = streams.iter_mut().map(|stream| shard_of(stream).unwrap()).collect();
        assert_eq!(shards.iter().filter(|&&shard| shard == 0).count(), 5, "{shards:?}");
        // Those of one shard leave; the next ones fill it up.
        let mut kept: Vec<_> = streams
            .into_iter()
            .zip(shards)
            .filter(|(_, shard)| *shard == 1)
            .map(|(stream, _)| stream)
            .collect();
        wait_until(|| counters.of_shard(ShardId::new(0)) == 0);
        for _ in 0..5 {
            let mut stream = connect(address);
            assert_eq!(shard_of(&mut stream), Some(0));
            kept.push(stream);
        }
    });
}

/// Sends Produce requests at once, each at home on one of these shards; the shards that answer them, in order.
fn produce_at(stream: &mut TcpStream, homes: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    for (home, correlation_id) in homes.iter().zip(1u8..) {
        sent.extend([0, 0, 0, 11, 0, 0, 0, 3, 0, 0, 0, correlation_id, 0xff, 0xff, *home]);
    }
    stream.write_all(&sent).unwrap();
    let answered = |correlation_id: u8| {
        let mut answer = [0; 9];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], [0, 0, 0, 5, 0, 0, 0, correlation_id]);
        answer[8]
    };
    homes.iter().zip(1u8..).map(|(_, correlation_id)| correlation_id).map(answered).collect()
}

///
#[test]
fn a_connection_goes_on_to_the_shard_that_its_requests_are_at_home_on() {
    with_broker(
        ConnectionLimits { per_ip_max: 100, ..ConnectionLimits::unlimited(1) },
        |address, counters| {
            let mut stream = connect(address);
            let first = shard_of(&mut stream).unwrap();
            let other = 1 - first;
            assert_eq!(produce_at(&mut stream, &[other, first, other, other, other, other]), [first; 6]);
            assert_eq!(shard_of(&mut stream), Some(first), "who writes to both stays");
            drop(stream);
            let mut stream = connect(address);
            let first = shard_of(&mut stream).unwrap();
            let other = 1 - first;
            let answers = produce_at(&mut stream, &[other; 8]);
            assert_eq!(answers, [first, first, first, other, other, other, other, other]);
            assert_eq!(shard_of(&mut stream), Some(other));
            assert_eq!(produce_at(&mut stream, &[first; 8]), [other; 8], "it goes once");
            drop(stream);
            wait_until(|| counters.of_shard(ShardId::new(0)) + counters.of_shard(ShardId::new(1)) == 0);
        },
    );
}

#[test]
fn one_shard_does_not_gather_all_connections() {
    with_broker(ConnectionLimits::unlimited(1), |address, counters| {
        let mut streams: Vec<_> = (0..40).map(|_| connect(address)).collect();
        for stream in &mut streams {
            assert!(shard_of(stream).is_some());
        }
        for stream in &mut streams {
            produce_at(stream, &[1; 8]);
        }
        let gathered = counters.of_shard(ShardId::new(1));
        assert!((21..=24).contains(&gathered), "{gathered}");
    });
}

#[test]
fn a_thousand_connections_are_served_and_all_counted_out() {
    with_broker(ConnectionLimits::unlimited(1), |address, counters| {
        let mut streams: Vec<_> = (0..1000).map(|_| connect(address)).collect();
        for stream in &mut streams {
            assert!(shard_of(stream).is_some());
        }
        assert_eq!(counters.of_shard(ShardId::new(0)), 500);
        drop(streams);
        wait_until(|| counters.of_shard(ShardId::new(0)) + counters.of_shard(ShardId::new(1)) == 0);
    });
}

#[test]
fn a_taken_port_is_an_error_of_the_start() {
    let first = bind(&loopback(0), 2).unwrap();
    let port = first.addresses[0].port();
    let second = bind(&loopback(port), 2).err().unwrap();
    assert!(matches!(second, ListenError::InUse { address, .. } if address.port() == port));
    let foreign = Listener { address: "192.0.2.1:9092".parse().unwrap(), ..loopback(0)[0].clone() };
    assert!(matches!(bind(&[foreign], 1), Err(ListenError::Failed { .. })));
}

/// `max.connections.per.ip`: the excess is closed after accept, and a place that gets free is given again.
#[test]
fn one_address_has_so_many_connections() {
    let limits = ConnectionLimits { per_ip_max: 3, ..ConnectionLimits::unlimited(1) };
    with_broker(limits, |address, _| {
        let mut streams: Vec<_> = (0..3).map(|_| connect(address)).collect();
        assert!(streams.iter_mut().all(|stream| shard_of(stream).is_some()));
        assert_eq!(shard_of(&mut connect(address)), None);
        streams.pop();
        // The broker learns of the close in its own time.
        let served = (0..100_000).any(|_| shard_of(&mut connect(address)).is_some());
        assert!(served, "a place that got free is not given again");
    });
}

/// `max.connections`: the excess waits.
#[test]
fn an_excess_connection_waits_for_a_place() {
    let limits = ConnectionLimits { connections_max: 2, ..ConnectionLimits::unlimited(1) };
    with_broker(limits, |address, _| {
        let mut streams: Vec<_> = (0..2).map(|_| connect(address)).collect();
        assert!(streams.iter_mut().all(|stream| shard_of(stream).is_some()));
        let mut third = connect(address);
        third.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(shard_of(&mut third), None, "not served, not closed");
        third.set_read_timeout(Some(PATIENCE)).unwrap();
        streams.pop();
        let mut answer = [0; 9];
        third.read_exact(&mut answer).unwrap();
    });
}

/// Security-admin.md 1.4: the listener between brokers is let in, and another listener pays.
#[test]
fn a_protected_listener_takes_the_place_of_the_least_recent_client() {
    let listeners =
        vec![loopback(0).remove(0), Listener { name: Arc::from("BROKERS"), ..loopback(0).remove(0) }];
    let limits = ConnectionLimits {
        connections_max: 2,
        protected_listener: Some(1),
        ..ConnectionLimits::unlimited(2)
    };
    with_listeners(listeners, limits, |addresses, counters| {
        let mut clients: Vec<_> = (0..2).map(|_| connect(addresses[0])).collect();
        assert!(clients.iter_mut().all(|client| shard_of(client).is_some()));
        let mut broker = connect(addresses[1]);
        assert!(shard_of(&mut broker).is_some());
        wait_until(|| counters.of_shard(ShardId::new(0)) + counters.of_shard(ShardId::new(1)) <= 2);
        assert!(shard_of(&mut broker).is_some(), "the broker stays");
        let left = clients.iter_mut().filter_map(shard_of).count();
        assert_eq!(left, 1);
    });
}

/// Waits for something with a generous deadline.
#[allow(clippy::disallowed_methods, reason = "a test's own thread")]
fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "it does not happen");
        std::thread::yield_now();
    }
}

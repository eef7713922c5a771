//! Connections that go on to other shards, on simulated ones: their answers keep their order, and each is counted
//! once, wherever it is. One that ends on its way is counted nowhere, and nothing of it is left.

use super::*;
use crate::metrics::ShardMetrics;
use crate::net::admission::{AddressTokens, Addresses, ConnectionCounters, ConnectionLimits};
use crate::net::listener::{Arrivals, Listener, Listening, listen};
use crate::shard::Class;
use crate::shard::ask::{Seat, Shards, seats};

/// The rule, for requests that are at home on the shard that their second byte names.
#[derive(Clone)]
struct Homed(Rule);

impl RequestHandler for Homed {
    type Accepted = <Rule as RequestHandler>::Accepted;

    async fn handle(&self, request: Request) -> Outcome<Self::Accepted> {
        self.0.handle(request).await
    }

    fn home(&self, _api_key: i16, _api_version: i16, body: &[u8]) -> Option<ShardId> {
        body.get(1).map(|shard| ShardId::new(u16::from(*shard)))
    }
}

type Arriving = Arrivals<SimShard, Homed>;

/// More than any test connects.
const PER_IP_MAX: usize = 200;
const CLIENT: [u8; 4] = [127, 0, 0, 1];

struct One {
    runtime: SimShard,
    connections: Rc<Connections<SimShard>>,
    handler: Homed,
    metrics: Rc<ShardMetrics>,
    addresses: Addresses<SimShard>,
    arrivals: Arriving,
    /// Until it takes part.
    seat: Option<Seat<SimShard, Arriving>>,
    /// Once it does.
    part: Option<(Shards<SimShard, Arriving>, Listening<SimShard>)>,
}

impl One {
    fn takes_part(&mut self) {
        let all = Shards::new(&self.runtime, self.arrivals.clone(), self.seat.take().unwrap());
        let listening = listen(&all, Vec::new()).unwrap();
        self.part = Some((all, listening));
    }

    fn log(&self) -> Vec<i32> {
        self.handler.0.log.borrow().iter().map(|(id, _)| *id).collect()
    }
}

/// The shards of one broker.
struct Process {
    world: SimRuntime,
    limits: Rc<ConnectionLimits>,
    counters: Arc<ConnectionCounters>,
    shards: Vec<One>,
}

impl Process {
    /// So many connections may be on their way from one shard to another. No shard takes part yet.
    fn new(seed: u64, shards: u16, in_flight: usize) -> Self {
        let limits = Rc::new(ConnectionLimits { per_ip_max: PER_IP_MAX, ..ConnectionLimits::unlimited(1) });
        let counters = ConnectionCounters::new(shards, 1);
        let address = std::net::SocketAddr::from((CLIENT, 9092));
        let listeners = [Listener { name: Arc::from("PLAINTEXT"), address, backlog: 1 }];
        let runtimes = SimShard::process(seed, shards);
        let world = runtimes[0].world().clone();
        let shards = runtimes
            .into_iter()
            .zip(seats(shards, Class::Control, 64))
            .zip(seats(shards, Class::Client, in_flight))
            .map(|((runtime, tokens), seat)| {
                let rule = Rule {
                    runtime: runtime.clone(),
                    log: Rc::default(),
                    parked: Rc::default(),
                    overlap: Rc::default(),
                    answer_bytes: 0,
                };
                let (handler, metrics) = (Homed(rule), Rc::<ShardMetrics>::default());
                let connections = Connections::new(&runtime, ConnectionSettings::default(), metrics.clone());
                let tokens = Shards::new(&runtime, AddressTokens::new(limits.clone()), tokens);
                let addresses = Addresses::new(&runtime, tokens);
                let arrivals = Arrivals::new(
                    &connections,
                    handler.clone(),
                    &listeners,
                    limits.clone(),
                    counters.clone(),
                    Some(addresses.clone()),
                );
                let seat = Some(seat);
                One { runtime, connections, handler, metrics, addresses, arrivals, seat, part: None }
            })
            .collect();
        Self { world, limits, counters, shards }
    }

    fn started(seed: u64, shards: u16, in_flight: usize) -> Self {
        let mut process = Self::new(seed, shards, in_flight);
        process.shards.iter_mut().for_each(One::takes_part);
        process
    }

    fn take_token(&self, at: usize) -> Option<crate::net::admission::AddressToken> {
        let addresses = self.shards[at].addresses.clone();
        self.world.block_on(async move { addresses.take(CLIENT.into()).await })
    }

    /// As an acceptor does.
    fn connect(&self) -> SimConn {
        let admission = self.counters.admit(&self.limits, 0, ShardId::CONTROL).ok().unwrap();
        let at = usize::from(admission.shard().get());
        let token = self.take_token(at).unwrap();
        let shard = &self.shards[at];
        let address = |port| std::net::SocketAddr::from((CLIENT, port));
        let (server, client) = shard.runtime.connect(address(9092), address(50_000));
        let admission = Some((admission, Some(token)));
        shard.connections.serve(server, &Arc::from("PLAINTEXT"), &shard.handler, admission);
        client
    }

    fn count(&self, shard: u16) -> usize {
        self.counters.of_shard(ShardId::new(shard))
    }

    fn on_the_way(&self) -> usize {
        self.shards[0].runtime.on_the_way()
    }

    /// How many connections the client's address has.
    fn of_address(&self) -> usize {
        let free: Vec<_> = std::iter::from_fn(|| self.take_token(0)).collect();
        let count = PER_IP_MAX - free.len();
        drop(free);
        self.world.advance_ms(1);
        count
    }

    /// Whether so many connections are counted wherever one is, and nothing is kept for others.
    fn assert_open(&self, count: usize, about: &str) {
        let of_shards: usize = (0..self.shards.len()).map(|at| self.count(at.try_into().unwrap())).sum();
        assert_eq!(of_shards, count, "{about}: counted for shards");
        let max = |connections_max| ConnectionLimits { connections_max, ..(*self.limits).clone() };
        assert!(!self.counters.is_above(&max(count)), "{about}: counted for the broker");
        assert!(count == 0 || self.counters.is_above(&max(count - 1)), "{about}: counted for the broker");
        assert_eq!(self.of_address(), count, "{about}: counted for their address");
    }

    fn assert_nothing_is_left(&self, about: &str) {
        assert_eq!(self.on_the_way(), 0, "{about}: descriptors");
        self.assert_open(0, about);
        let (mut arrived, mut left) = (0, 0);
        for (at, shard) in self.shards.iter().enumerate() {
            assert_eq!(shard.connections.count(), 0, "{about}: connections of shard {at}");
            assert_eq!(shard.connections.memory().used(), 0, "{about}: memory of shard {at}");
            let cells = shard.metrics.listener(&Arc::from("PLAINTEXT"));
            arrived += cells.arrived.get();
            left += cells.left.get();
        }
        assert_eq!(arrived, left, "{about}: connections in the metrics");
    }
}

/// A Produce that is at home on a shard.
fn produce_to(id: i32, shard: u8) -> Vec<u8> {
    frame(PRODUCE, 3, id, Some("c"), &[ACKS_ALL, shard, 0, 0])
}

/// A Fetch that is, and waits for half a second.
fn fetch_of(id: i32, shard: u8) -> Vec<u8> {
    frame(FETCH, 4, id, Some("c"), &[0, shard])
}

#[test]
fn answers_keep_their_order_and_requests_are_executed_once_over_a_move() {
    for seed in 0..100 {
        let process = Process::started(seed, 2, 2);
        let client = process.connect();
        let all: Vec<u8> = (0..12).flat_map(|id| produce_to(id, 1)).chain(fetch_of(12, 1)).collect();
        // Cut anywhere, so that any part of a frame may be here when the connection goes.
        let cut = usize::try_from(process.world.draw_below(all.len() as u64)).unwrap();
        send(&process.world, &client, all[..cut].to_vec());
        process.world.advance_nanos(process.world.draw_below(2_000_000));
        send(&process.world, &client, all[cut..].to_vec());
        assert_eq!(answers(&process.world, &client, 13), (0..13).collect::<Vec<_>>(), "seed {seed}");
        let (first, second) = (process.shards[0].log(), process.shards[1].log());
        assert_eq!(first, [0, 1, 2], "seed {seed}");
        assert_eq!(second, (3..13).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!((process.count(0), process.count(1), process.on_the_way()), (0, 1, 0), "seed {seed}");
        process.assert_open(1, "one client");
        drop(client);
        process.world.advance_ms(100);
        process.assert_nothing_is_left(&format!("seed {seed}"));
    }
}

/// The first is in the queue of a shard that has not begun to take, and the second waits for room there.
fn two_on_their_way(seed: u64) -> (Process, [SimConn; 2]) {
    let mut process = Process::new(seed, 2, 1);
    process.shards[0].takes_part();
    let clients = [1, 2].map(|id| {
        let client = process.connect();
        send(&process.world, &client, fetch_of(id, 1));
        process.world.advance_ms(1);
        client
    });
    assert_eq!((process.on_the_way(), process.shards[0].connections.count()), (2, 1), "seed {seed}");
    process.assert_open(2, "both are counted on their way");
    (process, clients)
}

#[test]
fn a_connection_that_is_closed_while_it_waits_to_go_is_counted_nowhere() {
    for seed in 0..20 {
        let (mut process, [first, second]) = two_on_their_way(seed);
        assert!(process.shards[0].connections.close_least_recent("another"));
        process.world.advance_ms(1);
        assert_eq!(process.on_the_way(), 1, "seed {seed}");
        assert!(second.is_closed() && !first.is_closed(), "seed {seed}");
        process.assert_open(1, "the first is on its way");
        process.shards[1].takes_part();
        assert_eq!(answers(&process.world, &first, 1), [1], "seed {seed}");
        process.assert_open(1, "the first has arrived");
        drop((first, second));
        process.world.advance_ms(1_000);
        process.assert_nothing_is_left(&format!("seed {seed}"));
    }
}

#[test]
fn connections_on_their_way_to_a_shard_that_ends_are_closed_and_counted_nowhere() {
    for seed in 0..20 {
        let (mut process, clients) = two_on_their_way(seed);
        process.shards[1].seat = None;
        process.world.advance_ms(1);
        // Who waits for room waits until its own shard stops.
        process.shards[0].connections.close_least_recent("another");
        process.world.advance_ms(1);
        assert_eq!(process.on_the_way(), 0, "seed {seed}");
        assert!(clients.iter().all(SimConn::is_closed), "seed {seed}");
        // The shard that is gone has begun to serve neither.
        process.assert_nothing_is_left(&format!("seed {seed}"));
    }
}

/// What has been met in a run.
#[derive(Default)]
struct Met {
    moves: u64,
    ends_on_the_way: u64,
    closes_on_the_way: u64,
    stops_on_the_way: u64,
}

/// Clients come, send, stop to send and go, and connections are closed, at any moment; in the end all have gone, or the
/// broker stops under them.
fn any_order(seed: u64, met: &mut Met) {
    const SHARDS: u16 = 3;
    let process = Process::started(seed, SHARDS, usize::try_from(1 + seed % 3).unwrap());
    let world = process.world.clone();
    let below = |bound: u64| usize::try_from(world.draw_below(bound)).unwrap();
    let mut clients: Vec<(SimConn, u8)> = Vec::new();
    for _ in 0..120 {
        match below(12) {
            0..3 if clients.len() < 20 => {
                clients.push((process.connect(), u8::try_from(below(SHARDS.into())).unwrap()));
            }
            3..8 if !clients.is_empty() => {
                let (client, home) = &clients[below(clients.len() as u64)];
                let bytes = match below(3) {
                    0 => fetch_of(1, *home),
                    _ => (0..4).flat_map(|id| produce_to(id, *home)).collect(),
                };
                let cut = if below(4) == 0 { below(bytes.len() as u64) } else { bytes.len() };
                let (client, bytes) = (client.clone(), bytes[..cut].to_vec());
                // It may have been closed, or sends no more.
                world.block_on(async move {
                    let _ = client.write(smallvec![Span::Memory(Bytes::from(bytes))]).await;
                });
            }
            8 | 9 if !clients.is_empty() => {
                met.ends_on_the_way += u64::from(process.on_the_way() > 0);
                let (client, _) = clients.swap_remove(below(clients.len() as u64));
                if below(3) == 0 {
                    client.finish();
                    clients.push((client, 0));
                }
            }
            10 => {
                met.closes_on_the_way += u64::from(process.on_the_way() > 0);
                let shard = &process.shards[below(SHARDS.into())];
                shard.connections.close_least_recent("another");
            }
            _ => {}
        }
        world.advance_nanos(world.draw_below(60_000));
    }
    met.moves += process
        .shards
        .iter()
        .map(|shard| shard.metrics.listener(&Arc::from("PLAINTEXT")))
        .fold(0, |moves, cells| moves + cells.arrived.get() - cells.created.get());
    let mut process = process;
    if seed.is_multiple_of(2) {
        met.stops_on_the_way += u64::from(process.on_the_way() > 0);
        let by = process.shards[0].runtime.now().plus_ms(2_000);
        let drains: Vec<_> = process
            .shards
            .iter_mut()
            .map(|shard| {
                // Its queue is served until all have stopped, but no connection leaves any more.
                let (all, listening) = shard.part.take().unwrap();
                drop(listening);
                let connections = shard.connections.clone();
                shard.runtime.spawn(storage::io::Queue::Control, async move {
                    connections.drain(by).await;
                    drop(all);
                })
            })
            .collect();
        world.advance_ms(3_000);
        assert!(clients.iter().all(|(client, _)| client.is_closed()), "seed {seed}");
        drop(drains);
    }
    clients.clear();
    world.advance_ms(20_000);
    process.assert_nothing_is_left(&format!("seed {seed}"));
}

#[test]
fn whenever_a_connection_ends_it_is_counted_nowhere_and_nothing_of_it_is_left() {
    let mut met = Met::default();
    for seed in 0..300 {
        any_order(seed, &mut met);
    }
    let Met { moves, ends_on_the_way, closes_on_the_way, stops_on_the_way } = met;
    assert!(moves > 300, "{moves} moves");
    for met in [ends_on_the_way, closes_on_the_way, stops_on_the_way] {
        assert!(met > 10, "{ends_on_the_way} ends, {closes_on_the_way} closes, {stops_on_the_way} stops");
    }
}

//! A broker's end of connections on simulated shards, with a handler that answers by rule: statements 9, 10, 14 to 19
//! and 93 of protocol.md 5 and F10 to F13, as far as they do not need a body.

mod moves;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_channel::oneshot;
use futures_util::future::select;
use proptest::strategy::Strategy;
use smallvec::smallvec;
use storage::io::sim::{SimRuntime, SimTask};
use storage::io::{Runtime, Span};

use super::ConnectionSettings;
use super::connections::Connections;
use crate::handlers::{Answer, Outcome, Request, RequestHandler, Response};
use crate::shard::memory::Charge;
use crate::shard::sim::{SimConn, SimShard};
use crate::shard::{Conn, ShardId};

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;

/// First byte of a Produce body: what becomes of it.
const ACKS_NONE: u8 = 0;
const ACKS_ALL: u8 = 1;
const REFUSED: u8 = 2;
/// Accepted, and answered by `release`. A Fetch with it waits for weeks, or as long as its client has patience.
const PARKED: u8 = 3;
/// Answered by a file, which simulated sockets cannot send.
const TORN: u8 = 4;

/// Answers with the correlation id and the length of the body; Fetch waits 500 ms first; Produce as its body says.
#[derive(Clone)]
struct Rule {
    runtime: SimShard,
    log: Rc<RefCell<Vec<(i32, String)>>>,
    parked: Rc<RefCell<BTreeMap<i32, oneshot::Sender<()>>>>,
    overlap: Rc<Cell<(usize, usize)>>,
    answer_bytes: usize,
}

fn reply(request: &Request, extra: usize) -> Answer {
    let mut bytes = request.correlation_id.to_be_bytes().to_vec();
    bytes.extend_from_slice(&u32::try_from(request.body.len()).unwrap().to_be_bytes());
    bytes.resize(bytes.len() + extra, 7);
    Answer::Reply(Response { spans: smallvec![Span::Memory(Bytes::from(bytes))] })
}

impl RequestHandler for Rule {
    type Accepted = Pin<Box<dyn Future<Output = Answer>>>;

    async fn handle(&self, mut request: Request) -> Outcome<Self::Accepted> {
        let (now, most) = self.overlap.get();
        self.overlap.set((now + 1, most.max(now + 1)));
        self.log.borrow_mut().push((request.correlation_id, request.client_id.to_string()));
        let answer = reply(&request, self.answer_bytes);
        // As batches on their way to a disk.
        let unwritten = std::mem::replace(&mut request.charge, Charge::none());
        let outcome = match (request.api_key, request.body.first()) {
            (PRODUCE, Some(&ACKS_NONE)) => Outcome::Done(Answer::Nothing),
            (PRODUCE, Some(&TORN)) => {
                let fd = Arc::new(tempfile::tempfile().unwrap().into());
                let spans =
                    smallvec![Span::Memory(Bytes::from_static(b"head")), Span::File { fd, at: 0, len: 9 }];
                Outcome::Done(Answer::Reply(Response { spans }))
            }
            (PRODUCE, Some(&REFUSED)) => Outcome::Done(Answer::Close("acks=0 failed")),
            (PRODUCE, Some(&PARKED)) => {
                let (sender, receiver) = oneshot::channel();
                self.parked.borrow_mut().insert(request.correlation_id, sender);
                Outcome::Accepted(Box::pin(async move {
                    let _ = receiver.await;
                    drop(unwritten);
                    answer
                }) as Self::Accepted)
            }
            (PRODUCE, _) => {
                // Later ones are often done first.
                let done = self.runtime.now().plus_nanos(self.runtime.random() % 5_000_000);
                let sleep = self.runtime.sleep_until(done);
                Outcome::Accepted(Box::pin(async move {
                    sleep.await;
                    drop(unwritten);
                    answer
                }) as Self::Accepted)
            }
            (FETCH, Some(&PARKED)) => {
                let weeks = self.runtime.sleep_until(self.runtime.now().plus_ms(i64::from(i32::MAX)));
                select(pin!(weeks), pin!(request.connection.patience.over())).await;
                Outcome::Done(answer)
            }
            (FETCH, _) => {
                self.runtime.sleep_until(self.runtime.now().plus_ms(500)).await;
                Outcome::Done(answer)
            }
            _ => Outcome::Done(answer),
        };
        self.overlap.set((self.overlap.get().0 - 1, self.overlap.get().1));
        outcome
    }

    fn home(&self, _api_key: i16, _api_version: i16, _body: &[u8]) -> Option<ShardId> {
        None
    }
}

struct Broker {
    world: SimRuntime,
    connections: Rc<Connections<SimShard>>,
    rule: Rule,
}

fn broker_with(seed: u64, settings: ConnectionSettings, answer_bytes: usize) -> Broker {
    let shard = SimShard::process(seed, 1).remove(0);
    let rule = Rule {
        runtime: shard.clone(),
        log: Rc::default(),
        parked: Rc::default(),
        overlap: Rc::default(),
        answer_bytes,
    };
    Broker {
        world: shard.world().clone(),
        connections: Connections::new(&shard, settings, Rc::default()),
        rule,
    }
}

fn broker(seed: u64) -> Broker {
    broker_with(seed, ConnectionSettings::default(), 0)
}

impl Broker {
    fn connect(&self) -> SimConn {
        let address = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let (server, client) = SimConn::pair(&self.world, address(9092), address(50_000));
        self.connections.serve(server, &Arc::from("PLAINTEXT"), &self.rule, None);
        client
    }

    fn send(&self, client: &SimConn, bytes: Vec<u8>) {
        send(&self.world, client, bytes);
    }

    /// A client that sends the first `count` bytes, and the others when it is told to.
    fn send_halves(&self, bytes: &[u8], count: usize) -> ((SimConn, SimTask), oneshot::Sender<()>) {
        let client = self.connect();
        let (first, second) = bytes.split_at(count);
        let (first, second) = (Bytes::copy_from_slice(first), Bytes::copy_from_slice(second));
        let (sender, receiver) = oneshot::channel();
        let inside = client.clone();
        let task = self.rule.runtime.spawn(storage::io::Queue::Request, async move {
            let _ = inside.write(smallvec![Span::Memory(first)]).await;
            let _ = receiver.await;
            let _ = inside.write(smallvec![Span::Memory(second)]).await;
        });
        ((client, task), sender)
    }

    fn answers(&self, client: &SimConn, count: usize) -> Vec<i32> {
        answers(&self.world, client, count)
    }

    fn log(&self) -> Vec<i32> {
        self.rule.log.borrow().iter().map(|(id, _)| *id).collect()
    }
}

/// Sends, without waiting for more than the wire takes.
fn send(world: &SimRuntime, client: &SimConn, bytes: Vec<u8>) {
    let client = client.clone();
    world.block_on(async move {
        client.write(smallvec![Span::Memory(Bytes::from(bytes))]).await.unwrap();
    });
}

/// Reads so many answers: their correlation ids.
fn answers(world: &SimRuntime, client: &SimConn, count: usize) -> Vec<i32> {
    let client = client.clone();
    world.block_on(async move {
        let mut buffer = BytesMut::new();
        let mut ids = Vec::new();
        while ids.len() < count {
            while let Some(size) = buffer.first_chunk::<4>().map(|size| u32::from_be_bytes(*size)) {
                let whole = usize::try_from(size).unwrap() + 4;
                if buffer.len() < whole {
                    break;
                }
                let answer = buffer.split_to(whole);
                ids.push(i32::from_be_bytes(answer[4..8].try_into().unwrap()));
            }
            if ids.len() < count && client.read(&mut buffer, 1 << 20).await.unwrap() == 0 {
                break;
            }
        }
        assert!(buffer.is_empty() || ids.len() < count, "more answers than requests");
        ids
    })
}

fn frame(key: i16, version: i16, id: i32, client: Option<&str>, body: &[u8]) -> Vec<u8> {
    let mut bytes = key.to_be_bytes().to_vec();
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.extend_from_slice(&id.to_be_bytes());
    match client {
        Some(name) => {
            bytes.extend_from_slice(&i16::try_from(name.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        None => bytes.extend_from_slice(&(-1i16).to_be_bytes()),
    }
    bytes.extend_from_slice(body);
    let mut framed = i32::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
    framed.extend_from_slice(&bytes);
    framed
}

fn produce(id: i32, what: u8) -> Vec<u8> {
    frame(PRODUCE, 3, id, Some("c"), &[what; 100])
}

fn fetch(id: i32) -> Vec<u8> {
    frame(FETCH, 4, id, Some("c"), &[])
}

fn parked_fetch(id: i32) -> Vec<u8> {
    frame(FETCH, 4, id, Some("c"), &[PARKED])
}

fn metadata(id: i32) -> Vec<u8> {
    frame(METADATA, 1, id, Some("c"), &[])
}

/// More than a small frame may be with the budgets of these tests.
fn large_metadata(id: i32) -> Vec<u8> {
    frame(METADATA, 1, id, Some("c"), &[0; 40_000])
}

fn api_versions(id: i32) -> Vec<u8> {
    frame(API_VERSIONS, 0, id, Some("c"), &[])
}

/// The broker must close without an answer.
fn is_refused(bytes: Vec<u8>) {
    let broker = broker(1);
    let client = broker.connect();
    broker.send(&client, bytes);
    broker.world.advance_ms(10);
    assert!(client.is_closed());
    assert_eq!(client.unread_bytes(), 0);
    assert!(broker.log().is_empty());
    assert_eq!(broker.connections.count(), 0);
    assert_eq!(broker.connections.memory().used(), 0);
}

/// Statements 7, 9 and 10, and frames that hold no header.
#[test]
fn frames_of_bad_size_and_unserved_apis_close_the_connection() {
    is_refused((-1i32).to_be_bytes().to_vec());
    is_refused(104_857_601i32.to_be_bytes().to_vec());
    is_refused(i32::MIN.to_be_bytes().to_vec());
    is_refused(0i32.to_be_bytes().to_vec());
    is_refused(frame(999, 0, 1, None, &[]));
    is_refused(frame(PRODUCE, 2, 1, None, &[]));
    is_refused(frame(METADATA, -1, 1, None, &[]));
    is_refused(vec![0, 0, 0, 9, 0, 3, 0, 1, 0, 0, 0, 1, 0x7f]);
}

/// Statement 14.
#[test]
fn a_null_client_id_is_the_empty_one() {
    let broker = broker(2);
    let client = broker.connect();
    broker.send(&client, [frame(METADATA, 1, 1, None, &[]), frame(METADATA, 1, 2, Some("ä"), &[])].concat());
    assert_eq!(broker.answers(&client, 2), [1, 2]);
    assert_eq!(*broker.rule.log.borrow(), [(1, String::new()), (2, "ä".to_owned())]);
}

/// Statement 2.2, first row: the version is passed on as it was sent.
#[test]
fn an_unknown_version_of_api_versions_reaches_the_handler() {
    let broker = broker(2);
    let client = broker.connect();
    broker.send(&client, frame(API_VERSIONS, 99, 5, Some("c"), &[0, 1, 2]));
    assert_eq!(broker.answers(&client, 1), [5]);
}

/// Statement 15, and F12: fifty pipelined requests of which some wait; every answer at its place.
#[test]
fn answers_keep_the_order_of_requests_whatever_each_waits_for() {
    for seed in 0..20 {
        let broker = broker(seed);
        let client = broker.connect();
        let requests = (0..50).flat_map(|id| match id % 5 {
            0 => fetch(id),
            1 => metadata(id),
            2 | 3 => produce(id, ACKS_ALL),
            _ => api_versions(id),
        });
        broker.send(&client, requests.collect());
        assert_eq!(broker.answers(&client, 50), (0..50).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(broker.log(), (0..50).collect::<Vec<_>>());
        assert_eq!(broker.rule.overlap.get().1, 1, "one call to the handler at a time");
    }
}

/// Statement 16 at this level: the next Produce starts when one is accepted, a Metadata only when all are answered.
#[test]
fn produces_overlap_up_to_the_bound_and_nothing_else_does() {
    let settings = ConnectionSettings { in_flight_max: 5, ..ConnectionSettings::default() };
    let broker = broker_with(3, settings, 0);
    let client = broker.connect();
    let requests = (0..7).flat_map(|id| produce(id, PARKED)).chain(metadata(7));
    broker.send(&client, requests.collect());
    broker.world.advance_ms(10);
    assert_eq!(broker.log(), [0, 1, 2, 3, 4]);
    // The second is done first, and waits for the first.
    let release = |id: i32| broker.rule.parked.borrow_mut().remove(&id).unwrap().send(()).unwrap();
    release(1);
    broker.world.advance_ms(10);
    assert_eq!(client.unread_bytes(), 0);
    release(0);
    assert_eq!(broker.answers(&client, 2), [0, 1]);
    broker.world.advance_ms(10);
    assert_eq!(broker.log(), [0, 1, 2, 3, 4, 5, 6]);
    (2..7).for_each(release);
    assert_eq!(broker.answers(&client, 6), [2, 3, 4, 5, 6, 7]);
    assert_eq!(broker.connections.memory().used(), 0);
}

/// Statement 17, and F13.
#[test]
fn produce_without_acks_leaves_no_bytes() {
    let broker = broker(4);
    let client = broker.connect();
    let requests = (0..5).flat_map(|id| produce(id, ACKS_NONE)).chain(api_versions(5));
    broker.send(&client, requests.collect());
    assert_eq!(broker.answers(&client, 1), [5]);
    broker.world.advance_ms(1000);
    assert_eq!(client.unread_bytes(), 0);
}

/// Statement 18: answers of earlier requests leave first.
#[test]
fn a_handler_that_closes_closes_after_the_earlier_answers() {
    let broker = broker(5);
    let client = broker.connect();
    broker.send(&client, [produce(1, ACKS_ALL), produce(2, REFUSED), metadata(3)].concat());
    assert_eq!(broker.answers(&client, 2), [1]);
    assert!(client.is_closed());
    assert_eq!(broker.log(), [1, 2]);
}

#[test]
fn an_answer_that_cannot_be_finished_closes_the_connection_after_what_has_arrived() {
    for seed in 0..20 {
        let broker = broker(seed);
        let client = broker.connect();
        broker.send(&client, [produce(1, TORN), metadata(2)].concat());
        broker.world.advance_ms(1000);
        assert_eq!(broker.log(), [1, 2], "seed {seed}");
        assert!(client.is_closed());
        assert_eq!(broker.connections.count(), 0);
    }
}

/// Statement 19.
#[test]
fn what_arrived_before_the_client_closed_is_executed() {
    for seed in 0..20 {
        let broker = broker(seed);
        let client = broker.connect();
        let requests = (0..20).flat_map(|id| produce(id, ACKS_NONE)).chain(produce(20, ACKS_ALL));
        // The client goes before anything is read, and with half a frame on the way.
        broker.send(&client, requests.chain(metadata(21)).chain(vec![0, 0, 0, 50, 1]).collect());
        drop(client);
        broker.world.advance_ms(1000);
        assert_eq!(broker.log(), (0..=21).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(broker.connections.count(), 0);
        assert_eq!(broker.connections.memory().used(), 0);
    }
}

/// A half-closed client still gets its answers.
#[test]
fn a_client_that_only_stops_sending_gets_its_answers() {
    let broker = broker(6);
    let client = broker.connect();
    broker.send(&client, [produce(1, ACKS_ALL), fetch(2)].concat());
    client.finish();
    assert_eq!(broker.answers(&client, 3), [1, 2]);
}

/// Whatever a request waits for, its client's end ends the wait: what was received behind it is executed, and the
/// connection goes.
#[test]
fn a_parked_request_does_not_outlive_its_client() {
    for seed in 0..10 {
        let broker = broker(seed);
        let clients: Vec<_> = (0..6).map(|_| broker.connect()).collect();
        for (client, behind) in clients.iter().zip([
            vec![],
            metadata(2),
            [metadata(2), parked_fetch(3), produce(4, ACKS_ALL)].concat(),
            vec![0],
            produce(2, ACKS_ALL)[..60].to_vec(),
            vec![0; 3 * 60_000],
        ]) {
            let (client, bytes) = (client.clone(), [parked_fetch(1), behind].concat());
            let rest = broker.rule.runtime.spawn(storage::io::Queue::Request, async move {
                let _ = client.write(smallvec![Span::Memory(Bytes::from(bytes))]).await;
            });
            broker.world.advance_ms(1);
            drop(rest);
        }
        broker.world.advance_ms(60_000);
        assert_eq!(broker.log(), [1; 6], "seed {seed}: all wait as long as their clients are there");
        assert!(clients.iter().all(|client| !client.is_closed() && client.unread_bytes() == 0));
        drop(clients);
        broker.world.advance_ms(3_000);
        let mut log = broker.log();
        log.sort_unstable();
        assert_eq!(log, [1, 1, 1, 1, 1, 1, 2, 2, 3, 4], "seed {seed}");
        assert_eq!(broker.connections.count(), 0, "seed {seed}");
        assert_eq!(broker.connections.memory().used(), 0);
    }
}

/// The same for a client that has only stopped to send: it is answered with what is there.
#[test]
fn a_half_closed_client_is_answered_without_a_wait() {
    for seed in 0..10 {
        let broker = broker(seed);
        let client = broker.connect();
        broker.send(
            &client,
            [parked_fetch(1), parked_fetch(2), produce(3, ACKS_ALL), parked_fetch(4)].concat(),
        );
        broker.world.advance_ms(seed * 400);
        client.finish();
        let before = broker.rule.runtime.now();
        assert_eq!(broker.answers(&client, 5), [1, 2, 3, 4], "seed {seed}");
        assert!(broker.rule.runtime.now() < before.plus_ms(2_000), "seed {seed}");
    }
}

#[test]
fn a_parked_request_does_not_outlive_a_failed_answer() {
    let broker = broker(1);
    let client = broker.connect();
    broker.send(&client, [produce(1, TORN), parked_fetch(2), produce(3, ACKS_ALL)].concat());
    broker.world.advance_ms(1_000);
    assert_eq!(broker.log(), [1, 2, 3]);
    assert_eq!(broker.connections.count(), 0);
}

/// F10 and F11: what is claimed and not sent costs nothing.
#[test]
fn fifty_claims_of_ninety_megabytes_cost_what_they_sent() {
    let broker = broker(7);
    let clients: Vec<_> = (0..50).map(|_| broker.connect()).collect();
    for client in &clients {
        broker.send(client, [&(90i32 << 20).to_be_bytes()[..], &[0; 10]].concat());
    }
    broker.world.advance_ms(10);
    assert_eq!(broker.connections.memory().used(), 50 * 14);
    let other = broker.connect();
    broker.send(&other, metadata(1));
    assert_eq!(broker.answers(&other, 1), [1]);
}

#[test]
fn a_large_frame_arrives_whole_and_the_next_with_it() {
    let broker = broker(8);
    let client = broker.connect();
    let body = vec![ACKS_ALL; 3 << 20];
    broker.send(&client, [frame(PRODUCE, 3, 1, None, &body), metadata(2)].concat());
    assert_eq!(broker.answers(&client, 2), [1, 2]);
    assert_eq!(broker.connections.memory().used(), 0);
}

/// over the budget nobody reads on but one, which can always finish; the others follow.
#[test]
fn under_pressure_one_frame_finishes_after_the_other() {
    let settings = ConnectionSettings { memory_bytes_max: 1 << 20, ..ConnectionSettings::default() };
    for seed in 0..10 {
        let broker = broker_with(seed, settings, 0);
        let clients: Vec<_> = (0..6).map(|_| broker.connect()).collect();
        let body = vec![ACKS_ALL; 2 << 20];
        let sends: Vec<_> = clients
            .iter()
            .map(|client| {
                let (client, bytes) = (client.clone(), frame(PRODUCE, 3, 1, None, &body));
                async move {
                    let spans = smallvec![Span::Memory(Bytes::from(bytes))];
                    client.write(spans).await.unwrap();
                }
            })
            .collect();
        let most = Rc::new(Cell::new(0));
        let (seen, memory) = (most.clone(), broker.connections.clone());
        let runtime = broker.rule.runtime.clone();
        broker.world.block_on(async move {
            let watch = async {
                loop {
                    seen.set(memory.memory().used().max(seen.get()));
                    runtime.turn().await;
                }
            };
            let all = futures_util::future::join_all(sends);
            futures_util::future::select(std::pin::pin!(all), std::pin::pin!(watch)).await;
        });
        for client in &clients {
            assert_eq!(broker.answers(client, 1), [1], "seed {seed}");
        }
        // The budget, the one frame beyond it, and the read that filled it.
        assert!(most.get() > 1 << 20 && most.get() < (1 << 20) + (2 << 20) + (256 << 10) + 100);
        assert_eq!(broker.connections.memory().used(), 0);
    }
}

/// large frames do not take what is kept for small ones, however many come and however long they take.
#[test]
fn small_requests_do_not_wait_behind_large_ones() {
    let settings = ConnectionSettings { memory_bytes_max: 1 << 20, ..ConnectionSettings::default() };
    for seed in 0..10 {
        let broker = broker_with(seed, settings, 0);
        // Of twelve large frames all but the end comes: one is read beyond the budget, the others wait.
        let bytes = frame(PRODUCE, 3, 1, None, &vec![ACKS_ALL; 2 << 20]);
        let (large, ends): (Vec<_>, Vec<_>) = (0..12).map(|_| broker.send_halves(&bytes, 2 << 20)).unzip();
        broker.world.advance_ms(100);
        assert!(broker.connections.memory().used() > 1 << 20, "seed {seed}");
        let before = broker.rule.runtime.now();
        for id in 0..100 {
            let small = broker.connect();
            broker.send(&small, produce(id, ACKS_ALL));
            assert_eq!(broker.answers(&small, 1), [id], "seed {seed}");
        }
        // Each takes the up to 5 ms of its handler.
        assert!(broker.rule.runtime.now() < before.plus_ms(700), "seed {seed}");
        // Nor do the large ones wait for ever.
        ends.into_iter().for_each(|end| end.send(()).unwrap());
        for (client, _task) in &large {
            assert_eq!(broker.answers(client, 1), [1], "seed {seed}");
        }
        assert_eq!(broker.connections.memory().used(), 0);
    }
}

/// who could not be read from for want of memory is not slow for that.
#[test]
fn a_frame_that_waited_for_memory_has_its_time_anew() {
    let settings = ConnectionSettings { memory_bytes_max: 1 << 20, ..ConnectionSettings::default() };
    let broker = broker_with(15, settings, 0);
    let holder = broker.connect();
    broker.send(&holder, frame(PRODUCE, 3, 1, None, &vec![PARKED; 2 << 20]));
    let bytes = frame(METADATA, 1, 2, None, &vec![0; 2 << 20]);
    let (waiting, ends): (Vec<_>, Vec<_>) = (0..3).map(|_| broker.send_halves(&bytes, 2 << 20)).unzip();
    broker.world.advance_ms(5_000);
    broker.rule.parked.borrow_mut().remove(&1).unwrap().send(()).unwrap();
    // The first of them is read now, and the others wait for it.
    broker.world.advance_ms(500);
    assert!(waiting.iter().all(|(client, _)| !client.is_closed()));
    ends.into_iter().for_each(|end| end.send(()).unwrap());
    for (client, _task) in &waiting {
        assert_eq!(broker.answers(client, 1), [2]);
    }
    assert_eq!(broker.connections.memory().used(), 0);
}

/// a slow sender that fills the budget goes, the fast one is served.
#[test]
fn under_pressure_the_slowest_frame_is_closed() {
    let settings = ConnectionSettings { memory_bytes_max: 1 << 20, ..ConnectionSettings::default() };
    let broker = broker_with(9, settings, 0);
    let slow = broker.connect();
    let announced = (90i32 << 20).to_be_bytes();
    broker.send(&slow, [&announced[..], &vec![0; 2 << 20][..]].concat());
    // What is small and slow is in nobody's way.
    let small = broker.connect();
    broker.send(&small, metadata(1)[..9].to_vec());
    let other = broker.connect();
    broker.send(&other, large_metadata(1));
    broker.world.advance_ms(500);
    assert!(!slow.is_closed());
    assert_eq!(other.unread_bytes(), 0, "nobody with a large frame is read while the budget is used up");
    assert_eq!(broker.answers(&other, 1), [1]);
    assert!(slow.is_closed() && !small.is_closed());
    drop(small);
    broker.world.advance_ms(10);
    assert_eq!(broker.connections.memory().used(), 0);
}

/// who takes no answers and has sent a whole frame more keeps its memory from the others no longer than a moment;
/// without that frame it keeps nothing, and stays.
#[test]
fn under_pressure_who_keeps_memory_behind_answers_not_taken_is_closed() {
    let settings = ConnectionSettings { memory_bytes_max: 1 << 20, ..ConnectionSettings::default() };
    for seed in 0..10 {
        let broker = broker_with(seed, settings, 300_000);
        let (greedy, slow) = (broker.connect(), broker.connect());
        broker.send(&slow, metadata(1));
        broker.send(&greedy, produce(1, ACKS_ALL));
        broker.world.advance_ms(100);
        broker.send(&greedy, frame(METADATA, 1, 2, None, &vec![0; 2 << 20]));
        broker.world.advance_ms(100);
        assert!(broker.connections.memory().used() > 1 << 20, "seed {seed}");
        let other = broker.connect();
        broker.send(&other, large_metadata(1));
        assert_eq!(broker.answers(&other, 1), [1], "seed {seed}");
        assert!(greedy.is_closed() && !slow.is_closed(), "seed {seed}");
        assert_eq!(broker.connections.memory().used(), 0);
    }
}

/// a large request that waits for what is not there keeps its memory from nobody; the next one waits again.
#[test]
fn under_pressure_a_large_parked_request_waits_no_longer() {
    let settings = ConnectionSettings { memory_bytes_max: 1 << 20, ..ConnectionSettings::default() };
    for seed in 0..10 {
        let broker = broker_with(seed, settings, 0);
        let (large, small) = (broker.connect(), broker.connect());
        broker.send(&small, parked_fetch(1));
        broker.send(&large, frame(FETCH, 4, 1, None, &vec![PARKED; 2 << 20]));
        broker.world.advance_ms(10_000);
        assert!(broker.connections.memory().used() > 1 << 20, "seed {seed}");
        let other = broker.connect();
        let before = broker.rule.runtime.now();
        broker.send(&other, large_metadata(1));
        assert_eq!(broker.answers(&other, 1), [1], "seed {seed}");
        assert!(broker.rule.runtime.now() < before.plus_ms(500), "seed {seed}");
        assert_eq!(broker.answers(&large, 1), [1], "seed {seed}");
        broker.send(&large, parked_fetch(2));
        broker.world.advance_ms(10_000);
        assert_eq!((large.unread_bytes(), small.unread_bytes()), (0, 0));
        assert!(!large.is_closed() && !small.is_closed());
    }
}

/// Statement 93. As in Kafka only bytes count: a client that is gone without a word is parked as one that is there.
#[test]
fn idle_connections_are_closed_also_while_a_request_waits() {
    let settings = ConnectionSettings { idle_ms_max: 10_000, ..ConnectionSettings::default() };
    let broker = broker_with(10, settings, 0);
    let (silent, active) = (broker.connect(), broker.connect());
    let (fetching, producing, answered) = (broker.connect(), broker.connect(), broker.connect());
    broker.send(&fetching, parked_fetch(1));
    broker.send(&producing, [produce(2, PARKED), metadata(3)].concat());
    broker.send(&answered, produce(4, PARKED));
    for round in 0..4 {
        broker.send(&active, metadata(round));
        broker.world.advance_ms(4_000);
        if round == 1 {
            broker.rule.parked.borrow_mut().remove(&4).unwrap().send(()).unwrap();
            assert_eq!(broker.answers(&answered, 1), [4]);
        }
        for idle in [&silent, &fetching, &producing] {
            assert_eq!(idle.is_closed(), round >= 2, "round {round}");
        }
    }
    assert!(!active.is_closed() && !answered.is_closed());
    assert_eq!(broker.connections.count(), 2, "nothing is left of the others");
    broker.world.advance_ms(11_000);
    assert!(active.is_closed() && answered.is_closed());
    assert_eq!(broker.connections.memory().used(), 0);
}

/// A client that never reads: it holds one answer and what was accepted, is not read from, and goes when idle.
#[test]
fn a_client_that_never_reads_is_not_read_from_and_closed_in_the_end() {
    let settings = ConnectionSettings { idle_ms_max: 10_000, ..ConnectionSettings::default() };
    let broker = broker_with(11, settings, 300_000);
    let client = broker.connect();
    let requests: Vec<u8> = (0..2000).flat_map(metadata).collect();
    let total = requests.len();
    let writer = client.clone();
    let task = broker.rule.runtime.spawn(storage::io::Queue::Request, async move {
        let _ = writer.write(smallvec![Span::Memory(Bytes::from(requests))]).await;
    });
    broker.world.advance_ms(9_000);
    assert!(broker.log().len() < 3, "the second answer finds no room");
    assert!(broker.connections.memory().used() < total);
    let other = broker.connect();
    broker.send(&other, metadata(1));
    assert_eq!(broker.answers(&other, 1), [1]);
    broker.world.advance_ms(2_000);
    assert!(client.is_closed());
    drop(task);
}

#[test]
fn a_drain_lets_requests_finish_and_ends_those_that_do_not() {
    let broker = broker(12);
    let (idle, busy, stuck) = (broker.connect(), broker.connect(), broker.connect());
    broker.send(&busy, fetch(1));
    broker.send(&stuck, produce(2, PARKED));
    broker.world.advance_ms(10);
    let (connections, by) = (broker.connections.clone(), broker.rule.runtime.now().plus_ms(2_000));
    let task = broker.rule.runtime.spawn(storage::io::Queue::Control, async move {
        connections.drain(by).await;
    });
    broker.world.advance_ms(100);
    assert!(idle.is_closed() && !busy.is_closed() && !stuck.is_closed());
    assert_eq!(broker.answers(&busy, 1), [1]);
    broker.world.advance_ms(100);
    assert!(busy.is_closed() && !stuck.is_closed());
    broker.world.advance_ms(2_000);
    assert!(stuck.is_closed());
    assert_eq!(broker.connections.count(), 0);
    assert!(broker.connect().is_closed(), "no more are taken");
    drop(task);
}

/// A stop takes no longer because somebody waits for what is not there; who waits for what is promised is not cut.
#[test]
fn a_drain_answers_parked_requests_at_once_and_lets_produces_finish() {
    let broker = broker(13);
    let (fetching, producing) = (broker.connect(), broker.connect());
    broker.send(&fetching, [parked_fetch(1), parked_fetch(2)].concat());
    broker.send(&producing, produce(3, PARKED));
    broker.world.advance_ms(2_000);
    let (connections, by) = (broker.connections.clone(), broker.rule.runtime.now().plus_ms(5_000));
    let task = broker.rule.runtime.spawn(storage::io::Queue::Control, async move {
        connections.drain(by).await;
    });
    broker.world.advance_ms(10);
    assert_eq!(broker.answers(&fetching, 3)[0], 1);
    assert!(fetching.is_closed() && !producing.is_closed());
    broker.rule.parked.borrow_mut().remove(&3).unwrap().send(()).unwrap();
    assert_eq!(broker.answers(&producing, 1), [3]);
    broker.world.advance_ms(10);
    assert_eq!(broker.connections.count(), 0);
    drop(task);
}

#[test]
fn a_drain_does_not_wait_for_who_takes_no_answers() {
    let broker = broker_with(14, ConnectionSettings::default(), 300_000);
    let (deaf, slow) = (broker.connect(), broker.connect());
    broker.send(&deaf, metadata(1));
    broker.world.advance_ms(2_000);
    broker.send(&slow, metadata(2));
    broker.world.advance_ms(10);
    let (connections, by) = (broker.connections.clone(), broker.rule.runtime.now().plus_ms(5_000));
    let task = broker.rule.runtime.spawn(storage::io::Queue::Control, async move {
        connections.drain(by).await;
    });
    broker.world.advance_ms(500);
    assert!(deaf.is_closed() && !slow.is_closed());
    assert_eq!(broker.answers(&slow, 1), [2]);
    broker.world.advance_ms(100);
    assert_eq!(broker.connections.count(), 0);
    drop(task);
}

/// What has arrived as a whole is answered; nobody waits for the rest of what has not, however it trickles in.
#[test]
fn a_drain_does_not_wait_for_the_rest_of_a_frame() {
    let broker = broker(16);
    let whole = produce(1, ACKS_ALL);
    let half = &whole[..60];
    let (silent, trickling, behind, pipelining) =
        (broker.connect(), broker.connect(), broker.connect(), broker.connect());
    broker.send(&silent, half.to_vec());
    broker.send(&trickling, half[..5].to_vec());
    broker.send(&behind, [&produce(2, PARKED)[..], half].concat());
    broker.send(&pipelining, [fetch(3), api_versions(4)].concat());
    let ((late, _late), end) = broker.send_halves(&metadata(5), 9);
    broker.world.advance_ms(10);
    let (connections, by) = (broker.connections.clone(), broker.rule.runtime.now().plus_ms(5_000));
    let began = broker.rule.runtime.now();
    let task = broker.rule.runtime.spawn(storage::io::Queue::Control, async move {
        connections.drain(by).await;
    });
    broker.world.advance_ms(20);
    end.send(()).unwrap();
    assert_eq!(broker.answers(&late, 1), [5]);
    for at in 5..12 {
        if !trickling.is_closed() {
            broker.send(&trickling, half[at..=at].to_vec());
        }
        broker.world.advance_ms(30);
    }
    assert!(silent.is_closed() && trickling.is_closed() && late.is_closed());
    assert!(!behind.is_closed() && !pipelining.is_closed(), "there are answers to come");
    broker.rule.parked.borrow_mut().remove(&2).unwrap().send(()).unwrap();
    assert_eq!(broker.answers(&behind, 2), [2]);
    assert_eq!(broker.answers(&pipelining, 1), [3]);
    broker.world.advance_ms(20);
    assert_eq!(broker.connections.count(), 0);
    assert!(broker.rule.runtime.now() < began.plus_ms(1_000));
    assert_eq!(broker.connections.memory().used(), 0);
    drop(task);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    /// P-5 at the level of frames: whatever comes, the connection is answered or closed, nothing stays charged, and
    /// another client is served.
    #[test]
    fn garbage_is_answered_or_closed_and_costs_nothing(
        seed: u64,
        parts in proptest::collection::vec(
            proptest::prop_oneof![
                proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60),
                (0i16..20, 0i16..13, proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40))
                    .prop_map(|(key, version, body)| frame(key, version, 1, Some("x"), &body)),
            ],
            0..8,
        ),
    ) {
        let broker = broker(seed);
        let client = broker.connect();
        broker.send(&client, parts.concat());
        broker.world.advance_ms(10);
        let other = broker.connect();
        broker.send(&other, metadata(7));
        proptest::prop_assert_eq!(broker.answers(&other, 1), [7]);
        drop((client, other));
        for (_, parked) in broker.rule.parked.take() {
            let _ = parked.send(());
        }
        // Each Fetch takes half a second, one after the other.
        broker.world.advance_ms(10_000);
        for (_, parked) in broker.rule.parked.take() {
            let _ = parked.send(());
        }
        broker.world.advance_ms(10_000);
        proptest::prop_assert_eq!(broker.connections.count(), 0);
        proptest::prop_assert_eq!(broker.connections.memory().used(), 0);
    }
}

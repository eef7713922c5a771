//! A real broker with clients whose fetches wait for weeks: those that vanish leave nothing behind, those that only stop
//! to send are answered, and a stop does not wait for any of them.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process from outside"
)]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use bench_harness::client::Client;
use protocol::api::RequestHeader;
use protocol::codec::Writer;
use protocol::messages::fetch::{FetchPartition, FetchTopics};
use protocol::messages::{FetchRequest, Message};
use protocol::types::TopicId;
use support::Broker;

const LIMIT: Duration = Duration::from_secs(60);
const PARTITIONS: i32 = 4;
const VERSION: i16 = 11;

/// A fetch at the end of some partitions that would wait for weeks.
fn parked_fetch(partitions: impl Iterator<Item = i32>) -> Vec<u8> {
    let mut topics = FetchTopics::default();
    let wanted = |partition| FetchPartition { partition, partition_max_bytes: 1 << 20, ..Default::default() };
    topics.push("parked", TopicId::ZERO, partitions.map(wanted));
    let request = FetchRequest {
        max_wait_ms: i32::MAX,
        min_bytes: 1,
        max_bytes: 1 << 20,
        session_epoch: -1,
        topics,
        ..FetchRequest::default()
    };
    let (api_key, api_version) = (FetchRequest::KEY, VERSION);
    let mut writer = Writer::new();
    RequestHeader { api_key, api_version, correlation_id: 7, client_id: Some("parked") }.encode(&mut writer);
    request.encode(&mut writer, VERSION);
    writer.into_frame().to_vec()
}

fn start(shards: u16) -> Broker {
    let broker = Broker::start(shards, &[]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("parked", PARTITIONS).expect("create");
    for partition in 0..PARTITIONS {
        let fetched = client.fetch("parked", partition, 0, Duration::from_millis(1)).expect("fetch");
        assert_eq!(fetched.error_code, 0);
    }
    broker
}

/// Clients whose fetches wait: for one partition, for one of each, with a request behind the fetch, and a part of one.
fn park(broker: &Broker, count: usize) -> Vec<TcpStream> {
    let behind: [&[u8]; 3] = [&[], &[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff], &[0, 0]];
    let park = |index: usize| {
        let mut stream = TcpStream::connect(("127.0.0.1", broker.port())).expect("connect");
        stream.set_read_timeout(Some(LIMIT)).expect("timeout");
        let one = i32::try_from(index).expect("few") % (PARTITIONS + 1);
        let fetch = if one == PARTITIONS { parked_fetch(0..PARTITIONS) } else { parked_fetch(one..one + 1) };
        stream.write_all(&[&fetch[..], behind[index % behind.len()]].concat()).expect("send");
        stream
    };
    (0..count).map(park).collect()
}

fn descriptors(broker: &Broker) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", broker.pid())).expect("running process").count()
}

fn await_descriptors(broker: &Broker, what: &str, is_there: impl Fn(usize) -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_there(descriptors(broker)) {
        assert!(Instant::now() < deadline, "{what}: {} descriptors", descriptors(broker));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The fetch is answered: without an error, for the partitions there are.
fn is_answered(mut stream: &TcpStream) {
    let mut head = [0; 14];
    stream.read_exact(&mut head).expect("an answer");
    assert_eq!(head[4..8], [0, 0, 0, 7]);
    assert_eq!(head[12..14], [0, 0]);
}

fn clients_that_vanish_leave_nothing(shards: u16) {
    const CLIENTS: usize = 90;
    let mut broker = start(shards);
    await_descriptors(&broker, "the first client goes", |count| count < 200);
    let before = descriptors(&broker);
    let clients = park(&broker, CLIENTS);
    await_descriptors(&broker, "all are there", |count| count >= before + CLIENTS - 1);
    let mut only_stop = Vec::new();
    for (index, client) in clients.into_iter().enumerate() {
        if index % 2 == 0 {
            client.shutdown(Shutdown::Write).expect("shutdown");
            only_stop.push(client);
        }
    }
    only_stop.iter().for_each(is_answered);
    drop(only_stop);
    await_descriptors(&broker, "all have gone", |count| count <= before);
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

#[test]
fn clients_that_vanish_while_a_fetch_waits_leave_no_descriptor_on_one_shard() {
    clients_that_vanish_leave_nothing(1);
}

#[test]
fn clients_that_vanish_while_a_fetch_waits_leave_no_descriptor_on_two_shards() {
    clients_that_vanish_leave_nothing(2);
}

/// Without an answer the stop has waited for them, until its patience was over.
#[test]
fn a_stop_answers_fetches_that_wait() {
    for shards in [1, 2] {
        let mut broker = start(shards);
        let before = descriptors(&broker);
        let clients = park(&broker, 20);
        await_descriptors(&broker, "all are there", |count| count >= before + 19);
        assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
        assert!(!broker.log().contains("took too long"), "{}", broker.log());
        clients.iter().for_each(is_answered);
    }
}

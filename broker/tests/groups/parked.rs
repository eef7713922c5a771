//! Joins and syncs that wait for minutes: a stop does not wait for them, clients that vanish leave nothing behind, and they
//! keep no memory of others.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bench_harness::client::Client;
use protocol::api::RequestHeader;
use protocol::codec::Writer;
use protocol::messages::{JoinGroupRequest, Message};

use super::harness::{
    JOIN, Join, LIMIT, RANGE, SYNC, await_state, code, connect, describe, joined, joining, on_each,
    send_sync, stable, start, synced,
};
use crate::support::{Broker, free_port, metrics};

/// A first rebalance that waits longer than any test.
const SLOW: &str = "group.initial.rebalance.delay.ms=600000";

/// A client whose join waits. Version 3 is admitted directly.
fn parked(broker: &Broker, group: &str) -> (Client, i32) {
    let mut client = connect(broker);
    let join = Join { version: 3, rebalance_timeout_ms: 600_000, ..joining(group, "") };
    let correlation_id = join.send(&mut client);
    (client, correlation_id)
}

fn await_members(client: &mut Client, group: &str, count: usize) {
    let deadline = Instant::now() + LIMIT;
    while describe(client, 5, group).members.len() < count {
        assert!(Instant::now() < deadline, "{:?}", describe(client, 5, group));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until so many requests wait with their coordinators, as the admin endpoint tells it.
fn await_waiting(admin: u16, count: usize) {
    let wanted = format!("odradek_group_requests_waiting {count}");
    let deadline = Instant::now() + LIMIT;
    loop {
        let text = metrics(("127.0.0.1", admin)).expect("admin endpoint");
        if text.lines().any(|line| line == wanted) {
            return;
        }
        assert!(Instant::now() < deadline, "not {count} requests wait:\n{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_stop_answers_joins_and_syncs_that_wait() {
    for shards in [1, 2] {
        let mut broker = start(shards, &[SLOW]);
        let mut admin = connect(&broker);
        let waiting: Vec<_> = (0..20).map(|i| parked(&broker, &format!("g-{}", i % 5))).collect();
        for group in (0..5).map(|i| format!("g-{i}")) {
            await_members(&mut admin, &group, 4);
        }
        assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
        assert!(!broker.log().contains("took too long"), "{}", broker.log());
        for (mut client, correlation_id) in waiting {
            let told = joined(&mut client, 3, correlation_id);
            assert_eq!((told.error, told.generation), (code::NOT_COORDINATOR, -1), "{told:?}");
        }
    }
    for shards in [1, 2] {
        let admin = free_port();
        let mut broker = start(shards, &[&format!("admin.listener=127.0.0.1:{admin}")]);
        let (mut one, mut two) = (connect(&broker), connect(&broker));
        let first = stable(&mut one, "g");
        let id = joining("g", "").call(&mut two).member;
        let pending = joining("g", &id).send(&mut two);
        await_state(&mut one, "g", "PreparingRebalance");
        joining("g", &first.member).call(&mut one);
        let follower = joined(&mut two, JOIN, pending);
        let waiting = send_sync(&mut two, SYNC, follower.identity("g"), RANGE, &[]);
        await_waiting(admin, 1);
        assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
        assert!(!broker.log().contains("took too long"), "{}", broker.log());
        assert_eq!(synced(&mut two, SYNC, waiting).0, code::NOT_COORDINATOR);
    }
}

/// Sockets of connections that the broker holds: all but those that listen, and the pipes within the process.
fn connections(broker: &Broker) -> usize {
    const LISTEN: &str = "0A";
    let table = |name: &str| std::fs::read_to_string(format!("/proc/net/{name}")).expect("Linux");
    let column = |line: &str, at: usize| line.split_whitespace().nth(at).map(str::to_owned);
    let (unix, tcp) = (table("unix"), table("tcp"));
    let listening = tcp.lines().filter(|line| column(line, 3).as_deref() == Some(LISTEN));
    let others = unix.lines().map(|line| column(line, 6)).chain(listening.map(|line| column(line, 9)));
    let others: BTreeSet<String> = others.flatten().collect();
    let all = std::fs::read_dir(format!("/proc/{}/fd", broker.pid())).expect("running process");
    let links = all.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: PathBuf| {
        let text = link.to_string_lossy().into_owned();
        Some(text.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    links.filter_map(inode).filter(|inode| !others.contains(inode)).count()
}

/// Waits until something is as it should be.
fn await_that(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clients_that_vanish_leave_no_descriptor() {
    on_each(&[SLOW], |broker| {
        let mut admin = connect(broker);
        await_that("connections of others are left", || connections(broker) == 1);
        let clients: Vec<_> = (0..30).map(|_| parked(broker, "g")).collect();
        await_members(&mut admin, "g", 30);
        assert_eq!(connections(broker), 31);
        drop(clients);
        await_that("connections are left", || connections(broker) == 1);
        // They are members until their time is over, as in Kafka.
        assert_eq!(describe(&mut admin, 5, "g").members.len(), 30);
    });
}

/// More bytes of joins wait than there is memory for requests: another client is served all the same, and no wait was
/// ended for its sake.
#[test]
fn joins_that_wait_keep_no_memory_of_requests() {
    let limits = ["socket.request.max.bytes=2000000", "queued.max.request.bytes=8000000"];
    on_each(&[&[SLOW], &limits[..]].concat(), |broker| {
        let metadata = vec![1; 1_000_000];
        let request = JoinGroupRequest {
            group_id: "g".into(),
            session_timeout_ms: 60_000,
            rebalance_timeout_ms: 600_000,
            protocol_type: "consumer".into(),
            protocols: vec![protocol::messages::JoinGroupRequestProtocol {
                name: "range".into(),
                metadata: metadata.as_slice().into(),
            }],
            ..JoinGroupRequest::default()
        };
        let mut writer = Writer::new();
        let (api_key, api_version) = (JoinGroupRequest::KEY, 3);
        RequestHeader { api_key, api_version, correlation_id: 7, client_id: Some("large") }
            .encode(&mut writer);
        request.encode(&mut writer, 3);
        let frame = writer.into_frame();
        let park = |_| {
            let mut stream = TcpStream::connect(("127.0.0.1", broker.port())).expect("connect");
            stream.set_read_timeout(Some(Duration::from_millis(1))).expect("timeout");
            stream.write_all(&frame).expect("send");
            stream
        };
        let waiting: Vec<TcpStream> = (0..20).map(park).collect();
        let mut admin = connect(broker);
        await_members(&mut admin, "g", 20);
        for stream in &waiting {
            let peeked = stream.peek(&mut [0; 1]);
            assert!(peeked.is_err(), "a join was answered: {peeked:?}");
        }
    });
}

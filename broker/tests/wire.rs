//! Raw and hostile bytes against a real process, on one shard and on two: protocol.md 5 (1 to 19) and field-faults.md
//! (frames, negotiation). After each attack another client must be served as before.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process from outside"
)]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use support::Broker;

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const METADATA: i16 = 3;
const FIND_COORDINATOR: i16 = 10;
const API_VERSIONS: i16 = 18;
const PATIENCE: Duration = Duration::from_secs(30);

/// A client that writes bytes as told and reads frames.
struct Wire {
    stream: TcpStream,
}

impl Wire {
    fn connect(broker: &Broker) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", broker.port())).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        Self { stream }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send");
    }

    /// The next answer: correlation id and what follows it.
    fn receive(&mut self) -> (i32, Vec<u8>) {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).expect("size of an answer");
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(size)).expect("positive size")];
        self.stream.read_exact(&mut frame).expect("answer");
        let body = frame.split_off(4);
        (i32::from_be_bytes(frame.try_into().expect("four bytes")), body)
    }

    /// Whether the broker closes the connection without sending anything more.
    fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(read) => read == 0,
            Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        }
    }
}

fn string(text: &str) -> Vec<u8> {
    [&i16::try_from(text.len()).expect("short").to_be_bytes()[..], text.as_bytes()].concat()
}

fn framed(payload: &[u8]) -> Vec<u8> {
    [&i32::try_from(payload.len()).expect("size").to_be_bytes()[..], payload].concat()
}

/// A request with header v1.
fn request(key: i16, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    framed(
        &[&key.to_be_bytes()[..], &version.to_be_bytes(), &correlation.to_be_bytes(), &string("wire"), body]
            .concat(),
    )
}

/// A request with header v2 and the given tag section.
fn flexible(key: i16, version: i16, correlation: i32, tags: &[u8], body: &[u8]) -> Vec<u8> {
    framed(
        &[
            &key.to_be_bytes()[..],
            &version.to_be_bytes(),
            &correlation.to_be_bytes(),
            &string("wire"),
            tags,
            body,
        ]
        .concat(),
    )
}

fn api_versions(correlation: i32) -> Vec<u8> {
    request(API_VERSIONS, 0, correlation, &[])
}

/// (key, min, max) of an ApiVersions v0 body, after its error code.
fn api_ranges(body: &[u8]) -> Vec<(i16, i16, i16)> {
    let number = |at: usize| i16::from_be_bytes([body[at], body[at + 1]]);
    let count = i32::from_be_bytes(body[2..6].try_into().expect("count"));
    (0..usize::try_from(count).expect("count"))
        .map(|i| 6 + i * 6)
        .map(|at| (number(at), number(at + 2), number(at + 4)))
        .collect()
}

/// What every attack must leave intact: a new client is answered while the attack goes on. (A wait ends with PATIENCE.)
fn assert_serves(broker: &mut Broker) {
    assert!(broker.is_running(), "the broker ended:\n{}", broker.log());
    let mut wire = Wire::connect(broker);
    wire.send(&api_versions(77));
    assert_eq!(wire.receive().0, 77);
}

/// Runs a test on one shard and on two.
fn on_each(overrides: &[&str], test: impl Fn(&mut Broker)) {
    for shards in [1, 2] {
        let mut broker = Broker::start(shards, overrides);
        test(&mut broker);
        assert_serves(&mut broker);
        assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    }
}

#[test]
fn an_unknown_version_of_api_versions_gets_the_v0_body() {
    on_each(&[], |broker| {
        let mut wire = Wire::connect(broker);
        wire.send(&flexible(API_VERSIONS, 99, 5, &[0], b"junk that nobody parses"));
        let (correlation, body) = wire.receive();
        assert_eq!(correlation, 5);
        assert_eq!(body[..2], 35_i16.to_be_bytes());
        assert_eq!(api_ranges(&body), [(API_VERSIONS, 0, 4)]);
        wire.send(&api_versions(6));
        assert_eq!(wire.receive().0, 6, "the connection stays usable");
    });
}

#[test]
fn api_versions_answers_have_no_tag_byte_in_the_header() {
    on_each(&[], |broker| {
        let mut wire = Wire::connect(broker);
        wire.send(&flexible(API_VERSIONS, 3, 9, &[0], &[5, b'w', b'i', b'r', b'e', 2, b'1', 0]));
        let (_, body) = wire.receive();
        assert_eq!(body[..2], [0, 0], "the error code follows the correlation id");
        assert!(body[2] > 10, "a compact array of keys follows");
        wire.send(&flexible(
            API_VERSIONS,
            3,
            10,
            &[0],
            &[10, b'b', b'a', b'd', b' ', b'n', b'a', b'm', b'e', b'!', 2, b'1', 0],
        ));
        assert_eq!(wire.receive().1[..2], 42_i16.to_be_bytes(), "bad software name");
        wire.send(&api_versions(11));
        assert_eq!(wire.receive().0, 11, "the connection stays usable");
    });
}

#[test]
fn advertised_minimums_are_what_old_clients_look_for() {
    on_each(&[], |broker| {
        let mut wire = Wire::connect(broker);
        wire.send(&api_versions(1));
        let ranges = api_ranges(&wire.receive().1);
        let of = |key: i16| ranges.iter().find(|(k, _, _)| *k == key).map(|(_, min, max)| (*min, *max));
        assert_eq!(of(PRODUCE), Some((0, 11)), "KAFKA-18659");
        assert_eq!(of(METADATA).map(|(min, _)| min), Some(0));
        assert_eq!(of(API_VERSIONS), Some((0, 4)));
        assert_eq!(of(68), None, "a key that is not served is not listed");
    });
}

#[test]
fn frames_that_cannot_be_served_close_the_connection() {
    let huge = [&104_857_601_i32.to_be_bytes()[..], &[0; 8]].concat();
    let attacks: Vec<(&str, Vec<u8>)> = vec![
        ("size -1", (-1_i32).to_be_bytes().to_vec()),
        ("size -2147483648", i32::MIN.to_be_bytes().to_vec()),
        ("size 0", vec![0; 4]),
        ("size above the limit", huge),
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("tls hello", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]),
        ("unknown key", request(999, 0, 1, &[])),
        ("negative key", request(-1, 0, 1, &[])),
        ("produce v2", request(PRODUCE, 2, 1, &[0; 8])),
        ("metadata above our version", request(METADATA, 99, 1, &[])),
        ("negative version", request(METADATA, -1, 1, &[])),
        ("body cut short", request(METADATA, 1, 1, &[0, 0])),
        (
            "produce v9 with 2^32 - 2 topics",
            flexible(PRODUCE, 9, 1, &[0], &[0, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        ),
        ("metadata v1 with 2^31 topics", request(METADATA, 1, 1, &0x7fff_fff0_i32.to_be_bytes())),
        ("metadata v9 with 2^32 - 2 topics", flexible(METADATA, 9, 1, &[0], &[0xff, 0xff, 0xff, 0xff, 0x0f])),
        ("a tag twice", flexible(API_VERSIONS, 3, 1, &[2, 5, 0, 5, 0], &[2, b'w', 2, b'1', 0])),
    ];
    on_each(&[], |broker| {
        for (name, bytes) in &attacks {
            let before = broker.resident_bytes();
            let mut wire = Wire::connect(broker);
            wire.send(bytes);
            assert!(wire.is_closed(), "{name}: must be closed without an answer");
            let grown = broker.resident_bytes().saturating_sub(before);
            assert!(grown < 8 << 20, "{name}: memory grew by {grown}");
            assert_serves(broker);
        }
    });
}

/// A Produce of version 3 that names so many partitions of a topic, without records.
fn produce_of(partitions: usize, acks: i16) -> Vec<u8> {
    let count = i32::try_from(partitions).expect("a count").to_be_bytes();
    let head = [&(-1i16).to_be_bytes()[..], &acks.to_be_bytes(), &1000i32.to_be_bytes(), &1i32.to_be_bytes()];
    let partition = [&[0; 4][..], &(-1i32).to_be_bytes()].concat();
    [head.concat(), string("none"), count.to_vec(), partition.repeat(partitions)].concat()
}

/// Type of the key of FindCoordinator.
const TRANSACTION: u8 = 1;

/// An honest client that is closed for what it sent comes back and fails again: without a line nobody would know why.
#[test]
fn the_operator_is_told_whom_we_close_and_why_and_a_flood_fills_no_log() {
    on_each(&[], |broker| {
        let closed = |bytes: &[u8]| {
            let mut wire = Wire::connect(broker);
            wire.send(bytes);
            assert!(wire.is_closed());
        };
        let tls_hello = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
        for _ in 0..3 {
            closed(&request(PRODUCE, 3, 1, &produce_of(1_000_000, 1)));
        }
        for _ in 0..100 {
            closed(&request(PRODUCE, 3, 1, &produce_of(1, 0)));
            closed(&tls_hello);
            closed(&request(METADATA, 99, 1, &[]));
        }
        let mut wire = Wire::connect(broker);
        for correlation in 0..50 {
            wire.send(&request(
                FIND_COORDINATOR,
                1,
                correlation,
                &[&string("id")[..], &[TRANSACTION]].concat(),
            ));
            assert_eq!(wire.receive().0, correlation);
        }
        let log = broker.log();
        let told: [&[&str]; 5] = [
            &["WARN", "wire", "127.0.0.1", "Produce version 3", "bytes of memory needed"],
            &["WARN", "wire", "acks=0 failed", "UNKNOWN_TOPIC_OR_PARTITION"],
            &["WARN", "socket.request.max.bytes", "TLS"],
            &["WARN", "api key 3 version 99 is not known"],
            &["WARN", "wire", "transactions are not served yet"],
        ];
        for words in told {
            let lines = log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
            assert!((1..10).contains(&lines), "{words:?}: {lines}\n{log}");
        }
        assert_serves(broker);
    });
}

#[test]
fn unknown_tags_and_null_client_ids_are_fine() {
    on_each(&[], |broker| {
        let mut wire = Wire::connect(broker);
        wire.send(&flexible(API_VERSIONS, 3, 1, &[2, 5, 1, 0, 9, 2, 0, 0], &[2, b'w', 2, b'1', 0]));
        assert_eq!(wire.receive().1[..2], [0, 0], "ascending unknown tags");
        wire.send(&flexible(API_VERSIONS, 3, 2, &[2, 9, 0, 5, 1, 0], &[2, b'w', 2, b'1', 0]));
        assert_eq!(wire.receive().1[..2], [0, 0], "descending tags");
        let null_client = [
            &METADATA.to_be_bytes()[..],
            &1_i16.to_be_bytes(),
            &3_i32.to_be_bytes(),
            &[0xff, 0xff],
            &0_i32.to_be_bytes(),
        ]
        .concat();
        wire.send(&framed(&null_client));
        assert_eq!(wire.receive().0, 3, "null client id");
    });
}

#[test]
fn answers_keep_the_order_of_requests() {
    on_each(&[], |broker| {
        let mut wire = Wire::connect(broker);
        let mut bytes = Vec::new();
        for i in 0..50 {
            let all_topics = (-1_i32).to_be_bytes();
            bytes.extend(if i % 2 == 0 { request(METADATA, 1, i, &all_topics) } else { api_versions(i) });
        }
        wire.send(&bytes);
        for i in 0..50 {
            assert_eq!(wire.receive().0, i);
        }
    });
}

#[test]
fn a_parked_fetch_holds_back_what_came_behind_it() {
    // Statement 15, F12: a real Fetch that waits, then a Metadata that could be answered at once.
    on_each(&[], |broker| {
        let mut wire = Wire::connect(broker);
        let topic = [&1_i32.to_be_bytes()[..], &string("parked")].concat();
        let started = Instant::now();
        loop {
            wire.send(&request(METADATA, 0, 1, &topic));
            let (_, body) = wire.receive();
            // The error of the only topic stands right before its name.
            let name = body.windows(8).position(|at| at == string("parked")).expect("the topic is named");
            if body[name - 2..name] == [0, 0] {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "the topic is created");
        }
        let fetch = [
            &(-1_i32).to_be_bytes()[..],
            &700_i32.to_be_bytes(),
            &1_i32.to_be_bytes(),
            &(1_i32 << 20).to_be_bytes(),
            &[0],
            &topic,
            &1_i32.to_be_bytes(),
            &0_i32.to_be_bytes(),
            &0_i64.to_be_bytes(),
            &(1_i32 << 20).to_be_bytes(),
        ]
        .concat();
        let sent = Instant::now();
        wire.send(&[request(FETCH, 4, 2, &fetch), request(METADATA, 0, 3, &topic)].concat());
        let (first, body) = wire.receive();
        let waited = sent.elapsed();
        assert_eq!((first, wire.receive().0), (2, 3));
        assert!(waited >= Duration::from_millis(650), "the fetch was parked for {waited:?} only");
        let name = body.windows(8).position(|at| at == string("parked")).expect("the topic is named");
        assert_eq!(body[name + 8..name + 18], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0], "partition 0 without error");
    });
}

#[test]
fn bytes_may_come_one_at_a_time() {
    on_each(&[], |broker| {
        let mut wire = Wire::connect(broker);
        for byte in api_versions(4) {
            wire.send(&[byte]);
        }
        assert_eq!(wire.receive().0, 4);
    });
}

#[test]
fn announced_sizes_take_no_memory() {
    on_each(&[], |broker| {
        let before = broker.resident_bytes();
        let wires: Vec<Wire> = (0..50)
            .map(|_| {
                let mut wire = Wire::connect(broker);
                wire.send(&[&(90_i32 << 20).to_be_bytes()[..], &[0; 10]].concat());
                wire
            })
            .collect();
        assert_serves(broker);
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 32 << 20, "50 announcements of 90 MiB took {grown} bytes");
        drop(wires);
    });
}

#[test]
fn a_thousand_connections_are_served_and_forgotten() {
    on_each(&[], |broker| {
        let before = broker.resident_bytes();
        let mut wires: Vec<Wire> = (0..1000).map(|_| Wire::connect(broker)).collect();
        for (wire, i) in wires.iter_mut().zip(0..) {
            wire.send(&api_versions(i));
        }
        for (wire, i) in wires.iter_mut().zip(0..) {
            assert_eq!(wire.receive().0, i);
        }
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 64 << 20, "1,000 connections took {grown} bytes");
        drop(wires);
        assert_serves(broker);
    });
}

#[test]
fn a_client_that_never_reads_does_not_fill_memory() {
    on_each(&[], |broker| {
        let before = broker.resident_bytes();
        let wire = Wire::connect(broker);
        wire.stream.set_write_timeout(Some(Duration::from_secs(1))).expect("timeout");
        let bytes: Vec<u8> = (0..1000).flat_map(api_versions).collect();
        let mut sent = 0_usize;
        while sent < 64 << 20 {
            match (&wire.stream).write(&bytes) {
                Ok(written) => sent += written,
                Err(_) => break,
            }
        }
        assert!(sent < 64 << 20, "the broker read everything although nobody takes its answers");
        assert_serves(broker);
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 64 << 20, "a client that never reads took {grown} bytes");
    });
}

#[test]
fn silent_connections_are_closed() {
    on_each(&["connections.max.idle.ms=500"], |broker| {
        let started = Instant::now();
        let mut wire = Wire::connect(broker);
        assert!(wire.is_closed());
        let after = started.elapsed();
        assert!(after > Duration::from_millis(400), "closed after {after:?}");
    });
}

/// A connection that was answered, if the broker keeps one.
fn served(broker: &Broker) -> Option<Wire> {
    let mut wire = Wire::connect(broker);
    let answered =
        wire.stream.write_all(&api_versions(2)).is_ok() && matches!(wire.stream.peek(&mut [0; 1]), Ok(1));
    answered.then(|| {
        wire.receive();
        wire
    })
}

#[test]
fn connections_above_the_limit_of_an_address_are_closed() {
    on_each(&["max.connections.per.ip=5"], |broker| {
        let mut kept = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while kept.len() < 5 {
            // The connection of the start may still be counted.
            kept.extend(served(broker));
            assert!(Instant::now() < deadline, "five are allowed, {} are served", kept.len());
        }
        assert!(Wire::connect(broker).is_closed(), "the sixth");
        drop(kept);
        let deadline = Instant::now() + PATIENCE;
        while served(broker).is_none() {
            assert!(Instant::now() < deadline, "slots are not given back");
        }
    });
}

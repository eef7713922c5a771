//! A real broker that meets what it cannot work with: more connections than there are descriptors, which take none from
//! the logs; partitions that nobody owns. What a disk does is in `storage_faults`.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "drives a real process from outside")]

mod support;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime};

use bench_harness::client::Client;
use bench_harness::content;
use protocol::types::TimestampMs;
use support::Broker;

const LIMIT: Duration = Duration::from_secs(60);

fn batch(first: u64, bytes: usize) -> Vec<u8> {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let now = TimestampMs::new(i64::try_from(now).expect("soon enough"));
    content::batch(0, first, 1, bytes, now).expect("batch")
}

fn produce(client: &mut Client, topic: &str, first: u64, bytes: usize) -> i16 {
    client.produce(topic, 0, -1, &batch(first, bytes)).expect("produce").expect("answer").error_code
}

/// Connects until the broker takes no more; some of these connections only wait to be accepted. A full queue of them
/// answers nothing while the broker is busy elsewhere, so only silence for this long counts as a refusal.
fn take_all_connections(broker: &Broker) -> Vec<TcpStream> {
    let address = SocketAddr::from(([127, 0, 0, 1], broker.port()));
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(4)).ok();
    (0..400).map_while(connect).collect()
}

fn connections_leave_descriptors_to_logs(shards: u16) {
    let mut broker = Broker::start_limited(shards, &["log.segment.bytes=65536"], "ulimit -n 200");
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("kept", 3).expect("create");
    let taken = take_all_connections(&broker);
    assert!(taken.len() >= 90, "{}", taken.len());
    for number in 0..60 {
        for partition in 0..3 {
            let answer = client.produce("kept", partition, -1, &batch(number, 10_000)).expect("produce");
            let error = answer.expect("answer").error_code;
            assert_eq!(error, 0, "batch {number} with {} connections:\n{}", taken.len(), broker.log());
        }
    }
    client.create_topic("created", 3).expect("create");
    assert_eq!(produce(&mut client, "created", 0, 1000), 0);
    drop(taken);
    let mut another = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    assert_eq!(produce(&mut another, "kept", 60, 1000), 0);
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

#[test]
fn connections_leave_descriptors_to_the_logs_on_one_shard() {
    connections_leave_descriptors_to_logs(1);
}

#[test]
fn connections_leave_descriptors_to_the_logs_on_two_shards() {
    connections_leave_descriptors_to_logs(2);
}

#[test]
fn partitions_without_an_owner_are_not_taken_for_somebody_elses() {
    let mut broker = Broker::start(1, &[]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("kept", 2).expect("create");
    assert_eq!(produce(&mut client, "kept", 0, 1000), 0);
    assert!(broker.stop().success());
    let identity = broker.log_dir().join("meta.properties");
    let content = std::fs::read(&identity).expect("meta.properties");
    std::fs::write(&identity, "").expect("emptied");
    let refused = broker.command().output().expect("odradek runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(78), "{said}");
    assert!(said.contains("names no broker: set broker.id"), "{said}");

    // What the metadata does not know is not served, and kept.
    std::fs::write(&identity, content).expect("restored");
    std::fs::create_dir(broker.log_dir().join("unknown-0")).expect("directory");
    broker.launch();
    assert!(broker.log().contains("does not know are kept, not served"), "{}", broker.log());
    assert!(broker.log_dir().join("unknown-0").exists());
    assert!(broker.stop().success());
}

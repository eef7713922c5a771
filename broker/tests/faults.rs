//! A real broker whose machine runs out of something. On a disk of its own that fills up (F26, A-16) produce is refused
//! with KAFKA_STORAGE_ERROR, reads and deletes go on, and when there is room again everything does, without a restart;
//! this needs the right to mount a tmpfs. More connections than there are descriptors take none from the logs.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process from outside"
)]

mod support;

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use bench_harness::client::Client;
use bench_harness::content;
use protocol::messages::{
    DeleteTopicsRequest, DeleteTopicsResponse, MetadataRequest, MetadataRequestTopic, MetadataResponse,
};
use protocol::types::{TimestampMs, TopicId};
use support::Broker;

const LIMIT: Duration = Duration::from_secs(60);
const KAFKA_STORAGE_ERROR: i16 = 56;

/// A file system of its own, gone when it is dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` where mounting is not allowed.
    fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("odradek-disk-").tempdir().expect("temporary directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all that is left.
    fn fill(&self) -> PathBuf {
        let path = self.path().join("ballast");
        let mut file = File::create(&path).expect("ballast");
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn batch(first: u64, bytes: usize) -> Vec<u8> {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let now = TimestampMs::new(i64::try_from(now).expect("soon enough"));
    content::batch(0, first, 1, bytes, now).expect("batch")
}

fn produce(client: &mut Client, topic: &str, first: u64, bytes: usize) -> i16 {
    client.produce(topic, 0, -1, &batch(first, bytes)).expect("produce").expect("answer").error_code
}

/// Deletes a topic; the error of the answer.
fn delete(client: &mut Client, topic: &str) -> i16 {
    let request =
        DeleteTopicsRequest { topic_names: vec![topic.into()], timeout_ms: 10_000, ..Default::default() };
    let reply = client.call(4, &request).expect("delete");
    let answer: DeleteTopicsResponse<'_> = reply.message().expect("answer");
    answer.responses[0].error_code
}

fn knows(client: &mut Client, topic: &str) -> bool {
    let asked = MetadataRequestTopic { topic_id: TopicId::ZERO, name: Some(topic.into()) };
    let request =
        MetadataRequest { topics: Some(vec![asked]), allow_auto_topic_creation: false, ..Default::default() };
    let reply = client.call(5, &request).expect("metadata");
    let answer: MetadataResponse<'_> = reply.message().expect("answer");
    answer.topics[0].error_code == 0
}

fn a_full_disk(shards: u16) {
    let Some(disk) = SmallDisk::mount("48m") else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let dir = format!("log.dirs={}", disk.path().join("logs").display());
    let settings = [&dir, "log.segment.bytes=1048576", "log.segment.delete.delay.ms=100"];
    let mut broker = Broker::start(shards, &settings);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("kept", 1).expect("create");
    client.create_topic("deleted", 1).expect("create");
    for number in 0..20 {
        assert_eq!(produce(&mut client, "kept", number, 1000), 0);
    }
    assert_eq!(produce(&mut client, "deleted", 0, 500_000), 0);

    let ballast = disk.fill();
    let refused = (0..1000).map(|_| produce(&mut client, "kept", 20, 100_000)).find(|error| *error != 0);
    assert_eq!(refused, Some(KAFKA_STORAGE_ERROR));
    let fetched = client.fetch("kept", 0, 0, Duration::from_millis(1)).expect("fetch");
    assert_eq!((fetched.error_code, fetched.high_watermark >= 20), (0, true), "reads go on");
    let mut numbers = Vec::new();
    content::check(0, 0, &fetched.records, |_, number| numbers.push(number)).expect("whole records");
    assert!(numbers.len() >= 20, "{numbers:?}");

    assert_eq!(delete(&mut client, "deleted"), 0, "deletes go on:\n{}", broker.log());
    assert!(!knows(&mut client, "deleted"));
    std::fs::remove_file(ballast).expect("room");
    let deadline = Instant::now() + LIMIT;
    while produce(&mut client, "kept", 99, 1000) != 0 {
        assert!(Instant::now() < deadline, "produce is refused although there is room:\n{}", broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    client.create_topic("created", 1).expect("topics are created again");
    assert_eq!(produce(&mut client, "created", 0, 1000), 0);

    broker.kill();
    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    assert!(knows(&mut client, "kept") && knows(&mut client, "created") && !knows(&mut client, "deleted"));
    assert_eq!(produce(&mut client, "kept", 100, 1000), 0);
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

#[test]
fn a_full_disk_is_survived_on_one_shard() {
    a_full_disk(1);
}

#[test]
fn a_full_disk_is_survived_on_two_shards() {
    a_full_disk(2);
}

/// Connects until the broker takes no more; some of these connections only wait to be accepted. A full queue of them
/// answers nothing while the broker is busy elsewhere, so only silence for this long counts as a refusal.
fn take_all_connections(broker: &Broker) -> Vec<TcpStream> {
    let address = SocketAddr::from(([127, 0, 0, 1], broker.port()));
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(4)).ok();
    (0..400).map_while(connect).collect()
}

fn connections_leave_descriptors_to_logs(shards: u16) {
    let mut broker = Broker::start_limited(shards, &["log.segment.bytes=65536"], Some(200));
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

    // With its metadata lost the broker starts, says what it does not serve, and keeps it.
    std::fs::write(&identity, content).expect("restored");
    std::fs::remove_file(broker.log_dir().join("odradek-metadata.redb")).expect("metadata store");
    broker.launch();
    assert!(broker.log().contains("does not know are kept, not served"), "{}", broker.log());
    assert!(broker.log_dir().join("kept-0").exists());
    assert!(broker.stop().success());
}

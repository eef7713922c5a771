//! A real broker with several log dirs, on one shard and on two: logs move between them while clients write and read, and
//! whatever the process is doing when it is killed, every acknowledged record is there again (KIP-113, storage.md 1.1).
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process from outside"
)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use bench_harness::client::Client;
use bench_harness::content;
use protocol::messages::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest, DescribeLogDirsResponse,
};
use protocol::types::TimestampMs;
use support::Broker;

const LIMIT: Duration = Duration::from_secs(60);
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const TOPIC: &str = "t";
const PARTITIONS: i32 = 3;

/// Two log dirs, and a broker on them.
struct Two {
    data: tempfile::TempDir,
    broker: Broker,
}

impl Two {
    fn start(shards: u16, more: &[&str]) -> Self {
        let data = tempfile::tempdir().expect("temporary directory");
        let dirs =
            format!("log.dirs={},{}", data.path().join("a").display(), data.path().join("b").display());
        let broker = Broker::start(shards, &[&[dirs.as_str()], more].concat());
        Self { data, broker }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    fn client(&self) -> Client {
        Client::connect(&self.broker.bootstrap(), LIMIT).expect("connect")
    }

    fn other(&self, dir: &str) -> String {
        let (a, b) = (self.dir("a").display().to_string(), self.dir("b").display().to_string());
        if dir == a { b } else { a }
    }
}

fn batch(partition: i32, first: u64, bytes: usize) -> Vec<u8> {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let now = TimestampMs::new(i64::try_from(now).expect("soon enough"));
    content::batch(partition, first, 1, bytes, now).expect("batch")
}

/// Produces until it is taken: a log may just be opened.
fn produce(client: &mut Client, partition: i32, number: u64, bytes: usize) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = client.produce(TOPIC, partition, -1, &batch(partition, number, bytes)).expect("produce");
        match answer.expect("answer").error_code {
            0 => return,
            NOT_LEADER_OR_FOLLOWER => assert!(Instant::now() < deadline, "{TOPIC}-{partition} is not served"),
            error => panic!("{TOPIC}-{partition}: error {error}"),
        }
    }
}

/// The numbers of all records of a partition, in order.
fn read(client: &mut Client, partition: i32) -> Vec<u64> {
    let (mut numbers, mut next) = (Vec::new(), 0);
    let deadline = Instant::now() + LIMIT;
    loop {
        let fetched = client.fetch(TOPIC, partition, next, Duration::from_millis(1)).expect("fetch");
        if fetched.error_code == NOT_LEADER_OR_FOLLOWER && Instant::now() < deadline {
            continue;
        }
        assert_eq!(fetched.error_code, 0, "{TOPIC}-{partition}");
        let before = next;
        content::check(partition, next, &fetched.records, |offset, number| {
            numbers.push(number);
            next = offset + 1;
        })
        .expect("whole records");
        if next == before && next >= fetched.high_watermark {
            return numbers;
        }
    }
}

/// Where each partition is, and where it is going.
fn places(client: &mut Client) -> BTreeMap<i32, (Option<String>, Option<String>)> {
    let reply = client.call(4, &DescribeLogDirsRequest { topics: None }).expect("describe");
    let answer: DescribeLogDirsResponse<'_> = reply.message().expect("answer");
    let mut places: BTreeMap<i32, (Option<String>, Option<String>)> = BTreeMap::new();
    for dir in &answer.results {
        assert_eq!(dir.error_code, 0, "{}", dir.log_dir);
        for partition in dir.topics.iter().filter(|topic| *topic.name == *TOPIC).flat_map(|t| &t.partitions) {
            let place = places.entry(partition.partition_index).or_default();
            let place = if partition.is_future_key { &mut place.1 } else { &mut place.0 };
            assert_eq!(place.replace(dir.log_dir.to_string()), None, "once");
        }
    }
    places
}

fn alter(client: &mut Client, wanted: &BTreeMap<i32, String>) -> Vec<i16> {
    let dir = |(partition, dir): (&i32, &String)| AlterReplicaLogDir {
        path: dir.clone().into(),
        topics: vec![AlterReplicaLogDirTopic { name: TOPIC.into(), partitions: vec![*partition] }],
    };
    let request = AlterReplicaLogDirsRequest { dirs: wanted.iter().map(dir).collect() };
    let reply = client.call(2, &request).expect("alter");
    let answer: AlterReplicaLogDirsResponse<'_> = reply.message().expect("answer");
    answer.results.iter().flat_map(|topic| &topic.partitions).map(|one| one.error_code).collect()
}

/// Where all partitions are to be next: where they are not.
fn turned(two: &Two, client: &mut Client) -> BTreeMap<i32, String> {
    let places = places(client);
    let place = |(partition, (here, _)): (&i32, &(Option<String>, Option<String>))| {
        (*partition, two.other(here.as_deref().expect("it is somewhere")))
    };
    places.iter().map(place).collect()
}

fn has_arrived(client: &mut Client, wanted: &BTreeMap<i32, String>) -> bool {
    let places = places(client);
    wanted.iter().all(|(partition, dir)| places.get(partition) == Some(&(Some(dir.clone()), None)))
}

fn moves(shards: u16) {
    let mut two = Two::start(shards, &["log.segment.bytes=200000", "log.segment.delete.delay.ms=100"]);
    let mut client = two.client();
    client.create_topic(TOPIC, PARTITIONS).expect("create");
    let mut number = 0;
    let mut write = |client: &mut Client, count: u64| {
        for _ in 0..count {
            for partition in 0..PARTITIONS {
                produce(client, partition, number, 10_000);
            }
            number += 1;
        }
        number
    };
    write(&mut client, 100);
    let mut written = 0;
    for _ in 0..4 {
        let wanted = turned(&two, &mut client);
        assert_eq!(alter(&mut client, &wanted), [0; 3]);
        let deadline = Instant::now() + LIMIT;
        while !has_arrived(&mut client, &wanted) {
            assert!(Instant::now() < deadline, "{:?}", places(&mut client));
            written = write(&mut client, 2);
        }
    }
    for partition in 0..PARTITIONS {
        assert_eq!(read(&mut client, partition), (0..written).collect::<Vec<u64>>(), "{shards}");
    }
    assert!(two.broker.stop().success(), "clean stop:\n{}", two.broker.log());
    two.broker.launch();
    let mut client = two.client();
    for partition in 0..PARTITIONS {
        assert_eq!(read(&mut client, partition), (0..written).collect::<Vec<u64>>(), "after a stop");
    }
    // A log serves from its new place before its old directory is renamed, and that goes later: at the next start, if the
    // stop comes before.
    let deadline = Instant::now() + LIMIT;
    for dir in ["a", "b"] {
        while partitions_in(&two.dir(dir)).iter().any(|name| name.contains('.')) {
            let names = partitions_in(&two.dir(dir));
            assert!(Instant::now() < deadline, "something is left behind: {names:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(two.broker.stop().success(), "clean stop:\n{}", two.broker.log());
    for dir in ["a", "b"] {
        assert!(two.dir(dir).join(".kafka_cleanshutdown").exists(), "{dir}");
    }
}

fn partitions_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("log dir").flatten();
    let dirs = entries.filter(|entry| entry.path().is_dir());
    dirs.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn logs_move_while_clients_go_on_on_one_shard() {
    moves(1);
}

#[test]
fn logs_move_while_clients_go_on_on_two_shards() {
    moves(2);
}

#[test]
fn a_move_that_is_killed_goes_on_and_loses_nothing() {
    let mut two = Two::start(2, &["log.segment.bytes=300000", "log.segment.delete.delay.ms=100"]);
    let mut client = two.client();
    client.create_topic(TOPIC, PARTITIONS).expect("create");
    let mut number = 0;
    for round in 0..5_u64 {
        for _ in 0..60 {
            for partition in 0..PARTITIONS {
                produce(&mut client, partition, number, 20_000);
            }
            number += 1;
        }
        let wanted = turned(&two, &mut client);
        assert_eq!(alter(&mut client, &wanted), [0; 3]);
        // Somewhere on the way.
        std::thread::sleep(Duration::from_millis(round * 3));
        two.broker.kill();
        if round % 2 == 1 {
            // As after a power cut: all checksums are computed.
            for dir in ["a", "b"] {
                std::fs::remove_file(two.dir(dir).join(".lock")).expect("lock file");
            }
        }
        two.broker.launch();
        client = two.client();
        for partition in 0..PARTITIONS {
            assert_eq!(read(&mut client, partition), (0..number).collect::<Vec<u64>>(), "round {round}");
        }
        let deadline = Instant::now() + LIMIT;
        while !places(&mut client).values().all(|(here, there)| here.is_some() && there.is_none()) {
            assert!(Instant::now() < deadline, "{:?}", places(&mut client));
        }
    }
    assert!(two.broker.stop().success(), "clean stop:\n{}", two.broker.log());
}

/// The error and exit code of a start on these log dirs.
fn refused(two: &mut Two) -> (Option<i32>, String) {
    let output = two.broker.command().output().expect("start");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code(), said)
}

#[test]
fn log_dirs_that_do_not_belong_together_refuse_the_start() {
    let mut two = Two::start(1, &[]);
    let mut client = two.client();
    client.create_topic(TOPIC, PARTITIONS).expect("create");
    drop(client);
    assert!(two.broker.stop().success());
    let (a, b) = (two.dir("a"), two.dir("b"));
    // One partition in both.
    let of_a = partitions_in(&a).into_iter().next().expect("a partition");
    assert!(Command::new("cp").arg("-r").arg(a.join(&of_a)).arg(&b).status().expect("cp").success());
    let (code, said) = refused(&mut two);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains(&format!("both hold {of_a}: delete one of them")), "{said}");
    assert!(a.join(".kafka_cleanshutdown").exists() && b.join(".kafka_cleanshutdown").exists(), "untouched");
    std::fs::remove_dir_all(b.join(&of_a)).expect("remove");
    // Another broker's.
    let meta = b.join("meta.properties");
    let text = std::fs::read_to_string(&meta).expect("meta.properties");
    let foreign = text.replace("broker.id=", "broker.id=9");
    std::fs::write(&meta, &foreign).expect("write");
    let (code, said) = refused(&mut two);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("belongs to broker"), "{said}");
    assert_eq!(std::fs::read_to_string(&meta).expect("meta.properties"), foreign, "untouched");
    std::fs::write(&meta, text).expect("write");
    two.broker.launch();
    assert!(two.broker.stop().success(), "clean stop:\n{}", two.broker.log());
}

#[test]
fn a_log_dir_that_cannot_be_used_is_offline_while_the_other_serves() {
    let mut two = Two::start(2, &[]);
    let mut client = two.client();
    client.create_topic(TOPIC, PARTITIONS).expect("create");
    for partition in 0..PARTITIONS {
        produce(&mut client, partition, 0, 1000);
    }
    let places = places(&mut client);
    assert!(two.broker.stop().success());
    // A file where the log dir was.
    let (b, aside) = (two.dir("b"), two.dir("aside"));
    std::fs::rename(&b, &aside).expect("rename");
    std::fs::write(&b, "").expect("a file in its place");
    two.broker.launch();
    let mut client = two.client();
    let is_in_b = |partition: i32| places[&partition].0.as_deref() == b.to_str();
    for partition in (0..PARTITIONS).filter(|partition| !is_in_b(*partition)) {
        assert_eq!(read(&mut client, partition), [0]);
        produce(&mut client, partition, 1, 1000);
    }
    let reply = client.call(4, &DescribeLogDirsRequest { topics: None }).expect("describe");
    let answer: DescribeLogDirsResponse<'_> = reply.message().expect("answer");
    let codes: Vec<_> = answer.results.iter().map(|dir| (dir.log_dir.to_string(), dir.error_code)).collect();
    assert_eq!(codes, [(two.dir("a").display().to_string(), 0), (b.display().to_string(), 56)]);
    assert!(two.broker.stop().success(), "clean stop:\n{}", two.broker.log());
    std::fs::remove_file(&b).expect("remove");
    std::fs::rename(&aside, &b).expect("rename");
    two.broker.launch();
    let mut client = two.client();
    for partition in 0..PARTITIONS {
        let expected = if is_in_b(partition) { vec![0] } else { vec![0, 1] };
        assert_eq!(read(&mut client, partition), expected, "all are there again");
    }
    assert!(two.broker.stop().success(), "clean stop:\n{}", two.broker.log());
}

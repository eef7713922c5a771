//! A real broker on a disk that runs full or fails, on one shard and on two. Full (F26, A-16, S-32): produce is refused
//! with KAFKA_STORAGE_ERROR, reads and deletes go on, and when there is room again everything does, without a restart,
//! also after a start on a disk without one free byte. Failed (S-36, storage.md 8.4): the process says one sentence and
//! ends with 1, and what it acknowledged is there. Without descriptors (EMFILE): what needs one is refused, the rest is
//! served. Most of it needs the right to mount; says so where it has not.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process from outside"
)]

mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
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
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const NO_FLOOR: &str = "storage.free.space.floor.bytes=0";

/// A file system of its own, gone when it is dropped.
struct Disk {
    mounted: tempfile::TempDir,
    /// What holds its image, if it is a file.
    under: Option<Box<Disk>>,
}

impl Disk {
    /// In memory; `None` where mounting is not allowed.
    fn tmpfs(size: &str) -> Option<Self> {
        let mounted = temporary();
        let options = format!("size={size}");
        mount(&["-t", "tmpfs", "-o", &options, "tmpfs"], mounted.path())
            .then_some(Self { mounted, under: None })
    }

    /// An ext4 of `size` in a file on a disk of `room`. With less room than size, whoever waits for the disk to have
    /// written (fdatasync) is told EIO at last, as by a disk that fails.
    fn ext4(size: &str, room: &str) -> Option<Self> {
        let under = Self::tmpfs(room)?;
        let image = under.path().join("image");
        let image = image.to_str().expect("a path of ours");
        let made = run("truncate", &["-s", size, image]) && run("mkfs.ext4", &["-q", "-F", image]);
        let mounted = temporary();
        (made && mount(&["-o", "loop", image], mounted.path()))
            .then(|| Self { mounted, under: Some(Box::new(under)) })
    }

    fn path(&self) -> &Path {
        self.mounted.path()
    }

    fn log_dirs(&self) -> String {
        format!("log.dirs={}", self.path().join("logs").display())
    }

    /// Takes all that is left, to the last byte.
    fn fill(&self) -> PathBuf {
        let path = self.path().join("ballast");
        let mut file = File::options().append(true).create(true).open(&path).expect("ballast");
        for piece in [&[1; 65536][..], &[1; 4096], &[1]] {
            while file.write_all(piece).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        drop(self.under.take());
    }
}

fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("odradek-disk-").tempdir().expect("temporary directory")
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let ran = Command::new(program).args(arguments).stderr(Stdio::null()).status();
    ran.is_ok_and(|status| status.success())
}

fn mount(arguments: &[&str], at: &Path) -> bool {
    let at = at.to_str().expect("a path of ours");
    let mounted = run("mount", &[arguments, &[at]].concat());
    if !mounted {
        eprintln!("skipped: this user may not mount this file system");
    }
    mounted
}

fn batch(first: u64, bytes: usize) -> Vec<u8> {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let now = TimestampMs::new(i64::try_from(now).expect("soon enough"));
    content::batch(0, first, 1, bytes, now).expect("batch")
}

/// The error of a produce; `None` when the broker is gone.
fn try_produce(client: &mut Client, topic: &str, first: u64, bytes: usize) -> Option<i16> {
    Some(client.produce(topic, 0, -1, &batch(first, bytes)).ok()??.error_code)
}

fn produce(client: &mut Client, topic: &str, first: u64, bytes: usize) -> i16 {
    try_produce(client, topic, first, bytes).expect("answer")
}

/// Produces until it is taken.
fn produce_at_last(client: &mut Client, broker: &Broker, topic: &str, first: u64) {
    let deadline = Instant::now() + LIMIT;
    while produce(client, topic, first, 1000) != 0 {
        assert!(Instant::now() < deadline, "produce is refused although there is room:\n{}", broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The numbers of all records of partition 0.
fn read(client: &mut Client, topic: &str) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    let mut next = 0;
    let deadline = Instant::now() + LIMIT;
    loop {
        let fetched = client.fetch(topic, 0, next, Duration::from_millis(1)).expect("fetch");
        if fetched.error_code == NOT_LEADER_OR_FOLLOWER && Instant::now() < deadline {
            // Its log is being opened; after that it is served at once.
            continue;
        }
        assert_eq!(fetched.error_code, 0, "{topic} is read");
        let before = next;
        content::check(0, next, &fetched.records, |offset, number| {
            numbers.insert(number);
            next = offset + 1;
        })
        .expect("whole records");
        if next == before {
            return numbers;
        }
    }
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
    let Some(disk) = Disk::tmpfs("48m") else { return };
    let dir = disk.log_dirs();
    let settings = [&dir, NO_FLOOR, "log.segment.bytes=1048576", "log.segment.delete.delay.ms=100"];
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
    produce_at_last(&mut client, &broker, "kept", 99);
    client.create_topic("created", 1).expect("topics are created again");
    assert_eq!(produce(&mut client, "created", 0, 1000), 0);

    broker.kill();
    broker.launch();
    broker.await_served("kept", 1);
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

/// A start on a disk without one free byte serves what is there at once, and takes more as soon as there is room.
fn a_start_on_a_full_disk(disk: Option<Disk>, shards: u16, end: fn(&mut Broker)) {
    let Some(disk) = disk else { return };
    let dir = disk.log_dirs();
    let mut broker = Broker::start(shards, &[&dir, NO_FLOOR, "log.index.interval.bytes=10"]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    let topics = ["a", "b", "c"];
    for topic in topics {
        client.create_topic(topic, 2).expect("create");
        for number in 0..200 {
            assert_eq!(produce(&mut client, topic, number, 100), 0);
        }
    }
    end(&mut broker);
    disk.fill();
    broker.launch();
    let ballast = disk.fill();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    for topic in topics {
        assert_eq!(read(&mut client, topic), (0..200).collect(), "{topic}:\n{}", broker.log());
        let refused = (0..1000).map(|_| produce(&mut client, topic, 200, 100_000)).find(|error| *error != 0);
        assert_eq!(refused, Some(KAFKA_STORAGE_ERROR), "{topic}:\n{}", broker.log());
    }
    std::fs::remove_file(ballast).expect("room");
    for topic in topics {
        produce_at_last(&mut client, &broker, topic, 300);
    }
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    for topic in topics {
        let found = read(&mut client, topic);
        assert!(found.contains(&300) && (0..200).all(|number| found.contains(&number)), "{topic}: {found:?}");
    }
    assert!(broker.stop().success());
}

#[test]
fn a_start_on_a_full_disk_serves_what_is_there_and_takes_more_when_there_is_room() {
    a_start_on_a_full_disk(Disk::tmpfs("48m"), 1, Broker::kill);
    a_start_on_a_full_disk(Disk::tmpfs("48m"), 2, |broker| assert!(broker.stop().success()));
}

#[test]
fn the_same_on_ext4() {
    a_start_on_a_full_disk(Disk::ext4("32m", "48m"), 2, Broker::kill);
    a_start_on_a_full_disk(Disk::ext4("32m", "48m"), 1, |broker| assert!(broker.stop().success()));
}

#[test]
fn below_the_floor_produce_is_refused_until_something_is_deleted() {
    let Some(disk) = Disk::tmpfs("64m") else { return };
    let dir = disk.log_dirs();
    let floor = "storage.free.space.floor.bytes=16777216";
    let mut broker = Broker::start(2, &[&dir, floor, "log.segment.delete.delay.ms=100"]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    for topic in ["kept", "deleted"] {
        client.create_topic(topic, 1).expect("create");
        for number in 0..20 {
            assert_eq!(produce(&mut client, topic, number, 900_000), 0);
        }
    }
    let refused =
        (20..60).map(|number| produce(&mut client, "kept", number, 900_000)).find(|error| *error != 0);
    assert_eq!(refused, Some(KAFKA_STORAGE_ERROR));
    let ballast = disk.fill();
    let left = ballast.metadata().expect("ballast").len();
    assert!(left > 8 << 20, "refused before the disk is full: {left}");
    std::fs::remove_file(ballast).expect("room");
    // A large batch is also refused while the disk is asked how much is left: small ones may find room, but not for long.
    let refused =
        (60..4000).map(|number| produce(&mut client, "kept", number, 1000)).find(|error| *error != 0);
    assert_eq!(refused, Some(KAFKA_STORAGE_ERROR));
    assert!(read(&mut client, "kept").contains(&19), "reads go on");
    assert_eq!(delete(&mut client, "deleted"), 0, "deletes go on:\n{}", broker.log());
    produce_at_last(&mut client, &broker, "kept", 4000);
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

/// No file of the process may grow beyond this any more: the next write says EFBIG, which no room heals.
fn limit_files(broker: &Broker, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let pid = libc::pid_t::try_from(broker.pid()).expect("a process id");
    // SAFETY: `limit` is the kernel's structure and lives over the call; nothing is asked back.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// The broker has ended by itself with 1, saying one sentence; the last stop was not clean.
fn assert_halted(broker: &mut Broker, log_dir: &Path, sentence: &[&str]) {
    let status = broker.ended();
    let log = broker.log();
    assert_eq!(status.code(), Some(1), "{log}");
    let said: Vec<&str> = log.lines().filter(|line| line.contains("ending at once")).collect();
    assert!(said.len() == 1 && sentence.iter().all(|part| said[0].contains(part)), "{log}");
    assert!(said[0].contains("ERROR"), "{said:?}");
    assert!(!log_dir.join(".kafka_cleanshutdown").exists());
}

fn a_write_that_fails(shards: u16) {
    let mut broker = Broker::start_limited(shards, &[], "trap '' XFSZ");
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("t", 1).expect("create");
    assert_eq!(produce(&mut client, "t", 0, 1000), 0);
    limit_files(&broker, 2 << 20);
    let taken = (1..100).take_while(|number| try_produce(&mut client, "t", *number, 100_000) == Some(0));
    let acknowledged = 1 + u64::try_from(taken.count()).expect("a few");
    assert!((15..25).contains(&acknowledged), "{acknowledged}");
    let log_dir = broker.log_dir();
    let dir = log_dir.display().to_string();
    let sentence =
        [&dir, "was the last log directory in service", "/t-0/00000000000000000000.log: File too large"];
    assert_halted(&mut broker, &log_dir, &sentence);

    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    assert_eq!(read(&mut client, "t"), (0..acknowledged).collect(), "no more and no less");
    assert_eq!(produce(&mut client, "t", acknowledged, 1000), 0);
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

#[test]
fn a_write_that_fails_ends_the_process_on_one_shard() {
    a_write_that_fails(1);
}

#[test]
fn a_write_that_fails_ends_the_process_on_two_shards() {
    a_write_that_fails(2);
}

#[test]
fn a_sync_that_fails_ends_the_process() {
    let Some(disk) = Disk::ext4("96m", "16m") else { return };
    let dir = disk.log_dirs();
    let mut broker = Broker::start(2, &[&dir, NO_FLOOR, "log.segment.bytes=1048576"]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("t", 1).expect("create");
    let refused =
        (0..700).map(|number| try_produce(&mut client, "t", number, 100_000)).find(|e| *e != Some(0));
    let refused = refused.expect("the disk has failed by then");
    assert!(matches!(refused, None | Some(KAFKA_STORAGE_ERROR)), "{refused:?}");
    let log_dir = disk.path().join("logs");
    assert_halted(&mut broker, &log_dir, &["was the last log directory in service"]);
}

#[test]
fn a_metadata_store_that_cannot_be_written_ends_the_process() {
    let mut broker = Broker::start_limited(1, &[], "trap '' XFSZ");
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("t", 1).expect("create");
    assert_eq!(produce(&mut client, "t", 0, 1000), 0);
    limit_files(&broker, 64 << 10);
    client.create_topic("late", 1).expect_err("it is not answered");
    let log_dir = broker.log_dir();
    let sentence =
        ["odradek-metadata.redb: the metadata store cannot be written any more: ", "File too large"];
    assert_halted(&mut broker, &log_dir, &sentence);
    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    assert!(!knows(&mut client, "late"));
    assert_eq!(read(&mut client, "t"), BTreeSet::from([0]));
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

/// The error of a topic's only partition in the metadata.
fn partition_error(client: &mut Client, topic: &str) -> i16 {
    let asked = MetadataRequestTopic { topic_id: TopicId::ZERO, name: Some(topic.into()) };
    let request =
        MetadataRequest { topics: Some(vec![asked]), allow_auto_topic_creation: false, ..Default::default() };
    let reply = client.call(5, &request).expect("metadata");
    let answer: MetadataResponse<'_> = reply.message().expect("answer");
    answer.topics[0].partitions[0].error_code
}

#[test]
fn a_disk_that_fails_takes_only_its_own_partitions_with_it() {
    // T-17
    const LEADER_NOT_AVAILABLE: i16 = 5;
    let Some(disk) = Disk::ext4("96m", "16m") else { return };
    let sound = temporary();
    let [kept, lost] = [sound.path(), disk.path()].map(|at| at.join("logs"));
    let dirs = format!("log.dirs={},{}", kept.display(), lost.display());
    let mut broker = Broker::start(2, &[&dirs, NO_FLOOR, "log.segment.bytes=1048576"]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    // Each dir gets one.
    for topic in ["kept", "lost"] {
        client.create_topic(topic, 1).expect("create");
        assert_eq!(produce(&mut client, topic, 0, 1000), 0);
    }
    assert!(kept.join("kept-0").exists() && lost.join("lost-0").exists());
    let refused = (1..700).map(|number| produce(&mut client, "lost", number, 100_000)).find(|e| *e != 0);
    let refused = refused.expect("the disk has failed by then");
    assert_eq!(refused, KAFKA_STORAGE_ERROR, "{}", broker.log());
    assert_eq!(produce(&mut client, "kept", 1, 1000), 0);
    let deadline = Instant::now() + LIMIT;
    while partition_error(&mut client, "lost") != LEADER_NOT_AVAILABLE {
        assert!(Instant::now() < deadline, "the controller has not heard of it:\n{}", broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(read(&mut client, "kept"), BTreeSet::from([0, 1]));
    client.create_topic("new", 1).expect("new topics go to the other");
    assert_eq!(produce(&mut client, "new", 0, 1000), 0);
    assert!(kept.join("new-0").exists());
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    assert!(kept.join(".kafka_cleanshutdown").exists() && !lost.join(".kafka_cleanshutdown").exists());
}

/// The process gets no further descriptor, from the lowest number that is free on; answers how many it could have before.
fn take_descriptors(broker: &Broker) -> libc::rlimit {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", broker.pid())).expect("descriptors").flatten();
    let used: BTreeSet<u64> = entries
        .filter_map(|entry| entry.file_name().to_str().and_then(|number| number.parse().ok()))
        .collect();
    let free = (0..).find(|number| !used.contains(number)).expect("some number");
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let pid = libc::pid_t::try_from(broker.pid()).expect("a process id");
    // SAFETY: `before` is the kernel's structure and lives over the call; nothing is set.
    let asked = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut before) };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    give_descriptors(broker, libc::rlimit { rlim_cur: free, ..before });
    before
}

fn give_descriptors(broker: &Broker, limit: libc::rlimit) {
    let pid = libc::pid_t::try_from(broker.pid()).expect("a process id");
    // SAFETY: `limit` is the kernel's structure and lives over the call; nothing is asked back.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// What needs a descriptor is refused, and what needs none is done; with the descriptors all is as before.
fn without_descriptors(shards: u16) {
    let mut broker = Broker::start(shards, &["log.segment.bytes=1048576"]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    for topic in ["kept", "rolled"] {
        client.create_topic(topic, 1).expect("create");
        assert_eq!(produce(&mut client, topic, 0, 1000), 0);
    }
    let before = take_descriptors(&broker);
    // A log that needs a new segment, and one that does not.
    let taken = (1..30).take_while(|number| produce(&mut client, "rolled", *number, 100_000) == 0);
    let taken = 1 + u64::try_from(taken.count()).expect("a few");
    assert!((9..=11).contains(&taken), "{taken}:\n{}", broker.log());
    for number in 1..20 {
        assert_eq!(produce(&mut client, "kept", number, 1000), 0, "{}", broker.log());
    }
    assert_eq!(produce(&mut client, "rolled", taken, 100_000), KAFKA_STORAGE_ERROR);
    assert_eq!(read(&mut client, "kept"), (0..20).collect());
    assert_eq!(read(&mut client, "rolled"), (0..taken).collect());
    // A log that cannot be made yet.
    client.create_topic("late", 1).expect("create");
    assert_eq!(produce(&mut client, "late", 0, 1000), KAFKA_STORAGE_ERROR);
    assert!(broker.is_running() && !broker.log().contains("offline"), "{}", broker.log());

    give_descriptors(&broker, before);
    for topic in ["late", "rolled"] {
        produce_at_last(&mut client, &broker, topic, 100);
    }
    assert_eq!(read(&mut client, "late"), BTreeSet::from([100]));
    assert_eq!(read(&mut client, "rolled"), (0..taken).chain([100]).collect());
    let mut another = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    assert_eq!(produce(&mut another, "kept", 20, 1000), 0);
    assert!(!broker.log().contains("offline"), "{}", broker.log());
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    assert!(broker.log_dir().join(".kafka_cleanshutdown").exists());
}

#[test]
fn without_descriptors_what_needs_none_is_served_on_one_shard() {
    without_descriptors(1);
}

#[test]
fn without_descriptors_what_needs_none_is_served_on_two_shards() {
    without_descriptors(2);
}

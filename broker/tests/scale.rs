//! T-18: ten thousand idle partitions on four shards take bounded memory, and nothing is written once everything is at
//! rest; a coordinator of 100,000 groups and 1,000,000 offsets takes no more than 300 MiB, loads in 3 s, and does what it
//! does with all of them in parts. Takes minutes: run by `scripts/soak`, not by `scripts/check`.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "drives a real process from outside"
)]

mod support;

use std::time::{Duration, Instant};

use bench_harness::client::Client;
use bench_harness::content;
use broker::coordinator::group::machine::{Now, Room};
use broker::coordinator::group::{GroupSettings, Groups};
use protocol::consumer_offsets::{OffsetValue, RecordKey};
use protocol::messages::*;
use protocol::types::{MonoTime, Offset, TimestampMs};
use support::Broker;

const LIMIT: Duration = Duration::from_secs(120);
const PARTITIONS: i32 = 10_000;
const PER_TOPIC: i32 = 500;
/// Longer than the longest interval at which something could be written: one minute, of the checkpoints.
const REST: Duration = Duration::from_secs(70);
/// How long coming to rest may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Bytes that the process has made dirty so far: the kernel counts them for writes through the ring, too.
fn written(broker: &Broker) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", broker.pid())).expect("running process");
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.expect("write_bytes").parse().expect("a number")
}

#[test]
fn t18_ten_thousand_idle_partitions_take_bounded_memory_and_write_nothing() {
    let mut broker = Broker::start(4, &[]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    let started = Instant::now();
    for topic in 0..PARTITIONS / PER_TOPIC {
        let name = format!("idle{topic}");
        client.create_topic(&name, PER_TOPIC).expect("create");
        for partition in 0..PER_TOPIC {
            let batch = content::batch(partition, 0, 1, 100, TimestampMs::new(1)).expect("batch");
            let answer = client.produce(&name, partition, -1, &batch).expect("produce").expect("answer");
            assert_eq!(answer.error_code, 0, "{name}-{partition}:\n{}", broker.log());
        }
    }
    println!("{PARTITIONS} partitions, each written once, after {:?}", started.elapsed());
    let deadline = Instant::now() + PATIENCE;
    let (mut before, mut ticks) = (written(&broker), broker.cpu_ticks());
    loop {
        std::thread::sleep(REST);
        let (now, now_ticks) = (written(&broker), broker.cpu_ticks());
        println!("{} bytes written and {} ticks used in {REST:?}", now - before, now_ticks - ticks);
        if now == before {
            break;
        }
        assert!(Instant::now() < deadline, "the broker goes on writing");
        (before, ticks) = (now, now_ticks);
    }
    let (memory, bound) =
        (broker.resident_bytes(), (64 << 20) + u64::try_from(PARTITIONS).expect("positive") * 100_000);
    println!("{} MiB", memory >> 20);
    assert!(memory < bound, "{memory} bytes of memory");
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

/// Bytes that this process has in memory.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    pages * 4_096
}

#[test]
fn a_coordinator_of_a_million_offsets_takes_at_most_300_mebibytes() {
    let before = resident_bytes();
    let started = Instant::now();
    let mut groups = Groups::new(GroupSettings::default());
    for number in 0..1_000_000 {
        let group = format!("consumer-group-of-a-team-{}", number / 10);
        let topic = format!("topic-{}", number / 10 % 1_000);
        let partition = i32::try_from(number % 10).expect("one of ten");
        let key = RecordKey::Offset { group: &group, topic: &topic, partition };
        let value = OffsetValue {
            offset: number,
            leader_epoch: 1,
            metadata: "",
            commit_timestamp: 1,
            expire_timestamp: None,
        };
        groups.replay(Offset::new(number), &key.encode(), Some(&value.encode())).expect("a record");
    }
    let bytes = resident_bytes().saturating_sub(before);
    println!("1,000,000 offsets take {bytes} bytes, loaded in {:?}", started.elapsed());
    assert_eq!((groups.gauges().groups, groups.gauges().offsets), (100_000, 1_000_000));
    assert!(bytes <= 300 << 20, "{bytes}");
    its_parts_are_short(groups);
}

/// Between two parts of the end of a load, of a list and of an unload the shard has its turn (A-5, 500 µs). The bound here
/// is that of a noisy machine.
fn its_parts_are_short(mut groups: Groups) {
    const PART: Duration = Duration::from_millis(10);
    let mut longest = Duration::ZERO;
    let mut timed = |what: &str, part: &mut dyn FnMut() -> bool| {
        let (mut parts, mut worst) = (0, Duration::ZERO);
        loop {
            let started = Instant::now();
            let has_more = part();
            worst = worst.max(started.elapsed());
            parts += 1;
            if !has_more {
                break;
            }
        }
        println!("{what}: {parts} parts, the longest of {worst:?}");
        longest = longest.max(worst);
    };
    let wall = TimestampMs::new(1);
    let now = Now { mono: MonoTime::new(1), wall, random: 0, room: Room::UNBOUNDED };
    let (mut out, mut after) = (Vec::new(), None);
    timed("the end of the load", &mut || {
        after = groups.loaded(now, after.as_ref(), &mut out);
        after.is_some()
    });
    let (mut after, mut listed) = (None, 0);
    timed("a list", &mut || {
        let some: Vec<_> = groups.list(after.as_ref()).take(1_000).collect();
        listed += some.len();
        after = some.last().map(|group| group.group.clone());
        after.is_some()
    });
    timed("the unload", &mut || groups.unload(&mut out));
    assert_eq!((listed, out.len()), (100_000, 0));
    assert!(longest < PART, "{longest:?}");
}

const TEAMS: i32 = 100_000;
const TOPICS: i32 = 100;
/// Of each topic; each group has committed all of one topic.
const READ: i32 = 10;

fn team(number: i32) -> String {
    format!("consumer-group-of-a-team-{number}")
}

/// Commits an offset for every partition that each group reads, many requests at a time.
fn commit_a_million(client: &mut Client) {
    const AT_A_TIME: i32 = 50;
    for first in (0..TEAMS).step_by(AT_A_TIME as usize) {
        let sent: Vec<i32> = (first..first + AT_A_TIME)
            .map(|number| {
                let partition = |partition_index| OffsetCommitRequestPartition {
                    partition_index,
                    committed_offset: i64::from(number),
                    committed_leader_epoch: -1,
                    commit_timestamp: -1,
                    committed_metadata: None,
                };
                let topic = OffsetCommitRequestTopic {
                    name: format!("topic-{}", number % TOPICS).into(),
                    partitions: (0..READ).map(partition).collect(),
                };
                let request = OffsetCommitRequest {
                    group_id: team(number).into(),
                    topics: vec![topic],
                    ..OffsetCommitRequest::default()
                };
                client.send(8, &request).expect("send")
            })
            .collect();
        for id in sent {
            let reply = client.receive(8, id).expect("receive");
            let answer: OffsetCommitResponse<'_> = reply.message().expect("answer");
            assert!(
                answer.topics.iter().flat_map(|topic| &topic.partitions).all(|part| part.error_code == 0)
            );
        }
    }
}

/// Waits until the coordinator of all groups serves.
fn await_coordinator(client: &mut Client) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let key = FindCoordinatorRequest {
            coordinator_keys: vec!["g".into()],
            ..FindCoordinatorRequest::default()
        };
        let reply = client.call(4, &key).expect("find the coordinator");
        let found: FindCoordinatorResponse<'_> = reply.message().expect("answer");
        let request =
            DescribeGroupsRequest { groups: vec!["g".into()], include_authorized_operations: false };
        if found.coordinators.elements()[0].error_code == 0 {
            let reply = client.call(5, &request).expect("describe");
            let answer: DescribeGroupsResponse<'_> = reply.message().expect("answer");
            if answer.groups[0].error_code == 0 {
                return;
            }
        }
        assert!(Instant::now() < deadline, "no coordinator");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What the broker says of its load: records and milliseconds.
fn loaded(log: &str) -> Option<(u64, u64)> {
    let line = log.lines().rfind(|line| line.contains("groups loaded"))?;
    let number = |name: &str| {
        let text = line.split(name).nth(1)?;
        text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    Some((number("records=")?, number("milliseconds=")?))
}

/// Issue 5: 100,000 groups with 1,000,000 committed offsets load in at most 3 s and take at most 300 MiB in all.
#[test]
fn a_coordinator_loads_a_million_offsets_within_three_seconds() {
    let mut broker = Broker::prepared(1, &["offsets.topic.num.partitions=1"]);
    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    for topic in 0..TOPICS {
        client.create_topic(&format!("topic-{topic}"), READ).expect("create");
    }
    await_coordinator(&mut client);
    let started = Instant::now();
    commit_a_million(&mut client);
    println!("1,000,000 offsets committed by one client in {:?}", started.elapsed());
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    // The shard serves others meanwhile.
    let (deadline, mut slowest) = (Instant::now() + LIMIT, Duration::ZERO);
    let (records, milliseconds) = loop {
        let asked = Instant::now();
        client.partitions("topic-0").expect("metadata");
        slowest = slowest.max(asked.elapsed());
        if let Some(loaded) = loaded(&broker.log()) {
            break loaded;
        }
        assert!(Instant::now() < deadline, "not loaded:\n{}", broker.log());
    };
    let memory = broker.resident_bytes();
    println!(
        "{records} records loaded in {milliseconds} ms, {} MiB; metadata answered within {slowest:?} meanwhile",
        memory >> 20
    );
    await_coordinator(&mut client);
    for number in [0, 1, 54_321, TEAMS - 1] {
        let topic = OffsetFetchRequestTopic {
            name: format!("topic-{}", number % TOPICS).into(),
            partition_indexes: vec![READ - 1],
        };
        let request = OffsetFetchRequest {
            group_id: team(number).into(),
            topics: Some(vec![topic]),
            ..OffsetFetchRequest::default()
        };
        let reply = client.call(7, &request).expect("fetch");
        let answer: OffsetFetchResponse<'_> = reply.message().expect("answer");
        assert_eq!(answer.topics[0].partitions.elements()[0].committed_offset, i64::from(number));
    }
    let started = Instant::now();
    let reply = client.call(4, &ListGroupsRequest::default()).expect("list");
    let answer: ListGroupsResponse<'_> = reply.message().expect("answer");
    assert_eq!(answer.groups.elements().len(), TEAMS as usize);
    println!("listed in {:?}", started.elapsed());
    assert_eq!(records, 1_000_000);
    assert!(milliseconds <= 3_000 && memory <= 300 << 20, "{milliseconds} ms, {memory} bytes");
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

//! T-18: ten thousand idle partitions on four shards take bounded memory, and nothing is written once everything is at
//! rest; a coordinator of 100,000 groups and 1,000,000 offsets takes no more than 300 MiB. Takes minutes: run by
//! `scripts/soak`, not by `scripts/check`.
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
use broker::coordinator::group::{GroupSettings, Groups};
use protocol::consumer_offsets::{OffsetValue, RecordKey};
use protocol::types::{Offset, TimestampMs};
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
}

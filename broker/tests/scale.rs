//! T-18: ten thousand idle partitions on four shards take bounded memory, and nothing is written once everything is at
//! rest. Takes minutes: run by `scripts/soak`, not by `scripts/check`.
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
use protocol::types::TimestampMs;
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

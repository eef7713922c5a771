//! `kill -9` of a real process under load, again and again: every acknowledged record is there afterwards, whole and
//! in order, and none appears twice or out of nothing. Also what a start after a kill may trust and what it must read
//! (F84, F85). `ODRADEK_KILL_ROUNDS` and `ODRADEK_SEED` make it a soak.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "drives a real process from outside"
)]

mod support;

use std::io::Write;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bench_harness::client::Client;
use bench_harness::content;
use protocol::records::builder::BatchBuilder;
use protocol::types::{ProducerEpoch, ProducerId, TimestampMs};
use support::Broker;

const TOPIC: &str = "killed";
const PARTITIONS: i32 = 6;
const RECORD_BYTES: usize = 300;
const LIMIT: Duration = Duration::from_secs(60);

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A generator that a seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What one partition was sent, and what of it was acknowledged.
#[derive(Clone, Copy, Default)]
struct Sent {
    /// Records acknowledged: all below are numbered without a gap from the producer's view.
    acknowledged: u64,
    /// A batch whose answer was lost may be there or not: its first number and count.
    in_doubt: Option<(u64, u32)>,
}

/// Produces to all partitions until the process is killed and the connection breaks; tells of each acknowledgement.
fn load(broker: &Broker, sent: &mut [Sent], random: &mut Random, acknowledged: &mpsc::Sender<()>) {
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        for partition in 0..PARTITIONS {
            let state = &mut sent[usize::try_from(partition).expect("small")];
            let count = u32::try_from(1 + random.below(20)).expect("small");
            let first = state.acknowledged + state.in_doubt.map_or(0, |(_, count)| u64::from(count));
            let batch =
                content::batch(partition, first, count, RECORD_BYTES, TimestampMs::new(1)).expect("batch");
            match client.produce(TOPIC, partition, 1, &batch) {
                Ok(Some(answer)) => {
                    assert_eq!(answer.error_code, 0, "partition {partition}");
                    state.acknowledged = first + u64::from(count);
                    state.in_doubt = None;
                    let _ = acknowledged.send(());
                }
                _ => {
                    state.in_doubt = Some((first, count));
                    return;
                }
            }
        }
    }
}

/// Reads everything; the numbers of each partition in the order of their offsets.
fn read_all(broker: &Broker) -> Vec<Vec<u64>> {
    broker.await_served(TOPIC, PARTITIONS);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    (0..PARTITIONS)
        .map(|partition| {
            let (mut numbers, mut offset) = (Vec::new(), 0);
            loop {
                let fetched =
                    client.fetch(TOPIC, partition, offset, Duration::from_millis(1)).expect("fetch");
                assert_eq!(fetched.error_code, 0, "fetch of partition {partition} at {offset}");
                let next =
                    content::check(partition, offset, &fetched.records, |_, number| numbers.push(number));
                let next = next.expect("whole records");
                if next >= fetched.high_watermark || next == offset {
                    assert_eq!(next, fetched.high_watermark, "partition {partition} can be read to its end");
                    return numbers;
                }
                offset = next;
            }
        })
        .collect()
}

/// What is there must be what was acknowledged, and a batch in doubt wholly or not at all.
fn verify(found: &[Vec<u64>], sent: &mut [Sent], seed: u64, round: u64) {
    for ((numbers, state), partition) in found.iter().zip(sent).zip(0..) {
        let context = format!("partition {partition}, round {round}, ODRADEK_SEED={seed}");
        let there = u64::try_from(numbers.len()).expect("few");
        assert!(numbers.iter().copied().eq(0..there), "{context}: a gap, a repeat or disorder");
        let end = state.in_doubt.map_or(state.acknowledged, |(first, count)| first + u64::from(count));
        let begin = state.in_doubt.map_or(state.acknowledged, |(first, _)| first);
        assert!(
            there == begin || there == end,
            "{context}: {there} records, acknowledged {}",
            state.acknowledged
        );
        *state = Sent { acknowledged: there, in_doubt: None };
    }
}

fn kill_under_load(shards: u16, rounds: u64, seed: u64) {
    let mut random = Random(seed);
    // Small segments, so that kills hit rolls.
    let mut broker = Broker::start(shards, &["log.segment.bytes=65536"]);
    Client::connect(&broker.bootstrap(), LIMIT)
        .expect("connect")
        .create_topic(TOPIC, PARTITIONS)
        .expect("create");
    let mut sent = vec![Sent::default(); usize::try_from(PARTITIONS).expect("small")];
    for round in 0..rounds {
        let (pid, wait) = (broker.pid(), Duration::from_millis(random.below(400)));
        // The clock runs from the first acknowledgement on, however slow the machine is.
        let (acknowledged, first) = mpsc::channel();
        let killer = std::thread::spawn(move || {
            first.recv_timeout(LIMIT).expect("an acknowledgement");
            std::thread::sleep(wait);
            std::process::Command::new("kill").args(["-9", &pid.to_string()]).status()
        });
        load(&broker, &mut sent, &mut random, &acknowledged);
        assert!(killer.join().expect("killer").expect("kill").success());
        broker.kill();
        if random.below(2) == 0 {
            tear_tail(&broker, &mut random);
        }
        if random.below(2) == 0 {
            // Every checksum is computed, else none.
            broker.distrust();
        }
        broker.launch();
        verify(&read_all(&broker), &mut sent, seed, round);
    }
    let total: u64 = sent.iter().map(|state| state.acknowledged).sum();
    println!("{shards} shard(s), {rounds} rounds: {total} acknowledged records are there");
    assert!(total > 0, "the load sent nothing");
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

/// Appends stray bytes to a newest segment, as a torn write leaves them (F83).
fn tear_tail(broker: &Broker, random: &mut Random) {
    let partition =
        broker.log_dir().join(format!("{TOPIC}-{}", random.below(u64::try_from(PARTITIONS).expect("small"))));
    let mut segments: Vec<_> = std::fs::read_dir(partition)
        .expect("partition directory")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    segments.sort();
    let newest = segments.last().expect("a segment");
    let stray: Vec<u8> = (0..random.below(100)).map(|i| i.to_le_bytes()[0]).collect();
    std::fs::File::options().append(true).open(newest).expect("segment").write_all(&stray).expect("write");
}

#[test]
fn acknowledged_records_survive_kill_9_on_one_shard() {
    kill_under_load(1, from_environment("ODRADEK_KILL_ROUNDS", 5), from_environment("ODRADEK_SEED", 1));
}

#[test]
fn acknowledged_records_survive_kill_9_on_two_shards() {
    kill_under_load(2, from_environment("ODRADEK_KILL_ROUNDS", 5), from_environment("ODRADEK_SEED", 2));
}

#[test]
fn a_stop_signal_that_comes_twice_is_one_clean_stop() {
    // `timeout` and shells signal the process and its group.
    let mut broker = Broker::start(2, &[]);
    Client::connect(&broker.bootstrap(), LIMIT).expect("connect").create_topic(TOPIC, 200).expect("create");
    broker.signal("INT");
    broker.signal("TERM");
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    assert!(broker.log_dir().join(".kafka_cleanshutdown").exists());
}

/// The only partition's segments, oldest first.
fn segments(broker: &Broker) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(broker.log_dir().join(format!("{TOPIC}-0")))
        .expect("partition directory")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    found.sort();
    found
}

/// Waits for something with a generous deadline.
fn wait_until(broker: &Broker, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} does not happen:\n{}", broker.log());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// F84: were the mark still there after a start that was killed, the next start would not look for the damage.
#[test]
fn a_start_that_was_killed_leaves_no_mark_of_a_clean_stop() {
    let mut broker = Broker::start(2, &[]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic(TOPIC, PARTITIONS).expect("create");
    let mut random = Random(from_environment("ODRADEK_SEED", 3));
    let mut known = vec![0; usize::try_from(PARTITIONS).expect("small")];
    for round in 0..6 {
        for (partition, first) in (0..).zip(&mut known) {
            let batch =
                content::batch(partition, *first, 5, RECORD_BYTES, TimestampMs::new(1)).expect("batch");
            let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
            assert_eq!(
                client.produce(TOPIC, partition, 1, &batch).expect("produce").expect("answer").error_code,
                0
            );
            *first += 5;
        }
        assert!(broker.stop().success());
        let mark = broker.log_dir().join(".kafka_cleanshutdown");
        assert!(mark.exists());
        let log = broker.log().len();
        let mut started =
            broker.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
        wait_until(&broker, "the removal of the mark", || !mark.exists());
        std::thread::sleep(Duration::from_millis(round * 3));
        started.kill().expect("kill");
        started.wait().expect("wait");
        tear_tail(&broker, &mut random);
        broker.launch();
        assert!(broker.log().len() > log);
        for (numbers, known) in read_all(&broker).iter().zip(&known) {
            assert!(numbers.iter().copied().eq(0..*known), "round {round}: {numbers:?}");
        }
    }
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

/// Whether the kernel is Linux 6.8 or newer, which gives each mount an id of its own.
fn tells_mounts_apart() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("osrelease");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(8))
}

/// A batch of an idempotent producer.
fn numbered(sequence: i32) -> Vec<u8> {
    let mut builder = BatchBuilder::new().producer(ProducerId::new(7), ProducerEpoch::new(0), sequence);
    builder.push(TimestampMs::new(1), None, Some(&[9; 30_000]), &[]);
    builder.build().expect("batch").to_vec()
}

/// Flips a bit in the records of the batch of an offset, of which no header tells.
fn damage(broker: &Broker, offset: u64) {
    use std::os::unix::fs::FileExt;

    let size = u64::try_from(numbered(0).len()).expect("small");
    let newest = segments(broker).pop().expect("a segment");
    let file = std::fs::File::options().read(true).write(true).open(newest).expect("segment");
    let (at, mut byte) = (offset * size + size / 2, [0]);
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("write");
}

/// After a kill the kernel holds what was written, and no checksum is computed; after anything else each one is, also
/// when the start that does it is killed in its turn.
#[test]
fn a_start_believes_the_kernel_that_has_written_and_nobody_else() {
    let mut broker = Broker::start(1, &[]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic(TOPIC, 1).expect("create");
    let produce = |broker: &Broker, sequence: i32| {
        broker.await_served(TOPIC, 1);
        let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
        let answer = client.produce(TOPIC, 0, -1, &numbered(sequence)).expect("produce").expect("answer");
        assert_eq!((answer.error_code, answer.base_offset), (0, i64::from(sequence)), "{}", broker.log());
    };
    (0..40).for_each(|sequence| produce(&broker, sequence));
    if !tells_mounts_apart() {
        // Every start checks everything.
        assert!(broker.stop().success());
        return;
    }
    wait_until(&broker, "the voucher", || broker.is_vouched());
    broker.kill();
    damage(&broker, 30);
    broker.launch();
    // Nothing is lost, the producer is known, and the damage is not looked for.
    (39..42).for_each(|sequence| produce(&broker, sequence));
    for _ in 0..5 {
        broker.kill();
        broker.distrust();
        broker.launch();
        // It may be at it, or done.
        broker.kill();
        broker.launch();
        // Whoever checked it, the log ends before the damage.
        (29..41).for_each(|sequence| produce(&broker, sequence));
        damage(&broker, 30);
    }
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    assert!(
        broker.log_dir().join(".kafka_cleanshutdown").exists() && !broker.is_vouched(),
        "as Kafka leaves it"
    );
}

/// F85: what lies below the recovery point is not read, so that a start takes as long as what came after it. Here old
/// segments are spoilt while the broker is down: whoever reads them finds no batch in them.
#[test]
fn a_start_after_a_kill_reads_nothing_below_the_recovery_point() {
    let settings = ["log.segment.bytes=65536", "log.flush.offset.checkpoint.interval.ms=50"];
    let mut broker = Broker::start(1, &settings);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic(TOPIC, 1).expect("create");
    for sequence in 0..41 {
        let produced = client.produce(TOPIC, 0, -1, &numbered(sequence)).expect("produce").expect("answer");
        assert_eq!((produced.error_code, produced.base_offset), (0, i64::from(sequence)));
    }
    let all = segments(&broker);
    let (newest, old) = all.split_last().expect("segments");
    assert!(old.len() >= 15, "{all:?}");
    let base: i64 = newest.file_stem().and_then(|stem| stem.to_str()).expect("name").parse().expect("base");
    let checkpoint = broker.log_dir().join("recovery-point-offset-checkpoint");
    wait_until(&broker, "a recovery point behind the last roll", || {
        let text = std::fs::read_to_string(&checkpoint).unwrap_or_default();
        let point = text.lines().find_map(|line| line.strip_prefix(&format!("{TOPIC} 0 ")));
        point.and_then(|point| point.parse::<i64>().ok()).is_some_and(|point| point >= base)
    });
    broker.kill();
    let whole: Vec<_> = old.iter().map(|path| std::fs::read(path).expect("segment")).collect();
    for (path, bytes) in old.iter().zip(&whole) {
        std::fs::write(path, vec![0xa5; bytes.len()]).expect("spoilt");
    }
    let log = broker.log().len();
    broker.launch();
    broker.await_loaded();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    let again = client.produce(TOPIC, 0, -1, &numbered(40)).expect("produce").expect("answer");
    assert_eq!((again.error_code, again.base_offset), (0, 40), "the producer is known:\n{}", broker.log());
    let next = client.produce(TOPIC, 0, -1, &numbered(41)).expect("produce").expect("answer");
    assert_eq!((next.error_code, next.base_offset), (0, 41));
    let said = broker.log().split_off(log);
    assert!(!said.contains("segment") && !said.contains("snapshot"), "{said}");
    assert_eq!(segments(&broker).len(), all.len());
    for (path, bytes) in old.iter().zip(&whole) {
        assert_eq!(
            std::fs::metadata(path).expect("segment").len(),
            u64::try_from(bytes.len()).expect("small")
        );
        std::fs::write(path, bytes).expect("mended");
    }
    let first = client.fetch(TOPIC, 0, 0, Duration::from_millis(1)).expect("fetch");
    assert!(first.error_code == 0 && !first.records.is_empty());
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

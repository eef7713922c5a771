//! `kill -9` of a real process while it compacts (storage.md 7.6), again and again: whatever the compaction was at, the next
//! start finds the last acknowledged record of each key, and nothing that was not sent. `ODRADEK_KILL_ROUNDS` and
//! `ODRADEK_SEED` make it a soak.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "drives a real process from outside"
)]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bench_harness::client::Client;
use bench_harness::content::{Stamp, value};
use protocol::records::batch::BatchIter;
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression};
use protocol::records::reader::Records;
use protocol::types::TimestampMs;
use support::Broker;

const TOPIC: &str = "compacted";
const PARTITIONS: i32 = 2;
const RECORDS: u64 = 8;
const KEYS: u64 = 40;
const VALUE_BYTES: usize = 200;
const LIMIT: Duration = Duration::from_secs(60);

/// Segments of some nine batches, compacted as soon as there is one more.
const SETTINGS: [&str; 7] = [
    "log.cleanup.policy=compact",
    "log.segment.bytes=16384",
    "log.retention.ms=-1",
    "log.cleaner.min.cleanable.ratio=0.01",
    "log.cleaner.backoff.ms=1",
    "replica.high.watermark.checkpoint.interval.ms=50",
    // What the start knows of recovery points is older than any compaction.
    "log.flush.offset.checkpoint.interval.ms=600000",
];

/// A generator that a seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A key and the number of its value; none deletes it.
type Pair = (u64, Option<u64>);

/// What one partition was sent.
#[derive(Default)]
struct Sent {
    /// By offset.
    records: BTreeMap<i64, Pair>,
    /// Where the next batch goes.
    end: i64,
    /// Of all records, so that no two values are the same.
    count: u64,
    /// A batch whose answer was lost.
    in_doubt: Vec<Pair>,
}

impl Sent {
    fn note(&mut self, pairs: &[Pair]) {
        self.records.extend((self.end..).zip(pairs.iter().copied()));
        self.end += i64::try_from(pairs.len()).expect("few");
    }

    /// The next records and their batch.
    fn draw(&mut self, partition: i32, random: &mut Random) -> (Vec<Pair>, Vec<u8>) {
        let codec = Codec::ALL[usize::try_from(random.below(5)).expect("small")];
        let mut builder = BatchBuilder::new().compression(Compression::default_level(codec));
        let mut pairs = Vec::new();
        for _ in 0..RECORDS {
            let (key, number) = (random.below(KEYS), self.count);
            self.count += 1;
            let is_value = random.below(10) > 0;
            let bytes = is_value.then(|| value(Stamp { run: 0, partition, number }, VALUE_BYTES));
            builder.push(TimestampMs::new(1), Some(&key.to_be_bytes()), bytes.as_deref(), &[]);
            pairs.push((key, is_value.then_some(number)));
        }
        (pairs, builder.build().expect("batch").to_vec())
    }

    /// What is there was sent, in order, and of each key at least the last.
    fn verify(&mut self, found: &BTreeMap<i64, Pair>, high_watermark: i64, context: &str) {
        if high_watermark > self.end {
            let pairs = std::mem::take(&mut self.in_doubt);
            self.note(&pairs);
        }
        self.in_doubt.clear();
        assert_eq!(high_watermark, self.end, "{context}: what was acknowledged ends elsewhere");
        for (offset, pair) in found {
            assert_eq!(Some(pair), self.records.get(offset), "{context}: at {offset} is what was not sent");
        }
        let last: BTreeMap<u64, i64> =
            self.records.iter().map(|(offset, (key, _))| (*key, *offset)).collect();
        for (key, offset) in last {
            assert!(
                found.contains_key(&offset),
                "{context}: the last record of key {key}, at {offset}, is gone"
            );
        }
    }
}

/// Sends one batch to each partition; `false` when the process has gone.
fn produce(client: &mut Client, sent: &mut [Sent], random: &mut Random) -> bool {
    for (partition, sent) in (0..).zip(sent) {
        let (pairs, batch) = sent.draw(partition, random);
        match client.produce(TOPIC, partition, -1, &batch) {
            Ok(Some(answer)) => {
                assert_eq!((answer.error_code, answer.base_offset), (0, sent.end));
                sent.note(&pairs);
            }
            _ => {
                sent.in_doubt = pairs;
                return false;
            }
        }
    }
    true
}

fn connect(broker: &Broker) -> Client {
    Client::connect(&broker.bootstrap(), LIMIT).expect("connect")
}

/// Everything of one partition by offset, and where it ends.
fn read(broker: &Broker, partition: i32) -> (BTreeMap<i64, Pair>, i64) {
    let mut client = connect(broker);
    let (mut found, mut next) = (BTreeMap::new(), 0);
    loop {
        let fetched = client.fetch(TOPIC, partition, next, Duration::from_millis(1)).expect("fetch");
        assert_eq!(fetched.error_code, 0, "fetch of partition {partition} at {next}:\n{}", broker.log());
        let before = next;
        for batch in BatchIter::new(&fetched.records) {
            let Ok(batch) = batch else { break };
            assert!(batch.crc_is_valid() && batch.next_offset().get() > next, "at {next}");
            let mut records = Records::of(&batch).expect("records");
            while let Some(record) = records.next_record().expect("a record") {
                let offset = batch.base_offset().get() + i64::from(record.offset_delta);
                let key = record.key.and_then(|key| key.try_into().ok()).map(u64::from_be_bytes);
                let number =
                    record.value.map(|value| Stamp::read(partition, value).expect("a whole value").number);
                assert_eq!(found.insert(offset, (key.expect("a key"), number)), None);
            }
            next = batch.next_offset().get();
        }
        if next >= fetched.high_watermark || next == before {
            assert_eq!(next, fetched.high_watermark, "partition {partition} can be read to its end");
            return (found, next);
        }
    }
}

fn verify(broker: &Broker, sent: &mut [Sent], context: &str) {
    broker.await_served(TOPIC, PARTITIONS);
    for (partition, sent) in (0..).zip(sent) {
        let (found, high_watermark) = read(broker, partition);
        sent.verify(&found, high_watermark, &format!("{context}, partition {partition}"));
    }
}

/// Files of unfinished work, by their last suffix.
fn unfinished(broker: &Broker) -> Vec<String> {
    let dirs = (0..PARTITIONS).map(|partition| broker.log_dir().join(format!("{TOPIC}-{partition}")));
    let names = dirs.flat_map(|dir| std::fs::read_dir(dir).expect("partition directory"));
    let names = names.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned());
    let mut found: Vec<_> = names.filter_map(|name| name.rsplit('.').next().map(str::to_owned)).collect();
    found.retain(|suffix| suffix == "cleaned" || suffix == "swap");
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

/// Where a partition is clean, as the checkpoint says.
fn cleaned_to(broker: &Broker, partition: i32) -> i64 {
    let text =
        std::fs::read_to_string(broker.log_dir().join("cleaner-offset-checkpoint")).unwrap_or_default();
    let entry = text.lines().find_map(|line| line.strip_prefix(&format!("{TOPIC} {partition} ")));
    entry.and_then(|offset| offset.parse().ok()).unwrap_or(0)
}

/// Base offset of the newest segment.
fn active_base(broker: &Broker, partition: i32) -> i64 {
    let dir = broker.log_dir().join(format!("{TOPIC}-{partition}"));
    let names = std::fs::read_dir(dir).expect("partition directory");
    let bases = names.filter_map(|entry| {
        let path = entry.expect("entry").path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        path.file_stem().filter(|_| is_log)?.to_str()?.parse().ok()
    });
    bases.max().expect("a segment")
}

/// Produces until each partition has begun a segment; what lies before is then made durable.
fn roll(broker: &Broker, sent: &mut [Sent], random: &mut Random) {
    let mut client = connect(broker);
    let bases = || (0..PARTITIONS).map(|partition| active_base(broker, partition));
    let before: Vec<_> = bases().collect();
    while bases().zip(&before).any(|(now, before)| now == *before) {
        assert!(produce(&mut client, sent, random), "{}", broker.log());
    }
}

/// Waits until all but the active segment of each partition is clean, and looks whether it is.
fn await_clean(broker: &Broker) {
    for partition in 0..PARTITIONS {
        let end = active_base(broker, partition);
        wait_until(broker, "the compaction of all closed segments", || cleaned_to(broker, partition) == end);
        let (found, _) = read(broker, partition);
        let mut keys = BTreeMap::new();
        for (offset, (key, _)) in found.range(..end) {
            let twice = keys.insert(*key, *offset);
            assert_eq!(
                twice, None,
                "partition {partition}: key {key} is there again at {offset}, below {end}"
            );
        }
    }
}

fn sent() -> Vec<Sent> {
    (0..PARTITIONS).map(|_| Sent::default()).collect()
}

/// The rate lets a round move 64 KiB at once and the rest within a minute, so that it is in the middle of its work for as
/// long as the test takes: behind the map of a segment of 48 KiB, and before the end of the copy.
#[test]
fn a_compaction_that_was_killed_in_the_middle_costs_nothing_and_is_done_again() {
    for is_distrusted in [false, true] {
        let (mut random, mut sent) = (Random(5), sent());
        let mut broker = Broker::prepared(1, &SETTINGS);
        broker.set("log.segment.bytes", "49152");
        broker.set("log.cleaner.enable", "false");
        broker.launch();
        connect(&broker).create_topic(TOPIC, PARTITIONS).expect("create");
        roll(&broker, &mut sent, &mut random);
        assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
        broker.set("log.cleaner.enable", "true");
        broker.set("log.cleaner.io.max.bytes.per.second", "1000");
        broker.launch();
        let is_cut = || unfinished(&broker).iter().any(|suffix| suffix == "cleaned");
        wait_until(&broker, "a compaction", is_cut);
        broker.kill();
        assert_eq!(unfinished(&broker), ["cleaned"]);
        if is_distrusted {
            broker.distrust();
        }
        broker.set("log.cleaner.io.max.bytes.per.second", "1000000000");
        broker.launch();
        verify(&broker, &mut sent, "after the kill");
        roll(&broker, &mut sent, &mut random);
        await_clean(&broker);
        verify(&broker, &mut sent, "compacted");
        assert_eq!(unfinished(&broker), Vec::<String>::new());
        assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The kill comes when it comes: what the compaction was at is told, and is not what this is about.
#[test]
fn the_last_record_of_each_key_survives_kills_of_a_broker_that_compacts_all_the_time() {
    let seed = from_environment("ODRADEK_SEED", 1);
    let (mut random, mut sent) = (Random(seed), sent());
    let mut broker = Broker::start(2, &SETTINGS);
    connect(&broker).create_topic(TOPIC, PARTITIONS).expect("create");
    for round in 0..from_environment("ODRADEK_KILL_ROUNDS", 6) {
        let mut client = connect(&broker);
        for _ in 0..20 + random.below(60) {
            assert!(produce(&mut client, &mut sent, &mut random), "{}", broker.log());
        }
        let found = if random.below(2) == 0 { unfinished(&broker) } else { Vec::new() };
        broker.kill();
        println!("round {round}: {found:?}, then {:?} after the kill", unfinished(&broker));
        if random.below(2) == 0 {
            broker.distrust();
        }
        // A topic that is compacted no more has gaps, too.
        broker.set("log.cleanup.policy", if random.below(3) == 0 { "delete" } else { "compact" });
        broker.launch();
        verify(&broker, &mut sent, &format!("round {round}, ODRADEK_SEED={seed}"));
    }
    broker.kill();
    broker.set("log.cleanup.policy", "compact");
    broker.launch();
    verify(&broker, &mut sent, "at the end");
    roll(&broker, &mut sent, &mut random);
    await_clean(&broker);
    verify(&broker, &mut sent, "compacted");
    assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
}

//! Every reader of a format meets seeded noise and damaged real files: none panics, none allocates beyond a multiple of
//! its input. `ODRADEK_FUZZ_SECONDS` says how long, two seconds without it; a failure prints the seed that
//! `ODRADEK_FUZZ_SEED` takes to begin there.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests, like the tests themselves"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use protocol::records::batch::BatchView;
use protocol::types::{Offset, ProducerId, TimestampMs};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use storage::checkpoint::OffsetCheckpoint;
use storage::epochs::LeaderEpochCache;
use storage::index::offset::OffsetIndex;
use storage::index::time::TimeIndex;
use storage::index::txn::{AbortedTxn, TxnIndex};
use storage::meta_properties::MetaProperties;
use storage::names::{PartitionDirName, SegmentFileName, kafka_ignores_file};
use storage::producer_state::{EndTxnMarker, ProducerStateManager};
use storage::{clean_shutdown, partition_metadata};

thread_local! {
    /// Bytes allocated by this thread and not freed yet, and the most there were since the last reset.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(change: isize) {
    // Without a thread-local any more, at the end of a thread, there is nothing to measure.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's obligations are those of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: see `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new content exist at once while one is copied to the other.
        count(size.cast_signed());
        count(-layout.size().cast_signed());
        // SAFETY: see `alloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BASE: Offset = Offset::new(1000);

/// Lets one reader read, and sees how much it allocates for that.
fn bounded<T>(what: &str, input: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
    let before = LIVE.get();
    PEAK.set(before);
    let outcome = read(input);
    let allocated = usize::try_from(PEAK.get() - before).unwrap_or(0);
    let limit = input.len() * 16 + (64 << 10);
    assert!(allocated <= limit, "{what}: {allocated} bytes allocated for {}", input.len());
    outcome
}

/// Reads the input as everything that it could be. What can be read must also survive being used and printed.
fn read_as_everything(input: &[u8]) {
    read_as_text(input);
    read_as_index(input);
    read_as_snapshot(input);
    if let Ok(view) = BatchView::parse(input) {
        let _ = bounded("marker", input, |_| EndTxnMarker::read(&view));
    }
}

fn read_as_text(input: &[u8]) {
    let name = String::from_utf8_lossy(input);
    let _ = bounded("segment name", input, |_| SegmentFileName::parse(&name));
    let _ = bounded("directory name", input, |_| PartitionDirName::parse(&name));
    let _ = kafka_ignores_file(&name);
    if let Ok(checkpoint) = bounded("offset checkpoint", input, OffsetCheckpoint::parse) {
        assert_eq!(OffsetCheckpoint::parse(checkpoint.to_text().as_bytes()).as_ref(), Ok(&checkpoint));
    }
    if let Ok(mut epochs) = bounded("epoch checkpoint", input, LeaderEpochCache::parse) {
        assert_eq!(LeaderEpochCache::parse(epochs.to_text().as_bytes()).as_ref(), Ok(&epochs));
        epochs.truncate_from_start(Offset::new(10));
        epochs.truncate_from_end(Offset::new(20));
    }
    let _ = bounded("partition.metadata", input, partition_metadata::parse).map(partition_metadata::print);
    let _ = bounded("marker file", input, clean_shutdown::parse).map(clean_shutdown::print);
    if let Ok(meta) = bounded("meta.properties", input, MetaProperties::parse) {
        assert_eq!(MetaProperties::parse(meta.to_text().as_bytes()).as_ref(), Ok(&meta));
    }
}

fn read_as_index(input: &[u8]) {
    if let Ok(parsed) = bounded("offset index", input, |input| OffsetIndex::parse(BASE, input, 1 << 20)) {
        let mut index = parsed.index;
        assert_eq!(index.to_bytes().len() + parsed.padding_bytes, input.len());
        let _ = (index.lookup(Offset::new(i64::MAX)), index.lookup(Offset::NONE), index.first_at_position(7));
        let _ = index.append(Offset::new(2000), 100);
        index.truncate_to(Offset::new(1500));
    }
    if let Ok(parsed) = bounded("time index", input, |input| TimeIndex::parse(BASE, input, 1 << 20)) {
        let mut index = parsed.index;
        let _ = (index.lookup(TimestampMs::new(i64::MAX)), index.append_closing(TimestampMs::new(9), BASE));
        index.truncate_to(Offset::new(1500));
    }
    if let Ok(mut index) = bounded("transaction index", input, |input| TxnIndex::parse(BASE, input)) {
        assert_eq!(index.to_bytes().len(), input.len());
        let _ = index.collect(BASE, Offset::new(i64::MAX));
        index.truncate_to(Offset::new(1500));
    }
}

fn read_as_snapshot(input: &[u8]) {
    let mut manager = ProducerStateManager::new(1000);
    manager.begin_reload(BASE);
    let load = |input: &[u8]| manager.load_snapshot(Offset::new(2000), input, TimestampMs::new(0));
    if bounded("snapshot", input, load).is_ok() {
        manager.remove_expired(TimestampMs::new(i64::MAX));
        manager.on_high_watermark(BASE);
        let _ = (manager.first_unstable_offset(), manager.has_late_txn(TimestampMs::new(i64::MAX), i64::MAX));
        manager.set_map_end_offset(Offset::new(3000));
        let _ = manager.take_snapshot();
    }
}

/// Real files of every format.
fn samples() -> Vec<Vec<u8>> {
    let mut offsets = OffsetIndex::new(BASE, 1 << 12);
    let mut times = TimeIndex::new(BASE, 1 << 12);
    let mut txns = TxnIndex::new();
    for number in 1..40_u32 {
        let offset = BASE.plus(i64::from(number));
        let _ = offsets.append(offset, u64::from(number) * 70);
        let _ = times.maybe_append(TimestampMs::new(i64::from(number)), offset);
        let _ = txns.append(AbortedTxn {
            producer_id: ProducerId::new(7),
            first_offset: BASE,
            last_offset: offset,
            last_stable_offset: offset,
        });
    }
    let mut padded = offsets.to_bytes().to_vec();
    padded.resize(4096, 0);
    vec![
        offsets.to_bytes().to_vec(),
        padded,
        times.to_bytes().to_vec(),
        txns.to_bytes().to_vec(),
        snapshot(9),
        control_batch(),
        b"0\n3\ntopicA 0 1234\ntopicB 7 99\nx -1 -1\n".to_vec(),
        b"0\n2\n1 10\n3 20\n".to_vec(),
        b"version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA".to_vec(),
        b"{\"version\":0,\"brokerEpoch\":-1}".to_vec(),
        b"#\n#date\nversion=0\nbroker.id=1\ncluster.id=c\n\\u0041 b:c\\\n d\n".to_vec(),
        b"00000000000000001000.timeindex.swap".to_vec(),
        b"a-b-3.0123456789abcdef0123456789abcdef-future".to_vec(),
    ]
}

fn control_batch() -> Vec<u8> {
    use protocol::records::builder::BatchBuilder;
    use protocol::types::ProducerEpoch;
    let mut builder =
        BatchBuilder::new().producer(ProducerId::new(7), ProducerEpoch::new(1), -1).transactional().control();
    builder.push(TimestampMs::new(5), Some(&[0, 0, 0, 1]), Some(&[0, 0, 0, 0, 0, 9]), &[]);
    builder.build().unwrap().to_vec()
}

fn snapshot(producers: i64) -> Vec<u8> {
    let mut manager = ProducerStateManager::new(i64::MAX);
    let batch = control_batch();
    let view = BatchView::parse(&batch).unwrap();
    for producer in 0..producers {
        let mut info = view.info();
        info.producer_id = ProducerId::new(producer);
        info.attributes = protocol::records::batch::Attributes::new(if producer % 2 == 0 { 0 } else { 0x10 });
        info.base_offset = BASE.plus(producer);
        manager.update(&info, None, TimestampMs::new(1));
    }
    manager.set_map_end_offset(Offset::new(2000));
    manager.take_snapshot().unwrap().1.to_vec()
}

/// Makes the checksum of a snapshot right again, so that damage behind it is looked at.
fn reseal(input: &mut [u8]) {
    if input.len() >= 10 {
        let crc = protocol::records::crc::crc32c(&input[6..]).to_be_bytes();
        input[2..6].copy_from_slice(&crc);
    }
}

fn mutate(random: &mut SmallRng, samples: &[Vec<u8>]) -> Vec<u8> {
    let mut input = samples.choose(random).unwrap().clone();
    for _ in 0..random.random_range(0..6) {
        let at = random.random_range(0..=input.len());
        match random.random_range(0..7) {
            0 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
            1 if at < input.len() => input[at] = random.random(),
            2 => input.truncate(at),
            3 => input.insert(at, *b"0123456789 \n\r\\:=-.#u\x00\xff".choose(random).unwrap()),
            4 => {
                let other = samples.choose(random).unwrap();
                let from = random.random_range(0..=other.len());
                input.splice(at.., other[from..].iter().copied());
            }
            5 => {
                let value: i32 = *[-1, 0, 1, i32::MAX, i32::MIN, 1 << 16].choose(random).unwrap();
                let end = input.len().min(at + 4);
                input.splice(at..end, value.to_be_bytes());
            }
            _ => input.resize(random.random_range(0..8192), random.random()),
        }
    }
    if random.random_ratio(1, 3) {
        reseal(&mut input);
    }
    input
}

#[test]
fn no_input_panics_or_allocates_beyond_a_multiple_of_itself() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let budget = Duration::from_secs(setting("ODRADEK_FUZZ_SECONDS").unwrap_or(2));
    let first = setting("ODRADEK_FUZZ_SEED").unwrap_or(1);
    let samples = samples();
    #[allow(clippy::disallowed_methods, reason = "how long to fuzz is a matter of real time")]
    let started = std::time::Instant::now();
    for seed in first.. {
        if started.elapsed() >= budget {
            break;
        }
        for round in 0..500 {
            let mut random = SmallRng::seed_from_u64(seed.wrapping_mul(500).wrapping_add(round));
            let input = mutate(&mut random, &samples);
            let outcome = std::panic::catch_unwind(|| read_as_everything(&input));
            let start = &input[..input.len().min(100)];
            assert!(
                outcome.is_ok(),
                "ODRADEK_FUZZ_SEED={seed}, round {round}: {} bytes from {start:?}",
                input.len()
            );
        }
    }
}

#[test]
fn the_samples_are_read_as_what_they_are() {
    let samples = samples();
    assert_eq!(OffsetIndex::parse(BASE, &samples[0], 1 << 12).unwrap().index.len(), 39);
    assert_eq!(OffsetIndex::parse(BASE, &samples[1], 1 << 12).unwrap().index.len(), 39);
    assert_eq!(TimeIndex::parse(BASE, &samples[2], 1 << 12).unwrap().index.len(), 39);
    assert_eq!(TxnIndex::parse(BASE, &samples[3]).unwrap().entries().len(), 39);
    let mut manager = ProducerStateManager::new(i64::MAX);
    manager.load_snapshot(BASE, &samples[4], TimestampMs::new(0)).unwrap();
    assert_eq!(manager.producers().len(), 9);
    assert!(EndTxnMarker::read(&BatchView::parse(&samples[5]).unwrap()).unwrap().is_some());
    assert_eq!(OffsetCheckpoint::parse(&samples[6]).unwrap().offsets.len(), 3);
    assert_eq!(LeaderEpochCache::parse(&samples[7]).unwrap().entries().len(), 2);
    assert!(partition_metadata::parse(&samples[8]).is_ok());
    assert!(clean_shutdown::parse(&samples[9]).is_some());
    assert!(MetaProperties::parse(&samples[10]).is_ok());
    assert!(SegmentFileName::parse(std::str::from_utf8(&samples[11]).unwrap()).is_some());
    assert!(PartitionDirName::parse(std::str::from_utf8(&samples[12]).unwrap()).is_ok());
}

#[test]
fn large_files_are_read_within_the_bound_too() {
    read_as_snapshot(&snapshot(20_000));
    let mut lines = String::from("0\n20000\n");
    (0..20_000).for_each(|number| lines.push_str(&format!("t {number} 0\n")));
    read_as_text(lines.as_bytes());
    let mut lines = String::from("0\n20000\n");
    (0..20_000).for_each(|number| lines.push_str(&format!("{number} {number}\n")));
    read_as_text(lines.as_bytes());
    let keys: String = (0..20_000).map(|number| format!("{number:x}\n")).collect();
    read_as_text(keys.as_bytes());
    read_as_index(&[0; 12 * 8 * 17 * 600]);
    let ascending: Vec<u8> = (1..100_000_u64).flat_map(|n| (n << 32 | n).to_be_bytes()).collect();
    read_as_index(&ascending);
}

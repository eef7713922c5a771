//! Compaction of a whole log (storage.md 7.5, 7.6): against a list of what was appended, and with a machine that dies at every
//! operation of a round (T-7). Whatever happens, the last record of each key is there, what is there was appended as it is,
//! in order, and no deleted key comes back.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use bytes::BytesMut;
use proptest::prelude::*;
use protocol::records::batch::BatchIter;
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression};
use protocol::records::reader::Records;
use protocol::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};
use storage::config::{CleanupPolicy, LogConfig};
use storage::io::sim::{Crash, SimRuntime, SimTask};
use storage::io::{DirDone, DirOp, Queue, Runtime, Span};
use storage::log::{Compacted, CompactionError, CompactionLimits, OpenOptions, ReadRequest};

use common::{SimLog, append, machine, open, options};

const DELETE_RETENTION_MS: i64 = 5000;

const LIMITS: CompactionLimits = CompactionLimits {
    map_bytes: 1 << 16,
    map_load_factor: 0.9,
    buffer_bytes: 300,
    bytes_per_second: f64::MAX,
    free_space_floor_bytes: 0,
};

fn config() -> LogConfig {
    LogConfig {
        cleanup_policy: CleanupPolicy { delete: false, compact: true },
        segment_bytes: 400,
        index_interval_bytes: 150,
        segment_ms: i64::MAX,
        retention_ms: -1,
        delete_retention_ms: DELETE_RETENTION_MS,
        file_delete_delay_ms: 1000,
        ..LogConfig::default()
    }
}

/// A key and its value; none deletes it.
type Pair = (u8, Option<u8>);

/// Offset, timestamp, key, value.
type Record = (i64, i64, u8, Option<Vec<u8>>);

fn value_of(value: u8) -> Vec<u8> {
    vec![value; usize::from(value % 40)]
}

fn keyed(pairs: &[Pair], codec: Codec, time: i64, producer: Option<(i64, i32)>) -> BytesMut {
    let mut builder = BatchBuilder::new().compression(Compression::default_level(codec));
    if let Some((id, sequence)) = producer {
        builder = builder.producer(ProducerId::new(id), ProducerEpoch::new(0), sequence);
    }
    for (at, (key, value)) in (0..).zip(pairs) {
        let value = value.map(value_of);
        builder.push(TimestampMs::new(time - at), Some(&[*key]), value.as_deref(), &[]);
    }
    builder.build().unwrap()
}

async fn read_records(log: &SimLog) -> Vec<Record> {
    let mut seen = Vec::new();
    let mut from = log.log_start_offset();
    loop {
        let upper_bound = log.log_end_offset();
        let request = ReadRequest { from, max_bytes: 1 << 20, upper_bound, min_one_batch: true };
        let read = log.read(request).await.expect("the log is readable");
        if read.bytes == 0 {
            return seen;
        }
        let mut all = Vec::new();
        for span in &read.spans {
            let Span::Memory(bytes) = span else { panic!("a simulated file has no descriptor") };
            all.extend_from_slice(bytes);
        }
        for view in BatchIter::new(&all) {
            let view = view.expect("a batch");
            assert!(view.crc_is_valid());
            assert!(view.base_offset() >= from, "a batch is read once");
            let mut records = Records::of(&view).unwrap();
            while let Some(record) = records.next_record().unwrap() {
                let offset = view.base_offset().get() + i64::from(record.offset_delta);
                let time = view.base_timestamp().get() + record.timestamp_delta;
                seen.push((offset, time, record.key.unwrap()[0], record.value.map(<[u8]>::to_vec)));
            }
            from = view.next_offset();
        }
    }
}

async fn compact(
    log: &SimLog,
    now: i64,
    limits: &CompactionLimits,
) -> Result<Option<Compacted>, CompactionError> {
    let cleanable = log.cleanable(log.log_end_offset(), TimestampMs::new(now)).await?;
    if !cleanable.is_due(0.0) {
        return Ok(None);
    }
    log.compact(&cleanable, limits).await.map(Some)
}

/// What was appended, and when each record was compacted first at the earliest.
#[derive(Clone, Default)]
struct Model {
    appended: Vec<Record>,
    /// By offset of a tombstone.
    compacted_at: BTreeMap<i64, i64>,
}

impl Model {
    fn on_append(&mut self, base: i64, pairs: &[Pair], time: i64) {
        for (at, (key, value)) in (0..).zip(pairs) {
            self.appended.push((base + at, time - at, *key, value.map(value_of)));
        }
    }

    /// A round begins: whatever is there may be looked at.
    fn on_compaction(&mut self, now: i64) {
        for (offset, _, _, value) in &self.appended {
            if value.is_none() {
                self.compacted_at.entry(*offset).or_insert(now);
            }
        }
    }

    /// A power cut took what was not durable: all behind `end`, and any above `durable`, for a compacted log may have gaps.
    fn cut(&mut self, end: i64, durable: i64, seen: &[Record]) {
        let is_left =
            |offset: i64| offset < end && (offset < durable || seen.iter().any(|other| other.0 == offset));
        self.appended.retain(|(offset, ..)| is_left(*offset));
        self.compacted_at.retain(|offset, _| is_left(*offset));
    }

    fn check(&self, seen: &[Record], now: i64, dirty_from: i64) {
        assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0), "offsets go up");
        let by_offset: BTreeMap<i64, &Record> =
            self.appended.iter().map(|record| (record.0, record)).collect();
        let there: BTreeMap<i64, &Record> = seen.iter().map(|record| (record.0, record)).collect();
        for record in seen {
            assert_eq!(by_offset.get(&record.0), Some(&record), "what is there was appended as it is");
        }
        let mut last: BTreeMap<u8, &Record> = BTreeMap::new();
        for record in &self.appended {
            last.insert(record.2, record);
            assert!(record.0 < dirty_from || there.contains_key(&record.0), "dirty records stay: {record:?}");
        }
        for (key, record) in last {
            let until = self.compacted_at.get(&record.0).map(|at| at + DELETE_RETENTION_MS);
            let must_stay = record.3.is_some() || until.is_none_or(|until| now < until);
            let is_there = there.contains_key(&record.0);
            assert!(is_there || !must_stay, "the last record of key {key} is gone: {record:?}");
            let older = seen.iter().find(|other| other.2 == key && other.0 < record.0);
            assert!(is_there || older.is_none(), "key {key} was deleted and is back: {older:?}");
        }
    }
}

/// Below `end` there is one record of each key: true behind a round whose map had room.
fn check_compacted(seen: &[Record], end: i64) {
    let mut keys: BTreeMap<u8, i64> = BTreeMap::new();
    for (offset, _, key, _) in seen.iter().filter(|record| record.0 < end) {
        assert_eq!(keys.insert(*key, *offset), None, "key {key} is there twice below {end}");
    }
}

#[derive(Clone, Debug)]
enum Do {
    Append {
        pairs: Vec<Pair>,
        codec: u8,
    },
    Flush,
    /// The dir's checkpoint files are written.
    Checkpoint,
    Compact {
        map_keys: usize,
        flushed: bool,
    },
    Wait(u16),
    ReopenClean,
    /// The topic is compacted, or no more, after that.
    Crash(Kind, bool),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The next start knows that only the process died.
    Kill,
    /// It does not.
    KillUnknown,
    PowerCut,
    Torn(u64),
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let pair = (0..12_u8, prop::option::weighted(0.8, any::<u8>()));
    let crash = prop_oneof![
        2 => Just(Kind::Kill),
        1 => Just(Kind::KillUnknown),
        1 => Just(Kind::PowerCut),
        1 => any::<u64>().prop_map(Kind::Torn),
    ];
    let step = prop_oneof![
        12 => (prop::collection::vec(pair, 1..6), 0..5_u8).prop_map(|(pairs, codec)| Do::Append { pairs, codec }),
        2 => Just(Do::Flush),
        1 => Just(Do::Checkpoint),
        3 => (prop_oneof![3 => Just(100_usize), 1 => 1..8_usize], prop::bool::weighted(0.7))
            .prop_map(|(map_keys, flushed)| Do::Compact { map_keys, flushed }),
        1 => (0..6000_u16).prop_map(Do::Wait),
        1 => Just(Do::ReopenClean),
        3 => (crash, prop::bool::weighted(0.7)).prop_map(|(kind, compacted)| Do::Crash(kind, compacted)),
    ];
    prop::collection::vec(step, 1..80)
}

struct World {
    runtime: SimRuntime,
    log: SimLog,
    model: Model,
    seeds: u64,
    /// What the dir's checkpoint files say: as old as they may be.
    checkpoint: (Offset, Option<Offset>),
    /// Everything below may have been compacted.
    compacted_to: i64,
    /// Everything below is durable, whatever the checkpoint says.
    durable: i64,
}

impl World {
    fn new() -> Self {
        let runtime = machine(5);
        let log = opened(&runtime, options(config()));
        let (model, checkpoint) = (Model::default(), (Offset::ZERO, None));
        Self { runtime, log, model, seeds: 100, checkpoint, compacted_to: 0, durable: 0 }
    }

    fn now(&self) -> i64 {
        self.runtime.wall_ms()
    }

    fn run<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(SimLog) -> F) -> T {
        self.runtime.block_on(work(self.log.clone()))
    }

    fn step(&mut self, step: &Do) {
        match step {
            Do::Append { pairs, codec } => {
                let time = self.now();
                let codec = Codec::new(i16::from(*codec)).unwrap();
                let bytes = keyed(pairs, codec, time, None);
                let base = self.run(|log| async move { append(&log, bytes, 1).await }).unwrap();
                self.model.on_append(base.first_offset.get(), pairs, time);
            }
            Do::Flush => self.run(|log| async move { log.flush().await }).unwrap(),
            Do::Checkpoint => self.checkpoint = (self.log.recovery_point(), self.log.cleaner_offset()),
            Do::Compact { map_keys, flushed } => self.compact(*map_keys, *flushed),
            Do::Wait(ms) => self.runtime.advance_ms(u64::from(*ms)),
            Do::ReopenClean => self.reopen_clean(),
            Do::Crash(kind, compacted) => self.crash(*kind, *compacted),
        }
        self.durable = self.durable.max(self.log.recovery_point().get());
    }

    fn compact(&mut self, map_keys: usize, flushed: bool) {
        if flushed {
            self.run(|log| async move { log.flush().await }).unwrap();
        }
        let now = self.now();
        self.model.on_compaction(now);
        let limits = CompactionLimits { map_bytes: map_keys * 24, map_load_factor: 1.0, ..LIMITS };
        let done = self.run(move |log| async move { compact(&log, now, &limits).await }).unwrap();
        let seen = self.run(|log| async move { read_records(&log).await });
        if let Some(done) = done {
            let end = done.first_dirty.unwrap();
            assert_eq!(self.log.cleaner_offset(), Some(end));
            assert!(end <= self.log.recovery_point(), "what is not durable is not compacted");
            self.compacted_to = self.compacted_to.max(end.get());
            if map_keys > 12 {
                check_compacted(&seen, end.get());
            }
        }
    }

    fn reopen_clean(&mut self) {
        self.run(|log| async move { log.close().await }).unwrap();
        self.checkpoint = (self.log.recovery_point(), self.log.cleaner_offset());
        let (recovery_point, cleaner_offset) = self.checkpoint;
        let options = OpenOptions { clean: true, recovery_point, cleaner_offset, ..options(config()) };
        self.log = opened(&self.runtime, options);
        let end = self.log.log_end_offset().get();
        assert!(self.model.appended.iter().all(|record| record.0 < end));
    }

    fn crash(&mut self, kind: Kind, compacted: bool) {
        let is_kill = matches!(kind, Kind::Kill | Kind::KillUnknown);
        let mode = if let Kind::Torn(seed) = kind { Crash::Torn(seed) } else { Crash::DropUnsynced };
        if is_kill {
            self.run(|log| async move { log.until_written(log.log_end_offset()).await }).unwrap();
        }
        let written = self.log.written_offset();
        // After a kill what was not durable still is not.
        let disk = if is_kill { self.runtime.disk().clone() } else { self.runtime.disk().crash(mode) };
        let ran_ms = u64::try_from(self.now() - SimRuntime::new(1).wall_ms()).unwrap();
        self.runtime.kill();
        self.seeds += 1;
        self.runtime = SimRuntime::on(self.seeds, disk);
        self.runtime.advance_ms(ran_ms);
        let (recovery_point, cleaner_offset) = self.checkpoint;
        let vouched = matches!(kind, Kind::Kill);
        let policy = CleanupPolicy { delete: !compacted, compact: compacted };
        let config = LogConfig { cleanup_policy: policy, ..config() };
        let options = OpenOptions { recovery_point, cleaner_offset, vouched, ..options(config) };
        self.log = opened(&self.runtime, options);
        let end = self.log.log_end_offset();
        assert!(if is_kill { end == written } else { end.get() >= self.durable }, "{kind:?}: {end}");
        let seen = self.run(|log| async move { read_records(&log).await });
        let durable = if is_kill { end.get() } else { self.durable };
        self.model.cut(end.get(), durable, &seen);
        self.model.check(&seen, self.now(), self.compacted_to);
        self.log.set_config(self::config());
    }

    fn check(&self) {
        let seen = self.run(|log| async move {
            log.until_written(log.log_end_offset()).await.unwrap();
            read_records(&log).await
        });
        self.model.check(&seen, self.now(), self.compacted_to);
    }
}

fn opened(runtime: &SimRuntime, options: OpenOptions) -> SimLog {
    let inside = runtime.clone();
    runtime.block_on(async move { open(&inside, options).await }).expect("the log opens")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn compaction_keeps_the_last_record_of_each_key_whatever_else_happens(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.step(&Do::Compact { map_keys: 100, flushed: true });
        world.check();
    }
}

/// What is known outside when the machine dies.
#[derive(Default)]
struct Known {
    model: Model,
    recovery_point: i64,
    cleaner_offset: Option<Offset>,
    /// When the last round began: what goes by time went at that one.
    now: i64,
    /// Operations of the disk during each round, and what the rounds did.
    rounds: Vec<(Range<u64>, Compacted)>,
}

async fn script(runtime: SimRuntime, known: Rc<RefCell<Known>>) {
    let log = open(&runtime, options(config())).await.unwrap();
    for round in 0..3_u8 {
        for at in 0..10_u8 {
            // Of five keys, one is deleted in each round and one is written in the first only.
            let key = if at == 0 && round == 0 { 9 } else { at % 5 };
            let value = (at % 5 != round + 1).then_some(at * 5 + round);
            let pairs = [(key, value), (at % 3, Some(at))];
            let codec = Codec::ALL[usize::from(at) % 5];
            let time = runtime.wall_ms();
            let bytes = keyed(&pairs, codec, time, Some((5, i32::from(round) * 20 + i32::from(at) * 2)));
            // Known before it happens: a batch may be there although nobody heard of it.
            let first = log.log_end_offset().get();
            known.borrow_mut().model.on_append(first, &pairs, time);
            append(&log, bytes, 1).await.unwrap();
        }
        log.flush().await.unwrap();
        known.borrow_mut().recovery_point = log.recovery_point().get();
        let now = runtime.wall_ms();
        known.borrow_mut().now = now;
        known.borrow_mut().model.on_compaction(now);
        let first = runtime.disk().operation_count();
        let done = compact(&log, now, &LIMITS).await.unwrap().unwrap();
        let operations = first..runtime.disk().operation_count();
        known.borrow_mut().cleaner_offset = log.cleaner_offset();
        known.borrow_mut().rounds.push((operations, done));
        // Tombstones of one round go in the next but one; deleted files are removed.
        runtime.sleep_until(runtime.now().plus_ms(DELETE_RETENTION_MS / 2 + 500)).await;
    }
    log.close().await.unwrap();
}

fn open_and_read(runtime: &SimRuntime, known: &Known, vouched: bool) -> (i64, Vec<Record>) {
    let inside = runtime.clone();
    let (recovery_point, cleaner_offset) = (Offset::new(known.recovery_point), known.cleaner_offset);
    runtime.block_on(async move {
        let options = OpenOptions { recovery_point, cleaner_offset, vouched, ..options(config()) };
        let log = open(&inside, options).await.expect("opens after a crash");
        let seen = read_records(&log).await;
        let listed = inside.dir(DirOp::List(common::DIR.into())).await.unwrap();
        let DirDone::Entries(entries) = listed else { panic!("a list") };
        let is_left = |name: &str| name.ends_with(".cleaned") || name.ends_with(".swap");
        assert!(!entries.iter().any(|entry| is_left(&entry.name)), "{entries:?}");
        (log.log_end_offset().get(), seen)
    })
}

/// Runs the script on a machine that dies at an operation.
fn run_until(operation: u64) -> (SimRuntime, Rc<RefCell<Known>>, SimTask) {
    let runtime = machine(3);
    runtime.disk().freeze_from(operation);
    let known = Rc::new(RefCell::new(Known::default()));
    let task = runtime.spawn(Queue::Request, script(runtime.clone(), known.clone()));
    // Longer than the script sleeps.
    runtime.advance_ms(4 * u64::try_from(DELETE_RETENTION_MS).unwrap());
    (runtime, known, task)
}

fn die_at(operation: u64, mode: Crash) {
    let (runtime, known, task) = run_until(operation);
    let disk = runtime.disk().crash(mode);
    let now = known.borrow().now;
    drop(task);
    runtime.kill();
    let after = SimRuntime::on(4, disk);
    let mut known = known.borrow_mut();
    let (end, seen) = open_and_read(&after, &known, false);
    assert!(end >= known.recovery_point, "operation {operation}, {mode:?}: ends at {end}");
    let durable = known.recovery_point;
    known.model.cut(end, durable, &seen);
    let dirty_from = known.cleaner_offset.map_or(end, Offset::get);
    // A round whose end nobody heard of may have cleaned what it would: only the active segment is certainly whole.
    known.model.check(&seen, now, dirty_from.max(known.recovery_point));
    let again = SimRuntime::on(5, after.disk().crash(Crash::KeepAll));
    assert_eq!(open_and_read(&again, &known, false), (end, seen.clone()), "operation {operation}, {mode:?}");
    if mode == Crash::KeepAll {
        be_killed_at(operation, (end, seen));
    }
}

/// The process dies there and not the machine, and the next start knows it: it finds the same, twice, and leaves what a power
/// cut may follow, also with a checkpoint from before all rounds.
fn be_killed_at(operation: u64, expected: (i64, Vec<Record>)) {
    for is_old in [false, true] {
        let (runtime, known, task) = run_until(operation);
        let disk = runtime.disk().clone();
        let now = known.borrow().now;
        drop(task);
        runtime.kill();
        disk.freeze_from(u64::MAX);
        let mut known = known.borrow_mut();
        let (durable, cleaner_offset) = (known.recovery_point, known.cleaner_offset);
        if is_old {
            (known.recovery_point, known.cleaner_offset) = (0, None);
        }
        for start in [6, 7] {
            let killed = SimRuntime::on(start, disk.clone());
            assert_eq!(open_and_read(&killed, &known, true), expected, "operation {operation}, killed");
            killed.kill();
        }
        let after = SimRuntime::on(8, disk.crash(Crash::Torn(operation)));
        let (end, seen) = open_and_read(&after, &known, false);
        assert!(end >= durable, "operation {operation}, killed, then a power cut: ends at {end}");
        known.model.cut(end, durable, &seen);
        known.model.check(&seen, now, cleaner_offset.map_or(end, Offset::get).max(durable));
    }
}

#[test]
fn a_machine_that_dies_at_any_operation_of_a_compaction_loses_no_last_record() {
    let (_, known, _) = run_until(u64::MAX);
    let rounds = std::mem::take(&mut known.borrow_mut().rounds);
    assert_eq!(rounds.len(), 3);
    let is_wide = |done: &Compacted| done.segments_written > 1 && done.segments_read > done.segments_written;
    assert!(
        rounds.iter().any(|(_, done)| is_wide(done)),
        "several groups, and one of several segments: {rounds:?}"
    );
    // Each operation in one of the ways; all ways take minutes.
    let modes = [Crash::KeepAll, Crash::DropUnsynced, Crash::Torn(1), Crash::Torn(2)];
    let all = std::env::var_os("ODRADEK_CRASH_ALL").is_some();
    for operation in rounds.iter().step_by(2).flat_map(|(operations, _)| operations.clone()) {
        for (mode, at) in modes.into_iter().zip(0..) {
            if all || operation % 4 == at {
                // The number of the operation that never happens.
                die_at(operation + 1, mode);
            }
        }
    }
}

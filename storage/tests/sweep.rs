//! What bad input gets: every file of a small directory is cut at every byte, and each of its bits is flipped. Whatever comes
//! of it, the directory opens or is refused with nothing changed; no record is served that was not written; what another
//! file than a log has lost hides none; and what is mended is said once. `cargo test` takes a sample; `ODRADEK_SWEEP_STEP=1`
//! takes all of it (scripts/soak).
//!
//! Not found, as by Kafka, since no checksum covers it: a flipped offset or leader epoch of a batch below the recovery
//! point, a flipped entry of a time index or a transaction index, a digit of a checkpoint or of an epoch.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::indexing_slicing, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_types, reason = "what is said is collected from wherever it is said")]

mod common;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::builder::BatchBuilder;
use protocol::types::*;
use storage::checkpoint::OffsetCheckpoint;
use storage::config::LogConfig;
use storage::io::sim::{Crash, SimDisk, SimRuntime};
use storage::io::{DirDone, DirOp, Runtime, Span};
use storage::log::{LoadError, OpenOptions, ReadRequest};
use storage::log_dir::{CheckpointFile, Loading, LogDir, OpenedLogDir};
use storage::meta_properties::Identity;
use storage::producer_state::{AppendOrigin, Verification};
use tracing::field::{Field, Visit};
use tracing::span;

use common::{CLIENT, DIR, NOW, SimLog, batch, machine, open, options, small_config};

const HOME: &str = "/data";
const TOPIC_ID: TopicId = TopicId::new([7; 16]);
/// Of the log files one damage in so many is tried, of the small ones one in an eighth of that.
const STEP: usize = 128;
/// More than it takes to read everything.
const READS_MAX: usize = 1000;

/// How the broker before had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    /// What lies behind the recovery point is checked.
    PowerCut,
}

/// A batch as it lies in a file.
struct Stored {
    file: PathBuf,
    position: usize,
    base_offset: i64,
    last_offset: i64,
    bytes: Vec<u8>,
}

struct Healthy {
    end: End,
    disk: SimDisk,
    files: Vec<PathBuf>,
    batches: Vec<Stored>,
    log_start: i64,
    log_end: i64,
}

/// A batch that was served: its base offset, and all of it.
type Served = (i64, Vec<u8>);

#[derive(Clone, Copy, Debug)]
enum Damage {
    Cut(usize),
    Flip { byte: usize, bit: u8 },
}

impl Damage {
    fn at(self) -> usize {
        match self {
            Self::Cut(at) | Self::Flip { byte: at, .. } => at,
        }
    }

    fn apply(self, content: &mut Vec<u8>) {
        match self {
            Self::Cut(at) => content.truncate(at),
            Self::Flip { byte, bit } => content[byte] ^= 1 << bit,
        }
    }
}

fn identity() -> Identity {
    Identity { broker_id: Some(BrokerId::new(1)), cluster_id: Some("cluster".to_owned()) }
}

fn partition() -> TopicPartition {
    TopicPartition::new(TopicName::new("t"), 0)
}

async fn open_home(runtime: &SimRuntime) -> Result<OpenedLogDir<SimRuntime>, String> {
    let opened = LogDir::open(runtime.clone(), Path::new(HOME), &identity(), 0).await;
    opened.map_err(|error| error.to_string())
}

fn transactional(id: i64, sequence: i32) -> BytesMut {
    let mut builder =
        BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(0), sequence).transactional();
    builder.push(NOW, None, Some(b"of a transaction"), &[]);
    builder.build().unwrap()
}

fn marker(id: i64, is_commit: bool) -> BytesMut {
    let mut builder = BatchBuilder::new()
        .producer(ProducerId::new(id), ProducerEpoch::new(0), -1)
        .transactional()
        .control();
    builder.push(NOW, Some(&[0, 0, 0, u8::from(is_commit)]), Some(&[0, 0, 0, 0, 0, 1]), &[]);
    builder.build().unwrap()
}

async fn append(log: &SimLog, bytes: BytesMut, epoch: i32) {
    let info = BatchView::parse(&bytes).unwrap().info();
    let is_control = info.attributes.is_control();
    let origin = if is_control { AppendOrigin::Coordinator(Verification::NotRequired) } else { CLIENT };
    let epoch = LeaderEpoch::new(epoch);
    if log.must_prepare(&info, epoch, NOW) {
        log.prepare(&info, origin, epoch, NOW).await.unwrap();
    }
    log.append(bytes, &info, origin, epoch, NOW).unwrap();
}

/// Several segments and epochs, producers, transactions that ended both ways, deleted records. Answers up to where the
/// checkpoint of a broker knows it to be durable that is gone soon after.
async fn fill(log: &SimLog) -> Offset {
    let mut durable = Offset::ZERO;
    for tag in 0..6_u64 {
        let (epoch, sequence) = (i32::try_from(tag / 3).unwrap(), i32::try_from(tag).unwrap());
        append(log, batch(2, tag * 11, None), epoch).await;
        append(log, transactional(5, sequence), epoch).await;
        append(log, marker(5, tag % 2 == 0), epoch).await;
        append(log, batch(1, tag, Some((6, sequence))), epoch).await;
        if tag == 2 {
            log.flush().await.unwrap();
            durable = log.recovery_point();
        }
    }
    log.until_written(log.log_end_offset()).await.unwrap();
    log.advance_log_start(Offset::new(3)).await.unwrap();
    durable
}

fn healthy(end: End) -> Healthy {
    let runtime = machine(11);
    let inside = runtime.clone();
    let (log_start, log_end) = runtime.block_on(async move {
        let home = open_home(&inside).await.unwrap().dir;
        home.create_partitions(&[partition()]).await.unwrap();
        let first = OpenOptions { topic_id: Some(TOPIC_ID), ..options(small_config()) };
        let log = open(&inside, first).await.unwrap();
        let durable = fill(&log).await;
        match end {
            End::Stopped => {
                log.close().await.unwrap();
                stop(&home, &log).await;
            }
            End::PowerCut => write_checkpoints(&home, &log, durable).await,
        }
        (log.log_start_offset().get(), log.log_end_offset().get())
    });
    let disk = runtime.disk().crash(Crash::KeepAll);
    let runtime = SimRuntime::on(1, disk.clone());
    let mut files = names(&runtime, HOME);
    files.extend(names(&runtime, DIR));
    let batches = files.iter().filter(|path| is_log(path)).flat_map(|path| stored(&disk, path)).collect();
    Healthy { end, disk, files, batches, log_start, log_end }
}

fn entry(offset: Offset) -> OffsetCheckpoint {
    OffsetCheckpoint { offsets: [(partition(), offset)].into() }
}

/// What a broker writes now and then.
async fn write_checkpoints(home: &LogDir<SimRuntime>, log: &SimLog, recovery_point: Offset) {
    for (file, offset) in [
        (CheckpointFile::HighWatermark, log.log_end_offset()),
        (CheckpointFile::Cleaner, log.log_end_offset()),
        (CheckpointFile::RecoveryPoint, recovery_point),
        (CheckpointFile::LogStart, log.log_start_offset()),
    ] {
        home.write_checkpoint(file, &entry(offset)).await.unwrap();
    }
}

/// What it writes at its end.
async fn stop(home: &LogDir<SimRuntime>, log: &SimLog) {
    write_checkpoints(home, log, log.recovery_point()).await;
    let (recovery_point, log_start) = (entry(log.recovery_point()), entry(log.log_start_offset()));
    assert!(home.mark_clean(&recovery_point, &log_start, Loading::Finished).await.unwrap());
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

/// The files of a directory.
fn names(runtime: &SimRuntime, dir: &str) -> Vec<PathBuf> {
    let (inside, of) = (runtime.clone(), PathBuf::from(dir));
    match runtime.block_on(async move { inside.dir(DirOp::List(of)).await }).unwrap() {
        DirDone::Entries(entries) => {
            let files = entries.into_iter().filter(|entry| !entry.is_dir);
            files.map(|entry| Path::new(dir).join(entry.name)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn stored(disk: &SimDisk, path: &Path) -> Vec<Stored> {
    let content = disk.content(path).unwrap();
    let mut position = 0;
    let mut found = Vec::new();
    for view in BatchIter::new(&content) {
        let view = view.unwrap();
        let size = view.size_in_bytes();
        found.push(Stored {
            file: path.to_owned(),
            position,
            base_offset: view.base_offset().get(),
            last_offset: view.last_offset().get(),
            bytes: content[position..position + size].to_vec(),
        });
        position += size;
    }
    assert_eq!(position, content.len());
    found
}

/// What a consumer takes with so many reads that begins at `from`: it stops at the first thing that is no batch with its
/// checksum.
async fn consume(log: &SimLog, mut from: Offset, reads_max: usize) -> Vec<Served> {
    let mut seen = Vec::new();
    for _ in 0..reads_max {
        let upper_bound = log.log_end_offset();
        let request = ReadRequest { from, max_bytes: 300, upper_bound, min_one_batch: true };
        let Ok(read) = log.read(request).await else { break };
        let mut all = Vec::new();
        for span in &read.spans {
            match span {
                Span::Memory(bytes) => all.extend_from_slice(bytes),
                Span::File { .. } => panic!("a simulated file has no descriptor"),
            }
        }
        let before = from;
        let mut position = 0;
        for view in BatchIter::new(&all) {
            let Some(view) = view.ok().filter(BatchView::crc_is_valid) else { break };
            let size = view.size_in_bytes();
            if view.last_offset() < from {
                // What lies behind a damaged offset is passed over, as by Kafka's consumer.
                assert!(position > 0, "what was asked for, or later");
                break;
            }
            seen.push((view.base_offset().get(), all[position..position + size].to_vec()));
            position += size;
            from = view.next_offset();
        }
        if from <= before {
            break;
        }
    }
    seen
}

/// What was said as a warning or an error.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Said {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// What became of a damaged directory.
struct Opened {
    home: OpenedLogDir<SimRuntime>,
    log: SimLog,
}

/// Opens the directory as a broker does; a sentence where it is refused.
async fn start(runtime: &SimRuntime) -> Result<Opened, String> {
    let home = open_home(runtime).await?;
    let said_of = |file| home.checkpoint(file).offsets.get(&partition()).copied();
    let first = OpenOptions {
        topic_id: Some(TOPIC_ID),
        recovery_point: said_of(CheckpointFile::RecoveryPoint).unwrap_or(Offset::ZERO),
        log_start_offset: said_of(CheckpointFile::LogStart).unwrap_or(Offset::ZERO),
        cleaner_offset: said_of(CheckpointFile::Cleaner),
        clean: home.dir.was_clean(),
        ..options(small_config())
    };
    match open(runtime, first).await {
        Ok(log) => Ok(Opened { home, log }),
        Err(error @ (LoadError::InconsistentTopicId { .. } | LoadError::MalformedMetadata(_))) => {
            Err(error.to_string())
        }
        Err(error) => panic!("damage takes no directory offline: {error}"),
    }
}

/// Whether the batch may differ from what was written: no checksum covers offset and epoch.
fn differs_where_it_may(stored: &Stored, seen: &[u8], damaged: Option<usize>) -> bool {
    if stored.bytes.len() != seen.len() {
        return false;
    }
    let differing: Vec<_> = (0..seen.len()).filter(|at| stored.bytes[*at] != seen[*at]).collect();
    match differing[..] {
        [] => true,
        [at] => damaged == Some(stored.position + at) && (at < 8 || (12..16).contains(&at)),
        _ => false,
    }
}

impl Healthy {
    /// Every batch that is served was written, in its order; answers which.
    fn check_served(&self, seen: &[Served], path: &Path, damage: Damage) -> Vec<usize> {
        let mut rest = 0;
        let mut served = Vec::new();
        for (base_offset, bytes) in seen {
            let is_it = |stored: &Stored| {
                let damaged = (stored.file == path).then(|| damage.at());
                differs_where_it_may(stored, bytes, damaged)
            };
            let found = self.batches[rest..].iter().position(is_it);
            let found = found.unwrap_or_else(|| panic!("nobody wrote what is served at {base_offset}"));
            served.push(rest + found);
            rest += found + 1;
        }
        served
    }

    /// Those that a reader from `start` on has to see, whatever lies behind the damage.
    fn due(&self, start: i64, path: &Path, damage: Damage) -> Vec<usize> {
        let is_before = |stored: &Stored| {
            !is_log(path)
                || *stored.file < *path
                || (stored.file == path && stored.position + stored.bytes.len() <= damage.at())
        };
        let due = |(_, stored): &(usize, &Stored)| stored.last_offset >= start && is_before(stored);
        self.batches.iter().enumerate().filter(due).map(|(at, _)| at).collect()
    }

    /// Whether nothing tells that something is missing: what a power cut took is not known, and zeros are what it leaves.
    fn looks_whole(&self, path: &Path, damage: Damage) -> bool {
        let Damage::Cut(at) = damage else { return false };
        let is_end = |stored: &Stored| {
            let left = at.checked_sub(stored.position).and_then(|left| stored.bytes.get(..left));
            stored.file == path && left.is_some_and(|left| left.iter().all(|byte| *byte == 0))
        };
        self.end == End::PowerCut && self.batches.iter().any(is_end)
    }

    async fn check(&self, runtime: &SimRuntime, path: &Path, damage: Damage, said: &Said) {
        let before = runtime.disk().fingerprint();
        let opened = match start(runtime).await {
            Ok(opened) => opened,
            Err(sentence) => {
                assert!(!sentence.is_empty() && !sentence.contains('\n'), "{sentence:?}");
                let is_home = path.ends_with("meta.properties");
                let is_identity = is_home || path.ends_with("partition.metadata");
                assert!(is_identity, "only another's directory is refused: {sentence}");
                // Where a log is refused its home is open, and its mark of a clean stop gone.
                assert!(!is_home || runtime.disk().fingerprint() == before, "nothing is touched");
                return;
            }
        };
        let log = &opened.log;
        let (start, end) = (log.log_start_offset(), log.log_end_offset());
        let is_start_file = path.ends_with(CheckpointFile::LogStart.name());
        assert!(is_start_file || start.get() <= self.log_start || is_log(path), "{start}");
        let seen = consume(log, start, READS_MAX).await;
        let served = self.check_served(&seen, path, damage);
        if end > start {
            let due = self.due(start.get(), path, damage);
            assert!(served.starts_with(&due), "{served:?} of {due:?}");
            for at in due {
                let wanted = Offset::new(self.batches[at].base_offset).max(start);
                let found = consume(log, wanted, 1).await;
                assert_eq!(self.check_served(&found, path, damage).first(), Some(&at), "at {wanted}");
            }
        }
        let _ = log.offset_for_timestamp(TimestampMs::new(1_000_500), end).await;
        let _ = log.max_timestamp_offset(end).await;
        let _ = log.aborted_transactions(start, end).await;
        let told = said.take();
        let different: BTreeSet<_> = told.iter().collect();
        assert_eq!(different.len(), told.len(), "said twice: {told:#?}");
        let is_known = end.get() >= self.log_end || self.looks_whole(path, damage);
        assert!(is_known || !told.is_empty(), "records went, and nothing was said");
        self.check_again(runtime, &opened, &seen, said).await;
    }

    /// What was mended stays so: the next start finds nothing to say, and the same records.
    async fn check_again(&self, runtime: &SimRuntime, opened: &Opened, seen: &[Served], said: &Said) {
        opened.log.close().await.expect("an open log closes");
        stop(&opened.home.dir, &opened.log).await;
        let again = start(runtime).await.expect("what was open opens");
        assert!(again.home.dir.was_clean() && again.home.malformed.is_empty());
        let (log, before) = (&again.log, &opened.log);
        assert_eq!(log.log_start_offset(), before.log_start_offset());
        assert_eq!(log.log_end_offset(), before.log_end_offset());
        assert_eq!(consume(log, log.log_start_offset(), READS_MAX).await, seen);
        assert_eq!(said.take(), Vec::<String>::new(), "it is in order");
    }

    fn one(&self, path: &Path, damage: Damage, content: &[u8], said: &Said) {
        let mut damaged = content.to_vec();
        damage.apply(&mut damaged);
        let runtime = SimRuntime::on(3, self.disk.crash(Crash::KeepAll));
        runtime.disk().put(path, &damaged).unwrap();
        said.take();
        run(&runtime, self.check(&runtime, path, damage, said));
    }

    fn sweep(&self, step: usize, said: &Said) -> usize {
        let mut runs = 0;
        for path in &self.files {
            let content = self.disk.content(path).unwrap();
            let cuts = (0..content.len()).map(Damage::Cut);
            let flips = (0..content.len()).flat_map(|byte| (0..8).map(move |bit| Damage::Flip { byte, bit }));
            let step = if is_log(path) { step } else { step.div_ceil(8) };
            for (number, damage) in cuts.chain(flips).enumerate() {
                // Not the same bit of each byte.
                if (number + number / 64) % step != 0 {
                    continue;
                }
                runs += 1;
                let one = || self.one(path, damage, &content, said);
                if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(one)) {
                    eprintln!("{:?}: {} after {damage:?}, with {:#?}", self.end, path.display(), said.take());
                    std::panic::resume_unwind(panic);
                }
            }
        }
        runs
    }
}

/// Runs a future that borrows, in a world where nobody else does anything.
fn run(runtime: &SimRuntime, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    while future.as_mut().poll(&mut context) != Poll::Ready(()) {
        // All that it waits for is what the world does: operations, tasks of the log, the next timer.
        runtime.run_until_idle();
        runtime.advance_nanos(10_000);
    }
}

fn sweep(end: End) {
    let setting = std::env::var("ODRADEK_SWEEP_STEP").ok().and_then(|text| text.parse().ok());
    let said = Said::default();
    let dispatch = tracing::Dispatch::new(said.clone());
    tracing::dispatcher::with_default(&dispatch, || {
        let healthy = healthy(end);
        let kinds: BTreeSet<_> = healthy.files.iter().filter_map(|path| path.extension()?.to_str()).collect();
        let expected = ["index", "log", "snapshot", "timeindex", "txnindex"];
        assert!(expected.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
        assert!(healthy.batches.len() > 20 && healthy.log_start == 3, "{}", healthy.batches.len());
        let runs = healthy.sweep(setting.unwrap_or(STEP).max(1), &said);
        eprintln!("{end:?}: {runs} damages of {} files", healthy.files.len());
        assert!(runs > 200, "{runs}");
    });
}

#[test]
fn a_stopped_directory_with_any_damage_serves_what_was_written_or_says_why_not() {
    sweep(End::Stopped);
}

#[test]
fn a_directory_that_lost_its_power_and_has_any_damage_serves_what_was_written_or_says_why_not() {
    sweep(End::PowerCut);
}

/// Readers are not led past records by an index whose entry was damaged, also where it is that of the active segment.
#[test]
fn an_index_entry_that_leads_behind_its_batch_hides_nothing() {
    let healthy = healthy(End::Stopped);
    let mut tried = 0;
    for path in healthy.files.iter().filter(|path| path.extension().is_some_and(|kind| kind == "index")) {
        let mut content = healthy.disk.content(path).unwrap();
        if content.get(3).is_none_or(|byte| *byte == 0) {
            continue;
        }
        tried += 1;
        // As if the first entry told of the first record of the segment.
        content[3] = 1;
        healthy.one(path, Damage::Flip { byte: 3, bit: 0 }, &content, &Said::default());
    }
    assert!(tried > 1, "{tried} entries");
}

/// Where only the process died, a last batch that was not written to its end is no damage, and nothing is said of it as such.
/// One that was, and whose length was damaged since, may be followed by others: they go with it, and that is said, once.
#[test]
fn a_damaged_length_is_told_as_damage_and_a_short_write_is_not() {
    let said = Said::default();
    let dispatch = tracing::Dispatch::new(said.clone());
    tracing::dispatcher::with_default(&dispatch, || {
        let config = || LogConfig { segment_bytes: 1 << 20, ..small_config() };
        let (healthy, path) = (machine(5), common::file("00000000000000000000.log"));
        run(&healthy, async {
            let log = open(&healthy, options(config())).await.unwrap();
            for tag in 1..=5 {
                common::append(&log, batch(2, tag, None), 3).await.unwrap();
            }
            log.until_written(log.log_end_offset()).await.unwrap();
        });
        let written = healthy.disk().content(&path).unwrap();
        let mut starts = vec![0];
        starts.extend((1..=5).scan(0, |at, tag| {
            *at += batch(2, tag, None).len();
            Some(*at)
        }));
        assert_eq!(starts.pop(), Some(written.len()));
        let ends_at = |content: &[u8]| {
            let runtime = SimRuntime::on(3, healthy.disk().crash(Crash::KeepAll));
            runtime.disk().put(&path, content).unwrap();
            let mut end = 0;
            run(&runtime, async {
                let vouched = OpenOptions { vouched: true, ..options(config()) };
                end = open(&runtime, vouched).await.unwrap().log_end_offset().get();
            });
            end
        };
        for (records, start) in (0..).step_by(2).zip(starts.iter().copied()) {
            let mut damaged = written.clone();
            damaged[start + 8] ^= 0x40;
            assert_eq!(ends_at(&damaged), records);
            let told = said.take();
            let what =
                format!("file=00000000000000000000.log position={start} bytes={}", written.len() - start);
            assert!(told.len() == 1 && told[0].contains(&what), "{what}: {told:#?}");
        }
        for left in [1, 12, 30, 70] {
            assert_eq!(ends_at(&written[..starts[4] + left]), 8);
            assert_eq!(said.take(), Vec::<String>::new(), "{left} bytes of the last batch");
        }
    });
}

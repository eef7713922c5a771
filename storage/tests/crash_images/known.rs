//! What is known outside when the machine dies, and what the next start has to find then: it succeeds, nothing is invented
//! or damaged, nothing that was acknowledged as durable is lost. Opens an image with the code that a broker starts with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::reader::Records;
use protocol::types::{BrokerId, Offset, TimestampMs, TopicId, TopicPartition};
use storage::config::LogConfig;
use storage::io::Span;
use storage::io::sim::{Crash, SimDisk, SimRuntime};
use storage::log::{Log, OpenOptions, ReadRequest, TailBudget};
use storage::log_dir::moves::find_replaced;
use storage::log_dir::{CheckpointFile, FoundKind, FoundLogDir, LogDir, OpenedLogDir};
use storage::meta_properties::Identity;

use crate::compaction::Compaction;
use crate::moves::resume;

pub const DIR: &str = "/data";
/// Where there is a second log dir.
pub const OTHER: &str = "/data2";

pub type SimLog = Rc<Log<SimRuntime>>;

/// What was being done when the machine died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Append,
    Checkpoint,
    Compaction,
    DeleteRecords,
    Deletion,
    Epochs,
    Move,
    Retention,
    Roll,
    #[default]
    Start,
    Stop,
    Truncation,
}

impl Class {
    pub const ALL: [Self; 12] = [
        Self::Append,
        Self::Checkpoint,
        Self::Compaction,
        Self::DeleteRecords,
        Self::Deletion,
        Self::Epochs,
        Self::Move,
        Self::Retention,
        Self::Roll,
        Self::Start,
        Self::Stop,
        Self::Truncation,
    ];
}

/// A batch as it lies in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub first: i64,
    pub last: i64,
    pub epoch: i32,
    pub time: i64,
    /// Of an idempotent producer: its id and the sequence of the last record.
    pub producer: Option<(i64, i32)>,
    pub payload: Vec<u8>,
    /// Offsets of its records.
    pub records: Vec<i64>,
}

impl Batch {
    pub fn of(view: &BatchView<'_>) -> Self {
        let producer = (view.base_sequence() >= 0).then(|| (view.producer_id().get(), view.last_sequence()));
        let mut records = Vec::new();
        if let Ok(mut read) = Records::of(view) {
            while let Ok(Some(record)) = read.next_record() {
                records.push(view.base_offset().get() + i64::from(record.offset_delta));
            }
        }
        Self {
            first: view.base_offset().get(),
            last: view.last_offset().get(),
            epoch: view.partition_leader_epoch().get(),
            time: view.max_timestamp().get(),
            producer,
            payload: view.payload().to_vec(),
            records,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// May be there.
    Creating,
    There,
    /// May be gone.
    Deleting,
    Gone,
}

/// What is known of one log.
#[derive(Clone)]
pub struct KnownLog {
    pub id: TopicId,
    pub presence: Presence,
    /// The log dir that it is in; `None` while it changes.
    pub home: Option<&'static str>,
    /// What may be there: everything that was ever appended and was not cut for good.
    pub batches: Vec<Rc<Batch>>,
    /// Producer, first offset and offset of the marker.
    pub aborted: Vec<(i64, i64, i64)>,
    /// Everything below survives a kill.
    pub written: i64,
    /// Everything below survives a power cut.
    pub safe: i64,
    /// Where the log starts, at least and at most.
    pub start: (i64, i64),
    /// Where a truncation left no records.
    pub gaps: Vec<(i64, i64)>,
    /// A round of compaction that is somewhere on its way.
    pub compacting: Option<Rc<Compaction>>,
    /// Where compaction left no records.
    pub emptied: Vec<(i64, i64)>,
    /// What producers wrote last, at least, also where their records are gone.
    pub producers: BTreeMap<i64, i32>,
    /// Epochs and where they begin, as the file must have them (S-16).
    pub epochs: Vec<(i32, i64)>,
}

impl KnownLog {
    pub fn new(id: TopicId) -> Self {
        Self {
            id,
            presence: Presence::Creating,
            home: Some(DIR),
            batches: Vec::new(),
            aborted: Vec::new(),
            written: 0,
            safe: 0,
            start: (0, 0),
            gaps: Vec::new(),
            compacting: None,
            emptied: Vec::new(),
            producers: BTreeMap::new(),
            epochs: Vec::new(),
        }
    }

    fn is_gap(&self, from: i64, to: i64) -> bool {
        let is_emptied = self.emptied.iter().any(|(first, last)| *first <= from && to <= *last);
        from == to || is_emptied || self.gaps.contains(&(from, to))
    }
}

/// Everything that is known.
#[derive(Clone, Default)]
pub struct Known {
    pub class: Class,
    pub config: LogConfig,
    pub logs: BTreeMap<TopicPartition, KnownLog>,
    /// Files below a recovery point that was written down, as far as they must be there (S-18).
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Files that say whose a directory is (S-4, S-10).
    pub identity: BTreeMap<PathBuf, Vec<u8>>,
    /// The highest leader epoch so far.
    pub epoch: i32,
    pub may_be_clean: bool,
    pub is_clean: bool,
    /// There are two log dirs.
    pub has_other: bool,
}

impl Known {
    /// The log dirs.
    pub fn dirs(&self) -> &'static [&'static str] {
        if self.has_other { &[DIR, OTHER] } else { &[DIR] }
    }

    /// Whether a log is being compacted, so that it is not certain how far.
    pub fn is_compacting(&self) -> bool {
        self.logs.values().any(|log| log.compacting.is_some())
    }

    pub fn log(&mut self, partition: &TopicPartition) -> &mut KnownLog {
        self.logs.get_mut(partition).expect("a log that is known")
    }
}

/// What is wrong with an image.
#[derive(Clone, Debug)]
pub struct Complaint {
    pub what: &'static str,
    pub detail: String,
}

pub fn complain<T>(what: &'static str, detail: impl Into<String>) -> Result<T, Complaint> {
    Err(Complaint { what, detail: detail.into() })
}

pub fn identity() -> Identity {
    Identity { broker_id: Some(BrokerId::new(1)), cluster_id: Some("c".to_owned()) }
}

/// A log as a start found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLog {
    pub start: i64,
    pub end: i64,
    pub batches: Vec<Batch>,
    pub producers: BTreeMap<i64, i32>,
    aborted: Vec<(i64, i64, i64)>,
    /// The epoch of each batch, as the epoch file has it.
    epochs: Vec<Option<i32>>,
    /// The first offset at or after the time of each batch.
    times: Vec<Option<i64>>,
}

impl FoundLog {
    /// Whether one is a copy of the other; producers without records may be forgotten.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        let without = |log: &Self| Self { producers: BTreeMap::new(), ..log.clone() };
        without(self) == without(other)
    }

    /// All of it but the batches.
    fn summary(&self) -> String {
        let Self { start, end, batches, producers, aborted, epochs, times } = self;
        format!("{start} to {end}, {} batches, {producers:?} {aborted:?} {epochs:?} {times:?}", batches.len())
    }
}

/// What a start opens.
pub struct Opened {
    pub dirs: Vec<OpenedLogDir<SimRuntime>>,
    pub logs: BTreeMap<TopicPartition, SimLog>,
}

/// A start as a broker does it: the log dirs, then each log that belongs to a topic, with what the checkpoints say, and
/// copies that were being made.
pub async fn start(runtime: &SimRuntime, known: &Known) -> Result<Opened, Complaint> {
    let dirs = open_dirs(runtime, known).await?;
    let mut logs = BTreeMap::new();
    for dir in &dirs {
        for found in dir.partitions.iter().filter(|found| found.kind == FoundKind::Current) {
            let name = found.partition.clone();
            let options = options(known, dir, &name)?;
            match Log::open(runtime.clone(), &found.path, name.clone(), options).await {
                Ok(log) => drop(logs.insert(name, log)),
                Err(error) => return complain("log does not open", format!("{name}: {error}")),
            }
        }
    }
    for dir in &dirs {
        for found in dir.partitions.iter().filter(|found| found.kind == FoundKind::Future) {
            let name = found.partition.clone();
            let Some(source) = logs.get(&name) else {
                return complain("copy without its log", name.to_string());
            };
            let mut options = options(known, dir, &name)?;
            if !dir.dir.was_clean() {
                // What the file says may be of the log that was in this dir before.
                options.recovery_point = Offset::ZERO;
            }
            resume(runtime, &found.path, source, options).await?;
            if let Err(error) = dir.dir.remove_dir(&found.path, &name, 60_000).await {
                return complain("copy cannot be removed", error.to_string());
            }
        }
    }
    Ok(Opened { dirs, logs })
}

async fn open_dirs(runtime: &SimRuntime, known: &Known) -> Result<Vec<OpenedLogDir<SimRuntime>>, Complaint> {
    let mut looked = Vec::new();
    for dir in known.dirs() {
        match FoundLogDir::look(runtime, Path::new(dir)).await {
            Ok(found) => looked.push(found),
            Err(error) => return complain("does not start", error.to_string()),
        }
    }
    let all: Vec<_> = looked.iter().flat_map(|found| found.partitions.iter().cloned()).collect();
    let replaced = match find_replaced(runtime, &all).await {
        Ok(replaced) => replaced,
        Err(error) => return complain("does not start", error.to_string()),
    };
    let mut dirs = Vec::new();
    for found in looked {
        let mut dir = match LogDir::open_found(runtime.clone(), found, &identity(), 60_000).await {
            Ok(dir) => dir,
            Err(error) => return complain("does not start", error.to_string()),
        };
        if !dir.malformed.is_empty() {
            return complain("malformed checkpoint", format!("{:?}", dir.malformed));
        }
        if dir.dir.was_clean() && !known.may_be_clean {
            return complain("clean without a stop", "");
        }
        if known.is_clean && !dir.dir.was_clean() {
            return complain("not clean after a stop", "");
        }
        for gone in replaced.iter().filter(|gone| gone.path.parent() == Some(dir.dir.path())) {
            if let Err(error) = dir.dir.remove_dir(&gone.path, &gone.partition, 60_000).await {
                return complain("what was replaced cannot be removed", error.to_string());
            }
            dir.partitions.retain(|found| found.path != gone.path);
        }
        dirs.push(dir);
    }
    Ok(dirs)
}

fn options(
    known: &Known,
    dir: &OpenedLogDir<SimRuntime>,
    name: &TopicPartition,
) -> Result<OpenOptions, Complaint> {
    let Some(log) = known.logs.get(name).filter(|log| log.presence != Presence::Gone) else {
        return complain("deleted partition is back", name.to_string());
    };
    let at = |file| dir.checkpoint(file).offsets.get(name).copied();
    Ok(OpenOptions {
        topic_id: Some(log.id),
        recovery_point: at(CheckpointFile::RecoveryPoint).unwrap_or(Offset::ZERO),
        log_start_offset: at(CheckpointFile::LogStart).unwrap_or(Offset::ZERO),
        cleaner_offset: at(CheckpointFile::Cleaner),
        clean: dir.dir.was_clean(),
        ..OpenOptions::new(known.config.clone(), TailBudget::new(1 << 20))
    })
}

/// Reads a log from its start to its end, and asks it what clients ask.
pub async fn look(log: &SimLog) -> Result<FoundLog, Complaint> {
    let (start, end) = (log.log_start_offset(), log.log_end_offset());
    let batches = read_all(log).await?;
    let (mut epochs, mut times) = (Vec::new(), Vec::new());
    for batch in &batches {
        epochs.push(log.epoch_for_offset(Offset::new(batch.first.max(start.get()))).map(|epoch| epoch.get()));
        match log.offset_for_timestamp(TimestampMs::new(batch.time), end).await {
            Ok(found) => times.push(found.map(|found| found.offset.get())),
            Err(error) => return complain("lookup by time failed", error.to_string()),
        }
    }
    let aborted = match log.aborted_transactions(start, end).await {
        Ok(aborted) => aborted,
        Err(error) => return complain("lookup of transactions failed", error.to_string()),
    };
    let aborted =
        aborted.iter().map(|txn| (txn.producer_id.get(), txn.first_offset.get(), txn.last_offset.get()));
    let producers = log.producers().into_iter().map(|known| (known.producer_id.get(), known.last_sequence));
    Ok(FoundLog {
        start: start.get(),
        end: end.get(),
        batches,
        producers: producers.collect(),
        aborted: aborted.collect(),
        epochs,
        times,
    })
}

async fn read_all(log: &SimLog) -> Result<Vec<Batch>, Complaint> {
    let (mut batches, mut from) = (Vec::new(), log.log_start_offset());
    loop {
        let upper_bound = Offset::new(i64::MAX);
        let request = ReadRequest { from, max_bytes: 1 << 20, upper_bound, min_one_batch: true };
        let read = match log.read(request).await {
            Ok(read) => read,
            Err(error) => return complain("damaged", format!("read from {from}: {error}")),
        };
        if read.bytes == 0 {
            return Ok(batches);
        }
        let mut all = Vec::new();
        for span in &read.spans {
            match span {
                Span::Memory(bytes) => all.extend_from_slice(bytes),
                Span::File { .. } => panic!("a simulated file has no descriptor"),
            }
        }
        for view in BatchIter::new(&all) {
            let Ok(view) = view else { return complain("damaged", format!("no batch behind {from}")) };
            if !view.crc_is_valid() {
                return complain("damaged", format!("checksum of the batch at {}", view.base_offset()));
            }
            batches.push(Batch::of(&view));
            from = view.next_offset();
        }
    }
}

/// What the log says against what is known of it.
fn check(known: &KnownLog, found: &FoundLog, is_kill: bool, is_compacted: bool) -> Result<(), Complaint> {
    for batch in &found.batches {
        if !known.batches.iter().any(|one| **one == *batch) {
            return complain("invented", format!("offsets {} to {}", batch.first, batch.last));
        }
    }
    if let Some(compaction) = &known.compacting {
        if !compaction.is_met(found) {
            return complain("neither as before nor as after a compaction", format!("{:?}", found.batches));
        }
    } else {
        // Between the segments of a compacted log a start takes what a power cut has lost for what compaction has removed.
        let may_lack_from = if is_compacted && !is_kill { known.safe } else { i64::MAX };
        check_holes(known, found, may_lack_from)?;
    }
    let safe = if is_kill { known.written.max(known.safe) } else { known.safe };
    if found.end < safe && !known.is_gap(found.end, safe) {
        return complain("lost", format!("ends at {}, {safe} was acknowledged", found.end));
    }
    if found.start > known.start.1 {
        return complain(
            "lost at the start",
            format!("starts at {}, not above {}", found.start, known.start.1),
        );
    }
    if found.start < known.start.0 {
        return complain("start goes back", format!("starts at {}, was {}", found.start, known.start.0));
    }
    check_lookups(known, found)
}

/// Nothing is missing between the start and the end.
fn check_holes(known: &KnownLog, found: &FoundLog, may_lack_from: i64) -> Result<(), Complaint> {
    let is_gap = |from: i64, to: i64| from >= may_lack_from || known.is_gap(from, to);
    let mut next = found.start;
    for batch in &found.batches {
        if batch.first > next && !is_gap(next, batch.first) {
            return complain("hole", format!("{next} to {}", batch.first));
        }
        next = batch.last + 1;
    }
    if found.end != next && !is_gap(next, found.end) {
        return complain("hole", format!("read up to {next}, the log ends at {}", found.end));
    }
    Ok(())
}

fn check_lookups(known: &KnownLog, found: &FoundLog) -> Result<(), Complaint> {
    for (batch, epoch) in found.batches.iter().zip(&found.epochs) {
        if *epoch != Some(batch.epoch) {
            return complain("epoch", format!("of {}: {epoch:?}, not {}", batch.first, batch.epoch));
        }
    }
    for (batch, offset) in found.batches.iter().zip(&found.times) {
        let late = found.batches.iter().filter(|one| one.time >= batch.time);
        let expected = late.flat_map(|one| &one.records).find(|offset| **offset >= found.start).copied();
        if *offset != expected {
            return complain("time", format!("{}: {offset:?}, not {expected:?}", batch.time));
        }
    }
    let mut producers: BTreeMap<i64, i32> = known.producers.clone();
    producers.extend(found.batches.iter().filter_map(|batch| batch.producer));
    for (id, sequence) in &producers {
        if found.producers.get(id).is_none_or(|found| found < sequence) {
            return complain("producer", format!("{id}: {:?}, not {sequence}", found.producers.get(id)));
        }
    }
    for txn in known.aborted.iter().filter(|(_, _, marker)| *marker >= found.start && *marker < found.end) {
        // One whose records compaction removed needs to be told no more.
        let (id, first, marker) = *txn;
        let has_records = |batch: &Batch| {
            let is_of_it = batch.producer.is_some_and(|(producer, _)| producer == id);
            is_of_it && batch.first >= first && batch.first < marker && !batch.records.is_empty()
        };
        if found.batches.iter().any(has_records) && !found.aborted.contains(txn) {
            return complain("transaction", format!("{txn:?} is none of {:?}", found.aborted));
        }
    }
    Ok(())
}

/// Starts on an image, and answers what was found.
fn start_on(disk: &SimDisk, known: &Known) -> Result<BTreeMap<TopicPartition, FoundLog>, Complaint> {
    let runtime = SimRuntime::on(1, disk.clone());
    let (inside, known) = (runtime.clone(), known.clone());
    runtime.block_on(async move {
        let opened = start(&inside, &known).await?;
        let mut found = BTreeMap::new();
        for (name, log) in &opened.logs {
            found.insert(name.clone(), look(log).await?);
        }
        Ok(found)
    })
}

/// Without producers that may be forgotten: nothing is left of their records, and nobody said that they must be known.
fn demanded(
    mut found: BTreeMap<TopicPartition, FoundLog>,
    known: &Known,
) -> BTreeMap<TopicPartition, FoundLog> {
    for (name, log) in &mut found {
        let kept = known.logs.get(name).map(|known| &known.producers);
        let written: Vec<i64> =
            log.batches.iter().filter_map(|batch| batch.producer).map(|(id, _)| id).collect();
        log.producers.retain(|id, _| written.contains(id) || kept.is_some_and(|kept| kept.contains_key(id)));
    }
    found
}

/// Judges an image; `twice` also kills the start and cuts its power.
pub fn judge(disk: &SimDisk, known: &Known, mode: Crash, twice: bool) -> Result<(), Complaint> {
    for (path, content) in &known.files {
        if !disk.content(path).is_some_and(|found| found.starts_with(content)) {
            return complain("behind the recovery point", path.display().to_string());
        }
    }
    for (path, content) in &known.identity {
        if disk.content(path).as_ref() != Some(content) {
            return complain("identity", path.display().to_string());
        }
    }
    for (name, log) in &known.logs {
        let Some(home) = log.home else { continue };
        let path = Path::new(home).join(name.to_string()).join("leader-epoch-checkpoint");
        let text = disk.content(&path).map(|content| String::from_utf8_lossy(&content).into_owned());
        for (epoch, start) in &log.epochs {
            let line = format!("{epoch} {start}");
            if !text.as_ref().is_some_and(|text| text.lines().skip(2).any(|one| one == line)) {
                return complain("epoch file", format!("{name} lacks {line}: {text:?}"));
            }
        }
    }
    // Kafka reads more in it than that it is there.
    for dir in known.dirs() {
        let marker = disk.content(Path::new(dir).join(".kafka_cleanshutdown")).unwrap_or_default();
        if known.is_clean && !marker.ends_with(b"}") {
            return complain("marker of a clean stop without content", String::from_utf8_lossy(&marker));
        }
    }
    let found = start_on(disk, known)?;
    for (name, log) in &known.logs {
        match found.get(name) {
            Some(found) => {
                check(log, found, mode == Crash::KeepAll, known.config.cleanup_policy.compact)?;
            }
            None if log.presence == Presence::There => {
                return complain("partition is gone", name.to_string());
            }
            None => {}
        }
    }
    if twice {
        let known = Known { may_be_clean: false, is_clean: false, ..known.clone() };
        for (again, what) in [
            (Crash::KeepAll, "differs after a kill of the start"),
            (Crash::DropUnsynced, "differs after a power cut of the start"),
        ] {
            let (then, found) =
                (demanded(start_on(&disk.crash(again), &known)?, &known), demanded(found.clone(), &known));
            if then != found {
                let summary = |found: &BTreeMap<TopicPartition, FoundLog>| -> Vec<_> {
                    found.values().map(FoundLog::summary).collect()
                };
                return complain(what, format!("{:?}, then {:?}", summary(&found), summary(&then)));
            }
        }
    }
    Ok(())
}

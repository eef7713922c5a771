//! A run that is written down: a log dir and its logs on a simulated disk, driven as a broker drives them, and beside the
//! steps of the disk what is known outside after each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use bytes::BytesMut;
use protocol::records::batch::{BatchView, set_base_offset, set_partition_leader_epoch};
use protocol::records::builder::BatchBuilder;
use protocol::types::{
    LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs, TopicId, TopicName, TopicPartition,
};
use storage::checkpoint::OffsetCheckpoint;
use storage::config::LogConfig;
use storage::io::sim::{SimDisk, SimRuntime, Trace};
use storage::io::{DirDone, DirOp, Runtime};
use storage::log::{Log, LogEvent, OpenOptions, TailBudget};
use storage::log_dir::{CheckpointFile, Loading, LogDir};
use storage::producer_state::{AppendOrigin, Verification};

use crate::compaction::gaps;
use crate::known::{Batch, Class, DIR, Known, KnownLog, Presence, SimLog, look, start};
use crate::moves::{Copy, home_of};

/// Later than any record.
pub const NOW: TimestampMs = TimestampMs::new(FIRST_TIME + 1_000_000);
/// Of the first record that a run writes.
pub const FIRST_TIME: i64 = 1_700_000_000_000;
pub const CLIENT: AppendOrigin = AppendOrigin::Client(Verification::NotRequired);
const COORDINATOR: AppendOrigin = AppendOrigin::Coordinator(Verification::NotRequired);

/// Something that was learned after so many steps of the disk.
pub struct Lesson {
    pub at: usize,
    /// It allows more: what came before it is judged first.
    pub loosens: bool,
    pub teach: Box<dyn Fn(&mut Known)>,
}

/// A run that is over.
pub struct Run {
    pub name: &'static str,
    pub trace: Trace,
    pub before: Known,
    pub lessons: Vec<Lesson>,
}

impl Run {
    /// What is known after so many steps.
    pub fn known_at(&self, steps: usize) -> Known {
        let mut known = self.before.clone();
        for lesson in self.lessons.iter().filter(|lesson| lesson.at <= steps) {
            (lesson.teach)(&mut known);
        }
        known
    }
}

/// What an append waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: the next one follows at once.
    None,
    Written,
    /// That it may be acknowledged, by the durability mode.
    Safe,
    /// A flush of its own.
    Flush,
}

/// The run while it lasts.
pub struct Stage {
    me: Weak<Self>,
    pub runtime: SimRuntime,
    known: RefCell<Known>,
    lessons: RefCell<Vec<Lesson>>,
    dirs: RefCell<Vec<Rc<LogDir<SimRuntime>>>>,
    pub logs: RefCell<BTreeMap<TopicPartition, SimLog>>,
    pub copies: RefCell<BTreeMap<TopicPartition, Copy>>,
    sequences: RefCell<BTreeMap<(TopicPartition, i64), i32>>,
    txns: RefCell<BTreeMap<(TopicPartition, i64), i64>>,
    epoch: Cell<i32>,
    tags: Cell<u64>,
    wait: Cell<Wait>,
}

/// Plays a script on a disk.
pub fn play<F: Future<Output = ()> + 'static>(
    name: &'static str,
    disk: SimDisk,
    before: Known,
    script: impl FnOnce(Rc<Stage>) -> F,
) -> Run {
    // A start draws other names than what it starts on.
    let seed = if name == "start" { disk.fingerprint() } else { 11 };
    let runtime = SimRuntime::on(seed, disk);
    runtime.disk().set_write_now_percent(40);
    runtime.disk().start_trace();
    let stage = Rc::new_cyclic(|me| Stage {
        me: me.clone(),
        runtime: runtime.clone(),
        known: RefCell::new(before.clone()),
        lessons: RefCell::default(),
        dirs: RefCell::default(),
        logs: RefCell::default(),
        copies: RefCell::default(),
        sequences: RefCell::default(),
        txns: RefCell::default(),
        epoch: Cell::new(0),
        tags: Cell::new(1),
        wait: Cell::new(Wait::Written),
    });
    runtime.block_on(script(Rc::clone(&stage)));
    runtime.run_until_idle();
    let trace = runtime.disk().trace().expect("it was written down");
    let lessons = stage.lessons.take();
    Run { name, trace, before, lessons }
}

/// A disk without anything.
pub fn with(config: LogConfig) -> (SimDisk, Known) {
    (SimDisk::new(), Known { config, ..Known::default() })
}

pub fn partition(name: &str) -> TopicPartition {
    TopicPartition::new(TopicName::new(name), 0)
}

impl Stage {
    fn lesson(&self, loosens: bool, teach: impl Fn(&mut Known) + 'static) {
        self.lesson_at(self.runtime.disk().trace_len(), loosens, teach);
    }

    /// What holds since so many steps, and nothing was learned after.
    pub fn lesson_at(&self, at: usize, loosens: bool, teach: impl Fn(&mut Known) + 'static) {
        teach(&mut self.known.borrow_mut());
        self.lessons.borrow_mut().push(Lesson { at, loosens, teach: Box::new(teach) });
    }

    /// From here on something may be otherwise.
    pub fn allow(&self, teach: impl Fn(&mut Known) + 'static) {
        self.lesson(true, teach);
    }

    /// From here on something is certain.
    pub fn learn(&self, teach: impl Fn(&mut Known) + 'static) {
        self.lesson(false, teach);
    }

    pub fn class(&self, class: Class) {
        self.allow(move |known| known.class = class);
    }

    /// What each append waits for from now on.
    pub fn wait(&self, what: Wait) {
        self.wait.set(what);
    }

    /// Waits until everything is safe, by the durability mode.
    pub async fn until_safe(&self, name: &TopicPartition) {
        let log = self.log(name);
        let end = log.log_end_offset();
        while log.safe_offset() < end {
            self.runtime.sleep_until(self.runtime.now().plus_nanos(20_000)).await;
        }
    }

    /// What a log tells to be durable is acknowledged in that moment.
    pub fn listen(&self, name: &TopicPartition, log: &SimLog) {
        let (me, name) = (self.me.clone(), name.clone());
        log.set_listener(move |event| {
            let (LogEvent::Durable(end), Some(stage)) = (event, me.upgrade()) else { return };
            let (key, end) = (name.clone(), end.get());
            stage.learn(move |known| {
                let log = known.log(&key);
                (log.safe, log.written) = (log.safe.max(end), log.written.max(end));
            });
        });
    }

    pub fn log(&self, name: &TopicPartition) -> SimLog {
        self.logs.borrow().get(name).cloned().expect("an open log")
    }

    /// The first log dir.
    fn dir(&self) -> Rc<LogDir<SimRuntime>> {
        self.dir_at(DIR)
    }

    pub fn dir_at(&self, path: &str) -> Rc<LogDir<SimRuntime>> {
        let dirs = self.dirs.borrow();
        dirs.iter().find(|dir| dir.path() == Path::new(path)).cloned().expect("an open dir")
    }

    /// The log dir that a log is in.
    pub fn dir_of(&self, log: &SimLog) -> Rc<LogDir<SimRuntime>> {
        self.dir_at(home_of(log))
    }

    pub async fn sleep_ms(&self, ms: i64) {
        self.runtime.sleep_until(self.runtime.now().plus_ms(ms)).await;
    }

    /// Starts: what it finds and serves is there for good.
    pub async fn start(&self) {
        self.class(Class::Start);
        let known = self.known.borrow().clone();
        self.allow(|known| {
            known.files.clear();
            known.is_clean = false;
            known.logs.values_mut().for_each(|log| log.epochs.clear());
        });
        let opened = start(&self.runtime, &known).await.expect("it starts");
        let is_compacted = known.config.cleanup_policy.compact;
        for (name, log) in &opened.logs {
            self.listen(name, log);
            let found = look(log).await.expect("it is readable");
            let (name, home) = (name.clone(), home_of(log));
            for batch in &found.batches {
                if let Some((id, last)) = batch.producer {
                    self.sequences.borrow_mut().insert((name.clone(), id), last + 1);
                }
            }
            self.learn(move |known| {
                let log = known.log(&name);
                log.compacting = None;
                if is_compacted {
                    log.emptied = gaps(&found);
                }
                log.batches = found.batches.iter().cloned().map(Rc::new).collect();
                log.presence = Presence::There;
                log.home = Some(home);
                log.aborted.retain(|(_, _, marker)| *marker < found.end);
                (log.safe, log.written) = (found.end, found.end);
            });
        }
        self.learn(|known| {
            known.may_be_clean = false;
            for log in known.logs.values_mut().filter(|log| log.presence == Presence::Deleting) {
                log.presence = Presence::Gone;
            }
        });
        for dir in known.dirs() {
            self.know_identity(Path::new(dir).join("meta.properties"));
        }
        // The controller has another epoch for each leader, and never an older one.
        let epoch = known.epoch + 1;
        self.allow(move |known| known.epoch = epoch);
        self.epoch.set(epoch);
        self.dirs.replace(opened.dirs.into_iter().map(|dir| dir.dir).collect());
        self.logs.replace(opened.logs);
    }

    pub fn know_identity(&self, path: PathBuf) {
        let content = self.runtime.disk().content(&path).expect("it was written");
        self.learn(move |known| drop(known.identity.insert(path.clone(), content.clone())));
    }

    /// Where the segments of each log begin.
    pub async fn bases(&self) -> BTreeMap<TopicPartition, Vec<i64>> {
        let names: Vec<_> = self.known.borrow().logs.keys().cloned().collect();
        let dirs = self.known.borrow().dirs();
        let mut bases = BTreeMap::new();
        for (name, dir) in names.iter().flat_map(|name| dirs.iter().map(move |dir| (name.clone(), dir))) {
            let dir = Path::new(dir).join(name.to_string());
            if let Ok(DirDone::Entries(entries)) = self.runtime.dir(DirOp::List(dir)).await {
                let base = |name: &str| name.strip_suffix(".log").and_then(|base| base.parse::<i64>().ok());
                let found = entries.iter().filter_map(|entry| base(&entry.name)).collect();
                bases.insert(name, found);
            }
        }
        bases
    }

    /// Appends just as much as was cut before a segment that was there: what is left of that must not line up.
    pub async fn fill_up(&self, bases: &BTreeMap<TopicPartition, Vec<i64>>) {
        let ends: Vec<_> = self.offsets(|log| Some(log.log_end_offset())).offsets.into_iter().collect();
        for (name, end) in ends {
            let next = bases.get(&name).and_then(|bases| bases.iter().find(|base| **base > end.get()));
            let mut missing = next.map_or(1, |next| next - end.get());
            while missing > 0 {
                let count = missing.min(8);
                self.append(&name, usize::try_from(count).unwrap(), 10, None).await;
                missing -= count;
            }
        }
    }

    /// The process dies, the machine does not.
    pub async fn die(&self) {
        self.class(Class::Start);
        self.runtime.kill();
        self.logs.take();
        self.copies.take();
        self.dirs.take();
        self.sleep_ms(100).await;
    }

    pub async fn create(&self, name: &TopicPartition) {
        self.create_with(name, true).await;
    }

    /// A new partition, of which nothing is there.
    fn announce(&self, name: &TopicPartition) -> TopicId {
        let mut id = [1; 16];
        id[0] = u8::try_from(self.tags.replace(self.tags.get() + 1) % 250).unwrap() + 1;
        let id = TopicId::new(id);
        let key = name.clone();
        self.allow(move |known| drop(known.logs.insert(key.clone(), KnownLog::new(id))));
        self.sequences.borrow_mut().retain(|(of, _), _| of != name);
        id
    }

    /// The process that creates a partition dies before it has made the name of its directory durable, and another one
    /// starts: what that finds and serves is there for good.
    pub async fn die_over_creation(&self, name: &TopicPartition) {
        self.announce(name);
        self.runtime.dir(DirOp::CreateAll(self.dir().partition_path(name))).await.unwrap();
        self.die().await;
        self.start().await;
    }

    /// Creates a partition; its directory before its log is opened, by somebody who left it at that, or with it.
    pub async fn create_with(&self, name: &TopicPartition, dir_first: bool) {
        let id = self.announce(name);
        let config = self.known.borrow().config.clone();
        let path = self.dir().partition_path(name);
        if dir_first {
            self.runtime.dir(DirOp::CreateAll(path.clone())).await.unwrap();
        }
        // Of what is new nothing can be in disorder; one of the two opens it as what it knows nothing of.
        let options = OpenOptions {
            topic_id: Some(id),
            clean: dir_first,
            ..OpenOptions::new(config, TailBudget::new(1 << 20))
        };
        let log = Log::open(self.runtime.clone(), &path, name.clone(), options).await.unwrap();
        self.listen(name, &log);
        self.logs.borrow_mut().insert(name.clone(), log);
        let key = name.clone();
        self.learn(move |known| known.log(&key).presence = Presence::There);
        self.know_identity(path.join("partition.metadata"));
    }

    fn next_time(&self, tag: u64) -> TimestampMs {
        let tag = i64::try_from(tag).unwrap();
        // Some go back.
        TimestampMs::new(FIRST_TIME + tag * 10 - if tag % 5 == 0 { 35 } else { 0 })
    }

    /// A number that no other batch has, and its time.
    pub fn next_tag(&self) -> (u64, TimestampMs) {
        let tag = self.tags.replace(self.tags.get() + 1);
        (tag, self.next_time(tag))
    }

    fn data(&self, builder: BatchBuilder, count: usize, value_bytes: usize) -> BytesMut {
        let (tag, time) = self.next_tag();
        let mut builder = builder;
        for at in 0..count {
            let seed = usize::try_from(tag).unwrap() * 31 + at;
            let value: Vec<u8> =
                (0..value_bytes).map(|byte| u8::try_from((seed + byte * 7) % 251).unwrap() + 1).collect();
            builder.push(time, Some(tag.to_string().as_bytes()), Some(&value), &[]);
        }
        builder.build().unwrap()
    }

    fn sequence(&self, name: &TopicPartition, id: i64, count: usize) -> BatchBuilder {
        let mut sequences = self.sequences.borrow_mut();
        let next = sequences.entry((name.clone(), id)).or_insert(0);
        let first = *next;
        *next += i32::try_from(count).unwrap();
        BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(0), first)
    }

    /// The beginning of a batch, of an idempotent producer if one is named.
    pub fn builder(&self, name: &TopicPartition, count: usize, producer: Option<i64>) -> BatchBuilder {
        producer.map_or_else(BatchBuilder::new, |id| self.sequence(name, id, count))
    }

    /// Appends records, of an idempotent producer if one is named.
    pub async fn append(
        &self,
        name: &TopicPartition,
        count: usize,
        value_bytes: usize,
        producer: Option<i64>,
    ) {
        let batch = self.data(self.builder(name, count, producer), count, value_bytes);
        self.append_batch(name, batch, CLIENT).await;
    }

    /// Appends records of a transaction.
    pub async fn append_in_txn(&self, name: &TopicPartition, count: usize, id: i64) {
        let batch = self.data(self.sequence(name, id, count).transactional(), count, 30);
        let first = self.log(name).log_end_offset().get();
        self.txns.borrow_mut().entry((name.clone(), id)).or_insert(first);
        self.append_batch(name, batch, CLIENT).await;
    }

    /// Ends a transaction.
    pub async fn end_txn(&self, name: &TopicPartition, id: i64, is_commit: bool) {
        let mut builder = BatchBuilder::new()
            .producer(ProducerId::new(id), ProducerEpoch::new(0), -1)
            .transactional()
            .control();
        let (_, time) = self.next_tag();
        builder.push(time, Some(&[0, 0, 0, u8::from(is_commit)]), Some(&[0, 0, 0, 0, 0, 1]), &[]);
        let first = self.txns.borrow_mut().remove(&(name.clone(), id)).expect("an open transaction");
        let marker = self.log(name).log_end_offset().get();
        if !is_commit {
            let name = name.clone();
            self.allow(move |known| known.log(&name).aborted.push((id, first, marker)));
        }
        self.append_batch(name, builder.build().unwrap(), COORDINATOR).await;
    }

    pub async fn append_batch(&self, name: &TopicPartition, batch: BytesMut, origin: AppendOrigin) {
        let log = self.log(name);
        let mut expected = batch.clone();
        set_base_offset(&mut expected, log.log_end_offset());
        set_partition_leader_epoch(&mut expected, LeaderEpoch::new(self.epoch.get()));
        let expected = Rc::new(Batch::of(&BatchView::parse(&expected).unwrap()));
        let end = expected.last + 1;
        let key = name.clone();
        let before = log.latest_epoch();
        if before != Some(LeaderEpoch::new(self.epoch.get())) {
            self.forget_epochs(name, |end, start| start >= end);
        }
        // Known before it happens: it may be there although nobody has heard of it.
        self.allow(move |known| known.log(&key).batches.push(Rc::clone(&expected)));
        let info = BatchView::parse(&batch).unwrap().info();
        let epoch = LeaderEpoch::new(self.epoch.get());
        if log.must_prepare(&info, epoch, NOW) {
            log.prepare(&info, origin, epoch, NOW).await.unwrap();
        }
        if log.latest_epoch() != before {
            self.know_epoch(name);
        }
        let appended = log.append(batch, &info, origin, epoch, NOW).unwrap();
        assert!(!appended.duplicate && appended.last_offset.get() + 1 == end);
        match self.wait.get() {
            Wait::None => {}
            Wait::Written => {
                log.until_written(Offset::new(end)).await.unwrap();
                let key = name.clone();
                self.learn(move |known| known.log(&key).written = end);
            }
            Wait::Safe => self.until_safe(name).await,
            Wait::Flush => self.flush(name).await,
        }
    }

    /// Makes everything durable.
    pub async fn flush(&self, name: &TopicPartition) {
        let log = self.log(name);
        let end = log.log_end_offset().get();
        log.flush().await.unwrap();
        let key = name.clone();
        self.learn(move |known| {
            let log = known.log(&key);
            (log.safe, log.written) = (end, end);
        });
    }

    /// Leads from an epoch on.
    pub async fn lead(&self, name: &TopicPartition, epoch: i32) {
        self.epoch.set(epoch);
        self.allow(move |known| known.epoch = epoch);
        self.forget_epochs(name, |end, start| start >= end);
        self.log(name).start_leader_epoch(LeaderEpoch::new(epoch)).await.unwrap();
        self.know_epoch(name);
    }

    /// The file may lose epochs from here on.
    fn forget_epochs(&self, name: &TopicPartition, is_lost: impl Fn(i64, i64) -> bool + 'static) {
        let (key, end) = (name.clone(), self.log(name).log_end_offset().get());
        self.allow(move |known| known.log(&key).epochs.retain(|(_, start)| !is_lost(end, *start)));
    }

    fn know_epoch(&self, name: &TopicPartition) {
        let (epoch, start) = (self.epoch.get(), self.log(name).log_end_offset().get());
        let key = name.clone();
        self.learn(move |known| {
            let log = known.log(&key);
            log.epochs.retain(|(_, other)| *other < start);
            log.epochs.push((epoch, start));
        });
    }

    fn offsets(&self, of: impl Fn(&SimLog) -> Option<Offset>) -> OffsetCheckpoint {
        let logs = self.logs.borrow();
        let offsets = logs.iter().filter_map(|(name, log)| Some((name.clone(), of(log)?))).collect();
        OffsetCheckpoint { offsets }
    }

    /// The same of the logs and copies in a log dir.
    fn offsets_in(
        &self,
        dir: &LogDir<SimRuntime>,
        of: impl Fn(&SimLog) -> Option<Offset>,
    ) -> OffsetCheckpoint {
        let (logs, copies) = (self.logs.borrow(), self.copies.borrow());
        let copies = copies.iter().map(|(name, copy)| (name, &copy.log));
        let here = logs.iter().chain(copies).filter(|(_, log)| log.dir().parent() == Some(dir.path()));
        let offsets = here.filter_map(|(name, log)| Some((name.clone(), of(log)?))).collect();
        OffsetCheckpoint { offsets }
    }

    /// Writes the checkpoints, as the broker does from time to time.
    pub async fn checkpoint(&self) {
        let dirs = self.dirs.borrow().clone();
        let points = self.offsets(|log| Some(log.recovery_point()));
        for dir in &dirs {
            let points = self.offsets_in(dir, |log| Some(log.recovery_point()));
            dir.write_checkpoint(CheckpointFile::RecoveryPoint, &points).await.unwrap();
        }
        let mut files = BTreeMap::new();
        for (name, point) in &points.offsets {
            self.files_below(name, *point, &mut files).await;
        }
        self.learn(move |known| known.files = files.clone());
        let all = self.offsets(|log| Some(log.log_start_offset()));
        for dir in &dirs {
            let starts =
                self.offsets_in(dir, |log| log.needs_log_start_checkpoint().then(|| log.log_start_offset()));
            dir.write_checkpoint(CheckpointFile::LogStart, &starts).await.unwrap();
        }
        self.learn(move |known| {
            for (name, start) in &all.offsets {
                known.log(name).start.0 = start.get();
            }
        });
        for dir in &dirs {
            let cleaned = self.offsets_in(dir, |log| log.cleaner_offset());
            if !cleaned.offsets.is_empty() {
                dir.write_checkpoint(CheckpointFile::Cleaner, &cleaned).await.unwrap();
            }
        }
    }

    /// The files that hold what lies below a recovery point: of the active segment only its indexes, which may grow.
    async fn files_below(
        &self,
        name: &TopicPartition,
        point: Offset,
        files: &mut BTreeMap<PathBuf, Vec<u8>>,
    ) {
        let dir = self.log(name).dir().to_owned();
        let DirDone::Entries(entries) = self.runtime.dir(DirOp::List(dir.clone())).await.unwrap() else {
            panic!("a list")
        };
        let base = |name: &str| name.strip_suffix(".log").and_then(|base| base.parse::<i64>().ok());
        let bases: Vec<i64> = entries.iter().filter_map(|entry| base(&entry.name)).collect();
        for (at, base) in bases.iter().enumerate().filter(|(_, base)| **base < point.get()) {
            let is_whole = bases.get(at + 1).is_some_and(|next| *next <= point.get());
            if bases.get(at + 1).is_some() && !is_whole {
                continue;
            }
            for kind in ["log", "index", "timeindex", "txnindex"] {
                let path = dir.join(format!("{base:020}.{kind}"));
                if (is_whole || kind != "log")
                    && let Some(content) = self.runtime.disk().content(&path)
                {
                    files.insert(path, content);
                }
            }
        }
    }

    pub fn forget_files(&self, name: &TopicPartition) {
        let dir = self.log(name).dir().to_owned();
        self.allow(move |known| known.files.retain(|path, _| !path.starts_with(&dir)));
    }

    /// Cuts the end off a log, as a follower does, and writes the recovery points before it goes on.
    pub async fn truncate(&self, name: &TopicPartition, to: i64) {
        self.forget_files(name);
        // Their markers go.
        let open_again: Vec<(i64, i64)> = {
            let mut known = self.known.borrow_mut();
            let aborted = known.log(name).aborted.iter();
            aborted
                .filter(|(_, first, marker)| *first < to && *marker >= to)
                .map(|txn| (txn.0, txn.1))
                .collect()
        };
        let key = name.clone();
        self.allow(move |known| {
            let log = known.log(&key);
            let kept = kept_below(log, to);
            (log.safe, log.written) = (log.safe.min(kept), log.written.min(kept));
            log.start.0 = log.start.0.min(to);
            log.gaps.push((kept, to));
            log.aborted.retain(|(_, _, marker)| *marker < to);
            log.producers.clear();
            log.epochs.retain(|(_, start)| *start < to);
        });
        let log = self.log(name);
        log.truncate_to(Offset::new(to)).await.unwrap();
        let start = log.log_start_offset().get();
        let key = name.clone();
        self.learn(move |known| {
            let log = known.log(&key);
            log.batches.retain(|batch| batch.last < to);
            log.emptied.retain(|(_, last)| *last <= to);
            log.start.1 = start;
        });
        self.sequences.borrow_mut().retain(|(of, _), _| of != name);
        for producer in log.producers() {
            let next = producer.last_sequence + 1;
            self.sequences.borrow_mut().insert((name.clone(), producer.producer_id.get()), next);
        }
        self.txns.borrow_mut().retain(|(of, _), first| of != name || *first < to);
        for (id, first) in open_again {
            self.txns.borrow_mut().insert((name.clone(), id), first);
        }
        self.checkpoint().await;
    }

    /// Empties a log and lets it begin elsewhere, as a follower does that is too far behind.
    pub async fn restart(&self, name: &TopicPartition, at: i64) {
        self.forget_files(name);
        let key = name.clone();
        self.allow(move |known| {
            let log = known.log(&key);
            (log.safe, log.written) = (0, 0);
            log.start = (0, log.start.1.max(at));
            log.aborted.clear();
            log.producers.clear();
            log.epochs.clear();
        });
        self.log(name).restart_at(Offset::new(at)).await.unwrap();
        let key = name.clone();
        self.learn(move |known| {
            let log = known.log(&key);
            log.batches.clear();
            log.gaps.clear();
            log.emptied.clear();
            (log.safe, log.written) = (at, at);
            log.start = (at, at);
        });
        self.sequences.borrow_mut().retain(|(of, _), _| of != name);
        self.txns.borrow_mut().retain(|(of, _), _| of != name);
        self.checkpoint().await;
    }

    /// Raises the log start, as DeleteRecords does; durable with the next checkpoint.
    pub async fn delete_records(&self, name: &TopicPartition, to: i64) {
        let key = name.clone();
        self.allow(move |known| {
            let log = known.log(&key);
            log.start.1 = log.start.1.max(to);
            log.epochs.retain(|(_, start)| *start > to);
        });
        self.log(name).advance_log_start(Offset::new(to)).await.unwrap();
    }

    /// Lets retention do its work.
    pub async fn retain(&self, name: &TopicPartition, now: TimestampMs) {
        self.forget_files(name);
        let log = self.log(name);
        let (key, end) = (name.clone(), log.log_end_offset());
        self.allow(move |known| {
            let log = known.log(&key);
            log.start.1 = end.get();
            log.epochs.clear();
        });
        log.retain(now, end).await.unwrap();
        let (key, start) = (name.clone(), log.log_start_offset().get());
        self.learn(move |known| known.log(&key).start.1 = start);
    }

    /// Says that what the producers wrote last must be known from now on, whatever becomes of their records.
    pub fn keep_producers(&self, name: &TopicPartition) {
        let producers: BTreeMap<_, _> =
            self.log(name).producers().iter().map(|one| (one.producer_id.get(), one.last_sequence)).collect();
        let key = name.clone();
        self.learn(move |known| known.log(&key).producers = producers.clone());
    }

    /// Producers whose records are gone may be forgotten.
    pub fn forget_producers(&self, name: &TopicPartition) {
        let key = name.clone();
        self.allow(move |known| known.log(&key).producers.clear());
    }

    /// Deletes a partition: its directory goes away for good after a while.
    pub async fn delete(&self, name: &TopicPartition, delay_ms: i64) {
        self.forget_files(name);
        let key = name.clone();
        self.allow(move |known| may_go(known, &key));
        let log = self.logs.borrow_mut().remove(name).expect("an open log");
        log.abandon().await;
        assert!(self.dir().remove_partition(name, delay_ms).await.unwrap());
        let key = name.clone();
        self.learn(move |known| known.log(&key).presence = Presence::Gone);
        self.checkpoint().await;
    }

    /// Sets a directory aside that belongs to no topic.
    pub async fn set_aside(&self, name: &TopicPartition) {
        self.forget_files(name);
        let key = name.clone();
        self.allow(move |known| may_go(known, &key));
        let log = self.logs.borrow_mut().remove(name).expect("an open log");
        log.abandon().await;
        let home = Path::new(DIR);
        assert!(storage::log_dir::set_aside(&self.runtime, home, name).await.unwrap().is_some());
        let key = name.clone();
        self.learn(move |known| known.log(&key).presence = Presence::Gone);
        self.checkpoint().await;
    }

    /// Stops cleanly.
    pub async fn stop(&self) {
        self.class(Class::Stop);
        self.allow(|known| known.may_be_clean = true);
        let logs = self.logs.borrow().clone();
        for (name, log) in &logs {
            let end = log.log_end_offset().get();
            log.close().await.unwrap();
            let key = name.clone();
            self.learn(move |known| {
                let log = known.log(&key);
                (log.safe, log.written) = (end, end);
            });
        }
        let dirs = self.dirs.borrow().clone();
        for dir in &dirs {
            let points = self.offsets_in(dir, |log| Some(log.recovery_point()));
            let starts =
                self.offsets_in(dir, |log| log.needs_log_start_checkpoint().then(|| log.log_start_offset()));
            assert!(dir.mark_clean(&points, &starts, Loading::Finished).await.unwrap());
        }
        self.learn(|known| known.is_clean = true);
        self.logs.take();
        self.dirs.take();
    }
}

/// The directory of a partition may go.
fn may_go(known: &mut Known, name: &TopicPartition) {
    let dir = Path::new(DIR).join(name.to_string());
    known.identity.retain(|path, _| !path.starts_with(&dir));
    let log = known.log(name);
    log.presence = Presence::Deleting;
    log.epochs.clear();
}

/// Where the last batch ends that lies below an offset.
fn kept_below(log: &KnownLog, to: i64) -> i64 {
    let ends = log.batches.iter().map(|batch| batch.last + 1);
    ends.filter(|end| *end <= to).max().unwrap_or(to.min(log.start.0))
}

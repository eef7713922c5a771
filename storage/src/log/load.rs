//! Opening a log (storage.md 8.2): a directory that is new, was left in order, or was left by a crash, by us or by Kafka.
//! Decides what has to be recovered; [`super::recovery`] does it. Opening twice gives the same log.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use protocol::types::{Offset, TopicId, TopicPartition};

use super::commit::group::GroupCommit;
use super::gate::Gate;
use super::mend::Builds;
use super::producers::SnapshotFiles;
use super::removal::Remover;
use super::segment::Segment;
use super::tail::{Tail, TailBudget};
use super::walk::{Step, Walk};
use super::writer::Writer;
use super::{LoadControl, LoadError, Log, Status, identity, swap, unless_it_heals};
use crate::checkpoint::{read_file, sync_parent};
use crate::compaction::choice::first_dirty;
use crate::config::LogConfig;
use crate::epochs::LeaderEpochCache;
use crate::index::txn::TxnIndex;
use crate::io::{DirEntry, DirOp, Runtime};
use crate::names::{LEADER_EPOCH_CHECKPOINT, SegmentFileKind, SegmentFileName, SegmentFileState};
use crate::producer_state::{ProducerStateManager, Snapshots};

/// What the broker knows of a log before it is opened.
#[derive(Clone)]
pub struct OpenOptions {
    /// The topic's configuration.
    pub config: LogConfig,
    /// The topic's id; `None` keeps what the directory says.
    pub topic_id: Option<TopicId>,
    /// What the dir's checkpoint says is durable; zero if it says nothing.
    pub recovery_point: Offset,
    /// What the dir's checkpoint says of the log start offset; zero if it says nothing.
    pub log_start_offset: Offset,
    /// What the dir's checkpoint says was compacted; `None` if it says nothing.
    pub cleaner_offset: Option<Offset>,
    /// Whether the dir was stopped cleanly (S-6).
    pub clean: bool,
    /// Whether this kernel, which still runs, was the one that wrote since the log was last in order: only a process has
    /// died ([`crate::lock::DirLock::is_vouched`]). Of no account after a clean stop.
    pub vouched: bool,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration_ms: i64,
    /// Bytes of recent batches that this log may keep in memory.
    pub tail_bytes_max: usize,
    /// What all logs of the shard may keep together.
    pub tail_budget: Rc<TailBudget>,
    /// How the opening is watched and stopped.
    pub control: LoadControl,
}

impl OpenOptions {
    /// A log without history: everything from zero, Kafka's defaults, 1 MiB of recent batches.
    pub fn new(config: LogConfig, tail_budget: Rc<TailBudget>) -> Self {
        Self {
            config,
            topic_id: None,
            recovery_point: Offset::ZERO,
            log_start_offset: Offset::ZERO,
            cleaner_offset: None,
            clean: false,
            vouched: false,
            producer_id_expiration_ms: 86_400_000,
            tail_bytes_max: 1 << 20,
            tail_budget,
            control: LoadControl::default(),
        }
    }
}

/// Largest epoch file that is read: far more epochs than any log has seen.
const EPOCH_FILE_BYTES_MAX: u64 = 1 << 26;

impl<R: Runtime> Log<R> {
    /// Opens the log in `dir`, which is created if missing. Dropping the future leaves a directory that opens again.
    ///
    /// # Errors
    /// What the operating system said, that the directory is another topic's, or that the opening was stopped.
    pub async fn open(
        runtime: R,
        dir: &Path,
        partition: TopicPartition,
        options: OpenOptions,
    ) -> Result<Rc<Self>, LoadError> {
        let is_new = create_dir(&runtime, dir).await.map_err(io_error("creation of the directory"))?;
        // Also of a new one: where there is no descriptor it is refused here, and nobody waits for one below.
        let found = identity::read(&runtime, dir).await?;
        if is_new || (found.is_none() && options.topic_id.is_some()) {
            // Who created it, or was about to, may have died over it, or was refused: nothing in it is safe before its name.
            let named = sync_parent(&runtime, dir).await;
            named.map_err(io_error("sync of the log directory"))?;
        }
        let topic_id = identity::settle(&runtime, dir, found, options.topic_id).await?;
        let log = Self::empty(runtime, dir, partition, topic_id, &options);
        let loaded = log.load(&options, is_new).await;
        loaded.map_err(|source| {
            if options.control.is_stopped() && source.kind() == io::ErrorKind::Interrupted {
                return LoadError::Stopped;
            }
            LoadError::Io { during: "load", source }
        })?;
        options.control.end();
        Ok(log)
    }

    fn empty(
        runtime: R,
        dir: &Path,
        partition: TopicPartition,
        topic_id: Option<TopicId>,
        options: &OpenOptions,
    ) -> Rc<Self> {
        let start = Offset::new(options.log_start_offset.get().max(0));
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            partition,
            topic_id,
            dir: dir.into(),
            config: RefCell::new(Rc::new(options.config.clone())),
            segments: RefCell::new(BTreeMap::new()),
            log_start_offset: Cell::new(start),
            log_end_offset: Cell::new(start),
            written_offset: Cell::new(start),
            recovery_point: Cell::new(Offset::ZERO),
            status: Cell::new(Status::Online),
            epochs: RefCell::new(LeaderEpochCache::new()),
            producers: RefCell::new(ProducerStateManager::new(options.producer_id_expiration_ms)),
            writer: Writer::new(),
            tail: Tail::new(options.tail_bytes_max, options.tail_budget.clone()),
            structure: Gate::default(),
            flushing: Gate::default(),
            swapping: Gate::default(),
            compacting: Gate::default(),
            mending: Gate::default(),
            builds: Builds::new(),
            ending: Cell::new(false),
            was_cut: Cell::new(false),
            cleaner_offset: Cell::new(options.cleaner_offset),
            replacements: Cell::new(0),
            listener: RefCell::new(None),
            commits: RefCell::new(GroupCommit::new(start)),
            commit_task: RefCell::new(None),
            commit_running: Cell::new(false),
            flush_timer: RefCell::new(None),
            flush_due: Cell::new(None),
            flush_task: RefCell::new(None),
            flush_wanted: Cell::new(Offset::ZERO),
            flush_running: Cell::new(false),
            snapshots: RefCell::new(SnapshotFiles::default()),
            epochs_behind: Cell::new(false),
            epochs_found: RefCell::new(None),
            epochs_ahead: Cell::new(false),
            fault: RefCell::new(None),
            remover: Remover::new(runtime.clone(), me.clone()),
            // What a process that was killed removed need not be durable.
            removals_unsynced: Cell::new(!options.clean),
            control: options.control.clone(),
            runtime,
        })
    }

    async fn load(&self, options: &OpenOptions, is_new: bool) -> io::Result<()> {
        let entries = if is_new { Vec::new() } else { swap::finish(&self.runtime, &self.dir).await? };
        self.control.check()?;
        let damaged = self.find_segments(&entries, &options.config).await?;
        self.load_epochs().await?;
        for segment in damaged {
            tracing::warn!(partition = %self.partition, base_offset = %segment.base_offset,
                "an index of a segment is missing or damaged: all of the segment is read");
            // A cut here says nothing of the segments behind it: only the index was lost.
            self.recover_segment(&segment, segment.base_offset).await?;
        }
        let mut as_unclean = !options.clean;
        if !options.clean {
            self.recover(options.recovery_point, options.vouched).await?;
        }
        self.find_log_end(options.clean).await?;
        as_unclean |= self.settle_start(options.log_start_offset).await?;
        self.finish_epochs(options.log_start_offset).await?;
        self.finish_producers(options.clean).await?;
        let end = self.log_end_offset.get();
        if end < options.recovery_point {
            tracing::warn!(partition = %self.partition, %end, recovery_point = %options.recovery_point,
                "the log ends below its recovery point: records that were durable are lost");
        }
        let recovery_point = if as_unclean { options.recovery_point.min(end) } else { end };
        self.recovery_point.set(recovery_point.max(self.log_start_offset.get()).min(end));
        // Appends could bring the end above a checkpoint that is none of this log: what it calls clean never was.
        let (first_dirty, is_wrong) =
            first_dirty(self.cleaner_offset.get(), self.log_start_offset.get(), end);
        if is_wrong {
            self.cleaner_offset.set(Some(first_dirty));
        }
        self.flush_wanted.set(self.recovery_point.get());
        // What a killed process has written need not be durable; else all was synced that was found.
        let is_durable = options.clean || !options.vouched;
        let synced = if is_durable { end } else { self.recovery_point.get() };
        self.commits.replace(GroupCommit::new(synced));
        self.after_write();
        Ok(())
    }

    /// Takes in the names: segments, snapshots. Answers the segments whose indexes are missing or insane.
    async fn find_segments(
        &self,
        entries: &[DirEntry],
        config: &LogConfig,
    ) -> io::Result<Vec<Rc<Segment<R>>>> {
        let mut names = BTreeSet::new();
        let mut filled = BTreeSet::new();
        let mut segments = BTreeMap::new();
        for entry in entries {
            let Some(name) = SegmentFileName::parse(&entry.name) else { continue };
            if name.state != SegmentFileState::Plain {
                continue;
            }
            names.insert((name.base_offset, name.kind));
            if entry.size > 0 {
                filled.insert(name.base_offset);
            }
            if name.kind == SegmentFileKind::Log {
                let segment =
                    Segment::found(&self.runtime, self.dir.clone(), name.base_offset, entry.size, config);
                segments.insert(name.base_offset, segment);
            }
        }
        let snapshots = names.iter().filter(|(_, kind)| *kind == SegmentFileKind::Snapshot);
        let mut files = Snapshots::new(snapshots.map(|(offset, _)| *offset));
        let stray = files.take_stray(&segments.keys().copied().collect());
        self.snapshots.borrow_mut().files = files;
        self.remove_snapshots(stray).await?;
        for (base_offset, kind) in &names {
            let is_index = !matches!(kind, SegmentFileKind::Log | SegmentFileKind::Snapshot);
            if is_index && !segments.contains_key(base_offset) {
                let name = SegmentFileName::plain(*base_offset, *kind).to_string();
                tracing::warn!(dir = %self.dir.display(), file = name, "removing an index without a log");
                self.runtime.dir(DirOp::Unlink(self.dir.join(name))).await?;
            }
        }
        let mut damaged = Vec::new();
        for (base_offset, segment) in &segments {
            let has_txns = names.contains(&(*base_offset, SegmentFileKind::TxnIndex));
            segment.has_txns.set(has_txns);
            segment.is_unused.set(!filled.contains(base_offset));
            let has_index = names.contains(&(*base_offset, SegmentFileKind::OffsetIndex));
            if !has_index || (has_txns && !self.is_txn_index_sane(segment).await?) {
                damaged.push(segment.clone());
            }
        }
        self.segments.replace(segments);
        Ok(damaged)
    }

    async fn is_txn_index_sane(&self, segment: &Segment<R>) -> io::Result<bool> {
        let path = segment.path(SegmentFileKind::TxnIndex);
        let content = read_file(&self.runtime, &path, u64::from(u32::MAX)).await?.unwrap_or_default();
        Ok(TxnIndex::parse(segment.base_offset, &content).is_ok())
    }

    async fn load_epochs(&self) -> io::Result<()> {
        let path = self.dir.join(LEADER_EPOCH_CHECKPOINT);
        let content = match read_file(&self.runtime, &path, EPOCH_FILE_BYTES_MAX).await {
            Ok(Some(content)) => content,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Bytes::from_static(b"too large"),
            Err(error) => return Err(error),
        };
        self.epochs_found.replace(Some(content.as_ref().into()));
        match LeaderEpochCache::parse(&content) {
            Ok(epochs) => {
                self.epochs.replace(epochs);
            }
            Err(damage) => {
                tracing::warn!(partition = %self.partition, %damage, "leader-epoch-checkpoint is damaged, reading the log");
                for segment in self.all_segments() {
                    self.read_epochs_of(&segment).await?;
                }
                self.epochs_behind.set(true);
            }
        }
        Ok(())
    }

    async fn read_epochs_of(&self, segment: &Segment<R>) -> io::Result<()> {
        let file = segment.file(&self.runtime).await?;
        let mut walk = Walk::headers(file, 0, segment.size.get());
        while let Step::Batch(found) = walk.next().await? {
            self.control.check()?;
            self.note_epoch(&found);
        }
        Ok(())
    }

    /// The log ends behind the last batch of the last segment. After a clean stop only what lies behind the last index
    /// entry is looked at; what is no batch there is cut off (F83), where Kafka would not start.
    async fn find_log_end(&self, clean: bool) -> io::Result<()> {
        let last = self.segments.borrow().last_key_value().map(|(_, segment)| segment.clone());
        let Some(last) = last else { return Ok(()) };
        last.load_indexes(&self.runtime, &self.config()).await?;
        let (mut header, bad) = last.scan_tail(&self.runtime, last.size.get()).await?;
        if let Some(bad) = bad {
            let (position, why) = (bad.position, bad.why);
            tracing::warn!(partition = %self.partition, clean, position, %why, "the last segment does not end in a batch");
            self.recover_segment(&last, last.base_offset).await?;
            (header, _) = last.scan_tail(&self.runtime, last.size.get()).await?;
        }
        let end = header.map_or(last.base_offset, |header| header.next_offset());
        self.log_end_offset.set(end);
        self.written_offset.set(end);
        last.file(&self.runtime).await?;
        last.load_first_timestamp(&self.runtime).await
    }

    /// Settles where the log starts; creates the first segment of an empty log. Answers whether segments had to be
    /// removed or created.
    async fn settle_start(&self, checkpointed: Offset) -> io::Result<bool> {
        let first = self.segments.borrow().first_key_value().map(|(base, _)| *base);
        let Some(first) = first else {
            self.start_empty(checkpointed.max(Offset::ZERO)).await?;
            return Ok(true);
        };
        let end = self.log_end_offset.get();
        if end < checkpointed {
            tracing::warn!(partition = %self.partition, log_end_offset = %end, log_start_offset = %checkpointed,
                "the log ends below its start: removing all segments");
            self.removals_unsynced.set(true);
            for segment in self.all_segments() {
                segment.removed.set(true);
                self.remove_files(&segment).await?;
            }
            self.start_empty(checkpointed).await?;
            return Ok(true);
        }
        self.log_start_offset.set(checkpointed.max(first));
        Ok(false)
    }

    async fn start_empty(&self, offset: Offset) -> io::Result<()> {
        let segment = Segment::create(&self.runtime, self.dir.clone(), offset, &self.config()).await?;
        self.segments.replace([(offset, segment)].into());
        for end in [&self.log_start_offset, &self.log_end_offset, &self.written_offset] {
            end.set(offset);
        }
        Ok(())
    }

    /// Stale entries at both ends go (S-16).
    async fn finish_epochs(&self, checkpointed_start: Offset) -> io::Result<()> {
        let changed = {
            let mut epochs = self.epochs.borrow_mut();
            epochs.truncate_from_end(self.log_end_offset.get())
                | epochs.truncate_from_start(checkpointed_start)
        };
        // Entries that the file lacks are written at once, though not needed for what follows: a full disk must not keep the
        // log from being read. Entries too many may stay (S-16): the role that is taken next mostly adds them again.
        if self.epochs_behind.get() {
            let text = self.epochs.borrow().to_text();
            unless_it_heals(self.replace_epoch_file(text).await)?;
        }
        self.epochs_behind.set(self.epochs_behind.get() || changed);
        Ok(())
    }

    async fn finish_producers(&self, clean: bool) -> io::Result<()> {
        let outside = {
            let (start, end) = (self.log_start_offset.get(), self.log_end_offset.get());
            self.snapshots.borrow_mut().files.take_outside(start, end)
        };
        self.remove_snapshots(outside).await?;
        let end = self.log_end_offset.get();
        if clean && self.snapshots.borrow().files.newest().is_none() {
            // As Kafka, which takes a clean log without any snapshot for one of a release that had no producers.
            self.producers.borrow_mut().begin_reload(self.log_start_offset.get());
            self.producers.borrow_mut().set_map_end_offset(end);
            return Ok(());
        }
        // Recovery that came to the end of the log has left the state of that offset.
        if !clean && !self.producers.borrow().must_reload(end) {
            Ok(())
        } else {
            self.rebuild_producers().await
        }
    }
}

/// Creates a directory if it is missing; answers whether it was.
async fn create_dir<R: Runtime>(runtime: &R, dir: &Path) -> io::Result<bool> {
    match runtime.dir(DirOp::Stat(dir.to_owned())).await {
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    runtime.dir(DirOp::CreateAll(dir.to_owned())).await?;
    Ok(true)
}

pub(super) fn io_error(during: &'static str) -> impl Fn(io::Error) -> LoadError {
    move |source| LoadError::Io { during, source }
}

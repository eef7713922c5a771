//! The log of one partition on one disk: appends, reads, rolls, truncates, recovers (storage.md 3, 4, 7, 8). Owns the log
//! start offset, the log end offset and what is written of it; knows no leader, no high watermark beyond an argument, no
//! request. One shard owns it; everything is interior and nothing locks.
//!
//! ```text
//!     log start        recovery point        written           log end
//!         |--- durable ------|--- page cache ---|--- in memory ---|
//! ```
//! Reading order: this file (state), [`append`] (the synchronous section, S-13) and [`writer`] (what brings it to the
//! file), [`commit`] (when it is safe), [`reader`], [`lookup`] and [`mend`], [`roll`] and [`flush`], [`truncate`] and [`retention`],
//! [`compact`], [`mirror`], [`load`], [`control`] and [`recovery`].
//! Reads serve only what is written; a full disk cuts the log back to that.

mod append;
mod commit;
mod compact;
mod control;
mod errors;
mod flush;
mod gate;
mod header;
mod identity;
mod load;
mod lookup;
mod mend;
mod mirror;
mod producers;
mod reader;
mod recovery;
mod removal;
mod retention;
mod roll;
mod segment;
mod swap;
mod tail;
#[cfg(test)]
mod tests;
mod truncate;
mod walk;
mod writer;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};

use protocol::types::{LeaderEpoch, MonoTime, Offset, TopicId, TopicPartition};

pub use append::Appended;
pub use compact::{Compacted, CompactionDamage, CompactionError, CompactionLimits};
pub use control::LoadControl;
pub use errors::{AppendError, EpochEnd, LoadError, LogError, ReadError};
pub use load::OpenOptions;
pub use lookup::FoundOffset;
pub use mirror::{Copied, CopyError};
pub use producers::ActiveProducer;
pub use reader::{BytesBetween, LogRead, ReadRequest};
pub use retention::Retained;
pub use tail::TailBudget;
pub use writer::BatchBuffer;

use crate::config::LogConfig;
use crate::epochs::LeaderEpochCache;
use crate::io::{EXHAUSTED_RETRY_MS, Runtime, heals, is_exhausted, is_full, tell_exhausted};
use crate::producer_state::ProducerStateManager;
use commit::group::GroupCommit;
use gate::Gate;
use mend::Builds;
use producers::SnapshotFiles;
use removal::Remover;
use segment::Segment;
use tail::Tail;
use writer::Writer;

/// Whether a log takes appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogState {
    /// It does.
    Online,
    /// The disk is full: reads are served, appends are refused until space returns (S-32).
    Full,
    /// A write or a sync failed: everything is refused until the log is opened again (S-36).
    Offline {
        /// What failed.
        during: &'static str,
    },
    /// It was closed.
    Closed,
}

/// What a log tells its partition. Delivered on the owner's shard, once per completed write, not per batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// Everything below this offset is written (S-33): the high watermark may follow, readers may be woken.
    Written(Offset),
    /// Everything below this offset is durable (S-34); told by commits, which only strict mode makes.
    Durable(Offset),
    /// A segment was made durable, which took so long.
    Synced {
        /// Nanoseconds.
        nanos: u64,
    },
    /// The disk is full; the log now ends here, and whoever waited for more has got an error.
    CutBack(Offset),
    /// The log went offline; its whole log dir has to.
    Offline {
        /// What failed.
        during: &'static str,
    },
}

type Listener = Rc<dyn Fn(LogEvent)>;

/// One partition's log. Made by [`Log::open`], used as `Rc<Log<R>>` on one shard.
pub struct Log<R: Runtime> {
    me: Weak<Self>,
    runtime: R,
    partition: TopicPartition,
    topic_id: Option<TopicId>,
    dir: Rc<Path>,
    config: RefCell<Rc<LogConfig>>,
    segments: RefCell<BTreeMap<Offset, Rc<Segment<R>>>>,
    log_start_offset: Cell<Offset>,
    log_end_offset: Cell<Offset>,
    written_offset: Cell<Offset>,
    recovery_point: Cell<Offset>,
    status: Cell<Status>,
    /// With those of records below the log start that a power cut may bring back: they must be known then (S-16).
    epochs: RefCell<LeaderEpochCache>,
    producers: RefCell<ProducerStateManager>,
    writer: Writer<R>,
    tail: Rc<Tail>,
    /// Roll, truncation, retention, close: whoever changes the set of segments.
    structure: Gate,
    /// Whoever writes index files or advances the recovery point. Entered after `structure`, never before it.
    flushing: Gate,
    /// Whoever must not meet segments that are half way swapped for what compaction made of them. A roll may: it makes one
    /// behind all of these. Entered before `structure`, never inside it.
    swapping: Gate,
    /// One round of compaction. Entered before `swapping` and `structure`, never inside them.
    compacting: Gate,
    /// Whoever looks at an index entry that leads astray. No other gate is entered inside it.
    mending: Gate,
    /// Indexes that are built anew.
    builds: Builds<R>,
    /// The log is about to be closed or abandoned: a round of compaction gives up.
    ending: Cell<bool>,
    /// The log was cut since the round of compaction began, which gives up.
    was_cut: Cell<bool>,
    /// Everything below was compacted.
    cleaner_offset: Cell<Option<Offset>>,
    /// How often compaction has replaced segments: a lookup over several of them that sees it move begins again.
    replacements: Cell<u64>,
    listener: RefCell<Option<Listener>>,
    /// What is durable of the log, for whoever waits for that.
    commits: RefCell<GroupCommit>,
    commit_task: RefCell<Option<R::Task>>,
    commit_running: Cell<bool>,
    flush_timer: RefCell<Option<R::Task>>,
    /// When a flush by time is due.
    flush_due: Cell<Option<MonoTime>>,
    flush_task: RefCell<Option<R::Task>>,
    flush_wanted: Cell<Offset>,
    flush_running: Cell<bool>,
    snapshots: RefCell<SnapshotFiles>,
    /// `leader-epoch-checkpoint` holds entries that the cache dropped; harmless (S-16), written with the next occasion.
    epochs_behind: Cell<bool>,
    /// What `leader-epoch-checkpoint` said when the log was opened, until it is written: many starts end with the same.
    epochs_found: RefCell<Option<Box<[u8]>>>,
    /// The cache has an epoch for which the file had no room: it is written before any record of that epoch (S-16).
    epochs_ahead: Cell<bool>,
    /// What made the log go offline, with the file and the operating system's word.
    fault: RefCell<Option<Box<str>>>,
    remover: Rc<Remover<R>>,
    /// Segments have left the log whose names a power cut may bring back: the directory was not synced since.
    removals_unsynced: Cell<bool>,
    /// Of its opening.
    control: LoadControl,
}

/// [`LogState`] with what only the log knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Online,
    /// Full; `cutting` until files and producers are back in line, `since` the last attempt.
    Full {
        cutting: bool,
        since: MonoTime,
    },
    Offline {
        during: &'static str,
    },
    Closed,
}

/// Without room, or what else the system lacks for a while, a file may stay behind: the next flush or append finds some.
fn unless_it_heals(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if heals(&error) => Ok(()),
        written => written,
    }
}

impl<R: Runtime> Log<R> {
    /// The partition.
    pub fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    /// The topic id in `partition.metadata`, if the topic has one.
    pub fn topic_id(&self) -> Option<TopicId> {
        self.topic_id
    }

    /// The partition's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The first offset that readers may ask for.
    pub fn log_start_offset(&self) -> Offset {
        self.log_start_offset.get()
    }

    /// The offset of the next record, whether or not its predecessors are written.
    pub fn log_end_offset(&self) -> Offset {
        self.log_end_offset.get()
    }

    /// Everything below has left our process (S-33): what may be acknowledged, read and counted as replicated.
    pub fn written_offset(&self) -> Offset {
        self.written_offset.get()
    }

    /// Everything below is durable, indexes and producers included; goes into the dir's checkpoint.
    pub fn recovery_point(&self) -> Offset {
        self.recovery_point.get()
    }

    /// The epoch of the newest entry of the leader epoch cache.
    pub fn latest_epoch(&self) -> Option<LeaderEpoch> {
        self.epochs.borrow().latest().map(|entry| entry.epoch)
    }

    /// Where an epoch ended, as OffsetForLeaderEpoch answers it (storage.md 5); `None` if undefined. For the latest epoch
    /// that is the written offset: nobody may count on more.
    pub fn end_offset_for_epoch(&self, epoch: LeaderEpoch) -> Option<EpochEnd> {
        let (start, end) = (self.log_start_offset.get(), self.written_offset.get());
        let epochs = self.epochs.borrow();
        let end = if epochs.latest().is_some_and(|latest| latest.epoch == epoch) {
            epochs.end_offset_for(epoch, end)?
        } else {
            epochs.from_start(start).end_offset_for(epoch, end)?
        };
        Some((end.epoch, end.start_offset))
    }

    /// The leader epoch in which the record at an offset was or would be written.
    pub fn epoch_for_offset(&self, offset: Offset) -> Option<LeaderEpoch> {
        if offset < self.log_start_offset.get() {
            return None;
        }
        self.epochs.borrow().epoch_for_offset(offset)
    }

    /// Size of all segments in bytes, what is not yet written included.
    pub fn size_bytes(&self) -> u64 {
        self.segments.borrow().values().fold(0, |sum, segment| sum.saturating_add(segment.size.get()))
    }

    /// How many segments there are; at least one.
    pub fn segment_count(&self) -> usize {
        self.segments.borrow().len()
    }

    /// Base offset of the active segment.
    pub fn active_base_offset(&self) -> Offset {
        self.active().base_offset
    }

    /// Whether the first segment begins below the log start offset, or may do so after a power cut, so that the latter has
    /// to go into the dir's checkpoint (storage.md 1.1).
    pub fn needs_log_start_checkpoint(&self) -> bool {
        let (first, start) = (self.first_base_offset(), self.log_start_offset.get());
        first.is_some_and(|base| base < start) || (self.removals_unsynced.get() && start > Offset::ZERO)
    }

    /// Whether the log takes appends.
    pub fn state(&self) -> LogState {
        match self.status.get() {
            Status::Online => LogState::Online,
            Status::Full { .. } => LogState::Full,
            Status::Offline { during } => LogState::Offline { during },
            Status::Closed => LogState::Closed,
        }
    }

    /// Takes the log out of service because its dir failed elsewhere. Sticky.
    pub fn set_offline(&self, during: &'static str) {
        self.go_offline(during);
    }

    /// What took the log offline, with the file and the operating system's word, if it was an operation of this log.
    pub fn fault(&self) -> Option<Box<str>> {
        self.fault.borrow().clone()
    }

    /// The configuration in force.
    pub fn config(&self) -> Rc<LogConfig> {
        self.config.borrow().clone()
    }

    /// Replaces the configuration; applies to the next decision (storage.md 12.1).
    pub fn set_config(&self, config: LogConfig) {
        self.config.replace(Rc::new(config));
        self.after_write();
    }

    /// Sets who is told of completed writes and of failures; replaces the one before. Called without any of the log's
    /// state borrowed, so the listener may call the log.
    pub fn set_listener(&self, listener: impl Fn(LogEvent) + 'static) {
        self.listener.replace(Some(Rc::new(listener)));
    }

    /// Takes the listener away, for a partition that ends before its log.
    pub fn clear_listener(&self) {
        self.listener.take();
    }

    fn tell(&self, event: LogEvent) {
        let listener = self.listener.borrow().clone();
        if let Some(listener) = listener {
            listener(event);
        }
    }

    /// The segment that takes appends. There is always one: [`Log::open`] creates it and nothing removes the last.
    fn active(&self) -> Rc<Segment<R>> {
        let segments = self.segments.borrow();
        match segments.last_key_value() {
            Some((_, segment)) => segment.clone(),
            None => unreachable!("a log always has an active segment"),
        }
    }

    /// The segment that an offset falls into by base offsets, and where that segment ends.
    fn segment_for(&self, offset: Offset) -> Option<Rc<Segment<R>>> {
        let segments = self.segments.borrow();
        segments.range(..=offset).next_back().map(|(_, segment)| segment.clone())
    }

    fn segment_after(&self, base_offset: Offset) -> Option<Rc<Segment<R>>> {
        let segments = self.segments.borrow();
        let from = base_offset.plus(1);
        segments.range(from..).next().map(|(_, segment)| segment.clone())
    }

    fn first_base_offset(&self) -> Option<Offset> {
        self.segments.borrow().first_key_value().map(|(base, _)| *base)
    }

    /// All segments, oldest first.
    fn all_segments(&self) -> Vec<Rc<Segment<R>>> {
        self.segments.borrow().values().cloned().collect()
    }

    /// What a log that does not change its files answers.
    fn check_changeable(&self) -> Result<(), LogError> {
        match self.status.get() {
            Status::Online => Ok(()),
            Status::Full { .. } => Err(LogError::Full),
            Status::Offline { during } => Err(LogError::Offline { during }),
            Status::Closed => Err(LogError::Closed),
        }
    }

    fn check_readable(&self) -> Result<(), LogError> {
        match self.status.get() {
            Status::Online | Status::Full { .. } => Ok(()),
            Status::Offline { during } => Err(LogError::Offline { during }),
            Status::Closed => Err(LogError::Closed),
        }
    }

    /// Goes offline: sticky, everybody who waits gets an error, the listener is told once.
    fn go_offline(&self, during: &'static str) -> LogError {
        match self.status.get() {
            Status::Offline { during } => return LogError::Offline { during },
            Status::Closed => return LogError::Closed,
            Status::Online | Status::Full { .. } => {}
        }
        self.status.set(Status::Offline { during });
        self.writer.abandon(LogError::Offline { during });
        self.tail.clear();
        self.tell(LogEvent::Offline { during });
        LogError::Offline { during }
    }

    /// Judges a failed operation: a full disk is told apart (S-32), and a system that had nothing left for it; everything else
    /// takes the log offline (S-36).
    fn failed(&self, during: &'static str, error: &io::Error) -> LogError {
        if is_full(error) {
            return LogError::Full;
        }
        if is_exhausted(error) {
            tell_exhausted(self.runtime.now(), during, error);
            return LogError::Exhausted;
        }
        self.broken(during, error)
    }

    /// Does to its end what must not be left half done: while the system has no descriptor or memory for a step, it waits and
    /// begins again. So it is for what does no harm when it is done twice.
    async fn to_its_end<T>(
        &self,
        during: &'static str,
        work: impl AsyncFn() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match work().await {
                Err(error) if is_exhausted(&error) && self.check_readable().is_ok() => {
                    tell_exhausted(self.runtime.now(), during, &error);
                    self.runtime.sleep_until(self.runtime.now().plus_ms(EXHAUSTED_RETRY_MS)).await;
                }
                done => return done,
            }
        }
    }

    /// After a failure half way, or of a sync, nothing is certain: offline, whatever the error.
    fn broken(&self, during: &'static str, error: &io::Error) -> LogError {
        if self.check_readable().is_ok() {
            tracing::error!(partition = %self.partition, during, %error, "log goes offline");
            self.fault.replace(Some(format!("{during} failed: {error}").into()));
        }
        self.go_offline(during)
    }
}

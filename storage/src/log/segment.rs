//! One segment of a log: its files, its size, its indexes in memory (S-12). Decides when it is full; does not know the
//! other segments, the log's offsets, or what a batch means. Called by the log only.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use protocol::types::{Offset, TimestampMs};

use super::compact::pacer::Pacer;
use super::header::Header;
use super::unless_it_heals;
use super::walk::{SEEK_BYTES, Step, Walk, read_full};
use crate::checkpoint::write_all;
use crate::config::LogConfig;
use crate::index::offset::{OffsetIndex, OffsetPosition};
use crate::index::time::TimeIndex;
use crate::index::txn::{AbortedTxn, TxnIndex};
use crate::index::{BatchPlace, IndexError, IndexWrite, MaxTimestamp, SparseRule};
use crate::io::{DirDone, DirOp, File, Open, Runtime};
use crate::names::{SegmentFileKind, SegmentFileName};

/// The indexes of a segment, all of them in memory.
pub(crate) struct Indexes {
    pub(crate) offsets: OffsetIndex,
    pub(crate) times: TimeIndex,
    pub(crate) txns: TxnIndex,
    pub(crate) rule: SparseRule,
    /// Files hold more than the tables: padding of a killed Kafka, or entries that were cut away.
    files_too_long: bool,
    /// Files hold everything, but it is not known to be durable.
    unsynced: bool,
    /// Nothing in the files is of use: they begin anew, and until all of them are there a start must not trust any.
    rebuilt: bool,
}

impl Indexes {
    pub(crate) fn new(base: Offset, config: &LogConfig) -> Self {
        let capacity = config.segment_index_bytes;
        Self {
            offsets: OffsetIndex::new(base, capacity),
            times: TimeIndex::new(base, capacity),
            txns: TxnIndex::new(),
            rule: SparseRule::new(None),
            files_too_long: false,
            unsynced: false,
            rebuilt: false,
        }
    }

    /// The tables of a segment whose files are of no use, before its batches are taken in.
    pub(crate) fn anew(base: Offset, config: &LogConfig) -> Self {
        Self { files_too_long: true, rebuilt: true, ..Self::new(base, config) }
    }

    /// Whether the files lack something: there was no room for it.
    fn is_unwritten(&self) -> bool {
        let (offsets, times, txns) = (&self.offsets, &self.times, &self.txns);
        offsets.unwritten().is_some() || times.unwritten().is_some() || txns.unwritten().is_some()
    }

    /// Notes a batch that was just added, or met by recovery.
    pub(crate) fn on_batch(&mut self, found: &Header, interval_bytes: u32) {
        let place = BatchPlace {
            last_offset: found.last_offset,
            max_timestamp: found.max_timestamp,
            position: found.position,
            bytes: found.size,
            is_empty: found.is_empty(),
        };
        self.rule.on_batch(place, u64::from(interval_bytes), &mut self.offsets, &mut self.times);
    }

    /// Takes in the timestamp of a batch that the offset index already covers as far as it should.
    pub(crate) fn note(&mut self, found: &Header) {
        let known = self.rule.max_timestamp().map_or(TimestampMs::NONE, |max| max.timestamp);
        if found.max_timestamp > known && !found.is_empty() {
            let max = MaxTimestamp { timestamp: found.max_timestamp, offset: found.last_offset };
            self.rule = SparseRule::new(Some(max));
        }
    }

    /// Drops what is at or above `offset`; the greatest timestamp is then known only as far as the time index tells.
    pub(crate) fn truncate_to(&mut self, offset: Offset) {
        self.offsets.truncate_to(offset);
        self.times.truncate_to(offset);
        self.txns.truncate_to(offset);
        self.rule = SparseRule::new(self.times.last());
        self.files_too_long = true;
    }
}

/// One segment. Shared by the log, the writer and reads in progress; its files stay readable while any of them holds it
/// (S-19).
pub(crate) struct Segment<R: Runtime> {
    pub(crate) base_offset: Offset,
    dir: Rc<Path>,
    file: RefCell<Option<R::File>>,
    /// Bytes appended, those not yet written included.
    pub(crate) size: Cell<u64>,
    /// Bytes of whole batches that are out of our process.
    pub(crate) written: Cell<u64>,
    pub(crate) indexes: RefCell<Option<Box<Indexes>>>,
    /// Looked at since the indexes were last up for being dropped.
    pub(crate) recently_used: Cell<bool>,
    /// May hold entries in its transaction index.
    pub(crate) has_txns: Cell<bool>,
    /// When found, none of its files held anything.
    pub(crate) is_unused: Cell<bool>,
    /// No longer part of the log.
    pub(crate) removed: Cell<bool>,
    /// Greatest timestamp of the first batch (of the first append, while live): what the age counts from.
    pub(crate) first_timestamp: Cell<Option<TimestampMs>>,
    /// Wall clock at creation, load, or cut to nothing.
    pub(crate) created_ms: Cell<i64>,
    jitter_ms: Cell<i64>,
}

impl<R: Runtime> Segment<R> {
    /// A segment whose files are there, of which nothing was read yet.
    pub(crate) fn found(
        runtime: &R,
        dir: Rc<Path>,
        base_offset: Offset,
        size: u64,
        config: &LogConfig,
    ) -> Rc<Self> {
        Rc::new(Self {
            base_offset,
            dir,
            file: RefCell::new(None),
            size: Cell::new(size),
            written: Cell::new(size),
            indexes: RefCell::new(None),
            recently_used: Cell::new(false),
            has_txns: Cell::new(false),
            is_unused: Cell::new(false),
            removed: Cell::new(false),
            first_timestamp: Cell::new(None),
            created_ms: Cell::new(runtime.wall_ms()),
            jitter_ms: Cell::new(config.draw_jitter(runtime.random())),
        })
    }

    /// Creates an empty segment. Stale files of the same base offset are emptied (storage.md 4.3). A snapshot of that offset
    /// is none: it tells what lies below.
    pub(crate) async fn create(
        runtime: &R,
        dir: Rc<Path>,
        base_offset: Offset,
        config: &LogConfig,
    ) -> io::Result<Rc<Self>> {
        let segment = Self::found(runtime, dir, base_offset, 0, config);
        runtime.dir(DirOp::Unlink(segment.path(SegmentFileKind::TxnIndex))).await?;
        for kind in [SegmentFileKind::OffsetIndex, SegmentFileKind::TimeIndex] {
            runtime.open(&segment.path(kind), Open::CreateEmpty).await?;
        }
        let file = runtime.open(&segment.path(SegmentFileKind::Log), Open::CreateEmpty).await?;
        segment.file.replace(Some(file));
        segment.indexes.replace(Some(Box::new(Indexes::new(base_offset, config))));
        Ok(segment)
    }

    /// A segment that was just written: its file is open, and both file and indexes are complete.
    pub(crate) fn written(
        runtime: &R,
        dir: Rc<Path>,
        base_offset: Offset,
        (file, size): (R::File, u64),
        (indexes, config): (Indexes, &LogConfig),
    ) -> Rc<Self> {
        let segment = Self::found(runtime, dir, base_offset, size, config);
        segment.has_txns.set(!indexes.txns.is_empty());
        segment.file.replace(Some(file));
        segment.indexes.replace(Some(Box::new(indexes)));
        segment
    }

    pub(crate) fn path(&self, kind: SegmentFileKind) -> PathBuf {
        self.dir.join(SegmentFileName::plain(self.base_offset, kind).to_string())
    }

    /// The `.log`, opened when first needed and then kept. `NotFound` for a segment that has left the log and was not open:
    /// its names may be those of the segment that took its place.
    pub(crate) async fn file(&self, runtime: &R) -> io::Result<R::File> {
        if let Some(file) = self.open_file() {
            return Ok(file);
        }
        let file = runtime.open(&self.path(SegmentFileKind::Log), Open::Existing).await?;
        self.check_present()?;
        // Another reader may have opened it meanwhile; either will do.
        self.file.replace(Some(file.clone()));
        Ok(file)
    }

    /// The `.log` for whoever reads it once: an open one, or one of his own that nobody keeps.
    pub(crate) async fn lend_file(&self, runtime: &R) -> io::Result<R::File> {
        if let Some(file) = self.open_file() {
            return Ok(file);
        }
        let file = runtime.open(&self.path(SegmentFileKind::Log), Open::Read).await?;
        self.check_present()?;
        Ok(file)
    }

    pub(crate) fn check_present(&self) -> io::Result<()> {
        if self.removed.get() { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
    }

    /// The `.log` if it is open; that of the active segment always is.
    pub(crate) fn open_file(&self) -> Option<R::File> {
        self.file.borrow().clone()
    }

    /// Works on the indexes; `None` if they are not in memory.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Indexes) -> T) -> Option<T> {
        self.recently_used.set(true);
        self.indexes.borrow_mut().as_deref_mut().map(work)
    }

    /// Reads the index files if they are not in memory yet; answers what makes them useless. (An empty time index of a segment
    /// with data is not rebuilt, as in Kafka.)
    pub(crate) async fn read_in_indexes(
        &self,
        runtime: &R,
        config: &LogConfig,
    ) -> io::Result<Result<(), IndexDamage>> {
        if self.indexes.borrow().is_some() {
            return Ok(Ok(()));
        }
        let read = self.read_indexes(runtime, config).await?;
        // What was read may be of the segment that took its place.
        self.check_present()?;
        Ok(read.map(|indexes| {
            // Another reader may have been faster.
            self.indexes.borrow_mut().get_or_insert_with(|| Box::new(indexes));
        }))
    }

    /// The same; damaged or missing ones are built anew from the log and written. For who has the segment for himself: the
    /// others ask the log, where one does it for all.
    pub(crate) async fn load_indexes(&self, runtime: &R, config: &LogConfig) -> io::Result<()> {
        let Err(damage) = self.read_in_indexes(runtime, config).await? else { return Ok(()) };
        let segment = self.base_offset.get();
        tracing::warn!(dir = %self.dir.display(), segment, %damage, "building the indexes of a segment anew");
        let built = self.rebuild_indexes(runtime, config, || self.check_present()).await?;
        self.check_present()?;
        self.set_indexes(built);
        unless_it_heals(self.flush_indexes(runtime).await)
    }

    /// Whether they are in memory.
    pub(crate) fn has_indexes(&self) -> bool {
        self.indexes.borrow().is_some()
    }

    pub(crate) fn set_indexes(&self, indexes: Indexes) {
        self.indexes.replace(Some(Box::new(indexes)));
    }

    /// Reads the index files; `false`, with nothing in memory, if they are of no use.
    pub(crate) async fn try_load_indexes(&self, runtime: &R, config: &LogConfig) -> io::Result<bool> {
        match self.read_indexes(runtime, config).await? {
            Ok(indexes) => {
                self.indexes.replace(Some(Box::new(indexes)));
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }

    async fn read_indexes(
        &self,
        runtime: &R,
        config: &LogConfig,
    ) -> io::Result<Result<Indexes, IndexDamage>> {
        let Some(offsets) = self.read_index(runtime, SegmentFileKind::OffsetIndex).await? else {
            return Ok(Err(IndexDamage::Missing));
        };
        let times = self.read_index(runtime, SegmentFileKind::TimeIndex).await?.unwrap_or_default();
        let txns = self.read_index(runtime, SegmentFileKind::TxnIndex).await?.unwrap_or_default();
        Ok(self.parse_indexes(&offsets, &times, &txns, config))
    }

    fn parse_indexes(
        &self,
        offsets: &[u8],
        times: &[u8],
        txns: &[u8],
        config: &LogConfig,
    ) -> Result<Indexes, IndexDamage> {
        let capacity = config.segment_index_bytes;
        let zeros = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0);
        if zeros(offsets) || zeros(times) {
            return Err(IndexDamage::Zeros);
        }
        let offsets = OffsetIndex::parse(self.base_offset, offsets, capacity)?;
        let times = TimeIndex::parse(self.base_offset, times, capacity)?;
        if offsets.index.last().is_some_and(|last| last.position >= self.size.get()) {
            return Err(IndexDamage::BeyondLog);
        }
        Ok(Indexes {
            txns: TxnIndex::parse(self.base_offset, txns)?,
            rule: SparseRule::new(times.index.last()),
            files_too_long: offsets.padding_bytes > 0 || times.padding_bytes > 0,
            unsynced: false,
            rebuilt: false,
            offsets: offsets.index,
            times: times.index,
        })
    }

    /// An index file as a whole; `None` if there is none.
    async fn read_index(&self, runtime: &R, kind: SegmentFileKind) -> io::Result<Option<Bytes>> {
        let file = match runtime.open(&self.path(kind), Open::Read).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let size = usize::try_from(file.size().await?).map_err(|_| io::ErrorKind::FileTooLarge)?;
        Ok(Some(read_full(&file, 0, size).await?.freeze()))
    }

    /// Walks over the headers of the whole segment, in short slices, as long as `check` agrees. Transactions are not rebuilt:
    /// that takes the producers' state, which only recovery has; the entries in memory, or of a readable file, stay.
    pub(crate) async fn rebuild_indexes(
        &self,
        runtime: &R,
        config: &LogConfig,
        check: impl Fn() -> io::Result<()>,
    ) -> io::Result<Indexes> {
        let mut indexes = Indexes::anew(self.base_offset, config);
        let known = self.indexes.borrow().as_deref().map(|all| all.txns.clone());
        if let Some(known) = known {
            indexes.txns = known;
        } else if let Some(bytes) = self.read_index(runtime, SegmentFileKind::TxnIndex).await?
            && let Ok(txns) = TxnIndex::parse(self.base_offset, &bytes)
        {
            indexes.txns = txns;
        }
        let file = self.file(runtime).await?;
        let mut walk = Walk::headers(file, 0, self.written.get());
        let (mut pacer, mut taken) = (Pacer::new(runtime, f64::MAX), 0);
        while let Step::Batch(found) = walk.next().await? {
            indexes.on_batch(&found, config.index_interval_bytes);
            let read = walk.taken().saturating_sub(taken);
            taken = walk.taken();
            if read > 0 {
                check()?;
                pacer.look().await;
            } else {
                pacer.step(0).await;
            }
        }
        indexes.rule.close(&mut indexes.times);
        Ok(indexes)
    }

    /// Brings the index files up to the tables and makes them durable; does nothing when they are. The offset index comes
    /// last, and is missing while the others begin anew: a start that finds it trusts all of them.
    pub(crate) async fn flush_indexes(&self, runtime: &R) -> io::Result<()> {
        type Table = fn(&Indexes) -> (Option<IndexWrite>, u64);
        type Mark = fn(&mut Indexes, u64);
        let tables: [(SegmentFileKind, Table, Mark); 3] = [
            (
                SegmentFileKind::TimeIndex,
                |all| (all.times.unwritten(), all.times.size_bytes()),
                |all, size| all.times.mark_written(size),
            ),
            (
                SegmentFileKind::TxnIndex,
                |all| (all.txns.unwritten(), all.txns.size_bytes()),
                |all, size| all.txns.mark_written(size),
            ),
            (
                SegmentFileKind::OffsetIndex,
                |all| (all.offsets.unwritten(), all.offsets.size_bytes()),
                |all, size| all.offsets.mark_written(size),
            ),
        ];
        let state = self.with(|all| (all.files_too_long, all.unsynced, all.rebuilt));
        let Some((too_long, unsynced, rebuilt)) = state else { return Ok(()) };
        if rebuilt {
            runtime.dir(DirOp::Unlink(self.path(SegmentFileKind::OffsetIndex))).await?;
        }
        for (kind, table, mark) in tables {
            let Some((write, size)) = self.with(|all| table(all)) else { return Ok(()) };
            let absent = kind == SegmentFileKind::TxnIndex && size == 0;
            if (write.is_none() && !too_long && !unsynced) || (absent && !self.exists(runtime, kind).await?) {
                continue;
            }
            let file = runtime.open(&self.path(kind), Open::Create).await?;
            if self.removed.get() {
                // It may be the file of the segment that took its place.
                return Ok(());
            }
            if too_long {
                file.truncate(write.as_ref().map_or(size, |write| write.at)).await?;
            }
            if let Some(write) = write {
                write_all(&file, write.bytes, write.at).await?;
            }
            file.sync_data().await?;
            self.with(|all| mark(all, size));
        }
        self.with(|all| (all.files_too_long, all.unsynced, all.rebuilt) = (false, false, false));
        Ok(())
    }

    async fn exists(&self, runtime: &R, kind: SegmentFileKind) -> io::Result<bool> {
        Ok(self.file_size(runtime, kind).await?.is_some())
    }

    /// The size of one of its files; `None` if there is none.
    async fn file_size(&self, runtime: &R, kind: SegmentFileKind) -> io::Result<Option<u64>> {
        match runtime.dir(DirOp::Stat(self.path(kind))).await {
            Ok(DirDone::Stat { size, .. }) => Ok(Some(size)),
            Ok(_) => Ok(Some(0)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Bytes of the offset index and of the time index, which are not read for that.
    pub(crate) async fn index_sizes(&self, runtime: &R) -> io::Result<(u64, u64)> {
        let known = |all: &Indexes| (all.offsets.size_bytes(), all.times.size_bytes());
        let known = self.indexes.borrow().as_deref().map(known);
        if let Some(known) = known {
            return Ok(known);
        }
        let offsets = self.file_size(runtime, SegmentFileKind::OffsetIndex).await?;
        let times = self.file_size(runtime, SegmentFileKind::TimeIndex).await?;
        Ok((offsets.unwrap_or(0), times.unwrap_or(0)))
    }

    /// Whether the segment has to be closed before a batch is added (storage.md 4.3).
    pub(crate) fn must_roll(&self, config: &LogConfig, incoming: &Incoming) -> bool {
        let size = self.size.get();
        let relative = incoming.last_offset.get().checked_sub(self.base_offset.get());
        let in_range = relative.is_some_and(|relative| (0..=i64::from(i32::MAX)).contains(&relative));
        let full = self.with(|all| all.offsets.is_full() || all.times.is_full()).unwrap_or(false);
        let due =
            size > 0 && self.waited_ms(incoming) > config.roll_ms().saturating_sub(self.jitter_ms.get());
        let fits = size.saturating_add(incoming.size) <= u64::from(config.segment_bytes);
        // An empty segment at the very base offset that the next one would have is as good as the next one
        // (KAFKA-6388: Kafka deletes and recreates it).
        let fresh = size == 0 && self.base_offset == incoming.base_offset;
        !fresh && (!fits || due || full || !in_range)
    }

    /// How long the segment has taken data: by the data's own clock where it has one.
    fn waited_ms(&self, incoming: &Incoming) -> i64 {
        match self.first_timestamp.get() {
            Some(first) if first.get() >= 0 => incoming.max_timestamp.get().saturating_sub(first.get()),
            _ => incoming.now.get().saturating_sub(self.created_ms.get()),
        }
    }

    /// Notes a batch that goes to the end of the segment.
    pub(crate) fn on_append(&self, found: &Header, config: &LogConfig) {
        if self.first_timestamp.get().is_none() {
            self.first_timestamp.set(Some(found.max_timestamp));
        }
        self.size.set(found.end());
        self.with(|all| all.on_batch(found, config.index_interval_bytes));
    }

    /// Adds an aborted transaction to the index; `false` if it could not.
    pub(crate) fn add_txn(&self, txn: AbortedTxn) -> bool {
        self.has_txns.set(true);
        self.with(|all| all.txns.append(txn).is_ok()).unwrap_or(false)
    }

    /// Cuts the index files to what of them still stands, without writing anything: for a truncated log, also on a full
    /// disk. The next flush writes the rest.
    pub(crate) async fn cut_index_files(&self, runtime: &R) -> io::Result<()> {
        let Some(kept) = self.with(|all| {
            let kept = |write: Option<IndexWrite>, size| write.map_or(size, |write| write.at);
            [
                (SegmentFileKind::OffsetIndex, kept(all.offsets.unwritten(), all.offsets.size_bytes())),
                (SegmentFileKind::TimeIndex, kept(all.times.unwritten(), all.times.size_bytes())),
                (SegmentFileKind::TxnIndex, kept(all.txns.unwritten(), all.txns.size_bytes())),
            ]
        }) else {
            return Ok(());
        };
        for (kind, size) in kept {
            match runtime.open(&self.path(kind), Open::Existing).await {
                Ok(file) => file.truncate(size).await?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.with(|all| (all.files_too_long, all.unsynced) = (false, true));
        Ok(())
    }

    /// Closes the file and drops the tables: the log is closed.
    pub(crate) fn forget(&self) {
        self.file.take();
        self.indexes.take();
    }

    /// Drops the tables of a segment that was not looked at since the last call; they are read again when needed. Answers
    /// whether the files lack something of them: then they stay, until the caller has written it.
    pub(crate) fn cool_down(&self) -> bool {
        if self.recently_used.replace(false) {
            return false;
        }
        let mut indexes = self.indexes.borrow_mut();
        let is_unwritten = indexes.as_deref().is_some_and(Indexes::is_unwritten);
        if !is_unwritten {
            indexes.take();
        }
        is_unwritten
    }

    /// Drops the tables that were read for one look, where the files hold everything; they are read again when needed.
    pub(crate) fn let_indexes_go(&self) {
        let mut indexes = self.indexes.borrow_mut();
        if indexes.as_deref().is_some_and(|all| !all.is_unwritten() && !all.files_too_long) {
            indexes.take();
        }
    }

    /// Where to begin looking for `offset`: at or before the batch that holds it.
    pub(crate) fn floor(&self, offset: Offset) -> u64 {
        self.with(|all| all.offsets.lookup(offset).position).unwrap_or(0)
    }

    /// Where the batches that end below `offset` have ended at the latest, as far as the index tells.
    pub(crate) fn ceiling(&self, offset: Offset) -> u64 {
        let entry = self.with(|all| all.offsets.ceiling(offset)).flatten();
        entry.map_or(u64::MAX, |entry| entry.position).min(self.written.get())
    }

    /// The first batch that ends at or above `offset`; `None` if the segment has none below `end`. An index entry that does
    /// not lead to its batch is answered instead.
    pub(crate) async fn locate(
        &self,
        runtime: &R,
        offset: Offset,
        end: u64,
    ) -> io::Result<Result<Located, OffsetPosition>> {
        let file = self.file(runtime).await?;
        let (from, mut entry) = self.lead(offset, end);
        let mut walk = Walk::new(file, from, end, SEEK_BYTES);
        loop {
            let step = walk.next().await?;
            if let Some(entry) = entry.take().filter(|entry| misleads(entry, &step)) {
                return Ok(Err(entry));
            }
            match step {
                Step::Batch(found) if found.last_offset >= offset => return Ok(Ok(Located::Batch(found))),
                Step::Batch(_) => {}
                Step::End => return Ok(Ok(Located::None)),
                Step::Bad(_) => return Ok(Ok(Located::Bad(walk.position()))),
            }
        }
    }

    /// The same for a walk that begins at [`Self::floor`]: where that is, or the entry that does not lead there.
    pub(crate) async fn check_floor(
        &self,
        runtime: &R,
        offset: Offset,
    ) -> io::Result<Result<u64, OffsetPosition>> {
        let end = self.written.get();
        let (from, entry) = self.lead(offset, end);
        let Some(entry) = entry else { return Ok(Ok(from)) };
        let step = Walk::headers(self.file(runtime).await?, entry.position, end).peek().await?;
        Ok(if misleads(&entry, &step) { Err(entry) } else { Ok(entry.position) })
    }

    /// Whether the batches from the entry before lead to the place of this one, and it is theirs: or would be, but for an
    /// offset there that is damaged, which the batch behind it does not follow.
    pub(crate) async fn is_led_to(&self, runtime: &R, entry: &OffsetPosition) -> io::Result<bool> {
        let from = self.floor(entry.offset.plus(-1));
        let mut walk = Walk::headers(self.file(runtime).await?, from, self.written.get());
        while walk.position() < entry.position {
            match walk.next().await? {
                Step::Batch(_) => {}
                Step::End | Step::Bad(_) => return Ok(false),
            }
        }
        if walk.position() != entry.position {
            return Ok(false);
        }
        let step = walk.next().await?;
        if leads_to_its_batch(entry, &step) {
            return Ok(true);
        }
        Ok(match (step, walk.next().await?) {
            (Step::Batch(found), Step::Batch(behind)) => behind.check_follows(found.next_offset()).is_err(),
            _ => false,
        })
    }

    /// Where to begin looking for `offset`, as [`Self::floor`]; and the entry that says so, where that is a place before `end`.
    fn lead(&self, offset: Offset, end: u64) -> (u64, Option<OffsetPosition>) {
        let found = self.with(|all| all.offsets.lookup(offset));
        let from = found.map_or(0, |entry| entry.position);
        (from, found.filter(|entry| entry.position > 0 && entry.position < end))
    }

    /// Whether this is an entry of the offset index in memory.
    pub(crate) fn has_offset(&self, entry: &OffsetPosition) -> bool {
        self.with(|all| all.offsets.lookup(entry.offset) == *entry).unwrap_or(false)
    }

    /// Drops the entries of the offset index, if this is one of them: looking for something then begins at the start of the
    /// segment. Answers whether it was.
    pub(crate) fn drop_offsets_with(&self, entry: &OffsetPosition) -> bool {
        let dropped = self.with(|all| {
            let is_there = all.offsets.lookup(entry.offset) == *entry;
            if is_there {
                all.offsets.truncate_to(self.base_offset);
                all.files_too_long = true;
            }
            is_there
        });
        dropped.unwrap_or(false)
    }

    /// The greatest timestamp, if any batch has one; as far as the time index tells.
    pub(crate) fn max_timestamp(&self) -> Option<MaxTimestamp> {
        self.with(|all| all.rule.max_timestamp()).flatten()
    }

    /// The greatest timestamp, or the time the file was last written to where no record has one.
    pub(crate) async fn largest_timestamp(&self, runtime: &R) -> io::Result<i64> {
        if let Some(max) = self.max_timestamp().filter(|max| max.timestamp.get() >= 0) {
            return Ok(max.timestamp.get());
        }
        match runtime.dir(DirOp::Stat(self.path(SegmentFileKind::Log))).await? {
            DirDone::Stat { modified_ms, .. } => Ok(modified_ms),
            _ => Ok(runtime.wall_ms()),
        }
    }

    /// Takes in the batches behind the last index entry: the greatest timestamp of a segment whose index has no closing
    /// entry. Answers the last header. An entry that does not lead to its batch is damaged, and so may be the others: then
    /// everything is taken in, and the indexes start anew behind it.
    pub(crate) async fn scan_tail(
        &self,
        runtime: &R,
        end: u64,
    ) -> io::Result<(Option<Header>, Option<HeaderEnd>)> {
        let mut entry = self.with(|all| all.offsets.last()).flatten();
        let file = self.file(runtime).await?;
        let mut walk = Walk::new(file.clone(), entry.map_or(0, |entry| entry.position), end, SEEK_BYTES);
        let mut last: Option<Header> = None;
        loop {
            let position = walk.position();
            let expected = last.map_or(self.base_offset, |last| last.next_offset());
            let step = walk.next().await?;
            if let Some(entry) = entry.take()
                && !leads_to_its_batch(&entry, &step)
            {
                tracing::warn!(dir = %self.dir.display(), base_offset = %self.base_offset, offset = %entry.offset,
                    position, "an entry of the offset index does not lead to its batch: the indexes start anew");
                self.with(|all| all.truncate_to(self.base_offset));
                walk = Walk::new(file.clone(), 0, end, SEEK_BYTES);
                continue;
            }
            match step {
                Step::Batch(found) => {
                    if let Err(why) = found.check_follows(expected) {
                        return Ok((last, Some(HeaderEnd { position, why })));
                    }
                    self.with(|all| all.note(&found));
                    last = Some(found);
                }
                Step::End => return Ok((last, None)),
                Step::Bad(why) => return Ok((last, Some(HeaderEnd { position, why }))),
            }
        }
    }

    /// Reads what the age of the segment counts from, as Kafka does once after a load.
    pub(crate) async fn load_first_timestamp(&self, runtime: &R) -> io::Result<()> {
        if self.size.get() > 0 && self.first_timestamp.get().is_none() {
            let file = self.lend_file(runtime).await?;
            let mut walk = Walk::new(file, 0, self.size.get(), SEEK_BYTES);
            if let Step::Batch(first) = walk.next().await? {
                self.first_timestamp.set(Some(first.max_timestamp));
            }
        }
        Ok(())
    }
}

/// Whether a walk that began at an index entry met what the entry tells of: a batch that does not begin above its offset.
/// A batch that cannot be read says nothing of the entry.
pub(crate) fn leads_to_its_batch(entry: &OffsetPosition, step: &Step) -> bool {
    match step {
        Step::Batch(found) => found.base_offset <= entry.offset,
        Step::End => false,
        Step::Bad(_) => true,
    }
}

/// The same for whoever reads: a place where no batch can be read is none that an entry leads to. What is damaged there
/// itself is met again on the way from the entry before.
fn misleads(entry: &OffsetPosition, step: &Step) -> bool {
    matches!(step, Step::Bad(_)) || !leads_to_its_batch(entry, step)
}

/// What a roll is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// Where the next segment would begin.
    pub(crate) base_offset: Offset,
    pub(crate) last_offset: Offset,
    pub(crate) size: u64,
    pub(crate) max_timestamp: TimestampMs,
    pub(crate) now: TimestampMs,
}

/// Answer to a search for an offset.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Located {
    Batch(Header),
    None,
    /// Damage at this position.
    Bad(u64),
}

/// Where a walk met something that is no batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderEnd {
    pub(crate) position: u64,
    pub(crate) why: super::header::HeaderError,
}

/// Why index files are of no use.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum IndexDamage {
    #[error("there is no offset index")]
    Missing,
    #[error("an index holds nothing but zeros")]
    Zeros,
    #[error("the offset index reaches beyond the log")]
    BeyondLog,
    #[error(transparent)]
    Content(#[from] IndexError),
}

//! One round of compaction on one log (storage.md 7.5): the last offset of each dirty key is mapped, then all segments up to
//! there are written anew, group by group, and swapped for what they came from. What stays is decided by
//! [`crate::compaction`]; this is its driver. Knows no other log and no schedule: the broker says when and how fast.
//!
//! Appends, reads, rolls and retention go on meanwhile: only the swap of a group holds them off. A round that finds that
//! its segments have gone, that the log ends or that it is compacted no more stops there and leaves nothing behind.

mod cleanable;
mod copy;
mod output;
pub(super) mod pacer;
mod replace;

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use protocol::records::batch::BatchView;
use protocol::records::legacy::{LegacyError, MessageView, Unpacked};
use protocol::records::reader::{ReadError as RecordsError, Records};
use protocol::records::record::Record;
use protocol::records::rewrite::RewriteError;
use protocol::types::{Offset, ProducerId, TimestampMs};

use self::copy::Copy;
use self::output::Output;
use self::pacer::Pacer;
use super::header::Header;
use super::segment::Segment;
use super::walk::{SEEK_BYTES, Step, Walk};
use super::{Log, LogError, ReadError};
use crate::compaction::group::{SegmentSizes, group};
use crate::compaction::retention::LastOfProducer;
use crate::compaction::transactions::{CleanedTransactions, Control};
use crate::compaction::{Cleanable, OffsetMap};
use crate::index::IndexAppendError;
use crate::io::{DirDone, DirOp, Runtime};
use crate::names::SegmentFileKind;
use crate::producer_state::EndTxnMarker;

/// What a round may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionLimits {
    /// Memory for the offset map.
    pub map_bytes: usize,
    /// `log.cleaner.io.buffer.load.factor`: share of the map that is used.
    pub map_load_factor: f64,
    /// Bytes of the buffer for reading, and of that for writing; a larger batch gets a larger one.
    pub buffer_bytes: usize,
    /// `log.cleaner.io.max.bytes.per.second`, reads and writes together.
    pub bytes_per_second: f64,
    /// `storage.free.space.floor.bytes`: what is written leaves so much free; 0 is no floor.
    pub free_space_floor_bytes: u64,
}

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Everything below is clean now: less than was cleanable if the map was full.
    pub first_dirty: Option<Offset>,
    /// Bytes read to map keys.
    pub bytes_mapped: u64,
    /// Bytes read to be written anew.
    pub bytes_read: u64,
    /// Bytes that were left of them.
    pub bytes_written: u64,
    /// Records read to be written anew.
    pub records_read: u64,
    /// Records that were left of them.
    pub records_kept: u64,
    /// Segments before.
    pub segments_read: usize,
    /// Segments after.
    pub segments_written: usize,
    /// Of a hundred keys that the map has room for, how many it held.
    pub map_used_percent: u32,
}

/// What lies in a segment where a batch should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompactionDamage {
    /// No batch.
    #[error("no batch")]
    NoBatch,
    /// A batch with another checksum than it states.
    #[error("a wrong checksum")]
    Checksum,
    /// An offset that does not fit the segment.
    #[error("an offset that is out of the range of its segment")]
    OffsetRange,
    /// A batch whose records cannot be read.
    #[error("unreadable records: {0}")]
    Records(#[from] RecordsError),
    /// A message of an old format that cannot be read.
    #[error("an unreadable message: {0}")]
    Message(#[from] LegacyError),
    /// A batch that cannot be written with fewer records.
    #[error("a batch that cannot be rewritten: {0}")]
    Rewrite(#[from] RewriteError),
    /// Transactions that ended in another order than their markers stand.
    #[error("the end of a transaction that does not follow the one before: {0}")]
    Transaction(IndexAppendError),
}

/// Why a round ended early. What was swapped before stays, nothing else is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompactionError {
    /// The log ends, was cut, is compacted no more, or lost segments of the round: try again, if there is anything.
    #[error("the round was stopped")]
    Stopped,
    /// The disk is full, or failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log cannot be compacted until that is repaired.
    #[error("at byte {position} of the segment {base_offset} is {damage}")]
    Damaged {
        /// The segment.
        base_offset: Offset,
        /// Where in its file.
        position: u64,
        /// What is there.
        damage: CompactionDamage,
    },
    /// The map has no room for a single key.
    #[error("the offset map has no room for a key: log.cleaner.dedupe.buffer.size is too small")]
    MapTooSmall,
    /// What would be written leaves less free than it may: the old segments stay until the new one is complete, and some time
    /// behind that.
    #[error("{usable} bytes are free, and {needed} are needed to stay above storage.free.space.floor.bytes")]
    NoRoom {
        /// Bytes that are free.
        usable: u64,
        /// Bytes that have to be, with the floor.
        needed: u64,
    },
}

/// What the steps of a round share.
struct Round<'a, R: Runtime> {
    log: &'a Log<R>,
    cleanable: Cleanable,
    limits: CompactionLimits,
    pacer: Pacer<R>,
    /// What the log knows last of each live producer, of those whose last batch the round may meet.
    producers: Rc<BTreeMap<ProducerId, LastOfProducer>>,
    done: Compacted,
}

impl<R: Runtime> Log<R> {
    /// Everything below was compacted; `None` if nothing ever was. Goes into the dir's checkpoint.
    pub fn cleaner_offset(&self) -> Option<Offset> {
        self.cleaner_offset.get()
    }

    /// Compacts what [`Log::cleanable`] has found. One round at a time; a second one waits. Dropping the future may leave
    /// the log half swapped: then it must be opened again.
    ///
    /// # Errors
    /// See [`CompactionError`].
    pub async fn compact(
        &self,
        cleanable: &Cleanable,
        limits: &CompactionLimits,
    ) -> Result<Compacted, CompactionError> {
        let _alone = self.compacting.enter().await;
        let mut round = Round {
            log: self,
            cleanable: *cleanable,
            limits: *limits,
            pacer: Pacer::new(&self.runtime, limits.bytes_per_second),
            producers: Rc::default(),
            done: Compacted::default(),
        };
        self.was_cut.set(false);
        match round.run().await {
            Ok(()) => Ok(round.done),
            Err(error @ CompactionError::Damaged { .. }) => {
                // What is cut while it is read looks damaged.
                self.check_compacting()?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a round may go on.
    fn check_compacting(&self) -> Result<(), CompactionError> {
        self.check_changeable()?;
        if self.ending.get() || self.was_cut.get() || !self.config.borrow().cleanup_policy.compact {
            return Err(CompactionError::Stopped);
        }
        Ok(())
    }

    /// What is known last of each live producer that may have its last batch below `end`. One that appends meanwhile keeps the
    /// header of a batch too many, until the next round.
    pub(super) fn last_of_producers(&self, end: Offset) -> BTreeMap<ProducerId, LastOfProducer> {
        let producers = self.producers.borrow();
        let last = producers.producers().map(|(id, state)| {
            let data_offset = state.batches().last().map(|batch| batch.last_offset);
            (id, LastOfProducer { data_offset, epoch: state.epoch() })
        });
        last.filter(|(_, last)| last.data_offset.is_none_or(|offset| offset < end)).collect()
    }

    /// Judges a failed operation on a segment of a round: one that has left the log may have lost its files.
    fn compaction_failed(&self, segment: &Segment<R>, error: &io::Error) -> CompactionError {
        if segment.removed.get() && error.kind() == io::ErrorKind::NotFound {
            return CompactionError::Stopped;
        }
        self.failed("compaction", error).into()
    }
}

impl<R: Runtime> Round<'_, R> {
    async fn run(&mut self) -> Result<(), CompactionError> {
        self.log.check_compacting()?;
        let bound = self.log.active().base_offset.min(self.log.recovery_point.get());
        if self.cleanable.first_uncleanable > bound {
            // It was cut since somebody looked.
            return Err(CompactionError::Stopped);
        }
        if self.log.segment_for(self.cleanable.first_dirty).is_none() {
            // Retention took what was dirty since somebody looked: that is no want of room.
            return Err(CompactionError::Stopped);
        }
        let map = self.map_keys().await?;
        let end = match map.latest_offset() {
            Some(latest) if latest >= self.cleanable.first_dirty => latest.plus(1),
            Some(_) | None => return Err(CompactionError::MapTooSmall),
        };
        self.done.map_used_percent = map.used_percent();
        self.producers = Rc::new(self.log.last_of_producers(end));
        let segments: Vec<_> = self.log.all_segments();
        let segments: Vec<_> = segments.into_iter().filter(|segment| segment.base_offset < end).collect();
        let groups = self.group(&segments).await?;
        let tombstones_after = self.old_tombstones_after(&segments).await?;
        let mut transactions = CleanedTransactions::default();
        for range in groups {
            let sources = segments.get(range).unwrap_or_default();
            self.clean(sources, &map, &mut transactions, tombstones_after).await?;
        }
        self.log.cleaner_offset.set(Some(end));
        self.done.first_dirty = Some(end);
        Ok(())
    }

    /// The last offset of each key in the dirty part, as far as the map has room.
    async fn map_keys(&mut self) -> Result<OffsetMap, CompactionError> {
        let Cleanable { first_dirty, first_uncleanable, .. } = self.cleanable;
        let keys_max = u64::try_from(first_uncleanable.since(first_dirty)).unwrap_or(0);
        let mut map = OffsetMap::new(self.limits.map_bytes, self.limits.map_load_factor, keys_max);
        let mut transactions = CleanedTransactions::default();
        let mut segment = self.log.segment_for(first_dirty);
        while let Some(here) = segment.filter(|here| here.base_offset < first_uncleanable) {
            let next = self.log.segment_after(here.base_offset);
            let end = next.as_ref().map_or(first_uncleanable, |next| next.base_offset).min(first_uncleanable);
            transactions.add_aborted(self.aborted(here.base_offset.max(first_dirty), end).await?);
            if !self.map_segment(&here, &mut map, &mut transactions).await? {
                break;
            }
            // Offsets that nobody has, up to the next segment, are done too.
            map.set_latest_offset(end.plus(-1));
            segment = next;
        }
        Ok(map)
    }

    /// Answers whether there was room for all keys.
    async fn map_segment(
        &mut self,
        segment: &Rc<Segment<R>>,
        map: &mut OffsetMap,
        transactions: &mut CleanedTransactions,
    ) -> Result<bool, CompactionError> {
        let first_dirty = self.cleanable.first_dirty;
        let mut walk = self.walk(segment, first_dirty).await?;
        while let Some(found) = self.step(&mut walk, segment).await? {
            self.done.bytes_mapped = self.done.bytes_mapped.saturating_add(found.size);
            let bytes =
                walk.whole(&found).await.map_err(|error| self.log.compaction_failed(segment, &error))?;
            let damaged = |damage| damaged(segment, &found, damage);
            let fits = if let Some(info) = found.info {
                let view = BatchView::parse(bytes).map_err(|_| damaged(CompactionDamage::NoBatch))?;
                if !view.crc_is_valid() {
                    return Err(damaged(CompactionDamage::Checksum));
                }
                if info.attributes.is_control() {
                    transactions.on_control(&info, control_of(&view));
                    true
                } else if transactions.on_data(&info) {
                    true
                } else {
                    map_batch(&view, first_dirty, map, &mut self.pacer)
                        .await
                        .map_err(|error| damaged(error.into()))?
                }
            } else {
                map_message(bytes, first_dirty, map).map_err(damaged)?
            };
            if !fits {
                return Ok(false);
            }
            if found.last_offset >= first_dirty {
                map.set_latest_offset(found.last_offset);
            }
        }
        Ok(true)
    }

    /// Which neighbours become one segment.
    async fn group(
        &mut self,
        segments: &[Rc<Segment<R>>],
    ) -> Result<Vec<std::ops::Range<usize>>, CompactionError> {
        let config = self.log.config();
        let mut sizes = Vec::with_capacity(segments.len());
        for segment in segments {
            let (offset_index_bytes, time_index_bytes) = segment
                .index_sizes(&self.log.runtime)
                .await
                .map_err(|error| self.log.compaction_failed(segment, &error))?;
            let (base_offset, log_bytes) = (segment.base_offset, segment.size.get());
            sizes.push(SegmentSizes { base_offset, log_bytes, offset_index_bytes, time_index_bytes });
        }
        let (log_bytes, index_bytes) =
            (u64::from(config.segment_bytes), u64::from(config.segment_index_bytes));
        Ok(group(&sizes, log_bytes, index_bytes, self.cleanable.first_uncleanable))
    }

    /// Of the old formats, tombstones go in segments that were last written to at or before this time.
    async fn old_tombstones_after(&self, segments: &[Rc<Segment<R>>]) -> Result<i64, CompactionError> {
        let clean = segments.iter().rfind(|segment| segment.base_offset < self.cleanable.first_dirty);
        match clean {
            None => Ok(0),
            Some(last) => {
                let retention_ms = self.log.config().delete_retention_ms;
                Ok(self.modified(last).await?.saturating_sub(retention_ms))
            }
        }
    }

    async fn modified(&self, segment: &Segment<R>) -> Result<i64, CompactionError> {
        match self.log.runtime.dir(DirOp::Stat(segment.path(SegmentFileKind::Log))).await {
            Ok(DirDone::Stat { modified_ms, .. }) => Ok(modified_ms),
            Ok(_) => Ok(self.log.runtime.wall_ms()),
            Err(error) => Err(self.log.compaction_failed(segment, &error)),
        }
    }

    /// Writes a group anew and swaps it.
    async fn clean(
        &mut self,
        sources: &[Rc<Segment<R>>],
        map: &OffsetMap,
        transactions: &mut CleanedTransactions,
        tombstones_after: i64,
    ) -> Result<(), CompactionError> {
        let (Some(first), Some(last)) = (sources.first(), sources.last()) else { return Ok(()) };
        let modified_ms = self.modified(last).await?;
        self.check_room(sources).await?;
        let created = Output::create(self.log, first.base_offset, self.limits.buffer_bytes).await;
        let mut output = match created {
            Ok(output) => output,
            Err(error) => return Err(self.log.discard_output(first.base_offset, error).await),
        };
        let copied = async {
            let mut copy = Copy::new(self, map, transactions, &mut output);
            for source in sources {
                copy.segment(source, tombstones_after).await?;
            }
            output.finish(modified_ms, &mut self.pacer).await
        };
        match copied.await {
            Ok(new) => {
                let bytes = new.size.get();
                self.log.replace_segments(sources, new).await?;
                self.done.bytes_written = self.done.bytes_written.saturating_add(bytes);
                self.done.segments_read = self.done.segments_read.saturating_add(sources.len());
                self.done.segments_written = self.done.segments_written.saturating_add(1);
                Ok(())
            }
            Err(error) => Err(self.log.discard_output(first.base_offset, error).await),
        }
    }

    /// Whether the disk has room for what may be left of a group. Who cannot say how much there is does not refuse.
    async fn check_room(&self, sources: &[Rc<Segment<R>>]) -> Result<(), CompactionError> {
        let floor = self.limits.free_space_floor_bytes;
        if floor == 0 {
            return Ok(());
        }
        let needed = sources.iter().fold(floor, |sum, source| sum.saturating_add(source.size.get()));
        match self.log.runtime.dir(DirOp::Space(self.log.dir.to_path_buf())).await {
            Ok(DirDone::Space { usable, .. }) if usable < needed => {
                Err(CompactionError::NoRoom { usable, needed })
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Aborted transactions with data between two offsets. Indexes that nobody had in memory do not stay there: a round meets
    /// those of all segments.
    async fn aborted(
        &self,
        from: Offset,
        upper: Offset,
    ) -> Result<Vec<crate::index::txn::AbortedTxn>, CompactionError> {
        let mut cold = self.log.all_segments();
        cold.retain(|segment| segment.has_txns.get() && segment.indexes.borrow().is_none());
        let found = self.log.aborted_transactions(from, upper).await;
        cold.iter().for_each(|segment| segment.let_indexes_go());
        found.map_err(|error| match error {
            ReadError::Log(error) => error.into(),
            ReadError::OffsetOutOfRange { .. } => CompactionError::Stopped,
            ReadError::Corrupt { base_offset, position } => {
                CompactionError::Damaged { base_offset, position, damage: CompactionDamage::NoBatch }
            }
        })
    }

    /// A walk over a segment. What nobody else has in memory or open does not stay so behind it.
    async fn walk(&self, segment: &Segment<R>, from: Offset) -> Result<Walk<R::File>, CompactionError> {
        let opened = async {
            let at = if from > segment.base_offset { self.log.floor_in(segment, from).await? } else { 0 };
            Ok::<_, io::Error>((segment.lend_file(&self.log.runtime).await?, at))
        };
        let (file, at) = opened.await.map_err(|error| self.log.compaction_failed(segment, &error))?;
        Ok(Walk::new(file, at, segment.written.get(), self.limits.buffer_bytes.max(SEEK_BYTES)))
    }

    /// The next batch; `None` at the end of the segment. Lets others have their turn.
    async fn step(
        &mut self,
        walk: &mut Walk<R::File>,
        segment: &Segment<R>,
    ) -> Result<Option<Header>, CompactionError> {
        self.log.check_compacting()?;
        if segment.removed.get() {
            return Err(CompactionError::Stopped);
        }
        let position = walk.position();
        match walk.next().await {
            Ok(Step::Batch(found)) => {
                let next = self.log.segment_after(segment.base_offset);
                let upper = next.map_or(self.log.log_end_offset(), |next| next.base_offset);
                if found.base_offset < segment.base_offset || found.last_offset >= upper {
                    return Err(damaged(segment, &found, CompactionDamage::NoBatch));
                }
                self.pacer.moved(found.size, || self.log.check_compacting()).await?;
                Ok(Some(found))
            }
            Ok(Step::End) => Ok(None),
            Ok(Step::Bad(_)) => {
                let (base_offset, damage) = (segment.base_offset, CompactionDamage::NoBatch);
                Err(CompactionError::Damaged { base_offset, position, damage })
            }
            Err(error) => Err(self.log.compaction_failed(segment, &error)),
        }
    }
}

fn damaged<R: Runtime>(segment: &Segment<R>, found: &Header, damage: CompactionDamage) -> CompactionError {
    CompactionError::Damaged { base_offset: segment.base_offset, position: found.position, damage }
}

/// What a control batch is to compaction; one that cannot be read stays.
fn control_of(view: &BatchView<'_>) -> Control {
    if view.record_count() == 0 {
        return Control::Emptied;
    }
    match EndTxnMarker::read(view) {
        Ok(Some(marker)) => Control::End(marker.outcome),
        Ok(None) | Err(_) => Control::Other,
    }
}

/// What a record takes of a round's time grows with this.
fn size_of_record(record: &Record<'_>) -> usize {
    record.key.map_or(0, <[u8]>::len).saturating_add(record.value.map_or(0, <[u8]>::len))
}

/// Maps the keys of a batch; `false` if there was no room for one.
async fn map_batch<R: Runtime>(
    view: &BatchView<'_>,
    from: Offset,
    map: &mut OffsetMap,
    pacer: &mut Pacer<R>,
) -> Result<bool, RecordsError> {
    let base_offset = view.base_offset();
    let mut records = Records::of(view)?;
    while let Some(record) = records.next_record()? {
        let offset = base_offset.plus(i64::from(record.offset_delta));
        if let Some(key) = record.key.filter(|_| offset >= from)
            && !map.put(key, offset)
        {
            return Ok(false);
        }
        pacer.step(size_of_record(&record)).await;
    }
    Ok(true)
}

/// The same for a message of an old format, or all messages of a wrapper.
fn map_message(bytes: &[u8], from: Offset, map: &mut OffsetMap) -> Result<bool, CompactionDamage> {
    let view = old_message(bytes)?;
    if !view.is_compressed() {
        let key = view.key()?.filter(|_| view.last_offset() >= from);
        return Ok(key.is_none_or(|key| map.put(key, view.last_offset())));
    }
    let unpacked = Unpacked::of(&view)?;
    for message in unpacked.messages() {
        let message = message?;
        if let Some(key) = message.key.filter(|_| message.offset >= from)
            && !map.put(key, message.offset)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn old_message(bytes: &[u8]) -> Result<MessageView<'_>, CompactionDamage> {
    let view = MessageView::parse(bytes).map_err(|_| CompactionDamage::NoBatch)?;
    if view.crc_is_valid() { Ok(view) } else { Err(CompactionDamage::Checksum) }
}

/// Now, as records have it.
fn wall<R: Runtime>(runtime: &R) -> TimestampMs {
    TimestampMs::new(runtime.wall_ms())
}

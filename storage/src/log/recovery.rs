//! Recovery after a crash (storage.md 8.2, 9.3): reads what lies behind the recovery point batch by batch, cuts the log at
//! the first thing that is no batch of it, and rebuilds indexes, epochs and producers on the way. One warning per thing
//! cut. Holds one buffer; every so many reads one is a trip through the reactor, and checksums are computed a buffer at a
//! time.
//!
//! How much is read depends on what died. After a power cut anything may be missing: every checksum is computed, and what
//! was found is made durable before it is served. Where only the process died ([`super::OpenOptions::vouched`]), the kernel
//! still holds each file as it was written, and at most the last write is short: headers tell where the log ends, nothing
//! waits for the disk, and the recovery point stays until the next flush. A log that shows anything else, which no kill
//! leaves behind, is recovered in the first way.

use std::io;
use std::rc::Rc;

use protocol::records::batch::{BatchError, BatchView, LOG_OVERHEAD_BYTES, MAGIC_V2};
use protocol::types::{LeaderEpoch, MonoTime, Offset};

use super::header::{Header, HeaderError, is_zero_header};
use super::producers::read_marker;
use super::segment::{Indexes, Segment, leads_to_its_batch};
use super::walk::{STREAM_BYTES, Step, Walk, read_full};
use super::{Log, unless_it_heals};
use crate::io::{DirOp, File, Runtime};
use crate::names::{SegmentFileKind, SegmentFileName};

/// What recovery of a segment found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recovered {
    /// The rest was cut off: what comes after it in other segments is no continuation.
    is_cut: bool,
    /// The offset that follows its last batch.
    end: Offset,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Everything.
    Content,
    /// Headers, and the batches that say how a transaction ended.
    Headers,
}

/// Why a segment ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("checksum does not match")]
    Crc,
    #[error("leader epoch {found} is below {before}")]
    EpochGoesBack { found: LeaderEpoch, before: LeaderEpoch },
    #[error("offset {0} is out of the range of the segment")]
    OutOfRange(Offset),
}

impl Fault {
    /// Whether the file ends inside a batch, as a write that was cut short leaves it.
    const fn is_short(&self) -> bool {
        matches!(self, Self::Header(HeaderError::Batch(BatchError::Truncated { .. })))
    }
}

/// Where recovery stands in a segment.
struct Position {
    expected: Offset,
    epoch: LeaderEpoch,
}

impl<R: Runtime> Log<R> {
    /// Recovers what lies behind the recovery point. `vouched`: only the process died since the log was in order.
    pub(super) async fn recover(&self, recovery_point: Offset, vouched: bool) -> io::Result<()> {
        if vouched {
            let before = (self.epochs.borrow().clone(), self.epochs_behind.get());
            if self.take_over_from(recovery_point).await? {
                return Ok(());
            }
            self.epochs.replace(before.0);
            self.epochs_behind.set(before.1);
            self.drop_waiting_snapshots(Offset::NONE);
        }
        self.recover_from(recovery_point).await
    }

    /// The segments from the one that holds the recovery point on.
    fn segments_from(&self, recovery_point: Offset) -> Vec<Rc<Segment<R>>> {
        let first = self.segment_for(recovery_point).map_or(recovery_point, |segment| segment.base_offset);
        let segments = self.segments.borrow();
        segments.range(first..).map(|(_, segment)| segment.clone()).collect()
    }

    /// Whether nothing was written yet, so that there is nothing to cut: most logs of a broker with many partitions.
    fn is_unused(&self) -> bool {
        let segments = self.segments.borrow();
        segments.len() == 1 && segments.values().all(|segment| segment.is_unused.get())
    }

    /// Takes the log as the kernel holds it; syncs nothing. Answers `false`, with no file changed, if it is not what a kill
    /// leaves behind.
    async fn take_over_from(&self, recovery_point: Offset) -> io::Result<bool> {
        if self.is_unused() {
            return Ok(true);
        }
        let mut rest = self.segments_from(recovery_point).into_iter().peekable();
        while let Some(segment) = rest.next() {
            let from = recovery_point.max(segment.base_offset);
            let next = rest.peek().map(|next| next.base_offset);
            let Some(end) = self.take_over_segment(&segment, from, next.is_none()).await? else {
                return Ok(false);
            };
            if next.is_some_and(|next| self.is_hole(end.max(recovery_point), next)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes a segment over; `None` if its end is not explained by a write that was cut short in the last segment.
    async fn take_over_segment(
        &self,
        segment: &Rc<Segment<R>>,
        from: Offset,
        is_last: bool,
    ) -> io::Result<Option<Offset>> {
        let from = self.begin_segment(segment, from).await?;
        let file = segment.file(&self.runtime).await?;
        let size = segment.size.get();
        let mut walk = Walk::headers(file.clone(), segment.floor(from), size);
        let (end, fault) = self.check_batches(segment, &mut walk, from, Check::Headers).await?;
        if let Some(fault) = fault {
            let (base_offset, position) = (segment.base_offset, walk.position());
            let bytes = size.saturating_sub(position);
            let may_be_short = is_last && fault.is_short() && bytes <= SHORT_BYTES_MAX;
            if !may_be_short || self.is_whole(&file, (position, size), end).await? {
                // What is cut off then is told by who checks everything.
                tracing::info!(partition = %self.partition, %base_offset, position, bytes, %fault,
                    "the log is not as a killed process leaves it: all that is not known to be durable is checked");
                return Ok(None);
            }
            tracing::info!(partition = %self.partition, %base_offset, position, bytes, "cutting off a batch that was not written to its end");
            segment.size.set(position);
            segment.written.set(position);
            file.truncate(position).await?;
        }
        segment.with(|all| all.rule.close(&mut all.times));
        self.note_snapshot();
        Ok(Some(end))
    }

    /// Whether a batch that seems to be cut short by the end of the file, where it begins at the first of two positions and the
    /// file ends at the second, is whole but for the length that it states, or others follow it: then it was written to its
    /// end, and its header was damaged since.
    async fn is_whole(&self, file: &R::File, (from, to): (u64, u64), expected: Offset) -> io::Result<bool> {
        let len = usize::try_from(to.saturating_sub(from)).map_err(|_| io::ErrorKind::InvalidData)?;
        let rest = read_full(file, from, len).await?;
        if with_length_of(&rest).is_some_and(|whole| crc_is_valid(&whole)) {
            return Ok(true);
        }
        let mut looked = Looked { crcs: 0, slice_end: 0 };
        for at in 1..rest.len() {
            if looked.is_batch(&rest, at, expected).unwrap_or(false) {
                return Ok(true);
            }
            if looked.is_slice_over(at) {
                self.runtime.turn().await;
            }
        }
        Ok(false)
    }

    /// Recovers every segment from the one that holds the recovery point on, inside that one from the recovery point.
    async fn recover_from(&self, recovery_point: Offset) -> io::Result<()> {
        if self.is_unused() {
            // What a power cut takes of empty files is made anew by the next start, and the first flush syncs the names.
            return Ok(());
        }
        let mut rest = self.segments_from(recovery_point).into_iter().peekable();
        while let Some(segment) = rest.next() {
            let from = recovery_point.max(segment.base_offset);
            let found = self.recover_segment(&segment, from).await?;
            let next = rest.peek().map(|next| next.base_offset);
            if found.is_cut || next.is_some_and(|next| self.is_hole(found.end.max(recovery_point), next)) {
                self.remove_later(rest.by_ref().collect()).await?;
            }
        }
        self.runtime.dir(DirOp::Sync(self.dir.to_path_buf())).await?;
        self.removals_unsynced.set(false);
        Ok(())
    }

    /// Whether what lies between two segments was lost: a power cut may keep a new segment and lose the end of the old one
    /// just where a batch ended. Compaction leaves such gaps too, also in a log that is compacted no more. What tells them
    /// apart is the snapshot at the base of the new one: it is begun when everything below is durable.
    fn is_hole(&self, end: Offset, next_base: Offset) -> bool {
        let was_durable = self.snapshots.borrow().files.contains(next_base);
        let is_hole = next_base > end && !was_durable && !self.config.borrow().cleanup_policy.compact;
        if is_hole {
            tracing::warn!(partition = %self.partition, %end, %next_base, "records between two segments are lost");
        }
        is_hole
    }

    async fn remove_later(&self, segments: Vec<Rc<Segment<R>>>) -> io::Result<()> {
        for segment in segments.into_iter().rev() {
            tracing::warn!(partition = %self.partition, base_offset = %segment.base_offset, bytes = segment.size.get(),
                "removing a segment behind one that was cut");
            segment.removed.set(true);
            self.segments.borrow_mut().remove(&segment.base_offset);
            self.remove_files(&segment).await?;
        }
        Ok(())
    }

    /// Recovers one segment from `from` on; what lies below is trusted as far as its indexes are there.
    pub(super) async fn recover_segment(
        &self,
        segment: &Rc<Segment<R>>,
        from: Offset,
    ) -> io::Result<Recovered> {
        let from = self.begin_segment(segment, from).await?;
        let file = segment.file(&self.runtime).await?;
        let size = segment.size.get();
        let mut walk = Walk::new(file.clone(), segment.floor(from), size, STREAM_BYTES);
        let (end, fault) = self.check_batches(segment, &mut walk, from, Check::Content).await?;
        let cut = walk.position();
        segment.size.set(cut);
        segment.written.set(cut);
        if let Some(fault) = fault {
            self.report_cut(&file, cut, size, segment.base_offset, fault).await?;
            file.truncate(cut).await?;
        }
        // A failed sync is not to be forgotten by opening again when there is room (S-36).
        file.sync_data().await.map_err(io::Error::other)?;
        segment.with(|all| all.rule.close(&mut all.times));
        // On a full disk what was rebuilt stays in memory, and the log is read (S-32). The recovery point waits (S-18).
        unless_it_heals(segment.flush_indexes(&self.runtime).await)?;
        self.note_snapshot();
        unless_it_heals(self.write_snapshots(Offset::new(i64::MAX)).await)?;
        Ok(Recovered { is_cut: fault.is_some(), end })
    }

    /// Makes indexes and producers those of `from`, or of the segment's beginning where what lies below cannot be trusted;
    /// answers which.
    async fn begin_segment(&self, segment: &Rc<Segment<R>>, from: Offset) -> io::Result<Offset> {
        let from = if self.can_trust_below(segment, from).await? { from } else { segment.base_offset };
        if from == segment.base_offset {
            segment.indexes.replace(Some(Box::new(Indexes::anew(segment.base_offset, &self.config()))));
        }
        // What was just recovered need not be read again, and knows more than a snapshot does.
        if self.producers.borrow().must_reload(from) {
            self.rebuild_producers_to(from).await?;
        }
        Ok(from)
    }

    /// Whether the part below `from` needs no check: its indexes were durable before the recovery point passed it (S-18),
    /// and the headers from the last entry lead to a batch that begins at or above `from`.
    async fn can_trust_below(&self, segment: &Rc<Segment<R>>, from: Offset) -> io::Result<bool> {
        if from <= segment.base_offset || !segment.try_load_indexes(&self.runtime, &self.config()).await? {
            return Ok(false);
        }
        segment.with(|all| all.truncate_to(from));
        let file = segment.file(&self.runtime).await?;
        let entry = segment.with(|all| all.offsets.last()).flatten();
        let start = entry.map_or(0, |entry| entry.position);
        let mut walk = Walk::headers(file, start, segment.size.get());
        if let Some(entry) = entry
            && !leads_to_its_batch(&entry, &walk.peek().await?)
        {
            return Ok(false);
        }
        loop {
            match walk.peek().await? {
                Step::Batch(found) if found.last_offset >= from => return Ok(found.base_offset >= from),
                Step::Batch(found) => {
                    segment.with(|all| all.note(&found));
                    walk.next().await?;
                }
                Step::End => return Ok(true),
                Step::Bad(_) => return Ok(false),
            }
        }
    }

    /// Walks from the position of `walk` to the first fault; the walk then stands before it. Answers where the batches end.
    async fn check_batches(
        &self,
        segment: &Segment<R>,
        walk: &mut Walk<R::File>,
        from: Offset,
        check: Check,
    ) -> io::Result<(Offset, Option<Fault>)> {
        let mut at = Position { expected: segment.base_offset, epoch: LeaderEpoch::NONE };
        let mut slice = Slice { taken: 0, seen: 0, began: self.runtime.now() };
        loop {
            let found = match walk.peek().await? {
                Step::Batch(found) => found,
                Step::End => return Ok((at.expected, None)),
                Step::Bad(why) => return Ok((at.expected, Some(why.into()))),
            };
            // Order is all that tells of a damaged offset, which no checksum covers; so it is checked below `from` too.
            if let Err(fault) = check_order(segment.base_offset, &found, &at) {
                return Ok((at.expected, Some(fault)));
            }
            if found.base_offset >= from
                && let Err(fault) = self.check_batch(segment, walk, &found, check).await?
            {
                return Ok((at.expected, Some(fault)));
            }
            walk.next().await?;
            at.expected = found.next_offset();
            at.epoch = found.info.map_or(LeaderEpoch::NONE, |info| info.partition_leader_epoch).max(at.epoch);
            if slice.is_over(walk.taken(), || self.runtime.now()) {
                self.end_slice(walk, slice.taken).await?;
                let taken = walk.taken();
                slice = Slice { taken, seen: taken, began: self.runtime.now() };
            }
        }
    }

    /// Lets others have their turn, and waits where they go first.
    async fn end_slice(&self, walk: &mut Walk<R::File>, before: u64) -> io::Result<()> {
        self.runtime.turn().await;
        if let Some(resumed) = self.control.checked(walk.taken().saturating_sub(before))? {
            // Many logs may wait: none keeps a buffer meanwhile.
            walk.forget();
            // Who lets go of the other end wants us to go on, or has set the stop.
            let _ = resumed.await;
            self.control.check()?;
        }
        Ok(())
    }

    async fn check_batch(
        &self,
        segment: &Segment<R>,
        walk: &mut Walk<R::File>,
        found: &Header,
        check: Check,
    ) -> io::Result<Result<(), Fault>> {
        let is_control = found.info.is_some_and(|info| info.attributes.is_control());
        let mut marker = None;
        if check == Check::Content || is_control {
            let bytes = walk.whole(found).await?;
            if !crc_is_valid(bytes) {
                return Ok(Err(Fault::Crc));
            }
            marker = read_marker(bytes);
        }
        segment.with(|all| all.on_batch(found, self.config.borrow().index_interval_bytes));
        self.note_epoch(found);
        if let Some(aborted) = self.replay_batch(found, marker.as_ref()) {
            segment.add_txn(aborted);
        }
        Ok(Ok(()))
    }

    /// Adds the epoch of a batch if it is higher than any known: the file of a crashed broker may lack it.
    pub(super) fn note_epoch(&self, found: &Header) {
        let Some(info) = found.info else { return };
        let mut epochs = self.epochs.borrow_mut();
        let latest = epochs.latest().map_or(LeaderEpoch::NONE, |entry| entry.epoch);
        if info.partition_leader_epoch > latest {
            epochs.assign(info.partition_leader_epoch, found.base_offset);
            self.epochs_behind.set(true);
        }
    }

    /// One line per cut; a run of zeros to the end of the file is what a power cut leaves, and no loss (S-29).
    async fn report_cut(
        &self,
        file: &R::File,
        cut: u64,
        size: u64,
        base_offset: Offset,
        fault: Fault,
    ) -> io::Result<()> {
        let bytes = size.saturating_sub(cut);
        let name = SegmentFileName::plain(base_offset, SegmentFileKind::Log);
        if self.is_zero_to_end(file, cut, size).await? {
            tracing::info!(partition = %self.partition, file = %name, position = cut, bytes, "cutting zeros off a segment");
        } else {
            tracing::warn!(partition = %self.partition, file = %name, position = cut, bytes, %fault,
                "cutting a segment at the first thing that is no batch");
        }
        Ok(())
    }

    async fn is_zero_to_end(&self, file: &R::File, from: u64, to: u64) -> io::Result<bool> {
        let mut at = from;
        while at < to {
            self.control.check()?;
            let len = usize::try_from(to.saturating_sub(at)).unwrap_or(usize::MAX).min(STREAM_BYTES);
            let bytes = read_full(file, at, len).await?;
            if bytes.is_empty() {
                break;
            }
            let header = at > from || is_zero_header(&bytes);
            if !header || bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at = at.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        }
        Ok(true)
    }
}

/// A write that was cut short leaves less than a batch. Of more, which only large batches explain, the checksums are asked.
const SHORT_BYTES_MAX: u64 = 1 << 20;

/// Bytes between two turns: a checksum runs at tens of gigabytes a second.
const SLICE_BYTES: u64 = 1 << 20;

/// And time, where little is read at a time.
const SLICE_NANOS: u64 = 100_000;

/// What is done between two turns.
struct Slice {
    /// What the walk had read when it began.
    taken: u64,
    seen: u64,
    began: MonoTime,
}

impl Slice {
    /// The clock is only asked when something was read since it was last asked.
    fn is_over(&mut self, taken: u64, now: impl FnOnce() -> MonoTime) -> bool {
        if taken == self.seen {
            return false;
        }
        self.seen = taken;
        taken.saturating_sub(self.taken) >= SLICE_BYTES || now().nanos_since(self.began) >= SLICE_NANOS
    }
}

/// Looks for a batch behind one that seems to be cut short.
struct Looked {
    /// Checksums that were computed: of what only looks like batches there may be many.
    crcs: u32,
    slice_end: usize,
}

/// More candidates than a torn batch has by chance.
const CANDIDATES_MAX: u32 = 16;

/// Bytes that are looked at between two turns.
const LOOK_BYTES: usize = 16 << 10;

impl Looked {
    /// Whether a batch begins here that can follow `expected`; `None` where nothing looks like one. With too many candidates
    /// the answer is yes: then everything is checked.
    fn is_batch(&mut self, rest: &[u8], at: usize, expected: Offset) -> Option<bool> {
        let bytes = rest.get(at..)?;
        // Most places are told by one byte.
        if bytes.get(MAGIC_POSITION).is_none_or(|magic| magic.cast_signed() != MAGIC_V2) {
            return None;
        }
        let found = super::header::parse(bytes, 0).ok()?;
        let whole = bytes.get(..usize::try_from(found.size).ok()?)?;
        let is_near = found.base_offset.since(expected) <= i64::from(i32::MAX);
        if found.check_follows(expected).is_err() || !is_near {
            return None;
        }
        self.crcs = self.crcs.saturating_add(1);
        Some(self.crcs > CANDIDATES_MAX || crc_is_valid(whole))
    }

    fn is_slice_over(&mut self, at: usize) -> bool {
        let is_over = at >= self.slice_end;
        if is_over {
            self.slice_end = at.saturating_add(LOOK_BYTES);
        }
        is_over
    }
}

const MAGIC_POSITION: usize = 16;

/// The bytes as a batch of just their length.
fn with_length_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let length = i32::try_from(bytes.len().checked_sub(LOG_OVERHEAD_BYTES)?).ok()?;
    let mut batch = bytes.to_vec();
    batch.get_mut(8..LOG_OVERHEAD_BYTES)?.copy_from_slice(&length.to_be_bytes());
    Some(batch)
}

/// What Kafka's scan does not check: offsets and epochs that go back are a remnant, not data (S-22).
fn check_order(base_offset: Offset, found: &Header, at: &Position) -> Result<(), Fault> {
    found.check_follows(at.expected)?;
    let epoch = found.info.map_or(LeaderEpoch::NONE, |info| info.partition_leader_epoch);
    if epoch.get() >= 0 && at.epoch.get() >= 0 && epoch < at.epoch {
        return Err(Fault::EpochGoesBack { found: epoch, before: at.epoch });
    }
    if i32::try_from(found.last_offset.since(base_offset)).is_err() {
        return Err(Fault::OutOfRange(found.last_offset));
    }
    Ok(())
}

/// Whether a batch of any format has the checksum that it states: CRC-32C in magic 2, CRC-32 before.
pub(super) fn crc_is_valid(bytes: &[u8]) -> bool {
    if let Ok(view) = BatchView::parse(bytes) {
        return view.crc_is_valid();
    }
    let Some((stated, covered)) =
        bytes.get(LOG_OVERHEAD_BYTES..).and_then(|message| message.split_first_chunk())
    else {
        return false;
    };
    let computed = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, covered);
    computed == u64::from(u32::from_be_bytes(*stated))
}

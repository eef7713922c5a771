//! Recovery after a crash (storage.md 8.2, 9.3): reads what lies behind the recovery point batch by batch, cuts the log at
//! the first thing that is no batch of it, and rebuilds indexes, epochs and producers on the way. One warning per thing
//! cut. Holds one buffer; every read is a trip through the reactor, and checksums are computed a buffer at a time.

use std::io;
use std::rc::Rc;

use protocol::records::batch::{BatchView, LOG_OVERHEAD_BYTES};
use protocol::types::{LeaderEpoch, Offset};

use super::header::{Header, HeaderError, is_zero_header};
use super::producers::read_marker;
use super::segment::{Indexes, Segment, leads_to_its_batch};
use super::walk::{STREAM_BYTES, Step, Walk, read_full};
use super::{Log, unless_full};
use crate::io::{DirOp, File, Runtime};

/// What recovery of a segment found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recovered {
    /// The rest was cut off: what comes after it in other segments is no continuation.
    is_cut: bool,
    /// The offset that follows its last batch.
    end: Offset,
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

/// Where recovery stands in a segment.
struct Position {
    expected: Offset,
    epoch: LeaderEpoch,
}

impl<R: Runtime> Log<R> {
    /// Recovers every segment from the one that holds the recovery point on, inside that one from the recovery point.
    pub(super) async fn recover_from(&self, recovery_point: Offset) -> io::Result<()> {
        let first = self.segment_for(recovery_point).map_or(recovery_point, |segment| segment.base_offset);
        let segments: Vec<_> = {
            let segments = self.segments.borrow();
            segments.range(first..).map(|(_, segment)| segment.clone()).collect()
        };
        let only = if self.segment_count() == 1 { segments.first() } else { None };
        if only.is_some_and(|segment| segment.is_unused.get()) {
            // Nothing was written yet, and there is nothing to cut: most logs of a broker with many partitions.
            self.runtime.dir(DirOp::Sync(self.dir.to_path_buf())).await?;
            return Ok(());
        }
        let mut rest = segments.into_iter().peekable();
        while let Some(segment) = rest.next() {
            let from = recovery_point.max(segment.base_offset);
            let found = self.recover_segment(&segment, from).await?;
            let next = rest.peek().map(|next| next.base_offset);
            if found.is_cut || next.is_some_and(|next| self.is_hole(found.end.max(recovery_point), next)) {
                self.remove_later(rest.by_ref().collect()).await?;
            }
        }
        self.runtime.dir(DirOp::Sync(self.dir.to_path_buf())).await?;
        Ok(())
    }

    /// Whether what lies between two segments was lost: a power cut may keep a new segment and lose the end of the old one
    /// just where a batch ended. Only compaction leaves such a gap behind, or a truncation, which flushes.
    fn is_hole(&self, end: Offset, next_base: Offset) -> bool {
        let is_hole = next_base > end && !self.config.borrow().cleanup_policy.compact;
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
        let from = if self.can_trust_below(segment, from).await? { from } else { segment.base_offset };
        if from == segment.base_offset {
            segment.indexes.replace(Some(Box::new(Indexes::new(segment.base_offset, &self.config()))));
            segment.with(|all| all.truncate_to(segment.base_offset));
        }
        // What was just recovered need not be read again, and knows more than a snapshot does.
        if self.producers.borrow().must_reload(from) {
            self.rebuild_producers_to(from).await?;
        }
        let file = segment.file(&self.runtime).await?;
        let size = segment.size.get();
        let mut walk = Walk::new(file.clone(), segment.floor(from), size, STREAM_BYTES);
        let (end, fault) = self.check_batches(segment, &mut walk, from).await?;
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
        unless_full(segment.flush_indexes(&self.runtime).await)?;
        self.note_snapshot();
        unless_full(self.write_snapshots(Offset::new(i64::MAX)).await)?;
        Ok(Recovered { is_cut: fault.is_some(), end })
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
        let mut walk = Walk::new(file, start, segment.size.get(), STREAM_BYTES);
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
    ) -> io::Result<(Offset, Option<Fault>)> {
        let mut at = Position { expected: segment.base_offset, epoch: LeaderEpoch::NONE };
        let mut slice_end = walk.position();
        let mut slice_begin = slice_end;
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
                && let Err(fault) = self.check_batch(segment, walk, &found).await?
            {
                return Ok((at.expected, Some(fault)));
            }
            walk.next().await?;
            at.expected = found.next_offset();
            at.epoch = found.info.map_or(LeaderEpoch::NONE, |info| info.partition_leader_epoch).max(at.epoch);
            if walk.position() >= slice_end {
                self.runtime.turn().await;
                if let Some(resumed) = self.control.checked(walk.position().saturating_sub(slice_begin))? {
                    // Many logs may wait: none keeps a buffer meanwhile.
                    walk.forget();
                    // Who lets go of the other end wants us to go on, or has set the stop.
                    let _ = resumed.await;
                    self.control.check()?;
                }
                slice_begin = walk.position();
                slice_end = slice_begin.saturating_add(SLICE_BYTES);
            }
        }
    }

    async fn check_batch(
        &self,
        segment: &Segment<R>,
        walk: &mut Walk<R::File>,
        found: &Header,
    ) -> io::Result<Result<(), Fault>> {
        let bytes = walk.whole(found).await?;
        if !crc_is_valid(bytes) {
            return Ok(Err(Fault::Crc));
        }
        let marker = read_marker(bytes);
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
        if self.is_zero_to_end(file, cut, size).await? {
            tracing::info!(partition = %self.partition, %base_offset, position = cut, bytes, "cutting zeros off a segment");
        } else {
            tracing::warn!(partition = %self.partition, %base_offset, position = cut, bytes, %fault,
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

/// Bytes between two turns: a checksum runs at tens of gigabytes a second.
const SLICE_BYTES: u64 = 1 << 20;

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
fn crc_is_valid(bytes: &[u8]) -> bool {
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

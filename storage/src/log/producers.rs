//! The producers of a log and their snapshot files: when one is taken, when it is written, how the state is rebuilt
//! (storage.md 6). The rules are [`crate::producer_state`]'s; this is its driver.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use protocol::records::batch::BatchView;
use protocol::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};

use super::header::Header;
use super::segment::Segment;
use super::walk::{Step, Walk};
use super::{Log, ReadError};
use crate::checkpoint::write_all;
use crate::index::txn::AbortedTxn;
use crate::io::{DirOp, File, Open, Runtime};
use crate::names::{SegmentFileKind, SegmentFileName};
use crate::producer_state::{EndTxnMarker, Snapshots};

/// Snapshot files of a log, and snapshots on their way to a file. They are written by the next flush: the recovery point
/// passes none that is not durable (S-18).
#[derive(Default)]
pub(super) struct SnapshotFiles {
    pub(super) files: Snapshots,
    waiting: Vec<(Offset, Bytes)>,
}

/// What DescribeProducers tells of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveProducer {
    /// Its id.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of its last record, -1 if none is known.
    pub last_sequence: i32,
    /// Timestamp of its last batch or marker.
    pub last_timestamp: TimestampMs,
    /// Epoch of the coordinator that ended its last transaction, -1 if none did.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction.
    pub current_txn_start_offset: Option<Offset>,
}

impl<R: Runtime> Log<R> {
    /// The producers that are known, by id.
    pub fn producers(&self) -> Vec<ActiveProducer> {
        let producers = self.producers.borrow();
        let describe =
            |(producer_id, state): (ProducerId, &crate::producer_state::ProducerState)| ActiveProducer {
                producer_id,
                producer_epoch: state.epoch(),
                last_sequence: state.last_sequence(),
                last_timestamp: state.last_timestamp(),
                coordinator_epoch: state.coordinator_epoch(),
                current_txn_start_offset: state.txn_first_offset(),
            };
        producers.producers().map(describe).collect()
    }

    /// How many producers are known.
    pub fn producer_count(&self) -> usize {
        self.producers.borrow().producers().count()
    }

    /// First offset of the earliest transaction that is not decided and replicated, given the high watermark; `None` if
    /// there is none: the last stable offset is then the high watermark.
    pub fn first_unstable_offset(&self, high_watermark: Offset) -> Option<Offset> {
        let mut producers = self.producers.borrow_mut();
        producers.on_high_watermark(high_watermark);
        producers.first_unstable_offset().map(|offset| offset.max(self.log_start_offset.get()))
    }

    /// Forgets producers that have not been heard of for `producer.id.expiration.ms`.
    pub fn expire_producers(&self, now: TimestampMs) {
        self.producers.borrow_mut().remove_expired(now);
    }

    /// Begins to verify a transaction of a producer; see
    /// [`crate::producer_state::ProducerStateManager::begin_verification`].
    pub fn begin_verification(
        &self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        sequence: i32,
        now: TimestampMs,
    ) -> Option<crate::producer_state::VerificationGuard> {
        self.producers.borrow_mut().begin_verification(producer_id, producer_epoch, sequence, now)
    }

    /// Aborted transactions with records in `[from, upper)`, for read_committed fetches; `upper` is
    /// [`Log::end_bound`].
    ///
    /// # Errors
    /// A failed log.
    pub async fn aborted_transactions(
        &self,
        from: Offset,
        upper: Offset,
    ) -> Result<Vec<AbortedTxn>, ReadError> {
        self.check_readable()?;
        self.steadily(async || self.find_aborted(from, upper).await).await
    }

    async fn find_aborted(&self, from: Offset, upper: Offset) -> Result<Vec<AbortedTxn>, ReadError> {
        let mut found = Vec::new();
        let mut segment = self.segment_for(from);
        while let Some(here) = segment {
            segment = self.segment_after(here.base_offset);
            if !here.has_txns.get() {
                continue;
            }
            if let Err(error) = self.load_indexes(&here).await {
                self.read_failed(&here, &error)?;
            }
            if let Some(collected) = here.with(|all| all.txns.collect(from, upper)) {
                found.extend(collected.transactions);
                segment = segment.filter(|_| !collected.is_complete);
            }
        }
        Ok(found)
    }

    /// Takes a snapshot of this moment, unless one is known that is as new; the next flush writes it.
    pub(super) fn note_snapshot(&self) {
        if let Some(snapshot) = self.producers.borrow_mut().take_snapshot() {
            self.snapshots.borrow_mut().waiting.push(snapshot);
        }
    }

    pub(super) fn snapshot_path(&self, offset: Offset) -> PathBuf {
        self.dir.join(SegmentFileName::plain(offset, SegmentFileKind::Snapshot).to_string())
    }

    /// Writes the snapshots up to `target`, durably but for the directory, and removes the one that a flush inside the
    /// active segment left before: Kafka keeps only those at segment bases and the newest.
    pub(super) async fn write_snapshots(&self, target: Offset) -> io::Result<()> {
        let due: Vec<_> = {
            let mut snapshots = self.snapshots.borrow_mut();
            snapshots.waiting.extract_if(.., |(offset, _)| *offset <= target).collect()
        };
        for (offset, content) in due {
            if let Err(error) = self.write_snapshot(offset, content.clone()).await {
                self.snapshots.borrow_mut().waiting.push((offset, content));
                return Err(error);
            }
            self.snapshots.borrow_mut().files.insert(offset);
        }
        let stale = self.stale_snapshots();
        self.remove_snapshots(stale).await
    }

    async fn write_snapshot(&self, offset: Offset, content: Bytes) -> io::Result<()> {
        let file = self.runtime.open(&self.snapshot_path(offset), Open::CreateEmpty).await?;
        write_all(&file, content, 0).await?;
        file.sync_data().await
    }

    fn stale_snapshots(&self) -> Vec<Offset> {
        let bases = self.segments.borrow().keys().copied().collect();
        self.snapshots.borrow_mut().files.take_stray(&bases)
    }

    pub(super) async fn remove_snapshots(&self, offsets: Vec<Offset>) -> io::Result<()> {
        for offset in offsets {
            self.runtime.dir(DirOp::Unlink(self.snapshot_path(offset))).await?;
        }
        Ok(())
    }

    /// Forgets snapshots that are not written yet and lie above `offset`.
    pub(super) fn drop_waiting_snapshots(&self, offset: Offset) {
        self.snapshots.borrow_mut().waiting.retain(|(at, _)| *at <= offset);
    }

    /// Makes the producers' state that of the log end offset: the newest snapshot at or below it, and what was appended
    /// since. Costs as much as lies behind that snapshot.
    pub(super) async fn rebuild_producers(&self) -> io::Result<()> {
        self.rebuild_producers_to(self.log_end_offset.get()).await
    }

    /// Makes the producers' state that of an offset.
    pub(super) async fn rebuild_producers_to(&self, end: Offset) -> io::Result<()> {
        self.load_newest_snapshot(end).await?;
        let from = self.producers.borrow().map_end_offset();
        if from < end {
            self.replay(from, end).await?;
        }
        self.producers.borrow_mut().set_map_end_offset(end);
        Ok(())
    }

    async fn load_newest_snapshot(&self, end: Offset) -> io::Result<()> {
        let now = TimestampMs::new(self.runtime.wall_ms());
        self.drop_waiting_snapshots(end);
        self.producers.borrow_mut().begin_reload(self.log_start_offset.get());
        loop {
            let waiting = self.snapshots.borrow().waiting.last().cloned();
            let Some((offset, content)) = (match waiting {
                Some(waiting) => Some(waiting),
                None => self.read_newest_snapshot(end).await?,
            }) else {
                return Ok(());
            };
            if offset < self.log_start_offset.get() {
                return Ok(());
            }
            let loaded = self.producers.borrow_mut().load_snapshot(offset, &content, now);
            let Err(damage) = loaded else { return Ok(()) };
            tracing::warn!(partition = %self.partition, %offset, %damage, "removing a damaged producer snapshot");
            self.snapshots.borrow_mut().files.remove(offset);
            self.remove_snapshots(vec![offset]).await?;
        }
    }

    async fn read_newest_snapshot(&self, end: Offset) -> io::Result<Option<(Offset, Bytes)>> {
        loop {
            let newest = self.snapshots.borrow().files.newest_at_or_below(end);
            let Some(offset) = newest else { return Ok(None) };
            match self.runtime.open(&self.snapshot_path(offset), Open::Read).await {
                Ok(file) => {
                    let size = usize::try_from(file.size().await?).unwrap_or(usize::MAX);
                    return Ok(Some((offset, super::walk::read_full(&file, 0, size).await?.freeze())));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.snapshots.borrow_mut().files.remove(offset);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes in the headers of everything from `from` to `end`.
    async fn replay(&self, from: Offset, end: Offset) -> io::Result<()> {
        // The first segment may begin above the log start that a checkpoint told of, when what lay below has gone.
        let mut segment = self.segment_for(from).or_else(|| self.segment_after(from));
        while let Some(here) = segment.filter(|segment| segment.base_offset < end) {
            self.replay_segment(&here, from, end).await?;
            segment = self.segment_after(here.base_offset);
        }
        Ok(())
    }

    async fn replay_segment(&self, segment: &Segment<R>, from: Offset, end: Offset) -> io::Result<()> {
        segment.load_indexes(&self.runtime, &self.config()).await?;
        let file = segment.file(&self.runtime).await?;
        // Flushes may be kept out, and with them whoever builds an index anew: what leads astray is not used.
        let at = segment.check_floor(&self.runtime, from).await?.unwrap_or(0);
        let mut walk = Walk::headers(file, at, segment.written.get());
        // Damage below the recovery point ends the replay of this segment; reads report it.
        while let Step::Batch(found) = walk.next().await? {
            if found.base_offset >= end {
                break;
            }
            self.control.check()?;
            if found.last_offset >= from {
                let is_marker = found.info.is_some_and(|info| info.attributes.is_control());
                let marker = if is_marker { read_marker(walk.whole(&found).await?) } else { None };
                self.replay_batch(&found, marker.as_ref());
            }
            // Every so many reads one is a trip through the reactor; headers within one buffer cost next to nothing.
        }
        Ok(())
    }

    /// Takes in one batch of our own log; answers the transaction that it aborted.
    pub(super) fn replay_batch(&self, found: &Header, marker: Option<&EndTxnMarker>) -> Option<AbortedTxn> {
        let info = found.info?;
        let mut producers = self.producers.borrow_mut();
        let completed = producers.update(&info, marker, info.max_timestamp);
        let aborted = completed.as_ref().and_then(|txn| producers.aborted(txn));
        if let Some(completed) = completed {
            producers.complete(&completed);
        }
        producers.set_map_end_offset(found.next_offset());
        aborted
    }
}

/// What a control batch of our own log says; one that cannot be read says nothing, as one of an unknown kind.
pub(super) fn read_marker(batch: &[u8]) -> Option<EndTxnMarker> {
    let view = BatchView::parse(batch).ok()?;
    EndTxnMarker::read(&view).ok().flatten()
}

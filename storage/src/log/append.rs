//! The append: what waits comes before ([`Log::prepare`]), then one section without an await from the producer check to
//! the publication of the log end offset (S-13). Knows no role and no high watermark; the caller holds the partition's
//! append queue from `prepare` to `append`.

use std::io;

use bytes::Bytes;
use protocol::records::batch::{self, BatchInfo, BatchView};
use protocol::types::{LeaderEpoch, Offset, TimestampMs};

use super::header::Header;
use super::segment::{Incoming, Segment};
use super::writer::BatchBuffer;
use super::{AppendError, Log, LogError, Status};
use crate::checkpoint::replace_file;
use crate::io::{DirDone, DirOp, Runtime};
use crate::names::LEADER_EPOCH_CHECKPOINT;
use crate::producer_state::{AppendOrigin, Check, EndTxnMarker};

/// An append happened, or had happened before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub first_offset: Offset,
    /// Offset of the last record; the answer waits until what follows it is the written offset or below.
    pub last_offset: Offset,
    /// Greatest timestamp of the batch, of the original if this is a duplicate (Kafka answers that as its append time).
    pub max_timestamp: TimestampMs,
    /// The batch was there already: nothing was appended, the offsets are those of the original.
    pub duplicate: bool,
}

/// How long a full log refuses appends without looking at the disk.
const FULL_RETRY_NANOS: u64 = 1_000_000_000;
/// Space beyond the batch itself that a full disk must have before appends are taken again: indexes and snapshots.
const FULL_RESUME_BYTES: u64 = 1 << 16;

impl<R: Runtime> Log<R> {
    /// Whether [`Log::prepare`] has to run before this batch: a new leader epoch to be written, a segment to be started,
    /// a full disk to be looked at. Cheap; mostly false.
    pub fn must_prepare(&self, info: &BatchInfo, leader_epoch: LeaderEpoch, now: TimestampMs) -> bool {
        let incoming = self.incoming(info, now);
        match self.status.get() {
            Status::Online => {
                self.epochs_ahead.get()
                    || self.epochs.borrow().needs_assign(leader_epoch, incoming.base_offset)
                    || self.active().must_roll(&self.config.borrow(), &incoming)
            }
            Status::Full { .. } => true,
            Status::Offline { .. } | Status::Closed => false,
        }
    }

    /// Does what has to wait before an append (storage.md 4.1): writes the epoch file, starts a segment. The caller keeps
    /// others from appending until its own append. Dropping the future may leave the epoch entry or the new segment.
    ///
    /// # Errors
    /// Why the append cannot happen.
    pub async fn prepare(
        &self,
        info: &BatchInfo,
        origin: AppendOrigin,
        leader_epoch: LeaderEpoch,
        now: TimestampMs,
    ) -> Result<(), AppendError> {
        let structure = self.structure.enter().await;
        self.resume_if_space(u64::try_from(info.size_in_bytes).unwrap_or(u64::MAX)).await?;
        let incoming = self.incoming(info, now);
        if self.epochs_ahead.get() {
            let text = self.epochs.borrow().to_text();
            self.write_epoch_file(text).await?;
        }
        self.write_epoch(leader_epoch, incoming.base_offset).await?;
        let config = self.config();
        if origin != AppendOrigin::Replication {
            check_size(info, config.segment_bytes)?;
        }
        if self.active().must_roll(&config, &incoming) {
            self.roll(incoming.base_offset, &structure).await?;
        }
        Ok(())
    }

    /// Appends one batch. `batch` is exactly what `info` describes; offsets and leader epoch are patched in
    /// place, except for [`AppendOrigin::Replication`], which brings its own and names the batch's own epoch. The log end
    /// offset moves at once; nobody reads the batch or may acknowledge it before [`Log::until_written`].
    ///
    /// # Errors
    /// Why nothing was appended.
    pub fn append(
        &self,
        batch: impl Into<BatchBuffer>,
        info: &BatchInfo,
        origin: AppendOrigin,
        leader_epoch: LeaderEpoch,
        now: TimestampMs,
    ) -> Result<Appended, AppendError> {
        self.check_changeable()?;
        let mut batch = batch.into();
        let size = batch.bytes.len();
        if size != info.size_in_bytes || info.last_offset < info.base_offset {
            return Err(AppendError::Malformed);
        }
        let config = self.config();
        let info = self.assigned(info, origin, leader_epoch)?;
        if origin != AppendOrigin::Replication {
            check_size(&info, config.segment_bytes)?;
        }
        if self.must_prepare(&info, leader_epoch, now) {
            return Err(AppendError::NotPrepared);
        }
        let marker = marker_of(&batch.bytes, &info)?;
        match self.producers.borrow().check(&info, marker.as_ref(), origin)? {
            Check::Append => {}
            Check::Duplicate { first_offset, last_offset, timestamp } => {
                let max_timestamp = timestamp;
                return Ok(Appended { first_offset, last_offset, max_timestamp, duplicate: true });
            }
        }
        if origin != AppendOrigin::Replication {
            batch::set_base_offset(&mut batch.bytes, info.base_offset);
            batch::set_partition_leader_epoch(&mut batch.bytes, info.partition_leader_epoch);
        }
        let segment = self.active();
        let header = Header {
            position: segment.size.get(),
            size: u64::try_from(size).unwrap_or(u64::MAX),
            base_offset: info.base_offset,
            last_offset: info.last_offset,
            max_timestamp: info.max_timestamp,
            info: Some(info),
        };
        self.enqueue(&segment, batch, info.base_offset, info.next_offset());
        segment.on_append(&header, &config);
        self.log_end_offset.set(info.next_offset());
        self.note_producer(&segment, &info, marker.as_ref(), now);
        Ok(Appended {
            first_offset: info.base_offset,
            last_offset: info.last_offset,
            max_timestamp: info.max_timestamp,
            duplicate: false,
        })
    }

    /// Notes that this replica leads from `leader_epoch` on, even if nothing is ever written in it (KAFKA-7415); durable
    /// when done. On a full disk the replica leads all the same, for whoever reads: the file follows before the first
    /// record of the epoch.
    ///
    /// # Errors
    /// Why the epoch file could not be written.
    pub async fn start_leader_epoch(&self, leader_epoch: LeaderEpoch) -> Result<(), LogError> {
        let _structure = self.structure.enter().await;
        self.check_readable()?;
        let start_offset = self.log_end_offset.get();
        match self.write_epoch(leader_epoch, start_offset).await {
            Err(LogError::Full | LogError::Exhausted) => {
                self.epochs.borrow_mut().assign(leader_epoch, start_offset);
                self.epochs_ahead.set(true);
                Ok(())
            }
            written => written,
        }
    }

    /// The batch as it will lie in the log.
    fn assigned(
        &self,
        info: &BatchInfo,
        origin: AppendOrigin,
        leader_epoch: LeaderEpoch,
    ) -> Result<BatchInfo, AppendError> {
        let end = self.log_end_offset.get();
        let info = match origin {
            AppendOrigin::Replication if info.base_offset < end => {
                return Err(AppendError::OutOfOrder { first: info.base_offset, expected: end });
            }
            AppendOrigin::Replication => *info,
            AppendOrigin::Client(_) | AppendOrigin::Coordinator(_) => info.assigned(end, leader_epoch),
        };
        // The last offset a log can hold is one below the largest number, so that there is a next one.
        if info.last_offset.get() == i64::MAX {
            return Err(AppendError::Malformed);
        }
        Ok(info)
    }

    fn incoming(&self, info: &BatchInfo, now: TimestampMs) -> Incoming {
        // A batch of a client counts from 0; one from a leader may leave a gap.
        let base_offset = self.log_end_offset.get().max(info.base_offset);
        Incoming {
            base_offset,
            last_offset: base_offset.plus(info.last_offset.since(info.base_offset)),
            size: u64::try_from(info.size_in_bytes).unwrap_or(u64::MAX),
            max_timestamp: info.max_timestamp,
            now,
        }
    }

    /// Updates the producers, and the transaction index when a transaction ended by an abort.
    fn note_producer(
        &self,
        segment: &Segment<R>,
        info: &BatchInfo,
        marker: Option<&EndTxnMarker>,
        appended: TimestampMs,
    ) {
        let mut producers = self.producers.borrow_mut();
        if let Some(completed) = producers.update(info, marker, appended) {
            let aborted = producers.aborted(&completed);
            let indexed = aborted.is_none_or(|txn| segment.add_txn(txn));
            // Without its index entry an aborted transaction must go on holding the last stable offset back.
            if indexed {
                producers.complete(&completed);
            }
        }
        producers.set_map_end_offset(info.next_offset());
    }

    /// Brings an epoch into the file, then into the cache: the file may know too much, never too little (S-16).
    async fn write_epoch(&self, leader_epoch: LeaderEpoch, start_offset: Offset) -> Result<(), LogError> {
        if !self.epochs.borrow().needs_assign(leader_epoch, start_offset) {
            return Ok(());
        }
        let mut changed = self.epochs.borrow().clone();
        changed.assign(leader_epoch, start_offset);
        self.write_epoch_file(changed.to_text()).await?;
        self.epochs.replace(changed);
        Ok(())
    }

    pub(super) async fn write_epoch_file(&self, text: String) -> Result<(), LogError> {
        let written = self.replace_epoch_file(text).await;
        written.map_err(|error| self.failed("write of the epoch file", &error))
    }

    pub(super) async fn replace_epoch_file(&self, text: String) -> io::Result<()> {
        if self.epochs_found.take().is_none_or(|found| *found != *text.as_bytes()) {
            let path = self.dir.join(LEADER_EPOCH_CHECKPOINT);
            replace_file(&self.runtime, &path, Bytes::from(text)).await?;
        }
        self.epochs_behind.set(false);
        self.epochs_ahead.set(false);
        Ok(())
    }

    /// Lets go of epoch entries on disk that the cache has dropped.
    pub(super) async fn write_epochs_if_behind(&self) -> Result<(), LogError> {
        if !self.epochs_behind.get() {
            return Ok(());
        }
        let text = self.epochs.borrow().to_text();
        self.write_epoch_file(text).await
    }

    /// Takes a full log back into service when its disk has room for the batch.
    pub(super) async fn resume_if_space(&self, batch_bytes: u64) -> Result<(), LogError> {
        let Status::Full { cutting, since } = self.status.get() else { return self.check_changeable() };
        let now = self.runtime.now();
        if cutting || now.nanos_since(since) < FULL_RETRY_NANOS {
            return Err(LogError::Full);
        }
        let space = self.runtime.dir(DirOp::Space(self.dir.to_path_buf())).await;
        let usable = match space {
            Ok(DirDone::Space { usable, .. }) => usable,
            Ok(_) => 0,
            Err(error) => return Err(self.failed("look at the free space", &error)),
        };
        // It may have failed meanwhile.
        let Status::Full { .. } = self.status.get() else { return self.check_changeable() };
        if usable < batch_bytes.saturating_add(FULL_RESUME_BYTES) {
            self.status.set(Status::Full { cutting: false, since: now });
            return Err(LogError::Full);
        }
        tracing::info!(partition = %self.partition, usable, "disk has space again, log takes appends");
        self.status.set(Status::Online);
        Ok(())
    }
}

fn check_size(info: &BatchInfo, limit: u32) -> Result<(), AppendError> {
    let size = info.size_in_bytes;
    if u32::try_from(size).is_ok_and(|size| size <= limit) {
        return Ok(());
    }
    Err(AppendError::RecordListTooLarge { size, limit })
}

/// What a control batch says; one that cannot be read is refused before it gets an offset.
fn marker_of(batch: &[u8], info: &BatchInfo) -> Result<Option<EndTxnMarker>, AppendError> {
    if !info.attributes.is_control() {
        return Ok(None);
    }
    let view = BatchView::parse(batch).map_err(|_| AppendError::Malformed)?;
    EndTxnMarker::read(&view).map_err(|_| AppendError::Malformed)
}

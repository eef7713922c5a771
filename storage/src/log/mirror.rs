//! A log that becomes a copy of another one on the same shard: a move between log dirs (KIP-113). Takes batch after batch
//! as they are, in bounded steps, and follows the log start; knows neither why nor how fast. Whoever calls keeps compaction
//! and retention of both logs still meanwhile, so that nothing that was copied changes.

use bytes::BytesMut;
use protocol::records::batch::BatchInfo;
use protocol::types::{Offset, TimestampMs};

use super::header::{self, Header};
use super::recovery::crc_is_valid;
use super::segment::Incoming;
use super::writer::BatchBuffer;
use super::{AppendError, Log, LogError, ReadError, ReadRequest};
use crate::io::Runtime;
use crate::producer_state::AppendOrigin;

/// What a step has copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of batches.
    pub bytes: u64,
    /// Nothing that the source had written was left.
    pub is_all: bool,
}

/// Why a step did not copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The source does not give it.
    #[error("the log that is copied: {0}")]
    Source(#[from] ReadError),
    /// The copy does not take it.
    #[error("the copy: {0}")]
    Target(#[from] AppendError),
    /// What the source holds here is no batch: it is damaged.
    #[error("no batch with a valid checksum at offset {at}")]
    Batch {
        /// Where.
        at: Offset,
    },
}

impl From<LogError> for CopyError {
    fn from(error: LogError) -> Self {
        Self::Target(error.into())
    }
}

impl<R: Runtime> Log<R> {
    /// Cuts off what the source does not have, as its history says: `source_end` is where it ended before it took any
    /// append that this log may not know of. Once, before the first [`Log::copy_from`]; this log is nobody's yet.
    ///
    /// # Errors
    /// A failure of this log.
    pub async fn cut_to_common(&self, source: &Self, source_end: Offset) -> Result<(), LogError> {
        loop {
            let (end, latest) = (self.log_end_offset.get(), self.latest_epoch());
            let common = match latest {
                None => Some((end.min(source_end), false)),
                Some(epoch) => source
                    .end_offset_for_epoch(epoch)
                    .map(|(found, offset)| (end.min(source_end).min(offset), found < epoch)),
            };
            let Some((to, is_older)) = common else {
                return self.restart_at(source.log_start_offset()).await;
            };
            if to < end {
                self.truncate_to(to).await?;
            }
            if !is_older {
                return Ok(());
            }
            if self.latest_epoch() == latest {
                return self.restart_at(source.log_start_offset()).await;
            }
        }
    }

    /// Appends what the source has written from this log's end on: one read of at most `max_bytes`, but one batch at least.
    /// All of it is written when this returns. Nobody else appends.
    ///
    /// # Errors
    /// Why nothing more was copied; what was copied before stays.
    pub async fn copy_from(
        &self,
        source: &Self,
        max_bytes: usize,
        now: TimestampMs,
    ) -> Result<Copied, CopyError> {
        let start = source.log_start_offset();
        if self.log_end_offset.get() < start {
            // The source has let go of it.
            self.restart_at(start).await?;
        }
        let (from, upper_bound) = (self.log_end_offset.get(), source.written_offset());
        let mut bytes = 0;
        if from < upper_bound {
            let request = ReadRequest { from, max_bytes, upper_bound, min_one_batch: true };
            match source.copy(request).await {
                Ok(Some(batches)) => bytes = self.take_batches(&batches, now).await?,
                Ok(None) if source.log_start_offset() > from => {}
                // Offsets without records: compaction has left none.
                Ok(None) => self.skip_to(upper_bound).await?,
                Err(ReadError::OffsetOutOfRange { .. }) if source.log_start_offset() > from => {}
                Err(error) => return Err(error.into()),
            }
        }
        let end = self.log_end_offset.get();
        self.until_written(end).await?;
        self.advance_log_start(source.log_start_offset().min(end)).await?;
        Ok(Copied { bytes, is_all: end >= source.written_offset() })
    }

    /// Appends the whole ones of some batches, of any format.
    async fn take_batches(&self, batches: &[u8], now: TimestampMs) -> Result<u64, CopyError> {
        let (mut rest, mut taken) = (batches, 0_u64);
        while !rest.is_empty() {
            let whole = header::parse(rest, 0).ok().and_then(|found| {
                let size = usize::try_from(found.size).ok()?;
                rest.split_at_checked(size).map(|(batch, others)| (found, batch, others))
            });
            let at = self.log_end_offset.get();
            match whole {
                Some((found, batch, others)) if crc_is_valid(batch) => {
                    match &found.info {
                        Some(info) => self.take_batch(batch, info, now).await?,
                        None => self.take_old(batch, &found, now).await?,
                    }
                    rest = others;
                }
                // The last one may be cut.
                None if taken > 0 => break,
                Some(_) | None => return Err(CopyError::Batch { at }),
            }
            taken = taken.saturating_add(1);
        }
        if taken == 0 {
            return Err(CopyError::Batch { at: self.log_end_offset.get() });
        }
        Ok(u64::try_from(batches.len()).unwrap_or(u64::MAX))
    }

    async fn take_batch(&self, bytes: &[u8], info: &BatchInfo, now: TimestampMs) -> Result<(), CopyError> {
        let end = self.log_end_offset.get();
        if info.base_offset < end && info.last_offset >= end && self.size_bytes() == 0 {
            // The log start of the source lies inside its first batch.
            self.restart_at(info.base_offset).await?;
        }
        let epoch = info.partition_leader_epoch;
        if self.must_prepare(info, epoch, now) {
            self.prepare(info, AppendOrigin::Replication, epoch, now).await?;
        }
        self.append(BytesMut::from(bytes), info, AppendOrigin::Replication, epoch, now)?;
        Ok(())
    }

    /// The same for a message, or a wrapper of several, of a format before 2: it tells neither its first offset nor an epoch,
    /// and no producer.
    async fn take_old(&self, bytes: &[u8], found: &Header, now: TimestampMs) -> Result<(), CopyError> {
        let end = self.log_end_offset.get();
        if found.last_offset < end {
            return Err(AppendError::OutOfOrder { first: found.last_offset, expected: end }.into());
        }
        let incoming = Incoming {
            base_offset: end.max(Offset::new(found.last_offset.get().saturating_sub(i64::from(i32::MAX)))),
            last_offset: found.last_offset,
            size: found.size,
            max_timestamp: found.max_timestamp,
            now,
        };
        {
            let structure = self.structure.enter().await;
            self.resume_if_space(found.size).await?;
            if self.active().must_roll(&self.config(), &incoming) {
                self.roll(incoming.base_offset, &structure).await?;
            }
        }
        // Nothing is awaited from here on (S-13).
        self.check_changeable()?;
        let segment = self.active();
        let header = Header { position: segment.size.get(), ..*found };
        let buffer = BatchBuffer::from(BytesMut::from(bytes));
        self.enqueue(&segment, buffer, header.base_offset, header.next_offset());
        segment.on_append(&header, &self.config());
        self.log_end_offset.set(header.next_offset());
        self.producers.borrow_mut().set_map_end_offset(header.next_offset());
        Ok(())
    }
}

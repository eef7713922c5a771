//! A segment that compaction writes: its log and its indexes, under names that a start removes (storage.md 7.6, step 0). Knows
//! no source; decides nothing.

use std::rc::Rc;

use bytes::BytesMut;
use protocol::types::Offset;

use super::pacer::Pacer;
use super::{CompactionDamage, CompactionError};
use crate::checkpoint::write_all;
use crate::config::LogConfig;
use crate::index::txn::AbortedTxn;
use crate::io::{DirOp, File, Open, Runtime};
use crate::log::segment::{Indexes, Segment};
use crate::log::{Log, Status, header};
use crate::names::{SegmentFileKind, SegmentFileName, SegmentFileState};

/// The files of a segment that are swapped, in the order in which Kafka renames them.
pub(super) const SWAPPED: [SegmentFileKind; 4] = [
    SegmentFileKind::Log,
    SegmentFileKind::OffsetIndex,
    SegmentFileKind::TimeIndex,
    SegmentFileKind::TxnIndex,
];

/// So much is written between two syncs: a segment's worth at once would keep the disk from whoever waits for it.
const SYNC_BYTES: u64 = 8 << 20;

/// See the head of this file.
pub(super) struct Output<'a, R: Runtime> {
    log: &'a Log<R>,
    config: Rc<LogConfig>,
    base_offset: Offset,
    file: R::File,
    indexes: Indexes,
    /// Bytes in the file.
    written: u64,
    /// Those of them that are durable.
    synced: u64,
    /// Bytes behind them.
    buffer: BytesMut,
    buffer_bytes: usize,
}

impl<'a, R: Runtime> Output<'a, R> {
    pub(super) async fn create(
        log: &'a Log<R>,
        base_offset: Offset,
        buffer_bytes: usize,
    ) -> Result<Self, CompactionError> {
        let path = log.output_path(base_offset, SegmentFileKind::Log, SegmentFileState::Cleaned);
        let file = log.runtime.open(&path, Open::CreateEmpty).await;
        let file = file.map_err(|error| log.failed("creation of a compacted segment", &error))?;
        let config = log.config();
        let indexes = Indexes::new(base_offset, &config);
        let buffer = BytesMut::new();
        Ok(Self { log, config, base_offset, file, indexes, written: 0, synced: 0, buffer, buffer_bytes })
    }

    /// Adds one batch, or one message of an old format.
    pub(super) async fn put(&mut self, batch: &[u8], pacer: &mut Pacer<R>) -> Result<(), CompactionError> {
        let position = self.written.saturating_add(u64::try_from(self.buffer.len()).unwrap_or(u64::MAX));
        let damaged = |damage| CompactionError::Damaged { base_offset: self.base_offset, position, damage };
        let found = header::parse(batch, position).map_err(|_| damaged(CompactionDamage::NoBatch))?;
        if i32::try_from(found.last_offset.since(self.base_offset)).is_err() {
            return Err(damaged(CompactionDamage::OffsetRange));
        }
        self.indexes.on_batch(&found, self.config.index_interval_bytes);
        self.buffer.extend_from_slice(batch);
        if self.buffer.len() >= self.buffer_bytes { self.flush(pacer).await } else { Ok(()) }
    }

    /// Adds entries to the transaction index. Markers are met in the order of the log: one that is behind its predecessor is of a
    /// transaction index that is damaged, and without its entry an aborted transaction would be read as a committed one.
    pub(super) fn add_aborted(&mut self, transactions: Vec<AbortedTxn>) -> Result<(), CompactionDamage> {
        for txn in transactions {
            self.indexes.txns.append(txn).map_err(CompactionDamage::Transaction)?;
        }
        Ok(())
    }

    async fn flush(&mut self, pacer: &mut Pacer<R>) -> Result<(), CompactionError> {
        let bytes = self.buffer.split().freeze();
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let written = write_all(&self.file, bytes, self.written).await;
        written.map_err(|error| self.log.failed("write of a compacted segment", &error))?;
        self.written = self.written.saturating_add(len);
        if self.written.saturating_sub(self.synced) >= SYNC_BYTES {
            let synced = self.file.sync_data().await;
            synced.map_err(|error| self.log.failed("sync of a compacted segment", &error))?;
            self.synced = self.written;
        }
        pacer.moved(len, || self.log.check_compacting()).await
    }

    /// Makes everything durable and gives the files the time of the last source: the segment, which still has its files
    /// under other names.
    pub(super) async fn finish(
        mut self,
        modified_ms: i64,
        pacer: &mut Pacer<R>,
    ) -> Result<Rc<Segment<R>>, CompactionError> {
        if !self.buffer.is_empty() {
            self.flush(pacer).await?;
        }
        self.indexes.rule.close(&mut self.indexes.times);
        let written = self.write_files(modified_ms).await;
        written.map_err(|error| self.log.failed("write of a compacted segment", &error))?;
        // Before any of them gets the name of complete output: half of the names must not outlive a power cut.
        let synced = self.log.sync_dir().await;
        synced.map_err(|error| self.log.broken("sync of the directory", &error))?;
        let dir = self.log.dir.clone();
        let Self { log, config, base_offset, file, indexes, written, .. } = self;
        Ok(Segment::written(&log.runtime, dir, base_offset, (file, written), (indexes, &config)))
    }

    async fn write_files(&mut self, modified_ms: i64) -> std::io::Result<()> {
        let runtime = &self.log.runtime;
        self.file.sync_data().await?;
        for kind in SWAPPED {
            let path = self.log.output_path(self.base_offset, kind, SegmentFileState::Cleaned);
            if kind != SegmentFileKind::Log {
                let unwritten = match kind {
                    SegmentFileKind::OffsetIndex => self.indexes.offsets.unwritten(),
                    SegmentFileKind::TimeIndex => self.indexes.times.unwritten(),
                    _ => self.indexes.txns.unwritten(),
                };
                if kind == SegmentFileKind::TxnIndex && unwritten.is_none() {
                    continue;
                }
                let file = runtime.open(&path, Open::CreateEmpty).await?;
                if let Some(write) = unwritten {
                    write_all(&file, write.bytes, write.at).await?;
                }
                file.sync_data().await?;
            }
            runtime.dir(DirOp::SetModified { path, modified_ms }).await?;
        }
        let Indexes { offsets, times, txns, .. } = &mut self.indexes;
        offsets.mark_written(offsets.size_bytes());
        times.mark_written(times.size_bytes());
        txns.mark_written(txns.size_bytes());
        Ok(())
    }
}

impl<R: Runtime> Log<R> {
    /// The name of a file of a segment in some state of its life.
    pub(super) fn output_path(
        &self,
        base_offset: Offset,
        kind: SegmentFileKind,
        state: SegmentFileState,
    ) -> std::path::PathBuf {
        self.dir.join(SegmentFileName::plain(base_offset, kind).with_state(state).to_string())
    }

    /// Removes output that will not be used; answers why, or that the log has failed over it.
    pub(super) async fn discard_output(&self, base_offset: Offset, why: CompactionError) -> CompactionError {
        if matches!(self.status.get(), Status::Offline { .. }) {
            // Of a failed dir nothing is touched any more.
            return why;
        }
        match self.remove_output(base_offset).await {
            Ok(()) => why,
            // A start after a crash would take what is left for a sign that a later swap was not complete.
            Err(error) => self.broken("removal of a compacted segment", &error).into(),
        }
    }

    /// As long as one file is not renamed none is taken for complete output. A power cut may bring names back, all of them
    /// first ones, or with what was renamed first: the sync that ends the next output, and every flush, takes them for good.
    async fn remove_output(&self, base_offset: Offset) -> std::io::Result<()> {
        for state in [SegmentFileState::Swap, SegmentFileState::Cleaned] {
            // The log last: an index without one would be taken for that of the segment in use.
            for kind in SWAPPED.into_iter().rev() {
                let path = self.output_path(base_offset, kind, state);
                self.runtime.dir(DirOp::Unlink(path)).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::types::{ProducerId, TopicName, TopicPartition};

    use super::*;
    use crate::io::sim::SimRuntime;
    use crate::log::{OpenOptions, TailBudget};

    #[test]
    fn an_aborted_transaction_that_does_not_follow_the_one_before_is_damage() {
        let runtime = SimRuntime::new(1);
        let inside = runtime.clone();
        runtime.block_on(async move {
            let partition = TopicPartition::new(TopicName::new("t"), 0);
            let options = OpenOptions::new(LogConfig::default(), TailBudget::new(1 << 10));
            let log = Log::open(inside, Path::new("/t-0"), partition, options).await.unwrap();
            let mut output = Output::create(&log, Offset::ZERO, 512).await.unwrap();
            let ends_at = |last: i64| AbortedTxn {
                producer_id: ProducerId::new(1),
                first_offset: Offset::ZERO,
                last_offset: Offset::new(last),
                last_stable_offset: Offset::new(last),
            };
            assert_eq!(output.add_aborted(vec![ends_at(3), ends_at(5)]), Ok(()));
            let failed = output.add_aborted(vec![ends_at(4)]);
            assert!(matches!(failed, Err(CompactionDamage::Transaction(_))), "{failed:?}");
        });
    }
}

//! Copies what stays of a segment into the output of compaction, batch by batch. What stays is decided by
//! [`crate::compaction::retention`]; a batch of which everything stays is copied as it is.

use std::collections::BTreeMap;
use std::rc::Rc;

use protocol::records::batch::BatchView;
use protocol::records::legacy::Unpacked;
use protocol::records::reader::Records;
use protocol::records::rewrite::{BatchRewrite, emptied};
use protocol::types::{ProducerId, TimestampMs};

use super::output::Output;
use super::{
    CompactionDamage, CompactionError, Round, control_of, damaged, old_message, size_of_record, wall,
};
use crate::compaction::OffsetMap;
use crate::compaction::retention::{Fate, LastOfProducer, PassRules, Seen};
use crate::compaction::transactions::CleanedTransactions;
use crate::io::Runtime;
use crate::log::header::Header;
use crate::log::segment::Segment;

/// The copy of one group.
pub(super) struct Copy<'c, 'r, 'l, R: Runtime> {
    round: &'c mut Round<'r, R>,
    map: &'c OffsetMap,
    transactions: &'c mut CleanedTransactions,
    output: &'c mut Output<'l, R>,
    producers: Rc<BTreeMap<ProducerId, LastOfProducer>>,
    now: TimestampMs,
    delete_retention_ms: i64,
    /// Of the batch at hand, which records stay.
    keeps: Vec<bool>,
}

impl<'c, 'r, 'l, R: Runtime> Copy<'c, 'r, 'l, R> {
    pub(super) fn new(
        round: &'c mut Round<'r, R>,
        map: &'c OffsetMap,
        transactions: &'c mut CleanedTransactions,
        output: &'c mut Output<'l, R>,
    ) -> Self {
        let (log, producers) = (round.log, round.producers.clone());
        let delete_retention_ms = log.config().delete_retention_ms;
        let now = wall(&log.runtime);
        Self { round, map, transactions, output, producers, now, delete_retention_ms, keeps: Vec::new() }
    }

    /// Copies one segment; tombstones of old formats stay if it was written to after `tombstones_after`.
    pub(super) async fn segment(
        &mut self,
        source: &Rc<Segment<R>>,
        tombstones_after: i64,
    ) -> Result<(), CompactionError> {
        let log = self.round.log;
        let end = log.segment_after(source.base_offset).map_or(log.log_end_offset(), |next| next.base_offset);
        let aborted = self.round.aborted(source.base_offset, end).await?;
        self.transactions.add_aborted(aborted);
        let tombstones_stay = self.round.modified(source).await? > tombstones_after;
        let mut walk = self.round.walk(source, source.base_offset).await?;
        while let Some(found) = self.round.step(&mut walk, source).await? {
            self.round.done.bytes_read = self.round.done.bytes_read.saturating_add(found.size);
            let bytes = walk.whole(&found).await.map_err(|error| log.compaction_failed(source, &error))?;
            let done = if found.info.is_some() {
                self.batch(bytes, &found).await
            } else {
                self.message(bytes, tombstones_stay).await
            };
            // One by one, so that the marker at fault is told of.
            let kept = self.transactions.take_kept();
            let done = done.and_then(|()| self.output.add_aborted(kept).map_err(Failed::Damage));
            match done {
                Ok(()) => {}
                Err(Failed::Damage(damage)) => return Err(damaged(source, &found, damage)),
                Err(Failed::Round(error)) => return Err(error),
            }
        }
        Ok(())
    }

    async fn batch(&mut self, bytes: &[u8], found: &Header) -> Result<(), Failed> {
        let view = BatchView::parse(bytes).map_err(|_| CompactionDamage::NoBatch)?;
        if !view.crc_is_valid() {
            return Err(CompactionDamage::Checksum.into());
        }
        let info = view.info();
        let control = info.attributes.is_control().then(|| control_of(&view));
        let rules = PassRules {
            map: self.map,
            now: self.now,
            delete_retention_ms: self.delete_retention_ms,
            first_uncleanable: self.round.cleanable.first_uncleanable,
            producers: &self.producers,
        };
        let rule = rules.on_batch(&info, control, self.transactions);
        let mut seen = Seen::default();
        self.keeps.clear();
        if !rule.is_dropped() {
            let mut records = Records::of(&view).map_err(CompactionDamage::from)?;
            while let Some(record) = records.next_record().map_err(CompactionDamage::from)? {
                let offset = found.base_offset.plus(i64::from(record.offset_delta));
                let keeps = rules.keeps(&rule, offset, (record.key, record.value.is_some()), &mut seen);
                self.keeps.push(keeps);
                self.round.pacer.step(size_of_record(&record)).await;
            }
        }
        match rules.fate(&rule, &seen) {
            Fate::Drop => {}
            Fate::Keep => self.output.put(bytes, &mut self.round.pacer).await?,
            Fate::Empty => {
                let header = emptied(&view).map_err(CompactionDamage::from)?;
                self.output.put(&header, &mut self.round.pacer).await?;
            }
            Fate::Rewrite { horizon } => self.rewrite(&view, horizon).await?,
        }
        self.count(&seen);
        Ok(())
    }

    /// Writes the records that stay, in a second pass: a compressed batch is never in memory as a whole.
    async fn rewrite(&mut self, view: &BatchView<'_>, horizon: Option<TimestampMs>) -> Result<(), Failed> {
        let mut rewrite = BatchRewrite::new(view, horizon).map_err(CompactionDamage::from)?;
        let mut records = Records::of(view).map_err(CompactionDamage::from)?;
        let mut at = 0_usize;
        while let Some(record) = records.next_record().map_err(CompactionDamage::from)? {
            if self.keeps.get(at).is_some_and(|keeps| *keeps) {
                rewrite.push(&record).map_err(CompactionDamage::from)?;
            }
            at = at.saturating_add(1);
            self.round.pacer.step(size_of_record(&record)).await;
        }
        let batch = rewrite.finish().map_err(CompactionDamage::from)?;
        self.round.pacer.look().await;
        Ok(self.output.put(&batch, &mut self.round.pacer).await?)
    }

    /// A message of an old format, or a wrapper. A wrapper that loses some of its messages is written as the others, not
    /// compressed.
    async fn message(&mut self, bytes: &[u8], tombstones_stay: bool) -> Result<(), Failed> {
        let view = old_message(bytes)?;
        let rules = PassRules {
            map: self.map,
            now: self.now,
            delete_retention_ms: self.delete_retention_ms,
            first_uncleanable: self.round.cleanable.first_uncleanable,
            producers: &self.producers,
        };
        let rule = rules.on_old_message(tombstones_stay);
        let mut seen = Seen::default();
        let mut left = Vec::new();
        let old = if view.is_compressed() {
            let unpacked = Unpacked::of(&view).map_err(CompactionDamage::from)?;
            for message in unpacked.messages() {
                let message = message.map_err(CompactionDamage::from)?;
                if rules.keeps(&rule, message.offset, (message.key, message.value.is_some()), &mut seen) {
                    left.push(message);
                }
            }
            let mut alone = Vec::new();
            if seen.dropped > 0 {
                for message in &left {
                    let mut bytes = Vec::new();
                    unpacked.write(message, &mut bytes).ok_or(CompactionDamage::NoBatch)?;
                    alone.push(bytes);
                }
            }
            alone
        } else {
            let key = view.key().map_err(CompactionDamage::from)?;
            let value = view.value().map_err(CompactionDamage::from)?;
            rules.keeps(&rule, view.last_offset(), (key, value.is_some()), &mut seen);
            Vec::new()
        };
        match rules.fate(&rule, &seen) {
            Fate::Drop | Fate::Empty => {}
            Fate::Keep => self.output.put(bytes, &mut self.round.pacer).await?,
            Fate::Rewrite { .. } => {
                for message in &old {
                    self.output.put(message, &mut self.round.pacer).await?;
                }
            }
        }
        self.count(&seen);
        Ok(())
    }

    fn count(&mut self, seen: &Seen) {
        let done = &mut self.round.done;
        done.records_kept = done.records_kept.saturating_add(seen.kept);
        done.records_read = done.records_read.saturating_add(seen.kept).saturating_add(seen.dropped);
    }
}

/// Why a batch was not copied.
enum Failed {
    Damage(CompactionDamage),
    Round(CompactionError),
}

impl From<CompactionDamage> for Failed {
    fn from(damage: CompactionDamage) -> Self {
        Self::Damage(damage)
    }
}

impl From<CompactionError> for Failed {
    fn from(error: CompactionError) -> Self {
        Self::Round(error)
    }
}

//! What the partitions of a shard tell whoever scrapes: traffic as it happens, by Kafka's rules of what counts, and what
//! there is at the moment. Changes nothing.

use std::cell::Cell;

use protocol::records::refusal::{ProduceError, RecordFaultKind};
use storage::io::Runtime;
use storage::log::{AppendError, LogState};

use super::ask::{AppendRefusal, FetchedData, PartitionError, Reader};
use super::replica::Partition;
use super::service::PartitionService;
use crate::metrics::names::Family;
use crate::metrics::snapshot::{Led, PartitionRow, ShardSnapshot, whole};
use crate::shard::pace::Pace;

/// Bytes that were counted as read and then not handed out. Counters never fall: what is read next counts less.
#[derive(Default)]
pub(super) struct TakenBack {
    consumers: Cell<u64>,
    followers: Cell<u64>,
}

impl TakenBack {
    fn of(&self, reader: Reader) -> &Cell<u64> {
        if let Reader::Replica { .. } = reader { &self.followers } else { &self.consumers }
    }
}

impl<R: Runtime> Partition<R> {
    pub(super) fn count_append(&self, records: i64, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(0);
        self.counts.appended(u64::try_from(records).unwrap_or(0), bytes);
    }

    /// A batch was refused. What clients know and heal is no failure, as in Kafka: a partition that is not here, a batch
    /// too large or damaged, a log that is full or offline.
    pub(super) fn count_refusal(&self, refusal: &AppendRefusal, bytes: usize) {
        let metrics = &self.hub.metrics;
        match refusal {
            AppendRefusal::Partition(_) | AppendRefusal::Append(AppendError::Log(_)) => {}
            AppendRefusal::Invalid(ProduceError::TooLarge { .. })
            | AppendRefusal::Append(AppendError::RecordListTooLarge { .. }) => {
                self.counts.rejected(u64::try_from(bytes).unwrap_or(0));
            }
            AppendRefusal::Invalid(ProduceError::BadLength(_)) => {}
            AppendRefusal::Invalid(ProduceError::BadMagic(_)) => metrics.invalid_magic.inc(),
            AppendRefusal::Invalid(ProduceError::BadCrc { .. }) => metrics.invalid_crc.inc(),
            AppendRefusal::Invalid(error) => {
                match error {
                    ProduceError::BaseOffset(_)
                    | ProduceError::BadOffsetRange { .. }
                    | ProduceError::BadCount { .. }
                    | ProduceError::NoSequence { .. }
                    | ProduceError::BadOffsetDelta { .. }
                    | ProduceError::WrongRecordCount { .. } => metrics.invalid_offset_or_sequence.inc(),
                    ProduceError::OldMagic(_) => metrics.invalid_magic.inc(),
                    _ => {}
                }
                let mut faults = error.record_faults().iter();
                if faults.any(|fault| fault.kind == RecordFaultKind::NoKey) {
                    metrics.no_key_compacted.inc();
                }
                self.counts.produce_failed();
            }
            AppendRefusal::Append(_)
            | AppendRefusal::NotEnoughReplicas { .. }
            | AppendRefusal::NotEnoughReplicasAfterAppend { .. }
            | AppendRefusal::TimedOut => self.counts.produce_failed(),
        }
    }

    /// Counts what a fetch was given, less what others were not.
    pub(super) fn count_read(&self, reader: Reader, outcome: &Result<FetchedData, PartitionError>) {
        let bytes = outcome.as_ref().map_or(0, |data| u64::from(data.bytes));
        let taken_back = self.taken_back.of(reader);
        let count = bytes.saturating_sub(taken_back.get());
        taken_back.set(taken_back.get().saturating_sub(bytes));
        self.counts.read(count, matches!(reader, Reader::Replica { .. }));
        if outcome.as_ref().err() == Some(&PartitionError::Offline)
            && matches!(self.log().state(), LogState::Online | LogState::Full)
        {
            self.counts.fetch_failed();
        }
    }

    /// So many bytes were counted and are not handed out.
    pub(super) fn take_back(&self, reader: Reader, bytes: u32) {
        let taken_back = self.taken_back.of(reader);
        taken_back.set(taken_back.get().saturating_add(u64::from(bytes)));
    }

    /// Counts a fetch as it arrives, however often it is looked at until it is answered.
    pub(super) fn count_fetch(&self) {
        self.counts.fetch_requested();
    }

    fn row(&self) -> PartitionRow {
        let (high_watermark, log) = (self.high_watermark(), self.log());
        let unstable = log.first_unstable_offset(high_watermark);
        let stable = unstable.map_or(high_watermark, |offset| offset.min(high_watermark));
        PartitionRow {
            topic: self.name.topic.clone(),
            partition: self.name.partition,
            size: log.size_bytes(),
            log_start_offset: log.log_start_offset().get(),
            log_end_offset: log.log_end_offset().get(),
            segments: log.segment_count(),
            is_offline: matches!(log.state(), LogState::Offline { .. }),
            led: self.led(),
            last_stable_offset_lag: high_watermark.since(stable),
        }
    }

    fn led(&self) -> Option<Led> {
        let machine = self.machine.borrow();
        let (isr, min_isr) = machine.committed_isr();
        machine.is_leader().then(|| Led { isr, replicas: machine.replica_count(), min_isr })
    }
}

impl<R: Runtime> PartitionService<R> {
    /// Tells of every partition, a slice at a time.
    pub async fn tell(&self, out: &mut ShardSnapshot) {
        let (mut producers, mut delayed_appends) = (0usize, 0usize);
        let mut pace = Pace::new(self.runtime());
        let partitions = self.all();
        out.partitions.reserve(partitions.len());
        for partition in partitions {
            out.partitions.push(partition.row());
            producers = producers.saturating_add(partition.log().producer_count());
            delayed_appends = delayed_appends.saturating_add(partition.delayed_appends());
            pace.look().await;
        }
        self.tell_cleaner(out).await;
        out.whole(Family::ProducerIds, producers);
        let (fetches, watched) = {
            let fetches = self.0.hub.fetches.borrow();
            (fetches.len(), fetches.watched())
        };
        for (operation, count, watched) in
            [("Produce", delayed_appends, delayed_appends), ("Fetch", fetches, watched)]
        {
            let labels = vec![("delayedOperation", operation.into())];
            out.push(Family::DelayedOperations, labels.clone(), whole(count));
            out.push(Family::PurgatorySize, labels, whole(watched));
        }
    }
}

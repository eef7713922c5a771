//! The read side of one partition: what a fetch could get, what it gets, and lookups of offsets (replication.md 12.4,
//! storage.md 3). Everything is judged by the state at the time of the read; nothing above `written` is ever shown.
//! Knows no session and no limit across partitions: `service` walks them.

use std::rc::Rc;

use protocol::types::{LeaderEpoch, Offset, TimestampMs};
use smallvec::SmallVec;
use storage::io::Runtime;
use storage::log::{BytesBetween, ReadError, ReadRequest};

use super::ask::{
    AbortedTransaction, EpochEnd, EpochEndAsk, FetchPart, FetchedData, FoundOffset, Isolation, OffsetAsk,
    OffsetTarget, PartitionError, ProbedPart, Reader,
};
use super::machine::{Event, FollowerFetch};
use super::replica::Partition;

/// How much a read may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    /// Bytes at most.
    pub(super) max_bytes: u32,
    /// Whether the first batch is given whole although it has more.
    pub(super) first_batch_whole: bool,
}

/// Offsets as they are at one moment.
struct Bounds {
    high_watermark: Offset,
    last_stable_offset: Offset,
    log_start_offset: Offset,
    /// End of what the reader may see.
    end: Offset,
}

impl<R: Runtime> Partition<R> {
    /// What a fetch could get now. Cheap: neither waits nor reads.
    pub(super) fn probe(&self, isolation: Isolation, reader: Reader, part: &FetchPart) -> ProbedPart {
        if self.is_quiet(part) {
            return ProbedPart::QUIET;
        }
        match self.check_fetch(reader, part) {
            Err(_) | Ok(Some(_)) => return ProbedPart::AT_ONCE,
            Ok(None) => {}
        }
        let end = self.bounds(isolation).end;
        if part.fetch_offset == end {
            return ProbedPart::NOTHING;
        }
        // The log was truncated, or the reader is beyond what it may see: it is answered empty, without waiting.
        if part.fetch_offset > end {
            return ProbedPart::AT_ONCE;
        }
        let max_bytes = u64::from(part.max_bytes);
        match self.log().bytes_between(part.fetch_offset, end) {
            BytesBetween::Bytes(bytes) => {
                ProbedPart { bytes: bytes.min(max_bytes), has_data: true, ..ProbedPart::NOTHING }
            }
            BytesBetween::OlderSegment => {
                ProbedPart { bytes: max_bytes, has_data: true, ..ProbedPart::AT_ONCE }
            }
        }
    }

    /// Reads what was granted.
    ///
    /// # Errors
    /// What the reader is told instead of data.
    pub(super) async fn read(
        &self,
        isolation: Isolation,
        reader: Reader,
        part: &FetchPart,
        grant: Grant,
    ) -> Result<FetchedData, PartitionError> {
        let diverging = self.check_fetch(reader, part)?;
        let bounds = self.bounds(isolation);
        let mut data = FetchedData {
            high_watermark: bounds.high_watermark,
            last_stable_offset: bounds.last_stable_offset,
            log_start_offset: bounds.log_start_offset,
            spans: SmallVec::new(),
            bytes: 0,
            held_back: false,
            aborted: (isolation == Isolation::Committed).then(Vec::new),
            diverging,
            preferred_read_replica: None,
            quiet: None,
        };
        // A follower's own end is not told by moves: it is looked at each time.
        if diverging.is_none() && part.fetch_offset == bounds.end && !matches!(reader, Reader::Replica { .. })
        {
            data.quiet = Some(self.moment());
        }
        if diverging.is_some() || part.fetch_offset >= bounds.end {
            return Ok(data);
        }
        if grant.max_bytes == 0 && !grant.first_batch_whole {
            data.held_back = true;
            return Ok(data);
        }
        let request = ReadRequest {
            from: part.fetch_offset,
            max_bytes: usize::try_from(grant.max_bytes).unwrap_or(usize::MAX),
            upper_bound: bounds.end,
            min_one_batch: grant.first_batch_whole,
        };
        let is_committed = isolation == Isolation::Committed;
        let read = self.ask_log(async |log| {
            let read = log.read(request).await?;
            let aborted = if is_committed && !read.first_batch_incomplete {
                Box::pin(log.aborted_transactions(part.fetch_offset, log.end_bound(&read))).await?
            } else {
                Vec::new()
            };
            Ok::<_, ReadError>((read, aborted))
        });
        let (read, found) = read.await.map_err(|error| self.read_error(part.fetch_offset, &error))?;
        // Behind the first batch of a fetch limits are strict: a batch that does not fit is not begun.
        if read.first_batch_incomplete {
            data.held_back = true;
            return Ok(data);
        }
        if let Some(aborted) = &mut data.aborted {
            aborted.extend(found.into_iter().map(|entry| AbortedTransaction {
                producer_id: entry.producer_id,
                first_offset: entry.first_offset,
            }));
        }
        data.bytes = u32::try_from(read.bytes).unwrap_or(u32::MAX);
        data.spans = read.spans;
        Ok(data)
    }

    /// Notes where a follower is; done once for each fetch, when it arrives.
    pub(super) fn follower_fetched(self: &Rc<Self>, reader: Reader, part: &FetchPart) {
        let Reader::Replica { id, broker_epoch, eligible } = reader else { return };
        // A fetch that diverges or is refused says nothing about what the follower has in common with us (V-32).
        if !matches!(self.check_fetch(reader, part), Ok(None)) {
            return;
        }
        self.apply(Event::FollowerFetched(FollowerFetch {
            replica: id,
            broker_epoch,
            fetch_offset: part.fetch_offset,
            log_start_offset: part.log_start_offset,
            eligible,
        }));
    }

    /// Checks whether the fetch may be served here; says where the reader's history leaves ours, if it does.
    fn check_fetch(&self, reader: Reader, part: &FetchPart) -> Result<Option<EpochEnd>, PartitionError> {
        self.check_online()?;
        let machine = self.machine.borrow();
        match reader {
            Reader::Consumer => machine.check_leader(part.current_leader_epoch)?,
            Reader::ConsumerOfAnyReplica => machine.check_epoch(part.current_leader_epoch)?,
            Reader::Replica { id, .. } => {
                machine.check_leader(part.current_leader_epoch)?;
                machine.check_replica(id, part.current_leader_epoch)?;
            }
        }
        drop(machine);
        let (start, end) = (self.log().log_start_offset(), self.log().log_end_offset());
        let offset = part.fetch_offset;
        let out_of_range = PartitionError::OffsetOutOfRange { offset, start, end };
        if part.last_fetched_epoch >= LeaderEpoch::new(0) {
            let (leader_epoch, end_offset) =
                self.log().end_offset_for_epoch(part.last_fetched_epoch).ok_or(out_of_range)?;
            if offset < start {
                return Err(out_of_range);
            }
            if leader_epoch < part.last_fetched_epoch || end_offset < offset {
                return Ok(Some(EpochEnd { leader_epoch, end_offset }));
            }
        }
        if offset < start || offset > end { Err(out_of_range) } else { Ok(None) }
    }

    fn bounds(&self, isolation: Isolation) -> Bounds {
        let high_watermark = self.high_watermark();
        let unstable = self.log().first_unstable_offset(high_watermark);
        let last_stable_offset = unstable.map_or(high_watermark, |offset| offset.min(high_watermark));
        // In relaxed mode the high watermark may be ahead of what can be read.
        let written = self.log().written_offset();
        let end = match isolation {
            Isolation::LogEnd => written,
            Isolation::HighWatermark => high_watermark.min(written),
            Isolation::Committed => last_stable_offset.min(written),
        };
        Bounds { high_watermark, last_stable_offset, log_start_offset: self.log().log_start_offset(), end }
    }

    pub(super) fn read_error(&self, offset: Offset, error: &ReadError) -> PartitionError {
        match error {
            ReadError::OffsetOutOfRange { log_start_offset, log_end_offset, .. } => {
                PartitionError::OffsetOutOfRange { offset, start: *log_start_offset, end: *log_end_offset }
            }
            ReadError::Log(_) => PartitionError::Offline,
            ReadError::Corrupt { .. } => {
                tracing::error!(partition = %self.name, %offset, %error, "log is damaged");
                PartitionError::Offline
            }
        }
    }

    /// Finds an offset (protocol.md 3.5).
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) async fn find_offset(&self, ask: &OffsetAsk) -> Result<FoundOffset, PartitionError> {
        self.check_online()?;
        if ask.any_replica {
            self.machine.borrow().check_epoch(ask.current_leader_epoch)?;
        } else {
            self.machine.borrow().check_leader(ask.current_leader_epoch)?;
        }
        let bounds = self.bounds(ask.isolation);
        let knows_end =
            ask.isolation == Isolation::LogEnd || self.machine.borrow().high_watermark_is_of_this_epoch();
        match ask.target {
            OffsetTarget::Latest if !knows_end => Err(PartitionError::OffsetNotAvailable),
            OffsetTarget::Latest => Ok(FoundOffset::One {
                offset: bounds.end,
                timestamp: TimestampMs::NONE,
                leader_epoch: self.leader_epoch(),
            }),
            OffsetTarget::Earliest => Ok(FoundOffset::One {
                offset: bounds.log_start_offset,
                timestamp: TimestampMs::NONE,
                leader_epoch: self
                    .log()
                    .epoch_for_offset(bounds.log_start_offset)
                    .unwrap_or(LeaderEpoch::NONE),
            }),
            OffsetTarget::LatestTiered => known(None, true),
            OffsetTarget::MaxTimestamp => {
                let found = self.ask_log(async |log| log.max_timestamp_offset(bounds.end).await).await;
                known(found.map_err(|error| self.read_error(bounds.end, &error))?, knows_end)
            }
            OffsetTarget::At(timestamp) => {
                let found =
                    self.ask_log(async |log| log.offset_for_timestamp(timestamp, bounds.end).await).await;
                known(found.map_err(|error| self.read_error(bounds.end, &error))?, knows_end)
            }
            OffsetTarget::Segments { at, max } => {
                let segments = self.ask_log(async |log| log.segment_times().await).await;
                let segments = segments.map_err(|error| self.read_error(bounds.end, &error))?;
                let now = TimestampMs::new(self.hub.runtime.wall_ms());
                let has_data =
                    self.log().log_end_offset() > segments.last().map_or(Offset::ZERO, |(base, _)| *base);
                let end = has_data.then_some((bounds.end, now));
                // The log may start inside a segment, or behind some.
                let start = bounds.log_start_offset;
                let segments: Vec<_> =
                    segments.into_iter().map(|(base, time)| (base.max(start), time)).collect();
                Ok(FoundOffset::Many(segments_before(&segments, end, at, max)))
            }
        }
    }

    /// Where a leader epoch ends.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn epoch_end(&self, ask: &EpochEndAsk) -> Result<Option<EpochEnd>, PartitionError> {
        self.check_leader(ask.current_leader_epoch)?;
        if ask.leader_epoch == LeaderEpoch::NONE {
            return Ok(None);
        }
        let end = self.log().end_offset_for_epoch(ask.leader_epoch);
        Ok(end.map(|(leader_epoch, end_offset)| EpochEnd { leader_epoch, end_offset }))
    }
}

/// A lookup that found nothing tells so only once the high watermark is of this leader's epoch (KIP-207).
fn known(found: Option<storage::log::FoundOffset>, knows_end: bool) -> Result<FoundOffset, PartitionError> {
    match found {
        Some(found) => Ok(FoundOffset::One {
            offset: found.offset,
            timestamp: found.timestamp,
            leader_epoch: found.leader_epoch.unwrap_or(LeaderEpoch::NONE),
        }),
        None if knows_end => Ok(FoundOffset::One {
            offset: Offset::NONE,
            timestamp: TimestampMs::NONE,
            leader_epoch: LeaderEpoch::NONE,
        }),
        None => Err(PartitionError::OffsetNotAvailable),
    }
}

/// The answer of ListOffsets v0: the newest `max` of the end and the segments' starts whose time is not after `at`.
fn segments_before(
    segments: &[(Offset, TimestampMs)],
    end: Option<(Offset, TimestampMs)>,
    at: TimestampMs,
    max: usize,
) -> Vec<Offset> {
    let all = segments.iter().copied().chain(end).collect::<Vec<_>>();
    let upto = match at.get() {
        -1 => all.len(),
        -2 => all.len().min(1),
        _ => all.iter().rposition(|(_, time)| *time <= at).map_or(0, |place| place + 1),
    };
    all.iter().take(upto).rev().take(max).map(|(offset, _)| *offset).collect()
}

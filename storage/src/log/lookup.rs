//! Offsets by time (storage.md 3, field faults F44 to F46): exact to the record, inside compressed batches too. Knows no
//! isolation level: the caller says how far.

use protocol::records::batch::{BatchView, MAGIC_V2};
use protocol::records::reader;
use protocol::types::{LeaderEpoch, Offset, TimestampMs};

use super::header::Header;
use super::segment::Segment;
use super::walk::{Step, Walk};
use super::{Log, ReadError};
use crate::index::MaxTimestamp;
use crate::io::{DirDone, DirOp, File, Runtime};
use crate::names::SegmentFileKind;

/// A record that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// Its offset.
    pub offset: Offset,
    /// Its own timestamp (F45).
    pub timestamp: TimestampMs,
    /// The leader epoch in which it was written.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// What a walk looks for.
#[derive(Clone, Copy)]
enum Wanted {
    /// The first record at or after a time.
    AtOrAfter(TimestampMs),
    /// The first record that has exactly this time, the greatest of all.
    Greatest(TimestampMs),
}

/// Buffer of a walk over batches that are mostly not looked into.
const WALK_BYTES: usize = 1 << 16;

impl<R: Runtime> Log<R> {
    /// The first record below `upper` whose timestamp is at or after `timestamp`; `None` if there is none.
    ///
    /// # Errors
    /// Damage on the way; a failed log.
    pub async fn offset_for_timestamp(
        &self,
        timestamp: TimestampMs,
        upper: Offset,
    ) -> Result<Option<FoundOffset>, ReadError> {
        self.check_readable()?;
        self.steadily(async || self.find_timestamp(timestamp, upper).await).await
    }

    async fn find_timestamp(
        &self,
        timestamp: TimestampMs,
        upper: Offset,
    ) -> Result<Option<FoundOffset>, ReadError> {
        let upper = upper.min(self.written_offset.get());
        for segment in self.all_segments() {
            if segment.base_offset >= upper {
                break;
            }
            if self.largest_of(&segment).await?.is_some_and(|largest| largest.timestamp < timestamp) {
                continue;
            }
            let start = segment.with(|all| all.times.lookup(timestamp).map(|entry| entry.offset)).flatten();
            let from = start.unwrap_or(segment.base_offset).max(self.log_start_offset.get());
            let found = self.search(&segment, from, upper, Wanted::AtOrAfter(timestamp)).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The first record with the greatest timestamp of the whole log; `None` if no record has a timestamp, or if that one
    /// is not below `upper`: the next best is not looked for (KIP-734).
    ///
    /// # Errors
    /// Damage on the way; a failed log.
    pub async fn max_timestamp_offset(&self, upper: Offset) -> Result<Option<FoundOffset>, ReadError> {
        self.check_readable()?;
        self.steadily(async || self.find_max_timestamp(upper).await).await
    }

    async fn find_max_timestamp(&self, upper: Offset) -> Result<Option<FoundOffset>, ReadError> {
        let written = self.written_offset.get();
        let mut best: Option<FoundOffset> = None;
        for segment in self.all_segments() {
            let Some(largest) = self.largest_of(&segment).await? else { continue };
            if best.is_some_and(|best| best.timestamp >= largest.timestamp) {
                continue;
            }
            // Not written yet: above every bound, and no reader finds it.
            if largest.offset >= written {
                let MaxTimestamp { timestamp, offset } = largest;
                best = Some(FoundOffset { offset, timestamp, leader_epoch: None });
                continue;
            }
            let found = match self.search_greatest(&segment, largest, written).await? {
                Some(found) => Some(found),
                // The greatest one was deleted, below the log start: the answer is the greatest of the others.
                None => self.greatest_below(&segment, written).await?,
            };
            best = [best, found]
                .into_iter()
                .flatten()
                .reduce(|a, b| if b.timestamp > a.timestamp { b } else { a });
        }
        Ok(best.filter(|best| best.offset < upper.min(written)))
    }

    /// Base offset and modification time of each segment, oldest first: what ListOffsets v0 asks for.
    ///
    /// # Errors
    /// A failed log.
    pub async fn segment_times(&self) -> Result<Vec<(Offset, TimestampMs)>, ReadError> {
        // While compaction swaps a segment, its file has another name.
        let _swapping = self.swapping.enter().await;
        let _structure = self.structure.enter().await;
        self.check_readable()?;
        let mut times = Vec::new();
        for segment in self.all_segments() {
            match self.runtime.dir(DirOp::Stat(segment.path(SegmentFileKind::Log))).await {
                Ok(DirDone::Stat { modified_ms, .. }) => {
                    times.push((segment.base_offset, TimestampMs::new(modified_ms)));
                }
                Ok(_) => {}
                Err(error) => self.read_failed(&segment, &error)?,
            }
        }
        Ok(times)
    }

    /// The greatest timestamp of a segment; `None` if no batch has one.
    async fn largest_of(&self, segment: &Segment<R>) -> Result<Option<MaxTimestamp>, ReadError> {
        if let Err(error) = self.load_indexes(segment).await {
            self.read_failed(segment, &error)?;
        }
        Ok(segment.max_timestamp())
    }

    async fn search_greatest(
        &self,
        segment: &Segment<R>,
        greatest: MaxTimestamp,
        upper: Offset,
    ) -> Result<Option<FoundOffset>, ReadError> {
        // The entry's offset is the last of the earliest batch that holds it.
        let from = greatest.offset.max(self.log_start_offset.get());
        self.search(segment, from, upper, Wanted::Greatest(greatest.timestamp)).await
    }

    async fn greatest_below(
        &self,
        segment: &Segment<R>,
        upper: Offset,
    ) -> Result<Option<FoundOffset>, ReadError> {
        let log_start = self.log_start_offset.get();
        let mut greatest: Option<Header> = None;
        let mut walk = match self.walk(segment, log_start).await? {
            Some(walk) => walk,
            None => return Ok(None),
        };
        loop {
            match self.step(&mut walk, segment).await? {
                Some(found) if found.last_offset >= upper => break,
                Some(found) if found.last_offset < log_start => {}
                Some(found) => {
                    if greatest.is_none_or(|before| found.max_timestamp > before.max_timestamp) {
                        greatest = Some(found);
                    }
                }
                None => break,
            }
        }
        let Some(holder) = greatest.filter(|holder| holder.max_timestamp.get() >= 0) else { return Ok(None) };
        self.search(segment, holder.last_offset, upper, Wanted::Greatest(holder.max_timestamp)).await
    }

    /// Walks from the batch that holds `from` to the first record that is wanted.
    async fn search(
        &self,
        segment: &Segment<R>,
        from: Offset,
        upper: Offset,
        wanted: Wanted,
    ) -> Result<Option<FoundOffset>, ReadError> {
        let Some(mut walk) = self.walk(segment, from).await? else { return Ok(None) };
        let least = match wanted {
            Wanted::AtOrAfter(timestamp) | Wanted::Greatest(timestamp) => timestamp,
        };
        while let Some(found) = self.step(&mut walk, segment).await? {
            if found.base_offset >= upper {
                break;
            }
            if found.last_offset < from || found.max_timestamp < least {
                continue;
            }
            let record = match walk.whole(&found).await {
                Ok(bytes) => match record_in(bytes, &found, wanted, self.log_start_offset.get()) {
                    Ok(record) => record,
                    Err(Damaged) => return Err(corrupt(segment, found.position)),
                },
                Err(error) => {
                    self.read_failed(segment, &error)?;
                    return Ok(None);
                }
            };
            if let Some((offset, timestamp)) = record {
                let leader_epoch = self.epoch_for_offset(offset);
                let found = FoundOffset { offset, timestamp, leader_epoch };
                return Ok(Some(found).filter(|found| found.offset < upper));
            }
        }
        Ok(None)
    }

    async fn walk(&self, segment: &Segment<R>, from: Offset) -> Result<Option<Walk<R::File>>, ReadError> {
        let opened = async {
            let file = segment.file(&self.runtime).await?;
            Ok::<_, std::io::Error>((file, self.floor_in(segment, from).await?))
        };
        match opened.await {
            Ok((file, at)) => Ok(Some(Walk::new(file, at, segment.written.get(), WALK_BYTES))),
            Err(error) => self.read_failed(segment, &error).map(|()| None),
        }
    }

    async fn step<F: File>(
        &self,
        walk: &mut Walk<F>,
        segment: &Segment<R>,
    ) -> Result<Option<Header>, ReadError> {
        match walk.next().await {
            Ok(Step::Batch(found)) => Ok(Some(found)),
            Ok(Step::End) => Ok(None),
            Ok(Step::Bad(_)) if segment.removed.get() => Ok(None),
            Ok(Step::Bad(_)) => Err(corrupt(segment, walk.position())),
            Err(error) => self.read_failed(segment, &error).map(|()| None),
        }
    }
}

/// A batch that passed its header cannot be read.
struct Damaged;

fn corrupt<R: Runtime>(segment: &Segment<R>, position: u64) -> ReadError {
    ReadError::Corrupt { base_offset: segment.base_offset, position }
}

/// The first wanted record of a batch. Of the old formats only the batch is looked at: its one offset, its one time.
fn record_in(
    bytes: &[u8],
    found: &Header,
    wanted: Wanted,
    min_offset: Offset,
) -> Result<Option<(Offset, TimestampMs)>, Damaged> {
    let Ok(view) = BatchView::parse(bytes) else {
        let is_old = bytes.get(16).is_some_and(|magic| magic.cast_signed() < MAGIC_V2);
        return if is_old { Ok(Some((found.last_offset, found.max_timestamp))) } else { Err(Damaged) };
    };
    match wanted {
        Wanted::AtOrAfter(timestamp) => {
            reader::first_record_at_or_after(&view, timestamp, min_offset).map_err(|_| Damaged)
        }
        Wanted::Greatest(_) => reader::max_timestamp_record(&view).map_err(|_| Damaged),
    }
}

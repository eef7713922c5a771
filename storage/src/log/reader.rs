//! Reads (storage.md 3): where a batch lies, how much may be handed out, and by reference to what; or a copy, for whoever
//! looks into records on this shard. Serves only what is written, only one segment at a time. Knows no isolation level:
//! the caller says how far.

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use protocol::types::Offset;
use smallvec::SmallVec;

use super::header::Header;
use super::segment::{Located, Segment};
use super::{Log, ReadError};
use crate::io::{File, Runtime, Span};

/// What to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The first offset wanted; the answer begins with the batch that holds it.
    pub from: Offset,
    /// Bytes at most.
    pub max_bytes: usize,
    /// Nothing at or above this offset: the high watermark, the last stable offset, or the log end offset.
    pub upper_bound: Offset,
    /// Answer at least one whole batch, whatever `max_bytes` says.
    pub min_one_batch: bool,
}

/// What was read.
#[derive(Clone, Debug)]
pub struct LogRead {
    /// The bytes, in order. The last batch may be cut at `max_bytes`, as in Kafka.
    pub spans: SmallVec<[Span; 2]>,
    /// Bytes of all spans.
    pub bytes: usize,
    /// Base offset of the first batch; the offset asked for if there is none.
    pub base_offset: Offset,
    /// Not even the first batch fitted (only without `min_one_batch`).
    pub first_batch_incomplete: bool,
    /// The segment, and where in it the bytes end; `None` if there are none.
    end: Option<(Offset, u64)>,
}

/// How many bytes wait for a delayed fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesBetween {
    /// A read gives so many or fewer: exact near the end of the log, else up to an index entry too many at each end.
    Bytes(u64),
    /// The offset lies in a segment before the active one: there is enough, or the reader is far behind.
    OlderSegment,
}

/// How often a read looks again after its segment was removed under it.
const RETRIES_MAX: u32 = 4;

/// Where a read begins.
enum Place<R: Runtime> {
    /// In a segment, at a batch; what may be read ends at a position.
    At { segment: Rc<Segment<R>>, first: Header, end: u64 },
    /// Nowhere: there is no record.
    End,
    /// Not known: the segments have changed each time it was looked for.
    Unsteady,
}

impl ReadRequest {
    /// Bytes that it gets of those between a batch and an end.
    fn length(&self, first: &Header, end: u64) -> u64 {
        let max = u64::try_from(self.max_bytes).unwrap_or(u64::MAX);
        let max = if self.min_one_batch { max.max(first.size) } else { max };
        end.saturating_sub(first.position).min(max).min(u64::from(u32::MAX))
    }
}

impl<R: Runtime> Log<R> {
    /// Reads from one segment. Dropping the future has no effect on the log.
    ///
    /// # Errors
    /// Offsets outside the log; damage; a failed log.
    pub async fn read(&self, request: ReadRequest) -> Result<LogRead, ReadError> {
        match self.place(&request).await? {
            Place::At { segment, first, end } => self.cut(&request, &segment, &first, end).await,
            Place::End | Place::Unsteady => Ok(LogRead::empty(request.from)),
        }
    }

    /// The same as a copy, for whoever looks into the records on this shard: `None` where no record is left to read, and
    /// never for another reason. Dropping the future has no effect on the log.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn copy(&self, request: ReadRequest) -> Result<Option<Bytes>, ReadError> {
        let mut short = 0;
        loop {
            let (segment, first, end) = match self.place(&request).await? {
                Place::At { segment, first, end } => (segment, first, end),
                Place::End => return Ok(None),
                Place::Unsteady => {
                    self.runtime.turn().await;
                    continue;
                }
            };
            let len = usize::try_from(request.length(&first, end)).unwrap_or(usize::MAX);
            let read = match segment.file(&self.runtime).await {
                Ok(file) => file.read_at(first.position, len).await,
                Err(error) => Err(error),
            };
            match read {
                Ok(bytes) if bytes.len() == len && len > 0 => return Ok(Some(bytes.freeze())),
                // Cut back meanwhile, unless the file has lost what was written to it.
                Ok(_) if short == RETRIES_MAX => {
                    let (base_offset, position) = (segment.base_offset, first.position);
                    return Err(ReadError::Corrupt { base_offset, position });
                }
                Ok(_) => short += 1,
                Err(error) => self.read_failed(&segment, &error)?,
            }
        }
    }

    /// Where the batches that a request asks for lie.
    async fn place(&self, request: &ReadRequest) -> Result<Place<R>, ReadError> {
        for _ in 0..RETRIES_MAX {
            self.check_bounds(request.from)?;
            let (replacements, start) = (self.replacements.get(), self.log_start_offset.get());
            let upper = request.upper_bound.min(self.written_offset.get());
            if request.from >= upper {
                return Ok(Place::End);
            }
            let Some((segment, first)) = self.find(request.from).await? else {
                // Not there, or gone while it was looked for.
                if self.replacements.get() != replacements || self.log_start_offset.get() != start {
                    continue;
                }
                return Ok(Place::End);
            };
            let end = self.end_position(&segment, upper).await?;
            // Between the awaits above retention, truncation, compaction or a full disk may have taken the segment or its
            // end away; and a search that went on from a segment that was replaced may have passed what it looked for.
            let was_replaced = self.replacements.get() != replacements;
            if segment.removed.get() || was_replaced || first.end() > segment.written.get() {
                continue;
            }
            let upper_now = upper.min(self.written_offset.get());
            if upper_now < upper {
                continue;
            }
            if end <= first.position {
                return Ok(Place::End);
            }
            return Ok(Place::At { segment, first, end });
        }
        Ok(Place::Unsteady)
    }

    /// How many bytes a read between two offsets hands out at most, as far as that can be told without I/O.
    pub fn bytes_between(&self, from: Offset, bound: Offset) -> BytesBetween {
        let bound = bound.min(self.written_offset.get());
        if from >= bound {
            return BytesBetween::Bytes(0);
        }
        let active = self.active();
        if from < active.base_offset {
            return BytesBetween::OlderSegment;
        }
        let held = |offset| self.tail.locate(offset).map(|(_, found)| found.position);
        let start = held(from).unwrap_or_else(|| active.floor(from));
        let end = if bound == self.written_offset.get() {
            active.written.get()
        } else {
            // Who is told of less reads no more than that: what is uncertain counts.
            held(bound).unwrap_or_else(|| active.ceiling(bound))
        };
        BytesBetween::Bytes(end.saturating_sub(start))
    }

    /// Does a lookup over several segments, and again if compaction has replaced some meanwhile: it may have seen neither
    /// the old nor the new ones. A replacement takes far longer than most lookups.
    pub(super) async fn steadily<T>(
        &self,
        look: impl AsyncFn() -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        loop {
            let replacements = self.replacements.get();
            let found = look().await;
            if self.replacements.get() == replacements {
                return found;
            }
        }
    }

    fn check_bounds(&self, offset: Offset) -> Result<(), ReadError> {
        self.check_readable()?;
        let (log_start_offset, log_end_offset) = (self.log_start_offset.get(), self.log_end_offset.get());
        if offset < log_start_offset || offset > log_end_offset {
            return Err(ReadError::OffsetOutOfRange { offset, log_start_offset, log_end_offset });
        }
        Ok(())
    }

    /// The first written batch that ends at or above `offset`, and its segment.
    pub(super) async fn find(&self, offset: Offset) -> Result<Option<(Rc<Segment<R>>, Header)>, ReadError> {
        if let Some((base_offset, found)) = self.tail.locate(offset)
            && let Some(segment) = self.segments.borrow().get(&base_offset)
        {
            return Ok(Some((segment.clone(), found)));
        }
        let mut segment = self.segment_for(offset);
        // Each step goes to a higher base offset, so there are at most as many as segments.
        while let Some(here) = segment {
            match self.locate(&here, offset).await? {
                Located::Batch(found) => return Ok(Some((here, found))),
                Located::None => segment = self.segment_after(here.base_offset),
                Located::Bad(_) if here.removed.get() => return Ok(None),
                Located::Bad(position) => {
                    return Err(ReadError::Corrupt { base_offset: here.base_offset, position });
                }
            }
        }
        Ok(None)
    }

    /// Looks in the file. With its buffers in a place of its own: most readers find what they want in the tail.
    async fn locate(&self, segment: &Segment<R>, offset: Offset) -> Result<Located, ReadError> {
        match Box::pin(self.locate_in(segment, offset, segment.written.get())).await {
            Ok(located) => Ok(located),
            Err(error) => self.read_failed(segment, &error).map(|()| Located::Bad(0)),
        }
    }

    /// A segment that was removed meanwhile may have lost its files; anything else takes the log offline.
    pub(super) fn read_failed(&self, segment: &Segment<R>, error: &io::Error) -> Result<(), ReadError> {
        if segment.removed.get() && error.kind() == io::ErrorKind::NotFound {
            return Ok(());
        }
        Err(self.failed("read", error).into())
    }

    /// Where in a segment the batches below `upper` end.
    async fn end_position(&self, segment: &Rc<Segment<R>>, upper: Offset) -> Result<u64, ReadError> {
        let written = segment.written.get();
        let is_whole = match self.segment_after(segment.base_offset) {
            Some(next) => upper >= next.base_offset,
            None => upper >= self.written_offset.get(),
        };
        if is_whole {
            return Ok(written);
        }
        if let Some((base_offset, found)) = self.tail.locate(upper)
            && base_offset == segment.base_offset
        {
            return Ok(found.position);
        }
        match self.locate(segment, upper).await? {
            Located::Batch(found) => Ok(found.position),
            Located::None => Ok(written),
            Located::Bad(position) => Ok(position.min(written)),
        }
    }

    async fn cut(
        &self,
        request: &ReadRequest,
        segment: &Rc<Segment<R>>,
        first: &Header,
        end: u64,
    ) -> Result<LogRead, ReadError> {
        let len = request.length(first, end);
        let to = first.position.saturating_add(len);
        let mut spans = SmallVec::new();
        let cached_from =
            self.tail.covered_from(segment.base_offset).unwrap_or(u64::MAX).clamp(first.position, to);
        if cached_from > first.position {
            let len = u32::try_from(cached_from.saturating_sub(first.position)).unwrap_or(u32::MAX);
            let file = match segment.open_file() {
                Some(file) => Ok(file),
                None => Box::pin(segment.file(&self.runtime)).await,
            };
            let file = match file {
                Ok(file) => file,
                Err(error) => {
                    self.read_failed(segment, &error)?;
                    return Ok(LogRead::empty(request.from));
                }
            };
            spans.push(file.span(first.position, len));
        }
        self.tail.pieces(segment.base_offset, cached_from, to, |bytes| spans.push(Span::Memory(bytes)));
        Ok(LogRead {
            bytes: spans.iter().map(Span::len).sum(),
            spans,
            base_offset: first.base_offset,
            first_batch_incomplete: to < first.end(),
            end: Some((segment.base_offset, to)),
        })
    }

    /// An offset that no record reaches that was just handed out: the upper end for [`Log::aborted_transactions`]. Apart from the
    /// read, because it is looked for in the index, and most readers do not ask.
    pub fn end_bound(&self, read: &LogRead) -> Offset {
        let Some((segment, position)) = read.end else { return read.base_offset };
        let segment = self.segments.borrow().get(&segment).cloned();
        segment.map_or_else(|| self.log_end_offset.get(), |segment| self.bound_at(&segment, position))
    }

    /// An offset that no record before `position` reaches: exact where the index is (storage.md 3).
    fn bound_at(&self, segment: &Segment<R>, position: u64) -> Offset {
        let indexed = segment.with(|all| all.offsets.first_at_position(position)).flatten();
        match (indexed, self.segment_after(segment.base_offset)) {
            (Some(entry), _) => entry.offset,
            (None, Some(next)) => next.base_offset,
            (None, None) => self.log_end_offset.get(),
        }
    }
}

impl LogRead {
    fn empty(at: Offset) -> Self {
        Self { spans: SmallVec::new(), bytes: 0, base_offset: at, first_batch_incomplete: false, end: None }
    }
}

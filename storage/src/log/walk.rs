//! Walks over the batches of a segment file, header by header or whole batch by whole batch. Holds one buffer; never
//! reads beyond the end it was given, never takes memory by a claimed length. Decides nothing about what it finds.

use std::io;

use bytes::BytesMut;
use protocol::records::batch::BatchError;

use super::header::{self, HEADER_BYTES, Header, HeaderError};
use crate::io::File;

/// Buffer of a walk that looks for a position: an index entry is at most this far off, one batch aside.
pub(crate) const SEEK_BYTES: usize = 4096;
/// Buffer of a walk over much.
pub(crate) const STREAM_BYTES: usize = 1 << 20;
/// First buffer of a walk over headers.
const HEADER_PIECE_BYTES_MIN: usize = 512;
/// Buffer of one that has met small batches only: copied in some 30 µs.
const HEADER_PIECE_BYTES_MAX: usize = 256 << 10;
/// To copy as much as lies between two headers no further apart than this is cheaper than to ask once more.
const NEAR_BYTES: u64 = 4096;
/// After so many reads, or bytes, that did not wait, one is a trip through the reactor: whoever walks far lets the others of
/// the shard have their turn.
const READS_NOW_MAX: usize = 32;
const BYTES_NOW_MAX: usize = 256 << 10;

/// What comes next in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A batch that lies in the file as a whole.
    Batch(Header),
    /// Nothing: the file ends where a batch ends.
    End,
    /// Something that is no whole batch.
    Bad(HeaderError),
}

/// A walk over one file.
pub(crate) struct Walk<F> {
    file: F,
    position: u64,
    end: u64,
    /// Holds `filled` bytes from `buffer_at` on.
    buffer: Vec<u8>,
    buffer_at: u64,
    filled: usize,
    pieces: Pieces,
    /// Reads and bytes since the last trip through the reactor.
    now: (usize, usize),
    taken: u64,
}

/// How much is read at once.
#[derive(Clone, Copy)]
struct Pieces {
    min: usize,
    max: usize,
    next: usize,
}

impl<F: File> Walk<F> {
    /// Starts at `position`, where a batch begins, and ends at `end`.
    pub(crate) fn new(file: F, position: u64, end: u64, buffer_bytes: usize) -> Self {
        Self::with(file, position, end, Pieces { min: buffer_bytes, max: buffer_bytes, next: buffer_bytes })
    }

    /// The same for a walk that looks at headers only: steps over large batches, and reads ahead where they are small.
    pub(crate) fn headers(file: F, position: u64, end: u64) -> Self {
        let (min, max) = (HEADER_PIECE_BYTES_MIN, HEADER_PIECE_BYTES_MAX);
        Self::with(file, position, end, Pieces { min, max, next: min })
    }

    fn with(file: F, position: u64, end: u64, pieces: Pieces) -> Self {
        let (buffer, buffer_at, filled) = (Vec::new(), position, 0);
        Self { file, position, end, buffer, buffer_at, filled, pieces, now: (0, 0), taken: 0 }
    }

    /// Where the next batch begins.
    pub(crate) const fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that were read so far.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Gives the buffer back; what comes next is read again.
    pub(crate) fn forget(&mut self) {
        self.buffer = Vec::new();
        (self.buffer_at, self.filled) = (self.position, 0);
    }

    /// The next header; the walk then stands behind its batch.
    pub(crate) async fn next(&mut self) -> io::Result<Step> {
        let step = self.peek().await?;
        if let Step::Batch(found) = step {
            self.position = found.end();
        }
        Ok(step)
    }

    /// The next header; the walk stays where it is.
    pub(crate) async fn peek(&mut self) -> io::Result<Step> {
        let left = self.end.saturating_sub(self.position);
        if left == 0 {
            return Ok(Step::End);
        }
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let (position, end) = (self.position, self.end);
        let bytes = self.bytes(position, HEADER_BYTES.min(left)).await?;
        Ok(match header::parse(bytes, position) {
            Ok(found) if found.end() > end => {
                let needed = usize::try_from(found.size).unwrap_or(usize::MAX);
                Step::Bad(BatchError::Truncated { needed, left }.into())
            }
            Ok(found) => Step::Batch(found),
            Err(error) => Step::Bad(error),
        })
    }

    /// The bytes of a batch that was found.
    pub(crate) async fn whole(&mut self, found: &Header) -> io::Result<&[u8]> {
        let len = usize::try_from(found.size).map_err(|_| io::ErrorKind::InvalidData)?;
        self.bytes(found.position, len).await
    }

    /// `len` bytes at a position, fewer only where the file ends sooner than it said.
    async fn bytes(&mut self, at: u64, len: usize) -> io::Result<&[u8]> {
        let covered = at.checked_sub(self.buffer_at).and_then(|start| {
            let start = usize::try_from(start).ok()?;
            self.filled.checked_sub(start).filter(|rest| *rest >= len).map(|_| start)
        });
        let start = match covered {
            Some(start) => start,
            None => {
                self.choose_piece(at);
                let left = usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX);
                self.fill(at, len.max(self.pieces.next.min(left))).await?;
                0
            }
        };
        let end = start.saturating_add(len).min(self.filled);
        Ok(self.buffer.get(start..end).unwrap_or_default())
    }

    /// Doubles while the walk goes on where the buffer ended, and begins anew where it skips something.
    fn choose_piece(&mut self, at: u64) {
        let buffer_end = self.buffer_at.saturating_add(as_u64(self.filled));
        let goes_on = self.filled > 0 && at >= self.buffer_at && at <= buffer_end.saturating_add(NEAR_BYTES);
        let Pieces { min, max, next } = self.pieces;
        self.pieces.next = if goes_on { next.saturating_mul(2).min(max) } else { min };
    }

    async fn fill(&mut self, at: u64, size: usize) -> io::Result<()> {
        (self.buffer_at, self.filled) = (at, 0);
        if self.buffer.len() < size {
            self.buffer.resize(size, 0);
        }
        while let Some(into) = self.buffer.get_mut(self.filled..size).filter(|into| !into.is_empty()) {
            let next = at.saturating_add(as_u64(self.filled));
            let may_go_on = self.now.0 < READS_NOW_MAX && self.now.1 < BYTES_NOW_MAX;
            let count = match if may_go_on { self.file.read_now(next, into) } else { None } {
                Some(read) => {
                    let count = read?;
                    self.now = (self.now.0.saturating_add(1), self.now.1.saturating_add(count));
                    count
                }
                None => {
                    let part = self.file.read_at(next, into.len()).await?;
                    self.now = (0, 0);
                    let count = part.len().min(into.len());
                    if let (Some(into), Some(part)) = (into.get_mut(..count), part.get(..count)) {
                        into.copy_from_slice(part);
                    }
                    count
                }
            };
            if count == 0 {
                break;
            }
            self.filled = self.filled.saturating_add(count);
        }
        self.taken = self.taken.saturating_add(as_u64(self.filled));
        Ok(())
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Reads until `len` bytes are there or the file ends. For small files: what is in memory is read at once.
pub(crate) async fn read_full<F: File>(file: &F, at: u64, len: usize) -> io::Result<BytesMut> {
    if len <= SEEK_BYTES {
        let mut bytes = BytesMut::zeroed(len);
        if let Some(read) = file.read_now(at, &mut bytes)
            && read? == len
        {
            return Ok(bytes);
        }
    }
    let mut bytes = file.read_at(at, len).await?;
    while bytes.len() < len {
        let next = at.saturating_add(as_u64(bytes.len()));
        let more = file.read_at(next, len.saturating_sub(bytes.len())).await?;
        if more.is_empty() {
            break;
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}

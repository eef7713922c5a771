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
    buffer: BytesMut,
    buffer_at: u64,
    buffer_bytes: usize,
}

impl<F: File> Walk<F> {
    /// Starts at `position`, where a batch begins, and ends at `end`.
    pub(crate) fn new(file: F, position: u64, end: u64, buffer_bytes: usize) -> Self {
        Self { file, position, end, buffer: BytesMut::new(), buffer_at: position, buffer_bytes }
    }

    /// Where the next batch begins.
    pub(crate) const fn position(&self) -> u64 {
        self.position
    }

    /// Gives the buffer back; what comes next is read again.
    pub(crate) fn forget(&mut self) {
        self.buffer = BytesMut::new();
        self.buffer_at = self.position;
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
            self.buffer.len().checked_sub(start).filter(|rest| *rest >= len).map(|_| start)
        });
        let start = match covered {
            Some(start) => start,
            None => {
                let left = usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX);
                let size = len.max(self.buffer_bytes.min(left));
                self.buffer = BytesMut::new();
                self.buffer = read_full(&self.file, at, size).await?;
                self.buffer_at = at;
                0
            }
        };
        let end = start.saturating_add(len).min(self.buffer.len());
        Ok(self.buffer.get(start..end).unwrap_or_default())
    }
}

/// Reads until `len` bytes are there or the file ends.
pub(crate) async fn read_full<F: File>(file: &F, at: u64, len: usize) -> io::Result<BytesMut> {
    let mut bytes = file.read_at(at, len).await?;
    while bytes.len() < len {
        let next = at.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let more = file.read_at(next, len.saturating_sub(bytes.len())).await?;
        if more.is_empty() {
            break;
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}

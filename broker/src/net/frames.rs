//! Bytes of one client as they arrive, cut into frames: how much is read at once, how the buffer grows, and what memory a
//! frame keeps alive. Knows no socket and no request; `connection` reads into it.

use std::rc::Rc;

use bytes::{Buf, BytesMut};
use protocol::types::MonoTime;

use super::moves::Unread;
use crate::shard::memory::{Charge, Memory, Size};

/// Bytes of a frame's size.
pub(super) const SIZE_BYTES: usize = 4;

/// Read at least this much at once: several small requests in one call.
const READ_BYTES_MIN: usize = 16 << 10;

/// Read at most this much between two looks at the budget: some 100 µs.
const READ_BYTES_MAX: usize = 512 << 10;

/// A frame beyond this size is not kept alive by the bytes that came with its end.
const SHARED_BYTES_MAX: usize = 64 << 10;

/// A frame of a negative size, or above the limit: nothing behind it can be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct BadSize;

/// One frame without its size.
pub(super) struct Frame {
    pub(super) body: BytesMut,
    pub(super) charge: Charge,
    /// Bytes of memory that are there as long as `body` is; as `memory` of a request.
    pub(super) memory: usize,
}

/// Bytes that have arrived, cut into frames.
pub(super) struct Frames {
    pub(super) buffer: BytesMut,
    /// Another frame was cut from the memory that the buffer is in.
    is_shared: bool,
    pub(super) charge: Charge,
    frame_bytes_max: usize,
    /// Size of the last frame: the next one is taken to be as large until it has told.
    last_bytes: usize,
    /// When the connection last waited, and let the others of its shard work.
    pub(super) waited: MonoTime,
}

impl Frames {
    pub(super) fn new(memory: &Rc<Memory>, frame_bytes_max: usize, now: MonoTime) -> Self {
        let (buffer, charge) = (BytesMut::new(), memory.charge());
        let (is_shared, last_bytes) = (false, 0);
        Self { buffer, is_shared, charge, frame_bytes_max, last_bytes, waited: now }
    }

    /// What another shard has read.
    pub(super) fn begin_with(&mut self, unread: Option<Unread>) {
        if let Some(Unread { bytes, charge }) = unread {
            self.charge.add(bytes.len());
            drop(charge);
            self.buffer = bytes;
        }
    }

    /// Size of the first frame, once it is known. Refused before any of its body is read (C13).
    fn size(&self) -> Result<Option<usize>, BadSize> {
        let Some(size) = self.buffer.first_chunk::<SIZE_BYTES>() else { return Ok(None) };
        match usize::try_from(i32::from_be_bytes(*size)) {
            Ok(size) if size <= self.frame_bytes_max => Ok(Some(size)),
            _ => Err(BadSize),
        }
    }

    /// How the first frame counts: as the one before it, until its size is known.
    pub(super) fn counts_as(&self, memory: &Memory) -> Result<Size, BadSize> {
        let whole = self.size()?.map_or(self.last_bytes, |size| size.saturating_add(SIZE_BYTES));
        Ok(memory.size_of(whole))
    }

    /// Takes the first frame, if it is complete.
    pub(super) fn take(&mut self) -> Result<Option<Frame>, BadSize> {
        let Some(size) = self.size()? else { return Ok(None) };
        let whole = size.saturating_add(SIZE_BYTES);
        if self.buffer.len() < whole {
            return Ok(None);
        }
        // What others have been cut from may be far larger.
        let memory = if self.is_shared { usize::MAX } else { self.buffer.capacity() };
        let mut body = self.buffer.split_to(whole);
        body.advance(SIZE_BYTES);
        let charge = self.charge.split(whole);
        self.last_bytes = whole;
        if self.buffer.is_empty() {
            // An idle connection holds no buffer.
            self.buffer = BytesMut::new();
            self.is_shared = false;
        } else if whole > SHARED_BYTES_MAX {
            // The rest must not keep the memory of the whole frame, nor the frame that of what comes.
            self.buffer = BytesMut::from(&self.buffer[..]);
            self.is_shared = false;
        } else {
            self.is_shared = true;
        }
        Ok(Some(Frame { body, charge, memory }))
    }

    /// Makes room for the next read and says how much it may bring. The buffer grows with what has arrived, not with
    /// what is claimed (F11): at most to four times that.
    pub(super) fn prepare(&mut self) -> usize {
        let here = self.buffer.len();
        let missing = match self.size() {
            Ok(Some(size)) => size.saturating_add(SIZE_BYTES).saturating_sub(here),
            // Frames of one client are of similar size, and so is its next one.
            _ => self.last_bytes.saturating_sub(here),
        };
        if here >= READ_BYTES_MIN {
            self.buffer.reserve(missing.min(here.saturating_mul(3)));
            // The end of a large frame comes alone: what is behind it would be copied out of its buffer.
            return missing.clamp(1, READ_BYTES_MAX);
        }
        missing.clamp(READ_BYTES_MIN, READ_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_frame_is_read_in_one_call_when_it_is_as_large_as_the_last() {
        let memory = Memory::new(1 << 30);
        let mut frames = Frames::new(&memory, 1 << 20, MonoTime::new(1));
        assert_eq!(frames.prepare(), READ_BYTES_MIN);
        let body = 100_000;
        let mut sent = BytesMut::from(&i32::to_be_bytes(body)[..]);
        sent.resize(SIZE_BYTES + usize::try_from(body).unwrap(), 7);
        frames.buffer.extend_from_slice(&sent[..READ_BYTES_MIN]);
        // What is missing of it and nothing behind it, in steps of what has come.
        assert_eq!(frames.prepare(), sent.len() - READ_BYTES_MIN);
        assert!(frames.buffer.capacity() <= 4 * READ_BYTES_MIN);
        frames.buffer.extend_from_slice(&sent[READ_BYTES_MIN..]);
        let frame = frames.take().ok().flatten().unwrap();
        assert_eq!(frame.body.len(), sent.len() - SIZE_BYTES);
        assert!((sent.len()..2 * sent.len()).contains(&frame.memory), "growing may double it");
        assert_eq!(frames.prepare(), sent.len());
        assert_eq!(frames.buffer.capacity(), 0);
    }

    #[test]
    fn a_frame_knows_what_memory_it_keeps_alive() {
        let memory = Memory::new(1 << 30);
        let mut frames = Frames::new(&memory, 1 << 20, MonoTime::new(1));
        let mut take = |bodies: &[usize], already: &[u8]| {
            frames.buffer.extend_from_slice(already);
            for body in bodies {
                frames.buffer.extend_from_slice(&i32::to_be_bytes(i32::try_from(*body).unwrap()));
                frames.buffer.resize(frames.buffer.len() + body, 7);
            }
            std::iter::from_fn(|| frames.take().ok().flatten()).map(|frame| frame.memory).collect::<Vec<_>>()
        };
        let all = take(&[20_000, 30_000, 40_000], &[]);
        assert!(all[0] >= 90_012, "the buffer holds what came behind it");
        assert_eq!(all[1..], [usize::MAX, usize::MAX], "others were cut from the same memory");
        let alone = take(&[20_000], &[]);
        assert!((20_004..80_000).contains(&alone[0]), "a new buffer");
    }
}

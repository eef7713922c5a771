//! gzip (RFC 1952), any number of members. Called by [`super::Decompressor`] only.

use std::fmt;

use flate2::{Decompress, FlushDecompress, Status};

use super::{Codec, DecompressError, WINDOW_BYTES};

const MEMBER_MAGIC: &[u8] = &[0x1f, 0x8b];
const WINDOW_BITS: u8 = 15;

pub(super) struct Reader {
    /// The member being read; it checks its own header, length and CRC. `None` between members.
    member: Option<Decompress>,
    position: usize,
    members: u32,
    window: Vec<u8>,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self { member: None, position: 0, members: 0, window: Vec::new() }
    }

    pub(super) fn next_chunk(&mut self, input: &[u8]) -> Result<&[u8], DecompressError> {
        self.window.resize(WINDOW_BYTES, 0);
        loop {
            let rest = input.get(self.position..).unwrap_or_default();
            // What follows the last member and is not another one is ignored, as Java's reader does.
            if self.member.is_none() && self.members > 0 && !rest.starts_with(MEMBER_MAGIC) {
                return Ok(&[]);
            }
            let member = self.member.get_or_insert_with(|| {
                self.members = self.members.saturating_add(1);
                Decompress::new_gzip(WINDOW_BITS)
            });
            let (read, written) = (member.total_in(), member.total_out());
            let status = member
                .decompress(rest, &mut self.window, FlushDecompress::None)
                .map_err(|_| DecompressError::Corrupt(Codec::Gzip))?;
            let read = difference(member.total_in(), read);
            let written = difference(member.total_out(), written);
            self.position += read;
            if status == Status::StreamEnd {
                self.member = None;
            } else if read == 0 && written == 0 {
                return Err(DecompressError::Truncated(Codec::Gzip));
            }
            if written > 0 {
                return Ok(self.window.get(..written).unwrap_or_default());
            }
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("gzip::Reader").field("position", &self.position).finish_non_exhaustive()
    }
}

/// What one call moved: never more than a buffer of ours.
fn difference(after: u64, before: u64) -> usize {
    usize::try_from(after.saturating_sub(before)).unwrap_or(0)
}

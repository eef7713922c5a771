//! LZ4 frames with independent blocks. The frame is read by us, because what must be refused is not what `lz4_flex`
//! refuses: linked blocks (Java cannot read them), and what must be passed over is not either: content size and content
//! checksum, which Java does not check. Called by [`super::Decompressor`] and [`super::Compressor`] only.

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

use super::xxh32::xxh32;
use super::{Codec, DecompressError};

const MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();
const NOT_COMPRESSED: u32 = 0x8000_0000;
const TRUNCATED: DecompressError = DecompressError::Truncated(Codec::Lz4);
const CORRUPT: DecompressError = DecompressError::Corrupt(Codec::Lz4);

/// How the checksum of a frame's header is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderChecksum {
    /// It must be right: magic 1 and 2.
    Standard,
    /// Old clients computed it over the frame's magic too, so it is not looked at: magic 0 (fault F19).
    Ignored,
}

#[derive(Debug)]
pub(super) struct Reader {
    header_checksum: HeaderChecksum,
    /// Known once the header is read.
    frame: Option<Frame>,
    position: usize,
    ended: bool,
    window: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    block_bytes_max: usize,
    block_checksums: bool,
    content_checksum: bool,
}

impl Reader {
    pub(super) const fn new(header_checksum: HeaderChecksum) -> Self {
        Self { header_checksum, frame: None, position: 0, ended: false, window: Vec::new() }
    }

    pub(super) fn next_chunk<'s>(&'s mut self, input: &'s [u8]) -> Result<&'s [u8], DecompressError> {
        let frame = match self.frame {
            Some(frame) => frame,
            None => self.read_header(input)?,
        };
        // An empty block is legal and yields nothing, so go on to the next one.
        while !self.ended {
            let rest = input.get(self.position..).unwrap_or_default();
            let (size, rest) = rest.split_first_chunk().ok_or(TRUNCATED)?;
            let size = u32::from_le_bytes(*size);
            if size == 0 {
                // Java reads the content checksum without looking at it, and nothing after it.
                if frame.content_checksum && rest.len() < 4 {
                    return Err(TRUNCATED);
                }
                self.ended = true;
                break;
            }
            let stored = size & NOT_COMPRESSED != 0;
            let size = usize::try_from(size & !NOT_COMPRESSED).map_err(|_| CORRUPT)?;
            if size > frame.block_bytes_max {
                return Err(CORRUPT);
            }
            let (block, rest) = rest.split_at_checked(size).ok_or(TRUNCATED)?;
            self.position += 4 + size;
            if frame.block_checksums {
                let (stated, _) = rest.split_first_chunk().ok_or(TRUNCATED)?;
                if u32::from_le_bytes(*stated) != xxh32(block) {
                    return Err(CORRUPT);
                }
                self.position += 4;
            }
            if stored {
                if !block.is_empty() {
                    return Ok(block);
                }
                continue;
            }
            // LZ4 expands at most 255 times, so that a small block does not need a large window.
            let room = frame.block_bytes_max.min(block.len().saturating_mul(255));
            if self.window.len() < room {
                self.window.resize(room, 0);
            }
            let written = lz4_flex::block::decompress_into(block, &mut self.window).map_err(|_| CORRUPT)?;
            if written > frame.block_bytes_max {
                return Err(CORRUPT);
            }
            if written > 0 {
                return Ok(self.window.get(..written).unwrap_or_default());
            }
        }
        Ok(&[])
    }

    fn read_header(&mut self, input: &[u8]) -> Result<Frame, DecompressError> {
        let (magic, rest) = input.split_first_chunk().ok_or(TRUNCATED)?;
        if *magic != MAGIC {
            return Err(CORRUPT);
        }
        let [flags, block, ..] = rest else { return Err(TRUNCATED) };
        // Version 1; reserved bit and dictionary bit 0; the block descriptor's unused bits 0.
        if flags >> 6 != 1 || flags & 0b11 != 0 || block & 0b1000_1111 != 0 {
            return Err(CORRUPT);
        }
        if flags & 0b10_0000 == 0 {
            return Err(DecompressError::LinkedBlocks);
        }
        let block_bytes_max = match block >> 4 {
            4 => 64 << 10,
            5 => 256 << 10,
            6 => 1 << 20,
            7 => 4 << 20,
            _ => return Err(CORRUPT),
        };
        let content_size = flags & 0b1000 != 0;
        let described = if content_size { 10 } else { 2 };
        let (descriptor, rest) = rest.split_at_checked(described).ok_or(TRUNCATED)?;
        let [checksum, ..] = rest else { return Err(TRUNCATED) };
        if self.header_checksum == HeaderChecksum::Standard && *checksum != second_byte(xxh32(descriptor)) {
            return Err(CORRUPT);
        }
        self.position = MAGIC.len() + described + 1;
        let frame = Frame {
            block_bytes_max,
            block_checksums: flags & 0b1_0000 != 0,
            content_checksum: flags & 0b100 != 0,
        };
        self.frame = Some(frame);
        Ok(frame)
    }
}

/// The byte of a hash that the header carries.
const fn second_byte(hash: u32) -> u8 {
    let [_, byte, _, _] = hash.to_le_bytes();
    byte
}

pub(super) type Writer = FrameEncoder<Vec<u8>>;

/// Blocks of 64 KiB, independent, no checksums but the header's: what Java writes.
pub(super) fn writer(out: Vec<u8>) -> Writer {
    let info = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
    FrameEncoder::with_frame_info(info, out)
}

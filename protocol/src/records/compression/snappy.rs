//! Snappy, in xerial's framing with any number of blocks (Java, fault F17) or as one raw block (librdkafka and others).
//! Called by [`super::Decompressor`] and [`super::Compressor`] only.
//!
//! ```text
//! 82 53 4e 41 50 50 59 00 | version i32 | compatible version i32 | (length i32, raw snappy block) ...
//! ```

use snap::raw;

use super::{CAP_FLOOR_BYTES, Codec, CompressError, DecompressError};

const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// Magic, version, compatible version.
const XERIAL_HEADER_BYTES: usize = 16;
const XERIAL_VERSION: i32 = 1;
/// What xerial compresses at once.
const BLOCK_BYTES: usize = 32 * 1024;
const TRUNCATED: DecompressError = DecompressError::Truncated(Codec::Snappy);
const CORRUPT: DecompressError = DecompressError::Corrupt(Codec::Snappy);

pub(super) struct Reader {
    decoder: raw::Decoder,
    framing: Framing,
    position: usize,
    window: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// Nothing read yet.
    Unknown,
    Xerial,
    Raw,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("snappy::Reader").field("framing", &self.framing).finish_non_exhaustive()
    }
}

impl Reader {
    pub(super) fn new() -> Self {
        Self { decoder: raw::Decoder::new(), framing: Framing::Unknown, position: 0, window: Vec::new() }
    }

    pub(super) fn next_chunk(&mut self, input: &[u8]) -> Result<&[u8], DecompressError> {
        if self.framing == Framing::Unknown {
            self.framing = if input.starts_with(&XERIAL_MAGIC) { Framing::Xerial } else { Framing::Raw };
            if self.framing == Framing::Raw && input.is_empty() {
                return Err(TRUNCATED);
            }
        }
        loop {
            let rest = input.get(self.position..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(&[]);
            }
            let block = match self.framing {
                Framing::Xerial if rest.starts_with(&XERIAL_MAGIC) => {
                    // At the start, and once more wherever two streams were put together.
                    self.position += header_size(rest)?;
                    continue;
                }
                Framing::Xerial => {
                    let (size, rest) = rest.split_first_chunk().ok_or(TRUNCATED)?;
                    let size = usize::try_from(i32::from_be_bytes(*size)).map_err(|_| CORRUPT)?;
                    self.position = self.position.saturating_add(4).saturating_add(size);
                    rest.get(..size).ok_or(TRUNCATED)?
                }
                Framing::Raw | Framing::Unknown => {
                    self.position = input.len();
                    rest
                }
            };
            let written = decompress_block(&mut self.decoder, block, &mut self.window)?;
            if written > 0 {
                return Ok(self.window.get(..written).unwrap_or_default());
            }
        }
    }
}

fn header_size(rest: &[u8]) -> Result<usize, DecompressError> {
    let version = rest.get(XERIAL_MAGIC.len()..).and_then(|rest| rest.first_chunk()).ok_or(TRUNCATED)?;
    if i32::from_be_bytes(*version) < XERIAL_VERSION {
        return Err(CORRUPT);
    }
    if rest.len() < XERIAL_HEADER_BYTES { Err(TRUNCATED) } else { Ok(XERIAL_HEADER_BYTES) }
}

fn decompress_block(
    decoder: &mut raw::Decoder,
    block: &[u8],
    window: &mut Vec<u8>,
) -> Result<usize, DecompressError> {
    let claimed = raw::decompress_len(block).map_err(|_| CORRUPT)?;
    // The format's best is 64 bytes out of 3: a larger claim is a lie, and costs nothing.
    if claimed > block.len().saturating_mul(22) {
        return Err(CORRUPT);
    }
    // A block is decompressed in one go, so that its size is a size in memory.
    if u64::try_from(claimed).unwrap_or(u64::MAX) > CAP_FLOOR_BYTES {
        return Err(DecompressError::TooLarge { max: CAP_FLOOR_BYTES });
    }
    if window.len() < claimed {
        window.resize(claimed, 0);
    }
    decoder.decompress(block, window).map_err(|_| CORRUPT)
}

/// Writes xerial's framing.
pub(super) struct Writer {
    encoder: raw::Encoder,
    /// Less than a block, waiting for more.
    pending: Vec<u8>,
    out: Vec<u8>,
}

impl Writer {
    pub(super) fn new(mut out: Vec<u8>) -> Self {
        out.extend_from_slice(&XERIAL_MAGIC);
        out.extend_from_slice(&XERIAL_VERSION.to_be_bytes());
        out.extend_from_slice(&XERIAL_VERSION.to_be_bytes());
        Self { encoder: raw::Encoder::new(), pending: Vec::with_capacity(BLOCK_BYTES), out }
    }

    pub(super) fn output_len(&self) -> usize {
        self.out.len()
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), CompressError> {
        while !bytes.is_empty() {
            let room = BLOCK_BYTES.saturating_sub(self.pending.len());
            let (now, later) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() >= BLOCK_BYTES {
                self.write_block()?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Vec<u8>, CompressError> {
        if !self.pending.is_empty() {
            self.write_block()?;
        }
        Ok(self.out)
    }

    fn write_block(&mut self) -> Result<(), CompressError> {
        let failed = CompressError { codec: Codec::Snappy };
        let at = self.out.len();
        let start = at + 4;
        self.out.resize(start + raw::max_compress_len(self.pending.len()), 0);
        let target = self.out.get_mut(start..).unwrap_or_default();
        let size = self.encoder.compress(&self.pending, target).map_err(|_| failed)?;
        self.out.truncate(start + size);
        let length = i32::try_from(size).map_err(|_| failed)?;
        if let Some(field) = self.out.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *field = length.to_be_bytes();
        }
        self.pending.clear();
        Ok(())
    }
}

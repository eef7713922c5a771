//! Zstandard, any number of frames. Called by [`super::Decompressor`] and [`super::Compressor`] only.

use std::fmt;

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::{Codec, CompressError, DecompressError, WINDOW_BYTES};

/// Largest window of a frame, as a power of two: the default of every reader, Java's included, and what level 22 writes.
const WINDOW_LOG_MAX: u32 = 27;
const LEVEL_MIN: i32 = -131_072;
const LEVEL_MAX: i32 = 22;

pub(super) struct Reader {
    decoder: Decoder<'static>,
    position: usize,
    /// The last call ended a frame, and nothing was read since.
    between_frames: bool,
    window: Vec<u8>,
}

impl Reader {
    pub(super) fn new() -> Result<Self, DecompressError> {
        let mut decoder = Decoder::new().map_err(|_| DecompressError::Corrupt(Codec::Zstd))?;
        decoder
            .set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
            .map_err(|_| DecompressError::Corrupt(Codec::Zstd))?;
        Ok(Self { decoder, position: 0, between_frames: false, window: Vec::new() })
    }

    pub(super) fn next_chunk(&mut self, input: &[u8]) -> Result<&[u8], DecompressError> {
        self.window.resize(WINDOW_BYTES, 0);
        loop {
            let rest = input.get(self.position..).unwrap_or_default();
            if rest.is_empty() && self.between_frames {
                return Ok(&[]);
            }
            let mut source = InBuffer::around(rest);
            let mut target = OutBuffer::around(self.window.as_mut_slice());
            let hint = self
                .decoder
                .run(&mut source, &mut target)
                .map_err(|_| DecompressError::Corrupt(Codec::Zstd))?;
            let (read, written) = (source.pos(), target.pos());
            self.position += read;
            self.between_frames = hint == 0;
            if written > 0 {
                return Ok(self.window.get(..written).unwrap_or_default());
            }
            if read == 0 && !self.between_frames {
                return Err(DecompressError::Truncated(Codec::Zstd));
            }
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("zstd::Reader").field("position", &self.position).finish_non_exhaustive()
    }
}

pub(super) type Writer = zstd::stream::write::Encoder<'static, Vec<u8>>;

pub(super) fn writer(out: Vec<u8>, level: i32, size: Option<usize>) -> Result<Writer, CompressError> {
    let failed = |_| CompressError { codec: Codec::Zstd };
    let mut writer = Writer::new(out, level.clamp(LEVEL_MIN, LEVEL_MAX)).map_err(failed)?;
    if let Some(size) = size.and_then(|size| u64::try_from(size).ok()) {
        writer.set_pledged_src_size(Some(size)).map_err(failed)?;
    }
    Ok(writer)
}

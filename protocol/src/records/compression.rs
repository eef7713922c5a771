//! The codecs of record batches (protocol.md 0, codec table): which there are, streaming decompression in a fixed
//! window and under a cap, compression with Kafka's levels. Knows no record and no header of a batch. Called by the
//! validator, by readers of records, and by the builder.
//!
//! **Bounds (C14).** A decompressor holds at most one window, whatever the input claims: 64 KiB for gzip, one block (64
//! KiB to 4 MiB) for LZ4, 64 KiB plus the frame's own window for zstd (at most 128 MiB, Java's limit, of which only what is
//! really decompressed becomes resident), one block for snappy. A snappy block has no size limit of its own; a claim above
//! 22 times its compressed size, or above 100 MiB, is refused before anything is allocated: 32 KiB in practice for
//! Java and 1 MB for librdkafka. And it stops at a cap of decompressed bytes, see [`decompressed_bytes_max`].

mod gzip;
mod lz4;
mod snappy;
mod xxh32;
mod zstd;

use std::io::Write;

pub use lz4::HeaderChecksum;

/// How the records of a batch are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not compressed.
    None,
    /// RFC 1952, any number of members.
    Gzip,
    /// Snappy in xerial's framing, or one raw block.
    Snappy,
    /// LZ4 frame with independent blocks.
    Lz4,
    /// Zstandard frames; magic 2, Produce 7 and Fetch 10 onwards (KIP-110).
    Zstd,
}

impl Codec {
    /// Every codec, in the order of the ids.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec of an id; `None` for ids that name none.
    pub const fn new(id: i16) -> Option<Self> {
        match id {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }
    /// The id in the attributes of a batch.
    pub const fn get(self) -> i16 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }
    /// Kafka's name of the codec as clients spell it; topics say `uncompressed` for `none`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// A codec with its level (KIP-390).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not compressed.
    None,
    /// `compression.gzip.level`: -1 (the library's choice, 6) or 1 to 9. Others are taken as the nearest.
    Gzip {
        /// The level.
        level: i32,
    },
    /// Snappy has no levels. Written in xerial's framing, blocks of 32 KiB.
    Snappy,
    /// `compression.lz4.level`, 1 to 17, has no effect: the encoder has one speed, that of level 1. The level is a
    /// trade of time for size; any LZ4 reader reads any level.
    Lz4,
    /// `compression.zstd.level`: -131072 to 22. Others are taken as the nearest.
    Zstd {
        /// The level.
        level: i32,
    },
}

impl Compression {
    /// The codec with Kafka's default level.
    pub const fn default_level(codec: Codec) -> Self {
        match codec {
            Codec::None => Self::None,
            Codec::Gzip => Self::Gzip { level: -1 },
            Codec::Snappy => Self::Snappy,
            Codec::Lz4 => Self::Lz4,
            Codec::Zstd => Self::Zstd { level: 3 },
        }
    }
    /// The codec.
    pub const fn codec(self) -> Codec {
        match self {
            Self::None => Codec::None,
            Self::Gzip { .. } => Codec::Gzip,
            Self::Snappy => Codec::Snappy,
            Self::Lz4 => Codec::Lz4,
            Self::Zstd { .. } => Codec::Zstd,
        }
    }
}

/// Why bytes did not decompress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    /// The compressed bytes end before their stream does.
    #[error("the {} stream is cut off", .0.name())]
    Truncated(Codec),
    /// The compressed bytes are no stream of their codec, or a checksum in it is wrong, or its window is too large.
    #[error("the {} stream is corrupt", .0.name())]
    Corrupt(Codec),
    /// LZ4 blocks that refer to earlier ones: Java cannot read them (statement 92).
    #[error("linked lz4 blocks are not supported")]
    LinkedBlocks,
    /// The stream expands beyond the cap.
    #[error("the stream expands beyond {max} bytes")]
    TooLarge {
        /// The cap.
        max: u64,
    },
}

/// Compression failed, which only a lack of memory or a fault of the library can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} compression failed", .codec.name())]
pub struct CompressError {
    /// The codec.
    pub codec: Codec,
}

/// Window of the codecs that have none of their own, and the largest piece handed on of what is not compressed.
pub(super) const WINDOW_BYTES: usize = 64 * 1024;
/// See [`decompressed_bytes_max`].
pub(super) const CAP_FLOOR_BYTES: u64 = 100 * 1024 * 1024;
const CAP_RATIO: u64 = 100;
const CAP_CEILING_BYTES: u64 = i32::MAX as u64;

/// How far `compressed` bytes may expand: 100 times, at least 100 MiB, at most `i32::MAX` bytes.
///
/// Kafka has no such cap. 100 MiB is the default of `socket.request.max.bytes`, so that no batch can be refused that could
/// have been sent uncompressed; it is also what librdkafka's consumers refuse by default (`receive.message.max.bytes`). The
/// ratio lets the cap grow with `max.message.bytes`. No batch beyond `i32::MAX` can exist uncompressed.
pub fn decompressed_bytes_max(compressed: usize) -> u64 {
    let compressed = u64::try_from(compressed).unwrap_or(u64::MAX);
    compressed.saturating_mul(CAP_RATIO).clamp(CAP_FLOOR_BYTES, CAP_CEILING_BYTES)
}

/// Decompresses one payload piece by piece. Holds no borrow of its input: the caller passes the same bytes at every call,
/// so that a validation can pause and the batch can be patched afterwards without a copy.
#[derive(Debug)]
pub struct Decompressor {
    stream: Stream,
    /// Bytes handed on so far.
    produced: u64,
    max: u64,
}

#[derive(Debug)]
enum Stream {
    Plain { position: usize },
    Gzip(Box<gzip::Reader>),
    Snappy(snappy::Reader),
    Lz4(lz4::Reader),
    Zstd(zstd::Reader),
}

impl Decompressor {
    /// Reads a payload of `compressed` bytes under the cap of [`decompressed_bytes_max`].
    ///
    /// # Errors
    /// [`DecompressError::Corrupt`] if the library cannot make a context (lack of memory).
    pub fn new(codec: Codec, compressed: usize) -> Result<Self, DecompressError> {
        Self::with_max(codec, decompressed_bytes_max(compressed))
    }

    /// Reads under a cap of the caller's choice.
    ///
    /// # Errors
    /// As [`Decompressor::new`].
    pub fn with_max(codec: Codec, max: u64) -> Result<Self, DecompressError> {
        let stream = match codec {
            Codec::None => Stream::Plain { position: 0 },
            Codec::Gzip => Stream::Gzip(Box::new(gzip::Reader::new())),
            Codec::Snappy => Stream::Snappy(snappy::Reader::new()),
            Codec::Lz4 => Stream::Lz4(lz4::Reader::new(HeaderChecksum::Standard)),
            Codec::Zstd => Stream::Zstd(zstd::Reader::new()?),
        };
        Ok(Self { stream, produced: 0, max })
    }

    /// Reads the LZ4 stream of a message of magic 0 or 1: the former's header checksum covers too much (fault F19).
    pub fn lz4_with(header_checksum: HeaderChecksum, compressed: usize) -> Self {
        let stream = Stream::Lz4(lz4::Reader::new(header_checksum));
        Self { stream, produced: 0, max: decompressed_bytes_max(compressed) }
    }

    /// The next piece, never empty before the end and empty from the end on. `input` is the whole payload, the same at
    /// every call.
    ///
    /// # Errors
    /// See [`DecompressError`]; do not call again after one.
    pub fn next_chunk<'s>(&'s mut self, input: &'s [u8]) -> Result<&'s [u8], DecompressError> {
        let chunk = match &mut self.stream {
            Stream::Plain { position } => {
                let rest = input.get(*position..).unwrap_or_default();
                let chunk = rest.get(..WINDOW_BYTES).unwrap_or(rest);
                *position += chunk.len();
                return Ok(chunk);
            }
            Stream::Gzip(reader) => reader.next_chunk(input)?,
            Stream::Snappy(reader) => reader.next_chunk(input)?,
            Stream::Lz4(reader) => reader.next_chunk(input)?,
            Stream::Zstd(reader) => reader.next_chunk(input)?,
        };
        self.produced = self.produced.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        if self.produced > self.max {
            return Err(DecompressError::TooLarge { max: self.max });
        }
        Ok(chunk)
    }
}

/// Compresses one payload piece by piece, appending to a vector.
pub struct Compressor(Sink);

enum Sink {
    Plain(Vec<u8>),
    Gzip(Box<flate2::write::GzEncoder<Vec<u8>>>),
    Snappy(Box<snappy::Writer>),
    Lz4(Box<lz4::Writer>),
    Zstd(Box<zstd::Writer>),
}

impl Compressor {
    /// Appends to `out`. If the caller knows the size of what it will write, zstd chooses a fitting window.
    ///
    /// # Errors
    /// See [`CompressError`].
    pub fn new(compression: Compression, out: Vec<u8>, size: Option<usize>) -> Result<Self, CompressError> {
        Ok(Self(match compression {
            Compression::None => Sink::Plain(out),
            Compression::Gzip { level } => {
                let level = match level {
                    -1 => flate2::Compression::default(),
                    level => flate2::Compression::new(level.clamp(1, 9).unsigned_abs()),
                };
                Sink::Gzip(Box::new(flate2::write::GzEncoder::new(out, level)))
            }
            Compression::Snappy => Sink::Snappy(Box::new(snappy::Writer::new(out))),
            Compression::Lz4 => Sink::Lz4(Box::new(lz4::writer(out))),
            Compression::Zstd { level } => Sink::Zstd(Box::new(zstd::writer(out, level, size)?)),
        }))
    }

    fn failed(&self) -> CompressError {
        let codec = match self.0 {
            Sink::Plain(_) => Codec::None,
            Sink::Gzip(_) => Codec::Gzip,
            Sink::Snappy(_) => Codec::Snappy,
            Sink::Lz4(_) => Codec::Lz4,
            Sink::Zstd(_) => Codec::Zstd,
        };
        CompressError { codec }
    }

    /// Compresses `bytes`, part of which may wait for more.
    ///
    /// # Errors
    /// See [`CompressError`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CompressError> {
        let written = match &mut self.0 {
            Sink::Plain(out) => out.write_all(bytes),
            Sink::Gzip(out) => out.write_all(bytes),
            Sink::Snappy(out) => return out.write(bytes),
            Sink::Lz4(out) => out.write_all(bytes),
            Sink::Zstd(out) => out.write_all(bytes),
        };
        written.map_err(|_| self.failed())
    }

    /// Bytes in the vector by now, those that were there before included.
    pub fn output_len(&self) -> usize {
        match &self.0 {
            Sink::Plain(out) => out.len(),
            Sink::Gzip(out) => out.get_ref().len(),
            Sink::Snappy(out) => out.output_len(),
            Sink::Lz4(out) => out.get_ref().len(),
            Sink::Zstd(out) => out.get_ref().len(),
        }
    }

    /// Ends the stream and gives the vector back.
    ///
    /// # Errors
    /// See [`CompressError`].
    pub fn finish(self) -> Result<Vec<u8>, CompressError> {
        let failed = self.failed();
        match self.0 {
            Sink::Plain(out) => Ok(out),
            Sink::Gzip(out) => out.finish().map_err(|_| failed),
            Sink::Snappy(out) => out.finish(),
            Sink::Lz4(out) => out.finish().map_err(|_| failed),
            Sink::Zstd(out) => out.finish().map_err(|_| failed),
        }
    }
}

/// Compresses `bytes` in one go, appending to `out`.
///
/// # Errors
/// See [`CompressError`].
pub fn compress(compression: Compression, bytes: &[u8], out: Vec<u8>) -> Result<Vec<u8>, CompressError> {
    let mut compressor = Compressor::new(compression, out, Some(bytes.len()))?;
    compressor.write(bytes)?;
    compressor.finish()
}

#[cfg(test)]
mod tests;

//! The codecs of record batches (protocol.md 0, codec table).

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
    /// Kafka's name, as `compression.type` spells it.
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

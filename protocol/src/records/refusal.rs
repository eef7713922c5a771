//! Why a produced batch is refused, with the facts, and which error code each reason is (protocol.md 3.3 and 4.5).
//! Made by [`super::validate`]; the produce handler turns it into an answer.

use crate::error::ErrorCode;
use crate::records::compression::{CompressError, DecompressError};
use crate::records::record::RecordError;
use crate::types::{Offset, ProducerId, TimestampMs};

/// The most faulty records of one batch that are kept; more are only counted. The clients need none of the others: they
/// fail every record of the batch, those without a message with a general one. Without a bound the answer to a batch of 1
/// MiB could be a hundred times as large.
pub const RECORD_FAULTS_MAX: usize = 1_000;

/// Why a produced batch is refused. Nothing of it is appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// There is no batch, or only part of one (check 4).
    #[error("there is no whole record batch")]
    NoBatch,
    /// The length field is below the smallest batch (check 5, or the size check of 4.5).
    #[error("the length field {0} is below the smallest batch")]
    BadLength(i32),
    /// No format has this magic (check 5).
    #[error("magic {0} is unknown")]
    BadMagic(i8),
    /// The format is older than what Produce 3 and above carry (check 6).
    #[error("magic {0} is too old for this request version")]
    OldMagic(i8),
    /// zstd before Produce 7 (check 7).
    #[error("zstd is not allowed in Produce version {request_version}")]
    ZstdTooEarly {
        /// Version of the request.
        request_version: i16,
    },
    /// The codec id names no codec. Kafka answers -1.
    #[error("codec {0} is unknown")]
    UnknownCodec(i16),
    /// More than one batch (check 8).
    #[error("there is more than one record batch")]
    SeveralBatches,
    /// Clients send base offset 0 (check 13).
    #[error("the base offset {0} is not 0")]
    BaseOffset(Offset),
    /// The batch is too large, as sent (check 14) or as recompressed (check 18; then the size is that of what was written
    /// when it went over).
    #[error("{size_in_bytes} bytes are more than max.message.bytes {max_message_bytes}")]
    TooLarge {
        /// Size of the batch.
        size_in_bytes: usize,
        /// `max.message.bytes`.
        max_message_bytes: usize,
    },
    /// The CRC is wrong (check 15).
    #[error("the CRC {stated:#010x} is not that of the batch")]
    BadCrc {
        /// What the header says.
        stated: u32,
    },
    /// The last offset lies before the first (4.5).
    #[error("the last offset delta {last_offset_delta} is negative")]
    BadOffsetRange {
        /// What the header says.
        last_offset_delta: i32,
    },
    /// The count is not positive, or disagrees with the last offset (4.5).
    #[error("the record count {record_count} disagrees with the last offset delta {last_offset_delta}")]
    BadCount {
        /// What the header says.
        record_count: i32,
        /// What the header says.
        last_offset_delta: i32,
    },
    /// Clients may not write control batches (4.5).
    #[error("clients may not write control batches")]
    ControlBatch,
    /// A producer id without a sequence (4.5).
    #[error("producer {producer_id} sent no sequence")]
    NoSequence {
        /// The producer.
        producer_id: ProducerId,
    },
    /// The payload does not decompress. Kafka answers -1.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// A record is malformed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The payload holds more or fewer records than the header says.
    #[error("the header counts {stated} records, the payload holds another number")]
    WrongRecordCount {
        /// What the header says.
        stated: i32,
    },
    /// A record's offset is not its place in the batch. Kafka rebuilds such a compressed batch and does not look at an
    /// uncompressed one.
    #[error("record {index} has offset delta {offset_delta}")]
    BadOffsetDelta {
        /// Place of the record in the batch.
        index: i32,
        /// What the record says.
        offset_delta: i32,
    },
    /// Records break a rule of the topic (check 17).
    #[error("{} records break a rule of the topic", .0.count())]
    Records(RecordFaults),
    /// The records could not be compressed anew.
    #[error(transparent)]
    Compress(#[from] CompressError),
}

impl ProduceError {
    /// The code that the partition is answered with.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::BadLength(_) | Self::BadMagic(_) | Self::BadCrc { .. } => ErrorCode::CorruptMessage,
            Self::ZstdTooEarly { .. } => ErrorCode::UnsupportedCompressionType,
            Self::TooLarge { .. } => ErrorCode::MessageTooLarge,
            Self::Records(faults) => faults.code(),
            Self::Compress(_) => ErrorCode::UnknownServerError,
            Self::NoBatch
            | Self::OldMagic(_)
            | Self::UnknownCodec(_)
            | Self::SeveralBatches
            | Self::BaseOffset(_)
            | Self::BadOffsetRange { .. }
            | Self::BadCount { .. }
            | Self::ControlBatch
            | Self::NoSequence { .. }
            | Self::Decompress(_)
            | Self::Record(_)
            | Self::WrongRecordCount { .. }
            | Self::BadOffsetDelta { .. } => ErrorCode::InvalidRecord,
        }
    }

    /// The records to name in `record_errors` (KIP-467); empty for faults of the whole batch.
    pub fn record_faults(&self) -> &[RecordFault] {
        match self {
            Self::Records(faults) => faults.as_slice(),
            _ => &[],
        }
    }
}

/// A record that breaks a rule of the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFault {
    /// Place in the batch, from 0.
    pub index: i32,
    /// What is wrong.
    pub kind: RecordFaultKind,
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFaultKind {
    /// A compacted topic needs keys.
    #[error("a compacted topic does not accept a record without a key")]
    NoKey,
    /// Too far behind or ahead of the broker's clock.
    #[error("timestamp {0} is too far from the broker's clock")]
    TimestampOutOfRange(TimestampMs),
    /// The batch claims LogAppendTime, which only a broker may.
    #[error("a producer may not set the timestamp type LogAppendTime")]
    ClaimedLogAppendTime,
}

/// The faulty records of a batch, in order: the first [`RECORD_FAULTS_MAX`], and the number of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFaults {
    first: Vec<RecordFault>,
    count: u32,
    any_timestamp: bool,
}

impl RecordFaults {
    /// Adds the next fault.
    pub fn push(&mut self, fault: RecordFault) {
        self.count = self.count.saturating_add(1);
        self.any_timestamp |= fault.kind != RecordFaultKind::NoKey;
        if self.first.len() < RECORD_FAULTS_MAX {
            self.first.push(fault);
        }
    }
    /// Whether no record is faulty.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// How many records are faulty.
    pub const fn count(&self) -> u32 {
        self.count
    }
    /// The first of them.
    pub fn as_slice(&self) -> &[RecordFault] {
        &self.first
    }
    /// INVALID_TIMESTAMP if any record fails by its time, else INVALID_RECORD.
    pub const fn code(&self) -> ErrorCode {
        if self.any_timestamp { ErrorCode::InvalidTimestamp } else { ErrorCode::InvalidRecord }
    }
}

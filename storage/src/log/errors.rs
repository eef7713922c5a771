//! Why an operation on a log did not happen: one small enum per operation (style 3.5). Knows no error code of the
//! protocol; the broker maps.

use std::io;

use protocol::types::{LeaderEpoch, Offset, TopicId};

use crate::io::heals;
use crate::partition_metadata::PartitionMetadataError;
use crate::producer_state::ProducerStateError;

/// Why a log does not do what changes its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The disk is full (S-32). The log serves reads, and takes appends again once there is space.
    #[error("the disk is full")]
    Full,
    /// The process or the system had no descriptor or memory for it. The log is as it was, and it may be tried again.
    #[error("the system has no descriptor or memory for it")]
    Exhausted,
    /// An operation on a file failed, now or before; sticky until the log is opened again (S-36).
    #[error("the log is offline since a failed {during}")]
    Offline {
        /// What failed.
        during: &'static str,
    },
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// Why an append did not happen. The log is unchanged, except after [`LogError::Offline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The log takes no appends.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Something has to wait first: [`super::Log::must_prepare`] says so. A fault of the caller.
    #[error("the log was not prepared for this append")]
    NotPrepared,
    /// The batch does not fit a segment (`segment.bytes`).
    #[error("a batch of {size} bytes does not fit a segment of {limit}")]
    RecordListTooLarge {
        /// Size of the batch in bytes.
        size: usize,
        /// `segment.bytes`.
        limit: u32,
    },
    /// A replicated batch begins below the log end offset, or is no whole batch of the size it claims.
    #[error("a replicated batch begins at {first}, the log ends at {expected}")]
    OutOfOrder {
        /// Base offset of the batch.
        first: Offset,
        /// The log end offset.
        expected: Offset,
    },
    /// The bytes are not the batch that the info describes, or its offsets cannot follow the log end offset.
    #[error("the batch is malformed")]
    Malformed,
    /// What the producer's earlier batches say against this one.
    #[error(transparent)]
    Producer(#[from] ProducerStateError),
}

/// Why a read did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The log has no file to read from.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The offset is below the log start offset or above the log end offset.
    #[error("offset {offset} is outside {log_start_offset}..{log_end_offset}")]
    OffsetOutOfRange {
        /// The offset asked for.
        offset: Offset,
        /// First offset of the log.
        log_start_offset: Offset,
        /// Offset after the last.
        log_end_offset: Offset,
    },
    /// What lies on the disk is no record batch: damage below the recovery point, reported and not hidden.
    #[error("no valid batch at byte {position} of the segment {base_offset}")]
    Corrupt {
        /// The segment.
        base_offset: Offset,
        /// Where in its file.
        position: u64,
    },
}

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The operating system refused: the log dir goes offline, unless it is only full.
    #[error("{during}: {source}")]
    Io {
        /// What was done.
        during: &'static str,
        /// What the operating system said, and of which file.
        source: io::Error,
    },
    /// The directory belongs to another topic of the same name.
    #[error("partition.metadata has topic id {found}, asked for was {expected}")]
    InconsistentTopicId {
        /// The id in `partition.metadata`.
        found: TopicId,
        /// The id asked for.
        expected: TopicId,
    },
    /// `partition.metadata` is not one.
    #[error("partition.metadata: {0}")]
    MalformedMetadata(PartitionMetadataError),
    /// Its [`super::LoadControl`] was stopped; the directory opens again.
    #[error("the opening was stopped")]
    Stopped,
}

impl LoadError {
    /// Whether nothing is wrong with the disk, so that it may be tried again: it had no room for what the load has to write
    /// (S-32), or the system no descriptor or memory.
    pub fn heals(&self) -> bool {
        matches!(self, Self::Io { source, .. } if heals(source))
    }
}

/// A leader epoch and where it ends, as OffsetForLeaderEpoch answers it.
pub type EpochEnd = (LeaderEpoch, Offset);

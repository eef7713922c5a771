//! What is asked and told of log dirs: how large the logs in them are, moves between them, failures.

use std::path::Path;
use std::sync::Arc;

use protocol::types::TopicPartition;

use super::PartitionKey;

/// A log dir on which an operation failed (storage.md 8.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirFailure {
    /// The dir.
    pub dir: Arc<Path>,
    /// What failed, of which file, and what the operating system said.
    pub cause: Arc<str>,
}

/// What went out of service with a log dir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfService {
    /// The dir, and why.
    pub failure: DirFailure,
    /// The partitions of this broker that are in it.
    pub partitions: Vec<TopicPartition>,
}

/// A log that is to be moved to another log dir.
#[derive(Clone, Debug)]
pub struct MoveAsk {
    /// The partition.
    pub key: PartitionKey,
    /// Its name.
    pub name: TopicPartition,
    /// A log dir of this broker.
    pub to: Arc<Path>,
}

/// Why a log is not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// The partition is not here, or not open yet: it is made where it was wished to be, should it be made.
    #[error("partition is not here")]
    NotHere,
    /// Its directory would have a longer name than a directory may have (KAFKA-4893).
    #[error("name of the topic is too long for a move")]
    NameTooLong,
    /// The log, its log dir, the one it is to go to or any other has failed, or the disk is full.
    #[error("a log directory is out of service")]
    Storage,
}

/// Size of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSize {
    /// The partition.
    pub partition: TopicPartition,
    /// The log dir that it is in.
    pub log_dir: Arc<Path>,
    /// Whether it is a copy that will replace the partition's log.
    pub is_future: bool,
    /// Bytes of its segments.
    pub bytes: u64,
    /// How far it is behind what it should hold, in records.
    pub offset_lag: i64,
}

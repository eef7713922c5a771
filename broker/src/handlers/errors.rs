//! THE mapping from domain errors to Kafka's error codes (protocol.md 2.6). No `_` arm: a new error finds its code here
//! or does not compile.

use protocol::error::ErrorCode;
use protocol::records::refusal::ProduceError;
use storage::log::{AppendError, LogError};
use storage::producer_state::ProducerStateError;

use crate::admin::configs::AlterConfigsError;
use crate::config::dynamic::ChangeError;
use crate::config::topic::TopicFault;
use crate::fetch_session::cache::SessionError;
use crate::partition::ask::{AppendRefusal, DeleteRecordsError, PartitionError};
use crate::shard::AskError;

/// Has an error code.
pub trait ToErrorCode {
    /// What clients are told.
    fn error_code(&self) -> ErrorCode;
}

impl ToErrorCode for PartitionError {
    fn error_code(&self) -> ErrorCode {
        match self {
            // Metadata knows the partition, or the handler would not have asked: whoever routed here was behind.
            Self::NotHere | Self::NotLeader { .. } => ErrorCode::NotLeaderOrFollower,
            Self::FencedLeaderEpoch { .. } => ErrorCode::FencedLeaderEpoch,
            Self::UnknownLeaderEpoch { .. } | Self::NotAReplica(_) => ErrorCode::UnknownLeaderEpoch,
            Self::Offline => ErrorCode::KafkaStorageError,
            Self::OffsetOutOfRange { .. } => ErrorCode::OffsetOutOfRange,
            Self::OffsetNotAvailable => ErrorCode::OffsetNotAvailable,
        }
    }
}

impl ToErrorCode for AppendRefusal {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Partition(error) => error.error_code(),
            Self::Invalid(error) => error.error_code(),
            Self::Append(error) => error.error_code(),
            Self::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
            Self::NotEnoughReplicasAfterAppend { .. } => ErrorCode::NotEnoughReplicasAfterAppend,
            Self::TimedOut => ErrorCode::RequestTimedOut,
        }
    }
}

impl ToErrorCode for AppendError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Log(error) => error.error_code(),
            // A fault of ours, not of the client.
            Self::NotPrepared | Self::OutOfOrder { .. } => ErrorCode::UnknownServerError,
            Self::RecordListTooLarge { .. } => ErrorCode::RecordListTooLarge,
            Self::Malformed => ErrorCode::InvalidRecord,
            Self::Producer(error) => error.error_code(),
        }
    }
}

impl ToErrorCode for ProduceError {
    fn error_code(&self) -> ErrorCode {
        self.code()
    }
}

impl ToErrorCode for LogError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Full | Self::Offline { .. } => ErrorCode::KafkaStorageError,
            Self::Closed => ErrorCode::NotLeaderOrFollower,
        }
    }
}

impl ToErrorCode for ProducerStateError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::OutOfOrderSequence { .. } => ErrorCode::OutOfOrderSequenceNumber,
            Self::InvalidProducerEpoch { .. } => ErrorCode::InvalidProducerEpoch,
            Self::InvalidTxnState { .. } => ErrorCode::InvalidTxnState,
            Self::CoordinatorFenced { .. } => ErrorCode::TransactionCoordinatorFenced,
        }
    }
}

impl ToErrorCode for DeleteRecordsError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Partition(error) => error.error_code(),
            Self::Policy => ErrorCode::PolicyViolation,
            Self::TimedOut => ErrorCode::RequestTimedOut,
        }
    }
}

impl ToErrorCode for SessionError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::IdNotFound => ErrorCode::FetchSessionIdNotFound,
            Self::InvalidEpoch => ErrorCode::InvalidFetchSessionEpoch,
            Self::TopicIds => ErrorCode::FetchSessionTopicIdError,
        }
    }
}

impl ToErrorCode for AlterConfigsError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::UnknownTopic(_) => ErrorCode::UnknownTopicOrPartition,
            Self::Change(error) => error.error_code(),
            Self::Invalid(error) => error.error_code(),
            Self::Malformed(_) | Self::Contended(_) | Self::Store(_) => ErrorCode::UnknownServerError,
        }
    }
}

impl ToErrorCode for ChangeError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Duplicate | Self::Null(_) => ErrorCode::InvalidRequest,
            Self::NotList { .. } | Self::Unknown(_) => ErrorCode::InvalidConfig,
        }
    }
}

impl ToErrorCode for TopicFault {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } | Self::Value { .. } | Self::NotBuilt { .. } | Self::Lags { .. } => {
                ErrorCode::InvalidConfig
            }
        }
    }
}

impl ToErrorCode for AskError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Busy | Self::Timeout => ErrorCode::RequestTimedOut,
            Self::Stopped => ErrorCode::NotLeaderOrFollower,
        }
    }
}

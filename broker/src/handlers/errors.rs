//! THE mapping from domain errors to the codes that clients are told (protocol.md 2.6); what the controller is told
//! stands in `replication::receiver`. No `_` arm: a new error finds its code here
//! or does not compile.

use protocol::error::ErrorCode;
use protocol::records::refusal::ProduceError;
use storage::log::{AppendError, LogError};
use storage::producer_state::ProducerStateError;

use crate::admin::ask::{
    AllocateError, CreatePartitionsError, CreateTopicError, DeleteTopicError, OffsetNodeError,
};
use crate::admin::configs::AlterConfigsError;
use crate::config::dynamic::ChangeError;
use crate::config::topic::TopicFault;
use crate::fetch_session::cache::SessionError;
use crate::partition::ask::{AppendRefusal, DeleteRecordsError, MoveError, PartitionError};
use crate::shard::AskError;
use crate::store::StoreError;

/// Has an error code.
pub trait ToErrorCode {
    /// What clients are told.
    fn error_code(&self) -> ErrorCode;
}

/// The code of something that says no more than whether it was done.
pub fn code_of<E: ToErrorCode>(outcome: Result<(), E>) -> ErrorCode {
    outcome.map_or_else(|error| error.error_code(), |()| ErrorCode::None)
}

impl ToErrorCode for PartitionError {
    fn error_code(&self) -> ErrorCode {
        match self {
            // Metadata knows the partition, or the handler would not have asked: whoever routed here was behind, or ahead
            // of us. Every client reads metadata again and comes back after its back-off.
            Self::NotHere | Self::Loading | Self::NotLeader { .. } => ErrorCode::NotLeaderOrFollower,
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
            Self::Full | Self::Exhausted | Self::Offline { .. } => ErrorCode::KafkaStorageError,
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

impl ToErrorCode for MoveError {
    fn error_code(&self) -> ErrorCode {
        match self {
            // What a replica that is not here is called since the API began (KIP-113).
            Self::NotHere => ErrorCode::ReplicaNotAvailable,
            Self::NameTooLong => ErrorCode::InvalidTopicException,
            Self::Storage => ErrorCode::KafkaStorageError,
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

impl ToErrorCode for StoreError {
    fn error_code(&self) -> ErrorCode {
        match self {
            // A failed commit is a failed disk.
            Self::Unwritable => ErrorCode::KafkaStorageError,
            Self::ConnectionLoss | Self::SessionExpired => ErrorCode::NotController,
            Self::NoNode
            | Self::NodeExists
            | Self::BadVersion
            | Self::NotEmpty
            | Self::NoChildrenForEphemerals
            | Self::BadPath
            | Self::Refused
            | Self::TooLarge => ErrorCode::UnknownServerError,
        }
    }
}

impl ToErrorCode for CreateTopicError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Duplicate(_) | Self::Reserved(_) | Self::CountsAndAssignment => ErrorCode::InvalidRequest,
            Self::Exists(_) | Self::BeingDeleted(_) => ErrorCode::TopicAlreadyExists,
            Self::NullConfig(_) | Self::Config(_) => ErrorCode::InvalidConfig,
            Self::Partitions(_) => ErrorCode::InvalidPartitions,
            Self::TooManyPartitions(_) => ErrorCode::PolicyViolation,
            Self::ReplicationFactor { .. } => ErrorCode::InvalidReplicationFactor,
            Self::IllegalName(_) | Self::Collides { .. } => ErrorCode::InvalidTopicException,
            Self::Assignment => ErrorCode::InvalidReplicaAssignment,
            Self::Racks => ErrorCode::UnknownServerError,
            Self::Store(error) => error.error_code(),
            Self::TimedOut => ErrorCode::RequestTimedOut,
        }
    }
}

impl ToErrorCode for DeleteTopicError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Disabled => ErrorCode::TopicDeletionDisabled,
            Self::UnknownTopic => ErrorCode::UnknownTopicOrPartition,
            Self::UnknownTopicId => ErrorCode::UnknownTopicId,
            Self::Store(error) => error.error_code(),
            Self::TimedOut => ErrorCode::RequestTimedOut,
        }
    }
}

impl ToErrorCode for CreatePartitionsError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Duplicate => ErrorCode::InvalidRequest,
            Self::BeingDeleted => ErrorCode::InvalidTopicException,
            Self::Unknown(_) => ErrorCode::UnknownTopicOrPartition,
            Self::Reassigning(_) => ErrorCode::ReassignmentInProgress,
            Self::Count { .. } => ErrorCode::InvalidPartitions,
            Self::TooMany(_) => ErrorCode::PolicyViolation,
            Self::Assignment => ErrorCode::InvalidReplicaAssignment,
            Self::ReplicationFactor { .. } => ErrorCode::InvalidReplicationFactor,
            Self::Racks | Self::Malformed => ErrorCode::UnknownServerError,
            Self::Store(error) => error.error_code(),
            Self::TimedOut => ErrorCode::RequestTimedOut,
        }
    }
}

impl ToErrorCode for AllocateError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Exhausted | Self::Malformed => ErrorCode::UnknownServerError,
            // Clients try again (KAFKA-14694).
            Self::Store(_) => ErrorCode::CoordinatorLoadInProgress,
        }
    }
}

impl ToErrorCode for OffsetNodeError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::Path | Self::Malformed => ErrorCode::UnknownServerError,
            Self::Store(error) => error.error_code(),
        }
    }
}

impl ToErrorCode for AlterConfigsError {
    fn error_code(&self) -> ErrorCode {
        match self {
            Self::UnknownTopic(_) => ErrorCode::UnknownTopicOrPartition,
            Self::Change(error) => error.error_code(),
            Self::Invalid(error) => error.error_code(),
            Self::Malformed(_) | Self::Contended(_) => ErrorCode::UnknownServerError,
            Self::Store(error) => error.error_code(),
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

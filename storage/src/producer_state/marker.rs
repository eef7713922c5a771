//! The marker that ends a transaction: the one record of a control batch (coordinators.md 7.2, storage.md 2.1).
//!
//! ```text
//! key    i16 version 0, i16 type (0 abort, 1 commit; others belong to Raft and are ignored)
//! value  i16 version 0, i32 coordinator epoch
//! ```

use protocol::records::batch::{BatchView, TimestampType};
use protocol::records::record::{Record, RecordError};
use protocol::types::TimestampMs;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxnOutcome {
    /// Its records do not count.
    Abort,
    /// Its records count.
    Commit,
}

/// What a control batch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTxnMarker {
    /// How the transaction ended.
    pub outcome: TxnOutcome,
    /// Epoch of the coordinator that wrote the marker.
    pub coordinator_epoch: i32,
    /// When it was written.
    pub timestamp: TimestampMs,
}

/// Why a control batch cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    /// The batch is compressed, which no broker does to a control batch.
    #[error("control batch is compressed")]
    Compressed,
    /// The record is malformed.
    #[error("control record: {0}")]
    Record(RecordError),
    /// Key or value end too early.
    #[error("key or value of the control record is too short")]
    TooShort,
    /// A version is negative.
    #[error("version {0} of the control record")]
    BadVersion(i16),
}

impl EndTxnMarker {
    /// Reads the marker of a batch. `None` for a batch that is no control batch, for one that compaction emptied, and
    /// for a control batch that ends no transaction.
    ///
    /// # Errors
    /// What is malformed. Bytes behind the known fields are ignored, as a later version may add some.
    pub fn read(batch: &BatchView<'_>) -> Result<Option<Self>, MarkerError> {
        let attributes = batch.attributes();
        if !attributes.is_control() || batch.record_count() == 0 {
            return Ok(None);
        }
        if attributes.codec_id() != 0 {
            return Err(MarkerError::Compressed);
        }
        let (record, _) = Record::parse(batch.payload()).map_err(MarkerError::Record)?;
        let outcome = match type_of(record.key.unwrap_or_default())? {
            0 => TxnOutcome::Abort,
            1 => TxnOutcome::Commit,
            _ => return Ok(None),
        };
        let timestamp = match attributes.timestamp_type() {
            TimestampType::LogAppendTime => batch.max_timestamp(),
            // The base of a batch with a delete horizon is no time of a record; its maximum is kept.
            TimestampType::CreateTime if attributes.has_delete_horizon() => batch.max_timestamp(),
            TimestampType::CreateTime => {
                TimestampMs::new(batch.base_timestamp().get().saturating_add(record.timestamp_delta))
            }
        };
        let coordinator_epoch = coordinator_epoch_of(record.value.unwrap_or_default())?;
        Ok(Some(Self { outcome, coordinator_epoch, timestamp }))
    }
}

fn type_of(key: &[u8]) -> Result<i16, MarkerError> {
    let (version, rest) = key.split_first_chunk().ok_or(MarkerError::TooShort)?;
    check_version(*version)?;
    rest.first_chunk().map(|kind| i16::from_be_bytes(*kind)).ok_or(MarkerError::TooShort)
}

fn coordinator_epoch_of(value: &[u8]) -> Result<i32, MarkerError> {
    let (version, rest) = value.split_first_chunk().ok_or(MarkerError::TooShort)?;
    check_version(*version)?;
    rest.first_chunk().map(|epoch| i32::from_be_bytes(*epoch)).ok_or(MarkerError::TooShort)
}

fn check_version(version: [u8; 2]) -> Result<(), MarkerError> {
    match i16::from_be_bytes(version) {
        version if version < 0 => Err(MarkerError::BadVersion(version)),
        _ => Ok(()),
    }
}

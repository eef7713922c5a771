//! A partition as a part of this broker uses it that lives on the same shard: a coordinator reads its log from the start.
//! No client stands behind it: nothing is counted as traffic, and no limit of a client holds. Appends go the way of all
//! appends.

use std::rc::Rc;

use bytes::Bytes;
use protocol::types::{LeaderEpoch, Offset};
use storage::io::Runtime;
use storage::log::ReadRequest;

use super::ask::{PartitionError, PartitionKey};
use super::service::PartitionService;

/// Batches of a log, the first of which may begin below what was asked for, and the last of which may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Where the reading began: where the log starts if that is later than what was asked for.
    pub from: Offset,
    /// The batches; `None` at the end of the log.
    pub bytes: Option<Bytes>,
}

impl<R: Runtime> PartitionService<R> {
    /// Copies batches of a partition that this broker leads, also those above the high watermark: at most so many bytes,
    /// but one batch at least. The log ends behind what has an offset, though it may not be written yet: that of the
    /// leadership before is waited for.
    ///
    /// # Errors
    /// It is not led here, or its log has failed or is damaged.
    pub async fn read_here(
        &self,
        key: PartitionKey,
        from: Offset,
        max_bytes: usize,
    ) -> Result<Batches, PartitionError> {
        loop {
            let partition = self.held(key).ok_or(PartitionError::NotHere)?;
            partition.check_leader(LeaderEpoch::NONE)?;
            // Retention, or a client that deletes records, may have moved it.
            let from = from.max(partition.log().log_start_offset());
            let upper_bound = partition.log().written_offset();
            let request = ReadRequest { from, max_bytes, upper_bound, min_one_batch: true };
            match partition.ask_log(async |log| log.copy(request).await).await {
                Ok(None) if upper_bound < partition.log().log_end_offset() => {
                    let log = partition.log();
                    let is_failed = log.until_written(log.log_end_offset()).await.is_err();
                    let is_short = log.written_offset() < log.log_end_offset();
                    if is_failed && is_short && Rc::ptr_eq(&log, &partition.log()) {
                        return Err(PartitionError::Offline);
                    }
                }
                Ok(bytes) => return Ok(Batches { from, bytes }),
                Err(_) if from < partition.log().log_start_offset() => {}
                Err(error) => return Err(partition.read_error(from, &error)),
            }
        }
    }

    /// The largest batch that a partition takes, in bytes; `None` if it is not here.
    pub fn batch_bytes_max(&self, key: PartitionKey) -> Option<usize> {
        let config = self.held(key)?.config();
        usize::try_from(config.max_message_bytes).ok()
    }
}

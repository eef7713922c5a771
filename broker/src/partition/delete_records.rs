//! DeleteRecords on the owner (protocol.md 3.7): the log start offset moves up, segments go with the next retention.

use std::rc::Rc;

use protocol::types::{LeaderEpoch, Offset};
use storage::io::Runtime;

use super::ask::{ActiveProducer, DeleteRecordsError, PartitionError};
use super::replica::Partition;

impl<R: Runtime> Partition<R> {
    /// Deletes what lies below `offset` (`Offset::NONE`: below the high watermark); the low watermark.
    ///
    /// # Errors
    /// Why nothing was deleted.
    pub(super) async fn delete_records(
        self: &Rc<Self>,
        offset: Offset,
    ) -> Result<Offset, DeleteRecordsError> {
        self.check_leader(LeaderEpoch::NONE)?;
        if !self.config().log.cleanup_policy.delete {
            return Err(DeleteRecordsError::Policy);
        }
        let end = self.high_watermark();
        let offset = if offset == Offset::NONE { end } else { offset };
        if offset < Offset::ZERO || offset > end {
            let start = self.log().log_start_offset();
            return Err(PartitionError::OffsetOutOfRange { offset, start, end }.into());
        }
        let moved = self.ask_log(async |log| log.advance_log_start(offset).await).await;
        moved.map_err(|error| {
            tracing::error!(partition = %self.name, %error, "log start could not be moved");
            PartitionError::Offline
        })?;
        self.log_start_moved();
        // The only replica has done so already; waiting for followers comes with them.
        Ok(self.machine.borrow().low_watermark())
    }

    /// Producers whose state the log keeps.
    pub(super) fn producers(&self) -> Vec<ActiveProducer> {
        let producers = self.log().producers().into_iter();
        producers
            .map(|producer| ActiveProducer {
                producer_id: producer.producer_id,
                producer_epoch: producer.producer_epoch,
                last_sequence: producer.last_sequence,
                last_timestamp: producer.last_timestamp,
                coordinator_epoch: producer.coordinator_epoch,
                current_txn_start_offset: producer.current_txn_start_offset.unwrap_or(Offset::NONE),
            })
            .collect()
    }
}

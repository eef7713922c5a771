//! What bounds the coordinators of one shard: requests that wait, what is being written, the memory that groups take. Knows
//! no group. `service` and `active` ask before a machine does.

use super::ask::GroupRequest;
use super::group::machine::Room;
use super::service::Inner;
use crate::shard::ShardRuntime;

/// Requests that wait on one shard for a reply: more are told to come again. Each has a connection, or had one.
const WAITING_MAX: usize = 1 << 18;

/// What is being written on one shard: beyond that, requests that write are told to come again.
const WRITES_MAX: usize = 1 << 14;
const WRITES_BYTES_MAX: usize = 64 << 20;

/// Of the memory for groups, the part that members and groups that are not there yet leave to those that are.
const KNOWN_DIVISOR: usize = 8;

impl<R: ShardRuntime> Inner<R> {
    /// Whether a request had better come again: there is no end to what is waited for or written.
    pub(super) fn is_overloaded(&self, request: &GroupRequest) -> bool {
        let writes = match request {
            GroupRequest::Heartbeat(_) | GroupRequest::OffsetFetch(_) | GroupRequest::Describe(_) => false,
            GroupRequest::Join(_)
            | GroupRequest::Sync(_)
            | GroupRequest::Leave(_)
            | GroupRequest::OffsetCommit(_)
            | GroupRequest::OffsetDelete(_)
            | GroupRequest::Delete(_) => true,
        };
        writes
            && (self.waiting.get() >= WAITING_MAX
                || self.writer.in_flight().exceeds(WRITES_MAX, WRITES_BYTES_MAX))
    }

    /// What one request may add to the memory that groups take.
    pub(super) fn room(&self) -> Room {
        let (max, kept) = (self.settings.memory_bytes, self.kept.get());
        let of_newcomers = max.saturating_sub(max / KNOWN_DIVISOR);
        Room {
            newcomers: of_newcomers.saturating_sub(kept),
            known: max.saturating_sub(kept),
            ..Room::UNBOUNDED
        }
    }
}

//! What goes into the machine of a partition's groups and what comes out. Contract between the machine and its driver.

use bytes::Bytes;
use protocol::error::ErrorCode;
use protocol::types::{MonoTime, Offset, TimestampMs, TopicName};

use crate::coordinator::ask::{GroupReply, GroupRequest};

/// Names a request that waits for its reply, among those of one partition's machine. The driver keeps who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(pub u64);

/// Names a batch that is being appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// What the machine knows of the world in one step.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For timers.
    pub mono: MonoTime,
    /// For records and expiry.
    pub wall: TimestampMs,
    /// For member ids.
    pub random: u128,
}

/// What happens to the groups of a partition.
#[derive(Debug)]
pub enum Event {
    /// A request; exactly one [`Effect::Reply`] follows, now or in a later step.
    Request {
        /// Who waits.
        waiter: Waiter,
        /// What is asked.
        request: GroupRequest,
    },
    /// A batch is committed, its first record at an offset; or it is not in the log. Batches are told in the order of
    /// their [`Effect::Append`]s.
    Written {
        /// The batch.
        write: WriteId,
        /// Where it begins, or why it is not there: an error code of the log (coordinators.md 3.8 maps it).
        outcome: Result<Offset, ErrorCode>,
    },
    /// The time of `next_timer` has come.
    Timer,
    /// Offsets are to be looked at whether they are expired (`offsets.retention.check.interval.ms`). The look may end
    /// early: [`Effect::Continue`].
    Expire,
    /// Topics were deleted: their offsets go.
    TopicsDeleted(Vec<TopicName>),
    /// Goes on where the last step ended early.
    Continue,
}

/// What the machine wants done, in this order.
#[derive(Debug)]
pub enum Effect {
    /// Answer a request.
    Reply {
        /// Who waits.
        waiter: Waiter,
        /// The answer.
        reply: GroupReply,
    },
    /// Append one batch of records and tell with [`Event::Written`].
    Append {
        /// Its name.
        write: WriteId,
        /// The records: key, and value or tombstone.
        records: Vec<(Bytes, Option<Bytes>)>,
    },
    /// There is more to do: [`Event::Continue`] after the shard had its turn.
    Continue,
}

//! What goes into the machine of a partition's groups and what comes out. Contract between the machine and its driver.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use protocol::error::ErrorCode;
use protocol::types::{MonoTime, Offset, TimestampMs, TopicName};
use smallvec::{SmallVec, smallvec};

use super::news::News;
use crate::coordinator::ask::{GroupReply, GroupRequest};

/// Names a request that waits for its reply, among those of one partition's machine. The driver keeps who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(pub u64);

/// Names a batch that is being appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// A record to append: key, and value or tombstone.
pub type Record = (Bytes, Option<Value>);

/// The value of a record, in pieces that follow each other. What members brought stays where it came: it may be large, and
/// the log refuse it all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(SmallVec<[Bytes; 1]>);

impl Value {
    /// Bytes of all pieces.
    pub fn size(&self) -> usize {
        self.0.iter().map(Bytes::len).fold(0, usize::saturating_add)
    }

    /// All of it together: a copy where there are several pieces.
    pub fn whole(&self) -> Bytes {
        match self.0.as_slice() {
            [one] => one.clone(),
            pieces => {
                let mut whole = BytesMut::with_capacity(self.size());
                pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
                whole.freeze()
            }
        }
    }

    /// The pieces.
    #[cfg(test)]
    pub(super) fn pieces(&self) -> &[Bytes] {
        &self.0
    }
}

impl From<Bytes> for Value {
    fn from(whole: Bytes) -> Self {
        Self(smallvec![whole])
    }
}

impl From<Vec<Bytes>> for Value {
    fn from(pieces: Vec<Bytes>) -> Self {
        Self(pieces.into())
    }
}

/// What the machine knows of the world in one step.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For timers.
    pub mono: MonoTime,
    /// For records and expiry.
    pub wall: TimestampMs,
    /// For member ids.
    pub random: u128,
    /// For what is to be kept.
    pub room: Room,
}

/// Bytes that one request may add: to what groups keep, as `bytes` reckons them, and to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Of members and groups that are not there yet.
    pub newcomers: usize,
    /// Of those that are: they have more room, so that a flood of others does not stop their work.
    pub known: usize,
    /// Bytes that one batch of records may have at most: of a larger one the log would take nothing.
    pub batch: usize,
}

impl Room {
    /// Of whoever has all the memory.
    pub const UNBOUNDED: Self = Self { newcomers: usize::MAX, known: usize::MAX, batch: usize::MAX };
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
        /// Topics of a commit that were deleted since its topics were looked up, also where another one has the name.
        gone: BTreeSet<TopicName>,
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
    /// Topics were deleted: nobody is told of their offsets from now on, and they go. To be told before the next request.
    TopicsDeleted(Arc<BTreeSet<TopicName>>),
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
        /// The records.
        records: Vec<Record>,
    },
    /// There is more to do: [`Event::Continue`] after the shard had its turn.
    Continue,
    /// Tell who runs the broker.
    Tell(News),
}

//! What owners have read for a fetch before it had to be weighed (replication.md 12.4). What fits is handed out as it is;
//! what does not is read again, and its owner is told that it was not. Knows no wire format; used by `collect` only.

use std::collections::BTreeMap;

use protocol::types::MonoTime;
use smallvec::SmallVec;

use super::collect::Group;
use crate::partition::ask::{FetchPart, Fetched, FetchedData, PartitionError, ProbedPart};
use crate::shard::ShardId;

/// The shares of a fetch might break a limit of the whole: it must be weighed.
pub(super) struct MustWeigh {
    /// It may wait until then.
    pub(super) wait_until: Option<MonoTime>,
    pub(super) kept: Kept,
}

impl MustWeigh {
    /// After these shares. With one that was read the fetch does not wait any more.
    pub(super) fn after(
        groups: &[Group],
        shares: Vec<Option<Fetched>>,
        wait_until: Option<MonoTime>,
    ) -> Self {
        let mut kept = Kept::default();
        for ((owner, places), share) in groups.iter().zip(shares) {
            let Some(Fetched::Read(read)) = share else { continue };
            kept.owners.push(*owner);
            let here = read.into_iter().filter_map(|(at, outcome)| Some((*places.get(at)?, outcome)));
            kept.reads.extend(here);
        }
        Self { wait_until: wait_until.filter(|_| kept.owners.is_empty()), kept }
    }
}

/// What parts gave, or why not.
pub(super) type Read = Result<FetchedData, PartitionError>;

/// What owners have read for a fetch before it had to be weighed. Without what others might give it would be right: no part
/// was given less than it has, but for its own limit.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) owners: SmallVec<[ShardId; 4]>,
    /// By the place of the part; those of the owners that are missing here are quiet.
    pub(super) reads: BTreeMap<usize, Read>,
}

impl Kept {
    /// What a part of one of the owners could give.
    pub(super) fn probed(&self, place: usize, part: &FetchPart) -> ProbedPart {
        match self.reads.get(&place) {
            None => ProbedPart::QUIET,
            Some(Err(_)) => ProbedPart::AT_ONCE,
            // Its first batch exceeds its limit.
            Some(Ok(data)) if data.held_back => {
                ProbedPart { bytes: u64::from(part.max_bytes), has_data: true, ..ProbedPart::NOTHING }
            }
            Some(Ok(data)) => {
                ProbedPart { bytes: u64::from(data.bytes), has_data: data.bytes > 0, ..ProbedPart::NOTHING }
            }
        }
    }

    /// Whether a part was given just what it would be given by a read with these limits.
    pub(super) fn fits(&self, place: usize, (left, first_batch_whole): (u32, bool)) -> bool {
        self.reads.get(&place).is_some_and(|read| match read {
            Ok(data) if data.held_back => !first_batch_whole,
            Ok(data) => data.bytes <= left,
            Err(_) => true,
        })
    }

    /// What is to be told of a part that is asked again.
    pub(super) fn discarded(&self, place: usize) -> u32 {
        self.reads.get(&place).and_then(|read| read.as_ref().ok()).map_or(0, |data| data.bytes)
    }
}

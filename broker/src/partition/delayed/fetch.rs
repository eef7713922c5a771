//! Fetches that wait for bytes on an owner, on behalf of the shards that hold them (replication.md 12.4). An armed wait
//! costs nothing until one of its partitions moves; then its bytes are counted again, and the shard is woken when there
//! are enough. Pure: the service supplies the counting. Deadlines are the fetching shard's; here they only tell when a
//! wait that nobody ended may be forgotten.

use std::collections::{BTreeSet, HashMap};

use protocol::types::MonoTime;
use smallvec::SmallVec;

use crate::partition::ask::{FetchPart, Isolation, PartitionKey, ProbedPart, Reader, WaitId, Wake};
use crate::partition::held::ByKey;
use crate::shard::ShardId;

/// Names a wait among those of all shards.
pub type WaitKey = (ShardId, WaitId);

/// What an owner needs to count a waiting fetch's bytes.
#[derive(Debug)]
pub struct Armed {
    /// What may be seen.
    pub isolation: Isolation,
    /// Who reads.
    pub reader: Reader,
    /// The partitions of this owner.
    pub parts: Vec<FetchPart>,
    /// What each could give when last counted.
    pub bytes: Vec<u64>,
    /// What they could give together.
    pub sum: u64,
    /// Bytes that end the wait.
    pub min_bytes: u64,
    /// Whether other owners have partitions of this fetch: then every growth is told, since only the sum decides.
    pub is_shared: bool,
    /// After this time nobody waits.
    pub until: MonoTime,
}

/// The fetches that wait on one owner.
#[derive(Debug, Default)]
pub struct DelayedFetches {
    armed: HashMap<WaitKey, Armed>,
    /// Where each partition stands, and at which place of the wait. Mostly one wait: no allocation for it.
    by_partition: ByKey<SmallVec<[(WaitKey, usize); 1]>>,
    by_deadline: BTreeSet<(MonoTime, WaitKey)>,
}

impl DelayedFetches {
    /// Arms a wait, whose bytes were counted in this very turn.
    pub fn arm(&mut self, key: WaitKey, armed: Armed) {
        self.disarm(key);
        for (place, part) in armed.parts.iter().enumerate() {
            self.by_partition.entry(part.key).or_default().push((key, place));
        }
        self.by_deadline.insert((armed.until, key));
        self.armed.insert(key, armed);
    }

    /// Ends a wait; an unknown one is fine, for ends and wakes cross each other.
    pub fn disarm(&mut self, key: WaitKey) {
        let Some(armed) = self.armed.remove(&key) else { return };
        self.by_deadline.remove(&(armed.until, key));
        for part in &armed.parts {
            if let Some(waits) = self.by_partition.get_mut(&part.key) {
                waits.retain(|(wait, _)| *wait != key);
                if waits.is_empty() {
                    self.by_partition.remove(&part.key);
                }
            }
        }
    }

    /// Forgets waits that nobody can be waiting for any more.
    pub fn expire(&mut self, now: MonoTime) {
        while let Some((until, key)) = self.by_deadline.first().copied()
            && until < now
        {
            self.disarm(key);
        }
    }

    /// Whether somebody waits for this partition.
    pub fn waits_for(&self, partition: PartitionKey) -> bool {
        self.by_partition.contains_key(&partition)
    }

    /// A partition moved: counts again with `probe`, and appends to `wakes` who must be told what.
    pub fn moved(
        &mut self,
        partition: PartitionKey,
        mut probe: impl FnMut(&Armed, &FetchPart) -> ProbedPart,
        wakes: &mut Vec<(ShardId, Wake)>,
    ) {
        let waits = self.by_partition.get(&partition).cloned().unwrap_or_default();
        for (key, place) in waits {
            let Some(armed) = self.armed.get_mut(&key) else { continue };
            let Some(part) = armed.parts.get(place) else { continue };
            let ProbedPart { bytes: found, immediate, .. } = probe(armed, part);
            let Some(here) = armed.bytes.get_mut(place) else { continue };
            let before = armed.sum;
            let bytes = before.saturating_sub(std::mem::replace(here, found)).saturating_add(found);
            armed.sum = bytes;
            let enough = bytes >= armed.min_bytes;
            if immediate || enough || (armed.is_shared && bytes > before) {
                wakes.push((key.0, Wake { id: key.1, bytes, immediate }));
            }
            if immediate || enough {
                self.disarm(key);
            }
        }
    }

    /// How often the armed waits stand at a partition.
    pub fn watched(&self) -> usize {
        self.by_partition.values().map(SmallVec::len).sum()
    }

    /// How many waits are armed.
    pub fn len(&self) -> usize {
        self.armed.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }
}

#[cfg(test)]
mod tests;

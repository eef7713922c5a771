//! The partitions of a shard by key: in order for whoever walks them all, and by hash for the requests, which look for
//! hundreds at a time. Knows nothing of what they are. Used by `service`; `delayed` takes its hasher.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::ask::PartitionKey;

/// A map by partition.
pub(super) type ByKey<V> = HashMap<PartitionKey, V, BuildHasherDefault<KeyHasher>>;

/// Mixes what a key writes: sixteen random bytes that this cluster has drawn, and an index. Nobody outside can choose
/// keys that collide, so that nothing dearer is needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyHasher(u64);

/// Odd, and its bits are spread: the golden ratio as a fraction of 2^64.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let word = chunk.iter().fold(0u64, |word, byte| (word << 8) | u64::from(*byte));
            self.write_u64(word);
        }
    }

    fn write_i32(&mut self, number: i32) {
        self.write_u64(u64::from(number.cast_unsigned()));
    }

    fn write_usize(&mut self, _: usize) {
        // The length of the id, which is always the same.
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(SPREAD);
    }

    fn finish(&self) -> u64 {
        // The map takes its bits from both ends.
        self.0 ^ (self.0 >> 32)
    }
}

/// What a shard holds, by key.
pub(super) struct Held<V> {
    ordered: BTreeMap<PartitionKey, V>,
    hashed: ByKey<V>,
}

impl<V> Default for Held<V> {
    fn default() -> Self {
        Self { ordered: BTreeMap::new(), hashed: ByKey::default() }
    }
}

impl<V: Clone> Held<V> {
    pub(super) fn get(&self, key: &PartitionKey) -> Option<&V> {
        self.hashed.get(key)
    }

    pub(super) fn insert(&mut self, key: PartitionKey, value: V) {
        self.ordered.insert(key, value.clone());
        self.hashed.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &PartitionKey) {
        self.ordered.remove(key);
        self.hashed.remove(key);
    }

    pub(super) fn clear(&mut self) {
        self.ordered.clear();
        self.hashed.clear();
    }

    /// All, in the order of their keys.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.ordered.values()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::BuildHasher;

    use protocol::types::TopicId;

    use super::*;

    fn key(topic: u8, partition: i32) -> PartitionKey {
        PartitionKey { topic_id: TopicId::new([topic; 16]), partition }
    }

    #[test]
    fn the_partitions_of_a_topic_have_hashes_of_their_own() {
        let hash = |key: PartitionKey| BuildHasherDefault::<KeyHasher>::default().hash_one(key);
        let all: Vec<_> =
            (0..4).flat_map(|topic| (0..1000).map(move |index| hash(key(topic, index)))).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        // The map's buckets are told by the low bits, its groups by the high ones: both are spread.
        for shift in [0, 57] {
            let mut filled = [0u32; 128];
            for hash in &all {
                filled[usize::try_from((hash >> shift) & 127).unwrap()] += 1;
            }
            assert!(filled.iter().all(|count| *count > 0 && *count < 4 * 4000 / 128), "{filled:?}");
        }
    }

    #[test]
    fn what_is_held_is_found_and_walked_in_order() {
        let mut held = Held::default();
        for index in [5, 1, 3] {
            held.insert(key(1, index), index);
        }
        held.remove(&key(1, 3));
        assert_eq!(held.values().copied().collect::<Vec<_>>(), [1, 5]);
        assert_eq!(
            (held.get(&key(1, 5)), held.get(&key(1, 3)), held.get(&key(2, 5))),
            (Some(&5), None, None)
        );
        held.clear();
        assert_eq!((held.get(&key(1, 5)), held.values().count()), (None, 0));
    }
}

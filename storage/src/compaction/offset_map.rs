//! The last offset of each key, in bounded memory: 24 bytes a key, whatever its length (storage.md 7.5). A key is known by
//! 128 bits of a keyed hash; with 64 bits two keys would meet in a large topic, and one of them would lose its last record.
//! Kafka takes MD5. Nothing of it goes to a disk, so ours is two SipHashes of the standard library under keys drawn for each
//! map (S-20): a client cannot choose keys that meet.

use std::hash::{BuildHasher, RandomState};

use protocol::types::Offset;

/// What a key takes.
pub const SLOT_BYTES: usize = 24;

/// Probes by the hash before the search goes on slot by slot: in a map that is nearly full that is what ends it.
const HASHED_PROBES: usize = 8;

/// The digest of a key, and the offset plus one; zero is a slot without a key.
type Slot = [u64; 3];

/// Last offsets by key. Takes keys until it is full, and says so.
#[derive(Debug)]
pub struct OffsetMap {
    slots: Vec<Slot>,
    /// Slots that its memory has room for.
    slots_max: usize,
    keys: usize,
    keys_max: usize,
    hashers: [RandomState; 2],
    latest_offset: Option<Offset>,
}

/// Where a key is, or may go.
enum Found {
    Key(usize),
    Free(usize),
    Nowhere,
}

impl OffsetMap {
    /// A map of at most `bytes`, of which the share `load_factor` is used. It never takes more than `keys_max` keys: for a
    /// small log it is small.
    pub fn new(bytes: usize, load_factor: f64, keys_max: u64) -> Self {
        let slots_max = bytes / SLOT_BYTES;
        let keys_max = usize::try_from(keys_max).unwrap_or(usize::MAX).min(share(slots_max, load_factor));
        let slots = keys_max.saturating_mul(slots_max).div_ceil(share(slots_max, load_factor).max(1));
        let slots = slots.saturating_add(1).min(slots_max);
        let hashers = [RandomState::new(), RandomState::new()];
        Self {
            slots: vec![[0; 3]; slots],
            slots_max,
            keys: 0,
            keys_max: keys_max.min(slots),
            hashers,
            latest_offset: None,
        }
    }

    /// How many keys it holds.
    pub const fn len(&self) -> usize {
        self.keys
    }

    /// Whether it holds none.
    pub const fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Whether no more keys may be put into it.
    pub const fn is_full(&self) -> bool {
        self.keys >= self.keys_max
    }

    /// Of a hundred keys that its memory has room for, how many it holds.
    pub fn used_percent(&self) -> u32 {
        let percent = self.keys.saturating_mul(100) / self.slots_max.max(1);
        u32::try_from(percent).unwrap_or(100)
    }

    /// Memory that it takes.
    pub const fn size_bytes(&self) -> usize {
        self.slots.len().saturating_mul(SLOT_BYTES)
    }

    /// Everything up to this offset was looked at; `None` before anything was.
    pub const fn latest_offset(&self) -> Option<Offset> {
        self.latest_offset
    }

    /// Notes that everything up to `offset` was looked at.
    pub const fn set_latest_offset(&mut self, offset: Offset) {
        self.latest_offset = Some(offset);
    }

    /// The last offset of a key, if the key was put here.
    pub fn get(&self, key: &[u8]) -> Option<Offset> {
        match self.find(self.digest(key)) {
            Found::Key(at) => self.slots.get(at).and_then(|slot| offset_of(*slot)),
            Found::Free(_) | Found::Nowhere => None,
        }
    }

    /// Puts a key; a later offset replaces an earlier one. Answers `false`, with nothing changed, if the map is full: a key
    /// that it has is refused too then, as in Kafka.
    pub fn put(&mut self, key: &[u8], offset: Offset) -> bool {
        if self.is_full() {
            return false;
        }
        let digest = self.digest(key);
        let at = match self.find(digest) {
            Found::Key(at) => at,
            Found::Free(at) => {
                self.keys = self.keys.saturating_add(1);
                at
            }
            Found::Nowhere => return false,
        };
        let stored = u64::try_from(offset.get()).unwrap_or(0).saturating_add(1);
        if let Some(slot) = self.slots.get_mut(at) {
            let [first, second] = digest;
            *slot = [first, second, stored];
        }
        self.latest_offset = Some(offset);
        true
    }

    fn digest(&self, key: &[u8]) -> [u64; 2] {
        let [first, second] = &self.hashers;
        [first.hash_one(key), second.hash_one(key)]
    }

    fn find(&self, digest: [u64; 2]) -> Found {
        let [first, second] = digest;
        let mut hash = first;
        let mut at = 0;
        for attempt in 0..self.slots.len().saturating_add(HASHED_PROBES) {
            if attempt < HASHED_PROBES {
                at = self.slot_of(hash);
                hash = hash.wrapping_add(second);
            } else {
                at = at.saturating_add(1);
                at = if at >= self.slots.len() { 0 } else { at };
            }
            match self.slots.get(at) {
                Some([_, _, 0]) => return Found::Free(at),
                Some([one, other, _]) if (*one, *other) == (first, second) => return Found::Key(at),
                Some(_) => {}
                None => return Found::Nowhere,
            }
        }
        Found::Nowhere
    }

    fn slot_of(&self, hash: u64) -> usize {
        let slots = u128::try_from(self.slots.len()).unwrap_or(0);
        usize::try_from((u128::from(hash) * slots) >> 64).unwrap_or(0)
    }
}

fn offset_of([_, _, stored]: Slot) -> Option<Offset> {
    i64::try_from(stored.checked_sub(1)?).ok().map(Offset::new)
}

#[allow(clippy::cast_possible_truncation, reason = "a share of a number that was a usize, rounded down")]
#[allow(
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the factor is not negative; a slot more or less"
)]
fn share(slots: usize, load_factor: f64) -> usize {
    let factor = if load_factor.is_nan() { 0.0 } else { load_factor.clamp(0.0, 1.0) };
    ((slots as f64) * factor) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_map_takes_its_share_of_keys_and_then_says_that_it_is_full() {
        let mut map = OffsetMap::new(100 * SLOT_BYTES, 0.9, u64::MAX);
        let mut taken = 0_i64;
        while map.put(&taken.to_be_bytes(), Offset::new(taken)) {
            taken += 1;
        }
        assert_eq!((taken, map.len(), map.is_full()), (90, 90, true));
        assert!(!map.put(&0_i64.to_be_bytes(), Offset::new(500)), "also a key that it has");
        assert_eq!(map.latest_offset(), Some(Offset::new(89)));
        for key in 0..90_i64 {
            assert_eq!(map.get(&key.to_be_bytes()), Some(Offset::new(key)));
        }
        assert_eq!(map.get(b"no such key"), None);
    }

    #[test]
    fn a_map_without_a_free_slot_finds_what_it_has_and_ends_its_search_for_the_rest() {
        let mut map = OffsetMap::new(50 * SLOT_BYTES, 7.0, u64::MAX);
        for key in 0..50_i64 {
            assert!(map.put(&key.to_be_bytes(), Offset::new(key)));
        }
        assert!((0..50_i64).all(|key| map.get(&key.to_be_bytes()) == Some(Offset::new(key))));
        assert_eq!(map.get(b"no such key"), None);
    }

    #[test]
    fn a_map_for_few_keys_is_small_and_one_without_room_takes_none() {
        let map = OffsetMap::new(128 << 20, 0.9, 1000);
        assert!(map.size_bytes() < 1200 * SLOT_BYTES, "{}", map.size_bytes());
        for (bytes, factor, keys) in
            [(0, 0.9, 10), (23, 0.9, 10), (1 << 20, 0.0, 10), (1 << 20, f64::NAN, 10), (1 << 20, 0.9, 0)]
        {
            let mut map = OffsetMap::new(bytes, factor, keys);
            assert!(!map.put(b"k", Offset::ZERO) && map.get(b"k").is_none(), "{bytes} {factor} {keys}");
        }
    }

    proptest! {
        #[test]
        fn it_answers_what_an_ordinary_map_does(
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), 0..400)
        ) {
            let mut map = OffsetMap::new(500 * SLOT_BYTES, 0.9, u64::MAX);
            let mut model = BTreeMap::new();
            for (at, key) in (0..).zip(&keys) {
                prop_assert!(map.put(key, Offset::new(at)));
                model.insert(key.clone(), Offset::new(at));
            }
            prop_assert_eq!(map.len(), model.len());
            for (key, offset) in model {
                prop_assert_eq!(map.get(&key), Some(offset));
            }
        }
    }
}

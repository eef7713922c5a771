//! The offsets of one group: what is committed, what is being written, what transactions hold back. Of two records for
//! one partition the later in the log counts, whatever the order in which they become visible (coordinators.md 2.9, 3.5).
//! Compact, as a coordinator keeps a million of them. Called by `commits`, `forget`, `expiry` and `replay`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;

use protocol::consumer_offsets::OffsetValue;
use protocol::types::{LeaderEpoch, Offset, ProducerId, TimestampMs};

use super::bytes::{EXTRA_BYTES, OFFSET_BYTES};
use super::topics::{TopicIndex, Topics};
use crate::coordinator::ask::Place;

/// A partition that has an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) topic: TopicIndex,
    pub(super) partition: i32,
}

impl Key {
    /// What a client's walk over all offsets has come to.
    pub(super) const fn of(place: Place) -> Self {
        Self { topic: TopicIndex(place.0), partition: place.1 }
    }

    /// The same for who walks.
    pub(super) const fn place(self) -> Place {
        Place(self.topic.0, self.partition)
    }

    /// The first key of a topic, and the last.
    pub(super) fn bounds(topic: TopicIndex) -> std::ops::RangeInclusive<Self> {
        Self { topic, partition: i32::MIN }..=Self { topic, partition: i32::MAX }
    }
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Committed {
    /// The next offset to read.
    pub(super) offset: Offset,
    /// When it was committed.
    pub(super) at: TimestampMs,
    /// Where its record is in the log.
    pub(super) record: Offset,
    /// What few offsets have.
    extra: Option<Box<Extra>>,
    /// Epoch of the last record read.
    pub(super) leader_epoch: LeaderEpoch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Extra {
    metadata: Arc<str>,
    expires_at: Option<TimestampMs>,
}

// A million offsets are to fit in 300 MiB, with their share of 100,000 groups.
const _: () = assert!(size_of::<Committed>() <= 40 && size_of::<Key>() == 8);

impl Committed {
    /// An offset whose record is not in the log yet.
    pub(super) fn new(
        offset: Offset,
        leader_epoch: LeaderEpoch,
        at: TimestampMs,
        metadata: &str,
        expires_at: Option<TimestampMs>,
    ) -> Self {
        let extra = (!metadata.is_empty() || expires_at.is_some())
            .then(|| Box::new(Extra { metadata: Arc::from(metadata), expires_at }));
        Self { offset, at, record: Offset::NONE, extra, leader_epoch }
    }

    /// Its record is in the log.
    pub(super) fn recorded(self, record: Offset) -> Self {
        Self { record, ..self }
    }

    /// The offset of a record of the log.
    pub(super) fn read(record: Offset, value: &OffsetValue<'_>) -> Self {
        let expires_at = value.expire_timestamp.map(TimestampMs::new);
        let leader_epoch = LeaderEpoch::new(value.leader_epoch);
        let at = TimestampMs::new(value.commit_timestamp);
        Self::new(Offset::new(value.offset), leader_epoch, at, value.metadata, expires_at).recorded(record)
    }

    /// The value of its record.
    pub(super) fn value(&self) -> OffsetValue<'_> {
        OffsetValue {
            offset: self.offset.get(),
            leader_epoch: self.leader_epoch.get(),
            metadata: self.extra.as_ref().map_or("", |extra| &extra.metadata),
            commit_timestamp: self.at.get(),
            expire_timestamp: self.expires_at().map(TimestampMs::get),
        }
    }

    /// What the client keeps beside it.
    pub(super) fn metadata(&self) -> Arc<str> {
        self.extra.as_ref().map_or_else(Arc::default, |extra| Arc::clone(&extra.metadata))
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        OFFSET_BYTES + self.extra.as_ref().map_or(0, |extra| EXTRA_BYTES + extra.metadata.len())
    }

    /// When it expires, where its commit said so.
    pub(super) fn expires_at(&self) -> Option<TimestampMs> {
        self.extra.as_ref().and_then(|extra| extra.expires_at)
    }
}

/// The offsets of a group.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    committed: BTreeMap<Key, Committed>,
    /// How many records for a partition are being written.
    in_flight: BTreeMap<Key, u32>,
    /// Offsets of transactions without a marker. The service of transactions fits in here; until then only a log that
    /// Kafka wrote has any.
    open: BTreeMap<ProducerId, BTreeMap<Key, Committed>>,
    /// Bytes of all that is committed, or waits for a marker.
    bytes: usize,
}

impl Offsets {
    /// Whether there is nothing, not even something that is being written.
    pub(super) fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.in_flight.is_empty() && self.open.is_empty()
    }

    /// Bytes that all of them take.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many are committed.
    pub(super) fn len(&self) -> usize {
        self.committed.len()
    }

    /// The committed offset of a partition.
    pub(super) fn get(&self, key: Key) -> Option<&Committed> {
        self.committed.get(&key)
    }

    /// The committed offsets from a key on.
    pub(super) fn from(&self, key: Option<Key>) -> impl Iterator<Item = (Key, &Committed)> {
        let from = key.map_or(Bound::Unbounded, Bound::Included);
        self.committed.range((from, Bound::Unbounded)).map(|(key, committed)| (*key, committed))
    }

    /// Whether a record for the partition is being written.
    pub(super) fn is_in_flight(&self, key: Key) -> bool {
        self.in_flight.contains_key(&key)
    }

    /// Whether a transaction without a marker holds an offset of the partition.
    pub(super) fn is_in_transaction(&self, key: Key) -> bool {
        self.open.values().any(|offsets| offsets.contains_key(&key))
    }

    /// Whether what is committed for the partition may change without a further request.
    pub(super) fn is_unstable(&self, key: Key) -> bool {
        self.is_in_flight(key) || self.is_in_transaction(key)
    }

    /// The partitions from one on that have an offset of any kind, so many at most, and the one behind them.
    pub(super) fn keys_from(&self, from: Option<Key>, keys_max: usize) -> (Vec<Key>, Option<Key>) {
        let range = (from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        let enough = keys_max.saturating_add(1);
        let mut keys: Vec<Key> = self.committed.range(range).map(|(key, _)| *key).take(enough).collect();
        keys.extend(self.in_flight.range(range).map(|(key, _)| *key).take(enough));
        for offsets in self.open.values() {
            keys.extend(offsets.range(range).map(|(key, _)| *key).take(enough));
        }
        keys.sort_unstable();
        keys.dedup();
        let next = keys.get(keys_max).copied();
        keys.truncate(keys_max);
        (keys, next)
    }

    /// The partitions of a topic whose record is not after `horizon`, in transactions too. Those are left out that a record
    /// is in flight for, as what becomes of them is not known yet; whether there are such.
    pub(super) fn keys_until(&self, topic: TopicIndex, horizon: Offset) -> (Vec<Key>, bool) {
        let of_transactions = self.open.values().flat_map(|offsets| offsets.range(Key::bounds(topic)));
        let mut keys: Vec<Key> = self
            .committed
            .range(Key::bounds(topic))
            .chain(of_transactions)
            .filter(|(_, committed)| committed.record <= horizon)
            .map(|(key, _)| *key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let all = keys.len();
        keys.retain(|key| !self.is_in_flight(*key));
        let are_some_left = keys.len() < all;
        (keys, are_some_left)
    }

    /// A record for the partition is being written.
    pub(super) fn begin(&mut self, topics: &mut Topics, key: Key) {
        let records = self.in_flight.entry(key).or_insert_with(|| {
            topics.hold(key.topic);
            0
        });
        *records += 1;
    }

    /// It is written, or not.
    pub(super) fn end(&mut self, topics: &mut Topics, key: Key) {
        let Some(records) = self.in_flight.get_mut(&key) else {
            unreachable!("a record ends as often as it began")
        };
        *records -= 1;
        if *records == 0 {
            self.in_flight.remove(&key);
            topics.release(key.topic);
        }
    }

    /// An offset is in the log, at `committed.record`. Whether there was none before.
    pub(super) fn put(&mut self, topics: &mut Topics, key: Key, committed: Committed) -> bool {
        match self.committed.entry(key) {
            Entry::Occupied(mut there) => {
                if there.get().record <= committed.record {
                    self.bytes += committed.bytes();
                    self.bytes -= there.insert(committed).bytes();
                }
                false
            }
            Entry::Vacant(place) => {
                topics.hold(key.topic);
                self.bytes += committed.bytes();
                place.insert(committed);
                true
            }
        }
    }

    /// A tombstone is in the log, at `record`; it is for what transactions hold too.
    pub(super) fn remove(&mut self, topics: &mut Topics, key: Key, record: Offset) {
        let bytes = &mut self.bytes;
        let mut take_out = |offsets: &mut BTreeMap<Key, Committed>| {
            if let Entry::Occupied(there) = offsets.entry(key)
                && there.get().record < record
            {
                *bytes -= there.remove().bytes();
                topics.release(key.topic);
            }
        };
        take_out(&mut self.committed);
        self.open.retain(|_, offsets| {
            take_out(offsets);
            !offsets.is_empty()
        });
    }

    /// An offset of a transaction is in the log, at `committed.record`.
    pub(super) fn put_in_transaction(
        &mut self,
        topics: &mut Topics,
        producer: ProducerId,
        key: Key,
        committed: Committed,
    ) {
        self.bytes += committed.bytes();
        match self.open.entry(producer).or_default().insert(key, committed) {
            Some(before) => self.bytes -= before.bytes(),
            None => topics.hold(key.topic),
        }
    }

    /// A tombstone of a transaction is in the log.
    pub(super) fn remove_from_transaction(&mut self, topics: &mut Topics, producer: ProducerId, key: Key) {
        let Some(offsets) = self.open.get_mut(&producer) else { return };
        if let Some(offset) = offsets.remove(&key) {
            self.bytes -= offset.bytes();
            topics.release(key.topic);
        }
        if offsets.is_empty() {
            self.open.remove(&producer);
        }
    }

    /// A marker is in the log: what the transaction held counts, where nothing later does, or is dropped.
    pub(super) fn end_transaction(&mut self, topics: &mut Topics, producer: ProducerId, committed: bool) {
        for (key, offset) in self.open.remove(&producer).unwrap_or_default() {
            self.bytes -= offset.bytes();
            if committed {
                self.put(topics, key, offset);
            }
            topics.release(key.topic);
        }
    }

    /// Forgets everything that is in the log.
    pub(super) fn clear(&mut self, topics: &mut Topics) {
        self.bytes = 0;
        for key in std::mem::take(&mut self.committed).into_keys() {
            topics.release(key.topic);
        }
        for key in std::mem::take(&mut self.open).into_values().flat_map(BTreeMap::into_keys) {
            topics.release(key.topic);
        }
    }

    /// Drops some of what is committed; whether there is more. Their topics' names are not let go: it is for when those go
    /// too.
    pub(super) fn drop_some(&mut self, budget: &mut usize) -> bool {
        while *budget > 0 && self.committed.pop_first().is_some() {
            *budget -= 1;
        }
        !self.committed.is_empty()
    }

    /// Compares what is counted with what is there.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let of_transactions = self.open.values().flat_map(BTreeMap::values);
        let bytes = self.committed.values().chain(of_transactions).map(Committed::bytes).sum::<usize>();
        assert_eq!(self.bytes, bytes);
    }

    /// How many names this holds.
    #[cfg(test)]
    pub(super) fn uses(&self) -> usize {
        self.committed.len() + self.in_flight.len() + self.open.values().map(BTreeMap::len).sum::<usize>()
    }
}

//! One fetch session: its partitions in the order they are served, and what the client was last told of each.

use std::collections::{BTreeMap, HashMap};

use protocol::types::{LeaderEpoch, MonoTime, Offset, TopicId, TopicName};

use crate::shard::ShardId;

/// A topic as the client names it: by name below Fetch v13, by id from then on. One session never mixes both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TopicRef {
    /// By name.
    Name(TopicName),
    /// By id.
    Id(TopicId),
}

/// A partition as the client names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartitionRef {
    /// The topic.
    pub topic: TopicRef,
    /// Index of the partition.
    pub partition: i32,
}

/// What a client wants of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// First record wanted.
    pub fetch_offset: Offset,
    /// Bytes to return at most.
    pub max_bytes: i32,
    /// Leader epoch the client knows.
    pub current_leader_epoch: LeaderEpoch,
    /// Epoch of the client's last record.
    pub last_fetched_epoch: LeaderEpoch,
    /// The follower's log start offset.
    pub log_start_offset: Offset,
    /// That there was nothing more to tell, as of an answer that was given; forgotten when the client wants anything else.
    pub quiet: Option<Quiet>,
}

/// A moment at which a partition had nothing more for a client that was told of it. What it means is its owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiet {
    /// The owner that said so.
    pub owner: ShardId,
    /// Who read, and what could be seen: to others there may be something to tell.
    pub view: u8,
    /// The moment, by the owner's count.
    pub moment: u64,
}

/// What an answer says of one partition, as far as the session cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether there are records.
    pub has_records: bool,
    /// The high watermark in the answer.
    pub high_watermark: Offset,
    /// The log start offset in the answer.
    pub log_start_offset: Offset,
    /// Whether the error code is not 0.
    pub is_error: bool,
    /// Whether a diverging epoch or a preferred replica is returned.
    pub redirects: bool,
    /// That there is nothing more to tell until something moves.
    pub quiet: Option<Quiet>,
}

/// What a partition of a session takes in memory, about, beside its topic's name.
const PARTITION_BYTES: usize = 256;

impl PartitionRef {
    /// Bytes of memory that it takes in a session, about.
    pub(super) fn bytes(&self) -> usize {
        match &self.topic {
            TopicRef::Name(name) => PARTITION_BYTES.saturating_add(name.get().len()),
            TopicRef::Id(_) => PARTITION_BYTES,
        }
    }
}

/// A partition of a session.
#[derive(Clone, Debug)]
struct Cached {
    partition: PartitionRef,
    wanted: Wanted,
    high_watermark: Offset,
    log_start_offset: Offset,
}

/// One session.
#[derive(Debug)]
pub struct FetchSession {
    pub(super) id: i32,
    pub(super) epoch: i32,
    pub(super) is_follower: bool,
    pub(super) uses_topic_ids: bool,
    pub(super) created: MonoTime,
    pub(super) last_used: MonoTime,
    bytes: usize,
    next_place: u64,
    places: HashMap<PartitionRef, u64>,
    order: BTreeMap<u64, Cached>,
}

impl FetchSession {
    /// A session that expects epoch 1 next.
    pub(super) fn new(id: i32, is_follower: bool, uses_topic_ids: bool, now: MonoTime) -> Self {
        Self {
            id,
            epoch: 1,
            is_follower,
            uses_topic_ids,
            created: now,
            last_used: now,
            bytes: 0,
            next_place: 0,
            places: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// How many partitions it has.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Partitions in the order they are served.
    pub fn partitions(&self) -> impl Iterator<Item = (&PartitionRef, Wanted)> {
        self.order.values().map(|cached| (&cached.partition, cached.wanted))
    }

    /// Adds a partition at the end, or replaces what is wanted of it.
    pub(super) fn want(&mut self, partition: &PartitionRef, wanted: Wanted) {
        if let Some(cached) = self.places.get(partition).and_then(|place| self.order.get_mut(place)) {
            cached.wanted = wanted;
            return;
        }
        self.bytes = self.bytes.saturating_add(partition.bytes());
        self.append(Cached {
            partition: partition.clone(),
            wanted,
            high_watermark: Offset::NONE,
            log_start_offset: Offset::NONE,
        });
    }

    /// Drops a partition.
    pub(super) fn forget(&mut self, partition: &PartitionRef) {
        if let Some(place) = self.places.remove(partition) {
            self.order.remove(&place);
            self.bytes = self.bytes.saturating_sub(partition.bytes());
        }
    }

    /// Notes what the answer that opens the session tells of a partition: its order stays as it was asked.
    pub(super) fn note(&mut self, partition: &PartitionRef, told: Told) {
        if let Some(cached) = self.places.get(partition).and_then(|place| self.order.get_mut(place)) {
            cached.high_watermark = told.high_watermark;
            cached.log_start_offset = told.log_start_offset;
            cached.wanted.quiet = told.quiet;
        }
    }

    /// Notes what an answer tells of a partition; whether the answer must carry it.
    pub(super) fn tell(&mut self, partition: &PartitionRef, told: Told) -> bool {
        let Some(place) = self.places.get(partition).copied() else { return true };
        let Some(cached) = self.order.get_mut(&place) else { return true };
        let changed =
            cached.high_watermark != told.high_watermark || cached.log_start_offset != told.log_start_offset;
        // After an error the partition is sent again once healthy, even with the high watermark it had before.
        cached.high_watermark = if told.is_error { Offset::NONE } else { told.high_watermark };
        cached.log_start_offset = told.log_start_offset;
        cached.wanted.quiet = told.quiet;
        if told.has_records
            && let Some(cached) = self.order.remove(&place)
        {
            self.append(cached);
        }
        changed || told.has_records || told.is_error || told.redirects
    }

    fn append(&mut self, cached: Cached) {
        self.places.insert(cached.partition.clone(), self.next_place);
        self.order.insert(self.next_place, cached);
        self.next_place += 1;
    }
}

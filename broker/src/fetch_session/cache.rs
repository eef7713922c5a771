//! The sessions of one shard: opening, continuing and closing them by the table of replication.md 5, and who must leave
//! when there are too many (KIP-227, KAFKA-9137). Kafka counts sessions only; ours have a bound of memory too, beyond which
//! none is made: a client without a session sends whole fetches.

use std::collections::BTreeMap;

use protocol::types::MonoTime;

use super::session::{FetchSession, PartitionRef, Told, Wanted};

/// A session unused, or alive, for longer than this may be evicted by whoever comes (`min.incremental.fetch.session.
/// eviction.ms` of Kafka, not configurable there either).
const EVICTION_MS: i64 = 120_000;

/// Wrong use of a session; answered at top level with no partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// Unknown or evicted.
    #[error("no such fetch session")]
    IdNotFound,
    /// Not the epoch that comes next.
    #[error("fetch session epoch is not the expected one")]
    InvalidEpoch,
    /// Opened with names and continued with ids, or the reverse.
    #[error("fetch session mixes topic names and topic ids")]
    TopicIds,
}

/// What a fetch request says of its session.
#[derive(Clone, Copy, Debug)]
pub struct SessionRequest<'a> {
    /// 0 for none.
    pub session_id: i32,
    /// 0 opens, -1 closes, above continues.
    pub session_epoch: i32,
    /// Whether topics are named by id.
    pub uses_topic_ids: bool,
    /// Whether a follower asks.
    pub is_follower: bool,
    /// Partitions wanted: all of them, or those that changed.
    pub wanted: &'a [(PartitionRef, Wanted)],
    /// Partitions no longer wanted.
    pub forgotten: &'a [PartitionRef],
}

/// How a fetch relates to sessions; given to [`FetchSessionCache::finish`] when its answer is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchContext {
    /// Everything is in the request, and stays there.
    Sessionless,
    /// Everything is in the request, and a session is wanted.
    Full {
        /// Whether topics are named by id.
        uses_topic_ids: bool,
        /// Whether a follower asks.
        is_follower: bool,
    },
    /// The session says what is wanted.
    Incremental {
        /// Its id.
        session_id: i32,
        /// The epoch that the session expects next, unless another request came in between.
        next_epoch: i32,
    },
}

/// What the answer says of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Id in the answer; 0 for none.
    pub session_id: i32,
    /// Whether each partition that was told is part of the answer, in that order; all are when it is not incremental.
    pub include: Vec<bool>,
}

/// What there is to tell of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGauges {
    /// Sessions.
    pub sessions: usize,
    /// Partitions in them.
    pub partitions: usize,
    /// Sessions that had to leave for others, so far.
    pub evictions: u64,
}

/// The fetch sessions of one shard.
#[derive(Debug)]
pub struct FetchSessionCache {
    limits: SessionLimits,
    ids: IdRange,
    sessions: BTreeMap<i32, FetchSession>,
    /// Memory of all sessions.
    bytes: usize,
    evictions: u64,
}

/// What the sessions of one shard may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Sessions.
    pub slots_max: usize,
    /// Bytes of memory of all of them together, about 256 for each partition.
    pub bytes_max: usize,
}

/// The ids that a shard draws from: equal parts of the positive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    first: i32,
    len: i32,
}

impl IdRange {
    /// The range of a shard.
    pub fn of(shard: u16, shards: u16) -> Self {
        let len = i32::MAX / i32::from(shards.max(1));
        Self { first: len * i32::from(shard), len }
    }

    /// The shard whose range holds an id, of `shards`; `None` for ids that nobody draws.
    pub fn shard_of(id: i32, shards: u16) -> Option<u16> {
        let len = i32::MAX / i32::from(shards.max(1));
        let shard = u16::try_from(id.checked_div(len)?).ok()?;
        (id > 0 && shard < shards).then_some(shard)
    }

    /// An id of this range; never 0.
    fn draw(self, random: u64) -> i32 {
        let span = u64::from(self.len.unsigned_abs().max(2));
        let step = random % (span - 1);
        self.first + i32::try_from(step).unwrap_or(0) + i32::from(self.first == 0)
    }
}

impl FetchSessionCache {
    /// A cache for one of `shards` shards.
    pub fn new(limits: SessionLimits, shard: u16, shards: u16) -> Self {
        let ids = IdRange::of(shard, shards);
        Self { limits, ids, sessions: BTreeMap::new(), bytes: 0, evictions: 0 }
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// What there is to tell.
    pub fn gauges(&self) -> CacheGauges {
        CacheGauges {
            sessions: self.sessions.len(),
            partitions: self.sessions.values().map(FetchSession::len).sum(),
            evictions: self.evictions,
        }
    }

    /// Takes the session part of a request: closes, continues or promises a session.
    ///
    /// # Errors
    /// The session is not what the request takes it for; no session changed.
    pub fn begin(
        &mut self,
        now: MonoTime,
        request: &SessionRequest<'_>,
    ) -> Result<FetchContext, SessionError> {
        let SessionRequest { session_id, session_epoch, uses_topic_ids, is_follower, .. } = *request;
        match session_epoch {
            0 | -1 => {
                self.remove(session_id);
                Ok(match session_epoch {
                    0 => FetchContext::Full { uses_topic_ids, is_follower },
                    _ => FetchContext::Sessionless,
                })
            }
            epoch => self.proceed(now, epoch, request),
        }
    }

    /// Partitions of an incremental fetch, in the order they are served.
    pub fn partitions(&self, session_id: i32) -> impl Iterator<Item = (&PartitionRef, Wanted)> {
        self.sessions.get(&session_id).into_iter().flat_map(FetchSession::partitions)
    }

    /// Builds the session part of an answer. `wanted` stands in the order of the answer, and `told` names places in it,
    /// in their order: partitions that have nothing to tell since they were last told may be left out.
    ///
    /// # Errors
    /// Another request of the session came in between: the answer has no partitions, but keeps the session id.
    pub fn finish(
        &mut self,
        now: MonoTime,
        random: u64,
        context: FetchContext,
        wanted: &[(PartitionRef, Wanted)],
        told: &[(usize, Told)],
    ) -> Result<Finished, SessionError> {
        match context {
            FetchContext::Sessionless => Ok(Finished { session_id: 0, include: vec![true; told.len()] }),
            FetchContext::Full { uses_topic_ids, is_follower } => {
                let session_id = self.open(now, random, (uses_topic_ids, is_follower), wanted, told);
                Ok(Finished { session_id, include: vec![true; told.len()] })
            }
            FetchContext::Incremental { session_id, next_epoch } => {
                let session = self.sessions.get_mut(&session_id).ok_or(SessionError::InvalidEpoch)?;
                if session.epoch != next_epoch {
                    return Err(SessionError::InvalidEpoch);
                }
                let include = told.iter().map(|(place, told)| {
                    wanted.get(*place).is_some_and(|(partition, _)| session.tell(partition, *told))
                });
                Ok(Finished { session_id, include: include.collect() })
            }
        }
    }

    fn proceed(
        &mut self,
        now: MonoTime,
        epoch: i32,
        request: &SessionRequest<'_>,
    ) -> Result<FetchContext, SessionError> {
        let session_id = request.session_id;
        let session = self.sessions.get_mut(&session_id).ok_or(SessionError::IdNotFound)?;
        if session.epoch != epoch {
            return Err(SessionError::InvalidEpoch);
        }
        if session.uses_topic_ids != request.uses_topic_ids {
            return Err(SessionError::TopicIds);
        }
        let before = session.bytes();
        for (partition, wanted) in request.wanted {
            session.want(partition, *wanted);
        }
        for partition in request.forgotten {
            session.forget(partition);
        }
        session.last_used = now;
        session.epoch = next_epoch(epoch);
        let (next_epoch, after, is_empty) = (session.epoch, session.bytes(), session.is_empty());
        self.bytes = self.bytes.saturating_sub(before).saturating_add(after);
        if is_empty {
            self.remove(session_id);
            return Ok(FetchContext::Sessionless);
        }
        if after > before && self.bytes > self.limits.bytes_max {
            // It ends as if it had been evicted: the client comes back with a whole fetch.
            self.remove(session_id);
            self.evictions = self.evictions.wrapping_add(1);
            return Err(SessionError::IdNotFound);
        }
        Ok(FetchContext::Incremental { session_id, next_epoch })
    }

    /// Ends a session; whether there was one.
    fn remove(&mut self, session_id: i32) -> bool {
        let removed = self.sessions.remove(&session_id);
        self.bytes = self.bytes.saturating_sub(removed.as_ref().map_or(0, FetchSession::bytes));
        removed.is_some()
    }

    /// Opens a session if there is or can be made room; 0 if not.
    fn open(
        &mut self,
        now: MonoTime,
        random: u64,
        (uses_topic_ids, is_follower): (bool, bool),
        wanted: &[(PartitionRef, Wanted)],
        told: &[(usize, Told)],
    ) -> i32 {
        let bytes = wanted.iter().fold(0usize, |sum, (partition, _)| sum.saturating_add(partition.bytes()));
        if !self.has_memory(now, bytes) {
            return 0;
        }
        if self.sessions.len() >= self.limits.slots_max && !self.evict(now, is_follower, wanted.len()) {
            return 0;
        }
        let mut id = self.ids.draw(random);
        // The cache is far smaller than the range: a few steps find a free id.
        while self.sessions.contains_key(&id) {
            id = self.ids.draw(u64::from(id.unsigned_abs()) + 1);
        }
        let mut session = FetchSession::new(id, is_follower, uses_topic_ids, now);
        for (partition, wanted) in wanted {
            session.want(partition, *wanted);
        }
        for (place, told) in told {
            if let Some((partition, _)) = wanted.get(*place) {
                session.note(partition, *told);
            }
        }
        self.bytes = self.bytes.saturating_add(session.bytes());
        self.sessions.insert(id, session);
        id
    }

    /// Whether there is memory for one more session, or was when those that nobody uses had left.
    fn has_memory(&mut self, now: MonoTime, bytes: usize) -> bool {
        let left = self.limits.bytes_max.checked_sub(bytes);
        let Some(left) = left else { return false };
        while self.bytes > left {
            let unused = self.sessions.values().min_by_key(|session| (session.last_used, session.id));
            let Some(unused) = unused.filter(|session| is_old(now, session.last_used)).map(|s| s.id) else {
                return false;
            };
            self.remove(unused);
            self.evictions = self.evictions.wrapping_add(1);
        }
        true
    }

    /// Makes room: the longest unused session if it is stale, else the lowest-ranked one that the newcomer may evict,
    /// if the newcomer ranks above it. Followers outrank consumers, larger sessions outrank smaller ones.
    fn evict(&mut self, now: MonoTime, is_follower: bool, len: usize) -> bool {
        let unused = self.sessions.values().min_by_key(|session| (session.last_used, session.id));
        let victim = match unused {
            Some(session) if is_old(now, session.last_used) => Some(session.id),
            _ => self
                .sessions
                .values()
                .filter(|session| is_old(now, session.created) || (is_follower && !session.is_follower))
                .min_by_key(|session| (session.is_follower, session.len(), session.id))
                .filter(|session| (session.is_follower, session.len()) < (is_follower, len))
                .map(|session| session.id),
        };
        let evicted = victim.is_some_and(|id| self.remove(id));
        self.evictions = self.evictions.wrapping_add(u64::from(evicted));
        evicted
    }
}

/// Whether a moment lies so far back that a session may leave for others.
fn is_old(now: MonoTime, since: MonoTime) -> bool {
    now > since.plus_ms(EVICTION_MS)
}

/// The epoch after one: numbers are positive for ever.
pub(super) fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}

use protocol::types::{LeaderEpoch, MonoTime, Offset, TopicName};

use super::cache::*;
use super::session::*;
use crate::shard::ShardId;

fn at(ms: i64) -> MonoTime {
    MonoTime::new(0).plus_ms(ms)
}

fn partition(index: i32) -> PartitionRef {
    PartitionRef { topic: TopicRef::Name(TopicName::new("t")), partition: index }
}

fn wanted(index: i32) -> (PartitionRef, Wanted) {
    let wanted = Wanted {
        fetch_offset: Offset::ZERO,
        max_bytes: 100,
        current_leader_epoch: LeaderEpoch::NONE,
        last_fetched_epoch: LeaderEpoch::NONE,
        log_start_offset: Offset::NONE,
        quiet: None,
    };
    (partition(index), wanted)
}

const QUIET: Told = Told {
    has_records: false,
    high_watermark: Offset::ZERO,
    log_start_offset: Offset::ZERO,
    is_error: false,
    redirects: false,
    quiet: None,
};

fn each(told: &[Told]) -> Vec<(usize, Told)> {
    told.iter().copied().enumerate().collect()
}

struct Cache {
    cache: FetchSessionCache,
    now: MonoTime,
    random: u64,
}

impl Cache {
    fn new(slots_max: usize) -> Self {
        Self::bounded(slots_max, usize::MAX)
    }

    fn bounded(slots_max: usize, bytes_max: usize) -> Self {
        let limits = SessionLimits { slots_max, bytes_max };
        Self { cache: FetchSessionCache::new(limits, 0, 1), now: at(0), random: 0 }
    }

    fn begin(
        &mut self,
        id: i32,
        epoch: i32,
        wanted: &[(PartitionRef, Wanted)],
        forgotten: &[PartitionRef],
    ) -> Result<FetchContext, SessionError> {
        self.begin_as(id, epoch, (false, false), wanted, forgotten)
    }

    fn begin_as(
        &mut self,
        session_id: i32,
        session_epoch: i32,
        (uses_topic_ids, is_follower): (bool, bool),
        wanted: &[(PartitionRef, Wanted)],
        forgotten: &[PartitionRef],
    ) -> Result<FetchContext, SessionError> {
        let request =
            SessionRequest { session_id, session_epoch, uses_topic_ids, is_follower, wanted, forgotten };
        self.cache.begin(self.now, &request)
    }

    fn finish(
        &mut self,
        context: FetchContext,
        wanted: &[(PartitionRef, Wanted)],
        told: &[Told],
    ) -> Finished {
        self.random += 7;
        self.cache.finish(self.now, self.random, context, wanted, &each(told)).unwrap()
    }

    fn open(&mut self, is_follower: bool, partitions: i32) -> i32 {
        let wanted: Vec<_> = (0..partitions).map(wanted).collect();
        let context = self.begin_as(0, 0, (false, is_follower), &wanted, &[]).unwrap();
        self.finish(context, &wanted, &vec![QUIET; wanted.len()]).session_id
    }

    fn proceed(&mut self, id: i32, epoch: i32, told: &[Told]) -> (Vec<i32>, Finished) {
        let context = self.begin(id, epoch, &[], &[]).unwrap();
        let served: Vec<_> =
            self.cache.partitions(id).map(|(partition, wanted)| (partition.clone(), wanted)).collect();
        let order = served.iter().map(|(partition, _)| partition.partition).collect();
        (order, self.finish(context, &served, told))
    }
}

#[test]
fn a_session_opens_and_continues_with_only_what_changed() {
    // 59
    let mut cache = Cache::new(10);
    let id = cache.open(false, 2);
    assert!(id > 0);
    let (_, finished) = cache.proceed(id, 1, &[QUIET, QUIET]);
    assert_eq!(finished, Finished { session_id: id, include: vec![false, false] });
    let moved = Told { high_watermark: Offset::new(5), ..QUIET };
    let (_, finished) = cache.proceed(id, 2, &[QUIET, moved]);
    assert_eq!(finished.include, vec![false, true]);
    let (_, finished) = cache.proceed(id, 3, &[QUIET, moved]);
    assert_eq!(finished.include, vec![false, false]);
}

#[test]
fn wrong_ids_and_epochs_have_their_errors() {
    // 60, 61, 64
    let mut cache = Cache::new(10);
    let id = cache.open(false, 1);
    cache.proceed(id, 1, &[QUIET]);
    assert_eq!(cache.begin(id, 1, &[], &[]), Err(SessionError::InvalidEpoch));
    assert_eq!(cache.begin(id, 7, &[], &[]), Err(SessionError::InvalidEpoch));
    assert_eq!(cache.begin(id, -2, &[], &[]), Err(SessionError::InvalidEpoch));
    assert_eq!(cache.begin(id + 1, 1, &[], &[]), Err(SessionError::IdNotFound));
    assert_eq!(cache.begin(0, 1, &[], &[]), Err(SessionError::IdNotFound));
    assert_eq!(cache.begin_as(id, 2, (true, false), &[], &[]), Err(SessionError::TopicIds));
    assert!(cache.begin(id, 2, &[], &[]).is_ok(), "a wrong request changes nothing");
}

#[test]
fn a_full_fetch_ends_the_session_it_names() {
    // 62
    let mut cache = Cache::new(10);
    let id = cache.open(false, 1);
    assert_eq!(cache.begin(id, -1, &[wanted(0)], &[]), Ok(FetchContext::Sessionless));
    let finished = cache.finish(FetchContext::Sessionless, &[wanted(0)], &[QUIET]);
    assert_eq!(finished, Finished { session_id: 0, include: vec![true] });
    assert_eq!(cache.begin(id, 2, &[], &[]), Err(SessionError::IdNotFound));
    let id = cache.open(false, 1);
    let context = cache.begin(id, 0, &[wanted(0)], &[]).unwrap();
    let renewed = cache.finish(context, &[wanted(0)], &[QUIET]).session_id;
    assert_ne!(renewed, id);
    assert_eq!(cache.begin(id, 1, &[], &[]), Err(SessionError::IdNotFound));
}

#[test]
fn forgetting_the_last_partition_ends_the_session() {
    // 63
    let mut cache = Cache::new(10);
    let id = cache.open(false, 1);
    assert_eq!(cache.begin(id, 1, &[], &[partition(0)]), Ok(FetchContext::Sessionless));
    assert!(cache.cache.is_empty());
}

#[test]
fn partitions_are_added_replaced_and_forgotten_in_this_order() {
    let mut cache = Cache::new(10);
    let id = cache.open(false, 2);
    let further = Wanted { fetch_offset: Offset::new(9), ..wanted(0).1 };
    cache
        .begin(id, 1, &[(partition(0), further), wanted(2), wanted(3)], &[partition(1), partition(3)])
        .unwrap();
    let served: Vec<_> =
        cache.cache.partitions(id).map(|(p, w)| (p.partition, w.fetch_offset.get())).collect();
    assert_eq!(served, vec![(0, 9), (2, 0)]);
}

#[test]
fn partitions_with_records_move_to_the_end() {
    let mut cache = Cache::new(10);
    let id = cache.open(false, 3);
    let records = Told { has_records: true, ..QUIET };
    let (order, _) = cache.proceed(id, 1, &[records, QUIET, records]);
    assert_eq!(order, vec![0, 1, 2]);
    let (order, _) = cache.proceed(id, 2, &[QUIET, QUIET, QUIET]);
    assert_eq!(order, vec![1, 0, 2]);
}

#[test]
fn a_partition_is_told_again_after_its_error_is_gone() {
    // V-70
    let mut cache = Cache::new(10);
    let id = cache.open(false, 1);
    let error =
        Told { is_error: true, high_watermark: Offset::NONE, log_start_offset: Offset::NONE, ..QUIET };
    for epoch in 1..4 {
        assert_eq!(cache.proceed(id, epoch, &[error]).1.include, vec![true], "errors are always told");
    }
    assert_eq!(cache.proceed(id, 4, &[QUIET]).1.include, vec![true]);
    assert_eq!(cache.proceed(id, 5, &[QUIET]).1.include, vec![false]);
}

#[test]
fn a_second_request_in_between_is_found_when_the_answer_is_built() {
    let mut cache = Cache::new(10);
    let id = cache.open(false, 1);
    let context = cache.begin(id, 1, &[], &[]).unwrap();
    cache.begin(id, 2, &[], &[]).unwrap();
    let finished = cache.cache.finish(at(0), 1, context, &[wanted(0)], &[(0, QUIET)]);
    assert_eq!(finished, Err(SessionError::InvalidEpoch));
}

#[test]
fn epochs_wrap_to_one() {
    // V-69
    assert_eq!(next_epoch(1), 2);
    assert_eq!(next_epoch(i32::MAX), 1);
}

#[test]
fn a_full_cache_evicts_the_stale_then_the_lowest() {
    // 61, V-71
    let mut cache = Cache::new(2);
    let (first, second) = (cache.open(false, 2), cache.open(false, 3));
    assert_eq!(cache.open(false, 9), 0, "young consumers are safe from consumers");
    let follower = cache.open(true, 1);
    assert!(follower > 0, "a follower evicts a consumer, the smaller one");
    assert_eq!(cache.begin(first, 1, &[], &[]), Err(SessionError::IdNotFound));
    cache.now = at(60_000);
    cache.begin(second, 1, &[], &[]).unwrap();
    cache.begin(follower, 1, &[], &[]).unwrap();
    cache.now = at(121_000);
    assert_eq!(cache.open(false, 3), 0, "not stale, and the newcomer ranks no higher");
    let larger = cache.open(false, 4);
    assert!(larger > 0, "an old session gives way to a larger one");
    cache.now = at(181_000);
    cache.begin(larger, 1, &[], &[]).unwrap();
    assert!(cache.open(false, 1) > 0, "a stale session gives way to anyone, a follower's too");
    assert_eq!(cache.begin(follower, 2, &[], &[]), Err(SessionError::IdNotFound));
}

#[test]
fn ids_tell_the_shard() {
    for shards in [1, 2, 5] {
        for shard in 0..shards {
            let mut cache = FetchSessionCache::new(
                SessionLimits { slots_max: 1000, bytes_max: usize::MAX },
                shard,
                shards,
            );
            for random in [0, 1, 7, u64::MAX, 1 << 40, 0] {
                let context = FetchContext::Full { uses_topic_ids: false, is_follower: false };
                let id = cache.finish(at(0), random, context, &[], &[]).unwrap().session_id;
                assert!(id > 0);
                assert_eq!(IdRange::shard_of(id, shards), Some(shard));
            }
            assert_eq!(cache.len(), 6, "all ids differ");
        }
    }
    assert_eq!(IdRange::shard_of(-5, 2), None);
    assert_eq!(IdRange::shard_of(0, 2), None);
}

/// Kafka bounds the number of sessions only; a thousand of a hundred thousand partitions would take tens of gigabytes.
#[test]
fn beyond_its_memory_a_shard_makes_no_session_and_keeps_those_it_has() {
    // Each partition takes 257 bytes with its name.
    let mut cache = Cache::bounded(1000, 100 * 257);
    let (first, second) = (cache.open(false, 60), cache.open(false, 30));
    assert!(first > 0 && second > 0);
    assert_eq!(cache.open(false, 11), 0, "no room is no error");
    assert_eq!(cache.open(true, 101), 0, "it would never fit");
    let third = cache.open(false, 10);
    assert!(third > 0);
    assert_eq!(cache.cache.gauges(), CacheGauges { sessions: 3, partitions: 100, evictions: 0 });
    // What a session forgets, closes or replaces is there for others.
    let forgotten: Vec<_> = (0..5).map(partition).collect();
    cache.begin(third, 1, &[], &forgotten).unwrap();
    assert!(cache.open(false, 5) > 0);
    assert_eq!(cache.open(false, 1), 0);
    cache.begin(second, -1, &[], &[]).unwrap();
    assert!(cache.open(false, 30) > 0);
    // Who does not use its session for long loses it to others.
    cache.now = at(100_000);
    cache.begin(first, 1, &[], &[]).unwrap();
    cache.now = at(120_001);
    assert!(cache.open(false, 40) > 0);
    assert_eq!(
        cache.begin(first, 2, &[], &[]),
        Ok(FetchContext::Incremental { session_id: first, next_epoch: 3 })
    );
}

#[test]
fn a_session_that_grows_beyond_the_memory_ends_and_its_client_begins_anew() {
    let mut cache = Cache::bounded(1000, 10 * 257);
    let (other, id) = (cache.open(false, 4), cache.open(false, 4));
    let more: Vec<_> = (4..7).map(wanted).collect();
    assert_eq!(cache.begin(id, 1, &more, &[]), Err(SessionError::IdNotFound));
    assert_eq!(cache.cache.gauges(), CacheGauges { sessions: 1, partitions: 4, evictions: 1 });
    // Who asks for other offsets only does not grow.
    let same: Vec<_> = (0..4).map(wanted).collect();
    assert!(cache.begin(other, 1, &same, &[]).is_ok());
    let more: Vec<_> = (4..10).map(wanted).collect();
    assert!(cache.begin(other, 2, &more, &[]).is_ok(), "all the room is its own now");
}

#[test]
fn what_was_quiet_stays_so_until_the_client_wants_something_else() {
    let mut cache = Cache::new(10);
    let id = cache.open(false, 3);
    let quiet = |moment| Some(Quiet { owner: ShardId::new(1), view: 2, moment });
    let served = |cache: &Cache| -> Vec<_> {
        cache.cache.partitions(id).map(|(partition, wanted)| (partition.partition, wanted.quiet)).collect()
    };
    assert_eq!(served(&cache), vec![(0, None), (1, None), (2, None)]);
    cache.proceed(id, 1, &[QUIET, Told { quiet: quiet(7), ..QUIET }, Told { quiet: quiet(8), ..QUIET }]);
    assert_eq!(served(&cache), vec![(0, None), (1, quiet(7)), (2, quiet(8))]);

    // Nobody tells of a partition that is passed over, and nothing of it changes.
    let context = cache.begin(id, 2, &[], &[]).unwrap();
    let wanted: Vec<_> = cache.cache.partitions(id).map(|(p, w)| (p.clone(), w)).collect();
    let moved = Told { high_watermark: Offset::new(5), ..QUIET };
    let finished = cache.cache.finish(at(0), 1, context, &wanted, &[(2, moved)]).unwrap();
    assert_eq!(finished.include, vec![true]);
    assert_eq!(served(&cache), vec![(0, None), (1, quiet(7)), (2, None)]);

    // The same offset again is a wish too.
    cache.begin(id, 3, &[self::wanted(1)], &[]).unwrap();
    assert_eq!(served(&cache), vec![(0, None), (1, None), (2, None)]);
}

#[test]
fn a_partition_that_was_forgotten_and_is_wanted_again_is_not_quiet() {
    let mut cache = Cache::new(10);
    let id = cache.open(false, 2);
    let quiet = Some(Quiet { owner: ShardId::new(0), view: 0, moment: 1 });
    cache.proceed(id, 1, &[Told { quiet, ..QUIET }, QUIET]);
    cache.begin(id, 2, &[], &[partition(0)]).unwrap();
    cache.begin(id, 3, &[wanted(0)], &[]).unwrap();
    assert!(cache.cache.partitions(id).all(|(_, wanted)| wanted.quiet.is_none()));
}

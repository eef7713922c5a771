//! Which thread does what: a lane is one place and one kind of work, with a few threads and the jobs that wait for them. A job
//! is given to whichever thread of its lane is free first, so that none stands behind a slow one while another has nothing to
//! do. Where a lane cannot be had, another one of the same place does its work. A thread that has had nothing to do for a
//! while ends. Pure: starts no thread, runs no job and reads no clock; called by [`super::workers`].

use std::collections::{BTreeMap, VecDeque};

use protocol::types::MonoTime;

use super::workers::{Kind, Place};

/// More lanes than a broker with a dozen log dirs has.
const LANES_MAX: usize = 128;

/// Whose work it is, and of what kind.
pub(super) type Key = (Place, Kind);

/// What becomes of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T, J> {
    /// This thread does it.
    Give(T, J),
    /// A new thread of its lane does it: see [`Lanes::started`] and [`Lanes::not_started`].
    Start(J),
    /// It waits for a thread.
    Wait,
}

struct Lane<T, J> {
    threads: BTreeMap<u64, T>,
    /// Threads without work and since when; the one that was at work last is the next to be.
    idle: VecDeque<(u64, MonoTime)>,
    waiting: VecDeque<J>,
}

impl<T, J> Default for Lane<T, J> {
    fn default() -> Self {
        Self { threads: BTreeMap::new(), idle: VecDeque::new(), waiting: VecDeque::new() }
    }
}

impl<T: Clone, J> Lane<T, J> {
    fn has_nothing_to_do(&self) -> bool {
        self.idle.len() == self.threads.len() && self.waiting.is_empty()
    }

    fn give_idle(&mut self) -> Option<T> {
        let (id, _) = self.idle.pop_back()?;
        self.threads.get(&id).cloned()
    }
}

/// All lanes of a shard: `T` is a thread, of which a lane keeps one copy as long as it lasts, `J` a job.
pub(super) struct Lanes<T, J> {
    lanes: BTreeMap<Key, Lane<T, J>>,
    /// Whose threads they are.
    keys: BTreeMap<u64, Key>,
}

impl<T: Clone, J> Lanes<T, J> {
    pub(super) const fn new() -> Self {
        Self { lanes: BTreeMap::new(), keys: BTreeMap::new() }
    }

    /// Takes a job.
    ///
    /// # Errors
    /// There are as many lanes as there may be, all of them at work.
    pub(super) fn take(&mut self, key: &Key, job: J) -> Result<Next<T, J>, J> {
        if self.lanes.len() >= LANES_MAX && !self.lanes.contains_key(key) && !self.end_one() {
            return Err(job);
        }
        let lane = self.lanes.entry(key.clone()).or_default();
        if let Some(thread) = lane.give_idle() {
            return Ok(Next::Give(thread, job));
        }
        if lane.threads.len() < key.1.threads_max() {
            return Ok(Next::Start(job));
        }
        lane.waiting.push_back(job);
        Ok(Next::Wait)
    }

    /// Whether a lane has a thread.
    pub(super) fn has_thread(&self, key: &Key) -> bool {
        self.lanes.get(key).is_some_and(|lane| !lane.threads.is_empty())
    }

    /// A thread was started, and has its first job.
    pub(super) fn started(&mut self, key: &Key, id: u64, thread: T) {
        let lane = self.lanes.entry(key.clone()).or_default();
        lane.threads.insert(id, thread);
        self.keys.insert(id, key.clone());
    }

    /// None could be started: the job waits for those of its lane that there are.
    ///
    /// # Errors
    /// There are none.
    pub(super) fn not_started(&mut self, key: &Key, job: J) -> Result<(), J> {
        let Some(lane) = self.lanes.get_mut(key) else { return Err(job) };
        if lane.threads.is_empty() {
            self.lanes.remove(key);
            return Err(job);
        }
        lane.waiting.push_back(job);
        Ok(())
    }

    /// Lets another lane of the same place do a job: rather not one that removes what may be large, else that with the fewest
    /// who wait.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn share(&mut self, place: &Place, job: J) -> Result<Next<T, J>, J> {
        let others = self.lanes.iter_mut().filter(|(key, lane)| key.0 == *place && !lane.threads.is_empty());
        let least = others.min_by_key(|(key, lane)| (key.1 == Kind::Removal, lane.waiting.len()));
        let Some((_, lane)) = least else { return Err(job) };
        if let Some(thread) = lane.give_idle() {
            return Ok(Next::Give(thread, job));
        }
        lane.waiting.push_back(job);
        Ok(Next::Wait)
    }

    /// A thread has done its job; answers the next one for it.
    pub(super) fn done(&mut self, id: u64, now: MonoTime) -> Option<(T, J)> {
        let lane = self.lanes.get_mut(self.keys.get(&id)?)?;
        let Some(job) = lane.waiting.pop_front() else {
            lane.idle.push_back((id, now));
            return None;
        };
        lane.threads.get(&id).cloned().map(|thread| (thread, job))
    }

    /// Ends the threads that have had nothing to do since before; answers since when the next one has, if any.
    pub(super) fn end_idle(&mut self, before: MonoTime) -> Option<MonoTime> {
        for lane in self.lanes.values_mut() {
            while let Some((id, _)) = lane.idle.front().copied().filter(|(_, since)| *since < before) {
                lane.idle.pop_front();
                lane.threads.remove(&id);
                self.keys.remove(&id);
            }
        }
        self.lanes.retain(|_, lane| !lane.threads.is_empty());
        self.lanes.values().filter_map(|lane| lane.idle.front().map(|(_, since)| *since)).min()
    }

    /// Ends a lane that has nothing to do, and its threads with it: answers whether there was one.
    fn end_one(&mut self) -> bool {
        let idle = self.lanes.iter().find(|(_, lane)| lane.has_nothing_to_do());
        let Some(key) = idle.map(|(key, _)| key.clone()) else { return false };
        if let Some(ended) = self.lanes.remove(&key) {
            for id in ended.threads.keys() {
                self.keys.remove(id);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    type Test = Lanes<u64, &'static str>;

    const NOW: MonoTime = MonoTime::new(0);

    fn key(dir: &str, kind: Kind) -> Key {
        (Place::Dir(Path::new(dir).into()), kind)
    }

    /// Takes a job, for which a thread is started if need be.
    fn take(lanes: &mut Test, key: &Key, id: u64, job: &'static str) -> Next<u64, &'static str> {
        let next = lanes.take(key, job).unwrap();
        if next == Next::Start(job) {
            lanes.started(key, id, id);
        }
        next
    }

    #[test]
    fn jobs_that_find_no_thread_free_wait_in_their_order_for_whichever_is_free_first() {
        let (mut lanes, names) = (Test::new(), key("/d", Kind::Names));
        assert_eq!(take(&mut lanes, &names, 1, "a"), Next::Start("a"));
        assert_eq!(take(&mut lanes, &names, 2, "b"), Next::Start("b"));
        assert_eq!(take(&mut lanes, &names, 3, "c"), Next::Wait);
        assert_eq!(take(&mut lanes, &names, 3, "d"), Next::Wait);
        // The first thread is at a slow one.
        assert_eq!(lanes.done(2, NOW), Some((2, "c")));
        assert_eq!(lanes.done(2, NOW), Some((2, "d")));
        assert_eq!(lanes.done(2, NOW), None);
        assert_eq!(take(&mut lanes, &names, 3, "e"), Next::Give(2, "e"));
        let other = key("/d", Kind::Sync);
        assert_eq!(take(&mut lanes, &other, 3, "f"), Next::Start("f"), "another kind has threads of its own");
    }

    #[test]
    fn a_lane_has_no_more_threads_than_its_kind_may() {
        let (mut lanes, sync) = (Test::new(), key("/d", Kind::Sync));
        let most = u64::try_from(Kind::Sync.threads_max()).unwrap();
        assert!((0..most).all(|id| take(&mut lanes, &sync, id, "a") == Next::Start("a")));
        assert!((0..1000).all(|_| take(&mut lanes, &sync, most, "b") == Next::Wait));
        assert!((0..1000).all(|at| lanes.done(at % most, NOW) == Some((at % most, "b"))));
        assert_eq!(lanes.done(0, NOW), None);
    }

    #[test]
    fn where_no_thread_can_be_started_the_others_of_the_place_do_the_work() {
        let mut lanes = Test::new();
        let [names, sync, removal] = [Kind::Names, Kind::Sync, Kind::Removal].map(|kind| key("/d", kind));
        assert_eq!(lanes.take(&names, "a"), Ok(Next::Start("a")));
        assert_eq!(lanes.not_started(&names, "a"), Err("a"));
        assert_eq!(lanes.share(&names.0, "a"), Err("a"), "there is none at all");
        take(&mut lanes, &removal, 1, "b");
        take(&mut lanes, &sync, 2, "c");
        take(&mut lanes, &key("/other", Kind::Names), 3, "d");
        assert_eq!(lanes.take(&names, "e"), Ok(Next::Start("e")));
        assert_eq!(lanes.not_started(&names, "e"), Err("e"));
        assert_eq!(lanes.share(&names.0, "e"), Ok(Next::Wait));
        assert_eq!(lanes.done(1, NOW), None, "what removes is the last choice");
        assert_eq!(lanes.done(3, NOW), None, "another place has nothing to do with it");
        assert_eq!(lanes.done(2, NOW), Some((2, "e")));
        // A lane that has a thread already is content with it.
        assert_eq!(lanes.take(&sync, "f"), Ok(Next::Start("f")));
        assert_eq!(lanes.not_started(&sync, "f"), Ok(()));
        assert_eq!(lanes.done(2, NOW), Some((2, "f")));
    }

    #[test]
    fn there_are_so_many_lanes_and_one_that_has_nothing_to_do_makes_room_for_another() {
        let mut lanes = Test::new();
        for id in 0..u64::try_from(LANES_MAX).unwrap() {
            take(&mut lanes, &key(&format!("/{id}"), Kind::Names), id, "a");
        }
        let (new, known) = (key("/5", Kind::Sync), key("/5", Kind::Names));
        assert_eq!(lanes.take(&new, "b"), Err("b"));
        assert_eq!(lanes.share(&new.0, "b"), Ok(Next::Wait));
        assert_eq!(take(&mut lanes, &known, 500, "c"), Next::Start("c"), "one that is there may grow");
        assert_eq!(lanes.done(7, NOW), None);
        assert_eq!(take(&mut lanes, &new, 501, "d"), Next::Start("d"));
        assert_eq!(lanes.done(7, NOW), None, "its lane has ended");
        assert_eq!(lanes.done(5, NOW), Some((5, "b")));
        assert_eq!(lanes.take(&key("/7", Kind::Names), "e"), Err("e"));
    }

    #[test]
    fn threads_without_work_end_the_longest_idle_first_and_a_lane_without_threads_goes() {
        let (mut lanes, sync) = (Test::new(), key("/d", Kind::Sync));
        let at = |nanos| MonoTime::new(nanos);
        for id in 0..4 {
            assert_eq!(take(&mut lanes, &sync, id, "a"), Next::Start("a"));
        }
        assert_eq!(lanes.end_idle(at(1_000)), None, "all are at work");
        for (id, nanos) in [(2, 10), (0, 20), (1, 30)] {
            assert_eq!(lanes.done(id, at(nanos)), None);
        }
        assert_eq!(lanes.end_idle(at(10)), Some(at(10)), "none has been idle for long enough");
        assert_eq!(take(&mut lanes, &sync, 9, "b"), Next::Give(1, "b"), "the one that was at work last");
        assert_eq!(lanes.end_idle(at(20)), Some(at(20)));
        assert_eq!(lanes.end_idle(at(21)), None);
        assert!(lanes.has_thread(&sync));
        for id in [3, 1] {
            assert_eq!(lanes.done(id, at(40)), None);
        }
        assert_eq!(lanes.done(0, at(50)), None, "it has ended");
        assert_eq!(lanes.end_idle(at(41)), None);
        assert!(!lanes.has_thread(&sync) && lanes.lanes.is_empty() && lanes.keys.is_empty());
        assert_eq!(take(&mut lanes, &sync, 10, "c"), Next::Start("c"));
    }
}

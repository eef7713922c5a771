//! Acknowledgements that wait, of one partition, in the order of the offsets they need: acks 0 and 1 until the log is
//! safe there, acks=all until the high watermark is (replication.md 2.2). Pure; what a waiter is, its user says.

use std::collections::VecDeque;

use protocol::types::{MonoTime, Offset};

/// One waiter.
#[derive(Debug)]
struct Waiter<T> {
    required: Offset,
    deadline: MonoTime,
    what: T,
}

/// Waiters for an offset that only grows.
#[derive(Debug)]
pub struct DelayedProduces<T> {
    waiters: VecDeque<Waiter<T>>,
}

impl<T> Default for DelayedProduces<T> {
    fn default() -> Self {
        Self { waiters: VecDeque::new() }
    }
}

impl<T> DelayedProduces<T> {
    /// Waits for `required`. Duplicates wait for the offset of their original, so the order is not that of arrival.
    pub fn wait(&mut self, required: Offset, deadline: MonoTime, what: T) {
        let place = self.waiters.partition_point(|waiter| waiter.required <= required);
        self.waiters.insert(place, Waiter { required, deadline, what });
    }

    /// Takes the next waiter that `reached` satisfies.
    pub fn pop_reached(&mut self, reached: Offset) -> Option<T> {
        let first = self.waiters.front()?;
        if first.required > reached {
            return None;
        }
        self.waiters.pop_front().map(|waiter| waiter.what)
    }

    /// Takes one waiter whose deadline has passed. Deadlines judge the wait for other replicas: they pass only below
    /// `written`, what this one has.
    pub fn pop_expired(&mut self, now: MonoTime, written: Offset) -> Option<T> {
        let mut timed = self.waiters.iter().take_while(|waiter| waiter.required <= written);
        let place = timed.position(|waiter| waiter.deadline <= now)?;
        self.waiters.remove(place).map(|waiter| waiter.what)
    }

    /// The earliest deadline that may pass (see [`Self::pop_expired`]).
    pub fn deadline(&self, written: Offset) -> Option<MonoTime> {
        let timed = self.waiters.iter().take_while(|waiter| waiter.required <= written);
        timed.map(|waiter| waiter.deadline).min()
    }

    /// Takes the waiters for anything above `end`: the log was cut back to there.
    pub fn take_above(&mut self, end: Offset) -> impl Iterator<Item = T> + use<T> {
        let place = self.waiters.partition_point(|waiter| waiter.required <= end);
        self.waiters.split_off(place).into_iter().map(|waiter| waiter.what)
    }

    /// Takes all waiters: the leadership is gone, or the log is.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiters).into_iter().map(|waiter| waiter.what)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> MonoTime {
        MonoTime::new(nanos)
    }

    #[test]
    fn waiters_leave_in_the_order_of_their_offsets() {
        let mut delayed = DelayedProduces::default();
        delayed.wait(Offset::new(5), at(9), "first");
        delayed.wait(Offset::new(9), at(9), "second");
        delayed.wait(Offset::new(5), at(9), "duplicate of the first");
        assert_eq!(delayed.pop_reached(Offset::new(4)), None);
        assert_eq!(delayed.pop_reached(Offset::new(5)), Some("first"));
        assert_eq!(delayed.pop_reached(Offset::new(5)), Some("duplicate of the first"));
        assert_eq!(delayed.pop_reached(Offset::new(5)), None);
        assert_eq!(delayed.take_all().collect::<Vec<_>>(), vec!["second"]);
        assert!(delayed.is_empty());
    }

    #[test]
    fn a_log_that_is_cut_back_fails_those_above_only() {
        let mut delayed = DelayedProduces::default();
        delayed.wait(Offset::new(5), at(9), "kept");
        delayed.wait(Offset::new(6), at(9), "cut");
        assert_eq!(delayed.take_above(Offset::new(5)).collect::<Vec<_>>(), vec!["cut"]);
        assert_eq!(delayed.pop_reached(Offset::new(5)), Some("kept"));
    }

    #[test]
    fn deadlines_pass_in_any_order() {
        let mut delayed = DelayedProduces::default();
        delayed.wait(Offset::new(5), at(9), "late");
        delayed.wait(Offset::new(9), at(3), "soon");
        let written = Offset::new(9);
        assert_eq!(delayed.deadline(written), Some(at(3)));
        assert_eq!(delayed.pop_expired(at(2), written), None);
        assert_eq!(delayed.pop_expired(at(3), written), Some("soon"));
        assert_eq!(delayed.pop_expired(at(3), written), None);
        assert_eq!(delayed.deadline(written), Some(at(9)));
    }

    #[test]
    fn no_deadline_passes_above_what_is_written() {
        let mut delayed = DelayedProduces::default();
        delayed.wait(Offset::new(5), at(9), "written");
        delayed.wait(Offset::new(9), at(0), "not yet");
        let written = Offset::new(8);
        assert_eq!(delayed.deadline(written), Some(at(9)));
        assert_eq!(delayed.pop_expired(at(8), written), None);
        assert_eq!(delayed.deadline(Offset::new(9)), Some(at(0)));
        assert_eq!(delayed.pop_expired(at(8), Offset::new(9)), Some("not yet"));
    }
}

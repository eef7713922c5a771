//! Requests that name one thing many times: it is worked on once and told as often as it is named, as Kafka does where it
//! walks a list. This file numbers what is named, and bounds what repetitions add to an answer: a frame of a megabyte can
//! name one topic a hundred thousand times. Used by handlers whose answers are long where their questions are short.

use std::collections::HashMap;
use std::hash::Hash;

/// Bytes that repetitions may add to one answer: an honest client names a thing once, or a few times.
const REPEATED_BYTES_MAX: usize = 64 << 20;

/// Bytes of one answer, well below the 2 GiB that a frame can hold.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// Distinct keys, numbered in the order of first mention.
pub(super) struct Distinct<K>(HashMap<K, usize>);

/// The place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) place: usize,
    pub(super) is_first: bool,
}

impl<K: Eq + Hash> Distinct<K> {
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// The place of a key; a new one comes behind all others.
    pub(super) fn mention(&mut self, key: K) -> Mention {
        let next = self.0.len();
        let place = *self.0.entry(key).or_insert(next);
        Mention { place, is_first: place == next }
    }
}

/// Why a mention is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRoom {
    /// Said often enough.
    #[error(
        "It is named too often in one request: the repetitions would make the answer larger than 64 MiB."
    )]
    Repeated,
    /// Too many different things.
    #[error("The answer would be larger than a frame can hold: ask for less at once.")]
    Frame,
}

/// What is left of one answer.
pub(super) struct AnswerRoom {
    repeated: usize,
    all: usize,
}

impl AnswerRoom {
    pub(super) const fn new() -> Self {
        Self { repeated: REPEATED_BYTES_MAX, all: ANSWER_BYTES_MAX }
    }

    /// Takes room for what is told of a mention.
    pub(super) fn take(&mut self, bytes: usize, is_first: bool) -> Result<(), NoRoom> {
        let all = self.all.checked_sub(bytes).ok_or(NoRoom::Frame)?;
        if !is_first {
            self.repeated = self.repeated.checked_sub(bytes).ok_or(NoRoom::Repeated)?;
        }
        self.all = all;
        Ok(())
    }

    /// Whether a mention would find room at all.
    pub(super) fn is_open(&self, is_first: bool) -> bool {
        self.all > 0 && (is_first || self.repeated > 0)
    }

    /// Leaves no room for repetitions: one did not fit, and the next ones need not even be worked on.
    pub(super) fn close_repeated(&mut self) {
        self.repeated = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_again_has_the_place_of_its_first_mention() {
        let mut distinct = Distinct::new();
        let mentions = ["b", "a", "b", "c", "a"].map(|key| distinct.mention(key));
        assert_eq!(mentions.map(|mention| mention.place), [0, 1, 0, 2, 1]);
        assert_eq!(mentions.map(|mention| mention.is_first), [true, true, false, true, false]);
    }

    #[test]
    fn repetitions_and_the_whole_answer_have_bounds_of_their_own() {
        let mut room = AnswerRoom::new();
        assert_eq!(room.take(100 << 20, true), Ok(()));
        assert_eq!(room.take(60 << 20, false), Ok(()));
        assert_eq!(room.take(5 << 20, false), Err(NoRoom::Repeated));
        assert_eq!(room.take(4 << 20, false), Ok(()));
        assert_eq!(room.take(860 << 20, true), Ok(()));
        assert_eq!(room.take(1, true), Err(NoRoom::Frame));
        assert_eq!(room.take(1, false), Err(NoRoom::Frame));
        assert_eq!(room.take(0, true), Ok(()));
        assert!(!room.is_open(true) && !room.is_open(false));
        let mut room = AnswerRoom::new();
        assert!(room.is_open(true) && room.is_open(false));
        room.close_repeated();
        assert!(room.is_open(true) && !room.is_open(false));
    }
}

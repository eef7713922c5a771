//! One move of a log to another log dir, as far as it decides (KIP-113): copies until nothing is left, makes that durable,
//! stops the appends for a moment, copies what has come meanwhile, and lets the copy take the log's place. Pure: its driver
//! does one action at a time and tells what came of it, and when.

use protocol::types::MonoTime;

/// Bytes that one step reads at most.
pub(in super::super) const STEP_BYTES: usize = 256 << 10;

/// So many bytes are made durable together: more of them at the end would hold up whoever else writes.
const FLUSH_BYTES: u64 = 32 << 20;

/// How long appends wait at first while the rest is copied: each time that more had come than could be copied by then, they
/// wait twice as long, so that a busy log is moved too. What comes while the copy is flushed is all that is left by then, and
/// nobody appends while it is copied.
const HELD_MS: i64 = 4;

/// How long they wait at most.
const HELD_MS_MAX: i64 = 512;

/// A rest of so many bytes is copied however slow the disk is: who lets go of it has as much to copy the next time.
const REST_BYTES: u64 = 1 << 20;

/// A log that is written to faster than that is kept waiting no more often than so: it is moved when it has a quieter moment.
const HELD_APART_MS: i64 = 10_000;

/// How a move ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum End {
    /// The copy is the log.
    Done,
    /// The broker stops: the next start goes on.
    Keep,
    /// Nobody wants it any more: the copy goes away.
    Remove,
    /// It cannot go on.
    Failed,
}

/// What the driver does next. Appends wait as long as it says so, and not beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Action {
    /// Copy a step.
    Copy {
        /// Appends wait.
        held: bool,
    },
    /// Make what was copied durable.
    Flush,
    /// Wait a while for room on the disk.
    Wait,
    /// Let appends wait, and until those before are written.
    Hold,
    /// Let the copy take the log's place; appends wait.
    Swap,
    /// It is over.
    End(End),
}

/// What came of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Event {
    /// A step was copied.
    Copied {
        /// Its bytes.
        bytes: u64,
        /// Nothing was left.
        is_all: bool,
    },
    /// What was copied is durable.
    Flushed,
    /// There is no room on the disk.
    NoRoom,
    /// The while is over.
    Waited,
    /// Appends wait.
    Held,
    /// The copy has taken the log's place.
    Swapped,
    /// It could not be done, and will not be.
    Failed,
    /// It is to end.
    Stop(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Copying,
    /// Nothing was left before the flush, or only so many bytes had come together.
    Flushing {
        is_all: bool,
    },
    Waiting,
    Holding,
    /// Appends wait, until then for more than what is left.
    Held {
        bytes: u64,
        until: MonoTime,
    },
    Swapping,
    Over(End),
}

/// See the module.
#[derive(Debug)]
pub(in super::super) struct MoveMachine {
    state: State,
    unflushed: u64,
    held_ms: i64,
    /// Before this appends are not kept waiting again.
    not_before: MonoTime,
}

impl MoveMachine {
    /// A move that is about to begin, and what to do first.
    pub(in super::super) const fn begin() -> (Self, Action) {
        let not_before = MonoTime::new(0);
        (
            Self { state: State::Copying, unflushed: 0, held_ms: HELD_MS, not_before },
            Action::Copy { held: false },
        )
    }

    /// Takes what came of the last action, or that it is to end; what to do next.
    pub(in super::super) fn step(&mut self, event: Event, now: MonoTime) -> Action {
        match (self.state, event) {
            (State::Over(end), _) => Action::End(end),
            // What has taken the log's place stays there.
            (_, Event::Swapped) => self.end(End::Done),
            (_, Event::Stop(end)) => self.end(end),
            (_, Event::Failed) => self.end(End::Failed),
            (_, Event::NoRoom) => {
                self.state = State::Waiting;
                Action::Wait
            }
            (State::Copying, Event::Copied { bytes, is_all }) => {
                self.unflushed = self.unflushed.saturating_add(bytes);
                if !is_all && self.unflushed < FLUSH_BYTES {
                    return Action::Copy { held: false };
                }
                self.state = State::Flushing { is_all };
                Action::Flush
            }
            (State::Flushing { is_all: true }, Event::Flushed) => {
                self.unflushed = 0;
                if now < self.not_before {
                    self.state = State::Waiting;
                    return Action::Wait;
                }
                self.state = State::Holding;
                Action::Hold
            }
            (State::Holding, Event::Held) => {
                self.state = State::Held { bytes: 0, until: now.plus_ms(self.held_ms) };
                Action::Copy { held: true }
            }
            (State::Held { .. }, Event::Copied { is_all: true, .. }) => {
                self.state = State::Swapping;
                Action::Swap
            }
            (State::Held { bytes: before, until }, Event::Copied { bytes, .. }) => {
                let bytes = before.saturating_add(bytes);
                if now < until || bytes < REST_BYTES {
                    self.state = State::Held { bytes, until };
                    return Action::Copy { held: true };
                }
                // Too much to let clients wait for.
                self.unflushed = bytes;
                if self.held_ms < HELD_MS_MAX {
                    self.held_ms = self.held_ms.saturating_mul(2);
                } else {
                    self.not_before = now.plus_ms(HELD_APART_MS);
                }
                self.copy()
            }
            (State::Flushing { is_all: false }, Event::Flushed) => {
                self.unflushed = 0;
                self.copy()
            }
            // After a wait, and after whatever nobody waits for.
            _ => self.copy(),
        }
    }

    fn copy(&mut self) -> Action {
        self.state = State::Copying;
        Action::Copy { held: false }
    }

    fn end(&mut self, end: End) -> Action {
        self.state = State::Over(end);
        Action::End(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(bytes: u64, is_all: bool) -> Event {
        Event::Copied { bytes, is_all }
    }

    /// No time goes by.
    fn step(machine: &mut MoveMachine, event: Event) -> Action {
        machine.step(event, MonoTime::new(0))
    }

    fn all(machine: &mut MoveMachine, events: &[Event]) -> Vec<Action> {
        events.iter().map(|event| step(machine, *event)).collect()
    }

    #[test]
    fn a_log_is_copied_made_durable_held_and_swapped() {
        let (mut machine, first) = MoveMachine::begin();
        assert_eq!(first, Action::Copy { held: false });
        let events = [
            copied(10, false),
            copied(10, true),
            Event::Flushed,
            Event::Held,
            copied(5, false),
            copied(0, true),
        ];
        let copy = Action::Copy { held: false };
        let held = Action::Copy { held: true };
        assert_eq!(all(&mut machine, &events), [copy, Action::Flush, Action::Hold, held, held, Action::Swap]);
        assert_eq!(step(&mut machine, Event::Swapped), Action::End(End::Done));
        assert_eq!(step(&mut machine, Event::Stop(End::Remove)), Action::End(End::Done), "it stays over");
    }

    #[test]
    fn much_is_made_durable_in_pieces() {
        let (mut machine, _) = MoveMachine::begin();
        let mut flushes = 0;
        for _ in 0..100 {
            if step(&mut machine, copied(1 << 20, false)) == Action::Flush {
                flushes += 1;
                assert_eq!(step(&mut machine, Event::Flushed), Action::Copy { held: false });
            }
        }
        assert_eq!(flushes, 3);
    }

    /// Milliseconds that appends are kept waiting, and milliseconds until then, of a log of which something is always left.
    fn waits(tries: usize) -> Vec<(u64, u64)> {
        const STEP_NS: u64 = 1_000_000;
        let (mut machine, mut action) = MoveMachine::begin();
        let (mut waits, mut now, mut free, mut held) = (Vec::new(), 0, 0, 0);
        while waits.len() < tries {
            let is_held = matches!(action, Action::Copy { held: true });
            let event = match action {
                Action::Copy { held: is_held } => copied(1 << 20, !is_held),
                Action::Flush => Event::Flushed,
                Action::Hold => Event::Held,
                Action::Wait => Event::Waited,
                Action::Swap | Action::End(_) => panic!("{action:?}"),
            };
            now += STEP_NS;
            action = machine.step(event, MonoTime::new(now));
            match (is_held, action) {
                (true, Action::Copy { held: true }) => held += STEP_NS,
                (true, _) => {
                    waits.push(((held + STEP_NS) / 1_000_000, free / 1_000_000));
                    (held, free) = (0, 0);
                }
                (false, _) => free += STEP_NS,
            }
        }
        waits
    }

    #[test]
    fn appends_that_come_faster_wait_longer_but_never_long_and_not_often() {
        let waits = waits(12);
        let held: Vec<_> = waits.iter().map(|(held, _)| *held).collect();
        assert_eq!(held, [4, 8, 16, 32, 64, 128, 256, 512, 512, 512, 512, 512]);
        let (soon, late) = waits.split_at(8);
        assert!(soon.iter().all(|(_, free)| *free < 10), "{waits:?}");
        assert!(late.iter().all(|(_, free)| (10_000..10_010).contains(free)), "{waits:?}");
    }

    #[test]
    fn a_small_rest_is_copied_however_long_it_takes() {
        let (mut machine, _) = MoveMachine::begin();
        all(&mut machine, &[copied(0, true), Event::Flushed, Event::Held]);
        let slow = |step: i64| MonoTime::new(0).plus_ms(step * 300);
        for step in 1..4 {
            assert_eq!(machine.step(copied(REST_BYTES / 4, false), slow(step)), Action::Copy { held: true });
        }
        assert_eq!(machine.step(copied(0, true), slow(4)), Action::Swap);
    }

    #[test]
    fn a_busy_log_is_swapped_when_it_has_a_quieter_moment() {
        let (mut machine, _) = MoveMachine::begin();
        for at in 0..20 {
            let now = MonoTime::new(0).plus_ms(at * 20_000);
            for event in [copied(0, true), Event::Flushed, Event::Held] {
                machine.step(event, now);
            }
            assert_eq!(machine.step(copied(1 << 20, false), now), Action::Copy { held: true });
            assert_eq!(machine.step(copied(1, false), now.plus_ms(1000)), Action::Copy { held: false });
        }
        let now = MonoTime::new(0).plus_ms(400_000);
        for event in [copied(0, true), Event::Flushed, Event::Held] {
            machine.step(event, now);
        }
        assert_eq!(machine.step(copied(9, true), now), Action::Swap);
    }

    #[test]
    fn without_room_it_waits_and_appends_do_not() {
        let (mut machine, _) = MoveMachine::begin();
        assert_eq!(step(&mut machine, Event::NoRoom), Action::Wait);
        assert_eq!(step(&mut machine, Event::Waited), Action::Copy { held: false });
        all(&mut machine, &[copied(0, true), Event::Flushed, Event::Held]);
        assert_eq!(step(&mut machine, Event::NoRoom), Action::Wait);
        assert_eq!(
            step(&mut machine, Event::Waited),
            Action::Copy { held: false },
            "what waited may have appended"
        );
    }

    #[test]
    fn it_can_be_stopped_at_every_point() {
        let events = [copied(0, true), Event::Flushed, Event::Held];
        for upto in 0..=events.len() {
            for (event, end) in [
                (Event::Stop(End::Keep), End::Keep),
                (Event::Stop(End::Remove), End::Remove),
                (Event::Failed, End::Failed),
            ] {
                let (mut machine, _) = MoveMachine::begin();
                all(&mut machine, &events[..upto]);
                assert_eq!(step(&mut machine, event), Action::End(end), "{upto} {event:?}");
            }
        }
    }
}

//! One move of a log to another log dir, as far as it decides (KIP-113): copies until nothing is left, makes that durable,
//! stops the appends for a moment, copies what has come meanwhile, and lets the copy take the log's place. Pure: its driver
//! does one action at a time and tells what came of it.

/// Bytes that one step reads at most.
pub(in super::super) const STEP_BYTES: usize = 256 << 10;

/// So many bytes are made durable together: more of them at the end would hold up whoever else writes.
const FLUSH_BYTES: u64 = 32 << 20;

/// Bytes that are copied at first while appends wait: each time that more came meanwhile, twice as much is taken, so that the
/// busiest log is moved too. What comes while the copy is flushed is all that is left by then, and nobody appends while it
/// is copied.
const REST_BYTES: u64 = 1 << 20;

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
    /// So many bytes were copied while appends wait.
    Held {
        bytes: u64,
    },
    Swapping,
    Over(End),
}

/// See the module.
#[derive(Debug)]
pub(in super::super) struct MoveMachine {
    state: State,
    unflushed: u64,
    rest_max: u64,
}

impl MoveMachine {
    /// A move that is about to begin, and what to do first.
    pub(in super::super) const fn begin() -> (Self, Action) {
        (Self { state: State::Copying, unflushed: 0, rest_max: REST_BYTES }, Action::Copy { held: false })
    }

    /// Takes what came of the last action, or that it is to end; what to do next.
    pub(in super::super) fn step(&mut self, event: Event) -> Action {
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
                self.state = State::Holding;
                Action::Hold
            }
            (State::Holding, Event::Held) => {
                self.state = State::Held { bytes: 0 };
                Action::Copy { held: true }
            }
            (State::Held { .. }, Event::Copied { is_all: true, .. }) => {
                self.state = State::Swapping;
                Action::Swap
            }
            (State::Held { bytes: before }, Event::Copied { bytes, .. }) => {
                let bytes = before.saturating_add(bytes);
                if bytes < self.rest_max {
                    self.state = State::Held { bytes };
                    return Action::Copy { held: true };
                }
                // Too much to let clients wait for.
                self.unflushed = bytes;
                self.rest_max = self.rest_max.saturating_mul(2);
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

    fn all(machine: &mut MoveMachine, events: &[Event]) -> Vec<Action> {
        events.iter().map(|event| machine.step(*event)).collect()
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
        assert_eq!(machine.step(Event::Swapped), Action::End(End::Done));
        assert_eq!(machine.step(Event::Stop(End::Remove)), Action::End(End::Done), "it stays over");
    }

    #[test]
    fn much_is_made_durable_in_pieces() {
        let (mut machine, _) = MoveMachine::begin();
        let mut flushes = 0;
        for _ in 0..100 {
            if machine.step(copied(1 << 20, false)) == Action::Flush {
                flushes += 1;
                assert_eq!(machine.step(Event::Flushed), Action::Copy { held: false });
            }
        }
        assert_eq!(flushes, 3);
    }

    #[test]
    fn appends_that_come_faster_are_let_go_on_and_then_wait_longer() {
        let (mut machine, _) = MoveMachine::begin();
        let mut rests = Vec::new();
        for _ in 0..7 {
            all(&mut machine, &[copied(0, true), Event::Flushed, Event::Held]);
            let mut steps = 1;
            while machine.step(copied(1 << 20, false)) == (Action::Copy { held: true }) {
                steps += 1;
            }
            rests.push(steps);
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64]);
        all(&mut machine, &[copied(0, true), Event::Flushed, Event::Held]);
        assert_eq!(machine.step(copied(9, true)), Action::Swap);
    }

    #[test]
    fn without_room_it_waits_and_appends_do_not() {
        let (mut machine, _) = MoveMachine::begin();
        assert_eq!(machine.step(Event::NoRoom), Action::Wait);
        assert_eq!(machine.step(Event::Waited), Action::Copy { held: false });
        all(&mut machine, &[copied(0, true), Event::Flushed, Event::Held]);
        assert_eq!(machine.step(Event::NoRoom), Action::Wait);
        assert_eq!(
            machine.step(Event::Waited),
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
                assert_eq!(machine.step(event), Action::End(end), "{upto} {event:?}");
            }
        }
    }
}

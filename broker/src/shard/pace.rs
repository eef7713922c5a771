//! Long loops on a shard: whatever a client names a hundred thousand times is worked through in slices, and between
//! two slices the shard has its turn. Used by every loop whose length a request decides.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use futures_util::poll;
use protocol::types::MonoTime;
use storage::io::Runtime;

/// After so much work the shard polls its sockets and timers.
const BUDGET_NANOS: u64 = 100_000;

/// Steps between two looks at the clock, which costs about what a step does. None before so many: a short loop pays
/// nothing.
const STEPS: u32 = 32;

/// So many bytes are copied or looked at between two turns of the shard, whatever the clock says: some 100 µs where the
/// memory is new.
pub const BYTES_A_TURN: usize = 256 << 10;

/// The pace of one task.
pub struct Pace<'a, R> {
    runtime: &'a R,
    steps: u32,
    bytes: usize,
    began: Option<MonoTime>,
}

impl<'a, R: Runtime> Pace<'a, R> {
    /// Begins a slice.
    pub fn new(runtime: &'a R) -> Self {
        Self { runtime, steps: 0, bytes: 0, began: None }
    }

    /// One step of at most some microseconds is done; lets the shard have its turn when it was the last of a slice.
    pub async fn step(&mut self) {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS) {
            self.look().await;
        }
    }

    /// The same after a step that is worth a look at the clock of its own.
    pub async fn look(&mut self) {
        let now = self.runtime.now();
        let began = *self.began.get_or_insert(now);
        if now.nanos_since(began) > BUDGET_NANOS {
            self.runtime.turn().await;
            self.began = Some(self.runtime.now());
        }
    }

    /// Awaits what a task goes on with. The others have their turn where it is not there yet: a new slice begins then. A task
    /// that lives long and only looked at the clock would give a turn after each step that comes later than the last.
    pub async fn wait_for<F: Future>(&mut self, next: F) -> F::Output {
        let mut next = pin!(next);
        match poll!(next.as_mut()) {
            Poll::Ready(next) => next,
            Poll::Pending => {
                let next = next.await;
                self.began = None;
                next
            }
        }
    }

    /// So many bytes were gone through; lets the shard have its turn when they are [`BYTES_A_TURN`] since the last one. Who
    /// goes through more at once does so in pieces.
    pub async fn bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= BYTES_A_TURN {
            self.bytes = 0;
            self.runtime.turn().await;
            self.began = Some(self.runtime.now());
        }
    }

    /// Takes all items, a step each. Allocates by what the iterator says is left.
    pub async fn collect<T>(&mut self, items: impl Iterator<Item = T>) -> Vec<T> {
        let mut all = Vec::with_capacity(items.size_hint().0);
        for item in items {
            all.push(item);
            self.step().await;
        }
        all
    }
}

/// What comes of a future, and how many turns the shard had meanwhile, each of a millisecond: for tests.
#[cfg(test)]
pub(crate) fn turns_of<F: Future>(runtime: &storage::io::sim::SimRuntime, future: F) -> (F::Output, usize) {
    let mut future = pin!(future);
    let mut turns = 0;
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(output) => return (output, turns),
            Poll::Pending => {
                turns += 1;
                runtime.advance_ms(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::task::{Context, Waker};

    use storage::io::sim::SimRuntime;

    use super::*;

    /// Turns that a task gives in 100 steps, each of so long, where it waits for each of them or finds it there.
    fn turns(step_nanos: u64, waits: bool) -> u64 {
        let runtime = SimRuntime::new(1);
        let arrived = Cell::new(0);
        let next = || {
            std::future::poll_fn(|_| {
                if waits && arrived.replace(arrived.get() ^ 1) == 0 { Poll::Pending } else { Poll::Ready(()) }
            })
        };
        let at_work = Rc::new(Cell::new(false));
        let mut task = pin!(async {
            let mut pace = Pace::new(&runtime);
            for _ in 0..100 {
                pace.wait_for(next()).await;
                at_work.set(true);
                runtime.advance_nanos(step_nanos);
                pace.look().await;
                at_work.set(false);
            }
        });
        let mut turns = 0;
        while task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            turns += u64::from(at_work.get());
            // Until the next one comes, and for a turn to be over.
            runtime.advance_ms(1);
        }
        turns
    }

    #[test]
    fn who_waits_between_its_steps_gives_no_turn_and_who_never_waits_gives_one_a_slice() {
        assert_eq!(turns(10_000, true), 0, "each step comes a millisecond after the last");
        assert_eq!(turns(10_000, false), 9, "100 us are a slice");
        assert_eq!(turns(BUDGET_NANOS + 1, true), 0, "a step is no slice that could be cut");
    }
}

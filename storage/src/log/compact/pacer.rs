//! How fast a round goes: the shard has its turn after short slices, and no more bytes are moved in a second than was
//! said. Knows nothing of what is moved.

use std::time::Duration;

use protocol::types::MonoTime;

use crate::io::Runtime;

/// After so much work the shard's sockets and timers have their turn.
const SLICE_NANOS: u64 = 50_000;

/// Steps between two looks at the clock, if they are small.
const STEPS: u32 = 16;

/// Bytes between two looks at the clock: to compress as much takes longer than a slice.
const STEP_BYTES: usize = 16 << 10;

/// Bytes between two looks at the rate.
const RATE_BYTES: u64 = 64 << 10;

/// A wait is cut into pieces of this length, so that a stop is heard.
const WAIT_MS_MAX: i64 = 200;

/// The pace of one round.
pub(in crate::log) struct Pacer<R> {
    runtime: R,
    steps: u32,
    step_bytes: usize,
    slice_began: MonoTime,
    bytes_per_second: f64,
    bytes: u64,
    /// When the bytes so far may have been moved.
    rate_allows_at: MonoTime,
}

impl<R: Runtime> Pacer<R> {
    pub(in crate::log) fn new(runtime: &R, bytes_per_second: f64) -> Self {
        let now = runtime.now();
        Self {
            runtime: runtime.clone(),
            steps: 0,
            step_bytes: 0,
            slice_began: now,
            bytes_per_second,
            bytes: 0,
            rate_allows_at: now,
        }
    }

    /// A record of so many bytes is done.
    pub(in crate::log) async fn step(&mut self, bytes: usize) {
        self.steps = self.steps.saturating_add(1);
        self.step_bytes = self.step_bytes.saturating_add(bytes);
        if self.steps >= STEPS || self.step_bytes >= STEP_BYTES {
            (self.steps, self.step_bytes) = (0, 0);
            self.look().await;
        }
    }

    /// A step that is worth a look at the clock is done.
    pub(in crate::log) async fn look(&mut self) {
        if self.runtime.now().nanos_since(self.slice_began) > SLICE_NANOS {
            self.runtime.turn().await;
            self.slice_began = self.runtime.now();
        }
    }

    /// Bytes were read or written; waits if that was too fast, as long as `check` agrees.
    pub(in crate::log) async fn moved<E>(
        &mut self,
        bytes: u64,
        check: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        self.look().await;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < RATE_BYTES {
            return Ok(());
        }
        let takes = nanos_at(self.bytes, self.bytes_per_second);
        self.bytes = 0;
        self.rate_allows_at = self.rate_allows_at.max(self.runtime.now()).plus_nanos(takes);
        // What takes no time at all need not wait for it.
        while self.rate_allows_at.nanos_since(self.runtime.now()) > SLICE_NANOS {
            let next = self.rate_allows_at.min(self.runtime.now().plus_ms(WAIT_MS_MAX));
            self.runtime.sleep_until(next).await;
            self.slice_began = self.runtime.now();
            check()?;
        }
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn nanos_at(bytes: u64, bytes_per_second: f64) -> u64 {
    if bytes_per_second <= 0.0 || bytes_per_second.is_nan() {
        return 0;
    }
    let takes =
        Duration::try_from_secs_f64(bytes as f64 / bytes_per_second).unwrap_or(Duration::from_secs(3600));
    u64::try_from(takes.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::io::sim::SimRuntime;

    #[test]
    fn no_more_bytes_are_moved_in_a_second_than_was_said() {
        let runtime = SimRuntime::new(1);
        let inside = runtime.clone();
        let began = runtime.now();
        runtime.block_on(async move {
            let mut pacer = Pacer::new(&inside, 1_000_000.0);
            for _ in 0..300 {
                pacer.moved::<()>(10_000, || Ok(())).await.unwrap();
            }
        });
        let seconds = runtime.now().nanos_since(began) / 100_000_000;
        assert!((28..=31).contains(&seconds), "{seconds} tenths of a second for three seconds' worth");
    }

    #[test]
    fn a_large_record_is_worth_a_look_at_the_clock() {
        let runtime = SimRuntime::new(1);
        let inside = runtime.clone();
        runtime.block_on(async move {
            let mut pacer = Pacer::new(&inside, f64::MAX);
            let began = inside.now();
            inside.sleep_until(began.plus_ms(1)).await;
            pacer.step(STEP_BYTES - 1).await;
            assert_eq!(pacer.slice_began, began, "a small one is not");
            pacer.step(1).await;
            assert!(pacer.slice_began > began);
        });
    }

    #[test]
    fn a_wait_ends_when_the_check_says_so_and_without_a_rate_there_is_none() {
        let runtime = SimRuntime::new(1);
        let (inside, checks) = (runtime.clone(), Rc::new(Cell::new(0)));
        let began = runtime.now();
        let counted = checks.clone();
        runtime.block_on(async move {
            let mut pacer = Pacer::new(&inside, f64::MAX);
            pacer.moved::<()>(1 << 40, || Ok(())).await.unwrap();
            assert_eq!(inside.now(), began);
            let mut pacer = Pacer::new(&inside, 1.0);
            let check = || {
                counted.set(counted.get() + 1);
                if counted.get() < 3 { Ok(()) } else { Err("stop") }
            };
            assert_eq!(pacer.moved(1 << 20, check).await, Err("stop"));
        });
        assert_eq!(checks.get(), 3);
    }
}

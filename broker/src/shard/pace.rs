//! Long loops on a shard: whatever a client names a hundred thousand times is worked through in slices, and between
//! two slices the shard has its turn. Used by every loop whose length a request decides.

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

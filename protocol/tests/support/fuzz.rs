//! Fuzzing that runs on stable: a seeded mutator and a loop with a budget of time.
//! `ODRADEK_FUZZ_SECONDS` is the budget (default 2), `ODRADEK_FUZZ_SEED` repeats a run.

use std::time::{Duration, Instant};

/// A seeded source of numbers (splitmix64).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }
}

/// Values at which length fields break.
const INTERESTING: [&[u8]; 9] = [
    &[0xff, 0xff, 0xff, 0xff],
    &[0x7f, 0xff, 0xff, 0xff],
    &[0x80],
    &[0x00],
    &[0x01],
    &[0xff, 0xff],
    &[0x80, 0x00, 0x00, 0x00],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x00, 0x00, 0x40, 0x00],
];

/// Changes `bytes` in one to four ways.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        let end = (at + rng.below(16)).min(bytes.len());
        let interesting = INTERESTING[rng.below(INTERESTING.len())];
        match rng.below(7) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, interesting.iter().copied())),
            3 => {
                let end = (at + interesting.len()).min(bytes.len());
                bytes.splice(at..end, interesting.iter().copied());
            }
            4 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            5 => bytes.extend_from_within(at..end),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
            }
        }
    }
}

/// Tells how to repeat the case when its check panics.
struct Case {
    seed: u64,
    number: u64,
}

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("case {}: repeat with ODRADEK_FUZZ_SEED={}", self.number, self.seed);
        }
    }
}

/// Runs `case` with fresh numbers until the time is over; at least once.
#[allow(clippy::disallowed_methods, reason = "the budget is in real time")]
pub fn run(mut case: impl FnMut(&mut Rng)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let budget = Duration::from_secs(number("ODRADEK_FUZZ_SECONDS").unwrap_or(2));
    let start = Instant::now();
    // The suite looks at the same place each time, so that it is red or green for a reason; `scripts/soak` looks elsewhere.
    let fixed = number("ODRADEK_FUZZ_SEED");
    let first = fixed.unwrap_or(1);
    let mut seeds = Rng::new(first);
    let mut seed = fixed.unwrap_or_else(|| seeds.next());
    for number in 0.. {
        let guard = Case { seed, number };
        case(&mut Rng::new(seed));
        drop(guard);
        if start.elapsed() >= budget {
            return eprintln!("{} cases", number + 1);
        }
        seed = seeds.next();
    }
}

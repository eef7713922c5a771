//! Made-up messages for tests, fuzzing and their corpora; compiled with the feature `sample` only. A message is
//! filled within its version, so that what it holds survives the way over the wire.

use std::borrow::Cow;

use super::{Blob, Layout, Str};
use crate::types::TopicId;

/// A source of made-up values: the same seed gives the same messages.
#[derive(Clone, Debug)]
pub struct Sampler {
    state: u64,
    full: bool,
}

impl Sampler {
    /// Every array has two elements, nothing is null, and no two numbers of 16 bits or more are alike.
    pub fn full() -> Self {
        Self { state: 0x1000, full: true }
    }

    /// Arrays of zero to three elements, nulls, empty strings, numbers at their limits.
    pub fn random(seed: u64) -> Self {
        Self { state: seed, full: false }
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Splitmix64; counts in a full sample.
    fn next(&mut self) -> u64 {
        if self.full {
            self.state += 1;
            return self.state;
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn count(&mut self) -> u64 {
        if self.full { 2 } else { self.below(4) }
    }

    /// Some bytes, never none in a full sample.
    pub fn bytes(&mut self) -> Vec<u8> {
        let count = if self.full { 5 } else { self.below(40) };
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    fn integer(&mut self) -> i64 {
        let value = self.next();
        if self.full {
            return value.cast_signed();
        }
        match value % 8 {
            0 => -1,
            1 => 0,
            2 => i64::MAX,
            3 => i64::MIN,
            _ => (value >> 3).cast_signed(),
        }
    }
}

/// A type of which a [`Sampler`] makes values.
pub trait Sample: Sized {
    /// A value that `layout` can carry.
    fn sample(sampler: &mut Sampler, layout: Layout) -> Self;

    /// A value that is not null.
    fn sample_not_null(sampler: &mut Sampler, layout: Layout) -> Self {
        Self::sample(sampler, layout)
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Sample for $type {
            fn sample(sampler: &mut Sampler, _: Layout) -> Self {
                let bytes = sampler.integer().to_le_bytes();
                Self::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; size_of::<Self>()]))
            }
        }
    )*};
}

integers! { i8 i16 i32 i64 }

impl Sample for bool {
    fn sample(sampler: &mut Sampler, _: Layout) -> Self {
        sampler.full || sampler.below(2) == 0
    }
}

impl Sample for TopicId {
    fn sample(sampler: &mut Sampler, _: Layout) -> Self {
        let number = u128::from(sampler.next());
        Self::new((number << 64 | number).to_be_bytes())
    }
}

impl Sample for Str<'_> {
    fn sample(sampler: &mut Sampler, _: Layout) -> Self {
        let number = sampler.next();
        match number % 5 {
            _ if sampler.full => Cow::Owned(format!("s{number}")),
            0 => Cow::Borrowed(""),
            1 => Cow::Owned("ä".repeat(usize::from(number.to_le_bytes()[1]))),
            _ => Cow::Owned(format!("topic-{}", number % 1000)),
        }
    }
}

impl Sample for Blob<'_> {
    fn sample(sampler: &mut Sampler, _: Layout) -> Self {
        Cow::Owned(sampler.bytes())
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(sampler: &mut Sampler, layout: Layout) -> Self {
        (0..sampler.count()).map(|_| T::sample(sampler, layout)).collect()
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(sampler: &mut Sampler, layout: Layout) -> Self {
        (sampler.full || sampler.below(4) > 0).then(|| T::sample(sampler, layout))
    }
    fn sample_not_null(sampler: &mut Sampler, layout: Layout) -> Self {
        Some(T::sample(sampler, layout))
    }
}

impl<A: Sample, B: Sample, C: Sample> Sample for (A, B, C) {
    fn sample(sampler: &mut Sampler, layout: Layout) -> Self {
        (A::sample(sampler, layout), B::sample(sampler, layout), C::sample(sampler, layout))
    }
}

//! A histogram of integers for one thread: a cell per bucket, each bucket a sixteenth of its power of two. Recording is
//! a shift and an addition. Counts only grow; whoever wants a window subtracts an earlier snapshot.

use std::cell::Cell;

/// Buckets per power of two, as a power of two: a value is told within 1/32.
const SUB_BITS: u32 = 4;

/// Larger values are counted as this one: 71 minutes in microseconds, 4 GiB in bytes.
const VALUE_MAX: u64 = u32::MAX as u64;

const BUCKETS: usize = ((32 - SUB_BITS as usize) << SUB_BITS) + (1 << SUB_BITS);

/// Counts of values.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[Cell<u64>]>,
    sum: Cell<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![Cell::new(0); BUCKETS].into(), sum: Cell::new(0) }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&self, value: u64) {
        if let Some(bucket) = self.buckets.get(bucket_of(value)) {
            bucket.set(bucket.get().wrapping_add(1));
        }
        self.sum.set(self.sum.get().wrapping_add(value));
    }

    /// Counts a time of so many nanoseconds, in microseconds.
    pub fn record_nanos(&self, nanos: u64) {
        self.record(nanos / 1000);
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }

    /// The counts as they are now.
    pub fn snapshot(&self) -> Counts {
        Counts { buckets: self.buckets.iter().map(Cell::get).collect(), sum: self.sum.get() }
    }
}

fn bucket_of(value: u64) -> usize {
    let value = value.min(VALUE_MAX);
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let index = (u64::from(shift) << SUB_BITS) + (value >> shift);
    usize::try_from(index).unwrap_or(BUCKETS)
}

/// The lowest value of a bucket, and how many values fall into it.
fn bounds(bucket: usize) -> (u64, u64) {
    let bucket = u64::try_from(bucket).unwrap_or(0);
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    ((bucket - (shift << SUB_BITS)) << shift, 1 << shift)
}

/// Counts of values that were taken off their thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    buckets: Vec<u64>,
    sum: u64,
}

impl Counts {
    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count = count.wrapping_add(*more);
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// What came since an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets = self.buckets.iter().zip(before).map(|(now, then)| now.wrapping_sub(then)).collect();
        Self { buckets, sum: self.sum.wrapping_sub(earlier.sum) }
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Their sum.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The value that a share of `thousandths` of all values does not exceed; `None` without values.
    pub fn quantile(&self, thousandths: u64) -> Option<f64> {
        let count = self.count();
        let rank = count.saturating_mul(thousandths).div_ceil(1000).max(1);
        let mut seen = 0u64;
        let found = self.buckets.iter().position(|more| {
            seen = seen.saturating_add(*more);
            seen >= rank
        });
        #[allow(clippy::cast_precision_loss, reason = "both are at most u32::MAX")]
        found.map(bounds).map(|(low, width)| low as f64 + (width - 1) as f64 / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_cover_all_values() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let (low, width) = bounds(bucket);
            assert_eq!(low, next, "bucket {bucket}");
            assert_eq!((bucket_of(low), bucket_of(low + width - 1)), (bucket, bucket));
            next = low + width;
        }
        assert_eq!(next, VALUE_MAX + 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_thirty_second() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().quantile(500), None);
        (1..=10_000).for_each(|value| histogram.record(value));
        let counts = histogram.snapshot();
        for (thousandths, exact) in [(500, 5000.0), (950, 9500.0), (999, 9990.0), (1, 10.0)] {
            let told = counts.quantile(thousandths).unwrap();
            assert!((told - exact).abs() <= exact / 32.0, "{thousandths}: {told}");
        }
        assert_eq!((counts.count(), counts.sum()), (10_000, 50_005_000));
    }

    #[test]
    fn a_window_is_the_difference_of_two_snapshots() {
        let histogram = Histogram::default();
        histogram.record(3);
        let before = histogram.snapshot();
        assert_eq!(before.since(&Counts::default()), before);
        histogram.record(100);
        let window = histogram.snapshot().since(&before);
        assert_eq!((window.count(), window.sum(), window.quantile(500)), (1, 100, Some(101.5)));
        let mut both = before.clone();
        both.add(&window);
        assert_eq!(both, histogram.snapshot());
    }
}

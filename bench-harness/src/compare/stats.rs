//! What a series of pairs says: ratios pair by pair, their median and spread, and whether a claim may be made. Knows no
//! broker and reads no clock.

use serde::{Deserialize, Serialize};

/// The first pair is a rehearsal: it counts for nothing.
pub const DISCARDED: usize = 1;
/// Measured pairs below which nothing is claimed: five, of which one is discarded.
pub const CLAIM_MIN: usize = 4;

/// Which way a figure is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Costs and times.
    Lower,
    /// Rates.
    Higher,
}

/// What the measured pairs allow to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The first side is better in every pair.
    FirstBetter,
    /// The second side is better in every pair.
    SecondBetter,
    /// The pairs fall on both sides, or on the line between them.
    NoClaim,
    /// There are fewer pairs than a claim needs.
    TooFew,
    /// Kafka's rate was still moving when its time to warm was up.
    NotWarm,
}

/// The middle, and the ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Middle value; the mean of the two middle ones when their number is even.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Of values in any order; `None` when there are none, or one that is no number.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        if sorted.iter().any(|value| !value.is_finite()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }
}

/// One figure over all measured pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Of the first side.
    pub first: Spread,
    /// Of the second side.
    pub second: Spread,
    /// First over second, pair by pair.
    pub ratios: Vec<f64>,
    /// Of those ratios.
    pub ratio: Spread,
    /// What may be said.
    pub verdict: Verdict,
}

/// The pairs that count.
pub fn measured<T>(pairs: &[T]) -> &[T] {
    pairs.get(DISCARDED..).unwrap_or_default()
}

/// Compares the measured pairs of one figure, `(first, second)` each; `None` when none is left, or when a value is not
/// a number or the second one is zero, which no ratio can express.
pub fn compare(pairs: &[(f64, f64)], better: Better) -> Option<Comparison> {
    let pairs = measured(pairs);
    let ratios: Vec<f64> = pairs.iter().map(|(first, second)| first / second).collect();
    let ratio = Spread::of(ratios.iter().copied())?;
    Some(Comparison {
        first: Spread::of(pairs.iter().map(|pair| pair.0))?,
        second: Spread::of(pairs.iter().map(|pair| pair.1))?,
        verdict: verdict(&ratios, better),
        ratios,
        ratio,
    })
}

fn verdict(ratios: &[f64], better: Better) -> Verdict {
    let below = ratios.iter().all(|ratio| *ratio < 1.0);
    let above = ratios.iter().all(|ratio| *ratio > 1.0);
    match (better, below, above) {
        _ if ratios.len() < CLAIM_MIN => Verdict::TooFew,
        (Better::Lower, true, _) | (Better::Higher, _, true) => Verdict::FirstBetter,
        (Better::Lower, _, true) | (Better::Higher, true, _) => Verdict::SecondBetter,
        _ => Verdict::NoClaim,
    }
}

/// What the windows of a warm-up say of the side that was warmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// The last three lie within 3 % of each other.
    Agrees,
    /// They do not, but the median of the last seven is that of the seven before within 3 %: the side is not moving any more,
    /// the rest is noise of this machine from one window to the next.
    Level,
    /// Neither.
    Moving,
}

impl Warmth {
    /// Of records per second, window by window.
    pub fn of(rates: &[f64]) -> Self {
        const AGREEING: usize = 3;
        const LEVEL: usize = 7;
        const TOLERANCE: f64 = 0.03;
        let last = |count: usize, before: usize| {
            let until = rates.len().checked_sub(before)?;
            Spread::of(rates.get(until.checked_sub(count)?..until)?.iter().copied())
        };
        let agrees =
            |spread: Spread| spread.min > 0.0 && spread.max - spread.min <= TOLERANCE * spread.median;
        if last(AGREEING, 0).is_some_and(agrees) {
            return Self::Agrees;
        }
        match (last(LEVEL, LEVEL), last(LEVEL, 0)) {
            (Some(before), Some(after))
                if before.median > 0.0
                    && (after.median - before.median).abs() <= TOLERANCE * before.median =>
            {
                Self::Level
            }
            _ => Self::Moving,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert_eq!(Spread::of([4.0, 1.0, 3.0, 2.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of([9.0, 1.0, 3.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([1.0, f64::NAN]), None);
    }

    #[test]
    fn the_first_pair_counts_for_nothing() {
        let pairs = [(100.0, 1.0), (1.0, 2.0), (1.0, 4.0)];
        let found = compare(&pairs, Better::Lower).unwrap();
        assert_eq!(found.ratios, [0.5, 0.25]);
        assert_eq!(found.ratio, Spread { median: 0.375, min: 0.25, max: 0.5 });
        assert_eq!(found.first, Spread { median: 1.0, min: 1.0, max: 1.0 });
        assert_eq!(found.verdict, Verdict::TooFew);
        assert_eq!(compare(&pairs[..1], Better::Lower), None);
        assert_eq!(compare(&[], Better::Lower), None);
    }

    #[test]
    fn the_ratio_is_taken_pair_by_pair_and_not_of_the_medians() {
        let pairs = [(0.0, 1.0), (1.0, 1.0), (10.0, 20.0), (100.0, 50.0)];
        assert_eq!(compare(&pairs, Better::Lower).unwrap().ratio.median, 1.0);
    }

    #[test]
    fn one_pair_on_the_other_side_takes_the_claim_away() {
        let verdict_of = |measured: [(f64, f64); 4], better| {
            let pairs: Vec<(f64, f64)> = std::iter::once((9.0, 1.0)).chain(measured).collect();
            compare(&pairs, better).unwrap().verdict
        };
        let all = [(1.0, 2.0); 4];
        assert_eq!(verdict_of(all, Better::Lower), Verdict::FirstBetter);
        assert_eq!(verdict_of(all, Better::Higher), Verdict::SecondBetter);
        let mixed = [(1.0, 2.0), (2.1, 2.0), (1.0, 2.0), (1.0, 2.0)];
        assert_eq!(verdict_of(mixed, Better::Lower), Verdict::NoClaim);
        let on_the_line = [(1.0, 2.0), (2.0, 2.0), (1.0, 2.0), (1.0, 2.0)];
        assert_eq!(verdict_of(on_the_line, Better::Lower), Verdict::NoClaim);
        let other = [(3.0, 2.0); 4];
        assert_eq!(verdict_of(other, Better::Lower), Verdict::SecondBetter);
        assert_eq!(verdict_of(other, Better::Higher), Verdict::FirstBetter);
    }

    #[test]
    fn four_of_four_measured_pairs_make_a_claim_and_three_do_not() {
        let five = [(1.0, 2.0); 5];
        assert_eq!(compare(&five, Better::Lower).unwrap().verdict, Verdict::FirstBetter);
        assert_eq!(compare(&five[1..], Better::Lower).unwrap().verdict, Verdict::TooFew);
    }

    #[test]
    fn what_no_ratio_can_express_is_not_compared() {
        assert_eq!(compare(&[(1.0, 1.0), (1.0, 0.0)], Better::Lower), None);
        assert_eq!(compare(&[(1.0, 1.0), (f64::NAN, 1.0)], Better::Lower), None);
    }

    #[test]
    fn three_windows_within_three_percent_agree() {
        assert_eq!(Warmth::of(&[100.0, 102.0, 101.0]), Warmth::Agrees);
        assert_eq!(Warmth::of(&[10.0, 50.0, 100.0, 97.5, 99.0]), Warmth::Agrees);
        assert_eq!(Warmth::of(&[100.0, 104.0, 101.0]), Warmth::Moving);
        assert_eq!(Warmth::of(&[100.0, 100.0]), Warmth::Moving);
        assert_eq!(Warmth::of(&[100.0, 100.0, 100.0, 90.0]), Warmth::Moving);
        assert_eq!(Warmth::of(&[0.0, 0.0, 0.0]), Warmth::Moving);
        assert_eq!(Warmth::of(&[f64::NAN, 1.0, 1.0]), Warmth::Moving);
    }

    #[test]
    fn noise_around_one_rate_is_level_and_a_rising_rate_is_not() {
        let around = |middles: [f64; 2]| -> Vec<f64> {
            let of = |middle: f64| [0.95, 1.06, 0.96, 1.0, 1.05, 0.94, 1.04].map(|factor| middle * factor);
            middles.into_iter().flat_map(of).collect()
        };
        assert_eq!(Warmth::of(&around([100.0, 102.0])), Warmth::Level);
        assert_eq!(Warmth::of(&around([100.0, 98.0])), Warmth::Level);
        assert_eq!(Warmth::of(&around([100.0, 104.0])), Warmth::Moving);
        assert_eq!(Warmth::of(&around([100.0, 96.0])), Warmth::Moving);
        assert_eq!(Warmth::of(around([100.0, 102.0]).get(1..).unwrap()), Warmth::Moving, "too few to tell");
        let cold: Vec<f64> = std::iter::repeat_n(10.0, 6).chain(around([100.0, 101.0])).collect();
        assert_eq!(Warmth::of(&cold), Warmth::Level, "what was long ago does not count");
    }
}

//! The schedule of requests that go round their subjects: commits round the groups, heartbeats round the members. Pure
//! arithmetic on the index of a request.

/// So many requests in each period, evenly, up to a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Requests of one period, at least 1.
    pub each: u64,
    /// The period in nanoseconds.
    pub period_ns: u64,
    /// Requests in all.
    pub total: u64,
}

impl Pace {
    /// The pace that lasts so long: what is due before its end.
    pub fn lasting(each: u64, period_ns: u64, length_ns: u64) -> Self {
        let total = (u128::from(length_ns) * u128::from(each)).div_ceil(u128::from(period_ns.max(1)));
        Self { each: each.max(1), period_ns, total: u64::try_from(total).unwrap_or(u64::MAX) }
    }

    /// When request `index` is due; `None` behind the last.
    pub fn due(&self, index: u64) -> Option<u64> {
        if index >= self.total {
            return None;
        }
        let nanos = u128::from(index) * u128::from(self.period_ns) / u128::from(self.each.max(1));
        Some(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_rate_is_kept_without_drift() {
        let pace = Pace::lasting(10_000, SECOND, 10 * SECOND);
        assert_eq!(pace.total, 100_000);
        assert_eq!(
            (pace.due(0), pace.due(1), pace.due(99_999)),
            (Some(0), Some(100_000), Some(9_999_900_000))
        );
        assert_eq!(pace.due(100_000), None);
        let odd = Pace::lasting(3, SECOND, SECOND);
        assert_eq!(
            (0..4).map(|index| odd.due(index)).collect::<Vec<_>>(),
            [Some(0), Some(333_333_333), Some(666_666_666), None]
        );
    }

    #[test]
    fn each_subject_has_its_turn_once_in_a_period_and_always_as_long_after_the_last() {
        // 7 members that beat every 3 seconds.
        let pace = Pace::lasting(7, 3 * SECOND, 9 * SECOND);
        assert_eq!(pace.total, 21);
        for member in 0..7 {
            let beats: Vec<u64> = (0..3).filter_map(|round| pace.due(member + 7 * round)).collect();
            assert_eq!(beats.len(), 3);
            assert!(beats.windows(2).all(|pair| pair[1] - pair[0] == 3 * SECOND), "{member}: {beats:?}");
        }
    }

    #[test]
    fn absurd_numbers_neither_panic_nor_divide_by_zero() {
        let pace = Pace::lasting(u64::MAX, 0, u64::MAX);
        assert_eq!(pace.due(1), Some(0));
        assert_eq!(Pace::lasting(0, SECOND, SECOND).due(0), None);
        assert_eq!(Pace { each: 1, period_ns: u64::MAX, total: 9 }.due(8), Some(u64::MAX));
    }
}

//! Real time for the load: nanoseconds since the run began, and the wall clock that record timestamps take. `measure` and
//! `compare` have clocks of their own: what they wait for and compare is no load.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds of one second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// A clock that starts at 0.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    origin_unix: Duration,
}

impl Clock {
    /// A clock that shows 0 at this moment.
    #[allow(clippy::disallowed_methods, reason = "a load generator measures real time")]
    pub fn start() -> Self {
        let origin_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { origin: Instant::now(), origin_unix }
    }

    /// Nanoseconds since the start.
    #[allow(clippy::disallowed_methods, reason = "a load generator measures real time")]
    pub fn now(&self) -> u64 {
        saturated_nanos(Instant::now().duration_since(self.origin))
    }

    /// Milliseconds since 1970 at a moment of this clock.
    pub fn unix_ms(&self, at: u64) -> i64 {
        let since = self.origin_unix.saturating_add(Duration::from_nanos(at));
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

/// Nanoseconds of a duration, at most `u64::MAX`.
pub fn saturated_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds as seconds.
pub fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

//! Lines of the log that clients cause: what goes wrong for one of them is told, and a flood of it fills no disk. Each
//! address has one line for each thing that goes wrong in a span of time, all together have a bound; what was held back is
//! told with the next line.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::types::MonoTime;

/// Lines in one span at most.
const LINES_MAX: usize = 20;

/// How long one address is not told of again.
pub const SPAN_MS: i64 = 60_000;

/// Lines of one kind on one shard.
#[derive(Debug, Default)]
pub struct Lines {
    began: Cell<Option<MonoTime>>,
    told: RefCell<BTreeSet<(IpAddr, &'static str)>>,
    held_back: Cell<u64>,
}

impl Lines {
    /// Whether a line about this client is to be written: how many others were held back since the last one.
    pub fn admit(&self, now: MonoTime, span_ms: i64, (who, what): (IpAddr, &'static str)) -> Option<u64> {
        let mut told = self.told.borrow_mut();
        if self.began.get().is_none_or(|began| now >= began.plus_ms(span_ms)) {
            self.began.set(Some(now));
            told.clear();
        }
        if told.len() < LINES_MAX && told.insert((who, what)) {
            return Some(self.held_back.replace(0));
        }
        self.held_back.set(self.held_back.get().saturating_add(1));
        None
    }
}

/// One line of a kind in a span of time, of all shards together: of what concerns no client in particular.
#[derive(Debug, Default)]
pub struct Rare {
    /// When the last line was, in nanoseconds of the machine's clock; 0 before the first.
    told_at: AtomicU64,
    held_back: AtomicU64,
}

impl Rare {
    /// Whether a line is to be written: how many others were held back since the last one.
    pub fn admit(&self, now: MonoTime, span_ms: i64) -> Option<u64> {
        let told_at = self.told_at.load(Ordering::Relaxed);
        let is_due = told_at == 0 || now >= MonoTime::new(told_at).plus_ms(span_ms);
        let taken = || {
            let (order, now) = (Ordering::Relaxed, now.get().max(1));
            self.told_at.compare_exchange(told_at, now, order, order).is_ok()
        };
        if is_due && taken() {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// A name that a client gave itself, for a line: it may be long, and the line must stay one.
pub fn shown(name: &str) -> String {
    const SHOWN_MAX: usize = 100;
    let shown: String = name.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN_MAX).is_some() { format!("{shown}...") } else { shown }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn from(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    #[test]
    fn a_flood_of_one_address_is_one_line_and_another_client_is_still_told_of() {
        let (lines, now) = (Lines::default(), MonoTime::new(1));
        assert_eq!(lines.admit(now, SPAN_MS, (from(1), "a")), Some(0));
        for _ in 0..1000 {
            assert_eq!(lines.admit(now, SPAN_MS, (from(1), "a")), None);
        }
        assert_eq!(lines.admit(now, SPAN_MS, (from(2), "a")), Some(1000));
        assert_eq!(lines.admit(now, SPAN_MS, (from(1), "b")), Some(0));
        assert_eq!(lines.admit(now.plus_ms(SPAN_MS - 1), SPAN_MS, (from(1), "a")), None);
        assert_eq!(lines.admit(now.plus_ms(SPAN_MS), SPAN_MS, (from(1), "a")), Some(1));
    }

    #[test]
    fn a_flood_of_many_addresses_has_a_bound() {
        let (lines, now) = (Lines::default(), MonoTime::new(1));
        let told = (0..=255).filter(|last| lines.admit(now, SPAN_MS, (from(*last), "a")).is_some()).count();
        assert_eq!(told, LINES_MAX);
    }

    #[test]
    fn what_concerns_nobody_in_particular_is_told_once_in_a_span() {
        let (rare, now) = (Rare::default(), MonoTime::new(5));
        assert_eq!(rare.admit(now, SPAN_MS), Some(0));
        for ms in [0, 1, SPAN_MS - 1] {
            assert_eq!(rare.admit(now.plus_ms(ms), SPAN_MS), None);
        }
        assert_eq!(rare.admit(now.plus_ms(SPAN_MS), SPAN_MS), Some(3));
        assert_eq!(rare.admit(now.plus_ms(SPAN_MS), SPAN_MS), None);
    }

    #[test]
    fn a_name_is_shown_short_and_in_one_line() {
        assert_eq!(shown("consumer-1"), "consumer-1");
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"x".repeat(101)), format!("{}...", "x".repeat(100)));
    }
}

//! Lines of the log that clients cause: what goes wrong for one of them is told, and a flood of it fills no disk. Each
//! address has one line for each thing that goes wrong in a span of time, all together have a bound; what was held back is
//! told with the next line.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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

/// So many lines of a kind in a span of time, of whoever shares it: of what concerns no client in particular.
#[derive(Debug)]
pub struct Rare {
    lines_max: u32,
    span_ms: i64,
    /// When the span began, in nanoseconds of the machine's clock; 0 before the first.
    began: AtomicU64,
    /// Lines of the span. As many as there may be until the first span has begun: whoever begins it sets them.
    lines: AtomicU32,
    held_back: AtomicU64,
}

impl Rare {
    /// So many lines in a span, which begins with its first line.
    pub const fn new(lines_max: u32, span_ms: i64) -> Self {
        let (began, lines, held_back) = (AtomicU64::new(0), AtomicU32::new(lines_max), AtomicU64::new(0));
        Self { lines_max, span_ms, began, lines, held_back }
    }

    /// Whether a line is to be written: how many others were held back since the last one.
    pub fn admit(&self, now: MonoTime) -> Option<u64> {
        let order = Ordering::Relaxed;
        let began = self.began.load(order);
        let is_over = began == 0 || now >= MonoTime::new(began).plus_ms(self.span_ms);
        let is_admitted = if is_over {
            // Of several shards that see a span end, one begins the next.
            let begins = self.began.compare_exchange(began, now.get().max(1), order, order).is_ok();
            if begins {
                self.lines.store(1, order);
            }
            begins
        } else {
            let one_more = |lines| (lines < self.lines_max).then(|| lines + 1);
            self.lines.fetch_update(order, order, one_more).is_ok()
        };
        if is_admitted {
            return Some(self.held_back.swap(0, order));
        }
        self.held_back.fetch_add(1, order);
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
        let (rare, now) = (Rare::new(1, SPAN_MS), MonoTime::new(5));
        assert_eq!(rare.admit(now), Some(0));
        for ms in [0, 1, SPAN_MS - 1] {
            assert_eq!(rare.admit(now.plus_ms(ms)), None);
        }
        assert_eq!(rare.admit(now.plus_ms(SPAN_MS)), Some(3));
        assert_eq!(rare.admit(now.plus_ms(SPAN_MS)), None);
    }

    #[test]
    fn a_storm_has_so_many_lines_in_a_span_and_the_next_one_tells_of_the_rest() {
        let (rare, now) = (Rare::new(50, SPAN_MS), MonoTime::new(1));
        let admitted: Vec<u64> = (0..1_000).filter_map(|_| rare.admit(now)).collect();
        assert_eq!(admitted, [0; 50]);
        assert_eq!(rare.admit(now.plus_ms(SPAN_MS - 1)), None);
        let next: Vec<u64> = (0..60).filter_map(|_| rare.admit(now.plus_ms(SPAN_MS))).collect();
        assert_eq!((next.len(), next.first(), next.last()), (50, Some(&951), Some(&0)));
    }

    #[test]
    fn a_name_is_shown_short_and_in_one_line() {
        assert_eq!(shown("consumer-1"), "consumer-1");
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"x".repeat(101)), format!("{}...", "x".repeat(100)));
    }
}

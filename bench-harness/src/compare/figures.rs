//! THE table of figures that a run yields, and the targets that they are held against. Knows names, units and
//! directions, not how a figure is measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::stats::{Better, Spread};

/// Figures of a run by name. A name may carry a condition behind `@`, such as the rate of a latency.
pub type Figures = BTreeMap<String, f64>;

/// One kind of figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name in the raw data.
    pub name: &'static str,
    /// What tables call it, with its unit.
    pub label: &'static str,
    /// Which way it is good.
    pub better: Better,
    /// Digits behind the point.
    pub digits: usize,
}

const fn lower(name: &'static str, label: &'static str, digits: usize) -> Kind {
    Kind { name, label, better: Better::Lower, digits }
}

const fn higher(name: &'static str, label: &'static str, digits: usize) -> Kind {
    Kind { name, label, better: Better::Higher, digits }
}

/// In the order of tables.
pub const KINDS: &[Kind] = &[
    higher("mb_per_s", "MB/s", 1),
    higher("records_per_s", "records/s", 0),
    higher("requests_per_s", "acknowledged requests/s", 0),
    lower("cpu_s_per_gb", "broker CPU-s/GB", 3),
    lower("cpu_user_s_per_gb", "broker user CPU-s/GB", 3),
    lower("cpu_system_s_per_gb", "broker system CPU-s/GB", 3),
    lower("cpu_s_per_mrec", "broker CPU-s per million records", 3),
    lower("cpu_s_per_mcommit", "broker CPU-s per million commits", 3),
    lower("cpu_percent", "broker CPU, % of a processor", 2),
    lower("stable_ms", "first join to a stable group, ms", 1),
    lower("paused_partition_s", "partition-seconds paused", 2),
    lower("settle_us", "join to assigned, median µs", 0),
    lower("syscalls_per_1000_records", "system calls per 1,000 records", 1),
    lower("p50_us", "p50 µs", 0),
    lower("p99_us", "p99 µs", 0),
    lower("p999_us", "p99.9 µs", 0),
    lower("p9999_us", "p99.99 µs", 0),
    lower("max_us", "max µs", 0),
    lower("ready_ms", "start to first acknowledged record, ms", 1),
    lower("recovered_ms", "kill -9 to all partitions acknowledging, ms", 1),
    lower("rss_mib", "RSS, MiB", 1),
    lower("rss_max_mib", "highest RSS, MiB", 1),
    lower("rss_above_mib", "highest RSS above that before, MiB", 1),
    lower("idle_cpu_percent", "idle CPU, %", 3),
    higher("reader_mb_per_s", "cold reader, MB/s", 1),
    higher("cleaner_mb_per_s", "cleaner beside it, MB/s", 1),
];

/// The kind of a name, without its condition.
pub fn kind(name: &str) -> Option<&'static Kind> {
    let bare = name.split_once('@').map_or(name, |(bare, _)| bare);
    KINDS.iter().find(|kind| kind.name == bare)
}

/// A name as tables show it.
pub fn label(name: &str) -> String {
    let shown = kind(name).map_or(name, |kind| kind.label);
    name.split_once('@').map_or_else(|| shown.to_owned(), |(_, condition)| format!("{shown} at {condition}"))
}

/// Names in the order of tables: by condition, then by kind.
pub fn sort(names: &mut [String]) {
    names.sort_by_key(|name| {
        let bare = name.split_once('@').map_or(name.as_str(), |(bare, _)| bare);
        let condition = name.split_once('@').map_or("", |(_, condition)| condition).to_owned();
        (condition, KINDS.iter().position(|kind| kind.name == bare))
    });
}

/// What a figure is held against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The ratio first to second is at most this.
    RatioAtMost(f64),
    /// The ratio first to second is at least this.
    RatioAtLeast(f64),
    /// The first side's value is at most this.
    AtMost(f64),
    /// The ratio is at most the first, or the first side's value at most the second: the larger bound counts.
    RatioOrValue(f64, f64),
}

/// A target of the issue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The figure's name.
    pub figure: String,
    /// What it must keep.
    pub limit: Limit,
}

/// Whether a target was met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Which.
    pub target: Target,
    /// The value that counts: the median.
    pub found: f64,
    /// The bound that counts.
    pub bound: f64,
    /// Whether it was met.
    pub met: bool,
}

/// Holds the medians against the target. Where there is no ratio, or none that counts, only a bound of the value is
/// left; a target that has none is not held.
pub fn hold(target: &Target, ratio: Option<&Spread>, value: &Spread) -> Option<Held> {
    let ratio = ratio.map(|ratio| ratio.median);
    let (found, bound, met) = match target.limit {
        Limit::RatioAtMost(bound) => (ratio?, bound, ratio? <= bound),
        Limit::RatioAtLeast(bound) => (ratio?, bound, ratio? >= bound),
        Limit::AtMost(bound) => (value.median, bound, value.median <= bound),
        Limit::RatioOrValue(times, bound) => match ratio.filter(|ratio| *ratio <= times) {
            Some(ratio) => (ratio, times, true),
            None => (value.median, bound, value.median <= bound),
        },
    };
    Some(Held { target: target.clone(), found, bound, met })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64) -> Spread {
        Spread { median, min: median, max: median }
    }

    fn held(limit: Limit, ratio: f64, value: f64) -> Held {
        let target = Target { figure: "cpu_s_per_gb".to_owned(), limit };
        hold(&target, Some(&spread(ratio)), &spread(value)).unwrap()
    }

    #[test]
    fn a_target_is_held_against_the_median_of_its_own_kind() {
        assert!(held(Limit::RatioAtMost(0.5), 0.5, 9.0).met);
        assert!(!held(Limit::RatioAtMost(0.5), 0.51, 0.0).met);
        assert!(held(Limit::RatioAtLeast(1.0), 1.0, 0.0).met);
        assert!(!held(Limit::RatioAtLeast(1.0), 0.99, 9.0).met);
        assert!(held(Limit::AtMost(100.0), 9.0, 100.0).met);
        assert!(!held(Limit::AtMost(100.0), 0.1, 100.1).met);
    }

    #[test]
    fn of_two_bounds_the_larger_one_counts() {
        assert!(held(Limit::RatioOrValue(0.33, 1.1), 0.2, 9.0).met);
        let by_value = held(Limit::RatioOrValue(0.33, 1.1), 0.5, 1.0);
        assert!(by_value.met && by_value.bound == 1.1);
        assert!(!held(Limit::RatioOrValue(0.33, 1.1), 0.5, 1.2).met);
    }

    #[test]
    fn without_a_ratio_the_bound_of_the_value_is_left() {
        let hold = |limit| {
            let target = Target { figure: "cpu_s_per_gb".to_owned(), limit };
            hold(&target, None, &spread(1.0))
        };
        let by_value = hold(Limit::RatioOrValue(0.33, 1.1)).unwrap();
        assert!(by_value.met && by_value.bound == 1.1 && by_value.found == 1.0);
        assert!(!hold(Limit::RatioOrValue(0.33, 0.9)).unwrap().met);
        assert_eq!(hold(Limit::RatioAtMost(0.33)), None);
    }

    #[test]
    fn names_carry_conditions_and_are_ordered_by_them() {
        assert_eq!(label("p99_us@5000/s"), "p99 µs at 5000/s");
        assert_eq!(kind("p99_us@5000/s").unwrap().name, "p99_us");
        assert_eq!(label("unheard_of"), "unheard_of");
        let mut names = ["p99_us@b", "p50_us@b", "p99_us@a", "rss_mib", "mb_per_s"].map(str::to_owned);
        sort(&mut names);
        assert_eq!(names, ["mb_per_s", "rss_mib", "p99_us@a", "p50_us@b", "p99_us@b"]);
    }
}

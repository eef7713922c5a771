//! When a run is void: what else used the processors. The load average of the minute before tells that the machine was
//! quiet when the series began; within a series it tells of our own last run, so each run is judged by the processor
//! time that others used just before it and during it. Decides only; `host` reads.

use serde::{Deserialize, Serialize};

use super::host::Foreign;

/// Highest load average at the start of a series, and highest use by others before a run, in processors.
pub const BEFORE_MAX: f64 = 0.3;
/// Highest use by others during a run, in processors.
pub const DURING_MAX: f64 = 0.1;
/// Highest share that the host may take during a run, in processors.
pub const STEAL_MAX: f64 = 0.1;

/// What surrounded a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Load average of the minute before the run; counts our own last run.
    pub load_average: f64,
    /// Just before the run.
    pub before: Foreign,
    /// During the run.
    pub during: Foreign,
}

/// Why a run does not count.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Void {
    /// At the start of the series.
    #[error("the load average was {0:.2} before the series, above {BEFORE_MAX}")]
    LoadAverage(f64),
    /// Just before.
    #[error("others used {0:.2} processors just before the run, above {BEFORE_MAX}")]
    Before(f64),
    /// During the run.
    #[error("others used {0:.2} processors during the run, above {DURING_MAX}")]
    During(f64),
    /// By the host.
    #[error("the host took {0:.2} processors during the run, above {STEAL_MAX}")]
    Stolen(f64),
}

/// Whether a series may begin.
pub fn at_start(load_average: f64) -> Option<Void> {
    (load_average > BEFORE_MAX).then_some(Void::LoadAverage(load_average))
}

/// Why a run is void; empty when it counts.
pub fn faults(conditions: &Conditions) -> Vec<Void> {
    let mut found = Vec::new();
    if conditions.before.load > BEFORE_MAX {
        found.push(Void::Before(conditions.before.load));
    }
    if conditions.during.load > DURING_MAX {
        found.push(Void::During(conditions.during.load));
    }
    if conditions.during.steal > STEAL_MAX {
        found.push(Void::Stolen(conditions.during.steal));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(load: f64, kernel: f64, steal: f64) -> Foreign {
        Foreign { load, kernel, steal }
    }

    #[test]
    fn a_series_begins_on_a_quiet_machine_only() {
        assert_eq!(at_start(0.3), None);
        assert_eq!(at_start(0.31), Some(Void::LoadAverage(0.31)));
    }

    #[test]
    fn what_our_own_last_run_left_in_the_load_average_voids_nothing() {
        let conditions =
            Conditions { load_average: 1.9, before: foreign(0.1, 0.0, 0.0), ..Default::default() };
        assert_eq!(faults(&conditions), []);
    }

    #[test]
    fn others_before_or_during_a_run_void_it_and_kernel_threads_do_not() {
        let before = Conditions { before: foreign(0.31, 0.0, 0.0), ..Default::default() };
        assert_eq!(faults(&before), [Void::Before(0.31)]);
        let during = Conditions { during: foreign(0.11, 0.9, 0.2), ..Default::default() };
        assert_eq!(faults(&during), [Void::During(0.11), Void::Stolen(0.2)]);
        let writeback = Conditions { during: foreign(0.05, 0.9, 0.0), ..Default::default() };
        assert_eq!(faults(&writeback), []);
        assert_eq!(Void::During(0.11).to_string(), "others used 0.11 processors during the run, above 0.1");
    }
}

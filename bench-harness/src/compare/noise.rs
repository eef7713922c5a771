//! When a run is void: what else used the processors. The load average of the minute before tells that the machine was
//! quiet when the series began; within a series it tells of our own last run, so each run is judged by the processor
//! time that others used just before it and during its measured windows. Decides only; `host` and `measure` read.

use serde::{Deserialize, Serialize};

use crate::measure::others::Foreign;

/// Highest load average at the start of a series, and highest use by others before a run, in processors.
pub const BEFORE_MAX: f64 = 0.3;
/// Highest use by others during a run, in processors.
pub const DURING_MAX: f64 = 0.1;
/// Highest share that the host may take during a run, in processors.
pub const STEAL_MAX: f64 = 0.1;

/// What surrounded a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Load average of the minute before the run; counts our own last run.
    pub load_average: f64,
    /// Just before the run.
    pub before: Foreign,
    /// During the run, with all that is not measured in it.
    pub during: Foreign,
    /// During each measured window of it.
    #[serde(default)]
    pub windows: Vec<Foreign>,
}

impl Conditions {
    /// The worst of what was measured; without windows the whole run was.
    fn worst(&self, of: impl Fn(&Foreign) -> f64) -> f64 {
        let windows = self.windows.iter().map(&of).max_by(f64::total_cmp);
        windows.unwrap_or_else(|| of(&self.during))
    }
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
    let (load, steal) = (conditions.worst(|foreign| foreign.load), conditions.worst(|foreign| foreign.steal));
    if load > DURING_MAX {
        found.push(Void::During(load));
    }
    if steal > STEAL_MAX {
        found.push(Void::Stolen(steal));
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
        let quiet = foreign(0.01, 0.0, 0.0);
        let windows = vec![quiet, foreign(0.12, 0.0, 0.0), quiet];
        let diluted = Conditions { during: foreign(0.04, 0.0, 0.0), windows, ..Default::default() };
        assert_eq!(faults(&diluted), [Void::During(0.12)], "a window is not diluted by what surrounds it");
        let outside =
            Conditions { during: foreign(0.5, 0.0, 0.5), windows: vec![quiet], ..Default::default() };
        assert_eq!(faults(&outside), [], "what is not measured takes nothing away");
        let writeback = Conditions { during: foreign(0.05, 0.9, 0.0), ..Default::default() };
        assert_eq!(faults(&writeback), []);
        assert_eq!(Void::During(0.11).to_string(), "others used 0.11 processors during the run, above 0.1");
    }
}

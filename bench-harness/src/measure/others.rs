//! What processes used that have nothing to do with a measurement, between two readings of `/proc`: all that is neither a
//! family of processes of ours nor a thread of the kernel. Judges nothing.
#![allow(clippy::disallowed_methods, reason = "reads /proc and a real clock; no shard waits here")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::measure::proc::{Busy, Stat};

/// What all processors did, and who of it is us.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    at: Instant,
    busy: f64,
    steal: f64,
    kernel_threads: BTreeMap<u32, f64>,
    ours: f64,
}

/// What happened between two readings, in processors (1.0 is one of them all the time).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Foreign {
    /// Used by processes that are none of ours.
    pub load: f64,
    /// Used by threads of the kernel, such as those that write back what we wrote.
    pub kernel: f64,
    /// Taken by the host.
    pub steal: f64,
}

impl Reading {
    /// Reads now. Ours are these processes, this one, and all that they started.
    ///
    /// # Errors
    /// `/proc` is not as known.
    pub fn take(roots: &[u32]) -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        // Interrupts are left out: no process asked for them, and most are those of our own traffic.
        let Busy { tasks: busy, steal, .. } = Busy::parse(&text).context("/proc/stat is not understood")?;
        let at = Instant::now();
        let mut stats = BTreeMap::new();
        for entry in std::fs::read_dir("/proc")? {
            let Some(process) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // One that ends while we look is none of either kind.
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok();
            stats.extend(stat.and_then(|text| Some((process, Stat::parse(&text)?))));
        }
        let roots = roots.iter().copied().chain([std::process::id()]).collect();
        let kernel = stats.iter().filter(|(_, stat)| stat.kernel_thread);
        let kernel_threads = kernel.map(|(process, stat)| (*process, stat.own.total())).collect();
        let family = family(roots, &stats);
        // What ends and is waited for goes over to its parent, so that the sum never falls.
        let ours =
            family.iter().filter_map(|process| stats.get(process)).map(|stat| stat.with_children).sum();
        Ok(Self { at, busy, steal, kernel_threads, ours })
    }

    /// What happened since an earlier reading of the same family.
    pub fn since(&self, earlier: &Self) -> Foreign {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64().max(0.001);
        let each = self.kernel_threads.iter().map(|(id, used)| {
            let before = earlier.kernel_threads.get(id).unwrap_or(used);
            (used - before).max(0.0)
        });
        let kernel = each.sum::<f64>() / seconds;
        let ours = (self.ours - earlier.ours).max(0.0) / seconds;
        let busy = (self.busy - earlier.busy) / seconds;
        let steal = (self.steal - earlier.steal) / seconds;
        Foreign { load: (busy - ours - kernel).max(0.0), kernel, steal }
    }
}

/// The processes, and all that descend from them.
fn family(mut known: BTreeSet<u32>, stats: &BTreeMap<u32, Stat>) -> BTreeSet<u32> {
    loop {
        let children = stats.iter().filter(|(id, stat)| known.contains(&stat.parent) && !known.contains(id));
        let children: Vec<u32> = children.map(|(id, _)| *id).collect();
        if children.is_empty() {
            return known;
        }
        known.extend(children);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn foreign_load_is_what_neither_we_nor_the_kernel_used() {
        let at = Instant::now();
        let reading = |seconds: u64, busy, steal, kernel, ours| Reading {
            at: at + Duration::from_secs(seconds),
            busy,
            steal,
            kernel_threads: BTreeMap::from([(2, kernel)]),
            ours,
        };
        let found = reading(8, 116.0, 2.0, 24.0, 38.0).since(&reading(0, 100.0, 0.0, 20.0, 30.0));
        assert_eq!(found, Foreign { load: 0.5, kernel: 0.5, steal: 0.25 });
        let less = reading(8, 101.0, 0.0, 20.0, 38.0).since(&reading(0, 100.0, 0.0, 20.0, 30.0));
        assert_eq!(less.load, 0.0, "rounding of ticks is not negative load");
    }

    #[test]
    fn a_family_is_all_that_descends_from_its_roots() {
        let child_of =
            |parent| Stat { parent, kernel_thread: false, own: Default::default(), with_children: 0.0 };
        let stats = BTreeMap::from([
            (1, child_of(0)),
            (3, child_of(9)),
            (5, child_of(3)),
            (7, child_of(1)),
            (9, child_of(1)),
        ]);
        assert_eq!(family(BTreeSet::from([9]), &stats), BTreeSet::from([3, 5, 9]));
        assert_eq!(family(BTreeSet::from([77]), &stats), BTreeSet::from([77]));
    }

    #[test]
    fn a_living_child_is_ours() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let before = Reading::take(&[]).unwrap();
        let mut used = 0.0;
        while used < 0.2 {
            used = Reading::take(&[]).unwrap().ours - before.ours;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let after = Reading::take(&[]).unwrap();
        // Of each process that ends meanwhile its parent counts whole ticks: some are lost, and other tests have children too.
        assert!(after.ours - before.ours >= used - 0.1, "and stays ours when it has ended");
    }
}

//! The measured part of a run: what broker, generator and the rest of the machine used between its begin and its end.

use serde_json::{Value, json};

use crate::clock::seconds;
use crate::measure::others::{Foreign, Reading};
use crate::measure::perf::{Counted, Perf};
use crate::measure::process::Sample;
use crate::measure::{float, ratio, rounded};

/// What to look at.
#[derive(Debug)]
pub struct Watch {
    broker: Option<u32>,
    perf: Option<Perf>,
    /// Memory of the broker before anything was asked of it.
    before: Option<Sample>,
    /// Processes that are not others, with all that they start.
    family: Vec<u32>,
    others: Option<Reading>,
    begun: Option<Begun>,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    at: u64,
    broker: Option<Sample>,
    own: Option<Sample>,
}

/// The measured part.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Length.
    pub seconds: f64,
    /// What others used.
    pub foreign: Option<Foreign>,
    broker: Option<(u32, Sample, Sample, Sample)>,
    own: Option<(Sample, Sample)>,
    counted: Counted,
}

impl Watch {
    /// Looks at the broker with this process id.
    ///
    /// # Errors
    /// No such process.
    pub fn new(broker: Option<u32>, with_perf: bool) -> anyhow::Result<Self> {
        let before = broker.and_then(Sample::take);
        if let (Some(pid), None) = (broker, before) {
            anyhow::bail!("there is no process {pid} to sample (--broker-pid)");
        }
        let perf = broker.filter(|_| with_perf).and_then(Perf::attach);
        Ok(Self { broker, perf, before, family: broker.into_iter().collect(), others: None, begun: None })
    }

    /// Counts this process, and all that it starts, not among the others.
    #[must_use]
    pub fn among(mut self, family: Option<u32>) -> Self {
        self.family.extend(family);
        self
    }

    /// Looks at what others used so far, unless that was done: it takes milliseconds, which a schedule that is measured
    /// has not.
    pub fn prepare(&mut self) {
        if self.others.is_none() {
            self.others = Reading::take(&self.family).ok();
        }
    }

    /// The measured part begins.
    pub fn begin(&mut self, now: u64) {
        if let Some(perf) = &mut self.perf {
            perf.enable();
        }
        self.prepare();
        self.begun = Some(Begun {
            at: now,
            broker: self.broker.and_then(Sample::take),
            own: Sample::take(std::process::id()),
        });
    }

    /// When the measured part began.
    pub fn begun_at(&self) -> Option<u64> {
        self.begun.map(|begun| begun.at)
    }

    /// CPU seconds of the broker so far.
    pub fn broker_cpu_seconds(&self) -> Option<f64> {
        Some(Sample::take(self.broker?)?.cpu_seconds())
    }

    /// The measured part is over.
    pub fn end(self, now: u64) -> Window {
        let Some(begun) = self.begun else { return Window::default() };
        let others = Reading::take(&self.family).ok();
        let broker = self.broker.and_then(|pid| Some((pid, self.before?, begun.broker?, Sample::take(pid)?)));
        let own = begun.own.zip(Sample::take(std::process::id()));
        let length = seconds(now.saturating_sub(begun.at));
        let counted = self.perf.map(Perf::finish).unwrap_or_default();
        let foreign = others.zip(self.others).map(|(to, from)| to.since(&from));
        Window { seconds: length, foreign, broker, own, counted }
    }
}

impl Window {
    /// Section `window` of a report.
    pub fn to_json(&self) -> Value {
        let cores = |of: fn(&Foreign) -> f64| self.foreign.as_ref().map(|foreign| rounded(of(foreign), 3));
        json!({
            "seconds": rounded(self.seconds, 3),
            "other_cpu_cores": cores(|foreign| foreign.load),
            "kernel_cpu_cores": cores(|foreign| foreign.kernel),
            "stolen_cpu_cores": cores(|foreign| foreign.steal),
        })
    }

    /// Section `broker`, for so many bytes and records; `None` when no broker was sampled.
    pub fn broker_json(&self, bytes: u64, records: u64) -> Option<Value> {
        let (pid, before, from, to) = self.broker.as_ref()?;
        let difference = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let per_thousand = |count: Option<u64>| {
            Some(rounded(ratio(float(count?) * 1e3, float(records)), 3)).filter(|_| records > 0)
        };
        let switches = Some(to.context_switches.saturating_sub(from.context_switches));
        let switches = self.counted.context_switches.or(switches);
        let mut section = self.cpu_json(from, to, bytes, records);
        let more = json!({
            "pid": pid,
            "rss_before_bytes": before.rss_bytes,
            "rss_bytes": to.rss_bytes,
            "rss_peak_bytes": to.rss_peak_bytes,
            "read_bytes": difference(to.read_bytes, from.read_bytes),
            "write_bytes": difference(to.write_bytes, from.write_bytes),
            "context_switches": switches,
            "context_switches_per_1000_records": per_thousand(switches),
            "syscalls": self.counted.syscalls,
            "syscalls_per_1000_records": per_thousand(self.counted.syscalls),
        });
        if let (Some(section), Value::Object(more)) = (section.as_object_mut(), more) {
            section.extend(more);
        }
        Some(section)
    }

    /// Section `generator`.
    pub fn generator_json(&self, bytes: u64, records: u64) -> Option<Value> {
        let (from, to) = self.own.as_ref()?;
        Some(self.cpu_json(from, to, bytes, records))
    }

    fn cpu_json(&self, from: &Sample, to: &Sample, bytes: u64, records: u64) -> Value {
        let (user, system) = (to.user_seconds - from.user_seconds, to.system_seconds - from.system_seconds);
        let per_gb =
            |seconds: f64| Some(rounded(ratio(seconds * 1e9, float(bytes)), 4)).filter(|_| bytes > 0);
        let per_million = rounded(ratio((user + system) * 1e6, float(records)), 4);
        json!({
            "cpu_seconds": rounded(user + system, 2),
            "user_seconds": rounded(user, 2),
            "system_seconds": rounded(system, 2),
            "cpu_share": rounded(ratio(user + system, self.seconds), 4),
            "cpu_seconds_per_gb": per_gb(user + system),
            "user_seconds_per_gb": per_gb(user),
            "system_seconds_per_gb": per_gb(system),
            "cpu_seconds_per_million_records": Some(per_million).filter(|_| records > 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_tells_cpu_per_gb_of_a_process() {
        let sample = |user_seconds, rss_bytes| Sample { user_seconds, rss_bytes, ..Sample::default() };
        let window = Window {
            seconds: 2.0,
            broker: Some((7, sample(0.0, 10), sample(1.0, 20), sample(2.5, 30))),
            counted: Counted { syscalls: Some(5000), context_switches: None },
            ..Window::default()
        };
        let broker = window.broker_json(3_000_000_000, 1_000_000).expect("a broker");
        assert_eq!(broker["cpu_seconds_per_gb"], 0.5, "{broker}");
        assert_eq!(broker["cpu_share"], 0.75, "{broker}");
        assert_eq!(broker["cpu_seconds_per_million_records"], 1.5, "{broker}");
        assert_eq!(broker["syscalls_per_1000_records"], 5.0, "{broker}");
        assert_eq!((&broker["rss_before_bytes"], &broker["rss_bytes"]), (&json!(10), &json!(30)));
        let nothing = window.broker_json(0, 0).expect("a broker");
        assert_eq!(
            (&nothing["cpu_seconds_per_gb"], &nothing["syscalls_per_1000_records"]),
            (&Value::Null, &Value::Null)
        );
    }

    #[test]
    fn a_process_that_is_not_there_is_refused() {
        assert!(Watch::new(Some(u32::MAX), false).is_err());
    }

    #[test]
    fn the_own_process_is_not_counted_among_others() {
        let mut watch = Watch::new(None, false).expect("a watch");
        watch.begin(0);
        let window = watch.end(1_000_000_000);
        assert!(window.foreign.is_some() && window.generator_json(1, 1).is_some());
        assert_eq!(window.broker_json(1, 1), None);
    }
}

//! Where a series plays: its own directory, the brokers of one scenario of which one acts and the others stand still, and
//! one run judged by what surrounded it. Knows no scenario.
#![allow(clippy::disallowed_methods, reason = "a harness makes and removes its directory")]
#![allow(clippy::print_stderr, reason = "progress of a command line tool")]

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::child::Interrupt;
use super::figures::Figures;
use super::host;
use super::memory;
use super::noise::{self, Conditions};
use super::options::Common;
use super::report::Run;
use super::servers::{Broker, Plan};
use crate::measure::others::{Foreign, Reading};
use crate::own::{Own, sweep};

/// How long the use by others is observed before a run.
const OBSERVED: Duration = Duration::from_secs(1);
/// How often it is, before the run is called void.
const OBSERVATIONS: u32 = 20;
/// How often a void run is tried.
const TRIES: usize = 6;
/// What a series leaves behind when it is killed, by process id.
const HOME_PREFIX: &str = "odradek-bench-";
/// Bytes that the directories of a deleted topic may leave behind.
const LEFT_BYTES: u64 = 64 << 20;

/// The series: its directory, which goes with it.
#[derive(Debug)]
pub struct Home {
    /// Where it is.
    pub path: PathBuf,
    /// Brokers are gone when it goes.
    _own: Own,
    /// Ctrl-C.
    pub interrupt: Interrupt,
    /// The command line.
    pub common: Common,
    started: std::time::Instant,
    next: Cell<u32>,
}

impl Home {
    /// A new directory below `common.data`; those of series that were killed are removed.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(common: &Common, interrupt: Interrupt) -> Result<Self> {
        sweep(&common.data, HOME_PREFIX)?;
        let path = common.data.join(format!("{HOME_PREFIX}{}", std::process::id()));
        let own = Own::make(path.clone())?;
        Ok(Self {
            path,
            _own: own,
            interrupt,
            common: common.clone(),
            started: host::now(),
            next: Cell::new(0),
        })
    }

    /// A number that was not given before.
    pub fn fresh(&self) -> u32 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    /// A port of ours; that of ZooKeeper is fifty above.
    ///
    /// # Errors
    /// The lowest one leaves no room.
    pub fn port(&self, number: u32) -> Result<u16> {
        let port = u16::try_from(number % 50)?.checked_add(self.common.port);
        port.filter(|port| *port < u16::MAX - 50).context("--port is too high")
    }

    /// Removes a directory below this one.
    ///
    /// # Errors
    /// What the operating system says, or that it lies elsewhere.
    pub fn remove(&self, directory: &Path) -> Result<()> {
        anyhow::ensure!(directory.starts_with(&self.path), "{} is not ours", directory.display());
        Ok(std::fs::remove_dir_all(directory)?)
    }

    /// Says what happens.
    pub fn say(&self, what: &str) {
        let seconds = self.started.elapsed().as_secs();
        eprintln!("[{:3}:{:02}] {what}", seconds / 60, seconds % 60);
    }

    /// Waits for a quiet machine; returns the load average.
    ///
    /// # Errors
    /// It does not become quiet, and noise is not allowed.
    pub fn await_quiet(&self) -> Result<f64> {
        let until = host::now() + Duration::from_secs(u64::from(self.common.quiet_wait));
        loop {
            let load = host::load_average()?;
            let Some(void) = noise::at_start(load) else { return Ok(load) };
            if self.common.allow_noise {
                self.say(&format!("{void}; noise is allowed"));
                return Ok(load);
            }
            if host::now() > until {
                bail!("{void}; --allow-noise goes on all the same");
            }
            self.say(&format!("{void}; waiting"));
            self.interrupt.pause(Duration::from_secs(10))?;
        }
    }

    /// A stage in an empty directory.
    pub fn stage(&self) -> Stage<'_> {
        Stage { home: self, brokers: Vec::new() }
    }
}

/// What one run found, before it is judged.
#[derive(Debug, Default)]
pub struct Found {
    /// Figures.
    pub figures: Figures,
    /// Why generators call it void.
    pub void: Vec<String>,
    /// What generators said.
    pub raw: Vec<Value>,
}

/// The brokers of one scenario.
#[derive(Debug)]
pub struct Stage<'a> {
    /// Where it plays.
    pub home: &'a Home,
    /// By place; one that was dismissed leaves a gap.
    brokers: Vec<Option<Broker>>,
}

impl Stage<'_> {
    /// Starts a broker beside the others, which stand still. Returns its place.
    ///
    /// # Errors
    /// It does not start.
    pub fn add(&mut self, plan: Plan) -> Result<usize> {
        for broker in self.brokers.iter_mut().flatten() {
            broker.pause()?;
        }
        let number = self.home.fresh();
        let port = self.home.port(number)?;
        let data = self.home.path.join(format!("{}-{number}", plan.kind.name()));
        self.home.say(&format!("starting {}", plan.kind.name()));
        let mut broker = Broker::start(plan, port, data, &self.home.interrupt)?;
        broker.pause()?;
        self.brokers.push(Some(broker));
        Ok(self.brokers.len() - 1)
    }

    /// A broker.
    ///
    /// # Errors
    /// No such place.
    pub fn broker(&self, place: usize) -> Result<&Broker> {
        self.brokers.get(place).and_then(Option::as_ref).context("no such broker")
    }

    /// Ends one broker and removes its data.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn dismiss(&mut self, place: usize) -> Result<()> {
        let broker = self.brokers.get_mut(place).and_then(Option::take).context("no such broker")?;
        let data = broker.data().to_owned();
        broker.stop()?;
        std::fs::remove_dir_all(data)?;
        Ok(())
    }

    /// Ends all brokers and removes their data.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn close(mut self) -> Result<()> {
        let there: Vec<usize> = (0..self.brokers.len()).filter(|place| self.broker(*place).is_ok()).collect();
        there.into_iter().try_for_each(|place| self.dismiss(place))
    }

    /// Lets one broker act alone.
    ///
    /// # Errors
    /// One has ended by itself.
    pub fn only(&mut self, place: usize) -> Result<()> {
        for (other, broker) in self.brokers.iter_mut().enumerate() {
            match broker {
                Some(broker) if other != place => broker.pause()?,
                _ => {}
            }
        }
        let interrupt = self.home.interrupt.clone();
        self.brokers.get_mut(place).and_then(Option::as_mut).context("no such broker")?.resume(&interrupt)
    }

    /// One run on one broker, repeated while it is void.
    ///
    /// # Errors
    /// The run fails, or is void too often.
    pub fn run(&mut self, place: usize, act: &mut dyn FnMut(&Home, &Broker) -> Result<Found>) -> Result<Run> {
        self.only(place)?;
        let broker = self.broker(place)?;
        judged(self.home, &mut || act(self.home, broker))
    }
}

/// What others used in the measured window of a report, where it tells.
fn window_of(report: &Value) -> Option<Foreign> {
    let of = |name: &str| report.get("window")?.get(name)?.as_f64();
    let (load, kernel) = (of("other_cpu_cores")?, of("kernel_cpu_cores")?);
    Some(Foreign { load, kernel, steal: of("stolen_cpu_cores")? })
}

/// One run, repeated while it is void. Noise is what may be allowed; a run that its generator calls void never counts.
///
/// # Errors
/// The run fails, or is void too often.
pub fn judged(home: &Home, act: &mut dyn FnMut() -> Result<Found>) -> Result<Run> {
    let mut voided: Vec<String> = Vec::new();
    loop {
        let mut conditions = Conditions { load_average: host::load_average()?, ..Conditions::default() };
        for _ in 0..OBSERVATIONS {
            let before = Reading::take(&[])?;
            home.interrupt.pause(OBSERVED)?;
            conditions.before = Reading::take(&[])?.since(&before);
            if noise::faults(&conditions).is_empty() || home.common.allow_noise {
                break;
            }
        }
        let before = Reading::take(&[])?;
        let Found { figures, void, raw } = act()?;
        conditions.during = Reading::take(&[])?.since(&before);
        conditions.windows = raw.iter().filter_map(window_of).collect();
        let mut faults: Vec<String> = noise::faults(&conditions).iter().map(ToString::to_string).collect();
        if void.is_empty() && (faults.is_empty() || home.common.allow_noise) {
            return Ok(Run { figures, conditions, remarks: faults, voided, raw });
        }
        faults.extend(void);
        home.say(&format!("void: {}", faults.join("; ")));
        voided.push(faults.join("; "));
        if voided.len() >= TRIES {
            bail!("void {TRIES} times: {}", voided.join(" | "));
        }
    }
}

/// Waits until a broker that held `before` bytes has removed the files of topics that were deleted, half a minute at
/// most, and until the disk has what is left: the next run does not pay for this one.
///
/// # Errors
/// Interrupted.
pub fn settle(home: &Home, broker: &Broker, before: u64) -> Result<()> {
    let until = host::now() + Duration::from_secs(30);
    while memory::blocks_below(&broker.logs()) > before + LEFT_BYTES && host::now() < until {
        home.interrupt.pause(Duration::from_millis(100))?;
    }
    memory::write_back(&broker.logs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::options::Compare;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        compare: Compare,
    }

    fn common(data: &Path) -> Common {
        let mut common = Line::parse_from(["x"]).compare.common;
        common.data = data.to_owned();
        common
    }

    #[test]
    fn a_series_removes_its_own_directory_and_those_of_dead_ones_only() {
        let data = tempfile::tempdir().unwrap();
        for name in ["odradek-bench-4294967295", "odradek-bench-1", "odradek-bench-notes", "else"] {
            std::fs::create_dir(data.path().join(name)).unwrap();
        }
        std::mem::forget(Own::make(data.path().join("odradek-bench-4294967294")).unwrap());
        let home = Home::new(&common(data.path()), Interrupt::default()).unwrap();
        let path = home.path.clone();
        assert!(path.is_dir());
        drop(home);
        let mut left: Vec<String> = std::fs::read_dir(data.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let unmarked = "odradek-bench-4294967295";
        assert_eq!(left, ["else", "odradek-bench-1", unmarked, "odradek-bench-notes"]);
    }

    #[test]
    fn noise_may_be_allowed_and_a_late_generator_never() {
        let data = tempfile::tempdir().unwrap();
        let mut common = common(data.path());
        common.allow_noise = true;
        let home = Home::new(&common, Interrupt::default()).unwrap();
        let report = serde_json::json!({"window": {
            "seconds": 10.0, "other_cpu_cores": 0.5, "kernel_cpu_cores": 0.0, "stolen_cpu_cores": 0.0}});
        let mut times = 0;
        let run = judged(&home, &mut || {
            times += 1;
            let figures = Figures::from([("mb_per_s".to_owned(), 1.0)]);
            let void = (times == 1).then(|| "the generator was late".to_owned()).into_iter().collect();
            Ok(Found { figures, void, raw: vec![report.clone()] })
        })
        .unwrap();
        assert_eq!((times, run.voided.len()), (2, 1), "{run:?}");
        assert!(run.voided[0].contains("the generator was late"), "{run:?}");
        assert!(
            run.remarks.iter().any(|remark| remark.contains("others used 0.50 processors during")),
            "{run:?}"
        );
        assert_eq!(run.conditions.windows.len(), 1);
        let never = judged(&home, &mut || Ok(Found { void: vec!["late".to_owned()], ..Found::default() }));
        assert!(never.unwrap_err().to_string().contains(&format!("void {TRIES} times")));
    }

    #[test]
    fn a_failing_run_is_not_repeated() {
        let data = tempfile::tempdir().unwrap();
        let mut common = common(data.path());
        common.allow_noise = true;
        let home = Home::new(&common, Interrupt::default()).unwrap();
        let mut times = 0;
        let failed = judged(&home, &mut || {
            times += 1;
            bail!("a record was lost")
        });
        assert_eq!((failed.unwrap_err().to_string().as_str(), times), ("a record was lost", 1));
    }
}

//! Processes as values: pinned to a processor, ended when the value goes, when this process dies, or when their time is
//! up. Pinning and the death signal are done by `taskset`, `nice` and `setpriv` before they become the program, so that the
//! process id is the program's. Knows no server and no load.
#![allow(clippy::disallowed_methods, reason = "a harness starts processes and writes their logs")]

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::host::{now, pause};
pub use crate::interrupt::Interrupt;

/// Programs of coreutils and util-linux that this module and its callers run.
pub const NEEDED: &[&str] =
    &["setpriv", "taskset", "nice", "kill", "sync", "dd", "fincore", "chrt", "setsid", "sha256sum"];

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes of a log's end that a failure shows.
const SHOWN_BYTES: usize = 4000;

/// What to run and where.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What messages call it.
    pub name: String,
    /// Processors it may use, as `taskset -c` takes them.
    pub processors: String,
    /// Niceness.
    pub nice: u8,
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Where both outputs go.
    pub log: PathBuf,
}

impl Spec {
    fn to_command(&self) -> Result<Command> {
        let nice = self.nice.to_string();
        let before = ["--pdeathsig", "KILL", "taskset", "-c", &self.processors, "nice", "-n", &nice];
        let log = File::create(&self.log).with_context(|| format!("{}", self.log.display()))?;
        let mut command = Command::new("setpriv");
        command.args(before).args(&self.command).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }
}

/// A signal that `kill` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// End cleanly.
    Terminate,
    /// Stand still.
    Stop,
    /// Go on.
    Continue,
}

/// A running process; it ends with the value.
#[derive(Debug)]
pub struct Process {
    child: Child,
    spec: Spec,
}

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(spec: Spec) -> Result<Self> {
        let child = spec.to_command()?.spawn().with_context(|| format!("{} cannot be started", spec.name))?;
        Ok(Self { child, spec })
    }

    /// The process id of the program itself.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} has ended by itself: {status}\n{}", self.spec.name, self.log_end());
        }
        let name = match signal {
            Signal::Terminate => "-TERM",
            Signal::Stop => "-STOP",
            Signal::Continue => "-CONT",
        };
        let status = Command::new("kill").args([name, &self.id().to_string()]).status()?;
        anyhow::ensure!(status.success(), "{} could not be sent {signal:?}", self.spec.name);
        Ok(())
    }

    /// Ends it cleanly, or by force when it takes longer than `limit`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn stop(mut self, limit: Duration) -> Result<()> {
        if self.ended()?.is_some() {
            return Ok(());
        }
        self.signal(Signal::Continue)?;
        self.signal(Signal::Terminate)?;
        let until = now() + limit;
        while self.ended()?.is_none() && now() < until {
            pause(LOOK);
        }
        Ok(())
    }

    /// Waits for its end, which is good with 0 or one of these exit codes; a failure shows the end of its log.
    ///
    /// # Errors
    /// It failed, its time was up, or we were interrupted; it is ended then.
    pub fn finish(mut self, limit: Duration, interrupt: &Interrupt, good: &[i32]) -> Result<()> {
        let until = now() + limit;
        loop {
            if let Some(status) = self.ended()? {
                if status.success() || status.code().is_some_and(|code| good.contains(&code)) {
                    return Ok(());
                }
                bail!("{} failed, {status}:\n{}", self.spec.name, self.log_end());
            }
            interrupt.check()?;
            if now() > until {
                bail!("{} took longer than {limit:?}:\n{}", self.spec.name, self.log_end());
            }
            pause(LOOK);
        }
    }

    /// The last lines of its outputs.
    pub fn log_end(&self) -> String {
        log_end(&self.spec.log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for one that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log.
fn log_end(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let from = bytes.len().saturating_sub(SHOWN_BYTES);
    String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).trim().to_owned()
}

/// Fails with a sentence when a program is not installed.
///
/// # Errors
/// Names what is missing.
pub fn need(programs: &[&str]) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing: Vec<&str> = programs
        .iter()
        .filter(|program| !std::env::split_paths(&path).any(|directory| directory.join(program).is_file()))
        .copied()
        .collect();
    anyhow::ensure!(missing.is_empty(), "not installed: {}", missing.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn spec(directory: &Path, script: &str) -> Spec {
        Spec {
            name: "a shell".to_owned(),
            processors: "0".to_owned(),
            nice: 3,
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            log: directory.join("log"),
        }
    }

    fn is_alive(process: u32) -> bool {
        Path::new(&format!("/proc/{process}")).exists()
    }

    #[test]
    fn a_process_is_the_program_itself_on_its_processor() {
        let directory = tempfile::tempdir().unwrap();
        let script = "echo $$; taskset -cp $$; nice; exec sleep 300";
        let mut process = Process::start(spec(directory.path(), script)).unwrap();
        let until = now() + PATIENCE;
        while process.log_end().lines().count() < 3 && now() < until {
            pause(LOOK);
        }
        let said = process.log_end();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], process.id().to_string());
        assert!(lines[1].ends_with("list: 0"), "{said}");
        let own = std::process::Command::new("nice").output().unwrap().stdout;
        let own: i32 = String::from_utf8(own).unwrap().trim().parse().unwrap();
        assert_eq!(lines[2].parse::<i32>().unwrap(), (own + 3).min(19), "{said}");
        process.signal(Signal::Stop).unwrap();
        process.signal(Signal::Continue).unwrap();
        let id = process.id();
        process.stop(PATIENCE).unwrap();
        assert!(!is_alive(id));
    }

    #[test]
    fn a_dropped_process_is_gone_even_when_it_stands_still() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = Process::start(spec(directory.path(), "trap '' TERM; exec sleep 300")).unwrap();
        process.signal(Signal::Stop).unwrap();
        let id = process.id();
        drop(process);
        assert!(!is_alive(id));
    }

    #[test]
    fn a_failure_shows_what_was_said_last() {
        let directory = tempfile::tempdir().unwrap();
        let run = |script, good: &[i32]| {
            let process = Process::start(spec(directory.path(), script)).unwrap();
            process.finish(PATIENCE, &Interrupt::default(), good)
        };
        assert!(run("true", &[]).is_ok() && run("exit 3", &[3]).is_ok());
        let why = run("echo no such luck; exit 3", &[4]).unwrap_err().to_string();
        assert!(why.contains("no such luck") && why.contains('3'), "{why}");
    }

    #[test]
    fn a_process_that_overstays_or_is_interrupted_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let process = Process::start(spec(directory.path(), "exec sleep 300")).unwrap();
        let id = process.id();
        let why =
            process.finish(Duration::from_millis(50), &Interrupt::default(), &[]).unwrap_err().to_string();
        assert!(why.contains("took longer") && !is_alive(id), "{why}");
        let interrupt = Interrupt::default();
        interrupt.raise();
        let process = Process::start(spec(directory.path(), "exec sleep 300")).unwrap();
        let id = process.id();
        assert_eq!(process.finish(PATIENCE, &interrupt, &[]).unwrap_err().to_string(), "interrupted");
        assert!(!is_alive(id));
    }

    #[test]
    fn what_is_not_installed_is_named() {
        assert!(need(&["sh"]).is_ok());
        let why = need(&["sh", "no-such-program-here"]).unwrap_err().to_string();
        assert_eq!(why, "not installed: no-such-program-here");
    }
}

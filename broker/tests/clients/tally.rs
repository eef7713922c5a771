//! What the runners of client suites share: how a step ends, how steps are counted, and where clients are installed.
//! `clients.rs` and `interop.rs` take it in by path.
#![allow(dead_code, reason = "each runner uses its own part")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use crate::support;

/// How one step ended.
pub enum Verdict {
    /// With a note worth printing, or an empty one.
    Passed(String),
    Failed(String),
    /// Something it needs is not on this machine and not to be had.
    Skipped(String),
}

impl From<Result<String, String>> for Verdict {
    fn from(result: Result<String, String>) -> Self {
        result.map_or_else(Self::Failed, Self::Passed)
    }
}

/// Steps so far.
#[derive(Default)]
pub struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Tally {
    /// Prints and counts how a step ended; whether that was well. `ODRADEK_INTEROP=require` makes skipped failed.
    pub fn count(&mut self, step: &str, started: Instant, verdict: Verdict) -> bool {
        let seconds = started.elapsed().as_secs_f64();
        match verdict {
            Verdict::Passed(note) => {
                self.passed += 1;
                println!("ok {step} ({seconds:.1} s) {note}");
                return true;
            }
            Verdict::Failed(why) => {
                self.failed += 1;
                println!("FAILED {step} ({seconds:.1} s): {why}");
            }
            Verdict::Skipped(why) if is_everything_required() => {
                self.failed += 1;
                println!("FAILED {step}: {why}, and ODRADEK_INTEROP=require");
            }
            Verdict::Skipped(why) => {
                self.skipped += 1;
                println!("skipped {step}: {why}");
                return true;
            }
        }
        false
    }

    /// The last line, and the exit code that goes with it. A run without any step has failed.
    pub fn finish(&self) -> ExitCode {
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        let is_good = self.failed == 0 && self.passed + self.skipped > 0;
        if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn is_everything_required() -> bool {
    std::env::var("ODRADEK_INTEROP").as_deref() == Ok("require")
}

/// Where the scripts install clients.
pub fn cache() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    std::env::var_os("ODRADEK_CACHE").map_or_else(|| home.join(".cache/odradek"), PathBuf::from)
}

/// Where the suites are.
pub fn suites_dir() -> PathBuf {
    support::workspace().join("broker/tests/clients")
}

/// The names given on the command line; none means all.
pub fn chosen() -> Vec<String> {
    std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect()
}

/// The first of these programs that is not on the `PATH`.
pub fn missing<'a>(programs: &[&'a str]) -> Option<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let is_there = |program: &str| directories.iter().any(|directory| directory.join(program).is_file());
    programs.iter().find(|program| !is_there(program)).copied()
}

/// A suite passes when it ended with 0, counted at least one check and none as failed.
pub fn judge_suite(result: Result<String, String>) -> Verdict {
    let text = match result {
        Ok(text) => text,
        Err(why) => return Verdict::Failed(why),
    };
    let checks = text.lines().filter(|line| line.starts_with("ok ")).count();
    if checks == 0 || text.lines().any(|line| line.starts_with("FAILED ")) {
        return Verdict::Failed(text);
    }
    Verdict::Passed(format!("{checks} checks"))
}

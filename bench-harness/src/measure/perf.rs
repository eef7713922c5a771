//! System calls and context switches of a process, counted by `perf stat` over exactly the measured window: the counters
//! start switched off and are switched by a pair of FIFOs. Without `perf`, or without the right to use it, nothing is
//! counted and the report says null.

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// System calls entered.
    pub syscalls: Option<u64>,
    /// Context switches.
    pub context_switches: Option<u64>,
}

/// A running `perf stat`; it ends with its owner.
#[derive(Debug)]
pub struct Perf {
    child: Child,
    control: std::fs::File,
    directory: PathBuf,
}

const EVENTS: &str = "raw_syscalls:sys_enter,context-switches";

impl Perf {
    /// Attaches to a process, not counting yet; `None` where that cannot be done.
    pub fn attach(pid: u32) -> Option<Self> {
        let directory = std::env::temp_dir().join(format!("odradek-bench-perf-{}-{pid}", std::process::id()));
        std::fs::create_dir(&directory).ok()?;
        let (control, answers) = (directory.join("control"), directory.join("answers"));
        let started = fifo(&control).zip(fifo(&answers)).and_then(|(open, answers_open)| {
            let child = Command::new("perf")
                .args(["stat", "-x,", "-D", "-1", "-e", EVENTS, "-p", &pid.to_string(), "--control"])
                .arg(format!("fifo:{},{}", control.display(), answers.display()))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .ok()?;
            Some((child, open, answers_open))
        });
        let Some((child, control, answers)) = started else {
            let _ = std::fs::remove_dir_all(&directory);
            return None;
        };
        let mut perf = Self { child, control, directory };
        perf.is_ready(answers).then_some(perf)
    }

    /// Waits until `perf` answers, a few seconds at most: what happens before is not counted.
    fn is_ready(&mut self, mut answers: std::fs::File) -> bool {
        let _ = self.control.write_all(b"ping\n");
        for _ in 0..500 {
            if answers.read(&mut [0; 16]).is_ok_and(|count| count > 0) {
                return true;
            }
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return false;
            }
            pause(Duration::from_millis(10));
        }
        false
    }

    /// Begins to count.
    pub fn enable(&mut self) {
        let _ = self.control.write_all(b"enable\n");
    }

    /// Ends the count and tells it.
    pub fn finish(mut self) -> Counted {
        let _ = self.control.write_all(b"disable\n");
        pause(Duration::from_millis(50));
        self.interrupt();
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        parse(&text)
    }

    fn interrupt(&self) {
        use rustix::process::{Pid, Signal, kill_process};
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::INT);
        }
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        self.interrupt();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Makes a FIFO, open for both directions and without waiting, so that neither side depends on the other.
#[allow(clippy::disallowed_methods, reason = "a command line tool opens its FIFOs")]
fn fifo(path: &Path) -> Option<std::fs::File> {
    use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).ok()?;
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).ok()?;
    std::fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).ok()
}

#[allow(clippy::disallowed_methods, reason = "between the end of a run and its report")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Lines `count,unit,event,...`; `<not counted>` where nothing happened or nothing may be counted.
fn parse(text: &str) -> Counted {
    let count = |event: &str| {
        let line = text.lines().find(|line| line.split(',').nth(2) == Some(event))?;
        line.split(',').next()?.parse().ok()
    };
    Counted { syscalls: count("raw_syscalls:sys_enter"), context_switches: count("context-switches") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_by_their_event() {
        let text = "Events disabled\n1234,,raw_syscalls:sys_enter,99,100.00,,\n<not counted>,,context-switches,0,0,,";
        assert_eq!(parse(text), Counted { syscalls: Some(1234), context_switches: None });
        assert_eq!(parse("perf: permission denied"), Counted::default());
    }
}

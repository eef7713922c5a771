//! Keeps processors from halting while latencies are measured. A halted processor of a virtual machine wakes late, by 0.1 ms
//! as a rule and by milliseconds at times: whoever sleeps more often looks slower, and so does the schedule of the
//! generator. Both sides get it.
//!
//! The kernel is asked to answer at once (`/dev/cpu_dma_latency`), which no process notices. Where it cannot be asked, or would
//! not hear it, a loop of idle priority spins on each processor. Such loops need a session of their own: in one scheduling
//! group with a broker (`sched_autogroup_enabled`) they keep the group's turn while the broker waits for threads of the
//! kernel, and a sync of 0.3 ms took 20.
#![allow(clippy::disallowed_methods, reason = "a harness speaks to the kernel through its files")]

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Result;

use super::child::{Process, Spec};
use super::stage::Home;

/// Holds the latency that it was last told for as long as it is open.
const LATENCY: &str = "/dev/cpu_dma_latency";
/// Who chooses how deep a processor sleeps; with none of them the latency is not looked at.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// While it lives, the processors that it was made for do not halt.
#[derive(Debug)]
pub struct Awake {
    _held: Held,
}

#[derive(Debug)]
enum Held {
    Latency { _open: File },
    Loops { _processes: Vec<Process> },
}

impl Awake {
    /// Begins. Where something spins anyway it has no place: even an idle process has a share of its processor, in slices of
    /// milliseconds.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start(home: &Home, processors: &[&str]) -> Result<Self> {
        if let Some(open) = ask(Path::new(LATENCY), Path::new(DRIVER)) {
            return Ok(Self { _held: Held::Latency { _open: open } });
        }
        let one = |processor: &str| {
            let command = ["setsid", "chrt", "--idle", "0", "sh", "-c", "while :; do :; done"];
            Process::start(Spec {
                name: "what keeps a processor awake".to_owned(),
                processors: processor.to_owned(),
                nice: 0,
                command: command.map(OsString::from).to_vec(),
                log: home.path.join(format!("awake-{}.out", home.fresh())),
            })
        };
        let processes = processors.iter().copied().map(one).collect::<Result<_>>()?;
        Ok(Self { _held: Held::Loops { _processes: processes } })
    }
}

/// Asks for a latency of 0 µs, where somebody hears it.
fn ask(latency: &Path, driver: &Path) -> Option<File> {
    let driver = std::fs::read_to_string(driver).unwrap_or_default();
    if matches!(driver.trim(), "" | "none") {
        return None;
    }
    let mut open = File::options().write(true).open(latency).ok()?;
    open.write_all(&0i32.to_ne_bytes()).ok().map(|()| open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_where_it_hears() {
        let directory = tempfile::tempdir().unwrap();
        let (latency, driver) = (directory.path().join("latency"), directory.path().join("driver"));
        assert!(ask(&latency, &driver).is_none(), "no such files");
        std::fs::write(&latency, "").unwrap();
        for deaf in ["none\n", "\n"] {
            std::fs::write(&driver, deaf).unwrap();
            assert!(ask(&latency, &driver).is_none(), "{deaf:?}");
        }
        std::fs::write(&driver, "haltpoll\n").unwrap();
        assert!(ask(&latency, &driver).is_some());
        assert_eq!(std::fs::read(&latency).unwrap(), [0; 4]);
        std::fs::remove_file(&latency).unwrap();
        assert!(ask(&latency, &driver).is_none(), "a kernel without it, or another user's");
    }
}

//! Keeps processors from halting while latencies are measured. A halted processor of a virtual machine wakes late, by 0.1 ms
//! as a rule and by milliseconds at times: whoever sleeps more often looks slower, and so does the schedule of the
//! generator. Whatever is runnable takes the processor at once from what runs here (`SCHED_IDLE`). Both sides get it.

use std::ffi::OsString;

use anyhow::Result;

use super::child::{Process, Spec};
use super::stage::Home;

/// While it lives, the processors that it was made for do not halt.
#[derive(Debug)]
pub struct Awake {
    _processes: Vec<Process>,
}

impl Awake {
    /// Begins. Where something spins anyway it has no place: even an idle process has a share of its processor, in slices of
    /// milliseconds.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start(home: &Home, processors: &[&str]) -> Result<Self> {
        let one = |processor: &str| {
            let command = ["chrt", "--idle", "0", "sh", "-c", "while :; do :; done"];
            Process::start(Spec {
                name: "what keeps a processor awake".to_owned(),
                processors: processor.to_owned(),
                nice: 0,
                command: command.map(OsString::from).to_vec(),
                log: home.path.join(format!("awake-{}.out", home.fresh())),
            })
        };
        Ok(Self { _processes: processors.iter().copied().map(one).collect::<Result<_>>()? })
    }
}

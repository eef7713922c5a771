//! Keeps processors from halting while latencies are measured. A halted processor of a virtual machine wakes late, by 0.1 ms
//! as a rule and by milliseconds at times: whoever sleeps more often looks slower, and so does the schedule of the
//! generator. Whatever is runnable takes the processor at once from what runs here (`SCHED_IDLE`). Both sides get it.

use std::ffi::OsString;

use anyhow::Result;

use super::child::{Process, Spec};
use super::servers::{BROKER_PROCESSOR, CLIENT_PROCESSOR};
use super::stage::Home;

/// While it lives, no processor of the measurement halts.
#[derive(Debug)]
pub struct Awake {
    _processes: Vec<Process>,
}

impl Awake {
    /// Begins.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start(home: &Home) -> Result<Self> {
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
        Ok(Self {
            _processes: [BROKER_PROCESSOR, CLIENT_PROCESSOR].into_iter().map(one).collect::<Result<_>>()?,
        })
    }
}

//! What the files of `/proc` say, taken apart. The one parser of them: `process`, `machine` and the host of `compare` read
//! and judge. Reads nothing itself.

use serde::{Deserialize, Serialize};

/// Ticks of `/proc` in a second: `USER_HZ`, 100 on every Linux of the architectures that we run on.
const TICKS_PER_SECOND: f64 = 100.0;
/// `PF_KTHREAD` of the flags of a process.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Processor time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

impl Cpu {
    /// Both.
    pub fn total(self) -> f64 {
        self.user + self.system
    }
}

/// One line of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stat {
    /// The process that started it, or who took it over.
    pub parent: u32,
    /// A thread of the kernel.
    pub kernel_thread: bool,
    /// The process's own time.
    pub own: Cpu,
    /// Own and that of children that have ended and were waited for.
    pub with_children: f64,
}

impl Stat {
    /// Reads the fields behind the name, which is in parentheses and may hold anything.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // Numbers of proc_pid_stat(5), less the two fields before and the one-based count.
        let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
        let seconds = |number| field(number).map(ticks_to_seconds);
        let own = Cpu { user: seconds(14)?, system: seconds(15)? };
        let kernel_thread = field(9)? & KERNEL_THREAD != 0;
        let parent = u32::try_from(field(4)?).ok()?;
        Some(Self { parent, kernel_thread, own, with_children: own.total() + seconds(16)? + seconds(17)? })
    }
}

/// What all processors did so far, in seconds, from the first line of `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// Processes and threads of the kernel, in user mode and in the kernel.
    pub tasks: f64,
    /// Interrupts, which no process asked for.
    pub interrupts: f64,
    /// Taken by the host.
    pub steal: f64,
}

impl Busy {
    /// `None` when the text is not as known. Idle and waiting processors are not busy.
    pub fn parse(text: &str) -> Option<Self> {
        let fields = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields: Vec<u64> =
            fields.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let &[user, nice, system, _idle, _wait, hard, soft, steal, ..] = fields.as_slice() else {
            return None;
        };
        Some(Self {
            tasks: ticks_to_seconds(user + nice + system),
            interrupts: ticks_to_seconds(hard + soft),
            steal: ticks_to_seconds(steal),
        })
    }
}

/// The number of a line `Name:   123 kB`; `name` is with its colon.
pub fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse().ok())
}

/// The same of a line that counts KiB, in bytes.
pub fn bytes(text: &str, name: &str) -> Option<u64> {
    number(text, name).map(|kib| kib.saturating_mul(1024))
}

/// Name of the first processor and how many there are, from `/proc/cpuinfo`.
pub fn processors(cpuinfo: &str) -> (Option<String>, usize) {
    let named = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = named.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    (name, cpuinfo.lines().filter(|line| line.starts_with("processor")).count())
}

/// The load averages of 1, 5 and 15 minutes, from `/proc/loadavg`.
pub fn load_averages(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[allow(clippy::cast_precision_loss, reason = "ticks stay far below 2^53")]
fn ticks_to_seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_line_is_read_behind_a_name_that_holds_parentheses() {
        let line = "42 (a) b) c) S 1 42 42 0 -1 4194304 100 0 0 0 150 50 25 75 20 0 1 0 1000 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat.own, Cpu { user: 1.5, system: 0.5 });
        assert_eq!((stat.with_children, stat.parent), (3.0, 1));
        assert!(!stat.kernel_thread);
        let kernel = Stat::parse("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 7 0 0 20 0 1 0 1 0 0").unwrap();
        assert!(kernel.kernel_thread);
        for damaged in ["", "42 (x", "42 (x) S 1", "42 (x) S 1 42 42 0 -1 y 100 0 0 0 150 50 25 75"] {
            assert_eq!(Stat::parse(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn idle_and_waiting_processors_are_not_busy_and_stolen_time_is_apart() {
        let text = "cpu  100 200 300 100000 50000 10 20 70 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(Busy::parse(text), Some(Busy { tasks: 6.0, interrupts: 0.3, steal: 0.7 }));
        assert_eq!(Busy::parse("cpu0 1 2 3"), None);
        assert_eq!(Busy::parse("cpu  1 2 3"), None);
        assert_eq!(Busy::parse(""), None);
    }

    #[test]
    fn lines_with_a_name_are_found() {
        let text = "VmHWM:\t  20 kB\nVmRSS:\t  10 kB\nThreads:\t3\n";
        assert_eq!((bytes(text, "VmRSS:"), number(text, "Threads:")), (Some(10_240), Some(3)));
        assert_eq!(number(text, "VmSwap:"), None);
        let cpuinfo = "processor\t: 0\nmodel name\t: A B\nprocessor\t: 1\nmodel name\t: A B\n";
        assert_eq!(processors(cpuinfo), (Some("A B".to_owned()), 2));
        assert_eq!(load_averages("0.25 1.50 2.00 1/100 77\n"), Some([0.25, 1.5, 2.0]));
        assert_eq!(load_averages("0.25 x"), None);
    }
}

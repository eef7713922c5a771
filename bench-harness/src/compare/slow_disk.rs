//! Scenario `slow-disk`: appends to a partition on one log dir while another log dir of the same broker lies on a disk that
//! takes 100 ms for each operation, and while that disk is as fast as memory. Knows how such a disk is made: a file system on
//! a loop device in memory, which only the broker's mount namespace has and which goes with it, and a limit of ten operations
//! a second on that device by the kernel's block throttling (blkio of cgroup v1). Only root may; it is played by name only.
#![allow(clippy::disallowed_methods, reason = "a harness writes a script, and a limit of the kernel")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult};

use super::awake::Awake;
use super::child::need;
use super::contrast::{Known, RECORDS, Sides, within};
use super::figures::Limit;
use super::job::{Job, latency, needed};
use super::report::Contrast;
use super::scenarios::{LEAD_IN, SHARED_SPIN_US, Scene, target};
use super::servers::{BROKER_PROCESSOR, Broker, CLIENT_PROCESSOR, Kind, Plan};
use super::stage::{Found, Home};
use crate::args::refuse;
use crate::client::Client;

/// What bounds the operations on a device, in `MAJOR:MINOR OPERATIONS_PER_SECOND`; 0 is no bound.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device",
    "/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device",
];
/// One in 100 ms.
const SLOW_PER_SECOND: u32 = 10;
/// An operation on the slow disk takes at least about this, in µs; whoever waits for one of them shows it.
const OPERATION_US: f64 = 100_000.0;
/// Programs that make the disk.
const PROGRAMS: &[&str] = &["unshare", "mount", "mkfs.ext4", "findmnt", "truncate"];

/// Starts the broker on a file system of its own below the first argument; its device is told in the second.
const SCRIPT: &str = r#"#!/bin/sh
# Made by odradek-bench.
exec unshare --mount --propagation private sh -e -c '
    place="$1" told="$2" broker="$3"
    shift 3
    mount -t tmpfs -o size=600m tmpfs "$place"
    truncate -s 512M "$place/image"
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$place/image"
    mkdir "$place/disk"
    mount -o loop "$place/image" "$place/disk"
    mkdir "$place/disk/logs"
    findmnt --noheadings --output MAJ:MIN "$place/disk" > "$told"
    exec "$broker" "$@"
' sh "#;

/// Records per second: of the tail that is measured, and of what is written to the slow disk, by each of its writers.
const TAIL_RATE: u32 = 5000;
const SLOW_RATE: u32 = 20;
/// When a record is acknowledged: a config of the topic, and what figures call it.
const MODES: [(&[(&str, &str)], &str); 2] = [(&[], "page cache"), (&[("flush.messages", "1")], "disk")];
/// Topics that are created at most to have one on each dir.
const TOPICS_MAX: u32 = 8;

/// Plays it.
///
/// # Errors
/// Nobody but root may, the kernel has no such limits, or a broker or a run fails.
pub fn play(scene: &Scene<'_>) -> Result<Vec<Contrast>> {
    if !rustix::process::geteuid().is_root() || LIMITS.iter().any(|path| !Path::new(path).is_file()) {
        refuse!("a slow disk takes root, to mount it and to write {}, of cgroup v1", LIMITS.join(" and "));
    }
    need(PROGRAMS)?;
    let disk = Disk::prepare(scene.home)?;
    let plan = disk.plan(scene)?;
    let of = |figure: &str, mode: &str| format!("{figure}@{mode}");
    let targets = MODES.iter().flat_map(|&(_, mode)| {
        [
            target(&of("p99_us", mode), Limit::RatioAtMost(1.2)),
            target(&of("max_us", mode), Limit::AtMost(OPERATION_US)),
        ]
    });
    let sides = Sides {
        what: format!(
            "Ours, one shard, two log dirs: records of 1 KiB appended at {TAIL_RATE}/s to a partition on the first dir, \
             acknowledged by the page cache and by the disk (`flush.messages=1`), linger 1 ms, from the scheduled time until \
             acknowledged. Meanwhile {SLOW_RATE} records a second go to each of two partitions on the second dir, one of which is \
             synced each time. That dir lies on ext4 on a loop device in memory, which the kernel allows \
             {SLOW_PER_SECOND} operations a second, or any number. Processors are kept from halting."
        ),
        targets: targets.collect(),
        primary: "p99_us",
        kafka_highest: None,
        counts: RECORDS,
    };
    let topics = std::cell::RefCell::new(None);
    let run = |home: &Home, broker: &Broker, is_slow: bool| {
        let mut topics = topics.borrow_mut();
        if topics.is_none() {
            *topics = Some(Topics::make(broker, &disk)?);
        }
        let topics = topics.as_ref().context("there are no topics")?;
        disk.measure(home, broker, topics, is_slow)
    };
    let mut slow = |home: &Home, broker: &Broker, _: Known| run(home, broker, true);
    let mut fast = |home: &Home, broker: &Broker, _: Known| run(home, broker, false);
    let pairs = scene.compare.pairs()?;
    let (first, second) = ("beside a slow disk", "beside a fast one");
    Ok(vec![within(scene.home, pairs, sides, (first, &plan, &mut slow), (second, &plan, &mut fast))?])
}

/// Where the dirs are, and how the broker gets them.
#[derive(Debug)]
struct Disk {
    script: PathBuf,
    /// The first log dir, on the disk of all.
    fast: PathBuf,
    /// Where the second file system is, and its log dir as the broker sees it.
    place: PathBuf,
    /// The file that tells its device.
    told: PathBuf,
}

impl Disk {
    fn prepare(home: &Home) -> Result<Self> {
        let path = |name: &str| home.path.join(format!("slow-disk-{name}"));
        let disk =
            Self { script: path("start"), fast: path("fast"), place: path("slow"), told: path("device") };
        std::fs::create_dir(&disk.fast)?;
        std::fs::create_dir(&disk.place)?;
        Ok(disk)
    }

    fn slow_logs(&self) -> PathBuf {
        self.place.join("disk/logs")
    }

    /// Our broker, started by way of the script.
    fn plan(&self, scene: &Scene<'_>) -> Result<Plan> {
        let Plan { kind, mut settings } = scene.compare.common.odradek(1);
        let Kind::Odradek { binary, cores } = kind else { refuse!("only ours is started on a slow disk") };
        let binary = std::fs::canonicalize(&binary).with_context(|| format!("{}", binary.display()))?;
        let words = [&self.place, &self.told, &binary].map(|path| quoted(path));
        std::fs::write(&self.script, format!("{SCRIPT}{} \"$@\"\n", words.join(" ")))?;
        std::fs::set_permissions(&self.script, std::fs::Permissions::from_mode(0o755))?;
        let dirs = format!("{},{}", self.fast.display(), self.slow_logs().display());
        settings.push(("log.dirs".to_owned(), dirs));
        Ok(Plan { kind: Kind::Odradek { binary: self.script.clone(), cores }, settings })
    }

    /// Makes the second disk slow, until the value goes.
    fn slowed(&self) -> Result<Slowed> {
        let told = std::fs::read_to_string(&self.told).with_context(|| format!("{}", self.told.display()))?;
        let device = device_of(&told).with_context(|| format!("findmnt says {told:?}"))?;
        let slowed = Slowed { device };
        slowed.limit(SLOW_PER_SECOND)?;
        Ok(slowed)
    }

    /// One run: the tail in each mode, beside what is written to the second disk.
    fn measure(&self, home: &Home, broker: &Broker, topics: &Topics, is_slow: bool) -> Result<Found> {
        let _slowed = is_slow.then(|| self.slowed()).transpose()?;
        let _awake = Awake::start(home, &[BROKER_PROCESSOR, CLIENT_PROCESSOR])?;
        let seconds = LEAD_IN + f64::from(home.common.seconds());
        let mut found = Found::default();
        for (_, mode) in MODES {
            let mut beside = Vec::new();
            for (_, written) in MODES {
                let job = load(broker, topics.get(Place::Second, written)?, SLOW_RATE, 0);
                beside.push((written, job.lasting(seconds + 1.0).start(home)?));
            }
            // It shares its processor with them, and has it as soon as it wakes.
            let tail = load(broker, topics.get(Place::First, mode)?, TAIL_RATE, 1).urgent();
            let tail = tail.with("--spin-us", SHARED_SPIN_US).with("--warmup", LEAD_IN);
            let report = tail.lasting(seconds).run(home)?;
            let figures = latency(&report, mode)?;
            found.take(report, figures);
            for (written, job) in beside {
                let report = job.finish(home)?;
                let median = needed(&report, "/produce/latency_us/p50")?;
                found.void.extend(not_as_said(is_slow, written == "disk", median));
                found.raw.push(report);
            }
        }
        Ok(found)
    }
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// `MAJOR:MINOR`.
fn device_of(told: &str) -> Option<String> {
    let device = told.trim();
    let (major, minor) = device.split_once(':')?;
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    (is_number(major) && is_number(minor)).then(|| device.to_owned())
}

/// Why the second disk was not what it should have been: a sync waits for several of its operations.
fn not_as_said(is_slow: bool, is_synced: bool, median_us: f64) -> Option<String> {
    match (is_slow, is_synced) {
        (true, true) if median_us < OPERATION_US => {
            Some(format!("the slow disk took {median_us:.0} µs for a record"))
        }
        (false, _) if median_us >= OPERATION_US => {
            Some(format!("the fast disk took {median_us:.0} µs for a record"))
        }
        _ => None,
    }
}

/// A load on one partition, a record in each batch without linger.
fn load(broker: &Broker, topic: &str, rate: u32, linger_ms: u32) -> Job {
    Job::new("produce", &["--no-perf"])
        .at(broker)
        .with("--topic", topic)
        .with("--partitions", 1)
        .with("--rate", rate)
        .with("--linger-ms", linger_ms)
        .with("--in-flight", 100)
}

/// A limit on a device; it goes with the value.
#[derive(Debug)]
struct Slowed {
    device: String,
}

impl Slowed {
    fn limit(&self, per_second: u32) -> Result<()> {
        for path in LIMITS {
            std::fs::write(path, format!("{} {per_second}\n", self.device)).context(path)?;
        }
        Ok(())
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        // The device goes with the broker, and whoever has it next must not find it slow.
        let _ = self.limit(0);
    }
}

/// Which log dir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    First,
    Second,
}

/// A topic of one partition on each dir, in each mode.
#[derive(Debug, Default)]
struct Topics(BTreeMap<(Place, &'static str), String>);

impl Topics {
    fn get(&self, place: Place, mode: &'static str) -> Result<&str> {
        self.0.get(&(place, mode)).map(String::as_str).context("a dir got no topic")
    }

    /// Creates topics until there is one of each; the broker tells where it has put them.
    fn make(broker: &Broker, disk: &Disk) -> Result<Self> {
        let mut client = Client::connect(&broker.bootstrap(), Duration::from_secs(60))?;
        let mut made = Self::default();
        for (config, mode) in MODES {
            let config: Vec<(String, String)> =
                config.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            for number in 0..TOPICS_MAX {
                let topic = format!("{}-{number}", mode.replace(' ', "-"));
                client.create_topic_with(&topic, 1, &config)?;
                let dir = dir_of(&mut client, &topic)?;
                let place = if Path::new(&dir) == disk.slow_logs() { Place::Second } else { Place::First };
                made.0.entry((place, mode)).or_insert(topic);
            }
        }
        ensure!(made.0.len() == 2 * MODES.len(), "all of {TOPICS_MAX} topics lie on one log dir");
        Ok(made)
    }
}

/// The log dir of the one partition of a topic.
fn dir_of(client: &mut Client, topic: &str) -> Result<String> {
    const VERSION: i16 = 2;
    for _ in 0..500 {
        let reply = client.call(VERSION, &DescribeLogDirsRequest { topics: None })?;
        let response: DescribeLogDirsResponse<'_> = reply.message()?;
        let has = |found: &&DescribeLogDirsResult<'_>| found.topics.iter().any(|one| *one.name == *topic);
        if let Some(found) = response.results.iter().find(has) {
            return Ok((*found.log_dir).to_owned());
        }
        // Created, and not there yet.
        crate::commands::pause(Duration::from_millis(20));
    }
    anyhow::bail!("no log dir has topic {topic}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_two_numbers() {
        assert_eq!(device_of("  7:0\n"), Some("7:0".to_owned()));
        for wrong in ["", "7", "7:x", "7:0 7:1", ":", "/dev/loop0"] {
            assert_eq!(device_of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_disk_that_is_not_what_it_should_be_makes_the_run_void() {
        assert_eq!(not_as_said(true, true, 350_000.0), None);
        assert!(not_as_said(true, true, 900.0).is_some_and(|why| why.contains("slow disk took 900")));
        assert_eq!(not_as_said(true, false, 900.0), None, "the page cache has it");
        assert_eq!(not_as_said(false, true, 900.0), None);
        assert!(not_as_said(false, false, 200_000.0).is_some());
    }

    #[test]
    fn a_path_is_one_word_of_the_script() {
        assert_eq!(quoted(Path::new("/a b/c")), "'/a b/c'");
        assert_eq!(quoted(Path::new("/it's")), r"'/it'\''s'");
        assert!(SCRIPT.starts_with("#!/bin/sh\n") && SCRIPT.matches('\'').count() == 2);
    }
}

//! Real clients against a real process, on one shard and on two: runs the suites in `clients/` as child processes.
//! `scripts/check` installs the clients and calls this; arguments choose suites by name. What this machine cannot run is
//! named and counted as skipped; with `ODRADEK_INTEROP=require` it counts as failed.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "drives real processes from outside")]
#![allow(clippy::print_stdout, reason = "a test runner reports")]

#[path = "clients/child.rs"]
mod child;
mod support;
#[path = "clients/tally.rs"]
mod tally;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use support::{Broker, free_port};
use tally::{Tally, Verdict};

/// No suite may take longer.
const SUITE_LIMIT: Duration = Duration::from_secs(400);

/// The oldest node that `@platformatic/kafka` runs on, by its package.json.
const PLATFORMATIC_NODE: (u32, u32) = (20, 19);

struct Suite {
    name: &'static str,
    program: PathBuf,
    script: &'static str,
    /// The oldest major and minor version of node, for suites that have one.
    node: Option<(u32, u32)>,
}

fn suites() -> Vec<Suite> {
    let main = tally::cache().join("venv/main/bin/python");
    let legacy = tally::cache().join("venv/legacy/bin/python");
    let python =
        |name, program: &PathBuf, script| Suite { name, program: program.clone(), script, node: None };
    let node = |name, script, oldest| Suite { name, program: "node".into(), script, node: Some(oldest) };
    vec![
        python("librdkafka", &main, "python/confluent_suite.py"),
        python("kafka-python-2", &legacy, "python/kafka_python_suite.py"),
        python("kafka-python-3", &main, "python/kafka_python_suite.py"),
        python("aiokafka", &main, "python/aiokafka_suite.py"),
        python("kcat", &main, "python/kcat_suite.py"),
        python("prometheus", &main, "python/prometheus_suite.py"),
        node("kafkajs", "node/kafkajs_suite.js", (18, 0)),
        node("platformatic", "node/platformatic_suite.js", PLATFORMATIC_NODE),
    ]
}

/// Major and minor version of the node on the `PATH`.
fn node_version() -> Result<(u32, u32), String> {
    let text = child::run(Command::new("node").arg("--version"), Duration::from_secs(20))?;
    let mut numbers = text.trim().trim_start_matches('v').split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(format!("node --version printed {text:?}")),
    }
}

/// Runs one suite.
fn run(suite: &Suite, bootstrap: &str, admin: &str) -> Verdict {
    if let Some(oldest) = suite.node {
        match node_version() {
            Ok(found) if found < oldest => {
                return Verdict::Skipped(format!("it needs node {oldest:?}, here is {found:?}"));
            }
            Ok(_) => {}
            Err(why) => return Verdict::Failed(format!("{why} (scripts/check installs node)")),
        }
    }
    let mut command = Command::new(&suite.program);
    command.arg(tally::suites_dir().join(suite.script)).arg(bootstrap);
    command.env("ODRADEK_ADMIN", admin);
    command.env("NODE_PATH", tally::cache().join("node/node_modules"));
    tally::judge_suite(child::run(&mut command, SUITE_LIMIT))
}

fn main() -> ExitCode {
    let chosen = tally::chosen();
    let mut tally = Tally::default();
    for shards in [1, 2] {
        let admin = format!("127.0.0.1:{}", free_port());
        let settings = [&format!("admin.listener={admin}"), "group.initial.rebalance.delay.ms=100"];
        let mut broker = Broker::start(shards, &settings);
        for suite in suites().iter().filter(|s| chosen.is_empty() || chosen.iter().any(|c| c == s.name)) {
            let started = Instant::now();
            let verdict = run(suite, &broker.bootstrap(), &admin);
            if !tally.count(&format!("{} on {shards} shard(s)", suite.name), started, verdict) {
                println!("broker runs: {}\n{}", broker.is_running(), broker.log());
            }
        }
        assert!(broker.is_running(), "the broker ended:\n{}", broker.log());
        assert!(broker.stop().success(), "a clean stop ends with 0:\n{}", broker.log());
    }
    tally.finish()
}

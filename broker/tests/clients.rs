//! Real clients against a real process, on one shard and on two: runs the suites in `clients/` as child processes.
//! `scripts/check` installs the clients and calls this; arguments choose suites by name.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "drives real processes from outside")]
#![allow(clippy::print_stdout, reason = "a test runner reports")]

mod support;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use support::Broker;

/// No suite may take longer.
const SUITE_LIMIT: Duration = Duration::from_secs(180);

struct Suite {
    name: &'static str,
    program: PathBuf,
    script: &'static str,
}

fn cache() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    std::env::var_os("ODRADEK_CACHE").map_or_else(|| home.join(".cache/odradek"), PathBuf::from)
}

fn suites() -> Vec<Suite> {
    let python = cache().join("venv/main/bin/python");
    let legacy = cache().join("venv/legacy/bin/python");
    let node = PathBuf::from("node");
    vec![
        Suite { name: "librdkafka", program: python.clone(), script: "python/confluent_suite.py" },
        Suite { name: "kafka-python-2", program: legacy, script: "python/kafka_python_suite.py" },
        Suite { name: "kafka-python-3", program: python.clone(), script: "python/kafka_python_suite.py" },
        Suite { name: "aiokafka", program: python.clone(), script: "python/aiokafka_suite.py" },
        Suite { name: "kcat", program: python, script: "python/kcat_suite.py" },
        Suite { name: "kafkajs", program: node.clone(), script: "node/kafkajs_suite.js" },
        Suite { name: "platformatic", program: node, script: "node/platformatic_suite.js" },
    ]
}

/// Runs one suite; it succeeded when it ended in time with 0 and counted at least one passed check.
fn run(suite: &Suite, bootstrap: &str, shards: u16) -> bool {
    let directory = support::workspace().join("broker/tests/clients");
    let output = tempfile::NamedTempFile::new().expect("temporary file");
    let started = Instant::now();
    let child = Command::new(&suite.program)
        .arg(directory.join(suite.script))
        .arg(bootstrap)
        .env("NODE_PATH", cache().join("node/node_modules"))
        .stdin(Stdio::null())
        .stdout(output.reopen().expect("output file"))
        .stderr(output.reopen().expect("output file"))
        .spawn();
    let status = match child {
        Ok(mut child) => support::wait(&mut child, SUITE_LIMIT).or_else(|| {
            let _ = child.kill();
            let _ = child.wait();
            None
        }),
        Err(error) => {
            println!("cannot start {}: {error} (scripts/check installs it)", suite.program.display());
            return false;
        }
    };
    let text = std::fs::read_to_string(output.path()).unwrap_or_default();
    let checks = text.lines().filter(|line| line.starts_with("ok ")).count();
    let good = status.is_some_and(|status| status.success()) && checks > 0;
    let verdict = if good { "ok" } else { "FAILED" };
    println!(
        "{verdict} {} on {shards} shard(s): {checks} checks, {:.1} s",
        suite.name,
        started.elapsed().as_secs_f64()
    );
    if !good {
        println!("{text}\nended with {status:?}");
    }
    good
}

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (mut passed, mut failed) = (0, 0);
    for shards in [1, 2] {
        let mut broker = Broker::start(shards, &[]);
        for suite in suites().iter().filter(|s| chosen.is_empty() || chosen.iter().any(|c| c == s.name)) {
            if run(suite, &broker.bootstrap(), shards) {
                passed += 1;
            } else {
                failed += 1;
                println!("broker runs: {}\n{}", broker.is_running(), broker.log());
            }
        }
        assert!(broker.is_running(), "the broker ended:\n{}", broker.log());
        assert!(broker.stop().success(), "a clean stop ends with 0:\n{}", broker.log());
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

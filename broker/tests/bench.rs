//! `odradek-bench` against a real process: what it produces is verified, and its figures are there.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process"
)]

mod support;

use bench_harness::args::Arguments;
use bench_harness::commands::run;
use clap::Parser;
use serde_json::Value;
use support::Broker;

fn bench(words: &[&str]) -> Value {
    let all = ["odradek-bench"].iter().chain(words);
    let arguments = Arguments::try_parse_from(all).expect("arguments");
    run(&arguments).expect("a run").to_json()
}

#[test]
fn a_produce_run_is_verified_and_measured() {
    let mut broker = Broker::start(2, &[]);
    let (bootstrap, pid) = (broker.bootstrap(), broker.pid().to_string());
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("UTF-8");
    let target = ["--bootstrap", bootstrap.as_str(), "--broker-pid", pid.as_str(), "--no-perf"];
    let load = ["--partitions", "6", "--connections", "3", "--batches-per-request", "2"];
    let size = ["--records", "50000", "--record-bytes", "200", "--json", path];
    let sent = bench(&[&["produce"][..], &target, &load, &size].concat());
    assert_eq!(sent["produce"]["records"], 50_000, "{sent}");
    assert_eq!(sent["produce"]["latency_us"]["count"], 50_000, "{sent}");
    assert!(sent["broker"]["rss_bytes"].as_u64().is_some_and(|rss| rss > 1 << 20), "{sent}");
    let read = bench(&[&["consume", "--connections", "2", "--verify", path][..], &target].concat());
    assert_eq!(read["consume"]["verified"]["acknowledged"], 50_000, "{read}");
    assert_eq!(read["consume"]["verified"]["found"], 50_000, "{read}");
    assert!(broker.stop().success());
}

#[test]
fn latency_end_to_end_is_told_on_a_schedule() {
    let mut broker = Broker::start(1, &[]);
    let bootstrap = broker.bootstrap();
    let load = ["--rate", "2000", "--linger-ms", "1", "--duration", "1", "--warmup", "0.5", "--acks", "-1"];
    let report = bench(&[&["e2e", "--bootstrap", bootstrap.as_str()][..], &load].concat());
    assert_eq!(report["consume"]["verified"]["acknowledged"], 2000, "{report}");
    assert_eq!(report["end_to_end_us"]["count"], 1000, "{report}");
    assert!(report["produce"]["lateness_us"]["p50"].is_number(), "{report}");
    assert!(broker.stop().success());
}

#[test]
fn idle_connections_stay_while_active_ones_send() {
    let mut broker = Broker::start(1, &[]);
    let (bootstrap, pid) = (broker.bootstrap(), broker.pid().to_string());
    let target = ["--bootstrap", bootstrap.as_str(), "--broker-pid", pid.as_str(), "--no-perf"];
    let load = ["--idle", "200", "--active", "10", "--active-rate", "20", "--duration", "1"];
    let report = bench(&[&["connections"][..], &target, &load].concat());
    assert_eq!(report["connections"]["connect_us"]["count"], 200, "{report}");
    assert_eq!(report["produce"]["records"], 200, "{report}");
    assert!(broker.stop().success());
}

#[test]
fn a_start_is_timed_and_survives_a_kill() {
    let binary = env!("CARGO_BIN_EXE_odradek");
    let words = ["startup", "--broker", binary, "--runs", "2", "--partitions", "20", "--kill"];
    let more =
        ["--fill-bytes", "1M", "--broker-override", "cores=1", "--broker-override", "admin.listener=none"];
    let report = bench(&[&words[..], &more].concat());
    let startup = &report["startup"];
    assert_eq!(startup["runs"].as_array().map(Vec::len), Some(2), "{report}");
    assert!(startup["first_acknowledged_ms"]["median"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    assert!(startup["killed"]["every_partition_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
}

//! `odradek-bench` against a real process: what it produces is verified, and its figures are there.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process"
)]

mod support;

use std::time::Duration;

use bench_harness::args::Arguments;
use bench_harness::client::Client;
use bench_harness::commands::run;
use clap::Parser;
use protocol::messages::{ListGroupsRequest, ListGroupsResponse};
use serde_json::{Value, json};
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
    let parent = tempfile::tempdir().expect("a directory");
    let parent = parent.path().to_str().expect("UTF-8");
    let down = ["--down", "0.1", "--dir", parent, "--warm", parent];
    let report = bench(&[&words[..], &more, &down].concat());
    let startup = &report["startup"];
    assert_eq!(startup["runs"].as_array().map(Vec::len), Some(2), "{report}");
    assert!(startup["first_acknowledged_ms"]["median"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    assert!(startup["killed"]["every_partition_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    assert!(startup["killed"]["warmed_bytes"].as_u64().is_some_and(|bytes| bytes >= 1_000_000), "{report}");
}

/// Groups that begin at once, over a few partitions of their topic.
const GROUPS: &[&str] = &["group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=5"];

/// Runs `groups`; none is there afterwards.
fn groups(broker: &Broker, words: &[&str]) -> Value {
    let (bootstrap, pid) = (broker.bootstrap(), broker.pid().to_string());
    let target = ["groups", "--bootstrap", bootstrap.as_str(), "--broker-pid", pid.as_str(), "--no-perf"];
    let report = bench(&[&target[..], words].concat());
    let mut client = Client::connect(&bootstrap, Duration::from_secs(60)).expect("connect");
    let reply = client.call(4, &ListGroupsRequest::default()).expect("list groups");
    let listed: ListGroupsResponse<'_> = reply.message().expect("an answer");
    assert_eq!((listed.error_code, listed.groups.elements().len()), (0, 0), "{listed:?}");
    report
}

#[test]
fn members_are_restarted_one_after_the_other_and_each_partition_has_one_owner() {
    let mut broker = Broker::start(2, GROUPS);
    let load = ["--load", "join", "--members", "5", "--restarts", "6", "--heartbeat-ms", "50"];
    let topic = ["--partitions", "12", "--session-timeout-ms", "30000"];
    let report = groups(&broker, &[&load[..], &topic].concat());
    let found = &report["groups"];
    assert_eq!(found["verified"], json!({"partitions": 12, "members_with_partitions": 5}), "{report}");
    let rolled = &found["rolling_restart"];
    assert!(rolled["generations"].as_i64().is_some_and(|generations| generations >= 6), "{report}");
    assert!(rolled["paused_partition_seconds"].as_f64().is_some_and(|paused| paused > 0.0), "{report}");
    assert_eq!((&rolled["settle_us"]["count"], &rolled["restart_us"]["count"]), (&json!(6), &json!(6)));
    assert!(found["stable_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");

    let report = groups(&broker, &[&load[..], &topic, &["--static-members"]].concat());
    let rolled = &report["groups"]["rolling_restart"];
    assert_eq!(rolled["generations"], 0, "a static member that comes back starts no rebalance: {report}");
    assert!(rolled["paused_partition_seconds"].as_f64().is_some_and(|paused| paused > 0.0), "{report}");
    assert!(broker.stop().success());
}

#[test]
fn commits_are_timed_and_every_acknowledged_offset_is_there() {
    let mut broker = Broker::start(2, GROUPS);
    let load =
        ["--load", "commit", "--rate", "500", "--duration", "1", "--warmup", "0.2", "--in-flight", "3"];
    let spread = ["--groups", "6", "--connections", "3", "--partitions", "4", "--commit-partitions", "2"];
    let report = groups(&broker, &[&load[..], &spread].concat());
    let found = &report["groups"];
    assert_eq!(found["verified"], json!({"groups": 6, "offsets": 12}), "{report}");
    assert_eq!(found["latency_us"]["count"], 400, "what was due in the warm-up is not measured: {report}");
    assert_eq!(found["lateness_us"]["count"], 400, "{report}");
    assert!(report["broker"]["cpu_seconds_per_million_records"].is_number(), "{report}");
    let load = ["--load", "commit", "--rate", "max", "--duration", "0.3"];
    let report = groups(&broker, &[&load[..], &spread].concat());
    assert_eq!(report["groups"]["verified"], json!({"groups": 6, "offsets": 12}), "{report}");
    assert!(broker.stop().success());
}

#[test]
fn heartbeats_of_many_groups_are_timed_and_none_is_refused() {
    let mut broker = Broker::start(2, GROUPS);
    let load = ["--load", "heartbeat", "--groups", "7", "--members", "3", "--partitions", "4"];
    let pace = ["--heartbeat-ms", "200", "--duration", "1"];
    let report = groups(&broker, &[&load[..], &pace].concat());
    let found = &report["groups"];
    assert_eq!((&found["heartbeats"], &found["latency_us"]["count"]), (&json!(105), &json!(105)), "{report}");
    assert!(report["broker"]["cpu_share"].is_number(), "{report}");
    let report = groups(&broker, &[&load[..], &["--heartbeat-ms", "0", "--duration", "0.3"]].concat());
    assert!(report["groups"]["heartbeats"].as_u64().is_some_and(|beats| beats >= 21), "{report}");
    assert!(broker.stop().success());
}

//! Directories that are not what they should be, and real processes on them (storage.md 1, S-1, S-3): another's, a newer
//! release's, one with two directories of a partition, one whose metadata store is damaged or missing. Each gets one sentence and exit
//! code 78, and nothing in it is touched; what Kafka leaves alone is left alone.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives real processes from outside"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bench_harness::client::Client;
use bench_harness::content;
use protocol::types::TimestampMs;
use support::{Broker, wait};

const LIMIT: Duration = Duration::from_secs(60);
const STORE: &str = "odradek-metadata.redb";

/// A broker that was stopped cleanly and holds a topic with records.
fn stopped() -> Broker {
    let mut broker = Broker::start(1, &[]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("t", 1).expect("create");
    for number in 0..3 {
        let batch = content::batch(0, number, 1, 100, TimestampMs::new(1)).expect("batch");
        let answer = client.produce("t", 0, -1, &batch).expect("produce").expect("an answer");
        assert_eq!(answer.error_code, 0);
    }
    assert!(broker.stop().success());
    broker
}

/// Everything below a directory, but for the lock, which every process takes that looks at it, and the pages of the metadata
/// store, which redb marks as open.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                dirs.push(path.clone());
                found.insert(path, None);
            } else if !path.ends_with(".lock") {
                let content = if path.ends_with(STORE) { Vec::new() } else { fs::read(&path).expect("file") };
                found.insert(path, Some(content));
            }
        }
    }
    found
}

/// What `check-config` says of these settings, and its exit code.
fn checked(broker: &Broker, settings: &[&str]) -> (Option<i32>, String) {
    let file = broker.log_dir().with_file_name("empty.properties");
    fs::write(&file, "").expect("file");
    let serve = broker.command();
    let mut command = Command::new(serve.get_program());
    command.arg("check-config").arg(&file).args(serve.get_args().skip(1));
    for setting in settings {
        command.arg("--override").arg(setting);
    }
    let Output { status, stdout, stderr } = command.output().expect("check-config");
    assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    (status.code(), String::from_utf8_lossy(&stdout).into_owned())
}

/// Starts a broker that has to refuse, for a reason that is found without a start, too: its one sentence.
fn refused(broker: &Broker, settings: &[&str]) -> String {
    let said = refused_by_start(broker, settings);
    let before = tree(&broker.log_dir());
    let (code, told) = checked(broker, settings);
    let sentence = said.strip_prefix("odradek: ").expect("its name");
    assert!(code == Some(78) && told.contains(sentence), "{sentence} is not what check-config says: {told}");
    assert!(tree(&broker.log_dir()) == before, "{sentence}");
    said
}

/// Starts a broker that has to refuse: its one sentence. Nothing in its directory has changed then.
fn refused_by_start(broker: &Broker, settings: &[&str]) -> String {
    let before = tree(&broker.log_dir());
    let mut command = broker.command();
    for setting in settings {
        command.arg("--override").arg(setting);
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start");
    let ended = wait(&mut child, LIMIT);
    let _ = child.kill();
    let Output { status, stderr, .. } = child.wait_with_output().expect("output");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert!(ended.is_some(), "it hangs: {said}");
    assert_eq!(status.code(), Some(78), "{said}");
    let sentences: Vec<_> = said.lines().filter(|line| line.starts_with("odradek: ")).collect();
    assert_eq!(sentences.len(), 1, "one sentence: {said}");
    assert!(!said.contains("panicked"), "{said}");
    let after = tree(&broker.log_dir());
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let touched: Vec<_> = before.keys().chain(after.keys()).filter(differs).collect();
    assert!(touched.is_empty(), "{touched:?} after {}", sentences[0]);
    assert!(broker.log_dir().join(".kafka_cleanshutdown").exists(), "it is as clean as before");
    sentences[0].to_owned()
}

/// What was put aside is back: the broker starts, and has its records.
fn serves(broker: &mut Broker) {
    broker.launch();
    broker.await_served("t", 1);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    let fetched = client.fetch("t", 0, 0, Duration::from_millis(1)).expect("fetch");
    assert_eq!((fetched.error_code, fetched.high_watermark), (0, 3), "{}", broker.log());
    assert!(broker.stop().success());
}

fn replace(path: &Path, from: &str, to: &str) -> String {
    let before = fs::read_to_string(path).expect("file");
    let after = before.replace(from, to);
    assert_ne!(before, after, "{before}");
    fs::write(path, after).expect("file");
    before
}

#[test]
fn a_newer_or_damaged_meta_properties_is_refused() {
    let mut broker = stopped();
    let path = broker.log_dir().join("meta.properties");
    for (line, reason) in [
        ("version=2", "version \"2\" is not known"),
        ("version=x", "version \"x\" is not known"),
        ("version=1", ""),
        ("version=\\u00", "malformed \\u escape"),
    ] {
        let before = replace(&path, "version=0", line);
        let said = refused(&broker, &[]);
        assert!(said.contains("logs") && said.contains(reason), "{line}: {said}");
        fs::write(&path, before).expect("file");
    }
    serves(&mut broker);
}

#[test]
fn a_directory_of_another_broker_or_cluster_is_refused() {
    let mut broker = stopped();
    let path = broker.log_dir().join("meta.properties");
    let text = fs::read_to_string(&path).expect("file");
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
        line.strip_prefix('=').expect("a value").to_owned()
    };
    let (id, cluster) = (value("broker.id"), value("cluster.id"));
    let said = refused(&broker, &["broker.id=5"]);
    assert!(
        said.contains("broker.id is 5, but ") && said.contains(&format!("belongs to broker {id}")),
        "{said}"
    );
    // The cluster is known to the metadata store.
    let before = replace(&path, &cluster, "AAAAAAAAAAAAAAAAAAAAAQ");
    let said = refused_by_start(&broker, &[]);
    let sentence = format!("belongs to cluster AAAAAAAAAAAAAAAAAAAAAQ, this is cluster {cluster}");
    assert!(said.contains(&sentence), "{said}");
    fs::write(&path, before).expect("file");
    serves(&mut broker);
}

#[test]
fn a_directory_that_is_no_partition_and_two_of_one_partition_are_refused() {
    let mut broker = stopped();
    let home = broker.log_dir();
    for name in ["lost+found", "t-01", "t-x"] {
        fs::create_dir(home.join(name)).expect("directory");
        let said = refused(&broker, &[]);
        assert!(said.contains(name) && said.contains("does not belong into a log dir"), "{said}");
        fs::remove_dir(home.join(name)).expect("directory");
    }
    let futures = ["0", "1"].map(|digit| home.join(format!("t-0.{}-future", digit.repeat(32))));
    futures.iter().for_each(|path| fs::create_dir(path).expect("directory"));
    let said = refused(&broker, &[]);
    let both = futures.iter().all(|path| said.contains(&path.display().to_string()));
    assert!(both && said.contains("both hold t-0: delete one of them"), "{said}");
    futures.iter().for_each(|path| fs::remove_dir(path).expect("directory"));
    serves(&mut broker);
}

#[test]
fn a_damaged_metadata_store_is_refused_and_left_as_it_is() {
    let mut broker = stopped();
    let path = broker.log_dir().join(STORE);
    let good = fs::read(&path).expect("store");
    let flipped = |at: usize| {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        bad
    };
    for bad in [flipped(3), flipped(14), good[..good.len() / 2].to_vec(), good[..100].to_vec()] {
        fs::write(&path, &bad).expect("store");
        let said = refused_by_start(&broker, &[]);
        assert!(said.contains("metadata store"), "{said}");
        assert!(fs::read(&path).expect("store") == bad, "it is left as it is");
    }
    fs::write(&path, good).expect("store");
    serves(&mut broker);
}

#[test]
fn files_that_are_nobodys_are_left_alone() {
    let mut broker = stopped();
    let home = broker.log_dir();
    let foreign =
        ["notes.txt", "t-7", "bootstrap.checkpoint", "t-0/notes.txt", "t-0/00000.bak", "t-0/x.tar.gz"];
    for name in foreign {
        fs::write(home.join(name), name).expect("file");
    }
    fs::create_dir(home.join("remote-log-index-cache")).expect("directory");
    fs::write(home.join("remote-log-index-cache/file"), "x").expect("file");
    serves(&mut broker);
    // Also by a start that recovers.
    broker.launch();
    broker.kill();
    broker.distrust();
    serves(&mut broker);
    for name in foreign {
        assert_eq!(fs::read_to_string(home.join(name)).expect("still there"), name);
    }
    assert!(home.join("remote-log-index-cache/file").exists());
}

/// A directory of Kafka's whose metadata is in ZooKeeper, or one of ours whose store was lost: as an empty cluster it would
/// look ready.
#[test]
fn partitions_whose_topics_nobody_knows_are_no_empty_cluster() {
    let mut broker = stopped();
    let (store, aside) = (broker.log_dir().join(STORE), broker.log_dir().with_file_name("aside"));
    fs::rename(&store, &aside).expect("moved");
    let is_told = |broker: &Broker| {
        let said = refused(broker, &[]);
        for part in ["holds partitions", STORE, "zookeeper.connect", "`odradek metadata import`"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    };
    is_told(&broker);
    // An empty file is what a system that lost its power may leave of one.
    fs::write(&store, "").expect("file");
    is_told(&broker);
    assert_eq!(fs::read(&store).expect("still there"), b"");
    fs::remove_file(&store).expect("removed");
    // With the one who knows them named, it is he who is asked.
    let nobody = ["zookeeper.connect=127.0.0.1:1", "zookeeper.connection.timeout.ms=200"];
    let said = refused_by_start(&broker, &nobody);
    assert!(said.contains("no session with ZooKeeper at 127.0.0.1:1"), "{said}");
    assert_eq!(checked(&broker, &nobody).0, Some(0));
    // Where the store is said to be elsewhere, it is looked for there.
    let elsewhere = format!("metadata.file={}", aside.display());
    assert_eq!(checked(&broker, &[&elsewhere]).0, Some(0));
    fs::rename(&aside, &store).expect("back");
    serves(&mut broker);
}

#[test]
fn beside_the_running_broker_its_lock_is_told_of_and_left() {
    let mut broker = Broker::start(1, &[]);
    let (code, told) = checked(&broker, &[]);
    assert_eq!(code, Some(0), "{told}");
    let warnings: Vec<_> = told.lines().filter(|line| line.contains(": warning: ")).collect();
    let is_of_lock = |line: &&&str| {
        line.contains("is locked: another broker, ours or Kafka") && line.ends_with("until that has stopped")
    };
    assert_eq!(warnings.iter().filter(is_of_lock).count(), 1, "{told}");
    let second = broker.command().output().expect("start");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(78) && said.contains("is locked: another broker"), "{said}");
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("t", 1).expect("it still serves");
    assert!(broker.stop().success());
}

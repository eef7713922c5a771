//! What a start that is ended by a signal leaves behind: neither its directory nor its broker.
#![allow(clippy::disallowed_methods, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a broker that never listens and writes its process id; returns the harness and that id.
#[allow(clippy::zombie_processes, reason = "whoever asked for it waits for it")]
fn started(parent: &Path) -> (Child, String) {
    let (script, told) = (parent.join("broker"), parent.join("id"));
    let text = format!("#!/bin/sh\necho $$ > {0}.new && mv {0}.new {0}\nexec sleep 300\n", told.display());
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let harness = Command::new(env!("CARGO_BIN_EXE_odradek-bench"))
        .args(["startup", "--runs", "1", "--partitions", "0", "--timeout", "200", "--broker"])
        .arg(&script)
        .arg("--dir")
        .arg(parent)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start odradek-bench");
    let until = Instant::now() + PATIENCE;
    loop {
        if let Ok(id) = std::fs::read_to_string(&told) {
            std::fs::remove_file(&told).expect("remove");
            return (harness, id.trim().to_owned());
        }
        assert!(Instant::now() < until, "the broker was not started");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(name: &str, process: &str) {
    let sent = Command::new("kill").args([name, process]).status().expect("kill");
    assert!(sent.success(), "{process}");
}

/// The directories of starts.
fn left(parent: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(parent).expect("the directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    names.filter(|name| name.starts_with("odradek-bench-start-")).collect()
}

#[test]
fn a_start_that_is_ended_removes_its_directory_now_or_when_the_next_one_begins() {
    let parent = tempfile::tempdir().expect("a directory");
    let (mut killed, orphan) = started(parent.path());
    killed.kill().expect("SIGKILL");
    killed.wait().expect("its end");
    signal("-KILL", &orphan);
    let after_kill = left(parent.path());
    assert_eq!(after_kill.len(), 1, "nobody can tidy up after SIGKILL: {after_kill:?}");

    let (mut ended, broker) = started(parent.path());
    let now = left(parent.path());
    assert!(now.len() == 1 && now != after_kill, "the next one tidies up: {now:?}");
    signal("-TERM", &ended.id().to_string());
    assert_eq!(ended.wait().expect("its end").code(), Some(1), "it fails with a sentence");
    assert_eq!(left(parent.path()), Vec::<String>::new());
    assert!(!Path::new(&format!("/proc/{broker}")).exists(), "its broker is there");
}

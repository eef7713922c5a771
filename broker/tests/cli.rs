//! The built binary as an operator meets it: `check-config` and `--version`.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests fail the test, and write their files plainly"
)]

use std::path::PathBuf;
use std::process::{Command, Output};

struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

fn odradek(arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odradek"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ODRADEK_")) {
        command.env_remove(name);
    }
    let Output { status, stdout, stderr } =
        command.args(arguments).envs(environment.iter().copied()).output().unwrap();
    Run {
        code: status.code().unwrap(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

fn file(dir: &tempfile::TempDir, name: &str, text: &[u8]) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn version_names_the_program() {
    let run = odradek(&["--version"], &[]);
    assert_eq!((run.code, run.stdout), (0, format!("odradek {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn the_example_file_is_without_fault_and_warning() {
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../odradek.example.toml");
    let run = odradek(&["check-config", example.to_str().unwrap()], &[]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert!(!run.stdout.contains("warning"), "{}", run.stdout);
    assert!(
        run.stdout.contains("Clients will be told to connect to:\n  PLAINTEXT://127.0.0.1:9092\n"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("Records will be kept in /var/lib/odradek/logs"), "{}", run.stdout);
}

#[test]
fn each_fault_has_its_line_and_the_exit_code_is_78() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        &dir,
        "bad.toml",
        b"[log]\nlog_retention_hour = 1\nlog_segment_bytes = 1\n[general]\nnum_io_threads = 9\n",
    );
    let run = odradek(&["check-config", &path], &[]);
    assert_eq!(run.code, 78);
    let lines: Vec<_> = run.stdout.lines().map(|line| line.replace(&format!("{path}: "), "")).collect();
    assert_eq!(
        lines,
        [
            "warning: line 5: num.io.threads stands in [general]; it belongs in [listeners]",
            "warning: line 5: num.io.threads is accepted and has no effect: the broker runs one thread per core; see cores",
            "error: line 2: there is no key log.retention.hour; did you mean log.retention.hours?",
            "error: line 3: invalid value `1` for log.segment.bytes: Value must be at least 14",
        ]
    );
}

#[test]
fn what_would_protect_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "server.properties", b"listeners=SSL://:9093\nssl.keystore.password=hunter2\n");
    let run = odradek(&["check-config", &path], &[]);
    assert_eq!(run.code, 78);
    assert!(run.stdout.contains("TLS is not built yet"), "{}", run.stdout);
    assert!(run.stdout.contains("listener SSL uses SSL"), "{}", run.stdout);
    assert!(!run.stdout.contains("hunter2"), "{}", run.stdout);
}

#[test]
fn file_environment_and_override_win_in_that_order() {
    let dir = tempfile::tempdir().unwrap();
    // The rack is Latin-1, as Java writes it.
    let path = file(&dir, "server.properties", b"broker.rack=r\xe4ck\nlog.dirs=/from-file\n");
    let kept = |run: Run| {
        assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
        run.stdout.lines().last().unwrap().to_owned()
    };
    assert_eq!(kept(odradek(&["check-config", &path], &[])), "Records will be kept in /from-file");
    let environment = [("ODRADEK_LOG_DIRS", "/from-environment")];
    assert_eq!(
        kept(odradek(&["check-config", &path], &environment)),
        "Records will be kept in /from-environment"
    );
    let run = odradek(
        &["check-config", &path, "--override", "log.dirs=/a", "--override", "log.dirs=/b"],
        &environment,
    );
    assert_eq!(kept(run), "Records will be kept in /b");
}

#[test]
fn a_file_that_cannot_be_read_is_said() {
    let run = odradek(&["check-config", "/nonexistent.toml"], &[]);
    assert_eq!(run.code, 78);
    assert!(run.stdout.starts_with("error: /nonexistent.toml cannot be read: "), "{}", run.stdout);
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(odradek(&["check-config", &file(&dir, "a.toml", b"x = \"\xff\"\n")], &[]).code, 78);
    assert_eq!(odradek(&["check-config", dir.path().to_str().unwrap()], &[]).code, 78);
    assert_eq!(odradek(&["check-config", "/dev/zero"], &[]).code, 78);
}

//! The built binary as an operator meets it: `check-config`, `metadata` and `--version`.
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
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("new/logs");
    let log_dirs = format!("log.dirs={}", logs.display());
    let run = odradek(&["check-config", example.to_str().unwrap(), "--override", &log_dirs], &[]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert!(!run.stdout.contains("warning"), "{}", run.stdout);
    assert!(
        run.stdout.contains("Clients will be told to connect to:\n  PLAINTEXT://127.0.0.1:9092\n"),
        "{}",
        run.stdout
    );
    let kept = format!("Records will be kept in {}", logs.display());
    assert!(run.stdout.contains(&kept), "{}", run.stdout);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
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
    let root = dir.path().to_str().unwrap();
    let text = [&b"broker.rack=r\xe4ck\nlog.dirs="[..], root.as_bytes(), b"/from-file\n"].concat();
    let path = file(&dir, "server.properties", &text);
    let kept = |run: Run| {
        assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
        run.stdout.lines().last().unwrap().replace(root, "")
    };
    let (of_environment, a, b) =
        (format!("{root}/from-environment"), format!("log.dirs={root}/a"), format!("log.dirs={root}/b"));
    assert_eq!(kept(odradek(&["check-config", &path], &[])), "Records will be kept in /from-file");
    let environment = [("ODRADEK_LOG_DIRS", of_environment.as_str())];
    assert_eq!(
        kept(odradek(&["check-config", &path], &environment)),
        "Records will be kept in /from-environment"
    );
    let run = odradek(&["check-config", &path, "--override", &a, "--override", &b], &environment);
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

#[test]
fn what_this_machine_does_not_have_is_found_without_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = file(&dir, "blocked", b"a file");
    let text = format!(
        "[log]\nlog_dirs = \"{blocked}/logs\"\n[runtime]\ncores = [0, 9999]\n[listeners]\n\
         listeners = \"A://192.0.2.7:9092,B://host.invalid:9093\"\n\
         listener_security_protocol_map = \"A:PLAINTEXT,B:PLAINTEXT\"\ninter_broker_listener_name = \"A\"\n\
         [metrics]\nadmin_listener = \"192.0.2.8:9644\"\n"
    );
    let path = file(&dir, "a.toml", text.as_bytes());
    let run = odradek(&["check-config", &path], &[]);
    assert_eq!(run.code, 78, "{}", run.stdout);
    let lines: Vec<_> = run.stdout.lines().filter(|line| line.contains(": error: ")).collect();
    let expected = [
        ("line 2: ", "/logs/.lock: Not a directory"),
        ("line 4: ", "core 9999 does not exist"),
        ("line 6: ", "host.invalid of listener B has no address"),
        ("line 10: ", "admin.listener 192.0.2.8:9644 cannot be listened on: "),
    ];
    assert_eq!(lines.len(), expected.len(), "{}", run.stdout);
    for (line, (place, what)) in lines.iter().zip(expected) {
        assert!(line.contains(&format!("error: {place}")) && line.contains(what), "{line}");
    }
    let text = text.replace("host.invalid", "127.0.0.1");
    let path = file(&dir, "b.toml", text.as_bytes());
    let run = odradek(&["check-config", &path], &[]);
    assert!(run.stdout.contains("line 6: listener A: 192.0.2.7:9092: Cannot assign"), "{}", run.stdout);
}

#[test]
fn faults_stand_in_the_order_of_the_files_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        &dir,
        "bad.toml",
        b"[general]\nbroker_id = 5000\n[log]\nzzz = 1\nlog_roll_ms = 0\nlog_segment_bytes = 1\nlog_cleaner_threads = 0\n[listeners]\naaa = 1\n",
    );
    let run = odradek(&["check-config", &path, "--override", "nonsense=1"], &[]);
    assert_eq!(run.code, 78);
    let faults = run.stdout.lines().filter_map(|line| line.split_once(": error: ")).map(|(_, fault)| fault);
    let places: Vec<_> = faults.map(|fault| fault.split(':').next().unwrap().to_owned()).collect();
    let lines = ["line 2", "line 4", "line 5", "line 6", "line 7", "line 9", "--override"];
    assert_eq!(places, lines, "{}", run.stdout);
}

#[test]
fn a_file_of_another_ending_is_read_as_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let logs = format!("log.dirs={}", dir.path().display());
    for (name, text) in [
        ("a.conf", "# Kafka's\nbroker.id=7\nlog.retention.hours=24\n"),
        ("b", "num.partitions 3\n"),
        ("c.conf", "# ours\n[general]\nbroker_id = 7\n"),
        ("d.cfg", "\"broker.id\" = 7\n"),
        ("e.cfg", "broker_rack = \"a\"\n"),
    ] {
        let path = file(&dir, name, text.as_bytes());
        let run = odradek(&["check-config", &path, "--override", &logs], &[]);
        assert_eq!(run.code, 0, "{name}: {}", run.stdout);
    }
}

#[test]
fn metadata_that_cannot_be_carried_is_refused_in_one_sentence_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    let log_dirs = format!("log.dirs={}", logs.display());
    let refused = |way: &str, settings: &[&str]| {
        let mut arguments = vec!["metadata", way, "--override", log_dirs.as_str()];
        arguments.extend(settings.iter().flat_map(|setting| ["--override", *setting]));
        let run = odradek(&arguments, &[]);
        assert_eq!((run.code, run.stdout.as_str()), (78, ""), "{}", run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        run.stderr
    };
    let unset = "odradek: zookeeper.connect is not set: it names the ZooKeeper that the metadata is carried to or from\n";
    assert_eq!(refused("export", &[]), unset);
    assert_eq!(refused("import", &[]), unset);
    assert!(refused("import", &["zookeeper.connect=a b"]).contains("must be host:port"));
    // Nobody listens on port 1.
    let nobody = ["zookeeper.connect=127.0.0.1:1", "zookeeper.connection.timeout.ms=200"];
    let file = logs.join("odradek-metadata.redb");
    let missing =
        format!("odradek: {} is not there: there is no embedded metadata store to export\n", file.display());
    assert_eq!(refused("export", &nobody), missing);
    let unreachable = "odradek: no session with ZooKeeper at 127.0.0.1:1 within 200 ms\n";
    assert_eq!(refused("import", &nobody), unreachable);
    assert!(!file.exists(), "no store is made before there is something to put into it");
}

/// What `serve` says to a configuration that it refuses, and that `check-config` says the same, with neither touching
/// anything.
fn refused(dir: &tempfile::TempDir, text: &str) -> String {
    let config = file(dir, "server.properties", text.as_bytes());
    let before = std::fs::read_dir(dir.path()).unwrap().count();
    let run = odradek(&["serve", "--config", &config], &[]);
    assert_eq!(run.code, 78, "{}", run.stderr);
    let sentences: Vec<_> = run.stderr.lines().filter_map(|line| line.strip_prefix("odradek: ")).collect();
    let [sentence] = sentences.as_slice() else { panic!("one sentence: {}", run.stderr) };
    let checked = odradek(&["check-config", &config], &[]);
    let sentence = sentence.strip_prefix(&format!("{config}: ")).unwrap_or(sentence);
    assert!(checked.code == 78 && checked.stdout.contains(sentence), "{sentence}: {}", checked.stdout);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before, "{sentence} leaves something");
    sentence.to_owned()
}

#[test]
fn what_serve_refuses_check_config_refuses_in_the_same_words() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = file(&dir, "blocked", b"a file");
    let logs = dir.path().join("logs");
    let listener = "listeners=PLAINTEXT://127.0.0.1:29644";
    for (settings, part) in [
        (format!("log.dirs={blocked}\n{listener}"), "blocked/.lock: Not a directory"),
        ("log.dirs=/proc/odradek\n".to_owned() + listener, "/proc/odradek/.lock: "),
        (format!("log.dirs={}\nlisteners=", logs.display()), "listeners names no listener"),
        (
            format!("log.dirs={}\n{listener}\nadmin.listener=127.0.0.1:29644", logs.display()),
            "admin.listener (127.0.0.1:29644) has the port of listener PLAINTEXT (127.0.0.1:29644)",
        ),
        (
            format!(
                "log.dirs={}\nlisteners=PLAINTEXT://:29644\nadmin.listener=127.0.0.1:29644",
                logs.display()
            ),
            "has the port of listener PLAINTEXT (0.0.0.0:29644)",
        ),
        (
            format!("log.dirs={}\n{listener}\ncores=2\nmemory.bytes=33554431", logs.display()),
            "memory.bytes is 33554431, which leaves 16777215 bytes to each of 2 shards",
        ),
        (
            format!("log.dirs={}\n{listener}\nmetadata.file={blocked}/below/store.redb", logs.display()),
            "blocked/below/store.redb: Not a directory",
        ),
    ] {
        let said = refused(&dir, &settings);
        assert!(said.contains(part), "{settings}: {said}");
    }
    assert!(!logs.exists());
}

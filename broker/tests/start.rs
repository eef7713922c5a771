//! The start and the stop of a real process: what the machine does not allow ends it with 78 and one sentence, before
//! anything is made on disk; a signal at any moment ends it with 0; after a crash each partition is served as soon as its
//! own log is ready (A-17).
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives real processes from outside"
)]

mod support;

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bench_harness::client::Client;
use bench_harness::content;
use protocol::messages::*;
use protocol::types::TimestampMs;
use support::{Broker, free_port, wait};

const LIMIT: Duration = Duration::from_secs(30);

/// A broker's command line behind a wrapper that sets limits, such as `prlimit --nofile=16`.
fn command(wrapper: &[&str], log_dir: &Path, settings: &[&str]) -> Command {
    let mut words: Vec<&str> = wrapper.to_vec();
    words.push(env!("CARGO_BIN_EXE_odradek"));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("serve");
    let own = format!("log.dirs={}", log_dir.display());
    let listener = format!("listeners=PLAINTEXT://127.0.0.1:{}", free_port());
    for setting in [own.as_str(), listener.as_str(), "admin.listener=none"].iter().chain(settings) {
        command.arg("--override").arg(setting);
    }
    command
}

/// Starts a broker that has to refuse; what it says in its one sentence.
fn refused(wrapper: &[&str], log_dir: &Path, settings: &[&str]) -> String {
    let mut child = command(wrapper, log_dir, settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let ended = wait(&mut child, LIMIT);
    let _ = child.kill();
    let Output { status, stderr, .. } = child.wait_with_output().expect("output");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert!(ended.is_some(), "it hangs: {said}");
    assert_eq!(status.code(), Some(78), "{said}");
    let sentences: Vec<_> = said.lines().filter(|line| line.starts_with("odradek: ")).collect();
    assert_eq!(sentences.len(), 1, "one sentence: {said}");
    assert!(!said.contains("panicked"), "{said}");
    sentences[0].to_owned()
}

fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("odradek-start-").tempdir().expect("temporary directory")
}

/// `odradek serve 2>&1 | head -1`: the log has a reader, and then none.
#[test]
fn a_broker_outlives_the_reader_of_its_log() {
    let dir = scratch();
    let mut child = command(&[], &dir.path().join("d"), &[])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let mut log = std::io::BufReader::new(child.stderr.take().expect("stderr"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut log, &mut line).expect("a line");
    drop(log);
    let deadline = Instant::now() + LIMIT;
    // The mark is made last of the start, and each step before it has told something.
    while !dir.path().join("d/meta.properties").exists() {
        assert!(
            Instant::now() < deadline && child.try_wait().expect("state").is_none(),
            "it has not started"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    let ended = wait(&mut child, LIMIT);
    let _ = child.kill();
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "after {line}");
}

/// Whether this process may do what only root may.
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id");
    id.stdout.starts_with(b"0\n")
}

/// Starts what follows as a user without rights.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all"];

#[test]
fn too_few_descriptors_are_said_with_the_number_that_is_needed() {
    let dir = scratch();
    let data = dir.path().join("data");
    for limit in [8, 16, 32, 64] {
        for shards in [1, 2] {
            let wrapper = ["prlimit", &format!("--nofile={limit}")];
            let said = refused(&wrapper, &data, &[&format!("cores={shards}")]);
            let needed = if shards == 1 { 69 } else { 106 };
            let sentence = format!("{shards} shards need {needed} descriptors at least");
            assert!(said.contains(&sentence), "{said}");
            assert!(said.contains(&format!("(ulimit -n) is {limit}")), "{said}");
        }
    }
    assert!(!data.exists(), "nothing is half made");
}

#[test]
fn the_soft_limit_on_descriptors_does_not_count() {
    let broker = Broker::start_wrapped(2, &[], &["prlimit", "--nofile=16:4096"]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", broker.pid())).expect("limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("line");
    assert_eq!(line.split_whitespace().nth(3), Some("4096"));
}

#[test]
fn more_partitions_than_descriptors_refuse_the_start_and_keep_the_mark_of_a_clean_stop() {
    let mut broker = Broker::start(1, &[]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("many", 60).expect("create");
    assert!(broker.stop().success());
    let marker = broker.log_dir().join(".kafka_cleanshutdown");
    assert!(marker.exists());
    let said = refused(&["prlimit", "--nofile=100"], &broker.log_dir(), &["cores=1"]);
    assert!(said.contains("holds 60 partitions, which need 129 descriptors"), "{said}");
    assert!(marker.exists(), "it is as clean as before");
    broker.launch();
    assert!(broker.stop().success());
}

#[test]
fn cores_that_do_not_exist_and_shards_beyond_reason_are_refused() {
    let dir = scratch();
    let data = dir.path().join("data");
    let said = refused(&["env"], &data, &["cores=[999]"]);
    assert!(said.contains("core 999 does not exist"), "{said}");
    let said = refused(&["env"], &data, &["cores=65000"]);
    assert!(said.contains("cores asks for 65000 shards: this process may use"), "{said}");
    // The bound is that of the cores that may be used, and so many are still started.
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a line");
    let one = allowed.trim().split(['-', ',']).next().expect("a core");
    let wrapper = ["taskset", "-c", one];
    let said = refused(&wrapper, &data, &["cores=9"]);
    assert!(said.contains("this process may use 1 cores, which carry 8"), "{said}");
    assert!(!data.exists(), "nothing is half made");
    let mut broker = Broker::start_wrapped(5, &[], &wrapper);
    assert!(broker.log().contains("more shards than cores"), "{}", broker.log());
    assert!(broker.stop().success());
}

#[test]
fn log_dirs_that_cannot_be_are_said() {
    let dir = scratch();
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("file");
    let said = refused(&["env"], &file, &[]);
    assert!(said.contains(&format!("{}", file.display())) && said.contains("Not a directory"), "{said}");
    let said = refused(&["env"], &file.join("below"), &[]);
    assert!(said.contains("Not a directory"), "{said}");
    let said = refused(&["env"], Path::new("/proc/odradek"), &[]);
    assert!(said.contains("/proc/odradek"), "{said}");
    if !is_root() {
        return;
    }
    let said = refused(&NOBODY, &dir.path().join("forbidden"), &[]);
    assert!(said.contains("Permission denied"), "{said}");
    // In a mount namespace of its own.
    let mount = "mount -t tmpfs -o ro none \"$1\" && shift && exec \"$@\"";
    let read_only = dir.path().join("ro");
    std::fs::create_dir(&read_only).expect("directory");
    let path = read_only.display().to_string();
    let said = refused(&["unshare", "-m", "sh", "-c", mount, "sh", &path], &read_only.join("data"), &[]);
    assert!(said.contains("Read-only file system"), "{said}");
}

#[test]
fn listeners_that_cannot_be_are_said_and_leave_nothing() {
    let dir = scratch();
    let data = dir.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").expect("port");
    let port = taken.local_addr().expect("address").port();
    let two = format!("listeners=PLAINTEXT://127.0.0.1:{},SECOND://127.0.0.1:{port}", free_port());
    let map = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT";
    let said = refused(&["env"], &data, &[&two, map]);
    assert!(said.contains(&format!("listener SECOND: 127.0.0.1:{port} is in use")), "{said}");
    let said = refused(&["env"], &data, &["listeners=PLAINTEXT://nowhere.invalid:9092"]);
    assert!(said.contains("nowhere.invalid of listener PLAINTEXT has no address"), "{said}");
    let said = refused(&["env"], &data, &["listeners=PLAINTEXT://192.0.2.1:9092"]);
    assert!(said.contains("192.0.2.1:9092") && said.contains("Cannot assign"), "{said}");
    assert!(!data.exists(), "nothing is half made");
    if is_root() {
        let said = refused(&NOBODY, &data, &["listeners=PLAINTEXT://127.0.0.1:81"]);
        assert!(said.contains("127.0.0.1:81: Permission denied"), "{said}");
    }
}

#[test]
fn threads_that_cannot_be_started_are_said() {
    if !is_root() {
        return;
    }
    let dir = scratch();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("mode");
    // Another user than that of other tests: the limit counts all processes of a user.
    for limit in [3, 5, 7, 9] {
        let processes = format!("--nproc={limit}");
        let wrapper =
            ["setpriv", "--reuid=64999", "--clear-groups", "--bounding-set=-all", "prlimit", &processes];
        let said = refused(&wrapper, &dir.path().join("data"), &["cores=2"]);
        assert!(
            said.contains("of the 12 threads of 2 shards can be started") || said.contains("signals"),
            "{said}"
        );
    }
    assert!(!dir.path().join("data").exists(), "nothing is half made");
}

/// Forbids io_uring_setup (425) to what it starts, as container runtimes do: a filter of three instructions.
const SECCOMP: &str = r#"
import ctypes, os, struct, sys
code = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 425) \
     + struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | int(sys.argv[1])) + struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000)
held = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(4, ctypes.addressof(held))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[2], sys.argv[2:])
"#;

#[test]
fn io_uring_that_a_sandbox_forbids_is_said() {
    let dir = scratch();
    let data = dir.path().join("data");
    for (errno, reason) in [("1", "Operation not permitted"), ("38", "Function not implemented")] {
        let said = refused(&["python3", "-c", SECCOMP, errno], &data, &[]);
        assert!(said.contains("io_uring is not available") && said.contains(reason), "{said}");
        assert!(said.contains("seccomp"), "{said}");
    }
    let said = refused(&["prlimit", "--memlock=65536"], &data, &[]);
    assert!(said.contains("(ulimit -l) is 65536 bytes"), "{said}");
    assert!(!data.exists(), "nothing is half made");
}

fn batch(partition: i32, number: u64, count: u32, bytes: usize) -> Vec<u8> {
    content::batch(partition, number, count, bytes, TimestampMs::new(1)).expect("batch").to_vec()
}

fn produce(client: &mut Client, topic: &str, partition: i32, number: u64) -> i16 {
    let answer = client.produce(topic, partition, -1, &batch(partition, number, 1, 100)).expect("produce");
    answer.expect("an answer").error_code
}

/// Produces until it is taken; a partition whose log is being opened is to be asked again.
fn produce_when_ready(client: &mut Client, topic: &str, partition: i32, number: u64) {
    let until = Instant::now() + LIMIT;
    loop {
        match produce(client, topic, partition, number) {
            0 => return,
            6 if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            error => panic!("partition {partition} of {topic}: error {error}"),
        }
    }
}

#[test]
fn a_large_log_that_is_recovered_keeps_no_small_one_from_being_served() {
    const SMALL: i32 = 50;
    for shards in [1, 2] {
        let mut broker =
            Broker::start_wrapped(shards, &[], &["env", "ODRADEK_LOG=info,broker::partition::loads=debug"]);
        let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
        client.create_topic("large", 1).expect("create");
        client.create_topic("small", SMALL).expect("create");
        for number in 0..110 {
            let large = batch(0, number * 2, 2, 450_000);
            let answer = client.produce("large", 0, 1, &large).expect("produce").expect("an answer");
            assert_eq!(answer.error_code, 0);
        }
        for partition in 0..SMALL {
            assert_eq!(produce(&mut client, "small", partition, 0), 0);
        }
        broker.kill();
        // What the kernel holds is otherwise taken as it is, and no log is long.
        broker.distrust();
        let before = broker.log().len();
        broker.launch();
        let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
        for partition in (0..SMALL).rev() {
            produce_when_ready(&mut client, "small", partition, 1);
        }
        produce_when_ready(&mut client, "large", 0, 220);
        assert!(broker.stop().success());
        let log = broker.log();
        let loaded: Vec<_> = log[before..].lines().filter(|line| line.contains("log loaded")).collect();
        assert_eq!(loaded.len(), 51, "{log}");
        let owner_is_done = loaded.iter().position(|line| line.contains("large-0")).expect("the large one");
        // On two shards the other one's logs come when they come: half of them are on the shard of the large one.
        let others = usize::try_from(SMALL).expect("few") / usize::from(shards);
        assert!(owner_is_done >= others, "{owner_is_done} before the large one: {loaded:#?}");
    }
}

/// Creates a topic; the name of one that was deleted is free a moment after that was answered, as in Kafka.
fn create_when_free(client: &mut Client, name: &str) {
    let until = Instant::now() + LIMIT;
    loop {
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: 1,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        let reply = client.call(5, &request).expect("create");
        match reply.message::<CreateTopicsResponse>().expect("answer").topics[0].error_code {
            0 => return,
            36 if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            error => panic!("creation of {name}: error {error}"),
        }
    }
}

#[test]
fn records_of_a_topic_created_again_survive_what_checkpoints_said_of_its_predecessor() {
    let mut broker = Broker::start(2, &[]);
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    client.create_topic("again", 1).expect("create");
    for number in 0..5 {
        assert_eq!(produce(&mut client, "again", 0, number), 0);
    }
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 4 }];
    let topics = vec![DeleteRecordsTopic { name: "again".into(), partitions }];
    let reply = client.call(1, &DeleteRecordsRequest { topics, timeout_ms: 5000 }).expect("delete records");
    assert_eq!(
        reply.message::<DeleteRecordsResponse>().expect("answer").topics[0].partitions[0].error_code,
        0
    );
    assert!(broker.stop().success());
    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    let names =
        DeleteTopicsRequest { topic_names: vec!["again".into()], timeout_ms: 20_000, ..Default::default() };
    let reply = client.call(3, &names).expect("delete topic");
    assert_eq!(reply.message::<DeleteTopicsResponse>().expect("answer").responses[0].error_code, 0);
    create_when_free(&mut client, "again");
    assert_eq!(produce(&mut client, "again", 0, 0), 0);
    broker.kill();
    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
    produce_when_ready(&mut client, "again", 0, 1);
    let fetched = client.fetch("again", 0, 0, Duration::from_millis(1)).expect("fetch");
    assert_eq!((fetched.error_code, fetched.high_watermark), (0, 2), "an acknowledged record is lost");
}

/// What is on disk after a stop at some moment, and whether it may be called clean.
fn stop_at(broker: &Broker, delay: Duration, signals: u32) {
    let mut child = broker
        .command()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    std::thread::sleep(delay);
    for _ in 0..signals {
        let _ = Command::new("kill").arg("-TERM").arg(child.id().to_string()).stderr(Stdio::null()).status();
    }
    let ended = wait(&mut child, LIMIT);
    let _ = child.kill();
    let output = child.wait_with_output().expect("output");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = ended.unwrap_or_else(|| panic!("it hangs after {delay:?}:\n{said}"));
    // Before the handler is there the kernel ends the process, which has done nothing yet.
    let is_early = status.signal() == Some(15) && !said.contains("starting");
    assert!(status.success() || is_early, "{status} after {delay:?}:\n{said}");
}

#[test]
fn a_signal_at_any_moment_of_a_start_ends_it_cleanly() {
    const PARTITIONS: i32 = 200;
    let rounds: u64 =
        std::env::var("ODRADEK_STOP_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let mut random: u64 = 0x1234_5678;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for shards in [1, 2] {
        let mut broker = Broker::start(shards, &[]);
        let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
        client.create_topic("many", PARTITIONS).expect("create");
        let mut written = 0;
        for round in 0..rounds / 2 {
            for partition in (0..PARTITIONS).step_by(7) {
                produce_when_ready(&mut client, "many", partition, written);
            }
            written += 1;
            // Every other round begins unclean.
            if round % 2 == 0 {
                broker.kill();
            } else {
                assert!(broker.stop().success(), "{}", broker.log());
            }
            let was_clean = broker.log_dir().join(".kafka_cleanshutdown").exists();
            assert_eq!(was_clean, round % 2 == 1);
            let signals = 1 + u32::try_from(below(2)).expect("small");
            stop_at(&broker, Duration::from_millis(below(300)), signals);
            broker.launch();
            client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
            for partition in (0..PARTITIONS).step_by(7) {
                produce_when_ready(&mut client, "many", partition, written);
                let fetched = client.fetch("many", partition, 0, Duration::from_millis(1)).expect("fetch");
                assert_eq!(fetched.error_code, 0);
                assert_eq!(
                    fetched.high_watermark,
                    i64::try_from(written).expect("few") + 1,
                    "partition {partition}"
                );
            }
            written += 1;
        }
        assert!(broker.stop().success(), "{}", broker.log());
    }
}

/// A start that reads its configuration from a pipe stands still before it has done anything: it hears signals all the
/// same, and leaves nothing.
#[test]
fn a_signal_before_anything_is_done_ends_the_start_with_exit_code_0() {
    let dir = scratch();
    let (config, log_dir) = (dir.path().join("config.toml"), dir.path().join("logs"));
    assert!(Command::new("mkfifo").arg(&config).status().expect("mkfifo").success());
    let mut child = command(&[], &log_dir, &[])
        .arg("--config")
        .arg(&config)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start");
    // There when it has begun to read.
    let held = std::fs::File::options().write(true).open(&config).expect("the other end");
    assert!(Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().expect("kill").success());
    let ended = wait(&mut child, LIMIT);
    let _ = child.kill();
    drop(held);
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "{ended:?}");
    assert!(!log_dir.exists());
}

/// Whether a process has a handler for SIGTERM.
fn hears_signals(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
    u64::from_str_radix(caught.trim(), 16).is_ok_and(|caught| caught & (1 << (15 - 1)) != 0)
}

#[test]
fn each_signal_that_is_heard_ends_a_start_with_exit_code_0_and_the_next_start_works() {
    const ROUNDS: u64 = 24;
    for shards in [1, 2] {
        let mut broker = Broker::prepared(shards, &[]);
        for round in 0..ROUNDS {
            let mut child = broker
                .command()
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("start");
            let deadline = Instant::now() + LIMIT;
            while !hears_signals(child.id()) {
                assert!(Instant::now() < deadline, "no handler");
            }
            std::thread::sleep(Duration::from_millis(100 * round / ROUNDS));
            let killed = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status();
            assert!(killed.expect("kill").success());
            let ended = wait(&mut child, LIMIT);
            let _ = child.kill();
            let output = child.wait_with_output().expect("output");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(ended.and_then(|status| status.code()), Some(0), "round {round}: {ended:?}\n{said}");
        }
        broker.launch();
        let mut client = Client::connect(&broker.bootstrap(), LIMIT).expect("connect");
        client.create_topic("after", 1).expect("create");
        assert!(broker.stop().success(), "{}", broker.log());
    }
}

/// What is refused when the directories are locked already and the store is to be opened.
#[test]
fn a_start_that_is_refused_late_leaves_what_was_there() {
    let dir = scratch();
    let (new, old) = (dir.path().join("a/b"), dir.path().join("old"));
    std::fs::create_dir(&old).expect("directory");
    let nobody = ["zookeeper.connect=127.0.0.1:1", "zookeeper.connection.timeout.ms=200"];
    for data in [&new, &old] {
        let said = refused(&["env"], data, &nobody);
        assert!(said.contains("no session with ZooKeeper at 127.0.0.1:1"), "{said}");
    }
    assert!(!dir.path().join("a").exists(), "nothing is half made");
    assert_eq!(std::fs::read_dir(&old).expect("it was there").count(), 0);
    let store = old.join("odradek-metadata.redb");
    std::fs::write(&store, "no store").expect("file");
    let said = refused(&["env"], &old, &[]);
    assert!(said.contains("odradek-metadata.redb: "), "{said}");
    let left = std::fs::read_dir(&old).expect("directory").map(|entry| entry.expect("entry").file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["odradek-metadata.redb"]);
    assert_eq!(std::fs::read_to_string(&store).expect("file"), "no store");
    // The next start finds all as it was.
    std::fs::remove_file(&store).expect("removed");
    let mut broker = Broker::prepared(1, &[&format!("log.dirs={}", old.display())]);
    broker.launch();
    assert!(broker.stop().success());
}

/// The values of a line of the log, by their names.
fn value<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("{name} in {line}"));
    rest.split(' ').next().unwrap_or_default().trim_matches('"')
}

#[test]
fn the_log_says_in_two_lines_who_starts_and_that_it_is_ready() {
    let strict = "storage.durability.mode=strict";
    for (shards, settings, durability) in [(1, &[][..], "kafka"), (2, &[strict, "broker.id=7"][..], "strict")]
    {
        let mut broker = Broker::start(shards, settings);
        let deadline = Instant::now() + LIMIT;
        while !broker.log().contains(": ready ") {
            assert!(Instant::now() < deadline, "{}", broker.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        let log = broker.log();
        assert!(!log.contains('\u{1b}'), "colours in a file: {log}");
        let lines = |what: &str| log.lines().filter(|line| line.contains(what)).collect::<Vec<_>>();
        let (starting, ready) = (lines(": starting "), lines(": ready "));
        assert_eq!((starting.len(), ready.len()), (1, 1), "{log}");
        let (starting, ready) = (starting[0], ready[0]);
        assert_eq!(value(starting, "version"), env!("CARGO_PKG_VERSION"));
        assert_eq!(value(starting, "shards"), shards.to_string());
        assert_eq!(value(starting, "log_dirs"), broker.log_dir().display().to_string());
        assert_eq!(value(starting, "durability"), durability);
        assert!(value(starting, "metadata").ends_with("odradek-metadata.redb"), "{starting}");
        let meta = std::fs::read_to_string(broker.log_dir().join("meta.properties")).expect("identity");
        let of_meta =
            |key: &str| meta.lines().find_map(|line| line.strip_prefix(key)).expect("a line").to_owned();
        assert_eq!(value(ready, "broker_id"), of_meta("broker.id="));
        assert_eq!(value(ready, "cluster_id"), of_meta("cluster.id="));
        assert_eq!(value(ready, "listeners"), format!("PLAINTEXT://{}", broker.bootstrap()));
        assert!(value(ready, "took_ms").parse::<u32>().is_ok_and(|ms| ms > 0), "{ready}");
        // Each start says it.
        assert!(broker.stop().success());
        broker.launch();
        assert!(broker.stop().success());
        assert_eq!(broker.log().matches(": starting ").count(), 2, "{}", broker.log());
    }
}

/// Runs what follows on a terminal of its own, whose output is that of the script.
const TERMINAL: &str = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";

#[test]
fn the_log_is_coloured_on_a_terminal_unless_that_is_not_wished() {
    let dir = scratch();
    // Something to warn of, and an end.
    let settings = ["num.io.threads=9", "admin.listener=nowhere.invalid:1"];
    for (wrapper, no_color, is_coloured) in [
        (&["env"][..], None, false),
        (&["env"], Some("1"), false),
        (&["python3", "-c", TERMINAL], None, true),
        (&["python3", "-c", TERMINAL], Some(""), true),
        (&["python3", "-c", TERMINAL], Some("1"), false),
    ] {
        let mut command = command(wrapper, &dir.path().join("data"), &settings);
        command.env_remove("NO_COLOR").envs(no_color.map(|value| ("NO_COLOR", value)));
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().expect("run");
        let said = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert_eq!(status.code(), Some(78), "{said}");
        assert!(said.contains("num.io.threads is accepted and has no effect"), "{said}");
        assert_eq!(said.contains('\u{1b}'), is_coloured, "{wrapper:?} {no_color:?}: {said}");
    }
}

#[test]
fn a_level_of_the_log_that_is_none_is_said() {
    let dir = scratch();
    let said = |level: &str| {
        let mut command =
            command(&[], &dir.path().join("data"), &["num.io.threads=9", "admin.listener=nowhere.invalid:1"]);
        let output = command.env("ODRADEK_LOG", level).stdin(Stdio::null()).output().expect("run");
        assert_eq!(output.status.code(), Some(78));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (
            said.contains("ODRADEK_LOG is not understood, the level is info"),
            said.contains("num.io.threads is accepted"),
        )
    };
    assert_eq!(said("broker=loud"), (true, true));
    assert_eq!(said("error"), (false, false));
    assert_eq!(said("error,odradek=warn"), (false, true));
    assert_eq!(said(""), (false, true));
}

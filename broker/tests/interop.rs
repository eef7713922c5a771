//! Clients and tools from Maven and the Go module proxy against a real process: Java clients, Go clients, Kafka's own
//! command line tools, and Kafka's dump-log on our segments. What cannot be fetched is named and counted as skipped;
//! with `ODRADEK_INTEROP=require` it counts as failed. Arguments choose steps by name.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "drives real processes from outside")]
#![allow(clippy::print_stdout, reason = "a test runner reports")]

#[path = "clients/child.rs"]
mod child;
#[path = "clients/compaction.rs"]
mod compaction;
#[path = "clients/directory.rs"]
mod directory;
#[path = "clients/group_turns.rs"]
mod group_turns;
#[path = "clients/handover.rs"]
mod handover;
#[path = "clients/kafka.rs"]
mod kafka;
#[path = "clients/load.rs"]
mod load;
#[path = "clients/on_zookeeper.rs"]
mod on_zookeeper;
mod support;
#[path = "clients/tally.rs"]
mod tally;
#[path = "clients/zookeeper.rs"]
mod zookeeper;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use child::run;
use support::Broker;
use tally::{Tally, Verdict, cache};
use zookeeper::ZooKeeper;

const KAFKA_VERSION: &str = "3.9.1";
const NEWEST_CLIENTS: &str = "4.4.0";
const MAVEN_DEPENDENCIES: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies";
/// What the newest Go clients ask for (`clients/go/go.mod`).
const GO_OLDEST: (u32, u32) = (1, 26);
const FETCH_LIMIT: Duration = Duration::from_secs(600);
const STEP_LIMIT: Duration = Duration::from_secs(480);

/// What the broker of most steps is told: groups do not wait, and what is deleted makes room.
const MAIN: [&str; 2] = ["group.initial.rebalance.delay.ms=100", "log.segment.delete.delay.ms=1000"];

/// Room for temporary directories, and for clients and tools.
const ROOM_BYTES: u64 = 2_000_000_000;
const CACHE_BYTES: u64 = 1_000_000_000;

/// Jars of Maven artifacts with what they depend on, fetched once into the cache.
fn maven(name: &str, artifacts: &[&str]) -> Result<PathBuf, String> {
    let directory = cache().join(name);
    let libs = directory.join("libs");
    if directory.join("complete").exists() {
        return Ok(libs);
    }
    if let Some(program) = tally::missing(&["mvn"]) {
        return Err(format!("{program} is not installed"));
    }
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let dependencies: String = artifacts
        .iter()
        .filter_map(|artifact| artifact.rsplit_once(':').and_then(|(ga, v)| ga.split_once(':').map(|(g, a)| (g, a, v))))
        .map(|(g, a, v)| format!("<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version></dependency>"))
        .collect();
    let pom = format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion><groupId>interop</groupId>\
         <artifactId>{name}</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
    );
    std::fs::write(directory.join("pom.xml"), pom).map_err(|error| error.to_string())?;
    let mut command = Command::new("mvn");
    command.args(["-q", "-B", MAVEN_DEPENDENCIES, "-DoutputDirectory=libs"]).current_dir(&directory);
    run(&mut command, FETCH_LIMIT)?;
    std::fs::write(directory.join("complete"), "").map_err(|error| error.to_string())?;
    Ok(libs)
}

fn kafka_libs() -> Result<PathBuf, String> {
    maven(
        &format!("kafka-{KAFKA_VERSION}"),
        &[
            &format!("org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"),
            &format!("org.apache.kafka:kafka-tools:{KAFKA_VERSION}"),
        ],
    )
}

fn client_libs(version: &str) -> Result<PathBuf, String> {
    maven(&format!("kafka-clients-{version}"), &[&format!("org.apache.kafka:kafka-clients:{version}")])
}

fn class_path(libs: &Path, classes: Option<&Path>) -> String {
    let jars = format!("{}/*", libs.display());
    classes.map_or(jars.clone(), |classes| format!("{}:{jars}", classes.display()))
}

fn java_suite(bootstrap: &str, version: &str) -> Verdict {
    if let Some(program) = tally::missing(&["java", "javac"]) {
        return Verdict::Skipped(format!("{program} is not installed"));
    }
    let libs = match client_libs(version) {
        Ok(libs) => libs,
        Err(why) => return Verdict::Skipped(format!("kafka-clients {version} is not to be had: {why}")),
    };
    let classes = tempfile::tempdir().expect("temporary directory");
    let mut compile = Command::new("javac");
    compile
        .args(["-cp", &class_path(&libs, None), "-d"])
        .arg(classes.path())
        .args(["Suite.java", "Groups.java"].map(|source| tally::suites_dir().join("java").join(source)));
    if let Err(why) = run(&mut compile, STEP_LIMIT) {
        return Verdict::Failed(why);
    }
    let mut suite = Command::new("java");
    suite.args(["-Xmx512m", "-cp", &class_path(&libs, Some(classes.path())), "Suite", bootstrap, version]);
    tally::judge_suite(run(&mut suite, STEP_LIMIT))
}

/// A Go command in the suites' module. An older Go may fetch the one that the module names, unless it was told not to.
fn go(arguments: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.args(arguments).current_dir(tally::suites_dir().join("go"));
    if std::env::var_os("GOTOOLCHAIN").is_none() && go_version().is_some_and(|found| found < GO_OLDEST) {
        command.env("GOTOOLCHAIN", "auto");
    }
    command
}

/// Major and minor version of the Go on the `PATH`.
fn go_version() -> Option<(u32, u32)> {
    let text = run(Command::new("go").args(["env", "GOVERSION"]).current_dir("/"), STEP_LIMIT).ok()?;
    let mut numbers = text.trim().strip_prefix("go")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The program that holds all Go suites; the outer error says why it is not to be had, the inner one that ours is wrong.
fn go_suites() -> Result<Result<PathBuf, String>, String> {
    if let Some(program) = tally::missing(&["go"]) {
        return Err(format!("{program} is not installed"));
    }
    let about = |why| format!("{why}\nGo {GO_OLDEST:?} is wanted, here is {:?}", go_version());
    run(&mut go(&["mod", "download"]), FETCH_LIMIT).map_err(about)?;
    let binary = cache().join("go-suites");
    let built = run(go(&["build", "-o"]).arg(&binary).arg("."), FETCH_LIMIT);
    Ok(built.map(|_| binary))
}

fn go_suite(suites: &Result<Result<PathBuf, String>, String>, bootstrap: &str, client: &str) -> Verdict {
    match suites {
        Ok(Ok(binary)) => tally::judge_suite(run(Command::new(binary).args([client, bootstrap]), STEP_LIMIT)),
        Ok(Err(why)) => Verdict::Failed(why.clone()),
        Err(why) => Verdict::Skipped(format!("the Go clients are not to be had: {why}")),
    }
}

/// The main class of one of Kafka's tools.
fn java(libs: &Path, class: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx512m", "-cp", &class_path(libs, None), class]).args(arguments);
    command
}

/// Runs such a class.
fn tool(libs: &Path, class: &str, arguments: &[&str]) -> Result<String, String> {
    run(&mut java(libs, class, arguments), STEP_LIMIT)
}

fn expect(text: &str, part: &str) -> Result<(), String> {
    if text.contains(part) { Ok(()) } else { Err(format!("{part:?} is missing in:\n{text}")) }
}

fn kafka_topics(libs: &Path, bootstrap: &str) -> Result<String, String> {
    const CLASS: &str = "org.apache.kafka.tools.TopicCommand";
    let at = ["--bootstrap-server", bootstrap];
    let topics = |more: &[&str]| tool(libs, CLASS, &[&at[..], more].concat());
    topics(&[
        "--create",
        "--topic",
        "tools",
        "--partitions",
        "3",
        "--replication-factor",
        "1",
        "--config",
        "retention.ms=12345",
    ])?;
    expect(&topics(&["--list"])?, "tools")?;
    let described = topics(&["--describe", "--topic", "tools"])?;
    expect(&described, "PartitionCount: 3")?;
    expect(&described, "retention.ms=12345")?;
    topics(&["--alter", "--topic", "tools", "--partitions", "5"])?;
    expect(&topics(&["--describe", "--topic", "tools"])?, "PartitionCount: 5")?;
    topics(&["--delete", "--topic", "tools"])?;
    if topics(&["--list"])?.lines().any(|line| line == "tools") {
        return Err("the topic is listed after its deletion".to_owned());
    }
    Ok(String::new())
}

fn kafka_configs(libs: &Path, bootstrap: &str) -> Result<String, String> {
    tool(
        libs,
        "org.apache.kafka.tools.TopicCommand",
        &["--bootstrap-server", bootstrap, "--create", "--topic", "configured"],
    )?;
    let topic = ["--bootstrap-server", bootstrap, "--entity-type", "topics", "--entity-name", "configured"];
    let configs = |more: &[&str]| tool(libs, "kafka.admin.ConfigCommand", &[&topic[..], more].concat());
    configs(&["--alter", "--add-config", "max.message.bytes=4242,cleanup.policy=[compact,delete]"])?;
    let described = configs(&["--describe"])?;
    expect(&described, "max.message.bytes=4242")?;
    expect(&described, "cleanup.policy=compact,delete")?;
    configs(&["--alter", "--delete-config", "max.message.bytes"])?;
    if configs(&["--describe"])?.contains("max.message.bytes") {
        return Err("a deleted config is still described".to_owned());
    }
    let broker = ["--bootstrap-server", bootstrap, "--entity-type", "brokers", "--all", "--describe"];
    expect(&tool(libs, "kafka.admin.ConfigCommand", &broker)?, "log.retention.hours=168")?;
    Ok(String::new())
}

/// Settings under which our answers are compared with Kafka's: of each layer of names something, a secret, an internal
/// key, and one that an authorizer defines.
const COMPARED: [&str; 9] = [
    "broker.id=3",
    "log.retention.minutes=7",
    "log.roll.hours=5",
    "log.cleaner.threads=3",
    "unclean.leader.election.enable=true",
    "ssl.keystore.type=JKS",
    "password.encoder.secret=hunter2",
    "log.initial.task.delay.ms=7",
    "super.users=",
];

/// What we tell of configurations and which values we take, against Kafka's own classes in one Java process.
fn configs_as_kafkas(libs: &Path) -> Verdict {
    let broker = Broker::start(1, &COMPARED);
    let (listener, logs) = (
        format!("listeners=PLAINTEXT://{}", broker.bootstrap()),
        format!("log.dirs={}", broker.log_dir().display()),
    );
    let classes = match directory::compiled(libs, "Configs.java") {
        Ok(classes) => classes,
        Err(why) => return Verdict::Failed(why),
    };
    let mut compare = Command::new("java");
    compare.args([
        "-Xmx512m",
        "-cp",
        &class_path(libs, Some(classes.path())),
        "Configs",
        &broker.bootstrap(),
    ]);
    compare.args([&listener, &logs]).args(COMPARED);
    tally::judge_suite(run(&mut compare, STEP_LIMIT))
}

/// Two log dirs: moves between them by Kafka's clients, what Kafka's tool tells of them, and its judgement of the files.
fn log_dirs(libs: &Path, shards: u16) -> Result<String, String> {
    let data = tempfile::tempdir().expect("temporary directory");
    let [one, other] = ["a", "b"].map(|name| data.path().join(name));
    let dirs = format!("log.dirs={},{}", one.display(), other.display());
    let mut broker = Broker::start(shards, &[&dirs]);
    let classes = directory::compiled(libs, "LogDirs.java")?;
    let mut suite = Command::new("java");
    suite.args(["-Xmx512m", "-cp", &class_path(libs, Some(classes.path())), "LogDirs", &broker.bootstrap()]);
    let told = run(suite.arg(&one).arg(&other), STEP_LIMIT)?;
    if told.lines().any(|line| line.starts_with("FAILED ")) || !told.contains("ok ") {
        return Err(told);
    }
    let at = broker.bootstrap();
    let described =
        tool(libs, "org.apache.kafka.tools.LogDirsCommand", &["--describe", "--bootstrap-server", &at])?;
    for dir in [&one, &other] {
        expect(&described, &format!("\"logDir\":\"{}\"", dir.display()))?;
    }
    expect(&described, "\"isFuture\":false")?;
    if !broker.stop().success() {
        return Err(format!("no clean stop:\n{}", broker.log()));
    }
    for dir in [&one, &other] {
        directory::dump_log(libs, dir, &[])?;
        directory::checkpoints(libs, dir)?;
    }
    Ok(format!("{} checks", told.lines().filter(|line| line.starts_with("ok ")).count()))
}

/// A word count of Kafka Streams, whose instances come and go.
fn kafka_streams(bootstrap: &str) -> Verdict {
    if let Some(program) = tally::missing(&["java", "javac"]) {
        return Verdict::Skipped(format!("{program} is not installed"));
    }
    let name = format!("kafka-streams-{KAFKA_VERSION}");
    let libs = match maven(&name, &[&format!("org.apache.kafka:kafka-streams:{KAFKA_VERSION}")]) {
        Ok(libs) => libs,
        Err(why) => return Verdict::Skipped(format!("{name} is not to be had: {why}")),
    };
    let classes = match directory::compiled(&libs, "WordCount.java") {
        Ok(classes) => classes,
        Err(why) => return Verdict::Failed(why),
    };
    let state = tempfile::tempdir().expect("temporary directory");
    let mut count = Command::new("java");
    count.arg(format!("-Djava.io.tmpdir={}", state.path().display()));
    count.args(["-Xmx512m", "-cp", &class_path(&libs, Some(classes.path())), "WordCount", bootstrap]);
    tally::judge_suite(run(&mut count, STEP_LIMIT))
}

/// Of the rows that `kafka-consumer-groups --describe` prints of a group: partition, offset and lag, sorted.
fn described_offsets(text: &str, group: &str) -> Vec<[String; 3]> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut offsets: Vec<_> = rows
        .filter(|row| row.first() == Some(&group) && row.len() > 5)
        .map(|row| [2, 3, 5].map(|column: usize| row.get(column).copied().unwrap_or_default().to_owned()))
        .collect();
    offsets.sort();
    offsets
}

fn consumer_groups(libs: &Path, bootstrap: &str, more: &[&str]) -> Result<String, String> {
    const CLASS: &str = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
    tool(libs, CLASS, &[&["--bootstrap-server", bootstrap], more].concat())
}

/// Every mode of `kafka-consumer-groups`: over a group with a member, and once that is gone.
fn kafka_consumer_groups(libs: &Path, bootstrap: &str) -> Result<String, String> {
    let groups = |more: &[&str]| consumer_groups(libs, bootstrap, more);
    let create = ["--bootstrap-server", bootstrap, "--create", "--topic", "grouped", "--partitions", "2"];
    tool(libs, "org.apache.kafka.tools.TopicCommand", &create)?;
    run(&mut perf(libs, bootstrap, "grouped", 500, "none"), STEP_LIMIT)?;
    let mut reader = Command::new("java");
    reader.args([
        "-Xmx512m",
        "-cp",
        &class_path(libs, None),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
    ]);
    reader.args([
        "--bootstrap-server",
        bootstrap,
        "--topic",
        "grouped",
        "--group",
        "live",
        "--from-beginning",
    ]);
    for property in ["auto.commit.interval.ms=100", "session.timeout.ms=6000"] {
        reader.args(["--consumer-property", property]);
    }
    reader.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let reader = Running(reader.spawn().map_err(|error| error.to_string())?);
    let deadline = Instant::now() + STEP_LIMIT;
    let is_read = |text: &str| {
        let offsets = described_offsets(text, "live");
        offsets.len() == 2 && offsets.iter().all(|[_, _, lag]| lag == "0")
    };
    let offsets = ["--describe", "--group", "live", "--offsets"];
    let mut described = groups(&offsets)?;
    while !is_read(&described) {
        if Instant::now() > deadline {
            return Err(format!("the group does not read:\n{described}"));
        }
        described = groups(&offsets)?;
    }
    expect(&described, "/127.0.0.1")?;
    expect(&groups(&["--describe", "--group", "live", "--members", "--verbose"])?, "(0,1)")?;
    expect(&groups(&["--describe", "--group", "live", "--state"])?, "Stable")?;
    expect(&groups(&["--list"])?, "live")?;
    expect(&groups(&["--list", "--state", "stable"])?, "live")?;
    let reset = ["--reset-offsets", "--group", "live", "--topic", "grouped", "--to-earliest", "--execute"];
    expect(&groups(&reset)?, "can only be reset if the group 'live' is inactive")?;
    expect(&groups(&["--delete", "--group", "live"])?, "GroupNotEmptyException")?;
    let deletion = groups(&["--delete-offsets", "--group", "live", "--topic", "grouped"])?;
    expect(&deletion, "actively subscribed to it")?;
    drop(reader);
    // A member that was killed goes when its session ends.
    while !groups(&["--describe", "--group", "live", "--state"])?.contains("Empty") {
        if Instant::now() > deadline {
            return Err("a member that was killed stays".to_owned());
        }
    }
    kafka_consumer_groups_of_an_empty_group(libs, bootstrap, is_read)
}

fn kafka_consumer_groups_of_an_empty_group(
    libs: &Path,
    bootstrap: &str,
    is_read: impl Fn(&str) -> bool,
) -> Result<String, String> {
    let groups = |more: &[&str]| consumer_groups(libs, bootstrap, more);
    let reset = ["--reset-offsets", "--group", "live", "--topic", "grouped", "--to-earliest"];
    let offsets = ["--describe", "--group", "live", "--offsets"];
    groups(&[&reset[..], &["--dry-run"]].concat())?;
    if !is_read(&groups(&offsets)?) {
        return Err("a dry run has reset offsets".to_owned());
    }
    groups(&[&reset[..], &["--execute"]].concat())?;
    let described = groups(&offsets)?;
    let found = described_offsets(&described, "live");
    if found.len() != 2 || found.iter().any(|[_, offset, _]| offset != "0") {
        return Err(format!("offsets are not reset:\n{described}"));
    }
    groups(&["--reset-offsets", "--group", "made", "--topic", "grouped:0", "--to-offset", "7", "--execute"])?;
    let described = groups(&["--describe", "--all-groups"])?;
    match described_offsets(&described, "made").as_slice() {
        [[partition, offset, _]] if partition == "0" && offset == "7" => {}
        _ => return Err(format!("a group that was made by a reset is not described:\n{described}")),
    }
    groups(&["--delete-offsets", "--group", "live", "--topic", "grouped:1"])?;
    let described = groups(&offsets)?;
    if described_offsets(&described, "live").len() != 1 {
        return Err(format!("an offset that was deleted is described:\n{described}"));
    }
    expect(&groups(&["--delete", "--group", "live", "--group", "made"])?, "was successful")?;
    if groups(&["--list"])?.lines().any(|line| line == "live" || line == "made") {
        return Err("a group is listed after its deletion".to_owned());
    }
    Ok(String::new())
}

/// Kafka's load tool, as a command that sends so many records.
fn perf(libs: &Path, bootstrap: &str, topic: &str, records: u32, codec: &str) -> Command {
    let (records, server, compression) =
        (records.to_string(), format!("bootstrap.servers={bootstrap}"), format!("compression.type={codec}"));
    let mut command = Command::new("java");
    command.args(["-Xmx512m", "-cp", &class_path(libs, None), "org.apache.kafka.tools.ProducerPerformance"]);
    command.args([
        "--topic",
        topic,
        "--num-records",
        &records,
        "--record-size",
        "1000",
        "--throughput",
        "-1",
    ]);
    command.args(["--producer-props", &server, &compression]);
    command
}

fn perf_test(libs: &Path, bootstrap: &str) -> Result<String, String> {
    let mut rates = Vec::new();
    for codec in ["none", "lz4"] {
        let text = run(&mut perf(libs, bootstrap, "perf", 50_000, codec), STEP_LIMIT)?;
        expect(&text, "50000 records sent")?;
        // What the tool complains of comes after what it prints; the summary is the last line of all records.
        let summary = text.lines().rfind(|line| line.starts_with("50000 records sent"));
        let rate =
            summary.and_then(|line| line.split(", ").nth(1)).filter(|rate| rate.contains("records/sec"));
        rates.push(format!("{codec}: {}", rate.ok_or_else(|| format!("no rate in:\n{text}"))?));
    }
    Ok(rates.join(", "))
}

/// Bytes of all segments of a topic's first partition.
fn stored_bytes(log_dir: &Path, topic: &str) -> u64 {
    let files = std::fs::read_dir(log_dir.join(format!("{topic}-0"))).into_iter().flatten().flatten();
    let logs = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "log"));
    logs.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Ends a child when dropped, so that no failure leaves one behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `kill -9` in the middle of an idempotent load; afterwards the directory is as sound as any, and Kafka's log finds in
/// what the kill left what we found (T-3) and in our snapshot the producers that it found in the records (T-14).
fn dump_log_after_kill(libs: &Path, broker: &mut Broker) -> Result<String, String> {
    broker.launch();
    let at = broker.bootstrap();
    let create =
        ["--bootstrap-server", &at, "--create", "--topic", "killed", "--config", "segment.bytes=3000000"];
    tool(libs, "org.apache.kafka.tools.TopicCommand", &create)?;
    if broker.log_dir().join("perf-0").exists() {
        // It has been looked at, and is most of what is there.
        load::delete(&at, "perf")?;
    }
    let partition = broker.log_dir().join("killed-0");
    let mut load = perf(libs, &broker.bootstrap(), "killed", 100_000_000, "lz4");
    load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let load = Running(load.spawn().map_err(|error| error.to_string())?);
    let deadline = Instant::now() + STEP_LIMIT;
    while stored_bytes(&broker.log_dir(), "killed") < 20_000_000 {
        if Instant::now() > deadline || !broker.is_running() {
            return Err(format!("the load does not arrive:\n{}", broker.log()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    broker.kill();
    drop(load);
    let killed = directory::as_kafka_loads(libs, "killed", &partition)?;
    broker.launch();
    broker.await_loaded();
    let stopped = broker.stop();
    if !stopped.success() {
        return Err(format!("the broker stopped with {stopped}"));
    }
    // Kafka's tool maps indexes, and ends with a fault where a running broker cuts one that it writes anew.
    let recovered = directory::dump_log(libs, &broker.log_dir(), &[])?;
    directory::checkpoints(libs, &broker.log_dir())?;
    let clean = directory::as_kafka_loads(libs, "clean", &partition)?;
    if killed != clean || killed.ends_with("producers ") {
        return Err(format!("after the kill Kafka finds\n{killed}\nand in what we recovered\n{clean}"));
    }
    Ok(recovered)
}

/// The steps that need Kafka's tools, while the broker runs and then on its directory.
fn with_tools(libs: &Path, broker: &mut Broker, step: &mut dyn FnMut(&str, &mut dyn FnMut() -> Verdict)) {
    let at = broker.bootstrap();
    step("kafka-topics", &mut || kafka_topics(libs, &at).into());
    step("kafka-configs", &mut || kafka_configs(libs, &at).into());
    step("configs as Kafka's", &mut || configs_as_kafkas(libs));
    step("kafka-producer-perf-test", &mut || perf_test(libs, &at).into());
    step("kafka-consumer-groups", &mut || kafka_consumer_groups(libs, &at).into());
    let stopped = broker.stop();
    step("clean stop", &mut || match stopped.success() {
        true => Verdict::Passed(String::new()),
        false => Verdict::Failed(format!("the broker stopped with {stopped}")),
    });
    let log_dir = broker.log_dir();
    step("kafka-dump-log", &mut || directory::dump_log(libs, &log_dir, &[]).into());
    step("kafka-dump-log --offsets-decoder", &mut || directory::offsets(libs, &log_dir).into());
    step("checkpoints", &mut || directory::checkpoints(libs, &log_dir).into());
    step("kafka-dump-log after kill -9", &mut || dump_log_after_kill(libs, broker).into());
    step("compaction as Kafka's", &mut || compaction::as_kafkas(libs).into());
}

/// The metadata store on the ZooKeeper of Kafka's release.
fn zookeeper_steps(libs: &Path, step: &mut dyn FnMut(&str, &mut dyn FnMut() -> Verdict)) {
    let mut server = None;
    step("starts", &mut || match ZooKeeper::start(libs) {
        Ok(started) => {
            server = Some(started);
            Verdict::Passed(String::new())
        }
        Err(why) => Verdict::Failed(why),
    });
    let Some(server) = server else { return };
    for (name, test) in zookeeper::tests(server.port, libs) {
        step(name, &mut || zookeeper::judge(&test));
    }
    step("a broker serves and comes back", &mut || on_zookeeper::serves_and_comes_back(&server, libs).into());
    step("a broker outlives its session", &mut || {
        on_zookeeper::goes_on_after_its_session_has_expired(&server, libs).into()
    });
    step("metadata moves between the stores", &mut || {
        on_zookeeper::moves_between_the_stores(&server, libs).into()
    });
    step("one of two racing brokers serves", &mut || {
        on_zookeeper::one_of_two_racing_brokers_serves(&server).into()
    });
    step("what another broker writes into a config is applied", &mut || {
        on_zookeeper::a_config_of_another_broker_is_applied(&server).into()
    });
    step("lock and durability from Kafka and back", &mut || {
        handover::lock_and_durability(&server, libs).into()
    });
    step("ours and Kafka take turns on a directory", &mut || kafka::takes_turns(&server, libs).into());
}

/// Why this machine has too little room.
fn expect_room() -> Result<(), String> {
    let cache = cache();
    std::fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    child::expect_room(&std::env::temp_dir(), ROOM_BYTES, "what is tried here")?;
    child::expect_room(&cache, CACHE_BYTES, "what is fetched for it")
}

fn main() -> ExitCode {
    if let Err(why) = expect_room() {
        println!("{why}");
        return ExitCode::FAILURE;
    }
    let chosen = tally::chosen();
    let is_wanted = |step: &str| chosen.is_empty() || chosen.iter().any(|c| step.contains(c.as_str()));
    let mut tally = Tally::default();
    let tools = match tally::missing(&["java", "javac"]) {
        Some(program) => Err(format!("{program} is not installed")),
        None => kafka_libs(),
    };
    if let Ok(libs) = &tools {
        zookeeper_steps(libs, &mut |name, run| {
            let name = format!("zookeeper: {name}");
            if is_wanted(&name) {
                let started = Instant::now();
                let verdict = run();
                tally.count(&name, started, verdict);
            }
        });
    }
    const GO: [&str; 3] = ["franz-go", "sarama", "kafka-go"];
    let go_suites = if GO.into_iter().any(is_wanted) { go_suites() } else { Err("nobody asked".to_owned()) };
    for shards in [1, 2] {
        let mut broker = Broker::start(shards, &MAIN);
        let at = broker.bootstrap();
        let mut step = |name: &str, run: &mut dyn FnMut() -> Verdict| {
            if is_wanted(name) {
                let started = Instant::now();
                let verdict = run();
                tally.count(&format!("{name} on {shards} shard(s)"), started, verdict);
            }
        };
        for version in [KAFKA_VERSION, NEWEST_CLIENTS] {
            step(&format!("java {version}"), &mut || java_suite(&at, version));
        }
        for client in GO {
            step(client, &mut || go_suite(&go_suites, &at, client));
        }
        step("kafka-streams", &mut || kafka_streams(&at));
        match &tools {
            Ok(libs) => {
                step("log dirs", &mut || log_dirs(libs, shards).into());
                with_tools(libs, &mut broker, &mut step);
            }
            Err(why) => step("Kafka's tools", &mut || {
                Verdict::Skipped(format!("Kafka {KAFKA_VERSION} is not to be had: {why}"))
            }),
        }
    }
    tally.finish()
}

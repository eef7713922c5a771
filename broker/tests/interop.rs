//! Clients and tools from Maven and the Go module proxy against a real process: Java clients, Go clients, Kafka's own
//! command line tools, and Kafka's dump-log on our segments. What cannot be fetched is named and counted as skipped;
//! with `ODRADEK_INTEROP=require` it counts as failed. Arguments choose steps by name.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "drives real processes from outside")]
#![allow(clippy::print_stdout, reason = "a test runner reports")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use support::Broker;

const KAFKA_VERSION: &str = "3.9.1";
const NEWEST_CLIENTS: &str = "4.4.0";
const STEP_LIMIT: Duration = Duration::from_secs(240);

/// How one step ended.
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Tally {
    fn count(&mut self, step: &str, started: Instant, verdict: Verdict) {
        let seconds = started.elapsed().as_secs_f64();
        match verdict {
            Verdict::Passed => {
                self.passed += 1;
                println!("ok {step} ({seconds:.1} s)");
            }
            Verdict::Failed(why) => {
                self.failed += 1;
                println!("FAILED {step}: {why}");
            }
            Verdict::Skipped(why) if std::env::var("ODRADEK_INTEROP").as_deref() == Ok("require") => {
                self.failed += 1;
                println!("FAILED {step}: {why}, and ODRADEK_INTEROP=require");
            }
            Verdict::Skipped(why) => {
                self.skipped += 1;
                println!("skipped {step}: {why}");
            }
        }
    }
}

fn cache() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    std::env::var_os("ODRADEK_CACHE").map_or_else(|| home.join(".cache/odradek"), PathBuf::from)
}

fn clients_dir() -> PathBuf {
    support::workspace().join("broker/tests/clients")
}

/// Runs a command with a limit; what it printed, or why it failed with the end of what it printed.
fn run(command: &mut Command, limit: Duration) -> Result<String, String> {
    let output = tempfile::NamedTempFile::new().expect("temporary file");
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    command.stdout(output.reopen().expect("output")).stderr(output.reopen().expect("output"));
    let mut child = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
    let status = support::wait(&mut child, limit);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = std::fs::read(output.path())
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    match status {
        Some(status) if status.success() => Ok(text),
        Some(status) => Err(format!("{program} ended with {status}:\n{text}")),
        None => Err(format!("{program} ran longer than {limit:?}:\n{text}")),
    }
}

/// Jars of Maven artifacts with what they depend on, fetched once into the cache.
fn maven(name: &str, artifacts: &[&str]) -> Result<PathBuf, String> {
    let directory = cache().join(name);
    let libs = directory.join("libs");
    if directory.join("complete").exists() {
        return Ok(libs);
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
    command
        .args(["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"])
        .current_dir(&directory);
    run(&mut command, Duration::from_secs(600))?;
    std::fs::write(directory.join("complete"), "").map_err(|error| error.to_string())?;
    Ok(libs)
}

fn kafka_libs() -> Result<PathBuf, String> {
    maven(
        "kafka-dist",
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

fn judged(result: Result<String, String>) -> Verdict {
    match result {
        Ok(text) if text.contains("FAILED") => Verdict::Failed(text),
        Ok(_) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn java_suite(bootstrap: &str, version: &str) -> Verdict {
    let libs = match client_libs(version) {
        Ok(libs) => libs,
        Err(why) => return Verdict::Skipped(format!("kafka-clients {version} is not to be had: {why}")),
    };
    let classes = tempfile::tempdir().expect("temporary directory");
    let mut compile = Command::new("javac");
    compile
        .args(["-cp", &class_path(&libs, None), "-d"])
        .arg(classes.path())
        .arg(clients_dir().join("java/Suite.java"));
    if let Err(why) = run(&mut compile, STEP_LIMIT) {
        return Verdict::Failed(why);
    }
    let mut suite = Command::new("java");
    suite.args(["-Xmx512m", "-cp", &class_path(&libs, Some(classes.path())), "Suite", bootstrap, version]);
    judged(run(&mut suite, STEP_LIMIT))
}

fn go_suite(bootstrap: &str, client: &str) -> Verdict {
    let binary = cache().join("go-suites");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&binary).arg(".").current_dir(clients_dir().join("go"));
    if let Err(why) = run(&mut build, Duration::from_secs(600)) {
        return Verdict::Skipped(format!("the Go clients are not to be had: {why}"));
    }
    judged(run(Command::new(binary).args([client, bootstrap]), STEP_LIMIT))
}

/// Runs the main class of one of Kafka's tools.
fn tool(libs: &Path, class: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("java");
    command.args(["-Xmx512m", "-cp", &class_path(libs, None), class]).args(arguments);
    run(&mut command, STEP_LIMIT)
}

fn expect(text: &str, part: &str) -> Result<(), String> {
    if text.contains(part) { Ok(()) } else { Err(format!("{part:?} is missing in:\n{text}")) }
}

fn kafka_topics(libs: &Path, bootstrap: &str) -> Result<(), String> {
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
    Ok(())
}

fn kafka_configs(libs: &Path, bootstrap: &str) -> Result<(), String> {
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
    expect(&tool(libs, "kafka.admin.ConfigCommand", &broker)?, "log.retention.hours=168")
}

fn perf_test(libs: &Path, bootstrap: &str) -> Result<(), String> {
    let server = format!("bootstrap.servers={bootstrap}");
    for codec in ["none", "lz4"] {
        let compression = format!("compression.type={codec}");
        let arguments = [
            "--topic",
            "perf",
            "--num-records",
            "200000",
            "--record-size",
            "1000",
            "--throughput",
            "-1",
            "--producer-props",
            &server,
            &compression,
        ];
        let text = tool(libs, "org.apache.kafka.tools.ProducerPerformance", &arguments)?;
        expect(&text, "200000 records sent")?;
        println!("   {codec}: {}", text.lines().last().unwrap_or_default());
    }
    Ok(())
}

/// Kafka's dump-log over every file of the directory, records decoded, indexes checked (T-1).
fn dump_log(libs: &Path, log_dir: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    for partition in std::fs::read_dir(log_dir).map_err(|error| error.to_string())?.flatten() {
        for file in std::fs::read_dir(partition.path()).into_iter().flatten().flatten() {
            let path = file.path();
            let kind = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            if ["log", "index", "timeindex", "snapshot"].contains(&kind) {
                files.push(path.to_string_lossy().into_owned());
            }
        }
    }
    if files.is_empty() {
        return Err("no file to look at".to_owned());
    }
    let mut batches = 0;
    for some in files.chunks(200) {
        let text =
            tool(libs, "kafka.tools.DumpLogSegments", &["--deep-iteration", "--files", &some.join(",")])?;
        batches += text.lines().filter(|line| line.contains("baseOffset: ")).count();
        for complaint in [
            "Found timestamp mismatch",
            "Found out of order",
            "Mismatches in",
            "Non-consecutive",
            "isvalid: false",
            "Exception",
            "invalid bytes",
            "corrupt",
        ] {
            if let Some(line) = text.lines().find(|line| line.contains(complaint)) {
                return Err(format!("dump-log complains: {line}"));
            }
        }
    }
    println!("   {} files, {batches} batches", files.len());
    if batches == 0 { Err("dump-log printed no batch".to_owned()) } else { Ok(()) }
}

fn tool_verdict(result: Result<(), String>) -> Verdict {
    result.map_or_else(Verdict::Failed, |()| Verdict::Passed)
}

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |step: &str| chosen.is_empty() || chosen.iter().any(|c| step.contains(c.as_str()));
    let mut tally = Tally::default();
    let tools = kafka_libs();
    for shards in [1, 2] {
        let mut broker = Broker::start(shards, &[]);
        let at = broker.bootstrap();
        let mut step = |name: &str, run: &mut dyn FnMut() -> Verdict| {
            if wanted(name) {
                let started = Instant::now();
                tally.count(&format!("{name} on {shards} shard(s)"), started, run());
            }
        };
        for version in [KAFKA_VERSION, NEWEST_CLIENTS] {
            step(&format!("java {version}"), &mut || java_suite(&at, version));
        }
        for client in ["franz-go", "sarama", "kafka-go"] {
            step(client, &mut || go_suite(&at, client));
        }
        type Tool<'a> = (&'a str, &'a dyn Fn(&Path) -> Result<(), String>);
        let with_tools: [Tool<'_>; 3] = [
            ("kafka-topics", &|libs| kafka_topics(libs, &at)),
            ("kafka-configs", &|libs| kafka_configs(libs, &at)),
            ("kafka-producer-perf-test", &|libs| perf_test(libs, &at)),
        ];
        for (name, run) in with_tools {
            step(name, &mut || match &tools {
                Ok(libs) => tool_verdict(run(libs)),
                Err(why) => Verdict::Skipped(format!("Kafka {KAFKA_VERSION} is not to be had: {why}")),
            });
        }
        let log_dir = broker.log_dir();
        let stopped = broker.stop();
        step("kafka-dump-log", &mut || match &tools {
            Ok(_) if !stopped.success() => Verdict::Failed(format!("the broker stopped with {stopped}")),
            Ok(libs) => tool_verdict(dump_log(libs, &log_dir)),
            Err(why) => Verdict::Skipped(format!("Kafka {KAFKA_VERSION} is not to be had: {why}")),
        });
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

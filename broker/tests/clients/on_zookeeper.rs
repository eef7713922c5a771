//! The broker as a process on a real ZooKeeper: it serves, an independent client reads in its nodes what Kafka writes, it
//! comes back after a kill and after the end of its session, and its metadata moves between the stores. `interop.rs` takes
//! it in by path.
#![allow(clippy::indexing_slicing, reason = "a test that finds too little has failed")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bench_harness::client::Client;
use bench_harness::content;
use broker::store::znodes::BrokerNode;
use protocol::types::TimestampMs;
use zookeeper_async::{Acl, CreateMode, WatchedEvent, ZkError, ZooKeeper as Reader};

use crate::child::run;
use crate::load::{self, Load};
use crate::support::{Broker, free_port};
use crate::zookeeper::ZooKeeper;
use crate::{Running, STEP_LIMIT, expect, perf, tool};

/// Whatever is waited for comes long before, also on two slow cores.
const LIMIT: Duration = Duration::from_secs(120);

const SESSION: &str = "zookeeper.session.timeout.ms=4000";

/// The setting that leads to a part of a server.
pub fn on(server: &ZooKeeper, root: &str) -> String {
    format!("zookeeper.connect=127.0.0.1:{}/{root}", server.port)
}

/// Reads nodes with the other client library, each as text.
pub fn read(
    server: &ZooKeeper,
    root: &str,
    paths: &[&str],
) -> Result<Vec<(String, zookeeper_async::Stat)>, String> {
    let connect = format!("127.0.0.1:{}/{root}", server.port);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let ignore = |_: WatchedEvent| {};
        let said = |error: ZkError| error.to_string();
        let reader = Reader::connect(&connect, Duration::from_secs(10), ignore).await.map_err(said)?;
        let mut found = Vec::new();
        for path in paths {
            let (data, stat) =
                reader.get_data(path, false).await.map_err(|error| format!("{path}: {error}"))?;
            found.push((String::from_utf8_lossy(&data).into_owned(), stat));
        }
        reader.close().await.map_err(said)?;
        Ok(found)
    })
}

/// Writes a node with the other client library: one that is there, or a new one.
fn write(
    server: &ZooKeeper,
    root: &str,
    path: &str,
    text: &str,
    create: Option<CreateMode>,
) -> Result<(), String> {
    let connect = format!("127.0.0.1:{}/{root}", server.port);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let ignore = |_: WatchedEvent| {};
        let said = |error: ZkError| format!("{path}: {error}");
        let writer = Reader::connect(&connect, Duration::from_secs(10), ignore).await.map_err(said)?;
        let data = text.as_bytes().to_vec();
        match create {
            Some(mode) => {
                let acl = Acl::open_unsafe().clone();
                writer.create(path, data, acl, mode).await.map(drop).map_err(said)?;
            }
            None => writer.set_data(path, data, None).await.map(drop).map_err(said)?,
        }
        writer.close().await.map_err(said)
    })
}

/// Waits for the end of the session that a node goes away with.
pub fn await_gone(server: &ZooKeeper, root: &str, path: &str) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    while read(server, root, &[path]).is_ok() {
        if Instant::now() > deadline {
            return Err(format!("{path} does not go away"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn topics(libs: &Path, broker: &Broker, arguments: &[&str]) -> Result<String, String> {
    let at = broker.bootstrap();
    let arguments = [&["--bootstrap-server", &at], arguments].concat();
    tool(libs, "org.apache.kafka.tools.TopicCommand", &arguments)
}

fn produce(libs: &Path, broker: &Broker, topic: &str, records: u32) -> Result<(), String> {
    let text = run(&mut perf(libs, &broker.bootstrap(), topic, records, "none"), STEP_LIMIT)?;
    expect(&text, &format!("{records} records sent"))
}

fn expect_end(libs: &Path, broker: &Broker, topic: &str, end: u32) -> Result<(), String> {
    let at = broker.bootstrap();
    let arguments = ["--bootstrap-server", &at, "--topic", topic];
    let text = tool(libs, "org.apache.kafka.tools.GetOffsetShell", &arguments)?;
    expect(&text, &format!("{topic}:0:{end}"))
}

fn stopped(broker: &mut Broker) -> Result<(), String> {
    let status = broker.stop();
    if status.success() { Ok(()) } else { Err(format!("the broker stopped with {status}\n{}", broker.log())) }
}

/// A broker on ZooKeeper, its topics, and its nodes as another client sees them; `kill -9` and the next start.
pub fn serves_and_comes_back(server: &ZooKeeper, libs: &Path) -> Result<String, String> {
    const PATHS: [&str; 5] = [
        "/brokers/ids/7",
        "/controller",
        "/brokers/topics/t",
        "/brokers/topics/t/partitions/0/state",
        "/config/topics/t",
    ];
    let connect = on(server, "serves");
    let mut broker = Broker::start(2, &[&connect, SESSION, "broker.id=7"]);
    topics(
        libs,
        &broker,
        &["--create", "--topic", "t", "--partitions", "1", "--config", "retention.ms=12345"],
    )?;
    produce(libs, &broker, "t", 1000)?;
    let nodes = read(server, "serves", &PATHS)?;
    let [(registered, stat), (controller, _), (topic, _), (state, _), (config, _)] = &nodes[..] else {
        return Err(format!("{} nodes", nodes.len()));
    };
    let node = BrokerNode::parse(registered.as_bytes()).map_err(|error| error.to_string())?;
    expect(&format!("{:?}", node.endpoints), &format!("PLAINTEXT://127.0.0.1:{}", broker.port()))?;
    if stat.ephemeral_owner == 0 || stat.version != 1 {
        return Err(format!("the registration is {stat:?}"));
    }
    expect(controller, "\"brokerid\":7")?;
    expect(topic, "\"partitions\":{\"0\":[7]}")?;
    expect(state, "{\"version\":1,\"leader\":7,\"leader_epoch\":0,\"controller_epoch\":1,\"isr\":[7]}")?;
    expect(config, "{\"version\":1,\"config\":{\"retention.ms\":\"12345\"}}")?;
    // The session of a killed process is still there when the next one starts.
    broker.kill();
    broker.launch();
    broker.await_served("t", 1);
    expect_end(libs, &broker, "t", 1000)?;
    expect(&broker.log(), "the session of this broker's previous life has not ended yet")?;
    let again = read(server, "serves", &PATHS[..1])?;
    if again[0].1.czxid <= stat.czxid {
        return Err("the broker epoch has not grown".to_owned());
    }
    stopped(&mut broker)?;
    // A clean stop leaves neither registration nor controller.
    match read(server, "serves", &PATHS[..1]) {
        Err(error) if error.contains("/brokers/ids/7") => Ok(String::new()),
        left => Err(format!("after a clean stop there is {left:?}")),
    }
}

/// A broker that stood still until its session was over registers again and is controller again, without a restart.
pub fn goes_on_after_its_session_has_expired(server: &ZooKeeper, libs: &Path) -> Result<String, String> {
    let connect = on(server, "expires");
    let mut broker = Broker::start(1, &[&connect, SESSION, "broker.id=7"]);
    topics(libs, &broker, &["--create", "--topic", "before"])?;
    let before = read(server, "expires", &["/brokers/ids/7"])?[0].1.czxid;
    broker.signal("STOP");
    await_gone(server, "expires", "/brokers/ids/7")?;
    broker.signal("CONT");
    let deadline = Instant::now() + LIMIT;
    let after = loop {
        match read(server, "expires", &["/brokers/ids/7", "/controller"]) {
            Ok(found) => break found[0].1.czxid,
            Err(_) if Instant::now() < deadline && broker.is_running() => {}
            Err(error) => return Err(format!("the broker does not come back: {error}\n{}", broker.log())),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if after <= before {
        return Err("the broker epoch has not grown".to_owned());
    }
    topics(libs, &broker, &["--create", "--topic", "after"])?;
    for topic in ["before", "after"] {
        produce(libs, &broker, topic, 100)?;
        expect_end(libs, &broker, topic, 100)?;
    }
    stopped(&mut broker)?;
    Ok(String::new())
}

/// Two brokers of one id, on other addresses, that start at once on an empty tree: one is registered and serves, and the
/// other says why it does not, and takes nothing from the first (zookeeper.md 14, statements 1, 4 and 11).
pub fn one_of_two_racing_brokers_serves(server: &ZooKeeper) -> Result<String, String> {
    const RACES: usize = 3;
    for race in 0..RACES {
        let root = format!("racing{race}");
        let connect = on(server, &root);
        let brokers = [(); 2].map(|()| Broker::prepared(1, &[&connect, SESSION, "broker.id=7"]));
        let mut racing = Vec::new();
        for broker in &brokers {
            let log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
            let errors = log.reopen().map_err(|error| error.to_string())?;
            let mut command = broker.command();
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
            racing.push((Running(command.spawn().map_err(|error| error.to_string())?), log));
        }
        let deadline = Instant::now() + LIMIT;
        let (loser, status) = loop {
            let ended = racing
                .iter_mut()
                .enumerate()
                .find_map(|(at, (child, _))| child.0.try_wait().ok().flatten().map(|status| (at, status)));
            if let Some(ended) = ended {
                break ended;
            }
            if Instant::now() > deadline {
                return Err(format!("race {race}: both are served"));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = std::fs::read_to_string(racing[loser].1.path()).unwrap_or_default();
        if status.code() != Some(78) {
            return Err(format!("race {race}: the second ended with {status}:\n{said}"));
        }
        expect(&said, "broker id 7 is registered already")?;
        let winner = &brokers[1 - loser];
        winner.await_answering(&mut || racing[1 - loser].0.0.try_wait().ok().flatten().is_none())?;
        let mut client = Client::connect(&winner.bootstrap(), LIMIT).map_err(|error| error.to_string())?;
        client.create_topic("t", 1).map_err(|error| error.to_string())?;
        let nodes = read(server, &root, &["/brokers/ids/7", "/controller"])?;
        let node = BrokerNode::parse(nodes[0].0.as_bytes()).map_err(|error| error.to_string())?;
        expect(&format!("{:?}", node.endpoints), &format!("PLAINTEXT://127.0.0.1:{}", winner.port()))?;
        expect(&nodes[1].0, "\"brokerid\":7")?;
    }
    Ok(format!("{RACES} races"))
}

/// A topic's config that another broker, or one of Kafka's tools, has written and announced is applied while ours serves;
/// so is the next one, also after announcements that nobody can read or that are of a topic that is not there
/// (zookeeper.md 14, statement 10; controller.md 18).
pub fn a_config_of_another_broker_is_applied(server: &ZooKeeper) -> Result<String, String> {
    const ROOT: &str = "configs";
    const TOO_LARGE: i16 = 10;
    let connect = on(server, ROOT);
    let mut broker = Broker::start(2, &[&connect, SESSION, "broker.id=7"]);
    let at = broker.bootstrap();
    load::create(&at, "t", 2, &[])?;
    let batch = content::batch(0, 0, 1, 2000, TimestampMs::new(1)).map_err(|error| error.to_string())?;
    // On both shards.
    let await_answer = |wanted: i16| {
        let mut client = Client::connect(&at, LIMIT).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + LIMIT;
        for partition in 0..2 {
            loop {
                let (code, _) = load::produce(&mut client, "t", partition, &batch)?;
                if code == wanted {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(format!("t-{partition} answers with {code}, not with {wanted}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    };
    await_answer(0)?;
    write_config(server, ROOT, "300")?;
    await_answer(TOO_LARGE)?;
    for odd in ["no JSON", "{\"version\":2,\"entity_path\":\"topics/absent\"}", "{\"version\":2}"] {
        announce(server, ROOT, odd)?;
    }
    write_config(server, ROOT, "4000")?;
    await_answer(0)?;
    write_config(server, ROOT, "300")?;
    stopped(&mut broker)?;
    broker.launch();
    broker.await_served("t", 2);
    await_answer(TOO_LARGE)?;
    stopped(&mut broker)?;
    Ok(String::new())
}

/// As Kafka's own brokers do, by the other client library: the topic's node, then the announcement.
fn write_config(server: &ZooKeeper, root: &str, bytes_max: &str) -> Result<(), String> {
    let config = format!("{{\"version\":1,\"config\":{{\"max.message.bytes\":\"{bytes_max}\"}}}}");
    write(server, root, "/config/topics/t", &config, None)?;
    announce(server, root, "{\"version\":2,\"entity_path\":\"topics/t\"}")
}

fn announce(server: &ZooKeeper, root: &str, text: &str) -> Result<(), String> {
    write(server, root, "/config/changes/config_change_", text, Some(CreateMode::PersistentSequential))
}

/// `odradek metadata export` or `import` over a broker's directory: what it said, or why it failed.
pub fn metadata(way: &str, broker: &Broker, overrides: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odradek"));
    command.args(["metadata", way, "--override", &format!("log.dirs={}", broker.log_dir().display())]);
    for setting in overrides {
        command.args(["--override", setting]);
    }
    run(&mut command, STEP_LIMIT)
}

/// It must fail, and say why in one sentence.
fn refused(way: &str, broker: &Broker, overrides: &[&str], why: &str) -> Result<(), String> {
    match metadata(way, broker, overrides) {
        Err(said) => expect(&said, "exit status: 78").and_then(|()| expect(&said, why)),
        Ok(said) => Err(format!("{way} under {overrides:?} was not refused: {said}")),
    }
}

/// What every start of a broker is told here, wherever its metadata is.
const MOVED: [&str; 5] = [
    "broker.id=7",
    "log.cleaner.backoff.ms=1",
    "replica.high.watermark.checkpoint.interval.ms=50",
    "log.retention.check.interval.ms=100",
    SESSION,
];

/// Everything that was sent is there, and more is sent.
fn goes_on(broker: &mut Broker, load: &mut Load) -> Result<(), String> {
    let (at, log_dir) = (broker.bootstrap(), broker.log_dir());
    broker.launch();
    load.await_served(&at, &mut || Ok(()))?;
    load.verify(&at)?;
    load.grow(&at, 4)?;
    load.renew_producers();
    load.grow(&at, 4)?;
    load.await_compacted(&log_dir)?;
    load.verify(&at)
}

/// From the embedded store to ZooKeeper and back into a new one: no topic, no config, no producer and no record is lost on
/// the way, and what would lose one is refused.
pub fn moves_between_the_stores(server: &ZooKeeper, libs: &Path) -> Result<String, String> {
    let connect = on(server, "moved");
    let mut load = Load::new(1);
    let mut embedded = Broker::prepared(1, &MOVED);
    refused("export", &embedded, &[&connect], "there is no embedded metadata store to export")?;
    refused("import", &embedded, &[&connect], "there is nothing to carry")?;
    refused("import", &embedded, &[], "zookeeper.connect is not set")?;
    embedded.launch();
    load.create(&embedded.bootstrap())?;
    load.grow(&embedded.bootstrap(), 4)?;
    let described = described(libs, &embedded)?;
    expect(&described, "retention.bytes=32768")?;
    refused(
        "export",
        &embedded,
        &[&connect],
        "is locked: another broker, ours or Kafka, uses this directory",
    )?;
    stopped(&mut embedded)?;
    let nobody = format!("zookeeper.connect=127.0.0.1:{}", free_port());
    let soon = "zookeeper.connection.timeout.ms=500";
    refused("export", &embedded, &[&nobody, soon], "no session with ZooKeeper at 127.0.0.1:")?;
    let topics_carried = format!("{} topics carried", load.topics().count());
    expect(&metadata("export", &embedded, &[&connect])?, &topics_carried)?;
    refused("export", &embedded, &[&connect], "is not empty, /admin is there already")?;

    let settings: Vec<&str> = MOVED.into_iter().chain([connect.as_str()]).collect();
    let mut moved = embedded.with(&settings);
    goes_on(&mut moved, &mut load)?;
    expect(&self::described(libs, &moved)?, &described)?;
    let elsewhere = Broker::prepared(1, &[]);
    refused("import", &elsewhere, &[&connect], "broker 7 is registered in it")?;
    stopped(&mut moved)?;
    refused("import", &moved, &[&connect], "metadata.redb is not empty, /admin is there already")?;
    let file = format!("metadata.file={}", moved.log_dir().with_file_name("imported.redb").display());
    expect(&metadata("import", &moved, &[&connect, &file])?, &topics_carried)?;
    refused("import", &moved, &[&connect, &file], "imported.redb is not empty, /admin is there already")?;

    let settings: Vec<&str> = MOVED.into_iter().chain([file.as_str()]).collect();
    let mut back = moved.with(&settings);
    goes_on(&mut back, &mut load)?;
    expect(&self::described(libs, &back)?, &described)?;
    stopped(&mut back)?;
    Ok(format!("{} records", load.records()))
}

/// Ids, replicas and configurations of all topics, as Kafka's tool tells them.
fn described(libs: &Path, broker: &Broker) -> Result<String, String> {
    let text = topics(libs, broker, &["--describe"])?;
    let mut lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| line.starts_with("Topic: ")).collect();
    lines.sort_unstable();
    Ok(lines.join("\n"))
}

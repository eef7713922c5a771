//! The admin endpoint of a real process: after some traffic every name of security-admin.md 6 that is built is told with
//! the right value over all shards, health and readiness answer, and hostile clients of it disturb nobody.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process from outside"
)]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bench_harness::client::Client;
use bench_harness::content;
use broker::metrics::names::{Family, Kind};
use broker::shard::pulse::Pulses;
use broker::shard::start::{Cores, Layout, StartError, StartOptions, prepare, start};
use broker::shard::stop::{Stopper, Stopping};
use broker::shard::{ShardId, ShardRuntime};
use protocol::messages::*;
use protocol::types::TimestampMs;
use support::{Broker, free_port};

const LIMIT: Duration = Duration::from_secs(30);

/// A broker with an admin endpoint.
struct Observed {
    broker: Broker,
    port: u16,
}

impl Observed {
    fn start(shards: u16) -> Self {
        Self::start_with(shards, &[], "true")
    }

    /// The same with settings, and with what a shell does before it becomes the broker.
    fn start_with(shards: u16, settings: &[&str], before: &str) -> Self {
        let port = free_port();
        let admin = format!("admin.listener=127.0.0.1:{port}");
        let settings = [&[admin.as_str()], settings].concat();
        Self { broker: Broker::start_limited(shards, &settings, before), port }
    }

    /// A connection to the broker that has sent nothing.
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.broker.bootstrap()).expect("connect");
        stream.set_read_timeout(Some(LIMIT)).expect("timeout");
        stream
    }

    /// Connections that are served, so many at once.
    fn served(&self, count: usize) -> Vec<TcpStream> {
        let deadline = Instant::now() + LIMIT;
        let mut served = Vec::new();
        while served.len() < count {
            // The one that waited for the start may still count.
            let mut stream = self.connect();
            if answers(&mut stream) {
                served.push(stream);
            }
            assert!(Instant::now() < deadline, "{} are served:\n{}", served.len(), self.broker.log());
        }
        served
    }

    /// How often the log has this.
    fn told(&self, what: &str) -> usize {
        self.broker.log().matches(what).count()
    }

    fn client(&self) -> Client {
        Client::connect(&self.broker.bootstrap(), LIMIT).expect("connect")
    }

    fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("admin endpoint");
        stream.set_read_timeout(Some(LIMIT)).expect("timeout");
        stream
    }

    /// Status and body of a page.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = self.raw();
        let mut answer = String::new();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("ask");
        stream.read_to_string(&mut answer).expect("answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    fn scrape(&self) -> Scrape {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        Scrape::read(&text)
    }

    /// Scrapes until a scrape is as it should be.
    fn scrape_until(&self, is: impl Fn(&Scrape) -> bool) -> Scrape {
        let deadline = Instant::now() + LIMIT;
        loop {
            let scrape = self.scrape();
            if is(&scrape) {
                return scrape;
            }
            assert!(Instant::now() < deadline, "{:#?}", scrape.series);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a connection is served.
fn answers(stream: &mut TcpStream) -> bool {
    const API_VERSIONS: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];
    stream.write_all(&API_VERSIONS).is_ok() && stream.read_exact(&mut [0; 8]).is_ok()
}

/// Series and their values.
struct Scrape {
    series: BTreeMap<String, f64>,
}

impl Scrape {
    fn read(text: &str) -> Self {
        let mut series = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            let twice = series.insert(name.to_owned(), value.parse().expect("a number"));
            assert_eq!(twice, None, "{name} is there twice");
        }
        Self { series }
    }

    fn get(&self, series: &str) -> Option<f64> {
        self.series.get(series).copied()
    }

    /// The sum of all series of a family.
    fn sum(&self, name: &str) -> f64 {
        let of_family = |series: &&String| series.split('{').next() == Some(name);
        self.series.iter().filter(|(series, _)| of_family(series)).map(|(_, value)| value).sum()
    }

    fn check(&self, expected: &[(&str, f64)]) {
        for (series, value) in expected {
            assert_eq!(self.get(series), Some(*value), "{series} in {:#?}", self.series);
        }
    }
}

/// Produces ten records to each of four partitions, reads them, and asks for what is not there.
fn traffic(client: &mut Client) -> usize {
    client.create_topic("t", 4).expect("create");
    let mut bytes = 0;
    for partition in 0..4 {
        let batch = content::batch(partition, 0, 10, 100, TimestampMs::new(1)).expect("batch");
        bytes += batch.len();
        let produced = client.produce("t", partition, -1, &batch).expect("produce").expect("an answer");
        assert_eq!(produced.error_code, 0);
        let fetched = client.fetch("t", partition, 0, Duration::from_millis(1)).expect("fetch");
        assert_eq!(fetched.records.len(), batch.len());
    }
    let batch = content::batch(0, 0, 1, 10, TimestampMs::new(1)).expect("batch");
    assert_eq!(client.produce("nothing", 0, 1, &batch).expect("produce").expect("answer").error_code, 3);
    let mut damaged = batch.clone();
    *damaged.last_mut().expect("bytes") ^= 1;
    assert_eq!(client.produce("t", 0, 1, &damaged).expect("produce").expect("answer").error_code, 2);
    let waited = client.fetch("t", 1, 10, Duration::from_millis(100)).expect("fetch");
    assert!(waited.records.is_empty());
    bytes
}

#[test]
fn every_name_is_told_with_the_right_value_over_two_shards() {
    let observed = Observed::start(2);
    let mut client = observed.client();
    #[allow(clippy::cast_precision_loss, reason = "a few hundred bytes")]
    let bytes = traffic(&mut client) as f64;
    // The last request is counted when its answer is written, which its client may see first.
    let fetches = "kafka_network_requestmetrics_requests_total{request=\"Fetch\",version=\"12\"}";
    let scrape = observed.scrape_until(|scrape| scrape.get(fetches) == Some(5.0));
    scrape.check(&[
        ("kafka_server_brokertopicmetrics_messagesin_total", 40.0),
        ("kafka_server_brokertopicmetrics_messagesin_total{topic=\"t\"}", 40.0),
        ("kafka_server_brokertopicmetrics_bytesin_total{topic=\"t\"}", bytes),
        ("kafka_server_brokertopicmetrics_bytesout_total{topic=\"t\"}", bytes),
        ("kafka_server_brokertopicmetrics_bytesrejected_total", 0.0),
        ("kafka_server_brokertopicmetrics_totalproducerequests_total{topic=\"t\"}", 5.0),
        ("kafka_server_brokertopicmetrics_totalfetchrequests_total{topic=\"t\"}", 5.0),
        ("kafka_server_brokertopicmetrics_failedproducerequests_total{topic=\"t\"}", 0.0),
        ("kafka_server_brokertopicmetrics_invalidmessagecrcrecords_total", 1.0),
        ("kafka_server_replicamanager_partitioncount", 4.0),
        ("kafka_server_replicamanager_leadercount", 4.0),
        ("kafka_server_replicamanager_underreplicatedpartitions", 0.0),
        ("kafka_server_replicamanager_underminisrpartitioncount", 0.0),
        ("kafka_server_replicamanager_atminisrpartitioncount", 4.0),
        ("kafka_server_replicamanager_offlinereplicacount", 0.0),
        ("kafka_controller_kafkacontroller_activecontrollercount", 1.0),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", 0.0),
        ("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", 0.0),
        ("kafka_controller_kafkacontroller_globaltopiccount", 1.0),
        ("kafka_controller_kafkacontroller_globalpartitioncount", 4.0),
        ("kafka_controller_kafkacontroller_activebrokercount", 1.0),
        ("kafka_controller_kafkacontroller_topicstodeletecount", 0.0),
        ("kafka_network_requestmetrics_requests_total{request=\"Produce\",version=\"9\"}", 6.0),
        ("kafka_network_requestmetrics_errors_total{request=\"Produce\",error=\"NONE\"}", 4.0),
        ("kafka_network_requestmetrics_errors_total{request=\"Produce\",error=\"UNKNOWN_TOPIC_OR_PARTITION\"}", 1.0),
        ("kafka_network_requestmetrics_errors_total{request=\"Produce\",error=\"CORRUPT_MESSAGE\"}", 1.0),
        ("kafka_network_requestmetrics_totaltimems_count{request=\"Produce\"}", 6.0),
        ("kafka_network_requestmetrics_totaltimems_count{request=\"FetchConsumer\"}", 5.0),
        ("kafka_network_requestchannel_requestqueuesize", 0.0),
        ("kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation=\"Produce\"}", 0.0),
        ("kafka_log_log_logendoffset{topic=\"t\",partition=\"3\"}", 10.0),
        ("kafka_log_log_logstartoffset{topic=\"t\",partition=\"3\"}", 0.0),
        ("kafka_log_log_numlogsegments{topic=\"t\",partition=\"0\"}", 1.0),
        ("kafka_log_logmanager_offlinelogdirectorycount", 0.0),
        ("kafka_cluster_partition_insyncreplicascount{topic=\"t\",partition=\"2\"}", 1.0),
        ("kafka_cluster_partition_replicascount{topic=\"t\",partition=\"2\"}", 1.0),
        ("kafka_cluster_partition_underreplicated{topic=\"t\",partition=\"2\"}", 0.0),
        ("kafka_cluster_partition_laststableoffsetlag{topic=\"t\",partition=\"2\"}", 0.0),
        ("kafka_log_logcleaner_deadthreadcount", 0.0),
        ("kafka_log_logcleanermanager_max_dirty_percent", 0.0),
        ("kafka_log_logcleanermanager_time_since_last_run_ms", 0.0),
        ("kafka_server_kafkaserver_brokerstate", 3.0),
    ]);
    assert_eq!(scrape.sum("kafka_log_log_size"), bytes);
    assert_eq!(scrape.sum("kafka_server_socket_server_metrics_connection_count"), 1.0);
    assert!(scrape.sum("kafka_network_requestmetrics_requestbytes_sum") > bytes);
    let parked = scrape.get("kafka_network_requestmetrics_remotetimems_sum{request=\"Fetch\"}").expect("sum");
    let handled = scrape.get("kafka_network_requestmetrics_localtimems_sum{request=\"Fetch\"}").expect("sum");
    // The 100 ms are counted from the request on, and each part is rounded down to a microsecond.
    assert!(parked > 0.0 && parked + handled > 99.9, "one fetch waited 100 ms: {parked}, {handled}");
    for family in Family::ALL {
        let name = family.name();
        let suffix = if family.kind() == Kind::Summary { "_count" } else { "" };
        let is_there = |series: &String| {
            series
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(suffix))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        };
        assert!(scrape.series.keys().any(is_there), "{name} is not told");
    }
    check_shards(&scrape, bytes);
}

/// What is told of each shard for itself.
fn check_shards(scrape: &Scrape, bytes: f64) {
    // ApiVersions of the start and CreateTopics besides: the connections may be on either shard.
    assert_eq!(scrape.sum("odradek_shard_requests_total"), 13.0);
    let requested = scrape.sum("odradek_shard_request_bytes_total");
    assert!(requested > bytes && scrape.sum("odradek_shard_response_bytes_total") > bytes);
    for shard in 0..2 {
        let cpu = scrape.get(&format!("odradek_shard_cpu_seconds_total{{shard=\"{shard}\"}}"));
        assert!(cpu.is_some_and(|seconds| seconds > 0.0), "shard {shard}: {cpu:?}");
    }
}

#[test]
fn connections_that_went_on_to_another_shard_and_ended_are_counted_nowhere() {
    let connections = "kafka_server_socket_server_metrics_connection_count";
    let observed = Observed::start(2);
    observed.client().create_topic("one", 1).expect("create");
    let mut clients: Vec<Client> = (0..8).map(|_| observed.client()).collect();
    for (number, client) in (0u64..).zip(&mut clients) {
        for record in 0..4 {
            let batch = content::batch(0, 4 * number + record, 1, 100, TimestampMs::new(1)).expect("batch");
            let produced = client.produce("one", 0, -1, &batch).expect("produce").expect("an answer");
            assert_eq!(produced.error_code, 0);
        }
    }
    let open = observed.scrape_until(|scrape| scrape.sum(connections) == 8.0);
    assert_eq!(open.sum("odradek_shard_connections"), 8.0);
    drop(clients);
    let ended = observed.scrape_until(|scrape| scrape.sum(connections) == 0.0);
    assert_eq!(ended.sum("odradek_shard_connections"), 0.0);
}

/// The name of what counts connections that wait, by what they wait for.
fn held_up(reason: &str) -> String {
    format!(
        "odradek_connections_held_up_total{{listener=\"PLAINTEXT\",networkProcessor=\"0\",reason=\"{reason}\"}}"
    )
}

#[test]
fn connections_that_are_refused_for_their_address_are_counted_and_told_once() {
    let observed = Observed::start_with(1, &["max.connections.per.ip=3"], "true");
    let served = observed.served(3);
    let refused = "odradek_connections_refused_total";
    let before = observed.scrape().sum(refused);
    for _ in 0..20 {
        assert!(!answers(&mut observed.connect()), "a fourth one is served");
    }
    observed.scrape_until(|scrape| scrape.sum(refused) == before + 20.0);
    assert_eq!(observed.told("as many as max.connections.per.ip allows"), 1, "{}", observed.broker.log());
    drop(served);
    observed.served(1);
}

#[test]
fn connections_that_wait_for_a_place_are_counted_and_told_once() {
    let observed = Observed::start_with(1, &["max.connections=2"], "true");
    let mut served = observed.served(2);
    assert_eq!(observed.scrape().get("odradek_connections_limit"), Some(2.0));
    let mut third = observed.connect();
    let blocked = "kafka_network_acceptor_acceptorblocked_percent{listener=\"PLAINTEXT\"}";
    let waits = |scrape: &Scrape| {
        scrape.get(&held_up("max.connections")).is_some_and(|count| count >= 1.0)
            && scrape.get(blocked).is_some_and(|share| share > 0.0 && share <= 1.0)
    };
    let scrape = observed.scrape_until(waits);
    assert!(scrape.sum("odradek_accepting_blocked_seconds_total") > 0.0);
    assert_eq!(scrape.get(&held_up("listener.max.connections")), Some(0.0));
    assert_eq!(observed.told("as many are open as max.connections allows"), 1, "{}", observed.broker.log());
    served.pop();
    assert!(answers(&mut third), "a place that got free is not given");
}

#[test]
fn a_broker_that_has_as_many_connections_as_descriptors_allow_says_so_and_goes_on_later() {
    let observed = Observed::start_with(1, &[], "ulimit -n 200");
    let scrape = observed.scrape();
    assert_eq!(scrape.get("odradek_connections_limit"), Some(100.0));
    assert_eq!(scrape.get("process_max_fds"), Some(200.0));
    let taken: Vec<_> = (0..110).map(|_| observed.connect()).collect();
    observed.scrape_until(|scrape| scrape.get(&held_up("descriptors")).is_some_and(|count| count >= 1.0));
    assert_eq!(observed.told("half of the limit on open files"), 1, "{}", observed.broker.log());
    drop(taken);
    observed.served(1);
}

/// Sets the soft limit on the descriptors of a process.
fn limit_descriptors(process: u32, soft: u32) {
    let limit = format!("--nofile={soft}:");
    let set = Command::new("prlimit").args(["--pid", &process.to_string(), &limit]).status();
    assert!(set.expect("prlimit").success());
}

/// Nothing is written meanwhile: a checkpoint needs a descriptor too.
#[test]
fn without_descriptors_nobody_is_accepted_and_no_core_spins_until_there_are_some() {
    let seldom = [
        "replica.high.watermark.checkpoint.interval.ms=600000",
        "log.flush.offset.checkpoint.interval.ms=600000",
        "log.flush.start.offset.checkpoint.interval.ms=600000",
    ];
    let mut observed = Observed::start_with(1, &seldom, "ulimit -n 1000");
    let process = observed.broker.pid();
    limit_descriptors(process, 10);
    // The first one ends: its accept began under the old limit, and a connection needs a second descriptor for a moment.
    let mut waiting: Vec<_> = (0..3).map(|_| observed.connect()).collect();
    let deadline = Instant::now() + LIMIT;
    while observed.told("no descriptor is left") == 0 {
        assert!(Instant::now() < deadline, "{}", observed.broker.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = observed.broker.cpu_ticks();
    std::thread::sleep(Duration::from_secs(2));
    let used = observed.broker.cpu_ticks() - before;
    assert!(used < 100, "{used} of 200 ticks are spent on nothing");
    assert_eq!(observed.told("no descriptor is left"), 1, "{}", observed.broker.log());
    limit_descriptors(process, 1000);
    assert!(waiting.iter_mut().any(answers), "who waited is not accepted:\n{}", observed.broker.log());
    let scrape = observed.scrape();
    assert!(scrape.get(&held_up("descriptors")).is_some_and(|count| count >= 1.0));
    assert!(observed.broker.stop().success());
}

#[test]
fn what_groups_have_and_do_is_told() {
    let observed = Observed::start(2);
    let mut client = observed.client();
    client.create_topic("t", 2).expect("create");
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: 5,
        committed_leader_epoch: -1,
        commit_timestamp: -1,
        committed_metadata: None,
    };
    let topic = OffsetCommitRequestTopic { name: "t".into(), partitions: vec![partition(0), partition(1)] };
    let commit =
        OffsetCommitRequest { group_id: "g".into(), topics: vec![topic], ..OffsetCommitRequest::default() };
    // Who asks for the coordinator first has its topic made.
    let key = FindCoordinatorRequest { key: "g".into(), ..FindCoordinatorRequest::default() };
    let deadline = Instant::now() + LIMIT;
    loop {
        client.call(3, &key).expect("find the coordinator");
        let reply = client.call(8, &commit).expect("commit");
        let answer: OffsetCommitResponse<'_> = reply.message().expect("an answer");
        match answer.topics[0].partitions[0].error_code {
            0 => break,
            // Loading, not available yet, not coordinated here.
            14..=16 => assert!(Instant::now() < deadline, "{}", observed.broker.log()),
            other => panic!("{other}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let partitions = vec![OffsetDeleteRequestPartition { partition_index: 1 }];
    let topics = vec![OffsetDeleteRequestTopic { name: "t".into(), partitions }];
    client.call(0, &OffsetDeleteRequest { group_id: "g".into(), topics }).expect("delete an offset");
    observed.scrape().check(&[
        ("kafka_coordinator_group_groupmetadatamanager_numgroups", 1.0),
        ("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", 1.0),
        ("kafka_coordinator_group_groupmetadatamanager_numoffsets", 1.0),
        ("kafka_server_group_coordinator_metrics_offset_commit_count", 2.0),
        ("kafka_server_group_coordinator_metrics_offset_deletion_count", 1.0),
        ("kafka_server_group_coordinator_metrics_offset_expiration_count", 0.0),
        ("kafka_server_group_coordinator_metrics_group_completed_rebalance_count", 0.0),
        ("odradek_group_requests_waiting", 0.0),
    ]);
}

#[test]
fn a_deleted_topic_vanishes_and_no_sum_falls() {
    let observed = Observed::start(2);
    traffic(&mut observed.client());
    let before = observed.scrape();
    let request =
        DeleteTopicsRequest { topic_names: vec!["t".into()], timeout_ms: 30_000, ..Default::default() };
    let reply = observed.client().call(1, &request).expect("delete");
    let response: DeleteTopicsResponse<'_> = reply.message().expect("an answer");
    assert_eq!(response.responses[0].error_code, 0);
    let topics = "kafka_controller_kafkacontroller_globaltopiccount";
    let after = observed.scrape_until(|scrape| {
        scrape.get(topics) == Some(0.0) && !scrape.series.keys().any(|series| series.contains("topic=\"t\""))
    });
    for (series, value) in &before.series {
        let name = series.split('{').next().expect("a name");
        let is_counter = name.ends_with("_total") || name.ends_with("_count") || name.ends_with("_sum");
        if is_counter
            && !series.contains("topic=")
            && name != "kafka_server_socket_server_metrics_connection_count"
        {
            assert!(after.get(series).is_some_and(|now| now >= *value), "{series} was {value}");
        }
    }
    after.check(&[
        ("kafka_server_brokertopicmetrics_messagesin_total", 40.0),
        ("kafka_server_replicamanager_partitioncount", 0.0),
        ("kafka_controller_kafkacontroller_globalpartitioncount", 0.0),
    ]);
}

#[test]
fn health_and_readiness_answer_until_the_stop() {
    let mut observed = Observed::start(1);
    assert_eq!(observed.get("/healthz"), (200, "ok\n".to_owned()));
    let deadline = Instant::now() + LIMIT;
    while observed.get("/readyz") != (200, "ok\n".to_owned()) {
        assert!(Instant::now() < deadline, "{:?}", observed.get("/readyz"));
    }
    assert_eq!(observed.get("/").0, 404);
    assert!(observed.broker.stop().success());
    assert!(TcpStream::connect(("127.0.0.1", observed.port)).is_err(), "nobody listens any more");
}

#[test]
fn readiness_says_what_a_start_waits_for() {
    let admin = free_port();
    // Somebody listens there, and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    let connect = format!("zookeeper.connect=127.0.0.1:{}", silent.local_addr().expect("address").port());
    let settings = [&format!("admin.listener=127.0.0.1:{admin}"), &connect];
    let broker = Broker::prepared(1, &[settings[0], settings[1], "zookeeper.connection.timeout.ms=600000"]);
    let mut child = broker.command().stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let deadline = Instant::now() + LIMIT;
    let mut said = String::new();
    while !said.contains("starting: waiting for a session with ZooKeeper") {
        assert!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(10));
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", admin)) else { continue };
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("write");
        said.clear();
        stream.read_to_string(&mut said).expect("read");
    }
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill").success());
    let ended = support::wait(&mut child, LIMIT);
    let _ = child.kill();
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "a start that waits is stopped");
}

#[test]
fn hostile_clients_of_the_endpoint_disturb_nobody() {
    let mut observed = Observed::start(1);
    let mut hostile: Vec<_> = (0..200).map(|_| observed.raw()).collect();
    for (index, stream) in hostile.iter_mut().enumerate() {
        let garbage: &[u8] = match index % 4 {
            0 => b"\x00\xff\x16\x03\x01 garbage \r\n\r\n",
            1 => b"GET /metrics HTTP/1.1\r\nX-Slow: ",
            2 => &[b'A'; 20_000],
            _ => b"",
        };
        // It may have been closed already.
        let _ = stream.write_all(garbage);
    }
    let mut client = observed.client();
    client.create_topic("t", 1).expect("create");
    let batch = content::batch(0, 0, 10, 100, TimestampMs::new(1)).expect("batch");
    assert_eq!(client.produce("t", 0, 1, &batch).expect("produce").expect("answer").error_code, 0);
    let scrape = observed
        .scrape_until(|scrape| scrape.get("kafka_server_brokertopicmetrics_messagesin_total") == Some(10.0));
    assert!(scrape.get("process_open_fds").expect("descriptors") < 150.0, "the hostile ones are gone");
    drop(hostile);
    assert!(observed.broker.stop().success());
}

#[test]
fn a_port_that_was_asked_for_and_is_taken_stops_the_start() {
    let observed = Observed::start(1);
    let second = Broker::prepared(1, &[&format!("admin.listener=127.0.0.1:{}", observed.port)]);
    let ended = second.command().stdin(Stdio::null()).output().expect("run");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(78), "{said}");
    let sentence = format!("odradek: admin.listener 127.0.0.1:{} cannot be listened on: ", observed.port);
    assert!(said.contains(&sentence), "{said}");
}

#[test]
fn a_shard_that_does_not_come_back_is_told_by_its_pulse() {
    prepare::<()>().expect("io_uring");
    let layout = Layout::new::<()>(&Cores::Count(2)).expect("layout");
    let (stopper, pulses) = (Stopper::new(2), Pulses::new(2));
    let options = StartOptions { pulses: pulses.clone(), ..StartOptions::default() };
    let (release, released) = channel::<()>();
    let parts = vec![None, Some(released)];
    let stopping = stopper.clone();
    let watching = std::thread::spawn(move || {
        let deadline = Instant::now() + LIMIT;
        let stuck = loop {
            match pulses.silent(Duration::from_secs(4)) {
                Some((shard, _)) if shard == ShardId::new(1) => break true,
                _ if Instant::now() > deadline => break false,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        release.send(()).expect("the shard waits");
        stopping.request();
        stuck
    });
    let body = |shard: broker::shard::glommio::GlommioShard,
                part: Option<std::sync::mpsc::Receiver<()>>,
                stopping: Stopping| async move {
        if let Some(released) = part {
            assert_eq!(shard.shard(), ShardId::new(1));
            // What no shard may do: its thread waits, and its ticker with it.
            let _ = released.recv();
        }
        stopping.requested().await;
        Ok::<(), ()>(())
    };
    let ended: Result<(), StartError<()>> = start(&options, &layout, &stopper, parts, body);
    assert!(ended.is_ok());
    assert!(watching.join().expect("watching"), "the stuck shard was found");
}

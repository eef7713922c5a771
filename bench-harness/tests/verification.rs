//! Whole runs against a broker of a hundred lines that loses, repeats, changes and reorders on purpose: each must be
//! found, and a sound one must not be blamed.
#![allow(clippy::disallowed_methods, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering, mpsc};
use std::time::Duration;

use bench_harness::args::Arguments;
use bench_harness::client::Client;
use bench_harness::commands::kept::{Kept, fill};
use bench_harness::commands::run;
use bench_harness::content;
use clap::Parser;
use protocol::api::{ApiKey, RequestHeader, response_header};
use protocol::codec::{Cursor, Writer};
use protocol::messages::*;
use protocol::records::batch::{BatchView, set_base_offset};
use protocol::types::{Offset, TimestampMs};
use serde_json::Value;

/// What the broker does wrong with the batches of partition 1.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Err {
    Nothing,
    /// Acknowledges the fourth batch and throws it away; the offsets go on without a gap.
    Loses,
    /// Writes the fourth batch twice.
    Repeats,
    /// Changes a byte of the fourth batch and mends its CRC.
    Changes,
    /// Changes a byte and does not mend the CRC.
    Damages,
    /// Writes the fourth batch behind the fifth.
    Reorders,
    /// Answers the fourth batch with an error.
    Refuses,
    /// Closes the connection at the fourth batch.
    HangsUp,
}

/// One partition: its batches in order.
#[derive(Default)]
struct Log {
    batches: Vec<Vec<u8>>,
    end: i64,
    appended: usize,
    held_back: Option<Vec<u8>>,
}

impl Log {
    fn push(&mut self, mut batch: Vec<u8>) {
        set_base_offset(&mut batch, Offset::new(self.end));
        self.end = BatchView::parse(&batch).expect("a batch").next_offset().get();
        self.batches.push(batch);
    }

    /// The error code and the base offset.
    fn append(&mut self, batch: &[u8], err: Err) -> (i16, i64) {
        self.appended += 1;
        let (mut batch, offset) = (batch.to_vec(), self.end);
        if self.appended == 4 {
            match err {
                Err::Nothing | Err::HangsUp => {}
                Err::Loses => return (0, offset),
                Err::Repeats => self.push(batch.clone()),
                Err::Changes | Err::Damages => {
                    let last = batch.len() - 3;
                    batch[last] ^= 1;
                    if err == Err::Changes {
                        let crc = protocol::records::crc::crc32c(&batch[21..]);
                        batch[17..21].copy_from_slice(&crc.to_be_bytes());
                    }
                }
                Err::Reorders => {
                    self.held_back = Some(batch);
                    return (0, offset);
                }
                Err::Refuses => return (56, -1),
            }
        }
        self.push(batch);
        if let Some(batch) = self.held_back.take() {
            self.push(batch);
        }
        (0, offset)
    }

    fn read(&self, from: i64) -> Vec<u8> {
        let whole = |batch: &&Vec<u8>| BatchView::parse(batch).expect("a batch").next_offset().get() > from;
        self.batches.iter().filter(whole).take(2).flatten().copied().collect()
    }
}

type Logs = BTreeMap<i32, Log>;

/// A frame, and where its answer goes; `None` closes the connection.
type Asked = (Vec<u8>, mpsc::Sender<Option<Vec<u8>>>);

struct Fake {
    bootstrap: String,
    stop: Arc<AtomicBool>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.bootstrap);
    }
}

/// Serves on a port of its own; one thread per connection, one that owns the logs.
fn fake(err: Err) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let bootstrap = listener.local_addr().expect("address").to_string();
    let stop = Arc::new(AtomicBool::new(false));
    let (frames, owner) = mpsc::channel::<Asked>();
    std::thread::spawn(move || {
        let mut logs: Logs = (0..4).map(|partition| (partition, Log::default())).collect();
        for (frame, answer) in owner {
            let _ = answer.send(serve(&frame, &mut logs, err));
        }
    });
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if stopped.load(Ordering::Relaxed) {
                return;
            }
            let frames = frames.clone();
            std::thread::spawn(move || connection(stream, &frames));
        }
    });
    Fake { bootstrap, stop }
}

fn connection(mut stream: TcpStream, frames: &mpsc::Sender<Asked>) {
    let mut prefix = [0; 4];
    while stream.read_exact(&mut prefix).is_ok() {
        let mut frame = vec![0; u32::from_be_bytes(prefix) as usize];
        stream.read_exact(&mut frame).expect("a frame");
        let (answer, answered) = mpsc::channel();
        frames.send((frame, answer)).expect("the owner");
        let Ok(Some(answer)) = answered.recv() else { return };
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn serve(frame: &[u8], logs: &mut Logs, err: Err) -> Option<Vec<u8>> {
    let mut cursor = Cursor::new(frame);
    let header = RequestHeader::decode(&mut cursor).expect("header");
    let version = header.api_version;
    let mut writer = Writer::new();
    response_header(header.api_key, version, header.correlation_id, &mut writer);
    match header.api_key {
        ApiKey::CreateTopics => {
            let topics = vec![CreatableTopicResult { name: "t".into(), ..Default::default() }];
            CreateTopicsResponse { topics, ..Default::default() }.encode(&mut writer, version);
        }
        ApiKey::Metadata => {
            let partition =
                |index: &i32| MetadataResponsePartition { partition_index: *index, ..Default::default() };
            let partitions = logs.keys().map(partition).collect();
            let topics =
                vec![MetadataResponseTopic { name: Some("t".into()), partitions, ..Default::default() }];
            MetadataResponse { topics, ..Default::default() }.encode(&mut writer, version);
        }
        ApiKey::ListOffsets => {
            let request = ListOffsetsRequest::decode(&mut cursor, version).expect("request");
            let offset = |part: &ListOffsetsPartition| ListOffsetsPartitionResponse {
                partition_index: part.partition_index,
                offset: if part.timestamp == -2 { 0 } else { logs[&part.partition_index].end },
                ..Default::default()
            };
            let partitions = request.topics[0].partitions.iter().map(offset).collect();
            let topics = vec![ListOffsetsTopicResponse { name: "t".into(), partitions }];
            ListOffsetsResponse { topics, ..Default::default() }.encode(&mut writer, version);
        }
        ApiKey::Produce => produce(&mut cursor, version, logs, err, &mut writer)?,
        ApiKey::Fetch => fetch(&mut cursor, version, logs, &mut writer),
        other => panic!("{other:?} is not expected"),
    }
    Some(writer.into_frame().to_vec())
}

fn produce(
    cursor: &mut Cursor<'_>,
    version: i16,
    logs: &mut Logs,
    err: Err,
    writer: &mut Writer,
) -> Option<()> {
    let request = ProduceRequest::decode(cursor, version).expect("request");
    let mut parts = Vec::new();
    for part in &request.topic_data[0].partition_data {
        let log = logs.get_mut(&part.index).expect("partition");
        let err = if part.index == 1 { err } else { Err::Nothing };
        let (error_code, base_offset) = log.append(part.records.expect("records").bytes(), err);
        if err == Err::HangsUp && log.appended == 4 {
            return None;
        }
        parts.push(PartitionProduceResponse {
            index: part.index,
            error_code,
            base_offset,
            ..Default::default()
        });
    }
    let responses = vec![TopicProduceResponse { name: "t".into(), partition_responses: parts }];
    ProduceResponse { responses, ..Default::default() }.encode(writer, version);
    Some(())
}

/// Without sessions, as a broker whose cache is full: each fetch names everything.
fn fetch(cursor: &mut Cursor<'_>, version: i16, logs: &Logs, writer: &mut Writer) {
    let request = FetchRequest::decode(cursor, version).expect("request");
    let part = |part: &FetchPartition| PartitionData {
        partition_index: part.partition,
        high_watermark: logs[&part.partition].end,
        records: FetchedRecords::Bytes(logs[&part.partition].read(part.fetch_offset).into()),
        ..Default::default()
    };
    let partitions = request.topics.iter().flat_map(|(_, _, parts)| parts.iter().map(part)).collect();
    let responses = vec![FetchableTopicResponse { topic: "t".into(), partitions, ..Default::default() }];
    FetchResponse { responses, ..Default::default() }.encode(writer, version);
}

/// Runs a subcommand on topic `t` of the broker.
fn bench(fake: &Fake, words: &[&str]) -> Result<Value, String> {
    let common =
        ["--bootstrap", fake.bootstrap.as_str(), "--topic", "t", "--timeout", "3", "--other-cpu-max", "99"];
    let all = ["odradek-bench"].iter().chain(&words[..1]).chain(&common).chain(&words[1..]);
    let arguments = Arguments::try_parse_from(all).map_err(|error| error.to_string())?;
    run(&arguments).map(|report| report.to_json()).map_err(|error| format!("{error:#}"))
}

const LOAD: [&str; 8] =
    ["--partitions", "4", "--records", "2000", "--record-bytes", "100", "--batch-bytes", "2000"];

/// Produces, then verifies.
fn verified(err: Err) -> Result<Value, String> {
    let fake = fake(err);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("UTF-8");
    bench(&fake, &[&["produce", "--json", path][..], &LOAD].concat())?;
    bench(&fake, &["consume", "--verify", path])
}

#[test]
fn a_sound_run_is_verified() {
    let report = verified(Err::Nothing).expect("sound");
    let verified = &report["consume"]["verified"];
    assert_eq!((&verified["acknowledged"], &verified["found"]), (&2000.into(), &2000.into()), "{report}");
    assert_eq!(report["consume"]["bytes"], 200_000, "{report}");
}

#[test]
fn a_verification_of_nothing_is_void() {
    let fake = fake(Err::Nothing);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("UTF-8");
    let empty = serde_json::json!({"produce": {"run": 7, "ordered": true, "acknowledged": []}});
    std::fs::write(path, empty.to_string()).expect("a report");
    let report = bench(&fake, &["consume", "--verify", path]).expect("a run");
    assert_eq!(report["consume"]["verified"]["found"], 0, "{report}");
    assert_eq!(
        report["void"],
        serde_json::json!(["the run had no record acknowledged: nothing is verified"])
    );
}

#[test]
fn a_lost_record_is_found() {
    let said = verified(Err::Loses).expect_err("lost");
    assert!(said.contains("of partition 1 are lost, the first is number"), "{said}");
}

#[test]
fn a_repeated_record_is_found() {
    let said = verified(Err::Repeats).expect_err("repeated");
    assert!(said.contains("of partition 1 is there again"), "{said}");
}

#[test]
fn a_changed_record_is_found_behind_a_sound_crc() {
    let said = verified(Err::Changes).expect_err("changed");
    assert!(said.contains("partition 1: a changed record"), "{said}");
}

#[test]
fn a_damaged_batch_is_found() {
    let said = verified(Err::Damages).expect_err("damaged");
    assert!(said.contains("partition 1: a damaged batch"), "{said}");
}

#[test]
fn disorder_is_found() {
    let said = verified(Err::Reorders).expect_err("disorder");
    assert!(said.contains("of partition 1 stands behind"), "{said}");
}

#[test]
fn an_error_and_a_closed_connection_end_a_run_with_a_sentence() {
    let refused = verified(Err::Refuses).expect_err("refused");
    assert!(refused.contains("KAFKA_STORAGE_ERROR"), "{refused}");
    let closed = verified(Err::HangsUp).expect_err("closed");
    assert!(closed.contains("closed the connection"), "{closed}");
}

const PATIENCE: Duration = Duration::from_secs(30);

/// The offset of one record that each partition acknowledges.
fn one_each(fake: &Fake) -> BTreeMap<i32, i64> {
    let mut client = Client::connect(&fake.bootstrap, PATIENCE).expect("a connection");
    let one = |partition| {
        let batch = content::batch(partition, 0, 1, 100, TimestampMs::new(1)).expect("a batch");
        let answer = client.produce("t", partition, 1, &batch).expect("an answer").expect("of the partition");
        assert_eq!(answer.error_code, 0);
        (partition, answer.base_offset)
    };
    (0..4).map(one).collect()
}

/// Fills a broker that does this wrong.
fn kept(fake: &Fake) -> Kept {
    let firsts = one_each(fake);
    let filled = fill(&fake.bootstrap, "t", 4, 2 << 20, PATIENCE).expect("acknowledged");
    Kept { topic: "t".to_owned(), firsts, filled }
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there_afterwards() {
    let sound = fake(Err::Nothing);
    let before = kept(&sound);
    let proof = before.prove(&sound.bootstrap, &one_each(&sound), PATIENCE).expect("all is there");
    assert_eq!(proof["filled"]["acknowledged"], 2048, "{proof}");
    assert_eq!(proof["records_read"], 2048 + 8, "{proof}");

    // It starts again, acknowledges at once, and has lost everything.
    let empty = fake(Err::Nothing);
    let said = before.prove(&empty.bootstrap, &one_each(&empty), PATIENCE).expect_err("lost").to_string();
    assert!(
        said.contains("partition 0 acknowledged all up to offset") && said.contains("goes on at 0"),
        "{said}"
    );

    // It knows how many there were, and not what.
    let forgetful = fake(Err::Loses);
    let before = kept(&forgetful);
    let after = before.firsts.iter().map(|(partition, first)| (*partition, first + 100_000)).collect();
    let said = before.prove(&forgetful.bootstrap, &after, PATIENCE).expect_err("lost").to_string();
    assert!(said.contains("of partition 1 are lost"), "{said}");

    let damaged = fake(Err::Damages);
    let before = kept(&damaged);
    let said =
        before.prove(&damaged.bootstrap, &one_each(&damaged), PATIENCE).expect_err("damaged").to_string();
    assert!(said.contains("partition 1"), "{said}");
}

#[test]
fn end_to_end_verifies_on_the_way() {
    let sound =
        bench(&fake(Err::Nothing), &[&["e2e", "--rate", "10000"][..], &LOAD].concat()).expect("sound");
    assert_eq!(sound["end_to_end_us"]["count"], 2000, "{sound}");
    assert_eq!(sound["produce"]["latency_us"]["count"], 2000, "{sound}");
    assert!(sound["produce"]["lateness_us"]["p99"].is_number(), "{sound}");
    let closed_loop = bench(&fake(Err::Nothing), &[&["e2e"][..], &LOAD].concat()).expect("sound");
    assert_eq!(closed_loop["end_to_end_us"]["count"], 2000, "{closed_loop}");
    for (err, part) in
        [(Err::Repeats, "there again"), (Err::Changes, "changed"), (Err::Reorders, "stands behind")]
    {
        let said = bench(&fake(err), &[&["e2e"][..], &LOAD].concat()).expect_err("a fault");
        assert!(said.contains(part), "{said}");
    }
    let said = bench(&fake(Err::Loses), &[&["e2e"][..], &LOAD].concat()).expect_err("lost");
    assert!(said.contains("of partition 1 are lost"), "{said}");
}

#[test]
fn keys_connections_and_gathered_batches_lose_nothing() {
    for more in [
        &["--keys", "100", "--rate", "20000", "--linger-ms", "2"][..],
        &["--connections", "3", "--batches-per-request", "4"],
        &["--connections", "9", "--rate", "20000"],
        &["--acks", "-1", "--in-flight", "1"],
    ] {
        let fake = fake(Err::Nothing);
        let report = bench(&fake, &[&["e2e"][..], &LOAD, more].concat()).expect("sound");
        let verified = &report["consume"]["verified"];
        assert_eq!((&verified["acknowledged"], &verified["found"]), (&2000.into(), &2000.into()), "{more:?}");
    }
}

#[test]
fn what_cannot_be_reached_or_read_is_said_in_a_sentence() {
    let fake = fake(Err::Nothing);
    let missing = bench(&fake, &["consume", "--verify", "/nowhere.json"]).expect_err("no file");
    assert!(missing.contains("/nowhere.json cannot be read"), "{missing}");
    let another = bench(&fake, &["produce", "--partitions", "5"]).expect_err("another size");
    assert!(another.contains("has 4 partitions, not 5"), "{another}");
    let nobody = Fake { bootstrap: "127.0.0.1:1".to_owned(), stop: Arc::default() };
    let unreachable = bench(&nobody, &["produce"]).expect_err("nobody listens");
    assert!(unreachable.contains("no connection to the broker at 127.0.0.1:1"), "{unreachable}");
    let nowhere = bench(&fake, &["produce", "--broker-pid", "4294967295"]).expect_err("no process");
    assert!(nowhere.contains("no process"), "{nowhere}");
}

#[test]
fn a_report_that_cannot_be_written_is_said_before_the_run() {
    // Whoever began would find that nobody listens there.
    let nobody = Fake { bootstrap: "127.0.0.1:1".to_owned(), stop: Arc::default() };
    let directory = tempfile::tempdir().expect("a directory");
    let (file, missing) = (directory.path().join("file"), directory.path().join("missing/file"));
    std::fs::write(&file, "kept").expect("a file");
    let said = |option: &str, path: &std::path::Path| {
        bench(&nobody, &["produce", option, path.to_str().expect("UTF-8")]).expect_err("nobody listens")
    };
    for option in ["--json", "--hdr"] {
        for blocked in [missing.as_path(), directory.path(), &file.join("below")] {
            let said = said(option, blocked);
            assert!(said.contains("cannot be written"), "{option} {}: {said}", blocked.display());
        }
        for fine in [&file, &directory.path().join("new")] {
            assert!(said(option, fine).contains("no connection"), "{option} {}", fine.display());
        }
    }
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), "kept");
    assert!(!directory.path().join("new").exists(), "a run that fails leaves no report");
}

#[test]
fn a_run_that_is_over_before_its_warm_up_is_void() {
    let fake = fake(Err::Nothing);
    let report = bench(&fake, &[&["produce", "--warmup", "30"][..], &LOAD].concat()).expect("a run");
    let void = report["void"].to_string();
    assert!(void.contains("before its --warmup"), "{report}");
}

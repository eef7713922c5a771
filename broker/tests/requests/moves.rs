//! Several log dirs: where new logs go, moves between the dirs, and one that fails while the others serve. Storage.md 1.1,
//! 8.4, T-17; security-admin.md 7.6; KIP-113.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use broker::partition::ask::{BecomeError, OutOfService};
use broker::partition::lifecycle::LogHome;
use broker::partition::log_dirs::DirWatch;
use broker::shard::sim::SimShard;
use broker::start::checkpoints::FoundInDir;
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;
use storage::io::sim::{Crash, Fault, OpKind, SimDisk, SimRuntime};
use storage::io::{DirDone, DirOp, Runtime};
use storage::log_dir::LogDir;
use storage::meta_properties::Identity;

use crate::harness::*;
use crate::wiring::home;

const STORAGE: i16 = ErrorCode::KafkaStorageError.get();
const FULL: ErrorKind = ErrorKind::StorageFull;

/// A broker with so many log dirs: `/data`, `/data2`, `/data3`.
pub fn with_dirs(shards: u16, dirs: usize) -> Broker {
    let others = ["/data2", "/data3"].into_iter().take(dirs - 1).map(|dir| home(Path::new(dir))).collect();
    let broker = Broker::start(7, shards, Start { others, ..Start::default() });
    for path in broker.table.paths().cloned().collect::<Vec<_>>() {
        let runtime = broker.shards[0].clone();
        broker.run(async move {
            runtime.dir(DirOp::CreateAll(path.to_path_buf())).await.unwrap();
            runtime.dir(DirOp::Sync("/".into())).await.unwrap()
        });
    }
    broker
}

/// Where each partition is, and whether it is a copy.
fn places(broker: &Broker) -> BTreeMap<(i32, bool), String> {
    let answer = describe(broker);
    let mut places = BTreeMap::new();
    for dir in answer.results {
        for partition in dir.topics.iter().flat_map(|topic| &topic.partitions) {
            let key = (partition.partition_index, partition.is_future_key);
            assert_eq!(places.insert(key, dir.log_dir.to_string()), None, "once");
        }
    }
    places
}

pub fn place(broker: &Broker, partition: i32) -> String {
    places(broker).remove(&(partition, false)).unwrap()
}

fn describe(broker: &Broker) -> DescribeLogDirsResponse<'static> {
    broker.client().call(4, &DescribeLogDirsRequest { topics: None })
}

/// Asks for moves of partitions of one topic; the error codes, by partition.
pub fn alter(broker: &Broker, version: i16, topic: &'static str, to: &[(&'static str, i32)]) -> Vec<i16> {
    let dir = |(path, partition): &(&'static str, i32)| AlterReplicaLogDir {
        path: (*path).into(),
        topics: vec![AlterReplicaLogDirTopic { name: topic.into(), partitions: vec![*partition] }],
    };
    let request = AlterReplicaLogDirsRequest { dirs: to.iter().map(dir).collect() };
    let answer: AlterReplicaLogDirsResponse<'static> = broker.client().call(version, &request);
    let topics = answer.results.iter().flat_map(|topic| &topic.partitions);
    topics.map(|partition| partition.error_code).collect()
}

pub fn produce(broker: &Broker, partition: i32, from: u8, count: u8) {
    for number in from..from + count {
        let part = broker.client().produce_one("t", partition, batch(&[&[number; 100]]));
        assert_eq!(part.error_code, 0);
    }
}

fn numbers(broker: &Broker, partition: i32, from: i64) -> Vec<u8> {
    let mut numbers = Vec::new();
    let mut at = from;
    loop {
        let data = broker.client().fetch_one("t", partition, at);
        assert_eq!(data.error_code, 0);
        let read: Vec<_> = values(&data).iter().map(|value| value[0]).collect();
        if read.is_empty() {
            return numbers;
        }
        at = batches(&data).last().unwrap().next_offset().get();
        numbers.extend(read);
    }
}

pub fn names(broker: &Broker, dir: &'static str) -> Vec<String> {
    let runtime = broker.shards[0].clone();
    let listed = broker.run(async move { runtime.dir(DirOp::List(dir.into())).await });
    let Ok(DirDone::Entries(entries)) = listed else { return Vec::new() };
    entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect()
}

#[test]
fn new_logs_go_where_there_are_the_fewest() {
    for shards in SHARDS {
        let broker = with_dirs(shards, 3);
        broker.create("t", 7, &[]);
        let placed = places(&broker);
        for dir in ["/data", "/data2", "/data3"] {
            let count = placed.values().filter(|placed| *placed == dir).count();
            assert!((2..=3).contains(&count), "{shards}: {placed:?}");
        }
        for partition in 0..7 {
            produce(&broker, partition, 0, 2);
            assert_eq!(numbers(&broker, partition, 0), [0, 1]);
        }
        let answer = describe(&broker);
        assert!(answer.results.iter().all(|dir| dir.error_code == 0 && dir.total_bytes > 0), "{answer:?}");
        let sizes = answer.results.iter().flat_map(|dir| &dir.topics).flat_map(|topic| &topic.partitions);
        assert!(sizes.into_iter().all(|one| one.partition_size > 200 && one.offset_lag == 0));
    }
}

#[test]
fn a_log_is_moved_while_clients_go_on() {
    for shards in SHARDS {
        let broker = with_dirs(shards, 2);
        broker.create("t", 2, &[("segment.bytes", "600")]);
        let client = broker.client();
        produce(&broker, 1, 0, 20);
        assert_eq!(client.produce_one("t", 1, idempotent(5, 0, 0, 1)).error_code, 0);
        let partitions = vec![DeleteRecordsPartition { partition_index: 1, offset: 3 }];
        let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
        let _: DeleteRecordsResponse<'static> =
            client.call(2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
        let from = place(&broker, 1);
        let to = if from == "/data" { "/data2" } else { "/data" };
        assert_eq!(alter(&broker, 2, "t", &[(to, 1)]), [0]);
        // While it runs, and when it is done.
        for number in 30..60 {
            produce(&broker, 1, number, 1);
            broker.world().advance_ms(1);
        }
        broker.world().advance_ms(1000);
        assert_eq!(places(&broker).get(&(1, false)).map(String::as_str), Some(to), "{shards}");
        assert_eq!(places(&broker).get(&(1, true)), None, "there is no copy any more");
        produce(&broker, 1, 60, 3);
        let expected: Vec<u8> = (3..20).chain([b'v']).chain(30..63).collect();
        assert_eq!(numbers(&broker, 1, 3), expected, "{shards}");
        let data = client.fetch_one("t", 1, 3);
        assert_eq!((data.log_start_offset, data.high_watermark), (3, 54));
        // The producer is known in the new place.
        let again = client.produce_one("t", 1, idempotent(5, 0, 0, 1));
        assert_eq!((again.error_code, again.base_offset), (0, 20));
        let gone = client.produce_one("t", 1, idempotent(5, 0, 5, 1));
        assert_eq!(gone.error_code, ErrorCode::OutOfOrderSequenceNumber.get());
        let old: &'static str = if from == "/data" { "/data" } else { "/data2" };
        assert!(names(&broker, old).iter().any(|name| name.starts_with("t-1.") && name.ends_with("-delete")));
        broker.world().advance_ms(61_000);
        assert!(names(&broker, old).iter().all(|name| !name.starts_with("t-1")));
        assert_eq!(names(&broker, to).iter().filter(|name| name.starts_with("t-1")).count(), 1);
        let sample = broker.samples().into_iter().find(|sample| sample.partition.partition == 1).unwrap();
        assert_eq!((&*sample.log_dir, sample.high_watermark.get()), (Path::new(to), 54));
        assert!(broker.close().iter().all(|closed| closed.is_clean()));
    }
}

#[test]
fn a_log_moves_to_and_fro_with_what_it_knows() {
    let broker = with_dirs(2, 2);
    broker.create("t", 1, &[("segment.bytes", "600")]);
    produce(&broker, 0, 0, 5);
    for round in 0..6 {
        let to = if place(&broker, 0) == "/data" { "/data2" } else { "/data" };
        assert_eq!(alter(&broker, 1, "t", &[(to, 0)]), [0]);
        broker.world().advance_ms(500);
        assert_eq!(place(&broker, 0), to, "{round}");
        produce(&broker, 0, 5 + round, 1);
    }
    assert_eq!(numbers(&broker, 0, 0), (0..11).collect::<Vec<u8>>());
    // An epoch without records goes with it.
    broker.lead(&broker.topic("t"), 0, 7);
    let to = if place(&broker, 0) == "/data" { "/data2" } else { "/data" };
    assert_eq!(alter(&broker, 1, "t", &[(to, 0)]), [0]);
    broker.world().advance_ms(500);
    produce(&broker, 0, 11, 1);
    let last = batches(&broker.client().fetch_one("t", 0, 11));
    assert_eq!(last[0].partition_leader_epoch(), LeaderEpoch::new(7));
}

#[test]
fn what_cannot_be_moved_is_told_by_kafkas_codes() {
    let broker = with_dirs(2, 2);
    broker.create("t", 2, &[]);
    let code = |error: ErrorCode| error.get();
    for version in 0..=2 {
        assert_eq!(alter(&broker, version, "t", &[("/nowhere", 0)]), [code(ErrorCode::LogDirNotFound)]);
        assert_eq!(alter(&broker, version, "t", &[("data2", 0)]), [code(ErrorCode::LogDirNotFound)]);
        assert_eq!(alter(&broker, version, "t", &[("/data2", 9)]), [code(ErrorCode::ReplicaNotAvailable)]);
        assert_eq!(alter(&broker, version, "u", &[("/data2", 0)]), [code(ErrorCode::ReplicaNotAvailable)]);
    }
    let long: &'static str = "l".repeat(220).leak();
    assert_eq!(alter(&broker, 2, long, &[("/data2", 0)]), [code(ErrorCode::InvalidTopicException)]);
    // Of two wishes the last one counts.
    let here = place(&broker, 0);
    let (here, there) = if here == "/data" { ("/data", "/data2") } else { ("/data2", "/data") };
    assert_eq!(alter(&broker, 2, "t", &[("/nowhere", 0), (there, 0)]), [0]);
    broker.world().advance_ms(500);
    assert_eq!(place(&broker, 0), there);
    assert_eq!(alter(&broker, 2, "t", &[(there, 0), (here, 0)]), [0]);
    broker.world().advance_ms(500);
    assert_eq!(place(&broker, 0), here);
}

#[test]
fn where_a_partition_is_to_be_is_remembered_until_it_is_made() {
    for shards in SHARDS {
        let broker = with_dirs(shards, 3);
        let not_here = ErrorCode::ReplicaNotAvailable.get();
        let wishes = [("/data3", 0), ("/data3", 1), ("/data3", 2)];
        assert_eq!(alter(&broker, 2, "t", &wishes), [not_here; 3]);
        broker.create("t", 4, &[]);
        let placed = places(&broker);
        assert!((0..3).all(|partition| placed[&(partition, false)] == "/data3"), "{placed:?}");
        assert_eq!(placed[&(3, false)], "/data");
    }
}

/// A move that finds no room for its copy, and so does not come to its end.
fn held_up(broker: &Broker, partition: i32, to: &'static str) {
    produce(broker, partition, 0, 10);
    let fault =
        Fault { path_contains: "-future/0", times: u64::MAX, error: FULL, ..Fault::once(OpKind::Write) };
    broker.world().disk().fail(fault);
    assert_eq!(alter(broker, 2, "t", &[(to, partition)]), [0]);
    broker.world().advance_ms(3000);
    assert_eq!(places(broker).get(&(partition, true)).map(String::as_str), Some(to));
}

#[test]
fn a_move_without_room_waits_and_tells_how_far_it_is() {
    let broker = with_dirs(1, 2);
    broker.create("t", 1, &[]);
    held_up(&broker, 0, "/data2");
    let answer = describe(&broker);
    let copy = &answer.results[1].topics[0].partitions[0];
    assert_eq!((copy.is_future_key, copy.offset_lag), (true, 10));
    produce(&broker, 0, 10, 1);
    broker.world().disk().heal();
    broker.world().advance_ms(3000);
    assert_eq!(place(&broker, 0), "/data2");
    assert_eq!(numbers(&broker, 0, 0), (0..11).collect::<Vec<u8>>());
}

#[test]
fn a_move_is_ended_by_a_wish_for_another_place() {
    let broker = with_dirs(2, 3);
    broker.create("t", 1, &[]);
    held_up(&broker, 0, "/data2");
    // The same again changes nothing.
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
    assert_eq!(alter(&broker, 2, "t", &[("/data3", 0)]), [0]);
    broker.world().advance_ms(2000);
    let placed = places(&broker);
    assert_eq!(placed.get(&(0, true)).map(String::as_str), Some("/data3"), "{placed:?}");
    assert!(names(&broker, "/data2").iter().all(|name| name.ends_with("-delete")));
    // Where it is: nothing is moved any more.
    assert_eq!(alter(&broker, 2, "t", &[("/data", 0)]), [0]);
    broker.world().disk().heal();
    broker.world().advance_ms(2000);
    assert_eq!(places(&broker), BTreeMap::from([((0, false), "/data".to_owned())]));
    broker.world().advance_ms(61_000);
    assert!(names(&broker, "/data2").is_empty() && names(&broker, "/data3").is_empty());
    assert_eq!(numbers(&broker, 0, 0), (0..10).collect::<Vec<u8>>());
}

#[test]
fn a_log_that_moves_is_neither_compacted_nor_cut_by_retention() {
    let broker = with_dirs(1, 2);
    broker.create("t", 1, &[("segment.bytes", "300"), ("retention.bytes", "400")]);
    held_up(&broker, 0, "/data2");
    broker.world().advance_ms(700_000);
    assert_eq!(broker.client().fetch_one("t", 0, 0).log_start_offset, 0, "kept while it moves");
    broker.world().disk().heal();
    broker.world().advance_ms(3000);
    assert_eq!(place(&broker, 0), "/data2");
    broker.world().advance_ms(301_000);
    assert!(broker.client().fetch_one("t", 0, 9).log_start_offset > 0, "and not any more");
}

#[test]
fn a_deleted_topic_takes_its_copies_with_it() {
    let broker = with_dirs(2, 2);
    broker.create("t", 1, &[]);
    held_up(&broker, 0, "/data2");
    broker.delete("t");
    broker.world().disk().heal();
    for dir in ["/data", "/data2"] {
        assert!(names(&broker, dir).iter().all(|name| name.ends_with("-delete")), "{dir}");
    }
    broker.world().advance_ms(61_000);
    assert!(names(&broker, "/data").is_empty() && names(&broker, "/data2").is_empty());
}

/// What a start finds in a log dir.
fn found(disk: &SimDisk, dir: &'static str) -> LogHome {
    let runtime = SimRuntime::on(3, disk.clone());
    let inside = runtime.clone();
    let opened = runtime.block_on(async move {
        let identity = Identity { broker_id: Some(ME), cluster_id: Some("c".to_owned()) };
        LogDir::open(inside, Path::new(dir), &identity, 60_000).await.unwrap()
    });
    let found = FoundInDir::of(&opened);
    LogHome {
        clean: opened.dir.was_clean(),
        checkpoints: Arc::new(found.checkpoints),
        futures: Arc::new(found.futures),
        ..home(Path::new(dir))
    }
}

#[test]
fn a_move_goes_on_after_a_kill_a_power_cut_and_a_stop() {
    for (crash, is_stop) in [
        (Crash::KeepAll, false),
        (Crash::DropUnsynced, false),
        (Crash::Torn(5), false),
        (Crash::KeepAll, true),
    ] {
        let broker = with_dirs(2, 2);
        broker.create("t", 1, &[("segment.bytes", "600")]);
        produce(&broker, 0, 0, 40);
        broker.world().advance_ms(61_000);
        // Some of it is copied when the disk runs full.
        let fault = Fault {
            path_contains: "-future/0",
            times: u64::MAX,
            after: 3,
            error: FULL,
            ..Fault::once(OpKind::Write)
        };
        broker.world().disk().fail(fault);
        assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
        broker.world().advance_ms(2000);
        assert!(places(&broker).contains_key(&(0, true)));
        broker.world().disk().heal();
        if is_stop {
            assert!(broker.close().iter().all(|closed| closed.is_clean()));
        }
        let disk = broker.world().disk().crash(crash);
        drop(broker);
        let (first, second) = (found(&disk, "/data"), found(&disk, "/data2"));
        assert_eq!((first.futures.len(), second.futures.len()), (0, 1), "{crash:?}");
        let start = Start {
            disk,
            others: vec![second],
            checkpoints: (*first.checkpoints).clone(),
            ..Start::default()
        };
        let broker = Broker::start(8, 1, start);
        let topic = topic("t", TopicId::new(id_of("t")), (1, 1), &[("segment.bytes", "600")]);
        assert_eq!(broker.try_become(&topic, 0, 1, (ME, false)), Ok(()));
        broker.publish(topic);
        produce(&broker, 0, 40, 1);
        broker.world().advance_ms(3000);
        assert_eq!(place(&broker, 0), "/data2", "{crash:?}");
        let read = numbers(&broker, 0, 0);
        assert_eq!(read, (0..41).collect::<Vec<u8>>(), "{crash:?}");
        assert!(names(&broker, "/data").iter().all(|name| name.ends_with("-delete")));
    }
}

/// A broker whose failed dirs are told to somebody.
pub fn watched(
    shards: u16,
    dirs: usize,
) -> (Broker, DirWatch<SimShard>, std::rc::Rc<std::cell::RefCell<Vec<OutOfService>>>) {
    let broker = with_dirs(shards, dirs);
    let mut dirs = BTreeMap::new();
    for path in broker.table.paths() {
        let (shard, at) = (broker.shards[0].clone(), path.clone());
        let opened = broker.run(async move {
            let identity = Identity { broker_id: Some(ME), cluster_id: Some("c".to_owned()) };
            LogDir::open(shard, &at, &identity, 60_000).await.unwrap()
        });
        dirs.insert(path.clone(), opened.dir);
    }
    let told: std::rc::Rc<std::cell::RefCell<Vec<OutOfService>>> = std::rc::Rc::default();
    let sink = told.clone();
    let halt = |why: &_| panic!("{why}");
    let tell = move |gone| sink.borrow_mut().push(gone);
    let watch = DirWatch::start(&broker.shards[0], broker.owners[0].clone(), dirs, None, halt, tell);
    broker.world().run_until_idle();
    (broker, watch, told)
}

#[test]
fn a_dir_that_fails_is_offline_while_the_other_serves() {
    // T-17
    for shards in SHARDS {
        let (broker, _watch, told) = watched(shards, 2);
        broker.create("t", 6, &[]);
        for partition in 0..6 {
            produce(&broker, partition, 0, 2);
        }
        let placed = places(&broker);
        let there =
            |dir: &str| (0..6).filter(|partition| placed[&(*partition, false)] == dir).collect::<Vec<_>>();
        let (gone, left) = (there("/data2"), there("/data"));
        assert_eq!((gone.len(), left.len()), (3, 3));
        let fault = Fault { path_contains: "/data2/", ..Fault::once(OpKind::Write) };
        broker.world().disk().fail(fault);
        assert_eq!(broker.client().produce_one("t", gone[1], batch(&[b"x"])).error_code, STORAGE);
        broker.world().run_until_idle();
        let before = broker.world().disk().operation_count();
        for partition in &gone {
            assert_eq!(broker.client().produce_one("t", *partition, batch(&[b"x"])).error_code, STORAGE);
            assert_eq!(broker.client().fetch_one("t", *partition, 0).error_code, STORAGE);
        }
        assert_eq!(broker.world().disk().operation_count(), before, "nothing is done there any more");
        for partition in &left {
            produce(&broker, *partition, 2, 1);
            assert_eq!(numbers(&broker, *partition, 0), [0, 1, 2]);
        }
        let told = told.take();
        assert_eq!(told.len(), 1);
        let mut named: Vec<_> = told[0].partitions.iter().map(|of| of.partition).collect();
        named.sort_unstable();
        assert_eq!((&*told[0].failure.dir, named), (Path::new("/data2"), gone.clone()));
        let answer = describe(&broker);
        let (first, second) = (&answer.results[0], &answer.results[1]);
        assert_eq!((first.error_code, &*first.log_dir, first.topics[0].partitions.len()), (0, "/data", 3));
        assert_eq!((second.error_code, &*second.log_dir, second.topics.len()), (STORAGE, "/data2", 0));
        assert_eq!((second.total_bytes, second.usable_bytes), (-1, -1));
        // New partitions go to the other one; what is not new may be in the failed one.
        let topic = topic("u", TopicId::new(id_of("u")), (2, 1), &[]);
        assert_eq!(broker.try_become(&topic, 0, 0, (ME, true)), Ok(()));
        assert_eq!(broker.try_become(&topic, 1, 0, (ME, false)), Err(BecomeError::Storage));
        // No move begins, neither there nor elsewhere.
        assert_eq!(alter(&broker, 2, "t", &[("/data2", left[0])]), [STORAGE]);
        assert_eq!(alter(&broker, 2, "t", &[("/data", gone[0])]), [STORAGE]);
        assert_eq!(alter(&broker, 2, "t", &[("/data", left[0])]), [0], "it is there");
        let closed = broker.close();
        let unclean: Vec<_> = closed.iter().flat_map(|closed| &closed.unclean).collect();
        assert!(unclean.iter().all(|dir| ***dir == *Path::new("/data2")), "{unclean:?}");
    }
}

#[test]
fn a_move_ends_with_the_dir_that_it_goes_to_and_the_log_is_served_on() {
    let (broker, _watch, told) = watched(2, 2);
    broker.create("t", 1, &[]);
    held_up(&broker, 0, "/data2");
    broker.world().disk().heal();
    broker.world().disk().fail(Fault { path_contains: "-future/0", ..Fault::once(OpKind::Write) });
    broker.world().advance_ms(3000);
    assert_eq!(told.borrow().len(), 1);
    assert_eq!(places(&broker), BTreeMap::from([((0, false), "/data".to_owned())]));
    produce(&broker, 0, 10, 2);
    assert_eq!(numbers(&broker, 0, 0), (0..12).collect::<Vec<u8>>());
    let copies = names(&broker, "/data2");
    assert!(
        copies.len() == 1 && copies[0].ends_with("-future"),
        "nothing is done there any more: {copies:?}"
    );
}

#[test]
fn a_move_ends_with_the_dir_that_it_comes_from() {
    let (broker, _watch, told) = watched(2, 2);
    broker.create("t", 1, &[]);
    held_up(&broker, 0, "/data2");
    broker.world().disk().fail(Fault { path_contains: "/data/t-0", ..Fault::once(OpKind::Write) });
    assert_eq!(broker.client().produce_one("t", 0, batch(&[b"x"])).error_code, STORAGE);
    broker.world().disk().heal();
    broker.world().advance_ms(3000);
    assert_eq!(told.borrow().len(), 1);
    assert_eq!(places(&broker), BTreeMap::new());
    assert_eq!(broker.client().fetch_one("t", 0, 0).error_code, STORAGE);
    assert!(names(&broker, "/data2").iter().any(|name| name.ends_with("-future")), "the next start goes on");
}

/// Whatever operation fails while a log is moved: what was acknowledged is read, or the broker says that a dir has failed.
#[test]
fn a_failure_at_any_point_of_a_move_loses_nothing() {
    for after in (0..40).step_by(5) {
        for path_contains in ["/data/", "/data2/"] {
            for kind in [OpKind::Write, OpKind::Names, OpKind::SyncDir, OpKind::SyncData, OpKind::Open] {
                let (broker, _watch, told) = watched(1, 2);
                broker.create("t", 1, &[("segment.bytes", "600")]);
                produce(&broker, 0, 0, 12);
                broker.world().disk().fail(Fault { path_contains, after, ..Fault::once(kind) });
                let code = alter(&broker, 2, "t", &[("/data2", 0)]);
                broker.world().advance_ms(3000);
                broker.world().disk().heal();
                let case = format!("{path_contains} {kind:?} {after}: {code:?} {:?}", told.borrow());
                let data = broker.client().fetch_one("t", 0, 0);
                if told.borrow().is_empty() {
                    assert_eq!(data.error_code, 0, "{case}");
                }
                if data.error_code == 0 {
                    assert_eq!(numbers(&broker, 0, 0), (0..12).collect::<Vec<u8>>(), "{case}");
                    produce(&broker, 0, 12, 1);
                } else {
                    assert_eq!(data.error_code, STORAGE, "{case}");
                }
            }
        }
    }
}

//! Stops, kills and starts again, also with another number of shards; deletion; full disks. V-57, V-62, V-80, V-85; A-16.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use broker::partition::ask::{BecomeError, Sample};
use broker::partition::lifecycle::Checkpoints;
use broker::shard::sim::SimShard;
use broker::start::checkpoints::{CheckpointIntervals, CheckpointTask, FoundInDir};
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;
use storage::io::sim::Crash;
use storage::io::{DirDone, DirOp, Runtime};
use storage::log_dir::{LogDir, OpenedLogDir};
use storage::meta_properties::Identity;

use crate::harness::*;

fn checkpoints(samples: &[Sample]) -> Checkpoints {
    let mut checkpoints = Checkpoints::default();
    for sample in samples {
        let partition = &sample.partition;
        checkpoints.recovery_points.insert(partition.clone(), sample.recovery_point);
        checkpoints.high_watermarks.insert(partition.clone(), sample.high_watermark);
        if let Some(start) = sample.log_start_offset {
            checkpoints.log_start_offsets.insert(partition.clone(), start);
        }
    }
    checkpoints
}

fn contents(broker: &Broker, partitions: i32) -> BTreeMap<i32, Vec<Vec<u8>>> {
    let client = broker.client();
    (0..partitions).map(|partition| (partition, values(&client.fetch_one("t", partition, 0)))).collect()
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill_with_any_number_of_shards() {
    // V-56 for one broker, V-57, V-85
    for (before, after) in [(1, 5), (2, 1), (5, 2), (2, 2)] {
        let broker = Broker::start(3, before, Start::default());
        broker.create("t", 5, &[]);
        let client = broker.client();
        for round in 0..4u8 {
            for partition in 0..5 {
                client.produce_one("t", partition, batch(&[&[round]]));
            }
        }
        client.produce_one("t", 3, idempotent(8, 0, 0, 1));
        let known = contents(&broker, 5);
        broker.world().kill();
        let disk = broker.world().disk().crash(Crash::KeepAll);
        drop(broker);
        let broker = Broker::start(4, after, Start { disk, ..Start::default() });
        broker.create("t", 5, &[]);
        assert_eq!(contents(&broker, 5), known);
        let part = broker.client().produce_one("t", 3, idempotent(8, 0, 0, 1));
        assert_eq!((part.error_code, part.base_offset), (0, 4), "the producer is known again");
        let part = broker.client().produce_one("t", 0, batch(&[b"on"]));
        assert_eq!((part.error_code, part.base_offset), (0, 4));
    }
}

#[test]
fn a_clean_stop_keeps_everything_and_the_checkpoints() {
    let broker = Broker::start(3, 2, Start::default());
    broker.create("t", 2, &[]);
    let client = broker.client();
    for _ in 0..6 {
        client.produce_one("t", 1, batch(&[b"x"]));
    }
    let partitions = vec![DeleteRecordsPartition { partition_index: 1, offset: 4 }];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let _: DeleteRecordsResponse<'static> =
        client.call(2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
    let closed = broker.close();
    assert!(closed.iter().all(|closed| closed.is_clean()));
    let samples: Vec<_> = closed.into_iter().flat_map(|closed| closed.samples).collect();
    let of_one = samples.iter().find(|sample| sample.partition.partition == 1).unwrap();
    assert_eq!((of_one.high_watermark.get(), of_one.recovery_point.get()), (6, 6));
    assert_eq!(of_one.log_start_offset, Some(Offset::new(4)));
    assert!(broker.samples().is_empty(), "nothing is held any more");
    let refused = client.produce_one("t", 1, batch(&[b"late"]));
    assert_eq!(refused.error_code, ErrorCode::NotLeaderOrFollower.get());
    let disk = broker.world().disk().clone();
    let start = Start { disk, checkpoints: checkpoints(&samples), clean: true, ..Start::default() };
    let broker = Broker::start(4, 1, start);
    broker.create("t", 2, &[]);
    let data = broker.client().fetch_one("t", 1, 4);
    assert_eq!((data.log_start_offset, data.high_watermark, values(&data).len()), (4, 6, 2));
    assert_eq!(broker.client().fetch_one("t", 1, 3).error_code, ErrorCode::OffsetOutOfRange.get());
}

#[test]
fn a_topic_created_again_does_not_serve_its_predecessor() {
    // V-62, V-80
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create_as("t", TopicId::new([1; 16]), 2, &[]);
        let old = broker.topic("t");
        let client = broker.client();
        client.produce_one("t", 1, batch(&[b"old"]));
        broker.delete("t");
        let gone = client.produce_one("t", 1, batch(&[b"x"]));
        assert_eq!(gone.error_code, ErrorCode::UnknownTopicOrPartition.get());
        broker.create_as("t", TopicId::new([2; 16]), 2, &[]);
        assert_eq!(client.fetch_one("t", 1, 0).high_watermark, 0);
        client.produce_one("t", 1, batch(&[b"new"]));
        broker.publish(old);
        let stale = client.produce_one("t", 1, batch(&[b"to the old one"]));
        assert_eq!(stale.error_code, ErrorCode::NotLeaderOrFollower.get(), "a stale route is retriable");
        broker.world().advance_ms(70_000);
    }
}

#[test]
fn a_full_disk_refuses_appends_and_serves_reads() {
    // A-16, F26
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    client.produce_one("t", 0, batch(&[b"kept"]));
    broker.world().disk().set_capacity_bytes(Some(0));
    let part = client.produce_one("t", 0, batch(&[&[1; 5000]]));
    assert_eq!((part.error_code, part.base_offset), (ErrorCode::KafkaStorageError.get(), -1));
    let part = client.produce(3, 1, vec![("t", 0, batch(&[&[1; 5000]]))]).remove(0);
    assert_eq!(part.error_code, ErrorCode::NotLeaderOrFollower.get(), "version 3 does not know the code");
    assert_eq!(values(&client.fetch_one("t", 0, 0)), [b"kept"]);
    broker.world().disk().set_capacity_bytes(None);
    broker.world().advance_ms(2000);
    let part = client.produce_one("t", 0, batch(&[b"again"]));
    assert_eq!((part.error_code, part.base_offset), (0, 1));
    assert_eq!(values(&client.fetch_one("t", 0, 0)), [&b"kept"[..], b"again"]);
}

#[test]
fn old_segments_go_by_retention() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[("segment.bytes", "300"), ("retention.bytes", "600")]);
    let client = broker.client();
    for round in 0..20u8 {
        client.produce_one("t", 1, batch(&[&[round; 100]]));
    }
    assert_eq!(client.fetch_one("t", 1, 0).log_start_offset, 0);
    broker.world().advance_ms(301_000);
    let data = client.fetch_one("t", 1, 19);
    assert!(data.log_start_offset > 10, "{}", data.log_start_offset);
    assert_eq!(client.fetch_one("t", 1, 0).error_code, ErrorCode::OffsetOutOfRange.get());
}

#[test]
fn checkpoints_follow_and_a_clean_stop_leaves_the_marker() {
    // storage.md 8.3, S-7, S-8
    let broker = Broker::start(3, 2, Start::default());
    let opened = open_dir(&broker);
    assert!(!opened.dir.was_clean());
    broker.create("t", 3, &[]);
    let task = checkpoint_task(&broker, &opened);
    for partition in 0..3 {
        broker.client().produce_one("t", partition, batch(&[b"x"]));
    }
    broker.world().advance_ms(5100);
    let content = |name: &str| {
        let bytes = broker.world().disk().content(Path::new("/data").join(name));
        bytes.map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let file = content("replication-offset-checkpoint").unwrap();
    assert_eq!(file, "0\n3\nt 0 1\nt 1 1\nt 2 1\n");
    let operations = broker.world().disk().operation_count();
    broker.world().advance_ms(30_000);
    assert_eq!(broker.world().disk().operation_count(), operations, "nothing changed, nothing is written");
    assert!(broker.run(task.stop()).are_marked());
    assert_eq!(content("recovery-point-offset-checkpoint").unwrap(), "0\n3\nt 0 1\nt 1 1\nt 2 1\n");
    assert!(content(".kafka_cleanshutdown").is_some());
    let disk = broker.world().disk().clone();
    let again = Broker::start(4, 1, Start { disk, ..Start::default() });
    let opened = open_dir(&again);
    assert!(opened.dir.was_clean());
    assert_eq!(FoundInDir::of(&opened).checkpoints.high_watermarks.len(), 3);
}

/// Opens the log dir of a broker of the harness, as shard 0 does before anything else.
pub fn open_dir(broker: &Broker) -> OpenedLogDir<SimShard> {
    let identity = Identity { broker_id: Some(ME), cluster_id: Some("cluster".to_owned()) };
    let zero = broker.shards[0].clone();
    broker.run(async move { LogDir::open(zero, Path::new("/data"), &identity, 60_000).await.unwrap() })
}

pub fn checkpoint_task(broker: &Broker, opened: &OpenedLogDir<SimShard>) -> CheckpointTask<SimShard> {
    let intervals =
        CheckpointIntervals { high_watermark_ms: 5000, recovery_point_ms: 60_000, log_start_ms: 60_000 };
    let dir = vec![(opened.dir.clone(), FoundInDir::of(opened))];
    CheckpointTask::start(&broker.shards[0], broker.owners[0].clone(), dir, intervals)
}

#[test]
fn a_log_that_cannot_be_opened_costs_the_mark_of_a_clean_stop_and_keeps_its_checkpoints() {
    // KAFKA-15375, storage.md 1.5: its deleted records must not come back.
    let broker = Broker::start(3, 1, Start::default());
    let opened = open_dir(&broker);
    broker.create("t", 2, &[]);
    for _ in 0..3 {
        broker.client().produce_one("t", 1, batch(&[b"x"]));
    }
    let partitions = vec![DeleteRecordsPartition { partition_index: 1, offset: 2 }];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let _: DeleteRecordsResponse<'static> =
        broker.client().call(2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
    assert!(broker.run(checkpoint_task(&broker, &opened).stop()).are_marked());

    let disk = broker.world().disk().clone();
    drop((broker, opened));
    disk.put("/data/t-1/partition.metadata", b"no id").unwrap();
    let again = Broker::start(4, 1, Start { disk, ..Start::default() });
    let opened = open_dir(&again);
    assert!(opened.dir.was_clean());
    let topic = topic("t", TopicId::new(id_of("t")), (2, 1), &[]);
    assert_eq!(again.try_become(&topic, 0, 1, (ME, false)), Ok(()));
    assert_eq!(again.try_become(&topic, 1, 1, (ME, false)), Err(BecomeError::Storage));
    let task = checkpoint_task(&again, &opened);
    again.world().advance_ms(61_000);
    assert!(!again.run(task.stop()).are_marked(), "a log was not recovered");
    let content = |name: &str| again.world().disk().content(Path::new("/data").join(name));
    assert_eq!(content(".kafka_cleanshutdown"), None);
    let high_watermarks = String::from_utf8(content("replication-offset-checkpoint").unwrap()).unwrap();
    assert_eq!(high_watermarks, "0\n2\nt 0 0\nt 1 3\n");
    let starts = String::from_utf8(content("log-start-offset-checkpoint").unwrap()).unwrap();
    assert_eq!(starts, "0\n1\nt 1 2\n");
}

#[test]
fn the_logs_of_a_dir_are_in_order_when_the_last_one_that_was_there_is_open_or_deleted() {
    let broker = Broker::start(3, 2, Start::default());
    broker.create("t", 3, &[]);
    broker.client().produce_one("t", 2, batch(&[b"x"]));
    let disk = broker.world().disk().crash(Crash::KeepAll);
    drop(broker);
    for deletes in [false, true] {
        let again = Broker::start(4, 2, Start { disk: disk.crash(Crash::KeepAll), ..Start::default() });
        let opened = open_dir(&again);
        let task = checkpoint_task(&again, &opened);
        let called = Rc::new(Cell::new(false));
        let inside = called.clone();
        task.when_all_are_open(&again.shards[0], Path::new("/data"), move || inside.set(true));
        let topic = topic("t", TopicId::new(id_of("t")), (3, 2), &[]);
        for partition in 0..2 {
            again.world().advance_ms(5000);
            assert!(!called.get(), "before {partition}");
            assert_eq!(again.try_become(&topic, partition, 1, (ME, false)), Ok(()));
        }
        again.world().advance_ms(5000);
        assert!(!called.get(), "one is left");
        if deletes {
            let files = task.files();
            again.run(async move { files.forget(vec![TopicPartition::new(TopicName::new("t"), 2)]).await });
        } else {
            assert_eq!(again.try_become(&topic, 2, 1, (ME, false)), Ok(()));
        }
        // The longest pause between two looks.
        again.world().advance_ms(16_100);
        assert!(called.get(), "deletes {deletes}");
    }
}

#[test]
fn checkpoints_of_directories_that_metadata_does_not_know_are_kept() {
    // A directory of Kafka's, or lost metadata: the next broker on it needs them.
    let broker = Broker::start(3, 2, Start::default());
    let opened = open_dir(&broker);
    broker.create("t", 3, &[]);
    broker.client().produce_one("t", 2, batch(&[b"x"]));
    assert!(broker.run(checkpoint_task(&broker, &opened).stop()).are_marked());
    let disk = broker.world().disk().clone();
    drop((broker, opened));
    let again = Broker::start(4, 2, Start { disk, ..Start::default() });
    let opened = open_dir(&again);
    assert!(again.run(checkpoint_task(&again, &opened).stop()).are_marked());
    let file = again.world().disk().content("/data/replication-offset-checkpoint").unwrap();
    assert_eq!(String::from_utf8(file).unwrap(), "0\n3\nt 0 0\nt 1 0\nt 2 1\n");
}

#[test]
fn a_new_topic_takes_nothing_of_an_unknown_directory_of_its_name() {
    let broker = Broker::start(3, 1, Start::default());
    broker.create("t", 1, &[]);
    broker.client().produce_one("t", 0, batch(&[b"old"]));
    let closed = broker.close();
    let known = checkpoints(&closed.into_iter().flat_map(|closed| closed.samples).collect::<Vec<_>>());
    let disk = broker.world().disk().clone();
    drop(broker);
    let again = Broker::start(4, 1, Start { disk, checkpoints: known, clean: true, ..Start::default() });
    again.create_as("t", TopicId::new([9; 16]), 1, &[]);
    assert_eq!(again.client().produce_one("t", 0, batch(&[b"new"])).base_offset, 0);
    assert_eq!(values(&again.client().fetch_one("t", 0, 0)), [b"new".to_vec()]);
    let zero = again.shards[0].clone();
    let listed = again.run(async move { zero.dir(DirOp::List("/data".into())).await.unwrap() });
    let DirDone::Entries(entries) = listed else { panic!("{listed:?}") };
    let strays: Vec<_> = entries.iter().filter(|entry| entry.name.ends_with("-stray")).collect();
    assert_eq!(strays.len(), 1, "kept, under a name that nobody serves: {entries:?}");
}

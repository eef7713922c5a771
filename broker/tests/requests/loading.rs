//! A start that serves each partition as soon as its own log is ready, and what comes while logs are being opened:
//! requests, newer roles, configurations, deletion, a stop. KAFKA-15375, V-64.

use std::path::Path;

use broker::metadata::image::TopicImage;
use broker::partition::ask::{
    Become, BecomeError, PartitionAnswer, PartitionAsk, SetConfig, StopError, StopPartition,
};
use broker::shard::ShardId;
use broker::shard::ask::Pending;
use broker::shard::sim::SimShard;
use broker::start::checkpoints::{CheckpointIntervals, CheckpointTask, FoundInDir};
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;
use storage::io::sim::{Crash, Fault, OpKind, SimDisk};
use storage::log_dir::{LogDir, OpenedLogDir};
use storage::meta_properties::Identity;

use crate::harness::*;

const PARTITIONS: i32 = 5;
const NOT_YET: i16 = ErrorCode::NotLeaderOrFollower.get();
/// Longer than a test looks at what the others do.
const SLOW_NANOS: u64 = 20_000_000_000;

/// A disk with a topic `t`, two records in each partition, of which the first was deleted in partition 0.
fn disk_of(is_clean: bool) -> SimDisk {
    let broker = Broker::new(1);
    let opened = open_dir(&broker);
    broker.create("t", PARTITIONS, &[]);
    let client = broker.client();
    for partition in 0..PARTITIONS {
        for value in [b"a", b"b"] {
            assert_eq!(client.produce_one("t", partition, batch(&[value])).error_code, 0);
        }
    }
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 1 }];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let _: DeleteRecordsResponse<'static> =
        client.call(2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
    assert!(broker.run(checkpoint_task(&broker, &opened).stop()).are_marked());
    let disk = broker.world().disk().crash(Crash::KeepAll);
    if !is_clean {
        // As if the next start had been killed.
        let again = Broker::start(5, 1, Start { disk: disk.clone(), ..Start::default() });
        assert!(open_dir(&again).dir.was_clean());
        again.world().kill();
        return again.world().disk().crash(Crash::KeepAll);
    }
    disk
}

fn open_dir(broker: &Broker) -> OpenedLogDir<SimShard> {
    let identity = Identity { broker_id: Some(ME), cluster_id: Some("cluster".to_owned()) };
    let zero = broker.shards[0].clone();
    broker.run(async move { LogDir::open(zero, Path::new("/data"), &identity, 60_000).await.unwrap() })
}

fn checkpoint_task(broker: &Broker, opened: &OpenedLogDir<SimShard>) -> CheckpointTask<SimShard> {
    let intervals =
        CheckpointIntervals { high_watermark_ms: 5000, recovery_point_ms: 60_000, log_start_ms: 60_000 };
    let dir = vec![(opened.dir.clone(), FoundInDir::of(opened))];
    CheckpointTask::start(&broker.shards[0], broker.owners[0].clone(), dir, intervals)
}

/// A broker that starts on a disk where everything about partition 0 is slow.
struct Starting {
    broker: Broker,
    opened: OpenedLogDir<SimShard>,
    topic: TopicImage,
    roles: Vec<Pending<PartitionAnswer>>,
}

impl Starting {
    fn new(shards: u16, is_clean: bool) -> Self {
        let disk = disk_of(is_clean);
        let looked = Broker::start(6, 1, Start { disk: disk.crash(Crash::KeepAll), ..Start::default() });
        let checkpoints = FoundInDir::of(&open_dir(&looked)).checkpoints;
        let broker =
            Broker::start(7, shards, Start { disk, checkpoints, clean: is_clean, ..Start::default() });
        let opened = open_dir(&broker);
        assert_eq!(opened.dir.was_clean(), is_clean);
        broker.world().disk().set_slow(Some(("/t-0", SLOW_NANOS)));
        let topic = topic("t", TopicId::new(id_of("t")), (PARTITIONS, usize::from(shards)), &[]);
        let ask = |shard: u16| {
            let owned = (0..PARTITIONS).filter(|p| owner(&topic, *p) == ShardId::new(shard));
            let roles = owned.map(|partition| role(&topic, partition, 1)).collect();
            broker.begin(ShardId::new(shard), PartitionAsk::Become(roles))
        };
        let roles = (0..shards).map(ask).collect();
        broker.publish(topic.clone());
        broker.world().advance_ms(500);
        Self { broker, opened, topic, roles }
    }

    /// The disk is as fast as others: all roles are taken; how it went, for partition 0 first.
    fn finish(&mut self) -> Vec<Result<(), BecomeError>> {
        self.broker.world().disk().set_slow(None);
        let roles = std::mem::take(&mut self.roles);
        let mut outcomes = Vec::new();
        for pending in roles {
            match self.broker.run(pending).unwrap() {
                PartitionAnswer::Became(results) => outcomes.extend(results),
                other => panic!("{other:?}"),
            }
        }
        outcomes
    }

    fn content(&self, name: &str) -> Option<String> {
        let content = self.broker.world().disk().content(Path::new("/data").join(name));
        content.map(|content| String::from_utf8(content).unwrap())
    }
}

fn owner(topic: &TopicImage, partition: i32) -> ShardId {
    topic.partitions[usize::try_from(partition).unwrap()].owner.unwrap()
}

fn role(topic: &TopicImage, partition: i32, epoch: i32) -> Become {
    Become {
        topic: topic.name.clone(),
        topic_id: topic.id,
        partition,
        leader: ME,
        leader_epoch: LeaderEpoch::new(epoch),
        partition_epoch: PartitionEpoch::new(epoch),
        replicas: vec![ME],
        isr: vec![ME],
        is_new: false,
        config: topic.config.clone(),
    }
}

fn stop(topic: &TopicImage, partition: i32, leader_epoch: Option<i32>) -> PartitionAsk {
    PartitionAsk::Stop(vec![StopPartition {
        topic: topic.name.clone(),
        topic_id: topic.id,
        partition,
        leader_epoch: leader_epoch.map(LeaderEpoch::new),
        delete: true,
    }])
}

fn latest(client: &Client, partition: i32) -> (i16, i64) {
    let partitions = vec![ListOffsetsPartition {
        partition_index: partition,
        timestamp: -1,
        ..ListOffsetsPartition::default()
    }];
    let topics = vec![ListOffsetsTopic { name: "t".into(), partitions }];
    let request = ListOffsetsRequest { replica_id: -1, isolation_level: 0, topics };
    let answer: ListOffsetsResponse<'static> = client.call(5, &request);
    let found = &answer.topics[0].partitions[0];
    (found.error_code, found.offset)
}

#[test]
fn a_slow_log_delays_no_other_and_is_served_when_it_is_ready() {
    for (shards, is_clean) in [(1, false), (2, false), (5, true)] {
        let mut starting = Starting::new(shards, is_clean);
        let broker = &starting.broker;
        let client = broker.client();
        for partition in 1..PARTITIONS {
            assert_eq!(values(&client.fetch_one("t", partition, 0)), [b"a", b"b"]);
            let part = client.produce_one("t", partition, batch(&[b"c"]));
            assert_eq!((part.error_code, part.base_offset), (0, 2), "partition {partition}");
        }
        assert_eq!(client.produce_one("t", 0, batch(&[b"c"])).error_code, NOT_YET);
        assert_eq!(client.fetch_one("t", 0, 1).error_code, NOT_YET);
        assert_eq!(latest(&client, 0), (NOT_YET, -1));
        // On every shard new topics come meanwhile.
        broker.create("new", 5, &[]);
        assert_eq!(client.produce_one("new", 0, batch(&[b"x"])).error_code, 0);
        assert!(starting.finish().into_iter().all(|outcome| outcome == Ok(())));
        assert_eq!(latest(&client, 0), (0, 2));
        assert_eq!(values(&client.fetch_one("t", 0, 1)), [b"b"]);
        let task = checkpoint_task(&starting.broker, &starting.opened);
        assert!(starting.broker.run(task.stop()).are_marked(), "everything was loaded");
        assert_eq!(starting.content("log-start-offset-checkpoint").unwrap(), "0\n1\nt 0 1\n");
    }
}

#[test]
fn a_fetch_of_a_log_that_is_being_opened_waits_and_ends_when_it_is_served() {
    let mut starting = Starting::new(1, false);
    let mut request = fetch_request(&[("t", 0, 1)]);
    request.max_wait_ms = 120_000;
    let client = starting.broker.client();
    let began = starting.broker.now_ms();
    starting.broker.world().disk().set_slow(None);
    let answer = client.fetch(11, &request);
    assert_eq!(answer.responses[0].partitions[0].error_code, 0);
    assert!(starting.broker.now_ms() - began < 60_000, "woken, not timed out");
    starting.finish();
}

#[test]
fn a_newer_role_takes_the_place_of_the_one_that_waits() {
    let mut starting = Starting::new(1, false);
    let broker = &starting.broker;
    let newer = role(&starting.topic, 0, 4);
    let newer = broker.begin(ShardId::CONTROL, PartitionAsk::Become(vec![newer]));
    let older = role(&starting.topic, 0, 3);
    let PartitionAnswer::Became(older) = broker.ask(ShardId::CONTROL, PartitionAsk::Become(vec![older]))
    else {
        panic!("another answer")
    };
    let (asked, current) = (PartitionEpoch::new(3), PartitionEpoch::new(4));
    assert_eq!(older, [Err(BecomeError::StaleEpoch { asked, current })]);
    let fenced = StopError::FencedLeaderEpoch { asked: LeaderEpoch::new(3), current: LeaderEpoch::new(4) };
    match broker.ask(ShardId::CONTROL, stop(&starting.topic, 0, Some(3))) {
        PartitionAnswer::Stopped(results) => assert_eq!(results, [Err(fenced)]),
        other => panic!("{other:?}"),
    }
    let config = SetConfig {
        topic_id: starting.topic.id,
        config: std::sync::Arc::new(config(&[("max.message.bytes", "80")])),
    };
    broker.ask(ShardId::CONTROL, PartitionAsk::SetConfig(config));
    assert!(starting.finish().into_iter().all(|outcome| outcome == Ok(())));
    match starting.broker.run(newer).unwrap() {
        PartitionAnswer::Became(results) => assert_eq!(results, [Ok(())]),
        other => panic!("{other:?}"),
    }
    let client = starting.broker.client();
    assert_eq!(client.produce_one("t", 0, batch(&[b"c"])).error_code, 0);
    assert_eq!(batches(&client.fetch_one("t", 0, 2))[0].info().partition_leader_epoch.get(), 4);
    let large = client.produce_one("t", 0, batch(&[&[7; 100]])).error_code;
    assert_eq!(large, ErrorCode::MessageTooLarge.get(), "by the newest configuration");
}

#[test]
fn a_topic_that_is_deleted_while_its_log_is_opened_is_gone() {
    for shards in [1, 2] {
        let mut starting = Starting::new(shards, false);
        let task = checkpoint_task(&starting.broker, &starting.opened);
        starting.broker.delete("t");
        let gone = (0..PARTITIONS).map(|partition| TopicPartition::new(TopicName::new("t"), partition));
        starting.broker.run(task.files().forget(gone.collect()));
        assert_eq!(starting.content("log-start-offset-checkpoint").unwrap(), "0\n0\n");
        assert_eq!(starting.content("recovery-point-offset-checkpoint").unwrap(), "0\n0\n");
        assert!(starting.finish().contains(&Err(BecomeError::Stopped)));
        let id = TopicId::new([3; 16]);
        starting.broker.create_as("t", id, PARTITIONS, &[]);
        let part = starting.broker.client().produce_one("t", 0, batch(&[b"new"]));
        assert_eq!((part.error_code, part.base_offset), (0, 0));
        assert!(starting.broker.run(task.stop()).are_marked(), "all that was there was loaded or deleted");
    }
}

#[test]
fn a_stop_while_logs_are_opened_marks_nothing_clean_that_was_not_and_loses_no_checkpoint() {
    for (shards, is_clean) in [(1, false), (2, false), (1, true), (2, true)] {
        let mut starting = Starting::new(shards, is_clean);
        assert_eq!(starting.broker.client().produce_one("t", 1, batch(&[b"c"])).error_code, 0);
        let task = checkpoint_task(&starting.broker, &starting.opened);
        assert_eq!(starting.broker.run(task.stop()).are_marked(), is_clean);
        assert_eq!(starting.content(".kafka_cleanshutdown").is_some(), is_clean);
        assert_eq!(starting.content("log-start-offset-checkpoint").unwrap(), "0\n1\nt 0 1\n");
        let points = starting.content("recovery-point-offset-checkpoint").unwrap();
        assert!(points.contains("t 0 2\n") && points.contains("t 1 3\n"), "{points}");
        assert!(starting.finish().contains(&Err(BecomeError::Stopped)));
        let disk = starting.broker.world().disk().crash(Crash::KeepAll);
        drop(starting);
        let again = Broker::start(9, 1, Start { disk, ..Start::default() });
        let opened = open_dir(&again);
        assert_eq!(opened.dir.was_clean(), is_clean);
        let checkpoints = FoundInDir::of(&opened).checkpoints;
        let disk = again.world().disk().crash(Crash::KeepAll);
        drop((opened, again));
        let again = Broker::start(9, 1, Start { disk, checkpoints, clean: is_clean, ..Start::default() });
        again.create("t", PARTITIONS, &[]);
        let client = again.client();
        assert_eq!(values(&client.fetch_one("t", 0, 1)), [b"b"]);
        assert_eq!(client.fetch_one("t", 0, 0).error_code, ErrorCode::OffsetOutOfRange.get());
        assert_eq!(values(&client.fetch_one("t", 1, 0)), [b"a", b"b", b"c"]);
    }
}

#[test]
fn a_directory_that_nobody_opened_after_a_crash_costs_the_mark_of_a_clean_stop() {
    // Of a topic that metadata does not know, say: were the dir called clean, its log would never be recovered.
    for is_clean in [true, false] {
        let broker = Broker::start(3, 1, Start { disk: disk_of(is_clean), ..Start::default() });
        let opened = open_dir(&broker);
        let task = checkpoint_task(&broker, &opened);
        assert_eq!(task.unopened().len(), 5);
        assert_eq!(broker.run(task.stop()).are_marked(), is_clean);
    }
}

#[test]
fn a_log_with_much_to_check_lets_others_go_first_but_waits_for_none_that_hangs() {
    let broker = Broker::new(1);
    broker.create("t", 4, &[("max.message.bytes", "2000000")]);
    let megabyte = vec![1; 1_000_000];
    for _ in 0..12 {
        assert_eq!(broker.client().produce_one("t", 1, batch(&[&megabyte])).error_code, 0);
    }
    broker.world().kill();
    let disk = broker.world().disk().crash(Crash::KeepAll);
    for hangs in [false, true] {
        let start = Start { disk: disk.crash(Crash::KeepAll), ..Start::default() };
        let broker = Broker::start(5, 1, start);
        // Partition 2 takes some hundred milliseconds, or far longer.
        let other = if hangs { SLOW_NANOS } else { 20_000_000 };
        broker.world().disk().set_slow(Some(("/t-2", other)));
        let topic = topic("t", TopicId::new(id_of("t")), (4, 1), &[]);
        let roles = (0..4).map(|partition| role(&topic, partition, 1)).collect();
        let pending = broker.begin(ShardId::CONTROL, PartitionAsk::Become(roles));
        broker.publish(topic);
        let client = broker.client();
        let mut order = Vec::new();
        for _ in 0..300 {
            broker.world().advance_ms(10);
            for partition in [1, 2] {
                if !order.contains(&partition) && latest(&client, partition).0 == 0 {
                    order.push(partition);
                }
            }
        }
        assert_eq!(order, if hangs { vec![1] } else { vec![2, 1] });
        broker.world().disk().set_slow(None);
        match broker.run(pending).unwrap() {
            PartitionAnswer::Became(results) => assert_eq!(results, vec![Ok(()); 4]),
            other => panic!("{other:?}"),
        }
        assert_eq!(latest(&client, 1), (0, 12));
    }
}

#[test]
fn a_topic_created_again_elsewhere_takes_nothing_that_checkpoints_said_of_its_predecessor() {
    // Its records below the old log start would be lost.
    let broker = Broker::start(3, 1, Start { disk: disk_of(true), ..Start::default() });
    let checkpoints = FoundInDir::of(&open_dir(&broker)).checkpoints;
    let disk = broker.world().disk().crash(Crash::KeepAll);
    let broker = Broker::start(4, 2, Start { disk, checkpoints, clean: true, ..Start::default() });
    broker.create("t", PARTITIONS, &[]);
    broker.delete("t");
    let mut moved = topic("t", TopicId::new([3; 16]), (PARTITIONS, 2), &[]);
    moved.partitions[0].owner = Some(ShardId::new(1));
    assert_eq!(broker.try_become(&moved, 0, 0, (ME, true)), Ok(()));
    broker.publish(moved);
    let part = broker.client().produce_one("t", 0, batch(&[b"new"]));
    assert_eq!((part.error_code, part.base_offset, part.log_start_offset), (0, 0, 0));
}

#[test]
fn a_log_that_is_being_opened_when_its_dir_fails_does_not_come_into_service() {
    const STORAGE: i16 = ErrorCode::KafkaStorageError.get();
    for is_clean in [false, true] {
        let mut starting = Starting::new(1, is_clean);
        let fault = Fault { path_contains: "t-1/", ..Fault::once(OpKind::Write) };
        starting.broker.world().disk().fail(fault);
        let client = starting.broker.client();
        assert_eq!(client.produce_one("t", 0, batch(&[b"c"])).error_code, NOT_YET, "still opened");
        assert_eq!(client.produce_one("t", 1, batch(&[b"c"])).error_code, STORAGE);
        assert_eq!(starting.finish()[0], Err(BecomeError::Storage));
        assert_eq!(client.produce_one("t", 0, batch(&[b"c"])).error_code, STORAGE);
        assert_eq!(client.fetch_one("t", 0, 0).error_code, STORAGE);
    }
}

#[test]
fn a_log_that_is_opened_beside_others_and_finds_no_room_takes_its_role_when_there_is_some() {
    const STORAGE: i16 = ErrorCode::KafkaStorageError.get();
    let mut starting = Starting::new(1, false);
    let full = Fault { path_contains: "t-0", ..Fault::once(OpKind::Open) };
    starting.broker.world().disk().fail(Fault { error: std::io::ErrorKind::StorageFull, ..full });
    assert_eq!(starting.finish()[0], Ok(()), "to the controller it is there");
    let client = starting.broker.client();
    assert_eq!(client.produce_one("t", 0, batch(&[b"c"])).error_code, STORAGE, "until there is room");
    starting.broker.world().advance_ms(2000);
    let part = client.produce_one("t", 0, batch(&[b"c"]));
    assert_eq!((part.error_code, part.base_offset, part.log_start_offset), (0, 2, 1), "with its checkpoints");
}

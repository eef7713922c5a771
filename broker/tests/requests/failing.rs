//! A failing disk and one that runs full: S-32, S-36, storage.md 8.4, A-16, T-17 for one log dir. One failed operation on
//! any file of the log dir takes the whole dir out of service on all shards, once; nothing is written in it any more, and
//! as it is the last one the process ends. Want of room does none of that.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use broker::partition::ask::{BecomeError, PartitionAnswer, PartitionAsk, StopError, StopPartition};
use broker::partition::log_dirs::DirWatch;
use broker::shard::ShardId;
use broker::shard::sim::SimShard;
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;
use storage::io::sim::{Fault, OpKind, SimDisk};
use storage::lock::DirLock;
use storage::log_dir::OpenedLogDir;

use crate::harness::*;
use crate::restart::{checkpoint_task, open_dir};

const STORAGE: i16 = ErrorCode::KafkaStorageError.get();

/// A broker whose end by a failed log dir is noted instead.
struct Watched {
    broker: Broker,
    opened: OpenedLogDir<SimShard>,
    said: Rc<RefCell<Vec<String>>>,
    _watch: DirWatch<SimShard>,
}

impl Watched {
    fn start(shards: u16, start: Start) -> Self {
        let broker = Broker::start(7, shards, start);
        let opened = open_dir(&broker);
        let said: Rc<RefCell<Vec<String>>> = Rc::default();
        let sink = said.clone();
        let dirs = [(Path::new("/data").into(), opened.dir.clone())].into();
        let halt = move |why: &_| sink.borrow_mut().push(format!("{why}"));
        let watch = DirWatch::start(&broker.shards[0], broker.owners[0].clone(), dirs, None, halt, |_| {});
        broker.world().run_until_idle();
        Self { broker, opened, said, _watch: watch }
    }

    fn disk(&self) -> &SimDisk {
        self.broker.world().disk()
    }

    fn tells(&self, partition: i32) -> (i16, i16) {
        let client = self.broker.client();
        let produced = client.produce_one("t", partition, batch(&[b"late"])).error_code;
        (produced, client.fetch_one("t", partition, 0).error_code)
    }

    /// All partitions of all shards are out of service, the process was told to end once, and nothing is written.
    fn assert_failed(self, file: &str) {
        let Self { broker, opened, said, _watch } = self;
        broker.world().run_until_idle();
        let said = said.take();
        assert_eq!(said.len(), 1, "{file}: {said:?}");
        assert!(
            said[0].starts_with("/data was the last log directory in service and has failed: "),
            "{said:?}"
        );
        assert!(said[0].contains(file), "{said:?}");
        let before = broker.world().disk().operation_count();
        let client = broker.client();
        for partition in 0..4 {
            assert_eq!(client.produce_one("t", partition, batch(&[b"late"])).error_code, STORAGE, "{file}");
            assert_eq!(client.fetch_one("t", partition, 0).error_code, STORAGE, "{file}");
        }
        let topic = topic("u", TopicId::new(id_of("u")), (1, 1), &[]);
        assert_eq!(broker.try_become(&topic, 0, 0, (ME, true)), Err(BecomeError::Storage));
        let known = broker.topic("t");
        assert_eq!(broker.try_become(&known, 0, 5, (ME, false)), Err(BecomeError::Storage));
        let stop = StopPartition {
            topic: known.name,
            topic_id: known.id,
            partition: 0,
            leader_epoch: None,
            delete: true,
        };
        match broker.ask(known.partitions[0].owner.unwrap(), PartitionAsk::Stop(vec![stop])) {
            PartitionAnswer::Stopped(results) => assert_eq!(results, [Err(StopError::Storage)]),
            other => panic!("{other:?}"),
        }
        let task = checkpoint_task(&broker, &opened);
        broker.world().advance_ms(700_000);
        assert!(!broker.run(task.stop()).are_marked(), "no mark of a clean stop");
        let after = broker.world().disk().operation_count();
        assert_eq!(after, before, "{file}: handles close without writing, no checkpoint is written");
    }
}

/// A topic of small segments on all shards, with some of everything in it.
fn working(shards: u16) -> Watched {
    working_on(shards, Start::default())
}

fn working_on(shards: u16, start: Start) -> Watched {
    let watched = Watched::start(shards, start);
    let settings = [
        ("segment.bytes", "300"),
        ("retention.bytes", "600"),
        ("file.delete.delay.ms", "1000"),
        ("index.interval.bytes", "0"),
    ];
    watched.broker.create("t", 4, &settings);
    for partition in 0..4 {
        for _ in 0..5 {
            let part = watched.broker.client().produce_one("t", partition, batch(&[&[7; 100]]));
            assert_eq!(part.error_code, 0);
        }
    }
    watched.broker.world().run_until_idle();
    watched
}

#[test]
fn a_failed_write_takes_the_log_dir_out_of_service_on_all_shards() {
    for shards in SHARDS {
        let watched = working(shards);
        let client = watched.broker.client();
        watched.disk().fail(Fault { path_contains: "t-3/", ..Fault::once(OpKind::Write) });
        let part = client.produce_one("t", 3, batch(&[b"x"]));
        assert_eq!(
            (part.error_code, part.base_offset),
            (STORAGE, -1),
            "what is not written is not acknowledged"
        );
        let old = client.fetch(5, &fetch_request(&[("t", 3, 0)]));
        assert_eq!(old.responses[0].partitions[0].error_code, ErrorCode::NotLeaderOrFollower.get());
        watched.assert_failed("write /data/t-3/");
    }
}

#[test]
fn any_operation_on_any_file_of_the_dir_does_the_same() {
    for (fault, file, after_ms) in [
        // The flush that advances the recovery point, and what it writes.
        (Fault { path_contains: "t-1/", ..Fault::once(OpKind::SyncData) }, "sync /data/t-1/", 61_000),
        (Fault { path_contains: "t-1", ..Fault::once(OpKind::SyncDir) }, "sync /data/t-1", 61_000),
        (Fault { path_contains: ".snapshot", ..Fault::once(OpKind::Write) }, ".snapshot", 61_000),
        (Fault { path_contains: ".index", ..Fault::once(OpKind::Write) }, ".index", 61_000),
        // Retention: the renaming, and the removal a second later.
        (Fault { path_contains: "t-2/", ..Fault::once(OpKind::Names) }, "/data/t-2/", 301_000),
        (Fault { path_contains: ".deleted", ..Fault::once(OpKind::Names) }, ".deleted", 303_000),
        // No disk that lacks room, but a file that may not grow (EFBIG), or a file system gone read-only.
        (Fault { error: ErrorKind::FileTooLarge, ..Fault::once(OpKind::SyncData) }, "sync", 61_000),
        (Fault { error: ErrorKind::ReadOnlyFilesystem, ..Fault::once(OpKind::SyncData) }, "sync", 61_000),
        // S-36: a sync that finds no room has dropped what it was to keep.
        (
            Fault { path_contains: ".log", error: ErrorKind::StorageFull, ..Fault::once(OpKind::SyncData) },
            ".log",
            61_000,
        ),
    ] {
        let watched = working(2);
        // What the working topic has left to flush in the background is done.
        for partition in 0..4 {
            watched.broker.client().produce_one("t", partition, idempotent(9, 0, 0, 1));
        }
        watched.disk().fail(fault);
        watched.broker.world().advance_ms(after_ms);
        watched.assert_failed(file);
    }
}

/// Epochs of what retention has removed are dropped by the flush that makes the removal durable, and the file follows with
/// the next removal.
#[test]
fn a_failed_write_of_the_epochs_does_the_same() {
    let watched = working(2);
    watched.broker.world().advance_ms(303_000);
    for partition in 0..4 {
        for _ in 0..5 {
            let part = watched.broker.client().produce_one("t", partition, batch(&[&[7; 100]]));
            assert_eq!(part.error_code, 0);
        }
    }
    watched.broker.world().advance_ms(61_000);
    watched.disk().fail(Fault { path_contains: "leader-epoch", ..Fault::once(OpKind::Write) });
    watched.broker.world().advance_ms(303_000);
    watched.assert_failed("leader-epoch");
}

#[test]
fn nobody_vouches_for_a_dir_that_has_failed() {
    // A failed sync is told once: the next process on this kernel would not hear of it.
    let operations = [
        Fault { path_contains: "t-1/", ..Fault::once(OpKind::SyncData) },
        Fault { path_contains: "t-3/", ..Fault::once(OpKind::Write) },
        Fault { path_contains: "t-0/", ..Fault::once(OpKind::Read) },
    ];
    for shards in SHARDS {
        for fault in operations.clone() {
            let real = tempfile::tempdir().unwrap();
            let lock = Arc::new(DirLock::acquire(real.path()).unwrap());
            if !lock.vouch().unwrap() {
                return;
            }
            let file = real.path().join(".lock");
            let is_vouched = || file.metadata().unwrap().len() > 0;
            let watched = working_on(shards, Start { lock: Some(lock.clone()), ..Start::default() });
            watched.broker.world().advance_ms(61_000);
            assert!(is_vouched());
            watched.disk().fail(fault.clone());
            for partition in 0..4 {
                watched.tells(partition);
            }
            watched.broker.world().advance_ms(61_000);
            assert!(!is_vouched(), "{shards} shards, {fault:?}");
            assert!(!lock.vouch().unwrap() && !is_vouched(), "nor later");
            assert_eq!(watched.said.borrow().len(), 1);
        }
    }
}

#[test]
fn a_failed_roll_or_read_does_the_same() {
    let watched = working(2);
    watched.disk().fail(Fault { path_contains: "t-0/", ..Fault::once(OpKind::Open) });
    assert_eq!(watched.broker.client().produce_one("t", 0, batch(&[&[1; 150]])).error_code, STORAGE);
    watched.assert_failed("open /data/t-0/");

    let watched = working(2);
    // Nothing of it is in memory any more.
    watched.broker.world().advance_ms(60_000);
    watched.disk().fail(Fault { path_contains: "t-0/", ..Fault::once(OpKind::Read) });
    assert_eq!(watched.broker.client().fetch_one("t", 0, 1).error_code, STORAGE);
    watched.assert_failed("read /data/t-0/");
}

#[test]
fn two_shards_that_fail_at_once_end_the_process_once() {
    let watched = working(2);
    watched.disk().fail(Fault { times: u64::MAX, ..Fault::once(OpKind::Write) });
    let parts = (0..4).map(|partition| ("t", partition, batch(&[b"x"]))).collect();
    for part in watched.broker.client().produce(9, -1, parts) {
        assert_eq!(part.error_code, STORAGE);
    }
    watched.disk().heal();
    watched.assert_failed("write /data/t-");
}

#[test]
fn a_log_that_cannot_be_loaded_or_deleted_does_the_same() {
    let watched = working(2);
    watched.disk().fail(Fault { path_contains: "u-0", ..Fault::once(OpKind::Open) });
    let topic = topic("u", TopicId::new(id_of("u")), (1, 1), &[]);
    assert_eq!(watched.broker.try_become(&topic, 0, 0, (ME, true)), Err(BecomeError::Storage));
    watched.broker.publish(topic);
    assert_eq!(watched.broker.client().produce_one("u", 0, batch(&[b"x"])).error_code, STORAGE);
    watched.assert_failed("open /data/u-0/");

    // The directory of a deleted partition, when its time has come.
    let watched = working(2);
    watched.broker.create("gone", 1, &[]);
    watched.broker.delete("gone");
    watched.disk().fail(Fault { path_contains: "-delete", ..Fault::once(OpKind::Names) });
    watched.broker.world().advance_ms(61_000);
    watched.assert_failed("-delete");
}

#[test]
fn a_checkpoint_that_cannot_be_written_does_the_same_unless_there_is_no_room() {
    let name = "replication-offset-checkpoint";
    let watched = working(2);
    let task = checkpoint_task(&watched.broker, &watched.opened);
    let no_room = Fault { path_contains: name, error: ErrorKind::StorageFull, ..Fault::once(OpKind::Write) };
    watched.disk().fail(no_room);
    watched.broker.world().advance_ms(5100);
    assert_eq!(watched.disk().content(Path::new("/data").join(name)), None);
    watched.broker.world().advance_ms(5100);
    assert!(watched.disk().content(Path::new("/data").join(name)).is_some(), "written when there is room");
    assert_eq!(watched.tells(0), (0, 0));
    watched.disk().fail(Fault { path_contains: name, ..Fault::once(OpKind::Write) });
    watched.broker.world().advance_ms(5100);
    drop(task);
    watched.assert_failed("replication-offset-checkpoint.tmp");
}

#[test]
fn a_disk_without_room_serves_what_is_there_and_what_is_new_as_soon_as_there_is_some() {
    // A-16, S-32: without a restart, and whatever was asked meanwhile.
    for error in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        let watched = working(2);
        let topic = topic("u", TopicId::new(id_of("u")), (2, 2), &[]);
        for kind in [OpKind::Write, OpKind::Open] {
            watched.disk().fail(Fault { path_contains: "u-", times: u64::MAX, error, ..Fault::once(kind) });
        }
        for partition in 0..2 {
            assert_eq!(watched.broker.try_become(&topic, partition, 0, (ME, true)), Ok(()), "it waits");
        }
        watched.broker.publish(topic.clone());
        let client = watched.broker.client();
        assert_eq!(client.produce_one("u", 1, batch(&[b"x"])).error_code, STORAGE);
        assert_eq!(client.fetch_one("u", 1, 0).error_code, STORAGE);
        watched.broker.world().advance_ms(5000);
        assert_eq!(client.produce_one("u", 1, batch(&[b"x"])).error_code, STORAGE);
        assert_eq!(watched.tells(0), (0, 0), "the others are served");
        // A newer state while it waits is the one that it takes.
        assert_eq!(watched.broker.try_become(&topic, 1, 3, (ME, false)), Ok(()));
        watched.disk().heal();
        watched.broker.world().advance_ms(1100);
        let part = client.produce_one("u", 1, batch(&[b"x"]));
        assert_eq!((part.error_code, part.base_offset), (0, 0));
        assert_eq!(batches(&client.fetch_one("u", 1, 0))[0].partition_leader_epoch(), LeaderEpoch::new(3));
        assert_eq!(client.produce_one("u", 0, batch(&[b"x"])).error_code, 0);
        assert_eq!(*watched.said.borrow(), Vec::<String>::new());
        assert!(watched.broker.close().iter().all(|closed| closed.is_clean()));
    }
}

#[test]
fn a_partition_that_waits_for_room_can_be_deleted_and_costs_the_mark_of_a_clean_stop() {
    let watched = working(1);
    let error = ErrorKind::StorageFull;
    watched.disk().fail(Fault { path_contains: "u-", times: u64::MAX, error, ..Fault::once(OpKind::Open) });
    watched.broker.create("u", 2, &[]);
    let topic = watched.broker.topic("u");
    let stop = |partition| StopPartition {
        topic: topic.name.clone(),
        topic_id: topic.id,
        partition,
        leader_epoch: None,
        delete: true,
    };
    match watched.broker.ask(ShardId::CONTROL, PartitionAsk::Stop(vec![stop(0)])) {
        PartitionAnswer::Stopped(results) => assert_eq!(results, [Ok(())]),
        other => panic!("{other:?}"),
    }
    let gone = watched.broker.client().produce_one("u", 0, batch(&[b"x"]));
    assert_eq!(gone.error_code, ErrorCode::NotLeaderOrFollower.get());
    assert!(!watched.broker.close()[0].is_clean(), "a log was not recovered (KAFKA-15375)");
}

#[test]
fn deleting_frees_room_where_not_even_a_name_has_any() {
    let watched = working(1);
    let error = ErrorKind::StorageFull;
    watched.broker.create("gone", 1, &[]);
    watched.disk().fail(Fault { path_contains: "gone-0", error, ..Fault::once(OpKind::Names) });
    watched.broker.delete("gone");
    assert_eq!(watched.disk().content("/data/gone-0/00000000000000000000.log"), None);
    assert_eq!(watched.tells(0), (0, 0));
}

#[test]
fn below_the_floor_produce_is_refused_and_everything_else_goes_on() {
    // S-32: before the disk is full.
    let floor_bytes = 1 << 20;
    let watched = Watched::start(2, Start { floor_bytes, ..Start::default() });
    watched.broker.create("t", 4, &[]);
    assert_eq!(watched.tells(0), (0, 0));
    watched.broker.world().advance_ms(1100);
    watched.disk().set_capacity_bytes(Some(floor_bytes));
    // The append that makes the shard look is taken: there is room for it.
    assert_eq!(watched.tells(0), (0, 0));
    watched.broker.world().run_until_idle();
    let client = watched.broker.client();
    let part = client.produce_one("t", 0, batch(&[b"x"]));
    assert_eq!((part.error_code, part.base_offset), (STORAGE, -1));
    assert_eq!(values(&client.fetch_one("t", 0, 0)).len(), 2, "reads go on");
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 1 }];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let deleted: DeleteRecordsResponse<'static> =
        client.call(2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
    assert_eq!(deleted.topics[0].partitions[0].error_code, 0, "deletes go on");
    watched.broker.world().advance_ms(5000);
    assert_eq!(watched.tells(0).0, STORAGE);
    watched.disk().set_capacity_bytes(None);
    watched.broker.world().advance_ms(1100);
    // The refused append that makes the shard look is refused all the same.
    watched.tells(0);
    watched.broker.world().run_until_idle();
    assert_eq!(watched.tells(0), (0, ErrorCode::OffsetOutOfRange.get()), "produce is taken again");
    let operations = watched.disk().operation_count();
    watched.broker.world().advance_ms(50_000);
    assert_eq!(watched.disk().operation_count(), operations, "an idle shard does not look");
}

use std::cell::RefCell;
use std::future::Future;

use protocol::types::{BrokerId, Offset};

use super::*;
use crate::io::sim::{Crash, Fault, OpKind, SimRuntime};
use crate::io::{Queue, Runtime};
use crate::meta_properties::{Identity, IdentityError};
use crate::names::ForeignDir;

const DIR: &str = "/data/kafka";
const DELAY_MS: i64 = 60_000;

fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(TopicName::new(topic), partition)
}

fn identity() -> Identity {
    Identity { broker_id: Some(BrokerId::new(1)), cluster_id: Some("cluster".to_owned()) }
}

fn offsets(entries: &[(&str, i32, i64)]) -> OffsetCheckpoint {
    let entry = |&(topic, partition, offset): &(&str, i32, i64)| (tp(topic, partition), Offset::new(offset));
    OffsetCheckpoint { offsets: entries.iter().map(entry).collect() }
}

/// Runs a test's body on a simulated machine.
fn on<F: Future<Output = ()> + 'static>(body: impl FnOnce(SimRuntime) -> F) -> SimRuntime {
    let runtime = SimRuntime::new(11);
    let future = body(runtime.clone());
    runtime.block_on(future);
    runtime
}

async fn mkdir(runtime: &SimRuntime, name: &str) {
    let path = Path::new(DIR).join(name);
    runtime.dir(DirOp::CreateAll(path)).await.unwrap();
}

async fn open(runtime: &SimRuntime) -> Result<OpenedLogDir<SimRuntime>, OpenError> {
    LogDir::open(runtime.clone(), Path::new(DIR), &identity(), DELAY_MS).await
}

fn has_marker(runtime: &SimRuntime) -> bool {
    runtime.disk().content(Path::new(DIR).join(CLEAN_SHUTDOWN)).is_some()
}

fn content(runtime: &SimRuntime, name: &str) -> String {
    String::from_utf8(runtime.disk().content(Path::new(DIR).join(name)).unwrap()).unwrap()
}

#[test]
fn a_missing_dir_is_created_with_its_owner() {
    on(|runtime| async move {
        let opened = open(&runtime).await.unwrap();
        assert!(!opened.dir.was_clean());
        assert!(opened.partitions.is_empty() && opened.malformed.is_empty());
        assert_eq!(content(&runtime, "meta.properties"), "#\nbroker.id=1\ncluster.id=cluster\nversion=0\n");
        let meta = FoundLogDir::look(&runtime, Path::new(DIR)).await.unwrap().meta_properties;
        assert_eq!(meta.as_ref(), Some(opened.dir.meta_properties()));
    });
}

#[test]
fn s4_a_complete_file_is_not_rewritten() {
    on(|runtime| async move {
        mkdir(&runtime, "").await;
        let text = b"#\n#a date\nversion=0\nbroker.id=1\ncluster.id=cluster\nmore=x\n";
        runtime.disk().put("/data/kafka/meta.properties", text).unwrap();
        open(&runtime).await.unwrap();
        assert_eq!(content(&runtime, "meta.properties").as_bytes(), text);
        // A field that was missing is added, and the rest stays.
        runtime.disk().put("/data/kafka/meta.properties", b"broker.id=1\nmore=x\n").unwrap();
        open(&runtime).await.unwrap();
        assert_eq!(
            content(&runtime, "meta.properties"),
            "#\nbroker.id=1\ncluster.id=cluster\nmore=x\nversion=0\n"
        );
    });
}

#[test]
fn s3_a_dir_of_another_broker_is_refused_and_keeps_its_marker() {
    on(|runtime| async move {
        mkdir(&runtime, "").await;
        runtime.disk().put("/data/kafka/.kafka_cleanshutdown", b"").unwrap();
        runtime.disk().put("/data/kafka/meta.properties", b"broker.id=2\n").unwrap();
        let refused = open(&runtime).await.err().unwrap();
        assert!(matches!(refused, OpenError::Identity { error: IdentityError::OtherBroker { .. }, .. }));
        assert_eq!(refused.to_string(), "/data/kafka: the directory belongs to broker 2, this is broker 1");
        runtime.disk().put("/data/kafka/meta.properties", b"version=9\n").unwrap();
        assert!(matches!(open(&runtime).await.err().unwrap(), OpenError::MetaProperties { .. }));
        assert!(has_marker(&runtime));
    });
}

#[test]
fn s1_a_foreign_directory_is_refused_with_its_name() {
    on(|runtime| async move {
        mkdir(&runtime, "lost+found").await;
        let refused = open(&runtime).await.err().unwrap();
        assert!(matches!(refused, OpenError::ForeignDir { why: ForeignDir::NotTopicPartition, .. }));
        assert_eq!(
            refused.to_string(),
            "/data/kafka/lost+found does not belong into a log dir: its name is not of the form topic-partition"
        );
    });
}

#[test]
fn partitions_are_listed_by_what_they_are_for() {
    on(|runtime| async move {
        let hex = "0123456789abcdef0123456789abcdef";
        let stray = format!("c-0.{hex}-stray");
        let future = format!("b-1.{hex}-future");
        let doomed = format!("d-2.{hex}-delete");
        for name in
            ["a-b-3", "b-1", &future, &stray, &doomed, "remote-log-index-cache", "__cluster_metadata-0"]
        {
            mkdir(&runtime, name).await;
        }
        runtime.disk().put("/data/kafka/some-file", b"").unwrap();
        let opened = open(&runtime).await.unwrap();
        let found: Vec<_> = opened.partitions.iter().map(|f| (f.partition.clone(), f.kind)).collect();
        let expected = [
            (tp("a-b", 3), FoundKind::Current),
            (tp("b", 1), FoundKind::Current),
            (tp("b", 1), FoundKind::Future),
            (tp("c", 0), FoundKind::Stray),
        ];
        assert_eq!(found, expected);
        assert_eq!(opened.partitions[1].path, opened.dir.partition_path(&tp("b", 1)));
        // What was due for removal goes after the delay, and nothing else.
        assert_eq!(opened.dir.removals_pending(), 1);
        let doomed = Path::new(DIR).join(doomed);
        runtime.sleep_until(runtime.now().plus_ms(DELAY_MS - 1)).await;
        assert!(runtime.dir(DirOp::List(doomed.clone())).await.is_ok());
        runtime.sleep_until(runtime.now().plus_ms(2)).await;
        assert!(runtime.dir(DirOp::List(doomed)).await.is_err());
        assert_eq!((opened.dir.removals_pending(), open(&runtime).await.unwrap().partitions.len()), (0, 4));
    });
}

#[test]
fn two_directories_of_one_partition_are_refused() {
    on(|runtime| async move {
        for unique in ["x", "y"] {
            mkdir(&runtime, &format!("a-0.{unique}-future")).await;
            mkdir(&runtime, &format!("b-0.{unique}-stray")).await;
        }
        let refused = open(&runtime).await.err().unwrap();
        assert_eq!(
            refused.to_string(),
            "/data/kafka/a-0.x-future and /data/kafka/a-0.y-future both hold a-0: delete one of them"
        );
    });
    let found = |path: &str| FoundPartition {
        partition: tp("a", 0),
        kind: FoundKind::Current,
        path: PathBuf::from(path),
    };
    assert!(check_duplicates([&found("/d1/a-0"), &found("/d2/a-0")]).is_err());
    assert!(check_duplicates([&found("/d1/a-0")]).is_ok());
}

#[test]
fn s6_the_marker_is_gone_durably_once_the_dir_is_open() {
    on(|runtime| async move {
        mkdir(&runtime, "").await;
        for (content, epoch) in [(&b""[..], None), (br#"{"version":0,"brokerEpoch":-1}"#, Some(-1))] {
            runtime.disk().put("/data/kafka/.kafka_cleanshutdown", content).unwrap();
            let opened = open(&runtime).await.unwrap();
            assert!(opened.dir.was_clean());
            assert_eq!(opened.marker_epoch.map(protocol::types::BrokerEpoch::get), epoch);
            let after_power_cut = runtime.disk().crash(crate::io::sim::Crash::DropUnsynced);
            assert_eq!(after_power_cut.content("/data/kafka/.kafka_cleanshutdown"), None);
        }
        assert!(!open(&runtime).await.unwrap().dir.was_clean());
    });
}

#[test]
fn s7_the_marker_follows_the_checkpoints() {
    on(|runtime| async move {
        let opened = open(&runtime).await.unwrap();
        let (recovery, start) = (offsets(&[("a", 0, 7)]), offsets(&[("a", 0, 3)]));
        runtime.disk().record_operations();
        assert!(opened.dir.mark_clean(&recovery, &start, Loading::Finished).await.unwrap());
        let renames: Vec<_> = runtime
            .disk()
            .operations()
            .into_iter()
            .filter(|operation| operation.kind == OpKind::SyncData)
            .map(|operation| operation.path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            renames,
            [
                "recovery-point-offset-checkpoint.tmp",
                "log-start-offset-checkpoint.tmp",
                ".kafka_cleanshutdown.tmp"
            ]
        );
        let again = open(&runtime).await.unwrap();
        assert!(again.dir.was_clean());
        assert_eq!(again.checkpoint(CheckpointFile::RecoveryPoint), recovery);
        assert_eq!(again.checkpoint(CheckpointFile::LogStart), start);
        assert_eq!(again.checkpoint(CheckpointFile::HighWatermark), OffsetCheckpoint::default());
    });
}

#[test]
fn s7_an_unclean_dir_that_was_not_loaded_to_its_end_stays_unclean() {
    on(|runtime| async move {
        let none = OffsetCheckpoint::default();
        let unclean = open(&runtime).await.unwrap().dir;
        assert!(!unclean.mark_clean(&none, &none, Loading::Interrupted).await.unwrap());
        assert!(!has_marker(&runtime));
        assert!(unclean.mark_clean(&none, &none, Loading::Finished).await.unwrap());
        let clean = open(&runtime).await.unwrap().dir;
        assert!(clean.mark_clean(&none, &none, Loading::Interrupted).await.unwrap());
        assert!(has_marker(&runtime));
    });
}

#[test]
fn s7_no_marker_without_the_checkpoints() {
    on(|runtime| async move {
        let dir = open(&runtime).await.unwrap().dir;
        let none = OffsetCheckpoint::default();
        runtime.disk().fail(Fault { path_contains: "log-start", ..Fault::once(OpKind::SyncData) });
        let failed = dir.mark_clean(&none, &none, Loading::Finished).await.unwrap_err();
        assert!(matches!(failed, CloseError::Checkpoint { file: CheckpointFile::LogStart, .. }));
        assert!(!has_marker(&runtime));
    });
}

#[test]
fn a_malformed_checkpoint_is_empty_and_reported_and_an_unreadable_one_takes_the_dir_offline() {
    on(|runtime| async move {
        mkdir(&runtime, "").await;
        runtime.disk().put("/data/kafka/recovery-point-offset-checkpoint", b"0\n2\na 0 1\n").unwrap();
        runtime.disk().put("/data/kafka/log-start-offset-checkpoint", b"0\n1\na 0 1\n").unwrap();
        let opened = open(&runtime).await.unwrap();
        assert_eq!(opened.malformed.len(), 1);
        assert_eq!(opened.malformed[0].file, CheckpointFile::RecoveryPoint);
        assert_eq!(opened.checkpoint(CheckpointFile::RecoveryPoint), OffsetCheckpoint::default());
        assert_eq!(opened.checkpoint(CheckpointFile::LogStart), offsets(&[("a", 0, 1)]));
        runtime.disk().fail(Fault { path_contains: "log-start", ..Fault::once(OpKind::Read) });
        assert!(matches!(open(&runtime).await.err().unwrap(), OpenError::Io { .. }));
    });
}

#[test]
fn s8_concurrent_writes_of_one_checkpoint_never_overlap_and_the_latest_wins() {
    on(|runtime| async move {
        let dir = open(&runtime).await.unwrap().dir;
        runtime.disk().record_operations();
        let done = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|number| {
                let (dir, done) = (Rc::clone(&dir), Rc::clone(&done));
                runtime.spawn(Queue::Request, async move {
                    let entries = offsets(&[("a", 0, number)]);
                    dir.write_checkpoint(CheckpointFile::HighWatermark, &entries).await.unwrap();
                    done.borrow_mut().push(number);
                })
            })
            .collect();
        while done.borrow().len() < 20 {
            runtime.turn().await;
        }
        drop(tasks);
        let opens: Vec<_> =
            runtime.disk().operations().into_iter().filter(|o| o.kind == OpKind::Open).collect();
        assert!(opens.len() < 20, "{} writes for 20 calls", opens.len());
        let stored = OffsetCheckpoint::parse(content(&runtime, "replication-offset-checkpoint").as_bytes());
        let last = stored.unwrap().offsets.get(&tp("a", 0)).copied().unwrap().get();
        assert!((0..20).contains(&last));
        // One after the other: opened, written, synced, renamed, the directory synced.
        let kinds: Vec<_> = runtime.disk().operations().into_iter().map(|o| o.kind).collect();
        let once = [OpKind::Open, OpKind::Write, OpKind::SyncData, OpKind::Names, OpKind::SyncDir];
        assert!(kinds.chunks(5).all(|chunk| chunk == once), "{kinds:?}");
        // What is written last is there at the end, whoever waited.
        dir.write_checkpoint(CheckpointFile::HighWatermark, &offsets(&[("a", 0, 99)])).await.unwrap();
        assert!(content(&runtime, "replication-offset-checkpoint").contains("a 0 99"));
    });
}

#[test]
fn a_failed_checkpoint_write_is_reported_and_the_next_one_may_succeed() {
    on(|runtime| async move {
        let dir = open(&runtime).await.unwrap().dir;
        let write = |offset| {
            let dir = Rc::clone(&dir);
            async move { dir.write_checkpoint(CheckpointFile::Cleaner, &offsets(&[("a", 0, offset)])).await }
        };
        write(1).await.unwrap();
        runtime.disk().fail(Fault { error: io::ErrorKind::StorageFull, ..Fault::once(OpKind::Write) });
        assert!(matches!(write(2).await, Err(CheckpointWriteError::Full(_))));
        assert_eq!(content(&runtime, "cleaner-offset-checkpoint"), "0\n1\na 0 1\n");
        write(3).await.unwrap();
        assert_eq!(content(&runtime, "cleaner-offset-checkpoint"), "0\n1\na 0 3\n");
    });
}

#[test]
fn a_write_whose_caller_went_away_is_finished() {
    on(|runtime| async move {
        let dir = open(&runtime).await.unwrap().dir;
        let inside = Rc::clone(&dir);
        let task = runtime.spawn(Queue::Request, async move {
            let _ = inside.write_checkpoint(CheckpointFile::Cleaner, &offsets(&[("a", 0, 1)])).await;
        });
        runtime.turn().await;
        drop(task);
        dir.write_checkpoint(CheckpointFile::Cleaner, &offsets(&[("a", 0, 2)])).await.unwrap();
        assert_eq!(content(&runtime, "cleaner-offset-checkpoint"), "0\n1\na 0 2\n");
    });
}

#[test]
fn new_partitions_are_durable_and_illegal_topics_are_refused() {
    on(|runtime| async move {
        let dir = open(&runtime).await.unwrap().dir;
        let paths = dir.create_partitions(&[tp("a", 0), tp("b", 7)]).await.unwrap();
        assert_eq!(paths, [Path::new(DIR).join("a-0"), Path::new(DIR).join("b-7")]);
        dir.create_partitions(&[tp("a", 0)]).await.unwrap();
        let refused = dir.create_partitions(&[tp("ok", 0), tp("../x", 0)]).await;
        assert!(matches!(refused, Err(DirError::IllegalTopic(_))));
        let after = SimRuntime::on(1, runtime.disk().crash(crate::io::sim::Crash::DropUnsynced));
        let sibling = runtime.sibling(after.disk().clone());
        let found = open(&sibling).await.unwrap().partitions;
        assert_eq!(found.iter().map(|f| f.partition.to_string()).collect::<Vec<_>>(), ["a-0", "b-7"]);
    });
}

#[test]
fn a_removed_partition_is_gone_by_name_at_once_and_from_disk_later() {
    on(|runtime| async move {
        let dir = open(&runtime).await.unwrap().dir;
        dir.create_partitions(&[tp("a", 0), tp("b", 0)]).await.unwrap();
        runtime.disk().put("/data/kafka/a-0/00000000000000000000.log", b"x").unwrap();
        assert!(dir.remove_partition(&tp("a", 0), DELAY_MS).await.unwrap());
        assert!(!dir.remove_partition(&tp("a", 0), DELAY_MS).await.unwrap());
        assert!(runtime.dir(DirOp::List(dir.partition_path(&tp("a", 0)))).await.is_err());
        // The same topic may be created again meanwhile.
        dir.create_partitions(&[tp("a", 0)]).await.unwrap();
        assert_eq!(dir.removals_pending(), 1);
        runtime.sleep_until(runtime.now().plus_ms(DELAY_MS + 1)).await;
        assert_eq!(dir.removals_pending(), 0);
        let names = runtime.dir(DirOp::List(PathBuf::from(DIR))).await.unwrap();
        let DirDone::Entries(names) = names else { panic!("no entries") };
        let dirs: Vec<_> = names.iter().filter(|e| e.is_dir).map(|e| e.name.as_str()).collect();
        assert_eq!(dirs, ["a-0", "b-0"]);
    });
}

#[test]
fn a_replica_that_is_not_ours_is_set_aside() {
    on(|runtime| async move {
        let dir = open(&runtime).await.unwrap().dir;
        dir.create_partitions(&[tp("a", 0)]).await.unwrap();
        let stray = set_aside(&runtime, Path::new(DIR), &tp("a", 0)).await.unwrap().unwrap();
        let found = open(&runtime).await.unwrap().partitions;
        assert_eq!(
            found,
            [FoundPartition { partition: tp("a", 0), kind: FoundKind::Stray, path: stray.clone() }]
        );
        assert!(dir.remove_dir(&stray, &tp("a", 0), 0).await.unwrap());
    });
}

#[test]
fn room_is_told() {
    on(|runtime| async move {
        let dir = open(&runtime).await.unwrap().dir;
        runtime.disk().set_capacity_bytes(Some(1 << 20));
        let space = dir.space().await.unwrap();
        assert!(space.total_bytes == 1 << 20 && space.usable_bytes <= space.total_bytes);
    });
}

#[test]
fn what_is_found_has_durable_names_before_it_is_served() {
    let runtime = on(|runtime| async move {
        open(&runtime).await.unwrap();
        // Whoever created it died over it.
        mkdir(&runtime, "t-0").await;
        open(&runtime).await.unwrap();
    });
    let after = SimRuntime::on(2, runtime.disk().crash(Crash::DropUnsynced));
    let inside = after.clone();
    let found = after.block_on(async move { open(&inside).await.unwrap().partitions });
    assert_eq!(found.into_iter().map(|found| found.partition).collect::<Vec<_>>(), [tp("t", 0)]);
}

#[test]
fn a_dir_over_whose_creation_somebody_died_has_a_durable_name_once_it_is_open() {
    for durable in ["/", "/data"] {
        let runtime = on(|runtime| async move {
            let parent = Path::new(durable);
            let made = if durable == "/" { "/data" } else { DIR };
            runtime.dir(DirOp::CreateAll(parent.to_owned())).await.unwrap();
            runtime.dir(DirOp::Sync("/".into())).await.unwrap();
            runtime.dir(DirOp::CreateAll(made.into())).await.unwrap();
            open(&runtime).await.unwrap();
        });
        let disk = runtime.disk().crash(Crash::DropUnsynced);
        assert!(disk.content(Path::new(DIR).join("meta.properties")).is_some(), "of all but {durable}");
    }
}

//! T-8, S-4, S-6, S-7: the machine dies at every operation of a replacement, of opening a log dir and of a clean stop,
//! and loses nothing, everything or some of what was not synced. What is found then is the old state or the new one.

#![allow(clippy::unwrap_used, reason = "helpers of tests, like the tests themselves")]

use std::cell::Cell;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use protocol::types::{BrokerId, Offset, TopicName, TopicPartition};
use storage::checkpoint::{OffsetCheckpoint, replace_file};
use storage::io::sim::{Crash, SimDisk, SimRuntime};
use storage::io::{DirOp, Queue, Runtime};
use storage::log_dir::{CheckpointFile, Loading, LogDir, OpenedLogDir};
use storage::meta_properties::Identity;

const DIR: &str = "/data";
const MARKER: &str = "/data/.kafka_cleanshutdown";

fn identity() -> Identity {
    Identity { broker_id: Some(BrokerId::new(1)), cluster_id: Some("c".to_owned()) }
}

fn offsets(offset: i64) -> OffsetCheckpoint {
    // Longer than a page, so that a torn write can leave a part.
    let entry =
        |partition| (TopicPartition::new(TopicName::new("some-topic"), partition), Offset::new(offset));
    OffsetCheckpoint { offsets: (0..600).map(entry).collect() }
}

fn crashes() -> impl Iterator<Item = Crash> {
    [Crash::KeepAll, Crash::DropUnsynced].into_iter().chain((0..12).map(Crash::Torn))
}

/// Lets `act` run on a disk that `prepare` made, dying before its operation 1, 2, 3 ... until it comes through; `judge`
/// sees each disk that a crash leaves, and whether `act` had ended.
fn die_everywhere<A: Future<Output = ()> + 'static>(
    prepare: impl Fn(&SimRuntime),
    act: impl Fn(SimRuntime) -> A,
    judge: impl Fn(SimDisk, bool),
) -> u64 {
    for operation in 1.. {
        let runtime = SimRuntime::new(operation);
        prepare(&runtime);
        runtime.disk().set_short_write_percent(30);
        runtime.disk().freeze_from(runtime.disk().operation_count() + operation);
        let ended = Rc::new(Cell::new(false));
        let (body, end) = (act(runtime.clone()), Rc::clone(&ended));
        let task = runtime.spawn(Queue::Request, async move {
            body.await;
            end.set(true);
        });
        runtime.run_until_idle();
        for crash in crashes() {
            judge(runtime.disk().crash(crash), ended.get());
        }
        drop(task);
        if ended.get() {
            return operation;
        }
    }
    unreachable!("the range has no end")
}

fn mkdir(runtime: &SimRuntime) {
    let inside = runtime.clone();
    runtime.block_on(async move {
        inside.dir(DirOp::CreateAll(DIR.into())).await.unwrap();
        inside.dir(DirOp::Sync("/".into())).await.unwrap();
    });
}

fn open(disk: SimDisk) -> (SimRuntime, OpenedLogDir<SimRuntime>) {
    let runtime = SimRuntime::on(99, disk);
    let inside = runtime.clone();
    let opened = runtime.block_on(async move { LogDir::open(inside, Path::new(DIR), &identity(), 0).await });
    (runtime, opened.unwrap())
}

#[test]
fn t8_a_replaced_file_is_the_old_one_or_the_new_one() {
    let path = "/data/recovery-point-offset-checkpoint";
    let operations = die_everywhere(
        |runtime| {
            mkdir(runtime);
            runtime.disk().put(path, offsets(1).to_text().as_bytes()).unwrap();
        },
        |runtime| async move {
            let content = Bytes::from(offsets(222_222).to_text());
            replace_file(&runtime, Path::new(path), content).await.unwrap();
        },
        |disk, ended| {
            let found = OffsetCheckpoint::parse(&disk.content(path).unwrap()).unwrap();
            assert!(found == offsets(222_222) || (!ended && found == offsets(1)));
        },
    );
    assert!(operations > 5, "{operations} operations cannot be a durable replacement");
}

#[test]
fn t8_a_first_file_is_there_as_a_whole_or_not_at_all() {
    let path = "/data/leader-epoch-checkpoint";
    die_everywhere(
        mkdir,
        |runtime| async move {
            replace_file(&runtime, Path::new(path), Bytes::from_static(b"0\n1\n3 7\n")).await.unwrap();
        },
        |disk, ended| match disk.content(path) {
            Some(content) => assert_eq!(content, b"0\n1\n3 7\n"),
            None => assert!(!ended),
        },
    );
}

#[test]
fn s6_a_crash_while_opening_never_resurrects_the_marker_of_an_open_dir() {
    die_everywhere(
        |runtime| {
            mkdir(runtime);
            runtime.disk().put(MARKER, br#"{"version":0,"brokerEpoch":-1}"#).unwrap();
            runtime.disk().put("/data/meta.properties", b"version=0\nbroker.id=1\nmore=x\n").unwrap();
        },
        |runtime| async move {
            let opened = LogDir::open(runtime, Path::new(DIR), &identity(), 0).await.unwrap();
            assert!(opened.dir.was_clean());
        },
        |disk, ended| {
            assert!(!ended || disk.content(MARKER).is_none());
            // Whose dir it is is never lost, and unknown keys neither (S-4).
            let (_runtime, opened) = open(disk);
            assert!(opened.dir.meta_properties().unknown.contains_key("more"));
        },
    );
}

#[test]
fn s7_a_marker_means_that_the_checkpoints_are_there() {
    die_everywhere(
        |runtime| {
            mkdir(runtime);
            let inside = runtime.clone();
            runtime.block_on(async move {
                let opened = LogDir::open(inside, Path::new(DIR), &identity(), 0).await.unwrap();
                let none = OffsetCheckpoint::default();
                opened.dir.mark_clean(&none, &none, Loading::Finished).await.unwrap();
            });
        },
        |runtime| async move {
            let dir = LogDir::open(runtime, Path::new(DIR), &identity(), 0).await.unwrap().dir;
            dir.create_partitions(&[TopicPartition::new(TopicName::new("a"), 0)]).await.unwrap();
            assert!(dir.mark_clean(&offsets(5), &offsets(3), Loading::Finished).await.unwrap());
        },
        |disk, ended| {
            let (_runtime, opened) = open(disk);
            let is_new = opened.checkpoint(CheckpointFile::RecoveryPoint) == offsets(5)
                && opened.checkpoint(CheckpointFile::LogStart) == offsets(3);
            assert!(opened.malformed.is_empty());
            assert!(!ended || (opened.dir.was_clean() && is_new));
            // Clean with a partition means clean after it was created.
            if opened.dir.was_clean() && !opened.partitions.is_empty() {
                assert!(is_new);
            }
        },
    );
}

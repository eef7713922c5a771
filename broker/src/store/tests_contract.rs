//! The contract of the metadata store as tests that every implementation is put through: embedded and simulated in
//! `store/tests.rs`, ZooKeeper in `tests/zookeeper.rs`. Whoever includes this file imports what it names.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use protocol::types::{BrokerId, ControllerEpoch};

use super::{
    CreateMode, Expected, FencedError, MetadataStore, MultiError, Op, OpDone, StoreError, StoreEvent, wait,
    znodes,
};

/// The output of a future that must be ready at once.
pub fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

pub fn text(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

/// A store that can be stopped without a goodbye and started again.
pub trait Bench {
    type Store: MetadataStore;
    fn start(&self) -> Self::Store;
    /// What its clock says, if that is known.
    fn clock_ms(&self) -> Option<i64> {
        Some(1_700_000_000_000)
    }
}

/// Hands the names of all tests to a macro: whoever keeps the contract runs every one, but for those that it names as
/// beyond it. One that is missing here is dead code, which the lints deny.
macro_rules! every_test {
    ($with:ident) => {
        $with! {
            nodes_have_versions_and_increasing_czxids
            wrong_requests_get_their_own_errors
            a_multi_is_all_or_nothing_with_one_zxid
            null_and_empty_data_stay_apart
            watches_fire_once_and_cover_what_the_sheet_says
            a_missing_node_is_watched_by_exists_only
            events_stand_ready_before_a_later_read
            sequential_nodes_count_upwards
            ephemerals_end_with_the_process_and_czxids_go_on
            close_removes_ephemerals_and_later_requests_fail
            fenced_writes_stop_when_the_epoch_moves
            only_one_election_of_two_succeeds
            registration_has_data_version_one_and_czxid_as_epoch
            everything_persistent_survives_a_restart
            twenty_thousand_states_are_written_and_read_pipelined
            a_reader_of_a_deleted_topic_sees_no_node
        }
    };
}

pub fn nodes_have_versions_and_increasing_czxids(bench: &impl Bench) {
    let store = bench.start();
    let (_, a) = wait(store.create("/a", text("1"), CreateMode::Persistent)).unwrap();
    let (_, b) = wait(store.create("/a/b", None, CreateMode::Persistent)).unwrap();
    assert!(b.czxid > a.czxid);
    assert_eq!((a.version, a.ctime_ms), (0, bench.clock_ms().unwrap_or(a.ctime_ms)));
    assert_eq!(wait(store.set("/a", text("2"), Expected::Version(0))).unwrap().version, 1);
    let stat = wait(store.set("/a", text("3"), Expected::Any)).unwrap();
    assert_eq!((stat.version, stat.czxid), (2, a.czxid));
    assert!(stat.mzxid > b.czxid);
    let (data, read) = wait(store.get("/a", false)).unwrap();
    assert_eq!((data, read.version, read.cversion), (text("3"), 2, 1));
    assert_eq!(wait(store.children("/a", false)).unwrap().0, vec!["b".to_owned()]);
}

pub fn wrong_requests_get_their_own_errors(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/a", None, CreateMode::Persistent)).unwrap();
    wait(store.create("/a/e", None, CreateMode::Ephemeral)).unwrap();
    let create = |path: &str| wait(store.create(path, None, CreateMode::Persistent)).unwrap_err();
    assert_eq!(create("/a"), StoreError::NodeExists);
    assert_eq!(create("/x/y"), StoreError::NoNode);
    assert_eq!(create("/a/e/child"), StoreError::NoChildrenForEphemerals);
    assert_eq!(create("a"), StoreError::BadPath);
    assert_eq!(create("/a//b"), StoreError::BadPath);
    assert_eq!(wait(store.set("/x", None, Expected::Any)).unwrap_err(), StoreError::NoNode);
    assert_eq!(wait(store.set("/a", None, Expected::Version(3))).unwrap_err(), StoreError::BadVersion);
    assert_eq!(wait(store.delete("/a", Expected::Any)).unwrap_err(), StoreError::NotEmpty);
    assert_eq!(wait(store.delete("/a/e", Expected::Version(1))).unwrap_err(), StoreError::BadVersion);
    assert_eq!(wait(store.get("/x", false)).unwrap_err(), StoreError::NoNode);
    assert_eq!(wait(store.children("/x", false)).unwrap_err(), StoreError::NoNode);
    assert_eq!(wait(store.exists("/x", false)).unwrap(), None);
}

pub fn a_multi_is_all_or_nothing_with_one_zxid(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/a", text("1"), CreateMode::Persistent)).unwrap();
    wait(store.create("/a/old", text("old"), CreateMode::Persistent)).unwrap();
    let before = wait(store.get("/a", false)).unwrap();
    let ops = |version| {
        vec![
            Op::create("/a/b", None),
            Op::set("/a", Bytes::from_static(b"2"), Expected::Any),
            Op::delete("/a/old"),
            Op::Check { path: "/a".to_owned(), version },
        ]
    };
    let failed = wait(store.multi(ops(7))).unwrap_err();
    assert_eq!(failed, MultiError::Op { index: 3, error: StoreError::BadVersion });
    assert_eq!(wait(store.get("/a", false)).unwrap(), before);
    assert_eq!(wait(store.children("/a", false)).unwrap().0, vec!["old".to_owned()]);
    assert_eq!(wait(store.get("/a/old", false)).unwrap().0, text("old"));
    let done = wait(store.multi(ops(1))).unwrap();
    let [OpDone::Created { stat: created, .. }, OpDone::Set(set), OpDone::Deleted, OpDone::Checked] =
        &done[..]
    else {
        panic!("{done:?}")
    };
    assert_eq!(created.czxid, set.mzxid);
    assert_eq!(wait(store.children("/a", false)).unwrap().0, vec!["b".to_owned()]);
}

pub fn null_and_empty_data_stay_apart(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/null", None, CreateMode::Persistent)).unwrap();
    wait(store.create("/empty", Some(Bytes::new()), CreateMode::Persistent)).unwrap();
    drop(store);
    let store = bench.start();
    assert_eq!(wait(store.get("/null", false)).unwrap().0, None);
    assert_eq!(wait(store.get("/empty", false)).unwrap().0, Some(Bytes::new()));
}

/// Skips the session event, then takes what stands ready.
pub fn ready_events(store: &impl MetadataStore) -> Vec<StoreEvent> {
    let mut events = Vec::new();
    while let Some(Some(event)) = now(store.next_event()) {
        if !matches!(event, StoreEvent::Connected { .. }) {
            events.push(event);
        }
    }
    events
}

pub fn watches_fire_once_and_cover_what_the_sheet_says(bench: &impl Bench) {
    let store = bench.start();
    let other = store.fork();
    wait(store.create("/a", None, CreateMode::Persistent)).unwrap();
    wait(store.get("/a", true)).unwrap();
    wait(store.children("/a", true)).unwrap();
    wait(other.set("/a", text("1"), Expected::Any)).unwrap();
    wait(other.set("/a", text("2"), Expected::Any)).unwrap();
    assert_eq!(ready_events(&store), vec![StoreEvent::DataChanged("/a".to_owned())]);
    wait(other.create("/a/b", None, CreateMode::Persistent)).unwrap();
    wait(other.create("/a/c", None, CreateMode::Persistent)).unwrap();
    assert_eq!(ready_events(&store), vec![StoreEvent::ChildrenChanged("/a".to_owned())]);
    // A deletion reaches a handle once, though it watches both the node and its children.
    wait(store.exists("/a/b", true)).unwrap();
    wait(store.children("/a/b", true)).unwrap();
    wait(store.children("/a", true)).unwrap();
    wait(other.delete("/a/b", Expected::Any)).unwrap();
    let both = vec![StoreEvent::NodeDeleted("/a/b".to_owned()), StoreEvent::ChildrenChanged("/a".to_owned())];
    assert_eq!(ready_events(&store), both);
    // Data of a child is no business of its parent's watchers.
    wait(store.children("/a", true)).unwrap();
    wait(other.set("/a/c", text("x"), Expected::Any)).unwrap();
    assert_eq!(ready_events(&store), vec![]);
    assert_eq!(ready_events(&other), vec![]);
}

pub fn a_missing_node_is_watched_by_exists_only(bench: &impl Bench) {
    let store = bench.start();
    wait(store.get("/a", true)).unwrap_err();
    wait(store.exists("/b", true)).unwrap();
    wait(store.create("/a", None, CreateMode::Persistent)).unwrap();
    wait(store.create("/b", None, CreateMode::Persistent)).unwrap();
    assert_eq!(ready_events(&store), vec![StoreEvent::NodeCreated("/b".to_owned())]);
    // A multi that fails fires nothing and keeps the watch.
    wait(store.exists("/b", true)).unwrap();
    let ops = vec![Op::delete("/b"), Op::delete("/none")];
    wait(store.multi(ops)).unwrap_err();
    assert_eq!(ready_events(&store), vec![]);
    wait(store.delete("/b", Expected::Any)).unwrap();
    assert_eq!(ready_events(&store), vec![StoreEvent::NodeDeleted("/b".to_owned())]);
}

pub fn events_stand_ready_before_a_later_read(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/a", None, CreateMode::Persistent)).unwrap();
    ready_events(&store);
    wait(store.get("/a", true)).unwrap();
    let write = store.set("/a", text("new"), Expected::Any);
    let read = store.get("/a", false);
    assert_eq!(wait(read).unwrap().0, text("new"));
    assert_eq!(ready_events(&store), vec![StoreEvent::DataChanged("/a".to_owned())]);
    wait(write).unwrap();
}

pub fn sequential_nodes_count_upwards(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/q", None, CreateMode::Persistent)).unwrap();
    let (first, second) = (create_sequential(&store), create_sequential(&store));
    assert_eq!((first.as_str(), second.as_str()), ("/q/n_0000000000", "/q/n_0000000001"));
    wait(store.delete(&second, Expected::Any)).unwrap();
    drop(store);
    let store = bench.start();
    assert!(create_sequential(&store) > second, "a number is never used twice");
}

pub fn create_sequential(store: &impl MetadataStore) -> String {
    wait(store.create("/q/n_", None, CreateMode::PersistentSequential)).unwrap().0
}

pub fn ephemerals_end_with_the_process_and_czxids_go_on(bench: &impl Bench) {
    let store = bench.start();
    let (_, old) = wait(store.create("/e", text("x"), CreateMode::Ephemeral)).unwrap();
    assert_eq!(old.ephemeral_owner, store.session().id);
    drop(store);
    let store = bench.start();
    assert_eq!(wait(store.exists("/e", false)).unwrap(), None);
    let (_, new) = wait(store.create("/e", None, CreateMode::Ephemeral)).unwrap();
    assert!(new.czxid > old.czxid, "a broker epoch never repeats, though the node was never stored");
    assert_ne!(new.ephemeral_owner, old.ephemeral_owner);
}

pub fn close_removes_ephemerals_and_later_requests_fail(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/e", None, CreateMode::Ephemeral)).unwrap();
    wait(store.create("/p", None, CreateMode::Persistent)).unwrap();
    wait(store.close()).unwrap();
    assert_eq!(wait(store.get("/p", false)).unwrap_err(), StoreError::SessionExpired);
    assert_eq!(wait(store.multi(vec![])).unwrap_err(), MultiError::Request(StoreError::SessionExpired));
    let session = wait(store.reopen()).unwrap();
    assert_eq!(session.local_epoch, 2);
    assert_eq!(wait(store.exists("/e", false)).unwrap(), None);
    assert!(wait(store.exists("/p", false)).unwrap().is_some());
}

pub fn elect(store: &impl MetadataStore, id: i32, epoch: i32, version: i32) -> Result<i32, MultiError> {
    let data = Some(znodes::print_controller(BrokerId::new(id), 0));
    let epoch = znodes::print_controller_epoch(ControllerEpoch::new(epoch));
    let ops = vec![
        Op::Create { path: znodes::CONTROLLER.to_owned(), data, mode: CreateMode::Ephemeral },
        Op::set(znodes::CONTROLLER_EPOCH, epoch, Expected::Version(version)),
    ];
    wait(store.multi(ops)).map(|done| match done[1] {
        OpDone::Set(stat) => stat.version,
        _ => panic!("{done:?}"),
    })
}

pub fn fenced_writes_stop_when_the_epoch_moves(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create(znodes::CONTROLLER_EPOCH, text("0"), CreateMode::Persistent)).unwrap();
    let version = elect(&store, 1, 1, 0).unwrap();
    let ops = || vec![Op::create("/x", None), Op::create("/x/y", None), Op::create("/x", None)];
    let done = wait(store.fenced(version, ops()));
    assert!(matches!(done[..], [Ok(_), Ok(_), Err(FencedError::Store(StoreError::NodeExists))]), "{done:?}");
    wait(store.delete(znodes::CONTROLLER, Expected::Any)).unwrap();
    elect(&store, 2, 2, version).unwrap();
    let done = wait(store.fenced(version, vec![Op::delete("/x/y"), Op::create("/z", None)]));
    assert_eq!(done, vec![Err(FencedError::Moved), Err(FencedError::Moved)]);
    assert!(wait(store.exists("/x/y", false)).unwrap().is_some());
}

pub fn only_one_election_of_two_succeeds(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create(znodes::CONTROLLER_EPOCH, text("0"), CreateMode::Persistent)).unwrap();
    let other = store.fork();
    assert_eq!(elect(&store, 1, 1, 0), Ok(1));
    assert!(elect(&other, 2, 1, 0).is_err());
    let (epoch, _) = wait(store.get(znodes::CONTROLLER_EPOCH, false)).unwrap();
    assert_eq!(znodes::parse_controller_epoch(&epoch.unwrap()), Ok(ControllerEpoch::new(1)));
    let (data, _) = wait(other.get(znodes::CONTROLLER, false)).unwrap();
    assert_eq!(znodes::parse_controller(&data.unwrap()), Ok(BrokerId::new(1)));
}

pub fn registration_has_data_version_one_and_czxid_as_epoch(bench: &impl Bench) {
    let store = bench.start();
    let ops = vec![
        Op::Create { path: "/b".to_owned(), data: None, mode: CreateMode::Ephemeral },
        Op::set("/b", Bytes::from_static(b"{}"), Expected::Version(0)),
    ];
    let done = wait(store.multi(ops)).unwrap();
    let (_, stat) = wait(store.get("/b", false)).unwrap();
    assert_eq!(stat.version, 1);
    assert!(matches!(done[1], OpDone::Set(set) if set.czxid == stat.czxid && set == stat));
}

pub fn everything_persistent_survives_a_restart(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/t", text("1"), CreateMode::Persistent)).unwrap();
    wait(store.set("/t", text("2"), Expected::Any)).unwrap();
    for child in ["a", "b", "c"] {
        wait(store.create(&format!("/t/{child}"), text(child), CreateMode::Persistent)).unwrap();
    }
    wait(store.delete("/t/b", Expected::Any)).unwrap();
    let before = (wait(store.get("/t", false)).unwrap(), wait(store.children("/t", false)).unwrap());
    drop(store);
    let store = bench.start();
    assert_eq!((wait(store.get("/t", false)).unwrap(), wait(store.children("/t", false)).unwrap()), before);
    assert_eq!(wait(store.get("/t/c", false)).unwrap().0, text("c"));
}

pub fn twenty_thousand_states_are_written_and_read_pipelined(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/s", None, CreateMode::Persistent)).unwrap();
    wait(store.create(znodes::CONTROLLER_EPOCH, text("0"), CreateMode::Persistent)).unwrap();
    let writes: Vec<_> =
        (0..20_000).map(|i| store.fenced(0, vec![Op::create(format!("/s/{i}"), text("state"))])).collect();
    for write in writes {
        assert!(wait(write)[0].is_ok());
    }
    let reads: Vec<_> = (0..20_000).map(|i| store.get(&format!("/s/{i}"), false)).collect();
    for read in reads {
        assert_eq!(wait(read).unwrap().0, text("state"));
    }
    assert_eq!(wait(store.children("/s", false)).unwrap().0.len(), 20_000);
}

pub fn a_reader_of_a_deleted_topic_sees_no_node(bench: &impl Bench) {
    let store = bench.start();
    let reader = store.fork();
    for path in ["/t", "/t/partitions", "/t/partitions/0"] {
        wait(store.create(path, None, CreateMode::Persistent)).unwrap();
    }
    let reads = ["/t/partitions/0", "/t/partitions"].map(|path| {
        let deleted = store.delete(path, Expected::Any);
        (deleted, reader.get(path, true))
    });
    for (deleted, read) in reads {
        wait(deleted).unwrap();
        assert_eq!(wait(read).unwrap_err(), StoreError::NoNode);
    }
}

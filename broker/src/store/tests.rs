//! One suite for both stores, then what only one of them can show.
#![allow(clippy::disallowed_methods, reason = "the tests damage files behind the store's back")]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use bytes::Bytes;
use proptest::prelude::*;
use protocol::types::{BrokerId, ControllerEpoch, LeaderEpoch, TopicId};
use tempfile::TempDir;

use super::embedded::{DamageKind, EmbeddedFile, EmbeddedStore, FILE_NAME, OpenError};
use super::sim::{SimDisk, SimStore};
use super::znodes::{
    self, Assignment, BrokerEndpoint, BrokerNode, PartitionState, ProducerIdBlock, TopicNode,
};
use super::*;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread; the embedded store wakes it from the writer's.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// The output of a future that must be ready at once.
fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn text(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

/// A store that can be stopped without a goodbye and started again.
trait Bench {
    type Store: MetadataStore;
    fn start(&self) -> Self::Store;
}

struct InFile(TempDir);

impl Bench for InFile {
    type Store = EmbeddedStore;
    fn start(&self) -> EmbeddedStore {
        EmbeddedFile::open(&self.0.path().join(FILE_NAME), || (), |_, _| ())
            .unwrap()
            .start(|| 1_700_000_000_000)
    }
}

impl Bench for SimDisk {
    type Store = SimStore;
    fn start(&self) -> SimStore {
        SimDisk::start(self, || 1_700_000_000_000)
    }
}

fn in_file() -> InFile {
    InFile(tempfile::Builder::new().prefix("control-").tempdir().unwrap())
}

macro_rules! for_both {
    ($($name:ident)*) => {
        mod embedded_keeps { $(#[test] fn $name() { super::$name(&super::in_file()); })* }
        mod sim_keeps { $(#[test] fn $name() { super::$name(&super::SimDisk::new()); })* }
    };
}

for_both! {
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

fn nodes_have_versions_and_increasing_czxids(bench: &impl Bench) {
    let store = bench.start();
    let (_, a) = wait(store.create("/a", text("1"), CreateMode::Persistent)).unwrap();
    let (_, b) = wait(store.create("/a/b", None, CreateMode::Persistent)).unwrap();
    assert!(b.czxid > a.czxid);
    assert_eq!((a.version, a.ctime_ms), (0, 1_700_000_000_000));
    assert_eq!(wait(store.set("/a", text("2"), Expected::Version(0))).unwrap().version, 1);
    let stat = wait(store.set("/a", text("3"), Expected::Any)).unwrap();
    assert_eq!((stat.version, stat.czxid), (2, a.czxid));
    assert!(stat.mzxid > b.czxid);
    let (data, read) = wait(store.get("/a", false)).unwrap();
    assert_eq!((data, read.version, read.cversion), (text("3"), 2, 1));
    assert_eq!(wait(store.children("/a", false)).unwrap().0, vec!["b".to_owned()]);
}

fn wrong_requests_get_their_own_errors(bench: &impl Bench) {
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

fn a_multi_is_all_or_nothing_with_one_zxid(bench: &impl Bench) {
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

fn null_and_empty_data_stay_apart(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/null", None, CreateMode::Persistent)).unwrap();
    wait(store.create("/empty", Some(Bytes::new()), CreateMode::Persistent)).unwrap();
    drop(store);
    let store = bench.start();
    assert_eq!(wait(store.get("/null", false)).unwrap().0, None);
    assert_eq!(wait(store.get("/empty", false)).unwrap().0, Some(Bytes::new()));
}

/// Skips the session event, then takes what stands ready.
fn ready_events(store: &impl MetadataStore) -> Vec<StoreEvent> {
    let mut events = Vec::new();
    while let Some(Some(event)) = now(store.next_event()) {
        if !matches!(event, StoreEvent::Connected { .. }) {
            events.push(event);
        }
    }
    events
}

fn watches_fire_once_and_cover_what_the_sheet_says(bench: &impl Bench) {
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

fn a_missing_node_is_watched_by_exists_only(bench: &impl Bench) {
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

fn events_stand_ready_before_a_later_read(bench: &impl Bench) {
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

fn sequential_nodes_count_upwards(bench: &impl Bench) {
    let store = bench.start();
    wait(store.create("/q", None, CreateMode::Persistent)).unwrap();
    let (first, second) = (create_sequential(&store), create_sequential(&store));
    assert_eq!((first.as_str(), second.as_str()), ("/q/n_0000000000", "/q/n_0000000001"));
    wait(store.delete(&second, Expected::Any)).unwrap();
    drop(store);
    let store = bench.start();
    assert!(create_sequential(&store) > second, "a number is never used twice");
}

fn create_sequential(store: &impl MetadataStore) -> String {
    wait(store.create("/q/n_", None, CreateMode::PersistentSequential)).unwrap().0
}

fn ephemerals_end_with_the_process_and_czxids_go_on(bench: &impl Bench) {
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

fn close_removes_ephemerals_and_later_requests_fail(bench: &impl Bench) {
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

fn elect(store: &impl MetadataStore, id: i32, epoch: i32, version: i32) -> Result<i32, MultiError> {
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

fn fenced_writes_stop_when_the_epoch_moves(bench: &impl Bench) {
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

fn only_one_election_of_two_succeeds(bench: &impl Bench) {
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

fn registration_has_data_version_one_and_czxid_as_epoch(bench: &impl Bench) {
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

fn everything_persistent_survives_a_restart(bench: &impl Bench) {
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

fn twenty_thousand_states_are_written_and_read_pipelined(bench: &impl Bench) {
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

fn a_reader_of_a_deleted_topic_sees_no_node(bench: &impl Bench) {
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

#[test]
fn nothing_is_answered_or_told_before_it_is_durable() {
    let disk = SimDisk::new();
    let store = disk.start(|| 0);
    wait(store.create("/a", None, CreateMode::Persistent)).unwrap();
    wait(store.get("/a", true)).unwrap();
    ready_events(&store);
    disk.hold();
    let mut write = pin!(store.set("/a", text("1"), Expected::Any));
    let mut read = pin!(store.get("/a", false));
    let mut failing = pin!(store.set("/a", text("2"), Expected::Version(0)));
    assert!(now(write.as_mut()).is_none() && now(read.as_mut()).is_none() && now(failing.as_mut()).is_none());
    assert_eq!(ready_events(&store), vec![]);
    assert_eq!(disk.release(), 3);
    assert_eq!(ready_events(&store), vec![StoreEvent::DataChanged("/a".to_owned())]);
    assert_eq!(wait(read).unwrap().0, text("1"));
    assert_eq!(wait(failing).unwrap_err(), StoreError::BadVersion);
    wait(write).unwrap();
}

#[test]
fn what_a_crash_lost_is_not_there_after_the_restart() {
    let disk = SimDisk::new();
    let store = disk.start(|| 0);
    disk.crash_after(1);
    wait(store.create("/kept", None, CreateMode::Persistent)).unwrap();
    let mut lost = pin!(store.create("/lost", None, CreateMode::Persistent));
    assert!(now(lost.as_mut()).is_none(), "the dead answer nothing");
    assert!(disk.has_crashed());
    let store = disk.start(|| 0);
    assert!(wait(store.exists("/kept", false)).unwrap().is_some());
    assert!(wait(store.exists("/lost", false)).unwrap().is_none());
}

#[test]
fn sessions_of_two_brokers_are_apart_and_expiry_is_told() {
    let disk = SimDisk::new();
    let one = disk.start(|| 0);
    let two = one.connect();
    wait(one.create("/e", None, CreateMode::Ephemeral)).unwrap();
    wait(two.exists("/e", true)).unwrap();
    wait(one.get("/e", true)).unwrap();
    let in_flight = one.set("/e", text("x"), Expected::Any);
    wait(one.expire()).unwrap();
    wait(in_flight).unwrap();
    assert_eq!(ready_events(&one).last(), Some(&StoreEvent::Expired { local_epoch: 1 }));
    assert_eq!(ready_events(&two), vec![StoreEvent::DataChanged("/e".to_owned())]);
    assert_eq!(wait(two.exists("/e", false)).unwrap(), None);
    assert_eq!(wait(one.exists("/e", false)).unwrap_err(), StoreError::SessionExpired);
    wait(one.reopen()).unwrap();
    assert_eq!(wait(one.exists("/e", false)).unwrap(), None);
    // The watch of the old session is gone with it.
    wait(two.create("/e", None, CreateMode::Ephemeral)).unwrap();
    assert_eq!(ready_events(&one), vec![]);
}

#[test]
fn a_second_process_is_refused() {
    let bench = in_file();
    let _store = bench.start();
    assert!(matches!(
        EmbeddedFile::open(&bench.0.path().join(FILE_NAME), || (), |_, _| ()),
        Err(OpenError::InUse)
    ));
}

#[test]
fn a_copy_taken_under_load_opens_as_after_a_kill() {
    let bench = in_file();
    let store = bench.start();
    let file = bench.0.path().join(FILE_NAME);
    for round in 0..20 {
        wait(store.create(&format!("/n{round}"), text("x"), CreateMode::Persistent)).unwrap();
        let copy = bench.0.path().join(format!("copy{round}"));
        std::fs::copy(&file, &copy).unwrap();
        let killed = EmbeddedFile::open(&copy, || (), |_, _| ()).unwrap().start(|| 0);
        assert!(wait(killed.exists(&format!("/n{round}"), false)).unwrap().is_some());
    }
}

#[test]
fn a_file_that_is_no_store_is_an_error_that_says_so() {
    let dir = in_file();
    let path = dir.0.path().join(FILE_NAME);
    for content in [&b"not a database at all, but long enough to look at"[..], &[0; 8192]] {
        std::fs::write(&path, content).unwrap();
        let error = EmbeddedFile::open(&path, || (), |_, _| ()).err().unwrap();
        assert!(matches!(error, OpenError::Damaged(_)), "{error:?}");
        assert_eq!(std::fs::read(&path).unwrap(), content, "what is not ours is left alone");
    }
}

#[test]
fn damaged_pages_never_pass_for_data() {
    let dir = in_file();
    let path = dir.0.path().join(FILE_NAME);
    let store = dir.start();
    for i in 0..300 {
        wait(store.create(&format!("/n{i}"), text(&"v".repeat(100)), CreateMode::Persistent)).unwrap();
    }
    drop(store);
    let good = std::fs::read(&path).unwrap();
    let mut damaged = 0;
    for at in (0..320).step_by(7).chain((320..good.len()).step_by(good.len() / 40)) {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&path, &bad).unwrap();
        match EmbeddedFile::open(&path, || (), |_, _| ()) {
            Err(OpenError::Damaged(_)) => damaged += 1,
            Err(OpenError::Io(error)) => panic!("byte {at}: {error:?}"),
            Err(_) => {}
            // The byte belongs to no page in use.
            Ok(file) => {
                let store = file.start(|| 0);
                for i in 0..300 {
                    assert_eq!(wait(store.get(&format!("/n{i}"), false)).unwrap().0, text(&"v".repeat(100)));
                }
            }
        }
    }
    assert!(damaged > 0);
    for len in [0, 1, 512, good.len() / 2] {
        std::fs::write(&path, &good[..len]).unwrap();
        match EmbeddedFile::open(&path, || (), |_, _| ()) {
            Err(OpenError::Damaged(DamageKind::Layout)) => {}
            Ok(_) if len == 0 => {}
            other => panic!("cut at {len}: {:?}", other.err()),
        }
    }
}

#[test]
fn payloads_have_kafkas_key_sets() {
    let endpoint = |listener: &str, host: &str, port, protocol: &str| BrokerEndpoint {
        listener: listener.to_owned(),
        host: host.to_owned(),
        port,
        security_protocol: protocol.to_owned(),
    };
    let endpoints =
        [endpoint("SSL", "::1", 9093, "SSL"), endpoint("PLAINTEXT", "k1.example", 9092, "PLAINTEXT")];
    let node = BrokerNode::new(&endpoints, Some("r1"), 1_730_000_000_123);
    let expected = r#"{"version":5,"host":"k1.example","port":9092,"jmx_port":-1,"timestamp":"1730000000123","endpoints":["SSL://[::1]:9093","PLAINTEXT://k1.example:9092"],"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","SSL":"SSL"},"rack":"r1","features":{}}"#;
    assert_eq!(node.print(), expected);
    let read = BrokerNode::parse(expected.as_bytes()).unwrap();
    assert_eq!(read, node);
    assert_eq!(read.endpoints().unwrap(), endpoints);
    assert!(
        !String::from_utf8(BrokerNode::new(&endpoints, None, 0).print().to_vec()).unwrap().contains("rack")
    );

    let id = TopicId::new([7; 16]);
    let partitions = BTreeMap::from([(0, Assignment::of(vec![BrokerId::new(1), BrokerId::new(2)]))]);
    let expected = format!(
        r#"{{"version":3,"topic_id":"{id}","partitions":{{"0":[1,2]}},"adding_replicas":{{}},"removing_replicas":{{}}}}"#
    );
    assert_eq!(TopicNode::new(Some(id), &partitions).print(), expected);

    let mut state = PartitionState {
        leader: BrokerId::new(1),
        leader_epoch: LeaderEpoch::new(4),
        controller_epoch: ControllerEpoch::new(7),
        isr: vec![BrokerId::new(1), BrokerId::new(2)],
        recovering: false,
    };
    let expected = r#"{"version":1,"leader":1,"leader_epoch":4,"controller_epoch":7,"isr":[1,2]}"#;
    assert_eq!(state.print(), expected);
    assert_eq!(PartitionState::parse(expected.as_bytes()).unwrap(), state);
    state.recovering = true;
    assert_eq!(state.print(), expected.replace('}', r#","leader_recovery_state":1}"#));

    let controller = r#"{"version":2,"brokerid":1,"timestamp":"1730000000456","kraftControllerEpoch":-1}"#;
    assert_eq!(znodes::print_controller(BrokerId::new(1), 1_730_000_000_456), controller);
    assert_eq!(
        znodes::parse_controller(br#"{"version":1,"brokerid":3,"timestamp":"1"}"#),
        Ok(BrokerId::new(3))
    );
    assert_eq!(
        znodes::print_cluster_id("pT3rW0o2Rf-8cV6eHq1b9Q"),
        r#"{"version":"1","id":"pT3rW0o2Rf-8cV6eHq1b9Q"}"#
    );
    let config = BTreeMap::from([("retention.ms".to_owned(), "3600000".to_owned())]);
    assert_eq!(znodes::print_config(&config), r#"{"version":1,"config":{"retention.ms":"3600000"}}"#);
    assert_eq!(znodes::print_config_change("topics/t"), r#"{"version":2,"entity_path":"topics/t"}"#);
    let block = ProducerIdBlock { broker: BrokerId::new(1), start: 2000, end: 2999 };
    assert_eq!(block.print(), r#"{"version":1,"broker":1,"block_start":"2000","block_end":"2999"}"#);
    assert_eq!(znodes::FeatureNode::enabled().print(), r#"{"version":2,"status":1,"features":{}}"#);
}

#[test]
fn readers_tolerate_what_other_releases_write() {
    let java = br#"{"removing_replicas":{"0":[3]},"partitions":{"0":[1,2,3]},"future":[1],"topic_id":"Zk1hW3ZpQ7eYpT0v3qk2uA","adding_replicas":{"0":[1]},"version":4}"#;
    let node = TopicNode::parse(java).unwrap();
    let assignment = &node.assignments()[&0];
    assert_eq!(
        (assignment.adding.as_slice(), assignment.removing.as_slice()),
        (&[BrokerId::new(1)][..], &[BrokerId::new(3)][..])
    );
    let again = TopicNode::parse(&TopicNode::new(node.id(), &node.assignments()).print()).unwrap();
    assert_eq!((again.id(), again.assignments()), (node.id(), node.assignments()));
    assert!(node.id().is_some());
    let old = TopicNode::parse(br#"{"version":1,"partitions":{"0":[1]}}"#).unwrap();
    assert_eq!((old.id(), old.assignments().len()), (None, 1));
    assert!(TopicNode::parse(b"").is_err() && TopicNode::parse(b"null").is_err());

    let old =
        BrokerNode::parse(br#"{"version":1,"host":"h","port":1,"jmx_port":-1,"timestamp":"1"}"#).unwrap();
    assert_eq!(old.endpoints().unwrap()[0].host, "h");
    assert!(BrokerNode::parse(br#"{"version":0,"host":"h","port":1,"jmx_port":-1}"#).is_err());
    assert_eq!(znodes::parse_config(None), Ok(BTreeMap::new()));
    assert_eq!(znodes::parse_config(Some(b"")), Ok(BTreeMap::new()));
    let change = br#"{"version":1,"entity_type":"topics","entity_name":"t"}"#;
    assert_eq!(znodes::parse_config_change(change).unwrap(), "topics/t");
    assert!(znodes::parse_config_change(br#"{"version":3,"entity_path":"topics/t"}"#).is_err());
    assert_eq!(ProducerIdBlock::parse(None), Ok(None));
    assert!(ProducerIdBlock::parse(Some(b"")).is_err());
    let last = ProducerIdBlock { broker: BrokerId::new(1), start: i64::MAX - 999, end: i64::MAX };
    assert_eq!(ProducerIdBlock::next(Some(last), BrokerId::new(1)), None);
    assert_eq!(ProducerIdBlock::next(None, BrokerId::new(1)).unwrap().end, 999);
}

proptest! {
    /// Whatever is written, a restart shows the same tree, and failed requests leave no trace.
    #[test]
    fn the_tree_equals_its_restart(ops in proptest::collection::vec((0..4u8, 0..6u8, 0..6u8, 0..3i32), 1..60)) {
        let disk = SimDisk::new();
        let store = disk.start(|| 0);
        for (kind, a, b, version) in ops {
            let path = if b == 0 { format!("/{a}") } else { format!("/{a}/{b}") };
            let expected = if version == 0 { Expected::Any } else { Expected::Version(version) };
            let request = vec![match kind {
                0 | 1 => Op::create(path, text("x")),
                2 => Op::Set { path, data: None, expected },
                _ => Op::Delete { path, expected },
            }, Op::Check { path: "/".to_owned(), version: i32::from(a == 5) }];
            let _ = wait(store.multi(request));
        }
        let look = |store: &SimStore| {
            let mut seen = Vec::new();
            let mut paths = vec!["/".to_owned()];
            while let Some(path) = paths.pop() {
                let (children, _) = wait(store.children(&path, false)).unwrap();
                seen.push((path.clone(), wait(store.get(&path, false)).unwrap()));
                paths.extend(children.iter().map(|name| format!("{}/{name}", path.trim_end_matches('/'))));
            }
            seen
        };
        let before = look(&store);
        prop_assert_eq!(before, look(&disk.start(|| 0)));
    }

    #[test]
    fn no_payload_panics(data in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = (TopicNode::parse(&data), BrokerNode::parse(&data).map(|node| node.endpoints()));
        let _ = (PartitionState::parse(&data), znodes::parse_config(Some(&data)), ProducerIdBlock::parse(Some(&data)));
    }
}

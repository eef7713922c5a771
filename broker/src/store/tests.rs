//! The contract for both stores of this process, then what only one of them can show.
#![allow(clippy::disallowed_methods, reason = "the tests damage files behind the store's back")]

use std::collections::BTreeMap;
use std::pin::pin;

use proptest::prelude::*;
use protocol::types::{BrokerId, ControllerEpoch, LeaderEpoch, TopicId};
use tempfile::TempDir;

use super::carry::block_on as wait;
use super::embedded::{DamageKind, EmbeddedFile, EmbeddedStore, FILE_NAME, OpenError};
use super::sim::{SimDisk, SimStore};
use super::znodes::{
    self, Assignment, BrokerEndpoint, BrokerNode, PartitionState, ProducerIdBlock, TopicNode,
};
use super::*;

#[macro_use]
#[path = "tests_contract.rs"]
mod contract;

use contract::*;

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

every_test!(for_both);

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

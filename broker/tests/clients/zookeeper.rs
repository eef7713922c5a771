//! The store on a real ZooKeeper, the one that Kafka's release brings: the contract of the metadata store, and what only
//! a server, or a connection to one that is cut, can show (zookeeper.md 13 to 15). `interop.rs` takes it in by path.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that finds too little has failed")]
#![allow(clippy::disallowed_types, reason = "threads of a test share sockets")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broker::controller::registration::{RegistrationError, register};
use broker::store::carry::block_on as wait;
use broker::store::znodes::{self, BrokerNode};
use broker::store::zookeeper::{OnLoss, Options, ZookeeperLink, ZookeeperStore};
use broker::store::{
    CreateMode, Expected, FencedError, MetadataStore, MultiError, Op, OpDone, StoreError, StoreEvent,
};
use protocol::types::BrokerId;
use tempfile::TempDir;

use crate::support::free_port;
use crate::tally::Verdict;

#[macro_use]
#[path = "../../src/store/tests_contract.rs"]
mod contract;

use contract::{Bench, text};

const START_LIMIT: Duration = Duration::from_secs(60);
/// Whatever is waited for comes long before, also on two slow cores.
const EVENT_LIMIT: Duration = Duration::from_secs(60);
/// Of the sessions here: long enough for a noisy machine, short enough to wait for its end.
const SESSION: Duration = Duration::from_secs(4);

/// A server of its own directory and port, ended when dropped.
pub struct ZooKeeper {
    child: Child,
    dir: TempDir,
    libs: PathBuf,
    pub port: u16,
}

impl ZooKeeper {
    /// Starts one from jars, and waits until it says that it is well.
    pub fn start(libs: &Path) -> Result<Self, String> {
        let dir =
            tempfile::Builder::new().prefix("zookeeper-").tempdir().map_err(|error| error.to_string())?;
        let port = free_port();
        let child = launch(libs, dir.path(), port)?;
        let mut server = Self { child, dir, libs: libs.to_owned(), port };
        server.await_well()?;
        Ok(server)
    }

    fn await_well(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        while !is_well(self.port) {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                return Err(format!("ZooKeeper does not start: {ended:?}\n{log}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ends it without a goodbye, and starts it again on what it had written.
    pub fn restart(&mut self) -> Result<(), String> {
        self.end();
        self.child = launch(&self.libs, self.dir.path(), self.port)?;
        self.await_well()
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn launch(libs: &Path, dir: &Path, port: u16) -> Result<Child, String> {
    let settings = dir.join("zoo.cfg");
    let text = format!(
        "tickTime=500\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
         minSessionTimeout=1000\nmaxSessionTimeout=60000\nadmin.enableServer=false\n4lw.commands.whitelist=*\n",
        dir.join("data").display()
    );
    std::fs::write(&settings, text).map_err(|error| error.to_string())?;
    let log = std::fs::File::create(dir.join("log")).map_err(|error| error.to_string())?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    Command::new("java")
        .args(["-Xmx256m", "-cp", &format!("{}/*", libs.display())])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(&settings)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|error| error.to_string())
}

/// Whether it answers the four-letter word.
fn is_well(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"ruok")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        Ok(&answer == b"imok")
    };
    ask().unwrap_or(false)
}

/// A way to a server that can be cut.
struct Way {
    port: u16,
    state: Arc<WayState>,
}

#[derive(Default)]
struct WayState {
    is_cut: AtomicBool,
    /// What the server says does not arrive.
    is_mute: AtomicBool,
    /// From the next transaction of several ops on, nothing that the server says arrives.
    mutes_at_multi: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Way {
    /// Its threads end with the process.
    fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(WayState::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let mut streams = shared.streams.lock().unwrap();
                streams.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                let asks = shared.clone();
                pump(client.try_clone().unwrap(), server.try_clone().unwrap(), move |bytes| {
                    if is_multi(bytes) && asks.mutes_at_multi.swap(false, Ordering::SeqCst) {
                        asks.is_mute.store(true, Ordering::SeqCst);
                    }
                    true
                });
                let answers = shared.clone();
                pump(server, client, move |_| !answers.is_mute.load(Ordering::SeqCst));
            }
        });
        Self { port, state }
    }

    /// Cuts what is there, and takes no connection until it is healed.
    fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
        for stream in self.state.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn heal(&self) {
        self.state.is_mute.store(false, Ordering::SeqCst);
        self.state.is_cut.store(false, Ordering::SeqCst);
    }

    fn mute(&self) {
        self.state.is_mute.store(true, Ordering::SeqCst);
    }
}

/// Whether what a client sends begins with a transaction of several ops (zookeeper.md 12).
fn is_multi(bytes: &[u8]) -> bool {
    bytes.get(8..12) == Some(&[0, 0, 0, 14])
}

fn pump(mut from: TcpStream, mut to: TcpStream, passes: impl Fn(&[u8]) -> bool + Send + 'static) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if passes(&buffer[..count]) && to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

/// A part of a server that is a test's own.
struct Root {
    port: u16,
    name: String,
}

impl Root {
    fn new(server: u16) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tests/{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { port: server, name }
    }

    fn open(&self, port: u16, on_loss: OnLoss) -> ZookeeperStore {
        let options = Options {
            connect: format!("127.0.0.1:{port}/{}", self.name),
            session_timeout: SESSION,
            connection_timeout: START_LIMIT,
            in_flight_max: 1000,
            on_loss,
        };
        ZookeeperLink::open(options, || false).unwrap().start()
    }
}

impl Bench for Root {
    type Store = ZookeeperStore;
    fn start(&self) -> ZookeeperStore {
        self.open(self.port, OnLoss::Fail)
    }
    fn clock_ms(&self) -> Option<i64> {
        None
    }
}

/// The next event that is wanted; others may come before it.
fn until(store: &ZookeeperStore, is_wanted: impl Fn(&StoreEvent) -> bool) -> StoreEvent {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    // The wait has no timeout of its own: a watchdog ends the process.
    std::thread::spawn(move || {
        if receiver.recv_timeout(EVENT_LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("an event that was waited for has not come within {EVENT_LIMIT:?}");
            std::process::exit(1);
        }
    });
    let event = loop {
        let event = wait(store.next_event()).expect("the handle is open");
        if is_wanted(&event) {
            break event;
        }
    };
    drop(sender);
    event
}

fn is_connected(event: &StoreEvent) -> bool {
    matches!(event, StoreEvent::Connected { .. })
}

fn is_expired(event: &StoreEvent) -> bool {
    matches!(event, StoreEvent::Expired { .. })
}

/// Statement 8, and that a session outlives its connection.
fn a_change_while_the_connection_was_cut_fires_its_watch_once(server: u16) {
    let (root, way) = (Root::new(server), Way::to(server));
    let store = root.open(way.port, OnLoss::Fail);
    let other = root.start();
    for path in ["/data", "/gone", "/parent", "/same"] {
        wait(store.create(path, text("1"), CreateMode::Persistent)).unwrap();
    }
    wait(store.create("/mine", None, CreateMode::Ephemeral)).unwrap();
    for path in ["/data", "/gone", "/same"] {
        wait(store.get(path, true)).unwrap();
    }
    wait(store.exists("/new", true)).unwrap();
    wait(store.children("/parent", true)).unwrap();
    wait(store.children("/same", true)).unwrap();
    until(&store, is_connected);
    let before = store.session();
    way.cut();
    until(&store, |event| *event == StoreEvent::Suspended);
    wait(other.set("/data", text("2"), Expected::Any)).unwrap();
    wait(other.delete("/gone", Expected::Any)).unwrap();
    wait(other.create("/new", None, CreateMode::Persistent)).unwrap();
    wait(other.create("/parent/child", None, CreateMode::Persistent)).unwrap();
    way.heal();
    until(&store, is_connected);
    // A read that comes behind shows the change, and every event stands ready before it.
    assert_eq!(wait(store.get("/data", false)).unwrap().0, text("2"));
    let mut told = Vec::new();
    while let Some(Some(event)) = contract::now(store.next_event()) {
        told.push(format!("{event:?}"));
    }
    told.sort();
    let expected = [
        "ChildrenChanged(\"/parent\")",
        "DataChanged(\"/data\")",
        "NodeCreated(\"/new\")",
        "NodeDeleted(\"/gone\")",
    ];
    assert_eq!(told, expected);
    assert_eq!(store.session(), before);
    assert!(wait(other.exists("/mine", false)).unwrap().is_some(), "the session has lived on");
    // The watches that did not fire are set on the new connection.
    wait(other.set("/same", text("2"), Expected::Any)).unwrap();
    wait(other.create("/same/child", None, CreateMode::Persistent)).unwrap();
    until(&store, |event| *event == StoreEvent::DataChanged("/same".to_owned()));
    until(&store, |event| *event == StoreEvent::ChildrenChanged("/same".to_owned()));
}

/// 13 (f), (h): nothing crosses the end of a session.
fn a_session_that_expires_is_told_and_a_new_one_begins(server: u16) {
    let (root, way) = (Root::new(server), Way::to(server));
    let (store, other) = (root.open(way.port, OnLoss::Resend), root.start());
    let fork = store.fork();
    wait(store.create("/mine", None, CreateMode::Ephemeral)).unwrap();
    wait(store.create("/kept", None, CreateMode::Persistent)).unwrap();
    wait(store.get("/kept", true)).unwrap();
    let old = store.session();
    way.cut();
    until(&store, |event| *event == StoreEvent::Suspended);
    let waiting = store.set("/kept", text("never"), Expected::Any);
    // The server gives the session up when it has not heard from us.
    while wait(other.exists("/mine", false)).unwrap().is_some() {
        std::thread::sleep(Duration::from_millis(50));
    }
    way.heal();
    until(&store, is_expired);
    until(&fork, is_expired);
    assert_eq!(wait(waiting), Err(StoreError::SessionExpired));
    assert_eq!(wait(store.exists("/kept", false)), Err(StoreError::SessionExpired));
    assert_eq!(wait(fork.multi(vec![])), Err(MultiError::Request(StoreError::SessionExpired)));
    let new = wait(store.reopen()).unwrap();
    assert_eq!((new.local_epoch, fork.session()), (old.local_epoch + 1, new));
    assert_ne!(new.id, old.id);
    until(&fork, is_connected);
    let (data, _) = wait(store.get("/kept", false)).unwrap();
    assert_eq!(data, None, "what was asked in the old session was not sent in the new one");
    // The watches have ended with it.
    wait(other.set("/kept", text("2"), Expected::Any)).unwrap();
    wait(store.get("/kept", false)).unwrap();
    while let Some(Some(event)) = contract::now(store.next_event()) {
        assert!(is_connected(&event), "{event:?}");
    }
}

/// 13 (g): a write that took effect, though its answer never came.
fn an_answer_that_is_lost_leaves_the_outcome_unknown(server: u16) {
    let (root, way) = (Root::new(server), Way::to(server));
    let (store, other) = (root.open(way.port, OnLoss::Fail), root.start());
    way.mute();
    let unanswered = store.create("/written", None, CreateMode::Persistent);
    while wait(other.exists("/written", false)).unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    way.cut();
    way.heal();
    assert_eq!(wait(unanswered), Err(StoreError::ConnectionLoss));
    assert!(wait(store.exists("/written", false)).unwrap().is_some());
}

/// A server cuts the connection that a request beyond its limit comes on: sent again, it would be cut for ever.
fn a_write_that_no_server_takes_fails_and_the_session_goes_on(server: u16) {
    let root = Root::new(server);
    let store = root.open(server, OnLoss::Resend);
    let before = store.session();
    let large = || Some(bytes::Bytes::from(vec![b'x'; 2 << 20]));
    let first = store.create("/large", large(), CreateMode::Persistent);
    let second = store.create("/small", None, CreateMode::Persistent);
    assert_eq!(wait(first).map(drop), Err(StoreError::TooLarge));
    assert_eq!(wait(second).map(drop), Ok(()));
    let ops = vec![Op::create("/a", None), Op::create("/b", large())];
    assert_eq!(wait(store.multi(ops)), Err(MultiError::Request(StoreError::TooLarge)));
    assert_eq!(wait(store.exists("/large", false)), Ok(None));
    assert_eq!(wait(store.exists("/a", false)), Ok(None));
    assert_eq!(store.session(), before);
}

/// Statements 2 and 4 on one connection that dies at the worst moment: what is sent again finds its own write.
fn a_registration_whose_answer_is_lost_recognises_itself(server: u16) {
    let (root, way) = (Root::new(server), Way::to(server));
    let (store, other) = (root.open(way.port, OnLoss::Resend), root.start());
    for path in ["/brokers", "/brokers/ids"] {
        wait(store.create(path, None, CreateMode::Persistent)).unwrap();
    }
    let (id, node) = (BrokerId::new(7), BrokerNode::new(&[], None, 0));
    way.state.mutes_at_multi.store(true, Ordering::SeqCst);
    let registering = std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = root.start();
            while wait(other.exists("/brokers/ids/7", false)).unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(20));
            }
            way.cut();
            way.heal();
        });
        wait(register(&store, id, &node, None))
    });
    let epoch = registering.unwrap();
    let (data, stat) = wait(other.get("/brokers/ids/7", false)).unwrap();
    assert_eq!((stat.czxid, stat.version, data), (epoch.get(), 1, Some(node.print())));
    // Again in the same session: the same registration. From another one: refused.
    assert_eq!(wait(register(&store, id, &node, None)), Ok(epoch));
    assert_eq!(wait(register(&other, id, &node, None)), Err(RegistrationError::IdInUse(id)));
    // What is left of a former session is replaced, and the epoch grows.
    let again = wait(register(&other, id, &node, Some(store.session().id))).unwrap();
    assert!(again > epoch);
}

/// A server that dies and comes back keeps sessions and nodes.
fn a_server_that_is_killed_and_started_again_keeps_the_session(libs: &Path) -> Result<(), String> {
    let mut server = ZooKeeper::start(libs)?;
    let root = Root::new(server.port);
    let store = root.open(server.port, OnLoss::Resend);
    wait(store.create("/e", None, CreateMode::Ephemeral)).unwrap();
    let before = store.session();
    until(&store, is_connected);
    server.restart()?;
    let later = store.set("/e", text("later"), Expected::Any);
    assert_eq!(wait(later).unwrap().version, 1);
    assert_eq!(store.session(), before);
    wait(store.close()).unwrap();
    Ok(())
}

type Test = Box<dyn Fn() -> Result<(), String>>;

/// What of the contract is not kept: the library cannot tell them apart (see `store/zookeeper.rs`).
const BEYOND_ZOOKEEPER: [&str; 1] = ["null_and_empty_data_stay_apart"];

/// All tests, by name.
pub fn tests(server: u16, libs: &Path) -> BTreeMap<&'static str, Test> {
    let mut all: BTreeMap<&'static str, Test> = BTreeMap::new();
    macro_rules! keeps {
        ($($name:ident)*) => {
            $(if !BEYOND_ZOOKEEPER.contains(&stringify!($name)) {
                all.insert(stringify!($name), Box::new(move || {
                    contract::$name(&Root::new(server));
                    Ok(())
                }));
            })*
        };
    }
    every_test!(keeps);
    macro_rules! shows {
        ($($name:ident)*) => {
            $(all.insert(stringify!($name), Box::new(move || {
                $name(server);
                Ok(())
            }));)*
        };
    }
    shows! {
        a_change_while_the_connection_was_cut_fires_its_watch_once
        a_session_that_expires_is_told_and_a_new_one_begins
        an_answer_that_is_lost_leaves_the_outcome_unknown
        a_write_that_no_server_takes_fails_and_the_session_goes_on
        a_registration_whose_answer_is_lost_recognises_itself
    }
    let libs = libs.to_owned();
    all.insert(
        "a_server_that_is_killed_and_started_again_keeps_the_session",
        Box::new(move || a_server_that_is_killed_and_started_again_keeps_the_session(&libs)),
    );
    all
}

/// Runs one test; a panic is its failure.
pub fn judge(test: &Test) -> Verdict {
    let outcome = catch_unwind(AssertUnwindSafe(test)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(text.unwrap_or_default())
    });
    outcome.map(|()| String::new()).into()
}

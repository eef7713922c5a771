//! The tree of znodes in memory, with sessions and watches: pure, shared by the embedded and the simulated store.
//! Knows neither disks nor tasks; `local` calls it and makes durable what it reports as changed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes};

use super::{
    CreateMode, Expected, FencedError, MultiError, NodeData, Op, OpDone, Stat, StoreError, StoreEvent, znodes,
};

/// Who set a watch.
pub(super) type HandleId = u64;

/// What has to be made durable for one or more transactions, in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Path to its record; `None` removes it. Ephemeral nodes never appear: they end with the process.
    pub records: BTreeMap<String, Option<Bytes>>,
    /// The last transaction in it.
    pub zxid: i64,
}

/// What a request did beside answering.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// To be made durable; `None` if nothing changed.
    pub changes: Option<Changes>,
    /// Watches that fired, in order.
    pub fired: Vec<(HandleId, StoreEvent)>,
}

/// A record of the file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record of {path:?} is damaged")]
pub struct DamagedRecord {
    /// Path of the node.
    pub path: String,
}

#[derive(Clone, Debug, Default)]
struct Node {
    data: Option<Bytes>,
    stat: Stat,
    children: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WatchKind {
    Data,
    Children,
}

/// How to take back one applied op.
enum Undo {
    Created(String, Stat),
    Set(String, Option<Bytes>, Stat),
    Deleted(String, Box<Node>, Stat),
}

/// One transaction in progress.
struct Transaction {
    session: i64,
    now_ms: i64,
    zxid: i64,
    undo: Vec<Undo>,
    fired: Vec<Fire>,
    touched: BTreeSet<String>,
}

enum Fire {
    Created(String),
    Changed(String),
    Deleted(String),
}

/// The tree.
pub(super) struct Tree {
    nodes: BTreeMap<String, Node>,
    ephemerals: BTreeMap<i64, BTreeSet<String>>,
    watches: BTreeMap<(WatchKind, String), BTreeSet<HandleId>>,
    last_zxid: i64,
}

fn parent_of(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => path.get(..at).unwrap_or("/"),
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn is_legal(path: &str) -> bool {
    path == "/" || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|name| !name.is_empty()))
}

const RECORD_VERSION: u8 = 1;
const RECORD_HEAD: usize = 1 + 4 * 8 + 2 * 4 + 1;

impl Node {
    /// Version, czxid, mzxid, ctime, mtime, data version, child version, presence of data, data; big-endian.
    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(RECORD_HEAD + self.data.as_ref().map_or(0, Bytes::len));
        out.put_u8(RECORD_VERSION);
        out.put_i64(self.stat.czxid);
        out.put_i64(self.stat.mzxid);
        out.put_i64(self.stat.ctime_ms);
        out.put_i64(self.stat.mtime_ms);
        out.put_i32(self.stat.version);
        out.put_i32(self.stat.cversion);
        out.put_u8(u8::from(self.data.is_some()));
        out.extend_from_slice(self.data.as_deref().unwrap_or_default());
        out.into()
    }

    fn decode(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < RECORD_HEAD || bytes.get_u8() != RECORD_VERSION {
            return None;
        }
        let stat = Stat {
            czxid: bytes.get_i64(),
            mzxid: bytes.get_i64(),
            ctime_ms: bytes.get_i64(),
            mtime_ms: bytes.get_i64(),
            version: bytes.get_i32(),
            cversion: bytes.get_i32(),
            ephemeral_owner: 0,
        };
        let data = match bytes.get_u8() {
            0 if bytes.is_empty() => None,
            1 => Some(bytes),
            _ => return None,
        };
        Some(Self { data, stat, children: BTreeSet::new() })
    }
}

impl Tree {
    /// A tree that holds only its root.
    pub fn new() -> Self {
        Self {
            nodes: BTreeMap::from([("/".to_owned(), Node::default())]),
            ephemerals: BTreeMap::new(),
            watches: BTreeMap::new(),
            last_zxid: 0,
        }
    }

    /// A tree from its records, in the order of the paths.
    pub fn load(
        last_zxid: i64,
        records: impl IntoIterator<Item = (String, Bytes)>,
    ) -> Result<Self, DamagedRecord> {
        let mut tree = Self { last_zxid, ..Self::new() };
        for (path, bytes) in records {
            let Some(node) = Node::decode(bytes).filter(|_| is_legal(&path)) else {
                return Err(DamagedRecord { path });
            };
            if path == "/" {
                tree.nodes.insert(path, node);
                continue;
            }
            match tree.nodes.get_mut(parent_of(&path)) {
                Some(parent) => parent.children.insert(name_of(&path).to_owned()),
                None => return Err(DamagedRecord { path }),
            };
            tree.nodes.insert(path, node);
        }
        Ok(tree)
    }

    /// The last transaction.
    pub fn last_zxid(&self) -> i64 {
        self.last_zxid
    }

    pub fn get(&mut self, path: &str, watch: Option<HandleId>) -> Result<NodeData, StoreError> {
        let node = self.nodes.get(path).ok_or(StoreError::NoNode)?;
        let found = (node.data.clone(), node.stat);
        self.watch(WatchKind::Data, path, watch);
        Ok(found)
    }

    pub fn exists(&mut self, path: &str, watch: Option<HandleId>) -> Option<Stat> {
        self.watch(WatchKind::Data, path, watch);
        self.nodes.get(path).map(|node| node.stat)
    }

    pub fn children(
        &mut self,
        path: &str,
        watch: Option<HandleId>,
    ) -> Result<(Vec<String>, Stat), StoreError> {
        let node = self.nodes.get(path).ok_or(StoreError::NoNode)?;
        let found = (node.children.iter().cloned().collect(), node.stat);
        self.watch(WatchKind::Children, path, watch);
        Ok(found)
    }

    fn watch(&mut self, kind: WatchKind, path: &str, handle: Option<HandleId>) {
        if let Some(handle) = handle {
            self.watches.entry((kind, path.to_owned())).or_default().insert(handle);
        }
    }

    /// Drops all watches of some handles.
    pub fn forget_watches(&mut self, handles: &BTreeSet<HandleId>) {
        self.watches.retain(|_, who| {
            who.retain(|handle| !handles.contains(handle));
            !who.is_empty()
        });
    }

    /// One transaction of several ops.
    pub fn multi(
        &mut self,
        session: i64,
        now_ms: i64,
        ops: Vec<Op>,
    ) -> (Result<Vec<OpDone>, MultiError>, Effects) {
        let mut effects = Effects::default();
        let result = self.transact(session, now_ms, ops, &mut effects);
        (result, effects)
    }

    /// One transaction per op, each with a check of the controller's epoch in front.
    pub fn fenced(
        &mut self,
        session: i64,
        now_ms: i64,
        epoch_version: i32,
        ops: Vec<Op>,
    ) -> (Vec<Result<OpDone, FencedError>>, Effects) {
        let mut effects = Effects::default();
        let results = ops
            .into_iter()
            .map(|op| {
                let check = Op::Check { path: znodes::CONTROLLER_EPOCH.to_owned(), version: epoch_version };
                match self.transact(session, now_ms, vec![check, op], &mut effects) {
                    Ok(mut done) => done.pop().ok_or(FencedError::Store(StoreError::BadPath)),
                    Err(MultiError::Op { index: 0, .. }) => Err(FencedError::Moved),
                    Err(error) => Err(FencedError::Store(error.error())),
                }
            })
            .collect();
        (results, effects)
    }

    /// Ends a session: its ephemerals go in one transaction.
    pub fn end_session(&mut self, session: i64, now_ms: i64) -> Effects {
        let mut effects = Effects::default();
        let ops: Vec<Op> =
            self.ephemerals.remove(&session).unwrap_or_default().into_iter().map(Op::delete).collect();
        if !ops.is_empty() {
            let done = self.transact(session, now_ms, ops, &mut effects);
            assert!(done.is_ok(), "an ephemeral node has no children and exists");
        }
        effects
    }

    fn transact(
        &mut self,
        session: i64,
        now_ms: i64,
        ops: Vec<Op>,
        effects: &mut Effects,
    ) -> Result<Vec<OpDone>, MultiError> {
        let mut transaction = Transaction {
            session,
            now_ms,
            zxid: self.last_zxid + 1,
            undo: Vec::new(),
            fired: Vec::new(),
            touched: BTreeSet::new(),
        };
        let mut done = Vec::with_capacity(ops.len());
        for (index, op) in ops.into_iter().enumerate() {
            match self.apply(op, &mut transaction) {
                Ok(result) => done.push(result),
                Err(error) => {
                    self.take_back(transaction.undo);
                    return Err(MultiError::Op { index, error });
                }
            }
        }
        // A transaction that only checks changes nothing and takes no number.
        if !transaction.touched.is_empty() {
            self.last_zxid = transaction.zxid;
            self.record(&transaction.touched, effects);
            self.fire(transaction.fired, effects);
        }
        Ok(done)
    }

    fn apply(&mut self, op: Op, transaction: &mut Transaction) -> Result<OpDone, StoreError> {
        match op {
            Op::Check { path, version } => {
                let node = self.nodes.get(&path).ok_or(StoreError::NoNode)?;
                if node.stat.version == version { Ok(OpDone::Checked) } else { Err(StoreError::BadVersion) }
            }
            Op::Create { path, data, mode } => self.apply_create(path, data, mode, transaction),
            Op::Set { path, data, expected } => {
                let node = self.nodes.get_mut(&path).ok_or(StoreError::NoNode)?;
                check_version(node, expected)?;
                transaction.undo.push(Undo::Set(path.clone(), node.data.clone(), node.stat));
                node.data = data;
                node.stat.version = node.stat.version.wrapping_add(1);
                node.stat.mzxid = transaction.zxid;
                node.stat.mtime_ms = transaction.now_ms;
                let stat = node.stat;
                transaction.touched.insert(path.clone());
                transaction.fired.push(Fire::Changed(path));
                Ok(OpDone::Set(stat))
            }
            Op::Delete { path, expected } => self.apply_delete(path, expected, transaction),
        }
    }

    fn apply_create(
        &mut self,
        mut path: String,
        data: Option<Bytes>,
        mode: CreateMode,
        transaction: &mut Transaction,
    ) -> Result<OpDone, StoreError> {
        if mode == CreateMode::PersistentSequential {
            let parent = self.nodes.get(parent_of(&path)).ok_or(StoreError::NoNode)?;
            path = format!("{path}{:010}", parent.stat.cversion);
        }
        if !is_legal(&path) {
            return Err(StoreError::BadPath);
        }
        if self.nodes.contains_key(&path) {
            return Err(StoreError::NodeExists);
        }
        let parent = self.nodes.get_mut(parent_of(&path)).ok_or(StoreError::NoNode)?;
        if parent.stat.ephemeral_owner != 0 {
            return Err(StoreError::NoChildrenForEphemerals);
        }
        transaction.undo.push(Undo::Created(path.clone(), parent.stat));
        parent.children.insert(name_of(&path).to_owned());
        parent.stat.cversion = parent.stat.cversion.wrapping_add(1);
        let owner = if mode == CreateMode::Ephemeral { transaction.session } else { 0 };
        let stat = Stat {
            czxid: transaction.zxid,
            mzxid: transaction.zxid,
            ctime_ms: transaction.now_ms,
            mtime_ms: transaction.now_ms,
            version: 0,
            cversion: 0,
            ephemeral_owner: owner,
        };
        if owner != 0 {
            self.ephemerals.entry(owner).or_default().insert(path.clone());
        }
        transaction.touched.insert(parent_of(&path).to_owned());
        transaction.touched.insert(path.clone());
        transaction.fired.push(Fire::Created(path.clone()));
        self.nodes.insert(path.clone(), Node { data, stat, children: BTreeSet::new() });
        Ok(OpDone::Created { path, stat })
    }

    fn apply_delete(
        &mut self,
        path: String,
        expected: Expected,
        transaction: &mut Transaction,
    ) -> Result<OpDone, StoreError> {
        let node = self.nodes.get(&path).ok_or(StoreError::NoNode)?;
        check_version(node, expected)?;
        if !node.children.is_empty() {
            return Err(StoreError::NotEmpty);
        }
        if path == "/" {
            return Err(StoreError::BadPath);
        }
        let Some(node) = self.nodes.remove(&path) else { return Err(StoreError::NoNode) };
        if let Some(paths) = self.ephemerals.get_mut(&node.stat.ephemeral_owner) {
            paths.remove(&path);
        }
        if let Some(parent) = self.nodes.get_mut(parent_of(&path)) {
            transaction.undo.push(Undo::Deleted(path.clone(), Box::new(node), parent.stat));
            parent.children.remove(name_of(&path));
            parent.stat.cversion = parent.stat.cversion.wrapping_add(1);
        }
        transaction.touched.insert(parent_of(&path).to_owned());
        transaction.touched.insert(path.clone());
        transaction.fired.push(Fire::Deleted(path));
        Ok(OpDone::Deleted)
    }

    fn take_back(&mut self, undo: Vec<Undo>) {
        for step in undo.into_iter().rev() {
            match step {
                Undo::Created(path, parent_stat) => {
                    if let Some(node) = self.nodes.remove(&path)
                        && let Some(paths) = self.ephemerals.get_mut(&node.stat.ephemeral_owner)
                    {
                        paths.remove(&path);
                    }
                    if let Some(parent) = self.nodes.get_mut(parent_of(&path)) {
                        parent.children.remove(name_of(&path));
                        parent.stat = parent_stat;
                    }
                }
                Undo::Set(path, data, stat) => {
                    if let Some(node) = self.nodes.get_mut(&path) {
                        node.data = data;
                        node.stat = stat;
                    }
                }
                Undo::Deleted(path, node, parent_stat) => {
                    if node.stat.ephemeral_owner != 0 {
                        self.ephemerals.entry(node.stat.ephemeral_owner).or_default().insert(path.clone());
                    }
                    if let Some(parent) = self.nodes.get_mut(parent_of(&path)) {
                        parent.children.insert(name_of(&path).to_owned());
                        parent.stat = parent_stat;
                    }
                    self.nodes.insert(path, *node);
                }
            }
        }
    }

    fn record(&self, touched: &BTreeSet<String>, effects: &mut Effects) {
        let changes = effects.changes.get_or_insert_default();
        changes.zxid = self.last_zxid;
        for path in touched {
            match self.nodes.get(path) {
                Some(node) if node.stat.ephemeral_owner != 0 => {}
                Some(node) => {
                    changes.records.insert(path.clone(), Some(node.encode()));
                }
                // Removing what was never stored (an ephemeral) is harmless.
                None => {
                    changes.records.insert(path.clone(), None);
                }
            }
        }
    }

    fn fire(&mut self, fired: Vec<Fire>, effects: &mut Effects) {
        for fire in fired {
            let (path, own, siblings) = match fire {
                Fire::Created(path) => (path.clone(), StoreEvent::NodeCreated(path), true),
                Fire::Changed(path) => (path.clone(), StoreEvent::DataChanged(path), false),
                Fire::Deleted(path) => (path.clone(), StoreEvent::NodeDeleted(path), true),
            };
            let mut who = self.watches.remove(&(WatchKind::Data, path.clone())).unwrap_or_default();
            if matches!(own, StoreEvent::NodeDeleted(_)) {
                who.extend(self.watches.remove(&(WatchKind::Children, path.clone())).unwrap_or_default());
            }
            effects.fired.extend(who.into_iter().map(|handle| (handle, own.clone())));
            if siblings {
                let parent = parent_of(&path);
                let who = self.watches.remove(&(WatchKind::Children, parent.to_owned())).unwrap_or_default();
                let changed = StoreEvent::ChildrenChanged(parent.to_owned());
                effects.fired.extend(who.into_iter().map(|handle| (handle, changed.clone())));
            }
        }
    }
}

fn check_version(node: &Node, expected: Expected) -> Result<(), StoreError> {
    match expected {
        Expected::Version(version) if version != node.stat.version => Err(StoreError::BadVersion),
        Expected::Any | Expected::Version(_) => Ok(()),
    }
}

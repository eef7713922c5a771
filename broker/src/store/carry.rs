//! Carries the whole persistent tree from one metadata store into another that is empty, so that a cluster can move
//! between the embedded store and ZooKeeper. Knows nodes, not what is in them, but for three facts: the queues of
//! notifications begin anew (their numbers are the store's, and a start reads everything anyway), the version of
//! `/brokers/seqid` is what ids are made of, and ZooKeeper keeps nodes of its own. Called by the command line.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use bytes::Bytes;
use futures_util::future::join_all;

use super::{CreateMode, Expected, MetadataStore, Op, StoreError, znodes};

/// Nodes that are read at once.
const READ_AT_ONCE: usize = 256;

/// Nodes, and bytes of them, that one transaction creates: well below what a ZooKeeper server takes as one request.
const OPS_PER_WRITE_MAX: usize = 500;
const BYTES_PER_WRITE_MAX: usize = 256 << 10;

/// Nodes whose children announce what has changed.
const QUEUES: [&str; 6] = [
    znodes::CONFIG_CHANGES,
    znodes::ISR_CHANGES,
    znodes::LOG_DIR_EVENTS,
    "/kafka-acl-changes",
    "/kafka-acl-extended-changes",
    "/delegation_token/token_changes",
];

/// What ZooKeeper itself keeps below its root.
const ZOOKEEPERS_OWN: &str = "zookeeper";

/// Where new broker ids come from.
const SEQID: &str = "/brokers/seqid";

/// Why a tree was not carried; the target is empty then, unless it says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CarryError {
    /// There is something in the target.
    #[error("{0} is there already")]
    NotEmpty(String),
    /// There is nothing in the source.
    #[error("there is nothing to carry")]
    Nothing,
    /// Somebody works with the source.
    #[error("broker {0} is registered in it: it runs, or its session has not ended yet")]
    InUse(String),
    /// The source cannot be read.
    #[error("it cannot be read: {0}")]
    Read(StoreError),
    /// The target cannot be written; what was written is gone again.
    #[error("it cannot be written: {0}")]
    Write(StoreError),
    /// The target cannot be written, and something was left behind.
    #[error("it cannot be written: {0}; what was written before is still there and must be removed")]
    Left(StoreError),
}

/// What was carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Nodes.
    pub nodes: usize,
    /// Topics among them.
    pub topics: usize,
}

struct Node {
    path: String,
    data: Option<Bytes>,
    version: i32,
}

/// Carries the tree.
///
/// # Errors
/// See [`CarryError`].
pub async fn carry<A: MetadataStore, B: MetadataStore>(from: &A, to: &B) -> Result<Carried, CarryError> {
    let roots = to.children("/", false).await.map_err(CarryError::Read)?.0;
    if let Some(name) = roots.iter().find(|name| *name != ZOOKEEPERS_OWN) {
        return Err(CarryError::NotEmpty(format!("/{name}")));
    }
    match from.children(znodes::BROKER_IDS, false).await {
        Ok((ids, _)) => {
            if let Some(id) = ids.into_iter().next() {
                return Err(CarryError::InUse(id));
            }
        }
        Err(StoreError::NoNode) => return Err(CarryError::Nothing),
        Err(error) => return Err(CarryError::Read(error)),
    }
    let nodes = read(from).await.map_err(CarryError::Read)?;
    if let Err((written, error)) = write(to, &nodes).await {
        let is_gone = remove(to, nodes.get(..written).unwrap_or_default()).await;
        return Err(if is_gone { CarryError::Write(error) } else { CarryError::Left(error) });
    }
    let is_topic = |node: &&Node| {
        node.path
            .strip_prefix(znodes::TOPICS)
            .is_some_and(|rest| rest.len() > 1 && rest.rfind('/') == Some(0))
    };
    Ok(Carried { nodes: nodes.len(), topics: nodes.iter().filter(is_topic).count() })
}

/// All persistent nodes below the root, parents before children.
async fn read<S: MetadataStore>(store: &S) -> Result<Vec<Node>, StoreError> {
    let mut found: Vec<Node> = Vec::new();
    let mut level = vec!["/".to_owned()];
    while !level.is_empty() {
        let mut next = Vec::new();
        for some in level.chunks(READ_AT_ONCE) {
            let reads = some.iter().map(|path| {
                let (data, children) = (store.get(path, false), store.children(path, false));
                async move { Ok::<_, StoreError>((data.await?, children.await?.0)) }
            });
            // Issued in order by the map, awaited together.
            let reads: Vec<_> = reads.collect();
            for (path, read) in some.iter().zip(join_all(reads).await) {
                let ((data, stat), names) = read?;
                if stat.ephemeral_owner != 0 {
                    continue;
                }
                if !QUEUES.contains(&path.as_str()) {
                    let is_wanted = |name: &&String| path != "/" || *name != ZOOKEEPERS_OWN;
                    let below = path.trim_end_matches('/');
                    next.extend(names.iter().filter(is_wanted).map(|name| format!("{below}/{name}")));
                }
                if path != "/" {
                    found.push(Node { path: path.clone(), data, version: stat.version });
                }
            }
        }
        level = next;
    }
    Ok(found)
}

/// Writes all nodes; how many were written before it failed, and why.
async fn write<S: MetadataStore>(store: &S, nodes: &[Node]) -> Result<(), (usize, StoreError)> {
    let (mut written, mut rest) = (0, nodes);
    while !rest.is_empty() {
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for node in rest {
            let size = node.path.len() + node.data.as_ref().map_or(0, Bytes::len);
            if !ops.is_empty() && (ops.len() >= OPS_PER_WRITE_MAX || bytes + size > BYTES_PER_WRITE_MAX) {
                break;
            }
            bytes += size;
            ops.push(node);
        }
        let creations = ops.iter().filter(|node| is_kept(store, node)).map(|node| Op::Create {
            path: node.path.clone(),
            data: node.data.clone(),
            mode: CreateMode::Persistent,
        });
        store.multi(creations.collect()).await.map_err(|error| (written, error.error()))?;
        written += ops.len();
        rest = nodes.get(written..).unwrap_or_default();
    }
    let seqid = nodes.iter().find(|node| node.path == SEQID);
    let mut sets = seqid.map_or(0, |node| usize::try_from(node.version).unwrap_or(0));
    while sets > 0 {
        let some = sets.min(OPS_PER_WRITE_MAX);
        let ops = vec![Op::set(SEQID, Bytes::new(), Expected::Any); some];
        store.multi(ops).await.map_err(|error| (written, error.error()))?;
        sets -= some;
    }
    Ok(())
}

/// Kafka takes a block of producer ids that is empty, and not null, for a broken one.
fn is_kept<S: MetadataStore>(store: &S, node: &Node) -> bool {
    store.tells_null() || node.data.is_some() || node.path != znodes::PRODUCER_ID_BLOCK
}

/// Takes back what was written; whether nothing is left.
async fn remove<S: MetadataStore>(store: &S, nodes: &[Node]) -> bool {
    let mut is_gone = true;
    for node in nodes.iter().rev().filter(|node| is_kept(store, node)) {
        is_gone &= store.delete(&node.path, Expected::Any).await.is_ok();
    }
    is_gone
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which no executor owns: both stores wake it from threads of their own.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sim::{SimDisk, SimStore};

    fn make(store: &SimStore, path: &str, data: Option<&str>) {
        let data = data.map(|data| Bytes::copy_from_slice(data.as_bytes()));
        block_on(store.create(path, data, CreateMode::Persistent)).unwrap();
    }

    fn source() -> SimStore {
        let store = SimDisk::new().start(|| 0);
        for path in
            ["/brokers", "/brokers/ids", "/brokers/topics", "/brokers/seqid", "/config", "/config/changes"]
        {
            make(&store, path, None);
        }
        make(&store, "/brokers/topics/t", Some("{}"));
        make(&store, "/brokers/topics/t/partitions", None);
        make(&store, "/empty", Some(""));
        make(&store, znodes::PRODUCER_ID_BLOCK, None);
        make(&store, "/config/changes/config_change_0000000007", Some("x"));
        make(&store, "/zookeeper", None);
        block_on(store.create("/e", None, CreateMode::Ephemeral)).unwrap();
        for _ in 0..1003 {
            block_on(store.set("/brokers/seqid", Some(Bytes::new()), Expected::Any)).unwrap();
        }
        store
    }

    #[test]
    fn all_that_persists_is_carried_and_queues_begin_anew() {
        let (from, to) = (source(), SimDisk::new().start(|| 0));
        let carried = block_on(carry(&from, &to)).unwrap();
        assert_eq!(carried, Carried { nodes: 10, topics: 1 });
        let get = |path: &str| block_on(to.get(path, false)).map(|(data, stat)| (data, stat.version));
        assert_eq!(get("/brokers/topics/t"), Ok((Some(Bytes::from_static(b"{}")), 0)));
        assert_eq!(get("/brokers/topics/t/partitions"), Ok((None, 0)));
        assert_eq!(get("/empty"), Ok((Some(Bytes::new()), 0)));
        assert_eq!(get("/brokers/seqid"), Ok((Some(Bytes::new()), 1003)));
        assert_eq!(get("/config/changes"), Ok((None, 0)));
        assert_eq!(get("/config/changes/config_change_0000000007"), Err(StoreError::NoNode));
        assert_eq!(get("/e"), Err(StoreError::NoNode));
        assert_eq!(get("/zookeeper"), Err(StoreError::NoNode));
    }

    #[test]
    fn a_target_that_is_not_empty_is_left_alone() {
        let (from, to) = (source(), SimDisk::new().start(|| 0));
        make(&to, "/zookeeper", None);
        make(&to, "/mine", None);
        assert_eq!(block_on(carry(&from, &to)), Err(CarryError::NotEmpty("/mine".to_owned())));
        assert_eq!(block_on(to.children("/", false)).unwrap().0, ["mine", "zookeeper"]);
    }

    #[test]
    fn a_source_without_metadata_or_with_a_broker_is_refused() {
        let (empty, to) = (SimDisk::new().start(|| 0), SimDisk::new().start(|| 0));
        assert_eq!(block_on(carry(&empty, &to)), Err(CarryError::Nothing));
        let from = source();
        make(&from, "/brokers/ids/3", None);
        assert_eq!(block_on(carry(&from, &to)), Err(CarryError::InUse("3".to_owned())));
        assert_eq!(block_on(to.children("/", false)).unwrap().0, [""; 0]);
    }

    #[test]
    fn a_large_tree_is_carried_in_many_transactions() {
        let (from, to) = (source(), SimDisk::new().start(|| 0));
        for topic in 0..1200 {
            make(&from, &format!("/brokers/topics/t{topic}"), Some(&"x".repeat(1000)));
        }
        assert_eq!(block_on(carry(&from, &to)).unwrap().topics, 1201);
        let (names, _) = block_on(to.children("/brokers/topics", false)).unwrap();
        assert_eq!(names.len(), 1201);
    }

    #[test]
    fn what_was_written_of_a_tree_that_fails_half_way_is_taken_back() {
        let (from, to) = (source(), SimDisk::new().start(|| 0));
        for topic in 0..600 {
            make(&from, &format!("/brokers/topics/t{topic}"), None);
        }
        let nodes = block_on(read(&from)).unwrap();
        let is_deep = |node: &&Node| node.path.starts_with("/brokers/topics/");
        let (above, below) = nodes.split_at(nodes.iter().position(|node| is_deep(&node)).unwrap());
        block_on(write(&to, above)).unwrap();
        // Somebody else takes a name of the second transaction.
        make(&to, &below[OPS_PER_WRITE_MAX + 1].path, None);
        assert_eq!(block_on(write(&to, below)), Err((OPS_PER_WRITE_MAX, StoreError::NodeExists)));
        assert!(block_on(remove(&to, &below[..OPS_PER_WRITE_MAX])));
        assert_eq!(block_on(to.children("/brokers/topics", false)).unwrap().0.len(), 1);
    }
}

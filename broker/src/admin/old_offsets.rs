//! Offsets of the oldest clients (OffsetCommit 0, OffsetFetch 0): one node for each group and partition, its data the
//! offset as text, as Kafka in ZooKeeper mode keeps them. They have no expiry, no metadata and no members.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use protocol::types::Offset;

use super::ask::{OffsetNodeError, OffsetNodes};
use crate::store::{CreateMode, Expected, MetadataStore, NodeData, StoreError, znodes};

/// Nodes that are worked on at a time for one request: the store answers many together.
const AT_A_TIME: usize = 32;

/// Keeps offsets, one for each partition; what becomes of one does not depend on the others.
pub(super) async fn keep<S: MetadataStore>(
    store: &S,
    nodes: &OffsetNodes,
    offsets: Vec<Offset>,
) -> Vec<Result<(), OffsetNodeError>> {
    let keep = nodes.partitions.iter().zip(offsets).map(|((topic, partition), offset)| async move {
        let path = znodes::consumer_offset(&nodes.group, topic.get(), *partition);
        let path = path.ok_or(OffsetNodeError::Path)?;
        keep_one(store, &path, offset.get().to_string().into()).await.map_err(Into::into)
    });
    stream::iter(keep).buffered(AT_A_TIME).collect().await
}

/// Sets a node, or makes it with all above it.
async fn keep_one<S: MetadataStore>(store: &S, path: &str, data: Bytes) -> Result<(), StoreError> {
    let set = || store.set(path, Some(data.clone()), Expected::Any);
    match set().await {
        Err(StoreError::NoNode) => {}
        done => return done.map(drop),
    }
    let above = path.match_indices('/').map(|(at, _)| path.get(..at).unwrap_or_default());
    for parent in above.filter(|parent| parent.len() > znodes::CONSUMERS.len()) {
        match store.create(parent, None, CreateMode::Persistent).await {
            Ok(_) | Err(StoreError::NodeExists) => {}
            Err(error) => return Err(error),
        }
    }
    match store.create(path, Some(data.clone()), CreateMode::Persistent).await {
        // Another request was first: the last writer wins.
        Err(StoreError::NodeExists) => set().await.map(drop),
        done => done.map(drop),
    }
}

/// Reads offsets, one for each partition.
pub(super) async fn read<S: MetadataStore>(
    store: &S,
    nodes: &OffsetNodes,
) -> Vec<Result<Option<Offset>, OffsetNodeError>> {
    let read = nodes.partitions.iter().map(|(topic, partition)| async move {
        let path = znodes::consumer_offset(&nodes.group, topic.get(), *partition);
        let path = path.ok_or(OffsetNodeError::Path)?;
        parsed(store.get(&path, false).await)
    });
    stream::iter(read).buffered(AT_A_TIME).collect().await
}

/// No node and null data are no offset.
fn parsed(node: Result<NodeData, StoreError>) -> Result<Option<Offset>, OffsetNodeError> {
    match node {
        Ok((None, _)) | Err(StoreError::NoNode) => Ok(None),
        Ok((Some(data), _)) => {
            let text = std::str::from_utf8(&data).map_err(|_| OffsetNodeError::Malformed)?;
            text.parse().map(|offset| Some(Offset::new(offset))).map_err(|_| OffsetNodeError::Malformed)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use protocol::types::TopicName;

    use super::*;
    use crate::store::sim::{SimDisk, SimStore};

    fn store() -> SimStore {
        let store = SimDisk::new().start(|| 0);
        let made = store.create(znodes::CONSUMERS, None, CreateMode::Persistent);
        made.now_or_never().unwrap().unwrap();
        store
    }

    fn nodes(group: &str, partitions: &[i32]) -> OffsetNodes {
        let partitions = partitions.iter().map(|partition| (TopicName::new("t"), *partition));
        OffsetNodes { group: group.into(), partitions: partitions.collect() }
    }

    fn keep_now(store: &SimStore, nodes: &OffsetNodes, offsets: &[i64]) -> Vec<Result<(), OffsetNodeError>> {
        let offsets = offsets.iter().map(|offset| Offset::new(*offset)).collect();
        keep(store, nodes, offsets).now_or_never().unwrap()
    }

    fn data(store: &SimStore, path: &str) -> Option<Bytes> {
        store.get(path, false).now_or_never().unwrap().unwrap().0
    }

    #[test]
    fn an_offset_is_a_node_as_kafka_names_it() {
        let store = store();
        let group = nodes("g", &[0, 7, 0]);
        assert_eq!(keep_now(&store, &group, &[1, 42, 3]), vec![Ok(()); 3]);
        assert_eq!(data(&store, "/consumers/g/offsets/t/7").as_deref(), Some(&b"42"[..]));
        assert_eq!(
            data(&store, "/consumers/g/offsets/t/0").as_deref(),
            Some(&b"3"[..]),
            "the last one counts"
        );
        assert_eq!(data(&store, "/consumers/g/offsets"), None);
        assert_eq!(keep_now(&store, &nodes("g", &[7]), &[-1]), vec![Ok(())]);
        let found = read(&store, &nodes("g", &[7, 0, 1])).now_or_never().unwrap();
        assert_eq!(found, vec![Ok(Some(Offset::new(-1))), Ok(Some(Offset::new(3))), Ok(None)]);
    }

    #[test]
    fn groups_whose_ids_are_no_part_of_a_path_are_refused() {
        let store = store();
        for group in ["", "..", ".", "a/../b", "a//b", "/a", "a/", "a\u{1}", "a\0", "😀", "a\u{e000}"] {
            let group = nodes(group, &[0]);
            assert_eq!(keep_now(&store, &group, &[1]), vec![Err(OffsetNodeError::Path)], "{group:?}");
            let found = read(&store, &group).now_or_never().unwrap();
            assert_eq!(found, vec![Err(OffsetNodeError::Path)], "{group:?}");
        }
        for group in ["a/b", "...", "gruppe-ü", "a b", "\u{1f}"] {
            let group = nodes(group, &[0]);
            assert_eq!(keep_now(&store, &group, &[5]), vec![Ok(())], "{group:?}");
            let found = read(&store, &group).now_or_never().unwrap();
            assert_eq!(found, vec![Ok(Some(Offset::new(5)))], "{group:?}");
        }
    }

    #[test]
    fn what_others_wrote_there_is_no_offset() {
        let store = store();
        let group = nodes("g", &[0]);
        keep_now(&store, &group, &[1]);
        for (written, found) in [
            (Some(&b"abc"[..]), Err(OffsetNodeError::Malformed)),
            (Some(&b""[..]), Err(OffsetNodeError::Malformed)),
            (Some(&b"9223372036854775808"[..]), Err(OffsetNodeError::Malformed)),
            (Some(&b"\xff"[..]), Err(OffsetNodeError::Malformed)),
            (None, Ok(None)),
        ] {
            let set = store.set("/consumers/g/offsets/t/0", written.map(Bytes::from_static), Expected::Any);
            set.now_or_never().unwrap().unwrap();
            assert_eq!(read(&store, &group).now_or_never().unwrap(), vec![found], "{written:?}");
        }
    }
}

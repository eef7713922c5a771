//! Blocks of producer ids (coordinators.md 6.11): taken from the store by compare-and-set, handed to shards in parts. A
//! restart wastes what is left of a block, so that no id is ever used twice.

use protocol::types::BrokerId;

use super::ask::{AllocateError, ProducerIdRange};
use crate::store::znodes::{self, ProducerIdBlock};
use crate::store::{CreateMode, Expected, MetadataStore, StoreError};

/// Ids that a shard gets at a time: a tenth of a block, so that ten shards share one.
pub const PART: i64 = znodes::PRODUCER_ID_BLOCK_SIZE / 10;

/// What is left of the current block.
#[derive(Debug, Default)]
pub(super) struct ProducerIds {
    next: i64,
    left: i64,
}

impl ProducerIds {
    /// The next part, if the block has one.
    pub fn take(&mut self) -> Option<ProducerIdRange> {
        let count = self.left.min(PART);
        if count == 0 {
            return None;
        }
        let start = self.next;
        self.next += count;
        self.left -= count;
        Some(ProducerIdRange { start, count })
    }

    /// A fresh block takes the place of the empty one.
    pub fn refill(&mut self, block: ProducerIdBlock) {
        self.next = block.start;
        self.left = block.end - block.start + 1;
    }
}

/// Takes the next block from the store; of racing brokers each gets one of its own.
pub(super) async fn next_block<S: MetadataStore>(
    store: &S,
    id: BrokerId,
) -> Result<ProducerIdBlock, AllocateError> {
    loop {
        let (data, version) = match store.get(znodes::PRODUCER_ID_BLOCK, false).await {
            Ok((data, stat)) => (data, Some(stat.version)),
            // A store that cannot keep null has no such node before the first block.
            Err(StoreError::NoNode) => (None, None),
            Err(error) => return Err(error.into()),
        };
        let last = ProducerIdBlock::parse(data.as_deref()).map_err(|_| AllocateError::Malformed)?;
        let block = ProducerIdBlock::next(last, id).ok_or(AllocateError::Exhausted)?;
        let data = Some(block.print());
        let written = match version {
            Some(version) => {
                store.set(znodes::PRODUCER_ID_BLOCK, data, Expected::Version(version)).await.map(drop)
            }
            None => store.create(znodes::PRODUCER_ID_BLOCK, data, CreateMode::Persistent).await.map(drop),
        };
        match written {
            Ok(()) => return Ok(block),
            Err(StoreError::BadVersion | StoreError::NodeExists | StoreError::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;
    use crate::store::sim::SimDisk;

    /// Zookeeper.md 14, 12.
    #[test]
    fn blocks_of_brokers_that_race_never_overlap() {
        race(true);
        race(false);
    }

    /// From a node without a block, and from no node.
    fn race(has_node: bool) {
        let disk = SimDisk::new();
        let store = disk.start(|| 0);
        if has_node {
            let node = store.create(znodes::PRODUCER_ID_BLOCK, None, CreateMode::Persistent);
            node.now_or_never().unwrap().unwrap();
        }
        let brokers: Vec<_> = (1..=4).map(|id| (store.connect(), BrokerId::new(id))).collect();
        let mut blocks = Vec::new();
        for _ in 0..20 {
            disk.hold();
            let mut all = pin!(join_all(brokers.iter().map(|(store, id)| next_block(store, *id))));
            let mut rounds = 0;
            let taken = loop {
                match all.as_mut().now_or_never() {
                    Some(taken) => break taken,
                    None => {
                        rounds += 1;
                        disk.release();
                        disk.hold();
                    }
                }
            };
            disk.release();
            assert!(rounds > 1, "whoever was too late begins again");
            blocks.extend(taken.into_iter().map(Result::unwrap));
        }
        blocks.sort_by_key(|block| block.start);
        for (block, next) in blocks.iter().zip(blocks.iter().skip(1)) {
            assert_eq!(block.end + 1, next.start, "{block:?} {next:?}");
        }
        assert_eq!((blocks[0].start, blocks.len()), (0, 80));
    }
}

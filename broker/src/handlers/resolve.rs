//! From the names and ids of a request to owners, by one image; and what a client that asked the wrong broker is
//! told (KIP-951).

use protocol::error::ErrorCode;
use protocol::messages::{LeaderIdAndEpoch, NodeEndpoint};
use protocol::types::BrokerId;

use crate::metadata::image::{Image, TopicImage};
use crate::partition::ask::PartitionKey;
use crate::shard::ShardId;

/// Where a partition is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its owner.
    pub owner: ShardId,
    /// Its key there.
    pub key: PartitionKey,
}

/// Finds a partition of a topic that may be unknown.
///
/// # Errors
/// What to answer: the partition is unknown, or not on this broker.
pub fn place(topic: Option<&TopicImage>, partition: i32) -> Result<Place, ErrorCode> {
    let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let index = usize::try_from(partition).map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
    let image = topic.partitions.get(index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let owner = image.owner.ok_or(ErrorCode::NotLeaderOrFollower)?;
    Ok(Place { owner, key: PartitionKey { topic_id: topic.id, partition } })
}

/// The leader of a partition, as the image knows it.
pub fn leader(topic: Option<&TopicImage>, partition: i32) -> Option<LeaderIdAndEpoch> {
    let index = usize::try_from(partition).ok()?;
    let image = topic?.partitions.get(index)?;
    Some(LeaderIdAndEpoch { leader_id: image.leader.get(), leader_epoch: image.leader_epoch.get() })
}

/// Where leaders listen, each once.
pub fn endpoints<'a>(image: &'a Image, listener: &str, leaders: &[i32]) -> Vec<NodeEndpoint<'a>> {
    let mut ids = leaders.to_vec();
    ids.sort_unstable();
    ids.dedup();
    let endpoint = |id: i32| {
        let broker = image.brokers.get(&BrokerId::new(id))?;
        let endpoint = broker.endpoint(listener)?;
        Some(NodeEndpoint {
            node_id: id,
            host: (&*endpoint.host).into(),
            port: i32::from(endpoint.port),
            rack: broker.rack.as_deref().map(Into::into),
        })
    };
    ids.into_iter().filter_map(endpoint).collect()
}

//! Where a connection is best served: on the shard that owns the partitions, or has the coordinator, that its requests
//! name. `net` asks it of the first few of a connection. Decides nothing of their answers.

use protocol::api::ApiKey;
use protocol::messages::{FetchRequest, HeartbeatRequest, OffsetCommitRequest, ProduceRequest};
use protocol::types::TopicId;

use super::dispatch::{Wiring, decode_body};
use super::resolve;
use crate::fetch_session::cache::IdRange;
use crate::metadata::image::TopicImage;
use crate::shard::{ShardId, ShardRuntime};

/// Topics, and partitions, that are looked at: a sample of those that a large request names.
const LOOKED_AT_MAX: usize = 256;

/// The shard that owns most of what a request names, if it is at least twice as much as this shard owns, else this one. Of a
/// group it is the shard of its coordinator.
pub fn of<R: ShardRuntime>(wiring: &Wiring<R>, key: ApiKey, version: i16, body: &[u8]) -> Option<ShardId> {
    let image = wiring.image.current();
    let here = wiring.runtime.shard();
    match key {
        ApiKey::Produce => {
            let message: ProduceRequest<'_> = decode_body(body, version).ok()?;
            let parts = message.topic_data.iter().take(LOOKED_AT_MAX).flat_map(|data| {
                let topic = image.topic(&data.name).map(|topic| &**topic);
                data.partition_data.iter().map(move |part| (topic, part.index))
            });
            most(here, parts)
        }
        ApiKey::Fetch => {
            let message: FetchRequest<'_> = decode_body(body, version).ok()?;
            // Sessions never move.
            if let Some(shard) = IdRange::shard_of(message.session_id, wiring.runtime.shard_count()) {
                return Some(ShardId::new(shard));
            }
            let parts = message.topics.iter().take(LOOKED_AT_MAX).flat_map(|(name, id, partitions)| {
                let topic = if id == TopicId::ZERO { image.topic(name) } else { image.topic_by_id(id) };
                let topic = topic.map(|topic| &**topic);
                partitions.iter().map(move |part| (topic, part.partition))
            });
            most(here, parts)
        }
        ApiKey::Heartbeat => {
            let message: HeartbeatRequest<'_> = decode_body(body, version).ok()?;
            wiring.groups.owner(&message.group_id)
        }
        // Version 0 asks no coordinator.
        ApiKey::OffsetCommit if version > 0 => {
            let message: OffsetCommitRequest<'_> = decode_body(body, version).ok()?;
            wiring.groups.owner(&message.group_id)
        }
        _ => None,
    }
}

fn most<'a>(here: ShardId, parts: impl Iterator<Item = (Option<&'a TopicImage>, i32)>) -> Option<ShardId> {
    let mut counts: Vec<(ShardId, usize)> = Vec::new();
    for (topic, partition) in parts.take(LOOKED_AT_MAX) {
        let Ok(place) = resolve::place(topic, partition) else { continue };
        match counts.iter_mut().find(|(shard, _)| *shard == place.owner) {
            Some((_, count)) => *count += 1,
            None => counts.push((place.owner, 1)),
        }
    }
    let of_here = counts.iter().find(|(shard, _)| *shard == here).map_or(0, |(_, count)| *count);
    let (shard, count) =
        counts.into_iter().max_by_key(|(shard, count)| (*count, std::cmp::Reverse(*shard)))?;
    Some(if count >= of_here.saturating_mul(2) { shard } else { here })
}

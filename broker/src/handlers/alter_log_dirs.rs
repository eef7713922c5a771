//! AlterReplicaLogDirs (34): where replicas of this broker are to be (security-admin.md 7.6, KIP-113). The owner of a
//! partition moves its log; a partition that is not here is remembered by all shards, one of which may make it one day.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use protocol::error::ErrorCode;
use protocol::messages::{
    AlterReplicaLogDirsPartitionResult, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse,
    AlterReplicaLogDirsTopicResult,
};
use protocol::types::{TopicName, TopicPartition};
use storage::names;

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::resolve::{self, Place};
use super::scatter::scatter;
use super::{Answer, Request};
use crate::partition::ask::{MoveAsk, PartitionAnswer, PartitionAsk};
use crate::partition::log_dirs::table::LogDirTable;
use crate::shard::pace::Pace;
use crate::shard::{ShardId, ShardRuntime};

/// Handles one request.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message: AlterReplicaLogDirsRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let wanted = wanted(&message, &mut pace).await;
    let image = wiring.image.current();
    let (mut parts, mut wishes) = (Vec::with_capacity(wanted.len()), Vec::new());
    for ((topic, partition), dir) in &wanted {
        pace.step().await;
        let part = match destination(&wiring.settings.log_dirs, topic, *partition, dir) {
            Err(code) => Err(code),
            Ok(to) => {
                let name = TopicPartition::new(TopicName::new(topic), *partition);
                match resolve::place(image.topic(topic).map(|topic| &**topic), *partition) {
                    Ok(Place { owner, key }) => Ok((owner, MoveAsk { key, name, to })),
                    Err(_) => {
                        wishes.push((name, to));
                        Err(ErrorCode::ReplicaNotAvailable)
                    }
                }
            }
        };
        parts.push(part);
    }
    drop(image);
    remember(wiring, wishes).await;
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let moved = scatter(wiring, parts, by, PartitionAsk::Move, |answer| match answer {
        PartitionAnswer::Moved(results) => Some(results),
        _ => None,
    });
    let mut results: Vec<AlterReplicaLogDirsTopicResult<'_>> = Vec::new();
    for (((topic, partition_index), _), outcome) in wanted.iter().zip(moved.await) {
        let error_code = outcome.err().unwrap_or(ErrorCode::None).get();
        let partition = AlterReplicaLogDirsPartitionResult { partition_index: *partition_index, error_code };
        match results.last_mut().filter(|last| *last.topic_name == **topic) {
            Some(last) => last.partitions.push(partition),
            None => results.push(AlterReplicaLogDirsTopicResult {
                topic_name: (*topic).into(),
                partitions: vec![partition],
            }),
        }
        pace.step().await;
    }
    reply(&request, &AlterReplicaLogDirsResponse { throttle_time_ms: 0, results })
}

/// Each partition once, with the last dir that it is named with, as in Kafka's map.
async fn wanted<'a, R: ShardRuntime>(
    message: &'a AlterReplicaLogDirsRequest<'_>,
    pace: &mut Pace<'_, R>,
) -> BTreeMap<(&'a str, i32), &'a str> {
    let mut wanted = BTreeMap::new();
    for dir in &message.dirs {
        for topic in &dir.topics {
            pace.step().await;
            for partition in &topic.partitions {
                wanted.insert((&*topic.name, *partition), &*dir.path);
                pace.step().await;
            }
        }
    }
    wanted
}

/// The log dir that is meant, if a log may be there.
fn destination(table: &LogDirTable, topic: &str, partition: i32, dir: &str) -> Result<Arc<Path>, ErrorCode> {
    let name = TopicPartition::new(TopicName::new(topic), partition);
    // The random part of the name is always of the same length.
    if names::future_dir(&name, 0).is_none() {
        return Err(ErrorCode::InvalidTopicException);
    }
    let dir = Path::new(dir);
    let known = table.paths().find(|known| ***known == *dir).ok_or(ErrorCode::LogDirNotFound)?;
    if table.is_offline(dir) { Err(ErrorCode::KafkaStorageError) } else { Ok(known.clone()) }
}

async fn remember<R: ShardRuntime>(wiring: &Wiring<R>, mut wishes: Vec<(TopicPartition, Arc<Path>)>) {
    // What nobody can create is not remembered.
    wishes.retain(|(name, _)| TopicName::is_legal(name.topic.get()) && name.partition >= 0);
    if wishes.is_empty() {
        return;
    }
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let tell = |shard| wiring.partitions.ask(ShardId::new(shard), by, PartitionAsk::Wish(wishes.clone()));
    // A shard that has ended makes nothing.
    let _ = join_all((0..wiring.runtime.shard_count()).map(tell)).await;
}

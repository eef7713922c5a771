//! DeleteRecords (21): wire to domain and back (protocol.md 3.7).

use std::collections::BTreeMap;
use std::rc::Rc;

use protocol::error::ErrorCode;
use protocol::messages::{
    DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use protocol::types::Offset;

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::resolve::{self, Place};
use super::scatter::scatter;
use super::{Answer, Request};
use crate::partition::ask::{DeleteRecordsAsk, PartitionAnswer, PartitionAsk};
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// Handles one request.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message: DeleteRecordsRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let image = wiring.image.current();
    let mut pace = Pace::new(&wiring.runtime);
    let Wanted { mut topics, parts: wanted } = wanted(&message, &mut pace).await;
    let mut parts = Vec::with_capacity(wanted.len());
    for (at, partition, offset) in &wanted {
        let Some((name, count)) = topics.get_mut(*at) else { continue };
        *count = count.saturating_add(1);
        let known = image.topic(name).map(|topic| &**topic);
        let is_internal = known.is_some_and(|topic| topic.name.is_internal());
        parts.push(match resolve::place(known, *partition) {
            Ok(_) if is_internal => Err(ErrorCode::InvalidTopicException),
            Ok(Place { owner, key }) => Ok((owner, (key, Offset::new(*offset)))),
            Err(code) => Err(code),
        });
        pace.step().await;
    }
    drop(image);
    let by = deadline(&wiring.runtime, ASK_MS_MAX.max(message.timeout_ms));
    let followers_until = deadline(&wiring.runtime, message.timeout_ms);
    let ask = |parts| PartitionAsk::DeleteRecords(DeleteRecordsAsk { deadline: followers_until, parts });
    let deleted = scatter(wiring, parts, by, ask, |answer| match answer {
        PartitionAnswer::RecordsDeleted(results) => Some(results),
        _ => None,
    });
    let mut deleted = wanted.iter().zip(deleted.await);
    let mut results = Vec::with_capacity(topics.len());
    for (name, count) in topics {
        let partitions = deleted.by_ref().take(count);
        let partitions = partitions.map(|((_, partition_index, _), outcome)| DeleteRecordsPartitionResult {
            partition_index: *partition_index,
            low_watermark: outcome.unwrap_or(Offset::NONE).get(),
            error_code: outcome.err().unwrap_or(ErrorCode::None).get(),
        });
        let partitions = pace.collect(partitions).await;
        results.push(DeleteRecordsTopicResult { name: name.into(), partitions });
        pace.step().await;
    }
    reply(&request, &DeleteRecordsResponse { throttle_time_ms: 0, topics: results })
}

/// What is to be deleted.
struct Wanted<'a> {
    /// Names, each with the number of its partitions, which is filled in later.
    topics: Vec<(&'a str, usize)>,
    /// Place of the topic, index of the partition, offset; grouped by topic.
    parts: Vec<(usize, i32, i64)>,
}

/// Each topic and each partition once, in the order of first mention; the last offset counts, as in Kafka's map.
async fn wanted<'a, R: ShardRuntime>(
    message: &'a DeleteRecordsRequest<'_>,
    pace: &mut Pace<'_, R>,
) -> Wanted<'a> {
    let (mut named, mut places) = (BTreeMap::new(), BTreeMap::new());
    let mut topics: Vec<(&str, usize)> = Vec::new();
    let mut parts: Vec<(usize, i32, i64)> = Vec::new();
    for topic in &message.topics {
        let at = *named.entry(&*topic.name).or_insert(topics.len());
        if at == topics.len() {
            topics.push((&topic.name, 0));
        }
        pace.step().await;
        for partition in &topic.partitions {
            let place = *places.entry((at, partition.partition_index)).or_insert(parts.len());
            match parts.get_mut(place) {
                Some((.., offset)) => *offset = partition.offset,
                None => parts.push((at, partition.partition_index, partition.offset)),
            }
            pace.step().await;
        }
    }
    parts.sort_by_key(|(at, ..)| *at);
    Wanted { topics, parts }
}

//! DeleteRecords (21): wire to domain and back (protocol.md 3.7).

use std::rc::Rc;

use protocol::error::ErrorCode;
use protocol::messages::{
    DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use protocol::types::Offset;

use super::dispatch::{Wiring, deadline, decode, reply};
use super::resolve::{self, Place};
use super::scatter::scatter;
use super::{Answer, Request};
use crate::partition::ask::{DeleteRecordsAsk, PartitionAnswer, PartitionAsk};
use crate::shard::ShardRuntime;

/// Owners that do not answer in this time are asked again by the client. Its own timeout is for followers only.
const ASK_MS_MAX: i32 = 30_000;

/// Handles one request.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message: DeleteRecordsRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let image = wiring.image.current();
    let mut parts = Vec::new();
    for topic in &message.topics {
        let known = image.topic(&topic.name).map(|topic| &**topic);
        let is_internal = known.is_some_and(|topic| topic.name.is_internal());
        for partition in &topic.partitions {
            parts.push(match resolve::place(known, partition.partition_index) {
                Ok(_) if is_internal => Err(ErrorCode::InvalidTopicException),
                Ok(Place { owner, key }) => Ok((owner, (key, Offset::new(partition.offset)))),
                Err(code) => Err(code),
            });
        }
    }
    drop(image);
    let by = deadline(&wiring.runtime, ASK_MS_MAX.max(message.timeout_ms));
    let followers_until = deadline(&wiring.runtime, message.timeout_ms);
    let ask = |parts| PartitionAsk::DeleteRecords(DeleteRecordsAsk { deadline: followers_until, parts });
    let deleted = scatter(wiring, parts, by, ask, |answer| match answer {
        PartitionAnswer::RecordsDeleted(results) => Some(results),
        _ => None,
    });
    let mut deleted = deleted.await.into_iter();
    let mut topics = Vec::with_capacity(message.topics.len());
    for topic in &message.topics {
        let partitions = topic.partitions.iter().zip(deleted.by_ref());
        let partitions = partitions.map(|(asked, outcome)| DeleteRecordsPartitionResult {
            partition_index: asked.partition_index,
            low_watermark: outcome.unwrap_or(Offset::NONE).get(),
            error_code: outcome.err().unwrap_or(ErrorCode::None).get(),
        });
        topics.push(DeleteRecordsTopicResult { name: topic.name.clone(), partitions: partitions.collect() });
    }
    reply(&request, &DeleteRecordsResponse { throttle_time_ms: 0, topics })
}

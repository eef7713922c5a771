//! OffsetDelete (47): wire to domain and back (coordinators.md 2.12, KIP-496). What topics and partitions there are is checked
//! here; everything else the coordinator decides.

use std::rc::Rc;
use std::sync::Arc;

use protocol::error::ErrorCode;
use protocol::messages::{
    OffsetDeleteRequest, OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use protocol::types::TopicName;

use super::dispatch::{Wiring, decode, reply};
use super::group_offsets::{PARTITIONS_AT_A_TIME, code_at, is_there};
use super::repeats::Distinct;
use super::{Answer, Request};
use crate::coordinator::ask::{GroupReply, GroupRequest, OffsetDelete};
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// Handles an OffsetDelete.
pub async fn delete<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message = match decode::<OffsetDeleteRequest<'_>>(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    if message.group_id.is_empty() {
        return reply(&request, &refused(ErrorCode::InvalidGroupId));
    }
    let image = wiring.image.current();
    let (mut mentions, mut partitions, mut distinct) = (Vec::new(), Vec::new(), Distinct::new());
    for topic in &message.topics {
        let known = image.topic(&topic.name).map(|topic| &**topic);
        pace.step().await;
        for partition in &topic.partitions {
            pace.step().await;
            let index = partition.partition_index;
            let Some(known) = known.filter(|known| is_there(Some(*known), index)) else {
                mentions.push(Err(ErrorCode::UnknownTopicOrPartition));
                continue;
            };
            let mention = distinct.mention((&*topic.name, index));
            if mention.is_first {
                partitions.push((known.name.clone(), index));
            }
            mentions.push(Ok(mention.place));
        }
    }
    drop(image);
    let codes = match delete_in_parts(wiring, &message.group_id, partitions).await {
        Ok(codes) => codes,
        Err(error) => return reply(&request, &refused(error)),
    };
    let mut mentions = mentions.into_iter();
    let mut topics = Vec::with_capacity(message.topics.len());
    for topic in &message.topics {
        let told = topic.partitions.iter().zip(mentions.by_ref());
        let told = told.map(|(partition, mention)| OffsetDeleteResponsePartition {
            partition_index: partition.partition_index,
            error_code: code_at(&codes, mention).get(),
        });
        let partitions = pace.collect(told).await;
        topics.push(OffsetDeleteResponseTopic { name: topic.name.clone(), partitions });
        pace.step().await;
    }
    reply(&request, &OffsetDeleteResponse { error_code: 0, throttle_time_ms: 0, topics })
}

/// Asks the coordinator, for not too many at a time; at least once, also when none of the partitions is known: the group may
/// have an error of its own. An error of one part is that of all: the client asks again, for what is gone too.
async fn delete_in_parts<R: ShardRuntime>(
    wiring: &Wiring<R>,
    group: &str,
    partitions: Vec<(TopicName, i32)>,
) -> Result<Vec<ErrorCode>, ErrorCode> {
    let id: Arc<str> = Arc::from(group);
    let count = partitions.len();
    let (mut all, mut left) = (Vec::with_capacity(count), partitions.into_iter());
    loop {
        let partitions = left.by_ref().take(PARTITIONS_AT_A_TIME).collect();
        let deletion = OffsetDelete { group: id.clone(), partitions };
        match wiring.groups.ask(group, GroupRequest::OffsetDelete(deletion)).await {
            GroupReply::OffsetDelete(Ok(mut codes)) => all.append(&mut codes),
            // It went with the last of its offsets.
            GroupReply::OffsetDelete(Err(ErrorCode::GroupIdNotFound)) if !all.is_empty() => {
                all.resize(count, ErrorCode::None);
            }
            GroupReply::OffsetDelete(Err(error)) => return Err(error),
            _ => return Err(ErrorCode::UnknownServerError),
        }
        if all.len() >= count {
            return Ok(all);
        }
    }
}

/// An error of the group leaves no topics.
fn refused(error: ErrorCode) -> OffsetDeleteResponse<'static> {
    OffsetDeleteResponse { error_code: error.get(), ..OffsetDeleteResponse::default() }
}

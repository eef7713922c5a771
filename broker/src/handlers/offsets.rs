//! ListOffsets (2) and OffsetForLeaderEpoch (23): wire to domain and back (protocol.md 3.5, 3.6).

use std::collections::HashSet;
use std::rc::Rc;

use protocol::error::ErrorCode;
use protocol::messages::offset_for_leader_epoch::{EpochEndOffset, OffsetForLeaderTopicResult};
use protocol::messages::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopicResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};
use protocol::types::{LeaderEpoch, Offset, TimestampMs};

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::resolve::{self, Place};
use super::scatter::scatter;
use super::{Answer, Request};
use crate::partition::ask::{
    EpochEnd, EpochEndAsk, FoundOffset, Isolation, OffsetAsk, OffsetTarget, PartitionAnswer, PartitionAsk,
};
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// Replica id of a client that reads the log as a replica does, from any replica.
const DEBUGGING_REPLICA: i32 = -2;

/// Handles ListOffsets.
pub async fn list_offsets<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message: ListOffsetsRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let version = request.api_version;
    let isolation = match (message.replica_id, message.isolation_level) {
        (-1, 1) => Isolation::Committed,
        (-1, _) => Isolation::HighWatermark,
        _ => Isolation::LogEnd,
    };
    let image = wiring.image.current();
    let mut pace = Pace::new(&wiring.runtime);
    // Version 0 answers each mention.
    let doubled = if version == 0 { HashSet::new() } else { doubled(&message, &mut pace).await };
    let any_replica = message.replica_id == DEBUGGING_REPLICA;
    let mut parts = Vec::new();
    for topic in &message.topics {
        let known = image.topic(&topic.name).map(|topic| &**topic);
        pace.step().await;
        for partition in &topic.partitions {
            pace.step().await;
            // A timestamp that the version does not know comes before a topic that the broker does not know.
            let target = if doubled.contains(&(&*topic.name, partition.partition_index)) {
                Err(ErrorCode::InvalidRequest)
            } else {
                target(partition, version)
            };
            parts.push(target.and_then(|target| {
                let Place { owner, key } = resolve::place(known, partition.partition_index)?;
                let current_leader_epoch = LeaderEpoch::new(partition.current_leader_epoch);
                Ok((owner, OffsetAsk { key, current_leader_epoch, isolation, any_replica, target }))
            }));
        }
    }
    drop(image);
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let found = scatter(wiring, parts, by, PartitionAsk::ListOffsets, |answer| match answer {
        PartitionAnswer::Offsets(offsets) => Some(offsets),
        _ => None,
    });
    let mut found = found.await.into_iter();
    let mut topics = Vec::with_capacity(message.topics.len());
    for topic in &message.topics {
        let partitions = topic.partitions.iter().zip(found.by_ref());
        let partitions =
            partitions.map(|(asked, found)| offset_response(asked.partition_index, version, found));
        let partitions = pace.collect(partitions).await;
        topics.push(ListOffsetsTopicResponse { name: topic.name.clone(), partitions });
        pace.step().await;
    }
    reply(&request, &ListOffsetsResponse { throttle_time_ms: 0, topics })
}

/// Partitions that a request names more than once.
async fn doubled<'a, R: ShardRuntime>(
    message: &'a ListOffsetsRequest<'_>,
    pace: &mut Pace<'_, R>,
) -> HashSet<(&'a str, i32)> {
    let (mut seen, mut doubled) = (HashSet::new(), HashSet::new());
    for topic in &message.topics {
        pace.step().await;
        for partition in &topic.partitions {
            let named = (&*topic.name, partition.partition_index);
            if !seen.insert(named) {
                doubled.insert(named);
            }
            pace.step().await;
        }
    }
    doubled
}

/// What a timestamp asks for; special ones have their first version.
fn target(partition: &ListOffsetsPartition, version: i16) -> Result<OffsetTarget, ErrorCode> {
    let timestamp = TimestampMs::new(partition.timestamp);
    if version == 0 {
        let max = usize::try_from(partition.max_num_offsets).unwrap_or(0);
        return match partition.timestamp {
            -2.. => Ok(OffsetTarget::Segments { at: timestamp, max }),
            _ => Err(ErrorCode::UnsupportedVersion),
        };
    }
    match partition.timestamp {
        0.. => Ok(OffsetTarget::At(timestamp)),
        -1 => Ok(OffsetTarget::Latest),
        -2 => Ok(OffsetTarget::Earliest),
        -3 if version >= 7 => Ok(OffsetTarget::MaxTimestamp),
        // Without tiered storage the local log is the log.
        -4 if version >= 8 => Ok(OffsetTarget::Earliest),
        -5 if version >= 9 => Ok(OffsetTarget::LatestTiered),
        _ => Err(ErrorCode::UnsupportedVersion),
    }
}

fn offset_response(
    partition_index: i32,
    version: i16,
    outcome: Result<FoundOffset, ErrorCode>,
) -> ListOffsetsPartitionResponse {
    let none = ListOffsetsPartitionResponse { partition_index, ..ListOffsetsPartitionResponse::default() };
    match outcome {
        Ok(FoundOffset::One { offset, timestamp, leader_epoch }) => ListOffsetsPartitionResponse {
            timestamp: timestamp.get(),
            offset: offset.get(),
            leader_epoch: leader_epoch.get(),
            ..none
        },
        Ok(FoundOffset::Many(offsets)) => ListOffsetsPartitionResponse {
            old_style_offsets: offsets.into_iter().map(Offset::get).collect(),
            ..none
        },
        Err(code) => {
            let code = match code {
                ErrorCode::OffsetNotAvailable if version < 5 => ErrorCode::LeaderNotAvailable,
                code => code,
            };
            ListOffsetsPartitionResponse { error_code: code.get(), ..none }
        }
    }
}

/// Handles OffsetForLeaderEpoch.
pub async fn offset_for_leader_epoch<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message: OffsetForLeaderEpochRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let image = wiring.image.current();
    let mut pace = Pace::new(&wiring.runtime);
    let mut parts = Vec::new();
    for topic in &message.topics {
        let known = image.topic(&topic.topic).map(|topic| &**topic);
        pace.step().await;
        for partition in &topic.partitions {
            pace.step().await;
            parts.push(resolve::place(known, partition.partition).map(|Place { owner, key }| {
                let current_leader_epoch = LeaderEpoch::new(partition.current_leader_epoch);
                let leader_epoch = LeaderEpoch::new(partition.leader_epoch);
                (owner, EpochEndAsk { key, current_leader_epoch, leader_epoch })
            }));
        }
    }
    drop(image);
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let ends = scatter(wiring, parts, by, PartitionAsk::EpochEndOffsets, |answer| match answer {
        PartitionAnswer::EpochEnds(ends) => Some(ends),
        _ => None,
    });
    let mut ends = ends.await.into_iter();
    let mut topics = Vec::with_capacity(message.topics.len());
    for topic in &message.topics {
        let partitions = topic.partitions.iter().zip(ends.by_ref());
        let partitions = partitions.map(|(asked, end)| epoch_response(asked.partition, end));
        let partitions = pace.collect(partitions).await;
        topics.push(OffsetForLeaderTopicResult { topic: topic.topic.clone(), partitions });
        pace.step().await;
    }
    reply(&request, &OffsetForLeaderEpochResponse { throttle_time_ms: 0, topics })
}

fn epoch_response(partition: i32, outcome: Result<Option<EpochEnd>, ErrorCode>) -> EpochEndOffset {
    let none = EpochEndOffset { partition, ..EpochEndOffset::default() };
    match outcome {
        Ok(None) => none,
        Ok(Some(end)) => {
            EpochEndOffset { leader_epoch: end.leader_epoch.get(), end_offset: end.end_offset.get(), ..none }
        }
        Err(code) => EpochEndOffset { error_code: code.get(), ..none },
    }
}

//! ListOffsets (2) and OffsetForLeaderEpoch (23): wire to domain and back (protocol.md 3.5, 3.6).

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use protocol::api::ApiKey;
use protocol::codec::{Layout, WrittenList};
use protocol::error::ErrorCode;
use protocol::messages::offset_for_leader_epoch::{EpochEndOffset, OffsetForLeaderTopicResult};
use protocol::messages::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopicResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};
use protocol::types::{LeaderEpoch, Offset, TimestampMs};

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::repeats::{AnswerRoom, Mention};
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
    let mut pace = Pace::new(&wiring.runtime);
    // Version 0 answers each mention.
    let doubled = if version == 0 { HashSet::new() } else { doubled(&message, &mut pace).await };
    let any_replica = message.replica_id == DEBUGGING_REPLICA;
    let image = wiring.image.current();
    let (mut parts, mut mentions, mut named) = (Vec::new(), Vec::new(), Named::default());
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
            let mention = match target {
                Ok(target) if version == 0 => {
                    named.mention((&topic.name, partition.partition_index), target, parts.len())
                }
                _ => Ok(Mention { place: parts.len(), is_first: true }),
            };
            if let Ok(Mention { is_first: true, .. }) = mention {
                parts.push(target.and_then(|target| {
                    let Place { owner, key } = resolve::place(known, partition.partition_index)?;
                    let current_leader_epoch = LeaderEpoch::new(partition.current_leader_epoch);
                    Ok((owner, OffsetAsk { key, current_leader_epoch, isolation, any_replica, target }))
                }));
            }
            mentions.push(mention);
        }
    }
    drop(image);
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let found = scatter(wiring, parts, by, PartitionAsk::ListOffsets, |answer| match answer {
        PartitionAnswer::Offsets(offsets) => Some(offsets),
        _ => None,
    });
    let found = found.await.into_iter().map(|found| found.map(|found| Found::of(found, version)));
    let found = pace.collect(found).await;
    let mut room = AnswerRoom::new();
    let mut mentions = mentions.into_iter();
    let mut topics = Vec::with_capacity(message.topics.len());
    for topic in &message.topics {
        let partitions = topic.partitions.iter().zip(mentions.by_ref());
        let partitions = partitions.map(|(asked, mention)| {
            let told = mention.and_then(|mention| told(&found, mention, &mut room));
            offset_response(asked.partition_index, version, told)
        });
        let partitions = pace.collect(partitions).await;
        topics.push(ListOffsetsTopicResponse { name: topic.name.clone(), partitions });
        pace.step().await;
    }
    reply(&request, &ListOffsetsResponse { throttle_time_ms: 0, topics })
}

/// What version 0 names: each question is asked once, and told as often as it stands in the request, as in Kafka.
#[derive(Default)]
struct Named<'a>(HashMap<(&'a str, i32), Vec<(OffsetTarget, usize)>>);

/// Questions that one request may have about one partition: each makes its owner look at every segment.
const QUESTIONS_MAX: usize = 16;

impl<'a> Named<'a> {
    /// The place of a question; a new one's is `next`.
    fn mention(
        &mut self,
        partition: (&'a str, i32),
        target: OffsetTarget,
        next: usize,
    ) -> Result<Mention, ErrorCode> {
        let questions = self.0.entry(partition).or_default();
        if let Some((_, place)) = questions.iter().find(|(known, _)| *known == target) {
            return Ok(Mention { place: *place, is_first: false });
        }
        if questions.len() >= QUESTIONS_MAX {
            return Err(ErrorCode::InvalidRequest);
        }
        questions.push((target, next));
        Ok(Mention { place: next, is_first: true })
    }
}

/// What an owner has found, as it is told.
enum Found {
    One { offset: Offset, timestamp: TimestampMs, leader_epoch: LeaderEpoch },
    Many(WrittenList),
}

impl Found {
    fn of(found: FoundOffset, version: i16) -> Self {
        match found {
            FoundOffset::One { offset, timestamp, leader_epoch } => {
                Self::One { offset, timestamp, leader_epoch }
            }
            FoundOffset::Many(offsets) => {
                let layout = Layout::of(ApiKey::ListOffsets, version);
                Self::Many(WrittenList::new(offsets.into_iter().map(Offset::get), layout))
            }
        }
    }

    /// Bytes that grow with the log.
    fn bytes(&self) -> usize {
        match self {
            Self::One { .. } => 0,
            Self::Many(offsets) => offsets.bytes(),
        }
    }
}

/// What a mention is told, while there is room for it.
fn told<'f>(
    found: &'f [Result<Found, ErrorCode>],
    mention: Mention,
    room: &mut AnswerRoom,
) -> Result<&'f Found, ErrorCode> {
    let found =
        found.get(mention.place).ok_or(ErrorCode::UnknownServerError)?.as_ref().map_err(|code| *code)?;
    room.take(found.bytes(), mention.is_first).map_err(|_| ErrorCode::InvalidRequest)?;
    Ok(found)
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
    told: Result<&Found, ErrorCode>,
) -> ListOffsetsPartitionResponse {
    let none = ListOffsetsPartitionResponse { partition_index, ..ListOffsetsPartitionResponse::default() };
    match told {
        Ok(Found::One { offset, timestamp, leader_epoch }) => ListOffsetsPartitionResponse {
            timestamp: timestamp.get(),
            offset: offset.get(),
            leader_epoch: leader_epoch.get(),
            ..none
        },
        Ok(Found::Many(offsets)) => ListOffsetsPartitionResponse { old_style_offsets: offsets.all(), ..none },
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

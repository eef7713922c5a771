//! OffsetCommit (8) and OffsetFetch (9): wire to domain and back (coordinators.md 2.9, 2.11). What topics and partitions
//! there are is checked here; everything else the coordinator decides. Version 0 of both keeps offsets in the metadata store,
//! as Kafka in ZooKeeper mode does.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use protocol::api::ApiKey;
use protocol::codec::{Layout, ListWriter};
use protocol::error::ErrorCode;
use protocol::messages::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitResponse, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic, OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse,
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponseTopic,
};
use protocol::types::{LeaderEpoch, Offset, TimestampMs, TopicName};

use super::dispatch::{Wiring, decode, reply};
use super::errors::{ToErrorCode, code_of};
use super::repeats::{AnswerRoom, Distinct, Mention};
use super::scatter::ask_all;
use super::{Answer, Request};
use crate::admin::ask::{AdminAnswer, AdminAsk, OffsetNodes};
use crate::coordinator::ask::{
    FetchedOffset, GroupReply, GroupRequest, Identity, OffsetCommit, OffsetFetch, OffsetFetchReply,
    OffsetToCommit,
};
use crate::metadata::image::{PartitionImage, TopicImage};
use crate::shard::pace::Pace;
use crate::shard::{NEVER, ShardId, ShardRuntime};

/// First version of OffsetCommit whose clients know GROUP_ID_NOT_FOUND.
const GROUP_ID_NOT_FOUND_FROM: i16 = 9;
/// First version of OffsetFetch that can tell an error of the group.
const GROUP_ERROR_FROM: i16 = 2;
/// First version of OffsetFetch that names several groups (KIP-709).
const SEVERAL_GROUPS_FROM: i16 = 8;

/// Partitions whose offsets a group is asked for in one go: an owner looks them up in one turn, of some 100 µs.
pub(super) const PARTITIONS_AT_A_TIME: usize = 1_000;

/// Partitions that one group may be asked for by name: no group has more, and each costs an entry of the answer.
const PARTITIONS_MAX: usize = 1_000_000;

/// Bytes of an offset in an answer, beside its metadata.
const OFFSET_BYTES: usize = 24;

/// Handles an OffsetCommit.
pub async fn commit<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message = match decode::<OffsetCommitRequest<'_>>(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let (mentions, offsets) = offsets_to_commit(wiring, &message, &mut pace).await;
    let codes = if offsets.is_empty() {
        Vec::new()
    } else if request.api_version == 0 {
        keep_in_store(wiring, &message.group_id, offsets, &mut pace).await
    } else {
        let who = Identity {
            group: Arc::from(&*message.group_id),
            member: Arc::from(&*message.member_id),
            instance: message.group_instance_id.as_deref().map(Arc::from),
            generation: message.generation_id_or_member_epoch,
        };
        let knows_group_id_not_found = request.api_version >= GROUP_ID_NOT_FOUND_FROM;
        let commit = OffsetCommit { who, knows_group_id_not_found, offsets };
        match wiring.groups.ask(&message.group_id, GroupRequest::OffsetCommit(commit)).await {
            GroupReply::OffsetCommit(codes) => codes,
            _ => Vec::new(),
        }
    };
    let mut mentions = mentions.into_iter();
    let mut topics = Vec::with_capacity(message.topics.len());
    for topic in &message.topics {
        let told = topic.partitions.iter().zip(mentions.by_ref());
        let told = told.map(|(partition, mention)| OffsetCommitResponsePartition {
            partition_index: partition.partition_index,
            error_code: code_at(&codes, mention).get(),
        });
        let partitions = pace.collect(told).await;
        topics.push(OffsetCommitResponseTopic { name: topic.name.clone(), partitions });
        pace.step().await;
    }
    reply(&request, &OffsetCommitResponse { throttle_time_ms: 0, topics })
}

/// The code of a mention: its own, or that of its partition among what was asked.
pub(super) fn code_at(codes: &[ErrorCode], mention: Result<usize, ErrorCode>) -> ErrorCode {
    match mention {
        Ok(place) => codes.get(place).copied().unwrap_or(ErrorCode::UnknownServerError),
        Err(code) => code,
    }
}

/// What there is of a topic's partitions, as clients are told: one without replicas is not known yet.
pub(super) fn is_there(topic: Option<&TopicImage>, partition: i32) -> bool {
    let index = usize::try_from(partition).ok();
    let found = topic.zip(index).and_then(|(topic, index)| topic.partitions.get(index));
    found.is_some_and(PartitionImage::is_known)
}

/// For each partition of the request, in order, its place among the offsets to commit, each of which stands there once:
/// the last one named counts, as in Kafka's map. Or that there is no such partition.
async fn offsets_to_commit<R: ShardRuntime>(
    wiring: &Wiring<R>,
    message: &OffsetCommitRequest<'_>,
    pace: &mut Pace<'_, R>,
) -> (Vec<Result<usize, ErrorCode>>, Vec<OffsetToCommit>) {
    let image = wiring.image.current();
    let (mut mentions, mut offsets) = (Vec::new(), Vec::<OffsetToCommit>::new());
    let mut places = HashMap::new();
    // Most requests are of one partition.
    let is_one = matches!(message.topics.as_slice(), [topic] if topic.partitions.len() == 1);
    for topic in &message.topics {
        let known = image.topic(&topic.name).map(|topic| &**topic);
        pace.step().await;
        for partition in &topic.partitions {
            pace.step().await;
            let Some(known) = known.filter(|known| is_there(Some(*known), partition.partition_index)) else {
                mentions.push(Err(ErrorCode::UnknownTopicOrPartition));
                continue;
            };
            let offset = offset_to_commit(known, partition, message.retention_time_ms);
            let next = offsets.len();
            let place = if is_one {
                next
            } else {
                *places.entry((&*topic.name, partition.partition_index)).or_insert(next)
            };
            match offsets.get_mut(place) {
                Some(earlier) => *earlier = offset,
                None => offsets.push(offset),
            }
            mentions.push(Ok(place));
        }
    }
    (mentions, offsets)
}

fn offset_to_commit(
    topic: &TopicImage,
    partition: &OffsetCommitRequestPartition<'_>,
    retention_time_ms: i64,
) -> OffsetToCommit {
    // Versions without a field have its default, -1: the broker decides.
    let said = |number: i64| (number != -1).then_some(number);
    OffsetToCommit {
        topic: topic.name.clone(),
        topic_id: topic.id,
        partition: partition.partition_index,
        offset: Offset::new(partition.committed_offset),
        leader_epoch: LeaderEpoch::new(partition.committed_leader_epoch),
        metadata: Arc::from(partition.committed_metadata.as_deref().unwrap_or_default()),
        committed_at: said(partition.commit_timestamp).map(TimestampMs::new),
        retention_ms: said(retention_time_ms),
    }
}

/// Length of a text as Java has it: UTF-16's units.
fn java_length(text: &str) -> i32 {
    i32::try_from(text.encode_utf16().count()).unwrap_or(i32::MAX)
}

/// Version 0: nobody's offsets, in the metadata store. Their metadata is not kept, but may not be too long.
async fn keep_in_store<R: ShardRuntime>(
    wiring: &Wiring<R>,
    group: &str,
    offsets: Vec<OffsetToCommit>,
    pace: &mut Pace<'_, R>,
) -> Vec<ErrorCode> {
    let max = wiring.config.groups.offset_metadata_max;
    let mut codes = Vec::with_capacity(offsets.len());
    let mut nodes = OffsetNodes { group: Arc::from(group), partitions: Vec::new() };
    let mut kept = Vec::new();
    for offset in offsets {
        if java_length(&offset.metadata) > max {
            codes.push(Err(ErrorCode::OffsetMetadataTooLarge));
        } else {
            codes.push(Ok(kept.len()));
            kept.push(offset.offset);
            nodes.partitions.push((offset.topic, offset.partition));
        }
        pace.step().await;
    }
    let asked =
        wiring.admin.ask(ShardId::CONTROL, NEVER, AdminAsk::KeepOffsets { nodes, offsets: kept }).await;
    let outcomes = match asked {
        Ok(AdminAnswer::OffsetsKept(outcomes)) => pace.collect(outcomes.into_iter().map(code_of)).await,
        Ok(_) => Vec::new(),
        Err(error) => vec![error.error_code(); codes.len()],
    };
    pace.collect(codes.into_iter().map(|mention| code_at(&outcomes, mention))).await
}

/// Handles an OffsetFetch.
pub async fn fetch<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message = match decode::<OffsetFetchRequest<'_>>(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let version = request.api_version;
    if version >= SEVERAL_GROUPS_FROM {
        return fetch_of_several(wiring, &request, &message, &mut pace).await;
    }
    let topics = message.topics.as_deref();
    let fetched = if version == 0 {
        read_from_store(wiring, &message.group_id, topics.unwrap_or_default(), &mut pace).await
    } else {
        fetch_of_group(wiring, &message.group_id, topics, message.require_stable, &mut pace).await
    };
    let layout = Layout::of(ApiKey::OffsetFetch, version);
    let response = if version < GROUP_ERROR_FROM && fetched.error != ErrorCode::None {
        let topics = told_by_partition(topics.unwrap_or_default(), fetched.error, &mut pace).await;
        OffsetFetchResponse { topics, ..OffsetFetchResponse::default() }
    } else {
        let topics = topics_response(layout, &fetched.topics, &mut pace).await;
        OffsetFetchResponse { topics, error_code: fetched.error.get(), ..OffsetFetchResponse::default() }
    };
    reply(&request, &response)
}

/// From version 8 on each group stands for itself: its error is its own, and none waits for another.
async fn fetch_of_several<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    request: &Request,
    message: &OffsetFetchRequest<'_>,
    pace: &mut Pace<'_, R>,
) -> Answer {
    let mut distinct = Distinct::new();
    let mentions = pace.collect(message.groups.iter().map(|group| distinct.mention(&*group.group_id))).await;
    let room = &RefCell::new(AnswerRoom::new());
    let asks = message.groups.iter().zip(mentions).map(|(group, mention)| async move {
        // A group that was named too often is not even asked.
        if !room.borrow().is_open(mention.is_first) {
            return refused(ErrorCode::InvalidRequest);
        }
        let mut pace = Pace::new(&wiring.runtime);
        let topics = group.topics.as_deref();
        let fetched =
            fetch_of_group(wiring, &group.group_id, topics, message.require_stable, &mut pace).await;
        let bytes = bytes_of(&fetched, &mut pace).await;
        match take_or_close(&mut room.borrow_mut(), bytes, mention) {
            Ok(()) => fetched,
            Err(code) => refused(code),
        }
    });
    let fetched = ask_all(asks, pace).await;
    let layout = Layout::of(ApiKey::OffsetFetch, request.api_version);
    let mut groups = Vec::with_capacity(fetched.len());
    for (group, fetched) in message.groups.iter().zip(&fetched) {
        let topics = topics_response(layout, &fetched.topics, pace).await;
        groups.push(OffsetFetchResponseGroup {
            group_id: group.group_id.clone(),
            topics: topics.into(),
            error_code: fetched.error.get(),
        });
        pace.step().await;
    }
    reply(request, &OffsetFetchResponse { groups, ..OffsetFetchResponse::default() })
}

/// Takes room for what a mention is told. Where there is none for a repetition, all that come are refused too.
fn take_or_close(room: &mut AnswerRoom, bytes: usize, mention: Mention) -> Result<(), ErrorCode> {
    room.take(bytes, mention.is_first).map_err(|_| {
        room.close_repeated();
        ErrorCode::InvalidRequest
    })
}

fn refused(error: ErrorCode) -> OffsetFetchReply {
    OffsetFetchReply { error, topics: Vec::new(), next: None }
}

/// Bytes that an answer takes in its frame.
async fn bytes_of<R: ShardRuntime>(fetched: &OffsetFetchReply, pace: &mut Pace<'_, R>) -> usize {
    let mut bytes = 0_usize;
    for (name, offsets) in &fetched.topics {
        bytes = bytes.saturating_add(name.get().len());
        for offset in offsets {
            bytes = bytes.saturating_add(offset.metadata.len().saturating_add(OFFSET_BYTES));
            pace.step().await;
        }
    }
    bytes
}

/// Asks a group for offsets: by name in parts that are not too long for its owner, each partition once.
async fn fetch_of_group<R: ShardRuntime>(
    wiring: &Wiring<R>,
    group: &str,
    topics: Option<&[OffsetFetchRequestTopic<'_>]>,
    require_stable: bool,
    pace: &mut Pace<'_, R>,
) -> OffsetFetchReply {
    let id: &Arc<str> = &Arc::from(group);
    let ask = |topics, from| async move {
        let ask = OffsetFetch { group: id.clone(), topics, from, require_stable };
        match wiring.groups.ask(group, GroupRequest::OffsetFetch(ask)).await {
            GroupReply::OffsetFetch(answer) => answer,
            _ => refused(ErrorCode::UnknownServerError),
        }
    };
    let mut all = refused(ErrorCode::None);
    let Some(topics) = topics else {
        let mut from = None;
        loop {
            let answer = ask(None, from).await;
            if answer.error != ErrorCode::None {
                return answer;
            }
            from = answer.next;
            append(&mut all.topics, answer.topics);
            if from.is_none() {
                return all;
            }
        }
    };
    let Some(parts) = parts_of(topics, pace).await else { return refused(ErrorCode::InvalidRequest) };
    for part in parts {
        let answer = ask(Some(part), None).await;
        if answer.error != ErrorCode::None {
            return answer;
        }
        append(&mut all.topics, answer.topics);
    }
    all
}

/// Offsets by topic.
type Offsets = Vec<(TopicName, Vec<FetchedOffset>)>;

/// Adds what follows: its first topic may be the one that all had last.
fn append(all: &mut Offsets, more: Offsets) {
    for (name, mut offsets) in more {
        match all.last_mut().filter(|(last, _)| *last == name) {
            Some((_, there)) => there.append(&mut offsets),
            None => all.push((name, offsets)),
        }
    }
}

/// Partitions by topic.
type Partitions = Vec<(TopicName, Vec<i32>)>;

/// The partitions that a request names, each once, in the order of first mention, in parts; at least one part, so that a
/// request that names nothing is asked too. `None`: too many.
async fn parts_of<R: ShardRuntime>(
    topics: &[OffsetFetchRequestTopic<'_>],
    pace: &mut Pace<'_, R>,
) -> Option<Vec<Partitions>> {
    let count = topics.iter().map(|topic| topic.partition_indexes.len()).sum::<usize>();
    if count > PARTITIONS_MAX {
        return None;
    }
    let (mut seen, mut places) = (HashMap::new(), HashMap::new());
    let (mut parts, mut part, mut left) = (Vec::new(), Partitions::new(), PARTITIONS_AT_A_TIME);
    for topic in topics {
        pace.step().await;
        for partition in &topic.partition_indexes {
            pace.step().await;
            if count > 1 && seen.insert((&*topic.name, *partition), ()).is_some() {
                continue;
            }
            if left == 0 {
                parts.push(std::mem::take(&mut part));
                places.clear();
                left = PARTITIONS_AT_A_TIME;
            }
            left -= 1;
            let place = *places.entry(&*topic.name).or_insert(part.len());
            match part.get_mut(place) {
                Some((_, partitions)) => partitions.push(*partition),
                None => part.push((TopicName::new(&topic.name), vec![*partition])),
            }
        }
    }
    parts.push(part);
    Some(parts)
}

/// Version 0: offsets that the metadata store has. A partition that is not there, or has none, is unknown, as in Kafka.
async fn read_from_store<R: ShardRuntime>(
    wiring: &Wiring<R>,
    group: &str,
    topics: &[OffsetFetchRequestTopic<'_>],
    pace: &mut Pace<'_, R>,
) -> OffsetFetchReply {
    let Some(parts) = parts_of(topics, pace).await else { return refused(ErrorCode::InvalidRequest) };
    let image = wiring.image.current();
    let mut nodes = OffsetNodes { group: Arc::from(group), partitions: Vec::new() };
    let mut answer = refused(ErrorCode::None);
    for (name, partitions) in parts.into_iter().flatten() {
        let known = image.topic(name.get()).map(|topic| &**topic);
        for partition in &partitions {
            if is_there(known, *partition) {
                nodes.partitions.push((name.clone(), *partition));
            }
            pace.step().await;
        }
        let unknown = |partition: &i32| no_offset(*partition, ErrorCode::UnknownTopicOrPartition);
        let unknown = pace.collect(partitions.iter().map(unknown)).await;
        answer.topics.push((name, unknown));
    }
    let asked = wiring.admin.ask(ShardId::CONTROL, NEVER, AdminAsk::ReadOffsets(nodes)).await;
    let (outcomes, failure) = match asked {
        Ok(AdminAnswer::OffsetsRead(outcomes)) => (outcomes, ErrorCode::UnknownServerError),
        Ok(_) => (Vec::new(), ErrorCode::UnknownServerError),
        Err(error) => (Vec::new(), error.error_code()),
    };
    let mut outcomes = outcomes.into_iter();
    for (name, offsets) in &mut answer.topics {
        let known = image.topic(name.get()).map(|topic| &**topic);
        for offset in offsets {
            pace.step().await;
            if !is_there(known, offset.partition) {
                continue;
            }
            *offset = match outcomes.next() {
                Some(Ok(Some(found))) => {
                    FetchedOffset { offset: found, ..no_offset(offset.partition, ErrorCode::None) }
                }
                Some(Ok(None)) => continue,
                Some(Err(error)) => no_offset(offset.partition, error.error_code()),
                None => no_offset(offset.partition, failure),
            };
        }
    }
    answer
}

fn no_offset(partition: i32, error: ErrorCode) -> FetchedOffset {
    FetchedOffset {
        partition,
        offset: Offset::NONE,
        leader_epoch: LeaderEpoch::NONE,
        metadata: Arc::default(),
        error,
    }
}

/// The error of a group in versions that have no place for it.
async fn told_by_partition<'a, R: ShardRuntime>(
    asked: &[OffsetFetchRequestTopic<'a>],
    error: ErrorCode,
    pace: &mut Pace<'_, R>,
) -> Vec<OffsetFetchResponseTopic<'a>> {
    let mut topics = Vec::with_capacity(asked.len());
    for topic in asked {
        let refused = topic.partition_indexes.iter().map(|partition| OffsetFetchResponsePartition {
            partition_index: *partition,
            committed_offset: Offset::NONE.get(),
            error_code: error.get(),
            ..OffsetFetchResponsePartition::default()
        });
        let partitions = pace.collect(refused).await.into();
        topics.push(OffsetFetchResponseTopic { name: topic.name.clone(), partitions });
    }
    topics
}

/// The topics of a group, whose offsets are written one by one: there may be hundreds of thousands.
async fn topics_response<'a, R: ShardRuntime>(
    layout: Layout,
    topics: &'a Offsets,
    pace: &mut Pace<'_, R>,
) -> Vec<OffsetFetchResponseTopic<'a>> {
    let mut all = Vec::with_capacity(topics.len());
    for (name, offsets) in topics {
        let mut partitions = ListWriter::new(layout);
        for offset in offsets {
            partitions.push(&OffsetFetchResponsePartition {
                partition_index: offset.partition,
                committed_offset: offset.offset.get(),
                committed_leader_epoch: offset.leader_epoch.get(),
                metadata: Some((&*offset.metadata).into()),
                error_code: offset.error.get(),
            });
            pace.step().await;
        }
        all.push(OffsetFetchResponseTopic { name: name.get().into(), partitions: partitions.finish() });
        pace.step().await;
    }
    all
}

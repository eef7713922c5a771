//! Produce (0): wire to domain and back (protocol.md 3.3). Checks 1 to 11 are made here in their order, the rest by the
//! owners. A request is *accepted* when each owner holds its batches in its queues; the answer comes later.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use protocol::error::ErrorCode;
use protocol::messages::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceRequest, ProduceResponse, Records,
    RecordsSplitter, TopicProduceResponse,
};
use protocol::records::validate::check_shape;
use protocol::types::{MonoTime, Offset, ProducerEpoch, ProducerId, TimestampMs, TopicName};
use smallvec::{SmallVec, smallvec};

use super::dispatch::{Accepted, Malformed, Wiring, count_errors, deadline, decode, reply_around};
use super::errors::ToErrorCode;
use super::resolve::{self, Place};
use super::{Answer, ConnectionContext, Outcome, Request};
use crate::metadata::image::Image;
use crate::partition::ask::{
    Acks, AppendAsk, AppendFailure, AppendPart, AppendParts, AppendRefusal, Appended, PartitionAnswer,
    PartitionAsk,
};
use crate::partition::service::PartitionService;
use crate::shard::memory::Charge;
use crate::shard::pace::Pace;
use crate::shard::{AskError, Pending, ShardId, ShardRuntime, Slot};

/// The client that may write to internal topics.
const ADMIN_CLIENT: &str = "__admin_client";

/// Room at an owner is waited for so long. The client's timeout is for followers only.
const ROOM_MS_MAX: i32 = 30_000;

/// Batches that an owner takes in one go, some microseconds each: what is more goes in several messages, and between two
/// the owner's shard has its turn.
const GROUP_PARTS_MAX: usize = 64;

/// A request that names no more is looked through for what it names twice: cheaper than a map.
const SCAN_MAX: usize = 32;

/// Nothing is answered to it, so that closing the connection is all that tells the client (as in Kafka).
const SILENT_FAILURE: &str = "a produce with acks=0 failed";

/// What became of one partition of the request.
enum PartOutcome {
    /// Refused by the checks of this file.
    Refused(ErrorCode),
    /// The owner could not be asked, or did not answer.
    Unasked(AskError),
    /// The owner's word.
    Owner(Result<Appended, Box<AppendFailure>>),
}

/// One partition of the request. Named more than once, it is one: its last valid batch is appended, and a refused one is
/// what the answer tells, as in Kafka's maps.
struct Part {
    index: i32,
    /// Place of its topic in the answer.
    topic: usize,
    found: Result<Place, ErrorCode>,
    /// Where the last valid batch stands in the body, and what it says of its producer.
    batch: Option<(Range<usize>, Option<Producer>)>,
    /// What the last invalid batch is answered with.
    invalid: Option<ErrorCode>,
    /// What is answered without an owner.
    refused: Option<ErrorCode>,
}

/// The producer of a transactional batch.
type Producer = (ProducerId, ProducerEpoch);

/// Topics in the order in which they are named first, with their numbers of partitions.
type Topics = SmallVec<[(TopicName, usize); 1]>;

/// Partitions in the order in which they are named first; mostly few.
type Parts = SmallVec<[Part; 1]>;

/// What is known of each part.
type Outcomes = SmallVec<[Option<PartOutcome>; 1]>;

/// A request, read and checked.
struct Plan {
    acks: Option<Acks>,
    timeout_ms: i32,
    topics: Topics,
    parts: Parts,
}

/// What is needed to answer once the owners have.
struct Echo {
    version: i16,
    correlation_id: i32,
    client_id: Arc<str>,
    connection: Rc<ConnectionContext>,
    topics: Topics,
    /// Index of each part, and place of its topic.
    indexes: SmallVec<[(i32, usize); 1]>,
    is_silent: bool,
}

/// Places of parts in the request; mostly one.
type Places = SmallVec<[usize; 2]>;

/// Groups that were sent, and what comes of each; mostly one.
type Asked = SmallVec<[(Places, Pending<PartitionAnswer>); 1]>;

/// What one owner is sent at once, and the places of its parts in the request.
struct Group {
    owner: ShardId,
    places: Places,
    parts: AppendParts,
}

/// Handles one request: it is accepted when this returns.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, mut request: Request) -> Outcome<Accepted> {
    let runtime = &wiring.runtime;
    let plan = match plan(runtime, &wiring.image.current(), &request).await {
        Ok(plan) => plan,
        Err(malformed) => return Outcome::Done(malformed.into()),
    };
    let mut pace = Pace::new(runtime);
    let mut indexes = SmallVec::with_capacity(plan.parts.len());
    let mut outcomes = Outcomes::with_capacity(plan.parts.len());
    for part in &plan.parts {
        indexes.push((part.index, part.topic));
        outcomes.push(part.refused.map(PartOutcome::Refused));
        pace.step().await;
    }
    let echo = Echo {
        version: request.api_version,
        correlation_id: request.correlation_id,
        client_id: request.client_id.clone(),
        connection: request.connection.clone(),
        indexes,
        topics: plan.topics,
        is_silent: plan.acks == Some(Acks::None),
    };
    let groups = split(runtime, plan.parts, std::mem::take(&mut request.body)).await;
    let Some(acks) = plan.acks.filter(|_| !groups.is_empty()) else {
        return Outcome::Done(echo.answer(wiring, &mut outcomes).await);
    };
    let sending = Sending {
        request_version: request.api_version,
        acks,
        deadline: self::deadline(runtime, plan.timeout_ms),
        frame: Arc::new(request.charge),
        frame_memory: request.memory,
    };
    let asked = sending.send(wiring, groups, &mut outcomes).await;
    let wiring = wiring.clone();
    Outcome::Accepted(Box::pin(async move {
        let mut pace = Pace::new(&wiring.runtime);
        // One after the other: all were asked, and the last answer ends it in any order.
        for (places, pending) in asked {
            fill(&mut outcomes, &places, pending.await);
            pace.look().await;
        }
        echo.answer(&wiring, &mut outcomes).await
    }))
}

/// Room for one message to an owner.
type Room<R> = Result<Slot<R, PartitionService<R>>, AskError>;

/// What all owners of a request are told.
struct Sending {
    request_version: i16,
    acks: Acks,
    deadline: MonoTime,
    frame: Arc<Charge>,
    frame_memory: usize,
}

impl Sending {
    /// Sends each owner its groups: their batches stand in the partitions' queues, or on the way there, when this
    /// returns. Rooms come before messages as far as owners differ.
    async fn send<R: ShardRuntime>(
        self,
        wiring: &Rc<Wiring<R>>,
        groups: SmallVec<[Group; 1]>,
        outcomes: &mut [Option<PartOutcome>],
    ) -> Asked {
        let room_by = deadline(&wiring.runtime, ROOM_MS_MAX);
        let mut pace = Pace::new(&wiring.runtime);
        let mut asked = Asked::new();
        let mut groups = groups.into_iter().peekable();
        while groups.peek().is_some() {
            let mut wave: SmallVec<[(Group, Room<R>); 1]> = SmallVec::new();
            while let Some(group) =
                groups.next_if(|next| wave.iter().all(|(group, _)| group.owner != next.owner))
            {
                let slot = wiring.partitions.reserve(group.owner, room_by).await;
                wave.push((group, slot));
            }
            for (Group { places, parts, .. }, slot) in wave {
                let Self { request_version, acks, deadline, frame_memory, .. } = self;
                match slot {
                    Ok(slot) => {
                        let frame = self.frame.clone();
                        let ask = AppendAsk { request_version, acks, deadline, frame, frame_memory, parts };
                        asked.push((places, slot.send(PartitionAsk::Append(ask))));
                    }
                    Err(error) => fill(outcomes, &places, Err(error)),
                }
            }
            pace.look().await;
        }
        asked
    }
}

/// Notes what an owner says of its parts.
fn fill(outcomes: &mut [Option<PartOutcome>], places: &[usize], answer: Result<PartitionAnswer, AskError>) {
    let (mut results, error) = match answer {
        Ok(PartitionAnswer::Appended(results)) => (results.into_iter(), AskError::Stopped),
        // Another answer than the one to the question is a bug there; the client tries again.
        Ok(_) => (SmallVec::new().into_iter(), AskError::Stopped),
        Err(error) => (SmallVec::new().into_iter(), error),
    };
    for place in places {
        // Also a part that has no place in the answer has a result.
        let outcome = results.next().map_or(PartOutcome::Unasked(error), PartOutcome::Owner);
        if let Some(slot) = outcomes.get_mut(*place) {
            *slot = Some(outcome);
        }
    }
}

/// Cuts the body into one piece per partition that goes to an owner.
async fn split<R: ShardRuntime>(runtime: &R, parts: Parts, body: BytesMut) -> SmallVec<[Group; 1]> {
    let mut pace = Pace::new(runtime);
    let mut cuts: SmallVec<[_; 1]> = SmallVec::with_capacity(parts.len());
    for (place, part) in parts.into_iter().enumerate() {
        pace.step().await;
        if let (Ok(found), Some((range, _))) = (part.found, part.batch) {
            // What is answered with an invalid batch of the partition has no place for its owner's word.
            let place = if part.refused.is_none() { place } else { usize::MAX };
            cuts.push((range, found, place));
        }
    }
    // A later mention of a partition stands elsewhere in the body than the first.
    if !cuts.is_sorted_by_key(|(range, ..)| range.start) {
        cuts.sort_unstable_by_key(|(range, ..)| range.start);
    }
    let mut splitter = RecordsSplitter::new(body);
    let mut groups: SmallVec<[Group; 1]> = SmallVec::new();
    for (range, Place { owner, key }, place) in cuts {
        pace.step().await;
        let piece = AppendPart { key, batch: splitter.split(range) };
        match groups.iter_mut().rev().find(|group| group.owner == owner) {
            Some(group) if group.parts.len() < GROUP_PARTS_MAX => {
                group.places.push(place);
                group.parts.push(piece);
            }
            _ => groups.push(Group { owner, places: smallvec![place], parts: smallvec![piece] }),
        }
    }
    groups
}

/// Reads a request and makes the checks that need no owner.
async fn plan<R: ShardRuntime>(runtime: &R, image: &Image, request: &Request) -> Result<Plan, Malformed> {
    let message: ProduceRequest = decode(request)?;
    let acks = match message.acks {
        0 => Some(Acks::None),
        1 => Some(Acks::Leader),
        -1 => Some(Acks::Isr),
        _ => None,
    };
    let mut pace = Pace::new(runtime);
    let mut mentions = 0usize;
    for data in &message.topic_data {
        mentions = mentions.saturating_add(data.partition_data.len());
        pace.step().await;
    }
    let mut named = Named::new(mentions);
    let mut topics = Topics::with_capacity(message.topic_data.len());
    let mut parts = Parts::with_capacity(mentions);
    let mut is_transactional = false;
    for data in &message.topic_data {
        let known = image.topic(&data.name).map(|topic| &**topic);
        let topic = named.topic(&data.name, &topics);
        if topic == topics.len() {
            let name = known.map_or_else(|| TopicName::new(&data.name), |known| known.name.clone());
            topics.push((name, 0));
        }
        pace.step().await;
        for partition in &data.partition_data {
            let place = named.part((topic, partition.index), &parts);
            if place == parts.len() {
                if let Some((_, count)) = topics.get_mut(topic) {
                    *count = count.saturating_add(1);
                }
                let found = resolve::place(known, partition.index);
                parts.push(Part {
                    index: partition.index,
                    topic,
                    found,
                    batch: None,
                    invalid: None,
                    refused: None,
                });
            }
            let records = partition.records.unwrap_or_default();
            if let Some(part) = parts.get_mut(place) {
                is_transactional |= part.see(records, request.api_version);
            }
            pace.step().await;
        }
    }
    let producers = parts.iter().filter(|part| part.found.is_ok()).filter_map(|part| part.batch.as_ref()?.1);
    let fault = transaction_fault(is_transactional, message.transactional_id.is_some(), producers);
    let is_admin = *request.client_id == *ADMIN_CLIENT;
    for part in &mut parts {
        let is_internal = topics.get(part.topic).is_some_and(|(name, _)| name.is_internal());
        part.judge(fault, acks.is_some(), is_internal && !is_admin);
        pace.step().await;
    }
    Ok(Plan { acks, timeout_ms: message.timeout_ms, topics, parts })
}

impl Part {
    /// Looks at one mention; whether its batch is transactional.
    fn see(&mut self, records: Records<'_>, version: i16) -> bool {
        match check_shape(records.bytes(), version) {
            Ok(batch) => {
                let info = batch.info();
                let is_transactional = info.attributes.is_transactional();
                let producer = is_transactional.then_some((info.producer_id, info.producer_epoch));
                let start = records.range().start;
                self.batch = Some((start..start + batch.size_in_bytes(), producer));
                is_transactional
            }
            Err(error) => {
                self.invalid = Some(error.error_code());
                false
            }
        }
    }

    /// Decides what needs no owner; in which order stands in protocol.md 3.3.
    fn judge(&mut self, fault: Option<ErrorCode>, acks_are_known: bool, is_forbidden: bool) {
        let others = if !acks_are_known {
            Some(ErrorCode::InvalidRequiredAcks)
        } else if is_forbidden {
            Some(ErrorCode::InvalidTopicException)
        } else {
            None
        };
        let unknown = self.found.err().filter(|code| *code == ErrorCode::UnknownTopicOrPartition);
        self.refused = fault.or(unknown).or(self.invalid).or(others).or(self.found.err());
        if fault.or(unknown).or(others).is_some() {
            self.batch = None;
        }
    }
}

/// Finds what a request has named before: by looking through it while it is short, else by maps.
struct Named<'a> {
    topics: HashMap<&'a str, usize>,
    parts: HashMap<(usize, i32), usize>,
    uses_maps: bool,
}

impl<'a> Named<'a> {
    fn new(mentions: usize) -> Self {
        let uses_maps = mentions > SCAN_MAX;
        let parts = HashMap::with_capacity(if uses_maps { mentions } else { 0 });
        Self { topics: HashMap::new(), parts, uses_maps }
    }

    /// Place of a topic; a new one's is behind `known`.
    fn topic(&mut self, name: &'a str, known: &[(TopicName, usize)]) -> usize {
        if self.uses_maps {
            return *self.topics.entry(name).or_insert(known.len());
        }
        known.iter().position(|(known, _)| known.get() == name).unwrap_or(known.len())
    }

    /// Place of a partition; a new one's is behind `known`.
    fn part(&mut self, key: (usize, i32), known: &[Part]) -> usize {
        if self.uses_maps {
            return *self.parts.entry(key).or_insert(known.len());
        }
        known.iter().position(|part| (part.topic, part.index) == key).unwrap_or(known.len())
    }
}

/// What the whole request is refused with, by what its transactional batches have in common.
fn transaction_fault(
    is_transactional: bool,
    has_transactional_id: bool,
    mut producers: impl Iterator<Item = Producer>,
) -> Option<ErrorCode> {
    if !is_transactional {
        return None;
    }
    if !has_transactional_id {
        return Some(ErrorCode::TransactionalIdAuthorizationFailed);
    }
    let first = producers.next()?;
    producers.any(|producer| producer != first).then_some(ErrorCode::InvalidProducerIdMapping)
}

impl Echo {
    /// The answer to the request, from what became of its parts in their order. Each topic and each partition stands in
    /// it once.
    async fn answer<R: ShardRuntime>(
        &self,
        wiring: &Rc<Wiring<R>>,
        outcomes: &mut [Option<PartOutcome>],
    ) -> Answer {
        let mut pace = Pace::new(&wiring.runtime);
        if self.is_silent {
            for outcome in outcomes {
                pace.step().await;
                if !matches!(outcome, Some(PartOutcome::Owner(Ok(_)))) {
                    let code = ErrorCode::new(self.part(0, outcome.take()).error_code);
                    let (now, name) = (wiring.runtime.now(), code.map_or("unknown", ErrorCode::name));
                    self.connection.tell_closing(now, &self.client_id, SILENT_FAILURE, &name);
                    return Answer::Close(SILENT_FAILURE);
                }
            }
            return Answer::Nothing;
        }
        let image = wiring.image.current();
        let mut leaders = Vec::new();
        let mut responses = Vec::with_capacity(self.topics.len());
        for (name, parts) in &self.topics {
            let partition_responses = Vec::with_capacity(*parts);
            responses.push(TopicProduceResponse { name: name.get().into(), partition_responses });
            pace.step().await;
        }
        for ((index, topic), outcome) in self.indexes.iter().zip(outcomes) {
            pace.step().await;
            let mut part = self.part(*index, outcome.take());
            let Some(response) = responses.get_mut(*topic) else { continue };
            if part.error_code == ErrorCode::NotLeaderOrFollower.get()
                && let Some(leader) =
                    resolve::leader(image.topic(&response.name).map(|topic| &**topic), part.index)
            {
                leaders.push(leader.leader_id);
                part.current_leader = leader;
            }
            response.partition_responses.push(part);
        }
        let node_endpoints = resolve::endpoints(&image, &self.connection.listener, &leaders);
        let response = ProduceResponse { responses, throttle_time_ms: 0, node_endpoints };
        count_errors(&self.connection.account.metrics, &response, self.version);
        reply_around((self.version, self.correlation_id), &response, [])
    }

    fn part(&self, index: i32, outcome: Option<PartOutcome>) -> PartitionProduceResponse<'static> {
        let none = PartitionProduceResponse { index, base_offset: -1, ..PartitionProduceResponse::default() };
        let failure = match outcome {
            Some(PartOutcome::Owner(Ok(appended))) => {
                return PartitionProduceResponse {
                    base_offset: appended.base_offset.get(),
                    log_append_time_ms: appended.log_append_time.get(),
                    log_start_offset: appended.log_start_offset.get(),
                    ..none
                };
            }
            Some(PartOutcome::Owner(Err(failure))) => failure,
            Some(PartOutcome::Refused(code)) => {
                return PartitionProduceResponse { error_code: code.get(), ..none };
            }
            Some(PartOutcome::Unasked(error)) => {
                return PartitionProduceResponse { error_code: error.error_code().get(), ..none };
            }
            None => {
                return PartitionProduceResponse { error_code: ErrorCode::UnknownServerError.get(), ..none };
            }
        };
        let code = self.code_of(&failure.error);
        let appended = failure.appended;
        PartitionProduceResponse {
            error_code: code.get(),
            base_offset: appended.map_or(Offset::NONE, |appended| appended.base_offset).get(),
            log_append_time_ms: appended.map_or(TimestampMs::NONE, |appended| appended.log_append_time).get(),
            log_start_offset: if tells_log_start(code) { failure.log_start_offset.get() } else { -1 },
            record_errors: record_errors(&failure.error),
            error_message: message(&failure.error),
            ..none
        }
    }

    /// Clients of version 3 do not know KAFKA_STORAGE_ERROR.
    fn code_of(&self, error: &AppendRefusal) -> ErrorCode {
        match error.error_code() {
            ErrorCode::KafkaStorageError if self.version < 4 => ErrorCode::NotLeaderOrFollower,
            code => code,
        }
    }
}

/// Whether an error comes with the log's start, as in Kafka (protocol.md 3.3, "Fields").
fn tells_log_start(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NotEnoughReplicas
            | ErrorCode::NotEnoughReplicasAfterAppend
            | ErrorCode::RequestTimedOut
            | ErrorCode::InvalidTimestamp
            | ErrorCode::UnsupportedForMessageFormat
            | ErrorCode::OutOfOrderSequenceNumber
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::InvalidTxnState
            | ErrorCode::InvalidRecord
    )
}

/// The text of an error, as Kafka gives one only where records are at fault: it shows at most three.
fn message(error: &AppendRefusal) -> Option<Cow<'static, str>> {
    let AppendRefusal::Invalid(error) = error else { return None };
    let faults = error.record_faults();
    if faults.is_empty() {
        return None;
    }
    let shown: Vec<_> =
        faults.iter().take(3).map(|fault| format!("record {}: {}", fault.index, fault.kind)).collect();
    let more = if faults.len() > shown.len() { ", and more" } else { "" };
    Some(format!("One or more records have been rejected: {}{more}", shown.join("; ")).into())
}

/// The records at fault, each with its text (KIP-467).
fn record_errors(error: &AppendRefusal) -> Vec<BatchIndexAndErrorMessage<'static>> {
    let AppendRefusal::Invalid(error) = error else { return Vec::new() };
    let faults = error.record_faults().iter();
    faults
        .map(|fault| BatchIndexAndErrorMessage {
            batch_index: fault.index,
            batch_index_error_message: Some(fault.kind.to_string().into()),
        })
        .collect()
}

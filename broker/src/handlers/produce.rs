//! Produce (0): wire to domain and back (protocol.md 3.3). Checks 1 to 11 are made here in their order, the rest by the
//! owners. A request is *accepted* when each owner holds its batches in its queues; the answer comes later.

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;

use bytes::BytesMut;
use futures_util::future::join_all;
use protocol::error::ErrorCode;
use protocol::messages::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceRequest, ProduceResponse, RecordsSplitter,
    TopicProduceResponse,
};
use protocol::records::batch::BatchInfo;
use protocol::records::validate::check_shape;
use protocol::types::{Offset, ProducerEpoch, ProducerId, TimestampMs, TopicName};

use super::dispatch::{Accepted, Malformed, Wiring, count_errors, deadline, decode, reply_around};
use super::errors::ToErrorCode;
use super::resolve::{self, Place};
use super::{Answer, ConnectionContext, Outcome, Request};
use crate::metadata::image::Image;
use crate::partition::ask::{
    Acks, AppendAsk, AppendFailure, AppendPart, AppendRefusal, Appended, PartitionAnswer, PartitionAsk,
};
use crate::partition::service::PartitionService;
use crate::shard::{AskError, Pending, ShardId, ShardRuntime, Slot};

/// The client that may write to internal topics.
const ADMIN_CLIENT: &str = "__admin_client";

/// Room at an owner is waited for so long. The client's timeout is for followers only.
const ROOM_MS_MAX: i32 = 30_000;

/// What became of one partition of the request.
enum PartOutcome {
    /// Refused by the checks of this file.
    Refused(ErrorCode),
    /// The owner could not be asked, or did not answer.
    Unasked(AskError),
    /// The owner's word.
    Owner(Result<Appended, AppendFailure>),
}

/// One partition of the request.
struct Part {
    index: i32,
    verdict: Result<Place, ErrorCode>,
    /// Where its first batch stands in the body.
    range: Range<usize>,
}

/// A request, read and checked.
struct Plan {
    acks: Option<Acks>,
    timeout_ms: i32,
    /// Topics with their number of partitions, in the order of the request.
    topics: Vec<(TopicName, usize)>,
    parts: Vec<Part>,
}

/// What is needed to answer once the owners have.
struct Echo {
    version: i16,
    correlation_id: i32,
    connection: Rc<ConnectionContext>,
    topics: Vec<(TopicName, usize)>,
    indexes: Vec<i32>,
    is_silent: bool,
}

/// What one owner is sent, and the places of its parts in the request.
struct Group {
    owner: ShardId,
    places: Vec<usize>,
    parts: Vec<AppendPart>,
}

/// Handles one request: it is accepted when this returns.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, mut request: Request) -> Outcome<Accepted> {
    let plan = match plan(&wiring.image.current(), &request) {
        Ok(plan) => plan,
        Err(malformed) => return Outcome::Done(malformed.into()),
    };
    let echo = Echo {
        version: request.api_version,
        correlation_id: request.correlation_id,
        connection: request.connection.clone(),
        indexes: plan.parts.iter().map(|part| part.index).collect(),
        topics: plan.topics,
        is_silent: plan.acks == Some(Acks::None),
    };
    let mut outcomes: Vec<_> =
        plan.parts.iter().map(|part| part.verdict.err().map(PartOutcome::Refused)).collect();
    let groups = split(plan.parts, std::mem::take(&mut request.body));
    let Some(acks) = plan.acks.filter(|_| !groups.is_empty()) else {
        return Outcome::Done(echo.answer(&wiring.image.current(), outcomes));
    };
    let deadline = self::deadline(&wiring.runtime, plan.timeout_ms);
    let room_by = self::deadline(&wiring.runtime, ROOM_MS_MAX);
    // All rooms first, then all messages: no owner sees a later request of the connection before this one.
    let mut slots: Vec<Result<Slot<R, PartitionService<R>>, AskError>> = Vec::with_capacity(groups.len());
    for group in &groups {
        slots.push(wiring.partitions.reserve(group.owner, room_by).await);
    }
    let request_version = request.api_version;
    let mut asked = Vec::with_capacity(groups.len());
    for (Group { places, parts, .. }, slot) in groups.into_iter().zip(slots) {
        match slot {
            Ok(slot) => {
                asked.push(await_owner(
                    places,
                    slot.send(PartitionAsk::Append(AppendAsk { request_version, acks, deadline, parts })),
                ));
            }
            Err(error) => {
                fill(&mut outcomes, places.into_iter().map(|place| (place, PartOutcome::Unasked(error))))
            }
        }
    }
    let image = wiring.image.clone();
    Outcome::Accepted(Box::pin(async move {
        for answered in join_all(asked).await {
            fill(&mut outcomes, answered.into_iter());
        }
        echo.answer(&image.current(), outcomes)
    }))
}

/// Waits for what an owner says of its parts.
async fn await_owner(places: Vec<usize>, pending: Pending<PartitionAnswer>) -> Vec<(usize, PartOutcome)> {
    match pending.await {
        Ok(PartitionAnswer::Appended(results)) => {
            places.into_iter().zip(results.into_iter().map(PartOutcome::Owner)).collect()
        }
        // Another answer than the one to the question is a bug there; the client tries again.
        Ok(_) => places.into_iter().map(|place| (place, PartOutcome::Unasked(AskError::Stopped))).collect(),
        Err(error) => places.into_iter().map(|place| (place, PartOutcome::Unasked(error))).collect(),
    }
}

fn fill(outcomes: &mut [Option<PartOutcome>], news: impl Iterator<Item = (usize, PartOutcome)>) {
    for (place, outcome) in news {
        if let Some(slot) = outcomes.get_mut(place) {
            *slot = Some(outcome);
        }
    }
}

/// Cuts the body into one piece per partition that goes to an owner.
fn split(parts: Vec<Part>, body: BytesMut) -> Vec<Group> {
    let mut splitter = RecordsSplitter::new(body);
    let mut groups: Vec<Group> = Vec::new();
    for (place, part) in parts.into_iter().enumerate() {
        let Ok(Place { owner, key }) = part.verdict else { continue };
        let piece = AppendPart { key, batch: splitter.split(part.range) };
        match groups.iter_mut().find(|group| group.owner == owner) {
            Some(group) => {
                group.places.push(place);
                group.parts.push(piece);
            }
            None => groups.push(Group { owner, places: vec![place], parts: vec![piece] }),
        }
    }
    groups
}

/// Reads a request and makes the checks that need no owner.
fn plan(image: &Image, request: &Request) -> Result<Plan, Malformed> {
    let message: ProduceRequest = decode(request)?;
    let acks = match message.acks {
        0 => Some(Acks::None),
        1 => Some(Acks::Leader),
        -1 => Some(Acks::Isr),
        _ => None,
    };
    let mut topics = Vec::with_capacity(message.topic_data.len());
    let mut parts = Vec::new();
    let mut transactions = Transactions::default();
    for data in &message.topic_data {
        let topic = image.topic(&data.name).map(|topic| &**topic);
        let name = topic.map_or_else(|| TopicName::new(&data.name), |topic| topic.name.clone());
        let refused = name.is_internal() && *request.client_id != *ADMIN_CLIENT;
        for partition in &data.partition_data {
            let records = partition.records.unwrap_or_default();
            let batch = check_shape(records.bytes(), request.api_version);
            let found = resolve::place(topic, partition.index);
            if let Ok(batch) = &batch {
                transactions.see(&batch.info());
            }
            let verdict = match (found, &batch) {
                (Err(ErrorCode::UnknownTopicOrPartition), _) => Err(ErrorCode::UnknownTopicOrPartition),
                (_, Err(error)) => Err(error.error_code()),
                _ if acks.is_none() => Err(ErrorCode::InvalidRequiredAcks),
                _ if refused => Err(ErrorCode::InvalidTopicException),
                (found, Ok(_)) => found,
            };
            let start = records.range().start;
            let len = batch.map_or(0, |batch| batch.size_in_bytes());
            parts.push(Part { index: partition.index, verdict, range: start..start + len });
        }
        topics.push((name, data.partition_data.len()));
    }
    if let Some(code) = transactions.fault(message.transactional_id.is_some()) {
        for part in &mut parts {
            part.verdict = Err(code);
        }
    }
    Ok(Plan { acks, timeout_ms: message.timeout_ms, topics, parts })
}

/// What the transactional batches of a request have in common.
#[derive(Default)]
struct Transactions {
    producer: Option<(ProducerId, ProducerEpoch)>,
    differ: bool,
}

impl Transactions {
    fn see(&mut self, batch: &BatchInfo) {
        if !batch.attributes.is_transactional() {
            return;
        }
        let producer = (batch.producer_id, batch.producer_epoch);
        self.differ |= self.producer.is_some_and(|known| known != producer);
        self.producer = Some(producer);
    }

    /// What the whole request is refused with.
    fn fault(&self, has_transactional_id: bool) -> Option<ErrorCode> {
        match self.producer {
            Some(_) if !has_transactional_id => Some(ErrorCode::TransactionalIdAuthorizationFailed),
            Some(_) if self.differ => Some(ErrorCode::InvalidProducerIdMapping),
            _ => None,
        }
    }
}

impl Echo {
    /// The answer to the request, from what became of its parts in their order.
    fn answer(&self, image: &Image, outcomes: Vec<Option<PartOutcome>>) -> Answer {
        let responses: Vec<_> =
            self.indexes.iter().zip(outcomes).map(|(index, outcome)| self.part(*index, outcome)).collect();
        if self.is_silent {
            let failed = responses.iter().any(|part| part.error_code != ErrorCode::None.get());
            return if failed { Answer::Close("a produce with acks=0 failed") } else { Answer::Nothing };
        }
        let mut parts = responses.into_iter();
        let mut leaders = Vec::new();
        let mut responses = Vec::with_capacity(self.topics.len());
        for (name, count) in &self.topics {
            let mut partition_responses: Vec<_> = parts.by_ref().take(*count).collect();
            for part in &mut partition_responses {
                if part.error_code == ErrorCode::NotLeaderOrFollower.get()
                    && let Some(leader) =
                        resolve::leader(image.topic(name.get()).map(|topic| &**topic), part.index)
                {
                    leaders.push(leader.leader_id);
                    part.current_leader = leader;
                }
            }
            responses.push(TopicProduceResponse { name: name.get().into(), partition_responses });
        }
        let node_endpoints = resolve::endpoints(image, &self.connection.listener, &leaders);
        let response = ProduceResponse { responses, throttle_time_ms: 0, node_endpoints };
        count_errors(&self.connection.account.metrics, &response, self.version);
        Answer::Reply(reply_around((self.version, self.correlation_id), &response, []))
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

//! Fetch (1): wire to domain and back (protocol.md 3.4). The session says what is wanted, `collect` gets it from the
//! owners, the answer is written around bytes that stay where they are.
//!
//! Reading order: this file (one request), [`forward`] (sessions of other shards), [`collect`] (owners), [`waits`].

mod collect;
mod forward;
mod kept;
mod waits;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use protocol::error::ErrorCode;
use protocol::messages::fetch::EpochEndOffset;
use protocol::messages::{
    AbortedTransaction, FetchRequest, FetchResponse, FetchableTopicResponse, FetchedRecords, ForgottenTopic,
    PartitionData,
};
use protocol::records::compression::Codec;
use protocol::types::{BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId, TopicName};
use storage::io::Span;

use self::collect::{Collector, Limits, Part};
pub use self::forward::FetchForward;
use self::waits::Waits;
use super::dispatch::{Wiring, count_errors, decode, reply_around};
use super::errors::ToErrorCode;
use super::patience::Patience;
use super::resolve::{self, Place};
use super::{Answer, ConnectionContext, Request};
use crate::config::topic::TopicCompression;
use crate::fetch_session::cache::{
    CacheGauges, FetchContext, FetchSessionCache, IdRange, SessionError, SessionLimits, SessionRequest,
};
use crate::fetch_session::session::{PartitionRef, Quiet, Told, TopicRef, Wanted};
use crate::metadata::image::{Image, TopicImage};
use crate::partition::ask::{self, FetchPart, FetchedData, Isolation, Reader};
use crate::shard::pace::Pace;
use crate::shard::{ShardId, ShardRuntime, Shards};

/// First version that may read from any replica (KIP-392).
const ANY_REPLICA_FROM: i16 = 11;
/// First version that understands zstd (KIP-110).
const ZSTD_FROM: i16 = 10;
/// First version that names topics by id (KIP-516).
const TOPIC_IDS_FROM: i16 = 13;
/// First version whose clients know KAFKA_STORAGE_ERROR.
const STORAGE_ERROR_FROM: i16 = 6;
/// First version that is told the leader's endpoints (KIP-951).
const ENDPOINTS_FROM: i16 = 16;

/// Sessions and waits of one shard's fetches, and the way to those of other shards.
pub struct FetchState<R: ShardRuntime> {
    sessions: RefCell<FetchSessionCache>,
    waits: Rc<Waits<R>>,
    forward: Shards<R, FetchForward<R>>,
}

impl<R: ShardRuntime> FetchState<R> {
    /// None yet; `limits` are what all shards may have together.
    pub fn new(runtime: &R, limits: SessionLimits, forward: Shards<R, FetchForward<R>>) -> Self {
        let (shard, shards) = (runtime.shard().get(), runtime.shard_count());
        let share = |all: usize| all.div_ceil(usize::from(shards.max(1)));
        let limits = SessionLimits { slots_max: share(limits.slots_max), bytes_max: share(limits.bytes_max) };
        Self {
            sessions: RefCell::new(FetchSessionCache::new(limits, shard, shards)),
            waits: Rc::default(),
            forward,
        }
    }

    /// Fetch sessions of this shard, the partitions in them, and how many had to leave for others.
    pub fn sessions(&self) -> CacheGauges {
        self.sessions.borrow().gauges()
    }

    /// Messages that wait for their turn on the way to the sessions of this shard.
    pub fn queued(&self) -> usize {
        self.forward.queued()
    }
}

/// What a fetch says of itself beside its partitions.
#[derive(Clone, Debug)]
struct Origin {
    version: i16,
    correlation_id: i32,
    listener: Arc<str>,
}

impl Origin {
    fn of(request: &Request) -> Self {
        let Request { api_version, correlation_id, .. } = *request;
        Self { version: api_version, correlation_id, listener: request.connection.listener.clone() }
    }
}

/// How long a fetch may wait for bytes, and how long it has.
#[derive(Clone, Copy)]
struct Waiting<'a> {
    patience: &'a Patience,
    parked_nanos: &'a Cell<u64>,
}

/// Handles one request.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let origin = Origin::of(&request);
    let message: FetchRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let home = IdRange::shard_of(message.session_id, wiring.runtime.shard_count()).map(ShardId::new);
    let ConnectionContext { account, patience, .. } = &*request.connection;
    account.by_follower.set(message.follower_id(request.api_version) >= 0);
    match home.filter(|shard| *shard != wiring.runtime.shard()) {
        None => {
            serve(wiring, &origin, &message, Waiting { patience, parked_nanos: &account.parked_nanos }).await
        }
        Some(shard) => {
            drop(message);
            let (answer, parked_nanos) =
                forward::ask(wiring, shard, origin, (request.body, &request.connection)).await;
            account.parked_nanos.set(parked_nanos);
            answer
        }
    }
}

/// Serves a request on the shard that has its session, or may open one. Notes how long it waited for bytes.
async fn serve<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    origin: &Origin,
    message: &FetchRequest<'_>,
    waiting: Waiting<'_>,
) -> Answer {
    let mut pace = Pace::new(&wiring.runtime);
    let wanted = wanted(message, origin.version, &mut pace).await;
    let forgotten = forgotten(&message.forgotten_topics_data, origin.version);
    let request = SessionRequest {
        session_id: message.session_id,
        session_epoch: message.session_epoch,
        uses_topic_ids: origin.version >= TOPIC_IDS_FROM,
        is_follower: message.follower_id(origin.version) >= 0,
        wanted: &wanted,
        forgotten: &forgotten,
    };
    let now = wiring.runtime.now();
    let context = match wiring.fetch.sessions.borrow_mut().begin(now, &request) {
        Ok(context) => context,
        Err(error) => return refusal(wiring, origin, error, 0),
    };
    let wanted = match context {
        FetchContext::Incremental { session_id, .. } => {
            let sessions = wiring.fetch.sessions.borrow();
            sessions.partitions(session_id).map(|(partition, wanted)| (partition.clone(), wanted)).collect()
        }
        FetchContext::Full { .. } | FetchContext::Sessionless => wanted,
    };
    let who = reader(&wiring.image.current(), message, origin.version);
    let view = view(who);
    let outcomes = fetch(wiring, (origin.version, waiting), message, (who, view), &wanted).await;
    answer(wiring, origin, context, &wanted, (view, outcomes)).await
}

/// Who reads, and what may be seen.
fn reader(image: &Image, message: &FetchRequest<'_>, version: i16) -> (Isolation, Reader) {
    let follower_id = message.follower_id(version);
    if follower_id >= 0 {
        let id = BrokerId::new(follower_id);
        let broker_epoch = BrokerEpoch::new(message.replica_state.replica_epoch);
        let reader = Reader::Replica { id, broker_epoch, eligible: image.brokers.contains_key(&id) };
        return (Isolation::LogEnd, reader);
    }
    let isolation =
        if message.isolation_level == 1 { Isolation::Committed } else { Isolation::HighWatermark };
    let reader = if version >= ANY_REPLICA_FROM { Reader::ConsumerOfAnyReplica } else { Reader::Consumer };
    (isolation, reader)
}

/// What one partition of the fetch gave, and who owns it.
type Outcome = (Option<ShardId>, Result<FetchedData, ErrorCode>);

/// Who reads and what may be seen, as a number: whoever has another one has not been told the same. Followers have none:
/// they are not passed over.
fn view((isolation, reader): (Isolation, Reader)) -> Option<u8> {
    let any_replica = match reader {
        Reader::Consumer => 0,
        Reader::ConsumerOfAnyReplica => 1,
        Reader::Replica { .. } => return None,
    };
    let isolation = match isolation {
        Isolation::LogEnd => 0,
        Isolation::HighWatermark => 2,
        Isolation::Committed => 4,
    };
    Some(isolation | any_replica)
}

/// Gets what is wanted from the owners: outcomes by their place in `wanted`, without those that have nothing to tell
/// since they were told. What is refused here does not end the waiting of the rest.
async fn fetch<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    (version, waiting): (i16, Waiting<'_>),
    message: &FetchRequest<'_>,
    ((isolation, reader), view): ((Isolation, Reader), Option<u8>),
    wanted: &[(PartitionRef, Wanted)],
) -> Vec<(usize, Outcome)> {
    let Placed { parts, places, mut outcomes } = placed(wiring, version, view, wanted).await;
    let max_bytes = u32::try_from(message.max_bytes).unwrap_or(0).min(wiring.settings.fetch_bytes_max);
    let min_bytes = u64::from(u32::try_from(message.min_bytes).unwrap_or(0).min(max_bytes));
    let waits = message.max_wait_ms > 0 && min_bytes > 0 && !waiting.patience.is_over();
    let wait_until = waits.then(|| wiring.runtime.now().plus_ms(i64::from(message.max_wait_ms)));
    let collector = Collector {
        runtime: &wiring.runtime,
        owners: &wiring.partitions,
        waits: &wiring.fetch.waits,
        isolation,
        reader,
        waiting,
    };
    let limits = Limits { max_bytes, min_bytes, wait_until };
    for (at, outcome) in collector.collect(&parts, limits).await {
        let (Some(place), Some(part)) = (places.get(at), parts.get(at)) else { continue };
        outcomes.push((*place, (Some(part.owner), outcome.map_err(|error| error.error_code()))));
    }
    // What was refused before stands before.
    outcomes.sort_by_key(|(place, _)| *place);
    outcomes
}

/// The partitions of a fetch, as far as this broker's image knows them.
struct Placed {
    parts: Vec<Part>,
    /// Of each part the place among the partitions that are wanted.
    places: Vec<usize>,
    /// What was refused, by the same places.
    outcomes: Vec<(usize, Outcome)>,
}

/// Finds the owner of each partition. Neighbours are mostly of one topic, which is looked for once.
async fn placed<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    version: i16,
    view: Option<u8>,
    wanted: &[(PartitionRef, Wanted)],
) -> Placed {
    let image = wiring.image.current();
    let mut pace = Pace::new(&wiring.runtime);
    let (mut parts, mut places) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(wanted.len()));
    let mut outcomes = Vec::new();
    let mut topic: Option<(&TopicRef, _)> = None;
    for (at, (partition, wanted)) in wanted.iter().enumerate() {
        let found = match topic {
            Some((known, found)) if *known == partition.topic => found,
            _ => find(&image, &partition.topic),
        };
        topic = Some((&partition.topic, found));
        match place(found, partition.partition, version) {
            Ok(place) => {
                parts.push(part(place, wanted, view));
                places.push(at);
            }
            Err(code) => outcomes.push((at, (None, Err(code)))),
        }
        pace.step().await;
    }
    Placed { parts, places, outcomes }
}

fn find<'a>(image: &'a Image, topic: &TopicRef) -> Result<&'a TopicImage, ErrorCode> {
    let (found, unknown) = match topic {
        TopicRef::Name(name) => (image.topic(name.get()), ErrorCode::UnknownTopicOrPartition),
        TopicRef::Id(id) => (image.topic_by_id(*id), ErrorCode::UnknownTopicId),
    };
    found.map(|topic| &**topic).ok_or(unknown)
}

fn place(found: Result<&TopicImage, ErrorCode>, partition: i32, version: i16) -> Result<Place, ErrorCode> {
    let topic = found?;
    let place = resolve::place(Some(topic), partition)?;
    let is_zstd = matches!(topic.config.compression, TopicCompression::Codec { codec: Codec::Zstd, .. });
    if is_zstd && version < ZSTD_FROM { Err(ErrorCode::UnsupportedCompressionType) } else { Ok(place) }
}

fn part(place: Place, wanted: &Wanted, view: Option<u8>) -> Part {
    let Place { owner, key } = place;
    let told = wanted.quiet.filter(|told| told.owner == owner && Some(told.view) == view);
    let part = FetchPart {
        discarded: 0,
        quiet: told.map(|told| ask::Quiet::new(told.moment)),
        key,
        fetch_offset: wanted.fetch_offset,
        max_bytes: u32::try_from(wanted.max_bytes).unwrap_or(0),
        current_leader_epoch: wanted.current_leader_epoch,
        last_fetched_epoch: wanted.last_fetched_epoch,
        log_start_offset: wanted.log_start_offset,
    };
    Part { owner, part }
}

/// The partitions of a request, each once: a later mention replaces an earlier one in its place, as in Kafka's map.
async fn wanted<R: ShardRuntime>(
    message: &FetchRequest<'_>,
    version: i16,
    pace: &mut Pace<'_, R>,
) -> Vec<(PartitionRef, Wanted)> {
    let mut places = HashMap::with_capacity(message.topics.partition_count());
    let mut all: Vec<(PartitionRef, Wanted)> = Vec::with_capacity(message.topics.partition_count());
    for (name, id, partitions) in message.topics.iter() {
        let topic = topic_ref(name, id, version);
        pace.step().await;
        for partition in partitions {
            pace.step().await;
            let wanted = Wanted {
                fetch_offset: Offset::new(partition.fetch_offset),
                max_bytes: partition.partition_max_bytes,
                current_leader_epoch: LeaderEpoch::new(partition.current_leader_epoch),
                last_fetched_epoch: LeaderEpoch::new(partition.last_fetched_epoch),
                log_start_offset: Offset::new(partition.log_start_offset),
                quiet: None,
            };
            let named = PartitionRef { topic: topic.clone(), partition: partition.partition };
            let place = *places.entry(named.clone()).or_insert(all.len());
            match all.get_mut(place) {
                Some(known) => known.1 = wanted,
                None => all.push((named, wanted)),
            }
        }
    }
    all
}

fn forgotten(topics: &[ForgottenTopic<'_>], version: i16) -> Vec<PartitionRef> {
    let of_topic = |topic: &ForgottenTopic<'_>| {
        let named = topic_ref(&topic.topic, topic.topic_id, version);
        let partition = move |partition: &i32| PartitionRef { topic: named.clone(), partition: *partition };
        topic.partitions.iter().map(partition).collect::<Vec<_>>()
    };
    topics.iter().flat_map(of_topic).collect()
}

fn topic_ref(name: &str, id: TopicId, version: i16) -> TopicRef {
    if version >= TOPIC_IDS_FROM { TopicRef::Id(id) } else { TopicRef::Name(TopicName::new(name)) }
}

/// Builds the answer, and tells the session what it says.
async fn answer<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    origin: &Origin,
    context: FetchContext,
    wanted: &[(PartitionRef, Wanted)],
    (view, outcomes): (Option<u8>, Vec<(usize, Outcome)>),
) -> Answer {
    let mut pace = Pace::new(&wiring.runtime);
    let told = pace.collect(outcomes.iter().map(|(place, outcome)| (*place, told(outcome, view)))).await;
    let (now, random) = (wiring.runtime.now(), wiring.runtime.random());
    let finished = wiring.fetch.sessions.borrow_mut().finish(now, random, context, wanted, &told);
    let finished = match finished {
        Ok(finished) => finished,
        Err(error) => {
            let session_id = match context {
                FetchContext::Incremental { session_id, .. } => session_id,
                FetchContext::Full { .. } | FetchContext::Sessionless => 0,
            };
            return refusal(wiring, origin, error, session_id);
        }
    };
    let image = wiring.image.current();
    let mut build =
        Build { origin, image: &image, topics: Vec::new(), records: Vec::new(), leaders: Vec::new() };
    for ((place, (_, outcome)), include) in outcomes.into_iter().zip(finished.include) {
        if include && let Some((partition, _)) = wanted.get(place) {
            build.push(partition, outcome);
        }
        pace.step().await;
    }
    let node_endpoints = if origin.version >= ENDPOINTS_FROM {
        resolve::endpoints(&image, &origin.listener, &build.leaders)
    } else {
        Vec::new()
    };
    let response = FetchResponse {
        throttle_time_ms: 0,
        error_code: 0,
        session_id: finished.session_id,
        responses: build.topics,
        node_endpoints,
    };
    count_errors(&wiring.metrics, &response, origin.version);
    reply_around((origin.version, origin.correlation_id), &response, build.records)
}

/// An answer that says only what is wrong with the session.
fn refusal<R: ShardRuntime>(
    wiring: &Wiring<R>,
    origin: &Origin,
    error: SessionError,
    session_id: i32,
) -> Answer {
    let error_code = error.error_code().get();
    let response = FetchResponse { error_code, session_id, ..FetchResponse::default() };
    count_errors(&wiring.metrics, &response, origin.version);
    reply_around((origin.version, origin.correlation_id), &response, [])
}

fn told((owner, outcome): &Outcome, view: Option<u8>) -> Told {
    match outcome {
        Ok(data) => Told {
            has_records: data.bytes > 0,
            high_watermark: data.high_watermark,
            log_start_offset: data.log_start_offset,
            is_error: false,
            redirects: data.diverging.is_some() || data.preferred_read_replica.is_some(),
            quiet: data.quiet.zip(*owner).zip(view).map(|((quiet, owner), view)| Quiet {
                owner,
                view,
                moment: quiet.get(),
            }),
        },
        Err(_) => Told {
            has_records: false,
            high_watermark: Offset::NONE,
            log_start_offset: Offset::NONE,
            is_error: true,
            redirects: false,
            quiet: None,
        },
    }
}

/// An answer under construction.
struct Build<'a> {
    origin: &'a Origin,
    image: &'a Image,
    topics: Vec<FetchableTopicResponse<'a>>,
    records: Vec<Span>,
    leaders: Vec<i32>,
}

impl<'a> Build<'a> {
    fn push(&mut self, partition: &'a PartitionRef, outcome: Result<FetchedData, ErrorCode>) {
        let data = match outcome {
            Ok(data) => self.data(partition.partition, data),
            Err(code) => self.error(partition, code),
        };
        let (name, id) = match &partition.topic {
            TopicRef::Name(name) => (name.get(), TopicId::ZERO),
            TopicRef::Id(id) => ("", *id),
        };
        // Neighbours of one topic share its entry; a rotated session may name a topic more than once, as in Kafka.
        match self.topics.last_mut().filter(|topic| topic.topic == name && topic.topic_id == id) {
            Some(topic) => topic.partitions.push(data),
            None => self.topics.push(FetchableTopicResponse {
                topic: name.into(),
                topic_id: id,
                partitions: vec![data],
            }),
        }
    }

    fn data(&mut self, partition_index: i32, data: FetchedData) -> PartitionData<'a> {
        let bytes = data.spans.iter().map(Span::len).sum();
        self.records.extend(data.spans);
        let diverging = data
            .diverging
            .map(|end| EpochEndOffset { epoch: end.leader_epoch.get(), end_offset: end.end_offset.get() });
        let aborted = |aborted: &ask::AbortedTransaction| AbortedTransaction {
            producer_id: aborted.producer_id.get(),
            first_offset: aborted.first_offset.get(),
        };
        PartitionData {
            partition_index,
            high_watermark: data.high_watermark.get(),
            last_stable_offset: data.last_stable_offset.get(),
            log_start_offset: data.log_start_offset.get(),
            diverging_epoch: diverging.unwrap_or_default(),
            aborted_transactions: data.aborted.map(|list| list.iter().map(aborted).collect()),
            preferred_read_replica: data.preferred_read_replica.map_or(-1, BrokerId::get),
            records: FetchedRecords::Held(bytes),
            ..PartitionData::default()
        }
    }

    fn error(&mut self, partition: &PartitionRef, code: ErrorCode) -> PartitionData<'a> {
        let version = self.origin.version;
        let mut data = PartitionData {
            partition_index: partition.partition,
            error_code: match code {
                ErrorCode::KafkaStorageError if version < STORAGE_ERROR_FROM => {
                    ErrorCode::NotLeaderOrFollower
                }
                code => code,
            }
            .get(),
            high_watermark: -1,
            ..PartitionData::default()
        };
        let names_leader = matches!(code, ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch);
        if names_leader && version >= ENDPOINTS_FROM {
            let topic = match &partition.topic {
                TopicRef::Name(name) => self.image.topic(name.get()),
                TopicRef::Id(id) => self.image.topic_by_id(*id),
            };
            if let Some(leader) = resolve::leader(topic.map(|topic| &**topic), partition.partition) {
                self.leaders.push(leader.leader_id);
                data.current_leader = leader;
            }
        }
        data
    }
}

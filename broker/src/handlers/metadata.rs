//! Metadata (3) and DescribeCluster (60): the cluster as clients of one listener see it (protocol.md 3.2, 3.9). Answers
//! are built from one image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::error::ErrorCode;
use protocol::messages::{
    DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse, MetadataRequest,
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use protocol::types::{BrokerId, TRANSACTION_STATE, TopicName};
use storage::io::Runtime;

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::errors::ToErrorCode;
use super::{Answer, Request};
use crate::admin::ask::{AdminAnswer, AdminAsk, CreateTopicError};
use crate::metadata::image::{BrokerImage, Image, PartitionImage, TopicImage};
use crate::shard::pace::Pace;
use crate::shard::{ShardId, ShardRuntime};

/// READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: what a topic supports, as bits of the
/// operations' codes. Without an authorizer everybody may do everything.
const TOPIC_OPERATIONS: i32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;

/// CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE.
const CLUSTER_OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

/// The operations were not asked for.
const NOT_ASKED: i32 = i32::MIN;

/// Who asks, and how.
#[derive(Clone, Copy, Debug)]
struct Asker<'a> {
    /// Version of the request.
    version: i16,
    /// Listener that it came in on.
    listener: &'a str,
}

/// Handles a Metadata; missing topics that may be created are, and the client is told to come back.
pub async fn handle<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<MetadataRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let version = request.api_version;
    let enabled = wiring.config.topics.auto_create_topics_enable;
    let mut pace = Pace::new(&wiring.runtime);
    let wanted = to_create(&message, version, (&wiring.image.current(), enabled), &mut pace).await;
    let missing = if wanted.is_empty() { BTreeMap::new() } else { create_missing(wiring, wanted).await };
    // One image for the whole answer, taken after the wait.
    let image = wiring.image.current();
    let asker = Asker { version, listener: &request.connection.listener };
    reply(request, &answer(&message, asker, (&image, &missing), &mut pace).await)
}

async fn create_missing<R: ShardRuntime>(
    wiring: &Wiring<R>,
    names: Vec<TopicName>,
) -> BTreeMap<TopicName, ErrorCode> {
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let created = match wiring.admin.ask(ShardId::CONTROL, by, AdminAsk::AutoCreate(names.clone())).await {
        Ok(AdminAnswer::AutoCreated(created)) => created,
        // Not known whether it was created: the client asks again.
        Ok(_) | Err(_) => {
            return names.into_iter().map(|name| (name, ErrorCode::LeaderNotAvailable)).collect();
        }
    };
    names.into_iter().zip(created.into_iter().map(creation_code)).collect()
}

/// Handles a DescribeCluster.
pub fn describe_cluster<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    match decode::<DescribeClusterRequest>(request) {
        Ok(message) => {
            let image = wiring.image.current();
            reply(request, &cluster_answer(&message, &request.connection.listener, &image))
        }
        Err(malformed) => malformed.into(),
    }
}

/// Names that the request may create and the image does not have.
async fn to_create<R: Runtime>(
    request: &MetadataRequest<'_>,
    version: i16,
    (image, enabled): (&Image, bool),
    pace: &mut Pace<'_, R>,
) -> Vec<TopicName> {
    let allowed =
        enabled && (version < 4 || request.allow_auto_topic_creation) && !request.is_all_topics(version);
    if !allowed || is_malformed(request, version) || is_by_id(request) {
        return Vec::new();
    }
    let mut names = BTreeSet::new();
    for name in request.topics.iter().flatten().filter_map(|topic| topic.name.as_deref()) {
        pace.step().await;
        if TopicName::is_legal(name) && image.topic(name).is_none() {
            let name = TopicName::new(name);
            // It has settings of its own, and nobody coordinates transactions yet.
            if name.get() != TRANSACTION_STATE {
                names.insert(name);
            }
        }
    }
    pace.collect(names.into_iter()).await
}

/// What a client is told of a topic that was, or was not, created for it: retry, unless it cannot be created at all.
fn creation_code(created: Result<(), CreateTopicError>) -> ErrorCode {
    match created {
        Ok(()) => ErrorCode::LeaderNotAvailable,
        Err(error) => match error.error_code() {
            ErrorCode::TopicAlreadyExists | ErrorCode::RequestTimedOut => ErrorCode::LeaderNotAvailable,
            code => code,
        },
    }
}

/// Versions 10 and 11 have the field, but only version 12 may use it.
fn is_malformed(request: &MetadataRequest<'_>, version: i16) -> bool {
    let wrong = |topic: &protocol::messages::MetadataRequestTopic<'_>| {
        !topic.topic_id.is_zero() || topic.name.is_none()
    };
    (10..12).contains(&version) && request.topics.iter().flatten().any(wrong)
}

/// One id makes the broker ignore all names.
fn is_by_id(request: &MetadataRequest<'_>) -> bool {
    request.topics.iter().flatten().any(|topic| !topic.topic_id.is_zero())
}

/// The answer. `missing` says what to tell of names that the image does not have; others are unknown.
async fn answer<'a, R: Runtime>(
    request: &MetadataRequest<'a>,
    asker: Asker<'_>,
    (image, missing): (&'a Image, &BTreeMap<TopicName, ErrorCode>),
    pace: &mut Pace<'_, R>,
) -> MetadataResponse<'a> {
    if is_malformed(request, asker.version) {
        return malformed(request);
    }
    let mut topics = if request.is_all_topics(asker.version) {
        let mut topics = Vec::with_capacity(image.topics.len());
        for topic in image.topics.values() {
            topics.push(topic_of(topic, asker, image, pace).await);
        }
        topics
    } else if is_by_id(request) {
        topics_by_id(request, asker, image, pace).await
    } else {
        topics_by_name(request, asker, (image, missing), pace).await
    };
    let include = request.include_topic_authorized_operations;
    for topic in &mut topics {
        let is_known = topic.error_code == ErrorCode::None.get();
        topic.topic_authorized_operations = if include && is_known { TOPIC_OPERATIONS } else { NOT_ASKED };
    }
    let cluster = if request.include_cluster_authorized_operations { CLUSTER_OPERATIONS } else { NOT_ASKED };
    MetadataResponse {
        throttle_time_ms: 0,
        brokers: image.brokers.values().filter_map(|broker| broker_of(broker, asker.listener)).collect(),
        cluster_id: Some((&*image.cluster_id).into()),
        controller_id: image.controller.get(),
        topics,
        cluster_authorized_operations: cluster,
        error_code: ErrorCode::None.get(),
    }
}

async fn topics_by_id<'a, R: Runtime>(
    request: &MetadataRequest<'a>,
    asker: Asker<'_>,
    image: &'a Image,
    pace: &mut Pace<'_, R>,
) -> Vec<MetadataResponseTopic<'a>> {
    let mut ids = BTreeSet::new();
    for id in request.topics.iter().flatten().map(|topic| topic.topic_id).filter(|id| !id.is_zero()) {
        ids.insert(id);
        pace.step().await;
    }
    let mut topics = Vec::with_capacity(ids.len());
    for id in ids {
        topics.push(match image.topic_by_id(id) {
            Some(topic) => topic_of(topic, asker, image, pace).await,
            None => MetadataResponseTopic { topic_id: id, ..failed(None, ErrorCode::UnknownTopicId) },
        });
        pace.step().await;
    }
    topics
}

async fn topics_by_name<'a, R: Runtime>(
    request: &MetadataRequest<'a>,
    asker: Asker<'_>,
    (image, missing): (&'a Image, &BTreeMap<TopicName, ErrorCode>),
    pace: &mut Pace<'_, R>,
) -> Vec<MetadataResponseTopic<'a>> {
    let mut seen = BTreeSet::new();
    let mut topics = Vec::with_capacity(request.topics.as_ref().map_or(0, Vec::len));
    for name in request.topics.iter().flatten().map(|topic| topic.name.clone()) {
        pace.step().await;
        let Some(name) = name else {
            topics.push(failed(Some("".into()), ErrorCode::InvalidRequest));
            continue;
        };
        if !seen.insert(name.clone()) {
            continue;
        }
        topics.push(match image.topic(&name) {
            Some(topic) => topic_of(topic, asker, image, pace).await,
            None if !TopicName::is_legal(&name) => failed(Some(name), ErrorCode::InvalidTopicException),
            None => {
                let code = missing.get(&*name).copied().unwrap_or(ErrorCode::UnknownTopicOrPartition);
                failed(Some(name), code)
            }
        });
    }
    topics
}

fn malformed<'a>(request: &MetadataRequest<'a>) -> MetadataResponse<'a> {
    let refused = |topic: &protocol::messages::MetadataRequestTopic<'a>| MetadataResponseTopic {
        topic_id: topic.topic_id,
        ..failed(Some(topic.name.clone().unwrap_or_default()), ErrorCode::InvalidRequest)
    };
    MetadataResponse {
        throttle_time_ms: 0,
        brokers: Vec::new(),
        cluster_id: None,
        controller_id: BrokerId::NONE.get(),
        topics: request.topics.iter().flatten().map(refused).collect(),
        cluster_authorized_operations: NOT_ASKED,
        error_code: ErrorCode::InvalidRequest.get(),
    }
}

fn failed(name: Option<protocol::codec::Str<'_>>, code: ErrorCode) -> MetadataResponseTopic<'_> {
    MetadataResponseTopic {
        error_code: code.get(),
        is_internal: name.as_deref().is_some_and(|name| TopicName::new(name).is_internal()),
        name,
        topic_id: protocol::types::TopicId::ZERO,
        partitions: Vec::new(),
        topic_authorized_operations: NOT_ASKED,
    }
}

fn broker_of<'a>(broker: &'a Arc<BrokerImage>, listener: &str) -> Option<MetadataResponseBroker<'a>> {
    let endpoint = broker.endpoint(listener)?;
    Some(MetadataResponseBroker {
        node_id: broker.id.get(),
        host: (&*endpoint.host).into(),
        port: i32::from(endpoint.port),
        rack: broker.rack.as_deref().map(Into::into),
    })
}

async fn topic_of<'a, R: Runtime>(
    topic: &'a Arc<TopicImage>,
    asker: Asker<'_>,
    image: &Image,
    pace: &mut Pace<'_, R>,
) -> MetadataResponseTopic<'a> {
    let known = (0..).zip(&topic.partitions).filter(|(_, partition)| partition.is_known());
    let partitions = known.map(|(index, partition)| partition_of(index, partition, asker, image));
    MetadataResponseTopic {
        error_code: ErrorCode::None.get(),
        name: Some(topic.name.get().into()),
        topic_id: topic.id,
        is_internal: topic.name.is_internal(),
        partitions: pace.collect(partitions).await,
        topic_authorized_operations: NOT_ASKED,
    }
}

fn partition_of(
    index: i32,
    partition: &PartitionImage,
    asker: Asker<'_>,
    image: &Image,
) -> MetadataResponsePartition {
    let has_endpoint =
        |id: &BrokerId| image.brokers.get(id).is_some_and(|b| b.endpoint(asker.listener).is_some());
    // Version 0 hides replicas that cannot be reached, and says so by an error.
    let shown = |ids: &[BrokerId]| -> Vec<i32> {
        ids.iter().filter(|id| asker.version > 0 || has_endpoint(id)).map(|id| id.get()).collect()
    };
    let (replica_nodes, isr_nodes) = (shown(&partition.replicas), shown(&partition.isr));
    let is_reachable = has_endpoint(&partition.leader);
    let error = if is_reachable {
        let hidden = replica_nodes.len() < partition.replicas.len() || isr_nodes.len() < partition.isr.len();
        if hidden { ErrorCode::ReplicaNotAvailable } else { ErrorCode::None }
    } else if image.brokers.contains_key(&partition.leader) && asker.version >= 6 {
        ErrorCode::ListenerNotFound
    } else {
        ErrorCode::LeaderNotAvailable
    };
    let is_offline = |id: &&BrokerId| partition.offline.contains(id) || !image.brokers.contains_key(id);
    MetadataResponsePartition {
        error_code: error.get(),
        partition_index: index,
        leader_id: if is_reachable { partition.leader.get() } else { BrokerId::NONE.get() },
        leader_epoch: partition.leader_epoch.get(),
        replica_nodes,
        isr_nodes,
        offline_replicas: partition.replicas.iter().filter(is_offline).map(|id| id.get()).collect(),
    }
}

/// Endpoint types of DescribeCluster.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

/// The answer to DescribeCluster.
fn cluster_answer<'a>(
    request: &DescribeClusterRequest,
    listener: &str,
    image: &'a Image,
) -> DescribeClusterResponse<'a> {
    let refused = match request.endpoint_type {
        BROKERS => None,
        CONTROLLERS => Some((
            ErrorCode::MismatchedEndpointType,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )),
        _ => Some((ErrorCode::UnsupportedEndpointType, "Unsupported endpoint type")),
    };
    if let Some((code, message)) = refused {
        return DescribeClusterResponse {
            throttle_time_ms: 0,
            error_code: code.get(),
            error_message: Some(message.into()),
            endpoint_type: BROKERS,
            cluster_id: "".into(),
            controller_id: BrokerId::NONE.get(),
            brokers: Vec::new(),
            cluster_authorized_operations: NOT_ASKED,
        };
    }
    let brokers: Vec<DescribeClusterBroker<'a>> = image
        .brokers
        .values()
        .filter_map(|broker| broker_of(broker, listener))
        .map(|broker| DescribeClusterBroker {
            broker_id: broker.node_id,
            host: broker.host,
            port: broker.port,
            rack: broker.rack,
            is_fenced: false,
        })
        .collect();
    let controller = image.controller.get();
    let is_listed = brokers.iter().any(|broker| broker.broker_id == controller);
    let asked = request.include_cluster_authorized_operations;
    DescribeClusterResponse {
        throttle_time_ms: 0,
        error_code: ErrorCode::None.get(),
        error_message: None,
        endpoint_type: BROKERS,
        cluster_id: (&*image.cluster_id).into(),
        controller_id: if is_listed { controller } else { BrokerId::NONE.get() },
        brokers,
        cluster_authorized_operations: if asked { CLUSTER_OPERATIONS } else { NOT_ASKED },
    }
}

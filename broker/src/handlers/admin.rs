//! Requests about the cluster as a whole, from decoded body to answer: what is pure stands in `metadata`, `topics`
//! and their neighbours; this file reads the image, asks shard 0, and waits.

use std::collections::BTreeMap;

use protocol::api::{self, ApiKey};
use protocol::codec::Writer;
use protocol::error::ErrorCode;
use protocol::messages::{
    ApiVersionsRequest, CreatableTopicConfigs, CreatePartitionsRequest, CreateTopicsRequest,
    DeleteTopicsRequest, DescribeClusterRequest, FindCoordinatorRequest, InitProducerIdRequest, Message,
    MetadataRequest,
};
use protocol::types::{MonoTime, TopicName};
use smallvec::smallvec;
use storage::io::Span;

use super::dispatch::{Wiring, decode, reply};
use super::metadata::Asker;
use super::{Answer, Request, Response, api_versions, find_coordinator, init_producer_id, metadata, topics};
use crate::admin::ask::{AdminAnswer, AdminAsk};
use crate::config::describe::Layers;
use crate::shard::{AskError, NEVER, ShardId, ShardRuntime};

/// How long asks wait that carry no timeout of the client's, in milliseconds: as long as Kafka's own clients do.
const ASK_WAIT_MS: i64 = 30_000;

/// A shard that has ended closes its connections; this one is about to.
const STOPPING: Answer = Answer::Close("broker is stopping");

async fn ask<R: ShardRuntime>(
    wiring: &Wiring<R>,
    by: MonoTime,
    ask: AdminAsk,
) -> Result<AdminAnswer, AskError> {
    wiring.admin.ask(ShardId::CONTROL, by, ask).await
}

/// ApiVersions: the one request that is answered in any version.
pub fn api_versions<R: ShardRuntime>(_: &Wiring<R>, request: &Request) -> Answer {
    let is_served = api::served(ApiKey::ApiVersions).is_some_and(|api| api.serves(request.api_version));
    if is_served {
        return match decode::<ApiVersionsRequest<'_>>(request) {
            Ok(message) => reply(request, &api_versions::answer(&message, request.api_version)),
            Err(malformed) => malformed.into(),
        };
    }
    let mut writer = Writer::new();
    api::response_header(ApiKey::ApiVersions, 0, request.correlation_id, &mut writer);
    api_versions::unsupported().encode(&mut writer, 0);
    Answer::Reply(Response { spans: smallvec![Span::Memory(writer.into_bytes().freeze())] })
}

/// Metadata; missing topics that may be created are, and the client is told to come back.
pub async fn metadata<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<MetadataRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let version = request.api_version;
    let enabled = wiring.config.topics.auto_create_topics_enable;
    let wanted = metadata::to_create(&message, version, &wiring.image.current(), enabled);
    let missing = if wanted.is_empty() { BTreeMap::new() } else { create_missing(wiring, wanted).await };
    // One image for the whole answer, taken after the wait.
    let image = wiring.image.current();
    let asker = Asker { version, listener: &request.connection.listener };
    reply(request, &metadata::answer(&message, asker, &image, &missing))
}

async fn create_missing<R: ShardRuntime>(
    wiring: &Wiring<R>,
    names: Vec<TopicName>,
) -> BTreeMap<TopicName, ErrorCode> {
    let by = wiring.runtime.now().plus_ms(ASK_WAIT_MS);
    let created = match ask(wiring, by, AdminAsk::AutoCreate(names.clone())).await {
        Ok(AdminAnswer::AutoCreated(created)) => created,
        // Not known whether it was created: the client asks again.
        Ok(_) | Err(_) => {
            return names.into_iter().map(|name| (name, ErrorCode::LeaderNotAvailable)).collect();
        }
    };
    names.into_iter().zip(created.into_iter().map(metadata::creation_code)).collect()
}

/// DescribeCluster.
pub fn describe_cluster<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    match decode::<DescribeClusterRequest>(request) {
        Ok(message) => {
            let image = wiring.image.current();
            reply(request, &metadata::describe_cluster(&message, &request.connection.listener, &image))
        }
        Err(malformed) => malformed.into(),
    }
}

/// FindCoordinator.
pub fn find_coordinator<R: ShardRuntime>(_: &Wiring<R>, request: &Request) -> Answer {
    match decode::<FindCoordinatorRequest<'_>>(request) {
        Ok(message) => reply(request, &find_coordinator::answer(&message, request.api_version)),
        Err(malformed) => malformed.into(),
    }
}

/// InitProducerId.
pub async fn init_producer_id<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let wanted = match decode::<InitProducerIdRequest<'_>>(request) {
        Ok(message) => init_producer_id::wanted(&message),
        Err(malformed) => return malformed.into(),
    };
    let outcome = match wanted {
        init_producer_id::Wanted::Refused(error) => Err(error),
        init_producer_id::Wanted::ProducerId => {
            let by = wiring.runtime.now().plus_ms(ASK_WAIT_MS);
            wiring.producer_ids.next(&wiring.admin, by).await
        }
    };
    reply(request, &init_producer_id::response(outcome))
}

/// CreateTopics. The wait for leaders ends by the client's timeout on shard 0, so the ask itself has none.
pub async fn create_topics<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<CreateTopicsRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let wish = topics::create_topics_wish(&message, request.received);
    let Ok(AdminAnswer::Created(outcomes)) = ask(wiring, NEVER, AdminAsk::CreateTopics(wish)).await else {
        return STOPPING;
    };
    let configs_of = |overrides: &BTreeMap<String, String>| {
        let entries = Layers::fixed(&wiring.config.settings).topic_entries(overrides);
        entries
            .into_iter()
            .map(|entry| CreatableTopicConfigs {
                name: entry.name.into(),
                value: entry.value.map(Into::into),
                read_only: false,
                config_source: entry.source.code(),
                is_sensitive: entry.is_sensitive,
            })
            .collect()
    };
    reply(request, &topics::create_topics_answer(&message, outcomes, configs_of))
}

/// DeleteTopics.
pub async fn delete_topics<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<DeleteTopicsRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let before = wiring.image.current();
    let version = request.api_version;
    let (named, wish) = match topics::delete_topics_wish(&message, version, request.received, &before) {
        Ok(wish) => wish,
        Err(refused) => return reply(request, &refused),
    };
    let Ok(AdminAnswer::Deleted(outcomes)) = ask(wiring, NEVER, AdminAsk::DeleteTopics(wish)).await else {
        return STOPPING;
    };
    reply(request, &topics::delete_topics_answer(named, outcomes, version, &before))
}

/// CreatePartitions.
pub async fn create_partitions<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<CreatePartitionsRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let wish = topics::create_partitions_wish(&message, request.received);
    let Ok(AdminAnswer::Grown(outcomes)) = ask(wiring, NEVER, AdminAsk::CreatePartitions(wish)).await else {
        return STOPPING;
    };
    reply(request, &topics::create_partitions_answer(&message, outcomes))
}

//! DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: wire to domain and back (protocol.md 3.8). Decides nothing:
//! what is told stands in `config::describe`, what may change in `admin::configs`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;

use protocol::codec::short_text;
use protocol::error::ErrorCode;
use protocol::messages::configs::{
    AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse, DescribeConfigsRequest,
    DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
    DescribeConfigsSynonym,
};
use protocol::messages::incremental_alter_configs::{
    AlterConfigsResourceResponse as IncrementalResourceResponse, AlterableConfig,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use protocol::types::{BrokerId, TopicName};
use storage::io::Runtime;

use super::dispatch::{ASK_MS_MAX, deadline, decode, reply};
use super::errors::ToErrorCode;
use super::{Answer, Request};
use crate::admin::ask::{AdminAnswer, AdminAsk};
use crate::admin::configs::{AlterConfigsError, AlterTopic, Alteration, Mode};
use crate::admin::service::AdminService;
use crate::config::broker::BrokerConfig;
use crate::config::describe::{Entry, Layers, Source};
use crate::config::dynamic::{self, Change, Operation};
use crate::metadata::cell::ImageCell;
use crate::metadata::image::Image;
use crate::shard::{AskError, ShardId, ShardRuntime, Shards};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;

/// A code and what goes with it.
type Refusal = (ErrorCode, Option<String>);

/// Bytes of entries in one answer at most, so that naming one topic a million times does not exhaust the memory; beyond
/// it resources are refused.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Nanoseconds of work between two turns.
const SLICE_NANOS: u64 = 50_000;

/// Handles DescribeConfigs (32).
pub async fn describe_configs<R: ShardRuntime>(
    runtime: &R,
    image: &ImageCell,
    broker: &BrokerConfig,
    request: Request,
) -> Answer {
    let message: DescribeConfigsRequest<'_> = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let image = image.current();
    reply(&request, &describe(runtime, &message, &image, broker).await)
}

/// Handles AlterConfigs (33).
pub async fn alter_configs<R: ShardRuntime>(
    runtime: &R,
    image: &ImageCell,
    admin: &Shards<R, AdminService>,
    request: Request,
) -> Answer {
    let message: AlterConfigsRequest<'_> = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let self_id = image.current().self_id;
    reply(&request, &alter(&message, self_id, |wish| ask(runtime, admin, wish)).await)
}

/// Handles IncrementalAlterConfigs (44).
pub async fn incremental_alter_configs<R: ShardRuntime>(
    runtime: &R,
    image: &ImageCell,
    admin: &Shards<R, AdminService>,
    request: Request,
) -> Answer {
    let message: IncrementalAlterConfigsRequest<'_> = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let self_id = image.current().self_id;
    reply(&request, &alter_incrementally(&message, self_id, |wish| ask(runtime, admin, wish)).await)
}

/// Carries a wish to shard 0.
async fn ask<R: ShardRuntime>(
    runtime: &R,
    admin: &Shards<R, AdminService>,
    wish: AlterTopic,
) -> Result<(), Refusal> {
    let by = deadline(runtime, ASK_MS_MAX);
    match admin.ask(ShardId::CONTROL, by, AdminAsk::AlterTopic(wish)).await {
        Ok(AdminAnswer::Altered(result)) => result.map_err(|error| refusal_of(&error)),
        // Another kind of answer would be a fault of ours.
        Ok(_) => Err((ErrorCode::UnknownServerError, None)),
        // To a wish about configurations "not leader" would say nothing: whether it was done is open, as after a timeout.
        Err(error @ (AskError::Busy | AskError::Timeout | AskError::Stopped)) => {
            Err((ErrorCode::RequestTimedOut, Some(error.to_string())))
        }
    }
}

/// Answers DescribeConfigs from one image, a slice at a time.
pub async fn describe<'a, R: Runtime>(
    runtime: &R,
    request: &DescribeConfigsRequest<'a>,
    image: &Image,
    broker: &BrokerConfig,
) -> DescribeConfigsResponse<'a> {
    let mut results = Vec::with_capacity(request.resources.len());
    let mut bytes_left = ANSWER_BYTES_MAX;
    let mut since = runtime.now();
    for resource in &request.resources {
        let described = if bytes_left == 0 {
            Err((ErrorCode::InvalidRequest, None))
        } else {
            entries_of(resource, image, broker)
        };
        let (error, entries) = match described {
            Ok(entries) => ((ErrorCode::None, None), entries),
            Err(refusal) => (refusal, Vec::new()),
        };
        let configs: Vec<_> = entries.into_iter().map(|entry| config_of(entry, request)).collect();
        bytes_left = bytes_left.saturating_sub(configs.iter().map(weight).sum());
        results.push(DescribeConfigsResult {
            error_code: error.0.get(),
            error_message: error.1.map(short_text).map(Cow::Owned),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            configs,
        });
        if runtime.now().nanos_since(since) > SLICE_NANOS {
            runtime.turn().await;
            since = runtime.now();
        }
    }
    DescribeConfigsResponse { throttle_time_ms: 0, results }
}

/// Bytes that a described key takes in memory, about.
fn weight(config: &DescribeConfigsResourceResult<'_>) -> usize {
    let text = |text: &Option<Cow<'_, str>>| text.as_ref().map_or(0, |text| text.len());
    let synonyms: usize =
        config.synonyms.iter().map(|s| s.name.len() + text(&s.value) + size_of_val(s)).sum();
    size_of_val(config) + config.name.len() + text(&config.value) + text(&config.documentation) + synonyms
}

fn invalid(message: impl Into<String>) -> Refusal {
    (ErrorCode::InvalidRequest, Some(message.into()))
}

/// The keys of a resource that were asked for.
fn entries_of(
    resource: &DescribeConfigsResource<'_>,
    image: &Image,
    broker: &BrokerConfig,
) -> Result<Vec<Entry>, Refusal> {
    let layers = Layers::fixed(&broker.settings);
    let name = resource.resource_name.as_ref();
    let mut entries = match resource.resource_type {
        TOPIC if !TopicName::is_legal(name) => {
            return Err((
                ErrorCode::InvalidTopicException,
                Some(format!("Topic name '{name}' is not legal")),
            ));
        }
        TOPIC => match image.topic(name) {
            Some(topic) => layers.topic_entries(&topic.overrides),
            None => return Err((ErrorCode::UnknownTopicOrPartition, None)),
        },
        BROKER if name.is_empty() => layers.default_broker_entries(),
        BROKER => {
            own_id(name, image.self_id, "expected {} or empty string,")?;
            layers.broker_entries()
        }
        BROKER_LOGGER => {
            own_id(name, image.self_id, "expected {}")?;
            return Err(invalid("Loggers are not described: ODRADEK_LOG filters the log at start"));
        }
        other => return Err(invalid(format!("Unsupported resource type: {other}"))),
    };
    if let Some(wanted) = resource.configuration_keys.as_deref().filter(|keys| !keys.is_empty()) {
        entries.retain(|entry| wanted.iter().any(|key| *key == entry.name));
    }
    Ok(entries)
}

/// Whether a name is the id of this broker; `expectation` says what would be right, with `{}` for the id.
fn own_id(name: &str, self_id: BrokerId, expectation: &str) -> Result<(), Refusal> {
    match name.parse::<i32>() {
        Ok(id) if id == self_id.get() => Ok(()),
        Ok(_) => {
            let expected = expectation.replace("{}", &self_id.to_string());
            Err(invalid(format!("Unexpected broker id, {expected} but received {name}")))
        }
        Err(_) => Err(invalid(format!("Broker id must be an integer, but it is: {name}"))),
    }
}

fn config_of<'a>(entry: Entry, request: &DescribeConfigsRequest<'_>) -> DescribeConfigsResourceResult<'a> {
    let synonyms = if request.include_synonyms { entry.synonyms } else { Vec::new() };
    DescribeConfigsResourceResult {
        name: Cow::Owned(entry.name),
        value: entry.value.map(Cow::Owned),
        read_only: entry.is_read_only,
        is_default: entry.source == Source::Default,
        config_source: entry.source.code(),
        is_sensitive: entry.is_sensitive,
        synonyms: synonyms
            .into_iter()
            .map(|synonym| DescribeConfigsSynonym {
                name: Cow::Owned(synonym.name),
                value: synonym.value.map(Cow::Owned),
                source: synonym.source.code(),
            })
            .collect(),
        config_type: entry.kind.map_or(0, |kind| kind.code()),
        documentation: entry.doc.filter(|_| request.include_documentation).map(Cow::Borrowed),
    }
}

/// Answers AlterConfigs; `ask` carries a wish to shard 0 and answers with its code.
pub async fn alter<'a, F>(
    request: &AlterConfigsRequest<'a>,
    self_id: BrokerId,
    ask: impl Fn(AlterTopic) -> F,
) -> AlterConfigsResponse<'a>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let mode = mode(request.validate_only);
    let seen = counts(request.resources.iter().map(|r| (r.resource_type, r.resource_name.as_ref())));
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        let name = resource.resource_name.as_ref();
        let shape =
            resource.configs.iter().map(|config| (config.name.as_ref(), true, config.value.is_some()));
        let checked = check(&seen, resource.resource_type, name).and_then(|()| {
            dynamic::check_shape(shape).map_err(|error| invalid(error.to_string()))?;
            target(resource.resource_type, name, self_id, resource.configs.is_empty(), false)
        });
        let result = match checked {
            Ok(Target::Topic) => {
                let pairs = resource.configs.iter().map(|config| {
                    (config.name.to_string(), config.value.as_deref().unwrap_or_default().to_owned())
                });
                let alteration = Alteration::Replace(pairs.collect());
                ask(AlterTopic { topic: name.to_owned(), alteration, mode }).await
            }
            Ok(Target::Unchanged) => Ok(()),
            Err(refusal) => Err(refusal),
        };
        let (error_code, error_message) = outcome(result);
        responses.push(AlterConfigsResourceResponse {
            error_code,
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
        });
    }
    AlterConfigsResponse { throttle_time_ms: 0, responses }
}

/// Answers IncrementalAlterConfigs; `ask` carries a wish to shard 0 and answers with its code.
pub async fn alter_incrementally<'a, F>(
    request: &IncrementalAlterConfigsRequest<'a>,
    self_id: BrokerId,
    ask: impl Fn(AlterTopic) -> F,
) -> IncrementalAlterConfigsResponse<'a>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let mode = mode(request.validate_only);
    let seen = counts(request.resources.iter().map(|r| (r.resource_type, r.resource_name.as_ref())));
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        let name = resource.resource_name.as_ref();
        let planned = check(&seen, resource.resource_type, name).and_then(|()| {
            let changes = changes_of(&resource.configs)?;
            Ok((target(resource.resource_type, name, self_id, changes.is_empty(), true)?, changes))
        });
        let result = match planned {
            Ok((Target::Topic, changes)) => {
                let alteration = Alteration::Change(changes);
                ask(AlterTopic { topic: name.to_owned(), alteration, mode }).await
            }
            Ok((Target::Unchanged, _)) => Ok(()),
            Err(refusal) => Err(refusal),
        };
        let (error_code, error_message) = outcome(result);
        responses.push(IncrementalResourceResponse {
            error_code,
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
        });
    }
    IncrementalAlterConfigsResponse { throttle_time_ms: 0, responses }
}

const fn mode(validate_only: bool) -> Mode {
    if validate_only { Mode::Validate } else { Mode::Apply }
}

fn outcome<'a>(result: Result<(), Refusal>) -> (i16, Option<Cow<'a, str>>) {
    match result {
        Ok(()) => (ErrorCode::None.get(), None),
        Err((code, message)) => (code.get(), message.map(short_text).map(Cow::Owned)),
    }
}

/// How often each resource is named.
fn counts<'a>(resources: impl Iterator<Item = (i8, &'a str)>) -> BTreeMap<(i8, &'a str), usize> {
    let mut counts = BTreeMap::new();
    for resource in resources {
        let count: &mut usize = counts.entry(resource).or_default();
        *count = count.saturating_add(1);
    }
    counts
}

fn check(seen: &BTreeMap<(i8, &str), usize>, resource_type: i8, name: &str) -> Result<(), Refusal> {
    match seen.get(&(resource_type, name)) {
        Some(1) => Ok(()),
        _ => Err(invalid("Each resource must appear at most once.")),
    }
}

fn changes_of(configs: &[AlterableConfig<'_>]) -> Result<Vec<Change>, Refusal> {
    let mut changes = Vec::with_capacity(configs.len());
    for config in configs {
        let operation = Operation::new(config.config_operation)
            .ok_or_else(|| invalid(format!("Unknown operations type {}", config.config_operation)))?;
        changes.push(Change {
            name: config.name.to_string(),
            operation,
            value: config.value.as_deref().map(str::to_owned),
        });
    }
    let shape =
        changes.iter().map(|c| (c.name.as_str(), c.operation != Operation::Delete, c.value.is_some()));
    dynamic::check_shape(shape).map_err(|error| invalid(error.to_string()))?;
    Ok(changes)
}

/// What a resource leads to.
enum Target {
    /// A topic, which shard 0 knows.
    Topic,
    /// Nothing: no key was named.
    Unchanged,
}

fn target(
    resource_type: i8,
    name: &str,
    self_id: BrokerId,
    is_empty: bool,
    is_incremental: bool,
) -> Result<Target, Refusal> {
    match resource_type {
        TOPIC if name.is_empty() => Err(invalid("Default topic resources are not allowed.")),
        TOPIC => Ok(Target::Topic),
        BROKER => {
            if !name.is_empty() {
                own_id(name, self_id, "expected {},")?;
            }
            if is_empty {
                return Ok(Target::Unchanged);
            }
            Err(invalid(
                "This release does not change broker configs at run time: set them in the configuration and restart",
            ))
        }
        BROKER_LOGGER if is_incremental => Err(invalid(
            "This release does not change loggers at run time: ODRADEK_LOG filters the log at start",
        )),
        other => Err(invalid(format!("Unknown resource type {other}"))),
    }
}

/// What clients are told when shard 0 refuses a wish.
fn refusal_of(error: &AlterConfigsError) -> Refusal {
    (error.error_code(), Some(error.to_string()))
}

#[cfg(test)]
mod tests;

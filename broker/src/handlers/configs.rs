//! DescribeConfigs (in [`mod@describe`]), AlterConfigs, IncrementalAlterConfigs: wire to domain and back (protocol.md 3.8).
//! Decides nothing: what may change stands in `admin::configs`.

mod describe;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::future::Future;

use protocol::codec::{Str, short_text};
use protocol::error::ErrorCode;
use protocol::messages::configs::{
    AlterConfigsRequest, AlterConfigsResource, AlterConfigsResourceResponse, AlterConfigsResponse,
    DescribeConfigsRequest,
};
use protocol::messages::incremental_alter_configs::{
    AlterConfigsResource as IncrementalResource, AlterConfigsResourceResponse as IncrementalResourceResponse,
    AlterableConfig, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use protocol::types::BrokerId;
use storage::io::Runtime;

use self::describe::describe;
use super::dispatch::{ASK_MS_MAX, deadline, decode, reply};
use super::errors::ToErrorCode;
use super::{Answer, Request};
use crate::admin::ask::{AdminAnswer, AdminAsk};
use crate::admin::configs::{AlterConfigsError, AlterTopic, Alteration, Mode};
use crate::admin::service::AdminService;
use crate::config::broker::BrokerConfig;
use crate::config::dynamic::{self, Change, Operation};
use crate::metadata::cell::ImageCell;
use crate::shard::pace::Pace;
use crate::shard::{AskError, ShardId, ShardRuntime, Shards};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;

/// A code and what goes with it.
type Refusal = (ErrorCode, Option<String>);

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
    let version = request.api_version;
    reply(&request, &describe(runtime, &message, version, (&image, broker)).await)
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
    let mut pace = Pace::new(runtime);
    reply(&request, &alter(&message, self_id, &mut pace, |wish| ask(runtime, admin, wish)).await)
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
    let mut pace = Pace::new(runtime);
    let ask = |wish| ask(runtime, admin, wish);
    reply(&request, &alter_incrementally(&message, self_id, &mut pace, ask).await)
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

fn invalid(message: impl Into<String>) -> Refusal {
    (ErrorCode::InvalidRequest, Some(message.into()))
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

/// Answers AlterConfigs; `ask` carries a wish to shard 0 and answers with its code.
async fn alter<'a, R: Runtime, F>(
    request: &AlterConfigsRequest<'a>,
    self_id: BrokerId,
    pace: &mut Pace<'_, R>,
    ask: impl Fn(AlterTopic) -> F,
) -> AlterConfigsResponse<'a>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let plan = |resource: &AlterConfigsResource<'a>| {
        let configs = &resource.configs;
        let shape = configs.iter().map(|config| (config.name.as_ref(), true, config.value.is_some()));
        dynamic::check_shape(shape).map_err(|error| invalid(error.to_string()))?;
        let target =
            target(resource.resource_type, &resource.resource_name, self_id, configs.is_empty(), false)?;
        let pairs = configs
            .iter()
            .map(|config| (config.name.to_string(), config.value.as_deref().unwrap_or_default().to_owned()));
        Ok(target.then(|| Alteration::Replace(pairs.collect())))
    };
    let key = |resource: &AlterConfigsResource<'a>| (resource.resource_type, resource.resource_name.clone());
    let outcomes = outcomes(&request.resources, (key, plan), mode(request.validate_only), pace, ask).await;
    let responses =
        outcomes.into_iter().map(|((resource_type, resource_name), (error_code, error_message))| {
            AlterConfigsResourceResponse { error_code, error_message, resource_type, resource_name }
        });
    AlterConfigsResponse { throttle_time_ms: 0, responses: pace.collect(responses).await }
}

/// Answers IncrementalAlterConfigs; `ask` carries a wish to shard 0 and answers with its code.
async fn alter_incrementally<'a, R: Runtime, F>(
    request: &IncrementalAlterConfigsRequest<'a>,
    self_id: BrokerId,
    pace: &mut Pace<'_, R>,
    ask: impl Fn(AlterTopic) -> F,
) -> IncrementalAlterConfigsResponse<'a>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let plan = |resource: &IncrementalResource<'a>| {
        let changes = changes_of(&resource.configs)?;
        let (name, is_empty) = (&resource.resource_name, changes.is_empty());
        let target = target(resource.resource_type, name, self_id, is_empty, true)?;
        Ok(target.then_some(Alteration::Change(changes)))
    };
    let key = |resource: &IncrementalResource<'a>| (resource.resource_type, resource.resource_name.clone());
    let outcomes = outcomes(&request.resources, (key, plan), mode(request.validate_only), pace, ask).await;
    let responses =
        outcomes.into_iter().map(|((resource_type, resource_name), (error_code, error_message))| {
            IncrementalResourceResponse { error_code, error_message, resource_type, resource_name }
        });
    IncrementalAlterConfigsResponse { throttle_time_ms: 0, responses: pace.collect(responses).await }
}

/// Type and name of a resource.
type Key<'a> = (i8, Str<'a>);

/// A code, and the text to it.
type Told<'a> = (i16, Option<Cow<'a, str>>);

/// What becomes of each resource: refused where it stands twice, else asked of shard 0 as `plan` says; no plan changes
/// nothing.
async fn outcomes<'a, R: Runtime, T, F>(
    resources: &[T],
    (key, plan): (impl Fn(&T) -> Key<'a>, impl Fn(&T) -> Result<Option<Alteration>, Refusal>),
    mode: Mode,
    pace: &mut Pace<'_, R>,
    ask: impl Fn(AlterTopic) -> F,
) -> Vec<(Key<'a>, Told<'a>)>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for resource in resources {
        let key = key(resource);
        if !seen.insert(key.clone()) {
            twice.insert(key);
        }
        pace.step().await;
    }
    let mut outcomes = Vec::with_capacity(resources.len());
    for resource in resources {
        let key = key(resource);
        let planned = if twice.contains(&key) {
            Err(invalid("Each resource must appear at most once."))
        } else {
            plan(resource)
        };
        let result = match planned {
            Ok(Some(alteration)) => ask(AlterTopic { topic: key.1.to_string(), alteration, mode }).await,
            Ok(None) => Ok(()),
            Err(refusal) => Err(refusal),
        };
        outcomes.push((key, told(result)));
        pace.step().await;
    }
    outcomes
}

const fn mode(validate_only: bool) -> Mode {
    if validate_only { Mode::Validate } else { Mode::Apply }
}

fn told<'a>(result: Result<(), Refusal>) -> Told<'a> {
    match result {
        Ok(()) => (ErrorCode::None.get(), None),
        Err((code, message)) => (code.get(), message.map(short_text).map(Cow::Owned)),
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

/// Whether a resource is a topic, which shard 0 knows; else no key was named, and nothing changes.
fn target(
    resource_type: i8,
    name: &str,
    self_id: BrokerId,
    is_empty: bool,
    is_incremental: bool,
) -> Result<bool, Refusal> {
    match resource_type {
        TOPIC if name.is_empty() => Err(invalid("Default topic resources are not allowed.")),
        TOPIC => Ok(true),
        BROKER => {
            if !name.is_empty() {
                own_id(name, self_id, "expected {},")?;
            }
            if is_empty {
                return Ok(false);
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

//! DescribeConfigs: each resource is described once, and told as often as it is named, as in Kafka (protocol.md 3.8).
//! Decides nothing: what is told stands in `config::describe`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use protocol::api::ApiKey;
use protocol::codec::{Layout, SharedList, WrittenList, short_text};
use protocol::error::ErrorCode;
use protocol::messages::configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse,
    DescribeConfigsResult, DescribeConfigsSynonym,
};
use protocol::types::TopicName;
use storage::io::Runtime;

use super::{BROKER, BROKER_LOGGER, Refusal, TOPIC, invalid, own_id};
use crate::config::broker::BrokerConfig;
use crate::config::describe::{Entry, Layers, Source};
use crate::handlers::repeats::{AnswerRoom, NoRoom};
use crate::metadata::image::Image;
use crate::shard::pace::Pace;

/// What there is to tell of one resource.
enum Described {
    Refused(Refusal),
    Configs {
        /// Names of the keys, in order.
        names: Vec<String>,
        /// The keys as the answer has them, in the order of the names.
        list: WrittenList,
    },
}

/// Answers DescribeConfigs from one image, a slice at a time.
pub async fn describe<'a, R: Runtime>(
    runtime: &R,
    request: &DescribeConfigsRequest<'a>,
    version: i16,
    (image, broker): (&Image, &BrokerConfig),
) -> DescribeConfigsResponse<'a> {
    let layout = Layout::of(ApiKey::DescribeConfigs, version);
    let mut pace = Pace::new(runtime);
    let mut room = AnswerRoom::new();
    let mut known: BTreeMap<(i8, &str), Described> = BTreeMap::new();
    let mut results = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        let key = (resource.resource_type, &*resource.resource_name);
        let is_first = !known.contains_key(&key);
        if is_first {
            known.insert(key, described(resource, request, layout, (image, broker)));
            // The entries of a whole configuration: worth a look.
            pace.look().await;
        }
        let told = match known.get(&key) {
            Some(Described::Configs { names, list }) => {
                let (configs, bytes) = wanted(resource, names, list, &mut pace).await;
                let no_room = |why: NoRoom| invalid(format!("Resource '{}': {why}", resource.resource_name));
                room.take(bytes, is_first).map(|()| configs).map_err(no_room)
            }
            Some(Described::Refused(refusal)) => Err(refusal.clone()),
            None => Err((ErrorCode::UnknownServerError, None)),
        };
        let ((error, message), configs) = match told {
            Ok(configs) => ((ErrorCode::None, None), configs),
            Err(refusal) => (refusal, Vec::new().into()),
        };
        results.push(DescribeConfigsResult {
            error_code: error.get(),
            error_message: message.map(short_text).map(Cow::Owned),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            configs,
        });
        pace.step().await;
    }
    DescribeConfigsResponse { throttle_time_ms: 0, results }
}

fn described(
    resource: &DescribeConfigsResource<'_>,
    request: &DescribeConfigsRequest<'_>,
    layout: Layout,
    (image, broker): (&Image, &BrokerConfig),
) -> Described {
    match entries_of(resource, image, broker) {
        Err(refusal) => Described::Refused(refusal),
        Ok(entries) => {
            let list = WrittenList::new(entries.iter().map(|entry| config_of(entry, request)), layout);
            Described::Configs { names: entries.into_iter().map(|entry| entry.name).collect(), list }
        }
    }
}

/// The keys that a mention asks for, and their bytes, about.
async fn wanted<R: Runtime>(
    resource: &DescribeConfigsResource<'_>,
    names: &[String],
    list: &WrittenList,
    pace: &mut Pace<'_, R>,
) -> (SharedList<DescribeConfigsResourceResult<'static>>, usize) {
    let Some(keys) = resource.configuration_keys.as_deref().filter(|keys| !keys.is_empty()) else {
        return (list.all(), list.bytes());
    };
    let mut places = BTreeSet::new();
    for key in keys {
        places.extend(names.binary_search_by(|name| name.as_str().cmp(key)).ok());
        pace.step().await;
    }
    let bytes = list.bytes().saturating_mul(places.len()).div_ceil(names.len().max(1));
    (list.some(places), bytes)
}

/// The keys of a resource, in the order of the names.
fn entries_of(
    resource: &DescribeConfigsResource<'_>,
    image: &Image,
    broker: &BrokerConfig,
) -> Result<Vec<Entry>, Refusal> {
    let layers = Layers::fixed(&broker.settings);
    let name = resource.resource_name.as_ref();
    match resource.resource_type {
        TOPIC if !TopicName::is_legal(name) => {
            Err((ErrorCode::InvalidTopicException, Some(format!("Topic name '{name}' is not legal"))))
        }
        TOPIC => match image.topic(name) {
            Some(topic) => Ok(layers.topic_entries(&topic.overrides)),
            None => Err((ErrorCode::UnknownTopicOrPartition, None)),
        },
        BROKER if name.is_empty() => Ok(layers.default_broker_entries()),
        BROKER => {
            own_id(name, image.self_id, "expected {} or empty string,")?;
            Ok(layers.broker_entries())
        }
        BROKER_LOGGER => {
            own_id(name, image.self_id, "expected {}")?;
            Err(invalid("Loggers are not described: ODRADEK_LOG filters the log at start"))
        }
        other => Err(invalid(format!("Unsupported resource type: {other}"))),
    }
}

fn config_of<'a>(
    entry: &'a Entry,
    request: &DescribeConfigsRequest<'_>,
) -> DescribeConfigsResourceResult<'a> {
    let synonyms = if request.include_synonyms { entry.synonyms.as_slice() } else { &[] };
    DescribeConfigsResourceResult {
        name: Cow::Borrowed(&entry.name),
        value: entry.value.as_deref().map(Cow::Borrowed),
        read_only: entry.is_read_only,
        is_default: entry.source == Source::Default,
        config_source: entry.source.code(),
        is_sensitive: entry.is_sensitive,
        synonyms: synonyms
            .iter()
            .map(|synonym| DescribeConfigsSynonym {
                name: Cow::Borrowed(&synonym.name),
                value: synonym.value.as_deref().map(Cow::Borrowed),
                source: synonym.source.code(),
            })
            .collect(),
        config_type: entry.kind.map_or(0, |kind| kind.code()),
        documentation: entry.doc.filter(|_| request.include_documentation).map(Cow::Borrowed),
    }
}

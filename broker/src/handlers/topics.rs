//! CreateTopics (19), DeleteTopics (20) and CreatePartitions (37): wire to wish, outcome to wire (protocol.md 3.7). What
//! is checked, and in which order, stands in `admin::topics`.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::{Either, select};
use protocol::api::ApiKey;
use protocol::codec::{Layout, SharedList, Str, WrittenList, short_text};
use protocol::error::ErrorCode;
use protocol::messages::{
    CreatableTopic, CreatableTopicConfigs, CreatableTopicResult, CreatePartitionsRequest,
    CreatePartitionsResponse, CreatePartitionsTopicResult, CreateTopicsRequest, CreateTopicsResponse,
    DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse,
};
use protocol::types::{BrokerId, MonoTime, TopicId, TopicName};

use super::dispatch::{STOPPING, Wiring, decode, reply};
use super::errors::ToErrorCode;
use super::{Answer, Request};
use crate::admin::ask::{
    AdminAnswer, AdminAsk, Client, CreatePartitions, CreatePartitionsError, CreateTopicError, CreateTopics,
    CreatedTopic, DeleteTopicError, DeleteTopics, GrowTopic, Mode, NewTopic, TopicRef,
};
use crate::config::describe::Layers;
use crate::metadata::image::Image;
use crate::shard::pace::Pace;
use crate::shard::{NEVER, ShardId, ShardRuntime};

/// Whether the client of a wish still waits: its end, by whatever cause, is told to shard 0.
type Patient = oneshot::Sender<()>;

/// Carries a wish to shard 0. The wait for leaders ends there, by the client's timeout or when its patience ends, so the
/// ask itself has no bound.
async fn ask<R: ShardRuntime>(
    wiring: &Wiring<R>,
    request: &Request,
    (wish, patient): (AdminAsk, Patient),
) -> Option<AdminAnswer> {
    let asked = pin!(wiring.admin.ask(ShardId::CONTROL, NEVER, wish));
    let over = pin!(request.connection.patience.over());
    match select(asked, over).await {
        Either::Left((answer, _)) => answer.ok(),
        Either::Right(((), asked)) => {
            drop(patient);
            asked.await.ok()
        }
    }
}

/// Handles a CreateTopics.
pub async fn create_topics<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<CreateTopicsRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let (patient, client) = oneshot::channel();
    let wish = create_topics_wish(&message, (request.received, client), &mut pace).await;
    let asked = ask(wiring, request, (AdminAsk::CreateTopics(wish), patient)).await;
    let Some(AdminAnswer::Created(outcomes)) = asked else { return STOPPING };
    let layers = Layers::fixed(&wiring.config.settings);
    let mut configs = ToldConfigs::new(Layout::of(ApiKey::CreateTopics, request.api_version));
    let results = create_topics_results(&message, outcomes, |overrides| configs.of(overrides, &layers));
    // The entries of a whole configuration for each: worth a look.
    let mut topics = Vec::with_capacity(message.topics.len());
    for result in results {
        topics.push(result);
        pace.look().await;
    }
    reply(request, &CreateTopicsResponse { throttle_time_ms: 0, topics })
}

/// Handles a DeleteTopics.
pub async fn delete_topics<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<DeleteTopicsRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let before = wiring.image.current();
    let version = request.api_version;
    let known = (&*before, wiring.config.topics.delete_topic_enable);
    let mut pace = Pace::new(&wiring.runtime);
    let (patient, client) = oneshot::channel();
    let wish = delete_topics_wish(&message, version, (request.received, client), known, &mut pace).await;
    let (named, wish) = match wish {
        Ok(wish) => wish,
        Err(refused) => return reply(request, &refused),
    };
    let asked = ask(wiring, request, (AdminAsk::DeleteTopics(wish), patient)).await;
    let Some(AdminAnswer::Deleted(outcomes)) = asked else { return STOPPING };
    let responses = pace.collect(delete_topics_results(named, &outcomes, version, &before)).await;
    reply(request, &DeleteTopicsResponse { throttle_time_ms: 0, responses })
}

/// Handles a CreatePartitions.
pub async fn create_partitions<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<CreatePartitionsRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let (patient, client) = oneshot::channel();
    let wish = create_partitions_wish(&message, (request.received, client), &mut pace).await;
    let asked = ask(wiring, request, (AdminAsk::CreatePartitions(wish), patient)).await;
    let Some(AdminAnswer::Grown(outcomes)) = asked else { return STOPPING };
    reply(request, &create_partitions_answer(&message, outcomes, &mut pace).await)
}

/// When waiting ends; `None` for a timeout of 0 or less, which does not wait.
fn deadline(received: MonoTime, timeout_ms: i32) -> Option<MonoTime> {
    (timeout_ms > 0).then(|| received.plus_ms(i64::from(timeout_ms)))
}

fn mode(received: MonoTime, timeout_ms: i32, validate_only: bool) -> Mode {
    if validate_only { Mode::Validate } else { Mode::Apply(deadline(received, timeout_ms)) }
}

fn brokers(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().map(|id| BrokerId::new(*id)).collect()
}

/// The wish of a CreateTopics.
async fn create_topics_wish<R: ShardRuntime>(
    request: &CreateTopicsRequest<'_>,
    (received, client): (MonoTime, Client),
    pace: &mut Pace<'_, R>,
) -> CreateTopics {
    let topic = |topic: &CreatableTopic<'_>| NewTopic {
        name: topic.name.to_string(),
        partitions: topic.num_partitions,
        replication_factor: topic.replication_factor,
        assignment: topic
            .assignments
            .iter()
            .map(|part| (part.partition_index, brokers(&part.broker_ids)))
            .collect(),
        configs: topic
            .configs
            .iter()
            .map(|config| (config.name.to_string(), config.value.as_deref().map(str::to_owned)))
            .collect(),
    };
    let mode = mode(received, request.timeout_ms, request.validate_only);
    CreateTopics { topics: pace.collect(request.topics.iter().map(topic)).await, mode, client }
}

/// The configurations of an answer: written once for all topics with the same overrides.
struct ToldConfigs {
    layout: Layout,
    known: BTreeMap<Arc<BTreeMap<String, String>>, WrittenList>,
}

impl ToldConfigs {
    fn new(layout: Layout) -> Self {
        Self { layout, known: BTreeMap::new() }
    }

    /// The configuration that overrides come to.
    fn of(
        &mut self,
        overrides: &Arc<BTreeMap<String, String>>,
        layers: &Layers<'_>,
    ) -> SharedList<CreatableTopicConfigs<'static>> {
        if let Some(list) = self.known.get(overrides) {
            return list.all();
        }
        let entries = layers.topic_entries(overrides).into_iter().map(|entry| CreatableTopicConfigs {
            name: entry.name.into(),
            value: entry.value.map(Into::into),
            read_only: false,
            config_source: entry.source.code(),
            is_sensitive: entry.is_sensitive,
        });
        let list = WrittenList::new(entries, self.layout);
        let all = list.all();
        self.known.insert(Arc::clone(overrides), list);
        all
    }
}

/// The results of a CreateTopics. `configs_of` lists the configuration that overrides come to.
fn create_topics_results<'a>(
    request: &CreateTopicsRequest<'a>,
    outcomes: Vec<Result<CreatedTopic, CreateTopicError>>,
    mut configs_of: impl FnMut(&Arc<BTreeMap<String, String>>) -> SharedList<CreatableTopicConfigs<'static>>,
) -> impl Iterator<Item = CreatableTopicResult<'a>> {
    let result = move |(topic, outcome): (&CreatableTopic<'a>, Result<CreatedTopic, CreateTopicError>)| {
        match outcome {
            Ok(created) => CreatableTopicResult {
                name: topic.name.clone(),
                topic_id: created.id,
                error_code: ErrorCode::None.get(),
                error_message: None,
                topic_config_error_code: ErrorCode::None.get(),
                num_partitions: created.partitions,
                replication_factor: created.replication_factor,
                configs: Some(configs_of(&created.overrides)),
            },
            Err(error) => CreatableTopicResult {
                name: topic.name.clone(),
                topic_id: TopicId::ZERO,
                error_code: error.error_code().get(),
                error_message: Some(short_text(error.to_string()).into()),
                topic_config_error_code: ErrorCode::None.get(),
                num_partitions: -1,
                replication_factor: -1,
                configs: Some(Vec::new().into()),
            },
        }
    };
    request.topics.iter().zip(outcomes).map(result)
}

/// One topic of a DeleteTopics, as it was named.
#[derive(Clone, Debug)]
struct Named<'a> {
    name: Option<Str<'a>>,
    id: TopicId,
}

/// The mentions of a DeleteTopics, each with the place of its topic in the wish, where each topic stands once: it is
/// deleted once and answered as often as it is named. Whether deletion is `enabled` matters more than how topics are
/// named.
///
/// # Errors
/// The answer, when a topic has both a name and an id.
async fn delete_topics_wish<'a, R: ShardRuntime>(
    request: &DeleteTopicsRequest<'a>,
    version: i16,
    (received, client): (MonoTime, Client),
    (image, enabled): (&Image, bool),
    pace: &mut Pace<'_, R>,
) -> Result<(Vec<(Named<'a>, usize)>, DeleteTopics), DeleteTopicsResponse<'a>> {
    let named: Vec<Named<'a>> = if version >= 6 {
        let topics = request.topics.iter();
        pace.collect(topics.map(|topic| Named { name: topic.name.clone(), id: topic.topic_id })).await
    } else {
        let names = request.topic_names.iter();
        pace.collect(names.map(|name| Named { name: Some(name.clone()), id: TopicId::ZERO })).await
    };
    if enabled && named.iter().any(|topic| topic.name.is_some() && !topic.id.is_zero()) {
        let refused = |topic: Named<'a>| DeletableTopicResult {
            name: topic.name,
            topic_id: topic.id,
            error_code: ErrorCode::InvalidRequest.get(),
            error_message: Some("Topic name and topic ID can not both be specified.".into()),
        };
        let responses = pace.collect(named.into_iter().map(refused)).await;
        return Err(DeleteTopicsResponse { throttle_time_ms: 0, responses });
    }
    let mut places = BTreeMap::new();
    let mut topics = Vec::new();
    let mut mentions = Vec::with_capacity(named.len());
    for topic in named {
        let reference = match &topic.name {
            Some(name) => TopicRef::Name(TopicName::new(name)),
            None => TopicRef::Id(topic.id),
        };
        // A name and its id are the same topic.
        let key = match &reference {
            TopicRef::Name(name) => (name.get().to_owned(), TopicId::ZERO),
            TopicRef::Id(id) => match image.topic_by_id(*id) {
                Some(topic) => (topic.name.get().to_owned(), TopicId::ZERO),
                None => (String::new(), *id),
            },
        };
        let place = *places.entry(key).or_insert(topics.len());
        if place == topics.len() {
            topics.push(reference);
        }
        mentions.push((topic, place));
        pace.step().await;
    }
    Ok((mentions, DeleteTopics { topics, deadline: deadline(received, request.timeout_ms), client }))
}

/// The results of a DeleteTopics. Names and ids are filled from the image of before.
fn delete_topics_results<'a>(
    named: Vec<(Named<'a>, usize)>,
    outcomes: &[Result<(), DeleteTopicError>],
    version: i16,
    before: &Image,
) -> impl Iterator<Item = DeletableTopicResult<'a>> {
    let result = move |(topic, place): (Named<'a>, usize)| {
        // Shard 0 answers each topic; one that it does not is left as it was.
        let outcome = outcomes.get(place).copied().unwrap_or(Err(DeleteTopicError::TimedOut));
        let known = match &topic.name {
            Some(name) => before.topic(name),
            None => before.topic_by_id(topic.id),
        };
        DeletableTopicResult {
            name: topic.name.or_else(|| known.map(|known| known.name.get().to_owned().into())),
            topic_id: known.map_or(topic.id, |known| known.id),
            error_code: outcome
                .err()
                .map_or(ErrorCode::None, |error| delete_topic_code(error, version))
                .get(),
            error_message: outcome.err().map(|error| error.to_string().into()),
        }
    };
    named.into_iter().map(result)
}

/// The code as a version of DeleteTopics knows it.
fn delete_topic_code(error: DeleteTopicError, version: i16) -> ErrorCode {
    match error.error_code() {
        // The code came with version 3.
        ErrorCode::TopicDeletionDisabled if version < 3 => ErrorCode::InvalidRequest,
        code => code,
    }
}

/// The wish of a CreatePartitions.
async fn create_partitions_wish<R: ShardRuntime>(
    request: &CreatePartitionsRequest<'_>,
    (received, client): (MonoTime, Client),
    pace: &mut Pace<'_, R>,
) -> CreatePartitions {
    let topics = request.topics.iter().map(|topic| GrowTopic {
        name: topic.name.to_string(),
        count: topic.count,
        assignment: topic
            .assignments
            .as_ref()
            .map(|assignments| assignments.iter().map(|part| brokers(&part.broker_ids)).collect()),
    });
    let mode = mode(received, request.timeout_ms, request.validate_only);
    CreatePartitions { topics: pace.collect(topics).await, mode, client }
}

/// The answer to a CreatePartitions: a name that stands twice in the request stands once in it, as in Kafka's map.
async fn create_partitions_answer<'a, R: ShardRuntime>(
    request: &CreatePartitionsRequest<'a>,
    outcomes: Vec<Result<(), CreatePartitionsError>>,
    pace: &mut Pace<'_, R>,
) -> CreatePartitionsResponse<'a> {
    let mut seen = BTreeSet::new();
    let mut results = Vec::with_capacity(request.topics.len());
    for (topic, outcome) in request.topics.iter().zip(outcomes) {
        pace.step().await;
        if !seen.insert(&*topic.name) {
            continue;
        }
        let (error, message) = match outcome {
            Ok(()) => (ErrorCode::None, None),
            Err(error) => (error.error_code(), Some(error.to_string().into())),
        };
        let (name, error_code) = (topic.name.clone(), error.get());
        results.push(CreatePartitionsTopicResult { name, error_code, error_message: message });
    }
    CreatePartitionsResponse { throttle_time_ms: 0, results }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;

    #[test]
    fn topics_with_the_same_overrides_share_one_configuration() {
        let settings = Settings::default();
        let layers = Layers::fixed(&settings);
        let mut configs = ToldConfigs::new(Layout::of(ApiKey::CreateTopics, 7));
        let with = |value: &str| Arc::new(BTreeMap::from([("retention.ms".to_owned(), value.to_owned())]));
        let all = ["1", "2", "1", "2", "1"].map(|value| configs.of(&with(value), &layers));
        assert_eq!(configs.known.len(), 2);
        assert_eq!((&all[0], &all[1]), (&all[2], &all[3]));
        assert_ne!(all[0], all[1]);
        assert!(matches!(all[0], SharedList::Written(_)));
    }
}

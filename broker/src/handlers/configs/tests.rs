//! Statements 83 to 88 of protocol.md 5 at the level of messages; the async parts run on the simulated runtime.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;
use protocol::codec::{Cursor, Segment, Writer};
use protocol::messages::Message;
use protocol::messages::configs::{AlterConfigsResource, AlterableConfig as Replaced};
use protocol::messages::configs::{DescribeConfigsResource, DescribeConfigsResponse, DescribeConfigsResult};
use protocol::messages::incremental_alter_configs::AlterConfigsResource as Incremental;
use protocol::types::{TopicId, TopicName};
use storage::io::sim::SimRuntime;

use super::*;
use crate::config::broker::Surroundings;
use crate::config::dynamic::ChangeError;
use crate::config::settings::{Place, Settings};
use crate::config::topic::{TopicConfig, TopicFault};
use crate::metadata::image::{Image, TopicImage};
use crate::shard::Class;
use crate::shard::ask::seats;
use crate::shard::sim::SimShard;

fn broker() -> BrokerConfig {
    let mut settings = Settings::default();
    settings.set("log.segment.bytes", "300", Place::Override);
    settings.set("password.encoder.secret", "hunter2", Place::Override);
    let surroundings = Surroundings { local_host: "here".to_owned(), default_log_dir: PathBuf::from("/d") };
    BrokerConfig::new(settings, &surroundings).unwrap()
}

fn image(overrides: &[(&str, &str)]) -> Image {
    let overrides: BTreeMap<_, _> =
        overrides.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    let topic = TopicImage {
        name: TopicName::new("t"),
        id: TopicId::new([1; 16]),
        partitions: Vec::new(),
        config: Arc::new(TopicConfig::effective(&overrides, &broker())),
        overrides: Arc::new(overrides),
    };
    Image {
        version: 1,
        cluster_id: Arc::from("c"),
        self_id: BrokerId::new(1),
        controller: BrokerId::new(1),
        brokers: OrdMap::new(),
        topics: OrdMap::unit(TopicName::new("t"), Arc::new(topic)),
        names: OrdMap::new(),
    }
}

fn resource(
    resource_type: i8,
    name: &str,
    keys: Option<&[&'static str]>,
) -> DescribeConfigsResource<'static> {
    DescribeConfigsResource {
        resource_type,
        resource_name: Cow::Owned(name.to_owned()),
        configuration_keys: keys.map(|keys| keys.iter().map(|key| Cow::Borrowed(*key)).collect()),
    }
}

fn described(
    resources: Vec<DescribeConfigsResource<'static>>,
    is_rich: bool,
) -> Vec<DescribeConfigsResult<'static>> {
    let request =
        DescribeConfigsRequest { resources, include_synonyms: is_rich, include_documentation: is_rich };
    let runtime = SimRuntime::new(1);
    let (image, broker) = (image(&[("segment.bytes", "50")]), broker());
    let within = runtime.clone();
    read(runtime.block_on(async move { describe(&within, &request, 4, (&image, &broker)).await }).results)
}

/// What a client reads of an answer.
fn read(results: Vec<DescribeConfigsResult<'static>>) -> Vec<DescribeConfigsResult<'static>> {
    let mut writer = Writer::new();
    DescribeConfigsResponse { throttle_time_ms: 0, results }.encode(&mut writer, 4);
    let bytes: Vec<u8> = pieces(writer).concat();
    DescribeConfigsResponse::decode(&mut Cursor::new(bytes.leak()), 4).unwrap().results
}

fn pieces(writer: Writer) -> Vec<Bytes> {
    let bytes = |segment| match segment {
        Segment::Bytes(bytes) => bytes,
        Segment::Foreign(_) => panic!("nobody holds bytes"),
    };
    writer.into_segments().segments.into_iter().map(bytes).collect()
}

/// Statement 83.
#[test]
fn another_brokers_configs_are_not_told() {
    let results = described(vec![resource(BROKER, "2", None), resource(BROKER, "x", None)], false);
    assert_eq!(results[0].error_code, ErrorCode::InvalidRequest.get());
    assert_eq!(
        results[0].error_message.as_deref(),
        Some("Unexpected broker id, expected 1 or empty string, but received 2")
    );
    assert!(results[0].configs.elements().is_empty());
    assert_eq!(results[1].error_message.as_deref(), Some("Broker id must be an integer, but it is: x"));
}

/// Statement 84, as far as a broker without changes at run time goes; all five sources stand in `config::describe`.
#[test]
fn a_topics_key_has_its_synonyms_type_and_sentence_when_asked() {
    let result = &described(vec![resource(TOPIC, "t", Some(&["segment.bytes", "no.such"]))], true)[0];
    assert_eq!((result.error_code, result.configs.elements().len()), (0, 1));
    let config = &result.configs.elements()[0];
    assert_eq!((config.value.as_deref(), config.config_source, config.config_type), (Some("50"), 1, 3));
    let chain: Vec<_> =
        config.synonyms.iter().map(|s| (s.name.as_ref(), s.value.as_deref(), s.source)).collect();
    assert_eq!(
        chain,
        [
            ("segment.bytes", Some("50"), 1),
            ("log.segment.bytes", Some("300"), 4),
            ("log.segment.bytes", Some("1073741824"), 5),
        ]
    );
    assert!(config.documentation.is_some() && !config.read_only);
    let plain = &described(vec![resource(TOPIC, "t", None)], false)[0];
    assert!(plain.configs.elements().len() > 30);
    assert!(plain.configs.elements().iter().all(|c| c.synonyms.is_empty() && c.documentation.is_none()));
    let retention = plain.configs.elements().iter().find(|config| config.name == "retention.ms").unwrap();
    assert_eq!((retention.value.as_deref(), retention.config_source), (Some("604800000"), 5));
}

/// Statement 85.
#[test]
fn a_password_is_null_and_sensitive() {
    let result = &described(vec![resource(BROKER, "1", Some(&["password.encoder.secret"]))], true)[0];
    let config = &result.configs.elements()[0];
    assert_eq!((config.value.as_deref(), config.is_sensitive, config.config_type), (None, true, 9));
    assert_eq!(config.synonyms[0].value, None);
}

#[test]
fn each_resource_has_its_own_error() {
    let results = described(
        vec![
            resource(TOPIC, "unknown", None),
            resource(TOPIC, "a b", None),
            resource(BROKER, "", None),
            resource(BROKER_LOGGER, "1", None),
            resource(BROKER_LOGGER, "2", None),
            resource(77, "x", None),
        ],
        false,
    );
    let codes: Vec<_> = results.iter().map(|result| result.error_code).collect();
    assert_eq!(codes, [3, 17, 0, 42, 42, 42]);
    assert!(results[2].configs.elements().is_empty(), "nothing is set for all brokers");
    assert_eq!((results[5].resource_type, results[5].resource_name.as_ref()), (77, "x"));
}

/// A small frame that names one topic very often is worked on once, and its answer holds what is told of it once.
#[test]
fn a_topic_that_is_named_often_is_described_once_and_told_each_time() {
    let mentions = 1000;
    let mut resources = vec![resource(TOPIC, "t", None); mentions];
    resources.push(resource(
        TOPIC,
        "t",
        Some(&["segment.bytes", "no.such", "segment.bytes", "retention.ms"]),
    ));
    let request = DescribeConfigsRequest { resources, include_synonyms: true, include_documentation: true };
    let (image, broker) = (image(&[("segment.bytes", "50")]), broker());
    let runtime = SimRuntime::new(1);
    let within = runtime.clone();
    let answer = runtime.block_on(async move { describe(&within, &request, 4, (&image, &broker)).await });
    let mut writer = Writer::new();
    answer.encode(&mut writer, 4);
    let pieces = pieces(writer);
    let large: Vec<_> = pieces.iter().filter(|piece| piece.len() > 2000).collect();
    assert_eq!(large.len(), mentions);
    assert!(large.iter().all(|piece| piece.as_ptr() == large[0].as_ptr()), "one piece of memory");
    let results = read(answer.results);
    assert_eq!(results.len(), mentions + 1);
    assert!(results[..mentions].iter().all(|result| *result == results[0]));
    assert_eq!(results[0], described(vec![resource(TOPIC, "t", None)], true)[0]);
    let picked: Vec<_> = results[mentions].configs.elements().iter().map(|config| &*config.name).collect();
    assert_eq!(picked, ["retention.ms", "segment.bytes"]);
}

/// Beyond 64 MiB of repetitions a mention is refused; what is named once is told all the same.
#[test]
fn repetitions_have_a_bound_and_other_resources_do_not_suffer() {
    let mut resources = vec![resource(TOPIC, "t", None); 20_000];
    resources.push(resource(BROKER, "1", None));
    let request = DescribeConfigsRequest { resources, include_synonyms: true, include_documentation: true };
    let (image, broker, runtime) = (image(&[]), broker(), SimRuntime::new(1));
    let within = runtime.clone();
    let answer = runtime.block_on(async move { describe(&within, &request, 4, (&image, &broker)).await });
    let told = answer.results.iter().filter(|result| result.error_code == 0).count();
    assert!((1_000..19_000).contains(&told), "{told}");
    let refused = &answer.results[19_999];
    assert_eq!(refused.error_code, ErrorCode::InvalidRequest.get());
    assert!(refused.error_message.as_deref().unwrap().contains("named too often"), "{refused:?}");
    assert_eq!(answer.results[20_000].error_code, 0);
}

type Wishes = RefCell<Vec<AlterTopic>>;

fn incremental(resource_type: i8, name: &str, changes: &[(&str, i8, Option<&str>)]) -> Incremental<'static> {
    let configs = changes.iter().map(|(key, operation, value)| AlterableConfig {
        name: Cow::Owned((*key).to_owned()),
        config_operation: *operation,
        value: value.map(|value| Cow::Owned(value.to_owned())),
    });
    Incremental { resource_type, resource_name: Cow::Owned(name.to_owned()), configs: configs.collect() }
}

fn altered(
    resources: Vec<Incremental<'static>>,
    validate_only: bool,
) -> (Vec<(i16, Option<String>)>, Vec<AlterTopic>) {
    use futures_util::FutureExt;
    let wishes = Wishes::default();
    let request = IncrementalAlterConfigsRequest { resources, validate_only };
    let ask = |wish: AlterTopic| {
        let result = if wish.topic == "bad" {
            Err(refusal_of(&AlterConfigsError::UnknownTopic("bad".to_owned())))
        } else {
            Ok(())
        };
        wishes.borrow_mut().push(wish);
        std::future::ready(result)
    };
    let runtime = SimRuntime::new(1);
    let mut pace = Pace::new(&runtime);
    let response = alter_incrementally(&request, BrokerId::new(1), &mut pace, ask).now_or_never().unwrap();
    let responses =
        response.responses.into_iter().map(|r| (r.error_code, r.error_message.map(Cow::into_owned)));
    (responses.collect(), wishes.take())
}

#[test]
fn incremental_changes_reach_shard_0_as_they_are() {
    let (responses, wishes) = altered(
        vec![incremental(TOPIC, "t", &[("cleanup.policy", 2, Some("compact")), ("a", 1, None)])],
        true,
    );
    assert_eq!(responses, [(0, None)]);
    let change = |name: &str, operation, value: Option<&str>| Change {
        name: name.to_owned(),
        operation,
        value: value.map(str::to_owned),
    };
    let changes = vec![
        change("cleanup.policy", Operation::Append, Some("compact")),
        change("a", Operation::Delete, None),
    ];
    assert_eq!(
        wishes,
        [AlterTopic { topic: "t".to_owned(), alteration: Alteration::Change(changes), mode: Mode::Validate }]
    );
    let (responses, _) = altered(vec![incremental(TOPIC, "bad", &[("a", 0, Some("1"))])], false);
    assert_eq!(responses, [(3, Some("The topic 'bad' does not exist.".to_owned()))]);
}

#[test]
fn requests_that_make_no_sense_are_refused_before_shard_0_hears_of_them() {
    let same = || incremental(TOPIC, "t", &[("a", 0, Some("1"))]);
    for (resources, message) in [
        (vec![same(), same()], "Each resource must appear at most once."),
        (
            vec![incremental(TOPIC, "t", &[("a", 0, Some("1")), ("a", 1, None)])],
            "Error due to duplicate config keys",
        ),
        (vec![incremental(TOPIC, "t", &[("a", 0, None)])], "Null value not supported for : a"),
        (vec![incremental(TOPIC, "t", &[("a", 9, Some("1"))])], "Unknown operations type 9"),
        (vec![incremental(TOPIC, "", &[("a", 0, Some("1"))])], "Default topic resources are not allowed."),
        (
            vec![incremental(BROKER, "2", &[("a", 0, Some("1"))])],
            "Unexpected broker id, expected 1, but received 2",
        ),
        (
            vec![incremental(BROKER, "1", &[("log.cleaner.threads", 0, Some("2"))])],
            "This release does not change broker configs at run time: set them in the configuration and restart",
        ),
        (
            vec![incremental(BROKER, "", &[("log.cleaner.threads", 0, Some("2"))])],
            "This release does not change broker configs at run time: set them in the configuration and restart",
        ),
        (
            vec![incremental(BROKER_LOGGER, "1", &[("root", 0, Some("DEBUG"))])],
            "This release does not change loggers at run time: ODRADEK_LOG filters the log at start",
        ),
        (vec![incremental(99, "t", &[("a", 0, Some("1"))])], "Unknown resource type 99"),
    ] {
        let count = resources.len();
        let (responses, wishes) = altered(resources, false);
        assert_eq!(responses, vec![(42, Some(message.to_owned())); count]);
        assert!(wishes.is_empty());
    }
    assert_eq!(altered(vec![incremental(BROKER, "1", &[])], false).0, [(0, None)]);
}

/// Statement 88: what is not named is not in the wish.
#[test]
fn alter_configs_replaces_everything() {
    use futures_util::FutureExt;
    let config = |value: Option<&'static str>| Replaced {
        name: Cow::Borrowed("retention.ms"),
        value: value.map(Cow::Borrowed),
    };
    let resource = |resource_type, name, configs| AlterConfigsResource {
        resource_type,
        resource_name: Cow::Borrowed(name),
        configs,
    };
    let request = AlterConfigsRequest {
        resources: vec![
            resource(TOPIC, "t", vec![config(Some("5"))]),
            resource(TOPIC, "u", vec![config(None)]),
            resource(TOPIC, "v", vec![config(Some("5")), config(Some("6"))]),
            resource(BROKER_LOGGER, "1", vec![config(Some("5"))]),
            // One resource twice: both are refused.
            resource(TOPIC, "w", vec![config(Some("5"))]),
            resource(TOPIC, "w", vec![config(Some("6"))]),
        ],
        validate_only: false,
    };
    let wishes = Wishes::default();
    let ask = |wish| {
        wishes.borrow_mut().push(wish);
        std::future::ready(Ok(()))
    };
    let runtime = SimRuntime::new(1);
    let mut pace = Pace::new(&runtime);
    let response = alter(&request, BrokerId::new(1), &mut pace, ask).now_or_never().unwrap();
    let codes: Vec<_> = response.responses.iter().map(|response| response.error_code).collect();
    assert_eq!(codes, [0, 42, 42, 42, 42, 42]);
    let only = BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]);
    assert_eq!(
        wishes.take(),
        [AlterTopic { topic: "t".to_owned(), alteration: Alteration::Replace(only), mode: Mode::Apply }]
    );
}

#[test]
fn refusals_of_shard_0_have_kafkas_codes() {
    let code = |error: AlterConfigsError| refusal_of(&error).0.get();
    let list = ChangeError::NotList { name: "retention.ms".to_owned(), operation: Operation::Append };
    assert_eq!(code(AlterConfigsError::Change(list)), 40, "statement 87");
    assert_eq!(code(AlterConfigsError::Invalid(TopicFault::Lags { min: 2, max: 1 })), 40);
    assert_eq!(code(AlterConfigsError::Change(ChangeError::Duplicate)), 42);
    assert_eq!(code(AlterConfigsError::Contended("t".to_owned())), -1);
}

#[test]
fn a_wish_that_shard_0_does_not_hear_times_out() {
    let shards = SimShard::process(3, 2);
    let mut seats = seats(2, Class::Control, 1);
    let admin = Shards::new(&shards[1], AdminService::elsewhere(), seats.pop().unwrap());
    // Shard 0 has ended.
    drop(Shards::new(&shards[0], AdminService::elsewhere(), seats.pop().unwrap()));
    shards[0].world().run_until_idle();
    let wish = AlterTopic {
        topic: "t".to_owned(),
        alteration: Alteration::Change(Vec::new()),
        mode: Mode::Validate,
    };
    let shard = shards[1].clone();
    let refusal = shards[1].world().block_on(async move { ask(&shard, &admin, wish).await }).unwrap_err();
    assert_eq!(refusal, (ErrorCode::RequestTimedOut, Some(AskError::Stopped.to_string())));
}

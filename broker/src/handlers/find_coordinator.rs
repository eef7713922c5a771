//! FindCoordinator (10): which broker coordinates a group, with its endpoint on the listener of the request
//! (coordinators.md 2.14). The topic that holds groups is created when it is first asked for. There are no transactions
//! yet, so that no coordinator of theirs is available.

use std::rc::Rc;

use protocol::api::ApiKey;
use protocol::codec::{Layout, ListWriter};
use protocol::error::ErrorCode;
use protocol::messages::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use protocol::types::{BrokerId, CONSUMER_OFFSETS, TopicId, TopicName};
use storage::io::Runtime;

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::{Answer, Request};
use crate::admin::ask::{AdminAnswer, AdminAsk, CreateTopicError};
use crate::admin::service::AdminService;
use crate::coordinator::client::CountPartitions;
use crate::metadata::image::Image;
use crate::metrics::lines;
use crate::shard::pace::Pace;
use crate::shard::{ShardId, ShardRuntime, Shards};

/// Key types that have a coordinator.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;

/// The version from which share groups are known.
const SHARE_VERSION_MIN: i16 = 6;

/// A coordinator: its id, host and port.
type Node<'a> = (BrokerId, &'a str, i32);

/// Handles one request.
pub async fn handle<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let message = match decode::<FindCoordinatorRequest<'_>>(request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let version = request.api_version;
    let mut pace = Pace::new(&wiring.runtime);
    if let Err(code) = check(message.key_type, version) {
        tell(request, message.key_type);
        return reply(request, &response(&message, version, |_| Err(code), &mut pace).await);
    }
    if wiring.image.current().topic(CONSUMER_OFFSETS).is_none() {
        create(wiring, request).await;
        let code = ErrorCode::CoordinatorNotAvailable;
        return reply(request, &response(&message, version, |_| Err(code), &mut pace).await);
    }
    let placement = wiring.groups.placement().await;
    let leader = |key: &str| match &placement {
        Some(placement) => placement.coordinator(key).leader,
        None => BrokerId::NONE,
    };
    let (image, listener) = (wiring.image.current(), &request.connection.listener);
    let find = |key: &str| node(&image, leader(key), listener);
    reply(request, &response(&message, version, find, &mut pace).await)
}

/// Counts the partitions of the topic of groups, as the metadata store has them.
pub fn count_partitions<R: ShardRuntime>(runtime: &R, admin: &Shards<R, AdminService>) -> CountPartitions {
    let (runtime, admin) = (runtime.clone(), admin.clone());
    Rc::new(move || {
        let (runtime, admin) = (runtime.clone(), admin.clone());
        Box::pin(async move {
            let by = deadline(&runtime, ASK_MS_MAX);
            let ask = AdminAsk::CountPartitions(TopicName::new(CONSUMER_OFFSETS));
            match admin.ask(ShardId::CONTROL, by, ask).await {
                Ok(AdminAnswer::Counted(Ok(counted))) => counted,
                // Whoever asks tries again.
                Ok(_) | Err(_) => None::<(TopicId, i32)>,
            }
        })
    })
}

/// What is answered for every key, whatever it is.
fn check(key_type: i8, version: i16) -> Result<(), ErrorCode> {
    match key_type {
        GROUP => Ok(()),
        TRANSACTION => Err(ErrorCode::CoordinatorNotAvailable),
        // Nobody coordinates them in Kafka 3.9 either.
        SHARE if version >= SHARE_VERSION_MIN => Err(ErrorCode::CoordinatorNotAvailable),
        _ => Err(ErrorCode::InvalidRequest),
    }
}

/// A live broker as the clients of one listener reach it.
fn node<'a>(image: &'a Image, leader: BrokerId, listener: &str) -> Result<Node<'a>, ErrorCode> {
    let endpoint = image.brokers.get(&leader).and_then(|broker| broker.endpoint(listener));
    let endpoint = endpoint.ok_or(ErrorCode::CoordinatorNotAvailable)?;
    Ok((leader, &*endpoint.host, i32::from(endpoint.port)))
}

/// Has the topic of groups created, whatever `auto.create.topics.enable` says; the client tries again.
async fn create<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) {
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let ask = AdminAsk::AutoCreate(vec![TopicName::new(CONSUMER_OFFSETS)]);
    let Ok(AdminAnswer::AutoCreated(created)) = wiring.admin.ask(ShardId::CONTROL, by, ask).await else {
        return;
    };
    match created.into_iter().next() {
        // Another client was first.
        None | Some(Ok(()) | Err(CreateTopicError::Exists(_))) => {}
        Some(Err(error)) => {
            let lines = &request.connection.account.metrics.waiting_clients;
            let who = (request.connection.peer.ip(), CONSUMER_OFFSETS);
            if let Some(held_back) = lines.admit(request.received, TOLD_EVERY_MS, who) {
                tracing::error!(%error, held_back, "no groups: __consumer_offsets cannot be created");
            }
        }
    }
}

/// How long a client that waits for a coordinator is not told of again: it asks several times a second.
const TOLD_EVERY_MS: i64 = 600_000;

/// The client tries again and again and says nothing: the operator is told why.
fn tell(request: &Request, key_type: i8) {
    let connection = &request.connection;
    let what = match key_type {
        TRANSACTION => "transactions are not served yet: its producers must do without a transactional.id",
        _ => return,
    };
    let lines = &connection.account.metrics.waiting_clients;
    if let Some(held_back) = lines.admit(request.received, TOLD_EVERY_MS, (connection.peer.ip(), what)) {
        let client_id = lines::shown(&request.client_id);
        tracing::warn!(client_id, peer = %connection.peer, held_back, "a client waits for a coordinator: {what}");
    }
}

/// What is told beside a code in the versions before 4. Kafka leaves it empty in later ones.
const fn text(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::None => "NONE",
        ErrorCode::InvalidRequest => "The coordinator key type is not known.",
        _ => "The coordinator is not available.",
    }
}

/// The answer: for each key what `find` says of it, in their order. Several keys are answered one by one: there may be
/// hundreds of thousands.
async fn response<'a, R: Runtime>(
    request: &FindCoordinatorRequest<'a>,
    version: i16,
    find: impl Fn(&str) -> Result<Node<'a>, ErrorCode>,
    pace: &mut Pace<'_, R>,
) -> FindCoordinatorResponse<'a> {
    let told = |key: &str| match find(key) {
        Ok((id, host, port)) => (ErrorCode::None, id.get(), host, port),
        Err(code) => (code, BrokerId::NONE.get(), "", -1),
    };
    if version < 4 {
        let (code, node_id, host, port) = told(&request.key);
        return FindCoordinatorResponse {
            error_code: code.get(),
            error_message: Some(text(code).into()),
            node_id,
            host: host.into(),
            port,
            ..FindCoordinatorResponse::default()
        };
    }
    let mut coordinators = ListWriter::new(Layout::of(ApiKey::FindCoordinator, version));
    for key in &request.coordinator_keys {
        let (code, node_id, host, port) = told(key);
        let (key, host, error_code) = ((&**key).into(), host.into(), code.get());
        coordinators.push(&Coordinator {
            key,
            node_id,
            host,
            port,
            error_code,
            error_message: Some("".into()),
        });
        pace.step().await;
    }
    FindCoordinatorResponse { coordinators: coordinators.finish(), ..FindCoordinatorResponse::default() }
}

#[cfg(test)]
mod tests {
    use protocol::codec::{Cursor, Writer};
    use protocol::messages::Message;
    use storage::io::sim::SimRuntime;

    use super::*;
    use crate::shard::pace::turns_of;

    fn request(key_type: i8, keys: Vec<&'static str>) -> FindCoordinatorRequest<'static> {
        let coordinator_keys = keys.into_iter().map(Into::into).collect();
        FindCoordinatorRequest { key: "g".into(), key_type, coordinator_keys }
    }

    /// The answer, where each key takes ten microseconds, and the turns that the shard had.
    fn respond(
        request: &FindCoordinatorRequest<'static>,
        version: i16,
        find: impl Fn(&str) -> Result<Node<'static>, ErrorCode>,
    ) -> (FindCoordinatorResponse<'static>, usize) {
        let runtime = SimRuntime::new(1);
        let find = |key: &str| {
            runtime.advance_nanos(10_000);
            find(key)
        };
        let mut pace = Pace::new(&runtime);
        turns_of(&runtime, response(request, version, find, &mut pace))
    }

    #[test]
    fn one_key_without_a_coordinator_has_no_node() {
        for version in [0, 1, 3] {
            let code = ErrorCode::CoordinatorNotAvailable;
            let (answer, _) = respond(&request(GROUP, vec![]), version, |_| Err(code));
            assert_eq!(
                (answer.error_code, answer.node_id, answer.host.as_ref(), answer.port),
                (15, -1, "", -1)
            );
            assert_eq!(answer.error_message.as_deref(), Some("The coordinator is not available."));
        }
    }

    #[test]
    fn several_keys_are_answered_each_in_order_with_an_error_of_its_own() {
        let find = |key: &str| match key {
            "b" => Ok((BrokerId::new(7), "h", 9)),
            _ => Err(ErrorCode::CoordinatorNotAvailable),
        };
        let mut writer = Writer::new();
        respond(&request(GROUP, vec!["b", "a", "b"]), 4, find).0.encode(&mut writer, 4);
        let bytes = writer.into_bytes();
        let answer = FindCoordinatorResponse::decode(&mut Cursor::new(&bytes), 4).unwrap();
        let told =
            |c: &Coordinator<'_>| (c.key.to_string(), c.error_code, c.node_id, c.host.to_string(), c.port);
        let b = || ("b".to_owned(), 0, 7, "h".to_owned(), 9);
        let a = ("a".to_owned(), 15, -1, String::new(), -1);
        assert_eq!(answer.coordinators.elements().iter().map(told).collect::<Vec<_>>(), [b(), a, b()]);
        assert!(answer.coordinators.elements().iter().all(|c| c.error_message.as_deref() == Some("")));
    }

    #[test]
    fn many_keys_let_the_shard_have_its_turns_also_where_all_are_refused() {
        for told in [Ok((BrokerId::new(7), "h", 9)), Err(ErrorCode::InvalidRequest)] {
            let (_, turns) = respond(&request(GROUP, vec!["g"; 320]), 4, |_| told);
            assert_eq!(turns, 9, "the first look only sees the time");
        }
    }

    #[test]
    fn only_groups_have_a_coordinator() {
        assert_eq!(check(GROUP, 0), Ok(()));
        assert_eq!(check(TRANSACTION, 3), Err(ErrorCode::CoordinatorNotAvailable));
        assert_eq!(check(SHARE, 6), Err(ErrorCode::CoordinatorNotAvailable));
        for (version, key_type) in [(5, SHARE), (6, 3), (2, 7), (1, -1)] {
            assert_eq!(
                check(key_type, version),
                Err(ErrorCode::InvalidRequest),
                "v{version} type {key_type}"
            );
        }
    }
}

//! FindCoordinator (10): there are no groups and no transactions yet, so no coordinator is available; nothing is created
//! (coordinators.md 2.14).

use protocol::error::ErrorCode;
use protocol::messages::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};

use super::dispatch::{decode, reply};
use super::{Answer, Request};
use crate::metrics::lines;

/// Key types that have a coordinator once their topics exist.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

/// Handles one request.
pub fn handle(request: &Request) -> Answer {
    match decode::<FindCoordinatorRequest<'_>>(request) {
        Ok(message) => {
            tell(request, message.key_type);
            reply(request, &answer(&message, request.api_version))
        }
        Err(malformed) => malformed.into(),
    }
}

/// How long a client that waits for a coordinator is not told of again: it asks several times a second.
const TOLD_EVERY_MS: i64 = 600_000;

/// The client tries again and again and says nothing: the operator is told why.
fn tell(request: &Request, key_type: i8) {
    let connection = &request.connection;
    let what = match key_type {
        GROUP => "consumer groups are not served yet: its consumers must assign their partitions themselves",
        TRANSACTION => "transactions are not served yet: its producers must do without a transactional.id",
        _ => return,
    };
    let lines = &connection.account.metrics.waiting_clients;
    if let Some(held_back) = lines.admit(request.received, TOLD_EVERY_MS, (connection.peer.ip(), what)) {
        let client_id = lines::shown(&request.client_id);
        tracing::warn!(client_id, peer = %connection.peer, held_back, "a client waits for a coordinator: {what}");
    }
}

fn answer<'a>(request: &FindCoordinatorRequest<'a>, version: i16) -> FindCoordinatorResponse<'a> {
    // Version 0 knows groups only. Share groups are KRaft's; Kafka 3.9 answers the same.
    let (code, message) = match request.key_type {
        GROUP | TRANSACTION => (ErrorCode::CoordinatorNotAvailable, "The coordinator is not available."),
        _ => (ErrorCode::InvalidRequest, "The coordinator key type is not known."),
    };
    let mut response = FindCoordinatorResponse {
        throttle_time_ms: 0,
        error_code: 0,
        error_message: None,
        node_id: 0,
        host: "".into(),
        port: 0,
        coordinators: Vec::new(),
    };
    if version < 4 {
        response.error_code = code.get();
        response.error_message = Some(message.into());
        (response.node_id, response.port) = (-1, -1);
        return response;
    }
    let coordinator = |key: &protocol::codec::Str<'a>| Coordinator {
        key: key.clone(),
        node_id: -1,
        host: "".into(),
        port: -1,
        error_code: code.get(),
        error_message: Some(message.into()),
    };
    response.coordinators = request.coordinator_keys.iter().map(coordinator).collect();
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key_type: i8, keys: &[&'static str]) -> FindCoordinatorRequest<'static> {
        let coordinator_keys = keys.iter().map(|key| (*key).into()).collect();
        FindCoordinatorRequest { key: "g".into(), key_type, coordinator_keys }
    }

    #[test]
    fn one_key_gets_no_coordinator_for_now() {
        for (version, key_type) in [(0, 0), (1, 0), (3, 1)] {
            let answer = answer(&request(key_type, &[]), version);
            assert_eq!(
                (answer.error_code, answer.node_id, answer.host.as_ref(), answer.port),
                (15, -1, "", -1)
            );
        }
    }

    #[test]
    fn several_keys_are_answered_each_in_order() {
        let answer = answer(&request(0, &["b", "a", "b"]), 4);
        let keys: Vec<_> =
            answer.coordinators.iter().map(|c| (c.key.as_ref(), c.error_code, c.node_id)).collect();
        assert_eq!(keys, vec![("b", 15, -1), ("a", 15, -1), ("b", 15, -1)]);
    }

    #[test]
    fn other_key_types_are_invalid_requests() {
        for (version, key_type) in [(5, 2), (6, 2), (6, 3), (2, 7), (1, -1)] {
            let answer = answer(&request(key_type, &["k"]), version);
            let code = answer.coordinators.first().map_or(answer.error_code, |c| c.error_code);
            assert_eq!(code, 42, "v{version} type {key_type}");
        }
    }
}

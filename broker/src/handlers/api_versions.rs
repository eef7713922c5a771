//! ApiVersions (18): what this broker serves, before anything else is known of the client (protocol.md 3.1).

use protocol::api::{self, ApiKey};
use protocol::codec::Writer;
use protocol::error::ErrorCode;
use protocol::messages::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse, Message};
use smallvec::smallvec;
use storage::io::Span;

use super::dispatch::{decode, reply};
use super::{Answer, Request, Response};

/// Handles one request: the one that is answered in any version.
pub fn handle(request: &Request) -> Answer {
    let is_served = api::served(ApiKey::ApiVersions).is_some_and(|api| api.serves(request.api_version));
    if is_served {
        return match decode::<ApiVersionsRequest<'_>>(request) {
            Ok(message) => reply(request, &answer(&message, request.api_version)),
            Err(malformed) => malformed.into(),
        };
    }
    let mut writer = Writer::new();
    api::response_header(ApiKey::ApiVersions, 0, request.correlation_id, &mut writer);
    unsupported().encode(&mut writer, 0);
    Answer::Reply(Response { spans: smallvec![Span::Memory(writer.into_bytes().freeze())] })
}

/// The answer to a version that is not served: in version 0, with the versions that are (KIP-511). The body of the
/// request is not looked at.
fn unsupported() -> ApiVersionsResponse<'static> {
    let own = api::SERVED.iter().filter(|api| api.key == ApiKey::ApiVersions).map(entry).collect();
    response(ErrorCode::UnsupportedVersion, own)
}

/// The answer to a version that is served.
fn answer(request: &ApiVersionsRequest<'_>, version: i16) -> ApiVersionsResponse<'static> {
    let named = |text: &str| is_software_name(text);
    if version >= 3 && !(named(&request.client_software_name) && named(&request.client_software_version)) {
        return response(ErrorCode::InvalidRequest, Vec::new());
    }
    response(ErrorCode::None, api::SERVED.iter().map(entry).collect())
}

fn entry(api: &api::Api) -> ApiVersion {
    ApiVersion { api_key: api.key.get(), min_version: api.advertised_min, max_version: api.max }
}

/// No features: a broker in ZooKeeper mode has none, neither supported nor finalized (KIP-584).
fn response(error: ErrorCode, api_keys: Vec<ApiVersion>) -> ApiVersionsResponse<'static> {
    ApiVersionsResponse {
        error_code: error.get(),
        api_keys,
        throttle_time_ms: 0,
        supported_features: Vec::new(),
        finalized_features_epoch: -1,
        finalized_features: Vec::new(),
        zk_migration_ready: false,
    }
}

/// `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`
fn is_software_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &'static str, version: &'static str) -> ApiVersionsRequest<'static> {
        ApiVersionsRequest { client_software_name: name.into(), client_software_version: version.into() }
    }

    #[test]
    fn statement_1_an_unknown_version_learns_the_known_ones() {
        let answer = unsupported();
        assert_eq!(answer.error_code, 35);
        let keys: Vec<_> =
            answer.api_keys.iter().map(|k| (k.api_key, k.min_version, k.max_version)).collect();
        assert_eq!(keys, vec![(18, 0, 4)]);
    }

    #[test]
    fn statement_3_a_bad_software_name_is_an_invalid_request() {
        for (name, version) in
            [("bad name!", "1"), ("", "1"), ("a", ""), ("-a", "1"), ("a", "1."), ("ä", "1")]
        {
            let answer = answer(&request(name, version), 3);
            assert_eq!((answer.error_code, answer.api_keys.len()), (42, 0), "{name:?} {version:?}");
        }
        for (name, version) in [("apache-kafka-java", "3.9.0"), ("x", "1"), ("a.b-c", "0")] {
            assert_eq!(answer(&request(name, version), 4).error_code, 0);
        }
        // Versions before 3 do not have the fields.
        assert_eq!(answer(&request("", ""), 2).error_code, 0);
    }

    #[test]
    fn statement_6_the_produce_row_begins_at_0() {
        let answer = answer(&request("x", "1"), 3);
        let row = answer.api_keys.iter().find(|key| key.api_key == 0).unwrap();
        assert_eq!((row.min_version, row.max_version), (0, 11));
        assert!(answer.supported_features.is_empty() && answer.finalized_features.is_empty());
    }
}

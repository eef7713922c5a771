//! The statements of protocol.md 5 that are decided by bytes alone. What becomes of a connection is tested in the
//! broker; here a decoding error stands for "is closed".
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod support;

use protocol::api::{ApiKey, RequestHeader, SERVED, response_header, served};
use protocol::codec::{Cursor, Writer};
use protocol::error::DecodeError;
use protocol::messages::{
    ApiVersion, ApiVersionsResponse, Message, MetadataRequest, ProduceRequest, SupportedFeatureKey,
};
use support::alloc::{Counting, assert_bounded};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads the header of a request and its body as a Metadata request.
fn metadata(frame: &[u8]) -> Result<(Option<String>, usize), DecodeError> {
    let mut cursor = Cursor::new(frame);
    let header = RequestHeader::decode(&mut cursor)?;
    assert_eq!((header.api_key, header.correlation_id), (ApiKey::Metadata, 7));
    let request = MetadataRequest::decode(&mut cursor, header.api_version)?;
    Ok((header.client_id.map(ToOwned::to_owned), request.topics.map_or(0, |topics| topics.len())))
}

/// A Metadata v9 request for one topic, with these tags in its header.
fn metadata_frame(client_id: &[u8], tags: &[u8]) -> Vec<u8> {
    [&[0, 3, 0, 9, 0, 0, 0, 7], client_id, tags, &[2, 2, b't', 0, 1, 0, 0, 0]].concat()
}

#[test]
fn statement_1_api_versions_99_is_read_with_header_v2_and_answered_in_v0() {
    let frame = [0, 18, 0, 99, 0, 0, 0, 7, 0, 1, b'c', 0, 0xff, 0xff];
    let header = RequestHeader::decode(&mut Cursor::new(&frame)).unwrap();
    assert!(!served(header.api_key).unwrap().serves(header.api_version));
    let mut writer = Writer::new();
    response_header(header.api_key, 0, header.correlation_id, &mut writer);
    let only = ApiVersion { api_key: 18, min_version: 0, max_version: 4 };
    ApiVersionsResponse { error_code: 35, api_keys: vec![only], ..Default::default() }.encode(&mut writer, 0);
    assert_eq!(&writer.into_bytes()[..], [0, 0, 0, 7, 0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4]);
}

#[test]
fn statement_2_api_versions_3_has_a_flexible_body_behind_response_header_v0() {
    let mut writer = Writer::new();
    response_header(ApiKey::ApiVersions, 3, 7, &mut writer);
    let feature = SupportedFeatureKey { name: "f".into(), min_version: 1, max_version: 2 };
    let response = ApiVersionsResponse {
        api_keys: vec![ApiVersion { api_key: 18, min_version: 0, max_version: 4 }],
        supported_features: vec![feature],
        ..Default::default()
    };
    response.encode(&mut writer, 3);
    #[rustfmt::skip]
    assert_eq!(&writer.into_bytes()[..], [
        0, 0, 0, 7,                        // correlation id, no tags
        0, 0,                              // error code
        2, 0, 18, 0, 0, 0, 4, 0,           // one key, with its tags
        0, 0, 0, 0,                        // throttle time
        1, 0, 8, 2, 2, b'f', 0, 1, 0, 2, 0, // one tag of eight bytes: the features
    ]);
}

#[test]
fn statement_6_the_produce_row_begins_at_0() {
    assert_eq!(served(ApiKey::Produce).unwrap().advertised_min, 0);
    assert!(SERVED.iter().all(|api| api.key == ApiKey::Produce || api.advertised_min == api.min));
}

#[test]
fn statements_7_and_9_versions_and_keys_that_are_not_served_are_refused() {
    for frame in [[0, 0, 0, 2, 0, 0, 0, 7, 0xff, 0xff], [0x03, 0xe7, 0, 0, 0, 0, 0, 7, 0xff, 0xff]] {
        let error = RequestHeader::decode(&mut Cursor::new(&frame)).unwrap_err();
        assert!(matches!(error, DecodeError::UnknownApi { .. }), "{error}");
    }
}

#[test]
fn statement_10_a_frame_of_size_zero_has_no_header() {
    // The sizes themselves are judged where frames are read, before there are bytes to decode.
    let error = RequestHeader::decode(&mut Cursor::new(&[])).unwrap_err();
    assert_eq!(error, DecodeError::Truncated { needed: 2, left: 0 });
}

#[test]
fn statement_11_a_produce_that_claims_four_billion_topics_costs_nothing() {
    let body = [0, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let decode = || ProduceRequest::decode(&mut Cursor::new(&body), 9).is_err();
    assert!(assert_bounded(body.len(), decode));
    // Nor does a count that a frame could hold, were there one.
    let body = [0, 0, 1, 0, 0, 0, 1, 0x80, 0x80, 0x80, 0x80, 0x04];
    assert!(ProduceRequest::decode(&mut Cursor::new(&body), 9).is_err());
}

#[test]
fn statement_12_unknown_tags_of_the_header_are_skipped() {
    let frame = metadata_frame(&[0, 1, b'c'], &[2, 5, 1, 0xaa, 9, 2, 0xbb, 0xcc]);
    assert_eq!(metadata(&frame), Ok((Some("c".to_owned()), 1)));
}

#[test]
fn statement_13_tags_may_descend_but_not_repeat() {
    let descending = metadata_frame(&[0, 1, b'c'], &[2, 9, 1, 0xaa, 5, 1, 0xbb]);
    assert_eq!(metadata(&descending), Ok((Some("c".to_owned()), 1)));
    let twice = metadata_frame(&[0, 1, b'c'], &[2, 5, 1, 0xaa, 5, 1, 0xbb]);
    assert_eq!(metadata(&twice), Err(DecodeError::RepeatedTag(5)));
}

#[test]
fn statement_14_a_null_client_id_is_read() {
    assert_eq!(metadata(&metadata_frame(&[0xff, 0xff], &[0])), Ok((None, 1)));
    assert_eq!(metadata(&metadata_frame(&[0, 0], &[0])), Ok((Some(String::new()), 1)));
}

#[test]
fn statement_43_an_empty_list_of_topics_means_all_in_version_0_only() {
    let decode = |bytes: &[u8], version| {
        MetadataRequest::decode(&mut Cursor::new(bytes), version)
            .map(|request| request.is_all_topics(version))
    };
    assert_eq!(decode(&[0, 0, 0, 0], 0), Ok(true));
    assert_eq!(decode(&[0, 0, 0, 0], 1), Ok(false));
    assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff], 1), Ok(true));
    assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff], 0), Err(DecodeError::BadLength(-1)));
    assert_eq!(decode(&[0, 1, 0, 0, 0], 9), Ok(true));
    assert_eq!(decode(&[1, 1, 0, 0, 0], 9), Ok(false));
}

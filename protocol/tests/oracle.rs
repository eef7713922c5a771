//! Byte equality with an independent implementation, the crate `kafka-protocol`, in every version that it knows, and
//! fixtures worked out by hand from Kafka's schemas for the versions that it does not.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod support;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey as OracleKey, RequestKind, ResponseKind};
use protocol::api::ApiKey;
use protocol::codec::{Cursor, Sampler, Writer};
use protocol::messages::{
    DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse, Message, MetadataRequest,
    MetadataResponse,
};
use support::leaves::leaves;
use support::{Codec, Half, codecs, declared};

fn oracle_key(key: ApiKey) -> OracleKey {
    OracleKey::try_from(key.get()).unwrap()
}

fn oracle_knows(key: ApiKey, version: i16) -> bool {
    let range = oracle_key(key).valid_versions();
    (range.min..=range.max).contains(&version)
}

/// What the oracle makes of `bytes`: its own encoding of it, and its `Debug` form.
fn through_oracle(codec: &Codec, bytes: &[u8], version: i16) -> (Bytes, String) {
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut again = BytesMut::new();
    let debug = match codec.half {
        Half::Request => {
            let request = RequestKind::decode(oracle_key(codec.key), &mut rest, version).unwrap();
            request.encode(&mut again, version).unwrap();
            format!("{request:?}")
        }
        Half::Response => {
            let response = ResponseKind::decode(oracle_key(codec.key), &mut rest, version).unwrap();
            response.encode(&mut again, version).unwrap();
            format!("{response:?}")
        }
    };
    assert!(rest.is_empty(), "{} version {version}: {} bytes left", codec.name, rest.len());
    (again.freeze(), debug)
}

/// Whether a field came in a version that the oracle lacks.
fn is_ours_alone(codec: &Codec, path: &str) -> bool {
    match codec.name {
        "MetadataResponse" => path == ".error_code",
        "DescribeClusterRequest" => path == ".include_fenced_brokers",
        "DescribeClusterResponse" => path.ends_with(".is_fenced"),
        _ => false,
    }
}

fn compare(codec: &Codec, bytes: &[u8], version: i16) {
    let (theirs, their_debug) = through_oracle(codec, bytes, version);
    assert_eq!(theirs, bytes, "{} version {version}", codec.name);
    assert_eq!((codec.recode)(&theirs, version).unwrap(), theirs, "{} version {version}", codec.name);
    let mut ours = leaves(&(codec.debug)(bytes, version));
    ours.retain(|path, _| !is_ours_alone(codec, path));
    assert_eq!(ours, leaves(&their_debug), "{} version {version}", codec.name);
}

/// Calls `test` for every message and version that the oracle knows and we declare.
fn for_each_known(mut test: impl FnMut(&Codec, i16)) {
    for codec in codecs() {
        for version in codec.versions().filter(|version| oracle_knows(codec.key, *version)) {
            test(&codec, version);
        }
    }
}

#[test]
fn full_messages_have_the_oracles_bytes_and_fields() {
    for_each_known(|codec, version| compare(codec, &(codec.sample)(&mut Sampler::full(), version), version));
}

#[test]
fn default_messages_have_the_oracles_bytes_and_fields() {
    for_each_known(|codec, version| compare(codec, &(codec.default)(version), version));
}

#[test]
fn random_messages_have_the_oracles_bytes_and_fields() {
    for seed in 0..20 {
        for_each_known(|codec, version| {
            compare(codec, &(codec.sample)(&mut Sampler::random(seed), version), version);
        });
    }
}

#[test]
fn flexible_versions_and_header_versions_are_the_oracles() {
    for key in ApiKey::ALL {
        let Ok(oracle) = OracleKey::try_from(key.get()) else { continue };
        let range = oracle.valid_versions();
        for version in range.min..=range.max {
            let header = oracle.request_header_version(version);
            assert_eq!(key.is_flexible(version), header == 2, "{key:?} version {version}");
        }
    }
}

#[test]
fn the_versions_that_the_oracle_lacks_are_those_of_the_fixtures_below() {
    let unknown: Vec<(ApiKey, i16)> = declared()
        .into_iter()
        .flat_map(|(key, versions)| versions.map(move |version| (key, version)))
        .filter(|(key, version)| !oracle_knows(*key, *version))
        .collect();
    assert_eq!(unknown, [(ApiKey::Metadata, 13), (ApiKey::DescribeCluster, 2)]);
}

fn assert_bytes<'a, M: Message<'a> + std::fmt::Debug>(message: &M, version: i16, bytes: &'a [u8]) {
    let mut writer = Writer::new();
    message.encode(&mut writer, version);
    assert_eq!(&writer.into_bytes()[..], bytes);
    let mut cursor = Cursor::new(bytes);
    assert_eq!(M::decode(&mut cursor, version).as_ref(), Ok(message));
    assert_eq!(cursor.left(), 0);
}

#[test]
fn metadata_13_ends_with_a_top_level_error() {
    let response = MetadataResponse { error_code: 129, cluster_id: Some("c".into()), ..Default::default() };
    #[rustfmt::skip]
    assert_bytes(&response, 13, &[
        0, 0, 0, 0,             // throttle time
        1,                      // no brokers
        2, b'c',                // cluster id
        0xff, 0xff, 0xff, 0xff, // controller id
        1,                      // no topics
        0, 129,                 // error code
        0,                      // no tags
    ]);
    #[rustfmt::skip]
    assert_bytes(&MetadataRequest { topics: None, ..Default::default() }, 13, &[
        0, // all topics
        1, // auto topic creation
        0, // no authorized operations
        0, // no tags
    ]);
}

#[test]
fn describe_cluster_2_tells_fenced_brokers() {
    #[rustfmt::skip]
    assert_bytes(&DescribeClusterRequest { include_fenced_brokers: true, ..Default::default() }, 2, &[
        0, // no authorized operations
        1, // endpoint type
        1, // fenced brokers too
        0, // no tags
    ]);
    let broker = DescribeClusterBroker {
        broker_id: 5,
        host: "h".into(),
        port: 9092,
        is_fenced: true,
        ..Default::default()
    };
    let response =
        DescribeClusterResponse { cluster_id: "c".into(), brokers: vec![broker], ..Default::default() };
    #[rustfmt::skip]
    assert_bytes(&response, 2, &[
        0, 0, 0, 0,             // throttle time
        0, 0,                   // error code
        0,                      // no error message
        1,                      // endpoint type
        2, b'c',                // cluster id
        0xff, 0xff, 0xff, 0xff, // controller id
        2,                      // one broker
        0, 0, 0, 5,             //   id
        2, b'h',                //   host
        0, 0, 0x23, 0x84,       //   port
        0,                      //   no rack
        1,                      //   fenced
        0,                      //   no tags
        0x80, 0, 0, 0,          // authorized operations were not asked for
        0,                      // no tags
    ]);
}

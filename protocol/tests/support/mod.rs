//! What the tests of this crate share: a list of all messages, made-up frames of them, mutations, and a count of what
//! is allocated.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

pub mod alloc;
pub mod fuzz;
pub mod leaves;

use std::ops::RangeInclusive;

use protocol::api::{ApiKey, SERVED};
use protocol::codec::{Cursor, Layout, Sample, Sampler, Writer};
use protocol::error::DecodeError;
use protocol::messages::{self, Message};

/// Messages that are declared before a handler serves them. A row goes when [`SERVED`] has its api.
pub const NOT_SERVED_YET: &[(ApiKey, RangeInclusive<i16>)] = &[];

/// Every api whose messages are declared, and in which versions.
pub fn declared() -> Vec<(ApiKey, RangeInclusive<i16>)> {
    let served = SERVED.iter().map(|api| (api.key, api.min..=api.max));
    served.chain(NOT_SERVED_YET.iter().cloned()).collect()
}

/// Which half of an API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Request,
    Response,
}

/// One message type, its type hidden so that all of them can be looped over.
pub struct Codec {
    pub name: &'static str,
    pub key: ApiKey,
    pub half: Half,
    /// The bytes of a made-up message.
    pub sample: fn(&mut Sampler, i16) -> Vec<u8>,
    /// The bytes of the default message, but for nulls where the version has none.
    pub default: fn(i16) -> Vec<u8>,
    /// Decodes, and forgets it; says how many bytes were read.
    pub decode: fn(&[u8], i16) -> Result<usize, DecodeError>,
    /// Decodes, encodes, decodes again and compares; says what the second encoding was.
    pub recode: fn(&[u8], i16) -> Result<Vec<u8>, DecodeError>,
    /// Makes up a message, encodes it, decodes it, and compares.
    pub round_trip: fn(&mut Sampler, i16),
    /// The `Debug` form of what is decoded.
    pub debug: fn(&[u8], i16) -> String,
}

impl Codec {
    /// The versions declared.
    pub fn versions(&self) -> RangeInclusive<i16> {
        declared().into_iter().find(|(key, _)| *key == self.key).unwrap().1
    }
}

fn bytes_of<'a>(message: &impl Message<'a>, version: i16) -> Vec<u8> {
    let mut writer = Writer::new();
    message.encode(&mut writer, version);
    writer.into_bytes().to_vec()
}

macro_rules! codecs {
    ($($half:ident $type:ident;)*) => {
        vec![$(Codec {
            name: stringify!($type),
            key: <messages::$type as Message>::KEY,
            half: Half::$half,
            sample: |sampler, version| {
                let layout = Layout::of(<messages::$type as Message>::KEY, version);
                bytes_of(&<messages::$type as Sample>::sample(sampler, layout), version)
            },
            default: |version| bytes_of(&<messages::$type as Default>::default(), version),
            decode: |bytes, version| {
                let mut cursor = Cursor::new(bytes);
                <messages::$type as Message>::decode(&mut cursor, version)?;
                Ok(cursor.position())
            },
            recode: |bytes, version| {
                let message = <messages::$type as Message>::decode(&mut Cursor::new(bytes), version)?;
                let again = bytes_of(&message, version);
                let mut cursor = Cursor::new(&again);
                let copy = <messages::$type as Message>::decode(&mut cursor, version);
                assert_eq!(copy.as_ref(), Ok(&message), "{} version {version}", stringify!($type));
                assert_eq!(cursor.left(), 0);
                drop(copy);
                Ok(again)
            },
            round_trip: |sampler, version| {
                let layout = Layout::of(<messages::$type as Message>::KEY, version);
                let message = <messages::$type as Sample>::sample(sampler, layout);
                let bytes = bytes_of(&message, version);
                let mut cursor = Cursor::new(&bytes);
                let copy = <messages::$type as Message>::decode(&mut cursor, version);
                assert_eq!(copy.as_ref(), Ok(&message), "{} version {version}", stringify!($type));
                assert_eq!(cursor.left(), 0);
            },
            debug: |bytes, version| {
                let mut cursor = Cursor::new(bytes);
                format!("{:?}", <messages::$type as Message>::decode(&mut cursor, version).unwrap())
            },
        }),*]
    };
}

/// All messages.
pub fn codecs() -> Vec<Codec> {
    codecs! {
        Request ProduceRequest;
        Response ProduceResponse;
        Request FetchRequest;
        Response FetchResponse;
        Request ListOffsetsRequest;
        Response ListOffsetsResponse;
        Request MetadataRequest;
        Response MetadataResponse;
        Request FindCoordinatorRequest;
        Response FindCoordinatorResponse;
        Request ApiVersionsRequest;
        Response ApiVersionsResponse;
        Request CreateTopicsRequest;
        Response CreateTopicsResponse;
        Request DeleteTopicsRequest;
        Response DeleteTopicsResponse;
        Request DeleteRecordsRequest;
        Response DeleteRecordsResponse;
        Request InitProducerIdRequest;
        Response InitProducerIdResponse;
        Request OffsetForLeaderEpochRequest;
        Response OffsetForLeaderEpochResponse;
        Request DescribeConfigsRequest;
        Response DescribeConfigsResponse;
        Request AlterConfigsRequest;
        Response AlterConfigsResponse;
        Request AlterReplicaLogDirsRequest;
        Response AlterReplicaLogDirsResponse;
        Request DescribeLogDirsRequest;
        Response DescribeLogDirsResponse;
        Request CreatePartitionsRequest;
        Response CreatePartitionsResponse;
        Request IncrementalAlterConfigsRequest;
        Response IncrementalAlterConfigsResponse;
        Request DescribeClusterRequest;
        Response DescribeClusterResponse;
        Request DescribeProducersRequest;
        Response DescribeProducersResponse;
        Request OffsetCommitRequest;
        Response OffsetCommitResponse;
        Request OffsetFetchRequest;
        Response OffsetFetchResponse;
        Request JoinGroupRequest;
        Response JoinGroupResponse;
        Request HeartbeatRequest;
        Response HeartbeatResponse;
        Request LeaveGroupRequest;
        Response LeaveGroupResponse;
        Request SyncGroupRequest;
        Response SyncGroupResponse;
        Request DescribeGroupsRequest;
        Response DescribeGroupsResponse;
        Request ListGroupsRequest;
        Response ListGroupsResponse;
        Request DeleteGroupsRequest;
        Response DeleteGroupsResponse;
        Request OffsetDeleteRequest;
        Response OffsetDeleteResponse;
    }
}

//! THE table: Kafka's api keys, what of them this broker serves, and the headers of requests and responses. Knows no
//! body. `net` reads headers with it, `handlers` answers ApiVersions from it (protocol.md 1.1, 2.1, 2.2).

use crate::codec::{Cursor, Writer};
use crate::error::DecodeError;

/// No version is flexible.
const NEVER: i16 = i16::MAX;

/// Declares [`ApiKey`] from one table: number, Kafka's name, first flexible version.
macro_rules! api_keys {
    ($($number:literal $name:ident $flexible_from:expr;)*) => {
        /// An API of Kafka, whether this broker serves it or not.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $(
                #[doc = concat!("Number ", $number, ".")]
                $name = $number,
            )*
        }

        impl ApiKey {
            /// Every key, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The number on the wire.
            pub const fn get(self) -> i16 {
                self as i16
            }

            /// The key with a number; `None` if Kafka has none.
            pub const fn new(number: i16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// First version with compact lengths and tagged fields (KIP-482), `None` if there is none.
            pub const fn flexible_from(self) -> Option<i16> {
                match self {
                    $(Self::$name => if $flexible_from == NEVER { None } else { Some($flexible_from) },)*
                }
            }

            /// Kafka's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

api_keys! {
    0 Produce 9;
    1 Fetch 12;
    2 ListOffsets 6;
    3 Metadata 9;
    4 LeaderAndIsr 4;
    5 StopReplica 2;
    6 UpdateMetadata 6;
    7 ControlledShutdown 3;
    8 OffsetCommit 8;
    9 OffsetFetch 6;
    10 FindCoordinator 3;
    11 JoinGroup 6;
    12 Heartbeat 4;
    13 LeaveGroup 4;
    14 SyncGroup 4;
    15 DescribeGroups 5;
    16 ListGroups 3;
    17 SaslHandshake NEVER;
    18 ApiVersions 3;
    19 CreateTopics 5;
    20 DeleteTopics 4;
    21 DeleteRecords 2;
    22 InitProducerId 2;
    23 OffsetForLeaderEpoch 4;
    24 AddPartitionsToTxn 3;
    25 AddOffsetsToTxn 3;
    26 EndTxn 3;
    27 WriteTxnMarkers 1;
    28 TxnOffsetCommit 3;
    29 DescribeAcls 2;
    30 CreateAcls 2;
    31 DeleteAcls 2;
    32 DescribeConfigs 4;
    33 AlterConfigs 2;
    34 AlterReplicaLogDirs 2;
    35 DescribeLogDirs 2;
    36 SaslAuthenticate 2;
    37 CreatePartitions 2;
    38 CreateDelegationToken 2;
    39 RenewDelegationToken 2;
    40 ExpireDelegationToken 2;
    41 DescribeDelegationToken 2;
    42 DeleteGroups 2;
    43 ElectLeaders 2;
    44 IncrementalAlterConfigs 1;
    45 AlterPartitionReassignments 0;
    46 ListPartitionReassignments 0;
    47 OffsetDelete NEVER;
    48 DescribeClientQuotas 1;
    49 AlterClientQuotas 1;
    50 DescribeUserScramCredentials 0;
    51 AlterUserScramCredentials 0;
    52 Vote 0;
    53 BeginQuorumEpoch 1;
    54 EndQuorumEpoch 1;
    55 DescribeQuorum 0;
    56 AlterPartition 0;
    57 UpdateFeatures 0;
    58 Envelope 0;
    59 FetchSnapshot 0;
    60 DescribeCluster 0;
    61 DescribeProducers 0;
    62 BrokerRegistration 0;
    63 BrokerHeartbeat 0;
    64 UnregisterBroker 0;
    65 DescribeTransactions 0;
    66 ListTransactions 0;
    67 AllocateProducerIds 0;
    68 ConsumerGroupHeartbeat 0;
    69 ConsumerGroupDescribe 0;
    70 ControllerRegistration 0;
    71 GetTelemetrySubscriptions 0;
    72 PushTelemetry 0;
    73 AssignReplicasToDirs 0;
    74 ListConfigResources 0;
    75 DescribeTopicPartitions 0;
    76 ShareGroupHeartbeat 0;
    77 ShareGroupDescribe 0;
    78 ShareFetch 0;
    79 ShareAcknowledge 0;
    80 AddRaftVoter 0;
    81 RemoveRaftVoter 0;
    82 UpdateRaftVoter 0;
    83 InitializeShareGroupState 0;
    84 ReadShareGroupState 0;
    85 WriteShareGroupState 0;
    86 DeleteShareGroupState 0;
    87 ReadShareGroupStateSummary 0;
    88 StreamsGroupHeartbeat 0;
    89 StreamsGroupDescribe 0;
    90 DescribeShareGroupOffsets 0;
    91 AlterShareGroupOffsets 0;
    92 DeleteShareGroupOffsets 0;
}

impl ApiKey {
    /// Whether `version` has compact lengths and tagged fields. Versions above all known ones have them.
    pub const fn is_flexible(self, version: i16) -> bool {
        match self.flexible_from() {
            Some(from) => version >= from,
            None => false,
        }
    }

    /// Whether answers carry response header v1, which has tagged fields. ApiVersions never does: its client does
    /// not know yet what the broker speaks (KIP-511).
    const fn has_flexible_response_header(self, version: i16) -> bool {
        !matches!(self, Self::ApiVersions) && self.is_flexible(version)
    }
}

/// What the broker serves of one API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    /// The API.
    pub key: ApiKey,
    /// Lowest version served.
    pub min: i16,
    /// Highest version served.
    pub max: i16,
    /// Lowest version that ApiVersions tells: lower than `min` where clients look for a version without using it.
    pub advertised_min: i16,
}

impl Api {
    const fn new(key: ApiKey, min: i16, max: i16) -> Self {
        Self { key, min, max, advertised_min: min }
    }

    /// Whether requests of `version` are served.
    pub const fn serves(&self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }
}

/// What the broker serves, in the order of the keys. A version stands here only when it works in full: clients take
/// the highest common one at once.
pub const SERVED: &[Api] = &[
    // librdkafka looks for Produce 0 to decide whether it may compress (KAFKA-18659).
    Api { advertised_min: 0, ..Api::new(ApiKey::Produce, 3, 11) },
    Api::new(ApiKey::Fetch, 4, 17),
    Api::new(ApiKey::ListOffsets, 0, 9),
    Api::new(ApiKey::Metadata, 0, 13),
    Api::new(ApiKey::OffsetCommit, 0, 9),
    Api::new(ApiKey::OffsetFetch, 0, 9),
    Api::new(ApiKey::FindCoordinator, 0, 6),
    Api::new(ApiKey::JoinGroup, 0, 9),
    Api::new(ApiKey::Heartbeat, 0, 4),
    Api::new(ApiKey::LeaveGroup, 0, 5),
    Api::new(ApiKey::SyncGroup, 0, 5),
    Api::new(ApiKey::DescribeGroups, 0, 5),
    Api::new(ApiKey::ListGroups, 0, 5),
    Api::new(ApiKey::ApiVersions, 0, 4),
    Api::new(ApiKey::CreateTopics, 0, 7),
    Api::new(ApiKey::DeleteTopics, 0, 6),
    Api::new(ApiKey::DeleteRecords, 0, 2),
    Api::new(ApiKey::InitProducerId, 0, 5),
    Api::new(ApiKey::OffsetForLeaderEpoch, 0, 4),
    Api::new(ApiKey::DescribeConfigs, 0, 4),
    Api::new(ApiKey::AlterConfigs, 0, 2),
    Api::new(ApiKey::AlterReplicaLogDirs, 0, 2),
    Api::new(ApiKey::DescribeLogDirs, 0, 4),
    Api::new(ApiKey::CreatePartitions, 0, 3),
    Api::new(ApiKey::DeleteGroups, 0, 2),
    Api::new(ApiKey::IncrementalAlterConfigs, 0, 1),
    Api::new(ApiKey::OffsetDelete, 0, 0),
    Api::new(ApiKey::DescribeCluster, 0, 2),
    Api::new(ApiKey::DescribeProducers, 0, 0),
];

/// What is served of `key`; `None` if nothing.
pub fn served(key: ApiKey) -> Option<&'static Api> {
    SERVED.iter().find(|api| api.key == key)
}

/// The header of a request: v1, or v2 when the version is flexible. (v0 belongs to ControlledShutdown v0 alone.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader<'a> {
    /// The API.
    pub api_key: ApiKey,
    /// Version of the API. Served, but for ApiVersions: that one takes any, and a version that is not served is
    /// answered with UNSUPPORTED_VERSION in version 0 (KIP-511).
    pub api_version: i16,
    /// Echoed in the answer.
    pub correlation_id: i32,
    /// Name the client gave itself; null is the same as "".
    pub client_id: Option<&'a str>,
}

impl<'a> RequestHeader<'a> {
    /// Reads a header; the cursor then stands at the body.
    ///
    /// # Errors
    /// `UnknownApi` when the key or the version is not served, else whatever is wrong with the bytes: in each case
    /// the connection is to be closed without an answer.
    pub fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let (key, version) = (cursor.i16()?, cursor.i16()?);
        let unknown = DecodeError::UnknownApi { key, version };
        let api = ApiKey::new(key).and_then(served).ok_or(unknown)?;
        if !api.serves(version) && api.key != ApiKey::ApiVersions {
            return Err(unknown);
        }
        let correlation_id = cursor.i32()?;
        // The client id keeps its 16-bit length in header v2.
        let client_id = cursor.nullable_string(false)?;
        if api.key.is_flexible(version) {
            cursor.tagged_fields(|_, _| Ok(false))?;
        }
        Ok(Self { api_key: api.key, api_version: version, correlation_id, client_id })
    }

    /// Writes the header, as a client does.
    pub fn encode(&self, writer: &mut Writer) {
        writer.put(&self.api_key.get().to_be_bytes());
        writer.put(&self.api_version.to_be_bytes());
        writer.put(&self.correlation_id.to_be_bytes());
        writer.nullable_string(self.client_id, false);
        if self.api_key.is_flexible(self.api_version) {
            writer.unsigned_varint(0);
        }
    }
}

/// Writes the header of an answer to a request of `key` and `version`.
pub fn response_header(key: ApiKey, version: i16, correlation_id: i32, writer: &mut Writer) {
    writer.put(&correlation_id.to_be_bytes());
    if key.has_flexible_response_header(version) {
        writer.unsigned_varint(0);
    }
}

/// Reads the header of an answer to a request of `key` and `version`, as a client does: the correlation id.
///
/// # Errors
/// Whatever is wrong with the bytes.
pub fn decode_response_header(
    key: ApiKey,
    version: i16,
    cursor: &mut Cursor<'_>,
) -> Result<i32, DecodeError> {
    let correlation_id = cursor.i32()?;
    if key.has_flexible_response_header(version) {
        cursor.tagged_fields(|_, _| Ok(false))?;
    }
    Ok(correlation_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bytes: &[u8]) -> Result<(RequestHeader<'_>, usize), DecodeError> {
        let mut cursor = Cursor::new(bytes);
        RequestHeader::decode(&mut cursor).map(|header| (header, cursor.position()))
    }

    #[test]
    fn keys_have_their_numbers_and_the_table_follows_their_order() {
        for key in ApiKey::ALL {
            assert_eq!(ApiKey::new(key.get()), Some(*key));
        }
        assert_eq!(ApiKey::new(999), None);
        assert_eq!(ApiKey::new(-1), None);
        assert!(SERVED.is_sorted_by_key(|api| api.key));
        assert_eq!(ApiKey::DescribeProducers.name(), "DescribeProducers");
    }

    #[test]
    fn produce_is_told_from_version_0_and_served_from_version_3() {
        let produce = served(ApiKey::Produce).unwrap();
        assert_eq!(produce.advertised_min, 0);
        assert!(!produce.serves(2) && produce.serves(3) && produce.serves(11) && !produce.serves(12));
        assert!(header(&[0, 0, 0, 2, 0, 0, 0, 1, 0xff, 0xff]).is_err());
    }

    #[test]
    fn keys_and_versions_that_are_not_served_close_the_connection() {
        for (key, version) in [(999, 0), (-1, 0), (3, 14), (3, -1), (4, 0), (0, 2)] {
            let [k1, k2] = i16::to_be_bytes(key);
            let [v1, v2] = i16::to_be_bytes(version);
            assert_eq!(
                header(&[k1, k2, v1, v2, 0, 0, 0, 1, 0xff, 0xff, 0]),
                Err(DecodeError::UnknownApi { key, version })
            );
        }
    }

    #[test]
    fn any_version_of_api_versions_has_a_readable_header() {
        let (read, body) = header(&[0, 18, 0, 99, 0, 0, 0, 7, 0, 1, b'c', 1, 5, 1, 9, 42]).unwrap();
        assert_eq!((read.api_version, read.correlation_id, read.client_id), (99, 7, Some("c")));
        assert_eq!(body, 15);
        let (read, body) = header(&[0, 18, 0xff, 0xff, 0, 0, 0, 7, 0xff, 0xff]).unwrap();
        assert_eq!((read.api_version, body), (-1, 10));
    }

    #[test]
    fn unknown_tags_of_the_header_are_skipped_and_repeated_ones_refused() {
        let tags = |section: &[u8]| {
            let start = [0, 3, 0, 9, 0, 0, 0, 7, 0xff, 0xff];
            header(&[&start, section].concat()).map(|(header, body)| (header.client_id.is_none(), body))
        };
        assert_eq!(tags(&[2, 5, 1, 0, 9, 2, 0, 0]), Ok((true, 18)));
        assert_eq!(tags(&[2, 9, 1, 0, 5, 2, 0, 0]), Ok((true, 18)));
        assert_eq!(tags(&[2, 9, 0, 9, 0]), Err(DecodeError::RepeatedTag(9)));
    }

    #[test]
    fn request_headers_survive_the_way() {
        for api in SERVED {
            for api_version in api.min..=api.max {
                let header =
                    RequestHeader {
                        api_key: api.key, api_version, correlation_id: -5, client_id: Some("ä")
                    };
                let mut writer = Writer::new();
                header.encode(&mut writer);
                assert_eq!(RequestHeader::decode(&mut Cursor::new(&writer.into_bytes())), Ok(header));
            }
        }
    }

    #[test]
    fn the_response_header_of_api_versions_never_has_tags() {
        let bytes = |key, version| {
            let mut writer = Writer::new();
            response_header(key, version, 7, &mut writer);
            let bytes = writer.into_bytes();
            assert_eq!(decode_response_header(key, version, &mut Cursor::new(&bytes)), Ok(7));
            bytes.len()
        };
        assert_eq!([bytes(ApiKey::ApiVersions, 0), bytes(ApiKey::ApiVersions, 3)], [4, 4]);
        assert_eq!([bytes(ApiKey::Metadata, 8), bytes(ApiKey::Metadata, 9)], [4, 5]);
        assert_eq!([bytes(ApiKey::OffsetDelete, 0), bytes(ApiKey::SaslHandshake, 1)], [4, 4]);
    }
}

//! Records of the topic `__consumer_offsets`: their keys and values, and which partition a group's are in
//! (coordinators.md 3.2, 3.3). Owns the bytes: reads every version that Kafka has written and the ones that it may write
//! once more (KIP-915), and writes what Kafka 3.9 writes. Knows no group and no batch: the broker's coordinator calls it
//! where it loads and appends.
//!
//! ```text
//! key    version | fields of the type            never flexible; the version is the type of the record
//! value  version | fields [| tags]               compact and tagged from version 4 on; a null value is a tombstone
//! ```

use bytes::Bytes;

use crate::codec::{Cursor, Segment, Writer};
use crate::error::DecodeError;

/// Key version of a committed offset in Kafka 0.8; the fields are those of [`OFFSET_KEY`].
const OFFSET_KEY_OLD: i16 = 0;
/// Key version of a committed offset.
const OFFSET_KEY: i16 = 1;
/// Key version of the metadata of a classic group.
const GROUP_KEY: i16 = 2;

/// Version of both values with compact lengths and tagged fields: read only.
const FLEXIBLE: i16 = 4;
/// Version of both values that is written.
const WRITTEN: i16 = 3;
/// Version of an offset with an expiry of its own: the only one that has it.
const EXPIRING: i16 = 1;

/// The least bytes that a member takes in any version.
const MEMBER_BYTES_MIN: usize = 15;

/// Time that is not there.
const NO_TIMESTAMP: i64 = -1;

/// The partition of `__consumer_offsets` that holds what is known of the group `id`: Java's hash of a string, over its
/// UTF-16 code units, without its sign, modulo the number of partitions. The same rule places transactional ids in
/// `__transaction_state`.
///
/// # Panics
/// When `partitions`, the number of partitions that the topic has, is not positive.
pub fn partition_of(id: &str, partitions: i32) -> i32 {
    assert!(partitions > 0, "a topic has partitions");
    let hash = id.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()));
    // The one number without a positive twin counts as 0.
    hash.checked_abs().unwrap_or(0) % partitions
}

/// Why a value cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A later Kafka wrote it: what it says must not be ignored (coordinators.md 3.5).
    #[error("value version {0} is not known")]
    UnknownVersion(i16),
    /// The bytes are not a value of their version.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKey<'a> {
    /// A committed offset: the value is an [`OffsetValue`].
    Offset {
        /// The group.
        group: &'a str,
        /// The topic.
        topic: &'a str,
        /// Index of the partition.
        partition: i32,
    },
    /// A classic group: the value is a [`GroupValue`].
    Group {
        /// The group.
        group: &'a str,
    },
    /// Something of a later Kafka, by its key version: to be skipped (KIP-915, KAFKA-14869).
    Unknown(i16),
}

impl<'a> RecordKey<'a> {
    /// Reads a key from the start of `bytes`. What follows it is passed over, as by Kafka's readers: a record that they
    /// serve must not take the partition's groups away.
    ///
    /// # Errors
    /// Any of [`DecodeError`] but `UnknownApi`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let key = match cursor.i16()? {
            OFFSET_KEY_OLD | OFFSET_KEY => Self::Offset {
                group: string(&mut cursor, false)?,
                topic: string(&mut cursor, false)?,
                partition: cursor.i32()?,
            },
            GROUP_KEY => Self::Group { group: string(&mut cursor, false)? },
            version => return Ok(Self::Unknown(version)),
        };
        Ok(key)
    }

    /// Writes the key: version 1 for an offset, 2 for a group.
    ///
    /// # Panics
    /// On [`RecordKey::Unknown`], which is only ever read; in debug builds on a string of more than
    /// [`crate::codec::STRING_BYTES_MAX`] bytes, which is cut in release builds.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        match *self {
            Self::Offset { group, topic, partition } => {
                writer.put(&OFFSET_KEY.to_be_bytes());
                writer.nullable_string(Some(group), false);
                writer.nullable_string(Some(topic), false);
                writer.put(&partition.to_be_bytes());
            }
            Self::Group { group } => {
                writer.put(&GROUP_KEY.to_be_bytes());
                writer.nullable_string(Some(group), false);
            }
            Self::Unknown(version) => unreachable!("key version {version} is only read"),
        }
        writer.into_bytes().freeze()
    }
}

/// A committed offset: the value to [`RecordKey::Offset`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetValue<'a> {
    /// The next offset to read.
    pub offset: i64,
    /// Leader epoch of the last record read; -1: not known, also where the version cannot tell.
    pub leader_epoch: i32,
    /// What the client keeps beside the offset.
    pub metadata: &'a str,
    /// Milliseconds since 1970 of the commit.
    pub commit_timestamp: i64,
    /// Milliseconds since 1970 at which the offset expires, where the commit said so (its versions 2 to 4); none: as
    /// long as the group lives (KIP-211), also where the record has -1 (KAFKA-8069).
    pub expire_timestamp: Option<i64>,
}

impl<'a> OffsetValue<'a> {
    /// Reads a value of versions 0 to 4 from the start of `bytes`, as [`RecordKey::decode`].
    ///
    /// # Errors
    /// The version is not one of these, or the bytes are not a value of it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ValueError> {
        let mut cursor = Cursor::new(bytes);
        let (version, flexible) = value_version(&mut cursor)?;
        let value = Self {
            offset: cursor.i64()?,
            leader_epoch: if version >= 3 { cursor.i32()? } else { -1 },
            metadata: string(&mut cursor, flexible)?,
            commit_timestamp: cursor.i64()?,
            expire_timestamp: if version == EXPIRING { timestamp(&mut cursor)? } else { None },
        };
        skip_tags(&mut cursor, flexible)?;
        Ok(value)
    }

    /// Writes the value: version 3, or version 1 where it expires, which has no leader epoch.
    ///
    /// # Panics
    /// In debug builds on metadata of more than [`crate::codec::STRING_BYTES_MAX`] bytes, which are cut in release builds.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        let version = if self.expire_timestamp.is_some() { EXPIRING } else { WRITTEN };
        writer.put(&version.to_be_bytes());
        writer.put(&self.offset.to_be_bytes());
        if version == WRITTEN {
            writer.put(&self.leader_epoch.to_be_bytes());
        }
        writer.nullable_string(Some(self.metadata), false);
        writer.put(&self.commit_timestamp.to_be_bytes());
        if let Some(expire_timestamp) = self.expire_timestamp {
            writer.put(&expire_timestamp.to_be_bytes());
        }
        writer.into_bytes().freeze()
    }
}

/// A classic group at the end of a rebalance: the value to [`RecordKey::Group`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupValue<'a> {
    /// `consumer`, `connect`, ...; may be empty in a group without members.
    pub protocol_type: &'a str,
    /// The generation.
    pub generation: i32,
    /// The protocol chosen; none in a group without members.
    pub protocol: Option<&'a str>,
    /// Member id of the leader; none in a group without members.
    pub leader: Option<&'a str>,
    /// Milliseconds since 1970 at which the group came into its state; none: not known, also where the version cannot
    /// tell.
    pub current_state_timestamp: Option<i64>,
    /// The members.
    pub members: Vec<GroupMember<'a>>,
}

/// A member of a [`GroupValue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember<'a> {
    /// Id of the member.
    pub member_id: &'a str,
    /// Name that a static member gave itself (KIP-345).
    pub group_instance_id: Option<&'a str>,
    /// Name that the client gave itself.
    pub client_id: &'a str,
    /// Address of the client as Kafka writes it: `/1.2.3.4`.
    pub client_host: &'a str,
    /// Milliseconds that a rebalance waits for the member; the session timeout where the version cannot tell.
    pub rebalance_timeout_ms: i32,
    /// Milliseconds without a heartbeat after which the member is gone.
    pub session_timeout_ms: i32,
    /// The member's metadata of the chosen protocol.
    pub subscription: &'a [u8],
    /// The member's assignment.
    pub assignment: &'a [u8],
}

impl<'a> GroupValue<'a> {
    /// Reads a value of versions 0 to 4 from the start of `bytes`, as [`RecordKey::decode`].
    ///
    /// # Errors
    /// The version is not one of these, or the bytes are not a value of it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ValueError> {
        let mut cursor = Cursor::new(bytes);
        let (version, flexible) = value_version(&mut cursor)?;
        let value = Self {
            protocol_type: string(&mut cursor, flexible)?,
            generation: cursor.i32()?,
            protocol: cursor.nullable_string(flexible)?,
            leader: cursor.nullable_string(flexible)?,
            current_state_timestamp: if version >= 2 { timestamp(&mut cursor)? } else { None },
            members: members(&mut cursor, version, flexible)?,
        };
        skip_tags(&mut cursor, flexible)?;
        Ok(value)
    }

    /// Writes the value: version 3.
    ///
    /// # Panics
    /// In debug builds on a string of more than [`crate::codec::STRING_BYTES_MAX`] bytes, which is cut in release builds.
    pub fn encode(&self) -> Bytes {
        let mut writer = self.begin();
        for member in &self.members {
            member.begin(&mut writer);
            writer.nullable_bytes(Some(member.subscription), false);
            writer.nullable_bytes(Some(member.assignment), false);
        }
        writer.into_bytes().freeze()
    }

    /// The same in pieces that follow each other, with subscription and assignment of each member as they are in `brought`,
    /// in the members' order: large ones are not copied. The members' own are not looked at.
    ///
    /// # Panics
    /// As [`GroupValue::encode`].
    pub fn encode_around<'b>(&self, brought: impl IntoIterator<Item = [&'b Bytes; 2]>) -> Vec<Bytes> {
        let mut writer = self.begin();
        for (member, brought) in self.members.iter().zip(brought) {
            member.begin(&mut writer);
            for bytes in brought {
                writer.length(Some(bytes.len()), false);
                writer.put_shared(bytes);
            }
        }
        let pieces = writer.into_segments().segments.into_iter().map(|segment| match segment {
            Segment::Bytes(bytes) => bytes,
            Segment::Foreign(_) => unreachable!("no foreign bytes were written"),
        });
        pieces.collect()
    }

    /// What stands before the members.
    fn begin(&self) -> Writer {
        let mut writer = Writer::new();
        writer.put(&WRITTEN.to_be_bytes());
        writer.nullable_string(Some(self.protocol_type), false);
        writer.put(&self.generation.to_be_bytes());
        writer.nullable_string(self.protocol, false);
        writer.nullable_string(self.leader, false);
        writer.put(&self.current_state_timestamp.unwrap_or(NO_TIMESTAMP).to_be_bytes());
        writer.length(Some(self.members.len()), false);
        writer
    }
}

impl<'a> GroupMember<'a> {
    fn read(cursor: &mut Cursor<'a>, version: i16, flexible: bool) -> Result<Self, DecodeError> {
        let member_id = string(cursor, flexible)?;
        let group_instance_id = if version >= 3 { cursor.nullable_string(flexible)? } else { None };
        let client_id = string(cursor, flexible)?;
        let client_host = string(cursor, flexible)?;
        let rebalance_timeout_ms = if version >= 1 { Some(cursor.i32()?) } else { None };
        let session_timeout_ms = cursor.i32()?;
        let subscription = bytes(cursor, flexible)?;
        let assignment = bytes(cursor, flexible)?;
        skip_tags(cursor, flexible)?;
        Ok(Self {
            member_id,
            group_instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms: rebalance_timeout_ms.unwrap_or(session_timeout_ms),
            session_timeout_ms,
            subscription,
            assignment,
        })
    }

    /// What stands before subscription and assignment.
    fn begin(&self, writer: &mut Writer) {
        writer.nullable_string(Some(self.member_id), false);
        writer.nullable_string(self.group_instance_id, false);
        writer.nullable_string(Some(self.client_id), false);
        writer.nullable_string(Some(self.client_host), false);
        writer.put(&self.rebalance_timeout_ms.to_be_bytes());
        writer.put(&self.session_timeout_ms.to_be_bytes());
    }
}

fn members<'a>(
    cursor: &mut Cursor<'a>,
    version: i16,
    flexible: bool,
) -> Result<Vec<GroupMember<'a>>, DecodeError> {
    let count = cursor.length(flexible)?.ok_or(DecodeError::BadLength(-1))?;
    cursor.room_for(count, MEMBER_BYTES_MIN, size_of::<GroupMember<'_>>())?;
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        members.push(GroupMember::read(cursor, version, flexible)?);
    }
    Ok(members)
}

/// The version of a value, and whether it is flexible.
fn value_version(cursor: &mut Cursor<'_>) -> Result<(i16, bool), ValueError> {
    match cursor.i16()? {
        version @ 0..=FLEXIBLE => Ok((version, version >= FLEXIBLE)),
        version => Err(ValueError::UnknownVersion(version)),
    }
}

fn string<'a>(cursor: &mut Cursor<'a>, flexible: bool) -> Result<&'a str, DecodeError> {
    cursor.nullable_string(flexible)?.ok_or(DecodeError::BadLength(-1))
}

fn bytes<'a>(cursor: &mut Cursor<'a>, flexible: bool) -> Result<&'a [u8], DecodeError> {
    cursor.nullable_bytes(flexible)?.ok_or(DecodeError::BadLength(-1))
}

fn timestamp(cursor: &mut Cursor<'_>) -> Result<Option<i64>, DecodeError> {
    Ok(Some(cursor.i64()?).filter(|timestamp| *timestamp != NO_TIMESTAMP))
}

/// A later Kafka may tell more in tagged fields; who does not know them may ignore them (KIP-915).
fn skip_tags(cursor: &mut Cursor<'_>, flexible: bool) -> Result<(), DecodeError> {
    if flexible { cursor.tagged_fields(|_, _| Ok(false)) } else { Ok(()) }
}

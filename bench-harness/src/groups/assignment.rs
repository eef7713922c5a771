//! What the members of a consumer group tell each other through the broker, and the range assignment that their leader
//! makes; and whether each partition has exactly one owner. Pure. Of the formats only version 0, which all later ones begin
//! with (coordinators.md 2.15).
//!
//! ```text
//! subscription  version int16 | topics ARRAY(STRING) | user data BYTES?
//! assignment    version int16 | ARRAY(topic STRING, partitions ARRAY(int32)) | user data BYTES?
//! ```

use std::collections::BTreeMap;

use protocol::codec::{Cursor, Writer};
use protocol::error::DecodeError;

/// The name of the protocol, as Kafka's assignor has it.
pub const PROTOCOL: &str = "range";
/// The type of the groups.
pub const PROTOCOL_TYPE: &str = "consumer";

/// A member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub member_id: String,
    /// The name that it gave itself.
    pub instance_id: Option<String>,
}

/// What a member that reads one topic says of itself.
pub fn subscription(topic: &str) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.put(&0_i16.to_be_bytes());
    writer.length(Some(1), false);
    writer.nullable_string(Some(topic), false);
    writer.nullable_bytes(None, false);
    writer.into_bytes().to_vec()
}

/// What a member is told: its partitions of the topic.
pub fn encode(topic: &str, partitions: &[i32]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.put(&0_i16.to_be_bytes());
    let topics = usize::from(!partitions.is_empty());
    writer.length(Some(topics), false);
    if topics > 0 {
        writer.nullable_string(Some(topic), false);
        writer.length(Some(partitions.len()), false);
        for partition in partitions {
            writer.put(&partition.to_be_bytes());
        }
    }
    writer.nullable_bytes(None, false);
    writer.into_bytes().to_vec()
}

/// The partitions of the topic in an assignment; nothing at all is none.
///
/// # Errors
/// Bytes that are no assignment.
pub fn decode(bytes: &[u8], topic: &str) -> Result<Vec<i32>, DecodeError> {
    let mut found = Vec::new();
    if bytes.is_empty() {
        return Ok(found);
    }
    let mut cursor = Cursor::new(bytes);
    cursor.i16()?;
    for _ in 0..cursor.length(false)?.unwrap_or(0) {
        let is_ours = cursor.nullable_string(false)? == Some(topic);
        for _ in 0..cursor.length(false)?.unwrap_or(0) {
            let partition = cursor.i32()?;
            if is_ours {
                found.push(partition);
            }
        }
    }
    cursor.nullable_bytes(false)?;
    Ok(found)
}

/// Deals out partitions `0 .. partitions` of one topic as Kafka's range assignor: to the members in the order of their names
/// (ids where they have none), in one piece each, one more to the first ones.
pub fn range(mut members: Vec<Candidate>, partitions: i32) -> Vec<(String, Vec<i32>)> {
    members.sort_by(|one, other| one.place().cmp(other.place()));
    let count = i32::try_from(members.len()).unwrap_or(i32::MAX).max(1);
    let (each, more) = (partitions / count, partitions % count);
    let mut next = 0;
    let deal = |(member, place): (Candidate, i32)| {
        let first = next;
        next += each + i32::from(place < more);
        (member.member_id, (first..next).collect())
    };
    members.into_iter().zip(0..).map(deal).collect()
}

impl Candidate {
    fn place(&self) -> &str {
        self.instance_id.as_deref().unwrap_or(&self.member_id)
    }
}

/// What is wrong with the owners of partitions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongOwners {
    /// A partition that nobody reads.
    #[error("partition {partition} has no owner")]
    Nobody {
        /// Which.
        partition: i32,
    },
    /// A partition that is read twice.
    #[error("partition {partition} has two owners, {one} and {other}")]
    Two {
        /// Which.
        partition: i32,
        /// By whom.
        one: String,
        /// And whom.
        other: String,
    },
    /// A partition that there is not.
    #[error("{owner} owns partition {partition}, and there is none")]
    Unknown {
        /// Which.
        partition: i32,
        /// Of whom.
        owner: String,
    },
}

/// Whether partitions `0 .. partitions` have exactly one owner each; returns how many members own some.
///
/// # Errors
/// The first partition that has none or two, or is none.
pub fn exactly_one_owner<'a>(
    partitions: i32,
    owned: impl IntoIterator<Item = (&'a str, &'a [i32])>,
) -> Result<usize, WrongOwners> {
    let mut owners: BTreeMap<i32, &str> = BTreeMap::new();
    let mut owning = 0;
    for (owner, owned) in owned {
        owning += usize::from(!owned.is_empty());
        for partition in owned.iter().copied() {
            if !(0..partitions).contains(&partition) {
                return Err(WrongOwners::Unknown { partition, owner: owner.to_owned() });
            }
            if let Some(one) = owners.insert(partition, owner) {
                return Err(WrongOwners::Two { partition, one: one.to_owned(), other: owner.to_owned() });
            }
        }
    }
    match (0..partitions).find(|partition| !owners.contains_key(partition)) {
        Some(partition) => Err(WrongOwners::Nobody { partition }),
        None => Ok(owning),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(names: &[(&str, Option<&str>)]) -> Vec<Candidate> {
        let candidate = |(id, instance): &(&str, Option<&str>)| Candidate {
            member_id: (*id).to_owned(),
            instance_id: instance.map(str::to_owned),
        };
        names.iter().map(candidate).collect()
    }

    fn check(partitions: i32, dealt: &[(String, Vec<i32>)]) -> Result<usize, WrongOwners> {
        exactly_one_owner(partitions, dealt.iter().map(|(id, owned)| (id.as_str(), owned.as_slice())))
    }

    #[test]
    fn a_range_is_dealt_out_in_one_piece_each_and_the_first_get_more() {
        let dealt = range(candidates(&[("c", None), ("a", None), ("b", None)]), 8);
        let expected = [("a", vec![0, 1, 2]), ("b", vec![3, 4, 5]), ("c", vec![6, 7])];
        assert_eq!(dealt, expected.map(|(id, owned)| (id.to_owned(), owned)));
        let named = range(candidates(&[("x", Some("2")), ("y", Some("1"))]), 2);
        assert_eq!(named, [("y".to_owned(), vec![0]), ("x".to_owned(), vec![1])]);
    }

    #[test]
    fn every_partition_has_one_owner_whatever_the_numbers() {
        for members in 1..12 {
            let names: Vec<String> = (0..members).map(|number| format!("m-{number}")).collect();
            for partitions in 0..30 {
                let all = names
                    .iter()
                    .map(|name| Candidate { member_id: name.clone(), instance_id: None })
                    .collect();
                let dealt = range(all, partitions);
                assert_eq!(dealt.len(), names.len());
                let owning = usize::try_from(partitions).unwrap().min(names.len());
                assert_eq!(check(partitions, &dealt), Ok(owning), "{members} members, {partitions}");
            }
        }
    }

    #[test]
    fn a_partition_without_an_owner_or_with_two_is_found() {
        let owned = |pairs: &[(&str, &[i32])]| -> Vec<(String, Vec<i32>)> {
            pairs.iter().map(|(id, owned)| ((*id).to_owned(), owned.to_vec())).collect()
        };
        let nobody = check(3, &owned(&[("a", &[0]), ("b", &[2])]));
        assert_eq!(nobody, Err(WrongOwners::Nobody { partition: 1 }));
        let two = check(3, &owned(&[("a", &[0, 1]), ("b", &[1, 2])]));
        assert_eq!(two, Err(WrongOwners::Two { partition: 1, one: "a".to_owned(), other: "b".to_owned() }));
        let twice = check(1, &owned(&[("a", &[0, 0])]));
        assert!(matches!(twice, Err(WrongOwners::Two { .. })), "{twice:?}");
        for unknown in [-1, 3] {
            let found = check(3, &owned(&[("a", &[0, 1, 2, unknown])]));
            assert_eq!(found, Err(WrongOwners::Unknown { partition: unknown, owner: "a".to_owned() }));
        }
        assert_eq!(check(2, &owned(&[("a", &[0, 1]), ("idle", &[])])), Ok(1));
    }

    #[test]
    fn an_assignment_is_read_back_and_what_is_none_is_refused() {
        let bytes = encode("t", &[3, 4]);
        assert_eq!(bytes, b"\0\0\0\0\0\x01\0\x01t\0\0\0\x02\0\0\0\x03\0\0\0\x04\xff\xff\xff\xff");
        assert_eq!(decode(&bytes, "t"), Ok(vec![3, 4]));
        assert_eq!(decode(&bytes, "other"), Ok(vec![]));
        assert_eq!(decode(&encode("t", &[]), "t"), Ok(vec![]));
        assert_eq!(decode(&[], "t"), Ok(vec![]), "a member that its leader forgot");
        for end in 1..bytes.len() {
            assert!(decode(&bytes[..end], "t").is_err(), "{end} bytes");
        }
        assert!(decode(&[0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 1, b't'], "t").is_err(), "a claim is no length");
    }

    #[test]
    fn a_subscription_is_one_that_the_broker_reads() {
        let bytes = subscription("t");
        assert_eq!(protocol::consumer_protocol::subscribed_topics(&bytes), Some(vec!["t"]));
    }
}

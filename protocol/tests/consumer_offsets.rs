//! Records of `__consumer_offsets`, held against bytes that Kafka 3.9.1's own classes wrote (coordinators.md 3.2, 3.3).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod support;

use proptest::prelude::*;
use protocol::consumer_offsets::{GroupMember, GroupValue, OffsetValue, RecordKey, ValueError, partition_of};
use protocol::error::DecodeError;
use support::alloc::{Counting, assert_bounded};
use support::fuzz::{Rng, mutate};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const OFFSET_KEYS: [&str; 2] = ["000000026731000174 00000003", "000100026731000174 00000003"];
const GROUP_KEY: &str = "000200026731";

/// Offset 42, leader epoch 7, metadata `mä`, committed at 1700000000000, expires a second later; in versions 0 to 4.
const OFFSETS: [&str; 5] = [
    "0000000000000000002a00036dc3a40000018bcfe56800",
    "0001000000000000002a00036dc3a40000018bcfe568000000018bcfe56be8",
    "0002000000000000002a00036dc3a40000018bcfe56800",
    "0003000000000000002a0000000700036dc3a40000018bcfe56800",
    "0004000000000000002a00000007046dc3a40000018bcfe5680000",
];
/// The same in version 4, with tag 3.
const OFFSET_TAGGED: &str = "0004000000000000002a00000007046dc3a40000018bcfe568000103020909";
/// The same in version 1, expiring at -1.
const OFFSET_WITHOUT_EXPIRY: &str = "0001000000000000002a00036dc3a40000018bcfe56800ffffffffffffffff";

/// Generation 5 of members `m1` (static: `i1`) and `m2`; in versions 0 to 4.
const GROUPS: [&str; 5] = [
    "00000008636f6e73756d657200000005000572616e676500026d3100000002 \
     00026d3100016300082f312e322e332e340000afc800000003010203000000020405 \
     00026d3200016300082f312e322e332e340000afc800000003010203000000020405",
    "00010008636f6e73756d657200000005000572616e676500026d3100000002 \
     00026d3100016300082f312e322e332e340000ea600000afc800000003010203000000020405 \
     00026d3200016300082f312e322e332e340000ea600000afc800000003010203000000020405",
    "00020008636f6e73756d657200000005000572616e676500026d310000018bcfe5680000000002 \
     00026d3100016300082f312e322e332e340000ea600000afc800000003010203000000020405 \
     00026d3200016300082f312e322e332e340000ea600000afc800000003010203000000020405",
    "00030008636f6e73756d657200000005000572616e676500026d310000018bcfe5680000000002 \
     00026d310002693100016300082f312e322e332e340000ea600000afc800000003010203000000020405 \
     00026d32ffff00016300082f312e322e332e340000ea600000afc800000003010203000000020405",
    "000409636f6e73756d6572000000050672616e6765036d310000018bcfe5680003 \
     036d310369310263092f312e322e332e340000ea600000afc80401020303040500 \
     036d32000263092f312e322e332e340000ea600000afc8040102030304050000",
];
/// Generation 6 without members; in versions 0 to 4.
const EMPTY_GROUPS: [&str; 5] = [
    "0000000000000006ffffffff00000000",
    "0001000000000006ffffffff00000000",
    "0002000000000006ffffffffffffffffffffffff00000000",
    "0003000000000006ffffffffffffffffffffffff00000000",
    "000401000000060000ffffffffffffffff0100",
];
/// [`GROUPS`] in version 4 with `m1` alone, tag 0 in it and tag 200 behind it.
const GROUP_TAGGED: &str = "000409636f6e73756d6572000000050672616e6765036d310000018bcfe5680002 \
     036d310369310263092f312e322e332e340000ea600000afc8040102030304050100010801c80103070707";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn offset() -> OffsetValue<'static> {
    OffsetValue {
        offset: 42,
        leader_epoch: 7,
        metadata: "mä",
        commit_timestamp: 1_700_000_000_000,
        expire_timestamp: None,
    }
}

fn member(member_id: &'static str, group_instance_id: Option<&'static str>) -> GroupMember<'static> {
    GroupMember {
        member_id,
        group_instance_id,
        client_id: "c",
        client_host: "/1.2.3.4",
        rebalance_timeout_ms: 60_000,
        session_timeout_ms: 45_000,
        subscription: &[1, 2, 3],
        assignment: &[4, 5],
    }
}

fn group() -> GroupValue<'static> {
    GroupValue {
        protocol_type: "consumer",
        generation: 5,
        protocol: Some("range"),
        leader: Some("m1"),
        current_state_timestamp: Some(1_700_000_000_000),
        members: vec![member("m1", Some("i1")), member("m2", None)],
    }
}

fn empty_group() -> GroupValue<'static> {
    GroupValue {
        protocol_type: "",
        generation: 6,
        protocol: None,
        leader: None,
        current_state_timestamp: None,
        members: Vec::new(),
    }
}

/// O-10. Modulo the largest number the hash itself is seen.
#[test]
fn a_group_is_in_the_partition_of_javas_hash_of_its_id() {
    for (id, hash, partition) in [
        ("", 0, 0),
        ("a", 97, 47),
        ("my-group", 1_906_497_762, 12),
        ("test-consumer-group", 1_793_216_381, 31),
        ("polygenelubricants", 0, 0),
        ("gruppe-ü", 673_522_922, 22),
        ("grp-😀", 1_235_730_613, 13),
    ] {
        assert_eq!((partition_of(id, i32::MAX), partition_of(id, 50)), (hash, partition), "{id}");
        assert_eq!(partition_of(id, 1), 0);
    }
}

/// O-11.
#[test]
fn keys_have_kafkas_bytes() {
    let key = RecordKey::Offset { group: "g1", topic: "t", partition: 3 };
    assert_eq!(key.encode(), bytes(OFFSET_KEYS[1]));
    assert_eq!(OFFSET_KEYS.map(|hex| RecordKey::decode(&bytes(hex)) == Ok(key)), [true; 2]);
    let key = RecordKey::Group { group: "g1" };
    assert_eq!(key.encode(), bytes(GROUP_KEY));
    assert_eq!(RecordKey::decode(&bytes(GROUP_KEY)), Ok(key));
}

/// O-12: they are to be skipped, so that what follows the version has no meaning.
#[test]
fn a_key_of_another_version_is_unknown_whatever_it_says() {
    for version in [3, 8, 15, i16::MAX, -1, i16::MIN] {
        let key = [&version.to_be_bytes(), &[0xff; 3][..]].concat();
        assert_eq!(RecordKey::decode(&key), Ok(RecordKey::Unknown(version)));
        assert_eq!(RecordKey::decode(&key[..2]), Ok(RecordKey::Unknown(version)));
    }
    assert_eq!(RecordKey::decode(&[0]), Err(DecodeError::Truncated { needed: 2, left: 1 }));
    assert!(RecordKey::decode(&[]).is_err());
}

#[test]
#[should_panic(expected = "key version 9 is only read")]
fn an_unknown_key_is_never_written() {
    RecordKey::Unknown(9).encode();
}

/// O-11: the example of coordinators.md 3.3.
#[test]
fn an_offset_is_written_in_version_3() {
    let example = "0003 000000000000002a 00000007 0000 0000018bcfe56800";
    let value = OffsetValue { metadata: "", ..offset() };
    assert_eq!(value.encode(), bytes(example));
    assert_eq!(OffsetValue::decode(&bytes(example)), Ok(value));
    assert_eq!(offset().encode(), bytes(OFFSETS[3]));
}

/// O-11.
#[test]
fn offsets_of_every_version_are_read() {
    for (version, hex) in (0..).zip(OFFSETS) {
        let expected = OffsetValue {
            leader_epoch: if version >= 3 { 7 } else { -1 },
            expire_timestamp: (version == 1).then_some(1_700_000_001_000),
            ..offset()
        };
        assert_eq!(OffsetValue::decode(&bytes(hex)), Ok(expected), "version {version}");
    }
}

/// O-07, the encoding side (KAFKA-8069).
#[test]
fn an_offset_expires_only_where_its_record_says_when() {
    let expiring = OffsetValue { expire_timestamp: Some(1_700_000_001_000), leader_epoch: -1, ..offset() };
    assert_eq!(expiring.encode(), bytes(OFFSETS[1]));
    let known_epoch = OffsetValue { leader_epoch: 7, ..expiring.clone() };
    assert_eq!(known_epoch.encode(), expiring.encode(), "version 1 has no leader epoch");
    let never = OffsetValue { expire_timestamp: None, ..expiring };
    assert_eq!(OffsetValue::decode(&bytes(OFFSET_WITHOUT_EXPIRY)), Ok(never));
}

/// O-11.
#[test]
fn groups_are_written_in_version_3() {
    assert_eq!(group().encode(), bytes(GROUPS[3]));
    assert_eq!(empty_group().encode(), bytes(EMPTY_GROUPS[3]));
}

/// O-11.
#[test]
fn groups_of_every_version_are_read() {
    for (version, (hex, empty)) in (0..).zip(GROUPS.into_iter().zip(EMPTY_GROUPS)) {
        let mut expected = group();
        if version < 3 {
            expected.members[0].group_instance_id = None;
        }
        if version < 2 {
            expected.current_state_timestamp = None;
        }
        if version < 1 {
            expected.members.iter_mut().for_each(|member| member.rebalance_timeout_ms = 45_000);
        }
        assert_eq!(GroupValue::decode(&bytes(hex)), Ok(expected), "version {version}");
        assert_eq!(GroupValue::decode(&bytes(empty)), Ok(empty_group()), "version {version}");
    }
}

/// What members bring may be as large as a frame, and many bring it: the log may refuse it all the same.
#[test]
fn a_group_is_written_around_what_its_members_bring() {
    for len in [0, 3, 512, 513, 100_000] {
        let brought = [1, 2, 3, 4].map(|byte| bytes::Bytes::from(vec![byte; len]));
        let [first, second, third, fourth] = &brought;
        let mut whole: GroupValue<'_> = group();
        for (member, [subscription, assignment]) in
            whole.members.iter_mut().zip([[first, second], [third, fourth]])
        {
            member.subscription = &subscription[..];
            member.assignment = &assignment[..];
        }
        let pieces = group().encode_around([[first, second], [third, fourth]]);
        assert_eq!(pieces.concat(), whole.encode());
        let is_there = |part: &bytes::Bytes| pieces.iter().any(|piece| piece.as_ptr() == part.as_ptr());
        assert_eq!(brought.iter().all(is_there), len > 512, "{len}");
    }
}

/// O-11, KIP-915: what a later Kafka tells in tags does not stop an older one.
#[test]
fn tags_of_version_4_are_skipped_and_repeated_ones_refused() {
    assert_eq!(OffsetValue::decode(&bytes(OFFSET_TAGGED)), Ok(offset()));
    let members = vec![member("m1", Some("i1"))];
    assert_eq!(GroupValue::decode(&bytes(GROUP_TAGGED)), Ok(GroupValue { members, ..group() }));
    let mut twice = bytes(OFFSETS[4]);
    twice.pop();
    twice.extend([2, 3, 0, 3, 0]);
    let repeated = ValueError::Malformed(DecodeError::RepeatedTag(3));
    assert_eq!(OffsetValue::decode(&twice), Err(repeated));
}

#[test]
fn a_value_of_a_later_version_has_an_error_of_its_own() {
    for version in [5, i16::MAX, -1, i16::MIN] {
        for rest in [&[][..], &[0; 40]] {
            let value = [&version.to_be_bytes(), rest].concat();
            assert_eq!(OffsetValue::decode(&value), Err(ValueError::UnknownVersion(version)));
            assert_eq!(GroupValue::decode(&value), Err(ValueError::UnknownVersion(version)));
        }
    }
}

#[test]
fn null_is_not_a_string_where_kafka_has_none() {
    let null = "0003 000000000000002a 00000007 ffff 0000018bcfe56800";
    let bad = ValueError::Malformed(DecodeError::BadLength(-1));
    assert_eq!(OffsetValue::decode(&bytes(null)), Err(bad));
    assert_eq!(RecordKey::decode(&bytes("0002ffff")), Err(DecodeError::BadLength(-1)));
    let no_members = [&bytes(EMPTY_GROUPS[3])[..20], &[0xff; 4]].concat();
    assert_eq!(GroupValue::decode(&no_members).unwrap_err(), bad);
}

/// Whether it could read the bytes.
type Reader = fn(&[u8]) -> bool;

/// Every fixture, and what reads it: says whether it could, and checks that what was read survives being written.
fn readers() -> Vec<(Vec<u8>, Reader)> {
    let key = |bytes: &[u8]| RecordKey::decode(bytes).is_ok();
    let offset = |bytes: &[u8]| {
        OffsetValue::decode(bytes)
            .map(|value| assert_eq!(OffsetValue::decode(&value.encode()), Ok(value.clone())))
            .is_ok()
    };
    let group = |bytes: &[u8]| {
        GroupValue::decode(bytes)
            .map(|value| assert_eq!(GroupValue::decode(&value.encode()), Ok(value.clone())))
            .is_ok()
    };
    let with = |hex: &[&str], read: Reader| -> Vec<_> { hex.iter().map(|hex| (bytes(hex), read)).collect() };
    [
        with(&OFFSET_KEYS, key),
        with(&[GROUP_KEY], key),
        with(&OFFSETS, offset),
        with(&[OFFSET_TAGGED, OFFSET_WITHOUT_EXPIRY], offset),
        with(&GROUPS, group),
        with(&EMPTY_GROUPS, group),
        with(&[GROUP_TAGGED], group),
    ]
    .concat()
}

#[test]
fn what_is_cut_anywhere_is_an_error_and_what_follows_is_passed_over() {
    for (record, read) in readers() {
        assert!(read(&record), "{record:02x?}");
        for end in 0..record.len() {
            assert!(!assert_bounded(end, || read(&record[..end])), "{end} bytes of {record:02x?}");
        }
        assert!(read(&[&record[..], b"xyz"].concat()), "bytes behind {record:02x?}");
    }
    let longer = [&bytes(OFFSETS[3])[..], &[0; 3]].concat();
    assert_eq!(OffsetValue::decode(&longer), OffsetValue::decode(&bytes(OFFSETS[3])));
}

#[test]
fn a_million_members_that_are_not_there_cost_nothing() {
    let mut claimed = bytes(EMPTY_GROUPS[3]);
    let count = claimed.len() - 4;
    claimed.splice(count.., 1_000_000_i32.to_be_bytes());
    let error = assert_bounded(claimed.len(), || GroupValue::decode(&claimed).unwrap_err());
    assert!(matches!(error, ValueError::Malformed(DecodeError::Truncated { .. })), "{error}");
}

#[test]
fn mutated_records_do_no_harm() {
    let mut rng = Rng::new(3);
    let (mut read_anyway, mut refused) = (0, 0);
    for (record, read) in readers() {
        for _ in 0..5_000 {
            let mut mutated = record.clone();
            mutate(&mut rng, &mut mutated);
            if read(&mutated) { read_anyway += 1 } else { refused += 1 }
        }
    }
    assert!(read_anyway > 1_000 && refused > 1_000, "{read_anyway} read, {refused} refused");
}

/// Decoding alone: the checks of [`readers`] allocate too.
#[test]
fn mutated_groups_allocate_within_bounds() {
    let mut rng = Rng::new(4);
    for hex in GROUPS {
        for _ in 0..5_000 {
            let mut mutated = bytes(hex);
            mutate(&mut rng, &mut mutated);
            let _outcome = assert_bounded(mutated.len(), || GroupValue::decode(&mutated).is_ok());
        }
    }
}

/// Some text, or none.
fn text() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(".{0,20}")
}

/// A member's strings, timeouts and bytes.
type Made = ((String, Option<String>, String), (i32, i32), (Vec<u8>, Vec<u8>));

fn made(((id, instance, client), timeouts, (subscription, assignment)): &Made) -> GroupMember<'_> {
    GroupMember {
        member_id: id,
        group_instance_id: instance.as_deref(),
        client_id: client,
        client_host: "/::1",
        rebalance_timeout_ms: timeouts.0,
        session_timeout_ms: timeouts.1,
        subscription,
        assignment,
    }
}

/// Not -1, which is no time.
fn time() -> impl Strategy<Value = Option<i64>> {
    proptest::option::of(any::<i64>().prop_filter("-1 is none", |time| *time != -1))
}

proptest! {
    #[test]
    fn keys_survive_being_written(group in ".{0,20}", topic in ".{0,20}", partition: i32) {
        let offset = RecordKey::Offset { group: &group, topic: &topic, partition };
        for key in [offset, RecordKey::Group { group: &group }] {
            let written = key.encode();
            prop_assert_eq!(RecordKey::decode(&written), Ok(key));
        }
        prop_assert!((0..50).contains(&partition_of(&group, 50)));
    }

    #[test]
    fn offsets_survive_being_written(
        offset: i64,
        leader_epoch: i32,
        metadata in ".{0,40}",
        commit_timestamp: i64,
        expire_timestamp in time(),
    ) {
        let leader_epoch = if expire_timestamp.is_some() { -1 } else { leader_epoch };
        let metadata = metadata.as_str();
        let value = OffsetValue { offset, leader_epoch, metadata, commit_timestamp, expire_timestamp };
        let written = value.encode();
        prop_assert_eq!(OffsetValue::decode(&written), Ok(value));
    }

    #[test]
    fn groups_survive_being_written(
        generation: i32,
        (protocol_type, protocol, leader) in (".{0,20}", text(), text()),
        current_state_timestamp in time(),
        members in proptest::collection::vec(
            ((".{0,40}", text(), ".{0,9}"), any::<(i32, i32)>(), any::<(Vec<u8>, Vec<u8>)>()),
            0..5,
        ),
    ) {
        let value = GroupValue {
            protocol_type: &protocol_type,
            generation,
            protocol: protocol.as_deref(),
            leader: leader.as_deref(),
            current_state_timestamp,
            members: members.iter().map(made).collect(),
        };
        let written = value.encode();
        prop_assert_eq!(GroupValue::decode(&written), Ok(value));
    }
}

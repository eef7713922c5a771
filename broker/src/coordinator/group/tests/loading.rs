//! Loading (coordinators.md 3.5): O-11, O-12, O-14, G-07's other half; transactions that Kafka wrote: O-01.

use protocol::consumer_offsets::{OffsetValue, RecordKey, ValueError};
use protocol::types::ProducerId;

use super::*;
use crate::coordinator::group::{ReplayError, Replayed};

const PRODUCER: ProducerId = ProducerId::new(7);

fn key(topic: &str, partition: i32) -> Bytes {
    RecordKey::Offset { group: "g", topic, partition }.encode()
}

fn value(offset: i64) -> Bytes {
    let value = OffsetValue {
        offset,
        leader_epoch: -1,
        metadata: "",
        commit_timestamp: START_MS,
        expire_timestamp: None,
    };
    value.encode()
}

impl World {
    fn replay(&mut self, at: i64, key: &[u8], value: Option<&[u8]>) {
        self.machine.replay(Offset::new(at), key, value).expect("a record");
        self.machine.check();
    }

    fn replay_open(&mut self, at: i64, key: &[u8], value: Option<&[u8]>) {
        self.machine.replay_transactional(PRODUCER, Offset::new(at), key, value).expect("a record");
        self.machine.check();
    }

    fn marker(&mut self, committed: bool) {
        self.machine.replay_marker(PRODUCER, committed);
        self.machine.check();
    }
}

#[test]
fn a_stable_group_is_stable_after_a_fail_over() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    world.commit_now(who(&ids[0], generation), &[("t", 0, 5)]);
    let described = world.describe();
    let mut world = world.fail_over();
    assert_eq!(world.describe(), described);
    assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::None);
    let waiter = world.ask_sync(&ids[1], generation, &[]);
    assert_eq!(world.synced(waiter).assignment, format!("of {}", ids[1]));
    assert_eq!(world.fetch("t", 0, true), (5, ErrorCode::None));
    // The leader is the same.
    assert_eq!(world.join_now(join(&ids[1])).leader, ids[0]);
}

#[test]
fn loaded_members_have_their_session_to_show_themselves() {
    let mut world = World::quick();
    let id = world.settle_one();
    let mut world = world.fail_over();
    world.pass(i64::from(SESSION_MS) - 1);
    assert_eq!(world.state(), GroupState::Stable);
    world.pass(1);
    assert_eq!(world.heartbeat(who(&id, 1)), ErrorCode::UnknownMemberId);
}

#[test]
fn a_rebalance_that_was_not_finished_did_not_happen() {
    let mut world = World::quick();
    let id = world.settle_one();
    world.ask_join(join(""));
    world.ask_join(join(&id));
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    let mut world = world.fail_over();
    assert_eq!(world.state(), GroupState::Stable);
    assert_eq!(world.heartbeat(who(&id, 2)), ErrorCode::IllegalGeneration);
    assert_eq!(world.heartbeat(who(&id, 1)), ErrorCode::None);
}

#[test]
fn keys_of_later_kafkas_are_skipped_o_12() {
    let mut world = World::quick();
    for version in [3_i16, 15, 99, -1] {
        let key = [&version.to_be_bytes()[..], b"whatever"].concat();
        let replayed = world.machine.replay(Offset::ZERO, &key, Some(b"whatever"));
        assert_eq!(replayed, Ok(Replayed::Skipped(version)));
    }
    assert_eq!(world.machine.list(None).count(), 0);
}

#[test]
fn values_of_later_kafkas_and_nonsense_stop_the_loading() {
    let mut world = World::quick();
    let group = RecordKey::Group { group: "g" }.encode();
    for key in [key("t", 0), group] {
        let later = world.machine.replay(Offset::ZERO, &key, Some(b"\0\x05\0\0\0\0"));
        assert_eq!(later, Err(ReplayError::Value(ValueError::UnknownVersion(5))));
        let short = world.machine.replay(Offset::ZERO, &key, Some(b"\0\x03\0"));
        assert!(matches!(short, Err(ReplayError::Value(ValueError::Malformed(_)))), "{short:?}");
    }
    assert!(matches!(world.machine.replay(Offset::ZERO, b"\0", None), Err(ReplayError::Key(_))));
}

#[test]
fn old_keys_and_the_last_record_of_a_key_count_o_11() {
    let mut world = World::quick();
    let mut old = key("t", 0).to_vec();
    old[1] = 0;
    world.replay(0, &old, Some(&value(1)));
    assert_eq!(world.fetch("t", 0, true), (1, ErrorCode::None));
    world.replay(1, &key("t", 0), Some(&value(2)));
    world.replay(2, &key("t", 1), Some(&value(3)));
    world.replay(3, &key("t", 1), None);
    assert_eq!(world.fetch_all(), [("t".into(), 0, 2)]);
}

#[test]
fn a_tombstone_of_the_group_leaves_its_offsets_and_one_of_a_stranger_nothing() {
    let mut world = World::quick();
    let id = world.settle_one();
    world.commit_now(who(&id, 1), &[("t", 0, 1)]);
    let group = RecordKey::Group { group: "g" }.encode();
    world.log.push((group, None));
    world.log.push((RecordKey::Group { group: "stranger" }.encode(), None));
    world.log.push((key("unknown", 0), None));
    let mut world = world.fail_over();
    let described = world.describe();
    assert_eq!((described.state, &*described.protocol_type), (GroupState::Empty, ""));
    assert_eq!(world.fetch_all(), [("t".into(), 0, 1)]);
    assert_eq!(world.machine.list(None).count(), 1);
}

#[test]
fn a_group_record_that_says_a_member_twice_is_read() {
    let member = |id: &'static str, instance| protocol::consumer_offsets::GroupMember {
        member_id: id,
        group_instance_id: instance,
        client_id: "c",
        client_host: "/h",
        rebalance_timeout_ms: -1,
        session_timeout_ms: -1,
        subscription: &[],
        assignment: &[],
    };
    let value = protocol::consumer_offsets::GroupValue {
        protocol_type: "consumer",
        generation: -7,
        protocol: None,
        leader: Some("nobody"),
        current_state_timestamp: None,
        members: vec![
            member("a", Some("i")),
            member("b", Some("i")),
            member("a", Some("j")),
            member("a", None),
        ],
    };
    let mut world = World::quick();
    world.log.push((RecordKey::Group { group: "g" }.encode(), Some(value.encode())));
    let mut world = world.fail_over();
    let ids: Vec<_> = world.describe().members.into_iter().map(|member| member.member).collect();
    assert_eq!(ids, [MemberId::from("a"), MemberId::from("b")]);
    world.pass(1);
    assert_eq!(world.state(), GroupState::Empty);
}

#[test]
fn what_a_transaction_holds_counts_with_its_marker_and_is_unstable_until_then_o_01() {
    for committed in [true, false] {
        let mut world = World::quick();
        world.replay(0, &key("t", 0), Some(&value(1)));
        world.replay_open(1, &key("t", 0), Some(&value(2)));
        world.replay_open(2, &key("u", 0), Some(&value(3)));
        assert_eq!(world.fetch("t", 0, false), (1, ErrorCode::None));
        assert_eq!(world.fetch("t", 0, true), (-1, ErrorCode::UnstableOffsetCommit));
        assert_eq!(world.fetch("u", 0, true), (-1, ErrorCode::UnstableOffsetCommit));
        assert_eq!(world.fetch("u", 0, false), (-1, ErrorCode::None));
        world.marker(committed);
        let expected = if committed { (2, 3) } else { (1, -1) };
        assert_eq!(world.fetch("t", 0, true), (expected.0, ErrorCode::None));
        assert_eq!(world.fetch("u", 0, true), (expected.1, ErrorCode::None));
    }
}

#[test]
fn a_plain_commit_after_that_of_a_transaction_wins_over_it_o_14() {
    let mut world = World::quick();
    world.replay_open(0, &key("t", 0), Some(&value(1)));
    world.replay(1, &key("t", 0), Some(&value(2)));
    world.marker(true);
    assert_eq!(world.fetch("t", 0, true), (2, ErrorCode::None));
}

#[test]
fn a_tombstone_kills_what_a_transaction_holds_and_one_within_it_its_own() {
    let mut world = World::quick();
    world.replay_open(0, &key("t", 0), Some(&value(1)));
    world.replay_open(1, &key("t", 1), Some(&value(1)));
    world.replay_open(2, &key("t", 2), Some(&value(1)));
    world.replay(3, &key("t", 0), None);
    world.replay_open(4, &key("t", 1), None);
    world.replay_open(5, &key("v", 1), None);
    world.marker(true);
    assert_eq!(world.fetch_all(), [("t".into(), 2, 1)]);
}

#[test]
fn a_group_that_only_a_transaction_knows_stays_until_the_marker() {
    let mut world = World::quick();
    world.replay_open(0, &key("t", 0), Some(&value(1)));
    world.loaded();
    world.pass(30 * DAY_MS);
    world.expire();
    assert_eq!(world.machine.list(None).count(), 1, "what may still count does not expire");
    world.marker(false);
    assert_eq!(world.machine.list(None).count(), 0);
    world.marker(false);
}

#[test]
fn deletions_take_what_transactions_hold_too() {
    for topics_go in [true, false] {
        let mut world = World::quick();
        world.replay_open(0, &key("t", 0), Some(&value(1)));
        world.log.push((key("t", 0), Some(value(1))));
        if topics_go {
            world.step(deleted(&["t"]));
            world.go_on();
        } else {
            let waiter = world.ask(GroupRequest::Delete(group()));
            assert_eq!(world.done(waiter), ErrorCode::None);
        }
        assert_eq!(world.log.last(), Some(&(key("t", 0), None)));
        world.marker(true);
        assert_eq!(world.machine.list(None).count(), 0);
    }
}

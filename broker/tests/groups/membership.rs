//! JoinGroup, SyncGroup, Heartbeat and LeaveGroup of dynamic members (coordinators.md 2.5 to 2.8; G-01, G-02, G-14 to G-17,
//! G-20).

use super::harness::{
    HEARTBEAT, Identity, JOIN, Join, LEAVE, RANGE, SUBSCRIPTION, SYNC, await_state, code, connect, describe,
    heartbeat, joined, joining, leave, on_each, send_sync, stable, sync, synced,
};

/// Versions of join, sync, heartbeat and leave that a client of one time has together.
fn versions() -> impl Iterator<Item = (i16, i16, i16, i16)> {
    (0..=9).map(|join: i16| (join, join.min(5), join.min(4), join.min(5)))
}

#[test]
fn every_version_takes_part_in_a_group_and_leaves_it() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        for (join, sync, beat, leaving) in versions() {
            let group = format!("versions-{join}");
            let first = Join { version: join, ..joining(&group, "") }.call(&mut client);
            let joined = if join >= 4 {
                assert_eq!(first.error, code::MEMBER_ID_REQUIRED, "version {join}: {first:?}");
                assert_eq!((first.generation, first.members.len()), (-1, 0));
                assert!(first.member.starts_with("odradek-bench-"), "{first:?}");
                let again = Join { version: join, ..joining(&group, &first.member) }.call(&mut client);
                assert_eq!(again.member, first.member);
                again
            } else {
                first
            };
            assert_eq!((joined.error, joined.generation), (0, 1), "version {join}: {joined:?}");
            assert!(joined.is_leader() && !joined.skip_assignment);
            assert_eq!(joined.protocol.as_deref(), Some("range"));
            assert_eq!(joined.protocol_type.as_deref(), (join >= 7).then_some("consumer"));
            assert_eq!(joined.members, [(joined.member.clone(), None, SUBSCRIPTION.to_vec())]);
            let who = joined.identity(&group);
            let protocol = if sync >= 5 { RANGE } else { (None, None) };
            let correlation_id =
                send_sync(&mut client, sync, who, protocol, &[(&joined.member, b"all"), ("nobody", b"x")]);
            assert_eq!(synced(&mut client, sync, correlation_id), (0, b"all".to_vec()), "version {sync}");
            assert_eq!(heartbeat(&mut client, beat, who), 0, "version {beat}");
            let left = leave(&mut client, leaving, &group, &[(&joined.member, None)]);
            assert_eq!(left, (0, if leaving >= 3 { vec![0] } else { vec![] }), "version {leaving}");
            assert_eq!(describe(&mut client, 5, &group).state, "Empty");
        }
    });
}

#[test]
fn the_log_tells_of_a_group_from_its_first_member_to_its_last() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let joined = Join { version: 3, ..joining("told", "") }.call(&mut client);
        let who = joined.identity("told");
        let correlation_id = send_sync(&mut client, 3, who, (None, None), &[(&joined.member, b"all")]);
        assert_eq!(synced(&mut client, 3, correlation_id), (0, b"all".to_vec()));
        assert_eq!(leave(&mut client, 3, "told", &[(&joined.member, None)]), (0, vec![0]));
        assert_eq!(describe(&mut client, 5, "told").state, "Empty");
        let log = broker.log();
        for line in [
            "a member has joined",
            "a rebalance begins",
            "a generation has its members",
            "a rebalance is complete",
            "a member has left",
            "a group has no members",
        ] {
            let told = log.lines().filter(|told| told.contains(line) && told.contains("told")).count();
            assert!(told >= 1, "{line}:\n{log}");
        }
    });
}

#[test]
fn a_group_without_a_name_is_refused() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        for (join, sync, beat, leaving) in versions() {
            let refused = Join { version: join, ..joining("", "me") }.call(&mut client);
            assert_eq!((refused.error, &*refused.member), (code::INVALID_GROUP_ID, "me"));
            assert_eq!((refused.generation, &*refused.leader, refused.members.len()), (-1, "", 0));
            assert_eq!(refused.protocol.as_deref(), if join >= 7 { None } else { Some("") });
            let who = Identity { group: "", member: "me", instance: None, generation: 1 };
            let protocol = if sync >= 5 { RANGE } else { (None, None) };
            let correlation_id = send_sync(&mut client, sync, who, protocol, &[]);
            assert_eq!(synced(&mut client, sync, correlation_id).0, code::INVALID_GROUP_ID);
            assert_eq!(heartbeat(&mut client, beat, who), code::INVALID_GROUP_ID);
            assert_eq!(leave(&mut client, leaving, "", &[("me", None)]), (code::INVALID_GROUP_ID, vec![]));
        }
    });
}

#[test]
fn joins_that_cannot_be_are_told_why() {
    on_each(&["group.max.session.timeout.ms=100000"], |broker| {
        let mut client = connect(broker);
        for session_timeout_ms in [5999, 100_001, -1, 0, i32::MIN, i32::MAX] {
            let refused = Join { session_timeout_ms, ..joining("g", "me") }.call(&mut client);
            assert_eq!((refused.error, &*refused.member), (code::INVALID_SESSION_TIMEOUT, "me"));
        }
        let unknown = joining("none", "me").call(&mut client);
        assert_eq!((unknown.error, &*unknown.member), (code::UNKNOWN_MEMBER_ID, "me"));
        let refused = |join: Join<'_>, client: &mut _| join.call(client).error;
        // A first member must say what it speaks. Version 3 is admitted directly.
        let direct = Join { version: 3, ..joining("empty", "") };
        let inconsistent = code::INCONSISTENT_GROUP_PROTOCOL;
        assert_eq!(refused(Join { protocols: &[], ..direct.clone() }, &mut client), inconsistent);
        assert_eq!(refused(Join { protocol_type: "", ..direct }, &mut client), inconsistent);
        // Others must speak the same.
        stable(&mut client, "spoken");
        let other = Join { version: 3, ..joining("spoken", "") };
        assert_eq!(refused(Join { protocol_type: "connect", ..other.clone() }, &mut client), inconsistent);
        assert_eq!(refused(Join { protocols: &[("other", b"")], ..other }, &mut client), inconsistent);
        assert_eq!(joining("spoken", "nobody").call(&mut client).error, code::UNKNOWN_MEMBER_ID);
    });
}

#[test]
fn strangers_and_generations_of_yesterday_are_told_so() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let member = stable(&mut client, "g");
        let who = member.identity("g");
        let stranger = Identity { member: "stranger", ..who };
        let unknown = Identity { group: "unknown", ..who };
        let stale = Identity { generation: who.generation - 1, ..who };
        for (who, error) in [
            (who, 0),
            (stranger, code::UNKNOWN_MEMBER_ID),
            (unknown, code::UNKNOWN_MEMBER_ID),
            (stale, code::ILLEGAL_GENERATION),
            (Identity { generation: 99, ..who }, code::ILLEGAL_GENERATION),
        ] {
            assert_eq!(heartbeat(&mut client, HEARTBEAT, who), error);
            let (told, assignment) = sync(&mut client, who, &[]);
            assert_eq!((told, assignment.is_empty()), (error, error != 0));
        }
        for (protocol, error) in [
            ((Some("consumer"), Some("other")), code::INCONSISTENT_GROUP_PROTOCOL),
            ((Some("connect"), Some("range")), code::INCONSISTENT_GROUP_PROTOCOL),
            ((None, Some("range")), code::INCONSISTENT_GROUP_PROTOCOL),
            ((Some("consumer"), None), code::INCONSISTENT_GROUP_PROTOCOL),
            (RANGE, 0),
        ] {
            let correlation_id = send_sync(&mut client, SYNC, who, protocol, &[]);
            assert_eq!(synced(&mut client, SYNC, correlation_id).0, error, "{protocol:?}");
        }
        let unknown = code::UNKNOWN_MEMBER_ID;
        assert_eq!(leave(&mut client, LEAVE, "unknown", &[("a", None), ("b", None)]), (0, vec![unknown; 2]));
        assert_eq!(leave(&mut client, 2, "unknown", &[("a", None)]), (unknown, vec![]));
        assert_eq!(leave(&mut client, 2, "g", &[("a", None)]), (unknown, vec![]));
        let several = [("a", None), (who.member, None), ("", None)];
        assert_eq!(leave(&mut client, LEAVE, "g", &several), (0, vec![unknown, 0, unknown]));
    });
}

/// Two members: who is there already learns by its heartbeat, both join, the leader divides, the follower waits for it.
#[test]
fn a_second_member_starts_a_rebalance() {
    on_each(&[], |broker| {
        let (mut one, mut two) = (connect(broker), connect(broker));
        let first = stable(&mut one, "g");
        let required = joining("g", "").call(&mut two);
        assert_eq!(required.error, code::MEMBER_ID_REQUIRED);
        let second = required.member;
        let pending = joining("g", &second).send(&mut two);
        await_state(&mut one, "g", "PreparingRebalance");
        let rebalancing = code::REBALANCE_IN_PROGRESS;
        assert_eq!(heartbeat(&mut one, HEARTBEAT, first.identity("g")), rebalancing);
        assert_eq!(sync(&mut one, first.identity("g"), &[]).0, rebalancing);
        let leader = joining("g", &first.member).call(&mut one);
        let follower = joined(&mut two, JOIN, pending);
        assert_eq!((leader.error, leader.generation, leader.is_leader()), (0, 2, true));
        assert_eq!((follower.error, follower.generation, follower.is_leader()), (0, 2, false));
        assert_eq!((&follower.leader, &follower.member), (&first.member, &second));
        let mut ids: Vec<_> = leader.members.iter().map(|(id, ..)| id.clone()).collect();
        ids.sort();
        let mut wanted = vec![first.member.clone(), second.clone()];
        wanted.sort();
        assert_eq!((ids, follower.members.len()), (wanted, 0));
        // A follower that syncs first waits for the leader.
        let waiting = send_sync(&mut two, SYNC, follower.identity("g"), RANGE, &[]);
        assert_eq!(heartbeat(&mut one, HEARTBEAT, leader.identity("g")), 0);
        let assignments: &[(&str, &[u8])] = &[(&first.member, b"one"), (&second, b"two")];
        assert_eq!(sync(&mut one, leader.identity("g"), assignments), (0, b"one".to_vec()));
        assert_eq!(synced(&mut two, SYNC, waiting), (0, b"two".to_vec()));
        // Asked again, the same is told.
        assert_eq!(sync(&mut two, follower.identity("g"), &[]), (0, b"two".to_vec()));
        // A leader that joins again starts anew; the others' heartbeats tell them.
        let again = joining("g", &first.member).send(&mut one);
        await_state(&mut two, "g", "PreparingRebalance");
        assert_eq!(heartbeat(&mut two, HEARTBEAT, follower.identity("g")), rebalancing);
        let left = leave(&mut two, LEAVE, "g", &[(&second, None)]);
        assert_eq!(left, (0, vec![0]));
        let alone = joined(&mut one, JOIN, again);
        assert_eq!((alone.error, alone.generation, alone.members.len()), (0, 3, 1));
    });
}

#[test]
fn the_protocol_that_all_can_and_most_want_is_chosen() {
    on_each(&[], |broker| {
        let mut clients: Vec<_> = (0..3).map(|_| connect(broker)).collect();
        let wishes: [&[(&str, &[u8])]; 3] =
            [&[("a", b"1"), ("b", b"2")], &[("b", b"3"), ("a", b"4")], &[("b", b"5")]];
        let wish = |at: usize, member| Join { protocols: wishes[at], ..joining("g", member) };
        let alone = wish(0, "").admitted(&mut clients[0]);
        assert_eq!((alone.error, alone.protocol.as_deref()), (0, Some("a")));
        // The phase ends when everybody has joined who has an id.
        let ids = [1, 2].map(|at| wish(at, "").call(&mut clients[at]).member);
        let pending = [1, 2].map(|at: usize| wish(at, &ids[at - 1]).send(&mut clients[at]));
        await_state(&mut connect(broker), "g", "PreparingRebalance");
        let leader = wish(0, &alone.member).call(&mut clients[0]);
        assert_eq!((leader.error, leader.generation, leader.protocol.as_deref()), (0, 2, Some("b")));
        let mut metadata: Vec<_> = leader.members.iter().map(|(.., metadata)| metadata.clone()).collect();
        metadata.sort();
        assert_eq!(metadata, [b"2".to_vec(), b"3".to_vec(), b"5".to_vec()]);
        for (at, pending) in [1, 2].into_iter().zip(pending) {
            let follower = joined(&mut clients[at], JOIN, pending);
            assert_eq!(
                (follower.error, follower.generation, follower.protocol.as_deref()),
                (0, 2, Some("b"))
            );
        }
    });
}

#[test]
fn a_full_group_takes_no_more() {
    on_each(&["group.max.size=1"], |broker| {
        let mut client = connect(broker);
        stable(&mut client, "g");
        for version in [3, JOIN] {
            let refused = Join { version, ..joining("g", "") }.admitted(&mut client);
            assert_eq!((refused.error, &*refused.member), (code::GROUP_MAX_SIZE_REACHED, ""));
        }
        assert_eq!(describe(&mut client, 5, "g").members.len(), 1);
    });
}

#[test]
fn requests_that_name_much_are_taken_in_parts_or_refused() {
    on_each(&[], |broker| {
        const INVALID_REQUEST: i16 = 42;
        let mut client = connect(broker);
        let names: Vec<String> = (0..1_001).map(|number| format!("protocol-{number}")).collect();
        let protocols: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
        for (count, error) in [(1_000, code::MEMBER_ID_REQUIRED), (1_001, INVALID_REQUEST)] {
            let join = Join { protocols: &protocols[..count], ..joining("much", "") };
            assert_eq!(join.call(&mut client).error, error, "{count}");
        }
        let member = stable(&mut client, "g");
        let mut members = vec![("stranger", None); 2_500];
        members[1_700] = (&member.member, None);
        let (error, codes) = leave(&mut client, LEAVE, "g", &members);
        let mut told = vec![code::UNKNOWN_MEMBER_ID; 2_500];
        told[1_700] = 0;
        assert_eq!((error, codes), (0, told));
        assert_eq!(describe(&mut client, 5, "g").state, "Empty");
    });
}

/// The group with its last assignment and generation is there after `kill -9`, on another number of shards.
#[test]
fn a_stable_group_outlives_the_process() {
    on_each(&[], |broker| {
        let member = stable(&mut connect(broker), "g");
        broker.kill();
        broker.launch();
        super::harness::await_coordinators(broker);
        let mut client = connect(broker);
        let described = describe(&mut client, 5, "g");
        assert_eq!((&*described.state, &*described.protocol), ("Stable", "range"));
        assert_eq!(heartbeat(&mut client, HEARTBEAT, member.identity("g")), 0);
        let assignment = member.member.clone().into_bytes();
        assert_eq!(sync(&mut client, member.identity("g"), &[]), (0, assignment));
    });
}

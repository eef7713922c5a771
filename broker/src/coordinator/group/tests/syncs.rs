//! SyncGroup and what is written for it (coordinators.md 2.7, 3.8): G-15, G-16; and LeaveGroup: G-19, F62.

use super::*;
use crate::coordinator::group::{refused, while_loading};

/// Two members that have joined one generation and not synced; the first leads.
fn joined_two(world: &mut World) -> (Vec<MemberId>, i32) {
    let first = world.join_now(join("")).member;
    let second = world.ask_join(join(""));
    let again = world.ask_join(join(&first));
    let generation = world.joined(again).generation;
    let second = world.joined(second).member;
    (vec![first, second], generation)
}

#[test]
fn nobody_gets_an_assignment_that_is_not_in_the_log() {
    let mut world = World::slow_log();
    let (ids, generation) = joined_two(&mut world);
    let follower = world.ask_sync(&ids[1], generation, &[]);
    let leader = world.ask_sync(&ids[0], generation, &[(&ids[0], "a"), (&ids[1], "b")]);
    assert!(world.is_waiting(follower) && world.is_waiting(leader));
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    world.commit_one();
    let reply = world.synced(leader);
    assert_eq!((reply.error, &reply.assignment[..]), (ErrorCode::None, &b"a"[..]));
    assert_eq!(
        (reply.protocol_type.as_deref(), reply.protocol.as_deref()),
        (Some("consumer"), Some("range"))
    );
    assert_eq!(world.synced(follower).assignment, "b");
    assert_eq!(world.state(), GroupState::Stable);
}

#[test]
fn whom_the_leader_forgets_gets_nothing_and_strangers_are_ignored() {
    let mut world = World::quick();
    let (ids, generation) = joined_two(&mut world);
    let leader = world.ask_sync(&ids[0], generation, &[(&MemberId::from("stranger"), "s")]);
    assert_eq!(world.synced(leader).assignment, "");
    let follower = world.ask_sync(&ids[1], generation, &[]);
    let reply = world.synced(follower);
    assert_eq!((reply.error, &reply.assignment[..]), (ErrorCode::None, &b""[..]));
}

#[test]
fn an_assignment_that_is_not_written_is_nobodys_and_all_join_again() {
    for (error, told) in [
        (ErrorCode::UnknownTopicOrPartition, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotEnoughReplicas, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotEnoughReplicasAfterAppend, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotLeaderOrFollower, ErrorCode::NotCoordinator),
        (ErrorCode::KafkaStorageError, ErrorCode::NotCoordinator),
        (ErrorCode::RequestTimedOut, ErrorCode::RebalanceInProgress),
        (ErrorCode::MessageTooLarge, ErrorCode::UnknownServerError),
        (ErrorCode::RecordListTooLarge, ErrorCode::UnknownServerError),
        (ErrorCode::InvalidFetchSize, ErrorCode::UnknownServerError),
        (ErrorCode::InvalidRecord, ErrorCode::InvalidRecord),
    ] {
        let mut world = World::slow_log();
        let (ids, generation) = joined_two(&mut world);
        let follower = world.ask_sync(&ids[1], generation, &[]);
        let leader = world.ask_sync(&ids[0], generation, &[(&ids[0], "a"), (&ids[1], "b")]);
        world.fail_one(error);
        for waiter in [leader, follower] {
            let reply = world.synced(waiter);
            assert_eq!((reply.error, &reply.assignment[..]), (told, &b""[..]), "{error}");
            assert_eq!((reply.protocol_type, reply.protocol), (None, None));
        }
        assert_eq!(world.state(), GroupState::PreparingRebalance);
        assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::RebalanceInProgress);
    }
}

#[test]
fn an_assignment_of_a_generation_that_is_over_is_ignored() {
    let mut world = World::slow_log();
    let (ids, generation) = joined_two(&mut world);
    let leader = world.ask_sync(&ids[0], generation, &[(&ids[0], "a")]);
    assert_eq!(world.leave(&[(&ids[1], None)]).members, [ErrorCode::None]);
    assert_eq!(world.synced(leader).error, ErrorCode::RebalanceInProgress);
    let again = world.join_now(join(&ids[0]));
    assert_eq!(again.generation, generation + 1);
    world.commit_one();
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    let leader = world.ask_sync(&ids[0], generation + 1, &[(&ids[0], "b")]);
    world.commit_one();
    assert_eq!(world.synced(leader).assignment, "b");
}

/// Were it written twice, the log could end with another assignment than the members have.
#[test]
fn a_leader_that_syncs_twice_writes_once() {
    let mut world = World::slow_log();
    let (ids, generation) = joined_two(&mut world);
    let one = world.ask_sync(&ids[0], generation, &[(&ids[0], "a")]);
    let two = world.ask_sync(&ids[0], generation, &[(&ids[0], "b")]);
    assert_eq!(world.synced(one).error, ErrorCode::RebalanceInProgress);
    assert_eq!(world.appends.len(), 1);
    world.commit_one();
    assert_eq!(world.synced(two).assignment, "a");
}

#[test]
fn a_sync_of_another_protocol_is_inconsistent_g_15() {
    let mut world = World::quick();
    let (ids, generation) = joined_two(&mut world);
    let named = |protocol_type: &str, protocol: &str| {
        let (protocol_type, protocol) = (Some(Arc::from(protocol_type)), Some(Arc::from(protocol)));
        GroupRequest::Sync(Sync { protocol_type, protocol, ..sync(&ids[0], generation, &[(&ids[0], "a")]) })
    };
    for request in [named("consumer", "roundrobin"), named("connect", "range")] {
        let waiter = world.ask(request);
        assert_eq!(world.synced(waiter).error, ErrorCode::InconsistentGroupProtocol);
    }
    let waiter = world.ask(named("consumer", "range"));
    assert_eq!(world.synced(waiter).error, ErrorCode::None);
    let waiter = world.ask(named("consumer", "roundrobin"));
    assert_eq!(world.synced(waiter).error, ErrorCode::InconsistentGroupProtocol);
}

#[test]
fn a_coordinator_that_loads_lets_members_live_and_nothing_else_g_16() {
    let member = MemberId::from("m");
    let reply = while_loading(&GroupRequest::Heartbeat(Heartbeat { who: who("m", 1) }));
    assert_eq!(reply, GroupReply::Done(ErrorCode::None));
    let GroupReply::Sync(reply) = while_loading(&GroupRequest::Sync(sync(&member, 1, &[]))) else { panic!() };
    assert_eq!(reply.error, ErrorCode::RebalanceInProgress);
    let loading = ErrorCode::CoordinatorLoadInProgress;
    let GroupReply::Join(reply) = while_loading(&GroupRequest::Join(join("m"))) else { panic!() };
    assert_eq!((reply.error, reply.generation, &*reply.member), (loading, -1, "m"));
    let fetch = OffsetFetch { group: group(), topics: None, from: None, require_stable: false };
    let delete = OffsetDelete { group: group(), partitions: Vec::new() };
    for (request, reply) in [
        (GroupRequest::Delete(group()), GroupReply::Done(loading)),
        (GroupRequest::Describe(group()), GroupReply::Describe(Err(loading))),
        (
            GroupRequest::Leave(Leave { group: group(), members: Vec::new() }),
            GroupReply::Leave(LeaveReply { error: loading, members: Vec::new() }),
        ),
        (
            GroupRequest::OffsetCommit(commit(nobody(), &[("t", 0, 1), ("t", 1, 1)])),
            GroupReply::OffsetCommit(vec![loading; 2]),
        ),
        (
            GroupRequest::OffsetFetch(fetch),
            GroupReply::OffsetFetch(OffsetFetchReply { error: loading, topics: Vec::new(), next: None }),
        ),
        (GroupRequest::OffsetDelete(delete), GroupReply::OffsetDelete(Err(loading))),
    ] {
        assert_eq!(while_loading(&request), reply);
        assert_eq!(refused(&request, loading), reply);
    }
}

#[test]
fn whoever_leaves_is_gone_and_each_stranger_is_told_so_g_19_f62() {
    let mut world = World::quick();
    let reply = world.leave(&[("stranger", None), ("", Some("i"))]);
    assert_eq!((reply.error, reply.members), (ErrorCode::None, vec![ErrorCode::UnknownMemberId; 2]));
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    let reply = world.leave(&[(&ids[1], None), ("stranger", None), (&ids[1], None)]);
    assert_eq!(reply.members, [ErrorCode::None, ErrorCode::UnknownMemberId, ErrorCode::UnknownMemberId]);
    assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::RebalanceInProgress);
    assert_eq!(world.join_now(join(&ids[0])).members.len(), 1);
}

#[test]
fn whoever_leaves_while_it_waits_is_told_that_it_is_unknown() {
    let mut world = World::quick();
    let (ids, generation) = joined_two(&mut world);
    let sync = world.ask_sync(&ids[1], generation, &[]);
    world.leave(&[(&ids[1], None)]);
    assert_eq!(world.synced(sync).error, ErrorCode::UnknownMemberId);
    let new = world.ask_join(Join { needs_known_member_id: false, ..join("") });
    let id = world.describe().members.into_iter().map(|m| m.member).find(|id| *id != ids[0]).expect("new");
    world.leave(&[(&id, None)]);
    assert_eq!(world.joined(new).error, ErrorCode::UnknownMemberId);
}

#[test]
fn a_pending_id_can_leave() {
    let mut world = World::quick();
    let leader = world.settle_one();
    let pending = world.join_now(Join { needs_known_member_id: true, ..join("") }).member;
    let again = world.ask_join(join(&leader));
    assert!(world.is_waiting(again));
    assert_eq!(world.leave(&[(&pending, None)]).members, [ErrorCode::None]);
    assert_eq!(world.joined(again).generation, 2, "nobody is waited for any more");
}

#[test]
fn all_who_wait_learn_that_the_coordinator_is_elsewhere() {
    let mut world = World::slow_log();
    let (ids, generation) = joined_two(&mut world);
    let sync = world.ask_sync(&ids[1], generation, &[]);
    let assign = world.ask_sync(&ids[0], generation, &[(&ids[0], "a")]);
    let commit = GroupRequest::OffsetCommit(OffsetCommit {
        who: Identity { group: GroupId::from("other"), ..nobody() },
        ..commit(nobody(), &[("t", 0, 1)])
    });
    let commit = world.ask(commit);
    let join = world.ask_join(Join { group: GroupId::from("third"), ..join("") });
    assert_eq!(world.joined(join).generation, 1);
    let parked = world.ask_join(Join { group: GroupId::from("third"), ..super::join("") });
    let delete = world.ask(GroupRequest::Delete(GroupId::from("other")));
    assert_eq!(world.replies.len(), 0);
    assert_eq!(world.unload(), 1);
    for waiter in [sync, assign] {
        assert_eq!(world.synced(waiter).error, ErrorCode::NotCoordinator);
    }
    assert_eq!(world.committed(commit), [ErrorCode::NotCoordinator]);
    assert_eq!(world.joined(parked).error, ErrorCode::NotCoordinator);
    assert_eq!(world.done(delete), ErrorCode::NotCoordinator);
    assert_eq!(world.machine.next_timer(), None);
    assert_eq!(world.machine.gauges(), super::super::Gauges::default());
}

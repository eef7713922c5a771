//! What groups may take of the memory: who meets the bound, who does not, and that all of it is given back. That the gauge
//! is exact `World` looks at after each step, and the simulation.

use super::*;

fn bytes(world: &World) -> usize {
    world.machine.gauges().bytes
}

/// From now on newcomers find no room; those that are there have so many bytes.
fn full_but_for(world: &mut World, known: usize) {
    world.bytes_max = (bytes(world), bytes(world) + known);
}

fn with_metadata(join: Join, bytes: usize) -> Join {
    Join { protocols: vec![(Arc::from("range"), Bytes::from(vec![0; bytes]))], ..join }
}

fn with_text(bytes: usize) -> OffsetToCommit {
    OffsetToCommit { metadata: "x".repeat(bytes).into(), ..to_commit("t", 0, 1) }
}

fn commit_one(world: &mut World, who: Identity, offset: OffsetToCommit) -> ErrorCode {
    let commit = OffsetCommit { offsets: vec![offset], ..commit(who, &[]) };
    let waiter = world.ask(GroupRequest::OffsetCommit(commit));
    world.committed(waiter)[0]
}

#[test]
fn beyond_the_bound_newcomers_are_told_to_come_again_and_members_go_on() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    world.commit_now(who(&ids[0], generation), &[("t", 0, 1)]);
    full_but_for(&mut world, 0);
    for newcomer in [join(""), Join { needs_known_member_id: true, ..join("") }, join_static("", "i")] {
        let reply = world.join_now(newcomer);
        assert_eq!((reply.error, reply.generation), (ErrorCode::CoordinatorNotAvailable, -1));
    }
    assert_eq!(
        world.join_now(join("stranger")).error,
        ErrorCode::UnknownMemberId,
        "whether there is room or not"
    );
    let other = Identity { group: GroupId::from("other"), ..nobody() };
    assert_eq!(world.commit_now(other, &[("t", 0, 1)]), [ErrorCode::CoordinatorNotAvailable]);
    assert_eq!(world.machine.list(None).count(), 1, "nothing is left of the other group");
    assert_eq!(
        world.commit_now(who(&ids[1], generation), &[("t", 1, 1)]),
        [ErrorCode::CoordinatorNotAvailable]
    );
    assert_eq!(world.machine.counts().refusals, 5);
    assert_eq!(world.news.iter().filter(|news| news.what == What::NoRoom).count(), 5);
    // Work as it was goes on: heartbeats, offsets that move, a rebalance of the same members and an assignment as large.
    assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::None);
    assert_eq!(world.commit_now(who(&ids[0], generation), &[("t", 0, 2)]), [ErrorCode::None]);
    let again: Vec<Waiter> = ids.iter().map(|id| world.ask_join(join(id))).collect();
    for waiter in again {
        assert_eq!(
            (world.joined(waiter).error, world.state()),
            (ErrorCode::None, GroupState::CompletingRebalance)
        );
    }
    let given: Vec<(MemberId, String)> = ids.iter().map(|id| (id.clone(), format!("of {id}"))).collect();
    let given: Vec<(&MemberId, &str)> = given.iter().map(|(id, part)| (id, part.as_str())).collect();
    let waiter = world.ask_sync(&ids[0], generation + 1, &given);
    assert_eq!(world.synced(waiter).error, ErrorCode::None);
    // Once there is room again they are served.
    world.bytes_max = (usize::MAX, usize::MAX);
    assert_eq!(
        world.join_now(Join { needs_known_member_id: true, ..join("") }).error,
        ErrorCode::MemberIdRequired
    );
}

#[test]
fn members_have_room_of_their_own_that_newcomers_do_not_take() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    full_but_for(&mut world, 10_000);
    assert_eq!(world.join_now(join("")).error, ErrorCode::CoordinatorNotAvailable);
    assert_eq!(commit_one(&mut world, who(&ids[0], generation), with_text(4_000)), ErrorCode::None);
    let more = world.ask_join(with_metadata(join(&ids[1]), 5_000));
    assert!(world.is_waiting(more), "it brings more, and there is room for it");
    let too_much = world.join_now(with_metadata(join(&ids[0]), 5_000));
    assert_eq!((too_much.error, &too_much.member), (ErrorCode::CoordinatorNotAvailable, &ids[0]));
}

#[test]
fn an_offset_whose_metadata_grows_needs_room_and_one_that_moves_does_not() {
    let mut world = World::quick();
    assert_eq!(commit_one(&mut world, nobody(), with_text(100)), ErrorCode::None);
    full_but_for(&mut world, 50);
    assert_eq!(commit_one(&mut world, nobody(), with_text(151)), ErrorCode::CoordinatorNotAvailable);
    for text in [100, 150, 0] {
        assert_eq!(commit_one(&mut world, nobody(), with_text(text)), ErrorCode::None, "{text}");
    }
    assert_eq!(world.fetch("t", 0, false), (1, ErrorCode::None));
}

#[test]
fn an_assignment_that_is_larger_than_the_last_one_needs_room_and_the_leader_comes_again() {
    let mut world = World::quick();
    let id = world.join_now(join("")).member;
    full_but_for(&mut world, 1_000);
    // What is brought for strangers is in one piece of memory with what is kept.
    let (small, large, stranger) = ("x".repeat(600), "x".repeat(401), MemberId::from("stranger"));
    let waiter = world.ask_sync(&id, 1, &[(&id, &small), (&stranger, &large)]);
    assert_eq!(world.synced(waiter).error, ErrorCode::CoordinatorNotAvailable);
    assert!(world.log.is_empty() && world.state() == GroupState::CompletingRebalance);
    let before = bytes(&world);
    let waiter = world.ask_sync(&id, 1, &[(&id, &small), (&stranger, "x")]);
    assert_eq!(world.synced(waiter).error, ErrorCode::None);
    assert_eq!(bytes(&world) - before, 601);
}

#[test]
fn names_that_are_offered_twice_count_as_often_as_they_are_there() {
    let mut world = World::quick();
    let metadata = |bytes: usize| (Arc::<str>::from("range"), Bytes::from(vec![0; bytes]));
    let before = bytes(&world);
    world.join_now(Join { protocols: vec![metadata(1), metadata(100_000)], ..join("") });
    assert!(bytes(&world) - before > 100_000, "they are one piece of memory");
}

#[test]
fn who_was_given_an_id_and_finds_no_room_is_not_waited_for() {
    let mut world = World::quick();
    let leader = world.settle_one();
    let pending = world.join_now(Join { needs_known_member_id: true, ..join("") }).member;
    let again = world.ask_join(join(&leader));
    assert!(world.is_waiting(again));
    full_but_for(&mut world, 0);
    assert_eq!(world.join_now(join(&pending)).error, ErrorCode::CoordinatorNotAvailable);
    assert_eq!(world.joined(again).generation, 2);
}

#[test]
fn what_was_taken_is_given_back() {
    let mut world = World::quick();
    world.ask_commit(nobody(), &[("t", 0, 1)]);
    let before = bytes(&world);
    let id = world.join_now(with_metadata(join(""), 10_000)).member;
    let waiter = world.ask_sync(&id, 1, &[(&id, &"x".repeat(5_000))]);
    assert_eq!(world.synced(waiter).error, ErrorCode::None);
    assert!(bytes(&world) - before > 15_000);
    world.leave(&[(&id, None)]);
    let protocol_type = "consumer".len();
    assert_eq!(bytes(&world), before + protocol_type);
    let waiter = world.ask(GroupRequest::Delete(group()));
    assert_eq!((world.done(waiter), bytes(&world)), (ErrorCode::None, 0));
    world.join_now(Join { needs_known_member_id: true, ..join("") });
    assert!(bytes(&world) > 0);
    world.pass(i64::from(SESSION_MS));
    assert_eq!(bytes(&world), 0, "an id that nobody joined with");
}

#[test]
fn what_was_acknowledged_is_loaded_whatever_the_bound() {
    let mut world = World::quick();
    let id = world.settle_one();
    world.commit_now(who(&id, 1), &[("t", 0, 7)]);
    let before = bytes(&world);
    world.bytes_max = (0, 0);
    let mut world = world.fail_over();
    assert_eq!(world.fetch("t", 0, false), (7, ErrorCode::None));
    // It has the metadata of the protocol that was chosen only, which here is all.
    assert_eq!((bytes(&world), world.state()), (before, GroupState::Stable));
    assert_eq!(world.heartbeat(who(&id, 1)), ErrorCode::None);
    assert_eq!(world.commit_now(who(&id, 1), &[("t", 0, 8)]), [ErrorCode::None]);
    assert_eq!(world.commit_now(who(&id, 1), &[("t", 1, 8)]), [ErrorCode::CoordinatorNotAvailable]);
}

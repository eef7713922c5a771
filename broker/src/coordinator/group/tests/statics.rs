//! Static members (KIP-345): G-05 to G-10, F57, F59, and what becomes of a comeback that is not written.

use super::*;

/// A stable group of two static members; the first leads.
fn settled(world: &mut World) -> (Vec<MemberId>, i32) {
    world.settle(vec![join_static("", "i"), join_static("", "j")])
}

#[test]
fn a_static_member_comes_back_to_its_assignment_without_a_rebalance_g_05_f57() {
    let mut world = World::quick();
    let (ids, generation) = settled(&mut world);
    let reply = world.join_now(join_static("", "j"));
    assert_eq!((reply.error, reply.generation), (ErrorCode::None, generation));
    assert_ne!(reply.member, ids[1]);
    assert_eq!((reply.leader, reply.members.len(), reply.skip_assignment), (ids[0].clone(), 0, false));
    let waiter = world.ask_sync(&reply.member, generation, &[]);
    assert_eq!(world.synced(waiter).assignment, format!("of {}", ids[1]));
    assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::None);
    assert_eq!(world.state(), GroupState::Stable);
}

#[test]
fn the_old_id_is_fenced_with_the_name_and_unknown_alone_g_06() {
    let mut world = World::quick();
    let (ids, generation) = settled(&mut world);
    let new = world.join_now(join_static("", "j")).member;
    assert_eq!(world.heartbeat(who_static(&ids[1], "j", generation)), ErrorCode::FencedInstanceId);
    assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::UnknownMemberId);
    assert_eq!(world.heartbeat(who_static(&new, "j", generation)), ErrorCode::None);
    assert_eq!(world.join_now(join_static(&ids[1], "j")).error, ErrorCode::FencedInstanceId);
    let codes = world.commit_now(who_static(&ids[1], "j", generation), &[("t", 0, 1)]);
    assert_eq!(codes, [ErrorCode::FencedInstanceId]);
    assert_eq!(world.leave(&[(&ids[1], Some("j"))]).members, [ErrorCode::FencedInstanceId]);
    let mut stale = sync(&ids[1], generation, &[]);
    stale.who.instance = Some(InstanceId::from("j"));
    let waiter = world.ask(GroupRequest::Sync(stale));
    assert_eq!(world.synced(waiter).error, ErrorCode::FencedInstanceId);
}

#[test]
fn the_new_id_is_known_after_a_fail_over_g_07() {
    let mut world = World::quick();
    let (ids, generation) = settled(&mut world);
    let records = world.log.len();
    let new = world.join_now(join_static("", "j")).member;
    assert_eq!(world.log.len(), records + 1);
    let mut world = world.fail_over();
    assert_eq!(world.heartbeat(who_static(&new, "j", generation)), ErrorCode::None);
    assert_eq!(world.heartbeat(who_static(&ids[1], "j", generation)), ErrorCode::FencedInstanceId);
    let waiter = world.ask_sync(&new, generation, &[]);
    assert_eq!(world.synced(waiter).assignment, format!("of {}", ids[1]));
}

#[test]
fn the_comeback_is_answered_when_the_log_has_it() {
    let mut world = World::slow_log();
    let (ids, generation) = settled(&mut world);
    let waiter = world.ask_join(join_static("", "j"));
    for _ in 0..4 {
        world.pass(5_000);
        assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::None, "it is the log that is slow");
    }
    assert!(world.is_waiting(waiter));
    world.commit_one();
    assert_eq!(world.joined(waiter).generation, generation);
}

#[test]
fn a_leader_that_comes_back_leads_and_skips_the_assignment_g_08() {
    let mut world = World::quick();
    let (ids, generation) = settled(&mut world);
    let reply = world.join_now(join_static("", "i"));
    assert_eq!((reply.error, reply.generation), (ErrorCode::None, generation));
    assert_eq!((&reply.leader, reply.skip_assignment), (&reply.member, true));
    let members: Vec<_> = reply.members.iter().map(|member| member.member.clone()).collect();
    assert_eq!(members.len(), 2);
    assert!(members.contains(&reply.member) && members.contains(&ids[1]));
}

#[test]
fn an_old_leader_that_comes_back_does_not_see_that_it_leads_g_09() {
    let mut world = World::quick();
    let (ids, generation) = settled(&mut world);
    let old = Join { knows_skip_assignment: false, ..join_static("", "i") };
    let reply = world.join_now(old);
    assert_eq!((reply.error, reply.generation), (ErrorCode::None, generation));
    assert_eq!((reply.leader, reply.members.len(), reply.skip_assignment), (ids[0].clone(), 0, false));
    // It leads all the same: when it joins with its id, the group rebalances.
    let again = world.ask_join(join_static(&reply.member, "i"));
    assert!(world.is_waiting(again));
}

/// A stable group of a dynamic leader and a static member with a session of so long, which did not come to the last
/// rebalance; and its generation.
fn without_one(session_timeout_ms: i32) -> (World, Vec<MemberId>, i32) {
    let mut world = World::quick();
    let away = Join { session_timeout_ms, ..join_static("", "j") };
    let (ids, generation) = world.settle(vec![join(""), away]);
    let leader = world.ask_join(join(&ids[0]));
    for _ in 0..11 {
        world.pass(5_000);
        assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::RebalanceInProgress);
    }
    world.pass(i64::from(REBALANCE_MS) - 55_001);
    assert!(world.is_waiting(leader));
    world.pass(1);
    let reply = world.joined(leader);
    assert_eq!((reply.generation, reply.members.len()), (generation + 1, 2));
    let waiter = world.ask_sync(&ids[0], generation + 1, &[(&ids[0], "a"), (&ids[1], "b")]);
    assert_eq!(world.synced(waiter).error, ErrorCode::None);
    (world, ids, generation + 1)
}

#[test]
fn a_static_member_that_does_not_join_stays_until_its_session_ends_g_10() {
    // Its session began anew with the generation.
    let (mut world, ids, generation) = without_one(20_000);
    for _ in 0..3 {
        world.pass(5_000);
        assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::None);
    }
    world.pass(5_000);
    assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::RebalanceInProgress);
    assert_eq!(world.join_now(join(&ids[0])).members.len(), 1);
}

#[test]
fn a_static_member_that_comes_back_before_the_time_to_sync_is_over_has_what_it_was_given() {
    let (mut world, ids, generation) = without_one(1_000_000);
    for _ in 0..11 {
        world.pass(5_000);
        assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::None);
    }
    let back = world.join_now(join_static("", "j"));
    assert_eq!((back.error, back.generation), (ErrorCode::None, generation));
    let waiter = world.ask_sync(&back.member, generation, &[]);
    assert_eq!(world.synced(waiter).assignment, "b");
    for _ in 0..50 {
        world.pass(5_000);
        for id in [&ids[0], &back.member] {
            assert_eq!(world.heartbeat(who(id, generation)), ErrorCode::None);
        }
    }
}

/// As in Kafka since KAFKA-12890, which has everybody sync who is a member when the generation begins, also who got no
/// reply: its partitions would be nobody's for as long as its session lasts.
#[test]
fn a_static_member_that_comes_neither_to_join_nor_to_sync_is_out_g_13() {
    let (mut world, ids, generation) = without_one(1_000_000);
    for _ in 0..11 {
        world.pass(5_000);
        assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::None);
    }
    world.pass(i64::from(REBALANCE_MS) - 55_000);
    assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::RebalanceInProgress);
    assert_eq!(world.join_now(join(&ids[0])).members.len(), 1);
    assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::UnknownMemberId);
}

#[test]
fn static_members_that_all_stay_away_go_by_their_sessions() {
    let mut world = World::quick();
    let long = |name: &str| Join { session_timeout_ms: 200_000, ..join_static("", name) };
    let (ids, generation) = world.settle(vec![long("i"), long("j")]);
    // The one leaves, the other is away: nobody joins.
    assert_eq!(world.leave(&[("", Some("i"))]).members, [ErrorCode::None]);
    world.pass(199_999);
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::RebalanceInProgress);
    world.pass(200_000);
    assert_eq!(world.state(), GroupState::Empty);
}

/// A timer that is due as soon as it is armed would keep the shard at work for as long as a session may last.
#[test]
fn static_members_that_all_stay_away_are_not_looked_for_without_an_end() {
    for timeout_ms in [0, -1, i32::MIN] {
        let mut world = World::quick();
        let (ids, _) = settled(&mut world);
        let members = &mut world.machine.groups.get_mut("g").expect("the group").members;
        for id in &ids {
            members.get_mut(id).expect("a member").rebalance_timeout_ms = timeout_ms;
        }
        world.leave(&[(&ids[1], Some("j"))]);
        assert_eq!(world.state(), GroupState::PreparingRebalance);
        let mut looks = 0;
        while world.machine.next_timer().is_some_and(|at| at <= MonoTime::new(0).plus_ms(world.ms)) {
            world.step(Event::Timer);
            looks += 1;
            assert!(looks < 10, "it is due again and again");
        }
        world.pass(i64::from(SESSION_MS));
        assert_eq!(world.state(), GroupState::Empty);
    }
}

#[test]
fn a_return_between_join_and_sync_starts_a_new_rebalance_f59() {
    let mut world = World::quick();
    let first = world.join_now(join_static("", "i")).member;
    let second = world.ask_join(join_static("", "j"));
    let again = world.ask_join(join_static(&first, "i"));
    let generation = world.joined(again).generation;
    let second = world.joined(second).member;
    let stale_sync = world.ask_sync(&second, generation, &[]);
    let back = world.ask_join(join_static("", "j"));
    assert_eq!(world.synced(stale_sync).error, ErrorCode::FencedInstanceId);
    // The leader's plan would be for an id that is gone.
    let plan = world.ask_sync(&first, generation, &[(&first, "a"), (&second, "b")]);
    assert_eq!(world.synced(plan).error, ErrorCode::RebalanceInProgress);
    let leader = world.join_now(join_static(&first, "i"));
    let back = world.joined(back);
    assert_eq!((leader.generation, back.generation), (generation + 1, generation + 1));
    assert!(leader.members.iter().any(|member| member.member == back.member));
}

#[test]
fn a_return_while_joins_are_collected_fences_the_join_that_waits() {
    let mut world = World::quick();
    let (ids, generation) = settled(&mut world);
    let leader = world.ask_join(join_static(&ids[0], "i"));
    let changed = Join { protocols: vec![(Arc::from("range"), Bytes::new())], ..join_static("", "i") };
    let back = world.ask_join(changed);
    let fenced = world.joined(leader);
    assert_eq!((fenced.error, fenced.member), (ErrorCode::FencedInstanceId, ids[0].clone()));
    let follower = world.join_now(join_static(&ids[1], "j"));
    assert_eq!(follower.generation, generation + 1);
    let back = world.joined(back);
    assert_eq!((&back.leader, back.members.len()), (&back.member, 2));
}

#[test]
fn a_comeback_that_changes_the_protocol_starts_a_rebalance() {
    let mut world = World::quick();
    let both = |name: &str| offers(join_static("", name), &["A", "B"]);
    let (_, generation) = world.settle(vec![both("i"), both("j")]);
    let back = world.ask_join(offers(join_static("", "i"), &["B"]));
    assert!(world.is_waiting(back));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    let follower = world.ask_join(both("j"));
    assert_eq!(world.joined(follower).generation, generation + 1);
    assert_eq!(world.joined(back).protocol.as_deref(), Some("B"));
}

#[test]
fn a_comeback_that_is_not_written_did_not_happen() {
    let mut world = World::slow_log();
    let (ids, generation) = settled(&mut world);
    let other =
        Join { client_host: Arc::from("/10.0.0.9"), session_timeout_ms: 20_000, ..join_static("", "j") };
    let waiter = world.ask_join(other);
    world.fail_one(ErrorCode::NotEnoughReplicas);
    let reply = world.joined(waiter);
    assert_eq!((reply.error, &*reply.member), (ErrorCode::CoordinatorNotAvailable, ""));
    assert_eq!(world.heartbeat(who_static(&ids[1], "j", generation)), ErrorCode::None);
    let described = world.describe().members.into_iter().find(|m| m.member == ids[1]).expect("the old id");
    assert_eq!(&*described.client_host, "/127.0.0.1");
    assert_eq!(described.assignment, format!("of {}", ids[1]));
    // Its session is the old one.
    world.pass(5_000);
    world.heartbeat(who(&ids[0], generation));
    world.pass(5_000);
    world.heartbeat(who(&ids[0], generation));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_leader_whose_comeback_is_not_written_leads_by_its_old_id() {
    let mut world = World::slow_log();
    let (ids, generation) = settled(&mut world);
    let waiter = world.ask_join(join_static("", "i"));
    world.fail_one(ErrorCode::KafkaStorageError);
    assert_eq!(world.joined(waiter).error, ErrorCode::NotCoordinator);
    assert_eq!(world.join_now(join(&ids[1])).leader, ids[0]);
    assert_eq!(world.heartbeat(who_static(&ids[0], "i", generation)), ErrorCode::None);
}

#[test]
fn two_comebacks_that_are_not_written_go_back_to_the_first_id() {
    let mut world = World::slow_log();
    let (ids, generation) = settled(&mut world);
    let one = world.ask_join(join_static("", "j"));
    let two = world.ask_join(join_static("", "j"));
    assert_eq!(world.joined(one).error, ErrorCode::FencedInstanceId);
    world.fail_one(ErrorCode::RequestTimedOut);
    world.fail_one(ErrorCode::RequestTimedOut);
    assert_eq!(world.joined(two).error, ErrorCode::RebalanceInProgress);
    assert_eq!(world.heartbeat(who_static(&ids[1], "j", generation)), ErrorCode::None);
}

#[test]
fn a_comeback_that_fails_after_one_that_did_not_goes_back_to_that_one() {
    let mut world = World::slow_log();
    let (ids, generation) = settled(&mut world);
    let one = world.ask_join(join_static("", "j"));
    let first_id = world.describe().members.into_iter().find(|m| m.instance.as_deref() == Some("j"));
    let two = world.ask_join(join_static("", "j"));
    assert_eq!(world.joined(one).error, ErrorCode::FencedInstanceId);
    world.commit_one();
    world.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(world.joined(two).error, ErrorCode::CoordinatorNotAvailable);
    let first_id = first_id.expect("the first comeback").member;
    assert_ne!(first_id, ids[1]);
    assert_eq!(world.heartbeat(who_static(&first_id, "j", generation)), ErrorCode::None);
}

/// A record is of the whole group: a later one has what an earlier one had.
#[test]
fn a_comeback_whose_record_fails_happened_if_a_later_record_has_it() {
    for later_fails in [false, true] {
        let mut world = World::slow_log();
        let (ids, generation) = settled(&mut world);
        let waiters = [world.ask_join(join_static("", "i")), world.ask_join(join_static("", "j"))];
        world.fail_one(ErrorCode::NotEnoughReplicas);
        assert!(waiters.iter().all(|waiter| world.is_waiting(*waiter)));
        if later_fails {
            world.fail_one(ErrorCode::KafkaStorageError)
        } else {
            world.commit()
        }
        let replies = waiters.map(|waiter| world.joined(waiter));
        let mut world = world.fail_over();
        for (reply, (id, instance)) in replies.iter().zip(ids.iter().zip(["i", "j"])) {
            let told = if later_fails { ErrorCode::NotCoordinator } else { ErrorCode::None };
            assert_eq!(reply.error, told);
            let known = if later_fails { id } else { &reply.member };
            assert_eq!(world.heartbeat(who_static(known, instance, generation)), ErrorCode::None);
        }
    }
}

#[test]
fn a_rebalance_overtakes_a_comeback_whether_it_is_written_or_not() {
    for outcome in [Ok(()), Err(ErrorCode::NotEnoughReplicas)] {
        let mut world = World::slow_log();
        let (ids, generation) = settled(&mut world);
        let back = world.ask_join(join_static("", "j"));
        let leader = world.ask_join(join_static(&ids[0], "i"));
        // Both have joined, so the phase has ended.
        assert_eq!(world.joined(leader).generation, generation + 1);
        let back = world.joined(back);
        assert_eq!((back.error, back.generation), (ErrorCode::None, generation + 1));
        match outcome {
            Ok(()) => assert!(world.commit_one()),
            Err(error) => world.fail_one(error),
        }
        assert_eq!(world.heartbeat(who_static(&back.member, "j", generation + 1)), ErrorCode::None);
    }
}

#[test]
fn an_administrator_removes_a_static_member_by_its_name_g_19_f63() {
    let mut world = World::quick();
    let (ids, generation) = settled(&mut world);
    let reply = world.leave(&[("", Some("j")), ("", Some("nobody")), ("", None), ("stranger", None)]);
    assert_eq!(reply.error, ErrorCode::None);
    assert_eq!(
        reply.members,
        [ErrorCode::None, ErrorCode::UnknownMemberId, ErrorCode::UnknownMemberId, ErrorCode::UnknownMemberId]
    );
    assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::UnknownMemberId);
    assert_eq!(world.join_now(join_static(&ids[0], "i")).members.len(), 1);
}

//! JoinGroup and the join phase: G-01 to G-04, G-10 to G-14, G-17, G-20, G-22, F60.

use super::*;

/// A client of version 4 and later.
fn modern(member: &str) -> Join {
    Join { needs_known_member_id: true, ..join(member) }
}

fn with_delay(ms: i32) -> World {
    World::new(GroupSettings { initial_rebalance_delay_ms: ms, ..GroupSettings::default() })
}

#[test]
fn a_dynamic_member_without_id_gets_one_and_joins_with_it_g_01() {
    let mut world = World::quick();
    let first = world.join_now(modern(""));
    assert_eq!((first.error, first.generation), (ErrorCode::MemberIdRequired, -1));
    let uuid = first.member.strip_prefix("c-").expect("the client's name");
    assert_eq!(uuid.len(), 36);
    assert_eq!((&uuid[8..9], &uuid[14..15]), ("-", "4"), "{uuid}");
    assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"), "{uuid}");
    assert_eq!(world.state(), GroupState::Empty);
    let second = world.join_now(modern(&first.member));
    assert_eq!((second.error, second.generation), (ErrorCode::None, 1));
    assert_eq!((&second.member, &second.leader), (&first.member, &first.member));
    assert_eq!(second.protocol.as_deref(), Some("range"));
    assert_eq!(second.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(second.members.len(), 1);
    assert!(world.log.is_empty(), "an id and a join are not written");
}

#[test]
fn an_old_client_without_id_is_admitted_at_once_g_02() {
    let mut world = World::quick();
    let reply = world.join_now(join(""));
    assert_eq!((reply.error, reply.generation), (ErrorCode::None, 1));
}

#[test]
fn an_id_that_nobody_joins_with_disappears_and_holds_no_rebalance_up_g_03() {
    let mut world = World::quick();
    let leader = world.settle_one();
    let pending = world.join_now(modern("")).member;
    let again = world.ask_join(join(&leader));
    world.pass(i64::from(SESSION_MS) - 1);
    assert!(world.is_waiting(again), "who was given an id may come");
    world.pass(1);
    assert_eq!(world.joined(again).generation, 2);
    let late = world.join_now(modern(&pending));
    assert_eq!((late.error, late.member), (ErrorCode::UnknownMemberId, pending));
}

#[test]
fn a_group_of_pending_ids_alone_is_forgotten_with_them_g_03() {
    let mut world = World::quick();
    world.join_now(modern(""));
    assert_eq!(world.machine.list(None).count(), 1);
    world.pass(i64::from(SESSION_MS));
    assert_eq!(world.machine.list(None).count(), 0);
}

#[test]
fn a_static_member_without_id_is_admitted_at_once_g_04() {
    let mut world = World::quick();
    let reply = world.join_now(join_static("", "i"));
    assert_eq!((reply.error, reply.generation), (ErrorCode::None, 1));
    assert!(reply.member.starts_with("i-"), "{}", reply.member);
    assert_eq!(reply.members[0].instance.as_deref(), Some("i"));
}

#[test]
fn the_first_join_phase_lasts_the_initial_delay_g_11() {
    let mut world = with_delay(3_000);
    let only = world.ask_join(join(""));
    world.pass(2_999);
    assert!(world.is_waiting(only));
    world.pass(1);
    assert_eq!(world.joined(only).generation, 1);
}

#[test]
fn late_joiners_prolong_the_first_phase_up_to_the_rebalance_timeout_g_11() {
    let mut world = with_delay(3_000);
    let short = |member: &str| Join { rebalance_timeout_ms: 8_000, ..join(member) };
    let first = world.ask_join(short(""));
    let mut others = Vec::new();
    // Somebody comes in each wait: 3 s, 3 s and the 2 s that are left of 8.
    for _ in 0..4 {
        world.pass(1_900);
        others.push(world.ask_join(short("")));
        assert!(world.is_waiting(first));
    }
    world.pass(399);
    assert!(world.is_waiting(first));
    world.pass(1);
    assert_eq!(world.joined(first).generation, 1);
    assert!(others.into_iter().all(|waiter| world.joined(waiter).generation == 1));
}

#[test]
fn a_later_first_phase_is_not_prolonged_g_11() {
    let mut world = with_delay(3_000);
    let first = world.ask_join(join(""));
    world.pass(3_000);
    let id = world.joined(first).member;
    world.leave(&[(&id, None)]);
    assert_eq!(world.state(), GroupState::Empty);
    let second = world.ask_join(join(""));
    world.pass(2_000);
    let third = world.ask_join(join(""));
    world.pass(1_000);
    assert_eq!((world.joined(second).generation, world.joined(third).generation), (3, 3));
}

#[test]
fn a_new_member_that_waits_five_minutes_is_unknown_g_12() {
    let mut world = World::quick();
    let long = |member: &str| Join { rebalance_timeout_ms: 600_000, ..join(member) };
    let leader = world.join_now(long("")).member;
    let waiter = world.ask_sync(&leader, 1, &[(&leader, "a")]);
    world.synced(waiter);
    let new = world.ask_join(long(""));
    for _ in 0..60 {
        world.pass(4_999);
        assert_eq!(world.heartbeat(who(&leader, 1)), ErrorCode::RebalanceInProgress);
    }
    assert!(world.is_waiting(new), "its session of 10 s does not matter");
    world.pass(60);
    let reply = world.joined(new);
    assert_eq!((reply.error, &*reply.member), (ErrorCode::UnknownMemberId, ""));
}

#[test]
fn members_that_sync_late_are_removed_after_the_rebalance_timeout_g_13() {
    let mut world = World::quick();
    let (ids, generation) = {
        let first = world.join_now(join("")).member;
        let second = world.ask_join(join(""));
        let first_again = world.ask_join(join(&first));
        let generation = world.joined(first_again).generation;
        ((first, world.joined(second).member), generation)
    };
    // The leader never syncs, but both show that they are there.
    let follower = world.ask_sync(&ids.1, generation, &[]);
    for _ in 0..11 {
        world.pass(5_000);
        assert_eq!(world.heartbeat(who(&ids.0, generation)), ErrorCode::None);
    }
    assert!(world.is_waiting(follower));
    world.pass(5_000);
    assert_eq!(world.synced(follower).error, ErrorCode::RebalanceInProgress);
    assert_eq!(world.heartbeat(who(&ids.0, generation)), ErrorCode::UnknownMemberId);
    let reply = world.join_now(join(&ids.1));
    assert_eq!((reply.generation, reply.leader), (generation + 1, ids.1));
}

#[test]
fn a_stable_group_loses_a_follower_that_never_synced_g_13() {
    let mut world = World::quick();
    let first = world.join_now(join("")).member;
    let second = world.ask_join(join(""));
    let again = world.ask_join(join(&first));
    let generation = world.joined(again).generation;
    let second = world.joined(second).member;
    let waiter = world.ask_sync(&first, generation, &[(&first, "a"), (&second, "b")]);
    assert_eq!(world.synced(waiter).assignment, "a");
    for _ in 0..12 {
        assert_eq!(world.state(), GroupState::Stable);
        world.pass(5_000);
        for id in [&first, &second] {
            world.heartbeat(who(id, generation));
        }
    }
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    assert_eq!(world.heartbeat(who(&second, generation)), ErrorCode::UnknownMemberId);
    assert_eq!(world.heartbeat(who(&first, generation)), ErrorCode::RebalanceInProgress);
}

#[test]
fn one_more_than_fit_is_refused_without_id_g_14() {
    let settings = GroupSettings { max_size: 2, ..World::quick().machine.core.settings };
    let mut world = World::new(settings);
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    for refused in [modern(""), join(""), join_static("", "i")] {
        let reply = world.join_now(refused);
        assert_eq!((reply.error, &*reply.member), (ErrorCode::GroupMaxSizeReached, ""));
    }
    assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::None, "and disturbs nobody");
}

#[test]
fn a_full_group_refuses_while_it_collects_joins_g_14() {
    let mut world = World::new(GroupSettings { max_size: 2, ..GroupSettings::default() });
    let waiters = [world.ask_join(join("")), world.ask_join(join(""))];
    assert_eq!(world.join_now(join("")).error, ErrorCode::GroupMaxSizeReached);
    world.pass(6_000);
    assert!(waiters.into_iter().all(|waiter| world.joined(waiter).error == ErrorCode::None));
}

#[test]
fn a_group_that_is_too_large_after_loading_sheds_the_slowest_g_14_g_22() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join(""), join("")]);
    let smaller = GroupSettings { max_size: 2, ..world.machine.core.settings };
    let mut world = world.fail_over_to(smaller);
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    for id in &ids {
        let codes = world.commit_now(who(id, generation), &[("t", 0, 1)]);
        assert_eq!(codes, [ErrorCode::None], "all can commit first");
    }
    let waiters = [world.ask_join(join(&ids[2])), world.ask_join(join(&ids[1]))];
    assert_eq!(world.join_now(join(&ids[0])).error, ErrorCode::GroupMaxSizeReached);
    for waiter in waiters {
        assert_eq!(world.joined(waiter).generation, generation + 1, "nobody else is waited for");
    }
    assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::UnknownMemberId);
}

#[test]
fn a_leader_that_joins_again_always_starts_a_rebalance_g_17() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    // A follower that asks for the same learns the same.
    let reply = world.join_now(join(&ids[1]));
    assert_eq!((reply.generation, reply.leader, reply.members.len()), (generation, ids[0].clone(), 0));
    let leader = world.ask_join(join(&ids[0]));
    assert!(world.is_waiting(leader));
    assert_eq!(world.heartbeat(who(&ids[1], generation)), ErrorCode::RebalanceInProgress);
    let follower = world.ask_join(join(&ids[1]));
    assert_eq!(world.joined(leader).members.len(), 2);
    assert_eq!(world.joined(follower).generation, generation + 1);
}

#[test]
fn a_follower_with_other_metadata_starts_a_rebalance() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    let changed = Join { protocols: vec![(Arc::from("range"), subscription(&["u"]))], ..join(&ids[1]) };
    let follower = world.ask_join(changed);
    assert!(world.is_waiting(follower));
    let leader = world.join_now(join(&ids[0]));
    assert_eq!(leader.generation, generation + 1);
    let metadata = leader.members.iter().find(|member| member.member == ids[1]).expect("the follower");
    assert_eq!(metadata.metadata, subscription(&["u"]));
}

#[test]
fn a_lost_join_reply_is_told_again_while_the_leader_assigns() {
    let mut world = World::quick();
    let leader = world.join_now(join("")).member;
    let again = world.join_now(join(&leader));
    assert_eq!((again.generation, again.members.len()), (1, 1));
    let changed = Join { protocols: vec![(Arc::from("range"), Bytes::new())], ..join(&leader) };
    assert_eq!(world.join_now(changed).generation, 2);
}

#[test]
fn a_join_that_is_repeated_is_answered_twice() {
    let mut world = World::quick();
    let leader = world.settle_one();
    let new = world.ask_join(join(""));
    let first = world.ask_join(join(&leader));
    let id = world.joined(new).member;
    // Now the leader hangs, and the follower asks twice.
    assert_eq!(world.joined(first).generation, 2);
    let changed = Join { protocols: vec![(Arc::from("range"), Bytes::new())], ..join(&id) };
    let one = world.ask_join(changed.clone());
    let two = world.ask_join(changed);
    assert_eq!(world.joined(one).error, ErrorCode::RebalanceInProgress);
    world.join_now(join(&leader));
    assert_eq!(world.joined(two).generation, 3);
}

#[test]
fn the_protocol_that_all_can_and_most_prefer_wins_g_20() {
    let mut world = with_delay(3_000);
    let waiters: Vec<Waiter> = [&["A", "B"][..], &["B", "A"], &["B"]]
        .into_iter()
        .map(|names| world.ask_join(offers(join(""), names)))
        .collect();
    world.pass(6_000);
    for waiter in waiters {
        assert_eq!(world.joined(waiter).protocol.as_deref(), Some("B"));
    }
}

#[test]
fn of_equal_votes_the_leader_decides_g_20() {
    for leaders in [["A", "B"], ["B", "A"]] {
        let mut world = with_delay(3_000);
        let first = world.ask_join(offers(join(""), &leaders));
        world.ask_join(offers(join(""), &[leaders[1], leaders[0]]));
        world.pass(6_000);
        assert_eq!(world.joined(first).protocol.as_deref(), Some(leaders[0]));
    }
}

#[test]
fn a_member_that_offers_one_name_twice_counts_once_g_20() {
    let mut world = with_delay(3_000);
    world.ask_join(offers(join(""), &["A", "A", "B"]));
    let second = world.ask_join(offers(join(""), &["B"]));
    assert_eq!(world.join_now(offers(join(""), &["A"])).error, ErrorCode::InconsistentGroupProtocol);
    world.pass(6_000);
    assert_eq!(world.joined(second).protocol.as_deref(), Some("B"));
}

#[test]
fn an_empty_group_takes_any_type_and_an_active_one_refuses_others_f60() {
    let mut world = World::quick();
    let id = world.settle_one();
    let other_type = Join { protocol_type: Arc::from("connect"), ..join("") };
    for refused in [other_type.clone(), offers(join(""), &["roundrobin"]), offers(join(""), &[])] {
        let reply = world.join_now(refused);
        assert_eq!((reply.error, reply.generation), (ErrorCode::InconsistentGroupProtocol, -1));
    }
    // A known member is told so before it is looked at who it is.
    let stranger = Join { member: MemberId::from("stranger"), ..other_type.clone() };
    assert_eq!(world.join_now(stranger).error, ErrorCode::InconsistentGroupProtocol);
    world.leave(&[(&id, None)]);
    let reply = world.join_now(offers(other_type, &["compatible"]));
    assert_eq!((reply.error, reply.protocol_type.as_deref()), (ErrorCode::None, Some("connect")));
}

#[test]
fn an_empty_group_wants_a_type_and_a_protocol() {
    let mut world = World::quick();
    for refused in [Join { protocol_type: Arc::default(), ..join("") }, offers(join(""), &[])] {
        assert_eq!(world.join_now(refused).error, ErrorCode::InconsistentGroupProtocol);
    }
    assert_eq!(world.machine.list(None).count(), 0, "no group came of it");
}

#[test]
fn a_session_out_of_bounds_is_refused_with_the_id() {
    let mut world = World::quick();
    for session_timeout_ms in [5_999, 1_800_001, -1, i32::MIN, i32::MAX] {
        let reply = world.join_now(Join { session_timeout_ms, ..join("m") });
        assert_eq!((reply.error, &*reply.member), (ErrorCode::InvalidSessionTimeout, "m"));
        world.join_now(Join { session_timeout_ms, ..join("") });
    }
    assert_eq!(world.machine.list(None).count(), 0);
    assert_eq!(world.join_now(Join { session_timeout_ms: 6_000, ..join("") }).error, ErrorCode::None);
}

#[test]
fn a_stranger_with_an_id_is_unknown_everywhere() {
    let mut world = World::quick();
    assert_eq!(world.join_now(join("stranger")).error, ErrorCode::UnknownMemberId);
    world.settle_one();
    assert_eq!(world.join_now(join("stranger")).error, ErrorCode::UnknownMemberId);
    assert_eq!(world.join_now(join_static("stranger", "i")).error, ErrorCode::UnknownMemberId);
}

/// Kafka calls it a bug of the broker; a client can ask it all the same.
#[test]
fn a_pending_id_with_an_own_name_is_unknown() {
    let mut world = World::quick();
    let pending = world.join_now(modern("")).member;
    assert_eq!(world.join_now(join_static(&pending, "i")).error, ErrorCode::UnknownMemberId);
    assert_eq!(world.join_now(modern(&pending)).error, ErrorCode::None);
}

#[test]
fn whoever_does_not_join_in_time_is_out_and_the_leader_too() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join(""), join("")]);
    let second =
        world.ask_join(Join { protocols: vec![(Arc::from("range"), Bytes::new())], ..join(&ids[1]) });
    for _ in 0..12 {
        assert!(world.is_waiting(second));
        for id in [&ids[0], &ids[2]] {
            assert_eq!(world.heartbeat(who(id, generation)), ErrorCode::RebalanceInProgress);
        }
        world.pass(5_000);
    }
    let reply = world.joined(second);
    assert_eq!((reply.generation, reply.leader, reply.members.len()), (generation + 1, ids[1].clone(), 1));
    assert_eq!(world.heartbeat(who(&ids[0], generation)), ErrorCode::UnknownMemberId);
}

#[test]
fn a_group_whose_members_are_gone_is_empty_in_the_log_too() {
    let mut world = World::quick();
    let id = world.settle_one();
    world.pass(i64::from(SESSION_MS));
    assert_eq!(world.state(), GroupState::Empty);
    assert_eq!(world.heartbeat(who(&id, 1)), ErrorCode::UnknownMemberId);
    let mut world = world.fail_over();
    assert_eq!(world.state(), GroupState::Empty);
    assert_eq!(world.join_now(join("")).generation, 3);
}

#[test]
fn a_client_name_that_fills_a_string_still_gives_an_id_that_can_be_written() {
    let mut world = World::quick();
    let client_id: Arc<str> = "ä".repeat(16_383).into();
    let id = world.join_now(Join { client_id, ..join("") }).member;
    assert!(id.len() <= protocol::codec::STRING_BYTES_MAX, "{}", id.len());
    let waiter = world.ask_sync(&id, 1, &[(&id, "all")]);
    assert_eq!(world.synced(waiter).error, ErrorCode::None);
    let mut world = world.fail_over();
    assert_eq!(world.heartbeat(who(&id, 1)), ErrorCode::None);
}

#[test]
fn a_number_that_is_given_twice_still_gives_two_ids() {
    let mut machine = Groups::new(GroupSettings::default());
    let wall = TimestampMs::new(START_MS);
    let now = Now { mono: MonoTime::new(0), wall, random: u128::MAX, room: Room::UNBOUNDED };
    let mut out = Vec::new();
    for waiter in 0..3 {
        let request = GroupRequest::Join(modern(""));
        let (waiter, gone) = (Waiter(waiter), BTreeSet::new());
        machine.step(now, Event::Request { waiter, request, gone }, &mut out);
    }
    let ids = out.iter().map(|effect| match effect {
        Effect::Reply { reply: GroupReply::Join(reply), .. } => reply.member.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(ids.collect::<std::collections::BTreeSet<_>>().len(), 3);
}

#[test]
fn the_largest_generation_is_followed_by_the_first() {
    let mut world = World::quick();
    let id = world.settle_one();
    world.machine.groups.get_mut("g").expect("the group").generation = i32::MAX;
    assert_eq!(world.join_now(join(&id)).generation, 1);
}

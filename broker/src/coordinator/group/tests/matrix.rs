//! The reply matrix of members (coordinators.md 2.6), row by row.

use super::*;

/// What each request is answered: SyncGroup, Heartbeat, OffsetCommit, and LeaveGroup for its only member.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    sync: Option<i16>,
    heartbeat: i16,
    commit: i16,
    leave: i16,
}

/// Asks each in a fresh world, as it changes what it asks.
fn row(make: impl Fn() -> (World, Identity)) -> Row {
    let (mut world, who) = make();
    let request = Sync { who: who.clone(), ..sync(&who.member, who.generation, &[]) };
    let waiter = world.ask(GroupRequest::Sync(request));
    let sync = (!world.is_waiting(waiter)).then(|| world.synced(waiter).error.get());
    let (mut world, who) = make();
    let heartbeat = world.heartbeat(who).get();
    let (mut world, who) = make();
    let commit = world.commit_now(who, &[("t", 0, 1)])[0].get();
    let (mut world, who) = make();
    let reply = world.leave(&[(&who.member, who.instance.as_deref())]);
    let leave = if reply.error == ErrorCode::None { reply.members[0] } else { reply.error };
    Row { sync, heartbeat, commit, leave: leave.get() }
}

fn stable() -> (World, Vec<MemberId>, i32) {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join_static("", "i"), join_static("", "j")]);
    (world, ids, generation)
}

fn preparing() -> (World, Vec<MemberId>, i32) {
    let (mut world, ids, generation) = stable();
    world.ask_join(join(""));
    assert_eq!(world.state(), GroupState::PreparingRebalance);
    (world, ids, generation)
}

fn completing() -> (World, Vec<MemberId>, i32) {
    let (mut world, ids, generation) = preparing();
    world.ask_join(join_static(&ids[0], "i"));
    world.ask_join(join_static(&ids[1], "j"));
    assert_eq!(world.state(), GroupState::CompletingRebalance);
    (world, ids, generation + 1)
}

#[test]
fn in_a_group_that_is_not_there() {
    let at = |generation| move || (World::quick(), who("m", generation));
    assert_eq!(row(at(3)), Row { sync: Some(25), heartbeat: 25, commit: 22, leave: 25 });
    assert_eq!(row(at(-1)), Row { sync: Some(25), heartbeat: 25, commit: 0, leave: 25 });
    let mut world = World::quick();
    let knowing = OffsetCommit { knows_group_id_not_found: true, ..commit(who("m", 0), &[("t", 0, 1)]) };
    let waiter = world.ask(GroupRequest::OffsetCommit(knowing));
    assert_eq!(world.committed(waiter), [ErrorCode::GroupIdNotFound]);
}

#[test]
fn in_a_group_that_is_being_removed() {
    let dead = || {
        let mut world = World::slow_log();
        world.ask_commit(nobody(), &[("t", 0, 1)]);
        world.ask(GroupRequest::Delete(group()));
        (world, who("m", 1))
    };
    assert_eq!(row(dead), Row { sync: Some(15), heartbeat: 15, commit: 15, leave: 15 });
}

#[test]
fn in_an_empty_group() {
    let empty = |generation: i32| {
        move || {
            let mut world = World::quick();
            let id = world.settle_one();
            world.leave(&[(&id, None)]);
            (world, who("m", generation))
        }
    };
    assert_eq!(row(empty(2)), Row { sync: Some(25), heartbeat: 25, commit: 25, leave: 25 });
    assert_eq!(row(empty(-1)), Row { sync: Some(25), heartbeat: 25, commit: 0, leave: 25 });
}

#[test]
fn as_nobody_or_as_somebody_else() {
    for make in [stable, preparing, completing] {
        let nobody_asks = || (make().0, nobody());
        assert_eq!(row(nobody_asks), Row { sync: Some(25), heartbeat: 25, commit: 25, leave: 25 });
        let without_generation = || {
            let (world, ids, _) = make();
            (world, who(&ids[0], -1))
        };
        let told = Row { sync: Some(22), heartbeat: 22, commit: 22, leave: 0 };
        assert_eq!(row(without_generation), told);
        let with_anothers_name = || {
            let (world, ids, generation) = make();
            (world, who_static(&ids[0], "j", generation))
        };
        assert_eq!(row(with_anothers_name), Row { sync: Some(82), heartbeat: 82, commit: 82, leave: 82 });
        let with_a_strange_name = || {
            let (world, ids, generation) = make();
            (world, who_static(&ids[0], "k", generation))
        };
        assert_eq!(row(with_a_strange_name), Row { sync: Some(25), heartbeat: 25, commit: 25, leave: 25 });
        let unknown = || {
            let (world, _, generation) = make();
            (world, who("m", generation))
        };
        assert_eq!(row(unknown), Row { sync: Some(25), heartbeat: 25, commit: 25, leave: 25 });
        let of_another_generation = || {
            let (world, ids, generation) = make();
            (world, who_static(&ids[1], "j", generation + 1))
        };
        assert_eq!(row(of_another_generation), told);
    }
}

#[test]
fn as_a_member() {
    let of = |make: fn() -> (World, Vec<MemberId>, i32)| {
        move || {
            let (world, ids, generation) = make();
            (world, who_static(&ids[1], "j", generation))
        }
    };
    assert_eq!(row(of(preparing)), Row { sync: Some(27), heartbeat: 27, commit: 0, leave: 0 });
    assert_eq!(row(of(completing)), Row { sync: None, heartbeat: 0, commit: 27, leave: 0 });
    assert_eq!(row(of(stable)), Row { sync: Some(0), heartbeat: 0, commit: 0, leave: 0 });
}

/// The "timer" of the matrix: who asks so is there.
#[test]
fn what_restarts_a_session() {
    let alive = |make: fn() -> (World, Vec<MemberId>, i32), ask: fn(&mut World, Identity)| {
        let (mut world, ids, generation) = make();
        for _ in 0..4 {
            world.pass(i64::from(SESSION_MS) - 1);
            world.heartbeat(who(&ids[0], generation));
            ask(&mut world, who(&ids[1], generation));
        }
        world.heartbeat(who(&ids[1], generation)) != ErrorCode::UnknownMemberId
    };
    let heartbeat = |world: &mut World, who: Identity| {
        world.heartbeat(who);
    };
    let commit = |world: &mut World, who: Identity| {
        world.commit_now(who, &[("t", 0, 1)]);
    };
    let sync = |world: &mut World, who: Identity| {
        world.ask(GroupRequest::Sync(sync(&who.member, who.generation, &[])));
    };
    let fetch = |world: &mut World, _: Identity| {
        world.fetch_all();
    };
    for make in [stable, preparing, completing] {
        assert!(alive(make, heartbeat));
        assert!(!alive(make, fetch));
    }
    assert!(alive(stable, commit) && alive(preparing, commit) && !alive(completing, commit));
    assert!(alive(stable, sync) && !alive(preparing, sync));
}

//! What is told of a group's life: each change once, with its reason. That members are told of exactly is looked at in the
//! simulation.

use super::*;

impl World {
    /// What was told since the last time.
    fn told(&mut self) -> Vec<What> {
        self.news.drain(..).map(|news| news.what).collect()
    }
}

fn joined(member: &MemberId) -> What {
    What::Joined {
        member: member.clone(),
        instance: None,
        client_id: Arc::from("c"),
        client_host: Arc::from("/127.0.0.1"),
        reason: None,
    }
}

fn began(generation: i32, members: usize, leader: &MemberId) -> What {
    What::Began { generation, protocol: Some(Arc::from("range")), members, leader: leader.clone() }
}

fn gone(member: &MemberId, why: Loss) -> What {
    What::Gone { member: member.clone(), why }
}

#[test]
fn a_group_is_told_of_from_its_first_member_to_its_end() {
    let mut world = World::quick();
    let id = world.settle_one();
    let rebalances = What::Rebalances { generation: 0, members: 1, why: Cause::NewMember };
    let stable = What::Stable { generation: 1, members: 1 };
    assert_eq!(world.told(), [joined(&id), rebalances, began(1, 1, &id), stable]);
    world.heartbeat(who(&id, 1));
    world.commit_now(who(&id, 1), &[("t", 0, 1)]);
    assert!(world.told().is_empty(), "its work is not");
    let leaving = Leaving { member: id.clone(), instance: None, reason: Some(Arc::from("it closed")) };
    world.ask(GroupRequest::Leave(Leave { group: group(), members: vec![leaving] }));
    let rebalances = What::Rebalances { generation: 1, members: 0, why: Cause::MemberGone };
    let left = gone(&id, Loss::Left(Some(Arc::from("it closed"))));
    assert_eq!(world.told(), [left, rebalances, What::Empty { generation: 2 }]);
    world.ask(GroupRequest::Delete(group()));
    assert_eq!(world.told(), [What::Removed]);
}

#[test]
fn a_member_that_is_removed_has_a_reason() {
    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![join(""), join("")]);
    world.told();
    // One beats, the other does not.
    world.pass(i64::from(SESSION_MS) - 1);
    world.heartbeat(who(&ids[0], generation));
    world.pass(1);
    let rebalances = What::Rebalances { generation, members: 1, why: Cause::MemberGone };
    assert_eq!(world.told(), [gone(&ids[1], Loss::Session), rebalances]);

    let mut world = World::quick();
    let (ids, generation) = world.settle(vec![
        Join { session_timeout_ms: 300_000, ..join("") },
        Join { session_timeout_ms: 300_000, ..join("") },
    ]);
    world.told();
    world.ask_join(Join { session_timeout_ms: 300_000, ..join(&ids[0]) });
    world.pass(i64::from(REBALANCE_MS));
    let why = Cause::LeaderRejoined;
    let rebalances = What::Rebalances { generation, members: 2, why };
    let next = began(generation + 1, 1, &ids[0]);
    assert_eq!(world.told(), [rebalances, gone(&ids[1], Loss::Rebalance), next]);
    world.pass(i64::from(REBALANCE_MS));
    assert_eq!(world.told()[0], gone(&ids[0], Loss::Sync));
}

#[test]
fn a_static_member_that_comes_back_is_the_same_one_also_where_the_log_does_not_learn_of_it() {
    let mut world = World::slow_log();
    let id = world.join_now(join_static("", "i")).member;
    world.ask_sync(&id, 1, &[(&id, "all")]);
    world.commit();
    world.told();
    world.ask_join(join_static("", "i"));
    let instance = InstanceId::from("i");
    let news = world.told();
    let [What::CameBack { instance: of, member, before }] = &news[..] else { panic!("{news:?}") };
    assert_eq!((of, before), (&instance, &id));
    world.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(world.told(), [What::CameBack { instance, member: id, before: member.clone() }]);
}

#[test]
fn an_assignment_that_the_log_refuses_is_told_with_its_error() {
    let mut world = World::slow_log();
    let id = world.join_now(join("")).member;
    world.ask_sync(&id, 1, &[(&id, "all")]);
    world.told();
    world.fail_one(ErrorCode::MessageTooLarge);
    let why = Cause::NotWritten(ErrorCode::UnknownServerError);
    assert_eq!(world.told(), [What::Rebalances { generation: 1, members: 1, why }]);
}

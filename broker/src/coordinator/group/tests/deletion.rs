//! OffsetDelete, DeleteGroups and deleted topics: O-08, O-09. A topic that is made anew begins without offsets.

use super::*;

impl World {
    fn delete_offsets(&mut self, partitions: &[(&str, i32)]) -> Result<Vec<ErrorCode>, ErrorCode> {
        let waiter = self.ask_delete_offsets(partitions);
        self.offsets_deleted(waiter)
    }

    fn ask_delete_offsets(&mut self, partitions: &[(&str, i32)]) -> Waiter {
        let partitions = partitions.iter().map(|(topic, p)| (TopicName::new(topic), *p)).collect();
        self.ask(GroupRequest::OffsetDelete(OffsetDelete { group: group(), partitions }))
    }

    fn offsets_deleted(&mut self, waiter: Waiter) -> Result<Vec<ErrorCode>, ErrorCode> {
        match self.reply(waiter) {
            GroupReply::OffsetDelete(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn ask_delete(&mut self) -> Waiter {
        self.ask(GroupRequest::Delete(group()))
    }

    fn delete(&mut self) -> ErrorCode {
        let waiter = self.ask_delete();
        self.done(waiter)
    }
}

#[test]
fn offsets_of_subscribed_topics_are_kept_and_others_go_o_08() {
    let mut world = World::quick();
    let id = world.settle_one();
    world.commit_now(who(&id, 1), &[("t", 0, 1), ("u", 0, 2), ("u", 1, 3)]);
    let codes = world.delete_offsets(&[("t", 0), ("u", 0), ("u", 7), ("unknown", 0)]);
    let (kept, gone) = (ErrorCode::GroupSubscribedToTopic, ErrorCode::None);
    assert_eq!(codes, Ok(vec![kept, gone, gone, gone]));
    assert_eq!(world.fetch_all(), [("t".into(), 0, 1), ("u".into(), 1, 3)]);
    assert_eq!(world.fail_over().fetch_all(), [("t".into(), 0, 1), ("u".into(), 1, 3)]);
}

/// G-21 is of the reader of subscriptions; what cannot be read subscribes everything.
#[test]
fn a_subscription_that_cannot_be_read_keeps_everything_o_08() {
    let mut world = World::quick();
    let id = world.join_now(offsets_of_nonsense()).member;
    let waiter = world.ask_sync(&id, 1, &[(&id, "a")]);
    world.synced(waiter);
    world.commit_now(who(&id, 1), &[("u", 0, 2)]);
    assert_eq!(world.delete_offsets(&[("u", 0)]), Ok(vec![ErrorCode::GroupSubscribedToTopic]));
    assert_eq!(world.fetch("u", 0, true), (2, ErrorCode::None));
}

fn offsets_of_nonsense() -> Join {
    Join { protocols: vec![(Arc::from("range"), Bytes::from_static(b"\0\0\0"))], ..join("") }
}

#[test]
fn a_subscription_of_a_later_version_is_read_by_its_beginning_g_21() {
    let mut world = World::quick();
    let mut later = subscription(&["t"]).to_vec();
    later[1] = 99;
    later.extend([0xff; 9]);
    let id = world.join_now(Join { protocols: vec![(Arc::from("range"), later.into())], ..join("") }).member;
    let waiter = world.ask_sync(&id, 1, &[(&id, "a")]);
    world.synced(waiter);
    world.commit_now(who(&id, 1), &[("t", 0, 1), ("u", 0, 2)]);
    let codes = world.delete_offsets(&[("t", 0), ("u", 0)]);
    assert_eq!(codes, Ok(vec![ErrorCode::GroupSubscribedToTopic, ErrorCode::None]));
}

#[test]
fn offsets_of_an_active_group_of_another_type_are_kept() {
    let mut world = World::quick();
    world.commit_now(nobody(), &[("t", 0, 1)]);
    world.join_now(Join { protocol_type: Arc::from("connect"), ..join("") });
    assert_eq!(world.delete_offsets(&[("t", 0)]), Err(ErrorCode::NonEmptyGroup));
}

#[test]
fn the_last_offset_of_an_empty_group_takes_the_group_with_it() {
    let mut world = World::quick();
    assert_eq!(world.delete_offsets(&[("t", 0)]), Err(ErrorCode::GroupIdNotFound));
    let id = world.settle_one();
    world.commit_now(who(&id, 1), &[("t", 0, 1), ("t", 1, 1)]);
    world.leave(&[(&id, None)]);
    assert_eq!(world.delete_offsets(&[("t", 0)]), Ok(vec![ErrorCode::None]));
    assert_eq!(world.state(), GroupState::Empty);
    assert_eq!(world.delete_offsets(&[("t", 1)]), Ok(vec![ErrorCode::None]));
    assert_eq!(world.state(), GroupState::Dead);
    let (key, value) = world.log.last().expect("the tombstone of the group");
    assert_eq!((&key[..], value), (&b"\0\x02\0\x01g"[..], &None));
    assert_eq!(world.fail_over().machine.list(None).count(), 0);
}

#[test]
fn offsets_are_deleted_when_the_log_has_it_and_not_at_all_if_it_has_not() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1)]);
    world.commit();
    let waiter = world.ask_delete_offsets(&[("t", 0)]);
    assert!(world.is_waiting(waiter));
    assert_eq!(world.fetch("t", 0, false), (1, ErrorCode::None));
    world.fail_one(ErrorCode::RequestTimedOut);
    assert_eq!(world.offsets_deleted(waiter), Err(ErrorCode::CoordinatorNotAvailable));
    assert_eq!(world.fetch("t", 0, true), (1, ErrorCode::None));
}

#[test]
fn the_order_of_the_log_decides_between_a_commit_and_a_deletion() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1), ("t", 1, 1)]);
    world.ask_delete_offsets(&[("t", 0), ("t", 1)]);
    world.ask_commit(nobody(), &[("t", 1, 2)]);
    world.commit();
    assert_eq!(world.fetch_all(), [("t".into(), 1, 2)]);
    assert_eq!(world.fail_over().fetch_all(), [("t".into(), 1, 2)]);
}

#[test]
fn a_group_is_deleted_only_while_it_is_empty_o_09() {
    let mut world = World::quick();
    assert_eq!(world.delete(), ErrorCode::GroupIdNotFound);
    let id = world.settle_one();
    world.commit_now(who(&id, 1), &[("t", 0, 1), ("u", 0, 2)]);
    assert_eq!(world.delete(), ErrorCode::NonEmptyGroup);
    world.leave(&[(&id, None)]);
    assert_eq!(world.delete(), ErrorCode::None);
    assert_eq!((world.state(), world.fetch_all()), (GroupState::Dead, vec![]));
    assert_eq!(world.delete(), ErrorCode::GroupIdNotFound);
    assert_eq!(world.fail_over().machine.list(None).count(), 0);
}

#[test]
fn a_group_that_is_being_deleted_takes_nothing_and_lives_again_if_that_fails() {
    for fails in [false, true] {
        let mut world = World::slow_log();
        let first = world.ask_commit(nobody(), &[("t", 0, 1)]);
        let delete = world.ask_delete();
        let dead = ErrorCode::CoordinatorNotAvailable;
        assert_eq!(world.commit_now(nobody(), &[("t", 1, 2)]), [dead]);
        assert_eq!(world.join_now(join("")).error, dead);
        assert_eq!(world.heartbeat(who("m", 1)), dead);
        assert_eq!(world.leave(&[("m", None)]).error, dead);
        let sync = world.ask_sync(&MemberId::from("m"), 1, &[]);
        assert_eq!(world.synced(sync).error, dead);
        assert_eq!(world.delete_offsets(&[("t", 0)]), Err(ErrorCode::GroupIdNotFound));
        assert_eq!(world.delete(), ErrorCode::GroupIdNotFound);
        assert_eq!((world.state(), world.machine.list(None).count()), (GroupState::Dead, 0));
        world.commit_one();
        assert_eq!(world.committed(first), [ErrorCode::None]);
        assert_eq!(world.fetch("t", 0, false), (1, ErrorCode::None), "it may yet live");
        if fails {
            world.fail_one(ErrorCode::NotEnoughReplicas);
            assert_eq!(world.done(delete), dead);
            assert_eq!(world.fetch_all(), [("t".into(), 0, 1)]);
        } else {
            world.commit_one();
            assert_eq!(world.done(delete), ErrorCode::None);
            assert_eq!(world.fetch_all(), []);
            assert_eq!(world.machine.core.topics.len(), 0);
        }
    }
}

#[test]
fn a_group_of_pending_ids_alone_is_deleted_without_a_record() {
    let mut world = World::slow_log();
    let pending = world.join_now(Join { needs_known_member_id: true, ..join("") }).member;
    assert_eq!(world.delete(), ErrorCode::None);
    assert_eq!((world.appends.len(), world.machine.list(None).count()), (0, 0));
    assert_eq!(world.join_now(join(&pending)).error, ErrorCode::UnknownMemberId);
}

/// One batch of all would be refused by the log, and the group could never be deleted.
#[test]
fn a_group_of_many_offsets_is_deleted_in_batches() {
    for fails in [None, Some(0), Some(2)] {
        let mut world = World::slow_log();
        let offsets: Vec<(&str, i32, i64)> = (0..10_000).map(|partition| ("t", partition, 1)).collect();
        world.ask_commit(nobody(), &offsets);
        world.commit();
        let delete = world.ask_delete();
        // A slice at a time: the shard has its turn in between.
        assert_eq!((world.appends.len(), world.continues), (0, 1));
        for slice in 1..=5 {
            world.continues = 0;
            world.step(Event::Continue);
            assert_eq!((world.appends.len(), world.continues), (slice, usize::from(slice < 5)));
        }
        for batch in 0..5 {
            let bytes: usize = world.appends[0].1.iter().map(|(key, _)| key.len()).sum();
            assert!(bytes <= 128 * 1024, "{bytes}");
            assert!(world.is_waiting(delete));
            if fails == Some(batch) {
                world.fail_one(ErrorCode::NotEnoughReplicas)
            } else {
                world.commit_one();
            }
        }
        let (error, left) = match fails {
            None => (ErrorCode::None, 0),
            Some(_) => (ErrorCode::CoordinatorNotAvailable, 2_000),
        };
        assert_eq!((world.done(delete), world.fetch_all().len()), (error, left));
        world.ask_delete();
        world.go_on();
        world.commit();
        assert_eq!(world.fail_over().fetch_all().len(), 0);
    }
}

fn many(world: &mut World, partitions: i32) {
    let offsets: Vec<(&str, i32, i64)> = (0..partitions).map(|partition| ("t", partition, 1)).collect();
    world.ask_commit(nobody(), &offsets);
    world.commit();
}

#[test]
fn a_group_that_is_deleted_in_slices_is_dead_from_the_first_on_and_spares_other_groups() {
    let mut world = World::slow_log();
    many(&mut world, 5_000);
    let other = GroupId::from("other");
    world.ask_commit(Identity { group: other.clone(), ..nobody() }, &[("t", 0, 1), ("t", 1, 1)]);
    world.commit();
    let delete = world.ask_delete();
    world.continues = 0;
    world.step(Event::Continue);
    assert_eq!(world.state(), GroupState::Dead);
    assert_eq!(world.commit_now(nobody(), &[("t", 1, 2)]), [ErrorCode::CoordinatorNotAvailable]);
    let twice = world.ask_delete();
    assert_eq!(world.done(twice), ErrorCode::GroupIdNotFound);
    // What fails of it is not told to who deletes offsets of another group between its slices.
    let partitions = vec![(TopicName::new("t"), 0)];
    let waiter = world.ask(GroupRequest::OffsetDelete(OffsetDelete { group: other, partitions }));
    world.fail_one(ErrorCode::NotEnoughReplicas);
    world.commit_one();
    assert_eq!(world.reply(waiter), GroupReply::OffsetDelete(Ok(vec![ErrorCode::None])));
    world.go_on();
    world.commit();
    assert_eq!((world.done(delete), world.state()), (ErrorCode::CoordinatorNotAvailable, GroupState::Empty));
    assert_eq!(world.fetch_all().len(), 2_000);
}

#[test]
fn who_waits_for_the_end_of_a_group_learns_that_the_coordinator_is_elsewhere() {
    let mut world = World::slow_log();
    many(&mut world, 5_000);
    let delete = world.ask_delete();
    world.continues = 0;
    world.step(Event::Continue);
    world.unload();
    assert_eq!(world.done(delete), ErrorCode::NotCoordinator);
    assert_eq!(world.fail_over().fetch_all().len(), 5_000, "nothing of it was in the log");
}

#[test]
fn a_group_of_very_many_offsets_is_deleted_no_faster_than_the_log_takes_it() {
    let mut world = World::slow_log();
    // Long names make many batches of few offsets.
    let topic = "t".repeat(249);
    let offsets: Vec<(&str, i32, i64)> =
        (0..32_000).map(|partition| (topic.as_str(), partition, 1)).collect();
    world.ask_commit(nobody(), &offsets);
    world.commit();
    let delete = world.ask_delete();
    world.go_on();
    let ahead = 64..70;
    assert!(ahead.contains(&world.appends.len()), "{}", world.appends.len());
    while !world.appends.is_empty() {
        world.commit_one();
        world.go_on();
        assert!(world.appends.len() < ahead.end);
    }
    assert_eq!((world.done(delete), world.machine.list(None).count()), (ErrorCode::None, 0));
}

#[test]
fn the_offsets_of_deleted_topics_go_from_all_groups() {
    let mut world = World::quick();
    let id = world.settle_one();
    world.commit_now(who(&id, 1), &[("t", 0, 1), ("u", 0, 2), ("v", 0, 3)]);
    let other = Identity { group: GroupId::from("other"), ..nobody() };
    world.commit_now(other, &[("t", 0, 1)]);
    world.step(deleted(&["t", "v", "w"]));
    world.go_on();
    assert_eq!(world.fetch_all(), [("u".into(), 0, 2)]);
    assert_eq!(world.machine.list(None).count(), 1, "the other group had nothing else");
    assert_eq!(world.fail_over().fetch_all(), [("u".into(), 0, 2)]);
}

#[test]
fn a_topic_that_is_made_again_keeps_its_new_offsets() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1), ("t", 1, 1)]);
    world.commit();
    // In flight when the topic goes: of the old topic.
    world.ask_commit(nobody(), &[("t", 2, 1), ("t", 3, 1)]);
    world.step(deleted(&["t"]));
    // Of the new one.
    world.ask_commit(nobody(), &[("t", 1, 2)]);
    world.commit();
    world.go_on();
    world.commit();
    assert_eq!(world.fetch_all(), [("t".into(), 1, 2)]);
    assert_eq!(world.fail_over().fetch_all(), [("t".into(), 1, 2)]);
}

#[test]
fn topics_that_no_group_knows_make_no_work_when_they_are_deleted() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("u", 0, 1)]);
    world.commit();
    world.step(deleted(&["t"]));
    assert!(world.machine.core.jobs.is_empty() && world.continues == 0);
    // One that is being committed for the first time is known.
    world.ask_commit(nobody(), &[("t", 0, 1)]);
    world.step(deleted(&["t", "v"]));
    assert_eq!(world.machine.core.jobs.len(), 1);
    world.commit();
    world.go_on();
    world.commit();
    assert_eq!(world.fail_over().fetch_all(), [("u".into(), 0, 1)]);
}

#[test]
fn a_commit_for_a_topic_that_is_gone_is_refused_and_its_siblings_are_kept() {
    let mut world = World::quick();
    world.gone = names(&["t"]);
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let codes = world.commit_now(nobody(), &[("t", 0, 1), ("u", 0, 2), ("t", 1, 3)]);
    assert_eq!(codes, [unknown, ErrorCode::None, unknown]);
    assert_eq!(world.fetch_all(), [("u".into(), 0, 2)]);
    let codes = world.commit_now(who("stranger", 1), &[("t", 0, 1), ("u", 0, 2)]);
    assert_eq!(codes, [unknown, ErrorCode::UnknownMemberId], "an error of the group is for the rest");
    let other = Identity { group: GroupId::from("other"), ..nobody() };
    assert_eq!(world.commit_now(other, &[("t", 0, 1)]), [unknown]);
    assert_eq!(world.machine.list(None).count(), 1, "no group came of it");
    assert_eq!(world.fail_over().fetch_all(), [("u".into(), 0, 2)]);
}

#[test]
fn nobody_is_told_of_the_offsets_of_a_deleted_topic_while_their_tombstones_are_on_their_way() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1), ("t", 1, 1), ("u", 0, 5)]);
    world.commit();
    world.ask_commit(nobody(), &[("t", 2, 1)]);
    world.step(deleted(&["t"]));
    world.ask_commit(nobody(), &[("t", 1, 9)]);
    let (old, new) = ((-1, ErrorCode::None), (9, ErrorCode::None));
    assert_eq!((world.fetch("t", 0, true), world.fetch("t", 1, false)), (old, old));
    assert_eq!(world.fetch_all(), [("u".into(), 0, 5)]);
    // The one that was on its way comes into the log, and then that of the new topic.
    world.commit_one();
    assert_eq!((world.fetch("t", 2, true), world.fetch("t", 1, false)), (old, old));
    world.commit_one();
    assert_eq!((world.fetch("t", 2, true), world.fetch("t", 1, true)), (old, new));
    let left = [("t".into(), 1, 9), ("u".into(), 0, 5)];
    assert_eq!(world.fetch_all(), left);
    world.go_on();
    assert_eq!(world.fetch_all(), left);
    world.commit();
    assert_eq!(world.fetch_all(), left);
    assert!(world.machine.core.jobs.is_empty());
    assert_eq!(world.fail_over().fetch_all(), left);
}

#[test]
fn tombstones_of_a_deleted_topic_that_the_log_refuses_are_written_at_the_next_look() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1), ("u", 0, 5)]);
    world.commit();
    world.step(deleted(&["t"]));
    world.go_on();
    for _ in 0..3 {
        world.fail_one(ErrorCode::KafkaStorageError);
        world.go_on();
        assert_eq!(world.fetch("t", 0, true), (-1, ErrorCode::None));
        assert!(world.appends.is_empty(), "not at once: the log would refuse them again");
        world.expire();
    }
    world.commit_one();
    assert!(world.appends.is_empty() && world.machine.core.jobs.is_empty());
    assert_eq!(world.fail_over().fetch_all(), [("u".into(), 0, 5)]);
}

#[test]
fn an_old_offset_does_not_come_back_when_that_of_the_new_topic_is_not_written() {
    for fails in [true, false] {
        let mut world = World::slow_log();
        world.ask_commit(nobody(), &[("t", 0, 1)]);
        world.commit();
        world.step(deleted(&["t"]));
        let waiter = world.ask_commit(nobody(), &[("t", 0, 2)]);
        world.go_on();
        assert_eq!(world.appends.len(), 1, "a tombstone behind the new offset would take it away");
        if fails {
            world.fail_one(ErrorCode::NotEnoughReplicas);
        } else {
            world.commit_one();
        }
        assert_eq!(world.committed(waiter)[0] == ErrorCode::None, !fails);
        world.go_on();
        assert_eq!(world.appends.len(), usize::from(fails));
        world.commit();
        let offset = if fails { -1 } else { 2 };
        assert_eq!(world.fetch("t", 0, true), (offset, ErrorCode::None));
        assert!(world.machine.core.jobs.is_empty());
        assert_eq!(world.fail_over().fetch("t", 0, true), (offset, ErrorCode::None));
    }
}

#[test]
fn a_group_whose_removal_fails_has_lost_the_offsets_of_a_topic_that_was_deleted_meanwhile() {
    let mut world = World::slow_log();
    world.ask_commit(nobody(), &[("t", 0, 1), ("u", 0, 5)]);
    world.commit();
    world.ask_delete();
    world.step(deleted(&["t"]));
    world.go_on();
    assert_eq!(world.appends.len(), 1);
    world.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(world.fetch_all(), [("u".into(), 0, 5)]);
    world.go_on();
    world.commit();
    assert_eq!(world.fetch_all(), [("u".into(), 0, 5)]);
    assert!(world.machine.core.jobs.is_empty());
    assert_eq!(world.fail_over().fetch_all(), [("u".into(), 0, 5)]);
}

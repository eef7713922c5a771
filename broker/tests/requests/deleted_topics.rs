//! Commits that race with the deletion of their topic, as handlers and coordinators on several shards see it: a topic that
//! is made again under the name begins without offsets. The broker of `coordinator` under test.

use std::sync::Arc;

use broker::coordinator::ask::*;
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;

use crate::coordinator::*;
use crate::harness::*;

/// The topic that is made again.
const NEW: TopicId = TopicId::new([3; 16]);

impl Groups {
    /// One shard learns that the topic is another one, or is not there.
    fn tell(&self, shard: usize, id: Option<TopicId>) {
        let cell = &self.broker.cells[shard];
        let before = cell.current();
        let mut image = (*before).clone();
        image.version += 1;
        if let Some(old) = image.topics.remove("t") {
            image.names.remove(&old.id);
        }
        if let Some(id) = id {
            let topic = topic("t", id, (1, self.broker.shards.len()), &[]);
            image.names.insert(id, topic.name.clone());
            image.topics.insert(topic.name.clone(), Arc::new(topic));
        }
        let now = Arc::new(image);
        cell.replace(now.clone());
        self.client(shard).local().image_replaced(&before, &now);
    }

    fn tell_all(&self, id: Option<TopicId>) {
        for shard in 0..self.broker.shards.len() {
            self.tell(shard, id);
        }
    }

    /// Nobody's commit as a client sends it.
    fn send_commit(&self, shard: usize, group: &str, offset: i64) -> i16 {
        let partition = OffsetCommitRequestPartition {
            partition_index: 0,
            committed_offset: offset,
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic { name: "t".into(), partitions: vec![partition] };
        let request = OffsetCommitRequest {
            group_id: group.to_owned().into(),
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        let answer: OffsetCommitResponse<'static> = self.broker.client_on(shard, "test").call(7, &request);
        answer.topics[0].partitions[0].error_code
    }
}

/// A commit for the topic that is made again.
fn commit_new(group: &str, offset: i64) -> GroupRequest {
    let GroupRequest::OffsetCommit(mut request) = commit(group, offset, "") else { panic!("a commit") };
    request.offsets[0].topic_id = NEW;
    GroupRequest::OffsetCommit(request)
}

#[test]
fn a_commit_that_comes_behind_the_deletion_of_its_topic_is_refused() {
    let unknown = ErrorCode::UnknownTopicOrPartition;
    for shards in SHARDS {
        let groups = Groups::new(shards);
        let (group, owner) = (group_in(1), 1 % usize::from(shards));
        assert_eq!(groups.send_commit(0, &group, 1), 0);
        assert_eq!(groups.fetch(0, &group), Ok(1));
        groups.tell(owner, None);
        assert_eq!(groups.fetch(0, &group), Ok(-1), "at once");
        // Where the handler is on another shard it still knows the topic.
        assert_eq!(groups.send_commit(0, &group, 2), unknown.get());
        assert_eq!(groups.commit(0, &group, 3), unknown);
        groups.tell_all(None);
        groups.tell_all(Some(NEW));
        assert_eq!(groups.commit(0, &group, 4), unknown, "what was asked for the old one");
        assert_eq!(groups.fetch(0, &group), Ok(-1));
        groups.advance(1_000);
        assert_eq!(groups.fetch(0, &group), Ok(-1));
        assert_eq!(groups.restart(shards, &[]).fetch(0, &group), Ok(-1));
        assert_eq!(groups.send_commit(0, &group, 5), 0);
        assert_eq!(groups.fetch(0, &group), Ok(5));
        assert_eq!(groups.restart(shards, &[]).fetch(0, &group), Ok(5));
    }
}

/// No image without the topic lies between the two.
#[test]
fn a_topic_that_replaces_one_of_its_name_has_none_of_its_offsets() {
    for shards in SHARDS {
        let groups = Groups::new(shards);
        let group = group_in(1);
        assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
        groups.tell_all(Some(NEW));
        assert_eq!(groups.fetch(0, &group), Ok(-1));
        assert_eq!(groups.send_commit(0, &group, 2), 0);
        groups.advance(1_000);
        for broker in [&groups, &groups.restart(shards, &[])] {
            assert_eq!(broker.fetch(0, &group), Ok(2));
        }
    }
}

#[test]
fn commits_that_are_being_written_when_their_topic_goes_are_gone_too() {
    for is_committed_anew in [false, true] {
        let groups = Groups::new(2);
        let group = group_in(1);
        assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
        groups.broker.world().disk().set_slow(Some(("__consumer_offsets-1/", 1_000_000_000)));
        for number in 0..3 {
            groups.begin(0, number, commit(&group, 100, ""));
        }
        groups.advance(10);
        groups.tell_all(None);
        groups.tell_all(Some(NEW));
        assert_eq!(groups.fetch(0, &group), Ok(-1));
        if is_committed_anew {
            groups.begin(0, 3, commit_new(&group, 7));
        }
        groups.advance(20_000);
        groups.broker.world().disk().set_slow(None);
        let replies = groups.replied();
        assert_eq!(replies.len(), 3 + usize::from(is_committed_anew));
        let done = GroupReply::OffsetCommit(vec![ErrorCode::None]);
        assert!(replies.iter().all(|(_, reply)| *reply == done), "{replies:?}");
        let left = if is_committed_anew { 7 } else { -1 };
        for broker in [&groups, &groups.restart(2, &[])] {
            assert_eq!(broker.fetch(0, &group), Ok(left));
        }
    }
}

#[test]
fn a_topic_that_is_made_again_while_its_offsets_are_loaded_has_none() {
    let groups = Groups::new(2);
    let group = group_in(1);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    slow_load(&groups);
    assert_eq!(groups.fetch(0, &group), Err(ErrorCode::CoordinatorLoadInProgress));
    groups.tell_all(None);
    groups.tell_all(Some(NEW));
    groups.broker.world().disk().set_slow(None);
    groups.advance(60_000);
    for broker in [&groups, &groups.restart(2, &[])] {
        assert_eq!(broker.fetch(0, &group), Ok(-1));
    }
}

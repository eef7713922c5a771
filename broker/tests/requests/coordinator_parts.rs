//! Coordinators of groups where there is much of something: keys of one request, bytes of one batch, groups of one
//! partition; what is counted, and when offsets expire. The broker of `coordinator` under test.

use broker::coordinator::ask::*;
use broker::handlers::Answer;
use broker::metrics::names::Family;
use broker::partition::ask::PartitionKey;
use futures_util::FutureExt;
use futures_util::future::join_all;
use protocol::consumer_offsets::partition_of;
use protocol::error::ErrorCode;
use protocol::messages::{
    FindCoordinatorRequest, FindCoordinatorResponse, JoinGroupRequest, JoinGroupRequestProtocol,
    JoinGroupResponse,
};
use protocol::types::*;
use storage::io::{Queue, Runtime, Span};

use crate::coordinator::*;
use crate::harness::*;
use crate::wiring;

#[test]
fn many_keys_of_find_coordinator_cost_one_question_for_the_number_of_partitions() {
    let groups = Groups::new(2);
    let keys: Vec<String> = (0..100).map(|number| format!("group-{number}")).collect();
    let request = FindCoordinatorRequest {
        coordinator_keys: keys.iter().map(|key| key.as_str().into()).collect(),
        ..FindCoordinatorRequest::default()
    };
    let find = || {
        let answer: FindCoordinatorResponse<'static> = groups.broker.client_on(1, "test").call(4, &request);
        let codes: Vec<_> = answer.coordinators.elements().iter().map(|found| found.error_code).collect();
        let named: Vec<_> =
            answer.coordinators.elements().iter().map(|found| found.key.to_string()).collect();
        assert_eq!(named, keys);
        codes
    };
    wiring::COUNTED.set(0);
    wiring::IS_COUNTED.set(false);
    assert_eq!(find(), [15; 100], "the number is not known");
    assert_eq!(wiring::COUNTED.get(), 1);
    wiring::IS_COUNTED.set(true);
    assert_eq!(find(), [0; 100]);
    assert_eq!(wiring::COUNTED.get(), 2);
    assert_eq!(find(), [0; 100]);
    assert_eq!(wiring::COUNTED.get(), 2, "it does not change");
}

/// A commit of so many partitions.
fn commit_many(group: &str, partitions: i32, offset: i64) -> GroupRequest {
    let GroupRequest::OffsetCommit(one) = commit(group, offset, "metadata that makes it longer") else {
        panic!("a commit")
    };
    let offsets = (0..partitions).map(|partition| OffsetToCommit { partition, ..one.offsets[0].clone() });
    GroupRequest::OffsetCommit(OffsetCommit { offsets: offsets.collect(), ..one })
}

/// A batch of some hundred kilobytes is compressed in many parts; what comes behind it waits for it, and no longer.
#[test]
fn a_batch_that_takes_long_to_compress_keeps_its_place() {
    for codec in ["0", "1", "2", "3", "4"] {
        let settings: &'static [(&str, &str)] = vec![("offsets.topic.compression.codec", codec)].leak();
        let groups = Groups::start(2, Start { settings, ..Start::default() }, true);
        let (group, other) = (group_in(1), group_in(2));
        let (client, replies, of) = (groups.client(0), groups.replies.clone(), group.clone());
        let task = groups.broker.shards[0].spawn(Queue::Request, async move {
            let sizes = [5_000, 1, 1, 5_000, 1, 300, 1];
            let asks = (0..).zip(sizes).map(|(offset, size)| client.ask(&of, commit_many(&of, size, offset)));
            let answered = join_all(asks).await;
            replies.borrow_mut().extend(answered.into_iter().enumerate());
        });
        groups.tasks.borrow_mut().push(task);
        assert_eq!(groups.commit(0, &other, 7), ErrorCode::None, "another partition's does not wait");
        groups.advance(1000);
        let replies = groups.replied();
        assert_eq!(replies.len(), 7, "codec {codec}");
        for (number, reply) in replies {
            let GroupReply::OffsetCommit(codes) = reply else { panic!("{reply:?}") };
            assert!(codes.iter().all(|code| *code == ErrorCode::None), "codec {codec}: {number} {codes:?}");
        }
        assert_eq!(groups.told(Family::GroupCommits), f64::from(5_000 + 1 + 1 + 5_000 + 1 + 300 + 1 + 1));
        for broker in [&groups, &groups.restart(1, &[])] {
            assert_eq!(broker.fetch(0, &group), Ok(6), "codec {codec}");
            let topics = Some(vec![(TopicName::new("t"), vec![299, 300, 4_999, 5_000])]);
            let fetch =
                OffsetFetch { group: group.as_str().into(), topics, from: None, require_stable: true };
            let GroupReply::OffsetFetch(reply) = broker.ask(0, GroupRequest::OffsetFetch(fetch)) else {
                panic!("no offsets")
            };
            let offsets: Vec<_> = reply.topics[0].1.iter().map(|offset| offset.offset.get()).collect();
            assert_eq!(offsets, [5, 3, 3, -1], "codec {codec}");
        }
    }
}

#[test]
fn what_an_unloaded_coordinator_has_not_given_to_the_log_never_comes_into_it() {
    let settings: &[(&str, &str)] = &[("offsets.topic.compression.codec", "1")];
    let groups = Groups::start(1, Start { settings, ..Start::default() }, true);
    let group = group_in(1);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    let key = PartitionKey { topic_id: groups.topic().id, partition: 1 };
    let (client, of) = (groups.client(0), group.clone());
    let replies = groups.broker.run(async move {
        let requests = [commit_many(&of, 5_000, 2), commit(&of, 3, "")];
        let mut asks = requests.map(|request| Box::pin(client.ask(&of, request)));
        for ask in &mut asks {
            assert!(ask.as_mut().now_or_never().is_none(), "its batch is not made yet");
        }
        client.local().resigned(key, None);
        client.local().elected(key, LeaderEpoch::new(1));
        join_all(asks).await
    });
    for reply in replies {
        let GroupReply::OffsetCommit(codes) = reply else { panic!("{reply:?}") };
        assert!(codes.iter().all(|code| *code == ErrorCode::NotCoordinator), "{codes:?}");
    }
    groups.advance(1000);
    assert_eq!(groups.fetch(0, &group), Ok(1));
    groups.lose(1, 2);
    groups.lead(1, 3);
    groups.advance(1000);
    assert_eq!(groups.fetch(0, &group), Ok(1), "nor is it in the log");
}

/// It has its offset, and comes into the log whoever leads.
#[test]
fn a_load_waits_for_what_the_coordinator_before_has_given_to_the_log() {
    let groups = Groups::new(1);
    let group = group_in(1);
    groups.broker.world().disk().set_slow(Some(("__consumer_offsets-1/", 2_000_000_000)));
    groups.begin(0, 0, commit(&group, 7, ""));
    groups.advance(100);
    groups.lose(1, 1);
    groups.lead(1, 2);
    groups.advance(10_000);
    let refused = GroupReply::OffsetCommit(vec![ErrorCode::NotCoordinator]);
    assert_eq!(groups.replied(), [(0, refused)]);
    groups.broker.world().disk().set_slow(None);
    for broker in [&groups, &groups.restart(1, &[])] {
        assert_eq!(broker.fetch(0, &group), Ok(7));
    }
}

/// What waits for a roll is given to the log under the leadership that took it, or not at all.
#[test]
fn what_stands_in_the_queue_of_the_log_does_not_outlive_the_leadership() {
    let groups = Groups::new(1);
    let group = group_in(1);
    groups.broker.set_config(CONSUMER_OFFSETS, &[("cleanup.policy", "compact"), ("segment.bytes", "150")]);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    groups.broker.world().disk().set_slow(Some(("__consumer_offsets-1/", 2_000_000_000)));
    for number in 0..3 {
        groups.begin(0, number, commit(&group, 100, ""));
    }
    groups.advance(100);
    groups.lose(1, 1);
    groups.lead(1, 2);
    groups.advance(60_000);
    groups.broker.world().disk().set_slow(None);
    let replies = groups.replied();
    let refused = GroupReply::OffsetCommit(vec![ErrorCode::NotCoordinator]);
    assert!(replies.len() == 3 && replies.iter().all(|(_, reply)| *reply == refused), "{replies:?}");
    let kept = groups.fetch(0, &group);
    assert_eq!(kept, Ok(1));
    assert_eq!(groups.restart(1, &[]).fetch(0, &group), kept, "nor does it come into the log");
}

#[test]
fn many_groups_of_a_partition_load_are_listed_and_go_while_the_shard_has_its_turns() {
    const GROUPS: usize = 3_000;
    let groups = Groups::new(2);
    let names: Vec<String> = (0..)
        .map(|n| format!("group-{n}"))
        .filter(|name| partition_of(name, PARTITIONS) == 1)
        .take(GROUPS)
        .collect();
    let (client, all) = (groups.client(0), names.clone());
    groups.broker.run(async move {
        for some in all.chunks(100) {
            join_all(some.iter().map(|name| client.ask(name, commit(name, 7, "")))).await;
        }
    });
    assert_eq!(groups.told(Family::GroupOffsets), 3_000.0);
    // Whoever waits in the first and the last of them is told when they go.
    let (first, last) = (names.iter().min().unwrap(), names.iter().max().unwrap());
    let groups = groups.restart(2, &[]);
    let listed = |groups: &Groups| {
        let client = groups.client(0);
        let listed = groups.broker.run(async move { client.list().await });
        let mut listed: Vec<_> = listed.groups.iter().map(|group| group.group.to_string()).collect();
        listed.sort();
        listed
    };
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(listed(&groups), expected);
    groups.begin(0, 0, join(first));
    groups.begin(1, 1, join(last));
    groups.advance(100);
    assert_eq!(groups.told(Family::GroupRequests), 2.0);
    groups.lose(1, 1);
    groups.advance(100);
    let replies = groups.replied();
    assert_eq!(replies.len(), 2);
    assert!(replies.iter().all(|(_, reply)| joined(reply).error == ErrorCode::NotCoordinator));
    assert_eq!((groups.told(Family::Groups), groups.told(Family::GroupRequests)), (0.0, 0.0));
    assert!(listed(&groups).is_empty());
    groups.lead(1, 2);
    groups.advance(100);
    assert_eq!(listed(&groups), expected);
    assert_eq!(groups.fetch(1, last), Ok(7));
}

#[test]
fn what_has_happened_to_offsets_and_groups_is_counted_and_no_count_falls() {
    let settings: &[(&str, &str)] =
        &[("offsets.retention.minutes", "10"), ("offsets.retention.check.interval.ms", "60000")];
    let groups = Groups::start(2, Start { settings, ..Start::default() }, true);
    let counts = |groups: &Groups| {
        [Family::GroupCommits, Family::GroupExpirations, Family::GroupDeletions, Family::GroupRebalances]
            .map(|family| groups.told(family))
    };
    let (old, other, members) = (group_in(1), group_in(2), group_in(3));
    groups.ask(0, commit_many(&old, 3, 1));
    assert_eq!(groups.commit(0, &other, 1), ErrorCode::None);
    assert_eq!(counts(&groups), [4.0, 0.0, 0.0, 0.0]);
    let partitions = [0, 1].map(|partition| (TopicName::new("t"), partition));
    let delete = OffsetDelete { group: other.as_str().into(), partitions: partitions.into() };
    assert_eq!(
        groups.ask(0, GroupRequest::OffsetDelete(delete)),
        GroupReply::OffsetDelete(Ok(vec![ErrorCode::None; 2]))
    );
    assert_eq!(counts(&groups), [4.0, 0.0, 1.0, 0.0], "of the one that was there");
    // A group that is deleted takes its offsets with it, and so does a topic: neither is counted, as in Kafka.
    assert_eq!(groups.commit(0, &other, 1), ErrorCode::None);
    assert_eq!(groups.ask(0, GroupRequest::Delete(other.as_str().into())), GroupReply::Done(ErrorCode::None));
    assert_eq!(counts(&groups), [5.0, 0.0, 1.0, 0.0]);
    groups.begin(0, 0, join(&members));
    groups.advance(10_000);
    let reply = groups.replied().remove(0).1;
    groups.ask(0, sync(&members, joined(&reply), Vec::new()));
    assert_eq!(counts(&groups), [5.0, 0.0, 1.0, 1.0]);
    groups.advance(12 * 60_000);
    assert_eq!(counts(&groups), [5.0, 3.0, 1.0, 1.0]);
    for partition in 0..PARTITIONS {
        groups.lose(partition, 1);
    }
    groups.advance(100);
    assert_eq!(counts(&groups), [5.0, 3.0, 1.0, 1.0], "what was counted stays when the groups go elsewhere");
    for partition in 0..PARTITIONS {
        groups.lead(partition, 2);
    }
    groups.advance(100);
    assert_eq!(counts(&groups), [5.0, 3.0, 1.0, 1.0], "what is loaded did not happen now");
}

/// A frame of a hundred megabytes is copied neither into the group nor to its leader.
#[test]
fn what_a_member_brings_goes_to_the_leader_out_of_the_frame_that_brought_it() {
    for shards in [1, 2] {
        let settings: &[(&str, &str)] = &[("group.initial.rebalance.delay.ms", "0")];
        let groups = Groups::start(shards, Start { settings, ..Start::default() }, true);
        let metadata = vec![7; 1 << 20];
        let protocol = JoinGroupRequestProtocol { name: "range".into(), metadata: (&metadata[..]).into() };
        let message = JoinGroupRequest {
            group_id: group_in(1).into(),
            session_timeout_ms: 30_000,
            rebalance_timeout_ms: 60_000,
            protocol_type: "consumer".into(),
            protocols: vec![protocol],
            ..JoinGroupRequest::default()
        };
        let client = groups.broker.client_on(0, "test");
        let request = client.request(3, &message);
        let frame = request.body.as_ptr_range();
        let answer = client.finish(client.accept(request));
        let Answer::Reply(response) = &answer else { panic!("{answer:?}") };
        let is_of_frame = |span: &Span| match span {
            Span::Memory(bytes) => bytes.len() == metadata.len() && frame.contains(&bytes.as_ptr()),
            Span::File { .. } => false,
        };
        assert!(response.spans.iter().any(is_of_frame));
        let answer: JoinGroupResponse<'static> = read(3, answer);
        assert_eq!((answer.error_code, answer.members.len()), (0, 1));
        assert_eq!(&*answer.members[0].metadata, &metadata[..]);
    }
}

/// GroupMetadataManager schedules its first look without a delay, when no partition is loaded yet, and each other one an
/// interval later.
#[test]
fn the_first_look_for_expired_offsets_that_finds_any_comes_one_interval_after_the_start_as_in_kafka() {
    let settings: &[(&str, &str)] =
        &[("offsets.retention.minutes", "1"), ("offsets.retention.check.interval.ms", "600000")];
    let groups = Groups::start(1, Start { settings, ..Start::default() }, true);
    let group = group_in(1);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    let again = groups.restart(1, settings);
    again.advance(590_000);
    assert_eq!(again.fetch(0, &group), Ok(1));
    again.advance(20_000);
    assert_eq!(again.fetch(0, &group), Ok(-1));
}

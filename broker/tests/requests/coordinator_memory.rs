//! What the groups of a shard may take of its memory (`groups.memory.bytes`), over all partitions of the shard: what is told
//! of it, that it is given back, and that a start loads all the same. The broker of `coordinator` under test; what counts is
//! in the machine's own tests.

use broker::coordinator::ask::*;
use broker::metrics::names::Family;
use protocol::consumer_offsets::partition_of;
use protocol::error::ErrorCode;
use protocol::messages::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse};
use protocol::types::TopicName;

use crate::coordinator::*;
use crate::harness::*;

const MAX: f64 = (1 << 20) as f64;

/// One shard, whose groups have the least.
const SETTINGS: &[(&str, &str)] = &[("groups.memory.bytes", "1048576")];

fn limited() -> Groups {
    Groups::start(1, Start { settings: SETTINGS, ..Start::default() }, true)
}

fn named(number: usize) -> String {
    format!("team-{number}")
}

/// Commits of new groups until one is refused; how many were not.
fn fill(groups: &Groups, from: usize) -> usize {
    let metadata = "m".repeat(4_000);
    let mut numbers = from..from + 10_000;
    let taken =
        numbers.find(|number| groups.commit_with(0, &named(*number), 1, &metadata) != ErrorCode::None);
    taken.expect("there is a bound") - from
}

#[test]
fn groups_take_so_much_memory_and_no_more_and_give_it_back() {
    let groups = limited();
    let taken = fill(&groups, 0);
    let full = groups.told(Family::GroupMemory);
    assert!((150..250).contains(&taken), "{taken}");
    assert!(full > MAX * 0.8 && full <= MAX * 7.0 / 8.0, "newcomers leave an eighth: {full}");
    assert_eq!(groups.told(Family::GroupRefusals), 1.0);
    // All that was taken works: a commit that grows has the last eighth.
    let metadata = "m".repeat(4_096);
    assert_eq!(groups.commit_with(0, &named(0), 2, &metadata), ErrorCode::None);
    let GroupReply::Join(refused) = groups.ask(0, join("another")) else { panic!("a join") };
    assert_eq!(refused.error, ErrorCode::CoordinatorNotAvailable);
    assert_eq!(groups.told(Family::GroupRefusals), 2.0);
    // What is deleted makes room, and so do partitions that another broker leads.
    let group = named(1);
    assert_eq!(groups.ask(0, GroupRequest::Delete(group.as_str().into())), GroupReply::Done(ErrorCode::None));
    assert_eq!(fill(&groups, 20_000), 1);
    for partition in 1..PARTITIONS {
        groups.lose(partition, 1);
    }
    groups.advance(100);
    assert!(groups.told(Family::GroupMemory) < full / 2.0);
    assert_eq!(groups.told(Family::GroupRefusals), 3.0, "a count does not fall");
    groups.begin(0, 0, join(&group_in(0)));
    groups.advance(10_000);
    let (_, reply) = groups.replied().remove(0);
    assert_eq!(joined(&reply).error, ErrorCode::None);
    groups.lose(0, 1);
    groups.advance(100);
    assert_eq!((groups.told(Family::Groups), groups.told(Family::GroupMemory)), (0.0, 0.0));
}

#[test]
fn a_start_loads_more_than_groups_may_take() {
    let without = Groups::new(1);
    let metadata = "m".repeat(4_000);
    for number in 0..400 {
        assert_eq!(without.commit_with(0, &named(number), 7, &metadata), ErrorCode::None);
    }
    let kept = without.told(Family::GroupMemory);
    assert!(kept > MAX);
    let groups = without.restart(1, SETTINGS);
    groups.advance(1_000);
    assert_eq!(groups.told(Family::GroupMemory), kept);
    for number in 0..400 {
        assert_eq!(groups.fetch(0, &named(number)), Ok(7));
    }
    assert_eq!(groups.commit_with(0, &named(0), 8, &metadata), ErrorCode::None, "it takes no more");
    assert_eq!(groups.commit(0, "another", 1), ErrorCode::CoordinatorNotAvailable);
}

/// The partitions of all offsets of a group, as a client is told of them.
fn fetched_at(client: &Client, version: i16, group: &str) -> Vec<i32> {
    let of_all = OffsetFetchRequestGroup {
        group_id: group.into(),
        topics: None,
        ..OffsetFetchRequestGroup::default()
    };
    let request = if version < 8 {
        OffsetFetchRequest { group_id: group.into(), topics: None, ..OffsetFetchRequest::default() }
    } else {
        OffsetFetchRequest { groups: vec![of_all], ..OffsetFetchRequest::default() }
    };
    let answer: OffsetFetchResponse<'static> = client.call(version, &request);
    let topics = if version < 8 { &answer.topics[..] } else { answer.groups[0].topics.elements() };
    let [topic] = topics else { panic!("{topics:?}") };
    topic.partitions.elements().iter().map(|offset| offset.partition_index).collect()
}

/// Hundreds of thousands of offsets are told in steps, and the client's answer has all of them.
#[test]
fn all_offsets_of_a_group_are_told_in_steps_each_once() {
    let groups = Groups::new(1);
    let group = group_in(1);
    for first in [0, 4_000] {
        let GroupRequest::OffsetCommit(one) = commit(&group, 0, "") else { panic!("a commit") };
        let offset = |partition| OffsetToCommit { partition, ..one.offsets[0].clone() };
        let offsets = (first..first + 4_000).map(offset).collect();
        let commit = OffsetCommit { offsets, ..one.clone() };
        let reply = groups.ask(0, GroupRequest::OffsetCommit(commit));
        assert_eq!(reply, GroupReply::OffsetCommit(vec![ErrorCode::None; 4_000]));
    }
    let (mut from, mut steps, mut told) = (None, 0, Vec::new());
    loop {
        let fetch = OffsetFetch { group: group.as_str().into(), topics: None, from, require_stable: false };
        let GroupReply::OffsetFetch(reply) = groups.ask(0, GroupRequest::OffsetFetch(fetch)) else {
            panic!("no offsets")
        };
        let [(topic, offsets)] = &reply.topics[..] else { panic!("{reply:?}") };
        assert_eq!(*topic, TopicName::new("t"));
        assert!(offsets.len() <= 2_000);
        told.extend(offsets.iter().map(|offset| offset.partition));
        (from, steps) = (reply.next, steps + 1);
        if from.is_none() {
            break;
        }
    }
    assert_eq!((steps, told), (4, (0..8_000).collect::<Vec<_>>()));
    assert_eq!(partition_of(&group, PARTITIONS), 1);
    let client = groups.broker.client_on(0, "test");
    for version in [5, 8] {
        let told = fetched_at(&client, version, &group);
        assert_eq!(told, (0..8_000).collect::<Vec<_>>(), "version {version}");
    }
}

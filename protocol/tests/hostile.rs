//! Hostile frames: no input panics, and none makes us allocate more than 16 times its size and 64 KiB (protocol.md 0).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod support;

use protocol::api::{ApiKey, RequestHeader};
use protocol::codec::{Cursor, Sampler, Writer};
use protocol::messages::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest,
    DescribeConfigsRequest, DescribeConfigsResource, DescribeGroupsRequest, FetchPartition, FetchRequest,
    FetchTopics, Message, MetadataRequest, MetadataRequestTopic, OffsetCommitRequest,
    OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetDeleteRequest,
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic, OffsetFetchRequest, OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
};
use protocol::types::TopicId;
use support::alloc::{Counting, assert_bounded};
use support::fuzz::{Rng, mutate};
use support::{Codec, Half, codecs};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn check(codec: &Codec, frame: &[u8], version: i16) -> bool {
    assert_bounded(frame.len(), || (codec.decode)(frame, version).is_ok())
}

/// Runs `test` with frames of every message in every version.
fn for_each_frame(mut test: impl FnMut(&Codec, i16, Vec<u8>)) {
    for codec in codecs() {
        for version in codec.versions() {
            test(&codec, version, (codec.sample)(&mut Sampler::full(), version));
            test(&codec, version, (codec.sample)(&mut Sampler::random(7), version));
        }
    }
}

#[test]
fn a_frame_that_ends_early_is_an_error_at_every_byte() {
    for_each_frame(|codec, version, frame| {
        assert!(check(codec, &frame, version), "{} version {version}", codec.name);
        for end in 0..frame.len() {
            assert!(!check(codec, &frame[..end], version), "{} version {version}: {end} bytes", codec.name);
        }
    });
}

#[test]
fn bytes_behind_the_body_are_left() {
    for_each_frame(|codec, version, mut frame| {
        let bytes = frame.len();
        frame.extend([0xff; 9]);
        assert_eq!((codec.decode)(&frame, version), Ok(bytes), "{} version {version}", codec.name);
    });
}

#[test]
fn limits_of_lengths_at_every_offset_do_no_harm() {
    const PATTERNS: [&[u8]; 3] = [&[0xff, 0xff, 0xff, 0xff], &[0x7f, 0xff, 0xff, 0xff], &[0x80]];
    for_each_frame(|codec, version, frame| {
        for at in 0..=frame.len() {
            for pattern in PATTERNS {
                let inserted = [&frame[..at], pattern, &frame[at..]].concat();
                check(codec, &inserted, version);
                let end = (at + pattern.len()).min(frame.len());
                let replaced = [&frame[..at], pattern, &frame[end..]].concat();
                check(codec, &replaced, version);
            }
        }
    });
}

#[test]
fn arrays_of_the_smallest_elements_do_not_amplify() {
    // Each place of a frame becomes the count of an array, followed by as many empty elements as it says.
    const FILLER: usize = 24 * 1024;
    for codec in codecs() {
        // The versions between these have their structs.
        let versions = codec.versions();
        let old = versions.clone().rev().find(|version| !codec.key.is_flexible(*version));
        for version in [old, Some(*versions.end())].into_iter().flatten() {
            let flexible = codec.key.is_flexible(version);
            let frame = (codec.sample)(&mut Sampler::full(), version);
            for (at, elements) in (0..frame.len()).flat_map(|at| [(at, FILLER), (at, FILLER / 3)]) {
                let mut count = Writer::new();
                count.length(Some(elements), flexible);
                let mut hostile = [&frame[..at], &count.into_bytes()].concat();
                // An empty string or array is 1 in flexible versions, 0 before.
                hostile.resize(hostile.len() + FILLER, u8::from(flexible));
                check(&codec, &hostile, version);
            }
        }
    }
}

#[test]
fn large_requests_with_names_of_one_letter_are_not_refused() {
    const COUNT: usize = 100_000;
    let mut topics = FetchTopics::default();
    for _ in 0..COUNT {
        topics.push("a", TopicId::ZERO, [FetchPartition::default()]);
    }
    let fetch = FetchRequest { topics, ..Default::default() };
    let topic = MetadataRequestTopic { name: Some("a".into()), ..Default::default() };
    let metadata = MetadataRequest { topics: Some(vec![topic; COUNT]), ..Default::default() };
    let delete = DeleteTopicsRequest { topic_names: vec!["a".into(); COUNT], ..Default::default() };
    let config = CreatableTopicConfig { name: "a".into(), value: None };
    let topic = CreatableTopic { name: "a".into(), configs: vec![config; 3], ..Default::default() };
    let create = CreateTopicsRequest { topics: vec![topic; COUNT], ..Default::default() };
    let keys = Some(vec!["a".into(); COUNT]);
    let resource = DescribeConfigsResource { configuration_keys: keys, ..Default::default() };
    let describe = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    for version in [4, 12] {
        assert_accepted(&fetch, version);
    }
    for version in [8, 9] {
        assert_accepted(&metadata, version);
    }
    for version in [3, 5] {
        assert_accepted(&delete, version);
    }
    for version in [4, 7] {
        assert_accepted(&create, version);
    }
    for version in [3, 4] {
        assert_accepted(&describe, version);
    }
}

#[test]
fn large_requests_of_groups_with_names_of_one_letter_are_not_refused() {
    const COUNT: usize = 100_000;
    let name = || "a".into();
    let partitions = vec![OffsetCommitRequestPartition::default()];
    let topics = vec![OffsetCommitRequestTopic { name: name(), partitions }; COUNT];
    let commit = OffsetCommitRequest { topics, ..Default::default() };
    let topics = vec![OffsetFetchRequestTopic { name: name(), partition_indexes: vec![0] }; COUNT];
    let fetch = OffsetFetchRequest { topics: Some(topics.clone()), ..Default::default() };
    let group = OffsetFetchRequestGroup { topics: Some(topics), ..Default::default() };
    let fetch_of_groups = OffsetFetchRequest { groups: vec![group], ..Default::default() };
    let partitions = vec![OffsetDeleteRequestPartition::default()];
    let topics = vec![OffsetDeleteRequestTopic { name: name(), partitions }; COUNT];
    let delete = OffsetDeleteRequest { topics, ..Default::default() };
    let describe = DescribeGroupsRequest { groups: vec![name(); COUNT], ..Default::default() };
    let delete_groups = DeleteGroupsRequest { groups_names: vec![name(); COUNT] };
    for version in [0, 9] {
        assert_accepted(&commit, version);
    }
    assert_accepted(&fetch, 7);
    assert_accepted(&fetch_of_groups, 8);
    assert_accepted(&delete, 0);
    assert_accepted(&describe, 5);
    assert_accepted(&delete_groups, 2);
}

fn assert_accepted<'a>(message: &impl Message<'a>, version: i16) {
    let mut writer = Writer::new();
    message.encode(&mut writer, version);
    let frame = writer.into_bytes();
    let key = key_of(message);
    let codec = codecs().into_iter().find(|codec| codec.key == key && codec.half == Half::Request).unwrap();
    assert!(check(&codec, &frame, version), "{} version {version}", codec.name);
}

fn key_of<'a, M: Message<'a>>(_: &M) -> ApiKey {
    M::KEY
}

#[test]
fn mutated_frames_do_no_harm() {
    let mut rng = Rng::new(1);
    for_each_frame(|codec, version, frame| {
        for _ in 0..100 {
            let mut frame = frame.clone();
            mutate(&mut rng, &mut frame);
            check(codec, &frame, version);
        }
    });
}

#[test]
fn headers_of_any_bytes_do_no_harm() {
    let mut rng = Rng::new(2);
    let header = [0, 3, 0, 9, 0, 0, 0, 7, 0, 3, b'a', b'b', b'c', 2, 5, 1, 0, 9, 2, 0, 0];
    for end in 0..header.len() {
        assert!(RequestHeader::decode(&mut Cursor::new(&header[..end])).is_err());
    }
    for _ in 0..100_000 {
        let mut frame = header.to_vec();
        mutate(&mut rng, &mut frame);
        assert_bounded(frame.len(), || RequestHeader::decode(&mut Cursor::new(&frame)).is_ok());
    }
}

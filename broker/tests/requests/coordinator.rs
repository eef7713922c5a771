//! Coordinators of groups as their shards run them: replies that come later, appends and their failures, loads, unloads
//! (coordinators.md 1.2, 3.5 to 3.8; statements O-12, O-13, T-24, G-16). Handlers are not in it: groups are asked as
//! handlers ask them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use broker::coordinator::ask::*;
use broker::coordinator::client::GroupClient;
use broker::handlers::RequestHandler;
use broker::metadata::image::TopicImage;
use broker::metrics::names::Family;
use broker::metrics::snapshot::{ShardSnapshot, Value};
use broker::partition::ask::PartitionKey;
use broker::shard::sim::SimShard;
use bytes::Bytes;
use futures_util::future::join_all;
use protocol::api::ApiKey;
use protocol::codec::Writer;
use protocol::consumer_offsets::{RecordKey, partition_of};
use protocol::error::ErrorCode;
use protocol::messages::{HeartbeatRequest, Message, OffsetCommitRequest};
use protocol::records::builder::BatchBuilder;
use protocol::types::*;
use storage::io::sim::{Crash, Fault, OpKind};
use storage::io::{Queue, Runtime};

use crate::harness::*;

pub const PARTITIONS: i32 = 4;

/// A broker that coordinates groups.
pub struct Groups {
    pub broker: Broker,
    pub replies: Replies,
    pub tasks: RefCell<Vec<<SimShard as Runtime>::Task>>,
}

/// Replies that came, by who asked.
pub type Replies = Rc<RefCell<Vec<(usize, GroupReply)>>>;

impl Groups {
    pub fn new(shards: u16) -> Self {
        Self::start(shards, Start::default(), true)
    }

    pub fn start(shards: u16, start: Start, is_new: bool) -> Self {
        let broker = Broker::start(u64::from(shards), shards, start);
        let shard_count = usize::from(shards);
        let topic = offsets_topic(shard_count);
        for partition in 0..PARTITIONS {
            assert_eq!(broker.try_become(&topic, partition, 0, (ME, is_new)), Ok(()));
        }
        broker.publish(topic);
        // What offsets are of; nobody writes it.
        broker.publish(crate::harness::topic("t", TopicId::new(id_of("t")), (1, shard_count), &[]));
        let groups = Self { broker, replies: Rc::default(), tasks: RefCell::default() };
        groups.broker.world().advance_ms(100);
        groups
    }

    /// Starts again on what the disk holds.
    pub fn restart(&self, shards: u16, settings: &'static [(&'static str, &'static str)]) -> Self {
        let disk = self.broker.world().disk().crash(Crash::KeepAll);
        Self::start(shards, Start { disk, settings, ..Start::default() }, false)
    }

    pub fn client(&self, shard: usize) -> GroupClient<SimShard> {
        self.broker.groups[shard].clone()
    }

    pub fn topic(&self) -> TopicImage {
        self.broker.topic(CONSUMER_OFFSETS)
    }

    pub fn ask(&self, shard: usize, request: GroupRequest) -> GroupReply {
        let client = self.client(shard);
        self.broker.run(async move { client.ask(&request.group().clone(), request).await })
    }

    /// Asks without waiting; the reply comes to `replies` with a number.
    pub fn begin(&self, shard: usize, number: usize, request: GroupRequest) {
        let (client, replies) = (self.client(shard), self.replies.clone());
        let task = self.broker.shards[shard].spawn(Queue::Request, async move {
            let reply = client.ask(&request.group().clone(), request).await;
            replies.borrow_mut().push((number, reply));
        });
        self.tasks.borrow_mut().push(task);
    }

    /// Replies so far, by number.
    pub fn replied(&self) -> Vec<(usize, GroupReply)> {
        let mut replies = self.replies.take();
        replies.sort_by_key(|(number, _)| *number);
        replies
    }

    pub fn advance(&self, ms: u64) {
        self.broker.world().advance_ms(ms);
    }

    pub fn commit(&self, shard: usize, group: &str, offset: i64) -> ErrorCode {
        self.commit_with(shard, group, offset, "")
    }

    pub fn commit_with(&self, shard: usize, group: &str, offset: i64, metadata: &str) -> ErrorCode {
        match self.ask(shard, commit(group, offset, metadata)) {
            GroupReply::OffsetCommit(codes) => codes[0],
            other => panic!("{other:?}"),
        }
    }

    /// The committed offset, or the group's error.
    pub fn fetch(&self, shard: usize, group: &str) -> Result<i64, ErrorCode> {
        let topics = Some(vec![(TopicName::new("t"), vec![0])]);
        let fetch = OffsetFetch { group: group.into(), topics, from: None, require_stable: false };
        match self.ask(shard, GroupRequest::OffsetFetch(fetch)) {
            GroupReply::OffsetFetch(reply) if reply.error == ErrorCode::None => {
                let offset = &reply.topics[0].1[0];
                assert_eq!(offset.error, ErrorCode::None);
                Ok(offset.offset.get())
            }
            GroupReply::OffsetFetch(reply) => Err(reply.error),
            other => panic!("{other:?}"),
        }
    }

    /// A partition is led by another broker since an epoch.
    pub fn lose(&self, partition: i32, epoch: i32) {
        self.broker.become_(&self.topic(), partition, epoch, OTHER);
    }

    pub fn lead(&self, partition: i32, epoch: i32) {
        self.broker.lead(&self.topic(), partition, epoch);
    }

    /// Writes into a partition what no coordinator of ours writes.
    pub fn write(&self, partition: i32, key: &[u8], value: &[u8]) {
        let mut builder = BatchBuilder::new();
        builder.push(TimestampMs::new(self.broker.now_ms()), Some(key), Some(value), &[]);
        let admin = self.broker.client_on(0, "__admin_client");
        let part = admin.produce_one(CONSUMER_OFFSETS, partition, builder.build().unwrap());
        assert_eq!(part.error_code, 0);
    }

    pub fn told(&self, family: Family) -> f64 {
        let mut sum = 0.0;
        for shard in 0..self.broker.groups.len() {
            let service = self.client(shard).local().clone();
            let told = self.broker.run(async move {
                let mut out = ShardSnapshot::default();
                service.tell(&mut out).await;
                out
            });
            for sample in told.samples.iter().filter(|sample| sample.family == family) {
                sum += match sample.value {
                    Value::Whole(value) => f64::from(i32::try_from(value).unwrap()),
                    Value::Real(value) => value,
                    ref other => panic!("{other:?}"),
                };
            }
        }
        sum
    }
}

fn offsets_topic(shards: usize) -> TopicImage {
    let id = TopicId::new(id_of(CONSUMER_OFFSETS));
    topic(CONSUMER_OFFSETS, id, (PARTITIONS, shards), &[("cleanup.policy", "compact")])
}

fn nobody(group: &str) -> Identity {
    Identity { group: group.into(), member: "".into(), instance: None, generation: -1 }
}

pub fn commit(group: &str, offset: i64, metadata: &str) -> GroupRequest {
    let offset = OffsetToCommit {
        topic: TopicName::new("t"),
        topic_id: TopicId::new(id_of("t")),
        partition: 0,
        offset: Offset::new(offset),
        leader_epoch: LeaderEpoch::NONE,
        metadata: metadata.into(),
        committed_at: None,
        retention_ms: None,
    };
    let (who, offsets) = (nobody(group), vec![offset]);
    GroupRequest::OffsetCommit(OffsetCommit { who, knows_group_id_not_found: true, offsets })
}

pub fn join(group: &str) -> GroupRequest {
    GroupRequest::Join(Join {
        group: group.into(),
        member: "".into(),
        instance: None,
        client_id: "c".into(),
        client_host: "/127.0.0.1".into(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![("range".into(), Bytes::from_static(b"\0\0\0\0\0\0\0\0\0\0"))],
        needs_known_member_id: false,
        knows_skip_assignment: false,
        reason: None,
    })
}

pub fn sync(group: &str, joined: &JoinReply, assignments: Vec<(MemberId, Bytes)>) -> GroupRequest {
    let who = Identity {
        group: group.into(),
        member: joined.member.clone(),
        instance: None,
        generation: joined.generation,
    };
    GroupRequest::Sync(Sync { who, protocol_type: None, protocol: None, assignments })
}

pub fn joined(reply: &GroupReply) -> &JoinReply {
    match reply {
        GroupReply::Join(reply) => reply,
        other => panic!("{other:?}"),
    }
}

/// A group whose id gives this partition.
pub fn group_in(partition: i32) -> String {
    assert!((0..PARTITIONS).contains(&partition));
    let mut names = (0..).map(|number| format!("g{number}"));
    names.find(|name| partition_of(name, PARTITIONS) == partition).unwrap()
}

#[test]
fn commits_are_kept_for_whoever_asks_wherever() {
    for shards in SHARDS {
        let groups = Groups::new(shards);
        for number in 0..40 {
            let (from, group) = (number % usize::from(shards), format!("group-{number}"));
            assert_eq!(groups.commit(from, &group, 100), ErrorCode::None);
            let offset = i64::try_from(number).unwrap();
            assert_eq!(groups.commit(from, &group, offset), ErrorCode::None);
        }
        for number in 0..40 {
            let from = (number + 1) % usize::from(shards);
            assert_eq!(groups.fetch(from, &format!("group-{number}")), Ok(i64::try_from(number).unwrap()));
        }
        assert_eq!((groups.told(Family::Groups), groups.told(Family::GroupOffsets)), (40.0, 40.0));
        assert_eq!(groups.told(Family::GroupsEmpty), 40.0);
        let client = groups.client(0);
        let listed = groups.broker.run(async move { client.list().await });
        assert_eq!((listed.error, listed.groups.len()), (ErrorCode::None, 40));
        assert_eq!(groups.told(Family::GroupRequests), 0.0);
        assert_eq!(groups.client(0).waiting(), 0);
    }
}

#[test]
fn late_replies_find_their_askers_on_every_shard() {
    for shards in SHARDS {
        let groups = Groups::new(shards);
        // The last partition is on another shard than the first.
        let group = group_in(PARTITIONS - 1);
        for number in 0..10 {
            groups.begin(number % usize::from(shards), number, join(&group));
        }
        groups.advance(2500);
        assert_eq!(groups.replied(), Vec::new(), "the initial delay is not over");
        assert_eq!(groups.told(Family::GroupRequests), 10.0);
        groups.advance(10_000);
        let replies = groups.replied();
        assert_eq!(replies.len(), 10);
        let mut ids: Vec<_> = replies.iter().map(|(_, reply)| joined(reply).member.clone()).collect();
        assert!(replies.iter().all(|(_, reply)| joined(reply).error == ErrorCode::None));
        assert!(replies.iter().all(|(_, reply)| joined(reply).generation == 1));
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 10, "each member has its own id");
        // All sync: the leader's assignment is written before anybody is told.
        let assignments: Vec<_> = ids.iter().map(|id| (id.clone(), Bytes::from(id.to_string()))).collect();
        for (number, reply) in &replies {
            let reply = joined(reply);
            let is_leader = reply.leader == reply.member;
            let given = if is_leader { assignments.clone() } else { Vec::new() };
            groups.begin(number % usize::from(shards), *number, sync(&group, reply, given));
        }
        groups.advance(1000);
        for ((_, joined_reply), (_, synced)) in replies.iter().zip(groups.replied()) {
            let GroupReply::Sync(synced) = synced else { panic!("{synced:?}") };
            assert_eq!(synced.error, ErrorCode::None);
            assert_eq!(synced.assignment, joined(joined_reply).member.as_bytes());
        }
        assert_eq!(groups.told(Family::GroupsStable), 1.0);
        assert!((0..usize::from(shards)).all(|shard| groups.client(shard).waiting() == 0));
    }
}

#[test]
fn a_thousand_parked_joins_hold_no_place_in_any_queue() {
    for shards in [1, 2] {
        let groups = Groups::new(shards);
        let group = group_in(0);
        let asker = usize::from(shards) - 1;
        for number in 0..1000 {
            groups.begin(asker, number, join(&group));
        }
        groups.advance(500);
        assert_eq!(groups.told(Family::GroupRequests), 1000.0);
        let before = groups.broker.world().now();
        for number in 0..100 {
            assert_eq!(
                groups.commit(asker, &group_in(0), 5),
                ErrorCode::UnknownMemberId,
                "of the group itself"
            );
            assert_eq!(groups.commit(asker, &group_in(1), number), ErrorCode::None);
            assert_eq!(groups.fetch(asker, &group_in(1)), Ok(number));
        }
        let took = groups.broker.world().now().nanos_since(before);
        assert!(took < 1_000_000_000, "took {took} ns of the simulated clock");
        groups.advance(120_000);
        let replies = groups.replied();
        assert_eq!(replies.len(), 1000);
        assert!(replies.iter().all(|(_, reply)| joined(reply).error == ErrorCode::None));
    }
}

#[test]
fn who_asks_on_the_shard_of_the_coordinator_waits_for_its_answer_and_nothing_else() {
    let groups = Groups::new(2);
    let group = group_in(0);
    for number in 0..3 {
        groups.begin(0, number, join(&group));
    }
    groups.advance(100);
    assert_eq!((groups.told(Family::GroupRequests), groups.client(0).waiting()), (3.0, 0));
    drop(groups.tasks.borrow_mut().remove(0));
    groups.advance(60_000);
    assert_eq!(groups.replied().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(groups.told(Family::GroupRequests), 0.0);
    // Who waits when the coordinator ends learns it.
    groups.begin(0, 3, join(&group));
    groups.advance(100);
    groups.lose(0, 1);
    groups.advance(100);
    let replies = groups.replied();
    assert_eq!(joined(&replies[0].1).error, ErrorCode::NotCoordinator);
}

#[test]
fn a_connection_of_a_member_is_at_home_where_the_coordinator_is() {
    let groups = Groups::new(2);
    let home = |shard: usize, group: &str, key: ApiKey, version: i16| {
        let mut body = Writer::new();
        let group_id = || group.to_owned().into();
        if key == ApiKey::Heartbeat {
            HeartbeatRequest { group_id: group_id(), ..HeartbeatRequest::default() }
                .encode(&mut body, version);
        } else {
            OffsetCommitRequest { group_id: group_id(), ..OffsetCommitRequest::default() }
                .encode(&mut body, version);
        }
        groups.broker.handlers[shard].home(key.get(), version, &body.into_bytes())
    };
    assert_eq!(
        home(0, "g", ApiKey::Heartbeat, 4),
        None,
        "it is not known before the first request to a coordinator"
    );
    for shard in [0, 1] {
        assert_eq!(groups.commit(shard, &group_in(0), 1), ErrorCode::None);
        for partition in 0..PARTITIONS {
            let owner = groups.topic().partitions[usize::try_from(partition).unwrap()].owner;
            assert!(owner.is_some());
            for (key, version) in
                [(ApiKey::Heartbeat, 4), (ApiKey::OffsetCommit, 1), (ApiKey::OffsetCommit, 9)]
            {
                assert_eq!(home(shard, &group_in(partition), key, version), owner, "{key:?} {version}");
            }
        }
        assert_eq!(home(shard, &group_in(0), ApiKey::OffsetCommit, 0), None, "the metadata store has it");
    }
}

#[test]
fn whoever_goes_is_forgotten_and_does_not_get_the_reply() {
    let groups = Groups::new(2);
    let group = group_in(0);
    groups.begin(1, 0, join(&group));
    groups.begin(1, 1, join(&group));
    groups.advance(100);
    assert_eq!(groups.client(1).waiting(), 2);
    drop(groups.tasks.borrow_mut().remove(0));
    groups.advance(100);
    assert_eq!(groups.client(1).waiting(), 1);
    groups.advance(60_000);
    assert_eq!(groups.replied().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1]);
}

#[test]
fn what_was_committed_survives_in_every_codec_and_from_any_number_of_shards() {
    for codec in ["0", "1", "2", "3", "4"] {
        let settings: &'static [(&str, &str)] = vec![("offsets.topic.compression.codec", codec)].leak();
        let start = Start { settings, ..Start::default() };
        let groups = Groups::start(2, start, true);
        for number in 0..60_i64 {
            let metadata = "m".repeat(usize::try_from(number).unwrap());
            for offset in [1, 2, number] {
                assert_eq!(
                    groups.commit_with(0, &format!("group-{number}"), offset, &metadata),
                    ErrorCode::None
                );
            }
        }
        let leaver = group_in(3);
        for number in 0..3 {
            groups.begin(0, number, join(&leaver));
        }
        groups.advance(10_000);
        let replies = groups.replied();
        let leader = replies.iter().find(|(_, reply)| joined(reply).leader == joined(reply).member).unwrap();
        groups.ask(0, sync(&leaver, joined(&leader.1), Vec::new()));
        for (shards, buffer) in [(1, "5242880"), (5, "1")] {
            let settings: &'static [(&str, &str)] = vec![("offsets.load.buffer.size", buffer)].leak();
            let again = groups.restart(shards, settings);
            for number in 0..60 {
                assert_eq!(again.fetch(0, &format!("group-{number}")), Ok(number), "codec {codec}");
            }
            assert_eq!(again.told(Family::GroupOffsets), 60.0);
            assert_eq!(again.told(Family::GroupsStable), 1.0, "a group that was assigned is stable again");
            assert!(again.told(Family::GroupLoadMax) >= again.told(Family::GroupLoadAverage) / 5.0);
        }
    }
}

#[test]
fn a_batch_too_large_for_the_topic_is_an_invalid_commit_size() {
    let groups = Groups::new(2);
    let group = group_in(1);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    groups
        .broker
        .set_config(CONSUMER_OFFSETS, &[("cleanup.policy", "compact"), ("max.message.bytes", "200")]);
    assert_eq!(groups.commit_with(0, &group, 2, &"m".repeat(300)), ErrorCode::InvalidCommitOffsetSize);
    assert_eq!(groups.fetch(0, &group), Ok(1), "as if it had never been asked");
    assert_eq!(groups.commit(0, &group, 3), ErrorCode::None);
    assert_eq!(groups.fetch(0, &group), Ok(3));
}

#[test]
fn a_full_disk_refuses_commits_and_serves_what_is_kept() {
    let groups = Groups::new(2);
    let group = group_in(1);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    groups.broker.world().disk().set_capacity_bytes(Some(0));
    assert_eq!(groups.commit(0, &group, 2), ErrorCode::NotCoordinator, "KAFKA_STORAGE_ERROR of the log");
    assert_eq!(groups.fetch(0, &group), Ok(1));
    groups.broker.world().disk().set_capacity_bytes(None);
    groups.advance(5000);
    assert_eq!(groups.commit(0, &group, 3), ErrorCode::None);
    let again = groups.restart(2, &[]);
    assert_eq!(again.fetch(0, &group), Ok(3));
}

#[test]
fn commits_in_flight_take_effect_in_their_order_and_a_failed_disk_tells_all() {
    let groups = Groups::new(2);
    let group = group_in(1);
    assert_eq!(groups.commit(0, &group, 0), ErrorCode::None);
    groups.broker.world().disk().set_slow(Some(("__consumer_offsets-1/", 2_000_000_000)));
    // By one task, so that they are asked in this order.
    let (client, replies, of) = (groups.client(0), groups.replies.clone(), group.clone());
    let task = groups.broker.shards[0].spawn(Queue::Request, async move {
        let asks = (0..20).map(|number| client.ask(&of, commit(&of, number, "")));
        let answered = join_all(asks).await;
        replies.borrow_mut().extend(answered.into_iter().enumerate());
    });
    groups.tasks.borrow_mut().push(task);
    groups.advance(1000);
    assert_eq!(groups.replied(), Vec::new(), "not before they are written");
    assert_eq!(groups.fetch(0, &group), Ok(0), "nor are they shown");
    let other = group_in(0);
    assert_eq!(groups.commit(0, &other, 7), ErrorCode::None, "a slow log holds up no other");
    groups.advance(10_000);
    assert_eq!(groups.replies.borrow().len(), 20);
    assert!(
        groups.replied().iter().all(|(_, reply)| *reply == GroupReply::OffsetCommit(vec![ErrorCode::None]))
    );
    assert_eq!(groups.fetch(0, &group), Ok(19));
    groups.broker.world().disk().set_slow(None);
    let fault = Fault { path_contains: "__consumer_offsets-1/", ..Fault::once(OpKind::Write) };
    groups.broker.world().disk().fail(fault);
    for number in 0..5 {
        groups.begin(0, number, commit(&group, 100, ""));
    }
    groups.advance(1000);
    let replies = groups.replied();
    assert_eq!(replies.len(), 5);
    let refused = GroupReply::OffsetCommit(vec![ErrorCode::NotCoordinator]);
    assert!(replies.iter().all(|(_, reply)| *reply == refused), "{replies:?}");
}

#[test]
fn o_12_an_unknown_key_version_does_not_stop_a_load() {
    let groups = Groups::new(2);
    let group = group_in(2);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    groups.write(2, b"\x00\x03\x00\x01g", b"\x00\x00whatever");
    groups.write(2, b"\x7f\xff", b"");
    assert_eq!(groups.commit(0, &group, 2), ErrorCode::None);
    let again = groups.restart(2, &[]);
    assert_eq!(again.fetch(0, &group), Ok(2));
}

#[test]
fn an_unknown_value_version_keeps_its_partition_unavailable_and_no_other() {
    let groups = Groups::new(2);
    let (bad, good) = (group_in(2), group_in(3));
    for group in [&bad, &good] {
        assert_eq!(groups.commit(0, group, 1), ErrorCode::None);
    }
    let key = RecordKey::Offset { group: &bad, topic: "t", partition: 1 }.encode();
    groups.write(2, &key, b"\x00\x63\x00\x00");
    let again = groups.restart(2, &[]);
    assert_eq!(again.commit(0, &bad, 2), ErrorCode::NotCoordinator);
    assert_eq!(again.fetch(0, &bad), Err(ErrorCode::NotCoordinator));
    assert_eq!(again.fetch(0, &good), Ok(1));
    let client = again.client(0);
    let listed = again.broker.run(async move { client.list().await });
    assert_eq!((listed.error, listed.groups.len()), (ErrorCode::None, 1));
}

#[test]
fn a_damaged_batch_keeps_its_partition_unavailable() {
    let groups = Groups::new(1);
    let group = group_in(2);
    assert_eq!(groups.commit_with(0, &group, 1, "marker of the value"), ErrorCode::None);
    // Damage that nobody sees before the load: the log is open, and led by another meanwhile.
    groups.lose(2, 1);
    let path = "/data/__consumer_offsets-2/00000000000000000000.log";
    let disk = groups.broker.world().disk().clone();
    let mut content = disk.content(path).unwrap();
    let last = content.len() - 1;
    content[last] ^= 1;
    disk.put(path, &content).unwrap();
    groups.lead(2, 2);
    groups.advance(100);
    assert_eq!(groups.commit(0, &group, 2), ErrorCode::NotCoordinator);
    content[last] ^= 1;
    disk.put(path, &content).unwrap();
    groups.lead(2, 3);
    groups.advance(100);
    assert_eq!(groups.fetch(0, &group), Ok(1), "a new election tries it once more");
}

#[test]
fn groups_follow_the_leadership() {
    for shards in SHARDS {
        let groups = Groups::new(shards);
        let group = group_in(1);
        assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
        groups.begin(0, 0, join(&group));
        groups.advance(100);
        groups.lose(1, 1);
        groups.advance(1);
        let replies = groups.replied();
        assert_eq!(joined(&replies[0].1).error, ErrorCode::NotCoordinator, "whoever waits is told");
        assert_eq!(groups.commit(0, &group, 2), ErrorCode::NotCoordinator);
        assert_eq!(groups.fetch(0, &group), Err(ErrorCode::NotCoordinator));
        assert_eq!(groups.told(Family::Groups), 0.0);
        groups.lead(1, 2);
        groups.advance(100);
        assert_eq!(groups.fetch(0, &group), Ok(1));
        assert_eq!(groups.commit(0, &group, 3), ErrorCode::None);
        // Another epoch of the same leader is no reason to load again.
        groups.begin(0, 1, join(&group));
        groups.advance(100);
        groups.lead(1, 3);
        groups.advance(30_000);
        assert_eq!(joined(&groups.replied()[0].1).error, ErrorCode::None);
    }
}

#[test]
fn o_13_a_late_resignation_does_not_unload() {
    let groups = Groups::new(1);
    let group = group_in(1);
    groups.lead(1, 5);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    let key = PartitionKey { topic_id: groups.topic().id, partition: 1 };
    let service = groups.client(0).local().clone();
    service.resigned(key, Some(LeaderEpoch::new(4)));
    assert_eq!(groups.fetch(0, &group), Ok(1));
    let other = PartitionKey { topic_id: TopicId::new([5; 16]), ..key };
    service.resigned(other, None);
    assert_eq!(groups.fetch(0, &group), Ok(1), "another topic of that name");
    service.elected(key, LeaderEpoch::new(3));
    assert_eq!(groups.fetch(0, &group), Ok(1), "nor does a late election load");
    service.resigned(key, Some(LeaderEpoch::new(5)));
    assert_eq!(groups.fetch(0, &group), Err(ErrorCode::NotCoordinator));
}

/// Reading the log of partition 1 takes so long.
const SLOW_NANOS: u64 = 20_000_000_000;

pub fn slow_load(groups: &Groups) {
    groups.lose(1, 1);
    groups
        .broker
        .world()
        .disk()
        .set_slow(Some(("__consumer_offsets-1/00000000000000000000.log", SLOW_NANOS)));
    groups.lead(1, 2);
    groups.advance(100);
}

#[test]
fn g_16_requests_while_a_partition_is_loading() {
    let groups = Groups::new(2);
    let (group, other) = (group_in(1), group_in(0));
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    assert_eq!(groups.commit(0, &other, 1), ErrorCode::None);
    slow_load(&groups);
    let before = groups.broker.world().now();
    let who = || Identity { member: "m".into(), generation: 1, ..nobody(&group) };
    let heartbeat = GroupRequest::Heartbeat(Heartbeat { who: who() });
    assert_eq!(groups.ask(0, heartbeat), GroupReply::Done(ErrorCode::None));
    let sync = Sync { who: who(), protocol_type: None, protocol: None, assignments: Vec::new() };
    match groups.ask(0, GroupRequest::Sync(sync)) {
        GroupReply::Sync(reply) => assert_eq!(reply.error, ErrorCode::RebalanceInProgress),
        other => panic!("{other:?}"),
    }
    let loading = ErrorCode::CoordinatorLoadInProgress;
    assert_eq!(joined(&groups.ask(0, join(&group))).error, loading);
    assert_eq!(groups.commit(0, &group, 2), loading);
    assert_eq!(groups.fetch(1, &group), Err(loading));
    assert_eq!(groups.fetch(1, &other), Ok(1));
    let client = groups.client(0);
    let listed = groups.broker.run(async move { client.list().await });
    assert_eq!((listed.error, listed.groups.len()), (loading, 1), "what is known, and that it is not all");
    assert!(groups.broker.world().now().nanos_since(before) < SLOW_NANOS, "nothing waits for the load");
    groups.advance(60_000);
    assert_eq!(groups.fetch(1, &group), Ok(1));
    assert!(groups.told(Family::GroupLoadMax) >= 20_000.0);
}

#[test]
fn t_24_a_load_stops_when_the_leadership_goes_and_a_tail_without_records_ends_it() {
    let groups = Groups::new(1);
    let group = group_in(1);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::None);
    slow_load(&groups);
    assert_eq!(groups.fetch(0, &group), Err(ErrorCode::CoordinatorLoadInProgress));
    groups.lose(1, 3);
    assert_eq!(groups.fetch(0, &group), Err(ErrorCode::NotCoordinator));
    groups.broker.world().disk().set_slow(None);
    // Led again before the load that was given up has found that out.
    groups.lead(1, 4);
    groups.advance(60_000);
    assert_eq!(groups.fetch(0, &group), Ok(1));
    // A log that ends behind its last batch, as truncation of an empty tail leaves it, and one that is empty.
    let empty = group_in(3);
    groups.lose(3, 1);
    groups.lead(3, 2);
    groups.advance(100);
    assert_eq!(groups.fetch(0, &empty), Ok(-1));
    let polls = groups.broker.world().polls();
    groups.advance(1000);
    assert!(groups.broker.world().polls() - polls < 1000, "nothing runs on");
}

#[test]
fn a_stop_answers_whoever_waits_and_takes_nothing_more() {
    let groups = Groups::new(2);
    let group = group_in(1);
    groups.begin(0, 0, join(&group));
    groups.advance(100);
    for shard in 0..2 {
        groups.client(shard).local().stop();
    }
    groups.advance(1);
    assert_eq!(joined(&groups.replied()[0].1).error, ErrorCode::NotCoordinator);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::CoordinatorNotAvailable);
    groups.lead(1, 7);
    assert_eq!(groups.commit(0, &group, 1), ErrorCode::CoordinatorNotAvailable);
}

#[test]
fn offsets_expire_while_nobody_asks() {
    let settings: &[(&str, &str)] =
        &[("offsets.retention.minutes", "10"), ("offsets.retention.check.interval.ms", "60000")];
    let groups = Groups::start(2, Start { settings, ..Start::default() }, true);
    let (old, kept) = (group_in(1), group_in(2));
    assert_eq!(groups.commit(0, &old, 1), ErrorCode::None);
    groups.advance(9 * 60_000);
    assert_eq!(groups.commit(0, &kept, 1), ErrorCode::None);
    groups.advance(3 * 60_000);
    assert_eq!((groups.fetch(0, &old), groups.fetch(0, &kept)), (Ok(-1), Ok(1)));
    let again = groups.restart(2, settings);
    assert_eq!((again.fetch(0, &old), again.fetch(0, &kept)), (Ok(-1), Ok(1)), "its tombstone is in the log");
    assert_eq!(again.told(Family::GroupOffsets), 1.0);
}

#[test]
fn where_there_is_no_coordinator_the_reply_says_so() {
    let broker = Broker::new(2);
    let client = broker.groups[0].clone();
    let (group, request): (Arc<str>, _) = ("g".into(), join("g"));
    let reply = broker.run(async move { client.ask(&group, request).await });
    assert_eq!(joined(&reply).error, ErrorCode::NotCoordinator);
}

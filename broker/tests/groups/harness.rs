//! A broker with groups that do not wait at their first rebalance, and clients that ask it by hand, answered with owned
//! values.

use std::time::{Duration, Instant};

use bench_harness::client::Client;
use protocol::messages::*;

use crate::support::Broker;

pub const LIMIT: Duration = Duration::from_secs(60);

/// The topic that there is, with four partitions.
pub const TOPIC: &str = "read";

/// Versions that are used where a test is not about versions.
pub const JOIN: i16 = 9;
pub const SYNC: i16 = 5;
pub const HEARTBEAT: i16 = 4;
pub const LEAVE: i16 = 5;
pub const COMMIT: i16 = 8;
pub const FETCH: i16 = 8;

const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const NOT_COORDINATOR: i16 = 16;
const UNKNOWN_MEMBER_ID: i16 = 25;

/// Runs a test on one shard and on two.
pub fn on_each(overrides: &[&str], test: impl Fn(&mut Broker)) {
    for shards in [1, 2] {
        let mut broker = start(shards, overrides);
        test(&mut broker);
        assert!(broker.is_running(), "the broker ended:\n{}", broker.log());
        assert!(broker.stop().success(), "clean stop:\n{}", broker.log());
    }
}

/// A broker with the topic, and with a coordinator for every group.
pub fn start(shards: u16, overrides: &[&str]) -> Broker {
    let mut broker = Broker::prepared(shards, &[]);
    for (key, value) in [("group.initial.rebalance.delay.ms", "0"), ("offsets.topic.num.partitions", "7")] {
        broker.set(key, value);
    }
    for (key, value) in overrides.iter().filter_map(|setting| setting.split_once('=')) {
        broker.set(key, value);
    }
    broker.launch();
    connect(&broker).create_topic(TOPIC, 4).expect("create");
    broker.await_served(TOPIC, 4);
    await_coordinators(&broker);
    broker
}

pub fn connect(broker: &Broker) -> Client {
    Client::connect(&broker.bootstrap(), LIMIT).expect("connect")
}

/// Waits until the coordinator of some groups of each partition of `__consumer_offsets` answers.
pub fn await_coordinators(broker: &Broker) {
    let mut client = connect(broker);
    let deadline = Instant::now() + LIMIT;
    for group in (0..40).map(|i| format!("await-{i}")) {
        let key = FindCoordinatorRequest {
            coordinator_keys: vec![group.as_str().into()],
            ..FindCoordinatorRequest::default()
        };
        loop {
            let reply = client.call(4, &key).expect("find the coordinator");
            let found: FindCoordinatorResponse<'_> = reply.message().expect("answer");
            let found = found.coordinators.elements()[0].error_code;
            let error = if found == 0 { describe(&mut client, 5, &group).error } else { found };
            match error {
                0 => break,
                COORDINATOR_LOAD_IN_PROGRESS | COORDINATOR_NOT_AVAILABLE | NOT_COORDINATOR => {}
                other => panic!("{group}: {other}\n{}", broker.log()),
            }
            assert!(Instant::now() < deadline, "{group}: {error}\n{}", broker.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What a join says.
#[derive(Clone)]
pub struct Join<'a> {
    pub version: i16,
    pub group: &'a str,
    pub member: &'a str,
    pub instance: Option<&'a str>,
    pub session_timeout_ms: i32,
    pub rebalance_timeout_ms: i32,
    pub protocol_type: &'a str,
    pub protocols: &'a [(&'a str, &'a [u8])],
}

/// Metadata of a member that subscribes to the topic: version 0, one topic, no user data.
pub const SUBSCRIPTION: &[u8] = b"\0\0\0\0\0\x01\0\x04read\xff\xff\xff\xff";

/// A member of a group whose protocol is `range`.
pub fn joining<'a>(group: &'a str, member: &'a str) -> Join<'a> {
    Join {
        version: JOIN,
        group,
        member,
        instance: None,
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer",
        protocols: &[("range", SUBSCRIPTION)],
    }
}

impl Join<'_> {
    pub fn request(&self) -> JoinGroupRequest<'_> {
        let protocols = self.protocols.iter().map(|(name, metadata)| JoinGroupRequestProtocol {
            name: (*name).into(),
            metadata: (*metadata).into(),
        });
        JoinGroupRequest {
            group_id: self.group.into(),
            session_timeout_ms: self.session_timeout_ms,
            rebalance_timeout_ms: if self.version > 0 { self.rebalance_timeout_ms } else { -1 },
            member_id: self.member.into(),
            group_instance_id: self.instance.map(Into::into),
            protocol_type: self.protocol_type.into(),
            protocols: protocols.collect(),
            reason: (self.version >= 8).then(|| "a test".into()),
        }
    }

    /// Joins, and waits for the answer.
    pub fn call(&self, client: &mut Client) -> Joined {
        let correlation_id = self.send(client);
        joined(client, self.version, correlation_id)
    }

    /// Sends the request; the answer may take long.
    pub fn send(&self, client: &mut Client) -> i32 {
        client.send(self.version, &self.request()).expect("send a join")
    }

    /// Joins as a member that has no id yet: a second time with the id that it is given.
    pub fn admitted(&self, client: &mut Client) -> Joined {
        let first = self.call(client);
        if first.error != 79 {
            return first;
        }
        Join { member: &first.member, ..self.clone() }.call(client)
    }
}

/// What a join was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    pub error: i16,
    pub generation: i32,
    pub protocol_type: Option<String>,
    pub protocol: Option<String>,
    pub leader: String,
    pub skip_assignment: bool,
    pub member: String,
    /// Id, own name and metadata of each.
    pub members: Vec<(String, Option<String>, Vec<u8>)>,
}

impl Joined {
    pub fn is_leader(&self) -> bool {
        self.leader == self.member
    }

    pub fn identity<'a>(&'a self, group: &'a str) -> Identity<'a> {
        Identity { group, member: &self.member, instance: None, generation: self.generation }
    }
}

/// Takes the answer to a join.
pub fn joined(client: &mut Client, version: i16, correlation_id: i32) -> Joined {
    let reply = client.receive(version, correlation_id).expect("answer to a join");
    let answer: JoinGroupResponse<'_> = reply.message().expect("answer");
    let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().map(str::to_owned);
    Joined {
        error: answer.error_code,
        generation: answer.generation_id,
        protocol_type: text(&answer.protocol_type),
        protocol: text(&answer.protocol_name),
        leader: answer.leader.to_string(),
        skip_assignment: answer.skip_assignment,
        member: answer.member_id.to_string(),
        members: answer
            .members
            .iter()
            .map(|member| {
                (member.member_id.to_string(), text(&member.group_instance_id), member.metadata.to_vec())
            })
            .collect(),
    }
}

/// Who asks in which generation.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    pub group: &'a str,
    pub member: &'a str,
    pub instance: Option<&'a str>,
    pub generation: i32,
}

/// What a sync says of type and protocol.
pub type Protocol<'a> = (Option<&'a str>, Option<&'a str>);

pub const RANGE: Protocol<'static> = (Some("consumer"), Some("range"));

/// Sends a sync; the answer may take long.
pub fn send_sync(
    client: &mut Client,
    version: i16,
    who: Identity<'_>,
    protocol: Protocol<'_>,
    assignments: &[(&str, &[u8])],
) -> i32 {
    let assignments = assignments.iter().map(|(member, assignment)| SyncGroupRequestAssignment {
        member_id: (*member).into(),
        assignment: (*assignment).into(),
    });
    let request = SyncGroupRequest {
        group_id: who.group.into(),
        generation_id: who.generation,
        member_id: who.member.into(),
        group_instance_id: who.instance.map(Into::into),
        protocol_type: protocol.0.map(Into::into),
        protocol_name: protocol.1.map(Into::into),
        assignments: assignments.collect(),
    };
    client.send(version, &request).expect("send a sync")
}

/// Takes the answer to a sync: error and assignment.
pub fn synced(client: &mut Client, version: i16, correlation_id: i32) -> (i16, Vec<u8>) {
    let reply = client.receive(version, correlation_id).expect("answer to a sync");
    let answer: SyncGroupResponse<'_> = reply.message().expect("answer");
    if version >= 5 && answer.error_code == 0 {
        assert_eq!((answer.protocol_type.as_deref(), answer.protocol_name.as_deref()), RANGE);
    }
    (answer.error_code, answer.assignment.to_vec())
}

pub fn sync(client: &mut Client, who: Identity<'_>, assignments: &[(&str, &[u8])]) -> (i16, Vec<u8>) {
    let correlation_id = send_sync(client, SYNC, who, RANGE, assignments);
    synced(client, SYNC, correlation_id)
}

pub fn heartbeat(client: &mut Client, version: i16, who: Identity<'_>) -> i16 {
    let request = HeartbeatRequest {
        group_id: who.group.into(),
        generation_id: who.generation,
        member_id: who.member.into(),
        group_instance_id: who.instance.map(Into::into),
    };
    let reply = client.call(version, &request).expect("heartbeat");
    let answer: HeartbeatResponse = reply.message().expect("answer");
    answer.error_code
}

/// The error of all and those of the members.
pub fn leave(
    client: &mut Client,
    version: i16,
    group: &str,
    members: &[(&str, Option<&str>)],
) -> (i16, Vec<i16>) {
    let is_single = version < 3;
    let identity = |(member, instance): &(&str, Option<&str>)| MemberIdentity {
        member_id: (*member).to_owned().into(),
        group_instance_id: instance.map(|instance| instance.to_owned().into()),
        reason: (version >= 5).then(|| "a test".into()),
    };
    let request = LeaveGroupRequest {
        group_id: group.into(),
        member_id: if is_single { members[0].0.into() } else { "".into() },
        members: if is_single { Vec::new() } else { members.iter().map(identity).collect() },
    };
    let reply = client.call(version, &request).expect("leave");
    let answer: LeaveGroupResponse<'_> = reply.message().expect("answer");
    if !is_single && answer.error_code == 0 {
        let told = answer.members.iter().map(|m| (&*m.member_id, m.group_instance_id.as_deref()));
        assert!(told.eq(members.iter().copied()), "members are told as they were named: {answer:?}");
    }
    (answer.error_code, answer.members.iter().map(|member| member.error_code).collect())
}

/// A stable group of one member that is assigned what it is called, and its generation.
pub fn stable(client: &mut Client, group: &str) -> Joined {
    let joined = joining(group, "").admitted(client);
    assert_eq!(joined.error, 0, "{joined:?}");
    let assignments: &[(&str, &[u8])] = &[(&joined.member, joined.member.as_bytes())];
    assert_eq!(sync(client, joined.identity(group), assignments), (0, joined.member.clone().into_bytes()));
    joined
}

/// A group as it is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub error: i16,
    pub state: String,
    pub protocol_type: String,
    pub protocol: String,
    pub operations: i32,
    pub members: Vec<DescribedMember>,
}

/// Id, own name, client's name and host, metadata and assignment.
pub type DescribedMember = (String, Option<String>, [String; 2], [Vec<u8>; 2]);

pub fn describe(client: &mut Client, version: i16, group: &str) -> Described {
    let request =
        DescribeGroupsRequest { groups: vec![group.into()], include_authorized_operations: version >= 3 };
    let reply = client.call(version, &request).expect("describe");
    let answer: DescribeGroupsResponse<'_> = reply.message().expect("answer");
    let [found] = answer.groups.as_slice() else { panic!("{answer:?}") };
    assert_eq!(found.group_id, group);
    let member = |member: &DescribedGroupMember<'_>| -> DescribedMember {
        (
            member.member_id.to_string(),
            member.group_instance_id.as_deref().map(str::to_owned),
            [member.client_id.to_string(), member.client_host.to_string()],
            [member.member_metadata.to_vec(), member.member_assignment.to_vec()],
        )
    };
    Described {
        error: found.error_code,
        state: found.group_state.to_string(),
        protocol_type: found.protocol_type.to_string(),
        protocol: found.protocol_data.to_string(),
        operations: found.authorized_operations,
        members: found.members.elements().iter().map(member).collect(),
    }
}

/// Waits until a group is in a state: what others do there is not told to this client.
pub fn await_state(client: &mut Client, group: &str, state: &str) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let described = describe(client, 5, group);
        if described.state == state {
            return;
        }
        assert!(Instant::now() < deadline, "{group} is not {state}: {described:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A commit of one offset by nobody.
pub fn commit_by(client: &mut Client, version: i16, who: Identity<'_>, partition: i32, offset: i64) -> i16 {
    let request = OffsetCommitRequest {
        group_id: who.group.into(),
        generation_id_or_member_epoch: who.generation,
        member_id: who.member.into(),
        group_instance_id: who.instance.map(Into::into),
        topics: vec![to_commit(TOPIC, &[(partition, offset, "")])],
        ..OffsetCommitRequest::default()
    };
    let codes = committed(client, version, &request);
    codes[0].1
}

pub fn to_commit<'a>(topic: &'a str, offsets: &[(i32, i64, &'a str)]) -> OffsetCommitRequestTopic<'a> {
    let partitions = offsets.iter().map(|(partition, offset, metadata)| OffsetCommitRequestPartition {
        partition_index: *partition,
        committed_offset: *offset,
        committed_metadata: Some((*metadata).into()),
        ..OffsetCommitRequestPartition::default()
    });
    OffsetCommitRequestTopic { name: topic.into(), partitions: partitions.collect() }
}

/// Partition and error code of each, in the order of the request.
pub fn committed(client: &mut Client, version: i16, request: &OffsetCommitRequest<'_>) -> Vec<(i32, i16)> {
    let reply = client.call(version, request).expect("commit");
    let answer: OffsetCommitResponse<'_> = reply.message().expect("answer");
    let names = |topics: &[OffsetCommitResponseTopic<'_>]| -> Vec<String> {
        topics.iter().map(|topic| topic.name.to_string()).collect()
    };
    let asked: Vec<String> = request.topics.iter().map(|topic| topic.name.to_string()).collect();
    assert_eq!(names(&answer.topics), asked);
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|partition| (partition.partition_index, partition.error_code)).collect()
}

/// Nobody's commit of one offset.
pub fn commit(client: &mut Client, version: i16, group: &str, partition: i32, offset: i64) -> i16 {
    let who = Identity { group, member: "", instance: None, generation: -1 };
    commit_by(client, version, who, partition, offset)
}

/// An offset as it is told: partition, offset, leader epoch, metadata, error.
pub type Told = (i32, i64, i32, String, i16);

/// The error of the group and its offsets in the topic.
pub fn fetched(
    client: &mut Client,
    version: i16,
    group: &str,
    partitions: Option<&[i32]>,
) -> (i16, Vec<Told>) {
    let topics = partitions.map(|partitions| {
        vec![OffsetFetchRequestTopic { name: TOPIC.into(), partition_indexes: partitions.to_vec() }]
    });
    let request = if version < 8 {
        OffsetFetchRequest { group_id: group.into(), topics, ..OffsetFetchRequest::default() }
    } else {
        let group =
            OffsetFetchRequestGroup { group_id: group.into(), topics, ..OffsetFetchRequestGroup::default() };
        OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() }
    };
    let reply = client.call(version, &request).expect("fetch offsets");
    let answer: OffsetFetchResponse<'_> = reply.message().expect("answer");
    if version < 8 {
        return (answer.error_code, told(&answer.topics));
    }
    let [found] = answer.groups.as_slice() else { panic!("{answer:?}") };
    assert_eq!(found.group_id, group);
    (found.error_code, told(found.topics.elements()))
}

pub fn told(topics: &[OffsetFetchResponseTopic<'_>]) -> Vec<Told> {
    let partitions = topics.iter().flat_map(|topic| topic.partitions.elements());
    partitions
        .map(|told| {
            let metadata = told.metadata.as_deref().expect("never null").to_owned();
            let OffsetFetchResponsePartition { partition_index, committed_offset, .. } = *told;
            (partition_index, committed_offset, told.committed_leader_epoch, metadata, told.error_code)
        })
        .collect()
}

/// What is told of a partition without an offset.
pub fn none(partition: i32, error: i16) -> Told {
    (partition, -1, -1, String::new(), error)
}

/// Error codes by name, for tests that compare many.
pub mod code {
    pub const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
    pub const OFFSET_METADATA_TOO_LARGE: i16 = 12;
    pub const NOT_COORDINATOR: i16 = super::NOT_COORDINATOR;
    pub const ILLEGAL_GENERATION: i16 = 22;
    pub const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
    pub const INVALID_GROUP_ID: i16 = 24;
    pub const UNKNOWN_MEMBER_ID: i16 = super::UNKNOWN_MEMBER_ID;
    pub const INVALID_SESSION_TIMEOUT: i16 = 26;
    pub const REBALANCE_IN_PROGRESS: i16 = 27;
    pub const NON_EMPTY_GROUP: i16 = 68;
    pub const GROUP_ID_NOT_FOUND: i16 = 69;
    pub const MEMBER_ID_REQUIRED: i16 = 79;
    pub const GROUP_MAX_SIZE_REACHED: i16 = 81;
    pub const FENCED_INSTANCE_ID: i16 = 82;
    pub const GROUP_SUBSCRIBED_TO_TOPIC: i16 = 86;
}

//! Requests of consumer groups in every version: members, offsets, administration. Answered at once: no rebalance waits
//! for longer than a millisecond.

use protocol::api::ApiKey;
use protocol::codec::Cursor;
use protocol::messages::*;

use super::{Case, NAMES, case, whole};

/// Groups that exist once the cases were asked, do not exist and have no name.
const GROUPS: [&str; 3] = ["group", "absent", ""];

pub fn cases(key: ApiKey, version: i16) -> Option<Vec<Case>> {
    Some(match key {
        ApiKey::JoinGroup => of_joins(version),
        ApiKey::SyncGroup => of_syncs(version),
        ApiKey::Heartbeat => of_heartbeats(version),
        ApiKey::LeaveGroup => of_leaves(version),
        ApiKey::OffsetCommit => of_commits(version),
        ApiKey::OffsetFetch => of_offset_fetches(version),
        ApiKey::OffsetDelete => vec![of_offset_deletions(version)],
        ApiKey::DescribeGroups => vec![of_descriptions(version)],
        ApiKey::ListGroups => of_lists(version),
        ApiKey::DeleteGroups => vec![of_deletions(version)],
        _ => return None,
    })
}

fn instances(version: i16, first: i16) -> Vec<Option<&'static str>> {
    if version >= first { vec![None, Some("static")] } else { vec![None] }
}

fn of_joins(version: i16) -> Vec<Case> {
    let mut cases = Vec::new();
    for instance in instances(version, 5) {
        for (group, member, session_timeout_ms) in
            [("g", "", 6000), ("g", "nobody", 6000), ("g", "", 1), ("", "", 6000), ("g", "", i32::MIN)]
        {
            let request = JoinGroupRequest {
                group_id: if group.is_empty() { "".into() } else { format!("{group}-{version}").into() },
                session_timeout_ms,
                rebalance_timeout_ms: if version > 0 { 1 } else { -1 },
                member_id: member.into(),
                group_instance_id: instance.map(Into::into),
                protocol_type: "consumer".into(),
                protocols: vec![JoinGroupRequestProtocol {
                    name: "range".into(),
                    metadata: b"me"[..].into(),
                }],
                reason: (version >= 8).then(|| "a test".into()),
            };
            cases.push(case(&request, version, |cursor, version| {
                let answer: JoinGroupResponse<'_> = whole(cursor, version);
                assert!(answer.error_code == 0 || answer.generation_id == -1, "{answer:?}");
            }));
        }
    }
    cases
}

fn of_syncs(version: i16) -> Vec<Case> {
    let mut cases = Vec::new();
    for (group, instance) in
        GROUPS.iter().flat_map(|group| instances(version, 3).into_iter().map(move |i| (*group, i)))
    {
        for names in [None, Some("consumer")] {
            let request = SyncGroupRequest {
                group_id: group.into(),
                generation_id: 1,
                member_id: "member".into(),
                group_instance_id: instance.map(Into::into),
                protocol_type: names.map(Into::into),
                protocol_name: names.map(Into::into),
                assignments: vec![SyncGroupRequestAssignment {
                    member_id: "member".into(),
                    assignment: b"all"[..].into(),
                }],
            };
            cases.push(case(&request, version, |cursor, version| {
                let answer: SyncGroupResponse<'_> = whole(cursor, version);
                assert!(answer.error_code != 0 && answer.assignment.is_empty(), "{answer:?}");
            }));
        }
    }
    cases
}

fn of_heartbeats(version: i16) -> Vec<Case> {
    let mut cases = Vec::new();
    for (group, instance) in
        GROUPS.iter().flat_map(|group| instances(version, 3).into_iter().map(move |i| (*group, i)))
    {
        let request = HeartbeatRequest {
            group_id: group.into(),
            generation_id: i32::MAX,
            member_id: "member".into(),
            group_instance_id: instance.map(Into::into),
        };
        cases.push(case(&request, version, |cursor, version| {
            let answer: HeartbeatResponse = whole(cursor, version);
            assert_ne!(answer.error_code, 0);
        }));
    }
    cases
}

fn of_leaves(version: i16) -> Vec<Case> {
    let identity = |member: &'static str, instance: Option<&'static str>| MemberIdentity {
        member_id: member.into(),
        group_instance_id: instance.map(Into::into),
        reason: (version >= 5).then(|| "a test".into()),
    };
    let several = vec![identity("member", None), identity("", Some("static")), identity("", None)];
    GROUPS
        .iter()
        .map(|group| {
            let request = LeaveGroupRequest {
                group_id: (*group).into(),
                member_id: if version < 3 { "member".into() } else { "".into() },
                members: if version < 3 { Vec::new() } else { several.clone() },
            };
            case(&request, version, |cursor, version| {
                let answer: LeaveGroupResponse<'_> = whole(cursor, version);
                assert!(answer.error_code != 0 || answer.members.len() == 3, "{answer:?}");
            })
        })
        .collect()
}

fn of_commits(version: i16) -> Vec<Case> {
    let partition = |partition_index, metadata: Option<&'static str>| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: 7,
        committed_leader_epoch: if version >= 6 { 0 } else { -1 },
        commit_timestamp: if version == 1 { 1_700_000_000_000 } else { -1 },
        committed_metadata: metadata.map(Into::into),
    };
    let topic = |name: &&'static str| OffsetCommitRequestTopic {
        name: (*name).into(),
        partitions: vec![
            partition(0, None),
            partition(1, Some("kept")),
            partition(-1, None),
            partition(9, None),
        ],
    };
    let mut cases = Vec::new();
    for group in GROUPS {
        for (generation, member) in [(-1, ""), (5, "member"), (-1, "member")] {
            let request = OffsetCommitRequest {
                group_id: group.into(),
                generation_id_or_member_epoch: if version >= 1 { generation } else { -1 },
                member_id: if version >= 1 { member.into() } else { "".into() },
                group_instance_id: None,
                retention_time_ms: if (2..=4).contains(&version) { 1_000_000 } else { -1 },
                topics: NAMES.iter().map(topic).collect(),
            };
            cases.push(case(&request, version, |cursor, version| {
                let answer: OffsetCommitResponse<'_> = whole(cursor, version);
                let partitions: Vec<_> = answer.topics.iter().map(|topic| topic.partitions.len()).collect();
                assert_eq!(partitions, [4, 4, 4]);
            }));
        }
    }
    cases
}

fn of_offset_fetches(version: i16) -> Vec<Case> {
    let topic = |name: &&'static str| OffsetFetchRequestTopic {
        name: (*name).into(),
        partition_indexes: vec![0, 1, -1, 9, 0],
    };
    let topics = || -> Vec<OffsetFetchRequestTopic<'_>> { NAMES.iter().map(topic).collect() };
    let check = |cursor: &mut Cursor<'_>, version| drop(whole::<OffsetFetchResponse<'_>>(cursor, version));
    let mut asked = vec![Some(topics()), Some(Vec::new())];
    if version >= 2 {
        asked.push(None);
    }
    if version < 8 {
        let of_one = |group: &'static str, topics: &Option<Vec<_>>| OffsetFetchRequest {
            group_id: group.into(),
            topics: topics.clone(),
            require_stable: version >= 7,
            ..OffsetFetchRequest::default()
        };
        let all = GROUPS.iter().flat_map(|group| asked.iter().map(move |topics| of_one(group, topics)));
        return all.map(|request| case(&request, version, check)).collect();
    }
    let group = |group: &&'static str, topics: &Option<Vec<_>>| OffsetFetchRequestGroup {
        group_id: (*group).into(),
        member_id: (version >= 9).then(|| "member".into()),
        member_epoch: if version >= 9 { 3 } else { -1 },
        topics: topics.clone(),
    };
    let groups = GROUPS.iter().flat_map(|name| asked.iter().map(move |topics| group(name, topics)));
    let request = OffsetFetchRequest {
        groups: groups.collect(),
        require_stable: true,
        ..OffsetFetchRequest::default()
    };
    vec![case(&request, version, |cursor, version| {
        let answer: OffsetFetchResponse<'_> = whole(cursor, version);
        assert_eq!(answer.groups.len(), 9);
    })]
}

fn of_offset_deletions(version: i16) -> Case {
    let topic = |name: &&'static str| OffsetDeleteRequestTopic {
        name: (*name).into(),
        partitions: (-1..5).map(|partition_index| OffsetDeleteRequestPartition { partition_index }).collect(),
    };
    let request =
        OffsetDeleteRequest { group_id: "absent".into(), topics: NAMES.iter().map(topic).collect() };
    case(&request, version, |cursor, version| {
        let answer: OffsetDeleteResponse<'_> = whole(cursor, version);
        assert!(answer.error_code != 0 && answer.topics.is_empty(), "{answer:?}");
    })
}

fn of_descriptions(version: i16) -> Case {
    let request = DescribeGroupsRequest {
        groups: ["group", "absent", "", "group", "g-3"].map(Into::into).to_vec(),
        include_authorized_operations: version >= 3,
    };
    case(&request, version, |cursor, version| {
        let answer: DescribeGroupsResponse<'_> = whole(cursor, version);
        assert_eq!(answer.groups.len(), 5);
    })
}

fn of_lists(version: i16) -> Vec<Case> {
    let filters = |names: &[&'static str]| names.iter().map(|name| (*name).into()).collect();
    [(&[][..], &[][..]), (&["Stable", "nonsense"], &[]), (&["empty"], &["classic", "consumer"])]
        .into_iter()
        .map(|(states, types)| {
            let request = ListGroupsRequest {
                states_filter: if version >= 4 { filters(states) } else { Vec::new() },
                types_filter: if version >= 5 { filters(types) } else { Vec::new() },
            };
            case(&request, version, |cursor, version| drop(whole::<ListGroupsResponse<'_>>(cursor, version)))
        })
        .collect()
}

fn of_deletions(version: i16) -> Case {
    let request = DeleteGroupsRequest { groups_names: ["absent", "", "absent"].map(Into::into).to_vec() };
    case(&request, version, |cursor, version| {
        let answer: DeleteGroupsResponse<'_> = whole(cursor, version);
        assert_eq!(answer.results.len(), 2);
    })
}

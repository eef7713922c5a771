//! What is asked of groups once, before and after a load, over one connection that waits: whether their coordinator is
//! there, what they are assigned, what they have committed, and that they go. Measures nothing.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse, DescribedGroup,
    FindCoordinatorRequest, FindCoordinatorResponse, LeaveGroupRequest, LeaveGroupResponse, MemberIdentity,
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchResponse,
};

use super::assignment::{decode, exactly_one_owner};
use super::fleet::{Identity, LEAVE};
use crate::client::{Client, error_name};
use crate::clock::{Clock, saturated_nanos};
use crate::commands::pause;

const FIND_COORDINATOR: i16 = 4;
const DESCRIBE: i16 = 5;
const OFFSET_FETCH: i16 = 8;
const DELETE_GROUPS: i16 = 2;

/// Groups of one request.
const AT_ONCE: usize = 100;
/// Time between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);
/// Loading, not available, not here yet: they pass while `__consumer_offsets` is made.
const NOT_YET: [i16; 3] = [14, 15, 16];
/// The last member has left, and the group has not noticed.
const NON_EMPTY_GROUP: i16 = 68;

/// Asks until no answer is one that passes, or time is up.
fn patiently(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<Option<i16>>) -> Result<()> {
    let clock = Clock::start();
    loop {
        match ask()? {
            None => return Ok(()),
            Some(code) if clock.now() > saturated_nanos(limit) => {
                bail!("{what} is still answered with {} after {limit:?}", error_name(code))
            }
            Some(_) => pause(ATTEMPT_PAUSE),
        }
    }
}

/// The first code that passes, of answers that have no other error.
fn first_passing(codes: impl Iterator<Item = i16>, passing: &[i16], what: &str) -> Result<Option<i16>> {
    let mut found = None;
    for code in codes {
        if passing.contains(&code) {
            found = found.or(Some(code));
        } else if code != 0 {
            bail!("{what} was answered with {}", error_name(code));
        }
    }
    Ok(found)
}

/// Waits until the coordinator of each group is this broker and has loaded it; makes `__consumer_offsets` where that is
/// missing.
///
/// # Errors
/// An error that does not pass, or time is up.
pub fn await_coordinators(client: &mut Client, groups: &[String], limit: Duration) -> Result<()> {
    for groups in groups.chunks(AT_ONCE) {
        patiently("FindCoordinator", limit, || {
            let coordinator_keys = groups.iter().map(|name| name.as_str().into()).collect();
            let request = FindCoordinatorRequest { coordinator_keys, ..Default::default() };
            let reply = client.call(FIND_COORDINATOR, &request)?;
            let answer: FindCoordinatorResponse<'_> = reply.message()?;
            ensure!(
                answer.coordinators.elements().len() == groups.len(),
                "FindCoordinator did not answer for each group"
            );
            let codes = answer.coordinators.elements().iter().map(|found| found.error_code);
            first_passing(codes, &NOT_YET, "FindCoordinator")
        })?;
        patiently("OffsetFetch", limit, || {
            let reply = client.call(OFFSET_FETCH, &offsets_request(groups, None))?;
            let answer: OffsetFetchResponse<'_> = reply.message()?;
            first_passing(answer.groups.iter().map(|group| group.error_code), &NOT_YET, "OffsetFetch")
        })?;
    }
    Ok(())
}

/// Asks for the offsets of groups: of partitions `0 ..` of a topic, or of all that they have.
fn offsets_request<'a>(groups: &'a [String], of: Option<(&'a str, i32)>) -> OffsetFetchRequest<'a> {
    let group = |name: &'a String| OffsetFetchRequestGroup {
        group_id: name.as_str().into(),
        topics: of.map(|(topic, partitions)| {
            let partition_indexes = (0..partitions).collect();
            vec![OffsetFetchRequestTopic { name: topic.into(), partition_indexes }]
        }),
        ..Default::default()
    };
    OffsetFetchRequest { groups: groups.iter().map(group).collect(), ..Default::default() }
}

/// Proves that each group has the offset that it had acknowledged last, in partitions `0 .. partitions` of the topic;
/// returns how many offsets that are. A group without one has none.
///
/// # Errors
/// Another offset, an error, or an answer without one of them.
pub fn verify_offsets(
    client: &mut Client,
    (topic, partitions): (&str, i32),
    acknowledged: &[(String, Option<i64>)],
) -> Result<u64> {
    let mut verified = 0;
    for chunk in acknowledged.chunks(AT_ONCE) {
        let names: Vec<String> = chunk.iter().map(|(name, _)| name.clone()).collect();
        let reply = client.call(OFFSET_FETCH, &offsets_request(&names, Some((topic, partitions))))?;
        verified += check_offsets(&reply.message()?, partitions, chunk)?;
    }
    Ok(verified)
}

fn check_offsets(
    answer: &OffsetFetchResponse<'_>,
    partitions: i32,
    acknowledged: &[(String, Option<i64>)],
) -> Result<u64> {
    ensure!(answer.groups.len() == acknowledged.len(), "OffsetFetch did not answer for each group");
    let mut verified = 0;
    for (group, (name, acknowledged)) in answer.groups.iter().zip(acknowledged) {
        ensure!(group.group_id == name.as_str(), "OffsetFetch answered for {}, not {name}", group.group_id);
        let code = group.error_code;
        ensure!(code == 0, "OffsetFetch of {name} was answered with {}", error_name(code));
        let mut told = Vec::new();
        for partition in group.topics.elements().iter().flat_map(|topic| topic.partitions.elements()) {
            let (index, offset) = (partition.partition_index, partition.committed_offset);
            let code = partition.error_code;
            ensure!(code == 0, "the offset of {name} for partition {index} is {}", error_name(code));
            let expected = acknowledged.unwrap_or(-1);
            ensure!(
                offset == expected,
                "group {name} had offset {expected} acknowledged for partition {index}, and has {offset}"
            );
            told.push(index);
        }
        told.sort_unstable();
        ensure!(told.iter().copied().eq(0..partitions), "offsets of {name} are told for {told:?}");
        verified += if acknowledged.is_some() { u64::from(partitions.unsigned_abs()) } else { 0 };
    }
    Ok(verified)
}

/// Proves that the broker takes a group for stable with these members, and each partition of the topic for assigned to
/// exactly one of them, as they know it; returns how many own some.
///
/// # Errors
/// It says something else.
pub fn verify_assignment(
    client: &mut Client,
    group: &str,
    of: (&str, i32),
    owned: &[(&str, &[i32])],
) -> Result<usize> {
    let request = DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
    let reply = client.call(DESCRIBE, &request)?;
    let answer: DescribeGroupsResponse<'_> = reply.message()?;
    let [described] = answer.groups.as_slice() else { bail!("DescribeGroups did not answer for {group}") };
    check_assignment(described, of, owned)
}

fn check_assignment(
    described: &DescribedGroup<'_>,
    (topic, partitions): (&str, i32),
    owned: &[(&str, &[i32])],
) -> Result<usize> {
    let code = described.error_code;
    ensure!(code == 0, "DescribeGroups was answered with {}", error_name(code));
    ensure!(described.group_state == "Stable", "the broker says that the group is {}", described.group_state);
    let mut told: Vec<(String, Vec<i32>)> = Vec::new();
    for member in described.members.elements() {
        told.push((member.member_id.to_string(), decode(&member.member_assignment, topic)?));
    }
    let mut known: Vec<(String, Vec<i32>)> =
        owned.iter().map(|(id, owned)| ((*id).to_owned(), owned.to_vec())).collect();
    told.sort();
    known.sort();
    ensure!(
        told.len() == known.len(),
        "the broker knows {} members, and there are {}",
        told.len(),
        known.len()
    );
    if let Some((told, known)) = told.iter().zip(&known).find(|(told, known)| told != known) {
        bail!("the broker says {told:?} of a member, and the members {known:?}");
    }
    Ok(exactly_one_owner(partitions, told.iter().map(|(id, owned)| (id.as_str(), owned.as_slice())))?)
}

/// All members leave, and their groups are deleted: what is measured next on this broker does not pay for them.
///
/// # Errors
/// The broker refuses.
pub fn dissolve(client: &mut Client, groups: &[String], members: &[Identity], limit: Duration) -> Result<()> {
    for (place, group) in groups.iter().enumerate() {
        let identity = |member: &Identity| MemberIdentity {
            member_id: member.member_id.clone().into(),
            group_instance_id: member.instance_id.clone().map(Into::into),
            reason: None,
        };
        let leaving = members.iter().filter(|member| member.group == place).map(identity).collect();
        let request =
            LeaveGroupRequest { group_id: group.as_str().into(), members: leaving, ..Default::default() };
        let reply = client.call(LEAVE, &request)?;
        let answer: LeaveGroupResponse<'_> = reply.message()?;
        let codes = answer.members.iter().map(|member| member.error_code);
        first_passing(codes.chain([answer.error_code]), &[], "LeaveGroup")?;
    }
    for groups in groups.chunks(AT_ONCE) {
        let mut left: Vec<String> = groups.to_vec();
        patiently("DeleteGroups", limit, || {
            let groups_names = left.iter().map(|name| name.as_str().into()).collect();
            let reply = client.call(DELETE_GROUPS, &DeleteGroupsRequest { groups_names })?;
            let answer: DeleteGroupsResponse<'_> = reply.message()?;
            let codes = answer.results.iter().map(|result| result.error_code);
            let passing = first_passing(codes, &[NON_EMPTY_GROUP], "DeleteGroups")?;
            let still = answer.results.iter().filter(|result| result.error_code != 0);
            let still = still.map(|result| result.group_id.to_string()).collect();
            left = still;
            Ok(passing)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use protocol::messages::{
        DescribedGroupMember, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
        OffsetFetchResponseTopic,
    };

    use super::*;
    use crate::groups::assignment::encode;

    /// Partition, offset and error code of each.
    type Told<'a> = &'a [(i32, i64, i16)];

    fn offsets<'a>(of: &[(&'a str, Told<'_>)]) -> OffsetFetchResponse<'a> {
        let group = |(name, told): &(&'a str, Told<'_>)| {
            let partition = |(index, offset, code): &(i32, i64, i16)| OffsetFetchResponsePartition {
                partition_index: *index,
                committed_offset: *offset,
                error_code: *code,
                ..Default::default()
            };
            let partitions = told.iter().map(partition).collect::<Vec<_>>().into();
            let topics = vec![OffsetFetchResponseTopic { name: "t".into(), partitions }];
            OffsetFetchResponseGroup { group_id: (*name).into(), topics: topics.into(), error_code: 0 }
        };
        OffsetFetchResponse { groups: of.iter().map(group).collect(), ..Default::default() }
    }

    #[test]
    fn an_offset_that_is_not_the_one_acknowledged_last_is_found() {
        let acknowledged = [("a".to_owned(), Some(7)), ("b".to_owned(), None)];
        let check = |a: &[(i32, i64, i16)], b: &[(i32, i64, i16)]| {
            check_offsets(&offsets(&[("a", a), ("b", b)]), 2, &acknowledged).map_err(|why| why.to_string())
        };
        let none = [(0, -1, 0), (1, -1, 0)];
        assert_eq!(check(&[(1, 7, 0), (0, 7, 0)], &none), Ok(2));
        let lost = check(&[(0, 7, 0), (1, 6, 0)], &none).unwrap_err();
        assert_eq!(lost, "group a had offset 7 acknowledged for partition 1, and has 6");
        assert!(check(&[(0, 7, 0), (1, -1, 0)], &none).is_err(), "forgotten");
        assert!(check(&[(0, 7, 0), (1, 7, 0)], &[(0, 3, 0), (1, -1, 0)]).is_err(), "never acknowledged");
        assert!(check(&[(0, 7, 0)], &none).unwrap_err().contains("are told for [0]"));
        assert!(check(&[(0, 7, 0), (0, 7, 0)], &none).is_err(), "one twice and one not at all");
        assert!(check(&[(0, 7, 0), (1, 7, 3)], &none).unwrap_err().contains("UNKNOWN_TOPIC_OR_PARTITION"));
        assert!(check_offsets(&offsets(&[("a", &[])]), 2, &acknowledged).is_err(), "half of the groups");
        assert!(check_offsets(&offsets(&[("b", &none), ("a", &none)]), 2, &acknowledged).is_err());
    }

    #[test]
    fn a_broker_that_knows_another_assignment_than_the_members_is_found() {
        let described = |state: &'static str, members: &[(&'static str, &[i32])]| {
            let member = |(id, owned): &(&'static str, &[i32])| DescribedGroupMember {
                member_id: (*id).into(),
                member_assignment: encode("t", owned).into(),
                ..Default::default()
            };
            let members: Vec<_> = members.iter().map(member).collect();
            DescribedGroup { group_state: state.into(), members: members.into(), ..Default::default() }
        };
        let owned: &[(&str, &[i32])] = &[("b", &[1]), ("a", &[0])];
        let check = |state, members: &[(&'static str, &[i32])], owned: &[(&str, &[i32])]| {
            check_assignment(&described(state, members), ("t", 2), owned).map_err(|why| why.to_string())
        };
        assert_eq!(check("Stable", &[("a", &[0]), ("b", &[1])], owned), Ok(2));
        assert!(check("Empty", &[("a", &[0]), ("b", &[1])], owned).unwrap_err().contains("is Empty"));
        assert!(check("Stable", &[("a", &[1]), ("b", &[0])], owned).unwrap_err().contains("of a member"));
        assert!(check("Stable", &[("a", &[0, 1])], owned).unwrap_err().contains("knows 1 members"));
        let twice: &[(&str, &[i32])] = &[("a", &[0]), ("b", &[0])];
        assert!(check("Stable", &[("a", &[0]), ("b", &[0])], twice).unwrap_err().contains("two owners"));
    }

    #[test]
    fn what_passes_is_asked_again_and_what_does_not_is_an_error() {
        let codes = |codes: &[i16]| first_passing(codes.iter().copied(), &NOT_YET, "X");
        assert_eq!(codes(&[0, 0]).unwrap(), None);
        assert_eq!(codes(&[0, 15, 14]).unwrap(), Some(15));
        let said = codes(&[15, 24]).unwrap_err().to_string();
        assert_eq!(said, "X was answered with INVALID_GROUP_ID");
        let mut left = 3;
        patiently("X", Duration::from_secs(60), || {
            left -= 1;
            Ok((left > 0).then_some(15))
        })
        .unwrap();
        assert_eq!(left, 0);
        let said = patiently("X", Duration::ZERO, || Ok(Some(15))).unwrap_err().to_string();
        assert!(said.contains("X is still answered with COORDINATOR_NOT_AVAILABLE"), "{said}");
    }
}

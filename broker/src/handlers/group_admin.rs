//! DescribeGroups (15), ListGroups (16) and DeleteGroups (42): wire to domain and back (coordinators.md 2.12, 2.13).

use std::rc::Rc;
use std::sync::Arc;

use protocol::api::ApiKey;
use protocol::codec::{Layout, ListWriter, SharedList, Str};
use protocol::error::ErrorCode;
use protocol::messages::{
    DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest,
    DescribeGroupsResponse, DescribedGroup, DescribedGroupMember, ListGroupsRequest, ListGroupsResponse,
    ListedGroup,
};

use super::dispatch::{Wiring, decode, reply};
use super::repeats::{AnswerRoom, Distinct, Mention};
use super::scatter::ask_all;
use super::{Answer, Request};
use crate::coordinator::ask::{self, DescribedMember, Description, GroupReply, GroupRequest, GroupState};
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// READ, DELETE, DESCRIBE: what a group supports in Kafka 3.9, as bits of the operations' codes. Without an authorizer
/// everybody may do everything.
const GROUP_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8;

/// The operations were not asked for.
const NOT_ASKED: i32 = i32::MIN;

/// The type of every group until there are others (KIP-848).
const CLASSIC: &str = "classic";

/// The states that a listed group can have.
const STATES: [GroupState; 5] = [
    GroupState::Empty,
    GroupState::PreparingRebalance,
    GroupState::CompletingRebalance,
    GroupState::Stable,
    GroupState::Dead,
];

/// Handles a DescribeGroups.
pub async fn describe<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message = match decode::<DescribeGroupsRequest<'_>>(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let Named { groups, mentions } = named(&message.groups, &mut pace).await;
    let asks = groups.iter().map(|group| async {
        match wiring.groups.ask(group, GroupRequest::Describe(Arc::from(&**group))).await {
            GroupReply::Describe(description) => description,
            _ => Err(ErrorCode::UnknownServerError),
        }
    });
    let described = ask_all(asks, &mut pace).await;
    let layout = Layout::of(ApiKey::DescribeGroups, request.api_version);
    let mut written = Vec::with_capacity(described.len());
    for description in &described {
        written.push(written_members(description, layout, &mut pace).await);
    }
    let mut room = AnswerRoom::new();
    let operations = if message.include_authorized_operations { GROUP_OPERATIONS } else { NOT_ASKED };
    let mut tell = |group: &Str<'_>, mention: Mention| -> Result<_, ErrorCode> {
        let described = described.get(mention.place).zip(written.get(mention.place));
        let (description, (members, bytes)) = described.ok_or(ErrorCode::UnknownServerError)?;
        let description = description.as_ref().map_err(|code| *code)?;
        let bytes = group.len().saturating_add(*bytes);
        room.take(bytes, mention.is_first).map_err(|_| ErrorCode::InvalidRequest)?;
        Ok((description, members))
    };
    let groups = message.groups.iter().zip(mentions).map(|(group, mention)| match tell(group, mention) {
        Ok((description, members)) => DescribedGroup {
            error_code: ErrorCode::None.get(),
            group_id: group.clone(),
            group_state: description.state.name().into(),
            protocol_type: (&*description.protocol_type).into(),
            protocol_data: (&*description.protocol).into(),
            members: members.clone(),
            authorized_operations: operations,
        },
        Err(code) => {
            DescribedGroup { error_code: code.get(), group_id: group.clone(), ..DescribedGroup::default() }
        }
    });
    let groups = pace.collect(groups).await;
    reply(&request, &DescribeGroupsResponse { throttle_time_ms: 0, groups })
}

/// The members of a group, written once however often the group is named, and their bytes. They may be as large as a record.
async fn written_members<R: ShardRuntime>(
    description: &Result<Description, ErrorCode>,
    layout: Layout,
    pace: &mut Pace<'_, R>,
) -> (SharedList<DescribedGroupMember<'static>>, usize) {
    let members = description.as_ref().map_or(&[][..], |description| &description.members);
    let mut written = ListWriter::new(layout);
    for member in members {
        written.push(&member_of(member));
        pace.bytes(member.metadata.len().saturating_add(member.assignment.len())).await;
        pace.step().await;
    }
    let bytes = written.bytes();
    (written.finish(), bytes)
}

fn member_of(member: &DescribedMember) -> DescribedGroupMember<'_> {
    DescribedGroupMember {
        member_id: (&*member.member).into(),
        group_instance_id: member.instance.as_deref().map(Into::into),
        client_id: (&*member.client_id).into(),
        client_host: (&*member.client_host).into(),
        member_metadata: (&*member.metadata).into(),
        member_assignment: (&*member.assignment).into(),
    }
}

/// The groups that a request names.
struct Named<'a> {
    /// Each once, in the order of first mention.
    groups: Vec<Str<'a>>,
    /// Each mention.
    mentions: Vec<Mention>,
}

async fn named<'a, R: ShardRuntime>(names: &[Str<'a>], pace: &mut Pace<'_, R>) -> Named<'a> {
    let (mut distinct, mut groups) = (Distinct::new(), Vec::new());
    let mut mentions = Vec::with_capacity(names.len());
    for name in names {
        let mention = distinct.mention(name.clone());
        if mention.is_first {
            groups.push(name.clone());
        }
        mentions.push(mention);
        pace.step().await;
    }
    Named { groups, mentions }
}

/// Handles a ListGroups.
pub async fn list<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message = match decode::<ListGroupsRequest<'_>>(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let filter = Filter::of(&message, &mut pace).await;
    let listed = wiring.groups.list().await;
    // There may be a hundred thousand: they are written, and let go, one by one.
    let mut groups = ListWriter::new(Layout::of(ApiKey::ListGroups, request.api_version));
    for group in listed.groups {
        if filter.takes(&group) {
            groups.push(&ListedGroup {
                group_id: (&*group.group).into(),
                protocol_type: (&*group.protocol_type).into(),
                group_state: group.state.name().into(),
                group_type: CLASSIC.into(),
            });
        }
        pace.step().await;
    }
    let (error_code, groups) = (listed.error.get(), groups.finish());
    reply(&request, &ListGroupsResponse { throttle_time_ms: 0, error_code, groups })
}

/// Which groups are asked for. What no group has is no error, and matches none.
struct Filter {
    /// Those named of the states that there are; all where the request names none.
    states: Vec<GroupState>,
    is_of_type: bool,
}

impl Filter {
    async fn of<R: ShardRuntime>(message: &ListGroupsRequest<'_>, pace: &mut Pace<'_, R>) -> Self {
        let mut states = Vec::new();
        for state in STATES {
            let mut is_named = message.states_filter.is_empty();
            for name in &message.states_filter {
                is_named |= name.eq_ignore_ascii_case(state.name());
                pace.step().await;
            }
            if is_named {
                states.push(state);
            }
        }
        let mut is_of_type = message.types_filter.is_empty();
        for name in &message.types_filter {
            is_of_type |= name.eq_ignore_ascii_case(CLASSIC);
            pace.step().await;
        }
        Self { states, is_of_type }
    }

    fn takes(&self, group: &ask::ListedGroup) -> bool {
        self.is_of_type && self.states.contains(&group.state)
    }
}

/// Handles a DeleteGroups: a group that is named twice is deleted, and answered, once, as in Kafka.
pub async fn delete<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message = match decode::<DeleteGroupsRequest<'_>>(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let Named { groups, .. } = named(&message.groups_names, &mut pace).await;
    let asks = groups.iter().map(|group| async {
        match wiring.groups.ask(group, GroupRequest::Delete(Arc::from(&**group))).await {
            GroupReply::Done(code) => code,
            _ => ErrorCode::UnknownServerError,
        }
    });
    let codes = ask_all(asks, &mut pace).await;
    let results = groups
        .iter()
        .zip(codes)
        .map(|(group, code)| DeletableGroupResult { group_id: group.clone(), error_code: code.get() });
    let results = pace.collect(results).await;
    reply(&request, &DeleteGroupsResponse { throttle_time_ms: 0, results })
}

//! JoinGroup (11), SyncGroup (14), Heartbeat (12) and LeaveGroup (13): wire to domain and back (coordinators.md 2). A join
//! or a sync may wait for minutes: until then it keeps neither its frame nor a place in a queue, and it waits no longer than
//! its client does, or than the broker runs; the coordinator keeps the member all the same until a timer removes it.

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{Either, select};
use protocol::codec::Str;
use protocol::error::ErrorCode;
use protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember,
    LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse, SyncGroupRequest,
    SyncGroupResponse,
};
use storage::io::Runtime;

use super::dispatch::{Wiring, decode, decode_taken, reply};
use super::keep::Keep;
use super::{Answer, Request};
use crate::coordinator::ask::{
    GroupReply, GroupRequest, Heartbeat, Identity, Join, JoinReply, JoinedMember, Leave, LeaveReply, Leaving,
    Sync, SyncReply,
};
use crate::metrics::lines::shown;
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// First version of JoinGroup that has a timeout of its own for rebalances.
const REBALANCE_TIMEOUT_FROM: i16 = 1;
/// First version of JoinGroup whose clients join a second time with the id that they were given (KIP-394).
const MEMBER_ID_REQUIRED_FROM: i16 = 4;
/// First version of JoinGroup that can say that there is no protocol.
const NO_PROTOCOL_FROM: i16 = 7;
/// First version of JoinGroup whose clients know that an assignment can be skipped (KIP-814).
const SKIP_ASSIGNMENT_FROM: i16 = 9;
/// First version of SyncGroup that must name type and protocol (KIP-559).
const PROTOCOL_NAMED_FROM: i16 = 5;
/// First version of LeaveGroup that lets several leave (KIP-345).
const SEVERAL_LEAVE_FROM: i16 = 3;

/// Protocols that one member may offer: clients have a few, and each is looked for among those of all members.
const PROTOCOLS_MAX: usize = 1_000;
/// Members that leave in one step of the coordinator.
const LEAVING_AT_A_TIME: usize = 1_000;

/// Handles a JoinGroup.
pub async fn join<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, mut request: Request) -> Answer {
    let keep = Keep::of(&mut request);
    let join = match decode_taken::<JoinGroupRequest<'_>>(&request, keep.body()) {
        Ok(message) if message.protocols.len() > PROTOCOLS_MAX => {
            let refused = JoinReply::refused(ErrorCode::InvalidRequest, shared(&message.member_id));
            return reply(&request, &join_response(&refused, &request));
        }
        Ok(message) => join_of(&message, &request, &keep, &mut Pace::new(&wiring.runtime)).await,
        Err(malformed) => return malformed.into(),
    };
    drop(keep);
    let member = join.member.clone();
    if join.group.is_empty() {
        let refused = JoinReply::refused(ErrorCode::InvalidGroupId, member);
        return reply(&request, &join_response(&refused, &request));
    }
    request.release();
    let group = join.group.clone();
    let answer = match patiently(wiring, &request, &group, GroupRequest::Join(join)).await {
        Some(GroupReply::Join(answer)) => answer,
        // Who is still there asks the next coordinator.
        None => JoinReply::refused(ErrorCode::NotCoordinator, member),
        Some(_) => JoinReply::refused(ErrorCode::UnknownServerError, member),
    };
    reply(&request, &join_response(&answer, &request))
}

/// Handles a SyncGroup.
pub async fn sync<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, mut request: Request) -> Answer {
    let keep = Keep::of(&mut request);
    let sync = match decode_taken::<SyncGroupRequest<'_>>(&request, keep.body()) {
        Ok(message) => sync_of(&message, &keep, &mut Pace::new(&wiring.runtime)).await,
        Err(malformed) => return malformed.into(),
    };
    drop(keep);
    // In Kafka's order: this comes before everything else.
    let names_no_protocol = sync.protocol_type.is_none() || sync.protocol.is_none();
    if request.api_version >= PROTOCOL_NAMED_FROM && names_no_protocol {
        return reply(&request, &sync_response(&SyncReply::refused(ErrorCode::InconsistentGroupProtocol)));
    }
    if sync.who.group.is_empty() {
        return reply(&request, &sync_response(&SyncReply::refused(ErrorCode::InvalidGroupId)));
    }
    request.release();
    let group = sync.who.group.clone();
    let answer = match patiently(wiring, &request, &group, GroupRequest::Sync(sync)).await {
        Some(GroupReply::Sync(answer)) => answer,
        None => SyncReply::refused(ErrorCode::NotCoordinator),
        Some(_) => SyncReply::refused(ErrorCode::UnknownServerError),
    };
    reply(&request, &sync_response(&answer))
}

/// Handles a Heartbeat.
pub async fn heartbeat<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let who = match decode::<HeartbeatRequest<'_>>(&request) {
        Ok(HeartbeatRequest { group_id, generation_id, member_id, group_instance_id }) => Identity {
            group: shared(&group_id),
            member: shared(&member_id),
            instance: group_instance_id.as_ref().map(shared),
            generation: generation_id,
        },
        Err(malformed) => return malformed.into(),
    };
    let group = who.group.clone();
    let error = if group.is_empty() {
        ErrorCode::InvalidGroupId
    } else {
        match wiring.groups.ask(&group, GroupRequest::Heartbeat(Heartbeat { who })).await {
            GroupReply::Done(code) => code,
            _ => ErrorCode::UnknownServerError,
        }
    };
    reply(&request, &HeartbeatResponse { throttle_time_ms: 0, error_code: error.get() })
}

/// Handles a LeaveGroup.
pub async fn leave<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let mut message = match decode::<LeaveGroupRequest<'_>>(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    if request.api_version < SEVERAL_LEAVE_FROM {
        let member_id = std::mem::take(&mut message.member_id);
        message.members = vec![MemberIdentity { member_id, ..MemberIdentity::default() }];
    }
    let mut pace = Pace::new(&wiring.runtime);
    let group = shared(&message.group_id);
    let answer = if group.is_empty() {
        LeaveReply { error: ErrorCode::InvalidGroupId, members: Vec::new() }
    } else {
        let leaving = message.members.iter().map(|member| {
            let instance = member.group_instance_id.as_ref().map(shared);
            Leaving { member: shared(&member.member_id), instance, reason: why(member.reason.as_ref()) }
        });
        let members = pace.collect(leaving).await;
        ask_to_leave(members, &mut pace, |members| async {
            let leave = Leave { group: group.clone(), members };
            match wiring.groups.ask(&group, GroupRequest::Leave(leave)).await {
                GroupReply::Leave(answer) => answer,
                _ => LeaveReply { error: ErrorCode::UnknownServerError, members: Vec::new() },
            }
        })
        .await
    };
    let response = leave_response(message.members, &answer, request.api_version, &mut pace).await;
    reply(&request, &response)
}

/// Asks the coordinator, for not too many at a time; at least once, as the group may have an error of its own. The shard has
/// its turns in between: a coordinator that is here answers at once.
async fn ask_to_leave<R: Runtime, F: Future<Output = LeaveReply>>(
    members: Vec<Leaving>,
    pace: &mut Pace<'_, R>,
    mut ask: impl FnMut(Vec<Leaving>) -> F,
) -> LeaveReply {
    let mut all = LeaveReply { error: ErrorCode::None, members: Vec::with_capacity(members.len()) };
    let mut members = members.into_iter();
    loop {
        let mut answer = ask(members.by_ref().take(LEAVING_AT_A_TIME).collect()).await;
        if answer.error != ErrorCode::None {
            return answer;
        }
        all.members.append(&mut answer.members);
        if members.len() == 0 {
            return all;
        }
        pace.look().await;
    }
}

/// Asks the coordinator for what may take minutes; `None` when nobody waits for it any more.
async fn patiently<R: ShardRuntime>(
    wiring: &Wiring<R>,
    request: &Request,
    group: &str,
    ask: GroupRequest,
) -> Option<GroupReply> {
    let began = wiring.runtime.now();
    let asked = pin!(wiring.groups.ask(group, ask));
    let over = pin!(request.connection.patience.over());
    let answer = match select(asked, over).await {
        Either::Left((answer, _)) => Some(answer),
        Either::Right(((), _)) => None,
    };
    request.connection.account.parked_nanos.set(wiring.runtime.now().nanos_since(began));
    answer
}

/// A string of a message as the coordinator keeps it.
fn shared(text: &Str<'_>) -> Arc<str> {
    Arc::from(&**text)
}

/// Why somebody joins or leaves is for the log only (KIP-800): as much of it as that shows.
fn why(reason: Option<&Str<'_>>) -> Option<Arc<str>> {
    reason.filter(|reason| !reason.is_empty()).map(|reason| shown(reason).into())
}

/// An address as Java writes one that has no name: `/1.2.3.4`, `/0:0:0:0:0:0:0:1`. An IPv4 address that came in an IPv6
/// one is what it is.
fn client_host(address: IpAddr) -> Arc<str> {
    match address.to_canonical() {
        IpAddr::V4(address) => format!("/{address}").into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, h] = address.segments();
            format!("/{a:x}:{b:x}:{c:x}:{d:x}:{e:x}:{f:x}:{g:x}:{h:x}").into()
        }
    }
}

async fn join_of<R: ShardRuntime>(
    message: &JoinGroupRequest<'_>,
    request: &Request,
    keep: &Keep,
    pace: &mut Pace<'_, R>,
) -> Join {
    let version = request.api_version;
    let protocols = message.protocols.iter().map(|protocol| (&protocol.name, &protocol.metadata));
    Join {
        group: shared(&message.group_id),
        member: shared(&message.member_id),
        instance: message.group_instance_id.as_ref().map(shared),
        client_id: request.client_id.clone(),
        client_host: client_host(request.connection.peer.ip()),
        session_timeout_ms: message.session_timeout_ms,
        rebalance_timeout_ms: if version < REBALANCE_TIMEOUT_FROM {
            message.session_timeout_ms
        } else {
            message.rebalance_timeout_ms
        },
        protocol_type: shared(&message.protocol_type),
        protocols: keep.all(protocols, pace).await,
        // Static members have a name of their own.
        needs_known_member_id: version >= MEMBER_ID_REQUIRED_FROM && message.group_instance_id.is_none(),
        knows_skip_assignment: version >= SKIP_ASSIGNMENT_FROM,
        reason: why(message.reason.as_ref()),
    }
}

fn join_response<'a>(answer: &'a JoinReply, request: &Request) -> JoinGroupResponse<'a> {
    let version = request.api_version;
    let member = |member: &'a JoinedMember| JoinGroupResponseMember {
        member_id: (&*member.member).into(),
        group_instance_id: member.instance.as_deref().map(Into::into),
        metadata: member.metadata.clone().into(),
    };
    let protocol = answer.protocol.as_deref().filter(|name| !name.is_empty());
    JoinGroupResponse {
        throttle_time_ms: 0,
        error_code: answer.error.get(),
        generation_id: answer.generation,
        protocol_type: answer.protocol_type.as_deref().map(Into::into),
        protocol_name: match protocol {
            None if version < NO_PROTOCOL_FROM => Some("".into()),
            protocol => protocol.map(Into::into),
        },
        leader: (&*answer.leader).into(),
        skip_assignment: answer.skip_assignment && version >= SKIP_ASSIGNMENT_FROM,
        member_id: (&*answer.member).into(),
        members: answer.members.iter().map(member).collect(),
    }
}

async fn sync_of<R: ShardRuntime>(
    message: &SyncGroupRequest<'_>,
    keep: &Keep,
    pace: &mut Pace<'_, R>,
) -> Sync {
    let assignments = message.assignments.iter().map(|given| (&given.member_id, &given.assignment));
    Sync {
        who: Identity {
            group: shared(&message.group_id),
            member: shared(&message.member_id),
            instance: message.group_instance_id.as_ref().map(shared),
            generation: message.generation_id,
        },
        protocol_type: message.protocol_type.as_ref().map(shared),
        protocol: message.protocol_name.as_ref().map(shared),
        assignments: keep.all(assignments, pace).await,
    }
}

fn sync_response(answer: &SyncReply) -> SyncGroupResponse<'_> {
    SyncGroupResponse {
        throttle_time_ms: 0,
        error_code: answer.error.get(),
        protocol_type: answer.protocol_type.as_deref().map(Into::into),
        protocol_name: answer.protocol.as_deref().map(Into::into),
        assignment: answer.assignment.clone().into(),
    }
}

/// Versions for one member tell the error of all, else that of the member.
async fn leave_response<'a, R: ShardRuntime>(
    members: Vec<MemberIdentity<'a>>,
    answer: &LeaveReply,
    version: i16,
    pace: &mut Pace<'_, R>,
) -> LeaveGroupResponse<'a> {
    let none = ErrorCode::None;
    if version < SEVERAL_LEAVE_FROM {
        let of_member = answer.members.first().copied().unwrap_or(none);
        let error = if answer.error == none { of_member } else { answer.error };
        return LeaveGroupResponse {
            throttle_time_ms: 0,
            error_code: error.get(),
            ..LeaveGroupResponse::default()
        };
    }
    let members = members.into_iter().zip(&answer.members).map(|(member, code)| MemberResponse {
        member_id: member.member_id,
        group_instance_id: member.group_instance_id,
        error_code: code.get(),
    });
    LeaveGroupResponse {
        throttle_time_ms: 0,
        error_code: answer.error.get(),
        members: pace.collect(members).await,
    }
}

#[cfg(test)]
mod tests {
    use storage::io::sim::SimRuntime;

    use super::*;
    use crate::shard::pace::turns_of;

    /// What becomes of so many who leave where each part takes a millisecond and the part of a number is refused; the parts,
    /// and the turns that the shard had.
    fn leave_many(count: usize, refused: Option<usize>) -> (LeaveReply, Vec<usize>, usize) {
        let runtime = SimRuntime::new(1);
        let mut parts = Vec::new();
        let leaving =
            |number: usize| Leaving { member: number.to_string().into(), instance: None, reason: None };
        let mut pace = Pace::new(&runtime);
        let ask = |members: Vec<Leaving>| {
            let is_refused = refused == Some(parts.len());
            parts.push(members.len());
            runtime.advance_ms(1);
            std::future::ready(if is_refused {
                LeaveReply { error: ErrorCode::NotCoordinator, members: Vec::new() }
            } else {
                LeaveReply {
                    error: ErrorCode::None,
                    members: vec![ErrorCode::UnknownMemberId; members.len()],
                }
            })
        };
        let members = (0..count).map(leaving).collect();
        let (answer, turns) = turns_of(&runtime, ask_to_leave(members, &mut pace, ask));
        (answer, parts, turns)
    }

    #[test]
    fn many_who_leave_let_the_shard_have_its_turns() {
        let (answer, parts, turns) = leave_many(20_500, None);
        assert_eq!((answer.error, answer.members.len()), (ErrorCode::None, 20_500));
        assert_eq!((parts.len(), parts.first(), parts.last()), (21, Some(&1_000), Some(&500)));
        assert_eq!(turns, 19, "the first look only sees the time, and none comes after the last part");
        let (answer, parts, _) = leave_many(20_500, Some(2));
        assert_eq!((answer.error, answer.members.len(), parts.len()), (ErrorCode::NotCoordinator, 0, 3));
        assert_eq!(leave_many(0, None).1, [0], "the group may have an error of its own");
    }

    #[test]
    fn hosts_are_written_as_java_does() {
        for (address, text) in [
            ("1.2.3.4", "/1.2.3.4"),
            ("::ffff:10.0.0.1", "/10.0.0.1"),
            ("::1", "/0:0:0:0:0:0:0:1"),
            ("2001:db8::a:0", "/2001:db8:0:0:0:0:a:0"),
        ] {
            assert_eq!(&*client_host(address.parse().unwrap()), text);
        }
    }
}

//! JoinGroup (11), SyncGroup (14), Heartbeat (12) and LeaveGroup (13): taking part in a group (coordinators.md 2.2 to 2.8).

use crate::codec::{Blob, SharedBlob, Str};

message! {
    /// Asks to take part in a group.
    pub struct JoinGroupRequest<'a>(JoinGroup) {
        /// The group.
        0+ group_id: Str<'a>;
        /// Milliseconds without a heartbeat after which the member is gone.
        0+ session_timeout_ms: i32;
        /// Milliseconds that a rebalance waits for the member; -1: the session timeout.
        1+ rebalance_timeout_ms: i32 = -1, ignorable;
        /// The member; empty until the coordinator has given an id.
        0+ member_id: Str<'a>;
        /// Name that a static member gave itself (KIP-345).
        5+ group_instance_id: Option<Str<'a>> = None;
        /// `consumer`, `connect`, ...
        0+ protocol_type: Str<'a>;
        /// What the member can do, the best first.
        0+ protocols: Vec<JoinGroupRequestProtocol<'a>>;
        /// Why the member joins (KIP-800).
        8+ reason: Option<Str<'a>> = None, ignorable;
    }

    /// One protocol of a [`JoinGroupRequest`].
    pub struct JoinGroupRequestProtocol<'a> {
        /// Name of the protocol.
        0+ name: Str<'a>;
        /// What the leader needs to know of the member; opaque to the broker.
        0+ metadata: Blob<'a>;
    }

    /// Answers [`JoinGroupRequest`].
    pub struct JoinGroupResponse<'a>(JoinGroup) {
        /// Delay put on the client, in milliseconds.
        2+ throttle_time_ms: i32, ignorable;
        /// Top-level error.
        0+ error_code: i16;
        /// Generation of the group; -1 on error.
        0+ generation_id: i32 = -1;
        /// Type of the group (KIP-559).
        7+ protocol_type: Option<Str<'a>> = None, ignorable;
        /// The protocol chosen. Null says that there is none; "" says it in versions that have no null.
        0+ protocol_name: Option<Str<'a>>, null 7;
        /// Id of the leader.
        0+ leader: Str<'a>;
        /// Whether the leader shall not assign anew (KIP-814).
        9+ skip_assignment: bool;
        /// Id of the member itself.
        0+ member_id: Str<'a>;
        /// The members; for the leader only.
        0+ members: Vec<JoinGroupResponseMember<'a>>;
    }

    /// One member of a [`JoinGroupResponse`].
    pub struct JoinGroupResponseMember<'a> {
        /// Id of the member.
        0+ member_id: Str<'a>;
        /// Name that a static member gave itself.
        5+ group_instance_id: Option<Str<'a>> = None, ignorable;
        /// The member's metadata of the chosen protocol.
        0+ metadata: SharedBlob<'a>;
    }

    /// Asks for an assignment, and as leader gives those of all.
    pub struct SyncGroupRequest<'a>(SyncGroup) {
        /// The group.
        0+ group_id: Str<'a>;
        /// Generation that the member knows.
        0+ generation_id: i32;
        /// The member.
        0+ member_id: Str<'a>;
        /// Name that a static member gave itself.
        3+ group_instance_id: Option<Str<'a>> = None;
        /// What the member takes the group's type to be (KIP-559).
        5+ protocol_type: Option<Str<'a>> = None, ignorable;
        /// What the member takes the chosen protocol to be (KIP-559).
        5+ protocol_name: Option<Str<'a>> = None, ignorable;
        /// The assignments; from the leader only.
        0+ assignments: Vec<SyncGroupRequestAssignment<'a>>;
    }

    /// One assignment of a [`SyncGroupRequest`].
    pub struct SyncGroupRequestAssignment<'a> {
        /// The member.
        0+ member_id: Str<'a>;
        /// What it is to do; opaque to the broker.
        0+ assignment: Blob<'a>;
    }

    /// Answers [`SyncGroupRequest`].
    pub struct SyncGroupResponse<'a>(SyncGroup) {
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// Top-level error.
        0+ error_code: i16;
        /// Type of the group (KIP-559).
        5+ protocol_type: Option<Str<'a>> = None, ignorable;
        /// The protocol chosen (KIP-559).
        5+ protocol_name: Option<Str<'a>> = None, ignorable;
        /// The member's own assignment; empty on error.
        0+ assignment: SharedBlob<'a>;
    }

    /// Says that a member is alive.
    pub struct HeartbeatRequest<'a>(Heartbeat) {
        /// The group.
        0+ group_id: Str<'a>;
        /// Generation that the member knows.
        0+ generation_id: i32;
        /// The member.
        0+ member_id: Str<'a>;
        /// Name that a static member gave itself.
        3+ group_instance_id: Option<Str<'a>> = None;
    }

    /// Answers [`HeartbeatRequest`].
    pub struct HeartbeatResponse(Heartbeat) {
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// Top-level error.
        0+ error_code: i16;
    }

    /// Says that members leave: one up to version 2, several from version 3 on.
    pub struct LeaveGroupRequest<'a>(LeaveGroup) {
        /// The group.
        0+ group_id: Str<'a>;
        /// The member.
        0-2 member_id: Str<'a>;
        /// The members.
        3+ members: Vec<MemberIdentity<'a>>;
    }

    /// One member of a [`LeaveGroupRequest`].
    pub struct MemberIdentity<'a> {
        /// The member; empty when an administrator removes a static member by its name.
        3+ member_id: Str<'a>;
        /// Name that a static member gave itself.
        3+ group_instance_id: Option<Str<'a>> = None;
        /// Why it leaves (KIP-800).
        5+ reason: Option<Str<'a>> = None, ignorable;
    }

    /// Answers [`LeaveGroupRequest`].
    pub struct LeaveGroupResponse<'a>(LeaveGroup) {
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// Top-level error; up to version 2 that of the member too.
        0+ error_code: i16;
        /// The members, in the order of the request.
        3+ members: Vec<MemberResponse<'a>>;
    }

    /// One member of a [`LeaveGroupResponse`].
    pub struct MemberResponse<'a> {
        /// The member.
        3+ member_id: Str<'a>;
        /// Name that a static member gave itself; the default is "", as in Kafka's schema.
        3+ group_instance_id: Option<Str<'a>>;
        /// Error of the member.
        3+ error_code: i16;
    }
}

//! What happens to groups and is told to who runs the broker: their life, as the log of Kafka tells it. Knows no line and no
//! rate: the driver's `report` writes them.

use std::sync::Arc;

use protocol::error::ErrorCode;

use crate::coordinator::ask::{GroupId, InstanceId, MemberId};

/// Something that happened to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The group.
    pub group: GroupId,
    /// What.
    pub what: What,
}

/// See [`News`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Somebody takes part from now on.
    Joined {
        /// Its id.
        member: MemberId,
        /// Its own name, if it is static.
        instance: Option<InstanceId>,
        /// Name that the client gave itself.
        client_id: Arc<str>,
        /// Address of the client.
        client_host: Arc<str>,
        /// Why, as the client says (KIP-800).
        reason: Option<Arc<str>>,
    },
    /// A static member has another id.
    CameBack {
        /// Its own name.
        instance: InstanceId,
        /// Its id.
        member: MemberId,
        /// The one that it had.
        before: MemberId,
    },
    /// Somebody does not take part any more.
    Gone {
        /// Its id.
        member: MemberId,
        /// Why.
        why: Loss,
    },
    /// Joins are collected.
    Rebalances {
        /// The generation that ends.
        generation: i32,
        /// Members of it.
        members: usize,
        /// Why.
        why: Cause,
    },
    /// All who came have learnt of a generation, and wait for what the leader gives them.
    Began {
        /// The generation.
        generation: i32,
        /// The protocol.
        protocol: Option<Arc<str>>,
        /// Its members.
        members: usize,
        /// Who leads.
        leader: MemberId,
    },
    /// The assignment is known.
    Stable {
        /// The generation.
        generation: i32,
        /// Its members.
        members: usize,
    },
    /// There are no members.
    Empty {
        /// The generation.
        generation: i32,
    },
    /// It is gone.
    Removed,
    /// Somebody was refused, as groups keep all that they may.
    NoRoom,
}

/// Why a member is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It left, or was taken out by an administrator; why, as that client says (KIP-800).
    Left(Option<Arc<str>>),
    /// It was not heard of within its session.
    Session,
    /// It did not join within the rebalance timeout.
    Rebalance,
    /// It did not ask for its assignment within the rebalance timeout.
    Sync,
    /// The group has as many members as it may.
    GroupFull,
}

/// Why joins are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody has joined.
    NewMember,
    /// A member can do something else.
    MemberChanged,
    /// The leader has joined again.
    LeaderRejoined,
    /// A static member has another id.
    StaticMemberBack,
    /// Somebody is gone.
    MemberGone,
    /// Members did not ask for their assignment.
    NotSynced,
    /// The log does not have the assignment.
    NotWritten(ErrorCode),
    /// There are more members than there may be now.
    TooLarge,
}

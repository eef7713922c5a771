//! What the coordinator of a group is asked, and what it answers: the messages of `GroupService`. They own their
//! data. Knows no wire format and no versions but where Kafka decides by them: `handlers` translate.

use std::sync::Arc;

use bytes::Bytes;
use protocol::error::ErrorCode;
use protocol::types::{LeaderEpoch, Offset, TimestampMs, TopicId, TopicName};

/// Id of a group. May be empty for offsets alone (`coordinators.md` 1.3).
pub type GroupId = Arc<str>;

/// Id of a member: what the coordinator gave it. Empty where a request names none.
pub type MemberId = Arc<str>;

/// Id that a static member gives itself (KIP-345).
pub type InstanceId = Arc<str>;

/// Names one request of one asking shard whose answer may come later; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// Wraps a number.
    pub const fn new(ticket: u64) -> Self {
        Self(ticket)
    }
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A question to the shard that owns partitions of `__consumer_offsets`.
#[derive(Debug)]
pub enum GroupAsk {
    /// A request to the coordinator of one group; answered by [`GroupAnswer::Reply`], or by [`GroupAnswer::Parked`] and
    /// the reply with [`GroupAnswer::Late`].
    One {
        /// Name of the request among those of the asking shard; `None` where that is the shard that is asked. The reply
        /// then comes as [`GroupAnswer::Reply`] however late: on the own shard it holds no place in a queue.
        ticket: Option<Ticket>,
        /// Partition of `__consumer_offsets` that the group's id gives.
        partition: i32,
        /// The request.
        request: GroupRequest,
    },
    /// Replies to what was parked; answered by [`GroupAnswer::Late`] once there are some. One per asking shard is
    /// outstanding, so that a join that waits for minutes holds no place in any queue.
    Late,
    /// All groups of the partitions that this shard coordinates; answered by [`GroupAnswer::Listed`].
    List,
}

/// The answer to a [`GroupAsk`].
#[derive(Debug)]
pub enum GroupAnswer {
    /// To [`GroupAsk::One`]: done.
    Reply(GroupReply),
    /// To [`GroupAsk::One`]: the reply comes with [`GroupAnswer::Late`].
    Parked,
    /// To [`GroupAsk::Late`].
    Late(Vec<(Ticket, GroupReply)>),
    /// To [`GroupAsk::List`].
    Listed(Listed),
}

/// A request to the coordinator of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupRequest {
    /// Take part; answered by [`GroupReply::Join`].
    Join(Join),
    /// Ask for, or as leader give, the assignment; answered by [`GroupReply::Sync`].
    Sync(Sync),
    /// Be alive; answered by [`GroupReply::Done`].
    Heartbeat(Heartbeat),
    /// Leave; answered by [`GroupReply::Leave`].
    Leave(Leave),
    /// Keep offsets; answered by [`GroupReply::OffsetCommit`].
    OffsetCommit(OffsetCommit),
    /// Tell offsets; answered by [`GroupReply::OffsetFetch`].
    OffsetFetch(OffsetFetch),
    /// Forget offsets; answered by [`GroupReply::OffsetDelete`].
    OffsetDelete(OffsetDelete),
    /// Tell members and state; answered by [`GroupReply::Describe`].
    Describe(GroupId),
    /// Remove an empty group; answered by [`GroupReply::Done`].
    Delete(GroupId),
}

impl GroupRequest {
    /// The group that it is for.
    pub const fn group(&self) -> &GroupId {
        match self {
            Self::Join(join) => &join.group,
            Self::Sync(sync) => &sync.who.group,
            Self::Heartbeat(heartbeat) => &heartbeat.who.group,
            Self::Leave(leave) => &leave.group,
            Self::OffsetCommit(commit) => &commit.who.group,
            Self::OffsetFetch(fetch) => &fetch.group,
            Self::OffsetDelete(delete) => &delete.group,
            Self::Describe(group) | Self::Delete(group) => group,
        }
    }
}

/// The reply to a [`GroupRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupReply {
    /// To [`GroupRequest::Join`].
    Join(JoinReply),
    /// To [`GroupRequest::Sync`].
    Sync(SyncReply),
    /// To [`GroupRequest::Heartbeat`] and [`GroupRequest::Delete`]: the error code.
    Done(ErrorCode),
    /// To [`GroupRequest::Leave`].
    Leave(LeaveReply),
    /// To [`GroupRequest::OffsetCommit`]: one code for each offset, in their order.
    OffsetCommit(Vec<ErrorCode>),
    /// To [`GroupRequest::OffsetFetch`].
    OffsetFetch(OffsetFetchReply),
    /// To [`GroupRequest::OffsetDelete`]: the error of the group, or one code for each partition, in their order.
    OffsetDelete(Result<Vec<ErrorCode>, ErrorCode>),
    /// To [`GroupRequest::Describe`].
    Describe(Result<Description, ErrorCode>),
}

/// JoinGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The group.
    pub group: GroupId,
    /// Who asks; empty at first.
    pub member: MemberId,
    /// The static member's own name, if it is one.
    pub instance: Option<InstanceId>,
    /// Name that the client gave itself in the request's header; `""` if none.
    pub client_id: Arc<str>,
    /// Address of the client as Kafka writes it: `/1.2.3.4`.
    pub client_host: Arc<str>,
    /// Milliseconds without a heartbeat after which the member is gone.
    pub session_timeout_ms: i32,
    /// Milliseconds that a rebalance waits for the member. Version 0 has none: the session timeout.
    pub rebalance_timeout_ms: i32,
    /// `consumer`, `connect`, ...
    pub protocol_type: Arc<str>,
    /// What the member can do, the best first: name and opaque metadata, whose bytes are no part of a request: they are kept.
    pub protocols: Vec<(Arc<str>, Bytes)>,
    /// Whether a dynamic member without id gets one and joins again (version 4, KIP-394).
    pub needs_known_member_id: bool,
    /// Whether the client understands that its assignment is to be skipped (version 9, KIP-814).
    pub knows_skip_assignment: bool,
    /// Why it joins, for the log (version 8, KIP-800).
    pub reason: Option<Arc<str>>,
}

/// Answers [`Join`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinReply {
    /// What went wrong.
    pub error: ErrorCode,
    /// The generation; -1 on error.
    pub generation: i32,
    /// Of the group; `None` where there is none to tell.
    pub protocol_type: Option<Arc<str>>,
    /// The one chosen; `None` where there is none to tell.
    pub protocol: Option<Arc<str>>,
    /// The leader's member id.
    pub leader: MemberId,
    /// Whether the leader shall not assign anew.
    pub skip_assignment: bool,
    /// The member's own id.
    pub member: MemberId,
    /// All members with their metadata of the chosen protocol; for the leader only.
    pub members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member: MemberId,
    /// Its own name, if it is static.
    pub instance: Option<InstanceId>,
    /// Its metadata of the chosen protocol.
    pub metadata: Bytes,
}

/// Who asks in which generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The group.
    pub group: GroupId,
    /// The member; may be empty.
    pub member: MemberId,
    /// Its own name, if it is static.
    pub instance: Option<InstanceId>,
    /// The generation that it knows; -1: none.
    pub generation: i32,
}

/// SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Who asks.
    pub who: Identity,
    /// What it takes the group's type to be (version 5).
    pub protocol_type: Option<Arc<str>>,
    /// What it takes the chosen protocol to be (version 5).
    pub protocol: Option<Arc<str>>,
    /// Assignments by member, from the leader only; the bytes are no part of a request: they are kept.
    pub assignments: Vec<(MemberId, Bytes)>,
}

/// Answers [`Sync`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReply {
    /// What went wrong.
    pub error: ErrorCode,
    /// Of the group; `None` on error.
    pub protocol_type: Option<Arc<str>>,
    /// The one chosen; `None` on error.
    pub protocol: Option<Arc<str>>,
    /// The member's own assignment; empty on error.
    pub assignment: Bytes,
}

/// Heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who asks.
    pub who: Identity,
}

/// LeaveGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leave {
    /// The group.
    pub group: GroupId,
    /// Who leaves.
    pub members: Vec<Leaving>,
}

/// One member of a [`Leave`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The member; empty when an administrator names an instance only.
    pub member: MemberId,
    /// Its own name, if it is static.
    pub instance: Option<InstanceId>,
    /// Why it leaves, for the log (version 5, KIP-800).
    pub reason: Option<Arc<str>>,
}

/// Answers [`Leave`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaveReply {
    /// Error of all.
    pub error: ErrorCode,
    /// One code for each who leaves, in their order; empty with an error of all.
    pub members: Vec<ErrorCode>,
}

/// OffsetCommit. What the topics' existence and rights decide was decided before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommit {
    /// Who commits; generation -1 and no ids: nobody's offsets.
    pub who: Identity,
    /// Whether the client knows GROUP_ID_NOT_FOUND (version 9); else ILLEGAL_GENERATION says it.
    pub knows_group_id_not_found: bool,
    /// The offsets.
    pub offsets: Vec<OffsetToCommit>,
}

/// One offset of an [`OffsetCommit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetToCommit {
    /// The topic.
    pub topic: TopicName,
    /// Which topic of that name: one that is made later gets nothing of it.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: i32,
    /// The next offset to read.
    pub offset: Offset,
    /// Epoch of the last record read; `LeaderEpoch::NONE` if not said.
    pub leader_epoch: LeaderEpoch,
    /// Whatever the client keeps beside it; null is `""`.
    pub metadata: Arc<str>,
    /// When, as the client says (version 1); else the broker's clock.
    pub committed_at: Option<TimestampMs>,
    /// Milliseconds after which it expires, as the client says (versions 2 to 4); else the broker decides.
    pub retention_ms: Option<i64>,
}

/// OffsetFetch of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetch {
    /// The group.
    pub group: GroupId,
    /// Partitions by topic; `None`: all that have an offset.
    pub topics: Option<Vec<(TopicName, Vec<i32>)>>,
    /// Where to go on, if all that have one are more than one answer has.
    pub from: Option<Place>,
    /// Whether an offset that a transaction may still change is refused (version 7, KIP-447).
    pub require_stable: bool,
}

/// Answers [`OffsetFetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetFetchReply {
    /// Error of the group.
    pub error: ErrorCode,
    /// Offsets by topic, in the order of the request.
    pub topics: Vec<(TopicName, Vec<FetchedOffset>)>,
    /// Where to go on: there are more.
    pub next: Option<Place>,
}

/// A place among the offsets of a group; means something to the group alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub(super) u32, pub(super) i32);

/// One offset of an [`OffsetFetchReply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedOffset {
    /// The partition.
    pub partition: i32,
    /// The next offset to read; -1: none.
    pub offset: Offset,
    /// Epoch of the last record read; `LeaderEpoch::NONE` if not known.
    pub leader_epoch: LeaderEpoch,
    /// What the client keeps beside it.
    pub metadata: Arc<str>,
    /// Error of the partition.
    pub error: ErrorCode,
}

/// OffsetDelete. What the topics' existence and rights decide was decided before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetDelete {
    /// The group.
    pub group: GroupId,
    /// The partitions.
    pub partitions: Vec<(TopicName, i32)>,
}

/// The state of a group (coordinators.md 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupState {
    /// No members.
    Empty,
    /// Collecting joins.
    PreparingRebalance,
    /// Waiting for the leader's assignment.
    CompletingRebalance,
    /// The assignment is known.
    Stable,
    /// Removed or unloaded.
    Dead,
}

impl GroupState {
    /// Kafka's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }
}

/// A group as DescribeGroups tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its state; `Dead` also where there is no such group.
    pub state: GroupState,
    /// `consumer`, ...; `""` where there is none to tell.
    pub protocol_type: Arc<str>,
    /// The one chosen; `""` unless stable.
    pub protocol: Arc<str>,
    /// The members.
    pub members: Vec<DescribedMember>,
}

/// A member as DescribeGroups tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its id.
    pub member: MemberId,
    /// Its own name, if it is static.
    pub instance: Option<InstanceId>,
    /// Name that the client gave itself.
    pub client_id: Arc<str>,
    /// Address of the client.
    pub client_host: Arc<str>,
    /// Its metadata of the chosen protocol; empty unless stable.
    pub metadata: Bytes,
    /// Its assignment; empty unless stable.
    pub assignment: Bytes,
}

/// Groups of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// COORDINATOR_LOAD_IN_PROGRESS while a partition is loading: the list is of the others.
    pub error: ErrorCode,
    /// The groups.
    pub groups: Vec<ListedGroup>,
}

/// A group as ListGroups tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// Its id.
    pub group: GroupId,
    /// `consumer`, ...; `""` for a group of offsets alone.
    pub protocol_type: Arc<str>,
    /// Its state.
    pub state: GroupState,
}

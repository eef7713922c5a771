//! The replies that say only why not: of a coordinator that is loading, or elsewhere, or does not know the group
//! (coordinators.md 1.3, 2.6). Called by the driver, by handlers and by the machine.

use protocol::error::ErrorCode;

use crate::coordinator::ask::{
    GroupReply, GroupRequest, JoinReply, LeaveReply, MemberId, OffsetFetchReply, SyncReply,
};

impl JoinReply {
    /// The reply to a JoinGroup that is refused.
    pub fn refused(error: ErrorCode, member: MemberId) -> Self {
        Self {
            error,
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: MemberId::default(),
            skip_assignment: false,
            member,
            members: Vec::new(),
        }
    }
}

impl SyncReply {
    /// The reply to a SyncGroup that is refused.
    pub fn refused(error: ErrorCode) -> Self {
        Self { error, protocol_type: None, protocol: None, assignment: bytes::Bytes::new() }
    }
}

/// The reply to a request while the partition is loading: a member that only shows that it is there is not disturbed,
/// and one that waits for its assignment joins again.
pub fn while_loading(request: &GroupRequest) -> GroupReply {
    let error = match request {
        GroupRequest::Heartbeat(_) => ErrorCode::None,
        GroupRequest::Sync(_) => ErrorCode::RebalanceInProgress,
        GroupRequest::Join(_)
        | GroupRequest::Leave(_)
        | GroupRequest::OffsetCommit(_)
        | GroupRequest::OffsetFetch(_)
        | GroupRequest::OffsetDelete(_)
        | GroupRequest::Describe(_)
        | GroupRequest::Delete(_) => ErrorCode::CoordinatorLoadInProgress,
    };
    refused(request, error)
}

/// The reply to a request that is refused as a whole.
pub fn refused(request: &GroupRequest, error: ErrorCode) -> GroupReply {
    Kind::of(request).refused(error)
}

/// What has to be known of a request to refuse it when it is gone.
pub enum Kind {
    /// JoinGroup of a member.
    Join(MemberId),
    /// SyncGroup.
    Sync,
    /// What is answered by an error code alone.
    Done,
    /// LeaveGroup.
    Leave,
    /// OffsetCommit of so many offsets.
    OffsetCommit(usize),
    /// OffsetFetch.
    OffsetFetch,
    /// OffsetDelete.
    OffsetDelete,
    /// DescribeGroups.
    Describe,
}

impl Kind {
    /// Of a request.
    pub fn of(request: &GroupRequest) -> Self {
        match request {
            GroupRequest::Join(join) => Self::Join(join.member.clone()),
            GroupRequest::Sync(_) => Self::Sync,
            GroupRequest::Heartbeat(_) | GroupRequest::Delete(_) => Self::Done,
            GroupRequest::Leave(_) => Self::Leave,
            GroupRequest::OffsetCommit(commit) => Self::OffsetCommit(commit.offsets.len()),
            GroupRequest::OffsetFetch(_) => Self::OffsetFetch,
            GroupRequest::OffsetDelete(_) => Self::OffsetDelete,
            GroupRequest::Describe(_) => Self::Describe,
        }
    }

    /// The reply to the request, refused as a whole.
    pub fn refused(self, error: ErrorCode) -> GroupReply {
        match self {
            Self::Join(member) => GroupReply::Join(JoinReply::refused(error, member)),
            Self::Sync => GroupReply::Sync(SyncReply::refused(error)),
            Self::Done => GroupReply::Done(error),
            Self::Leave => GroupReply::Leave(LeaveReply { error, members: Vec::new() }),
            Self::OffsetCommit(offsets) => GroupReply::OffsetCommit(vec![error; offsets]),
            Self::OffsetFetch => {
                GroupReply::OffsetFetch(OffsetFetchReply { error, topics: Vec::new(), next: None })
            }
            Self::OffsetDelete => GroupReply::OffsetDelete(Err(error)),
            Self::Describe => GroupReply::Describe(Err(error)),
        }
    }
}

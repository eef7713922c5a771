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
        _ => ErrorCode::CoordinatorLoadInProgress,
    };
    refused(request, error)
}

/// The reply to a request that is refused as a whole.
pub fn refused(request: &GroupRequest, error: ErrorCode) -> GroupReply {
    match request {
        GroupRequest::Join(join) => GroupReply::Join(JoinReply::refused(error, join.member.clone())),
        GroupRequest::Sync(_) => GroupReply::Sync(SyncReply::refused(error)),
        GroupRequest::Heartbeat(_) | GroupRequest::Delete(_) => GroupReply::Done(error),
        GroupRequest::Leave(_) => GroupReply::Leave(LeaveReply { error, members: Vec::new() }),
        GroupRequest::OffsetCommit(commit) => {
            GroupReply::OffsetCommit(commit.offsets.iter().map(|_| error).collect())
        }
        GroupRequest::OffsetFetch(_) => {
            GroupReply::OffsetFetch(OffsetFetchReply { error, topics: Vec::new() })
        }
        GroupRequest::OffsetDelete(_) => GroupReply::OffsetDelete(Err(error)),
        GroupRequest::Describe(_) => GroupReply::Describe(Err(error)),
    }
}

//! DescribeGroups (15), ListGroups (16) and DeleteGroups (42): groups as administrators see them (coordinators.md 2.12, 2.13).

use crate::codec::{Blob, SharedList, Str};

message! {
    /// Asks what groups are doing.
    pub struct DescribeGroupsRequest<'a>(DescribeGroups) {
        /// The groups.
        0+ groups: Vec<Str<'a>>;
        /// Whether to fill `authorized_operations`.
        3+ include_authorized_operations: bool;
    }

    /// Answers [`DescribeGroupsRequest`].
    pub struct DescribeGroupsResponse<'a>(DescribeGroups) {
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// The groups, in the order of the request.
        0+ groups: Vec<DescribedGroup<'a>>;
    }

    /// One group of a [`DescribeGroupsResponse`].
    pub struct DescribedGroup<'a> {
        /// Error of the group.
        0+ error_code: i16;
        /// The group.
        0+ group_id: Str<'a>;
        /// `Empty`, `PreparingRebalance`, `CompletingRebalance`, `Stable` or `Dead`; empty on error.
        0+ group_state: Str<'a>;
        /// `consumer`, `connect`, ...; empty where there is none.
        0+ protocol_type: Str<'a>;
        /// The protocol chosen; empty unless the group is stable.
        0+ protocol_data: Str<'a>;
        /// The members.
        0+ members: SharedList<DescribedGroupMember<'a>>;
        /// Bits of what the client may do with the group; the default: not asked.
        3+ authorized_operations: i32 = i32::MIN;
    }

    /// One member of a [`DescribedGroup`].
    pub struct DescribedGroupMember<'a> {
        /// Id of the member.
        0+ member_id: Str<'a>;
        /// Name that a static member gave itself (KIP-345).
        4+ group_instance_id: Option<Str<'a>> = None, ignorable;
        /// Name that the client gave itself in the header of its JoinGroup.
        0+ client_id: Str<'a>;
        /// Address of the client as Kafka writes it: `/1.2.3.4`.
        0+ client_host: Str<'a>;
        /// The member's metadata of the chosen protocol; empty unless the group is stable.
        0+ member_metadata: Blob<'a>;
        /// The member's assignment; empty unless the group is stable.
        0+ member_assignment: Blob<'a>;
    }

    /// Asks for the groups that a broker coordinates.
    pub struct ListGroupsRequest<'a>(ListGroups) {
        /// States asked for, in any case; empty: all (KIP-518).
        4+ states_filter: Vec<Str<'a>>;
        /// Types asked for, in any case; empty: all (KIP-848).
        5+ types_filter: Vec<Str<'a>>;
    }

    /// Answers [`ListGroupsRequest`].
    pub struct ListGroupsResponse<'a>(ListGroups) {
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// Top-level error.
        0+ error_code: i16;
        /// The groups.
        0+ groups: SharedList<ListedGroup<'a>>;
    }

    /// One group of a [`ListGroupsResponse`].
    pub struct ListedGroup<'a> {
        /// The group.
        0+ group_id: Str<'a>;
        /// `consumer`, `connect`, ...; empty for a group of offsets alone.
        0+ protocol_type: Str<'a>;
        /// State of the group.
        4+ group_state: Str<'a>, ignorable;
        /// `classic` or `consumer`.
        5+ group_type: Str<'a>, ignorable;
    }

    /// Asks to remove groups (KIP-229).
    pub struct DeleteGroupsRequest<'a>(DeleteGroups) {
        /// The groups.
        0+ groups_names: Vec<Str<'a>>;
    }

    /// Answers [`DeleteGroupsRequest`].
    pub struct DeleteGroupsResponse<'a>(DeleteGroups) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32;
        /// What became of each group.
        0+ results: Vec<DeletableGroupResult<'a>>;
    }

    /// What became of one group of a [`DeleteGroupsRequest`].
    pub struct DeletableGroupResult<'a> {
        /// The group.
        0+ group_id: Str<'a>;
        /// Error of the group.
        0+ error_code: i16;
    }
}

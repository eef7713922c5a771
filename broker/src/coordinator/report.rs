//! Lines of the log about groups: who joins and leaves, how rebalances begin and end, as Kafka's users know them. A storm of
//! a thousand members fills no disk: each kind of line has a rate, and what was held back is told with the next one. Knows no
//! rule of groups. `active` hands on what a machine tells.

use protocol::types::MonoTime;

use super::group::news::{Cause, Loss, News, What};
use crate::metrics::lines::{Rare, shown};

/// Lines about members in a second.
const OF_MEMBERS_MAX: u32 = 50;

/// Lines about groups in a second.
const OF_GROUPS_MAX: u32 = 50;

const SECOND_MS: i64 = 1_000;

/// How long it is not told again that there is no room.
const NO_ROOM_EVERY_MS: i64 = 60_000;

/// What one shard tells of its groups.
#[derive(Debug)]
pub(super) struct Report {
    of_members: Rare,
    of_groups: Rare,
    no_room: Rare,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            of_members: Rare::new(OF_MEMBERS_MAX, SECOND_MS),
            of_groups: Rare::new(OF_GROUPS_MAX, SECOND_MS),
            no_room: Rare::new(1, NO_ROOM_EVERY_MS),
        }
    }
}

impl Report {
    /// Tells of something, at a time when groups of the shard take so many bytes of so many.
    pub(super) fn tell(
        &self,
        now: MonoTime,
        News { group, what }: &News,
        (bytes, bytes_max): (usize, usize),
    ) {
        let rate = match what {
            What::Joined { .. } | What::CameBack { .. } | What::Gone { .. } => &self.of_members,
            What::Rebalances { .. }
            | What::Began { .. }
            | What::Stable { .. }
            | What::Empty { .. }
            | What::Removed => &self.of_groups,
            What::NoRoom => &self.no_room,
        };
        let Some(held_back) = rate.admit(now) else { return };
        if *what == What::NoRoom {
            tracing::warn!(
                group = %shown(group),
                bytes,
                bytes_max,
                held_back,
                "groups take all the memory that they may (groups.memory.bytes): who brings more is told to come again"
            );
            return;
        }
        write(group, what, held_back);
    }
}

fn write(group: &str, what: &What, held_back: u64) {
    let group = shown(group);
    match what {
        What::Joined { member, instance, client_id, client_host, reason } => {
            let instance = instance.as_deref().map(shown);
            let (member, client_id, reason) = (shown(member), shown(client_id), reason.as_deref());
            tracing::info!(group, member, instance, client_id, %client_host, reason, held_back, "a member has joined");
        }
        What::CameBack { instance, member, before } => {
            let (instance, member, before) = (shown(instance), shown(member), shown(before));
            tracing::info!(group, member, instance, before, held_back, "a static member has another id");
        }
        What::Gone { member, why } => {
            let (member, said) =
                (shown(member), if let Loss::Left(said) = why { said.as_deref() } else { None });
            tracing::info!(group, member, reason = said, held_back, "{}", loss(why));
        }
        What::Rebalances { generation, members, why } => {
            let error = if let Cause::NotWritten(error) = why { Some(error.name()) } else { None };
            let reason = cause(*why);
            tracing::info!(group, generation, members, reason, error, held_back, "a rebalance begins");
        }
        What::Began { generation, protocol, members, leader } => {
            let (protocol, leader) = (protocol.as_deref().map(shown), shown(leader));
            tracing::info!(
                group,
                generation,
                members,
                protocol,
                leader,
                held_back,
                "a generation has its members"
            );
        }
        What::Stable { generation, members } => {
            tracing::info!(group, generation, members, held_back, "a rebalance is complete");
        }
        What::Empty { generation } => tracing::info!(group, generation, held_back, "a group has no members"),
        What::Removed => tracing::info!(group, held_back, "a group is gone"),
        What::NoRoom => {}
    }
}

const fn loss(why: &Loss) -> &'static str {
    match why {
        Loss::Left(_) => "a member has left",
        Loss::Session => "a member was removed: it was not heard of within its session timeout",
        Loss::Rebalance => "a member was removed: it did not join within the rebalance timeout",
        Loss::Sync => "a member was removed: it did not ask for its assignment within the rebalance timeout",
        Loss::GroupFull => "a member was removed: the group has as many as group.max.size allows",
    }
}

const fn cause(why: Cause) -> &'static str {
    match why {
        Cause::NewMember => "a member has joined",
        Cause::MemberChanged => "a member has joined again with something else",
        Cause::LeaderRejoined => "the leader has joined again",
        Cause::StaticMemberBack => "a static member has another id",
        Cause::MemberGone => "a member is gone",
        Cause::NotSynced => "members did not ask for their assignment",
        Cause::NotWritten(_) => "the log does not have the assignment",
        Cause::TooLarge => "there are more members than group.max.size allows",
    }
}

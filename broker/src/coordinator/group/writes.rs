//! What is being appended for the groups, and what follows when it is in the log or not (coordinators.md 1.2, 3.8).
//! Nothing that a record says is told to anybody before it is committed; a batch that failed leaves no trace.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use protocol::error::ErrorCode;
use protocol::types::Offset;

use super::commits::Commit;
use super::core::{Queued, Turn};
use super::forget::Forget;
use super::groups::Groups;
use super::join::Comeback;
use super::machine::{Effect, Now, Waiter, WriteId};
use crate::coordinator::ask::{GroupId, GroupReply, MemberId};

/// A batch that is being appended.
#[derive(Debug)]
pub(super) enum Write {
    /// Of the assignment of a generation.
    Assignment { group: GroupId, generation: i32, assignments: BTreeMap<MemberId, Bytes>, bytes: usize },
    /// Of a static member's new id, and of those whose own batch failed while this one was on its way: it has their
    /// ids, too.
    Comebacks { group: GroupId, comebacks: Vec<Comeback> },
    /// Of a generation without members; that it failed changes nothing.
    Emptied,
    /// Of offsets.
    Commit(Commit),
    /// Of tombstones.
    Forget(Forget),
}

impl Write {
    /// Who waits for it outside the members, and what to tell if the answer is an error.
    pub(super) fn refusal(&self, error: ErrorCode) -> Option<(Waiter, GroupReply)> {
        match self {
            Self::Assignment { .. } | Self::Comebacks { .. } | Self::Emptied => None,
            Self::Commit(commit) => Some(commit.refusal(error)),
            Self::Forget(forget) => forget.refusal(error),
        }
    }
}

/// The error of a group record, as the members learn it (3.8).
fn group_error(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::UnknownTopicOrPartition
        | ErrorCode::NotEnoughReplicas
        | ErrorCode::NotEnoughReplicasAfterAppend => ErrorCode::CoordinatorNotAvailable,
        ErrorCode::NotLeaderOrFollower | ErrorCode::KafkaStorageError => ErrorCode::NotCoordinator,
        ErrorCode::RequestTimedOut => ErrorCode::RebalanceInProgress,
        ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge | ErrorCode::InvalidFetchSize => {
            ErrorCode::UnknownServerError
        }
        other => other,
    }
}

/// The error of committed offsets, as the client learns it (3.8).
fn commit_error(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::RequestTimedOut => ErrorCode::RequestTimedOut,
        ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge | ErrorCode::InvalidFetchSize => {
            ErrorCode::InvalidCommitOffsetSize
        }
        other => group_error(other),
    }
}

/// The error of a removal: there is no rebalance to wait for.
fn forget_error(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::RequestTimedOut => ErrorCode::CoordinatorNotAvailable,
        other => group_error(other),
    }
}

impl Groups {
    /// A batch is committed, or not in the log.
    pub(super) fn written(
        &mut self,
        now: Now,
        write: WriteId,
        outcome: Result<Offset, ErrorCode>,
        out: &mut Vec<Effect>,
    ) {
        let Some(Queued { id, records, write: batch }) = self.core.writes.pop_front() else {
            unreachable!("what is written was appended")
        };
        assert_eq!(id, write, "batches are told in their order");
        if let Ok(first) = outcome {
            let more = i64::try_from(records).unwrap_or(i64::MAX) - 1;
            self.last_record = self.last_record.max(first.plus(more));
        }
        let mut turn = Turn { now, core: &mut self.core, out };
        match batch {
            Write::Emptied => {}
            Write::Assignment { group: id, generation, assignments, bytes } => {
                if let Some(group) = self.groups.get_mut(&id) {
                    let outcome = outcome.map(|_| ()).map_err(group_error);
                    group.assignment_written(&mut turn, generation, (assignments, bytes), outcome);
                }
                self.settle(&id);
            }
            Write::Comebacks { group: id, mut comebacks } => {
                if outcome.is_err() {
                    comebacks = hand_on(&mut turn, &id, comebacks);
                }
                if let Some(group) = self.groups.get_mut(&id) {
                    let outcome = outcome.map(|_| ()).map_err(group_error);
                    for comeback in comebacks {
                        group.comeback_written(&mut turn, comeback, outcome);
                    }
                }
                self.settle(&id);
            }
            Write::Commit(commit) => {
                let group = Arc::clone(commit.group());
                let outcome = outcome.map_err(commit_error);
                commit.written(&mut turn, self.groups.get_mut(&group).map(Box::as_mut), outcome);
                self.settle(&group);
            }
            Write::Forget(forget) => self.forget_written(now, forget, outcome.map_err(forget_error), out),
        }
        self.let_jobs_go_on(out);
    }
}

/// A later record of the group has the new ids as well: whether these comebacks happened is decided with it. If the same
/// member has come back once more in it, that is what has to go back further. Gives those that nothing is left for.
fn hand_on(turn: &mut Turn<'_>, group: &GroupId, failed: Vec<Comeback>) -> Vec<Comeback> {
    let later = turn.core.writes.iter_mut().find_map(|queued| match &mut queued.write {
        Write::Comebacks { group: other, comebacks } if other == group => Some(comebacks),
        _ => None,
    });
    let Some(later) = later else { return failed };
    for comeback in failed {
        match later.iter_mut().find(|other| other.instance() == comeback.instance()) {
            Some(other) => other.goes_back_to(&comeback),
            None => later.push(comeback),
        }
    }
    Vec::new()
}

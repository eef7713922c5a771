//! One member of a consumer group as a client keeps it, classic protocol, eager: it owns nothing from the moment it hears of a
//! rebalance until it is assigned anew. Pure: told the answers, it says what to ask next. One request at a time. What a
//! sound broker does not answer here is an error, never a reason to try again.

use super::assignment::{Candidate, range};
use crate::client::error_name;

const REBALANCE_IN_PROGRESS: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;

/// What to ask next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// JoinGroup, with the id and the name that the member has.
    Join,
    /// SyncGroup; with what each member is assigned when it comes from the leader.
    Sync(Vec<(String, Vec<i32>)>),
    /// Heartbeat.
    Heartbeat,
    /// LeaveGroup.
    Leave,
}

/// Which answer a member waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// None.
    Nothing,
    /// To JoinGroup.
    Join,
    /// To SyncGroup.
    Sync,
    /// To Heartbeat.
    Heartbeat,
    /// To LeaveGroup.
    Leave,
}

/// An answer to JoinGroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Error code, 0 for none.
    pub error: i16,
    /// The generation.
    pub generation: i32,
    /// The leader's id.
    pub leader: String,
    /// Whether the leader shall leave the assignment as it is.
    pub skip_assignment: bool,
    /// The member's own id.
    pub member_id: String,
    /// All members, for the leader.
    pub members: Vec<Candidate>,
}

/// An answer that a sound broker does not give here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} was answered with {}", error_name(*code))]
pub struct Unexpected {
    what: &'static str,
    /// The error code.
    pub code: i16,
}

/// A member.
#[derive(Clone, Debug)]
pub struct Member {
    /// The name that a static member gives itself.
    pub instance_id: Option<String>,
    /// Its id; empty until the coordinator has given one.
    pub member_id: String,
    /// The generation of its last join.
    pub generation: i32,
    /// What it owns; `None` while it owns nothing, not even an empty assignment.
    partitions: Option<Vec<i32>>,
    awaits: Awaits,
    /// To be left when the answer at hand has come.
    is_leaving: bool,
}

impl Member {
    /// A member that has asked for nothing.
    pub fn new(instance_id: Option<String>) -> Self {
        Self {
            instance_id,
            member_id: String::new(),
            generation: -1,
            partitions: None,
            awaits: Awaits::Nothing,
            is_leaving: false,
        }
    }

    /// What it owns; `None` outside of a generation.
    pub fn partitions(&self) -> Option<&[i32]> {
        self.partitions.as_deref()
    }

    /// Which answer it waits for.
    pub fn awaits(&self) -> Awaits {
        self.awaits
    }

    fn ask(&mut self, ask: Ask) -> Ask {
        self.awaits = match ask {
            Ask::Join => Awaits::Join,
            Ask::Sync(_) => Awaits::Sync,
            Ask::Heartbeat => Awaits::Heartbeat,
            Ask::Leave => Awaits::Leave,
        };
        ask
    }

    /// Begins.
    pub fn join(&mut self) -> Ask {
        self.partitions = None;
        self.ask(Ask::Join)
    }

    /// It is time to say that it is alive; `None` while it waits for an answer, or is in no generation.
    pub fn beat(&mut self) -> Option<Ask> {
        let may = self.awaits == Awaits::Nothing && self.partitions.is_some();
        may.then(|| self.ask(Ask::Heartbeat))
    }

    /// Gives up what it owns, and leaves: at once, or when the answer that it waits for has come.
    pub fn leave(&mut self) -> Option<Ask> {
        self.partitions = None;
        self.is_leaving = true;
        (self.awaits == Awaits::Nothing).then(|| self.ask(Ask::Leave))
    }

    /// JoinGroup was answered, for a topic with so many partitions.
    ///
    /// # Errors
    /// Any error but that an id is wanted.
    pub fn joined(&mut self, answer: Joined, partitions: i32) -> Result<Ask, Unexpected> {
        match answer.error {
            MEMBER_ID_REQUIRED if self.member_id.is_empty() && self.instance_id.is_none() => {
                self.member_id = answer.member_id;
                Ok(self.ask(Ask::Join))
            }
            0 => {
                let leads = answer.leader == answer.member_id && !answer.skip_assignment;
                self.member_id = answer.member_id;
                self.generation = answer.generation;
                let assignments = if leads { range(answer.members, partitions) } else { Vec::new() };
                Ok(self.ask(Ask::Sync(assignments)))
            }
            code => Err(Unexpected { what: "JoinGroup", code }),
        }
    }

    /// SyncGroup was answered.
    ///
    /// # Errors
    /// Any error but that there is another rebalance.
    pub fn synced(&mut self, code: i16, partitions: Vec<i32>) -> Result<Option<Ask>, Unexpected> {
        self.awaits = Awaits::Nothing;
        match code {
            0 | REBALANCE_IN_PROGRESS if self.is_leaving => Ok(Some(self.ask(Ask::Leave))),
            0 => {
                self.partitions = Some(partitions);
                Ok(None)
            }
            REBALANCE_IN_PROGRESS => Ok(Some(self.join())),
            code => Err(Unexpected { what: "SyncGroup", code }),
        }
    }

    /// Heartbeat was answered.
    ///
    /// # Errors
    /// Any error but that there is a rebalance.
    pub fn beaten(&mut self, code: i16) -> Result<Option<Ask>, Unexpected> {
        self.awaits = Awaits::Nothing;
        match code {
            0 | REBALANCE_IN_PROGRESS if self.is_leaving => Ok(Some(self.ask(Ask::Leave))),
            0 => Ok(None),
            REBALANCE_IN_PROGRESS => Ok(Some(self.join())),
            code => Err(Unexpected { what: "Heartbeat", code }),
        }
    }

    /// LeaveGroup was answered.
    ///
    /// # Errors
    /// Any error.
    pub fn left(&mut self, code: i16) -> Result<(), Unexpected> {
        self.awaits = Awaits::Nothing;
        if code == 0 { Ok(()) } else { Err(Unexpected { what: "LeaveGroup", code }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(generation: i32, leader: &str, own: &str, members: &[&str]) -> Joined {
        let members = members.iter().map(|id| Candidate { member_id: (*id).to_owned(), instance_id: None });
        Joined {
            generation,
            leader: leader.to_owned(),
            member_id: own.to_owned(),
            members: members.collect(),
            ..Joined::default()
        }
    }

    fn refused(error: i16, own: &str) -> Joined {
        Joined { error, generation: -1, member_id: own.to_owned(), ..Joined::default() }
    }

    /// A follower of generation 1 that owns partition 3.
    fn stable() -> Member {
        let mut member = Member::new(None);
        assert_eq!(member.join(), Ask::Join);
        assert_eq!(member.joined(refused(MEMBER_ID_REQUIRED, "b"), 4), Ok(Ask::Join));
        assert_eq!(member.member_id, "b");
        assert_eq!(member.joined(joined(1, "a", "b", &[]), 4), Ok(Ask::Sync(vec![])));
        assert_eq!(member.beat(), None, "it waits for its assignment");
        assert_eq!(member.partitions(), None);
        assert_eq!(member.synced(0, vec![3]), Ok(None));
        member
    }

    #[test]
    fn a_member_gets_an_id_a_generation_and_its_partitions() {
        let mut member = stable();
        assert_eq!((member.generation, member.partitions()), (1, Some(&[3][..])));
        assert_eq!(member.beat(), Some(Ask::Heartbeat));
        assert_eq!(member.beat(), None, "one request at a time");
        assert_eq!(member.beaten(0), Ok(None));
        assert_eq!(member.partitions(), Some(&[3][..]));
    }

    #[test]
    fn a_leader_assigns_unless_it_is_told_not_to() {
        let mut leader = Member::new(None);
        leader.join();
        let Ok(Ask::Sync(dealt)) = leader.joined(joined(1, "a", "a", &["b", "a"]), 4) else { panic!("sync") };
        assert_eq!(dealt, [("a".to_owned(), vec![0, 1]), ("b".to_owned(), vec![2, 3])]);
        let mut back = Member::new(Some("one".to_owned()));
        back.join();
        let skip = Joined { skip_assignment: true, ..joined(1, "a", "a", &["b", "a"]) };
        assert_eq!(back.joined(skip, 4), Ok(Ask::Sync(vec![])));
    }

    #[test]
    fn who_hears_of_a_rebalance_gives_up_all_and_joins_again() {
        let mut beating = stable();
        beating.beat();
        assert_eq!(beating.beaten(REBALANCE_IN_PROGRESS), Ok(Some(Ask::Join)));
        assert_eq!((beating.partitions(), beating.awaits()), (None, Awaits::Join));
        assert_eq!(beating.joined(joined(2, "a", "b", &[]), 4), Ok(Ask::Sync(vec![])));
        assert_eq!(beating.synced(REBALANCE_IN_PROGRESS, vec![]), Ok(Some(Ask::Join)));
        assert_eq!(beating.partitions(), None);
    }

    #[test]
    fn who_leaves_owns_nothing_at_once_and_waits_for_the_answer_at_hand() {
        let mut idle = stable();
        assert_eq!(idle.leave(), Some(Ask::Leave));
        assert_eq!(idle.partitions(), None);
        assert_eq!(idle.left(0), Ok(()));
        for answer in [0, REBALANCE_IN_PROGRESS] {
            let mut beating = stable();
            beating.beat();
            assert_eq!((beating.leave(), beating.partitions()), (None, None));
            assert_eq!(beating.beaten(answer), Ok(Some(Ask::Leave)), "and it does not join again");
        }
        let mut syncing = stable();
        syncing.beat();
        syncing.beaten(REBALANCE_IN_PROGRESS).expect("joins");
        syncing.joined(joined(2, "a", "b", &[]), 4).expect("syncs");
        assert_eq!(syncing.leave(), None);
        assert_eq!((syncing.synced(0, vec![1]), syncing.partitions()), (Ok(Some(Ask::Leave)), None));
    }

    #[test]
    fn what_a_sound_broker_does_not_answer_is_an_error() {
        let said = |result: Result<Option<Ask>, Unexpected>| result.expect_err("unexpected").to_string();
        assert_eq!(said(stable().beaten(25)), "Heartbeat was answered with UNKNOWN_MEMBER_ID");
        assert_eq!(said(stable().synced(22, vec![])), "SyncGroup was answered with ILLEGAL_GENERATION");
        let mut member = stable();
        let twice = member.joined(refused(MEMBER_ID_REQUIRED, "c"), 4);
        assert!(twice.is_err(), "it has an id");
        let mut named = Member::new(Some("one".to_owned()));
        assert!(
            named.joined(refused(MEMBER_ID_REQUIRED, "c"), 4).is_err(),
            "static members have no need of it"
        );
        assert!(stable().joined(refused(REBALANCE_IN_PROGRESS, "b"), 4).is_err());
        assert!(stable().left(25).is_err());
    }
}

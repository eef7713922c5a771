//! Who leads a partition: the strategies of controller.md 9 that this release needs, as pure functions. Called by the
//! machine with what it has just read.

use protocol::types::BrokerId;

/// What an election decides from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidates<'a> {
    /// Assigned replicas, preferred leader first.
    pub assignment: &'a [BrokerId],
    /// In-sync replicas, in order.
    pub isr: &'a [BrokerId],
}

/// The outcome of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elected {
    /// The leader.
    pub leader: BrokerId,
    /// The new ISR.
    pub isr: Vec<BrokerId>,
    /// Whether a replica outside of the ISR leads now: it may have lost records.
    pub unclean: bool,
}

/// Whether an election may choose a replica that is not in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unclean {
    /// Rather no leader than lost records.
    Refused,
    /// By `unclean.leader.election.enable`.
    Allowed,
}

/// First leader of a new partition: the first live replica, with all live ones in sync.
pub(super) fn initial(assignment: &[BrokerId], is_online: impl Fn(BrokerId) -> bool) -> Option<Elected> {
    let isr: Vec<BrokerId> = assignment.iter().copied().filter(|id| is_online(*id)).collect();
    isr.first().copied().map(|leader| Elected { leader, isr: isr.clone(), unclean: false })
}

/// The offline strategy: the first assigned replica that is online and in sync, else, if allowed, any online one.
pub(super) fn offline(
    candidates: Candidates<'_>,
    unclean: Unclean,
    is_online: impl Fn(BrokerId) -> bool,
) -> Option<Elected> {
    let clean =
        candidates.assignment.iter().copied().find(|id| is_online(*id) && candidates.isr.contains(id));
    if let Some(leader) = clean {
        let isr = candidates.isr.iter().copied().filter(|id| is_online(*id)).collect();
        return Some(Elected { leader, isr, unclean: false });
    }
    if unclean == Unclean::Refused {
        return None;
    }
    let leader = candidates.assignment.iter().copied().find(|id| is_online(*id))?;
    Some(Elected { leader, isr: vec![leader], unclean: true })
}

/// Whether only an unclean election could find a leader, so that the topic's config has to be read.
pub(super) fn needs_unclean(candidates: Candidates<'_>, is_online: impl Fn(BrokerId) -> bool) -> bool {
    !candidates.assignment.iter().any(|id| is_online(*id) && candidates.isr.contains(id))
        && candidates.assignment.iter().any(|id| is_online(*id))
}

/// ISR and leader after a replica went offline; the only member stays, so that only it can lead again.
pub(super) fn without(leader: BrokerId, isr: &[BrokerId], gone: BrokerId) -> (BrokerId, Vec<BrokerId>) {
    let leader = if leader == gone { BrokerId::NONE } else { leader };
    let rest: Vec<BrokerId> = isr.iter().copied().filter(|id| *id != gone).collect();
    if rest.is_empty() { (leader, isr.to_vec()) } else { (leader, rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(raw: &[i32]) -> Vec<BrokerId> {
        raw.iter().map(|id| BrokerId::new(*id)).collect()
    }

    fn elect(
        assignment: &[i32],
        isr: &[i32],
        unclean: Unclean,
        online: &[i32],
    ) -> Option<(i32, Vec<BrokerId>, bool)> {
        let (assignment, isr) = (ids(assignment), ids(isr));
        let candidates = Candidates { assignment: &assignment, isr: &isr };
        offline(candidates, unclean, |id| online.contains(&id.get()))
            .map(|e| (e.leader.get(), e.isr, e.unclean))
    }

    #[test]
    fn the_first_assigned_replica_that_is_online_and_in_sync_leads() {
        assert_eq!(elect(&[1, 2, 3], &[3, 2], Unclean::Refused, &[2, 3]), Some((2, ids(&[3, 2]), false)));
        assert_eq!(elect(&[1, 2, 3], &[1, 3], Unclean::Allowed, &[2, 3]), Some((3, ids(&[3]), false)));
    }

    #[test]
    fn without_permission_no_replica_outside_of_the_isr_leads() {
        assert_eq!(elect(&[1, 2], &[1], Unclean::Refused, &[2]), None);
        assert_eq!(elect(&[1, 2], &[1], Unclean::Allowed, &[2]), Some((2, ids(&[2]), true)));
        assert_eq!(elect(&[1, 2], &[1], Unclean::Allowed, &[]), None);
    }

    #[test]
    fn an_isr_member_that_is_not_assigned_does_not_count() {
        assert_eq!(elect(&[1, 2], &[9, 2], Unclean::Refused, &[9]), None);
    }

    #[test]
    fn the_only_member_stays_in_the_isr() {
        assert_eq!(without(BrokerId::new(1), &ids(&[1]), BrokerId::new(1)), (BrokerId::NONE, ids(&[1])));
        assert_eq!(without(BrokerId::new(1), &ids(&[1, 2]), BrokerId::new(1)), (BrokerId::NONE, ids(&[2])));
        assert_eq!(without(BrokerId::new(1), &ids(&[1, 2]), BrokerId::new(2)), (BrokerId::new(1), ids(&[1])));
    }
}

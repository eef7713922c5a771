//! What a rebalance costs: the time in which no member of the current generation owned a partition, summed over the
//! partitions. Pure: told who got what and who gave up what, and when. Two owners at once are a fault of the group, and told.

use std::collections::BTreeMap;

use super::assignment::WrongOwners;

/// The account of one group.
#[derive(Clone, Debug)]
pub struct Paused {
    partitions: Vec<Owned>,
    generation: i32,
    paused_ns: u64,
    /// What each member owns in the generation.
    members: BTreeMap<usize, Vec<i32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owned {
    By(usize),
    ByNobodySince(u64),
}

impl Paused {
    /// Nobody owns partitions `0 .. partitions`, which counts from now on.
    pub fn new(partitions: i32, now: u64) -> Self {
        Self {
            partitions: (0..partitions).map(|_| Owned::ByNobodySince(now)).collect(),
            generation: 0,
            paused_ns: 0,
            members: BTreeMap::new(),
        }
    }

    /// The group has a new generation: who has not got its partitions in it owns none.
    pub fn generation_begun(&mut self, now: u64, generation: i32) {
        if generation <= self.generation {
            return;
        }
        self.generation = generation;
        let members: Vec<usize> = self.members.keys().copied().collect();
        members.into_iter().for_each(|member| self.released(now, member));
    }

    /// A member got its partitions; those of a generation that is over count for nothing.
    ///
    /// # Errors
    /// One that there is not, or that another member of the generation owns.
    pub fn assigned(
        &mut self,
        now: u64,
        member: usize,
        generation: i32,
        partitions: &[i32],
    ) -> Result<(), WrongOwners> {
        self.generation_begun(now, generation);
        if generation < self.generation {
            return Ok(());
        }
        self.released(now, member);
        for partition in partitions.iter().copied() {
            let owner = || format!("member {member}");
            let place = usize::try_from(partition).ok().and_then(|place| self.partitions.get_mut(place));
            let Some(owned) = place else {
                return Err(WrongOwners::Unknown { partition, owner: owner() });
            };
            match *owned {
                Owned::By(other) => {
                    let one = format!("member {other}");
                    return Err(WrongOwners::Two { partition, one, other: owner() });
                }
                Owned::ByNobodySince(since) => {
                    self.paused_ns = self.paused_ns.saturating_add(now.saturating_sub(since));
                    *owned = Owned::By(member);
                }
            }
        }
        self.members.insert(member, partitions.to_vec());
        Ok(())
    }

    /// A member gave up what it owned.
    pub fn released(&mut self, now: u64, member: usize) {
        let Some(partitions) = self.members.remove(&member) else { return };
        for partition in partitions {
            let place = usize::try_from(partition).ok().and_then(|place| self.partitions.get_mut(place));
            if let Some(owned) = place.filter(|owned| **owned == Owned::By(member)) {
                *owned = Owned::ByNobodySince(now);
            }
        }
    }

    /// Nanoseconds until now; those that nobody owns at this moment included.
    pub fn total_ns(&self, now: u64) -> u64 {
        self.partitions.iter().fold(self.paused_ns, |sum, owned| match owned {
            Owned::By(_) => sum,
            Owned::ByNobodySince(since) => sum.saturating_add(now.saturating_sub(*since)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two members own two partitions each; the account begins at 100.
    fn owned() -> Paused {
        let mut paused = Paused::new(4, 100);
        paused.assigned(110, 1, 1, &[0, 1]).expect("free");
        paused.assigned(120, 2, 1, &[2, 3]).expect("free");
        assert_eq!(paused.total_ns(500), 2 * 10 + 2 * 20);
        paused
    }

    #[test]
    fn what_nobody_owns_is_paused_until_somebody_does() {
        let mut paused = owned();
        paused.released(200, 1);
        assert_eq!(paused.total_ns(230), 60 + 2 * 30, "it counts before it is over");
        paused.released(250, 2);
        paused.assigned(300, 1, 2, &[0, 1]).expect("free");
        paused.assigned(310, 2, 2, &[2, 3]).expect("free");
        assert_eq!(paused.total_ns(9999), 60 + 2 * 100 + 2 * 60);
        paused.released(400, 7);
        assert_eq!(paused.total_ns(9999), 60 + 2 * 100 + 2 * 60, "a stranger owned nothing");
    }

    #[test]
    fn a_new_generation_takes_from_those_who_have_not_heard_of_it() {
        let mut paused = owned();
        paused.generation_begun(200, 2);
        assert_eq!(paused.total_ns(210), 60 + 4 * 10, "both still read, and none of it counts");
        paused.generation_begun(205, 2);
        paused.assigned(220, 1, 2, &[0, 1, 2, 3]).expect("the other one lost its own");
        assert_eq!(paused.total_ns(9999), 60 + 4 * 20);
        paused.released(300, 2);
        assert_eq!(paused.total_ns(9999), 60 + 4 * 20, "what it gives up is not its own any more");
        paused.assigned(300, 2, 1, &[2, 3]).expect("an answer of yesterday");
        assert_eq!(paused.total_ns(9999), 60 + 4 * 20);
    }

    #[test]
    fn two_owners_in_one_generation_are_a_fault_and_so_is_a_partition_that_is_none() {
        let mut paused = owned();
        let two = paused.assigned(200, 3, 1, &[1]).expect_err("member 1 owns it").to_string();
        assert_eq!(two, "partition 1 has two owners, member 1 and member 3");
        for partition in [-1, 4] {
            let none = owned().assigned(200, 3, 2, &[partition]).expect_err("none").to_string();
            assert!(none.contains("there is none"), "{none}");
        }
    }

    #[test]
    fn a_member_that_is_told_again_owns_what_it_was_told_last() {
        let mut paused = owned();
        paused.assigned(200, 1, 1, &[0]).expect("its own");
        assert_eq!(paused.total_ns(230), 60 + 30, "partition 1 was given up");
        paused.assigned(240, 3, 1, &[1]).expect("free");
        assert_eq!(paused.total_ns(9999), 60 + 40);
    }
}

//! Which brokers hold the replicas of new partitions (security-admin.md 7.2): Kafka's formula, with and without racks.
//! Pure: the random start and shift are arguments.

use std::collections::{BTreeMap, BTreeSet};

use protocol::types::BrokerId;

/// A broker that may hold replicas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// Its id.
    pub id: BrokerId,
    /// Its rack.
    pub rack: Option<String>,
}

/// What to place.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Index of the first partition to place; those below exist already.
    pub first_partition: usize,
    /// How many partitions to place.
    pub partitions: usize,
    /// Replicas of each.
    pub replication_factor: usize,
    /// Where in the list of brokers partition 0 begins.
    pub start: usize,
    /// How far second replicas are from the first ones.
    pub shift: usize,
}

/// Why replicas cannot be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// More replicas than live brokers, or none.
    #[error("replication factor {wanted} for {live} live brokers")]
    Factor {
        /// The wish.
        wanted: usize,
        /// Brokers that live.
        live: usize,
    },
    /// Some brokers have a rack, others not.
    #[error("not all brokers have a rack")]
    Racks,
}

/// Replicas for each partition, preferred leader first.
///
/// # Errors
/// See [`PlacementError`].
pub fn place(mut brokers: Vec<Candidate>, wish: Wish) -> Result<Vec<Vec<BrokerId>>, PlacementError> {
    brokers.sort();
    let (wanted, live) = (wish.replication_factor, brokers.len());
    if wanted == 0 || wanted > live {
        return Err(PlacementError::Factor { wanted, live });
    }
    let with_rack = brokers.iter().filter(|broker| broker.rack.is_some()).count();
    if with_rack == 0 {
        return Ok(unaware(&brokers, wish));
    }
    if with_rack < live {
        return Err(PlacementError::Racks);
    }
    Ok(aware(&brokers, wish))
}

/// The partitions of a wish, each with the shift that holds for it.
fn shifts(wish: Wish, brokers: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut shift = wish.shift;
    (wish.first_partition..wish.first_partition.saturating_add(wish.partitions)).map(move |partition| {
        if partition > 0 && partition % brokers == 0 {
            shift = shift.wrapping_add(1);
        }
        (partition, shift)
    })
}

fn unaware(brokers: &[Candidate], wish: Wish) -> Vec<Vec<BrokerId>> {
    let count = brokers.len();
    shifts(wish, count)
        .map(|(partition, shift)| {
            let first = (partition.wrapping_add(wish.start)) % count;
            let others = (0..wish.replication_factor - 1).map(|replica| {
                let step = 1 + (shift.wrapping_add(replica)) % (count - 1);
                (first + step) % count
            });
            std::iter::once(first)
                .chain(others)
                .filter_map(|at| brokers.get(at))
                .map(|broker| broker.id)
                .collect()
        })
        .collect()
}

/// Brokers in turn over the racks.
fn alternate(brokers: &[Candidate]) -> Vec<(BrokerId, &str)> {
    let mut racks: BTreeMap<&str, std::collections::VecDeque<BrokerId>> = BTreeMap::new();
    for broker in brokers {
        racks.entry(broker.rack.as_deref().unwrap_or_default()).or_default().push_back(broker.id);
    }
    let mut turn = Vec::with_capacity(brokers.len());
    while turn.len() < brokers.len() {
        for (rack, ids) in &mut racks {
            turn.extend(ids.pop_front().map(|id| (id, *rack)));
        }
    }
    turn
}

fn aware(brokers: &[Candidate], wish: Wish) -> Vec<Vec<BrokerId>> {
    let turn = alternate(brokers);
    let count = turn.len();
    let racks = turn.iter().map(|(_, rack)| *rack).collect::<BTreeSet<_>>().len();
    shifts(wish, count)
        .map(|(partition, shift)| {
            let first = (partition.wrapping_add(wish.start)) % count;
            let Some(leader) = turn.get(first) else { return Vec::new() };
            let (mut replicas, mut racks_used) = (vec![leader.0], BTreeSet::from([leader.1]));
            let mut k = 0_usize;
            while replicas.len() < wish.replication_factor {
                let step = 1 + (shift.wrapping_mul(racks).wrapping_add(k)) % (count - 1);
                k += 1;
                let Some((id, rack)) = turn.get((first + step) % count) else { continue };
                let rack_again = racks_used.contains(rack) && racks_used.len() < racks;
                if !rack_again && !replicas.contains(id) {
                    replicas.push(*id);
                    racks_used.insert(rack);
                }
            }
            replicas
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn brokers(racks: &[Option<&str>]) -> Vec<Candidate> {
        (0..)
            .zip(racks)
            .map(|(id, rack)| Candidate { id: BrokerId::new(id), rack: rack.map(str::to_owned) })
            .collect()
    }

    fn ids(raw: &[i32]) -> Vec<BrokerId> {
        raw.iter().map(|id| BrokerId::new(*id)).collect()
    }

    #[test]
    fn the_examples_of_the_sheet_hold() {
        let wish = Wish { first_partition: 0, partitions: 6, replication_factor: 3, start: 0, shift: 0 };
        let placed = place(brokers(&[None; 5]), wish).unwrap();
        assert_eq!((&placed[0], &placed[1]), (&ids(&[0, 1, 2]), &ids(&[1, 2, 3])));
        assert_eq!((&placed[4], &placed[5]), (&ids(&[4, 0, 1]), &ids(&[0, 2, 3])));
    }

    #[test]
    fn one_broker_holds_everything() {
        let wish = Wish { first_partition: 3, partitions: 2, replication_factor: 1, start: 7, shift: 9 };
        assert_eq!(place(brokers(&[None]), wish), Ok(vec![ids(&[0]); 2]));
    }

    #[test]
    fn wrong_factors_and_mixed_racks_are_refused() {
        let wish = |replication_factor| Wish {
            first_partition: 0,
            partitions: 1,
            replication_factor,
            start: 0,
            shift: 0,
        };
        assert_eq!(place(brokers(&[None; 2]), wish(3)), Err(PlacementError::Factor { wanted: 3, live: 2 }));
        assert_eq!(place(brokers(&[None; 2]), wish(0)), Err(PlacementError::Factor { wanted: 0, live: 2 }));
        assert_eq!(place(brokers(&[None, Some("a")]), wish(1)), Err(PlacementError::Racks));
    }

    proptest! {
        #[test]
        fn replicas_are_distinct_and_spread_over_racks(
            racks in proptest::collection::vec(0..3_usize, 1..8),
            partitions in 0..20_usize, start in any::<usize>(), shift in any::<usize>(), factor in 1..8_usize,
        ) {
            let names = ["a", "b", "c"];
            let list: Vec<_> = racks.iter().map(|rack| Some(names[*rack])).collect();
            let replication_factor = factor.min(list.len());
            let wish = Wish { first_partition: 0, partitions, replication_factor, start, shift };
            let rack_count = racks.iter().collect::<BTreeSet<_>>().len();
            for replicas in place(brokers(&list), wish).unwrap() {
                let used: BTreeSet<_> = replicas.iter().map(|id| racks[usize::try_from(id.get()).unwrap()]).collect();
                prop_assert_eq!(replicas.iter().collect::<BTreeSet<_>>().len(), replication_factor);
                prop_assert_eq!(used.len(), rack_count.min(replication_factor));
            }
        }
    }
}

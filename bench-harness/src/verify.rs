//! Proves that what was acknowledged is there exactly once. Knows record numbers and offsets, no bytes and no
//! connection; a reader shows it each record that it found, in the order of the offsets.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::acknowledged::Acknowledged;

/// Numbers beyond the highest acknowledged one that a run can have sent; a check word that is right by chance must not
/// make a bit set of any size.
const BEYOND_MAX: u64 = 1 << 32;

/// What is wrong with what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Acknowledged, and not there.
    #[error("{count} acknowledged record(s) of partition {partition} are lost, the first is number {number}")]
    Lost {
        /// The partition.
        partition: i32,
        /// The first that is missing.
        number: u64,
        /// How many are missing.
        count: u64,
    },
    /// There twice.
    #[error("record number {number} of partition {partition} is there again at offset {offset}")]
    Repeated {
        /// The partition.
        partition: i32,
        /// The record.
        number: u64,
        /// Where it was found the second time.
        offset: i64,
    },
    /// Behind a later one.
    #[error(
        "record number {number} of partition {partition} stands behind number {behind}, at offset {offset}"
    )]
    OutOfOrder {
        /// The partition.
        partition: i32,
        /// The record.
        number: u64,
        /// The later record in front of it.
        behind: u64,
        /// Where it was found.
        offset: i64,
    },
    /// Of a number that the run did not send.
    #[error("record number {number} of partition {partition} at offset {offset} was never sent")]
    NeverSent {
        /// The partition.
        partition: i32,
        /// The record.
        number: u64,
        /// Where it was found.
        offset: i64,
    },
}

/// What was found of one run.
#[derive(Debug)]
pub struct Tally {
    run: u32,
    ordered: bool,
    seen: BTreeMap<i32, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    bits: Vec<u64>,
    last: Option<u64>,
    count: u64,
}

/// What a sound run amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Records that were acknowledged; all are there once.
    pub acknowledged: u64,
    /// Records of the run that are there.
    pub found: u64,
}

impl Verified {
    /// As it stands in a report.
    pub fn to_json(self) -> Value {
        let beyond = self.found.saturating_sub(self.acknowledged);
        json!({"acknowledged": self.acknowledged, "found": self.found, "unacknowledged_found": beyond})
    }
}

impl Tally {
    /// Nothing found yet of `run`. `ordered`: the numbers of each partition stand in order.
    pub fn new(run: u32, ordered: bool) -> Self {
        Self { run, ordered, seen: BTreeMap::new() }
    }

    /// Records of the run found so far.
    pub fn found(&self) -> u64 {
        self.seen.values().map(|seen| seen.count).sum()
    }

    /// Notes a record; those of other runs are not counted.
    ///
    /// # Errors
    /// A record that is there twice or out of order.
    pub fn see(&mut self, run: u32, partition: i32, number: u64, offset: i64) -> Result<(), Fault> {
        if run != self.run {
            return Ok(());
        }
        let seen = self.seen.entry(partition).or_default();
        let never_sent = Fault::NeverSent { partition, number, offset };
        if number >= BEYOND_MAX {
            return Err(never_sent);
        }
        let word = usize::try_from(number / 64).map_err(|_| never_sent)?;
        if seen.bits.len() <= word {
            seen.bits.resize(word + 1, 0);
        }
        let bit = 1 << (number % 64);
        let bits = seen.bits.get_mut(word).ok_or(never_sent)?;
        if *bits & bit != 0 {
            return Err(Fault::Repeated { partition, number, offset });
        }
        *bits |= bit;
        seen.count += 1;
        match seen.last {
            Some(behind) if behind > number && self.ordered => {
                return Err(Fault::OutOfOrder { partition, number, behind, offset });
            }
            last => seen.last = last.max(Some(number)),
        }
        Ok(())
    }

    /// Whether everything acknowledged was found.
    ///
    /// # Errors
    /// The first partition that lacks a record.
    pub fn finish(&self, acknowledged: &Acknowledged) -> Result<Verified, Fault> {
        for (partition, numbers) in &acknowledged.partitions {
            let bits = self.seen.get(partition).map(|seen| seen.bits.as_slice()).unwrap_or_default();
            let is_there = |number: &u64| {
                let word = usize::try_from(number / 64).ok().and_then(|word| bits.get(word));
                word.is_some_and(|word| word & (1 << (number % 64)) != 0)
            };
            let mut missing =
                numbers.ranges().flat_map(|(first, last)| first..=last).filter(|number| !is_there(number));
            if let Some(number) = missing.next() {
                let count = 1 + u64::try_from(missing.count()).unwrap_or(u64::MAX - 1);
                return Err(Fault::Lost { partition: *partition, number, count });
            }
        }
        Ok(Verified { acknowledged: acknowledged.records(), found: self.found() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledged() -> Acknowledged {
        let mut acknowledged = Acknowledged { run: 1, ordered: true, ..Acknowledged::default() };
        acknowledged.add(0, 0, 0, 100);
        acknowledged.add(2, 0, 0, 100);
        acknowledged
    }

    /// Shows partition 0 and 2, numbers 0..100 each, changed by `change`.
    fn found(change: impl Fn(i32, &mut Vec<u64>)) -> Result<Verified, Fault> {
        let mut tally = Tally::new(1, true);
        for partition in [0, 2] {
            let mut numbers: Vec<u64> = (0..100).collect();
            change(partition, &mut numbers);
            for (offset, number) in (0..).zip(numbers) {
                tally.see(1, partition, number, offset)?;
                tally.see(2, partition, number, offset)?;
            }
        }
        tally.finish(&acknowledged())
    }

    #[test]
    fn what_was_acknowledged_and_is_there_once_is_verified() {
        assert_eq!(found(|_, _| {}), Ok(Verified { acknowledged: 200, found: 200 }));
        let more = found(|_, numbers| numbers.push(100));
        assert_eq!(more, Ok(Verified { acknowledged: 200, found: 202 }));
    }

    #[test]
    fn a_lost_record_is_named() {
        let lost = |partition, numbers: &mut Vec<u64>| {
            if partition == 2 {
                numbers.retain(|number| ![63, 64, 99].contains(number));
            }
        };
        assert_eq!(found(lost), Err(Fault::Lost { partition: 2, number: 63, count: 3 }));
        let tally = Tally::new(1, true);
        assert_eq!(tally.finish(&acknowledged()), Err(Fault::Lost { partition: 0, number: 0, count: 100 }));
    }

    #[test]
    fn a_repeated_record_is_named() {
        let repeated = found(|_, numbers| numbers.insert(50, 10));
        assert_eq!(repeated, Err(Fault::Repeated { partition: 0, number: 10, offset: 50 }));
    }

    #[test]
    fn disorder_is_named_where_there_was_an_order() {
        let swapped = |_, numbers: &mut Vec<u64>| numbers.swap(7, 8);
        assert_eq!(found(swapped), Err(Fault::OutOfOrder { partition: 0, number: 7, behind: 8, offset: 8 }));
        let mut tally = Tally::new(1, false);
        assert_eq!((tally.see(1, 0, 8, 0), tally.see(1, 0, 7, 1)), (Ok(()), Ok(())));
    }

    #[test]
    fn a_number_that_no_run_can_have_sent_takes_no_memory() {
        let mut tally = Tally::new(1, true);
        let fault = Fault::NeverSent { partition: 0, number: u64::MAX, offset: 5 };
        assert_eq!(tally.see(1, 0, u64::MAX, 5), Err(fault));
    }
}

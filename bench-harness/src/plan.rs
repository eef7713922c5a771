//! The schedule of an open loop: which records make which batch, and when each is due. Pure arithmetic on the index of a
//! record, so that sender and reader know a record's time without telling each other. Knows no clock and no broker.
//!
//! Record `i` of a run is due at `i / rate`. Without keys a batch takes consecutive records and goes to the next
//! partition; with keys record `i` belongs to partition `i mod partitions`, and each partition fills its own batch. All
//! batches but the last hold the same number of records, because the schedule is regular.

use crate::clock::SECOND_NS;

/// How records are dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// A batch is filled before the next partition begins.
    Sticky,
    /// Record after record, by key.
    ByKey,
}

/// What decides about a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Records per second, at least 1.
    pub rate: u64,
    /// Records of the whole run.
    pub records: u64,
    /// Partitions that get records, at least 1.
    pub partitions: u64,
    /// Records that fit into a batch, at least 1.
    pub batch_records_max: u64,
    /// How long the first record of a batch waits for others.
    pub linger_ns: u64,
    /// How records are dealt out.
    pub spread: Spread,
}

/// A schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    schedule: Schedule,
    /// Records of each batch but the last.
    batch_records: u64,
}

/// One batch of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Place in the order of the batches.
    pub index: u64,
    /// Partition it goes to, below `partitions`.
    pub partition: u64,
    /// Number of its first record in its partition.
    pub first: u64,
    /// Records.
    pub count: u64,
    /// When it is to be sent.
    pub due: u64,
}

impl Plan {
    /// The plan of a schedule.
    pub fn new(schedule: Schedule) -> Self {
        let stride = Self::stride_of(&schedule);
        let interval_ns = time_of(stride, schedule.rate).max(1);
        let waited = schedule.linger_ns / interval_ns;
        Self { batch_records: schedule.batch_records_max.min(waited.saturating_add(1)).max(1), schedule }
    }

    fn stride_of(schedule: &Schedule) -> u64 {
        match schedule.spread {
            Spread::Sticky => 1,
            Spread::ByKey => schedule.partitions,
        }
    }

    /// Records of each batch but the last.
    pub fn batch_records(&self) -> u64 {
        self.batch_records
    }

    /// Batch `index`, `None` behind the last.
    pub fn batch(&self, index: u64) -> Option<Planned> {
        let Schedule { partitions, records, linger_ns, .. } = self.schedule;
        let partition = index % partitions;
        let first = (index / partitions).checked_mul(self.batch_records)?;
        let first_record = self.record(partition, first);
        let left = records.checked_sub(first_record).filter(|left| *left > 0)?;
        let count = left.div_ceil(Self::stride_of(&self.schedule)).min(self.batch_records);
        // A batch that is full goes at once, any other when its first record has waited long enough.
        let due = if count == self.schedule.batch_records_max {
            self.scheduled(partition, first + count - 1)
        } else {
            self.scheduled(partition, first).saturating_add(linger_ns)
        };
        Some(Planned { index, partition, first, count, due })
    }

    /// When record `number` of `partition` is due.
    pub fn scheduled(&self, partition: u64, number: u64) -> u64 {
        time_of(self.record(partition, number), self.schedule.rate)
    }

    /// Index in the run of record `number` of `partition`.
    fn record(&self, partition: u64, number: u64) -> u64 {
        match self.schedule.spread {
            Spread::ByKey => number.saturating_mul(self.schedule.partitions).saturating_add(partition),
            Spread::Sticky => {
                let batch = (number / self.batch_records)
                    .saturating_mul(self.schedule.partitions)
                    .saturating_add(partition);
                batch.saturating_mul(self.batch_records).saturating_add(number % self.batch_records)
            }
        }
    }
}

/// When record `index` is due.
fn time_of(index: u64, rate: u64) -> u64 {
    let nanos = u128::from(index) * u128::from(SECOND_NS) / u128::from(rate.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn schedule() -> Schedule {
        Schedule {
            rate: 1000,
            records: 100,
            partitions: 4,
            batch_records_max: 10,
            linger_ns: 3 * MS,
            spread: Spread::Sticky,
        }
    }

    fn batches(plan: &Plan) -> Vec<Planned> {
        (0..).map_while(|index| plan.batch(index)).collect()
    }

    #[test]
    fn every_record_is_in_exactly_one_batch_whatever_the_pace() {
        for spread in [Spread::Sticky, Spread::ByKey] {
            for (records, partitions, linger_ns, max) in [
                (100, 4, 3 * MS, 10),
                (101, 4, 0, 10),
                (99, 7, 50 * MS, 3),
                (3, 16, 9 * MS, 10),
                (0, 1, 0, 1),
            ] {
                let schedule =
                    Schedule { records, partitions, linger_ns, batch_records_max: max, spread, ..schedule() };
                let plan = Plan::new(schedule);
                let mut seen = vec![0; usize::try_from(records).unwrap()];
                for batch in batches(&plan) {
                    assert!(batch.count <= max && batch.count > 0);
                    for number in batch.first..batch.first + batch.count {
                        seen[usize::try_from(plan.record(batch.partition, number)).unwrap()] += 1;
                    }
                }
                assert!(seen.iter().all(|times| *times == 1), "{schedule:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn batches_are_due_in_their_order_and_not_before_their_records() {
        for spread in [Spread::Sticky, Spread::ByKey] {
            let plan = Plan::new(Schedule { spread, ..schedule() });
            let all = batches(&plan);
            assert!(all.is_sorted_by_key(|batch| batch.due), "{spread:?}");
            for batch in all {
                let last = plan.scheduled(batch.partition, batch.first + batch.count - 1);
                assert!(batch.due >= last, "{batch:?} is sent before its last record is due at {last}");
            }
        }
    }

    #[test]
    fn numbers_of_a_partition_follow_each_other_without_a_gap() {
        for spread in [Spread::Sticky, Spread::ByKey] {
            let plan = Plan::new(Schedule { spread, ..schedule() });
            let mut next = [0; 4];
            for batch in batches(&plan) {
                let next = &mut next[usize::try_from(batch.partition).unwrap()];
                assert_eq!(batch.first, *next);
                *next += batch.count;
            }
        }
    }

    #[test]
    fn linger_bounds_a_batch_and_a_full_batch_does_not_wait() {
        let plan = Plan::new(schedule());
        assert_eq!(plan.batch_records(), 4);
        assert_eq!(plan.batch(0).map(|batch| (batch.count, batch.due)), Some((4, 3 * MS)));
        assert_eq!(plan.batch(1).map(|batch| (batch.partition, batch.due)), Some((1, 7 * MS)));
        let full = Plan::new(Schedule { linger_ns: 500 * MS, ..schedule() });
        assert_eq!(full.batch(0).map(|batch| (batch.count, batch.due)), Some((10, 9 * MS)));
        let alone = Plan::new(Schedule { linger_ns: 0, ..schedule() });
        assert_eq!(alone.batch(5).map(|batch| (batch.count, batch.due)), Some((1, 5 * MS)));
    }

    #[test]
    fn the_last_batch_holds_what_is_left() {
        let plan = Plan::new(Schedule { records: 42, ..schedule() });
        let last = batches(&plan).pop().map(|batch| (batch.index, batch.count, batch.due));
        assert_eq!(last, Some((10, 2, 43 * MS)));
        assert_eq!(plan.batch(11), None);
    }
}

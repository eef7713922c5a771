//! What a broker acknowledged: ranges of record numbers per partition. Grows by one range per batch and stays one range
//! while batches follow each other. The producer fills it, the report writes it, the verifier reads it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The acknowledged records of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// The run they belong to.
    pub run: u32,
    /// Whether the numbers of a partition were sent over one connection, so that they stand in order.
    pub ordered: bool,
    /// By partition.
    pub partitions: BTreeMap<i32, Numbers>,
}

/// The acknowledged records of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The lowest offset of them.
    pub first_offset: i64,
    /// First number to last number of each range; disjoint and not adjacent.
    ranges: BTreeMap<u64, u64>,
}

impl Acknowledged {
    /// Adds `count` records from number `first` on; they stand at `offset` and behind it.
    pub fn add(&mut self, partition: i32, offset: i64, first: u64, count: u64) {
        let Some(last) = count.checked_sub(1).map(|more| first.saturating_add(more)) else { return };
        let numbers = self
            .partitions
            .entry(partition)
            .or_insert_with(|| Numbers { first_offset: offset, ranges: BTreeMap::new() });
        numbers.first_offset = numbers.first_offset.min(offset);
        numbers.add(first, last);
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.partitions.values().map(Numbers::count).sum()
    }

    /// As it stands in a report.
    pub fn to_json(&self) -> Value {
        let partition = |(partition, numbers): (&i32, &Numbers)| {
            let ranges: Vec<[u64; 2]> = numbers.ranges().map(|(first, last)| [first, last]).collect();
            json!({"partition": partition, "first_offset": numbers.first_offset, "numbers": ranges})
        };
        self.partitions.iter().map(partition).collect()
    }

    /// From a report; `None` if it is none of a produce run.
    pub fn from_json(report: &Value) -> Option<Self> {
        let produce = report.get("produce")?;
        let run = u32::try_from(produce.get("run")?.as_u64()?).ok()?;
        let mut found = Self { run, ordered: produce.get("ordered")?.as_bool()?, ..Self::default() };
        for entry in produce.get("acknowledged")?.as_array()? {
            let partition = i32::try_from(entry.get("partition")?.as_i64()?).ok()?;
            let offset = entry.get("first_offset")?.as_i64()?;
            for range in entry.get("numbers")?.as_array()? {
                let [first, last] = range.as_array()?.as_slice() else { return None };
                let (first, last) = (first.as_u64()?, last.as_u64()?);
                found.add(partition, offset, first, last.checked_sub(first)?.checked_add(1)?);
            }
        }
        Some(found)
    }
}

impl Numbers {
    /// Number of records.
    pub fn count(&self) -> u64 {
        self.ranges().fold(0, |sum, (first, last)| sum.saturating_add((last - first).saturating_add(1)))
    }

    /// First and last number of each range, in order.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(first, last)| (*first, *last))
    }

    /// Whether a number is among them.
    pub fn contains(&self, number: u64) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    fn add(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        // Whatever touches the new range is taken into it; nearly always that is the range before.
        while let Some((start, end)) = self
            .ranges
            .range(..=last.saturating_add(1))
            .next_back()
            .map(|(start, end)| (*start, *end))
            .filter(|(_, end)| end.saturating_add(1) >= first)
        {
            self.ranges.remove(&start);
            first = first.min(start);
            last = last.max(end);
        }
        self.ranges.insert(first, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(added: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut all = Acknowledged::default();
        for (first, count) in added {
            all.add(0, 0, *first, *count);
        }
        all.partitions.values().flat_map(|numbers| numbers.ranges().collect::<Vec<_>>()).collect()
    }

    #[test]
    fn ranges_that_touch_become_one_in_any_order() {
        assert_eq!(ranges(&[(0, 10), (10, 5)]), [(0, 14)]);
        assert_eq!(ranges(&[(10, 5), (0, 10)]), [(0, 14)]);
        assert_eq!(ranges(&[(0, 2), (4, 2), (2, 2)]), [(0, 5)]);
        assert_eq!(ranges(&[(0, 2), (4, 2), (8, 1)]), [(0, 1), (4, 5), (8, 8)]);
        assert_eq!(ranges(&[(5, 0)]), []);
    }

    #[test]
    fn a_report_carries_them_there_and_back() {
        let mut sent = Acknowledged { run: 7, ordered: true, ..Acknowledged::default() };
        for (partition, offset, first, count) in [(3, 100, 0, 10), (3, 120, 20, 5), (0, 7, 0, 1)] {
            sent.add(partition, offset, first, count);
        }
        let report = json!({"produce": {"run": 7, "ordered": true, "acknowledged": sent.to_json()}});
        let read = Acknowledged::from_json(&report).expect("a report");
        assert_eq!(read, sent);
        assert_eq!(read.records(), 16);
        assert!(read.partitions[&3].contains(24) && !read.partitions[&3].contains(10));
        assert_eq!(Acknowledged::from_json(&json!({"produce": {"run": -1}})), None);
        let backwards = json!({"produce": {"run": 1, "ordered": true, "acknowledged":
            [{"partition": 0, "first_offset": 0, "numbers": [[5, 4]]}]}});
        assert_eq!(Acknowledged::from_json(&backwards), None);
    }
}

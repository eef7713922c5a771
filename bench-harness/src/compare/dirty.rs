//! A dirty log: a compacted topic whose keys come back many times, record by record the same in each run, so that every
//! cleaner starts from the same bytes; and the proof that what is left of it is the last record of each key, where it was,
//! and nothing else. Knows topics, records and files; who cleans, and what that costs, is `compaction`'s.
#![allow(clippy::disallowed_methods, reason = "a harness reads the files of a broker")]

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use protocol::messages::{PartitionProduceData, ProduceRequest, ProduceResponse, Records, TopicProduceData};
use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::crc::crc32c;
use protocol::records::reader;

use super::memory;
use crate::args::{Creation, Target};
use crate::client::{Client, End, error_name};
use crate::commands;
use crate::content::{Stamp, mix};
use crate::interrupt::Interrupt;
use crate::prepared::{Prepared, Shape};
use crate::producer::PRODUCE_VERSION;

/// Bytes of a segment.
const SEGMENT_BYTES: u64 = 16 << 20;
/// Segments of a partition that can be cleaned; behind them is the active one, with one batch.
const SEGMENTS: u64 = 6;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 1024;
/// Records of a batch, which has less than 64 KiB then.
const BATCH_RECORDS: u64 = 60;
/// How often a key is there, in the mean.
pub const REPEATS: u64 = 10;
/// What names the records, and when all of them were made (2026): content that no run changes.
const RUN: u32 = 0x0d1e_0604;
const MADE_AT_MS: i64 = 1_767_225_600_000;
/// Batches with payloads of their own, taken in turn.
const PAYLOADS: u64 = 8;
const IN_FLIGHT: usize = 5;
/// Longest time without an answer.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What decides when such a log is cleaned.
const RATIO: &str = "min.cleanable.dirty.ratio";
/// No log is dirtier than this.
const NEVER: &str = "1";
/// A log that was written to once is, and one that was just cleaned is not.
const AT_ONCE: &str = "0.01";

/// What such a log looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirty {
    /// Partitions.
    pub partitions: i32,
    batch_bytes: u64,
}

impl Dirty {
    /// Of so many partitions.
    ///
    /// # Errors
    /// Records that fit no batch of Kafka's format.
    pub fn of_partitions(partitions: i32) -> Result<Self> {
        let batch = Prepared::new(shape(1), BATCH_RECORDS, 0)?;
        Ok(Self { partitions: partitions.max(1), batch_bytes: u64::try_from(batch.bytes().len())? })
    }

    /// With so many bytes to clean, or a little more: as many partitions as that takes.
    ///
    /// # Errors
    /// As [`Dirty::of_partitions`], and a number that is absurd.
    pub fn of_bytes(bytes: f64) -> Result<Self> {
        let one = Self::of_partitions(1)?;
        let partitions = (bytes / crate::measure::float(one.bytes())).ceil();
        let partitions = format!("{partitions:.0}").parse::<i32>();
        Self::of_partitions(partitions.with_context(|| format!("{bytes} bytes are no size of a topic"))?)
    }

    /// Bytes that can be cleaned.
    pub fn bytes(&self) -> u64 {
        u64::from(self.partitions.unsigned_abs()) * SEGMENTS * self.segment_batches() * self.batch_bytes
    }

    /// Records of each partition.
    pub fn records(&self) -> u64 {
        self.batches() * BATCH_RECORDS
    }

    /// Keys of each partition.
    pub fn keys(&self) -> u64 {
        (self.records() / REPEATS).max(1)
    }

    fn batches(&self) -> u64 {
        SEGMENTS * self.segment_batches() + 1
    }

    /// A segment is rolled before a batch that does not fit.
    fn segment_batches(&self) -> u64 {
        SEGMENT_BYTES / self.batch_bytes
    }

    /// The key of a record.
    fn key(&self, partition: i32, number: u64) -> u64 {
        mix(mix(u64::from(partition.unsigned_abs()) + 1) ^ number) % self.keys()
    }

    /// Creates the topic, which nobody may clean yet, and writes it, partition by partition in turn.
    ///
    /// # Errors
    /// What the socket or the broker says, or a signal.
    pub fn write(&self, bootstrap: &str, topic: &str, interrupt: &Interrupt) -> Result<()> {
        let target = Target {
            bootstrap: bootstrap.to_owned(),
            timeout: PATIENCE.as_secs_f64(),
            topic: topic.to_owned(),
            hdr: None,
        };
        let topic_config = vec![
            "cleanup.policy=compact".to_owned(),
            format!("{RATIO}={NEVER}"),
            format!("segment.bytes={SEGMENT_BYTES}"),
        ];
        let creation = Creation { partitions: self.partitions, topic_config };
        let made = commands::topic(&target, Some(&creation))?;
        ensure!(made.ends.iter().all(|end| *end == 0), "topic {topic} was there before");
        let mut client = Client::connect(bootstrap, PATIENCE)?;
        let payloads = (0..PAYLOADS).map(|seed| Prepared::new(shape(self.keys()), BATCH_RECORDS, seed));
        let mut payloads: VecDeque<Prepared> = payloads.collect::<Result<_>>()?;
        let mut unanswered = VecDeque::new();
        for number in (0..self.batches()).map(|batch| batch * BATCH_RECORDS) {
            interrupt.check()?;
            for partition in 0..self.partitions {
                let mut batch = payloads.pop_front().context("there is no batch")?;
                let stamp = Stamp { run: RUN, partition, number };
                batch.stamp_with(stamp, MADE_AT_MS, |number| self.key(partition, number));
                unanswered.push_back((send(&mut client, topic, partition, batch.bytes())?, stamp));
                payloads.push_back(batch);
                if unanswered.len() >= IN_FLIGHT
                    && let Some((correlation_id, stamp)) = unanswered.pop_front()
                {
                    answered(&mut client, correlation_id, stamp)?;
                }
            }
        }
        unanswered.into_iter().try_for_each(|(id, stamp)| answered(&mut client, id, stamp))
    }

    /// The numbers of the records that are left of a partition: the last of each key below the active segment, which begins at
    /// `active`, and all from there on.
    fn left(&self, partition: i32, active: u64) -> Vec<u64> {
        let mut last = BTreeMap::new();
        for number in 0..active {
            last.insert(self.key(partition, number), number);
        }
        let mut left: Vec<u64> = last.into_values().collect();
        left.sort_unstable();
        left.extend(active..self.records());
        left
    }

    /// Reads all that is there: exactly what must be left, at the offsets that it had. `active` are the base offsets of the
    /// active segments at the time of the cleaning. Returns the number of records.
    ///
    /// # Errors
    /// The first record that is lost, moved, changed, or that a cleaner would not have left; what the socket or the broker says.
    pub fn prove(
        &self,
        bootstrap: &str,
        topic: &str,
        active: &BTreeMap<i32, i64>,
        interrupt: &Interrupt,
    ) -> Result<u64> {
        let mut client = Client::connect(bootstrap, PATIENCE)?;
        let mut records = 0;
        let ends = client.offsets(topic, self.partitions, End::End)?.context("a partition has no leader")?;
        for (partition, end) in (0..self.partitions).zip(ends) {
            let written = i64::try_from(self.records())?;
            ensure!(end == written, "partition {partition} had {written} offsets, and ends at {end}");
            let active = active.get(&partition).context("a partition without a segment")?;
            let mut expected = Expected::new(self, partition, u64::try_from(*active)?);
            let mut next = 0;
            while next < end {
                interrupt.check()?;
                let fetched = client.fetch(topic, partition, next, Duration::from_millis(500))?;
                if fetched.error_code != 0 {
                    bail!("partition {partition} was answered with {}", error_name(fetched.error_code));
                }
                let before = next;
                for batch in BatchIter::new(&fetched.records) {
                    let batch = batch.with_context(|| format!("partition {partition}, offset {next}"))?;
                    expected.see(&batch, next)?;
                    next = batch.next_offset().get().max(next);
                }
                ensure!(next > before, "partition {partition} has nothing at or behind offset {before}");
            }
            records += expected.finish()?;
        }
        Ok(records)
    }
}

/// Lets a topic be cleaned at once.
///
/// # Errors
/// What the socket or the broker says.
pub fn let_clean(client: &mut Client, topic: &str) -> Result<()> {
    client.set_topic_config(topic, RATIO, AT_ONCE)
}

fn shape(keys: u64) -> Shape {
    Shape { record_bytes: VALUE_BYTES, keys }
}

fn send(client: &mut Client, topic: &str, partition: i32, batch: &[u8]) -> Result<i32> {
    let data = PartitionProduceData { index: partition, records: Some(Records::new(batch)) };
    let topic_data = vec![TopicProduceData { name: topic.into(), partition_data: vec![data] }];
    let request = ProduceRequest { transactional_id: None, acks: 1, timeout_ms: 30_000, topic_data };
    client.send(PRODUCE_VERSION, &request)
}

/// Takes the answer to a batch, which must stand at the offset of its number.
fn answered(client: &mut Client, correlation_id: i32, sent: Stamp) -> Result<()> {
    let Stamp { partition, number, .. } = sent;
    let reply = client.receive(PRODUCE_VERSION, correlation_id)?;
    let response: ProduceResponse<'_> = reply.message()?;
    let answered = response.responses.first().and_then(|topic| topic.partition_responses.first());
    let answered = answered.context("an answer without the partition")?;
    if answered.error_code != 0 {
        bail!("a batch of partition {partition} was answered with {}", error_name(answered.error_code));
    }
    let offset = answered.base_offset;
    ensure!(
        u64::try_from(offset) == Ok(number),
        "record {number} of partition {partition} got offset {offset}"
    );
    Ok(())
}

/// What is wrong with what a cleaner left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Wrong {
    #[error("record {number} of partition {partition} is lost, the last of its key")]
    Lost { partition: i32, number: u64 },
    #[error("record {number} of partition {partition} is still there, and not the last of its key")]
    Kept { partition: i32, number: u64 },
    #[error("the record at offset {offset} of partition {partition} is another one, or changed")]
    Changed { partition: i32, offset: i64 },
    #[error("a damaged batch behind offset {offset} of partition {partition}")]
    Batch { partition: i32, offset: i64 },
}

/// What is to be left of a partition, as far as it was not seen yet.
#[derive(Debug)]
struct Expected<'a> {
    dirty: &'a Dirty,
    partition: i32,
    left: std::iter::Peekable<std::vec::IntoIter<u64>>,
    seen: u64,
}

impl<'a> Expected<'a> {
    fn new(dirty: &'a Dirty, partition: i32, active: u64) -> Self {
        Self { dirty, partition, left: dirty.left(partition, active).into_iter().peekable(), seen: 0 }
    }

    /// Takes a batch in, from an offset on: what a fetch answers before it was seen already.
    fn see(&mut self, batch: &BatchView<'_>, from: i64) -> Result<(), Wrong> {
        let partition = self.partition;
        let damaged = Wrong::Batch { partition, offset: from };
        if !batch.crc_is_valid() {
            return Err(damaged);
        }
        let mut records = reader::Records::of(batch).map_err(|_| damaged)?;
        while let Some(record) = records.next_record().map_err(|_| damaged)? {
            let offset = batch.base_offset().plus(i64::from(record.offset_delta)).get();
            if offset >= from {
                self.one(offset, record.key.unwrap_or_default(), record.value.unwrap_or_default())?;
            }
        }
        Ok(())
    }

    fn one(&mut self, offset: i64, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let partition = self.partition;
        let changed = Wrong::Changed { partition, offset };
        let stamp = Stamp::read(partition, value).filter(|stamp| stamp.run == RUN).ok_or(changed)?;
        let number = stamp.number;
        let is_its_key = self.dirty.key(partition, number).to_be_bytes() == *key;
        if u64::try_from(offset) != Ok(number) || !is_its_key || value.len() != VALUE_BYTES {
            return Err(changed);
        }
        match self.left.next_if(|next| *next <= number) {
            Some(next) if next == number => self.seen += 1,
            Some(lost) => return Err(Wrong::Lost { partition, number: lost }),
            None => return Err(Wrong::Kept { partition, number }),
        }
        Ok(())
    }

    /// How many there were, once all were seen.
    fn finish(mut self) -> Result<u64, Wrong> {
        let partition = self.partition;
        self.left.next().map_or(Ok(self.seen), |number| Err(Wrong::Lost { partition, number }))
    }
}

/// What names the content of a dirty log on the disk, below its active segments: which segments there are, and offset, size and
/// checksum of each batch. Reads all of it, so that the page cache has it afterwards, whoever wrote it.
///
/// # Errors
/// The files cannot be read, or hold something else.
pub fn fingerprint(logs: &Path, topic: &str) -> Result<u32> {
    let mut lines = Vec::new();
    let mut by_directory: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for path in memory::segments(logs, topic)? {
        by_directory.entry(path.parent().map(Path::to_owned)).or_default().push(path);
    }
    for segments in by_directory.into_values() {
        let (active, below) = segments.split_last().context("a partition without a segment")?;
        for path in below {
            let bytes = std::fs::read(path).with_context(|| format!("{}", path.display()))?;
            let mut batches = BatchIter::new(&bytes);
            let mut content = Vec::new();
            for batch in &mut batches {
                let batch = batch.with_context(|| format!("{}", path.display()))?;
                content.extend(batch.base_offset().get().to_be_bytes());
                content.extend(batch.size_in_bytes().to_be_bytes());
                content.extend(batch.crc().to_be_bytes());
            }
            ensure!(batches.remainder().is_empty(), "{} ends inside a batch", path.display());
            lines.push(format!("{} {:08x}\n", name(path), crc32c(&content)));
        }
        lines.push(format!("{}\n", name(active)));
    }
    Ok(crc32c(lines.concat().as_bytes()))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small enough to be looked through: batches of a quarter of a segment.
    fn small() -> Dirty {
        Dirty { partitions: 2, batch_bytes: SEGMENT_BYTES / 4 }
    }

    /// The batch of the records that `stays` keeps of `first .. first + 60`, as a cleaner would write it.
    fn batch(dirty: &Dirty, partition: i32, first: u64) -> Prepared {
        let mut batch = Prepared::new(shape(dirty.keys()), BATCH_RECORDS, 1).unwrap();
        let stamp = Stamp { run: RUN, partition, number: first };
        batch.stamp_with(stamp, MADE_AT_MS, |number| dirty.key(partition, number));
        batch
    }

    /// Shows what `change` makes of the records that must be left of a partition.
    fn shown(change: impl Fn(&mut Vec<(i64, Vec<u8>, Vec<u8>)>)) -> Result<u64, Wrong> {
        let (dirty, active) = (small(), 24 * BATCH_RECORDS);
        let mut records = Vec::new();
        for number in dirty.left(1, active) {
            let value = crate::content::value(Stamp { run: RUN, partition: 1, number }, VALUE_BYTES);
            records.push((
                i64::try_from(number).unwrap(),
                dirty.key(1, number).to_be_bytes().to_vec(),
                value,
            ));
        }
        change(&mut records);
        let mut expected = Expected::new(&dirty, 1, active);
        records.iter().try_for_each(|(offset, key, value)| expected.one(*offset, key, value))?;
        expected.finish()
    }

    #[test]
    fn a_dirty_log_has_as_many_partitions_as_its_bytes_take() {
        let dirty = Dirty::of_bytes(2e9).unwrap();
        assert_eq!(dirty.partitions, 20);
        assert!((2_000_000_000..2_100_000_000).contains(&dirty.bytes()), "{}", dirty.bytes());
        assert!(dirty.batch_bytes < 64 << 10);
        assert_eq!(Dirty::of_bytes(1.0).unwrap().partitions, 1);
        assert!(Dirty::of_bytes(f64::INFINITY).is_err() && Dirty::of_bytes(1e300).is_err());
        let keys = f64::from(u32::try_from(dirty.keys()).unwrap());
        let records = f64::from(u32::try_from(dirty.records()).unwrap());
        assert!((9.9..10.1).contains(&(records / keys)));
    }

    #[test]
    fn of_each_key_the_last_record_below_the_active_segment_is_left_and_all_behind() {
        let dirty = small();
        let active = 24 * BATCH_RECORDS;
        assert_eq!(dirty.records(), active + BATCH_RECORDS);
        let left = dirty.left(0, active);
        assert!(left.is_sorted() && left.ends_with(&(active..dirty.records()).collect::<Vec<_>>()));
        let below: Vec<u64> = left.into_iter().filter(|number| *number < active).collect();
        for number in 0..active {
            let last = (0..active).rfind(|other| dirty.key(0, *other) == dirty.key(0, number));
            assert_eq!(below.contains(&number), last == Some(number), "{number}");
        }
        assert!(below.len() > 100 && below.len() < 200, "{}", below.len());
        assert_ne!(dirty.left(1, active)[..50], below[..50], "partitions differ");
    }

    #[test]
    fn what_must_be_left_is_proven_and_nothing_else() {
        let whole = shown(|_| {}).unwrap();
        assert_eq!(whole, u64::try_from(small().left(1, 24 * BATCH_RECORDS).len()).unwrap());
        let number = |at: usize| small().left(1, 24 * BATCH_RECORDS)[at];
        let lost = |at| Err(Wrong::Lost { partition: 1, number: number(at) });
        assert_eq!(shown(|records| drop(records.remove(3))), lost(3));
        assert_eq!(shown(|records| drop(records.pop())), lost(usize::try_from(whole).unwrap() - 1));
        let changed =
            |at: usize| Err(Wrong::Changed { partition: 1, offset: i64::try_from(number(at)).unwrap() });
        assert_eq!(shown(|records| records[5].2[100] ^= 1), changed(5));
        assert_eq!(shown(|records| records[5].1[7] ^= 1), changed(5));
        let moved = |records: &mut Vec<(i64, Vec<u8>, Vec<u8>)>| records[0].0 += 1;
        let offset = i64::try_from(number(0)).unwrap() + 1;
        assert_eq!(shown(moved), Err(Wrong::Changed { partition: 1, offset }));
        let stale = (0..).find(|number| !small().left(1, 24 * BATCH_RECORDS).contains(number)).unwrap();
        let value = crate::content::value(Stamp { run: RUN, partition: 1, number: stale }, VALUE_BYTES);
        let key = small().key(1, stale).to_be_bytes().to_vec();
        let kept = |records: &mut Vec<(i64, Vec<u8>, Vec<u8>)>| {
            let offset = i64::try_from(stale).unwrap();
            let at = records.partition_point(|record| record.0 < offset);
            records.insert(at, (offset, key.clone(), value.clone()));
        };
        assert_eq!(shown(kept), Err(Wrong::Kept { partition: 1, number: stale }));
    }

    #[test]
    fn the_records_of_a_batch_are_looked_at_and_a_damaged_one_is_told() {
        let dirty = small();
        let sent = batch(&dirty, 0, 0);
        let mut expected = Expected::new(&dirty, 0, 0);
        expected.see(&BatchView::parse(sent.bytes()).unwrap(), 0).unwrap();
        assert_eq!(expected.seen, BATCH_RECORDS);
        let again = expected.see(&BatchView::parse(sent.bytes()).unwrap(), 60);
        assert_eq!((again, expected.seen), (Ok(()), BATCH_RECORDS), "below what is asked for");
        let mut bytes = sent.bytes().to_vec();
        bytes[200] ^= 1;
        let damaged = Expected::new(&dirty, 0, 0).see(&BatchView::parse(&bytes).unwrap(), 0);
        assert_eq!(damaged, Err(Wrong::Batch { partition: 0, offset: 0 }));
    }

    #[test]
    fn the_same_content_has_the_same_name_wherever_it_lies() {
        let dirty = small();
        let written = |topic: &str, second: u64| {
            let logs = tempfile::tempdir().unwrap();
            for partition in 0..2 {
                let directory = logs.path().join(format!("{topic}-{partition}"));
                std::fs::create_dir(&directory).unwrap();
                for base in [0, second] {
                    let name = format!("{base:020}.log");
                    std::fs::write(directory.join(name), batch(&dirty, partition, base).bytes()).unwrap();
                }
            }
            fingerprint(logs.path(), topic).unwrap()
        };
        assert_eq!(written("run-1", 60), written("run-22", 60));
        assert_ne!(written("run-1", 60), written("run-1", 61), "the active segment begins elsewhere");
        let logs = tempfile::tempdir().unwrap();
        std::fs::create_dir(logs.path().join("t-0")).unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(logs.path().join(name), bytes).unwrap();
        let whole = batch(&dirty, 0, 0);
        write("t-0/00000000000000000000.log", whole.bytes());
        write("t-0/00000000000000000060.log", b"whatever is being written");
        let first = fingerprint(logs.path(), "t").unwrap();
        write("t-0/00000000000000000000.log", batch(&dirty, 0, 1).bytes());
        assert_ne!(fingerprint(logs.path(), "t").unwrap(), first);
        write("t-0/00000000000000000000.log", &whole.bytes()[..200]);
        assert!(fingerprint(logs.path(), "t").unwrap_err().to_string().contains("ends inside a batch"));
    }
}

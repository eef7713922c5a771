//! Compaction on the stage: what a crash meets while it runs is the log as it was, the log as it became, or some first
//! segments as they became and the rest as they were; never anything else (T-7).

use std::rc::Rc;

use protocol::types::{TimestampMs, TopicPartition};
use storage::io::Runtime;
use storage::io::sim::Fault;
use storage::log::{CompactionError, CompactionLimits, LogError};

use crate::known::{Batch, FoundLog, look};
use crate::stage::{CLIENT, Stage};

const LIMITS: CompactionLimits = CompactionLimits {
    map_bytes: 1 << 14,
    map_load_factor: 0.9,
    buffer_bytes: 300,
    bytes_per_second: f64::MAX,
    free_space_floor_bytes: 0,
};

/// A round of which nobody knows how far it came.
pub struct Compaction {
    before: Vec<Rc<Batch>>,
    after: Vec<Rc<Batch>>,
    /// Where the segments began. One of which no record is left may stay behind the output of its group: a start, ours as
    /// Kafka's, removes what begins below the output's end.
    bases: Vec<i64>,
}

impl Compaction {
    /// Whether it came so far that this was found.
    pub fn is_met(&self, found: &FoundLog) -> bool {
        let in_log = |batch: &&Rc<Batch>| batch.last >= found.start && batch.first < found.end;
        self.bases.iter().copied().chain([i64::MAX]).any(|switch| {
            let new = self.after.iter().filter(|batch| batch.first < switch);
            let old = self.before.iter().filter(|batch| batch.first >= switch);
            new.chain(old).filter(in_log).map(|batch| &**batch).eq(&found.batches)
        })
    }
}

/// Where a log has no batches.
pub fn gaps(found: &FoundLog) -> Vec<(i64, i64)> {
    let mut gaps = Vec::new();
    let mut next = found.start;
    for batch in &found.batches {
        if batch.first > next {
            gaps.push((next, batch.first));
        }
        next = batch.last + 1;
    }
    if found.end > next {
        gaps.push((next, found.end));
    }
    gaps
}

impl Stage {
    /// Appends records with these keys, of an idempotent producer if one is named; without a value a key is deleted.
    pub async fn append_keyed(
        &self,
        name: &TopicPartition,
        pairs: &[(&str, Option<usize>)],
        producer: Option<i64>,
    ) {
        let mut builder = self.builder(name, pairs.len(), producer);
        let (tag, time) = self.next_tag();
        let byte = u8::try_from(tag % 250).unwrap() + 1;
        for (key, bytes) in pairs {
            let value = bytes.map(|bytes| vec![byte; bytes]);
            builder.push(time, Some(key.as_bytes()), value.as_deref(), &[]);
        }
        self.append_batch(name, builder.build().unwrap(), CLIENT).await;
    }

    /// Compacts what can be compacted: when it is done, it is done for good.
    pub async fn compact(&self, name: &TopicPartition) {
        self.forget_files(name);
        let log = self.log(name);
        let before = shared(&look(&log).await.expect("it is readable"));
        let bases = self.bases().await.remove(name).expect("it has segments");
        let began = self.runtime.disk().trace_len();
        let now = TimestampMs::new(self.runtime.wall_ms());
        let cleanable = log.cleanable(log.log_end_offset(), now).await.unwrap();
        let done = log.compact(&cleanable, &LIMITS).await.unwrap();
        assert!(done.segments_written > 0 && done.records_kept < done.records_read, "{done:?}");
        let found = look(&log).await.expect("it is readable");
        let after = shared(&found);
        let round = Rc::new(Compaction { before, after: after.clone(), bases });
        let (key, batches) = (name.clone(), after.clone());
        // What may be met meanwhile is known only now.
        self.lesson_at(began, true, move |known| {
            let log = known.log(&key);
            log.batches.extend(batches.iter().cloned());
            log.compacting = Some(Rc::clone(&round));
        });
        let (key, gaps) = (name.clone(), gaps(&found));
        self.learn(move |known| {
            let log = known.log(&key);
            log.compacting = None;
            log.batches.clone_from(&after);
            log.emptied.clone_from(&gaps);
        });
        self.checkpoint().await;
    }

    /// A round that meets a full disk: it leaves the log as it was.
    pub async fn fail_to_compact(&self, name: &TopicPartition, fault: Fault) {
        let log = self.log(name);
        let now = TimestampMs::new(self.runtime.wall_ms());
        let cleanable = log.cleanable(log.log_end_offset(), now).await.unwrap();
        let full = std::io::ErrorKind::StorageFull;
        self.runtime.disk().fail(Fault { error: full, ..fault });
        let done = log.compact(&cleanable, &LIMITS).await;
        assert_eq!(done, Err(CompactionError::Log(LogError::Full)));
        self.runtime.disk().heal();
    }
}

fn shared(found: &FoundLog) -> Vec<Rc<Batch>> {
    found.batches.iter().cloned().map(Rc::new).collect()
}

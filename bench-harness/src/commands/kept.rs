//! What a broker acknowledged before it was killed, and the proof that it is there afterwards: every offset where it was,
//! every record read back. Knows topics and records; who starts and kills is `startup`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::acknowledged::{Acknowledged, Numbers};
use crate::args::Target;
use crate::client::resolve;
use crate::clock::{Clock, saturated_nanos};
use crate::commands::{new_run, topic};
use crate::consumer::{Consumer, Reading};
use crate::engine::{Engine, Limits};
use crate::measure::window::Watch;
use crate::prepared::Shape;
use crate::producer::{Load, Producer};
use crate::verify::Tally;

/// Connections of the writer and of the reader.
const CONNECTIONS: usize = 2;
/// Bytes of a record, and records of a batch: of 64 KiB at most.
const RECORD_BYTES: u16 = 1024;
const BATCH_RECORDS: u64 = 60;

/// What was acknowledged.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Of which topic.
    pub topic: String,
    /// The offset of one record that each partition acknowledged first.
    pub firsts: BTreeMap<i32, i64>,
    /// What was written behind.
    pub filled: Acknowledged,
}

/// Writes records of 1 KiB in batches of 64 KiB; all are acknowledged when it returns.
///
/// # Errors
/// Whatever ends a run early.
pub fn fill(
    bootstrap: &str,
    topic: &str,
    partitions: i32,
    bytes: u64,
    limit: Duration,
) -> Result<Acknowledged> {
    let clock = Clock::start();
    let load = Load {
        topic: topic.to_owned(),
        partitions: u64::from(partitions.unsigned_abs()),
        connections: CONNECTIONS,
        in_flight: 5,
        batches_per_request: 1,
        acks: 1,
        shape: Shape { record_bytes: usize::from(RECORD_BYTES), keys: 0 },
        batch_records: BATCH_RECORDS,
        schedule: None,
        records_max: bytes.div_ceil(u64::from(RECORD_BYTES)),
        until: u64::MAX - clock.now(),
        run: new_run(&clock),
    };
    if bytes == 0 {
        return Ok(Acknowledged { run: load.run, ..Acknowledged::default() });
    }
    let mut engine = Engine::new(clock, limits(limit), Watch::new(None, false)?)?;
    engine.producer = Some(Producer::new(load, clock, resolve(bootstrap)?, limit)?);
    let (engine, _) = engine.run()?;
    Ok(engine.producer.context("the load has no producer")?.acknowledged)
}

impl Kept {
    /// Proves that all is there, and nothing of it twice. `next` are the offsets of the record that each partition
    /// acknowledged first after its restart.
    ///
    /// # Errors
    /// The first partition that lost or repeats a record, and whatever ends a run early.
    pub fn prove(&self, bootstrap: &str, next: &BTreeMap<i32, i64>, limit: Duration) -> Result<Value> {
        for (partition, first) in &self.firsts {
            let filled = self.filled.partitions.get(partition).map_or(0, Numbers::count);
            let end = i64::try_from(filled)?.saturating_add(*first).saturating_add(1);
            match next.get(partition) {
                Some(next) if *next >= end => {}
                Some(next) => bail!(
                    "partition {partition} acknowledged all up to offset {end} before it was killed, and goes on at {next}"
                ),
                None => bail!("partition {partition} acknowledged nothing after the restart"),
            }
        }
        let target = Target {
            bootstrap: bootstrap.to_owned(),
            timeout: limit.as_secs_f64(),
            topic: self.topic.clone(),
            hdr: None,
        };
        let found = topic(&target, None)?;
        let count = found.starts.len();
        if count != self.firsts.len() {
            bail!("topic {} had {} partitions and has {count}", self.topic, self.firsts.len());
        }
        let ends = found.starts.iter().zip(&found.ends).zip(0..);
        let partitions: Vec<_> =
            ends.map(|((start, end), partition)| (partition, *start, Some(*end))).collect();
        for (partition, start, _) in &partitions {
            if self.firsts.get(partition).is_none_or(|first| first < start) {
                bail!("partition {partition} begins at offset {start}, behind a record that it acknowledged");
            }
        }
        let reading = Reading {
            topic: self.topic.clone(),
            connections: CONNECTIONS.min(count.max(1)),
            partitions,
            bytes_max: 50 << 20,
            partition_bytes_max: 1 << 20,
            bytes_min: 1,
            wait_ms_max: 500,
            any_content: false,
        };
        let clock = Clock::start();
        let mut engine = Engine::new(clock, limits(limit), Watch::new(None, false)?)?;
        engine.consumer = Some(Consumer::new(reading, clock, found.address, limit)?);
        engine.tally = Some(Tally::new(self.filled.run, self.filled.ordered));
        let (engine, _) = engine.run()?;
        let read = engine.consumer.as_ref().map_or(0, |consumer| consumer.records);
        let tally = engine.tally.context("the reader has no tally")?;
        let verified = tally.finish(&self.filled)?;
        Ok(json!({"records_read": read, "filled": verified.to_json()}))
    }
}

fn limits(limit: Duration) -> Limits {
    Limits { warmup_ns: 0, until_ns: None, records: None, spin_ns: 0, silence_ns: saturated_nanos(limit) }
}

//! What a broker knows of its logs: where each begins and ends, its epochs and its producers. After a clean stop the next
//! broker knows the same (T-2, T-4), whichever it is. Knows no particular broker. `interop.rs` takes it in by path.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bench_harness::client::{Client, End, error_name};
use protocol::messages::offset_for_leader_epoch::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use protocol::messages::*;

const LIMIT: Duration = Duration::from_secs(120);

/// Unknown, without a leader, led elsewhere, loading: each passes soon after a start.
const PASSING: [i16; 4] = [3, 5, 6, 14];

/// More epochs than any test comes to.
const EPOCHS_MAX: i32 = 1000;

/// Id, then epoch, last sequence, last timestamp, and where a transaction is open.
type Producers = BTreeMap<i64, (i32, i32, i64, i64)>;

/// One log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LogState {
    start: i64,
    end: i64,
    /// First offset behind each epoch.
    epochs: BTreeMap<i32, i64>,
    producers: Producers,
}

/// All logs of some topics.
#[derive(Clone, Debug)]
pub struct State(BTreeMap<(String, i32), LogState>);

impl State {
    /// What a broker says of topics, each with its number of partitions.
    pub fn ask<'a>(at: &str, topics: impl Iterator<Item = (&'a str, i32)>) -> Result<Self, String> {
        let mut client = Client::connect(at, LIMIT).map_err(|error| error.to_string())?;
        let mut logs = BTreeMap::new();
        for (topic, partitions) in topics {
            let mut ends = |end| -> Result<Vec<i64>, String> {
                let ends = client.offsets(topic, partitions, end).map_err(|error| error.to_string())?;
                ends.ok_or_else(|| format!("{topic} is not served"))
            };
            let (starts, ends) = (ends(End::Start)?, ends(End::End)?);
            for ((partition, start), end) in (0..partitions).zip(starts).zip(ends) {
                let epochs = epochs(&mut client, topic, partition)?;
                let producers = producers(&mut client, topic, partition)?;
                logs.insert((topic.to_owned(), partition), LogState { start, end, epochs, producers });
            }
        }
        Ok(Self(logs))
    }

    /// Whether the next broker knows the same. It may lead in a new epoch, in which nothing has been written, and a log
    /// whose retention goes on may begin later.
    pub fn expect_same(&self, next: &Self, is_retained: impl Fn(&str) -> bool) -> Result<(), String> {
        for (key, before) in &self.0 {
            let mut after = next.0.get(key).cloned().unwrap_or_default();
            let known = before.epochs.last_key_value().map_or(-1, |(epoch, _)| *epoch);
            after.epochs.retain(|epoch, end| *epoch <= known || *end != before.end);
            let mut before = before.clone();
            if is_retained(&key.0) && after.start >= before.start {
                before.start = after.start;
                before.epochs.retain(|_, end| *end > after.start);
                after.epochs.retain(|_, end| *end > after.start);
            }
            if after != before {
                return Err(format!("{key:?} was {before:?}, and is {after:?} for who started next"));
            }
        }
        Ok(())
    }
}

/// Asks until the answer stays; `once` answers an error code and what it found.
fn ask<T>(once: &mut dyn FnMut() -> Result<(i16, T), String>) -> Result<T, String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match once()? {
            (0, found) => return Ok(found),
            (code, _) if PASSING.contains(&code) && Instant::now() < deadline => {}
            (code, _) => return Err(error_name(code)),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where each epoch ends.
fn epochs(client: &mut Client, topic: &str, partition: i32) -> Result<BTreeMap<i32, i64>, String> {
    let mut ends = BTreeMap::new();
    for leader_epoch in 0..EPOCHS_MAX {
        let part = OffsetForLeaderPartition { partition, leader_epoch, current_leader_epoch: -1 };
        let topics = vec![OffsetForLeaderTopic { topic: topic.into(), partitions: vec![part] }];
        let request = OffsetForLeaderEpochRequest { topics, replica_id: -1 };
        let (epoch, end) = ask(&mut || {
            let reply = client.call(4, &request).map_err(|error| error.to_string())?;
            let answer: OffsetForLeaderEpochResponse<'_> =
                reply.message().map_err(|error| error.to_string())?;
            let told = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
            let told = told.ok_or_else(|| "nothing is told".to_owned())?;
            Ok((told.error_code, (told.leader_epoch, told.end_offset)))
        })
        .map_err(|why| format!("the end of epoch {leader_epoch} of {topic}-{partition}: {why}"))?;
        // Above the newest one nothing is known.
        if end == -1 {
            break;
        }
        if epoch >= 0 {
            ends.insert(epoch, end);
        }
    }
    Ok(ends)
}

fn producers(client: &mut Client, topic: &str, partition: i32) -> Result<Producers, String> {
    let topics = vec![TopicRequest { name: topic.into(), partition_indexes: vec![partition] }];
    let request = DescribeProducersRequest { topics };
    ask(&mut || {
        let reply = client.call(0, &request).map_err(|error| error.to_string())?;
        let answer: DescribeProducersResponse<'_> = reply.message().map_err(|error| error.to_string())?;
        let part = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
        let part = part.ok_or_else(|| "nothing is told".to_owned())?;
        let state = |one: &ProducerState| {
            (one.producer_epoch, one.last_sequence, one.last_timestamp, one.current_txn_start_offset)
        };
        let found = part.active_producers.elements().iter().map(|one| (one.producer_id, state(one)));
        Ok((part.error_code, found.collect()))
    })
    .map_err(|why| format!("the producers of {topic}-{partition}: {why}"))
}

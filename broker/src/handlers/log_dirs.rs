//! DescribeLogDirs (35): all log dirs of this broker, those that have failed too, and what is in them, from all shards
//! (protocol.md 3.9, security-admin.md 7.6).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use protocol::error::ErrorCode;
use protocol::messages::{
    DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
    DescribeLogDirsTopic,
};
use protocol::types::TopicName;
use storage::io::{DirDone, DirOp};

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::{Answer, Request};
use crate::partition::ask::{LogSize, PartitionAnswer, PartitionAsk};
use crate::shard::pace::Pace;
use crate::shard::{ShardId, ShardRuntime};

type Topics = BTreeMap<TopicName, Vec<DescribeLogDirsPartition>>;

/// Handles one request.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message: DescribeLogDirsRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let mut pace = Pace::new(&wiring.runtime);
    let wanted = match &message.topics {
        Some(topics) => {
            let mut wanted = BTreeSet::new();
            for topic in topics {
                pace.step().await;
                for partition in &topic.partitions {
                    wanted.insert((&*topic.topic, *partition));
                    pace.step().await;
                }
            }
            Some(wanted)
        }
        None => None,
    };
    let mut dirs: BTreeMap<Arc<Path>, Topics> = BTreeMap::new();
    for size in sizes(wiring).await {
        pace.step().await;
        let (name, partition_index) = (size.partition.topic, size.partition.partition);
        if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&(name.get(), partition_index))) {
            continue;
        }
        dirs.entry(size.log_dir).or_default().entry(name).or_default().push(DescribeLogDirsPartition {
            partition_index,
            partition_size: i64::try_from(size.bytes).unwrap_or(i64::MAX),
            offset_lag: size.offset_lag,
            is_future_key: size.is_future,
        });
    }
    let mut results = Vec::new();
    for dir in wiring.settings.log_dirs.paths() {
        let topics = dirs.remove(dir).unwrap_or_default();
        results.push(if wiring.settings.log_dirs.is_offline(dir) {
            failed(dir)
        } else {
            describe(wiring, dir, topics, &mut pace).await
        });
    }
    reply(&request, &DescribeLogDirsResponse { throttle_time_ms: 0, error_code: 0, results })
}

async fn describe<R: ShardRuntime>(
    wiring: &Wiring<R>,
    dir: &Path,
    topics: Topics,
    pace: &mut Pace<'_, R>,
) -> DescribeLogDirsResult<'static> {
    let topics = topics.into_iter().map(|(name, mut partitions)| {
        partitions.sort_by_key(|partition| (partition.partition_index, partition.is_future_key));
        DescribeLogDirsTopic { name: name.get().to_owned().into(), partitions }
    });
    let topics = pace.collect(topics).await;
    let (total_bytes, usable_bytes) = space(wiring, dir).await;
    DescribeLogDirsResult { topics, total_bytes, usable_bytes, ..empty(dir) }
}

fn failed(dir: &Path) -> DescribeLogDirsResult<'static> {
    DescribeLogDirsResult { error_code: ErrorCode::KafkaStorageError.get(), ..empty(dir) }
}

fn empty(dir: &Path) -> DescribeLogDirsResult<'static> {
    DescribeLogDirsResult {
        error_code: ErrorCode::None.get(),
        log_dir: dir.to_string_lossy().into_owned().into(),
        topics: Vec::new(),
        total_bytes: -1,
        usable_bytes: -1,
    }
}

async fn sizes<R: ShardRuntime>(wiring: &Wiring<R>) -> Vec<LogSize> {
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let asked = (0..wiring.runtime.shard_count())
        .map(|shard| wiring.partitions.ask(ShardId::new(shard), by, PartitionAsk::DescribeLogs));
    let sizes = |answer| match answer {
        Ok(PartitionAnswer::Logs(sizes)) => sizes,
        Ok(_) | Err(_) => Vec::new(),
    };
    join_all(asked).await.into_iter().flat_map(sizes).collect()
}

/// Bytes of the volume, and those free in it; -1 when not known.
async fn space<R: ShardRuntime>(wiring: &Wiring<R>, dir: &Path) -> (i64, i64) {
    let bytes = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
    match wiring.runtime.dir(DirOp::Space(dir.to_owned())).await {
        Ok(DirDone::Space { total, usable }) => (bytes(total), bytes(usable)),
        Ok(_) | Err(_) => (-1, -1),
    }
}

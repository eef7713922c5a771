//! What the tests of a whole log share: a simulated machine, batches, and reading everything back.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::BytesMut;
use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::builder::BatchBuilder;
use protocol::types::{
    LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs, TopicName, TopicPartition,
};
use storage::config::LogConfig;
use storage::io::sim::{SimDisk, SimRuntime};
use storage::io::{DirOp, Runtime, Span};
use storage::log::{AppendError, Appended, LoadError, Log, OpenOptions, ReadError, ReadRequest, TailBudget};
use storage::producer_state::{AppendOrigin, Verification};

pub const DIR: &str = "/data/t-0";
pub const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);
pub const CLIENT: AppendOrigin = AppendOrigin::Client(Verification::NotRequired);

pub type SimLog = Rc<Log<SimRuntime>>;

/// First offset, last offset and payload of a batch as the log has it.
pub type Seen = (i64, i64, Vec<u8>);

/// A machine whose log dir exists durably.
pub fn machine(seed: u64) -> SimRuntime {
    let runtime = SimRuntime::on(seed, SimDisk::new());
    let inside = runtime.clone();
    runtime.block_on(async move {
        inside.dir(DirOp::CreateAll("/data".into())).await.unwrap();
        inside.dir(DirOp::Sync("/".into())).await.unwrap();
    });
    runtime
}

pub fn file(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

pub fn small_config() -> LogConfig {
    LogConfig {
        segment_bytes: 700,
        index_interval_bytes: 150,
        segment_ms: i64::MAX,
        retention_ms: -1,
        ..LogConfig::default()
    }
}

pub fn options(config: LogConfig) -> OpenOptions {
    OpenOptions::new(config, TailBudget::new(4096))
}

pub async fn open(runtime: &SimRuntime, options: OpenOptions) -> Result<SimLog, LoadError> {
    let partition = TopicPartition::new(TopicName::new("t"), 0);
    Log::open(runtime.clone(), Path::new(DIR), partition, options).await
}

/// A batch of `count` records, the first of which carries `tag`.
pub fn batch(count: usize, tag: u64, producer: Option<(i64, i32)>) -> BytesMut {
    let mut builder = BatchBuilder::new();
    if let Some((id, sequence)) = producer {
        builder = builder.producer(ProducerId::new(id), ProducerEpoch::new(0), sequence);
    }
    for at in 0..count {
        let value = format!("{tag}-{at}-{}", "x".repeat(usize::try_from(tag % 90).unwrap()));
        let time = TimestampMs::new(1_000_000 + i64::try_from(tag * 7 % 1000).unwrap());
        builder.push(time, None, Some(value.as_bytes()), &[]);
    }
    builder.build().unwrap()
}

pub fn payload(batch: &[u8]) -> Vec<u8> {
    BatchView::parse(batch).unwrap().payload().to_vec()
}

pub async fn append(log: &SimLog, batch: BytesMut, epoch: i32) -> Result<Appended, AppendError> {
    let info = BatchView::parse(&batch).unwrap().info();
    let epoch = LeaderEpoch::new(epoch);
    if log.must_prepare(&info, epoch, NOW) {
        log.prepare(&info, CLIENT, epoch, NOW).await?;
    }
    log.append(batch, &info, CLIENT, epoch, NOW)
}

/// Every batch from the log start on; `Err` if the log reports damage.
pub async fn read_all(log: &SimLog) -> Result<Vec<Seen>, ReadError> {
    let mut seen = Vec::new();
    let mut from = log.log_start_offset();
    loop {
        let upper_bound = Offset::new(i64::MAX);
        let read =
            log.read(ReadRequest { from, max_bytes: 1 << 20, upper_bound, min_one_batch: true }).await?;
        if read.bytes == 0 {
            return Ok(seen);
        }
        let mut all = Vec::new();
        for span in &read.spans {
            match span {
                Span::Memory(bytes) => all.extend_from_slice(bytes),
                Span::File { .. } => panic!("a simulated file has no descriptor"),
            }
        }
        let before = from;
        for view in BatchIter::new(&all) {
            let Ok(view) = view else { break };
            if !view.crc_is_valid() {
                break;
            }
            seen.push((view.base_offset().get(), view.last_offset().get(), view.payload().to_vec()));
            from = view.next_offset();
        }
        if from <= before {
            return Ok(seen);
        }
    }
}

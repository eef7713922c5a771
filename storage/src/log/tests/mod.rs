//! Tests of the log over a simulated disk: a file per subject, and here what they share.

mod append;
mod compaction;
mod compaction_bounds;
mod compaction_starts;
mod durability;
mod faults;
mod full;
mod idle;
mod mend;
mod mirror;
mod read;
mod recovery;
mod roll;
mod start_stop;
mod transactions;
mod truncation;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::BytesMut;
use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::builder::BatchBuilder;
use protocol::types::{
    LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs, TopicName, TopicPartition,
};

use super::*;
use crate::io::Span;
use crate::io::sim::{SimDisk, SimRuntime};
use crate::producer_state::{AppendOrigin, Verification};

pub(super) const DIR: &str = "/data/t-0";
pub(super) const EPOCH: LeaderEpoch = LeaderEpoch::new(3);
/// What the simulated wall clock shows at the start.
pub(super) const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);
pub(super) const CLIENT: AppendOrigin = AppendOrigin::Client(Verification::NotRequired);

pub(super) type SimLog = Rc<Log<SimRuntime>>;

pub(super) fn offset(raw: i64) -> Offset {
    Offset::new(raw)
}

pub(super) fn partition() -> TopicPartition {
    TopicPartition::new(TopicName::new("t"), 0)
}

pub(super) fn options(config: LogConfig) -> OpenOptions {
    OpenOptions::new(config, TailBudget::new(1 << 20))
}

pub(super) fn file(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

pub(super) fn try_open(runtime: &SimRuntime, options: OpenOptions) -> Result<SimLog, LoadError> {
    let for_log = runtime.clone();
    runtime.block_on(async move { Log::open(for_log, Path::new(DIR), partition(), options).await })
}

pub(super) fn open(runtime: &SimRuntime, options: OpenOptions) -> SimLog {
    try_open(runtime, options).expect("the log opens")
}

/// A fresh disk with an empty log dir.
pub(super) fn machine() -> SimRuntime {
    let runtime = SimRuntime::new(7);
    let inside = runtime.clone();
    runtime.block_on(async move {
        inside.dir(crate::io::DirOp::CreateAll("/data".into())).await.unwrap();
        inside.dir(crate::io::DirOp::Sync("/".into())).await.unwrap();
    });
    runtime
}

/// A fresh disk and a fresh log on it.
pub(super) fn fresh(config: LogConfig) -> (SimRuntime, SimLog) {
    let runtime = machine();
    let log = open(&runtime, options(config));
    (runtime, log)
}

/// A batch as a client sends it: `count` records of `value_bytes`, timestamps from `time` upwards.
pub(super) fn batch(count: usize, value_bytes: usize, time: i64) -> BytesMut {
    build(BatchBuilder::new(), count, value_bytes, time)
}

pub(super) fn build(mut builder: BatchBuilder, count: usize, value_bytes: usize, time: i64) -> BytesMut {
    let value = vec![b'v'; value_bytes];
    for at in 0..count {
        let time = time + i64::try_from(at).unwrap();
        builder.push(TimestampMs::new(time), None, Some(&value), &[]);
    }
    builder.build().expect("the batch fits")
}

pub(super) fn idempotent(id: i64, epoch: i16, sequence: i32, count: usize) -> BytesMut {
    let builder = BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(epoch), sequence);
    build(builder, count, 10, NOW.get())
}

/// Prepares as needed and appends.
pub(super) fn try_append(
    runtime: &SimRuntime,
    log: &SimLog,
    batch: BytesMut,
    origin: AppendOrigin,
) -> Result<Appended, AppendError> {
    let info = BatchView::parse(&batch).expect("a batch").info();
    let epoch = if origin == AppendOrigin::Replication { info.partition_leader_epoch } else { EPOCH };
    let log = log.clone();
    runtime.block_on(async move {
        if log.must_prepare(&info, epoch, NOW) {
            log.prepare(&info, origin, epoch, NOW).await?;
        }
        log.append(batch, &info, origin, epoch, NOW)
    })
}

pub(super) fn append(runtime: &SimRuntime, log: &SimLog, batch: BytesMut) -> Appended {
    try_append(runtime, log, batch, CLIENT).expect("the log takes the batch")
}

/// Waits until everything is written.
pub(super) fn settle(runtime: &SimRuntime, log: &SimLog) {
    let log = log.clone();
    runtime.block_on(async move { log.until_written(log.log_end_offset()).await }).expect("it is written");
}

pub(super) fn run<T: 'static, F: Future<Output = T> + 'static>(
    runtime: &SimRuntime,
    log: &SimLog,
    work: impl FnOnce(SimLog) -> F,
) -> T {
    runtime.block_on(work(log.clone()))
}

pub(super) fn try_read(
    runtime: &SimRuntime,
    log: &SimLog,
    from: i64,
    max_bytes: usize,
    min_one_batch: bool,
) -> Result<LogRead, ReadError> {
    let request =
        ReadRequest { from: offset(from), max_bytes, upper_bound: log.log_end_offset(), min_one_batch };
    run(runtime, log, |log| async move { log.read(request).await })
}

pub(super) fn content(read: &LogRead) -> Vec<u8> {
    let mut all = Vec::new();
    for span in &read.spans {
        match span {
            Span::Memory(bytes) => all.extend_from_slice(bytes),
            Span::File { .. } => panic!("a simulated file has no descriptor"),
        }
    }
    assert_eq!(all.len(), read.bytes);
    all
}

/// Base offset, last offset and record count of every batch from `from` on, across segments.
pub(super) fn read_all(runtime: &SimRuntime, log: &SimLog, from: i64) -> Vec<(i64, i64, i32)> {
    let mut seen = Vec::new();
    let mut next = from;
    loop {
        let read = try_read(runtime, log, next, 1 << 20, true).expect("the log is readable");
        if read.bytes == 0 {
            return seen;
        }
        let all = content(&read);
        for view in BatchIter::new(&all) {
            let view = view.expect("a batch");
            assert!(view.crc_is_valid());
            seen.push((view.base_offset().get(), view.last_offset().get(), view.record_count()));
            next = view.next_offset().get();
        }
    }
}

/// The machine dies: what was not synced is gone as `mode` says, and the log is opened again.
pub(super) fn crash_and_open(
    runtime: &SimRuntime,
    mode: crate::io::sim::Crash,
    options: OpenOptions,
) -> (SimRuntime, SimLog) {
    let disk: SimDisk = runtime.disk().crash(mode);
    runtime.kill();
    let after = SimRuntime::on(8, disk);
    let log = open(&after, options);
    (after, log)
}

/// Closes and opens again with what a clean stop leaves in the checkpoints.
pub(super) fn reopen_clean(runtime: &SimRuntime, log: SimLog, config: LogConfig) -> SimLog {
    run(runtime, &log, |log| async move { log.close().await }).expect("the log closes");
    let mut options = options(config);
    options.clean = true;
    options.recovery_point = log.recovery_point();
    options.log_start_offset = log.log_start_offset();
    drop(log);
    open(runtime, options)
}

/// Every index entry obeys S-14 and S-15 against the bytes of the log.
pub(super) fn check_indexes(runtime: &SimRuntime, log: &SimLog) {
    settle(runtime, log);
    for segment in log.all_segments() {
        let (for_load, loading) = (log.clone(), segment.clone());
        runtime
            .block_on(async move { loading.load_indexes(&for_load.runtime, &for_load.config()).await })
            .expect("the indexes load");
        let bytes =
            runtime.disk().content(segment.path(crate::names::SegmentFileKind::Log)).expect("a log file");
        let mut position = 0;
        let mut batches = Vec::new();
        for view in BatchIter::new(&bytes) {
            let view = view.expect("a batch");
            batches.push((position, view.last_offset(), view.max_timestamp()));
            position += u64::try_from(view.size_in_bytes()).unwrap();
        }
        assert_eq!(position, segment.size.get(), "the file holds whole batches only");
        segment.with(|all| {
            for entry in all.offsets.entries() {
                assert!(batches.iter().any(|(at, last, _)| *at == entry.position && *last == entry.offset));
            }
            for entry in all.times.entries() {
                let holder =
                    batches.iter().find(|(_, last, _)| *last == entry.offset).expect("a batch ends there");
                assert_eq!(holder.2, entry.timestamp);
                assert!(
                    batches.iter().all(|(_, last, time)| *last > entry.offset || *time <= entry.timestamp)
                );
            }
        });
    }
}

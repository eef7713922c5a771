//! The log over the real ring and the real disk: the same calls as over the simulation, and reads by descriptor.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "looks at the files from outside")]

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::builder::BatchBuilder;
use protocol::types::{LeaderEpoch, MonoTime, Offset, TimestampMs, TopicId, TopicName, TopicPartition};
use storage::config::{Durability, LogConfig};
use storage::io::glommio::GlommioRuntime;
use storage::io::{Queue, Runtime, Span};
use storage::log::{Log, LogEvent, LogRead, OpenOptions, ReadRequest, TailBudget};
use storage::producer_state::{AppendOrigin, Verification};

type RealLog = Rc<Log<GlommioRuntime>>;

const EPOCH: LeaderEpoch = LeaderEpoch::new(1);

async fn append(log: &RealLog, bytes: usize) -> Offset {
    let mut builder = BatchBuilder::new();
    builder.push(TimestampMs::new(1000), None, Some(&vec![7; bytes]), &[]);
    let batch = builder.build().unwrap();
    let info = BatchView::parse(&batch).unwrap().info();
    let now = TimestampMs::new(2000);
    let origin = AppendOrigin::Client(Verification::NotRequired);
    if log.must_prepare(&info, EPOCH, now) {
        log.prepare(&info, origin, EPOCH, now).await.unwrap();
    }
    let appended = log.append(batch, &info, origin, EPOCH, now).unwrap();
    log.until_written(appended.last_offset.plus(1)).await.unwrap();
    appended.first_offset
}

fn bytes_of(read: &LogRead) -> Vec<u8> {
    let mut all = Vec::new();
    for span in &read.spans {
        match span {
            Span::Memory(bytes) => all.extend_from_slice(bytes),
            Span::File { fd, at, len } => {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let content = std::fs::read(path).unwrap();
                let start = usize::try_from(*at).unwrap();
                all.extend_from_slice(content.get(start..start + usize::try_from(*len).unwrap()).unwrap());
            }
        }
    }
    all
}

async fn count_batches(log: &RealLog) -> usize {
    let (mut from, mut count) = (log.log_start_offset(), 0);
    loop {
        let upper_bound = log.written_offset();
        let read = log
            .read(ReadRequest { from, max_bytes: 1 << 20, upper_bound, min_one_batch: true })
            .await
            .unwrap();
        if read.bytes == 0 {
            return count;
        }
        for view in BatchIter::new(&bytes_of(&read)) {
            let view = view.unwrap();
            assert!(view.crc_is_valid());
            from = view.next_offset();
            count += 1;
        }
    }
}

async fn open(runtime: &GlommioRuntime, dir: &Path, options: OpenOptions) -> RealLog {
    let partition = TopicPartition::new(TopicName::new("t"), 0);
    Log::open(runtime.clone(), dir, partition, options).await.unwrap()
}

async fn life_of_a_log(runtime: &GlommioRuntime, dir: &Path) {
    let config = LogConfig { segment_bytes: 10_000, index_interval_bytes: 1000, ..LogConfig::default() };
    let budget = TailBudget::new(1 << 20);
    let mut options = OpenOptions::new(config, budget.clone());
    options.topic_id = Some(TopicId::new([3; 16]));
    let log = open(runtime, dir, options.clone()).await;
    for at in 0..50 {
        assert_eq!(append(&log, 700).await, Offset::new(at));
    }
    assert!(log.segment_count() > 3);
    assert_eq!(count_batches(&log).await, 50);
    budget.evict_older(MonoTime::new(u64::MAX));
    assert_eq!(count_batches(&log).await, 50, "by descriptor, without the tail in memory");
    log.flush().await.unwrap();
    assert_eq!(log.recovery_point(), Offset::new(50));
    log.truncate_to(Offset::new(30)).await.unwrap();
    append(&log, 10).await;
    // As after a kill: what is open is simply gone, and opened again.
    drop(log);
    options.recovery_point = Offset::new(20);
    let log = open(runtime, dir, options.clone()).await;
    assert_eq!(log.log_end_offset(), Offset::new(31));
    assert_eq!(count_batches(&log).await, 31);
    log.close().await.unwrap();
    (options.clean, options.recovery_point) = (true, Offset::new(31));
    let log = open(runtime, dir, options).await;
    assert_eq!(append(&log, 10).await, Offset::new(31));
    assert_eq!(count_batches(&log).await, 32);
    log.close().await.unwrap();
}

/// In strict mode: what is written becomes safe by syncs beside the shard, which goes on meanwhile.
async fn life_of_a_strict_log(runtime: &GlommioRuntime, dir: &Path) {
    let config = LogConfig { durability: Durability::Strict, segment_bytes: 20_000, ..LogConfig::default() };
    let log = open(runtime, dir, OpenOptions::new(config, TailBudget::new(1 << 20))).await;
    let (syncs, durable) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(Offset::ZERO)));
    let (counted, told) = (syncs.clone(), durable.clone());
    log.set_listener(move |event| match event {
        LogEvent::Synced { .. } => counted.set(counted.get() + 1),
        LogEvent::Durable(offset) => told.set(offset),
        _ => {}
    });
    for at in 0..100 {
        assert_eq!(append(&log, 700).await, Offset::new(at));
        assert!(log.safe_offset() <= log.written_offset());
    }
    let deadline = runtime.now().plus_ms(60_000);
    while log.safe_offset() < log.log_end_offset() {
        assert!(runtime.now() < deadline, "safe up to {}", log.safe_offset());
        runtime.turn().await;
    }
    assert_eq!((durable.get(), log.synced_offset()), (Offset::new(100), Offset::new(100)));
    assert!(syncs.get() > 0 && log.segment_count() > 2);
    assert_eq!(count_batches(&log).await, 100);
    log.close().await.unwrap();
}

/// Runs on an executor as a shard has it.
fn on_a_shard<F: Future<Output = ()> + 'static>(life: impl FnOnce(GlommioRuntime) -> F + Send + 'static) {
    LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(1 << 20)
        .ring_depth(128)
        .preempt_timer(Duration::from_millis(10))
        .blocking_thread_pool_placement(PoolPlacement::Unbound(2))
        .spawn(move || async move {
            let runtime = GlommioRuntime::new();
            // As on every shard: the bound on a park with tasks to run (glommio.md b1).
            let tick = runtime.clone();
            let ticker = runtime.spawn(Queue::Background, async move {
                loop {
                    tick.sleep_until(tick.now().plus_ms(20)).await;
                }
            });
            life(runtime.clone()).await;
            drop(ticker);
            runtime.drain().await;
        })
        .expect("an executor starts")
        .join()
        .expect("the log lives");
}

#[test]
fn a_log_lives_on_a_real_disk() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("t-0");
    on_a_shard(move |runtime| async move { life_of_a_log(&runtime, &dir).await });
}

#[test]
fn a_strict_log_lives_on_a_real_disk() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("t-0");
    on_a_shard(move |runtime| async move { life_of_a_strict_log(&runtime, &dir).await });
}

//! The log against a plain list of batches: whatever is done to it, what it holds is what the list says; after a crash it
//! holds a prefix of the list that reaches at least as far as was flushed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use bytes::BytesMut;
use proptest::prelude::*;
use protocol::types::Offset;
use storage::io::sim::{Crash, SimRuntime};

use common::{Seen, SimLog, append, batch, machine, open, options, payload, read_all, small_config};

#[derive(Clone, Debug)]
enum Step {
    Append {
        count: usize,
        tag: u64,
    },
    Settle,
    Flush,
    NewEpoch,
    /// Per cent of the log.
    Truncate(u8),
    AdvanceStart(u8),
    Retain,
    ReopenClean,
    DiskFull,
    Crash(CrashKind),
}

#[derive(Clone, Copy, Debug)]
enum CrashKind {
    /// `true`: the next start knows that only the process died.
    Kill(bool),
    PowerCut,
    Torn(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (1..4_usize, 0..10_000_u64).prop_map(|(count, tag)| Step::Append { count, tag }),
        2 => Just(Step::Settle),
        2 => Just(Step::Flush),
        1 => Just(Step::NewEpoch),
        1 => (0..=100_u8).prop_map(Step::Truncate),
        1 => (0..=100_u8).prop_map(Step::AdvanceStart),
        1 => Just(Step::Retain),
        1 => Just(Step::ReopenClean),
        1 => Just(Step::DiskFull),
        1 => any::<bool>().prop_map(|vouched| Step::Crash(CrashKind::Kill(vouched))),
        1 => Just(Step::Crash(CrashKind::PowerCut)),
        1 => any::<u64>().prop_map(|seed| Step::Crash(CrashKind::Torn(seed))),
    ]
}

/// What the next start knows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Clean,
    Killed,
    Unclean,
}

struct Model {
    batches: Vec<Seen>,
    start: i64,
    end: i64,
    /// Everything below survives a power cut.
    flushed: i64,
    /// Everything below survives a kill.
    written: i64,
    epoch: i32,
}

impl Model {
    fn cut(&mut self, to: i64) {
        self.batches.retain(|(_, last, _)| *last < to);
        (self.end, self.start) = (to, self.start.min(to));
        (self.flushed, self.written) = (self.flushed.min(to), self.written.min(to));
    }

    fn visible(&self) -> Vec<Seen> {
        self.batches.iter().filter(|(_, last, _)| *last >= self.start).cloned().collect()
    }
}

struct World {
    runtime: SimRuntime,
    log: SimLog,
    model: Model,
    crashes: u64,
}

impl World {
    fn run<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(SimLog) -> F) -> T {
        self.runtime.block_on(work(self.log.clone()))
    }

    fn at(&self, percent: u8) -> i64 {
        self.model.start + (self.model.end - self.model.start) * i64::from(percent) / 100
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Append { count, tag } => self.append(count, tag),
            Step::Settle => {
                self.run(|log| async move { log.until_written(log.log_end_offset()).await }).unwrap();
                self.model.written = self.model.end;
            }
            Step::Flush => {
                self.run(|log| async move { log.flush().await }).unwrap();
                (self.model.written, self.model.flushed) = (self.model.end, self.model.end);
            }
            Step::NewEpoch => self.model.epoch += 1,
            Step::Truncate(percent) => {
                let to = self.at(percent);
                self.run(move |log| async move { log.truncate_to(Offset::new(to)).await }).unwrap();
                self.model.cut(to);
            }
            Step::AdvanceStart(percent) => {
                self.step(&Step::Settle);
                let to = self.at(percent);
                self.run(move |log| async move { log.advance_log_start(Offset::new(to)).await }).unwrap();
                self.model.start = to;
            }
            Step::Retain => {
                self.step(&Step::Settle);
                let high_watermark = Offset::new(self.model.end);
                self.run(move |log| async move { log.retain(common::NOW, high_watermark).await }).unwrap();
            }
            Step::ReopenClean => self.reopen_clean(),
            Step::DiskFull => self.fill_disk(),
            Step::Crash(kind) => self.crash(kind),
        }
    }

    fn append(&mut self, count: usize, tag: u64) {
        let bytes: BytesMut = batch(count, tag, None);
        let payload = payload(&bytes);
        let epoch = self.model.epoch;
        let appended = self.run(move |log| async move { append(&log, bytes, epoch).await }).unwrap();
        assert_eq!(appended.first_offset.get(), self.model.end);
        self.model.batches.push((appended.first_offset.get(), appended.last_offset.get(), payload));
        self.model.end = appended.last_offset.get() + 1;
    }

    /// Appends in vain, then there is space again.
    fn fill_disk(&mut self) {
        self.step(&Step::Settle);
        self.runtime.disk().set_capacity_bytes(Some(1));
        let (bytes, epoch) = (batch(2, 77, None), self.model.epoch);
        let appended = self.run(move |log| async move {
            append(&log, bytes, epoch).await?;
            Ok::<_, storage::log::AppendError>(log.until_written(log.log_end_offset()).await?)
        });
        assert_eq!(appended, Err(storage::log::AppendError::Log(storage::log::LogError::Full)));
        self.runtime.run_until_idle();
        assert_eq!(self.log.log_end_offset().get(), self.model.end);
        self.runtime.disk().heal();
        self.runtime.disk().set_short_write_percent(30);
        self.runtime.advance_ms(1500);
    }

    fn reopen_clean(&mut self) {
        self.run(|log| async move { log.close().await }).unwrap();
        self.open_after(self.runtime.clone(), Left::Clean);
        // A log that was cut inside a batch ends at the last whole one again (storage.md 4.5), unless an empty segment
        // begins behind it.
        let last = self.model.batches.last().map_or(0, |(_, last, _)| last + 1);
        let now = self.log.log_end_offset().get();
        assert!(
            (last.min(self.model.end)..=self.model.end).contains(&now),
            "{last} {now} {}",
            self.model.end
        );
        self.model.end = now;
        (self.model.written, self.model.flushed) = (self.model.end, self.model.end);
    }

    /// Opens with what the checkpoints of the dir would say.
    fn open_after(&mut self, runtime: SimRuntime, left: Left) {
        let mut options = options(small_config());
        options.recovery_point = self.log.recovery_point();
        options.log_start_offset = self.log.log_start_offset();
        (options.clean, options.vouched) = (left == Left::Clean, left == Left::Killed);
        let inside = runtime.clone();
        self.log = runtime.block_on(async move { open(&inside, options).await }).unwrap();
        self.runtime = runtime;
    }

    fn crash(&mut self, kind: CrashKind) {
        let (mode, kept) = match kind {
            CrashKind::Kill(_) => (Crash::KeepAll, self.model.written),
            CrashKind::PowerCut => (Crash::DropUnsynced, self.model.flushed),
            CrashKind::Torn(seed) => (Crash::Torn(seed), self.model.flushed),
        };
        let disk = self.runtime.disk().crash(mode);
        self.runtime.kill();
        self.crashes += 1;
        disk.set_write_now_percent(50);
        disk.set_read_now_percent(50);
        let left = match kind {
            CrashKind::Kill(true) => Left::Killed,
            CrashKind::Kill(false) | CrashKind::PowerCut | CrashKind::Torn(_) => Left::Unclean,
        };
        self.open_after(SimRuntime::on(self.crashes, disk), left);
        let end = self.log.log_end_offset().get();
        let whole = self.model.batches.iter().filter(|(_, last, _)| *last < kept).count();
        self.model.batches.retain(|(_, last, _)| *last < end);
        assert!(
            self.model.batches.len() >= whole,
            "{kind:?}: lost what was safe below {kept}, log ends at {end}"
        );
        (self.model.end, self.model.written) = (end, end);
        self.model.start = self.log.log_start_offset().get();
        self.model.flushed = self.model.flushed.min(end);
    }

    fn check(&mut self) {
        self.step(&Step::Settle);
        let seen = self.run(|log| async move { read_all(&log).await }).unwrap();
        let brief = |all: &[Seen]| all.iter().map(|(first, last, _)| (*first, *last)).collect::<Vec<_>>();
        assert_eq!(brief(&seen), brief(&self.model.visible()));
        assert!(seen == self.model.visible(), "the bytes differ");
        assert_eq!(self.log.log_start_offset().get(), self.model.start);
        assert_eq!(self.log.log_end_offset().get(), self.model.end);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_log_is_the_list(steps in proptest::collection::vec(step(), 1..60), seed in 0..1000_u64) {
        let runtime = machine(seed);
        runtime.disk().set_short_write_percent(30);
        runtime.disk().set_write_now_percent(50);
        runtime.disk().set_read_now_percent(50);
        let inside = runtime.clone();
        let log = runtime.block_on(async move { open(&inside, options(small_config())).await }).unwrap();
        let model = Model { batches: Vec::new(), start: 0, end: 0, flushed: 0, written: 0, epoch: 1 };
        let mut world = World { runtime, log, model, crashes: seed };
        for (at, step) in steps.iter().enumerate() {
            world.step(step);
            if at % 8 == 7 {
                world.check();
            }
        }
        world.check();
    }
}

//! Opens damaged directories: nothing panics, loops or takes memory by a claimed length (P-5), and whatever opens can be
//! read, appended to, closed and opened again. `ODRADEK_FUZZ_SECONDS` sets how long; `ODRADEK_FUZZ_SEED` where it begins.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use std::time::Duration;

use protocol::types::{Offset, TimestampMs};
use storage::io::sim::{Crash, SimDisk, SimRuntime};
use storage::io::{DirDone, DirOp, Runtime};

use common::{DIR, append, batch, file, machine, open, options, read_all, small_config};

/// A small generator of our own, so that a seed stays a bug report.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % below.max(1)
    }
}

/// A directory with several segments, producers, epochs, an aborted nothing: what a stopped broker leaves.
fn healthy() -> SimDisk {
    let runtime = machine(11);
    let inside = runtime.clone();
    runtime.block_on(async move {
        let log = open(&inside, options(small_config())).await.unwrap();
        for tag in 0..20_u64 {
            let sequence = i32::try_from(tag * 2).unwrap();
            let mut bytes = batch(2, tag * 13, Some((i64::try_from(tag % 2).unwrap(), sequence / 4 * 2)));
            if tag % 3 == 0 {
                bytes = batch(2, tag * 13, None);
            }
            let _ = append(&log, bytes, i32::try_from(tag / 5).unwrap()).await;
        }
        log.close().await.unwrap();
    });
    runtime.disk().crash(Crash::KeepAll)
}

fn names(runtime: &SimRuntime) -> Vec<String> {
    let inside = runtime.clone();
    let listed = runtime.block_on(async move { inside.dir(DirOp::List(DIR.into())).await }).unwrap();
    match listed {
        DirDone::Entries(entries) => entries.into_iter().map(|entry| entry.name).collect(),
        _ => Vec::new(),
    }
}

fn damage(runtime: &SimRuntime, dice: &mut Dice) {
    let names = names(runtime);
    let name = &names[dice.roll(names.len())];
    let mut content = runtime.disk().content(file(name)).unwrap();
    match dice.roll(7) {
        0 => content.truncate(dice.roll(content.len() + 1)),
        1 => {
            let at = dice.roll(content.len() + 1);
            let zeros = dice.roll(200);
            content.splice(at..at, std::iter::repeat_n(0, zeros));
        }
        2 => {
            let garbage = dice.roll(100);
            content.extend((0..garbage).map(|_| u8::try_from(dice.roll(256)).unwrap()));
        }
        3 => {
            let inside = runtime.clone();
            let path = file(name);
            runtime.block_on(async move { inside.dir(DirOp::Unlink(path)).await }).unwrap();
            return;
        }
        4 => {
            let suffix = ["deleted", "swap", "cleaned", "tmp"][dice.roll(4)];
            runtime.disk().put(file(&format!("{name}.{suffix}")), &content).unwrap();
            return;
        }
        5 if !content.is_empty() => {
            let at = dice.roll(content.len());
            let word = [0xff_u8, 0x7f, 0x00, 0x80][dice.roll(4)];
            for byte in content.iter_mut().skip(at).take(4) {
                *byte = word;
            }
        }
        _ if !content.is_empty() => {
            let at = dice.roll(content.len());
            content[at] ^= 1 << dice.roll(8);
        }
        _ => {}
    }
    runtime.disk().put(file(name), &content).unwrap();
}

fn one(healthy: &SimDisk, seed: u64) {
    let mut dice = Dice(seed);
    let runtime = SimRuntime::on(seed, healthy.crash(Crash::KeepAll));
    for _ in 0..=dice.roll(4) {
        damage(&runtime, &mut dice);
    }
    let clean = dice.roll(2) == 0;
    let recovery_point = i64::try_from(dice.roll(60)).unwrap();
    let log_start = i64::try_from(dice.roll(3) * dice.roll(30)).unwrap();
    let inside = runtime.clone();
    runtime.block_on(async move {
        let mut first = options(small_config());
        first.clean = clean;
        (first.recovery_point, first.log_start_offset) =
            (Offset::new(recovery_point), Offset::new(log_start));
        let Ok(log) = open(&inside, first).await else { return };
        // Damage below the recovery point may be reported; it must not be served as whole batches.
        let _ = read_all(&log).await;
        let end = log.log_end_offset();
        let _ = log.offset_for_timestamp(TimestampMs::new(1_000_500), end).await;
        let _ = log.max_timestamp_offset(end).await;
        let appended = append(&log, batch(2, 5, None), 9).await.expect("an open log takes appends");
        assert_eq!(appended.first_offset, end);
        let _ = log.retain(TimestampMs::new(9_000_000), end).await;
        log.truncate_to(end).await.expect("an open log can be truncated");
        append(&log, batch(1, 6, None), 9).await.expect("an open log takes appends");
        log.close().await.expect("an open log closes");
        let mut second = options(small_config());
        second.clean = true;
        (second.recovery_point, second.log_start_offset) = (log.recovery_point(), log.log_start_offset());
        let again = open(&inside, second).await.expect("a closed log opens");
        assert_eq!(again.log_end_offset(), log.log_end_offset());
        assert_eq!(again.log_start_offset(), log.log_start_offset());
    });
}

#[test]
fn damaged_directories_open_or_say_why() {
    let healthy = healthy();
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = variable("ODRADEK_FUZZ_SEED").unwrap_or(0);
    let seconds = variable("ODRADEK_FUZZ_SECONDS");
    #[allow(clippy::disallowed_methods, reason = "a fuzz run is bounded by real time")]
    let begun = std::time::Instant::now();
    for run in 0.. {
        let goes_on = match seconds {
            Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
            None => run < 1500,
        };
        if !goes_on {
            break;
        }
        let here = seed + run;
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(&healthy, here))) {
            eprintln!("seed {here}: replay with ODRADEK_FUZZ_SEED={here}");
            std::panic::resume_unwind(panic);
        }
    }
}

//! The machine dies at every step of every kind of work (T-6, T-7): each write, sync, rename, truncation and unlink of a
//! run is written down, and the disk made anew as a crash at each point would leave it, with everything that was not
//! synced, nothing of it, or some of it. The start that a broker makes succeeds on each; nothing is invented or damaged;
//! nothing that was acknowledged as durable is lost. Without any single sync, or with a rename before the write before it,
//! some image shows it: `mutations.txt` tells which.
//!
//! `cargo test` makes a sample of the images. `scripts/soak` sets `ODRADEK_CRASH_SEEDS`: then all of them are made, with so
//! many seeds, and every mutation is tried; with `ODRADEK_CRASH_LIST=write` the table is written anew, and with
//! `ODRADEK_CRASH_ONLY=text` only the runs and mutations are tried whose names contain the text.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::indexing_slicing, clippy::print_stdout, reason = "a test that cannot go on has failed")]

mod compaction;
mod images;
mod known;
mod moves;
mod mutations;
mod scripts;
mod sources;
mod stage;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use storage::io::sim::Crash;

use images::{Failure, Plan, Tally, examine};
use known::Class;
use stage::Run;

/// Seeds of a long run; `None` in a short one.
fn seeds() -> Option<u64> {
    std::env::var("ODRADEK_CRASH_SEEDS").ok().and_then(|text| text.parse().ok())
}

/// Whether a run or a mutation is to be tried.
fn is_wanted(name: &str) -> bool {
    std::env::var("ODRADEK_CRASH_ONLY").ok().is_none_or(|only| name.contains(&only))
}

fn must_hold(result: Result<(), Failure>) {
    if let Err(failure) = result {
        panic!("{failure:?}");
    }
}

/// Images of a run.
fn examine_all(run: &Run, seeds: u64, one_in: u64, tally: &mut Tally) {
    let mut modes = vec![Crash::KeepAll, Crash::DropUnsynced];
    modes.extend((0..seeds).flat_map(|seed| [Crash::Torn(seed), Crash::Scattered(seed)]));
    must_hold(examine(run, Plan { modes: &modes, one_in, ..Plan::ALL }, tally));
    for seed in 0..seeds {
        // What the kernel has brought down by itself is there after a crash.
        let modes = [Crash::DropUnsynced, Crash::Torn(seed)];
        let plan = Plan { modes: &modes, write_back: Some(seed + 1), one_in, ..Plan::ALL };
        must_hold(examine(run, plan, tally));
    }
}

/// Work for each number below `count`, on both cores.
fn share<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return done;
            }
            done.push(work(at));
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(worker);
        let mut done = worker();
        done.extend(other.join().expect("the other half holds too"));
        done
    })
}

#[test]
fn every_image_starts_and_holds_what_it_must() {
    let is_long = seeds().is_some();
    let (one_in, every) = if is_long { (1_u64, 60) } else { (40, 240) };
    let seeds = seeds().unwrap_or(2);
    let tallies = share(scripts::ALL.len(), |at| {
        let runs = [scripts::ALL[at]()];
        let mut tally = Tally::default();
        if !is_wanted(runs[0].name) {
            return tally;
        }
        // Each image of a run in strict mode has acknowledged records to lose.
        let is_strict = runs[0].name.starts_with("strict");
        let one_in = if is_strict { one_in.div_ceil(5) } else { one_in };
        examine_all(&runs[0], seeds, one_in, &mut tally);
        if is_strict {
            let known = runs[0].known_at(runs[0].trace.steps.len());
            let acknowledged = known.logs.values().map(|log| log.safe).max();
            assert!(acknowledged >= Some(80), "{acknowledged:?} records were acknowledged");
            assert!(tally.images.values().sum::<u64>() >= 60, "{:?}", tally.images);
        }
        for start in scripts::starts(&runs, every, seeds) {
            let modes = [Crash::KeepAll, Crash::DropUnsynced, Crash::Torn(1), Crash::Scattered(1)];
            must_hold(examine(&start, Plan { modes: &modes, one_in, ..Plan::ALL }, &mut tally));
        }
        tally
    });
    let mut images: BTreeMap<Class, u64> = BTreeMap::new();
    for (class, count) in tallies.iter().flat_map(|tally| &tally.images) {
        *images.entry(*class).or_default() += count;
    }
    let (all, judged) = (images.values().sum::<u64>(), tallies.iter().map(|tally| tally.judged).sum::<u64>());
    println!("{all} images, {judged} judgements: {images:?}");
    let (least_of_all, least_of_each) = if is_long { (10_000, 500) } else { (600, 10) };
    if is_wanted("") {
        assert!(all >= least_of_all, "{all} images");
        for class in Class::ALL {
            let images = images.get(&class).copied().unwrap_or(0);
            assert!(images >= least_of_each, "{class:?}: {images} images");
        }
    }
}

//! The machine dies at every single operation of a script (T-6, T-7): what a flush acknowledged is there, what is there is
//! a prefix of what was appended, and opening a second time gives the same log.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use protocol::types::Offset;
use storage::io::sim::{Crash, SimRuntime};
use storage::io::{Queue, Runtime};

use common::{Seen, SimLog, append, batch, machine, open, options, payload, read_all, small_config};

/// What is known outside when the machine dies.
#[derive(Default)]
struct Known {
    appended: Vec<Seen>,
    /// Written to the dir's checkpoint, as far as that is allowed to be.
    recovery_point: i64,
    safe: i64,
    /// No batch that ends at or above may be there: it was cut and the cut was acknowledged.
    cut_to: Option<i64>,
}

async fn script(runtime: SimRuntime, known: Rc<RefCell<Known>>) {
    let log = open(&runtime, options(small_config())).await.unwrap();
    for round in 0..3_u64 {
        for tag in 0..6_u64 {
            let bytes =
                batch(2, round * 31 + tag * 7, Some((5, i32::try_from(round * 12 + tag * 2).unwrap())));
            let payload = payload(&bytes);
            let epoch = i32::try_from(round).unwrap();
            // Known before it happens: a batch may be there although nobody heard of it.
            let first = log.log_end_offset().get();
            known.borrow_mut().appended.push((first, first + 1, payload));
            append(&log, bytes, epoch).await.unwrap();
        }
        log.flush().await.unwrap();
        note_safe(&log, &known);
    }
    log.advance_log_start(Offset::new(9)).await.unwrap();
    log.retain(common::NOW, log.log_end_offset()).await.unwrap();
    // The dir's recovery point is written before a truncation may leave it too high.
    known.borrow_mut().recovery_point = 20;
    known.borrow_mut().safe = 20;
    log.truncate_to(Offset::new(20)).await.unwrap();
    known.borrow_mut().cut_to = Some(20);
    log.close().await.unwrap();
}

fn note_safe(log: &SimLog, known: &Rc<RefCell<Known>>) {
    let mut known = known.borrow_mut();
    known.safe = log.recovery_point().get();
    known.recovery_point = known.safe;
}

fn open_and_read(runtime: &SimRuntime, recovery_point: i64, vouched: bool) -> (i64, Vec<Seen>) {
    let inside = runtime.clone();
    runtime.block_on(async move {
        let mut options = options(small_config());
        options.recovery_point = Offset::new(recovery_point);
        options.vouched = vouched;
        let log = open(&inside, options).await.expect("opens after a crash");
        let seen = read_all(&log).await.expect("is readable after a crash");
        (log.log_end_offset().get(), seen)
    })
}

fn die_at(operation: u64, mode: Crash, write_now_percent: u64) -> bool {
    let runtime = machine(3);
    runtime.disk().set_write_now_percent(write_now_percent);
    let begun = runtime.disk().operation_count();
    runtime.disk().freeze_from(begun + operation);
    let known = Rc::new(RefCell::new(Known::default()));
    let task = runtime.spawn(Queue::Request, script(runtime.clone(), known.clone()));
    runtime.run_until_idle();
    let has_ended = runtime.disk().operation_count() < begun + operation;
    let disk = runtime.disk().crash(mode);
    drop(task);
    runtime.kill();
    let after = SimRuntime::on(4, disk);
    let known = known.borrow();
    // What a start that knows that only the process died finds without checksums, and takes over, must be the same.
    let took_over = (mode == Crash::KeepAll).then(|| {
        let killed = SimRuntime::on(4, after.disk().crash(Crash::KeepAll));
        killed.disk().set_read_now_percent(write_now_percent);
        let found = open_and_read(&killed, known.recovery_point, true);
        (found, killed.disk().crash(Crash::KeepAll), killed.disk().crash(Crash::Torn(operation)))
    });
    let (end, seen) = open_and_read(&after, known.recovery_point, false);
    let by_offset = |seen: &Seen| known.appended.iter().any(|appended| appended == seen);
    assert!(seen.iter().all(by_offset), "operation {operation}, {mode:?}: a batch that was never appended");
    assert!(seen.windows(2).all(|pair| pair[0].1 < pair[1].0), "operation {operation}, {mode:?}");
    assert!(end >= known.safe, "operation {operation}, {mode:?}: ends at {end}, safe was {}", known.safe);
    if let Some(cut_to) = known.cut_to {
        assert!(end <= cut_to, "operation {operation}, {mode:?}: brought back what was cut");
    }
    if let Some((found, killed, torn)) = took_over {
        assert_eq!(found, (end, seen.clone()), "operation {operation}, taken over");
        let killed = open_and_read(&SimRuntime::on(5, killed), known.recovery_point, true);
        assert_eq!(killed, (end, seen.clone()), "operation {operation}, killed again");
        // The power goes right after it, with nothing of it synced.
        let (end, rest) = open_and_read(&SimRuntime::on(5, torn), known.recovery_point, false);
        assert!(
            end >= known.safe && seen.starts_with(&rest),
            "operation {operation}, then a power cut: {end}"
        );
    }
    let disk = after.disk().crash(Crash::KeepAll);
    let again = SimRuntime::on(5, disk);
    assert_eq!(
        open_and_read(&again, known.recovery_point, false),
        (end, seen),
        "operation {operation}, {mode:?}"
    );
    has_ended
}

#[test]
fn a_machine_that_dies_at_any_operation_leaves_a_log_that_opens() {
    // With this share of the writes made at once.
    let modes = [
        (Crash::KeepAll, 0),
        (Crash::KeepAll, 60),
        (Crash::DropUnsynced, 0),
        (Crash::DropUnsynced, 60),
        (Crash::Torn(1), 0),
        (Crash::Torn(2), 60),
        (Crash::Torn(3), 90),
    ];
    for (mode, write_now_percent) in modes {
        let ended = (1..2000).find(|operation| die_at(*operation, mode, write_now_percent));
        assert!(ended.is_some_and(|operations| operations > 100), "{ended:?}");
    }
}

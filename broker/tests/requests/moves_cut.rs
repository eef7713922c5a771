//! Moves between log dirs that are cut short: at each point of a run that is written down the machine dies, or some operation
//! fails and the process is killed later. The next start finds one log and goes on with the move; of what was acknowledged
//! no kill loses anything (T-6, KIP-113).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use broker::handlers::{Outcome, RequestHandler};
use broker::partition::lifecycle::LogHome;
use broker::shard::sim::SimShard;
use broker::start::checkpoints::{CheckpointIntervals, CheckpointTask, FoundInDir};
use protocol::messages::*;
use protocol::types::*;
use storage::io::sim::{Crash, Fault, OpKind, SimDisk, SimRuntime, SimTask, StepKind, Trace};
use storage::io::{Queue, Runtime};
use storage::log_dir::moves::find_replaced;
use storage::log_dir::{FoundLogDir, LogDir};
use storage::meta_properties::Identity;

use crate::harness::*;
use crate::moves::{alter, names, place, produce, watched, with_dirs};
use crate::wiring::home;

const DIRS: [&str; 2] = ["/data", "/data2"];
pub const PLAIN: &[(&str, &str)] = &[("segment.bytes", "600")];
const STRICT: &[(&str, &str)] = &[("segment.bytes", "600"), ("flush.messages", "1")];

/// What a start finds in both log dirs: what a move has left twice is settled before they are opened.
///
/// # Errors
/// Why it refuses.
pub fn found(disk: &SimDisk) -> Result<[LogHome; 2], String> {
    let runtime = SimRuntime::on(3, disk.clone());
    let inside = runtime.clone();
    runtime.block_on(async move {
        let identity = Identity { broker_id: Some(ME), cluster_id: Some("c".to_owned()) };
        let mut looked = Vec::new();
        for dir in DIRS {
            looked.push(FoundLogDir::look(&inside, Path::new(dir)).await.unwrap());
        }
        let all: Vec<_> = looked.iter().flat_map(|found| found.partitions.iter().cloned()).collect();
        let replaced = find_replaced(&inside, &all).await.map_err(|error| error.to_string())?;
        let mut homes = Vec::new();
        for found in looked {
            let mut opened = LogDir::open_found(inside.clone(), found, &identity, 60_000).await.unwrap();
            for gone in replaced.iter().filter(|gone| gone.path.starts_with(opened.dir.path())) {
                opened.dir.remove_dir(&gone.path, &gone.partition, 60_000).await.unwrap();
                opened.partitions.retain(|found| found.path != gone.path);
            }
            let found = FoundInDir::of(&opened);
            homes.push(LogHome {
                clean: opened.dir.was_clean(),
                checkpoints: Arc::new(found.checkpoints),
                futures: Arc::new(found.futures),
                ..home(opened.dir.path())
            });
        }
        Ok(homes.try_into().unwrap_or_else(|_| panic!("two log dirs")))
    })
}

/// A broker that starts on a disk and is told to serve the partition; it has gone on with its move, if there is one.
pub fn started(disk: &SimDisk, [first, second]: [LogHome; 2], config: &[(&str, &str)]) -> Broker {
    let start = Start {
        disk: disk.clone(),
        clean: first.clean,
        checkpoints: (*first.checkpoints).clone(),
        futures: first.futures,
        others: vec![second],
        ..Start::default()
    };
    let broker = Broker::start(8, 1, start);
    let topic = topic("t", TopicId::new(id_of("t")), (1, 1), config);
    assert_eq!(broker.try_become(&topic, 0, 1, (ME, false)), Ok(()));
    broker.publish(topic);
    broker.world().advance_ms(3000);
    broker
}

/// The numbers of all records, in order; or the error of a fetch.
pub fn read_all(broker: &Broker) -> Result<Vec<u8>, i16> {
    let (mut read, mut at) = (Vec::new(), 0);
    loop {
        let data = broker.client().fetch_one("t", 0, at);
        if data.error_code != 0 {
            return Err(data.error_code);
        }
        match batches(&data).last() {
            None => return Ok(read),
            Some(last) => at = last.next_offset().get(),
        }
        read.extend(values(&data).iter().map(|value| value[0]));
    }
}

/// A record, and after how many steps of the disk it was acknowledged.
#[derive(Clone, Copy)]
struct Sent {
    number: u8,
    acknowledged: usize,
}

/// A run that is over.
struct Run {
    trace: Trace,
    sent: Vec<Sent>,
    /// All records in the order in which they are in the log.
    all: Vec<u8>,
    /// From this step on the file of `/data` says that all below this offset is durable, and is not written again.
    checkpoint: (usize, Offset),
    /// Steps that gave a copy the name of the log.
    swaps: Vec<usize>,
    config: &'static [(&'static str, &'static str)],
}

fn send(broker: &Broker, number: u8, all: &Rc<RefCell<Vec<Sent>>>) -> SimTask {
    let client = broker.client();
    let request = client.request(9, &produce_request(-1, &[("t", 0, batch(&[&[number; 100]]))]));
    let (handlers, world, all) = (broker.handlers[0].clone(), broker.world().clone(), all.clone());
    broker.world().spawn(Queue::Request, async move {
        let answer = match handlers.handle(request).await {
            Outcome::Done(answer) => answer,
            Outcome::Accepted(accepted) => accepted.await,
        };
        let answer: ProduceResponse<'static> = read(9, answer);
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0, "{number}");
        all.borrow_mut().push(Sent { number, acknowledged: world.disk().trace_len() });
    })
}

/// A log moves to the other dir and back while a client writes without waiting.
fn to_and_fro(config: &'static [(&'static str, &'static str)]) -> Run {
    let broker = with_dirs(1, 2);
    let (world, disk) = (broker.world().clone(), broker.world().disk().clone());
    disk.start_trace();
    broker.create("t", 1, config);
    let (sent, mut tasks) = (Rc::<RefCell<Vec<Sent>>>::default(), Vec::new());
    let mut write = |from: u8, count: u8, nanos: u64| {
        for number in from..from + count {
            tasks.push(send(&broker, number, &sent));
            world.advance_nanos(nanos);
        }
        from + count
    };
    let mut next = write(0, 12, 2_000_000);
    world.advance_ms(100);
    let sample = broker.samples().remove(0);
    assert!(sample.recovery_point > Offset::new(6), "segments that were full are durable");
    let checkpoint = (disk.trace_len(), sample.recovery_point);
    for to in ["/data2", "/data"] {
        assert_eq!(alter(&broker, 2, "t", &[(to, 0)]), [0]);
        next = write(next, 40, 300_000);
        world.advance_ms(500);
        assert_eq!(place(&broker, 0), to);
        next = write(next, 4, 100_000);
    }
    world.advance_ms(100);
    assert_eq!(sent.borrow().len(), usize::from(next), "all are acknowledged");
    let trace = disk.trace().unwrap();
    let is_swap = |step: &storage::io::sim::Step| {
        step.kind == StepKind::Rename && DIRS.iter().any(|dir| step.to == Some(Path::new(dir).join("t-0")))
    };
    let swaps = (0..trace.steps.len()).filter(|at| is_swap(&trace.steps[*at])).collect();
    let all = read_all(&broker).unwrap();
    Run { trace, sent: sent.take(), all, checkpoint, swaps, config }
}

impl Run {
    /// The machine dies after so many steps, and starts again.
    fn judge(&self, disk: &SimDisk, steps: usize, mode: Crash) {
        let case = format!("{:?}, after {steps} steps, {mode:?}", self.config);
        let mut found = found(disk).unwrap_or_else(|why| panic!("{case}: {why}"));
        let (since, recovery_point) = self.checkpoint;
        if steps >= since {
            let t = TopicPartition::new(TopicName::new("t"), 0);
            let mut stale = (*found[0].checkpoints).clone();
            stale.recovery_points = BTreeMap::from([(t, recovery_point)]);
            found[0].checkpoints = Arc::new(stale);
        }
        let read = read_all(&started(disk, found, self.config));
        let read = read.unwrap_or_else(|code| panic!("{case}: error {code}"));
        assert!(self.all.starts_with(&read), "{case}: {read:?} is not how {:?} begins", self.all);
        // In strict mode no power cut takes what was acknowledged (S-34).
        if mode == Crash::KeepAll || self.config == STRICT {
            let read: BTreeSet<u8> = read.into_iter().collect();
            let is_lost = |one: &&Sent| one.acknowledged <= steps && !read.contains(&one.number);
            let lost: Vec<u8> = self.sent.iter().filter(is_lost).map(|one| one.number).collect();
            assert_eq!(lost, Vec::<u8>::new(), "{case}: acknowledged and lost");
        }
    }

    /// Every `every`th point, and those at which something was acknowledged.
    fn judge_all(&self, every: usize) {
        let acknowledged: BTreeSet<usize> = self.sent.iter().map(|one| one.acknowledged).collect();
        let mut replay = self.trace.replay();
        let mut seen = BTreeSet::new();
        for (step, steps) in self.trace.steps.iter().zip(1_usize..) {
            replay.apply(step).expect("what was done can be done again");
            let seed = u64::try_from(steps).unwrap();
            let modes: &[Crash] = if steps.is_multiple_of(every) {
                &[Crash::DropUnsynced, Crash::KeepAll, Crash::Torn(seed), Crash::Torn(seed + 10_000)]
            } else if acknowledged.contains(&steps) {
                &[Crash::DropUnsynced]
            } else {
                continue;
            };
            for mode in modes {
                let disk = replay.disk().crash(*mode);
                if seen.insert((disk.fingerprint(), acknowledged.range(..=steps).count())) {
                    self.judge(&disk, steps, *mode);
                }
            }
        }
    }
}

#[test]
fn a_copy_that_a_power_cut_has_damaged_is_not_taken_for_the_log() {
    to_and_fro(PLAIN).judge_all(21);
}

#[test]
fn in_strict_mode_no_power_cut_takes_what_was_acknowledged_while_a_log_moves() {
    to_and_fro(STRICT).judge_all(13);
}

/// Whatever operation fails while a log moves, and when the process is killed after that: what was acknowledged is there.
#[test]
fn after_a_failure_at_any_point_of_a_move_the_next_start_finds_everything() {
    let full = ErrorKind::StorageFull;
    for (kind, upto, every) in [
        (OpKind::SyncDir, 24, 1),
        (OpKind::Names, 24, 1),
        (OpKind::Open, 40, 5),
        (OpKind::Write, 40, 5),
        (OpKind::SyncData, 40, 5),
    ] {
        for (path_contains, error) in
            [("/data2", full), ("/data2", ErrorKind::Other), ("/data/", ErrorKind::Other)]
        {
            for after in (0..upto).step_by(every) {
                let (broker, watch, told) = watched(1, 2);
                broker.create("t", 1, PLAIN);
                produce(&broker, 0, 0, 12);
                broker.world().disk().fail(Fault { path_contains, after, error, ..Fault::once(kind) });
                let code = alter(&broker, 2, "t", &[("/data2", 0)]);
                broker.world().advance_ms(3000);
                broker.world().disk().heal();
                let case =
                    format!("{path_contains} {kind:?} {error:?} {after}: {code:?} {:?}", told.borrow());
                let data = broker.client().fetch_one("t", 0, 0);
                let gone: usize = told.borrow().iter().map(|gone| gone.partitions.len()).sum();
                if error != full {
                    assert_eq!(
                        data.error_code == 0,
                        gone == 0,
                        "served, or told to be out of service: {case}"
                    );
                }
                let mut count = 12;
                if data.error_code == 0 {
                    produce(&broker, 0, 12, 1);
                    count += 1;
                }
                let disk = broker.world().disk().crash(Crash::KeepAll);
                drop((watch, broker));
                match found(&disk) {
                    Ok(found) => {
                        let read = read_all(&started(&disk, found, PLAIN));
                        assert_eq!(read, Ok((0..count).collect::<Vec<u8>>()), "{case}");
                    }
                    // Nobody can tell which of two is whole: a dir has failed between them.
                    Err(why) => assert!(!told.borrow().is_empty(), "{case}: {why}"),
                }
            }
        }
    }
}

#[test]
fn a_move_that_failed_half_way_leaves_no_mark_that_makes_the_next_one_ambiguous() {
    let (broker, watch, told) = watched(1, 2);
    broker.create("t", 1, PLAIN);
    produce(&broker, 0, 0, 12);
    let fault = Fault { path_contains: "odradek-moved-here", ..Fault::once(OpKind::Open) };
    broker.world().disk().fail(fault);
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
    broker.world().advance_ms(3000);
    assert_eq!(told.borrow().len(), 1, "the dir of the copy is out of service");
    produce(&broker, 0, 12, 1);
    let disk = broker.world().disk().crash(Crash::KeepAll);
    drop((watch, broker));
    let homes = found(&disk).unwrap();
    disk.start_trace();
    let broker = started(&disk, homes, PLAIN);
    assert_eq!(place(&broker, 0), "/data2", "the move has gone on");
    let trace = disk.trace().unwrap();
    let mut replay = trace.replay();
    for (step, steps) in trace.steps.iter().zip(1..) {
        replay.apply(step).unwrap();
        for mode in [Crash::KeepAll, Crash::DropUnsynced] {
            let left = found(&replay.disk().crash(mode));
            assert!(left.is_ok(), "after {steps} steps, {mode:?}: {:?}", left.err());
        }
    }
    assert_eq!(read_all(&broker), Ok((0..13).collect::<Vec<u8>>()));
}

#[test]
fn of_many_moves_of_a_shard_one_is_copied_at_a_time() {
    let broker = with_dirs(1, 2);
    broker.create("t", 12, PLAIN);
    let placed: Vec<i32> = (0..12).filter(|partition| place(&broker, *partition) == "/data").collect();
    assert_eq!(placed.len(), 6);
    for partition in 0..12 {
        produce(&broker, partition, 0, 10);
    }
    broker.world().disk().record_operations();
    let wanted: Vec<_> = placed.iter().map(|partition| ("/data2", *partition)).collect();
    assert_eq!(alter(&broker, 2, "t", &wanted), [0; 6]);
    broker.world().advance_ms(3000);
    assert!(placed.iter().all(|partition| place(&broker, *partition) == "/data2"));
    let operations = broker.world().disk().operations();
    let copied = operations.iter().filter(|one| one.kind == OpKind::Write).filter_map(|one| {
        let path = one.path.to_str()?;
        let is_of_a_copy = path.ends_with(".log") && path.contains("-future/");
        path.split('.').next().filter(|_| is_of_a_copy)
    });
    let mut turns: Vec<&str> = copied.collect();
    turns.dedup();
    assert_eq!(turns.len(), 6, "one after the other: {turns:?}");
    assert!(names(&broker, "/data").iter().all(|name| name.ends_with("-delete")));
}

/// Writes the checkpoint files of both log dirs, as from a start that found this in them.
fn checkpoint_task(broker: &Broker, found: [FoundInDir; 2]) -> CheckpointTask<SimShard> {
    let mut dirs = Vec::new();
    for (path, found) in DIRS.into_iter().zip(found) {
        let shard = broker.shards[0].clone();
        let opened = broker.run(async move {
            let identity = Identity { broker_id: Some(ME), cluster_id: Some("c".to_owned()) };
            LogDir::open(shard, Path::new(path), &identity, 60_000).await.unwrap()
        });
        dirs.push((opened.dir, found));
    }
    let intervals =
        CheckpointIntervals { high_watermark_ms: 5000, recovery_point_ms: 60_000, log_start_ms: 60_000 };
    CheckpointTask::start(&broker.shards[0], broker.owners[0].clone(), dirs, intervals)
}

/// A log may arrive while the broker stops, after the high watermarks were written.
#[test]
fn a_stop_at_any_point_of_a_move_leaves_the_high_watermark_where_the_log_is() {
    let mut arrived = BTreeSet::new();
    for at in 0..60 {
        let broker = with_dirs(1, 2);
        broker.create("t", 1, PLAIN);
        produce(&broker, 0, 0, 12);
        let task = checkpoint_task(&broker, <[FoundInDir; 2]>::default());
        assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
        broker.world().advance_nanos(at * 100_000);
        broker.world().disk().set_slow(Some(("replication-offset-checkpoint", at * 500_000)));
        let stopped = broker.run(task.stop());
        assert!(stopped.are_marked(), "{at}: {stopped:?}");
        for dir in DIRS {
            let content = |file: &str| broker.world().disk().content(Path::new(dir).join(file));
            if content("t-0/partition.metadata").is_none() {
                continue;
            }
            arrived.insert(dir);
            let file = String::from_utf8(content("replication-offset-checkpoint").unwrap()).unwrap();
            assert!(file.lines().any(|line| line == "t 0 12"), "{at}: {dir} says {file}");
        }
    }
    assert_eq!(arrived, BTreeSet::from(DIRS));
}

/// Else its next stop leaves no mark, and a kill makes the next start compute all checksums (KAFKA-15375).
#[test]
fn a_dir_that_its_last_log_has_left_counts_as_in_order() {
    let broker = with_dirs(1, 2);
    broker.create("t", 1, PLAIN);
    produce(&broker, 0, 0, 12);
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
    broker.world().advance_ms(1000);
    assert_eq!(place(&broker, 0), "/data2");
    // As the start found them, when the log was in the first one.
    let t = TopicPartition::new(TopicName::new("t"), 0);
    let before = [FoundInDir { partitions: [t].into(), ..FoundInDir::default() }, FoundInDir::default()];
    let task = checkpoint_task(&broker, before);
    let are_open = Rc::<Cell<bool>>::default();
    for dir in DIRS {
        let inside = are_open.clone();
        task.when_all_are_open(&broker.shards[0], Path::new(dir), move || inside.set(true));
        broker.world().advance_ms(2000);
        assert!(are_open.take(), "{dir}");
    }
    assert_eq!(task.unopened(), BTreeSet::new());
}

/// The process dies between the two names of a swap, and the next start cannot use the dir that the copy is in: the log is
/// served from where it was, takes more, and must not give way to the copy later.
#[test]
fn a_log_that_was_served_without_the_dir_of_its_finished_copy_is_not_replaced_by_it() {
    let run = to_and_fro(PLAIN);
    let mut replay = run.trace.replay();
    for step in &run.trace.steps[..=run.swaps[0]] {
        replay.apply(step).unwrap();
    }
    let disk = replay.disk().crash(Crash::KeepAll);
    for dir in DIRS {
        assert!(disk.content(Path::new(dir).join("t-0/partition.metadata")).is_some(), "both have the name");
    }
    let absent = vec![Path::new("/data2").into()];
    let broker = Broker::start(8, 1, Start { disk: disk.clone(), absent, ..Start::default() });
    let topic = topic("t", TopicId::new(id_of("t")), (1, 1), PLAIN);
    assert_eq!(broker.try_become(&topic, 0, 1, (ME, false)), Ok(()));
    broker.publish(topic);
    let before = read_all(&broker).unwrap();
    produce(&broker, 0, 200, 1);
    drop(broker);
    match found(&disk.crash(Crash::KeepAll)) {
        Err(why) => assert!(why.contains("both hold t-0: delete one of them"), "{why}"),
        Ok(found) => {
            let read = read_all(&started(&disk, found, PLAIN));
            assert_eq!(read, Ok([before, vec![200]].concat()), "what was acknowledged since is there");
        }
    }
}

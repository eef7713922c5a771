//! The runs: each does one kind of work many times, between appends that make it matter.

use protocol::types::TimestampMs;
use storage::config::{CleanupPolicy, Durability, LogConfig};
use storage::io::Runtime;
use storage::io::sim::{Crash, Fault, OpKind};

use crate::known::{Class, Known};
use crate::moves::with_two;
use crate::stage::{FIRST_TIME, NOW, Run, Wait, partition, play, with};

fn config(segment_bytes: u32) -> LogConfig {
    LogConfig {
        segment_bytes,
        index_interval_bytes: 150,
        segment_ms: i64::MAX,
        retention_ms: -1,
        file_delete_delay_ms: 3,
        ..LogConfig::default()
    }
}

/// All runs that begin on an empty disk.
pub const ALL: &[fn() -> Run] = &[
    append_and_flush,
    append,
    roll,
    strict,
    retention,
    delete_records,
    truncation,
    truncation_of_large,
    restart,
    epochs,
    checkpoint,
    compaction,
    deletion,
    moves,
    strict_moves,
    kill,
    stop,
];

/// Flush after each append: small batches, large ones by reference, idempotent producers.
fn append_and_flush() -> Run {
    let (disk, known) = with(config(1 << 20));
    play("append and flush", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        stage.class(Class::Append);
        stage.wait(Wait::Flush);
        for round in 0..8 {
            stage.append(&name, 2, 40, Some(7)).await;
            stage.append(&name, 1, 1500, None).await;
            if round % 3 == 0 {
                stage.append(&name, 1, 20_000, Some(8)).await;
                stage.checkpoint().await;
                stage.class(Class::Append);
            }
        }
        stage.keep_producers(&name);
    })
}

/// Appends that nobody flushes, several in one write, then a flush.
fn append() -> Run {
    let (disk, known) = with(config(1 << 20));
    play("append", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        stage.class(Class::Append);
        for round in 0..6 {
            for _ in 0..4 {
                stage.append(&name, 3, 400, Some(7)).await;
                stage.append(&name, 1, 900, None).await;
            }
            stage.append(&name, 1, 18_000, Some(8)).await;
            if round % 2 == 1 {
                stage.flush(&name).await;
                stage.checkpoint().await;
                stage.class(Class::Append);
            }
        }
    })
}

/// Many small segments, transactions across them.
fn roll() -> Run {
    let (disk, known) = with(config(900));
    play("roll", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        stage.class(Class::Roll);
        for round in 0..5 {
            stage.append_in_txn(&name, 2, 3).await;
            stage.append_in_txn(&name, 1, 4).await;
            for _ in 0..3 {
                stage.append(&name, 2, 90, Some(7)).await;
            }
            stage.end_txn(&name, 3, round % 2 == 0).await;
            stage.append(&name, 1, 300, None).await;
            stage.end_txn(&name, 4, round % 2 == 1).await;
            if round % 2 == 0 {
                // The flush of the closed segments ends meanwhile.
                stage.sleep_ms(20).await;
                stage.checkpoint().await;
                stage.class(Class::Roll);
            }
        }
        stage.flush(&name).await;
        stage.checkpoint().await;
    })
}

/// In strict mode what is acknowledged is safe, without a flush: one append at a time, many at once, across segments, behind
/// a truncation, after a start, where the process dies while some wait for their sync, and in a directory that one has left
/// which died before its name was durable.
fn strict() -> Run {
    let (disk, known) = with(LogConfig { durability: Durability::Strict, ..config(6000) });
    play("strict", disk, known, |stage| async move {
        let (name, left) = (partition("t"), partition("left"));
        stage.start().await;
        stage.create(&name).await;
        for round in 0..6 {
            stage.class(Class::Append);
            stage.wait(Wait::Safe);
            if round > 1 {
                stage.append(&left, 1, 50, None).await;
            }
            for at in 0..3 {
                stage.append(&name, 2, 60, Some(7)).await;
                stage.append(&name, 1, if at == 1 { 5000 } else { 90 }, None).await;
            }
            stage.wait(Wait::None);
            for at in 0..8 {
                stage.append(&name, 1, 100, None).await;
                if at == 3 {
                    // The others come while a sync is under way.
                    stage.runtime.turn().await;
                }
            }
            if round % 3 != 1 {
                stage.until_safe(&name).await;
            }
            if round == 2 {
                stage.checkpoint().await;
            }
            if round == 3 {
                let to = stage.log(&name).log_end_offset().get() - 4;
                stage.truncate(&name, to).await;
            }
            if round == 1 {
                stage.die_over_creation(&left).await;
            } else if round % 2 == 1 {
                stage.die().await;
                stage.start().await;
            }
        }
    })
}

/// Old segments go by time and by size; producers whose records went are known.
fn retention() -> Run {
    let config = LogConfig { retention_ms: 150, retention_bytes: 2500, ..config(700) };
    let (disk, known) = with(config);
    play("retention", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        stage.class(Class::Retention);
        for round in 0..6 {
            // Written once, and never again: its records go first.
            stage.append(&name, 1, 60, Some(100 + round)).await;
            for _ in 0..5 {
                stage.append(&name, 2, 100, Some(7)).await;
            }
            stage.flush(&name).await;
            stage.checkpoint().await;
            stage.keep_producers(&name);
            stage.class(Class::Retention);
            stage.retain(&name, TimestampMs::new(FIRST_TIME + 70 * (round + 1) + 30)).await;
            stage.sleep_ms(if round % 2 == 0 { 10 } else { 1 }).await;
        }
        stage.checkpoint().await;
        // Nothing is left but an empty segment, which has no snapshot above its base.
        stage.class(Class::Retention);
        stage.forget_producers(&name);
        stage.retain(&name, NOW).await;
        stage.sleep_ms(10).await;
        stage.append(&name, 2, 100, Some(7)).await;
        stage.flush(&name).await;
    })
}

fn delete_records() -> Run {
    let (disk, known) = with(config(700));
    play("delete records", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        stage.class(Class::DeleteRecords);
        let mut to = 0;
        for round in 0..6 {
            if round == 3 {
                stage.lead(&name, 3).await;
            }
            for _ in 0..4 {
                stage.append(&name, 2, 100, Some(7)).await;
            }
            stage.flush(&name).await;
            stage.checkpoint().await;
            stage.class(Class::DeleteRecords);
            to += 7;
            if round >= 4 {
                // All of the segments below, and nothing of the next one.
                to = stage.bases().await[&name].iter().copied().filter(|base| *base <= to + 2).max().unwrap();
            }
            stage.delete_records(&name, to).await;
            if round % 2 == 0 || round == 5 {
                stage.checkpoint().await;
                stage.class(Class::DeleteRecords);
            }
            stage.retain(&name, NOW).await;
            stage.append(&name, 1, 50, None).await;
            if round % 3 != 0 {
                stage.checkpoint().await;
                stage.class(Class::DeleteRecords);
            }
            stage.sleep_ms(10).await;
        }
    })
}

/// The end is cut within a segment, across segments, within a batch, to nothing, and grows again.
fn truncation() -> Run {
    let (disk, known) = with(config(700));
    play("truncation", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        stage.class(Class::Truncation);
        let mut end = 0;
        for back in [3, 13, 2, 8, 5, 20, 1, 11] {
            for _ in 0..3 {
                stage.append(&name, 2, 90, Some(7)).await;
            }
            stage.append_in_txn(&name, 1, 9).await;
            stage.append(&name, 3, 60, None).await;
            stage.end_txn(&name, 9, false).await;
            if back % 2 == 1 {
                stage.flush(&name).await;
                stage.checkpoint().await;
            }
            stage.class(Class::Truncation);
            end += 11;
            end = (end - back).max(0);
            let to = stage.log(&name).log_end_offset().get().min(end);
            stage.truncate(&name, to).await;
            end = to;
            stage.class(Class::Truncation);
        }
        stage.append(&name, 2, 90, Some(7)).await;
        stage.flush(&name).await;
        stage.checkpoint().await;
    })
}

/// Batches of several pages, most of them not flushed when the machine dies.
fn truncation_of_large() -> Run {
    let (disk, known) = with(config(60_000));
    play("truncation of large", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        for back in [2, 3, 1, 5, 2, 4] {
            stage.class(Class::Append);
            for _ in 0..4 {
                stage.append(&name, 1, 9_000, Some(7)).await;
            }
            if back > 2 {
                stage.flush(&name).await;
                stage.checkpoint().await;
            }
            stage.class(Class::Truncation);
            let to = stage.log(&name).log_end_offset().get() - back;
            stage.truncate(&name, to).await;
        }
    })
}

/// The log begins anew, ahead of its end and behind it.
fn restart() -> Run {
    let (disk, known) = with(config(700));
    play("restart", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        stage.class(Class::Truncation);
        stage.restart(&name, 30).await;
        // The epoch file says then what it is to say.
        stage.die().await;
        stage.start().await;
        stage.class(Class::Truncation);
        stage.restart(&name, 40).await;
        for at in [50, 20, 200] {
            for _ in 0..6 {
                stage.append(&name, 2, 90, Some(7)).await;
            }
            stage.flush(&name).await;
            stage.checkpoint().await;
            stage.class(Class::Truncation);
            stage.restart(&name, at).await;
            stage.class(Class::Truncation);
            stage.append(&name, 1, 30, None).await;
            stage.flush(&name).await;
        }
    })
}

/// Leader epochs come, with records and without, and go with what is cut.
fn epochs() -> Run {
    let (disk, known) = with(config(900));
    play("epochs", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        for epoch in 2..15 {
            stage.class(Class::Epochs);
            stage.lead(&name, epoch * 2).await;
            if epoch % 4 != 3 {
                stage.append(&name, 2, 60, Some(7)).await;
                stage.append(&name, 1, 90, None).await;
            }
            if epoch % 3 == 0 || epoch == 5 {
                stage.flush(&name).await;
                stage.checkpoint().await;
                stage.class(Class::Epochs);
            }
            if epoch % 6 == 5 {
                let to = stage.log(&name).log_end_offset().get() - 4;
                stage.truncate(&name, to).await;
            }
        }
    })
}

/// Several logs, whose checkpoints are written over and over.
fn checkpoint() -> Run {
    let (disk, known) = with(config(1200));
    play("checkpoint", disk, known, |stage| async move {
        let names = ["a", "b", "c"].map(partition);
        stage.start().await;
        for name in &names {
            stage.create(name).await;
        }
        for round in 0..10 {
            stage.class(Class::Checkpoint);
            for (at, name) in names.iter().enumerate() {
                stage.append(name, 2, 100, Some(7)).await;
                if (round + at) % 2 == 0 {
                    stage.flush(name).await;
                }
            }
            if round == 5 {
                stage.delete_records(&names[1], 5).await;
            }
            stage.checkpoint().await;
        }
    })
}

/// Rounds over many segments, with deleted keys, producers and transactions; some meet a full disk, two of them half way
/// between the names of the files.
fn compaction() -> Run {
    let cleanup_policy = CleanupPolicy { delete: false, compact: true };
    let (disk, known) = with(LogConfig { cleanup_policy, delete_retention_ms: 5, ..config(500) });
    play("compaction", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        for round in 0..6 {
            if round == 3 {
                // Several segments become one from here on.
                let log = stage.log(&name);
                log.set_config(LogConfig { segment_bytes: 900, ..(*log.config()).clone() });
            }
            stage.class(Class::Append);
            for at in 0..4 {
                let (one, other) = (format!("k{}", (round + at) % 3), format!("r{round}"));
                let value = if at == 3 { None } else { Some(60) };
                let producer = if at % 2 == 0 { Some(7) } else { None };
                stage
                    .append_keyed(&name, &[(&one, value), ("a", Some(40)), (&other, Some(30))], producer)
                    .await;
            }
            stage.append_in_txn(&name, 2, 3).await;
            stage.append_keyed(&name, &[("b", Some(100)), ("k1", None)], Some(100 + round)).await;
            stage.end_txn(&name, 3, round % 2 == 0).await;
            stage.flush(&name).await;
            stage.checkpoint().await;
            stage.sleep_ms(10).await;
            stage.class(Class::Compaction);
            if round % 3 == 1 {
                let write = Fault { path_contains: ".timeindex.cleaned", ..Fault::once(OpKind::Write) };
                stage.fail_to_compact(&name, write).await;
                // The first such operation sets the time of the file.
                let rename =
                    Fault { path_contains: ".index.cleaned", after: 1, ..Fault::once(OpKind::Names) };
                stage.fail_to_compact(&name, rename).await;
            }
            stage.compact(&name).await;
        }
    })
}

/// Topics are deleted, created again under the same name, and set aside.
fn deletion() -> Run {
    let (disk, known) = with(config(600));
    play("deletion", disk, known, |stage| async move {
        let (name, other) = (partition("t"), partition("u"));
        stage.start().await;
        stage.class(Class::Deletion);
        stage.create_with(&other, false).await;
        for round in 0..6 {
            stage.create(&name).await;
            stage.class(Class::Deletion);
            for _ in 0..3 {
                stage.append(&name, 2, 100, Some(7)).await;
                stage.append(&other, 1, 100, Some(7)).await;
            }
            if round % 2 == 0 {
                stage.flush(&name).await;
                stage.flush(&other).await;
                stage.checkpoint().await;
                stage.class(Class::Deletion);
            }
            if round == 4 {
                stage.set_aside(&name).await;
            } else {
                stage.delete(&name, 2).await;
            }
            stage.class(Class::Deletion);
            stage.sleep_ms(if round % 3 == 0 { 20 } else { 0 }).await;
        }
        stage.sleep_ms(20).await;
    })
}

/// A log moves between two log dirs, to and fro, while it grows; some moves are not finished.
fn moves() -> Run {
    let (disk, known) = with(config(700));
    play("move", disk, with_two(known), |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        for round in 0..8 {
            stage.class(Class::Append);
            for _ in 0..2 {
                stage.append(&name, 2, 90, Some(7)).await;
                stage.append_in_txn(&name, 1, 9).await;
                stage.append(&name, 1, 200, None).await;
                stage.end_txn(&name, 9, round % 2 == 0).await;
            }
            if round % 2 == 0 {
                stage.flush(&name).await;
                stage.checkpoint().await;
            }
            stage.class(Class::Move);
            stage.begin_move(&name).await;
            stage.copy_some(&name, 3).await;
            stage.append(&name, 2, 60, Some(7)).await;
            match round {
                2 => stage.cancel_move(&name, 500).await,
                5 => {
                    stage.checkpoint().await;
                    stage.die().await;
                    stage.start().await;
                }
                _ => {
                    stage.copy_all(&name).await;
                    stage.finish_move(&name, 500).await;
                    if round == 3 {
                        // At once back again.
                        stage.class(Class::Move);
                        stage.begin_move(&name).await;
                        stage.copy_all(&name).await;
                        stage.finish_move(&name, 500).await;
                    }
                }
            }
            stage.sleep_ms(if round % 3 == 0 { 600 } else { 0 }).await;
        }
        stage.sleep_ms(600).await;
    })
}

/// In strict mode a log moves while records are acknowledged: some wait for a sync of it when its copy takes its place, and
/// those that come after wait for one of the copy.
fn strict_moves() -> Run {
    let (disk, known) = with(LogConfig { durability: Durability::Strict, ..config(1500) });
    play("strict move", disk, with_two(known), |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        for round in 0..7 {
            stage.class(Class::Append);
            stage.wait(Wait::Safe);
            for _ in 0..3 {
                stage.append(&name, 2, 90, Some(7)).await;
            }
            if round % 3 == 0 {
                stage.checkpoint().await;
            }
            stage.class(Class::Move);
            stage.begin_move(&name).await;
            stage.copy_some(&name, 2).await;
            stage.append(&name, 1, 200, None).await;
            stage.wait(Wait::None);
            for _ in 0..4 {
                stage.append(&name, 1, 100, Some(8)).await;
            }
            if round == 4 {
                stage.die().await;
                stage.start().await;
                continue;
            }
            stage.finish_move(&name, 500).await;
            for _ in 0..3 {
                stage.append(&name, 1, 80, None).await;
            }
            stage.until_safe(&name).await;
            stage.wait(Wait::Safe);
            stage.append(&name, 2, 60, Some(7)).await;
            stage.sleep_ms(if round % 3 == 0 { 600 } else { 0 }).await;
        }
    })
}

/// The process dies and starts on what the kernel holds, over and over: what it served is there after a power cut.
fn kill() -> Run {
    let (disk, known) = with(config(900));
    play("kill", disk, known, |stage| async move {
        let name = partition("t");
        stage.start().await;
        stage.create(&name).await;
        for round in 0..6 {
            stage.class(Class::Append);
            for _ in 0..3 {
                stage.append(&name, 2, 100, Some(7)).await;
                stage.append(&name, 1, 200, None).await;
            }
            if round % 3 == 1 {
                stage.flush(&name).await;
                stage.checkpoint().await;
            }
            if round == 4 {
                stage.truncate(&name, 30).await;
            }
            stage.die().await;
            stage.start().await;
        }
    })
}

/// Clean stops, and starts after them.
fn stop() -> Run {
    let (disk, known) = with(config(900));
    play("stop", disk, known, |stage| async move {
        let names = ["a", "b"].map(partition);
        stage.start().await;
        for name in &names {
            stage.create(name).await;
        }
        for round in 0..6 {
            stage.class(Class::Append);
            for name in &names {
                for _ in 0..=round {
                    stage.append(name, 2, 100, Some(7)).await;
                }
            }
            stage.delete_records(&names[0], 3 * round).await;
            stage.stop().await;
            stage.start().await;
        }
        stage.stop().await;
    })
}

/// Starts on images that a crash left of other runs: the start is written down in its turn.
pub fn starts(runs: &[Run], every: usize, seed: u64) -> Vec<Run> {
    let mut starts = Vec::new();
    for run in runs {
        let mut replay = run.trace.replay();
        for (at, step) in run.trace.steps.iter().enumerate() {
            replay.apply(step).expect("what was done can be done again");
            // A start has more to do where a compaction was under way.
            let every = if run.name == "compaction" { every.div_ceil(4) } else { every };
            if at % every != every / 2 {
                continue;
            }
            let mode = match (at / every) % 4 {
                0 => Crash::DropUnsynced,
                2 => Crash::KeepAll,
                _ => Crash::Torn(seed.wrapping_mul(1000) + u64::try_from(at).unwrap()),
            };
            let mut before: Known = run.known_at(at + 1);
            // What only a kill would have left is gone.
            before.logs.values_mut().for_each(|log| log.written = log.safe);
            let found = replay.disk().crash(mode);
            starts.push(play("start", found, before, |stage| async move {
                let bases = stage.bases().await;
                stage.start().await;
                stage.fill_up(&bases).await;
                stage.stop().await;
            }));
        }
    }
    starts
}

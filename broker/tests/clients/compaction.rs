//! Our compaction against Kafka's cleaner (T-10): both get the same partition, which Kafka's log has written, and must leave
//! the same segments, batches, records, horizons and aborted transactions; round after round on what Kafka left, so that
//! tombstones and markers go too. Knows what Compaction.java does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench_harness::client::Client;

use crate::support::Broker;
use crate::{STEP_LIMIT, child, class_path, directory};

const TOPIC: &str = "cleaned";
const CHECKPOINT: &str = "cleaner-offset-checkpoint";

/// What Compaction.java sets for Kafka's log.
const SETTINGS: [&str; 6] = [
    "log.cleanup.policy=compact",
    "log.segment.bytes=4000",
    "log.cleaner.min.cleanable.ratio=0.01",
    "log.cleaner.delete.retention.ms=1",
    "log.cleaner.backoff.ms=1",
    "replica.high.watermark.checkpoint.interval.ms=20",
];

/// Enough for what was deleted in the first to be gone, and the markers of what was.
const ROUNDS: u32 = 4;

pub fn as_kafkas(libs: &Path) -> Result<String, String> {
    let classes = directory::compiled(libs, "Compaction.java")?;
    let java = |what: &str, partition: &Path, more: &[String]| {
        let mut command = Command::new("java");
        command.args(["-Xmx512m", "-cp", &class_path(libs, Some(classes.path())), "Compaction", what]);
        child::run(command.arg(partition).args(more), STEP_LIMIT)
    };
    let mut broker = Broker::prepared(1, &SETTINGS);
    broker.launch();
    let mut client = Client::connect(&broker.bootstrap(), STEP_LIMIT).map_err(|error| error.to_string())?;
    client.create_topic(TOPIC, 1).map_err(|error| error.to_string())?;
    drop(client);
    stop(&mut broker)?;
    let theirs = tempfile::tempdir().expect("temporary directory");
    let (kafkas, ours) = (theirs.path().join("cleaned-0"), broker.log_dir().join("cleaned-0"));
    std::fs::create_dir(&kafkas).map_err(|error| error.to_string())?;
    let mut batches = 0;
    for round in 1..=ROUNDS {
        java("fill", &kafkas, &[round.to_string()])?;
        take_over(&kafkas, &ours).map_err(|error| error.to_string())?;
        let clean = theirs.path().join(CHECKPOINT);
        if clean.exists() {
            std::fs::copy(clean, broker.log_dir().join(CHECKPOINT)).map_err(|error| error.to_string())?;
        }
        java("clean", &kafkas, &[])?;
        broker.launch();
        await_clean(&broker, &ours)?;
        stop(&mut broker)?;
        batches = compare(&java("print", &kafkas, &[])?, &java("print", &ours, &[])?)
            .map_err(|why| format!("round {round}: {why}"))?;
    }
    directory::dump_log(libs, &broker.log_dir(), &[TOPIC])?;
    Ok(format!("{ROUNDS} rounds, {batches} batches at the end"))
}

fn stop(broker: &mut Broker) -> Result<(), String> {
    let stopped = broker.stop();
    if stopped.success() { Ok(()) } else { Err(format!("the broker stopped with {stopped}")) }
}

/// Replaces all files but the one with the topic's id.
fn take_over(from: &Path, to: &Path) -> std::io::Result<()> {
    const KEPT: &str = "partition.metadata";
    for file in std::fs::read_dir(to)? {
        let file = file?;
        if file.file_name() != KEPT {
            std::fs::remove_file(file.path())?;
        }
    }
    for file in std::fs::read_dir(from)? {
        let file = file?;
        if file.file_name() != KEPT {
            // With its time, by which segments without timestamps are judged.
            let copied = Command::new("cp").arg("-p").arg(file.path()).arg(to).status()?;
            assert!(copied.success());
        }
    }
    Ok(())
}

/// Waits until everything below the active segment is clean.
fn await_clean(broker: &Broker, partition: &Path) -> Result<(), String> {
    let paths = std::fs::read_dir(partition).map_err(|error| error.to_string())?.flatten();
    let logs = paths.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "log"));
    let active: Option<i64> = logs.filter_map(|path: PathBuf| path.file_stem()?.to_str()?.parse().ok()).max();
    let entry = format!("{TOPIC} 0 {}", active.ok_or("no segment")?);
    let deadline = Instant::now() + STEP_LIMIT;
    let checkpoint = broker.log_dir().join(CHECKPOINT);
    while !std::fs::read_to_string(&checkpoint).unwrap_or_default().lines().any(|line| line == entry) {
        if Instant::now() > deadline {
            return Err(format!("we have not compacted up to {entry}:\n{}", broker.log()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Answers how many batches there are, or the first line that differs.
fn compare(kafkas: &str, ours: &str) -> Result<usize, String> {
    let told = |text: &str| -> Vec<String> {
        let starts = ["segment ", "batch ", "record ", "aborted "];
        let is_told = |line: &&str| starts.iter().any(|start| line.starts_with(start));
        text.lines().filter(is_told).map(str::to_owned).collect()
    };
    let (kafkas, ours) = (told(kafkas), told(ours));
    let batches = kafkas.iter().filter(|line| line.starts_with("batch ")).count();
    if batches == 0 {
        return Err("Kafka has left nothing".to_owned());
    }
    for at in 0..kafkas.len().max(ours.len()) {
        let (theirs, own) = (kafkas.get(at), ours.get(at));
        if theirs != own {
            let before = at.checked_sub(1).and_then(|before| kafkas.get(before));
            return Err(format!("behind {before:?} Kafka has {theirs:?}, and we {own:?}"));
        }
    }
    Ok(batches)
}

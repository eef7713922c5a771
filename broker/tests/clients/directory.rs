//! Kafka's own tools over one of our data directories (T-1): dump-log over every segment, index and snapshot, Kafka's
//! readers over checkpoints and identity, and Kafka's log over a partition (T-3, T-14). Knows Kafka's output line by line: any other line is a complaint.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tally;
use crate::{STEP_LIMIT, class_path, tool};

const DUMP: &str = "kafka.tools.DumpLogSegments";

/// Files per start of the tool: starting it takes longer than a small file.
const FILES_PER_RUN: usize = 300;

/// Files in partition directories that Kafka's dump-log reads; what waits for its deletion is no partition any more.
fn files(log_dir: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for partition in std::fs::read_dir(log_dir).map_err(|error| error.to_string())?.flatten() {
        if partition.file_name().to_string_lossy().ends_with("-delete") {
            continue;
        }
        for file in std::fs::read_dir(partition.path()).into_iter().flatten().flatten() {
            let path = file.path();
            if ["log", "index", "timeindex", "txnindex", "snapshot"].contains(&extension(&path)) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default()
}

fn dump(libs: &Path, options: &[&str], files: &[PathBuf]) -> Result<String, String> {
    let list: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
    tool(libs, DUMP, &[options, &["--files", &list.join(",")]].concat())
}

/// Whether a line is what the tool prints of a sound file.
fn is_sound(line: &str) -> bool {
    let of_a_batch = line.starts_with("baseOffset: ") && line.ends_with("isvalid: true");
    let known = [
        "Dumping ",
        "Log starting offset: ",
        "| offset: ",
        "offset: ",    // offset index
        "timestamp: ", // time index
        "version: ",   // transaction index
        "producerId: ",
        "log4j:",
        "OpenJDK ", // warnings of the virtual machine itself
        "Picked up ",
    ];
    of_a_batch
        || known.iter().any(|start| line.starts_with(start))
        || line.ends_with(" is empty.")
        || line.ends_with(" passed sanity check.")
}

/// What compaction leaves, of other topics a fault: gaps, and the last batch of a producer without its records, of which the
/// time index knows the timestamp that the records had. Each is told in a line for the file and one for each case.
const OF_COMPACTION: [(&str, &str); 2] = [
    ("Non-consecutive offsets in ", " is followed by "),
    ("Found timestamp mismatch in :", ", log timestamp: -1"),
];

fn complaint(text: &str, compacted: &[&str]) -> Result<(), String> {
    let mut excused = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let is_case = excused.is_some_and(|case| line.starts_with("  ") && line.contains(case));
        let told =
            OF_COMPACTION.iter().find_map(|(of_file, case)| Some((line.strip_prefix(of_file)?, *case)));
        if let Some((file, case)) = told {
            let partition = Path::new(file).parent().and_then(Path::file_name).unwrap_or_default();
            let topic = partition.to_str().and_then(|name| name.rsplit_once('-')).map(|(topic, _)| topic);
            excused = topic.filter(|topic| compacted.contains(topic)).map(|_| case);
        }
        if !is_sound(line) && !is_case && (told.is_none() || excused.is_none()) {
            let more = lines.next().unwrap_or_default();
            return Err(format!("dump-log complains: {line}\n{more}"));
        }
    }
    Ok(())
}

fn count(text: &str, start: &str) -> usize {
    text.lines().filter(|line| line.starts_with(start)).count()
}

/// Every file decoded to its records, indexes compared with their logs and checked for sanity; every payload printed.
/// `compacted` are the topics that may have gaps.
pub fn dump_log(libs: &Path, log_dir: &Path, compacted: &[&str]) -> Result<String, String> {
    let files = files(log_dir)?;
    let (mut batches, mut records) = (0, 0);
    for some in files.chunks(FILES_PER_RUN) {
        let text = dump(libs, &["--deep-iteration"], some)?;
        complaint(&text, compacted)?;
        batches += count(&text, "baseOffset: ");
        let found = count(&text, "| offset: ");
        let printed = count(&dump(libs, &["--print-data-log"], some)?, "| offset: ");
        if printed != found {
            return Err(format!("{found} records, but {printed} printed with their data"));
        }
        records += found;
        let indexes: Vec<PathBuf> =
            some.iter().filter(|file| extension(file).ends_with("index")).cloned().collect();
        if !indexes.is_empty() {
            complaint(&dump(libs, &["--index-sanity-check"], &indexes)?, &[])?;
        }
    }
    if records == 0 {
        return Err("dump-log printed no record".to_owned());
    }
    Ok(format!("{} files, {batches} batches, {records} records", files.len()))
}

/// Kafka reads the offsets and groups in our `__consumer_offsets`: each record as what it is.
pub fn offsets(libs: &Path, log_dir: &Path) -> Result<String, String> {
    let is_of_offsets = |file: &PathBuf| {
        let partition =
            file.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        extension(file) == "log" && partition.is_some_and(|name| name.starts_with("__consumer_offsets-"))
    };
    let files: Vec<PathBuf> = files(log_dir)?.into_iter().filter(is_of_offsets).collect();
    let (mut offsets, mut groups, mut tombstones) = (0, 0, 0);
    for some in files.chunks(FILES_PER_RUN) {
        for line in
            dump(libs, &["--offsets-decoder"], some)?.lines().filter(|line| line.starts_with("| offset: "))
        {
            // A key is JSON with the type of its record; other types, and records that cannot be read, are an error.
            let (is_offset, is_group) =
                (line.contains("key: {\"type\":\"1\""), line.contains("key: {\"type\":\"2\""));
            match () {
                () if (is_offset || is_group) && line.ends_with("payload: <DELETE>") => tombstones += 1,
                () if is_offset && line.contains("\"commitTimestamp\":") => offsets += 1,
                () if is_group && line.contains("\"protocolType\":") => groups += 1,
                () => return Err(format!("Kafka cannot tell what this is: {line}")),
            }
        }
    }
    if offsets == 0 || groups == 0 || tombstones == 0 {
        return Err(format!("{offsets} offsets, {groups} groups, {tombstones} tombstones"));
    }
    Ok(format!("{offsets} offsets, {groups} groups, {tombstones} tombstones"))
}

/// Kafka's readers over what lies beside the segments, after a clean stop.
pub fn checkpoints(libs: &Path, log_dir: &Path) -> Result<String, String> {
    let classes = compiled(libs, "Checkpoints.java")?;
    let mut check = Command::new("java");
    check.args(["-Xmx512m", "-cp", &class_path(libs, Some(classes.path())), "Checkpoints"]).arg(log_dir);
    let text = tally::run(&mut check, STEP_LIMIT)?;
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

/// What Kafka's own log makes of a copy of a partition, in one line: where it begins and ends, its epochs and producers.
/// `how` is `clean` or `killed`: after a crash Kafka reads every batch and trusts no snapshot of ours.
pub fn as_kafka_loads(libs: &Path, how: &str, partition: &Path) -> Result<String, String> {
    let classes = compiled(libs, "Logs.java")?;
    let copies = tempfile::tempdir().expect("temporary directory");
    let copy = copies.path().join(partition.file_name().expect("a name"));
    tally::run(Command::new("cp").arg("-a").arg(partition).arg(&copy), STEP_LIMIT)?;
    let mut load = Command::new("java");
    load.args(["-Xmx512m", "-cp", &class_path(libs, Some(classes.path())), "Logs", how]).arg(&copy);
    let text = tally::run(&mut load, STEP_LIMIT)?;
    let line = text.lines().find(|line| line.starts_with("start "));
    line.map(str::to_owned).ok_or_else(|| format!("Kafka says nothing of the log:\n{text}"))
}

/// One of our Java programs, compiled against Kafka's jars.
pub fn compiled(libs: &Path, source: &str) -> Result<tempfile::TempDir, String> {
    let classes = tempfile::tempdir().expect("temporary directory");
    let mut compile = Command::new("javac");
    compile.args(["-cp", &class_path(libs, None), "-d"]).arg(classes.path());
    tally::run(compile.arg(tally::suites_dir().join("java").join(source)), STEP_LIMIT)?;
    Ok(classes)
}

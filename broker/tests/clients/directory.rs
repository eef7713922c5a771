//! Kafka's own tools over one of our data directories (T-1): dump-log over every segment, index and snapshot, Kafka's
//! readers over checkpoints and identity, and Kafka's log over a partition (T-3, T-14). Knows Kafka's output line by line: any other line is a complaint.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{STEP_LIMIT, child, class_path, java, tally};

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

/// Runs the tool over files and shows each line that it prints: of a large directory it prints more than anybody should
/// keep. Every file is told of, else its output was cut.
fn dump(
    libs: &Path,
    options: &[&str],
    files: &[PathBuf],
    visit: &mut dyn FnMut(&str) -> Result<(), String>,
) -> Result<(), String> {
    let list: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
    let mut command = java(libs, DUMP, &[options, &["--files", &list.join(",")]].concat());
    let mut told = 0;
    child::run_by_lines(&mut command, STEP_LIMIT, &mut |_, line| {
        told += usize::from(line.starts_with("Dumping "));
        visit(line)
    })?;
    if told != files.len() {
        let wanted = files.len();
        return Err(format!("dump-log {options:?} told of {told} files of {wanted}: its output was cut"));
    }
    Ok(())
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

/// Reads what the tool prints, and finds the first line that is not of a sound file.
struct Judge<'a> {
    /// Topics that may have gaps.
    compacted: &'a [&'a str],
    /// What may be told of the file that was named last.
    excused: Option<&'static str>,
    /// A complaint that waits for the line behind it, which says more.
    complaint: Option<String>,
}

impl<'a> Judge<'a> {
    fn new(compacted: &'a [&'a str]) -> Self {
        Self { compacted, excused: None, complaint: None }
    }

    fn hear(&mut self, line: &str) -> Result<(), String> {
        if let Some(complaint) = &self.complaint {
            return Err(format!("{complaint}\n{line}"));
        }
        let is_case = self.excused.is_some_and(|case| line.starts_with("  ") && line.contains(case));
        let told =
            OF_COMPACTION.iter().find_map(|(of_file, case)| Some((line.strip_prefix(of_file)?, *case)));
        if let Some((file, case)) = told {
            let partition = Path::new(file).parent().and_then(Path::file_name).unwrap_or_default();
            let topic = partition.to_str().and_then(|name| name.rsplit_once('-')).map(|(topic, _)| topic);
            self.excused = topic.filter(|topic| self.compacted.contains(topic)).map(|_| case);
        }
        if !is_sound(line) && !is_case && (told.is_none() || self.excused.is_none()) {
            self.complaint = Some(format!("dump-log complains: {line}"));
        }
        Ok(())
    }

    fn finish(self) -> Result<(), String> {
        self.complaint.map_or(Ok(()), Err)
    }
}

/// Every file decoded to its records, indexes compared with their logs and checked for sanity; every payload printed.
/// `compacted` are the topics that may have gaps.
pub fn dump_log(libs: &Path, log_dir: &Path, compacted: &[&str]) -> Result<String, String> {
    let files = files(log_dir)?;
    let (mut batches, mut records) = (0, 0);
    for some in files.chunks(FILES_PER_RUN) {
        let (mut found, mut printed) = (0, 0);
        let mut judge = Judge::new(compacted);
        dump(libs, &["--deep-iteration"], some, &mut |line| {
            batches += usize::from(line.starts_with("baseOffset: "));
            found += usize::from(line.starts_with("| offset: "));
            judge.hear(line)
        })?;
        judge.finish()?;
        dump(libs, &["--print-data-log"], some, &mut |line| {
            printed += usize::from(line.starts_with("| offset: "));
            Ok(())
        })?;
        if printed != found {
            return Err(format!("{found} records, but {printed} printed with their data"));
        }
        records += found;
        let indexes: Vec<PathBuf> =
            some.iter().filter(|file| extension(file).ends_with("index")).cloned().collect();
        if !indexes.is_empty() {
            let mut judge = Judge::new(&[]);
            dump(libs, &["--index-sanity-check"], &indexes, &mut |line| judge.hear(line))?;
            judge.finish()?;
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
        dump(libs, &["--offsets-decoder"], some, &mut |line| {
            if !line.starts_with("| offset: ") {
                return Ok(());
            }
            // A key is JSON with the type of its record; other types, and records that cannot be read, are an error.
            let (is_offset, is_group) =
                (line.contains("key: {\"type\":\"1\""), line.contains("key: {\"type\":\"2\""));
            match () {
                () if (is_offset || is_group) && line.ends_with("payload: <DELETE>") => tombstones += 1,
                () if is_offset && line.contains("\"commitTimestamp\":") => offsets += 1,
                () if is_group && line.contains("\"protocolType\":") => groups += 1,
                () => return Err(format!("Kafka cannot tell what this is: {line}")),
            }
            Ok(())
        })?;
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
    let text = child::run(&mut check, STEP_LIMIT)?;
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

/// What Kafka's own log makes of a copy of a partition, in one line: where it begins and ends, its epochs and producers.
/// `how` is `clean` or `killed`: after a crash Kafka reads every batch and trusts no snapshot of ours.
pub fn as_kafka_loads(libs: &Path, how: &str, partition: &Path) -> Result<String, String> {
    let classes = compiled(libs, "Logs.java")?;
    let copies = tempfile::tempdir().expect("temporary directory");
    let copy = copies.path().join(partition.file_name().expect("a name"));
    child::run(Command::new("cp").arg("-a").arg(partition).arg(&copy), STEP_LIMIT)?;
    let mut load = Command::new("java");
    load.args(["-Xmx512m", "-cp", &class_path(libs, Some(classes.path())), "Logs", how]).arg(&copy);
    let text = child::run(&mut load, STEP_LIMIT)?;
    let line = text.lines().find(|line| line.starts_with("start "));
    line.map(str::to_owned).ok_or_else(|| format!("Kafka says nothing of the log:\n{text}"))
}

/// One of our Java programs, compiled against Kafka's jars.
pub fn compiled(libs: &Path, source: &str) -> Result<tempfile::TempDir, String> {
    let classes = tempfile::tempdir().expect("temporary directory");
    let mut compile = Command::new("javac");
    compile.args(["-cp", &class_path(libs, None), "-d"]).arg(classes.path());
    child::run(compile.arg(tally::suites_dir().join("java").join(source)), STEP_LIMIT)?;
    Ok(classes)
}

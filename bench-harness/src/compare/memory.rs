//! Memory before a measurement: guest memory that nobody touched is slow once, and a backlog that is to be read from the
//! disk must not be in the page cache. Knows no broker, only files and bytes.
#![allow(clippy::disallowed_methods, reason = "a harness asks the file system")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::host;
use crate::interrupt::Interrupt;

const CHUNK: usize = 64 << 20;
/// GiB that touching leaves alone.
const MARGIN_GIB: f64 = 4.0;

/// Writes to each page of this much memory once and gives it back; without a number, to all that is available less a
/// margin. Returns GiB.
///
/// # Errors
/// The machine does not tell how much there is, or a signal came.
pub fn touch(gib: Option<f64>, interrupt: &Interrupt) -> Result<f64> {
    let room = (host::available_gib()? - MARGIN_GIB).max(0.0);
    let wanted = gib.unwrap_or(room).min(room);
    let mut held: Vec<Vec<u8>> = Vec::new();
    let mut touched = 0.0;
    while touched < wanted {
        interrupt.check()?;
        // Not zeroes, which the allocator would leave to the kernel's zero page.
        held.push(std::hint::black_box(vec![0xa5; CHUNK]));
        touched += 1.0 / 16.0;
    }
    drop(held);
    Ok(touched)
}

/// The segments of a topic's partitions.
///
/// # Errors
/// The directory cannot be read.
pub fn segments(logs: &Path, topic: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(logs)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix(topic).and_then(|rest| rest.strip_prefix('-'));
        if number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
            for file in std::fs::read_dir(&path)? {
                let file = file?.path();
                if file.extension().is_some_and(|extension| extension == "log") {
                    found.push(file);
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Bytes that the files below a directory take on the disk; those that vanish meanwhile count for nothing.
pub fn blocks_below(directory: &Path) -> u64 {
    const BLOCK: u64 = 512;
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let each = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => blocks_below(&entry.path()),
        Ok(metadata) => metadata.blocks().saturating_mul(BLOCK),
        Err(_) => 0,
    });
    each.sum()
}

/// Waits until the disk has what was written to the file system of this directory.
///
/// # Errors
/// `sync` fails.
pub fn write_back(directory: &Path) -> Result<()> {
    let synced = Command::new("sync").arg("--file-system").arg(directory).status()?;
    ensure!(synced.success(), "sync failed");
    Ok(())
}

/// Writes the files back and takes them out of the page cache. Returns the share of their bytes that stayed.
///
/// # Errors
/// A program fails.
pub fn evict(files: &[PathBuf]) -> Result<f64> {
    ensure!(!files.is_empty(), "there is no file to evict");
    let synced = Command::new("sync").arg("--data").args(files).status()?;
    ensure!(synced.success(), "sync failed");
    for file in files {
        // With a count of zero, dd tells the kernel that the whole file is not needed any more, and reads nothing.
        let input = format!("if={}", file.display());
        let output = Command::new("dd")
            .args([&input, "of=/dev/null", "iflag=nocache", "count=0", "status=none"])
            .output()?;
        ensure!(output.status.success(), "dd failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    resident(files)
}

/// The share of the files' bytes that is in the page cache.
///
/// # Errors
/// `fincore` fails or says something else.
pub fn resident(files: &[PathBuf]) -> Result<f64> {
    let output = Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES,SIZE"])
        .args(files)
        .output()?;
    ensure!(output.status.success(), "fincore failed: {}", String::from_utf8_lossy(&output.stderr));
    parse_resident(&String::from_utf8_lossy(&output.stdout))
        .context("fincore says something else than two numbers a line")
}

fn parse_resident(text: &str) -> Option<f64> {
    let (mut resident, mut size) = (0.0, 0.0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_ascii_whitespace().map(str::parse::<f64>);
        resident += words.next()?.ok()?;
        size += words.next()?.ok()?;
    }
    Some(if size > 0.0 { resident / size } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residency_is_the_share_of_all_bytes() {
        assert_eq!(parse_resident("  4096 8192\n 0 8192\n"), Some(0.25));
        assert_eq!(parse_resident("0 0\n"), Some(0.0));
        assert_eq!(parse_resident("x y\n"), None);
        assert_eq!(parse_resident("12\n"), None);
    }

    #[test]
    fn an_evicted_file_is_not_in_the_page_cache() {
        // Not below /tmp, which may be memory.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let partition = directory.path().join("topic-0");
        std::fs::create_dir(&partition).unwrap();
        std::fs::create_dir(directory.path().join("topic-other-0")).unwrap();
        std::fs::write(directory.path().join("topic-other-0/0.log"), "x").unwrap();
        std::fs::write(partition.join("0.log"), vec![7; 4 << 20]).unwrap();
        std::fs::write(partition.join("0.index"), "x").unwrap();
        let files = segments(directory.path(), "topic").unwrap();
        assert_eq!(files, [partition.join("0.log")]);
        assert_eq!(resident(&files).unwrap(), 1.0);
        assert_eq!(evict(&files).unwrap(), 0.0);
        std::fs::read(&files[0]).unwrap();
        assert_eq!(resident(&files).unwrap(), 1.0);
        write_back(directory.path()).unwrap();
        assert!((4 << 20..5 << 20).contains(&blocks_below(directory.path())));
        assert!(evict(&[]).is_err());
    }

    #[test]
    fn touching_stops_at_what_was_asked() {
        let interrupt = Interrupt::default();
        assert_eq!(touch(Some(0.1), &interrupt).unwrap(), 0.125);
        assert_eq!(touch(Some(0.0), &interrupt).unwrap(), 0.0);
    }

    #[test]
    fn touching_stops_at_a_signal() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        assert_eq!(touch(Some(0.1), &interrupt).unwrap_err().to_string(), "interrupted");
    }
}

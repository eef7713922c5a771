//! What runners of clients make of the programs that they start (`clients/child.rs`): every line is seen, however much is
//! printed and wherever; a program that prints too much, for too long, or not to the end of a line is told from one that is
//! well.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "drives real processes from outside")]
#![allow(clippy::indexing_slicing, reason = "a test that finds too little has failed")]

#[path = "clients/child.rs"]
mod child;
mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use child::Stream;

const LIMIT: Duration = Duration::from_secs(120);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// How many lines each stream had, or why not.
fn count(script: &str, limit: Duration) -> Result<[usize; 2], String> {
    let mut counts = [0; 2];
    child::run_by_lines(&mut shell(script), limit, &mut |stream, line| {
        assert!(line.starts_with("| offset: "), "{line:?}");
        counts[usize::from(stream == Stream::Errors)] += 1;
        Ok(())
    })?;
    Ok(counts)
}

#[test]
fn every_line_of_both_streams_is_seen_and_none_is_stored() {
    // Each stream fills its pipe many times while the other waits: 60 MB, of which a failure would tell some KB.
    let line = format!("| offset: {}", "x".repeat(990));
    let many = format!("yes '{line}' | head -n 30000");
    assert_eq!(count(&format!("{many} >&2; {many}"), LIMIT), Ok([30_000, 30_000]));
    let failed = count(&format!("{many}; {many} >&2; exit 3"), LIMIT).expect_err("it has failed");
    assert!(failed.starts_with("sh ended with exit status: 3:\n| offset: "), "{failed:.100}");
    assert!(failed.len() < 70 << 10, "{} bytes are told", failed.len());
}

#[test]
fn output_that_was_cut_is_a_failure_that_says_so() {
    let cut = count("echo '| offset: 1'; printf '| offset: 2'", LIMIT);
    assert_eq!(cut, Err("the output of sh was cut: its last line has no end".to_owned()));
    // What it complains of may end anyhow, and so may what is kept whole.
    assert_eq!(count("echo '| offset: 1'; printf '| offset: 2' >&2", LIMIT), Ok([1, 1]));
    assert_eq!(child::run(&mut shell("echo a; printf b; printf c >&2"), LIMIT), Ok("a\nbc".to_owned()));
}

#[test]
fn a_program_that_is_killed_half_way_has_failed() {
    let killed = count("echo '| offset: 1'; kill -9 $$", LIMIT).expect_err("it was killed");
    assert!(killed.contains("signal: 9") && killed.ends_with("\n| offset: 1"), "{killed}");
}

#[test]
fn the_limit_holds_for_who_is_silent_and_for_who_never_stops_to_print() {
    for script in ["exec sleep 100", "exec yes '| offset: 1'", "exec sleep 100 >/dev/null 2>&1"] {
        let started = Instant::now();
        let late = count(script, Duration::from_millis(300)).expect_err("it is late");
        assert!(late.starts_with("sh ran longer than 300ms:"), "{late:.100}");
        assert!(started.elapsed() < LIMIT, "{script}");
    }
}

#[test]
fn what_is_kept_whole_has_a_bound() {
    let large = child::run(&mut shell("exec yes"), LIMIT).expect_err("it prints for ever");
    assert_eq!(large, "sh prints more than the 16777216 bytes that are kept");
    let long = child::run(&mut shell("exec cat /dev/zero"), LIMIT).expect_err("its line has no end");
    assert_eq!(long, "a line is longer than 16777216 bytes");
}

#[test]
fn a_visitor_that_has_seen_enough_ends_the_program() {
    let refused = child::run_by_lines(&mut shell("exec yes"), LIMIT, &mut |_, line| Err(line.to_owned()));
    assert_eq!(refused, Err("y".to_owned()));
}

#[test]
fn too_little_room_is_one_sentence() {
    assert_eq!(child::expect_room(Path::new("/"), 0, "a test"), Ok(()));
    let full = child::expect_room(Path::new("/"), 1 << 60, "a test").expect_err("no disk has as much");
    let (start, end) = ("/ has ", " GB free, and a test may take 1152921504.6 GB");
    assert!(full.starts_with(start) && full.ends_with(end) && !full.contains('\n'), "{full}");
}

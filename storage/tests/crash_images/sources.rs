//! Where the sources of the crate sync and rename, read as text: no such place may be missing in the runs.
#![allow(clippy::disallowed_methods, reason = "reads the source tree")]

use std::fs;
use std::path::Path;

use crate::images::short;

/// File, line and text of each call that syncs or renames, tests and the seam itself aside.
pub fn calls() -> Vec<(String, u32, String)> {
    let mut calls = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut calls);
    calls
}

fn collect(dir: &Path, into: &mut Vec<(String, u32, String)>) {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        if path.is_dir() {
            if name != "io" && name != "tests" {
                collect(&path, into);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).unwrap();
            for (line, text) in (1..).zip(text.lines()) {
                if is_call(text.trim()) {
                    into.push((short(&path), line, text.trim().to_owned()));
                }
            }
        }
    }
}

fn is_call(line: &str) -> bool {
    let calls = [".sync_data()", "DirOp::Sync(", "DirOp::Rename {", "sync_parent(", "sync_dir()"];
    let is_other = ["//", "use ", "pub fn ", "fn "].iter().any(|start| line.starts_with(start));
    !is_other && calls.iter().any(|call| line.contains(call))
}

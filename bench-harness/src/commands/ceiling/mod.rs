//! `ceiling`: what this machine can do at all, in the hour of the comparison: each step of a record's way through a broker
//! alone, in CPU-seconds per GB, and the sum of those that no broker on this path can leave out. Knows no broker.

mod probes;
mod ring;

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::{Ceiling, refuse};
use crate::clock::Clock;
use crate::measure::rounded;
use crate::report::Report;
use probes::{Cost, Probe};

/// Runs it.
///
/// # Errors
/// One sentence, and what caused it.
pub fn run(arguments: &Ceiling) -> Result<Report> {
    let chunk = usize::try_from(arguments.chunk_bytes)?;
    if !(512..=16 << 20).contains(&chunk) {
        refuse!("--chunk-bytes is a number from 512 to 16Mi");
    }
    if arguments.bytes < arguments.chunk_bytes {
        refuse!("--bytes is at least --chunk-bytes");
    }
    let mut report = Report::new("ceiling", arguments, &Clock::start());
    let mut probe =
        Probe::new(chunk, arguments.bytes / arguments.chunk_bytes, &arguments.dir, arguments.peer_cpu)?;
    eprintln!("append through the page cache, three passes: the first touches memory");
    let (mut append, mut append_pwrite) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        append.push(probe.append_by_ring()?);
        append_pwrite.push(probe.append_by_pwrite()?);
    }
    eprintln!("checksum and copy");
    let (crc32c, copy) = (probe.checksum(), probe.copy());
    eprintln!("loopback");
    let (receive, send, sendfile) = (probe.receive()?, probe.send()?, probe.sendfile()?);
    eprintln!("fdatasync");
    let fdatasync = probe.fdatasync()?;
    // A batch need not be copied between its receive and its append, so the copy is told and no part of the floor.
    // The last pass is that of memory which was touched; the cheaper way is the floor.
    let last = |passes: &[Cost]| passes.last().map_or(f64::INFINITY, |cost| cost.cpu_seconds_per_gb);
    let append_cost = last(&append).min(last(&append_pwrite));
    let floor = |name: &str, out: &Cost| -> Value {
        let parts = [
            ("receive", receive.cpu_seconds_per_gb),
            ("crc32c", crc32c.cpu_seconds_per_gb),
            ("append", append_cost),
            (name, out.cpu_seconds_per_gb),
        ];
        let sum: f64 = parts.iter().map(|(_, cost)| cost).sum();
        let parts: serde_json::Map<String, Value> =
            parts.iter().map(|(name, cost)| ((*name).to_owned(), json!(rounded(*cost, 4)))).collect();
        json!({"cpu_seconds_per_gb": rounded(sum, 4), "parts": parts})
    };
    let all = |passes: &[Cost]| passes.iter().map(|cost| cost.to_json()).collect::<Value>();
    report.add(
        "ceiling",
        json!({
            "receive": receive.to_json(),
            "send": send.to_json(),
            "sendfile": sendfile.to_json(),
            "crc32c": crc32c.to_json(),
            "copy": copy.to_json(),
            "append": all(&append),
            "append_pwrite": all(&append_pwrite),
            "fdatasync_us": fdatasync.to_json(),
            "floor": floor("send", &send),
            "floor_sendfile": floor("sendfile", &sendfile),
        }),
    );
    Ok(report)
}

//! What a run is measured with: processes and machine as `/proc` tells them, system calls as `perf` counts them,
//! histograms and their log. Knows no load.

pub mod histogram;
pub mod machine;
pub mod others;
pub mod perf;
pub mod proc;
pub mod process;
pub mod window;

/// A file of `/proc`, or any small text; `None` when it cannot be read.
#[allow(clippy::disallowed_methods, reason = "reads /proc; no shard waits here")]
pub fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// A number rounded for a report: no more digits than the clock behind it has.
pub fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// `part` of `whole`, 0 where there is no whole.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A count as a number to divide; counts of a run stay far below 2^53.
#[allow(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
pub fn float(count: u64) -> f64 {
    count as f64
}

//! Histograms of nanoseconds, what a report tells of them, and their log in HdrHistogram's V2 format, which its viewers
//! read. The format is written here because the crate's own feature for it brings a second zlib into the workspace.

use std::io::Write;

use base64::Engine;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::measure::rounded;

/// Longest time that is told apart: above two minutes nobody waits.
const HIGHEST_NS: u64 = 120_000_000_000;
const DIGITS: u8 = 3;

/// Times of a run.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

impl Times {
    /// No times.
    pub fn new() -> Self {
        // Bounds and digits are constants that the crate accepts; its smallest histogram stands in for an error.
        let bounded = Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS);
        Self(bounded.unwrap_or_else(|_| Histogram::new_from(&Self::smallest())))
    }

    fn smallest() -> Histogram<u64> {
        #[allow(clippy::unwrap_used, reason = "one digit is always accepted")]
        Histogram::new(1).unwrap()
    }

    /// Notes a time.
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Notes a time of several records.
    pub fn record_n(&mut self, nanos: u64, count: u64) {
        self.0.saturating_record_n(nanos, count);
    }

    /// Number of times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that a share of all does not exceed.
    pub fn at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.0.mean()
    }

    /// The longest.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// In microseconds, as it stands in a report; null without times.
    pub fn to_json(&self) -> Value {
        if self.count() == 0 {
            return Value::Null;
        }
        let us = |nanos: u64| rounded(std::time::Duration::from_nanos(nanos).as_secs_f64() * 1e6, 1);
        json!({
            "count": self.count(),
            "mean": rounded(self.mean() / 1e3, 2),
            "p50": us(self.at(0.5)),
            "p90": us(self.at(0.9)),
            "p99": us(self.at(0.99)),
            "p99_9": us(self.at(0.999)),
            "p99_99": us(self.at(0.9999)),
            "max": us(self.max()),
        })
    }

    /// The histogram as HdrHistogram's V2 bytes: a header, then the counts in zigzag base 128, runs of zeros as one
    /// negative number.
    fn v2_bytes(&self) -> Vec<u8> {
        let mut counts = Vec::new();
        let mut zeros: i64 = 0;
        let last = self.0.max();
        for step in self.0.iter_all() {
            match i64::try_from(step.count_at_value()).unwrap_or(i64::MAX) {
                0 => zeros += 1,
                count => {
                    if zeros > 0 {
                        zigzag(-zeros, &mut counts);
                        zeros = 0;
                    }
                    zigzag(count, &mut counts);
                }
            }
            if step.value_iterated_to() >= last {
                break;
            }
        }
        let mut bytes = Vec::with_capacity(counts.len() + 40);
        bytes.extend_from_slice(&0x1c84_9313_u32.to_be_bytes());
        bytes.extend_from_slice(&u32::try_from(counts.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&0_u32.to_be_bytes());
        bytes.extend_from_slice(&u32::from(DIGITS).to_be_bytes());
        bytes.extend_from_slice(&self.0.low().to_be_bytes());
        bytes.extend_from_slice(&self.0.high().to_be_bytes());
        bytes.extend_from_slice(&1_f64.to_be_bytes());
        bytes.extend_from_slice(&counts);
        bytes
    }
}

fn zigzag(value: i64, out: &mut Vec<u8>) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    // HdrHistogram's form of base 128 ends after nine bytes, the ninth whole.
    for _ in 0..8 {
        let [low, ..] = rest.to_le_bytes();
        rest >>= 7;
        if rest == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
    let [low, ..] = rest.to_le_bytes();
    out.push(low);
}

/// A histogram log: each histogram as one tagged interval from `start` seconds since 1970 on.
///
/// # Errors
/// What compression says.
pub fn log(start: f64, seconds: f64, tagged: &[(&str, &Times)]) -> std::io::Result<String> {
    let mut text = format!(
        "#[Histogram log format version 1.3]\n#[StartTime: {start:.3} (seconds since epoch)]\n\
         \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n"
    );
    for (tag, times) in tagged.iter().filter(|(_, times)| times.count() > 0) {
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(&times.v2_bytes())?;
        let packed = packed.finish()?;
        let mut bytes = 0x1c84_9314_u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&u32::try_from(packed.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&packed);
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        // Interval_Max is in milliseconds by default, of values in nanoseconds.
        let max = std::time::Duration::from_nanos(times.max()).as_secs_f64() * 1e3;
        text.push_str(&format!("Tag={tag},0.000,{seconds:.3},{max:.3},{encoded}\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_in_microseconds() {
        let mut times = Times::new();
        assert_eq!(times.to_json(), Value::Null);
        times.record_n(100_000, 99);
        times.record(5_000_000);
        let report = times.to_json();
        assert_eq!(report["count"], 100);
        assert!((report["p50"].as_f64().unwrap() - 100.0).abs() < 0.2, "{report}");
        assert!((report["max"].as_f64().unwrap() - 5000.0).abs() < 10.0, "{report}");
    }

    #[test]
    fn the_longest_time_is_kept_within_bounds() {
        let mut times = Times::new();
        times.record(u64::MAX);
        assert!(times.max() >= HIGHEST_NS && times.count() == 1);
    }

    /// Reads V2 bytes back the way the format says: (index of the count, count).
    fn counts(bytes: &[u8]) -> Vec<(i64, i64)> {
        let mut rest = &bytes[40..];
        let (mut index, mut found) = (0, Vec::new());
        while !rest.is_empty() {
            let (mut raw, mut shift) = (0_u64, 0);
            loop {
                let byte = rest[0];
                rest = &rest[1..];
                if shift == 56 {
                    raw |= u64::from(byte) << shift;
                    break;
                }
                raw |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    break;
                }
            }
            let value = (raw >> 1).cast_signed() ^ -(raw & 1).cast_signed();
            if value < 0 {
                index -= value;
            } else {
                found.push((index, value));
                index += 1;
            }
        }
        found
    }

    #[test]
    fn counts_stand_at_the_index_of_their_value() {
        let mut times = Times::new();
        times.record_n(3, 2);
        times.record(2047);
        // Above 2048 a bucket of the next half covers two values: 2048 + (3000 - 2048) / 2.
        times.record_n(3000, 70_000);
        let bytes = times.v2_bytes();
        assert_eq!(bytes[..4], 0x1c84_9313_u32.to_be_bytes());
        assert_eq!(u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize, bytes.len() - 40);
        assert_eq!(counts(&bytes), [(3, 2), (2047, 1), (2524, 70_000)]);
    }

    #[test]
    fn a_log_has_a_line_per_histogram_that_has_times() {
        let mut times = Times::new();
        times.record(1_500_000);
        let text = log(1000.5, 2.0, &[("produce", &times), ("fetch", &Times::new())]).expect("log");
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Tag=")).collect();
        assert_eq!(lines.len(), 1, "{text}");
        let encoded = lines[0].strip_prefix("Tag=produce,0.000,2.000,1.500,").expect("the fields");
        assert!(encoded.starts_with("HISTFAAA"), "{encoded}");
    }
}

//! What is counted, and how it is told. Counters are plain cells that their shard owns: counting takes no lock, no
//! atomic and no allocation. A scrape asks every shard for a snapshot that owns its data, adds the snapshots up, and
//! writes Prometheus' text. Knows neither who counts nor who serves the text.
//!
//! Reading order: [`names`] (THE table), [`histogram`], [`registry`] (the cells), [`snapshot`] (what crosses threads),
//! [`lines`] (what is told of clients at once), [`scrape`] (asks, adds, looks back), [`text`], [`process`], [`state`] (how far the broker is).

pub mod histogram;
pub mod lines;
pub mod names;
pub mod process;
pub mod registry;
pub mod scrape;
pub mod snapshot;
pub mod state;
#[cfg(test)]
mod tests;
pub mod text;

pub use registry::ShardMetrics;

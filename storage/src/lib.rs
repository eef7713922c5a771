//! One partition log on one disk, in Kafka's bytes (shared/spec/storage.md). No sockets, no requests, no ISR, no
//! cluster.
//!
//! Reading order: [`io`] (the seam to the machine), [`config`] (what a log has to know of its topic); the formats:
//! [`names`], [`checkpoint`], [`epochs`], [`index`], [`producer_state`], [`partition_metadata`], [`meta_properties`],
//! [`clean_shutdown`]; what compaction decides: [`compaction`]; then [`log`] (one partition), [`lock`] and [`log_dir`] (one
//! entry of `log.dirs`).

pub mod config;
pub mod io;

pub mod names;

pub mod checkpoint;
pub mod clean_shutdown;
pub mod epochs;
pub mod index;
pub mod meta_properties;
pub mod partition_metadata;
pub mod producer_state;

pub mod compaction;

pub mod log;

pub mod lock;
pub mod log_dir;

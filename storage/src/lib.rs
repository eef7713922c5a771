//! One partition log on one disk, in Kafka's bytes (shared/spec/storage.md). No sockets, no requests, no ISR, no
//! cluster.
//!
//! Reading order: [`io`] (the seam to the machine), [`config`] (what a log has to know of its topic); the formats:
//! [`names`], [`checkpoint`], [`epochs`], [`index`], [`producer_state`]; and [`log`], which uses them all.

pub mod config;
pub mod io;

pub mod names;

pub mod checkpoint;
pub mod epochs;
pub mod index;
pub mod producer_state;

pub mod log;

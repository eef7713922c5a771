//! Side by side: our broker and Apache Kafka, each on its own, pair by pair, and our broker against itself.
//!
//! Reading order: `stats` (what pairs allow to be said), `noise` (when a run is void), `figures` (what is measured and
//! what for), `host` and `memory` (the machine), `child`, `awake` and `servers` (processes), `stage` (one run), `job` (a load),
//! `promise` (what an acknowledgement waits for), `contrast` (sides in turn), `scenarios`, `durable`, `groups` and `recovery` (what is
//! done), `dirty`, `clean` and `compaction` (the same of a cleaner), `slow_disk`, `report` and `svg` (what comes out), `series` (`compare`),
//! `sweep`.

mod awake;
mod child;
mod clean;
mod compaction;
mod contrast;
mod dirty;
mod durable;
mod figures;
mod groups;
mod host;
mod job;
mod memory;
mod noise;
pub mod options;
mod promise;
mod recovery;
mod report;
mod scenarios;
pub mod series;
mod servers;
mod slow_disk;
mod stage;
mod stats;
mod svg;
pub mod sweep;

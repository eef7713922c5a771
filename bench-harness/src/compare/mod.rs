//! Side by side: our broker and Apache Kafka, each on its own, pair by pair, and our broker against itself.
//!
//! Reading order: `stats` (what pairs allow to be said), `noise` (when a run is void), `figures` (what is measured and
//! what for), `host` and `memory` (the machine), `child`, `awake` and `servers` (processes), `stage` (one run), `job` (a load),
//! `promise` (what an acknowledgement waits for), `contrast` (sides in turn), `scenarios`, `durable` and `groups` (what is done), `report` and `svg` (what comes out), `series` (`compare`),
//! `sweep`.

mod awake;
mod child;
mod contrast;
mod durable;
mod figures;
mod groups;
mod host;
mod job;
mod memory;
mod noise;
pub mod options;
mod promise;
mod report;
mod scenarios;
pub mod series;
mod servers;
mod stage;
mod stats;
mod svg;
pub mod sweep;

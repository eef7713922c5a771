//! Side by side: our broker and Apache Kafka, each on its own, pair by pair, and our broker against itself.
//!
//! Reading order: `stats` (what pairs allow to be said), `noise` (when a run is void), `figures` (what is measured and
//! what for), `host` and `memory` (the machine), `child`, `awake` and `servers` (processes), `stage` (one run), `job` (a load),
//! `contrast` (sides in turn), `scenarios` (what is done), `report` and `svg` (what comes out), `series` (`compare`),
//! `sweep`.

pub mod awake;
pub mod child;
pub mod contrast;
pub mod figures;
pub mod host;
pub mod job;
pub mod memory;
pub mod noise;
pub mod options;
pub mod report;
pub mod scenarios;
pub mod series;
pub mod servers;
pub mod stage;
pub mod stats;
pub mod svg;
pub mod sweep;

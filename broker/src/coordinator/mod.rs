//! Coordinators: of consumer groups and their committed offsets (coordinators.md 1 to 3). Each partition of
//! `__consumer_offsets` has one, on the shard that owns the partition; `group` decides, `service` reads and appends.
//! Knows no wire format: `handlers` translate.
//!
//! Reading order: [`ask`] (what a coordinator is asked), [`group`] (the pure machine), [`service`] (which partitions have
//! one), [`settings`], `bounds`, `load` (from the log), `active` (a machine at work), `write` (into the log), `gauges` and `report` (what is
//! told of them), [`client`] (who asks).

mod active;
pub mod ask;
mod bounds;
pub mod client;
mod gauges;
pub mod group;
mod load;
mod report;
pub mod service;
pub mod settings;
mod write;

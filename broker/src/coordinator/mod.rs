//! Coordinators: of consumer groups and their committed offsets (coordinators.md 1 to 3). Each partition of
//! `__consumer_offsets` has one, on the shard that owns the partition; `group` decides, `service` reads and appends.
//! Knows no wire format: `handlers` translate.

pub mod ask;
pub mod group;

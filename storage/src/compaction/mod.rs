//! What compaction decides (storage.md 7.4, 7.5): how much of a log is dirty and which log is the dirtiest ([`choice`]), which
//! offset of each key is the last ([`OffsetMap`]), which transactions count ([`transactions`]), which batches and records
//! stay ([`retention`]), and which segments become one ([`group`]). Pure: no file, no clock, no log. Driven by
//! [`crate::log`], which reads, writes and swaps segments; the choice between logs is the broker's.

pub mod choice;
pub(crate) mod group;
mod offset_map;
pub(crate) mod retention;
pub(crate) mod transactions;

pub use choice::{Cleanable, filthiest};
pub use offset_map::OffsetMap;

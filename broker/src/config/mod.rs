//! Configuration: one table of keys, the sources that set them, and the typed structs that subsystems receive.
//!
//! Reading order: [`keys`] (THE table), [`value`] (one value), [`settings`] (what was set), [`listeners`], [`broker`]
//! (the typed whole), [`topic`] (what a topic inherits and overrides), [`parse`] (the sources), [`load`] (all of it), [`describe`] and
//! [`dynamic`] (what clients are told, and what they change).
//! Knows nothing above it: who stores overrides and who answers `DescribeConfigs` is decided in `admin` and `handlers`.

pub mod broker;
mod checks;
pub mod describe;
pub mod dynamic;
pub mod keys;
pub mod listeners;
pub mod load;
pub mod parse;
pub mod settings;
pub mod topic;
pub mod value;

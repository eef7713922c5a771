//! Configuration: one table of keys, the sources that set them, and the typed structs that subsystems receive.
//!
//! Reading order: [`keys`] (THE table), [`value`] (one value), [`settings`] (what was set), [`listeners`], [`broker`]
//! (the typed whole), [`topic`] (what a topic inherits and overrides). Knows nothing above it: who stores overrides and
//! who answers `DescribeConfigs` is decided in `admin` and `handlers`.

pub mod broker;
mod checks;
pub mod keys;
pub mod listeners;
pub mod settings;
pub mod topic;
pub mod value;

//! What this broker knows of the cluster.
//!
//! Reading order: [`image`] (one immutable value per version), [`cell`] (a shard's pointer to the newest), [`delta`] (from
//! one version to the next), [`publish`] (to all shards).

pub mod cell;
pub mod delta;
pub mod image;
pub mod publish;

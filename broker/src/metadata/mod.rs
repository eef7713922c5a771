//! What this broker knows of the cluster.
//!
//! Reading order: [`image`] (one immutable value per version), [`cell`] (a shard's pointer to the newest).

pub mod cell;
pub mod image;

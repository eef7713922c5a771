//! Wishes of clients about the cluster: checked, written into the metadata store, and answered when the controller has
//! done them and every shard shows it. Lives on shard 0; other shards ask it through [`service::AdminService`].
//!
//! Reading order: [`ask`] (the messages), [`topics`] with `names` and `shown`, [`configs`], [`producer_ids`], [`placement`], `old_offsets`.
//! The controller learns of topics by its watches: nothing here calls it.

pub mod ask;
pub mod configs;
mod names;
mod old_offsets;
pub mod placement;
pub mod producer_ids;
pub mod service;
mod shown;
pub mod topics;

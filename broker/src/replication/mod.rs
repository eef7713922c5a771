//! This broker's replicas as the controller wants them (replication.md 10.1, controller.md 17): which shard owns which, and
//! how its requests reach them. Knows no wire format. `start` begins it; the controller's driver reaches it by its link.
//!
//! - [`receiver`] applies the controller's requests one after another
//! - [`owners`] decides: newer or stale, and which shard (pure)
//! - [`topic_configs`] overrides of the topics with replicas here
//! - [`config_changes`] announcements of changed ones
//! - [`dir_events`] tells the controller of a log dir that has failed

pub mod config_changes;
pub mod dir_events;
pub mod owners;
pub mod receiver;
pub mod topic_configs;

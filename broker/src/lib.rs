//! The Odradek broker: shards, sockets, requests, partitions, metadata and controller.
//!
//! Calls go down and never up: `net > handlers > {admin, coordinator, replication} > {partition, controller} >
//! {metadata, store, security} > {shard, sidecar, config, metrics}`; siblings do not import each other.

pub mod admin;
pub mod cli;
pub mod config;
pub mod controller;
pub mod coordinator;
pub mod fetch_session;
pub mod handlers;
pub mod metadata;
pub mod metrics;
pub mod net;
pub mod partition;
pub mod replication;
pub mod shard;
pub mod sidecar;
pub mod start;
pub mod store;

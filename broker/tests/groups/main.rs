//! Consumer groups and committed offsets over the wire, against a real process on one shard and on two: every version of
//! each request, and each situation of coordinators.md 2 its exact error.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "drives a real process from outside"
)]

mod admin;
mod harness;
mod membership;
mod offsets;
mod parked;
mod statics;
#[path = "../support/mod.rs"]
mod support;

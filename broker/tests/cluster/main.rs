//! The cluster's requests against one broker in one thread: real store, controller, partitions and handlers over
//! simulated shards and files (protocol.md 5: 43 to 49, 75 to 81; field faults F68 to F70, F75). On 1, 2 and 5 shards.
#![allow(clippy::indexing_slicing, reason = "tests may panic")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod control;
mod coordinator;
mod creation;
mod harness;
mod metadata;
mod restart;
#[path = "../support/wiring.rs"]
mod wiring;

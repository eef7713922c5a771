//! Requests against one broker in one thread: real handlers and partitions over simulated shards and files. Each case is
//! a request struct in and an exact answer out (protocol.md 5), on 1, 2 and 5 shards.
#![allow(clippy::indexing_slicing, reason = "tests may panic")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod compaction;
mod coordinator;
mod coordinator_memory;
mod coordinator_parts;
mod deleted_topics;
mod durability;
mod failing;
mod fetch;
mod harness;
mod idempotence;
mod lifecycle;
mod loading;
mod moves;
mod moves_cut;
mod offsets;
mod parked;
mod pressure;
mod produce;
mod quiet;
mod replication;
mod restart;
mod sessions;
mod slow;
mod swaps;
mod twice;
#[path = "../support/wiring.rs"]
mod wiring;

//! Fetch sessions (KIP-227): what a client need not repeat from fetch to fetch. Pure: time and randomness come in
//! as arguments. Each shard has a cache of its own; the id of a session tells the shard (replication.md 12.4). Knows
//! no log and no owner; `handlers/fetch` is its driver.
//!
//! Reading order: [`cache`] (the table of replication.md 5, eviction), [`session`] (one session's partitions).

pub mod cache;
pub mod session;
#[cfg(test)]
mod tests;

//! The groups of one partition of `__consumer_offsets`: a pure machine, `step(now, event, out)`. Decides who is a member,
//! when a rebalance ends, which offsets are kept. Knows no clock, no log and no shard: `service` drives it, and a reply
//! that depends on a record leaves only when the record is committed (coordinators.md 1.2, 2, 3).
//!
//! Reading order: [`machine`] (events and effects), [`news`] (what is told), [`groups`] (the machine), `state` (one group), `members`, `join`,
//! `rebalance`, `sync`, `sessions` (membership), `offsets`, `commits`, `forget`, `expiry` (offsets), `writes` (what follows
//! from a batch), `replay` (loading), `core`, `timers`, `topics`, `bytes` (what they
//! share).

mod bytes;
mod commits;
mod core;
mod expiry;
mod forget;
pub mod groups;
mod join;
pub mod machine;
mod members;
pub mod news;
mod offsets;
mod rebalance;
pub mod refused;
pub mod replay;
mod sessions;
mod state;
mod sync;
mod timers;
mod topics;
mod writes;

#[cfg(test)]
mod tests;

pub use self::core::{Counts, Gauges, GroupSettings};
pub use self::groups::Groups;
pub use self::refused::{refused, while_loading};
pub use self::replay::{ReplayError, Replayed};

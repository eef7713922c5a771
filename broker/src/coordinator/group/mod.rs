//! The groups of one partition of `__consumer_offsets`: a pure machine, `step(now, event, out)`. Decides who is a member,
//! when a rebalance ends, which offsets are kept. Knows no clock, no log and no shard: `service` drives it, and a reply
//! that depends on a record leaves only when the record is committed (coordinators.md 1.2, 2, 3).

pub mod machine;

//! Partitions on the shard that owns them: role, ISR and high watermark, append, read, and what waits for them.
//!
//! Reading order: [`ask`] (what an owner is asked), [`machine`] (the pure leader and follower), [`delayed`] (what waits),
//! [`replica`] (one partition), [`append`], [`read`], [`service`] (the owner), [`fetch`], [`lifecycle`], [`loads`], [`stops`],
//! [`homes`] and [`moves`] (log dirs), [`failure`] and [`log_dirs`] (what fails), [`space`], [`roles`] and [`local`] (for coordinators).

mod append;
pub mod ask;
mod background;
pub mod cleaner;
mod count;
pub mod delayed;
mod delete_records;
mod failure;
mod fetch;
mod gather;
mod held;
mod homes;
mod hub;
pub mod lifecycle;
mod loads;
pub mod local;
pub mod log_dirs;
pub mod machine;
mod moves;
mod read;
mod replica;
pub mod roles;
pub mod service;
pub mod space;
mod stops;

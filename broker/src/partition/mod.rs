//! Partitions on the shard that owns them: role, ISR and high watermark, append, read, and what waits for them.
//!
//! Reading order: [`ask`] (what an owner is asked), [`machine`] (the pure leader and follower), [`delayed`] (what waits).

pub mod ask;
pub mod delayed;
pub mod machine;

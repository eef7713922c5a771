//! One partition log on one disk, in Kafka's bytes (shared/spec/storage.md). No sockets, no requests, no ISR, no
//! cluster.
//!
//! Reading order: [`io`] (the seam to the machine).

pub mod io;

//! What `odradek-bench` is made of: a client that speaks the wire itself, and loads that verify what they read back.
//! Knows a broker only by its bytes.
#![forbid(unsafe_code)]

pub mod client;
pub mod content;
pub mod smoke;

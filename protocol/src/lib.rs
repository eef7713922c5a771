//! Kafka's wire protocol and record formats: bytes to types and back.
//!
//! Reading order: [`types`] (the vocabulary), [`error`] (codes, decode errors), [`api`] (the table of what we serve),
//! [`codec`] (cursor and writer), [`messages`] (each message once), [`records`] (batches, validated in place),
//! [`consumer_offsets`] and [`consumer_protocol`] (what groups keep in records and metadata).
//! No I/O, no async, no clock; nothing here panics on input or allocates by a claimed length (protocol.md 0).
#![forbid(unsafe_code)]

pub mod api;
#[macro_use]
pub mod codec;
pub mod consumer_offsets;
pub mod consumer_protocol;
pub mod error;
pub mod messages;
pub mod records;
pub mod types;

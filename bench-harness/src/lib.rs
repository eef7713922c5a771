//! What `odradek-bench` is made of: a client that speaks the wire itself, loads that verify what they read back, and the
//! measurements around them. Knows a broker only by its bytes, its `/proc` entry and its exit.
//!
//! Reading order: [`args`] (what can be asked), [`plan`] (the schedule), [`content`] and [`prepared`] (what is sent),
//! [`wire`] and [`poll`] (sockets that do not block), [`producer`], [`consumer`] and [`engine`] (the load),
//! [`acknowledged`] and [`verify`] (what must be there afterwards), [`measure`], [`commands`], [`report`].
//! [`client`] is the blocking client of tests and preparations. [`compare`] stands on all of it: whole series of runs.
#![deny(unsafe_code)]

pub mod acknowledged;
pub mod args;
pub mod client;
pub mod clock;
pub mod commands;
pub mod compare;
pub mod consumer;
pub mod content;
pub mod engine;
pub mod measure;
pub mod plan;
pub mod poll;
pub mod prepared;
pub mod producer;
pub mod report;
pub mod verify;
pub mod wire;

//! What `odradek-bench` is made of: a client that speaks the wire itself, loads that verify what they read back, and the
//! measurements around them. Knows a broker only by its bytes, its `/proc` entry and its exit.
//!
//! Reading order: [`args`] (what can be asked), `plan` (the schedule), [`content`] and `prepared` (what is sent),
//! `wire` and `poll` (sockets that do not block), `producer`, `consumer` and `engine` (the load),
//! `acknowledged` and `verify` (what must be there afterwards), `groups` (consumer groups), `measure`, [`commands`], [`report`].
//! [`client`] is the blocking client of tests and preparations. [`compare`] stands on all of it: whole series of runs.
//! Public is what the program and the tests of other crates use.
#![deny(unsafe_code)]

mod acknowledged;
pub mod args;
pub mod client;
mod clock;
pub mod commands;
pub mod compare;
mod consumer;
pub mod content;
mod engine;
mod groups;
mod interrupt;
mod measure;
mod own;
mod plan;
mod poll;
mod prepared;
mod producer;
pub mod report;
mod verify;
mod wire;

//! The controller in ZooKeeper mode (shared/spec/controller.md). Reading order: [`requests`] (what brokers are told),
//! [`machine`] (events in, actions out; its parts by topic beside it), [`driver`] (store and brokers), [`registration`],
//! [`gauges`] (what is told of it).
//! Knows neither sockets nor partitions' owners: brokers are reached through [`driver::BrokerLink`].

mod batch;
mod context;
mod deletion;
pub mod driver;
mod election;
mod failover;
pub mod gauges;
pub mod machine;
mod membership;
pub mod registration;
pub mod requests;
mod states;
mod topics;

#[cfg(test)]
mod tests;

//! Entry point of `odradek-bench`: a load and its verification against any Kafka-compatible broker.
#![allow(clippy::print_stdout, reason = "a command line tool reports on its standard output")]

use bench_harness::smoke::{Load, consume, produce};
use clap::{Parser, Subcommand};

/// Load for Kafka-compatible brokers; speaks the wire itself and verifies what it reads back.
#[derive(Parser)]
#[command(name = "odradek-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends records whose content proves itself.
    Produce(Load),
    /// Reads them back and verifies each.
    Consume(Load),
}

fn main() -> anyhow::Result<()> {
    let report = match Arguments::parse().command {
        Command::Produce(load) => produce(&load)?,
        Command::Consume(load) => consume(&load)?,
    };
    println!("{report}");
    Ok(())
}

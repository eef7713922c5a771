//! Entry point of `odradek-bench`: arguments to a report and an exit code.
#![allow(clippy::print_stdout, reason = "a command line tool reports on its standard output")]

use std::process::ExitCode;

use bench_harness::args::{Arguments, Command};
use bench_harness::commands::run;
use bench_harness::compare::options::Compare;
use bench_harness::compare::series::compare;
use bench_harness::compare::sweep::{Sweep, sweep};
use clap::{Parser, Subcommand};

/// Load and measurement for Kafka-compatible brokers; speaks the wire itself and verifies what it reads back.
#[derive(Debug, Parser)]
#[command(name = "odradek-bench", version)]
struct Line {
    #[command(subcommand)]
    task: Task,
}

/// One run, or a whole series of them.
#[derive(Debug, Subcommand)]
enum Task {
    #[command(flatten)]
    Run(Box<Command>),
    /// Our broker and Apache Kafka side by side, pair by pair.
    Compare(Box<Compare>),
    /// The effect of each key of our broker.
    Sweep(Box<Sweep>),
}

fn main() -> ExitCode {
    let told = match Line::parse().task {
        Task::Run(command) => {
            run(&Arguments { command: *command }).map(|report| (report.table(), Vec::new()))
        }
        Task::Compare(arguments) => compare(&arguments),
        Task::Sweep(arguments) => sweep(&arguments),
    };
    match told {
        Ok((text, failed)) => {
            print!("{text}");
            for what in &failed {
                eprintln!("odradek-bench: no result of {what}");
            }
            if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("odradek-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

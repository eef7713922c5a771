//! Entry point of `odradek-bench`: arguments to a report and an exit code.
#![allow(clippy::print_stdout, reason = "a command line tool reports on its standard output")]

use std::path::PathBuf;
use std::process::ExitCode;

use bench_harness::args::{Arguments, Command, Refused};
use bench_harness::commands::run;
use bench_harness::compare::options::Compare;
use bench_harness::compare::series::{compare, table};
use bench_harness::compare::sweep::{Sweep, sweep};
use bench_harness::report::{Report, VOID};
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
    /// The table of an earlier `compare`, from its raw data, judged by the rules of this version.
    Table {
        /// The `.json` that `compare` left.
        raw: PathBuf,
    },
}

fn main() -> ExitCode {
    let told = match Line::parse().task {
        Task::Run(command) => return ran(run(&Arguments { command: *command })),
        Task::Compare(arguments) => compare(&arguments),
        Task::Sweep(arguments) => sweep(&arguments),
        Task::Table { raw } => table(&raw).map(|text| (text, Vec::new())),
    };
    match told {
        Ok((text, failed)) => {
            print!("{text}");
            for what in &failed {
                eprintln!("odradek-bench: no result of {what}");
            }
            if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => told_of(&error),
    }
}

/// One run: a void one has a report, and an exit code of its own.
fn ran(report: anyhow::Result<Report>) -> ExitCode {
    match report {
        Ok(report) => {
            print!("{}", report.table());
            if report.void().is_empty() { ExitCode::SUCCESS } else { ExitCode::from(VOID) }
        }
        Err(error) => told_of(&error),
    }
}

fn told_of(error: &anyhow::Error) -> ExitCode {
    eprintln!("odradek-bench: {error:#}");
    // What clap refuses has the same.
    if error.is::<Refused>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

//! Entry point of `odradek-bench`: arguments to a report and an exit code.
#![allow(clippy::print_stdout, reason = "a command line tool reports on its standard output")]

use std::process::ExitCode;

use bench_harness::args::Arguments;
use bench_harness::commands::run;
use clap::Parser;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(report) => {
            print!("{}", report.table());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("odradek-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

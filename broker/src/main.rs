//! Entry point of `odradek`: arguments, then what they ask for, then the exit code.

use std::io;
use std::process::ExitCode;

use broker::cli::{self, Arguments, Command};
use clap::Parser;

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::CheckConfig { file, overrides } => {
            match cli::check_config(&file, &overrides, &mut io::stdout().lock()) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::from(cli::EXIT_CONFIGURATION),
                Err(error) => {
                    eprintln!("odradek: the output cannot be written: {error}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

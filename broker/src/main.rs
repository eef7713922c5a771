//! Entry point of `odradek`: arguments, then what they ask for, then the exit code.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use broker::cli::{self, Arguments, Command, Configured, Serve};
use broker::shard::stop::SignalThread;
use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // Before anything that takes time: a broker that is stopped while it starts ends as one that is stopped later.
    let signals = cli::serves(std::env::args_os()).then(SignalThread::start);
    match Arguments::parse().command() {
        Command::Serve(serve) => run(&serve, signals.unwrap_or_else(SignalThread::start)),
        Command::CheckConfig { file, overrides } => check(&file, &overrides),
    }
}

fn run(serve: &Serve, signals: io::Result<SignalThread>) -> ExitCode {
    let filter = EnvFilter::try_from_env("ODRADEK_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let Configured { config, warnings } = match cli::configure(serve.config.as_deref(), &serve.overrides) {
        Ok(configured) => configured,
        Err(error) => return refused(&error),
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match broker::start::run(config, signals) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refused(&error),
    }
}

/// One sentence for whoever started us.
fn refused(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("odradek: {error}");
    ExitCode::from(cli::EXIT_CONFIGURATION)
}

fn check(file: &Path, overrides: &cli::Overrides) -> ExitCode {
    match cli::check_config(file, overrides, &mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(cli::EXIT_CONFIGURATION),
        Err(error) => {
            eprintln!("odradek: the output cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

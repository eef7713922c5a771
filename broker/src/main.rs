//! Entry point of `odradek`: arguments, then what they ask for, then the exit code.

use std::io::{self, Write as _};
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
    // Who read our log may have gone: that is no reason to end, and there is nowhere left to tell it.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.log_internal_errors(false).init();
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

/// A line for whoever started us, if somebody still reads.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// One sentence for whoever started us.
fn refused(error: &dyn std::error::Error) -> ExitCode {
    say(format_args!("odradek: {error}"));
    ExitCode::from(cli::EXIT_CONFIGURATION)
}

fn check(file: &Path, overrides: &cli::Overrides) -> ExitCode {
    match cli::check_config(file, overrides, &mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(cli::EXIT_CONFIGURATION),
        Err(error) => {
            say(format_args!("odradek: the output cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

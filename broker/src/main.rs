//! Entry point of `odradek`: arguments, then what they ask for, then the exit code.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use broker::cli::{self, Arguments, Command, Configured, Metadata, Serve};
use broker::shard::stop::SignalThread;
use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // Before anything that takes time: a broker that is stopped while it starts ends as one that is stopped later.
    let signals = cli::serves(std::env::args_os()).then(SignalThread::start);
    match Arguments::parse().command() {
        Command::Serve(serve) => run(&serve, signals.unwrap_or_else(SignalThread::start)),
        Command::CheckConfig { file, overrides } => check(&file, &overrides),
        Command::Metadata(command) => metadata(&command),
    }
}

fn run(serve: &Serve, signals: io::Result<SignalThread>) -> ExitCode {
    start_log("info");
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

fn start_log(level: &str) {
    // Left empty it says nothing, as any other variable.
    let wished = std::env::var("ODRADEK_LOG").ok().filter(|wished| !wished.is_empty());
    let wished = wished.map(EnvFilter::try_new).transpose();
    let fault = wished.as_ref().err().map(ToString::to_string);
    let filter = wished.ok().flatten().unwrap_or_else(|| EnvFilter::new(level));
    // Who read our log may have gone: that is no reason to end, and there is nowhere left to tell it.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let is_seen = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    log.with_ansi(is_seen).log_internal_errors(false).init();
    if let Some(fault) = fault {
        tracing::warn!("ODRADEK_LOG is not understood, the level is {level}: {fault}");
    }
}

/// One sentence for whoever started us.
fn refused(error: &dyn std::error::Error) -> ExitCode {
    say(format_args!("odradek: {error}"));
    ExitCode::from(cli::EXIT_CONFIGURATION)
}

fn metadata(command: &Metadata) -> ExitCode {
    start_log("warn");
    match cli::metadata(command) {
        Ok(said) => said_or_failed(writeln!(io::stdout().lock(), "{said}").map(|()| true)),
        Err(error) => refused(&error),
    }
}

fn check(file: &Path, overrides: &cli::Overrides) -> ExitCode {
    said_or_failed(cli::check_config(file, overrides, &mut io::stdout().lock()))
}

fn said_or_failed(said: io::Result<bool>) -> ExitCode {
    match said {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(cli::EXIT_CONFIGURATION),
        Err(error) => {
            say(format_args!("odradek: the output cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

//! The command line: arguments to words, and what the commands beside `serve` say. Starts nothing.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

use crate::config::broker::{BrokerConfig, Surroundings};
use crate::config::load::{self, Fault, FileFault, MachineSecrets};
use crate::config::parse::{Sources, Warning};
use crate::config::settings::Place;
use crate::start::carry::{CarryFault, Direction, carry_metadata};
use crate::start::{StartError, trial};

/// Exit code of a fault in the configuration or in the machine (EX_CONFIG of sysexits).
pub const EXIT_CONFIGURATION: u8 = 78;

/// A Kafka-compatible broker.
#[derive(Debug, Parser)]
#[command(name = "odradek", version, about, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// What to do; without a word it is `serve`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Of `serve`, when the word is left out.
    #[command(flatten)]
    pub serve: Serve,
}

impl Arguments {
    /// What to do.
    pub fn command(self) -> Command {
        self.command.unwrap_or(Command::Serve(self.serve))
    }
}

/// Whether a broker is asked for, by the first word alone: told before there is time to read the rest.
pub fn serves(mut arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.nth(1).is_none_or(|word| word != CHECK_CONFIG && word != METADATA)
}

/// The word for [`Command::CheckConfig`].
const CHECK_CONFIG: &str = "check-config";

/// The word for [`Command::Metadata`].
const METADATA: &str = "metadata";

/// How to serve.
#[derive(Args, Clone, Debug, Default)]
pub struct Serve {
    /// TOML, or Kafka's server.properties: by the ending, .toml or .properties, else by what is in it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a broker until SIGINT or SIGTERM; exit 0, or 78 when the configuration or the machine does not allow it.
    Serve(Serve),
    #[command(name = CHECK_CONFIG)]
    /// Explain each fault of a configuration, and what addresses clients will be told; exit 0 or 78.
    CheckConfig {
        /// TOML, or Kafka's server.properties: by the ending, .toml or .properties, else by what is in it.
        file: PathBuf,
        /// The settings that `serve` would get on its command line.
        #[command(flatten)]
        overrides: Overrides,
    },
    #[command(name = METADATA, subcommand)]
    /// Carry the metadata of a stopped broker between the embedded store and ZooKeeper; exit 0 or 78.
    Metadata(Metadata),
}

/// Which way the metadata goes.
#[derive(Debug, Subcommand)]
pub enum Metadata {
    /// From the embedded store into the ZooKeeper of zookeeper.connect, which must be empty.
    Export(Serve),
    /// From the ZooKeeper of zookeeper.connect into the embedded store, which must be empty.
    Import(Serve),
}

/// Settings of the command line.
#[derive(Args, Clone, Debug, Default)]
pub struct Overrides {
    /// Set one key, by Kafka's name; may be repeated, and beats the environment (`ODRADEK_<KEY>`), which beats the file.
    #[arg(long = "override", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

/// A configuration that the broker can start with, and what to warn of.
#[derive(Debug)]
pub struct Configured {
    /// The configuration.
    pub config: BrokerConfig,
    /// What is odd and does not stop the start.
    pub warnings: Vec<Warning>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigureError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileFault),
    /// What is written in it, or in the environment, or on the command line; said as one sentence.
    #[error("{}{}", .file.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default(), load::Sentence(.faults))]
    Faults {
        /// The file.
        file: Option<PathBuf>,
        /// The faults.
        faults: Vec<Fault>,
        /// What is odd besides.
        warnings: Vec<Warning>,
    },
}

/// Reads file, environment and overrides as the start does.
///
/// # Errors
/// A file that cannot be read, or everything that is wrong.
pub fn configure(file: Option<&Path>, overrides: &Overrides) -> Result<Configured, ConfigureError> {
    let sources = Sources::gather(file, overrides.overrides.clone())?;
    let loaded = load::load(&sources, &MachineSecrets, &Surroundings::find());
    let warnings = loaded.warnings;
    match loaded.config {
        Ok(config) => Ok(Configured { config, warnings }),
        Err(faults) => Err(ConfigureError::Faults { file: file.map(Path::to_owned), faults, warnings }),
    }
}

/// Why a command of the metadata failed.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The configuration.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The metadata.
    #[error(transparent)]
    Carry(#[from] CarryFault),
}

/// Carries metadata, and says how much.
///
/// # Errors
/// What stopped it.
pub fn metadata(command: &Metadata) -> Result<String, MetadataError> {
    let (serve, direction) = match command {
        Metadata::Export(serve) => (serve, Direction::Export),
        Metadata::Import(serve) => (serve, Direction::Import),
    };
    let Configured { config, .. } = configure(serve.config.as_deref(), &serve.overrides)?;
    let carried = carry_metadata(&config, direction)?;
    Ok(format!("{} topics carried, in {} nodes", carried.topics, carried.nodes))
}

/// Explains a configuration, a line each, and tries on this machine what can be tried without a start; whether the broker
/// could start with it.
///
/// # Errors
/// What the output says.
pub fn check_config(file: &Path, overrides: &Overrides, out: &mut dyn Write) -> io::Result<bool> {
    let name = file.display();
    match configure(Some(file), overrides) {
        Ok(Configured { config, warnings }) => {
            for warning in &warnings {
                writeln!(out, "{name}: warning: {warning}")?;
            }
            let (odd, faults) = tried(&config);
            for warning in &odd {
                writeln!(out, "{name}: warning: {warning}")?;
            }
            for fault in &faults {
                writeln!(out, "{name}: error: {fault}")?;
            }
            if faults.is_empty() {
                summary(file, &config, out)?;
            }
            Ok(faults.is_empty())
        }
        Err(ConfigureError::File(fault)) => {
            writeln!(out, "error: {fault}")?;
            Ok(false)
        }
        Err(ConfigureError::Faults { faults, warnings, .. }) => {
            for warning in &warnings {
                writeln!(out, "{name}: warning: {warning}")?;
            }
            for fault in &faults {
                writeln!(out, "{name}: error: {fault}")?;
            }
            Ok(false)
        }
    }
}

/// What this machine says to it: what is odd, and what it would refuse, each in the order of the file's lines.
fn tried(config: &BrokerConfig) -> (Vec<String>, Vec<String>) {
    let mut odd = Vec::new();
    let found = trial::look(config, &mut odd).err().unwrap_or_default();
    let (held, faults): (Vec<_>, Vec<_>) = found.into_iter().partition(|fault| fault.is_of_running);
    let mut warnings = told(config, odd, ": a start goes on without it");
    warnings.extend(told(config, held, ": a start is refused until that has stopped"));
    (warnings, told(config, faults, ""))
}

fn told(config: &BrokerConfig, faults: Vec<trial::Fault>, what_follows: &str) -> Vec<String> {
    let place = |fault: &trial::Fault| load::place_of(&config.settings, fault.keys).cloned();
    let mut faults: Vec<_> = faults.into_iter().map(|fault| (place(&fault), fault.error)).collect();
    faults.sort_by_key(|(place, _)| place.as_ref().map_or((u8::MAX, 0), Place::order));
    let line = |(place, error): (Option<Place>, StartError)| match place {
        Some(place) => format!("{place}: {error}{what_follows}"),
        None => format!("{error}{what_follows}"),
    };
    faults.into_iter().map(line).collect()
}

fn summary(file: &Path, config: &BrokerConfig, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: no faults", file.display())?;
    writeln!(out, "Clients will be told to connect to:")?;
    for advertised in &config.network.listeners.advertised {
        writeln!(out, "  {advertised}")?;
    }
    match &config.admin.listener {
        Some(at) => writeln!(out, "Metrics and health will be served at {}:{}", at.host, at.port)?,
        None => writeln!(out, "Metrics and health will not be served")?,
    }
    if let Some(ensemble) = &config.zookeeper {
        writeln!(out, "Metadata will be kept in ZooKeeper at {}", ensemble.connect)?;
    }
    let dirs: Vec<_> = config.storage.log_dirs.iter().map(|dir| dir.display().to_string()).collect();
    writeln!(out, "Records will be kept in {}", dirs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_tells_whether_a_broker_is_asked_for() {
        for words in [
            "",
            "serve",
            "serve --override a=check-config",
            "--config check-config",
            "check-config a",
            "metadata export",
            "metadata import --override a=b",
        ] {
            let words = || std::iter::once("odradek").chain(words.split_whitespace());
            let parsed = Arguments::try_parse_from(words()).map(Arguments::command);
            let serves = matches!(parsed, Ok(Command::Serve(_)));
            assert_eq!(super::serves(words().map(OsString::from)), serves, "{parsed:?}");
        }
    }
}

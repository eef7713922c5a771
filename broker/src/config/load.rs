//! From sources to the typed configuration, with everything that is wrong or odd on the way. The only file of `config`
//! that touches the machine: [`Sources::gather`] and [`Surroundings::find`] run before the first shard starts.

use std::fmt;
use std::io::{self, Read};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use super::broker::{BrokerConfig, Surroundings};
use super::checks::CheckFault;
use super::parse::{self, Format, ParseFault, Secrets, Sources, Warning};

/// What came of the sources.
#[derive(Debug)]
pub struct Loaded {
    /// What is odd and does not stop the start.
    pub warnings: Vec<Warning>,
    /// The configuration, or everything that is wrong.
    pub config: Result<BrokerConfig, Vec<Fault>>,
}

/// One thing that stops the start.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// In a source.
    #[error("{0}")]
    Parse(ParseFault),
    /// Between keys.
    #[error("{0}")]
    Check(CheckFault),
}

/// Makes the configuration of the sources; pure but for the secrets that they point to.
pub fn load(sources: &Sources, secrets: &dyn Secrets, surroundings: &Surroundings) -> Loaded {
    let (settings, parse_faults, warnings) = parse::merge(sources, secrets);
    let mut faults: Vec<_> = parse_faults.into_iter().map(Fault::Parse).collect();
    let config = match BrokerConfig::new(settings, surroundings) {
        Ok(config) if faults.is_empty() => Ok(config),
        Ok(_) => Err(faults),
        Err(checks) => {
            faults.extend(checks.into_iter().map(Fault::Check));
            Err(faults)
        }
    };
    Loaded { warnings, config }
}

/// A file that cannot be read as configuration.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// Not readable.
    #[error("{} cannot be read: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        error: io::Error,
    },
    /// Too long for a configuration.
    #[error("{} is longer than {FILE_BYTES_MAX} bytes", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// Not text.
    #[error("{} is not UTF-8", .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
}

const FILE_BYTES_MAX: u64 = 1 << 20;

impl Sources {
    /// Reads the file and the environment of the process.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn gather(file: Option<&Path>, overrides: Vec<String>) -> Result<Self, FileFault> {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            })
            .collect();
        let file = file.map(|path| Ok((Format::of(&path.to_string_lossy()), read(path)?))).transpose()?;
        Ok(Self { file, environment, overrides })
    }
}

/// A properties file that is not UTF-8 is Latin-1, as Java has it.
fn read(path: &Path) -> Result<String, FileFault> {
    let bytes = bytes_of(path).map_err(|error| FileFault::Unreadable { path: path.to_owned(), error })?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(FileFault::TooLong { path: path.to_owned() });
    }
    match (String::from_utf8(bytes), Format::of(&path.to_string_lossy())) {
        (Ok(text), _) => Ok(text),
        (Err(latin), Format::Properties) => Ok(latin.into_bytes().into_iter().map(char::from).collect()),
        (Err(_), Format::Toml) => Err(FileFault::NotText { path: path.to_owned() }),
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the configuration is read before there is a runtime to read it with"
)]
fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The secrets that this machine has.
#[derive(Debug)]
pub struct MachineSecrets;

impl Secrets for MachineSecrets {
    fn file(&self, path: &str) -> io::Result<String> {
        String::from_utf8(bytes_of(Path::new(path))?).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

impl Surroundings {
    /// Finds out what the machine contributes: its host name if that resolves, else `localhost`; and where data of the
    /// user belongs (`$XDG_DATA_HOME/odradek`, `~/.local/share/odradek`, else `/var/lib/odradek`), in `logs` below it.
    pub fn find() -> Self {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = variable("XDG_DATA_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
            .unwrap_or_else(|| PathBuf::from("/var/lib"));
        let name = bytes_of(Path::new("/proc/sys/kernel/hostname"))
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty() && (name.as_str(), 0).to_socket_addrs().is_ok());
        Self {
            local_host: name.unwrap_or_else(|| "localhost".to_owned()),
            default_log_dir: data.join("odradek").join("logs"),
        }
    }
}

/// Several faults as one sentence, as the start says them.
#[derive(Debug)]
pub struct Sentence<'a>(pub &'a [Fault]);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

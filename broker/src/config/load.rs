//! From sources to the typed configuration, with everything that is wrong or odd on the way. The only file of `config`
//! that touches the machine: [`Sources::gather`] and [`Surroundings::find`] run before the first shard starts.

use std::fmt;
use std::io::{self, Read};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use super::broker::{BrokerConfig, Surroundings};
use super::checks::CheckFault;
use super::parse::{self, Format, ParseFault, Secrets, Sources, Warning};
use super::settings::{Place, Settings};

/// What came of the sources.
#[derive(Debug)]
pub struct Loaded {
    /// What is odd and does not stop the start.
    pub warnings: Vec<Warning>,
    /// The configuration, or everything that is wrong.
    pub config: Result<BrokerConfig, Vec<Fault>>,
}

/// One thing that stops the start.
#[derive(Debug, PartialEq)]
pub struct Fault {
    /// Where it stands; of several keys the last. `None` where nothing was set.
    pub place: Option<Place>,
    /// What it is.
    pub kind: FaultKind,
}

/// What stops the start.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum FaultKind {
    /// In a source.
    #[error("{0}")]
    Parse(ParseFault),
    /// Between keys.
    #[error("{0}")]
    Check(CheckFault),
}

impl Fault {
    fn parse(fault: ParseFault) -> Self {
        Self { place: Some(fault.place()), kind: FaultKind::Parse(fault) }
    }

    fn check(fault: CheckFault, settings: &Settings) -> Self {
        Self { place: place_of(settings, &fault.keys()).cloned(), kind: FaultKind::Check(fault) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(place @ Place::File { .. }), FaultKind::Check(_)) = (&self.place, &self.kind) {
            write!(f, "{place}: ")?;
        }
        self.kind.fmt(f)
    }
}

/// Where the last of some keys stands that was set.
pub fn place_of<'a>(settings: &'a Settings, keys: &[&str]) -> Option<&'a Place> {
    let places = keys.iter().filter_map(|key| settings.place(key)).filter(|place| **place != Place::Chosen);
    places.max_by_key(|place| match place {
        // What is read from the file stands there; where else something was set matters less.
        Place::File { line } => (1, *line),
        _ => (0, 0),
    })
}

/// Makes the configuration of the sources; pure but for the secrets that they point to. Faults come in the order of the
/// file's lines, those that are elsewhere after them.
pub fn load(sources: &Sources, secrets: &dyn Secrets, surroundings: &Surroundings) -> Loaded {
    let (settings, parse_faults, mut warnings) = parse::merge(sources, secrets);
    warnings.sort_by_key(|warning| warning.place().order());
    let mut faults: Vec<_> = parse_faults.into_iter().map(Fault::parse).collect();
    let config = match BrokerConfig::new(settings.clone(), surroundings) {
        Ok(config) if faults.is_empty() => Ok(config),
        Ok(_) => Err(faults),
        Err(checks) => {
            faults.extend(checks.into_iter().map(|fault| Fault::check(fault, &settings)));
            Err(faults)
        }
    };
    let config = config.map_err(|mut faults| {
        faults.sort_by_key(|fault| fault.place.as_ref().map_or((u8::MAX, 0), Place::order));
        faults
    });
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
        let file = file.map(read).transpose()?;
        Ok(Self { file, environment, overrides })
    }
}

/// A properties file that is not UTF-8 is Latin-1, as Java has it.
fn read(path: &Path) -> Result<(Format, String), FileFault> {
    let bytes = bytes_of(path).map_err(|error| FileFault::Unreadable { path: path.to_owned(), error })?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(FileFault::TooLong { path: path.to_owned() });
    }
    let (text, is_utf8) = match String::from_utf8(bytes) {
        Ok(text) => (text, true),
        Err(latin) => (latin.into_bytes().into_iter().map(char::from).collect(), false),
    };
    match Format::of(&path.to_string_lossy(), &text) {
        Format::Toml if !is_utf8 => Err(FileFault::NotText { path: path.to_owned() }),
        format => Ok((format, text)),
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

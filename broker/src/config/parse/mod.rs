//! From the sources of configuration to one set of settings: the file, then the environment, then the command line, the
//! later ones winning. Reads nothing itself; every fault is collected, and no input can panic or loop.

mod environment;
mod properties;
mod toml;

use std::io;

use super::keys::{self, BrokerKey, Kind, Range, Support};
use super::settings::{Place, Settings};
use super::value::{self, ValueFault};

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// TOML in sections (security-admin.md 5.4).
    Toml,
    /// Java properties, as Kafka's `server.properties`.
    Properties,
}

impl Format {
    /// The format of a file: `.properties` is Java's and `.toml` is TOML; what has another name is told by what is in it.
    pub fn of(name: &str, text: &str) -> Self {
        if name.ends_with(".properties") {
            Self::Properties
        } else if name.ends_with(".toml") {
            Self::Toml
        } else {
            Self::of_text(text)
        }
    }

    /// The first line that only one of the two can have decides.
    fn of_text(text: &str) -> Self {
        let is_comment = |line: &str| line.is_empty() || line.starts_with('#');
        for line in text.lines().map(str::trim).filter(|line| !is_comment(line)) {
            let Some((key, value)) = line.split_once('=') else {
                return if line.starts_with('[') { Self::Toml } else { Self::Properties };
            };
            let quoted = |text: &str| text.starts_with(['"', '\'']);
            let (key, value) = (key.trim(), value.trim());
            if quoted(key) || quoted(value) || value.starts_with(['[', '{']) || line.starts_with('[') {
                return Self::Toml;
            }
            if key.contains('.') || key.starts_with('!') {
                return Self::Properties;
            }
        }
        Self::Toml
    }
}

/// Everything that sets keys.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file, if there is one.
    pub file: Option<(Format, String)>,
    /// The environment; only names that begin with `ODRADEK_` count.
    pub environment: Vec<(String, String)>,
    /// `key=value` of the command line, in order.
    pub overrides: Vec<String>,
}

/// Where `{ file = ".." }` and `{ env = ".." }` of a secret lead.
pub trait Secrets {
    /// The content of a file.
    ///
    /// # Errors
    /// What the operating system says.
    fn file(&self, path: &str) -> io::Result<String>;
    /// The value of an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
}

/// What is wrong with a source. Each is one sentence for the operator, without the file's name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseFault {
    /// Not TOML.
    #[error("line {line}: {message}")]
    Toml {
        /// Line, counted from 1.
        line: usize,
        /// What the TOML parser says.
        message: String,
    },
    /// A key with dots that are not quoted.
    #[error("line {line}: write {} or \"{name}\": a bare key with dots means nested tables in TOML", .name.replace('.', "_"))]
    BareDotted {
        /// Line, counted from 1.
        line: usize,
        /// The key.
        name: String,
    },
    /// A section that does not exist.
    #[error("line {line}: there is no section [{name}]; the sections are {}", section_names())]
    UnknownSection {
        /// Line, counted from 1.
        line: usize,
        /// The section.
        name: String,
    },
    /// A value of a type that no key has.
    #[error("line {line}: {name} cannot be a {kind}")]
    Type {
        /// Line, counted from 1.
        line: usize,
        /// The key.
        name: String,
        /// TOML's word for it.
        kind: &'static str,
    },
    /// An item of an array that would become several.
    #[error("line {line}: an item of {name} has a comma in it, which separates items")]
    Comma {
        /// Line, counted from 1.
        line: usize,
        /// The key.
        name: String,
    },
    /// A secret that cannot be read.
    #[error("line {line}: the secret of {name} cannot be read: {why}")]
    Secret {
        /// Line, counted from 1.
        line: usize,
        /// The key.
        name: String,
        /// What the operating system says.
        why: io::ErrorKind,
    },
    /// A `\u` without four hexadecimal digits.
    #[error("line {line}: \\u must be followed by four hexadecimal digits")]
    Escape {
        /// Line, counted from 1.
        line: usize,
    },
    /// An override without `=`.
    #[error("--override must be of the form key=value, not {text}")]
    Override {
        /// What was given.
        text: String,
    },
    /// A key twice in one source, in any spelling.
    #[error("{place}: {name} was already set at {first}")]
    Twice {
        /// Where it stands again.
        place: Place,
        /// The key.
        name: String,
        /// Where it stands first.
        first: Place,
    },
    /// A key that does not exist.
    #[error("{place}: there is no key {name}{}", .nearest.map(|n| format!("; did you mean {n}?")).unwrap_or_default())]
    Unknown {
        /// Where it stands.
        place: Place,
        /// The key.
        name: String,
        /// The nearest that exists.
        nearest: Option<&'static str>,
    },
    /// A text that is no value of its key.
    #[error("{place}: invalid value {text} for {name}: {fault}")]
    Value {
        /// Where it stands.
        place: Place,
        /// The key.
        name: String,
        /// The text, shortened.
        text: String,
        /// What is wrong with it.
        fault: ValueFault,
    },
    /// A key that protects or leads elsewhere and is not built.
    #[error("{place}: {name} cannot be set to {text}: {why}")]
    Refused {
        /// Where it stands.
        place: Place,
        /// The key.
        name: String,
        /// The text, shortened; a secret is not shown.
        text: String,
        /// Why.
        why: &'static str,
    },
}

impl ParseFault {
    /// Where it is.
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Toml { line, .. }
            | Self::BareDotted { line, .. }
            | Self::UnknownSection { line, .. }
            | Self::Type { line, .. }
            | Self::Comma { line, .. }
            | Self::Secret { line, .. }
            | Self::Escape { line } => Place::File { line: *line },
            Self::Override { .. } => Place::Override,
            Self::Twice { place, .. }
            | Self::Unknown { place, .. }
            | Self::Value { place, .. }
            | Self::Refused { place, .. } => place.clone(),
        }
    }
}

fn section_names() -> String {
    keys::Section::ALL.map(keys::Section::name).join(", ")
}

/// What is odd and does not stop the start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Warning {
    /// A key that changes nothing.
    #[error("{place}: {name} is accepted and has no effect: {why}")]
    NoEffect {
        /// Where it stands.
        place: Place,
        /// The key.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// A key in another section than its own.
    #[error("line {line}: {name} stands in [{found}]; it belongs in [{expected}]")]
    Section {
        /// Line, counted from 1.
        line: usize,
        /// The key.
        name: String,
        /// Where it stands.
        found: String,
        /// Where it belongs.
        expected: &'static str,
    },
    /// A key twice in a properties file, where the last one counts as in Java.
    #[error("{place}: {name} was already set at {first}; this one counts")]
    Again {
        /// Where it stands again.
        place: Place,
        /// The key.
        name: String,
        /// Where it stands first.
        first: Place,
    },
    /// A variable that begins like ours and names no key.
    #[error("environment variable {variable} names no key and is ignored")]
    Variable {
        /// The variable.
        variable: String,
    },
}

impl Warning {
    /// Where it is.
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Section { line, .. } => Place::File { line: *line },
            Self::Variable { variable } => Place::Environment { variable: variable.clone() },
            Self::NoEffect { place, .. } | Self::Again { place, .. } => place.clone(),
        }
    }
}

/// What a source says, as it is read.
#[derive(Default)]
struct Collected {
    settings: Settings,
    faults: Vec<ParseFault>,
    warnings: Vec<Warning>,
}

/// Faults after which no more keys are judged: the search for a near name is dear, and nobody reads on.
const FAULTS_MAX: usize = 100;

/// Merges the sources. The settings hold every key, also those that faults name.
pub(super) fn merge(sources: &Sources, secrets: &dyn Secrets) -> (Settings, Vec<ParseFault>, Vec<Warning>) {
    let mut all = Collected::default();
    match &sources.file {
        Some((Format::Toml, text)) => toml::read(text, secrets, &mut all),
        Some((Format::Properties, text)) => properties::read(text, &mut all),
        None => {}
    }
    environment::read(&sources.environment, &mut all);
    for text in &sources.overrides {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                all.settings.set(&kafka_name(name.trim()), value, Place::Override);
            }
            _ => all.faults.push(ParseFault::Override { text: shortened(text) }),
        }
    }
    let Collected { settings, mut faults, mut warnings } = all;
    for (name, setting) in settings.iter() {
        if faults.len() >= FAULTS_MAX {
            break;
        }
        judge(name, &setting.text, &setting.place, &mut faults, &mut warnings);
    }
    (settings, faults, warnings)
}

/// The name with dots of a name that may have underscores; no key of Kafka's or ours has an underscore.
fn kafka_name(name: &str) -> String {
    name.replace('_', ".")
}

/// A text to show in a message.
fn shortened(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("`{}...`", text.get(..end).unwrap_or_default()),
        None => format!("`{text}`"),
    }
}

/// Judges one setting by the table.
fn judge(name: &str, text: &str, place: &Place, faults: &mut Vec<ParseFault>, warnings: &mut Vec<Warning>) {
    let by_listener = keys::listener_key(name).map(|key| key.key);
    let Some(key) = by_listener.or_else(|| keys::broker_key(name)) else {
        let nearest = keys::nearest_broker_key(name);
        faults.push(ParseFault::Unknown { place: place.clone(), name: name.to_owned(), nearest });
        return;
    };
    let value = match value::parse(key.kind, key.range, text) {
        Ok(value) => value,
        Err(fault) => {
            let (place, name, text) = (place.clone(), name.to_owned(), shown(key, text));
            faults.push(ParseFault::Value { place, name, text, fault });
            return;
        }
    };
    let is_default = match key.default {
        Some(default) => {
            value::parse(key.kind, Range::Any, default).as_ref() == Ok(&value) && key.kind != Kind::Password
        }
        None => text.trim().is_empty(),
    };
    match key.support {
        Support::Refused(why) if !is_default => {
            let (place, name, text) = (place.clone(), name.to_owned(), shown(key, text));
            faults.push(ParseFault::Refused { place, name, text, why });
        }
        Support::NoEffect(why) if !is_default => {
            warnings.push(Warning::NoEffect { place: place.clone(), name: name.to_owned(), why });
        }
        _ => {}
    }
}

/// A value to show in a message: never a secret.
fn shown(key: &BrokerKey, text: &str) -> String {
    if key.kind == Kind::Password { "the given secret".to_owned() } else { shortened(text) }
}

#[cfg(test)]
mod tests;

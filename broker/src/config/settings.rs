//! What was set, after the sources were merged: Kafka's names to texts, each with the place it came from. Typed reading
//! falls back to the table's default. Knows the table, not the sources.

use std::collections::BTreeMap;
use std::fmt;

use super::keys::{self, BrokerKey};
use super::value::{self, Value};

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the file, at this line, counted from 1.
    File {
        /// The line.
        line: usize,
    },
    /// In an environment variable of this name.
    Environment {
        /// The variable.
        variable: String,
    },
    /// On the command line.
    Override,
    /// Nowhere: the broker chose it at start.
    Chosen,
}

impl Place {
    /// Where it stands among all places: the file by its lines, then the others in the order in which they are read.
    pub fn order(&self) -> (u8, usize) {
        match self {
            Self::File { line } => (0, *line),
            Self::Environment { .. } => (1, 0),
            Self::Override => (2, 0),
            Self::Chosen => (3, 0),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { line } => write!(f, "line {line}"),
            Self::Environment { variable } => write!(f, "environment variable {variable}"),
            Self::Override => f.write_str("--override"),
            Self::Chosen => f.write_str("chosen at start"),
        }
    }
}

/// One setting.
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    /// The text as written; may be a secret.
    pub text: String,
    /// Where it was written.
    pub place: Place,
}

impl fmt::Debug for Setting {
    /// Without the text, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({})", self.place)
    }
}

/// All settings, by Kafka's names. What is not here has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, Setting>);

impl Settings {
    /// Sets a key; gives back what it replaced.
    pub fn set(&mut self, name: &str, text: &str, place: Place) -> Option<Setting> {
        self.0.insert(name.to_owned(), Setting { text: text.to_owned(), place })
    }

    /// Every setting, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.0.iter().map(|(name, setting)| (name.as_str(), setting))
    }

    /// Where a key was set, if it was set.
    pub fn place(&self, name: &str) -> Option<&Place> {
        self.0.get(name).map(|setting| &setting.place)
    }

    /// What a key was set to, if it was set.
    pub fn set_value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|setting| setting.text.as_str())
    }

    /// Value of a key: what was set, else the default; `None` for null. A text that the checks refused counts as unset.
    pub fn value(&self, name: &str) -> Option<Value> {
        let key = keys::broker_key(name);
        assert!(key.is_some(), "{name} is not in the table of keys");
        key.and_then(|key| self.value_of(key))
    }

    /// Value of a key that is at hand.
    pub fn value_of(&self, key: &BrokerKey) -> Option<Value> {
        let parse = |text: &str| value::parse(key.kind, key.range, text).ok();
        self.set_value(key.name).and_then(parse).or_else(|| key.default.and_then(parse))
    }

    /// A text; `None` for null and for an empty text of a key whose default is null.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.value(name)? {
            Value::Text(text) if text.is_empty() => keys::broker_key(name)?.default.map(str::to_owned),
            value => Some(value.to_string()),
        }
    }

    /// A text as it was written, also an empty one; `None` for null. Of keys that say what is served, to whom and from where:
    /// what is left empty by a template must not become the default.
    pub(super) fn written(&self, name: &str) -> Option<String> {
        self.value(name).map(|value| value.to_string())
    }

    /// An integer; `None` for null.
    pub(super) fn integer_or_null(&self, name: &str) -> Option<i64> {
        match self.value(name) {
            Some(Value::Integer(value)) => Some(value),
            _ => None,
        }
    }

    /// An integer whose default is not null.
    pub(super) fn integer(&self, name: &str) -> i64 {
        self.integer_or_null(name).unwrap_or(0)
    }

    /// An integer of a key of type int; nothing is lost, for its texts were read as such.
    pub(super) fn int(&self, name: &str) -> i32 {
        i32::try_from(self.integer(name)).unwrap_or(i32::MAX)
    }

    /// An integer that the range keeps from being negative.
    pub(super) fn size(&self, name: &str) -> u32 {
        u32::try_from(self.integer(name)).unwrap_or(0)
    }

    /// A boolean.
    pub(super) fn boolean(&self, name: &str) -> bool {
        self.value(name) == Some(Value::Boolean(true))
    }

    /// A double.
    pub(super) fn double(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(Value::Double(value)) => value,
            _ => 0.0,
        }
    }
}

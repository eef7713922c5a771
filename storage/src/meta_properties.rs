//! `meta.properties`: whose log dir this is (storage.md 1.2, S-3, S-4). Pure; [`crate::log_dir`] reads and writes it.
//!
//! The syntax is that of Java's properties: comments, `key=value`, escapes, bytes as Latin-1.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::types::{BrokerId, TopicId};

const VERSION: &str = "version";
const BROKER_ID: &str = "broker.id";
const NODE_ID: &str = "node.id";
const CLUSTER_ID: &str = "cluster.id";
const DIRECTORY_ID: &str = "directory.id";

/// More keys than any broker will ever know.
const KEYS_MAX: usize = 256;

/// Why the content of a `meta.properties` is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaPropertiesError {
    /// `\u` is not followed by four hexadecimal digits.
    #[error("malformed \\u escape")]
    BadEscape,
    /// There are more keys than in any real file.
    #[error("more than {KEYS_MAX} keys")]
    TooManyKeys,
    /// The version is neither 0 nor 1.
    #[error("version {0:?} is not known")]
    UnknownVersion(String),
    /// A key that the version demands is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A value cannot be read.
    #[error("{key} has the unusable value {value:?}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
    },
}

/// The layout of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetaPropertiesVersion {
    /// ZooKeeper mode, and ours: `broker.id`; every field may be missing.
    V0,
    /// KRaft: `node.id` and `cluster.id` are there.
    V1,
}

/// The content of a `meta.properties`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaProperties {
    /// The layout; kept when the file is rewritten.
    pub version: MetaPropertiesVersion,
    /// `broker.id` or `node.id`.
    pub broker_id: Option<BrokerId>,
    /// `cluster.id`.
    pub cluster_id: Option<String>,
    /// `directory.id`, the id of this log dir.
    pub directory_id: Option<TopicId>,
    /// Keys that we do not know, kept when the file is rewritten.
    pub unknown: BTreeMap<String, String>,
}

impl MetaProperties {
    /// What a fresh dir gets: version 0, as a Kafka in ZooKeeper mode refuses every other.
    pub const fn new(broker_id: Option<BrokerId>, cluster_id: Option<String>) -> Self {
        let version = MetaPropertiesVersion::V0;
        Self { version, broker_id, cluster_id, directory_id: None, unknown: BTreeMap::new() }
    }

    /// Reads the content; of two lines with one key the later counts.
    ///
    /// # Errors
    /// What is malformed.
    pub fn parse(content: &[u8]) -> Result<Self, MetaPropertiesError> {
        let mut found = parse_properties(content)?;
        let version = match found.remove(VERSION).as_deref().map(str::trim) {
            None | Some("0") => MetaPropertiesVersion::V0,
            Some("1") => MetaPropertiesVersion::V1,
            Some(other) => return Err(MetaPropertiesError::UnknownVersion(other.to_owned())),
        };
        let id_key = version.id_key();
        let broker_id = match found.remove(id_key) {
            None => None,
            Some(value) => match value.trim().parse() {
                Ok(id) => Some(BrokerId::new(id)),
                Err(_) => return Err(MetaPropertiesError::BadValue { key: id_key, value }),
            },
        };
        let cluster_id = found.remove(CLUSTER_ID);
        if version == MetaPropertiesVersion::V1 {
            broker_id.ok_or(MetaPropertiesError::Missing(NODE_ID))?;
            cluster_id.as_ref().ok_or(MetaPropertiesError::Missing(CLUSTER_ID))?;
        }
        let directory_id = match found.remove(DIRECTORY_ID) {
            None => None,
            Some(value) => match TopicId::parse(&value) {
                Some(id) => Some(id),
                None => return Err(MetaPropertiesError::BadValue { key: DIRECTORY_ID, value }),
            },
        };
        Ok(Self { version, broker_id, cluster_id, directory_id, unknown: found })
    }

    /// The content, in the order of the keys.
    pub fn to_text(&self) -> String {
        let mut lines = self.unknown.clone();
        let number = if self.version == MetaPropertiesVersion::V0 { "0" } else { "1" };
        lines.insert(VERSION.to_owned(), number.to_owned());
        if let Some(id) = self.broker_id {
            lines.insert(self.version.id_key().to_owned(), id.to_string());
        }
        if let Some(id) = &self.cluster_id {
            lines.insert(CLUSTER_ID.to_owned(), id.clone());
        }
        if let Some(id) = self.directory_id {
            lines.insert(DIRECTORY_ID.to_owned(), id.to_string());
        }
        let mut text = String::from("#\n");
        for (key, value) in &lines {
            escape(key, Part::Key, &mut text);
            text.push('=');
            escape(value, Part::Value, &mut text);
            text.push('\n');
        }
        text
    }

    /// Compares with what the configuration and the cluster say; what either side does not know is no mismatch (S-3).
    ///
    /// # Errors
    /// The first mismatch.
    pub fn check(&self, identity: &Identity) -> Result<(), IdentityError> {
        if self.version != MetaPropertiesVersion::V0 {
            return Err(IdentityError::KraftDir);
        }
        if let (Some(found), Some(expected)) = (self.broker_id, identity.broker_id)
            && found != expected
        {
            return Err(IdentityError::OtherBroker { found, expected });
        }
        if let (Some(found), Some(expected)) = (&self.cluster_id, &identity.cluster_id)
            && found != expected
        {
            return Err(IdentityError::OtherCluster { found: found.clone(), expected: expected.clone() });
        }
        Ok(())
    }

    /// This file with the fields it lacks taken from `identity`.
    #[must_use]
    pub fn completed(&self, identity: &Identity) -> Self {
        Self {
            broker_id: self.broker_id.or(identity.broker_id),
            cluster_id: self.cluster_id.clone().or_else(|| identity.cluster_id.clone()),
            ..self.clone()
        }
    }
}

impl MetaPropertiesVersion {
    const fn id_key(self) -> &'static str {
        match self {
            Self::V0 => BROKER_ID,
            Self::V1 => NODE_ID,
        }
    }
}

/// What the configuration and the cluster say of this broker; `None` where nothing is known yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Id of the broker.
    pub broker_id: Option<BrokerId>,
    /// Id of the cluster.
    pub cluster_id: Option<String>,
}

/// Why a log dir is not this broker's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Version 1: the dir was formatted for KRaft.
    #[error("the directory was formatted for KRaft")]
    KraftDir,
    /// It belongs to another broker.
    #[error("the directory belongs to broker {found}, this is broker {expected}")]
    OtherBroker {
        /// What the file says.
        found: BrokerId,
        /// What the configuration says.
        expected: BrokerId,
    },
    /// It belongs to another cluster.
    #[error("the directory belongs to cluster {found}, this is cluster {expected}")]
    OtherCluster {
        /// What the file says.
        found: String,
        /// What the cluster says.
        expected: String,
    },
}

/// Why two log dirs do not belong together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisagreementError {
    /// They are of different brokers or clusters.
    #[error("{first} and {second} have different values of {key}")]
    Different {
        /// The key.
        key: &'static str,
        /// One dir.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// They have one `directory.id`, as after a copy.
    #[error("{first} and {second} have the same directory.id")]
    SameDirectoryId {
        /// One dir.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

/// Whether the log dirs of one broker agree (S-3): one broker id, one cluster id, no directory id twice.
///
/// # Errors
/// The first pair that does not.
pub fn check_agreement(dirs: &[(&Path, &MetaProperties)]) -> Result<(), DisagreementError> {
    let pairs = |at: usize| dirs.iter().skip(at + 1);
    for (at, (path, meta)) in dirs.iter().enumerate() {
        for (other_path, other) in pairs(at) {
            let (first, second) = (path.to_path_buf(), other_path.to_path_buf());
            let differ = |a: bool, b: bool, same: bool| a && b && !same;
            if differ(meta.broker_id.is_some(), other.broker_id.is_some(), meta.broker_id == other.broker_id)
            {
                return Err(DisagreementError::Different { key: BROKER_ID, first, second });
            }
            if differ(
                meta.cluster_id.is_some(),
                other.cluster_id.is_some(),
                meta.cluster_id == other.cluster_id,
            ) {
                return Err(DisagreementError::Different { key: CLUSTER_ID, first, second });
            }
            if meta.directory_id.is_some() && meta.directory_id == other.directory_id {
                return Err(DisagreementError::SameDirectoryId { first, second });
            }
        }
    }
    Ok(())
}

/// Reads Java's properties.
fn parse_properties(content: &[u8]) -> Result<BTreeMap<String, String>, MetaPropertiesError> {
    let mut found = BTreeMap::new();
    let mut rest = content;
    while let Some(line) = logical_line(&mut rest) {
        let is_separator = |byte: u8| matches!(byte, b'=' | b':') || is_blank(byte);
        let mut end = 0;
        while let Some(byte) = line.get(end).copied() {
            if is_separator(byte) {
                break;
            }
            end += if byte == b'\\' { 2 } else { 1 };
        }
        let (key, value) = line.split_at_checked(end).unwrap_or((&line, &[]));
        let value = skip_blanks(value);
        let value = match value {
            [b'=' | b':', value @ ..] => skip_blanks(value),
            value => value,
        };
        found.insert(unescape(key)?, unescape(value)?);
        if found.len() > KEYS_MAX {
            return Err(MetaPropertiesError::TooManyKeys);
        }
    }
    Ok(found)
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\x0c')
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|byte| is_blank(**byte)).count();
    bytes.get(blanks..).unwrap_or_default()
}

/// The next line that is neither blank nor a comment, continued lines joined.
fn logical_line(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let mut is_first = true;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
        let (natural, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        *rest = match after {
            [b'\r', b'\n', after @ ..] | [_, after @ ..] => after,
            [] => after,
        };
        let natural = skip_blanks(natural);
        if is_first && matches!(natural, [] | [b'#' | b'!', ..]) {
            continue;
        }
        is_first = false;
        let backslashes = natural.iter().rev().take_while(|byte| **byte == b'\\').count();
        if backslashes % 2 == 0 {
            line.extend_from_slice(natural);
            return Some(line);
        }
        line.extend_from_slice(natural.get(..natural.len() - 1).unwrap_or_default());
    }
    (!is_first).then_some(line)
}

fn unescape(bytes: &[u8]) -> Result<String, MetaPropertiesError> {
    let mut out: Vec<u16> = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'\\' {
            out.push(u16::from(*byte));
            continue;
        }
        let [escaped, after @ ..] = rest else { break };
        rest = after;
        out.push(match escaped {
            b't' => 9,
            b'n' => 10,
            b'r' => 13,
            b'f' => 12,
            b'u' => {
                let (digits, after) = rest.split_first_chunk::<4>().ok_or(MetaPropertiesError::BadEscape)?;
                rest = after;
                digits.iter().try_fold(0_u16, |sum, digit| {
                    let digit = char::from(*digit).to_digit(16).and_then(|digit| u16::try_from(digit).ok());
                    digit.map(|digit| (sum << 4) | digit).ok_or(MetaPropertiesError::BadEscape)
                })?
            }
            other => u16::from(*other),
        });
    }
    Ok(String::from_utf16_lossy(&out))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Key,
    Value,
}

fn escape(text: &str, part: Part, out: &mut String) {
    for (at, unit) in text.encode_utf16().enumerate() {
        match unit {
            // Blanks in front of a value would be skipped, anywhere in a key they would end it.
            0x20 if at == 0 || part == Part::Key => out.push_str("\\ "),
            9 => out.push_str("\\t"),
            10 => out.push_str("\\n"),
            13 => out.push_str("\\r"),
            12 => out.push_str("\\f"),
            0x20..=0x7e => {
                let plain = char::from(u8::try_from(unit).unwrap_or(b'?'));
                if matches!(plain, '=' | ':' | '#' | '!' | '\\') {
                    out.push('\\');
                }
                out.push(plain);
            }
            other => out.push_str(&format!("\\u{other:04X}")),
        }
    }
}

#[cfg(test)]
mod tests;

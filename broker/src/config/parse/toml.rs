//! The TOML file: sections that only group, keys with `_` for `.` or quoted, native types (security-admin.md 5.4).

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::super::keys::{self, Kind, Section};
use super::super::settings::Place;
use super::{Collected, ParseFault, Secrets, Warning, kafka_name};

/// Sets what the text names. A text that is not TOML sets nothing.
pub(super) fn read(text: &str, secrets: &dyn Secrets, into: &mut Collected) {
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
    let mut reader = Reader { text, ends, secrets, into };
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        reader.document(document.get_ref());
        return;
    }
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        let line = reader.line(at);
        let fault = match bare_dotted(reader.line_text(at)) {
            Some(name) => ParseFault::BareDotted { line, name },
            None => ParseFault::Toml { line, message: error.message().to_owned() },
        };
        reader.fault(fault);
    }
}

/// The dotted name that a line `a.b.c = ..` sets without quotes.
fn bare_dotted(line: &str) -> Option<String> {
    let name = line.split('=').next()?.trim();
    let is_bare = |part: &str| {
        !part.trim().is_empty()
            && part.trim().bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    (line.contains('=') && name.contains('.') && name.split('.').all(is_bare))
        .then(|| name.split('.').map(str::trim).collect::<Vec<_>>().join("."))
}

type Entry<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// An entry with what its section puts before its name, and the section.
type Placed<'a, 'i> = (Entry<'a, 'i>, String, Option<Section>);

struct Reader<'a> {
    text: &'a str,
    /// Where the lines end, so that finding a line is a binary search.
    ends: Vec<usize>,
    secrets: &'a dyn Secrets,
    into: &'a mut Collected,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        self.ends.partition_point(|end| *end < at).saturating_add(1)
    }

    fn line_text(&self, at: usize) -> &str {
        let index = self.ends.partition_point(|end| *end < at);
        let start = index
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .map_or(0, |end| end.saturating_add(1));
        let end = self.ends.get(index).copied().unwrap_or(self.text.len());
        self.text.get(start..end).unwrap_or_default()
    }

    /// Collects a fault, once for several values on one line.
    fn fault(&mut self, fault: ParseFault) {
        if self.into.faults.last() != Some(&fault) {
            self.into.faults.push(fault);
        }
    }

    /// Every entry, in the order of the text.
    fn document(&mut self, document: &DeTable<'_>) {
        let mut found = Vec::new();
        for (key, value) in document {
            let name = key.get_ref().as_ref();
            let section = Section::ALL.into_iter().find(|section| section.name() == name);
            match (value.get_ref(), section) {
                (DeValue::Table(table), Some(section)) => {
                    found.extend(table.iter().map(|entry| (entry, String::new(), Some(section))));
                }
                (DeValue::Table(listeners), None)
                    if name == "listener" && !self.is_bare_dotted(key.span()) =>
                {
                    listeners_of(listeners, &mut found);
                }
                _ => found.push(((key, value), String::new(), None)),
            }
        }
        found.sort_by_key(|((key, _), ..)| key.span().start);
        for (entry, prefix, section) in found {
            self.entry(entry, &prefix, section);
        }
    }

    fn is_bare_dotted(&self, span: Range<usize>) -> bool {
        bare_dotted(self.line_text(span.start)).is_some()
    }

    fn entry(&mut self, (key, value): Entry<'_, '_>, prefix: &str, section: Option<Section>) {
        let line = self.line(key.span().start);
        if let Some(name) = bare_dotted(self.line_text(key.span().start)) {
            self.fault(ParseFault::BareDotted { line, name });
            return;
        }
        let name = format!("{prefix}{}", kafka_name(key.get_ref()));
        let Some(text) = self.text_of(line, &name, value.get_ref()) else { return };
        if let (Some(known), Some(found)) = (keys::broker_key(&name), section)
            && known.section != found
        {
            let (found, expected) = (found.name().to_owned(), known.section.name());
            self.into.warnings.push(Warning::Section { line, name: name.clone(), found, expected });
        }
        let place = Place::File { line };
        if let Some(first) = self.into.settings.set(&name, &text, place.clone()) {
            self.fault(ParseFault::Twice { place, name, first: first.place });
        }
    }

    /// The value as a properties file would have it; `None` after a fault.
    fn text_of(&mut self, line: usize, name: &str, value: &DeValue<'_>) -> Option<String> {
        match value {
            DeValue::Array(items) => {
                let mut texts = Vec::with_capacity(items.len());
                for item in items {
                    let text = self.scalar(line, name, item.get_ref())?;
                    if text.contains(',') {
                        self.fault(ParseFault::Comma { line, name: name.to_owned() });
                        return None;
                    }
                    texts.push(text);
                }
                let joined = texts.join(",");
                // One core in a list is that core; alone it would be a count.
                Some(if name == "cores" { format!("[{joined}]") } else { joined })
            }
            DeValue::Table(table) => self.table(line, name, table),
            scalar => self.scalar(line, name, scalar),
        }
    }

    fn scalar(&mut self, line: usize, name: &str, value: &DeValue<'_>) -> Option<String> {
        match value {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Integer(number) => Some(integer(number)),
            DeValue::Float(number) => Some(number.as_str().to_owned()),
            DeValue::Boolean(value) => Some(value.to_string()),
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                self.fault(ParseFault::Type { line, name: name.to_owned(), kind: value.type_str() });
                None
            }
        }
    }

    /// A secret in `{ file = ".." }` or `{ env = ".." }`, a section that does not exist, or nothing that we know.
    fn table(&mut self, line: usize, name: &str, table: &DeTable<'_>) -> Option<String> {
        let kind = keys::listener_key(name)
            .map(|key| key.key)
            .or_else(|| keys::broker_key(name))
            .map(|key| key.kind);
        let mut entries = table.iter().map(|(key, value)| (key.get_ref().as_ref(), value.get_ref().as_str()));
        let only = (entries.next(), entries.next());
        let why = match only {
            (Some(("file", Some(path))), None) if kind == Some(Kind::Password) => {
                match self.secrets.file(path) {
                    Ok(text) => return Some(text.trim_end_matches(['\n', '\r']).to_owned()),
                    Err(error) => error.kind(),
                }
            }
            (Some(("env", Some(variable))), None) if kind == Some(Kind::Password) => {
                match self.secrets.variable(variable) {
                    Some(text) => return Some(text),
                    None => std::io::ErrorKind::NotFound,
                }
            }
            _ => {
                let fault = if kind.is_some() {
                    ParseFault::Type { line, name: name.to_owned(), kind: "table" }
                } else {
                    ParseFault::UnknownSection { line, name: name.to_owned() }
                };
                self.fault(fault);
                return None;
            }
        };
        self.fault(ParseFault::Secret { line, name: name.to_owned(), why });
        None
    }
}

/// `[listener.<name>]`: its keys get the prefix `listener.name.<name>.`.
fn listeners_of<'a, 'i>(listeners: &'a DeTable<'i>, found: &mut Vec<Placed<'a, 'i>>) {
    for (key, value) in listeners {
        match value.get_ref() {
            DeValue::Table(table) => {
                let prefix = format!("listener.name.{}.", key.get_ref().to_ascii_lowercase());
                found.extend(table.iter().map(|entry| (entry, prefix.clone(), None)));
            }
            _ => found.push(((key, value), "listener.".to_owned(), None)),
        }
    }
}

/// Decimal digits of a number that may have been written in another base; a number beyond 64 bits keeps its digits.
fn integer(number: &DeInteger<'_>) -> String {
    i64::from_str_radix(number.as_str(), number.radix())
        .map_or_else(|_| number.as_str().to_owned(), |value| value.to_string())
}

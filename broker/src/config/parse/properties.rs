//! Java's properties format, as `java.util.Properties` reads it: comments, continued lines, escapes, three separators.

use super::super::settings::Place;
use super::{Collected, ParseFault, Warning};

/// Sets what the text names. The last one of a key counts, as in Java; the earlier ones are warned of.
pub(super) fn read(text: &str, into: &mut Collected) {
    for (line, content) in logical_lines(text) {
        let (name, value) = split(&content);
        let (Some(name), Some(value)) = (unescape(name), unescape(value)) else {
            into.faults.push(ParseFault::Escape { line });
            continue;
        };
        let place = Place::File { line };
        if let Some(first) = into.settings.set(&name, &value, place.clone()) {
            into.warnings.push(Warning::Again { place, name, first: first.place });
        }
    }
}

/// Lines that are neither empty nor comments, joined where they are continued, with the number of their first line.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let ends = text.replace("\r\n", "\n").replace('\r', "\n");
    for (index, raw) in ends.split('\n').enumerate() {
        let content = raw.trim_start_matches([' ', '\t', '\u{c}']);
        let is_continued = content.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        let body = if is_continued {
            content.get(..content.len().saturating_sub(1)).unwrap_or_default()
        } else {
            content
        };
        let (line, joined) = match open.take() {
            Some((line, before)) => (line, before + body),
            None if content.is_empty() || content.starts_with(['#', '!']) => continue,
            None => (index.saturating_add(1), body.to_owned()),
        };
        if is_continued {
            open = Some((line, joined));
        } else {
            lines.push((line, joined));
        }
    }
    lines.extend(open);
    lines
}

/// Key and value: the first `=`, `:` or blank that is not escaped separates them, with blanks around it.
fn split(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = line
        .char_indices()
        .find(|(_, c)| {
            let ends = !is_escaped && matches!(c, '=' | ':' | ' ' | '\t' | '\u{c}');
            is_escaped = *c == '\\' && !is_escaped;
            ends
        })
        .map_or(line.len(), |(at, _)| at);
    let (name, rest) = line.split_at(end);
    let blanks = [' ', '\t', '\u{c}'];
    let rest = rest.trim_start_matches(blanks);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, rest.trim_start_matches(blanks))
}

/// Resolves escapes; `None` where `\u` is malformed. A lone surrogate becomes the replacement character.
fn unescape(text: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let c = match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('t')) => '\t',
            ('\\', Some('n')) => '\n',
            ('\\', Some('r')) => '\r',
            ('\\', Some('f')) => '\u{c}',
            ('\\', Some('u')) => {
                let digits: String = chars.by_ref().take(4).collect();
                let is_hex = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit());
                units.push(u16::from_str_radix(&digits, 16).ok().filter(|_| is_hex)?);
                continue;
            }
            ('\\', Some(other)) => other,
            ('\\', None) => continue,
            (c, _) => c,
        };
        units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    }
    Some(String::from_utf16_lossy(&units))
}

//! Reads the `Debug` form of a message into its leaves, `path = value`, so that two libraries' structs can be
//! compared by field name.

use std::collections::BTreeMap;

use protocol::types::TopicId;

/// The leaves of `text` by their path. Nulls, empty strings and empty arrays are left out (libraries differ in what
/// they make of a field that is not on the wire), and so are `records`, whose forms differ.
pub fn leaves(text: &str) -> BTreeMap<String, String> {
    let mut parser = Parser { rest: text, leaves: BTreeMap::new() };
    parser.value("");
    assert_eq!(parser.rest, "", "all of {text}");
    parser.leaves
}

struct Parser<'a> {
    rest: &'a str,
    leaves: BTreeMap<String, String>,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, token: &str) -> bool {
        self.rest.strip_prefix(token).map(|rest| self.rest = rest).is_some()
    }

    fn take(&mut self, end: usize) -> &'a str {
        let (head, rest) = self.rest.split_at(end);
        self.rest = rest;
        head
    }

    /// A quoted string, as it is written.
    fn quoted(&mut self) -> &'a str {
        let mut escaped = false;
        let end = self.rest[1..]
            .find(|c| {
                let end = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                end
            })
            .unwrap();
        self.take(end + 2)
    }

    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || "_-".contains(c)));
        self.take(end.unwrap_or(self.rest.len()))
    }

    /// Bytes as the oracle shows them, `b"..."`: one leaf for each, as a list has.
    fn bytes(&mut self, path: &str) {
        let quoted = self.quoted();
        let mut rest = quoted[1..quoted.len() - 1].bytes();
        let hex = |digits: [Option<u8>; 2]| {
            let digits = digits.map(|digit| char::from(digit.unwrap()).to_digit(16).unwrap());
            u8::try_from(16 * digits[0] + digits[1]).unwrap()
        };
        for index in 0.. {
            let byte = match rest.next() {
                None => return,
                Some(b'\\') => match rest.next().unwrap() {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'0' => 0,
                    b'x' => hex([rest.next(), rest.next()]),
                    itself => itself,
                },
                Some(plain) => plain,
            };
            self.leaf(&format!("{path}[{index}]"), &byte.to_string());
        }
    }

    fn value(&mut self, path: &str) {
        if self.rest.starts_with("b\"") {
            self.take(1);
            return self.bytes(path);
        }
        if self.rest.starts_with('"') {
            let text = self.quoted();
            return self.leaf(path, text);
        }
        if self.eat("[") {
            return self.list(path, "]");
        }
        if self.eat("{") {
            assert!(self.eat("}"), "only empty maps are expected");
            return;
        }
        let word = self.word();
        assert!(!word.is_empty(), "a value at {}", self.rest);
        if word == "TopicId" {
            assert!(self.eat("("));
            let id = TopicId::parse(self.word()).unwrap();
            assert!(self.eat(")"));
            let hex: String = id.get().iter().map(|byte| format!("{byte:02x}")).collect();
            let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
            return self.leaf(path, &parts.join("-"));
        }
        if self.eat("(") {
            self.value(path);
            assert!(self.eat(")"));
        } else if self.eat(" { ") {
            self.fields(path);
        } else {
            self.leaf(path, word);
        }
    }

    fn list(&mut self, path: &str, end: &str) {
        for index in 0.. {
            if self.eat(end) {
                return;
            }
            self.value(&format!("{path}[{index}]"));
            self.eat(", ");
        }
    }

    fn fields(&mut self, path: &str) {
        while !self.eat("}") {
            let name = self.word();
            assert!(self.eat(": "), "a field at {}", self.rest);
            if name == "records" {
                self.skip();
            } else {
                self.value(&format!("{path}.{name}"));
            }
            let _separator = self.eat(", ") || self.eat(" ");
        }
    }

    /// Skips one value of any form.
    fn skip(&mut self) {
        let mut depth = 0;
        loop {
            if self.rest.starts_with('"') {
                self.quoted();
                continue;
            }
            let next = self.rest.chars().next().unwrap();
            match next {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' => depth -= 1,
                '}' if depth > 0 => depth -= 1,
                ',' | ' ' | '}' if depth == 0 => return,
                _ => {}
            }
            self.take(next.len_utf8());
        }
    }

    fn leaf(&mut self, path: &str, value: &str) {
        if value != "None" && value != "\"\"" {
            self.leaves.insert(path.to_owned(), value.to_owned());
        }
    }
}

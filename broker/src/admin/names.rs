//! Names of topics that metrics cannot tell apart, because they differ in `.` and `_` only (protocol.md 3.7). The names there
//! are listed once for each request, when one needs it: what a request names is then looked up, not compared with all.
//! Pure; used by `topics`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Topics by what metrics make of their names.
#[derive(Debug, Default)]
pub(super) struct Alike {
    /// The topics there are have been noted.
    pub(super) is_listed: bool,
    /// The first topic of each name, of those that have one of the two characters: no other one can collide.
    topics: HashMap<String, String>,
}

fn shown_as(name: &str) -> Option<String> {
    name.contains(['.', '_']).then(|| name.replace('.', "_"))
}

impl Alike {
    /// Whether a topic of this name could collide with any.
    pub(super) fn may_collide(name: &str) -> bool {
        name.contains(['.', '_'])
    }

    /// Notes a topic that is there, or will be.
    pub(super) fn note(&mut self, name: &str) {
        if let Some(shown) = shown_as(name)
            && let Entry::Vacant(place) = self.topics.entry(shown)
        {
            place.insert(name.to_owned());
        }
    }

    /// The topic that a new one of this name would collide with.
    pub(super) fn find(&self, name: &str) -> Option<&str> {
        self.topics.get(&shown_as(name)?).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_collide_that_differ_in_dots_and_underscores_only() {
        let mut alike = Alike::default();
        for name in ["a.b", "a_b.c", "plain", "a__b"] {
            alike.note(name);
        }
        alike.note("a_b");
        assert_eq!(alike.find("a_b"), Some("a.b"), "the first");
        assert_eq!(alike.find("a.b.c"), Some("a_b.c"));
        assert_eq!(alike.find("a._b"), Some("a__b"));
        for name in ["plain", "a.b.", "A_b", "ab", "."] {
            assert_eq!(alike.find(name), None, "{name}");
        }
        assert!(Alike::may_collide(".") && Alike::may_collide("a_") && !Alike::may_collide("plain"));
    }
}

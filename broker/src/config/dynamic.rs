//! Changes of overrides: the operations of `IncrementalAlterConfigs` on a map of texts (security-admin.md 5.2). Pure;
//! whether the result is valid is asked of `topic::validate` afterwards.

use std::collections::{BTreeMap, BTreeSet};

use super::keys::{self, Kind};

/// What to do with a key; the numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Give it this value.
    Set,
    /// Take the override away.
    Delete,
    /// Add items to the list.
    Append,
    /// Take items out of the list.
    Subtract,
}

impl Operation {
    /// The operation of a number on the wire.
    pub const fn new(code: i8) -> Option<Self> {
        match code {
            0 => Some(Self::Set),
            1 => Some(Self::Delete),
            2 => Some(Self::Append),
            3 => Some(Self::Subtract),
            _ => None,
        }
    }
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub name: String,
    /// What to do.
    pub operation: Operation,
    /// The text; not needed to delete.
    pub value: Option<String>,
}

/// Why changes make no sense whatever the resource has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// A key twice: INVALID_REQUEST.
    #[error("Error due to duplicate config keys")]
    Duplicate,
    /// No text where one is needed: INVALID_REQUEST.
    #[error("Null value not supported for : {0}")]
    Null(String),
    /// Appending to or subtracting from what is no list: INVALID_CONFIG.
    #[error("Config value {} is not allowed for config key: {name}", if matches!(operation, Operation::Append) { "append" } else { "subtract" })]
    NotList {
        /// The key.
        name: String,
        /// What was asked.
        operation: Operation,
    },
    /// Appending to or subtracting from an unknown key: INVALID_CONFIG.
    #[error("Unknown config name: {0}")]
    Unknown(String),
}

/// Whether the names are distinct and each that needs a text has one.
///
/// # Errors
/// `Duplicate` and `Null`.
pub fn check_shape<'a>(
    changes: impl Iterator<Item = (&'a str, bool, bool)> + Clone,
) -> Result<(), ChangeError> {
    let mut names = BTreeSet::new();
    if !changes.clone().all(|(name, ..)| names.insert(name)) {
        return Err(ChangeError::Duplicate);
    }
    let missing: Vec<_> =
        changes.filter(|(_, needs_text, has_text)| *needs_text && !has_text).map(|(n, ..)| n).collect();
    if missing.is_empty() { Ok(()) } else { Err(ChangeError::Null(missing.join(", "))) }
}

/// Applies changes to the overrides of a topic, in order.
///
/// # Errors
/// The first change that cannot be made; the overrides are then half changed and not to be used.
pub fn apply_to_topic(
    overrides: &mut BTreeMap<String, String>,
    changes: &[Change],
) -> Result<(), ChangeError> {
    check_shape(
        changes.iter().map(|c| (c.name.as_str(), c.operation != Operation::Delete, c.value.is_some())),
    )?;
    for Change { name, operation, value } in changes {
        let text = value.as_deref().unwrap_or_default();
        match operation {
            Operation::Set => {
                overrides.insert(name.clone(), text.to_owned());
            }
            Operation::Delete => {
                overrides.remove(name);
            }
            Operation::Append | Operation::Subtract => {
                let key = keys::topic_key(name).ok_or_else(|| ChangeError::Unknown(name.clone()))?;
                if key.kind != Kind::List {
                    return Err(ChangeError::NotList { name: name.clone(), operation: *operation });
                }
                // The resource's own value, else the table's: never the broker's.
                let old = items(overrides.get(name).map_or(key.default, String::as_str));
                let given = items(text);
                let new: Vec<_> = if *operation == Operation::Append {
                    let added: Vec<_> = given.into_iter().filter(|item| !old.contains(item)).collect();
                    old.into_iter().chain(added).collect()
                } else {
                    old.into_iter().filter(|item| !given.contains(item)).collect()
                };
                let joined = new.join(",");
                overrides.insert(name.clone(), joined);
            }
        }
    }
    Ok(())
}

fn items(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, operation: Operation, value: &str) -> Change {
        Change { name: name.to_owned(), operation, value: Some(value.to_owned()) }
    }

    fn applied(before: &[(&str, &str)], changes: &[Change]) -> Result<Vec<(String, String)>, ChangeError> {
        let mut overrides = before.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        apply_to_topic(&mut overrides, changes).map(|()| overrides.into_iter().collect())
    }

    fn pairs(expected: &[(&str, &str)]) -> Result<Vec<(String, String)>, ChangeError> {
        Ok(expected.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect())
    }

    /// Statement 86 of protocol.md 5; S-25 of security-admin.md.
    #[test]
    fn appending_compact_twice_leaves_it_once() {
        let append = [change("cleanup.policy", Operation::Append, "compact")];
        let once = applied(&[], &append);
        assert_eq!(once, pairs(&[("cleanup.policy", "delete,compact")]), "the table's default comes first");
        assert_eq!(applied(&[("cleanup.policy", "delete,compact")], &append), once);
        let subtract = [change("cleanup.policy", Operation::Subtract, "delete,unknown")];
        assert_eq!(
            applied(&[("cleanup.policy", "delete,compact")], &subtract),
            pairs(&[("cleanup.policy", "compact")])
        );
        let throttle = [change("leader.replication.throttled.replicas", Operation::Append, "0:1")];
        assert_eq!(applied(&[], &throttle), pairs(&[("leader.replication.throttled.replicas", "0:1")]));
    }

    /// Statement 87 of protocol.md 5.
    #[test]
    fn appending_to_what_is_no_list_is_refused() {
        let error = applied(&[], &[change("retention.ms", Operation::Append, "1")]).unwrap_err();
        assert_eq!(error.to_string(), "Config value append is not allowed for config key: retention.ms");
        let error = applied(&[], &[change("nonsense", Operation::Subtract, "1")]).unwrap_err();
        assert_eq!(error, ChangeError::Unknown("nonsense".to_owned()));
    }

    #[test]
    fn set_and_delete_touch_their_key_only() {
        let changes = [
            change("retention.ms", Operation::Set, "5"),
            Change { name: "segment.ms".to_owned(), operation: Operation::Delete, value: None },
            Change { name: "never.set".to_owned(), operation: Operation::Delete, value: None },
        ];
        let before = [("flush.ms", "9"), ("segment.ms", "7")];
        assert_eq!(applied(&before, &changes), pairs(&[("flush.ms", "9"), ("retention.ms", "5")]));
    }

    #[test]
    fn a_key_twice_and_a_missing_text_are_refused() {
        let set = change("retention.ms", Operation::Set, "5");
        assert_eq!(applied(&[], &[set.clone(), set]), Err(ChangeError::Duplicate));
        let null = |name: &str| Change { name: name.to_owned(), operation: Operation::Append, value: None };
        let error = applied(&[], &[null("cleanup.policy"), null("a")]).unwrap_err();
        assert_eq!(error.to_string(), "Null value not supported for : cleanup.policy, a");
    }
}

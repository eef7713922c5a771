//! Environment variables: `ODRADEK_<KEY>`, the key in capitals with `_` for `.`.

use super::super::keys;
use super::super::settings::Place;
use super::{Collected, Warning, kafka_name};

const PREFIX: &str = "ODRADEK_";

/// Variables of that prefix that scripts and tests use and that are no keys; `ODRADEK_LOG` filters the log.
const NOT_KEYS: [&str; 4] = ["LOG", "DATA", "CACHE", "INTEROP"];

/// Sets what the environment names. A name without a near neighbour is somebody else's and only warned of.
pub(super) fn read(environment: &[(String, String)], into: &mut Collected) {
    for (variable, text) in environment {
        let Some(name) = variable.strip_prefix(PREFIX).filter(|name| !NOT_KEYS.contains(name)) else {
            continue;
        };
        let name = kafka_name(&name.to_ascii_lowercase());
        // One key of Kafka's has a capital.
        let known = keys::broker_keys().find(|key| key.name.eq_ignore_ascii_case(&name));
        let name = known.map_or(name, |key| key.name.to_owned());
        let is_meant = known.is_some()
            || name.starts_with("listener.name.")
            || keys::nearest_broker_key(&name).is_some();
        if is_meant {
            into.settings.set(&name, text, Place::Environment { variable: variable.clone() });
        } else {
            into.warnings.push(Warning::Variable { variable: variable.clone() });
        }
    }
}

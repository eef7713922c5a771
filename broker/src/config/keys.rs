//! THE table of configuration keys: one row per key. Parsing, `DescribeConfigs`, alterations and the checks at start
//! derive from it. Knows names, types, defaults, ranges and how far a key is built; knows no value that was set.
//!
//! Names, types, defaults and ranges are Kafka 3.9's: `keys/kafka_broker.txt` and `keys/kafka_topic.txt` hold its own. The
//! sentences are ours.

mod coordination;
mod elsewhere;
mod general;
mod log;
mod network;
mod ours;
mod replication;
mod security;
mod topic;

/// Type of a value, as `DescribeConfigs` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// Text.
    String,
    /// 32-bit integer.
    Int,
    /// 16-bit integer.
    Short,
    /// 64-bit integer.
    Long,
    /// Double-precision number.
    Double,
    /// Comma-separated list.
    List,
    /// Name of a Java class; we load none.
    Class,
    /// Secret text: never shown, never logged.
    Password,
}

impl Kind {
    /// Kafka's `config_type` (protocol.md 3.8).
    pub const fn code(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::String => 2,
            Self::Int => 3,
            Self::Short => 4,
            Self::Long => 5,
            Self::Double => 6,
            Self::List => 7,
            Self::Class => 8,
            Self::Password => 9,
        }
    }

    /// Kafka's name of the type, as its error texts have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boolean => "BOOLEAN",
            Self::String => "STRING",
            Self::Int => "INT",
            Self::Short => "SHORT",
            Self::Long => "LONG",
            Self::Double => "DOUBLE",
            Self::List => "LIST",
            Self::Class => "CLASS",
            Self::Password => "PASSWORD",
        }
    }
}

/// Which values of a type are allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Range {
    /// All.
    Any,
    /// Numbers from here on.
    AtLeast(i64),
    /// Numbers from the first to the second, both allowed.
    Between(i64, i64),
    /// Numbers from the second to the third, and the first.
    BetweenOr(i64, i64, i64),
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// One of these texts, in capitals or not.
    OneOfAnyCase(&'static [&'static str]),
    /// A list whose items are among these.
    SubsetOf(&'static [&'static str]),
    /// `partition:broker,...` or `*` (KIP-73).
    ThrottledReplicas,
    /// A release of Kafka, such as `3.0` or `3.0-IV1`.
    Release,
}

/// How Kafka lets a broker key change while the broker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dynamic {
    /// Not at all.
    Static,
    /// For one broker at a time.
    PerBroker,
    /// For all brokers at once, or for one.
    ClusterWide,
}

/// Whose key it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Kafka's, documented there.
    Kafka,
    /// Kafka's, for its own tests: described only when it is set.
    KafkaInternal,
    /// Kafka's, and defined elsewhere than in its broker (by an authorizer, or for changes at run time alone): described
    /// only when it is set.
    KafkaUnlisted,
    /// Ours: static, not described to clients.
    Ours,
}

/// How far a key is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It does what it says.
    Works,
    /// It is checked and kept, and changes nothing; whoever sets it is told this reason.
    NoEffect(&'static str),
    /// It would protect the broker or lead it elsewhere and is not built: any value but the default stops the start,
    /// with this reason (architecture 9: never run open what was meant to be closed).
    Refused(&'static str),
}

/// Section of the TOML file that a key is expected in; it only groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `[general]`
    General,
    /// `[listeners]`
    Listeners,
    /// `[log]`
    Log,
    /// `[replication]`
    Replication,
    /// `[group]`
    Group,
    /// `[transaction]`
    Transaction,
    /// `[quotas]`
    Quotas,
    /// `[security]`
    Security,
    /// `[metrics]`
    Metrics,
    /// `[runtime]`
    Runtime,
}

impl Section {
    /// All of them, by name.
    pub const ALL: [Self; 10] = [
        Self::General,
        Self::Listeners,
        Self::Log,
        Self::Replication,
        Self::Group,
        Self::Transaction,
        Self::Quotas,
        Self::Security,
        Self::Metrics,
        Self::Runtime,
    ];

    /// The name in brackets.
    pub const fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Listeners => "listeners",
            Self::Log => "log",
            Self::Replication => "replication",
            Self::Group => "group",
            Self::Transaction => "transaction",
            Self::Quotas => "quotas",
            Self::Security => "security",
            Self::Metrics => "metrics",
            Self::Runtime => "runtime",
        }
    }
}

/// A broker key.
#[derive(Clone, Copy, Debug)]
pub struct BrokerKey {
    /// Kafka's name.
    pub name: &'static str,
    /// Type of its value.
    pub kind: Kind,
    /// Default as Kafka prints it; `None` is null.
    pub default: Option<&'static str>,
    /// Allowed values.
    pub range: Range,
    /// How Kafka lets it change.
    pub dynamic: Dynamic,
    /// Whose it is.
    pub origin: Origin,
    /// How far it is built.
    pub support: Support,
    /// Where it stands in a TOML file.
    pub section: Section,
    /// What it does, with unit.
    pub doc: &'static str,
}

/// A broker key that gives a topic key its value when the topic has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synonym {
    /// Name of the broker key.
    pub name: &'static str,
    /// Milliseconds in its unit; 1 where no conversion is due.
    pub factor: i64,
}

/// A topic key.
#[derive(Clone, Copy, Debug)]
pub struct TopicKey {
    /// Kafka's name.
    pub name: &'static str,
    /// Type of its value.
    pub kind: Kind,
    /// Default as Kafka prints it.
    pub default: &'static str,
    /// Allowed values.
    pub range: Range,
    /// Broker keys that stand in for it, the first that is set wins.
    pub synonyms: &'static [Synonym],
    /// How far it is built.
    pub support: Support,
    /// What it does, with unit.
    pub doc: &'static str,
}

/// Rows of a table of broker keys: `"name": Kind = default, range, scope, support, "sentence";`.
macro_rules! broker_table {
    ($table:ident, $section:ident, { $($name:literal: $kind:ident = $default:tt, $range:tt, $scope:ident, $support:tt, $doc:expr;)* }) => {
        pub(super) const $table: &[$crate::config::keys::BrokerKey] = &[$(
            $crate::config::keys::BrokerKey {
                name: $name,
                kind: $crate::config::keys::Kind::$kind,
                default: $crate::config::keys::default_of!($default),
                range: $crate::config::keys::range_of!($range),
                dynamic: $crate::config::keys::dynamic_of!($scope),
                origin: $crate::config::keys::origin_of!($scope),
                support: $crate::config::keys::support_of!($support),
                section: $crate::config::keys::Section::$section,
                doc: $doc,
            },
        )*];
    };
}

macro_rules! default_of {
    (null) => {
        None
    };
    ($text:literal) => {
        Some($text)
    };
}

macro_rules! range_of {
    (any) => {
        $crate::config::keys::Range::Any
    };
    ((>= $from:literal)) => {
        $crate::config::keys::Range::AtLeast($from)
    };
    (($from:literal ..= $to:literal)) => {
        $crate::config::keys::Range::Between($from, $to)
    };
    (($from:literal ..= $to:literal or $other:literal)) => {
        $crate::config::keys::Range::BetweenOr($other, $from, $to)
    };
    ((one_of $($text:literal)*)) => {
        $crate::config::keys::Range::OneOf(&[$($text),*])
    };
    ((one_of_any_case $($text:literal)*)) => {
        $crate::config::keys::Range::OneOfAnyCase(&[$($text),*])
    };
    ((subset_of $($text:literal)*)) => {
        $crate::config::keys::Range::SubsetOf(&[$($text),*])
    };
    (throttled) => {
        $crate::config::keys::Range::ThrottledReplicas
    };
    (release) => {
        $crate::config::keys::Range::Release
    };
}

macro_rules! dynamic_of {
    (broker) => {
        $crate::config::keys::Dynamic::PerBroker
    };
    (cluster) => {
        $crate::config::keys::Dynamic::ClusterWide
    };
    ($scope:ident) => {
        $crate::config::keys::Dynamic::Static
    };
}

macro_rules! origin_of {
    (ours) => {
        $crate::config::keys::Origin::Ours
    };
    (internal) => {
        $crate::config::keys::Origin::KafkaInternal
    };
    (unlisted) => {
        $crate::config::keys::Origin::KafkaUnlisted
    };
    ($scope:ident) => {
        $crate::config::keys::Origin::Kafka
    };
}

macro_rules! support_of {
    (works) => {
        $crate::config::keys::Support::Works
    };
    ((no_effect $why:expr)) => {
        $crate::config::keys::Support::NoEffect($why)
    };
    ((refused $why:expr)) => {
        $crate::config::keys::Support::Refused($why)
    };
}

use {broker_table, default_of, dynamic_of, origin_of, range_of, support_of};

/// The tables of broker keys, in the order of the sections.
const BROKER_TABLES: [&[BrokerKey]; 17] = [
    general::GENERAL,
    general::METRICS,
    elsewhere::ZOOKEEPER_KEYS,
    elsewhere::KRAFT_KEYS,
    network::LISTENERS,
    log::LOG,
    log::CLEANER,
    elsewhere::REMOTE,
    replication::REPLICATION,
    coordination::GROUP,
    coordination::SHARE,
    coordination::TRANSACTION,
    replication::QUOTAS,
    security::SECURITY,
    security::SASL,
    security::SSL,
    ours::OURS,
];

/// Every broker key.
pub fn broker_keys() -> impl Iterator<Item = &'static BrokerKey> {
    BROKER_TABLES.into_iter().flatten()
}

/// The broker key of that name.
pub fn broker_key(name: &str) -> Option<&'static BrokerKey> {
    broker_keys().find(|key| key.name == name)
}

/// Every topic key, in the order of the names.
pub fn topic_keys() -> impl Iterator<Item = &'static TopicKey> {
    topic::TOPIC.iter()
}

/// The topic key of that name.
pub fn topic_key(name: &str) -> Option<&'static TopicKey> {
    topic_keys().find(|key| key.name == name)
}

/// A key that may be set for one listener: `listener.name.<listener>.<key>` (security-admin.md 1.1).
#[derive(Clone, Copy, Debug)]
pub struct ListenerKey<'a> {
    /// Name of the listener in lower case, as written.
    pub listener: &'a str,
    /// The key behind the prefix.
    pub key: &'static BrokerKey,
}

/// Splits a name with a listener's prefix; `None` when it has none, or when the rest is no key that a listener may have.
pub fn listener_key(name: &str) -> Option<ListenerKey<'_>> {
    const PLAIN: [&str; 4] =
        ["max.connections", "max.connection.creation.rate", "num.network.threads", "principal.builder.class"];
    let (listener, rest) = name.strip_prefix("listener.name.")?.split_once('.')?;
    let by_mechanism = ["sasl.", "connections.max.reauth.ms"];
    let base =
        by_mechanism.iter().find_map(|start| rest.find(start).map(|at| rest.split_at(at).1)).unwrap_or(rest);
    let key = broker_key(base)?;
    let allowed =
        PLAIN.contains(&base) || base.starts_with("ssl.") || by_mechanism.iter().any(|s| base.starts_with(s));
    (allowed && !listener.is_empty()).then_some(ListenerKey { listener, key })
}

/// The known broker name that is nearest to an unknown one, if any is near enough to be meant.
pub fn nearest_broker_key(name: &str) -> Option<&'static str> {
    nearest(name, broker_keys().map(|key| key.name))
}

/// The known topic name that is nearest to an unknown one, if any is near enough to be meant.
pub fn nearest_topic_key(name: &str) -> Option<&'static str> {
    nearest(name, topic_keys().map(|key| key.name))
}

/// The nearest candidate by edit distance, at most a third of the name away. Names beyond 100 bytes are not compared:
/// the work is quadratic and no key is that long.
fn nearest(name: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    if name.is_empty() || name.len() > 100 {
        return None;
    }
    let far = name.len().div_ceil(3);
    let (distance, best) = candidates
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= far)
        .map(|candidate| (edit_distance(name.as_bytes(), candidate.as_bytes()), candidate))
        .min()?;
    (distance <= far).then_some(best)
}

/// Levenshtein's distance, one row at a time.
fn edit_distance(left: &[u8], right: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut diagonal = i;
        let mut before = i + 1;
        for (cell, b) in row.iter_mut().skip(1).zip(right) {
            let substituted = diagonal + usize::from(a != b);
            diagonal = *cell;
            before = substituted.min(before + 1).min(*cell + 1);
            *cell = before;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;

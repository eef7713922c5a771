//! Rules between keys that hold at start (security-admin.md 5.3). Each key alone was checked by the table.

use std::net::IpAddr;

use super::listeners::ListenerFault;
use super::settings::Settings;

/// What is wrong between keys; each is one sentence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckFault {
    /// A listener.
    #[error("{0}")]
    Listener(ListenerFault),
    /// A text that names no cores.
    #[error("cores must be auto, a number from 1 to 65535, or a list of different cores such as [0,2]")]
    Cores,
    /// No log directory.
    #[error("log.dirs and log.dir name no directory")]
    NoLogDir,
    /// A log directory that is named twice.
    #[error("log.dirs names {dir} twice")]
    LogDirTwice {
        /// The directory.
        dir: String,
    },
    /// A value below what start allows.
    #[error("{key} must be {rule}, not {value}")]
    Value {
        /// The key.
        key: &'static str,
        /// What it must be.
        rule: &'static str,
        /// What it is.
        value: i64,
    },
    /// A value out of order with another.
    #[error("{low} ({low_value}) must not be above {high} ({high_value})")]
    Order {
        /// The key that must be lower.
        low: &'static str,
        /// Its value.
        low_value: i64,
        /// The key that must be higher.
        high: &'static str,
        /// Its value.
        high_value: i64,
    },
    /// An id that may be given to another broker.
    #[error(
        "broker.id {id} must be -1 or from 0 to reserved.broker.max.id ({max}): ids above it are generated"
    )]
    ReservedId {
        /// The id.
        id: i64,
        /// The bound.
        max: i64,
    },
    /// No id, and none may be generated.
    #[error("broker.id must be set when broker.id.generation.enable is false")]
    NoId,
    /// Too little memory for compaction.
    #[error(
        "log.cleaner.dedupe.buffer.size must be more than 1048576 for each of log.cleaner.threads, of which there must be one"
    )]
    Dedupe,
    /// An offset map of which nothing may be used.
    #[error("log.cleaner.io.buffer.load.factor must be above 0")]
    LoadFactor,
    /// A limit of no connections at all.
    #[error("max.connections.per.ip may be 0 only if max.connections.per.ip.overrides is set")]
    NoConnections,
    /// An entry of the limits by address.
    #[error("max.connections.per.ip.overrides: `{text}` is not of the form host:count")]
    PerIp {
        /// The entry.
        text: String,
    },
    /// A text that is no address.
    #[error("admin.listener must be host:port or none, not `{text}`")]
    AdminListener {
        /// The text.
        text: String,
    },
    /// A text that names no ensemble.
    #[error(
        "zookeeper.connect must be host:port, several separated by commas, with an optional /path, not `{text}`"
    )]
    Zookeeper {
        /// The text.
        text: String,
    },
    /// A share outside its range.
    #[error("storage.cache.fraction must be from 0.01 to 0.8")]
    CacheFraction,
}

impl CheckFault {
    /// The keys that it is about.
    pub(super) fn keys(&self) -> Vec<&str> {
        match self {
            Self::Listener(fault) => fault.keys(),
            Self::Cores => vec!["cores"],
            Self::NoLogDir | Self::LogDirTwice { .. } => vec!["log.dirs", "log.dir"],
            Self::Value { key, .. } => vec![key],
            Self::Order { low, high, .. } => vec![low, high],
            Self::ReservedId { .. } => vec!["broker.id", "reserved.broker.max.id"],
            Self::NoId => vec!["broker.id", "broker.id.generation.enable"],
            Self::Dedupe => vec!["log.cleaner.dedupe.buffer.size", "log.cleaner.threads"],
            Self::LoadFactor => vec!["log.cleaner.io.buffer.load.factor"],
            Self::NoConnections => vec!["max.connections.per.ip"],
            Self::PerIp { .. } => vec!["max.connections.per.ip.overrides"],
            Self::AdminListener { .. } => vec!["admin.listener"],
            Self::Zookeeper { .. } => vec!["zookeeper.connect"],
            Self::CacheFraction => vec!["storage.cache.fraction"],
        }
    }
}

/// Applies all rules but those of the listeners.
pub(super) fn check(settings: &Settings, faults: &mut Vec<CheckFault>) {
    identity(settings, faults);
    logs(settings, faults);
    network(settings, faults);
    for (low, high) in ORDERED {
        let (low_value, high_value) = (settings.integer(low), settings.integer(high));
        if low_value > high_value {
            faults.push(CheckFault::Order { low, low_value, high, high_value });
        }
    }
    faults.extend(super::broker::admin_listener(settings).err());
    zookeeper(settings, faults);
    let fraction = settings.double("storage.cache.fraction");
    faults.extend((!(0.01..=0.8).contains(&fraction)).then_some(CheckFault::CacheFraction));
    for (key, unit, rule) in MULTIPLES {
        let value = settings.integer(key);
        faults.extend((value % unit != 0).then_some(CheckFault::Value { key, rule, value }));
    }
}

/// The first must not be above the second.
const ORDERED: [(&str, &str); 7] = [
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
];

const MULTIPLES: [(&str, i64, &str); 2] = [
    ("storage.append.chunk.bytes", 4096, "a multiple of 4096"),
    ("storage.prealloc.step.bytes", 1 << 20, "a multiple of 1048576"),
];

fn identity(settings: &Settings, faults: &mut Vec<CheckFault>) {
    let id = settings.integer("broker.id");
    let max = settings.integer("reserved.broker.max.id");
    if settings.boolean("broker.id.generation.enable") {
        faults.extend((id < -1 || id > max).then_some(CheckFault::ReservedId { id, max }));
    } else {
        faults.extend((id < 0).then_some(CheckFault::NoId));
    }
}

fn logs(settings: &Settings, faults: &mut Vec<CheckFault>) {
    let mut at_least = |key: &'static str, least: i64, rule: &'static str| {
        if let Some(value) = settings.integer_or_null(key)
            && value < least
        {
            faults.push(CheckFault::Value { key, rule, value });
        }
    };
    at_least("log.roll.ms", 1, "at least 1");
    at_least("log.roll.jitter.ms", 0, "at least 0");
    for key in ["log.retention.ms", "log.retention.minutes", "log.retention.hours"] {
        if settings.integer_or_null(key) == Some(0) {
            faults.push(CheckFault::Value { key, rule: "at least 1, or -1 for ever", value: 0 });
        }
    }
    let threads = settings.integer("log.cleaner.threads");
    let each = settings.integer("log.cleaner.dedupe.buffer.size").checked_div(threads).unwrap_or(0);
    faults.extend((each <= 1 << 20).then_some(CheckFault::Dedupe));
    let is_usable = settings.double("log.cleaner.io.buffer.load.factor") > 0.0;
    faults.extend((!is_usable).then_some(CheckFault::LoadFactor));
}

fn zookeeper(settings: &Settings, faults: &mut Vec<CheckFault>) {
    if let Some(text) = settings.text("zookeeper.connect")
        && !is_ensemble(&text)
    {
        faults.push(CheckFault::Zookeeper { text });
    }
    for key in ["zookeeper.session.timeout.ms", "zookeeper.connection.timeout.ms"] {
        if let Some(value) = settings.integer_or_null(key)
            && value < 1
        {
            faults.push(CheckFault::Value { key, rule: "at least 1", value });
        }
    }
}

/// `host:port` separated by commas, the ports optional; then perhaps the path that all others are below.
fn is_ensemble(text: &str) -> bool {
    let (hosts, path) = match text.find('/').and_then(|at| text.split_at_checked(at)) {
        Some((hosts, path)) => (hosts, Some(path)),
        None => (text, None),
    };
    let is_path = |path: &str| {
        let names = path.strip_prefix('/').unwrap_or_default();
        names.is_empty() || names.split('/').all(|name| !matches!(name, "" | "." | ".."))
    };
    let is_server = |server: &str| {
        let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => {
                return host.parse::<std::net::Ipv6Addr>().is_ok()
                    && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
            }
            None => server.split_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
        };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        !host.is_empty() && host.bytes().all(is_name) && port.is_none_or(is_port)
    };
    path.is_none_or(is_path) && hosts.split(',').all(is_server)
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0)
}

fn network(settings: &Settings, faults: &mut Vec<CheckFault>) {
    let queued = settings.integer("queued.max.request.bytes");
    let largest = settings.integer("socket.request.max.bytes");
    if queued > 0 && queued < largest {
        let (low, high) = ("socket.request.max.bytes", "queued.max.request.bytes");
        faults.push(CheckFault::Order { low, low_value: largest, high, high_value: queued });
    }
    let overrides = settings.text("max.connections.per.ip.overrides").unwrap_or_default();
    if settings.integer("max.connections.per.ip") == 0 && overrides.is_empty() {
        faults.push(CheckFault::NoConnections);
    }
    faults.extend(limits_by_host(&overrides).filter_map(Result::err));
    let (delay, idle) = (
        settings.integer("connection.failed.authentication.delay.ms"),
        settings.integer("connections.max.idle.ms"),
    );
    if idle >= 0 && delay >= idle {
        let (low, high) = ("connection.failed.authentication.delay.ms", "connections.max.idle.ms");
        faults.push(CheckFault::Order { low, low_value: delay, high, high_value: idle });
    }
}

/// The entries `host:count` of `max.connections.per.ip.overrides`.
pub(super) fn limits_by_host(text: &str) -> impl Iterator<Item = Result<(String, u32), CheckFault>> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(|entry| {
        let parsed = entry.rsplit_once(':').and_then(|(host, count)| {
            let host = host.trim().trim_start_matches('[').trim_end_matches(']');
            let is_host = host.parse::<IpAddr>().is_ok()
                || (!host.is_empty()
                    && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')));
            let count = count.trim().parse::<u32>().ok()?;
            is_host.then(|| (host.to_owned(), count))
        });
        parsed.ok_or_else(|| CheckFault::PerIp { text: entry.to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ensemble_is_hosts_and_perhaps_a_path() {
        for good in
            ["zk:2181", "zk", "a:1,b-2.example:65535", "10.0.0.1:2181/kafka/one", "[::1]:2181,[::1]", "zk:1/"]
        {
            assert!(is_ensemble(good), "{good}");
        }
        for bad in [
            "", "a:0", "a:65536", "a:1,", ",a", "a:1,b:x", "a b", "::1", "[::1", "[a]:1", "/kafka", "a:1/k/",
            "a//k",
        ] {
            assert!(!is_ensemble(bad), "{bad}");
        }
    }
}

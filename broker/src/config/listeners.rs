//! Listeners and what clients are told of them (security-admin.md 1.1): text to types, and the rules between the keys.
//! Opens nothing and resolves nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::keys;
use super::settings::Settings;

/// How bytes of a listener are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityProtocol {
    /// Not at all.
    Plaintext,
    /// By TLS.
    Ssl,
    /// Not at all, with authentication.
    SaslPlaintext,
    /// By TLS, with authentication.
    SaslSsl,
}

impl SecurityProtocol {
    const ALL: [Self; 4] = [Self::Plaintext, Self::Ssl, Self::SaslPlaintext, Self::SaslSsl];

    /// Kafka's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }
}

/// An address that we listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name in capitals.
    pub name: Arc<str>,
    /// Host to bind; `None` is every interface, as in Kafka, whether no host is named or 0.0.0.0.
    pub host: Option<String>,
    /// Port to bind; 0 is any free one.
    pub port: u16,
    /// Protection; only `Plaintext` passes the checks until TLS and SASL are built.
    pub protocol: SecurityProtocol,
    /// Connections that this listener alone may keep (`listener.name.<name>.max.connections`).
    pub max_connections: u32,
}

/// An address that clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedListener {
    /// Name of the listener.
    pub name: Arc<str>,
    /// Host that clients connect to.
    pub host: Arc<str>,
    /// Port that clients connect to; 0 stands for the port that the listener is bound to.
    pub port: u16,
}

impl fmt::Display for AdvertisedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{}://{open}{}{close}:{}", self.name, self.host, self.port)
    }
}

/// Everything about listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listeners {
    /// In the order they were named.
    pub listeners: Vec<Listener>,
    /// In the order they were named.
    pub advertised: Vec<AdvertisedListener>,
    /// Name of the listener that brokers use among themselves.
    pub inter_broker: Arc<str>,
}

/// What is wrong with the listeners.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenerFault {
    /// Not in the form of an endpoint.
    #[error("{key}: `{text}` is not of the form NAME://host:port")]
    Endpoint {
        /// The key.
        key: &'static str,
        /// The endpoint.
        text: String,
    },
    /// No listener at all.
    #[error("{key} names no listener: name one as NAME://host:port, or leave the key out for its default")]
    None {
        /// The key.
        key: &'static str,
    },
    /// A name twice.
    #[error("{key}: the listener name {name} appears twice")]
    NameTwice {
        /// The key.
        key: &'static str,
        /// The name.
        name: String,
    },
    /// A port twice.
    #[error("listeners: port {port} appears twice; only one IPv4 and one IPv6 address may share a port")]
    PortTwice {
        /// The port.
        port: u16,
    },
    /// An entry of the protocol map that is none.
    #[error(
        "listener.security.protocol.map: `{text}` is not of the form NAME:PROTOCOL with one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"
    )]
    Map {
        /// The entry.
        text: String,
    },
    /// A listener without a protocol.
    #[error("no security protocol is defined for listener {name}: name it in listener.security.protocol.map")]
    Unmapped {
        /// The listener.
        name: String,
    },
    /// A listener that would protect.
    #[error("listener {name} uses {}: TLS and SASL are not built yet, so the broker does not start rather than leave it open", .protocol.name())]
    Protected {
        /// The listener.
        name: String,
        /// Its protocol.
        protocol: SecurityProtocol,
    },
    /// Advertised but not listened on.
    #[error("advertised.listeners: {name} is not among the listeners ({known})")]
    NotListening {
        /// The name.
        name: String,
        /// Names of the listeners.
        known: String,
    },
    /// An address that nobody can connect to.
    #[error(
        "advertised.listeners cannot use the address {host}, which nobody can connect to: set a routable address"
    )]
    Meta {
        /// The address.
        host: String,
    },
    /// A prefix of a listener that does not exist.
    #[error("{key} is for a listener that is not among the listeners ({known})")]
    Prefix {
        /// The key.
        key: String,
        /// Names of the listeners.
        known: String,
    },
    /// Both keys of the inter-broker listener.
    #[error("only one of inter.broker.listener.name and security.inter.broker.protocol may be set")]
    Both,
    /// The inter-broker listener is not advertised.
    #[error(
        "the listener {name} that brokers use among themselves is not advertised ({known}): set inter.broker.listener.name"
    )]
    InterBroker {
        /// The name.
        name: String,
        /// Names that are advertised.
        known: String,
    },
}

impl ListenerFault {
    /// The keys that it is about.
    pub(super) fn keys(&self) -> Vec<&str> {
        match self {
            Self::Endpoint { key, .. } | Self::None { key } | Self::NameTwice { key, .. } => vec![key],
            Self::Prefix { key, .. } => vec![key],
            Self::PortTwice { .. } | Self::Unmapped { .. } | Self::Protected { .. } => vec!["listeners"],
            Self::Map { .. } => vec!["listener.security.protocol.map"],
            Self::NotListening { .. } | Self::Meta { .. } => vec!["advertised.listeners", "listeners"],
            Self::Both | Self::InterBroker { .. } => {
                vec!["inter.broker.listener.name", "security.inter.broker.protocol", "advertised.listeners"]
            }
        }
    }
}

/// An endpoint as written.
struct Endpoint {
    name: String,
    host: String,
    port: u16,
}

/// Makes the listeners of the settings, and says everything that is wrong with them. `local_host` is told to clients
/// where neither key names a host.
pub(super) fn resolve(
    settings: &Settings,
    local_host: &str,
    faults: &mut Vec<ListenerFault>,
) -> Option<Listeners> {
    let before = faults.len();
    let map = protocols(&settings.written("listener.security.protocol.map").unwrap_or_default(), faults);
    let bound = endpoints("listeners", &settings.written("listeners").unwrap_or_default(), faults);
    distinct_ports(&bound, faults);
    let listeners = bound.iter().filter_map(|e| listener(e, &map, settings, faults)).collect();
    let advertised = match settings.written("advertised.listeners") {
        Some(text) => endpoints("advertised.listeners", &text, faults),
        None => bound
            .iter()
            .map(|e| Endpoint { name: e.name.clone(), host: e.host.clone(), port: e.port })
            .collect(),
    };
    if bound.is_empty() || advertised.is_empty() {
        // That is said; what follows from it need not be.
        return None;
    }
    let known = names(&bound);
    for endpoint in &advertised {
        if !bound.iter().any(|listener| listener.name == endpoint.name) {
            faults.push(ListenerFault::NotListening { name: endpoint.name.clone(), known: known.clone() });
        }
        if endpoint.host == "0.0.0.0" || endpoint.host.parse() == Ok(Ipv6Addr::UNSPECIFIED) {
            faults.push(ListenerFault::Meta { host: endpoint.host.clone() });
        }
    }
    for (key, _) in settings.iter() {
        let Some(prefixed) = keys::listener_key(key) else { continue };
        if !bound.iter().any(|listener| listener.name.eq_ignore_ascii_case(prefixed.listener)) {
            faults.push(ListenerFault::Prefix { key: key.to_owned(), known: known.clone() });
        }
    }
    let inter_broker = inter_broker(settings, &advertised, faults);
    let advertised = advertised.into_iter().map(|endpoint| advertise(endpoint, local_host)).collect();
    (faults.len() == before).then(|| Listeners {
        listeners,
        advertised,
        inter_broker: Arc::from(inter_broker),
    })
}

fn names(endpoints: &[Endpoint]) -> String {
    endpoints.iter().map(|endpoint| endpoint.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn advertise(endpoint: Endpoint, local_host: &str) -> AdvertisedListener {
    let host = if endpoint.host.is_empty() { local_host } else { &endpoint.host };
    AdvertisedListener { name: Arc::from(endpoint.name), host: Arc::from(host), port: endpoint.port }
}

fn listener(
    endpoint: &Endpoint,
    map: &BTreeMap<String, SecurityProtocol>,
    settings: &Settings,
    faults: &mut Vec<ListenerFault>,
) -> Option<Listener> {
    let Some(&protocol) = map.get(&endpoint.name) else {
        faults.push(ListenerFault::Unmapped { name: endpoint.name.clone() });
        return None;
    };
    if protocol != SecurityProtocol::Plaintext {
        faults.push(ListenerFault::Protected { name: endpoint.name.clone(), protocol });
    }
    let own_limit = format!("listener.name.{}.max.connections", endpoint.name.to_ascii_lowercase());
    let max_connections = settings
        .set_value(&own_limit)
        .and_then(|text| text.trim().parse::<i32>().ok())
        .unwrap_or(i32::MAX)
        .unsigned_abs();
    Some(Listener {
        name: Arc::from(endpoint.name.as_str()),
        host: Some(endpoint.host.clone()).filter(|host| !host.is_empty() && host != "0.0.0.0"),
        port: endpoint.port,
        protocol,
        max_connections,
    })
}

fn inter_broker(settings: &Settings, advertised: &[Endpoint], faults: &mut Vec<ListenerFault>) -> String {
    let by_name = settings.text("inter.broker.listener.name");
    if by_name.is_some() && settings.set_value("security.inter.broker.protocol").is_some() {
        faults.push(ListenerFault::Both);
    }
    let name = by_name
        .map(|name| name.to_ascii_uppercase())
        .or_else(|| settings.text("security.inter.broker.protocol"))
        .unwrap_or_default();
    if !advertised.iter().any(|endpoint| endpoint.name == name) {
        faults.push(ListenerFault::InterBroker { name: name.clone(), known: names(advertised) });
    }
    name
}

fn protocols(text: &str, faults: &mut Vec<ListenerFault>) -> BTreeMap<String, SecurityProtocol> {
    let mut map = BTreeMap::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let pair = entry.rsplit_once(':').and_then(|(name, protocol)| {
            Some((name.trim(), SecurityProtocol::of(&protocol.trim().to_ascii_uppercase())?))
        });
        match pair {
            Some((name, protocol)) if !name.is_empty() => {
                let name = name.to_ascii_uppercase();
                if map.insert(name.clone(), protocol).is_some() {
                    faults.push(ListenerFault::NameTwice { key: "listener.security.protocol.map", name });
                }
            }
            _ => faults.push(ListenerFault::Map { text: entry.to_owned() }),
        }
    }
    map
}

fn endpoints(key: &'static str, text: &str, faults: &mut Vec<ListenerFault>) -> Vec<Endpoint> {
    let mut found: Vec<Endpoint> = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        match endpoint(entry) {
            Some(endpoint) if found.iter().any(|other| other.name == endpoint.name) => {
                faults.push(ListenerFault::NameTwice { key, name: endpoint.name });
            }
            Some(endpoint) => found.push(endpoint),
            None => faults.push(ListenerFault::Endpoint { key, text: entry.to_owned() }),
        }
    }
    if text.split(',').all(|entry| entry.trim().is_empty()) {
        faults.push(ListenerFault::None { key });
    }
    found
}

/// `NAME://host:port`, an IPv6 address in brackets.
fn endpoint(text: &str) -> Option<Endpoint> {
    let (name, rest) = text.split_once("://")?;
    let (host, port) = rest.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').filter(|inner| !inner.is_empty())?,
        None if host.contains(':') => return None,
        None => host,
    };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'%' | b'.' | b'_' | b':');
    (!name.is_empty() && name.bytes().all(is_name) && host.bytes().all(is_host)).then_some(())?;
    Some(Endpoint { name: name.to_ascii_uppercase(), host: host.to_owned(), port: port.parse().ok()? })
}

/// KIP-797: a port may appear twice if exactly one host is an IPv4 address and the other an IPv6 address.
fn distinct_ports(endpoints: &[Endpoint], faults: &mut Vec<ListenerFault>) {
    let mut by_port: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for endpoint in endpoints.iter().filter(|endpoint| endpoint.port != 0) {
        by_port.entry(endpoint.port).or_default().push(&endpoint.host);
    }
    for (port, hosts) in by_port {
        let four = hosts.iter().filter(|host| host.parse::<Ipv4Addr>().is_ok()).count();
        let six = hosts.iter().filter(|host| host.parse::<Ipv6Addr>().is_ok()).count();
        if hosts.len() > 1 && !(hosts.len() == 2 && four == 1 && six == 1) {
            faults.push(ListenerFault::PortTwice { port });
        }
    }
}

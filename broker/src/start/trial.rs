//! THE list of what a machine refuses to a configuration, found out without a start: io_uring, limits, cores, memory,
//! addresses, directories and what is in them. Makes nothing, and disturbs no broker that runs: ports are tried by the
//! start alone, which binds them. The start is refused by the first fault, `check-config` tells all of them.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use socket2::{Domain, Protocol, Socket, Type};

use super::boot::BootError;
use super::glance::{DirFault, Glance};
use super::memory::ShardMemory;
use super::{StartError, cores, shard};
use crate::config::broker::{AdminListener, BrokerConfig};
use crate::net::listener::{ListenError, Listener};
use crate::shard::start::{self as executors, Layout};

/// What would stop a start on this machine, and the keys that it is about.
#[derive(Debug)]
pub struct Fault {
    /// The keys.
    pub keys: &'static [&'static str],
    /// What it is, as the start says it.
    pub error: StartError,
    /// It may be the broker that the configuration is of, which runs.
    pub is_of_running: bool,
}

/// What a start needs of the machine, and what it has of it.
#[derive(Debug)]
pub struct Machine {
    /// Descriptors that the process may have.
    pub(super) descriptors: u64,
    pub(super) layout: Layout,
    pub(super) memory: ShardMemory,
    /// Their hosts are resolved.
    pub(super) listeners: Vec<Listener>,
}

const CORES: &[&str] = &["cores"];
const LISTENERS: &[&str] = &["listeners"];
const ADMIN: &[&str] = &["admin.listener"];
const MEMORY: &[&str] = &["memory.bytes", "queued.max.request.bytes", "groups.memory.bytes", "cores"];
const LOG_DIRS: &[&str] = &["log.dirs", "log.dir"];
const METADATA: &[&str] = &["metadata.file"];

/// What was found so far.
#[derive(Default)]
struct Trial {
    faults: Vec<Fault>,
}

impl Trial {
    fn note<T>(
        &mut self,
        keys: &'static [&'static str],
        found: Result<T, impl Into<StartError>>,
    ) -> Option<T> {
        let noted = found.map_err(|error| self.fault(keys, error));
        noted.ok()
    }

    fn fault(&mut self, keys: &'static [&'static str], error: impl Into<StartError>) {
        self.faults.push(Fault { keys, error: error.into(), is_of_running: false });
    }
}

/// Goes through the list. What is odd and stops no start goes to `warnings`.
///
/// # Errors
/// All that would stop a start, in the order in which it would be said.
pub fn look(config: &BrokerConfig, warnings: &mut Vec<Fault>) -> Result<Machine, Vec<Fault>> {
    let mut trial = Trial::default();
    let descriptors = trial.note(&[], executors::prepare::<BootError>());
    let layout = trial.note(CORES, Layout::new::<BootError>(&cores(config)));
    let own = layout.as_ref().map(|layout| {
        executors::descriptors_needed(layout.shards(), config.network.listeners.listeners.len())
    });
    let mut memory = None;
    if let Some(layout) = &layout {
        let shards = layout.shards();
        if let Some((needed, limit)) = own.zip(descriptors).filter(|(needed, limit)| needed > limit) {
            let error = executors::StartError::<BootError>::Descriptors { shards, needed, limit };
            trial.fault(CORES, error);
        }
        trial.note(CORES, executors::check_threads::<BootError>(shards));
        memory = trial.note(MEMORY, ShardMemory::new(config, shards));
    }
    let listeners = trial.note(LISTENERS, shard::listeners(config));
    for listener in listeners.iter().flatten() {
        trial.note(LISTENERS, try_listener(listener));
    }
    trial.note(ADMIN, try_admin(config.admin.listener.as_ref(), listeners.as_deref().unwrap_or_default()));
    let glance = Glance::at(config, (own.unwrap_or(0), descriptors.unwrap_or(u64::MAX)));
    warnings.extend(glance.left_out.into_iter().map(|fault| Fault {
        keys: LOG_DIRS,
        error: fault.into(),
        is_of_running: false,
    }));
    let held =
        glance.held.into_iter().map(|held| Fault { keys: LOG_DIRS, error: held.into(), is_of_running: true });
    trial.faults.extend(held);
    for fault in glance.faults {
        let keys = if matches!(fault, DirFault::Metadata { .. }) { METADATA } else { LOG_DIRS };
        trial.fault(keys, fault);
    }
    match (descriptors, layout, memory, listeners) {
        (Some(descriptors), Some(layout), Some(memory), Some(listeners)) if trial.faults.is_empty() => {
            Ok(Machine { descriptors, layout, memory, listeners })
        }
        _ => Err(trial.faults),
    }
}

fn try_listener(listener: &Listener) -> Result<(), ListenError> {
    let Listener { name, address, .. } = listener;
    try_address(*address).map_err(|source| ListenError::Failed {
        name: name.clone(),
        address: *address,
        source,
    })
}

/// Where metrics and health were asked for; that the default is not to be had is only warned of, by the start.
fn try_admin(admin: Option<&AdminListener>, listeners: &[Listener]) -> Result<(), StartError> {
    let Some(AdminListener { host, port, .. }) = admin.filter(|admin| admin.is_wished) else { return Ok(()) };
    let failed = |source| StartError::AdminListener { host: host.clone(), port: *port, source };
    let mut found = (host.as_str(), *port).to_socket_addrs().map_err(failed)?;
    let admin = found.next().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    try_address(admin).map_err(failed)?;
    match listeners.iter().find(|listener| overlap(listener.address, admin)) {
        Some(Listener { name, address, .. }) => {
            Err(StartError::SamePort { admin, listener: name.to_string(), address: *address })
        }
        None => Ok(()),
    }
}

/// Whether one port cannot be had on both.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    // All addresses of IPv6 are those of IPv4, too.
    let covers =
        |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    let is_same_port = one.port() == other.port() && one.port() != 0;
    is_same_port && (one.ip() == other.ip() || covers(one, other) || covers(other, one))
}

/// Whether the address is this machine's. Its port may be in use by the broker that the configuration is for; only one
/// that this user may not have is tried.
fn try_address(address: SocketAddr) -> io::Result<()> {
    /// Ports below are the administrator's, unless `net.ipv4.ip_unprivileged_port_start` says otherwise.
    const PRIVILEGED_BELOW: u16 = 1024;
    let bind = |address: SocketAddr| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())
    };
    bind(SocketAddr::new(address.ip(), 0))?;
    match bind(address) {
        Err(error) if (1..PRIVILEGED_BELOW).contains(&address.port()) && is_forbidden(&error) => Err(error),
        _ => Ok(()),
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_port_is_had_once_on_each_address() {
        let overlap = |one: &str, other: &str| super::overlap(one.parse().unwrap(), other.parse().unwrap());
        for (one, other) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("127.0.0.1:1", "[::]:1"),
            ("[::1]:1", "[::]:1"),
        ] {
            assert!(overlap(one, other) && overlap(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("127.0.0.1:1", "127.0.0.1:2"),
            ("127.0.0.1:1", "127.0.0.2:1"),
            ("0.0.0.0:1", "[::1]:1"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ] {
            assert!(!overlap(one, other) && !overlap(other, one), "{one} {other}");
        }
    }
}

//! What a machine says to a configuration without a start: whether the cores are there, the directories can be made and
//! written, the addresses are this machine's. Leaves nothing behind and disturbs no broker that runs. Called by
//! `check-config`; the start itself finds out by doing.

use std::fs::OpenOptions;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, Socket, Type};

use super::boot::BootError;
use super::{StartError, cores, shard};
use crate::config::broker::BrokerConfig;
use crate::shard::start::Layout;

/// What would stop a start on this machine, and the keys that it is about.
#[derive(Debug)]
pub struct TrialFault {
    /// The keys.
    pub keys: &'static [&'static str],
    /// What it is.
    pub error: TrialError,
}

/// Why a start would fail here.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// As the start says it.
    #[error(transparent)]
    Start(#[from] StartError),
    /// An address of another machine.
    #[error("{host} of {of} ({address}) cannot be listened on: {source}")]
    Address {
        /// The listener, or the key.
        of: String,
        /// Its host.
        host: String,
        /// What it comes to.
        address: SocketAddr,
        /// What the operating system says.
        source: io::Error,
    },
    /// A host without an address.
    #[error("{host} of admin.listener has no address: {source}")]
    AdminHost {
        /// The host.
        host: String,
        /// What the resolver says.
        source: io::Error,
    },
    /// A directory that cannot be made, or not be written.
    #[error("{} cannot be written by this user: {}: {source}", .path.display(), .at.display())]
    Directory {
        /// What is to be written there.
        path: PathBuf,
        /// What is there of it.
        at: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

/// Tries what can be tried.
pub fn faults(config: &BrokerConfig) -> Vec<TrialFault> {
    let mut faults = Vec::new();
    let mut note = |keys, error| faults.push(TrialFault { keys, error });
    if let Err(error) = Layout::new::<BootError>(&cores(config)) {
        note(&["cores"], StartError::from(error).into());
    }
    match shard::listeners(config) {
        Err(error) => note(&["listeners"], error.into()),
        Ok(listeners) => {
            for (listener, configured) in listeners.iter().zip(&config.network.listeners.listeners) {
                if let Err(source) = try_address(listener.address) {
                    let (of, address) = (format!("listener {}", listener.name), listener.address);
                    let host = configured.host.clone().unwrap_or_default();
                    note(&["listeners"], TrialError::Address { of, host, address, source });
                }
            }
        }
    }
    if let Some(error) = admin_fault(config) {
        note(&["admin.listener"], error);
    }
    let log_dirs = &config.storage.log_dirs;
    for error in log_dirs.iter().filter_map(|dir| try_directory(dir).err()) {
        note(&["log.dirs", "log.dir"], error);
    }
    // On ZooKeeper nothing is written there.
    let metadata = config.storage.metadata_file.parent().filter(|_| config.zookeeper.is_none());
    if let Some(Err(error)) =
        metadata.filter(|dir| !log_dirs.iter().any(|log_dir| log_dir == dir)).map(try_directory)
    {
        note(&["metadata.file"], error);
    }
    faults
}

/// Where metrics and health were asked for; the default is only warned of, at the start.
fn admin_fault(config: &BrokerConfig) -> Option<TrialError> {
    let at = config.admin.listener.as_ref().filter(|at| at.is_wished)?;
    let host = at.host.clone();
    let address = match (host.as_str(), at.port).to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(address)) => address,
        Ok(None) => return Some(TrialError::AdminHost { host, source: io::ErrorKind::NotFound.into() }),
        Err(source) => return Some(TrialError::AdminHost { host, source }),
    };
    let of = "admin.listener".to_owned();
    try_address(address).err().map(|source| TrialError::Address { of, host, address, source })
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

/// Whether files can be made in a directory, or in the nearest one above it that exists.
fn try_directory(path: &Path) -> Result<(), TrialError> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let at = whole.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok());
    let at = at.unwrap_or(Path::new("/")).to_owned();
    try_file(&at).map_err(|source| TrialError::Directory { path: path.to_owned(), at, source })
}

#[allow(clippy::disallowed_methods, reason = "there is no runtime: nothing is started")]
fn try_file(dir: &Path) -> io::Result<()> {
    let file = dir.join(format!(".odradek-check-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&file)?;
    std::fs::remove_file(&file)
}

//! Listening sockets: one per listener and shard on the same port, bound before any shard starts, so that a port that is
//! taken is an error of the start; and the loop that accepts, admits and hands connections to the shard with the fewest,
//! from where they may go on to the one that owns what they ask for. Knows no frames; `lib.rs` wires it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use storage::io::Queue;

use super::admission::{AddressToken, Addresses, Admission, ConnectionCounters, ConnectionLimits, Full};
use super::connections::Connections;
use super::moves::{Moving, Unread, Ways};
use crate::handlers::RequestHandler;
use crate::metrics::lines::SPAN_MS;
use crate::metrics::registry::{HeldUpBy, ListenerCells};
use crate::shard::ask::{Reply, Shards};
use crate::shard::{Acceptor, NEVER, Service, ShardId, ShardRuntime};

/// After an error of `accept` (no descriptors above all) the first pause, and the longest.
const BACK_OFF_MS: (i64, i64) = (10, 1000);

/// How often an acceptor at a limit looks whether a place is free.
const LIMIT_POLL_MS: i64 = 20;

/// How long a port that is taken at the start may still come free, and how often to look.
const PROBE_ATTEMPTS: u32 = 100;
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// A listener of the configuration, its host resolved.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its name, upper case.
    pub name: Arc<str>,
    /// Where it listens; port 0 takes any free one.
    pub address: SocketAddr,
    /// `socket.listen.backlog.size`.
    pub backlog: i32,
}

/// Why a listener could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("listener {name}: {address} is in use by another process")]
    InUse {
        /// The listener.
        name: Arc<str>,
        /// Where.
        address: SocketAddr,
    },
    /// Something else is wrong with the address: it is not of this machine, or the port needs privileges.
    #[error("listener {name}: {address}: {source}")]
    Failed {
        /// The listener.
        name: Arc<str>,
        /// Where.
        address: SocketAddr,
        /// What the operating system says.
        source: io::Error,
    },
}

/// The sockets of all listeners.
pub struct Bound {
    /// For each listener where it really listens.
    pub addresses: Vec<SocketAddr>,
    /// For each shard one socket per listener, in the order of the listeners.
    pub sockets: Vec<Vec<OwnedFd>>,
}

/// Binds every listener for every shard.
///
/// # Errors
/// The first listener that cannot be bound.
pub fn bind(listeners: &[Listener], shards: u16) -> Result<Bound, ListenError> {
    let mut addresses = Vec::new();
    let mut sockets: Vec<Vec<OwnedFd>> = (0..shards).map(|_| Vec::new()).collect();
    for listener in listeners {
        let failed = |source: io::Error| {
            let (name, address) = (listener.name.clone(), listener.address);
            match source.kind() {
                io::ErrorKind::AddrInUse => ListenError::InUse { name, address },
                _ => ListenError::Failed { name, address, source },
            }
        };
        // With SO_REUSEPORT a second broker of the same user would get the port as well: find out without it.
        let probe = probe(listener.address).map_err(failed)?;
        let address = SockRef::from(&probe).local_addr().map_err(failed)?;
        drop(probe);
        let address = address.as_socket().unwrap_or(listener.address);
        for of_shard in &mut sockets {
            let socket = bound_socket(address, true).map_err(failed)?;
            socket.listen(listener.backlog).map_err(failed)?;
            of_shard.push(socket.into());
        }
        addresses.push(address);
    }
    Ok(Bound { addresses, sockets })
}

/// The kernel closes the sockets of a killed process when it takes down its ring, which is after the process has ended:
/// who restarts a broker at once must not be told that another one runs.
#[allow(
    clippy::disallowed_methods,
    reason = "waits for the kernel before there is a shard that could be blocked"
)]
fn probe(address: SocketAddr) -> io::Result<Socket> {
    let mut attempts_left = PROBE_ATTEMPTS;
    loop {
        match bound_socket(address, false) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts_left > 0 => {
                attempts_left -= 1;
                std::thread::sleep(PROBE_PAUSE);
            }
            other => return other,
        }
    }
}

fn bound_socket(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // As Java does: all addresses are those of both families.
        socket.set_only_v6(false)?;
    }
    // A port whose old connections still linger is free.
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A connection on its way to its shard. Wherever it is dropped, it is counted nowhere any more: what it is made of gives
/// itself back.
pub struct Arrival {
    socket: OwnedFd,
    listener: usize,
    admission: Admission,
    /// Counted for its address, by the shard that sent it.
    token: Option<AddressToken>,
    /// Bytes that another shard has read and not handled; none of a new connection.
    unread: Option<Unread>,
}

/// What the listeners of the shards ask each other.
pub enum ArrivalAsk {
    /// Serve this connection.
    Serve(Arrival),
    /// Close the connection that was used least recently, of any listener but this one. Answered with whether there
    /// was one.
    CloseLeastRecent {
        /// The listener that keeps its connections.
        except: usize,
    },
}

/// Takes the connections that other shards have accepted.
pub struct Arrivals<R: ShardRuntime, H: RequestHandler>(Rc<Inner<R, H>>);

impl<R: ShardRuntime, H: RequestHandler> Clone for Arrivals<R, H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<R: ShardRuntime, H: RequestHandler> {
    runtime: R,
    connections: Rc<Connections<R>>,
    handler: H,
    names: Vec<Arc<str>>,
    /// In the order of the names.
    cells: Vec<Rc<ListenerCells>>,
    limits: Rc<ConnectionLimits>,
    counters: Arc<ConnectionCounters>,
    /// None when addresses are not counted.
    addresses: Option<Addresses<R>>,
}

impl<R: ShardRuntime, H: RequestHandler> Inner<R, H> {
    fn name(&self, listener: usize) -> &str {
        self.names.get(listener).map_or("", |name| &**name)
    }
}

impl<R: ShardRuntime, H: RequestHandler> Arrivals<R, H> {
    /// What a shard needs to take connections.
    pub fn new(
        connections: &Rc<Connections<R>>,
        handler: H,
        listeners: &[Listener],
        limits: Rc<ConnectionLimits>,
        counters: Arc<ConnectionCounters>,
        addresses: Option<Addresses<R>>,
    ) -> Self {
        let names = listeners.iter().map(|listener| &listener.name);
        Self(Rc::new(Inner {
            runtime: connections.runtime.clone(),
            connections: connections.clone(),
            handler,
            names: names.clone().cloned().collect(),
            cells: names.map(|name| connections.metrics.listener(name)).collect(),
            limits,
            counters,
            addresses,
        }))
    }

    fn serve(&self, arrival: Arrival) {
        let Arrival { socket, listener, admission, token, unread } = arrival;
        let inner = &self.0;
        let token = inner.addresses.as_ref().zip(token).map(|(addresses, token)| addresses.take_over(token));
        let Some(name) = inner.names.get(listener) else { return };
        match inner.runtime.adopt(socket) {
            Ok(conn) => {
                inner.connections.go_on(conn, name, &inner.handler, Some((admission, token)), unread);
            }
            // The client has gone already.
            Err(error) => tracing::debug!(%error, "connection not taken"),
        }
    }

    async fn arrived(&self, others: &Shards<R, Self>, listener: usize, socket: OwnedFd) {
        let inner = &self.0;
        let settings = SockRef::from(&socket);
        let peer = settings.peer_addr().ok().and_then(|address| address.as_socket());
        let Some(peer) = peer else { return };
        // Answers leave whole: nothing is gained by waiting for more.
        let _ = settings.set_tcp_nodelay(true);
        let _ = settings.set_keepalive(true);
        let mut token = None;
        if let Some(addresses) = &inner.addresses {
            token = addresses.take(peer.ip()).await;
            if token.is_none() {
                self.refused(listener, peer);
                return;
            }
        }
        let here = inner.runtime.shard();
        let admission = match inner.counters.admit(&inner.limits, listener, here) {
            Ok(admission) => admission,
            Err(full) => self.place(listener, full).await,
        };
        let to = admission.shard();
        let arrival = Arrival { socket, listener, admission, token, unread: None };
        if to == here {
            self.serve(arrival);
        } else if let Ok(slot) = others.reserve(to, NEVER).await {
            drop(slot.send(ArrivalAsk::Serve(arrival)));
        }
        if inner.limits.protected_listener == Some(listener) && inner.counters.is_above(&inner.limits) {
            self.make_place(others, listener).await;
        }
    }

    /// Waits for a place, as Kafka does: the connection is neither served nor closed, and those behind it stay with the
    /// kernel.
    async fn place(&self, listener: usize, full: Full) -> Admission {
        let inner = &*self.0;
        self.held_up(
            listener,
            match full {
                Full::Listener => HeldUpBy::Listener,
                Full::Broker if inner.limits.of_descriptors.is_some() => HeldUpBy::Descriptors,
                Full::Broker => HeldUpBy::Broker,
            },
        );
        loop {
            self.pause(listener, LIMIT_POLL_MS).await;
            if let Ok(admission) = inner.counters.admit(&inner.limits, listener, inner.runtime.shard()) {
                return admission;
            }
        }
    }

    /// Accepts nobody on this listener for so long.
    async fn pause(&self, listener: usize, ms: i64) {
        let inner = &*self.0;
        let before = inner.runtime.now();
        inner.runtime.sleep_until(before.plus_ms(ms)).await;
        if let Some(cells) = inner.cells.get(listener) {
            cells.blocked_nanos.add(inner.runtime.now().nanos_since(before));
        }
    }

    /// Counts a connection that is closed because its address has as many as it may have, and tells of it now and then.
    fn refused(&self, listener: usize, peer: SocketAddr) {
        let inner = &*self.0;
        if let Some(cells) = inner.cells.get(listener) {
            cells.refused.inc();
        }
        let lines = &inner.connections.metrics.refused_addresses;
        let kind = (peer.ip(), "max.connections.per.ip");
        let Some(held_back) = lines.admit(inner.runtime.now(), SPAN_MS, kind) else { return };
        let (limit, listener) = (inner.limits.per_ip(peer.ip()), inner.name(listener));
        tracing::warn!(%peer, limit, listener, held_back,
            "connection closed at once: its address has as many as max.connections.per.ip allows"
        );
    }

    /// Counts a connection that has to wait, and tells of it now and then.
    fn held_up(&self, listener: usize, by: HeldUpBy) {
        let inner = &*self.0;
        if let Some(cells) = inner.cells.get(listener) {
            cells.held_up(by);
        }
        let Some(held_back) = inner.counters.tell_wait(by, inner.runtime.now()) else { return };
        let (limits, listener) = (&inner.limits, inner.name(listener));
        let limit = limits.connections_max;
        match (by, limits.of_descriptors) {
            (HeldUpBy::Listener, _) => tracing::warn!(
                listener,
                held_back,
                "new connections wait: the listener has as many as its max.connections allows"
            ),
            (HeldUpBy::Descriptors, Some(descriptors)) => tracing::warn!(
                listener,
                limit,
                descriptors,
                held_back,
                "new connections wait: as many are open as half of the limit on open files (ulimit -n); logs have the other half"
            ),
            (HeldUpBy::Broker | HeldUpBy::Descriptors, _) => tracing::warn!(
                listener,
                limit,
                held_back,
                "new connections wait: as many are open as max.connections allows"
            ),
        }
    }

    /// Counts an attempt to accept that failed, and tells of it now and then.
    fn not_accepted(&self, listener: usize, error: &io::Error) {
        let inner = &*self.0;
        if let Some(cells) = inner.cells.get(listener) {
            cells.held_up(HeldUpBy::Descriptors);
        }
        let now = inner.runtime.now();
        let Some(held_back) = inner.counters.tell_wait(HeldUpBy::Descriptors, now) else { return };
        let listener = inner.name(listener);
        if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            tracing::warn!(
                listener,
                held_back,
                "no connection can be accepted, since no descriptor is left (ulimit -n): they wait until there is one"
            );
        } else {
            tracing::warn!(listener, %error, held_back, "accepting failed");
        }
    }

    /// Closes a connection of another listener: here, or on the first other shard that has one.
    async fn make_place(&self, others: &Shards<R, Self>, except: usize) {
        let (here, count) = (self.0.runtime.shard().get(), self.0.runtime.shard_count());
        for step in 0..count {
            let shard = ShardId::new(here.wrapping_add(step).checked_rem(count).unwrap_or(0));
            if others.ask(shard, NEVER, ArrivalAsk::CloseLeastRecent { except }).await == Ok(true) {
                return;
            }
        }
    }

    async fn accept_all(self, others: Shards<R, Self>, listener: usize, acceptor: R::Acceptor) {
        let mut pause_ms = BACK_OFF_MS.0;
        loop {
            match acceptor.accept().await {
                Ok(socket) => {
                    pause_ms = BACK_OFF_MS.0;
                    self.arrived(&others, listener, socket).await;
                }
                Err(error) => {
                    self.not_accepted(listener, &error);
                    self.pause(listener, pause_ms).await;
                    pause_ms = pause_ms.saturating_mul(2).min(BACK_OFF_MS.1);
                }
            }
        }
    }
}

impl<R: ShardRuntime, H: RequestHandler> Service for Arrivals<R, H> {
    type Ask = ArrivalAsk;
    type Answer = bool;

    fn accept(&self, _from: ShardId, ask: ArrivalAsk, reply: Reply<bool>) {
        reply.send(match ask {
            ArrivalAsk::Serve(arrival) => {
                self.serve(arrival);
                true
            }
            ArrivalAsk::CloseLeastRecent { except } => {
                self.0.names.get(except).is_some_and(|name| self.0.connections.close_least_recent(name))
            }
        });
    }
}

/// The accepting of one shard; ends, and closes the sockets, when dropped.
pub struct Listening<R: ShardRuntime> {
    _tasks: Vec<R::Task>,
    /// With it ends that connections go on to other shards.
    _ways: Rc<dyn Ways>,
}

/// How connections of this shard go on to others.
struct Others<R: ShardRuntime, H: RequestHandler>(Shards<R, Arrivals<R, H>>);

impl<R: ShardRuntime, H: RequestHandler> Ways for Others<R, H> {
    fn has_room(&self, to: ShardId) -> bool {
        let here = &self.0.local().0;
        here.counters.has_room(here.runtime.shard(), to)
    }

    fn send(
        &self,
        moving: Moving,
        listener: &str,
        (mut admission, token): (Admission, Option<AddressToken>),
    ) -> Pin<Box<dyn Future<Output = ()>>> {
        let Moving { to, socket, unread } = moving;
        let listener = self.0.local().0.names.iter().position(|name| **name == *listener).unwrap_or(0);
        admission.move_to(to);
        let arrival = Arrival { socket, listener, admission, token, unread: Some(unread) };
        let others = self.0.clone();
        Box::pin(async move {
            // A shard that has ended serves nobody: the connection closes.
            if let Ok(slot) = others.reserve(to, NEVER).await {
                drop(slot.send(ArrivalAsk::Serve(arrival)));
            }
        })
    }
}

/// Starts to accept on the sockets of this shard, in the order of the listeners.
///
/// # Errors
/// What the operating system says.
pub fn listen<R: ShardRuntime, H: RequestHandler>(
    all: &Shards<R, Arrivals<R, H>>,
    sockets: Vec<OwnedFd>,
) -> io::Result<Listening<R>> {
    let arrivals = all.local();
    let runtime = &arrivals.0.runtime;
    let mut tasks = Vec::new();
    for (listener, socket) in sockets.into_iter().enumerate() {
        let acceptor = runtime.listen(socket)?;
        let accepting = arrivals.clone().accept_all(all.clone(), listener, acceptor);
        tasks.push(runtime.spawn(Queue::Request, accepting));
    }
    let ways: Rc<dyn Ways> = Rc::new(Others(all.clone()));
    arrivals.0.connections.attach(Rc::downgrade(&ways));
    Ok(Listening { _tasks: tasks, _ways: ways })
}

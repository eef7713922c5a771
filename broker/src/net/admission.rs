//! Who may connect, and to which shard (security-admin.md 1.4, A-19): counters that all shards share, and tokens for
//! connections per address, which shard 0 grants. Knows no sockets; `listener` asks for each accepted connection.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_util::StreamExt;
use protocol::types::MonoTime;
use storage::io::Queue;

use crate::metrics::lines::{Rare, SPAN_MS};
use crate::metrics::registry::HeldUpBy;
use crate::shard::ask::{Reply, Shards};
use crate::shard::{NEVER, Service, ShardId, ShardRuntime};

/// Limits on connections, all of the whole process.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// `max.connections`, or what descriptors there are for connections.
    pub connections_max: usize,
    /// The descriptors of the process, if it is they that set `connections_max`.
    pub of_descriptors: Option<u64>,
    /// `max.connections` of each listener.
    pub listener_connections_max: Vec<usize>,
    /// `max.connections.per.ip`.
    pub per_ip_max: usize,
    /// `max.connections.per.ip.overrides`.
    pub per_ip_overrides: BTreeMap<IpAddr, usize>,
    /// The listener between brokers, when there are others: `connections_max` does not hold for it, and the least
    /// recently used connection of another listener goes for each one above.
    pub protected_listener: Option<usize>,
}

impl ConnectionLimits {
    /// Kafka's defaults, which limit nothing.
    pub fn unlimited(listeners: usize) -> Self {
        Self {
            connections_max: usize::MAX,
            of_descriptors: None,
            listener_connections_max: vec![usize::MAX; listeners],
            per_ip_max: usize::MAX,
            per_ip_overrides: BTreeMap::new(),
            protected_listener: None,
        }
    }

    /// Connections that an address may have.
    pub fn per_ip(&self, address: IpAddr) -> usize {
        self.per_ip_overrides.get(&address).copied().unwrap_or(self.per_ip_max)
    }

    /// Whether addresses are counted at all. The value that means no limit in Kafka is the largest `int`.
    pub fn counts_addresses(&self) -> bool {
        let limits = |max: usize| max < i32::MAX.unsigned_abs() as usize;
        limits(self.per_ip_max) || self.per_ip_overrides.values().any(|&max| limits(max))
    }
}

/// Which limit leaves no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// That of the whole broker.
    Broker,
    /// That of its listener.
    Listener,
}

/// How many connections there are. The only state, with the mailboxes, that shards share.
pub struct ConnectionCounters {
    /// Told of connections that wait, by what holds them up.
    waits: [Rare; HeldUpBy::ALL.len()],
    total: AtomicUsize,
    listeners: Vec<AtomicUsize>,
    shards: Vec<AtomicUsize>,
}

impl ConnectionCounters {
    /// None yet.
    pub fn new(shards: u16, listeners: usize) -> Arc<Self> {
        Arc::new(Self {
            waits: std::array::from_fn(|_| Rare::new(1, SPAN_MS)),
            total: AtomicUsize::new(0),
            listeners: (0..listeners).map(|_| AtomicUsize::new(0)).collect(),
            shards: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
        })
    }

    /// Connections of a shard.
    pub fn of_shard(&self, shard: ShardId) -> usize {
        self.shards.get(usize::from(shard.get())).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Whether a connection may go from one shard to another for what it asks for: only as long as the shards have about
    /// as many, so that one partition that all want does not gather all clients.
    pub fn has_room(&self, from: ShardId, to: ShardId) -> bool {
        let (from, to) = (self.of_shard(from), self.of_shard(to));
        to <= from.saturating_add(from / 4).saturating_add(1)
    }

    /// Whether a line is to be written of connections that this holds up: how many were held back since the last one.
    pub fn tell_wait(&self, by: HeldUpBy, now: MonoTime) -> Option<u64> {
        self.waits.get(by as usize).and_then(|line| line.admit(now))
    }

    /// Takes a place on the shard with the fewest connections, `here` if it is one of them.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn admit(
        self: &Arc<Self>,
        limits: &ConnectionLimits,
        listener: usize,
        here: ShardId,
    ) -> Result<Admission, Full> {
        let total_max =
            if limits.protected_listener == Some(listener) { usize::MAX } else { limits.connections_max };
        if !take(&self.total, total_max) {
            return Err(Full::Broker);
        }
        let listener_max = limits.listener_connections_max.get(listener).copied().unwrap_or(usize::MAX);
        if let Some(count) = self.listeners.get(listener)
            && !take(count, listener_max)
        {
            self.total.fetch_sub(1, Ordering::Relaxed);
            return Err(Full::Listener);
        }
        let shard = self.least_loaded(here);
        if let Some(count) = self.shards.get(usize::from(shard.get())) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Admission { counters: self.clone(), listener, shard })
    }

    /// Whether there are more connections than the broker may have, as a protected listener brings about.
    pub fn is_above(&self, limits: &ConnectionLimits) -> bool {
        self.total.load(Ordering::Relaxed) > limits.connections_max
    }

    fn least_loaded(&self, here: ShardId) -> ShardId {
        let mut least = (self.of_shard(here), here);
        for index in 0..u16::try_from(self.shards.len()).unwrap_or(u16::MAX) {
            let shard = ShardId::new(index);
            let count = self.of_shard(shard);
            if count < least.0 {
                least = (count, shard);
            }
        }
        least.1
    }
}

fn take(count: &AtomicUsize, max: usize) -> bool {
    if count.fetch_add(1, Ordering::Relaxed) < max {
        return true;
    }
    count.fetch_sub(1, Ordering::Relaxed);
    false
}

/// The place of one connection; given back when dropped, on whichever shard.
pub struct Admission {
    counters: Arc<ConnectionCounters>,
    listener: usize,
    shard: ShardId,
}

impl Admission {
    /// Where the connection belongs.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The connection goes on to another shard.
    pub fn move_to(&mut self, to: ShardId) {
        let from = std::mem::replace(&mut self.shard, to);
        if let Some(count) = self.counters.shards.get(usize::from(from.get())) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(count) = self.counters.shards.get(usize::from(to.get())) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.counters.total.fetch_sub(1, Ordering::Relaxed);
        let of = |counts: &[AtomicUsize], index: usize| {
            if let Some(count) = counts.get(index) {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        };
        of(&self.counters.listeners, self.listener);
        of(&self.counters.shards, usize::from(self.shard.get()));
    }
}

/// What shards ask shard 0 about addresses.
#[derive(Debug)]
pub enum AddressAsk {
    /// One more connection; answered with whether it may be.
    Take(IpAddr),
    /// One less.
    Give(IpAddr),
}

/// Counts connections per address on shard 0; on the others nobody asks it.
#[derive(Clone)]
pub struct AddressTokens {
    limits: Rc<ConnectionLimits>,
    counts: Rc<RefCell<BTreeMap<IpAddr, usize>>>,
}

impl AddressTokens {
    /// No connections yet.
    pub fn new(limits: Rc<ConnectionLimits>) -> Self {
        Self { limits, counts: Rc::default() }
    }

    fn take(&self, address: IpAddr) -> bool {
        let mut counts = self.counts.borrow_mut();
        let count = counts.get(&address).copied().unwrap_or(0);
        if count >= self.limits.per_ip(address) {
            return false;
        }
        counts.insert(address, count.saturating_add(1));
        true
    }

    fn give(&self, address: IpAddr) {
        let mut counts = self.counts.borrow_mut();
        match counts.get_mut(&address) {
            Some(count) if *count > 1 => *count = count.saturating_sub(1),
            _ => drop(counts.remove(&address)),
        }
    }
}

impl Service for AddressTokens {
    type Ask = AddressAsk;
    type Answer = bool;

    fn accept(&self, _from: ShardId, ask: AddressAsk, reply: Reply<bool>) {
        reply.send(match ask {
            AddressAsk::Take(address) => self.take(address),
            AddressAsk::Give(address) => {
                self.give(address);
                true
            }
        });
    }
}

/// A shard's way to the tokens. Cheap to clone.
pub struct Addresses<R: ShardRuntime> {
    tokens: Shards<R, AddressTokens>,
    /// One entry per counted connection that has ended, until shard 0 has taken it. Connections end no faster than they
    /// were let in, each by an ask of the same shard.
    give: UnboundedSender<IpAddr>,
    _giver: Rc<R::Task>,
}

impl<R: ShardRuntime> Clone for Addresses<R> {
    fn clone(&self) -> Self {
        Self { tokens: self.tokens.clone(), give: self.give.clone(), _giver: self._giver.clone() }
    }
}

impl<R: ShardRuntime> Addresses<R> {
    /// Starts the task that gives tokens back.
    pub fn new(runtime: &R, tokens: Shards<R, AddressTokens>) -> Self {
        let (give, mut given) = unbounded();
        let inside = tokens.clone();
        let giver = runtime.spawn(Queue::Control, async move {
            while let Some(address) = given.next().await {
                // Only a stop ends the shard that counts.
                let _ = inside.ask(ShardId::CONTROL, NEVER, AddressAsk::Give(address)).await;
            }
        });
        Self { tokens, give, _giver: Rc::new(giver) }
    }

    /// Asks for one more connection of an address; `None` when there are too many.
    pub async fn take(&self, address: IpAddr) -> Option<AddressToken> {
        let may = self.tokens.ask(ShardId::CONTROL, NEVER, AddressAsk::Take(address)).await;
        (may == Ok(true)).then(|| self.token(address))
    }

    /// Makes the token of a connection that comes from another shard one of this shard.
    pub fn take_over(&self, mut token: AddressToken) -> AddressToken {
        AddressToken { give: self.give.clone(), address: token.address.take() }
    }

    fn token(&self, address: IpAddr) -> AddressToken {
        AddressToken { give: self.give.clone(), address: Some(address) }
    }
}

/// One connection of an address; gives itself back when dropped, also on its way between two shards: then it is the shard
/// that it comes from that is told.
pub struct AddressToken {
    give: UnboundedSender<IpAddr>,
    /// None once another shard has taken it over.
    address: Option<IpAddr>,
}

impl Drop for AddressToken {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            // The shard is ending if nobody takes it.
            let _ = self.give.unbounded_send(address);
        }
    }
}

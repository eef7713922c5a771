//! The cells of one shard. Whoever counts holds a reference to its cells, taken once where it begins (a partition, a
//! connection): nothing is looked up by name on the way of a request.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocol::api::ApiKey;
use protocol::error::ErrorCode;
use protocol::types::{MonoTime, TopicName};

use super::histogram::Histogram;
use super::lines::Lines;
use super::names::Family;
use super::snapshot::{Labels, ShardSnapshot, Value, whole};
use super::state::Progress;

/// Api keys below this are counted each for itself; no served one is above.
const APIS: usize = 96;

/// Versions of one API.
const VERSIONS: usize = 32;

/// Error codes, from -1 on.
const CODES: usize = 160;

/// Topics that are told each for itself, on one shard.
pub const TOPICS_MAX: usize = 10_000;

/// Something that only grows.
#[derive(Debug, Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.set(self.0.get().wrapping_add(more));
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Traffic of one topic, or of all.
#[derive(Debug, Default)]
pub struct TopicCells {
    messages_in: Counter,
    bytes_in: Counter,
    bytes_out: Counter,
    bytes_rejected: Counter,
    produce_requests: Counter,
    fetch_requests: Counter,
    failed_produce: Counter,
    failed_fetch: Counter,
    replication_bytes_out: Counter,
}

impl TopicCells {
    fn tell(&self, labels: &Labels, out: &mut ShardSnapshot) {
        for (family, counter) in [
            (Family::MessagesIn, &self.messages_in),
            (Family::BytesIn, &self.bytes_in),
            (Family::BytesOut, &self.bytes_out),
            (Family::BytesRejected, &self.bytes_rejected),
            (Family::ProduceRequests, &self.produce_requests),
            (Family::FetchRequests, &self.fetch_requests),
            (Family::FailedProduceRequests, &self.failed_produce),
            (Family::FailedFetchRequests, &self.failed_fetch),
            (Family::ReplicationBytesOut, &self.replication_bytes_out),
        ] {
            out.count(family, labels, counter.get());
        }
    }
}

/// The cells of a topic, for one of its partitions. The topic's series live as long as one of these; what they counted
/// stays in the sums over all topics.
#[derive(Clone, Debug)]
pub struct TopicMetrics {
    topic: Rc<TopicCells>,
    all: Rc<TopicCells>,
}

impl TopicMetrics {
    fn both(&self, counter: impl Fn(&TopicCells) -> &Counter, more: u64) {
        counter(&self.topic).add(more);
        counter(&self.all).add(more);
    }

    /// A batch is to be appended.
    pub fn produce_requested(&self) {
        self.both(|cells| &cells.produce_requests, 1);
    }

    /// A batch was appended.
    pub fn appended(&self, records: u64, bytes: u64) {
        self.both(|cells| &cells.messages_in, records);
        self.both(|cells| &cells.bytes_in, bytes);
    }

    /// A batch was refused for a reason that clients do not know and heal.
    pub fn produce_failed(&self) {
        self.both(|cells| &cells.failed_produce, 1);
    }

    /// A batch was refused as too large.
    pub fn rejected(&self, bytes: u64) {
        self.both(|cells| &cells.bytes_rejected, bytes);
    }

    /// A partition is to be read.
    pub fn fetch_requested(&self) {
        self.both(|cells| &cells.fetch_requests, 1);
    }

    /// Bytes were read for a consumer, or for a follower.
    pub fn read(&self, bytes: u64, by_follower: bool) {
        if bytes > 0 && by_follower {
            self.both(|cells| &cells.replication_bytes_out, bytes);
        } else if bytes > 0 {
            self.both(|cells| &cells.bytes_out, bytes);
        }
    }

    /// The log failed a read.
    pub fn fetch_failed(&self) {
        self.both(|cells| &cells.failed_fetch, 1);
    }
}

/// Requests of one API.
struct ApiCells {
    versions: [Counter; VERSIONS],
    /// By number, from -1 on.
    errors: [Counter; CODES],
    bytes_out: Counter,
    request_bytes: Histogram,
    total: Histogram,
    queue: Histogram,
    local: Histogram,
    remote: Histogram,
    response_queue: Histogram,
    send: Histogram,
}

impl ApiCells {
    fn new() -> Box<Self> {
        Box::new(Self {
            versions: std::array::from_fn(|_| Counter::default()),
            errors: std::array::from_fn(|_| Counter::default()),
            bytes_out: Counter::default(),
            request_bytes: Histogram::default(),
            total: Histogram::default(),
            queue: Histogram::default(),
            local: Histogram::default(),
            remote: Histogram::default(),
            response_queue: Histogram::default(),
            send: Histogram::default(),
        })
    }

    fn tell(&self, name: &'static str, out: &mut ShardSnapshot) {
        let name: Arc<str> = Arc::from(name);
        let of_request = vec![("request", name.clone())];
        for (version, counter) in self.versions.iter().enumerate().filter(|(_, counter)| counter.get() > 0) {
            let labels = vec![("request", name.clone()), ("version", Arc::from(version.to_string()))];
            out.count(Family::ApiRequests, &labels, counter.get());
        }
        out.count(Family::ResponseBytes, &of_request, self.bytes_out.get());
        out.push(Family::RequestBytes, of_request.clone(), Value::Sizes(self.request_bytes.snapshot()));
        for (family, times) in [
            (Family::TotalTime, &self.total),
            (Family::QueueTime, &self.queue),
            (Family::LocalTime, &self.local),
            (Family::RemoteTime, &self.remote),
            (Family::ResponseQueueTime, &self.response_queue),
            (Family::SendTime, &self.send),
        ] {
            out.push(family, of_request.clone(), Value::Times(times.snapshot()));
        }
    }

    fn count(&self) -> u64 {
        self.versions.iter().fold(0, |sum, version| sum.wrapping_add(version.get()))
    }

    fn tell_errors(&self, name: &'static str, out: &mut ShardSnapshot) {
        for (code, count) in (-1i16..).zip(&self.errors).filter(|(_, count)| count.get() > 0) {
            let error = ErrorCode::new(code).map_or("UNKNOWN_SERVER_ERROR", ErrorCode::name);
            let labels = vec![("request", Arc::from(name)), ("error", Arc::from(error))];
            out.count(Family::ApiErrors, &labels, count.get());
        }
    }
}

/// What is known of a request when it has been handled.
#[derive(Clone, Copy, Debug)]
pub struct Handled {
    /// The API.
    pub key: ApiKey,
    /// Its version.
    pub version: i16,
    /// Bytes of the frame.
    pub bytes: usize,
    /// A fetch of a follower.
    pub by_follower: bool,
    /// When its last byte had come.
    pub received: MonoTime,
    /// When its handling began.
    pub began: MonoTime,
    /// When its handler returned: its answer is known, or it is accepted.
    pub handled: MonoTime,
    /// Nanoseconds that the handler waited for bytes.
    pub parked_nanos: u64,
}

/// What is known of a request when its answer is on its way.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// When the answer was known.
    pub known: MonoTime,
    /// When it was its turn to be written.
    pub turn: MonoTime,
    /// When it was written.
    pub written: MonoTime,
    /// Bytes of it.
    pub bytes: usize,
}

/// Which limit holds new connections up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldUpBy {
    /// `max.connections` of the broker.
    Broker,
    /// `max.connections` of the listener.
    Listener,
    /// The descriptors that the process may have.
    Descriptors,
}

impl HeldUpBy {
    /// All of them; each has the place of its number.
    pub const ALL: [Self; 3] = [Self::Broker, Self::Listener, Self::Descriptors];

    /// What the label says.
    const fn name(self) -> &'static str {
        match self {
            Self::Broker => "max.connections",
            Self::Listener => "listener.max.connections",
            Self::Descriptors => "descriptors",
        }
    }
}

/// Connections of one listener.
#[derive(Debug, Default)]
pub struct ListenerCells {
    /// How many clients have opened to this shard.
    pub created: Counter,
    /// How many this shard began to serve: those, and the ones that came on from other shards.
    pub arrived: Counter,
    /// How many of these it serves no longer: they were closed, or went on to another shard.
    pub left: Counter,
    /// How many were closed at once, since their address had as many as it may have.
    pub refused: Counter,
    /// How many had to wait for a place, or could not be accepted yet, by what held them up.
    held_up: [Counter; HeldUpBy::ALL.len()],
    /// Nanoseconds in which none was accepted for that.
    pub blocked_nanos: Counter,
}

impl ListenerCells {
    /// A new connection waits.
    pub fn held_up(&self, by: HeldUpBy) {
        if let Some(count) = self.held_up.get(by as usize) {
            count.inc();
        }
    }
}

/// All cells of one shard.
#[derive(Default)]
pub struct ShardMetrics {
    apis: Apis,
    followers: OnceCell<Box<ApiCells>>,
    topics: RefCell<BTreeMap<TopicName, Rc<TopicCells>>>,
    all_topics: Rc<TopicCells>,
    listeners: RefCell<Vec<(Arc<str>, Rc<ListenerCells>)>>,
    /// How far the broker is.
    pub progress: Progress,
    /// Syncs of segments.
    pub log_flush: Histogram,
    /// Batches refused for their magic.
    pub invalid_magic: Counter,
    /// Batches refused for their CRC.
    pub invalid_crc: Counter,
    /// Batches refused for their offsets or sequences.
    pub invalid_offset_or_sequence: Counter,
    /// Batches without keys refused by compacted topics.
    pub no_key_compacted: Counter,
    /// Changes of the live brokers, on the shard of the controller.
    pub leader_elections: Histogram,
    /// Leaders elected out of sync, on the shard of the controller.
    pub unclean_elections: Counter,
    /// Told of connections that are closed for what their clients sent.
    pub refused_clients: Lines,
    /// Told of clients that wait for what is not served yet.
    pub waiting_clients: Lines,
    /// Told of connections that are closed because their address has too many.
    pub refused_addresses: Lines,
}

/// One entry per api key, made when its first request is answered.
struct Apis([OnceCell<Box<ApiCells>>; APIS]);

impl Default for Apis {
    fn default() -> Self {
        Self(std::array::from_fn(|_| OnceCell::new()))
    }
}

impl Apis {
    fn of(&self, key: ApiKey) -> Option<&OnceCell<Box<ApiCells>>> {
        usize::try_from(key.get()).ok().and_then(|key| self.0.get(key))
    }
}

impl ShardMetrics {
    /// The cells of a shard that takes part in this progress.
    pub fn new(progress: Progress) -> Rc<Self> {
        Rc::new(Self { progress, ..Self::default() })
    }

    /// The cells of a topic.
    pub fn topic(&self, name: &TopicName) -> TopicMetrics {
        let topic = self.topics.borrow_mut().entry(name.clone()).or_default().clone();
        TopicMetrics { topic, all: self.all_topics.clone() }
    }

    /// The cells of a listener.
    pub fn listener(&self, name: &Arc<str>) -> Rc<ListenerCells> {
        let mut listeners = self.listeners.borrow_mut();
        if let Some((_, cells)) = listeners.iter().find(|(known, _)| known == name) {
            return cells.clone();
        }
        let cells = Rc::<ListenerCells>::default();
        listeners.push((name.clone(), cells.clone()));
        cells
    }

    /// An answer says so, so many times.
    pub fn error(&self, key: ApiKey, code: i16, times: u64) {
        let Some(cell) = self.apis.of(key) else { return };
        let index = usize::try_from(i32::from(code) + 1).unwrap_or(usize::MAX);
        if let Some(count) = cell.get_or_init(ApiCells::new).errors.get(index) {
            count.add(times);
        }
    }

    /// A request is done.
    pub fn answered(&self, request: &Handled, answer: &Answered) {
        let cell = if request.by_follower { Some(&self.followers) } else { self.apis.of(request.key) };
        let Some(cell) = cell else { return };
        let api = cell.get_or_init(ApiCells::new);
        if let Some(version) = usize::try_from(request.version).ok().and_then(|v| api.versions.get(v)) {
            version.inc();
        }
        api.bytes_out.add(u64::try_from(answer.bytes).unwrap_or(0));
        api.request_bytes.record(u64::try_from(request.bytes).unwrap_or(0));
        let handling = request.handled.nanos_since(request.began);
        let after = answer.known.nanos_since(request.handled);
        api.total.record_nanos(answer.written.nanos_since(request.received));
        api.queue.record_nanos(request.began.nanos_since(request.received));
        api.local.record_nanos(handling.saturating_sub(request.parked_nanos));
        api.remote.record_nanos(request.parked_nanos.saturating_add(after));
        api.response_queue.record_nanos(answer.turn.nanos_since(answer.known));
        api.send.record_nanos(answer.written.nanos_since(answer.turn));
    }

    /// Goes through the next `count` topics behind one, in the order of their names, and tells as many as `left` allows;
    /// the last of them, or `None` when there are no more. Those that nobody counts for any more are forgotten.
    pub fn tell_topics(
        &self,
        behind: Option<&TopicName>,
        count: usize,
        left: &mut usize,
        out: &mut ShardSnapshot,
    ) -> Option<TopicName> {
        let (mut last, mut forgotten) = (None, Vec::new());
        let mut topics = self.topics.borrow_mut();
        let next = (behind.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        for (name, cells) in topics.range::<TopicName, _>(next).take(count) {
            if Rc::strong_count(cells) <= 1 {
                forgotten.push(name.clone());
            } else if *left > 0 {
                *left -= 1;
                cells.tell(&vec![("topic", Arc::from(name.get()))], out);
            }
            last = Some(name.clone());
        }
        for name in forgotten {
            topics.remove(&name);
        }
        last
    }

    /// Tells everything that is counted here but the topics.
    pub fn tell(&self, shard: u16, out: &mut ShardSnapshot) {
        self.all_topics.tell(&Vec::new(), out);
        let of_shard = vec![("shard", Arc::from(shard.to_string()))];
        self.tell_requests(&of_shard, out);
        self.tell_listeners(shard, out);
        let none = Vec::new();
        for (family, counter) in [
            (Family::InvalidMagic, &self.invalid_magic),
            (Family::InvalidCrc, &self.invalid_crc),
            (Family::InvalidOffsetOrSequence, &self.invalid_offset_or_sequence),
            (Family::NoKeyCompacted, &self.no_key_compacted),
            (Family::UncleanElections, &self.unclean_elections),
        ] {
            out.count(family, &none, counter.get());
        }
        out.push(Family::LogFlush, none.clone(), Value::Times(self.log_flush.snapshot()));
        out.push(Family::ShardSync, of_shard, Value::Times(self.log_flush.snapshot()));
        out.push(Family::LeaderElections, none, Value::Times(self.leader_elections.snapshot()));
    }

    /// Fetches are told under two names, as in Kafka: `Fetch`, and who fetches.
    fn tell_requests(&self, of_shard: &Labels, out: &mut ShardSnapshot) {
        let answered = || self.apis.0.iter().chain([&self.followers]).filter_map(OnceCell::get);
        let sum = |of: fn(&ApiCells) -> u64| answered().fold(0u64, |sum, api| sum.wrapping_add(of(api)));
        out.count(Family::ShardRequests, of_shard, sum(ApiCells::count));
        out.count(Family::ShardBytesIn, of_shard, sum(|api| api.request_bytes.sum()));
        out.count(Family::ShardBytesOut, of_shard, sum(|api| api.bytes_out.get()));
        for (key, cell) in (0i16..).zip(&self.apis.0) {
            let (Some(key), Some(api)) = (ApiKey::new(key), cell.get()) else { continue };
            api.tell(key.name(), out);
            api.tell_errors(key.name(), out);
            if key == ApiKey::Fetch {
                api.tell("FetchConsumer", out);
            }
        }
        if let Some(followers) = self.followers.get() {
            followers.tell(ApiKey::Fetch.name(), out);
            followers.tell("FetchFollower", out);
        }
    }

    fn tell_listeners(&self, shard: u16, out: &mut ShardSnapshot) {
        let mut connections = 0;
        for (name, cells) in &*self.listeners.borrow() {
            let labels = vec![("listener", name.clone()), ("networkProcessor", Arc::from(shard.to_string()))];
            let open = cells.arrived.get().saturating_sub(cells.left.get());
            out.count(Family::ConnectionTotal, &labels, cells.created.get());
            out.count(Family::Connections, &labels, open);
            tell_limits(cells, &labels, out);
            connections += usize::try_from(open).unwrap_or(0);
        }
        let of_shard = vec![("shard", Arc::from(shard.to_string()))];
        out.push(Family::ShardConnections, of_shard, whole(connections));
    }
}

/// What the limits on connections did to those of a listener.
fn tell_limits(cells: &ListenerCells, labels: &Labels, out: &mut ShardSnapshot) {
    let because = |reason: &'static str| {
        let reason = ("reason", Arc::from(reason));
        labels.iter().cloned().chain([reason]).collect::<Labels>()
    };
    out.count(Family::ConnectionsRefused, &because("max.connections.per.ip"), cells.refused.get());
    for (by, count) in HeldUpBy::ALL.into_iter().zip(&cells.held_up) {
        out.count(Family::ConnectionsHeldUp, &because(by.name()), count.get());
    }
    let blocked = Duration::from_nanos(cells.blocked_nanos.get()).as_secs_f64();
    out.push(Family::AcceptingBlocked, labels.clone(), Value::Real(blocked));
}

//! From a request to its answer. `net` hands over one decoded header and an undecoded body at a time; a handler
//! translates between wire and domain and never decides. This file holds what `net` and the handlers agree on.
//!
//! Reading order: this file, [`dispatch`] (which handler serves what), [`errors`] (THE mapping), then one file per API
//! family.

mod alter_log_dirs;
mod api_versions;
mod configs;
mod delete_records;
pub mod dispatch;
pub mod errors;
pub mod fetch;
pub mod find_coordinator;
mod group_admin;
mod group_offsets;
mod groups;
mod home;
pub mod init_producer_id;
mod keep;
mod log_dirs;
mod metadata;
mod offset_delete;
mod offsets;
pub mod patience;
mod produce;
mod producers;
mod repeats;
mod resolve;
mod scatter;
mod topics;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use protocol::types::MonoTime;
use smallvec::SmallVec;
use storage::io::Span;

use self::patience::Patience;
use crate::metrics::{ShardMetrics, lines};
use crate::shard::ShardId;
use crate::shard::memory::Charge;

/// What is known of the connection that a request came in on.
#[derive(Clone)]
pub struct ConnectionContext {
    /// Name of the listener: decides which endpoints clients are told.
    pub listener: Arc<str>,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Number of the connection, unique in the process.
    pub id: u64,
    /// Where its requests are counted.
    pub account: Account,
    /// How long its requests may wait for what is not there yet.
    pub patience: Patience,
}

impl fmt::Debug for ConnectionContext {
    /// Without what the connection and its handlers tell each other.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listener, peer, id, .. } = self;
        f.debug_struct("Connection").field("listener", listener).field("peer", peer).field("id", id).finish()
    }
}

impl ConnectionContext {
    /// Tells the operator, now and then, that a client's connection is closed for what it sent: an honest one would come
    /// back and fail again, and nobody would know why.
    pub fn tell_closing(
        &self,
        now: MonoTime,
        client_id: &str,
        what: &'static str,
        detail: &dyn fmt::Display,
    ) {
        let lines = &self.account.metrics.refused_clients;
        let Some(held_back) = lines.admit(now, lines::SPAN_MS, (self.peer.ip(), what)) else { return };
        let (client_id, listener) = (lines::shown(client_id), &*self.listener);
        tracing::warn!(client_id, peer = %self.peer, listener, held_back, "closing a connection: {what}: {detail}");
    }
}

/// Where the requests of a connection are counted, and what a handler says of the request at hand.
#[derive(Clone, Default)]
pub struct Account {
    /// The cells of the connection's shard.
    pub metrics: Rc<ShardMetrics>,
    /// Nanoseconds that the request at hand has waited for bytes.
    pub parked_nanos: Cell<u64>,
    /// Whether the request at hand is a follower's.
    pub by_follower: Cell<bool>,
}

impl Account {
    /// An account with nothing in it.
    pub fn new(metrics: Rc<ShardMetrics>) -> Self {
        Self { metrics, ..Self::default() }
    }
}

/// One request: the header was read and its version is served; the body is still bytes.
#[derive(Debug)]
pub struct Request {
    /// Api key.
    pub api_key: i16,
    /// Version, within what `protocol::api` serves.
    pub api_version: i16,
    /// Echoed in the answer.
    pub correlation_id: i32,
    /// Name the client gave itself; "" for null.
    pub client_id: Arc<str>,
    /// What follows the header. Owned alone, so that record batches can be split off and patched in place.
    pub body: BytesMut,
    /// What the frame takes of the shard's memory: goes with the request, or on with its batches.
    pub charge: Charge,
    /// Bytes of memory that are there as long as a part of the body is: the whole frame, and what shares its buffer.
    pub memory: usize,
    /// When the frame was complete.
    pub received: MonoTime,
    /// The connection.
    pub connection: Rc<ConnectionContext>,
}

impl Request {
    /// Gives back the memory of the frame, before a wait that does not need it: the body is empty from now on, and memory
    /// pressure does not end the wait.
    pub fn release(&mut self) {
        drop(std::mem::take(&mut self.body));
        let all = self.charge.bytes();
        drop(self.charge.split(all));
        self.memory = 0;
        self.connection.patience.lighten();
    }
}

/// An answer: response header and body, without the frame's size, in pieces that are written in order.
#[derive(Debug, Default)]
pub struct Response {
    /// The pieces; mostly one, and answers are moved often.
    pub spans: SmallVec<[Span; 1]>,
}

/// How a finished request is answered.
#[derive(Debug)]
pub enum Answer {
    /// Send this.
    Reply(Response),
    /// Send nothing, not even an empty frame (Produce with acks=0).
    Nothing,
    /// Close the connection without an answer; the reason goes to the debug log.
    Close(&'static str),
}

/// What became of a request once `handle` returns: the moment *accepted* of A-7.
#[derive(Debug)]
pub enum Outcome<P> {
    /// It is done.
    Done(Answer),
    /// It is accepted: the next Produce of this connection may start now; the answer comes later. Only Produce uses
    /// this; every other request starts after all earlier ones of its connection are answered.
    Accepted(P),
}

/// What `net` calls with each request, one call at a time per connection.
pub trait RequestHandler: Clone + 'static {
    /// The answer of an accepted request. Dropping it (the client is gone) leaves the work to run to its end.
    type Accepted: Future<Output = Answer> + Unpin + 'static;
    /// Handles one request.
    fn handle(&self, request: Request) -> impl Future<Output = Outcome<Self::Accepted>>;
    /// The shard on which a request is at home, because it owns what the request names; `None` when that says nothing.
    fn home(&self, api_key: i16, api_version: i16, body: &[u8]) -> Option<ShardId>;
}

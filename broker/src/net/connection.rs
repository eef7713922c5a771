//! One client: reads frames, lets the handler work on them, writes the answers in order. Produce requests overlap
//! the next starts when one is accepted); every other request starts after all earlier ones are answered. Knows no
//! request body. Its owner is [`super::connections`].
//!
//! What a client can make us hold: the bytes of one frame as they arrive, charged to the shard; `in_flight_max`
//! accepted requests; one answer that is being written. A client that does not read is not read from either.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, BytesMut};
use futures_util::future::{Either, select};
use protocol::api::{ApiKey, RequestHeader};
use protocol::codec::Cursor;
use protocol::types::MonoTime;
use smallvec::{SmallVec, smallvec};

use super::connections::{Connections, State};
use super::frames::{BadSize, Frame, Frames, SIZE_BYTES};
use super::moves::{Looks, Moving, UNREAD_BYTES_MAX, Unread};
use super::output::Output;
use super::pipeline::{Entry, Pipeline};
use crate::handlers::{Answer, ConnectionContext, Outcome, Request, RequestHandler};
use crate::metrics::registry::{Answered, Handled};
use crate::shard::memory::{Charge, Place};
use crate::shard::{Conn, ShardRuntime};

/// Answers that leave together at most.
const GATHER_MAX: usize = 64;

/// A connection that always has requests, or more of a large one, lets the others of the shard have their turn after this.
const BUDGET_NANOS: u64 = 200_000;

/// Serves one client.
pub(super) struct Connection<R: ShardRuntime, H: RequestHandler> {
    connections: Rc<Connections<R>>,
    handler: H,
    context: Rc<ConnectionContext>,
    output: Output<R>,
}

/// Why no more frames come.
enum End {
    /// The client closed, or the socket failed.
    Closed,
    /// We close.
    Refused(&'static str),
    /// Another shard goes on.
    Moves(Moving),
}

impl From<BadSize> for End {
    fn from(_: BadSize) -> Self {
        Self::Refused("frame of a negative size or above the limit")
    }
}

impl<R: ShardRuntime, H: RequestHandler> Connection<R, H> {
    pub(super) fn new(
        connections: &Rc<Connections<R>>,
        state: Rc<State<R>>,
        handler: H,
        context: ConnectionContext,
    ) -> Self {
        let output = Output::new(connections.runtime.clone(), context.id, state);
        Self { connections: connections.clone(), handler, context: Rc::new(context), output }
    }

    /// Serves the client, beginning with what another shard has read and not handled; at the end it may go on to another.
    pub(super) async fn serve(self, unread: Option<Unread>) -> Option<Moving> {
        let pipeline = Pipeline::new();
        let state = self.output.state();
        let reading = async {
            let end = self.read_all(&pipeline, unread).await;
            if let End::Refused(reason) = end {
                // Earlier requests keep their answers.
                state.partial.set(None);
                pipeline.below(1).await;
                state.close(self.context.id, reason);
            }
            // What was received is executed also when the client has closed (statement 19).
            pipeline.below(1).await;
            if let End::Moves(moving) = end { Some(moving) } else { None }
        };
        let writing = async {
            let mut head = None;
            loop {
                let (due, rest) = self.gather(&pipeline, head).await;
                head = rest;
                let count = due.len();
                self.deliver(due).await;
                state.in_work.set(state.in_work.get().saturating_sub(count));
                pipeline.done(count);
                self.close_if_stopping(&pipeline);
            }
        };
        match select(pin!(reading), pin!(writing)).await {
            Either::Left((moving, _)) => moving,
            Either::Right((never, _)) => never,
        }
    }

    /// Waits for the next answer, and takes those behind it that are there already: they leave together. Also the entry
    /// that was looked at in vain, to be waited for next.
    async fn gather(
        &self,
        pipeline: &Pipeline<H::Accepted>,
        head: Option<Entry<H::Accepted>>,
    ) -> Gathered<H::Accepted> {
        let mut due = SmallVec::new();
        let mut next = match head {
            Some(head) => head,
            None => pipeline.next().await,
        };
        loop {
            match next {
                Entry::Ready(answer, handled) => due.push(Due { answer, handled, known: handled.handled }),
                Entry::Accepted(mut accepted, handled) => {
                    let answer = if due.is_empty() {
                        accepted.await
                    } else {
                        match futures_util::poll!(&mut accepted) {
                            Poll::Ready(answer) => answer,
                            Poll::Pending => return (due, Some(Entry::Accepted(accepted, handled))),
                        }
                    };
                    due.push(Due { answer, handled, known: self.connections.runtime.now() });
                }
            }
            if due.len() >= GATHER_MAX {
                return (due, None);
            }
            match pipeline.take_next() {
                Some(entry) => next = entry,
                None => return (due, None),
            }
        }
    }

    /// Writes answers whose turn it is, and counts their requests.
    async fn deliver(&self, due: SmallVec<[Due; 1]>) {
        let state = self.output.state();
        let now = self.connections.runtime.now();
        let mut counts: SmallVec<[(Handled, Answered); 1]> = SmallVec::new();
        let mut answers: SmallVec<[Answer; 1]> = SmallVec::new();
        for Due { answer, handled, known } in due {
            // Known is known at its turn, but for the rare answer that had to wait for a Produce before it.
            let turn = if known == handled.handled { now } else { known };
            let bytes = self.output.bytes_of(&answer);
            counts.push((handled, Answered { known, turn, written: now, bytes }));
            answers.push(answer);
        }
        self.output.deliver(answers).await;
        for (handled, mut answered) in counts {
            answered.written = state.activity.get();
            self.context.account.metrics.answered(&handled, &answered);
        }
    }

    fn close_if_stopping(&self, pipeline: &Pipeline<H::Accepted>) {
        if self.connections.is_stopping() && pipeline.len() == 0 {
            self.output.state().close(self.context.id, "the broker stops");
        }
    }

    async fn read_all(&self, pipeline: &Pipeline<H::Accepted>, unread: Option<Unread>) -> End {
        let state = self.output.state();
        let (memory, settings) = (&self.connections.memory, &self.connections.settings);
        let mut frames = Frames::new(memory, settings.request_bytes_max, self.connections.runtime.now());
        let is_alone = self.connections.runtime.shard_count() == 1;
        let mut looks = Looks::new(unread.is_some() || is_alone);
        frames.begin_with(unread);
        let mut client_id: Arc<str> = Arc::from("");
        loop {
            let frame = match self.next_frame(&mut frames).await {
                Ok(frame) => frame,
                Err(end) => {
                    self.tell(&end, &client_id);
                    return end;
                }
            };
            if let Some(moving) = self.moves(&mut looks, &frame.body, &frames.buffer) {
                // Until earlier requests are answered it is here that it waits.
                state.held.set(moving.unread.bytes.len());
                return End::Moves(moving);
            }
            let bytes = frame.body.len().saturating_add(SIZE_BYTES);
            let Some((key, request)) = self.request(frame, &mut client_id) else {
                return End::Refused("unreadable header, or an API that is not served");
            };
            state.held.set(bytes.saturating_add(frames.buffer.len()));
            let is_produce = key == ApiKey::Produce;
            let before_max = if is_produce { settings.in_flight_max.max(1) } else { 1 };
            let began = self.turn_of(pipeline, before_max, request.received).await;
            if state.closed.get() {
                return End::Closed;
            }
            state.in_work.set(state.in_work.get().saturating_add(1));
            let (received, version) = (request.received, request.api_version);
            let outcome = self.handle(request).await;
            state.held.set(frames.buffer.len());
            let account = &self.context.account;
            let handled = Handled {
                key,
                version,
                bytes,
                by_follower: account.by_follower.take(),
                received,
                began,
                handled: self.connections.runtime.now(),
                parked_nanos: account.parked_nanos.take(),
            };
            match outcome {
                Outcome::Accepted(accepted) => pipeline.push(Entry::Accepted(accepted, handled)),
                Outcome::Done(answer) if pipeline.len() > 0 => pipeline.push(Entry::Ready(answer, handled)),
                Outcome::Done(answer) => {
                    self.deliver(smallvec![Due { answer, handled, known: handled.handled }]).await;
                    state.in_work.set(state.in_work.get().saturating_sub(1));
                    self.close_if_stopping(pipeline);
                }
            }
            if state.closed.get() {
                return End::Closed;
            }
            self.let_others_work(&mut frames).await;
        }
    }

    /// Whether the connection goes on to the shard that its requests are at home on, before this frame is handled.
    fn moves(&self, looks: &mut Looks, frame: &[u8], behind: &[u8]) -> Option<Moving> {
        let len = frame.len().saturating_add(behind.len()).saturating_add(SIZE_BYTES);
        if len > UNREAD_BYTES_MAX || !looks.are_open() {
            return None;
        }
        let mut cursor = Cursor::new(frame);
        let header = RequestHeader::decode(&mut cursor).ok().filter(|header| looks.wants(header.api_key))?;
        let body = frame.get(cursor.position()..)?;
        let home = self.handler.home(header.api_key.get(), header.api_version, body);
        let to = looks.note(self.connections.runtime.shard(), header.api_key, home)?;
        let memory = &self.connections.memory;
        self.connections.ways().filter(|ways| ways.has_room(to) && !memory.is_under_pressure())?;
        let socket = self.output.state().conn.socket().ok()?;
        let size = i32::try_from(frame.len()).ok()?;
        let mut bytes = BytesMut::with_capacity(len);
        bytes.put_i32(size);
        bytes.extend_from_slice(frame);
        bytes.extend_from_slice(behind);
        let mut charge = memory.charge();
        charge.add(bytes.len());
        tracing::debug!(connection = self.context.id, to = to.get(), "goes on where its partitions are");
        Some(Moving { to, socket, unread: Unread { bytes, charge } })
    }

    /// Lets the handler work on a request. While that waits, the client is looked after.
    async fn handle(&self, request: Request) -> Outcome<H::Accepted> {
        let state = self.output.state();
        state.patience.renew();
        // On the heap: it is far larger than a connection that has nothing to do.
        let mut handling = Box::pin(self.handler.handle(request));
        let outcome = poll_fn(|context| {
            let outcome = handling.as_mut().poll(context);
            if outcome.is_pending() && !state.parked.replace(true) {
                self.connections.look_after_parked();
            }
            outcome
        })
        .await;
        state.parked.set(false);
        outcome
    }

    /// Waits until fewer than `count` requests are before this one; when its handling begins.
    async fn turn_of(&self, pipeline: &Pipeline<H::Accepted>, count: usize, received: MonoTime) -> MonoTime {
        if pipeline.len() < count {
            return received;
        }
        self.output.state().queued.set(true);
        pipeline.below(count).await;
        self.output.state().queued.set(false);
        self.connections.runtime.now()
    }

    /// Tells the operator why no more frames are read, if it is for what the client sent.
    fn tell(&self, end: &End, client_id: &str) {
        if let End::Refused(reason) = end {
            let why = "above socket.request.max.bytes, or not Kafka's protocol (TLS on a plaintext port?)";
            self.context.tell_closing(self.connections.runtime.now(), client_id, reason, &why);
        }
    }

    /// The header of a frame; `None` when it cannot be read or names what is not served.
    fn request(
        &self,
        Frame { mut body, charge, memory }: Frame,
        client_id: &mut Arc<str>,
    ) -> Option<(ApiKey, Request)> {
        let mut cursor = Cursor::new(&body);
        let header = match RequestHeader::decode(&mut cursor) {
            Ok(header) => header,
            Err(error) => {
                let now = self.connections.runtime.now();
                self.context.tell_closing(now, client_id, "a request has no header that is served", &error);
                return None;
            }
        };
        let body_at = cursor.position();
        let name = header.client_id.unwrap_or("");
        if **client_id != *name {
            *client_id = Arc::from(name);
        }
        let (key, api_version, correlation_id) = (header.api_key, header.api_version, header.correlation_id);
        body.advance(body_at);
        let request = Request {
            api_key: key.get(),
            api_version,
            correlation_id,
            client_id: client_id.clone(),
            body,
            charge,
            memory,
            received: self.connections.runtime.now(),
            connection: self.context.clone(),
        };
        Some((key, request))
    }

    async fn next_frame(&self, frames: &mut Frames) -> Result<Frame, End> {
        let state = self.output.state();
        loop {
            if let Some(frame) = frames.take()? {
                state.partial.set(None);
                return Ok(frame);
            }
            let mut place = self.connections.memory.place(frames.counts_as(&self.connections.memory)?);
            poll_fn(|context| self.room(&mut place, &mut frames.charge, context)).await;
            let (read, has_waited) = self.read(frames, &mut place).await;
            match read {
                Ok(0) => return Err(End::Closed),
                Ok(count) => {
                    let now = self.connections.runtime.now();
                    frames.charge.add(count);
                    if has_waited {
                        frames.waited = now;
                    }
                    let size = frames.counts_as(&self.connections.memory)?;
                    state.on_arrival(now, frames.buffer.len(), size);
                }
                Err(error) => {
                    tracing::debug!(connection = self.context.id, peer = %self.context.peer, %error, "read failed");
                    return Err(End::Closed);
                }
            }
            if state.closed.get() {
                return Err(End::Closed);
            }
            self.let_others_work(frames).await;
        }
    }

    /// Lets the others of the shard have their turn, if this connection has not waited for a while.
    async fn let_others_work(&self, frames: &mut Frames) {
        let runtime = &self.connections.runtime;
        if runtime.now().nanos_since(frames.waited) > BUDGET_NANOS {
            runtime.turn().await;
            frames.waited = runtime.now();
        }
    }

    /// Reads once, with the room that was just found; also whether it had to wait. The budget is looked at again when
    /// bytes have come: others may have taken the room since.
    async fn read(&self, frames: &mut Frames, place: &mut Place) -> (std::io::Result<usize>, bool) {
        let limit = frames.prepare();
        let Frames { buffer, charge, .. } = frames;
        let mut reading = pin!(self.output.state().conn.read(buffer, limit));
        let mut has_waited = false;
        let read = poll_fn(|context| {
            if has_waited && self.room(place, charge, context).is_pending() {
                return Poll::Pending;
            }
            let read = reading.as_mut().poll(context);
            has_waited |= read.is_pending();
            read
        })
        .await;
        (read, has_waited)
    }

    fn room(&self, place: &mut Place, charge: &mut Charge, context: &Context<'_>) -> Poll<()> {
        let is_first = !self.connections.memory.is_under_pressure();
        let room = place.poll(charge, context);
        if room.is_pending() && is_first {
            self.connections.sweep();
        }
        self.output.state().wait_for_memory(room.is_pending(), || self.connections.runtime.now());
        room
    }
}

/// Answers that leave together, and the entry behind them that has none yet.
type Gathered<P> = (SmallVec<[Due; 1]>, Option<Entry<P>>);

/// An answer, and what is counted of its request.
struct Due {
    answer: Answer,
    handled: Handled,
    /// When the answer was there.
    known: MonoTime,
}

//! How a module asks its counterpart on another shard, or on its own, by the same call: reserve a slot (waits
//! for room), send (synchronous: *accepted*), await the answer (*done*). Knows no message: those belong to the
//! [`Service`] that receives them.
//!
//! At most `in_flight` asks to one shard are unanswered at a time, counted until the answer arrives even if the asker
//! has gone. A queue therefore never holds more than the asks of one side and the answers to the other's, and with
//! twice that room no send can fail: answers never wait, and no cycle of full queues can form (R-7, V-83). Asks to one
//! shard arrive in the order in which they were sent.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_channel::oneshot;
use futures_util::future::{Either, select};
use protocol::types::MonoTime;
use storage::io::{Queue, Runtime};

use super::permits::{Permit, Permits};
use super::table::Table;
use super::{AskError, Class, Mesh, NEVER, Service, ShardId, ShardRuntime};

/// After so much work on asks the receiving task lets the shard poll its sockets and timers.
const BUDGET_NANOS: u64 = 100_000;

/// A pause between two asks that is longer than this was a wait, not work.
const PAUSE_NANOS: u64 = 10_000;

/// What travels between shards.
#[derive(Debug)]
pub enum Letter<A, B> {
    /// A question.
    Ask {
        /// Comes back with the answer.
        id: u64,
        /// The question.
        ask: A,
    },
    /// An answer; `None` when the service dropped the reply.
    Answer {
        /// Of the question.
        id: u64,
        /// The answer.
        answer: Option<B>,
    },
}

type LetterOf<S> = Letter<<S as Service>::Ask, <S as Service>::Answer>;

/// A shard's place among the [`Shards`] of one service.
pub struct Seat<R: ShardRuntime, S: Service> {
    mesh: R::Seat<LetterOf<S>>,
    class: Class,
    in_flight: usize,
}

/// Makes one seat per shard, for at most `in_flight` unanswered asks from one shard to another.
pub fn seats<R: ShardRuntime, S: Service>(shards: u16, class: Class, in_flight: usize) -> Vec<Seat<R, S>> {
    let in_flight = in_flight.max(1);
    R::seats(shards, class, in_flight.saturating_mul(2))
        .into_iter()
        .map(|mesh| Seat { mesh, class, in_flight })
        .collect()
}

/// A service as seen from one shard: itself here, its counterparts on all others. Cheap to clone; the task that
/// receives ends with the last clone.
pub struct Shards<R: ShardRuntime, S: Service> {
    core: Rc<Core<R, S>>,
    _receiver: Rc<R::Task>,
}

impl<R: ShardRuntime, S: Service> Clone for Shards<R, S> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), _receiver: self._receiver.clone() }
    }
}

struct Core<R: ShardRuntime, S: Service> {
    runtime: R,
    service: S,
    mesh: R::Mesh<LetterOf<S>>,
    table: Rc<Table<S::Answer>>,
    permits: Vec<Rc<Permits>>,
}

impl<R: ShardRuntime, S: Service> Shards<R, S> {
    /// Takes the seat of this shard and starts to receive.
    pub fn new(runtime: &R, service: S, seat: Seat<R, S>) -> Self {
        let permits = (0..runtime.shard_count()).map(|_| Permits::new(seat.in_flight)).collect();
        let core = Rc::new(Core {
            runtime: runtime.clone(),
            service,
            mesh: runtime.join(seat.mesh),
            table: Rc::default(),
            permits,
        });
        let queue = match seat.class {
            Class::Control | Class::Replication => Queue::Control,
            Class::Client => Queue::Request,
            Class::Background => Queue::Background,
        };
        let receiver = runtime.spawn(queue, receive(core.clone()));
        Self { core, _receiver: Rc::new(receiver) }
    }

    /// Asks and answers of other shards that wait to be taken here.
    pub fn queued(&self) -> usize {
        self.core.mesh.queued()
    }

    /// The service on this shard.
    pub fn local(&self) -> &S {
        &self.core.service
    }

    /// Waits for room for one ask, in the order of the callers. Dropping the future, or the slot, gives the room back.
    ///
    /// # Errors
    /// `Busy` when there is no room until `by`, `Stopped` when the shard has ended or does not exist.
    pub async fn reserve(&self, to: ShardId, by: MonoTime) -> Result<Slot<R, S>, AskError> {
        if let Some(slot) = self.try_reserve(to)? {
            return Ok(slot);
        }
        let Some(permits) = self.core.permits.get(usize::from(to.get())) else {
            return Err(AskError::Stopped);
        };
        let waiting = permits.wait();
        let permit = if by == NEVER {
            waiting.await
        } else {
            match select(waiting, pin!(self.core.runtime.sleep_until(by))).await {
                Either::Left((permit, _)) => permit,
                Either::Right(_) => return Err(AskError::Busy),
            }
        };
        let permit = permit.map_err(|oneshot::Canceled| AskError::Stopped)?;
        Ok(Slot { core: self.core.clone(), to, permit: Some(permit) })
    }

    /// Takes room for one ask if there is some now and nobody waits for it.
    ///
    /// # Errors
    /// `Stopped` when the shard has ended or does not exist.
    pub fn try_reserve(&self, to: ShardId) -> Result<Option<Slot<R, S>>, AskError> {
        if to == self.core.runtime.shard() {
            return Ok(Some(Slot { core: self.core.clone(), to, permit: None }));
        }
        let permits = self.core.permits.get(usize::from(to.get())).ok_or(AskError::Stopped)?;
        if permits.is_closed() {
            return Err(AskError::Stopped);
        }
        let permit = permits.take();
        Ok(permit.map(|permit| Slot { core: self.core.clone(), to, permit: Some(permit) }))
    }

    /// Reserves, sends and waits for the answer until `by`.
    ///
    /// # Errors
    /// As [`Shards::reserve`], and `Timeout` when the answer did not come in time; the work may have been done.
    pub async fn ask(&self, to: ShardId, by: MonoTime, ask: S::Ask) -> Result<S::Answer, AskError> {
        let pending = self.reserve(to, by).await?.send(ask);
        pending.by(&self.core.runtime, by).await
    }
}

/// Room for one ask and its answer.
pub struct Slot<R: ShardRuntime, S: Service> {
    core: Rc<Core<R, S>>,
    to: ShardId,
    /// None on the local path.
    permit: Option<Permit>,
}

impl<R: ShardRuntime, S: Service> Slot<R, S> {
    /// Sends the ask. On the own shard the service has taken it when this returns. Dropping the answer's future leaves
    /// the work to run to its end.
    pub fn send(self, ask: S::Ask) -> Pending<S::Answer> {
        let Self { core, to, permit } = self;
        let id = core.table.open(permit.is_some());
        let pending = Pending { table: core.table.clone(), id: Some(id) };
        let Some(permit) = permit else {
            let reply = Reply { sink: Some(core.clone()), to, id };
            core.service.accept(to, ask, reply);
            return pending;
        };
        match core.mesh.try_send(to, Letter::Ask { id, ask }) {
            // Given back when the answer arrives.
            Ok(()) => permit.keep(),
            // By the bound on what is in flight the queue was not full: the other shard has ended.
            Err(_) => core.table.complete(id, None),
        }
        pending
    }
}

/// The answer to come. Dropping it leaves the work to run to its end.
#[must_use]
pub struct Pending<A> {
    table: Rc<Table<A>>,
    /// None once the answer was taken.
    id: Option<u64>,
}

impl<A> Pending<A> {
    /// Waits for the answer, but not longer than until `by`.
    ///
    /// # Errors
    /// `Timeout`, or `Stopped` when the shard ended or the service dropped the reply.
    pub async fn by<R: Runtime>(self, runtime: &R, by: MonoTime) -> Result<A, AskError> {
        if by == NEVER {
            return self.await;
        }
        match select(self, pin!(runtime.sleep_until(by))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(AskError::Timeout),
        }
    }
}

impl<A> Future for Pending<A> {
    type Output = Result<A, AskError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(id) = self.id else { return Poll::Ready(Err(AskError::Stopped)) };
        match self.table.poll(id, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(answer) => {
                self.id = None;
                Poll::Ready(answer.ok_or(AskError::Stopped))
            }
        }
    }
}

impl<A> Drop for Pending<A> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.table.abandon(id);
        }
    }
}

/// The duty to answer one ask; dropped, it tells the asker `Stopped`. Has its room in the queue already.
pub struct Reply<A> {
    /// None once answered.
    sink: Option<Rc<dyn Sink<A>>>,
    to: ShardId,
    id: u64,
}

impl<A> Reply<A> {
    /// Answers. Never waits.
    pub fn send(mut self, answer: A) {
        if let Some(sink) = self.sink.take() {
            sink.answer(self.to, self.id, Some(answer));
        }
    }
}

impl<A> Drop for Reply<A> {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            sink.answer(self.to, self.id, None);
        }
    }
}

/// Where a reply goes; hides the runtime and the asks from [`Reply`].
trait Sink<A> {
    fn answer(&self, to: ShardId, id: u64, answer: Option<A>);
}

impl<R: ShardRuntime, S: Service> Sink<S::Answer> for Core<R, S> {
    fn answer(&self, to: ShardId, id: u64, answer: Option<S::Answer>) {
        if to == self.runtime.shard() {
            self.table.complete(id, answer);
        } else if self.mesh.try_send(to, Letter::Answer { id, answer }).is_err() {
            // The room was reserved with the ask: only a shard that has ended refuses, and it asks no more.
            tracing::debug!(to = to.get(), "answer to a shard that has ended");
        }
    }
}

/// Takes letters in their order; spawns nothing and awaits no send.
async fn receive<R: ShardRuntime, S: Service>(core: Rc<Core<R, S>>) {
    let (mut began, mut ended) = (MonoTime::new(0), MonoTime::new(0));
    while let Some((from, letter)) = core.mesh.receive().await {
        let now = core.runtime.now();
        if now.nanos_since(ended) > PAUSE_NANOS {
            began = now;
        }
        match letter {
            Letter::Ask { id, ask } => {
                let reply = Reply { sink: Some(core.clone()), to: from, id };
                core.service.accept(from, ask, reply);
            }
            Letter::Answer { id, answer } => {
                if let Some(permits) = core.permits.get(usize::from(from.get())) {
                    permits.release();
                }
                core.table.complete(id, answer);
            }
        }
        ended = core.runtime.now();
        if ended.nanos_since(began) > BUDGET_NANOS {
            core.runtime.turn().await;
            ended = core.runtime.now();
            began = ended;
        }
    }
    for permits in &core.permits {
        permits.close();
    }
    core.table.close();
}

//! Fetches whose session lives on another shard: the client came back on another connection. The whole request goes
//! there, and the answer comes back ready to be written (replication.md 12.4, step 1).

use std::cell::{Cell, OnceCell};
use std::rc::{Rc, Weak};

use bytes::BytesMut;
use storage::io::Queue;

use super::{Origin, serve};
use crate::handlers::dispatch::{Wiring, decode_body};
use crate::handlers::{Answer, Response};
use crate::shard::tasks::TaskSet;
use crate::shard::{NEVER, Reply, Service, ShardId, ShardRuntime};

/// A fetch for the shard of its session.
#[derive(Debug)]
pub struct ForwardAsk {
    origin: Origin,
    body: BytesMut,
}

/// The answer; without a response the connection is closed.
#[derive(Debug)]
pub struct ForwardAnswer {
    response: Option<Response>,
    /// Nanoseconds that the fetch has waited for bytes.
    parked_nanos: u64,
}

/// Serves fetches that other shards forward. Holds the wiring weakly: the wiring holds the way here.
pub struct FetchForward<R: ShardRuntime>(Rc<Inner<R>>);

struct Inner<R: ShardRuntime> {
    wiring: OnceCell<Weak<Wiring<R>>>,
    tasks: TaskSet<R>,
}

impl<R: ShardRuntime> Clone for FetchForward<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: ShardRuntime> FetchForward<R> {
    /// Serves nothing before it is attached.
    pub fn new(runtime: &R) -> Self {
        Self(Rc::new(Inner { wiring: OnceCell::new(), tasks: TaskSet::new(runtime.clone()) }))
    }

    /// From now on fetches are served with this wiring; done once.
    pub fn attach(&self, wiring: &Rc<Wiring<R>>) {
        assert!(self.0.wiring.set(Rc::downgrade(wiring)).is_ok(), "attached once");
    }
}

impl<R: ShardRuntime> Service for FetchForward<R> {
    type Ask = ForwardAsk;
    type Answer = ForwardAnswer;

    fn accept(&self, _: ShardId, ask: ForwardAsk, reply: Reply<ForwardAnswer>) {
        let Some(wiring) = self.0.wiring.get().and_then(Weak::upgrade) else { return };
        self.0.tasks.spawn(Queue::Request, async move {
            let parked = Cell::new(0);
            let answer = match decode_body(&ask.body, ask.origin.version) {
                Ok(message) => serve(&wiring, &ask.origin, &message, &parked).await,
                Err(malformed) => malformed.into(),
            };
            let response = match answer {
                Answer::Reply(response) => Some(response),
                Answer::Nothing | Answer::Close(_) => None,
            };
            reply.send(ForwardAnswer { response, parked_nanos: parked.get() });
        });
    }
}

/// Has another shard serve a fetch; the answer, and how long it waited for bytes. If the client goes meanwhile, the fetch there runs to its end.
pub(super) async fn ask<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    shard: ShardId,
    origin: Origin,
    body: BytesMut,
) -> (Answer, u64) {
    match wiring.fetch.forward.ask(shard, NEVER, ForwardAsk { origin, body }).await {
        Ok(ForwardAnswer { response: Some(response), parked_nanos }) => {
            (Answer::Reply(response), parked_nanos)
        }
        Ok(ForwardAnswer { response: None, .. }) => (Answer::Close("malformed request"), 0),
        Err(_) => (Answer::Close("the shard of the fetch session has stopped"), 0),
    }
}

//! Fetches whose session lives on another shard: the client came back on another connection. The whole request goes
//! there, and the answer comes back ready to be written (replication.md 12.4, step 1).

use std::cell::OnceCell;
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

/// The answer; `None` closes the connection.
#[derive(Debug)]
pub struct ForwardAnswer(Option<Response>);

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
            let answer = match decode_body(&ask.body, ask.origin.version) {
                Ok(message) => serve(&wiring, &ask.origin, &message).await,
                Err(malformed) => malformed.into(),
            };
            reply.send(match answer {
                Answer::Reply(response) => ForwardAnswer(Some(response)),
                Answer::Nothing | Answer::Close(_) => ForwardAnswer(None),
            });
        });
    }
}

/// Has another shard serve a fetch. If the client goes meanwhile, the fetch there runs to its end.
pub(super) async fn ask<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    shard: ShardId,
    origin: Origin,
    body: BytesMut,
) -> Answer {
    match wiring.fetch.forward.ask(shard, NEVER, ForwardAsk { origin, body }).await {
        Ok(ForwardAnswer(Some(response))) => Answer::Reply(response),
        Ok(ForwardAnswer(None)) => Answer::Close("malformed request"),
        Err(_) => Answer::Close("the shard of the fetch session has stopped"),
    }
}

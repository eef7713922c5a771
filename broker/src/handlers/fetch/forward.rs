//! Fetches whose session lives on another shard: the client came back on another connection. The whole request goes
//! there, and the answer comes back ready to be written (replication.md 12.4, step 1). When the client's patience ends
//! meanwhile, that goes there too.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::{Rc, Weak};

use bytes::BytesMut;
use futures_util::future::{Either, select};
use storage::io::Queue;

use super::{Origin, Waiting, serve};
use crate::handlers::dispatch::{Wiring, decode_body};
use crate::handlers::patience::Patience;
use crate::handlers::{Answer, ConnectionContext, Response};
use crate::shard::tasks::TaskSet;
use crate::shard::{AskError, NEVER, Reply, Service, ShardId, ShardRuntime};

/// A fetch for the shard of its session, or a word on it.
#[derive(Debug)]
pub struct ForwardAsk {
    /// The connection that the fetch came in on; it has one at a time.
    connection: u64,
    what: Forwarded,
}

#[derive(Debug)]
enum Forwarded {
    Fetch {
        origin: Origin,
        body: BytesMut,
    },
    /// It is to wait no longer.
    EndPatience,
}

/// The answer; without a response the connection is closed.
#[derive(Debug, Default)]
pub struct ForwardAnswer {
    response: Option<Response>,
    /// Nanoseconds that the fetch has waited for bytes.
    parked_nanos: u64,
}

/// Serves fetches that other shards forward. Holds the wiring weakly: the wiring holds the way here.
pub struct FetchForward<R: ShardRuntime>(Rc<Inner<R>>);

struct Inner<R: ShardRuntime> {
    wiring: OnceCell<Weak<Wiring<R>>>,
    /// The patience of the clients whose fetches are served here, by connection.
    patience: RefCell<HashMap<u64, Patience>>,
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
        let (wiring, patience) = (OnceCell::new(), RefCell::default());
        Self(Rc::new(Inner { wiring, patience, tasks: TaskSet::new(runtime.clone()) }))
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
        let ForwardAsk { connection, what } = ask;
        match what {
            Forwarded::Fetch { origin, body } => {
                let Some(wiring) = self.0.wiring.get().and_then(Weak::upgrade) else { return };
                // Before the task begins: what ends it may be the next ask.
                let (this, patience) = (self.clone(), Patience::default());
                self.0.patience.borrow_mut().insert(connection, patience.clone());
                self.0.tasks.spawn(Queue::Request, async move {
                    let answer = serve_for(&wiring, &patience, &origin, &body).await;
                    this.0.patience.borrow_mut().remove(&connection);
                    reply.send(answer);
                });
            }
            Forwarded::EndPatience => {
                // It may have been answered meanwhile.
                let patience = self.0.patience.borrow().get(&connection).cloned();
                if let Some(patience) = patience {
                    patience.end();
                }
                reply.send(ForwardAnswer::default());
            }
        }
    }
}

/// Serves a fetch of another shard's client, and waits no longer than that client does.
async fn serve_for<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    patience: &Patience,
    origin: &Origin,
    body: &BytesMut,
) -> ForwardAnswer {
    let parked_nanos = Cell::new(0);
    let waiting = Waiting { patience, parked_nanos: &parked_nanos };
    let answer = match decode_body(body, origin.version) {
        Ok(message) => serve(wiring, origin, &message, waiting).await,
        Err(malformed) => malformed.into(),
    };
    let response = match answer {
        Answer::Reply(response) => Some(response),
        Answer::Nothing | Answer::Close(_) => None,
    };
    ForwardAnswer { response, parked_nanos: parked_nanos.get() }
}

/// Has another shard serve a fetch; the answer, and how long it waited for bytes. If the client goes meanwhile, or the
/// future is dropped, the fetch there ends its wait.
pub(super) async fn ask<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    shard: ShardId,
    origin: Origin,
    (body, context): (BytesMut, &ConnectionContext),
) -> (Answer, u64) {
    match ask_patiently(wiring, shard, origin, (body, context)).await {
        Ok(ForwardAnswer { response: Some(response), parked_nanos }) => {
            (Answer::Reply(response), parked_nanos)
        }
        Ok(ForwardAnswer { response: None, .. }) => (Answer::Close("malformed request"), 0),
        Err(_) => (Answer::Close("the shard of the fetch session has stopped"), 0),
    }
}

async fn ask_patiently<R: ShardRuntime>(
    wiring: &Rc<Wiring<R>>,
    shard: ShardId,
    origin: Origin,
    (body, context): (BytesMut, &ConnectionContext),
) -> Result<ForwardAnswer, AskError> {
    let connection = context.id;
    let slot = wiring.fetch.forward.reserve(shard, NEVER).await?;
    let pending = slot.send(ForwardAsk { connection, what: Forwarded::Fetch { origin, body } });
    let mut away = Away { wiring, shard, connection, is_answered: false };
    match select(pending, pin!(context.patience.over())).await {
        Either::Left((answer, _)) => {
            away.is_answered = true;
            answer
        }
        Either::Right(((), pending)) => {
            drop(away);
            pending.await
        }
    }
}

/// A fetch that another shard serves: dropped before it is answered, it waits there no longer.
struct Away<'a, R: ShardRuntime> {
    wiring: &'a Rc<Wiring<R>>,
    shard: ShardId,
    connection: u64,
    is_answered: bool,
}

impl<R: ShardRuntime> Drop for Away<'_, R> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let (forward, shard, connection) = (self.wiring.fetch.forward.clone(), self.shard, self.connection);
        let tasks = forward.local().clone();
        tasks.0.tasks.spawn(Queue::Request, async move {
            // A shard that has ended waits for nothing.
            let over = ForwardAsk { connection, what: Forwarded::EndPatience };
            let _ = forward.ask(shard, NEVER, over).await;
        });
    }
}

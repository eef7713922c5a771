//! What the embedded and the simulated store share: sessions, handles, and the order in which things become visible.
//! A request takes effect in the tree at once and is answered when everything it saw is durable; watch events go the
//! same way, ahead of the answers. Who makes things durable is a [`Committer`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;

use super::tree::{Changes, Effects, HandleId, Tree};
use super::{
    CreateMode, Expected, FencedError, MetadataStore, MultiError, NodeData, Op, OpDone, Session, Stat,
    StoreError, StoreEvent,
};

/// One request on its way to the disk. Jobs are finished in the order in which they were submitted.
pub struct Job {
    /// What to write; `None` for a request that only waits for the ones before it.
    pub(super) changes: Option<Changes>,
    deliveries: Vec<(mpsc::UnboundedSender<StoreEvent>, StoreEvent)>,
    done: oneshot::Sender<()>,
    finished: Arc<AtomicU64>,
}

impl Job {
    /// The changes are durable: the watches are told, then the caller.
    pub fn finish(self) {
        for (events, event) in self.deliveries {
            // A closed handle wants no events.
            let _ = events.unbounded_send(event);
        }
        self.finished.fetch_add(1, Ordering::Release);
        // The caller may have dropped its future; the request stands.
        let _ = self.done.send(());
    }
}

/// Makes jobs durable, in order. Dropping a job unfinished tells its caller that the store cannot write any more.
pub trait Committer: 'static {
    /// Takes a job; never waits.
    fn submit(&self, job: Job);
}

struct HandleState {
    /// Bounded by the watches of the handle, each of which fires once, and the changes of its session.
    events: mpsc::UnboundedSender<StoreEvent>,
    session: i64,
}

/// The tree and everything that its handles share.
pub struct Shared<C> {
    tree: RefCell<Tree>,
    handles: RefCell<BTreeMap<HandleId, HandleState>>,
    live_sessions: RefCell<BTreeSet<i64>>,
    next_handle: Cell<HandleId>,
    next_session: Cell<i64>,
    submitted: Cell<u64>,
    finished: Arc<AtomicU64>,
    clock: Box<dyn Fn() -> i64>,
    committer: C,
}

/// A request that has taken effect in memory; `None` for one of a dead session.
struct Waiting<T>(Option<(T, Option<oneshot::Receiver<()>>)>);

impl<T> Waiting<T> {
    async fn answer(self) -> Result<T, StoreError> {
        match self.0 {
            None => Err(StoreError::SessionExpired),
            Some((answer, None)) => Ok(answer),
            Some((answer, Some(done))) => match done.await {
                Ok(()) => Ok(answer),
                Err(oneshot::Canceled) => Err(StoreError::Unwritable),
            },
        }
    }
}

/// Session of one or more handles.
struct SessionCell {
    id: Cell<i64>,
    local_epoch: Cell<u64>,
}

struct Handle<C> {
    shared: Rc<Shared<C>>,
    session: Rc<SessionCell>,
    id: HandleId,
    events: RefCell<mpsc::UnboundedReceiver<StoreEvent>>,
}

impl<C> Drop for Handle<C> {
    fn drop(&mut self) {
        self.shared.handles.borrow_mut().remove(&self.id);
        self.shared.tree.borrow_mut().forget_watches(&BTreeSet::from([self.id]));
    }
}

/// A handle on the tree; see [`MetadataStore`].
pub struct LocalStore<C>(Rc<Handle<C>>);

impl<C> Clone for LocalStore<C> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<C: Committer> Shared<C> {
    pub(super) fn new(tree: Tree, committer: C, clock: Box<dyn Fn() -> i64>) -> Rc<Self> {
        // Sessions are process lifetimes: numbers above the last transaction were never owners of anything before.
        let next_session = tree.last_zxid() + 1;
        Rc::new(Self {
            tree: RefCell::new(tree),
            handles: RefCell::default(),
            live_sessions: RefCell::default(),
            next_handle: Cell::new(1),
            next_session: Cell::new(next_session),
            submitted: Cell::new(0),
            finished: Arc::default(),
            clock,
            committer,
        })
    }

    fn new_session(&self) -> i64 {
        let id = self.next_session.replace(self.next_session.get() + 1);
        self.live_sessions.borrow_mut().insert(id);
        id
    }

    /// Runs a request on the tree now; the answer comes when what it saw is durable.
    fn request<T>(&self, session: i64, run: impl FnOnce(&mut Tree, i64) -> (T, Effects)) -> Waiting<T> {
        let alive = self.live_sessions.borrow().contains(&session);
        Waiting(alive.then(|| {
            let (answer, effects) = run(&mut self.tree.borrow_mut(), (self.clock)());
            (answer, self.submit(effects))
        }))
    }

    /// Sends a request to the disk, unless it changed nothing and everything before it is durable.
    fn submit(&self, effects: Effects) -> Option<oneshot::Receiver<()>> {
        let idle = self.finished.load(Ordering::Acquire) == self.submitted.get();
        if effects.changes.is_none() && idle {
            return None;
        }
        let handles = self.handles.borrow();
        let deliveries = effects
            .fired
            .into_iter()
            .filter_map(|(handle, event)| handles.get(&handle).map(|state| (state.events.clone(), event)))
            .collect();
        let (done, waiting) = oneshot::channel();
        let finished = Arc::clone(&self.finished);
        self.submitted.set(self.submitted.get() + 1);
        self.committer.submit(Job { changes: effects.changes, deliveries, done, finished });
        Some(waiting)
    }
}

impl<C: Committer> LocalStore<C> {
    /// A first handle in a new session.
    pub(super) fn first(shared: &Rc<Shared<C>>) -> Self {
        let session = Rc::new(SessionCell { id: Cell::new(shared.new_session()), local_epoch: Cell::new(1) });
        Self::open_handle(shared, session)
    }

    fn open_handle(shared: &Rc<Shared<C>>, session: Rc<SessionCell>) -> Self {
        let id = shared.next_handle.replace(shared.next_handle.get() + 1);
        let (sender, events) = mpsc::unbounded();
        let connected =
            StoreEvent::Connected { id: session.id.get(), local_epoch: session.local_epoch.get() };
        // The receiver is at hand, so this cannot fail.
        let _ = sender.unbounded_send(connected);
        shared.handles.borrow_mut().insert(id, HandleState { events: sender, session: session.id.get() });
        Self(Rc::new(Handle { shared: Rc::clone(shared), session, id, events: RefCell::new(events) }))
    }

    /// Another session on the same tree, as another broker would have.
    pub(super) fn connect_another(&self) -> Self {
        Self::first(&self.0.shared)
    }

    fn request<T>(&self, run: impl FnOnce(&mut Tree, i64) -> (T, Effects)) -> Waiting<T> {
        self.0.shared.request(self.0.session.id.get(), run)
    }

    fn watcher(&self, watch: bool) -> Option<HandleId> {
        watch.then_some(self.0.id)
    }

    /// One op as a transaction of its own.
    fn single(&self, op: Op) -> impl Future<Output = Result<OpDone, StoreError>> + use<C> + 'static {
        let request = self.multi(vec![op]);
        async move {
            match request.await {
                Ok(mut done) => done.pop().ok_or(StoreError::BadPath),
                Err(error) => Err(error.error()),
            }
        }
    }

    /// Ends the session as the server of a real ensemble would: ephemerals and watches go, then the owner is told.
    pub(super) fn end_session(
        &self,
        tell: bool,
    ) -> impl Future<Output = Result<(), StoreError>> + use<C> + 'static {
        let shared = &self.0.shared;
        let session = self.0.session.id.get();
        let ended = shared.request(session, |tree, now_ms| ((), tree.end_session(session, now_ms)));
        shared.live_sessions.borrow_mut().remove(&session);
        let handles = shared.handles.borrow();
        let mine: BTreeSet<HandleId> =
            handles.iter().filter(|(_, state)| state.session == session).map(|(id, _)| *id).collect();
        shared.tree.borrow_mut().forget_watches(&mine);
        for state in mine.iter().filter_map(|id| handles.get(id)).filter(|_| tell) {
            let expired = StoreEvent::Expired { local_epoch: self.0.session.local_epoch.get() };
            // A handle whose receiver is gone wants no events.
            let _ = state.events.unbounded_send(expired);
        }
        ended.answer()
    }
}

impl<C: Committer> MetadataStore for LocalStore<C> {
    fn tells_null(&self) -> bool {
        true
    }

    fn create(
        &self,
        path: &str,
        data: Option<Bytes>,
        mode: CreateMode,
    ) -> impl Future<Output = Result<(String, Stat), StoreError>> + use<C> + 'static {
        let request = self.single(Op::Create { path: path.to_owned(), data, mode });
        async move { request.await?.created() }
    }

    fn get(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<NodeData, StoreError>> + use<C> + 'static {
        let request = self.request(|tree, _| (tree.get(path, self.watcher(watch)), Effects::default()));
        async move { request.answer().await? }
    }

    fn exists(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<Option<Stat>, StoreError>> + use<C> + 'static {
        let request = self.request(|tree, _| (tree.exists(path, self.watcher(watch)), Effects::default()));
        request.answer()
    }

    fn children(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<(Vec<String>, Stat), StoreError>> + use<C> + 'static {
        let request = self.request(|tree, _| (tree.children(path, self.watcher(watch)), Effects::default()));
        async move { request.answer().await? }
    }

    fn set(
        &self,
        path: &str,
        data: Option<Bytes>,
        expected: Expected,
    ) -> impl Future<Output = Result<Stat, StoreError>> + use<C> + 'static {
        let request = self.single(Op::Set { path: path.to_owned(), data, expected });
        async move { request.await?.set() }
    }

    fn delete(
        &self,
        path: &str,
        expected: Expected,
    ) -> impl Future<Output = Result<(), StoreError>> + use<C> + 'static {
        let request = self.single(Op::Delete { path: path.to_owned(), expected });
        async move { request.await.map(|_| ()) }
    }

    fn multi(
        &self,
        ops: Vec<Op>,
    ) -> impl Future<Output = Result<Vec<OpDone>, MultiError>> + use<C> + 'static {
        let session = self.0.session.id.get();
        let request = self.request(|tree, now_ms| tree.multi(session, now_ms, ops));
        async move { request.answer().await.map_err(MultiError::Request)? }
    }

    fn fenced(
        &self,
        epoch_version: i32,
        ops: Vec<Op>,
    ) -> impl Future<Output = Vec<Result<OpDone, FencedError>>> + use<C> + 'static {
        let session = self.0.session.id.get();
        let count = ops.len();
        let request = self.request(|tree, now_ms| tree.fenced(session, now_ms, epoch_version, ops));
        async move {
            match request.answer().await {
                Ok(results) => results,
                Err(error) => vec![Err(FencedError::Store(error)); count],
            }
        }
    }

    // One task reads a handle's events; nobody else touches the receiver while it waits.
    #[allow(clippy::await_holding_refcell_ref, reason = "the receiver has one reader by contract")]
    async fn next_event(&self) -> Option<StoreEvent> {
        self.0.events.borrow_mut().next().await
    }

    fn session(&self) -> Session {
        Session { id: self.0.session.id.get(), local_epoch: self.0.session.local_epoch.get(), timeout_ms: 0 }
    }

    fn fork(&self) -> Self {
        Self::open_handle(&self.0.shared, Rc::clone(&self.0.session))
    }

    fn reopen(&self) -> impl Future<Output = Result<Session, StoreError>> + use<C> + 'static {
        let shared = &self.0.shared;
        let old = self.0.session.id.get();
        if !shared.live_sessions.borrow().contains(&old) {
            let id = shared.new_session();
            let local_epoch = self.0.session.local_epoch.get() + 1;
            self.0.session.id.set(id);
            self.0.session.local_epoch.set(local_epoch);
            for state in shared.handles.borrow_mut().values_mut().filter(|state| state.session == old) {
                state.session = id;
                // A handle whose receiver is gone wants no events.
                let _ = state.events.unbounded_send(StoreEvent::Connected { id, local_epoch });
            }
        }
        let session = self.session();
        async move { Ok(session) }
    }

    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + use<C> + 'static {
        self.end_session(false)
    }
}

//! The waits of this shard's fetches: what owners have told of each, and when it is over. One task per owner takes the
//! owner's news (`PartitionAsk::Wakes`), from the first wait on. Knows no wire format and no partition.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::rc::Rc;

use futures_channel::oneshot;
use futures_util::future::select;
use protocol::types::MonoTime;
use smallvec::SmallVec;
use storage::io::Queue;

use crate::handlers::patience::Patience;
use crate::partition::ask::{PartitionAnswer, PartitionAsk, Wait, WaitId, Wake};
use crate::partition::service::PartitionService;
use crate::shard::{NEVER, ShardId, ShardRuntime, Shards};

/// The waits of one shard.
pub(super) struct Waits<R: ShardRuntime> {
    next: Cell<u64>,
    open: RefCell<HashMap<WaitId, Open>>,
    /// Waits that are over, by the owner that may still have them armed.
    over: RefCell<BTreeMap<ShardId, SmallVec<[WaitId; 4]>>>,
    listeners: RefCell<BTreeMap<ShardId, R::Task>>,
}

/// A wait that is not over.
struct Open {
    min_bytes: u64,
    bytes: BTreeMap<ShardId, u64>,
    /// Owners that have told of something since they armed it.
    news: SmallVec<[ShardId; 4]>,
    enough: Option<oneshot::Sender<()>>,
}

impl Open {
    fn told(&mut self, owner: ShardId, bytes: u64, immediate: bool) {
        self.bytes.insert(owner, bytes);
        if (immediate || self.bytes.values().sum::<u64>() >= self.min_bytes)
            && let Some(enough) = self.enough.take()
        {
            // The fetch may be gone.
            let _ = enough.send(());
        }
    }
}

impl<R: ShardRuntime> Default for Waits<R> {
    fn default() -> Self {
        Self {
            next: Cell::new(0),
            open: RefCell::default(),
            over: RefCell::default(),
            listeners: RefCell::default(),
        }
    }
}

impl<R: ShardRuntime> Waits<R> {
    /// Opens a wait.
    pub(super) fn open(self: &Rc<Self>, min_bytes: u64, until: MonoTime) -> OpenWait<R> {
        let id = WaitId::new(self.next.replace(self.next.get().wrapping_add(1)));
        let (sender, enough) = oneshot::channel();
        let (bytes, news) = (BTreeMap::new(), SmallVec::new());
        let open = Open { min_bytes, bytes, news, enough: Some(sender) };
        self.open.borrow_mut().insert(id, open);
        OpenWait { waits: self.clone(), wait: Wait { id, min_bytes, until }, enough, owners: SmallVec::new() }
    }

    /// Waits that an owner need not keep any more; goes out with the next fetch there.
    pub(super) fn take_over(&self, owner: ShardId) -> SmallVec<[WaitId; 4]> {
        self.over.borrow_mut().remove(&owner).unwrap_or_default()
    }

    fn told(&self, owner: ShardId, wake: Wake) {
        // A wake for a wait that is over is late, not wrong (V-82).
        if let Some(open) = self.open.borrow_mut().get_mut(&wake.id) {
            if !open.news.contains(&owner) {
                open.news.push(owner);
            }
            open.told(owner, wake.bytes, wake.immediate);
        }
    }

    fn listen(self: &Rc<Self>, runtime: &R, owner: ShardId, owners: &Shards<R, PartitionService<R>>) {
        if self.listeners.borrow().contains_key(&owner) {
            return;
        }
        let waits = Rc::downgrade(self);
        let owners = owners.clone();
        let task = runtime.spawn(Queue::Request, async move {
            while let Ok(PartitionAnswer::Woken(news)) = owners.ask(owner, NEVER, PartitionAsk::Wakes).await {
                let Some(waits) = waits.upgrade() else { return };
                for wake in news {
                    waits.told(owner, wake);
                }
            }
        });
        self.listeners.borrow_mut().insert(owner, task);
    }
}

/// An open wait; dropping it ends it, also at its owners.
pub(super) struct OpenWait<R: ShardRuntime> {
    waits: Rc<Waits<R>>,
    wait: Wait,
    enough: oneshot::Receiver<()>,
    owners: SmallVec<[ShardId; 4]>,
}

impl<R: ShardRuntime> OpenWait<R> {
    /// What an owner is to arm; from now on its news are taken.
    pub(super) fn at(
        &mut self,
        runtime: &R,
        owner: ShardId,
        owners: &Shards<R, PartitionService<R>>,
    ) -> Wait {
        self.owners.push(owner);
        self.waits.listen(runtime, owner, owners);
        self.wait
    }

    /// Notes what an owner could give when it armed the wait.
    pub(super) fn probed(&self, owner: ShardId, bytes: u64) {
        if let Some(open) = self.waits.open.borrow_mut().get_mut(&self.wait.id) {
            // News may have come first, and are newer.
            if !open.bytes.contains_key(&owner) {
                open.told(owner, bytes, false);
            }
        }
    }

    /// Whether an owner has told of something since it armed the wait.
    pub(super) fn has_news(&self, owner: ShardId) -> bool {
        self.waits.open.borrow().get(&self.wait.id).is_some_and(|open| open.news.contains(&owner))
    }

    /// Waits until there is enough, or the time or the patience is over.
    pub(super) async fn enough(&mut self, runtime: &R, patience: &Patience) {
        let late = pin!(runtime.sleep_until(self.wait.until));
        select(&mut self.enough, select(late, pin!(patience.over()))).await;
    }
}

impl<R: ShardRuntime> Drop for OpenWait<R> {
    fn drop(&mut self) {
        self.waits.open.borrow_mut().remove(&self.wait.id);
        let mut over = self.waits.over.borrow_mut();
        for owner in self.owners.drain(..) {
            over.entry(owner).or_default().push(self.wait.id);
        }
    }
}

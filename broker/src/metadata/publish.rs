//! Publication of images: shard 0 sends each image to all shards and goes on when all have it (R-11, V-81). Knows
//! neither who decided nor what changed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::{Either, join_all, select};
use std::pin::pin;

use protocol::types::MonoTime;

use super::cell::ImageCell;
use super::delta::ImageDelta;
use super::image::Image;
use crate::shard::{AskError, NEVER, Reply, Service, ShardId, ShardRuntime, Shards};

/// Called with the image that was replaced and the one that came in its place.
pub type OnReplaced = Rc<dyn Fn(&Image, &Image)>;

/// Takes images on one shard.
#[derive(Clone)]
pub struct MetadataService {
    cell: ImageCell,
    on_replaced: OnReplaced,
}

impl MetadataService {
    /// The service that keeps a shard's cell up to date.
    pub fn new(cell: ImageCell) -> Self {
        Self::telling(cell, Rc::new(|_, _| {}))
    }

    /// The same; whoever wants to know of each image is told when the cell has it.
    pub fn telling(cell: ImageCell, on_replaced: OnReplaced) -> Self {
        Self { cell, on_replaced }
    }
}

impl Service for MetadataService {
    type Ask = Arc<Image>;
    type Answer = ();

    fn accept(&self, _: ShardId, image: Arc<Image>, reply: Reply<()>) {
        let before = self.cell.current();
        self.cell.replace(image.clone());
        (self.on_replaced)(&before, &image);
        reply.send(());
    }
}

/// Builds and publishes images; lives on shard 0. Clones share it. One publication at a time: the caller serializes.
pub struct Publisher<R: ShardRuntime> {
    runtime: R,
    shards: Shards<R, MetadataService>,
    cell: ImageCell,
    /// The newest image that every shard has.
    everywhere: Rc<RefCell<Arc<Image>>>,
    waiting: Rc<RefCell<Vec<oneshot::Sender<()>>>>,
}

impl<R: ShardRuntime> Clone for Publisher<R> {
    fn clone(&self) -> Self {
        Self {
            runtime: self.runtime.clone(),
            shards: self.shards.clone(),
            cell: self.cell.clone(),
            everywhere: Rc::clone(&self.everywhere),
            waiting: Rc::clone(&self.waiting),
        }
    }
}

impl<R: ShardRuntime> Publisher<R> {
    /// A publisher; `cell` is the cell of this shard, that its own [`MetadataService`] fills.
    pub fn new(runtime: &R, shards: Shards<R, MetadataService>, cell: ImageCell) -> Self {
        let everywhere = Rc::new(RefCell::new(cell.current()));
        Self { runtime: runtime.clone(), shards, cell, everywhere, waiting: Rc::default() }
    }

    /// The newest image of this shard; all shards have it, or are about to.
    pub fn current(&self) -> Arc<Image> {
        self.cell.current()
    }

    /// The newest image that every shard has.
    pub fn everywhere(&self) -> Arc<Image> {
        Arc::clone(&self.everywhere.borrow())
    }

    /// Resolves when every shard has an image that is newer than [`Self::everywhere`] now.
    pub fn published(&self) -> oneshot::Receiver<()> {
        let (sender, published) = oneshot::channel();
        self.waiting.borrow_mut().push(sender);
        published
    }

    /// Publishes the next image; returns when every shard has it. Dropping the future leaves shards that were not
    /// reached behind by one version until the next publication.
    ///
    /// # Errors
    /// When a shard has stopped.
    pub async fn publish(&self, delta: ImageDelta) -> Result<(), AskError> {
        let image = Arc::new(delta.apply(&self.cell.current()));
        let mut pending = Vec::new();
        for shard in 0..self.runtime.shard_count() {
            let slot = self.shards.reserve(ShardId::new(shard), NEVER).await?;
            pending.push(slot.send(Arc::clone(&image)));
        }
        for answer in join_all(pending).await {
            answer?;
        }
        self.everywhere.replace(image);
        self.waiting.borrow_mut().drain(..).for_each(|waiter| {
            // Who gave up waiting is not there to be told.
            let _ = waiter.send(());
        });
        Ok(())
    }

    /// Waits until every shard has an image that passes a test; `None` when the deadline comes first.
    pub async fn until<T>(&self, deadline: MonoTime, test: impl Fn(&Image) -> Option<T>) -> Option<T> {
        let mut late = pin!(self.runtime.sleep_until(deadline));
        loop {
            // Registered before the look, so that no publication falls in between.
            let published = self.published();
            if let Some(found) = test(&self.everywhere()) {
                return Some(found);
            }
            if deadline <= self.runtime.now() {
                return None;
            }
            match select(published, late.as_mut()).await {
                Either::Left(_) => {}
                Either::Right(_) => return None,
            }
        }
    }
}

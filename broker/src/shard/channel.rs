//! The queues between shards: one receiver per shard, one bounded count per (from, to). Both runtimes use them; the
//! deterministic one adds delays. Knows no executor: a sender wakes the receiver's task from its own thread.
//!
//! Not glommio's `channel_mesh`: that one refuses shards that have not all started, wakes the sender for every message
//! that is taken, and deadlocks when two full queues wait for each other (glommio.md 2).

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::StreamExt;

use super::{Mesh, ShardId};

/// The way from one shard to another.
struct Link<M> {
    sender: UnboundedSender<(ShardId, M)>,
    depth: Arc<AtomicUsize>,
}

impl<M> Clone for Link<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), depth: self.depth.clone() }
    }
}

/// A shard's place in a mesh before it has started.
pub struct ChannelSeat<M> {
    shard: ShardId,
    capacity: usize,
    links: Vec<Link<M>>,
    /// Counts of the queues that lead here, by sender.
    inbound: Vec<Arc<AtomicUsize>>,
    receiver: UnboundedReceiver<(ShardId, M)>,
}

/// Makes the seats of all shards.
pub fn seats<M: Send + 'static>(shards: u16, capacity: usize) -> Vec<ChannelSeat<M>> {
    let ends: Vec<_> = (0..shards).map(|_| unbounded()).collect();
    let depths: Vec<Vec<Arc<AtomicUsize>>> =
        (0..shards).map(|_| (0..shards).map(|_| Arc::default()).collect()).collect();
    let senders: Vec<_> = ends.iter().map(|(sender, _)| sender.clone()).collect();
    let receivers = ends.into_iter().map(|(_, receiver)| receiver);
    let shard_of = |index: usize| ShardId::new(u16::try_from(index).unwrap_or(u16::MAX));
    receivers
        .enumerate()
        .map(|(index, receiver)| {
            let outbound = depths.get(index).into_iter().flatten();
            ChannelSeat {
                shard: shard_of(index),
                capacity,
                links: senders
                    .iter()
                    .zip(outbound)
                    .map(|(sender, depth)| Link { sender: sender.clone(), depth: depth.clone() })
                    .collect(),
                inbound: depths.iter().filter_map(|row| row.get(index).cloned()).collect(),
                receiver,
            }
        })
        .map(ChannelSeat::without_itself)
        .collect()
}

impl<M> ChannelSeat<M> {
    /// A shard that kept a sender to itself would never see that all others have ended.
    fn without_itself(mut self) -> Self {
        let (closed, _) = unbounded();
        if let Some(link) = self.links.get_mut(usize::from(self.shard.get())) {
            link.sender = closed;
        }
        self
    }
}

/// One shard's end of a mesh.
pub struct ChannelMesh<M> {
    shard: ShardId,
    capacity: usize,
    links: Vec<Link<M>>,
    inbound: Vec<Arc<AtomicUsize>>,
    receiver: RefCell<UnboundedReceiver<(ShardId, M)>>,
}

impl<M: Send + 'static> ChannelMesh<M> {
    /// Takes a seat.
    pub fn new(seat: ChannelSeat<M>) -> Self {
        let ChannelSeat { shard, capacity, links, inbound, receiver } = seat;
        Self { shard, capacity, links, inbound, receiver: RefCell::new(receiver) }
    }

    /// Takes room in the queue to a shard, for one message that `deliver` must bring; `None` when there is none.
    pub(super) fn claim(&self, to: ShardId) -> Option<Claimed<M>> {
        let link = self.links.get(usize::from(to.get()))?;
        if link.sender.is_closed() {
            return None;
        }
        // Only this shard adds to the count, so that no other can take the room in between.
        if link.depth.load(Ordering::Relaxed) >= self.capacity {
            return None;
        }
        link.depth.fetch_add(1, Ordering::Relaxed);
        Some(Claimed { from: self.shard, link: link.clone() })
    }
}

/// Room for one message.
pub(super) struct Claimed<M> {
    from: ShardId,
    link: Link<M>,
}

impl<M> Claimed<M> {
    /// Queues the message, or gives it back when the other shard has ended.
    pub(super) fn deliver(self, message: M) -> Result<(), M> {
        self.link.sender.unbounded_send((self.from, message)).map_err(|error| error.into_inner().1)
    }
}

impl<M: Send + 'static> Mesh<M> for ChannelMesh<M> {
    fn try_send(&self, to: ShardId, message: M) -> Result<(), M> {
        match self.claim(to) {
            Some(claimed) => claimed.deliver(message),
            None => Err(message),
        }
    }

    fn queued(&self) -> usize {
        self.inbound.iter().map(|depth| depth.load(Ordering::Relaxed)).sum()
    }

    async fn receive(&self) -> Option<(ShardId, M)> {
        let received = poll_fn(|context| self.receiver.borrow_mut().poll_next_unpin(context)).await;
        if let Some((from, _)) = &received
            && let Some(depth) = self.inbound.get(usize::from(from.get()))
        {
            depth.fetch_sub(1, Ordering::Relaxed);
        }
        received
    }
}

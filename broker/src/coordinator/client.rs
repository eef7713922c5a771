//! How the rest of the broker asks the coordinator of a group: finds the partition of `__consumer_offsets` that its id
//! gives and the shard that owns it, asks there, and waits for a reply that may come late. Knows no wire format and no
//! rule of groups. One per shard; the handlers use it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::{LocalBoxFuture, join_all};
use protocol::consumer_offsets::partition_of;
use protocol::error::ErrorCode;
use protocol::types::{BrokerId, CONSUMER_OFFSETS, TopicId};
use storage::io::Queue;

use super::ask::{GroupAnswer, GroupAsk, GroupReply, GroupRequest, Listed, Ticket};
use super::group::refused::{Kind, refused};
use super::service::GroupService;
use crate::metadata::cell::ImageCell;
use crate::metadata::image::TopicImage;
use crate::shard::{NEVER, ShardId, ShardRuntime, Shards};

/// Tells by how many partitions of `__consumer_offsets` groups are placed, the same on all shards: an image may have some
/// of them only, while the topic is being created, and a group belongs to one partition from the first moment on.
pub type CountPartitions = Rc<dyn Fn() -> LocalBoxFuture<'static, Option<(TopicId, i32)>>>;

/// Where the coordinator of a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinator {
    /// The partition of `__consumer_offsets`.
    pub partition: i32,
    /// The broker that leads it; `BrokerId::NONE` when none does.
    pub leader: BrokerId,
    /// The shard of this broker that owns its replica here, if there is one.
    owner: Option<ShardId>,
}

/// Where the coordinators of all groups are, as one image has it.
pub struct Placement {
    topic: Arc<TopicImage>,
    /// By how many partitions groups are placed.
    count: i32,
}

impl Placement {
    /// Where the coordinator of a group is.
    pub fn coordinator(&self, group_key: &str) -> Coordinator {
        let partition = partition_of(group_key, self.count);
        let state = usize::try_from(partition).ok().and_then(|index| self.topic.partitions.get(index));
        Coordinator {
            partition,
            leader: state.map_or(BrokerId::NONE, |state| state.leader),
            owner: state.and_then(|state| state.owner),
        }
    }
}

/// Asks coordinators for one shard. Clones share it.
pub struct GroupClient<R: ShardRuntime>(Rc<Inner<R>>);

impl<R: ShardRuntime> Clone for GroupClient<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<R: ShardRuntime> {
    runtime: R,
    image: ImageCell,
    shards: Shards<R, GroupService<R>>,
    count: CountPartitions,
    /// By how many partitions of the topic of this id groups are placed. More that are added change no group's place before
    /// the next start, as in Kafka.
    partitions: Cell<Option<(TopicId, i32)>>,
    next: Cell<u64>,
    open: Rc<Open>,
    /// Tasks that take late replies, by the shard that sends them.
    listeners: RefCell<BTreeMap<ShardId, R::Task>>,
}

/// Requests that wait for late replies of other shards: whom they asked, and whom to tell.
type Open = RefCell<HashMap<Ticket, (ShardId, oneshot::Sender<GroupReply>)>>;

/// A ticket that is waited for; forgotten when dropped.
struct Waiting {
    open: Rc<Open>,
    ticket: Ticket,
    late: oneshot::Receiver<GroupReply>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.open.borrow_mut().remove(&self.ticket);
    }
}

impl<R: ShardRuntime> GroupClient<R> {
    /// Asks the coordinators of all shards by `shards`.
    pub fn new(
        runtime: &R,
        image: ImageCell,
        shards: Shards<R, GroupService<R>>,
        count: CountPartitions,
    ) -> Self {
        Self(Rc::new(Inner {
            runtime: runtime.clone(),
            image,
            shards,
            count,
            partitions: Cell::new(None),
            next: Cell::new(0),
            open: Rc::default(),
            listeners: RefCell::default(),
        }))
    }

    /// The coordinators of this shard.
    pub fn local(&self) -> &GroupService<R> {
        self.0.shards.local()
    }

    /// Asks and answers of other shards that wait to be taken here.
    pub fn queued(&self) -> usize {
        self.0.shards.queued()
    }

    /// Where the coordinators of groups are now; `None` where there is no `__consumer_offsets`, or its size is not known.
    /// Whoever asks for several groups asks once: while the size is not known, each time costs a question to shard 0.
    pub async fn placement(&self) -> Option<Placement> {
        let topic = self.0.image.current().topic(CONSUMER_OFFSETS)?.clone();
        let count = self.partition_count(&topic).await?;
        Some(Placement { topic, count })
    }

    /// The shard of this broker that has a group's coordinator; `None` where there is none, or it is not known yet.
    pub fn owner(&self, group_key: &str) -> Option<ShardId> {
        let topic = self.0.image.current().topic(CONSUMER_OFFSETS)?.clone();
        let count = self.known_count(&topic)?;
        Placement { topic, count }.coordinator(group_key).owner
    }

    fn known_count(&self, topic: &TopicImage) -> Option<i32> {
        self.0.partitions.get().filter(|(id, _)| *id == topic.id).map(|(_, count)| count)
    }

    async fn partition_count(&self, topic: &TopicImage) -> Option<i32> {
        let known = || self.known_count(topic);
        if let Some(count) = known() {
            return Some(count);
        }
        let (id, count) = (self.0.count)().await?;
        // Another request may have been first.
        if known().is_none() && id == topic.id && count > 0 {
            self.0.partitions.set(Some((id, count)));
        }
        known()
    }

    /// Asks the coordinator of a group; the reply may take as long as the request waits there. Where this broker has no
    /// such coordinator the reply says so. Dropping the future leaves the request with the coordinator, and its reply is
    /// not taken.
    pub async fn ask(&self, group_key: &str, request: GroupRequest) -> GroupReply {
        let place = self.placement().await.map(|placement| placement.coordinator(group_key));
        let Some(Coordinator { partition, owner: Some(owner), .. }) = place else {
            return refused(&request, ErrorCode::NotCoordinator);
        };
        // For a shard that ends meanwhile.
        let (kind, ending) = (Kind::of(&request), ErrorCode::CoordinatorNotAvailable);
        let Ok(slot) = self.0.shards.reserve(owner, NEVER).await else { return kind.refused(ending) };
        if owner == self.0.runtime.shard() {
            return match slot.send(GroupAsk::One { ticket: None, partition, request }).await {
                Ok(GroupAnswer::Reply(reply)) => reply,
                Ok(_) | Err(_) => kind.refused(ending),
            };
        }
        let mut waiting = self.open(owner);
        let pending = slot.send(GroupAsk::One { ticket: Some(waiting.ticket), partition, request });
        match pending.await {
            Ok(GroupAnswer::Reply(reply)) => reply,
            Ok(GroupAnswer::Parked) => {
                self.listen(owner);
                (&mut waiting.late).await.unwrap_or_else(|_| kind.refused(ending))
            }
            Ok(GroupAnswer::Late(_) | GroupAnswer::Listed(_)) | Err(_) => kind.refused(ending),
        }
    }

    /// All groups of this broker. A shard that does not answer has the error of a coordinator that stops.
    pub async fn list(&self) -> Listed {
        let shards = (0..self.0.runtime.shard_count()).map(ShardId::new);
        let asks = shards.map(|shard| self.0.shards.ask(shard, NEVER, GroupAsk::List));
        let mut all = Listed { error: ErrorCode::None, groups: Vec::new() };
        for answer in join_all(asks).await {
            let Ok(GroupAnswer::Listed(mut listed)) = answer else {
                all.error = ErrorCode::CoordinatorNotAvailable;
                continue;
            };
            if all.error == ErrorCode::None {
                all.error = listed.error;
            }
            // Moves the list of the first shard that has one, and none where there is but one.
            if all.groups.is_empty() {
                all.groups = listed.groups;
            } else {
                all.groups.append(&mut listed.groups);
            }
        }
        all
    }

    /// Requests that wait for the replies of other shards.
    pub fn waiting(&self) -> usize {
        self.0.open.borrow().len()
    }

    fn open(&self, owner: ShardId) -> Waiting {
        let ticket = Ticket::new(self.0.next.get());
        self.0.next.set(ticket.get().wrapping_add(1));
        let (told, late) = oneshot::channel();
        self.0.open.borrow_mut().insert(ticket, (owner, told));
        Waiting { open: self.0.open.clone(), ticket, late }
    }

    /// Takes the late replies of a shard from now on. When that shard ends, whoever waits is told so: the broker is
    /// stopping.
    fn listen(&self, owner: ShardId) {
        if self.0.listeners.borrow().contains_key(&owner) {
            return;
        }
        let (shards, open) = (self.0.shards.clone(), self.0.open.clone());
        let task = self.0.runtime.spawn(Queue::Request, async move {
            while let Ok(GroupAnswer::Late(replies)) = shards.ask(owner, NEVER, GroupAsk::Late).await {
                for (ticket, reply) in replies {
                    // Who asked may have gone.
                    let told = open.borrow_mut().remove(&ticket);
                    if let Some((_, told)) = told {
                        let _ = told.send(reply);
                    }
                }
            }
            open.borrow_mut().retain(|_, (asked, _)| *asked != owner);
        });
        self.0.listeners.borrow_mut().insert(owner, task);
    }
}

//! The admin service: takes wishes on any shard, does them on shard 0, several at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use futures_channel::mpsc;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use protocol::types::{BrokerId, TopicId, TopicName};
use storage::io::Queue;

use super::ask::{AdminAnswer, AdminAsk, AllocateError, ProducerIdRange};
use super::old_offsets;
use super::producer_ids::{ProducerIds, next_block};
use crate::config::broker::BrokerConfig;
use crate::metadata::publish::Publisher;
use crate::shard::{Reply, Service, ShardId, ShardRuntime};
use crate::store::MetadataStore;

type Wish = (AdminAsk, Reply<AdminAnswer>);

/// Takes wishes. On shard 0 it is made by [`start`]; on the others there is nobody to ask.
#[derive(Clone)]
pub struct AdminService {
    queue: Option<mpsc::UnboundedSender<Wish>>,
}

impl AdminService {
    /// The service of a shard other than 0: whoever asks it is told that it has stopped.
    pub fn elsewhere() -> Self {
        Self { queue: None }
    }
}

impl Service for AdminService {
    type Ask = AdminAsk;
    type Answer = AdminAnswer;

    fn accept(&self, _: ShardId, ask: AdminAsk, reply: Reply<AdminAnswer>) {
        if let Some(queue) = &self.queue {
            // Without a worker the reply is dropped, which tells the asker.
            let _ = queue.unbounded_send((ask, reply));
        }
    }
}

/// What the admin service works with.
pub struct AdminParts<R: ShardRuntime, S> {
    /// The cluster's metadata.
    pub store: S,
    /// Tells when the image shows what was done.
    pub publisher: Publisher<R>,
    /// Defaults and limits.
    pub config: Rc<BrokerConfig>,
    /// This broker.
    pub id: BrokerId,
}

/// The work of shard 0.
pub(super) struct Admin<R: ShardRuntime, S> {
    pub runtime: R,
    pub store: S,
    pub publisher: Publisher<R>,
    pub config: Rc<BrokerConfig>,
    pub id: BrokerId,
    producer_ids: RefCell<ProducerIds>,
    /// Topics by whose number of partitions something is placed, with the number that counts.
    pub(super) counted: RefCell<BTreeMap<TopicName, (TopicId, i32)>>,
    /// One allocation at a time, so that a burst takes one block and not one each.
    allocating: futures_util::lock::Mutex<()>,
}

/// Starts the service on shard 0; it works as long as the task lives. The queue needs no bound of its own: wishes of other
/// shards keep their places in the mailbox until they are answered, and a connection of this one waits for its wish.
pub fn start<R: ShardRuntime, S: MetadataStore>(
    runtime: &R,
    parts: AdminParts<R, S>,
) -> (AdminService, R::Task) {
    let AdminParts { store, publisher, config, id } = parts;
    let admin = Admin {
        runtime: runtime.clone(),
        store,
        publisher,
        config,
        id,
        producer_ids: RefCell::default(),
        counted: RefCell::default(),
        allocating: futures_util::lock::Mutex::new(()),
    };
    let (queue, wishes) = mpsc::unbounded();
    let task = runtime.spawn(Queue::Control, serve(admin, wishes));
    (AdminService { queue: Some(queue) }, task)
}

async fn serve<R: ShardRuntime, S: MetadataStore>(
    admin: Admin<R, S>,
    mut wishes: mpsc::UnboundedReceiver<Wish>,
) {
    let mut working = FuturesUnordered::new();
    loop {
        futures_util::select_biased! {
            () = working.select_next_some() => {}
            wish = wishes.next() => match wish {
                None => break,
                Some((ask, reply)) => working.push(async {
                    reply.send(admin.answer(ask).await);
                }),
            },
        }
    }
    while let Some(()) = working.next().await {}
}

impl<R: ShardRuntime, S: MetadataStore> Admin<R, S> {
    async fn answer(&self, ask: AdminAsk) -> AdminAnswer {
        match ask {
            AdminAsk::CreateTopics(wish) => AdminAnswer::Created(self.create_topics(wish).await),
            AdminAsk::AutoCreate(names) => AdminAnswer::AutoCreated(self.auto_create(names).await),
            AdminAsk::DeleteTopics(wish) => AdminAnswer::Deleted(self.delete_topics(wish).await),
            AdminAsk::CreatePartitions(wish) => AdminAnswer::Grown(self.create_partitions(wish).await),
            AdminAsk::AlterTopic(wish) => AdminAnswer::Altered(self.alter_topic(&wish).await),
            AdminAsk::CountPartitions(topic) => AdminAnswer::Counted(self.count_partitions(&topic).await),
            AdminAsk::AllocateProducerIds => AdminAnswer::ProducerIds(self.allocate_producer_ids().await),
            AdminAsk::KeepOffsets { nodes, offsets } => {
                AdminAnswer::OffsetsKept(old_offsets::keep(&self.store, &nodes, offsets).await)
            }
            AdminAsk::ReadOffsets(nodes) => {
                AdminAnswer::OffsetsRead(old_offsets::read(&self.store, &nodes).await)
            }
        }
    }

    async fn allocate_producer_ids(&self) -> Result<ProducerIdRange, AllocateError> {
        let _turn = self.allocating.lock().await;
        loop {
            let part = self.producer_ids.borrow_mut().take();
            match part {
                Some(range) => return Ok(range),
                None => {
                    let block = next_block(&self.store, self.id).await?;
                    self.producer_ids.borrow_mut().refill(block);
                }
            }
        }
    }
}

//! The owner of a shard's partitions, as other shards and handlers ask it. Takes asks in the order of their
//! arrival: appends stand in their partitions' queues before `accept` returns; what waits goes on in a task. Lifecycle
//! (opening, stopping, closing) is in `lifecycle`, fetches are in `fetch`.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use protocol::types::{BrokerId, LeaderEpoch, MonoTime, Offset, TopicPartition};
use storage::io::{Queue, Runtime};
use storage::log::Log;

use super::append::{Claim, Queued};
use super::ask::{
    ActiveProducer, AppendAsk, DeleteRecordsAsk, DeleteRecordsError, EpochEndAsk, FoundOffset, LogSize,
    OffsetAsk, PartitionAnswer, PartitionAsk, PartitionError, PartitionKey, Sample, SetConfig,
};
use super::cleaner::{CleanerRounds, CleanerSettings};
use super::gather::{Gather, Ticket};
use super::held::Held;
use super::hub::Hub;
use super::lifecycle::{Change, Lifecycle, LogHomes};
use super::moves::Moves;
use super::replica::Partition;
use super::space::FreeSpace;
use crate::metrics::ShardMetrics;
use crate::shard::pace::Pace;
use crate::shard::{Reply, Service, ShardId};

/// What the partitions of a broker need to know of its configuration.
#[derive(Clone, Copy, Debug)]
pub struct PartitionSettings {
    /// This broker.
    pub broker_id: BrokerId,
    /// `replica.lag.time.max.ms`.
    pub replica_lag_time_ms_max: i64,
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval_ms: i64,
    /// `producer.id.expiration.check.interval.ms`.
    pub producer_expiration_check_interval_ms: i64,
    /// `producer.id.expiration.ms`.
    pub producer_expiration_ms: i64,
    /// What is behind its recovery point is flushed every so many milliseconds; Kafka leaves it to the kernel.
    pub flush_interval_ms: i64,
    /// `log.segment.delete.delay.ms`: between the renaming of a deleted partition and its removal.
    pub file_delete_delay_ms: i64,
    /// Logs that one shard opens or closes at the same time.
    pub concurrent_loads_max: usize,
    /// `storage.free.space.floor.bytes`; 0 is no floor.
    pub free_space_floor_bytes: u64,
    /// How logs are compacted.
    pub cleaner: CleanerSettings,
}

/// The partitions of one shard.
pub struct PartitionService<R: Runtime>(pub(super) Rc<Inner<R>>);

impl<R: Runtime> Clone for PartitionService<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// See [`PartitionService`].
pub(super) struct Inner<R: Runtime> {
    pub(super) hub: Rc<Hub<R>>,
    pub(super) settings: PartitionSettings,
    pub(super) partitions: RefCell<Held<Rc<Partition<R>>>>,
    pub(super) lifecycle: Lifecycle,
    pub(super) moves: Moves<R>,
}

impl<R: Runtime> Service for PartitionService<R> {
    type Ask = PartitionAsk;
    type Answer = PartitionAnswer;

    fn accept(&self, from: ShardId, ask: PartitionAsk, reply: Reply<PartitionAnswer>) {
        match ask {
            PartitionAsk::Append(ask) => self.append(ask, reply),
            PartitionAsk::Fetch(ask) => {
                let service = self.clone();
                self.spawn(Queue::Request, async move {
                    reply.send(PartitionAnswer::Fetched(service.fetch(from, ask, None).await));
                });
            }
            PartitionAsk::Wakes => self.0.hub.lines.listen(from, reply),
            PartitionAsk::ListOffsets(asks) => {
                let service = self.clone();
                self.spawn(Queue::Request, async move {
                    reply.send(PartitionAnswer::Offsets(service.list_offsets(&asks).await));
                });
            }
            PartitionAsk::EpochEndOffsets(asks) => {
                let service = self.clone();
                self.spawn(Queue::Request, async move {
                    let ends = |ask: &EpochEndAsk| service.partition(ask.key)?.epoch_end(ask);
                    let ends = Pace::new(service.runtime()).collect(asks.iter().map(ends)).await;
                    reply.send(PartitionAnswer::EpochEnds(ends));
                });
            }
            PartitionAsk::DeleteRecords(ask) => {
                let service = self.clone();
                self.spawn(Queue::Request, async move {
                    reply.send(PartitionAnswer::RecordsDeleted(service.delete_records(&ask).await));
                });
            }
            PartitionAsk::DescribeProducers(keys) => {
                let service = self.clone();
                self.spawn(Queue::Request, async move {
                    let mut pace = Pace::new(service.runtime());
                    let mut producers = Vec::with_capacity(keys.len());
                    for key in keys {
                        // As many as are active: each is worth a look.
                        producers.push(service.producers(key));
                        pace.look().await;
                    }
                    reply.send(PartitionAnswer::Producers(producers));
                });
            }
            PartitionAsk::DescribeLogs => {
                let service = self.clone();
                self.spawn(Queue::Request, async move {
                    reply.send(PartitionAnswer::Logs(service.log_sizes().await));
                });
            }
            PartitionAsk::SetConfig(ask) => {
                self.set_config(&ask);
                reply.send(PartitionAnswer::Done);
            }
            PartitionAsk::Sample => reply.send(PartitionAnswer::Samples(self.samples())),
            PartitionAsk::Become(asks) => self.change(Change::Become(asks, reply)),
            PartitionAsk::Stop(asks) => self.change(Change::Stop(asks, reply)),
            PartitionAsk::Move(asks) => self.change(Change::Move(asks, reply)),
            PartitionAsk::Wish(wishes) => {
                for (name, dir) in wishes {
                    self.0.lifecycle.choices.wish(name, dir);
                }
                reply.send(PartitionAnswer::Done);
            }
            PartitionAsk::Close => self.change(Change::Close(reply)),
            PartitionAsk::DirFailure => self.0.hub.failures.listen(reply),
            PartitionAsk::DirOffline(failure) => self.take_offline(failure, reply),
        }
    }
}

impl<R: Runtime> PartitionService<R> {
    /// The partitions of a shard, none yet. Background work (retention, producer expiry, flushes) starts at once.
    pub fn new(runtime: &R, settings: PartitionSettings, homes: LogHomes, metrics: Rc<ShardMetrics>) -> Self {
        let lag_nanos_max = MonoTime::new(0).plus_ms(settings.replica_lag_time_ms_max).get();
        let space = |dir: &Arc<Path>| {
            let space = FreeSpace::new(settings.free_space_floor_bytes, homes.table.appended(dir));
            (dir.clone(), Rc::new(space))
        };
        let spaces = homes.homes.iter().map(|home| space(&home.dir)).collect();
        let whose = (settings.broker_id, lag_nanos_max);
        let hub = Hub::new(runtime.clone(), whose, spaces, metrics);
        let moves = Moves::default();
        moves.found(&homes);
        let lifecycle = Lifecycle::new(homes);
        let inner = Rc::new(Inner { hub, settings, partitions: RefCell::default(), lifecycle, moves });
        let service = Self(inner);
        service.heed_failures();
        service.start_background();
        service
    }

    /// Fetches that wait for bytes on this shard, also those whose client has gone and that nobody ended yet.
    pub fn waiting_fetches(&self) -> usize {
        self.0.hub.fetches.borrow().len()
    }

    /// The partition with this key.
    ///
    /// # Errors
    /// It is not here, or not yet, or its log could not be opened.
    pub(super) fn partition(&self, key: PartitionKey) -> Result<Rc<Partition<R>>, PartitionError> {
        self.held(key).ok_or_else(|| {
            let lifecycle = &self.0.lifecycle;
            let is_loading = lifecycle.loads.want(key);
            if lifecycle.is_unserved(key) {
                PartitionError::Offline
            } else if is_loading {
                PartitionError::Loading
            } else {
                PartitionError::NotHere
            }
        })
    }

    /// The same for whoever serves no client.
    pub(super) fn held(&self, key: PartitionKey) -> Option<Rc<Partition<R>>> {
        self.0.partitions.borrow().get(&key).cloned()
    }

    /// All partitions, in the order of their keys.
    pub(super) fn all(&self) -> Vec<Rc<Partition<R>>> {
        self.0.partitions.borrow().values().cloned().collect()
    }

    /// The compactions of all shards.
    pub(super) fn rounds(&self) -> CleanerRounds {
        self.0.lifecycle.cleaner_rounds()
    }

    pub(super) fn runtime(&self) -> &R {
        &self.0.hub.runtime
    }

    pub(super) fn spawn(&self, queue: Queue, task: impl Future<Output = ()> + 'static) {
        self.0.hub.tasks.spawn(queue, task);
    }

    /// Puts each batch into its partition's queue.
    fn append(&self, ask: AppendAsk, reply: Reply<PartitionAnswer>) {
        let gather = Gather::new(ask.parts.len(), reply);
        for (part, ticket) in ask.parts.into_iter().zip(Ticket::all(&gather)) {
            match self.partition(part.key) {
                Ok(partition) => {
                    let (bytes, frame) = (part.batch.len(), ask.frame.clone());
                    let (acks, deadline, frame_memory) = (ask.acks, ask.deadline, ask.frame_memory);
                    let (room, leaderships_ended) = (None, 0);
                    let claim =
                        Claim { acks, deadline, bytes, frame, frame_memory, room, leaderships_ended, ticket };
                    partition.append(Queued {
                        batch: part.batch,
                        request_version: ask.request_version,
                        claim,
                    });
                }
                Err(error) => ticket.refused(error.into(), Offset::NONE),
            }
        }
    }

    async fn list_offsets(&self, asks: &[OffsetAsk]) -> Vec<Result<FoundOffset, PartitionError>> {
        let mut found = Vec::with_capacity(asks.len());
        let mut pace = Pace::new(self.runtime());
        for ask in asks {
            pace.look().await;
            found.push(match self.partition(ask.key) {
                Ok(partition) => partition.find_offset(ask).await,
                Err(error) => Err(error),
            });
        }
        found
    }

    async fn delete_records(&self, ask: &DeleteRecordsAsk) -> Vec<Result<Offset, DeleteRecordsError>> {
        let mut low_watermarks = Vec::with_capacity(ask.parts.len());
        let mut pace = Pace::new(self.runtime());
        for (key, offset) in &ask.parts {
            pace.look().await;
            low_watermarks.push(match self.partition(*key) {
                Ok(partition) => partition.delete_records(*offset).await,
                Err(error) => Err(error.into()),
            });
        }
        low_watermarks
    }

    fn producers(&self, key: PartitionKey) -> Result<Vec<ActiveProducer>, PartitionError> {
        let partition = self.partition(key)?;
        partition.check_leader(LeaderEpoch::NONE)?;
        Ok(partition.producers())
    }

    async fn log_sizes(&self) -> Vec<LogSize> {
        let size = |partition: &Rc<Partition<R>>| {
            let log = partition.log();
            LogSize {
                partition: partition.name.clone(),
                log_dir: partition.dir(),
                is_future: false,
                bytes: log.size_bytes(),
                offset_lag: partition.high_watermark().since(log.log_end_offset()).max(0),
            }
        };
        let mut sizes = Pace::new(self.runtime()).collect(self.all().iter().map(size)).await;
        sizes.extend(self.future_sizes());
        sizes
    }

    fn set_config(&self, ask: &SetConfig) {
        self.0.lifecycle.set_config(ask);
        for partition in self.all() {
            if partition.key.topic_id == ask.topic_id {
                partition.set_config(ask.config.clone());
                self.0.moves.set_config(partition.key, &ask.config);
                if partition.is_compacted() {
                    self.want_cleaner();
                }
            }
        }
    }

    /// What the checkpoint files should say.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let sample = |partition: &Rc<Partition<R>>| {
            sample(partition.name.clone(), partition.dir(), partition.high_watermark(), &partition.log())
        };
        let partitions = self.0.partitions.borrow();
        partitions.values().map(sample).chain(self.future_samples()).collect()
    }
}

/// What the checkpoint files of a log dir should say of a log in it.
pub(super) fn sample<R: Runtime>(
    partition: TopicPartition,
    log_dir: Arc<Path>,
    high_watermark: Offset,
    log: &Log<R>,
) -> Sample {
    Sample {
        partition,
        log_dir,
        high_watermark,
        recovery_point: log.recovery_point(),
        log_start_offset: log.needs_log_start_checkpoint().then(|| log.log_start_offset()),
        cleaner_offset: log.cleaner_offset(),
        is_copy: false,
    }
}

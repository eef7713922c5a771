//! The append path of one partition (A-7, storage.md 4.1): batches stand in the partition's queue in arrival order. With
//! nothing before it and nothing to wait for, a batch is validated and appended where it arrives; what must wait (a long
//! validation, a roll, an epoch to be written) holds the queue and goes on in a task. Knows no other partition.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use futures_channel::oneshot;
use protocol::records::batch;
use protocol::records::compression::{Codec, Compression};
use protocol::records::refusal::ProduceError;
use protocol::records::validate::{
    CompressionRule, KeyRule, Progress, Validated, Validation, ValidationRules,
};
use protocol::types::{LeaderEpoch, MonoTime, TimestampMs};
use storage::config::Durability;
use storage::io::{Queue, Runtime};
use storage::log::{AppendError, BatchBuffer};
use storage::producer_state::{AppendOrigin, Verification};

use super::ask::{Acks, AppendRefusal, Appended, PartitionError};
use super::gather::Ticket;
use super::machine::Event;
use super::replica::{Partition, Unacknowledged};
use super::space::Room;
use crate::config::topic::{TimestampType, TopicCompression, TopicConfig};
use crate::shard::memory::Charge;

/// Decompressed bytes that are validated in one go: some tens of microseconds. What is larger goes on in the next turn.
const STEP_BYTES: usize = 128 * 1024;

/// After so much work on a held queue its task lets the shard poll its sockets and timers.
const BUDGET_NANOS: u64 = 100_000;

/// Transactions are not verified yet: a batch of one is refused unless its transaction is open here.
const ORIGIN: AppendOrigin = AppendOrigin::Client(Verification::Missing);

/// One batch in the queue.
pub(super) struct Queued {
    pub(super) batch: BytesMut,
    pub(super) request_version: i16,
    pub(super) claim: Claim,
}

/// Who waits for a batch, and for what.
pub(super) struct Claim {
    pub(super) acks: Acks,
    pub(super) deadline: MonoTime,
    /// Size of the batch as it came.
    pub(super) bytes: usize,
    /// What is charged for the frame that the batch is part of.
    pub(super) frame: Arc<Charge>,
    /// Its room on the disk; `None` when there was none, and before it stands in a queue.
    pub(super) room: Option<Room>,
    /// Leaderships that had ended when it was taken; told when it stands in a queue.
    pub(super) leaderships_ended: u64,
    /// Bytes of memory that the frame takes as long as one of its batches is there.
    pub(super) frame_memory: usize,
    pub(super) ticket: Ticket,
}

/// The batches of a partition that wait for the one that is at work.
#[derive(Default)]
pub(super) struct AppendQueue {
    waiting: RefCell<VecDeque<Queued>>,
    held: Cell<bool>,
    /// How often this broker has ceased to lead the partition. What was taken before is refused, though it may lead again:
    /// who waited for it has been told so, and a coordinator that came since has read the log without it.
    pub(super) leaderships_ended: Cell<u64>,
    /// Who is to have the queue next, before the batches in it.
    visitor: RefCell<Option<oneshot::Sender<HeldQueue>>>,
}

/// The queue in the hands of somebody who does not append: batches wait until it is dropped.
pub(super) struct HeldQueue(#[allow(dead_code, reason = "its drop is what counts")] oneshot::Sender<()>);

/// What a batch waits for.
enum Work {
    /// Its records are many.
    Validate(Box<Validation>, Claim),
    /// The log must do something first.
    Prepare(Validated, Claim),
}

impl<R: Runtime> Partition<R> {
    /// Takes a batch: it is appended, or stands in the queue, when this returns.
    pub(super) fn append(self: &Rc<Self>, mut queued: Queued) {
        self.counts.produce_requested();
        let (room, look) = self.space().take(queued.batch.len(), self.hub.runtime.now());
        queued.claim.room = room;
        queued.claim.leaderships_ended = self.appends.leaderships_ended.get();
        if look {
            self.look_at_the_disk();
        }
        if self.appends.held.get() {
            self.appends.waiting.borrow_mut().push_back(queued);
            return;
        }
        let Some(work) = self.begin(queued) else { return };
        self.appends.held.set(true);
        let partition = self.clone();
        self.hub.tasks.spawn(Queue::Request, async move { partition.go_on(Some(work)).await });
    }

    /// Waits until no batch is at work, and keeps those that come waiting. One at a time; `None` if the partition ends.
    pub(super) async fn hold_appends(self: &Rc<Self>) -> Option<HeldQueue> {
        let (visitor, visiting) = oneshot::channel();
        self.appends.visitor.replace(Some(visitor));
        if !self.appends.held.replace(true) {
            let partition = self.clone();
            self.hub.tasks.spawn(Queue::Request, async move { partition.go_on(None).await });
        }
        visiting.await.ok()
    }

    /// Lets a visitor have the queue, if there is one, until he gives it back.
    async fn receive_visitor(&self) {
        let visitor = self.appends.visitor.take();
        let Some(visitor) = visitor else { return };
        let (held, over) = oneshot::channel();
        if visitor.send(HeldQueue(held)).is_ok() {
            // Dropped when he is done.
            let _ = over.await;
        }
    }

    /// Works through what had to wait, and what came meanwhile; then lets the queue go.
    async fn go_on(self: Rc<Self>, first: Option<Work>) {
        let mut work = first;
        let mut began = self.hub.runtime.now();
        loop {
            work = match work {
                Some(Work::Validate(mut validation, claim)) => {
                    self.hub.runtime.turn().await;
                    began = self.hub.runtime.now();
                    match validation.step(STEP_BYTES) {
                        Progress::More => Some(Work::Validate(validation, claim)),
                        Progress::Done(result) => self.validated(result, claim),
                    }
                }
                Some(Work::Prepare(validated, claim)) => {
                    let log = self.log();
                    match log.prepare(&validated.info, ORIGIN, self.leader_epoch(), self.now()).await {
                        // The leadership may have gone, and the epoch changed, meanwhile.
                        Ok(()) => self.place(validated, claim),
                        Err(error) => {
                            self.refuse(claim, error.into());
                            None
                        }
                    }
                }
                None => {
                    self.receive_visitor().await;
                    let next = self.appends.waiting.borrow_mut().pop_front();
                    let Some(next) = next else { break };
                    if self.hub.runtime.now().nanos_since(began) > BUDGET_NANOS {
                        self.hub.runtime.turn().await;
                        began = self.hub.runtime.now();
                    }
                    self.begin(next)
                }
            };
        }
        self.appends.held.set(false);
    }

    /// Checks and validates a batch; what it must wait for, if it is not done.
    fn begin(self: &Rc<Self>, queued: Queued) -> Option<Work> {
        let Queued { batch, request_version, claim } = queued;
        if let Err(refusal) = self.admits(&claim) {
            self.refuse(claim, refusal);
            return None;
        }
        let rules = rules(&self.config(), request_version);
        match Validation::new(batch, &rules, self.now()) {
            Err(error) => {
                self.refuse(claim, error.into());
                None
            }
            Ok(mut validation) => {
                // Mostly done in one step, without a place on the heap.
                match validation.step(STEP_BYTES) {
                    Progress::More => Some(Work::Validate(Box::new(validation), claim)),
                    Progress::Done(result) => self.validated(result, claim),
                }
            }
        }
    }

    fn validated(self: &Rc<Self>, result: Result<Validated, ProduceError>, claim: Claim) -> Option<Work> {
        match result {
            Ok(validated) => self.place(validated, claim),
            Err(error) => {
                self.refuse(claim, error.into());
                None
            }
        }
    }

    /// Appends a validated batch, unless the log must prepare for it.
    fn place(self: &Rc<Self>, validated: Validated, mut claim: Claim) -> Option<Work> {
        if let Err(refusal) = self.admits(&claim) {
            self.refuse(claim, refusal);
            return None;
        }
        let (leader_epoch, now) = (self.leader_epoch(), self.now());
        if self.log().must_prepare(&validated.info, leader_epoch, now) {
            return Some(Work::Prepare(validated, claim));
        }
        let Validated { batch: bytes, info, log_append_time, recompressed } = validated;
        let size = bytes.len();
        let memory = if recompressed { bytes.capacity() } else { claim.frame_memory };
        let buffer = BatchBuffer { bytes, memory };
        let kept = buffer.kept_bytes();
        match self.log().append(buffer, &info, ORIGIN, leader_epoch, now) {
            Ok(done) => {
                let log_append_time = if done.duplicate { done.max_timestamp } else { log_append_time };
                let log_start_offset = self.log().log_start_offset();
                self.count_append(done.last_offset.since(done.first_offset).saturating_add(1), claim.bytes);
                let appended = Appended { base_offset: done.first_offset, log_append_time, log_start_offset };
                if !done.duplicate {
                    let end = self.log().log_end_offset();
                    let room = claim.room.take().map(|room| room.used(size));
                    self.charge_until_written(end, claim.frame.copied(kept), room);
                    self.apply(Event::Appended(end));
                    if self.log().durability() == Durability::Relaxed {
                        self.became_safe(end);
                    }
                }
                let waiter = Unacknowledged { ticket: claim.ticket, appended };
                let required = done.last_offset.plus(1);
                match claim.acks {
                    Acks::None | Acks::Leader => self.acknowledge_when_safe(required, waiter),
                    Acks::Isr => self.acknowledge_when_replicated(required, claim.deadline, waiter),
                }
            }
            Err(error) => self.refuse(claim, error.into()),
        }
        None
    }

    fn look_at_the_disk(&self) {
        let (space, runtime, dir) = (self.space(), self.hub.runtime.clone(), self.dir());
        self.hub.tasks.spawn(Queue::Request, async move { space.look(&runtime, &dir).await });
    }

    /// Whether appends are taken now.
    fn admits(&self, claim: &Claim) -> Result<(), AppendRefusal> {
        self.check_leader(LeaderEpoch::NONE)?;
        if claim.leaderships_ended != self.appends.leaderships_ended.get() {
            return Err(self.machine.borrow().not_leader().into());
        }
        if claim.room.is_none() || self.is_swap_held_up() {
            return Err(PartitionError::Offline.into());
        }
        let (isr, min_isr) = self.machine.borrow().committed_isr();
        if claim.acks == Acks::Isr && isr < min_isr {
            return Err(AppendRefusal::NotEnoughReplicas { isr, min_isr });
        }
        Ok(())
    }

    fn refuse(&self, claim: Claim, refusal: AppendRefusal) {
        if let AppendRefusal::Append(AppendError::NotPrepared) = refusal {
            tracing::error!(partition = %self.name, "append without preparation");
        }
        self.count_refusal(&refusal, claim.bytes);
        claim.ticket.refused(refusal, self.log().log_start_offset());
    }

    fn now(&self) -> TimestampMs {
        TimestampMs::new(self.hub.runtime.wall_ms())
    }
}

/// What the topic's configuration asks of a batch.
fn rules(config: &TopicConfig, request_version: i16) -> ValidationRules {
    ValidationRules {
        request_version,
        max_message_bytes: usize::try_from(config.max_message_bytes).unwrap_or(usize::MAX),
        timestamp_type: match config.timestamp_type {
            TimestampType::CreateTime => batch::TimestampType::CreateTime,
            TimestampType::LogAppendTime => batch::TimestampType::LogAppendTime,
        },
        timestamp_before_max_ms: config.timestamp_before_max_ms,
        timestamp_after_max_ms: config.timestamp_after_max_ms,
        keys: if config.log.cleanup_policy.compact { KeyRule::Required } else { KeyRule::Optional },
        compression: match config.compression {
            TopicCompression::Producer => CompressionRule::Producer,
            TopicCompression::Codec { codec, level } => CompressionRule::Recompress(match (codec, level) {
                (Codec::Gzip, Some(level)) => Compression::Gzip { level },
                (Codec::Zstd, Some(level)) => Compression::Zstd { level },
                (codec, _) => Compression::default_level(codec),
            }),
        },
    }
}

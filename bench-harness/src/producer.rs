//! The producing side of a load: takes batches from the schedule when they are due (or as fast as its connections have
//! room), stamps prepared ones, sends them, and measures each record from the time it was due. Never waits: the engine
//! calls it when time has passed or a socket is ready.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use protocol::api::{ApiKey, RequestHeader, decode_response_header};
use protocol::codec::{Cursor, Writer};
use protocol::messages::{Message, ProduceResponse};

use crate::acknowledged::Acknowledged;
use crate::client::error_name;
use crate::clock::Clock;
use crate::content::Stamp;
use crate::measure::histogram::Times;
use crate::plan::{Plan, Planned, Schedule};
use crate::prepared::{Pool, Sending, Shape};
use crate::wire::{Outgoing, Took, Wire, Wrote};

/// Version of Produce: the first flexible one, which every broker since 2.4 has.
pub const PRODUCE_VERSION: i16 = 9;

/// What to send.
#[derive(Clone, Debug)]
pub struct Load {
    /// The topic.
    pub topic: String,
    /// Its partitions that get records.
    pub partitions: u64,
    /// Connections.
    pub connections: usize,
    /// Requests of one connection without an answer.
    pub in_flight: usize,
    /// Batches of one request.
    pub batches_per_request: usize,
    /// -1, 0 or 1.
    pub acks: i16,
    /// What batches look like.
    pub shape: Shape,
    /// Records of a full batch.
    pub batch_records: u64,
    /// The schedule; `None`: as fast as it goes.
    pub schedule: Option<Schedule>,
    /// Records of the whole run.
    pub records_max: u64,
    /// How long a run without a schedule makes requests.
    pub until: u64,
    /// Names the run in its records.
    pub run: u32,
}

/// A batch that is on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    partition: i32,
    first: u64,
    count: u64,
    made_at: u64,
}

/// One connection.
#[derive(Debug)]
struct Lane {
    wire: Wire,
    /// Due, and not sent yet.
    waiting: VecDeque<Planned>,
    outgoing: Option<Outgoing>,
    /// Each request with its batches.
    unanswered: VecDeque<(i32, Vec<Sent>)>,
    /// Where this connection's round through the partitions stands, without a schedule.
    turn: u64,
}

/// Counters of the measured part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Records acknowledged.
    pub records: u64,
    /// Requests answered.
    pub requests: u64,
}

/// The producing side.
#[derive(Debug)]
pub struct Producer {
    load: Load,
    clock: Clock,
    plan: Option<Plan>,
    lanes: Vec<Lane>,
    pool: Pool,
    next_batch: u64,
    /// Next number of each partition, without a schedule.
    next_number: Vec<u64>,
    issued: u64,
    next_correlation_id: i32,
    unanswered_requests: usize,
    measuring: bool,
    /// What was due before is not measured.
    measured_from: u64,
    /// Time from which on the schedule counts.
    origin: u64,
    /// Acknowledged so far.
    pub acknowledged: Acknowledged,
    /// Counters of the measured part.
    pub totals: Totals,
    /// From the scheduled time to the acknowledgement.
    pub latency: Times,
    /// What the generator itself was late.
    pub lateness: Times,
    /// Time of the last answer.
    pub answered_at: u64,
    /// Without a schedule: when each batch was made, by partition, for a reader in the same process.
    made: Option<Vec<VecDeque<(u64, u64)>>>,
    primed: bool,
}

impl Producer {
    /// Connects and prepares; nothing is sent yet.
    ///
    /// # Errors
    /// No connection, or batches that do not fit Kafka's format.
    pub fn new(load: Load, clock: Clock, address: SocketAddr, limit: Duration) -> Result<Self> {
        let plan = load.schedule.map(Plan::new);
        let count = plan.as_ref().map_or(load.batch_records, Plan::batch_records);
        let pool = Pool::new(load.shape, count)?;
        let lane = |turn| {
            let wire = Wire::connect(address, limit)?;
            let (waiting, unanswered) = (VecDeque::new(), VecDeque::new());
            Ok(Lane { wire, waiting, outgoing: None, unanswered, turn })
        };
        let lanes = (0..load.connections).zip(0..).map(|(_, turn)| lane(turn)).collect::<Result<Vec<_>>>()?;
        let partitions = usize::try_from(load.partitions)?;
        let ordered = load.connections <= partitions;
        Ok(Self {
            acknowledged: Acknowledged { run: load.run, ordered, ..Acknowledged::default() },
            next_number: vec![0; partitions],
            load,
            clock,
            plan,
            lanes,
            pool,
            next_batch: 0,
            issued: 0,
            next_correlation_id: 0,
            unanswered_requests: 0,
            measuring: false,
            measured_from: 0,
            origin: 0,
            totals: Totals::default(),
            latency: Times::new(),
            lateness: Times::new(),
            answered_at: 0,
            made: None,
            primed: false,
        })
    }

    /// Remembers when each batch was made.
    pub fn remember(&mut self) {
        self.made = Some(vec![VecDeque::new(); self.next_number.len()]);
    }

    /// When record `number` of `partition` was due, or without a schedule was made. A reader asks in the order of the
    /// numbers; what lies before is forgotten.
    pub fn begun_at(&mut self, partition: i32, number: u64) -> Option<u64> {
        if self.plan.is_some() {
            return self.scheduled(partition, number);
        }
        let ordered = self.acknowledged.ordered;
        let made = self.made.as_mut()?.get_mut(usize::try_from(partition).ok()?)?;
        while ordered && made.get(1).is_some_and(|(first, _)| *first <= number) {
            made.pop_front();
        }
        let behind = made.partition_point(|(first, _)| *first <= number);
        made.get(behind.checked_sub(1)?).map(|(_, at)| *at)
    }

    /// Whether what began at `begun` belongs to the measured part.
    pub fn is_measured(&self, begun: u64) -> bool {
        self.measuring && begun >= self.measured_from
    }

    /// The sockets, one per connection.
    pub fn sockets(&self) -> impl Iterator<Item = &std::net::TcpStream> {
        self.lanes.iter().map(|lane| lane.wire.stream())
    }

    /// The schedule counts from `now` on.
    pub fn start(&mut self, now: u64) {
        self.origin = now;
        self.answered_at = now;
        self.load.until = self.load.until.saturating_add(now);
    }

    /// What is due from `now` on is measured.
    pub fn measure(&mut self, now: u64) {
        self.measuring = true;
        self.measured_from = now;
    }

    /// Whether there is a schedule.
    pub fn is_open_loop(&self) -> bool {
        self.plan.is_some()
    }

    /// Bytes of a value.
    pub fn record_bytes(&self) -> u64 {
        u64::try_from(self.load.shape.record_bytes).unwrap_or(u64::MAX)
    }

    /// When record `number` of `partition` was due; `None` without a schedule.
    pub fn scheduled(&self, partition: i32, number: u64) -> Option<u64> {
        let partition = u64::try_from(partition).ok()?;
        Some(self.origin.saturating_add(self.plan.as_ref()?.scheduled(partition, number)))
    }

    /// Whether all is sent and answered.
    pub fn is_done(&self, now: u64) -> bool {
        self.unanswered_requests == 0
            && self.lanes.iter().all(|lane| lane.waiting.is_empty() && lane.outgoing.is_none())
            && match &self.plan {
                Some(plan) => plan.batch(self.next_batch).is_none(),
                None => now >= self.load.until || self.issued >= self.load.records_max,
            }
    }

    /// Requests without an answer.
    pub fn unanswered(&self) -> usize {
        self.unanswered_requests
    }

    /// When the next batch is due; `None` without a schedule or behind its end.
    pub fn next_due(&self) -> Option<u64> {
        let batch = self.plan.as_ref()?.batch(self.next_batch)?;
        Some(self.origin.saturating_add(batch.due))
    }

    /// Sends what is due.
    ///
    /// # Errors
    /// A broken connection.
    pub fn advance(&mut self) -> Result<()> {
        let Some(plan) = self.plan else {
            // From then on answers make room for requests.
            if !std::mem::replace(&mut self.primed, true) {
                (0..self.lanes.len()).try_for_each(|lane| self.send(lane))?;
            }
            return Ok(());
        };
        while let Some(batch) = plan.batch(self.next_batch) {
            let now = self.clock.now();
            let due = self.origin.saturating_add(batch.due);
            if due > now {
                break;
            }
            self.next_batch += 1;
            if self.measuring && due >= self.measured_from {
                self.lateness.record(now - due);
            }
            let index = self.lane_of(&batch);
            if let Some(lane) = self.lanes.get_mut(index) {
                lane.waiting.push_back(batch);
            }
            // More batches for the same request may be due at this very moment.
            if self.load.batches_per_request == 1
                || plan.batch(self.next_batch).is_none_or(|next| next.due > batch.due)
            {
                self.send(index)?;
            }
        }
        Ok(())
    }

    fn lane_of(&self, batch: &Planned) -> usize {
        let lanes = u64::try_from(self.lanes.len()).unwrap_or(1).max(1);
        let by = if lanes <= self.load.partitions { batch.partition } else { batch.index };
        usize::try_from(by % lanes).unwrap_or(0)
    }

    /// Makes and writes requests of one connection while it has work and room.
    fn send(&mut self, index: usize) -> Result<()> {
        loop {
            let Some(lane) = self.lanes.get_mut(index) else { return Ok(()) };
            if let Some(mut outgoing) = lane.outgoing.take() {
                match lane.wire.write(&mut outgoing)? {
                    Wrote::All => self.written(outgoing, index),
                    Wrote::Blocked => {
                        lane.outgoing = Some(outgoing);
                        return Ok(());
                    }
                }
                continue;
            }
            if lane.unanswered.len() >= self.load.in_flight {
                return Ok(());
            }
            let batches = self.next_of(index);
            if batches.is_empty() {
                return Ok(());
            }
            self.make(index, &batches)?;
        }
    }

    /// The batches of a connection's next request.
    fn next_of(&mut self, index: usize) -> Vec<Planned> {
        let most = self.load.batches_per_request;
        let lanes = u64::try_from(self.lanes.len()).unwrap_or(1);
        let Some(lane) = self.lanes.get_mut(index) else { return Vec::new() };
        if self.plan.is_some() {
            let count = most.min(lane.waiting.len());
            return lane.waiting.drain(..count).collect();
        }
        let now = self.clock.now();
        let mut batches = Vec::with_capacity(most);
        while batches.len() < most && now < self.load.until && self.issued < self.load.records_max {
            let partition = lane.turn % self.load.partitions;
            // One connection takes every so many partitions; with more connections than partitions all go round.
            lane.turn = if lanes <= self.load.partitions {
                let next = partition + lanes;
                if next < self.load.partitions { next } else { next % lanes }
            } else {
                partition + 1
            };
            let Some(number) = usize::try_from(partition).ok().and_then(|at| self.next_number.get_mut(at))
            else {
                break;
            };
            let count = self.load.batch_records.min(self.load.records_max - self.issued);
            batches.push(Planned { index: 0, partition, first: *number, count, due: now });
            let made = self.made.as_mut().zip(usize::try_from(partition).ok());
            if let Some(made) = made.and_then(|(made, at)| made.get_mut(at)) {
                made.push_back((*number, now));
            }
            *number += count;
            self.issued += count;
        }
        batches
    }

    /// Makes a request of some batches.
    fn make(&mut self, index: usize, batches: &[Planned]) -> Result<()> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id = correlation_id.wrapping_add(1);
        let now = self.clock.now();
        let mut outgoing = Outgoing::default();
        let mut sent = Vec::with_capacity(batches.len());
        for batch in batches {
            let partition = i32::try_from(batch.partition)?;
            let mut prepared = self.pool.take(batch.count)?;
            let stamp = Stamp { run: self.load.run, partition, number: batch.first };
            prepared.stamp(&Sending { stamp, now_ms: self.clock.unix_ms(now), key: self.key_of(batch) });
            outgoing.batches.push(prepared);
            sent.push(Sent { partition, first: batch.first, count: batch.count, made_at: now });
        }
        encode(&self.load, correlation_id, &sent, &mut outgoing);
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.outgoing = Some(outgoing);
            lane.unanswered.push_back((correlation_id, sent));
            self.unanswered_requests += 1;
        }
        Ok(())
    }

    /// Key of a batch's first record and the step to the next, so that a partition's keys are those that belong to it.
    fn key_of(&self, batch: &Planned) -> (u64, u64) {
        match self.load.shape.keys {
            0 => (0, 0),
            keys => {
                let first = batch.first.wrapping_mul(self.load.partitions).wrapping_add(batch.partition);
                (first % keys, self.load.partitions % keys)
            }
        }
    }

    /// A request is with the kernel.
    fn written(&mut self, outgoing: Outgoing, index: usize) {
        outgoing.batches.into_iter().for_each(|batch| self.pool.give(batch));
        if self.load.acks != 0 {
            return;
        }
        // Without acknowledgements a request is over when it is written; nothing is known of it.
        if let Some((_, sent)) = self.lanes.get_mut(index).and_then(|lane| lane.unanswered.pop_back()) {
            self.unanswered_requests -= 1;
            self.answered_at = self.clock.now();
            self.count(&sent);
        }
    }

    fn count(&mut self, sent: &[Sent]) {
        if self.measuring {
            self.totals.requests += 1;
            self.totals.records += sent.iter().map(|batch| batch.count).sum::<u64>();
        }
    }

    /// A socket is ready: takes answers, and goes on sending. Says whether to call again without waiting.
    ///
    /// # Errors
    /// A broken connection, an error of the broker, an answer to something else.
    pub fn ready(&mut self, index: usize, readable: bool, hung_up: bool) -> Result<Took> {
        let mut took = Took::Drained;
        if readable && let Some(lane) = self.lanes.get_mut(index) {
            if hung_up {
                lane.wire.set_hung_up();
            }
            took = lane.wire.read()?;
            while self.take_answer(index)? {}
        }
        self.send(index)?;
        Ok(took)
    }

    fn take_answer(&mut self, index: usize) -> Result<bool> {
        let Some(lane) = self.lanes.get_mut(index) else { return Ok(false) };
        let Some(frame) = lane.wire.answer()? else { return Ok(false) };
        let Some((correlation_id, sent)) = lane.unanswered.pop_front() else {
            bail!("the broker answered something that was not asked");
        };
        let offsets = offsets_of(frame, correlation_id, &sent)?;
        lane.wire.done();
        self.unanswered_requests -= 1;
        let now = self.clock.now();
        self.answered_at = now;
        self.count(&sent);
        for (batch, offset) in sent.iter().zip(offsets) {
            self.acknowledged.add(batch.partition, offset, batch.first, batch.count);
            self.note(batch, now);
        }
        Ok(true)
    }

    /// Notes the latency of each record of a batch.
    fn note(&mut self, batch: &Sent, now: u64) {
        if !self.measuring {
            return;
        }
        if self.plan.is_none() {
            if batch.made_at >= self.measured_from {
                self.latency.record_n(now.saturating_sub(batch.made_at), batch.count);
            }
            return;
        }
        for number in batch.first..batch.first.saturating_add(batch.count) {
            match self.scheduled(batch.partition, number) {
                Some(due) if due >= self.measured_from => self.latency.record(now.saturating_sub(due)),
                _ => {}
            }
        }
    }
}

/// Writes a Produce request around its batches: the same bytes as `ProduceRequest` makes, without copying records.
fn encode(load: &Load, correlation_id: i32, sent: &[Sent], outgoing: &mut Outgoing) {
    let mut writer = Writer::with_capacity(64 + load.topic.len() + 16 * sent.len());
    writer.put(&[0; 4]);
    let client_id = Some("odradek-bench");
    let api_key = ApiKey::Produce;
    RequestHeader { api_key, api_version: PRODUCE_VERSION, correlation_id, client_id }.encode(&mut writer);
    writer.nullable_string(None, true);
    writer.put(&load.acks.to_be_bytes());
    writer.put(&30_000_i32.to_be_bytes());
    writer.length(Some(1), true);
    writer.nullable_string(Some(&load.topic), true);
    writer.length(Some(sent.len()), true);
    for (batch, prepared) in sent.iter().zip(&outgoing.batches) {
        writer.put(&batch.partition.to_be_bytes());
        writer.length(Some(prepared.bytes().len()), true);
        outgoing.cuts.push(writer.len());
        writer.unsigned_varint(0);
    }
    writer.unsigned_varint(0);
    writer.unsigned_varint(0);
    outgoing.head = writer.into_bytes().to_vec();
    outgoing.seal();
}

/// The offsets that a request's batches got, in its order.
fn offsets_of(frame: &[u8], correlation_id: i32, sent: &[Sent]) -> Result<Vec<i64>> {
    let mut cursor = Cursor::new(frame);
    let echoed = decode_response_header(ApiKey::Produce, PRODUCE_VERSION, &mut cursor)?;
    if echoed != correlation_id {
        bail!("the broker answered request {echoed} before request {correlation_id}");
    }
    let response = ProduceResponse::decode(&mut cursor, PRODUCE_VERSION)?;
    let mut offsets = Vec::with_capacity(sent.len());
    for batch in sent {
        let mut parts = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        let Some(part) = parts.find(|part| part.index == batch.partition) else {
            bail!("the broker did not answer for partition {}", batch.partition);
        };
        if part.error_code != 0 {
            bail!(
                "produce to partition {} was answered with {}",
                batch.partition,
                error_name(part.error_code)
            );
        }
        offsets.push(part.base_offset);
    }
    Ok(offsets)
}

#[cfg(test)]
mod tests;

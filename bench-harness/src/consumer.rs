//! The consuming side of a load: reads assigned partitions through fetch sessions, one request in flight per connection
//! as Kafka's consumer does, and checks each batch and each record. Never waits: the engine calls it when a socket is
//! ready, and between slices of work the schedule of a producer in the same process is looked at.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Result, bail};
use protocol::api::{ApiKey, RequestHeader, decode_response_header};
use protocol::codec::{Cursor, Writer};
use protocol::messages::{FetchPartition, FetchRequest, FetchResponse, FetchTopics, FetchedRecords, Message};
use protocol::records::batch::{BatchError, BatchView};
use protocol::types::TopicId;

use crate::client::error_name;
use crate::clock::Clock;
use crate::content::{Stamp, check_batch};
use crate::measure::histogram::Times;
use crate::wire::{Outgoing, Took, Wire, Wrote};

/// Version of Fetch: the last that names topics by name.
const FETCH_VERSION: i16 = 12;

/// Errors after which a fetch session is opened anew.
const SESSION_NOT_FOUND: i16 = 70;
const SESSION_EPOCH_INVALID: i16 = 71;

/// Bytes of records that one slice checks before others have their turn.
const SLICE_BYTES: usize = 64 << 10;

/// What to read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The topic.
    pub topic: String,
    /// Connections.
    pub connections: usize,
    /// Each partition with the offset to begin at and the offset to end at, if there is an end; in the order of the
    /// partitions.
    pub partitions: Vec<(i32, i64, Option<i64>)>,
    /// `fetch.max.bytes`.
    pub bytes_max: i32,
    /// `max.partition.fetch.bytes`.
    pub partition_bytes_max: i32,
    /// `fetch.min.bytes`.
    pub bytes_min: i32,
    /// `fetch.max.wait.ms`.
    pub wait_ms_max: i32,
    /// Records without our stamp are taken too.
    pub any_content: bool,
}

/// One partition.
#[derive(Clone, Copy, Debug)]
struct Assigned {
    partition: i32,
    next_offset: i64,
    /// What the fetch session knows.
    told_offset: Option<i64>,
    end_offset: Option<i64>,
}

impl Assigned {
    fn is_at_end(&self) -> bool {
        self.end_offset.is_some_and(|end| self.next_offset >= end)
    }
}

/// One connection.
#[derive(Debug)]
struct Lane {
    wire: Wire,
    partitions: Vec<Assigned>,
    session: (i32, i32),
    outgoing: Option<Outgoing>,
    /// Correlation id of the request without an answer, and when it was sent.
    asked: Option<(i32, u64)>,
    /// Parts of the answer at hand that are still to be checked: place in `partitions`, place in the answer.
    unchecked: VecDeque<(usize, Range<usize>)>,
}

/// What a reader is shown: a record that is whole. Time is that of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// What it carries; `None` for a record of others.
    pub stamp: Option<Stamp>,
    /// When it was read.
    pub at: u64,
}

/// Counters of the measured part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Records read.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Fetches answered.
    pub requests: u64,
}

/// The consuming side.
#[derive(Debug)]
pub struct Consumer {
    reading: Reading,
    clock: Clock,
    lanes: Vec<Lane>,
    next_correlation_id: i32,
    measuring: bool,
    /// Counters of the measured part.
    pub totals: Totals,
    /// Records of the whole run.
    pub records: u64,
    /// From a fetch to its answer.
    pub fetch: Times,
    /// Time of the last answer.
    pub answered_at: u64,
    /// Time of the last answer with records.
    pub read_at: u64,
}

impl Consumer {
    /// Connects; nothing is asked yet.
    ///
    /// # Errors
    /// No connection.
    pub fn new(reading: Reading, clock: Clock, address: SocketAddr, limit: Duration) -> Result<Self> {
        let mut lanes = Vec::with_capacity(reading.connections);
        for index in 0..reading.connections {
            let of_lane = reading.partitions.iter().skip(index).step_by(reading.connections);
            let assigned = |(partition, next_offset, end_offset): &(i32, i64, Option<i64>)| Assigned {
                partition: *partition,
                next_offset: *next_offset,
                told_offset: None,
                end_offset: *end_offset,
            };
            lanes.push(Lane {
                wire: Wire::connect(address, limit)?,
                partitions: of_lane.map(assigned).collect(),
                session: (0, 0),
                outgoing: None,
                asked: None,
                unchecked: VecDeque::new(),
            });
        }
        Ok(Self {
            reading,
            clock,
            lanes,
            next_correlation_id: 0,
            measuring: false,
            totals: Totals::default(),
            records: 0,
            fetch: Times::new(),
            answered_at: 0,
            read_at: 0,
        })
    }

    /// The sockets, one per connection.
    pub fn sockets(&self) -> impl Iterator<Item = &std::net::TcpStream> {
        self.lanes.iter().map(|lane| lane.wire.stream())
    }

    /// Asks for the first time.
    ///
    /// # Errors
    /// A broken connection.
    pub fn start(&mut self, now: u64) -> Result<()> {
        self.answered_at = now;
        (0..self.lanes.len()).try_for_each(|lane| self.ask(lane))
    }

    /// What is read from here on is measured.
    pub fn measure(&mut self) {
        self.measuring = true;
    }

    /// Whether every partition was read to its end.
    pub fn is_at_end(&self) -> bool {
        self.lanes.iter().all(|lane| lane.partitions.iter().all(Assigned::is_at_end))
    }

    /// Whether there is something to check before anybody sleeps.
    pub fn has_work(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.unchecked.is_empty())
    }

    /// Checks one slice of what was read on each connection, and shows each record.
    ///
    /// # Errors
    /// A broken connection, a damaged batch, a changed record, an offset that is not the next.
    pub fn work(&mut self, mut show: impl FnMut(Found) -> Result<()>) -> Result<()> {
        for index in 0..self.lanes.len() {
            if self.lanes.get(index).is_none_or(|lane| lane.unchecked.is_empty()) {
                continue;
            }
            self.check_slice(index, &mut show)?;
            if let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.unchecked.is_empty()) {
                lane.wire.done();
                self.ask(index)?;
            }
        }
        Ok(())
    }

    fn check_slice(&mut self, index: usize, show: &mut impl FnMut(Found) -> Result<()>) -> Result<()> {
        let Some(lane) = self.lanes.get_mut(index) else { return Ok(()) };
        let mut checked = 0;
        while let Some((place, range)) = lane.unchecked.pop_front() {
            let Some(assigned) = lane.partitions.get_mut(place) else { continue };
            let batch = match BatchView::parse(lane.wire.part(range.clone())) {
                Ok(batch) => batch,
                // The end of a fetched range may cut a batch (KIP-74).
                Err(BatchError::Truncated { .. }) => continue,
                Err(error) => {
                    bail!("partition {}, offset {}: {error}", assigned.partition, assigned.next_offset)
                }
            };
            let at = self.clock.now();
            let (records, bytes) = check(assigned, &batch, self.reading.any_content, at, show)?;
            self.records += records;
            if self.measuring {
                self.totals.records += records;
                self.totals.bytes += bytes;
            }
            let end = range.start + batch.size_in_bytes();
            if end < range.end {
                lane.unchecked.push_front((place, end..range.end));
            }
            checked += batch.size_in_bytes();
            if checked >= SLICE_BYTES {
                break;
            }
        }
        Ok(())
    }

    /// Sends the next fetch of a connection, unless it has read all.
    fn ask(&mut self, index: usize) -> Result<()> {
        let correlation_id = self.next_correlation_id;
        let Some(lane) = self.lanes.get_mut(index) else { return Ok(()) };
        if lane.partitions.iter().all(Assigned::is_at_end) {
            return Ok(());
        }
        self.next_correlation_id = correlation_id.wrapping_add(1);
        lane.outgoing = Some(request(&self.reading, lane, correlation_id));
        lane.asked = Some((correlation_id, self.clock.now()));
        self.send(index)
    }

    fn send(&mut self, index: usize) -> Result<()> {
        let Some(lane) = self.lanes.get_mut(index) else { return Ok(()) };
        if let Some(mut outgoing) = lane.outgoing.take()
            && lane.wire.write(&mut outgoing)? == Wrote::Blocked
        {
            lane.outgoing = Some(outgoing);
        }
        Ok(())
    }

    /// A socket is ready: reads, and opens an answer that is whole. Says whether to call again without waiting.
    ///
    /// # Errors
    /// A broken connection, an error of the broker, an answer to something else.
    pub fn ready(&mut self, index: usize, readable: bool, hung_up: bool) -> Result<Took> {
        self.send(index)?;
        let Some(lane) = self.lanes.get_mut(index).filter(|_| readable) else { return Ok(Took::Drained) };
        if hung_up {
            lane.wire.set_hung_up();
        }
        if !lane.unchecked.is_empty() {
            return Ok(Took::Drained);
        }
        let took = lane.wire.read()?;
        if lane.wire.answer()?.is_some() {
            self.open(index)?;
        }
        Ok(took)
    }

    /// Notes the parts of a whole answer.
    fn open(&mut self, index: usize) -> Result<()> {
        let Some(lane) = self.lanes.get_mut(index) else { return Ok(()) };
        let Some((correlation_id, asked_at)) = lane.asked.take() else {
            bail!("the broker answered something that was not asked");
        };
        let Some(frame) = lane.wire.answer()? else { return Ok(()) };
        let (session_id, parts) = match parts_of(frame, correlation_id, &lane.partitions)? {
            Answer::Parts { session_id, parts } => (session_id, parts),
            Answer::SessionLost => {
                lane.wire.done();
                lane.session = (0, 0);
                lane.partitions.iter_mut().for_each(|part| part.told_offset = None);
                return self.ask(index);
            }
        };
        let epoch = lane.session.1.checked_add(1).unwrap_or(1);
        // A broker without room for sessions answers with id 0: the next request is a full one again.
        lane.session = if session_id == 0 { (0, 0) } else { (session_id, epoch) };
        if session_id == 0 {
            lane.partitions.iter_mut().for_each(|part| part.told_offset = None);
        }
        lane.unchecked = parts;
        let is_empty = lane.unchecked.is_empty();
        let now = self.clock.now();
        self.answered_at = now;
        if !is_empty {
            self.read_at = now;
        }
        if self.measuring {
            self.totals.requests += 1;
            self.fetch.record(now.saturating_sub(asked_at));
        }
        if is_empty {
            lane.wire.done();
            self.ask(index)?;
        }
        Ok(())
    }
}

/// Checks one batch and moves on behind it: records and bytes of values.
fn check(
    assigned: &mut Assigned,
    batch: &BatchView<'_>,
    any_content: bool,
    at: u64,
    show: &mut impl FnMut(Found) -> Result<()>,
) -> Result<(u64, u64)> {
    let Assigned { partition, next_offset: from, .. } = *assigned;
    let base = batch.base_offset().get();
    if base > from && !any_content {
        bail!(
            "partition {partition} goes on at offset {base} behind offset {from}: records are lost in between"
        );
    }
    let (mut records, mut bytes, mut wrong) = (0, 0, None);
    let mut see = |offset, stamp, value_bytes| {
        records += 1;
        bytes += value_bytes;
        if wrong.is_none() {
            wrong = show(Found { partition, offset, stamp, at }).err();
        }
    };
    if any_content {
        if !batch.crc_is_valid() {
            bail!("partition {partition}: a damaged batch at offset {base}");
        }
        let next = batch.next_offset().get();
        (from.max(base)..next).for_each(|offset| see(offset, None, 0));
        // What is not looked into counts as it travels.
        bytes = batch.payload().len();
    } else {
        check_batch(partition, from, batch, |offset, stamp, bytes| see(offset, Some(stamp), bytes))
            .map_err(|wrong| anyhow::anyhow!("partition {partition}: {wrong}"))?;
    }
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let next = batch.next_offset().get();
    if next <= from && !any_content {
        bail!("partition {partition} answers offset {from} with records before it");
    }
    assigned.next_offset = next.max(from);
    Ok((records, u64::try_from(bytes)?))
}

/// A fetch of what the session does not know yet.
fn request(reading: &Reading, lane: &mut Lane, correlation_id: i32) -> Outgoing {
    let (session_id, session_epoch) = lane.session;
    let mut topics = FetchTopics::default();
    let mut changed = Vec::new();
    for part in lane.partitions.iter_mut().filter(|part| part.told_offset != Some(part.next_offset)) {
        part.told_offset = Some(part.next_offset);
        changed.push(FetchPartition {
            partition: part.partition,
            fetch_offset: part.next_offset,
            partition_max_bytes: reading.partition_bytes_max,
            ..Default::default()
        });
    }
    if !changed.is_empty() {
        topics.push(reading.topic.as_str(), TopicId::ZERO, changed);
    }
    let request = FetchRequest {
        max_wait_ms: reading.wait_ms_max,
        min_bytes: reading.bytes_min,
        max_bytes: reading.bytes_max,
        session_id,
        session_epoch,
        topics,
        ..Default::default()
    };
    let mut writer = Writer::new();
    writer.put(&[0; 4]);
    let client_id = Some("odradek-bench");
    RequestHeader { api_key: ApiKey::Fetch, api_version: FETCH_VERSION, correlation_id, client_id }
        .encode(&mut writer);
    request.encode(&mut writer, FETCH_VERSION);
    let mut outgoing = Outgoing { head: writer.into_bytes().to_vec(), ..Outgoing::default() };
    outgoing.seal();
    outgoing
}

enum Answer {
    Parts { session_id: i32, parts: VecDeque<(usize, Range<usize>)> },
    SessionLost,
}

/// Where the records of an answer stand.
fn parts_of(frame: &[u8], correlation_id: i32, partitions: &[Assigned]) -> Result<Answer> {
    let mut cursor = Cursor::new(frame);
    let echoed = decode_response_header(ApiKey::Fetch, FETCH_VERSION, &mut cursor)?;
    if echoed != correlation_id {
        bail!("the broker answered request {echoed} instead of request {correlation_id}");
    }
    let response = FetchResponse::decode(&mut cursor, FETCH_VERSION)?;
    match response.error_code {
        0 => {}
        SESSION_NOT_FOUND | SESSION_EPOCH_INVALID => return Ok(Answer::SessionLost),
        code => bail!("fetch was answered with {}", error_name(code)),
    }
    let mut parts = VecDeque::new();
    for data in response.responses.iter().flat_map(|topic| &topic.partitions) {
        let partition = data.partition_index;
        if data.error_code != 0 {
            bail!("fetch of partition {partition} was answered with {}", error_name(data.error_code));
        }
        let Ok(place) = partitions.binary_search_by_key(&partition, |part| part.partition) else {
            bail!("fetch was answered with partition {partition}, which was not asked for");
        };
        if let FetchedRecords::Bytes(bytes) = &data.records
            && !bytes.is_empty()
        {
            let start = bytes.as_ptr().addr() - frame.as_ptr().addr();
            parts.push_back((place, start..start + bytes.len()));
        }
    }
    Ok(Answer::Parts { session_id: response.session_id, parts })
}

#[cfg(test)]
mod tests;

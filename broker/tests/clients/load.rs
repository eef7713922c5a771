//! What brokers were sent, whichever of them it was, and whether all of it is there: topics of all codecs, idempotent
//! producers, compacted ones and ones under retention, each record remembered. Knows no particular broker: ours and Kafka
//! are held to it in turns. `interop.rs` takes it in by path.
#![allow(clippy::indexing_slicing, reason = "a test that finds too little has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bench_harness::client::{Client, End, error_name};
use bench_harness::content::payload;
use protocol::messages::{
    DeleteTopicsRequest, DeleteTopicsResponse, InitProducerIdRequest, InitProducerIdResponse,
    PartitionProduceData, ProduceRequest, Records as RecordsToSend, TopicProduceData,
};
use protocol::records::batch::{BatchIter, BatchView, TimestampType};
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression};
use protocol::records::reader::Records;
use protocol::types::{ProducerEpoch, ProducerId, TimestampMs};

/// Whatever is waited for comes long before, also on two slow cores.
const LIMIT: Duration = Duration::from_secs(120);
/// Of a record's value, at most.
const VALUE_BYTES: u64 = 900;
/// Keys of a compacted partition.
const KEYS: u64 = 40;

const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
/// Unknown, without a leader, led elsewhere, loading: each passes soon after a start.
const PASSING: [i16; 4] = [3, 5, 6, 14];

/// A generator that a seed repeats.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// What of a topic has to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    All,
    LastOfEachKey,
    /// From some offset on, all.
    Newest,
}

struct Topic {
    name: String,
    configs: Vec<(&'static str, &'static str)>,
    codecs: &'static [Codec],
    is_idempotent: bool,
    /// Timestamps are the broker's.
    is_stamped: bool,
    stays: Stays,
    parts: Vec<Part>,
}

/// One partition.
#[derive(Default)]
struct Part {
    /// By offset.
    records: BTreeMap<i64, Record>,
    /// Batches by base offset as a broker has served them first.
    batches: BTreeMap<i64, Vec<u8>>,
    /// Where it began when it was last read.
    start: i64,
    /// Where the next batch goes.
    end: i64,
    producer: Option<Producer>,
    /// The newest acknowledged batch of the producer, and where it went.
    newest: Option<(Vec<u8>, i64)>,
    /// Sent, and not answered.
    in_doubt: Option<(Vec<u8>, Vec<Record>)>,
}

#[derive(Clone, Copy)]
struct Producer {
    id: i64,
    epoch: i16,
    next_sequence: i32,
}

/// Of the next record.
struct Next {
    /// No two have the same.
    number: u64,
    /// Lately, as brokers forget a producer a day after its newest timestamp.
    timestamp: i64,
}

/// All of it.
pub struct Load {
    topics: Vec<Topic>,
    random: Random,
    next: Next,
    producer_ids: BTreeSet<i64>,
}

const KEPT: [(&str, &str); 4] = [
    ("retention.ms", "-1"),
    ("segment.bytes", "65536"),
    ("index.interval.bytes", "512"),
    ("file.delete.delay.ms", "1000"),
];
const COMPACTED: [(&str, &str); 5] = [
    ("cleanup.policy", "compact"),
    ("segment.bytes", "16384"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("index.interval.bytes", "512"),
    ("file.delete.delay.ms", "1000"),
];
const SHORT: [(&str, &str); 4] = [
    ("retention.ms", "-1"),
    ("retention.bytes", "32768"),
    ("segment.bytes", "16384"),
    ("file.delete.delay.ms", "1000"),
];

impl Load {
    /// Topics that nobody has made yet.
    pub fn new(seed: u64) -> Self {
        let topic = |name: &str, configs: &[(&'static str, &'static str)], codecs, stays, partitions| Topic {
            name: name.to_owned(),
            configs: configs.to_vec(),
            codecs,
            is_idempotent: true,
            is_stamped: false,
            stays,
            parts: (0..partitions).map(|_| Part::default()).collect(),
        };
        let mut topics: Vec<Topic> = Codec::ALL
            .iter()
            .map(|codec| {
                let codecs = std::slice::from_ref(codec);
                topic(&format!("kept-{codec:?}").to_lowercase(), &KEPT, codecs, Stays::All, 2)
            })
            .collect();
        topics.push(topic("compacted", &COMPACTED, &Codec::ALL, Stays::LastOfEachKey, 2));
        topics.push(topic("compacted.plain", &COMPACTED, &Codec::ALL, Stays::LastOfEachKey, 1));
        topics.push(topic("short", &SHORT, &Codec::ALL, Stays::Newest, 1));
        topics.push(topic("stamped", &KEPT, &Codec::ALL, Stays::All, 1));
        for topic in &mut topics {
            topic.is_idempotent = topic.name != "compacted.plain" && topic.name != "stamped";
            topic.is_stamped = topic.name == "stamped";
            if topic.is_stamped {
                topic.configs.push(("message.timestamp.type", "LogAppendTime"));
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_millis()).expect("a time") - 60_000;
        Self {
            topics,
            random: Random(seed),
            next: Next { number: 0, timestamp: now },
            producer_ids: BTreeSet::new(),
        }
    }

    /// Names of all topics.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.iter().map(|topic| topic.name.as_str())
    }

    /// Names of the topics that are compacted.
    pub fn compacted(&self) -> Vec<&str> {
        let compacted = self.topics.iter().filter(|topic| topic.stays == Stays::LastOfEachKey);
        compacted.map(|topic| topic.name.as_str()).collect()
    }

    /// Records that were acknowledged.
    pub fn records(&self) -> usize {
        self.topics.iter().flat_map(|topic| &topic.parts).map(|part| part.records.len()).sum()
    }

    /// Makes the topics.
    pub fn create(&self, at: &str) -> Result<(), String> {
        for topic in &self.topics {
            let partitions = i32::try_from(topic.parts.len()).expect("few");
            create(at, &topic.name, partitions, &topic.configs)?;
        }
        Ok(())
    }

    /// Waits until every partition is served; `is_alive` says why the broker has ended, if it has.
    pub fn await_served(
        &self,
        at: &str,
        is_alive: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        let is_served = || -> Option<()> {
            let mut client = connect(at).ok()?;
            for topic in &self.topics {
                let partitions = i32::try_from(topic.parts.len()).ok()?;
                client.offsets(&topic.name, partitions, End::End).ok()??;
            }
            Some(())
        };
        while is_served().is_none() {
            is_alive()?;
            if Instant::now() > deadline {
                return Err(format!("the topics are not all served within {LIMIT:?}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Sends so many batches to each partition.
    pub fn grow(&mut self, at: &str, batches: u32) -> Result<(), String> {
        let mut client = connect(at)?;
        for topic in &mut self.topics {
            for index in 0..topic.parts.len() {
                if topic.is_idempotent && topic.parts[index].producer.is_none() {
                    let producer = new_producer(&mut client)?;
                    if !self.producer_ids.insert(producer.id) {
                        return Err(format!("producer id {} was handed out twice", producer.id));
                    }
                    topic.parts[index].producer = Some(producer);
                }
                for _ in 0..batches {
                    let (batch, records) = draw(topic, index, &mut self.random, &mut self.next);
                    let (code, offset) = produce(&mut client, &topic.name, index, &batch)?;
                    let part = &mut topic.parts[index];
                    if (code, offset) != (0, part.end) {
                        let answer = format!("{} at {offset}, not {}", error_name(code), part.end);
                        return Err(format!("a batch of {}-{index} was answered with {answer}", topic.name));
                    }
                    part.note(batch, records);
                }
            }
        }
        Ok(())
    }

    /// New producers for half of the partitions: the old ones are still known.
    pub fn renew_producers(&mut self) {
        for part in self.topics.iter_mut().flat_map(|topic| &mut topic.parts) {
            if self.random.below(2) == 0 {
                part.producer = None;
                part.newest = None;
            }
        }
    }

    /// Sends a batch to each partition and waits for no answer.
    pub fn leave_in_doubt(&mut self, at: &str) -> Result<Client, String> {
        let mut client = connect(at)?;
        for topic in &mut self.topics {
            for index in 0..topic.parts.len() {
                let (batch, records) = draw(topic, index, &mut self.random, &mut self.next);
                send(&mut client, &topic.name, index, &batch)?;
                topic.parts[index].in_doubt = Some((batch, records));
            }
        }
        std::thread::sleep(Duration::from_millis(self.random.below(4)));
        Ok(client)
    }

    /// Reads everything and compares it with what was sent and with what was read before.
    pub fn verify(&mut self, at: &str) -> Result<(), String> {
        let mut client = connect(at)?;
        for topic in &mut self.topics {
            let partitions = i32::try_from(topic.parts.len()).expect("few");
            let mut ends = |end| -> Result<Vec<i64>, String> {
                let ends = client.offsets(&topic.name, partitions, end).map_err(|error| error.to_string())?;
                ends.ok_or_else(|| format!("{} is not served", topic.name))
            };
            let (starts, ends) = (ends(End::Start)?, ends(End::End)?);
            for index in 0..topic.parts.len() {
                let about = |why: String| format!("{}-{index}: {why}", topic.name);
                let (stays, is_stamped) = (topic.stays, topic.is_stamped);
                let part = &mut topic.parts[index];
                part.settle(ends[index]).map_err(about)?;
                let found = read(&mut client, &topic.name, index, starts[index], part.end).map_err(about)?;
                part.compare(stays, is_stamped, starts[index], found).map_err(about)?;
                part.try_producer(&mut client, &topic.name, index).map_err(about)?;
            }
        }
        Ok(())
    }

    /// Waits until all but the active segment of the compacted partitions is clean, as their broker's checkpoint says.
    pub fn await_compacted(&self, log_dir: &Path) -> Result<(), String> {
        let compacted = self.topics.iter().filter(|topic| topic.stays == Stays::LastOfEachKey);
        for (topic, index) in
            compacted.flat_map(|topic| (0..topic.parts.len()).map(move |index| (topic, index)))
        {
            let base = active_base(&log_dir.join(format!("{}-{index}", topic.name)))?;
            let deadline = Instant::now() + LIMIT;
            while cleaned_to(log_dir, &topic.name, index) < base {
                if Instant::now() > deadline {
                    return Err(format!("{}-{index} is not compacted up to {base}", topic.name));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Waits until retention has removed something that was there when it was last read.
    pub fn await_retention(&self, at: &str) -> Result<(), String> {
        let mut client = connect(at)?;
        for topic in self.topics.iter().filter(|topic| topic.stays == Stays::Newest) {
            let deadline = Instant::now() + LIMIT;
            loop {
                let starts = client.offsets(&topic.name, 1, End::Start).map_err(|error| error.to_string())?;
                if starts.is_some_and(|starts| starts[0] > topic.parts[0].start) {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(format!("retention removes nothing of {}", topic.name));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

impl Part {
    fn note(&mut self, batch: Vec<u8>, records: Vec<Record>) {
        let (base, count) = (self.end, records.len());
        self.records.extend((base..).zip(records));
        self.end += i64::try_from(count).expect("few");
        if let Some(producer) = &mut self.producer {
            producer.next_sequence += i32::try_from(count).expect("few");
            self.newest = Some((batch, base));
        }
    }

    /// A batch whose answer was lost is there wholly or not at all.
    fn settle(&mut self, end: i64) -> Result<(), String> {
        if let Some((batch, records)) = self.in_doubt.take()
            && end > self.end
        {
            self.note(batch, records);
        }
        if end == self.end { Ok(()) } else { Err(format!("it ends at {end}, not at {}", self.end)) }
    }

    fn compare(&mut self, stays: Stays, is_stamped: bool, start: i64, found: Found) -> Result<(), String> {
        if start < self.start || (stays != Stays::Newest && start != 0) {
            return Err(format!("it begins at {start}, before at {}", self.start));
        }
        self.start = start;
        for (offset, record) in &found.records {
            let Some(sent) = self.records.get_mut(offset) else {
                return Err(format!("at {offset} is what was not sent: {record:?}"));
            };
            if is_stamped {
                // Whether it changes is seen of the batch.
                sent.timestamp = record.timestamp;
            }
            if sent != record {
                return Err(format!("at {offset} is {record:?}, sent was {sent:?}"));
            }
        }
        match stays {
            Stays::All | Stays::Newest => {
                if !found.records.keys().copied().eq(start..self.end) {
                    return Err("records are missing".to_owned());
                }
                for (base, batch) in found.batches {
                    let before = self.batches.entry(base).or_insert_with(|| batch.clone());
                    if *before != batch {
                        return Err(format!("the batch at {base} was served otherwise before"));
                    }
                }
            }
            Stays::LastOfEachKey => {
                let last: BTreeMap<_, i64> =
                    self.records.iter().map(|(offset, record)| (&record.key, *offset)).collect();
                if let Some((key, offset)) = last.into_iter().find(|(_, at)| !found.records.contains_key(at))
                {
                    return Err(format!("the last record of key {key:?}, at {offset}, is gone"));
                }
            }
        }
        Ok(())
    }

    /// What a producer has sent last is known, and so is what it has to send next.
    fn try_producer(&self, client: &mut Client, topic: &str, index: usize) -> Result<(), String> {
        if let Some((batch, base)) = &self.newest {
            let (code, offset) = produce(client, topic, index, batch)?;
            if (code, offset) != (0, *base) {
                return Err(format!("what went to {base} came again: {} at {offset}", error_name(code)));
            }
        }
        if let Some(Producer { id, epoch, next_sequence }) = self.producer
            && next_sequence > 0
        {
            let ahead = Producer { id, epoch, next_sequence: next_sequence + 5 };
            let mut builder = builder(Some(ahead), Codec::None);
            builder.push(TimestampMs::new(1), Some(b"gap"), None, &[]);
            let batch = builder.build().expect("a batch");
            let (code, _) = produce(client, topic, index, &batch)?;
            if code != OUT_OF_ORDER_SEQUENCE_NUMBER {
                return Err(format!("a gap of its producer was answered with {}", error_name(code)));
            }
        }
        Ok(())
    }
}

/// What was read of a partition.
#[derive(Default)]
struct Found {
    records: BTreeMap<i64, Record>,
    batches: BTreeMap<i64, Vec<u8>>,
}

fn read(client: &mut Client, topic: &str, index: usize, start: i64, end: i64) -> Result<Found, String> {
    let (mut found, mut next) = (Found::default(), start);
    let (partition, deadline) = (i32::try_from(index).expect("few"), Instant::now() + LIMIT);
    while next < end {
        let fetched = client.fetch(topic, partition, next, Duration::from_millis(500));
        let fetched = fetched.map_err(|error| error.to_string())?;
        if PASSING.contains(&fetched.error_code) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        if fetched.error_code != 0 {
            return Err(format!("a fetch at {next} was answered with {}", error_name(fetched.error_code)));
        }
        let before = next;
        for batch in BatchIter::new(&fetched.records) {
            let batch = batch.map_err(|error| format!("at {next}: {error}"))?;
            if !batch.crc_is_valid() || batch.next_offset().get() <= next {
                return Err(format!("at {next} is a damaged batch, or one out of order"));
            }
            take(&batch, start, &mut found).map_err(|error| format!("at {next}: {error}"))?;
            next = batch.next_offset().get();
        }
        if next == before {
            return Err(format!("it cannot be read beyond {next}, and ends at {end}"));
        }
    }
    Ok(found)
}

fn take(batch: &BatchView<'_>, start: i64, found: &mut Found) -> Result<(), String> {
    let base = batch.base_offset().get();
    found.batches.insert(base, batch.bytes().to_vec());
    let is_stamped = batch.attributes().timestamp_type() == TimestampType::LogAppendTime;
    let mut records = Records::of(batch).map_err(|error| error.to_string())?;
    while let Some(record) = records.next_record().map_err(|error| error.to_string())? {
        let created = batch.base_timestamp().get() + record.timestamp_delta;
        let owned = Record {
            timestamp: if is_stamped { batch.max_timestamp().get() } else { created },
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: record.headers.map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect(),
        };
        let offset = base + i64::from(record.offset_delta);
        if offset >= start && found.records.insert(offset, owned).is_some() {
            return Err(format!("{offset} is there twice"));
        }
    }
    Ok(())
}

fn builder(producer: Option<Producer>, codec: Codec) -> BatchBuilder {
    let builder = BatchBuilder::new().compression(Compression::default_level(codec));
    match producer {
        None => builder,
        Some(Producer { id, epoch, next_sequence }) => {
            builder.producer(ProducerId::new(id), ProducerEpoch::new(epoch), next_sequence)
        }
    }
}

/// The next batch of a partition.
fn draw(topic: &Topic, index: usize, random: &mut Random, next: &mut Next) -> (Vec<u8>, Vec<Record>) {
    let any = usize::try_from(random.below(u64::MAX >> 33)).expect("small") % topic.codecs.len();
    let mut builder = builder(topic.parts[index].producer, topic.codecs[any]);
    let mut records = Vec::new();
    for _ in 0..1 + random.below(20) {
        let Next { number, timestamp } = *next;
        *next = Next { number: number + 1, timestamp: timestamp + 1 };
        let is_keyed = topic.stays == Stays::LastOfEachKey || random.below(4) > 0;
        let key = is_keyed.then(|| random.below(KEYS).to_be_bytes().to_vec());
        let length = usize::try_from(random.below(VALUE_BYTES)).expect("small");
        let value = (random.below(12) > 0).then(|| {
            let mut value = number.to_be_bytes().to_vec();
            value.extend(payload(number, length));
            value
        });
        let headers = match random.below(6) {
            0 => vec![(b"h".to_vec(), None), (Vec::new(), Some(number.to_be_bytes().to_vec()))],
            _ => Vec::new(),
        };
        let borrowed: Vec<_> =
            headers.iter().map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
        builder.push(TimestampMs::new(timestamp), key.as_deref(), value.as_deref(), &borrowed);
        records.push(Record { timestamp, key, value, headers });
    }
    (builder.build().expect("a batch").to_vec(), records)
}

fn connect(at: &str) -> Result<Client, String> {
    Client::connect(at, LIMIT).map_err(|error| error.to_string())
}

/// Makes a topic.
pub fn create(at: &str, topic: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<(), String> {
    let configs: Vec<_> =
        configs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    connect(at)?.create_topic_with(topic, partitions, &configs).map_err(|error| error.to_string())
}

/// Deletes a topic.
pub fn delete(at: &str, topic: &str) -> Result<(), String> {
    let request =
        DeleteTopicsRequest { topic_names: vec![topic.into()], timeout_ms: 30_000, ..Default::default() };
    let reply = connect(at)?.call(4, &request).map_err(|error| error.to_string())?;
    let response: DeleteTopicsResponse<'_> = reply.message().map_err(|error| error.to_string())?;
    match response.responses.first().map(|deleted| deleted.error_code) {
        Some(0) => Ok(()),
        code => Err(format!("the deletion of {topic} was answered with {}", error_name(code.unwrap_or(-1)))),
    }
}

fn new_producer(client: &mut Client) -> Result<Producer, String> {
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    let deadline = Instant::now() + LIMIT;
    loop {
        let reply = client.call(3, &request).map_err(|error| error.to_string())?;
        let response: InitProducerIdResponse = reply.message().map_err(|error| error.to_string())?;
        match response.error_code {
            0 => {
                let InitProducerIdResponse { producer_id: id, producer_epoch: epoch, .. } = response;
                return Ok(Producer { id, epoch, next_sequence: 0 });
            }
            code if PASSING.contains(&code) && Instant::now() < deadline => {}
            code => return Err(format!("no producer id: {}", error_name(code))),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends a batch until it gets an answer that stays.
pub fn produce(client: &mut Client, topic: &str, index: usize, batch: &[u8]) -> Result<(i16, i64), String> {
    let (partition, deadline) = (i32::try_from(index).expect("few"), Instant::now() + LIMIT);
    loop {
        let answer = client.produce(topic, partition, -1, batch).map_err(|error| error.to_string())?;
        let answer = answer.ok_or("no answer")?;
        if !PASSING.contains(&answer.error_code) || Instant::now() > deadline {
            return Ok((answer.error_code, answer.base_offset));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a batch; its answer is not taken.
fn send(client: &mut Client, topic: &str, index: usize, batch: &[u8]) -> Result<(), String> {
    let index = i32::try_from(index).expect("few");
    let data = PartitionProduceData { index, records: Some(RecordsToSend::new(batch)) };
    let topic_data = vec![TopicProduceData { name: topic.into(), partition_data: vec![data] }];
    let request = ProduceRequest { transactional_id: None, acks: -1, timeout_ms: 30_000, topic_data };
    client.send(9, &request).map(drop).map_err(|error| error.to_string())
}

/// Where a partition is clean.
fn cleaned_to(log_dir: &Path, topic: &str, index: usize) -> i64 {
    let text = std::fs::read_to_string(log_dir.join("cleaner-offset-checkpoint")).unwrap_or_default();
    let entry = text.lines().find_map(|line| line.strip_prefix(&format!("{topic} {index} ")));
    entry.and_then(|offset| offset.parse().ok()).unwrap_or(0)
}

/// Base offset of the newest segment.
fn active_base(partition: &Path) -> Result<i64, String> {
    let names = std::fs::read_dir(partition).map_err(|error| error.to_string())?;
    let bases = names.flatten().filter_map(|entry| {
        let path = entry.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        path.file_stem().filter(|_| is_log)?.to_str()?.parse().ok()
    });
    bases.max().ok_or_else(|| format!("{} has no segment", partition.display()))
}

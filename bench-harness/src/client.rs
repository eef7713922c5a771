//! A blocking client of one connection: encodes requests, decodes answers. One request at a time, or several sent
//! before the first answer is taken.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::api::{RequestHeader, decode_response_header};
use protocol::codec::{Cursor, Writer};
use protocol::messages::{
    CreatableTopic, CreateTopicsRequest, CreateTopicsResponse, FetchPartition, FetchRequest, FetchResponse,
    FetchTopics, FetchedRecords, Message, PartitionProduceData, ProduceRequest, ProduceResponse, Records,
    TopicProduceData,
};
use protocol::types::TopicId;

/// Versions that the typed calls below use.
const PRODUCE_VERSION: i16 = 9;
const FETCH_VERSION: i16 = 12;
const CREATE_TOPICS_VERSION: i16 = 5;

/// Answers larger than this are not taken.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A connection to a broker.
pub struct Client {
    stream: TcpStream,
    next_correlation_id: i32,
}

/// An answer as it came: decode it with [`Reply::message`].
pub struct Reply {
    frame: Vec<u8>,
    version: i16,
}

impl Reply {
    /// Decodes the answer; it borrows from the frame.
    ///
    /// # Errors
    /// Bytes that are no such answer.
    pub fn message<'a, M: Message<'a>>(&'a self) -> Result<M> {
        let mut cursor = Cursor::new(&self.frame);
        decode_response_header(M::KEY, self.version, &mut cursor)?;
        Ok(M::decode(&mut cursor, self.version)?)
    }
}

/// What a Produce of one partition was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Error code, 0 for none.
    pub error_code: i16,
    /// Offset of the first record.
    pub base_offset: i64,
}

/// What a Fetch of one partition was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Error code, 0 for none.
    pub error_code: i16,
    /// First offset that is not committed.
    pub high_watermark: i64,
    /// Whole batches, and possibly a part of one more.
    pub records: Vec<u8>,
}

impl Client {
    /// Connects, and gives each later call at most `limit`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn connect(bootstrap: &str, limit: Duration) -> Result<Self> {
        let address =
            bootstrap.to_socket_addrs()?.next().with_context(|| format!("{bootstrap} has no address"))?;
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, next_correlation_id: 0 })
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send<'a, M: Message<'a>>(&mut self, version: i16, message: &M) -> Result<i32> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id = correlation_id.wrapping_add(1);
        let mut writer = Writer::new();
        let client_id = Some("odradek-bench");
        RequestHeader { api_key: M::KEY, api_version: version, correlation_id, client_id }
            .encode(&mut writer);
        message.encode(&mut writer, version);
        self.stream.write_all(&writer.into_frame())?;
        Ok(correlation_id)
    }

    /// Takes the next answer, which must be the one to this request.
    ///
    /// # Errors
    /// What the socket says, or an answer to something else.
    pub fn receive(&mut self, version: i16, correlation_id: i32) -> Result<Reply> {
        let mut prefix = [0; 4];
        self.stream.read_exact(&mut prefix)?;
        let size = usize::try_from(i32::from_be_bytes(prefix))?;
        if size > ANSWER_BYTES_MAX {
            bail!("an answer of {size} bytes");
        }
        let mut frame = vec![0; size];
        self.stream.read_exact(&mut frame)?;
        match frame.first_chunk() {
            Some(echoed) if i32::from_be_bytes(*echoed) == correlation_id => Ok(Reply { frame, version }),
            _ => bail!("the answer is not that to request {correlation_id}"),
        }
    }

    /// Sends a request and takes its answer.
    ///
    /// # Errors
    /// As [`Client::send`] and [`Client::receive`].
    pub fn call<'a, M: Message<'a>>(&mut self, version: i16, message: &M) -> Result<Reply> {
        let correlation_id = self.send(version, message)?;
        self.receive(version, correlation_id)
    }

    /// Creates a topic with one replica; one that exists is fine.
    ///
    /// # Errors
    /// What the socket says, or an error of the broker.
    pub fn create_topic(&mut self, name: &str, partitions: i32) -> Result<()> {
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: 1,
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        let reply = self.call(CREATE_TOPICS_VERSION, &request)?;
        let response: CreateTopicsResponse<'_> = reply.message()?;
        match response.topics.first().map(|topic| topic.error_code) {
            Some(0 | 36) => Ok(()),
            code => bail!("creation of {name} was answered with {code:?}"),
        }
    }

    /// Sends batches of one partition; `None` with acks=0, which has no answer.
    ///
    /// # Errors
    /// What the socket says.
    pub fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        acks: i16,
        batches: &[u8],
    ) -> Result<Option<Produced>> {
        let data = PartitionProduceData { index: partition, records: Some(Records::new(batches)) };
        let topic_data = vec![TopicProduceData { name: topic.into(), partition_data: vec![data] }];
        let request = ProduceRequest { transactional_id: None, acks, timeout_ms: 30_000, topic_data };
        let correlation_id = self.send(PRODUCE_VERSION, &request)?;
        if acks == 0 {
            return Ok(None);
        }
        let reply = self.receive(PRODUCE_VERSION, correlation_id)?;
        let response: ProduceResponse<'_> = reply.message()?;
        let answered = response.responses.first().and_then(|topic| topic.partition_responses.first());
        let answered = answered.context("an answer without the partition")?;
        Ok(Some(Produced { error_code: answered.error_code, base_offset: answered.base_offset }))
    }

    /// Reads one partition from an offset.
    ///
    /// # Errors
    /// What the socket says, or a top-level error of the broker.
    pub fn fetch(&mut self, topic: &str, partition: i32, offset: i64, max_wait: Duration) -> Result<Fetched> {
        let mut topics = FetchTopics::default();
        let bytes_max = 8 << 20;
        let wanted = FetchPartition {
            partition,
            fetch_offset: offset,
            partition_max_bytes: bytes_max,
            ..Default::default()
        };
        topics.push(topic.to_owned(), TopicId::ZERO, [wanted]);
        let max_wait_ms = i32::try_from(max_wait.as_millis())?;
        let request =
            FetchRequest { max_wait_ms, min_bytes: 1, max_bytes: bytes_max, topics, ..Default::default() };
        let reply = self.call(FETCH_VERSION, &request)?;
        let response: FetchResponse<'_> = reply.message()?;
        if response.error_code != 0 {
            bail!("fetch was answered with {}", response.error_code);
        }
        let data = response.responses.first().and_then(|topic| topic.partitions.first());
        Ok(data.map_or_else(Fetched::default, |data| Fetched {
            error_code: data.error_code,
            high_watermark: data.high_watermark,
            records: match &data.records {
                FetchedRecords::Bytes(bytes) => bytes.to_vec(),
                FetchedRecords::Held(_) => Vec::new(),
            },
        }))
    }
}

//! A blocking client of one connection: encodes requests, decodes answers. One request at a time, or several sent
//! before the first answer is taken.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::api::{RequestHeader, decode_response_header};
use protocol::codec::{Cursor, Writer};
use protocol::error::ErrorCode;
use protocol::messages::incremental_alter_configs::{AlterConfigsResource, AlterableConfig};
use protocol::messages::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, CreateTopicsResponse, FetchPartition,
    FetchRequest, FetchResponse, FetchTopics, FetchedRecords, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopic, Message, MetadataRequest, MetadataRequestTopic, MetadataResponse, PartitionProduceData,
    ProduceRequest, ProduceResponse, Records, TopicProduceData,
};
use protocol::types::TopicId;

/// Versions that the typed calls below use.
const PRODUCE_VERSION: i16 = 9;
const FETCH_VERSION: i16 = 12;
const CREATE_TOPICS_VERSION: i16 = 5;
const METADATA_VERSION: i16 = 9;
const LIST_OFFSETS_VERSION: i16 = 6;
const INCREMENTAL_ALTER_CONFIGS_VERSION: i16 = 1;

/// Error of a topic that exists already.
const TOPIC_ALREADY_EXISTS: i16 = 36;

/// Answers larger than this are not taken.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Kafka's name of an error code.
pub fn error_name(code: i16) -> String {
    ErrorCode::new(code).map_or_else(|| format!("error {code}"), |code| code.name().to_owned())
}

/// The first address of `HOST:PORT`.
///
/// # Errors
/// A text of another form, or a name without an address.
pub fn resolve(bootstrap: &str) -> Result<SocketAddr> {
    let addresses = bootstrap.to_socket_addrs();
    let mut addresses =
        addresses.with_context(|| format!("{bootstrap} is no HOST:PORT that can be found"))?;
    addresses.next().with_context(|| format!("{bootstrap} has no address"))
}

/// Which end of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The first offset that is there.
    Start,
    /// The offset behind the last record.
    End,
}

/// A broker's refusal to create a topic.
#[derive(Debug, thiserror::Error)]
#[error("creation of {topic} was answered with {} {text}", error_name(*code))]
pub struct NotCreated {
    topic: String,
    /// Its error code.
    pub code: i16,
    text: String,
}

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
        let address = resolve(bootstrap)?;
        let stream = TcpStream::connect_timeout(&address, limit)
            .with_context(|| format!("no connection to the broker at {bootstrap}"))?;
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
        self.create_topic_with(name, partitions, &[])
    }

    /// Creates a topic with one replica and configs; one that exists is fine, and keeps its own.
    ///
    /// # Errors
    /// What the socket says, or an error of the broker.
    pub fn create_topic_with(
        &mut self,
        name: &str,
        partitions: i32,
        configs: &[(String, String)],
    ) -> Result<()> {
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: name.as_str().into(),
            value: Some(value.as_str().into()),
        });
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: 1,
            configs: configs.collect(),
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        let reply = self.call(CREATE_TOPICS_VERSION, &request)?;
        let response: CreateTopicsResponse<'_> = reply.message()?;
        match response.topics.first() {
            Some(topic) if matches!(topic.error_code, 0 | TOPIC_ALREADY_EXISTS) => Ok(()),
            Some(topic) => {
                let text = topic.error_message.as_deref().unwrap_or_default().to_owned();
                Err(NotCreated { topic: name.to_owned(), code: topic.error_code, text }.into())
            }
            None => bail!("creation of {name} was not answered"),
        }
    }

    /// Sets one config of a topic; the others stay.
    ///
    /// # Errors
    /// What the socket says, or an error of the broker.
    pub fn set_topic_config(&mut self, topic: &str, name: &str, value: &str) -> Result<()> {
        /// Kind of the resource, and what is done to its config.
        const TOPIC: i8 = 2;
        const SET: i8 = 0;
        let config = AlterableConfig { name: name.into(), config_operation: SET, value: Some(value.into()) };
        let resource =
            AlterConfigsResource { resource_type: TOPIC, resource_name: topic.into(), configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        let reply = self.call(INCREMENTAL_ALTER_CONFIGS_VERSION, &request)?;
        let response: IncrementalAlterConfigsResponse<'_> = reply.message()?;
        let answered = response.responses.first();
        let answered = answered.with_context(|| format!("{name} of {topic} was not answered"))?;
        if answered.error_code != 0 {
            let text = answered.error_message.as_deref().unwrap_or_default();
            bail!("{name}={value} of {topic} was answered with {} {text}", error_name(answered.error_code));
        }
        Ok(())
    }

    /// Number of partitions of a topic; `None` while the broker does not know it or a partition lacks its leader.
    ///
    /// # Errors
    /// What the socket says, or an error of the broker.
    pub fn partitions(&mut self, topic: &str) -> Result<Option<i32>> {
        let asked = MetadataRequestTopic { name: Some(topic.into()), ..Default::default() };
        let request = MetadataRequest {
            topics: Some(vec![asked]),
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        let reply = self.call(METADATA_VERSION, &request)?;
        let response: MetadataResponse<'_> = reply.message()?;
        let Some(found) = response.topics.first() else { return Ok(None) };
        // Unknown yet, or without a leader yet: both pass.
        if matches!(found.error_code, 3 | 5) || found.partitions.iter().any(|part| part.error_code != 0) {
            return Ok(None);
        }
        if found.error_code != 0 {
            bail!("topic {topic} was answered with {}", error_name(found.error_code));
        }
        Ok(Some(i32::try_from(found.partitions.len())?))
    }

    /// One end of each partition `0 .. partitions`; `None` while one is not led by this broker.
    ///
    /// # Errors
    /// What the socket says, or an error of the broker.
    pub fn offsets(&mut self, topic: &str, partitions: i32, end: End) -> Result<Option<Vec<i64>>> {
        let timestamp = match end {
            End::Start => -2,
            End::End => -1,
        };
        let asked =
            |partition_index| ListOffsetsPartition { partition_index, timestamp, ..Default::default() };
        let wanted = (0..partitions).map(asked).collect();
        let topics = vec![ListOffsetsTopic { name: topic.into(), partitions: wanted }];
        let request = ListOffsetsRequest { replica_id: -1, topics, ..Default::default() };
        let reply = self.call(LIST_OFFSETS_VERSION, &request)?;
        let response: ListOffsetsResponse<'_> = reply.message()?;
        let mut offsets = BTreeMap::new();
        for part in response.topics.iter().flat_map(|topic| &topic.partitions) {
            match part.error_code {
                0 => offsets.insert(part.partition_index, part.offset),
                // Unknown here yet, without a leader yet, led elsewhere as far as is known here: all pass.
                3 | 5 | 6 => return Ok(None),
                code => bail!(
                    "offsets of partition {} were answered with {}",
                    part.partition_index,
                    error_name(code)
                ),
            };
        }
        if !offsets.keys().copied().eq(0..partitions) {
            bail!("the broker did not tell the offsets of all {partitions} partitions of {topic}");
        }
        let offsets = offsets.into_values().collect();
        Ok(Some(offsets))
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

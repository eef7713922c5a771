//! A broker that keeps nothing: answers Produce without looking at the records, so that `odradek-bench produce` shows what
//! the generator itself can do. `cargo run --release -p bench-harness --example sink -- 127.0.0.1:24450`, then
//! `odradek-bench produce --bootstrap 127.0.0.1:24450`. Topics have 16 partitions.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, bail};
use protocol::api::{ApiKey, RequestHeader, response_header};
use protocol::codec::{Cursor, Writer};
use protocol::messages::{
    CreatableTopicResult, CreateTopicsResponse, ListOffsetsPartitionResponse, ListOffsetsResponse,
    ListOffsetsTopicResponse, Message, MetadataResponse, MetadataResponsePartition, MetadataResponseTopic,
    PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse,
};

const PARTITIONS: i32 = 16;

fn main() -> Result<()> {
    let address = std::env::args().nth(1).context("an address to listen on, HOST:PORT")?;
    for stream in TcpListener::bind(&address)?.incoming() {
        let stream = stream?;
        std::thread::spawn(move || serve(stream));
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut frame = Vec::new();
    let mut prefix = [0; 4];
    loop {
        stream.read_exact(&mut prefix)?;
        let size = usize::try_from(i32::from_be_bytes(prefix))?;
        if frame.len() < size {
            frame.resize(size, 0);
        }
        let whole = frame.get_mut(..size).unwrap_or_default();
        stream.read_exact(whole)?;
        stream.write_all(&answer(whole)?)?;
    }
}

fn answer(frame: &[u8]) -> Result<Vec<u8>> {
    let mut cursor = Cursor::new(frame);
    let header = RequestHeader::decode(&mut cursor)?;
    let version = header.api_version;
    let mut writer = Writer::new();
    response_header(header.api_key, version, header.correlation_id, &mut writer);
    match header.api_key {
        ApiKey::Produce => {
            let request = ProduceRequest::decode(&mut cursor, version)?;
            let responses = request.topic_data.iter().map(|topic| TopicProduceResponse {
                name: topic.name.clone(),
                partition_responses: topic
                    .partition_data
                    .iter()
                    .map(|part| PartitionProduceResponse { index: part.index, ..Default::default() })
                    .collect(),
            });
            ProduceResponse { responses: responses.collect(), ..Default::default() }
                .encode(&mut writer, version);
        }
        ApiKey::CreateTopics => {
            let topics = vec![CreatableTopicResult::default()];
            CreateTopicsResponse { topics, ..Default::default() }.encode(&mut writer, version);
        }
        ApiKey::Metadata => {
            let partition =
                |partition_index| MetadataResponsePartition { partition_index, ..Default::default() };
            let partitions = (0..PARTITIONS).map(partition).collect();
            let name = Some("any".into());
            let topics = vec![MetadataResponseTopic { name, partitions, ..Default::default() }];
            MetadataResponse { topics, ..Default::default() }.encode(&mut writer, version);
        }
        ApiKey::ListOffsets => {
            let partition = |partition_index| ListOffsetsPartitionResponse {
                partition_index,
                offset: 0,
                ..Default::default()
            };
            let partitions = (0..PARTITIONS).map(partition).collect();
            let topics = vec![ListOffsetsTopicResponse { name: "any".into(), partitions }];
            ListOffsetsResponse { topics, ..Default::default() }.encode(&mut writer, version);
        }
        other => bail!("a sink does not know {}", other.name()),
    }
    Ok(writer.into_frame().to_vec())
}

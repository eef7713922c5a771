//! DescribeProducers (61): wire to domain and back (protocol.md 3.9).

use std::rc::Rc;

use protocol::error::ErrorCode;
use protocol::messages::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::resolve::{self, Place};
use super::scatter::scatter;
use super::{Answer, Request};
use crate::partition::ask::{ActiveProducer, PartitionAnswer, PartitionAsk};
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// Handles one request.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message: DescribeProducersRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let image = wiring.image.current();
    let mut pace = Pace::new(&wiring.runtime);
    let mut parts = Vec::new();
    for topic in &message.topics {
        let known = image.topic(&topic.name).map(|topic| &**topic);
        pace.step().await;
        for partition in &topic.partition_indexes {
            pace.step().await;
            parts.push(resolve::place(known, *partition).map(|Place { owner, key }| (owner, key)));
        }
    }
    drop(image);
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let described = scatter(wiring, parts, by, PartitionAsk::DescribeProducers, |answer| match answer {
        PartitionAnswer::Producers(producers) => Some(producers),
        _ => None,
    });
    let mut described = described.await.into_iter();
    let mut topics = Vec::with_capacity(message.topics.len());
    for topic in &message.topics {
        let partitions = topic.partition_indexes.iter().zip(described.by_ref());
        let partitions = partitions.map(|(partition, producers)| response(*partition, producers));
        let partitions = pace.collect(partitions).await;
        topics.push(TopicResponse { name: topic.name.clone(), partitions });
        pace.step().await;
    }
    reply(&request, &DescribeProducersResponse { throttle_time_ms: 0, topics })
}

fn response(
    partition_index: i32,
    outcome: Result<Vec<ActiveProducer>, ErrorCode>,
) -> PartitionResponse<'static> {
    let none = PartitionResponse { partition_index, ..PartitionResponse::default() };
    match outcome {
        Ok(producers) => {
            PartitionResponse { active_producers: producers.iter().map(state).collect(), ..none }
        }
        Err(code) => PartitionResponse { error_code: code.get(), ..none },
    }
}

fn state(producer: &ActiveProducer) -> ProducerState {
    ProducerState {
        producer_id: producer.producer_id.get(),
        producer_epoch: i32::from(producer.producer_epoch.get()),
        last_sequence: producer.last_sequence,
        last_timestamp: producer.last_timestamp.get(),
        coordinator_epoch: producer.coordinator_epoch,
        current_txn_start_offset: producer.current_txn_start_offset.get(),
    }
}

//! DescribeProducers (61): wire to domain and back (protocol.md 3.9).

use std::rc::Rc;

use protocol::api::ApiKey;
use protocol::codec::{Layout, WrittenList};
use protocol::error::ErrorCode;
use protocol::messages::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::repeats::{AnswerRoom, Distinct, Mention};
use super::resolve::{self, Place};
use super::scatter::scatter;
use super::{Answer, Request};
use crate::partition::ask::{ActiveProducer, PartitionAnswer, PartitionAsk};
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// Handles one request. A partition is asked for once, and told as often as it is named, as in Kafka.
pub async fn handle<R: ShardRuntime>(wiring: &Rc<Wiring<R>>, request: Request) -> Answer {
    let message: DescribeProducersRequest = match decode(&request) {
        Ok(message) => message,
        Err(malformed) => return malformed.into(),
    };
    let image = wiring.image.current();
    let mut pace = Pace::new(&wiring.runtime);
    let (mut names, mut partitions) = (Distinct::new(), Distinct::new());
    let (mut parts, mut mentions) = (Vec::new(), Vec::new());
    for topic in &message.topics {
        let known = image.topic(&topic.name).map(|topic| &**topic);
        let name = names.mention(&*topic.name).place;
        pace.step().await;
        for partition in &topic.partition_indexes {
            pace.step().await;
            let mention = partitions.mention((name, *partition));
            if mention.is_first {
                parts.push(resolve::place(known, *partition).map(|Place { owner, key }| (owner, key)));
            }
            mentions.push(mention);
        }
    }
    drop(image);
    let by = deadline(&wiring.runtime, ASK_MS_MAX);
    let described = scatter(wiring, parts, by, PartitionAsk::DescribeProducers, |answer| match answer {
        PartitionAnswer::Producers(producers) => Some(producers),
        _ => None,
    });
    let layout = Layout::of(ApiKey::DescribeProducers, request.api_version);
    let mut written = Vec::new();
    for outcome in described.await {
        written.push(outcome.map(|producers| WrittenList::new(producers.iter().map(state), layout)));
        pace.look().await;
    }
    let mut room = AnswerRoom::new();
    let mut mentions = mentions.into_iter();
    let mut topics = Vec::with_capacity(message.topics.len());
    for topic in &message.topics {
        let partitions = topic.partition_indexes.iter().zip(mentions.by_ref());
        let partitions = partitions
            .map(|(partition, mention)| response(*partition, written.get(mention.place), mention, &mut room));
        let partitions = pace.collect(partitions).await;
        topics.push(TopicResponse { name: topic.name.clone(), partitions });
        pace.step().await;
    }
    reply(&request, &DescribeProducersResponse { throttle_time_ms: 0, topics })
}

fn response(
    partition_index: i32,
    outcome: Option<&Result<WrittenList, ErrorCode>>,
    mention: Mention,
    room: &mut AnswerRoom,
) -> PartitionResponse<'static> {
    let none = PartitionResponse { partition_index, ..PartitionResponse::default() };
    match outcome {
        Some(Ok(producers)) => match room.take(producers.bytes(), mention.is_first) {
            Ok(()) => PartitionResponse { active_producers: producers.all(), ..none },
            Err(no_room) => PartitionResponse {
                error_code: ErrorCode::InvalidRequest.get(),
                error_message: Some(no_room.to_string().into()),
                ..none
            },
        },
        Some(Err(code)) => PartitionResponse { error_code: code.get(), ..none },
        None => PartitionResponse { error_code: ErrorCode::UnknownServerError.get(), ..none },
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
